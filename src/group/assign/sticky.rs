//! `cooperative-sticky`: balanced, and each member keeps what it has where it can.
//!
//! As in Kafka there are two ways. Where all members want the same topics, every share has one
//! of two sizes that are known beforehand, and a single pass fills them. Otherwise partitions go
//! to the least laden member that wants them, and then move one by one until no single move
//! would make two shares more alike.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::{AssignMember, Shares, Topics, empty_shares};
use crate::ids::TopicPartition;

pub(super) fn assign_cooperative(topics: Topics, members: &[&AssignMember]) -> Shares {
    let problem = Problem::new(&topics, members);
    let alike = members
        .windows(2)
        .all(|pair| pair[0].topics == pair[1].topics);
    let holders = match alike {
        true => problem.fill_quotas(),
        false => Balance::new(&problem).run(),
    };
    let mut shares = empty_shares(members);
    for (p, holder) in holders.into_iter().enumerate() {
        let Some(m) = holder else { continue };
        // Who has it must give it up before another may take it (KIP-429).
        let free = match problem.claims[p] {
            Claim::None => true,
            Claim::One(owner) => owner == m,
            Claim::Many => false,
        };
        if free && let Some(share) = shares.get_mut(&members[m].member_id) {
            share.push(problem.partitions[p].clone());
        }
    }
    shares
}

/// Who says that a partition is its own, under the highest generation of all who say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    None,
    One(usize),
    /// Two in one generation: somebody is wrong, so nobody keeps it (KAFKA-12984).
    Many,
}

/// Members and partitions by number: members in order of id, partitions by topic and number.
struct Problem<'a> {
    members: &'a [&'a AssignMember],
    topics: Vec<&'a Arc<str>>,
    partitions: Vec<TopicPartition>,
    /// Of each partition.
    topic_of: Vec<usize>,
    claims: Vec<Claim>,
    /// Of each partition: the claim with the highest generation below the highest of all members.
    before: Vec<Option<usize>>,
    /// Of each member and topic.
    wants: Vec<Vec<bool>>,
}

