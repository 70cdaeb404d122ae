//! A handler out of a plain function, for sources of any kind.

use std::future::Future;
use std::sync::Arc;

use super::group::Parcel;
use super::outcome::{Handler, IntoOutcome, Taken};
use super::watch::attempt_of;

/// A handler that calls `f` with one record at a time: its parcel, its index there, and which run
/// of it this is, from 1. With a [`RunnerConfig`](super::RunnerConfig) whose batches are of one.
///
/// ```
/// use laneway::ids::{ExecutorId, LeaseId};
/// use laneway::lane::*;
/// use laneway::time::Now;
/// use std::sync::Arc;
/// use std::task::{Context, Poll, Waker};
///
/// struct Sum(u64);
/// impl Sink for Sum {
///     fn settled(&mut self, _: &Arc<Lease>, ranges: impl Iterator<Item = (u64, u64)>) {
///         self.0 += ranges.map(|(_, len)| len).sum::<u64>();
///     }
///     fn note(&mut self, note: Note) {
///         println!("{note:?}");
///     }
/// }
///
/// let config = LanesConfig::new(Mode::Fixed { lanes: 4 });
/// let (mut lanes, mut settled) = (Lanes::new(&config), Sum(0));
/// let handler = each(|words: Arc<Parcel<Vec<&str>>>, at, attempt| async move {
///     println!("{} (attempt {attempt})", words.load[at as usize]);
/// });
/// let mut runner = Runner::new(handler, &config.runner());
///
/// let load = vec!["to", "be", "or", "not"];
/// let hasher = LaneHasher::new([7; 32]);
/// let keys: Vec<_> = load.iter().map(|word| hasher.key("", word.as_bytes())).collect();
/// let parcel = Parcel { lease: Lease::new(LeaseId(1)), first_ordinal: 0, taken_at: Now(0), len: 4, load };
/// lanes.deal(&Arc::new(parcel), Keys::Each(&keys));
///
/// let mut cx = Context::from_waker(Waker::noop());
/// while let Some((executor, group)) = lanes.poll_run(Now(0)) {
///     runner.give(group);
///     while let Poll::Ready(done) = runner.poll(&mut cx, Now(0), &mut || true) {
///         match done {
///             Done::Group(group) => lanes.take_back(Now(0), executor, group, &mut settled),
///             Done::Late(lates) => lanes.late(Now(0), executor, lates, &mut settled),
///         }
///     }
/// }
/// assert_eq!(settled.0, 4);
/// ```
pub fn each<L, F, Fut>(f: F) -> Each<F>
where
    F: Fn(Arc<Parcel<L>>, u32, u32) -> Fut,
    Fut: Future<Output: IntoOutcome>,
{
    Each(f)
}

/// What [`each`] makes.
#[derive(Clone, Debug)]
pub struct Each<F>(F);

impl<L, F, Fut> Handler<L> for Each<F>
where
    F: Fn(Arc<Parcel<L>>, u32, u32) -> Fut,
    Fut: Future<Output: IntoOutcome>,
{
    type Run = Fut;

    fn run(&self, taken: Taken<L>) -> Fut {
        let attempt = attempt_of(taken.tried.as_deref());
        let (parcel, index) = taken.first;
        (self.0)(parcel, index, attempt)
    }
}
