//! ListOffsets and OffsetForLeaderEpoch.

use bytes::Bytes;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::{
    ListOffsetsRequest, ListOffsetsResponse, OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
};
use kafka_protocol::protocol::Decodable;

use super::codes;
use super::core::{Call, Cluster, Outcome};
use super::log::Log;

impl Cluster {
    pub(crate) fn list_offsets(&mut self, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = ListOffsetsRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let v = call.version;
        let committed_only = req.isolation_level == 1;
        let mut topics = Vec::with_capacity(req.topics.len());
        for topic in req.topics {
            let mut answers = Vec::with_capacity(topic.partitions.len());
            for asked in topic.partitions {
                let index = asked.partition_index;
                let (planned, late) = self.planned(call, &topic.name, index);
                let looked = match planned {
                    Some(code) => Err(code),
                    None => self
                        .led(call, &topic.name, index, asked.current_leader_epoch)
                        .and_then(|p| look_up(&p.log, asked.timestamp, committed_only, v)),
                };
                let looked = late.map_or(looked, Err);
                let mut answer = ListOffsetsPartitionResponse::default()
                    .with_partition_index(index)
                    .with_timestamp(-1)
                    .with_offset(-1);
                match looked {
                    Err(code) => answer.error_code = code,
                    Ok((timestamp, offset, epoch)) => {
                        answer.timestamp = timestamp;
                        answer.offset = offset;
                        if v >= 4 {
                            answer.leader_epoch = epoch;
                        }
                    }
                }
                answers.push(answer);
            }
            let one = ListOffsetsTopicResponse::default().with_name(topic.name);
            topics.push(one.with_partitions(answers));
        }
        let mut resp = ListOffsetsResponse::default().with_topics(topics);
        if v >= 2 {
            resp.throttle_time_ms = call.faults.throttle_ms;
        }
        call.answer(&resp)
    }

    pub(crate) fn offset_for_leader_epoch(&mut self, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = OffsetForLeaderEpochRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let mut topics = Vec::with_capacity(req.topics.len());
        for topic in req.topics {
            let mut answers = Vec::with_capacity(topic.partitions.len());
            for asked in topic.partitions {
                let (planned, _) = self.planned(call, &topic.topic, asked.partition);
                let looked = match planned {
                    Some(code) => Err(code),
                    None => self
                        .led(
                            call,
                            &topic.topic,
                            asked.partition,
                            asked.current_leader_epoch,
                        )
                        .map(|p| p.log.end_of_epoch(asked.leader_epoch)),
                };
                let (error, (epoch, end)) = match looked {
                    Ok(found) => (codes::NONE, found),
                    Err(code) => (code, (-1, -1)),
                };
                let answer = EpochEndOffset::default()
                    .with_error_code(error)
                    .with_partition(asked.partition)
                    .with_leader_epoch(epoch)
                    .with_end_offset(end);
                answers.push(answer);
            }
            let one = OffsetForLeaderTopicResult::default().with_topic(topic.topic);
            topics.push(one.with_partitions(answers));
        }
        let resp = OffsetForLeaderEpochResponse::default()
            .with_throttle_time_ms(call.faults.throttle_ms)
            .with_topics(topics);
        call.answer(&resp)
    }
}

/// Timestamp, offset and leader epoch of what was asked for.
fn look_up(
    log: &Log,
    timestamp: i64,
    committed_only: bool,
    v: i16,
) -> Result<(i64, i64, i32), i16> {
    let end = if committed_only {
        log.stable()
    } else {
        log.end()
    };
    match timestamp {
        LATEST => Ok((-1, end, log.epoch_at(end))),
        EARLIEST => Ok((-1, log.start(), log.epoch_at(log.start()))),
        EARLIEST_LOCAL if v >= 8 => Ok((-1, log.start(), log.epoch_at(log.start()))),
        // No tiered storage: there is no such offset.
        LATEST_TIERED if v >= 9 => Ok((-1, -1, -1)),
        MAX_TIMESTAMP if v >= 7 => Ok(log.latest_record()),
        t if t < 0 => Err(codes::UNSUPPORTED_VERSION),
        t => {
            let found = log.first_record_at(t);
            Ok(found.filter(|f| f.1 < end).unwrap_or((-1, -1, -1)))
        }
    }
}

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
