//! Where the cluster is, and the thread that all its subscriptions share.

use super::{Interest, Subscription};
use crate::error::Error;
use crate::runtime::IoThread;
use std::sync::{Arc, Mutex, PoisonError};

/// A Kafka cluster, by the addresses of some of its brokers. Settings only: nothing is opened
/// before a subscription starts. Clones share one I/O thread.
///
/// ```
/// use laneway::Kafka;
/// let kafka = Kafka::new(["kafka-1:9092", "kafka-2:9092"]).client_id("billing");
/// ```
#[derive(Clone, Debug)]
pub struct Kafka {
    bootstrap: Vec<String>,
    pub(super) client_id: Arc<str>,
    io: Arc<Mutex<Option<Arc<IoThread>>>>,
}

impl Kafka {
    /// Names the brokers to ask first, as `host:port`; one that answers is enough, several are
    /// safer. An IPv6 address stands in brackets: `[::1]:9092`.
    pub fn new<I>(bootstrap: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Kafka {
            bootstrap: bootstrap.into_iter().map(Into::into).collect(),
            client_id: Arc::from("laneway"),
            io: Arc::new(Mutex::new(None)),
        }
    }

    /// The name that brokers see in logs, metrics and quotas. `laneway` by default.
    #[must_use]
    pub fn client_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.client_id = id.into();
        self
    }

    /// A subscription with default settings. See [`Subscription`].
    pub fn subscribe(&self, what: impl Into<Interest>) -> Subscription {
        Subscription::new(self.clone(), what.into())
    }

    pub(super) fn addresses(&self) -> Result<Vec<(Arc<str>, u16)>, Error> {
        if self.bootstrap.is_empty() {
            return Err(Error::misuse(
                "no bootstrap address: give Kafka::new at least one, as \"host:port\"",
            ));
        }
        self.bootstrap
            .iter()
            .map(|address| parse_address(address))
            .collect()
    }

    pub(super) fn io(&self) -> Result<Arc<IoThread>, Error> {
        let mut io = self.io.lock().unwrap_or_else(PoisonError::into_inner);
        match &*io {
            Some(thread) => Ok(thread.clone()),
            None => Ok(io.insert(Arc::new(IoThread::start()?)).clone()),
        }
    }
}

fn parse_address(address: &str) -> Result<(Arc<str>, u16), Error> {
    let wrong = || {
        Error::misuse(format!(
            "{address:?} is not a broker's address: write it as \"host:port\", an IPv6 address as \"[::1]:9092\""
        ))
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let bare = host
        .strip_prefix('[')
        .map_or(Some(host), |h| h.strip_suffix(']'));
    let host = bare.ok_or_else(wrong)?;
    let bracketed = address.starts_with('[');
    if host.is_empty()
        || port == 0
        || host.contains(['/', ' '])
        || (host.contains(':') != bracketed)
    {
        return Err(wrong());
    }
    Ok((Arc::from(host), port))
}
