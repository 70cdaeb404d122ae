//! A subscription in small: lanes, runners, channels between them that deliver when told, and
//! handlers that do as a script says. Everything that starts, ends or settles is checked.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::ids::{ExecutorId, LeaseId};
use crate::lane::{
    DeadLetter, Done, Exhausted, Group, Handler, KeyHash, Keys, LaneHasher, Lanes, LanesConfig,
    Lease, LeaseState, Mode, Note, Outcome, Outcomes, Parcel, Permits, Recall, Runner, Sink, Taken,
};
use crate::settle::{Offsets, Tracker};
use crate::time::Now;

/// A parcel's load: each record's key. `None` is a record without one.
pub type Load = Vec<Option<u8>>;
/// A record, by lease and ordinal.
pub type Id = (u64, u64);

/// What one handler call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Ready at once.
    Now(Say),
    /// Pending until the test completes it.
    Wait,
    /// Pending; wakes itself this often, then says.
    Yield(u8, Say),
    PanicInCall,
    PanicInPoll,
    /// Pending once, then panics.
    PanicLater,
    /// Says, and panics when its future is dropped.
    PanicInDrop,
}

/// What the outcomes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    Ack,
    Drop,
    Retry,
    RetryAfter(u16),
    Fail,
    DeadLetter,
    Stop,
    /// A mix for the records of a batch, from this seed; sometimes too few.
    Each(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Dealt,
    Running,
    /// Acked or dropped by the handler, or given up: may settle.
    Final,
    Settled,
}

pub struct Run {
    pub records: Vec<Id>,
    pub keys: Vec<Option<u8>>,
    pub waker: Option<Waker>,
    pub told: Option<Say>,
}

/// What handlers and the test share.
pub struct Script {
    pub next: VecDeque<Act>,
    /// Acts once `next` is used up.
    pub otherwise: Act,
    pub runs: BTreeMap<u64, Run>,
    run_next: u64,
    pub records: HashMap<Id, (State, Option<u8>)>,
    /// Records of each key that have not come to a final outcome, in the order of dealing.
    pub order: HashMap<u8, VecDeque<Id>>,
    /// Every start, in order.
    pub starts: Vec<Id>,
    pub ordered: bool,
    pub at_once_max: usize,
    pub at_once_seen: usize,
    /// What went wrong inside handlers: a panic there would be caught.
    pub broken: Vec<String>,
}

pub struct Scripted(pub Arc<Mutex<Script>>);

