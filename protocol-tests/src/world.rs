//! `World`: engines, the broker's core, a network and a clock that are values.
//!
//! One thread, one seed, virtual time. A test builds a world, lets it run until something holds,
//! injects what it likes on the way, and asks what the handlers saw. The engines are the
//! library's own, unchanged; so is the broker.

use bytes::{Buf, Bytes};
use laneway::broker::{BrokerAction, Cluster, ConnId};
use laneway::engine::{Action, Command, Config, Done, Engine, Event, LinkEvent};
use laneway::handler::one_by_one;
use laneway::ids::{CommandId, ExecutorId, LinkId, TopicPartition};
use laneway::lane::{Handler, Runner};
use laneway::record::Delivery;
use laneway::time::Now;
use laneway::wire::Framer;
use laneway::{Error, ErrorKind, Outcome, Record};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Steps after which a test that waits for something has waited too long.
const STEPS_MAX: u64 = 5_000_000;

/// One run of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handled {
    /// Which member ran it.
    pub member: usize,
    /// From where.
    pub partition: TopicPartition,
    /// Its offset.
    pub offset: i64,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Which attempt.
    pub attempt: u32,
    /// When it began.
    pub began: Now,
    /// When it ended; `None` while it runs or when its future was dropped.
    pub ended: Option<Now>,
}

/// What a scripted handler does with a record.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long it takes.
    pub takes: Duration,
    /// What it returns.
    pub outcome: Outcome,
    /// Whether it panics instead.
    pub panics: bool,
}

impl Plan {
    /// Acks after `takes`.
    #[must_use]
    pub fn ack(takes: Duration) -> Self {
        Plan {
            takes,
            outcome: Outcome::Ack,
            panics: false,
        }
    }

    /// Returns `outcome` at once.
    #[must_use]
    pub fn at_once(outcome: Outcome) -> Self {
        Plan {
            takes: Duration::ZERO,
            outcome,
            panics: false,
        }
    }
}

/// The function that plans each run: member, record.
pub type Script = Arc<dyn Fn(usize, &Record) -> Plan + Send + Sync>;

/// Handlers asleep: when each wants to be woken.
#[derive(Default)]
struct Timers {
    now: AtomicU64,
    asleep: Mutex<Vec<(Now, Waker)>>,
}

impl Timers {
    fn now(&self) -> Now {
        Now(self.now.load(Ordering::Relaxed))
    }

    fn next(&self) -> Option<Now> {
        self.asleep.lock().unwrap().iter().map(|(at, _)| *at).min()
    }

    fn wake_due(&self) {
        let now = self.now();
        let mut due = Vec::new();
        self.asleep.lock().unwrap().retain(|(at, waker)| {
            let is_due = *at <= now;
            if is_due {
                due.push(waker.clone());
            }
            !is_due
        });
        due.into_iter().for_each(Waker::wake);
    }
}

struct Sleep {
    timers: Arc<Timers>,
    until: Now,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.timers.now() >= self.until {
            return Poll::Ready(());
        }
        self.timers
            .asleep
            .lock()
            .unwrap()
            .push((self.until, cx.waker().clone()));
        Poll::Pending
    }
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Polls one runner without naming its handler's type.
trait Executor {
    fn give(&mut self, group: laneway::engine::Group);
    fn recall(&mut self, lease: laneway::ids::LeaseId, what: laneway::lane::Recall);
    fn poll(&mut self, now: Now) -> Option<laneway::lane::Done<Delivery>>;
}

struct Task<H: Handler<Delivery>> {
    runner: Runner<Delivery, H>,
    flag: Arc<Flag>,
}

impl<H: Handler<Delivery>> Executor for Task<H> {
    fn give(&mut self, group: laneway::engine::Group) {
        self.runner.give(group);
        self.flag.0.store(true, Ordering::Release);
    }

    fn recall(&mut self, lease: laneway::ids::LeaseId, what: laneway::lane::Recall) {
        self.runner.recall(lease, what);
        self.flag.0.store(true, Ordering::Release);
    }

    fn poll(&mut self, now: Now) -> Option<laneway::lane::Done<Delivery>> {
        if !self.flag.0.swap(false, Ordering::AcqRel) {
            return None;
        }
        let waker = Waker::from(self.flag.clone());
        match self
            .runner
            .poll(&mut Context::from_waker(&waker), now, &mut || true)
        {
            Poll::Ready(done) => {
                self.flag.0.store(true, Ordering::Release);
                Some(done)
            }
            Poll::Pending => None,
        }
    }
}

