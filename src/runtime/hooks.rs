//! Runs the user's hooks, one at a time, where handlers run.

use super::caught::{Caught, words};
use crate::engine::{Hook, HookId, HookSet};
use crate::error::{Error, ErrorKind};
use crate::ids::TopicPartition;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

type Run = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// One hook.
pub(crate) type HookFn = Arc<dyn Fn(Vec<TopicPartition>) -> Run + Send + Sync>;

/// All that the user gave.
#[derive(Clone, Default)]
pub(crate) struct HookFns {
    pub granted: Option<HookFn>,
    pub revoked: Option<HookFn>,
    pub lost: Option<HookFn>,
}

impl HookFns {
    /// Which there are.
    pub(crate) fn set(&self) -> HookSet {
        HookSet {
            granted: self.granted.is_some(),
            revoked: self.revoked.is_some(),
            lost: self.lost.is_some(),
        }
    }
}

/// What a hook's run came to.
pub(super) type HookEnd = (HookId, Result<(), Error>);

/// The hooks of one subscription. A dropped one ends the hook that runs.
pub(crate) struct HookRunner {
    pub(super) fns: HookFns,
    pub(super) runtime: Handle,
    pub(super) out: Option<(HookId, JoinHandle<()>)>,
}

impl HookRunner {
    pub(crate) fn new(fns: HookFns, runtime: Handle) -> Self {
        HookRunner {
            fns,
            runtime,
            out: None,
        }
    }

    pub(super) fn run(&mut self, id: HookId, hook: Hook, done: UnboundedSender<HookEnd>) {
        let (name, f, partitions) = match hook {
            Hook::Granted(p) => ("on_granted", &self.fns.granted, p),
            Hook::Revoked(p) => ("on_revoked", &self.fns.revoked, p),
            Hook::Lost(p) => ("on_lost", &self.fns.lost, p),
        };
        let f = f.clone();
        let task = self.runtime.spawn(async move {
            let ended = match f {
                None => Ok(Ok(())),
                // The call itself may panic as well.
                Some(f) => match catch_unwind(AssertUnwindSafe(|| f(partitions))) {
                    Ok(run) => Caught(run).await,
                    Err(panic) => Err(words(&*panic)),
                },
            };
            let result = match ended {
                Ok(Ok(())) => Ok(()),
                Ok(Err(e)) => Err(format!("{name} failed: {e}")),
                Err(words) => Err(format!("{name} panicked: {words}")),
            };
            // A driver that is gone waits for nothing.
            let _ = done.send((id, result.map_err(|e| Error::new(ErrorKind::Handler, e))));
        });
        self.out = Some((id, task));
    }

    /// This one's word has come. It may be an old one's: step 1, a hook ends and says so; step 2,
    /// before that is heard the engine gives it up and has the next one run; step 3, it is heard.
    pub(super) fn ended(&mut self, id: HookId) {
        self.out.take_if(|(out, _)| *out == id);
    }

    pub(super) fn end(&mut self, id: HookId) {
        if let Some((_, task)) = self.out.take_if(|(out, _)| *out == id) {
            task.abort();
        }
    }
}

impl Drop for HookRunner {
    fn drop(&mut self) {
        if let Some((_, task)) = self.out.take() {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::mpsc::unbounded_channel;

    /// The word of a hook that was given up is not taken for that of the one that runs: this one
    /// can still be dropped when its own time is over.
    #[tokio::test]
    async fn a_late_word_is_not_the_next_hooks() {
        struct Told(tokio::sync::mpsc::UnboundedSender<()>);
        impl Drop for Told {
            fn drop(&mut self) {
                // The test may be over.
                let _ = self.0.send(());
            }
        }
        let (told, mut dropped) = unbounded_channel();
        let f: HookFn = Arc::new(move |_| {
            let told = Told(told.clone());
            Box::pin(async move {
                std::future::pending::<()>().await;
                drop(told);
                Ok(())
            })
        });
        let fns = HookFns {
            revoked: Some(f),
            ..HookFns::default()
        };
        let mut hooks = HookRunner::new(fns, Handle::current());
        let (done, _ends) = unbounded_channel();
        hooks.run(HookId(2), Hook::Revoked(Vec::new()), done);
        tokio::task::yield_now().await;
        hooks.ended(HookId(1));
        hooks.end(HookId(2));
        let over = tokio::time::timeout(Duration::from_secs(30), dropped.recv());
        assert_eq!(over.await, Ok(Some(())));
    }
}
