//! What to send now: for each broker at most one waiting and one prompt fetch, and look-ups.

use std::collections::BTreeMap;
use std::time::Duration;

use super::partition::{CHUNKS_MAX, Mode, State};
use super::session::{Asked, Entry, topics};
use super::{
    Charge, Fetch, FetchAction, FetchEvent, FetchLink, Flight, STARVED_GAP_MAX, STARVED_GAP_MIN,
    Sent, backoff, is_loud,
};
use crate::ids::{LeaseId, NodeId, TopicPartition};
use crate::time::{Now, earliest};
use crate::wire::Request;
use crate::wire::message::{FetchRequest, FetchTopic};

/// Who wants what of one broker.
#[derive(Default)]
struct Wishes {
    offsets: Vec<LeaseId>,
    epoch_ends: Vec<LeaseId>,
    waiting: Vec<LeaseId>,
    prompt: Vec<LeaseId>,
    /// One of these is of a topic whose id is not known, so that names are to be used.
    waiting_by_name: bool,
    prompt_by_name: bool,
}

impl Fetch {
    /// Queues every action that is due, and finds the next deadline.
    pub(super) fn plan(&mut self) {
        self.deadline = None;
        let starved_before = self.starved_at_bytes.take();
        let wishes = self.wishes();
        let mut order: Vec<(Now, NodeId)> = wishes
            .keys()
            .map(|node| (self.nodes.get(node).map_or(Now(0), |n| n.prompt_at), *node))
            .collect();
        order.sort_unstable();
        for (_, node) in &order {
            let Some(wish) = wishes.get(node) else {
                continue;
            };
            self.send_offsets(*node, &wish.offsets);
            self.send_epoch_ends(*node, &wish.epoch_ends);
            // Long polls first: they cost little, and without them the others starve.
            self.send_waiting(*node, wish, order.len());
        }
        for (_, node) in &order {
            if let Some(wish) = wishes.get(node) {
                self.send_prompt(*node, wish);
            }
        }
        if self.starved_at_bytes.is_some() {
            self.starved_gap = match starved_before == self.starved_at_bytes {
                true => self.starved_gap.saturating_mul(2).min(STARVED_GAP_MAX),
                false => STARVED_GAP_MIN,
            };
            self.wake_at(self.now + self.starved_gap);
        }
        self.refresh();
    }

    /// One look at every partition.
    fn wishes(&mut self) -> BTreeMap<NodeId, Wishes> {
        let now = self.now;
        let free = self.budget.room_bytes();
        let mut wishes: BTreeMap<NodeId, Wishes> = BTreeMap::new();
        let mut deadline = None;
        let mut starved = false;
        for p in self.partitions.values_mut() {
            if p.has_ended() || p.flight.is_some() {
                continue;
            }
            let reading = p.state == State::Reading;
            if reading && p.is_held() {
                continue;
            }
            if now < p.retry_at {
                deadline = earliest(deadline, Some(p.retry_at));
                continue;
            }
            let node = match reading {
                true => p.read_node(now),
                // Only the leader's word counts.
                false => p.leader,
            };
            let Some(node) = node else {
                p.failures = p.failures.saturating_add(1);
                p.retry_at = now + backoff(&self.cfg, p.failures, &mut self.jitter);
                deadline = earliest(deadline, Some(p.retry_at));
                self.refresh_wanted = true;
                if is_loud(p.failures) {
                    self.actions
                        .push_back(FetchAction::Notice(FetchEvent::NoLeader {
                            lease: p.lease,
                            tp: p.tp.clone(),
                            attempts: p.failures,
                        }));
                }
                continue;
            };
            let state = self.nodes.entry(node).or_default();
            if now < state.retry_at {
                deadline = earliest(deadline, Some(state.retry_at));
                continue;
            }
            let wish = wishes.entry(node).or_default();
            match p.state {
                State::Lookup(_) => wish.offsets.push(p.lease),
                State::Validate => wish.epoch_ends.push(p.lease),
                State::Ended => {}
                State::Reading => {
                    let held = p.held_bytes();
                    if held > 0 && held >= free {
                        starved = true;
                        continue;
                    }
                    if p.chunks.len() >= CHUNKS_MAX {
                        continue; // `take` looks again
                    }
                    match p.mode {
                        Mode::Waiting if state.waiting.is_none() => {
                            wish.waiting.push(p.lease);
                            wish.waiting_by_name |= p.topic_id.is_zero();
                        }
                        Mode::Waiting if now < p.poll_at => {
                            deadline = earliest(deadline, Some(p.poll_at));
                        }
                        Mode::Prompt | Mode::Waiting => {
                            wish.prompt.push(p.lease);
                            wish.prompt_by_name |= p.topic_id.is_zero();
                        }
                    }
                }
            }
        }
        self.deadline = deadline;
        if starved {
            self.starve();
        }
        wishes
    }

