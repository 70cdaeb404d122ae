//! ConsumerGroupHeartbeat on the wire, and how the cluster keeps groups of the new protocol.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::consumer_group_heartbeat_response::{Assignment, TopicPartitions};
use kafka_protocol::messages::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};
use kafka_protocol::protocol::{Decodable, StrBytes};
use uuid::Uuid;

use super::codes;
use super::consumer::{Beat, BeatReply, ConsumerGroup, ConsumerState, Parts, Rules, Topics};
use super::core::{Call, Cluster, Outcome};
use super::group::GroupState;
use crate::time::Now;

/// What there is of a group with the new protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerGroupView {
    /// The group's epoch: what its members are on their way to.
    pub epoch: i32,
    /// Kafka's name of its state.
    pub state: &'static str,
    /// By member id.
    pub members: BTreeMap<String, ConsumerMemberView>,
}

/// A member of a [`ConsumerGroupView`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerMemberView {
    /// Its instance id.
    pub instance_id: Option<String>,
    /// Its client id.
    pub client_id: String,
    /// Its epoch; -2: a static member that has left its place open.
    pub epoch: i32,
    /// How far it is.
    pub state: ConsumerState,
    /// What it has been given, by topic and partition.
    pub assigned: Vec<(String, i32)>,
}

impl Cluster {
    /// What there is of a group with the new protocol.
    #[must_use]
    pub fn consumer_group_view(&self, group: &str) -> Option<ConsumerGroupView> {
        let g = self.consumers.get(group.as_bytes())?;
        let name = |id: &[u8; 16]| {
            let name = self.topic_ids.get(id);
            name.map(ToString::to_string).unwrap_or_default()
        };
        let members = g.members.iter().map(|(id, m)| {
            let assigned = m.assigned.iter().map(|(topic, p)| (name(topic), *p));
            let view = ConsumerMemberView {
                instance_id: m.instance.as_ref().map(ToString::to_string),
                client_id: m.client_id.to_string(),
                epoch: m.epoch,
                state: m.state,
                assigned: assigned.collect(),
            };
            (id.to_string(), view)
        });
        Some(ConsumerGroupView {
            epoch: g.epoch,
            state: g.state_name(),
            members: members.collect(),
        })
    }

    pub(crate) fn consumer_heartbeat(
        &mut self,
        now: Now,
        call: &Call,
        body: &mut Bytes,
    ) -> Outcome {
        let Ok(req) = ConsumerGroupHeartbeatRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let group = req.group_id.0.clone();
        let member_id = req.member_id.clone();
        let refused = match call.faults.error {
            Some(code) => code,
            None if group.is_empty() => codes::INVALID_REQUEST,
            None if self.coordinator_of(&group) != Some(call.node) => codes::NOT_COORDINATOR,
            None => codes::NONE,
        };
        let result = match refused {
            codes::NONE => self.beat(now, &group, beat_of(call, req)),
            code => Err(code),
        };
        let result = match (call.faults.late, result) {
            (Some(code), _) => Err(code),
            (None, result) => result,
        };
        let mut resp = ConsumerGroupHeartbeatResponse::default()
            .with_throttle_time_ms(call.faults.throttle_ms);
        match result {
            Ok(reply) => {
                let interval = self.cfg.consumer_heartbeat_interval.as_millis();
                resp.member_id = Some(member_id);
                resp.member_epoch = reply.epoch;
                resp.heartbeat_interval_ms = i32::try_from(interval).unwrap_or(i32::MAX);
                resp.assignment = reply.assignment.as_ref().map(assignment);
            }
            Err(code) => resp.error_code = code,
        }
        call.answer(&resp)
    }

