//! Scripted handlers and the runners that call them, in virtual time.

use crate::checks::{Book, Lane};
use laneway::handler::one_by_one;
use laneway::ids::TopicPartition;
use laneway::lane::{Handler, Runner, RunnerConfig};
use laneway::record::Delivery;
use laneway::time::Now;
use laneway::{Outcome, Record, RecordLease};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// One run of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handled {
    /// Which member ran it.
    pub member: usize,
    /// From where.
    pub partition: TopicPartition,
    /// Its offset.
    pub offset: i64,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Which attempt.
    pub attempt: u32,
    /// When it began.
    pub began: Now,
    /// When it ended; `None` while it runs or when its future was dropped.
    pub ended: Option<Now>,
}

/// What a scripted handler does with a record.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long it takes.
    pub takes: Duration,
    /// What it returns.
    pub outcome: Outcome,
    /// Whether it panics instead.
    pub panics: bool,
}

impl Plan {
    /// Acks after `takes`.
    #[must_use]
    pub fn ack(takes: Duration) -> Self {
        Plan {
            takes,
            outcome: Outcome::Ack,
            panics: false,
        }
    }

    /// Returns `outcome` at once.
    #[must_use]
    pub fn at_once(outcome: Outcome) -> Self {
        Plan {
            takes: Duration::ZERO,
            outcome,
            panics: false,
        }
    }
}

/// The function that plans each run: member, record.
pub type Script = Arc<dyn Fn(usize, &Record) -> Plan + Send + Sync>;

/// What says which lane a record is in, by the test's own reading of the settings.
pub(crate) type LaneOf = Arc<dyn Fn(&Record) -> Option<Lane> + Send + Sync>;

/// Handlers asleep: when each wants to be woken.
#[derive(Default)]
pub(crate) struct Timers {
    now: AtomicU64,
    asleep: Mutex<Vec<(Now, Waker)>>,
}

impl Timers {
    pub(crate) fn now(&self) -> Now {
        Now(self.now.load(Ordering::Relaxed))
    }

    pub(crate) fn set(&self, now: Now) {
        self.now.store(now.0, Ordering::Relaxed);
    }

    pub(crate) fn next(&self) -> Option<Now> {
        self.asleep.lock().unwrap().iter().map(|(at, _)| *at).min()
    }

    pub(crate) fn wake_due(&self) {
        let now = self.now();
        let mut due = Vec::new();
        self.asleep.lock().unwrap().retain(|(at, waker)| {
            let is_due = *at <= now;
            if is_due {
                due.push(waker.clone());
            }
            !is_due
        });
        due.into_iter().for_each(Waker::wake);
    }
}

struct Sleep {
    timers: Arc<Timers>,
    until: Now,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.timers.now() >= self.until {
            return Poll::Ready(());
        }
        self.timers
            .asleep
            .lock()
            .unwrap()
            .push((self.until, cx.waker().clone()));
        Poll::Pending
    }
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Polls one runner without naming its handler's type.
pub(crate) trait Executor {
    fn give(&mut self, group: laneway::engine::Group);
    fn recall(&mut self, lease: laneway::ids::LeaseId, what: laneway::lane::Recall);
    fn poll(&mut self, now: Now) -> Option<laneway::lane::Done<Delivery>>;
    /// When a call has run for as long as it may.
    fn next_deadline(&self) -> Option<Now>;
}

struct Task<H: Handler<Delivery>> {
    runner: Runner<Delivery, H>,
    flag: Arc<Flag>,
}

impl<H: Handler<Delivery>> Executor for Task<H> {
    fn give(&mut self, group: laneway::engine::Group) {
        self.runner.give(group);
        self.flag.0.store(true, Ordering::Release);
    }

    fn recall(&mut self, lease: laneway::ids::LeaseId, what: laneway::lane::Recall) {
        self.runner.recall(lease, what);
        self.flag.0.store(true, Ordering::Release);
    }

    fn next_deadline(&self) -> Option<Now> {
        self.runner.next_deadline()
    }

    fn poll(&mut self, now: Now) -> Option<laneway::lane::Done<Delivery>> {
        let due = self.runner.next_deadline().is_some_and(|at| at <= now);
        if !self.flag.0.swap(false, Ordering::AcqRel) && !due {
            return None;
        }
        let waker = Waker::from(self.flag.clone());
        match self
            .runner
            .poll(&mut Context::from_waker(&waker), now, &mut || true)
        {
            Poll::Ready(done) => {
                self.flag.0.store(true, Ordering::Release);
                Some(done)
            }
            Poll::Pending => None,
        }
    }
}

/// Says that a run is over, however it ends.
struct Running {
    book: Arc<Mutex<Book>>,
    timers: Arc<Timers>,
    index: usize,
    /// Of a last attempt: when its time is up, and the lease under which it is dropped then.
    last: Option<(Now, RecordLease)>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failed assertion elsewhere may have poisoned it; then nobody asks any more.
        if let Ok(mut book) = self.book.lock() {
            let now = self.timers.now();
            let dropped = |(at, lease): &(Now, RecordLease)| now >= *at && lease.counts();
            if self.last.as_ref().is_some_and(dropped) {
                book.end(self.index, now, true);
            }
            book.over(self.index, now);
        }
    }
}

/// A runner whose handlers do what `script` plans, and write into the book what they do. A record
/// that fails for the `dropped_at`th time is done with.
pub(crate) fn executor(
    member: usize,
    config: &RunnerConfig,
    (script, lane_of, dropped_at): (Script, LaneOf, u32),
    timers: Arc<Timers>,
    book: Arc<Mutex<Book>>,
) -> Box<dyn Executor> {
    let limit = config.timeout;
    let handler = one_by_one(move |record: Record| {
        let plan = script(member, &record);
        let (timers, book) = (timers.clone(), book.clone());
        let began = timers.now();
        let run = Handled {
            member,
            partition: TopicPartition::new(record.topic(), record.partition()),
            offset: record.offset(),
            key: record.key().map(<[u8]>::to_vec),
            attempt: record.attempt(),
            began,
            ended: None,
        };
        let index = book.lock().unwrap().begin(run, lane_of(&record));
        let running = Running {
            book: book.clone(),
            timers: timers.clone(),
            index,
            last: limit
                .filter(|_| record.attempt() >= dropped_at)
                .map(|limit| (began + limit, record.lease())),
        };
        async move {
            let mut running = running;
            if !plan.takes.is_zero() {
                Sleep {
                    timers: timers.clone(),
                    until: began + plan.takes,
                }
                .await;
            }
            // It has come to its own end.
            running.last = None;
            let is_last = record.attempt() >= dropped_at;
            let settles = is_last || !plan.panics && plan.outcome.settles();
            if settles || !plan.panics {
                book.lock().unwrap().end(index, timers.now(), settles);
            }
            assert!(!plan.panics, "a planned panic");
            drop(running);
            plan.outcome
        }
    });
    Box::new(Task {
        runner: Runner::new(handler, config),
        flag: Arc::default(),
    })
}
