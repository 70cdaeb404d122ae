//! Where handler futures live: boxes that are used again, with catch-alls for panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use std::time::Duration;

use super::group::{RunResult, Stretch};
use super::outcome::{
    Handler, HandlerError, IntoOutcomes, Outcome, Outcomes, Panicked, Taken, TimedOut,
};
use super::wake::{SlotWake, WakeList};
use super::watch::{Board, Running, attempt_of};
use crate::ids::LeaseId;
use crate::time::Now;

/// How a handler call ended.
pub(super) enum End {
    Outcomes(Outcomes),
    /// With these words, which the user's policy made this of.
    Panicked(String, Outcomes),
    TimedOut(Outcomes),
    Cancelled,
}

/// Asks the user's policy what an error means for each record of a call.
pub(super) type OnError<'a> = &'a mut dyn FnMut(&dyn HandlerError) -> Outcomes;

impl End {
    /// The result of a record that came to this outcome.
    pub(super) fn result(&self, outcome: Outcome) -> RunResult {
        match self {
            End::Outcomes(_) => RunResult::Outcome(outcome),
            End::Panicked(words, _) => RunResult::Panicked {
                words: words.clone(),
                then: outcome,
            },
            End::TimedOut(_) => RunResult::TimedOut { then: outcome },
            End::Cancelled => RunResult::Cancelled,
        }
    }

    /// Takes the outcomes out.
    pub(super) fn outcomes(&mut self) -> Outcomes {
        let all = match self {
            End::Outcomes(outcomes) | End::Panicked(_, outcomes) | End::TimedOut(outcomes) => {
                outcomes
            }
            End::Cancelled => return Outcomes::All(Outcome::Retry),
        };
        std::mem::replace(all, Outcomes::All(Outcome::Retry))
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
    /// Pending slots in the order in which they began, as a list through the slots.
    oldest: u32,
    newest: u32,
    wakes: Arc<WakeList>,
    board: Arc<Board>,
}

const NIL: u32 = u32::MAX;

struct Slot<L, F> {
    /// `None` inside while no future is there. The outer `None`: the box was given back.
    future: Option<Pin<Box<Option<F>>>>,
    waker: Waker,
    wake: Arc<SlotWake>,
    /// Whether a pending call is here: a late wake of an earlier one polls nothing.
    busy: bool,
    held: Vec<Stretch<L>>,
    since: Now,
    /// The slots that began just before and after, while it is pending.
    before: u32,
    after: u32,
}

/// Free slots that keep their boxes.
const BOXES_KEPT: usize = 64;

impl<L, F: Future<Output: IntoOutcomes>> Slots<L, F> {
    pub(super) fn new(board: Arc<Board>) -> Self {
        let mut slots = Slots {
            slots: Vec::new(),
            hot: 0,
            free: Vec::new(),
            pending: 0,
            oldest: NIL,
            newest: NIL,
            wakes: Arc::new(WakeList::default()),
            board,
        };
        slots.hot = slots.add();
        slots
    }

    pub(super) fn wakes(&self) -> &WakeList {
        &self.wakes
    }

    /// Where others see what runs.
    pub(super) fn board(&self) -> &Board {
        &self.board
    }

    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    /// Calls the handler and polls its future once, in the hot slot.
    pub(super) fn start<H: Handler<L, Run = F>>(
        &mut self,
        handler: &H,
        taken: Taken<L>,
        on_error: OnError<'_>,
    ) -> Started {
        let slot = &mut self.slots[self.hot as usize];
        let future = slot.future.get_or_insert_with(|| Box::pin(None));
        let polled = catch_unwind(AssertUnwindSafe(|| {
            future.as_mut().set(Some(handler.run(taken)));
            match poll_once(future.as_mut(), &slot.waker, on_error) {
                Poll::Pending => Started::Pending,
                Poll::Ready(Outcomes::All(Outcome::Ack)) => Started::Acked,
                Poll::Ready(outcomes) => Started::Ended(End::Outcomes(outcomes)),
            }
        }));
        match polled {
            Ok(started) => started,
            Err(panic) => Started::Ended(self.panicked(self.hot, panic, on_error)),
        }
    }

    /// The hot slot's future stays, with its records.
    pub(super) fn keep(&mut self, held: &mut Vec<Stretch<L>>, now: Now) {
        let slot = &mut self.slots[self.hot as usize];
        std::mem::swap(&mut slot.held, held);
        slot.busy = true;
        slot.since = now;
        if let Some(first) = slot.held.first() {
            self.board.keeps(self.hot, first, now);
        }
        (slot.before, slot.after) = (self.newest, NIL);
        match self.newest {
            NIL => self.oldest = self.hot,
            newest => self.slots[newest as usize].after = self.hot,
        }
        self.newest = self.hot;
        self.pending += 1;
        self.hot = match self.free.pop() {
            Some(slot) => slot,
            None => self.add(),
        };
    }

