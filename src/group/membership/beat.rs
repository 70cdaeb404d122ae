//! Heartbeats, which wait for nothing.

use super::super::action::{GroupAction, GroupEvent, GroupLink};
use super::{Membership, State, moved};
use crate::error::Error;
use crate::time::Now;
use crate::wire::message::HeartbeatRequest;
use crate::wire::{Code, Request, Response};

impl Membership {
    /// Which generation heartbeats name; none while there is nothing to keep alive.
    pub(super) fn beat_generation(&self) -> Option<i32> {
        let current = self.current.as_ref().map(|c| c.generation);
        match &self.state {
            State::Assigning { round, .. } | State::Syncing { round, .. } => Some(round.generation),
            State::Stable | State::Draining => current,
            // The broker keeps a member alive whose join it holds; but does it hold it? While
            // partitions are ours we ask (answers: 0 or 27).
            State::Joining { .. } | State::Waiting { .. } if !self.leases.is_empty() => current,
            _ => None,
        }
    }

    pub(super) fn send_heartbeat(&mut self, now: Now) {
        let Some(generation) = self.beat_generation() else {
            return;
        };
        let request = Request::Heartbeat(HeartbeatRequest {
            group: self.cfg.group.clone(),
            generation,
            member_id: self.member_id.clone(),
            instance_id: self.cfg.instance_id.clone(),
        });
        let timeout = self.cfg.session_timeout / 3;
        let token = self.send(GroupLink::Group, request, timeout);
        self.beat.out = Some((token, now, generation));
    }

    pub(super) fn heartbeat_answered(
        &mut self,
        now: Now,
        sent: Now,
        generation: i32,
        result: Result<Response, Error>,
    ) {
        let code = match result {
            Ok(Response::Heartbeat(answer)) => answer.code,
            Ok(_) => return self.fail(Error::bug("Heartbeat got the answer to another request")),
            Err(e) if e.is_retriable() => Code::COORDINATOR_NOT_AVAILABLE,
            Err(e) => return self.fail(e),
        };
        match code {
            Code::NONE | Code::REBALANCE_IN_PROGRESS => {
                self.alive = self.alive.max(sent);
                if code.is_none() {
                    self.calm = self.calm.max(sent);
                }
                self.beat.failures = 0;
                self.beat.next = now.max(sent + self.cfg.heartbeat_interval);
                match (&self.state, code) {
                    (State::Stable, Code::NONE) => self.tries = 0,
                    (State::Stable, _) if self.beat_generation() == Some(generation) => {
                        self.rejoin(now, "the group rebalances");
                    }
                    _ => {}
                }
            }
            Code::ILLEGAL_GENERATION | Code::UNKNOWN_MEMBER_ID => {
                self.beat.next = now + self.cfg.heartbeat_interval;
                let joining = matches!(self.state, State::Joining { .. });
                if self.beat_generation() != Some(generation) {
                    // Of a generation that is over.
                } else if !joining {
                    self.expelled(now, code);
                } else if code == Code::UNKNOWN_MEMBER_ID {
                    // It does not hold our join, then: that will fail, or get lost.
                    self.notice(GroupEvent::Expelled { code });
                    self.lose(now, false);
                }
                // 22 while joining: the join has been answered, and that answer will tell.
            }
            code if moved(code) || code.is_retriable() => {
                if moved(code) {
                    self.actions.push_back(GroupAction::CoordinatorMoved);
                }
                self.beat.next = now + self.pause(self.beat.failures);
                self.beat.failures = self.beat.failures.saturating_add(1);
            }
            Code::FENCED_INSTANCE_ID => self.fenced(now, "the heartbeat to group"),
            code => self.fail(self.refusal(code, "the heartbeat to group")),
        }
    }
}
