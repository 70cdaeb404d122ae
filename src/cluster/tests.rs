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

#[test]
fn idle_until_something_is_wanted_and_then_fresh_by_age() {
    let mut b = Bench::new(1);
    assert_eq!(b.cluster.next_deadline(), None);
    b.want(&["t".into()]);
    b.metadata(t(vec![part(0, 1, 3), part(1, 2, 4)]));
    assert_eq!(b.leader(0), Some((1, 3)));
    assert_eq!(b.leader(1), Some((2, 4)));
    assert!(b.changed());
    let counts = b.cluster.partition_counts(&["t".into(), "other".into()]);
    assert_eq!(counts, BTreeMap::from([("t".into(), 2)]));
    assert_eq!(b.cluster.topic_by_id(A).map(|n| &**n), Some("t"));
    // An idle client is idle: the next request is for age alone, and asks a broker by number.
    let age = b.cluster.next_deadline().expect("a refresh").since(b.now);
    assert!(age >= SEC(270) && age <= SEC(300), "{age:?}");
    b.wake();
    b.did.clear();
    b.metadata(t(vec![part(0, 1, 3), part(1, 2, 4)]));
    assert!(!b.changed(), "the same again is no news");
}

/// F22: epoch -1 of a leaderless moment does not overwrite the one that is known.
#[test]
fn f22_epoch_minus_one_keeps_the_known_epoch() {
    let mut b = Bench::settled(t(vec![part(0, 1, 6)]));
    b.refresh();
    b.next_metadata(t(vec![part(0, -1, -1)]));
    assert_eq!(b.leader(0), None);
    let known = b.cluster.topic("t").expect("known").partitions[&0].leader_epoch;
    assert_eq!(known, 6);
    b.next_metadata(t(vec![part(0, 1, 6)]));
    assert_eq!(b.leader(0), Some((1, 6)));
    // Another id is another topic: its epochs begin anew.
    b.refresh();
    b.next_metadata(meta(&[1, 2], vec![topic("t", B, vec![part(0, 2, 0)])]));
    assert_eq!(b.leader(0), Some((2, 0)));
}

/// F23: a broker that lags does not bring an older leader back.
#[test]
fn f23_metadata_does_not_go_back_in_time() {
    let mut b = Bench::settled(t(vec![part(0, 2, 9), part(1, 1, 4)]));
    for _ in 0..20 {
        b.refresh();
        b.next_metadata(t(vec![part(0, 1, 8), part(1, 1, 4)]));
        assert_eq!(
            b.leader(0),
            Some((2, 9)),
            "same id: never back, however often it is said"
        );
        b.pass(SEC(1));
    }
    b.next_metadata(t(vec![part(0, 1, 10), part(1, 1, 4)]));
    assert_eq!(b.leader(0), Some((1, 10)));
}

/// F23: an older answer makes the next request go to someone else.
#[test]
fn f23_the_next_answer_is_asked_of_another_broker() {
    let mut b = Bench::settled(t(vec![part(0, 2, 9)]));
    b.cluster.link_up(b.now, Peer::Node(NodeId(1)));
    b.cluster.link_up(b.now, Peer::Node(NodeId(2)));
    b.cluster.link_down(b.now, Peer::Bootstrap(0));
    b.pass(SEC(1));
    b.refresh();
    b.drain();
    let first = b.asked[0].to;
    b.metadata(t(vec![part(0, 1, 8)]));
    b.wake();
    assert_ne!(b.asked[0].to, first);
}

/// F25: a replica that no answer named has no address; asking again is paced.
#[test]
fn f25_an_unknown_replica_is_told_by_its_missing_address() {
    let mut b = Bench::settled(t(vec![part(0, 1, 1)]));
    let stranger = Peer::Node(NodeId(99));
    assert_eq!(b.cluster.address(stranger), None);
    assert_eq!(b.cluster.may_connect(b.now, stranger), Err(Now::NEVER));
    b.refresh();
    b.next_metadata(meta(&[1, 2, 99], vec![topic("t", A, vec![part(0, 1, 1)])]));
    assert_eq!(b.cluster.address(stranger), Some(("node99".into(), 9092)));
}

