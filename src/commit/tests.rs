//! The scenarios of families C, G and F that are about commits and committed offsets.

use super::*;
use crate::error::ErrorKind;
use crate::wire::Code;
use crate::wire::message::{
    OffsetCommitResponse, OffsetCommitResponseTopic, OffsetFetchPartition, OffsetFetchRequest,
    OffsetFetchResponse, OffsetFetchTopic,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SEC: fn(u64) -> Duration = Duration::from_secs;
const ID: TopicId = TopicId([1; 16]);
const P0: LeaseId = LeaseId(10);
const P1: LeaseId = LeaseId(11);

/// A commit machine, its time, and what it did.
struct Bench {
    now: Now,
    commit: Commit,
    /// The request in flight, of each kind.
    commits: VecDeque<(Token, OffsetCommitRequest)>,
    loads: VecDeque<(Token, OffsetFetchRequest)>,
    did: Vec<CommitAction>,
    sent: usize,
}

impl Bench {
    fn new() -> Self {
        Self::with(|_| {})
    }

    /// A member at generation 1 with a coordinator.
    fn with(change: impl FnOnce(&mut CommitConfig)) -> Self {
        let mut cfg = CommitConfig::new("g");
        change(&mut cfg);
        let now = Now(1_000_000_000);
        let manual = cfg.manual;
        let mut b = Bench {
            now,
            commit: Commit::new(cfg, now),
            commits: VecDeque::new(),
            loads: VecDeque::new(),
            did: Vec::new(),
            sent: 0,
        };
        b.commit.set_coordinator(now, true);
        if !manual {
            b.commit.set_member(now, member(1));
        }
        b
    }

    /// With leases on partitions 0 and 1 that began without a look.
    fn two(change: impl FnOnce(&mut CommitConfig)) -> Self {
        let mut b = Self::with(change);
        b.commit.begin(b.now, P0, tp(0), ID);
        b.commit.begin(b.now, P1, tp(1), ID);
        b
    }

    fn drain(&mut self) {
        while let Some(action) = self.commit.poll_action() {
            match action {
                CommitAction::Send { token, request, .. } => match request {
                    Request::OffsetCommit(r) => {
                        self.sent += 1;
                        self.commits.push_back((token, r));
                    }
                    Request::OffsetFetch(r) => self.loads.push_back((token, r)),
                    other => panic!("no business of ours: {other:?}"),
                },
                other => self.did.push(other),
            }
        }
        assert!(self.commits.len() <= 1, "two commits in flight");
        assert!(self.loads.len() <= 1, "two loads in flight");
    }

    fn note(&mut self, lease: LeaseId, offset: i64) {
        self.note_as(lease, Progress::new(offset, 7).expect("not negative"));
    }

    fn note_as(&mut self, lease: LeaseId, progress: Progress) {
        self.commit.note(self.now, lease, progress, 1);
        self.drain();
    }

    fn flush(&mut self, leases: &[LeaseId], after: Duration) {
        self.commit.flush(self.now, leases, self.now + after);
        self.drain();
    }

    fn member(&mut self, member: Option<MemberRef>) {
        self.commit.set_member(self.now, member);
        self.drain();
    }

    fn wake(&mut self) {
        let at = self.commit.next_deadline().expect("a deadline");
        assert!(at >= self.now, "a deadline in the past makes a loop");
        self.now = at;
        self.commit.handle_timeout(self.now);
        self.drain();
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut steps = 0;
        while self.commit.next_deadline().is_some_and(|at| at <= end) {
            self.wake();
            steps += 1;
            assert!(steps < 1000, "a storm");
        }
        self.now = end;
    }

    /// What the commit in flight says for partition `p`.
    fn in_flight(&self, p: i32) -> Option<i64> {
        let (_, request) = self.commits.front()?;
        let mut parts = request.topics.iter().flat_map(|t| &t.partitions);
        parts.find(|c| c.partition == p).map(|c| c.offset)
    }

    fn generation(&self) -> i32 {
        self.commits.front().expect("in flight").1.generation
    }

    /// Answers the commit in flight: each partition as `code` says.
    fn answer_each(&mut self, code: impl Fn(i32) -> Option<i16>) {
        let (token, request) = self.commits.pop_front().expect("a commit in flight");
        let topic = |t: &OffsetCommitTopic| OffsetCommitResponseTopic {
            name: t.name.clone(),
            id: t.id,
            partitions: t
                .partitions
                .iter()
                .filter_map(|p| Some((p.partition, Code(code(p.partition)?))))
                .collect(),
        };
        let answer = OffsetCommitResponse {
            throttle: Duration::ZERO,
            topics: request.topics.iter().map(topic).collect(),
        };
        let response = Ok(Response::OffsetCommit(answer));
        self.commit.handle_response(self.now, token, response);
        self.drain();
    }

    fn answer(&mut self, code: i16) {
        self.answer_each(|_| Some(code));
    }

    fn fail(&mut self, error: Error) {
        let (token, _) = self.commits.pop_front().expect("a commit in flight");
        self.commit.handle_response(self.now, token, Err(error));
        self.drain();
    }

    /// The next commit, whenever it comes.
    fn next_commit(&mut self) {
        while self.commits.is_empty() {
            self.wake();
        }
    }

    fn load(&mut self, leases: &[(LeaseId, i32)]) {
        let leases = leases.iter().map(|(l, p)| (*l, tp(*p), ID)).collect();
        self.commit.load(self.now, leases);
        self.drain();
    }

    fn answer_load(&mut self, code: i16, partitions: Vec<OffsetFetchPartition>) {
        let (token, _) = self.loads.pop_front().expect("a load in flight");
        let answer = OffsetFetchResponse {
            throttle: Duration::ZERO,
            code: Code(code),
            topics: vec![OffsetFetchTopic {
                name: "t".into(),
                id: ID,
                partitions,
            }],
        };
        let response = Ok(Response::OffsetFetch(answer));
        self.commit.handle_response(self.now, token, response);
        self.drain();
    }

    fn next_load(&mut self) {
        while self.loads.is_empty() {
            self.wake();
        }
    }

    fn committed(&self, lease: LeaseId) -> Option<i64> {
        self.commit.committed(lease)
    }

    /// The flushes that have ended since the last look.
    fn flushed(&mut self) -> Vec<(LeaseId, bool)> {
        let mut ended = Vec::new();
        self.did.retain(|a| match a {
            CommitAction::Flushed { lease, complete } => {
                ended.push((*lease, *complete));
                false
            }
            _ => true,
        });
        ended
    }

    fn has(&self, wanted: impl Fn(&CommitAction) -> bool) -> bool {
        self.did.iter().any(wanted)
    }

    fn moved(&self) -> bool {
        self.has(|a| matches!(a, CommitAction::CoordinatorMoved))
    }

    fn loaded(&self) -> Vec<(LeaseId, Option<i64>)> {
        let loaded = |a: &CommitAction| match a {
            CommitAction::Loaded { lease, committed } => {
                Some((*lease, committed.as_ref().map(|c| c.offset)))
            }
            _ => None,
        };
        self.did.iter().filter_map(loaded).collect()
    }

    fn fatal(&self) -> Option<&Error> {
        self.did.iter().find_map(|a| match a {
            CommitAction::Fatal(e) => Some(e),
            _ => None,
        })
    }
}

fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

fn member(generation: i32) -> Option<MemberRef> {
    member_called("m1", generation)
}

fn member_called(id: &str, generation: i32) -> Option<MemberRef> {
    Some(MemberRef {
        member_id: id.into(),
        generation,
        instance_id: None,
    })
}

fn held(partition: i32, offset: i64) -> OffsetFetchPartition {
    OffsetFetchPartition {
        partition,
        offset,
        leader_epoch: 3,
        metadata: Some("".into()),
        code: Code(0),
    }
}

fn held_not(partition: i32, code: i16) -> OffsetFetchPartition {
    OffsetFetchPartition {
        code: Code(code),
        ..held(partition, -1)
    }
}

fn broken() -> Error {
    Error::new(ErrorKind::Transport, "the link broke").retriable()
}

#[test]
fn progress_waits_for_the_interval_and_one_commit_carries_all() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 5);
    b.pass(SEC(3));
    b.note(P1, 8);
    b.note(P0, 6);
    assert!(b.commits.is_empty());
    let start = b.now;
    b.next_commit();
    assert_eq!(b.now.since(start), SEC(2), "five seconds after the first");
    assert_eq!((b.in_flight(0), b.in_flight(1)), (Some(6), Some(8)));
    b.answer(0);
    assert_eq!((b.committed(P0), b.committed(P1)), (Some(6), Some(8)));
    // Nothing new: nothing is sent until the partitions must be kept alive.
    b.pass(SEC(3000));
    assert_eq!(b.sent, 1);
}

