//! `World`: engines, the broker's core, a network and a clock that are values.
//!
//! One thread, one seed, virtual time. A test builds a world, lets it run until something holds,
//! injects what it likes on the way, and asks what the handlers saw. The engines are the
//! library's own, unchanged; so is the broker.

use crate::checks::{Book, Commits, Lane};
use crate::handlers::{Executor, Handled, LaneOf, Script, Shop, Timers, executor};
mod letters;
mod network;
mod watch;

use bytes::Bytes;
use laneway::broker::{Cluster, ConnId, KeyValue};
use laneway::engine::{
    Command, CommitMode, Config, Engine, Event, Hook, HookId, LaneKey, LinkEvent, Snapshot, Source,
};
use laneway::ids::{CommandId, LinkId, TopicPartition};
use laneway::lane::{Exhausted, Mode};
use laneway::sasl::Credentials;
use laneway::time::Now;
use laneway::wire::Framer;
use laneway::{Error, ErrorKind, OffsetMap, Record};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Steps after which a test that waits for something has waited too long.
const STEPS_MAX: u64 = 5_000_000;

/// Steps at one moment: more means that something spins.
const STEPS_AT_ONCE_MAX: u64 = 20_000;

/// Every so many steps the dearer checks are made.
const CHECK_EVERY: u64 = 64;

struct Member {
    engine: Engine,
    executors: Vec<Box<dyn Executor>>,
    /// When the engine or an executor wants a turn, as of the last time it was asked.
    deadline: Option<Now>,
    links: BTreeMap<LinkId, Link>,
    /// What the kernel keeps for a frozen member, in order.
    kept: VecDeque<(LinkId, LinkEvent)>,
    /// Groups out, for each executor.
    groups_out: Vec<u32>,
    /// Bytes that may be held: the budget and one batch.
    bytes_max: u64,
    /// Records that a partition may run above its watermark.
    ahead_max: u64,
    /// Whether it is a group's member.
    in_group: bool,
    /// The group whose offset maps it reads.
    maps_of: Option<Arc<str>>,
    events: Vec<Event>,
    finished: Option<Result<(), Error>>,
    replies: Vec<(CommandId, Result<(), Error>)>,
    /// What the member's provider of credentials says; none: nothing, ever.
    provider: Option<Provider>,
    credentials_wanted: u32,
    /// A killed member does nothing any more.
    alive: bool,
    /// A frozen one does nothing for now.
    frozen: bool,
}

struct Link {
    conn: Option<ConnId>,
    /// The library's own: what a fault script makes of the bytes is cut as on a socket.
    framer: Framer,
    /// When the last byte on its way arrives, each way: a connection keeps order.
    to_broker: Now,
    to_engine: Now,
}

/// What a member's hook does: how long it takes, and how it ends.
pub type HookPlan = Arc<dyn Fn(usize, &Hook) -> (Duration, Result<(), Error>) + Send + Sync>;

/// One run of a hook.
#[derive(Clone, Debug)]
pub struct HookRun {
    /// Whose.
    pub member: usize,
    /// Its number there.
    pub id: HookId,
    /// What it was told.
    pub hook: Hook,
    /// When it began.
    pub began: Now,
    /// When it ended, or was dropped.
    pub ended: Option<Now>,
    /// Whether it was dropped.
    pub dropped: bool,
}

enum Happening {
    HookEnds {
        member: usize,
        id: HookId,
        result: Result<(), Error>,
    },
    Dialled {
        member: usize,
        link: LinkId,
        port: u16,
        until: Now,
    },
    ToBroker {
        conn: ConnId,
        frame: Bytes,
    },
    ToEngine {
        member: usize,
        link: LinkId,
        event: LinkEvent,
    },
    Bytes {
        member: usize,
        link: LinkId,
        bytes: Bytes,
    },
    HungUp {
        conn: ConnId,
    },
    Provided {
        member: usize,
        came: Result<Credentials, Error>,
    },
}

