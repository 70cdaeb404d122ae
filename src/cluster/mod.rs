//! The cluster as we know it: brokers, topics by name and id, leaders with their epochs, and the
//! group's coordinator; kept fresh, and found again when all of it has moved.
//!
//! It is not a connection pool: it says whom to ask and when a peer may be tried again; links,
//! names and addresses are the driver's. It fetches and commits nothing.
//!
//! Invariants:
//!
//! 1. While a topic's id stays the same, its leader epochs never go back and it never loses a
//!    partition, whatever a broker that lags says.
//! 2. An error is about the topic or partition that it came with; everything else is kept.
//! 3. Whatever is tried again is paced: peers by exponential back-off that only a real answer
//!    ends, metadata and coordinator look-ups by their own.
//! 4. At most one metadata request and one coordinator look-up are in flight.
//! 5. While something is wanted there is a request in flight or a deadline.
//!
//! KIP-320 (leader epochs), KIP-516 (topic ids), KIP-899 and KIP-1102 (bootstrap again), KIP-951
//! (leader hints).

mod action;
mod coordinator;
mod learn;
mod notice;
mod peers;
mod view;

#[cfg(test)]
mod property;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::ids::{NodeId, Token, TopicId, TopicPartition};
use crate::pace::{Backoff, Rng};
use crate::time::{Now, earliest};
use crate::wire::message::{BrokerEndpoint, FindCoordinatorRequest, MetadataRequest};
use crate::wire::{Code, Request, Response};

pub use action::{ClusterAction, ClusterConfig};
use coordinator::{Coordinator, State};
pub use notice::ClusterNotice;
pub use peers::Peer;
use peers::{Peers, Pick};
use view::View;
pub use view::{Partition, Topic};

/// The machine. See the [module](self).
#[derive(Debug)]
pub struct Cluster {
    cfg: ClusterConfig,
    peers: Peers,
    view: View,
    cluster_id: Option<Arc<str>>,
    controller: i32,
    wanted: BTreeSet<Arc<str>>,
    /// Topics that are written to, and what the last answer refused each with.
    side: BTreeMap<Arc<str>, Option<Code>>,
    all: bool,
    /// Partitions that someone was told of and that metadata must therefore have.
    expected: BTreeMap<TopicPartition, Missing>,
    metadata: Metadata,
    coordinator: Option<Coordinator>,
    rng: Rng,
    token_next: u64,
    actions: VecDeque<ClusterAction>,
    /// After [`ClusterAction::Fatal`].
    resting: bool,
}

/// The refresh of metadata.
#[derive(Debug)]
struct Metadata {
    in_flight: Option<(Token, Peer)>,
    /// When to ask next; never, while nothing is wanted.
    due: Now,
    /// What the request in flight asks for is less than what is wanted now.
    wants_more: bool,
    /// Someone asked for a refresh while a request was in flight.
    again: bool,
    /// `due` is when the first peer may be tried again; one that comes up ends the wait.
    waiting: bool,
    /// Requests that were asked for early are paced by this one.
    pace: Backoff,
    pace_until: Now,
    /// Rounds without an answer from anyone are paced by this one.
    rounds: Backoff,
    tried: BTreeSet<Peer>,
    /// The first failure since the last success.
    failing_since: Option<Now>,
    /// Bootstraps on demand (code 129) are paced by this one.
    rebootstraps: Backoff,
    /// Numbers the answers.
    round: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Missing {
    since: Option<Now>,
    /// Said when it had lasted this long.
    said: Duration,
}

impl Cluster {
    /// Knows nothing yet and asks nobody until something is wanted.
    #[must_use]
    pub fn new(cfg: ClusterConfig, now: Now) -> Self {
        let reconnect = (cfg.reconnect_backoff, cfg.reconnect_backoff_max);
        Cluster {
            peers: Peers::new(&cfg.bootstrap, reconnect, Rng::new(&cfg.seed, SALT_PEERS)),
            view: View::default(),
            cluster_id: None,
            controller: -1,
            wanted: BTreeSet::new(),
            side: BTreeMap::new(),
            all: false,
            expected: BTreeMap::new(),
            metadata: Metadata {
                in_flight: None,
                due: Now::NEVER,
                wants_more: false,
                again: false,
                waiting: false,
                pace: Backoff::new(cfg.metadata_min_interval, cfg.metadata_max_interval),
                pace_until: now,
                rounds: Backoff::new(cfg.reconnect_backoff, cfg.reconnect_backoff_max),
                tried: BTreeSet::new(),
                failing_since: None,
                rebootstraps: Backoff::new(REBOOTSTRAP_PAUSE, cfg.reconnect_backoff_max),
                round: 0,
            },
            coordinator: None,
            rng: Rng::new(&cfg.seed, SALT_PACE),
            token_next: 0,
            actions: VecDeque::new(),
            resting: false,
            cfg,
        }
    }

