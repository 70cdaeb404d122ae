//! The executor's side: starts records, polls what is pending, reports.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use foldhash::fast::FixedState;

use super::call::{NowFn, start_held, start_one};
use super::chain::{Chain, Nodes};
use super::group::{Age, Cut, Group, Late, Parcel, RunResult, Stretch};
use super::outcome::{Handler, Outcome, Outcomes, TakenRecord};
use super::permits::{Permits, Seat};
use super::slots::{End, Slots, Started};
use super::watch::{Running, Watch, attempt_of};
use super::{Done, LaneId};
use crate::ids::LeaseId;
use crate::time::Now;

/// What a Runner shall do about a lease that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    /// Give back what has not started.
    Unstarted,
    /// That, and drop the futures of what runs.
    Cancel,
}

/// How one Runner runs. All Runners of a subscription share one, and its permits.
#[derive(Clone, Debug)]
pub struct RunnerConfig {
    /// Records that one handler call takes at most.
    pub batch_max: u32,
    /// One handler call at a time, over all lanes.
    pub in_turn: bool,
    /// The cap on records that run at once, if there is one.
    pub permits: Option<Arc<Permits>>,
    /// How long a handler call may take. A pending one is dropped then, and counts as failed.
    pub timeout: Option<Duration>,
    /// What the time is, for executors whose handlers are done when their call returns: such a
    /// call cannot be ended early, so a late result is only told by the clock. It counts for
    /// nothing; the call counts as failed.
    pub clock: Option<NowFn>,
    /// Where every Runner shows what it runs.
    pub watch: Arc<Watch>,
}

/// Runs the records of groups through a handler. One for each executor.
///
/// It keeps a table of blocked lanes only, those with a pending record or one that must run again,
/// and skips it while it is empty. [`poll`](Self::poll) must be called after
/// [`give`](Self::give) and [`recall`](Self::recall), and again until it says `Pending`.
pub struct Runner<L, H: Handler<L>> {
    handler: H,
    batch_max: u32,
    in_turn: bool,
    permits: Option<Seat>,
    timeout: Option<Duration>,
    clock: Option<NowFn>,
    /// Holds a permit to start records with. Only inside `poll`.
    may_pend: bool,
    groups: VecDeque<Group<L>>,
    slots: Slots<L, H::Run>,
    lanes: HashMap<u32, Blocked, FixedState>,
    waits: Nodes<Stretch<L>>,
    /// Lanes whose record has ended and that have another waiting, each at most once; the one whose
    /// next record is the oldest goes first.
    runnable: BinaryHeap<Reverse<(Age, u32)>>,
    woken: VecDeque<u32>,
    lates: Vec<Late<L>>,
    /// The records of the call that is being made.
    held: Vec<Stretch<L>>,
    sealing: Vec<u32>,
    /// Since when the group at the front is at hand.
    walk_began: Option<Now>,
    /// The last group given back: since when it was at hand, and how many records it had.
    walked: Option<(Now, u32)>,
    /// Nanoseconds a record of the last group that this is known of.
    pace: u64,
}

/// Why records of a lane may not start.
enum Blocked {
    /// One of them runs, or is next in `runnable`; these wait behind it.
    Busy(Chain),
    /// One of them must run again; nothing starts until the engine opens the lane.
    Sealed,
}

/// What stands before a record's start.
enum Gate {
    Go,
    Behind,
    NotRun,
    /// Its lease rests: it comes back, and nothing of its lane passes it.
    Rests,
    Stop(Stop),
}

#[derive(PartialEq)]
enum Stop {
    /// A permit is missing, or another record's turn is not over: a wake comes.
    Cap,
    /// The executor has used up its turn.
    Budget,
    /// A lane that waits has an older record.
    Older,
}

impl<L, H: Handler<L>> Runner<L, H> {
    /// A Runner for `handler`.
    pub fn new(handler: H, config: &RunnerConfig) -> Self {
        Runner {
            handler,
            batch_max: config.batch_max.max(1),
            in_turn: config.in_turn,
            permits: config.permits.as_ref().map(Seat::new),
            timeout: config.timeout,
            clock: config.clock.clone().filter(|_| config.timeout.is_some()),
            may_pend: false,
            groups: VecDeque::new(),
            slots: Slots::new(config.watch.board()),
            lanes: HashMap::default(),
            waits: Nodes::new(),
            runnable: BinaryHeap::new(),
            woken: VecDeque::new(),
            lates: Vec::new(),
            held: Vec::new(),
            sealing: Vec::new(),
            walk_began: None,
            walked: None,
            pace: 0,
        }
    }

