//! What members tell each other inside JoinGroup and SyncGroup, opaque to the broker.
//!
//! The bytes come from other clients, in any version, and one bad member must not stop a group:
//! a newer version is read by the fields we know, and what is missing after the topics counts as
//! absent.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::consumer_protocol_assignment as kp_assignment;
use kafka_protocol::messages::consumer_protocol_subscription as kp_subscription;
use kafka_protocol::messages::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicName,
};
use kafka_protocol::protocol::{Encodable, StrBytes};

use crate::error::Error;
use crate::ids::TopicPartition;

/// The protocol type of every consumer group.
pub const PROTOCOL_TYPE: &str = "consumer";

/// What one member wants, and what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscription {
    /// As written by the member, 0 and up.
    pub version: i16,
    /// The topics it wants.
    pub topics: Vec<Arc<str>>,
    /// Of its assignor.
    pub user_data: Option<Bytes>,
    /// What it says that it has (v1+).
    pub owned: Vec<TopicPartition>,
    /// The generation that gave it `owned` (v2+); below 0 is none.
    pub generation: i32,
    /// Where it runs (v3+).
    pub rack: Option<Arc<str>>,
    /// Whether the bytes ended, or stopped making sense, after the topics.
    pub cut: bool,
}

/// What one member gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// As written by the leader, 0 and up.
    pub version: i16,
    /// In the order given.
    pub partitions: Vec<TopicPartition>,
    /// Of the assignor.
    pub user_data: Option<Bytes>,
}

/// The bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// How far into the bytes.
    pub at: usize,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not consumer protocol data at byte {}", self.at)
    }
}

impl std::error::Error for Unread {}

/// Reads a member's metadata. Allocates at most 32 bytes for each byte read.
///
/// # Errors
///
/// Not even version and topics can be read.
pub fn decode_subscription(bytes: &Bytes) -> Result<Subscription, Unread> {
    let mut r = Reader { bytes, at: 0 };
    let version = r.version()?;
    let topics = r.list(2, Reader::string)?;
    let mut found = Subscription {
        version,
        topics,
        generation: -1,
        ..Subscription::default()
    };
    found.cut = r.subscription_tail(&mut found).is_err();
    Ok(found)
}

/// Reads an assignment; no bytes at all mean that nothing is assigned. Allocates at most 32 bytes
/// for each byte read.
///
/// # Errors
///
/// Version or partitions cannot be read.
pub fn decode_assignment(bytes: &Bytes) -> Result<Assignment, Unread> {
    if bytes.is_empty() {
        return Ok(Assignment::default());
    }
    let mut r = Reader { bytes, at: 0 };
    let version = r.version()?;
    let partitions = r.partitions()?;
    let user_data = match r.at == bytes.len() {
        true => None, // some clients leave it out
        false => r.nullable_bytes()?,
    };
    Ok(Assignment {
        version,
        partitions,
        user_data,
    })
}

/// Writes a member's metadata in version 3, the newest. Everyone can read it: readers of an older
/// version stop before the fields they do not know.
///
/// # Errors
///
/// A topic's name is longer than the format can say.
pub fn encode_subscription(
    topics: &[Arc<str>],
    owned: &[TopicPartition],
    generation: i32,
    user_data: Option<Bytes>,
) -> Result<Bytes, Error> {
    let owned = by_topic(owned)
        .into_iter()
        .map(|(topic, partitions)| {
            kp_subscription::TopicPartition::default()
                .with_topic(TopicName(text(topic)))
                .with_partitions(partitions)
        })
        .collect();
    let message = ConsumerProtocolSubscription::default()
        .with_topics(topics.iter().map(text).collect())
        .with_user_data(user_data)
        .with_owned_partitions(owned)
        .with_generation_id(generation)
        .with_rack_id(None);
    encode(&message, SUBSCRIPTION_VERSION)
}

/// Writes an assignment in version 0; the later ones have the same fields, and some old clients
/// know no other.
///
/// # Errors
///
/// A topic's name is longer than the format can say.
pub fn encode_assignment(partitions: &[TopicPartition]) -> Result<Bytes, Error> {
    encode_assignment_with(partitions, None)
}

