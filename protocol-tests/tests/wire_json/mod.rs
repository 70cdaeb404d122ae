//! From the JSON of Kafka's own converters to our types. Shares nothing with the readers that it checks.

mod samples;

pub use samples::{assert_says, samples};

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages as kp;
use kafka_protocol::protocol::Decodable;
use laneway::ids::{NodeId, TopicId};
use laneway::wire::message::*;
use laneway::wire::{Api, ApiRanges, Request, Response, VersionRange};
use serde_json::Value;

/// The same answer with each records field replaced by its size, which is all that Kafka's JSON
/// says of it.
pub fn without_record_bytes(mut response: Response) -> Response {
    if let Response::Fetch(fetch) = &mut response {
        for partition in fetch.topics.iter_mut().flat_map(|t| &mut t.partitions) {
            partition.records = size_of(i64::try_from(partition.records.len()).unwrap());
        }
    }
    response
}

fn size_of(n: i64) -> Bytes {
    Bytes::copy_from_slice(&n.to_be_bytes())
}

/// What Kafka's JSON says, as our type.
pub fn response(api: Api, version: i16, v: &Value) -> Response {
    let throttle = millis(v, "throttleTimeMs");
    let code = code(v);
    match api {
        Api::ApiVersions => Response::ApiVersions(ApiVersionsResponse {
            throttle,
            code,
            ranges: ApiRanges::new(list(v, "apiKeys").map(|k| {
                (
                    i16_of(k, "apiKey"),
                    VersionRange::new(i16_of(k, "minVersion"), i16_of(k, "maxVersion")),
                )
            })),
        }),
        Api::Metadata => Response::Metadata(MetadataResponse {
            throttle,
            code,
            brokers: list(v, "brokers").map(endpoint).collect(),
            cluster_id: text_or_null(v, "clusterId"),
            controller: int(v, "controllerId", -1),
            topics: list(v, "topics").map(topic_metadata).collect(),
        }),
        Api::FindCoordinator => {
            let answer = if version >= 4 {
                list(v, "coordinators").next().unwrap()
            } else {
                v
            };
            let code = self::code(answer);
            Response::FindCoordinator(FindCoordinatorResponse {
                throttle,
                code,
                message: text_or_null(answer, "errorMessage"),
                coordinator: code.is_none().then(|| endpoint(answer)),
            })
        }
        Api::JoinGroup => Response::JoinGroup(JoinGroupResponse {
            throttle,
            code,
            generation: int(v, "generationId", -1),
            protocol_type: text_or_null(v, "protocolType"),
            protocol_name: text_or_null(v, "protocolName"),
            leader: text(v, "leader"),
            skip_assignment: v["skipAssignment"].as_bool().unwrap_or(false),
            member_id: text(v, "memberId"),
            members: list(v, "members")
                .map(|m| JoinGroupMember {
                    member_id: text(m, "memberId"),
                    instance_id: text_or_null(m, "groupInstanceId"),
                    metadata: base64(m, "metadata"),
                })
                .collect(),
        }),
        Api::SyncGroup => Response::SyncGroup(SyncGroupResponse {
            throttle,
            code,
            protocol_type: text_or_null(v, "protocolType"),
            protocol_name: text_or_null(v, "protocolName"),
            assignment: base64(v, "assignment"),
        }),
        Api::Heartbeat => Response::Heartbeat(HeartbeatResponse { throttle, code }),
        Api::LeaveGroup => {
            let member = list(v, "members").map(self::code).find(|c| !c.is_none());
            let code = if code.is_none() {
                member.unwrap_or_default()
            } else {
                code
            };
            Response::LeaveGroup(LeaveGroupResponse { throttle, code })
        }
        Api::OffsetCommit => Response::OffsetCommit(OffsetCommitResponse {
            throttle,
            topics: list(v, "topics")
                .map(|t| OffsetCommitResponseTopic {
                    name: text_or_null(t, "name").unwrap_or_default(),
                    id: topic_id(t),
                    partitions: list(t, "partitions")
                        .map(|p| (int(p, "partitionIndex", -9), self::code(p)))
                        .collect(),
                })
                .collect(),
        }),
        Api::OffsetFetch => {
            let group = if version >= 8 {
                list(v, "groups").next().unwrap()
            } else {
                v
            };
            Response::OffsetFetch(OffsetFetchResponse {
                throttle,
                code: self::code(group),
                topics: list(group, "topics").map(offset_fetch_topic).collect(),
            })
        }
        Api::Fetch => Response::Fetch(FetchResponse {
            throttle,
            code,
            session_id: int(v, "sessionId", 0),
            topics: list(v, "responses")
                .map(|t| FetchResponseTopic {
                    name: text_or_null(t, "topic").unwrap_or_default(),
                    id: topic_id(t),
                    partitions: list(t, "partitions").map(fetched).collect(),
                })
                .collect(),
            endpoints: list(v, "nodeEndpoints").map(endpoint).collect(),
        }),
        Api::ListOffsets => Response::ListOffsets(ListOffsetsResponse {
            throttle,
            topics: topics(v, "name", |p| ListOffsetsAnswer {
                partition: int(p, "partitionIndex", -9),
                code: self::code(p),
                timestamp: long(p, "timestamp", -9),
                offset: long(p, "offset", -9),
                leader_epoch: int(p, "leaderEpoch", -1),
            }),
        }),
        Api::EpochEnd => Response::EpochEnd(EpochEndResponse {
            throttle,
            topics: topics(v, "topic", |p| EpochEndAnswer {
                partition: int(p, "partition", -9),
                code: self::code(p),
                end: EpochEnd {
                    epoch: int(p, "leaderEpoch", -9),
                    end_offset: long(p, "endOffset", -9),
                },
            }),
        }),
        Api::Produce => Response::Produce(ProduceResponse {
            throttle,
            topics: list(v, "responses").map(produced_topic).collect(),
            endpoints: list(v, "nodeEndpoints").map(endpoint).collect(),
        }),
        Api::InitProducerId => Response::InitProducerId(InitProducerIdResponse {
            throttle,
            code,
            producer_id: long(v, "producerId", -9),
            epoch: i16_of(v, "producerEpoch"),
        }),
        Api::SaslHandshake => Response::SaslHandshake(SaslHandshakeResponse {
            code,
            mechanisms: list(v, "mechanisms")
                .map(|m| Arc::from(m.as_str().unwrap()))
                .collect(),
        }),
        Api::SaslAuthenticate => Response::SaslAuthenticate(SaslAuthenticateResponse {
            code,
            message: text_or_null(v, "errorMessage"),
            auth: base64(v, "authBytes"),
            lifetime: Duration::from_millis(
                u64::try_from(long(v, "sessionLifetimeMs", 0)).unwrap_or(0),
            ),
        }),
        Api::ConsumerGroupHeartbeat => {
            Response::ConsumerGroupHeartbeat(ConsumerGroupHeartbeatResponse {
                throttle,
                code,
                message: text_or_null(v, "errorMessage"),
                member_id: text_or_null(v, "memberId"),
                member_epoch: int(v, "memberEpoch", -9),
                interval: millis(v, "heartbeatIntervalMs"),
                assignment: by_id(&v["assignment"]),
            })
        }
        other => panic!("{other}: no JSON known"),
    }
}

