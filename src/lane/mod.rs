//! Lanes: records that share a lane key run one at a time and in order; lanes run side by side.
//!
//! Two structures that meet only in values:
//!
//! * [`Lanes`] is the engine's side. It deals parcels of records to executors, takes their results
//!   back, holds what waits behind a blocked lane, and parks retries.
//! * [`Runner`] is the executor's side: it calls the handler, polls what is pending, and reports.
//!
//! ```text
//!   deal ---> Lanes --poll_run--> Group ---give--> Runner ---> handler
//!                ^                                    |
//!                '---- take_back <--- Done::Group ----+   acked at once: the group is the report
//!                '---- late <-------- Done::Late -----'   everything else, record by record
//! ```
//!
//! What holds between them:
//!
//! 1. Records of a lane start in the order in which they were dealt, one at a time, across retries
//!    and leases. A lane is bound to one executor while a record of it is out; that executor's order
//!    is the lane's.
//! 2. Each record of a group comes back exactly once: untouched in its group (acked at once), or as
//!    a [`Late`]. A group marks what comes late, and may arrive before or after those.
//! 3. A record that must run again *seals* its lane in the Runner: whatever it meets of that lane
//!    comes back as not run, until the engine, which has them all again, opens the lane anew.
//! 4. Results of a lost lease settle nothing; they still free their lane and their counts.
//! 5. A lane that waits has a record out, a retry's deadline, a dead letter that is being written,
//!    or a place in a list of lanes that may go on. Nothing waits for luck.
//!
//! Nothing here knows Kafka: a source deals parcels of anything under leases of its own.

mod call;
mod chain;
mod each;
mod ended;
mod group;
mod hash;
mod lanes;
mod outcome;
mod permits;
mod retry;
mod runner;
mod slots;
#[cfg(any(test, fuzzing))]
#[cfg_attr(fuzzing, allow(dead_code, unused_imports))]
mod tests;
mod wake;
mod watch;

pub use call::NowFn;
pub use each::{Each, each};
pub use ended::Ended;
pub use group::{Group, Late, Lease, LeaseState, PARCEL_RECORDS_MAX, Parcel, RunResult};
pub use hash::{KeyHash, Keys, LaneHasher};
pub use lanes::{
    DeadLetter, DeadLetterId, LaneView, Lanes, LanesConfig, LoadSnapshot, Mode, Note, Recalled,
    Sink, Waits,
};
pub use outcome::{
    Handler, HandlerError, IntoOutcome, IntoOutcomes, Outcome, Outcomes, Panicked, Taken,
    TakenRange, TakenRecord, TimedOut,
};
pub use permits::Permits;
pub use retry::{Attempt, Exhausted, Retry, RetryFn, Tried, Why};
pub use runner::{Recall, Runner, RunnerConfig};
#[cfg(fuzzing)]
pub(crate) use tests::fuzz;
pub use watch::{Running, WATCHED_MAX, Watch};

/// A lane's number. It means nothing outside the subscription, nor in another life of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

impl LaneId {
    /// The lane of records that are in no lane: they run in any order.
    pub const NONE: LaneId = LaneId(u32::MAX);
}

/// A lane for good: its number where the number of lanes is fixed; its key where each live key has
/// one, and then the lane's number is only lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneName(u64);

/// What a [`Runner`] gives back.
#[derive(Debug)]
pub enum Done<L> {
    /// A group that has been walked to its end.
    Group(Group<L>),
    /// Results of records that were not acked at once, in order within each lane.
    Late(Vec<Late<L>>),
}
