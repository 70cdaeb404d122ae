//! Requests, and how each is written in the version that both sides know.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages as kp;
use kafka_protocol::protocol::{Encodable, StrBytes};

use super::api::{Api, VersionRange};
use super::consumer_group;
use super::message::{
    ApiVersionsRequest, ConsumerGroupHeartbeatRequest, EpochEndRequest, FetchRequest,
    FindCoordinatorRequest, HeartbeatRequest, InitProducerIdRequest, Isolation, JoinGroupRequest,
    LeaveGroupRequest, ListOffsetsRequest, MetadataRequest, OffsetCommitRequest,
    OffsetFetchRequest, ProduceRequest, SaslAuthenticateRequest, SaslHandshakeRequest,
    SyncGroupRequest,
};
use super::produce::{init_producer_id_request, produce_request};
use super::reader::{WireError, WireFault};
use crate::ids::TopicId;
use crate::sasl::Secret;

/// Something to ask a broker, free of versions.
///
/// ```
/// use laneway::wire::Request;
/// use laneway::wire::message::HeartbeatRequest;
/// let request = Request::Heartbeat(HeartbeatRequest {
///     group: "billing".into(),
///     generation: 3,
///     member_id: "m-1".into(),
///     instance_id: Some("till-7".into()),
/// });
/// // A static member is not known before version 3.
/// assert_eq!(request.versions().min, 3);
/// let frame = request.encode(4, 1, "me").unwrap();
/// assert_eq!(frame[..4], u32::try_from(frame.len() - 4).unwrap().to_be_bytes());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// What does the broker speak?
    ApiVersions(ApiVersionsRequest),
    /// Brokers, topics and leaders.
    Metadata(MetadataRequest),
    /// Who coordinates a group?
    FindCoordinator(FindCoordinatorRequest),
    /// Joins a classic group.
    JoinGroup(JoinGroupRequest),
    /// Hands out or takes the assignment.
    SyncGroup(SyncGroupRequest),
    /// Keeps a membership alive.
    Heartbeat(HeartbeatRequest),
    /// Leaves a group.
    LeaveGroup(LeaveGroupRequest),
    /// Commits offsets.
    OffsetCommit(OffsetCommitRequest),
    /// Reads committed offsets.
    OffsetFetch(OffsetFetchRequest),
    /// Reads records.
    Fetch(FetchRequest),
    /// Offsets by time.
    ListOffsets(ListOffsetsRequest),
    /// Where leader epochs ended.
    EpochEnd(EpochEndRequest),
    /// Writes records.
    Produce(ProduceRequest),
    /// Asks for a producer id.
    InitProducerId(InitProducerIdRequest),
    /// Opens an exchange of SASL.
    SaslHandshake(SaslHandshakeRequest),
    /// A message of it. The frame is wiped when it is dropped.
    SaslAuthenticate(SaslAuthenticateRequest),
    /// Joins a group with the new protocol, and keeps the membership alive.
    ConsumerGroupHeartbeat(ConsumerGroupHeartbeatRequest),
}

impl Request {
    /// The API it belongs to.
    #[must_use]
    pub fn api(&self) -> Api {
        match self {
            Request::ApiVersions(_) => Api::ApiVersions,
            Request::Metadata(_) => Api::Metadata,
            Request::FindCoordinator(_) => Api::FindCoordinator,
            Request::JoinGroup(_) => Api::JoinGroup,
            Request::SyncGroup(_) => Api::SyncGroup,
            Request::Heartbeat(_) => Api::Heartbeat,
            Request::LeaveGroup(_) => Api::LeaveGroup,
            Request::OffsetCommit(_) => Api::OffsetCommit,
            Request::OffsetFetch(_) => Api::OffsetFetch,
            Request::Fetch(_) => Api::Fetch,
            Request::ListOffsets(_) => Api::ListOffsets,
            Request::EpochEnd(_) => Api::EpochEnd,
            Request::Produce(_) => Api::Produce,
            Request::InitProducerId(_) => Api::InitProducerId,
            Request::SaslHandshake(_) => Api::SaslHandshake,
            Request::SaslAuthenticate(_) => Api::SaslAuthenticate,
            Request::ConsumerGroupHeartbeat(_) => Api::ConsumerGroupHeartbeat,
        }
    }

