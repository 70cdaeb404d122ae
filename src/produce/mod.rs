//! Writes records: the smallest idempotent producer that is right.
//!
//! It knows no handlers and no leases; dead letters and the public producer are built on it. It
//! finds no leaders: topics and their leaders are told to it, and what it wants sent is an action.
//!
//! ```text
//!   push --> (topic not known: unplaced) --> queue of a partition --> batch, frozen --> in flight
//!                                               ^                       |  ^ pause         |
//!                                               |   split, new epoch    |  '-- retriable --+
//!                                               '-----------------------+                  |
//!                                                                  Done <-- written, refused
//! ```
//!
//! Invariants:
//!
//! 1. Each record is answered by one [`ProduceAction::Done`], unless it was cancelled before it was
//!    first sent.
//! 2. A partition has at most one batch in flight, and nothing is sent there before that batch has
//!    been written or given up: records of a partition keep their order, whatever is retried.
//! 3. A batch is frozen when it is first sent: what is sent again is the same bytes, with the same
//!    producer id, epoch and sequence number, to the same partition. So a leader that has it already
//!    knows it again, and an answer that was lost costs no second copy.
//! 4. A sequence number is never used for other records under the same id and epoch. A batch whose
//!    fate is not known and that is given up all the same ends the epoch.
//! 5. Where the leader does not know what was written before, writing goes on under the next epoch,
//!    and in every partition from 0; after the last epoch under a new id. As Kafka's own client.
//! 6. Whatever is tried again is paced, and each queue has a bound in records and bytes.
//!
//! A batch that is refused for one of its records is halved until that record is alone, so that one
//! bad record takes no others with it.
//!
//! What it does not promise: a leader that has lost what it knew of us (an unclean election, an
//! expired producer) takes a batch that it had, and whose answer was lost, a second time.
//!
//! KIP-98 (idempotence), KIP-360 (epochs are raised by the client), KIP-467 (record errors), KIP-951
//! (leader hints).

mod action;
mod answer;
mod part;
mod place;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::error::{Error, ErrorKind};
use crate::ids::{NodeId, Token, TopicId};
use crate::pace::{Backoff, Rng};
use crate::time::{Now, earliest};
use crate::wire::message::{InitProducerIdRequest, ProduceRequest, ProduceTopic};
use crate::wire::{Request, Response};

pub use action::{
    Outgoing, ProduceAction, ProduceConfig, ProduceNotice, Ticket, TopicView, Written,
};
use part::{Item, Part};
pub use place::partition_of;

/// The machine. See the [module](self).
#[derive(Debug)]
pub struct Produce {
    cfg: ProduceConfig,
    identity: Identity,
    identity_backoff: Backoff,
    /// Metadata of topics that nothing is known of is asked for at this pace.
    lookup_backoff: Backoff,
    lookup_due: Now,
    topics: BTreeMap<Arc<str>, Topic>,
    /// Partitions that have records.
    active: BTreeSet<(Arc<str>, i32)>,
    flights: BTreeMap<Token, Flight>,
    /// Requests in flight to each broker.
    nodes: BTreeMap<NodeId, usize>,
    parts: usize,
    records: usize,
    bytes: usize,
    tickets: u64,
    tokens: u64,
    actions: VecDeque<ProduceAction>,
    wake: Option<Now>,
    rng: Rng,
}

/// As whom we write.
#[derive(Clone, Copy, Debug)]
enum Identity {
    /// Not known; asked for once there is something to write, and not before this.
    None { not_before: Now },
    /// Asked for.
    Asked { token: Token },
    /// The id, and the epoch for batches that are frozen from now on.
    Known { id: i64, epoch: i16 },
}

#[derive(Debug)]
struct Topic {
    id: TopicId,
    /// `None`: nothing is known of it now.
    leaders: Option<Vec<Option<NodeId>>>,
    /// Records for which no partition has been chosen.
    unplaced: VecDeque<Item>,
    parts: BTreeMap<i32, Part>,
    /// Where records without a key go until its batch is closed.
    sticky: Option<i32>,
}