impl<'a> Problem<'a> {
    fn new(shared: &'a Topics, members: &'a [&'a AssignMember]) -> Self {
        let topics: Vec<&Arc<str>> = shared.keys().collect();
        let mut partitions = Vec::new();
        let mut topic_of = Vec::new();
        let mut first = BTreeMap::new();
        for (t, (topic, all)) in shared.iter().enumerate() {
            first.insert(topic, (partitions.len(), all));
            topic_of.resize(partitions.len() + all.len(), t);
            partitions.extend(all.iter().cloned());
        }
        let number = |tp: &TopicPartition| {
            let (first, all) = first.get(&tp.topic)?;
            let at = all.binary_search_by_key(&tp.partition, |other| other.partition);
            Some(first + at.ok()?)
        };
        let wants = members
            .iter()
            .map(|m| topics.iter().map(|t| m.topics.contains(*t)).collect())
            .collect();
        let (claims, before) = judge(members, partitions.len(), number);
        Problem {
            members,
            topics,
            partitions,
            topic_of,
            claims,
            before,
            wants,
        }
    }

    fn wants_partition(&self, m: usize, p: usize) -> bool {
        self.wants[m][self.topic_of[p]]
    }

    /// The way for equal wishes: each share ends with `low` or `low + 1` partitions, and `extra`
    /// of them with the latter.
    fn fill_quotas(&self) -> Vec<Option<usize>> {
        let (low, extra) = match self.members.len() {
            0 => return Vec::new(),
            n => (self.partitions.len() / n, self.partitions.len() % n),
        };
        let high = low + usize::from(extra > 0);
        let mut holders = vec![None; self.partitions.len()];
        let mut sizes = vec![0; self.members.len()];
        let mut over = 0;
        let (mut under, mut at_low) = (Vec::new(), VecDeque::new());
        for (m, owned) in self.owned_by_number().into_iter().enumerate() {
            let keep = if owned.len() < low {
                under.push(m);
                owned.len()
            } else if owned.len() >= high && over < extra {
                over += 1;
                if over == extra {
                    at_low.clear();
                }
                high
            } else {
                if over < extra {
                    at_low.push_back(m);
                }
                low
            };
            sizes[m] = keep;
            for p in owned.into_iter().take(keep) {
                holders[p] = Some(m);
            }
        }
        let mut under: VecDeque<usize> = under.into();
        for holder in holders.iter_mut().filter(|h| h.is_none()) {
            // In turn up to `low`; then one more each.
            let Some(m) = under.pop_front().or_else(|| at_low.pop_front()) else {
                debug_assert!(false, "quotas add up to all partitions");
                break;
            };
            *holder = Some(m);
            sizes[m] += 1;
            if sizes[m] < low {
                under.push_back(m);
            } else if sizes[m] == low {
                at_low.push_back(m);
            }
        }
        holders
    }

    /// What each member keeps first: by partition number, then topic, as Kafka does.
    fn owned_by_number(&self) -> Vec<Vec<usize>> {
        let mut owned = vec![Vec::new(); self.members.len()];
        for (p, claim) in self.claims.iter().enumerate() {
            if let Claim::One(m) = claim {
                owned[*m].push(p);
            }
        }
        for list in &mut owned {
            list.sort_by_key(|p| (self.partitions[*p].partition, self.topic_of[*p]));
        }
        owned
    }
}

/// Judges who owns what, and who did before.
fn judge(
    members: &[&AssignMember],
    partitions: usize,
    number: impl Fn(&TopicPartition) -> Option<usize>,
) -> (Vec<Claim>, Vec<Option<usize>>) {
    let generation = |m: &AssignMember| m.generation.unwrap_or(-1);
    let newest = members.iter().map(|m| generation(m)).max().unwrap_or(-1);
    let mut claims = vec![(Claim::None, i32::MIN); partitions];
    let mut before: Vec<Option<(usize, i32)>> = vec![None; partitions];
    for (m, member) in members.iter().enumerate() {
        let of = generation(member);
        let owned: BTreeSet<usize> = member.owned.iter().filter_map(&number).collect();
        for p in owned {
            let (claim, at) = &mut claims[p];
            if of > *at || *claim == Claim::None {
                (*claim, *at) = (Claim::One(m), of);
            } else if of == *at {
                *claim = Claim::Many;
            }
            if of < newest && before[p].is_none_or(|(_, at)| of > at) {
                before[p] = Some((m, of));
            }
        }
    }
    let claims = claims.into_iter().map(|(claim, _)| claim).collect();
    let before = before.into_iter().map(|b| b.map(|(m, _)| m)).collect();
    (claims, before)
}

/// The way for unequal wishes.
struct Balance<'a> {
    problem: &'a Problem<'a>,
    holders: Vec<Option<usize>>,
    sizes: Vec<usize>,
    /// Size and member, least laden first.
    order: BTreeSet<(usize, usize)>,
    /// How many want each topic.
    takers: Vec<usize>,
    moves: Moves,
}

impl<'a> Balance<'a> {
    fn new(problem: &'a Problem<'a>) -> Self {
        let takers = (0..problem.topics.len())
            .map(|t| problem.wants.iter().filter(|wants| wants[t]).count())
            .collect();
        Balance {
            problem,
            holders: vec![None; problem.partitions.len()],
            sizes: vec![0; problem.members.len()],
            order: (0..problem.members.len()).map(|m| (0, m)).collect(),
            takers,
            moves: Moves::default(),
        }
    }

