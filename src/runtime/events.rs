//! A subscription's events, for whoever wants to read them one by one.

use crate::engine::Event;
use futures_core::Stream;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

/// Events that one [`Events`] holds for its reader.
pub const EVENTS_MAX: usize = 1024;

/// What a running subscription has to tell, one [`Event`] after the other: a [`Stream`]. From
/// [`Running::events`](crate::Running::events).
///
/// It holds [`EVENTS_MAX`] events from the moment it was made. Where it is not read for so long
/// that more come, the oldest are dropped and counted: see [`Events::missed`]. It never holds the
/// subscription up. It ends when the subscription does.
#[derive(Debug)]
pub struct Events {
    queue: Arc<Queue>,
}

impl Events {
    /// The next event; `None` once the subscription is over and all has been read.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| self.queue.poll(cx)).await
    }

    /// How many events were dropped because nobody read them in time.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.queue.lock().missed
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.queue.poll(cx)
    }
}

#[derive(Debug, Default)]
struct Queue {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    events: VecDeque<Event>,
    missed: u64,
    over: bool,
    reader: Option<Waker>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut inner = self.lock();
        match inner.events.pop_front() {
            Some(event) => Poll::Ready(Some(event)),
            None if inner.over => Poll::Ready(None),
            None => {
                let old = inner.reader.replace(cx.waker().clone());
                drop(inner);
                drop(old);
                Poll::Pending
            }
        }
    }

    fn change(&self, with: impl FnOnce(&mut Inner)) {
        let mut inner = self.lock();
        with(&mut inner);
        let reader = inner.reader.take();
        drop(inner);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

/// Where a driver tells its events; handles make readers of it.
#[derive(Debug, Default)]
pub(crate) struct EventHub {
    readers: Mutex<Readers>,
}

#[derive(Debug, Default)]
struct Readers {
    all: Vec<Weak<Queue>>,
    over: bool,
}

impl EventHub {
    /// A reader of what comes from now on.
    pub(crate) fn reader(&self) -> Events {
        let queue = Arc::new(Queue::default());
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        queue.lock().over = readers.over;
        readers.all.retain(|reader| reader.strong_count() > 0);
        readers.all.push(Arc::downgrade(&queue));
        Events { queue }
    }

    pub(crate) fn tell(&self, event: &Event) {
        self.each(|queue| {
            queue.change(|inner| {
                if inner.events.len() >= EVENTS_MAX {
                    inner.events.pop_front();
                    inner.missed += 1;
                }
                inner.events.push_back(event.clone());
            });
        });
    }

    /// Nothing more will be told.
    pub(crate) fn end(&self) {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.over = true;
        drop(readers);
        self.each(|queue| queue.change(|inner| inner.over = true));
    }

    fn each(&self, f: impl FnMut(Arc<Queue>)) {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.all.retain(|reader| reader.strong_count() > 0);
        let all: Vec<_> = readers.all.iter().filter_map(Weak::upgrade).collect();
        // A reader's waker is foreign code.
        drop(readers);
        all.into_iter().for_each(f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TopicPartition;

    fn lost(partition: i32) -> Event {
        Event::Lost {
            partition: TopicPartition::new("t", partition),
        }
    }

    fn read(events: &mut Events) -> Option<i32> {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(events).poll_next(&mut cx) {
            Poll::Ready(Some(Event::Lost { partition })) => Some(partition.partition),
            _ => None,
        }
    }

    #[test]
    fn a_reader_that_does_not_read_loses_the_oldest_and_is_told_how_many() {
        let hub = EventHub::default();
        let mut slow = hub.reader();
        let n = EVENTS_MAX as i32 + 10;
        (0..n).for_each(|i| hub.tell(&lost(i)));
        let mut late = hub.reader();
        assert_eq!(slow.missed(), 10);
        assert_eq!(read(&mut slow), Some(10), "the oldest went");
        assert_eq!(read(&mut late), None, "told from now on");
        hub.tell(&lost(7));
        assert_eq!((read(&mut late), late.missed()), (Some(7), 0));
        drop(late);
        hub.tell(&lost(8));
        assert_eq!(hub.readers.lock().unwrap().all.len(), 1);
        hub.end();
        let rest = std::iter::from_fn(|| read(&mut slow)).count();
        assert_eq!((rest, slow.missed()), (EVENTS_MAX, 11));
        assert!(slow.queue.lock().over);
    }
}
