//! What the engine keeps about one executor, and which executor a lane goes to.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::super::LaneId;
use super::super::group::{Cut, Group, Item, Parcel, Seg, Stretch};
use super::{LISTED, Lanes, MOVING, RIPE, SEALED, TRIAL, Waiting};
use crate::time::Now;

pub(super) struct Exec<L> {
    /// Groups that are full, and one that is being filled.
    ready: VecDeque<Group<L>>,
    filling: Group<L>,
    /// A segment of `filling` is open for items of the parcel that is being dealt.
    seg_open: bool,
    pub(super) ready_records: usize,
    /// When the groups that are out were shipped, and how long they are.
    shipped: VecDeque<Now>,
    shipped_records: usize,
    groups_max: usize,
    /// Records dealt to it whose result is not known.
    pub(super) load: usize,
    /// Lanes bound to it that may go on.
    pub(super) lanes: Waiting,
    /// Lanes on it should rather not get more: set when a parcel is dealt.
    pub(super) crowded: bool,
    /// Nanoseconds a record, lately. Zero: not known.
    pace: u64,
    last_back: Now,
    /// Records a group should have.
    pub(super) size: u32,
    size_min: u32,
    size_max: u32,
    /// That, where most results come late.
    late_max: u32,
    /// Whether they do, by the last group.
    pub(super) pends: bool,
    spare: Vec<Group<L>>,
    /// Until when what is here waits for a full batch.
    pub(super) short_until: Option<Now>,
}

/// A group should keep its executor busy for this long: the other lanes of a group wait for the
/// slowest.
const GROUP_NANOS: u64 = 250_000;
pub(super) const GROUP_RECORDS_MAX: u32 = 1024;
/// A group's size before anything is known about the handler.
const GROUP_RECORDS_FIRST: u32 = 16;
/// Emptied groups kept for their buffers.
const SPARE_MAX: usize = 4;
/// Records ready for one executor from which on its lanes queue instead.
const READY_RECORDS_MAX: usize = 8 * GROUP_RECORDS_MAX as usize;
/// Records that a group may have where most results come late, however few may run at once.
pub(super) const LATE_RECORDS_MIN: u32 = 32;
/// Groups' worth of records ready for one executor, where most results come late, from which on what
/// is dealt to it queues in its lane.
///
/// Step 1: all of a long log is dealt at once to lanes that are free just then. Step 2: those that
/// were not have their records in queues. Step 3: the executor takes from queues only when what is
/// ready has been walked, so these lanes stand still for as long as the rest of the log takes, and
/// run on their own in the end.
const READY_GROUPS_MAX: usize = 4;
/// That is at least so many records.
const READY_RECORDS_MIN: usize = 64;
/// Records that one lane may put into a group in one go, when several could.
const RELEASE_MAX: u32 = 64;

impl<L> Exec<L> {
    pub(super) fn new(groups_max: usize, (size_min, size_max): (u32, u32), late_max: u32) -> Self {
        Exec {
            ready: VecDeque::new(),
            filling: Group::new(),
            seg_open: false,
            ready_records: 0,
            shipped: VecDeque::new(),
            shipped_records: 0,
            groups_max,
            load: 0,
            lanes: Waiting::new(),
            crowded: false,
            pace: 0,
            last_back: Now(0),
            size: whole(GROUP_RECORDS_FIRST.clamp(size_min, size_max), size_min),
            size_min,
            size_max,
            late_max: late_max.clamp(size_min, size_max),
            pends: false,
            spare: Vec::new(),
            short_until: None,
        }
    }

    /// Whether it should get more: it has less than two groups' worth, or, where a group is one
    /// lane's run, could take one at once.
    pub(super) fn wants(&self, one_lane: bool) -> bool {
        match one_lane {
            true => self.may_ship() && self.ready_records == 0,
            false => self.ready_records + self.shipped_records < 2 * self.size as usize,
        }
    }

    /// Whether lanes on it queue what is dealt to them.
    pub(super) fn is_full(&self) -> bool {
        let most = READY_GROUPS_MAX * self.size as usize;
        self.pends && self.ready_records >= most.max(READY_RECORDS_MIN)
    }