#[test]
fn enough_settled_records_do_not_wait() {
    let mut b = Bench::two(|c| c.every = 3);
    b.note(P0, 1);
    b.note(P0, 2);
    assert!(b.commits.is_empty());
    b.note(P0, 3);
    assert_eq!(b.in_flight(0), Some(3));
    // What settles meanwhile counts for the next one.
    for offset in 4..=6 {
        b.note(P0, offset);
    }
    b.answer(0);
    assert_eq!(b.in_flight(0), Some(6));
}

/// C01: the watermark is the next offset to read, and goes out as it is.
#[test]
fn c01_the_commit_is_the_next_offset() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 42); // record 41 settled
    b.flush(&[P0], SEC(1));
    assert_eq!(b.in_flight(0), Some(42));
}

/// C02: however many ask for a commit, one is in flight, and the newest goes last.
#[test]
fn c02_one_commit_in_flight() {
    let mut b = Bench::two(|c| c.every = 1);
    b.note(P0, 10);
    assert_eq!(b.in_flight(0), Some(10));
    b.note(P0, 20);
    b.flush(&[P0], SEC(60));
    b.commit.flush_all(b.now, b.now + SEC(60));
    b.pass(SEC(20));
    b.commit.set_coordinator(b.now, false);
    b.commit.set_coordinator(b.now, true);
    b.member(member(2));
    assert_eq!(b.sent, 1, "the first is still out");
    b.answer(0);
    assert_eq!((b.sent, b.in_flight(0)), (2, Some(20)));
    assert_eq!(b.generation(), 2);
    // The first answer once more changes nothing.
    b.commit.handle_response(b.now, Token(0), Err(broken()));
    b.drain();
    assert_eq!(b.sent, 2);
    b.answer(0);
    assert_eq!(b.committed(P0), Some(20));
}

