//! What answers teach a [`Cluster`], and what a failed request leads to.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::coordinator::State;
use super::notice::ClusterNotice;
use super::peers::Peer;
use super::view::Merged;
use super::{Cluster, ClusterAction};
use crate::error::{Error, ErrorKind};
use crate::pace::{worth_a_word, worth_a_word_later};
use crate::time::Now;
use crate::wire::Response;
use crate::wire::message::{Code, FindCoordinatorResponse, MetadataResponse, TopicMetadata};

impl Cluster {
    pub(super) fn metadata_answer(
        &mut self,
        now: Now,
        peer: Peer,
        result: Result<Response, Error>,
    ) {
        let error = match result {
            Ok(Response::Metadata(answer)) => {
                self.peers.proven(peer);
                match answer.code {
                    // Brokers answer some refused requests with an empty cluster (42 in v10).
                    Code::NONE if !answer.brokers.is_empty() => {
                        return self.learn(now, peer, answer);
                    }
                    Code::REBOOTSTRAP_REQUIRED => return self.rebootstrap_on_demand(now),
                    code => Error::new(ErrorKind::Broker, "metadata without a list of brokers")
                        .with_code(code.0)
                        .retriable(),
                }
            }
            Ok(_) => Error::bug("an answer of another kind to a metadata request"),
            Err(error) => error,
        };
        self.metadata_failed(now, peer, error);
    }

    /// The next peer is asked at once; after a round of them there is a pause.
    fn metadata_failed(&mut self, now: Now, peer: Peer, error: Error) {
        self.peers.turn(peer);
        let m = &mut self.metadata;
        m.tried.insert(peer);
        m.due = now;
        let since = *m.failing_since.get_or_insert(now);
        let rounds = m.rounds.attempts();
        if m.tried.len() == 1 && worth_a_word(rounds) {
            self.notice(ClusterNotice::Unreachable { rounds, error });
        }
        if !self.peers.bootstrapping() && now.since(since) >= self.cfg.rebootstrap_after {
            self.metadata.failing_since = Some(now);
            self.rebootstrap();
        }
    }

    fn rebootstrap(&mut self) {
        self.peers.rebootstrap();
        self.metadata.tried.clear();
        if let Some(c) = &mut self.coordinator {
            c.tried.clear();
        }
        self.notice(ClusterNotice::Rebootstrap);
    }

    /// Code 129 is obeyed, but not without pause: a loop of it must not become a storm.
    fn rebootstrap_on_demand(&mut self, now: Now) {
        self.metadata.failing_since.get_or_insert(now);
        self.metadata.due = now + self.metadata.rebootstraps.next(&mut self.rng);
        self.rebootstrap();
    }

    fn learn(&mut self, now: Now, peer: Peer, answer: MetadataResponse) {
        self.metadata.round += 1;
        let round = self.metadata.round;
        let afresh = self.peers.bootstrapping();
        if !afresh {
            self.metadata.rebootstraps.reset();
        }
        self.note_cluster(answer.cluster_id);
        self.controller = answer.controller;
        let mut news = Merged::default();
        let mut seen = BTreeSet::new();
        for topic in &answer.topics {
            let Some(name) = topic.name.clone() else {
                continue;
            };
            let asked = self.wanted.contains(&name) || self.side.contains_key(&name);
            if !self.all && !asked {
                continue;
            }
            if self
                .learn_topic(now, topic, &name, round, &mut news)
                .is_err()
            {
                return;
            }
            seen.insert(name);
        }
        self.learn_absent(now, &seen, &mut news);
        let mut keep = if afresh {
            BTreeSet::new()
        } else {
            self.view.leaders_beside(round)
        };
        keep.extend(self.coordinator().filter(|_| !afresh));
        let moved = self.peers.replace(&answer.brokers, &keep);
        self.relocated(moved);
        self.coordinator_must_be_known(now);
        let resolved = self.resolve();
        if news.stale {
            self.peers.turn(peer);
        }
        if news.changed || resolved {
            self.actions.push_back(ClusterAction::Changed);
            self.metadata.pace.reset();
        }
        self.after_answer(now);
    }

    /// Plans the next request.
    fn after_answer(&mut self, now: Now) {
        let early =
            self.view.unsettled(self.all) || self.lacks_expected(now) || self.metadata.again;
        let m = &mut self.metadata;
        m.tried.clear();
        m.rounds.reset();
        m.failing_since = None;
        m.pace_until = now + m.pace.next(&mut self.rng);
        m.due = if self.wanted.is_empty() && self.side.is_empty() && !self.all {
            Now::NEVER
        } else if m.wants_more {
            now
        } else if early {
            m.pace_until
        } else {
            // Up to a tenth early, so that many clients do not ask in step.
            let age = self.cfg.metadata_max_age;
            now + (age - age.mul_f64(self.rng.below(100) as f64 / 1000.0))
        };
    }

    /// `Err`: the answer is fatal, and said so.
    fn learn_topic(
        &mut self,
        now: Now,
        answer: &TopicMetadata,
        name: &Arc<str>,
        round: u64,
        news: &mut Merged,
    ) -> Result<(), ()> {
        self.note_refusal(name, answer.code, news);
        match answer.code {
            Code::NONE => {
                if !self.view.want(name) {
                    self.notice(ClusterNotice::TooManyTopics {
                        topic: name.clone(),
                    });
                    return Ok(());
                }
                let merged = self.view.merge(now, answer, round);
                news.changed |= merged.changed;
                news.stale |= merged.stale;
                if let Some((old, new)) = merged.recreated {
                    // Should this broker lag, the next answer will contradict it soon.
                    self.metadata.again = true;
                    let topic = name.clone();
                    self.actions
                        .push_back(ClusterAction::TopicRecreated { topic, old, new });
                }
            }
            Code::UNKNOWN_TOPIC_OR_PARTITION => self.learn_unknown(now, name, news),
            code @ (Code::INVALID_TOPIC | Code::TOPIC_AUTHORIZATION_FAILED)
                if self.wanted.contains(name) =>
            {
                self.fatal(topic_error(name, code));
                return Err(());
            }
            _ => news.changed |= self.view.note_error(name, answer.code),
        }
        Ok(())
    }

