//! The handle of a running subscription.

use crate::engine::{Command, InFlight, Scope, SeekTo, Snapshot};
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::runtime::{Ask, EventHub, Events, Inbox, IoThread};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A running subscription. Dropping it closes the subscription at once and never blocks: what
/// runs is told and dropped, what settled before is committed.
///
/// ```
/// # #[cfg(not(feature = "broker"))] fn main() {}
/// # #[cfg(feature = "broker")] #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
/// # let brokers = server.bootstrap();
/// use laneway::{Kafka, Topics};
///
/// let (done, mut ten) = tokio::sync::mpsc::channel(10);
/// let running = Kafka::new(brokers)
///     .subscribe(Topics::named(["payments"]).group("billing"))
///     .start(move |record| {
///         let done = done.clone();
///         async move { done.send(record.offset()).await.map_err(|e| e.to_string()) }
///     })?;
/// for _ in 0..10 {
///     ten.recv().await.expect("it runs");
/// }
///
/// running.commit_now().await?;
/// let snapshot = running.snapshot().await?;
/// println!("{} bytes of {} are held", snapshot.budget_used, snapshot.budget_max);
/// let partition = &snapshot.partitions[0];
/// println!("{} stands at {}, lag {:?}", partition.partition.partition, partition.watermark, partition.lag());
/// println!("{} records behind the logs' ends", running.lag().await?.records);
///
/// running.drain().await?; // what was dealt runs to its end; then commit, leave the group
/// assert_eq!(server.cluster().committed("billing", "payments", 0).map(|c| c.offset), Some(10));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Running {
    pub(super) asks: Inbox,
    pub(super) result: oneshot::Receiver<Result<(), Error>>,
    pub(super) events: Arc<EventHub>,
    pub(super) _io: Arc<IoThread>,
}

/// How far behind a subscription is: what [`Running::lag`] gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lag {
    /// Records between the watermarks and the logs' ends (Kafka's high watermark).
    pub records: i64,
    /// Records between the watermarks and the last stable offsets: open transactions beyond are
    /// not counted.
    pub stable: i64,
    /// Partitions whose end no broker has named yet; they count for nothing above.
    pub unknown: usize,
}

impl fmt::Display for Lag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} records", self.records)
    }
}

