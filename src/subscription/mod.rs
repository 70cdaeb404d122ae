//! What a user touches: the cluster's address, the subscription's settings, the running handle.

mod deadletters;
mod defaults;
mod grouping;
mod handling;
mod hooks;
mod interest;
mod kafka;
mod mapping;
mod running;
mod sasl;
mod secure;
pub(crate) mod stream;
mod tokens;
mod waiting;

pub use interest::{Interest, Partitions, Topics};
pub use kafka::Kafka;
pub use running::{Lag, Running};
pub use sasl::{CredentialProvider, Sasl};
pub use tokens::ClientCredentials;

use crate::engine::{CommitMode, Config, Engine, Event, LaneKey, Recreated};
use crate::error::{Error, ErrorKind};
use crate::fetch::{LossPolicy, StartOffset};
use crate::handler::{Blocking, ErrorPolicy, InBatches, OneByOne};
use crate::ids::ExecutorId;
use crate::lane::{Handler, IntoOutcome, IntoOutcomes, Mode, Retry, RunnerConfig};
use crate::record::{Delivery, Record};
use crate::runtime::{
    Clock, Driver, EventHub, EventSink, ExecutorTx, Gate, HookFns, HookRunner,
    spawn_blocking_executor, spawn_executor, to_its_end,
};
use crate::wire::message::Isolation;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

/// The settings of one consumer. Nothing is opened before [`Subscription::run`],
/// [`Subscription::start`] or [`Subscription::run_blocking`]; what cannot be is refused there,
/// before any I/O.
///
/// ```
/// # #[cfg(not(feature = "broker"))] fn main() {}
/// # #[cfg(feature = "broker")] #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
/// # let brokers = server.bootstrap();
/// # async fn charge(value: Option<&[u8]>) -> Result<(), String> { value.map(|_| ()).ok_or("no value".into()) }
/// # let (done, mut ten) = tokio::sync::mpsc::channel(10);
/// use laneway::{Kafka, LaneKey, StartOffset, Topics};
///
/// let subscription = Kafka::new(brokers)
///     .subscribe(Topics::named(["payments"]).group("billing"))
///     .start_at(StartOffset::Earliest)
///     .workers_by_key(64)
///     .lane_key(LaneKey::RecordKey)
///     .run(move |record| {
/// #       let done = done.clone();
///         async move {
///             charge(record.value()).await?;
/// #           done.send(record.offset()).await.unwrap();
///             Ok::<(), String>(())
///         }
///     });
/// # // `run` goes on for ever: ten records, in order, are enough here.
/// # let ten = async { for n in 0..10 { assert_eq!(ten.recv().await, Some(n)); } };
/// # tokio::select! { over = subscription => over?, () = ten => {} }
/// # Ok(())
/// # }
/// ```
#[must_use = "a subscription does nothing until it is run"]
pub struct Subscription {
    kafka: Kafka,
    what: Interest,
    config: Config,
    /// Every call that chose how to run, to refuse two.
    lanes: Vec<&'static str>,
    on_event: Option<EventSink>,
    hooks: HookFns,
    on_error: Option<ErrorPolicy>,
    problem: Option<Error>,
    /// Whether the assignors offered were listed.
    assignors_listed: bool,
}

impl Subscription {
    pub(super) fn new(kafka: Kafka, what: Interest) -> Self {
        let what = kafka.defaults.group_of(what);
        let mut config = Config::new(Vec::new(), what.source());
        config.client_id = kafka.client_id.clone();
        kafka.defaults.apply(&mut config);
        Subscription {
            kafka,
            what,
            config,
            lanes: Vec::new(),
            on_event: None,
            hooks: HookFns::default(),
            on_error: None,
            problem: None,
            assignors_listed: false,
        }
    }

