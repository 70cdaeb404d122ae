//! Offsets and epoch ends: where to begin, whether a position is really gone, whether the log was
//! cut (KIP-320). Leaders alone are asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::answer::other_api;
use super::partition::{Ending, Lookup, State};
use super::{
    Fetch, FetchAction, FetchEvent, FetchLink, FetchResult, Flight, Loss, LossPolicy, Sent,
    StartOffset,
};
use crate::error::{Error, ErrorKind};
use crate::ids::{LeaseId, NodeId, Token, TopicPartition};
use crate::wire::message::{
    Code, EpochEndAnswer, EpochEndPartition, EpochEndRequest, Isolation, ListOffsetsAnswer,
    ListOffsetsPartition, ListOffsetsRequest,
};
use crate::wire::{Request, Response};
use std::time::Duration;

impl Fetch {
    pub(super) fn send_offsets(&mut self, node: NodeId, wanted: &[LeaseId]) {
        if wanted.is_empty() || self.nodes.get(&node).is_none_or(|n| n.offsets.is_some()) {
            return;
        }
        let token = self.token();
        let mut asked = BTreeMap::new();
        let mut topics: BTreeMap<Arc<str>, Vec<ListOffsetsPartition>> = BTreeMap::new();
        let mut isolation = None;
        for lease in wanted {
            let Some(p) = self.partitions.get_mut(lease) else {
                continue;
            };
            let State::Lookup(lookup) = p.state else {
                continue;
            };
            let (wants, timestamp) = question(lookup, self.cfg.isolation);
            // One request has one isolation; the others are asked next.
            if *isolation.get_or_insert(wants) != wants {
                continue;
            }
            p.flight = Some(token);
            asked.insert(p.tp.clone(), *lease);
            topics
                .entry(p.tp.topic.clone())
                .or_default()
                .push(ListOffsetsPartition {
                    partition: p.tp.partition,
                    current_leader_epoch: p.leader_epoch,
                    timestamp,
                });
        }
        let request = Request::ListOffsets(ListOffsetsRequest {
            isolation: isolation.unwrap_or_default(),
            topics: topics.into_iter().collect(),
        });
        if let Some(state) = self.nodes.get_mut(&node) {
            state.offsets = Some(token);
        }
        self.send_lookup(token, node, request, asked.len(), Sent::Offsets(asked));
    }

    pub(super) fn send_epoch_ends(&mut self, node: NodeId, wanted: &[LeaseId]) {
        if wanted.is_empty() || self.nodes.get(&node).is_none_or(|n| n.epoch_ends.is_some()) {
            return;
        }
        let token = self.token();
        let mut asked = BTreeMap::new();
        let mut topics: BTreeMap<Arc<str>, Vec<EpochEndPartition>> = BTreeMap::new();
        for lease in wanted {
            if let Some(p) = self.partitions.get_mut(lease) {
                p.flight = Some(token);
                asked.insert(p.tp.clone(), *lease);
                topics
                    .entry(p.tp.topic.clone())
                    .or_default()
                    .push(EpochEndPartition {
                        partition: p.tp.partition,
                        current_leader_epoch: p.leader_epoch,
                        epoch: p.epoch,
                    });
            }
        }
        let request = Request::EpochEnd(EpochEndRequest {
            topics: topics.into_iter().collect(),
        });
        if let Some(state) = self.nodes.get_mut(&node) {
            state.epoch_ends = Some(token);
        }
        self.send_lookup(token, node, request, asked.len(), Sent::EpochEnds(asked));
    }

    pub(super) fn offsets_answer(
        &mut self,
        token: Token,
        node: NodeId,
        asked: BTreeMap<TopicPartition, LeaseId>,
        result: FetchResult,
    ) {
        let result = result.and_then(|response| match response {
            Response::ListOffsets(body) => Ok(body),
            _ => Err(other_api(node)),
        });
        match result {
            Ok(body) => {
                self.node_worked(node);
                for (name, answers) in body.topics {
                    for answer in answers {
                        let tp = TopicPartition::new(name.clone(), answer.partition);
                        if let Some(lease) = self.awaited(token, &asked, &tp) {
                            self.offset_answer(lease, &answer);
                        }
                    }
                }
            }
            // No answer is not an answer: the question stands, and no policy runs.
            Err(error) => self.node_failed(node, error),
        }
        self.still_open(token, &asked);
    }

