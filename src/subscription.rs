//! What a user touches: the cluster's address, the subscription's settings, the running handle.

use crate::engine::{Command, CommitMode, Config, Engine, Event, LaneKey, Snapshot, Source};
use crate::error::{Error, ErrorKind};
use crate::fetch::{LossPolicy, StartOffset};
use crate::group::AssignorKind;
use crate::handler::{Blocking, InBatches, OneByOne};
use crate::ids::{ExecutorId, TopicPartition};
use crate::lane::{Handler, IntoOutcome, IntoOutcomes, Mode, Retry, RunnerConfig};
use crate::record::{Delivery, Record};
use crate::runtime::{
    Ask, Clock, Driver, EventSink, ExecutorTx, Gate, Inbox, IoThread, spawn_blocking_executor,
    spawn_executor,
};
use crate::wire::message::Isolation;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// A Kafka cluster, by the addresses of some of its brokers. Settings only: nothing is opened
/// before a subscription starts. Clones share one I/O thread.
///
/// ```
/// use laneway::Kafka;
/// let kafka = Kafka::new(["kafka-1:9092", "kafka-2:9092"]).client_id("billing");
/// ```
#[derive(Clone, Debug)]
pub struct Kafka {
    bootstrap: Vec<String>,
    client_id: Arc<str>,
    io: Arc<Mutex<Option<Arc<IoThread>>>>,
}

impl Kafka {
    /// Names the brokers to ask first, as `host:port`; one that answers is enough, several are
    /// safer. An IPv6 address stands in brackets: `[::1]:9092`.
    pub fn new<I>(bootstrap: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Kafka {
            bootstrap: bootstrap.into_iter().map(Into::into).collect(),
            client_id: Arc::from("laneway"),
            io: Arc::new(Mutex::new(None)),
        }
    }

    /// The name that brokers see in logs, metrics and quotas. `laneway` by default.
    #[must_use]
    pub fn client_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.client_id = id.into();
        self
    }

    /// A subscription with default settings. See [`Subscription`].
    pub fn subscribe(&self, what: impl Into<Interest>) -> Subscription {
        let what = what.into();
        let mut config = Config::new(Vec::new(), what.source());
        config.client_id = self.client_id.clone();
        Subscription {
            kafka: self.clone(),
            what,
            config,
            lanes: Vec::new(),
            on_event: None,
            problem: None,
        }
    }

    fn addresses(&self) -> Result<Vec<(Arc<str>, u16)>, Error> {
        if self.bootstrap.is_empty() {
            return Err(Error::misuse(
                "no bootstrap address: give Kafka::new at least one, as \"host:port\"",
            ));
        }
        self.bootstrap
            .iter()
            .map(|address| parse_address(address))
            .collect()
    }

    fn io(&self) -> Result<Arc<IoThread>, Error> {
        let mut io = self.io.lock().unwrap_or_else(PoisonError::into_inner);
        match &*io {
            Some(thread) => Ok(thread.clone()),
            None => Ok(io.insert(Arc::new(IoThread::start()?)).clone()),
        }
    }
}

