//! What a subscription writes: dead letters, and the records of the public producer. Both go through
//! one [`Produce`]; here its actions are moved.

use super::deadletters::Letters;
use super::links::Purpose;
use super::moves::Owner;
use super::{Action, Engine, Phase};
use crate::cluster::Peer;
use crate::error::{Error, ErrorKind};
use crate::ids::{CommandId, NodeId, Token};
use crate::produce::{Outgoing, Produce, ProduceAction, ProduceNotice, Ticket, TopicView, Written};
use crate::time::Now;
use crate::wire::Request;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The machine that writes, and for whom it does.
pub(super) struct Writer {
    pub produce: Produce,
    pub letters: Option<Letters>,
    /// Records of the public producer.
    sends: BTreeMap<Ticket, CommandId>,
    /// The topics that metadata was last asked for.
    topics: Vec<Arc<str>>,
    /// Counts requests that any broker may answer.
    turn: usize,
}

impl Writer {
    pub(super) fn new(produce: Produce, letters: Option<Letters>) -> Self {
        Writer {
            produce,
            letters,
            sends: BTreeMap::new(),
            topics: Vec::new(),
            turn: 0,
        }
    }
}

impl Engine {
    /// Writes a record; [`Action::Sent`] answers, once. Whoever calls bounds what waits.
    pub fn handle_record(&mut self, now: Now, id: CommandId, record: Outgoing) {
        let running = matches!(self.phase, Phase::New | Phase::Running);
        let result = match &mut self.writer {
            Some(writer) if running => writer.produce.push(now, record).map_err(|_| {
                Error::misuse(
                    "too many records, or topics, wait to be written; wait for some first",
                )
                .retriable()
            }),
            Some(_) => Err(Error::misuse("the producer is closed")),
            None => Err(Error::misuse("this subscription writes nothing")),
        };
        match (result, &mut self.writer) {
            (Ok(ticket), Some(writer)) => {
                writer.sends.insert(ticket, id);
            }
            (Err(error), _) => {
                let result = Err(error);
                self.actions.push_back(Action::Sent { id, result });
            }
            (Ok(_), None) => {}
        }
        self.pump(now);
    }

    /// Whether everything that was to be written is, as far as closing waits for it: dead letters are
    /// waited for by their leases.
    pub(super) fn sends_are_done(&self) -> bool {
        self.writer.as_ref().is_none_or(|w| w.sends.is_empty())
    }

    /// What was not written by the end never will be: everyone who waits hears of it.
    pub(super) fn give_up_sends(&mut self) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let words = "the producer was closed before the record was known to be written";
        let error = Error::new(ErrorKind::Transport, words);
        writer.produce.fail_all(Now(0), &error);
        while let Some(action) = writer.produce.poll_action() {
            if let ProduceAction::Done { ticket, result } = action
                && let Some(id) = writer.sends.remove(&ticket)
            {
                self.actions.push_back(Action::Sent { id, result });
            }
        }
    }

    pub(super) fn pump_writer(&mut self, now: Now) -> bool {
        let mut moved = self.take_letters(now);
        self.want_written_topics(now);
        while let Some(action) = self.writer.as_mut().and_then(|w| w.produce.poll_action()) {
            moved = true;
            match action {
                ProduceAction::Send {
                    token,
                    node,
                    request,
                    timeout,
                } => self.send_produce(now, (token, node), request, timeout),
                ProduceAction::Done { ticket, result } => self.written(now, ticket, result),
                ProduceAction::RefreshMetadata => self.cluster.refresh(now),
                ProduceAction::Hint {
                    topic,
                    partition,
                    leader,
                    endpoints,
                } => self
                    .cluster
                    .hint_leader(&topic, partition, leader, &endpoints),
                ProduceAction::Notice(notice) => self.produce_notice(now, &notice),
            }
        }
        moved
    }

    fn written(&mut self, now: Now, ticket: Ticket, result: Result<Written, Error>) {
        let id = self.writer.as_mut().and_then(|w| w.sends.remove(&ticket));
        match id {
            Some(id) => self.actions.push_back(Action::Sent { id, result }),
            None => self.letter_written(now, ticket, result),
        }
    }

    fn send_produce(
        &mut self,
        now: Now,
        (token, node): (Token, Option<NodeId>),
        request: Request,
        timeout: Duration,
    ) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let node = node.or_else(|| {
            writer.turn = writer.turn.wrapping_add(1);
            let count = self.cluster.brokers().count();
            let at = writer.turn.checked_rem(count)?;
            self.cluster.brokers().nth(at).map(|b| b.node)
        });
        match node {
            Some(node) => {
                let global = self.route(Owner::Produce, token);
                let key = (Peer::Node(node), Purpose::Produce);
                self.links
                    .send(now, key, global, request, timeout, &self.cluster);
            }
            None => {
                let none = Error::new(ErrorKind::Transport, "no broker is known yet").retriable();
                writer.produce.handle_response(now, token, Err(none));
            }
        }
    }

    /// Metadata of what is written to is kept fresh; the first word of a new topic is taken at once.
    fn want_written_topics(&mut self, now: Now) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let mut topics: Vec<Arc<str>> = writer.produce.topics().cloned().collect();
        if let Some(letters) = &writer.letters {
            topics.extend(letters.topic().cloned());
        }
        topics.sort();
        topics.dedup();
        if topics != writer.topics {
            writer.topics.clone_from(&topics);
            self.cluster.want_side_topics(now, &topics);
        } else if !writer.produce.misses_a_topic() {
            return;
        }
        // It may be known already: of a topic that is read too, or from before its first record.
        self.tell_writer(now);
    }

    /// The writing machine hears who leads what.
    pub(super) fn tell_writer(&mut self, now: Now) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        for name in &writer.topics {
            let topic = self.cluster.topic(name);
            let refused = self.cluster.refusal(name).is_some();
            let view = topic.filter(|_| !refused).map(|topic| TopicView {
                id: topic.id,
                // Indices without a hole, as Kafka's are; what a broker left out has no leader.
                leaders: match topic.partitions.last_key_value() {
                    Some((last, _)) => (0..=*last)
                        .map(|index| topic.partitions.get(&index)?.leader)
                        .collect(),
                    None => Vec::new(),
                },
            });
            writer.produce.set_topic(now, name, view);
        }
        self.look_at_letter_topic(now);
    }

    fn produce_notice(&mut self, now: Now, notice: &ProduceNotice) {
        let words = notice.to_string();
        match notice {
            ProduceNotice::Retrying {
                topic,
                partition,
                error,
                ..
            } => {
                let error = error.clone().with_message(words);
                self.warn_once(now, error.at(topic.clone(), *partition));
            }
            ProduceNotice::NoProducerId { error, .. } => {
                self.warn_once(now, error.clone().with_message(words));
            }
            ProduceNotice::Forgotten {
                topic,
                partition,
                code,
            } => {
                let error = Error::new(ErrorKind::Broker, words).with_code(code.0);
                self.warn(error.at(topic.clone(), *partition));
            }
        }
    }
}
