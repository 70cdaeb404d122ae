//! Where the cluster is, and the thread that all its subscriptions share.

use super::defaults::Defaults;
use super::secure::Security;
use super::{Interest, Sasl, Subscription};
use crate::engine::Config;
use crate::error::Error;
use crate::runtime::{IoThread, ProviderTask};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio::runtime::Handle;

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
    pub(crate) client_id: Arc<str>,
    pub(super) sasl: Option<Sasl>,
    io: Arc<Mutex<Option<Arc<IoThread>>>>,
    pub(super) security: Security,
    pub(super) defaults: Arc<Defaults>,
}

impl Kafka {
    /// Names the brokers to ask first, as `host:port`; one that answers is enough, several are
    /// safer. An IPv6 address stands in brackets: `[::1]:9092`. A string may hold several, with
    /// commas between them, as Kafka's `bootstrap.servers` does.
    pub fn new<I>(bootstrap: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Kafka {
            bootstrap: bootstrap.into_iter().map(Into::into).collect(),
            client_id: Arc::from("laneway"),
            sasl: None,
            io: Arc::new(Mutex::new(None)),
            security: Security::default(),
            defaults: Arc::default(),
        }
    }

    /// The name that brokers see in logs, metrics and quotas. `laneway` by default.
    #[must_use]
    pub fn client_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.client_id = id.into();
        self
    }

    /// How to say who we are, on listeners that want to know. By default nothing is said.
    ///
    /// ```
    /// use laneway::{Kafka, Sasl};
    /// let kafka = Kafka::new(["kafka-1:9093"]).sasl(Sasl::scram_sha_256("alice", "swordfish"));
    /// ```
    #[must_use]
    pub fn sasl(mut self, sasl: Sasl) -> Self {
        self.sasl = Some(sasl);
        self.security.wanting = None;
        self
    }

    /// A subscription with default settings. See [`Subscription`].
    pub fn subscribe(&self, what: impl Into<Interest>) -> Subscription {
        Subscription::new(self.clone(), what.into())
    }

    pub(crate) fn addresses(&self) -> Result<Vec<(Arc<str>, u16)>, Error> {
        if self.bootstrap.is_empty() {
            return Err(Error::misuse(
                "no bootstrap address: give Kafka::new at least one, as \"host:port\"",
            ));
        }
        self.bootstrap
            .iter()
            .flat_map(|addresses| addresses.split(','))
            .map(|address| parse_address(address.trim()))
            .collect()
    }

    /// Whether whoever listens on the network can read what is sent.
    pub(super) fn is_in_the_clear(&self) -> bool {
        self.security.is_in_the_clear()
    }

    /// Tells an engine how to say who we are, and gives whom to ask for it.
    pub(crate) fn authenticate(&self, config: &mut Config, io: &IoThread) -> Option<ProviderTask> {
        let sasl = self.sasl.as_ref()?;
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let in_the_clear = self.is_in_the_clear();
        config.sasl = Some(sasl.settings(wall.unwrap_or_default(), in_the_clear));
        let runtime = Handle::try_current().unwrap_or_else(|_| io.handle().clone());
        Some(ProviderTask::new(sasl.provider()?, runtime))
    }

    pub(crate) fn io(&self) -> Result<Arc<IoThread>, Error> {
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
            "{address:?} is not a broker's address: write it as \"host:port\", an IPv6 address as \"[::1]:9092\", without a scheme"
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

#[cfg(test)]
mod tests {
    use super::parse_address;

    /// L27: a trailing dot belongs to the name; an IPv6 address stands in brackets and loses them.
    #[test]
    fn addresses_of_every_kind_are_read() {
        for (written, host, port) in [
            ("b-1.example.:9092", "b-1.example.", 9092),
            ("[::1]:9092", "::1", 9092),
            ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
            ("127.0.0.1:65535", "127.0.0.1", 65535),
        ] {
            let read = parse_address(written).unwrap();
            assert_eq!((&*read.0, read.1), (host, port), "{written}");
        }
        let kafka = super::Kafka::new(["a:1, b:2", "c:3"]);
        let listed: Vec<u16> = kafka.addresses().unwrap().iter().map(|a| a.1).collect();
        assert_eq!(listed, [1, 2, 3]);
        for wrong in [
            "",
            "host",
            ":9092",
            "host:",
            "host:0",
            "host:65536",
            "::1:9092",
            "[::1]",
            "[::1:9092",
            "::1]:9092",
            "[host]:9092",
            "http://host:80",
            "a b:1",
        ] {
            let told = parse_address(wrong).unwrap_err().to_string();
            assert!(told.contains("host:port"), "{wrong:?}: {told}");
        }
    }
}
