//! All that an [`Engine`](super::Engine) needs to know at its start.

use super::hooks::HookSet;
use super::letter::{DeadLetterHeaders, DeadLetterTopic, TooLarge};
use crate::fetch::{LossPolicy, StartOffset};
use crate::group::{AssignorKind, CustomAssignor, GroupProtocol, OnClose, TopicPattern};
use crate::ids::TopicPartition;
use crate::lane::{Mode, Retry};
use crate::record::Record;
use crate::wire::message::Isolation;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Where records come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Whole topics, shared with the other members of a group.
    Topics {
        /// Their names.
        topics: Vec<Arc<str>>,
        /// The group id.
        group: Arc<str>,
    },
    /// All topics whose names match, as they come and go, shared as above.
    Pattern {
        /// What to match.
        pattern: TopicPattern,
        /// The group id.
        group: Arc<str>,
    },
    /// These partitions, whoever else reads them. A group id only says where offsets are kept.
    Partitions {
        /// Which.
        partitions: Vec<TopicPartition>,
        /// Where to keep offsets; none: nowhere.
        group: Option<Arc<str>>,
    },
    /// Nothing is read: a producer alone.
    Nothing,
}

/// The function of [`LaneKey::By`].
pub type LaneFn = Arc<dyn Fn(&Record) -> Option<u64> + Send + Sync>;

/// What picks the lane of a record.
///
/// ```
/// use laneway::{Kafka, LaneKey, Topics};
/// let subscription = Kafka::new(["localhost:9092"])
///     .subscribe(Topics::named(["orders"]).group("shipping"))
///     .workers_by_key(64)
///     .lane_key(LaneKey::RecordKey);
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum LaneKey {
    /// Its topic and partition: Kafka's own order. The default.
    #[default]
    Partition,
    /// Its topic and key. Records without a key rotate over the lanes, in no order.
    RecordKey,
    /// A function of the record; see [`LaneKey::by`].
    By(LaneFn),
}

impl LaneKey {
    /// Picks the lane by a function of the record: records with equal numbers share a lane, `None`
    /// makes the record keyless. The function must be pure and quick: it runs on the thread that
    /// keeps the group's session. A panic in it stops the record's partition at that record.
    ///
    /// ```
    /// use laneway::LaneKey;
    /// let by_length = LaneKey::by(|record| record.value().map(|v| v.len() as u64));
    /// ```
    pub fn by(f: impl Fn(&Record) -> Option<u64> + Send + Sync + 'static) -> Self {
        LaneKey::By(Arc::new(f))
    }
}

impl fmt::Debug for LaneKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LaneKey::Partition => "Partition",
            LaneKey::RecordKey => "RecordKey",
            LaneKey::By(_) => "By(..)",
        })
    }
}

/// What is committed, and when.
///
/// ```
/// use laneway::{Commit, Kafka, Topics};
/// let subscription = Kafka::new(["localhost:9092"])
///     .subscribe(Topics::named(["clicks"]).group("counter"))
///     .commit(Commit::Auto); // quick and forgetful
/// assert_eq!(Commit::default(), Commit::Tracked);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Commit {
    /// The watermark: nothing past a record that has not settled. At least once. The default.
    #[default]
    Tracked,
    /// The position, as records are handed out. It promises nothing: records that were running
    /// when the process died are not read again.
    Auto,
}

/// Whether what has settled above the watermark is kept beside the committed offset, so that a
/// restart repeats only what had not settled.
///
/// It is kept in the commit's metadata, in the format of the Confluent Parallel Consumer: a group
/// may move between it and us. A map that this library wrote is right; one that comes from version
/// 0.5 of that library may in rare cases claim a record that was not done (its readers and writers
/// race), and one that MirrorMaker 2 carried to another cluster does not fit the offsets there.
/// `Off` passes over what was inherited.
///
/// ```
/// # use laneway::{Kafka, Topics};
/// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
/// use laneway::OffsetMap;
/// let subscription = subscription.offset_map(OffsetMap::ReadOnly);
/// assert_eq!(OffsetMap::default(), OffsetMap::On);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OffsetMap {
    /// Read where a partition is granted, and written with each commit. The default.
    #[default]
    On,
    /// Read, and not written: commits carry the bare offset.
    ReadOnly,
    /// Neither read nor written: reading begins at the committed offset with every record.
    Off,
}