fn parse_address(address: &str) -> Result<(Arc<str>, u16), Error> {
    let wrong = || {
        Error::misuse(format!(
            "{address:?} is not a broker's address: write it as \"host:port\", an IPv6 address as \"[::1]:9092\""
        ))
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let bare = host
        .strip_prefix('[')
        .map_or(Some(host), |h| h.strip_suffix(']'));
    let host = bare.ok_or_else(wrong)?;
    let bracketed = address.starts_with('[');
    if host.is_empty()
        || port == 0
        || host.contains(['/', ' '])
        || (host.contains(':') != bracketed)
    {
        return Err(wrong());
    }
    Ok((Arc::from(host), port))
}

/// Topics that the members of a group share.
///
/// ```
/// use laneway::Topics;
/// let topics = Topics::named(["payments", "refunds"]).group("billing");
/// ```
#[derive(Clone, Debug)]
pub struct Topics {
    names: Vec<Arc<str>>,
    group: Option<Arc<str>>,
}

impl Topics {
    /// These topics, by name.
    pub fn named<I>(names: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<Arc<str>>,
    {
        Topics {
            names: names.into_iter().map(Into::into).collect(),
            group: None,
        }
    }

    /// The group whose members share the topics' partitions, and under which offsets are kept.
    #[must_use]
    pub fn group(mut self, id: impl Into<Arc<str>>) -> Self {
        self.group = Some(id.into());
        self
    }
}

/// Partitions chosen by hand: no group is joined, nothing is ever taken away.
///
/// ```
/// use laneway::Partitions;
/// let two = Partitions::of("payments", [0, 2]).offsets_in("billing-audit");
/// ```
#[derive(Clone, Debug)]
pub struct Partitions {
    partitions: Vec<TopicPartition>,
    group: Option<Arc<str>>,
}

impl Partitions {
    /// These partitions of one topic.
    pub fn of(topic: impl Into<Arc<str>>, partitions: impl IntoIterator<Item = i32>) -> Self {
        let topic = topic.into();
        let partitions = partitions
            .into_iter()
            .map(|p| TopicPartition::new(topic.clone(), p))
            .collect();
        Partitions {
            partitions,
            group: None,
        }
    }

    /// Keeps offsets under this group id. The group must have no members: brokers refuse such
    /// commits while it does.
    #[must_use]
    pub fn offsets_in(mut self, group: impl Into<Arc<str>>) -> Self {
        self.group = Some(group.into());
        self
    }
}

/// What a subscription reads: [`Topics`] or [`Partitions`].
#[derive(Clone, Debug)]
pub enum Interest {
    /// Shared with a group.
    Topics(Topics),
    /// Chosen by hand.
    Partitions(Partitions),
}

impl From<Topics> for Interest {
    fn from(topics: Topics) -> Self {
        Interest::Topics(topics)
    }
}

impl From<Partitions> for Interest {
    fn from(partitions: Partitions) -> Self {
        Interest::Partitions(partitions)
    }
}

impl Interest {
    fn source(&self) -> Source {
        match self.clone() {
            Interest::Topics(t) => Source::Topics {
                topics: t.names,
                group: t.group.unwrap_or_default(),
            },
            Interest::Partitions(p) => Source::Partitions {
                partitions: p.partitions,
                group: p.group,
            },
        }
    }

    fn check(&self) -> Result<(), Error> {
        let legal = |name: &str| {
            !name.is_empty()
                && name.len() <= 249
                && name != "."
                && name != ".."
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        let topic = |name: &str| match legal(name) {
            true => Ok(()),
            false => Err(Error::misuse(format!(
                "{name:?} cannot be a topic's name: use 1 to 249 of a-z A-Z 0-9 . _ -"
            ))),
        };
        match self {
            Interest::Topics(t) => {
                if t.names.is_empty() {
                    return Err(Error::misuse(
                        "no topics: name at least one in Topics::named",
                    ));
                }
                if t.group.as_ref().is_none_or(|g| g.is_empty()) {
                    return Err(Error::misuse(
                        "no group: add .group(\"name\") to Topics, or choose partitions by hand with Partitions::of",
                    ));
                }
                let mut names: Vec<_> = t.names.iter().collect();
                names.sort();
                if names.windows(2).any(|w| w[0] == w[1]) {
                    return Err(Error::misuse("a topic is named twice in Topics::named"));
                }
                t.names.iter().try_for_each(|n| topic(n))
            }
            Interest::Partitions(p) => {
                if p.partitions.is_empty() {
                    return Err(Error::misuse(
                        "no partitions: give Partitions::of at least one",
                    ));
                }
                if p.partitions.iter().any(|p| p.partition < 0) {
                    return Err(Error::misuse(
                        "a partition's number is negative in Partitions::of",
                    ));
                }
                let mut all = p.partitions.clone();
                all.sort();
                if all.windows(2).any(|w| w[0] == w[1]) {
                    return Err(Error::misuse(
                        "a partition is named twice in Partitions::of",
                    ));
                }
                p.partitions.iter().try_for_each(|p| topic(&p.topic))
            }
        }
    }
}

/// The settings of one consumer. Nothing is opened before [`Subscription::run`],
/// [`Subscription::start`] or [`Subscription::run_blocking`]; what cannot be is refused there,
/// before any I/O.
///
/// ```no_run
/// # async fn charge(_: Option<&[u8]>) -> Result<(), String> { Ok(()) }
/// # async fn demo() -> Result<(), laneway::Error> {
/// use laneway::{Kafka, LaneKey, StartOffset, Topics};
/// Kafka::new(["localhost:9092"])
///     .subscribe(Topics::named(["payments"]).group("billing"))
///     .start_at(StartOffset::Earliest)
///     .workers_by_key(64)
///     .lane_key(LaneKey::RecordKey)
///     .run(|record| async move { charge(record.value()).await })
///     .await
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
    problem: Option<Error>,
}

impl Subscription {
    /// Where to start where the group has no valid commit. Kafka's clients default to latest and
    /// so skip what was written before they came; the default here is
    /// [`StartOffset::Earliest`].
    pub fn start_at(mut self, start: StartOffset) -> Self {
        self.config.start = start;
        self
    }

    /// What to do where records that should come next are gone: expired, or cut off. By default
    /// the partition stops with an error.
    pub fn on_loss(mut self, policy: LossPolicy) -> Self {
        self.config.loss = policy;
        self
    }

    /// Which records are seen. [`Isolation::ReadUncommitted`], Kafka's default, sees all.
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

    fn count(&mut self, call: &str, n: usize) -> u32 {
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
    pub fn lane_key(mut self, key: LaneKey) -> Self {
        self.config.lane_key = key;
        self
    }

    /// What is committed: [`CommitMode::Tracked`] by default.
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

    /// What follows a failure: a handler's error, [`Outcome::Retry`](crate::Outcome) or a panic.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.config.retry = retry;
        self
    }

    /// Bytes of records that may be held, from the socket to settlement: 64 MiB by default,
    /// 1 MiB at least. One batch may go over when nothing else is held.
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

    /// The assignors offered to the group, most wanted first: range and cooperative-sticky by
    /// default, as the Java client. Rebalances are cooperative only when nothing but
    /// cooperative-sticky is listed.
    pub fn assignors(mut self, assignors: impl IntoIterator<Item = AssignorKind>) -> Self {
        self.config.assignors = assignors.into_iter().collect();
        self
    }

    /// The rack this program runs in: brokers may then have it read from a replica nearby
    /// (KIP-392).
    pub fn rack(mut self, rack: impl Into<Arc<str>>) -> Self {
        self.config.rack = rack.into();
        self
    }

    /// How long a broker may hold a fetch that finds nothing: 500 ms by default.
    pub fn fetch_wait_max(mut self, wait: Duration) -> Self {
        self.config.fetch_wait_max = wait;
        self
    }

    /// Calls `f` with every [`Event`], on the I/O thread: keep it quick.
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
        self.start_tasks(OneByOne(f))
    }

    /// Runs a plain function, which may compute or block, on threads of its own: one for each
    /// worker or lane. Heartbeats and fetching do not wait for it.
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
        let handler = Arc::new(Blocking(f, PhantomData));
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
            _ => 1,
        }
    }

    fn check(&mut self) -> Result<(), Error> {
        if let Some(problem) = self.problem.take() {
            return Err(problem);
        }
        self.what.check()?;
        self.config.bootstrap = self.kafka.addresses()?;
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
        if self.config.commit == CommitMode::Auto && self.config.group().is_none() {
            return Err(Error::misuse(
                "Commit::Auto without a group id has nowhere to commit to; add .offsets_in(\"name\")",
            ));
        }
        if matches!(self.what, Interest::Topics(_)) && self.config.assignors.is_empty() {
            return Err(Error::misuse(
                "no assignors: a group needs at least one, such as Range",
            ));
        }
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
        let driver = Driver::new(engine, clock, executors, done_rx, asks_rx, self.on_event);
        let (result_tx, result) = oneshot::channel();
        // The task keeps its own thread: a handle that is dropped leaves it the time to commit and
        // to leave the group.
        let thread = io.clone();
        io.handle().spawn(async move {
            // Nobody may be waiting for the end; then it ends all the same.
            let _ = result_tx.send(driver.run().await);
            drop(thread);
        });
        Ok(Running {
            asks: asks_tx,
            result,
            _io: io,
        })
    }
}

