//! What a handler gets and what it gives back.

use std::any::Any;
use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use super::LaneId;
use super::group::{Parcel, Stretch};
use super::retry::Tried;

/// What shall become of a record.
///
/// ```
/// use laneway::Outcome;
/// assert!(Outcome::Ack.settles() && Outcome::Drop.settles());
/// assert!(!Outcome::failed("no route to the bank").settles());
/// // It settles once the dead letter is written and acknowledged, not before.
/// assert!(!Outcome::dead_letter("no such account").settles());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is done.
    Ack,
    /// It is done with, though not done: counted apart, settled the same.
    Drop,
    /// Run it again, when the subscription's [`Retry`](super::Retry) says so.
    Retry,
    /// Run it again after this long.
    RetryAfter(Duration),
    /// The handler failed, in these words. A retry with a reason.
    Failed(Box<str>),
    /// No retry would help, for this reason: it goes to the dead-letter topic, and settles once
    /// that write is acknowledged; its lane waits until then. Where no dead-letter topic is named
    /// the subscription stops.
    DeadLetter(Box<str>),
    /// The subscription stops, with an error that names the record. The record does not settle, so
    /// nothing past it is committed.
    Stop,
}

impl Outcome {
    /// A failure in these words.
    pub fn failed(reason: impl Into<Box<str>>) -> Self {
        Outcome::Failed(reason.into())
    }

    /// A dead letter for this reason.
    pub fn dead_letter(reason: impl Into<Box<str>>) -> Self {
        Outcome::DeadLetter(reason.into())
    }

    /// Whether the record is final with this outcome.
    #[must_use]
    pub fn settles(&self) -> bool {
        matches!(self, Outcome::Ack | Outcome::Drop)
    }
}

/// What became of one handler call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcomes {
    /// The same for every record that the call took.
    All(Outcome),
    /// One for each, in the order of [`Taken::records`]. Records beyond the end of the list count
    /// as failed; outcomes beyond the last record as nothing.
    Each(Vec<Outcome>),
}

/// What one handler call takes: one record, or a batch of them.
#[derive(Debug)]
pub struct Taken<L> {
    /// The first record: its parcel, and its index there.
    pub first: (Arc<Parcel<L>>, u32),
    /// What became of the first record's earlier runs; `None` at its first.
    pub tried: Option<Arc<Tried>>,
    /// The lane that the first record belongs to.
    pub lane: LaneId,
    /// The records after it. Empty, and without an allocation, unless the runner was told to form
    /// batches.
    pub rest: Vec<TakenRange<L>>,
}

/// Neighbouring records of one parcel that a batch takes after its first.
#[derive(Debug)]
pub struct TakenRange<L> {
    /// Their parcel.
    pub parcel: Arc<Parcel<L>>,
    /// The first one's index there.
    pub first: u32,
    /// How many.
    pub len: u32,
    /// What became of earlier runs; then it is one record.
    pub tried: Option<Arc<Tried>>,
    /// Their lane.
    pub lane: LaneId,
}

/// One record of those that a handler call takes.
#[derive(Debug)]
pub struct TakenRecord<'a, L> {
    /// Its parcel.
    pub parcel: &'a Arc<Parcel<L>>,
    /// Its index there.
    pub index: u32,
    /// What became of its earlier runs; `None` at its first.
    pub tried: Option<&'a Arc<Tried>>,
    /// Its lane.
    pub lane: LaneId,
}

impl<L> Taken<L> {
    /// Every record taken, in order.
    pub fn records(&self) -> impl Iterator<Item = TakenRecord<'_, L>> {
        let first = TakenRecord {
            parcel: &self.first.0,
            index: self.first.1,
            tried: self.tried.as_ref(),
            lane: self.lane,
        };
        let of = |range: &'_ TakenRange<L>| range.first..range.first + range.len;
        let rest = self.rest.iter().flat_map(move |range| {
            of(range).map(move |index| TakenRecord {
                parcel: &range.parcel,
                index,
                tried: range.tried.as_ref(),
                lane: range.lane,
            })
        });
        std::iter::once(first).chain(rest)
    }
}

impl<L> Stretch<L> {
    pub(super) fn records(&self) -> impl Iterator<Item = TakenRecord<'_, L>> {
        (self.index..self.index + self.len).map(|index| TakenRecord {
            parcel: &self.parcel,
            index,
            tried: self.tried.as_ref(),
            lane: self.lane,
        })
    }
}

/// What a handler failed with: the error that it returned, [`Panicked`] or [`TimedOut`]. Anything
/// that has words and can be told apart by its type.
///
/// ```
/// use laneway::lane::{HandlerError, TimedOut};
/// use std::time::Duration;
/// let error: &dyn HandlerError = &TimedOut(Duration::from_secs(5));
/// assert!(error.downcast_ref::<TimedOut>().is_some());
/// assert_eq!(error.to_string(), "the handler took longer than 5s");
/// ```
pub trait HandlerError: Display + Any + 'static {}

