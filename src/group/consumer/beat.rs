//! Heartbeats and their answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::action::{GroupAction, GroupEvent, GroupLink};
use super::{ConsumerMembership, Kind, OLD_BROKER, Out, Said, State};
use crate::error::{Error, ErrorKind};
use crate::ids::TopicId;
use crate::time::Now;
use crate::wire::message::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, PartitionsById,
};
use crate::wire::{Code, Request, Response};

impl ConsumerMembership {
    /// Says that we live, and what is news; everything where the coordinator may not know it.
    pub(super) fn send_beat(&mut self, now: Now) {
        let said = self.saying();
        let full = self.epoch == 0 || self.acked.is_none();
        let acked = self.acked.as_ref();
        let news_of =
            |same: fn(&Said, &Said) -> bool| full || acked.is_none_or(|a| !same(a, &said));
        let by_name = self.cfg.topic_regex.is_none();
        let topics = news_of(|a, b| a.topics == b.topics) && by_name;
        let owned = news_of(|a, b| a.owned == b.owned);
        let request = ConsumerGroupHeartbeatRequest {
            rack: self.cfg.rack.clone().filter(|_| full),
            rebalance_timeout: full.then_some(self.cfg.rebalance_timeout),
            topics: topics.then(|| said.topics.iter().cloned().collect()),
            topic_regex: self.cfg.topic_regex.clone().filter(|_| full),
            assignor: self.cfg.server_assignor.clone().filter(|_| full),
            owned: owned.then(|| by_topic(&said.owned)),
            ..self.blank(self.epoch)
        };
        self.unheard.get_or_insert(now);
        if self.epoch == 0 {
            self.joins = self.joins.saturating_add(1);
        }
        self.send(now, Kind::Beat(self.epoch), said, request, self.patience());
    }

    /// A request that says who we are, and no more.
    pub(super) fn blank(&self, epoch: i32) -> ConsumerGroupHeartbeatRequest {
        ConsumerGroupHeartbeatRequest {
            group: self.cfg.group.clone(),
            member_id: self.member_id.clone(),
            member_epoch: epoch,
            instance_id: self.cfg.instance_id.clone(),
            ..ConsumerGroupHeartbeatRequest::default()
        }
    }

    pub(super) fn send(
        &mut self,
        now: Now,
        kind: Kind,
        said: Said,
        request: ConsumerGroupHeartbeatRequest,
        timeout: Duration,
    ) {
        let token = self.token();
        self.out = Some(Out {
            token,
            sent: now,
            kind,
            said,
        });
        self.actions.push_back(GroupAction::Send {
            token,
            link: GroupLink::Group,
            request: Request::ConsumerGroupHeartbeat(request),
            timeout,
        });
    }

    /// How long an answer may take.
    pub(super) fn patience(&self) -> Duration {
        self.cfg.session_timeout / 3
    }

    pub(super) fn beat_answered(
        &mut self,
        now: Now,
        epoch: i32,
        out: Out,
        result: Result<Response, Error>,
    ) {
        if !matches!(self.state, State::Member) {
            return;
        }
        match result {
            Ok(Response::ConsumerGroupHeartbeat(answer)) => self.judge(now, epoch, out, answer),
            Ok(_) => self.fail(Error::bug("a heartbeat got the answer to another request")),
            Err(e) if e.is_retriable() => {
                self.maybe_in |= epoch == 0;
                self.actions.push_back(GroupAction::CoordinatorMoved);
                self.again(now);
            }
            Err(e) if e.kind() == ErrorKind::Peer && epoch == 0 => {
                let words = format!("{}{OLD_BROKER}", e.message());
                self.fail(e.with_message(words));
            }
            Err(e) => self.fail(e),
        }
    }

    fn judge(&mut self, now: Now, epoch: i32, out: Out, answer: ConsumerGroupHeartbeatResponse) {
        match answer.code {
            Code::NONE => self.accepted(now, epoch, out, answer),
            Code::COORDINATOR_LOAD_IN_PROGRESS
            | Code::COORDINATOR_NOT_AVAILABLE
            | Code::NOT_COORDINATOR => {
                self.actions.push_back(GroupAction::CoordinatorMoved);
                self.again(now);
            }
            // The group has gone with all its members.
            Code::GROUP_ID_NOT_FOUND if epoch > 0 => self.fenced(now, answer.code),
            Code::FENCED_MEMBER_EPOCH | Code::UNKNOWN_MEMBER_ID => self.fenced(now, answer.code),
            Code::UNRELEASED_INSTANCE_ID => self.unreleased(now),
            code if code.is_retriable() => self.again(now),
            code => self.fail(self.refusal(code, answer.message.as_deref())),
        }
    }