    /// The versions that can carry what this request holds: those of its API, narrowed. Fields
    /// that an old broker can do without (a rack, a reason, `require_stable`, a leader epoch) are
    /// left out where the version lacks them and narrow nothing.
    #[must_use]
    pub fn versions(&self) -> VersionRange {
        let VersionRange { mut min, mut max } = self.api().versions();
        // A static member must not be taken for a dynamic one (KIP-345).
        let statically = |instance: &Option<Arc<str>>, from: i16| match instance {
            Some(_) => from,
            None => 0,
        };
        match self {
            Request::JoinGroup(r) => min = min.max(statically(&r.instance_id, 5)),
            Request::SyncGroup(r) => min = min.max(statically(&r.instance_id, 3)),
            Request::Heartbeat(r) => min = min.max(statically(&r.instance_id, 3)),
            Request::LeaveGroup(r) => min = min.max(statically(&r.instance_id, 3)),
            Request::OffsetCommit(r) => {
                min = min.max(statically(&r.instance_id, 7));
                if r.topics.iter().any(|t| t.id.is_zero()) {
                    max = max.min(9);
                }
            }
            // A broker that does not know the expression would take the member for one without
            // a subscription.
            Request::ConsumerGroupHeartbeat(r) if r.topic_regex.is_some() => min = min.max(1),
            Request::OffsetFetch(r) if r.topics.iter().any(|(_, id, _)| id.is_zero()) => {
                max = max.min(9);
            }
            Request::Fetch(r) => {
                if !r.by_id {
                    max = max.min(12);
                }
                // Sessions are KIP-227.
                if r.session_id != 0 || r.session_epoch != -1 || !r.forgotten.is_empty() {
                    min = min.max(7);
                }
            }
            Request::Produce(r) if !r.by_id => max = max.min(12),
            Request::ListOffsets(r) if r.isolation == Isolation::ReadCommitted => min = min.max(2),
            _ => {}
        }
        VersionRange::new(min, max)
    }

    /// The whole frame, with its 4-byte length.
    ///
    /// # Errors
    ///
    /// The version is outside [`Request::versions`], or a value is longer than Kafka can carry.
    pub fn encode(
        &self,
        version: i16,
        correlation_id: i32,
        client_id: &str,
    ) -> Result<Bytes, WireError> {
        let api = self.api();
        let fail = |fault| WireError {
            api,
            version,
            at: 0,
            fault,
        };
        let unwritable = |why: String| fail(WireFault::Unwritable(why));
        if !self.versions().contains(version) {
            return Err(fail(WireFault::Version));
        }
        if let Request::SaslAuthenticate(r) = self {
            return secret_frame(r, version, correlation_id, client_id).map_err(unwritable);
        }
        let mut out = BytesMut::with_capacity(FRAME_BYTES_FIRST);
        out.put_i32(0);
        kp::RequestHeader::default()
            .with_request_api_key(api.key())
            .with_request_api_version(version)
            .with_correlation_id(correlation_id)
            .with_client_id(Some(text(client_id)))
            .encode(&mut out, api.request_header(version))
            .map_err(|e| unwritable(e.to_string()))?;
        self.encode_body(version, &mut out).map_err(unwritable)?;
        let len = i32::try_from(out.len() - 4)
            .map_err(|_| unwritable(format!("{} bytes in one request", out.len())))?;
        out[..4].copy_from_slice(&len.to_be_bytes());
        Ok(out.freeze())
    }

    /// What its answer may take at most, roughly, where the request says so: a hint for
    /// [`Framer::expect`](super::Framer::expect), not a bound.
    #[must_use]
    pub fn answer_bytes(&self) -> usize {
        match self {
            Request::Fetch(r) => {
                let records = usize::try_from(r.max_bytes).unwrap_or(0);
                let partitions: usize = r.topics.iter().map(|t| t.partitions.len()).sum();
                let around = partitions.saturating_mul(FETCH_PARTITION_BYTES);
                records.saturating_add(around).saturating_add(ANSWER_BYTES)
            }
            _ => ANSWER_BYTES,
        }
    }

