//! The log is the overflow: a lane that does not move lets its queued records go, and reads them
//! again from the partition when it is free.
//!
//! Kafka still holds every record, so memory need not. What was let go (*gone*) stays open in its
//! tracker: watermark, commits and crashes see it as unsettled and nothing more.
//!
//! 1. Only lanes by key let go, and only where commits are tracked. Records without a key are
//!    never let go.
//! 2. It happens when the budget has refused the next fetch for a while and nothing was dealt in
//!    it: the lane with the longest queue lets go of what lies beyond its share; never of a record
//!    that has run, or is with an executor. What stays is copied out of its batches, so that it
//!    pins no more than itself. Not at once: a thread that the system keeps waiting for some
//!    milliseconds looks like a stuck lane, and to read all of its records a second time costs many
//!    times what it waited. Where each live key has a lane there are too many to look at each time:
//!    those that hold more than a share are looked for, and after a look in vain not before a
//!    while has passed.
//! 3. An *entry* for each lane and lease says which ordinals are gone. While there is one, each
//!    new record of that lane and lease is gone at once. So what a lane holds always comes before
//!    what is gone.
//! 4. One cursor a lease reads again, from the lowest gone record of the lanes that are *hungry*
//!    (at most half of what they held then). A lane joins the pass only where the cursor has not
//!    passed its first gone record, and leaves it when it has no room.
//! 5. What the cursor finds missing between two records that were there has been compacted away:
//!    it is settled.
//! 6. The end of a lease drops all of this.
//!
//! The cursor's fetches and the copies each have an eighth of the budget, which the main position
//! cannot use: the one that reads and the one that holds never wait for each other.

mod again;
mod letgo;

use super::{CommitMode, Config, LaneKey, parts};
use crate::fetch::{Budget, Fetch, FetchConfig};
use crate::ids::LeaseId;
use crate::lane::{KeyHash, Keys, LaneHasher, LaneId, LaneName, Lanes, Mode, Parcel};
use crate::record::{Delivery, Record};
use crate::records::Batch;
use crate::settle::{Gone, Tracker};
use crate::time::{Now, earliest};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The parts of the budget: this one for the cursor, and as much for the copies.
const PART: u64 = 8;

/// Lanes with something gone, all leases together. With so many nothing more is let go, and the
/// budget stops the intake.
const GONE_LANES_MAX: usize = 65_536;

/// Shares that the copies' part is worth where each live key has a lane. A key that holds no more
/// than one, a 512th of the budget, lets go of nothing: where all are slow alike that is what back
/// pressure is for.
const SHARES: usize = 64;

/// How long nothing must have been dealt before something is let go, and the time between two looks
/// in vain: a look at all queues passes over every record that waits.
const STILL_FOR: Duration = Duration::from_millis(100);

/// What a copied stretch takes beside its records.
const PARCEL_BYTES: usize = 256;

/// Places without a record that a copied parcel may have between two that are there.
const GAP_MAX: usize = 4;

/// See the [module](self).
pub(in crate::engine) struct Overflow {
    /// Reads again.
    pub fetch: Fetch,
    copies: Budget,
    /// What a lane keeps, in bytes.
    share: usize,
    leases: BTreeMap<LeaseId, LetGo>,
    entries: usize,
    /// How long each lane's queue was when it was last looked at in vain. None where each live key
    /// has a lane.
    looked: Option<BTreeMap<LaneName, u32>>,
    /// When queues may be looked at again, and whether somebody waits for it.
    look_at: Now,
    look_wanted: bool,
    /// What copies held when one was refused: no pass begins before they hold less.
    refused_at: Option<usize>,
}

/// One lease's gone records.
#[derive(Default)]
struct LetGo {
    gone: Gone,
    lanes: BTreeMap<LaneName, Entry>,
    pass: Option<Pass>,
    /// The cursor met what it cannot pass; the user was told.
    stopped: bool,
    reread_bytes: u64,
}

/// Of one lane and lease: `first` is a lower bound of what is gone, `last` the highest.
#[derive(Debug)]
struct Entry {
    first: u64,
    last: u64,
    /// With so few records waiting the lane is hungry.
    hungry_at: u32,
}

/// What is being read again.
struct Pass {
    lanes: BTreeSet<LaneName>,
    /// The next offset.
    cursor: i64,
}

/// How much of a lease is gone: for the snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct GoneView {
    pub records: u64,
    pub reread_bytes: u64,
}

impl Overflow {
    /// None where nothing may be let go.
    pub(in crate::engine) fn new(c: &Config, now: Now) -> Option<Self> {
        let (shares, looked) = match c.mode {
            Mode::Fixed { lanes } => (lanes.max(1) as usize, Some(BTreeMap::new())),
            Mode::PerKey { .. } => (SHARES, None),
            Mode::InTurn | Mode::Any { .. } => return None,
        };
        let by_key = !matches!(c.lane_key, LaneKey::Partition);
        if !by_key || c.commit != CommitMode::Tracked {
            return None;
        }
        let part = usize::try_from(c.budget_bytes / PART).unwrap_or(usize::MAX);
        let config = FetchConfig {
            // The leader has every record; a follower may lack some.
            rack: Arc::from(""),
            ..parts::fetch(c, c.budget_bytes / PART)
        };
        Some(Overflow {
            fetch: Fetch::new(config, now),
            copies: Budget::new(part),
            share: part / shares,
            leases: BTreeMap::new(),
            entries: 0,
            looked,
            look_at: now + STILL_FOR,
            look_wanted: false,
            refused_at: None,
        })
    }