pub struct ScriptedRun {
    id: u64,
    act: Act,
    script: Arc<Mutex<Script>>,
    panics: bool,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Script {
    fn begin(&mut self, taken: &Taken<Load>) -> (u64, Act) {
        let mut records = Vec::new();
        let mut keys = Vec::new();
        let mut in_call: HashMap<u8, usize> = HashMap::new();
        for record in taken.records() {
            let (parcel, index) = (record.parcel, record.index);
            let granted = parcel.lease.is_granted();
            let id = (parcel.lease.id().0, parcel.first_ordinal + u64::from(index));
            let key = parcel.load[index as usize];
            let (state, _) = self.records.get_mut(&id).expect("dealt");
            let idle = *state == State::Dealt;
            *state = State::Running;
            self.expect(granted, || format!("{id:?} started under an ended lease"));
            self.expect(idle, || format!("{id:?} started though it runs or is done"));
            if let (true, Some(key)) = (self.ordered, key) {
                let place = in_call.entry(key).or_insert(0);
                let order = self.order.get(&key).expect("dealt");
                let turn = order.get(*place).copied();
                *place += 1;
                let busy = self.runs.values().any(|run| run.keys.contains(&Some(key)));
                self.expect(turn == Some(id), || format!("{id:?} in place of {turn:?}"));
                self.expect(!busy, || format!("key {key} runs twice at once"));
            }
            self.starts.push(id);
            records.push(id);
            keys.push(key);
        }
        let run = self.run_next;
        self.run_next += 1;
        self.runs.insert(
            run,
            Run {
                records,
                keys,
                waker: None,
                told: None,
            },
        );
        self.at_once_seen = self.at_once_seen.max(self.runs.len());
        let within = self.runs.len() <= self.at_once_max;
        self.expect(within, || "more at once than the cap".to_owned());
        (run, self.next.pop_front().unwrap_or(self.otherwise))
    }

    fn expect(&mut self, holds: bool, or: impl FnOnce() -> String) {
        if !holds {
            self.broken.push(or());
        }
    }

    /// A run's end: which records are final now. `say` is none for a panic or a cancelled run.
    fn end(&mut self, run: u64, say: Option<Say>) -> Outcomes {
        let run = self.runs.remove(&run).expect("runs");
        let outcome = |say: Say| match say {
            Say::Ack => Outcome::Ack,
            Say::Drop => Outcome::Drop,
            Say::Retry | Say::Each(_) => Outcome::Retry,
            Say::RetryAfter(ms) => Outcome::RetryAfter(Duration::from_millis(ms.into())),
            Say::Fail => Outcome::Failed("as told".into()),
            Say::DeadLetter => Outcome::dead_letter("no such account"),
            Say::Stop => Outcome::Stop,
        };
        let outcomes: Vec<Outcome> = match say {
            None => Vec::new(),
            Some(Say::Each(seed)) => (0..run.records.len())
                .map(|n| match (usize::from(seed) >> (n % 7)) & 1 {
                    0 => Outcome::Ack,
                    _ => Outcome::Retry,
                })
                .take(run.records.len() - usize::from(seed & 128 != 0))
                .collect(),
            Some(say) => vec![outcome(say); run.records.len()],
        };
        for (n, (id, key)) in run.records.iter().zip(&run.keys).enumerate() {
            let is_final = outcomes.get(n).is_some_and(Outcome::settles);
            if let Some((state, _)) = self.records.get_mut(id) {
                *state = if is_final { State::Final } else { State::Dealt };
            }
            if is_final {
                self.leaves(*id, *key);
            }
        }
        match say {
            Some(Say::Each(_)) => Outcomes::Each(outcomes),
            _ => Outcomes::All(outcomes.into_iter().next().unwrap_or(Outcome::Retry)),
        }
    }

    /// Something other than its handler brought the record to its end.
    fn now_final(&mut self, id: Id) {
        let (state, key) = self.records.get_mut(&id).expect("dealt");
        *state = State::Final;
        let key = *key;
        self.leaves(id, key);
    }

    fn leaves(&mut self, id: Id, key: Option<u8>) {
        if let Some(order) = key.and_then(|key| self.order.get_mut(&key)) {
            match order.front() == Some(&id) {
                true => drop(order.pop_front()),
                false => order.retain(|other| *other != id),
            }
        }
    }
}

impl Handler<Load> for Scripted {
    type Run = ScriptedRun;

    fn run(&self, taken: Taken<Load>) -> ScriptedRun {
        let (id, act) = lock(&self.0).begin(&taken);
        let run = ScriptedRun {
            id,
            act,
            script: Arc::clone(&self.0),
            panics: act == Act::PanicInDrop,
        };
        assert!(act != Act::PanicInCall, "told to panic in the call");
        run
    }
}

impl Future for ScriptedRun {
    type Output = Outcomes;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcomes> {
        let script = Arc::clone(&self.script);
        let mut script = lock(&script);
        match self.act {
            Act::Now(say) => Poll::Ready(script.end(self.id, Some(say))),
            // Its drop panics: the record counts as failed.
            Act::PanicInDrop => {
                script.end(self.id, None);
                Poll::Ready(Outcomes::All(Outcome::Ack))
            }
            Act::Wait => {
                let id = self.id;
                let run = script.runs.get_mut(&id).expect("runs");
                match run.told {
                    Some(say) => Poll::Ready(script.end(id, Some(say))),
                    None => {
                        run.waker = Some(cx.waker().clone());
                        Poll::Pending
                    }
                }
            }
            Act::Yield(0, say) => Poll::Ready(script.end(self.id, Some(say))),
            Act::Yield(n, say) => {
                self.act = Act::Yield(n - 1, say);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Act::PanicLater => {
                self.act = Act::PanicInPoll;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Act::PanicInCall | Act::PanicInPoll => {
                drop(script);
                panic!("told to panic in the poll");
            }
        }
    }
}

impl Drop for ScriptedRun {
    fn drop(&mut self) {
        let mut script = lock(&self.script);
        if script.runs.contains_key(&self.id) {
            script.end(self.id, None);
        }
        drop(script);
        if self.panics && !std::thread::panicking() {
            panic!("told to panic in the drop");
        }
    }
}

#[derive(Default)]
pub struct Bell {
    rung: AtomicBool,
    pub count: AtomicUsize,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        self.count.fetch_add(1, Ordering::SeqCst);
    }
}

enum Message {
    Group(Group<Load>),
    Recall(LeaseId, Recall),
}

pub struct Executor {
    pub runner: Runner<Load, Scripted>,
    pub bell: Arc<Bell>,
    to: VecDeque<Message>,
    back: VecDeque<Done<Load>>,
}

pub struct Granted {
    pub lease: Arc<Lease>,
    pub tracker: Tracker,
    pub how: LeaseState,
}

/// The engine's place for results.
pub struct Ledger {
    pub leases: BTreeMap<u64, Granted>,
    pub notes: Vec<Note>,
    pub settled: Vec<Id>,
    script: Arc<Mutex<Script>>,
}

impl Sink for Ledger {
    fn settled(&mut self, lease: &Arc<Lease>, ranges: impl Iterator<Item = (u64, u64)>) {
        let granted = self.leases.get_mut(&lease.id().0).expect("known");
        assert_ne!(granted.how, LeaseState::Lost, "settled under a lost lease");
        let mut script = lock(&self.script);
        for (first, len) in ranges {
            assert!(len > 0);
            granted.tracker.settle_range(first, len).expect("once");
            for ordinal in first..first + len {
                let id = (lease.id().0, ordinal);
                let (state, _) = script.records.get_mut(&id).expect("dealt");
                assert_eq!(*state, State::Final, "{id:?} settled without an outcome");
                *state = State::Settled;
                self.settled.push(id);
            }
        }
        let before = granted.tracker.watermark();
        granted.tracker.advance();
        assert!(granted.tracker.watermark() >= before, "I2");
    }

