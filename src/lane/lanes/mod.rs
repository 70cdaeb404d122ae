//! The engine's side: deals, holds what waits, takes results back.

mod aside;
mod back;
mod exec;
mod held;
mod lease;
mod shed;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub use self::held::{DeadLetter, DeadLetterId};

pub use self::view::{LaneView, Waits};

use self::exec::Exec;
use self::held::Held;
use super::LaneId;
use super::chain::{Chain, Nodes};
use super::group::{Group, Item, Lease, PARCEL_RECORDS_MAX, Parcel, Stretch};
use super::hash::{KeyHash, Keys};
use super::permits::Permits;
use super::retry::{Exhausted, Jitter, Retry, Why};
use super::runner::{Recall, RunnerConfig};
use super::watch::Watch;
use crate::ids::{ExecutorId, LeaseId};
use crate::time::Now;

/// How records run beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// One call at a time over all records, on one executor. A lane whose record waits for a retry
    /// does not stop the others.
    InTurn,
    /// Up to `workers` at once, in any order, without lanes.
    Any {
        /// How many at once.
        workers: u32,
    },
    /// A fixed number of lanes, each in order.
    Fixed {
        /// How many lanes.
        lanes: u32,
    },
}

/// What [`Lanes`] is built from.
#[derive(Clone, Debug)]
pub struct LanesConfig {
    /// How records run beside each other.
    pub mode: Mode,
    /// How many executors there are. One at least; exactly one for [`Mode::InTurn`].
    pub executors: u32,
    /// Records that one handler call takes at most.
    pub batch_max: u32,
    /// A group is one lane's run and an executor has one at a time: for executors that are threads,
    /// so that a handler that blocks holds its own lane's records only.
    pub blocking: bool,
    /// When failed records run again.
    pub retry: Retry,
    /// Whether somebody takes dead letters ([`Lanes::poll_dead_letter`]). Otherwise a record that
    /// should become one stops the subscription.
    pub dead_letters: bool,
    /// Lanes (without lanes: records) that may wait for a retry or a dead letter at once before no
    /// more are wanted. Those that wait go on when their time comes.
    pub parked_max: usize,
    /// How long a handler call may take.
    pub timeout: Option<Duration>,
    /// Records that may wait behind blocked lanes before no more are wanted.
    pub queued_max: usize,
    /// For the retries' jitter.
    pub seed: u64,
}

impl LanesConfig {
    /// One executor, batches of one, retries as by default.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        LanesConfig {
            mode,
            executors: 1,
            batch_max: 1,
            blocking: false,
            retry: Retry::default(),
            dead_letters: false,
            parked_max: 10_000,
            timeout: None,
            queued_max: 1_000_000,
            seed: 0,
        }
    }

    /// What each executor's [`Runner`](super::Runner) is built from. Call it once and share it:
    /// the permits in it are one set for all.
    #[must_use]
    pub fn runner(&self) -> RunnerConfig {
        RunnerConfig {
            batch_max: self.batch_max,
            in_turn: self.mode == Mode::InTurn,
            permits: match self.mode {
                Mode::Any { workers } => Some(Permits::new(workers)),
                // Never short of one, until the cap is lowered.
                Mode::Fixed { lanes } => Some(Permits::new(lanes.saturating_add(self.executors))),
                Mode::InTurn => None,
            },
            timeout: self.timeout,
            clock: None,
            watch: Arc::new(Watch::default()),
        }
    }
}

/// Something worth telling about a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// The handler dropped it, or its attempts ran out and it was dropped. It has settled.
    Dropped {
        /// Its lease.
        lease: LeaseId,
        /// Its ordinal.
        ordinal: u64,
    },
    /// It failed and will run again.
    Retrying {
        /// Its lease.
        lease: LeaseId,
        /// Its ordinal.
        ordinal: u64,
        /// Its lane, which waits.
        lane: LaneId,
        /// How often it has run.
        attempts: u32,
        /// When it is due.
        at: Now,
        /// What the handler said, or the panic's words.
        reason: Option<Box<str>>,
        /// Whether it panicked.
        panicked: bool,
        /// Attempt 10, 100, 1000 and so on: worth a warning.
        loud: bool,
    },
    /// It is given up, or with [`Exhausted::Keep`] only told of: its attempts have run out, or the
    /// handler asked for it.
    GaveUp {
        /// Its lease.
        lease: LeaseId,
        /// Its ordinal.
        ordinal: u64,
        /// Its lane.
        lane: LaneId,
        /// How often it has run.
        attempts: u32,
        /// What the handler said last, or the panic's words.
        reason: Option<Box<str>>,
        /// Whether it panicked.
        panicked: bool,
        /// What happens to it now.
        then: Exhausted,
        /// Why.
        why: Why,
    },
}