/// As [`encode_assignment`], with a word for whoever reads it beside.
pub(super) fn encode_assignment_with(
    partitions: &[TopicPartition],
    user_data: Option<Bytes>,
) -> Result<Bytes, Error> {
    let assigned = by_topic(partitions)
        .into_iter()
        .map(|(topic, partitions)| {
            kp_assignment::TopicPartition::default()
                .with_topic(TopicName(text(topic)))
                .with_partitions(partitions)
        })
        .collect();
    let message = ConsumerProtocolAssignment::default()
        .with_assigned_partitions(assigned)
        .with_user_data(user_data);
    encode(&message, ASSIGNMENT_VERSION)
}

const SUBSCRIPTION_VERSION: i16 = 3;
const ASSIGNMENT_VERSION: i16 = 0;

fn encode(message: &impl Encodable, version: i16) -> Result<Bytes, Error> {
    let mut buf = BytesMut::new();
    buf.extend_from_slice(&version.to_be_bytes());
    message
        .encode(&mut buf, version)
        .map_err(|e| Error::misuse(format!("group metadata cannot be written: {e}")))?;
    Ok(buf.freeze())
}

fn by_topic(partitions: &[TopicPartition]) -> BTreeMap<&Arc<str>, Vec<i32>> {
    let mut topics: BTreeMap<&Arc<str>, Vec<i32>> = BTreeMap::new();
    for tp in partitions {
        topics.entry(&tp.topic).or_default().push(tp.partition);
    }
    topics
}

fn text(s: &Arc<str>) -> StrBytes {
    StrBytes::from(String::from(&**s))
}

/// Reads forward; every step checks what is left.
struct Reader<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl Reader<'_> {
    fn version(&mut self) -> Result<i16, Unread> {
        let version = self.i16()?;
        match version < 0 {
            true => Err(Unread { at: 0 }),
            false => Ok(version),
        }
    }

    /// Everything after the topics, as far as it can be read.
    fn subscription_tail(&mut self, into: &mut Subscription) -> Result<(), Unread> {
        into.user_data = self.nullable_bytes()?;
        if into.version >= 1 {
            into.owned = self.partitions()?;
        }
        if into.version >= 2 {
            into.generation = self.i32()?;
        }
        if into.version >= 3 {
            into.rack = self.nullable_string()?;
        }
        Ok(())
    }

    fn partitions(&mut self) -> Result<Vec<TopicPartition>, Unread> {
        let topics = self.list(6, |r| {
            let topic = r.string()?;
            Ok((topic, r.list(4, Reader::i32)?))
        })?;
        let of = |(topic, partitions): (Arc<str>, Vec<i32>)| {
            partitions.into_iter().map(move |partition| TopicPartition {
                topic: topic.clone(),
                partition,
            })
        };
        Ok(topics.into_iter().flat_map(of).collect())
    }

    /// A list whose elements take at least `least` bytes each; null is empty.
    fn list<T>(
        &mut self,
        least: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, Unread>,
    ) -> Result<Vec<T>, Unread> {
        let at = self.at;
        let count = match self.i32()? {
            -1 => 0,
            n => usize::try_from(n).map_err(|_| Unread { at })?,
        };
        if count > (self.bytes.len() - self.at) / least {
            return Err(Unread { at });
        }
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(element(self)?);
        }
        Ok(list)
    }

    fn string(&mut self) -> Result<Arc<str>, Unread> {
        let at = self.at;
        self.nullable_string()?.ok_or(Unread { at })
    }

    fn nullable_string(&mut self) -> Result<Option<Arc<str>>, Unread> {
        let at = self.at;
        let len = match self.i16()? {
            -1 => return Ok(None),
            n => usize::try_from(n).map_err(|_| Unread { at })?,
        };
        let bytes = self.take(len)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| Unread { at })?;
        Ok(Some(Arc::from(text)))
    }

    fn nullable_bytes(&mut self) -> Result<Option<Bytes>, Unread> {
        let at = self.at;
        let len = match self.i32()? {
            -1 => return Ok(None),
            n => usize::try_from(n).map_err(|_| Unread { at })?,
        };
        self.take(len).map(Some)
    }

    fn i16(&mut self) -> Result<i16, Unread> {
        let bytes = self.take(2)?;
        Ok(i16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn i32(&mut self) -> Result<i32, Unread> {
        let bytes = self.take(4)?;
        Ok(i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn take(&mut self, len: usize) -> Result<Bytes, Unread> {
        if len > self.bytes.len() - self.at {
            return Err(Unread { at: self.at });
        }
        let taken = self.bytes.slice(self.at..self.at + len);
        self.at += len;
        Ok(taken)
    }
}
