//! What administrators ask: CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords.

use bytes::Bytes;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreateTopicsRequest, CreateTopicsResponse,
    DeleteRecordsRequest, DeleteRecordsResponse, DeleteTopicsRequest, DeleteTopicsResponse,
    TopicName,
};
use kafka_protocol::protocol::{Decodable, StrBytes};

use super::codes;
use super::core::{Call, Cluster, Outcome};
use crate::time::Now;

impl Cluster {
    pub(crate) fn create_topics(&mut self, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = CreateTopicsRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let mut results = Vec::with_capacity(req.topics.len());
        for topic in req.topics {
            let name = topic.name.clone();
            let (planned, late) = self.planned(call, &name, -1);
            let made = match planned {
                Some(code) => Err(code),
                None => self.create_one(topic, req.validate_only),
            };
            let mut one = CreatableTopicResult::default().with_name(name.clone());
            match late.map_or(made, Err) {
                Err(code) => {
                    one.error_code = code;
                    one.error_message = Some(message(code));
                }
                Ok(()) => {
                    let found = self.topics.get(&name.0);
                    if let (true, Some(t)) = (call.version >= 7, found) {
                        one.topic_id = uuid::Uuid::from_bytes(t.id);
                    }
                    if let (true, Some(t)) = (call.version >= 5, found) {
                        one.num_partitions = i32::try_from(t.partitions.len()).unwrap_or(-1);
                        let copies = t.partitions.first().map_or(-1, |p| p.replicas.len() as i16);
                        one.replication_factor = copies;
                    }
                }
            }
            results.push(one);
        }
        let resp = CreateTopicsResponse::default()
            .with_throttle_time_ms(call.faults.throttle_ms)
            .with_topics(results);
        call.answer(&resp)
    }

    pub(crate) fn delete_topics(&mut self, now: Now, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = DeleteTopicsRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let by_name = req.topic_names.into_iter();
        let by_name = by_name.map(|n| DeleteTopicState::default().with_name(Some(n)));
        let asked: Vec<DeleteTopicState> = by_name.chain(req.topics).collect();
        let mut results = Vec::with_capacity(asked.len());
        for topic in asked {
            let id = *topic.topic_id.as_bytes();
            let name = match topic.name {
                Some(name) => Some(name.0),
                None => self.topic_ids.get(&id).cloned(),
            };
            let error = match (&name, call.faults.error) {
                (_, Some(code)) => code,
                (None, None) => codes::UNKNOWN_TOPIC_ID,
                (Some(name), None) => self.drop_topic(now, name),
            };
            let mut one = DeletableTopicResult::default()
                .with_name(name.map(TopicName))
                .with_error_code(error);
            if call.version >= 5 && error != codes::NONE {
                one.error_message = Some(message(error));
            }
            if call.version >= 6 {
                one.topic_id = topic.topic_id;
            }
            results.push(one);
        }
        let resp = DeleteTopicsResponse::default()
            .with_throttle_time_ms(call.faults.throttle_ms)
            .with_responses(results);
        call.answer(&resp)
    }

    pub(crate) fn create_partitions(&mut self, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = CreatePartitionsRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let mut results = Vec::with_capacity(req.topics.len());
        for topic in req.topics {
            let error = match call.faults.error {
                Some(code) => code,
                None => self.grow(&topic.name, topic.count, req.validate_only),
            };
            let mut one = CreatePartitionsTopicResult::default()
                .with_name(topic.name)
                .with_error_code(error);
            if error != codes::NONE {
                one.error_message = Some(message(error));
            }
            results.push(one);
        }
        let resp = CreatePartitionsResponse::default()
            .with_throttle_time_ms(call.faults.throttle_ms)
            .with_results(results);
        call.answer(&resp)
    }

    pub(crate) fn delete_records_api(
        &mut self,
        now: Now,
        call: &Call,
        body: &mut Bytes,
    ) -> Outcome {
        let Ok(req) = DeleteRecordsRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let mut topics = Vec::with_capacity(req.topics.len());
        for topic in req.topics {
            let mut answers = Vec::with_capacity(topic.partitions.len());
            for asked in topic.partitions {
                let index = asked.partition_index;
                let (planned, _) = self.planned(call, &topic.name, index);
                let done = match planned {
                    Some(code) => Err(code),
                    None => self.led(call, &topic.name, index, -1).and_then(|p| {
                        // -1 means "all there is".
                        let to = if asked.offset == -1 {
                            p.log.end()
                        } else {
                            asked.offset
                        };
                        if to < 0 || to > p.log.end() {
                            return Err(codes::OFFSET_OUT_OF_RANGE);
                        }
                        p.log.delete_before(to);
                        Ok(p.log.start())
                    }),
                };
                let one = DeleteRecordsPartitionResult::default().with_partition_index(index);
                answers.push(match done {
                    Ok(low) => one.with_low_watermark(low),
                    Err(code) => one.with_low_watermark(-1).with_error_code(code),
                });
            }
            let one = DeleteRecordsTopicResult::default().with_name(topic.name);
            topics.push(one.with_partitions(answers));
        }
        self.wake_fetches(now);
        let resp = DeleteRecordsResponse::default()
            .with_throttle_time_ms(call.faults.throttle_ms)
            .with_topics(topics);
        call.answer(&resp)
    }

