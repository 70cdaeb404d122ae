//! Committed offsets: OffsetCommit, OffsetFetch and OffsetDelete.

use bytes::Bytes;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{
    GroupId, OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse,
    OffsetFetchRequest, OffsetFetchResponse, TopicName,
};
use kafka_protocol::protocol::{Decodable, StrBytes};

use super::codes;
use super::core::{Call, Cluster, Outcome};
use super::group::Group;
use crate::time::Now;

/// An offset that a group has committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The offset.
    pub offset: i64,
    /// The leader epoch that came with it, -1 if none.
    pub leader_epoch: i32,
    /// The text that came with it; a null one is kept as "".
    pub metadata: String,
}

/// One commit that was stored, in the order they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitEntry {
    /// When.
    pub at: Now,
    /// The group.
    pub group: String,
    /// Who committed, "" for one outside the group.
    pub member_id: String,
    /// Under which generation, -1 for one outside the group.
    pub generation: i32,
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// What.
    pub committed: Committed,
}

/// A topic's partitions with what was found of each.
type Fetched = Vec<(StrBytes, Vec<(i32, Committed)>)>;

impl Cluster {
    /// What `group` has committed for a partition.
    #[must_use]
    pub fn committed(&self, group: &str, topic: &str, partition: i32) -> Option<&Committed> {
        let key = (StrBytes::from_string(topic.to_owned()), partition);
        self.committed.get(group.as_bytes())?.get(&key)
    }

    /// The newest commits of all groups, oldest first (`commit_history_max` of them).
    pub fn commits(&self) -> impl Iterator<Item = &CommitEntry> {
        self.commit_history.iter()
    }

    /// Stores an offset for a group, as an administrator would.
    pub fn commit(&mut self, group: &str, topic: &str, partition: i32, committed: Committed) {
        let group = StrBytes::from_string(group.to_owned());
        let delay = self.cfg.group_initial_rebalance_delay;
        if !self.consumers.contains_key(&group) {
            self.groups
                .entry(group.clone())
                .or_insert_with(|| Group::new(delay));
        }
        let key = (StrBytes::from_string(topic.to_owned()), partition);
        self.committed
            .entry(group)
            .or_default()
            .insert(key, committed);
    }

    pub(crate) fn offset_commit(&mut self, now: Now, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = OffsetCommitRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let group = req.group_id.0.clone();
        let generation = req.generation_id_or_member_epoch;
        let whole = match call.faults.error {
            Some(code) => code,
            None if self.coordinator_of(&group) != Some(call.node) => codes::NOT_COORDINATOR,
            None => self.check_commit(now, &group, &req),
        };
        let mut topics = Vec::with_capacity(req.topics.len());
        for topic in req.topics {
            let mut answers = Vec::with_capacity(topic.partitions.len());
            for p in topic.partitions {
                let index = p.partition_index;
                let (planned, late) = self.planned(call, &topic.name, index);
                let metadata = p.committed_metadata.as_deref().unwrap_or_default();
                let error = match planned {
                    Some(code) => code,
                    // Asked before the group is, so it wins over what the group says.
                    None if self.partition_ref(&topic.name, index).is_none() => {
                        codes::UNKNOWN_TOPIC_OR_PARTITION
                    }
                    None if whole != codes::NONE => whole,
                    None if metadata.len() > self.cfg.offset_metadata_max => {
                        codes::OFFSET_METADATA_TOO_LARGE
                    }
                    None => codes::NONE,
                };
                if error == codes::NONE {
                    self.store(CommitEntry {
                        at: now,
                        group: group.to_string(),
                        member_id: req.member_id.to_string(),
                        generation,
                        topic: topic.name.to_string(),
                        partition: index,
                        committed: Committed {
                            offset: p.committed_offset,
                            leader_epoch: p.committed_leader_epoch,
                            metadata: metadata.to_owned(),
                        },
                    });
                }
                let answer = OffsetCommitResponsePartition::default()
                    .with_partition_index(index)
                    .with_error_code(late.unwrap_or(error));
                answers.push(answer);
            }
            let one = OffsetCommitResponseTopic::default().with_name(topic.name);
            topics.push(one.with_partitions(answers));
        }
        let mut resp = OffsetCommitResponse::default().with_topics(topics);
        if call.version >= 3 {
            resp.throttle_time_ms = call.faults.throttle_ms;
        }
        call.answer(&resp)
    }

