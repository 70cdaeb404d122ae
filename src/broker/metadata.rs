//! Metadata, DescribeCluster, DescribeConfigs and FindCoordinator.

use bytes::Bytes;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    BrokerId, DescribeClusterRequest, DescribeClusterResponse, DescribeConfigsRequest,
    DescribeConfigsResponse, FindCoordinatorRequest, FindCoordinatorResponse, MetadataRequest,
    MetadataResponse, TopicName,
};
use kafka_protocol::protocol::{Decodable, StrBytes};

use super::codes;
use super::core::{Call, Cluster, Outcome};
use super::topics::{Partition, Topic};
use crate::time::Now;

/// Which topic a Metadata request asks for.
enum Asked {
    Name(StrBytes),
    Id([u8; 16]),
}

impl Cluster {
    pub(crate) fn metadata(&mut self, _now: Now, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = MetadataRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let v = call.version;
        let by_id = |t: &[u8; 16]| *t != [0; 16];
        // Version 0 says "all" by an empty list, later ones by null.
        let all = req.topics.as_ref().is_none_or(|t| v == 0 && t.is_empty());
        let topics = req.topics.unwrap_or_default();
        let asked: Vec<Asked> = if all {
            self.topics.keys().cloned().map(Asked::Name).collect()
        } else {
            let each = topics.into_iter();
            each.map(|t| match t.name {
                Some(name) if !by_id(t.topic_id.as_bytes()) => Asked::Name(name.0),
                _ => Asked::Id(*t.topic_id.as_bytes()),
            })
            .collect()
        };
        if (10..12).contains(&v) && asked.iter().any(|a| matches!(a, Asked::Id(_))) {
            return call.answer(&refuse_ids(asked.len()));
        }
        let mut found = Vec::with_capacity(asked.len());
        for a in asked {
            found.push(self.topic_metadata(call, a, req.allow_auto_topic_creation));
        }
        let mut resp = MetadataResponse::default()
            .with_brokers(self.live_brokers(v))
            .with_controller_id(BrokerId(self.controller()))
            .with_topics(found);
        if v >= 2 {
            resp.cluster_id = Some(StrBytes::from_string(self.cfg.cluster_id.clone()));
        }
        if v >= 3 {
            resp.throttle_time_ms = call.faults.throttle_ms;
        }
        if v >= 13 {
            resp.error_code = call.faults.top.unwrap_or(codes::NONE);
        }
        call.answer(&resp)
    }

    pub(crate) fn describe_cluster(&mut self, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(_) = DescribeClusterRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let up = self.nodes.iter().filter(|(_, n)| n.up);
        let brokers = up.map(|(id, n)| {
            DescribeClusterBroker::default()
                .with_broker_id(BrokerId(*id))
                .with_host(n.host.clone())
                .with_port(n.port)
                .with_rack(n.rack.clone())
        });
        let resp = DescribeClusterResponse::default()
            .with_throttle_time_ms(call.faults.throttle_ms)
            .with_error_code(call.faults.error.unwrap_or(codes::NONE))
            .with_cluster_id(StrBytes::from_string(self.cfg.cluster_id.clone()))
            .with_controller_id(BrokerId(self.controller()))
            .with_brokers(brokers.collect());
        call.answer(&resp)
    }

    pub(crate) fn describe_configs(&mut self, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = DescribeConfigsRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let results = req.resources.into_iter().map(|r| {
            let topic = self.topics.get(&r.resource_name);
            let missing = r.resource_type == TOPIC_RESOURCE && topic.is_none();
            let error = match call.faults.error {
                Some(code) => code,
                None if missing => codes::UNKNOWN_TOPIC_OR_PARTITION,
                None => codes::NONE,
            };
            let wanted = |name: &StrBytes| {
                let keys = r.configuration_keys.as_ref();
                keys.is_none_or(|keys| keys.contains(name))
            };
            let configs = match topic {
                Some(topic) if error == codes::NONE && r.resource_type == TOPIC_RESOURCE => {
                    let each = topic.configs.iter();
                    each.filter(|(name, _)| wanted(name))
                        .map(|(name, value)| topic_config(call, name, value))
                        .collect()
                }
                _ => Vec::new(),
            };
            DescribeConfigsResult::default()
                .with_error_code(error)
                .with_resource_type(r.resource_type)
                .with_resource_name(r.resource_name.clone())
                .with_configs(configs)
        });
        let resp = DescribeConfigsResponse::default()
            .with_results(results.collect())
            .with_throttle_time_ms(call.faults.throttle_ms);
        call.answer(&resp)
    }