/// F28: a topic deleted and made anew is noticed by its id, and a broker that lags does not undo
/// that.
#[test]
fn f28_a_recreated_topic_is_noticed_by_id() {
    let mut b = Bench::settled(t(vec![part(0, 1, 30), part(1, 1, 30)]));
    b.refresh();
    b.next_metadata(meta(&[1, 2], vec![topic("t", B, vec![part(0, 2, 0)])]));
    let told = |a: &ClusterAction| matches!(a, ClusterAction::TopicRecreated { topic, old: A, new: B } if &**topic == "t");
    assert!(b.has(told));
    assert_eq!(b.leader(0), Some((2, 0)));
    assert_eq!(b.cluster.partition_counts(&["t".into()])["t"], 1);
    assert_eq!(b.cluster.topic_by_id(A), None);
    assert_eq!(b.cluster.topic_by_id(B).map(|n| &**n), Some("t"));
    b.did.clear();
    // A stale broker still tells the old id, four times and for a while.
    for _ in 0..4 {
        b.refresh();
        b.next_metadata(t(vec![part(0, 1, 31), part(1, 1, 31)]));
        b.pass(SEC(3));
    }
    assert!(
        !b.has(|a| matches!(a, ClusterAction::TopicRecreated { .. })),
        "{:?}",
        b.did
    );
    assert_eq!(b.leader(0), Some((2, 0)));
    assert_eq!(b.cluster.topic_by_id(B).map(|n| &**n), Some("t"));
}

/// F28: whichever of two ids we saw first, the one that lasts wins.
#[test]
fn f28_an_id_that_lasts_is_believed_even_if_it_was_replaced_before() {
    let mut b = Bench::settled(meta(&[1], vec![topic("t", B, vec![part(0, 1, 0)])]));
    // A broker that lags makes us believe in A for a moment.
    b.refresh();
    b.next_metadata(meta(&[1], vec![topic("t", A, vec![part(0, 1, 9)])]));
    assert_eq!(b.cluster.topic("t").map(|t| t.id), Some(A));
    b.play(SEC(30), |_, _| {
        Ok(Response::Metadata(meta(
            &[1],
            vec![topic("t", B, vec![part(0, 1, 0)])],
        )))
    });
    assert_eq!(b.cluster.topic("t").map(|t| t.id), Some(B));
}

/// F28: brokers without ids: numbers that stay lower are a new topic; a moment of them is not.
#[test]
fn f28_without_ids_lower_epochs_that_last_are_a_new_topic() {
    let zero = |epoch| {
        meta(
            &[1],
            vec![topic("t", TopicId::ZERO, vec![part(0, 1, epoch)])],
        )
    };
    let mut b = Bench::settled(zero(30));
    b.refresh();
    b.next_metadata(zero(0));
    assert_eq!(b.leader(0), Some((1, 30)));
    b.play(SEC(30), |_, _| Ok(Response::Metadata(zero(0))));
    assert_eq!(b.leader(0), Some((1, 0)));
    let told = |a: &ClusterAction| matches!(a, ClusterAction::TopicRecreated { old, new, .. } if old.is_zero() && new.is_zero());
    assert!(b.has(told));
}

/// F28: a topic that is gone for good is told once, and stays wanted.
#[test]
fn f28_a_deleted_topic_is_told_after_a_while_and_may_come_back() {
    let mut b = Bench::settled(t(vec![part(0, 1, 3)]));
    b.refresh();
    b.next_metadata(meta(&[1, 2], vec![broken("t", 3)]));
    assert_eq!(b.leader(0), Some((1, 3)), "one answer is not enough");
    b.play(SEC(30), |_, _| {
        Ok(Response::Metadata(meta(&[1, 2], vec![broken("t", 3)])))
    });
    let gone = |a: &&ClusterAction| matches!(a, ClusterAction::TopicGone { .. });
    assert_eq!(b.did.iter().filter(gone).count(), 1);
    assert!(b.cluster.topic("t").is_none());
    assert!(b.cluster.topic_by_id(A).is_none());
    // Another topic of its name is another topic, also for whoever held offsets of the first.
    b.play(SEC(2), |_, _| {
        Ok(Response::Metadata(meta(
            &[1, 2],
            vec![topic("t", B, vec![part(0, 2, 0)])],
        )))
    });
    assert_eq!(b.leader(0), Some((2, 0)));
    let told =
        |a: &ClusterAction| matches!(a, ClusterAction::TopicRecreated { old: A, new: B, .. });
    assert!(b.has(told));
}

/// F28: the same topic after a long absence (a right that was taken and given back) is the same.
#[test]
fn f28_the_same_id_after_an_absence_is_no_new_topic() {
    let mut b = Bench::settled(t(vec![part(0, 1, 3)]));
    b.refresh();
    b.play(SEC(30), |_, _| {
        Ok(Response::Metadata(meta(&[1, 2], vec![broken("t", 3)])))
    });
    assert!(b.cluster.topic("t").is_none());
    b.play(SEC(30), |_, _| {
        Ok(Response::Metadata(t(vec![part(0, 1, 3)])))
    });
    assert_eq!(b.leader(0), Some((1, 3)));
    assert!(!b.has(|a| matches!(a, ClusterAction::TopicRecreated { .. })));
}