    pub(crate) fn offset_fetch(&mut self, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = OffsetFetchRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let v = call.version;
        let mut resp = OffsetFetchResponse::default();
        if v >= 3 {
            resp.throttle_time_ms = call.faults.throttle_ms;
        }
        if v >= 8 {
            for g in req.groups {
                let asked = g.topics.map(|topics| {
                    let each = topics.into_iter();
                    each.map(|t| (t.name.0, t.partition_indexes)).collect()
                });
                let member = g.member_id.as_deref().unwrap_or_default();
                let refused = match g.member_epoch {
                    0.. => self.check_consumer(&g.group_id.0, member, g.member_epoch),
                    _ => None,
                };
                let (error, found) = match refused {
                    Some(code) if code != codes::NONE => (code, Vec::new()),
                    _ => self.find_offsets(call, &g.group_id.0, asked),
                };
                resp.groups.push(group_answer(g.group_id, error, found));
            }
        } else {
            let asked: Option<Vec<_>> = req.topics.map(|topics| {
                let each = topics.into_iter();
                each.map(|t| (t.name.0, t.partition_indexes)).collect()
            });
            let (error, found) = self.find_offsets(call, &req.group_id.0, asked.clone());
            if v >= 2 {
                resp.error_code = error;
                resp.topics = found.into_iter().map(|t| topic_answer(v, 0, t)).collect();
            } else {
                // There is no outer code: each partition asked for carries it.
                let blank = || unknown(asked.into_iter().flatten());
                let found = if error == codes::NONE { found } else { blank() };
                resp.topics = found
                    .into_iter()
                    .map(|t| topic_answer(v, error, t))
                    .collect();
            }
        }
        self.plan_offsets(call, &mut resp);
        call.answer(&resp)
    }

    /// Errors that a script has for single partitions.
    fn plan_offsets(&mut self, call: &Call, resp: &mut OffsetFetchResponse) {
        for topic in resp.groups.iter_mut().flat_map(|g| &mut g.topics) {
            for p in &mut topic.partitions {
                if let (Some(code), _) = self.planned(call, &topic.name, p.partition_index) {
                    p.error_code = code;
                    p.committed_offset = -1;
                }
            }
        }
        for topic in &mut resp.topics {
            for p in &mut topic.partitions {
                if let (Some(code), _) = self.planned(call, &topic.name, p.partition_index) {
                    p.error_code = code;
                    p.committed_offset = -1;
                }
            }
        }
    }

    pub(crate) fn offset_delete(&mut self, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = OffsetDeleteRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let group = &req.group_id.0;
        let error = match call.faults.error {
            Some(code) => code,
            None if self.coordinator_of(group) != Some(call.node) => codes::NOT_COORDINATOR,
            None if self
                .consumers
                .get(group)
                .is_some_and(|g| !g.members.is_empty()) =>
            {
                codes::GROUP_SUBSCRIBED_TO_TOPIC
            }
            None if !self.groups.contains_key(group) && !self.consumers.contains_key(group) => {
                codes::GROUP_ID_NOT_FOUND
            }
            // A consumer group with members needs its subscriptions read to know what may go.
            None if self
                .groups
                .get(group)
                .is_some_and(|g| !g.members.is_empty()) =>
            {
                codes::GROUP_SUBSCRIBED_TO_TOPIC
            }
            None => codes::NONE,
        };
        let mut resp = OffsetDeleteResponse::default()
            .with_error_code(error)
            .with_throttle_time_ms(call.faults.throttle_ms);
        if error == codes::NONE {
            let offsets = self.committed.entry(group.clone()).or_default();
            for topic in req.topics {
                let mut answers = Vec::with_capacity(topic.partitions.len());
                for p in topic.partitions {
                    offsets.remove(&(topic.name.0.clone(), p.partition_index));
                    answers.push(
                        OffsetDeleteResponsePartition::default()
                            .with_partition_index(p.partition_index),
                    );
                }
                let one = OffsetDeleteResponseTopic::default().with_name(topic.name);
                resp.topics.push(one.with_partitions(answers));
            }
        }
        call.answer(&resp)
    }

