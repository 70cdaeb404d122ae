//! Random op lists against a naive coordinator.
//!
//! At every step: one commit in flight at most; what is sent for a partition is the newest of its
//! living lease, under the membership of the moment; a load says only what the coordinator holds;
//! a flush that ends complete is in the coordinator, and none outlives its deadline. At the end,
//! once all is well, everything noted is committed.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::answer::REFUSAL_PATIENCE;
use super::*;
use crate::error::ErrorKind;
use crate::wire::Code;
use crate::wire::message::{
    OffsetCommitResponse, OffsetCommitResponseTopic, OffsetFetchPartition, OffsetFetchRequest,
    OffsetFetchResponse, OffsetFetchTopic,
};

const PARTITIONS: i32 = 3;

#[derive(Clone, Debug)]
enum Op {
    /// A lease begins, by a load or at a chosen place.
    Grant {
        partition: i32,
        load: bool,
        at: i64,
    },
    End {
        partition: i32,
    },
    Note {
        partition: i32,
        by: i64,
        metadata: usize,
    },
    Flush {
        partitions: Vec<i32>,
        ms: u64,
    },
    FlushAll {
        ms: u64,
    },
    /// The coordinator answers the commit, with these codes by partition.
    Commit {
        codes: Vec<i16>,
    },
    /// The coordinator answers the load.
    Load {
        codes: Vec<i16>,
        group: i16,
    },
    /// The commit is lost before or after it took effect.
    Cut {
        applied: bool,
    },
    CutLoad,
    /// The group goes on to another generation; we hear of it or not yet.
    Generation {
        told: bool,
    },
    /// We are put out: the coordinator knows another member only.
    PutOut,
    /// We have no membership for now.
    NoMember,
    Coordinator(bool),
    Pass {
        ms: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let partition = 0..PARTITIONS;
    let commit_code = prop_oneof![
        8 => Just(0i16),
        4 => prop::sample::select(vec![3i16, 7, 12, 14, 15, 16, 27, 28, 100, -1, 999]),
    ];
    let load_code =
        prop_oneof![4 => Just(0i16), 2 => prop::sample::select(vec![3, 14, 16, 88, -1])];
    let group_code = prop_oneof![8 => Just(0i16), 1 => prop::sample::select(vec![14, 15, 16, 88])];
    prop_oneof![
        3 => (partition.clone(), any::<bool>(), 0..50i64)
            .prop_map(|(partition, load, at)| Op::Grant { partition, load, at }),
        1 => partition.clone().prop_map(|partition| Op::End { partition }),
        8 => (partition.clone(), 0..5i64, prop::sample::select(vec![0usize, 0, 10, 40]))
            .prop_map(|(partition, by, metadata)| Op::Note { partition, by, metadata }),
        3 => (prop::collection::vec(partition, 1..3), 0..20_000u64)
            .prop_map(|(partitions, ms)| Op::Flush { partitions, ms }),
        1 => (0..20_000u64).prop_map(|ms| Op::FlushAll { ms }),
        8 => prop::collection::vec(commit_code, PARTITIONS as usize)
            .prop_map(|codes| Op::Commit { codes }),
        4 => (prop::collection::vec(load_code, PARTITIONS as usize), group_code)
            .prop_map(|(codes, group)| Op::Load { codes, group }),
        2 => any::<bool>().prop_map(|applied| Op::Cut { applied }),
        1 => Just(Op::CutLoad),
        2 => any::<bool>().prop_map(|told| Op::Generation { told }),
        1 => Just(Op::PutOut),
        1 => Just(Op::NoMember),
        2 => any::<bool>().prop_map(Op::Coordinator),
        6 => prop_oneof![0..300u64, 0..30_000u64].prop_map(|ms| Op::Pass { ms }),
    ]
}

/// What we believe of one living lease.
#[derive(Debug, Default)]
struct Held {
    partition: i32,
    noted: Option<(i64, Option<Arc<str>>)>,
    /// By a load.
    found: Option<(i64, Option<Arc<str>>)>,
    loading: bool,
    /// The furthest that was sent for it.
    sent: i64,
    /// The broker would not have it.
    failed: bool,
}

struct Model {
    now: Now,
    commit: Commit,
    // The coordinator.
    held: BTreeMap<i32, (i64, Option<Arc<str>>)>,
    generation: i32,
    member_id: Arc<str>,
    // What we told the machine.
    told: Option<MemberRef>,
    dead: BTreeMap<(Arc<str>, i32), Now>,
    leases: BTreeMap<LeaseId, Held>,
    lease_next: u64,
    flushes: BTreeMap<LeaseId, Now>,
    // What it asked.
    commits: Option<(Token, OffsetCommitRequest)>,
    loads: Option<(Token, OffsetFetchRequest)>,
}

impl Model {
    fn new() -> Self {
        let now = Now(5_000_000_000);
        let mut cfg = CommitConfig::new("g");
        cfg.every = 4;
        cfg.seed = [5; 32];
        let mut m = Model {
            now,
            commit: Commit::new(cfg, now),
            held: BTreeMap::new(),
            generation: 1,
            member_id: "m1".into(),
            told: None,
            dead: BTreeMap::new(),
            leases: BTreeMap::new(),
            lease_next: 1,
            flushes: BTreeMap::new(),
            commits: None,
            loads: None,
        };
        m.tell_member();
        m.commit.set_coordinator(now, true);
        m
    }

