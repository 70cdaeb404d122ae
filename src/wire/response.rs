//! Answers, read by our own bounded readers.

use std::time::Duration;

use bytes::Bytes;

use super::api::{Api, ApiRanges, VersionRange};
use super::consumer_group;
use super::fetch_reader;
use super::message::{
    ApiVersionsResponse, BrokerEndpoint, Code, ConsumerGroupHeartbeatResponse, EpochEnd,
    EpochEndAnswer, EpochEndResponse, FetchResponse, FindCoordinatorResponse, HeartbeatResponse,
    InitProducerIdResponse, JoinGroupMember, JoinGroupResponse, LeaveGroupResponse,
    ListOffsetsAnswer, ListOffsetsResponse, MetadataResponse, OffsetCommitResponse,
    OffsetCommitResponseTopic, OffsetFetchPartition, OffsetFetchResponse, OffsetFetchTopic,
    PartitionMetadata, ProduceResponse, SaslAuthenticateResponse, SaslHandshakeResponse,
    SyncGroupResponse, TopicMetadata,
};
use super::produce;
use super::reader::{Reader, WireError, WireFault};
use crate::ids::{NodeId, TopicId};

/// What a broker answered, free of versions.
///
/// ```
/// use bytes::Bytes;
/// use laneway::wire::{Api, Code, Response};
/// let body = Bytes::from_static(&[0, 0, 0, 0, 0, 27]);
/// let Ok(Response::Heartbeat(answer)) = Response::decode(Api::Heartbeat, 3, body) else {
///     panic!("six bytes are a heartbeat's answer of version 3");
/// };
/// assert_eq!(answer.code, Code::REBALANCE_IN_PROGRESS);
/// assert!(Response::decode(Api::Heartbeat, 3, Bytes::from_static(&[0, 0])).is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Response {
    /// What the broker speaks.
    ApiVersions(ApiVersionsResponse),
    /// Brokers, topics and leaders.
    Metadata(MetadataResponse),
    /// The coordinator of a group.
    FindCoordinator(FindCoordinatorResponse),
    /// The generation that a join led to.
    JoinGroup(JoinGroupResponse),
    /// Our share.
    SyncGroup(SyncGroupResponse),
    /// Whether the membership is alive.
    Heartbeat(HeartbeatResponse),
    /// Whether we left.
    LeaveGroup(LeaveGroupResponse),
    /// How each partition's commit went.
    OffsetCommit(OffsetCommitResponse),
    /// The committed offsets.
    OffsetFetch(OffsetFetchResponse),
    /// Records.
    Fetch(FetchResponse),
    /// The offsets.
    ListOffsets(ListOffsetsResponse),
    /// Where the epochs ended.
    EpochEnd(EpochEndResponse),
    /// How each batch fared.
    Produce(ProduceResponse),
    /// A producer id.
    InitProducerId(InitProducerIdResponse),
    /// Whether the mechanism is offered.
    SaslHandshake(SaslHandshakeResponse),
    /// The server's side of an exchange.
    SaslAuthenticate(SaslAuthenticateResponse),
    /// What the coordinator says to a member.
    ConsumerGroupHeartbeat(ConsumerGroupHeartbeatResponse),
}

