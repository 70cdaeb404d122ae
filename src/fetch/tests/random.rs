//! Random lives beside a model of brokers: logs that grow, shrink, move and lie; sessions as the
//! brokers keep them; every offset is accounted for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::model::{Log, Random, Session, Stored};
use super::rig::{ID, at, batch, tp};
use crate::error::{Error, ErrorKind};
use crate::fetch::{
    Charge, Fetch, FetchAction, FetchConfig, FetchLink, Fetched, Hold, Loss, LossPolicy, Start,
    StartOffset,
};
use crate::ids::{LeaseId, NodeId, Token, TopicId};
use crate::records::{BatchBuilder, Encoder};
use crate::time::Now;
use crate::wire::message::{
    Code, EpochEndAnswer, EpochEndResponse, FetchPartition, FetchRequest, FetchResponse,
    FetchResponsePartition, FetchResponseTopic, Isolation, ListOffsetsAnswer, ListOffsetsResponse,
};
use crate::wire::{Request, Response};

const PARTITIONS: i32 = 6;
const BUDGET: usize = 20_000;
/// Lives; each takes some tens of milliseconds.
const SEEDS: u64 = 40;

struct Lease {
    partition: i32,
    /// The next offset to be given; none before the start is known.
    expected: Option<i64>,
    paused: bool,
}

struct Out {
    token: Token,
    node: i32,
    link: FetchLink,
    request: Request,
    at: Now,
}