#[derive(Debug)]
struct Flight {
    node: NodeId,
    batches: Vec<(Arc<str>, i32)>,
}

impl Produce {
    /// Has nothing to write and knows no topic.
    #[must_use]
    pub fn new(cfg: ProduceConfig, now: Now) -> Self {
        Produce {
            identity: Identity::None { not_before: now },
            identity_backoff: Backoff::new(cfg.retry_backoff, cfg.retry_backoff_max),
            lookup_backoff: Backoff::new(cfg.retry_backoff, cfg.retry_backoff_max),
            lookup_due: now,
            topics: BTreeMap::new(),
            active: BTreeSet::new(),
            flights: BTreeMap::new(),
            nodes: BTreeMap::new(),
            parts: 0,
            records: 0,
            bytes: 0,
            tickets: 0,
            tokens: 0,
            actions: VecDeque::new(),
            wake: None,
            rng: Rng::new(&cfg.seed, SALT),
            cfg,
        }
    }

    /// Takes a record to be written. Its topic must be told with [`set_topic`](Self::set_topic)
    /// before anything of it can be sent.
    ///
    /// # Errors
    ///
    /// The record itself, where there is no room for it now; see [`has_room`](Self::has_room).
    pub fn push(&mut self, now: Now, record: Outgoing) -> Result<Ticket, Box<Outgoing>> {
        let size = record.size_bytes();
        if !self.has_room(size) || !self.make_topic(&record.topic) {
            return Err(Box::new(record));
        }
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.records += 1;
        self.bytes += size;
        let deadline = match self.cfg.delivery_timeout {
            Some(timeout) => now + timeout,
            None => Now::NEVER,
        };
        let name = record.topic.clone();
        let item = Item {
            ticket,
            record,
            size,
            deadline,
        };
        if let Some(topic) = self.topics.get_mut(&name) {
            topic.unplaced.push_back(item);
        }
        self.drive(now);
        Ok(ticket)
    }

    /// Whether a record of this size would be taken now. A single one always is.
    #[must_use]
    pub fn has_room(&self, size: usize) -> bool {
        self.records == 0
            || (self.records < self.cfg.records_max
                && self.bytes.saturating_add(size) <= self.cfg.bytes_max)
    }

    /// What is known of a topic now; `None`: nothing, or no partition. Topics that nothing was
    /// pushed for are passed over.
    pub fn set_topic(&mut self, now: Now, name: &str, view: Option<TopicView>) {
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        // A topic without partitions is not there yet: nothing written to it would be anywhere.
        let view = view.filter(|v| !v.leaders.is_empty());
        match view {
            None => topic.leaders = None,
            Some(view) => {
                if !view.id.is_zero() {
                    topic.id = view.id;
                }
                topic.leaders = Some(view.leaders);
                self.misplaced(name);
            }
        }
        self.drive(now);
    }

