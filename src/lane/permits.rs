//! "At most n at once", over any number of executors.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use super::group::Age;

/// The cap on records that run at once, shared by the Runners of a subscription.
///
/// A Runner holds a permit while it starts records and one for each that is pending; records that
/// are ready at once never touch it. While nobody waits a permit is one atomic step; of those who
/// wait the one with the oldest record is served first. In turns would be worse: an executor with
/// twelve lanes would get no more than one with eight, and have lanes left over in the end.
#[derive(Debug)]
pub struct Permits {
    /// The cap above, what is taken below, 32 bits each. Taken: held by Runners, or granted to a
    /// seat that has not fetched it yet.
    state: AtomicU64,
    /// How long the queue is.
    waiting: AtomicU32,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    seats: Vec<Place>,
    /// Seats that wait, each at most once, in no order: there is one for each executor.
    queue: Vec<(Age, u32)>,
}

#[derive(Debug, Default)]
struct Place {
    waker: Option<Waker>,
    waiting: bool,
    granted: bool,
}

impl Permits {
    /// At most `limit` at once; none at all with zero.
    #[must_use]
    pub fn new(limit: u32) -> Arc<Self> {
        Arc::new(Permits {
            state: AtomicU64::new(u64::from(limit) << 32),
            waiting: AtomicU32::new(0),
            inner: Mutex::default(),
        })
    }

    /// Changes the cap. Records that run already are not stopped.
    pub fn set_limit(&self, limit: u32) {
        let with = |state: u64| Some((u64::from(limit) << 32) | (state & TAKEN));
        // It never says no.
        let _ = self
            .state
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, with);
        let woken = self.hand_out(&mut self.lock());
        woken.wake();
    }

    /// The cap.
    #[must_use]
    pub fn limit(&self) -> u32 {
        (self.state.load(Ordering::Relaxed) >> 32) as u32
    }

    /// How many are taken now.
    #[must_use]
    pub fn taken(&self) -> u32 {
        (self.state.load(Ordering::Relaxed) & TAKEN) as u32
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_take(&self) -> bool {
        let one_more = |state: u64| (state & TAKEN < state >> 32).then(|| state + 1);
        self.state
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more)
            .is_ok()
    }

    /// Step 1: a seat finds none free. Step 2: another gives one back, and sees nobody waiting.
    /// Step 3: the seat stands in the queue, for ever. So the seat looks again after it stands
    /// there, and who gives back looks at the queue after giving back: one of them sees the other.
    fn give_back(&self) {
        self.state.fetch_sub(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let woken = self.hand_out(&mut self.lock());
            woken.wake();
        }
    }

    /// Hands out what is free to those that wait.
    fn hand_out(&self, inner: &mut Inner) -> Woken {
        let mut woken = Vec::new();
        while let Some(oldest) = inner.oldest() {
            if !self.try_take() {
                break;
            }
            let (_, seat) = inner.queue.swap_remove(oldest);
            let place = &mut inner.seats[seat as usize];
            (place.waiting, place.granted) = (false, true);
            woken.extend(place.waker.take());
        }
        self.note_waiting(inner);
        Woken(woken)
    }

    fn note_waiting(&self, inner: &Inner) {
        let waiting = u32::try_from(inner.queue.len()).unwrap_or(u32::MAX);
        self.waiting.store(waiting, Ordering::SeqCst);
    }
}

impl Inner {
    /// Which place in the queue is next.
    fn oldest(&self) -> Option<usize> {
        let places = self.queue.iter().enumerate();
        places.min_by_key(|(_, waits)| **waits).map(|(at, _)| at)
    }
}

const TAKEN: u64 = u32::MAX as u64;

/// Wakers are foreign code: they are called when no lock is held any more.
#[must_use]
struct Woken(Vec<Waker>);

impl Woken {
    fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

/// One Runner's place at the permits.
#[derive(Debug)]
pub(super) struct Seat {
    permits: Arc<Permits>,
    number: u32,
    /// Whether the last call was refused: the seat waits, or was granted one since.
    asked: bool,
}

impl Seat {
    pub(super) fn new(permits: &Arc<Permits>) -> Self {
        let mut inner = permits.lock();
        inner.seats.push(Place::default());
        let number = inner.seats.len() as u32 - 1;
        drop(inner);
        Seat {
            permits: Arc::clone(permits),
            number,
            asked: false,
        }
    }

    /// A permit for a record of this age, or a wake when there is one for this seat.
    pub(super) fn acquire(&mut self, age: Age, waker: &Waker) -> bool {
        let permits = &self.permits;
        if !self.asked && permits.waiting.load(Ordering::SeqCst) == 0 && permits.try_take() {
            return true;
        }
        let mut inner = permits.lock();
        let nobody_waits = inner.queue.is_empty();
        let place = &mut inner.seats[self.number as usize];
        if std::mem::take(&mut place.granted) || (nobody_waits && permits.try_take()) {
            self.asked = false;
            return true;
        }
        place.waker = Some(waker.clone());
        if std::mem::replace(&mut place.waiting, true) {
            // What it would start may be older than what it waited with.
            let mut places = inner.queue.iter_mut();
            if let Some(place) = places.find(|(_, seat)| *seat == self.number) {
                place.0 = age;
            }
        } else {
            inner.queue.push((age, self.number));
            permits.note_waiting(&inner);
        }
        let woken = permits.hand_out(&mut inner);
        let granted = std::mem::take(&mut inner.seats[self.number as usize].granted);
        drop(inner);
        woken.wake();
        self.asked = !granted;
        granted
    }

    pub(super) fn release(&self) {
        self.permits.give_back();
    }

    /// No longer waits: what was granted meanwhile goes to the next.
    pub(super) fn leave(&mut self) {
        if !std::mem::take(&mut self.asked) {
            return;
        }
        let mut inner = self.permits.lock();
        inner.queue.retain(|(_, seat)| *seat != self.number);
        self.permits.note_waiting(&inner);
        let place = &mut inner.seats[self.number as usize];
        place.waiting = false;
        let waker = place.waker.take();
        let granted = std::mem::take(&mut place.granted);
        drop(inner);
        drop(waker);
        if granted {
            self.permits.give_back();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Now;

    #[test]
    fn the_oldest_record_is_served_first() {
        let permits = Permits::new(1);
        let mut seats = [(); 3].map(|()| Seat::new(&permits));
        let waker = Waker::noop();
        assert!(seats[0].acquire((Now(0), 0), waker));
        assert!(!seats[1].acquire((Now(9), 0), waker));
        assert!(!seats[2].acquire((Now(3), 7), waker));
        seats[0].release();
        assert!(!seats[0].acquire((Now(3), 8), waker));
        assert!(!seats[1].acquire((Now(9), 0), waker));
        assert!(seats[2].acquire((Now(3), 7), waker));
        // While it waits a seat may come upon an older record.
        assert!(!seats[1].acquire((Now(2), 0), waker));
        seats[2].release();
        assert!(seats[1].acquire((Now(2), 0), waker));
        seats[1].release();
        assert!(seats[0].acquire((Now(3), 8), waker));
        seats[0].release();
        assert_eq!(
            (permits.taken(), permits.waiting.load(Ordering::SeqCst)),
            (0, 0)
        );
    }
}
