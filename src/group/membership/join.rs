//! JoinGroup and SyncGroup: into a generation.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::super::action::{GroupAction, GroupEvent, GroupLink};
use super::super::config::AssignorKind;
use super::super::note::Note;
use super::super::protocol::{PROTOCOL_TYPE, decode_assignment, encode_subscription};
use super::{Current, Membership, Round, Said, State, moved, too_large};
use crate::error::Error;
use crate::ids::TopicPartition;
use crate::time::Now;
use crate::wire::message::{
    JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse,
};
use crate::wire::{Code, Request};

impl Membership {
    /// Joins as soon as nothing is left that must be given back first.
    pub(super) fn try_join(&mut self, now: Now) {
        let goes_first =
            |tp: &TopicPartition| !self.cooperative || !self.topics.contains(&tp.topic);
        if self.leases.draining().any(goes_first) {
            self.state = State::Draining;
            return;
        }
        let mut at = now;
        // The first tries go at once; what keeps failing without delay is held back.
        if self.tries >= PROMPT_TRIES
            && let Some(last) = self.last_join
        {
            at = now.max(last + self.pause(self.tries - PROMPT_TRIES));
        }
        match at > now {
            true => self.state = State::Waiting { until: at },
            false => self.send_join(now),
        }
    }

    /// Joins after a pause.
    pub(super) fn wait(&mut self, now: Now) {
        let until = now + self.pause(self.tries.saturating_sub(1));
        self.state = State::Waiting { until };
    }

    pub(super) fn send_join(&mut self, now: Now) {
        self.hand_over_until = None;
        self.said = Said {
            topics: self.topics.clone(),
            owned: self.leases.all().cloned().collect(),
        };
        self.wish = None;
        self.after_drain = false;
        let protocols = match self.protocols() {
            Ok(protocols) => protocols,
            Err(e) => return self.fail(e),
        };
        let request = Request::JoinGroup(JoinGroupRequest {
            group: self.cfg.group.clone(),
            session_timeout: self.cfg.session_timeout,
            rebalance_timeout: self.cfg.rebalance_timeout,
            member_id: self.member_id.clone(),
            instance_id: self.cfg.instance_id.clone(),
            protocol_type: Arc::from(PROTOCOL_TYPE),
            protocols,
            reason: self.reason.take().map(Arc::from),
        });
        self.tries = self.tries.saturating_add(1);
        self.last_join = Some(now);
        let token = self.send(GroupLink::Join, request, self.parked_timeout());
        self.state = State::Joining { token };
    }

    /// Our metadata, once for each assignor.
    pub(super) fn protocols(&mut self) -> Result<Vec<(Arc<str>, Bytes)>, Error> {
        let topics: Vec<_> = self.said.topics.iter().cloned().collect();
        let owned: Vec<_> = self.said.owned.iter().cloned().collect();
        let generation = self.current.as_ref().map_or(-1, |c| c.generation);
        let mut protocols = Vec::new();
        let mut size = 0;
        let note = self.note_of_join().encode().unwrap_or_default();
        if let Some(custom) = &self.cfg.custom {
            let user_data = custom.user_data(&self.said.topics)?;
            let bytes = encode_subscription(&topics, &owned, generation, user_data)?;
            size += bytes.len();
            protocols.push((custom.name()?, bytes));
        }
        for kind in &self.cfg.assignors {
            // Leaders that read versions 0 and 1 only look for the generation here.
            let mut user_data = Vec::new();
            if kind.cooperative() {
                user_data.extend_from_slice(&generation.to_be_bytes());
            }
            user_data.extend_from_slice(&note);
            let user_data = (!user_data.is_empty()).then(|| Bytes::from(user_data));
            let bytes = encode_subscription(&topics, &owned, generation, user_data)?;
            size += bytes.len();
            protocols.push((Arc::from(kind.name()), bytes));
        }
        match size > self.cfg.request_bytes_max {
            true => Err(too_large("JoinGroup", size, self.cfg.request_bytes_max)),
            false => Ok(protocols),
        }
    }

    pub(super) fn joined(&mut self, now: Now, answer: JoinGroupResponse) {
        match answer.code {
            Code::NONE => {}
            Code::UNKNOWN_MEMBER_ID => return self.expelled(now, answer.code),
            Code::MEMBER_ID_REQUIRED if !answer.member_id.is_empty() => {
                self.member_id = answer.member_id;
                return self.try_join(now);
            }
            Code::REBALANCE_IN_PROGRESS => return self.try_join(now),
            Code::FENCED_INSTANCE_ID => return self.fenced(now, "joining the group"),
            code => return self.refused(now, code, "joining the group"),
        }
        self.member_id = answer.member_id;
        // The coordinator began our session anew when it answered.
        self.alive = self.alive.max(now);
        self.beat.next = now + self.cfg.heartbeat_interval;
        let assignor = answer.protocol_name.unwrap_or_default();
        let kind = AssignorKind::from_name(&assignor);
        let kind = kind.filter(|kind| self.cfg.assignors.contains(kind));
        let custom = self.cfg.custom.as_ref().and_then(|c| c.name().ok());
        if kind.is_none() && custom.as_ref() != Some(&assignor) {
            self.notice(GroupEvent::ProtocolMismatch { named: assignor });
            return self.wait(now);
        }
        let leader = answer.leader == self.member_id;
        let round = Round {
            generation: answer.generation,
            assignor,
            kind,
            leader,
            view: None,
            hand_over: false,
        };
        if !leader {
            if std::mem::take(&mut self.watching) {
                self.actions
                    .push_back(GroupAction::Watch { topics: Vec::new() });
            }
            return self.send_sync(now, round, Vec::new());
        }
        self.lead(now, round, answer.members, answer.skip_assignment);
    }

