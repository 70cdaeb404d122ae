//! What a membership asks of its engine.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::ids::{Token, TopicPartition};
use crate::time::Now;
use crate::wire::Request;
use crate::wire::message::Code;

/// Which of the two connections to the coordinator carries a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupLink {
    /// JoinGroup and SyncGroup: the broker parks them, and whatever is behind them.
    Join,
    /// Heartbeats, leaving, and (not from here) commits and committed offsets.
    Group,
}

/// What the engine must do for a [`Membership`](super::Membership).
#[derive(Clone, Debug)]
pub enum GroupAction {
    /// Send to the coordinator. While none is known the request waits for it; it is answered
    /// exactly once through [`handle_response`](super::Membership::handle_response), with a
    /// retriable error when no coordinator, no link or no answer came within `timeout`.
    Send {
        /// Comes back with the answer.
        token: Token,
        /// Where it goes.
        link: GroupLink,
        /// What goes.
        request: Request,
        /// From now.
        timeout: Duration,
    },
    /// The broker that answered (or did not) is not our coordinator: look it up again. May come
    /// more than once for one move.
    CoordinatorMoved,
    /// As leader we assign topics that other members want: report their partition counts too in
    /// every later [`set_partitions`](super::Membership::set_partitions), 0 for a topic that does
    /// not exist. Replaces the list given before; empty when we lead no more.
    Watch {
        /// All topics of the group.
        topics: Vec<Arc<str>>,
    },
    /// Ours from now on, each under a new lease.
    Granted {
        /// In order.
        partitions: Vec<TopicPartition>,
    },
    /// To be given back: stop, drain until `deadline`, commit, then
    /// [`released`](super::Membership::released).
    Revoke {
        /// In order.
        partitions: Vec<TopicPartition>,
        /// When the drain ends whatever still runs.
        deadline: Now,
    },
    /// Ours no more, as of now: commit nothing. Includes revoked ones that had not been released.
    Lost {
        /// In order.
        partitions: Vec<TopicPartition>,
    },
    /// The coordinator speaks of topics by ids that metadata has not shown yet: ask for metadata.
    Refresh,
    /// A generation is complete (with the new protocol: our epoch is another): commits carry it from now on. Precedes what it revokes and grants.
    Joined {
        /// Who we are.
        member_id: Arc<str>,
        /// The generation.
        generation: i32,
        /// How partitions were shared out.
        assignor: Arc<str>,
        /// Whether we shared them out.
        leader: bool,
    },
    /// The membership is over; trying again would not help. Nothing follows.
    Fatal(Error),
    /// The membership is over, as asked. Nothing follows.
    Left,
    /// For the log.
    Notice(GroupEvent),
}

/// What the log should know of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupEvent {
    /// We join again, because of `reason`.
    Rejoining {
        /// In words.
        reason: &'static str,
    },
    /// The coordinator said that we are not (or no longer) a member of this generation.
    Expelled {
        /// 22 or 25.
        code: Code,
    },
    /// No heartbeat got through for the session time-out.
    SessionExpired,
    /// A member's metadata could not be read (nothing is assigned to it), or only in part.
    MetadataUnread {
        /// Whose.
        member_id: Arc<str>,
        /// What is wrong.
        why: Unreadable,
    },
    /// The coordinator took an old join of ours for another process of our instance id; we join
    /// again.
    FencedByOurself,
    /// The user's assignor gives so many partitions to nobody.
    LeftOut {
        /// How many.
        partitions: usize,
    },
    /// The group's leader is of another make and shares out what is reserved.
    ReservationsIgnored {
        /// In order.
        partitions: Vec<TopicPartition>,
    },
    /// The coordinator answered with an epoch that cannot be; the answer was passed over.
    EpochRefused {
        /// What it said.
        epoch: i32,
    },
    /// Another process holds our instance id, or held it and its session lasts yet; we try on.
    InstanceTaken,
    /// The coordinator listed one member twice; the first counts.
    MemberTwice {
        /// Which.
        member_id: Arc<str>,
    },
    /// Our assignment could not be read: nothing is assigned to us.
    AssignmentUnread,
    /// Our assignment names topics that we do not want (any more); we join again.
    NotSubscribed {
        /// The first of them.
        topic: Arc<str>,
    },
    /// The coordinator named an assignor that we did not offer, or two different ones.
    ProtocolMismatch {
        /// What it named.
        named: Arc<str>,
    },
    /// We assigned without knowing the partitions of these topics.
    TopicsUnknown {
        /// Sorted.
        topics: Vec<Arc<str>>,
    },
    /// Revoked partitions were not released in time and count as lost.
    RevokeOverdue {
        /// In order.
        partitions: Vec<TopicPartition>,
    },
    /// Leaving was given up; the coordinator will notice by itself.
    LeaveAbandoned,
}

/// How much of a member's metadata was unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Not even its topics.
    All,
    /// Some field after the topics.
    Tail,
}

/// Under whom a commit is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRef {
    /// Given by the coordinator.
    pub member_id: Arc<str>,
    /// The generation that gave the leases, or confirmed them.
    pub generation: i32,
    /// Of a static member.
    pub instance_id: Option<Arc<str>>,
}

/// Where a membership stands, for snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// No subscription yet.
    Idle,
    /// Partitions drain; the join waits for them.
    Draining,
    /// A pause before the next join.
    Waiting,
    /// JoinGroup is out.
    Joining,
    /// We lead and wait for partition counts.
    Assigning,
    /// SyncGroup is out.
    Syncing,
    /// Member of a complete generation.
    Stable,
    /// LeaveGroup is out, or about to be.
    Leaving,
    /// Over, as asked.
    Left,
    /// Over, by an error.
    Failed,
}
