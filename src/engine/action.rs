//! What goes in and out of an [`Engine`](super::Engine): the seam to whoever drives it.

use super::hooks::{Hook, HookId};
use super::snapshot::{Holdup, LaneSnapshot, RunningRecord};
use super::steering::{InFlight, Scope, SeekTo};
use crate::error::Error;
use crate::ids::{CommandId, ExecutorId, LeaseId, LinkId, TopicPartition};
use crate::lane;
use crate::produce::Written;
use crate::record::Delivery;
use crate::time::Now;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// Records for one executor.
pub type Group = lane::Group<Delivery>;

/// What an executor's [`Runner`](crate::lane::Runner) gave back.
#[derive(Debug)]
pub struct Done {
    /// Whose it is.
    pub executor: ExecutorId,
    /// A finished group, or outcomes that came later.
    pub done: lane::Done<Delivery>,
}

/// What happened on a connection.
#[derive(Debug)]
pub enum LinkEvent {
    /// Connected; frames may be sent.
    Up,
    /// One whole frame came, without its length.
    Frame(Bytes),
    /// The connection is over or never came to be. Nothing more is said of this link.
    Down(Error),
}

/// What the driver must do. Taken with `poll_action` after each `handle_*`, until `None`.
#[derive(Debug)]
#[non_exhaustive]
pub enum Action {
    /// Connect to `host:port`: resolve the name, try every address, until `until`; then say
    /// [`LinkEvent::Up`] or [`LinkEvent::Down`].
    Open {
        /// The new link.
        link: LinkId,
        /// A name or an address.
        host: Arc<str>,
        /// Its port.
        port: u16,
        /// When to give up.
        until: Now,
        /// The largest frame to take, in bytes.
        frame_max: u32,
    },
    /// Write this frame, whole and in order; if that cannot be, the link is down.
    Send {
        /// Where.
        link: LinkId,
        /// With its length in front.
        frame: Bytes,
        /// What the largest answer that is due may take: what a
        /// [`Framer`](crate::wire::Framer) on this link may reserve at once.
        answer_bytes: usize,
    },
    /// Close the link. Nothing more is said of it in either direction.
    Close {
        /// Which.
        link: LinkId,
    },
    /// Give this group to the executor's runner. At most two are out at once for each executor.
    Run {
        /// Whose runner.
        executor: ExecutorId,
        /// What to run.
        group: Group,
    },
    /// Tell the runner about an ended lease.
    Recall {
        /// Whose runner.
        executor: ExecutorId,
        /// The lease that ended.
        lease: LeaseId,
        /// Give back what has not started, or drop what runs as well.
        what: lane::Recall,
    },
    /// Ask the provider of credentials, and give what it says to
    /// [`Engine::handle_credentials`](super::Engine::handle_credentials). Comes again where no
    /// answer came in time: what was asked before may then be dropped.
    CredentialsWanted,
    /// Run the user's hook, and say with [`Command::HookDone`] how it ended. One is out at a time.
    Hook {
        /// Names it.
        id: HookId,
        /// Which hook, and what for.
        hook: Hook,
    },
    /// Drop this hook's run: its time is over. Nothing is to be said of it any more.
    EndHook {
        /// Which.
        id: HookId,
    },
    /// The answer to a command.
    Reply {
        /// Which command.
        id: CommandId,
        /// How it went.
        result: Result<(), Error>,
    },
    /// What became of a record given to [`Engine::handle_record`](super::Engine::handle_record).
    Sent {
        /// Which.
        id: CommandId,
        /// Where it was written.
        result: Result<Written, Error>,
    },
    /// Something worth a log line.
    Event(Event),
    /// The engine has more to do but gives the driver a turn first: call `handle_timeout` soon.
    Again,
    /// The subscription is over. No action follows.
    Finished(Result<(), Error>),
}

/// What the driver asks for on behalf of the user.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Command {
    /// Take no more records, run all that have been read, commit, leave, finish.
    Drain,
    /// Take no more records, drop what has not started, let what runs end, commit, leave, finish.
    /// What runs has the time until shortly before `deadline`: a fifth of it, at most 2 seconds,
    /// is kept for the last commit and for leaving. With a deadline that is now, what runs is
    /// dropped at once and the rest has 5 seconds.
    Close {
        /// When all of it is over.
        deadline: Now,
    },
    /// Commit what has settled now; the reply comes when the broker has acknowledged it.
    CommitNow,
    /// Give reserved partitions back to the group's sharing.
    Release {
        /// Which.
        partitions: Vec<TopicPartition>,
    },
    /// Hand out no more records of these until they are resumed.
    Pause {
        /// Of which partitions.
        what: Scope,
    },
    /// End a pause.
    Resume {
        /// Of which partitions.
        what: Scope,
    },
    /// Go on reading elsewhere; the reply comes when every partition has moved.
    Seek {
        /// Which partitions.
        what: Scope,
        /// Where to.
        to: SeekTo,
        /// What becomes of records that run.
        running: InFlight,
    },
    /// A hook has ended.
    HookDone {
        /// Which.
        id: HookId,
        /// Its error ends the subscription.
        result: Result<(), Error>,
    },
    /// Let this many records run at once.
    SetWorkers {
        /// How many.
        n: u32,
    },
}

