//! Whole groups in virtual time: members against the broker's coordinator, over links that are
//! slow and get cut, with drains that take their time, members that come, leave, die and freeze.
//!
//! Asserted at every step: no partition is held by two members whose own clocks say that their
//! session lasts (DESIGN, promise 2). Asserted at the end, when peace returns: every partition is
//! held by exactly one member, and everybody is calm.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use laneway::broker::{BrokerAction, Cluster, ClusterConfig, ConnId};
use laneway::group::{
    AssignorKind, GroupAction, GroupConfig, GroupLink, GroupProtocol, Member, Phase,
};
use laneway::ids::{Token, TopicId, TopicPartition};
use laneway::time::Now;
use laneway::wire::{Api, Request, Response, split_header};
use laneway::{Error, ErrorKind};

/// One member, its links, and what its engine would hold.
struct Peer {
    member: Member,
    name: String,
    links: BTreeMap<&'static str, Link>,
    /// Which node it takes for the coordinator.
    node: i32,
    /// Requests out: where to find each, and until when.
    out: BTreeMap<(ConnId, i32), (Token, Api, i16, Now)>,
    held: BTreeSet<TopicPartition>,
    /// When each drain will be over, and by when it must be.
    drains: Vec<(Now, Now, Vec<TopicPartition>)>,
    frozen_until: Now,
    cut_until: Now,
    correlation: i32,
    /// Actions taken for it, as a bound on noise.
    sent: u64,
}

#[derive(Clone, Copy)]
struct Link {
    conn: ConnId,
    /// When the last byte sent on it arrives, there and here: order is kept.
    there: Now,
    here: Now,
}

enum Event {
    /// A frame reaches the cluster.
    There(ConnId, Bytes),
    /// A frame reaches the peer.
    Here(ConnId, Bytes),
    /// A request fails.
    Fails(usize, Token),
    /// A peer hears of the cluster's partitions.
    View(usize, BTreeMap<Arc<str>, i32>),
    /// A peer learns who coordinates.
    Coordinator(usize, i32),
}