/// F28: also where every topic is wanted; and nobody waits for what is gone.
#[test]
fn f28_a_topic_of_a_pattern_that_comes_back_is_another() {
    let mut b = Bench::new(1);
    b.cluster.want_all(b.now);
    b.drain();
    let u = || topic("u", TopicId([7; 16]), vec![part(0, 1, 0)]);
    b.metadata(meta(&[1], vec![u(), topic("t", A, vec![part(0, 1, 3)])]));
    b.refresh();
    b.play(SEC(60), |_, _| {
        Ok(Response::Metadata(meta(&[1], vec![u()])))
    });
    assert!(b.has(|a| matches!(a, ClusterAction::TopicGone { .. })));
    let sent = b.sent.len();
    b.play(SEC(60), |_, _| {
        Ok(Response::Metadata(meta(&[1], vec![u()])))
    });
    assert_eq!(b.sent.len(), sent, "nobody waits for it");
    b.refresh();
    b.next_metadata(meta(&[1], vec![u(), topic("t", B, vec![part(0, 1, 0)])]));
    let told =
        |a: &ClusterAction| matches!(a, ClusterAction::TopicRecreated { old: A, new: B, .. });
    assert!(b.has(told));
}

/// F29: an id that nobody knows yet is a reason to ask again, paced, and no error.
#[test]
fn f29_a_topic_just_made_is_waited_for() {
    let mut b = Bench::new(1);
    b.want(&["t".into()]);
    for code in [5, 3, 100] {
        b.next_metadata(meta(&[1], vec![broken("t", code)]));
        assert!(b.cluster.topic("t").is_none());
        assert!(!b.has(|a| matches!(a, ClusterAction::Fatal(_))));
        assert!(b.asked.is_empty(), "asking again is paced");
    }
    b.next_metadata(t(vec![part(0, 1, 0)]));
    assert_eq!(b.leader(0), Some((1, 0)));
}

/// Q01, F30: a broker without ids in a cluster with ids takes none away.
#[test]
fn f30_a_zero_id_does_not_replace_a_known_one() {
    let mut b = Bench::settled(t(vec![part(0, 1, 3)]));
    b.refresh();
    b.next_metadata(meta(
        &[1, 2],
        vec![topic("t", TopicId::ZERO, vec![part(0, 2, 4)])],
    ));
    assert_eq!(b.leader(0), Some((2, 4)));
    assert_eq!(b.cluster.topic("t").map(|t| t.id), Some(A));
    assert!(!b.has(|a| matches!(a, ClusterAction::TopicRecreated { .. })));
    // And where none was known, the first one is taken without a word.
    let mut b = Bench::settled(meta(
        &[1],
        vec![topic("t", TopicId::ZERO, vec![part(0, 1, 4)])],
    ));
    b.refresh();
    b.next_metadata(meta(&[1], vec![topic("t", A, vec![part(0, 1, 4)])]));
    assert_eq!(b.cluster.topic_by_id(A).map(|n| &**n), Some("t"));
    assert!(!b.has(|a| matches!(a, ClusterAction::TopicRecreated { .. })));
}

/// F34: a leader without an address is none, and is asked for again.
#[test]
fn f34_a_leader_without_an_entry_is_no_leader() {
    let mut b = Bench::new(1);
    b.want(&["t".into()]);
    b.metadata(meta(
        &[1],
        vec![topic("t", A, vec![part(0, 7, 3), part(1, 1, 2)])],
    ));
    assert_eq!(b.leader(0), None);
    assert_eq!(b.leader(1), Some((1, 2)));
    let wait = b.cluster.next_deadline().expect("a refresh").since(b.now);
    assert!(wait <= MS(120), "{wait:?}");
    b.next_metadata(meta(
        &[1, 7],
        vec![topic("t", A, vec![part(0, 7, 3), part(1, 1, 2)])],
    ));
    assert_eq!(b.leader(0), Some((7, 3)));
}

/// F35: a partition that appears later is noticed, and told.
#[test]
fn f35_a_new_partition_is_noticed() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0), part(1, 2, 0)]));
    b.wake();
    b.metadata(t(vec![part(0, 1, 0), part(1, 2, 0), part(2, 1, 0)]));
    assert!(b.changed());
    assert_eq!(b.cluster.partition_counts(&["t".into()])["t"], 3);
    assert_eq!(b.leader(2), Some((1, 0)));
}