/// Something a user may want to know. Quiet when all is well.
///
/// ```
/// use laneway::{Event, Kafka, Topics};
/// let subscription = Kafka::new(["localhost:9092"])
///     .subscribe(Topics::named(["orders"]).group("shipping"))
///     .on_event(|event| match event {
///         Event::Stopped { error } => eprintln!("a partition stands still: {error}"),
///         Event::DataLoss { partition, from, to, why } => eprintln!("{partition:?} {from}..{to}: {why}"),
///         _ => {}
///     });
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The group gave us this partition; it starts at `offset`.
    Granted {
        /// Which partition.
        partition: TopicPartition,
        /// First offset to be read.
        offset: i64,
    },
    /// The group takes this partition away; what runs may end.
    Revoked {
        /// Which partition.
        partition: TopicPartition,
        /// The last offset committed, where one was.
        committed: Option<i64>,
    },
    /// This partition is no longer ours, without a chance to commit.
    Lost {
        /// Which partition.
        partition: TopicPartition,
    },
    /// A seek moved this partition; [`Event::Granted`] follows with its new place.
    Sought {
        /// Which partition.
        partition: TopicPartition,
        /// Where it was, if it had begun.
        from: Option<i64>,
    },
    /// A record has run for longer than the subscription's
    /// [`stall_after`](crate::Subscription::stall_after). Said once, and again each time that its
    /// age has doubled. The session lives all the same: heartbeats never wait for handlers.
    Stalled {
        /// Which partition.
        partition: TopicPartition,
        /// Which record.
        offset: i64,
        /// Its lane, where records run in lanes.
        lane: Option<u32>,
        /// Which run of it this is, from 1.
        attempt: u32,
        /// For how long.
        running_for: Duration,
        /// How many handler calls have taken that long, this one included.
        records: u64,
    },
    /// The partition stands still until the user acts; others run.
    Stopped {
        /// Why; names topic, partition and offset.
        error: Error,
    },
    /// Records that were there are gone, or others stand in their place.
    DataLoss {
        /// Which partition.
        partition: TopicPartition,
        /// Where reading was.
        from: i64,
        /// Where it goes on.
        to: i64,
        /// In words.
        why: String,
    },
    /// A record has failed and will run again. Said at attempts 10, 100, 1000 and so on, and for
    /// the others every ten seconds at most, so that the first of many failures is seen.
    Retrying {
        /// Which partition.
        partition: TopicPartition,
        /// Which record.
        offset: i64,
        /// Its lane, where records run in lanes.
        lane: Option<u32>,
        /// Runs so far.
        attempts: u32,
        /// What the last one said.
        reason: String,
    },
    /// A handler panicked on this record, which will run again like one that failed. Said at the
    /// first attempt, and then as [`Event::Retrying`] is.
    Panicked {
        /// Which partition.
        partition: TopicPartition,
        /// Which record.
        offset: i64,
        /// Its lane, where records run in lanes.
        lane: Option<u32>,
        /// Runs so far.
        attempts: u32,
        /// The panic's message.
        message: String,
    },
    /// A record's dead letter was written and acknowledged: the record has settled.
    DeadLettered {
        /// Where the record is from.
        partition: TopicPartition,
        /// Which record.
        offset: i64,
        /// Where its dead letter is.
        to: TopicPartition,
        /// Its offset there; -1 where the broker has forgotten.
        at: i64,
        /// Runs of the record.
        attempts: u32,
        /// What the last one said.
        reason: String,
    },
    /// Records were still with handlers when their lease was over; what comes of them counts for
    /// nothing here, and they run again under the next lease.
    Abandoned {
        /// Which partition.
        partition: TopicPartition,
        /// How many records: running, or waiting behind a handler that blocks its thread.
        records: u64,
    },
    /// Something that heals by itself: a lost connection, a moved coordinator.
    Notice {
        /// In words.
        text: String,
    },
    /// Something that may need the user.
    Warning {
        /// What and what to do.
        error: Error,
    },
}

