//! An in-process Kafka broker: what the demo runs on, and a test double with scripted faults.
//!
//! [`Cluster`] is a whole cluster of several nodes in one value. It takes frames and the time and
//! gives back frames and deadlines, so a simulator can drive it in virtual time; `Server` (feature
//! `broker`, where this value alone is `broker-core`) puts it behind TCP on loopback ports, where any
//! Kafka client finds it.
//!
//! # What it does
//!
//! ApiVersions, Metadata (by name and id), CreateTopics, DeleteTopics, CreatePartitions,
//! DeleteRecords, Produce (idempotent too), Fetch (sessions, long polls, truncation, leader hints,
//! `read_committed`), ListOffsets, OffsetForLeaderEpoch, FindCoordinator, the classic group calls,
//! ConsumerGroupHeartbeat (KIP-848, without migration of groups that have members),
//! OffsetCommit, OffsetFetch, OffsetDelete, InitProducerId, DescribeGroups, ListGroups,
//! DeleteGroups, DescribeCluster and DescribeConfigs, and SASL by PLAIN, SCRAM and unsecured
//! OAUTHBEARER tokens ([`SaslConfig`]), in the versions that Kafka 4 speaks. Where
//! Kafka does something that one would not guess, it does the same.
//!
//! # What it does not
//!
//! * Nothing is written to disk, and nothing is ever dropped for age or size: all records stay in
//!   memory until their topic is deleted or DeleteRecords is called. It is not a broker to run.
//! * Nodes share one log for each partition. Replication takes no time, and there is no lag.
//! * No transaction coordinator, no share groups, no ACLs,
//!   TLS, quotas or telemetry. Tests can append the batches of transactions themselves.
//! * ListGroups and DescribeGroups know classic groups only, and there is no ConsumerGroupDescribe:
//!   Kafka's `kafka-consumer-groups --describe` does not find a group of the KIP-848 protocol here.
//! * Record batches of version 2 only (Kafka 0.11 and later), kept as they came: what is in a
//!   compressed batch is looked at by ListOffsets by time, and by nothing else.
//! * Topic settings are kept and shown, and mean nothing.
//!
//! # Bounds
//!
//! A frame above `frame_bytes_max` closes its connection, and so does one request too many behind
//! another (`conn_frames_max`). A request is walked before it is decoded (`shape`), so that no length
//! field makes us reserve memory for what is not there. Fetch sessions, group sizes, partitions and
//! the commit history have their own bounds in [`ClusterConfig`]. Records, topics, groups and
//! committed offsets have none: they are what the tests put in.

mod admin;
mod auth;
pub mod codes;
mod commits;
mod config;
mod consumer;
mod consumer_api;
mod core;
mod fetch;
mod group;
mod log;
mod membership;
mod metadata;
mod offsets;
mod produce;
mod script;
#[cfg(feature = "broker")]
pub mod serve;
mod session;
mod shape;
mod times;
mod topics;
mod versions;

pub use self::auth::SaslConfig;
pub use self::commits::{CommitEntry, Committed};
pub use self::config::ClusterConfig;
pub use self::consumer::ConsumerState;
pub use self::consumer_api::{ConsumerGroupView, ConsumerMemberView};
pub use self::core::{BrokerAction, Cluster, ConnId};
pub use self::group::GroupState;
pub use self::membership::GroupView;
pub use self::script::{Fault, Rule, Script};
#[cfg(feature = "broker")]
pub use self::serve::{ClusterGuard, Listen, Server};
pub use self::topics::{KeyValue, PartitionView, Refused};
