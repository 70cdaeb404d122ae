//! Batches that wait for more records, and records that are in no lane.

use std::ops::Range;
use std::sync::Arc;

use super::super::LaneId;
use super::super::group::{Parcel, Stretch};
use super::{Due, Lanes, PARKED, RIPE, SHORT, TIMERS_OF_BATCHES};
use crate::time::{Now, earliest};

impl<L> Lanes<L> {
    /// Whether more records may come. Where they may not, for instance because the byte budget is
    /// used up, no batch waits for them.
    pub fn set_intake(&mut self, open: bool) {
        let closes = std::mem::replace(&mut self.intake, open) && !open;
        if closes && !self.batch_wait.is_zero() {
            for l in 0..self.lanes.len() as u32 {
                if self.lanes[l as usize].is(SHORT) {
                    self.ripen(l);
                }
            }
        }
    }

    /// A lane whose batch has waited long enough, or need not wait.
    pub(super) fn ripen(&mut self, l: u32) {
        let lane = &mut self.lanes[l as usize];
        lane.set(SHORT, false);
        lane.set(RIPE, true);
        let key = (lane.due, TIMERS_OF_BATCHES | u64::from(l));
        self.timers.remove(&key);
        self.touch(l);
    }

    /// Whether the lane's batch is to wait; from `touch` alone.
    pub(super) fn wait_for_batch(&mut self, l: u32) {
        let lane = &mut self.lanes[l as usize];
        let tried = self
            .nodes
            .front(&lane.queue)
            .is_some_and(|s| s.tried.is_some());
        let waits = lane.queued > 0
            && lane.queued < self.batch_max
            && !tried
            && !lane.is(RIPE | PARKED)
            && self.intake;
        if waits && !lane.is(SHORT) {
            lane.set(SHORT, true);
            lane.due = Now::NEVER;
            self.short.push(l);
        } else if !waits && lane.is(SHORT) {
            lane.set(SHORT, false);
            let key = (lane.due, TIMERS_OF_BATCHES | u64::from(l));
            self.timers.remove(&key);
        }
    }

    /// The waits that have begun since the time was last known begin now.
    pub(super) fn begin_waits(&mut self, now: Now) {
        while let Some(l) = self.short.pop() {
            let Some(lane) = self.lanes.get_mut(l as usize) else {
                continue;
            };
            if lane.is(SHORT) && lane.due == Now::NEVER {
                lane.due = now + self.batch_wait;
                let key = (lane.due, TIMERS_OF_BATCHES | u64::from(l));
                self.timers.insert(key, Due::Batch(l));
            }
        }
    }

    /// Whether an executor's records are too few for a batch and others may still come. Lanes
    /// whose groups are one lane's run wait for themselves.
    pub(super) fn waits_for_more(&mut self, e: usize, now: Now) -> bool {
        if self.batch_wait.is_zero() || self.one_lane {
            return false;
        }
        let wait = self.batch_wait;
        let batch = self.intake.then_some(self.batch_max);
        self.execs[e].waits_for_more(now, wait, batch)
    }

    /// When the first batch that waits is handed over, full or not.
    pub(super) fn batch_deadline(&self) -> Option<Now> {
        self.execs
            .iter()
            .filter_map(|exec| exec.short_until)
            .fold(None, |a, b| earliest(a, Some(b)))
    }

    /// The executor for records without a lane: one whose batch waits for more, or the least
    /// loaded.
    pub(super) fn pick_loose(&self) -> usize {
        let waiting = self.execs.iter().position(|e| e.short_until.is_some());
        waiting.unwrap_or_else(|| self.pick())
    }

    /// Records without a key wait for an executor where a group is one lane's run.
    pub(super) fn enqueue_loose(&mut self, parcel: &Arc<Parcel<L>>, part: Range<u32>) {
        let len = part.end - part.start;
        self.queued += len as usize;
        let joined = self
            .nodes
            .back_mut(&self.again)
            .is_some_and(|last| last.join(parcel, part.start, len));
        if !joined {
            let stretch = Stretch {
                parcel: Arc::clone(parcel),
                index: part.start,
                len,
                tried: None,
                lane: LaneId::NONE,
            };
            self.nodes.push(&mut self.again, stretch);
        }
    }
}