/// How a subscription stands, at one moment: what `Running::snapshot` gives.
///
/// ```
/// use laneway::Snapshot;
/// fn line(now: &Snapshot) -> String {
///     let lag: i64 = now.partitions.iter().filter_map(|p| p.lag()).sum();
///     format!("{} lanes busy, {} settled, lag {lag}", now.lanes_busy, now.settled)
/// }
/// assert_eq!(line(&Snapshot::default()), "0 lanes busy, 0 settled, lag 0");
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Each partition that we have a lease on.
    pub partitions: Vec<PartitionSnapshot>,
    /// Bytes that count against the budget now.
    pub budget_used: u64,
    /// The budget.
    pub budget_max: u64,
    /// Records that wait for an executor.
    pub ready: u64,
    /// Records that wait behind a busy or parked lane.
    pub queued: u64,
    /// Records that wait for their next attempt.
    pub parked: u64,
    /// Dead letters whose write is not acknowledged yet.
    pub dead_letters: u64,
    /// Records whose dead letter was written.
    pub dead_lettered: u64,
    /// Records whose handler took longer than it may, so far.
    pub timed_out: u64,
    /// Records of paused partitions that had been dealt and wait here.
    pub at_rest: u64,
    /// Records with executors: running, or about to.
    pub out: u64,
    /// Lanes that have a record running or parked.
    pub lanes_busy: u64,
    /// Each lane that has something to do, [`SNAPSHOT_LANES_MAX`](crate::SNAPSHOT_LANES_MAX) of
    /// them at most.
    pub lanes: Vec<LaneSnapshot>,
    /// The record that a handler has had for longest: what progress is watched by.
    pub oldest_running: Option<RunningRecord>,
    /// How many records may run at once; `None`: one, and no more can be asked for.
    pub workers: Option<u32>,
    /// Records settled so far.
    pub settled: u64,
    /// Records that were passed over since the offset map says that they had settled before.
    pub settled_before: u64,
    /// Offset maps that could not be used: broken, foreign, or of another log.
    pub maps_unused: u64,
    /// Records that ran again after a failure.
    pub retries: u64,
    /// How often a record was found to run for too long.
    pub stalls: u64,
    /// The group's generation, where we are a member.
    pub generation: Option<i32>,
}

/// One partition of a [`Snapshot`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PartitionSnapshot {
    /// Which.
    pub partition: TopicPartition,
    /// The right to work on it: a number that is new whenever reading begins anew, by a grant, a
    /// seek or a loss of data, and is never used again in this subscription.
    pub lease: LeaseId,
    /// The next offset to be dealt to a lane; -1 until it is known where to begin.
    pub position: i64,
    /// The lowest offset that has not settled; -1 until it is known where to begin.
    pub watermark: i64,
    /// The last offset that the broker acknowledged as committed.
    pub committed: Option<i64>,
    /// Records dealt above the watermark.
    pub ahead: u64,
    /// Whether it waits for its offset map to become shorter; see [`MapFull`](crate::MapFull).
    pub map_full: bool,
    /// Bytes read and not yet dealt.
    pub buffered_bytes: u64,
    /// The log's end as last heard; -1 not known.
    pub high_watermark: i64,
    /// The last stable offset as last heard; -1 not known.
    pub last_stable_offset: i64,
    /// Records that a blocked lane has let go, to read them again from the log when it is free.
    pub gone: u64,
    /// Bytes that were read again for such records.
    pub reread_bytes: u64,
    /// Whether the lease is being drained.
    pub draining: bool,
    /// Whether it is paused.
    pub paused: bool,
    /// The record that holds its commit back, if anything has been handed out above the watermark.
    pub holdup: Option<Holdup>,
}

impl PartitionSnapshot {
    /// Records between the watermark and the log's end; `None` until a broker has named the end.
    #[must_use]
    pub fn lag(&self) -> Option<i64> {
        let known = self.high_watermark >= 0 && self.watermark >= 0;
        known.then(|| (self.high_watermark - self.watermark).max(0))
    }

    /// Records between the watermark and the last stable offset, up to which
    /// [`Isolation::ReadCommitted`](crate::Isolation) may read; `None` until a broker has named it.
    #[must_use]
    pub fn lag_stable(&self) -> Option<i64> {
        let known = self.last_stable_offset >= 0 && self.watermark >= 0;
        known.then(|| (self.last_stable_offset - self.watermark).max(0))
    }
}
