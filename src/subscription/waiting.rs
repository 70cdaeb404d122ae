//! Deliveries that wait to be taken.

use super::stream::Delivery;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// So many may wait before those that nobody waits for any more are looked for.
const SWEEP_MIN: usize = 64;

/// A way for deliveries, from handlers to whoever takes them.
///
/// As many handlers wait for a word as records may run at once, and each has one delivery here or
/// with the caller. A delivery whose handler has gone (its time-out has come, its lease has ended)
/// is never handed out, and is thrown away at the latest when as many wait again as were live at the
/// last look: so at most about twice as many wait as may run at once, and [`SWEEP_MIN`].
pub(super) fn deliveries() -> (Out, In) {
    let queue = Arc::new(Queue::default());
    (Out(queue.clone()), In(queue))
}

/// Where handlers put them. Its drop ends the stream.
pub(super) struct Out(Arc<Queue>);

/// Where they are taken. Its drop gives up what waits.
#[derive(Debug)]
pub(super) struct In(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Delivery>,
    /// When so many wait, look for those that are given up.
    sweep_at: usize,
    taker: Option<Waker>,
    /// No more will come.
    over: bool,
    /// Nobody takes any more.
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Out {
    pub(super) fn put(&self, delivery: Delivery) {
        let mut given_up = Vec::new();
        let mut inner = self.0.lock();
        if inner.closed {
            drop(inner);
            // That is its word.
            return drop(delivery);
        }
        if inner.waiting.len() >= inner.sweep_at.max(SWEEP_MIN) {
            for waiting in std::mem::take(&mut inner.waiting) {
                match waiting.is_given_up() {
                    true => given_up.push(waiting),
                    false => inner.waiting.push_back(waiting),
                }
            }
            inner.sweep_at = 2 * inner.waiting.len();
        }
        inner.waiting.push_back(delivery);
        let taker = inner.taker.take();
        drop(inner);
        drop(given_up);
        // A waker is foreign code.
        if let Some(taker) = taker {
            taker.wake();
        }
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.over = true;
        let taker = inner.taker.take();
        drop(inner);
        if let Some(taker) = taker {
            taker.wake();
        }
    }
}

impl In {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Delivery>> {
        let mut given_up = Vec::new();
        let mut inner = self.0.lock();
        let mut next = None;
        while let Some(delivery) = inner.waiting.pop_front() {
            match delivery.is_given_up() {
                true => given_up.push(delivery),
                false => {
                    next = Some(delivery);
                    break;
                }
            }
        }
        let mut old = None;
        let polled = match next {
            Some(delivery) => Poll::Ready(Some(delivery)),
            None if inner.over => Poll::Ready(None),
            None => {
                old = inner.taker.replace(cx.waker().clone());
                Poll::Pending
            }
        };
        drop(inner);
        drop((given_up, old));
        polled
    }
}

impl Drop for In {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.closed = true;
        let waiting = std::mem::take(&mut inner.waiting);
        drop(inner);
        // Each wakes its handler.
        drop(waiting);
    }
}
