//! Asks the user's provider of credentials.

use crate::error::{Error, ErrorKind};
use crate::sasl::Credentials;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// One question and its answer.
pub(crate) type Provide =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Credentials, Error>> + Send>> + Send + Sync>;

/// The provider, and where it runs: not on the thread that keeps the sessions.
pub(crate) struct ProviderTask {
    provide: Provide,
    runtime: Handle,
    asked: Option<JoinHandle<Result<Credentials, Error>>>,
}

impl ProviderTask {
    pub(crate) fn new(provide: Provide, runtime: Handle) -> Self {
        ProviderTask {
            provide,
            runtime,
            asked: None,
        }
    }

    /// Asks; an older question is dropped.
    pub(super) fn ask(&mut self) {
        self.drop_question();
        let provide = self.provide.clone();
        self.asked = Some(self.runtime.spawn(async move { provide().await }));
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Credentials, Error>> {
        let Some(asked) = &mut self.asked else {
            return Poll::Pending;
        };
        let Poll::Ready(came) = Pin::new(asked).poll(cx) else {
            return Poll::Pending;
        };
        self.asked = None;
        let gone = |_| {
            let why = "the provider of credentials panicked, or its runtime is gone";
            Err(Error::new(ErrorKind::Handler, why))
        };
        Poll::Ready(came.unwrap_or_else(gone))
    }

    fn drop_question(&mut self) {
        if let Some(asked) = self.asked.take() {
            asked.abort();
        }
    }
}

impl Drop for ProviderTask {
    fn drop(&mut self) {
        self.drop_question();
    }
}