    /// Where to start where the group has no valid commit. Kafka's clients default to latest and
    /// so skip what was written before they came; the default here is
    /// [`StartOffset::Earliest`].
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// let subscription = subscription.start_at(StartOffset::Timestamp(1_700_000_000_000));
    /// ```
    pub fn start_at(mut self, start: StartOffset) -> Self {
        self.config.start = start;
        self
    }

    /// What to do where records that should come next are gone: expired, or cut off. By default
    /// the partition stops with an error.
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// let subscription = subscription.on_loss(LossPolicy::Nearest);
    /// ```
    pub fn on_loss(mut self, policy: LossPolicy) -> Self {
        self.config.loss = policy;
        self
    }

    /// What to do where a topic was deleted and made anew while it was read. By default the new
    /// one is read from its first record on.
    pub fn on_recreated(mut self, policy: Recreated) -> Self {
        self.config.recreated = policy;
        self
    }

    /// Which records are seen. [`Isolation::ReadUncommitted`], Kafka's default, sees all.
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// let subscription = subscription.isolation(Isolation::ReadCommitted);
    /// ```
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.config.isolation = isolation;
        self
    }

    /// Runs up to `n` records at once, in any order. Without any of the `workers` calls one
    /// record runs at a time.
    pub fn workers(mut self, n: usize) -> Self {
        self.lanes.push("workers");
        self.config.mode = Mode::Any {
            workers: self.count("workers", n),
        };
        self
    }

    /// Runs `n` lanes: a record goes to the lane that its lane key hashes to, and a lane runs its
    /// records one at a time, in offset order. With [`LaneKey::Partition`], the default, a lane
    /// serves several partitions where there are fewer lanes. Records without a key rotate over
    /// the lanes.
    pub fn workers_by_key(mut self, n: usize) -> Self {
        self.lanes.push("workers_by_key");
        self.config.mode = Mode::Fixed {
            lanes: self.count("workers_by_key", n),
        };
        self
    }

    pub(super) fn count(&mut self, call: &str, n: usize) -> u32 {
        const WORKERS_MAX: u32 = 1 << 20;
        match u32::try_from(n) {
            Ok(n) if n > 0 && n <= WORKERS_MAX => n,
            _ => {
                self.problem = Some(Error::misuse(format!(
                    "{call}({n}) cannot be: give a number from 1 to {WORKERS_MAX}"
                )));
                1
            }
        }
    }

    /// What picks a record's lane. [`LaneKey::Partition`] by default.
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// let subscription = subscription.workers_by_key(16).lane_key(LaneKey::RecordKey);
    /// ```
    pub fn lane_key(mut self, key: LaneKey) -> Self {
        self.config.lane_key = key;
        self
    }

    /// What is committed: [`CommitMode::Tracked`] by default.
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// let subscription = subscription.commit(Commit::Auto);
    /// ```
    pub fn commit(mut self, commit: CommitMode) -> Self {
        self.config.commit = commit;
        self
    }

    /// Commits this often; 1 second by default, 10 milliseconds at least.
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        if interval < Duration::from_millis(10) {
            self.problem = Some(Error::misuse(
                "commit_interval is under 10 ms: commits would be all the broker does; use commit_every for counts",
            ));
        }
        self.config.commit_interval = interval;
        self
    }

    /// Commits also whenever so many records have settled; 0, the default, leaves it to time.
    pub fn commit_every(mut self, records: u64) -> Self {
        self.config.commit_every = records;
        self
    }

    /// What follows a failure: a handler's error, [`Outcome::Retry`](crate::Outcome), a panic or a
    /// time-out. By default a record is tried again for ever, from 100 ms to 30 s apart.
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// use std::time::Duration;
    /// let retry = Retry::exponential(Duration::from_millis(100), Duration::from_secs(30));
    /// let subscription = subscription.retry(retry.max_attempts(8).or_drop());
    /// ```
    pub fn retry(mut self, retry: Retry) -> Self {
        self.config.retry = retry;
        self
    }

    /// Bytes of records that may be held, from the socket to settlement: 64 MiB by default,
    /// 1 MiB at least. One batch may go over when nothing else is held.
    ///
    /// ```
    /// # use laneway::*;
    /// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
    /// let subscription = subscription.budget(256 << 20).batch_bytes_max(16 << 20);
    /// ```
    pub fn budget(mut self, bytes: u64) -> Self {
        if bytes < 1 << 20 {
            self.problem = Some(Error::misuse(
                "budget is under 1 MiB, a fetch of one partition",
            ));
        }
        self.config.budget_bytes = bytes;
        self
    }

    /// How many records a partition may run above its watermark before its fetching waits:
    /// 1,000,000 by default.
    pub fn ahead_max(mut self, records: u64) -> Self {
        if records == 0 {
            self.problem = Some(Error::misuse(
                "ahead_max(0) would let nothing run: give 1 or more",
            ));
        }
        self.config.ahead_max = records;
        self
    }

    /// The largest batch that is taken, inflated: 64 MiB by default. A larger one stops its
    /// partition with an error.
    pub fn batch_bytes_max(mut self, bytes: u32) -> Self {
        self.config.batch_bytes_max = bytes;
        self
    }

    /// Without a heartbeat for so long the group counts this member out: 45 s by default. The
    /// broker has limits of its own.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.config.session_timeout = timeout;
        self.config.heartbeat_interval = self.config.heartbeat_interval.min(timeout / 3);
        self
    }

    /// The longest that a rebalance waits for this member's handlers: 5 minutes by default.
    pub fn rebalance_timeout(mut self, timeout: Duration) -> Self {
        self.config.rebalance_timeout = timeout;
        self
    }

    /// How long what runs may go on once its partition is revoked: 60 s by default, half the
    /// rebalance time-out at most.
    pub fn drain_max(mut self, longest: Duration) -> Self {
        self.config.drain_max = longest;
        self
    }

    /// The rack this program runs in: brokers may then have it read from a replica nearby
    /// (KIP-392).
    pub fn rack(mut self, rack: impl Into<Arc<str>>) -> Self {
        self.config.rack = rack.into();
        self
    }

    /// How long a broker may take to answer before its connection is given up: 30 s by default,
    /// 100 ms at least. Joining a group has the rebalance's own time, and a fetch has its wait on
    /// top.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        if timeout < Duration::from_millis(100) {
            self.problem = Some(Error::misuse(
                "request_timeout is under 100 ms: a broker's pause would cost every connection",
            ));
        }
        self.config.request_timeout = timeout;
        self.config.connect_timeout = self.config.connect_timeout.min(timeout);
        self
    }

    /// How long a broker may hold a fetch that finds nothing: 500 ms by default.
    pub fn fetch_wait_max(mut self, wait: Duration) -> Self {
        self.config.fetch_wait_max = wait;
        self
    }

    /// Calls `f` with every [`Event`], on the I/O thread: keep it quick.
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{Event, Kafka, Topics};
    ///
    /// let (granted, mut heard) = tokio::sync::mpsc::unbounded_channel();
    /// let running = Kafka::new(brokers)
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .on_event(move |event| match event {
    ///         Event::Granted { partition, offset } => granted.send((partition.partition, *offset)).unwrap(),
    ///         other => eprintln!("{other:?}"),
    ///     })
    ///     .start(|_record| async {})?;
    /// assert_eq!(heard.recv().await, Some((0, 0)));
    /// running.drain().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_event(mut self, f: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(f));
        self
    }

    /// Hands the handler up to `max` records at once: the next one and whatever has already
    /// arrived behind it. Without lanes that is what has been read, whichever partition it came
    /// from; with lanes it is one lane's records.
    pub fn batch(mut self, max: usize) -> BatchSubscription {
        self.config.batch_max = self.count("batch", max);
        BatchSubscription { inner: self }
    }

    /// Runs `f` on every record until the subscription ends: by an error, or because the returned
    /// future is dropped, which closes it. Call it inside a tokio runtime; `f` runs there.
    ///
    /// What may pass is no end: where no broker answers, or a topic does not exist, this waits and
    /// tries again for ever. Each such trouble is a [`tracing`] warning and an [`Event::Warning`]
    /// for [`Subscription::on_event`]; without either nothing is heard of it.
    ///
    /// Dropping the future, as `select!` does, waits for nothing, so a program that ends right
    /// after it may end before the last commit; [`Subscription::start`] and [`Running::close`]
    /// wait for that.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`] before any I/O where the settings cannot be; later, what ended the
    /// subscription.
    pub async fn run<F, Fut>(self, f: F) -> Result<(), Error>
    where
        F: Fn(Record) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        self.start(f)?.join().await
    }

    /// As [`Subscription::run`], and returns at once with a handle to steer it.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`] before any I/O where the settings cannot be.
    pub fn start<F, Fut>(self, f: F) -> Result<Running, Error>
    where
        F: Fn(Record) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        let policy = self.on_error.clone();
        self.start_tasks(OneByOne(f, policy))
    }

    /// Runs a plain function, which may compute or block, on threads of its own: one for each
    /// worker or lane. Heartbeats and fetching do not wait for it.
    ///
    /// ```no_run
    /// # async fn demo() -> Result<(), laneway::Error> {
    /// use laneway::{Kafka, Record, Topics};
    /// Kafka::new(["localhost:9092"])
    ///     .subscribe(Topics::named(["pictures"]).group("scaler"))
    ///     .workers_by_key(8)
    ///     .run_blocking(|record: Record| println!("{} bytes", record.value().map_or(0, <[u8]>::len)))
    ///     .await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Subscription::run`].
    pub async fn run_blocking<F, R>(self, f: F) -> Result<(), Error>
    where
        F: Fn(Record) -> R + Send + Sync + 'static,
        R: IntoOutcome + 'static,
    {
        self.start_blocking(f)?.join().await
    }

    /// As [`Subscription::run_blocking`], and returns at once with a handle to steer it.
    ///
    /// ```
    /// # #[cfg(not(feature = "broker"))] fn main() {}
    /// # #[cfg(feature = "broker")] #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
    /// # let brokers = server.bootstrap();
    /// use laneway::{Kafka, Record, Topics};
    ///
    /// let (sums, mut results) = tokio::sync::mpsc::unbounded_channel();
    /// let running = Kafka::new(brokers)
    ///     .subscribe(Topics::named(["payments"]).group("billing"))
    ///     .workers_by_key(4)
    ///     .start_blocking(move |record: Record| {
    ///         // May compute for seconds, or block.
    ///         let sum: u64 = record.value().unwrap_or_default().iter().map(|b| u64::from(*b)).sum();
    ///         sums.send(sum).map_err(|e| e.to_string())
    ///     })?;
    /// assert_eq!(results.recv().await, Some(0));
    /// assert_eq!(results.recv().await, Some(1));
    /// running.close(std::time::Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Subscription::start`].
    pub fn start_blocking<F, R>(mut self, f: F) -> Result<Running, Error>
    where
        F: Fn(Record) -> R + Send + Sync + 'static,
        R: IntoOutcome + 'static,
    {
        const THREADS_MAX: u32 = 1024;
        self.check()?;
        let threads = self.width();
        if threads > THREADS_MAX {
            return Err(Error::misuse(format!(
                "{threads} workers would be as many threads; run_blocking takes {THREADS_MAX} at most"
            )));
        }
        self.config.executors = threads;
        self.config.one_lane_groups = true;
        let handler = Arc::new(Blocking(f, self.on_error.clone(), PhantomData));
        self.launch(|id, config, gate, done| {
            let spawned = spawn_blocking_executor(id, handler.clone(), config.clone(), gate, done);
            spawned.map_err(|e| {
                Error::new(
                    ErrorKind::Transport,
                    format!("cannot start a worker thread: {e}"),
                )
            })
        })
    }

    fn start_tasks<H>(mut self, handler: H) -> Result<Running, Error>
    where
        H: Handler<Delivery> + Send + Sync + 'static,
        H::Run: Send + 'static,
    {
        self.check()?;
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            Error::misuse("no tokio runtime: call this inside one, handlers run on it")
        })?;
        let cores = u32::try_from(runtime.metrics().num_workers()).unwrap_or(1);
        self.config.executors = self.width().min(cores).max(1);
        let handler = Arc::new(handler);
        self.launch(|id, config, gate, done| {
            Ok(spawn_executor(
                &runtime,
                id,
                handler.clone(),
                config,
                gate,
                done,
            ))
        })
    }

    /// How many records may run at once.
    fn width(&self) -> u32 {
        match self.config.mode {
            Mode::Any { workers } => workers,
            Mode::Fixed { lanes } => lanes,
            Mode::PerKey { at_once } => at_once,
            _ => 1,
        }
    }

    fn check(&mut self) -> Result<(), Error> {
        if let Some(problem) = self.problem.take() {
            return Err(problem);
        }
        self.what.check()?;
        self.config.bootstrap = self.kafka.addresses()?;
        self.kafka.way()?;
        if let [first, second, ..] = self.lanes[..] {
            return Err(Error::misuse(format!(
                "{first} and {second} were both called; one of them says how records run"
            )));
        }
        if matches!(self.config.mode, Mode::Any { .. })
            && !matches!(self.config.lane_key, LaneKey::Partition)
        {
            return Err(Error::misuse(
                "workers(n) runs records in any order, so a lane key means nothing; use workers_by_key(n) to keep order",
            ));
        }
        if self.lanes.is_empty() && !matches!(self.config.lane_key, LaneKey::Partition) {
            return Err(Error::misuse(
                "lane_key without lanes means nothing: one record runs at a time; add workers_by_key(n)",
            ));
        }
        if let Some(words) = self.config.retry.refusal(self.config.dead_letter.is_some()) {
            return Err(Error::misuse(words));
        }
        if self.config.commit == CommitMode::Auto && self.config.group().is_none() {
            return Err(Error::misuse(
                "Commit::Auto without a group id has nowhere to commit to; add .offsets_in(\"name\")",
            ));
        }
        self.check_membership()?;
        self.check_dead_letters()?;
        if self.config.session_timeout < Duration::from_secs(1) {
            return Err(Error::misuse(
                "session_timeout is under a second: a network's hiccup would end it",
            ));
        }
        if self.config.rebalance_timeout < self.config.session_timeout {
            return Err(Error::misuse(
                "rebalance_timeout is shorter than session_timeout; raise it",
            ));
        }
        Ok(())
    }

    fn launch(
        mut self,
        mut spawn: impl FnMut(
            ExecutorId,
            &RunnerConfig,
            Gate,
            mpsc::UnboundedSender<crate::engine::Done>,
        ) -> Result<ExecutorTx, Error>,
    ) -> Result<Running, Error> {
        let io = self.kafka.io()?;
        self.config.seed = crate::runtime::seed();
        let clock = Clock::new();
        let provider = self.kafka.authenticate(&mut self.config, &io);
        self.config.hooks = self.hooks.set();
        let engine = Engine::new(self.config.clone(), clock.now());
        let gate = Gate {
            clock,
            fence: engine.fence(),
        };
        let (done_tx, done_rx) = mpsc::unbounded_channel();
        let mut executors = Vec::new();
        for id in 0..self.config.executors {
            let config = engine.runner_config();
            executors.push(spawn(
                ExecutorId(id),
                config,
                gate.clone(),
                done_tx.clone(),
            )?);
        }
        drop(done_tx);
        let (asks_tx, asks_rx) = mpsc::channel(crate::runtime::ASKS_MAX);
        // Where handlers are threads there may be no runtime of the caller's.
        let runtime = tokio::runtime::Handle::try_current();
        let runtime = runtime.unwrap_or_else(|_| io.handle().clone());
        let hooks = HookRunner::new(self.hooks, runtime);
        let events = Arc::new(EventHub::default());
        let driver = Driver::new(
            engine,
            clock,
            self.kafka.way()?,
            executors,
            done_rx,
            asks_rx,
            (self.on_event, events.clone()),
        )
        .with_provider(provider)
        .with_hooks(hooks);
        let (result_tx, result) = oneshot::channel();
        // The task keeps its own thread: a handle that is dropped leaves it the time to commit and
        // to leave the group.
        let thread = io.clone();
        // What is logged of several subscriptions in one process can be told apart.
        let group = self.config.group().map(ToString::to_string);
        let client = self.config.client_id.to_string();
        let span = tracing::info_span!("subscription", group, client);
        let hub = events.clone();
        let life = async move {
            let ended = to_its_end(driver.run()).await;
            hub.end();
            // Nobody may be waiting for the end; then it ends all the same.
            let _ = result_tx.send(ended);
            drop(thread);
        };
        io.handle().spawn(life.instrument(span));
        Ok(Running {
            asks: asks_tx,
            result,
            events,
            _io: io,
        })
    }
}

