//! A request of each kind, and what kafka-protocol must find in what we wrote of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages as kp;
use kafka_protocol::protocol::Decodable;
use laneway::ids::TopicId;
use laneway::wire::Request;
use laneway::wire::message::*;

/// A request of each API, and of each kind that is held to some versions.
pub fn samples() -> Vec<Request> {
    let id = TopicId([7; 16]);
    let fetch = FetchRequest {
        max_wait: Duration::from_millis(500),
        min_bytes: 1,
        max_bytes: 1 << 20,
        isolation: Isolation::ReadCommitted,
        session_id: 0,
        session_epoch: -1,
        topics: vec![FetchTopic {
            name: "t".into(),
            id,
            partitions: vec![FetchPartition {
                partition: 3,
                current_leader_epoch: 4,
                offset: 5,
                last_fetched_epoch: 6,
                max_bytes: 7,
            }],
        }],
        forgotten: vec![],
        rack: "r".into(),
        by_id: true,
    };
    let session = FetchRequest {
        session_id: 9,
        session_epoch: 2,
        forgotten: vec![("t".into(), id, vec![1, 2])],
        ..fetch.clone()
    };
    let by_name = FetchRequest {
        by_id: false,
        ..fetch.clone()
    };
    let mut samples = vec![
        Request::Fetch(fetch),
        Request::Fetch(session),
        Request::Fetch(by_name),
    ];
    samples.push(Request::ApiVersions(ApiVersionsRequest {
        software_name: "laneway".into(),
        software_version: "1".into(),
    }));
    samples.push(Request::Metadata(MetadataRequest { topics: None }));
    samples.push(Request::Metadata(MetadataRequest {
        topics: Some(vec!["t".into()]),
    }));
    samples.push(Request::FindCoordinator(FindCoordinatorRequest {
        group: "g".into(),
    }));
    samples.push(Request::ListOffsets(ListOffsetsRequest {
        isolation: Isolation::ReadUncommitted,
        topics: vec![(
            "t".into(),
            vec![ListOffsetsPartition {
                partition: 1,
                current_leader_epoch: 2,
                timestamp: -2,
            }],
        )],
    }));
    samples.push(Request::EpochEnd(EpochEndRequest {
        topics: vec![(
            "t".into(),
            vec![EpochEndPartition {
                partition: 1,
                current_leader_epoch: 2,
                epoch: 1,
            }],
        )],
    }));
    let mechanism = "SCRAM-SHA-512".into();
    samples.push(Request::SaslHandshake(SaslHandshakeRequest { mechanism }));
    // The second takes a length of two bytes, the third one of three.
    for len in [0, 200, 20_000] {
        let auth = vec![b'x'; len].into();
        samples.push(Request::SaslAuthenticate(SaslAuthenticateRequest { auth }));
    }
    samples.extend([true, false].map(|by_id| {
        Request::Produce(ProduceRequest {
            acks: -1,
            timeout: Duration::from_secs(20),
            topics: vec![ProduceTopic {
                name: "t".into(),
                id,
                partitions: vec![(1, Bytes::from_static(b"batch"))],
            }],
            by_id,
        })
    }));
    samples.push(Request::InitProducerId(InitProducerIdRequest {
        transaction_timeout: Duration::from_secs(60),
    }));
    for member in [None, Some((Arc::from("m"), 5))] {
        samples.push(Request::OffsetFetch(OffsetFetchRequest {
            group: "g".into(),
            topics: vec![("t".into(), TopicId::ZERO, vec![1, 2])],
            member,
            require_stable: true,
        }));
    }
    samples.extend(consumer_samples());
    for instance_id in [None, Some(Arc::from("i"))] {
        samples.extend(group_samples(instance_id));
    }
    samples
}

fn consumer_samples() -> [Request; 3] {
    let short = ConsumerGroupHeartbeatRequest {
        group: "g".into(),
        member_id: "m".into(),
        member_epoch: 5,
        ..ConsumerGroupHeartbeatRequest::default()
    };
    let full = ConsumerGroupHeartbeatRequest {
        member_epoch: 0,
        instance_id: Some("i".into()),
        rack: Some("r".into()),
        rebalance_timeout: Some(Duration::from_secs(300)),
        topics: Some(vec!["t".into()]),
        assignor: Some("uniform".into()),
        owned: Some(vec![(TopicId([7; 16]), vec![1, 2])]),
        ..short.clone()
    };
    let regex = ConsumerGroupHeartbeatRequest {
        topics: None,
        topic_regex: Some("t.*".into()),
        ..full.clone()
    };
    [short, full, regex].map(Request::ConsumerGroupHeartbeat)
}