/// F41: a leader hint adds a broker; it does not replace those that we know.
#[test]
fn f41_a_hint_is_merged() {
    let mut b = Bench::settled(t(vec![part(0, 1, 3), part(1, 2, 3)]));
    b.cluster.hint_leader("t", 0, (NodeId(4), 5), &[node(4)]);
    b.drain();
    assert!(b.changed());
    assert_eq!(b.leader(0), Some((4, 5)));
    assert_eq!(b.leader(1), Some((2, 3)));
    let known: Vec<i32> = b.cluster.brokers().map(|e| e.node.0).collect();
    assert_eq!(known, [1, 2, 4]);
    // An older hint is none, and so is one for what we do not know.
    b.did.clear();
    b.cluster.hint_leader("t", 0, (NodeId(1), 4), &[node(1)]);
    b.cluster.hint_leader("t", 9, (NodeId(1), 4), &[node(1)]);
    b.cluster.hint_leader("u", 0, (NodeId(1), 4), &[node(1)]);
    b.drain();
    assert!(!b.changed());
    // Metadata that is older than the hint takes neither the leader nor its address away.
    b.refresh();
    b.next_metadata(t(vec![part(0, 1, 3), part(1, 2, 3)]));
    assert_eq!(b.leader(0), Some((4, 5)));
    // Newer metadata does.
    b.next_metadata(t(vec![part(0, 2, 6), part(1, 2, 3)]));
    assert_eq!(b.leader(0), Some((2, 6)));
    b.next_metadata_by_age(t(vec![part(0, 2, 6), part(1, 2, 3)]));
    assert_eq!(b.cluster.address(Peer::Node(NodeId(4))), None);
}

impl Bench {
    fn next_metadata_by_age(&mut self, answer: MetadataResponse) {
        self.pass(SEC(300));
        self.metadata(answer);
    }
}

/// F46: a broker that lags does not make a partition disappear, and one that an assignment names
/// is waited for, paced and aloud.
#[test]
fn f46_a_partition_that_metadata_omits_is_pending() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0), part(1, 2, 0)]));
    let p2 = TopicPartition::new("t", 2);
    b.cluster
        .expect_partitions(b.now, &[TopicPartition::new("t", 0), p2.clone()]);
    b.drain();
    let start = b.sent.len();
    b.play(SEC(60), |_, _| {
        Ok(Response::Metadata(t(vec![part(0, 1, 0), part(1, 2, 0)])))
    });
    let asked = b.sent.len() - start;
    assert!((10..=80).contains(&asked), "{asked} requests in a minute");
    let alarms: Vec<_> = b
        .did
        .iter()
        .filter(|a| {
            matches!(a, ClusterAction::Notice(ClusterNotice::PartitionMissing { partition, .. })
                if *partition == p2)
        })
        .collect();
    assert_eq!(alarms.len(), 2, "after five seconds and after fifty");
    b.play(SEC(2), |_, _| {
        Ok(Response::Metadata(t(vec![
            part(0, 1, 0),
            part(1, 2, 0),
            part(2, 2, 0),
        ])))
    });
    assert_eq!(b.leader(2), Some((2, 0)));
    // A broker that lags says two partitions again.
    b.refresh();
    b.next_metadata(t(vec![part(0, 1, 0), part(1, 2, 0)]));
    assert_eq!(b.leader(2), Some((2, 0)));
    assert_eq!(b.cluster.partition_counts(&["t".into()])["t"], 3);
}

/// L15: several addresses: each is tried, in a shuffled order, without a pause between them.
#[test]
fn l15_every_bootstrap_address_is_tried_at_once() {
    let mut firsts = BTreeSet::new();
    for seed in 0..32 {
        let mut b = Bench::with(3, |c| c.seed = [seed; 32]);
        b.want(&["t".into()]);
        let start = b.now;
        let tried: BTreeSet<Peer> = (0..3).map(|_| b.fail()).collect();
        assert_eq!(tried.len(), 3);
        assert_eq!(b.now, start);
        assert!(b.asked.is_empty(), "then there is a pause");
        firsts.insert(b.sent[0].1);
    }
    assert_eq!(firsts.len(), 3, "the start is spread");
}

/// Q11: an address leads to a node that does not know Metadata: the next one is asked, at once.
#[test]
fn q11_a_bootstrap_without_metadata_is_passed_over() {
    let mut b = Bench::new(2);
    b.want(&["t".into()]);
    let (start, asked) = (b.now, b.asked.pop_front().expect("asked"));
    b.cluster.link_up(b.now, asked.to);
    let error = Error::new(ErrorKind::Peer, "the broker does not know Metadata");
    b.answer(&asked, Err(error));
    assert_ne!(b.asked[0].to, asked.to);
    b.metadata(t(vec![part(0, 1, 0)]));
    assert_eq!((b.leader(0), b.now), (Some((1, 0)), start));
}

/// L15: an address is looked up by its name at every attempt; the machine keeps only the name.
#[test]
fn l15_a_dead_address_does_not_stop_the_others() {
    let mut b = Bench::new(2);
    b.want(&["t".into()]);
    let dead = b.fail();
    assert_ne!(b.asked[0].to, dead);
    b.metadata(t(vec![part(0, 1, 0)]));
    assert_eq!(b.leader(0), Some((1, 0)));
}

