//! What becomes of a fetch's answer.

use std::time::Duration;

use bytes::Bytes;

use super::budget::Frame;
use super::partition::{Chunk, Ending, Lookup, Mode, POLL_GAP_MIN, PREFERRED_AGE, State};
use super::session::Asked;
use super::{Fetch, FetchAction, FetchEvent, FetchResult, Flight, Sent, backoff, is_loud};
use crate::error::{Error, ErrorKind};
use crate::ids::{LeaseId, NodeId, Token, TopicPartition};
use crate::records::{AbortedFilter, AbortedTransaction, Piece, RecordsError, split};
use crate::wire::Response;
use crate::wire::message::{
    BrokerEndpoint, Code, FetchResponse, FetchResponsePartition, Isolation,
};

/// What the batches of an answer add up to.
#[derive(Default)]
struct Walk {
    /// Bytes of whole, good batches.
    good_bytes: usize,
    /// Whole batches.
    batches: usize,
    next: i64,
    epoch: i32,
    largest_bytes: usize,
    /// The size of the batch that was cut, where it is known.
    cut: Option<Option<usize>>,
    /// What did not hold, at which offset, and whether asking again may heal it.
    refused: Option<(i64, bool, Error)>,
}

/// What an answer says of one partition besides its fields.
struct Context<'a> {
    node: NodeId,
    prompt: bool,
    frame: &'a Frame,
    /// The whole answer holds no record.
    empty: bool,
    endpoints: &'a [BrokerEndpoint],
}

impl Fetch {
    /// An answer, or a failure, for a request of ours.
    pub(super) fn answer(&mut self, token: Token, flight: Flight, result: FetchResult) {
        let Flight {
            node,
            sent_at,
            what,
        } = flight;
        let waited = self.now.since(sent_at);
        match what {
            Sent::Waiting { reserved } => {
                let state = self.nodes.entry(node).or_default();
                state.waiting = None;
                // Back in its place before the next request is made.
                let asked = std::mem::take(&mut state.session.asked);
                match self.fetch_body(node, result) {
                    Ok(body) => {
                        let state = self.nodes.entry(node).or_default();
                        if !state.session.answered(body.session_id) {
                            self.stats.sessions_lost += 1;
                        }
                        let empty = self.fetched(token, node, false, reserved, &asked, body);
                        self.pace_waiting(node, empty, waited);
                    }
                    Err(error) => {
                        drop(reserved);
                        self.session_failed(node, &error);
                        self.unanswered(token, &asked);
                        self.fetch_failed(node, &asked, error);
                    }
                }
                let state = self.nodes.entry(node).or_default();
                state.session.asked = asked;
            }
            Sent::Prompt { reserved, asked } => {
                self.nodes.entry(node).or_default().prompt = None;
                match self.fetch_body(node, result) {
                    Ok(body) => {
                        self.fetched(token, node, true, reserved, &asked, body);
                    }
                    Err(error) => {
                        drop(reserved);
                        self.unanswered(token, &asked);
                        self.fetch_failed(node, &asked, error);
                    }
                }
            }
            Sent::Offsets(asked) => {
                self.nodes.entry(node).or_default().offsets = None;
                self.offsets_answer(token, node, asked, result);
            }
            Sent::EpochEnds(asked) => {
                self.nodes.entry(node).or_default().epoch_ends = None;
                self.epoch_ends_answer(token, node, asked, result);
            }
        }
    }

    /// The body of a good answer; any other is an error.
    fn fetch_body(&mut self, node: NodeId, result: FetchResult) -> Result<FetchResponse, Error> {
        match result? {
            Response::Fetch(body) if body.code.is_none() => Ok(body),
            Response::Fetch(body) => Err(Error::new(
                ErrorKind::Broker,
                "a fetch was answered with an error",
            )
            .from_broker(node.0.to_string())
            .with_code(body.code.0)
            .retriable()),
            _ => Err(other_api(node)),
        }
    }

