//! The settings of a simulated cluster.

use std::collections::BTreeMap;
use std::time::Duration;

/// How a [`Cluster`](super::Cluster) is made and behaves.
///
/// ```
/// use laneway::broker::ClusterConfig;
/// let cfg = ClusterConfig { nodes: 3, ..ClusterConfig::default() };
/// assert_eq!(cfg.offset_metadata_max, 4096);
/// ```
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// How many nodes; their ids are `1..=nodes`.
    pub nodes: i32,
    /// Copies of each partition, at most `nodes` of them. A node that holds one answers a
    /// consumer's Fetch (from version 11) though it does not lead, as Kafka's followers do.
    pub replication_factor: i32,
    /// Where topic ids and member ids come from.
    pub seed: u64,
    /// The cluster's id.
    pub cluster_id: String,
    /// Partitions of a topic made without a number.
    pub default_partitions: i32,
    /// Whether Metadata and Produce make topics that do not exist.
    pub auto_create: bool,
    /// How long a group's first rebalance waits for more members (KIP-134).
    pub group_initial_rebalance_delay: Duration,
    /// The least session time-out a member may ask for.
    pub session_timeout_min: Duration,
    /// The greatest session time-out a member may ask for.
    pub session_timeout_max: Duration,
    /// How long a member of the new protocol (KIP-848) may be silent.
    pub consumer_session_timeout: Duration,
    /// When such a member is told to send its next heartbeat.
    pub consumer_heartbeat_interval: Duration,
    /// Members and given-out member ids in one group.
    pub group_size_max: usize,
    /// Bytes of a committed offset's metadata.
    pub offset_metadata_max: usize,
    /// Bytes of one produced batch.
    pub message_bytes_max: usize,
    /// Bytes of one request frame; a longer one closes its connection.
    pub frame_bytes_max: usize,
    /// Requests that wait behind another on one connection; one more closes it.
    pub conn_frames_max: usize,
    /// Bytes of records in one Fetch answer, whatever the request allows.
    pub fetch_bytes_max: usize,
    /// Fetch sessions of one node; where they are all in use, answers carry session id 0.
    pub fetch_sessions_max: usize,
    /// Partitions of one topic, and of one request that makes them.
    pub partitions_max: i32,
    /// How many of the newest commits [`Cluster::commits`](super::Cluster::commits) keeps.
    pub commit_history_max: usize,
    /// Wall time, in milliseconds since 1970, when the clock that drives the cluster is at zero.
    pub wall_ms_at_zero: i64,
    /// Versions offered of an API (by key) in place of all we know; an empty range hides it. So
    /// the cluster acts as older brokers do.
    pub versions: BTreeMap<i16, (i16, i16)>,
    /// Whether a group's first FindCoordinator is answered COORDINATOR_NOT_AVAILABLE, as by a
    /// fresh cluster that has yet to make its internal topic.
    pub coordinator_starts_cold: bool,
    /// Whom the listeners let in; none: everybody, without SASL.
    pub sasl: Option<super::SaslConfig>,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        ClusterConfig {
            nodes: 1,
            replication_factor: 3,
            seed: 1,
            cluster_id: "laneway-broker".to_owned(),
            default_partitions: 1,
            auto_create: true,
            group_initial_rebalance_delay: Duration::ZERO,
            session_timeout_min: Duration::from_millis(10),
            session_timeout_max: Duration::from_secs(1800),
            consumer_session_timeout: Duration::from_secs(45),
            consumer_heartbeat_interval: Duration::from_secs(5),
            group_size_max: 10_000,
            offset_metadata_max: 4096,
            message_bytes_max: 1_048_588,
            frame_bytes_max: 100 * 1024 * 1024,
            conn_frames_max: 10_000,
            fetch_bytes_max: 55 * 1024 * 1024,
            fetch_sessions_max: 1000,
            partitions_max: 10_000,
            commit_history_max: 100_000,
            wall_ms_at_zero: 1_700_000_000_000,
            versions: BTreeMap::new(),
            coordinator_starts_cold: false,
            sasl: None,
        }
    }
}