/// L17: every broker that we knew is gone; the bootstrap names lead to new ones.
#[test]
fn l17_all_known_brokers_replaced() {
    let mut b = Bench::settled(t(vec![part(0, 1, 5), part(1, 2, 5)]));
    b.cluster.link_down(b.now, Peer::Bootstrap(0));
    b.refresh();
    let start = b.now;
    let new = || {
        meta(
            &[11, 12],
            vec![topic("t", A, vec![part(0, 11, 6), part(1, 12, 6)])],
        )
    };
    b.play(SEC(20), |peer, _| match peer {
        Peer::Bootstrap(_) => Ok(Response::Metadata(new())),
        Peer::Node(n) if n.0 > 10 => Ok(Response::Metadata(new())),
        Peer::Node(_) => Err(refused()),
    });
    assert_eq!(b.leader(0), Some((11, 6)));
    assert_eq!(b.leader(1), Some((12, 6)));
    assert_eq!(b.cluster.address(Peer::Node(NodeId(1))), None);
    let found = b
        .sent
        .iter()
        .position(|(_, p)| *p == Peer::Bootstrap(0) && b.sent[0].1 == *p);
    assert!(found.is_some());
    assert!(
        b.sent
            .iter()
            .any(|(at, p)| *p == Peer::Bootstrap(0) && at.since(start) < SEC(5))
    );
}

/// L17: brokers that accept and then time out are given up after a bounded time.
#[test]
fn l17_without_metadata_for_long_the_brokers_are_given_up() {
    let mut b = Bench::settled(t(vec![part(0, 1, 5)]));
    b.refresh();
    let start = b.now;
    let mut given_up = None;
    for _ in 0..100 {
        while b.asked.is_empty() {
            b.wake();
        }
        let asked = b.asked.pop_front().expect("asked");
        if asked.to == Peer::Bootstrap(0) && b.now.since(start) > SEC(60) {
            given_up = Some(b.now);
            break;
        }
        // Links stay up; only the answers do not come.
        b.cluster.link_up(b.now, asked.to);
        b.now = b.now + SEC(30);
        b.answer(&asked, Err(refused()));
        for n in [1, 2] {
            b.cluster.link_up(b.now, Peer::Node(NodeId(n)));
        }
        b.cluster.link_down(b.now, Peer::Bootstrap(0));
    }
    let after = given_up
        .expect("the bootstrap address is asked again")
        .since(start);
    assert!(after >= SEC(300) && after < SEC(400), "{after:?}");
    assert!(b.has(|a| matches!(a, ClusterAction::Notice(ClusterNotice::Rebootstrap))));
}

/// L18: code 129 is obeyed.
#[test]
fn l18_code_129_is_obeyed() {
    let mut b = Bench::settled(t(vec![part(0, 1, 5)]));
    b.cluster.link_up(b.now, Peer::Node(NodeId(1)));
    b.cluster.link_down(b.now, Peer::Bootstrap(0));
    b.pass(SEC(1));
    b.refresh();
    b.drain();
    assert_eq!(b.asked[0].to, Peer::Node(NodeId(1)));
    b.metadata(MetadataResponse {
        code: Code(129),
        ..MetadataResponse::default()
    });
    b.wake();
    assert_eq!(b.asked[0].to, Peer::Bootstrap(0));
    b.metadata(meta(&[5], vec![topic("t", A, vec![part(0, 5, 6)])]));
    assert_eq!(b.leader(0), Some((5, 6)));
    assert_eq!(b.cluster.address(Peer::Node(NodeId(1))), None);
}

/// L18: a cluster that answers 129 for ever is asked at a bounded rate.
#[test]
fn l18_rebootstrap_is_no_loop() {
    let mut b = Bench::new(2);
    b.want(&["t".into()]);
    b.play(SEC(300), |_, _| {
        Ok(Response::Metadata(MetadataResponse {
            code: Code(129),
            ..MetadataResponse::default()
        }))
    });
    assert!(
        (20..70).contains(&b.sent.len()),
        "{} in five minutes",
        b.sent.len()
    );
    // Also when the bootstrap answers well and every broker then says 129.
    let mut b = Bench::new(1);
    b.want(&["t".into()]);
    b.play(SEC(300), |peer, _| {
        Ok(Response::Metadata(match peer {
            // Leaderless, so that it is asked again soon.
            Peer::Bootstrap(_) => t(vec![part(0, -1, -1)]),
            Peer::Node(_) => MetadataResponse {
                code: Code(129),
                ..MetadataResponse::default()
            },
        }))
    });
    assert!(b.sent.len() < 400, "{} in five minutes", b.sent.len());
}