/// C05: offset, epoch and metadata are of one moment, and a change of any goes out.
#[test]
fn c05_offset_and_map_are_one_snapshot() {
    let mut b = Bench::two(|_| {});
    let at = |offset, map: &str| Progress::new(offset, 7).expect("legal").with_metadata(map);
    b.note_as(P0, at(100, "map of 100"));
    b.next_commit();
    b.note_as(P0, at(105, "map of 105"));
    let sent = b.commits[0].1.topics[0].partitions[0].clone();
    assert_eq!(
        (sent.offset, sent.metadata.as_deref()),
        (100, Some("map of 100"))
    );
    b.answer(0);
    b.next_commit();
    let sent = b.commits[0].1.topics[0].partitions[0].clone();
    assert_eq!(
        (sent.offset, sent.metadata.as_deref()),
        (105, Some("map of 105"))
    );
    b.answer(0);
    // The watermark stands still while more settles above it.
    b.note_as(P0, at(105, "fuller map of 105"));
    b.next_commit();
    let sent = b.commits[0].1.topics[0].partitions[0].clone();
    assert_eq!(
        (sent.offset, sent.metadata.as_deref()),
        (105, Some("fuller map of 105"))
    );
    b.answer(0);
    let sent = b.sent;
    b.note_as(P0, at(105, "fuller map of 105"));
    b.pass(SEC(60));
    assert_eq!(b.sent, sent, "the same again is no progress");
}

/// C09: metadata that the broker finds too large stays at home; the offset goes at once, and
/// shorter metadata is still sent.
#[test]
fn c09_error_12_is_sent_again_without_metadata() {
    let mut b = Bench::two(|_| {});
    let at = |offset, map: &str| Progress::new(offset, 7).expect("legal").with_metadata(map);
    b.note_as(P0, at(10, &"x".repeat(200)));
    b.note(P1, 4);
    b.next_commit();
    b.answer_each(|p| Some(if p == 0 { 12 } else { 0 }));
    let again = &b.commits[0].1.topics[0].partitions;
    assert_eq!(again.len(), 1, "the other one is done");
    assert_eq!((again[0].offset, again[0].metadata.as_deref()), (10, None));
    b.answer(0);
    assert_eq!(b.committed(P0), Some(10));
    assert!(b.has(|a| matches!(
        a,
        CommitAction::Notice(CommitNotice::MetadataRefused { bytes: 200, .. })
    )));
    assert_eq!(b.commit.metadata_max(), Some(199));
    b.note_as(P0, at(11, &"x".repeat(250)));
    b.next_commit();
    assert_eq!(b.commits[0].1.topics[0].partitions[0].metadata, None);
    b.answer(0);
    b.note_as(P0, at(12, &"x".repeat(50)));
    b.next_commit();
    let sent = b.commits[0].1.topics[0].partitions[0].metadata.clone();
    assert_eq!(sent.map(|m| m.len()), Some(50));
    let notices = b
        .did
        .iter()
        .filter(|a| matches!(a, CommitAction::Notice(_)));
    assert_eq!(notices.count(), 1);
}

/// C09: error 12 for a commit that has no metadata is no loop.
#[test]
fn c09_error_12_without_metadata_ends() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.flush(&[P0], SEC(60));
    b.answer(12);
    assert_eq!(b.flushed(), [(P0, false)]);
    assert!(b.has(|a| matches!(a, CommitAction::Failed { lease: P0, .. })));
    b.pass(SEC(60));
    assert_eq!(b.sent, 1);
}

/// C10: no metadata comes back as an empty text from the broker, and is none.
#[test]
fn c10_empty_metadata_is_none() {
    let mut b = Bench::new();
    b.load(&[(P0, 0), (P1, 1)]);
    let mut with = held(1, 8);
    with.metadata = Some("map".into());
    b.answer_load(0, vec![held(0, 7), with]);
    let found: Vec<Option<Arc<str>>> = b
        .did
        .iter()
        .filter_map(|a| match a {
            CommitAction::Loaded { committed, .. } => committed.clone().map(|c| c.metadata),
            _ => None,
        })
        .collect();
    assert_eq!(found, [None, Some("map".into())]);
}

/// C12: only -1 means that nothing was committed.
#[test]
fn c12_only_minus_one_is_nothing() {
    let mut b = Bench::new();
    b.load(&[(P0, 0), (P1, 1)]);
    assert!(b.loads[0].1.require_stable);
    b.answer_load(0, vec![held(0, -1), held(1, -2)]);
    assert_eq!(b.loaded(), [(P0, None)]);
    b.next_load();
    b.answer_load(0, vec![held(1, 0)]);
    assert_eq!(b.loaded(), [(P0, None), (P1, Some(0))]);
}

/// C12, KIP-211: idle partitions are committed again while we own them, so that the broker does
/// not forget them; silently, and never further than we know.
#[test]
fn c12_idle_partitions_are_kept_alive() {
    let mut b = Bench::new();
    b.load(&[(P0, 0), (P1, 1)]);
    b.answer_load(0, vec![held(0, 100), held(1, -1)]);
    b.did.clear();
    for _ in 0..24 {
        b.next_commit();
        assert_eq!((b.in_flight(0), b.in_flight(1)), (Some(100), None));
        b.answer(0);
    }
    assert!(b.did.is_empty(), "{:?}", b.did);
    assert_eq!(b.now, Now(1_000_000_000) + SEC(3600) * 24);
}

