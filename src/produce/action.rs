//! Settings of a [`Produce`](super::Produce), what goes into it, and what it wants done.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::error::Error;
use crate::ids::{NodeId, Token, TopicId};
use crate::wire::message::BrokerEndpoint;
use crate::wire::{Code, Request};

/// Settings of a [`Produce`](super::Produce).
#[derive(Clone, Debug)]
pub struct ProduceConfig {
    /// How long an answer may take. The broker is asked to wait for its replicas for two thirds of
    /// it, so that its own word about that comes first.
    pub request_timeout: Duration,
    /// The first pause after a failure; it doubles.
    pub retry_backoff: Duration,
    /// The longest such pause.
    pub retry_backoff_max: Duration,
    /// A record that is not written after so long fails, once what is in flight of it has been
    /// answered; `None`: it is tried for ever.
    pub delivery_timeout: Option<Duration>,
    /// A batch is closed at this size. One record may be larger.
    pub batch_bytes_max: usize,
    /// Records that may wait or be in flight.
    pub records_max: usize,
    /// Their bytes. One record may be larger when there is no other.
    pub bytes_max: usize,
    /// For jitter, and for the partitions of records without a key.
    pub seed: [u8; 32],
}

impl Default for ProduceConfig {
    fn default() -> Self {
        ProduceConfig {
            request_timeout: Duration::from_secs(30),
            retry_backoff: Duration::from_millis(100),
            retry_backoff_max: Duration::from_secs(1),
            delivery_timeout: None,
            batch_bytes_max: 256 << 10,
            records_max: 10_000,
            bytes_max: 16 << 20,
            seed: [0; 32],
        }
    }
}

/// A record to be written.
///
/// ```
/// use laneway::produce::Outgoing;
/// let record = Outgoing::new("payments").key("customer-7").value("12.50").header("trace", "7");
/// assert_eq!(record.partition, None); // the key picks it
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Where to.
    pub topic: Arc<str>,
    /// `None`: where Java's producer would put the key; without a key any.
    pub partition: Option<i32>,
    /// Milliseconds since 1970; -1: none.
    pub timestamp: i64,
    /// Null differs from empty.
    pub key: Option<Bytes>,
    /// Null is a tombstone and differs from empty.
    pub value: Option<Bytes>,
    /// In this order, repeated keys kept.
    pub headers: Vec<(Bytes, Option<Bytes>)>,
}

impl Outgoing {
    /// A record without anything, for `topic`.
    pub fn new(topic: impl Into<Arc<str>>) -> Self {
        Outgoing {
            topic: topic.into(),
            partition: None,
            timestamp: -1,
            key: None,
            value: None,
            headers: Vec::new(),
        }
    }

    /// Sets the key, which picks the partition.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the value. Without one the record is a tombstone.
    #[must_use]
    pub fn value(mut self, value: impl Into<Bytes>) -> Self {
        self.value = Some(value.into());
        self
    }

    /// Adds a header behind those that are there.
    #[must_use]
    pub fn header(mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.headers.push((key.into(), Some(value.into())));
        self
    }

    /// Names the partition, whatever the key.
    #[must_use]
    pub fn partition(mut self, partition: i32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Sets the time: milliseconds since 1970.
    #[must_use]
    pub fn timestamp(mut self, millis: i64) -> Self {
        self.timestamp = millis;
        self
    }

    /// What it takes in a batch at most.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let blob = |b: &Option<Bytes>| b.as_ref().map_or(0, Bytes::len).saturating_add(LENGTH);
        let headers = self.headers.iter().fold(0usize, |sum, (key, value)| {
            sum.saturating_add(key.len())
                .saturating_add(LENGTH)
                .saturating_add(blob(value))
        });
        (RECORD_AROUND + headers)
            .saturating_add(blob(&self.key))
            .saturating_add(blob(&self.value))
    }
}

/// A varint of 32 bits.
const LENGTH: usize = 5;

/// A record's own length, attributes, time, offset and the count of its headers.
const RECORD_AROUND: usize = 26;

/// Names one record that was given to a [`Produce`](super::Produce).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Where a record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its partition.
    pub partition: i32,
    /// Its offset; -1 where the broker had it already and has forgotten where.
    pub offset: i64,
}

/// A topic, as far as a producer needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicView {
    /// [`TopicId::ZERO`] where brokers know none.
    pub id: TopicId,
    /// Who leads each partition, by index; none where nobody does now.
    pub leaders: Vec<Option<NodeId>>,
}

/// What a [`Produce`](super::Produce) wants done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ProduceAction {
    /// Send `request`; the answer, or why there is none, comes back through
    /// [`Produce::handle_response`](super::Produce::handle_response) under `token`.
    Send {
        /// Names the request.
        token: Token,
        /// To whom; `None`: any broker.
        node: Option<NodeId>,
        /// What to send.
        request: Request,
        /// How long the answer may take.
        timeout: Duration,
    },
    /// What became of a record. Exactly once for each, unless it was cancelled.
    Done {
        /// Which.
        ticket: Ticket,
        /// Where it is, or why it is not known to be anywhere.
        result: Result<Written, Error>,
    },
    /// What is known of leaders is old.
    RefreshMetadata,
    /// KIP-951: this broker leads that partition now.
    Hint {
        /// Its topic.
        topic: Arc<str>,
        /// Its index.
        partition: i32,
        /// The leader and its epoch.
        leader: (NodeId, i32),
        /// Where brokers listen.
        endpoints: Vec<BrokerEndpoint>,
    },
    /// Something to tell the user; no answer is needed.
    Notice(ProduceNotice),
}

/// Something worth a line in the log; it is tried again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ProduceNotice {
    /// A batch could not be written so far.
    Retrying {
        /// Which topic.
        topic: Arc<str>,
        /// Which partition.
        partition: i32,
        /// Failures in a row.
        attempts: u32,
        /// The last one.
        error: Error,
    },
    /// No broker gives a producer id.
    NoProducerId {
        /// Failures in a row.
        attempts: u32,
        /// The last one.
        error: Error,
    },
    /// The partition's leader does not know what we wrote before.
    Forgotten {
        /// Which topic.
        topic: Arc<str>,
        /// Which partition.
        partition: i32,
        /// What it said.
        code: Code,
    },
}

impl fmt::Display for ProduceNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProduceNotice::Retrying {
                topic,
                partition,
                attempts,
                error,
            } => write!(
                f,
                "{topic}-{partition} could not be written to {attempts} times in a row, trying on: {}",
                error.message()
            ),
            ProduceNotice::NoProducerId { attempts, error } => write!(
                f,
                "no producer id after {attempts} tries, trying on: {}",
                error.message()
            ),
            ProduceNotice::Forgotten {
                topic,
                partition,
                code,
            } => write!(
                f,
                "the leader of {topic}-{partition} does not know what we wrote last ({code}): it may \
                 be lost; writing goes on under a new epoch"
            ),
        }
    }
}
