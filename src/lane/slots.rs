//! Where handler futures live: boxes that are used again, with catch-alls for panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::group::{RunResult, Stretch};
use super::outcome::{Handler, IntoOutcomes, Outcome, Outcomes, Taken};
use super::runner::Running;
use super::wake::{SlotWake, WakeList};
use crate::ids::LeaseId;
use crate::time::Now;

/// How a handler call ended.
pub(super) enum End {
    Outcomes(Outcomes),
    Panicked(String),
    Cancelled,
}

impl End {
    /// The result of each record, where it is the same for all.
    pub(super) fn result(&self) -> RunResult {
        match self {
            End::Outcomes(Outcomes::All(outcome)) => RunResult::Outcome(outcome.clone()),
            End::Outcomes(Outcomes::Each(_)) => RunResult::Outcome(Outcome::Retry),
            End::Panicked(words) => RunResult::Panicked(words.clone()),
            End::Cancelled => RunResult::Cancelled,
        }
    }
}

/// What became of a handler call at once.
pub(super) enum Started {
    /// Acked, all of it: the ordinary case, and the one that must cost nothing.
    Acked,
    Ended(End),
    /// [`Slots::keep`] must follow.
    Pending,
}

/// All slots of a Runner. One of them is *hot*: the next future goes there. A future that is ready
/// at once leaves it hot; one that is pending keeps it, and another becomes hot. So there are only
/// as many boxes as were ever pending at once, and a record that is ready at once allocates nothing.
pub(super) struct Slots<L, F> {
    slots: Vec<Slot<L, F>>,
    hot: u32,
    free: Vec<u32>,
    pending: usize,
    wakes: Arc<WakeList>,
}

struct Slot<L, F> {
    /// `None` inside while no future is there. The outer `None`: the box was given back.
    future: Option<Pin<Box<Option<F>>>>,
    waker: Waker,
    wake: Arc<SlotWake>,
    /// Whether a pending call is here: a late wake of an earlier one polls nothing.
    busy: bool,
    held: Vec<Stretch<L>>,
    since: Now,
}

/// Free slots that keep their boxes.
const BOXES_KEPT: usize = 64;

impl<L, F: Future<Output: IntoOutcomes>> Slots<L, F> {
    pub(super) fn new() -> Self {
        let mut slots = Slots {
            slots: Vec::new(),
            hot: 0,
            free: Vec::new(),
            pending: 0,
            wakes: Arc::new(WakeList::default()),
        };
        slots.hot = slots.add();
        slots
    }

    pub(super) fn wakes(&self) -> &WakeList {
        &self.wakes
    }

    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    /// Calls the handler and polls its future once, in the hot slot.
    pub(super) fn start<H: Handler<L, Run = F>>(
        &mut self,
        handler: &H,
        taken: Taken<L>,
    ) -> Started {
        let slot = &mut self.slots[self.hot as usize];
        let future = slot.future.get_or_insert_with(|| Box::pin(None));
        let polled = catch_unwind(AssertUnwindSafe(|| {
            future.as_mut().set(Some(handler.run(taken)));
            match poll_once(future.as_mut(), &slot.waker) {
                Poll::Pending => Started::Pending,
                Poll::Ready(Outcomes::All(Outcome::Ack)) => Started::Acked,
                Poll::Ready(outcomes) => Started::Ended(End::Outcomes(outcomes)),
            }
        }));
        match polled {
            Ok(started) => started,
            Err(panic) => Started::Ended(self.panicked(self.hot, panic)),
        }
    }

    /// The hot slot's future stays, with its records.
    pub(super) fn keep(&mut self, held: &mut Vec<Stretch<L>>, now: Now) {
        let slot = &mut self.slots[self.hot as usize];
        std::mem::swap(&mut slot.held, held);
        slot.busy = true;
        slot.since = now;
        self.pending += 1;
        self.hot = match self.free.pop() {
            Some(slot) => slot,
            None => self.add(),
        };
    }

