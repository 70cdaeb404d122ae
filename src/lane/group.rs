//! What travels between the engine and its executors.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::LaneId;
use super::ended::{Ended, Waiters};
use super::outcome::Outcome;
use super::retry::Tried;
use crate::ids::LeaseId;
use crate::time::Now;

/// How much a lease is still worth. It only ever goes down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseState {
    /// Records start.
    Granted,
    /// No record starts; results of those that run still count.
    Draining,
    /// Results count for nothing.
    Lost,
}

/// The bit of a lease at rest.
const REST: u8 = 4;

/// The right to work on one partition (or whatever a source hands out), shared by all its records.
/// Handlers can see through it that their work is no longer wanted.
#[derive(Debug)]
pub struct Lease {
    id: LeaseId,
    /// A [`LeaseState`], and [`REST`] on top of it while the lease rests.
    state: AtomicU8,
    /// Records dealt to executors whose result is not known. Only the engine's side changes it.
    out: AtomicU64,
    waiters: Waiters,
}

impl Lease {
    /// A granted lease. Its id must never have been used before.
    #[must_use]
    pub fn new(id: LeaseId) -> Arc<Self> {
        Arc::new(Lease {
            id,
            state: AtomicU8::new(LeaseState::Granted as u8),
            out: AtomicU64::new(0),
            waiters: Waiters::default(),
        })
    }

    /// The lease's name, which is also its epoch.
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// What the lease is worth now.
    #[must_use]
    pub fn state(&self) -> LeaseState {
        match self.state.load(Ordering::Acquire) & !REST {
            0 => LeaseState::Granted,
            1 => LeaseState::Draining,
            _ => LeaseState::Lost,
        }
    }

    /// Whether it still stands: records of it may start, unless it [`rests`](Self::rests).
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.state() == LeaseState::Granted
    }

    /// Whether it is paused: no record of it starts for now.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.state.load(Ordering::Acquire) & REST != 0
    }

    /// Whether a record of it may start now. One look, for the hot path.
    pub(super) fn may_start(&self) -> bool {
        self.state.load(Ordering::Acquire) == LeaseState::Granted as u8
    }

    /// Lets it rest or go on. Says whether that is a change.
    pub(super) fn rest(&self, on: bool) -> bool {
        let before = match on {
            true => self.state.fetch_or(REST, Ordering::AcqRel),
            false => self.state.fetch_and(!REST, Ordering::AcqRel),
        };
        (before & REST != 0) != on
    }

    /// Lowers the state. It never rises again.
    pub(super) fn lower(&self, to: LeaseState) {
        let lowered = |old: u8| Some((old & REST) | (old & !REST).max(to as u8));
        // It never says no.
        let was = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, lowered)
            .unwrap_or_else(|was| was);
        if was & !REST == LeaseState::Granted as u8 && to != LeaseState::Granted {
            self.waiters.wake_all();
        }
    }

    pub(super) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// Resolves when the lease is about to end, or has: no record of it starts any more.
    pub fn ended(self: &Arc<Self>) -> Ended {
        Ended::new(Arc::clone(self))
    }

    pub(super) fn out(&self) -> u64 {
        self.out.load(Ordering::Relaxed)
    }

    pub(super) fn went_out(&self, records: u32) {
        self.out.fetch_add(u64::from(records), Ordering::Relaxed);
    }

    pub(super) fn came_back(&self, records: u32) {
        let before = self.out.fetch_sub(u64::from(records), Ordering::Relaxed);
        debug_assert!(before >= u64::from(records), "more came back than went out");
    }
}

/// A decoded batch: what records are cut from. One `Arc` of it is the only reference count that a
/// record's way costs.
#[derive(Debug)]
pub struct Parcel<L> {
    /// The lease that all its records were fetched under.
    pub lease: Arc<Lease>,
    /// The ordinal of the first record; the others follow without a hole.
    pub first_ordinal: u64,
    /// When they were taken in: where permits are short, what came first starts first.
    pub taken_at: Now,
    /// How many records there are. At most [`PARCEL_RECORDS_MAX`].
    pub len: u32,
    /// The records themselves, in whatever form the source has them.
    pub load: L,
}

/// Where a record stands among all that wait for a permit, the oldest first. Records that were
/// taken in together go by their ordinals, which is fair enough among partitions and exact in one.
pub(super) type Age = (Now, u64);

