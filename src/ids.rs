//! Names and numbers that more than one module needs, each its own type.

use std::fmt;
use std::sync::Arc;

/// A topic and one of its partitions.
///
/// ```
/// use laneway::ids::TopicPartition;
/// assert_eq!(TopicPartition::new("payments", 3).to_string(), "payments-3");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's index, from 0.
    pub partition: i32,
}

impl TopicPartition {
    /// Names partition `partition` of `topic`.
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        TopicPartition {
            topic: topic.into(),
            partition,
        }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

/// A topic's id (KIP-516): a topic deleted and made anew under its old name has another one.
/// All zero means that the broker knows no ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub [u8; 16]);

impl TopicId {
    /// "No id": what brokers before 2.8 leave us with.
    pub const ZERO: TopicId = TopicId([0; 16]);

    /// Whether this is [`TopicId::ZERO`].
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
}

/// A broker's number in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub i32);

/// The right to work on a partition, at one epoch. Never used again once it has ended, so it is
/// the epoch: whatever comes back under an ended lease is recognised by its number alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// One connection. Never used again: it is the connection's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// One place where handlers run: a task or a thread with a [`Runner`](crate::lane::Runner).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecutorId(pub u32);

/// Names one command of the driver, so that its answer can be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// Names one request that a machine sent; its answer comes back under the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);
