//! A whole subscription before a broker whose answers are damaged on the way: bytes changed, cut,
//! swapped, kept back, given twice or made up, connections that end. It never panics, spins or takes
//! memory beyond its budget; what reaches the handler is what was written; each group of records comes
//! back; and it can always be closed within its deadline.
#![no_main]

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use laneway::broker::{BrokerAction, Cluster, ClusterConfig, ConnId};
use laneway::engine::{Action, Command, Config, Done, Engine, LaneKey, LinkEvent, Source};
use laneway::handler::one_by_one;
use laneway::ids::{CommandId, ExecutorId, LinkId};
use laneway::lane::{Handler, Mode, Runner};
use laneway::record::Delivery;
use laneway::time::Now;
use laneway::{Error, ErrorKind, Outcome, Record};
use laneway_fuzz::{Script, with_planned_panics};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| with_planned_panics(|| {
    let mut script = Script::new(input);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    let handler = one_by_one(move |record: Record| {
        let key = record.key().map(<[u8]>::to_vec);
        let value = record.value().map(<[u8]>::to_vec);
        sink.lock().expect("whole").push((key, value));
        let outcome = match record.offset() % 5 {
            3 if record.attempt() == 1 => Outcome::Retry,
            4 => Outcome::Drop,
            _ => Outcome::Ack,
        };
        async move { outcome }
    });
    let mut life = Life::new(script.byte(), handler);
    for _ in 0..STEPS_MAX {
        if script.is_over() {
            break;
        }
        life.step(&mut script);
    }
    life.finish();
    for (key, value) in seen.lock().expect("whole").iter() {
        let (key, value) = (key.as_deref().unwrap_or_default(), value.as_deref());
        // A checksum covers them.
        assert_eq!(value, Some(&[b"value of ", key].concat()[..]));
    }
}));

struct Life<H: Handler<Delivery>> {
    engine: Engine,
    runner: Runner<Delivery, H>,
    flag: Arc<Flag>,
    groups_out: usize,
    now: Now,
    cluster: Cluster,
    links: BTreeMap<LinkId, ConnId>,
    conns: BTreeMap<ConnId, LinkId>,
    /// What is to happen on links, in order.
    coming: VecDeque<(LinkId, LinkEvent)>,
    finished: bool,
    closing: bool,
    written: u32,
    /// Inputs since time last moved.
    at_once: usize,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl<H: Handler<Delivery>> Life<H> {
    fn new(how: u8, handler: H) -> Self {
        let mut cluster = Cluster::new(ClusterConfig {
            nodes: 2,
            ..ClusterConfig::default()
        });
        for node in 1..=2 {
            cluster.set_advertised(node, "broker", 9000 + node as u16);
        }
        cluster.create_topic("t", 3).expect("new");
        let source = Source::Topics {
            topics: vec!["t".into()],
            group: "g".into(),
        };
        let mut config = Config::new(
            vec![("broker".into(), 9001), ("broker".into(), 9002)],
            source,
        );
        config.mode = match how & 3 {
            0 => Mode::InTurn,
            1 => Mode::Any { workers: 3 },
            _ => Mode::Fixed { lanes: 4 },
        };
        if how & 4 != 0 {
            config.lane_key = LaneKey::RecordKey;
        }
        config.budget_bytes = 256 << 10;
        config.batch_bytes_max = 64 << 10;
        config.session_timeout = Duration::from_secs(10);
        config.heartbeat_interval = Duration::from_secs(1);
        config.commit_interval = Duration::from_millis(200);
        let now = Now(1_000_000);
        let engine = Engine::new(config, now);
        let runner = Runner::new(handler, engine.runner_config());
        let mut life = Life {
            engine,
            runner,
            flag: Arc::default(),
            groups_out: 0,
            now,
            cluster,
            links: BTreeMap::new(),
            conns: BTreeMap::new(),
            coming: VecDeque::new(),
            finished: false,
            closing: false,
            written: 0,
            at_once: 0,
        };
        life.write(0, 5);
        life.engine.handle_timeout(now);
        life.act();
        life
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() {
            0..110 => self.next(),
            110..150 => self.change_next(script),
            150..160 => {
                // Made up: an answer of any bytes to whoever waits for one.
                let link = self.links.keys().nth(script.below(4)).copied();
                let n = script.below(300);
                let bytes = Bytes::copy_from_slice(script.bytes(n));
                if let Some(link) = link {
                    self.happen(link, LinkEvent::Frame(bytes));
                }
            }
            160..170 => {
                // The same once more.
                if let Some((link, LinkEvent::Frame(bytes))) = self.coming.front() {
                    let (link, bytes) = (*link, bytes.clone());
                    self.happen(link, LinkEvent::Frame(bytes));
                }
            }
            170..175 => drop(self.coming.pop_front()),
            175..185 => self
                .coming
                .rotate_left(script.below(self.coming.len().max(1))),
            185..190 => {
                if let Some(link) = self.links.keys().nth(script.below(4)).copied() {
                    self.down(link);
                }
            }
            190..215 => self.pass(Duration::from_millis(u64::from(script.byte()) * 40)),
            215..230 => {
                let partition = script.below(3) as i32;
                self.write(partition, script.below(8) + 1);
            }
            230..235 => {
                let now = self.now;
                self.cluster.move_leader(
                    now,
                    "t",
                    script.below(3) as i32,
                    script.below(2) as i32 + 1,
                );
                self.act();
            }
            235..240 => {
                self.engine
                    .handle_command(self.now, CommandId(1), Command::CommitNow);
                self.act();
            }
            240 if script.byte() < 16 => self.close(Duration::from_secs(3)),
            _ => self.next(),
        }
    }

    fn write(&mut self, partition: i32, records: usize) {
        let mut pairs = Vec::new();
        for _ in 0..records {
            self.written += 1;
            let key = format!("key-{}", self.written);
            pairs.push((key.clone(), format!("value of {key}")));
        }
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(k, v)| (Some(k.as_bytes()), Some(v.as_bytes())))
            .collect();
        let now = self.now;
        self.cluster
            .append_records(now, "t", partition, &pairs)
            .expect("there");
        self.broker_acts();
    }