fn group_samples(instance_id: Option<Arc<str>>) -> Vec<Request> {
    let (group, member_id): (Arc<str>, Arc<str>) = ("g".into(), "m".into());
    vec![
        Request::JoinGroup(JoinGroupRequest {
            group: group.clone(),
            session_timeout: Duration::from_secs(45),
            rebalance_timeout: Duration::from_secs(300),
            member_id: member_id.clone(),
            instance_id: instance_id.clone(),
            protocol_type: "consumer".into(),
            protocols: vec![("range".into(), Bytes::from_static(b"sub"))],
            // More than a broker takes, and not of one byte a character.
            reason: Some("é".repeat(300).into()),
        }),
        Request::SyncGroup(SyncGroupRequest {
            group: group.clone(),
            generation: 5,
            member_id: member_id.clone(),
            instance_id: instance_id.clone(),
            protocol_type: "consumer".into(),
            protocol_name: "range".into(),
            assignments: vec![("m".into(), Bytes::from_static(b"ass"))],
        }),
        Request::Heartbeat(HeartbeatRequest {
            group: group.clone(),
            generation: 5,
            member_id: member_id.clone(),
            instance_id: instance_id.clone(),
        }),
        Request::LeaveGroup(LeaveGroupRequest {
            group: group.clone(),
            member_id: member_id.clone(),
            instance_id: instance_id.clone(),
            reason: Some("done".into()),
        }),
        Request::OffsetCommit(OffsetCommitRequest {
            group,
            generation: 5,
            member_id,
            instance_id,
            topics: vec![OffsetCommitTopic {
                name: "t".into(),
                id: TopicId::ZERO,
                partitions: vec![OffsetCommitPartition {
                    partition: 1,
                    offset: 2,
                    leader_epoch: 3,
                    metadata: Some("map".into()),
                }],
            }],
        }),
    ]
}