/// Where results go.
pub trait Sink {
    /// Records have settled: ranges of ordinals, each a first one and a length.
    fn settled(&mut self, lease: &Arc<Lease>, ranges: impl Iterator<Item = (u64, u64)>);

    /// Something worth telling.
    fn note(&mut self, note: Note);
}

/// To be told to one executor: a lease has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recalled {
    /// Whom to tell.
    pub executor: ExecutorId,
    /// Which lease.
    pub lease: LeaseId,
    /// What to do about it.
    pub what: Recall,
}

/// Where the records are, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadSnapshot {
    /// Dealt to an executor, not shipped yet.
    pub ready: usize,
    /// Waiting in lanes that are blocked or full.
    pub queued: usize,
    /// Retries that wait for their time (counted in `queued` too where there are lanes).
    pub parked: usize,
    /// Dead letters that are not acknowledged yet.
    pub held: usize,
    /// With executors: shipped, and their result not known.
    pub out: usize,
    /// Lanes with a record dealt or with an executor.
    pub lanes_busy: usize,
    /// Lanes with records waiting in them.
    pub lanes_queued: usize,
    /// When the group that has been out longest was shipped.
    pub oldest_group: Option<Now>,
}

/// The lanes of one subscription, as the engine sees them.
///
/// A lane that is not blocked has no queue: its records go into the next group of the executor that
/// it is bound to. A lane that is blocked queues here.
pub struct Lanes<L> {
    mode: Mode,
    /// A group is one lane's run: every record goes through its lane's queue.
    one_lane: bool,
    batch_max: u32,
    retry: Retry,
    queued_max: usize,
    jitter: Jitter,
    lanes: Vec<Lane>,
    nodes: Nodes<Stretch<L>>,
    execs: Vec<Exec<L>>,
    /// Lanes that may go on and are bound to no executor.
    free_lanes: VecDeque<u32>,
    /// Records without a lane whose retry is due.
    again: Chain,
    timers: BTreeMap<(Now, u64), Due<L>>,
    timer_next: u64,
    recalls: VecDeque<Recalled>,
    /// Where the rotation of records without a key stands.
    turn: u32,
    /// Where the search for an executor begins.
    exec_turn: usize,
    queued: usize,
    lanes_queued: usize,
    parked: usize,
    /// What waits of leases at rest.
    aside: BTreeMap<LeaseId, Vec<Stretch<L>>>,
    aside_records: usize,
    /// The lane that is being moved to a less loaded executor.
    moving: Option<u32>,
    dead_letters: bool,
    parked_max: usize,
    /// Records on their way to a dead-letter topic; few, and none in the hot path.
    dead: BTreeMap<u64, Held<L>>,
    /// Those that `poll_dead_letter` gives next.
    dead_new: VecDeque<u64>,
    dead_next: u64,
    timed_out: u64,
}

/// One lane. In the hot path `flags` is zero.
struct Lane {
    flags: u16,
    /// Records dealt to the lane's executor whose result is not known.
    out: u32,
    /// Marks of records that come late, less those that have come. Groups and late results
    /// overtake each other, so it may be negative for a while.
    late: i32,
    /// Holds while something is out, or the lane is sealed there.
    exec: u32,
    queue: Chain,
    queued: u32,
    /// Its records that are on their way to a dead-letter topic.
    held: u32,
    /// When the record at the front is due, while the lane is parked.
    due: Now,
}

/// The queue is not empty.
const QUEUED: u16 = 1;
/// A record is pending in the Runner, or waits behind one.
const BLOCKED: u16 = 2;
/// A record must run again: until all that is out has come back, nothing is released.
const RETURNING: u16 = 4;
/// The Runner has sealed the lane: the next release must open it.
const SEALED: u16 = 8;
/// The record at the front waits for its time, or for ever.
const PARKED: u16 = 16;
/// A record that ran before is out: nothing newer before its result.
const TRIAL: u16 = 32;
/// Nothing is released before all that is out has come back; then the lane is bound anew.
const MOVING: u16 = 64;
/// It stands in a list of lanes that may go on.
const LISTED: u16 = 128;

/// A record of it is on its way to a dead-letter topic.
const HELD: u16 = 256;