/// L31: a broker that accepts and then drops is tried ever more rarely: only an answer resets.
#[test]
fn l31_accepting_is_no_success() {
    let mut b = Bench::new(1);
    let peer = Peer::Bootstrap(0);
    let mut attempts = 0;
    let end = b.now + SEC(60);
    while b.now < end {
        match b.cluster.may_connect(b.now, peer) {
            Ok(()) => {
                attempts += 1;
                b.cluster.link_up(b.now, peer);
                b.now = b.now + MS(1);
                b.cluster.link_down(b.now, peer);
            }
            Err(at) => b.now = at,
        }
    }
    assert!(
        (8..=20).contains(&attempts),
        "{attempts} attempts in a minute"
    );
    b.cluster.proven(peer);
    assert_eq!(b.cluster.may_connect(b.now, peer), Ok(()));
    b.cluster.link_down(b.now, peer);
    let wait = b
        .cluster
        .may_connect(b.now, peer)
        .expect_err("a pause")
        .since(b.now);
    assert!(wait <= MS(60), "{wait:?}");
}

/// L31: many links that one fault takes down are one failure.
#[test]
fn l31_one_fault_counts_once() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    let peer = Peer::Node(NodeId(1));
    for _ in 0..200 {
        b.cluster.link_down(b.now, peer);
    }
    let wait = b
        .cluster
        .may_connect(b.now, peer)
        .expect_err("a pause")
        .since(b.now);
    assert!(wait <= MS(60), "{wait:?}");
}

/// L36: an error for one topic leaves the others, and what is known of it, as they are.
#[test]
fn l36_errors_are_merged_per_topic() {
    let mut b = Bench::settled(meta(
        &[1, 2],
        vec![
            topic("t", A, vec![part(0, 1, 3)]),
            topic("u", B, vec![part(0, 1, 1)]),
        ],
    ));
    b.refresh();
    b.next_metadata(meta(
        &[1, 2],
        vec![broken("t", -1), topic("u", B, vec![part(0, 2, 2)])],
    ));
    assert_eq!(b.leader(0), Some((1, 3)));
    assert_eq!(b.cluster.topic("t").and_then(|t| t.error), Some(Code(-1)));
    assert_eq!(b.cluster.leader("u", 0), Some((NodeId(2), 2)));
    b.next_metadata(meta(
        &[1, 2],
        vec![
            topic("t", A, vec![part(0, 1, 3)]),
            topic("u", B, vec![part(0, 2, 2)]),
        ],
    ));
    assert_eq!(b.cluster.topic("t").and_then(|t| t.error), None);
}

/// L36: an answer without brokers (Metadata 10 refusing a request) is no picture of the cluster.
#[test]
fn l36_an_empty_answer_teaches_nothing() {
    let mut b = Bench::settled(t(vec![part(0, 1, 3)]));
    b.refresh();
    b.next_metadata(MetadataResponse {
        topics: vec![broken("", 42)],
        ..MetadataResponse::default()
    });
    assert_eq!(b.leader(0), Some((1, 3)));
    assert_eq!(b.cluster.brokers().count(), 2);
}

#[test]
fn only_names_and_rights_are_fatal() {
    for (code, kind) in [(17, ErrorKind::Misuse), (29, ErrorKind::Broker)] {
        let mut b = Bench::new(1);
        b.want(&["t".into()]);
        b.metadata(meta(&[1], vec![broken("t", code)]));
        let error = b.did.iter().find_map(|a| match a {
            ClusterAction::Fatal(e) => Some(e),
            _ => None,
        });
        let error = error.expect("fatal");
        assert_eq!((error.kind(), error.code()), (kind, Some(code)));
        assert!(error.to_string().contains("`t`"), "{error}");
        assert_eq!(b.cluster.next_deadline(), None);
    }
}

#[test]
fn an_unknown_topic_is_waited_for_paced_and_told() {
    let mut b = Bench::new(1);
    b.want(&["t".into()]);
    b.play(SEC(60), |_, _| {
        Ok(Response::Metadata(meta(&[1], vec![broken("t", 3)])))
    });
    assert!(
        (30..=80).contains(&b.sent.len()),
        "{} in a minute",
        b.sent.len()
    );
    let told = b
        .did
        .iter()
        .filter(|a| matches!(a, ClusterAction::Notice(ClusterNotice::TopicUnknown { .. })));
    let told = told.count();
    assert!((1..=6).contains(&told), "{told} lines");
    assert!(
        !b.has(|a| matches!(a, ClusterAction::TopicGone { .. })),
        "it was never there"
    );
}