impl<L> Parcel<L> {
    pub(super) fn age(&self, index: u32) -> Age {
        (self.taken_at, self.first_ordinal + u64::from(index))
    }
}

/// Records that one parcel may hold: an index keeps a bit for itself.
pub const PARCEL_RECORDS_MAX: u32 = LATE - 1;

/// A group of records for one executor: opaque, and its own report.
#[derive(Debug)]
pub struct Group<L> {
    pub(super) segs: Vec<Seg<L>>,
    pub(super) items: Vec<Item>,
    pub(super) records: u32,
    /// Lanes that are unsealed when the walk begins: nothing more comes of what they were.
    pub(super) opens: Vec<LaneId>,
    /// When it was shipped, for the measure of how long a group takes.
    pub(super) shipped: Now,
    /// Nanoseconds a record that its executor took for the group before this one; 0: not known.
    pub(super) pace: u64,
    /// Records whose result comes late, so far.
    pub(super) late: u32,
    /// Where the walk stands: segment, item of `items`, record of a range.
    pub(super) seg: usize,
    pub(super) item: usize,
    pub(super) step: u32,
}

impl<L> Group<L> {
    pub(super) fn new() -> Self {
        Group {
            segs: Vec::new(),
            items: Vec::new(),
            records: 0,
            opens: Vec::new(),
            shipped: Now(0),
            pace: 0,
            late: 0,
            seg: 0,
            item: 0,
            step: 0,
        }
    }

    /// How many records it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records as usize
    }

    /// Whether it holds none. Such a group is never shipped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Goes on by one record, whose handler acked it at once or did not. Says whether the group
    /// itself reports it; otherwise its result comes late.
    pub(super) fn pass(&mut self, at_once: bool) -> bool {
        self.late += u32::from(!at_once);
        match &mut self.segs[self.seg].cut {
            Cut::Items { .. } => {
                if !at_once {
                    self.items[self.item].mark_late();
                }
                self.item += 1;
                at_once
            }
            Cut::Range { acked, .. } => {
                // Acks after one that comes late come late too.
                let reports = at_once && *acked == self.step;
                *acked += u32::from(reports);
                self.step += 1;
                reports
            }
        }
    }

    /// The record that the walk stands at: its lane, and its index in the segment's parcel. None at
    /// the segment's end.
    pub(super) fn here(&self) -> Option<(LaneId, u32)> {
        match &self.segs.get(self.seg)?.cut {
            Cut::Items { end } if self.item < *end => {
                let item = self.items[self.item];
                Some((item.lane, item.index()))
            }
            Cut::Range {
                lane, first, len, ..
            } if self.step < *len => Some((*lane, first + self.step)),
            _ => None,
        }
    }

    /// The age of the record that the walk stands at, or of the next segment's first.
    pub(super) fn age(&self) -> Option<Age> {
        let seg = self.segs.get(self.seg)?;
        Some(seg.parcel.age(self.here().map_or(0, |(_, index)| index)))
    }

    /// Makes it empty and keeps its buffers.
    pub(super) fn clear(&mut self) {
        self.segs.clear();
        self.items.clear();
        self.opens.clear();
        self.records = 0;
        self.pace = 0;
        self.late = 0;
        (self.seg, self.item, self.step) = (0, 0, 0);
    }
}

/// Neighbouring records of a group that are cut from one parcel.
#[derive(Debug)]
pub(super) struct Seg<L> {
    pub(super) parcel: Arc<Parcel<L>>,
    pub(super) cut: Cut,
    /// What became of its records' earlier runs; then it is one record.
    pub(super) tried: Option<Arc<Tried>>,
    /// The lane that this segment unseals, or none.
    pub(super) opens: LaneId,
}

impl<L> Seg<L> {
    /// One of its records, on its own.
    pub(super) fn stretch(&self, lane: LaneId, index: u32) -> Stretch<L> {
        Stretch {
            parcel: Arc::clone(&self.parcel),
            index,
            len: 1,
            tried: self.tried.clone(),
            lane,
        }
    }
}

#[derive(Debug)]
pub(super) enum Cut {
    /// Items of the group from the last segment's end up to this one.
    Items { end: usize },
    /// Records of one lane that lie side by side. Those before `acked` were acked at once, the
    /// others come late.
    Range {
        lane: LaneId,
        first: u32,
        len: u32,
        acked: u32,
    },
}