    fn tell_member(&mut self) {
        self.told = Some(MemberRef {
            member_id: self.member_id.clone(),
            generation: self.generation,
            instance_id: None,
        });
        self.commit.set_member(self.now, self.told.clone());
    }

    fn lease_of(&self, partition: i32) -> Option<LeaseId> {
        let mine = |(_, h): &(&LeaseId, &Held)| h.partition == partition;
        self.leases.iter().find(mine).map(|(lease, _)| *lease)
    }

    fn apply(&mut self, op: &Op) {
        match op.clone() {
            Op::Grant {
                partition,
                load,
                at,
            } => {
                if let Some(old) = self.lease_of(partition) {
                    self.leases.remove(&old); // the machine ends it by itself
                }
                let lease = LeaseId(self.lease_next);
                self.lease_next += 1;
                let tp = TopicPartition::new("t", partition);
                let mut held = Held {
                    partition,
                    loading: load,
                    ..Held::default()
                };
                if load {
                    self.commit.load(self.now, vec![(lease, tp, TopicId::ZERO)]);
                } else {
                    held.noted = Some((at, None));
                    self.commit.begin(self.now, lease, tp, TopicId::ZERO);
                    let progress = Progress::new(at, 1).expect("legal");
                    self.commit.note(self.now, lease, progress, 0);
                }
                self.leases.insert(lease, held);
            }
            Op::End { partition } => {
                if let Some(lease) = self.lease_of(partition) {
                    self.leases.remove(&lease);
                    self.commit.end(lease);
                    // Late results are refused.
                    let late = Progress::new(1_000_000, 1).expect("legal");
                    self.commit.note(self.now, lease, late, 1);
                }
            }
            Op::Note {
                partition,
                by,
                metadata,
            } => self.note(partition, by, metadata),
            Op::Flush { partitions, ms } => {
                let deadline = self.now + Duration::from_millis(ms);
                let leases: BTreeSet<LeaseId> = partitions
                    .iter()
                    .filter_map(|p| self.lease_of(*p))
                    .collect();
                self.flushes.extend(leases.iter().map(|l| (*l, deadline)));
                let leases: Vec<LeaseId> = leases.into_iter().collect();
                self.commit.flush(self.now, &leases, deadline);
            }
            Op::FlushAll { ms } => {
                let deadline = self.now + Duration::from_millis(ms);
                self.flushes
                    .extend(self.leases.keys().map(|l| (*l, deadline)));
                self.commit.flush_all(self.now, deadline);
            }
            Op::Commit { codes } => self.answer_commit(&codes),
            Op::Load { codes, group } => self.answer_load(&codes, group),
            Op::Cut { applied } => {
                if let Some((token, request)) = self.commits.take() {
                    if applied {
                        self.process(&request, &[]);
                    }
                    self.commit.handle_response(self.now, token, Err(cut()));
                }
            }
            Op::CutLoad => {
                if let Some((token, _)) = self.loads.take() {
                    self.commit.handle_response(self.now, token, Err(cut()));
                }
            }
            Op::Generation { told } => {
                self.generation += 1;
                if told {
                    self.tell_member();
                }
            }
            Op::PutOut => {
                self.member_id = format!("m{}", self.generation + 1).into();
                self.generation += 1;
            }
            Op::NoMember => {
                self.told = None;
                self.commit.set_member(self.now, None);
            }
            Op::Coordinator(known) => self.commit.set_coordinator(self.now, known),
            Op::Pass { ms } => self.pass(Duration::from_millis(ms)),
        }
        self.drain();
    }

