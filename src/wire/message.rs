//! The requests we send and the answers we read, free of versions.
//!
//! A request says what is wanted; [`Request::encode`](super::Request) writes it in the version
//! that both sides know. An answer holds what any version gave, with Kafka's own "absent" values
//! where a version lacks a field. Answers name topics as the broker did: by name, by id, or both.

pub use super::consumer_group::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, PartitionsById,
};
pub use super::produce::{
    InitProducerIdRequest, InitProducerIdResponse, ProduceAnswer, ProduceRequest, ProduceResponse,
    ProduceResponseTopic, ProduceTopic,
};
use crate::ids::{NodeId, TopicId};
use crate::sasl::Secret;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// Isolation of reads (KIP-98).
///
/// ```
/// use laneway::{Isolation, Kafka, Topics};
/// let subscription = Kafka::new(["localhost:9092"])
///     .subscribe(Topics::named(["transfers"]).group("ledger"))
///     .isolation(Isolation::ReadCommitted);
/// assert_eq!(Isolation::default(), Isolation::ReadUncommitted);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Every record, also of open and aborted transactions. Kafka's default.
    #[default]
    ReadUncommitted,
    /// Only what is outside transactions or was committed; reads stop at the last stable offset.
    ReadCommitted,
}

/// A Kafka error code; 0 is none.
///
/// ```
/// use laneway::wire::Code;
/// assert_eq!(Code(16).to_string(), "NOT_COORDINATOR (16)");
/// assert!(Code(16).wants_coordinator() && Code(16).is_retriable());
/// assert!(Code::GROUP_AUTHORIZATION_FAILED.is_fatal());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Code(pub i16);

/// Opens every connection: what does the broker speak?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiVersionsRequest {
    /// Who we are (KIP-511, v3+). Letters, digits, `-` and `.`, else the broker refuses.
    pub software_name: Arc<str>,
    /// Our version, in the same letters.
    pub software_version: Arc<str>,
}

/// What the broker speaks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiVersionsResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// 0, or why not; 35 comes in a body of version 0.
    pub code: Code,
    /// Every API and its versions.
    pub ranges: super::ApiRanges,
}

/// Metadata of some topics, or of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataRequest {
    /// `None` asks for every topic. An empty list asks for the brokers alone.
    pub topics: Option<Vec<Arc<str>>>,
}

/// What a broker knows of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetadataResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// Top-level error (v13+, KIP-1102: 129 asks for a new bootstrap).
    pub code: Code,
    /// Every live broker.
    pub brokers: Vec<BrokerEndpoint>,
    /// The cluster's own id, to notice that a name leads to another cluster.
    pub cluster_id: Option<Arc<str>>,
    /// -1 where there is none.
    pub controller: i32,
    /// The topics, in no promised order.
    pub topics: Vec<TopicMetadata>,
}

/// Where a broker listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerEndpoint {
    /// The broker's number.
    pub node: NodeId,
    /// Its advertised name, as the broker gave it.
    pub host: Arc<str>,
    /// Its advertised port.
    pub port: u16,
    /// Its rack, where the operator named one.
    pub rack: Option<Arc<str>>,
}

/// One topic of a [`MetadataResponse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicMetadata {
    /// 0, or why not.
    pub code: Code,
    /// Null in answers about an unknown id.
    pub name: Option<Arc<str>>,
    /// [`TopicId::ZERO`] where the version or the broker has none.
    pub id: TopicId,
    /// Made by Kafka for itself (`__consumer_offsets` and the like).
    pub internal: bool,
    /// The partitions, in no promised order.
    pub partitions: Vec<PartitionMetadata>,
}

/// One partition of a [`TopicMetadata`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMetadata {
    /// 0, or why not.
    pub code: Code,
    /// Its index.
    pub partition: i32,
    /// -1: no leader now.
    pub leader: i32,
    /// -1: not known (before v7).
    pub leader_epoch: i32,
    /// Brokers that hold a copy.
    pub replicas: Vec<i32>,
    /// Those of them that are in sync.
    pub isr: Vec<i32>,
}

/// Who coordinates a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FindCoordinatorRequest {
    /// The group id.
    pub group: Arc<str>,
}

/// The coordinator, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FindCoordinatorResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// 0, or why not.
    pub code: Code,
    /// What the broker says about the error, in words.
    pub message: Option<Arc<str>>,
    /// `None` with an error.
    pub coordinator: Option<BrokerEndpoint>,
}

