//! Settlement: which records of a lease are done, and how far a commit may go.
//!
//! A [`Tracker`] belongs to one lease. It numbers the records as they are delivered (*ordinals*),
//! keeps one bit for each from the lowest open one on, and maps ordinals back to offsets by
//! *segments*, a batch or several adjoining ones. It is not the commit: it says where the
//! watermark stands, and others decide when that is written and under which generation.
//!
//! 1. The watermark never passes a record that was pushed and has not settled.
//! 2. Nothing moves the watermark back; another start is another lease, hence another tracker.
//! 3. A record leaves by settling, or with the whole tracker, in no other way.
//! 4. Offsets without a record (compaction, control records, aborted data) take no bit: they are
//!    settled by definition, and covered as soon as every record before them is.
//!
//! Nothing here knows Kafka: offsets are numbers that rise, an epoch is a number kept beside them.

mod gone;
mod map;
mod restored;
mod ring;
#[cfg(test)]
mod tests;
mod tracker;

use std::fmt;

pub use gone::Gone;
pub use map::{BODY_MAX, Map, MapError, MapWriter, OPEN_RUNS_MAX, Written};
pub use restored::{Restored, Standing};
pub use tracker::{Offsets, OpenRuns, Run, SettledRuns, Tracker};

/// A caller's mistake, named. The tracker is unchanged after any of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettleError {
    /// A record was settled that had settled before.
    Twice {
        /// The first ordinal of the range that was to settle.
        ordinal: u64,
    },
    /// An ordinal was settled that was never handed out.
    Unknown {
        /// The first ordinal of the range that was to settle.
        ordinal: u64,
        /// The next ordinal that will be handed out.
        next: u64,
    },
    /// A batch begins before the position, or its offsets do not rise.
    Backwards {
        /// The offset that is too low.
        offset: i64,
        /// The lowest offset that could have stood there.
        position: i64,
    },
    /// A batch claims to cover less than its own last record, or offsets beyond an `i64`.
    Uncovered {
        /// The end that was claimed.
        covered_to: i64,
    },
}

impl fmt::Display for SettleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettleError::Twice { ordinal } => {
                write!(f, "record with ordinal {ordinal} was settled twice")
            }
            SettleError::Unknown { ordinal, next } => {
                write!(
                    f,
                    "ordinal {ordinal} was settled, but only those below {next} were handed out"
                )
            }
            SettleError::Backwards { offset, position } => {
                write!(
                    f,
                    "offset {offset} was pushed, but the position is {position} already"
                )
            }
            SettleError::Uncovered { covered_to } => {
                write!(
                    f,
                    "a batch ends at {covered_to}, which is not after its last record"
                )
            }
        }
    }
}

impl std::error::Error for SettleError {}
