//! Drives one engine: hands it what happens, does what it says.

use super::caught::Caught;
use super::connector::Way;
use super::events::EventHub;
use super::executor::ToExecutor;
use super::hooks::{HookEnd, HookRunner};
use super::link::{self, Dial};
use super::{Clock, ExecutorTx, ProviderTask};
use crate::engine::{Action, Command, Done, Engine, Event, LinkEvent, Snapshot};
use crate::error::Error;
use crate::ids::{CommandId, LinkId};
use crate::produce::{Outgoing, Written};
use crate::sasl::Credentials;
use crate::time::Now;
use bytes::Bytes;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};

/// Frames that wait for the engine; a reader stops reading its socket beyond that.
const LINK_INPUTS_MAX: usize = 32;
/// Inputs taken between two looks at the clock.
const INPUTS_PER_TURN: usize = 64;
/// How long a dropped handle lets running handlers go on.
const DROPPED_GRACE: Duration = Duration::ZERO;

/// What a connection says.
pub(super) struct LinkInput {
    pub link: LinkId,
    pub event: LinkEvent,
}

/// What a handle asks.
pub(crate) enum Ask {
    Command(Command, oneshot::Sender<Result<(), Error>>),
    /// Close within this time, counted from when the engine hears of it.
    Close(Duration, oneshot::Sender<Result<(), Error>>),
    Snapshot(oneshot::Sender<Snapshot>),
    /// Write this record. The permit is what it holds of its producer's room.
    Record(Outgoing, OwnedSemaphorePermit, SentTx),
}

/// Where the answer to a record goes.
pub(crate) type SentTx = oneshot::Sender<Result<Written, Error>>;

/// The way to the driver. Its drop is the wish to close.
pub(crate) type Inbox = mpsc::Sender<Ask>;

/// Questions of handles that wait for the engine.
pub(crate) const ASKS_MAX: usize = 64;

pub(crate) type EventSink = Arc<dyn Fn(&Event) + Send + Sync>;

pub(crate) struct Driver {
    engine: Engine,
    clock: Clock,
    way: Way,
    executors: Vec<ExecutorTx>,
    on_event: Option<EventSink>,
    hub: Arc<EventHub>,
    links: HashMap<LinkId, LinkTask>,
    link_tx: mpsc::Sender<LinkInput>,
    link_rx: mpsc::Receiver<LinkInput>,
    done_rx: mpsc::UnboundedReceiver<Done>,
    asks: Option<mpsc::Receiver<Ask>>,
    replies: HashMap<CommandId, oneshot::Sender<Result<(), Error>>>,
    sends: HashMap<CommandId, (OwnedSemaphorePermit, SentTx)>,
    next_command: u64,
    finished: Option<Result<(), Error>>,
    again: bool,
    provider: Option<ProviderTask>,
    hooks: Option<HookRunner>,
    hook_tx: mpsc::UnboundedSender<HookEnd>,
    hook_rx: mpsc::UnboundedReceiver<HookEnd>,
}

struct LinkTask {
    /// What the reader may reserve for an answer.
    expected: Arc<AtomicUsize>,
    frames: mpsc::UnboundedSender<Bytes>,
    task: JoinHandle<()>,
}

impl Drop for LinkTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

enum Input {
    Link(LinkInput),
    Done(Done),
    Ask(Ask),
    HandleDropped,
    Hook(HookEnd),
    Credentials(Result<Credentials, Error>),
    Timeout,
}

impl Driver {
    pub(crate) fn new(
        engine: Engine,
        clock: Clock,
        way: Way,
        executors: Vec<ExecutorTx>,
        done_rx: mpsc::UnboundedReceiver<Done>,
        asks: mpsc::Receiver<Ask>,
        (on_event, hub): (Option<EventSink>, Arc<EventHub>),
    ) -> Self {
        let (link_tx, link_rx) = mpsc::channel(LINK_INPUTS_MAX);
        let (hook_tx, hook_rx) = mpsc::unbounded_channel();
        Driver {
            engine,
            clock,
            way,
            executors,
            on_event,
            hub,
            links: HashMap::new(),
            link_tx,
            link_rx,
            done_rx,
            asks: Some(asks),
            replies: HashMap::new(),
            sends: HashMap::new(),
            next_command: 0,
            finished: None,
            again: false,
            hooks: None,
            hook_tx,
            hook_rx,
            provider: None,
        }
    }

    /// Who is asked for credentials.
    pub(crate) fn with_provider(mut self, provider: Option<ProviderTask>) -> Self {
        self.provider = provider;
        self
    }

    /// Runs these hooks where the engine says so.
    pub(crate) fn with_hooks(mut self, hooks: HookRunner) -> Self {
        self.hooks = Some(hooks);
        self
    }