    pub(super) fn send_sync(
        &mut self,
        now: Now,
        round: Round,
        assignments: Vec<(Arc<str>, Bytes)>,
    ) {
        let request = Request::SyncGroup(SyncGroupRequest {
            group: self.cfg.group.clone(),
            generation: round.generation,
            member_id: self.member_id.clone(),
            instance_id: self.cfg.instance_id.clone(),
            protocol_type: Arc::from(PROTOCOL_TYPE),
            protocol_name: round.assignor.clone(),
            assignments,
        });
        let token = self.send(GroupLink::Join, request, self.parked_timeout());
        self.state = State::Syncing {
            token,
            sent: now,
            round,
        };
    }

    pub(super) fn synced(
        &mut self,
        now: Now,
        sent: Now,
        mut round: Round,
        answer: SyncGroupResponse,
    ) {
        match answer.code {
            Code::NONE => {}
            Code::UNKNOWN_MEMBER_ID | Code::ILLEGAL_GENERATION => {
                return self.expelled(now, answer.code);
            }
            // Our leases stand under the generation before (KAFKA-13406).
            Code::REBALANCE_IN_PROGRESS => return self.try_join(now),
            Code::FENCED_INSTANCE_ID => return self.fenced(now, "taking the assignment of group"),
            code => return self.refused(now, code, "taking the assignment of group"),
        }
        self.alive = self.alive.max(sent);
        self.calm = self.calm.max(sent);
        if let Some(named) = answer.protocol_name.filter(|name| *name != round.assignor) {
            self.notice(GroupEvent::ProtocolMismatch { named });
            return self.wait(now);
        }
        let partitions = match decode_assignment(&answer.assignment) {
            Ok(assignment) => {
                let note = Note::decode(assignment.user_data.as_deref().unwrap_or_default());
                self.note_reservations(&note.reservations);
                round.hand_over |= round.leader && note.hand_over;
                for (topic, count) in round.view.iter_mut().flatten() {
                    *count = count.or(note.view.get(topic).copied());
                }
                assignment.partitions
            }
            Err(_) => {
                self.notice(GroupEvent::AssignmentUnread);
                Vec::new()
            }
        };
        let assigned = partitions
            .into_iter()
            .filter(|tp| tp.partition >= 0 && self.is_wanted(tp))
            .collect();
        self.complete(now, round, assigned);
    }

    /// A generation is complete: takes what it gives and gives what it takes.
    pub(super) fn complete(&mut self, now: Now, round: Round, assigned: BTreeSet<TopicPartition>) {
        self.state = State::Stable;
        let waits = self.cfg.rebalance_timeout;
        self.hand_over_until = round.hand_over.then(|| now + waits);
        (self.id_is_kept, self.took_back) = (true, false);
        self.current = Some(Current {
            generation: round.generation,
            view: round.view,
        });
        self.fill_view();
        self.actions.push_back(GroupAction::Joined {
            member_id: self.member_id.clone(),
            generation: round.generation,
            assignor: round.assignor,
            leader: round.leader,
        });
        let stray = assigned.iter().find(|tp| !self.topics.contains(&tp.topic));
        if let Some(tp) = stray {
            let topic = tp.topic.clone();
            self.notice(GroupEvent::NotSubscribed { topic });
            return self.rejoin(now, "the assignment has topics that are not subscribed");
        }
        self.after_drain = self.said.owned.iter().any(|tp| !assigned.contains(tp));
        self.assigned = assigned.clone();
        self.revoke(now, |tp| !assigned.contains(tp));
        let fresh: Vec<_> = assigned.into_iter().collect();
        self.grant(&fresh);
        if let Some(reason) = self.wish.take() {
            self.rejoin(now, reason);
        } else if self.said.topics != self.topics {
            self.rejoin(now, "the subscription changed");
        } else if self.view_is_old() {
            self.rejoin(now, "the cluster changed");
        } else {
            self.drained(now);
        }
    }

    /// A join or sync that no answer came for: the same member tries again (KIP-394).
    pub(super) fn unanswered(&mut self, now: Now, error: Error) {
        if !error.is_retriable() {
            return self.fail(error);
        }
        if self.member_id.is_empty() && self.cfg.instance_id.is_some() {
            if self.ghost_until <= now {
                self.ghosts = 0;
            }
            self.ghosts = self.ghosts.saturating_add(1);
            self.ghost_until = now + self.parked_timeout();
        }
        self.actions.push_back(GroupAction::CoordinatorMoved);
        self.wait(now);
    }

    /// A join or sync that was refused.
    pub(super) fn refused(&mut self, now: Now, code: Code, what: &str) {
        if moved(code) {
            self.actions.push_back(GroupAction::CoordinatorMoved);
            self.wait(now);
        } else if code.is_retriable() {
            self.wait(now);
        } else {
            self.fail(self.refusal(code, what));
        }
    }
}

/// So many joins in a row go without a pause: a member id asked for, partitions given up.
const PROMPT_TRIES: u32 = 3;
