//! Scripted handlers and the runners that call them, in virtual time.

use crate::checks::{Book, Lane};
use laneway::handler::{in_batches, one_by_one};
use laneway::ids::TopicPartition;
use laneway::lane::{Handler, Outcomes, Runner, RunnerConfig};
use laneway::record::Delivery;
use laneway::time::Now;
use laneway::{Outcome, Record, RecordLease};
use std::collections::BTreeMap;
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
    asleep: Mutex<Asleep>,
}

#[derive(Default)]
struct Asleep {
    sequence: u64,
    wakers: BTreeMap<(Now, u64), Waker>,
}

impl Timers {
    pub(crate) fn now(&self) -> Now {
        Now(self.now.load(Ordering::Relaxed))
    }

    pub(crate) fn set(&self, now: Now) {
        self.now.store(now.0, Ordering::Relaxed);
    }

    pub(crate) fn next(&self) -> Option<Now> {
        let asleep = self.asleep.lock().unwrap();
        asleep.wakers.keys().next().map(|(at, _)| *at)
    }

    fn wake_at(&self, at: Now, waker: &Waker) {
        let mut asleep = self.asleep.lock().unwrap();
        asleep.sequence += 1;
        let key = (at, asleep.sequence);
        asleep.wakers.insert(key, waker.clone());
    }

    pub(crate) fn wake_due(&self) {
        let now = self.now();
        if self.next().is_none_or(|at| at > now) {
            return;
        }
        let mut asleep = self.asleep.lock().unwrap();
        let later = asleep.wakers.split_off(&(Now(now.0 + 1), 0));
        let due = std::mem::replace(&mut asleep.wakers, later);
        drop(asleep);
        due.into_values().for_each(Waker::wake);
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
        self.timers.wake_at(self.until, cx.waker());
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
    /// Whether a poll would do anything.
    fn is_due(&self, now: Now) -> bool;
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

    fn is_due(&self, now: Now) -> bool {
        let due = self.runner.next_deadline().is_some_and(|at| at <= now);
        due || self.flag.0.load(Ordering::Acquire)
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

/// A run that is under way.
struct Run {
    index: usize,
    attempt: u32,
    plan: Plan,
    /// Of a last attempt: when its time is up, and the lease under which it is dropped then.
    last: Option<(Now, RecordLease)>,
}

/// One handler call. Says that its runs are over, however they end.
struct Running {
    shop: Arc<Shop>,
    runs: Vec<Run>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failed assertion elsewhere may have poisoned it; then nobody asks any more.
        if let Ok(mut book) = self.shop.book.lock() {
            let now = self.shop.timers.now();
            for run in &self.runs {
                let dropped = |(at, lease): &(Now, RecordLease)| now >= *at && lease.counts();
                if run.last.as_ref().is_some_and(dropped) {
                    book.end(run.index, now, true);
                }
                book.over(run.index);
            }
        }
    }
}

/// What the handlers of one member have in common.
pub(crate) struct Shop {
    pub member: usize,
    pub script: Script,
    pub lane_of: LaneOf,
    /// A record that fails for the so manieth time is done with.
    pub dropped_at: u32,
    pub timers: Arc<Timers>,
    pub book: Arc<Mutex<Book>>,
}

impl Shop {
    /// A call with these records begins: they run side by side, and fail together where one panics.
    fn call(
        self: &Arc<Self>,
        records: Vec<Record>,
        limit: Option<Duration>,
    ) -> impl Future<Output = Outcomes> + use<> {
        let began = self.timers.now();
        let mut runs = Vec::with_capacity(records.len());
        let mut book = self.book.lock().unwrap();
        let call = book.call();
        for record in &records {
            let plan = (self.script)(self.member, record);
            let handled = Handled {
                member: self.member,
                partition: TopicPartition::new(record.topic(), record.partition()),
                offset: record.offset(),
                key: record.key().map(<[u8]>::to_vec),
                attempt: record.attempt(),
                began,
                ended: None,
            };
            let lane = (self.lane_of)(record);
            let limit = limit.filter(|_| record.attempt() >= self.dropped_at);
            runs.push(Run {
                index: book.begin(call, handled, record.timestamp(), lane),
                attempt: record.attempt(),
                plan,
                last: limit.map(|limit| (began + limit, record.lease())),
            });
        }
        drop(book);
        let shop = self.clone();
        async move {
            let mut running = Running { shop, runs };
            let takes = running.runs.iter().map(|run| run.plan.takes).max();
            if let Some(takes) = takes.filter(|takes| !takes.is_zero()) {
                Sleep {
                    timers: running.shop.timers.clone(),
                    until: began + takes,
                }
                .await;
            }
            drop(records);
            running.ended()
        }
    }
}

impl Running {
    /// They have come to their own end.
    fn ended(&mut self) -> Outcomes {
        let panics = self.runs.iter().any(|run| run.plan.panics);
        let mut book = self.shop.book.lock().unwrap();
        let now = self.shop.timers.now();
        for run in &mut self.runs {
            run.last = None;
            let is_last = run.attempt >= self.shop.dropped_at;
            // A dead letter settles when it is written, which is seen where it is written.
            let is_letter = matches!(run.plan.outcome, Outcome::DeadLetter(_));
            let settles = match panics {
                true => is_last,
                false => is_last && !is_letter || run.plan.outcome.settles(),
            };
            if settles || !panics {
                book.end(run.index, now, settles);
            }
            if let (Outcome::RetryAfter(wait), false) = (&run.plan.outcome, panics || settles) {
                book.wait(run.index, now + *wait);
            }
        }
        drop(book);
        assert!(!panics, "a planned panic");
        let mut each = self.runs.iter().map(|run| run.plan.outcome.clone());
        match self.runs.as_slice() {
            [first, rest @ ..] if rest.iter().all(|r| r.plan.outcome == first.plan.outcome) => {
                Outcomes::All(each.next().unwrap_or(Outcome::Ack))
            }
            _ => Outcomes::Each(each.collect()),
        }
    }
}

/// A runner whose handlers do what their script plans, and write into the book what they do.
pub(crate) fn executor(config: &RunnerConfig, shop: &Arc<Shop>) -> Box<dyn Executor> {
    let limit = config.timeout;
    let shop = shop.clone();
    if config.batch_max > 1 {
        let handler = in_batches(move |records| shop.call(records, limit));
        return Box::new(Task {
            runner: Runner::new(handler, config),
            flag: Arc::default(),
        });
    }
    let handler = one_by_one(move |record| {
        let call = shop.call(vec![record], limit);
        async move {
            match call.await {
                Outcomes::All(outcome) => outcome,
                Outcomes::Each(_) => unreachable!("one record has one outcome"),
            }
        }
    });
    Box::new(Task {
        runner: Runner::new(handler, config),
        flag: Arc::default(),
    })
}