/// A provider of credentials: the brokers and the time, and what it says, if anything.
pub type Provider = Box<dyn FnMut(&mut Cluster, Now) -> Option<Result<Credentials, Error>>>;

/// See the [module](self).
pub struct World {
    now: Now,
    /// The brokers. Scripted faults, crashes and so on are its own business.
    pub cluster: Cluster,
    members: Vec<Member>,
    timers: Arc<Timers>,
    book: Arc<Mutex<Book>>,
    commits: Commits,
    queue: BinaryHeap<Reverse<(Now, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    conns: BTreeMap<ConnId, (usize, LinkId, i32)>,
    sequence: u64,
    rng: u64,
    /// Pairs that cannot talk: member, node. Bytes between them vanish without a word.
    mute: Vec<(usize, i32)>,
    /// Pairs between which what the node says vanishes.
    half_mute: Vec<(usize, i32)>,
    /// Connections that lost something on the way: nothing arrives on them any more.
    deaf: BTreeSet<ConnId>,
    /// Connections that lost an answer: no other arrives.
    half_deaf: BTreeSet<ConnId>,
    ports: BTreeMap<u16, i32>,
    /// How long a frame is on its way at most.
    latency_max: Duration,
    steps: u64,
    steps_at_once: u64,
    grants: Vec<(usize, TopicPartition, Now)>,
    /// Where each partition of a member was, under the grant that it has (I4).
    positions: BTreeMap<(usize, TopicPartition), i64>,
    letters: letters::Letters,
    hook_plan: Option<HookPlan>,
    hooks: Vec<HookRun>,
}

impl World {
    /// A world around these brokers, whose node `n` listens on port `9000 + n`.
    #[must_use]
    pub fn new(mut cluster: Cluster, nodes: i32, seed: u64) -> Self {
        let mut ports = BTreeMap::new();
        for node in 1..=nodes {
            let port = 9000 + u16::try_from(node).unwrap_or(0);
            cluster.set_advertised(node, "broker", port);
            ports.insert(port, node);
        }
        World {
            now: Now(1_000_000),
            cluster,
            members: Vec::new(),
            timers: Arc::default(),
            book: Arc::default(),
            commits: Commits::default(),
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            conns: BTreeMap::new(),
            sequence: 0,
            rng: seed.wrapping_mul(2).wrapping_add(1),
            mute: Vec::new(),
            half_mute: Vec::new(),
            deaf: BTreeSet::new(),
            half_deaf: BTreeSet::new(),
            ports,
            latency_max: Duration::from_micros(500),
            steps: 0,
            steps_at_once: 0,
            grants: Vec::new(),
            positions: BTreeMap::new(),
            letters: letters::Letters::default(),
            hook_plan: None,
            hooks: Vec::new(),
        }
    }

    /// A bootstrap list that names every node.
    #[must_use]
    pub fn bootstrap(&self) -> Vec<(Arc<str>, u16)> {
        self.ports
            .keys()
            .map(|port| (Arc::from("broker"), *port))
            .collect()
    }