    /// Takes a group on. The engine gives at most two before one comes back.
    pub fn give(&mut self, group: Group<L>) {
        self.groups.push_back(group);
    }

    /// Gives back what has not started of a lease that has ended, and with [`Recall::Cancel`] what
    /// runs. Records of groups that are not walked yet come back when they are met.
    pub fn recall(&mut self, lease: LeaseId, what: Recall) {
        let mut waiting: Vec<u32> = self.lanes.keys().copied().collect();
        waiting.sort_unstable();
        for lane in waiting {
            if let Some(Blocked::Busy(chain)) = self.lanes.get_mut(&lane) {
                let lates = &mut self.lates;
                self.waits.drain_where(
                    chain,
                    |stretch| stretch.parcel.lease.id() == lease,
                    |stretch| push_late(lates, stretch, RunResult::NotRun, false),
                );
            }
        }
        if what == Recall::Cancel {
            for slot in self.slots.holding(lease) {
                self.slots.drop_future(slot);
                self.end(slot, End::Cancelled);
            }
        }
    }

    /// Starts what may start and polls what was woken. `may_start` is asked before each handler
    /// call and each poll: where it says no, the Runner wakes itself and gives way.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        now: Now,
        may_start: &mut dyn FnMut() -> bool,
    ) -> Poll<Done<L>> {
        self.note_pace(now);
        self.slots.wakes().collect(cx.waker(), &mut self.woken);
        let mut spent = false;
        while let Some(slot) = self.woken.front().copied() {
            if !may_start() {
                spent = true;
                break;
            }
            self.woken.pop_front();
            if let Some(end) = self.slots.poll(slot, &self.handler) {
                self.end(slot, end);
            }
        }
        self.time_out(now, spent);
        let mut walked = None;
        if !spent && self.lates.is_empty() {
            let stop = self.start(cx, now, may_start, &mut walked);
            spent = stop == Some(Stop::Budget);
            self.put_permit_back(stop != Some(Stop::Cap));
            self.slots.board().rests();
            if stop.is_none() && walked.is_none() && self.lates.is_empty() {
                debug_assert!(self.groups.is_empty() && self.runnable.is_empty());
            }
        }
        if let Some(mut group) = walked {
            let began = self.walk_began.take().unwrap_or(now);
            self.walked = Some((began, group.records));
            group.pace = self.pace;
            return Poll::Ready(Done::Group(group));
        }
        if !self.lates.is_empty() {
            return Poll::Ready(Done::Late(std::mem::take(&mut self.lates)));
        }
        if spent {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// How long the last group took, known once the poll after it begins: what sizes groups is
    /// the handler's own time, without the way to the engine and back.
    fn note_pace(&mut self, now: Now) {
        if let Some((began, records)) = self.walked.take() {
            let nanos = u64::try_from(now.since(began).as_nanos()).unwrap_or(u64::MAX);
            self.pace = (nanos / u64::from(records.max(1))).max(1);
        }
        if self.walk_began.is_none() && !self.groups.is_empty() {
            self.walk_began = Some(now);
        }
    }

    /// Ends the calls that have run for too long. Not before those that were woken have been
    /// polled: a result that is there when its time is up still counts.
    fn time_out(&mut self, now: Now, spent: bool) {
        let Some(longest) = self.timeout.filter(|_| !spent) else {
            return;
        };
        while let Some((slot, end)) = self.slots.time_out(now, longest, &self.handler) {
            self.end(slot, end);
        }
    }

    /// When [`poll`](Self::poll) is due even if nothing wakes it: a pending call has then run for
    /// as long as it may.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Now> {
        let longest = self.timeout?;
        self.slots.oldest().map(|running| running.since + longest)
    }

    /// Whether it holds nothing: no group, no record, no result.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.groups.is_empty()
            && self.slots.pending() == 0
            && self.lates.is_empty()
            && self.runnable.is_empty()
    }

    /// Handler calls that are pending.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.slots.pending()
    }

    /// The pending call that began first: what progress is watched by.
    #[must_use]
    pub fn oldest_running(&self) -> Option<Running> {
        self.slots.oldest()
    }

    /// Starts what may start, of the lanes that wait and of the next group the older record first:
    /// where permits are short, a lane that has fallen behind catches up, so that none is left over
    /// when the others are done, and nothing starves.
    fn start(
        &mut self,
        cx: &mut Context<'_>,
        now: Now,
        may_start: &mut dyn FnMut() -> bool,
        walked: &mut Option<Group<L>>,
    ) -> Option<Stop> {
        loop {
            let stop = self.start_waiting(cx, now, may_start);
            if stop.is_some() {
                return stop;
            }
            // Each round starts or gives back a record that waited, so the rounds end.
            match self.walk_next(cx, now, may_start, walked) {
                Some(Stop::Older) => {}
                stop => return stop,
            }
        }
    }

    /// One record of each lane that waits for longer than the next group's.
    fn start_waiting(
        &mut self,
        cx: &mut Context<'_>,
        now: Now,
        may_start: &mut dyn FnMut() -> bool,
    ) -> Option<Stop> {
        let next = self.groups.front().and_then(Group::age);
        while let Some(Reverse((age, lane))) = self.runnable.peek().copied() {
            if next.is_some_and(|next| next < age) {
                break;
            }
            if let Some(stop) = self.stop(age, cx, may_start) {
                return Some(stop);
            }
            self.runnable.pop();
            let rests = self.hold_waiting(lane);
            match (self.held.is_empty(), rests) {
                (true, true) => self.seal(lane),
                (true, false) => drop(self.lanes.remove(&lane)),
                (false, _) => self.run_held(now),
            }
        }
        None
    }

    /// Moves a call's worth of a lane's waiting records into `held`. Whether the next one is of a
    /// lease at rest; then, with none held, the first has been given back to seal the lane.
    fn hold_waiting(&mut self, lane: u32) -> bool {
        let Some(Blocked::Busy(chain)) = self.lanes.get_mut(&lane) else {
            return false;
        };
        let mut room = self.batch_max;
        while room > 0 {
            let Some(front) = self.waits.front_mut(chain) else {
                break;
            };
            let granted = front.parcel.lease.is_granted();
            if granted && front.parcel.lease.rests() {
                if self.held.is_empty()
                    && let Some(first) = self.waits.pop(chain)
                {
                    push_late(&mut self.lates, first, RunResult::NotRun, true);
                }
                return true;
            }
            let taken = match granted && front.len > room {
                true => Some(front.split(room)),
                false => self.waits.pop(chain),
            };
            let Some(taken) = taken else {
                break;
            };
            if granted {
                room -= taken.len;
                self.held.push(taken);
            } else {
                push_late(&mut self.lates, taken, RunResult::NotRun, false);
            }
        }
        false
    }

    fn walk_next(
        &mut self,
        cx: &mut Context<'_>,
        now: Now,
        may_start: &mut dyn FnMut() -> bool,
        walked: &mut Option<Group<L>>,
    ) -> Option<Stop> {
        let mut group = self.groups.pop_front()?;
        let stop = self.walk(&mut group, cx, now, may_start);
        match stop {
            Some(_) => self.groups.push_front(group),
            None => *walked = Some(group),
        }
        stop
    }

    /// Takes a group's records one after the other until something stops it.
    fn walk(
        &mut self,
        group: &mut Group<L>,
        cx: &mut Context<'_>,
        now: Now,
        may_start: &mut dyn FnMut() -> bool,
    ) -> Option<Stop> {
        for lane in group.opens.drain(..) {
            let was = self.lanes.remove(&lane.0);
            debug_assert!(matches!(was, Some(Blocked::Sealed)));
        }
        while let Some(seg) = group.segs.get_mut(group.seg) {
            let opens = std::mem::replace(&mut seg.opens, LaneId::NONE);
            if opens != LaneId::NONE {
                let was = self.lanes.remove(&opens.0);
                debug_assert!(matches!(was, Some(Blocked::Sealed)));
            }
            if self.batch_max == 1
                && let Some(stop) = self.dash(group, cx, now, may_start)
            {
                return Some(stop);
            }
            let seg = &group.segs[group.seg];
            let Some((lane, index)) = group.here() else {
                group.seg += 1;
                group.step = 0;
                continue;
            };
            match self.gate(&seg.parcel, (lane, index), cx, may_start) {
                Gate::Stop(stop) => return Some(stop),
                Gate::Go if self.batch_max > 1 => {
                    self.hold_batch(group, lane);
                    self.run_held(now);
                }
                Gate::Go => {
                    let started = start_one(
                        (&mut self.slots, &self.handler),
                        (self.timeout, self.clock.as_ref()),
                        &TakenRecord {
                            parcel: &seg.parcel,
                            index,
                            tried: seg.tried.as_ref(),
                            lane,
                        },
                    );
                    if group.pass(matches!(started, Started::Acked)) {
                        continue;
                    }
                    // The segment is where it was: `pass` moves the position inside it only.
                    let seg = &group.segs[group.seg];
                    self.held.push(seg.stretch(lane, index));
                    self.came_to(started, now);
                }
                Gate::Behind => {
                    let stretch = seg.stretch(lane, index);
                    group.pass(false);
                    if let Some(Blocked::Busy(chain)) = self.lanes.get_mut(&lane.0) {
                        let joined = stretch.tried.is_none()
                            && self
                                .waits
                                .back_mut(chain)
                                .is_some_and(|last| last.join(&stretch.parcel, index, 1));
                        if !joined {
                            self.waits.push(chain, stretch);
                        }
                    }
                }
                Gate::NotRun => {
                    let stretch = seg.stretch(lane, index);
                    group.pass(false);
                    push_late(&mut self.lates, stretch, RunResult::NotRun, false);
                }
                Gate::Rests => {
                    let stretch = seg.stretch(lane, index);
                    group.pass(false);
                    let seals = lane != LaneId::NONE;
                    push_late(&mut self.lates, stretch, RunResult::NotRun, seals);
                    if seals {
                        self.seal(lane.0);
                    }
                }
            }
        }
        None
    }

    /// The hot path: records of one segment while no lane is blocked. What it cannot do is left
    /// to the walk, record by record.
    fn dash(
        &mut self,
        group: &mut Group<L>,
        cx: &mut Context<'_>,
        now: Now,
        may_start: &mut dyn FnMut() -> bool,
    ) -> Option<Stop> {
        self.slots.board().walks(group, now);
        let seg = group.segs.get_mut(group.seg)?;
        let (tried, parcel) = (&seg.tried, &seg.parcel);
        loop {
            let (lane, index) = match &seg.cut {
                Cut::Items { end } if group.item < *end => {
                    let item = group.items[group.item];
                    (item.lane, item.index())
                }
                Cut::Range {
                    lane,
                    first,
                    len,
                    acked,
                } if group.step < *len && *acked == group.step => (*lane, first + group.step),
                _ => return None,
            };
            if !self.lanes.is_empty() || !parcel.lease.may_start() {
                return None;
            }
            if let Some(stop) = self.stop(parcel.age(index), cx, may_start) {
                return Some(stop);
            }
            let started = start_one(
                (&mut self.slots, &self.handler),
                (self.timeout, self.clock.as_ref()),
                &TakenRecord {
                    parcel,
                    index,
                    tried: tried.as_ref(),
                    lane,
                },
            );
            let at_once = matches!(started, Started::Acked);
            group.late += u32::from(!at_once);
            match &mut seg.cut {
                Cut::Items { .. } => {
                    if !at_once {
                        group.items[group.item].mark_late();
                    }
                    group.item += 1;
                }
                Cut::Range { acked, .. } => {
                    group.step += 1;
                    *acked += u32::from(at_once);
                }
            }
            if !at_once {
                self.held.push(Stretch {
                    parcel: Arc::clone(parcel),
                    index,
                    len: 1,
                    tried: tried.clone(),
                    lane,
                });
                self.came_to(started, now);
            }
        }
    }

    /// Whether the next record may start. Permits and the budget are asked last: a record that
    /// needs neither must not wait for them.
    fn gate(
        &mut self,
        parcel: &Parcel<L>,
        (lane, index): (LaneId, u32),
        cx: &mut Context<'_>,
        may_start: &mut dyn FnMut() -> bool,
    ) -> Gate {
        if !parcel.lease.is_granted() {
            return Gate::NotRun;
        }
        if !self.lanes.is_empty() && lane != LaneId::NONE {
            match self.lanes.get(&lane.0) {
                Some(Blocked::Busy(_)) => return Gate::Behind,
                Some(Blocked::Sealed) => return Gate::NotRun,
                None => {}
            }
        }
        if parcel.lease.rests() {
            return Gate::Rests;
        }
        let age = parcel.age(index);
        let oldest = self.runnable.peek();
        if oldest.is_some_and(|Reverse((waits, _))| *waits < age) {
            return Gate::Stop(Stop::Older);
        }
        match self.stop(age, cx, may_start) {
            Some(stop) => Gate::Stop(stop),
            None => Gate::Go,
        }
    }

    /// What forbids any start at all. The record that would start is this old.
    fn stop(
        &mut self,
        age: Age,
        cx: &mut Context<'_>,
        may_start: &mut dyn FnMut() -> bool,
    ) -> Option<Stop> {
        if self.in_turn && self.slots.pending() > 0 {
            return Some(Stop::Cap);
        }
        if let Some(seat) = &mut self.permits
            && !self.may_pend
        {
            if !seat.acquire(age, cx.waker()) {
                return Some(Stop::Cap);
            }
            self.may_pend = true;
        }
        (!may_start()).then_some(Stop::Budget)
    }

    /// Moves a call's worth of records from the walk into `held`. All of them report late.
    fn hold_batch(&mut self, group: &mut Group<L>, lane: LaneId) {
        let mut room = self.batch_max;
        while room > 0 {
            let Some(seg) = group.segs.get(group.seg) else {
                break;
            };
            let Some((next, index)) = group.here() else {
                group.seg += 1;
                group.step = 0;
                continue;
            };
            // Another lane's records join only where one call runs at a time; a lane that is
            // sealed, or that the segment would open, is left to the walk.
            let joins = next == lane || (self.in_turn && !self.lanes.contains_key(&next.0));
            if !joins || !seg.parcel.lease.may_start() || seg.opens != LaneId::NONE {
                break;
            }
            let joined = seg.tried.is_none()
                && self
                    .held
                    .last_mut()
                    .is_some_and(|last| last.lane == next && last.join(&seg.parcel, index, 1));
            if !joined {
                self.held.push(seg.stretch(next, index));
            }
            group.pass(false);
            room -= 1;
        }
    }

    /// Calls the handler with what is held.
    fn run_held(&mut self, now: Now) {
        if let Some(first) = self.held.first() {
            self.slots.board().calls(&Running {
                lease: first.parcel.lease.id(),
                ordinal: first.ordinal(),
                lane: first.lane,
                attempt: attempt_of(first.tried.as_deref()),
                since: now,
            });
        }
        let limit = (self.timeout, self.clock.as_ref());
        let Some(started) = start_held(&mut self.slots, &self.handler, limit, &self.held) else {
            return;
        };
        self.came_to(started, now);
    }

    /// A call with what is held has ended at once, or is pending.
    fn came_to(&mut self, started: Started, now: Now) {
        let end = match started {
            Started::Acked => Some(End::Outcomes(Outcomes::All(Outcome::Ack))),
            Started::Ended(end) => Some(end),
            Started::Pending => None,
        };
        if let Some(end) = end {
            let mut held = std::mem::take(&mut self.held);
            self.report(&mut held, end);
            self.held = held;
            return;
        }
        if !self.in_turn {
            for stretch in &self.held {
                if stretch.lane != LaneId::NONE {
                    let blocked = self.lanes.entry(stretch.lane.0);
                    blocked.or_insert(Blocked::Busy(Chain::EMPTY));
                }
            }
        }
        self.slots.keep(&mut self.held, now);
        // The permit goes with the slot; the next start needs another.
        self.may_pend = false;
    }

    /// A pending call has come to its end.
    fn end(&mut self, slot: u32, end: End) {
        let mut held = self.slots.free(slot);
        if let Some(seat) = &self.permits {
            seat.release();
        }
        self.report(&mut held, end);
        self.slots.keep_buffer(slot, held);
    }

    /// Turns a call's end into results, and blocks or frees its lanes.
    fn report(&mut self, held: &mut Vec<Stretch<L>>, mut end: End) {
        let mut lanes: Vec<u32> = Vec::new();
        let first = held.first().map_or(LaneId::NONE, |s| s.lane);
        if held.iter().any(|s| s.lane != first) {
            lanes.extend(held.iter().map(|s| s.lane.0));
            lanes.sort_unstable();
            lanes.dedup();
        }
        match end.outcomes() {
            Outcomes::Each(outcomes) => {
                let mut outcomes = outcomes.into_iter();
                for mut stretch in held.drain(..) {
                    while stretch.len > 1 {
                        let one = stretch.split(1);
                        self.report_stretch(one, end.result(next_of(&mut outcomes)));
                    }
                    self.report_stretch(stretch, end.result(next_of(&mut outcomes)));
                }
            }
            Outcomes::All(outcome) => {
                for stretch in held.drain(..) {
                    self.report_stretch(stretch, end.result(outcome.clone()));
                }
            }
        }
        if lanes.is_empty() {
            self.settle_lane(first);
        } else {
            lanes
                .into_iter()
                .for_each(|lane| self.settle_lane(LaneId(lane)));
        }
        self.sealing.clear();
    }

    fn report_stretch(&mut self, stretch: Stretch<L>, result: RunResult) {
        let again = match &result {
            RunResult::Outcome(then)
            | RunResult::Panicked { then, .. }
            | RunResult::TimedOut { then } => !then.settles(),
            RunResult::NotRun | RunResult::Cancelled => stretch.parcel.lease.is_granted(),
        };
        let seals = again && stretch.lane != LaneId::NONE;
        if seals && !self.sealing.contains(&stretch.lane.0) {
            self.sealing.push(stretch.lane.0);
        }
        push_late(&mut self.lates, stretch, result, seals);
    }

    /// After a call: the lane is sealed, or its next record's turn has come.
    fn settle_lane(&mut self, lane: LaneId) {
        if lane == LaneId::NONE {
            return;
        }
        match self.sealing.contains(&lane.0) {
            true => self.seal(lane.0),
            false => self.unblock(lane.0),
        }
    }

    /// A record of the lane must run again: what waits behind it goes back.
    fn seal(&mut self, lane: u32) {
        if let Some(Blocked::Busy(mut chain)) = self.lanes.insert(lane, Blocked::Sealed) {
            while let Some(stretch) = self.waits.pop(&mut chain) {
                push_late(&mut self.lates, stretch, RunResult::NotRun, false);
            }
        }
    }

    /// The lane's record is done with: the next one's turn.
    fn unblock(&mut self, lane: u32) {
        if let Some(Blocked::Busy(chain)) = self.lanes.get(&lane) {
            match self.waits.front(chain).map(Stretch::age) {
                None => drop(self.lanes.remove(&lane)),
                Some(age) => self.runnable.push(Reverse((age, lane))),
            }
        }
    }

    fn put_permit_back(&mut self, satisfied: bool) {
        if let Some(seat) = &mut self.permits {
            if std::mem::take(&mut self.may_pend) {
                seat.release();
            }
            if satisfied {
                seat.leave();
            }
        }
    }
}

impl<L, H: Handler<L>> Drop for Runner<L, H> {
    fn drop(&mut self) {
        for slot in self.slots.all_pending() {
            self.slots.drop_future(slot);
            if let Some(seat) = &self.permits {
                seat.release();
            }
        }
    }
}

fn next_of(outcomes: &mut std::vec::IntoIter<Outcome>) -> Outcome {
    outcomes.next().unwrap_or_else(|| {
        Outcome::Failed("the handler gave fewer outcomes than it took records".into())
    })
}

/// Adds a result, to the last one where it is the same for the next record.
fn push_late<L>(lates: &mut Vec<Late<L>>, what: Stretch<L>, result: RunResult, seals: bool) {
    let plain = matches!(result, RunResult::NotRun | RunResult::Outcome(Outcome::Ack));
    if plain
        && let Some(last) = lates.last_mut()
        && last.result == result
        && last.seals == seals
        && last.what.lane == what.lane
        && what.tried.is_none()
        && last.what.join(&what.parcel, what.index, what.len)
    {
        return;
    }
    lates.push(Late {
        what,
        seals,
        result,
    });
}
