//! Records, or what came of them, taken by the caller one by one.

use super::waiting::{In, deliveries};
use super::{Running, Subscription};
use crate::error::Error;
use crate::handler::OneByOne;
use crate::ids::TopicPartition;
use crate::lane::Outcome;
use crate::record::Record;
use futures_core::Stream;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Results of handlers that wait to be taken by the caller.
pub const RESULTS_MAX: usize = 1024;

impl Subscription {
    /// Gives the records one by one instead of calling a handler: each [`Delivery`] is settled by
    /// its own [`ack`](Delivery::ack) or [`nack`](Delivery::nack), from any thread or task, in any
    /// order.
    ///
    /// As many deliveries are out at once as handlers would run: one without `workers`, `n` with
    /// `workers(n)`, one for each lane with `workers_by_key(n)`, so that the order of a key holds
    /// whoever works on it. All other settings count as they do for a handler, the byte budget
    /// too. **A delivery that is dropped without a word is a retry.** One that was not taken before
    /// its handler's time-out, or before its lease had ended, is never handed out.
    ///
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| (format!("k{n}"), [n]))).await?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{Kafka, LaneKey, Topics};
    ///
    /// let mut deliveries = Kafka::new(brokers)
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .workers_by_key(8)
    ///     .lane_key(LaneKey::RecordKey)
    ///     .stream()?;
    /// let mut settled = 0;
    /// while let Some(delivery) = deliveries.next().await {
    ///     // To another task: the next one of another lane need not wait for it.
    ///     tokio::spawn(async move {
    ///         println!("{:?}", delivery.value()); // a delivery is its record
    ///         delivery.ack();
    ///     });
    ///     settled += 1;
    ///     if settled == 10 {
    ///         break;
    ///     }
    /// }
    /// deliveries.close(std::time::Duration::from_secs(5)).await?;
    /// assert_eq!(server.cluster().committed("billing", "payments", 0).map(|c| c.offset), Some(10));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Subscription::start`].
    pub fn stream(self) -> Result<Deliveries, Error> {
        let (out, deliveries) = deliveries();
        let policy = self.on_error.clone();
        let hand_out = move |record: Record| {
            let (word, said) = oneshot::channel();
            let delivery = Delivery {
                record,
                word: Some(word),
            };
            out.put(delivery);
            async move { said.await.unwrap_or_else(|_| dropped()) }
        };
        let running = self.start_tasks(OneByOne(hand_out, policy))?;
        Ok(Deliveries {
            deliveries,
            running,
        })
    }

    /// Runs `f` on every record, and gives what it returns with `Ok` to the caller, with the
    /// record's address.
    ///
    /// A result is given over before its record settles: [`RESULTS_MAX`] of them wait at most, and
    /// where they are not taken, handlers wait with their records. So no result is missed, and one
    /// may come twice where the record runs again (its partition was lost at that moment, or the
    /// process ended before the commit). An error is what it is to any handler, a retry unless
    /// [`Subscription::on_error`] says otherwise, and gives nothing.
    ///
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{Kafka, Record, Topics};
    ///
    /// let mut sums = Kafka::new(brokers)
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .run_stream(|record: Record| async move {
    ///         record.value().map(|v| u64::from(v[0]) * 2).ok_or("a tombstone")
    ///     })?;
    /// let mut sum = 0;
    /// while let Some(result) = sums.next().await {
    ///     sum += result.value;
    ///     if result.offset == 9 {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(sum, 90);
    /// sums.close(std::time::Duration::from_secs(5)).await?;
    /// assert_eq!(server.cluster().committed("billing", "payments", 0).map(|c| c.offset), Some(10));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Subscription::start`].
    pub fn run_stream<F, Fut, T, E>(self, f: F) -> Result<Results<T>, Error>
    where
        F: Fn(Record) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        let (out, results) = mpsc::channel(RESULTS_MAX);
        let f = Arc::new(f);
        let policy = self.on_error.clone();
        let handle = move |record: Record| {
            let out = out.clone();
            let (partition, offset, attempt) =
                (record.address(), record.offset(), record.attempt());
            let run = f(record);
            async move {
                let result = Handled {
                    partition,
                    offset,
                    attempt,
                    value: run.await?,
                };
                Ok::<_, E>(match out.send(result).await {
                    Ok(()) => Outcome::Ack,
                    Err(_) => Outcome::failed("nobody takes results any more"),
                })
            }
        };
        let running = self.start_tasks(OneByOne(handle, policy))?;
        Ok(Results { results, running })
    }
}

fn dropped() -> Outcome {
    Outcome::failed("its delivery was dropped without a word")
}

/// Records, one by one: a [`Stream`]. From [`Subscription::stream`]. It ends when the subscription
/// does; [`Deliveries::join`] says how. Dropping it closes the subscription at once.
#[derive(Debug)]
pub struct Deliveries {
    deliveries: In,
    running: Running,
}

