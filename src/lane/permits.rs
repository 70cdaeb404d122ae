//! "At most n at once", over any number of executors.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

/// The cap on records that run at once, shared by the Runners of a subscription.
///
/// A Runner holds a permit while it starts records and one for each that is pending; records that
/// are ready at once never touch it. Who waits is served in turn, so that no executor takes all.
#[derive(Debug)]
pub struct Permits {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    limit: u32,
    /// Held by Runners, or granted to a seat that has not fetched it yet.
    taken: u32,
    seats: Vec<Place>,
    /// Seats that wait, each at most once.
    queue: VecDeque<u32>,
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
            inner: Mutex::new(Inner {
                limit,
                taken: 0,
                seats: Vec::new(),
                queue: VecDeque::new(),
            }),
        })
    }

    /// Changes the cap. Records that run already are not stopped.
    pub fn set_limit(&self, limit: u32) {
        self.change(|inner| inner.limit = limit);
    }

    /// How many are taken now.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.lock().taken
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something, hands out what has become free, and wakes who got it.
    fn change(&self, with: impl FnOnce(&mut Inner)) {
        let mut inner = self.lock();
        with(&mut inner);
        let mut woken = Vec::new();
        while inner.taken < inner.limit {
            let Some(seat) = inner.queue.pop_front() else {
                break;
            };
            inner.taken += 1;
            let place = &mut inner.seats[seat as usize];
            (place.waiting, place.granted) = (false, true);
            woken.extend(place.waker.take());
        }
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
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

    /// A permit, or a wake when there is one for this seat.
    pub(super) fn acquire(&mut self, waker: &Waker) -> bool {
        let mut inner = self.permits.lock();
        let nobody_waits = inner.queue.is_empty();
        let free = inner.taken < inner.limit;
        let place = &mut inner.seats[self.number as usize];
        if std::mem::take(&mut place.granted) {
            self.asked = false;
            return true;
        }
        if free && nobody_waits {
            inner.taken += 1;
            self.asked = false;
            return true;
        }
        place.waker = Some(waker.clone());
        if !std::mem::replace(&mut place.waiting, true) {
            inner.queue.push_back(self.number);
        }
        self.asked = true;
        false
    }

    pub(super) fn release(&self) {
        self.permits.change(|inner| inner.taken -= 1);
    }

    /// No longer waits: what was granted meanwhile goes to the next.
    pub(super) fn leave(&mut self) {
        if !std::mem::take(&mut self.asked) {
            return;
        }
        let number = self.number;
        self.permits.change(|inner| {
            inner.queue.retain(|seat| *seat != number);
            let place = &mut inner.seats[number as usize];
            place.waiting = false;
            place.waker = None;
            if std::mem::take(&mut place.granted) {
                inner.taken -= 1;
            }
        });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}
