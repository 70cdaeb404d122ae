//! What must hold at every step, read off what the handlers did and what the broker stored.
//!
//! Nothing here asks an engine how it thinks it stands: the book is written by the handlers and
//! by whoever appends records, and the commits are the broker's own history.

use crate::handlers::Handled;
use laneway::broker::Cluster;
use laneway::ids::TopicPartition;
use laneway::settle::Map;
use laneway::time::Now;
use std::collections::{BTreeMap, BTreeSet};

/// Violations that are kept: the first ones tell.
const VIOLATIONS_MAX: usize = 8;

/// Where a record's order is kept: who may not run beside it, and after whom it comes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane(pub Vec<u8>);

/// A run that has begun.
struct Run {
    handled: Handled,
    lane: Option<Lane>,
    /// The handler call that it is part of; a call of a batch has several.
    call: u64,
    /// When its record was written, which tells it from another at its offset.
    timestamp: i64,
}

/// What began in a lane, of one partition, under one grant.
#[derive(Default)]
struct Progress {
    grant: u64,
    highest: i64,
    /// Began, and has not settled.
    open: BTreeSet<i64>,
    /// The call that began last, its last record, and what was open before it.
    call: u64,
    last: i64,
    open_before: BTreeSet<i64>,
}

/// What is known of a record that was written.
#[derive(Clone, Copy)]
struct Written {
    timestamp: i64,
    epoch: i32,
}

/// The plain reference: what was written, what ran, what has been finished.
#[derive(Default)]
pub(crate) struct Book {
    runs: Vec<Run>,
    calls: u64,
    /// What stands, or stood, at each offset.
    written: BTreeMap<TopicPartition, BTreeMap<i64, Written>>,
    /// Records that nobody has finished. A committed offset may not pass one.
    open: BTreeMap<TopicPartition, BTreeSet<i64>>,
    settled: BTreeMap<TopicPartition, BTreeSet<i64>>,
    /// Records that are nobody's to read: compacted, or below the log's start or a seek.
    skipped: BTreeMap<TopicPartition, BTreeSet<i64>>,
    floor: BTreeMap<TopicPartition, i64>,
    running: BTreeMap<(usize, Lane), usize>,
    /// Runs under way of each member.
    under_way: BTreeMap<usize, u32>,
    /// How many there may be, where that is known.
    pub limits: BTreeMap<usize, u32>,
    lanes: BTreeMap<(usize, Lane, TopicPartition), Progress>,
    grants: BTreeMap<(usize, TopicPartition), u64>,
    /// Who was given each partition last, and when.
    holders: BTreeMap<TopicPartition, (usize, Now)>,
    /// Records whose handler asked to see them again no sooner: by grant, and when.
    not_before: BTreeMap<(usize, TopicPartition, i64), (u64, Now)>,
    /// What had settled when a member was given a partition, by the commit that it began with.
    covered: BTreeMap<(usize, TopicPartition), Map>,
    /// Partitions in which somebody seeks: what is sought runs again.
    sought: BTreeSet<TopicPartition>,
    /// Partitions that lost records that had been written.
    torn: BTreeSet<TopicPartition>,
    /// Partitions whose topic was made anew: commits of the old one, which nothing tells apart, may
    /// still come.
    anew: BTreeSet<TopicPartition>,
    violations: Vec<String>,
    /// Runs that settled their record, the same record's again too.
    settlings: usize,
    /// Runs that settled what had settled before.
    settled_again: Vec<Handled>,
    /// Members that may be out of touch: for them an overlap with others is no error.
    pub adrift: BTreeSet<usize>,
    /// Whether every hand-over is drained, so that runs of a lane never overlap anywhere.
    pub strict: bool,
}

impl Book {
    /// A record was written: when, and under which leader's epoch.
    pub(crate) fn wrote(
        &mut self,
        partition: &TopicPartition,
        offset: i64,
        timestamp: i64,
        epoch: i32,
    ) {
        let written = self.written.entry(partition.clone()).or_default();
        written.insert(offset, Written { timestamp, epoch });
        self.opened(partition, offset);
    }