    fn check_commit(&mut self, now: Now, group: &StrBytes, req: &OffsetCommitRequest) -> i16 {
        if group.is_empty() {
            return codes::INVALID_GROUP_ID;
        }
        let generation = req.generation_id_or_member_epoch;
        if let Some(code) = self.check_consumer(group, &req.member_id, generation) {
            return code;
        }
        if let Some(found) = self.groups.get_mut(group) {
            let instance = req.group_instance_id.as_ref();
            return found.check_commit(now, &req.member_id, instance, generation);
        }
        if generation >= 0 {
            return codes::ILLEGAL_GENERATION;
        }
        let delay = self.cfg.group_initial_rebalance_delay;
        self.groups.insert(group.clone(), Group::new(delay));
        codes::NONE
    }

    fn store(&mut self, entry: CommitEntry) {
        let group = StrBytes::from_string(entry.group.clone());
        let key = (StrBytes::from_string(entry.topic.clone()), entry.partition);
        let offsets = self.committed.entry(group).or_default();
        offsets.insert(key, entry.committed.clone());
        if self.commit_history.len() >= self.cfg.commit_history_max {
            self.commit_history.pop_front();
        }
        self.commit_history.push_back(entry);
    }

    fn find_offsets(
        &mut self,
        call: &Call,
        group: &StrBytes,
        asked: Option<Vec<(StrBytes, Vec<i32>)>>,
    ) -> (i16, Fetched) {
        if let Some(code) = call.faults.error {
            return (code, Vec::new());
        }
        if self.coordinator_of(group) != Some(call.node) {
            return (codes::NOT_COORDINATOR, Vec::new());
        }
        let known = self.committed.get(group);
        let Some(asked) = asked else {
            let mut all: Fetched = Vec::new();
            for ((topic, partition), committed) in known.into_iter().flatten() {
                if all.last().is_none_or(|(last, _)| last != topic) {
                    all.push((topic.clone(), Vec::new()));
                }
                if let Some((_, partitions)) = all.last_mut() {
                    partitions.push((*partition, committed.clone()));
                }
            }
            return (codes::NONE, all);
        };
        let found = asked.into_iter().map(|(topic, partitions)| {
            let each = partitions.into_iter().map(|p| {
                let committed = known.and_then(|k| k.get(&(topic.clone(), p)));
                (p, committed.cloned().unwrap_or_else(never_committed))
            });
            let each = each.collect();
            (topic, each)
        });
        (codes::NONE, found.collect())
    }
}

fn never_committed() -> Committed {
    Committed {
        offset: -1,
        leader_epoch: -1,
        metadata: String::new(),
    }
}

fn unknown(asked: impl Iterator<Item = (StrBytes, Vec<i32>)>) -> Fetched {
    let blank = |p: Vec<i32>| p.into_iter().map(|p| (p, never_committed())).collect();
    asked.map(|(topic, p)| (topic, blank(p))).collect()
}

fn topic_answer(
    v: i16,
    error: i16,
    found: (StrBytes, Vec<(i32, Committed)>),
) -> OffsetFetchResponseTopic {
    let (topic, partitions) = found;
    let each = partitions.into_iter().map(|(index, c)| {
        let one = OffsetFetchResponsePartition::default()
            .with_error_code(error)
            .with_partition_index(index)
            .with_committed_offset(c.offset)
            .with_metadata(Some(StrBytes::from_string(c.metadata)));
        if v >= 5 {
            one.with_committed_leader_epoch(c.leader_epoch)
        } else {
            one
        }
    });
    let partitions = each.collect();
    OffsetFetchResponseTopic::default()
        .with_name(TopicName(topic))
        .with_partitions(partitions)
}

fn group_answer(group: GroupId, error: i16, found: Fetched) -> OffsetFetchResponseGroup {
    let topics = found.into_iter().map(|(topic, partitions)| {
        let each = partitions.into_iter().map(|(index, c)| {
            OffsetFetchResponsePartitions::default()
                .with_partition_index(index)
                .with_committed_offset(c.offset)
                .with_committed_leader_epoch(c.leader_epoch)
                .with_metadata(Some(StrBytes::from_string(c.metadata)))
        });
        let partitions = each.collect();
        OffsetFetchResponseTopics::default()
            .with_name(TopicName(topic))
            .with_partitions(partitions)
    });
    OffsetFetchResponseGroup::default()
        .with_group_id(group)
        .with_error_code(error)
        .with_topics(topics.collect())
}