/// Joins a classic group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinGroupRequest {
    /// The group id.
    pub group: Arc<str>,
    /// The coordinator drops a member that is silent for longer.
    pub session_timeout: Duration,
    /// How long members have for rejoining.
    pub rebalance_timeout: Duration,
    /// Empty at the first try.
    pub member_id: Arc<str>,
    /// The id of a static member (KIP-345).
    pub instance_id: Option<Arc<str>>,
    /// Always `consumer` for us.
    pub protocol_type: Arc<str>,
    /// Name and metadata of each assignor, most wanted first.
    pub protocols: Vec<(Arc<str>, Bytes)>,
    /// KIP-800; cut at 255 characters by the encoder.
    pub reason: Option<Arc<str>>,
}

/// The generation that a join led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinGroupResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// 0, or why not.
    pub code: Code,
    /// The number of this round of the group; -1 with an error.
    pub generation: i32,
    /// `consumer` for consumers; absent before v7 (join) and v5 (sync).
    pub protocol_type: Option<Arc<str>>,
    /// The assignor that all members can; absent or empty with an error.
    pub protocol_name: Option<Arc<str>>,
    /// The member id of the leader.
    pub leader: Arc<str>,
    /// KIP-814: the leader is told not to assign.
    pub skip_assignment: bool,
    /// Ours from now on, also with error 79.
    pub member_id: Arc<str>,
    /// Only the leader gets them.
    pub members: Vec<JoinGroupMember>,
}

/// One member, as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinGroupMember {
    /// The id that the coordinator gave this member.
    pub member_id: Arc<str>,
    /// The id of a static member (KIP-345).
    pub instance_id: Option<Arc<str>>,
    /// Its subscription, in the bytes of its assignor.
    pub metadata: Bytes,
}

/// Hands out (leader) or asks for (others) the assignment of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncGroupRequest {
    /// The group id.
    pub group: Arc<str>,
    /// The number of this round of the group; -1 with an error.
    pub generation: i32,
    /// The id that the coordinator gave this member.
    pub member_id: Arc<str>,
    /// The id of a static member (KIP-345).
    pub instance_id: Option<Arc<str>>,
    /// `consumer` (sent from v5).
    pub protocol_type: Arc<str>,
    /// The assignor that the join led to (sent from v5).
    pub protocol_name: Arc<str>,
    /// Member id and its assignment's bytes; empty unless we lead.
    pub assignments: Vec<(Arc<str>, Bytes)>,
}

/// Our share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncGroupResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// 0, or why not.
    pub code: Code,
    /// `consumer` for consumers; absent before v7 (join) and v5 (sync).
    pub protocol_type: Option<Arc<str>>,
    /// The assignor; absent before v5 of a sync.
    pub protocol_name: Option<Arc<str>>,
    /// What the leader gave us; empty is nothing.
    pub assignment: Bytes,
}

/// Keeps a classic membership alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatRequest {
    /// The group id.
    pub group: Arc<str>,
    /// The number of this round of the group; -1 with an error.
    pub generation: i32,
    /// The id that the coordinator gave this member.
    pub member_id: Arc<str>,
    /// The id of a static member (KIP-345).
    pub instance_id: Option<Arc<str>>,
}

/// Whether it is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// 0, or why not.
    pub code: Code,
}

/// Leaves a classic group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaveGroupRequest {
    /// The group id.
    pub group: Arc<str>,
    /// The id that the coordinator gave this member.
    pub member_id: Arc<str>,
    /// The id of a static member (KIP-345).
    pub instance_id: Option<Arc<str>>,
    /// Why, for the log of the coordinator (KIP-800, v5+).
    pub reason: Option<Arc<str>>,
}

/// Whether we left: the outer code, or the member's own where the outer is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaveGroupResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// 0, or why not.
    pub code: Code,
}

/// Commits offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetCommitRequest {
    /// The group id.
    pub group: Arc<str>,
    /// -1 outside a group (manual assignment).
    pub generation: i32,
    /// The id that the coordinator gave this member.
    pub member_id: Arc<str>,
    /// The id of a static member (KIP-345).
    pub instance_id: Option<Arc<str>>,
    /// The topics, in no promised order.
    pub topics: Vec<OffsetCommitTopic>,
}

/// One topic of an [`OffsetCommitRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetCommitTopic {
    /// The topic's name.
    pub name: Arc<str>,
    /// [`TopicId::ZERO`] holds the request to v9.
    pub id: TopicId,
    /// The partitions, in no promised order.
    pub partitions: Vec<OffsetCommitPartition>,
}