    pub(crate) fn find_coordinator(&mut self, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = FindCoordinatorRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let cold = std::mem::take(&mut self.cold);
        let find = |cluster: &Cluster, key: &StrBytes| {
            let error = match call.faults.error {
                Some(code) => code,
                // Group and transaction coordinators; share groups are not here.
                None if !(0..=1).contains(&req.key_type) => codes::INVALID_REQUEST,
                None if cold => codes::COORDINATOR_NOT_AVAILABLE,
                None => codes::NONE,
            };
            let node = cluster.coordinator_of(key);
            match node.and_then(|id| Some((id, cluster.nodes.get(&id)?))) {
                Some((id, n)) if error == codes::NONE => (error, id, n.host.clone(), n.port),
                None if error == codes::NONE => {
                    (codes::COORDINATOR_NOT_AVAILABLE, -1, StrBytes::new(), -1)
                }
                _ => (error, -1, StrBytes::new(), -1),
            }
        };
        let mut resp = FindCoordinatorResponse::default();
        if call.version >= 1 {
            resp.throttle_time_ms = call.faults.throttle_ms;
        }
        if call.version >= 4 {
            let each = req.coordinator_keys.iter().map(|key| {
                let (error, node, host, port) = find(self, key);
                Coordinator::default()
                    .with_key(key.clone())
                    .with_error_code(error)
                    .with_error_message(Some(coordinator_message(
                        call.version,
                        error,
                        req.key_type,
                    )))
                    .with_node_id(BrokerId(node))
                    .with_host(host)
                    .with_port(port)
            });
            resp.coordinators = each.collect();
        } else {
            let (error, node, host, port) = find(self, &req.key);
            resp.error_code = error;
            resp.node_id = BrokerId(node);
            resp.host = host;
            resp.port = port;
            if call.version >= 1 {
                let message = coordinator_message(call.version, error, req.key_type);
                resp.error_message = Some(message);
            }
        }
        call.answer(&resp)
    }

