//! Reading what the group committed before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::answer::{Key, omitted};
use super::{Commit, CommitAction, CommitNotice, Committed, PARTITIONS_MAX};
use crate::error::{Error, ErrorKind};
use crate::ids::{LeaseId, TopicId};
use crate::pace::{worth_a_word, worth_a_word_later};
use crate::time::Now;
use crate::wire::message::{OffsetFetchPartition, OffsetFetchRequest, OffsetFetchResponse};
use crate::wire::{Code, Request, Response};

impl Commit {
    pub(super) fn drive_load(&mut self, now: Now) {
        if !self.may_load() || now < self.load_pause_until {
            return;
        }
        let asked: Vec<LeaseId> = self
            .loads()
            .filter(|(_, not_before)| *not_before <= now)
            .map(|(lease, _)| lease)
            .take(PARTITIONS_MAX)
            .collect();
        if asked.is_empty() {
            return;
        }
        let mut topics: BTreeMap<(Arc<str>, TopicId), Vec<i32>> = BTreeMap::new();
        for entry in asked.iter().filter_map(|lease| self.leases.get(lease)) {
            let topic = (entry.partition.topic.clone(), entry.topic_id);
            topics
                .entry(topic)
                .or_default()
                .push(entry.partition.partition);
        }
        let token = self.token();
        let request = Request::OffsetFetch(OffsetFetchRequest {
            group: self.cfg.group.clone(),
            topics: topics
                .into_iter()
                .map(|((name, id), p)| (name, id, p))
                .collect(),
            member: self
                .member
                .as_ref()
                .filter(|_| self.cfg.member_epochs)
                .map(|m| (m.member_id.clone(), m.generation)),
            require_stable: self.cfg.require_stable,
        });
        let timeout = self.cfg.request_timeout;
        self.actions.push_back(CommitAction::Send {
            token,
            request,
            timeout,
        });
        self.load_in_flight = Some((token, asked));
    }

    pub(super) fn load_wake(&self, now: Now) -> Option<Now> {
        if !self.may_load() {
            return None;
        }
        let next = self.loads().map(|(_, not_before)| not_before).min()?;
        Some(next.max(self.load_pause_until).max(now))
    }

    fn may_load(&self) -> bool {
        self.load_in_flight.is_none() && self.coordinator && !self.resting
    }

    /// Leases that wait for their committed offset, but for those whose partition is in the
    /// commit that is in flight: the answer would be older than that commit.
    fn loads(&self) -> impl Iterator<Item = (LeaseId, Now)> {
        let flight = self.in_flight.iter().flat_map(|f| &f.sent);
        let busy: BTreeSet<_> = flight.map(|s| &s.partition).collect();
        self.leases
            .iter()
            .filter(move |(_, l)| l.loading && !busy.contains(&l.partition))
            .map(|(lease, l)| (*lease, l.not_before))
    }

    pub(super) fn load_answer(
        &mut self,
        now: Now,
        asked: &[LeaseId],
        result: Result<Response, Error>,
    ) {
        let error = match result {
            Ok(Response::OffsetFetch(answer)) if answer.code.is_none() => {
                return self.take_loads(now, asked, &answer);
            }
            Ok(Response::OffsetFetch(answer)) => match answer.code {
                code @ (Code::GROUP_AUTHORIZATION_FAILED | Code::INVALID_GROUP_ID) => {
                    return self.fatal(self.group_error(code));
                }
                code => {
                    if code.wants_coordinator() {
                        self.actions.push_back(CommitAction::CoordinatorMoved);
                    }
                    code.to_error("reading committed offsets")
                }
            },
            Ok(_) => Error::bug("an answer of another kind to an offset fetch"),
            Err(error) => {
                self.actions.push_back(CommitAction::CoordinatorMoved);
                error
            }
        };
        if let ErrorKind::Misuse | ErrorKind::Bug = error.kind() {
            return self.fatal(error);
        }
        self.load_pause_until = now + self.load_backoff.next(&mut self.rng);
        let attempts = self.load_backoff.attempts();
        let lease = asked.iter().find_map(|lease| self.leases.get(lease));
        if let (true, Some(entry)) = (attempts > 1 && worth_a_word(attempts / 2), lease) {
            let partition = entry.partition.clone();
            let notice = CommitNotice::LoadRetrying {
                partition,
                attempts,
                error,
            };
            self.actions.push_back(CommitAction::Notice(notice));
        }
    }

