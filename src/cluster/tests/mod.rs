//! The scenarios of families F, L and G that are about metadata, addresses and coordinators.

use super::*;
use crate::error::ErrorKind;
use crate::wire::Code;
use crate::wire::message::{
    FindCoordinatorResponse, MetadataResponse, PartitionMetadata, TopicMetadata,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SEC: fn(u64) -> Duration = Duration::from_secs;
const A: TopicId = TopicId([1; 16]);
const B: TopicId = TopicId([2; 16]);

/// A cluster machine, its time, and what it did.
struct Bench {
    now: Now,
    cluster: Cluster,
    /// Requests that nobody has answered yet.
    asked: VecDeque<Asked>,
    /// Everything else that it did since it was last looked at.
    did: Vec<ClusterAction>,
    /// When each request was sent, ever.
    sent: Vec<(Now, Peer)>,
}

#[derive(Debug)]
struct Asked {
    token: Token,
    to: Peer,
    request: Request,
}

impl Bench {
    fn new(bootstraps: usize) -> Self {
        Self::with(bootstraps, |_| {})
    }

    fn with(bootstraps: usize, change: impl FnOnce(&mut ClusterConfig)) -> Self {
        let address = |i: usize| (Arc::from(format!("boot{i}")), 9092);
        let mut cfg = ClusterConfig {
            bootstrap: (0..bootstraps).map(address).collect(),
            seed: [9; 32],
            ..ClusterConfig::default()
        };
        change(&mut cfg);
        let now = Now(1_000_000_000);
        Bench {
            now,
            cluster: Cluster::new(cfg, now),
            asked: VecDeque::new(),
            did: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// One that knows `brokers` and the topics that `answer` describes.
    fn settled(answer: MetadataResponse) -> Self {
        let mut b = Bench::new(1);
        let names: Vec<Arc<str>> = answer
            .topics
            .iter()
            .filter_map(|t| t.name.clone())
            .collect();
        b.want(&names);
        b.metadata(answer);
        b.did.clear();
        b
    }

    fn want(&mut self, names: &[Arc<str>]) {
        self.cluster.want_topics(self.now, names);
        self.drain();
    }

    fn refresh(&mut self) {
        self.cluster.refresh(self.now);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(action) = self.cluster.poll_action() {
            match action {
                ClusterAction::Send {
                    token,
                    to,
                    request,
                    timeout,
                } => {
                    assert_eq!(timeout, SEC(30));
                    self.sent.push((self.now, to));
                    self.asked.push_back(Asked { token, to, request });
                }
                other => self.did.push(other),
            }
        }
        assert!(
            self.asked.len() <= 2,
            "one metadata request and one look-up: {:?}",
            self.asked
        );
    }

    fn answer(&mut self, asked: &Asked, result: Result<Response, Error>) {
        self.cluster.handle_response(self.now, asked.token, result);
        self.drain();
    }

    /// Answers the one metadata request in flight.
    fn metadata(&mut self, answer: MetadataResponse) {
        let at = self
            .asked
            .iter()
            .position(|a| matches!(a.request, Request::Metadata(_)));
        let asked = self
            .asked
            .remove(at.expect("a metadata request"))
            .expect("just found");
        self.answer(&asked, Ok(Response::Metadata(answer)));
    }

    /// Waits for the next metadata request and answers it.
    fn next_metadata(&mut self, answer: MetadataResponse) {
        while self.asked.is_empty() {
            self.wake();
        }
        self.metadata(answer);
    }

    fn lookup(&mut self, answer: FindCoordinatorResponse) {
        let lookup = |a: &Asked| matches!(a.request, Request::FindCoordinator(_));
        let at = self.asked.iter().position(lookup);
        let asked = self
            .asked
            .remove(at.expect("a look-up"))
            .expect("just found");
        self.answer(&asked, Ok(Response::FindCoordinator(answer)));
    }

    /// The link to whoever was asked first breaks.
    fn fail(&mut self) -> Peer {
        let asked = self.asked.pop_front().expect("a request");
        let error = Error::new(ErrorKind::Transport, "refused").retriable();
        self.cluster.link_down(self.now, asked.to);
        self.answer(&asked, Err(error));
        asked.to
    }

    fn wake(&mut self) {
        let at = self
            .cluster
            .next_deadline()
            .expect("a deadline or an answer to come");
        assert!(at >= self.now, "a deadline in the past makes a loop");
        self.now = at;
        self.cluster.handle_timeout(self.now);
        self.drain();
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.cluster.next_deadline().is_some_and(|at| at <= end) {
            self.wake();
        }
        self.now = end;
    }

    /// Plays against a cluster that does as `reply` says, for `time`.
    fn play(
        &mut self,
        time: Duration,
        mut reply: impl FnMut(Peer, &Request) -> Result<Response, Error>,
    ) {
        let end = self.now + time;
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < 10_000, "a storm");
            if let Some(asked) = self.asked.pop_front() {
                let result = reply(asked.to, &asked.request);
                match &result {
                    Ok(_) => self.cluster.link_up(self.now, asked.to),
                    Err(_) => self.cluster.link_down(self.now, asked.to),
                }
                self.answer(&asked, result);
            } else if self.cluster.next_deadline().is_some_and(|at| at <= end) {
                self.wake();
            } else {
                self.now = end;
                return;
            }
        }
    }

    fn leader(&self, partition: i32) -> Option<(i32, i32)> {
        let (node, epoch) = self.cluster.leader("t", partition)?;
        Some((node.0, epoch))
    }

    fn has(&self, wanted: impl Fn(&ClusterAction) -> bool) -> bool {
        self.did.iter().any(wanted)
    }

    fn changed(&self) -> bool {
        self.has(|a| matches!(a, ClusterAction::Changed))
    }
}

fn node(id: i32) -> BrokerEndpoint {
    BrokerEndpoint {
        node: NodeId(id),
        host: Arc::from(format!("node{id}")),
        port: 9092,
        rack: None,
    }
}

fn part(partition: i32, leader: i32, leader_epoch: i32) -> PartitionMetadata {
    PartitionMetadata {
        code: Code(if leader < 0 { 5 } else { 0 }),
        partition,
        leader,
        leader_epoch,
        replicas: vec![1, 2],
        isr: vec![1, 2],
    }
}

fn topic(name: &str, id: TopicId, partitions: Vec<PartitionMetadata>) -> TopicMetadata {
    TopicMetadata {
        code: Code(0),
        name: Some(name.into()),
        id,
        internal: false,
        partitions,
    }
}

fn broken(name: &str, code: i16) -> TopicMetadata {
    TopicMetadata {
        code: Code(code),
        ..topic(name, TopicId::ZERO, Vec::new())
    }
}

fn meta(nodes: &[i32], topics: Vec<TopicMetadata>) -> MetadataResponse {
    MetadataResponse {
        brokers: nodes.iter().map(|n| node(*n)).collect(),
        cluster_id: Some("c".into()),
        controller: 1,
        topics,
        ..MetadataResponse::default()
    }
}

fn t(partitions: Vec<PartitionMetadata>) -> MetadataResponse {
    meta(&[1, 2], vec![topic("t", A, partitions)])
}

fn coordinator(id: i32) -> FindCoordinatorResponse {
    FindCoordinatorResponse {
        throttle: Duration::ZERO,
        code: Code(0),
        message: None,
        coordinator: Some(node(id)),
    }
}

fn no_coordinator(code: i16) -> FindCoordinatorResponse {
    FindCoordinatorResponse {
        code: Code(code),
        coordinator: None,
        ..coordinator(0)
    }
}

fn refused() -> Error {
    Error::new(ErrorKind::Transport, "refused").retriable()
}

impl Bench {
    fn next_metadata_by_age(&mut self, answer: MetadataResponse) {
        self.pass(SEC(300));
        self.metadata(answer);
    }
}

mod coordinator;
mod peers;
mod topics;
