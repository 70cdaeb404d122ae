//! What a [`Commit`](super::Commit) wants done.

use std::fmt;
use std::time::Duration;

use super::lease::Committed;
use crate::error::Error;
use crate::ids::{LeaseId, Token, TopicPartition};
use crate::wire::{Code, Request};

/// What a [`Commit`](super::Commit) wants done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CommitAction {
    /// Send `request` to the group's coordinator, over the link of heartbeats. The answer, or why
    /// there is none, comes back through [`Commit::handle_response`](super::Commit::handle_response)
    /// under `token`.
    Send {
        /// Names the request.
        token: Token,
        /// What to ask.
        request: Request,
        /// How long it may take.
        timeout: Duration,
    },
    /// A commit is about to be made: say what each of these leases has, by
    /// [`Commit::answer`](super::Commit::answer). No commit is made before that.
    Ask {
        /// Which leases, those that someone waits for first.
        leases: Vec<LeaseId>,
    },
    /// Whoever answered is not the coordinator, or nobody answered: look it up again.
    CoordinatorMoved,
    /// The group left off here; `None`: it never committed this partition, or the broker has
    /// forgotten.
    Loaded {
        /// The lease that began.
        lease: LeaseId,
        /// What the broker holds.
        committed: Option<Committed>,
    },
    /// The broker has acknowledged this watermark.
    Committed {
        /// Whose.
        lease: LeaseId,
        /// The next offset to read.
        offset: i64,
    },
    /// A flush has ended.
    Flushed {
        /// Whose.
        lease: LeaseId,
        /// Whether all that was noted is acknowledged. False: the deadline passed, the lease
        /// ended, or the broker will not have it.
        complete: bool,
    },
    /// The coordinator is at another generation or on the way to one: the group machine should
    /// hear of it. Said once for each generation.
    Rejoin(Code),
    /// The membership is over; nothing is committed under it any more.
    Lost(Code),
    /// The broker will not have commits or loads of this lease. They have stopped.
    Failed {
        /// Whose.
        lease: LeaseId,
        /// Why.
        error: Error,
    },
    /// Nothing that we do can help. The machine rests after this.
    Fatal(Error),
    /// Something to tell the user; no answer is needed.
    Notice(CommitNotice),
}

/// Something worth a line in the log; nothing needs to be done about it in the program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CommitNotice {
    /// Commits fail; we go on trying.
    Retrying {
        /// Failures in a row.
        attempts: u32,
        /// The last one.
        error: Error,
    },
    /// The committed offset of a partition cannot be read yet; we go on trying.
    LoadRetrying {
        /// Which.
        partition: TopicPartition,
        /// Failures in a row.
        attempts: u32,
        /// The last one.
        error: Error,
    },
    /// The broker takes no metadata of this length: the offset goes with less of it or none, so
    /// that a restart may run records again that had settled out of order.
    MetadataRefused {
        /// Whose.
        partition: TopicPartition,
        /// How long it was.
        bytes: usize,
    },
    /// The coordinator has not known the topic for so long that it must be gone; nobody waits for
    /// its commits any more.
    TopicGone {
        /// Which partition.
        partition: TopicPartition,
    },
}

impl fmt::Display for CommitNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommitNotice::Retrying { attempts, error } => {
                write!(
                    f,
                    "commit failed {attempts} times in a row, trying again: {}",
                    error.message()
                )
            }
            CommitNotice::LoadRetrying {
                partition,
                attempts,
                error,
            } => write!(
                f,
                "the committed offset of {partition} cannot be read yet ({attempts} tries): {}",
                error.message()
            ),
            CommitNotice::MetadataRefused { partition, bytes } => write!(
                f,
                "the broker refuses {bytes} bytes of commit metadata for {partition}; committing \
                 less or none of it (raise offset.metadata.max.bytes to keep it)"
            ),
            CommitNotice::TopicGone { partition } => write!(
                f,
                "{partition} is unknown to the coordinator: its progress cannot be committed"
            ),
        }
    }
}