    /// Polls a slot that was woken. None: it is pending still, or the wake came late.
    pub(super) fn poll<H: Handler<L, Run = F>>(&mut self, index: u32, handler: &H) -> Option<End> {
        let slot = &mut self.slots[index as usize];
        slot.wake.clear();
        let future = slot.future.as_mut().filter(|_| slot.busy)?;
        let held = &slot.held;
        let on_error: OnError<'_> = &mut |error| ask(handler, held, error);
        let polled = catch_unwind(AssertUnwindSafe(|| {
            poll_once(future.as_mut(), &slot.waker, on_error)
        }));
        match polled {
            Ok(Poll::Pending) => None,
            Ok(Poll::Ready(outcomes)) => Some(End::Outcomes(outcomes)),
            Err(panic) => {
                let held = std::mem::take(&mut self.slots[index as usize].held);
                let end = self.panicked(index, panic, &mut |error| ask(handler, &held, error));
                self.slots[index as usize].held = held;
                Some(end)
            }
        }
    }

    /// The pending call that has run longest, if it has run for `longest`: its future is dropped.
    pub(super) fn time_out<H: Handler<L, Run = F>>(
        &mut self,
        now: Now,
        longest: Duration,
        handler: &H,
    ) -> Option<(u32, End)> {
        let index = self.oldest;
        let slot = self.slots.get(index as usize)?;
        if now < slot.since + longest {
            return None;
        }
        self.drop_future(index);
        let held = &self.slots[index as usize].held;
        let error = TimedOut(longest);
        let outcomes = guarded(&error, &mut |error| ask(handler, held, error));
        Some((index, End::TimedOut(outcomes)))
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
        let (before, after) = (slot.before, slot.after);
        match before {
            NIL => self.oldest = after,
            before => self.slots[before as usize].after = after,
        }
        match after {
            NIL => self.newest = before,
            after => self.slots[after as usize].before = before,
        }
        self.board.frees(index);
        self.pending -= 1;
        let slot = &mut self.slots[index as usize];
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
        let oldest = self.slots.get(self.oldest as usize)?;
        let first = oldest.held.first()?;
        Some(Running {
            lease: first.parcel.lease.id(),
            ordinal: first.ordinal(),
            lane: first.lane,
            attempt: attempt_of(first.tried.as_deref()),
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
            before: NIL,
            after: NIL,
        });
        index
    }

    fn panicked(&mut self, index: u32, panic: Box<dyn Any + Send>, on_error: OnError<'_>) -> End {
        self.drop_future(index);
        let panic = Panicked(words_of(panic));
        let outcomes = guarded(&panic, on_error);
        End::Panicked(panic.0, outcomes)
    }
}

/// What the user's policy makes of an error, for each record of a call.
pub(super) fn ask<L, H: Handler<L>>(
    handler: &H,
    held: &[Stretch<L>],
    error: &dyn HandlerError,
) -> Outcomes {
    let mut all = held.iter().flat_map(Stretch::records);
    let (first, second) = (all.next(), all.next());
    match (first, second) {
        (Some(first), None) => Outcomes::All(handler.on_error(&first, error)),
        (first, second) => {
            let all = first.into_iter().chain(second).chain(all);
            Outcomes::Each(all.map(|r| handler.on_error(&r, error)).collect())
        }
    }
}

/// Asks the policy where nothing else catches its panic.
pub(super) fn guarded(error: &dyn HandlerError, on_error: OnError<'_>) -> Outcomes {
    catch_unwind(AssertUnwindSafe(|| on_error(error))).unwrap_or_else(|panic| {
        words_of(panic);
        Outcomes::All(Outcome::failed(error.to_string()))
    })
}

/// Polls the future that is there, and drops it when it is ready.
fn poll_once<F: Future<Output: IntoOutcomes>>(
    mut future: Pin<&mut Option<F>>,
    waker: &Waker,
    on_error: OnError<'_>,
) -> Poll<Outcomes> {
    let mut cx = Context::from_waker(waker);
    let Some(running) = future.as_mut().as_pin_mut() else {
        // Only a slot with a future is polled; to say "pending" for ever would lose the record.
        return Poll::Ready(Outcomes::All(Outcome::Retry));
    };
    let polled = running
        .poll(&mut cx)
        .map(|done| done.into_outcomes_by(on_error));
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