/// One partition of an [`OffsetCommitTopic`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetCommitPartition {
    /// Its index.
    pub partition: i32,
    /// The next offset to read. Never negative.
    pub offset: i64,
    /// Of the last settled record; -1 not known.
    pub leader_epoch: i32,
    /// Free text beside the offset: ours holds the offset map.
    pub metadata: Option<Arc<str>>,
}

/// How each partition's commit went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetCommitResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// The topics, in no promised order.
    pub topics: Vec<OffsetCommitResponseTopic>,
}

/// One topic of an [`OffsetCommitResponse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetCommitResponseTopic {
    /// Empty from v10 on, where the id stands instead.
    pub name: Arc<str>,
    /// [`TopicId::ZERO`] where the version or the broker has none.
    pub id: TopicId,
    /// The partitions, in no promised order.
    pub partitions: Vec<(i32, Code)>,
}

/// Reads a group's committed offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetFetchRequest {
    /// The group id.
    pub group: Arc<str>,
    /// Topics with ids (zero holds the request to v9) and partitions.
    pub topics: Vec<(Arc<str>, TopicId, Vec<i32>)>,
    /// Member id and epoch, of members with the new protocol (sent from v9): one that is no longer
    /// in the group, or at another epoch, is told so instead of an offset.
    pub member: Option<(Arc<str>, i32)>,
    /// Wait for open transactions to end: 88 instead of an offset (KIP-447).
    pub require_stable: bool,
}

/// The committed offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetFetchResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// The group's own error.
    pub code: Code,
    /// The topics, in no promised order.
    pub topics: Vec<OffsetFetchTopic>,
}

/// One topic of an [`OffsetFetchResponse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetFetchTopic {
    /// Empty from v10 on.
    pub name: Arc<str>,
    /// [`TopicId::ZERO`] where the version or the broker has none.
    pub id: TopicId,
    /// The partitions, in no promised order.
    pub partitions: Vec<OffsetFetchPartition>,
}

/// One partition of an [`OffsetFetchTopic`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetFetchPartition {
    /// Its index.
    pub partition: i32,
    /// -1: nothing committed.
    pub offset: i64,
    /// Of the record before `offset`; -1 not known.
    pub leader_epoch: i32,
    /// What was committed beside the offset; Kafka gives null back as "".
    pub metadata: Option<Arc<str>>,
    /// 0, or why not.
    pub code: Code,
}

/// Reads records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchRequest {
    /// How long the broker may wait for `min_bytes`.
    pub max_wait: Duration,
    /// The broker waits until it has this much.
    pub min_bytes: i32,
    /// Soft limit of the bytes: a first batch comes whole even when larger.
    pub max_bytes: i32,
    /// Which records are wanted.
    pub isolation: Isolation,
    /// 0: no session.
    pub session_id: i32,
    /// -1: no session; 0: open one; above: its next epoch.
    pub session_epoch: i32,
    /// What to read; in a session only what is new or has changed.
    pub topics: Vec<FetchTopic>,
    /// Partitions that leave the session.
    pub forgotten: Vec<(Arc<str>, TopicId, Vec<i32>)>,
    /// Our rack (KIP-392, v11+); empty: none.
    pub rack: Arc<str>,
    /// False holds the request to v12 (some topic's id is not known).
    pub by_id: bool,
}

/// One topic of a [`FetchRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchTopic {
    /// The topic's name.
    pub name: Arc<str>,
    /// [`TopicId::ZERO`] where the version or the broker has none.
    pub id: TopicId,
    /// The partitions, in no promised order.
    pub partitions: Vec<FetchPartition>,
}

/// One partition of a [`FetchTopic`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchPartition {
    /// Its index.
    pub partition: i32,
    /// The leader epoch we know (KIP-320); -1 skips the broker's check.
    pub current_leader_epoch: i32,
    /// The first offset wanted.
    pub offset: i64,
    /// The epoch of the record before `offset` (v12+); -1 not known.
    pub last_fetched_epoch: i32,
    /// Soft limit of the bytes: a first batch comes whole even when larger.
    pub max_bytes: i32,
}

/// Records, or why there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// 0, or why not.
    pub code: Code,
    /// The fetch session (KIP-227); 0: none.
    pub session_id: i32,
    /// The topics, in no promised order.
    pub topics: Vec<FetchResponseTopic>,
    /// KIP-951 (v16+): where the leaders named in `current_leader` listen.
    pub endpoints: Vec<BrokerEndpoint>,
}

