//! A membership, whichever protocol it speaks.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::action::{GroupAction, MemberRef, Phase};
use super::config::{GroupConfig, GroupProtocol};
use super::consumer::ConsumerMembership;
use super::membership::Membership;
use crate::error::Error;
use crate::ids::{Token, TopicId, TopicPartition};
use crate::time::Now;
use crate::wire::Response;

/// One member of a group, by either protocol. What its methods do, the two say.
///
/// ```
/// use laneway::group::{GroupConfig, GroupProtocol, Member, Phase};
/// use laneway::time::Now;
/// let mut cfg = GroupConfig::new("billing");
/// cfg.protocol = GroupProtocol::Consumer;
/// let mut member = Member::new(cfg, Now(0));
/// member.set_subscription(Now(0), vec!["payments".into()]);
/// assert_eq!(member.state(), Phase::Joining);
/// ```
#[derive(Debug)]
pub enum Member {
    /// Members share partitions out among themselves.
    Classic(Box<Membership>),
    /// The coordinator assigns (KIP-848).
    Consumer(Box<ConsumerMembership>),
}

macro_rules! either {
    ($self:expr, $member:ident => $call:expr) => {
        match $self {
            Member::Classic($member) => $call,
            Member::Consumer($member) => $call,
        }
    };
}

impl Member {
    /// A member-to-be that does nothing until it has a subscription.
    #[must_use]
    pub fn new(cfg: GroupConfig, now: Now) -> Self {
        match cfg.protocol {
            GroupProtocol::Classic => Member::Classic(Box::new(Membership::new(cfg, now))),
            GroupProtocol::Consumer => {
                Member::Consumer(Box::new(ConsumerMembership::new(cfg, now)))
            }
        }
    }

    /// The topics wanted from now on.
    pub fn set_subscription(&mut self, now: Now, topics: Vec<Arc<str>>) {
        either!(self, m => m.set_subscription(now, topics));
    }

    /// Metadata has changed: partition counts for one protocol, names of ids for the other.
    pub fn set_view(
        &mut self,
        now: Now,
        counts: impl FnOnce() -> BTreeMap<Arc<str>, i32>,
        name_of: impl Fn(TopicId) -> Option<Arc<str>>,
    ) {
        match self {
            Member::Classic(m) => m.set_partitions(now, counts()),
            Member::Consumer(m) => m.set_names(now, name_of),
        }
    }

    /// The answer to a [`GroupAction::Send`], or a retriable error where none came.
    pub fn handle_response(&mut self, now: Now, token: Token, result: Result<Response, Error>) {
        either!(self, m => m.handle_response(now, token, result));
    }

    /// These were revoked and are given back.
    pub fn released(&mut self, now: Now, partitions: &[TopicPartition]) {
        either!(self, m => m.released(now, partitions));
    }

    /// Gives reserved partitions back to the sharing; false where none of them was reserved.
    pub fn release_reserved(&mut self, now: Now, partitions: &[TopicPartition]) -> bool {
        match self {
            Member::Classic(m) => m.release_reserved(now, partitions),
            Member::Consumer(_) => false,
        }
    }

    /// Leaves the group, as the settings say.
    pub fn leave(&mut self, now: Now) {
        either!(self, m => m.leave(now));
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Now) {
        either!(self, m => m.handle_timeout(now));
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Now> {
        either!(self, m => m.next_deadline())
    }

    /// What to do next, oldest first.
    pub fn poll_action(&mut self) -> Option<GroupAction> {
        either!(self, m => m.poll_action())
    }

    /// Whom commits name.
    #[must_use]
    pub fn member(&self) -> Option<MemberRef> {
        either!(self, m => m.member())
    }

    /// Until when, by our own clock, the coordinator surely still counts us in.
    #[must_use]
    pub fn session_until(&self) -> Option<Now> {
        either!(self, m => m.session_until())
    }

    /// What is ours, in order: also what drains.
    pub fn owned(&self) -> Vec<&TopicPartition> {
        either!(self, m => m.owned().collect())
    }

    /// Where the membership stands.
    #[must_use]
    pub fn state(&self) -> Phase {
        either!(self, m => m.state())
    }
}
