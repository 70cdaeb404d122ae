//! Writes records: the public face of the producer that dead letters go through.

use crate::engine::{Config, Engine, Source, is_topic_name};
use crate::error::Error;
use crate::produce::{Outgoing, Written};
use crate::runtime::{ASKS_MAX, Ask, Clock, Driver, EventHub, Inbox, IoThread, to_its_end};
use crate::subscription::Kafka;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tracing::Instrument;

/// Bytes of records that may wait or be in flight; [`Producer::send`] waits for room beyond that.
const ROOM_BYTES: u32 = 16 << 20;

/// What a record counts for at least, so that the smallest are bounded in number too.
const RECORD_BYTES_MIN: u32 = 256;

/// A small idempotent producer: every replica in sync has a record before it counts as written, and
/// a lost answer makes no second copy.
///
/// It is what a program needs that writes what it made of the records it read, or brings dead
/// letters back. It batches what waits for the same partition, and has one batch of a partition in
/// flight; it does not compress, linger or take part in transactions.
///
/// At most 16 MiB of records wait at once (or one larger record); then [`Producer::send`] waits. A
/// record that is not written within 2 minutes fails. Dropping it gives what waits 5 more seconds,
/// in the background; [`Producer::close`] says how that went.
///
/// ```
/// # #[cfg(not(feature = "broker"))] fn main() {}
/// # #[cfg(feature = "broker")] #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = laneway::broker::Server::holding("payments", Vec::<(&str, &str)>::new()).await?;
/// # let brokers = server.bootstrap();
/// use laneway::{Kafka, Outgoing};
/// use std::time::Duration;
///
/// let producer = Kafka::new(brokers).producer()?;
/// let record = Outgoing::new("payments").key("customer-7").value("12.50").header("trace", "a1");
/// let written = producer.send(record).await?;
/// assert_eq!((written.partition, written.offset), (0, 0));
/// producer.close(Duration::from_secs(5)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Producer {
    asks: Inbox,
    room: Arc<Semaphore>,
    _io: Arc<IoThread>,
}

impl Kafka {
    /// A producer. Connections are opened once there is something to send.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) where an address cannot be.
    pub fn producer(&self) -> Result<Producer, Error> {
        let mut config = Config::new(self.addresses()?, Source::Nothing);
        self.apply_properties(&mut config);
        config.client_id = self.client_id.clone();
        config.seed = crate::runtime::seed();
        let io = self.io()?;
        let provider = self.authenticate(&mut config, &io);
        let clock = Clock::new();
        let engine = Engine::new(config, clock.now());
        // No handlers: nothing ever comes out of here.
        let (_, done) = mpsc::unbounded_channel();
        // Whoever has room has a place here too, so a record is on its way by its first poll.
        let (asks, asked) = mpsc::channel((ROOM_BYTES / RECORD_BYTES_MIN) as usize + ASKS_MAX);
        // Nobody listens to its events; the log has them.
        let events = (None, Arc::new(EventHub::default()));
        let way = self.way()?;
        let driver = Driver::new(engine, clock, way, Vec::new(), done, asked, events)
            .with_provider(provider);
        let thread = io.clone();
        let life = async move {
            if let Err(error) = to_its_end(driver.run()).await {
                tracing::error!("the producer ended: {error}");
            }
            drop(thread);
        };
        let client = self.client_id.to_string();
        let span = tracing::info_span!("producer", client);
        io.handle().spawn(life.instrument(span));
        Ok(Producer {
            asks,
            room: Arc::new(Semaphore::new(ROOM_BYTES as usize)),
            _io: io,
        })
    }
}

impl Producer {
    /// Writes a record, and returns once it is written. Records of one partition are written in the
    /// order in which their calls were first polled, as long as there is room; calls that wait for
    /// room get it in that order, and go on as each is polled again. Where order matters beyond
    /// that, await one call before the next.
    ///
    /// Dropping the future does not take the record back.
    ///
    /// # Errors
    /// [`is_retriable`](Error::is_retriable) where it may pass; the record may then have been written
    /// all the same. Otherwise what is wrong with the record, its topic or the right to write there.
    pub async fn send(&self, record: Outgoing) -> Result<Written, Error> {
        if !is_topic_name(&record.topic) {
            return Err(Error::misuse(format!(
                "{:?} cannot be a topic's name: use 1 to 249 of a-z A-Z 0-9 . _ -",
                record.topic
            )));
        }
        let size = u32::try_from(record.size_bytes()).unwrap_or(u32::MAX);
        let size = size.clamp(RECORD_BYTES_MIN, ROOM_BYTES);
        // First without waiting: a task that has used up its budget is made to wait by tokio though
        // there is room, and calls that were polled later would overtake this one.
        let room = match self.room.clone().try_acquire_many_owned(size) {
            Ok(room) => room,
            Err(_) => {
                let room = self.room.clone().acquire_many_owned(size).await;
                room.map_err(|_| over())?
            }
        };
        let (tx, rx) = oneshot::channel();
        let ask = Ask::Record(record, room, tx);
        if let Err(TrySendError::Full(ask)) = self.asks.try_send(ask) {
            self.asks.send(ask).await.map_err(|_| over())?;
        }
        rx.await.map_err(|_| over())?
    }

    /// Takes no more records, and returns once what waits is written or has failed; what is not
    /// written within `deadline` fails.
    ///
    /// # Errors
    /// What ended the producer before.
    pub async fn close(self, deadline: Duration) -> Result<(), Error> {
        let (tx, rx) = oneshot::channel();
        self.asks
            .send(Ask::Close(deadline, tx))
            .await
            .map_err(|_| over())?;
        rx.await.map_err(|_| over())?
    }
}

fn over() -> Error {
    Error::misuse("the producer is over; its log says why")
}