/// One topic of a [`FetchResponse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchResponseTopic {
    /// Empty from v13 on, where the id stands instead.
    pub name: Arc<str>,
    /// [`TopicId::ZERO`] where the version or the broker has none.
    pub id: TopicId,
    /// The partitions, in no promised order.
    pub partitions: Vec<FetchResponsePartition>,
}

/// One partition of a [`FetchResponseTopic`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchResponsePartition {
    /// Its index.
    pub partition: i32,
    /// 0, or why not.
    pub code: Code,
    /// -1 with an error.
    pub high_watermark: i64,
    /// -1 with an error.
    pub last_stable_offset: i64,
    /// -1 with an error or before v5.
    pub log_start: i64,
    /// KIP-320: the log diverged from ours after this epoch and offset (v12+).
    pub diverging: Option<EpochEnd>,
    /// KIP-951: (leader, epoch); -1 each where not known.
    pub current_leader: Option<(i32, i32)>,
    /// Producer id and first offset of each aborted transaction, in no promised order.
    pub aborted: Vec<(i64, i64)>,
    /// KIP-392: read from that replica instead; -1: no change.
    pub preferred_replica: i32,
    /// A slice of the frame; empty where the field was null.
    pub records: Bytes,
}

/// A leader epoch and where it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    /// The leader epoch.
    pub epoch: i32,
    /// The offset after its last record.
    pub end_offset: i64,
}

/// Offsets by time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOffsetsRequest {
    /// Which records are wanted.
    pub isolation: Isolation,
    /// The topics, in no promised order.
    pub topics: Vec<(Arc<str>, Vec<ListOffsetsPartition>)>,
}

/// One partition of a [`ListOffsetsRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOffsetsPartition {
    /// Its index.
    pub partition: i32,
    /// The leader epoch we know; -1 skips the broker's check.
    pub current_leader_epoch: i32,
    /// Milliseconds since the epoch; -1 latest, -2 earliest.
    pub timestamp: i64,
}

/// The offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOffsetsResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// The topics, in no promised order.
    pub topics: Vec<(Arc<str>, Vec<ListOffsetsAnswer>)>,
}

/// One partition of a [`ListOffsetsResponse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOffsetsAnswer {
    /// Its index.
    pub partition: i32,
    /// 0, or why not.
    pub code: Code,
    /// Milliseconds since the Unix epoch; -1 where there is none.
    pub timestamp: i64,
    /// -1 with no error: no record at or after the time.
    pub offset: i64,
    /// -1: not known.
    pub leader_epoch: i32,
}

/// Where leader epochs ended (KIP-320).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochEndRequest {
    /// The topics with what is asked of each partition.
    pub topics: Vec<(Arc<str>, Vec<EpochEndPartition>)>,
}

/// One partition of an [`EpochEndRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEndPartition {
    /// Its index.
    pub partition: i32,
    /// The leader epoch we know; -1 skips the broker's check.
    pub current_leader_epoch: i32,
    /// The epoch whose end is wanted.
    pub epoch: i32,
}

/// The ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochEndResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// The topics, in no promised order.
    pub topics: Vec<(Arc<str>, Vec<EpochEndAnswer>)>,
}

/// One partition of an [`EpochEndResponse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochEndAnswer {
    /// Its index.
    pub partition: i32,
    /// 0, or why not.
    pub code: Code,
    /// -1, -1: the broker cannot tell.
    pub end: EpochEnd,
}

/// Opens an exchange of SASL (KIP-43).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaslHandshakeRequest {
    /// SASL's name of the mechanism.
    pub mechanism: Arc<str>,
}

/// Whether the broker does that mechanism.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaslHandshakeResponse {
    /// 0, or why not: 33 for a mechanism that is not offered, 34 where SASL is not done.
    pub code: Code,
    /// What the listener offers.
    pub mechanisms: Vec<Arc<str>>,
}

/// A message of a SASL exchange (KIP-152).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaslAuthenticateRequest {
    /// As the mechanism has it.
    pub auth: Secret,
}

/// The server's message, or its refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaslAuthenticateResponse {
    /// 0, or why not.
    pub code: Code,
    /// In the broker's words.
    pub message: Option<Arc<str>>,
    /// As the mechanism has it.
    pub auth: Bytes,
    /// How long the session lasts before it has to be renewed (KIP-368, v1+); zero: for ever.
    pub lifetime: Duration,
}