    /// A good answer. True: it holds no record and no error.
    fn fetched(
        &mut self,
        token: Token,
        node: NodeId,
        prompt: bool,
        reserved: super::Charge,
        asked: &Asked,
        body: FetchResponse,
    ) -> bool {
        self.node_worked(node);
        let total = body
            .topics
            .iter()
            .flat_map(|t| &t.partitions)
            .fold(0usize, |sum, p| sum.saturating_add(p.records.len()));
        self.stats.answers += 1;
        self.stats.bytes += total as u64;
        let frame = reserved.into_frame(total);
        let context = Context {
            node,
            prompt,
            frame: &frame,
            empty: total == 0,
            endpoints: &body.endpoints,
        };
        let mut eventful = total > 0;
        let mut last_served = None;
        for topic in body.topics {
            let Some(name) = asked.topic(&topic.name, topic.id) else {
                self.stats.foreign += topic.partitions.len() as u64;
                continue;
            };
            for answer in topic.partitions {
                let tp = TopicPartition::new(name.clone(), answer.partition);
                let lease = self.leases.get(&tp).copied();
                let waits = lease
                    .and_then(|l| self.partitions.get_mut(&l))
                    .filter(|p| p.flight == Some(token));
                // Named twice, never asked for, or of a lease that is over: the first counts.
                let (Some(lease), Some(p)) = (lease, waits) else {
                    self.stats.foreign += 1;
                    continue;
                };
                p.flight = None;
                eventful |= !answer.code.is_none() || answer.preferred_replica >= 0;
                if !answer.records.is_empty() {
                    last_served = Some(tp);
                }
                self.partition_answer(lease, answer, &context);
            }
        }
        if prompt && last_served.is_some() {
            self.nodes.entry(node).or_default().rotate_after = last_served;
        }
        // A session's answer leaves out what has no news; a prompt one must not.
        for lease in self.unanswered(token, asked) {
            if prompt {
                self.delay(lease, None);
            }
        }
        !eventful
    }

    fn partition_answer(
        &mut self,
        lease: LeaseId,
        answer: FetchResponsePartition,
        context: &Context<'_>,
    ) {
        if !answer.code.is_none() {
            self.partition_error(lease, &answer, context);
            return;
        }
        let now = self.now;
        let known = self.is_known(NodeId(answer.preferred_replica));
        let Some(p) = self.partitions.get_mut(&lease) else {
            return;
        };
        if p.state != State::Reading {
            return;
        }
        p.moves = 0;
        p.lost_since = None;
        if answer.high_watermark >= 0 {
            p.high_watermark = answer.high_watermark;
            p.last_stable_offset = answer.last_stable_offset;
        }
        if answer.log_start >= 0 {
            p.log_start = answer.log_start;
        }
        if let Some(end) = answer.diverging {
            if end.end_offset >= 0 && end.end_offset < p.next {
                p.truncated(end.epoch, end.end_offset);
                self.settle_ending(lease);
            } else {
                // It cannot say where; without an epoch it will not be asked again.
                p.epoch = -1;
                self.delay(lease, None);
            }
            return;
        }
        let replica = NodeId(answer.preferred_replica);
        if answer.preferred_replica >= 0 && replica != context.node {
            if known && now >= p.distrust_until {
                p.preferred = Some((replica, now + PREFERRED_AGE));
                p.catch_up();
                return;
            }
            p.distrust(now);
            if !known {
                self.actions
                    .push_back(FetchAction::Notice(FetchEvent::UnknownReplica {
                        lease,
                        node: replica,
                    }));
                self.want_refresh();
            }
            if answer.records.is_empty() {
                self.delay(lease, None);
                return;
            }
        }
        self.records(lease, answer, context);
    }