    /// Gives a topic more partitions.
    pub(crate) fn grow(&mut self, name: &str, count: i32, only_checked: bool) -> i16 {
        let Some(topic) = self.topics.get(name.as_bytes()) else {
            return codes::UNKNOWN_TOPIC_OR_PARTITION;
        };
        let have = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        if count <= have || count > self.cfg.partitions_max {
            return codes::INVALID_PARTITIONS;
        }
        if !only_checked {
            let more: Vec<_> = (have..count)
                .map(|i| self.make_partition(i, None))
                .collect();
            if let Some(topic) = self.topics.get_mut(name.as_bytes()) {
                topic.partitions.extend(more);
            }
        }
        codes::NONE
    }

    fn create_one(&mut self, topic: CreatableTopic, only_checked: bool) -> Result<(), i16> {
        let known = |id: i32| self.nodes.contains_key(&id);
        let mut given = Vec::new();
        let mut partitions = match topic.num_partitions {
            -1 => self.cfg.default_partitions,
            n => n,
        };
        if topic.assignments.is_empty() {
            let copies = i32::from(topic.replication_factor);
            if copies == 0 || copies < -1 || copies > self.cfg.nodes {
                return Err(codes::INVALID_REPLICATION_FACTOR);
            }
        } else {
            partitions = i32::try_from(topic.assignments.len()).unwrap_or(i32::MAX);
            let mut assignments = topic.assignments;
            assignments.sort_by_key(|a| a.partition_index);
            for (i, a) in assignments.into_iter().enumerate() {
                let nodes: Vec<i32> = a.broker_ids.iter().map(|b| b.0).collect();
                let fits = usize::try_from(a.partition_index) == Ok(i);
                if !fits || nodes.is_empty() || !nodes.iter().all(|&n| known(n)) {
                    return Err(codes::INVALID_REPLICA_ASSIGNMENT);
                }
                given.push(nodes);
            }
        }
        if topic.configs.iter().any(|c| c.name.is_empty()) {
            return Err(codes::INVALID_CONFIG);
        }
        let replicas = if given.is_empty() {
            let copies = i32::from(topic.replication_factor);
            self.spread(partitions, copies)
        } else {
            Some(given)
        };
        let name = topic.name.0;
        self.make_topic(&name, partitions, replicas)?;
        if only_checked {
            if let Some(made) = self.topics.remove(&name) {
                self.topic_ids.remove(&made.id);
            }
            return Ok(());
        }
        if let Some(made) = self.topics.get_mut(&name) {
            let each = topic.configs.into_iter();
            made.configs = each
                .map(|c| (c.name, c.value.unwrap_or_default()))
                .collect();
        }
        Ok(())
    }

    /// Replicas where the request names another number of copies than the cluster's own.
    fn spread(&self, partitions: i32, copies: i32) -> Option<Vec<Vec<i32>>> {
        let nodes = self.cfg.nodes.max(1);
        if copies < 1 || partitions > self.cfg.partitions_max {
            return None;
        }
        let first = i32::try_from(self.topics.len()).unwrap_or(0);
        let one =
            |p: i32| (0..copies).map(move |c| first.wrapping_add(p + c).rem_euclid(nodes) + 1);
        Some((0..partitions.max(0)).map(|p| one(p).collect()).collect())
    }
}

fn message(code: i16) -> StrBytes {
    StrBytes::from_static_str(match code {
        codes::TOPIC_ALREADY_EXISTS => "Topic already exists.",
        codes::INVALID_TOPIC_EXCEPTION => "Topic name is not allowed.",
        codes::INVALID_PARTITIONS => "Number of partitions is not allowed.",
        codes::INVALID_REPLICATION_FACTOR => "Replication factor is not allowed here.",
        codes::INVALID_REPLICA_ASSIGNMENT => "Replica assignment is not consistent.",
        codes::UNKNOWN_TOPIC_OR_PARTITION => "This server does not host this topic-partition.",
        codes::UNKNOWN_TOPIC_ID => "This server does not host this topic ID.",
        _ => "The request was refused.",
    })
}