#[test]
fn every_topic_is_kept_fresh_for_patterns_and_absent_ones_go() {
    let mut b = Bench::new(1);
    b.cluster.want_all(b.now);
    b.drain();
    assert!(matches!(&b.asked[0].request, Request::Metadata(m) if m.topics.is_none()));
    let both = vec![
        topic("t", A, vec![part(0, 1, 0)]),
        topic("u", B, vec![part(0, 1, 0)]),
    ];
    b.metadata(meta(&[1], both));
    assert_eq!(b.cluster.topics().count(), 2);
    b.refresh();
    b.play(SEC(60), |_, _| {
        Ok(Response::Metadata(meta(
            &[1],
            vec![topic("t", A, vec![part(0, 1, 0)])],
        )))
    });
    let names: Vec<&str> = b.cluster.topics().map(|(n, _)| &**n).collect();
    assert_eq!(names, ["t"]);
    assert!(b.has(|a| matches!(a, ClusterAction::TopicGone { topic } if &**topic == "u")));
    // One topic without rights does not stop a pattern.
    b.refresh();
    b.next_metadata(meta(
        &[1],
        vec![topic("t", A, vec![part(0, 1, 0)]), broken("x", 29)],
    ));
    assert!(!b.has(|a| matches!(a, ClusterAction::Fatal(_))));
}

#[test]
fn topics_wanted_while_a_request_is_out_are_asked_for_next() {
    let mut b = Bench::new(1);
    b.want(&["t".into()]);
    b.want(&["t".into(), "u".into()]);
    assert_eq!(b.asked.len(), 1);
    b.metadata(t(vec![part(0, 1, 0)]));
    let next = &b.asked[0].request;
    assert!(
        matches!(next, Request::Metadata(m) if m.topics.as_ref().is_some_and(|t| t.len() == 2))
    );
    assert!(!b.has(|a| matches!(a, ClusterAction::Notice(_))));
    // And forgetting them leaves nothing to ask.
    b.metadata(meta(
        &[1],
        vec![topic("t", A, vec![part(0, 1, 0)]), topic("u", B, vec![])],
    ));
    b.want(&[]);
    assert_eq!(b.cluster.next_deadline(), None);
    assert!(b.cluster.topic("t").is_none());
}

#[test]
fn a_refresh_that_changes_nothing_is_paced() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    let start = b.sent.len();
    let end = b.now + SEC(60);
    while b.now < end {
        b.refresh(); // every fetch fails with "not the leader"
        b.drain();
        match b.asked.is_empty() {
            true => b.wake(),
            false => b.metadata(t(vec![part(0, 1, 0)])),
        }
    }
    let asked = b.sent.len() - start;
    assert!((50..=90).contains(&asked), "{asked} requests in a minute");
}

#[test]
fn the_first_refresh_after_a_calm_time_goes_out_at_once() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    b.pass(SEC(20));
    b.refresh();
    b.drain();
    assert_eq!(b.asked.len(), 1);
}

/// A broker that moved is told, so that links to its old address can be closed.
#[test]
fn a_moved_broker_is_told() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    b.refresh();
    let mut answer = t(vec![part(0, 1, 0)]);
    answer.brokers[0].host = "elsewhere".into();
    b.next_metadata(answer);
    assert!(b.has(|a| matches!(a, ClusterAction::Relocated(NodeId(1)))));
    let address = b.cluster.address(Peer::Node(NodeId(1)));
    assert_eq!(address, Some(("elsewhere".into(), 9092)));
}

/// G16: the coordinator moves: it is found again, and told.
#[test]
fn g16_a_coordinator_that_moved_is_found_again() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    b.cluster.want_coordinator(b.now, &"g".into());
    b.drain();
    assert_eq!(b.cluster.coordinator(), None);
    b.lookup(coordinator(2));
    assert_eq!(b.cluster.coordinator(), Some(NodeId(2)));
    assert!(b.has(|a| matches!(a, ClusterAction::Coordinator(NodeId(2)))));
    b.cluster.coordinator_failed(b.now);
    b.drain();
    assert_eq!(b.cluster.coordinator(), None);
    b.lookup(coordinator(3));
    assert_eq!(b.cluster.coordinator(), Some(NodeId(3)));
    assert_eq!(
        b.cluster.address(Peer::Node(NodeId(3))),
        Some(("node3".into(), 9092))
    );
}

/// G16: metadata that does not list the coordinator's broker leaves it its address.
#[test]
fn g16_metadata_does_not_take_the_coordinator_away() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    b.cluster.want_coordinator(b.now, &"g".into());
    b.drain();
    b.lookup(coordinator(8));
    b.refresh();
    b.next_metadata(t(vec![part(0, 1, 1)]));
    assert_eq!(b.cluster.coordinator(), Some(NodeId(8)));
    assert!(b.cluster.address(Peer::Node(NodeId(8))).is_some());
}