    /// Adds a member whose handlers do what `script` plans. Returns its number.
    pub fn join(&mut self, mut config: Config, script: Script) -> usize {
        let number = self.members.len();
        let mut seed = [0; 32];
        for eight in seed.chunks_mut(8) {
            eight.copy_from_slice(&self.random().to_le_bytes());
        }
        config.seed = seed;
        let engine = Engine::new(config.clone(), self.now);
        let mut executors: Vec<Box<dyn Executor>> = Vec::new();
        let lane_of = lane_of(&config);
        let dropped_at = match config.retry.cap() {
            Some((attempts, Some(Exhausted::Drop))) => attempts,
            _ => u32::MAX,
        };
        let shop = Arc::new(Shop {
            member: number,
            script,
            lane_of,
            dropped_at,
            timers: self.timers.clone(),
            book: self.book.clone(),
        });
        for _ in 0..config.executors {
            executors.push(executor(engine.runner_config(), &shop));
        }
        if config.batch_max == 1 {
            let limits = &mut self.book().limits;
            limits.insert(number, workers_of(config.mode));
        }
        self.commits.auto |= config.commit == CommitMode::Auto;
        self.members.push(Member {
            engine,
            groups_out: vec![0; executors.len()],
            executors,
            links: BTreeMap::new(),
            kept: VecDeque::new(),
            deadline: None,
            ahead_max: config.ahead_max,
            bytes_max: config.budget_bytes + u64::from(config.batch_bytes_max),
            in_group: matches!(
                config.source,
                Source::Topics { .. } | Source::Pattern { .. }
            ),
            maps_of: (config.offset_map != OffsetMap::Off)
                .then(|| config.group().cloned())
                .flatten(),
            events: Vec::new(),
            finished: None,
            replies: Vec::new(),
            provider: None,
            credentials_wanted: 0,
            alive: true,
            frozen: false,
        });
        self.members[number].engine.handle_timeout(self.now);
        self.act(number);
        number
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    /// Appends one batch, and expects that its records are handled before anything above them is
    /// committed.
    ///
    /// # Panics
    /// There is no such partition.
    pub fn append(&mut self, topic: &str, partition: i32, records: &[KeyValue<'_>]) -> i64 {
        let now = self.now;
        let first = self
            .cluster
            .append_records(now, topic, partition, records)
            .unwrap();
        let tp = TopicPartition::new(topic, partition);
        let timestamp = self.cluster.wall_ms(now);
        let view = self.cluster.partition_view(topic, partition);
        let epoch = view.map_or(-1, |view| view.epoch);
        let mut book = self.book();
        for (offset, _) in (first..).zip(records) {
            book.wrote(&tp, offset, timestamp, epoch);
        }
        drop(book);
        first
    }

    /// This record was compacted away.
    pub fn compacted(&mut self, topic: &str, partition: i32, offset: i64) {
        let tp = TopicPartition::new(topic, partition);
        self.book().skip(&tp, offset);
    }

    /// Nobody has to read what has been written to this topic so far.
    pub fn excuse_all(&mut self, topic: &str) {
        let mut book = self.book();
        for (tp, offset) in book.open() {
            if &*tp.topic == topic {
                book.skip(&tp, offset);
            }
        }
    }

    /// The records of this partition below `offset` are nobody's to read.
    pub fn skip_below(&mut self, topic: &str, partition: i32, offset: i64) {
        let tp = TopicPartition::new(topic, partition);
        self.book().skip_below(&tp, offset);
    }

    /// From now on somebody seeks in this partition, so that its commits may go back.
    pub fn may_go_back(&mut self, topic: &str, partition: i32) {
        let tp = TopicPartition::new(topic, partition);
        self.book().is_sought(&tp);
        self.commits.may_go_back(tp);
    }

    /// This record was settled by somebody else, before all members here.
    pub fn settled_elsewhere(&mut self, topic: &str, partition: i32, offset: i64) {
        let tp = TopicPartition::new(topic, partition);
        self.book().settled_elsewhere(&tp, offset);
    }

    /// DeleteRecords; what is gone is nobody's to read.
    pub fn delete_records(&mut self, topic: &str, partition: i32, before: i64) {
        let now = self.now;
        self.cluster.delete_records(now, topic, partition, before);
        self.skip_below(topic, partition, before);
    }

    /// An unclean election.
    pub fn truncate(&mut self, topic: &str, partition: i32, offset: i64) {
        let now = self.now;
        self.cluster.truncate(now, topic, partition, offset);
        let tp = TopicPartition::new(topic, partition);
        self.book().cut_from(&tp, offset);
    }

    /// Deletes a topic and makes it anew.
    ///
    /// # Panics
    /// There is no such topic.
    pub fn recreate_topic(&mut self, topic: &str, partitions: i32) {
        let now = self.now;
        self.cluster.recreate_topic(now, topic, partitions).unwrap();
        for partition in 0..partitions {
            let tp = TopicPartition::new(topic, partition);
            self.book().forget(&tp);
            self.commits.forget(&tp);
        }
    }

    /// From now on every hand-over between members is a drained one: runs of one lane overlap
    /// nowhere.
    pub fn expect_drained_hand_overs(&mut self) {
        self.book().strict = true;
    }

    /// Runs that settled their record. More than there are records: some settled twice.
    #[must_use]
    pub fn settlings(&self) -> usize {
        self.book().settlings()
    }

    /// Runs that settled what had settled before.
    #[must_use]
    pub fn settled_again(&self) -> Vec<Handled> {
        self.book().settled_again()
    }

    /// Records written, and finished by nobody.
    #[must_use]
    pub fn open(&self) -> Vec<(TopicPartition, i64)> {
        self.book().open()
    }

    /// What hooks do from now on; without a plan they end at once.
    pub fn plan_hooks(&mut self, plan: HookPlan) {
        self.hook_plan = Some(plan);
    }

    /// Every run of a hook so far.
    #[must_use]
    pub fn hooks(&self) -> &[HookRun] {
        &self.hooks
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }

    /// Every run so far, in the order of their beginnings.
    #[must_use]
    pub fn handled(&self) -> Vec<Handled> {
        self.book().handled()
    }

    /// The run that began last.
    #[must_use]
    pub fn handled_last(&self) -> Option<Handled> {
        self.book().handled_last()
    }

    /// Runs that ended.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.book().ended()
    }

    /// Whether this member was given this partition after `from`, up to `to`.
    #[must_use]
    pub fn was_granted(&self, run: &Handled, from: Now, to: Now) -> bool {
        let mut grants = self.grants.iter();
        grants.any(|(m, p, at)| *m == run.member && *p == run.partition && *at > from && *at <= to)
    }

    /// Whether every record that was written is finished.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.book().is_done()
    }