    /// Something of the main position is dealt.
    pub(in crate::engine) fn flows(&mut self, now: Now) {
        self.look_at = now + STILL_FOR;
    }

    /// When something is due by itself.
    pub(in crate::engine) fn next_deadline(&self) -> Option<Now> {
        let look = self.look_wanted.then_some(self.look_at);
        earliest(self.fetch.next_deadline(), look)
    }

    /// What is left of the budget for the main position.
    pub(in crate::engine) fn main_part(c: &Config, on: bool) -> u64 {
        match on {
            true => c.budget_bytes - c.budget_bytes / PART * 2,
            false => c.budget_bytes,
        }
    }

    /// Bytes that count against the subscription's budget.
    pub(in crate::engine) fn used_bytes(&self) -> usize {
        self.fetch.budget().used_bytes() + self.copies.used_bytes()
    }

    pub(in crate::engine) fn view(&self, lease: LeaseId) -> GoneView {
        self.leases
            .get(&lease)
            .map_or(GoneView::default(), |of| GoneView {
                records: of.gone.len(),
                reread_bytes: of.reread_bytes,
            })
    }

    /// Whether new records of the lease have to be looked at one by one.
    pub(in crate::engine) fn has(&self, lease: LeaseId) -> bool {
        self.entries > 0
            && self
                .leases
                .get(&lease)
                .is_some_and(|of| !of.lanes.is_empty())
    }

    /// New records: those of lanes with an entry are gone at once, the others are dealt.
    pub(in crate::engine) fn deal_what_stays(
        &mut self,
        lanes: &mut Lanes<Delivery>,
        parcel: &Arc<Parcel<Delivery>>,
        keys: &[KeyHash],
        part: Range<u32>,
    ) {
        let Some(of) = self.leases.get_mut(&parcel.lease.id()) else {
            return lanes.deal_part(parcel, Keys::Each(keys), part);
        };
        let mut from = part.start;
        for at in part.clone() {
            let lane = lanes.lane_for(keys[at as usize]);
            let Some(entry) = lane.and_then(|lane| of.lanes.get_mut(&lane)) else {
                continue;
            };
            entry.last = parcel.first_ordinal + u64::from(at);
            of.gone.mark(entry.last, 1);
            if from < at {
                lanes.deal_part(parcel, Keys::Each(keys), from..at);
            }
            from = at + 1;
        }
        if from < part.end {
            lanes.deal_part(parcel, Keys::Each(keys), from..part.end);
        }
    }

    /// Whether this record was let go.
    pub(in crate::engine) fn is_gone(&self, lease: LeaseId, ordinal: u64) -> bool {
        let of = self.leases.get(&lease);
        of.is_some_and(|of| of.gone.next_from(ordinal) == Some(ordinal))
    }

    /// The lease is paused: nothing is read again for now. What was read and not dealt stays gone.
    pub(in crate::engine) fn rest(&mut self, now: Now, lease: LeaseId) {
        if let Some(of) = self.leases.get_mut(&lease) {
            of.pass = None;
            self.fetch.remove(now, lease);
        }
    }

    /// The lease is over.
    pub(in crate::engine) fn end(&mut self, now: Now, lease: LeaseId) {
        self.fetch.remove(now, lease);
        if let Some(of) = self.leases.remove(&lease) {
            self.entries -= of.lanes.len();
        }
    }

    fn copy(&self, load: &Delivery, batch: Batch) -> Delivery {
        Delivery {
            topic: load.topic.clone(),
            partition: load.partition,
            _charge: self.copies.charge(batch.bytes_held() + PARCEL_BYTES),
            batch,
        }
    }

    /// Ends passes without lanes, and entries without a gone record.
    fn tidy(&mut self, now: Now, lease: LeaseId, tracker: &Tracker) {
        let Some(of) = self.leases.get_mut(&lease) else {
            return;
        };
        let before = of.lanes.len();
        let (gone, pass) = (&of.gone, &mut of.pass);
        of.lanes.retain(|lane, entry| {
            let left = gone.next_from(entry.first).filter(|o| *o <= entry.last);
            let passed = pass.as_ref().is_some_and(|pass| {
                // Its records up to here were all given to it, or were compacted away.
                pass.lanes.contains(lane) && tracker.first_at_or_after(pass.cursor) > entry.last
            });
            let over = left.is_none() || passed;
            if over && let Some(pass) = pass {
                pass.lanes.remove(lane);
            }
            !over
        });
        self.entries -= before - of.lanes.len();
        let ended = of
            .pass
            .as_ref()
            .is_some_and(|pass| pass.lanes.is_empty() || pass.cursor >= tracker.position());
        if ended {
            of.pass = None;
            self.fetch.remove(now, lease);
        }
        if of.lanes.is_empty() && of.pass.is_none() && of.reread_bytes == 0 {
            self.leases.remove(&lease);
        }
    }
}

/// The record's key, hashed; none for a record without one, and where the lane function panics.
fn key_of(
    by: &LaneKey,
    hasher: &LaneHasher,
    parcel: &Arc<Parcel<Delivery>>,
    at: usize,
) -> Option<KeyHash> {
    let load = &parcel.load;
    match by {
        LaneKey::By(by) => {
            let record = Record::new(parcel.clone(), at as u32, None, LaneId::NONE);
            let number = catch_unwind(AssertUnwindSafe(|| by(&record)))
                .ok()
                .flatten();
            number.map(|number| hasher.number(number))
        }
        _ => load.batch.key(at).map(|key| hasher.key(&load.topic, key)),
    }
}
