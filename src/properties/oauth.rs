//! What the names of OAUTHBEARER say: where tokens come from.

use super::security::Login;
use crate::error::Error;
use crate::subscription::{ClientCredentials, Sasl};

/// The client-credentials grant (KIP-768, KIP-1139), as far as it was given.
#[derive(Default)]
pub(crate) struct OAuth {
    pub url: Option<String>,
    pub id: Option<String>,
    pub secret: Option<String>,
    pub scope: Option<String>,
    pub extensions: Vec<(String, String)>,
    /// A PEM file with the authorities of the endpoint.
    pub ca: Option<String>,
}

impl OAuth {
    /// `logicalCluster=lkc-1,identityPoolId=pool-1`
    pub(super) fn read_extensions(&mut self, list: &str) -> Result<(), String> {
        for pair in super::values::list(list) {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| "an extension without a value: NAME=VALUE,...".to_owned())?;
            self.extensions
                .push((name.trim().to_owned(), value.trim().to_owned()));
        }
        Ok(())
    }

    pub(super) fn login(&mut self) -> Result<Login, Error> {
        let Some(url) = self.url.take() else {
            return Ok(Login::Wanting(Error::misuse(
                "sasl.mechanism=OAUTHBEARER wants to know where tokens come from: give sasl.oauthbearer.token.endpoint.url \
                 with the client's id and secret, or call Kafka::sasl with a provider after Kafka::from_properties",
            )));
        };
        let (Some(id), Some(secret)) = (self.id.take(), self.secret.take()) else {
            return Err(Error::misuse(
                "sasl.oauthbearer.token.endpoint.url needs the client's id and secret: \
                 sasl.oauthbearer.client.credentials.client.id and .client.secret, sasl.oauthbearer.client.id and \
                 .client.secret, or clientId and clientSecret in sasl.jaas.config",
            ));
        };
        let mut tokens = ClientCredentials::new(&url, id, secret)?;
        if let Some(scope) = self.scope.take() {
            tokens = tokens.scope(scope);
        }
        for (name, value) in self.extensions.drain(..) {
            tokens = tokens.extension(name, value)?;
        }
        #[cfg(feature = "tls-custom")]
        if let Some(ca) = self.ca.take() {
            tokens = tokens.tls(crate::Tls::new().ca_file(ca));
        }
        Ok(Login::By(Sasl::oauthbearer(tokens)))
    }
}