    /// Keeps metadata of exactly these topics fresh; others are forgotten. Names that nobody
    /// knew of are asked for at once.
    pub fn want_topics(&mut self, now: Now, names: &[Arc<str>]) {
        let wanted: BTreeSet<Arc<str>> = names.iter().cloned().collect();
        let news = self.all || wanted.iter().any(|n| !self.wanted.contains(n));
        self.all = false;
        self.wanted = wanted;
        let side = &self.side;
        let kept = |name: &str| self.wanted.contains(name) || side.contains_key(name);
        if self.view.retain(kept) {
            self.actions.push_back(ClusterAction::Changed);
        }
        for name in &self.wanted {
            if !self.view.want(name) {
                let notice = ClusterNotice::TooManyTopics {
                    topic: name.clone(),
                };
                self.actions.push_back(ClusterAction::Notice(notice));
                break;
            }
        }
        if self.wanted.is_empty() && self.side.is_empty() {
            self.metadata.due = Now::NEVER;
            self.metadata.waiting = false;
        } else if news {
            self.ask_at_once(now);
        }
        self.drive(now);
    }

    /// Beside what is read, keeps metadata of these topics fresh, which are written to. One that is
    /// refused is no end of anything: [`refusal`](Self::refusal) says why. Replaces the list given
    /// before.
    pub fn want_side_topics(&mut self, now: Now, names: &[Arc<str>]) {
        let known = |name: &Arc<str>| self.side.get(name).copied().flatten();
        let side: BTreeMap<_, _> = names.iter().map(|n| (n.clone(), known(n))).collect();
        let is_new = |name: &Arc<str>| !self.side.contains_key(name) && !self.wanted.contains(name);
        let news = names.iter().any(is_new);
        self.side = side;
        let (all, wanted, side) = (self.all, &self.wanted, &self.side);
        let kept = |name: &str| all || wanted.contains(name) || side.contains_key(name);
        if self.view.retain(kept) {
            self.actions.push_back(ClusterAction::Changed);
        }
        for name in names {
            if !self.view.want(name) {
                let topic = name.clone();
                self.notice(ClusterNotice::TooManyTopics { topic });
                break;
            }
        }
        if news {
            self.ask_at_once(now);
        }
        self.drive(now);
    }

    /// What the last answer refused a topic of [`want_side_topics`](Self::want_side_topics) with.
    #[must_use]
    pub fn refusal(&self, name: &str) -> Option<Code> {
        self.side.get(name).copied().flatten()
    }

    /// Keeps metadata of every topic of the cluster fresh (patterns need it).
    pub fn want_all(&mut self, now: Now) {
        if !self.all {
            self.all = true;
            self.wanted.clear();
            self.ask_at_once(now);
        }
        self.drive(now);
    }

    /// Looks up who coordinates `group`, and again whenever that has failed.
    pub fn want_coordinator(&mut self, now: Now, group: &Arc<str>) {
        if self.coordinator.as_ref().is_none_or(|c| c.group != *group) {
            self.coordinator = Some(Coordinator::new(
                group.clone(),
                now,
                (
                    self.cfg.metadata_min_interval,
                    self.cfg.metadata_max_interval,
                ),
            ));
        }
        self.drive(now);
    }

