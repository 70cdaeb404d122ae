//! Hooks: what the program does when partitions come and go, and when a record runs too long.

use super::Subscription;
#[cfg(doc)]
use crate::engine::Event;
use crate::error::Error;
use crate::ids::TopicPartition;
use crate::runtime::HookFn;
use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

impl Subscription {
    /// Calls `f` with partitions that were granted, before anything of them is read: the place to
    /// load what the program keeps for each partition. They are read once the future has ended.
    /// The group's session lives on however long that takes.
    ///
    /// Hooks of one subscription run one at a time, in the order in which things happened, on the
    /// caller's runtime. A seek, a pause or data that was lost calls none. Where a hook fails or
    /// panics, the step that it is part of is finished (here: its partitions are not read), and
    /// the subscription ends with its error.
    ///
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{Kafka, Record, TopicPartition, Topics};
    /// use std::collections::HashMap;
    /// use std::sync::{Arc, Mutex};
    ///
    /// /// Sums by partition, kept in a store between owners.
    /// type Sums = Arc<Mutex<HashMap<TopicPartition, u64>>>;
    /// let (here, store) = (Sums::default(), Sums::default());
    ///
    /// let (load, save) = ((here.clone(), store.clone()), (here.clone(), store.clone()));
    /// let (done, mut tenth) = tokio::sync::mpsc::unbounded_channel();
    /// let running = Kafka::new(brokers)
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .on_granted(move |partitions| {
    ///         let (here, store) = load.clone();
    ///         async move {
    ///             for partition in partitions {
    ///                 let sum = store.lock().unwrap().get(&partition).copied().unwrap_or(0);
    ///                 here.lock().unwrap().insert(partition, sum);
    ///             }
    ///             Ok::<(), String>(())
    ///         }
    ///     })
    ///     .on_revoked(move |partitions| {
    ///         let (here, store) = save.clone();
    ///         async move {
    ///             for partition in partitions {
    ///                 let sum = here.lock().unwrap().remove(&partition).ok_or("never granted")?;
    ///                 store.lock().unwrap().insert(partition, sum);
    ///             }
    ///             Ok::<(), String>(())
    ///         }
    ///     })
    ///     .start(move |record: Record| {
    ///         let at = TopicPartition::new(record.topic(), record.partition());
    ///         let value = record.value().map_or(0, |v| u64::from(v[0]));
    ///         *here.lock().unwrap().get_mut(&at).expect("granted before it is read") += value;
    ///         let done = done.clone();
    ///         async move { done.send(record.offset()).unwrap() }
    ///     })?;
    /// while tenth.recv().await != Some(9) {}
    /// running.drain().await?;
    /// assert_eq!(store.lock().unwrap().values().sum::<u64>(), 45);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_granted<F, Fut, E>(mut self, f: F) -> Self
    where
        F: Fn(Vec<TopicPartition>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        self.hooks.granted = Some(boxed(f));
        self
    }

    /// Calls `f` with partitions that go back to the group, or that end with the subscription:
    /// nothing of them runs any more, what settled is committed, and they are given back once the
    /// future has ended. It has what is left of the time that the group gives; a future that takes
    /// longer is dropped, with a warning. See [`Subscription::on_granted`].
    pub fn on_revoked<F, Fut, E>(mut self, f: F) -> Self
    where
        F: Fn(Vec<TopicPartition>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        self.hooks.revoked = Some(boxed(f));
        self
    }

    /// Calls `f` with partitions that are no longer ours, without a chance to commit: the session
    /// has expired, or the group has counted us out. Another member may be at work on them by now,
    /// so what the program keeps for them is to be thrown away, not saved. Nobody waits for the
    /// future but the next hook; after `drain_max` it is dropped. See
    /// [`Subscription::on_granted`].
    ///
    /// An error that ends the subscription calls no hook.
    pub fn on_lost<F, Fut, E>(mut self, f: F) -> Self
    where
        F: Fn(Vec<TopicPartition>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        self.hooks.lost = Some(boxed(f));
        self
    }

    /// How long a record may run before an [`Event::Stalled`] says so: 5 minutes by default, `None`
    /// never. Nothing else comes of it, unless [`Subscription::stop_when_stalled`] is called: the
    /// session lives however long a handler runs, since heartbeats do not wait for it.
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// use std::time::Duration;
    /// let subscription = subscription.stall_after(Duration::from_secs(60));
    /// ```
    pub fn stall_after(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.config.stall_after = limit.into();
        if self.config.stall_after.is_some_and(|d| d.is_zero()) {
            self.problem = Some(Error::misuse(
                "stall_after(0) would call every record stalled: give the time that none should take",
            ));
        }
        self
    }

    /// A record that runs for longer than [`Subscription::stall_after`] ends the subscription with
    /// an error, so that whoever supervises the program may start it anew. Its record stays
    /// unsettled.
    pub fn stop_when_stalled(mut self) -> Self {
        self.config.stall_stops = true;
        self
    }
}

fn boxed<F, Fut, E>(f: F) -> HookFn
where
    F: Fn(Vec<TopicPartition>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Display,
{
    Arc::new(move |partitions| {
        let run = f(partitions);
        Box::pin(async move { run.await.map_err(|e| e.to_string()) })
    })
}
