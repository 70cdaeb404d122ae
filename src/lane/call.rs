//! One handler call: what it takes, and whether it took too long.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::group::Stretch;
use super::outcome::{Handler, HandlerError, Outcomes, Taken, TakenRange, TakenRecord, TimedOut};
use super::slots::{End, Slots, Started, ask, guarded};
use crate::time::Now;

/// A clock that the driver lends; see [`RunnerConfig::clock`](super::RunnerConfig::clock).
#[derive(Clone)]
pub struct NowFn(pub Arc<dyn Fn() -> Now + Send + Sync>);

impl fmt::Debug for NowFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NowFn")
    }
}

/// Calls the handler with one record.
pub(super) fn start_one<L, H: Handler<L>>(
    (slots, handler): (&mut Slots<L, H::Run>, &H),
    limit: (Option<Duration>, Option<&NowFn>),
    record: &TakenRecord<'_, L>,
) -> Started {
    let taken = Taken {
        first: (Arc::clone(record.parcel), record.index),
        tried: record.tried.cloned(),
        lane: record.lane,
        rest: Vec::new(),
    };
    let mut on_error = |error: &dyn HandlerError| Outcomes::All(handler.on_error(record, error));
    if limit.1.is_none() {
        return slots.start(handler, taken, &mut on_error);
    }
    let began = limit.1.map(|clock| (clock.0)());
    let started = slots.start(handler, taken, &mut on_error);
    match took_too_long(began, limit, &started) {
        Some(error) => Started::Ended(End::TimedOut(guarded(&error, &mut on_error))),
        None => started,
    }
}

/// Whether a call that has ended took longer than it may. A panic stays one.
fn took_too_long(
    began: Option<Now>,
    (longest, clock): (Option<Duration>, Option<&NowFn>),
    started: &Started,
) -> Option<TimedOut> {
    let ended = matches!(started, Started::Acked | Started::Ended(End::Outcomes(_)));
    let longest = longest.filter(|_| ended)?;
    let took = (clock?.0)().since(began?);
    (took > longest).then_some(TimedOut(longest))
}

/// Calls the handler with what is held. None: nothing is.
pub(super) fn start_held<L, H: Handler<L>>(
    slots: &mut Slots<L, H::Run>,
    handler: &H,
    limit: (Option<Duration>, Option<&NowFn>),
    held: &[Stretch<L>],
) -> Option<Started> {
    let (first, others) = held.split_first()?;
    let mut rest = Vec::new();
    if first.len > 1 {
        rest.push(TakenRange {
            parcel: Arc::clone(&first.parcel),
            first: first.index + 1,
            len: first.len - 1,
            tried: None,
            lane: first.lane,
        });
    }
    rest.extend(others.iter().map(|s| TakenRange {
        parcel: Arc::clone(&s.parcel),
        first: s.index,
        len: s.len,
        tried: s.tried.clone(),
        lane: s.lane,
    }));
    let taken = Taken {
        first: (Arc::clone(&first.parcel), first.index),
        tried: first.tried.clone(),
        lane: first.lane,
        rest,
    };
    let mut on_error = |error: &dyn HandlerError| ask(handler, held, error);
    let began = limit.1.map(|clock| (clock.0)());
    let started = slots.start(handler, taken, &mut on_error);
    Some(match took_too_long(began, limit, &started) {
        Some(error) => Started::Ended(End::TimedOut(guarded(&error, &mut on_error))),
        None => started,
    })
}
