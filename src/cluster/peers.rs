//! Who can be asked: the brokers we know, the bootstrap addresses, and when each may be tried.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::NodeId;
use crate::pace::{Backoff, Rng};
use crate::time::{Now, earliest};
use crate::wire::message::BrokerEndpoint;

/// Someone to connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// The address at this place in [`ClusterConfig::bootstrap`](super::ClusterConfig::bootstrap).
    Bootstrap(usize),
    /// A broker that the cluster told us of.
    Node(NodeId),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Bootstrap(at) => write!(f, "bootstrap address {}", at + 1),
            Peer::Node(node) => write!(f, "broker {}", node.0),
        }
    }
}

/// What [`Peers::pick`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pick {
    /// Ask this one.
    Peer(Peer),
    /// Everyone rests; the first may be tried then.
    NotBefore(Now),
    /// Whoever may be tried has been tried in this round.
    RoundOver,
}

/// Brokers, bootstrap addresses and their back-off.
#[derive(Debug)]
pub(super) struct Peers {
    nodes: BTreeMap<NodeId, Node>,
    bootstrap: Vec<(Arc<str>, u16, Reach)>,
    /// Indexes of `bootstrap`, shuffled, so that many clients do not all ask the first.
    order: Vec<usize>,
    /// The bootstrap address that answered last.
    answered: Option<usize>,
    /// Only bootstrap addresses are asked: at the start, and when the brokers we know are gone.
    bootstrapping: bool,
    /// Nodes above this one are asked first; moved when an answer disappoints.
    cursor: NodeId,
    backoff: (Duration, Duration),
    rng: Rng,
}

#[derive(Debug)]
struct Node {
    endpoint: BrokerEndpoint,
    reach: Reach,
}

/// How well a peer is reached.
///
/// ```text
///            link_up             proven
///   [down] ----------> [up] ----------------> [up, back-off reset]
///     ^ not before t    |  link_down              |
///     +-----------------+-------------------------+
/// ```
#[derive(Debug)]
struct Reach {
    up: bool,
    not_before: Now,
    backoff: Backoff,
}

impl Peers {
    pub(super) fn new(
        bootstrap: &[(Arc<str>, u16)],
        backoff: (Duration, Duration),
        mut rng: Rng,
    ) -> Self {
        let mut order: Vec<usize> = (0..bootstrap.len()).collect();
        rng.shuffle(&mut order);
        Peers {
            nodes: BTreeMap::new(),
            bootstrap: bootstrap
                .iter()
                .map(|(host, port)| (host.clone(), *port, Reach::new(backoff)))
                .collect(),
            order,
            answered: None,
            bootstrapping: true,
            cursor: NodeId(i32::MIN),
            backoff,
            rng,
        }
    }

    /// From now on only bootstrap addresses are asked, in a new order, until one answers.
    pub(super) fn rebootstrap(&mut self) {
        self.bootstrapping = true;
        self.rng.shuffle(&mut self.order);
    }

    pub(super) fn bootstrapping(&self) -> bool {
        self.bootstrapping
    }

    /// A broker answered with the cluster's brokers. Nodes in `keep` stay although the answer
    /// leaves them out. Gives the nodes whose address is another one now.
    pub(super) fn replace(
        &mut self,
        answer: &[BrokerEndpoint],
        keep: &BTreeSet<NodeId>,
    ) -> Vec<NodeId> {
        self.bootstrapping = false;
        let listed: BTreeSet<NodeId> = answer.iter().map(|b| b.node).collect();
        self.nodes
            .retain(|node, _| listed.contains(node) || keep.contains(node));
        self.merge(answer)
    }

    /// Some brokers, beside those that we know (KIP-951 and FindCoordinator name one each).
    pub(super) fn merge(&mut self, some: &[BrokerEndpoint]) -> Vec<NodeId> {
        let mut moved = Vec::new();
        for endpoint in some {
            let room = self.nodes.len() < NODES_MAX;
            if endpoint.node.0 < 0 || endpoint.host.is_empty() || endpoint.port == 0 {
                continue;
            }
            match self.nodes.get_mut(&endpoint.node) {
                Some(node) => {
                    let same =
                        node.endpoint.host == endpoint.host && node.endpoint.port == endpoint.port;
                    node.endpoint = endpoint.clone();
                    if !same {
                        node.reach = Reach::new(self.backoff);
                        moved.push(endpoint.node);
                    }
                }
                None if room => {
                    let node = Node {
                        endpoint: endpoint.clone(),
                        reach: Reach::new(self.backoff),
                    };
                    self.nodes.insert(endpoint.node, node);
                }
                None => {}
            }
        }
        moved
    }

    pub(super) fn up(&mut self, peer: Peer) {
        if let Some(reach) = self.reach_mut(peer) {
            reach.up = true;
        }
    }