fn produced_topic(t: &Value) -> ProduceResponseTopic {
    ProduceResponseTopic {
        name: text_or_null(t, "name").unwrap_or_default(),
        id: topic_id(t),
        partitions: list(t, "partitionResponses")
            .map(|p| ProduceAnswer {
                partition: int(p, "index", -9),
                code: code(p),
                base_offset: long(p, "baseOffset", -9),
                append_time: long(p, "logAppendTimeMs", -1),
                log_start: long(p, "logStartOffset", -1),
                record_errors: list(p, "recordErrors")
                    .map(|e| {
                        let words = text_or_null(e, "batchIndexErrorMessage");
                        (int(e, "batchIndex", -9), words)
                    })
                    .collect(),
                message: text_or_null(p, "errorMessage"),
                current_leader: p
                    .get("currentLeader")
                    .map(|l| (int(l, "leaderId", -1), int(l, "leaderEpoch", -1))),
            })
            .collect(),
    }
}

/// The partitions in `v`, unless that is null.
fn by_id(v: &Value) -> Option<PartitionsById> {
    v["topicPartitions"].as_array()?;
    let topics = list(v, "topicPartitions").map(|t| (topic_id(t), ints(t, "partitions")));
    Some(topics.collect())
}

fn topic_metadata(t: &Value) -> TopicMetadata {
    TopicMetadata {
        code: code(t),
        name: text_or_null(t, "name"),
        id: topic_id(t),
        internal: t["isInternal"].as_bool().unwrap_or(false),
        partitions: list(t, "partitions")
            .map(|p| PartitionMetadata {
                code: code(p),
                partition: int(p, "partitionIndex", -9),
                leader: int(p, "leaderId", -9),
                leader_epoch: int(p, "leaderEpoch", -1),
                replicas: ints(p, "replicaNodes"),
                isr: ints(p, "isrNodes"),
            })
            .collect(),
    }
}

