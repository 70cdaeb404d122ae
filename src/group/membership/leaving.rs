//! LeaveGroup: out, within a bound.

use std::sync::Arc;

use super::super::action::{GroupAction, GroupLink};
use super::{Leave, Membership, State, moved};
use crate::error::Error;
use crate::ids::Token;
use crate::time::Now;
use crate::wire::message::LeaveGroupRequest;
use crate::wire::{Request, Response};

impl Membership {
    pub(super) fn send_leave(&mut self, now: Now, until: Now) {
        let request = Request::LeaveGroup(LeaveGroupRequest {
            group: self.cfg.group.clone(),
            member_id: self.member_id.clone(),
            instance_id: None,
            reason: Some(Arc::from("the consumer closes")),
        });
        let token = self.send(GroupLink::Group, request, until.since(now));
        let leave = Leave::Out(token);
        self.state = State::Leaving { until, leave };
    }

    pub(super) fn leave_answered(
        &mut self,
        now: Now,
        token: Token,
        result: Result<Response, Error>,
    ) {
        let State::Leaving { until, leave } = &self.state else {
            return;
        };
        let until = *until;
        match (leave, result) {
            (Leave::AfterJoin(out), result) if *out == token => match result {
                Ok(Response::JoinGroup(answer)) if !answer.member_id.is_empty() => {
                    self.member_id = answer.member_id;
                    self.send_leave(now, until);
                }
                _ => self.end(),
            },
            (Leave::Out(out), result) if *out == token => {
                let again = match result {
                    Ok(Response::LeaveGroup(answer)) => {
                        if moved(answer.code) {
                            self.actions.push_back(GroupAction::CoordinatorMoved);
                        }
                        moved(answer.code) || answer.code.is_retriable()
                    }
                    Ok(_) => false,
                    Err(e) => {
                        self.actions.push_back(GroupAction::CoordinatorMoved);
                        e.is_retriable()
                    }
                };
                if again {
                    let at = now + self.pause(self.beat.failures);
                    self.beat.failures = self.beat.failures.saturating_add(1);
                    let leave = Leave::RetryAt(at);
                    self.state = State::Leaving { until, leave };
                } else {
                    self.end();
                }
            }
            _ => {}
        }
    }

    pub(super) fn end(&mut self) {
        self.state = State::Left;
        self.actions.push_back(GroupAction::Left);
    }
}