struct World {
    seed: u64,
    random: u64,
    now: Now,
    cluster: Cluster,
    peers: BTreeMap<usize, Peer>,
    events: BTreeMap<(Now, u64), Event>,
    counts: BTreeMap<Arc<str>, i32>,
    ids: BTreeMap<TopicId, Arc<str>>,
    serial: u64,
    next_peer: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let cfg = ClusterConfig {
            nodes: 3,
            seed,
            ..ClusterConfig::default()
        };
        let mut world = World {
            seed,
            random: seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1,
            now: Now(1_000_000_000),
            cluster: Cluster::new(cfg),
            peers: BTreeMap::new(),
            events: BTreeMap::new(),
            counts: BTreeMap::new(),
            ids: BTreeMap::new(),
            serial: 0,
            next_peer: 0,
        };
        for (topic, count) in [("t0", 6), ("t1", 3), ("t2", 4)] {
            world.cluster.create_topic(topic, count).unwrap();
            world.counts.insert(Arc::from(topic), count);
            let id = TopicId(world.cluster.topic_id(topic).unwrap());
            world.ids.insert(id, Arc::from(topic));
        }
        world
    }

    fn below(&mut self, n: u64) -> u64 {
        // xorshift64*
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }

    fn ms(&mut self, below: u64) -> Duration {
        Duration::from_millis(self.below(below))
    }

    fn at(&mut self, at: Now, event: Event) {
        self.serial += 1;
        self.events.insert((at, self.serial), event);
    }

    fn add(&mut self, assignors: &[AssignorKind], topics: &[&str]) -> usize {
        let id = self.next_peer;
        self.next_peer += 1;
        let mut cfg = GroupConfig::new("g");
        cfg.rebalance_timeout = Duration::from_secs(60);
        cfg.drain_timeout = Duration::from_secs(30);
        match assignors {
            CONSUMER => cfg.protocol = GroupProtocol::Consumer,
            _ => cfg.assignors = assignors.to_vec(),
        }
        cfg.seed = self.seed ^ id as u64;
        cfg.check().unwrap();
        let mut member = Member::new(cfg, self.now);
        let counts = self.counts.clone();
        member.set_view(self.now, || counts, |_| None);
        member.set_subscription(self.now, topics.iter().map(|t| Arc::from(*t)).collect());
        let peer = Peer {
            member,
            name: format!("peer{id}"),
            links: BTreeMap::new(),
            node: 1,
            out: BTreeMap::new(),
            held: BTreeSet::new(),
            drains: Vec::new(),
            frozen_until: Now(0),
            cut_until: Now(0),
            correlation: 0,
            sent: 0,
        };
        self.peers.insert(id, peer);
        self.actions_of(id);
        id
    }

    /// The process is gone, as by `kill -9`.
    fn kill(&mut self, id: usize) {
        let peer = self.peers.remove(&id).unwrap();
        for link in peer.links.values() {
            self.cluster.disconnect(self.now, link.conn);
        }
    }

    fn leave(&mut self, id: usize) {
        let now = self.now;
        self.peers.get_mut(&id).unwrap().member.leave(now);
        self.actions_of(id);
    }

    /// All links die, and no new one comes up for a while.
    fn cut(&mut self, id: usize, pause: Duration) {
        let now = self.now;
        let peer = self.peers.get_mut(&id).unwrap();
        peer.cut_until = now + pause;
        let tokens: Vec<_> = std::mem::take(&mut peer.out)
            .into_values()
            .map(|o| o.0)
            .collect();
        let links = std::mem::take(&mut peer.links);
        for link in links.values() {
            self.cluster.disconnect(now, link.conn);
        }
        for token in tokens {
            let delay = self.ms(50);
            self.at(now + delay, Event::Fails(id, token));
        }
    }

    fn send(&mut self, id: usize, token: Token, link: GroupLink, request: Request, until: Now) {
        let now = self.now;
        let (api, version) = (request.api(), request.versions().max);
        let delay = Duration::from_millis(1) + self.ms(20);
        let peer = self.peers.get_mut(&id).unwrap();
        peer.sent += 1;
        peer.correlation += 1;
        let correlation = peer.correlation;
        let frame = request
            .encode(version, correlation, &peer.name)
            .unwrap()
            .slice(4..);
        let key = match link {
            GroupLink::Join => "join",
            GroupLink::Group => "group",
        };
        let conn = match peer.links.get(key) {
            Some(link) => Some(link.conn),
            None if now < peer.cut_until => None,
            None => self.cluster.connect(now, peer.node),
        };
        let Some(conn) = conn else {
            return self.at(now + delay, Event::Fails(id, token));
        };
        let peer = self.peers.get_mut(&id).unwrap();
        let fresh = Link {
            conn,
            there: now,
            here: now,
        };
        let link = peer.links.entry(key).or_insert(fresh);
        let there = (link.there + Duration::from_nanos(1)).max(now + delay);
        link.there = there;
        peer.out
            .insert((conn, correlation), (token, api, version, until));
        self.at(there, Event::There(conn, frame));
    }

    /// Takes what a peer's membership asks for, as its engine would.
    fn actions_of(&mut self, id: usize) {
        loop {
            let now = self.now;
            let Some(peer) = self.peers.get_mut(&id) else {
                return;
            };
            let Some(action) = peer.member.poll_action() else {
                break;
            };
            if std::env::var_os("LANEWAY_TRACE").is_some() {
                println!(
                    "{:>9.3} {} {:?} {action:?}",
                    now.0 as f64 / 1e9,
                    peer.name,
                    peer.member.state()
                );
            }
            match action {
                GroupAction::Send {
                    token,
                    link,
                    request,
                    timeout,
                } => {
                    self.send(id, token, link, request, now + timeout);
                }
                GroupAction::CoordinatorMoved => {
                    let node = self.cluster.coordinator("g").unwrap_or(1);
                    let delay = Duration::from_millis(5) + self.ms(40);
                    self.at(now + delay, Event::Coordinator(id, node));
                }
                GroupAction::Granted { partitions } => {
                    for tp in partitions {
                        assert!(peer.held.insert(tp.clone()), "{tp} granted twice");
                    }
                }
                GroupAction::Revoke {
                    partitions,
                    deadline,
                } => {
                    assert!((now..=now + Duration::from_secs(30)).contains(&deadline));
                    // Most drains are short; some take longer than they may.
                    let time = match self.below(10) {
                        0 => Duration::from_secs(25) + self.ms(60_000),
                        1..4 => self.ms(20_000),
                        _ => self.ms(200),
                    };
                    let peer = self.peers.get_mut(&id).unwrap();
                    peer.drains.push((now + time, deadline, partitions));
                }
                GroupAction::Lost { partitions } => {
                    for tp in partitions {
                        assert!(peer.held.remove(&tp), "{tp} lost but not held");
                        for (_, _, drain) in &mut peer.drains {
                            drain.retain(|other| *other != tp);
                        }
                    }
                }
                GroupAction::Fatal(e) => panic!("{}: {e}", peer.name),
                GroupAction::Left => {
                    assert!(peer.held.is_empty());
                    self.kill(id);
                }
                // Metadata comes when it comes.
                GroupAction::Refresh => {
                    let counts = self.counts.clone();
                    let delay = Duration::from_millis(5) + self.ms(1_000);
                    self.at(now + delay, Event::View(id, counts));
                }
                GroupAction::Watch { .. } | GroupAction::Joined { .. } | GroupAction::Notice(_) => {
                }
            }
        }
        self.check();
    }

    fn owner(&self, conn: ConnId) -> Option<usize> {
        let owns = |p: &Peer| p.links.values().any(|l| l.conn == conn);
        self.peers.iter().find(|(_, p)| owns(p)).map(|(id, _)| *id)
    }

    fn check(&self) {
        let mut owners: BTreeMap<&TopicPartition, &str> = BTreeMap::new();
        for peer in self.peers.values() {
            if peer
                .member
                .session_until()
                .is_none_or(|until| until <= self.now)
            {
                continue; // its clock says that nothing may start
            }
            // Past its deadline a drain runs nothing any more, nor will it after a thaw.
            let frozen = self.now < peer.frozen_until;
            let over = peer.drains.iter().filter(|d| frozen && d.1 <= self.now);
            let over: BTreeSet<_> = over.flat_map(|d| &d.2).collect();
            for tp in peer.held.iter().filter(|tp| !over.contains(tp)) {
                if let Some(other) = owners.insert(tp, &peer.name) {
                    panic!(
                        "seed {}: {other} and {} hold {tp} at {:?}",
                        self.seed, peer.name, self.now
                    );
                }
            }
        }
    }

    fn cluster_actions(&mut self) {
        while let Some(action) = self.cluster.poll_action() {
            let now = self.now;
            let delay = Duration::from_millis(1) + self.ms(20);
            match action {
                BrokerAction::Send { conn, frame } => {
                    let mut links = self.peers.values_mut().flat_map(|p| p.links.values_mut());
                    if let Some(link) = links.find(|l| l.conn == conn) {
                        let here = (link.here + Duration::from_nanos(1)).max(now + delay);
                        link.here = here;
                        self.at(here, Event::Here(conn, frame.slice(4..)));
                    }
                }
                BrokerAction::Close { conn } => panic!("the broker closed {conn:?}"),
            }
        }
    }

    fn deliver(&mut self, event: Event) {
        let now = self.now;
        // A frozen process sees nothing before it thaws.
        let reader = match &event {
            Event::There(..) => None,
            Event::Here(conn, _) => self.owner(*conn),
            Event::Fails(id, _) | Event::View(id, _) | Event::Coordinator(id, _) => Some(*id),
        };
        let frozen = reader
            .and_then(|id| self.peers.get(&id))
            .map(|p| p.frozen_until);
        if let Some(until) = frozen.filter(|until| now < *until) {
            return self.at(until, event);
        }
        let broken = || Error::new(ErrorKind::Transport, "no link").retriable();
        match event {
            Event::There(conn, frame) => {
                if self.owner(conn).is_some() {
                    self.cluster.handle_frame(now, conn, frame);
                    self.cluster_actions();
                }
            }
            Event::Here(conn, frame) => {
                let Some(id) = self.owner(conn) else {
                    return;
                };
                let Some(peer) = self.peers.get_mut(&id) else {
                    return;
                };
                let correlation = i32::from_be_bytes(frame[..4].try_into().unwrap());
                let Some((token, api, version, _)) = peer.out.remove(&(conn, correlation)) else {
                    return; // timed out
                };
                let (_, body) = split_header(api, version, &frame).unwrap();
                let answer = Response::decode(api, version, body).unwrap();
                peer.member.handle_response(now, token, Ok(answer));
                self.actions_of(id);
            }
            Event::Fails(id, token) => {
                let Some(peer) = self.peers.get_mut(&id) else {
                    return;
                };
                peer.member.handle_response(now, token, Err(broken()));
                self.actions_of(id);
            }
            Event::View(id, counts) => {
                let Some(peer) = self.peers.get_mut(&id) else {
                    return;
                };
                let ids = &self.ids;
                let name_of = |id: TopicId| ids.get(&id).cloned();
                peer.member.set_view(now, || counts, name_of);
                self.actions_of(id);
            }
            Event::Coordinator(id, node) => {
                let Some(peer) = self.peers.get_mut(&id) else {
                    return;
                };
                if peer.node != node {
                    peer.node = node;
                    self.cut(id, Duration::ZERO);
                }
            }
        }
    }

    /// What a peer does by itself: time-outs, drains that end.
    fn tick(&mut self, id: usize) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        if now < peer.frozen_until {
            return;
        }
        if peer.member.next_deadline().is_some_and(|at| at <= now) {
            peer.member.handle_timeout(now);
            self.actions_of(id);
        }
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let (over, drains) = peer.drains.drain(..).partition(|(at, ..)| *at <= now);
        peer.drains = drains;
        for (_, _, partitions) in over {
            let Some(peer) = self.peers.get_mut(&id) else {
                return;
            };
            for tp in &partitions {
                assert!(peer.held.remove(tp), "{tp} released but not held");
            }
            peer.member.released(now, &partitions);
            self.actions_of(id);
        }
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let late: Vec<_> = peer
            .out
            .iter()
            .filter(|(_, o)| o.3 <= now)
            .map(|(k, o)| (*k, o.0))
            .collect();
        for (key, token) in late {
            let Some(peer) = self.peers.get_mut(&id) else {
                return;
            };
            peer.out.remove(&key);
            peer.member
                .handle_response(now, token, Err(broken_by_time()));
            self.actions_of(id);
        }
    }

    fn next(&self) -> Option<Now> {
        let events = self.events.keys().next().map(|k| k.0);
        let peers = self.peers.values().filter_map(|p| {
            let drains = p.drains.iter().map(|d| d.0);
            let late = p.out.values().map(|o| o.3);
            let first = drains.chain(late).chain(p.member.next_deadline()).min();
            first.map(|at| at.max(p.frozen_until))
        });
        [events, peers.min(), self.cluster.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        let mut still = 0;
        while let Some(at) = self.next().filter(|at| *at <= end) {
            still = if at > self.now { 0 } else { still + 1 };
            assert!(still < 10_000, "seed {}: spins", self.seed);
            self.now = self.now.max(at);
            while let Some(entry) = self.events.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let event = entry.remove();
                self.deliver(event);
            }
            if self
                .cluster
                .next_deadline()
                .is_some_and(|at| at <= self.now)
            {
                self.cluster.handle_timeout(self.now);
                self.cluster_actions();
            }
            for id in self.peers.keys().copied().collect::<Vec<_>>() {
                self.tick(id);
            }
            self.check();
        }
        self.now = end;
    }

    fn grow(&mut self, topic: &str, by: i32) {
        let count = self.counts[topic] + by;
        self.cluster.add_partitions(topic, count).unwrap();
        self.counts.insert(Arc::from(topic), count);
        for id in self.peers.keys().copied().collect::<Vec<_>>() {
            let at = self.now + Duration::from_millis(10) + self.ms(3_000);
            let counts = self.counts.clone();
            self.at(at, Event::View(id, counts));
        }
    }

    /// Peace: everybody is calm and each partition that somebody wants has one holder.
    fn settled(&mut self, wants: &BTreeMap<usize, Vec<&str>>) {
        for id in self.peers.keys().copied().collect::<Vec<_>>() {
            let counts = self.counts.clone();
            let now = self.now;
            self.at(now, Event::View(id, counts));
        }
        self.run_for(Duration::from_secs(400));
        let sent: u64 = self.peers.values().map(|p| p.sent).sum();
        self.run_for(Duration::from_secs(60));
        let beats: u64 = self.peers.values().map(|p| p.sent).sum::<u64>() - sent;
        assert!(
            beats <= 21 * self.peers.len() as u64,
            "seed {}: not calm",
            self.seed
        );
        let mut holders: BTreeMap<&TopicPartition, Vec<usize>> = BTreeMap::new();
        for (id, peer) in &self.peers {
            assert_eq!(peer.member.state(), Phase::Stable, "seed {}", self.seed);
            assert!(peer.drains.is_empty());
            for tp in &peer.held {
                assert!(wants[id].contains(&&*tp.topic), "seed {}", self.seed);
                holders.entry(tp).or_default().push(*id);
            }
        }
        for (topic, count) in &self.counts {
            let wanted = self.peers.keys().any(|id| wants[id].contains(&&**topic));
            for p in 0..*count {
                let tp = TopicPartition::new(topic.clone(), p);
                let holders = holders.get(&tp).map_or(0, Vec::len);
                assert_eq!(holders, usize::from(wanted), "seed {}: {tp}", self.seed);
            }
        }
    }
}