/// Reads `body` with kafka-protocol and compares what `version` can carry of `request`.
pub fn assert_says(request: &Request, version: i16, body: &mut Bytes) {
    let since = |from: i16| version >= from;
    match request {
        Request::ApiVersions(r) => {
            let k = kp::ApiVersionsRequest::decode(body, version).unwrap();
            let name = if since(3) { &*r.software_name } else { "" };
            assert_eq!(&*k.client_software_name, name);
        }
        Request::Metadata(r) => {
            let k = kp::MetadataRequest::decode(body, version).unwrap();
            let names = k.topics.map(|t| {
                t.iter()
                    .map(|t| Arc::from(t.name.as_ref().unwrap().as_str()))
                    .collect()
            });
            assert_eq!(names, r.topics);
            assert!(!k.allow_auto_topic_creation);
        }
        Request::FindCoordinator(r) => {
            let k = kp::FindCoordinatorRequest::decode(body, version).unwrap();
            let key = if since(4) {
                &k.coordinator_keys[0]
            } else {
                &k.key
            };
            assert_eq!((key.as_str(), k.key_type), (&*r.group, 0));
        }
        Request::JoinGroup(r) => {
            let k = kp::JoinGroupRequest::decode(body, version).unwrap();
            assert_eq!(
                (k.group_id.as_str(), &*k.member_id),
                (&*r.group, &*r.member_id)
            );
            assert_eq!(k.session_timeout_ms, 45_000);
            assert_eq!(k.rebalance_timeout_ms, if since(1) { 300_000 } else { -1 });
            assert_eq!(k.group_instance_id.as_deref(), r.instance_id.as_deref());
            let protocol = (&*k.protocols[0].name, &k.protocols[0].metadata);
            assert_eq!(protocol, (&*r.protocols[0].0, &r.protocols[0].1));
            let reason = since(8).then(|| "é".repeat(255));
            assert_eq!(k.reason.as_deref(), reason.as_deref());
        }
        Request::SyncGroup(r) => {
            let k = kp::SyncGroupRequest::decode(body, version).unwrap();
            assert_eq!(
                (k.group_id.as_str(), k.generation_id),
                (&*r.group, r.generation)
            );
            assert_eq!(k.group_instance_id.as_deref(), r.instance_id.as_deref());
            assert_eq!(k.protocol_name.as_deref(), since(5).then_some("range"));
            assert_eq!(k.assignments[0].assignment, r.assignments[0].1);
        }
        Request::Heartbeat(r) => {
            let k = kp::HeartbeatRequest::decode(body, version).unwrap();
            assert_eq!(
                (k.group_id.as_str(), k.generation_id),
                (&*r.group, r.generation)
            );
            assert_eq!(&*k.member_id, &*r.member_id);
            assert_eq!(k.group_instance_id.as_deref(), r.instance_id.as_deref());
        }
        Request::LeaveGroup(r) => {
            let k = kp::LeaveGroupRequest::decode(body, version).unwrap();
            let (member, instance) = match k.members.first() {
                Some(m) => (m.member_id.clone(), m.group_instance_id.clone()),
                None => (k.member_id, None),
            };
            assert_eq!(&*member, &*r.member_id);
            assert_eq!(instance.as_deref(), r.instance_id.as_deref());
        }
        Request::OffsetCommit(r) => {
            let k = kp::OffsetCommitRequest::decode(body, version).unwrap();
            assert_eq!(k.generation_id_or_member_epoch, r.generation);
            let (t, ours) = (&k.topics[0], &r.topics[0]);
            assert_eq!(t.name.as_str(), &*ours.name);
            let (p, ours) = (&t.partitions[0], &ours.partitions[0]);
            assert_eq!(
                (p.partition_index, p.committed_offset),
                (ours.partition, ours.offset)
            );
            let epoch = if since(6) { ours.leader_epoch } else { -1 };
            assert_eq!(p.committed_leader_epoch, epoch);
            assert_eq!(p.committed_metadata.as_deref(), ours.metadata.as_deref());
        }
        Request::OffsetFetch(r) => {
            let k = kp::OffsetFetchRequest::decode(body, version).unwrap();
            assert_eq!(k.require_stable, since(7));
            if since(8) {
                let g = &k.groups[0];
                let member = r.member.as_ref().filter(|_| since(9));
                let epoch = member.map_or(-1, |m| m.1);
                assert_eq!((g.group_id.as_str(), g.member_epoch), (&*r.group, epoch));
                assert_eq!(g.member_id.as_deref(), member.map(|m| &*m.0));
                assert_eq!(
                    g.topics.as_ref().unwrap()[0].partition_indexes,
                    r.topics[0].2
                );
            } else {
                assert_eq!(k.group_id.as_str(), &*r.group);
                assert_eq!(k.topics.unwrap()[0].partition_indexes, r.topics[0].2);
            }
        }
        Request::Fetch(r) => fetch_says(r, version, body),
        Request::ListOffsets(r) => {
            let k = kp::ListOffsetsRequest::decode(body, version).unwrap();
            assert_eq!(k.replica_id, -1);
            let (p, ours) = (&k.topics[0].partitions[0], &r.topics[0].1[0]);
            assert_eq!(
                (p.partition_index, p.timestamp),
                (ours.partition, ours.timestamp)
            );
            let epoch = if since(4) {
                ours.current_leader_epoch
            } else {
                -1
            };
            assert_eq!(p.current_leader_epoch, epoch);
        }
        Request::EpochEnd(r) => {
            let k = kp::OffsetForLeaderEpochRequest::decode(body, version).unwrap();
            assert_eq!(k.replica_id, if since(3) { -1 } else { -2 });
            let (p, ours) = (&k.topics[0].partitions[0], &r.topics[0].1[0]);
            assert_eq!((p.partition, p.leader_epoch), (ours.partition, ours.epoch));
            assert_eq!(p.current_leader_epoch, ours.current_leader_epoch);
        }
        Request::Produce(r) => {
            let k = kp::ProduceRequest::decode(body, version).unwrap();
            assert_eq!((k.acks, k.timeout_ms), (r.acks, 20_000));
            assert_eq!(k.transactional_id, None);
            let (t, ours) = (&k.topic_data[0], &r.topics[0]);
            match version {
                13.. => assert_eq!(t.topic_id.into_bytes(), ours.id.0),
                _ => assert_eq!(t.name.as_str(), &*ours.name),
            }
            let (p, ours) = (&t.partition_data[0], &ours.partitions[0]);
            assert_eq!((p.index, p.records.as_ref()), (ours.0, Some(&ours.1)));
        }
        Request::InitProducerId(r) => {
            let k = kp::InitProducerIdRequest::decode(body, version).unwrap();
            assert_eq!(k.transactional_id, None);
            assert_eq!(
                u128::try_from(k.transaction_timeout_ms).unwrap(),
                r.transaction_timeout.as_millis()
            );
            assert_eq!((k.producer_id, k.producer_epoch), ((-1).into(), -1));
        }
        Request::SaslHandshake(r) => {
            let k = kp::SaslHandshakeRequest::decode(body, version).unwrap();
            assert_eq!(k.mechanism.as_str(), &*r.mechanism);
        }
        Request::SaslAuthenticate(r) => {
            let k = kp::SaslAuthenticateRequest::decode(body, version).unwrap();
            assert_eq!(&k.auth_bytes[..], r.auth.as_bytes());
        }
        Request::ConsumerGroupHeartbeat(r) => consumer_says(r, version, body),
        other => panic!("{other:?}"),
    }
}

