//! Reading partitions: which broker is asked for what, when, and what becomes of its answers.
//!
//! [`Fetch`] is a machine. It holds each leased partition's position, plans requests so that
//! every partition moves and the byte budget holds, keeps what came (still compressed), and gives
//! it out batch by batch. It decodes nothing but markers, commits nothing and knows no group: an
//! engine adds leases, tells it leaders, sends what it asks for and takes what it has.
//!
//! ```text
//!   add ─► Start ──ListOffsets──► Reading ◄──OffsetForLeaderEpoch── Validate ◄─ new leader epoch
//!   (policy)                      │ ▲   │                             │
//!             out of range, leader│ │   └─ diverging epoch ─► Ended ◄─┘ truncated
//!                                 ▼ │ in range                  ▲
//!                              Confirm ──── gone ───────────────┘
//! ```
//!
//! What holds:
//!
//! 1. A position moves forward only. Whatever moves it back ends the lease: the machine says
//!    [`FetchAction::Reset`] and the engine grants a new one.
//! 2. Every offset from a lease's start on is given once: in a batch, in a gap between or inside
//!    batches, or in a [`Fetched::Gap`].
//! 3. An answer counts only for the request that a partition waits for; a lease that has ended
//!    waits for none.
//! 4. At most two fetches, one ListOffsets and one OffsetForLeaderEpoch are out for a broker.
//! 5. A partition is in one fetch: the *waiting* one (a session, a long poll) when it is caught
//!    up, else the *prompt* one (no session, no wait).
//! 6. A partition that can be read is in a request, or has a deadline, or waits for room.
//! 7. A failure is followed by a wait that grows.
//!
//! The budget is charged with a fetch's `max_bytes` when it is sent and with the records' bytes
//! once they are there. A partition is left out while it holds more than is free: so one slow
//! partition takes half, k of them leave a part in k + 1 to the others. With nothing else held
//! one batch may overdraw.
//!
//! KIP-227 (sessions), KIP-320 (truncation), KIP-392 (followers), KIP-516 (topic ids), KIP-951
//! (leader hints).

mod answer;
mod budget;
mod lookup;
mod partition;
mod plan;
mod session;
mod types;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::error::Error;
use crate::ids::{LeaseId, NodeId, Token, TopicId, TopicPartition};
use crate::records::{Decoder, Limits};
use crate::time::Now;
use partition::{CHUNKS_MAX, Ending, Lookup, Partition, State};
use session::{Asked, Node};

pub use budget::{Budget, Charge};
pub use types::{
    FetchAction, FetchConfig, FetchEvent, FetchLink, FetchResult, FetchState, FetchStats, Fetched,
    Hold, Loss, LossPolicy, PartitionView, Start, StartOffset,
};

/// The fetch machine of one subscription. See the [module](self).
///
/// After each `handle_*`, `add`, `remove`, `set_*`, `hold`, `corrupt` and round of `take`, call
/// [`poll_action`](Fetch::poll_action) until it has nothing; and `handle_timeout` at
/// [`next_deadline`](Fetch::next_deadline).
pub struct Fetch {
    cfg: FetchConfig,
    budget: Budget,
    /// The latest moment that any input named.
    now: Now,
    partitions: BTreeMap<LeaseId, Partition>,
    leases: BTreeMap<TopicPartition, LeaseId>,
    /// What the cluster's view says, leased or not: [`LEADERS_SPARE`] more than there are leases.
    leaders: BTreeMap<TopicPartition, Leader>,
    /// Brokers that exist, where the engine has said so.
    known_nodes: Option<BTreeSet<NodeId>>,
    nodes: BTreeMap<NodeId, Node>,
    /// Requests without an answer: at most four a broker.
    flights: BTreeMap<Token, Flight>,
    next_token: u64,
    /// Leases with something to take, in turn.
    ready: VecDeque<LeaseId>,
    /// Bounded by what one input can cause: a few for each partition and broker.
    actions: VecDeque<FetchAction>,
    refresh_wanted: bool,
    refresh_not_before: Now,
    /// Something changed since the last plan.
    dirty: bool,
    /// What was held when a request was put off for lack of room.
    starved_at_bytes: Option<usize>,
    starved_gap: Duration,
    deadline: Option<Now>,
    jitter: u64,
    decoder: Decoder,
    limits: Limits,
    stats: FetchStats,
}