    /// Polls a slot that was woken. None: it is pending still, or the wake came late.
    pub(super) fn poll(&mut self, index: u32) -> Option<End> {
        let slot = &mut self.slots[index as usize];
        slot.wake.clear();
        let future = slot.future.as_mut().filter(|_| slot.busy)?;
        let polled = catch_unwind(AssertUnwindSafe(|| poll_once(future.as_mut(), &slot.waker)));
        match polled {
            Ok(Poll::Pending) => None,
            Ok(Poll::Ready(outcomes)) => Some(End::Outcomes(outcomes)),
            Err(panic) => Some(self.panicked(index, panic)),
        }
    }

    /// Drops the future of a slot before its end.
    pub(super) fn drop_future(&mut self, index: u32) {
        if let Some(future) = &mut self.slots[index as usize].future {
            let dropped = catch_unwind(AssertUnwindSafe(|| future.as_mut().set(None)));
            if let Err(panic) = dropped {
                words_of(panic);
            }
        }
    }

    /// A pending call has ended: its slot is free. Gives its records.
    pub(super) fn free(&mut self, index: u32) -> Vec<Stretch<L>> {
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.busy);
        slot.busy = false;
        self.pending -= 1;
        if self.free.len() >= BOXES_KEPT {
            slot.future = None;
        }
        self.free.push(index);
        std::mem::take(&mut slot.held)
    }

    /// Gives a slot its buffer back.
    pub(super) fn keep_buffer(&mut self, index: u32, buffer: Vec<Stretch<L>>) {
        debug_assert!(buffer.is_empty());
        self.slots[index as usize].held = buffer;
    }

    /// Pending slots with a record of `lease`.
    pub(super) fn holding(&self, lease: LeaseId) -> Vec<u32> {
        let holds = |s: &Slot<L, F>| s.held.iter().any(|r| r.parcel.lease.id() == lease);
        self.busy_where(holds)
    }

    pub(super) fn all_pending(&self) -> Vec<u32> {
        self.busy_where(|_| true)
    }

    pub(super) fn oldest(&self) -> Option<Running> {
        let busy = self.slots.iter().filter(|slot| slot.busy);
        let oldest = busy.min_by_key(|slot| slot.since)?;
        let first = oldest.held.first()?;
        Some(Running {
            lease: first.parcel.lease.id(),
            ordinal: first.ordinal(),
            lane: first.lane,
            since: oldest.since,
        })
    }

    fn busy_where(&self, is: impl Fn(&Slot<L, F>) -> bool) -> Vec<u32> {
        let all = self.slots.iter().zip(0..);
        all.filter(|(slot, _)| slot.busy && is(slot))
            .map(|(_, index)| index)
            .collect()
    }

    fn add(&mut self) -> u32 {
        let index = self.slots.len() as u32;
        let wake = SlotWake::new(index, &self.wakes);
        self.slots.push(Slot {
            future: None,
            waker: Waker::from(Arc::clone(&wake)),
            wake,
            busy: false,
            held: Vec::new(),
            since: Now(0),
        });
        index
    }

    fn panicked(&mut self, index: u32, panic: Box<dyn Any + Send>) -> End {
        self.drop_future(index);
        End::Panicked(words_of(panic))
    }
}

/// Polls the future that is there, and drops it when it is ready.
fn poll_once<F: Future<Output: IntoOutcomes>>(
    mut future: Pin<&mut Option<F>>,
    waker: &Waker,
) -> Poll<Outcomes> {
    let mut cx = Context::from_waker(waker);
    let Some(running) = future.as_mut().as_pin_mut() else {
        // Only a slot with a future is polled; to say "pending" for ever would lose the record.
        return Poll::Ready(Outcomes::All(Outcome::Retry));
    };
    let polled = running.poll(&mut cx).map(IntoOutcomes::into_outcomes);
    if polled.is_ready() {
        future.set(None);
    }
    polled
}

/// A panic's words. Its payload may panic again when it is dropped.
fn words_of(panic: Box<dyn Any + Send>) -> String {
    let words = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(words), _) => (*words).to_owned(),
        (None, Some(words)) => words.clone(),
        (None, None) => "a panic without words".to_owned(),
    };
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
    words
}