    /// What a member's engine reported.
    #[must_use]
    pub fn events(&self, member: usize) -> &[Event] {
        &self.members[member].events
    }

    /// How a member's subscription stands.
    #[must_use]
    pub fn snapshot(&self, member: usize) -> Snapshot {
        self.members[member].engine.snapshot(self.now)
    }

    /// How a member ended, if it has.
    #[must_use]
    pub fn finished(&self, member: usize) -> Option<&Result<(), Error>> {
        self.members[member].finished.as_ref()
    }

    /// Answers to commands so far.
    pub fn replies(&self, member: usize) -> &[(CommandId, Result<(), Error>)] {
        &self.members[member].replies
    }

    /// A member's engine, to look at.
    #[must_use]
    pub fn engine(&self, member: usize) -> &Engine {
        &self.members[member].engine
    }

    /// Steps taken: inputs of any kind. What spins shows here.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Whom a member's engine asks for credentials; what it asked before is answered now.
    pub fn provide(&mut self, member: usize, provider: Provider) {
        self.members[member].provider = Some(provider);
        if self.members[member].credentials_wanted > 0 {
            self.ask_provider(member);
        }
    }

    /// How often a member's engine asked for credentials.
    #[must_use]
    pub fn credentials_wanted(&self, member: usize) -> u32 {
        self.members[member].credentials_wanted
    }

    fn ask_provider(&mut self, member: usize) {
        let now = self.now;
        let Some(provider) = &mut self.members[member].provider else {
            return;
        };
        if let Some(came) = provider(&mut self.cluster, now) {
            self.later(
                Duration::from_millis(3),
                Happening::Provided { member, came },
            );
        }
    }

    /// Gives a command to a member.
    pub fn command(&mut self, member: usize, id: u64, command: Command) {
        let now = self.now;
        if let Command::SetWorkers { n } = &command {
            self.allow_runs(member, *n);
        }
        if let Command::Resume { .. } = &command {
            self.book().resumed(member);
        }
        self.members[member]
            .engine
            .handle_command(now, CommandId(id), command);
        self.act(member);
    }