fn offset_fetch_topic(t: &Value) -> OffsetFetchTopic {
    OffsetFetchTopic {
        name: text_or_null(t, "name").unwrap_or_default(),
        id: topic_id(t),
        partitions: list(t, "partitions")
            .map(|p| OffsetFetchPartition {
                partition: int(p, "partitionIndex", -9),
                offset: long(p, "committedOffset", -9),
                leader_epoch: int(p, "committedLeaderEpoch", -1),
                metadata: text_or_null(p, "metadata"),
                code: code(p),
            })
            .collect(),
    }
}

fn fetched(p: &Value) -> FetchResponsePartition {
    FetchResponsePartition {
        partition: int(p, "partitionIndex", -9),
        code: code(p),
        high_watermark: long(p, "highWatermark", -9),
        last_stable_offset: long(p, "lastStableOffset", -9),
        log_start: long(p, "logStartOffset", -1),
        diverging: p.get("divergingEpoch").map(|d| EpochEnd {
            epoch: int(d, "epoch", -1),
            end_offset: long(d, "endOffset", -1),
        }),
        current_leader: p
            .get("currentLeader")
            .map(|l| (int(l, "leaderId", -1), int(l, "leaderEpoch", -1))),
        aborted: list(p, "abortedTransactions")
            .map(|a| (long(a, "producerId", -9), long(a, "firstOffset", -9)))
            .collect(),
        preferred_replica: int(p, "preferredReadReplica", -1),
        records: size_of(long(p, "recordsSizeInBytes", 0)),
    }
}

