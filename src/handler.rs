//! What a user hands over: functions of a record or of a batch, and what they may return.

use crate::lane::{Handler, HandlerError, IntoOutcome, IntoOutcomes, Outcome, Taken, TakenRecord};
use crate::record::{Delivery, Record};
use std::future::Future;
#[cfg(feature = "runtime")]
use std::marker::PhantomData;
use std::sync::Arc;

/// What the user makes of errors: the function of `Subscription::on_error`.
pub type ErrorPolicy = Arc<dyn Fn(&Record, &dyn HandlerError) -> Outcome + Send + Sync>;

/// A handler that calls `f` with one record at a time: what [`Subscription::run`] makes of a
/// function, for drivers of an [`Engine`](crate::engine::Engine) other than the tokio shell. One that
/// stays on its thread needs not be [`Send`].
///
/// [`Subscription::run`]: https://docs.rs/laneway
pub fn one_by_one<F, Fut>(f: F) -> impl Handler<Delivery, Run = Fut>
where
    F: Fn(Record) -> Fut,
    Fut: Future<Output: IntoOutcome>,
{
    OneByOne(f, None)
}

/// As [`one_by_one`], with a say in what errors, panics and time-outs become.
pub fn one_by_one_or<F, Fut>(f: F, on_error: ErrorPolicy) -> impl Handler<Delivery, Run = Fut>
where
    F: Fn(Record) -> Fut,
    Fut: Future<Output: IntoOutcome>,
{
    OneByOne(f, Some(on_error))
}

/// As [`one_by_one`], for batches: what `Subscription::batch` calls a function with.
pub fn in_batches<F, Fut>(f: F) -> impl Handler<Delivery, Run = Fut>
where
    F: Fn(Vec<Record>) -> Fut,
    Fut: Future<Output: IntoOutcomes>,
{
    InBatches(f, None)
}

/// Calls a function with one record at a time.
pub(crate) struct OneByOne<F>(pub(crate) F, pub(crate) Option<ErrorPolicy>);

impl<F, Fut> Handler<Delivery> for OneByOne<F>
where
    F: Fn(Record) -> Fut,
    Fut: Future<Output: IntoOutcome>,
{
    type Run = Fut;

    fn run(&self, taken: Taken<Delivery>) -> Fut {
        (self.0)(first_of(taken))
    }

    fn on_error(&self, record: &TakenRecord<'_, Delivery>, error: &dyn HandlerError) -> Outcome {
        policy(self.1.as_ref(), record, error)
    }
}

/// Calls a function with a batch of records.
pub(crate) struct InBatches<F>(pub(crate) F, pub(crate) Option<ErrorPolicy>);

impl<F, Fut> Handler<Delivery> for InBatches<F>
where
    F: Fn(Vec<Record>) -> Fut,
    Fut: Future<Output: IntoOutcomes>,
{
    type Run = Fut;

    fn run(&self, taken: Taken<Delivery>) -> Fut {
        (self.0)(records_of(&taken))
    }

    fn on_error(&self, record: &TakenRecord<'_, Delivery>, error: &dyn HandlerError) -> Outcome {
        policy(self.1.as_ref(), record, error)
    }
}

/// Calls a plain function, which may block, with one record at a time.
#[cfg(feature = "runtime")]
pub(crate) struct Blocking<F, R>(
    pub(crate) F,
    pub(crate) Option<ErrorPolicy>,
    pub(crate) PhantomData<fn() -> R>,
);

#[cfg(feature = "runtime")]
impl<F, R> Handler<Delivery> for Blocking<F, R>
where
    F: Fn(Record) -> R + Send + Sync + 'static,
    R: IntoOutcome + 'static,
{
    type Run = std::future::Ready<R>;

    fn run(&self, taken: Taken<Delivery>) -> Self::Run {
        std::future::ready((self.0)(first_of(taken)))
    }

    fn on_error(&self, record: &TakenRecord<'_, Delivery>, error: &dyn HandlerError) -> Outcome {
        policy(self.1.as_ref(), record, error)
    }
}

fn policy(
    policy: Option<&ErrorPolicy>,
    record: &TakenRecord<'_, Delivery>,
    error: &dyn HandlerError,
) -> Outcome {
    match policy {
        Some(policy) => policy(&record_of(record), error),
        None => Outcome::failed(error.to_string()),
    }
}

fn first_of(taken: Taken<Delivery>) -> Record {
    let (parcel, index) = taken.first;
    Record::new(parcel, index, taken.tried, taken.lane)
}

fn record_of(record: &TakenRecord<'_, Delivery>) -> Record {
    let parcel = Arc::clone(record.parcel);
    Record::new(parcel, record.index, record.tried.cloned(), record.lane)
}

fn records_of(taken: &Taken<Delivery>) -> Vec<Record> {
    taken.records().map(|record| record_of(&record)).collect()
}