    fn next(&mut self) {
        if let Some((link, event)) = self.coming.pop_front() {
            self.happen(link, event);
        }
    }

    fn change_next(&mut self, script: &mut Script<'_>) {
        let Some((link, event)) = self.coming.pop_front() else {
            return;
        };
        let event = match event {
            LinkEvent::Frame(frame) => {
                let mut bytes = frame.to_vec();
                for _ in 0..=script.below(4) {
                    // Mostly behind the correlation id, and near the front, where counts and codes are.
                    let at = match script.byte() {
                        0..16 => script.below(4),
                        16..160 => 4 + script.below(60),
                        _ => script.below(bytes.len().max(1)),
                    };
                    match (script.byte(), bytes.get_mut(at)) {
                        (0..220, Some(byte)) => *byte = script.byte(),
                        (220..235, _) => bytes.truncate(at),
                        (235..245, Some(_)) => drop(bytes.remove(at)),
                        _ => bytes.extend_from_slice(script.bytes(at)),
                    }
                }
                LinkEvent::Frame(bytes.into())
            }
            other => other,
        };
        self.happen(link, event);
    }

    /// What a shell tells: nothing of links that are over.
    fn happen(&mut self, link: LinkId, event: LinkEvent) {
        if !self.links.contains_key(&link) || self.finished {
            return;
        }
        if matches!(event, LinkEvent::Down(_)) {
            return self.down(link);
        }
        let len = match &event {
            // A framer cuts none that is shorter.
            LinkEvent::Frame(frame) if frame.len() < 4 => return self.down(link),
            LinkEvent::Frame(frame) => frame.len(),
            _ => 0,
        };
        self.stir();
        let used = allocation_counter::measure(|| self.engine.handle_link(self.now, link, event));
        let most = (len * FACTOR + FIXED_BYTES) as u64;
        assert!(used.bytes_max <= most, "{} bytes for {len}", used.bytes_max);
        self.act();
    }

    fn down(&mut self, link: LinkId) {
        let Some(conn) = self.links.remove(&link) else {
            return;
        };
        self.conns.remove(&conn);
        self.cluster.disconnect(self.now, conn);
        self.stir();
        let error = Error::new(ErrorKind::Transport, "cut").retriable();
        self.engine
            .handle_link(self.now, link, LinkEvent::Down(error));
        self.act();
    }