/// The same request as ours, where ours can hold all that it says. Records, of which the JSON
/// says the size alone, are taken from the frame.
pub fn request(api: Api, version: i16, v: &Value, frame: &Bytes) -> Option<Request> {
    if v.is_null() {
        return None;
    }
    let group = || text_or_null(v, "groupId").unwrap_or_default();
    let instance_id = text_or_null(v, "groupInstanceId");
    let generation = int(v, "generationId", -9);
    Some(match api {
        Api::ApiVersions => Request::ApiVersions(ApiVersionsRequest {
            software_name: text_or_null(v, "clientSoftwareName").unwrap_or_default(),
            software_version: text_or_null(v, "clientSoftwareVersion").unwrap_or_default(),
        }),
        Api::Metadata => {
            let asked: Option<Vec<&Value>> = v["topics"].as_array().map(|a| a.iter().collect());
            let by_id = asked
                .iter()
                .flatten()
                .any(|t| !topic_id(t).is_zero() || t["name"].is_null());
            let wants = |name: &str| v[name].as_bool().unwrap_or(false);
            if by_id
                || wants("allowAutoTopicCreation")
                || wants("includeClusterAuthorizedOperations")
                || wants("includeTopicAuthorizedOperations")
            {
                return None;
            }
            let topics = asked.map(|a| a.into_iter().map(|t| text(t, "name")).collect());
            Request::Metadata(MetadataRequest { topics })
        }
        Api::FindCoordinator => {
            let keys: Vec<Arc<str>> = if version >= 4 {
                list(v, "coordinatorKeys")
                    .map(|k| k.as_str().unwrap().into())
                    .collect()
            } else {
                vec![text(v, "key")]
            };
            if keys.len() != 1 || int(v, "keyType", 0) != 0 {
                return None;
            }
            Request::FindCoordinator(FindCoordinatorRequest {
                group: keys[0].clone(),
            })
        }
        Api::JoinGroup => Request::JoinGroup(JoinGroupRequest {
            group: group(),
            session_timeout: millis(v, "sessionTimeoutMs"),
            rebalance_timeout: millis(v, "rebalanceTimeoutMs"),
            member_id: text(v, "memberId"),
            instance_id,
            protocol_type: text(v, "protocolType"),
            protocols: list(v, "protocols")
                .map(|p| (text(p, "name"), base64(p, "metadata")))
                .collect(),
            reason: text_or_null(v, "reason"),
        }),
        Api::SyncGroup => Request::SyncGroup(SyncGroupRequest {
            group: group(),
            generation,
            member_id: text(v, "memberId"),
            instance_id,
            protocol_type: match version {
                5.. => text_or_null(v, "protocolType")?,
                _ => "".into(),
            },
            protocol_name: match version {
                5.. => text_or_null(v, "protocolName")?,
                _ => "".into(),
            },
            assignments: list(v, "assignments")
                .map(|a| (text(a, "memberId"), base64(a, "assignment")))
                .collect(),
        }),
        Api::Heartbeat => Request::Heartbeat(HeartbeatRequest {
            group: group(),
            generation,
            member_id: text(v, "memberId"),
            instance_id,
        }),
        Api::LeaveGroup => {
            let members: Vec<&Value> = list(v, "members").collect();
            let member = match (version, &members[..]) {
                (3.., [member]) => member,
                (3.., _) => return None,
                _ => v,
            };
            Request::LeaveGroup(LeaveGroupRequest {
                group: group(),
                member_id: text(member, "memberId"),
                instance_id: text_or_null(member, "groupInstanceId"),
                reason: text_or_null(member, "reason"),
            })
        }
        Api::OffsetCommit => {
            if long(v, "retentionTimeMs", -1) != -1 {
                return None;
            }
            Request::OffsetCommit(OffsetCommitRequest {
                group: group(),
                generation: int(v, "generationIdOrMemberEpoch", -9),
                member_id: text(v, "memberId"),
                instance_id,
                topics: list(v, "topics").map(commit_topic).collect(),
            })
        }
        Api::OffsetFetch => {
            let groups: Vec<&Value> = list(v, "groups").collect();
            let group = match (version, &groups[..]) {
                (8.., [group]) => group,
                (8.., _) => return None,
                _ => v,
            };
            // All topics.
            if group["topics"].is_null() {
                return None;
            }
            let epoch = int(group, "memberEpoch", -1);
            let member = text_or_null(group, "memberId");
            if member.is_some() != (epoch >= 0) {
                return None;
            }
            Request::OffsetFetch(OffsetFetchRequest {
                group: text(group, "groupId"),
                topics: list(group, "topics")
                    .map(|t| (text(t, "name"), TopicId::ZERO, ints(t, "partitionIndexes")))
                    .collect(),
                member: member.map(|id| (id, epoch)),
                require_stable: v["requireStable"].as_bool().unwrap_or(false),
            })
        }
        Api::Fetch => fetch_request(version, v)?,
        Api::ListOffsets => {
            if int(v, "replicaId", -1) != -1 || int(v, "timeoutMs", 30_000) != 30_000 {
                return None;
            }
            Request::ListOffsets(ListOffsetsRequest {
                isolation: isolation(v),
                topics: topics(v, "name", |p| ListOffsetsPartition {
                    partition: int(p, "partitionIndex", -9),
                    current_leader_epoch: int(p, "currentLeaderEpoch", -1),
                    timestamp: long(p, "timestamp", -9),
                }),
            })
        }
        Api::EpochEnd => {
            if int(v, "replicaId", -1) != -1 {
                return None;
            }
            Request::EpochEnd(EpochEndRequest {
                topics: topics(v, "topic", |p| EpochEndPartition {
                    partition: int(p, "partition", -9),
                    current_leader_epoch: int(p, "currentLeaderEpoch", -1),
                    epoch: int(p, "leaderEpoch", -9),
                }),
            })
        }
        Api::Produce => {
            if !v["transactionalId"].is_null() {
                return None;
            }
            Request::Produce(ProduceRequest {
                acks: i16_of(v, "acks"),
                timeout: millis(v, "timeoutMs"),
                topics: produce_topics(version, v, frame)?,
                by_id: version >= 13,
            })
        }
        Api::InitProducerId => {
            let resumes = int(v, "producerEpoch", -1) != -1 || long(v, "producerId", -1) != -1;
            let endless = int(v, "transactionTimeoutMs", 0) < 0;
            if !v["transactionalId"].is_null() || resumes || endless {
                return None;
            }
            Request::InitProducerId(InitProducerIdRequest {
                transaction_timeout: millis(v, "transactionTimeoutMs"),
            })
        }
        Api::SaslHandshake => Request::SaslHandshake(SaslHandshakeRequest {
            mechanism: text(v, "mechanism"),
        }),
        Api::SaslAuthenticate => Request::SaslAuthenticate(SaslAuthenticateRequest {
            auth: base64(v, "authBytes").to_vec().into(),
        }),
        Api::ConsumerGroupHeartbeat => {
            let rebalance = int(v, "rebalanceTimeoutMs", -1);
            Request::ConsumerGroupHeartbeat(ConsumerGroupHeartbeatRequest {
                group: group(),
                member_id: text(v, "memberId"),
                member_epoch: int(v, "memberEpoch", -9),
                instance_id: text_or_null(v, "instanceId"),
                rack: text_or_null(v, "rackId"),
                rebalance_timeout: (rebalance >= 0).then(|| millis(v, "rebalanceTimeoutMs")),
                topics: v["subscribedTopicNames"].as_array().map(|names| {
                    let names = names.iter().filter_map(Value::as_str);
                    names.map(Arc::from).collect()
                }),
                topic_regex: text_or_null(v, "subscribedTopicRegex"),
                assignor: text_or_null(v, "serverAssignor"),
                owned: by_id(v),
            })
        }
        other => panic!("{other}: no JSON known"),
    })
}