/// What a timer is for.
enum Due<L> {
    Lane(u32),
    /// A record without a lane.
    Record(Stretch<L>),
    DeadLetter(u64),
}

/// Timers of one moment are told apart by a number: that of a lane, or one of these and a number
/// that is counted up.
const TIMERS_OF_RECORDS: u64 = 1 << 62;
const TIMERS_OF_DEAD_LETTERS: u64 = 1 << 63;

/// Lanes of [`Mode::InTurn`]: they only keep a parked record's lane apart from others.
const LANES_IN_TURN: u32 = 1024;
/// Lanes that are looked at for a record without a key.
const ROTATION_TRIES: u32 = 16;

impl<L> Lanes<L> {
    /// Empty lanes. A count of zero (lanes, executors) is taken as one.
    #[must_use]
    pub fn new(config: &LanesConfig) -> Self {
        let lanes = match config.mode {
            Mode::InTurn => LANES_IN_TURN,
            Mode::Any { .. } => 0,
            Mode::Fixed { lanes } => lanes.clamp(1, LaneId::NONE.0),
        };
        let has_lanes = matches!(config.mode, Mode::Fixed { .. });
        let one_lane = has_lanes && (config.blocking || config.batch_max > 1);
        let executors = match config.mode {
            Mode::InTurn => 1,
            _ => config.executors.max(1),
        };
        let groups_max = if config.blocking { 1 } else { 2 };
        Lanes {
            mode: config.mode,
            one_lane,
            batch_max: config.batch_max.max(1),
            retry: config.retry.clone(),
            queued_max: config.queued_max,
            jitter: Jitter::new(config.seed),
            lanes: (0..lanes).map(|_| Lane::new()).collect(),
            nodes: Nodes::new(),
            execs: (0..executors)
                .map(|_| Exec::new(groups_max, config.batch_max.max(1)))
                .collect(),
            free_lanes: VecDeque::new(),
            again: Chain::EMPTY,
            timers: BTreeMap::new(),
            timer_next: 0,
            recalls: VecDeque::new(),
            turn: 0,
            exec_turn: 0,
            queued: 0,
            lanes_queued: 0,
            parked: 0,
            aside: BTreeMap::new(),
            aside_records: 0,
            moving: None,
            dead_letters: config.dead_letters,
            parked_max: config.parked_max.max(1),
            dead: BTreeMap::new(),
            dead_new: VecDeque::new(),
            dead_next: 0,
            timed_out: 0,
        }
    }

    /// Takes a parcel in. A parcel of a lease that has ended is dropped.
    ///
    /// # Panics
    /// When there are not as many keys as records, or more records than a parcel may hold.
    pub fn deal(&mut self, parcel: &Arc<Parcel<L>>, keys: Keys<'_>) {
        self.deal_part(parcel, keys, 0..parcel.len);
    }

    /// Takes some of a parcel's records in: those with these indices. The keys are those of the
    /// whole parcel. Parts are dealt in order; what is left out, because it had settled before,
    /// never comes back.
    ///
    /// # Panics
    /// When there are not as many keys as records, more records than a parcel may hold, or fewer
    /// than the part says.
    pub fn deal_part(&mut self, parcel: &Arc<Parcel<L>>, keys: Keys<'_>, part: Range<u32>) {
        assert!(parcel.len <= PARCEL_RECORDS_MAX, "a parcel is too long");
        assert!(part.end <= parcel.len, "a part of the parcel");
        if let Keys::Each(keys) = keys {
            assert!(keys.len() == parcel.len as usize, "a key for each record");
        }
        if part.is_empty() || !parcel.lease.is_granted() {
            return;
        }
        match (self.mode, keys) {
            (Mode::Any { .. }, _) => self.deal_any(parcel, part),
            (_, Keys::Same(key)) => {
                let lane = self.lane_of(key);
                self.deal_range(parcel, part, lane);
            }
            (_, Keys::Each(keys)) if self.one_lane => {
                for index in part {
                    let lane = self.lane_of(keys[index as usize]);
                    self.enqueue(lane, parcel, index, 1);
                }
            }
            (_, Keys::Each(keys)) => self.deal_each(parcel, keys, part),
        }
    }