    fn note(&mut self, partition: i32, by: i64, metadata: usize) {
        let Some(lease) = self.lease_of(partition) else {
            return;
        };
        let held = self.leases.get_mut(&lease).expect("just found");
        if held.loading {
            return;
        }
        let from = held
            .noted
            .as_ref()
            .or(held.found.as_ref())
            .map_or(0, |n| n.0);
        let mut progress = Progress::new(from + by, 1).expect("legal");
        if metadata > 0 {
            progress = progress.with_metadata(format!("{:0>metadata$}", from + by));
        }
        let news = (progress.offset(), progress.metadata.clone());
        // What was found says nothing any more once something else was noted.
        if held.noted.is_some() || held.found.as_ref() != Some(&news) {
            held.noted = Some(news);
        }
        self.commit.note(self.now, lease, progress, by as u64);
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut steps = 0;
        while let Some(at) = self.commit.next_deadline().filter(|at| *at <= end) {
            assert!(at >= self.now, "a deadline in the past");
            self.now = at;
            self.commit.handle_timeout(at);
            self.drain();
            steps += 1;
            assert!(steps < 500, "a storm");
        }
        self.now = end;
    }

    /// What the coordinator does with a commit; the code of each partition.
    fn process(&mut self, request: &OffsetCommitRequest, codes: &[i16]) -> Vec<(i32, Code)> {
        let known = request.member_id == self.member_id;
        let mut answer = Vec::new();
        for p in request.topics.iter().flat_map(|t| &t.partitions) {
            let scripted = codes.get(p.partition as usize).copied().unwrap_or(0);
            let code = match (known, request.generation == self.generation) {
                (false, _) => 25,
                (true, false) => 22,
                (true, true) if matches!(scripted, 12 | 28) && p.metadata.is_none() => 0,
                (true, true) => scripted,
            };
            if code == 0 {
                self.held
                    .insert(p.partition, (p.offset, p.metadata.clone()));
            }
            answer.push((p.partition, Code(code)));
        }
        answer
    }

    fn answer_commit(&mut self, codes: &[i16]) {
        let Some((token, request)) = self.commits.take() else {
            return;
        };
        let mut partitions = self.process(&request, codes);
        let refused = partitions.iter().any(|(_, code)| matches!(code.0, 22 | 25));
        let ours =
            |m: &MemberRef| m.member_id == request.member_id && m.generation == request.generation;
        if refused && self.told.as_ref().is_some_and(ours) {
            self.dead
                .insert((request.member_id.clone(), request.generation), self.now);
        }
        // 999 stands for a partition that the answer leaves out although it was stored.
        partitions.retain(|(_, code)| code.0 != 999);
        let answer = OffsetCommitResponse {
            throttle: Duration::ZERO,
            topics: vec![OffsetCommitResponseTopic {
                name: "t".into(),
                id: TopicId::ZERO,
                partitions,
            }],
        };
        let response = Ok(Response::OffsetCommit(answer));
        self.commit.handle_response(self.now, token, response);
    }

    fn answer_load(&mut self, codes: &[i16], group: i16) {
        let Some((token, request)) = self.loads.take() else {
            return;
        };
        let partition = |p: &i32| {
            let code = codes.get(*p as usize).copied().unwrap_or(0);
            let held = self.held.get(p).filter(|_| code == 0 && group == 0);
            OffsetFetchPartition {
                partition: *p,
                offset: held.map_or(-1, |h| h.0),
                leader_epoch: -1,
                metadata: held.and_then(|h| h.1.clone()),
                code: Code(code),
            }
        };
        let asked = request
            .topics
            .iter()
            .flat_map(|(_, _, partitions)| partitions);
        let answer = OffsetFetchResponse {
            throttle: Duration::ZERO,
            code: Code(group),
            topics: vec![OffsetFetchTopic {
                name: "t".into(),
                id: TopicId::ZERO,
                partitions: asked.map(partition).collect(),
            }],
        };
        let response = Ok(Response::OffsetFetch(answer));
        self.commit.handle_response(self.now, token, response);
    }