    /// What an answer says of a topic that is written to.
    fn note_refusal(&mut self, name: &str, code: Code, news: &mut Merged) {
        if let Some(known) = self.side.get_mut(name) {
            let refusal = Some(code).filter(|code| !code.is_none());
            news.changed |= *known != refusal;
            *known = refusal;
        }
    }

    fn learn_unknown(&mut self, now: Now, name: &Arc<str>, news: &mut Merged) {
        self.note_refusal(name, Code::UNKNOWN_TOPIC_OR_PARTITION, news);
        let merged = self.view.note_unknown(now, name);
        news.changed |= merged.changed;
        if merged.gone {
            let topic = name.clone();
            self.actions.push_back(ClusterAction::TopicGone { topic });
            return;
        }
        let answers = self.view.unknown_answers(name);
        // Auto-creation takes an answer or two.
        if worth_a_word_later(answers) {
            let topic = name.clone();
            self.notice(ClusterNotice::TopicUnknown { topic, answers });
        }
    }

    /// A topic that the answer should have and has not is one that this broker does not know.
    fn learn_absent(&mut self, now: Now, seen: &BTreeSet<Arc<str>>, news: &mut Merged) {
        if self.metadata.wants_more {
            return; // the request was made before they were wanted
        }
        let waited_for = |name: &&Arc<str>| {
            !self.all || self.view.topic(name).is_some() || self.side.contains_key(*name)
        };
        let absent: Vec<Arc<str>> = self
            .view
            .names()
            .filter(waited_for)
            .filter(|name| !seen.contains(*name))
            .cloned()
            .collect();
        for name in absent {
            self.learn_unknown(now, &name, news);
        }
    }

    fn note_cluster(&mut self, id: Option<Arc<str>>) {
        let Some(new) = id else { return };
        match &self.cluster_id {
            Some(old) if *old != new => {
                let old = old.clone();
                self.notice(ClusterNotice::OtherCluster {
                    old,
                    new: new.clone(),
                });
            }
            _ => {}
        }
        self.cluster_id = Some(new);
    }

    pub(super) fn coordinator_answer(
        &mut self,
        now: Now,
        peer: Peer,
        result: Result<Response, Error>,
    ) {
        let answer = match result {
            Ok(Response::FindCoordinator(answer)) => {
                self.peers.proven(peer);
                answer
            }
            Ok(_) | Err(_) => {
                self.peers.turn(peer);
                if let Some(c) = &mut self.coordinator {
                    c.tried.insert(peer);
                    c.state = State::Unknown { due: now };
                }
                return;
            }
        };
        self.learn_coordinator(now, answer);
    }

    fn learn_coordinator(&mut self, now: Now, answer: FindCoordinatorResponse) {
        let Some(c) = &mut self.coordinator else {
            return;
        };
        let code = answer.code;
        if let (Code::NONE, Some(endpoint)) = (code, answer.coordinator) {
            let node = endpoint.node;
            let moved = self.peers.merge(&[endpoint]);
            if self.peers.knows(node) {
                c.tried.clear();
                c.state = State::Known { node, since: now };
                self.relocated(moved);
                if self.resolve() {
                    self.actions.push_back(ClusterAction::Changed);
                }
                self.actions.push_back(ClusterAction::Coordinator(node));
                return;
            }
        }
        if let Code::INVALID_GROUP_ID | Code::GROUP_AUTHORIZATION_FAILED = code {
            let error = group_error(&c.group, code);
            self.fatal(error);
            return;
        }
        let attempts = c.again(now, &mut self.rng);
        // A new cluster makes its internal topic first; that is no news.
        if worth_a_word_later(attempts) {
            self.notice(ClusterNotice::NoCoordinator { attempts, code });
        }
    }

    /// After a new bootstrap the old coordinator may have no address any more.
    fn coordinator_must_be_known(&mut self, now: Now) {
        if let Some(node) = self.coordinator()
            && !self.peers.knows(node)
            && let Some(c) = &mut self.coordinator
        {
            c.failed(now, &mut self.rng);
        }
    }
}

fn topic_error(name: &Arc<str>, code: Code) -> Error {
    if code == Code::INVALID_TOPIC {
        return Error::misuse(format!(
            "`{name}` is no legal topic name: up to 249 letters, digits, `.`, `_` and `-`"
        ))
        .with_code(code.0);
    }
    Error::new(
        ErrorKind::Broker,
        format!("not authorized for topic `{name}`: its ACLs must allow Describe and Read"),
    )
    .with_code(code.0)
}

fn group_error(group: &Arc<str>, code: Code) -> Error {
    if code == Code::INVALID_GROUP_ID {
        return Error::misuse(format!(
            "`{group}` is no legal group id: name one that is not empty"
        ))
        .with_code(code.0);
    }
    Error::new(
        ErrorKind::Broker,
        format!("not authorized for group `{group}`: its ACLs must allow Read"),
    )
    .with_code(code.0)
}
