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

mod answers;
mod asks;
mod loads;
mod progress;
