//! Settings of dead letters: where a record goes that no run will do for.

use super::{BatchSubscription, Interest, Subscription};
use crate::engine::{DeadLetterHeaders, DeadLetterTopic, Source, TooLarge, is_topic_name};
use crate::error::Error;
use crate::record::Record;
use std::sync::Arc;

impl Subscription {
    /// Where a record goes whose attempts have run out ([`Retry::max_attempts`]), or for which the
    /// handler asks with [`Outcome::DeadLetter`]: key, value, headers and timestamp as they are, and
    /// headers that say where it is from and why ([`DeadLetterHeaders`]). The key picks the
    /// partition, as in Java's producer.
    ///
    /// The record settles once every replica in sync has its dead letter, and not before; its lane
    /// waits until then, the others go on. Where the topic is missing, forbidden or cannot be
    /// written to, that is said in a warning, and the write is tried until it can be: nothing is
    /// lost meanwhile, and nothing passed over. The write is idempotent: a lost answer makes no
    /// second dead letter. A lost partition may, since whoever gets it runs the record again.
    ///
    /// The topic must exist; it is never made.
    ///
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
    /// # server.cluster().create_topic("payments.dlq", 1)?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{Event, Kafka, Outcome, Record, Retry, Topics};
    /// use std::time::Duration;
    ///
    /// let (written, mut letters) = tokio::sync::mpsc::unbounded_channel();
    /// let running = Kafka::new(brokers)
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .retry(Retry::fixed(Duration::from_millis(1)).max_attempts(3))
    ///     .dead_letter("payments.dlq")
    ///     .on_event(move |event| {
    ///         if let Event::DeadLettered { offset, attempts, .. } = event {
    ///             written.send((*offset, *attempts)).unwrap();
    ///         }
    ///     })
    ///     .start(|record: Record| async move {
    ///         match record.offset() {
    ///             2 => Outcome::dead_letter("no such account"), // at once
    ///             5 => Outcome::failed("no route to the bank"), // after three attempts
    ///             _ => Outcome::Ack,
    ///         }
    ///     })?;
    /// assert_eq!(letters.recv().await, Some((2, 1)));
    /// assert_eq!(letters.recv().await, Some((5, 3)));
    /// running.drain().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Retry::max_attempts`]: crate::Retry::max_attempts
    /// [`Outcome::DeadLetter`]: crate::Outcome::DeadLetter
    pub fn dead_letter(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.config.dead_letter = Some(DeadLetterTopic::Named(topic.into()));
        self
    }

    /// As [`Subscription::dead_letter`], to a topic that a function of the record names. The function
    /// runs on the thread that keeps the group's session: keep it quick. A panic in it, a name that
    /// no topic may have or the record's own topic end the subscription, with an error that names the
    /// record.
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// let subscription = subscription.dead_letter_by(|record| format!("{}.dlq", record.topic()));
    /// ```
    pub fn dead_letter_by<S: Into<Arc<str>>>(
        mut self,
        f: impl Fn(&Record) -> S + Send + Sync + 'static,
    ) -> Self {
        let by = Arc::new(move |record: &Record| f(record).into());
        self.config.dead_letter = Some(DeadLetterTopic::By(by));
        self
    }

    /// What becomes of a dead letter that is too large for its topic. [`TooLarge::Truncate`] by
    /// default.
    pub fn dead_letter_too_large(mut self, policy: TooLarge) -> Self {
        self.config.dead_letter_too_large = policy;
        self
    }

    /// How the headers are named that say where a dead letter is from.
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// // For tools that know Kafka Connect's.
    /// let subscription = subscription.dead_letter("t.dlq").dead_letter_headers(DeadLetterHeaders::Connect);
    /// ```
    pub fn dead_letter_headers(mut self, names: DeadLetterHeaders) -> Self {
        self.config.dead_letter_headers = names;
        self
    }

    /// What these settings must keep to.
    pub(super) fn check_dead_letters(&self) -> Result<(), Error> {
        let Some(to) = &self.config.dead_letter else {
            let policy = self.config.dead_letter_too_large != TooLarge::default();
            let names = self.config.dead_letter_headers != DeadLetterHeaders::default();
            return match policy || names {
                true => Err(Error::misuse(
                    "settings of dead letters without a topic for them; add .dead_letter(topic)",
                )),
                false => Ok(()),
            };
        };
        let DeadLetterTopic::Named(name) = to else {
            return Ok(());
        };
        if !is_topic_name(name) {
            return Err(Error::misuse(format!(
                "dead_letter({name:?}) cannot be a topic's name: use 1 to 249 of a-z A-Z 0-9 . _ -"
            )));
        }
        let read = match &self.config.source {
            Source::Topics { topics, .. } => topics.contains(name),
            Source::Pattern { pattern, .. } => pattern.matches(name),
            Source::Partitions { partitions, .. } => partitions.iter().any(|p| p.topic == *name),
            Source::Nothing => false,
        };
        debug_assert!(matches!(
            self.what,
            Interest::Topics(_) | Interest::Partitions(_)
        ));
        match read {
            true => Err(Error::misuse(format!(
                "dead_letter({name:?}) is a topic that this subscription reads: its dead letters would \
                 come again; name another"
            ))),
            false => Ok(()),
        }
    }
}

impl BatchSubscription {
    /// As [`Subscription::dead_letter`]; of a list of outcomes each says it of its own record.
    ///
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
    /// # server.cluster().create_topic("payments.dlq", 1)?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{Event, Kafka, Outcome, Record, Topics};
    ///
    /// let (written, mut letters) = tokio::sync::mpsc::unbounded_channel();
    /// let running = Kafka::new(brokers)
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .on_event(move |event| {
    ///         if let Event::DeadLettered { offset, .. } = event {
    ///             written.send(*offset).unwrap();
    ///         }
    ///     })
    ///     .batch(4)
    ///     .dead_letter("payments.dlq")
    ///     .start(|batch: Vec<Record>| {
    ///         let outcome = |r: &Record| match r.offset() % 5 {
    ///             2 => Outcome::dead_letter("no such account"),
    ///             _ => Outcome::Ack,
    ///         };
    ///         std::future::ready(batch.iter().map(outcome).collect::<Vec<_>>())
    ///     })?;
    /// assert_eq!((letters.recv().await, letters.recv().await), (Some(2), Some(7)));
    /// running.drain().await?;
    /// assert_eq!(server.cluster().committed("billing", "payments", 0).map(|c| c.offset), Some(10));
    /// # Ok(())
    /// # }
    /// ```
    pub fn dead_letter(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.inner = self.inner.dead_letter(topic);
        self
    }

    /// As [`Subscription::dead_letter_by`].
    pub fn dead_letter_by<S: Into<Arc<str>>>(
        mut self,
        f: impl Fn(&Record) -> S + Send + Sync + 'static,
    ) -> Self {
        self.inner = self.inner.dead_letter_by(f);
        self
    }

    /// As [`Subscription::dead_letter_too_large`].
    pub fn dead_letter_too_large(mut self, policy: TooLarge) -> Self {
        self.inner = self.inner.dead_letter_too_large(policy);
        self
    }

    /// As [`Subscription::dead_letter_headers`].
    pub fn dead_letter_headers(mut self, names: DeadLetterHeaders) -> Self {
        self.inner = self.inner.dead_letter_headers(names);
        self
    }
}