    fn drain(&mut self) {
        while let Some(action) = self.commit.poll_action() {
            match action {
                CommitAction::Send {
                    token,
                    request: Request::OffsetCommit(r),
                    ..
                } => {
                    self.check_commit(&r);
                    assert!(self.commits.replace((token, r)).is_none(), "two in flight");
                }
                CommitAction::Send {
                    token,
                    request: Request::OffsetFetch(r),
                    ..
                } => {
                    assert!(
                        self.loads.replace((token, r)).is_none(),
                        "two loads in flight"
                    );
                }
                CommitAction::Loaded { lease, committed } => {
                    let held = self
                        .leases
                        .get_mut(&lease)
                        .expect("only for a living lease");
                    assert!(std::mem::take(&mut held.loading), "once");
                    let truth = self.held.get(&held.partition).cloned();
                    held.found = committed.map(|c| (c.offset, c.metadata));
                    assert_eq!(held.found, truth, "a load says what the coordinator holds");
                }
                CommitAction::Committed { lease, offset } => {
                    let held = self.leases.get(&lease).expect("only for a living lease");
                    assert!(offset <= held.noted.as_ref().expect("noted").0);
                }
                CommitAction::Flushed { lease, complete } => self.check_flushed(lease, complete),
                CommitAction::Failed { lease, .. } => {
                    let held = self
                        .leases
                        .get_mut(&lease)
                        .expect("only for a living lease");
                    held.failed = true;
                }
                CommitAction::Fatal(error) => panic!("nothing here is fatal: {error}"),
                _ => {}
            }
        }
        for (lease, deadline) in &self.flushes {
            assert!(
                self.now <= *deadline,
                "the flush of {lease:?} outlived its deadline"
            );
        }
    }

    fn check_commit(&mut self, request: &OffsetCommitRequest) {
        let told = self.told.as_ref().expect("no commit without a membership");
        assert_eq!(
            (&request.member_id, request.generation),
            (&told.member_id, told.generation)
        );
        let refused = self.dead.get(&(told.member_id.clone(), told.generation));
        let rested = refused.is_none_or(|at| self.now >= *at + REFUSAL_PATIENCE);
        assert!(rested, "a refused generation rests");
        let mut seen = BTreeSet::new();
        for p in request.topics.iter().flat_map(|t| &t.partitions) {
            assert!(seen.insert(p.partition), "a partition once");
            let lease = self.lease_of(p.partition).expect("only for a living lease");
            let held = self.leases.get_mut(&lease).expect("just found");
            assert!(!held.failed);
            let newest = held.noted.as_ref().or(held.found.as_ref());
            assert_eq!(
                Some(p.offset),
                newest.map(|n| n.0),
                "neither below nor above"
            );
            if let (Some(map), Some((_, noted))) = (&p.metadata, newest) {
                assert_eq!(Some(map), noted.as_ref(), "of the same moment");
            }
            assert!(p.offset >= held.sent, "never back within a lease");
            held.sent = p.offset;
        }
    }

    fn check_flushed(&mut self, lease: LeaseId, complete: bool) {
        self.flushes.remove(&lease).expect("each flush ends once");
        if let (true, Some(held)) = (complete, self.leases.get(&lease))
            && let Some((offset, _)) = &held.noted
        {
            let truth = self.held.get(&held.partition).map(|h| h.0);
            assert_eq!(truth, Some(*offset), "complete means committed");
        }
    }

    /// All is well from now on: everything noted must arrive.
    fn finish(&mut self) {
        self.generation += 1;
        self.tell_member();
        self.commit.set_coordinator(self.now, true);
        self.drain();
        for _ in 0..200 {
            self.answer_commit(&[]);
            self.drain();
            self.answer_load(&[], 0);
            self.drain();
            if let Some(at) = self
                .commit
                .next_deadline()
                .filter(|at| at.since(self.now) < WELL)
            {
                self.now = at;
                self.commit.handle_timeout(at);
                self.drain();
            }
        }
        assert!(self.commits.is_none() && self.loads.is_none());
        assert!(self.flushes.is_empty(), "every flush ends");
        for (lease, held) in &self.leases {
            assert!(!held.loading, "every load ends");
            if let (Some((offset, _)), false) = (&held.noted, held.failed) {
                let truth = self.held.get(&held.partition).map(|h| h.0);
                assert_eq!(truth, Some(*offset), "{lease:?}");
                assert_eq!(self.commit.committed(*lease), Some(*offset));
            }
        }
    }
}

fn cut() -> Error {
    Error::new(ErrorKind::Transport, "cut").retriable()
}

/// Shorter than the pause between two keep-alives, longer than every other.
const WELL: Duration = Duration::from_secs(60);

/// The same by the fuzzer's bytes.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Some(ops) = crate::fuzzing::draw(bytes, &prop::collection::vec(op(), 1..120)) {
        let mut model = Model::new();
        for op in &ops {
            model.apply(op);
        }
        model.finish();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// C02, C15, C17, C22, C25, C28, G02, G03, F21 in any order that chance makes.
    #[test]
    fn against_a_naive_coordinator(ops in prop::collection::vec(op(), 1..120)) {
        let mut model = Model::new();
        for op in &ops {
            model.apply(op);
        }
        model.finish();
    }
}
