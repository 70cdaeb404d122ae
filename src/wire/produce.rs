//! Writing records: `Produce` and `InitProducerId`, both ways.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages as kp;

use super::message::{BrokerEndpoint, Code};
use super::reader::Reader;
use super::request::{millis, topic_name, uuid};
use super::response::{Read, node_endpoints, topic};
use crate::ids::TopicId;

/// Writes batches; each partition once, with one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceRequest {
    /// -1: every replica in sync must have it.
    pub acks: i16,
    /// How long the broker may wait for the replicas.
    pub timeout: Duration,
    /// The topics, in no promised order.
    pub topics: Vec<ProduceTopic>,
    /// False holds the request to v12 (some topic's id is not known).
    pub by_id: bool,
}

/// One topic of a [`ProduceRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceTopic {
    /// The topic's name.
    pub name: Arc<str>,
    /// [`TopicId::ZERO`] where it is not known.
    pub id: TopicId,
    /// Index and batch.
    pub partitions: Vec<(i32, Bytes)>,
}

/// How each batch fared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// The topics, in no promised order.
    pub topics: Vec<ProduceResponseTopic>,
    /// KIP-951 (v10+): where the leaders named in `current_leader` listen.
    pub endpoints: Vec<BrokerEndpoint>,
}

/// One topic of a [`ProduceResponse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceResponseTopic {
    /// Empty from v13 on, where the id stands instead.
    pub name: Arc<str>,
    /// [`TopicId::ZERO`] where the version has none.
    pub id: TopicId,
    /// The partitions, in no promised order.
    pub partitions: Vec<ProduceAnswer>,
}

/// One partition of a [`ProduceResponseTopic`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceAnswer {
    /// Its index.
    pub partition: i32,
    /// 0, or why not.
    pub code: Code,
    /// Where the batch's first record is; -1 with an error, or where the broker has forgotten.
    pub base_offset: i64,
    /// Milliseconds since the epoch; -1 where the topic keeps the producer's times.
    pub append_time: i64,
    /// -1 before v5, or not known.
    pub log_start: i64,
    /// Records that the batch was refused for (KIP-467, v8+): place in the batch, and why.
    pub record_errors: Vec<(i32, Option<Arc<str>>)>,
    /// What the broker says about the error, in words (v8+).
    pub message: Option<Arc<str>>,
    /// KIP-951: (leader, epoch); -1 each where not known.
    pub current_leader: Option<(i32, i32)>,
}

/// Asks for a producer id (KIP-98). Always without a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitProducerIdRequest {
    /// Means something in transactions alone; sent all the same.
    pub transaction_timeout: Duration,
}

/// A producer id and its first epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitProducerIdResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// 0, or why not.
    pub code: Code,
    /// -1 with an error.
    pub producer_id: i64,
    /// -1 with an error.
    pub epoch: i16,
}

pub(super) fn produce_request(r: &ProduceRequest) -> kp::ProduceRequest {
    use kp::produce_request::{PartitionProduceData, TopicProduceData};
    let topics = r.topics.iter().map(|t| {
        let partitions = t.partitions.iter().map(|(index, batch)| {
            PartitionProduceData::default()
                .with_index(*index)
                .with_records(Some(batch.clone()))
        });
        TopicProduceData::default()
            .with_name(topic_name(&t.name))
            .with_topic_id(uuid(t.id))
            .with_partition_data(partitions.collect())
    });
    // The codec's own default is a transaction named "".
    kp::ProduceRequest::default()
        .with_transactional_id(None)
        .with_acks(r.acks)
        .with_timeout_ms(millis(r.timeout))
        .with_topic_data(topics.collect())
}

pub(super) fn init_producer_id_request(r: &InitProducerIdRequest) -> kp::InitProducerIdRequest {
    kp::InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_transaction_timeout_ms(millis(r.transaction_timeout))
        .with_producer_id((-1).into())
        .with_producer_epoch(-1)
}

pub(super) fn produce(r: &mut Reader<'_>, version: i16) -> Read<ProduceResponse> {
    let topics = r.list(3, |r| {
        let (name, id) = topic(r, version >= 13)?;
        let partitions = r.list(PARTITION_BYTES_MIN, |r| answer(r, version))?;
        r.skip_tags()?;
        Ok(ProduceResponseTopic {
            name,
            id,
            partitions,
        })
    })?;
    let throttle = r.millis()?;
    let mut endpoints = Vec::new();
    r.tags(|tag, r| {
        if tag != TAG_ENDPOINTS || version < 10 {
            return Ok(false);
        }
        endpoints = node_endpoints(r)?;
        Ok(true)
    })?;
    Ok(ProduceResponse {
        throttle,
        topics,
        endpoints,
    })
}

fn answer(r: &mut Reader<'_>, version: i16) -> Read<ProduceAnswer> {
    let partition = r.i32()?;
    let code = r.code()?;
    let base_offset = r.i64()?;
    let append_time = r.i64()?;
    let log_start = if version >= 5 { r.i64()? } else { -1 };
    let (mut record_errors, mut message) = (Vec::new(), None);
    if version >= 8 {
        record_errors = r.list(5, |r| {
            let error = (r.i32()?, r.nullable_string()?);
            r.skip_tags()?;
            Ok(error)
        })?;
        message = r.nullable_string()?;
    }
    let mut current_leader = None;
    r.tags(|tag, r| {
        if tag != TAG_LEADER || version < 10 {
            return Ok(false);
        }
        current_leader = Some((r.i32()?, r.i32()?));
        r.skip_tags()?;
        Ok(true)
    })?;
    Ok(ProduceAnswer {
        partition,
        code,
        base_offset,
        append_time,
        log_start,
        record_errors,
        message,
        current_leader,
    })
}

pub(super) fn init_producer_id(r: &mut Reader<'_>) -> Read<InitProducerIdResponse> {
    let throttle = r.millis()?;
    let code = r.code()?;
    let producer_id = r.i64()?;
    let epoch = r.i16()?;
    r.skip_tags()?;
    Ok(InitProducerIdResponse {
        throttle,
        code,
        producer_id,
        epoch,
    })
}

const TAG_ENDPOINTS: u32 = 0;
const TAG_LEADER: u32 = 0;
/// Index, code and two numbers of eight bytes.
const PARTITION_BYTES_MIN: usize = 22;