/// C13: a negative commit cannot be made.
#[test]
fn c13_negative_is_unrepresentable() {
    assert!(Progress::new(-1, 0).is_none());
    assert!(Progress::new(i64::MIN, 0).is_none());
    assert!(Progress::new(0, -9).is_some_and(|p| p.leader_epoch == -1));
}

/// C15: nothing to send is nothing in flight, and the flush ends at once.
#[test]
fn c15_an_empty_commit_is_none() {
    let mut b = Bench::two(|_| {});
    b.flush(&[P0, P1], SEC(60));
    assert!(b.commits.is_empty());
    assert!(!b.commit.in_flight());
    assert_eq!(b.flushed(), [(P0, true), (P1, true)]);
    assert!(!b.commit.is_flushing());
    b.note(P0, 3);
    b.flush(&[P0, P1], SEC(60));
    assert_eq!(b.flushed(), [(P1, true)]);
    b.answer(0);
    assert_eq!(b.flushed(), [(P0, true)]);
    assert!(!b.commit.in_flight());
}

/// C16: offsets alone tell the order inside a lease; an unknown epoch hides no progress.
#[test]
fn c16_order_is_by_offset() {
    let mut b = Bench::two(|_| {});
    b.note_as(P0, Progress::new(5, 3).expect("legal"));
    b.next_commit();
    b.answer(0);
    b.note_as(P0, Progress::new(10, -1).expect("legal"));
    b.next_commit();
    assert_eq!(b.in_flight(0), Some(10));
    b.answer(0);
    assert_eq!(b.committed(P0), Some(10));
}

/// C17, I2: what an ended lease had is never sent for the next one.
#[test]
fn c17_a_new_lease_inherits_nothing() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 100);
    b.commit.end(P0);
    let next = LeaseId(20);
    b.load(&[(next, 0)]);
    b.answer_load(0, vec![held(0, 500)]);
    b.commit.flush_all(b.now, b.now + SEC(60));
    b.note(P0, 101); // a late result of the lease that ended
    b.pass(SEC(60));
    assert_eq!(b.sent, 0);
    b.note(next, 400);
    b.pass(SEC(60));
    assert_eq!(b.sent, 0, "never back within a lease");
    b.note(next, 501);
    b.next_commit();
    assert_eq!(b.in_flight(0), Some(501));
}

/// C17: a partition granted again while its old commit is still out is read after that commit.
#[test]
fn c17_a_load_waits_for_the_commit_of_its_partition() {
    let mut b = Bench::two(|c| c.every = 1);
    b.note(P0, 100);
    b.commit.end(P0);
    b.load(&[(LeaseId(20), 0), (LeaseId(21), 5)]);
    let asked = &b.loads[0].1.topics[0].2;
    assert_eq!(asked, &[5], "the other one does not wait");
    b.answer_load(0, vec![held(5, 1)]);
    assert!(b.loads.is_empty());
    b.answer(0);
    assert_eq!(b.loads[0].1.topics[0].2, [0]);
    b.answer_load(0, vec![held(0, 100)]);
    assert_eq!(
        b.loaded(),
        [(LeaseId(21), Some(1)), (LeaseId(20), Some(100))]
    );
    // What the old lease committed is no knowledge of the new one but by the load.
    assert_eq!(b.committed(LeaseId(20)), Some(100));
}

/// C20: a commit that times out is made again, with what is newest, while the lease lives.
#[test]
fn c20_a_timeout_is_tried_again_with_the_newest() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.note(P1, 1);
    b.next_commit();
    b.note(P0, 30);
    b.commit.end(P1);
    b.fail(broken());
    assert!(b.moved());
    assert!(b.commits.is_empty(), "paced");
    let start = b.now;
    b.next_commit();
    assert!(b.now.since(start) <= MS(120));
    assert_eq!((b.in_flight(0), b.in_flight(1)), (Some(30), None));
    // And so it goes on, paced, for as long as it takes.
    let (start, sent) = (b.now, b.sent);
    while b.now.since(start) < SEC(60) {
        b.next_commit();
        b.fail(broken());
    }
    assert!(
        (50..=90).contains(&(b.sent - sent)),
        "{} in a minute",
        b.sent - sent
    );
    b.next_commit();
    b.answer(0);
    assert_eq!(b.committed(P0), Some(30));
    assert!(b.fatal().is_none());
}

/// C20: 7 and 14 wait where they are; 15 and 16 look for the coordinator as well.
#[test]
fn c20_g16_coordinator_errors_are_tried_again() {
    for (code, moves) in [(7, false), (14, false), (15, true), (16, true)] {
        let mut b = Bench::two(|_| {});
        b.note(P0, 10);
        b.flush(&[P0], SEC(60));
        b.answer(code);
        assert_eq!(b.moved(), moves, "code {code}");
        assert!(b.commits.is_empty(), "paced");
        // While nobody is the coordinator nothing is sent, and nothing spins.
        b.commit.set_coordinator(b.now, false);
        b.pass(SEC(5));
        assert_eq!(b.sent, 1);
        b.commit.set_coordinator(b.now, true);
        b.drain();
        assert_eq!((b.in_flight(0), b.generation()), (Some(10), 1));
        b.answer(0);
        assert_eq!(b.flushed(), [(P0, true)]);
        assert!(!b.has(|a| matches!(a, CommitAction::Rejoin(_) | CommitAction::Lost(_))));
    }
}

