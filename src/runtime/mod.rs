//! The shell: sockets, names, threads, timers. It moves bytes, runs handlers and keeps time, and
//! decides nothing; whatever needs a decision is a machine in the core.
//!
//! Engines and their sockets live on one thread of their own for each [`Kafka`](crate::Kafka)
//! handle, so a handler that blocks every worker of the caller's runtime delays no heartbeat.
//! Runners of handlers are tasks on the caller's runtime, or threads for `run_blocking`.

mod caught;
mod connector;
mod driver;
mod events;
mod executor;
mod hooks;
mod io;
mod link;
mod provider;
mod tcp;
#[cfg(feature = "tls-custom")]
pub(crate) mod tls;

pub use connector::Connector;
pub(crate) use connector::Way;
pub(crate) use driver::{ASKS_MAX, Ask, Driver, EventSink, Inbox, to_its_end};
pub(crate) use events::EventHub;
pub use events::{EVENTS_MAX, Events};
pub(crate) use executor::{ExecutorTx, Gate, spawn_blocking_executor, spawn_executor};
pub(crate) use hooks::{HookFn, HookFns, HookRunner};
pub(crate) use io::IoThread;
pub(crate) use provider::{Provide, ProviderTask};

use crate::time::Now;
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

/// Readings of the core's time: nanoseconds since the subscription began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Clock {
            start: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Now {
        Now(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn instant(&self, at: Now) -> Instant {
        let far = std::time::Duration::from_secs(3600);
        let ahead = at.since(self.now()).min(far);
        Instant::now() + ahead
    }
}

/// 32 bytes that a peer cannot guess: the standard library seeds its maps from the system.
pub(crate) fn seed() -> [u8; 32] {
    let mut seed = [0; 32];
    for (i, eight) in seed.chunks_mut(8).enumerate() {
        eight.copy_from_slice(&RandomState::new().hash_one(i).to_le_bytes());
    }
    seed
}
