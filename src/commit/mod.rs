//! What to commit, when, and under which generation; and what was committed before.
//!
//! It is not the tracker: it takes watermarks as given and never works one out. It finds no
//! coordinator and joins no group; both are told to it. It fetches committed offsets when a lease
//! begins, because the same coordinator and the same back-off serve both.
//!
//! Invariants:
//!
//! 1. At most one commit is in flight, whatever happens to links, coordinator and membership.
//! 2. What is sent for a lease never goes back within the lease, and is what was noted for it in
//!    one call: offset, epoch and metadata together.
//! 3. For a lease that has ended nothing is sent and no answer counts.
//! 4. Every commit carries the membership of the moment it is made; one that the coordinator has
//!    refused is not used again until heartbeats have had the time to say the same. Where they
//!    do not, the refusal was a mistake (a coordinator that had just moved), and the membership
//!    is tried again: the coordinator takes a commit from nobody but the owner.
//! 5. Progress is compared by version. There is no flag to clear, so nothing noted while a commit
//!    is in flight is ever taken for committed.
//! 6. Each flush ends, at its deadline at the latest. Nothing to send means nothing in flight.
//! 7. Only a broker's word makes "nothing was committed": neither an error nor a gap in an answer
//!    does.
//! 8. Whatever is tried again is paced.
//!
//! KIP-211 (expiry), KIP-320 (epoch of the last record), KIP-447 (stable offsets).

mod action;
mod answer;
mod lease;
mod load;

#[cfg(any(test, fuzzing))]
mod property;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::ids::{LeaseId, Token, TopicId, TopicPartition};
use crate::pace::{Backoff, Rng};
use crate::time::{Now, earliest};
use crate::wire::message::{OffsetCommitPartition, OffsetCommitRequest, OffsetCommitTopic};
use crate::wire::{Request, Response};

pub use action::{CommitAction, CommitNotice};
use lease::Lease;
pub use lease::{Answer, Committed, Progress};
#[cfg(fuzzing)]
pub(crate) use property::fuzz;

/// Settings of a [`Commit`].
#[derive(Clone, Debug)]
pub struct CommitConfig {
    /// The group whose offsets they are.
    pub group: Arc<str>,
    /// True for a reader that is no member of the group and only keeps its offsets there.
    pub manual: bool,
    /// True for a member with the new protocol (KIP-848): its id is for life and its epoch is what
    /// the coordinator looks at, also when committed offsets are read.
    pub member_epochs: bool,
    /// Progress waits for up to this long, so that one commit carries much of it.
    pub interval: Duration,
    /// So many settled records do not wait for the interval; 0: they do.
    pub every: u64,
    /// Idle partitions are committed again after this long, so that the broker does not take
    /// them for abandoned (KIP-211).
    pub keep_alive: Duration,
    /// A topic that the coordinator does not know for this long is gone.
    pub gone_after: Duration,
    /// Leases have more to say than their watermark: they are [touched](Commit::touch), and asked
    /// when a commit is made.
    pub asks: bool,
    /// Loads wait for open transactions to end (KIP-447).
    pub require_stable: bool,
    /// How long an answer may take.
    pub request_timeout: Duration,
    /// The first pause after a failure; it doubles.
    pub retry_backoff: Duration,
    /// The longest such pause.
    pub retry_backoff_max: Duration,
    /// For jitter.
    pub seed: [u8; 32],
}

impl CommitConfig {
    /// Kafka's own defaults, for a member of `group`.
    #[must_use]
    pub fn new(group: impl Into<Arc<str>>) -> Self {
        CommitConfig {
            group: group.into(),
            manual: false,
            member_epochs: false,
            interval: Duration::from_secs(5),
            every: 0,
            keep_alive: Duration::from_secs(3600),
            gone_after: Duration::from_secs(5),
            asks: false,
            require_stable: true,
            request_timeout: Duration::from_secs(30),
            retry_backoff: Duration::from_millis(100),
            retry_backoff_max: Duration::from_secs(1),
            seed: [0; 32],
        }
    }
}

/// As whom a commit is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRef {
    /// The id that the coordinator gave.
    pub member_id: Arc<str>,
    /// The generation, or the member epoch.
    pub generation: i32,
    /// The id of a static member.
    pub instance_id: Option<Arc<str>>,
}