    /// Takes the records of one partition in and decides which fetch it belongs to now.
    fn records(&mut self, lease: LeaseId, answer: FetchResponsePartition, context: &Context<'_>) {
        let committed = self.cfg.isolation == Isolation::ReadCommitted;
        let (batch_max, limit_least) = (self.cfg.batch_bytes_max, self.cfg.partition_max_bytes);
        let gap_max = self.cfg.max_wait.max(self.cfg.retry_min);
        let now = self.now;
        let Some(p) = self.partitions.get_mut(&lease) else {
            return;
        };
        let mut walk = walk(&answer.records, &p.tp, p.next, batch_max);
        let size = answer.records.len();
        let was_full = size.saturating_mul(2) >= p.limit;
        let moved = walk.next > p.next;
        if moved {
            let filter = match committed {
                true => AbortedFilter::read_committed(aborted(&answer)),
                false => AbortedFilter::read_uncommitted(),
            };
            p.push(Chunk {
                bytes: answer.records.slice(..walk.good_bytes),
                filter,
                charge: context.frame.part(walk.good_bytes, &p.held),
            });
            p.next = walk.next;
            p.epoch = walk.epoch;
            p.failures = 0;
            p.batch_bytes = walk.largest_bytes;
            p.limit = limit_least;
            p.poll_gap = POLL_GAP_MIN;
        }
        let end = match committed && answer.last_stable_offset >= 0 {
            true => answer.last_stable_offset,
            false => answer.high_watermark,
        };
        let caught_up = p.next >= end;
        if context.prompt {
            p.behind = 0;
            p.mode = match caught_up {
                true => Mode::Waiting,
                false => Mode::Prompt,
            };
            if caught_up {
                p.poll_at = now + p.poll_gap;
                p.poll_gap = p.poll_gap.saturating_mul(2).min(gap_max);
            }
        } else if caught_up {
            p.behind = 0;
        } else {
            p.behind += 1;
            if was_full || p.behind > BEHIND_MAX {
                p.catch_up();
            }
        }
        let idle = !moved && !caught_up && context.empty;
        let stuck = !moved && walk.batches > 0 && walk.refused.is_none();
        let next = p.next;
        self.make_ready(lease);
        if let Some((offset, may_heal, error)) = walk.refused.take() {
            // What came before it is delivered first.
            self.refused_in_answer(lease, offset, may_heal, error);
        } else if let Some(needed) = walk.cut.filter(|_| !moved) {
            self.raise_limit(lease, needed);
        } else if stuck {
            self.actions
                .push_back(FetchAction::Notice(FetchEvent::NoProgress {
                    lease,
                    offset: next,
                }));
            self.delay(lease, None);
        } else if idle {
            self.delay(lease, None);
        } else if !moved && caught_up {
            self.partition_worked(lease);
        }
    }

    /// The first batch at the position is larger than what was asked for (brokers before 0.10.1,
    /// and some that are not Kafka). Twelve bytes of it tell how large it is.
    fn raise_limit(&mut self, lease: LeaseId, needed: Option<usize>) {
        let max = self.cfg.batch_bytes_max;
        let Some(p) = self.partitions.get_mut(&lease) else {
            return;
        };
        let wanted = needed.unwrap_or_else(|| p.limit.saturating_mul(2).min(max));
        if wanted > max {
            let error = too_large(&p.tp, p.next, wanted, max);
            p.end(Ending::Stop(error));
            self.settle_ending(lease);
            return;
        }
        p.catch_up();
        if wanted <= p.limit {
            // It was cut though it fits: other partitions came before it in the answer.
            self.delay(lease, None);
            return;
        }
        p.limit = wanted;
        let event = FetchEvent::LimitRaised {
            lease,
            offset: p.next,
            bytes: wanted,
        };
        self.actions.push_back(FetchAction::Notice(event));
    }

    /// As [`Fetch::refuse`], but what came before it stays.
    fn refused_in_answer(&mut self, lease: LeaseId, offset: i64, may_heal: bool, error: Error) {
        let Some(p) = self.partitions.get_mut(&lease) else {
            return;
        };
        let again = may_heal && p.refused_at != Some(offset);
        p.refused_at = Some(offset);
        if again {
            p.preferred = None;
            p.catch_up();
            self.actions
                .push_back(FetchAction::Notice(FetchEvent::Refetch { lease, error }));
        } else {
            p.end(Ending::Stop(error));
            self.settle_ending(lease);
        }
    }

