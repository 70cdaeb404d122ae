//! Records on their way to a dead-letter topic. They have not settled, hold their lane, and hold no
//! executor.
//!
//! ```text
//!   failed for good --> held --poll_dead_letter--> being written --dead_letter_done--> settled
//!                        ^                              |
//!                        '---- at the time named ---- dead_letter_failed
//! ```

use std::sync::Arc;

use super::super::LaneId;
use super::super::group::{Lease, LeaseState, Parcel, Stretch};
use super::super::retry::{Tried, Why};
use super::back::settle;
use super::{Due, Lanes, Sink, TIMERS_OF_DEAD_LETTERS};
use crate::ids::LeaseId;
use crate::time::Now;

/// Names one dead letter of a [`Lanes`]; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeadLetterId(pub u64);

/// A record that shall be written elsewhere because no run of it will do.
#[derive(Debug)]
pub struct DeadLetter<L> {
    /// What [`Lanes::dead_letter_done`] and [`Lanes::dead_letter_failed`] call it.
    pub id: DeadLetterId,
    /// The record's parcel.
    pub parcel: Arc<Parcel<L>>,
    /// Its index there.
    pub index: u32,
    /// Its lane, which waits.
    pub lane: LaneId,
    /// How often it ran, and what it failed with; for [`Why::Asked`] the reason that was given.
    pub tried: Arc<Tried>,
    /// Whether its attempts ran out or the handler asked for it.
    pub why: Why,
}

impl<L> DeadLetter<L> {
    /// The lease that the record was fetched under.
    #[must_use]
    pub fn lease(&self) -> LeaseId {
        self.parcel.lease.id()
    }

    /// Its ordinal.
    #[must_use]
    pub fn ordinal(&self) -> u64 {
        self.parcel.first_ordinal + u64::from(self.index)
    }
}

/// A dead letter that the lanes still hold.
pub(super) struct Held<L> {
    what: Stretch<L>,
    tried: Arc<Tried>,
    why: Why,
    /// Given out by `poll_dead_letter`, and not back. It counts as out of its lease meanwhile, so
    /// that a drain waits for the write.
    given: bool,
}

impl<L> Held<L> {
    /// The record.
    pub(super) fn what(&self) -> &Stretch<L> {
        &self.what
    }
}

impl<L: 'static> Lanes<L> {
    /// The next record that is to be written to the dead-letter topic. Its lane waits, and its
    /// record stays open, until [`dead_letter_done`](Self::dead_letter_done) says that the write
    /// was acknowledged. While the lease drains the drain waits for it; once the lease is lost the
    /// record is forgotten here and the word for it means nothing.
    pub fn poll_dead_letter(&mut self) -> Option<DeadLetter<L>> {
        while let Some(id) = self.dead_new.pop_front() {
            // Its lease may have ended since it was listed.
            let Some(held) = self.dead.get_mut(&id) else {
                continue;
            };
            held.given = true;
            held.what.parcel.lease.went_out(1);
            return Some(DeadLetter {
                id: DeadLetterId(id),
                parcel: Arc::clone(&held.what.parcel),
                index: held.what.index,
                lane: held.what.lane,
                tried: Arc::clone(&held.tried),
                why: held.why,
            });
        }
        None
    }

    /// The write of a dead letter was acknowledged: the record settles and its lane goes on. False
    /// where the record is not held any more, since its lease was lost.
    pub fn dead_letter_done(&mut self, id: DeadLetterId, sink: &mut impl Sink) -> bool {
        let Some(held) = self.dead.remove(&id.0) else {
            return false;
        };
        if held.given {
            held.what.parcel.lease.came_back(1);
        }
        settle(&held.what, sink, false);
        self.let_go(held.what.lane);
        true
    }

    /// The write failed: the dead letter is given out again at `at`, and its lane waits on. With
    /// [`Now::NEVER`] it stays where it is. Under a lease that is about to end it is forgotten and
    /// stays open: who gets the partition next runs it again. False where it is not held.
    pub fn dead_letter_failed(&mut self, id: DeadLetterId, at: Now) -> bool {
        let Some(held) = self.dead.get_mut(&id.0) else {
            return false;
        };
        if !std::mem::take(&mut held.given) {
            return true;
        }
        held.what.parcel.lease.came_back(1);
        if !held.what.parcel.lease.is_granted() {
            let lane = held.what.lane;
            self.dead.remove(&id.0);
            self.let_go(lane);
        } else if at != Now::NEVER {
            let key = (at, TIMERS_OF_DEAD_LETTERS | id.0);
            self.timers.insert(key, Due::DeadLetter(id.0));
        }
        true
    }

    /// A record that no run will do for: its lane waits until it is written elsewhere.
    pub(super) fn hold(&mut self, what: Stretch<L>, why: Why) {
        let Some(tried) = what.tried.clone() else {
            debug_assert!(false, "it has failed, so it was tried");
            return;
        };
        let id = self.dead_next;
        self.dead_next += 1;
        if what.lane != LaneId::NONE {
            self.lanes[what.lane.0 as usize].held += 1;
            self.touch(what.lane.0);
        }
        let held = Held {
            what,
            tried,
            why,
            given: false,
        };
        self.dead.insert(id, held);
        self.dead_new.push_back(id);
    }
}

impl<L> Lanes<L> {
    fn let_go(&mut self, lane: LaneId) {
        if lane != LaneId::NONE {
            self.lanes[lane.0 as usize].held -= 1;
            self.touch(lane.0);
        }
    }

    /// What was not given out goes with its lease; what was stays while its result counts.
    pub(super) fn drop_held(&mut self, lease: &Lease, how: LeaseState) {
        let goes = |held: &Held<L>| {
            held.what.parcel.lease.id() == lease.id() && (how == LeaseState::Lost || !held.given)
        };
        let gone: Vec<u64> = self
            .dead
            .iter()
            .filter(|(_, held)| goes(held))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            let Some(held) = self.dead.remove(&id) else {
                continue;
            };
            if held.given {
                lease.came_back(1);
            }
            self.let_go(held.what.lane);
        }
        let dead = &self.dead;
        self.timers.retain(|_, due| match due {
            Due::DeadLetter(id) => dead.contains_key(id),
            _ => true,
        });
    }
}