/// The machine. See the [module](self).
#[derive(Debug)]
pub struct Commit {
    cfg: CommitConfig,
    leases: BTreeMap<LeaseId, Lease>,
    by_partition: BTreeMap<TopicPartition, LeaseId>,
    member: Option<MemberRef>,
    /// The membership that the coordinator refused last, and until when that counts.
    refused: Option<(Refused, Now)>,
    /// The group is between two generations: not before, unless a new one begins.
    rebalance_until: Option<Now>,
    coordinator: bool,
    in_flight: Option<Flight>,
    load_in_flight: Option<(Token, Vec<LeaseId>)>,
    /// When the next commit that nobody waits for is due, if there is anything to commit.
    due: Option<Now>,
    /// A commit waits for the answers to [`CommitAction::Ask`].
    asking: bool,
    /// Records settled since the last commit was made.
    unsent: u64,
    pause_until: Now,
    backoff: Backoff,
    load_pause_until: Now,
    load_backoff: Backoff,
    /// The shortest metadata that the broker has refused as too long.
    metadata_refused: Option<usize>,
    wake: Option<Now>,
    rng: Rng,
    token_next: u64,
    actions: VecDeque<CommitAction>,
    /// After [`CommitAction::Fatal`].
    resting: bool,
}

#[derive(Debug)]
struct Flight {
    token: Token,
    member: Option<MemberRef>,
    sent: Vec<Sent>,
}

/// One partition of a commit, as it was when the commit was made.
#[derive(Debug)]
struct Sent {
    lease: LeaseId,
    partition: TopicPartition,
    topic_id: TopicId,
    version: u64,
    progress: Progress,
}

/// What the coordinator will not hear of again.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Refused {
    /// This generation of this member.
    Generation(MemberRef),
    /// This member, whatever its generation.
    Member(Arc<str>),
}

impl Commit {
    /// Knows no lease, no coordinator and no membership yet.
    #[must_use]
    pub fn new(cfg: CommitConfig, now: Now) -> Self {
        let backoff = Backoff::new(cfg.retry_backoff, cfg.retry_backoff_max);
        Commit {
            leases: BTreeMap::new(),
            by_partition: BTreeMap::new(),
            member: None,
            refused: None,
            rebalance_until: None,
            coordinator: false,
            in_flight: None,
            load_in_flight: None,
            due: None,
            asking: false,
            unsent: 0,
            pause_until: now,
            backoff: backoff.clone(),
            load_pause_until: now,
            load_backoff: backoff,
            metadata_refused: None,
            wake: None,
            rng: Rng::new(&cfg.seed, SALT),
            token_next: 0,
            actions: VecDeque::new(),
            resting: false,
            cfg,
        }
    }

    /// The membership from now on; `None` while there is none. To be called once a generation is
    /// settled (joined and synced), not before. Progress that an older generation could not
    /// commit goes out under the new one, for the leases that live. Of no use to a manual reader.
    pub fn set_member(&mut self, now: Now, member: Option<MemberRef>) {
        if self.member != member {
            self.member = member;
            self.rebalance_until = None;
            if self.leases.values().any(Lease::is_dirty) {
                self.pause_until = self.pause_until.min(now);
                self.due = Some(now);
            }
        }
        self.drive(now);
    }

    /// Whether the group's coordinator is known now. Nothing is sent while it is not.
    pub fn set_coordinator(&mut self, now: Now, known: bool) {
        self.coordinator = known;
        self.drive(now);
    }

    /// A lease begins at a place that is known without asking: a seek, a reset, a start that the
    /// user chose. An older lease of the same partition ends.
    pub fn begin(&mut self, now: Now, lease: LeaseId, partition: TopicPartition, id: TopicId) {
        if self.leases.contains_key(&lease) {
            return; // a lease begins once
        }
        let backoff = Backoff::new(self.cfg.retry_backoff, self.cfg.retry_backoff_max);
        if let Some(old) = self.by_partition.insert(partition.clone(), lease) {
            self.forget(old);
        }
        let entry = Lease::new(partition, id, now, backoff);
        self.leases.insert(lease, entry);
    }

    /// Leases begin where the group left off: each is answered by [`CommitAction::Loaded`], or by
    /// [`CommitAction::Failed`] where it may not be read. Until then it is asked for, paced.
    pub fn load(&mut self, now: Now, leases: Vec<(LeaseId, TopicPartition, TopicId)>) {
        for (lease, partition, id) in leases {
            self.begin(now, lease, partition, id);
            if let Some(entry) = self.leases.get_mut(&lease) {
                entry.loading = true;
            }
        }
        self.drive(now);
    }

