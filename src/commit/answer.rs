//! What comes of a commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::lease::Lease;
use super::{Commit, CommitAction, CommitNotice, Flight, MemberRef, Refused, Sent};
use crate::error::{Error, ErrorKind};
use crate::ids::TopicId;
use crate::pace::worth_a_word;
use crate::time::{Now, earliest};
use crate::wire::message::OffsetCommitResponse;
use crate::wire::{Code, Response};

/// What an answer says about the whole group, gathered from its partitions.
#[derive(Debug, Default)]
struct Verdict {
    /// Try again after a pause; and whether elsewhere.
    again: Option<Code>,
    moved: bool,
    /// The generation is not the group's.
    stale: Option<Code>,
    /// The group is between two generations.
    rebalance: bool,
    /// The member is not the group's.
    lost: Option<Code>,
    /// Nothing helps.
    fatal: Option<Code>,
}

impl Commit {
    pub(super) fn commit_answer(
        &mut self,
        now: Now,
        flight: Flight,
        result: Result<Response, Error>,
    ) {
        let error = match result {
            Ok(Response::OffsetCommit(answer)) => return self.judge(now, flight, &answer),
            Ok(_) => Error::bug("an answer of another kind to a commit"),
            Err(error) => error,
        };
        if let ErrorKind::Misuse | ErrorKind::Bug = error.kind() {
            return self.fatal(error);
        }
        self.actions.push_back(CommitAction::CoordinatorMoved);
        self.pause(now, error);
    }

    /// Each partition by itself, then what they say together.
    fn judge(&mut self, now: Now, flight: Flight, answer: &OffsetCommitResponse) {
        let codes = by_partition(answer);
        let mut verdict = Verdict::default();
        for item in flight.sent {
            let code = code_of(&codes, &item);
            self.judge_one(now, item, code, &mut verdict);
        }
        if let Some(code) = verdict.fatal {
            return self.fatal(self.group_error(code));
        }
        self.judge_membership(now, flight.member, &verdict);
        if verdict.moved {
            self.actions.push_back(CommitAction::CoordinatorMoved);
        }
        match verdict.again {
            Some(code) if !self.resting => self.pause(now, code.to_error("commit")),
            _ => self.backoff.reset(),
        }
        self.retry_due(now);
    }

    fn judge_one(&mut self, now: Now, item: Sent, code: Option<Code>, verdict: &mut Verdict) {
        match code {
            None => self.retry_one(now, &item, omitted("commit")),
            Some(Code::NONE) => self.acked(now, item),
            Some(code @ (Code::COORDINATOR_NOT_AVAILABLE | Code::NOT_COORDINATOR)) => {
                verdict.moved = true;
                verdict.again = Some(code);
            }
            Some(code @ (Code::COORDINATOR_LOAD_IN_PROGRESS | Code::REQUEST_TIMED_OUT)) => {
                verdict.again = Some(code);
            }
            Some(code @ (Code::ILLEGAL_GENERATION | Code::STALE_MEMBER_EPOCH)) => {
                verdict.stale = Some(code);
            }
            Some(Code::REBALANCE_IN_PROGRESS) => verdict.rebalance = true,
            Some(
                code @ (Code::UNKNOWN_MEMBER_ID
                | Code::FENCED_INSTANCE_ID
                | Code::FENCED_MEMBER_EPOCH),
            ) => verdict.lost = Some(code),
            Some(code @ (Code::GROUP_AUTHORIZATION_FAILED | Code::INVALID_GROUP_ID)) => {
                verdict.fatal = Some(code);
            }
            Some(Code::OFFSET_METADATA_TOO_LARGE | INVALID_COMMIT_OFFSET_SIZE)
                if item.progress.metadata.is_some() =>
            {
                self.metadata_refused(now, item);
            }
            Some(
                Code::UNKNOWN_TOPIC_OR_PARTITION
                | Code::UNKNOWN_TOPIC_ID
                | Code::INCONSISTENT_TOPIC_ID,
            ) => self.topic_unknown(now, &item),
            Some(code) if code.is_retriable() || code.0 < 0 => {
                self.retry_one(now, &item, code.to_error("commit"));
            }
            Some(code) => self.refuse_one(&item, code),
        }
    }