struct World {
    seed: u64,
    r: Random,
    now: Now,
    fetch: Fetch,
    logs: Vec<Log>,
    /// Every batch that ever was, by partition and base.
    ever: BTreeMap<(i32, i64), Stored>,
    sessions: BTreeMap<(i32, i32), Session>,
    next_session: i32,
    leases: BTreeMap<u64, Lease>,
    next_lease: u64,
    out: Vec<Out>,
    charges: Vec<Charge>,
    corrupted: BTreeSet<(u64, i64)>,
    sends: usize,
    resets: usize,
    calm: bool,
    truncates: bool,
    committed: bool,
    refresh: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let committed = r.chance(50);
        let cfg = FetchConfig {
            budget_bytes: BUDGET,
            partition_max_bytes: 3_000,
            max_bytes: 10_000,
            isolation: match committed {
                true => Isolation::ReadCommitted,
                false => Isolation::ReadUncommitted,
            },
            rack: if r.chance(50) { "east" } else { "" }.into(),
            loss: LossPolicy::Nearest,
            seed,
            ..FetchConfig::default()
        };
        let mut world = World {
            seed,
            now: Now(0),
            fetch: Fetch::new(cfg, Now(0)),
            logs: Vec::new(),
            ever: BTreeMap::new(),
            sessions: BTreeMap::new(),
            next_session: 1,
            leases: BTreeMap::new(),
            next_lease: 1,
            out: Vec::new(),
            charges: Vec::new(),
            corrupted: BTreeSet::new(),
            sends: 0,
            resets: 0,
            calm: false,
            truncates: r.chance(30),
            committed,
            refresh: false,
            r,
        };
        for p in 0..PARTITIONS {
            let (leader, follower) = (world.r.node(), world.r.node());
            world.logs.push(Log {
                leader,
                follower,
                ..Log::default()
            });
            for _ in 0..world.r.below(30) {
                world.append(p);
            }
            world.tell(p);
            world.lease(p, Start::Policy);
        }
        world.run();
        world
    }

    fn log(&mut self, partition: i32) -> &mut Log {
        &mut self.logs[usize::try_from(partition).expect("small")]
    }

    fn append(&mut self, partition: i32) {
        let i = usize::try_from(partition).expect("small");
        let had = self.logs[i].batches.len();
        self.logs[i].append(&mut self.r, self.committed);
        for b in &self.logs[i].batches[had..] {
            self.ever.insert((partition, b.base), b.clone());
        }
    }

    fn tell(&mut self, partition: i32) {
        let now = self.now;
        let log = self.log(partition);
        let (leader, epoch) = (NodeId(log.leader), log.epoch);
        self.fetch
            .set_leader(now, &tp(partition), Some(leader), epoch, ID);
    }

    fn lease(&mut self, partition: i32, start: Start) {
        let id = self.next_lease;
        self.next_lease += 1;
        let expected = match start {
            Start::At { offset, .. } => Some(offset),
            Start::Policy | Start::By(_) => None,
        };
        self.leases.insert(
            id,
            Lease {
                partition,
                expected,
                paused: false,
            },
        );
        self.fetch
            .add(self.now, LeaseId(id), tp(partition), ID, start, false);
    }

    fn lease_of(&self, partition: i32) -> u64 {
        let found = self.leases.iter().find(|(_, l)| l.partition == partition);
        *found.expect("one for each partition").0
    }

    fn end(&mut self, lease: u64) -> i32 {
        self.fetch.remove(self.now, LeaseId(lease));
        self.leases.remove(&lease).expect("live").partition
    }

    fn run(&mut self) {
        while let Some(action) = self.fetch.poll_action() {
            match action {
                FetchAction::Send {
                    token,
                    node,
                    link,
                    request,
                    ..
                } => {
                    self.sends += 1;
                    let api = std::mem::discriminant(&request);
                    for o in &self.out {
                        let same = o.node == node.0
                            && o.link == link
                            && std::mem::discriminant(&o.request) == api;
                        assert!(!same, "two of a kind, seed {}", self.seed);
                    }
                    self.out.push(Out {
                        token,
                        node: node.0,
                        link,
                        request,
                        at: self.now,
                    });
                }
                FetchAction::RefreshMetadata => self.refresh = true,
                FetchAction::Started {
                    lease,
                    offset,
                    why: StartOffset::Earliest,
                } => {
                    let lease = self.leases.get_mut(&lease.0).expect("live");
                    assert_eq!(lease.expected.replace(offset), None);
                }
                FetchAction::Reset { lease, to, why, .. } => {
                    self.resets += 1;
                    let expected = self.leases[&lease.0].expected.expect("started");
                    match why {
                        Loss::BelowStart { log_start, .. } => {
                            assert!(to == log_start && to > expected, "seed {}", self.seed);
                        }
                        _ => assert!(self.truncates && to <= expected, "seed {}", self.seed),
                    }
                    let partition = self.end(lease.0);
                    self.lease(partition, at(to));
                }
                FetchAction::Hint { .. } | FetchAction::Notice(_) => {}
                other => panic!("{other:?}, seed {}", self.seed),
            }
        }
        let batch_max = 6 * 1_000;
        assert!(
            self.fetch.budget().used_bytes() <= BUDGET + self.charges.len() * 2_000 + 4 * batch_max,
            "seed {}",
            self.seed
        );
        if self.out.is_empty() && self.fetch.next_deadline().is_none() {
            let rests = self
                .leases
                .values()
                .all(|l| l.paused || self.fetch.has_buffered());
            assert!(rests, "stalled, seed {}", self.seed);
        }
    }

    fn take(&mut self, most: u64) {
        for _ in 0..most {
            let Some(fetched) = self.fetch.take(self.now) else {
                break;
            };
            match fetched {
                Fetched::Batch {
                    lease,
                    from,
                    raw,
                    mut charge,
                } => {
                    let (base, next) = (raw.header().base_offset(), raw.header().next_offset());
                    let partition = self.account(lease, from.max(base), next, true);
                    let again = (lease.0, from);
                    if self.r.chance(3) && self.corrupted.insert(again) {
                        // It does not decode: as if it had never been given.
                        let error = Error::new(ErrorKind::Peer, "corrupt batch");
                        self.fetch.corrupt(self.now, lease, from, error);
                        self.leases.get_mut(&lease.0).expect("live").expected = Some(from);
                        continue;
                    }
                    if !self.truncates {
                        let stored = &self.ever[&(partition, base)];
                        assert!(stored.delivered && stored.bytes == raw.bytes());
                    }
                    let inflated = raw.bytes().len() + 100;
                    drop(raw);
                    charge.exchange(inflated);
                    self.charges.push(charge);
                }
                Fetched::Gap { lease, to } => {
                    self.account(lease, to, to, false);
                }
            }
        }
        self.run();
    }

    /// What lies between the expected offset and `from` must hold nothing to deliver.
    fn account(&mut self, lease: LeaseId, from: i64, next: i64, batch: bool) -> i32 {
        let seed = self.seed;
        let lease = self.leases.get_mut(&lease.0).expect("of a live lease");
        let expected = lease.expected.replace(next).expect("started");
        assert!(!lease.paused, "seed {seed}");
        assert!(next > expected && from >= expected, "seed {seed}");
        if !self.truncates {
            let partition = lease.partition;
            let skipped = self
                .ever
                .range((partition, 0)..(partition, from))
                .map(|(_, b)| b)
                .find(|b| b.delivered && b.last >= expected && b.last < from);
            assert!(
                skipped.is_none(),
                "{} skipped, batch {batch}, seed {seed}",
                skipped.map_or(0, |b| b.base)
            );
        }
        lease.partition
    }

    fn step(&mut self) {
        let partition = i32::try_from(self.r.int(i64::from(PARTITIONS))).expect("small");
        match self.r.below(100) {
            0..25 => self.append(partition),
            25..60 => self.answer_one(),
            60..75 => {
                let n = self.r.below(8);
                self.take(n);
            }
            75..83 => {
                let keep = self.r.below(self.charges.len() as u64 + 1);
                self.charges.truncate(usize::try_from(keep).expect("small"));
            }
            83..90 => {
                let wait = self.r.below(120);
                self.pass(Duration::from_millis(wait));
            }
            90..92 => {
                let id = self.lease_of(partition);
                let paused = !self.leases[&id].paused;
                self.leases.get_mut(&id).expect("live").paused = paused;
                self.fetch.hold(LeaseId(id), Hold::Paused, paused);
            }
            92..94 => {
                let id = self.lease_of(partition);
                self.end(id);
                let (start, end) = {
                    let log = self.log(partition);
                    (log.start, log.end)
                };
                let offset = start + self.r.int(end - start + 1);
                let start = match self.r.chance(30) {
                    true => Start::Policy,
                    false => at(offset),
                };
                self.lease(partition, start);
            }
            94..97 => {
                let (leader, follower) = (self.r.node(), self.r.node());
                let truncate = self.truncates && self.r.chance(40);
                let drop = self.r.int(4);
                let log = self.log(partition);
                if truncate {
                    for _ in 0..drop {
                        if let Some(b) = log.batches.pop() {
                            log.end = b.base;
                        }
                    }
                    let end = log.end;
                    log.aborted.retain(|(_, _, last)| *last < end);
                    log.start = log.start.min(end);
                }
                log.epoch += 1;
                log.leader = leader;
                log.follower = follower;
                if self.r.chance(50) {
                    self.tell(partition);
                }
            }
            97..98 => {
                let cut = self.r.int(3);
                let log = self.log(partition);
                for _ in 0..cut {
                    if log.batches.len() > 1 {
                        log.batches.remove(0);
                        log.start = log.batches[0].base;
                    }
                }
            }
            _ => {
                if self.refresh {
                    self.refresh = false;
                    (0..PARTITIONS).for_each(|p| self.tell(p));
                }
            }
        }
        self.run();
    }

    fn pass(&mut self, duration: Duration) {
        let until = self.now + duration;
        for _ in 0..10_000 {
            match self.fetch.next_deadline() {
                Some(at) if at <= until => {
                    self.now = self.now.max(at);
                    self.fetch.handle_timeout(self.now);
                    self.run();
                }
                _ => {
                    self.now = until;
                    return;
                }
            }
        }
        panic!("it spins, seed {}", self.seed);
    }

    fn answer_one(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let i = usize::try_from(self.r.below(self.out.len() as u64)).expect("small");
        let waited = self.now.since(self.out[i].at);
        let (node, link) = (self.out[i].node, self.out[i].link);
        let fault = !self.calm && self.r.chance(6);
        let error = Error::new(ErrorKind::Transport, "cut").retriable();
        let request = self.out[i].request.clone();
        let result = match request {
            // Half of the lost answers are lost after the broker has worked on the request.
            Request::Fetch(r) if fault => {
                if self.r.chance(50) {
                    self.serve(node, &r);
                }
                Err(error)
            }
            _ if fault => Err(error),
            Request::Fetch(r) => {
                let (response, news) = self.serve_peek(node, &r, link, waited);
                if !news {
                    return; // the broker waits on
                }
                response
            }
            Request::ListOffsets(r) => Ok(self.offsets(node, &r.topics, r.topics.len())),
            Request::EpochEnd(r) => {
                let mut answers = Vec::new();
                for q in &r.topics[0].1 {
                    let code = self.leader_code(node, q.partition, q.current_leader_epoch);
                    let end = self.log(q.partition).epoch_end(q.epoch);
                    answers.push(EpochEndAnswer {
                        partition: q.partition,
                        code: Code(code),
                        end,
                    });
                }
                Ok(Response::EpochEnd(EpochEndResponse {
                    throttle: Duration::ZERO,
                    topics: vec![("t".into(), answers)],
                }))
            }
            other => panic!("{other:?}"),
        };
        let out = self.out.remove(i);
        self.fetch.handle_response(self.now, out.token, result);
    }

    fn leader_code(&mut self, node: i32, partition: i32, epoch: i32) -> i16 {
        let random =
            (!self.calm && self.r.chance(5)).then(|| [3, 6, 78, -1][self.r.below(4) as usize]);
        let log = self.log(partition);
        match () {
            () if log.leader != node => 6,
            () if epoch >= 0 && epoch < log.epoch => 74,
            () if epoch > log.epoch => 75,
            () => random.unwrap_or(0),
        }
    }

    fn offsets(
        &mut self,
        node: i32,
        topics: &[(
            std::sync::Arc<str>,
            Vec<crate::wire::message::ListOffsetsPartition>,
        )],
        n: usize,
    ) -> Response {
        assert_eq!(n, 1);
        let mut answers = Vec::new();
        for q in &topics[0].1 {
            let code = self.leader_code(node, q.partition, q.current_leader_epoch);
            let log = self.log(q.partition);
            let offset = match q.timestamp {
                -2 => log.start,
                _ => log.end,
            };
            answers.push(ListOffsetsAnswer {
                partition: q.partition,
                code: Code(code),
                timestamp: -1,
                offset: if code == 0 { offset } else { -1 },
                leader_epoch: -1,
            });
        }
        if self.r.chance(10) {
            answers.pop();
        }
        Response::ListOffsets(ListOffsetsResponse {
            throttle: Duration::ZERO,
            topics: vec![("t".into(), answers)],
        })
    }

    fn serve_peek(
        &mut self,
        node: i32,
        r: &FetchRequest,
        link: FetchLink,
        waited: Duration,
    ) -> (Result<Response, Error>, bool) {
        let over = link == FetchLink::Prompt || waited >= r.max_wait;
        if !over {
            // Would it have news? A session only moves when its request is answered.
            let forgotten: Vec<i32> = r.forgotten.iter().flat_map(|f| f.2.clone()).collect();
            let mut asked: BTreeMap<i32, FetchPartition> = match r.session_epoch {
                0 => BTreeMap::new(),
                epoch => match self.sessions.get(&(node, r.session_id)) {
                    Some(s) if s.epoch == epoch => s.partitions.clone(),
                    _ => return (Ok(self.serve(node, r)), true),
                },
            };
            let listed = r.topics.iter().flat_map(|t| &t.partitions);
            asked.extend(listed.map(|p| (p.partition, p.clone())));
            let quiet = asked.values().all(|f| {
                let log = &self.logs[usize::try_from(f.partition).expect("small")];
                let serves = log.leader == node || log.follower == node;
                forgotten.contains(&f.partition) || (log.end == f.offset && serves)
            });
            if quiet {
                return (Ok(Response::Fetch(FetchResponse::default_empty())), false);
            }
        }
        (Ok(self.serve(node, r)), true)
    }

    /// As a broker does, session and all.
    fn serve(&mut self, node: i32, r: &FetchRequest) -> Response {
        let mut response = FetchResponse::default_empty();
        if !self.calm && self.r.chance(3) {
            response.code = Code([70, 71, 999][self.r.below(3) as usize]);
            return Response::Fetch(response);
        }
        let listed: BTreeMap<i32, FetchPartition> = r
            .topics
            .iter()
            .inspect(|t| assert!(!r.by_id || t.id == ID))
            .flat_map(|t| t.partitions.iter().map(|p| (p.partition, p.clone())))
            .collect();
        let mut incremental = false;
        let wanted = match r.session_epoch {
            -1 => listed,
            0 => {
                self.sessions.remove(&(node, r.session_id));
                if self.r.chance(80) {
                    response.session_id = self.next_session;
                    self.next_session += 1;
                    let session = Session {
                        epoch: 1,
                        partitions: listed.clone(),
                    };
                    self.sessions.insert((node, response.session_id), session);
                }
                listed
            }
            epoch => {
                let Some(session) = self.sessions.get_mut(&(node, r.session_id)) else {
                    response.code = Code(70);
                    return Response::Fetch(response);
                };
                if session.epoch != epoch {
                    response.code = Code(71);
                    return Response::Fetch(response);
                }
                session.epoch += 1;
                session.partitions.extend(listed);
                for (_, id, partitions) in &r.forgotten {
                    assert!(*id == ID);
                    session.partitions.retain(|p, _| !partitions.contains(p));
                }
                response.session_id = r.session_id;
                incremental = true;
                session.partitions.clone()
            }
        };
        let mut room = usize::try_from(r.max_bytes).expect("positive");
        let mut first = true;
        let mut parts = Vec::new();
        for asked in wanted.values() {
            let racked = !r.rack.is_empty();
            let part = self.partition(node, asked, racked, &mut room, &mut first);
            let news = !part.code.is_none()
                || !part.records.is_empty()
                || part.diverging.is_some()
                || part.preferred_replica >= 0;
            if news || !incremental {
                parts.push(part);
            }
        }
        if !self.calm && self.r.chance(5) && !parts.is_empty() {
            parts.push(parts[0].clone());
        }
        let (name, id) = match r.by_id {
            true => ("", ID),
            false => ("t", TopicId::ZERO),
        };
        response.topics.push(FetchResponseTopic {
            name: name.into(),
            id,
            partitions: parts,
        });
        Response::Fetch(response)
    }

    fn partition(
        &mut self,
        node: i32,
        asked: &FetchPartition,
        racked: bool,
        room: &mut usize,
        first: &mut bool,
    ) -> FetchResponsePartition {
        let mut code = self.leader_code(node, asked.partition, asked.current_leader_epoch);
        let (leader, follower) = {
            let log = self.log(asked.partition);
            (log.leader, log.follower)
        };
        let follows = node == follower && node != leader;
        if follows && code == 6 {
            code = i16::from(!self.calm && self.r.chance(5));
        }
        let redirects = racked && node == leader && follower != leader && self.r.chance(50);
        let cuts = !self.calm && self.r.chance(30);
        let lied_cut = batch(900, 905);
        let log = self.log(asked.partition);
        if code == 0 && (asked.offset < log.start || asked.offset > log.end) {
            code = 1;
        }
        let mut part = super::rig::error_part(asked.partition, code);
        if code != 0 {
            return part;
        }
        part.high_watermark = log.end;
        part.last_stable_offset = log.end;
        part.log_start = log.start;
        if asked.last_fetched_epoch >= 0 {
            let end = log.epoch_end(asked.last_fetched_epoch);
            if end.end_offset < asked.offset {
                part.diverging = Some(end);
                return part;
            }
        }
        if redirects {
            part.preferred_replica = follower;
            return part;
        }
        let mut limit = usize::try_from(asked.max_bytes)
            .expect("positive")
            .min(*room);
        let mut records = Vec::new();
        let mut upto = asked.offset;
        for b in log.batches.iter().filter(|b| b.last >= asked.offset) {
            if b.bytes.len() > limit && !*first {
                if cuts && limit > 0 {
                    records.push(b.bytes.slice(..limit.min(b.bytes.len() - 1)));
                }
                break;
            }
            *first = false;
            limit = limit.saturating_sub(b.bytes.len());
            upto = b.last;
            records.push(b.bytes.clone());
        }
        if records.is_empty() && cuts && asked.offset == log.end && limit > 50 {
            // Some brokers send a piece of what is not yet visible.
            records.push(lied_cut.slice(..30));
        }
        part.aborted = log
            .aborted
            .iter()
            .rev()
            .filter(|(_, from, last)| *from <= upto && *last >= asked.offset)
            .map(|(id, from, _)| (*id, *from))
            .collect();
        part.records = records.concat().into();
        *room = room.saturating_sub(part.records.len());
        part
    }

    /// Faults end; everything must be read to its end, in bounded time.
    fn settle(&mut self) {
        self.calm = true;
        for lease in self.leases.iter_mut() {
            lease.1.paused = false;
            self.fetch.hold(LeaseId(*lease.0), Hold::Paused, false);
        }
        (0..PARTITIONS).for_each(|p| self.tell(p));
        self.run();
        for _ in 0..30_000 {
            self.charges.clear();
            if self.refresh {
                self.refresh = false;
                (0..PARTITIONS).for_each(|p| self.tell(p));
            }
            self.answer_one();
            self.run();
            self.take(100);
            self.pass(Duration::from_millis(5));
            let logs = &self.logs;
            let done = self.leases.values().all(|l| {
                let log = &logs[usize::try_from(l.partition).expect("small")];
                l.expected == Some(last_covered(log))
            });
            if done {
                return;
            }
        }
        let left: Vec<_> = self
            .leases
            .iter()
            .map(|(id, l)| {
                let log = &self.logs[usize::try_from(l.partition).expect("small")];
                (l.expected, log.end, self.fetch.view(LeaseId(*id)))
            })
            .collect();
        panic!("never at the end: {left:#?}, seed {}", self.seed);
    }

    /// Caught up, it is quiet; without leases it holds nothing.
    fn idle(&mut self) {
        let until = self.now + Duration::from_secs(10);
        while self.now < until {
            (0..4).for_each(|_| self.answer_one());
            self.run();
            self.pass(Duration::from_millis(10));
        }
        let sends = self.sends;
        let until = self.now + Duration::from_secs(30);
        while self.now < until {
            (0..4).for_each(|_| self.answer_one());
            self.run();
            self.pass(Duration::from_millis(10));
        }
        let asked = self.sends - sends;
        assert!(asked < 3 * 120, "{asked} requests idle, seed {}", self.seed);
        self.charges.clear();
        let leases: Vec<u64> = self.leases.keys().copied().collect();
        leases.into_iter().for_each(|l| {
            self.end(l);
        });
        for out in std::mem::take(&mut self.out) {
            let error = Error::new(ErrorKind::Transport, "cut");
            self.fetch.handle_response(self.now, out.token, Err(error));
        }
        while let Some(action) = self.fetch.poll_action() {
            assert!(!matches!(action, FetchAction::Send { .. }));
        }
        assert_eq!(self.fetch.budget().used_bytes(), 0, "seed {}", self.seed);
    }
}