    /// The long poll of the session.
    fn send_waiting(&mut self, node: NodeId, wish: &Wishes, brokers: usize) {
        let wanted = &*wish.waiting;
        let Some(state) = self.nodes.get(&node) else {
            return;
        };
        if wanted.is_empty() || state.waiting.is_some() {
            return;
        }
        if self.now < state.session.retry_at {
            let at = state.session.retry_at;
            self.wake_at(at);
            return;
        }
        let brokers = brokers.max(self.nodes.len()).max(1);
        let want = (self.cfg.budget_bytes / WAITING_SHARE / brokers)
            .min(self.cfg.max_bytes)
            .max(1);
        let Some(reserved) = self.room(want, want.div_ceil(8)) else {
            return;
        };
        let max_bytes = reserved.bytes();
        let token = self.token();
        let rack = self.rack(wanted);
        let (max_wait, now) = (self.cfg.max_wait, self.now);
        let Some(state) = self.nodes.get_mut(&node) else {
            return;
        };
        state.waiting = Some(token);
        state.session.begin(!wish.waiting_by_name);
        for lease in wanted {
            if let Some(p) = self.partitions.get_mut(lease) {
                p.flight = Some(token);
                state.session.want(*lease, &p.tp, p.place_for(max_bytes));
            }
        }
        let part = state.session.end(wanted.len());
        let answer_bytes_max = self.answer_bytes_max(max_bytes, wanted.len());
        let request = FetchRequest {
            max_wait,
            min_bytes: self.cfg.min_bytes,
            max_bytes: int(max_bytes),
            isolation: self.cfg.isolation,
            session_id: part.id,
            session_epoch: part.epoch,
            topics: part.topics,
            forgotten: part.forgotten,
            rack,
            by_id: part.by_id,
        };
        self.flights.insert(
            token,
            Flight {
                node,
                sent_at: now,
                what: Sent::Waiting { reserved },
            },
        );
        self.actions.push_back(FetchAction::Send {
            token,
            node,
            link: FetchLink::Waiting,
            request: Request::Fetch(request),
            timeout: self.cfg.request_timeout + max_wait,
            answer_bytes_max,
        });
    }

    /// The fetch that does not wait.
    fn send_prompt(&mut self, node: NodeId, wish: &Wishes) {
        let wanted = &*wish.prompt;
        let Some(state) = self.nodes.get(&node) else {
            return;
        };
        if wanted.is_empty() || state.prompt.is_some() {
            return;
        }
        let (mut want, mut limit_most, mut batch_most) = (0usize, 0, 0);
        for p in wanted.iter().filter_map(|l| self.partitions.get(l)) {
            want = want.saturating_add(p.limit);
            limit_most = p.limit.max(limit_most);
            batch_most = p.batch_bytes.max(batch_most);
        }
        let cap = (self.cfg.budget_bytes / PROMPT_SHARE).max(limit_most);
        let want = want.min(self.cfg.max_bytes.max(limit_most)).min(cap).max(1);
        let least = batch_most
            .max(self.cfg.budget_bytes / PROMPT_LEAST)
            .clamp(1, want);
        let Some(reserved) = self.room(want, least) else {
            return;
        };
        let max_bytes = reserved.bytes();
        let token = self.token();
        let mut asked = Asked::default();
        for lease in wanted {
            if let Some(p) = self.partitions.get_mut(lease) {
                p.flight = Some(token);
                asked.insert(*lease, &p.tp, p.place_for(max_bytes));
            }
        }
        let rack = self.rack(wanted);
        let now = self.now;
        let Some(state) = self.nodes.get_mut(&node) else {
            return;
        };
        state.prompt = Some(token);
        state.prompt_at = now;
        let topics = rotated(&asked, state.rotate_after.as_ref());
        let answer_bytes_max = self.answer_bytes_max(max_bytes, wanted.len());
        let request = FetchRequest {
            max_wait: Duration::ZERO,
            min_bytes: 0,
            max_bytes: int(max_bytes),
            isolation: self.cfg.isolation,
            session_id: 0,
            session_epoch: -1,
            topics,
            forgotten: Vec::new(),
            rack,
            by_id: !wish.prompt_by_name,
        };
        self.flights.insert(
            token,
            Flight {
                node,
                sent_at: now,
                what: Sent::Prompt { reserved, asked },
            },
        );
        self.actions.push_back(FetchAction::Send {
            token,
            node,
            link: FetchLink::Prompt,
            request: Request::Fetch(request),
            timeout: self.cfg.request_timeout,
            answer_bytes_max,
        });
    }