impl Running {
    /// How it stands now.
    ///
    /// An operator's question at night, "what holds this partition's commit back?", has its answer
    /// in [`PartitionSnapshot::holdup`](crate::PartitionSnapshot::holdup):
    ///
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{HoldupState, Kafka, Record, Topics};
    ///
    /// let (begun, mut stuck) = tokio::sync::mpsc::unbounded_channel();
    /// let running = Kafka::new(brokers)
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .workers(4)
    ///     .start(move |record: Record| {
    ///         let begun = begun.clone();
    ///         async move {
    ///             if record.offset() == 3 {
    ///                 begun.send(()).unwrap();
    ///                 std::future::pending::<()>().await;
    ///             }
    ///         }
    ///     })?;
    /// stuck.recv().await;
    ///
    /// let holdup = loop {
    ///     let snapshot = running.snapshot().await?;
    ///     match &snapshot.partitions[0].holdup {
    ///         Some(holdup) if holdup.offset == 3 => break holdup.clone(),
    ///         _ => tokio::task::yield_now().await,
    ///     }
    /// };
    /// println!("record {} holds it back for {:?}", holdup.offset, holdup.holds_for);
    /// assert!(matches!(holdup.what, HoldupState::Running(_)), "{holdup:?}");
    /// assert_eq!(holdup.attempts, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the subscription is over; [`Running::join`] says why.
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        let (tx, rx) = oneshot::channel();
        self.ask(Ask::Snapshot(tx)).await?;
        rx.await.map_err(|_| over())
    }

    /// Records between the watermarks and the logs' ends, over all partitions whose end is known.
    ///
    /// # Errors
    /// As [`Running::snapshot`].
    pub async fn lag(&self) -> Result<Lag, Error> {
        let snapshot = self.snapshot().await?;
        let partitions = snapshot.partitions.iter();
        Ok(Lag {
            records: partitions.clone().filter_map(|p| p.lag()).sum(),
            stable: partitions.clone().filter_map(|p| p.lag_stable()).sum(),
            unknown: partitions.filter(|p| p.lag().is_none()).count(),
        })
    }

    /// Everything worth telling from now on, as a stream. Each call makes one of its own; see
    /// [`Events`] for what happens where it is not read.
    ///
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{Event, Kafka, Topics};
    ///
    /// let running = Kafka::new(brokers)
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .start(|_record| async {})?;
    /// let mut events = running.events();
    /// while let Some(event) = events.next().await {
    ///     match event {
    ///         Event::Granted { partition, offset } => {
    ///             println!("{partition} is ours from {offset} on");
    ///             break;
    ///         }
    ///         Event::Stalled { partition, offset, running_for, .. } => {
    ///             eprintln!("{partition}: record {offset} has run for {running_for:?}");
    ///         }
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn events(&self) -> Events {
        self.events.reader()
    }

    /// Commits what has settled; returns once the broker has acknowledged all that had settled
    /// when this was called. Call it as often as you like: commits never overtake one another, and
    /// what is asked for while one is on its way goes out together in the next.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`] where there is no group id to commit under; a retriable
    /// [`ErrorKind::Broker`] where no broker acknowledged it within the request time-out, or the
    /// partition was lost meanwhile. What settled is then committed later, or runs again.
    pub async fn commit_now(&self) -> Result<(), Error> {
        self.command(Command::CommitNow).await
    }

    /// Gives reserved partitions of `topic` back to the group's sharing, whoever reserved them.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`] where none of them is reserved, as far as this member has heard.
    pub async fn release(
        &self,
        topic: impl Into<std::sync::Arc<str>>,
        partitions: impl IntoIterator<Item = i32>,
    ) -> Result<(), Error> {
        let topic = topic.into();
        let partitions = partitions.into_iter();
        let partitions = partitions.map(|p| crate::ids::TopicPartition::new(topic.clone(), p));
        let partitions = partitions.collect();
        self.command(Command::Release { partitions }).await
    }

    /// Hands out no more records of these until [`Running::resume`]: of everything
    /// ([`Scope::All`]), of a topic (`"payments"`) or of a partition (`("payments", 3)`).
    ///
    /// When this returns, no handler begins on a record of them any more, but for one that begins
    /// in this moment; those that run end, and what they settle is committed. A record that fails
    /// meanwhile runs again after the pause, which keeps its count of attempts. The partitions stay
    /// ours; they are fetched no more, and what was fetched stays in memory, within the budget.
    ///
    /// A pause belongs to the name: it holds across rebalances, also where a partition goes away
    /// and comes back, and for partitions that are granted later. The last word on a name counts
    /// for everything below it: after `pause(Scope::All)` and `resume("a")`, topic `a` alone runs.
    /// [`Running::drain`] does not wait for paused records.
    ///
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{Kafka, Record, Scope, Topics};
    ///
    /// let (done, mut ran) = tokio::sync::mpsc::unbounded_channel();
    /// let running = Kafka::new(brokers)
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .start(move |record: Record| std::future::ready(done.send(record.offset()).map_err(|e| e.to_string())))?;
    /// running.pause(Scope::All).await?;
    /// // The bank is away for the night.
    /// assert!(ran.try_recv().is_err());
    /// running.resume(("payments", 0)).await?;
    /// assert_eq!(ran.recv().await, Some(0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the subscription is over.
    pub async fn pause(&self, what: impl Into<Scope>) -> Result<(), Error> {
        let what = what.into();
        self.command(Command::Pause { what }).await
    }

    /// Ends a pause. What had been fetched runs on where it was.
    ///
    /// # Errors
    /// When the subscription is over.
    pub async fn resume(&self, what: impl Into<Scope>) -> Result<(), Error> {
        let what = what.into();
        self.command(Command::Resume { what }).await
    }

    /// Goes on reading elsewhere, in all partitions of `what` that this subscription holds now.
    ///
    /// With [`InFlight::Drain`], what runs of them ends first (`drain_max` at most) and is
    /// committed where it belongs; with [`InFlight::Drop`] it is dropped at once and counts for
    /// nothing. Either way what waited is let go, and when this returns every record handed out
    /// from now on is from the new place. A lane whose record still runs in a blocking handler
    /// waits for it, so the order of a key holds across the seek. A paused partition stays paused.
    ///
    /// **The new place is committed by settling, as ever**: once records from there on have
    /// settled. A process that dies right after a seek, before anything there has settled, finds
    /// the old commit and goes on from that; after a seek forward the records in between may
    /// therefore still run, after a seek back those before the old commit may not. Records that
    /// had settled run again when a seek leads back before them.
    ///
    /// Where two seeks of one partition overlap, the later one counts.
    ///
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{InFlight, Kafka, Record, SeekTo, Topics};
    ///
    /// let (done, mut ran) = tokio::sync::mpsc::unbounded_channel();
    /// let running = Kafka::new(brokers)
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .start(move |record: Record| std::future::ready(done.send(record.offset()).map_err(|e| e.to_string())))?;
    /// while ran.recv().await != Some(9) {}
    /// running.seek("payments", SeekTo::Offset(7), InFlight::Drain).await?;
    /// assert_eq!(ran.recv().await, Some(7));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`] where nothing of `what` is held now, or the offset is negative; a
    /// retriable error where a partition was taken away before its seek took place.
    pub async fn seek(
        &self,
        what: impl Into<Scope>,
        to: SeekTo,
        running: InFlight,
    ) -> Result<(), Error> {
        let what = what.into();
        self.command(Command::Seek { what, to, running }).await
    }

    /// Lets `n` records run at once from now on. What runs already is not stopped. The number of
    /// lanes stays: with `workers_by_key` more than there are lanes is as good as that many.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`] for 0, where records run one at a time, and for more than the threads
    /// of a blocking handler.
    pub async fn set_workers(&self, n: usize) -> Result<(), Error> {
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        self.command(Command::SetWorkers { n }).await
    }

    /// Takes no more records, runs all that were already dealt to lanes, commits, leaves. A
    /// record that keeps failing keeps this waiting: [`Running::close`] has a deadline.
    ///
    /// # Errors
    /// What ended the subscription, where it was not this.
    pub async fn drain(self) -> Result<(), Error> {
        let (tx, rx) = oneshot::channel();
        self.end(Ask::Command(Command::Drain, tx), rx).await
    }

    /// As [`Running::drain`], and does not wait for its end.
    pub(super) async fn begin_drain(&self) -> Result<(), Error> {
        let (tx, _) = oneshot::channel();
        self.ask(Ask::Command(Command::Drain, tx)).await
    }

    /// Takes no more records, drops what has not started, lets what runs end, commits what
    /// settled, leaves the group: all of it within `deadline`, whatever handlers and brokers do.
    /// The last fifth of it, 2 seconds at most, is kept for the commit and for leaving; handlers
    /// that still run by then are dropped, and their records run again elsewhere. A zero drops
    /// them at once and gives the rest 5 seconds.
    ///
    /// # Errors
    /// What ended the subscription, where it was not this.
    pub async fn close(self, deadline: Duration) -> Result<(), Error> {
        let (tx, rx) = oneshot::channel();
        self.end(Ask::Close(deadline, tx), rx).await
    }

    /// Waits until the subscription ends by itself.
    ///
    /// # Errors
    /// What ended it.
    pub async fn join(mut self) -> Result<(), Error> {
        let result = (&mut self.result).await;
        result.unwrap_or_else(|_| Err(over()))
    }

    /// Where the subscription is over already, says how it ended: the handle goes with this call.
    async fn end(self, ask: Ask, reply: oneshot::Receiver<Result<(), Error>>) -> Result<(), Error> {
        if self.asks.send(ask).await.is_ok()
            && let Ok(result) = reply.await
        {
            return result;
        }
        self.join().await
    }

    async fn command(&self, command: Command) -> Result<(), Error> {
        let (tx, rx) = oneshot::channel();
        self.ask(Ask::Command(command, tx)).await?;
        rx.await.map_err(|_| over())?
    }

    async fn ask(&self, ask: Ask) -> Result<(), Error> {
        self.asks.send(ask).await.map_err(|_| over())
    }
}

fn over() -> Error {
    Error::misuse("the subscription is over; join() says how it ended")
}
