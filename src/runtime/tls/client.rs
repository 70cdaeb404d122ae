//! What connections are secured with: made of the settings, and made anew when a file has changed.

use super::verify::{AnyName, Anyone};
use super::words::{self, Peer};
use super::{Checks, Source, Tls, TlsVersion, pem, provider};
use crate::error::Error;
use crate::runtime::connector::Stream;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::BufReader;
use tokio_rustls::TlsConnector;

/// Read from the socket at once. rustls itself asks for 4 KiB, a system call for each.
const READ_BYTES: usize = 64 << 10;

/// The settings of one [`Kafka`](crate::Kafka), ready for its connections.
pub(crate) struct Client {
    settings: Tls,
    provider: Arc<CryptoProvider>,
    system: Vec<CertificateDer<'static>>,
    seed: RandomState,
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ClientConfig>,
    /// Of the contents that `config` was made of.
    stamp: u64,
    /// Of contents that could not be used; the user has been told.
    refused: Option<u64>,
}

impl Client {
    /// Reads what the settings name.
    pub(crate) fn new(settings: Tls) -> Result<Self, Error> {
        let provider = provider::choose(settings.provider.as_ref())?;
        if let Some(name) = &settings.server_name {
            server_name(name)?;
        }
        let system = match settings.uses_system_roots() {
            true => system_roots()?,
            false => Vec::new(),
        };
        match settings.checks {
            Checks::All => {}
            Checks::NotTheName => tracing::warn!(
                "TLS: the names in brokers' certificates are not checked (dangerously_skip_host_name_check)"
            ),
            Checks::None => tracing::warn!(
                "TLS: brokers' certificates are not checked at all (dangerously_trust_anyone): whoever sits between \
                 can read and change everything"
            ),
        }
        let seed = RandomState::new();
        let contents = read(&settings)?;
        let config = build(&settings, &provider, &system, &contents)?;
        let current = Current {
            config: Arc::new(config),
            stamp: seed.hash_one(&contents),
            refused: None,
        };
        Ok(Client {
            settings,
            provider,
            system,
            seed,
            current: Mutex::new(current),
        })
    }

    /// Speaks TLS over `stream` with the broker that was dialled as `host`.
    pub(crate) async fn secure(
        self: &Arc<Self>,
        host: &str,
        stream: Stream,
    ) -> Result<Stream, Error> {
        let wanted = self.settings.server_name.as_deref().unwrap_or(host);
        let name = server_name(wanted)?;
        let config = self.config().await;
        let stream = BufReader::with_capacity(READ_BYTES, stream);
        let connector = TlsConnector::from(config);
        match connector.connect(name, stream).await {
            Ok(secured) => Ok(Box::new(secured)),
            Err(e) => Err(words::handshake(&e, &self.peer(wanted))),
        }
    }

    /// What is known of the other side, for words.
    pub(crate) fn peer<'a>(&self, name: &'a str) -> Peer<'a> {
        Peer {
            name,
            shows_identity: self.settings.identity.is_some(),
        }
    }

    /// The configuration for a new connection: of what the files hold now, if that can be used.
    async fn config(self: &Arc<Self>) -> Arc<ClientConfig> {
        let is_file = |source: &Source| matches!(source, Source::File(_));
        if self.settings.sources().any(is_file) {
            // A file may be on a disk that hangs; sessions are kept on this thread.
            let this = self.clone();
            let _ = tokio::task::spawn_blocking(move || this.reread()).await;
        }
        self.lock().config.clone()
    }

    fn reread(&self) {
        let contents = read(&self.settings);
        let stamp = match &contents {
            Ok(contents) => self.seed.hash_one(contents),
            Err(e) => self.seed.hash_one(e.message()),
        };
        {
            let current = self.lock();
            if stamp == current.stamp || Some(stamp) == current.refused {
                return;
            }
        }
        let made = contents.and_then(|c| build(&self.settings, &self.provider, &self.system, &c));
        let mut current = self.lock();
        match made {
            Ok(config) => {
                tracing::info!(
                    "TLS: the files have changed; new connections use what they hold now"
                );
                *current = Current {
                    config: Arc::new(config),
                    stamp,
                    refused: None,
                };
            }
            // Step 1: a new certificate is in its file, its key is not yet. Step 2: we read both,
            // and they do not fit. Step 3: the key follows, and the next connection reads again.
            Err(e) => {
                tracing::warn!(
                    "TLS: the files have changed and cannot be used; what was loaded before stays in use: {}",
                    e.message()
                );
                current.refused = Some(stamp);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

/// What every source holds, in the order of [`Tls::sources`].
fn read(settings: &Tls) -> Result<Vec<Arc<[u8]>>, Error> {
    settings.sources().map(pem::contents).collect()
}

fn build(
    settings: &Tls,
    provider: &Arc<CryptoProvider>,
    system: &[CertificateDer<'static>],
    contents: &[Arc<[u8]>],
) -> Result<ClientConfig, Error> {
    let wrong = |e: rustls::Error| Error::misuse(format!("TLS: these settings cannot be: {e}"));
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions(settings))
        .map_err(wrong)?;
    let roots = || roots(settings, system, contents);
    let verifier = || -> Result<Arc<WebPkiServerVerifier>, Error> {
        let made = WebPkiServerVerifier::builder_with_provider(roots()?.into(), provider.clone());
        made.build()
            .map_err(|e| Error::misuse(format!("TLS: these authorities cannot be used: {e}")))
    };
    let builder = match settings.checks {
        Checks::All => builder.with_webpki_verifier(verifier()?),
        Checks::NotTheName => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyName(verifier()?))),
        Checks::None => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone(provider.clone()))),
    };
    let (Some(identity), [.., chain, key]) = (&settings.identity, contents) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = pem::certificates(&identity.chain, chain)?;
    let key = pem::key(&identity.key, key)?;
    builder.with_client_auth_cert(chain, key).map_err(|e| {
        let (chain, key) = (&identity.chain, &identity.key);
        Error::misuse(match e {
            rustls::Error::InconsistentKeys(_) => format!(
                "TLS: the key in {key:?} is not that of the first certificate in {chain:?}"
            ),
            e => format!(
                "TLS: the certificate in {chain:?} with the key in {key:?} cannot be used: {e}; RSA, ECDSA on P-256 \
                 and P-384, and Ed25519 are known"
            ),
        })
    })
}

