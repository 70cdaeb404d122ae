//! What goes into the fetch machine and what comes out of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Charge;
use crate::error::Error;
use crate::ids::{LeaseId, NodeId, Token, TopicId, TopicPartition};
use crate::records::RawBatch;
use crate::wire::message::{BrokerEndpoint, Code, Isolation};
use crate::wire::{Request, Response};

/// Where to begin when the group has no valid commit.
///
/// ```
/// use laneway::{Kafka, StartOffset, Topics};
/// let subscription = Kafka::new(["localhost:9092"])
///     .subscribe(Topics::named(["metrics"]).group("dashboard"))
///     .start_at(StartOffset::Latest); // a new group sees what comes from now on
/// assert_eq!(StartOffset::default(), StartOffset::Earliest);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartOffset {
    /// At the first record that the log still has.
    #[default]
    Earliest,
    /// Behind the last record. Partitions that appear after the subscription began start at
    /// their first record all the same (KAFKA-12261).
    Latest,
    /// At the first record of this time or later, in milliseconds since the Unix epoch; behind
    /// the last one where there is none.
    Timestamp(i64),
    /// Nowhere: the partition stops with an error.
    Fail,
}

/// What to do where records that were to be read are gone.
///
/// ```
/// use laneway::{Kafka, LossPolicy, Topics};
/// let subscription = Kafka::new(["localhost:9092"])
///     .subscribe(Topics::named(["metrics"]).group("dashboard"))
///     .on_loss(LossPolicy::Nearest); // what is gone is gone: go on, and be told
/// assert_eq!(LossPolicy::default(), LossPolicy::Stop);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossPolicy {
    /// Hold the partition with an error; the user seeks on.
    #[default]
    Stop,
    /// Go on at the offset nearest to the position: the log's start or its end.
    Nearest,
    /// Go on at the log's start.
    Earliest,
    /// Go on at the log's end.
    Latest,
}

/// The settings of a [`Fetch`](super::Fetch).
#[derive(Clone, Debug)]
pub struct FetchConfig {
    /// What the subscription may hold, from the socket to settlement.
    pub budget_bytes: usize,
    /// How long a broker may wait for records of caught-up partitions.
    pub max_wait: Duration,
    /// How much a broker waits for, at most `max_wait` long.
    pub min_bytes: i32,
    /// How much one answer may hold, a first batch apart.
    pub max_bytes: usize,
    /// How much of one partition an answer may hold, a first batch apart.
    pub partition_max_bytes: usize,
    /// A larger batch stops its partition with an error.
    pub batch_bytes_max: usize,
    /// Which records are wanted.
    pub isolation: Isolation,
    /// Our rack (KIP-392); empty: always read from leaders.
    pub rack: Arc<str>,
    /// Where to begin when the group has no valid commit.
    pub start: StartOffset,
    /// What to do where records are gone.
    pub loss: LossPolicy,
    /// The wait after a first failure; it doubles with each one that follows.
    pub retry_min: Duration,
    /// The longest wait after a failure.
    pub retry_max: Duration,
    /// How long an answer may take, beyond what the broker was told it may wait.
    pub request_timeout: Duration,
    /// Jitter of the waits.
    pub seed: u64,
}

impl Default for FetchConfig {
    fn default() -> Self {
        FetchConfig {
            budget_bytes: 64 << 20,
            max_wait: Duration::from_millis(500),
            min_bytes: 1,
            max_bytes: 50 << 20,
            partition_max_bytes: 1 << 20,
            batch_bytes_max: 64 << 20,
            isolation: Isolation::default(),
            rack: "".into(),
            start: StartOffset::default(),
            loss: LossPolicy::default(),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(1),
            request_timeout: Duration::from_secs(30),
            seed: 0,
        }
    }
}

/// Where a lease begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At a commit, a seek's target or a reset's.
    At {
        /// The first offset wanted.
        offset: i64,
        /// The leader epoch of the record before it; -1 where that is not known.
        epoch: i32,
    },
    /// Where this rule says, whatever was committed: a seek.
    By(StartOffset),
    /// Where [`FetchConfig::start`] says: the group's coordinator has said, with authority, that
    /// there is no commit. A time-out is no such answer.
    Policy,
}

