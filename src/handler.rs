//! What a user hands over: functions of a record or of a batch, and what they may return.

use crate::lane::{Handler, IntoOutcome, Taken};
#[cfg(feature = "runtime")]
use crate::lane::{IntoOutcomes, Parcel};
use crate::record::{Delivery, Record};
use std::future::Future;
#[cfg(feature = "runtime")]
use std::{marker::PhantomData, sync::Arc};

/// A handler that calls `f` with one record at a time: what [`Subscription::run`] makes of a
/// function, for drivers of an [`Engine`](crate::engine::Engine) other than the tokio shell.
///
/// [`Subscription::run`]: https://docs.rs/laneway
pub fn one_by_one<F, Fut>(f: F) -> impl Handler<Delivery, Run = Fut>
where
    F: Fn(Record) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    OneByOne(f)
}

/// Calls a function with one record at a time.
pub(crate) struct OneByOne<F>(pub(crate) F);

impl<F, Fut> Handler<Delivery> for OneByOne<F>
where
    F: Fn(Record) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    type Run = Fut;

    fn run(&self, taken: Taken<Delivery>) -> Fut {
        (self.0)(first_of(taken))
    }
}

/// Calls a function with a batch of records.
#[cfg(feature = "runtime")]
pub(crate) struct InBatches<F>(pub(crate) F);

#[cfg(feature = "runtime")]
impl<F, Fut> Handler<Delivery> for InBatches<F>
where
    F: Fn(Vec<Record>) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcomes,
{
    type Run = Fut;

    fn run(&self, taken: Taken<Delivery>) -> Fut {
        (self.0)(records_of(&taken))
    }
}

/// Calls a plain function, which may block, with one record at a time.
#[cfg(feature = "runtime")]
pub(crate) struct Blocking<F, R>(pub(crate) F, pub(crate) PhantomData<fn() -> R>);

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
}

fn first_of(taken: Taken<Delivery>) -> Record {
    let (parcel, index) = taken.first;
    Record::new(parcel, index, taken.attempt + 1, taken.lane)
}

#[cfg(feature = "runtime")]
fn records_of(taken: &Taken<Delivery>) -> Vec<Record> {
    let mut attempt = taken.attempt + 1;
    let record = |(parcel, index): (&Arc<Parcel<Delivery>>, u32)| {
        // A record that failed before leads a batch; what follows it runs for the first time.
        Record::new(
            parcel.clone(),
            index,
            std::mem::replace(&mut attempt, 1),
            taken.lane,
        )
    };
    taken.records().map(record).collect()
}
