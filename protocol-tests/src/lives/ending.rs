//! The end of a life: all is well again, and then all must be done.

use super::Life;
use crate::setting::{MINUTE, millis, secs};
use laneway::OffsetMap;
use laneway::engine::{Command, Event, LaneKey, Scope};
use laneway::lane::Mode;
use std::collections::BTreeSet;

impl Life {
    /// Everything is well again.
    pub(super) fn heal(&mut self) {
        let words = format!("{:?} all is well again", self.world.now());
        self.deeds.push(words);
        self.look();
        self.count_rules();
        self.world.cluster.script().clear();
        self.world.set_latency(millis(0));
        for (member, node) in std::mem::take(&mut self.muted) {
            self.world.unmute(member, node);
        }
        for node in std::mem::take(&mut self.down) {
            let now = self.world.now();
            self.world.cluster.restart(now, node);
        }
        for member in std::mem::take(&mut self.frozen) {
            self.world.thaw(member);
        }
        for member in self.working() {
            let what = Scope::All;
            self.world.command(member, 1003, Command::Resume { what });
            let n = 100;
            self.world.command(member, 1004, Command::SetWorkers { n });
        }
        self.done.stop_no_more();
        if self.stops {
            self.world.run_for(secs(30));
        }
        // Those on their way out end; somebody must be there to do the work.
        let leaving = std::mem::take(&mut self.leaving);
        self.world.run_until(MINUTE * 3, |w| {
            let gone = |m: &usize| !w.is_alive(*m) || w.finished(*m).is_some();
            leaving.iter().all(gone)
        });
        if self.anew {
            // A commit of the old topic that comes late passes records of the new one, as in Kafka
            // where commits name topics. What is written once that is over must be read.
            self.world.run_for(secs(20));
            self.world.excuse_all("t");
        }
        // The end of a log is committed by settling its last record.
        for partition in std::mem::take(&mut self.torn) {
            self.write_to(partition);
        }
        let comers = match self.by_hand {
            true => self.places.len(),
            false => 1,
        };
        (0..comers).for_each(|_| self.come());
    }

    pub(super) fn settle(&mut self) {
        // What was asked for last takes its time, such as a seek back.
        self.world.run_for(secs(5));
        let (partitions, is_auto) = (self.partitions, self.is_auto());
        let working = self.working();
        self.world.run_until(MINUTE * 5, |w| {
            let rests = |m: &usize| w.snapshot(*m).partitions.iter().all(|p| p.ahead == 0);
            let done = is_auto || w.is_done();
            done && w.all_committed(partitions) && working.iter().all(rests)
        });
        if !is_auto {
            assert_eq!(self.world.open(), [], "I5: never handled");
        }
        self.world.run_for(secs(2));
        self.look();
        self.check_rest();
        let working = self.working();
        let deadline = self.world.now() + secs(10);
        for member in &working {
            self.world.command(*member, 9, Command::Close { deadline });
        }
        self.world
            .run_until(MINUTE, |w| working.iter().all(|m| w.finished(*m).is_some()));
        for member in 0..self.world.members() {
            match self.world.finished(member) {
                Some(Err(error)) if self.stops && error.offset().is_some() => {}
                Some(result) => assert!(result.is_ok(), "member {member}: {result:?}"),
                None => assert!(!self.world.is_alive(member)),
            }
        }
        for member in &working {
            self.world.assert_idle(*member);
        }
        self.check_losses();
        if self.gentle {
            self.check_hand_overs();
        }
    }

    /// I6, I10: who has nothing to do holds nothing, and does next to nothing.
    fn check_rest(&mut self) {
        const REST_S: u64 = 10;
        let working = self.working();
        for member in &working {
            self.world.assert_idle(*member);
        }
        let before = self.world.steps();
        self.world.run_for(secs(REST_S));
        let steps = self.world.steps() - before;
        let polls = REST_S * 1000 / self.settings.fetch_wait_max.as_millis() as u64;
        let each = polls * self.nodes as u64 + 100;
        let bound = 8 * each * working.len() as u64;
        assert!(
            steps < bound,
            "I10: {steps} steps in {REST_S} idle seconds, not {bound}"
        );
    }

    /// I5: nobody loses what logs do not lose.
    fn check_losses(&self) {
        if self.breaks {
            return;
        }
        for member in 0..self.world.members() {
            for event in self.world.events(member) {
                let lost = matches!(event, Event::DataLoss { .. });
                assert!(!lost, "I5: member {member}: {event:?}");
            }
        }
    }

    /// Nobody lost anything, and where nothing settles above the watermark, or the offset map keeps
    /// it, every record settled exactly once.
    fn check_hand_overs(&self) {
        for member in 0..self.world.members() {
            for event in self.world.events(member) {
                let harsh = matches!(event, Event::Lost { .. } | Event::Abandoned { .. });
                assert!(!harsh, "member {member}: {event:?}");
            }
        }
        let s = &self.settings;
        let nothing_above =
            matches!(s.lane_key, LaneKey::Partition) && !matches!(s.mode, Mode::Any { .. });
        // The few hundred records of a life fit into any map of the usual length.
        let kept_above = s.offset_map == OffsetMap::On && s.metadata_max == 4096;
        if !self.is_auto() && (nothing_above && s.batch_max == 1 || kept_above) {
            let again = self.world.settled_again();
            assert!(again.is_empty(), "settled again: {again:#?}");
            let letters = self.world.dead_letters();
            let settled = self.world.settlings() + letters.len();
            assert_eq!(settled, self.written, "settled once each");
            let each: BTreeSet<_> = letters.iter().map(|l| (&l.source, l.offset)).collect();
            assert_eq!(each.len(), letters.len(), "one dead letter each");
        }
    }

    /// How members stand: what is seen there only at times.
    fn look(&mut self) {
        for member in self.working() {
            let snapshot = self.world.snapshot(member);
            if snapshot.partitions.iter().any(|p| p.gone > 0) {
                self.tally.add("seen lane lets records go", 1);
            }
            if snapshot.budget_used * 2 > snapshot.budget_max {
                self.tally.add("seen budget full", 1);
            }
        }
    }

    /// What members told, and what their handlers did.
    pub(super) fn tell(&mut self) {
        self.done.tell(&mut self.tally);
        for member in 0..self.world.members() {
            let snapshot = self.world.snapshot(member);
            let counts = [
                ("handler is too slow", snapshot.timed_out),
                ("seen map spares a record", snapshot.settled_before),
                ("seen map unused", snapshot.maps_unused),
            ];
            for (kind, n) in counts {
                self.tally.add(kind, n);
            }
            for event in self.world.events(member) {
                let kind = match event {
                    Event::Granted { .. } => "told granted",
                    Event::Revoked { .. } => "told revoked",
                    Event::Lost { .. } => "told lost",
                    Event::Abandoned { .. } => "told abandoned",
                    Event::DataLoss { .. } => "told data loss",
                    Event::Sought { .. } => "told sought",
                    Event::Retrying { .. } => "told retrying",
                    Event::Panicked { .. } => "told panicked",
                    Event::DeadLettered { .. } => "told dead-lettered",
                    Event::Stalled { .. } => "told stalled",
                    _ => continue,
                };
                self.tally.add(kind, 1);
            }
        }
    }
}
