//! What a client authenticates with, and how.

use super::secret::Secret;
use crate::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A user and a password.
///
/// ```
/// use laneway::sasl::Password;
/// let password = Password::new("alice", "swordfish");
/// assert!(!format!("{password:?}").contains("swordfish"));
/// ```
///
/// The bytes go out as they are. RFC 4013 would have text beyond ASCII brought into one form
/// first, but Kafka's brokers and tools do not: a password of letters that have two forms would
/// never match. For servers that do, the feature `saslprep` adds `Password::prepared`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Password {
    pub(super) user: Arc<str>,
    pub(super) password: Secret,
}

impl Password {
    /// `user` may hold `,` and `=`.
    pub fn new(user: impl Into<Arc<str>>, password: impl Into<Secret>) -> Self {
        Password {
            user: user.into(),
            password: password.into(),
        }
    }

    /// Who it is.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }
}

/// A bearer token, and how long it is good for.
///
/// ```
/// use laneway::sasl::Token;
/// use std::time::Duration;
/// let token = Token::new("eyJhbGciOi...").expires_in(Duration::from_secs(3600));
/// assert_eq!(format!("{token:?}"), "Token { expires_in: Some(3600s), .. }");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    value: Secret,
    extensions: Vec<(String, String)>,
    expires_in: Option<Duration>,
}

impl Token {
    /// A token that does not expire, as far as we know: without
    /// [`expires_in`](Token::expires_in) it is asked for again only where a broker refuses it.
    pub fn new(value: impl Into<Secret>) -> Self {
        Token {
            value: value.into(),
            extensions: Vec::new(),
            expires_in: None,
        }
    }

    /// How long it is good for, from now. A new one is asked for when four fifths of that are over.
    #[must_use]
    pub fn expires_in(mut self, lifetime: Duration) -> Self {
        self.expires_in = Some(lifetime);
        self
    }

    /// Something to say beside the token (KIP-342): Confluent Cloud wants `logicalCluster` and
    /// `identityPoolId`.
    ///
    /// # Errors
    /// The name is not made of letters alone, or is `auth`; or the value has a control character.
    pub fn extension(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, Error> {
        let (name, value) = (name.into(), value.into());
        let letters = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphabetic());
        if !letters || name == "auth" {
            let why = format!(
                "{name:?} cannot name a SASL extension: letters A to Z in either case, and not `auth`"
            );
            return Err(Error::misuse(why));
        }
        let plain = |c: char| matches!(c, ' '..='~' | '\t' | '\r' | '\n');
        if !value.chars().all(plain) {
            let why = format!("the value of SASL extension {name} must be printable ASCII");
            return Err(Error::misuse(why));
        }
        self.extensions.push((name, value));
        Ok(self)
    }

    pub(super) fn value(&self) -> &Secret {
        &self.value
    }

    pub(super) fn extensions(&self) -> &[(String, String)] {
        &self.extensions
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("expires_in", &self.expires_in)
            .finish_non_exhaustive()
    }
}

/// What a provider gives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credentials {
    /// For PLAIN and SCRAM.
    Password(Password),
    /// For OAUTHBEARER.
    Token(Token),
    /// For `AWS_MSK_IAM`.
    #[cfg(feature = "msk-iam")]
    Aws(super::AwsCredentials),
}

impl Credentials {
    /// How long they are good for, where they say so.
    #[must_use]
    pub fn expires_in(&self) -> Option<Duration> {
        match self {
            Credentials::Password(_) => None,
            Credentials::Token(token) => token.expires_in,
            #[cfg(feature = "msk-iam")]
            Credentials::Aws(aws) => aws.lifetime(),
        }
    }
}

impl From<Password> for Credentials {
    fn from(password: Password) -> Self {
        Credentials::Password(password)
    }
}

impl From<Token> for Credentials {
    fn from(token: Token) -> Self {
        Credentials::Token(token)
    }
}

/// How to authenticate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mechanism {
    /// The password itself is sent: for TLS only.
    Plain,
    /// A proof of the password, over SHA-256.
    ScramSha256,
    /// A proof of the password, over SHA-512.
    ScramSha512,
    /// A token is sent: for TLS only.
    OAuthBearer,
    /// A signature with AWS credentials.
    #[cfg(feature = "msk-iam")]
    MskIam {
        /// Where the cluster is: `eu-central-1`.
        region: Arc<str>,
    },
}

impl Mechanism {
    /// SASL's name for it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Mechanism::Plain => "PLAIN",
            Mechanism::ScramSha256 => "SCRAM-SHA-256",
            Mechanism::ScramSha512 => "SCRAM-SHA-512",
            Mechanism::OAuthBearer => "OAUTHBEARER",
            #[cfg(feature = "msk-iam")]
            Mechanism::MskIam { .. } => "AWS_MSK_IAM",
        }
    }

    /// Whether somebody who listens could act as us afterwards.
    #[must_use]
    pub fn shows_secret(&self) -> bool {
        matches!(self, Mechanism::Plain | Mechanism::OAuthBearer)
    }

    /// What may stand in place of the credentials.
    pub(super) fn fits(&self, credentials: &Credentials) -> bool {
        match (self, credentials) {
            (Mechanism::OAuthBearer, Credentials::Token(_)) => true,
            #[cfg(feature = "msk-iam")]
            (Mechanism::MskIam { .. }, Credentials::Aws(_)) => true,
            (
                Mechanism::Plain | Mechanism::ScramSha256 | Mechanism::ScramSha512,
                Credentials::Password(_),
            ) => true,
            _ => false,
        }
    }
}

/// A source of numbers that nobody can guess, passed in by whoever drives the core.
#[derive(Clone)]
pub struct Entropy(Arc<dyn Fn() -> [u8; 32] + Send + Sync>);

impl Entropy {
    /// `f` gives other bytes at each call.
    pub fn new(f: impl Fn() -> [u8; 32] + Send + Sync + 'static) -> Self {
        Entropy(Arc::new(f))
    }

    pub(super) fn bytes(&self) -> [u8; 32] {
        (self.0)()
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy(..)")
    }
}

/// How a subscription authenticates.
///
/// ```
/// use laneway::sasl::{Entropy, Mechanism, Password, Settings};
/// // A test's entropy; a shell takes it from the system.
/// let entropy = Entropy::new(|| [7; 32]);
/// let mut settings = Settings::new(Mechanism::ScramSha256, entropy);
/// settings.fixed = Some(Password::new("alice", "swordfish").into());
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// How.
    pub mechanism: Mechanism,
    /// With what; none: whoever drives the engine is asked.
    pub fixed: Option<Credentials>,
    /// For nonces.
    pub entropy: Entropy,
    /// Wall time, since 1970, at `Now(0)`; for signatures that have a date.
    pub wall_at_zero: Duration,
    /// Whether connections are not encrypted; then it is said where a mechanism needs that.
    pub in_the_clear: bool,
    /// How long a provider may take.
    pub provider_timeout: Duration,
    /// For so long there may be no credentials that work; then the subscription ends.
    pub late_max: Duration,
}

impl Settings {
    /// Credentials come from whoever drives the engine, until [`fixed`](Settings::fixed) is set.
    #[must_use]
    pub fn new(mechanism: Mechanism, entropy: Entropy) -> Self {
        Settings {
            mechanism,
            fixed: None,
            entropy,
            wall_at_zero: Duration::ZERO,
            in_the_clear: false,
            provider_timeout: Duration::from_secs(30),
            late_max: Duration::from_secs(300),
        }
    }
}
