//! Laneway: a Kafka client in pure Rust that processes records in ordered lanes and commits
//! exactly what has settled.

#[cfg(feature = "broker")]
pub mod broker;
pub mod cluster;
pub mod commit;
pub mod engine;
pub mod error;
pub mod fetch;
pub mod group;
pub mod handler;
pub mod ids;
pub mod lane;
pub mod pace;
pub mod record;
pub mod records;
#[cfg(feature = "runtime")]
mod runtime;
pub mod settle;
#[cfg(feature = "runtime")]
mod subscription;
pub mod time;
pub mod wire;

pub use engine::{CommitMode as Commit, Event, LaneKey, PartitionSnapshot, Snapshot};
pub use error::{Error, ErrorKind};
pub use fetch::{LossPolicy, StartOffset};
pub use group::AssignorKind;
pub use lane::{IntoOutcome, IntoOutcomes, Outcome, Retry};
pub use record::Record;
#[cfg(feature = "runtime")]
pub use subscription::{
    BatchSubscription, Interest, Kafka, Partitions, Running, Subscription, Topics,
};
pub use wire::message::Isolation;