/// What to do where the offset map outgrows what a commit may carry. That takes thousands of
/// records, settled and not in an irregular pattern, above one that has not settled.
///
/// ```
/// # use laneway::{Kafka, Topics};
/// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
/// use laneway::MapFull;
/// let subscription = subscription.map_full(MapFull::Wait);
/// assert_eq!(MapFull::default(), MapFull::Prefix);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapFull {
    /// The lower part that fits is kept and nothing waits; a crash in that state repeats the rest.
    /// The default.
    #[default]
    Prefix,
    /// The partition takes in no more records while its map is longer than three quarters of the
    /// limit, until those below have settled; and a map that does not fit whole is not committed
    /// before it does, unless the partition is given back. So a crash repeats nothing that had
    /// settled and been committed.
    Wait,
}

/// What to do where a topic was deleted and made anew under its name while it was read.
///
/// Either way nothing of the old topic counts for the new one: no position, no commit, no offset
/// map, no result of a handler that still runs; and an [`Event::DataLoss`](super::Event::DataLoss)
/// says so for each partition.
///
/// ```
/// # use laneway::{Kafka, Topics};
/// # let subscription = Kafka::new(["localhost:9092"]).subscribe(Topics::named(["t"]).group("g"));
/// use laneway::Recreated;
/// let subscription = subscription.on_recreated(Recreated::Stop);
/// assert_eq!(Recreated::default(), Recreated::Afresh);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recreated {
    /// The new topic is read from its first record on, whatever the start policy. The default.
    #[default]
    Afresh,
    /// The subscription ends with an error that names the topic; partitions of others are drained
    /// and committed. Started again, it begins the new topic where the start policy says.
    Stop,
}

/// The settings of one subscription. The face builds it and has checked it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to find the cluster: hosts and ports.
    pub bootstrap: Vec<(Arc<str>, u16)>,
    /// Goes into each request's header.
    pub client_id: Arc<str>,
    /// What to read.
    pub source: Source,
    /// Where to start without a valid commit.
    pub start: StartOffset,
    /// What to do where records would be skipped.
    pub loss: LossPolicy,
    /// What to do where a topic was made anew.
    pub recreated: Recreated,
    /// Which records are seen.
    pub isolation: Isolation,
    /// Which lane a record goes to.
    pub lane_key: LaneKey,
    /// How lanes run.
    pub mode: Mode,
    /// How many runners there are.
    pub executors: u32,
    /// The most records that one call of the handler gets.
    pub batch_max: u32,
    /// How long a batch that is not full waits for more records.
    pub batch_wait: Duration,
    /// Whether a group holds one lane's records only, for executors that block.
    pub one_lane_groups: bool,
    /// What is committed.
    pub commit: Commit,
    /// How often.
    pub commit_interval: Duration,
    /// Also after so many settled records; 0: by time alone.
    pub commit_every: u64,
    /// Whether the commit says what has settled above the watermark.
    pub offset_map: OffsetMap,
    /// What to do where that is too long.
    pub map_full: MapFull,
    /// Characters of metadata that a commit may carry for a partition.
    pub metadata_max: usize,
    /// What follows a failure.
    pub retry: Retry,
    /// Where dead letters go; none: nowhere.
    pub dead_letter: Option<DeadLetterTopic>,
    /// What becomes of those that are too large.
    pub dead_letter_too_large: TooLarge,
    /// How the headers that say where they are from are named.
    pub dead_letter_headers: DeadLetterHeaders,
    /// A record that [`Engine::handle_record`](super::Engine::handle_record) was given fails after
    /// so long.
    pub delivery_timeout: Duration,
    /// Lanes that may wait for a retry or a dead letter at once.
    pub parked_max: usize,
    /// How long a handler call may take.
    pub handler_timeout: Option<Duration>,
    /// Bytes that may be held, from the socket to settlement.
    pub budget_bytes: u64,
    /// Records that a partition may run above its watermark.
    pub ahead_max: u64,
    /// The largest batch taken, inflated.
    pub batch_bytes_max: u32,
    /// A fetch of a partition asks for this much.
    pub partition_bytes_max: u32,
    /// A fetch asks for this much in all.
    pub fetch_bytes_max: u32,
    /// How long the broker may hold a fetch that finds nothing.
    pub fetch_wait_max: Duration,
    /// The rack we are in (KIP-392); empty: none.
    pub rack: Arc<str>,
    /// Without a heartbeat for so long, the group counts us out.
    pub session_timeout: Duration,
    /// The longest that a rebalance waits for us.
    pub rebalance_timeout: Duration,
    /// Between heartbeats.
    pub heartbeat_interval: Duration,
    /// How long what runs may go on after its partition was revoked.
    pub drain_max: Duration,
    /// The user's own assignor, wanted before those listed.
    pub custom_assignor: Option<CustomAssignor>,
    /// What we offer the group, most wanted first.
    pub assignors: Vec<AssignorKind>,
    /// Partitions to be kept out of the group's sharing.
    pub reserve: Vec<TopicPartition>,
    /// Whether this member reads what it reserves, and nothing else.
    pub direct: bool,
    /// How the group's members come to their partitions.
    pub group_protocol: GroupProtocol,
    /// With the new protocol: the broker's assignor that is wanted; none: its own choice.
    pub server_assignor: Option<Arc<str>>,
    /// The name of a static member (KIP-345); none: a dynamic one.
    pub instance_id: Option<Arc<str>>,
    /// Whether closing leaves the group; none: unless there is an `instance_id`.
    pub on_close: Option<OnClose>,
    /// A record that runs for so long is told of; none: never.
    pub stall_after: Option<Duration>,
    /// And it ends the subscription.
    pub stall_stops: bool,
    /// Which hooks the user has.
    pub hooks: HookSet,
    /// Metadata is read anew at this age.
    pub metadata_age_max: Duration,
    /// A request without an answer for so long takes its connection down.
    pub request_timeout: Duration,
    /// A connection that does not come up for so long is given up.
    pub connect_timeout: Duration,
    /// A connection without traffic for so long is closed.
    pub idle_max: Duration,
    /// Randomness: jitter, hash seeds, the order of bootstrap addresses.
    pub seed: [u8; 32],
    /// How to authenticate; none: not at all.
    pub sasl: Option<crate::sasl::Settings>,
}