/// One record of a segment: 8 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) lane: LaneId,
    /// Its index in the parcel; the top bit says that its result comes late.
    index: u32,
}

const LATE: u32 = 1 << 31;

impl Item {
    pub(super) fn new(lane: LaneId, index: u32) -> Self {
        debug_assert!(index & LATE == 0);
        Item { lane, index }
    }

    pub(super) fn index(self) -> u32 {
        self.index & !LATE
    }

    pub(super) fn is_late(self) -> bool {
        self.index & LATE != 0
    }

    pub(super) fn mark_late(&mut self) {
        self.index |= LATE;
    }
}

/// Neighbouring records of one parcel and lane, on their own. A record that ran before stands
/// alone: it has a history of its own.
#[derive(Debug)]
pub(super) struct Stretch<L> {
    pub(super) parcel: Arc<Parcel<L>>,
    pub(super) index: u32,
    pub(super) len: u32,
    pub(super) tried: Option<Arc<Tried>>,
    pub(super) lane: LaneId,
}

impl<L> Stretch<L> {
    /// Cuts off the first `len` records, fewer than there are.
    pub(super) fn split(&mut self, len: u32) -> Stretch<L> {
        debug_assert!(len < self.len);
        let head = Stretch {
            parcel: Arc::clone(&self.parcel),
            index: self.index,
            len,
            tried: self.tried.clone(),
            lane: self.lane,
        };
        self.index += len;
        self.len -= len;
        head
    }

    /// Takes records that never ran in, if they go on where this ends and it never ran either.
    pub(super) fn join(&mut self, parcel: &Arc<Parcel<L>>, index: u32, len: u32) -> bool {
        let joins = self.tried.is_none()
            && self.index + self.len == index
            && Arc::ptr_eq(&self.parcel, parcel);
        if joins {
            self.len += len;
        }
        joins
    }

    /// Some of the same parcel and lane.
    pub(super) fn one(&self, index: u32, len: u32) -> Stretch<L> {
        Stretch {
            parcel: Arc::clone(&self.parcel),
            index,
            len,
            tried: self.tried.clone(),
            lane: self.lane,
        }
    }

    /// Where its records stand in the parcel.
    pub(super) fn range(&self) -> Range<u32> {
        self.index..self.index + self.len
    }

    pub(super) fn ordinal(&self) -> u64 {
        self.parcel.first_ordinal + u64::from(self.index)
    }

    pub(super) fn age(&self) -> Age {
        self.parcel.age(self.index)
    }
}

/// The result of a record, or of neighbours with the same result, that was not acked at once.
#[derive(Debug)]
pub struct Late<L> {
    pub(super) what: Stretch<L>,
    /// The Runner has sealed the lane on account of this one.
    pub(super) seals: bool,
    pub(super) result: RunResult,
}

impl<L> Late<L> {
    /// The lease that the record was fetched under.
    #[must_use]
    pub fn lease(&self) -> LeaseId {
        self.what.parcel.lease.id()
    }

    /// The first record's ordinal.
    #[must_use]
    pub fn ordinal(&self) -> u64 {
        self.what.ordinal()
    }

    /// How many records this is about: they have neighbouring ordinals.
    #[must_use]
    pub fn records(&self) -> u32 {
        self.what.len
    }

    /// The lane they run in.
    #[must_use]
    pub fn lane(&self) -> LaneId {
        self.what.lane
    }

    /// What became of them.
    #[must_use]
    pub fn result(&self) -> &RunResult {
        &self.result
    }
}

/// What became of a record that an executor had.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunResult {
    /// The handler ran to its end.
    Outcome(Outcome),
    /// The handler panicked.
    Panicked {
        /// With these words.
        words: String,
        /// What that shall mean, by the user's policy.
        then: Outcome,
    },
    /// The handler ran longer than it may: its future was dropped, or its late result was.
    TimedOut {
        /// What that shall mean, by the user's policy.
        then: Outcome,
    },
    /// The handler was not called: the lease had ended, or the record stands behind one that must
    /// run again.
    NotRun,
    /// The handler's future was dropped before its end.
    Cancelled,
}