    fn note(&mut self, note: Note) {
        if let Note::GaveUp {
            lease,
            ordinal,
            then: Exhausted::Drop,
            ..
        } = &note
        {
            lock(&self.script).now_final((lease.0, *ordinal));
        }
        self.notes.push(note);
    }
}

pub struct World {
    pub now: Now,
    pub lanes: Lanes<Load>,
    pub execs: Vec<Executor>,
    pub ledger: Ledger,
    pub script: Arc<Mutex<Script>>,
    pub permits: Option<Arc<Permits>>,
    pub hasher: LaneHasher,
    lease_next: u64,
    /// Handler calls that one poll may make; the rest of the poll's turn is over then.
    pub budget: usize,
    /// What handlers take for each record of a group, as the clock shows it.
    pub record_nanos: u64,
    /// Dead letters that are being written.
    pub writes: Vec<DeadLetter<Load>>,
}

impl World {
    pub fn new(config: &LanesConfig) -> World {
        let (ordered, at_once_max) = match config.mode {
            Mode::InTurn => (true, 1),
            Mode::Any { workers } => (false, workers as usize),
            Mode::Fixed { .. } => (true, usize::MAX),
            Mode::PerKey { at_once } => (true, at_once as usize),
        };
        let script = Arc::new(Mutex::new(Script {
            next: VecDeque::new(),
            otherwise: Act::Now(Say::Ack),
            runs: BTreeMap::new(),
            run_next: 0,
            records: HashMap::new(),
            order: HashMap::new(),
            starts: Vec::new(),
            ordered,
            at_once_max,
            at_once_seen: 0,
            broken: Vec::new(),
        }));
        let runner = config.runner();
        let execs = (0..config.executors).map(|_| Executor {
            runner: Runner::new(Scripted(Arc::clone(&script)), &runner),
            bell: Arc::default(),
            to: VecDeque::new(),
            back: VecDeque::new(),
        });
        World {
            now: Now(1),
            lanes: Lanes::new(config),
            execs: execs.collect(),
            ledger: Ledger {
                leases: BTreeMap::new(),
                notes: Vec::new(),
                settled: Vec::new(),
                script: Arc::clone(&script),
            },
            script,
            permits: runner.permits,
            hasher: LaneHasher::new([7; 32]),
            lease_next: 1,
            budget: usize::MAX,
            record_nanos: 0,
            writes: Vec::new(),
        }
    }

    pub fn grant(&mut self, start: i64) -> u64 {
        let id = self.lease_next;
        self.lease_next += 1;
        self.ledger.leases.insert(
            id,
            Granted {
                lease: Lease::new(LeaseId(id)),
                tracker: Tracker::new(start),
                how: LeaseState::Granted,
            },
        );
        id
    }

    pub fn key(&self, key: Option<u8>) -> KeyHash {
        key.map_or(KeyHash::KEYLESS, |key| self.hasher.key("t", &[key]))
    }

