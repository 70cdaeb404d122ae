//! Produce and InitProducerId.

use bytes::Bytes;
use kafka_protocol::messages::produce_response::{
    LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use kafka_protocol::messages::{
    BrokerId, InitProducerIdRequest, InitProducerIdResponse, ProduceRequest, ProduceResponse,
    ProducerId, TopicName,
};
use kafka_protocol::protocol::{Decodable, StrBytes};

use super::codes;
use super::core::{Call, Cluster, Outcome};
use super::log::{Appended, Header, checksum_holds};
use crate::time::Now;

impl Cluster {
    pub(crate) fn produce(&mut self, now: Now, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = ProduceRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let v = call.version;
        let mut nulls = false;
        let mut topics = Vec::with_capacity(req.topic_data.len());
        let mut leaders: Vec<i32> = Vec::new();
        for topic in req.topic_data {
            let name = if v >= 13 {
                self.topic_ids.get(topic.topic_id.as_bytes()).cloned()
            } else {
                Some(topic.name.0.clone())
            };
            let mut answers = Vec::with_capacity(topic.partition_data.len());
            for data in topic.partition_data {
                let done = match &name {
                    None => Err(codes::UNKNOWN_TOPIC_ID),
                    Some(name) => match data.records {
                        None if self.partition_ref(name, data.index).is_some() => {
                            nulls = true;
                            continue;
                        }
                        records => self.produce_one(
                            now,
                            call,
                            name,
                            data.index,
                            req.acks,
                            records.unwrap_or_default(),
                        ),
                    },
                };
                let mut answer = partition_answer(data.index, &done);
                match (&done, &name) {
                    (Ok(_) | Err(codes::OUT_OF_ORDER_SEQUENCE_NUMBER), Some(name))
                    | (Err(codes::INVALID_PRODUCER_EPOCH), Some(name))
                        if v >= 5 =>
                    {
                        let view = self.partition_ref(name, data.index);
                        answer.log_start_offset = view.map_or(-1, |p| p.log.start());
                    }
                    (Err(codes::NOT_LEADER_OR_FOLLOWER), Some(name)) if v >= 10 => {
                        if let Some(p) = self.partition_ref(name, data.index) {
                            answer.current_leader = LeaderIdAndEpoch::default()
                                .with_leader_id(BrokerId(p.leader))
                                .with_leader_epoch(p.epoch);
                            leaders.push(p.leader);
                        }
                    }
                    _ => {}
                }
                answers.push(answer);
            }
            let mut one = TopicProduceResponse::default().with_partition_responses(answers);
            if v >= 13 {
                one.topic_id = topic.topic_id;
            } else {
                one.name = TopicName(name.unwrap_or_default());
            }
            topics.push(one);
        }
        if nulls {
            // Null records: a real broker falls silent for good.
            return Outcome::Never;
        }
        if req.acks == 0 {
            let failed = topics.iter().flat_map(|t| &t.partition_responses);
            // Kafka closes the connection, so that the client looks for the leader anew.
            return match failed.into_iter().any(|p| p.error_code != codes::NONE) {
                true => Outcome::Close,
                false => Outcome::Silent,
            };
        }
        let mut resp = ProduceResponse::default()
            .with_responses(topics)
            .with_throttle_time_ms(call.faults.throttle_ms);
        leaders.sort_unstable();
        leaders.dedup();
        for id in leaders {
            if let Some(n) = self.nodes.get(&id) {
                let endpoint = NodeEndpoint::default()
                    .with_node_id(BrokerId(id))
                    .with_host(n.host.clone())
                    .with_port(n.port)
                    .with_rack(n.rack.clone());
                resp.node_endpoints.push(endpoint);
            }
        }
        call.answer(&resp)
    }

    pub(crate) fn init_producer_id(&mut self, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = InitProducerIdRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let error = match call.faults.error {
            Some(code) => code,
            // There is no transaction coordinator here.
            None if req.transactional_id.is_some() => codes::UNSUPPORTED_VERSION,
            None => codes::NONE,
        };
        let mut resp = InitProducerIdResponse::default()
            .with_throttle_time_ms(call.faults.throttle_ms)
            .with_error_code(error)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        if error == codes::NONE {
            resp.producer_id = ProducerId(self.next_producer_id);
            resp.producer_epoch = 0;
            self.next_producer_id += 1;
        }
        call.answer(&resp)
    }

    fn produce_one(
        &mut self,
        now: Now,
        call: &Call,
        topic: &StrBytes,
        partition: i32,
        acks: i16,
        records: Bytes,
    ) -> Result<Appended, i16> {
        let (before, late) = self.planned(call, topic, partition);
        if let Some(code) = before {
            return Err(code);
        }
        if !(-1..=1).contains(&acks) {
            return Err(codes::INVALID_REQUIRED_ACKS);
        }
        let most = self.cfg.message_bytes_max;
        let p = self.led(call, topic, partition, -1)?;
        if records.is_empty() {
            return Err(codes::INVALID_RECORD);
        }
        let header = Header::parse(&records)?;
        if header.size != records.len() {
            // From version 3 exactly one batch.
            return Err(codes::INVALID_RECORD);
        }
        if !checksum_holds(&records) {
            return Err(codes::CORRUPT_MESSAGE);
        }
        if header.attributes & 0x07 == ZSTD && call.version < 7 {
            return Err(codes::UNSUPPORTED_COMPRESSION_TYPE);
        }
        if header.size > most {
            return Err(codes::MESSAGE_TOO_LARGE);
        }
        let epoch = p.epoch;
        let done = p.log.produce(records, &header, epoch)?;
        if done.duplicate.is_none() {
            self.records_came(now, topic, partition);
        }
        late.map_or(Ok(done), Err)
    }
}

fn partition_answer(index: i32, done: &Result<Appended, i16>) -> PartitionProduceResponse {
    let answer = PartitionProduceResponse::default().with_index(index);
    match done {
        Ok(appended) => answer
            .with_base_offset(appended.base_offset)
            .with_log_append_time_ms(appended.duplicate.unwrap_or(-1)),
        Err(code) => answer
            .with_error_code(*code)
            .with_base_offset(-1)
            .with_log_append_time_ms(-1),
    }
}

/// The codec's number in a batch's attributes.
const ZSTD: i16 = 4;