    /// Takes a record back that has not been sent yet; nothing more is said of it. False: it is
    /// frozen or done, and its [`ProduceAction::Done`] comes or has come.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let mut found = None;
        for (name, topic) in &mut self.topics {
            let parts = topic.parts.iter_mut();
            let queues = parts.map(|(index, part)| (Some(*index), &mut part.queue));
            let all = std::iter::once((None, &mut topic.unplaced)).chain(queues);
            for (index, queue) in all {
                if let Some(at) = queue.iter().position(|item| item.ticket == ticket) {
                    found = queue.remove(at).map(|item| (name.clone(), index, item));
                    break;
                }
            }
            if found.is_some() {
                break;
            }
        }
        let Some((name, index, item)) = found else {
            return false;
        };
        self.release(&item);
        if let Some(index) = index {
            self.settle_activity(&name, index);
        }
        true
    }

    /// Gives everything up: each record fails with `error`, also what is in flight.
    pub fn fail_all(&mut self, now: Now, error: &Error) {
        let mut items: Vec<Item> = Vec::new();
        let mut ambiguous = false;
        for topic in self.topics.values_mut() {
            for part in topic.parts.values_mut() {
                if let Some(batch) = part.batch.take() {
                    ambiguous |= batch.attempts > 0;
                    items.extend(batch.items);
                }
                items.extend(part.queue.drain(..));
            }
            items.extend(topic.unplaced.drain(..));
        }
        self.active.clear();
        // What comes back of these finds no batch.
        self.flights.clear();
        self.nodes.clear();
        if ambiguous {
            self.end_epoch(now);
        }
        items.sort_by_key(|item| item.ticket);
        for item in items {
            self.done(&item, Err(error.clone()));
        }
        self.plan(now);
    }

    /// What came of a [`ProduceAction::Send`]. Answers to anything else are passed over.
    pub fn handle_response(&mut self, now: Now, token: Token, result: Result<Response, Error>) {
        if matches!(self.identity, Identity::Asked { token: asked } if asked == token) {
            self.identity_answer(now, result);
        } else if let Some(flight) = self.flights.remove(&token) {
            if let Some(n) = self.nodes.get_mut(&flight.node) {
                *n -= 1;
                if *n == 0 {
                    self.nodes.remove(&flight.node);
                }
            }
            self.produce_answer(now, flight, result);
        }
        self.drive(now);
    }

    /// To be called at [`next_deadline`](Self::next_deadline).
    pub fn handle_timeout(&mut self, now: Now) {
        self.drive(now);
    }

    /// What to do next; until `None` after each call of the others.
    pub fn poll_action(&mut self) -> Option<ProduceAction> {
        self.actions.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Now> {
        self.wake
    }

    /// Records that are not done.
    #[must_use]
    pub fn records(&self) -> usize {
        self.records
    }

    /// Their bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The topics that metadata is needed of.
    pub fn topics(&self) -> impl Iterator<Item = &Arc<str>> {
        self.topics.keys()
    }

    /// Makes room for a topic's entry. False: there is none.
    fn make_topic(&mut self, name: &Arc<str>) -> bool {
        if self.topics.contains_key(name) {
            return true;
        }
        if self.topics.len() >= TOPICS_MAX || self.parts >= PARTS_MAX {
            self.forget_idle();
        }
        if self.topics.len() >= TOPICS_MAX {
            return false;
        }
        let topic = Topic {
            id: TopicId::ZERO,
            leaders: None,
            unplaced: VecDeque::new(),
            parts: BTreeMap::new(),
            sticky: None,
        };
        self.topics.insert(name.clone(), topic);
        true
    }

    /// Drops what is known of partitions that nothing is written to. Their sequence numbers go with
    /// it, so the epoch ends: they begin at 0 again and must not be taken for what they were.
    fn forget_idle(&mut self) {
        for topic in self.topics.values_mut() {
            topic.parts.retain(|_, part| !part.is_idle());
        }
        self.topics
            .retain(|_, topic| !topic.parts.is_empty() || !topic.unplaced.is_empty());
        self.parts = self.topics.values().map(|t| t.parts.len()).sum();
        self.end_epoch(Now(0));
    }

    /// The next batches are frozen under another epoch, or another id.
    fn end_epoch(&mut self, now: Now) {
        self.identity = match self.identity {
            Identity::Known { id, epoch } if epoch < i16::MAX => Identity::Known {
                id,
                epoch: epoch + 1,
            },
            Identity::Known { .. } => Identity::None { not_before: now },
            other => other,
        };
    }

    fn done(&mut self, item: &Item, result: Result<Written, Error>) {
        self.release(item);
        let ticket = item.ticket;
        self.actions
            .push_back(ProduceAction::Done { ticket, result });
    }

    fn release(&mut self, item: &Item) {
        self.records -= 1;
        self.bytes -= item.size;
    }

    /// Whether the partition has records, as `active` has it.
    fn settle_activity(&mut self, name: &Arc<str>, index: i32) {
        let part = self.topics.get(name).and_then(|t| t.parts.get(&index));
        let key = (name.clone(), index);
        match part.is_some_and(|part| !part.is_idle()) {
            true => self.active.insert(key),
            false => self.active.remove(&key),
        };
    }

    /// Gives up what is overdue, chooses partitions, sends what may be sent.
    fn drive(&mut self, now: Now) {
        if self.cfg.delivery_timeout.is_some() {
            self.expire(now);
        }
        self.place();
        self.look_up(now);
        if self.active.is_empty() {
            return self.plan(now);
        }
        if matches!(self.identity, Identity::None { not_before } if not_before <= now) {
            self.ask_identity();
        }
        while self.send(now) {}
        self.plan(now);
    }

    /// Asks for topics that records wait for.
    fn look_up(&mut self, now: Now) {
        if !self.misses_a_topic() {
            self.lookup_backoff.reset();
            self.lookup_due = now;
        } else if self.lookup_due <= now {
            self.actions.push_back(ProduceAction::RefreshMetadata);
            self.lookup_due = now + self.lookup_backoff.next(&mut self.rng);
        }
    }

    /// Whether records wait because nothing is known of their topic.
    #[must_use]
    pub fn misses_a_topic(&self) -> bool {
        let waits = |t: &Topic| t.leaders.is_none() && !t.unplaced.is_empty();
        self.topics.values().any(waits)
    }

    fn ask_identity(&mut self) {
        let token = self.token();
        self.identity = Identity::Asked { token };
        self.actions.push_back(ProduceAction::Send {
            token,
            node: None,
            request: Request::InitProducerId(InitProducerIdRequest {
                transaction_timeout: Duration::ZERO,
            }),
            timeout: self.cfg.request_timeout,
        });
    }

    /// Chooses a partition for each record whose topic is known: once, whatever comes later.
    fn place(&mut self) {
        let mut refused = Vec::new();
        let mut placed = Vec::new();
        for (name, topic) in &mut self.topics {
            let Some(leaders) = &topic.leaders else {
                continue;
            };
            let count = i32::try_from(leaders.len()).unwrap_or(i32::MAX);
            while let Some(item) = topic.unplaced.pop_front() {
                let index = match (item.record.partition, &item.record.key) {
                    (Some(index), _) if (0..count).contains(&index) => index,
                    (Some(index), _) => {
                        refused.push((name.clone(), index, count, item));
                        continue;
                    }
                    (None, Some(key)) => partition_of(key, count),
                    (None, None) => *topic
                        .sticky
                        .get_or_insert_with(|| pick(leaders, &mut self.rng)),
                };
                let part = topic.parts.entry(index).or_insert_with(|| {
                    self.parts += 1;
                    Part::new(&self.cfg)
                });
                part.queue.push_back(item);
                placed.push((name.clone(), index));
            }
        }
        self.active.extend(placed);
        for (name, index, count, item) in refused {
            let error = Error::misuse(format!(
                "there is no partition {index}: the topic has {count}"
            ));
            self.done(&item, Err(error.at(name, index)));
        }
    }

    /// A topic that was made anew may have fewer partitions: what was to go to one that is not
    /// there any more is placed again. What is in flight is looked at when it comes back.
    fn misplaced(&mut self, name: &str) {
        let Some((name, topic)) = self.topics.get_key_value(name) else {
            return;
        };
        let count = topic.leaders.as_ref().map_or(i32::MAX, |leaders| {
            i32::try_from(leaders.len()).unwrap_or(i32::MAX)
        });
        let name = name.clone();
        let lost: Vec<i32> = topic
            .parts
            .range(count..)
            .map(|(index, _)| *index)
            .collect();
        for index in lost {
            let Some(topic) = self.topics.get_mut(&name) else {
                return;
            };
            if topic.sticky == Some(index) {
                topic.sticky = None;
            }
            if let Some(part) = topic.parts.get_mut(&index) {
                // Its log is gone, and with it whatever of this had been written.
                part.thaw();
                for item in part.queue.drain(..).rev() {
                    topic.unplaced.push_front(item);
                }
            }
            self.settle_activity(&name, index);
        }
    }

    /// Sends one request. False: there is nothing that may be sent now.
    fn send(&mut self, now: Now) -> bool {
        let Identity::Known { id, epoch } = self.identity else {
            return false;
        };
        let ready = self.active.iter().find_map(|(name, index)| {
            let node = self.sendable(now, name, *index)?;
            Some((node, (name.clone(), *index)))
        });
        let Some((node, first)) = ready else {
            return false;
        };
        let mut batches: Vec<(Arc<str>, i32)> = Vec::new();
        let mut topics: BTreeMap<Arc<str>, Vec<(i32, Bytes)>> = BTreeMap::new();
        let mut size = 0;
        let keys: Vec<_> = self.active.range(first..).cloned().collect();
        for (name, index) in keys {
            if self.sendable(now, &name, index) != Some(node) {
                continue;
            }
            let Some(bytes) = self.freeze(&name, index, (id, epoch)) else {
                continue;
            };
            if size > 0 && size + bytes.len() > REQUEST_BYTES_MAX {
                break;
            }
            size += bytes.len();
            if let Some(part) = self
                .topics
                .get_mut(&name)
                .and_then(|t| t.parts.get_mut(&index))
            {
                part.depart();
            }
            topics.entry(name.clone()).or_default().push((index, bytes));
            batches.push((name, index));
        }
        if batches.is_empty() {
            // Everything ready could not be written at all, and is done: look again.
            return true;
        }
        let named = |(name, partitions)| ProduceTopic {
            name,
            id: TopicId::ZERO,
            partitions,
        };
        let request = Request::Produce(ProduceRequest {
            acks: ACKS_ALL,
            timeout: self.cfg.request_timeout * 2 / 3,
            topics: topics.into_iter().map(named).collect(),
            by_id: false,
        });
        let token = self.token();
        *self.nodes.entry(node).or_default() += 1;
        self.flights.insert(token, Flight { node, batches });
        self.actions.push_back(ProduceAction::Send {
            token,
            node: Some(node),
            request,
            timeout: self.cfg.request_timeout,
        });
        true
    }

    /// The broker that something of the partition may be sent to now.
    fn sendable(&self, now: Now, name: &Arc<str>, index: i32) -> Option<NodeId> {
        let topic = self.topics.get(name)?;
        let part = topic.parts.get(&index)?;
        if part.in_flight() || part.not_before > now {
            return None;
        }
        let node = topic.leader(index)?;
        let busy = self.nodes.get(&node).copied().unwrap_or(0);
        (busy < FLIGHTS_PER_NODE_MAX).then_some(node)
    }

    /// The bytes of the partition's next batch: those that were sent before, or a new one.
    fn freeze(&mut self, name: &Arc<str>, index: i32, identity: (i64, i16)) -> Option<Bytes> {
        let topic = self.topics.get_mut(name)?;
        let part = topic.parts.get_mut(&index)?;
        let mut refused = Vec::new();
        let bytes = part.freeze(identity, self.cfg.batch_bytes_max, &mut refused);
        if topic.sticky == Some(index) {
            topic.sticky = None;
        }
        for (item, error) in refused {
            self.done(&item, Err(error.at(name.clone(), index)));
        }
        if bytes.is_none() {
            self.settle_activity(name, index);
        }
        bytes
    }

    /// Records whose time is up fail, but for those of a batch in flight.
    fn expire(&mut self, now: Now) {
        let mut overdue: Vec<(Item, Error)> = Vec::new();
        let mut ambiguous = false;
        let mut touched = Vec::new();
        for (name, topic) in &mut self.topics {
            let late = |item: &Item| item.deadline <= now;
            // They wait in the order of their deadlines.
            while let Some(item) = pop_if(&mut topic.unplaced, late) {
                let error = timed_out("nothing is known of the topic: does it exist?");
                overdue.push((item, error.at(name.clone(), -1)));
            }
            for (index, part) in &mut topic.parts {
                let before = overdue.len();
                let over = |batch: &mut part::Frozen| {
                    !batch.in_flight && batch.items.first().is_some_and(late)
                };
                if let Some(batch) = part.batch.take_if(over) {
                    ambiguous |= batch.attempts > 0;
                    let words = part
                        .last_error
                        .as_ref()
                        .map_or("its leader is away", |e| e.message());
                    let error = timed_out(words).at(name.clone(), *index);
                    let failed = batch.items.into_iter().map(|item| (item, error.clone()));
                    overdue.extend(failed);
                }
                while let Some(item) = pop_if(&mut part.queue, late) {
                    let error = timed_out("its leader is away, or what stands before it waits");
                    overdue.push((item, error.at(name.clone(), *index)));
                }
                if overdue.len() > before {
                    touched.push((name.clone(), *index));
                }
            }
        }
        if ambiguous {
            self.end_epoch(now);
        }
        for (name, index) in touched {
            self.settle_activity(&name, index);
        }
        for (item, error) in overdue {
            self.done(&item, Err(error));
        }
    }

    /// When to look again without being asked to.
    fn plan(&mut self, now: Now) {
        let mut wake = None;
        if let Identity::None { not_before } = self.identity
            && !self.active.is_empty()
        {
            wake = Some(not_before);
        }
        for (name, index) in &self.active {
            let Some(topic) = self.topics.get(name) else {
                continue;
            };
            let Some(part) = topic.parts.get(index) else {
                continue;
            };
            if !part.in_flight() && part.not_before > now && topic.leader(*index).is_some() {
                wake = earliest(wake, Some(part.not_before));
            }
            wake = earliest(wake, part.deadline());
        }
        if self.misses_a_topic() {
            wake = earliest(wake, Some(self.lookup_due));
        }
        let unplaced = self.topics.values().filter_map(|t| t.unplaced.front());
        wake = earliest(wake, unplaced.map(|item| item.deadline).min());
        self.wake = wake.filter(|at| *at != Now::NEVER);
    }

    fn token(&mut self) -> Token {
        let token = Token(self.tokens);
        self.tokens += 1;
        token
    }
}