    /// The coordinator does not answer or says that it is none (codes 15, 16, a lost link): it is
    /// forgotten and looked up again, paced. Any number of callers may say so of one fault.
    pub fn coordinator_failed(&mut self, now: Now) {
        if let Some(c) = &mut self.coordinator {
            c.failed(now, &mut self.rng);
        }
        self.drive(now);
    }

    /// Partitions that an assignment names. While metadata lacks one it is asked for again,
    /// paced, and the user hears of it when that lasts. Replaces the list given before.
    pub fn expect_partitions(&mut self, now: Now, partitions: &[TopicPartition]) {
        let mut expected = BTreeMap::new();
        for tp in partitions {
            let known = self.expected.get(tp).copied().unwrap_or_default();
            expected.insert(tp.clone(), known);
        }
        self.expected = expected;
        if self.lacks_expected(now) {
            self.refresh(now);
        }
    }

    /// Something that a broker said means that leaders have changed: ask soon, paced.
    pub fn refresh(&mut self, now: Now) {
        let m = &mut self.metadata;
        if now.since(m.pace_until) >= CALM {
            m.pace.reset();
        }
        if m.in_flight.is_some() {
            m.again = true;
        } else {
            m.due = m.due.min(m.pace_until.max(now));
        }
        self.drive(now);
    }

    /// KIP-951: an answer said who leads a partition now, and where the brokers it named listen.
    pub fn hint_leader(
        &mut self,
        topic: &str,
        partition: i32,
        (leader, epoch): (NodeId, i32),
        endpoints: &[BrokerEndpoint],
    ) {
        if !self.view.hint(topic, partition, leader, epoch) {
            return;
        }
        let named: Vec<BrokerEndpoint> = endpoints
            .iter()
            .filter(|e| e.node == leader)
            .cloned()
            .collect();
        let moved = self.peers.merge(&named);
        self.relocated(moved);
        self.resolve();
        self.actions.push_back(ClusterAction::Changed);
    }

    /// What came of a [`ClusterAction::Send`]. Answers to anything else are passed over.
    pub fn handle_response(&mut self, now: Now, token: Token, result: Result<Response, Error>) {
        if self.resting {
            return;
        }
        if let Some((sent, peer)) = self.metadata.in_flight
            && sent == token
        {
            self.metadata.in_flight = None;
            self.metadata_answer(now, peer, result);
        } else if let Some(Coordinator {
            state: State::Asked { token: sent, peer },
            ..
        }) = self.coordinator
            && sent == token
        {
            self.coordinator_answer(now, peer, result);
        }
        self.drive(now);
    }

    /// A link to `peer` is up. Its back-off goes on until an answer has come: say so with
    /// [`proven`](Self::proven).
    pub fn link_up(&mut self, now: Now, peer: Peer) {
        self.peers.up(peer);
        if std::mem::take(&mut self.metadata.waiting) {
            self.metadata.due = now;
        }
        if let Some(c) = &mut self.coordinator
            && std::mem::take(&mut c.waiting)
        {
            c.state = State::Unknown { due: now };
        }
        self.drive(now);
    }

    /// A real answer came from `peer` to whoever asked: its back-off ends.
    pub fn proven(&mut self, peer: Peer) {
        self.peers.proven(peer);
    }

    /// A link to `peer` is gone, or could not be opened. Links that one fault takes down together
    /// count once.
    pub fn link_down(&mut self, now: Now, peer: Peer) {
        self.peers.down(now, peer);
        self.drive(now);
    }

    /// Whether a new link to `peer` may be opened; else when.
    ///
    /// # Errors
    ///
    /// The moment before which it may not; [`Now::NEVER`] for a peer that we do not know.
    pub fn may_connect(&self, now: Now, peer: Peer) -> Result<(), Now> {
        match self.peers.not_before(peer) {
            Some(at) if at <= now => Ok(()),
            Some(at) => Err(at),
            None => Err(Now::NEVER),
        }
    }