    /// A link is gone or never came to be. Several links that one fault takes down count once.
    pub(super) fn down(&mut self, now: Now, peer: Peer) {
        let reach = match peer {
            Peer::Bootstrap(i) => self.bootstrap.get_mut(i).map(|(_, _, r)| r),
            Peer::Node(node) => self.nodes.get_mut(&node).map(|n| &mut n.reach),
        };
        let Some(reach) = reach else { return };
        reach.up = false;
        if now >= reach.not_before {
            reach.not_before = now + reach.backoff.next(&mut self.rng);
        }
    }

    /// A real answer came. Only this ends the back-off: a port that accepts and then drops
    /// proves nothing.
    pub(super) fn proven(&mut self, peer: Peer) {
        if let Peer::Bootstrap(i) = peer {
            self.answered = Some(i);
        }
        if let Some(reach) = self.reach_mut(peer) {
            reach.up = true;
            reach.backoff.reset();
            reach.not_before = Now(0);
        }
    }

    /// The next pick begins with someone else.
    pub(super) fn turn(&mut self, from: Peer) {
        if let Peer::Node(node) = from {
            self.cursor = node;
        }
    }

    pub(super) fn not_before(&self, peer: Peer) -> Option<Now> {
        self.reach(peer).map(|r| r.not_before)
    }

    pub(super) fn address(&self, peer: Peer) -> Option<(Arc<str>, u16)> {
        match peer {
            Peer::Bootstrap(i) => self.bootstrap.get(i).map(|(h, p, _)| (h.clone(), *p)),
            Peer::Node(node) => self
                .nodes
                .get(&node)
                .map(|n| (n.endpoint.host.clone(), n.endpoint.port)),
        }
    }

    pub(super) fn answered_bootstrap(&self) -> Option<(Arc<str>, u16)> {
        self.address(Peer::Bootstrap(self.answered?))
    }

    pub(super) fn failures(&self, peer: Peer) -> u32 {
        self.reach(peer).map_or(0, |r| r.backoff.attempts())
    }

    pub(super) fn knows(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    pub(super) fn endpoints(&self) -> impl Iterator<Item = &BrokerEndpoint> {
        self.nodes.values().map(|n| &n.endpoint)
    }

    /// Whom to ask something that any broker can answer: one with a link first, then the one
    /// that failed least; bootstrap addresses only while nothing better is in sight.
    pub(super) fn pick(&self, now: Now, tried: &BTreeSet<Peer>) -> Pick {
        let mut best: Option<(_, Peer)> = None;
        let mut wake: Option<Now> = None;
        let mut round_over = false;
        for (rank, peer, reach) in self.candidates() {
            if !reach.up && now < reach.not_before {
                wake = earliest(wake, Some(reach.not_before));
            } else if tried.contains(&peer) {
                round_over = true;
            } else {
                let key = (Reverse(reach.up), reach.backoff.attempts(), rank);
                if best.as_ref().is_none_or(|(k, _)| key < *k) {
                    best = Some((key, peer));
                }
            }
        }
        match best {
            Some((_, peer)) => Pick::Peer(peer),
            None if round_over => Pick::RoundOver,
            None => Pick::NotBefore(wake.unwrap_or(Now::NEVER)),
        }
    }

    /// Who may be asked at all, with a rank among equals.
    fn candidates(&self) -> impl Iterator<Item = ((bool, usize), Peer, &Reach)> {
        // KIP-899: once every known broker fails, the bootstrap addresses are worth a try again.
        let none_left = self.nodes.values().all(|n| n.reach.failing());
        let bootstrap = self.bootstrapping || none_left;
        let after = self
            .nodes
            .range(self.cursor..)
            .filter(|(id, _)| **id != self.cursor);
        let before = self.nodes.range(..=self.cursor);
        let nodes = after
            .chain(before)
            .enumerate()
            .filter(|_| !self.bootstrapping)
            .map(|(rank, (id, n))| ((false, rank), Peer::Node(*id), &n.reach));
        let addresses = self
            .order
            .iter()
            .enumerate()
            .map(|(rank, i)| ((true, rank), Peer::Bootstrap(*i), &self.bootstrap[*i].2))
            .filter(move |(_, _, reach)| bootstrap || reach.up);
        nodes.chain(addresses)
    }

    fn reach(&self, peer: Peer) -> Option<&Reach> {
        match peer {
            Peer::Bootstrap(i) => self.bootstrap.get(i).map(|(_, _, r)| r),
            Peer::Node(node) => self.nodes.get(&node).map(|n| &n.reach),
        }
    }

    fn reach_mut(&mut self, peer: Peer) -> Option<&mut Reach> {
        match peer {
            Peer::Bootstrap(i) => self.bootstrap.get_mut(i).map(|(_, _, r)| r),
            Peer::Node(node) => self.nodes.get_mut(&node).map(|n| &mut n.reach),
        }
    }
}

impl Reach {
    fn new((base, max): (Duration, Duration)) -> Self {
        Reach {
            up: false,
            not_before: Now(0),
            backoff: Backoff::new(base, max),
        }
    }

    fn failing(&self) -> bool {
        !self.up && self.backoff.attempts() > 0
    }
}

/// Brokers that we remember; Kafka's largest clusters have a few hundred.
const NODES_MAX: usize = 10_000;