struct Member {
    engine: Engine,
    executors: Vec<Box<dyn Executor>>,
    links: BTreeMap<LinkId, Link>,
    events: Vec<Event>,
    finished: Option<Result<(), Error>>,
    replies: Vec<(CommandId, Result<(), Error>)>,
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

enum Happening {
    Dialled {
        member: usize,
        link: LinkId,
        port: u16,
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
}

/// See the [module](self).
pub struct World {
    now: Now,
    /// The brokers. Scripted faults, crashes and so on are its own business.
    pub cluster: Cluster,
    members: Vec<Member>,
    timers: Arc<Timers>,
    handled: Arc<Mutex<Vec<Handled>>>,
    queue: BinaryHeap<Reverse<(Now, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    conns: BTreeMap<ConnId, (usize, LinkId, i32)>,
    sequence: u64,
    rng: u64,
    /// Pairs that cannot talk: member, node. Bytes between them vanish without a word.
    mute: Vec<(usize, i32)>,
    ports: BTreeMap<u16, i32>,
    steps: u64,
    grants: Vec<(usize, TopicPartition, Now)>,
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
            handled: Arc::default(),
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            conns: BTreeMap::new(),
            sequence: 0,
            rng: seed.wrapping_mul(2).wrapping_add(1),
            mute: Vec::new(),
            ports,
            steps: 0,
            grants: Vec::new(),
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
        for _ in 0..config.executors {
            executors.push(self.executor(number, &engine, script.clone()));
        }
        self.members.push(Member {
            engine,
            executors,
            links: BTreeMap::new(),
            events: Vec::new(),
            finished: None,
            replies: Vec::new(),
            alive: true,
            frozen: false,
        });
        self.members[number].engine.handle_timeout(self.now);
        self.act(number);
        number
    }

    fn executor(&self, member: usize, engine: &Engine, script: Script) -> Box<dyn Executor> {
        let (timers, handled) = (self.timers.clone(), self.handled.clone());
        let handler = one_by_one(move |record: Record| {
            let plan = script(member, &record);
            let (timers, handled) = (timers.clone(), handled.clone());
            let began = timers.now();
            let index = {
                let mut log = handled.lock().unwrap();
                log.push(Handled {
                    member,
                    partition: TopicPartition::new(record.topic(), record.partition()),
                    offset: record.offset(),
                    key: record.key().map(<[u8]>::to_vec),
                    attempt: record.attempt(),
                    began,
                    ended: None,
                });
                log.len() - 1
            };
            async move {
                if !plan.takes.is_zero() {
                    Sleep {
                        timers: timers.clone(),
                        until: began + plan.takes,
                    }
                    .await;
                }
                assert!(!plan.panics, "a planned panic");
                handled.lock().unwrap()[index].ended = Some(timers.now());
                plan.outcome
            }
        });
        let runner = Runner::new(handler, engine.runner_config());
        Box::new(Task {
            runner,
            flag: Arc::default(),
        })
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }

    /// Every run so far, in the order of their beginnings.
    #[must_use]
    pub fn handled(&self) -> Vec<Handled> {
        self.handled.lock().unwrap().clone()
    }

    /// Runs that ended.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.handled
            .lock()
            .unwrap()
            .iter()
            .filter(|h| h.ended.is_some())
            .count()
    }

    /// Whether this member was given this partition after `from`, up to `to`.
    #[must_use]
    pub fn was_granted(&self, run: &Handled, from: Now, to: Now) -> bool {
        let mut grants = self.grants.iter();
        grants.any(|(m, p, at)| *m == run.member && *p == run.partition && *at > from && *at <= to)
    }

