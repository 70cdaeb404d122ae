//! Settings that say what becomes of a record: what errors mean, how long a handler may take.

use super::{BatchSubscription, Subscription};
use crate::error::Error;
use crate::lane::{HandlerError, Mode, Outcome, Retry};
use crate::record::Record;
use std::sync::Arc;
use std::time::Duration;

impl Subscription {
    /// Says what an error means. Without it an error is a failure, which [`Subscription::retry`]
    /// deals with. `f` sees the error that the handler returned, or
    /// [`Panicked`](crate::lane::Panicked) or [`TimedOut`](crate::lane::TimedOut); of a batch that
    /// failed as one it is asked for each record. It runs where handlers run, and only where
    /// something failed. A panic in it counts as the handler's.
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// # #[derive(Debug)] struct Closed;
    /// # impl std::fmt::Display for Closed { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("closed") } }
    /// let subscription = subscription.on_error(|record, error| match error.downcast_ref::<Closed>() {
    ///     Some(closed) if record.attempt() > 3 => Outcome::Drop,
    ///     _ => Outcome::failed(error.to_string()),
    /// });
    /// ```
    pub fn on_error(
        mut self,
        f: impl Fn(&Record, &dyn HandlerError) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        self.on_error = Some(Arc::new(f));
        self
    }

    /// How long a handler call may take; by default for ever. A future that is pending when its
    /// time is up is dropped, and the call counts as failed with
    /// [`TimedOut`](crate::lane::TimedOut). [`Snapshot::timed_out`](crate::Snapshot) counts such
    /// records.
    ///
    /// A plain function ([`Subscription::run_blocking`]) cannot be ended: it keeps its thread and
    /// its lane until it returns, for two records of a lane never run at once. What it returns
    /// late counts for nothing; the record has failed. The same holds for a future that blocks its
    /// thread: nothing can drop it before it gives way.
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// let subscription = subscription.handler_timeout(std::time::Duration::from_secs(30));
    /// ```
    pub fn handler_timeout(mut self, longest: Duration) -> Self {
        if longest < Duration::from_millis(1) {
            self.problem = Some(Error::misuse(
                "handler_timeout is under 1 ms: no handler would come to its end",
            ));
        }
        self.config.handler_timeout = Some(longest);
        self
    }
}

impl Subscription {
    /// How many lanes (without lanes: records) may wait for a retry, or for the write of a dead
    /// letter, at once: 10,000 by default. At the bound no more is read until one of them has gone
    /// on; what has been read runs. The bytes that they hold count against
    /// [`Subscription::budget`].
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// let subscription = subscription.parked_max(500);
    /// ```
    pub fn parked_max(mut self, lanes: usize) -> Self {
        if lanes == 0 {
            self.problem = Some(Error::misuse(
                "parked_max(0) would let nothing wait for a retry: give 1 or more",
            ));
        }
        self.config.parked_max = lanes;
        self
    }

    /// Gives every live key a lane of its own and runs at most `n` records at once. A key is live
    /// while a record of it is held here; two keys never wait for each other, unless the 64 bits
    /// of their hashes agree. Records without a key run in any order. The table of live keys is
    /// bounded by the records that are held, which [`Subscription::budget`] bounds.
    ///
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| (format!("k{}", n % 2), [n]))).await?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{Kafka, LaneKey, Record, Topics};
    ///
    /// let (done, mut ten) = tokio::sync::mpsc::channel(10);
    /// let running = Kafka::new(brokers)
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .lanes_per_key(16)
    ///     .lane_key(LaneKey::RecordKey)
    ///     .start(move |record: Record| {
    ///         let done = done.clone();
    ///         async move { done.send(record.offset()).await.map_err(|e| e.to_string()) }
    ///     })?;
    /// let mut last = [-1; 2];
    /// for _ in 0..10 {
    ///     let offset = ten.recv().await.expect("it runs");
    ///     let key = (offset % 2) as usize;
    ///     assert!(last[key] < offset, "in order within a key");
    ///     last[key] = offset;
    /// }
    /// running.close(std::time::Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lanes_per_key(mut self, n: usize) -> Self {
        self.lanes.push("lanes_per_key");
        self.config.mode = Mode::PerKey {
            at_once: self.count("lanes_per_key", n),
        };
        self
    }
}

impl BatchSubscription {
    /// How long a batch that is not full waits for more records; by default not at all. It is
    /// handed over early where no more can come: the byte budget is used up, or the subscription
    /// drains.
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// let batches = subscription.batch(500).batch_wait(std::time::Duration::from_millis(20));
    /// ```
    pub fn batch_wait(mut self, wait: Duration) -> Self {
        self.inner.config.batch_wait = wait;
        self
    }

    /// As [`Subscription::on_error`].
    pub fn on_error(
        mut self,
        f: impl Fn(&Record, &dyn HandlerError) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        self.inner = self.inner.on_error(f);
        self
    }

    /// As [`Subscription::retry`], for each record of a batch.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.inner = self.inner.retry(retry);
        self
    }

    /// As [`Subscription::handler_timeout`], for each call: all records of the batch have failed.
    pub fn handler_timeout(mut self, longest: Duration) -> Self {
        self.inner = self.inner.handler_timeout(longest);
        self
    }
}