fn broken_by_time() -> Error {
    Error::new(ErrorKind::Transport, "no answer in time").retriable()
}

const EAGER: &[AssignorKind] = &[AssignorKind::Range, AssignorKind::CooperativeSticky];
/// The new protocol: the coordinator assigns.
const CONSUMER: &[AssignorKind] = &[];
const COOPERATIVE: &[AssignorKind] = &[AssignorKind::CooperativeSticky];
const TOPICS: [&[&str]; 4] = [&["t0"], &["t0", "t1"], &["t0", "t1", "t2"], &["t2"]];

/// What may happen to a group.
fn chaos(seed: u64, mixes: &[&[AssignorKind]], freezes: bool) {
    let mut world = World::new(seed);
    let mut wants = BTreeMap::new();
    let add = |world: &mut World, wants: &mut BTreeMap<usize, Vec<&'static str>>| {
        let assignors = mixes[world.below(mixes.len() as u64) as usize];
        let topics = TOPICS[world.below(4) as usize];
        let id = world.add(assignors, topics);
        wants.insert(id, topics.to_vec());
    };
    for _ in 0..3 {
        add(&mut world, &mut wants);
    }
    for _ in 0..25 {
        let pause = match world.below(3) {
            0 => world.ms(300),
            1 => world.ms(5_000),
            _ => world.ms(60_000),
        };
        world.run_for(pause);
        let awake = world
            .peers
            .iter()
            .filter(|(_, p)| p.frozen_until <= world.now);
        let ids: Vec<usize> = awake.map(|(id, _)| *id).collect();
        if ids.is_empty() {
            add(&mut world, &mut wants);
            continue;
        }
        let id = ids[world.below(ids.len() as u64) as usize];
        match world.below(if freezes { 10 } else { 9 }) {
            0 | 1 if ids.len() < 6 => add(&mut world, &mut wants),
            2 => world.leave(id),
            3 => world.kill(id),
            4 | 5 => {
                let pause = world.ms(2_000);
                world.cut(id, pause);
            }
            6 => {
                let pause = world.ms(90_000);
                world.cut(id, pause);
            }
            7 => {
                let topics = TOPICS[world.below(4) as usize];
                let now = world.now;
                let peer = world.peers.get_mut(&id).unwrap();
                let list = topics.iter().map(|t| Arc::from(*t)).collect();
                if !matches!(peer.member.state(), Phase::Leaving | Phase::Left) {
                    peer.member.set_subscription(now, list);
                    wants.insert(id, topics.to_vec());
                }
                world.actions_of(id);
            }
            8 => match world.below(2) {
                0 => world.grow("t1", 1),
                _ => {
                    let node = 1 + i32::try_from(world.below(3)).unwrap();
                    let now = world.now;
                    world.cluster.move_coordinator(now, "g", node);
                    world.cluster_actions();
                }
            },
            9 => {
                let until = world.now + Duration::from_secs(20) + world.ms(80_000);
                world.peers.get_mut(&id).unwrap().frozen_until = until;
            }
            _ => {}
        }
    }
    world.run_for(Duration::from_secs(120));
    if world.peers.is_empty() {
        add(&mut world, &mut wants);
    }
    world.settled(&wants);
}

