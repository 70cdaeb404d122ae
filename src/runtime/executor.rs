//! Where handlers run: a task or a thread that polls a [`Runner`] and does no more than that.

use super::Clock;
use crate::engine::{Done, Group};
use crate::ids::{ExecutorId, LeaseId};
use crate::lane::{Handler, NowFn, Recall, Runner, RunnerConfig};
use crate::record::Delivery;
use crate::time::Now;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Sleep;

/// What an executor is told. At most two groups and a few recalls wait here: the engine sends no
/// third group before one has come back.
pub(crate) enum ToExecutor {
    Run(Group),
    Recall(LeaseId, Recall),
    /// Something that it waited for has come.
    Woken,
}

/// The way to an executor.
pub(crate) enum ExecutorTx {
    Task(mpsc::UnboundedSender<ToExecutor>),
    Thread(Arc<Sender<ToExecutor>>),
}

impl ExecutorTx {
    /// An executor that is gone was dropped with its runtime; nothing can run there any more.
    pub(super) fn send(&self, message: ToExecutor) {
        match self {
            ExecutorTx::Task(tx) => drop(tx.send(message)),
            ExecutorTx::Thread(tx) => drop(tx.send(message)),
        }
    }
}

/// Reports made in one poll before the runtime gets a turn.
const REPORTS_MAX: usize = 64;

/// What a start is asked of: our own clock against the end of the session.
#[derive(Clone)]
pub(crate) struct Gate {
    pub clock: Clock,
    pub fence: Arc<AtomicU64>,
}

impl Gate {
    fn is_open(&self, now: Now) -> bool {
        now.0 < self.fence.load(Ordering::Acquire)
    }
}

/// How often an executor past the session's end looks whether it may start again. Either the
/// engine recalls the leases, which wakes it, or a heartbeat that had come in time is read late.
const FENCED_LOOK: Duration = Duration::from_millis(5);