/// A subscription whose handler takes batches. From [`Subscription::batch`].
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
        self.inner.start_tasks(InBatches(f))
    }
}

/// A running subscription. Dropping it closes the subscription at once and never blocks: what
/// runs is told and dropped, what settled before is committed.
#[derive(Debug)]
pub struct Running {
    asks: Inbox,
    result: oneshot::Receiver<Result<(), Error>>,
    _io: Arc<IoThread>,
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
        self.ask(Ask::Command(Command::Drain, tx)).await?;
        rx.await.map_err(|_| over())?
    }

    /// Takes no more records, drops what has not started, lets what runs end within `deadline`,
    /// commits what settled, leaves the group.
    ///
    /// # Errors
    /// What ended the subscription, where it was not this.
    pub async fn close(self, deadline: Duration) -> Result<(), Error> {
        let (tx, rx) = oneshot::channel();
        self.ask(Ask::Close(deadline, tx)).await?;
        rx.await.map_err(|_| over())?
    }

    /// Waits until the subscription ends by itself.
    ///
    /// # Errors
    /// What ended it.
    pub async fn join(mut self) -> Result<(), Error> {
        let result = (&mut self.result).await;
        result.unwrap_or_else(|_| Err(over()))
    }

    async fn ask(&self, ask: Ask) -> Result<(), Error> {
        self.asks.send(ask).await.map_err(|_| over())
    }
}

fn over() -> Error {
    Error::misuse("the subscription is over; join() says how it ended")
}