impl Deliveries {
    /// The next delivery; `None` once the subscription is over.
    pub async fn next(&mut self) -> Option<Delivery> {
        poll_fn(|cx| self.deliveries.poll(cx)).await
    }

    /// The subscription, to steer it.
    #[must_use]
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Takes no more records in. The stream goes on with what had been dealt, and ends once all of
    /// it has settled, is committed, and the group is left: go on taking until then.
    ///
    /// # Errors
    /// When the subscription is over.
    pub async fn drain(&self) -> Result<(), Error> {
        self.running.begin_drain().await
    }

    /// As [`Running::close`]: what was not taken yet runs again elsewhere, what was taken has until
    /// shortly before the deadline to be settled.
    ///
    /// # Errors
    /// As [`Running::close`].
    pub async fn close(self, deadline: Duration) -> Result<(), Error> {
        drop(self.deliveries);
        self.running.close(deadline).await
    }

    /// Waits until the subscription ends, or says how it did. What was not taken yet runs again
    /// elsewhere.
    ///
    /// # Errors
    /// What ended it.
    pub async fn join(self) -> Result<(), Error> {
        drop(self.deliveries);
        self.running.join().await
    }
}

impl Stream for Deliveries {
    type Item = Delivery;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Delivery>> {
        self.deliveries.poll(cx)
    }
}

/// One record that was handed out, to be settled by whoever has it. It is its [`Record`].
///
/// Its lane waits until it is settled. Where its lease ends first, what is said of it counts for
/// nothing: the record runs again elsewhere. [`Record::lease_stands`] tells.
#[must_use = "a delivery that is dropped without a word is a retry"]
#[derive(Debug)]
pub struct Delivery {
    record: Record,
    word: Option<oneshot::Sender<Outcome>>,
}

impl Delivery {
    /// It is done.
    pub fn ack(self) {
        self.settle(Outcome::Ack);
    }

    /// It failed, for this reason: the subscription's [`Retry`](crate::Retry) says what follows.
    pub fn nack(self, reason: impl Into<Box<str>>) {
        self.settle(Outcome::Failed(reason.into()));
    }

    /// It is to run again after this long.
    pub fn retry_after(self, wait: Duration) {
        self.settle(Outcome::RetryAfter(wait));
    }

    /// It goes to the dead-letter topic, for this reason.
    pub fn dead_letter(self, reason: impl Into<Box<str>>) {
        self.settle(Outcome::DeadLetter(reason.into()));
    }

    /// It is done with, though not done.
    pub fn discard(self) {
        self.settle(Outcome::Drop);
    }

    /// Any outcome.
    pub fn settle(mut self, outcome: Outcome) {
        if let Some(word) = self.word.take() {
            // Nobody waits for it any more where its lease has ended.
            let _ = word.send(outcome);
        }
    }

    /// Whether nobody waits for its word any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.word.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Waits until nobody waits for its word any more: its lease has ended, or its time-out has
    /// come. Work on it may stop then.
    pub async fn given_up(&mut self) {
        if let Some(word) = &mut self.word {
            poll_fn(|cx| word.poll_closed(cx)).await;
        }
    }
}

impl Deref for Delivery {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

/// What came of one record: an item of [`Results`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Handled<T> {
    /// The record's partition.
    pub partition: TopicPartition,
    /// Its offset.
    pub offset: i64,
    /// Which run of it this was.
    pub attempt: u32,
    /// What the handler returned.
    pub value: T,
}

/// What handlers returned: a [`Stream`]. From [`Subscription::run_stream`]. It ends when the
/// subscription does; [`Results::join`] says how. Dropping it closes the subscription at once.
#[derive(Debug)]
pub struct Results<T> {
    results: mpsc::Receiver<Handled<T>>,
    running: Running,
}

impl<T> Results<T> {
    /// The next result; `None` once the subscription is over.
    pub async fn next(&mut self) -> Option<Handled<T>> {
        self.results.recv().await
    }

    /// The subscription, to steer it.
    #[must_use]
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Takes no more records in. The stream goes on with what had been dealt, and ends once all of
    /// it has settled, is committed, and the group is left: go on taking until then.
    ///
    /// # Errors
    /// When the subscription is over.
    pub async fn drain(&self) -> Result<(), Error> {
        self.running.begin_drain().await
    }

    /// As [`Running::close`]. Handlers whose result there is no room for run again elsewhere.
    ///
    /// # Errors
    /// As [`Running::close`].
    pub async fn close(self, deadline: Duration) -> Result<(), Error> {
        drop(self.results);
        self.running.close(deadline).await
    }

    /// Waits until the subscription ends, or says how it did.
    ///
    /// # Errors
    /// What ended it.
    pub async fn join(self) -> Result<(), Error> {
        drop(self.results);
        self.running.join().await
    }
}

impl<T> Stream for Results<T> {
    type Item = Handled<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Handled<T>>> {
        self.results.poll_recv(cx)
    }
}