impl Fetch {
    /// A machine without partitions.
    #[must_use]
    pub fn new(cfg: FetchConfig, now: Now) -> Self {
        Fetch {
            budget: Budget::new(cfg.budget_bytes),
            limits: Limits {
                inflated_max: cfg.batch_bytes_max,
            },
            jitter: cfg.seed,
            cfg,
            now,
            partitions: BTreeMap::new(),
            leases: BTreeMap::new(),
            leaders: BTreeMap::new(),
            known_nodes: None,
            nodes: BTreeMap::new(),
            flights: BTreeMap::new(),
            next_token: 0,
            ready: VecDeque::new(),
            actions: VecDeque::new(),
            refresh_wanted: false,
            refresh_not_before: now,
            dirty: false,
            starved_at_bytes: None,
            starved_gap: STARVED_GAP_MIN,
            deadline: None,
            decoder: Decoder::new(),
            stats: FetchStats::default(),
        }
    }

    /// Starts to read a partition under `lease`. `born_after_us`: it appeared after the
    /// subscription began, so under [`StartOffset::Latest`] and [`StartOffset::Fail`] it starts
    /// at its first record.
    pub fn add(
        &mut self,
        now: Now,
        lease: LeaseId,
        tp: TopicPartition,
        topic_id: TopicId,
        start: Start,
        born_after_us: bool,
    ) {
        self.advance(now);
        if let Some(old) = self.leases.insert(tp.clone(), lease) {
            self.drop_partition(old);
        }
        let mut p = Partition::new(lease, tp.clone(), topic_id, self.cfg.partition_max_bytes);
        let policy = match self.cfg.start {
            StartOffset::Latest | StartOffset::Fail if born_after_us => StartOffset::Earliest,
            policy => policy,
        };
        match start {
            Start::At { offset, epoch } if offset >= 0 => p.place(offset, epoch),
            Start::By(rule) => p.state = State::Lookup(Lookup::Start(rule)),
            _ if policy == StartOffset::Fail => {
                let error = Error::misuse(
                    "the group has no valid commit and the start policy is Fail: commit an \
                     offset, seek, or choose another policy",
                );
                p.end(Ending::Stop(error.at(tp.topic.clone(), tp.partition)));
            }
            _ => p.state = State::Lookup(Lookup::Start(policy)),
        }
        self.partitions.insert(lease, p);
        if let Some(leader) = self.leaders.get(&tp).copied() {
            self.follow(lease, leader);
        }
        self.settle_ending(lease);
        self.dirty = true;
    }

    /// The lease is over: what is buffered goes, and so does what is still on its way.
    pub fn remove(&mut self, now: Now, lease: LeaseId) {
        self.advance(now);
        if let Some(tp) = self.drop_partition(lease)
            && self.leases.get(&tp) == Some(&lease)
        {
            self.leases.remove(&tp);
        }
        self.dirty = true;
    }

    /// What the cluster's view says of a partition, leased or not. A leader without an address is
    /// no leader (`None`).
    pub fn set_leader(
        &mut self,
        now: Now,
        tp: &TopicPartition,
        leader: Option<NodeId>,
        leader_epoch: i32,
        topic_id: TopicId,
    ) {
        self.advance(now);
        let mut told = Leader {
            node: leader,
            epoch: leader_epoch,
            topic_id,
        };
        if let Some(known) = self.leaders.get(tp) {
            if topic_id.is_zero() {
                told.topic_id = known.topic_id;
            }
            if told.topic_id == known.topic_id {
                if leader_epoch >= 0 && leader_epoch < known.epoch {
                    return; // a stale broker's word
                }
                // A leaderless moment has epoch -1, which must not undo what is known.
                told.epoch = leader_epoch.max(known.epoch);
            }
        }
        self.leaders.insert(tp.clone(), told);
        if self.leaders.len() > self.leases.len() + LEADERS_SPARE {
            let leases = &self.leases;
            self.leaders.retain(|tp, _| leases.contains_key(tp));
        }
        if let Some(lease) = self.leases.get(tp).copied() {
            self.follow(lease, told);
            self.settle_ending(lease);
        }
    }

    /// Which brokers exist. Without this every broker that is named is taken to exist.
    pub fn set_nodes(&mut self, now: Now, nodes: impl IntoIterator<Item = NodeId>) {
        self.advance(now);
        let known: BTreeSet<NodeId> = nodes.into_iter().collect();
        for p in self.partitions.values_mut() {
            if p.preferred.is_some_and(|(node, _)| !known.contains(&node)) {
                p.preferred = None;
            }
        }
        // Long polls share out a part of the budget, and brokers that are gone need none of it.
        self.nodes
            .retain(|node, state| known.contains(node) || state.is_busy());
        self.known_nodes = Some(known);
        self.dirty = true;
    }