    fn encode_body(&self, version: i16, out: &mut BytesMut) -> Result<(), String> {
        let written = match self {
            Request::ApiVersions(r) => api_versions(r, version).encode(out, version),
            Request::Metadata(r) => metadata(r).encode(out, version),
            Request::FindCoordinator(r) => find_coordinator(r, version).encode(out, version),
            Request::JoinGroup(r) => join_group(r).encode(out, version),
            Request::SyncGroup(r) => sync_group(r).encode(out, version),
            Request::Heartbeat(r) => heartbeat(r).encode(out, version),
            Request::LeaveGroup(r) => leave_group(r, version).encode(out, version),
            Request::OffsetCommit(r) => offset_commit(r).encode(out, version),
            Request::OffsetFetch(r) => offset_fetch(r, version).encode(out, version),
            Request::Fetch(r) => fetch(r, version).encode(out, version),
            Request::ListOffsets(r) => list_offsets(r).encode(out, version),
            Request::EpochEnd(r) => epoch_end(r).encode(out, version),
            Request::Produce(r) => produce_request(r).encode(out, version),
            Request::InitProducerId(r) => init_producer_id_request(r).encode(out, version),
            Request::SaslHandshake(r) => kp::SaslHandshakeRequest::default()
                .with_mechanism(text(&r.mechanism))
                .encode(out, version),
            // Written by `secret_frame`.
            Request::SaslAuthenticate(_) => Ok(()),
            Request::ConsumerGroupHeartbeat(r) => consumer_group::encode(r).encode(out, version),
        };
        written.map_err(|e| e.to_string())
    }
}

fn api_versions(r: &ApiVersionsRequest, version: i16) -> kp::ApiVersionsRequest {
    let request = kp::ApiVersionsRequest::default();
    match version {
        0..=2 => request,
        _ => request
            .with_client_software_name(text(&r.software_name))
            .with_client_software_version(text(&r.software_version)),
    }
}

fn metadata(r: &MetadataRequest) -> kp::MetadataRequest {
    let topic = |name: &Arc<str>| {
        kp::metadata_request::MetadataRequestTopic::default().with_name(Some(topic_name(name)))
    };
    kp::MetadataRequest::default()
        .with_topics(
            r.topics
                .as_ref()
                .map(|names| names.iter().map(topic).collect()),
        )
        .with_allow_auto_topic_creation(false)
}

fn find_coordinator(r: &FindCoordinatorRequest, version: i16) -> kp::FindCoordinatorRequest {
    // Key type 0, a group, is the default.
    let request = kp::FindCoordinatorRequest::default();
    match version {
        0..=3 => request.with_key(text(&r.group)),
        _ => request.with_coordinator_keys(vec![text(&r.group)]),
    }
}

fn join_group(r: &JoinGroupRequest) -> kp::JoinGroupRequest {
    let protocol = |(name, metadata): &(Arc<str>, Bytes)| {
        kp::join_group_request::JoinGroupRequestProtocol::default()
            .with_name(text(name))
            .with_metadata(metadata.clone())
    };
    kp::JoinGroupRequest::default()
        .with_group_id(group_id(&r.group))
        .with_session_timeout_ms(millis(r.session_timeout))
        .with_rebalance_timeout_ms(millis(r.rebalance_timeout))
        .with_member_id(text(&r.member_id))
        .with_group_instance_id(r.instance_id.as_deref().map(text))
        .with_protocol_type(text(&r.protocol_type))
        .with_protocols(r.protocols.iter().map(protocol).collect())
        .with_reason(reason(&r.reason))
}

fn sync_group(r: &SyncGroupRequest) -> kp::SyncGroupRequest {
    let assignment = |(member, bytes): &(Arc<str>, Bytes)| {
        kp::sync_group_request::SyncGroupRequestAssignment::default()
            .with_member_id(text(member))
            .with_assignment(bytes.clone())
    };
    kp::SyncGroupRequest::default()
        .with_group_id(group_id(&r.group))
        .with_generation_id(r.generation)
        .with_member_id(text(&r.member_id))
        .with_group_instance_id(r.instance_id.as_deref().map(text))
        .with_protocol_type(Some(text(&r.protocol_type)))
        .with_protocol_name(Some(text(&r.protocol_name)))
        .with_assignments(r.assignments.iter().map(assignment).collect())
}

fn heartbeat(r: &HeartbeatRequest) -> kp::HeartbeatRequest {
    kp::HeartbeatRequest::default()
        .with_group_id(group_id(&r.group))
        .with_generation_id(r.generation)
        .with_member_id(text(&r.member_id))
        .with_group_instance_id(r.instance_id.as_deref().map(text))
}

fn leave_group(r: &LeaveGroupRequest, version: i16) -> kp::LeaveGroupRequest {
    let request = kp::LeaveGroupRequest::default().with_group_id(group_id(&r.group));
    if version < 3 {
        return request.with_member_id(text(&r.member_id));
    }
    let member = kp::leave_group_request::MemberIdentity::default()
        .with_member_id(text(&r.member_id))
        .with_group_instance_id(r.instance_id.as_deref().map(text))
        .with_reason(reason(&r.reason));
    request.with_members(vec![member])
}