    fn stir(&mut self) {
        self.at_once += 1;
        assert!(self.at_once < AT_ONCE_MAX, "time stands still");
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let due =
                laneway::time::earliest(self.engine.next_deadline(), self.cluster.next_deadline());
            let Some(at) = due.filter(|at| *at <= end) else {
                break;
            };
            if at > self.now {
                self.now = at;
                self.at_once = 0;
            }
            self.stir();
            if self
                .cluster
                .next_deadline()
                .is_some_and(|at| at <= self.now)
            {
                self.cluster.handle_timeout(self.now);
                self.broker_acts();
            }
            if self.engine.next_deadline().is_some_and(|at| at <= self.now) {
                self.engine.handle_timeout(self.now);
                self.act();
            }
        }
        if end > self.now {
            self.now = end;
            self.at_once = 0;
        }
    }

    fn close(&mut self, within: Duration) {
        if self.closing || self.finished {
            return;
        }
        self.closing = true;
        let deadline = self.now + within;
        self.engine
            .handle_command(self.now, CommandId(9), Command::Close { deadline });
        self.act();
    }

    fn act(&mut self) {
        loop {
            while let Some(action) = self.engine.poll_action() {
                assert!(!self.finished, "after the end: {action:?}");
                self.do_one(action);
            }
            if !self.poll_runner() {
                break;
            }
        }
        self.broker_acts();
        if !self.finished {
            assert!(self.engine.next_deadline().is_some(), "waits for nothing");
            let held = self.engine.snapshot(self.now).budget_used;
            assert!(held <= (256 + 64) << 10, "{held} bytes held");
        }
    }

    fn poll_runner(&mut self) -> bool {
        let fence = self.engine.fence().load(Ordering::Acquire);
        if self.now.0 >= fence {
            self.engine.handle_timeout(self.now);
            if self.engine.fence().load(Ordering::Acquire) != fence {
                return true;
            }
        }
        if !self.flag.0.swap(false, Ordering::AcqRel) {
            return false;
        }
        let waker = Waker::from(self.flag.clone());
        let mut cx = Context::from_waker(&waker);
        let Poll::Ready(done) = self.runner.poll(&mut cx, self.now, &mut || true) else {
            return false;
        };
        self.flag.0.store(true, Ordering::Release);
        if matches!(done, laneway::lane::Done::Group(_)) {
            self.groups_out -= 1;
        }
        let executor = ExecutorId(0);
        self.engine.handle_done(self.now, Done { executor, done });
        true
    }

    fn do_one(&mut self, action: Action) {
        match action {
            Action::Open { link, port, .. } => {
                let node = i32::from(port) - 9000;
                match self.cluster.connect(self.now, node) {
                    Some(conn) => {
                        self.links.insert(link, conn);
                        self.conns.insert(conn, link);
                        self.coming.push_back((link, LinkEvent::Up));
                    }
                    // Damaged metadata names ports of nobody.
                    None => {
                        let error = Error::new(ErrorKind::Transport, "refused").retriable();
                        let nobody = ConnId(u64::MAX - link.0);
                        self.links.insert(link, nobody);
                        self.coming.push_back((link, LinkEvent::Down(error)));
                    }
                }
            }
            Action::Send {
                link, mut frame, ..
            } => {
                let conn = self.links[&link];
                frame.advance(4);
                self.cluster.handle_frame(self.now, conn, frame);
            }
            Action::Close { link } => {
                if let Some(conn) = self.links.remove(&link) {
                    self.conns.remove(&conn);
                    self.cluster.disconnect(self.now, conn);
                }
            }
            Action::Run { group, .. } => {
                self.groups_out += 1;
                assert!(self.groups_out <= 2, "three groups out");
                assert!(!group.is_empty());
                self.runner.give(group);
                self.flag.0.store(true, Ordering::Release);
            }
            Action::Recall { lease, what, .. } => {
                self.runner.recall(lease, what);
                self.flag.0.store(true, Ordering::Release);
            }
            Action::Again => {
                self.stir();
                self.engine.handle_timeout(self.now);
            }
            Action::Finished(_) => self.finished = true,
            Action::Reply { .. } | Action::Event(_) => {}
            other => panic!("an action that nobody knows: {other:?}"),
        }
    }

    fn broker_acts(&mut self) {
        while let Some(action) = self.cluster.poll_action() {
            match action {
                BrokerAction::Send { conn, mut frame } => {
                    frame.advance(4);
                    if let Some(link) = self.conns.get(&conn) {
                        self.coming.push_back((*link, LinkEvent::Frame(frame)));
                    }
                }
                BrokerAction::Close { conn } => {
                    if let Some(link) = self.conns.get(&conn) {
                        let error = Error::new(ErrorKind::Transport, "closed").retriable();
                        self.coming.push_back((*link, LinkEvent::Down(error)));
                    }
                }
            }
        }
    }

    /// Whatever came before, it can be closed; nobody needs to answer for that.
    fn finish(&mut self) {
        for _ in 0..50 {
            self.next();
        }
        self.close(Duration::from_secs(10));
        self.pass(Duration::from_secs(11));
        assert!(self.finished, "closed within its deadline");
        assert_eq!(self.groups_out, 0);
        let left = self.engine.snapshot(self.now);
        assert_eq!([left.ready, left.queued, left.parked, left.out], [0; 4]);
    }
}

const STEPS_MAX: usize = 2_000;
/// Inputs at one moment: more means that something spins.
const AT_ONCE_MAX: usize = 5_000;
/// What one answer may make the engine take for each of its bytes; what it has set free to be asked
/// and decoded besides.
const FACTOR: usize = 64;
const FIXED_BYTES: usize = 1 << 20;
