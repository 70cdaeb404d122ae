//! Random answers, faults and times: whatever brokers say, the view never goes back within one
//! topic, at most one request of each kind is out, and there is always a next step.

use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;
use crate::wire::Code;
use crate::wire::message::{
    FindCoordinatorResponse, MetadataResponse, PartitionMetadata, TopicMetadata,
};

/// What an answer says of a topic: code, which id, and each partition's leader and epoch.
type Said = (i16, u8, Vec<(i32, i32)>);

#[derive(Clone, Debug)]
enum Op {
    /// Answers whatever is asked first.
    Answer {
        code: i16,
        nodes: Vec<i32>,
        topics: Vec<Said>,
    },
    /// The peer that was asked first breaks.
    Break,
    Up(i32),
    Down(i32),
    Proven(i32),
    Refresh,
    Hint {
        partition: i32,
        leader: i32,
        epoch: i32,
    },
    CoordinatorFailed,
    Want(bool),
    Pass {
        ms: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let code = prop_oneof![12 => Just(0i16), 1 => Just(129), 1 => Just(-1)];
    let topic_code = prop_oneof![6 => Just(0i16), 2 => Just(3), 1 => Just(5), 1 => Just(-1)];
    let parts = prop::collection::vec((-1..5i32, -1..6i32), 0..4);
    let topics = prop::collection::vec((topic_code, 0..3u8, parts), 0..3);
    let nodes = prop::collection::vec(1..5i32, 0..4);
    prop_oneof![
        12 => (code, nodes, topics)
            .prop_map(|(code, nodes, topics)| Op::Answer { code, nodes, topics }),
        3 => Just(Op::Break),
        1 => (0..5i32).prop_map(Op::Up),
        1 => (0..5i32).prop_map(Op::Down),
        1 => (0..5i32).prop_map(Op::Proven),
        4 => Just(Op::Refresh),
        2 => (0..4i32, 1..5i32, 0..6i32)
            .prop_map(|(partition, leader, epoch)| Op::Hint { partition, leader, epoch }),
        2 => Just(Op::CoordinatorFailed),
        1 => any::<bool>().prop_map(Op::Want),
        8 => prop_oneof![0..500u64, 0..60_000u64].prop_map(|ms| Op::Pass { ms }),
    ]
}

struct Model {
    now: Now,
    cluster: Cluster,
    asked: VecDeque<(Token, Peer, Request)>,
    /// What the view had, while nothing says that the topic is another one.
    known: BTreeMap<Arc<str>, Topic>,
}

impl Model {
    fn new() -> Self {
        let now = Now(0);
        let cfg = ClusterConfig {
            bootstrap: vec![("a".into(), 1), ("b".into(), 2)],
            ..ClusterConfig::default()
        };
        let mut cluster = Cluster::new(cfg, now);
        cluster.want_coordinator(now, &"g".into());
        cluster.want_topics(now, &names());
        let mut model = Model {
            now,
            cluster,
            asked: VecDeque::new(),
            known: BTreeMap::new(),
        };
        model.check();
        model
    }

    fn apply(&mut self, op: &Op) {
        let now = self.now;
        match op.clone() {
            Op::Answer {
                code,
                nodes,
                topics,
            } => {
                if let Some((token, _, request)) = self.asked.pop_front() {
                    let answer = answer(&request, code, &nodes, &topics);
                    self.cluster.handle_response(now, token, Ok(answer));
                }
            }
            Op::Break => {
                if let Some((token, peer, _)) = self.asked.pop_front() {
                    let error = Error::new(ErrorKind::Transport, "broken").retriable();
                    self.cluster.link_down(now, peer);
                    self.cluster.handle_response(now, token, Err(error));
                }
            }
            Op::Up(n) => self.cluster.link_up(now, peer(n)),
            Op::Down(n) => self.cluster.link_down(now, peer(n)),
            Op::Proven(n) => self.cluster.proven(peer(n)),
            Op::Refresh => self.cluster.refresh(now),
            Op::Hint {
                partition,
                leader,
                epoch,
            } => {
                let endpoints = [endpoint(leader)];
                let leader = (NodeId(leader), epoch);
                self.cluster
                    .hint_leader("t0", partition, leader, &endpoints);
            }
            Op::CoordinatorFailed => self.cluster.coordinator_failed(now),
            Op::Want(true) => self.cluster.want_all(now),
            Op::Want(false) => self.cluster.want_topics(now, &names()),
            Op::Pass { ms } => self.pass(Duration::from_millis(ms)),
        }
        self.check();
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut steps = 0;
        while let Some(at) = self.cluster.next_deadline().filter(|at| *at <= end) {
            assert!(at >= self.now, "a deadline in the past");
            self.now = at;
            self.cluster.handle_timeout(at);
            self.check();
            steps += 1;
            assert!(steps < 500, "a storm");
        }
        self.now = end;
    }