/// A subscription whose handler takes batches. From [`Subscription::batch`].
///
/// ```
/// # #[cfg(not(feature = "broker"))] fn main() {}
/// # #[cfg(feature = "broker")] #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = laneway::broker::Server::holding("payments", (0..10).map(|n| ("k", [n]))).await?;
/// # let brokers = server.bootstrap();
/// use laneway::{Kafka, Outcome, Record, Topics};
///
/// let (sizes, mut seen) = tokio::sync::mpsc::unbounded_channel();
/// let running = Kafka::new(brokers)
///     .subscribe(Topics::named(["payments"]).group("billing"))
///     .batch(4)
///     .start(move |batch: Vec<Record>| {
///         // One outcome for each: what is odd settles at its second attempt.
///         let outcome = |r: &Record| match r.offset() % 2 == 1 && r.attempt() == 1 {
///             true => Outcome::RetryAfter(std::time::Duration::from_millis(1)),
///             false => Outcome::Ack,
///         };
///         let outcomes: Vec<Outcome> = batch.iter().map(outcome).collect();
///         let acked = outcomes.iter().filter(|o| o.settles()).count();
///         sizes.send((batch.len(), acked)).unwrap();
///         std::future::ready(outcomes)
///     })?;
/// let mut settled = 0;
/// while settled < 10 {
///     let (size, acked) = seen.recv().await.expect("it runs");
///     assert!(size <= 4);
///     settled += acked;
/// }
/// running.drain().await?;
/// assert_eq!(server.cluster().committed("billing", "payments", 0).map(|c| c.offset), Some(10));
/// # Ok(())
/// # }
/// ```
#[must_use = "a subscription does nothing until it is run"]
pub struct BatchSubscription {
    inner: Subscription,
}

impl BatchSubscription {
    /// Runs `f` on batches until the subscription ends. `f` returns one outcome for all, or a
    /// list with one for each record; each record settles on its own, and those that failed run
    /// again before anything newer of their lane.
    ///
    /// # Errors
    /// As [`Subscription::run`].
    pub async fn run<F, Fut>(self, f: F) -> Result<(), Error>
    where
        F: Fn(Vec<Record>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcomes,
    {
        self.start(f)?.join().await
    }

    /// As [`BatchSubscription::run`], and returns at once with a handle to steer it.
    ///
    /// # Errors
    /// As [`Subscription::start`].
    pub fn start<F, Fut>(self, f: F) -> Result<Running, Error>
    where
        F: Fn(Vec<Record>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcomes,
    {
        let policy = self.inner.on_error.clone();
        self.inner.start_tasks(InBatches(f, policy))
    }
}
