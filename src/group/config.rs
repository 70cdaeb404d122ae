//! What a membership is told once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::assign::CustomAssignor;
use crate::error::Error;
use crate::ids::TopicPartition;

/// A way to share partitions out. The group uses the one that all members know and most prefer.
///
/// ```
/// use laneway::{AssignorKind, Kafka, Topics};
/// let subscription = Kafka::new(["localhost:9092"])
///     .subscribe(Topics::named(["orders"]).group("shipping"))
///     .assignors([AssignorKind::CooperativeSticky]); // alone: rebalances are cooperative
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AssignorKind {
    /// Each topic on its own, in blocks: members of two topics with equal partition counts get
    /// the same numbers of both.
    Range,
    /// All partitions in turn.
    RoundRobin,
    /// Balanced, and each member keeps what it has where it can.
    CooperativeSticky,
}

impl AssignorKind {
    /// The name that goes over the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AssignorKind::Range => "range",
            AssignorKind::RoundRobin => "roundrobin",
            AssignorKind::CooperativeSticky => "cooperative-sticky",
        }
    }

    /// The assignor of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Range, Self::RoundRobin, Self::CooperativeSticky]
            .into_iter()
            .find(|kind| kind.name() == name)
    }

    /// Whether members may keep partitions through a rebalance (KIP-429).
    #[must_use]
    pub fn cooperative(self) -> bool {
        self == AssignorKind::CooperativeSticky
    }
}

impl fmt::Display for AssignorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the members of a group come to their partitions.
///
/// ```
/// use laneway::{GroupProtocol, Kafka, Topics};
/// let subscription = Kafka::new(["localhost:9092"])
///     .subscribe(Topics::named(["orders"]).group("shipping"))
///     .group_protocol(GroupProtocol::Consumer);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GroupProtocol {
    /// One of the members shares them out, and all stop or at least meet for that. Every broker
    /// knows it. The default.
    #[default]
    Classic,
    /// The broker assigns, and moves only what must move (KIP-848). Kafka 4.0 and newer; a group
    /// may change over member by member.
    Consumer,
}

/// Whether closing gives a member's place in the group up.
///
/// ```
/// use laneway::{Kafka, OnClose, Topics};
/// // A restart of this process within the session time-out moves no partition.
/// let subscription = Kafka::new(["localhost:9092"])
///     .subscribe(Topics::named(["orders"]).group("shipping"))
///     .instance_id("till-7")
///     .on_close(OnClose::Stay); // what it would do anyway, having an instance id
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnClose {
    /// Leaves the group: the others share its partitions out at once.
    Leave,
    /// Goes without a word: its partitions wait for it until its session is over.
    Stay,
}

/// Settings of a [`Membership`](super::Membership).
///
/// ```
/// use laneway::group::GroupConfig;
/// let mut cfg = GroupConfig::new("billing");
/// cfg.drain_timeout = std::time::Duration::from_secs(20);
/// assert!(cfg.check().is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The group's id.
    pub group: Arc<str>,
    /// Which protocol the members speak. Default: the classic one.
    pub protocol: GroupProtocol,
    /// Of the new protocol: the broker's assignor that is wanted, such as `uniform` or `range`.
    /// Default: the broker's choice.
    pub server_assignor: Option<Arc<str>>,
    /// Of the new protocol: the topics wanted, by an expression that the broker reads (RE2).
    pub topic_regex: Option<Arc<str>>,
    /// Of the new protocol: the rack that we tell the broker's assignor.
    pub rack: Option<Arc<str>>,
    /// Without a heartbeat for that long the coordinator expels us. Default 45 s. With the new
    /// protocol the broker's own setting counts, and this must not be longer.
    pub session_timeout: Duration,
    /// How long a rebalance waits for its slowest member. Default 5 min.
    pub rebalance_timeout: Duration,
    /// Time between heartbeats; at most a third of the session time-out. Default 3 s.
    pub heartbeat_interval: Duration,
    /// How long a revoked partition may drain. Less than `rebalance_timeout`, since the last
    /// commit and the join must fit too. Default: half of it.
    pub drain_timeout: Duration,
    /// How long leaving may take. Default 5 s.
    pub leave_timeout: Duration,
    /// Most wanted first. Cooperative only when nothing else is listed, as in Java.
    /// Default: range, cooperative-sticky.
    pub assignors: Vec<AssignorKind>,
    /// The user's own way, wanted before those. Default: none.
    pub custom: Option<CustomAssignor>,
    /// Partitions to be kept out of the sharing; of our own assignors only. Default: none.
    pub reserve: Vec<TopicPartition>,
    /// Whether this member reads what it reserves, and nothing else.
    pub direct: bool,
    /// By which name it reserves.
    pub owner: Arc<str>,
    /// The name of a static member (KIP-345). Default: none.
    pub instance_id: Option<Arc<str>>,
    /// Whether leaving tells the group. Default: a static member stays, any other leaves, as
    /// Kafka has it.
    pub on_close: Option<OnClose>,
    /// Pause after the first failure; doubles up to `retry_backoff_max`. Default 100 ms.
    pub retry_backoff: Duration,
    /// Longest pause between tries. Default 1 s.
    pub retry_backoff_max: Duration,
    /// The largest request we send; above it the broker would cut the connection. Default
    /// 100 MiB, Kafka's `socket.request.max.bytes`.
    pub request_bytes_max: usize,
    /// Spreads pauses, so that members do not retry in step.
    pub seed: u64,
}

