//! A record as a handler gets it.

use crate::fetch::Charge;
#[cfg(feature = "runtime")]
use crate::ids::TopicPartition;
use crate::lane::{Attempt, Ended, LaneId, Lease, LeaseState, Parcel, Tried};
use crate::produce::Outgoing;
use crate::records::{Batch, TimestampType};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;

/// One decoded batch on its way through the lanes, and the bytes it counts for.
#[derive(Debug)]
pub struct Delivery {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    pub(crate) batch: Batch,
    /// Returned to the budget when the last record of the batch is dropped.
    pub(crate) _charge: Charge,
}

/// One record. It shares its batch's memory: keeping it keeps the whole batch, which counts
/// against the subscription's byte budget until the last of its records is dropped. Copy what you
/// want to keep for long.
///
/// ```
/// # #[cfg(not(feature = "broker"))] fn main() {}
/// # #[cfg(feature = "broker")] #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
/// # let brokers = server.bootstrap();
/// # use laneway::{Kafka, Topics};
/// use laneway::Record;
///
/// # let (done, mut one) = tokio::sync::mpsc::channel(10);
/// async fn handle(record: Record) -> Result<usize, String> {
///     let place = format!("{}-{} @{}", record.topic(), record.partition(), record.offset());
///     let value = record.value().ok_or(format!("{place} is a tombstone"))?;
///     println!("{place}, attempt {}: {:?} = {value:?}", record.attempt(), record.key());
///     for header in record.headers() {
///         println!("  {header:?}");
///     }
///     Ok(value.len())
/// }
/// # let running = Kafka::new(brokers).subscribe(Topics::named(["payments"]).group("g")).start(move |record| {
/// #     let done = done.clone();
/// #     async move { let n = handle(record).await?; done.send(n).await.map_err(|e| e.to_string()) }
/// # })?;
/// # assert_eq!(one.recv().await, Some(1));
/// # running.close(std::time::Duration::from_secs(5)).await?;
/// # Ok(())
/// # }
/// ```
pub struct Record {
    parcel: Arc<Parcel<Delivery>>,
    index: u32,
    lane: LaneId,
    tried: Option<Arc<Tried>>,
}

impl Record {
    pub(crate) fn new(
        parcel: Arc<Parcel<Delivery>>,
        index: u32,
        tried: Option<Arc<Tried>>,
        lane: LaneId,
    ) -> Self {
        Record {
            parcel,
            index,
            lane,
            tried,
        }
    }

    /// The same batch's record at `index`: looking at each in turn costs no reference count.
    pub(crate) fn move_to(&mut self, index: u32) {
        self.index = index;
    }

    fn batch(&self) -> &Batch {
        &self.parcel.load.batch
    }

    fn at(&self) -> usize {
        self.index as usize
    }

    /// Where it was read from.
    #[cfg(feature = "runtime")]
    pub(crate) fn address(&self) -> TopicPartition {
        let load = &self.parcel.load;
        TopicPartition::new(load.topic.clone(), load.partition)
    }