fn versions(settings: &Tls) -> Vec<&'static SupportedProtocolVersion> {
    let all = [
        (TlsVersion::V1_3, &version::TLS13),
        (TlsVersion::V1_2, &version::TLS12),
    ];
    let wanted = &settings.versions;
    all.into_iter()
        .filter(|(v, _)| wanted.is_empty() || wanted.contains(v))
        .map(|(_, version)| version)
        .collect()
}

fn roots(
    settings: &Tls,
    system: &[CertificateDer<'static>],
    contents: &[Arc<[u8]>],
) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    // A machine's list may hold some that are older than the rules; those are passed over.
    roots.add_parsable_certificates(system.iter().cloned());
    #[cfg(feature = "webpki-roots")]
    if settings.trust.webpki {
        let theirs = webpki_roots::TLS_SERVER_ROOTS.iter().cloned();
        roots.roots.extend(theirs);
    }
    for (source, pem) in settings.trust.named.iter().zip(contents) {
        for certificate in pem::certificates(source, pem)? {
            roots.add(certificate).map_err(|e| {
                Error::misuse(format!(
                    "TLS: a certificate in {source:?} cannot be an authority: {e}"
                ))
            })?;
        }
    }
    Ok(roots)
}

fn system_roots() -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = rustls_native_certs::load_native_certs();
    if !found.certs.is_empty() {
        return Ok(found.certs);
    }
    let why: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
    let why = match why.is_empty() {
        true => String::new(),
        false => format!(" ({})", why.join("; ")),
    };
    Err(Error::misuse(format!(
        "TLS: this machine has no list of authorities{why}: install its package (ca-certificates), or name the CA of \
         your brokers with Tls::ca_file"
    )))
}

/// What a certificate must be of. A trailing dot belongs to the look-up of a name, and a zone to
/// this machine's way to an address; neither is part of what is certified.
fn server_name(host: &str) -> Result<ServerName<'static>, Error> {
    let bare = host.trim_matches(['[', ']']);
    let address = bare.split_once('%').map_or(bare, |(address, _)| address);
    if let Ok(address) = address.parse::<IpAddr>() {
        return Ok(ServerName::from(address));
    }
    let name = bare.strip_suffix('.').unwrap_or(bare).to_owned();
    ServerName::try_from(name).map_err(|_| {
        Error::misuse(format!(
            "TLS: no certificate can be of `{host}`, which is no host name: correct the broker's advertised.listeners \
             or use Tls::server_name"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L27: neither the dot at the end of a name nor the brackets and zone of an address are part
    /// of what a certificate is checked for.
    #[test]
    fn names_as_certificates_have_them() {
        for (host, name) in [
            ("b-1.example.", "b-1.example"),
            ("broker_1", "broker_1"),
            ("[::1]", "::1"),
            ("fe80::1%eth0", "fe80::1"),
            ("10.0.0.1", "10.0.0.1"),
        ] {
            assert_eq!(server_name(host).unwrap().to_str(), name, "{host}");
        }
        let told = server_name("no name").unwrap_err();
        assert!(told.message().contains("advertised.listeners"), "{told}");
    }

    #[test]
    fn both_versions_unless_told() {
        assert_eq!(versions(&Tls::new()).len(), 2);
        let one = versions(&Tls::new().versions([TlsVersion::V1_2]));
        assert_eq!(one[0].version, rustls::ProtocolVersion::TLSv1_2);
        assert_eq!(one.len(), 1);
    }

    #[test]
    fn the_machines_own_roots_go_once_others_are_named() {
        assert!(Tls::new().uses_system_roots());
        assert!(!Tls::new().ca_file("ca.pem").uses_system_roots());
        let both = Tls::new().ca_file("ca.pem").system_roots();
        assert!(both.uses_system_roots());
        assert!(!Tls::new().dangerously_trust_anyone().uses_system_roots());
    }

    #[test]
    fn what_is_shown_holds_no_key() {
        let tls = Tls::new().identity_pem("chain", "the secret");
        let shown = format!("{tls:?}");
        assert!(
            !shown.contains("secret") && shown.contains("10 bytes"),
            "{shown}"
        );
    }
}
