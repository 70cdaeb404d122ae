//! What the subscriptions of a [`Kafka`] begin with, where it was made of properties.

use super::{Interest, Kafka};
use crate::engine::Config;
use crate::error::Error;
use crate::properties::{self, Ignored, Login, Setting};
use std::fmt;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Defaults {
    group: Option<Arc<str>>,
    settings: Vec<Setting>,
    ignored: Vec<Ignored>,
}

impl Kafka {
    /// A cluster and settings by the names that Kafka's own clients and librdkafka give them; all are
    /// listed in [`manual::properties`](crate::manual::properties). Each subscription, and
    /// each producer, begins with what they say of it; what is called on a builder wins.
    ///
    /// ```
    /// use laneway::{Kafka, Topics};
    /// let kafka = Kafka::from_properties([
    ///     ("bootstrap.servers", "kafka-1:9092"),
    ///     ("group.id", "billing"),
    ///     ("session.timeout.ms", "30000"),
    /// ])?;
    /// let subscription = kafka.subscribe(Topics::named(["payments"]));
    ///
    /// let told = Kafka::from_properties([("bootstrap.server", "kafka-1:9092")]).unwrap_err();
    /// assert!(told.to_string().contains("nearest known one is `bootstrap.servers`"));
    /// # Ok::<(), laneway::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse): a name that is not known, with the nearest that is; a value that cannot
    /// be.
    pub fn from_properties<I, K, V>(properties: I) -> Result<Self, Error>
    where
        I: IntoIterator<Item = (K, V)>,
        K: AsRef<str>,
        V: AsRef<str>,
    {
        let mut draft = properties::read(properties)?;
        let mut kafka = Kafka::new([draft.bootstrap]);
        if let Some(id) = draft.client_id {
            kafka = kafka.client_id(id);
        }
        #[cfg(feature = "tls-custom")]
        if let Some(tls) = draft.security.tls()? {
            kafka = kafka.tls(tls);
        }
        #[cfg(not(feature = "tls-custom"))]
        draft.security.tls()?;
        match draft.security.sasl()? {
            Login::None => {}
            Login::By(sasl) => kafka = kafka.sasl(sasl),
            Login::Wanting(error) => kafka.security.wanting = Some(error),
        }
        let mut ignored = draft.ignored;
        ignored.extend(draft.security.unused());
        for Ignored { name, why } in &ignored {
            tracing::info!("property `{name}` changes nothing here: {why}");
        }
        kafka.defaults = Arc::new(Defaults {
            group: draft.group.map(Arc::from),
            settings: draft.settings,
            ignored,
        });
        Ok(kafka)
    }

    /// The properties given to [`Kafka::from_properties`] that change nothing here, each with the
    /// reason. Each is an `info` event of `tracing` too.
    #[must_use]
    pub fn ignored_properties(&self) -> &[Ignored] {
        &self.defaults.ignored
    }

    /// What a producer begins with: of the properties, those of connections count for it too.
    pub(crate) fn apply_properties(&self, config: &mut Config) {
        self.defaults.apply(config);
    }
}

impl Defaults {
    pub(super) fn group_of(&self, mut what: Interest) -> Interest {
        if let Some(group) = &self.group {
            what.default_group(group);
        }
        what
    }

    pub(super) fn apply(&self, config: &mut Config) {
        for set in &self.settings {
            set(config);
        }
    }
}

impl fmt::Debug for Defaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Defaults")
            .field("group", &self.group)
            .field("settings", &self.settings.len())
            .field("ignored", &self.ignored)
            .finish()
    }
}