/// G01, G08, G16, G21, G22, G23, G33, G47, E29, I7, I8: eager groups.
#[test]
fn g01_eager_groups_in_chaos() {
    for seed in 0..seeds() {
        chaos(seed, &[EAGER], seed % 2 == 1);
    }
}

/// G03, G08, G10, G22, G23, G47, E29, I7, I8: cooperative groups.
#[test]
fn g08_cooperative_groups_in_chaos() {
    for seed in 0..seeds() {
        chaos(1_000_000 + seed, &[COOPERATIVE], seed % 2 == 1);
    }
}

/// G01, G16, G22, G23, G47, E29, I7, I8: groups of the new protocol (KIP-848).
#[test]
fn g01_consumer_groups_in_chaos() {
    for seed in 0..seeds() {
        chaos(4_000_000 + seed, &[CONSUMER], seed % 2 == 1);
    }
}

/// G12: eager and cooperative members in one group, as while it moves from one to the other.
#[test]
fn g12_mixed_groups_in_chaos() {
    for seed in 0..seeds() {
        chaos(2_000_000 + seed, &[EAGER, COOPERATIVE], seed % 2 == 1);
    }
}

/// G12: one by one from `range` to both names, then to `cooperative-sticky` alone.
#[test]
fn g12_rolling_eager_to_cooperative() {
    for seed in 0..seeds() {
        let mut world = World::new(3_000_000 + seed);
        let mut wants = BTreeMap::new();
        let topics = ["t0", "t1", "t2"];
        let mut old: Vec<usize> = (0..3)
            .map(|_| world.add(&[AssignorKind::Range], &topics))
            .collect();
        wants.extend(old.iter().map(|id| (*id, topics.to_vec())));
        world.settled(&wants);
        for assignors in [EAGER, COOPERATIVE] {
            let mut new = Vec::new();
            for id in old {
                match world.below(2) {
                    0 => world.kill(id),
                    _ => world.leave(id),
                }
                let pause = world.ms(10_000);
                world.run_for(pause);
                let id = world.add(assignors, &topics);
                wants.insert(id, topics.to_vec());
                let pause = world.ms(30_000);
                world.run_for(pause);
                new.push(id);
            }
            world.settled(&wants);
            old = new;
        }
    }
}

/// One run again, named by LANEWAY_SEED; LANEWAY_TRACE prints what its members ask for.
#[test]
#[ignore = "for looking at one run: LANEWAY_SEED names it"]
fn one_seed_again() {
    let seed = std::env::var("LANEWAY_SEED").expect("LANEWAY_SEED is a number");
    let seed: u64 = seed.parse().expect("LANEWAY_SEED is a number");
    let mixes: &[&[AssignorKind]] = match seed / 1_000_000 {
        0 => &[EAGER],
        1 => &[COOPERATIVE],
        4 => &[CONSUMER],
        _ => &[EAGER, COOPERATIVE],
    };
    chaos(seed, mixes, seed % 2 == 1);
}

/// How many runs of each kind; LANEWAY_SEEDS asks for more.
fn seeds() -> u64 {
    let asked = std::env::var("LANEWAY_SEEDS").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(25)
}