    /// The member dies at once: nothing of it runs or speaks any more, its connections break.
    pub fn kill(&mut self, member: usize) {
        self.members[member].alive = false;
        self.members[member].executors.clear();
        self.members[member].kept.clear();
        self.book().adrift.insert(member);
        let conns: Vec<_> = self.members[member]
            .links
            .values()
            .filter_map(|link| link.conn)
            .collect();
        for conn in conns {
            self.later(Duration::from_micros(200), Happening::HungUp { conn });
        }
        self.members[member].links.clear();
    }

    /// The member stops dead, its connections stay; [`World::thaw`] lets it go on.
    pub fn freeze(&mut self, member: usize) {
        self.members[member].frozen = true;
        self.book().adrift.insert(member);
    }

    /// A frozen member goes on, and finds that time has passed.
    pub fn thaw(&mut self, member: usize) {
        if !std::mem::replace(&mut self.members[member].frozen, false) {
            return;
        }
        let now = self.now;
        // Its clock or its sockets: whichever it looks at first.
        let clock_first = self.random().is_multiple_of(2);
        if clock_first {
            self.members[member].engine.handle_timeout(now);
            self.act(member);
        }
        while let Some((link, event)) = self.members[member].kept.pop_front() {
            self.tell_engine(member, link, event);
        }
        self.members[member].engine.handle_timeout(now);
        self.act(member);
    }

    /// Whether a member was killed.
    #[must_use]
    pub fn is_alive(&self, member: usize) -> bool {
        self.members[member].alive
    }

    /// How many members ever joined.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The time is suddenly a later one, as where a whole machine was asleep.
    pub fn jump(&mut self, time: Duration) {
        self.now = self.now + time;
        self.tick();
    }

    /// How long a frame is on its way at most, from now on.
    pub fn set_latency(&mut self, most: Duration) {
        self.latency_max = most.max(Duration::from_micros(100));
    }

    /// What the node says to the member vanishes from now on; what the member says arrives.
    pub fn mute_answers(&mut self, member: usize, node: i32) {
        self.half_mute.push((member, node));
        self.book().adrift.insert(member);
    }

    /// Bytes between a member and a node vanish from now on, without a word to either.
    pub fn mute(&mut self, member: usize, node: i32) {
        self.mute.push((member, node));
        self.book().adrift.insert(member);
    }

    /// They arrive again, on new connections.
    pub fn unmute(&mut self, member: usize, node: i32) {
        self.mute.retain(|pair| *pair != (member, node));
        self.half_mute.retain(|pair| *pair != (member, node));
    }

    /// Breaks every connection of a member.
    pub fn cut(&mut self, member: usize) {
        let links: Vec<_> = self.members[member]
            .links
            .iter()
            .map(|(id, link)| (*id, link.conn))
            .collect();
        for (link, conn) in links {
            let error = Error::new(ErrorKind::Transport, "cut").retriable();
            let event = LinkEvent::Down(error);
            self.later(
                Duration::from_micros(50),
                Happening::ToEngine {
                    member,
                    link,
                    event,
                },
            );
            if let Some(conn) = conn {
                self.later(Duration::from_micros(50), Happening::HungUp { conn });
            }
        }
    }

    /// Lets time pass until `done` holds.
    ///
    /// # Panics
    /// When it does not come to hold within `limit`, or the world spins.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&World) -> bool) {
        let end = self.now + limit;
        while !done(self) {
            assert!(
                self.now < end,
                "{limit:?} went by and it does not hold: {}",
                self.story()
            );
            assert!(self.steps < STEPS_MAX, "the world spins: {}", self.story());
            if !self.step(end) {
                self.now = end;
                self.tick();
            }
        }
    }

