//! What the user may want to hear of the cluster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::ids::TopicPartition;
use crate::wire::Code;

/// Something worth a line in the log; nothing needs to be done about it in the program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ClusterNotice {
    /// A wanted topic does not exist, as far as the brokers know. We go on asking.
    TopicUnknown {
        /// Its name.
        topic: Arc<str>,
        /// Answers in a row that did not know it.
        answers: u32,
    },
    /// An assignment names a partition that metadata lacks. We go on asking.
    PartitionMissing {
        /// Which.
        partition: TopicPartition,
        /// For how long.
        lasted: Duration,
    },
    /// Nobody answers.
    Unreachable {
        /// Rounds through all addresses.
        rounds: u32,
        /// What the last one said.
        error: Error,
    },
    /// The brokers that we knew are given up; the bootstrap addresses are asked again.
    Rebootstrap,
    /// The group has no coordinator yet.
    NoCoordinator {
        /// Tries so far.
        attempts: u32,
        /// What the last answer said.
        code: Code,
    },
    /// The addresses lead to another cluster than before.
    OtherCluster {
        /// The id of the cluster before.
        old: Arc<str>,
        /// The id of this one.
        new: Arc<str>,
    },
    /// There is no room for metadata of more topics; this one and others are left out.
    TooManyTopics {
        /// The first that found no room.
        topic: Arc<str>,
    },
}

impl fmt::Display for ClusterNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClusterNotice::TopicUnknown { topic, answers } => write!(
                f,
                "topic `{topic}` does not exist: create it, or correct its name (said {answers} times \
                 in a row); waiting for it"
            ),
            ClusterNotice::PartitionMissing { partition, lasted } => write!(
                f,
                "partition {partition} is not in the cluster's metadata, for {} s now: does it exist? \
                 Waiting for it",
                lasted.as_secs()
            ),
            ClusterNotice::Unreachable { rounds, error } => {
                let (times, why) = (rounds + 1, error.message());
                write!(
                    f,
                    "no broker answers, tried {times} times, trying on: {why}"
                )
            }
            ClusterNotice::Rebootstrap => {
                f.write_str("the brokers we knew are gone; asking the bootstrap addresses again")
            }
            ClusterNotice::NoCoordinator { attempts, code } => {
                write!(
                    f,
                    "the group has no coordinator after {attempts} tries, trying on: {code}"
                )
            }
            ClusterNotice::OtherCluster { old, new } => write!(
                f,
                "the brokers are of another cluster now: its id is {new}, and was {old}"
            ),
            ClusterNotice::TooManyTopics { topic } => {
                write!(
                    f,
                    "too many topics: no room for metadata of `{topic}` and others"
                )
            }
        }
    }
}