    pub(super) fn epoch_ends_answer(
        &mut self,
        token: Token,
        node: NodeId,
        asked: BTreeMap<TopicPartition, LeaseId>,
        result: FetchResult,
    ) {
        let result = result.and_then(|response| match response {
            Response::EpochEnd(body) => Ok(body),
            _ => Err(other_api(node)),
        });
        match result {
            Ok(body) => {
                self.node_worked(node);
                for (name, answers) in body.topics {
                    for answer in answers {
                        let tp = TopicPartition::new(name.clone(), answer.partition);
                        if let Some(lease) = self.awaited(token, &asked, &tp) {
                            self.epoch_end_answer(lease, answer);
                        }
                    }
                }
            }
            Err(error) if is_never_told(&error) => {
                for tp in asked.keys() {
                    if let Some(lease) = self.awaited(token, &asked, tp) {
                        self.not_validated(lease);
                    }
                }
            }
            Err(error) => self.node_failed(node, error),
        }
        self.still_open(token, &asked);
    }

    fn offset_answer(&mut self, lease: LeaseId, answer: &ListOffsetsAnswer) {
        if !answer.code.is_none() {
            if answer.code.wants_metadata() {
                self.want_refresh();
            }
            self.delay(lease, Some(answer.code));
            return;
        }
        let Some(p) = self.partitions.get_mut(&lease) else {
            return;
        };
        let State::Lookup(lookup) = p.state else {
            return;
        };
        if answer.offset < 0 {
            if let Lookup::Start(StartOffset::Timestamp(_)) = lookup {
                // No record is that young: behind the last one.
                p.state = State::Lookup(Lookup::Start(StartOffset::Latest));
            } else {
                self.delay(lease, Some(answer.code));
            }
            return;
        }
        let offset = answer.offset;
        match lookup {
            Lookup::Start(why) => {
                p.place(offset, answer.leader_epoch);
                p.failures = 0;
                self.actions
                    .push_back(FetchAction::Started { lease, offset, why });
            }
            Lookup::ConfirmLow if p.next < offset => {
                let lost = offset - p.next;
                let why = Loss::BelowStart {
                    log_start: offset,
                    lost,
                };
                match self.cfg.loss {
                    LossPolicy::Stop => self.lost(lease, why),
                    LossPolicy::Latest => p.state = State::Lookup(Lookup::ToEnd { why }),
                    LossPolicy::Nearest | LossPolicy::Earliest => self.reset(lease, offset, why),
                }
            }
            Lookup::ConfirmLow => {
                p.state = State::Lookup(Lookup::ConfirmHigh { log_start: offset });
            }
            Lookup::ConfirmHigh { log_start } if offset < p.next => {
                let why = Loss::AboveEnd { log_end: offset };
                match self.cfg.loss {
                    LossPolicy::Stop => self.lost(lease, why),
                    LossPolicy::Earliest => self.reset(lease, log_start, why),
                    LossPolicy::Nearest | LossPolicy::Latest => self.reset(lease, offset, why),
                }
            }
            Lookup::ConfirmHigh { .. } => {
                // The position is in the log: a leader that had just moved, or an epoch that the
                // broker no longer knows. It is not asked with that epoch again.
                p.state = State::Reading;
                p.epoch = -1;
                self.delay(lease, None);
            }
            Lookup::ToEnd { why } => self.reset(lease, offset, why),
            Lookup::Relocate { old } => {
                let new = p.topic_id;
                self.reset(lease, offset, Loss::Recreated { old, new });
            }
        }
    }

    fn epoch_end_answer(&mut self, lease: LeaseId, answer: EpochEndAnswer) {
        if cannot_tell(answer.code) {
            self.not_validated(lease);
            return;
        }
        if !answer.code.is_none() {
            if answer.code.wants_metadata() {
                self.want_refresh();
            }
            self.delay(lease, Some(answer.code));
            return;
        }
        let Some(p) = self.partitions.get_mut(&lease) else {
            return;
        };
        if p.state != State::Validate {
            return;
        }
        let end = answer.end;
        if end.end_offset < 0 || end.epoch < 0 {
            self.not_validated(lease);
        } else if end.end_offset < p.next {
            p.truncated(end.epoch, end.end_offset);
            self.settle_ending(lease);
        } else {
            p.state = State::Reading;
        }
    }

    /// Reading goes on, for the broker cannot say more.
    fn not_validated(&mut self, lease: LeaseId) {
        let Some(p) = self.partitions.get_mut(&lease) else {
            return;
        };
        if p.state != State::Validate {
            return;
        }
        p.state = State::Reading;
        p.epoch = -1;
        if !p.warned_not_validated {
            p.warned_not_validated = true;
            let event = FetchEvent::NotValidated {
                lease,
                offset: p.next,
            };
            self.actions.push_back(FetchAction::Notice(event));
        }
    }

    fn reset(&mut self, lease: LeaseId, to: i64, why: Loss) {
        if let Some(p) = self.partitions.get_mut(&lease) {
            let from = p.next;
            p.end(Ending::Reset { from, to, why });
            self.settle_ending(lease);
        }
    }

