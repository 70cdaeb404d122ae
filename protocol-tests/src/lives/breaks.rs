//! What becomes of brokers and of the logs that they keep.

use super::Life;
use crate::setting::millis;
use laneway::OffsetMap;
use laneway::broker::{Fault, Rule};
use laneway::group::GroupProtocol;
use laneway::records::{BatchBuilder, Decoder, Encoder, Limits, Piece, split};

/// What each API may answer.
const CODES: [(i16, &[i16]); 12] = [
    (0, &[2, 3, 5, 6, 7, 19, 20, 56, -1]),
    (22, &[14, 15, -1]),
    (1, &[1, 3, 5, 6, 9, 56, 70, 71, 74, 75, 76, 100, -1]),
    (2, &[3, 5, 6, 7, 74, 75]),
    (3, &[5, 3]),
    (8, &[7, 14, 15, 16, 22, 25, 27]),
    (9, &[14, 15, 16, 88]),
    (10, &[15, 14]),
    (11, &[14, 15, 16, 25]),
    (12, &[14, 15, 16, 22, 25, 27]),
    (14, &[14, 15, 16, 22, 25, 27]),
    (23, &[6, 74, 75, 3]),
];

/// And with the new group protocol.
const CONSUMER_CODES: [(i16, &[i16]); 3] = [
    (68, &[14, 15, 16, 25, 110]),
    (8, &[7, 14, 15, 16, 25, 110, 113]),
    (9, &[14, 15, 16, 25, 88, 113]),
];

impl Life {
    pub(super) fn some_node(&mut self) -> i32 {
        self.dice.between(1, self.nodes as u64) as i32
    }

    /// A node that is up.
    fn some_node_up(&mut self) -> Option<i32> {
        let node = self.some_node();
        (!self.down.contains(&node)).then_some(node)
    }

    pub(super) fn crash(&mut self) {
        let Some(node) = self.some_node_up() else {
            return;
        };
        if self.down.len() + 1 == self.nodes as usize {
            return;
        }
        self.deed("broker crashes", format!("node {node}"));
        let now = self.world.now();
        self.world.cluster.crash(now, node);
        self.down.push(node);
        if self.breaks && self.dice.one_in(2) {
            let partition = self.some_partition();
            let end = self.world.log_end(partition);
            let from = end - self.dice.below(20) as i64;
            self.lose("broker loses its tail", partition, from);
        }
    }

    pub(super) fn restart(&mut self) {
        if let Some(node) = self.down.pop() {
            self.deed("broker restarts", format!("node {node}"));
            let now = self.world.now();
            self.world.cluster.restart(now, node);
        }
    }

    pub(super) fn move_coordinator(&mut self) {
        if let Some(node) = self.some_node_up() {
            self.deed("broker hands a group over", format!("to node {node}"));
            let now = self.world.now();
            self.world.cluster.move_coordinator(now, "g", node);
        }
    }

    pub(super) fn move_leader(&mut self) {
        if let Some(node) = self.some_node_up() {
            let partition = self.some_partition();
            let what = format!("{partition} to node {node}");
            self.deed("broker hands a partition over", what);
            let now = self.world.now();
            self.world.cluster.move_leader(now, "t", partition, node);
        }
    }

    /// A log loses some of its records.
    pub(super) fn break_a_log(&mut self) {
        let partition = self.some_partition();
        let end = self.world.log_end(partition);
        let view = self.world.cluster.partition_view("t", partition);
        let start = view.map_or(0, |v| v.log_start);
        if end - start < 2 {
            return;
        }
        match self.dice.below(6) {
            0..3 => self.compact(partition),
            3 | 4 => {
                // The last record stays: its settling is what the end is committed by.
                let before = start + 1 + self.dice.below((end - start - 1) as u64) as i64;
                let what = format!("{partition} begins at {before}");
                self.deed("topic loses its head", what);
                self.world.delete_records("t", partition, before);
            }
            _ if self.dice.one_in(3) => self.make_anew(),
            _ => {
                let from = start + self.dice.below((end - start) as u64) as i64;
                self.lose("broker loses its tail", partition, from);
            }
        }
    }

