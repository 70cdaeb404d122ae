//! What a handler gets and what it gives back.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use super::LaneId;
use super::group::Parcel;

/// What shall become of a record.
///
/// ```
/// use laneway::Outcome;
/// assert!(Outcome::Ack.settles() && Outcome::Drop.settles());
/// assert!(!Outcome::failed("no route to the bank").settles());
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
}

impl Outcome {
    /// A failure in these words.
    pub fn failed(reason: impl Into<Box<str>>) -> Self {
        Outcome::Failed(reason.into())
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
    /// How often the first record has run before.
    pub attempt: u32,
    /// The lane that they all belong to.
    pub lane: LaneId,
    /// The records after it, as stretches: a parcel, the first index and how many. Empty, and
    /// without an allocation, unless the runner was told to form batches.
    pub rest: Vec<(Arc<Parcel<L>>, u32, u32)>,
}

impl<L> Taken<L> {
    /// Every record taken, in order: its parcel and its index there.
    pub fn records(&self) -> impl Iterator<Item = (&Arc<Parcel<L>>, u32)> {
        let rest = self.rest.iter();
        std::iter::once((&self.first.0, self.first.1))
            .chain(rest.flat_map(|(p, first, len)| (*first..first + len).map(move |i| (p, i))))
    }
}

/// The user's function, as a [`Runner`](super::Runner) calls it.
pub trait Handler<L> {
    /// One call's future. It stays a type of its own down to the slot that it is polled in: a
    /// boxed one costs an allocation a record.
    type Run: Future<Output: IntoOutcomes>;

    /// Starts on what was taken. A panic here counts as one of the future.
    fn run(&self, taken: Taken<L>) -> Self::Run;
}

impl<L, H: Handler<L> + ?Sized> Handler<L> for Arc<H> {
    type Run = H::Run;

    fn run(&self, taken: Taken<L>) -> H::Run {
        (**self).run(taken)
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

impl<T: IntoOutcome, E: Display> IntoOutcome for Result<T, E> {
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

impl<T: IntoOutcomes, E: Display> IntoOutcomes for Result<T, E> {
    fn into_outcomes(self) -> Outcomes {
        match self {
            Ok(value) => value.into_outcomes(),
            Err(error) => Outcomes::All(Outcome::failed(error.to_string())),
        }
    }
}