    fn beat(&mut self, now: Now, group: &StrBytes, beat: Beat) -> Result<BeatReply, i16> {
        let rules = self.consumer_rules();
        if !self.consumers.contains_key(group) {
            // An empty classic group changes over; one with members is of another kind here.
            let is_classic = self.groups.get(group).map(|g| g.state != GroupState::Empty);
            if beat.epoch != 0 || is_classic == Some(true) {
                return Err(codes::GROUP_ID_NOT_FOUND);
            }
        }
        let topics: Topics = self
            .topics
            .iter()
            .map(|(name, t)| {
                let count = i32::try_from(t.partitions.len()).unwrap_or(i32::MAX);
                (name.clone(), (t.id, count))
            })
            .collect();
        let is_new = !self.consumers.contains_key(group);
        let found = self.consumers.entry(group.clone()).or_default();
        let reply = found.heartbeat(now, beat, &topics, rules);
        match (is_new, &reply) {
            (true, Err(_)) => drop(self.consumers.remove(group)),
            (true, Ok(_)) => drop(self.groups.remove(group)),
            _ => {}
        }
        reply
    }

    /// A classic member may join only where the new protocol has no members; then the group
    /// changes over.
    pub(crate) fn is_taken_by_consumers(&mut self, group: &StrBytes) -> bool {
        match self.consumers.get(group) {
            Some(g) if !g.members.is_empty() => true,
            Some(_) => {
                self.consumers.remove(group);
                false
            }
            None => false,
        }
    }

    pub(crate) fn delete_consumer_group(&mut self, group: &StrBytes) -> i16 {
        match self.consumers.get(group) {
            None => codes::GROUP_ID_NOT_FOUND,
            Some(g) if !g.members.is_empty() => codes::NON_EMPTY_GROUP,
            Some(_) => {
                self.consumers.remove(group);
                self.committed.remove(group);
                codes::NONE
            }
        }
    }

    pub(crate) fn consumer_rules(&self) -> Rules {
        Rules {
            session: self.cfg.consumer_session_timeout,
            size_max: self.cfg.group_size_max,
        }
    }

    pub(crate) fn expire_consumers(&mut self, now: Now) {
        for group in self.consumers.values_mut() {
            group.handle_timeout(now);
        }
    }

    pub(crate) fn reload_consumers(&mut self, now: Now, group: &StrBytes) {
        let rules = self.consumer_rules();
        if let Some(g) = self.consumers.get_mut(group) {
            g.reload(now, rules);
        }
    }

    /// Whether the group speaks the new protocol, and then what its member may.
    pub(crate) fn check_consumer(&self, group: &StrBytes, member: &str, epoch: i32) -> Option<i16> {
        let g: &ConsumerGroup = self.consumers.get(group)?;
        Some(g.check_member(member, epoch))
    }
}

fn beat_of(call: &Call, req: ConsumerGroupHeartbeatRequest) -> Beat {
    let owned = req.topic_partitions.map(|topics| {
        let each = topics.into_iter().flat_map(|t| {
            let id = t.topic_id.into_bytes();
            t.partitions.into_iter().map(move |p| (id, p))
        });
        each.collect::<Parts>()
    });
    let rebalance = u64::try_from(req.rebalance_timeout_ms).ok();
    Beat {
        member_id: req.member_id,
        epoch: req.member_epoch,
        instance: req.instance_id,
        client_id: call.client_id.clone(),
        rebalance: rebalance.map(Duration::from_millis),
        topics: req
            .subscribed_topic_names
            .map(|names| names.into_iter().map(|n| n.0).collect()),
        regex: req.subscribed_topic_regex,
        assignor: req.server_assignor,
        owned,
    }
}

fn assignment(parts: &Parts) -> Assignment {
    let mut topics: BTreeMap<[u8; 16], Vec<i32>> = BTreeMap::new();
    for (id, partition) in parts {
        topics.entry(*id).or_default().push(*partition);
    }
    let topics = topics.into_iter().map(|(id, partitions)| {
        TopicPartitions::default()
            .with_topic_id(Uuid::from_bytes(id))
            .with_partitions(partitions)
    });
    Assignment::default().with_topic_partitions(topics.collect())
}