    pub(super) fn may_ship(&self) -> bool {
        self.shipped.len() < self.groups_max
    }

    pub(super) fn oldest_group(&self) -> Option<Now> {
        self.shipped.front().copied()
    }

    /// Records that the group being filled has room for; at least one.
    pub(super) fn room(&self) -> u32 {
        self.size.saturating_sub(self.filling.records).max(1)
    }

    pub(super) fn push_item(&mut self, parcel: &Arc<Parcel<L>>, item: Item) {
        if !self.seg_open {
            self.seg_open = true;
            self.filling.segs.push(Seg {
                parcel: Arc::clone(parcel),
                cut: Cut::Items { end: 0 },
                tried: None,
                opens: LaneId::NONE,
            });
        }
        self.filling.items.push(item);
        self.pushed(1);
    }

    /// Ends the segment that `push_item` opened.
    pub(super) fn close_seg(&mut self) {
        if std::mem::take(&mut self.seg_open) {
            let here = self.filling.items.len();
            if let Some(Seg {
                cut: Cut::Items { end },
                ..
            }) = self.filling.segs.last_mut()
            {
                *end = here;
            }
        }
    }

    pub(super) fn push_range(&mut self, stretch: Stretch<L>, opens: LaneId) {
        debug_assert!(!self.seg_open);
        self.filling.segs.push(Seg {
            parcel: stretch.parcel,
            cut: Cut::Range {
                lane: stretch.lane,
                first: stretch.index,
                len: stretch.len,
                acked: 0,
            },
            tried: stretch.tried,
            opens,
        });
        self.pushed(stretch.len);
    }

    /// Tells the Runner with the next group that a sealed lane is nothing to it any more. No record
    /// of the lane is here; those that come next, of another key, go into this group or a later
    /// one.
    pub(super) fn push_open(&mut self, lane: LaneId) {
        self.filling.opens.push(lane);
    }

    /// Whether what is here is to wait for a full batch, of this size; `None`: no more will come.
    pub(super) fn waits_for_more(&mut self, now: Now, wait: Duration, batch: Option<u32>) -> bool {
        let next = self.ready.is_empty() && self.may_ship() && !self.filling.is_empty();
        let short = batch.is_some_and(|batch| !self.filling.records.is_multiple_of(batch));
        if next && short && now < *self.short_until.get_or_insert(now + wait) {
            return true;
        }
        self.short_until = None;
        false
    }

    /// Ends the group that is being filled.
    pub(super) fn close_group(&mut self) {
        self.close_seg();
        if !self.filling.is_empty() {
            let next = self.spare.pop().unwrap_or_else(Group::new);
            let full = std::mem::replace(&mut self.filling, next);
            self.ready.push_back(full);
        }
    }

    pub(super) fn ship(&mut self, now: Now) -> Option<Group<L>> {
        if !self.may_ship() {
            return None;
        }
        if self.ready.is_empty() {
            self.close_group();
        }
        let mut group = self.ready.pop_front()?;
        group.shipped = now;
        self.shipped.push_back(now);
        self.shipped_records += group.len();
        self.ready_records -= group.len();
        Some(group)
    }

    /// A group has come back: measures the pace, and sizes the next groups by it.
    pub(super) fn came_back(&mut self, now: Now, group: &Group<L>) {
        self.shipped.pop_front();
        self.shipped_records -= group.len();
        let began = group.shipped.max(self.last_back);
        self.last_back = now;
        let nanos = u64::try_from(now.since(began).as_nanos()).unwrap_or(u64::MAX);
        // The executor's own word, where it has one: the way there and back, and the time until
        // the engine looked, are not the handler's.
        let pace = match group.pace {
            0 => (nanos / u64::from(group.records.max(1))).max(1),
            pace => pace,
        };
        // The old pace weighs a half; a group that took very long counts at once.
        self.pace = match self.pace {
            0 => pace,
            old if pace > 8 * old => pace,
            old => (old - old / 2 + pace / 2).max(1),
        };
        let size = u32::try_from(GROUP_NANOS / self.pace).unwrap_or(GROUP_RECORDS_MAX);
        // A walk past pending records and those behind them takes no time, and says nothing of how
        // long they take: what the executor holds then keeps older records, in the queues of lanes
        // that were blocked, from their turn.
        // (A batch's results all come late, whatever it is.)
        self.pends = self.size_min == 1 && group.late > group.records / 2;
        let most = match self.pends {
            true => self.late_max,
            false => self.size_max,
        };
        self.size = whole(size.clamp(self.size_min, most), self.size_min);
    }