/// Runs until the driver drops its sender.
pub(crate) fn spawn_executor<H>(
    runtime: &tokio::runtime::Handle,
    id: ExecutorId,
    handler: H,
    config: &RunnerConfig,
    gate: Gate,
    done: mpsc::UnboundedSender<Done>,
) -> ExecutorTx
where
    H: Handler<Delivery> + Send + 'static,
    H::Run: Send + 'static,
{
    let mut runner = Runner::new(handler, config);
    let (tx, mut rx) = mpsc::unbounded_channel();
    let mut fenced: Option<Pin<Box<Sleep>>> = None;
    let mut alarm = Alarm::default();
    runtime.spawn(poll_fn(move |cx| {
        loop {
            match rx.poll_recv(cx) {
                Poll::Ready(Some(ToExecutor::Run(group))) => runner.give(group),
                Poll::Ready(Some(ToExecutor::Recall(lease, what))) => runner.recall(lease, what),
                Poll::Ready(Some(ToExecutor::Woken)) => {}
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        for _ in 0..REPORTS_MAX {
            let now = gate.clock.now();
            // Step 1: the process was stopped past the session's end. Step 2: it goes on, and
            // records of leases that are surely another's now are at hand. Step 3: the engine,
            // on its own thread, says so a moment later. Until then nothing starts.
            let open = gate.is_open(now);
            // One budget serves every tokio resource that this poll touches; without any left a
            // handler that would be ready at once looks pending.
            let mut may_start = || open && tokio::task::coop::has_budget_remaining();
            if !open {
                let wait = fenced.insert(Box::pin(tokio::time::sleep(FENCED_LOOK)));
                if wait.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
            match runner.poll(cx, now, &mut may_start) {
                Poll::Ready(d) => {
                    if done
                        .send(Done {
                            executor: id,
                            done: d,
                        })
                        .is_err()
                    {
                        return Poll::Ready(()); // the driver is gone
                    }
                }
                // A call that has run for too long is ended by the next poll of the runner.
                Poll::Pending => match runner.next_deadline() {
                    Some(at) if alarm.poll(cx, &gate.clock, at).is_ready() => {}
                    _ => return Poll::Pending,
                },
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }));
    ExecutorTx::Task(tx)
}

/// Wakes a thread that waits for a permit. It does not keep the thread alive: that is the
/// driver's sender alone.
struct ThreadWake(Weak<Sender<ToExecutor>>);

impl Wake for ThreadWake {
    fn wake(self: Arc<Self>) {
        if let Some(thread) = self.0.upgrade() {
            // A thread that has ended waits for nothing.
            let _ = thread.send(ToExecutor::Woken);
        }
    }
}

/// A timer for the end of the call that began first. It is set anew when it has rung, not for each
/// call: most calls end long before.
#[derive(Default)]
struct Alarm(Option<(Now, Pin<Box<Sleep>>)>);

impl Alarm {
    fn poll(&mut self, cx: &mut Context<'_>, clock: &Clock, at: Now) -> Poll<()> {
        if clock.now() >= at {
            return Poll::Ready(());
        }
        if self.0.as_ref().is_none_or(|(rings, _)| *rings > at) {
            self.set(clock, at);
        }
        loop {
            let Some((rings, sleep)) = &mut self.0 else {
                return Poll::Ready(());
            };
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if *rings >= at {
                self.0 = None;
                return Poll::Ready(());
            }
            self.set(clock, at);
        }
    }

    fn set(&mut self, clock: &Clock, at: Now) {
        let instant = tokio::time::Instant::from_std(clock.instant(at));
        match &mut self.0 {
            Some((rings, sleep)) => {
                *rings = at;
                sleep.as_mut().reset(instant);
            }
            None => self.0 = Some((at, Box::pin(tokio::time::sleep_until(instant)))),
        }
    }
}

/// A thread for handlers that block.
pub(crate) fn spawn_blocking_executor<H>(
    id: ExecutorId,
    handler: H,
    mut config: RunnerConfig,
    gate: Gate,
    done: mpsc::UnboundedSender<Done>,
) -> std::io::Result<ExecutorTx>
where
    H: Handler<Delivery> + Send + 'static,
    H::Run: 'static,
{
    let clock = gate.clock;
    config.clock = Some(NowFn(Arc::new(move || clock.now())));
    let (tx, rx) = std::sync::mpsc::channel();
    let tx = Arc::new(tx);
    let waker = Waker::from(Arc::new(ThreadWake(Arc::downgrade(&tx))));
    std::thread::Builder::new()
        .name(format!("laneway-worker-{}", id.0))
        .spawn(move || {
            let mut runner = Runner::new(handler, &config);
            let mut cx = Context::from_waker(&waker);
            while let Ok(message) = rx.recv() {
                match message {
                    ToExecutor::Run(group) => runner.give(group),
                    ToExecutor::Recall(lease, what) => runner.recall(lease, what),
                    ToExecutor::Woken => {}
                }
                // Handlers here are done when they return: the runner waits for permits alone.
                while !runner.is_idle() {
                    while let Ok(message) = rx.try_recv() {
                        match message {
                            ToExecutor::Run(group) => runner.give(group),
                            ToExecutor::Recall(lease, what) => runner.recall(lease, what),
                            ToExecutor::Woken => {}
                        }
                    }
                    let now = gate.clock.now();
                    if !gate.is_open(now) {
                        std::thread::sleep(FENCED_LOOK);
                    }
                    let mut may_start = || gate.is_open(gate.clock.now());
                    if let Poll::Ready(d) = runner.poll(&mut cx, now, &mut may_start) {
                        if done
                            .send(Done {
                                executor: id,
                                done: d,
                            })
                            .is_err()
                        {
                            return;
                        }
                    } else if gate.is_open(now) {
                        break;
                    }
                }
            }
        })?;
    Ok(ExecutorTx::Thread(tx))
}