    /// We are in, and told how far.
    fn accepted(&mut self, now: Now, epoch: i32, out: Out, answer: ConsumerGroupHeartbeatResponse) {
        let told = answer.member_epoch;
        let ours = answer.member_id.is_none_or(|id| id == self.member_id);
        // No coordinator says this; one that does is not believed (G37).
        if told <= 0 || told < epoch || !ours {
            self.notice(GroupEvent::EpochRefused { epoch: told });
            return self.again(now);
        }
        self.alive = self.alive.max(out.sent);
        // The coordinator may have asked in an answer that we never got.
        let since = self.unheard.take().unwrap_or(out.sent);
        self.revoking
            .retain(|part, _| out.said.owned.contains(part));
        self.acked = Some(out.said);
        self.failures = 0;
        self.joins = 0;
        self.maybe_in = true;
        let most = (self.cfg.session_timeout / 3).max(INTERVAL_MIN);
        self.interval = answer.interval.clamp(INTERVAL_MIN, most);
        self.next = now.max(out.sent + self.interval);
        if told != self.epoch {
            self.epoch = told;
            self.actions.push_back(GroupAction::Joined {
                member_id: self.member_id.clone(),
                generation: told,
                assignor: self.cfg.server_assignor.clone().unwrap_or_default(),
                leader: false,
            });
        }
        if let Some(assignment) = answer.assignment {
            self.target = flat(assignment);
            self.reconcile(now, since);
        } else if self.unnamed().next().is_some() {
            self.actions.push_back(GroupAction::Refresh);
        }
    }

    /// The next heartbeat comes after a pause, and says everything: whether the last one has been
    /// heard is not known.
    pub(super) fn again(&mut self, now: Now) {
        self.acked = None;
        self.pause_until = now + self.pause(self.failures);
        self.failures = self.failures.saturating_add(1);
    }

    /// The coordinator does not count us in, or not at this epoch: all is lost, and we come back
    /// under the same id.
    fn fenced(&mut self, now: Now, code: Code) {
        self.notice(GroupEvent::Expelled { code });
        self.lose_leases();
        self.epoch = 0;
        self.acked = None;
        self.maybe_in |= code == Code::FENCED_MEMBER_EPOCH;
        if self.joins >= PROMPT_JOINS {
            self.pause_until = now + self.pause(self.joins - PROMPT_JOINS);
        }
    }

    /// Our instance id is still somebody's. That may be us (apache/kafka#23542): the answer to our
    /// join got lost, or our epoch was refused, and the coordinator takes the same member with the
    /// same id for a stranger. So we give the place up, which only its owner can, and come again.
    fn unreleased(&mut self, now: Now) {
        self.acked = None;
        if self.maybe_in {
            let request = self.blank(LEAVE_STATIC);
            let patience = self.patience();
            self.send(now, Kind::Release, Said::default(), request, patience);
        } else {
            self.instance_taken(now);
        }
    }

    pub(super) fn release_answered(&mut self, now: Now, result: Result<Response, Error>) {
        let code = match result {
            Ok(Response::ConsumerGroupHeartbeat(answer)) => answer.code,
            _ => Code::COORDINATOR_NOT_AVAILABLE,
        };
        match code {
            Code::NONE => self.maybe_in = false, // and join at once
            Code::COORDINATOR_LOAD_IN_PROGRESS
            | Code::COORDINATOR_NOT_AVAILABLE
            | Code::NOT_COORDINATOR => {
                self.actions.push_back(GroupAction::CoordinatorMoved);
                self.again(now);
            }
            _ => {
                self.maybe_in = false;
                self.instance_taken(now);
            }
        }
    }

    /// Another process has it: one that died and whose session lasts yet, or a twin.
    fn instance_taken(&mut self, now: Now) {
        self.notice(GroupEvent::InstanceTaken);
        self.again(now);
    }
}

/// Each topic once, its partitions in order.
fn by_topic(owned: &BTreeSet<(TopicId, i32)>) -> PartitionsById {
    let mut topics: BTreeMap<TopicId, Vec<i32>> = BTreeMap::new();
    for (id, partition) in owned {
        topics.entry(*id).or_default().push(*partition);
    }
    topics.into_iter().collect()
}

fn flat(assignment: PartitionsById) -> BTreeSet<(TopicId, i32)> {
    let each = assignment
        .into_iter()
        .flat_map(|(id, partitions)| partitions.into_iter().map(move |p| (id, p)));
    each.filter(|(id, p)| *p >= 0 && !id.is_zero()).collect()
}

/// So many joins in a row go without a pause.
const PROMPT_JOINS: u32 = 3;

/// Heartbeats are no closer than that, whatever the coordinator says.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The epoch by which a static member leaves its place open.
pub(super) const LEAVE_STATIC: i32 = -2;