/// C21: a topic that was deleted does not hold up the revocation of the others for long.
#[test]
fn c21_a_deleted_topic_is_given_up() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.note(P1, 10);
    b.flush(&[P0, P1], SEC(300));
    let start = b.now;
    let mut ended = Vec::new();
    while b.commit.is_flushing() {
        b.next_commit();
        b.answer_each(|p| Some(if p == 0 { 3 } else { 0 }));
        ended.extend(b.flushed());
    }
    assert_eq!(ended, [(P1, true), (P0, false)]);
    let took = b.now.since(start);
    assert!(took >= SEC(5) && took <= SEC(7), "{took:?}");
    let told = |a: &CommitAction| matches!(a, CommitAction::Notice(CommitNotice::TopicGone { .. }));
    assert!(b.has(told));
    // From then on it is rare, and a flush does not wait for it.
    let sent = b.sent;
    let end = b.now + SEC(300);
    while b.now < end {
        b.next_commit();
        b.answer(3);
    }
    assert!(b.sent - sent <= 12, "{}", b.sent - sent);
    b.flush(&[P0], SEC(300));
    assert_eq!(b.flushed(), [(P0, false)]);
    // Should it come back, its progress is not forgotten.
    b.next_commit();
    b.answer(0);
    assert_eq!(b.committed(P0), Some(10));
}

/// C22: each partition of a good answer is taken by itself.
#[test]
fn c22_partition_errors_are_each_ones_own() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.note(P1, 20);
    b.flush(&[P0, P1], SEC(60));
    b.answer_each(|p| Some(if p == 0 { 0 } else { 29 }));
    assert_eq!(b.committed(P0), Some(10));
    assert_eq!(b.committed(P1), None);
    assert_eq!(b.flushed(), [(P0, true), (P1, false)]);
    let error = b.did.iter().find_map(|a| match a {
        CommitAction::Failed { lease: P1, error } => Some(error),
        _ => None,
    });
    let error = error.expect("told");
    assert_eq!(
        (error.code(), error.partition(), error.topic()),
        (Some(29), Some(1), Some("t"))
    );
    // The one goes on, the other does not.
    b.note(P0, 11);
    b.note(P1, 21);
    b.next_commit();
    assert_eq!((b.in_flight(0), b.in_flight(1)), (Some(11), None));
}

/// C22: a partition that the answer leaves out is not done.
#[test]
fn c22_an_omitted_partition_is_not_acknowledged() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.note(P1, 20);
    b.next_commit();
    b.answer_each(|p| (p == 0).then_some(0));
    assert_eq!((b.committed(P0), b.committed(P1)), (Some(10), None));
    b.next_commit();
    assert_eq!((b.in_flight(0), b.in_flight(1)), (None, Some(20)));
    b.answer(0);
    assert_eq!(b.committed(P1), Some(20));
}

/// C22: answers by topic id (v10), in another order than asked.
#[test]
fn c22_answers_are_matched_by_id_and_index() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.note(P1, 20);
    b.next_commit();
    let (token, _) = b.commits.pop_front().expect("in flight");
    let topic = |id, partitions| OffsetCommitResponseTopic {
        name: "".into(),
        id,
        partitions,
    };
    let answer = OffsetCommitResponse {
        throttle: Duration::ZERO,
        topics: vec![
            topic(TopicId([9; 16]), vec![(0, Code(0)), (1, Code(0))]),
            topic(ID, vec![(1, Code(0)), (0, Code(-1))]),
        ],
    };
    b.commit
        .handle_response(b.now, token, Ok(Response::OffsetCommit(answer)));
    b.drain();
    assert_eq!((b.committed(P0), b.committed(P1)), (None, Some(20)));
}

/// C23: a coordinator that dies under ten thousand partitions: requests stay bounded, and all
/// arrives once it is back.
#[test]
fn c23_many_partitions_take_several_commits() {
    let mut b = Bench::new();
    let lease = |p: i32| LeaseId(p as u64 + 1000);
    for p in 0..10_000 {
        b.commit.begin(b.now, lease(p), tp(p), ID);
        b.note_as(
            lease(p),
            Progress::new(1, 0)
                .expect("legal")
                .with_metadata("m".repeat(90)),
        );
    }
    b.commit.flush_all(b.now, b.now + SEC(60));
    b.drain();
    b.fail(broken());
    let mut rounds = 0;
    while b.commit.is_flushing() {
        b.next_commit();
        let (_, request) = &b.commits[0];
        let parts = request.topics.iter().flat_map(|t| &t.partitions);
        let bytes: usize = parts
            .map(|p| 33 + p.metadata.as_ref().map_or(0, |m| m.len()))
            .sum();
        assert!(bytes <= COMMIT_BYTES_MAX);
        b.answer(0);
        rounds += 1;
    }
    assert!((2..=4).contains(&rounds), "{rounds}");
    let ended = b.flushed();
    assert_eq!(ended.len(), 10_000);
    assert!(ended.iter().all(|(_, complete)| *complete));
}

