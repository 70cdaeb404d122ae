//! The handle of a running subscription.

use crate::engine::{Command, Snapshot};
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::runtime::{Ask, Inbox, IoThread};
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
/// println!("{} records behind the logs' ends", running.lag().await?);
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
    pub(super) _io: Arc<IoThread>,
}

impl Running {
    /// How it stands now.
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
    pub async fn lag(&self) -> Result<i64, Error> {
        let snapshot = self.snapshot().await?;
        Ok(snapshot.partitions.iter().filter_map(|p| p.lag()).sum())
    }

    /// Commits what has settled; returns once the broker has acknowledged it.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`] where there is no group id to commit under.
    pub async fn commit_now(&self) -> Result<(), Error> {
        let (tx, rx) = oneshot::channel();
        self.ask(Ask::Command(Command::CommitNow, tx)).await?;
        rx.await.map_err(|_| over())?
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

    async fn ask(&self, ask: Ask) -> Result<(), Error> {
        self.asks.send(ask).await.map_err(|_| over())
    }
}

fn over() -> Error {
    Error::misuse("the subscription is over; join() says how it ended")
}
