//! TLS: which authorities are trusted, who we are, what is checked, and by whose cryptography.
//!
//! [`Tls`] holds settings alone. [`Client`] is made of them when a subscription starts, and gives a
//! rustls configuration to each new connection; where a file has changed since, a new one.
//!
//! Invariants:
//! 1. Settings that cannot be are refused before any I/O on the network, as misuse.
//! 2. Files that cannot be read later cost nothing but a warning: the configuration before stays.
//! 3. A check that is off is off because the user has called a function with an ugly name.

mod client;
mod pem;
mod provider;
mod verify;
mod words;

pub(crate) use client::Client;
pub(super) use words::failure;

use rustls::crypto::CryptoProvider;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// A version of TLS. Older ones than these are not spoken.
///
/// ```
/// use laneway::{Tls, TlsVersion};
/// let modern = Tls::new().versions([TlsVersion::V1_3]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsVersion {
    /// TLS 1.2.
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// How connections to brokers are secured. [`Kafka::tls`](crate::Kafka::tls) takes it.
///
/// By default the authorities that this machine trusts are trusted, the certificate must be of the
/// host that the broker advertises (a name or an IP address), TLS 1.2 and 1.3 are spoken, and
/// sessions are resumed.
///
/// ```
/// use laneway::{Kafka, Tls};
/// let kafka = Kafka::new(["kafka-1.example.com:9093"]).tls(
///     Tls::new()
///         .ca_file("/etc/kafka/ca.pem")
///         .identity_files("/etc/kafka/client.pem", "/etc/kafka/client.key"),
/// );
/// ```
///
/// Files are read when a subscription starts, and again for each new connection: what has changed
/// counts from then on. Where new contents cannot be used, a warning is logged and what was
/// loaded before stays in use.
///
/// # Whose cryptography
///
/// Exactly one provider is used, the first of these that there is:
///
/// 1. the one given to [`Tls::provider`];
/// 2. the process's default, where the program has installed one
///    (`rustls::crypto::CryptoProvider::install_default`);
/// 3. graviola, pure Rust, with the feature `tls` (default), on x86-64 and aarch64 processors that
///    have the instructions it needs: for x86-64 AES, PCLMULQDQ, BMI1, ADX, AVX and AVX2 (Intel
///    since 2015, AMD since 2017, unless a hypervisor hides some);
/// 4. aws-lc, with the feature `tls-aws-lc`, which compiles C;
/// 5. ring, with the feature `tls-ring`, which compiles C.
///
/// Where none is left, the subscription does not start, and the error says what is missing.
#[derive(Clone, Default)]
#[must_use = "settings do nothing before Kafka::tls"]
pub struct Tls {
    trust: Trust,
    identity: Option<Identity>,
    versions: Vec<TlsVersion>,
    server_name: Option<String>,
    provider: Option<Arc<CryptoProvider>>,
    checks: Checks,
}

/// Bytes, or where they are.
#[derive(Clone, PartialEq, Eq)]
enum Source {
    File(PathBuf),
    Bytes(Arc<[u8]>),
}

#[derive(Clone, Default)]
struct Trust {
    /// Beside what is named; alone where nothing is.
    system: bool,
    #[cfg(feature = "webpki-roots")]
    webpki: bool,
    named: Vec<Source>,
}

#[derive(Clone)]
struct Identity {
    chain: Source,
    key: Source,
}

/// What of the broker's certificate is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Checks {
    #[default]
    All,
    NotTheName,
    None,
}

impl Tls {
    /// The defaults: trust what this machine trusts, check everything, show no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities in this PEM file, and no longer those of the machine. Several files
    /// add up.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.trust.named.push(Source::File(path.into()));
        self
    }

    /// As [`Tls::ca_file`], with the file's contents.
    pub fn ca_pem(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.trust.named.push(Source::Bytes(pem.as_ref().into()));
        self
    }

    /// Trusts the authorities of this machine beside those that are named by other calls. Where
    /// none is named this is the default. They are read once, when a subscription starts.
    pub fn system_roots(mut self) -> Self {
        self.trust.system = true;
        self
    }

    /// Trusts the authorities that Mozilla trusts, as they were when this program was built,
    /// and no longer those of the machine.
    #[cfg(feature = "webpki-roots")]
    pub fn webpki_roots(mut self) -> Self {
        self.trust.webpki = true;
        self
    }

    /// Shows this certificate to brokers that ask for one: a PEM file with the certificate first
    /// and its issuers behind it, and a PEM file with its key, in PKCS#8, PKCS#1 or SEC1. Both may
    /// be the same file.
    pub fn identity_files(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some(Identity {
            chain: Source::File(chain.into()),
            key: Source::File(key.into()),
        });
        self
    }

    /// As [`Tls::identity_files`], with the files' contents.
    pub fn identity_pem(mut self, chain: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Self {
        self.identity = Some(Identity {
            chain: Source::Bytes(chain.as_ref().into()),
            key: Source::Bytes(key.as_ref().into()),
        });
        self
    }

    /// Speaks these versions only; 1.2 and 1.3 by default.
    pub fn versions(mut self, versions: impl IntoIterator<Item = TlsVersion>) -> Self {
        self.versions = versions.into_iter().collect();
        self
    }

    /// Expects every broker's certificate to be of this name, in place of the host that the broker
    /// advertises: for tunnels and port forwards.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Uses this provider; see [above](Tls#whose-cryptography) for what comes first without it.
    ///
    /// ```
    /// use laneway::{Tls, rustls::crypto::CryptoProvider};
    /// use std::sync::Arc;
    /// fn with(provider: Arc<CryptoProvider>) -> Tls {
    ///     Tls::new().provider(provider)
    /// }
    /// ```
    pub fn provider(mut self, provider: Arc<CryptoProvider>) -> Self {
        self.provider = Some(provider);
        self
    }

    /// Takes any certificate of a trusted authority, whichever host it is for. Whoever holds one
    /// can then read and change everything. Logged as a warning at each start;
    /// [`Tls::server_name`] is mostly what is wanted.
    pub fn dangerously_skip_host_name_check(mut self) -> Self {
        self.checks = Checks::NotTheName;
        self
    }

    /// Takes any certificate of anyone: whoever sits between can read and change everything.
    /// Logged as a warning at each start.
    pub fn dangerously_trust_anyone(mut self) -> Self {
        self.checks = Checks::None;
        self
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Tls");
        shown
            .field("ca", &self.trust.named)
            .field("system_roots", &self.uses_system_roots());
        #[cfg(feature = "webpki-roots")]
        shown.field("webpki_roots", &self.trust.webpki);
        shown
            .field("chain", &self.identity.as_ref().map(|i| &i.chain))
            .field("key", &self.identity.as_ref().map(|i| &i.key))
            .field("versions", &self.versions)
            .field("server_name", &self.server_name)
            .field("provider", &self.provider.as_ref().map(|_| "given"))
            .field("checks", &self.checks)
            .finish()
    }
}

/// Never what is in it: it may be a key.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
        }
    }
}

impl Tls {
    fn uses_system_roots(&self) -> bool {
        #[cfg(feature = "webpki-roots")]
        let others = self.trust.webpki || !self.trust.named.is_empty();
        #[cfg(not(feature = "webpki-roots"))]
        let others = !self.trust.named.is_empty();
        self.checks != Checks::None && (self.trust.system || !others)
    }

    fn sources(&self) -> impl Iterator<Item = &Source> {
        let identity = self.identity.iter().flat_map(|i| [&i.chain, &i.key]);
        self.trust.named.iter().chain(identity)
    }
}