fn offset_commit(r: &OffsetCommitRequest) -> kp::OffsetCommitRequest {
    use kp::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
    let topics = r.topics.iter().map(|t| {
        let partitions = t.partitions.iter().map(|p| {
            OffsetCommitRequestPartition::default()
                .with_partition_index(p.partition)
                .with_committed_offset(p.offset)
                .with_committed_leader_epoch(p.leader_epoch)
                .with_committed_metadata(p.metadata.as_deref().map(text))
        });
        OffsetCommitRequestTopic::default()
            .with_name(topic_name(&t.name))
            .with_topic_id(uuid(t.id))
            .with_partitions(partitions.collect())
    });
    kp::OffsetCommitRequest::default()
        .with_group_id(group_id(&r.group))
        .with_generation_id_or_member_epoch(r.generation)
        .with_member_id(text(&r.member_id))
        .with_group_instance_id(r.instance_id.as_deref().map(text))
        .with_topics(topics.collect())
}

fn offset_fetch(r: &OffsetFetchRequest, version: i16) -> kp::OffsetFetchRequest {
    use kp::offset_fetch_request as of;
    // Without it (before KIP-447) the broker gives the last stable answer it has.
    let stable = r.require_stable && version >= 7;
    let request = kp::OffsetFetchRequest::default().with_require_stable(stable);
    if version < 8 {
        let topics = r.topics.iter().map(|(name, _, partitions)| {
            of::OffsetFetchRequestTopic::default()
                .with_name(topic_name(name))
                .with_partition_indexes(partitions.clone())
        });
        return request
            .with_group_id(group_id(&r.group))
            .with_topics(Some(topics.collect()));
    }
    let topics = r.topics.iter().map(|(name, id, partitions)| {
        of::OffsetFetchRequestTopics::default()
            .with_name(topic_name(name))
            .with_topic_id(uuid(*id))
            .with_partition_indexes(partitions.clone())
    });
    let member = r.member.as_ref().filter(|_| version >= 9);
    let group = of::OffsetFetchRequestGroup::default()
        .with_group_id(group_id(&r.group))
        .with_member_id(member.map(|(id, _)| text(id)))
        .with_member_epoch(member.map_or(-1, |(_, epoch)| *epoch))
        .with_topics(Some(topics.collect()));
    request.with_groups(vec![group])
}

fn fetch(r: &FetchRequest, version: i16) -> kp::FetchRequest {
    use kp::fetch_request as f;
    let topics = r.topics.iter().map(|t| {
        let partitions = t.partitions.iter().map(|p| {
            let last_epoch = if version >= 12 {
                p.last_fetched_epoch
            } else {
                -1
            };
            f::FetchPartition::default()
                .with_partition(p.partition)
                .with_current_leader_epoch(p.current_leader_epoch)
                .with_fetch_offset(p.offset)
                .with_last_fetched_epoch(last_epoch)
                .with_partition_max_bytes(p.max_bytes)
        });
        f::FetchTopic::default()
            .with_topic(topic_name(&t.name))
            .with_topic_id(uuid(t.id))
            .with_partitions(partitions.collect())
    });
    let forgotten = r.forgotten.iter().map(|(name, id, partitions)| {
        f::ForgottenTopic::default()
            .with_topic(topic_name(name))
            .with_topic_id(uuid(*id))
            .with_partitions(partitions.clone())
    });
    kp::FetchRequest::default()
        .with_max_wait_ms(millis(r.max_wait))
        .with_min_bytes(r.min_bytes)
        .with_max_bytes(r.max_bytes)
        .with_isolation_level(isolation(r.isolation))
        .with_session_id(r.session_id)
        .with_session_epoch(r.session_epoch)
        .with_topics(topics.collect())
        .with_forgotten_topics_data(forgotten.collect())
        .with_rack_id(text(&r.rack))
}

fn list_offsets(r: &ListOffsetsRequest) -> kp::ListOffsetsRequest {
    use kp::list_offsets_request as lo;
    let topics = r.topics.iter().map(|(name, partitions)| {
        let partitions = partitions.iter().map(|p| {
            lo::ListOffsetsPartition::default()
                .with_partition_index(p.partition)
                .with_current_leader_epoch(p.current_leader_epoch)
                .with_timestamp(p.timestamp)
        });
        lo::ListOffsetsTopic::default()
            .with_name(topic_name(name))
            .with_partitions(partitions.collect())
    });
    kp::ListOffsetsRequest::default()
        .with_replica_id(CONSUMER.into())
        .with_isolation_level(isolation(r.isolation))
        .with_topics(topics.collect())
        .with_timeout_ms(millis(REMOTE_LOOKUP_TIMEOUT))
}

