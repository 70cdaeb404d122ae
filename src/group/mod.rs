//! Membership of a consumer group: who we are, which partitions are ours, and for how long.
//!
//! There are two protocols, and a machine for each: [`Membership`] for the classic one, where a
//! member shares the partitions out, and [`ConsumerMembership`] for the one where the coordinator
//! does (KIP-848). [`Member`] is either. A machine says what to send to the coordinator, takes the answers, and
//! turns them into partitions that are granted, to be given back, or lost. It finds no
//! coordinator, opens no connection, commits nothing and knows no record.
//!
//! Invariants:
//!
//! 1. At most one JoinGroup or SyncGroup, one Heartbeat and one LeaveGroup are out, and an answer
//!    counts only for the request that is still wanted.
//! 2. A partition is ours from `Granted` to `released` (after `Revoke`) or to `Lost`; what we tell
//!    the group that we own is exactly that, under the generation that last gave us an assignment.
//! 3. Heartbeats wait for nothing: not for a drain, not for a join.
//! 4. The wish to join outlives every failure, and every repeated try is paced.
//! 5. Past [`Membership::session_until`] nothing is ours: the coordinator may have expelled us.
//! 6. The leader assigns from one view of the cluster and joins again when that view has changed.
//!
//! KIP-62 (heartbeats apart from joins), KIP-394 (member ids), KIP-429 (cooperative), KIP-792
//! (generation of the owned list), KIP-800 (reasons), KIP-814 (a leader that must not assign).

mod action;
pub mod assign;
mod config;
mod consumer;
mod leases;
mod member;
mod membership;
mod note;
mod pattern;
mod protocol;
mod reserve;

pub use action::{GroupAction, GroupEvent, GroupLink, MemberRef, Phase, Unreadable};
pub use assign::{AssignMember, Assignor, CustomAssignor, Shares};
pub use config::{AssignorKind, GroupConfig, GroupProtocol, OnClose};
pub use consumer::ConsumerMembership;
pub use member::Member;
pub use membership::Membership;
pub use pattern::TopicPattern;
pub use protocol::{
    Assignment, PROTOCOL_TYPE, Subscription, Unread, decode_assignment, decode_subscription,
    encode_assignment, encode_subscription,
};
#[cfg(fuzzing)]
pub(crate) use tests::fuzz;

#[cfg(any(test, fuzzing))]
#[cfg_attr(fuzzing, allow(dead_code, unused_imports))]
mod tests;