    /// Lets this much time pass.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {
            assert!(self.steps < STEPS_MAX, "the world spins: {}", self.story());
        }
        self.now = end;
        self.tick();
    }

    /// What a failed test wants to know.
    #[must_use]
    pub fn story(&self) -> String {
        let mut story = format!(
            "at {:?}, {} steps, {} ended",
            self.now,
            self.steps,
            self.ended()
        );
        for (i, member) in self.members.iter().enumerate() {
            story += &format!("\nmember {i}: finished {:?}", member.finished);
            story += &format!("\n  {:?}", member.engine.snapshot(self.now));
            for event in member.events.iter().rev().take(12).rev() {
                story += &format!("\n  {event:?}");
            }
        }
        story
    }

    fn random(&mut self) -> u64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn latency(&mut self) -> Duration {
        let most = u64::try_from(self.latency_max.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(50 + self.random() % (most - 50))
    }

    fn later(&mut self, after: Duration, what: Happening) {
        self.at(self.now + after, what);
    }

    fn at(&mut self, at: Now, what: Happening) {
        self.sequence += 1;
        self.queue.push(Reverse((at, self.sequence)));
        self.happenings.insert(self.sequence, what);
    }

    /// The next thing that happens, if it happens by `end`.
    fn step(&mut self, end: Now) -> bool {
        let mut next = self.queue.peek().map(|Reverse((at, _))| *at);
        next = laneway::time::earliest(next, self.cluster.next_deadline());
        next = laneway::time::earliest(next, self.timers.next());
        for member in self.members.iter().filter(|m| m.alive && !m.frozen) {
            next = laneway::time::earliest(next, member.deadline);
        }
        let Some(at) = next.filter(|at| *at <= end) else {
            return false;
        };
        self.now = self.now.max(at);
        self.tick();
        true
    }

    fn tick(&mut self) {
        self.steps += 1;
        self.steps_at_once = match self.timers.now() == self.now {
            true => self.steps_at_once + 1,
            false => 0,
        };
        assert!(
            self.steps_at_once < STEPS_AT_ONCE_MAX,
            "I8: time stands still: {}",
            self.story()
        );
        self.timers.set(self.now);
        while let Some(Reverse((at, sequence))) = self.queue.peek().copied() {
            if at > self.now {
                break;
            }
            self.queue.pop();
            if let Some(what) = self.happenings.remove(&sequence) {
                self.happen(what);
            }
        }
        if self
            .cluster
            .next_deadline()
            .is_some_and(|at| at <= self.now)
        {
            self.cluster.handle_timeout(self.now);
        }
        self.broker_acts();
        self.timers.wake_due();
        for i in 0..self.members.len() {
            let (now, member) = (self.now, &mut self.members[i]);
            if !member.alive || member.frozen {
                continue;
            }
            let is_due = member.deadline.is_some_and(|at| at <= now);
            if is_due && member.engine.next_deadline().is_some_and(|at| at <= now) {
                member.engine.handle_timeout(now);
            }
            if is_due || member.is_woken(now) {
                self.act(i);
            }
        }
        self.check();
    }
}

/// Which lane a record of a subscription with these settings belongs to, if any.
fn lane_of(config: &Config) -> LaneOf {
    let (mode, key) = (config.mode, config.lane_key.clone());
    Arc::new(move |record: &Record| {
        let topic = record.topic().as_bytes();
        let bytes = match (mode, &key) {
            (Mode::Any { .. }, _) => return None,
            (_, LaneKey::Partition) => {
                [b"p", topic, b"/", &record.partition().to_le_bytes()[..]].concat()
            }
            (_, LaneKey::RecordKey) => [b"k", topic, b"/", record.key()?].concat(),
            (_, LaneKey::By(by)) => [&b"b"[..], &by(record)?.to_le_bytes()[..]].concat(),
            _ => return None,
        };
        Some(Lane(bytes))
    })
}

/// How many records of such a subscription run at once.
fn workers_of(mode: Mode) -> u32 {
    match mode {
        Mode::Any { workers } => workers,
        Mode::Fixed { lanes } => lanes,
        Mode::PerKey { at_once } => at_once,
        _ => 1,
    }
}