/// G17: the look-up is the machine's: askers that give up or fail do not end it.
#[test]
fn g17_one_lookup_serves_all_askers() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    b.cluster.want_coordinator(b.now, &"g".into());
    b.drain();
    b.lookup(coordinator(1));
    // Heartbeat, commit and fetch of offsets all fail by one fault, and then once more.
    for _ in 0..3 {
        b.cluster.coordinator_failed(b.now);
        b.cluster.want_coordinator(b.now, &"g".into());
        b.drain();
    }
    let lookups = b
        .asked
        .iter()
        .filter(|a| matches!(a.request, Request::FindCoordinator(_)));
    assert_eq!(lookups.count(), 1);
    b.lookup(coordinator(2));
    assert_eq!(b.cluster.coordinator(), Some(NodeId(2)));
}

/// G17: a look-up whose peer dies goes to the next one.
#[test]
fn g17_a_lookup_outlives_the_broker_it_asked() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    b.cluster.want_coordinator(b.now, &"g".into());
    b.drain();
    let first = b.fail();
    assert_ne!(b.asked[0].to, first);
    b.lookup(coordinator(2));
    assert_eq!(b.cluster.coordinator(), Some(NodeId(2)));
}

/// G18: a look-up that fails for ever is neither tight nor given up.
#[test]
fn g18_lookups_are_paced() {
    let answers: [fn() -> Result<Response, Error>; 3] = [
        || Ok(Response::FindCoordinator(no_coordinator(15))),
        || Ok(Response::FindCoordinator(no_coordinator(-1))),
        || Err(refused()),
    ];
    for reply in answers {
        let mut b = Bench::new(1);
        b.cluster.want_coordinator(b.now, &"g".into());
        b.drain();
        b.play(SEC(60), |_, _| reply());
        assert!(
            (6..=80).contains(&b.sent.len()),
            "{} in a minute",
            b.sent.len()
        );
        b.play(SEC(20), |_, _| {
            Ok(Response::FindCoordinator(coordinator(1)))
        });
        assert_eq!(b.cluster.coordinator(), Some(NodeId(1)));
    }
}

/// G18: a coordinator that is named again and again and never serves is asked for at a bounded
/// rate.
#[test]
fn g18_a_useless_coordinator_is_no_loop() {
    let mut b = Bench::new(1);
    b.cluster.want_coordinator(b.now, &"g".into());
    let end = b.now + SEC(60);
    let mut steps = 0;
    while b.now < end {
        b.drain();
        if b.asked.is_empty() {
            b.wake();
        } else {
            b.lookup(coordinator(1));
            b.now = b.now + MS(1);
            b.cluster.coordinator_failed(b.now);
        }
        steps += 1;
        assert!(steps < 1000, "a storm");
    }
    assert!(b.sent.len() <= 80, "{} look-ups in a minute", b.sent.len());
}

#[test]
fn a_group_without_rights_is_fatal_in_words() {
    let mut b = Bench::new(1);
    b.cluster.want_coordinator(b.now, &"g".into());
    b.drain();
    b.lookup(no_coordinator(30));
    let said = b.did.iter().any(|a| {
        matches!(a, ClusterAction::Fatal(e) if e.code() == Some(30) && e.to_string().contains("`g`"))
    });
    assert!(said, "{:?}", b.did);
}

/// At the start metadata and look-up go to the same peer: one connection, not two.
#[test]
fn the_start_needs_one_connection() {
    let mut b = Bench::new(3);
    b.cluster.want_coordinator(b.now, &"g".into());
    b.want(&["t".into()]);
    assert_eq!(b.asked.len(), 2);
    assert_eq!(b.asked[0].to, b.asked[1].to);
}

/// Answers that nobody waits for, of a kind that nobody asked, or full of nonsense do no harm.
#[test]
fn nonsense_is_survived() {
    let mut b = Bench::new(1);
    b.cluster.handle_response(
        b.now,
        Token(77),
        Ok(Response::Metadata(t(vec![part(0, 1, 0)]))),
    );
    assert!(b.cluster.topic("t").is_none());
    b.want(&["t".into()]);
    let asked = b.asked.pop_front().expect("asked");
    b.answer(&asked, Ok(Response::FindCoordinator(coordinator(1))));
    let mut answer = t(vec![
        part(-5, 1, 0),
        part(0, -9, -9),
        part(0, 1, 2),
        part(i32::MAX, 1, 0),
    ]);
    answer.brokers.push(BrokerEndpoint { port: 0, ..node(3) });
    answer.brokers.push(node(-4));
    answer
        .topics
        .push(topic("never asked for", B, vec![part(0, 1, 0)]));
    b.next_metadata(answer);
    assert_eq!(b.leader(0), Some((1, 2)));
    assert!(b.cluster.topic("never asked for").is_none());
    assert_eq!(b.cluster.brokers().count(), 2);
}