    fn opened(&mut self, partition: &TopicPartition, offset: i64) {
        let open = self.open.entry(partition.clone()).or_default();
        open.insert(offset);
    }

    /// Another log stands in the place of this one.
    pub(crate) fn forget(&mut self, partition: &TopicPartition) {
        self.anew.insert(partition.clone());
        self.open.remove(partition);
        self.settled.remove(partition);
        self.skipped.remove(partition);
        self.floor.remove(partition);
        self.gone_from(partition, 0);
    }

    /// Somebody settled this before anyone here.
    pub(crate) fn settled_elsewhere(&mut self, partition: &TopicPartition, offset: i64) {
        if let Some(open) = self.open.get_mut(partition) {
            open.remove(&offset);
        }
        let settled = self.settled.entry(partition.clone()).or_default();
        settled.insert(offset);
    }

    /// Nobody is to read what lies below.
    pub(crate) fn skip_below(&mut self, partition: &TopicPartition, offset: i64) {
        if let Some(open) = self.open.get_mut(partition) {
            *open = open.split_off(&offset);
        }
        let floor = self.floor.entry(partition.clone()).or_default();
        *floor = offset.max(*floor);
    }

    /// Nobody is to read this one.
    pub(crate) fn skip(&mut self, partition: &TopicPartition, offset: i64) {
        if let Some(open) = self.open.get_mut(partition) {
            open.remove(&offset);
        }
        let skipped = self.skipped.entry(partition.clone()).or_default();
        skipped.insert(offset);
    }

    fn is_skipped(&self, partition: &TopicPartition, offset: i64) -> bool {
        let is_below = self.floor.get(partition).is_some_and(|at| offset < *at);
        let skipped = self.skipped.get(partition);
        is_below || skipped.is_some_and(|s| s.contains(&offset))
    }

    /// These were cut off the log.
    pub(crate) fn cut_from(&mut self, partition: &TopicPartition, offset: i64) {
        for of in [&mut self.open, &mut self.settled, &mut self.skipped] {
            if let Some(offsets) = of.get_mut(partition) {
                offsets.split_off(&offset);
            }
        }
        if let Some(floor) = self.floor.get_mut(partition) {
            *floor = offset.min(*floor);
        }
        self.torn.insert(partition.clone());
        self.gone_from(partition, offset);
    }

    /// A run that saw one of these has nothing to do with what is written there next.
    fn gone_from(&mut self, partition: &TopicPartition, offset: i64) {
        if let Some(written) = self.written.get_mut(partition) {
            for (_, written) in written.range_mut(offset..) {
                written.timestamp = i64::MIN;
            }
        }
    }

    /// Whether what a run saw is what stands at its offset now.
    fn is_current(&self, partition: &TopicPartition, offset: i64, timestamp: i64) -> bool {
        let written = self.written.get(partition).and_then(|w| w.get(&offset));
        written.is_none_or(|w| w.timestamp == timestamp)
    }

    pub(crate) fn granted(&mut self, member: usize, partition: &TopicPartition, now: Now) {
        *self.grants.entry((member, partition.clone())).or_default() += 1;
        self.holders.insert(partition.clone(), (member, now));
    }

    fn grant_of(&self, member: usize, partition: &TopicPartition) -> u64 {
        let grant = self.grants.get(&(member, partition.clone()));
        grant.copied().unwrap_or(0)
    }

    /// The record of this run is wanted again, no sooner.
    pub(crate) fn wait(&mut self, index: usize, until: Now) {
        let run = &self.runs[index].handled;
        let (member, tp, offset) = (run.member, run.partition.clone(), run.offset);
        let grant = self.grant_of(member, &tp);
        self.not_before.insert((member, tp, offset), (grant, until));
    }