    /// Runs the subscription to its end.
    pub(crate) async fn run(mut self) -> Result<(), Error> {
        let mut sleep = Box::pin(tokio::time::sleep(Duration::ZERO));
        self.engine.handle_timeout(self.clock.now());
        loop {
            self.act();
            if let Some(result) = self.finished.take() {
                return result;
            }
            if std::mem::take(&mut self.again) {
                tokio::task::yield_now().await;
                self.engine.handle_timeout(self.clock.now());
                self.take_waiting();
                continue;
            }
            let deadline = self.engine.next_deadline();
            let at = self.clock.instant(deadline.unwrap_or(Now::NEVER));
            sleep.as_mut().reset(Instant::from_std(at));
            let input = poll_fn(|cx| self.poll_input(cx, &mut sleep)).await;
            self.take(input);
            self.take_waiting();
        }
    }

    fn poll_input(&mut self, cx: &mut Context<'_>, sleep: &mut Pin<Box<Sleep>>) -> Poll<Input> {
        if let Poll::Ready(Some(done)) = self.done_rx.poll_recv(cx) {
            return Poll::Ready(Input::Done(done));
        }
        if let Poll::Ready(Some(input)) = self.link_rx.poll_recv(cx) {
            return Poll::Ready(Input::Link(input));
        }
        if let Some(asks) = &mut self.asks
            && let Poll::Ready(ask) = asks.poll_recv(cx)
        {
            return Poll::Ready(ask.map_or(Input::HandleDropped, Input::Ask));
        }
        if let Some(provider) = &mut self.provider
            && let Poll::Ready(came) = provider.poll(cx)
        {
            return Poll::Ready(Input::Credentials(came));
        }
        if let Poll::Ready(Some(end)) = self.hook_rx.poll_recv(cx) {
            return Poll::Ready(Input::Hook(end));
        }
        sleep.as_mut().poll(cx).map(|()| Input::Timeout)
    }

    /// What else is there already: one look at the clock and one sleep serve it all.
    fn take_waiting(&mut self) {
        for _ in 0..INPUTS_PER_TURN {
            if let Ok(done) = self.done_rx.try_recv() {
                self.take(Input::Done(done));
            } else if let Ok(input) = self.link_rx.try_recv() {
                self.take(Input::Link(input));
            } else {
                return;
            }
            self.act();
            if self.finished.is_some() {
                return;
            }
        }
    }

    fn take(&mut self, input: Input) {
        let now = self.clock.now();
        match input {
            Input::Done(done) => self.engine.handle_done(now, done),
            Input::Link(LinkInput { link, event }) => {
                if matches!(event, LinkEvent::Down(_)) {
                    self.links.remove(&link);
                }
                self.engine.handle_link(now, link, event);
            }
            Input::Timeout => self.engine.handle_timeout(now),
            Input::Hook((hook, result)) => {
                if let Some(hooks) = &mut self.hooks {
                    hooks.ended(hook);
                }
                let done = Command::HookDone { id: hook, result };
                let id = self.command_id();
                self.engine.handle_command(now, id, done);
            }
            Input::Credentials(came) => self.engine.handle_credentials(now, came),
            Input::HandleDropped => {
                self.asks = None;
                let deadline = now + DROPPED_GRACE;
                let id = self.command_id();
                self.engine
                    .handle_command(now, id, Command::Close { deadline });
            }
            Input::Ask(Ask::Snapshot(to)) => {
                // The asker may have gone; its loss.
                let _ = to.send(self.engine.snapshot(now));
            }
            Input::Ask(Ask::Record(record, permit, to)) => {
                let id = self.command_id();
                self.sends.insert(id, (permit, to));
                self.engine.handle_record(now, id, record);
            }
            Input::Ask(Ask::Command(command, to)) => self.command(now, command, to),
            Input::Ask(Ask::Close(within, to)) => {
                self.command(
                    now,
                    Command::Close {
                        deadline: now + within,
                    },
                    to,
                );
            }
        }
    }

    fn command(&mut self, now: Now, command: Command, to: oneshot::Sender<Result<(), Error>>) {
        let id = self.command_id();
        self.replies.insert(id, to);
        self.engine.handle_command(now, id, command);
    }

    fn command_id(&mut self) -> CommandId {
        self.next_command += 1;
        CommandId(self.next_command)
    }