impl Response {
    /// Reads the body of an answer (what [`split_header`] leaves), to its last byte.
    ///
    /// # Errors
    ///
    /// The bytes are not such an answer, or `version` is one that we do not read.
    pub fn decode(api: Api, version: i16, body: Bytes) -> Result<Response, WireError> {
        let fail = |at, fault| WireError {
            api,
            version,
            at,
            fault,
        };
        if !readable(api).contains(version) {
            return Err(fail(0, WireFault::Version));
        }
        // ApiVersions has header 0 in every version, but bodies like all others.
        let flexible = api.request_header(version) >= 2;
        let mut r = Reader::new(&body, flexible);
        let read = match api {
            Api::ApiVersions => api_versions(&mut r, version).map(Response::ApiVersions),
            Api::Metadata => metadata(&mut r, version).map(Response::Metadata),
            Api::FindCoordinator => {
                find_coordinator(&mut r, version).map(Response::FindCoordinator)
            }
            Api::JoinGroup => join_group(&mut r, version).map(Response::JoinGroup),
            Api::SyncGroup => sync_group(&mut r, version).map(Response::SyncGroup),
            Api::Heartbeat => heartbeat(&mut r, version).map(Response::Heartbeat),
            Api::LeaveGroup => leave_group(&mut r, version).map(Response::LeaveGroup),
            Api::OffsetCommit => offset_commit(&mut r, version).map(Response::OffsetCommit),
            Api::OffsetFetch => offset_fetch(&mut r, version).map(Response::OffsetFetch),
            Api::Fetch => fetch_reader::fetch(&mut r, version).map(Response::Fetch),
            Api::ListOffsets => list_offsets(&mut r, version).map(Response::ListOffsets),
            Api::EpochEnd => epoch_end(&mut r).map(Response::EpochEnd),
            Api::Produce => produce::produce(&mut r, version).map(Response::Produce),
            Api::InitProducerId => produce::init_producer_id(&mut r).map(Response::InitProducerId),
            Api::SaslHandshake => sasl_handshake(&mut r).map(Response::SaslHandshake),
            Api::SaslAuthenticate => {
                sasl_authenticate(&mut r, version).map(Response::SaslAuthenticate)
            }
            Api::ConsumerGroupHeartbeat => {
                consumer_group::read(&mut r).map(Response::ConsumerGroupHeartbeat)
            }
        };
        let read = read.and_then(|response| r.finish().map(|()| response));
        read.map_err(|fault| fail(r.at(), fault))
    }

    /// The API it belongs to.
    #[must_use]
    pub fn api(&self) -> Api {
        match self {
            Response::ApiVersions(_) => Api::ApiVersions,
            Response::Metadata(_) => Api::Metadata,
            Response::FindCoordinator(_) => Api::FindCoordinator,
            Response::JoinGroup(_) => Api::JoinGroup,
            Response::SyncGroup(_) => Api::SyncGroup,
            Response::Heartbeat(_) => Api::Heartbeat,
            Response::LeaveGroup(_) => Api::LeaveGroup,
            Response::OffsetCommit(_) => Api::OffsetCommit,
            Response::OffsetFetch(_) => Api::OffsetFetch,
            Response::Fetch(_) => Api::Fetch,
            Response::ListOffsets(_) => Api::ListOffsets,
            Response::EpochEnd(_) => Api::EpochEnd,
            Response::Produce(_) => Api::Produce,
            Response::InitProducerId(_) => Api::InitProducerId,
            Response::SaslHandshake(_) => Api::SaslHandshake,
            Response::SaslAuthenticate(_) => Api::SaslAuthenticate,
            Response::ConsumerGroupHeartbeat(_) => Api::ConsumerGroupHeartbeat,
        }
    }

    /// How long the broker asks the link to be silent (KIP-219).
    #[must_use]
    pub fn throttle(&self) -> Duration {
        match self {
            Response::ApiVersions(r) => r.throttle,
            Response::Metadata(r) => r.throttle,
            Response::FindCoordinator(r) => r.throttle,
            Response::JoinGroup(r) => r.throttle,
            Response::SyncGroup(r) => r.throttle,
            Response::Heartbeat(r) => r.throttle,
            Response::LeaveGroup(r) => r.throttle,
            Response::OffsetCommit(r) => r.throttle,
            Response::OffsetFetch(r) => r.throttle,
            Response::Fetch(r) => r.throttle,
            Response::ListOffsets(r) => r.throttle,
            Response::EpochEnd(r) => r.throttle,
            Response::Produce(r) => r.throttle,
            Response::InitProducerId(r) => r.throttle,
            Response::SaslHandshake(_) | Response::SaslAuthenticate(_) => Duration::ZERO,
            Response::ConsumerGroupHeartbeat(r) => r.throttle,
        }
    }
}

/// Cuts the header off the answer to a request of `api` and `version`: the correlation id and the
/// body, a slice of the frame.
///
/// # Errors
///
/// The frame ends inside the header.
pub fn split_header(api: Api, version: i16, frame: &Bytes) -> Result<(i32, Bytes), WireError> {
    let flexible = api.response_header(version) >= 1;
    let mut r = Reader::new(frame, flexible);
    let read = r.i32().and_then(|id| r.skip_tags().map(|()| id));
    match read {
        Ok(id) => Ok((id, frame.slice(r.at()..))),
        Err(fault) => Err(WireError {
            api,
            version,
            at: r.at(),
            fault,
        }),
    }
}

