//! Wakers of pending slots. A slot is in the list at most once, so the list is no longer than there
//! are slots, and the executor is woken once for however many slots.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

#[derive(Debug, Default)]
pub(super) struct WakeList {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    woken: Vec<u32>,
    /// Whom to wake when the list is no longer empty. Taken when used: every poll leaves a new one.
    executor: Option<Waker>,
}

impl WakeList {
    /// Moves the woken slots into `into`, and wakes `executor` for the next one.
    ///
    /// Both under one lock: a wake before it is in `into`, a wake after it finds the new waker.
    pub(super) fn collect(&self, executor: &Waker, into: &mut VecDeque<u32>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        into.extend(inner.woken.drain(..));
        match &inner.executor {
            Some(known) if known.will_wake(executor) => {}
            _ => {
                let old = inner.executor.replace(executor.clone());
                drop(inner);
                // A waker's drop is foreign code: not under the lock.
                drop(old);
            }
        }
    }
}

/// One slot's waker, made once and used for every future that the slot will hold.
#[derive(Debug)]
pub(super) struct SlotWake {
    slot: u32,
    queued: AtomicBool,
    list: Arc<WakeList>,
}

impl SlotWake {
    pub(super) fn new(slot: u32, list: &Arc<WakeList>) -> Arc<Self> {
        Arc::new(SlotWake {
            slot,
            queued: AtomicBool::new(false),
            list: Arc::clone(list),
        })
    }

    /// From now on a wake lists the slot again. Comes before its poll: a wake during the poll must
    /// not be lost.
    pub(super) fn clear(&self) {
        self.queued.store(false, Ordering::Release);
    }
}

impl Wake for SlotWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut inner = self
            .list
            .inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        inner.woken.push(self.slot);
        let executor = inner.executor.take();
        drop(inner);
        if let Some(executor) = executor {
            executor.wake();
        }
    }
}
