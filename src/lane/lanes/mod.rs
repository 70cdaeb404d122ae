//! The engine's side: deals, holds what waits, takes results back.

mod aside;
mod back;
mod deal;
mod exec;
mod held;
mod keys;
mod lease;
mod shed;
mod view;
mod waits;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub use self::held::{DeadLetter, DeadLetterId};

pub use self::view::{LaneView, Waits};

use self::exec::Exec;
use self::held::Held;
use self::keys::KeyTable;
use super::LaneId;
use super::chain::{Chain, Nodes};
use super::group::{Age, Group, Lease, Stretch};
use super::hash::KeyHash;
use super::permits::Permits;
use super::retry::{Exhausted, Jitter, Retry, Why};
use super::runner::{Recall, RunnerConfig};
use super::watch::Watch;
use crate::ids::{ExecutorId, LeaseId};
use crate::time::{Now, earliest};

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
    /// A lane for each live key, at most `at_once` records at once over all of them. Records
    /// without a key run in any order.
    PerKey {
        /// How many at once.
        at_once: u32,
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
    /// How long a batch that is not full waits for more records. It ends early where intake is
    /// stopped (see [`Lanes::set_intake`]).
    pub batch_wait: Duration,
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
            batch_wait: Duration::ZERO,
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
                Mode::PerKey { at_once } => Some(Permits::new(at_once)),
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
    /// Keys that have a lane of their own now, under [`Mode::PerKey`].
    pub keys: usize,
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
    free_lanes: Waiting,
    /// Records without a lane whose retry is due.
    again: Chain,
    timers: BTreeMap<(Now, u64), Due<L>>,
    timer_next: u64,
    recalls: VecDeque<Recalled>,
    /// Where the rotation of records without a key stands.
    turn: u32,
    /// Whether most results of some executor come late.
    pends: bool,
    /// Counts the lanes that were put into a list.
    listed: u64,
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
    /// Which lane each live key has, where a key has one of its own.
    keys: Option<KeyTable>,
    /// How long a batch waits for more; zero where batches are not formed.
    batch_wait: Duration,
    intake: bool,
    /// Whether records that wait without a lane go before lanes that wait.
    loose_turn: bool,
    /// Lanes that have begun to wait for a full batch; their time begins when it is next known.
    short: Vec<u32>,
}

/// Lanes that may go on: where results come late the one whose next record is the oldest first, so
/// that a lane that has fallen behind catches up; elsewhere in turns, which costs less.
type Waiting = BinaryHeap<Reverse<(Age, u32)>>;

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
    /// Its records of leases at rest.
    aside: u32,
    /// When the record at the front is due, while the lane is parked; or when a batch that is not
    /// full is handed over, while it waits for more.
    due: Now,
    /// Whose lane it is, where a key has a lane of its own; keyless while it is nobody's.
    key: KeyHash,
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
/// Its batch is not full and waits for more.
const SHORT: u16 = 512;
/// Its batch has waited long enough.
const RIPE: u16 = 1024;

/// Records that were set aside are in its queue again, and there may be others to come back that
/// belong between or behind them.
const REJOINED: u16 = 2048;

/// What a timer is for.
enum Due<L> {
    Lane(u32),
    /// A record without a lane.
    Record(Stretch<L>),
    DeadLetter(u64),
    /// A lane's batch has waited long enough.
    Batch(u32),
}

