//! How a client says who it is.

use crate::error::{Error, ErrorKind};
use crate::runtime::Provide;
#[cfg(feature = "msk-iam")]
use crate::sasl::AwsCredentials;
use crate::sasl::{Credentials, Entropy, Mechanism, Password, Secret, Settings, Token};
use std::fmt::{self, Display};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Gives credentials when they are asked for: at the start, before they end, and after a broker
/// has refused the last ones. A closure that returns a future is one.
///
/// ```
/// use laneway::sasl::Token;
/// use laneway::{Kafka, Sasl};
/// use std::time::Duration;
///
/// async fn fetch_token() -> Result<(String, u64), std::io::Error> {
///     Ok(("eyJhbGciOi...".to_owned(), 3600)) // from your identity provider
/// }
///
/// let sasl = Sasl::oauthbearer(|| async {
///     let (value, seconds) = fetch_token().await?;
///     Ok::<_, std::io::Error>(Token::new(value).expires_in(Duration::from_secs(seconds)))
/// });
/// let kafka = Kafka::new(["localhost:9092"]).sasl(sasl);
/// ```
///
/// It runs on the caller's runtime, once at a time. One that takes over 30 seconds counts as
/// failed and is asked again; failures are paced and warned of. What is in use goes on working
/// until it ends; five minutes after that the subscription ends with the provider's error.
pub trait CredentialProvider<T>: Send + Sync + 'static {
    /// Fetches them anew. The error's text goes to logs: it must not hold secrets.
    fn provide(&self) -> Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;
}

impl<T, F, Fut, E> CredentialProvider<T> for F
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    E: Display,
{
    fn provide(&self) -> Pin<Box<dyn Future<Output = Result<T, Error>> + Send>> {
        let asked = self();
        Box::pin(async move {
            asked
                .await
                .map_err(|e| Error::new(ErrorKind::Transport, e.to_string()).retriable())
        })
    }
}

/// How a client says who it is: for [`Kafka::sasl`](crate::Kafka::sasl).
///
/// ```
/// use laneway::{Kafka, Sasl};
/// let sasl = Sasl::scram_sha_512("alice", "swordfish");
/// assert!(!format!("{sasl:?}").contains("swordfish"));
/// let kafka = Kafka::new(["localhost:9093"]).sasl(sasl);
/// ```
///
/// A refusal is final for the credentials that were refused: a subscription whose password no
/// broker has taken ends at once with the broker's words; one whose password worked, or whose
/// provider can give other ones, ends at the third refusal without an acceptance between. Passwords,
/// tokens and keys are shown in no log, error or `Debug`, and are wiped from memory when dropped.
#[derive(Clone)]
pub struct Sasl {
    mechanism: Mechanism,
    source: Source,
}

#[derive(Clone)]
enum Source {
    Fixed(Credentials),
    Provider(Provide),
}

impl Sasl {
    /// PLAIN: the password itself is sent. Use TLS with it; without, a warning says so.
    pub fn plain(user: impl Into<Arc<str>>, password: impl Into<Secret>) -> Self {
        Self::fixed(Mechanism::Plain, Password::new(user, password))
    }

    /// SCRAM over SHA-256: both sides prove that they know the password, and neither sends it.
    pub fn scram_sha_256(user: impl Into<Arc<str>>, password: impl Into<Secret>) -> Self {
        Self::fixed(Mechanism::ScramSha256, Password::new(user, password))
    }

    /// SCRAM over SHA-512.
    pub fn scram_sha_512(user: impl Into<Arc<str>>, password: impl Into<Secret>) -> Self {
        Self::fixed(Mechanism::ScramSha512, Password::new(user, password))
    }

    /// OAUTHBEARER: a bearer token, as RFC 7628 has it. The [provider](CredentialProvider) is asked for a
    /// new one when four fifths of a token's life are over.
    /// [`ClientCredentials`](crate::ClientCredentials) is one that asks an OAuth 2 token endpoint.
    pub fn oauthbearer(provider: impl CredentialProvider<Token>) -> Self {
        Self::provided(Mechanism::OAuthBearer, provider)
    }

    /// `AWS_MSK_IAM`: requests signed with AWS credentials, which the [provider](CredentialProvider) gives.
    #[cfg(feature = "msk-iam")]
    pub fn msk_iam(
        region: impl Into<Arc<str>>,
        provider: impl CredentialProvider<AwsCredentials>,
    ) -> Self {
        let region = region.into();
        Self::provided(Mechanism::MskIam { region }, provider)
    }

    /// PLAIN or SCRAM with a user and password that may change while the program runs: the
    /// [provider](CredentialProvider) is asked at the start, and again where a broker refuses them.
    ///
    /// ```
    /// use laneway::Sasl;
    /// use laneway::sasl::{Mechanism, Password};
    /// let sasl = Sasl::password_from(Mechanism::ScramSha256, || async {
    ///     let secret = std::fs::read_to_string("/run/secrets/kafka")?;
    ///     Ok::<_, std::io::Error>(Password::new("alice", secret.trim_end()))
    /// });
    /// ```
    pub fn password_from(
        mechanism: Mechanism,
        provider: impl CredentialProvider<Password>,
    ) -> Self {
        Self::provided(mechanism, provider)
    }

    fn fixed(mechanism: Mechanism, password: Password) -> Self {
        Sasl {
            mechanism,
            source: Source::Fixed(password.into()),
        }
    }

    fn provided<T>(mechanism: Mechanism, provider: impl CredentialProvider<T>) -> Self
    where
        T: Into<Credentials> + Send + 'static,
    {
        let provide =
            move || -> Pin<Box<dyn Future<Output = Result<Credentials, Error>> + Send>> {
                let asked = provider.provide();
                Box::pin(async move { asked.await.map(Into::into) })
            };
        Sasl {
            mechanism,
            source: Source::Provider(Arc::new(provide)),
        }
    }

    /// What the engine is told; `wall` is the time since 1970 at its beginning.
    pub(super) fn settings(&self, wall: Duration, in_the_clear: bool) -> Settings {
        let entropy = Entropy::new(crate::runtime::seed);
        let mut settings = Settings::new(self.mechanism.clone(), entropy);
        settings.wall_at_zero = wall;
        settings.in_the_clear = in_the_clear;
        if let Source::Fixed(credentials) = &self.source {
            settings.fixed = Some(credentials.clone());
        }
        settings
    }

    pub(super) fn provider(&self) -> Option<Provide> {
        match &self.source {
            Source::Fixed(_) => None,
            Source::Provider(provide) => Some(provide.clone()),
        }
    }
}

impl fmt::Debug for Sasl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Sasl");
        shown.field("mechanism", &self.mechanism);
        match &self.source {
            Source::Fixed(credentials) => shown.field("credentials", credentials),
            Source::Provider(_) => shown.field("credentials", &"of a provider"),
        };
        shown.finish()
    }
}