impl GroupConfig {
    /// The defaults above for `group`.
    pub fn new(group: impl Into<Arc<str>>) -> Self {
        let rebalance_timeout = Duration::from_secs(300);
        GroupConfig {
            group: group.into(),
            protocol: GroupProtocol::Classic,
            server_assignor: None,
            topic_regex: None,
            rack: None,
            session_timeout: Duration::from_secs(45),
            rebalance_timeout,
            heartbeat_interval: Duration::from_secs(3),
            drain_timeout: rebalance_timeout / 2,
            leave_timeout: Duration::from_secs(5),
            assignors: vec![AssignorKind::Range, AssignorKind::CooperativeSticky],
            custom: None,
            reserve: Vec::new(),
            direct: false,
            owner: Arc::from(""),
            instance_id: None,
            on_close: None,
            retry_backoff: Duration::from_millis(100),
            retry_backoff_max: Duration::from_secs(1),
            request_bytes_max: 100 << 20,
            seed: 0,
        }
    }

    /// Refuses what cannot work.
    ///
    /// # Errors
    ///
    /// A misuse that names the setting and what would do.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |why: &str| Err(Error::misuse(why));
        if self.group.is_empty() {
            return refuse("the group id is empty: name the group, or read partitions by hand");
        }
        if self.assignors.is_empty() && self.custom.is_none() {
            return refuse("no assignors: list at least one, as AssignorKind::Range");
        }
        if let Some(custom) = &self.custom {
            let name = custom.name()?;
            custom.cooperative()?;
            if name.is_empty() || AssignorKind::from_name(&name).is_some() {
                return Err(Error::misuse(format!(
                    "the assignor set with .assignor is named {name:?}: give it a name of its own"
                )));
            }
        }
        if self.heartbeat_interval.is_zero() {
            return refuse("heartbeat_interval is zero: 3 s is Kafka's default");
        }
        if self.heartbeat_interval > self.session_timeout / 3 {
            return refuse("heartbeat_interval is above a third of session_timeout: lower it");
        }
        if self.drain_timeout >= self.rebalance_timeout {
            return refuse("drain_timeout is not below rebalance_timeout: lower it to half");
        }
        if !self.reserve.is_empty() {
            if self.protocol == GroupProtocol::Consumer {
                return refuse(
                    "reserve is of the classic protocol: with GroupProtocol::Consumer the broker \
                     assigns, and knows no reservations; use GroupProtocol::Classic",
                );
            }
            if self.custom.is_some() {
                return refuse("reserve works with Laneway's assignors: leave .assignor out");
            }
            if self.reserve.iter().any(|tp| tp.partition < 0) {
                return refuse("reserve names a partition with a negative number");
            }
        }
        if let Some(id) = &self.instance_id {
            check_instance_id(id)?;
        }
        if self.retry_backoff.is_zero() || self.retry_backoff > self.retry_backoff_max {
            return refuse("retry_backoff must be above zero and at most retry_backoff_max");
        }
        Ok(())
    }

    /// Whether leaving tells the group.
    pub(super) fn leaves(&self) -> bool {
        match self.on_close {
            Some(how) => how == OnClose::Leave,
            None => self.instance_id.is_none(),
        }
    }

    /// Whether partitions are kept through rebalances.
    pub(super) fn cooperative(&self) -> bool {
        // What panics is found by `check` and by whoever asks next.
        let custom = self
            .custom
            .as_ref()
            .map(|c| c.cooperative().unwrap_or(false));
        self.assignors.iter().all(|a| a.cooperative()) && custom.unwrap_or(true)
    }
}

/// Kafka takes for an instance id what it takes for a topic's name.
fn check_instance_id(id: &str) -> Result<(), Error> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if id.is_empty() || id.len() > 249 || id == "." || id == ".." || !id.chars().all(legal) {
        return Err(Error::misuse(format!(
            "instance_id {id:?} cannot be: use 1 to 249 of a-z A-Z 0-9 . _ -, another one for \
             each member of the group"
        )));
    }
    Ok(())
}