    /// Without a rack the leader serves by itself and names no replica.
    fn rack(&self, wanted: &[LeaseId]) -> std::sync::Arc<str> {
        let distrusted = !self.cfg.rack.is_empty()
            && wanted
                .iter()
                .filter_map(|l| self.partitions.get(l))
                .any(|p| self.now < p.distrust_until);
        match distrusted {
            true => "".into(),
            false => self.cfg.rack.clone(),
        }
    }

    /// Reserves between `least` and `want` bytes. With nothing else held it may overdraw, so that
    /// one batch always gets through.
    fn room(&mut self, want: usize, least: usize) -> Option<Charge> {
        let free = self.budget.room_bytes();
        if free >= least {
            return Some(self.budget.charge(want.min(free)));
        }
        let idle: usize = self
            .flights
            .values()
            .map(|flight| match &flight.what {
                Sent::Waiting { reserved } => reserved.bytes(),
                _ => 0,
            })
            .sum();
        if self.budget.used_bytes() <= idle {
            return Some(self.budget.charge(least));
        }
        self.starve();
        None
    }

    fn starve(&mut self) {
        self.starved_at_bytes = Some(self.budget.used_bytes());
        self.copy_out();
    }

    /// Buffered parts of frames of which little is left are copied, so that the frames go.
    fn copy_out(&mut self) {
        let mut copied = 0;
        for p in self.partitions.values_mut() {
            for chunk in &mut p.chunks {
                let size = chunk.bytes.len();
                if !chunk.charge.is_remnant(COPY_OUT_PARTS) || copied + size > COPY_OUT_BYTES_MAX {
                    continue;
                }
                chunk.bytes = bytes::Bytes::copy_from_slice(&chunk.bytes);
                chunk.charge.exchange(size);
                copied += size;
            }
        }
        self.stats.copied_out_bytes += copied as u64;
    }

    /// Metadata is asked for when something is stale, and not too often.
    fn refresh(&mut self) {
        if !self.refresh_wanted {
            return;
        }
        if self.now < self.refresh_not_before {
            let at = self.refresh_not_before;
            self.wake_at(at);
            return;
        }
        self.refresh_wanted = false;
        self.refresh_not_before = self.now + self.cfg.retry_min;
        self.actions.push_back(FetchAction::RefreshMetadata);
    }

    pub(super) fn wake_at(&mut self, at: Now) {
        self.deadline = earliest(self.deadline, Some(at));
    }

    /// The first batch comes whole whatever the limit, and each partition has its own fields.
    pub(super) fn answer_bytes_max(&self, max_bytes: usize, partitions: usize) -> u32 {
        let bytes = max_bytes
            .max(self.cfg.batch_bytes_max)
            .saturating_add(ANSWER_SLACK_BYTES)
            .saturating_add(partitions.saturating_mul(PARTITION_ANSWER_BYTES));
        u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(FRAME_BYTES_MAX)
    }
}

/// The request's partitions, those behind the last one served first: a broker fills its answer in
/// the order of the request.
fn rotated(asked: &Asked, after: Option<&TopicPartition>) -> Vec<FetchTopic> {
    let mut entries: Vec<&Entry> = asked.entries.values().collect();
    entries.sort_unstable_by(|a, b| a.tp.cmp(&b.tp));
    if let Some(after) = after {
        let served = entries.partition_point(|entry| entry.tp <= *after);
        entries.rotate_left(served);
    }
    topics(entries.into_iter())
}

pub(super) fn int(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}

/// Long polls reserve this part of the budget, all brokers together.
const WAITING_SHARE: usize = 4;
/// A prompt fetch asks for at most this part, so that one can be on its way while another is used.
const PROMPT_SHARE: usize = 4;
/// With less room than this part a prompt fetch waits, rather than come in tiny pieces.
const PROMPT_LEAST: usize = 32;
/// What is left is copied out of a frame once it is less than one part in this many.
const COPY_OUT_PARTS: usize = 4;
/// How much is copied at one time.
const COPY_OUT_BYTES_MAX: usize = 4 << 20;
/// Room for fields, aborted transactions and endpoints in an answer.
const ANSWER_SLACK_BYTES: usize = 1 << 20;
const PARTITION_ANSWER_BYTES: usize = 1 << 10;
/// Kafka's frames have a signed length.
const FRAME_BYTES_MAX: u32 = i32::MAX as u32;
