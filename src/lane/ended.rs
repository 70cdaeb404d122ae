//! To be told that a lease is about to end.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use super::group::Lease;

/// Who waits for a lease's end: one entry for each [`Ended`] that is alive and has been polled.
#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Waiters {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake_all(&self) {
        let woken = std::mem::take(&mut self.lock().wakers);
        // A waker is foreign code: not under the lock.
        woken.into_values().for_each(Waker::wake);
    }

    fn register(&self, place: Option<u64>, waker: &Waker) -> u64 {
        let mut inner = self.lock();
        let place = place.unwrap_or_else(|| {
            inner.next += 1;
            inner.next
        });
        let old = inner.wakers.insert(place, waker.clone());
        drop(inner);
        drop(old);
        place
    }
}

/// Resolves when a lease is about to end, or has ended. From [`Lease::ended`].
///
/// ```
/// use laneway::ids::LeaseId;
/// use laneway::lane::Lease;
/// let lease = Lease::new(LeaseId(1));
/// let told = async move { lease.ended().await };
/// # drop(told);
/// ```
#[derive(Debug)]
#[must_use = "a future does nothing until it is polled"]
pub struct Ended {
    lease: Arc<Lease>,
    place: Option<u64>,
}

impl Ended {
    pub(super) fn new(lease: Arc<Lease>) -> Self {
        Ended { lease, place: None }
    }
}

impl Future for Ended {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if !self.lease.is_granted() {
            return Poll::Ready(());
        }
        let place = self.lease.waiters().register(self.place, cx.waker());
        self.place = Some(place);
        // Step 1: we see the lease granted. Step 2: it ends, and nobody is there to be woken. Step
        // 3: we register, too late. So look again; an end after this look finds the waker.
        match self.lease.is_granted() {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let waker = self.lease.waiters().lock().wakers.remove(&place);
            drop(waker);
        }
    }
}