    /// Lets a partition rest, or go on. At rest it is asked for no more and gives nothing; what
    /// is buffered stays.
    pub fn hold(&mut self, lease: LeaseId, why: Hold, on: bool) {
        let Some(p) = self.partitions.get_mut(&lease) else {
            return;
        };
        let flag = match why {
            Hold::Paused => &mut p.paused,
            Hold::Ahead => &mut p.ahead,
        };
        if *flag == on {
            return;
        }
        *flag = on;
        if !p.is_held() {
            // It may be far behind by now; one fetch that does not wait will tell.
            p.catch_up();
            self.make_ready(lease);
        }
        self.dirty = true;
    }

    /// The batch that was taken with this `from` did not decode. It is fetched once more; then
    /// the partition stops. What was taken behind it is taken again.
    pub fn corrupt(&mut self, now: Now, lease: LeaseId, from: i64, error: Error) {
        self.advance(now);
        self.refuse(lease, from, error, true);
    }

    /// The answer to a [`FetchAction::Send`].
    pub fn handle_response(&mut self, now: Now, token: Token, result: FetchResult) {
        self.advance(now);
        let Some(flight) = self.flights.remove(&token) else {
            return;
        };
        self.dirty = true;
        self.answer(token, flight, result);
    }

    /// Time has come to [`next_deadline`](Fetch::next_deadline).
    pub fn handle_timeout(&mut self, now: Now) {
        self.advance(now);
        self.dirty = true;
    }

    /// The next piece, round robin over partitions and fair by bytes.
    pub fn take(&mut self, now: Now) -> Option<Fetched> {
        self.advance(now);
        while let Some(&lease) = self.ready.front() {
            let alone = self.ready.len() == 1;
            let Some(p) = self.partitions.get_mut(&lease) else {
                self.ready.pop_front();
                continue;
            };
            if p.is_held() || p.chunks.is_empty() {
                p.in_ready = false;
                self.ready.pop_front();
                continue;
            }
            if p.deficit <= 0 {
                p.deficit += TURN_BYTES;
                if !alone {
                    self.ready.rotate_left(1);
                    continue;
                }
                p.deficit = p.deficit.max(TURN_BYTES);
            }
            let was_full = p.chunks.len() >= CHUNKS_MAX;
            let cut = p.cut(&mut self.decoder, &self.limits);
            // It may be asked for again, or may now say that it has ended.
            self.dirty |= was_full && p.chunks.len() < CHUNKS_MAX;
            if p.chunks.is_empty() {
                self.dirty = true;
                self.settle_ending(lease);
            }
            match cut {
                Ok(Some(fetched)) => return Some(fetched),
                Ok(None) => {}
                Err((offset, may_heal, error)) => self.refuse(lease, offset, error, may_heal),
            }
        }
        None
    }

    /// The next thing to do, until there is none.
    pub fn poll_action(&mut self) -> Option<FetchAction> {
        if self.actions.is_empty() {
            let room_came = self
                .starved_at_bytes
                .is_some_and(|then| self.budget.used_bytes() < then);
            if self.dirty || room_came {
                if room_came {
                    self.starved_gap = STARVED_GAP_MIN;
                }
                self.dirty = false;
                self.plan();
            }
        }
        self.actions.pop_front()
    }