    fn take_loads(&mut self, now: Now, asked: &[LeaseId], answer: &OffsetFetchResponse) {
        self.load_backoff.reset();
        let mut found: BTreeMap<(Key<'_>, i32), &OffsetFetchPartition> = BTreeMap::new();
        for topic in &answer.topics {
            let key = Key::new(&topic.name, topic.id);
            for p in &topic.partitions {
                found.insert((key, p.partition), p);
            }
        }
        let mut moved = false;
        for lease in asked {
            let Some(entry) = self.leases.get(lease).filter(|l| l.loading) else {
                continue;
            };
            let partition = entry.partition.partition;
            let answer = found
                .get(&(Key::Name(&entry.partition.topic), partition))
                .or_else(|| found.get(&(Key::Id(entry.topic_id), partition)));
            moved |= answer.is_some_and(|p| p.code.wants_coordinator());
            self.take_load(now, *lease, answer.copied());
        }
        if moved {
            self.actions.push_back(CommitAction::CoordinatorMoved);
        }
    }

    fn take_load(&mut self, now: Now, lease: LeaseId, answer: Option<&OffsetFetchPartition>) {
        let Some(p) = answer else {
            return self.load_again(now, lease, omitted("reading committed offsets"));
        };
        match p.code {
            // Only this says that there is nothing; every other doubt is asked again.
            Code::NONE if p.offset >= -1 => self.loaded(now, lease, p),
            Code::NONE => {
                let what = format!("the broker holds the committed offset {}", p.offset);
                self.load_again(now, lease, Error::new(ErrorKind::Peer, what));
            }
            code @ Code::TOPIC_AUTHORIZATION_FAILED => {
                if let Some(entry) = self.leases.get_mut(&lease) {
                    entry.loading = false;
                    entry.refused = true;
                    let error = code
                        .to_error("reading committed offsets")
                        .at(entry.partition.topic.clone(), entry.partition.partition);
                    self.actions
                        .push_back(CommitAction::Failed { lease, error });
                }
            }
            code @ (Code::GROUP_AUTHORIZATION_FAILED | Code::INVALID_GROUP_ID) => {
                self.fatal(self.group_error(code));
            }
            code => self.load_again(now, lease, code.to_error("reading committed offsets")),
        }
    }

    fn loaded(&mut self, now: Now, lease: LeaseId, p: &OffsetFetchPartition) {
        let Some(entry) = self.leases.get_mut(&lease) else {
            return;
        };
        entry.loading = false;
        entry.backoff.reset();
        entry.not_before = now;
        let committed = (p.offset >= 0).then(|| Committed {
            offset: p.offset,
            leader_epoch: p.leader_epoch,
            metadata: p.metadata.clone().filter(|m| !m.is_empty()),
        });
        entry.committed = committed.clone();
        entry.committed_at = now;
        self.actions
            .push_back(CommitAction::Loaded { lease, committed });
    }

    fn load_again(&mut self, now: Now, lease: LeaseId, error: Error) {
        let Some(entry) = self.leases.get_mut(&lease) else {
            return;
        };
        entry.not_before = now + entry.backoff.next(&mut self.rng);
        let attempts = entry.backoff.attempts();
        // An open transaction or a coordinator that loads is over in a moment, mostly.
        if worth_a_word_later(attempts) {
            let partition = entry.partition.clone();
            let notice = CommitNotice::LoadRetrying {
                partition,
                attempts,
                error,
            };
            self.actions.push_back(CommitAction::Notice(notice));
        }
    }
}