    /// The watermark of `lease` has risen, or what is settled above it has changed; `settled`
    /// records settled since the last call. Where the lease has ended, or has been further
    /// before, nothing happens.
    pub fn note(&mut self, now: Now, lease: LeaseId, progress: Progress, settled: u64) {
        let Some(entry) = self.leases.get_mut(&lease) else {
            return;
        };
        if entry.note(progress) {
            self.noted(now, lease, settled);
        }
    }

    /// The watermark of `lease` has risen, or what is settled above it has changed; what there is
    /// to commit is asked for by [`CommitAction::Ask`] in the moment that a commit is made.
    /// `settled` records settled since the last call.
    pub fn touch(&mut self, now: Now, lease: LeaseId, settled: u64) {
        if let Some(entry) = self.leases.get_mut(&lease) {
            entry.touch();
            self.noted(now, lease, settled);
        }
    }

    /// The answers to [`CommitAction::Ask`]: what each lease has, of this moment. Those that are
    /// not among them are asked again for the next commit, which follows at once.
    pub fn answer(&mut self, now: Now, answers: impl IntoIterator<Item = (LeaseId, Answer)>) {
        if !std::mem::take(&mut self.asking) {
            return;
        }
        for (lease, answer) in answers {
            let Some(entry) = self.leases.get_mut(&lease) else {
                continue;
            };
            match answer {
                Answer::Progress(progress) => entry.answered(progress),
                Answer::Later => entry.not_before = now + self.cfg.interval,
                Answer::Nothing => entry.nothing(now),
            }
        }
        self.end_flushes(now);
        if self.may_commit(now) {
            self.make_commit(now);
        }
        self.plan(now);
    }

    /// `lease` has something to send.
    fn noted(&mut self, now: Now, lease: LeaseId, settled: u64) {
        let Some(entry) = self.leases.get(&lease) else {
            return;
        };
        self.unsent = self.unsent.saturating_add(settled);
        let due = if self.cfg.every > 0 && self.unsent >= self.cfg.every {
            now
        } else {
            now + self.cfg.interval
        };
        let due = self.due.map_or(due, |at| at.min(due));
        self.due = Some(due);
        let urgent = entry.flush_until.is_some();
        let able = self.in_flight.is_none() && self.coordinator && !self.resting && !self.asking;
        if !able || !self.has_standing(now) {
            return; // whatever ends that looks at everything anew
        }
        let at = due.max(self.pause_until);
        if at <= now || (urgent && self.pause_until <= now) {
            self.drive(now);
        } else {
            self.wake = earliest(self.wake, Some(at));
        }
    }

    /// The lease is over: nothing is sent for it any more, and a commit of it that is in flight
    /// counts for nothing.
    pub fn end(&mut self, lease: LeaseId) {
        self.forget(lease);
    }

    /// Commits what these leases have, now. Each is answered by one [`CommitAction::Flushed`]:
    /// when all that was noted is acknowledged, or when it cannot be, or at the deadline.
    pub fn flush(&mut self, now: Now, leases: &[LeaseId], deadline: Now) {
        for lease in leases {
            self.start_flush(*lease, deadline);
        }
        self.drive(now);
    }

    /// Commits what every lease has, now: as [`flush`](Self::flush) for each of them.
    pub fn flush_all(&mut self, now: Now, deadline: Now) {
        let leases: Vec<LeaseId> = self.leases.keys().copied().collect();
        self.flush(now, &leases, deadline);
    }

    /// What came of a [`CommitAction::Send`]. Answers to anything else are passed over.
    pub fn handle_response(&mut self, now: Now, token: Token, result: Result<Response, Error>) {
        if self.resting {
            return;
        }
        if let Some(flight) = self.in_flight.take_if(|f| f.token == token) {
            self.commit_answer(now, flight, result);
        } else if let Some((_, asked)) = self.load_in_flight.take_if(|(t, _)| *t == token) {
            self.load_answer(now, &asked, result);
        }
        self.drive(now);
    }

    /// To be called at [`next_deadline`](Self::next_deadline).
    pub fn handle_timeout(&mut self, now: Now) {
        self.drive(now);
    }