/// Why a partition may be told to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The user paused it.
    Paused,
    /// It is `ahead_max` above its watermark, or its lanes have no room.
    Ahead,
}

/// Which connection carries a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FetchLink {
    /// The long poll of the session.
    Waiting,
    /// The fetch without a session that does not wait.
    Prompt,
    /// ListOffsets and OffsetForLeaderEpoch.
    Lookup,
}

/// The next piece of what was fetched; in offset order for each lease.
#[derive(Debug)]
pub enum Fetched {
    /// A batch with records to deliver.
    Batch {
        /// Whose.
        lease: LeaseId,
        /// Records below this offset are not wanted.
        from: i64,
        /// The batch, still compressed. Its checksum has not been looked at.
        raw: RawBatch,
        /// What it holds of the budget. Keep it with the batch, and
        /// [`exchange`](Charge::exchange) it when the batch is decompressed.
        charge: Charge,
    },
    /// Offsets below `to` that hold nothing to deliver: markers, aborted or compacted records.
    Gap {
        /// Whose.
        lease: LeaseId,
        /// The next offset.
        to: i64,
    },
}

/// What the machine wants done.
#[derive(Debug)]
pub enum FetchAction {
    /// Ask a broker. Exactly one `handle_response` under `token` must follow.
    Send {
        /// Names the request.
        token: Token,
        /// Whom to ask.
        node: NodeId,
        /// Which connection to it.
        link: FetchLink,
        /// What to ask.
        request: Request,
        /// How long the answer may take.
        timeout: Duration,
        /// The largest answer to accept.
        answer_bytes_max: u32,
    },
    /// What is known of leaders is stale.
    RefreshMetadata,
    /// A broker named the leader itself (KIP-951): to be merged into what is known.
    Hint {
        /// The topic.
        topic: Arc<str>,
        /// The partition.
        partition: i32,
        /// Its leader.
        leader: NodeId,
        /// The leader's epoch.
        epoch: i32,
        /// Where brokers named in the answer listen; other brokers may exist.
        endpoints: Vec<BrokerEndpoint>,
    },
    /// [`Start::Policy`] has found an offset.
    Started {
        /// Whose.
        lease: LeaseId,
        /// Where reading begins.
        offset: i64,
        /// Which rule chose it.
        why: StartOffset,
    },
    /// The lease cannot go on where it was. The engine ends it and grants a new one at
    /// [`why.resume_at(to, watermark)`](Loss::resume_at).
    Reset {
        /// Whose.
        lease: LeaseId,
        /// The position that is no more.
        from: i64,
        /// Where to go on.
        to: i64,
        /// What happened.
        why: Loss,
    },
    /// The partition is held; only a seek (a new lease) moves it.
    Stopped {
        /// Whose.
        lease: LeaseId,
        /// Why.
        error: Error,
    },
    /// Something worth a line in a log.
    Notice(FetchEvent),
}

/// How records came to be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The log begins above the position: retention, or DeleteRecords.
    BelowStart {
        /// The first offset that is left.
        log_start: i64,
        /// How many offsets were not read.
        lost: i64,
    },
    /// The log ends below the position.
    AboveEnd {
        /// The log's end.
        log_end: i64,
    },
    /// The log was cut and written anew below the position (KIP-320).
    Truncated {
        /// The last epoch that both histories share.
        epoch: i32,
        /// Where they part.
        end_offset: i64,
    },
    /// The topic was deleted and made anew.
    Recreated {
        /// What it was.
        old: TopicId,
        /// What it is.
        new: TopicId,
    },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::BelowStart { log_start, lost } => write!(
                f,
                "the log begins at {log_start} now (retention or deletion): {lost} offsets were \
                 not read"
            ),
            Loss::AboveEnd { log_end } => write!(
                f,
                "the log ends at {log_end}, below what was read: what came after is gone"
            ),
            Loss::Truncated { epoch, end_offset } => write!(
                f,
                "the log was cut at {end_offset} and written anew (epoch {epoch} is the last in \
                 common)"
            ),
            Loss::Recreated { .. } => f.write_str("the topic was deleted and made anew"),
        }
    }
}