    fn judge_membership(&mut self, now: Now, member: Option<MemberRef>, verdict: &Verdict) {
        let Some(member) = member else {
            let refused = verdict.lost.or(verdict.stale);
            if let Some(code) = refused {
                self.fatal(self.manual_error(code));
            } else if verdict.rebalance {
                self.pause(now, Code::REBALANCE_IN_PROGRESS.to_error("commit"));
            }
            return;
        };
        // A refusal of what we are no longer says nothing about what we are.
        let ours = self.member.as_ref();
        if let Some(code) = verdict.lost {
            if ours.is_some_and(|m| m.member_id == member.member_id) {
                self.actions.push_back(CommitAction::Lost(code));
                let refused = match self.cfg.member_epochs {
                    true => Refused::Generation(member),
                    false => Refused::Member(member.member_id),
                };
                self.refused = Some((refused, now + REFUSAL_PATIENCE));
                self.abandon_flushes();
            }
        } else if let Some(code) = verdict.stale {
            if ours == Some(&member) {
                self.actions.push_back(CommitAction::Rejoin(code));
                let refused = Refused::Generation(member);
                self.refused = Some((refused, now + REFUSAL_PATIENCE));
            }
        } else if verdict.rebalance && ours == Some(&member) {
            if self.rebalance_until.is_none() {
                self.actions
                    .push_back(CommitAction::Rejoin(Code::REBALANCE_IN_PROGRESS));
            }
            self.rebalance_until = Some(now + REBALANCE_PATIENCE);
        }
    }

    fn acked(&mut self, now: Now, item: Sent) {
        let Some(entry) = self.leases.get_mut(&item.lease) else {
            return;
        };
        let (lease, offset) = (item.lease, item.progress.offset());
        let silent = entry.keeping_alive;
        entry.ack(now, item.version, item.progress);
        if !silent {
            self.actions
                .push_back(CommitAction::Committed { lease, offset });
        }
    }

    /// Metadata as long as this, or longer, stays at home from now on.
    fn metadata_refused(&mut self, now: Now, item: Sent) {
        let bytes = item.progress.metadata.as_ref().map_or(0, |m| m.len());
        let least = self.metadata_refused.map_or(bytes, |n| n.min(bytes));
        if self.metadata_refused != Some(least) {
            self.metadata_refused = Some(least);
            let partition = item.partition;
            let notice = CommitNotice::MetadataRefused { partition, bytes };
            self.actions.push_back(CommitAction::Notice(notice));
        }
        // Shorter each time, or without it, the broker soon cannot refuse for this reason again:
        // no pause is needed.
        let asks = self.cfg.asks;
        if let Some(entry) = self.leases.get_mut(&item.lease) {
            entry.not_before = now;
            entry.asks = asks;
        }
        self.due = Some(now);
    }

    fn topic_unknown(&mut self, now: Now, item: &Sent) {
        let gone_after = self.cfg.gone_after;
        let Some(entry) = self.leases.get_mut(&item.lease) else {
            return;
        };
        let since = *entry.unknown_since.get_or_insert(now);
        if now.since(since) < gone_after {
            entry.not_before = now + entry.backoff.next(&mut self.rng);
            return;
        }
        // It may come back; nobody waits for that.
        entry.not_before = now + GONE_RETRY;
        if !entry.gone {
            entry.gone = true;
            let partition = item.partition.clone();
            let notice = CommitNotice::TopicGone { partition };
            self.actions.push_back(CommitAction::Notice(notice));
        }
    }

    fn retry_one(&mut self, now: Now, item: &Sent, error: Error) {
        let Some(entry) = self.leases.get_mut(&item.lease) else {
            return;
        };
        entry.not_before = now + entry.backoff.next(&mut self.rng);
        let attempts = entry.backoff.attempts();
        if worth_a_word(attempts) {
            let error = error.at(item.partition.topic.clone(), item.partition.partition);
            let notice = CommitNotice::Retrying { attempts, error };
            self.actions.push_back(CommitAction::Notice(notice));
        }
    }

    fn refuse_one(&mut self, item: &Sent, code: Code) {
        let Some(entry) = self.leases.get_mut(&item.lease) else {
            return;
        };
        entry.refused = true;
        let error = code
            .to_error("commit")
            .at(item.partition.topic.clone(), item.partition.partition)
            .offset_at(item.progress.offset());
        let lease = item.lease;
        self.actions
            .push_back(CommitAction::Failed { lease, error });
    }