fn epoch_end(r: &EpochEndRequest) -> kp::OffsetForLeaderEpochRequest {
    use kp::offset_for_leader_epoch_request as ee;
    let topics = r.topics.iter().map(|(name, partitions)| {
        let partitions = partitions.iter().map(|p| {
            ee::OffsetForLeaderPartition::default()
                .with_partition(p.partition)
                .with_current_leader_epoch(p.current_leader_epoch)
                .with_leader_epoch(p.epoch)
        });
        ee::OffsetForLeaderTopic::default()
            .with_topic(topic_name(name))
            .with_partitions(partitions.collect())
    });
    kp::OffsetForLeaderEpochRequest::default()
        .with_replica_id(CONSUMER.into())
        .with_topics(topics.collect())
}

/// A frame that holds credentials: written in one allocation, which is wiped with the last handle
/// on it. A buffer that grows, as the encoder's does, would leave copies behind.
fn secret_frame(
    r: &SaslAuthenticateRequest,
    version: i16,
    correlation_id: i32,
    client_id: &str,
) -> Result<Bytes, String> {
    let auth = r.auth.as_bytes();
    let flexible = Api::SaslAuthenticate.request_header(version) >= 2;
    let id = i16::try_from(client_id.len()).map_err(|_| "the client id is too long".to_owned())?;
    let len = i32::try_from(auth.len()).map_err(|_| "the message is too long".to_owned())?;
    // The header with a client id, two empty sets of tags, and the longest of lengths.
    let mut out = Vec::with_capacity(4 + 10 + client_id.len() + 2 + 5 + auth.len());
    out.put_i32(0);
    out.put_i16(Api::SaslAuthenticate.key());
    out.put_i16(version);
    out.put_i32(correlation_id);
    out.put_i16(id);
    out.put_slice(client_id.as_bytes());
    if flexible {
        out.put_u8(0);
        let mut left = len as u32 + 1;
        while left >= 0x80 {
            out.put_u8((left & 0x7f) as u8 | 0x80);
            left >>= 7;
        }
        out.put_u8(left as u8);
        out.put_slice(auth);
        out.put_u8(0);
    } else {
        out.put_i32(len);
        out.put_slice(auth);
    }
    let whole = i32::try_from(out.len() - 4).map_err(|_| "the message is too long".to_owned())?;
    out[..4].copy_from_slice(&whole.to_be_bytes());
    Ok(Bytes::from_owner(Secret::from(out)))
}

fn text(s: &str) -> StrBytes {
    StrBytes::from_string(s.to_owned())
}

pub(super) fn topic_name(s: &str) -> kp::TopicName {
    kp::TopicName(text(s))
}

fn group_id(s: &str) -> kp::GroupId {
    kp::GroupId(text(s))
}

pub(super) fn uuid(id: TopicId) -> uuid::Uuid {
    uuid::Uuid::from_bytes(id.0)
}

fn isolation(isolation: Isolation) -> i8 {
    match isolation {
        Isolation::ReadUncommitted => 0,
        Isolation::ReadCommitted => 1,
    }
}

pub(super) fn millis(d: Duration) -> i32 {
    i32::try_from(d.as_millis()).unwrap_or(i32::MAX)
}

fn reason(reason: &Option<Arc<str>>) -> Option<StrBytes> {
    reason.as_ref().map(|r| {
        let cut = r.char_indices().nth(REASON_CHARS_MAX);
        text(cut.map_or(r, |(at, _)| &r[..at]))
    })
}

/// The replica id of one that is no broker.
const CONSUMER: i32 = -1;
/// KIP-800: the broker refuses longer ones.
const REASON_CHARS_MAX: usize = 255;
/// How long a broker may look in tiered storage for an offset (v10+). Zero would end that look at
/// once; before v10 the broker has its own limit.
const REMOTE_LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes reserved for a request before its size is known; most are smaller.
const FRAME_BYTES_FIRST: usize = 256;
/// Bytes that an answer other than a fetch's is expected to take.
const ANSWER_BYTES: usize = 16 * 1024;
/// Bytes around the records of one partition in an answer, about.
const FETCH_PARTITION_BYTES: usize = 64;