impl Loss {
    /// Where a new lease begins, given [`FetchAction::Reset`]'s `to` and the old lease's
    /// watermark: records that were given but have not settled are read again where the log still
    /// has them.
    ///
    /// ```
    /// use laneway::fetch::Loss;
    /// let cut = Loss::Truncated { epoch: 5, end_offset: 110 };
    /// assert_eq!(cut.resume_at(110, 100), 100);
    /// let deleted = Loss::BelowStart { log_start: 110, lost: 5 };
    /// assert_eq!(deleted.resume_at(110, 100), 110);
    /// ```
    #[must_use]
    pub fn resume_at(self, to: i64, watermark: i64) -> i64 {
        match self {
            Loss::Truncated { .. } | Loss::AboveEnd { .. } => to.min(watermark),
            Loss::BelowStart { .. } | Loss::Recreated { .. } => to,
        }
    }
}

/// Worth a line in a log.
#[derive(Clone, Debug)]
pub enum FetchEvent {
    /// The broker cannot tell whether the log was cut since; reading goes on (KAFKA-9840).
    NotValidated {
        /// Whose.
        lease: LeaseId,
        /// The position.
        offset: i64,
    },
    /// A broker keeps answering with an error.
    Trouble {
        /// Whose.
        lease: LeaseId,
        /// The topic and partition.
        tp: TopicPartition,
        /// The error.
        code: Code,
        /// How many times in a row.
        attempts: u32,
    },
    /// The partition has had no leader, or no entry in the metadata, for a while.
    NoLeader {
        /// Whose.
        lease: LeaseId,
        /// The topic and partition.
        tp: TopicPartition,
        /// How many refreshes have not helped.
        attempts: u32,
    },
    /// A broker cannot be asked, or its whole answers are errors.
    NodeTrouble {
        /// Which.
        node: NodeId,
        /// Why.
        error: Error,
        /// How many times in a row.
        attempts: u32,
    },
    /// A leader named a replica that is not in the cluster; the leader is asked on.
    UnknownReplica {
        /// Whose.
        lease: LeaseId,
        /// The replica.
        node: NodeId,
    },
    /// A batch is larger than the partition's limit, which was raised for it.
    LimitRaised {
        /// Whose.
        lease: LeaseId,
        /// The batch's offset.
        offset: i64,
        /// The new limit.
        bytes: usize,
    },
    /// A batch did not hold; it is fetched once more before the partition stops.
    Refetch {
        /// Whose.
        lease: LeaseId,
        /// Why.
        error: Error,
    },
    /// An answer had batches, none of which reaches the position.
    NoProgress {
        /// Whose.
        lease: LeaseId,
        /// The position.
        offset: i64,
    },
}

/// What a partition is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchState {
    /// Looking for its start.
    Starting,
    /// Asking whether the log was cut.
    Validating,
    /// Asking whether its position is really gone.
    Confirming,
    /// Reading a backlog.
    Reading,
    /// At the end, waiting for more.
    CaughtUp,
    /// At rest: paused, or ahead.
    Held,
    /// Its leader is not known.
    NoLeader,
    /// [`FetchAction::Reset`] or [`FetchAction::Stopped`] was said, or will be once the buffer is
    /// empty.
    Ended,
}

/// A partition, as a snapshot shows it. Offsets are -1 where they are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionView {
    /// The next offset to be taken.
    pub position: i64,
    /// The next offset to be fetched.
    pub fetch_position: i64,
    /// The high watermark: where lag to the log's end counts to.
    pub high_watermark: i64,
    /// The last stable offset: where lag under `read_committed` counts to.
    pub last_stable_offset: i64,
    /// The log's start.
    pub log_start: i64,
    /// What waits to be taken.
    pub buffered_bytes: usize,
    /// What the partition holds of the budget, wherever it is.
    pub held_bytes: usize,
    /// What it is doing.
    pub state: FetchState,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchStats {
    /// Fetch answers with error 0.
    pub answers: u64,
    /// Bytes of records in them.
    pub bytes: u64,
    /// Parts of answers that nobody waited for: named twice, never asked for, or of a lease that
    /// has ended.
    pub foreign: u64,
    /// Fetch sessions that had to be opened anew.
    pub sessions_lost: u64,
    /// Bytes copied out of frames that were kept for little.
    pub copied_out_bytes: u64,
}

/// An answer, or why there is none.
pub type FetchResult = Result<Response, Error>;
