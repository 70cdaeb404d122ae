//! What comes of a request.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::action::{ProduceAction, ProduceNotice, Written};
use super::part::Item;
use super::{Flight, Identity, Produce};
use crate::error::{Error, ErrorKind};
use crate::ids::NodeId;
use crate::pace::worth_a_word_later;
use crate::time::Now;
use crate::wire::message::{ProduceAnswer, ProduceResponse};
use crate::wire::{Code, Response};

impl Produce {
    pub(super) fn identity_answer(&mut self, now: Now, result: Result<Response, Error>) {
        let error = match result {
            Ok(Response::InitProducerId(answer)) => match answer.code {
                Code::NONE if answer.producer_id >= 0 && answer.epoch >= 0 => {
                    self.identity_backoff.reset();
                    self.identity = Identity::Known {
                        id: answer.producer_id,
                        epoch: answer.epoch,
                    };
                    return;
                }
                Code::NONE => Error::new(ErrorKind::Peer, "a producer id below zero").retriable(),
                code => identity_error(code),
            },
            Ok(_) => Error::bug("an answer of another kind to InitProducerId"),
            Err(error) => error,
        };
        let not_before = now + self.identity_backoff.next(&mut self.rng);
        self.identity = Identity::None { not_before };
        if is_final(&error) {
            // Nobody may write anything: whoever waits hears of it. The next record asks again.
            return self.fail_all(now, &error);
        }
        let attempts = self.identity_backoff.attempts();
        if worth_a_word_later(attempts) {
            let notice = ProduceNotice::NoProducerId { attempts, error };
            self.actions.push_back(ProduceAction::Notice(notice));
        }
    }

    pub(super) fn produce_answer(
        &mut self,
        now: Now,
        flight: Flight,
        result: Result<Response, Error>,
    ) {
        let error = match result {
            Ok(Response::Produce(answer)) => return self.judge(now, flight, &answer),
            Ok(_) => Error::bug("an answer of another kind to a produce request"),
            Err(error) => error,
        };
        if error.kind() != ErrorKind::Misuse {
            // Whether it was written is not known; what is sent again is known again.
            self.actions.push_back(ProduceAction::RefreshMetadata);
        }
        for (topic, partition) in flight.batches {
            match error.kind() {
                ErrorKind::Misuse => self.refuse(now, &topic, partition, &error),
                _ => self.again(now, &topic, partition, error.clone()),
            }
        }
    }

    fn judge(&mut self, now: Now, flight: Flight, answer: &ProduceResponse) {
        let answers: BTreeMap<(&str, i32), &ProduceAnswer> = answer
            .topics
            .iter()
            .flat_map(|t| t.partitions.iter().map(|p| ((&*t.name, p.partition), p)))
            .collect();
        for (topic, partition) in flight.batches {
            match answers.get(&(&*topic, partition)) {
                Some(one) => {
                    if let Some((leader, epoch)) = one.current_leader
                        && leader >= 0
                    {
                        self.actions.push_back(ProduceAction::Hint {
                            topic: topic.clone(),
                            partition,
                            leader: (NodeId(leader), epoch),
                            endpoints: answer.endpoints.clone(),
                        });
                    }
                    self.judge_one(now, &topic, partition, one);
                }
                None => {
                    let words = "produce: the broker left the partition out of its answer";
                    let error = Error::new(ErrorKind::Peer, words).retriable();
                    self.again(now, &topic, partition, error);
                }
            }
        }
    }

    fn judge_one(&mut self, now: Now, topic: &Arc<str>, partition: i32, answer: &ProduceAnswer) {
        let code = answer.code;
        match code {
            Code::NONE => self.written(topic, partition, Some(answer.base_offset)),
            // It has it, and has forgotten where.
            Code::DUPLICATE_SEQUENCE_NUMBER => self.written(topic, partition, None),
            Code::OUT_OF_ORDER_SEQUENCE_NUMBER
            | Code::UNKNOWN_PRODUCER_ID
            | Code::INVALID_PRODUCER_EPOCH => self.forgotten(now, topic, partition, code),
            _ if is_one_records(code) => {
                let len = self.batch_len(topic, partition);
                if len > 1 {
                    self.halve(now, topic, partition);
                } else {
                    self.refuse(now, topic, partition, &error_of(answer, topic, partition));
                }
            }
            // -1 has no meaning of its own: what failed there may pass.
            _ if code.is_retriable() || code.0 < 0 => {
                if code.wants_metadata() {
                    self.actions.push_back(ProduceAction::RefreshMetadata);
                }
                self.again(now, topic, partition, error_of(answer, topic, partition));
            }
            _ => self.refuse(now, topic, partition, &error_of(answer, topic, partition)),
        }
    }

    fn batch_len(&self, topic: &str, partition: i32) -> usize {
        let part = self.topics.get(topic).and_then(|t| t.parts.get(&partition));
        let batch = part.and_then(|part| part.batch.as_ref());
        batch.map_or(0, |batch| batch.items.len())
    }