    /// To be called at [`next_deadline`](Self::next_deadline).
    pub fn handle_timeout(&mut self, now: Now) {
        self.drive(now);
    }

    /// What to do next; until `None` after each call of the others.
    pub fn poll_action(&mut self) -> Option<ClusterAction> {
        self.actions.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Now> {
        if self.resting {
            return None;
        }
        let idle = self.metadata.in_flight.is_none();
        let metadata = Some(self.metadata.due).filter(|_| idle);
        let lookup = self.coordinator.as_ref().and_then(Coordinator::due);
        earliest(metadata, lookup).filter(|at| *at != Now::NEVER)
    }

    /// Where `peer` listens, while we know it.
    #[must_use]
    pub fn address(&self, peer: Peer) -> Option<(Arc<str>, u16)> {
        self.peers.address(peer)
    }

    /// The bootstrap address that answered last, if one ever did.
    #[must_use]
    pub fn answered_bootstrap(&self) -> Option<(Arc<str>, u16)> {
        self.peers.answered_bootstrap()
    }

    /// How often in a row `peer` was not reached.
    #[must_use]
    pub fn failures(&self, peer: Peer) -> u32 {
        self.peers.failures(peer)
    }

    /// A topic, once an answer has described it.
    #[must_use]
    pub fn topic(&self, name: &str) -> Option<&Topic> {
        self.view.topic(name)
    }

    /// The name of the topic that has this id now.
    #[must_use]
    pub fn topic_by_id(&self, id: TopicId) -> Option<&Arc<str>> {
        self.view.name_of(id)
    }

    /// All topics that are wanted and known.
    pub fn topics(&self) -> impl Iterator<Item = (&Arc<str>, &Topic)> {
        self.view.topics()
    }

    /// Who leads a partition, with the epoch; `None` while nobody that we can reach does.
    #[must_use]
    pub fn leader(&self, topic: &str, partition: i32) -> Option<(NodeId, i32)> {
        let p = self.view.topic(topic)?.partitions.get(&partition)?;
        Some((p.leader?, p.leader_epoch))
    }

    /// Who coordinates the group; `None` while it is looked up.
    #[must_use]
    pub fn coordinator(&self) -> Option<NodeId> {
        self.coordinator.as_ref()?.known()
    }

    /// Every broker that we know.
    pub fn brokers(&self) -> impl Iterator<Item = &BrokerEndpoint> {
        self.peers.endpoints()
    }

    /// How many partitions each of `names` has: 0 for a topic that brokers do not know; topics that
    /// no answer has spoken of yet are left out.
    #[must_use]
    pub fn partition_counts(&self, names: &[Arc<str>]) -> BTreeMap<Arc<str>, i32> {
        let count = |name: &Arc<str>| {
            let partitions = match self.view.topic(name) {
                Some(topic) => topic.partitions.len(),
                None if self.view.unknown_answers(name) > 0 => 0,
                // All topics were asked for, and it was not among them.
                None if self.all && self.has_learned() => 0,
                None => return None,
            };
            Some((name.clone(), i32::try_from(partitions).unwrap_or(i32::MAX)))
        };
        names.iter().filter_map(count).collect()
    }

    /// Whether metadata has come at least once.
    #[must_use]
    pub fn has_learned(&self) -> bool {
        self.metadata.round > 0
    }

    /// The cluster's own id.
    #[must_use]
    pub fn cluster_id(&self) -> Option<&Arc<str>> {
        self.cluster_id.as_ref()
    }

    /// The broker that is the controller, where one is.
    #[must_use]
    pub fn controller(&self) -> Option<NodeId> {
        let node = NodeId(self.controller);
        Some(node).filter(|n| n.0 >= 0 && self.peers.knows(*n))
    }

    fn ask_at_once(&mut self, now: Now) {
        if self.metadata.in_flight.is_some() {
            self.metadata.wants_more = true;
        } else {
            self.metadata.due = now;
        }
    }

    /// Sends whatever is due.
    fn drive(&mut self, now: Now) {
        if self.resting {
            return;
        }
        if self.metadata.in_flight.is_none() && self.metadata.due <= now {
            self.send_metadata(now);
        }
        if self
            .coordinator
            .as_ref()
            .and_then(Coordinator::due)
            .is_some_and(|at| at <= now)
        {
            self.send_lookup(now);
        }
    }

    fn send_metadata(&mut self, now: Now) {
        match self.peers.pick(now, &self.metadata.tried) {
            Pick::Peer(to) => {
                let side = self.side.keys().filter(|name| !self.wanted.contains(*name));
                let names = || self.wanted.iter().chain(side).cloned().collect();
                let request = Request::Metadata(MetadataRequest {
                    topics: if self.all { None } else { Some(names()) },
                });
                let token = self.send(to, request);
                self.metadata.in_flight = Some((token, to));
                self.metadata.wants_more = false;
                self.metadata.again = false;
                self.metadata.waiting = false;
            }
            Pick::NotBefore(at) => {
                self.metadata.due = at;
                self.metadata.waiting = true;
            }
            Pick::RoundOver => {
                self.metadata.tried.clear();
                self.metadata.waiting = false;
                self.metadata.due = now + self.metadata.rounds.next(&mut self.rng);
            }
        }
    }

    fn send_lookup(&mut self, now: Now) {
        let Some(c) = &mut self.coordinator else {
            return;
        };
        match self.peers.pick(now, &c.tried) {
            Pick::Peer(to) => {
                let request = Request::FindCoordinator(FindCoordinatorRequest {
                    group: c.group.clone(),
                });
                let token = self.send(to, request);
                if let Some(c) = &mut self.coordinator {
                    c.state = State::Asked { token, peer: to };
                    c.waiting = false;
                }
            }
            Pick::NotBefore(due) => {
                c.state = State::Unknown { due };
                c.waiting = true;
            }
            Pick::RoundOver => {
                c.waiting = false;
                c.again(now, &mut self.rng);
            }
        }
    }

    fn send(&mut self, to: Peer, request: Request) -> Token {
        let token = Token(self.token_next);
        self.token_next += 1;
        self.actions.push_back(ClusterAction::Send {
            token,
            to,
            request,
            timeout: self.cfg.request_timeout,
        });
        token
    }

    /// Whether metadata lacks an expected partition; says so when that has lasted.
    fn lacks_expected(&mut self, now: Now) -> bool {
        let mut lacks = false;
        for (tp, missing) in &mut self.expected {
            let topic = self.view.topic(&tp.topic);
            if topic.is_some_and(|t| t.partitions.contains_key(&tp.partition)) {
                *missing = Missing::default();
                continue;
            }
            lacks = true;
            let lasted = now.since(*missing.since.get_or_insert(now));
            if lasted >= (missing.said * 10).max(MISSING_FOR) {
                missing.said = lasted;
                let partition = tp.clone();
                let notice = ClusterNotice::PartitionMissing { partition, lasted };
                self.actions.push_back(ClusterAction::Notice(notice));
            }
        }
        lacks
    }

    fn resolve(&mut self) -> bool {
        let peers = &self.peers;
        self.view.resolve(|node| peers.knows(node))
    }

    fn relocated(&mut self, moved: Vec<NodeId>) {
        self.actions
            .extend(moved.into_iter().map(ClusterAction::Relocated));
    }

    fn notice(&mut self, notice: ClusterNotice) {
        self.actions.push_back(ClusterAction::Notice(notice));
    }

    fn fatal(&mut self, error: Error) {
        self.resting = true;
        self.actions.push_back(ClusterAction::Fatal(error));
    }
}

/// Metadata that nobody asked for early in this long: the next early request goes out at once.
const CALM: Duration = Duration::from_secs(10);

/// The first pause of a bootstrap that a broker demanded (code 129).
const REBOOTSTRAP_PAUSE: Duration = Duration::from_millis(100);

/// An expected partition that metadata lacks for this long is worth a word.
const MISSING_FOR: Duration = Duration::from_secs(5);

const SALT_PEERS: u64 = 1;
const SALT_PACE: u64 = 2;