    pub(super) fn keep(&mut self, mut group: Group<L>) {
        if self.spare.len() < SPARE_MAX {
            group.clear();
            self.spare.push(group);
        }
    }

    /// Takes out of the groups that are not shipped what `goes` says: tells the lane, and how many
    /// records. A segment that opens a lane stays, for what follows it relies on that; the Runner
    /// will give its records back.
    pub(super) fn withdraw(
        &mut self,
        goes: impl Fn(&Parcel<L>) -> bool,
        mut gone: impl FnMut(LaneId, u32),
    ) {
        let goes = |seg: &Seg<L>| seg.opens == LaneId::NONE && goes(&seg.parcel);
        let groups = self.ready.iter_mut().chain([&mut self.filling]);
        for group in groups.filter(|g| g.segs.iter().any(&goes)) {
            let mut old = std::mem::replace(group, Group::new());
            group.opens = std::mem::take(&mut old.opens);
            let mut from = 0;
            for seg in old.segs.drain(..) {
                let goes = goes(&seg);
                match seg.cut {
                    Cut::Items { end } => {
                        for item in &old.items[from..end] {
                            if goes {
                                gone(item.lane, 1);
                            } else {
                                group.items.push(*item);
                            }
                        }
                        if !goes {
                            group.records += (end - from) as u32;
                            let end = group.items.len();
                            group.segs.push(Seg {
                                cut: Cut::Items { end },
                                ..seg
                            });
                        }
                        from = end;
                    }
                    Cut::Range { lane, len, .. } if goes => {
                        gone(lane, len);
                    }
                    Cut::Range { len, .. } => {
                        group.records += len;
                        group.segs.push(seg);
                    }
                }
            }
            let left = old.records - group.records;
            self.ready_records -= left as usize;
            self.load -= left as usize;
        }
        // A group that is empty now is not shipped; what it opens is opened by the next one.
        let mut opens = Vec::new();
        self.ready.retain_mut(|group| {
            opens.append(&mut group.opens);
            if group.is_empty() {
                return false;
            }
            group.opens = std::mem::take(&mut opens);
            true
        });
        self.filling.opens.append(&mut opens);
    }

    fn pushed(&mut self, records: u32) {
        self.filling.records += records;
        self.ready_records += records as usize;
        self.load += records as usize;
        if self.filling.records >= self.size {
            self.close_group();
        }
    }
}

/// As many whole batches as fit, at least one.
fn whole(records: u32, batch: u32) -> u32 {
    (records - records % batch).max(batch)
}

impl<L> Lanes<L> {
    /// The executor for a lane that is bound to none: the least loaded, and of several the first.
    /// The load counts from the moment of dealing, or all lanes of a parcel would go to one.
    pub(super) fn pick(&self) -> usize {
        let loads = self.execs.iter().map(|exec| exec.load).zip(0..);
        loads.min().map_or(0, |(_, e)| e)
    }

    /// Finds the executors whose lanes should rather queue or move.
    pub(super) fn mark_crowded(&mut self) {
        let least = self.execs.iter().map(|e| e.load).min().unwrap_or(0);
        for exec in &mut self.execs {
            let uneven = exec.load > least + 2 * exec.size as usize + GROUP_RECORDS_FIRST as usize;
            exec.crowded = uneven || exec.ready_records >= READY_RECORDS_MAX;
        }
    }