    fn written(&mut self, topic: &Arc<str>, partition: i32, base: Option<i64>) {
        let Some(part) = self.part(topic, partition) else {
            return;
        };
        let items = part.written();
        for (at, item) in (0i64..).zip(items) {
            let base = base.filter(|base| *base >= 0);
            let offset = base.map_or(-1, |base| base.saturating_add(at));
            self.done(&item, Ok(Written { partition, offset }));
        }
        self.settle_activity(topic, partition);
    }

    /// The leader's memory of us and ours differ: a gap that it will not bridge. The same records go
    /// out again from sequence 0 of the next epoch, which it must take.
    fn forgotten(&mut self, now: Now, topic: &Arc<str>, partition: i32, code: Code) {
        let current = match self.identity {
            Identity::Known { id, epoch } => Some((id, epoch)),
            _ => None,
        };
        let Some(part) = self.part(topic, partition) else {
            return;
        };
        let of_batch = part.batch.as_ref().map(|batch| batch.identity);
        part.thaw();
        if of_batch == current {
            if code == Code::INVALID_PRODUCER_EPOCH {
                // Another epoch than ours is the newest: the id is not ours alone.
                self.identity = Identity::None { not_before: now };
            } else {
                self.end_epoch(now);
            }
        }
        let (topic, error) = (topic.clone(), code.to_error("produce"));
        let notice = ProduceNotice::Forgotten {
            topic: topic.clone(),
            partition,
            code,
        };
        self.actions.push_back(ProduceAction::Notice(notice));
        self.pause(now, &topic, partition, error);
    }

    fn halve(&mut self, now: Now, topic: &Arc<str>, partition: i32) {
        let ambiguous = self.part(topic, partition).is_some_and(|part| part.halve());
        if ambiguous {
            self.end_epoch(now);
        }
    }

    /// The batch goes out again after a pause.
    fn again(&mut self, now: Now, topic: &Arc<str>, partition: i32, error: Error) {
        if let Some(part) = self.part(topic, partition)
            && let Some(batch) = &mut part.batch
        {
            batch.in_flight = false;
        }
        self.pause(now, topic, partition, error);
        // It may be one that is not there any more.
        self.misplaced(topic);
    }

    fn pause(&mut self, now: Now, topic: &Arc<str>, partition: i32, error: Error) {
        let parts = self.topics.get_mut(topic).map(|t| &mut t.parts);
        let Some(part) = parts.and_then(|parts| parts.get_mut(&partition)) else {
            return;
        };
        part.not_before = now + part.backoff.next(&mut self.rng);
        let attempts = part.backoff.attempts();
        part.last_error = Some(error.clone());
        if worth_a_word_later(attempts) {
            let topic = topic.clone();
            let notice = ProduceNotice::Retrying {
                topic,
                partition,
                attempts,
                error,
            };
            self.actions.push_back(ProduceAction::Notice(notice));
        }
    }

    /// No retry helps: the batch's records fail.
    fn refuse(&mut self, now: Now, topic: &Arc<str>, partition: i32, error: &Error) {
        let Some(part) = self.part(topic, partition) else {
            return;
        };
        // What follows is not refused for what this was.
        part.backoff.reset();
        let (items, ambiguous) = part.give_up();
        if ambiguous {
            // An earlier attempt may have been written: its numbers must not name other records.
            self.end_epoch(now);
        }
        self.fail(items, &error.clone().at(topic.clone(), partition));
        self.settle_activity(topic, partition);
    }

    fn fail(&mut self, items: Vec<Item>, error: &Error) {
        for item in items {
            self.done(&item, Err(error.clone()));
        }
    }

    fn part(&mut self, topic: &str, partition: i32) -> Option<&mut super::Part> {
        self.topics.get_mut(topic)?.parts.get_mut(&partition)
    }
}

/// Whether the batch was refused for some of its records.
fn is_one_records(code: Code) -> bool {
    matches!(
        code,
        Code::MESSAGE_TOO_LARGE
            | Code::RECORD_LIST_TOO_LARGE
            | Code::INVALID_TIMESTAMP
            | Code::INVALID_RECORD
    )
}

/// With the broker's own words, where it has any.
fn error_of(answer: &ProduceAnswer, topic: &Arc<str>, partition: i32) -> Error {
    let told = answer
        .record_errors
        .iter()
        .find_map(|(_, words)| words.as_ref());
    let error = answer.code.to_error("produce");
    let error = match told.or(answer.message.as_ref()) {
        Some(words) => {
            let all = format!("{} (the broker: {words})", error.message());
            error.with_message(all)
        }
        None => error,
    };
    error.at(topic.clone(), partition)
}

fn identity_error(code: Code) -> Error {
    let error = code.to_error("asking for a producer id");
    if code == Code::CLUSTER_AUTHORIZATION_FAILED {
        let words = "not authorized to write as an idempotent producer: grant Write on the topics \
                     (brokers before 2.8: IdempotentWrite on the cluster)";
        return error.with_message(words);
    }
    error
}

/// Whether trying again, unchanged, cannot help.
fn is_final(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Misuse | ErrorKind::Bug => true,
        ErrorKind::Broker => !error.is_retriable() && error.code().is_none_or(|c| c >= 0),
        _ => false,
    }
}
