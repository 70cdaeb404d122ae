//! What a commit says beside the offset.

use super::Subscription;
use crate::engine::{MapFull, OffsetMap};
use crate::error::Error;

impl Subscription {
    /// Whether commits keep what has settled above the watermark, so that a restart repeats only
    /// what had not settled: [`OffsetMap::On`] by default.
    ///
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("jobs", (0..10).map(|n| (["slow", "quick"][n % 2], [n as u8]))).await?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{Kafka, LaneKey, OffsetMap, Topics};
    /// use std::time::Duration;
    ///
    /// let work = |brokers| {
    ///     Kafka::new(brokers)
    ///         .subscribe(Topics::named(["jobs"]).group("crew"))
    ///         .workers_by_key(16)
    ///         .lane_key(LaneKey::RecordKey)
    ///         .offset_map(OffsetMap::On) // as it is anyway
    /// };
    /// // The records of one key never end, those of the other do.
    /// let running = work(brokers.clone()).start(|record| async move {
    ///     if record.key() == Some(b"slow") {
    ///         std::future::pending::<()>().await;
    ///     }
    /// })?;
    /// while running.snapshot().await?.settled < 5 {
    ///     tokio::task::yield_now().await;
    /// }
    /// running.close(Duration::from_secs(1)).await?;
    ///
    /// // The next life gets the first key's records alone.
    /// let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    /// let running = work(brokers).start(move |record| {
    ///     tell.send(record.key() == Some(b"slow")).unwrap();
    ///     async {}
    /// })?;
    /// for _ in 0..5 {
    ///     assert_eq!(told.recv().await, Some(true));
    /// }
    /// assert_eq!(running.snapshot().await?.settled_before, 5);
    /// # running.close(Duration::from_secs(1)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn offset_map(mut self, map: OffsetMap) -> Self {
        self.config.offset_map = map;
        self
    }

    /// What to do where that takes more room than a commit has: [`MapFull::Prefix`] by default.
    pub fn map_full(mut self, full: MapFull) -> Self {
        self.config.map_full = full;
        self
    }

    /// How many characters of metadata a commit may carry for a partition: 4,096 by default, as
    /// the broker's own `offset.metadata.max.bytes`. Where a broker takes less, that is found out
    /// at the first commit that is too long.
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// let subscription = subscription.metadata_max(16_384); // as this cluster is set
    /// ```
    pub fn metadata_max(mut self, chars: usize) -> Self {
        if chars == 0 {
            self.problem = Some(Error::misuse(
                "metadata_max(0) leaves no room for the offset map: give what the broker takes \
                 (offset.metadata.max.bytes, 4096 by default), or turn the map off with \
                 offset_map(OffsetMap::Off)",
            ));
        } else if chars > METADATA_MAX {
            self.problem = Some(Error::misuse(format!(
                "metadata_max({chars}) is more than a commit can carry: give {METADATA_MAX} at \
                 most"
            )));
        }
        self.config.metadata_max = chars;
        self
    }
}

/// What Kafka's older commits can say of a string's length.
const METADATA_MAX: usize = i16::MAX as usize;