/// The end of the last batch: compaction may have taken what follows it.
fn last_covered(log: &Log) -> i64 {
    log.batches.last().map_or(log.end, |b| b.last + 1)
}

trait Empty {
    fn default_empty() -> Self;
}

impl Empty for FetchResponse {
    fn default_empty() -> Self {
        FetchResponse {
            throttle: Duration::ZERO,
            code: Code::NONE,
            session_id: 0,
            topics: Vec::new(),
            endpoints: Vec::new(),
        }
    }
}

/// I4, I5, I6, I7, I8, I10 over random lives: answers, errors, lost answers, sessions, seeks,
/// pauses, leader moves, followers, retention, truncation, corruption, a slow user.
#[test]
fn random_lives_account_for_every_offset() {
    let mut resets = 0;
    for seed in 1..=SEEDS {
        let mut world = World::new(seed);
        for _ in 0..600 {
            world.step();
        }
        for p in 0..PARTITIONS {
            // Behind the last hole lies a batch, so that the end can be reached.
            let (end, epoch) = (world.log(p).end, world.log(p).epoch);
            let mut builder = BatchBuilder::new(end).leader_epoch(epoch);
            builder.push(1, None, None, &[]).expect("first");
            let bytes = builder.build(&mut Encoder::new()).expect("small");
            world.log(p).push(bytes, end, true);
            let stored = world.log(p).batches.last().expect("pushed").clone();
            world.ever.insert((p, end), stored);
        }
        world.settle();
        world.idle();
        resets += world.resets;
    }
    assert!(resets > 5, "{resets}");
}