    /// An unclean election. Others are written in their place, at another time than any before.
    fn lose(&mut self, kind: &str, partition: i32, from: i64) {
        let view = self.world.cluster.partition_view("t", partition);
        if view.is_none_or(|v| from < v.log_start || from >= v.log_end) {
            return;
        }
        // An offset map does not say which leader's records it means: one that names records that
        // were lost since covers those in their place.
        if self.settings.offset_map == OffsetMap::On {
            return;
        }
        // A batch is whole or gone.
        let log = self.world.cluster.batches("t", partition);
        let bases = split(log.unwrap_or_default()).filter_map(|piece| match piece {
            Ok(Piece::Batch(raw)) => Some(raw.header().base_offset()),
            _ => None,
        });
        let from = bases.filter(|base| *base <= from).max().unwrap_or(from);
        self.deed(kind, format!("{partition} from {from} on"));
        self.world.run_for(millis(2));
        self.torn.insert(partition);
        self.world.may_go_back("t", partition);
        self.world.truncate("t", partition, from);
        self.world.run_for(millis(2));
        if self.dice.one_in(2) {
            self.write_to(partition);
        }
    }

    fn make_anew(&mut self) {
        self.deed("topic is made anew", "");
        self.world.run_for(millis(2));
        self.anew = true;
        for partition in 0..self.partitions {
            self.torn.insert(partition);
            self.world.may_go_back("t", partition);
        }
        self.world.recreate_topic("t", self.partitions);
        self.world.run_for(millis(2));
        self.write();
    }

    /// Whole batches go, and some records of others; the last batch stays.
    fn compact(&mut self, partition: i32) {
        let log = self.world.cluster.batches("t", partition);
        let mut batches: Vec<_> = split(log.unwrap_or_default()).collect();
        let (Some(Ok(Piece::Batch(last))), mut left) = (batches.pop(), Vec::new()) else {
            return;
        };
        self.deed("topic is compacted", format!("{partition}"));
        for piece in batches {
            let Ok(Piece::Batch(raw)) = piece else {
                return;
            };
            let keeps = self.dice.below(3);
            if keeps == 0 {
                left.extend_from_slice(raw.bytes());
                continue;
            }
            let batch = raw
                .decode(&mut Decoder::new(), 0, &Limits::default())
                .unwrap();
            let header = raw.header();
            let mut builder = BatchBuilder::new(header.base_offset())
                .leader_epoch(header.leader_epoch())
                .covering(header.next_offset() - 1);
            for i in 0..batch.len() {
                let offset = batch.offset(i);
                if keeps == 1 || self.dice.one_in(2) {
                    self.world.compacted("t", partition, offset);
                    continue;
                }
                let (key, value) = (batch.key(i), batch.value(i));
                let time = batch.timestamp(i);
                builder.push_at(offset, time, key, value, &[]).unwrap();
            }
            if !builder.is_empty() {
                left.extend(builder.build(&mut Encoder::new()).unwrap());
            }
        }
        left.extend_from_slice(last.bytes());
        let replaced = self.world.cluster.replace_log("t", partition, left.into());
        replaced.unwrap();
    }

    /// A few requests of one kind are answered badly.
    pub(super) fn misbehave(&mut self) {
        let newer = self.settings.group_protocol == GroupProtocol::Consumer;
        let (api, codes) = match newer && self.dice.one_in(2) {
            true => self.dice.pick(&CONSUMER_CODES),
            false => self.dice.pick(&CODES),
        };
        let codes = match (self.by_hand, api) {
            // The group's own answers are final to one who is not in it.
            (true, 8) => &[7, 14, 15, 16],
            _ => codes,
        };
        let wait = millis(self.dice.between(1, 4000));
        let code = self.dice.pick(codes);
        let (kind, fault) = match self.dice.below(12) {
            0..5 => ("answer is an error", Fault::Error(code)),
            5 => ("answer is a late error", Fault::LateError(code)),
            6 => ("request is late", Fault::Delay(wait)),
            7 => ("answer is late", Fault::DelayAnswer(wait)),
            8 => self.dice.pick(&[
                ("request is cut off", Fault::CutBefore),
                ("answer is cut off", Fault::CutAfter),
            ]),
            9 => {
                let at = self.dice.between(0, 40) as usize;
                ("answer is cut off", Fault::CutAnswer(at))
            }
            10 => self.dice.pick(&[
                ("request vanishes", Fault::Swallow),
                ("answer never comes", Fault::SwallowAnswer),
            ]),
            _ => ("client is throttled", Fault::Throttle(wait)),
        };
        let times = self.dice.between(1, 4) as u32;
        let rule = Rule::new(fault).api(api).times(times);
        // It counts when it is met.
        let words = format!("{:?} {kind}: {rule:?}", self.world.now());
        self.deeds.push(words);
        self.world.cluster.script().add(rule);
        self.rules.push(kind);
    }

    /// How often the rules were met.
    pub(super) fn count_rules(&mut self) {
        let matches = self.world.cluster.script().matches();
        for (kind, met) in std::mem::take(&mut self.rules).into_iter().zip(matches) {
            self.tally.add(kind, u64::from(met.min(4)));
        }
    }
}
