//! The thread that engines and sockets live on.

use crate::error::{Error, ErrorKind};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// One thread with a runtime of its own. It ends by itself once the last handle on it is gone;
/// dropping never waits for it.
#[derive(Debug)]
pub(crate) struct IoThread {
    handle: Handle,
    // Dropped with the last owner, which wakes the thread and ends it.
    _alive: oneshot::Sender<()>,
}

impl IoThread {
    pub(crate) fn start() -> Result<Self, Error> {
        let cannot = |what: &str, e: std::io::Error| {
            Error::new(ErrorKind::Transport, format!("cannot start {what}: {e}"))
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| cannot("the I/O runtime", e))?;
        let handle = runtime.handle().clone();
        let (alive, ended) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("laneway-io".to_owned())
            .spawn(move || {
                // An error is the sender's drop: that is the signal.
                let _ = runtime.block_on(ended);
                // Name look-ups run on helper threads and may hang; they are not waited for.
                runtime.shutdown_background();
            })
            .map_err(|e| cannot("the I/O thread", e))?;
        Ok(IoThread {
            handle,
            _alive: alive,
        })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}