    /// The topic it was read from.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.parcel.load.topic
    }

    /// The partition it was read from.
    #[must_use]
    pub fn partition(&self) -> i32 {
        self.parcel.load.partition
    }

    /// Its offset in the partition.
    #[must_use]
    pub fn offset(&self) -> i64 {
        self.batch().offset(self.at())
    }

    /// Milliseconds since 1970, or -1 where the producer gave none. [`Record::timestamp_type`]
    /// says whose clock it was.
    #[must_use]
    pub fn timestamp(&self) -> i64 {
        self.batch().timestamp(self.at())
    }

    /// Whether the producer or the broker set the timestamp.
    #[must_use]
    pub fn timestamp_type(&self) -> TimestampType {
        self.batch().timestamp_type()
    }

    /// Its key. An empty key is not an absent one.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.batch().key(self.at())
    }

    /// Its value; `None` is a tombstone. An empty value is not an absent one.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        self.batch().value(self.at())
    }

    /// Its key as a slice that outlives the record. It shares (and so keeps) the batch's memory.
    #[must_use]
    pub fn key_bytes(&self) -> Option<Bytes> {
        self.batch().key_bytes(self.at())
    }

    /// Its value as a slice that outlives the record. It shares (and so keeps) the batch's memory,
    /// which then no longer counts against the budget.
    #[must_use]
    pub fn value_bytes(&self) -> Option<Bytes> {
        self.batch().value_bytes(self.at())
    }

    /// Its headers, in order, repeated keys kept. Read as they are asked for.
    #[must_use]
    pub fn headers(&self) -> crate::records::Headers<'_> {
        self.batch().headers(self.at())
    }

    /// The same record, to be written to `topic`: key, value, headers and timestamp as they are. Key
    /// and value share this record's memory.
    ///
    /// ```
    /// # use laneway::{Outgoing, Record};
    /// fn copy(record: &Record) -> Outgoing {
    ///     record.to_outgoing("payments.copy")
    /// }
    /// ```
    #[must_use]
    pub fn to_outgoing(&self, topic: impl Into<Arc<str>>) -> Outgoing {
        let copied = Bytes::copy_from_slice;
        let headers = self.headers();
        Outgoing {
            topic: topic.into(),
            partition: None,
            timestamp: self.timestamp(),
            key: self.key_bytes(),
            value: self.value_bytes(),
            headers: headers
                .map(|h| (copied(h.key_bytes()), h.value().map(copied)))
                .collect(),
        }
    }

    /// Which run of this record this is: 1 at first, more after a retry. Counted in this process
    /// since the partition was last granted.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.tried
            .as_ref()
            .map_or(1, |t| t.attempts().saturating_add(1))
    }

    /// What its last run failed with: the handler's error, or its panic's words. `None` at the
    /// first run, and where the handler only asked for a retry.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.tried.as_ref()?.error()
    }

    /// The number of the lane that runs it; `None` where records run in any order. It means
    /// nothing outside this subscription, nor in another life of it.
    #[must_use]
    pub fn lane(&self) -> Option<u32> {
        (self.lane != LaneId::NONE).then_some(self.lane.0)
    }

    /// Whether the partition is still ours and not about to be given back. Once false it stays false
    /// for this record, and what the handler returns may count for nothing: another member may be
    /// working on it.
    #[must_use]
    pub fn lease_stands(&self) -> bool {
        self.parcel.lease.is_granted()
    }

    /// The right to work on the record's partition, to be asked or waited for after the record is
    /// gone, or from another thread.
    #[must_use]
    pub fn lease(&self) -> RecordLease {
        RecordLease(Arc::clone(&self.parcel.lease))
    }

    /// Resolves when the partition is about to be taken away, or was: the time to come to an end.
    /// What the handler returns still counts until the drain's deadline; then, or at once where the
    /// partition was lost, its future is dropped.
    ///
    /// ```
    /// use laneway::{Outcome, Record};
    /// # async fn work(record: &Record) {}
    /// # trait Race: Future + Sized { async fn or<F: Future>(self, other: F) -> Option<Self::Output>; }
    /// # impl<A: Future> Race for A { async fn or<F: Future>(self, _: F) -> Option<A::Output> { Some(self.await) } }
    /// async fn handle(record: Record) -> Outcome {
    ///     // With `tokio::select!` or whatever picks the first of two futures.
    ///     match work(&record).or(record.cancelled()).await {
    ///         Some(()) => Outcome::Ack,
    ///         None => Outcome::Retry, // whoever has the partition next runs it again
    ///     }
    /// }
    /// ```
    pub fn cancelled(&self) -> Ended {
        self.parcel.lease.ended()
    }
}

/// The right to work on a record's partition. From [`Record::lease`]; cheap to clone.
#[derive(Clone, Debug)]
pub struct RecordLease(Arc<Lease>);

impl RecordLease {
    /// Whether the partition is ours and not about to be given back. Never true again once false.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.0.is_granted()
    }

    /// Whether what the handler returns still counts: also while the partition is being given back.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.0.state() != LeaseState::Lost
    }

    /// As [`Record::cancelled`].
    pub fn cancelled(&self) -> Ended {
        self.0.ended()
    }
}

impl Attempt<'_> {
    /// The record that failed. `None` where the lanes run records of another source than Kafka.
    /// Its [`Record::attempt`] is the one that would be next.
    #[must_use]
    pub fn record(&self) -> Option<Record> {
        let parcel = self.parcel.downcast_ref::<Arc<Parcel<Delivery>>>()?;
        let tried = Some(Arc::clone(self.tried));
        Some(Record::new(
            Arc::clone(parcel),
            self.index,
            tried,
            LaneId::NONE,
        ))
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("topic", &self.topic())
            .field("partition", &self.partition())
            .field("offset", &self.offset())
            .field("key_len", &self.key().map(<[u8]>::len))
            .field("value_len", &self.value().map(<[u8]>::len))
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