impl Config {
    /// The defaults for reading `source` from `bootstrap`.
    #[must_use]
    pub fn new(bootstrap: Vec<(Arc<str>, u16)>, source: Source) -> Self {
        Config {
            bootstrap,
            client_id: Arc::from("laneway"),
            source,
            start: StartOffset::Earliest,
            loss: LossPolicy::Stop,
            recreated: Recreated::Afresh,
            isolation: Isolation::ReadUncommitted,
            lane_key: LaneKey::Partition,
            mode: Mode::InTurn,
            executors: 1,
            batch_max: 1,
            batch_wait: Duration::ZERO,
            one_lane_groups: false,
            commit: Commit::Tracked,
            commit_interval: Duration::from_secs(1),
            commit_every: 0,
            offset_map: OffsetMap::On,
            map_full: MapFull::Prefix,
            metadata_max: 4096,
            retry: Retry::default(),
            dead_letter: None,
            dead_letter_too_large: TooLarge::default(),
            dead_letter_headers: DeadLetterHeaders::default(),
            delivery_timeout: Duration::from_secs(120),
            parked_max: 10_000,
            handler_timeout: None,
            budget_bytes: 64 << 20,
            ahead_max: 1_000_000,
            batch_bytes_max: 64 << 20,
            partition_bytes_max: 1 << 20,
            fetch_bytes_max: 4 << 20,
            fetch_wait_max: Duration::from_millis(500),
            rack: Arc::from(""),
            session_timeout: Duration::from_secs(45),
            rebalance_timeout: Duration::from_secs(300),
            heartbeat_interval: Duration::from_secs(3),
            drain_max: Duration::from_secs(60),
            assignors: vec![AssignorKind::Range, AssignorKind::CooperativeSticky],
            custom_assignor: None,
            reserve: Vec::new(),
            direct: false,
            group_protocol: GroupProtocol::Classic,
            server_assignor: None,
            instance_id: None,
            on_close: None,
            stall_after: Some(Duration::from_secs(300)),
            stall_stops: false,
            hooks: HookSet::default(),
            metadata_age_max: Duration::from_secs(300),
            request_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            idle_max: Duration::from_secs(235),
            seed: [0; 32],
            sasl: None,
        }
    }

    /// The group id, where there is one.
    #[must_use]
    pub fn group(&self) -> Option<&Arc<str>> {
        match &self.source {
            Source::Topics { group, .. } | Source::Pattern { group, .. } => Some(group),
            Source::Partitions { group, .. } => group.as_ref(),
            Source::Nothing => None,
        }
    }

    /// Whether commits carry the offset map.
    #[must_use]
    pub(crate) fn writes_maps(&self) -> bool {
        self.offset_map == OffsetMap::On && self.commit == Commit::Tracked
    }

    /// Eight bytes of the seed, different for each `purpose` under 4.
    #[must_use]
    pub(crate) fn seed_for(&self, purpose: usize) -> u64 {
        let mut eight = [0; 8];
        let at = (purpose % 4) * 8;
        eight.copy_from_slice(&self.seed[at..at + 8]);
        u64::from_le_bytes(eight)
    }
}