/// Timers of one moment are told apart by a number: that of a lane, or one of these and a number
/// that is counted up.
const TIMERS_OF_BATCHES: u64 = 1 << 61;
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
            Mode::Any { .. } | Mode::PerKey { .. } => 0,
            Mode::Fixed { lanes } => lanes.clamp(1, LaneId::NONE.0),
        };
        let has_lanes = matches!(config.mode, Mode::Fixed { .. } | Mode::PerKey { .. });
        let one_lane = has_lanes && (config.blocking || config.batch_max > 1);
        let executors = match config.mode {
            Mode::InTurn => 1,
            _ => config.executors.max(1),
        };
        let groups_max = if config.blocking { 1 } else { 2 };
        let at_once = match config.mode {
            Mode::InTurn => 1,
            Mode::Any { workers: n } | Mode::Fixed { lanes: n } | Mode::PerKey { at_once: n } => n,
        };
        // Enough for everything that may be pending there to be replaced twice.
        let late_max = (at_once / executors)
            .saturating_mul(2)
            .max(exec::LATE_RECORDS_MIN);
        // A call that blocks its thread must hold up nothing that could run elsewhere.
        let size_max = match config.blocking && !has_lanes {
            true => config.batch_max.max(1),
            false => exec::GROUP_RECORDS_MAX.max(config.batch_max),
        };
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
                .map(|_| Exec::new(groups_max, (config.batch_max.max(1), size_max), late_max))
                .collect(),
            free_lanes: Waiting::new(),
            again: Chain::EMPTY,
            timers: BTreeMap::new(),
            timer_next: 0,
            recalls: VecDeque::new(),
            turn: 0,
            pends: false,
            listed: 0,
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
            keys: matches!(config.mode, Mode::PerKey { .. }).then(KeyTable::default),
            batch_wait: match config.batch_max {
                0 | 1 => Duration::ZERO,
                _ => config.batch_wait,
            },
            intake: true,
            loose_turn: false,
            short: Vec::new(),
        }
    }

    /// Whether another parcel should be dealt: some executor has less than it can take soon, and
    /// no lane that waits could fill it.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        if self.queued >= self.queued_max
            || self.parked + self.dead.len() >= self.parked_max
            || (!self.again.is_empty() && !self.one_lane)
        {
            return false;
        }
        let fixed = !self.lanes.is_empty() && self.keys.is_none();
        if fixed && self.lanes_queued == self.lanes.len() && !self.one_lane {
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
        if key.is_keyless() {
            return true;
        }
        let lane = match &self.keys {
            Some(keys) => keys.get(key).map(|l| l as usize),
            None => (!self.lanes.is_empty()).then(|| self.lane_number(key)),
        };
        lane.is_none_or(|l| self.lanes[l].queued == 0)
    }

    /// The next group to ship. At most two are out for each executor.
    pub fn poll_run(&mut self, now: Now) -> Option<(ExecutorId, Group<L>)> {
        let execs = self.execs.len();
        self.begin_waits(now);
        if self.keys.as_mut().is_some_and(KeyTable::shrink) {
            self.lanes = Vec::new();
        }
        for step in 0..execs {
            let e = (self.exec_turn + step) % execs;
            self.refill(e);
            if self.waits_for_more(e, now) {
                continue;
            }
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
                Due::Batch(l) if self.lanes[l as usize].is(SHORT) => self.ripen(l),
                Due::Batch(_) => {}
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
        let timer = self.timers.first_key_value().map(|((due, _), _)| *due);
        earliest(timer, self.batch_deadline())
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
            keys: self.keys.as_ref().map_or(0, KeyTable::len),
            oldest_group: self.execs.iter().filter_map(Exec::oldest_group).min(),
        }
    }

    /// After any change to a lane outside the hot path: puts its flags right, and the lane into a
    /// list if it may go on. This is the one place where a lane that waits is found again.
    fn touch(&mut self, l: u32) {
        let lane = &mut self.lanes[l as usize];
        if lane.out == 0 {
            lane.flags &= !(RETURNING | TRIAL | MOVING | REJOINED);
            lane.queue.unmark();
            if self.moving == Some(l) {
                self.moving = None;
            }
        }
        lane.set(BLOCKED, lane.late > 0);
        lane.set(HELD, lane.held > 0);
        if !self.batch_wait.is_zero() && self.one_lane {
            self.wait_for_batch(l);
        }
        let lane = &mut self.lanes[l as usize];
        if (lane.queued > 0) != lane.is(QUEUED) {
            lane.set(QUEUED, lane.queued > 0);
            match lane.queued > 0 {
                true => self.lanes_queued += 1,
                false => self.lanes_queued -= 1,
            }
        }
        if lane.may_go(self.one_lane) && !lane.is(LISTED) {
            lane.flags |= LISTED;
            self.listed += 1;
            let front = self.nodes.front(&lane.queue).filter(|_| self.pends);
            let age = front.map_or((Now(0), self.listed), Stretch::age);
            match lane.is_bound() {
                true => self.execs[lane.exec as usize].lanes.push(Reverse((age, l))),
                false => self.free_lanes.push(Reverse((age, l))),
            }
        }
        if self.keys.is_some() && self.lanes[l as usize].is_idle() {
            self.end_lane(l);
        }
    }

    /// Nothing of a key is held any more: its lane may be another's. Where the Runner has sealed
    /// it, the next group tells it that nothing more comes of that; a lane is never two things to
    /// one Runner.
    fn end_lane(&mut self, l: u32) {
        let lane = &mut self.lanes[l as usize];
        if lane.is(SEALED) {
            self.execs[lane.exec as usize].push_open(LaneId(l));
        }
        lane.flags = 0;
        let key = std::mem::replace(&mut lane.key, KeyHash::KEYLESS);
        if let Some(keys) = &mut self.keys {
            keys.remove(key, l);
        }
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
            aside: 0,
            due: Now(0),
            key: KeyHash::KEYLESS,
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

    /// Whether nothing of it is held anywhere. Where results and the group that marks them have
    /// overtaken each other, `late` is not zero before both are here.
    fn is_idle(&self) -> bool {
        let counts = self.out + self.queued + self.held + self.aside;
        counts == 0 && self.late == 0 && !self.is(LISTED) && !self.key.is_keyless()
    }

    /// Whether records from its queue may be released.
    fn may_go(&self, one_lane: bool) -> bool {
        self.is(QUEUED)
            && !self.is(BLOCKED | RETURNING | PARKED | HELD | SHORT)
            && (self.out == 0 || !(one_lane || self.is(MOVING | TRIAL)))
    }
}