fn consumer_says(r: &ConsumerGroupHeartbeatRequest, version: i16, body: &mut Bytes) {
    let k = kp::ConsumerGroupHeartbeatRequest::decode(body, version).unwrap();
    assert_eq!((k.group_id.as_str(), &*k.member_id), ("g", "m"));
    assert_eq!(k.member_epoch, r.member_epoch);
    assert_eq!(k.instance_id.as_deref(), r.instance_id.as_deref());
    assert_eq!(k.rack_id.as_deref(), r.rack.as_deref());
    let millis = r.rebalance_timeout.map_or(-1, |_| 300_000);
    assert_eq!(k.rebalance_timeout_ms, millis);
    let names = k.subscribed_topic_names.map(|names| names.len());
    assert_eq!(names, r.topics.as_ref().map(Vec::len));
    assert_eq!(
        k.subscribed_topic_regex.as_deref(),
        r.topic_regex.as_deref()
    );
    assert_eq!(k.server_assignor.as_deref(), r.assignor.as_deref());
    let owned = k.topic_partitions.map(|topics| {
        let each = topics.into_iter();
        let each = each.map(|t| (TopicId(t.topic_id.into_bytes()), t.partitions));
        each.collect::<Vec<_>>()
    });
    assert_eq!(owned, r.owned);
}

fn fetch_says(r: &FetchRequest, version: i16, body: &mut Bytes) {
    let k = kp::FetchRequest::decode(body, version).unwrap();
    assert_eq!(
        (k.replica_id, k.replica_state.replica_id),
        ((-1).into(), (-1).into())
    );
    assert_eq!(
        (k.max_wait_ms, k.min_bytes, k.max_bytes),
        (500, r.min_bytes, r.max_bytes)
    );
    assert_eq!(k.isolation_level, 1);
    if version >= 7 {
        assert_eq!(
            (k.session_id, k.session_epoch),
            (r.session_id, r.session_epoch)
        );
        let forgotten: Vec<i32> = k
            .forgotten_topics_data
            .iter()
            .flat_map(|f| f.partitions.clone())
            .collect();
        let ours: Vec<i32> = r.forgotten.iter().flat_map(|f| f.2.clone()).collect();
        assert_eq!(forgotten, ours);
    }
    let (t, ours) = (&k.topics[0], &r.topics[0]);
    match version {
        13.. => assert_eq!(t.topic_id.into_bytes(), ours.id.0),
        _ => assert_eq!(t.topic.as_str(), &*ours.name),
    }
    let (p, ours) = (&t.partitions[0], &ours.partitions[0]);
    assert_eq!((p.partition, p.fetch_offset), (ours.partition, ours.offset));
    assert_eq!(p.partition_max_bytes, ours.max_bytes);
    let since = |from, value| if version >= from { value } else { -1 };
    assert_eq!(p.current_leader_epoch, since(9, ours.current_leader_epoch));
    assert_eq!(p.last_fetched_epoch, since(12, ours.last_fetched_epoch));
    assert_eq!(&*k.rack_id, if version >= 11 { &*r.rack } else { "" });
}