    /// Deals records with these keys. With `same` they are one lane's: all get the first key.
    pub fn deal(&mut self, lease: u64, keys: &[Option<u8>], same: bool) {
        let granted = self.ledger.leases.get_mut(&lease).expect("granted");
        if granted.how != LeaseState::Granted || keys.is_empty() {
            return;
        }
        let mut load = keys.to_vec();
        if same {
            load.fill(keys[0]);
        }
        let base = granted.tracker.position();
        let len = load.len() as u32;
        let dense = Offsets::Dense { base, len };
        let to = base + i64::from(len);
        let first = granted.tracker.push(dense, to, 0).expect("rises");
        let lease_arc = Arc::clone(&granted.lease);
        let hashes: Vec<KeyHash> = load.iter().map(|key| self.key(*key)).collect();
        let mut script = lock(&self.script);
        for (key, ordinal) in load.iter().zip(first..) {
            let id = (lease, ordinal);
            script.records.insert(id, (State::Dealt, *key));
            if let Some(key) = key {
                script.order.entry(*key).or_default().push_back(id);
            }
        }
        drop(script);
        let parcel = Arc::new(Parcel {
            lease: lease_arc,
            first_ordinal: first,
            taken_at: self.now,
            len,
            load,
        });
        match same {
            true => self.lanes.deal(&parcel, Keys::Same(hashes[0])),
            false => self.lanes.deal(&parcel, Keys::Each(&hashes)),
        }
    }

    pub fn end_lease(&mut self, lease: u64, how: LeaseState) {
        let granted = self.ledger.leases.get_mut(&lease).expect("granted");
        granted.how = granted.how.max(how);
        self.lanes.end_lease(&granted.lease, how);
        let mut script = lock(&self.script);
        for order in script.order.values_mut() {
            order.retain(|id| id.0 != lease);
        }
    }

    /// Ships what may be shipped.
    pub fn ship(&mut self) {
        while let Some((ExecutorId(e), group)) = self.lanes.poll_run(self.now) {
            assert!(!group.is_empty());
            self.execs[e as usize].to.push_back(Message::Group(group));
        }
        while let Some(recalled) = self.lanes.poll_recall() {
            let message = Message::Recall(recalled.lease, recalled.what);
            self.execs[recalled.executor.0 as usize]
                .to
                .push_back(message);
        }
    }

    /// Hands one message to an executor. Whether there was one.
    pub fn deliver(&mut self, e: usize) -> bool {
        let exec = &mut self.execs[e];
        match exec.to.pop_front() {
            Some(Message::Group(group)) => exec.runner.give(group),
            Some(Message::Recall(lease, what)) => exec.runner.recall(lease, what),
            None => return false,
        }
        exec.bell.rung.store(true, Ordering::SeqCst);
        true
    }

    /// Gives an executor a group that the test shipped itself.
    pub fn give(&mut self, e: usize, group: Group<Load>) {
        self.execs[e].to.push_back(Message::Group(group));
        self.deliver(e);
    }

    /// Polls an executor as a runtime would: only if it was woken, until it is pending.
    pub fn poll(&mut self, e: usize) -> bool {
        let budget = self.budget;
        let exec = &mut self.execs[e];
        if !exec.bell.rung.swap(false, Ordering::SeqCst) {
            return false;
        }
        let waker = Waker::from(Arc::clone(&exec.bell));
        let mut cx = Context::from_waker(&waker);
        let mut left = budget;
        let mut may_start = || {
            let yes = left > 0;
            left = left.saturating_sub(1);
            yes
        };
        while let Poll::Ready(done) = exec.runner.poll(&mut cx, self.now, &mut may_start) {
            if let Done::Group(group) = &done {
                let took = self.record_nanos * group.len() as u64;
                self.now = self.now + Duration::from_nanos(took);
            }
            exec.back.push_back(done);
        }
        let broken = lock(&self.script).broken.clone();
        assert!(broken.is_empty(), "{broken:?}");
        true
    }

    /// Takes one result of an executor back.
    pub fn take_back(&mut self, e: usize) -> bool {
        let executor = ExecutorId(e as u32);
        match self.execs[e].back.pop_front() {
            Some(Done::Group(group)) => {
                self.lanes
                    .take_back(self.now, executor, group, &mut self.ledger);
            }
            Some(Done::Late(lates)) => {
                self.lanes.late(self.now, executor, lates, &mut self.ledger);
            }
            None => return false,
        }
        true
    }

    /// Everything that can happen without time or a handler's end happens.
    pub fn run(&mut self) {
        let mut turns = 0;
        loop {
            self.ship();
            let mut busy = false;
            for e in 0..self.execs.len() {
                while self.deliver(e) {
                    busy = true;
                }
                busy |= self.poll(e);
                while self.take_back(e) {
                    busy = true;
                }
            }
            while let Some(letter) = self.lanes.poll_dead_letter() {
                self.writes.push(letter);
            }
            if !busy {
                break;
            }
            turns += 1;
            assert!(turns < 100_000, "never comes to rest");
        }
    }