    /// Whether another parcel should be dealt: some executor has less than it can take soon, and
    /// no lane that waits could fill it.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        if self.queued >= self.queued_max
            || self.parked + self.dead.len() >= self.parked_max
            || !self.again.is_empty()
        {
            return false;
        }
        if !self.lanes.is_empty() && self.lanes_queued == self.lanes.len() && !self.one_lane {
            // Whatever came would wait behind something.
            return false;
        }
        let hungry = |e: &Exec<L>| e.wants(self.one_lane) && e.lanes.is_empty();
        if self.one_lane && self.queued < self.execs.len() * self.batch_max as usize * 2 {
            return true;
        }
        self.free_lanes.is_empty() && self.execs.iter().any(hungry)
    }

    /// Whether records of this key would start soon, as far as their own lane goes: nothing waits
    /// in it yet.
    #[must_use]
    pub fn takes(&self, key: KeyHash) -> bool {
        if self.lanes.is_empty() || key.is_keyless() {
            return true;
        }
        self.lanes[self.lane_number(key)].queued == 0
    }

    /// The next group to ship. At most two are out for each executor.
    pub fn poll_run(&mut self, now: Now) -> Option<(ExecutorId, Group<L>)> {
        let execs = self.execs.len();
        for step in 0..execs {
            let e = (self.exec_turn + step) % execs;
            self.refill(e);
            if let Some(group) = self.execs[e].ship(now) {
                self.exec_turn = (e + 1) % execs;
                return Some((ExecutorId(e as u32), group));
            }
        }
        None
    }

    /// The next executor to tell about a lease that has ended.
    pub fn poll_recall(&mut self) -> Option<Recalled> {
        self.recalls.pop_front()
    }

    /// Lets the retries whose time has come go on.
    pub fn handle_timeout(&mut self, now: Now) {
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > now {
                break;
            }
            match entry.remove() {
                Due::Lane(l) => {
                    self.parked -= 1;
                    self.lanes[l as usize].flags &= !PARKED;
                    self.touch(l);
                }
                Due::DeadLetter(id) => self.dead_new.push_back(id),
                Due::Record(stretch) => {
                    self.parked -= 1;
                    self.queued += stretch.len as usize;
                    self.nodes.push(&mut self.again, stretch);
                }
            }
        }
    }

    /// When the next retry is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Now> {
        self.timers.first_key_value().map(|((due, _), _)| *due)
    }

    /// Records of a lease that an executor has, or is about to get: a drain is over at none.
    #[must_use]
    pub fn in_executors(&self, lease: &Lease) -> u64 {
        lease.out()
    }

    /// Records whose handler took longer than it may, so far.
    #[must_use]
    pub fn timed_out(&self) -> u64 {
        self.timed_out
    }

    /// Where the records are.
    #[must_use]
    pub fn load(&self) -> LoadSnapshot {
        LoadSnapshot {
            ready: self.execs.iter().map(|e| e.ready_records).sum(),
            queued: self.queued,
            parked: self.parked,
            held: self.dead.len(),
            out: self.execs.iter().map(|e| e.load - e.ready_records).sum(),
            lanes_busy: self.lanes.iter().filter(|lane| lane.out > 0).count(),
            lanes_queued: self.lanes_queued,
            oldest_group: self.execs.iter().filter_map(Exec::oldest_group).min(),
        }
    }

    fn deal_any(&mut self, parcel: &Arc<Parcel<L>>, part: Range<u32>) {
        parcel.lease.went_out(part.end - part.start);
        let mut index = part.start;
        while index < part.end {
            let e = self.pick();
            let exec = &mut self.execs[e];
            let room = exec.room().min(part.end - index);
            for index in index..index + room {
                exec.push_item(parcel, Item::new(LaneId::NONE, index));
            }
            exec.close_seg();
            index += room;
        }
    }

    fn deal_range(&mut self, parcel: &Arc<Parcel<L>>, part: Range<u32>, l: u32) {
        let records = part.end - part.start;
        self.mark_crowded();
        if self.one_lane || !self.may_deal(l) {
            self.enqueue(l, parcel, part.start, records);
            return;
        }
        let lane = &mut self.lanes[l as usize];
        lane.out += records;
        let exec = &mut self.execs[lane.exec as usize];
        parcel.lease.went_out(records);
        let mut index = part.start;
        while index < part.end {
            let len = exec.room().min(part.end - index);
            let stretch = Stretch {
                parcel: Arc::clone(parcel),
                index,
                len,
                tried: None,
                lane: LaneId(l),
            };
            exec.push_range(stretch, LaneId::NONE);
            index += len;
        }
    }

    fn deal_each(&mut self, parcel: &Arc<Parcel<L>>, keys: &[KeyHash], part: Range<u32>) {
        let mut out = 0;
        self.mark_crowded();
        let keys = &keys[part.start as usize..part.end as usize];
        for (key, index) in keys.iter().zip(part.start..) {
            let l = self.lane_of(*key);
            let lane = &mut self.lanes[l as usize];
            let crowded = self.execs[lane.exec as usize].crowded;
            let plain = lane.flags == 0 && lane.out > 0 && !crowded;
            if !plain && !self.may_deal(l) {
                self.enqueue(l, parcel, index, 1);
                continue;
            }
            let lane = &mut self.lanes[l as usize];
            lane.out += 1;
            out += 1;
            self.execs[lane.exec as usize].push_item(parcel, Item::new(LaneId(l), index));
        }
        self.execs.iter_mut().for_each(Exec::close_seg);
        parcel.lease.went_out(out);
    }

    /// Whether the lane's next record may go straight to an executor; binds the lane if need be.
    fn may_deal(&mut self, l: u32) -> bool {
        if self.lanes[l as usize].flags != 0 {
            return false;
        }
        if self.lanes[l as usize].out == 0 {
            let exec = self.pick();
            self.lanes[l as usize].exec = exec as u32;
            return true;
        }
        if self.should_move(l) {
            self.lanes[l as usize].flags |= MOVING;
            return false;
        }
        true
    }

    fn enqueue(&mut self, l: u32, parcel: &Arc<Parcel<L>>, index: u32, len: u32) {
        let lane = &mut self.lanes[l as usize];
        lane.queued += len;
        self.queued += len as usize;
        let joined = self
            .nodes
            .back_mut(&lane.queue)
            .is_some_and(|last| last.join(parcel, index, len));
        if !joined {
            let stretch = Stretch {
                parcel: Arc::clone(parcel),
                index,
                len,
                tried: None,
                lane: LaneId(l),
            };
            self.nodes.push(&mut lane.queue, stretch);
        }
        self.touch(l);
    }

    /// After any change to a lane outside the hot path: puts its flags right, and the lane into a
    /// list if it may go on. This is the one place where a lane that waits is found again.
    fn touch(&mut self, l: u32) {
        let lane = &mut self.lanes[l as usize];
        if lane.out == 0 {
            lane.flags &= !(RETURNING | TRIAL | MOVING);
            lane.queue.unmark();
            if self.moving == Some(l) {
                self.moving = None;
            }
        }
        lane.set(BLOCKED, lane.late > 0);
        lane.set(HELD, lane.held > 0);
        if (lane.queued > 0) != lane.is(QUEUED) {
            lane.set(QUEUED, lane.queued > 0);
            match lane.queued > 0 {
                true => self.lanes_queued += 1,
                false => self.lanes_queued -= 1,
            }
        }
        if lane.may_go(self.one_lane) && !lane.is(LISTED) {
            lane.flags |= LISTED;
            match lane.is_bound() {
                true => self.execs[lane.exec as usize].lanes.push_back(l),
                false => self.free_lanes.push_back(l),
            }
        }
    }

    fn lane_of(&mut self, key: KeyHash) -> u32 {
        if !key.is_keyless() {
            return self.lane_number(key) as u32;
        }
        let lanes = self.lanes.len() as u32;
        for _ in 0..ROTATION_TRIES.min(lanes) {
            self.turn = (self.turn + 1) % lanes;
            if self.lanes[self.turn as usize].flags & !MOVING == 0 {
                break;
            }
        }
        self.turn
    }

    fn lane_number(&self, key: KeyHash) -> usize {
        key.lane(self.lanes.len() as u32) as usize
    }
}

impl Lane {
    fn new() -> Self {
        Lane {
            flags: 0,
            out: 0,
            late: 0,
            exec: 0,
            queue: Chain::EMPTY,
            queued: 0,
            held: 0,
            due: Now(0),
        }
    }

    fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    fn set(&mut self, flag: u16, on: bool) {
        match on {
            true => self.flags |= flag,
            false => self.flags &= !flag,
        }
    }

    fn is_bound(&self) -> bool {
        self.out > 0 || self.is(SEALED)
    }

    /// Whether records from its queue may be released.
    fn may_go(&self, one_lane: bool) -> bool {
        self.is(QUEUED)
            && !self.is(BLOCKED | RETURNING | PARKED | HELD)
            && (self.out == 0 || !(one_lane || self.is(MOVING | TRIAL)))
    }
}
