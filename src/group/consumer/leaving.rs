//! Out of the group, within a bound.

use super::super::action::{GroupAction, GroupEvent};
use super::beat::LEAVE_STATIC;
use super::{ConsumerMembership, Kind, Said, State};
use crate::error::Error;
use crate::time::Now;
use crate::wire::{Code, Response};

impl ConsumerMembership {
    pub(super) fn begin_leaving(&mut self, now: Now) {
        self.lose_leases();
        self.out = None;
        let nobody = self.epoch == 0 && self.joins == 0 && !self.maybe_in;
        // A dynamic member that stays just falls silent.
        let silent = !self.cfg.leaves() && self.cfg.instance_id.is_none();
        if nobody || silent || matches!(self.state, State::Idle) {
            return self.end();
        }
        let until = now + self.cfg.leave_timeout;
        self.send_leave(now, until);
    }

    fn send_leave(&mut self, now: Now, until: Now) {
        self.state = State::Leaving {
            until,
            retry_at: None,
        };
        let epoch = match self.cfg.leaves() {
            true => LEAVE,
            false => LEAVE_STATIC,
        };
        let request = self.blank(epoch);
        self.send(now, Kind::Leave, Said::default(), request, until.since(now));
    }

    pub(super) fn leave_answered(&mut self, now: Now, result: Result<Response, Error>) {
        let State::Leaving { until, .. } = self.state else {
            return;
        };
        let again = match result {
            Ok(Response::ConsumerGroupHeartbeat(answer)) => {
                let moved = matches!(
                    answer.code,
                    Code::COORDINATOR_LOAD_IN_PROGRESS
                        | Code::COORDINATOR_NOT_AVAILABLE
                        | Code::NOT_COORDINATOR
                );
                if moved {
                    self.actions.push_back(GroupAction::CoordinatorMoved);
                }
                moved || answer.code.is_retriable()
            }
            Ok(_) => false,
            Err(e) => {
                self.actions.push_back(GroupAction::CoordinatorMoved);
                e.is_retriable()
            }
        };
        if again {
            let at = now + self.pause(self.failures);
            self.failures = self.failures.saturating_add(1);
            self.state = State::Leaving {
                until,
                retry_at: Some(at),
            };
        } else {
            self.end();
        }
    }

    pub(super) fn leaving_timeout(&mut self, now: Now) {
        let State::Leaving { until, retry_at } = self.state else {
            return;
        };
        if until <= now {
            self.notice(GroupEvent::LeaveAbandoned);
            self.end();
        } else if retry_at.is_some_and(|at| at <= now) {
            self.send_leave(now, until);
        }
    }

    fn end(&mut self) {
        self.out = None;
        self.epoch = 0;
        self.state = State::Left;
        self.actions.push_back(GroupAction::Left);
    }
}

/// The epoch by which a member leaves.
const LEAVE: i32 = -1;