    fn run(mut self) -> Vec<Option<usize>> {
        let mut unwanted = false;
        for p in 0..self.holders.len() {
            if let Claim::One(m) = self.problem.claims[p] {
                match self.problem.wants_partition(m, p) {
                    true => self.place(p, m),
                    false => unwanted = true,
                }
            }
        }
        // Topics that few want come first: they have the least choice.
        let mut queue: Vec<usize> = (0..self.holders.len()).collect();
        queue.sort_by_key(|p| (self.takers[self.problem.topic_of[*p]], *p));
        let mut fresh = Vec::new();
        for p in &queue {
            if self.holders[*p].is_none()
                && let Some(m) = self.least(*p)
            {
                self.place(*p, m);
                fresh.push(*p);
            }
        }
        let shared = |p: &usize| self.takers[self.problem.topic_of[*p]] >= 2;
        queue.retain(shared);
        fresh.retain(shared);
        // What is new moves first: it costs nobody anything.
        if !unwanted {
            self.even_out(&fresh);
        }
        self.even_out(&queue);
        self.holders
    }

    /// Moves partitions until no single move makes two shares more alike. Each move lowers the
    /// sum of the squared sizes, so this ends; `MOVES_PER_PARTITION` bounds it besides.
    fn even_out(&mut self, queue: &[usize]) {
        let mut left = queue.len().saturating_mul(MOVES_PER_PARTITION);
        loop {
            let mut moved = false;
            for p in queue {
                if left == 0 {
                    return;
                }
                if self.improve(*p) {
                    moved = true;
                    left -= 1;
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn improve(&mut self, p: usize) -> bool {
        let Some(from) = self.holders[p] else {
            return false;
        };
        let back = self.problem.before[p]
            .filter(|m| self.problem.wants_partition(*m, p))
            .filter(|m| self.sizes[from] > self.sizes[*m] + 1);
        let to = match back.or_else(|| self.least(p)) {
            Some(to) if self.sizes[from] > self.sizes[to] + 1 => to,
            _ => return false,
        };
        // Rather send back what came from there than swap two partitions of one topic.
        let topic = self.problem.topic_of[p];
        let instead = self
            .moves
            .instead_of(p, topic, from, to)
            .filter(|q| self.holders[*q].is_some_and(|h| self.sizes[h] > self.sizes[to] + 1));
        let p = instead.unwrap_or(p);
        if let Some(from) = self.holders[p] {
            self.moves.record(p, topic, from, to);
            self.resize(from, self.sizes[from] - 1);
        }
        self.place(p, to);
        true
    }

    /// The least laden member that wants `p`.
    fn least(&self, p: usize) -> Option<usize> {
        let mut order = self.order.iter().map(|(_, m)| *m);
        order.find(|m| self.problem.wants_partition(*m, p))
    }

    fn place(&mut self, p: usize, m: usize) {
        self.holders[p] = Some(m);
        self.resize(m, self.sizes[m] + 1);
    }

    fn resize(&mut self, m: usize, size: usize) {
        self.order.remove(&(self.sizes[m], m));
        self.sizes[m] = size;
        self.order.insert((size, m));
    }
}

/// Which partitions have moved, from whom to whom.
#[derive(Default)]
struct Moves {
    of: BTreeMap<usize, (usize, usize)>,
    /// Topic, from, to.
    by_topic: BTreeMap<(usize, usize, usize), BTreeSet<usize>>,
}

impl Moves {
    fn record(&mut self, p: usize, topic: usize, from: usize, to: usize) {
        let mut origin = from;
        if let Some((first, last)) = self.of.remove(&p) {
            if let Some(set) = self.by_topic.get_mut(&(topic, first, last)) {
                set.remove(&p);
            }
            origin = first;
        }
        if origin != to {
            self.of.insert(p, (origin, to));
            let key = (topic, origin, to);
            self.by_topic.entry(key).or_default().insert(p);
        }
    }

    /// A partition of the topic that went the other way before.
    fn instead_of(&self, p: usize, topic: usize, from: usize, to: usize) -> Option<usize> {
        let from = self.of.get(&p).map_or(from, |(first, _)| *first);
        self.by_topic.get(&(topic, to, from))?.first().copied()
    }
}

/// A bound on work that is never reached where each move helps.
const MOVES_PER_PARTITION: usize = 16;