    fn partition_error(
        &mut self,
        lease: LeaseId,
        answer: &FetchResponsePartition,
        context: &Context<'_>,
    ) {
        let now = self.now;
        let Some(p) = self.partitions.get_mut(&lease) else {
            return;
        };
        let from_leader = p.leader == Some(context.node);
        match answer.code {
            Code::OFFSET_OUT_OF_RANGE if from_leader => {
                p.state = State::Lookup(Lookup::ConfirmLow);
            }
            // A follower may lag, or hold no copy: only the leader's word counts.
            Code::OFFSET_OUT_OF_RANGE
            | Code::NOT_LEADER_OR_FOLLOWER
            | Code::OFFSET_NOT_AVAILABLE
                if !from_leader =>
            {
                p.distrust(now);
            }
            Code::CORRUPT_MESSAGE => {
                let error = Error::new(
                    ErrorKind::Broker,
                    "the broker says that its copy of the log is corrupt here",
                )
                .at(p.tp.topic.clone(), p.tp.partition)
                .offset_at(p.next)
                .with_code(Code::CORRUPT_MESSAGE.0);
                let next = p.next;
                self.delay(lease, None);
                self.refused_in_answer(lease, next, true, error);
            }
            code => {
                let hint = answer
                    .current_leader
                    .filter(|(leader, epoch)| *leader >= 0 && *epoch > p.leader_epoch);
                if let Some((leader, epoch)) = hint {
                    self.actions.push_back(FetchAction::Hint {
                        topic: p.tp.topic.clone(),
                        partition: p.tp.partition,
                        leader: NodeId(leader),
                        epoch,
                        endpoints: context.endpoints.to_vec(),
                    });
                }
                if !from_leader {
                    p.distrust(now);
                }
                if code.wants_metadata() {
                    self.want_refresh();
                }
                self.delay(lease, Some(code));
            }
        }
    }

    /// Those of a request that its answer did not name. They wait for nothing now.
    fn unanswered(&mut self, token: Token, asked: &Asked) -> Vec<LeaseId> {
        let mut left = Vec::new();
        for lease in asked.entries.keys() {
            if let Some(p) = self.partitions.get_mut(lease)
                && p.flight == Some(token)
            {
                p.flight = None;
                left.push(*lease);
            }
        }
        left
    }

    /// A fetch as a whole has failed. Nobody's position is touched.
    fn fetch_failed(&mut self, node: NodeId, asked: &Asked, error: Error) {
        for lease in asked.entries.keys() {
            if let Some(p) = self.partitions.get_mut(lease)
                && p.preferred.is_some_and(|(replica, _)| replica == node)
            {
                p.distrust(self.now);
            }
        }
        if is_session_error(&error) {
            let state = self.nodes.entry(node).or_default();
            state.failures += 1;
            if state.failures <= SESSION_FAILURES_FREE {
                return; // the next request is a full one; nothing else is wrong
            }
            state.failures -= 1;
        }
        self.node_failed(node, error);
    }

    pub(super) fn node_failed(&mut self, node: NodeId, error: Error) {
        let state = self.nodes.entry(node).or_default();
        state.failures = state.failures.saturating_add(1);
        let attempts = state.failures;
        state.retry_at = self.now + backoff(&self.cfg, attempts, &mut self.jitter);
        if is_loud(attempts) {
            self.actions
                .push_back(FetchAction::Notice(FetchEvent::NodeTrouble {
                    node,
                    error,
                    attempts,
                }));
        }
        self.want_refresh();
    }

    pub(super) fn node_worked(&mut self, node: NodeId) {
        let state = self.nodes.entry(node).or_default();
        state.failures = 0;
    }

    fn session_failed(&mut self, node: NodeId, error: &Error) {
        self.stats.sessions_lost += 1;
        let state = self.nodes.entry(node).or_default();
        state.session.lost(Code(error.code().unwrap_or(0)));
    }

    /// A broker that answers long polls at once, with nothing, is not asked in a loop.
    fn pace_waiting(&mut self, node: NodeId, empty: bool, waited: Duration) {
        let half = self.cfg.max_wait / 2;
        let most = self.cfg.max_wait.max(self.cfg.retry_min);
        let state = self.nodes.entry(node).or_default();
        if !empty || (waited >= half && !half.is_zero()) {
            state.session.hasty = 0;
            return;
        }
        state.session.hasty = state.session.hasty.saturating_add(1);
        if state.session.hasty > HASTY_FREE {
            let doublings = (state.session.hasty - HASTY_FREE).min(HASTY_DOUBLINGS_MAX);
            let gap = HASTY_GAP.saturating_mul(1 << doublings).min(most);
            state.session.retry_at = self.now + gap;
        }
    }