/// What we read: also versions that only the request side cannot write yet.
fn readable(api: Api) -> VersionRange {
    let VersionRange { min, max } = api.versions();
    match api {
        Api::Metadata => VersionRange::new(0, max),
        Api::OffsetCommit | Api::OffsetFetch => VersionRange::new(min, 10),
        _ => VersionRange::new(min, max),
    }
}

pub(super) type Read<T> = Result<T, WireFault>;

fn sasl_handshake(r: &mut Reader<'_>) -> Read<SaslHandshakeResponse> {
    Ok(SaslHandshakeResponse {
        code: r.code()?,
        mechanisms: r.list(2, Reader::string)?,
    })
}

fn sasl_authenticate(r: &mut Reader<'_>, version: i16) -> Read<SaslAuthenticateResponse> {
    let code = r.code()?;
    let message = r.nullable_string()?;
    let auth = r.nullable_bytes()?.unwrap_or_default();
    // Below zero, as zero, means that nothing ends (KIP-368).
    let millis = if version >= 1 { r.i64()? } else { 0 };
    r.skip_tags()?;
    Ok(SaslAuthenticateResponse {
        code,
        message,
        auth,
        lifetime: Duration::from_millis(u64::try_from(millis).unwrap_or(0)),
    })
}

fn api_versions(r: &mut Reader<'_>, version: i16) -> Read<ApiVersionsResponse> {
    let code = r.code()?;
    let listed = r.list(6, |r| {
        let listed = (r.i16()?, VersionRange::new(r.i16()?, r.i16()?));
        r.skip_tags()?;
        Ok(listed)
    })?;
    let throttle = throttle(r, version >= 1)?;
    r.skip_tags()?;
    let ranges = ApiRanges::new(listed);
    Ok(ApiVersionsResponse {
        throttle,
        code,
        ranges,
    })
}

fn metadata(r: &mut Reader<'_>, version: i16) -> Read<MetadataResponse> {
    let throttle = throttle(r, version >= 3)?;
    let brokers = r.list(10, |r| {
        let node = NodeId(r.i32()?);
        let host = r.string()?;
        let port = r.port()?;
        let rack = if version >= 1 {
            r.nullable_string()?
        } else {
            None
        };
        r.skip_tags()?;
        Ok(BrokerEndpoint {
            node,
            host,
            port,
            rack,
        })
    })?;
    let cluster_id = if version >= 2 {
        r.nullable_string()?
    } else {
        None
    };
    let controller = if version >= 1 { r.i32()? } else { -1 };
    let topics = r.list(5, |r| topic_metadata(r, version))?;
    if (8..=10).contains(&version) {
        r.i32()?; // what we may do with the cluster
    }
    let code = if version >= 13 { r.code()? } else { Code(0) };
    r.skip_tags()?;
    Ok(MetadataResponse {
        throttle,
        code,
        brokers,
        cluster_id,
        controller,
        topics,
    })
}

fn topic_metadata(r: &mut Reader<'_>, version: i16) -> Read<TopicMetadata> {
    let code = r.code()?;
    let name = if version >= 12 {
        r.nullable_string()?
    } else {
        Some(r.string()?)
    };
    let id = if version >= 10 {
        r.topic_id()?
    } else {
        TopicId::ZERO
    };
    let internal = version >= 1 && r.bool()?;
    let partitions = r.list(17, |r| {
        let code = r.code()?;
        let partition = r.i32()?;
        let leader = r.i32()?;
        let leader_epoch = if version >= 7 { r.i32()? } else { -1 };
        let replicas = r.list(4, Reader::i32)?;
        let isr = r.list(4, Reader::i32)?;
        if version >= 5 {
            r.skip_list(4)?; // replicas whose disk is offline
        }
        r.skip_tags()?;
        Ok(PartitionMetadata {
            code,
            partition,
            leader,
            leader_epoch,
            replicas,
            isr,
        })
    })?;
    if version >= 8 {
        r.i32()?; // what we may do with the topic
    }
    r.skip_tags()?;
    Ok(TopicMetadata {
        code,
        name,
        id,
        internal,
        partitions,
    })
}