/// None where a partition has no records.
fn produce_topics(version: i16, v: &Value, frame: &Bytes) -> Option<Vec<ProduceTopic>> {
    let mut body = frame.slice(4..);
    kp::RequestHeader::decode(&mut body, Api::Produce.request_header(version)).unwrap();
    let written = kp::ProduceRequest::decode(&mut body, version).unwrap();
    let mut batches = written
        .topic_data
        .into_iter()
        .flat_map(|t| t.partition_data);
    list(v, "topicData")
        .map(|t| {
            let partitions = list(t, "partitionData").map(|p| {
                let batch = batches.next().unwrap().records?;
                Some((int(p, "index", -9), batch))
            });
            Some(ProduceTopic {
                name: text_or_null(t, "name").unwrap_or_default(),
                id: topic_id(t),
                partitions: partitions.collect::<Option<_>>()?,
            })
        })
        .collect()
}

fn commit_topic(t: &Value) -> OffsetCommitTopic {
    OffsetCommitTopic {
        name: text(t, "name"),
        id: TopicId::ZERO,
        partitions: list(t, "partitions")
            .map(|p| OffsetCommitPartition {
                partition: int(p, "partitionIndex", -9),
                offset: long(p, "committedOffset", -9),
                leader_epoch: int(p, "committedLeaderEpoch", -1),
                metadata: text_or_null(p, "committedMetadata"),
            })
            .collect(),
    }
}

