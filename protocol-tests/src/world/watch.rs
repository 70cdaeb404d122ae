//! What is looked at after every step.

use super::{CHECK_EVERY, Member, World};
use laneway::engine::Event;
use laneway::ids::TopicPartition;
use laneway::time::Now;
use std::sync::atomic::Ordering;

/// Records above `ahead_max` that a partition may have taken: those of one batch.
const AHEAD_SLACK: u64 = 64;

impl Member {
    /// Whether a turn would do anything, its deadline apart.
    pub(super) fn is_woken(&self, now: Now) -> bool {
        let past_fence = now.0 >= self.engine.fence().load(Ordering::Acquire);
        past_fence || self.executors.iter().any(|e| e.is_due(now))
    }

    /// Asks again when it wants a turn.
    pub(super) fn ask_deadline(&mut self) {
        let calls = self.executors.iter().filter_map(|e| e.next_deadline());
        self.deadline = laneway::time::earliest(calls.min(), self.engine.next_deadline());
    }
}

impl World {
    /// What must hold at every step, whatever the test.
    pub(super) fn check(&mut self) {
        self.read_dead_letters();
        let mut book = self.book.lock().unwrap();
        self.commits.check(&self.cluster, &mut book);
        let is_dear = self.steps.is_multiple_of(CHECK_EVERY);
        for (i, member) in self.members.iter().enumerate() {
            if !member.alive || member.finished.is_some() {
                continue;
            }
            if member.deadline.is_none() {
                book.violation(format!("I8: member {i} waits for nothing"));
            }
            if !is_dear || member.frozen {
                continue;
            }
            let snapshot = member.engine.snapshot(self.now);
            if snapshot.budget_used > member.bytes_max {
                let used = snapshot.budget_used;
                book.violation(format!("I6: member {i} holds {used} bytes"));
            }
            for p in &snapshot.partitions {
                if p.ahead > member.ahead_max.saturating_add(AHEAD_SLACK) {
                    book.violation(format!("I6: member {i} is too far ahead: {p:?}"));
                }
                let key = (i, p.partition.clone());
                let before = self.positions.insert(key, p.position);
                if before.is_some_and(|before| before > p.position) {
                    book.violation(format!("I4: member {i} went back from {before:?}: {p:?}"));
                }
            }
        }
        let found = book.violations().to_vec();
        drop(book);
        assert!(found.is_empty(), "{found:#?}\n{}", self.story());
    }

    /// A member tells of something: what is a cause for a partition to be elsewhere (I4)?
    pub(super) fn heed(&mut self, member: usize, event: &Event) {
        let moved: &TopicPartition = match event {
            Event::Granted { partition, .. }
            | Event::Revoked { partition, .. }
            | Event::Lost { partition }
            | Event::Sought { partition, .. }
            | Event::DataLoss { partition, .. } => partition,
            _ => return,
        };
        self.positions.remove(&(member, moved.clone()));
        if let Event::DataLoss {
            partition,
            from,
            to,
            ..
        } = event
        {
            // Lost, and said: nobody has to handle these.
            let mut book = self.book();
            (*from..*to).for_each(|offset| book.skip(partition, offset));
        }
    }

    /// Of a member whose runs are counted, no more than this many run at once from now on; fewer
    /// than before may be said, and what had been allowed stays so.
    pub(super) fn allow_runs(&mut self, member: usize, n: u32) {
        if let Some(limit) = self.book().limits.get_mut(&member) {
            *limit = n.max(*limit);
        }
    }

    /// I6: a member without work holds nothing but what its long polls have reserved.
    ///
    /// # Panics
    /// It holds more.
    pub fn assert_idle(&self, member: usize) {
        let snapshot = self.members[member].engine.snapshot(self.now);
        let s = &snapshot;
        let records = [s.ready, s.queued, s.parked, s.out, s.lanes_busy];
        assert_eq!(records, [0; 5], "I6: {snapshot:?}");
        for p in &s.partitions {
            assert_eq!((p.ahead, p.buffered_bytes), (0, 0), "I6: {snapshot:?}");
        }
        // Who leaves a group hears the answers to its last polls meanwhile; others are just gone.
        let over = self.members[member].finished.is_some() && self.members[member].in_group;
        let reserved = match over {
            true => 0,
            false => s.budget_max / 2,
        };
        assert!(s.budget_used <= reserved, "I6: {snapshot:?}");
    }
}