    /// When `handle_timeout` is wanted.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Now> {
        if self.dirty || !self.actions.is_empty() {
            return Some(self.now);
        }
        self.deadline
    }

    /// The budget, to charge other things against it.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Whether a fetch was put off for lack of room.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        self.starved_at_bytes.is_some()
    }

    /// Whether [`take`](Fetch::take) has something.
    #[must_use]
    pub fn has_buffered(&self) -> bool {
        self.ready.iter().any(|lease| {
            self.partitions
                .get(lease)
                .is_some_and(|p| !p.is_held() && !p.chunks.is_empty())
        })
    }

    /// A partition as it is now.
    #[must_use]
    pub fn view(&self, lease: LeaseId) -> Option<PartitionView> {
        self.partitions.get(&lease).map(Partition::view)
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> FetchStats {
        self.stats
    }

    fn advance(&mut self, now: Now) {
        self.now = self.now.max(now);
    }

    fn drop_partition(&mut self, lease: LeaseId) -> Option<TopicPartition> {
        let p = self.partitions.remove(&lease)?;
        if p.in_ready {
            self.ready.retain(|l| *l != lease);
        }
        Some(p.tp)
    }

    /// Applies what is known of the leader to a leased partition.
    fn follow(&mut self, lease: LeaseId, told: Leader) {
        let now = self.now;
        let stop = self.cfg.loss == LossPolicy::Stop;
        let Some(p) = self.partitions.get_mut(&lease) else {
            return;
        };
        if p.topic_id != told.topic_id && !told.topic_id.is_zero() {
            let old = p.topic_id;
            p.topic_id = told.topic_id;
            if !old.is_zero() {
                p.recreated(old, stop);
            }
        }
        let moved = told.node != p.leader;
        let newer = told.epoch > p.leader_epoch;
        if !moved && !newer {
            return;
        }
        p.leader = told.node;
        p.leader_epoch = told.epoch;
        // Whatever the old leader still answers is not waited for: one position, one fetch.
        p.flight = None;
        p.preferred = None;
        p.moves += u32::from(told.node.is_some());
        let wait = match p.moves {
            0..=FREE_MOVES => Duration::ZERO,
            n => backoff(&self.cfg, n - FREE_MOVES, &mut self.jitter),
        };
        p.retry_at = now + wait;
        p.catch_up();
        if newer && p.state == State::Reading && p.epoch >= 0 && p.epoch != told.epoch {
            p.state = State::Validate;
        }
        self.dirty = true;
    }

    /// A batch does not hold: once more, or the end of the partition.
    fn refuse(&mut self, lease: LeaseId, offset: i64, error: Error, may_heal: bool) {
        self.dirty = true;
        let Some(p) = self.partitions.get_mut(&lease) else {
            return;
        };
        if p.has_ended() && p.chunks.is_empty() {
            return;
        }
        // A batch may begin below the lease, which a position never does.
        let offset = offset.max(p.start);
        let again = may_heal && p.refused_at != Some(offset);
        p.refused_at = Some(offset);
        p.rewind(offset);
        if again {
            p.state = State::Reading;
            self.actions
                .push_back(FetchAction::Notice(FetchEvent::Refetch { lease, error }));
        } else {
            p.end(Ending::Stop(error));
            self.settle_ending(lease);
        }
    }

    /// Says how a partition ended, once all that came before has been taken.
    fn settle_ending(&mut self, lease: LeaseId) {
        let Some(p) = self.partitions.get_mut(&lease) else {
            return;
        };
        if !p.chunks.is_empty() {
            return;
        }
        let action = match p.ending.take() {
            None => return,
            Some(Ending::Stop(error)) => FetchAction::Stopped { lease, error },
            Some(Ending::Reset { from, to, why }) => FetchAction::Reset {
                lease,
                from,
                to,
                why,
            },
        };
        self.actions.push_back(action);
    }

    fn make_ready(&mut self, lease: LeaseId) {
        if let Some(p) = self.partitions.get_mut(&lease)
            && !p.in_ready
            && !p.chunks.is_empty()
        {
            p.in_ready = true;
            self.ready.push_back(lease);
        }
    }

    fn want_refresh(&mut self) {
        self.refresh_wanted = true;
        self.dirty = true;
    }

    fn is_known(&self, node: NodeId) -> bool {
        match &self.known_nodes {
            Some(known) => known.contains(&node),
            None => true,
        }
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }
}

/// What the cluster's view says of a partition.
#[derive(Clone, Copy, Debug)]
struct Leader {
    node: Option<NodeId>,
    epoch: i32,
    topic_id: TopicId,
}

/// A request without an answer.
struct Flight {
    node: NodeId,
    sent_at: Now,
    what: Sent,
}

/// What a flight asked for.
enum Sent {
    /// The session's entries are in its node.
    Waiting {
        reserved: Charge,
    },
    Prompt {
        reserved: Charge,
        asked: Asked,
    },
    Offsets(BTreeMap<TopicPartition, LeaseId>),
    EpochEnds(BTreeMap<TopicPartition, LeaseId>),
}

/// The wait before attempt `failures` + 1, a fifth of it up or down by chance.
fn backoff(cfg: &FetchConfig, failures: u32, jitter: &mut u64) -> Duration {
    let doublings = failures.saturating_sub(1).min(BACKOFF_DOUBLINGS_MAX);
    let wait = cfg
        .retry_min
        .saturating_mul(1 << doublings)
        .min(cfg.retry_max);
    wait.mul_f64(0.8 + 0.4 * unit(jitter))
}

/// A number from 0 to 1: splitmix64. It spreads waits and decides nothing else.
fn unit(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Whether the n-th failure in a row is worth a notice.
fn is_loud(attempts: u32) -> bool {
    matches!(attempts, 3 | 10 | 100 | 1_000) || (attempts > 0 && attempts.is_multiple_of(10_000))
}

/// Leaders of partitions without a lease that are remembered.
const LEADERS_SPARE: usize = 10_000;
/// How many bytes a partition gives before the next one's turn.
const TURN_BYTES: isize = 64 << 10;
/// Leaders without a good answer between them that are followed at once, the first included; then
/// they are paced.
const FREE_MOVES: u32 = 2;
const BACKOFF_DOUBLINGS_MAX: u32 = 16;
/// How often to look whether room has come, at first and at most.
const STARVED_GAP_MIN: Duration = Duration::from_millis(10);
const STARVED_GAP_MAX: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