    /// Everything waits, then the newest progress goes out.
    fn pause(&mut self, now: Now, error: Error) {
        self.pause_until = now + self.backoff.next(&mut self.rng);
        self.due = Some(self.pause_until);
        let attempts = self.backoff.attempts();
        // Coordinators move and links break; the first time is no news.
        if attempts > 1 && worth_a_word(attempts / 2) {
            let notice = CommitNotice::Retrying { attempts, error };
            self.actions.push_back(CommitAction::Notice(notice));
        }
    }

    /// What was sent and is still not acknowledged goes out again as soon as it may.
    fn retry_due(&mut self, now: Now) {
        self.due = earliest(self.due, self.after_pauses(now));
        let blocked = self.refused.is_some() || self.rebalance_until.is_some();
        if blocked && self.leases.values().any(Lease::is_dirty) {
            self.due.get_or_insert(now);
        }
    }

    /// When the first lease with progress and a pause of its own may go on.
    pub(super) fn after_pauses(&self, now: Now) -> Option<Now> {
        let waits = |l: &&Lease| l.is_dirty() && !l.refused && l.not_before > now;
        self.leases
            .values()
            .filter(waits)
            .map(|l| l.not_before)
            .min()
    }

    fn abandon_flushes(&mut self) {
        for (lease, entry) in &mut self.leases {
            if entry.flush_until.take().is_some() {
                let (lease, complete) = (*lease, !entry.is_dirty());
                self.actions
                    .push_back(CommitAction::Flushed { lease, complete });
            }
        }
    }

    pub(super) fn fatal(&mut self, error: Error) {
        if !self.resting {
            self.resting = true;
            self.actions.push_back(CommitAction::Fatal(error));
        }
    }

    pub(super) fn group_error(&self, code: Code) -> Error {
        let group = &self.cfg.group;
        if code == Code::INVALID_GROUP_ID {
            return Error::misuse(format!(
                "`{group}` is no legal group id: name one that is not empty"
            ))
            .with_code(code.0);
        }
        code.to_error(&format!("the group `{group}`"))
    }

    fn manual_error(&self, code: Code) -> Error {
        Error::misuse(format!(
            "group `{}` has members of its own, so a manual reader cannot commit to it: give the \
             manual reader a group id that nobody joins, or join the group with Topics::named",
            self.cfg.group
        ))
        .with_code(code.0)
    }
}

/// A topic as an answer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key<'a> {
    Name(&'a str),
    Id(TopicId),
}

impl<'a> Key<'a> {
    pub(super) fn new(name: &'a Arc<str>, id: TopicId) -> Self {
        if name.is_empty() {
            Key::Id(id)
        } else {
            Key::Name(name)
        }
    }
}

fn by_partition(answer: &OffsetCommitResponse) -> BTreeMap<(Key<'_>, i32), Code> {
    let mut codes = BTreeMap::new();
    for topic in &answer.topics {
        let key = Key::new(&topic.name, topic.id);
        for (partition, code) in &topic.partitions {
            codes.insert((key, *partition), *code);
        }
    }
    codes
}

fn code_of(codes: &BTreeMap<(Key<'_>, i32), Code>, item: &Sent) -> Option<Code> {
    let partition = item.partition.partition;
    let by_name = codes.get(&(Key::Name(&item.partition.topic), partition));
    let code = by_name.or_else(|| codes.get(&(Key::Id(item.topic_id), partition)));
    code.copied()
}

/// The broker left a partition out of its answer.
pub(super) fn omitted(what: &str) -> Error {
    Error::new(
        ErrorKind::Peer,
        format!("{what}: the broker left the partition out of its answer"),
    )
    .retriable()
}

/// Beside OFFSET_METADATA_TOO_LARGE, what a broker says when a commit is too large to store.
const INVALID_COMMIT_OFFSET_SIZE: Code = Code(28);

/// A new generation should have begun by then; if none has, the commit is tried again.
const REBALANCE_PATIENCE: Duration = Duration::from_secs(5);

/// Heartbeats should have said by then that the membership is over; if they have not, it is tried
/// again.
pub(super) const REFUSAL_PATIENCE: Duration = Duration::from_secs(10);

/// How often the commit of a topic that is gone is tried.
const GONE_RETRY: Duration = Duration::from_secs(30);