    /// What to do next; until `None` after each call of the others.
    pub fn poll_action(&mut self) -> Option<CommitAction> {
        self.actions.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Now> {
        self.wake
    }

    /// What the broker has acknowledged for `lease`, or had when the lease began.
    #[must_use]
    pub fn committed(&self, lease: LeaseId) -> Option<i64> {
        let committed = self.leases.get(&lease)?.committed.as_ref()?;
        Some(committed.offset)
    }

    /// Whether some flush has not ended.
    #[must_use]
    pub fn is_flushing(&self) -> bool {
        self.leases.values().any(|l| l.flush_until.is_some())
    }

    /// Whether a commit is in flight.
    #[must_use]
    pub fn in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Longest metadata that the broker may still take, once it has refused some; whoever makes
    /// the offset map should stay within it.
    #[must_use]
    pub fn metadata_max(&self) -> Option<usize> {
        self.metadata_refused.map(|n| n.saturating_sub(1))
    }

    fn forget(&mut self, lease: LeaseId) {
        let Some(entry) = self.leases.remove(&lease) else {
            return;
        };
        if self.by_partition.get(&entry.partition) == Some(&lease) {
            self.by_partition.remove(&entry.partition);
        }
        if entry.flush_until.is_some() {
            let complete = false;
            self.actions
                .push_back(CommitAction::Flushed { lease, complete });
        }
    }

    fn start_flush(&mut self, lease: LeaseId, deadline: Now) {
        let Some(entry) = self.leases.get_mut(&lease) else {
            return;
        };
        // No membership cures these; one that was refused may yet be followed by another.
        let hopeless = entry.refused || entry.gone;
        if self.resting || !entry.is_dirty() || hopeless {
            entry.flush_until = None;
            let complete = !entry.is_dirty();
            self.actions
                .push_back(CommitAction::Flushed { lease, complete });
        } else {
            entry.flush_until = Some(deadline);
        }
    }

    /// Ends flushes that are done or overdue, and sends whatever is due.
    fn drive(&mut self, now: Now) {
        self.end_flushes(now);
        if !self.resting {
            self.drive_load(now);
            self.drive_commit(now);
        }
        self.plan(now);
    }

    fn end_flushes(&mut self, now: Now) {
        for (lease, entry) in &mut self.leases {
            let Some(deadline) = entry.flush_until else {
                continue;
            };
            let complete = !entry.is_dirty();
            if complete || entry.refused || entry.gone || self.resting || now >= deadline {
                entry.flush_until = None;
                let lease = *lease;
                self.actions
                    .push_back(CommitAction::Flushed { lease, complete });
            }
        }
    }

    /// Whether a commit made now could be accepted, as far as we know.
    fn has_standing(&self, now: Now) -> bool {
        if self.cfg.manual {
            return true;
        }
        let Some(member) = &self.member else {
            return false;
        };
        let refused = match &self.refused {
            Some((_, until)) if *until <= now => false,
            Some((Refused::Generation(which), _)) => which == member,
            Some((Refused::Member(id), _)) => *id == member.member_id,
            None => false,
        };
        !refused && self.rebalance_until.is_none_or(|at| at <= now)
    }

    fn may_commit(&self, now: Now) -> bool {
        let blocked = self.in_flight.is_some() || !self.coordinator || now < self.pause_until;
        !blocked && !self.asking && !self.resting && self.has_standing(now)
    }

    fn drive_commit(&mut self, now: Now) {
        if !self.may_commit(now) {
            return;
        }
        for entry in self.leases.values_mut() {
            entry.keep_alive(now, self.cfg.keep_alive, self.cfg.asks);
        }
        let routine = self.due.is_some_and(|at| at <= now);
        let urgent = |l: &Lease| l.flush_until.is_some() || l.keeping_alive;
        if !routine && !self.leases.values().any(|l| urgent(l) && l.may_send(now)) {
            return;
        }
        let mut asked = self.ready(now);
        asked.retain(|(_, lease)| self.leases.get(lease).is_some_and(|l| l.asks));
        if asked.is_empty() {
            return self.make_commit(now);
        }
        asked.truncate(PARTITIONS_MAX);
        let leases = asked.into_iter().map(|(_, lease)| lease).collect();
        self.asking = true;
        self.actions.push_back(CommitAction::Ask { leases });
    }

    /// Those that may be sent: first what someone waits for.
    fn ready(&self, now: Now) -> Vec<(bool, LeaseId)> {
        let leases = self.leases.iter();
        let mut ready: Vec<(bool, LeaseId)> = leases
            .filter(|(_, l)| l.may_send(now))
            .map(|(id, l)| (l.flush_until.is_none(), *id))
            .collect();
        ready.sort_unstable();
        ready
    }

    /// Makes one commit of everything that has progress, but for what must be asked for yet.
    fn make_commit(&mut self, now: Now) {
        let all = self.ready(now);
        let asks = |lease: &LeaseId| self.leases.get(lease).is_none_or(|l| l.asks);
        let ready: Vec<LeaseId> = all.iter().map(|(_, l)| *l).filter(|l| !asks(l)).collect();
        let mut sent = Vec::new();
        let mut bytes = 0;
        for lease in &ready {
            let Some(item) = self.snapshot(*lease) else {
                continue;
            };
            bytes += item.size();
            if !sent.is_empty() && (bytes > COMMIT_BYTES_MAX || sent.len() >= PARTITIONS_MAX) {
                break;
            }
            sent.push(item);
        }
        let rest = sent.len() < all.len();
        self.due = if rest {
            Some(now)
        } else {
            self.after_pauses(now)
        };
        if sent.is_empty() {
            return;
        }
        self.unsent = 0;
        let token = self.token();
        let member = self.member.clone().filter(|_| !self.cfg.manual);
        let request = Request::OffsetCommit(OffsetCommitRequest {
            group: self.cfg.group.clone(),
            generation: member.as_ref().map_or(-1, |m| m.generation),
            member_id: member
                .as_ref()
                .map_or_else(|| "".into(), |m| m.member_id.clone()),
            instance_id: member.as_ref().and_then(|m| m.instance_id.clone()),
            topics: topics_of(&sent),
        });
        let timeout = self.cfg.request_timeout;
        self.actions.push_back(CommitAction::Send {
            token,
            request,
            timeout,
        });
        self.in_flight = Some(Flight {
            token,
            member,
            sent,
        });
    }

    /// What `lease` has, all of one moment.
    fn snapshot(&self, lease: LeaseId) -> Option<Sent> {
        let entry = self.leases.get(&lease)?;
        let mut progress = entry.noted.clone()?;
        let too_long = |m: &Arc<str>| self.metadata_refused.is_some_and(|max| m.len() >= max);
        progress.metadata = progress.metadata.filter(|m| !too_long(m));
        Some(Sent {
            lease,
            partition: entry.partition.clone(),
            topic_id: entry.topic_id,
            version: entry.version,
            progress,
        })
    }

    /// Works out when to wake.
    fn plan(&mut self, now: Now) {
        let mut wake = None;
        let may_send = self.in_flight.is_none() && self.coordinator && !self.resting;
        let standing = may_send && self.has_standing(now);
        if may_send && !standing {
            wake = earliest(wake, self.rebalance_until.filter(|at| *at > now));
            let refused_until = self.refused.as_ref().map(|(_, until)| *until);
            wake = earliest(wake, refused_until.filter(|at| *at > now));
        }
        let from = self.pause_until.max(now);
        for lease in self.leases.values() {
            wake = earliest(wake, lease.flush_until);
            if standing {
                wake = earliest(
                    wake,
                    lease
                        .wants_send(self.due, self.cfg.keep_alive)
                        .map(|at| at.max(from)),
                );
            }
        }
        self.wake = earliest(wake, self.load_wake(now));
    }

    fn token(&mut self) -> Token {
        let token = Token(self.token_next);
        self.token_next += 1;
        token
    }
}

impl Sent {
    /// About what it takes in a request.
    fn size(&self) -> usize {
        let metadata = self.progress.metadata.as_ref().map_or(0, |m| m.len());
        32 + self.partition.topic.len() + metadata
    }
}

fn topics_of(sent: &[Sent]) -> Vec<OffsetCommitTopic> {
    let mut topics: BTreeMap<(&Arc<str>, TopicId), Vec<OffsetCommitPartition>> = BTreeMap::new();
    for item in sent {
        let partitions = topics
            .entry((&item.partition.topic, item.topic_id))
            .or_default();
        partitions.push(OffsetCommitPartition {
            partition: item.partition.partition,
            offset: item.progress.offset(),
            leader_epoch: item.progress.leader_epoch,
            metadata: item.progress.metadata.clone(),
        });
    }
    topics
        .into_iter()
        .map(|((name, id), partitions)| OffsetCommitTopic {
            name: name.clone(),
            id,
            partitions,
        })
        .collect()
}

/// Partitions in one commit or load.
const PARTITIONS_MAX: usize = 5_000;

/// About how large one commit may be: brokers write all of it as one batch.
const COMMIT_BYTES_MAX: usize = 512 * 1024;

const SALT: u64 = 3;