    /// What a member's engine reported.
    #[must_use]
    pub fn events(&self, member: usize) -> &[Event] {
        &self.members[member].events
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

    /// Gives a command to a member.
    pub fn command(&mut self, member: usize, id: u64, command: Command) {
        let now = self.now;
        self.members[member]
            .engine
            .handle_command(now, CommandId(id), command);
        self.act(member);
    }

    /// The member dies at once: nothing of it runs or speaks any more, its connections break.
    pub fn kill(&mut self, member: usize) {
        self.members[member].alive = false;
        self.members[member].executors.clear();
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
    }

    /// A frozen member goes on, and finds that time has passed.
    pub fn thaw(&mut self, member: usize) {
        self.members[member].frozen = false;
        let now = self.now;
        self.members[member].engine.handle_timeout(now);
        self.act(member);
    }

    /// Bytes between a member and a node vanish from now on, without a word to either.
    pub fn mute(&mut self, member: usize, node: i32) {
        self.mute.push((member, node));
    }

    /// They arrive again, on new connections.
    pub fn unmute(&mut self, member: usize, node: i32) {
        self.mute.retain(|pair| *pair != (member, node));
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
        Duration::from_micros(50 + self.random() % 450)
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
            next = laneway::time::earliest(next, member.engine.next_deadline());
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
        self.timers.now.store(self.now.0, Ordering::Relaxed);
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
            let member = &mut self.members[i];
            if !member.alive || member.frozen {
                continue;
            }
            if member
                .engine
                .next_deadline()
                .is_some_and(|at| at <= self.now)
            {
                member.engine.handle_timeout(self.now);
            }
            self.act(i);
        }
    }

    fn happen(&mut self, what: Happening) {
        let now = self.now;
        match what {
            Happening::Dialled { member, link, port } => self.dialled(member, link, port),
            Happening::ToBroker { conn, frame } => {
                if self.conns.contains_key(&conn) {
                    self.cluster.handle_frame(now, conn, frame);
                }
            }
            Happening::ToEngine {
                member,
                link,
                event,
            } => {
                if self.members[member].frozen {
                    // The kernel keeps it for when the process goes on.
                    self.later(
                        Duration::from_millis(10),
                        Happening::ToEngine {
                            member,
                            link,
                            event,
                        },
                    );
                    return;
                }
                if !self.members[member].alive || !self.members[member].links.contains_key(&link) {
                    return;
                }
                if matches!(event, LinkEvent::Down(_)) {
                    self.members[member].links.remove(&link);
                }
                self.members[member].engine.handle_link(now, link, event);
                self.act(member);
            }
            Happening::Bytes {
                member,
                link,
                bytes,
            } => {
                for event in self.cut_frames(member, link, &bytes) {
                    self.happen(Happening::ToEngine {
                        member,
                        link,
                        event,
                    });
                }
            }
            Happening::HungUp { conn } => {
                self.conns.remove(&conn);
                self.cluster.disconnect(now, conn);
            }
        }
    }

    /// As a socket's reader does it.
    fn cut_frames(&mut self, member: usize, link: LinkId, bytes: &[u8]) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        let Some(slot) = self.members[member].links.get_mut(&link) else {
            return events;
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = slot.framer.space();
            let n = space.len().min(rest.len());
            space[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            let mut cut = slot.framer.filled(n);
            loop {
                match cut {
                    Ok(Some(frame)) => events.push(LinkEvent::Frame(frame)),
                    Ok(None) => break,
                    Err(e) => {
                        let error = Error::new(ErrorKind::Peer, e.to_string());
                        events.push(LinkEvent::Down(error));
                        return events;
                    }
                }
                cut = slot.framer.next_frame();
            }
        }
        events
    }

    fn dialled(&mut self, member: usize, link: LinkId, port: u16) {
        let Some(node) = self.ports.get(&port).copied() else {
            return;
        };
        if !self.members[member].alive || self.mute.contains(&(member, node)) {
            return; // no answer: the dial's own deadline ends it
        }
        let conn = self.cluster.connect(self.now, node);
        let Some(slot) = self.members[member].links.get_mut(&link) else {
            return;
        };
        let event = match conn {
            Some(conn) => {
                slot.conn = Some(conn);
                self.conns.insert(conn, (member, link, node));
                LinkEvent::Up
            }
            None => LinkEvent::Down(Error::new(ErrorKind::Transport, "refused").retriable()),
        };
        self.later(
            Duration::from_micros(50),
            Happening::ToEngine {
                member,
                link,
                event,
            },
        );
    }

    fn is_mute(&self, conn: ConnId) -> bool {
        let at = self.conns.get(&conn);
        at.is_some_and(|(member, _, node)| self.mute.contains(&(*member, *node)))
    }