    /// The partition rests for a while that grows with each time in a row.
    pub(super) fn delay(&mut self, lease: LeaseId, code: Option<Code>) {
        let Some(p) = self.partitions.get_mut(&lease) else {
            return;
        };
        p.failures = p.failures.saturating_add(1);
        p.retry_at = self.now + backoff(&self.cfg, p.failures, &mut self.jitter);
        p.catch_up();
        let loud = is_loud(p.failures)
            || (p.failures == 1 && code == Some(Code::TOPIC_AUTHORIZATION_FAILED));
        if let Some(code) = code.filter(|_| loud) {
            let event = FetchEvent::Trouble {
                lease,
                tp: p.tp.clone(),
                code,
                attempts: p.failures,
            };
            self.actions.push_back(FetchAction::Notice(event));
        }
    }

    pub(super) fn partition_worked(&mut self, lease: LeaseId) {
        if let Some(p) = self.partitions.get_mut(&lease) {
            p.failures = 0;
        }
    }
}

/// Adds up the whole batches in front. Ones below the position count, for the aborted filter must
/// see them.
fn walk(records: &Bytes, tp: &TopicPartition, position: i64, batch_max: usize) -> Walk {
    let mut walk = Walk {
        next: position,
        epoch: -1,
        ..Walk::default()
    };
    let refused = |e: RecordsError, next: i64| {
        let may_heal = e.may_heal();
        let error = e.into_error(tp.topic.clone(), tp.partition).offset_at(next);
        Some((next, may_heal, error))
    };
    for piece in split(records.clone()) {
        match piece {
            Ok(Piece::Batch(raw)) => {
                let size = raw.bytes().len();
                walk.batches += 1;
                if size > batch_max {
                    let error = too_large(tp, walk.next, size, batch_max);
                    walk.refused = Some((walk.next, false, error));
                    break;
                }
                walk.good_bytes += size;
                walk.largest_bytes = walk.largest_bytes.max(size);
                if raw.header().next_offset() > walk.next {
                    walk.next = raw.header().next_offset();
                    walk.epoch = raw.header().leader_epoch();
                }
            }
            Ok(Piece::Cut { needed, .. }) => walk.cut = Some(needed),
            Err(e) => walk.refused = refused(e, walk.next),
        }
    }
    walk
}

fn aborted(answer: &FetchResponsePartition) -> Vec<AbortedTransaction> {
    let entry = |(producer_id, first_offset): &(i64, i64)| AbortedTransaction {
        producer_id: *producer_id,
        first_offset: *first_offset,
    };
    answer.aborted.iter().map(entry).collect()
}

fn too_large(tp: &TopicPartition, offset: i64, bytes: usize, max: usize) -> Error {
    Error::new(
        ErrorKind::Peer,
        format!(
            "batch too large: it takes {bytes} bytes and at most {max} are allowed; raise \
             batch_bytes_max, or seek past it"
        ),
    )
    .at(tp.topic.clone(), tp.partition)
    .offset_at(offset)
}

pub(super) fn other_api(node: NodeId) -> Error {
    Error::new(ErrorKind::Peer, "the answer is to another question")
        .from_broker(node.0.to_string())
        .retriable()
}

fn is_session_error(error: &Error) -> bool {
    matches!(
        error.code().map(Code),
        Some(
            Code::FETCH_SESSION_ID_NOT_FOUND
                | Code::INVALID_FETCH_SESSION_EPOCH
                | Code::FETCH_SESSION_TOPIC_ID_ERROR
        )
    )
}

/// Long polls in a row that may leave a partition behind before it gets its own fetch.
const BEHIND_MAX: u32 = 1;
/// Session errors in a row that are answered at once, by a full request.
const SESSION_FAILURES_FREE: u32 = 2;
/// Long polls in a row that may come back at once and empty.
const HASTY_FREE: u32 = 2;
const HASTY_GAP: Duration = Duration::from_millis(10);
const HASTY_DOUBLINGS_MAX: u32 = 10;