/// C25: a revoke's commit that nobody answers ends at its deadline.
#[test]
fn c25_every_flush_ends_at_its_deadline() {
    type Trouble = fn(&mut Bench);
    let troubles: [Trouble; 5] = [
        |_| {}, // no answer ever
        |b| b.fail(broken()),
        |b| b.answer(14),
        |b| {
            b.answer(16);
            b.commit.set_coordinator(b.now, false);
        },
        |b| b.answer(27),
    ];
    for (n, trouble) in troubles.into_iter().enumerate() {
        let mut b = Bench::two(|_| {});
        b.note(P0, 10);
        let start = b.now;
        b.flush(&[P0], SEC(4));
        trouble(&mut b);
        while b.commit.is_flushing() {
            if !b.commits.is_empty() && n == 1 {
                b.fail(broken());
            } else if !b.commits.is_empty() && n == 2 {
                b.answer(14);
            } else {
                b.wake();
            }
        }
        assert_eq!(b.now.since(start), SEC(4), "trouble {n}");
        assert_eq!(b.flushed(), [(P0, false)]);
    }
}

/// C26: the epoch of the last settled record goes with the offset.
#[test]
fn c26_the_leader_epoch_is_sent() {
    let mut b = Bench::two(|_| {});
    b.note_as(P0, Progress::new(10, 12).expect("legal"));
    b.next_commit();
    assert_eq!(b.commits[0].1.topics[0].partitions[0].leader_epoch, 12);
    assert_eq!(b.commits[0].1.topics[0].id, ID);
}

/// C28: progress between the snapshot and its answer is not lost.
#[test]
fn c28_progress_while_in_flight_is_committed_next() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.next_commit();
    b.note(P0, 11);
    b.answer(0);
    assert_eq!(b.committed(P0), Some(10));
    // Nothing else happens, and still it goes out.
    b.next_commit();
    assert_eq!(b.in_flight(0), Some(11));
    b.answer(0);
    assert_eq!(b.committed(P0), Some(11));
}

/// C28: a flush asked for while an older commit is out waits for the newer one.
#[test]
fn c28_a_flush_waits_for_what_came_after_the_snapshot() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.next_commit();
    b.note(P0, 11);
    b.flush(&[P0], SEC(60));
    b.answer(0);
    assert!(b.flushed().is_empty());
    assert_eq!(b.in_flight(0), Some(11));
    b.answer(0);
    assert_eq!(b.flushed(), [(P0, true)]);
}

/// C29: results that come while the flush runs count for it.
#[test]
fn c29_progress_during_a_flush_is_part_of_it() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.flush(&[P0], SEC(60));
    for offset in 11..=15 {
        b.note(P0, offset);
    }
    b.answer(0);
    assert_eq!(b.in_flight(0), Some(15));
    b.answer(0);
    assert_eq!(b.flushed(), [(P0, true)]);
    assert_eq!(b.committed(P0), Some(15));
}

/// G02: after the lease is lost nothing of it goes out, not even by a retry, and the answer to
/// what is out means nothing.
#[test]
fn g02_nothing_is_committed_for_a_lost_lease() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 101);
    b.note(P1, 1);
    b.next_commit();
    b.note(P0, 102);
    b.commit.end(P0);
    b.member(member(2));
    b.fail(broken());
    b.note(P0, 103);
    b.next_commit();
    assert_eq!((b.in_flight(0), b.in_flight(1)), (None, Some(1)));
    assert_eq!(b.generation(), 2);
    b.answer(0);
    b.pass(SEC(60));
    assert!(!b.has(|a| matches!(a, CommitAction::Committed { lease: P0, .. })));
    assert_eq!(b.committed(P0), None);
}

/// G03: a commit of an older generation is made again under the next one, for what lives.
#[test]
fn g03_illegal_generation_keeps_the_snapshot() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.note(P1, 20);
    b.next_commit();
    assert_eq!(b.generation(), 1);
    b.answer(22);
    assert!(b.has(|a| matches!(a, CommitAction::Rejoin(Code(22)))));
    assert!(b.fatal().is_none());
    b.pass(SEC(60));
    assert_eq!(b.sent, 1, "that generation is not used again");
    b.commit.end(P1); // the new assignment leaves it out
    b.member(member(2));
    assert_eq!(b.generation(), 2);
    assert_eq!((b.in_flight(0), b.in_flight(1)), (Some(10), None));
    b.answer(0);
    assert_eq!(b.committed(P0), Some(10));
}

/// G03: the refusal of a generation that we have left already is no news.
#[test]
fn g03_a_refusal_that_is_overtaken_is_sent_again_at_once() {
    for code in [22, 25, 27, 82] {
        let mut b = Bench::two(|_| {});
        b.note(P0, 10);
        b.next_commit();
        b.member(member_called("m2", 5));
        b.answer(code);
        assert!(!b.has(|a| matches!(a, CommitAction::Rejoin(_) | CommitAction::Lost(_))));
        b.next_commit();
        assert_eq!(
            (b.in_flight(0), b.generation()),
            (Some(10), 5),
            "code {code}"
        );
    }
}