fn find_coordinator(r: &mut Reader<'_>, version: i16) -> Read<FindCoordinatorResponse> {
    let throttle = throttle(r, version >= 1)?;
    if version < 4 {
        let code = r.code()?;
        let message = if version >= 1 {
            r.nullable_string()?
        } else {
            None
        };
        let coordinator = coordinator(r, |_| Ok(code))?;
        r.skip_tags()?;
        return Ok(FindCoordinatorResponse {
            throttle,
            code,
            message,
            coordinator,
        });
    }
    // We ask for one group, so the first is ours.
    let answer = r.first(16, |r| {
        r.string()?;
        let mut code = Code(0);
        let coordinator = coordinator(r, |r| {
            code = r.code()?;
            Ok(code)
        })?;
        let message = r.nullable_string()?;
        r.skip_tags()?;
        Ok(FindCoordinatorResponse {
            throttle,
            code,
            message,
            coordinator,
        })
    })?;
    r.skip_tags()?;
    Ok(answer)
}

/// Node, host and port, which mean nothing (-1, "", -1) beside an error. `code` gives the error,
/// which some versions have after them.
fn coordinator(
    r: &mut Reader<'_>,
    code: impl FnOnce(&mut Reader<'_>) -> Read<Code>,
) -> Read<Option<BrokerEndpoint>> {
    let node = NodeId(r.i32()?);
    let host = r.string()?;
    let port = r.i32()?;
    if code(r)? != Code(0) {
        return Ok(None);
    }
    let port = u16::try_from(port).map_err(|_| WireFault::Value(i64::from(port)))?;
    Ok(Some(BrokerEndpoint {
        node,
        host,
        port,
        rack: None,
    }))
}

fn join_group(r: &mut Reader<'_>, version: i16) -> Read<JoinGroupResponse> {
    let throttle = throttle(r, version >= 2)?;
    let code = r.code()?;
    let generation = r.i32()?;
    let protocol_type = if version >= 7 {
        r.nullable_string()?
    } else {
        None
    };
    let protocol_name = if version >= 7 {
        r.nullable_string()?
    } else {
        Some(r.string()?)
    };
    let leader = r.string()?;
    let skip_assignment = version >= 9 && r.bool()?;
    let member_id = r.string()?;
    let members = r.list(4, |r| {
        let member_id = r.string()?;
        let instance_id = if version >= 5 {
            r.nullable_string()?
        } else {
            None
        };
        let metadata = r.bytes()?;
        r.skip_tags()?;
        Ok(JoinGroupMember {
            member_id,
            instance_id,
            metadata,
        })
    })?;
    r.skip_tags()?;
    Ok(JoinGroupResponse {
        throttle,
        code,
        generation,
        protocol_type,
        protocol_name,
        leader,
        skip_assignment,
        member_id,
        members,
    })
}

fn sync_group(r: &mut Reader<'_>, version: i16) -> Read<SyncGroupResponse> {
    let throttle = throttle(r, version >= 1)?;
    let code = r.code()?;
    let protocol_type = if version >= 5 {
        r.nullable_string()?
    } else {
        None
    };
    let protocol_name = if version >= 5 {
        r.nullable_string()?
    } else {
        None
    };
    let assignment = r.bytes()?;
    r.skip_tags()?;
    Ok(SyncGroupResponse {
        throttle,
        code,
        protocol_type,
        protocol_name,
        assignment,
    })
}

fn heartbeat(r: &mut Reader<'_>, version: i16) -> Read<HeartbeatResponse> {
    let throttle = throttle(r, version >= 1)?;
    let code = r.code()?;
    r.skip_tags()?;
    Ok(HeartbeatResponse { throttle, code })
}

fn leave_group(r: &mut Reader<'_>, version: i16) -> Read<LeaveGroupResponse> {
    let throttle = throttle(r, version >= 1)?;
    let mut code = r.code()?;
    if version >= 3 {
        let members = r.list(4, |r| {
            r.string()?;
            r.nullable_string()?;
            let code = r.code()?;
            r.skip_tags()?;
            Ok(code)
        })?;
        // We leave alone, so a member's error is ours.
        let member = members.into_iter().find(|code| *code != Code(0));
        if code == Code(0) {
            code = member.unwrap_or_default();
        }
    }
    r.skip_tags()?;
    Ok(LeaveGroupResponse { throttle, code })
}

fn offset_commit(r: &mut Reader<'_>, version: i16) -> Read<OffsetCommitResponse> {
    let throttle = throttle(r, version >= 3)?;
    let topics = r.list(3, |r| {
        let (name, id) = topic(r, version >= 10)?;
        let partitions = r.list(6, |r| {
            let answer = (r.i32()?, r.code()?);
            r.skip_tags()?;
            Ok(answer)
        })?;
        r.skip_tags()?;
        Ok(OffsetCommitResponseTopic {
            name,
            id,
            partitions,
        })
    })?;
    r.skip_tags()?;
    Ok(OffsetCommitResponse { throttle, topics })
}

fn offset_fetch(r: &mut Reader<'_>, version: i16) -> Read<OffsetFetchResponse> {
    let throttle = throttle(r, version >= 3)?;
    if version < 8 {
        let topics = r.list(3, |r| offset_fetch_topic(r, version))?;
        let code = if version >= 2 { r.code()? } else { Code(0) };
        r.skip_tags()?;
        return Ok(OffsetFetchResponse {
            throttle,
            code,
            topics,
        });
    }
    // We ask for one group, so the first is ours.
    let group = r.first(5, |r| {
        r.string()?;
        let topics = r.list(3, |r| offset_fetch_topic(r, version))?;
        let code = r.code()?;
        r.skip_tags()?;
        Ok(OffsetFetchResponse {
            throttle,
            code,
            topics,
        })
    })?;
    r.skip_tags()?;
    Ok(group)
}

fn offset_fetch_topic(r: &mut Reader<'_>, version: i16) -> Read<OffsetFetchTopic> {
    let (name, id) = topic(r, version >= 10)?;
    let partitions = r.list(15, |r| {
        let partition = r.i32()?;
        let offset = r.i64()?;
        let leader_epoch = if version >= 5 { r.i32()? } else { -1 };
        let metadata = r.nullable_string()?;
        let code = r.code()?;
        r.skip_tags()?;
        Ok(OffsetFetchPartition {
            partition,
            offset,
            leader_epoch,
            metadata,
            code,
        })
    })?;
    r.skip_tags()?;
    Ok(OffsetFetchTopic {
        name,
        id,
        partitions,
    })
}

fn list_offsets(r: &mut Reader<'_>, version: i16) -> Read<ListOffsetsResponse> {
    let throttle = throttle(r, version >= 2)?;
    let topics = r.list(3, |r| {
        let name = r.string()?;
        let answers = r.list(22, |r| {
            let partition = r.i32()?;
            let code = r.code()?;
            let timestamp = r.i64()?;
            let offset = r.i64()?;
            let leader_epoch = if version >= 4 { r.i32()? } else { -1 };
            r.skip_tags()?;
            Ok(ListOffsetsAnswer {
                partition,
                code,
                timestamp,
                offset,
                leader_epoch,
            })
        })?;
        r.skip_tags()?;
        Ok((name, answers))
    })?;
    r.skip_tags()?;
    Ok(ListOffsetsResponse { throttle, topics })
}

fn epoch_end(r: &mut Reader<'_>) -> Read<EpochEndResponse> {
    let throttle = r.millis()?;
    let topics = r.list(3, |r| {
        let name = r.string()?;
        let answers = r.list(18, |r| {
            let code = r.code()?;
            let partition = r.i32()?;
            let end = EpochEnd {
                epoch: r.i32()?,
                end_offset: r.i64()?,
            };
            r.skip_tags()?;
            Ok(EpochEndAnswer {
                partition,
                code,
                end,
            })
        })?;
        r.skip_tags()?;
        Ok((name, answers))
    })?;
    r.skip_tags()?;
    Ok(EpochEndResponse { throttle, topics })
}

fn throttle(r: &mut Reader<'_>, there: bool) -> Read<Duration> {
    match there {
        true => r.millis(),
        false => Ok(Duration::ZERO),
    }
}

/// A topic's name, or its id in its place.
pub(super) fn topic(r: &mut Reader<'_>, by_id: bool) -> Read<(std::sync::Arc<str>, TopicId)> {
    match by_id {
        true => Ok((r.no_name(), r.topic_id()?)),
        false => Ok((r.string()?, TopicId::ZERO)),
    }
}

/// Where the leaders are that an answer names beside the partitions (KIP-951).
pub(super) fn node_endpoints(r: &mut Reader<'_>) -> Read<Vec<BrokerEndpoint>> {
    r.list(NODE_ENDPOINT_BYTES_MIN, |r| {
        let node = NodeId(r.i32()?);
        let host = r.string()?;
        let port = r.port()?;
        let rack = r.nullable_string()?;
        r.skip_tags()?;
        Ok(BrokerEndpoint {
            node,
            host,
            port,
            rack,
        })
    })
}

/// Node, an empty host, port, no rack, no tags.
const NODE_ENDPOINT_BYTES_MIN: usize = 11;