    /// Records are gone and the policy is to stop. A leader that has just moved may say so for
    /// some seconds (tiered storage), so it is asked again before the partition stops.
    fn lost(&mut self, lease: LeaseId, why: Loss) {
        let now = self.now;
        let Some(p) = self.partitions.get_mut(&lease) else {
            return;
        };
        let since = *p.lost_since.get_or_insert(now);
        if now.since(since) < LOSS_CONFIRMED_AFTER {
            p.state = State::Reading;
            self.delay(lease, None);
            return;
        }
        let message = match why {
            Loss::BelowStart { log_start, lost } => format!(
                "{lost} offsets are gone: the log now begins at {log_start}; seek to go on, or \
                 choose another loss policy"
            ),
            Loss::AboveEnd { log_end } => format!(
                "the log now ends at {log_end}, below the position; seek to go on, or choose \
                 another loss policy"
            ),
            Loss::Truncated { .. } | Loss::Recreated { .. } => "the log was cut".into(),
        };
        let error = Error::new(ErrorKind::Broker, message)
            .at(p.tp.topic.clone(), p.tp.partition)
            .offset_at(p.next)
            .with_code(Code::OFFSET_OUT_OF_RANGE.0);
        p.end(Ending::Stop(error));
        self.settle_ending(lease);
    }

    /// The lease that waits for this part of this answer; it waits no more.
    fn awaited(
        &mut self,
        token: Token,
        asked: &BTreeMap<TopicPartition, LeaseId>,
        tp: &TopicPartition,
    ) -> Option<LeaseId> {
        let waits = asked
            .get(tp)
            .and_then(|lease| self.partitions.get_mut(lease))
            .filter(|p| p.flight == Some(token));
        let Some(p) = waits else {
            self.stats.foreign += 1;
            return None;
        };
        p.flight = None;
        Some(p.lease)
    }

    /// Questions that the answer left out are asked again, after a while.
    fn still_open(&mut self, token: Token, asked: &BTreeMap<TopicPartition, LeaseId>) {
        for lease in asked.values() {
            if let Some(p) = self.partitions.get_mut(lease)
                && p.flight == Some(token)
            {
                p.flight = None;
                self.delay(*lease, None);
            }
        }
    }

    fn send_lookup(
        &mut self,
        token: Token,
        node: NodeId,
        request: Request,
        partitions: usize,
        what: Sent,
    ) {
        let flight = Flight {
            node,
            sent_at: self.now,
            what,
        };
        self.flights.insert(token, flight);
        self.actions.push_back(FetchAction::Send {
            token,
            node,
            link: FetchLink::Lookup,
            request,
            timeout: self.cfg.request_timeout,
            answer_bytes_max: lookup_answer_bytes_max(partitions),
        });
    }
}

/// The isolation and the timestamp to ask with.
fn question(lookup: Lookup, isolation: Isolation) -> (Isolation, i64) {
    match lookup {
        Lookup::Start(StartOffset::Earliest | StartOffset::Fail) => (isolation, EARLIEST),
        Lookup::Start(StartOffset::Latest) | Lookup::ToEnd { .. } => (isolation, LATEST),
        Lookup::Start(StartOffset::Timestamp(ms)) => (isolation, ms.max(0)),
        Lookup::ConfirmLow | Lookup::Relocate { .. } => (isolation, EARLIEST),
        // Where the log ends, not where open transactions begin.
        Lookup::ConfirmHigh { .. } => (Isolation::ReadUncommitted, LATEST),
    }
}

/// Whether asking again cannot help: the broker lacks the API, or its answers cannot be read.
fn is_never_told(error: &Error) -> bool {
    error.code().is_some_and(|code| cannot_tell(Code(code)))
        || (error.kind() == ErrorKind::Peer && !error.is_retriable())
}

/// The broker lacks the API, or does not let us use it.
fn cannot_tell(code: Code) -> bool {
    matches!(
        code,
        Code::TOPIC_AUTHORIZATION_FAILED
            | Code::CLUSTER_AUTHORIZATION_FAILED
            | Code::UNSUPPORTED_VERSION
    )
}

fn lookup_answer_bytes_max(partitions: usize) -> u32 {
    let bytes = partitions
        .saturating_mul(LOOKUP_ANSWER_BYTES)
        .saturating_add(LOOKUP_SLACK_BYTES);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

const EARLIEST: i64 = -2;
const LATEST: i64 = -1;
/// How long answers must say that a position is gone before the partition stops.
const LOSS_CONFIRMED_AFTER: Duration = Duration::from_secs(3);
const LOOKUP_ANSWER_BYTES: usize = 512;
const LOOKUP_SLACK_BYTES: usize = 64 << 10;