    /// Where the group is coordinated: where a test put it, else by its name over the live nodes.
    pub(crate) fn coordinator_of(&self, group: &StrBytes) -> Option<i32> {
        let placed = self.coordinators.get(group);
        if let Some(node) = placed.filter(|n| self.nodes.get(n).is_some_and(|n| n.up)) {
            return Some(*node);
        }
        let up: Vec<i32> = self
            .nodes
            .iter()
            .filter(|(_, n)| n.up)
            .map(|(id, _)| *id)
            .collect();
        let sum = group
            .bytes()
            .fold(0usize, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        up.get(sum.checked_rem(up.len())?).copied()
    }

    fn topic_metadata(
        &mut self,
        call: &Call,
        asked: Asked,
        may_create: bool,
    ) -> MetadataResponseTopic {
        let v = call.version;
        let name = match asked {
            Asked::Name(name) => name,
            Asked::Id(id) => match self.topic_ids.get(&id) {
                Some(name) => name.clone(),
                None => {
                    let uuid = uuid::Uuid::from_bytes(id);
                    return MetadataResponseTopic::default()
                        .with_error_code(codes::UNKNOWN_TOPIC_ID)
                        .with_name(None)
                        .with_topic_id(uuid);
                }
            },
        };
        let mut answer = MetadataResponseTopic::default().with_name(Some(TopicName(name.clone())));
        let (planned, _) = self.planned(call, &name, -1);
        if let Some(code) = planned {
            answer.error_code = code;
            return answer;
        }
        if !self.topics.contains_key(&name) {
            answer.error_code = codes::UNKNOWN_TOPIC_OR_PARTITION;
            // Version 0 to 3 have no flag and always may. The topic is there from the next
            // request on, as with Kafka.
            if self.cfg.auto_create && (may_create || v < 4) {
                let partitions = self.cfg.default_partitions;
                if let Err(code) = self.make_topic(&name, partitions, None) {
                    answer.error_code = code;
                }
            }
            return answer;
        }
        let Some(topic) = self.topics.get(&name) else {
            return answer;
        };
        if v >= 10 {
            answer.topic_id = uuid::Uuid::from_bytes(topic.id);
        }
        answer.partitions = self.partitions_metadata(v, topic);
        answer
    }

    fn partitions_metadata(&self, v: i16, topic: &Topic) -> Vec<MetadataResponsePartition> {
        let is_up = |node: &i32| self.nodes.get(node).is_some_and(|n| n.up);
        let one = |(index, p): (usize, &Partition)| {
            let ids = |wanted: bool| {
                let each = p.replicas.iter().filter(|r| is_up(r) || !wanted);
                each.map(|r| BrokerId(*r)).collect::<Vec<_>>()
            };
            let mut answer = MetadataResponsePartition::default()
                .with_partition_index(i32::try_from(index).unwrap_or(i32::MAX))
                .with_leader_id(BrokerId(p.leader))
                .with_replica_nodes(ids(false))
                .with_isr_nodes(ids(true));
            if p.leader < 0 {
                answer.error_code = codes::LEADER_NOT_AVAILABLE;
            }
            if v == 0 && answer.error_code == codes::NONE && !p.replicas.iter().all(is_up) {
                // Version 0 has no list of offline replicas.
                answer.error_code = codes::REPLICA_NOT_AVAILABLE;
            }
            if v >= 5 {
                let down = p.replicas.iter().filter(|r| !is_up(r));
                answer.offline_replicas = down.map(|r| BrokerId(*r)).collect();
            }
            if v >= 7 {
                answer.leader_epoch = p.epoch;
            }
            answer
        };
        topic.partitions.iter().enumerate().map(one).collect()
    }

    fn live_brokers(&self, v: i16) -> Vec<MetadataResponseBroker> {
        let up = self.nodes.iter().filter(|(_, n)| n.up);
        up.map(|(id, n)| {
            let broker = MetadataResponseBroker::default()
                .with_node_id(BrokerId(*id))
                .with_host(n.host.clone())
                .with_port(n.port);
            if v >= 1 {
                broker.with_rack(n.rack.clone())
            } else {
                broker
            }
        })
        .collect()
    }

    fn controller(&self) -> i32 {
        let mut up = self.nodes.iter().filter(|(_, n)| n.up);
        up.next().map_or(-1, |(id, _)| *id)
    }
}

/// Asking by id before version 12: the whole answer is a refusal, and names no broker.
fn refuse_ids(count: usize) -> MetadataResponse {
    let one = || {
        MetadataResponseTopic::default()
            .with_error_code(codes::INVALID_REQUEST)
            .with_name(Some(TopicName::default()))
    };
    MetadataResponse::default()
        .with_controller_id(BrokerId(-1))
        .with_topics((0..count).map(|_| one()).collect())
}

/// Kafka's words, which differ by version.
fn coordinator_message(v: i16, error: i16, key_type: i8) -> StrBytes {
    StrBytes::from_static_str(match error {
        codes::NONE if v < 4 => "NONE",
        codes::COORDINATOR_NOT_AVAILABLE if v < 4 => "The coordinator is not available.",
        codes::INVALID_REQUEST if v < 4 || key_type != SHARE_KEY => {
            "This most likely occurs because of a request being malformed by the client library \
             or the message was sent to an incompatible broker. See the broker logs for more \
             details."
        }
        _ => "",
    })
}

fn topic_config(call: &Call, name: &StrBytes, value: &StrBytes) -> DescribeConfigsResourceResult {
    let mut one = DescribeConfigsResourceResult::default()
        .with_name(name.clone())
        .with_value(Some(value.clone()))
        .with_config_source(DYNAMIC_TOPIC_CONFIG);
    if call.version >= 3 {
        one.config_type = STRING_CONFIG;
    }
    one
}

/// FindCoordinator's third kind of key: share groups.
const SHARE_KEY: i8 = 2;
const TOPIC_RESOURCE: i8 = 2;
const DYNAMIC_TOPIC_CONFIG: i8 = 1;
const STRING_CONFIG: i8 = 2;