fn fetch_request(version: i16, v: &Value) -> Option<Request> {
    let partitions = || list(v, "topics").flat_map(|t| list(t, "partitions"));
    let replica = int(v, "replicaId", -1) != -1
        || v.get("replicaState").is_some()
        || partitions().any(|p| long(p, "logStartOffset", -1) != -1)
        || partitions().any(|p| p.get("highWatermark").is_some());
    if replica || v.get("clusterId").is_some_and(|c| !c.is_null()) {
        return None;
    }
    Some(Request::Fetch(FetchRequest {
        max_wait: millis(v, "maxWaitMs"),
        min_bytes: int(v, "minBytes", -9),
        max_bytes: int(v, "maxBytes", -9),
        isolation: isolation(v),
        session_id: int(v, "sessionId", 0),
        session_epoch: int(v, "sessionEpoch", -1),
        topics: list(v, "topics")
            .map(|t| FetchTopic {
                name: text_or_null(t, "topic").unwrap_or_default(),
                id: topic_id(t),
                partitions: list(t, "partitions")
                    .map(|p| FetchPartition {
                        partition: int(p, "partition", -9),
                        current_leader_epoch: int(p, "currentLeaderEpoch", -1),
                        offset: long(p, "fetchOffset", -9),
                        last_fetched_epoch: int(p, "lastFetchedEpoch", -1),
                        max_bytes: int(p, "partitionMaxBytes", -9),
                    })
                    .collect(),
            })
            .collect(),
        forgotten: list(v, "forgottenTopicsData")
            .map(|t| {
                let name = text_or_null(t, "topic").unwrap_or_default();
                (name, topic_id(t), ints(t, "partitions"))
            })
            .collect(),
        rack: text_or_null(v, "rackId").unwrap_or_default(),
        by_id: version >= 13,
    }))
}

fn topics<T>(v: &Value, name: &str, item: impl Fn(&Value) -> T) -> Vec<(Arc<str>, Vec<T>)> {
    let topic = |t| (text(t, name), list(t, "partitions").map(&item).collect());
    list(v, "topics").map(topic).collect()
}

fn endpoint(v: &Value) -> BrokerEndpoint {
    BrokerEndpoint {
        node: NodeId(int(v, "nodeId", -9)),
        host: text(v, "host"),
        port: u16::try_from(int(v, "port", -9)).unwrap(),
        rack: text_or_null(v, "rack"),
    }
}

fn isolation(v: &Value) -> Isolation {
    match int(v, "isolationLevel", 0) {
        1 => Isolation::ReadCommitted,
        _ => Isolation::ReadUncommitted,
    }
}

/// The items of a list; none where it is null or not there.
fn list<'a>(v: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    v[name]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
}

fn ints(v: &Value, name: &str) -> Vec<i32> {
    list(v, name)
        .map(|n| i32::try_from(n.as_i64().unwrap()).unwrap())
        .collect()
}

fn long(v: &Value, name: &str, absent: i64) -> i64 {
    v[name].as_i64().unwrap_or(absent)
}

fn int(v: &Value, name: &str, absent: i32) -> i32 {
    i32::try_from(long(v, name, i64::from(absent))).unwrap()
}

fn i16_of(v: &Value, name: &str) -> i16 {
    i16::try_from(v[name].as_i64().unwrap()).unwrap()
}

fn code(v: &Value) -> Code {
    Code(i16::try_from(long(v, "errorCode", 0)).unwrap())
}

fn millis(v: &Value, name: &str) -> Duration {
    Duration::from_millis(u64::try_from(long(v, name, 0)).unwrap())
}

fn text(v: &Value, name: &str) -> Arc<str> {
    text_or_null(v, name).unwrap_or_else(|| panic!("no {name} in {v}"))
}

fn text_or_null(v: &Value, name: &str) -> Option<Arc<str>> {
    v[name].as_str().map(Arc::from)
}

fn topic_id(v: &Value) -> TopicId {
    match v["topicId"].as_str() {
        Some(id) => TopicId(decode_base64(id).try_into().unwrap()),
        None => TopicId::ZERO,
    }
}

fn base64(v: &Value, name: &str) -> Bytes {
    decode_base64(v[name].as_str().unwrap()).into()
}

/// Both alphabets: Kafka writes ids with the URL-safe one, bytes with the other.
fn decode_base64(s: &str) -> Vec<u8> {
    let (mut bits, mut count) = (0u32, 0);
    let mut out = Vec::new();
    for c in s.bytes().filter(|c| *c != b'=') {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' | b'-' => 62,
            _ => 63,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push(u8::try_from(bits >> count & 0xff).unwrap());
        }
    }
    out
}