    /// Whether a bound lane should drain and be bound anew. Under backlog a binding never ends by
    /// itself, so an uneven start would last; one lane moves at a time, or all would rush to and
    /// fro. A full executor moves any: its lanes wait here, not there.
    pub(super) fn should_move(&mut self, l: u32) -> bool {
        let lane = &self.lanes[l as usize];
        let exec = &self.execs[lane.exec as usize];
        if exec.ready_records >= READY_RECORDS_MAX {
            return true;
        }
        let alone = lane.out as usize == exec.load;
        if !exec.crowded || alone || self.execs.len() == 1 || self.moving.is_some() {
            return false;
        }
        self.moving = Some(l);
        true
    }

    /// Fills an executor from the lanes that wait, before anything new is dealt to it.
    pub(super) fn refill(&mut self, e: usize) {
        while !self.one_lane && self.execs[e].wants(false) && self.release_loose(e) {}
        loop {
            let exec = &mut self.execs[e];
            if !exec.wants(self.one_lane) {
                break;
            }
            // Lanes and records without one take turns, so that neither starves the other.
            self.loose_turn = !self.loose_turn;
            let lanes_wait = !exec.lanes.is_empty() || !self.free_lanes.is_empty();
            if (self.loose_turn || !lanes_wait) && self.release_loose(e) {
                continue;
            }
            let exec = &mut self.execs[e];
            // Where it matters the older one of the two; otherwise a lane that is here already.
            let (bound, free) = (exec.lanes.peek(), self.free_lanes.peek());
            let older = |bound| self.pends && Some(bound) < free;
            let from = match free.is_some() && bound.is_none_or(older) {
                true => &mut self.free_lanes,
                false => &mut exec.lanes,
            };
            let Some(Reverse((_, l))) = from.pop() else {
                break;
            };
            let lane = &mut self.lanes[l as usize];
            lane.flags &= !LISTED;
            if !lane.may_go(self.one_lane) {
                self.touch(l);
                continue;
            }
            if lane.is_bound() && lane.exec as usize != e {
                // Bound since it was listed.
                self.touch(l);
                continue;
            }
            self.release(l, e);
        }
    }

    /// Deals records to an executor that wait without a lane. Whether there were any.
    fn release_loose(&mut self, e: usize) -> bool {
        let room = match self.one_lane {
            true => self.batch_max,
            false => u32::MAX,
        };
        let stretch = match self.nodes.front_mut(&self.again) {
            Some(front) if front.len > room => Some(front.split(room)),
            _ => self.nodes.pop(&mut self.again),
        };
        let Some(stretch) = stretch else {
            return false;
        };
        self.queued -= stretch.len as usize;
        stretch.parcel.lease.went_out(stretch.len);
        self.execs[e].push_range(stretch, LaneId::NONE);
        if self.one_lane {
            self.execs[e].close_group();
        }
        true
    }

    /// Deals the front of a lane's queue to an executor.
    fn release(&mut self, l: u32, e: usize) {
        let lane = &mut self.lanes[l as usize];
        let exec = &mut self.execs[e];
        lane.exec = e as u32;
        lane.set(RIPE, false);
        let mut opens = LaneId::NONE;
        if lane.is(SEALED) {
            lane.set(SEALED, false);
            opens = LaneId(l);
        }
        let tried = self
            .nodes
            .front(&lane.queue)
            .is_some_and(|s| s.tried.is_some());
        lane.set(TRIAL, tried);
        let mut room = match (tried || self.batch_max > 1, self.one_lane) {
            (true, _) => self.batch_max,
            (false, true) => exec.size,
            (false, false) => RELEASE_MAX.min(exec.room()),
        };
        while room > 0 {
            let Some(front) = self.nodes.front_mut(&lane.queue) else {
                break;
            };
            if front.tried.is_some() != tried {
                break;
            }
            let stretch = match front.len > room {
                true => Some(front.split(room)),
                false => self.nodes.pop(&mut lane.queue),
            };
            let Some(stretch) = stretch else {
                break;
            };
            let len = stretch.len;
            room -= len;
            lane.out += len;
            lane.queued -= len;
            self.queued -= len as usize;
            stretch.parcel.lease.went_out(len);
            exec.push_range(stretch, std::mem::replace(&mut opens, LaneId::NONE));
        }
        if self.one_lane {
            exec.close_group();
        }
        debug_assert!(!lane.is(MOVING) || lane.out > 0);
        self.touch(l);
    }
}