/// G06: a rebalance under way is no error: the snapshot waits for the next generation.
#[test]
fn g06_rebalance_in_progress_waits_for_the_next_generation() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.flush(&[P0], SEC(60));
    b.answer(27);
    assert!(b.has(|a| matches!(a, CommitAction::Rejoin(Code(27)))));
    b.pass(SEC(4));
    assert_eq!(b.sent, 1);
    b.note(P0, 12);
    b.member(member(2));
    assert_eq!((b.in_flight(0), b.generation()), (Some(12), 2));
    b.answer(0);
    assert_eq!(b.flushed(), [(P0, true)]);
}

/// G06: should no new generation come, the commit is tried again, rarely, and said once.
#[test]
fn g06_without_a_new_generation_it_is_tried_rarely() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.next_commit();
    let end = b.now + SEC(60);
    while b.now < end {
        b.answer(27);
        b.next_commit();
    }
    assert!(b.sent <= 14, "{}", b.sent);
    let said = b
        .did
        .iter()
        .filter(|a| matches!(a, CommitAction::Rejoin(_)));
    assert_eq!(said.count(), 1);
}

/// G06: no membership, no commit; in a group generation -1 is never used.
#[test]
fn g06_without_a_membership_nothing_is_sent() {
    let mut b = Bench::two(|c| c.every = 1);
    b.member(None);
    b.note(P0, 10);
    b.flush(&[P0], SEC(3));
    b.pass(SEC(60));
    assert_eq!(b.sent, 0);
    assert_eq!(b.flushed(), [(P0, false)]);
    b.member(member(4));
    assert_eq!((b.in_flight(0), b.generation()), (Some(10), 4));
}

/// UNKNOWN_MEMBER_ID and a fenced instance: nothing goes out under that member any more.
#[test]
fn a_lost_membership_commits_nothing() {
    for code in [25, 82, 110] {
        let mut b = Bench::two(|_| {});
        b.note(P0, 10);
        b.flush(&[P0], SEC(60));
        b.answer(code);
        assert!(b.has(|a| matches!(a, CommitAction::Lost(c) if c.0 == code)));
        assert_eq!(b.flushed(), [(P0, false)]);
        b.member(member(2)); // the same member under another number
        b.pass(SEC(60));
        assert_eq!(b.sent, 1);
        b.commit.end(P0);
        b.commit.end(P1);
        b.member(member_called("m2", 3));
        b.commit.begin(b.now, LeaseId(30), tp(0), ID);
        b.note(LeaseId(30), 50);
        b.next_commit();
        assert_eq!((b.in_flight(0), b.generation()), (Some(50), 3));
    }
}

/// The static member's own id goes with each commit.
#[test]
fn a_static_member_says_who_it_is() {
    let mut b = Bench::two(|_| {});
    let mut me = member(1).expect("one");
    me.instance_id = Some("i".into());
    b.member(Some(me));
    b.note(P0, 10);
    b.next_commit();
    let (_, request) = &b.commits[0];
    assert_eq!(request.instance_id.as_deref(), Some("i"));
    assert_eq!(&*request.member_id, "m1");
}

/// A manual reader commits as nobody; a group with members refuses that, which is misuse, in words.
#[test]
fn a_manual_reader_refused_by_a_live_group_is_misuse() {
    for code in [25, 22] {
        let mut b = Bench::two(|c| c.manual = true);
        b.note(P0, 10);
        b.flush(&[P0], SEC(60));
        let (_, request) = &b.commits[0];
        assert_eq!((request.generation, &*request.member_id), (-1, ""));
        b.answer(0);
        assert_eq!(b.flushed(), [(P0, true)]);
        b.note(P0, 11);
        b.flush(&[P0], SEC(60));
        b.answer(code);
        assert_eq!(b.flushed(), [(P0, false)]);
        let error = b.fatal().expect("told");
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::Misuse, Some(code))
        );
        assert!(
            error.to_string().contains("group `g` has members"),
            "{error}"
        );
        b.note(P0, 12);
        b.flush(&[P0], SEC(60));
        assert_eq!(b.flushed(), [(P0, false)]);
        b.pass(SEC(60));
        assert_eq!(b.sent, 2);
        assert_eq!(b.commit.next_deadline(), None);
    }
}

/// G16: a coordinator that moves or loads stalls no load: it is asked again, and told.
#[test]
fn g16_loads_survive_the_coordinator() {
    let mut b = Bench::new();
    b.load(&[(P0, 0)]);
    for (code, moves) in [
        (14, false),
        (15, true),
        (16, true),
        (27, false),
        (-1, false),
    ] {
        b.did.clear();
        b.answer_load(code, Vec::new());
        assert_eq!(b.moved(), moves, "code {code}");
        assert!(b.loaded().is_empty());
        assert!(b.loads.is_empty(), "paced");
        b.next_load();
    }
    // The same codes in the partition, as old versions have them.
    for (code, moves) in [(14, false), (16, true)] {
        b.did.clear();
        b.answer_load(0, vec![held_not(0, code)]);
        assert_eq!(b.moved(), moves, "code {code}");
        b.next_load();
    }
    b.answer_load(0, vec![held(0, 7)]);
    assert_eq!(b.loaded(), [(P0, Some(7))]);
}