    fn act(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Open {
                    link,
                    host,
                    port,
                    until,
                    frame_max,
                } => {
                    let (frames, rx) = mpsc::unbounded_channel();
                    let expected = Arc::new(AtomicUsize::new(0));
                    let dial = Dial {
                        host,
                        port,
                        until,
                        frame_max,
                        expected: expected.clone(),
                    };
                    let inbox = self.link_tx.clone();
                    let way = self.way.clone();
                    let task = tokio::spawn(link::run(link, dial, way, self.clock, inbox, rx));
                    self.links.insert(
                        link,
                        LinkTask {
                            frames,
                            expected,
                            task,
                        },
                    );
                }
                Action::Send {
                    link,
                    frame,
                    answer_bytes,
                } => {
                    if let Some(task) = self.links.get(&link) {
                        task.expected.store(answer_bytes, Ordering::Relaxed);
                        // A link that has just ended says so by itself.
                        let _ = task.frames.send(frame);
                    }
                }
                Action::Close { link } => drop(self.links.remove(&link)),
                Action::Run { executor, group } => {
                    self.executors[executor.0 as usize].send(ToExecutor::Run(group));
                }
                Action::Recall {
                    executor,
                    lease,
                    what,
                } => {
                    self.executors[executor.0 as usize].send(ToExecutor::Recall(lease, what));
                }
                Action::Reply { id, result } => {
                    if let Some(to) = self.replies.remove(&id) {
                        let _ = to.send(result);
                    }
                }
                Action::Sent { id, result } => {
                    if let Some((permit, to)) = self.sends.remove(&id) {
                        drop(permit);
                        // Whoever sent it may not wait any more.
                        let _ = to.send(result);
                    }
                }
                // The engine knows of hooks only where there are some.
                Action::Hook { id, hook } => {
                    if let Some(hooks) = &mut self.hooks {
                        hooks.run(id, hook, self.hook_tx.clone());
                    }
                }
                Action::EndHook { id } => {
                    if let Some(hooks) = &mut self.hooks {
                        hooks.end(id);
                    }
                }
                Action::Event(event) => self.tell(&event),
                Action::CredentialsWanted => {
                    if let Some(provider) = &mut self.provider {
                        provider.ask();
                    }
                }
                Action::Again => self.again = true,
                Action::Finished(result) => self.finished = Some(result),
            }
        }
    }

    fn tell(&self, event: &Event) {
        log(event);
        self.hub.tell(event);
        if let Some(sink) = &self.on_event {
            // It runs on the thread that keeps every subscription's session; its panic must not
            // take them down.
            if catch_unwind(AssertUnwindSafe(|| sink(event))).is_err() {
                tracing::error!("the on_event function panicked; the subscription goes on");
            }
        }
    }
}

/// Quiet when all is well: what heals by itself is `debug`.
fn log(event: &Event) {
    match event {
        Event::Granted {
            partition: p,
            offset,
        } => tracing::info!(topic = %p.topic, partition = p.partition, offset, "partition granted"),
        Event::Revoked {
            partition: p,
            committed,
        } => {
            tracing::info!(topic = %p.topic, partition = p.partition, committed, "partition given back");
        }
        Event::Lost { partition: p } => {
            tracing::warn!(topic = %p.topic, partition = p.partition, "partition lost");
        }
        Event::Sought { partition: p, from } => {
            tracing::info!(topic = %p.topic, partition = p.partition, from, "sought elsewhere");
        }
        Event::Stalled {
            partition: p,
            offset,
            lane,
            attempt,
            running_for,
            records,
        } => tracing::warn!(
            topic = %p.topic, partition = p.partition, offset, lane, attempt, records,
            "a record has run for {running_for:?}"
        ),
        Event::Stopped { error: e } => tracing::error!(
            topic = e.topic(),
            partition = e.partition(),
            offset = e.offset(),
            code = e.code(),
            "partition stands still: {}",
            e.message()
        ),
        Event::DataLoss {
            partition: p,
            from,
            to,
            why,
        } => tracing::error!(
            topic = %p.topic, partition = p.partition, offset = from, to, "records are gone: {why}"
        ),
        Event::Retrying {
            partition: p,
            offset,
            lane,
            attempts,
            reason,
        } => tracing::warn!(
            topic = %p.topic, partition = p.partition, offset, lane, attempts,
            "a record failed and will run again: {reason}"
        ),
        Event::Panicked {
            partition: p,
            offset,
            lane,
            attempts,
            message,
        } => tracing::error!(
            topic = %p.topic, partition = p.partition, offset, lane, attempts,
            "a handler panicked; its record will run again: {message}"
        ),
        Event::DeadLettered {
            partition: p,
            offset,
            to,
            at,
            attempts,
            reason,
        } => tracing::warn!(
            topic = %p.topic, partition = p.partition, offset, attempts, dead_letter = %to, at,
            "a record became a dead letter: {reason}"
        ),
        Event::Abandoned {
            partition: p,
            records,
        } => tracing::warn!(
            topic = %p.topic, partition = p.partition, records, "records were still with handlers when their lease ended; they will run again"
        ),
        Event::Warning { error: e } => tracing::warn!(
            broker = e.broker(),
            topic = e.topic(),
            partition = e.partition(),
            offset = e.offset(),
            code = e.code(),
            "{}",
            e.message()
        ),
        Event::Notice { text } => tracing::debug!("{text}"),
    }
}

/// Runs a driver to its end. Its panic, which is a mistake of ours, becomes the error that the
/// subscription ends with, in its own words.
pub(crate) async fn to_its_end(run: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    Caught(Box::pin(run)).await.unwrap_or_else(|words| {
        let words = format!("the subscription's driver panicked: {words}; please report it");
        let error = Error::bug(words);
        tracing::error!("{error}");
        Err(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// E28: the words of a panic in our own code are what the subscription ends with.
    #[tokio::test]
    async fn a_panic_in_the_driver_ends_the_subscription_in_its_words() {
        let bad = async { panic!("index {} is out of range", 7) };
        let error = to_its_end(bad).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Bug);
        assert!(
            error.to_string().contains("index 7 is out of range"),
            "{error}"
        );
        let good = async { Ok(()) };
        to_its_end(good).await.unwrap();
    }
}