impl<E: Display + Any + 'static> HandlerError for E {}

impl dyn HandlerError {
    /// The error itself, where it is of this type.
    #[must_use]
    pub fn downcast_ref<E: Any>(&self) -> Option<&E> {
        let any: &dyn Any = self;
        any.downcast_ref()
    }
}

impl fmt::Debug for dyn HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandlerError({self})")
    }
}

/// A handler's panic, with its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked(pub String);

impl Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A handler ran longer than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut(pub Duration);

impl Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the handler took longer than {:?}", self.0)
    }
}

/// The user's function, as a [`Runner`](super::Runner) calls it.
pub trait Handler<L> {
    /// One call's future. It stays a type of its own down to the slot that it is polled in: a
    /// boxed one costs an allocation a record.
    type Run: Future<Output: IntoOutcomes>;

    /// Starts on what was taken. A panic here counts as one of the future.
    fn run(&self, taken: Taken<L>) -> Self::Run;

    /// What shall become of a record whose handler returned an error, panicked or took too long.
    /// Of a batch that failed as one it is asked for each record. Nothing is asked where all went
    /// well, so it costs nothing there.
    fn on_error(&self, record: &TakenRecord<'_, L>, error: &dyn HandlerError) -> Outcome {
        let _ = record;
        Outcome::failed(error.to_string())
    }
}

impl<L, H: Handler<L> + ?Sized> Handler<L> for Arc<H> {
    type Run = H::Run;

    fn run(&self, taken: Taken<L>) -> H::Run {
        (**self).run(taken)
    }

    fn on_error(&self, record: &TakenRecord<'_, L>, error: &dyn HandlerError) -> Outcome {
        (**self).on_error(record, error)
    }
}

/// What a handler may return for one record.
///
/// `()` acks. `Ok` is what it holds; an error is a retry, under the subscription's
/// [`Retry`](super::Retry). An [`Outcome`] says it outright.
///
/// ```
/// use laneway::lane::{IntoOutcome, Outcome};
/// assert_eq!(().into_outcome(), Outcome::Ack);
/// assert_eq!(Ok::<_, String>(Outcome::Drop).into_outcome(), Outcome::Drop);
/// assert_eq!(Err::<(), _>("no route").into_outcome(), Outcome::failed("no route"));
/// ```
pub trait IntoOutcome: IntoOutcomes {
    /// The outcome it stands for.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Ack
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl<T: IntoOutcome, E: Display + 'static> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => value.into_outcome(),
            Err(error) => Outcome::failed(error.to_string()),
        }
    }
}

/// What a handler of batches may return: one outcome for all, or a list with one for each.
///
/// ```
/// use laneway::lane::{IntoOutcomes, Outcome, Outcomes};
/// assert_eq!(().into_outcomes(), Outcomes::All(Outcome::Ack));
/// let each = vec![Outcome::Ack, Outcome::Retry];
/// assert_eq!(each.clone().into_outcomes(), Outcomes::Each(each));
/// ```
pub trait IntoOutcomes {
    /// The outcomes it stands for.
    fn into_outcomes(self) -> Outcomes;

    /// The outcomes it stands for, where `on_error` says what an error becomes. A type that can
    /// hold no error leaves this as it is.
    fn into_outcomes_by(self, on_error: &mut dyn FnMut(&dyn HandlerError) -> Outcomes) -> Outcomes
    where
        Self: Sized,
    {
        let _ = on_error;
        self.into_outcomes()
    }
}

impl IntoOutcomes for () {
    fn into_outcomes(self) -> Outcomes {
        Outcomes::All(Outcome::Ack)
    }
}

impl IntoOutcomes for Outcome {
    fn into_outcomes(self) -> Outcomes {
        Outcomes::All(self)
    }
}

impl IntoOutcomes for Outcomes {
    fn into_outcomes(self) -> Outcomes {
        self
    }
}

impl IntoOutcomes for Vec<Outcome> {
    fn into_outcomes(self) -> Outcomes {
        Outcomes::Each(self)
    }
}

impl<T: IntoOutcomes, E: Display + 'static> IntoOutcomes for Result<T, E> {
    fn into_outcomes(self) -> Outcomes {
        match self {
            Ok(value) => value.into_outcomes(),
            Err(error) => Outcomes::All(Outcome::failed(error.to_string())),
        }
    }

    fn into_outcomes_by(self, on_error: &mut dyn FnMut(&dyn HandlerError) -> Outcomes) -> Outcomes {
        match self {
            Ok(value) => value.into_outcomes_by(on_error),
            Err(error) => on_error(&error),
        }
    }
}
