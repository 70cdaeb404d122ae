//! `ConsumerGroupHeartbeat` (KIP-848): one exchange that joins, keeps alive, reports, gives back,
//! is given, and leaves.

use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages as kp;
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::protocol::StrBytes;

use super::message::Code;
use super::reader::Reader;
use super::response::Read;
use crate::ids::TopicId;

/// Partitions by the topic's id, each topic once.
pub type PartitionsById = Vec<(TopicId, Vec<i32>)>;

/// What a member of a group with the new protocol says. `None`: as said before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerGroupHeartbeatRequest {
    /// The group id.
    pub group: Arc<str>,
    /// Made by the member, the same through all its life.
    pub member_id: Arc<str>,
    /// As last told; 0 joins, -1 leaves, -2 leaves the place of a static member open.
    pub member_epoch: i32,
    /// Of a static member, in each request.
    pub instance_id: Option<Arc<str>>,
    /// Where the member runs.
    pub rack: Option<Arc<str>>,
    /// How long the coordinator waits for partitions to be given back.
    pub rebalance_timeout: Option<Duration>,
    /// The topics wanted, by name.
    pub topics: Option<Vec<Arc<str>>>,
    /// The topics wanted, by a regular expression that the broker reads (version 1).
    pub topic_regex: Option<Arc<str>>,
    /// The broker's assignor that is wanted.
    pub assignor: Option<Arc<str>>,
    /// The partitions that the member has.
    pub owned: Option<PartitionsById>,
}

/// What the coordinator says to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerGroupHeartbeatResponse {
    /// How long the broker asks this link to be silent (KIP-219); zero mostly.
    pub throttle: Duration,
    /// 0, or why not.
    pub code: Code,
    /// The broker's words for an error.
    pub message: Option<Arc<str>>,
    /// Absent with an error.
    pub member_id: Option<Arc<str>>,
    /// From now on.
    pub member_epoch: i32,
    /// When the next is due.
    pub interval: Duration,
    /// All that the member should have; `None`: as told before.
    pub assignment: Option<PartitionsById>,
}

pub(super) fn encode(r: &ConsumerGroupHeartbeatRequest) -> kp::ConsumerGroupHeartbeatRequest {
    let text = |s: &Arc<str>| StrBytes::from(String::from(&**s));
    let topics = r.topics.as_ref().map(|names| {
        let names = names.iter().map(|name| kp::TopicName(text(name)));
        names.collect()
    });
    let owned = r.owned.as_ref().map(|owned| {
        let each = owned.iter().map(|(id, partitions)| {
            TopicPartitions::default()
                .with_topic_id(super::request::uuid(*id))
                .with_partitions(partitions.clone())
        });
        each.collect()
    });
    let rebalance = r.rebalance_timeout.map_or(-1, super::request::millis);
    kp::ConsumerGroupHeartbeatRequest::default()
        .with_group_id(kp::GroupId(text(&r.group)))
        .with_member_id(text(&r.member_id))
        .with_member_epoch(r.member_epoch)
        .with_instance_id(r.instance_id.as_ref().map(text))
        .with_rack_id(r.rack.as_ref().map(text))
        .with_rebalance_timeout_ms(rebalance)
        .with_subscribed_topic_names(topics)
        .with_subscribed_topic_regex(r.topic_regex.as_ref().map(text))
        .with_server_assignor(r.assignor.as_ref().map(text))
        .with_topic_partitions(owned)
}

pub(super) fn read(r: &mut Reader<'_>) -> Read<ConsumerGroupHeartbeatResponse> {
    let throttle = r.millis()?;
    let code = r.code()?;
    let message = r.nullable_string()?;
    let member_id = r.nullable_string()?;
    let member_epoch = r.i32()?;
    let interval = r.millis()?;
    let assignment = match r.present()? {
        true => {
            let topics = r.list(18, |r| {
                let id = r.topic_id()?;
                let partitions = r.list(4, Reader::i32)?;
                r.skip_tags()?;
                Ok((id, partitions))
            })?;
            r.skip_tags()?;
            Some(topics)
        }
        false => None,
    };
    r.skip_tags()?;
    Ok(ConsumerGroupHeartbeatResponse {
        throttle,
        code,
        message,
        member_id,
        member_epoch,
        interval,
        assignment,
    })
}