    /// A member's user ends a pause: what waited for its time meanwhile runs when it is let go.
    pub(crate) fn resumed(&mut self, member: usize) {
        self.not_before.retain(|(of, ..), _| *of != member);
    }

    /// I7: nothing starts under a lease that is over, as far as the member can know; and I10.
    fn check_right(&mut self, run: &Handled) {
        let (member, tp) = (run.member, run.partition.clone());
        let holder = self.holders.get(&tp).filter(|_| !self.anew.contains(&tp));
        if let Some((holder, since)) = holder.filter(|(m, at)| *m != member && *at < run.began) {
            let words =
                format!("I7: {run:?} begins, member {holder} has the partition since {since:?}");
            self.violation(words);
        }
        let grant = self.grant_of(member, &tp);
        let wait = self.not_before.remove(&(member, tp, run.offset));
        if wait.is_some_and(|(of, until)| of == grant && run.began < until) {
            self.violation(format!("I10: {run:?} begins before its time: {wait:?}"));
        }
    }

    /// Somebody seeks in this partition.
    pub(crate) fn is_sought(&mut self, partition: &TopicPartition) {
        self.sought.insert(partition.clone());
        self.covered.retain(|(_, tp), _| tp != partition);
    }

    /// A member begins with this commit, or with one that says nothing.
    pub(crate) fn covers(&mut self, member: usize, partition: &TopicPartition, map: Option<Map>) {
        let key = (member, partition.clone());
        match map {
            Some(map) if !self.sought.contains(partition) => self.covered.insert(key, map),
            _ => self.covered.remove(&key),
        };
    }

    /// C05, C31: what the offset map says had settled does not run again.
    fn check_covered(&mut self, run: &Handled) {
        let map = self.covered.get(&(run.member, run.partition.clone()));
        if map.is_some_and(|map| run.offset >= map.base() && map.is_settled(run.offset)) {
            let words = format!("the offset map covers {run:?}: {map:?}");
            self.violation(words);
        }
    }

