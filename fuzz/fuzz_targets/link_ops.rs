//! One connection as a machine, before a broker whose answers are kept back, damaged, swapped, made
//! up or lost: each request is answered once, nothing follows the end, deadlines pass.
#![no_main]

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use laneway::broker::{BrokerAction, Cluster, ClusterConfig, ConnId};
use laneway::ids::Token;
use laneway::time::Now;
use laneway::wire::message::{
    FindCoordinatorRequest, HeartbeatRequest, Isolation, ListOffsetsPartition, ListOffsetsRequest,
    MetadataRequest,
};
use laneway::wire::{Link, LinkAction, LinkConfig, Request};
use laneway::{Error, ErrorKind};
use laneway_fuzz::Script;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let mut life = Life::new(script.byte());
    for _ in 0..STEPS_MAX {
        if script.is_over() {
            break;
        }
        life.step(&mut script);
    }
    life.finish();
});

struct Life {
    link: Link,
    now: Now,
    cluster: Cluster,
    conn: Option<ConnId>,
    /// Frames on their way to us.
    coming: VecDeque<Bytes>,
    /// The broker has hung up.
    hung_up: bool,
    /// Requests without an answer.
    due: BTreeSet<u64>,
    next: u64,
    closed: bool,
    ready: bool,
}

impl Life {
    fn new(how: u8) -> Life {
        let config = ClusterConfig {
            seed: 1,
            ..ClusterConfig::default()
        };
        let mut cluster = Cluster::new(config);
        cluster.create_topic("t", 2).expect("new");
        let now = Now(1_000_000);
        let config = LinkConfig {
            handshake_timeout: Duration::from_secs(5),
            in_flight_max: 3,
            queued_max: 6,
            ..LinkConfig::default()
        };
        let mut link = match how & 3 {
            0 => Link::new_with_api_versions_max(
                Arc::new(config),
                "a:1".into(),
                now,
                i16::from(how >> 2) - 8,
            ),
            _ => Link::new(Arc::new(config), "a:1".into(), now),
        };
        if how & 4 != 0 {
            link = link.ignoring_throttle();
        }
        Life {
            link,
            now,
            cluster,
            conn: None,
            coming: VecDeque::new(),
            hung_up: false,
            due: BTreeSet::new(),
            next: 1,
            closed: false,
            ready: false,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 16 {
            0..=2 => self.send(script),
            3 => self.up(),
            4..=6 => {
                let frame = self.coming.pop_front();
                self.deliver(frame);
            }
            7 => {
                let frame = self.coming.pop_front().map(|f| damaged(&f, script));
                self.deliver(frame);
            }
            8 => {
                let n = script.below(64);
                let frame = Bytes::copy_from_slice(script.bytes(n));
                self.deliver(Some(frame));
            }
            9 if self.coming.len() > 1 => self.coming.swap(0, 1),
            10 => self.pass(Duration::from_millis(script.below(4_000) as u64)),
            11 => {
                let until = self.link.next_deadline().unwrap_or(self.now);
                self.pass(until.since(self.now));
            }
            12 => drop(self.coming.pop_front()),
            13 if script.byte() < 64 => self.down(),
            14 => {
                let again = self.coming.front().cloned();
                self.deliver(again);
            }
            _ => {}
        }
    }

    fn send(&mut self, script: &mut Script<'_>) {
        let group: Arc<str> = "g".into();
        let request = match script.below(4) {
            0 => Request::Metadata(MetadataRequest { topics: None }),
            1 => Request::FindCoordinator(FindCoordinatorRequest { group }),
            2 => Request::Heartbeat(HeartbeatRequest {
                group,
                generation: 1,
                member_id: "m".into(),
                instance_id: None,
            }),
            _ => Request::ListOffsets(ListOffsetsRequest {
                isolation: Isolation::ReadUncommitted,
                topics: vec![(
                    "t".into(),
                    vec![ListOffsetsPartition {
                        partition: 0,
                        current_leader_epoch: -1,
                        timestamp: -1,
                    }],
                )],
            }),
        };
        let token = self.next;
        self.next += 1;
        self.due.insert(token);
        let timeout = Duration::from_millis(script.below(3_000) as u64);
        self.link.send(self.now, Token(token), request, timeout);
        self.drain();
    }

    fn up(&mut self) {
        if self.conn.is_none() && !self.closed {
            self.conn = self.cluster.connect(self.now, 1);
            self.link.handle_up(self.now);
            self.drain();
        }
    }

    fn deliver(&mut self, frame: Option<Bytes>) {
        // A driver tells nothing of a link that it was told to close.
        let Some(frame) = frame.filter(|_| !self.closed) else {
            return;
        };
        let len = frame.len();
        let used = allocation_counter::measure(|| self.link.handle_frame(self.now, frame));
        let most = (len * FACTOR + FIXED_BYTES) as u64;
        assert!(used.bytes_max <= most, "{} bytes for {len}", used.bytes_max);
        self.drain();
    }

    fn down(&mut self) {
        if !self.closed {
            let cause = Error::new(ErrorKind::Transport, "cut").retriable();
            self.link.handle_down(self.now, cause);
            self.drain();
            assert!(self.closed);
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut same = 0;
        while let Some(at) = self.link.next_deadline().filter(|at| *at <= end) {
            same = if at <= self.now { same + 1 } else { 0 };
            assert!(same < 3, "a deadline in the past stays");
            self.now = self.now.max(at);
            self.link.handle_timeout(self.now);
            self.drain();
        }
        self.now = end;
        if self.hung_up && self.coming.is_empty() {
            self.down();
        }
    }

    fn drain(&mut self) {
        while let Some(action) = self.link.poll_action() {
            // What is sent to a link that is over is answered, and that is all.
            let late = matches!(action, LinkAction::Answer { .. });
            assert!(!self.closed || late, "after the end: {action:?}");
            match action {
                LinkAction::Send(mut frame) => {
                    let conn = self.conn.expect("only once it is up");
                    frame.advance(4);
                    self.cluster.handle_frame(self.now, conn, frame);
                }
                LinkAction::Answer { token, .. } => {
                    assert!(self.due.remove(&token.0), "answered once");
                }
                // It was given no credentials.
                LinkAction::Login | LinkAction::LoggedIn | LinkAction::Refused(_) => {
                    panic!("{action:?}")
                }
                LinkAction::Ready => assert!(!std::mem::replace(&mut self.ready, true)),
                LinkAction::Close { .. } => {
                    self.closed = true;
                    assert!(self.due.is_empty(), "all were answered before");
                }
            }
        }
        while let Some(action) = self.cluster.poll_action() {
            match action {
                BrokerAction::Send { mut frame, .. } => {
                    frame.advance(4);
                    self.coming.push_back(frame);
                }
                BrokerAction::Close { .. } => self.hung_up = true,
            }
        }
        assert_eq!(self.link.pending(), self.due.len());
        assert!(self.link.in_flight() <= 3);
        assert_eq!(self.link.is_over(), self.closed);
        if !self.due.is_empty() {
            assert!(self.link.next_deadline().is_some(), "waits for ever");
        }
    }

    /// Time alone ends every request.
    fn finish(&mut self) {
        self.pass(Duration::from_secs(3600));
        assert!(self.due.is_empty());
        self.down();
        assert_eq!(self.link.next_deadline(), None);
    }
}

fn damaged(frame: &Bytes, script: &mut Script<'_>) -> Bytes {
    let mut bytes = frame.to_vec();
    for _ in 0..=script.below(3) {
        let at = script.below(bytes.len().max(1));
        match (script.byte(), bytes.get_mut(at)) {
            (0..200, Some(byte)) => *byte = script.byte(),
            (200..230, _) => bytes.truncate(at),
            (_, _) => bytes.extend_from_slice(script.bytes(at)),
        }
    }
    bytes.into()
}

const STEPS_MAX: usize = 2_000;
/// What an answer may make the link hold for each byte; and what the requests take that it sets free.
const FACTOR: usize = laneway::wire::ALLOCATION_FACTOR;
const FIXED_BYTES: usize = 16 << 10;