    pub fn advance(&mut self, by: Duration) {
        self.go_to(self.now + by);
    }

    pub fn go_to(&mut self, now: Now) {
        self.now = now;
        self.lanes.handle_timeout(now);
        for exec in &self.execs {
            if exec.runner.next_deadline().is_some_and(|at| at <= now) {
                exec.bell.rung.store(true, Ordering::SeqCst);
            }
        }
    }

    /// When something happens by itself.
    pub fn next_deadline(&self) -> Option<Now> {
        let calls = self.execs.iter().filter_map(|e| e.runner.next_deadline());
        calls.chain(self.lanes.next_deadline()).min()
    }

    /// A dead letter's write ends: well, or to be tried again after this. Whether the lanes still
    /// held it.
    pub fn written(&mut self, nth: usize, failed: Option<Duration>) -> bool {
        let letter = self.writes.remove(nth);
        let id = (letter.lease().0, letter.ordinal());
        let lost = self.ledger.leases[&id.0].how == LeaseState::Lost;
        if let Some(wait) = failed {
            return self.lanes.dead_letter_failed(letter.id, self.now + wait);
        }
        if !lost {
            lock(&self.script).now_final(id);
        }
        let held = self.lanes.dead_letter_done(letter.id, &mut self.ledger);
        assert_eq!(held, !lost, "{id:?}");
        held
    }

    /// Ends a waiting run.
    pub fn complete(&mut self, run: u64, say: Say) {
        let mut script = lock(&self.script);
        let run = script.runs.get_mut(&run).expect("runs");
        run.told = Some(say);
        let waker = run.waker.take();
        drop(script);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Runs that wait to be completed.
    pub fn waiting(&self) -> Vec<u64> {
        let script = lock(&self.script);
        let waits = |run: &Run| run.waker.is_some() && run.told.is_none();
        script
            .runs
            .iter()
            .filter(|(_, run)| waits(run))
            .map(|(id, _)| *id)
            .collect()
    }

    pub fn starts(&self) -> Vec<Id> {
        lock(&self.script).starts.clone()
    }

    pub fn tell(&mut self, acts: impl IntoIterator<Item = Act>) {
        lock(&self.script).next.extend(acts);
    }

    pub fn otherwise(&mut self, act: Act) {
        lock(&self.script).otherwise = act;
    }

    pub fn watermark(&self, lease: u64) -> i64 {
        self.ledger.leases[&lease].tracker.watermark()
    }

    pub fn open(&self, lease: u64) -> u64 {
        self.ledger.leases[&lease].tracker.open()
    }

    /// Lets everything end well, then checks that nothing is left: no record open under a granted
    /// lease (I5, I8), no count that is not zero (I6, E10).
    pub fn finish(&mut self) {
        self.budget = usize::MAX;
        self.otherwise(Act::Now(Say::Ack));
        lock(&self.script).next.clear();
        self.run_out();
        self.check_rest();
    }

    /// Runs until nothing is left that time or an ack could move.
    pub fn run_out(&mut self) {
        for _ in 0..100_000 {
            self.run();
            let waiting = self.waiting();
            if let Some(run) = waiting.first() {
                self.complete(*run, Say::Ack);
                continue;
            }
            if !self.writes.is_empty() {
                self.written(0, None);
                continue;
            }
            match self.next_deadline() {
                Some(due) => self.go_to(due),
                None => return,
            }
        }
        panic!("never comes to rest");
    }

    fn check_rest(&self) {
        for (id, granted) in &self.ledger.leases {
            if granted.how == LeaseState::Granted {
                assert_eq!(granted.tracker.open(), 0, "records of lease {id} are stuck");
                assert_eq!(granted.tracker.watermark(), granted.tracker.position());
            }
            assert_eq!(self.lanes.in_executors(&granted.lease), 0);
        }
        assert_eq!(self.lanes.load(), Default::default());
        for exec in &self.execs {
            assert!(exec.runner.is_idle());
        }
        if let Some(permits) = &self.permits {
            assert_eq!(permits.taken(), 0);
        }
        let script = lock(&self.script);
        assert!(script.runs.is_empty());
        let starts: BTreeSet<Id> = script.starts.iter().copied().collect();
        for id in &self.ledger.settled {
            assert!(starts.contains(id), "settled, but never run");
        }
    }
}