    fn broker_acts(&mut self) {
        while let Some(action) = self.cluster.poll_action() {
            match action {
                BrokerAction::Send { conn, frame: bytes } => {
                    let Some((member, link, _)) = self.conns.get(&conn).copied() else {
                        continue;
                    };
                    if self.is_mute(conn) {
                        continue;
                    }
                    let at = self.now + self.latency();
                    let Some(slot) = self.members[member].links.get_mut(&link) else {
                        continue;
                    };
                    let at = at.max(slot.to_engine + Duration::from_nanos(1));
                    slot.to_engine = at;
                    self.at(
                        at,
                        Happening::Bytes {
                            member,
                            link,
                            bytes,
                        },
                    );
                }
                BrokerAction::Close { conn } => {
                    let Some((member, link, _)) = self.conns.remove(&conn) else {
                        continue;
                    };
                    let Some(slot) = self.members[member].links.get(&link) else {
                        continue;
                    };
                    let at = slot.to_engine.max(self.now) + Duration::from_micros(50);
                    let error = Error::new(ErrorKind::Transport, "closed by the broker");
                    let event = LinkEvent::Down(error.retriable());
                    self.at(
                        at,
                        Happening::ToEngine {
                            member,
                            link,
                            event,
                        },
                    );
                }
            }
        }
    }

    /// Does what an engine says and polls its runners until neither has more to say.
    fn act(&mut self, number: usize) {
        if !self.members[number].alive {
            return;
        }
        loop {
            while let Some(action) = self.members[number].engine.poll_action() {
                self.do_one(number, action);
            }
            if !self.poll_executors(number) {
                return;
            }
        }
    }

    fn poll_executors(&mut self, number: usize) -> bool {
        let now = self.now;
        let member = &mut self.members[number];
        let fence = member.engine.fence().load(Ordering::Acquire);
        if now.0 >= fence {
            // Past the session by our own clock nothing may start; the engine is told first.
            member.engine.handle_timeout(now);
        }
        for i in 0..member.executors.len() {
            if let Some(done) = member.executors[i].poll(now) {
                let executor = ExecutorId(u32::try_from(i).unwrap_or(0));
                member.engine.handle_done(now, Done { executor, done });
                return true;
            }
        }
        false
    }

    fn do_one(&mut self, number: usize, action: Action) {
        match action {
            Action::Open {
                link,
                host: _,
                port,
                until,
                frame_max,
            } => {
                let (to_broker, to_engine) = (self.now, self.now);
                let framer = Framer::new(frame_max);
                let slot = Link {
                    conn: None,
                    framer,
                    to_broker,
                    to_engine,
                };
                self.members[number].links.insert(link, slot);
                let latency = self.latency();
                self.later(
                    latency,
                    Happening::Dialled {
                        member: number,
                        link,
                        port,
                    },
                );
                let error = Error::new(ErrorKind::Transport, "no answer").retriable();
                if self
                    .ports
                    .get(&port)
                    .is_none_or(|n| self.mute.contains(&(number, *n)))
                {
                    let event = LinkEvent::Down(error);
                    self.at(
                        until,
                        Happening::ToEngine {
                            member: number,
                            link,
                            event,
                        },
                    );
                }
            }
            Action::Send {
                link, mut frame, ..
            } => {
                frame.advance(4);
                let at = self.now + self.latency();
                let Some(slot) = self.members[number].links.get_mut(&link) else {
                    return;
                };
                let Some(conn) = slot.conn else { return };
                let at = at.max(slot.to_broker + Duration::from_nanos(1));
                slot.to_broker = at;
                if self.is_mute(conn) {
                    return;
                }
                self.at(at, Happening::ToBroker { conn, frame });
            }
            Action::Close { link } => {
                if let Some(conn) = self.members[number]
                    .links
                    .remove(&link)
                    .and_then(|l| l.conn)
                {
                    self.later(Duration::from_micros(200), Happening::HungUp { conn });
                }
            }
            Action::Run { executor, group } => {
                self.members[number].executors[executor.0 as usize].give(group);
            }
            Action::Recall {
                executor,
                lease,
                what,
            } => {
                self.members[number].executors[executor.0 as usize].recall(lease, what);
            }
            Action::Reply { id, result } => self.members[number].replies.push((id, result)),
            Action::Event(event) => {
                if let Event::Granted { partition, .. } = &event {
                    self.grants.push((number, partition.clone(), self.now));
                }
                self.members[number].events.push(event);
            }
            Action::Again => {
                let now = self.now;
                self.members[number].engine.handle_timeout(now);
            }
            Action::Finished(result) => {
                let member = &mut self.members[number];
                assert!(member.finished.is_none(), "finished twice");
                member.finished = Some(result);
            }
            other => panic!("an action that the world does not know: {other:?}"),
        }
    }
}