/// G46: a partition that the answer leaves out is asked for again; the others are taken.
#[test]
fn g46_a_missing_partition_is_asked_for_again() {
    let mut b = Bench::new();
    b.load(&[(P0, 0), (P1, 1)]);
    b.answer_load(0, vec![held(1, 20)]);
    assert_eq!(b.loaded(), [(P1, Some(20))]);
    b.next_load();
    assert_eq!(b.loads[0].1.topics[0].2, [0]);
    b.answer_load(0, vec![held(0, 10)]);
    assert_eq!(b.loaded(), [(P1, Some(20)), (P0, Some(10))]);
    assert_eq!(b.committed(P0), Some(10));
}

/// G46: 88 waits for the transaction to end, paced; it is no "none".
#[test]
fn g46_unstable_offsets_are_waited_for() {
    let mut b = Bench::new();
    b.load(&[(P0, 0)]);
    let (end, mut asked) = (b.now + SEC(60), 0);
    while b.now < end {
        b.answer_load(0, vec![held_not(0, 88)]);
        b.next_load();
        asked += 1;
    }
    assert!((40..=80).contains(&asked), "{asked} in a minute");
    assert!(b.loaded().is_empty());
    assert!(b.has(|a| matches!(a, CommitAction::Notice(CommitNotice::LoadRetrying { .. }))));
    b.answer_load(0, vec![held(0, 9)]);
    assert_eq!(b.loaded(), [(P0, Some(9))]);
}

/// G46: an error of the group is one of every partition, whatever the partitions say.
#[test]
fn g46_a_group_error_applies_to_all() {
    let mut b = Bench::new();
    b.load(&[(P0, 0), (P1, 1)]);
    b.answer_load(16, vec![held(0, -1), held(1, -1)]);
    assert!(b.loaded().is_empty());
    b.next_load();
    b.answer_load(30, vec![held(0, -1), held(1, -1)]);
    assert!(b.loaded().is_empty());
    assert_eq!(b.fatal().and_then(Error::code), Some(30));
}

/// F21: neither a time-out nor an error of any kind ever means that nothing was committed.
#[test]
fn f21_a_failure_is_never_nothing() {
    let mut b = Bench::new();
    b.load(&[(P0, 0)]);
    let error = |kind| Error::new(kind, "no").retriable();
    for kind in [ErrorKind::Transport, ErrorKind::Peer, ErrorKind::Broker] {
        let (token, _) = b.loads.pop_front().expect("a load");
        b.commit.handle_response(b.now, token, Err(error(kind)));
        b.drain();
        assert!(b.moved());
        assert!(b.loaded().is_empty());
        b.next_load();
    }
    for code in (-1..134).filter(|c| ![0, 24, 29, 30].contains(c)) {
        b.answer_load(0, vec![held_not(0, code)]);
        assert!(b.loaded().is_empty(), "code {code}");
        b.next_load();
    }
    b.answer_load(0, vec![held(0, -1)]);
    assert_eq!(b.loaded(), [(P0, None)]);
}

/// F21: rights are an error of the lease, told once, and no "none".
#[test]
fn f21_a_load_without_rights_fails() {
    let mut b = Bench::new();
    b.load(&[(P0, 0), (P1, 1)]);
    b.answer_load(0, vec![held_not(0, 29), held(1, 3)]);
    assert_eq!(b.loaded(), [(P1, Some(3))]);
    let told = |a: &CommitAction| matches!(a, CommitAction::Failed { lease: P0, error } if error.code() == Some(29));
    assert!(b.has(told));
    b.pass(SEC(60));
    assert!(b.loads.is_empty());
}

/// A load that comes back after its lease ended, or was replaced, is for nobody.
#[test]
fn a_load_of_an_ended_lease_is_for_nobody() {
    let mut b = Bench::new();
    b.load(&[(P0, 0)]);
    b.commit.end(P0);
    b.load(&[(LeaseId(20), 0)]);
    b.answer_load(0, vec![held(0, 5)]);
    assert!(b.loaded().is_empty());
    b.next_load();
    b.answer_load(0, vec![held(0, 6)]);
    assert_eq!(b.loaded(), [(LeaseId(20), Some(6))]);
}

/// A seek begins a lease of its own: it may commit below what the one before had.
#[test]
fn a_seek_may_go_back_by_a_lease_of_its_own() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 100);
    b.next_commit();
    b.answer(0);
    b.commit.begin(b.now, LeaseId(40), tp(0), ID);
    b.note(P0, 101);
    b.note(LeaseId(40), 5);
    b.next_commit();
    assert_eq!(b.in_flight(0), Some(5));
    assert_eq!(b.commits[0].1.topics[0].partitions.len(), 1);
}

/// Misuse and bugs from below are not tried again.
#[test]
fn what_no_retry_cures_is_fatal() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 1);
    b.flush(&[P0], SEC(60));
    b.fail(Error::misuse("this broker is older than Kafka 2.1"));
    assert!(b.fatal().is_some());
    assert_eq!(b.flushed(), [(P0, false)]);
    assert_eq!(b.commit.next_deadline(), None);
}

/// An ended lease ends its flush, so that nobody waits for it.
#[test]
fn an_ended_lease_ends_its_flush() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 1);
    b.flush(&[P0], SEC(60));
    b.commit.end(P0);
    b.drain();
    assert_eq!(b.flushed(), [(P0, false)]);
    b.answer(0);
    assert!(b.did.is_empty(), "{:?}", b.did);
}
