//! How the cluster is reached: what connections run over and what secures them.

use super::Kafka;
use crate::error::Error;
#[cfg(feature = "tls-custom")]
use crate::runtime::tls::{Client, Tls};
use crate::runtime::{Connector, Way};
#[cfg(feature = "tls-custom")]
use std::sync::{Arc, Mutex, PoisonError};

/// Shared by the clones of a [`Kafka`]: what TLS has loaded, and the sessions that it resumes.
#[derive(Clone, Debug)]
pub(super) struct Security {
    way: Way,
    /// What must be called before a subscription can start.
    pub(super) wanting: Option<Error>,
    #[cfg(feature = "tls-custom")]
    tls: Option<Arc<Secured>>,
}

#[cfg(feature = "tls-custom")]
#[derive(Debug)]
struct Secured {
    settings: Tls,
    client: Mutex<Option<Arc<Client>>>,
}

impl Default for Security {
    fn default() -> Self {
        Security {
            way: Way::tcp(),
            wanting: None,
            #[cfg(feature = "tls-custom")]
            tls: None,
        }
    }
}

impl Security {
    /// Whether whoever listens on the network can read what is sent, as far as we know.
    pub(super) fn is_in_the_clear(&self) -> bool {
        #[cfg(feature = "tls-custom")]
        return self.tls.is_none();
        #[cfg(not(feature = "tls-custom"))]
        true
    }
}

impl Kafka {
    /// Secures every connection with TLS. What a listener of protocol `SSL` or `SASL_SSL` wants.
    ///
    /// ```
    /// use laneway::{Kafka, Tls};
    /// // Trusts what this machine trusts.
    /// let kafka = Kafka::new(["kafka-1.example.com:9093"]).tls(Tls::new());
    /// ```
    #[cfg(feature = "tls-custom")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.security.tls = Some(Arc::new(Secured {
            settings: tls,
            client: Mutex::new(None),
        }));
        self
    }

    /// Opens connections by this [`Connector`] in place of TCP.
    #[must_use]
    pub fn connector(mut self, connector: impl Connector) -> Self {
        self.security.way.connector(connector);
        self
    }

    /// What a driver opens connections by. Reads what TLS needs, the first time.
    pub(crate) fn way(&self) -> Result<Way, Error> {
        if let Some(wanting) = &self.security.wanting {
            return Err(wanting.clone());
        }
        #[cfg_attr(not(feature = "tls-custom"), expect(unused_mut))]
        let mut way = self.security.way.clone();
        #[cfg(feature = "tls-custom")]
        if let Some(secured) = &self.security.tls {
            let mut client = secured
                .client
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let made = match &*client {
                Some(made) => made.clone(),
                None => client
                    .insert(Arc::new(Client::new(secured.settings.clone())?))
                    .clone(),
            };
            way.tls = Some(made);
        }
        Ok(way)
    }
}