    fn check(&mut self) {
        while let Some(action) = self.cluster.poll_action() {
            match action {
                ClusterAction::Send {
                    token, to, request, ..
                } => {
                    assert!(
                        self.cluster.address(to).is_some(),
                        "only who has an address"
                    );
                    self.asked.push_back((token, to, request));
                }
                ClusterAction::TopicRecreated { topic, .. }
                | ClusterAction::TopicGone { topic } => {
                    self.known.remove(&topic);
                }
                ClusterAction::Fatal(error) => panic!("nothing here is fatal: {error}"),
                _ => {}
            }
        }
        let metadata = |a: &&(Token, Peer, Request)| matches!(a.2, Request::Metadata(_));
        let metadata = self.asked.iter().filter(metadata).count();
        let lookups = self.asked.len() - metadata;
        assert!(metadata <= 1 && lookups <= 1);
        let lookup_done = lookups == 1 || self.cluster.coordinator().is_some();
        let waits = self.cluster.next_deadline().is_some();
        assert!(waits || (metadata == 1 && lookup_done), "a lost wake-up");
        let now: BTreeMap<Arc<str>, Topic> = self
            .cluster
            .topics()
            .map(|(n, t)| (n.clone(), t.clone()))
            .collect();
        for (name, before) in &self.known {
            let Some(after) = now.get(name) else { continue };
            assert!(
                before.id.is_zero() || before.id == after.id,
                "another topic, untold"
            );
            for (partition, was) in &before.partitions {
                let is = after.partitions.get(partition).expect("never loses one");
                assert!(is.leader_epoch >= was.leader_epoch, "never back");
            }
        }
        for (name, topic) in &now {
            if !topic.id.is_zero() {
                assert_eq!(self.cluster.topic_by_id(topic.id), Some(name));
            }
            for p in topic.partitions.values() {
                let reachable = |n| self.cluster.address(Peer::Node(n)).is_some();
                assert!(p.leader.is_none_or(reachable), "a leader has an address");
            }
        }
        self.known = now;
    }
}

fn names() -> Vec<Arc<str>> {
    vec!["t0".into(), "t1".into()]
}

fn peer(n: i32) -> Peer {
    if n == 0 {
        Peer::Bootstrap(1)
    } else {
        Peer::Node(NodeId(n))
    }
}

fn endpoint(n: i32) -> BrokerEndpoint {
    BrokerEndpoint {
        node: NodeId(n),
        host: "h".into(),
        port: 9,
        rack: None,
    }
}

fn answer(request: &Request, code: i16, nodes: &[i32], topics: &[Said]) -> Response {
    let brokers: Vec<BrokerEndpoint> = nodes.iter().map(|n| endpoint(*n)).collect();
    if let Request::FindCoordinator(_) = request {
        return Response::FindCoordinator(FindCoordinatorResponse {
            throttle: Duration::ZERO,
            code: Code(if code == 0 { 0 } else { 15 }),
            message: None,
            coordinator: brokers.first().cloned(),
        });
    }
    let partition = |(i, (leader, epoch)): (usize, &(i32, i32))| PartitionMetadata {
        code: Code(0),
        partition: i as i32,
        leader: *leader,
        leader_epoch: *epoch,
        replicas: Vec::new(),
        isr: Vec::new(),
    };
    // Topics never share an id.
    let id = |topic: usize, which: u8| match which {
        0 => TopicId::ZERO,
        n => TopicId([n + 10 * topic as u8; 16]),
    };
    let topic = |(i, (code, which, parts)): (usize, &Said)| TopicMetadata {
        code: Code(*code),
        name: Some(format!("t{i}").into()),
        id: id(i, *which),
        internal: false,
        partitions: parts.iter().enumerate().map(partition).collect(),
    };
    Response::Metadata(MetadataResponse {
        code: Code(code),
        brokers,
        topics: topics.iter().enumerate().map(topic).collect(),
        ..MetadataResponse::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// F22, F23, F28, F34, F41, F46, L31, L36, G17, G18 in any order that chance makes.
    #[test]
    fn the_view_never_goes_back(ops in prop::collection::vec(op(), 1..150)) {
        let mut model = Model::new();
        for op in &ops {
            model.apply(op);
        }
    }
}