impl Topic {
    fn leader(&self, index: i32) -> Option<NodeId> {
        let index = usize::try_from(index).ok()?;
        *self.leaders.as_ref()?.get(index)?
    }
}

fn pop_if(queue: &mut VecDeque<Item>, wanted: impl Fn(&Item) -> bool) -> Option<Item> {
    queue
        .front()
        .is_some_and(wanted)
        .then(|| queue.pop_front())?
}

/// A partition for records without a key: one that has a leader, where any has.
fn pick(leaders: &[Option<NodeId>], rng: &mut Rng) -> i32 {
    let led = leaders.iter().filter(|leader| leader.is_some()).count();
    let index = match led {
        0 => rng.below(leaders.len() as u64) as usize,
        _ => {
            let nth = rng.below(led as u64) as usize;
            let mut with = leaders.iter().enumerate().filter(|(_, l)| l.is_some());
            with.nth(nth).map_or(0, |(index, _)| index)
        }
    };
    i32::try_from(index).unwrap_or(0)
}

fn timed_out(why: &str) -> Error {
    let words = format!("the record was not written within its time: {why}");
    Error::new(ErrorKind::Transport, words).retriable()
}

/// Every replica in sync.
const ACKS_ALL: i16 = -1;

/// Requests in flight to one broker.
const FLIGHTS_PER_NODE_MAX: usize = 5;

/// Batches in one request, together; a larger one goes alone.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Topics that may be written to at one time.
const TOPICS_MAX: usize = 10_000;

/// Partitions whose sequence numbers are kept; beyond that idle ones are forgotten.
const PARTS_MAX: usize = 100_000;

const SALT: u64 = 5;