    /// The number of a handler call.
    pub(crate) fn call(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    /// A record of a call is handed out.
    pub(crate) fn begin(
        &mut self,
        call: u64,
        handled: Handled,
        timestamp: i64,
        lane: Option<Lane>,
    ) -> usize {
        let index = self.runs.len();
        let (member, tp, offset) = (handled.member, handled.partition.clone(), handled.offset);
        self.check_covered(&handled);
        self.check_right(&handled);
        let is_settled = self.settled.get(&tp).is_some_and(|s| s.contains(&offset));
        if !is_settled && !self.is_skipped(&tp, offset) && self.is_current(&tp, offset, timestamp) {
            self.opened(&tp, offset);
        }
        if let Some(lane) = &lane {
            self.check_order(call, &handled, lane);
            self.running.insert((member, lane.clone()), index);
        }
        let under_way = self.under_way.entry(member).or_default();
        *under_way += 1;
        let (now, limit) = (*under_way, self.limits.get(&member).copied());
        if limit.is_some_and(|limit| now > limit) {
            self.violation(format!(
                "I6: {handled:?} is the {now}th at once, of {limit:?}"
            ));
        }
        self.runs.push(Run {
            handled,
            lane,
            call,
            timestamp,
        });
        index
    }

    /// I3.
    fn check_order(&mut self, call: u64, run: &Handled, lane: &Lane) {
        let mut found = Vec::new();
        for ((member, other), index) in &self.running {
            let is_same = *member == run.member;
            let before = &self.runs[*index];
            let counts = is_same
                || self.strict
                    && before.handled.partition == run.partition
                    && !self.adrift.contains(member)
                    && !self.adrift.contains(&run.member);
            if other == lane && counts && before.call != call {
                let before = &before.handled;
                found.push(format!(
                    "I3: {run:?} begins while {before:?} of its lane runs"
                ));
            }
        }
        let grant = self.grant_of(run.member, &run.partition);
        let key = (run.member, lane.clone(), run.partition.clone());
        let mut lane = self.lanes.remove(&key).unwrap_or_default();
        if lane.grant != grant || lane.call == 0 {
            lane = Progress {
                grant,
                highest: -1,
                ..Progress::default()
            };
        }
        let offset = run.offset;
        let follows = if lane.call == call {
            // Within a batch: on from the one before, past none that ran before and must again.
            let passed = lane.open_before.range(lane.last + 1..offset).next();
            offset > lane.last && passed.is_none()
        } else {
            lane.open_before.clone_from(&lane.open);
            lane.call = call;
            match lane.open.first() {
                // What has not settled runs again before anything newer of its lane.
                Some(first) => offset == *first,
                None => offset > lane.highest,
            }
        };
        if !follows {
            let (highest, open) = (lane.highest, &lane.open);
            let before = self.lane_of(run);
            found.push(format!(
                "I3: {run:?} comes after offset {highest} (not settled: {open:?}) under the same \
                 lease; of its key ran {before}"
            ));
        }
        lane.last = offset;
        lane.highest = lane.highest.max(offset);
        lane.open.insert(offset);
        self.lanes.insert(key, lane);
        found.into_iter().for_each(|words| self.violation(words));
    }

    /// The runs of this one's key under its member: offset, attempt, from when to when.
    fn lane_of(&self, run: &Handled) -> String {
        let alike = |of: &&Run| {
            let of = &of.handled;
            of.member == run.member && of.partition == run.partition && of.key == run.key
        };
        let each = self.runs.iter().filter(alike).map(|of| {
            let of = &of.handled;
            format!(
                "{}/{} {:?}..{:?}",
                of.offset, of.attempt, of.began, of.ended
            )
        });
        each.collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn end(&mut self, index: usize, now: Now, settles: bool) {
        let run = &mut self.runs[index];
        run.handled.ended = Some(now);
        if !settles {
            return;
        }
        let (tp, offset) = (run.handled.partition.clone(), run.handled.offset);
        let timestamp = run.timestamp;
        if let Some(lane) = &run.lane {
            let key = (run.handled.member, lane.clone(), tp.clone());
            if let Some(lane) = self.lanes.get_mut(&key) {
                lane.open.remove(&offset);
            }
        }
        if !self.is_current(&tp, offset, timestamp) {
            return; // another record stands there now
        }
        self.settlings += 1;
        if let Some(open) = self.open.get_mut(&tp) {
            open.remove(&offset);
        }
        if !self.settled.entry(tp).or_default().insert(offset) {
            let run = self.runs[index].handled.clone();
            self.settled_again.push(run);
        }
    }

    /// A dead letter of this record stands in its topic's log: it is finished, whoever says so.
    pub(crate) fn dead_lettered(&mut self, tp: &TopicPartition, offset: i64, timestamp: i64) {
        for ((_, _, partition), lane) in &mut self.lanes {
            if partition == tp {
                lane.open.remove(&offset);
            }
        }
        if !self.is_current(tp, offset, timestamp) {
            return;
        }
        if let Some(open) = self.open.get_mut(tp) {
            open.remove(&offset);
        }
        self.settled.entry(tp.clone()).or_default().insert(offset);
    }

    pub(crate) fn over(&mut self, index: usize) {
        let run = &self.runs[index];
        let member = run.handled.member;
        if let Some(lane) = &run.lane {
            let key = (member, lane.clone());
            if self.running.get(&key) == Some(&index) {
                self.running.remove(&key);
            }
        }
        if let Some(n) = self.under_way.get_mut(&member) {
            *n = n.saturating_sub(1);
        }
    }

    pub(crate) fn settlings(&self) -> usize {
        self.settlings
    }

    pub(crate) fn settled_again(&self) -> Vec<Handled> {
        self.settled_again.clone()
    }

    pub(crate) fn violation(&mut self, words: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(words);
        }
    }

    pub(crate) fn violations(&self) -> &[String] {
        &self.violations
    }

    pub(crate) fn handled(&self) -> Vec<Handled> {
        self.runs.iter().map(|run| run.handled.clone()).collect()
    }

    pub(crate) fn handled_last(&self) -> Option<Handled> {
        self.runs.last().map(|run| run.handled.clone())
    }

    pub(crate) fn ended(&self) -> usize {
        let ended = self.runs.iter().filter(|r| r.handled.ended.is_some());
        ended.count()
    }

    /// Written, and finished by nobody.
    pub(crate) fn open(&self) -> Vec<(TopicPartition, i64)> {
        let each = self.open.iter();
        each.flat_map(|(tp, offsets)| offsets.iter().map(|o| (tp.clone(), *o)))
            .collect()
    }

    fn runs_of(&self, partition: &TopicPartition, offset: i64) -> Vec<String> {
        let is_it =
            |run: &&Run| run.handled.partition == *partition && run.handled.offset == offset;
        let told = |run: &Run| {
            let is_current = self.is_current(partition, offset, run.timestamp);
            format!("{:?}, of the log that stands: {is_current}", run.handled)
        };
        self.runs.iter().filter(is_it).map(told).collect()
    }

    /// Whether nobody has anything left to finish.
    pub(crate) fn is_done(&self) -> bool {
        self.open.values().all(BTreeSet::is_empty)
    }

    /// The lowest record from `from` on that is open, as far as one who read under leader epoch
    /// `epoch` can know: where records were lost, others stand in their place unseen by those who
    /// have not heard of it.
    fn lowest_open(&self, partition: &TopicPartition, from: i64, epoch: i32) -> Option<i64> {
        let mut open = self.open.get(partition)?.range(from..).copied();
        if self.anew.contains(partition) {
            return None;
        }
        if !self.torn.contains(partition) {
            return open.next();
        }
        let written = self.written.get(partition)?;
        open.find(|offset| written.get(offset).is_some_and(|w| w.epoch <= epoch))
    }
}

/// What the broker's history of commits must keep to.
#[derive(Default)]
pub(crate) struct Commits {
    seen: usize,
    last: BTreeMap<(String, TopicPartition), i64>,
    /// Partitions that are sought in: their commits may go back.
    sought: BTreeSet<TopicPartition>,
    /// Whether positions are committed as records are handed out.
    pub auto: bool,
}

impl Commits {
    /// Positions of this partition may go back: its log is not what it was.
    pub(crate) fn forget(&mut self, partition: &TopicPartition) {
        self.last.retain(|(_, tp), _| tp != partition);
    }

    /// Somebody seeks in this partition.
    pub(crate) fn may_go_back(&mut self, partition: TopicPartition) {
        self.sought.insert(partition);
    }

    /// I1 and I2 over what was committed since the last look.
    pub(crate) fn check(&mut self, cluster: &Cluster, book: &mut Book) {
        for entry in cluster.commits().skip(self.seen) {
            self.seen += 1;
            let tp = TopicPartition::new(entry.topic.as_str(), entry.partition);
            let offset = entry.committed.offset;
            let key = (entry.group.clone(), tp);
            if let Some(before) = self.last.get(&key)
                && *before > offset
                && !self.sought.contains(&key.1)
            {
                book.violation(format!("I2: {entry:?} after {before}"));
            }
            let view = cluster.partition_view(&entry.topic, entry.partition);
            let from = view.map_or(0, |v| v.log_start);
            if !self.auto
                && let epoch = entry.committed.leader_epoch
                && let Some(open) = book.lowest_open(&key.1, from, epoch)
                && open < offset
            {
                let runs = book.runs_of(&key.1, open);
                book.violation(format!(
                    "I1: {entry:?} passes the open record {open}, which ran: {runs:#?}"
                ));
            }
            self.last.insert(key, offset);
        }
    }
}
