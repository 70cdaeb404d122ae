//! Tokens from an OAuth 2 token endpoint, by the client's own credentials (KIP-768).

mod endpoint;
mod http;

use super::CredentialProvider;
use crate::error::{Error, ErrorKind};
#[cfg(feature = "tls-custom")]
use crate::runtime::tls::{Client, Tls};
use crate::runtime::{Connector, Way};
use crate::sasl::{Secret, Token, basic, granted, join};
use endpoint::Endpoint;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
#[cfg(feature = "tls-custom")]
use std::sync::PoisonError;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

/// The longest that one question may take, the connection included.
const ASKED_MAX: Duration = Duration::from_secs(20);

/// Asks an OAuth 2 token endpoint for tokens, by the client-credentials grant (RFC 6749, section
/// 4.4). [`Sasl::oauthbearer`](crate::Sasl::oauthbearer) takes it.
///
/// ```
/// use laneway::{ClientCredentials, Kafka, Sasl, Tls};
/// let tokens = ClientCredentials::new(
///     "https://login.example.com/oauth2/token",
///     "billing",
///     "swordfish",
/// )?
/// .scope("kafka");
/// assert!(!format!("{tokens:?}").contains("swordfish"));
/// let kafka = Kafka::new(["kafka-1.example.com:9093"])
///     .tls(Tls::new())
///     .sasl(Sasl::oauthbearer(tokens));
/// # Ok::<(), laneway::Error>(())
/// ```
///
/// A token lives as long as the answer's `expires_in` says; where that is missing, until the
/// `exp` of a token that is a JWT. The endpoint is asked again when four fifths of that are over.
///
/// The question is one HTTP/1.1 request over a connection of its own. The endpoint's certificate
/// is checked against the authorities that this machine trusts, or as
/// [`tls`](ClientCredentials::tls) says; the cluster's own settings do not count here. Redirects
/// are not followed, proxies of the environment are not used
/// ([`connector`](ClientCredentials::connector) brings one), and of an answer 32 KiB of head
/// and 256 KiB of body are looked at. It runs on the caller's runtime, whose I/O and time must be
/// enabled (`enable_all`).
#[derive(Clone)]
#[must_use = "it asks for nothing before Sasl::oauthbearer"]
pub struct ClientCredentials {
    endpoint: Endpoint,
    id: Arc<str>,
    secret: Secret,
    in_body: bool,
    scope: Option<String>,
    parameters: Vec<(String, Secret)>,
    extensions: Vec<(String, String)>,
    way: Way,
    #[cfg(feature = "tls-custom")]
    tls: Tls,
    /// The way with TLS, once it has been made.
    made: Arc<Mutex<Option<Way>>>,
}

impl ClientCredentials {
    /// `url` is that of the endpoint itself, with `https`; or with `http` where it is on this
    /// machine (`localhost`).
    ///
    /// # Errors
    /// The URL cannot be asked, or would show the secret to whoever listens on the network.
    pub fn new(
        url: &str,
        id: impl Into<Arc<str>>,
        secret: impl Into<Secret>,
    ) -> Result<Self, Error> {
        let endpoint = Endpoint::read(url)?;
        if !endpoint.secure && !endpoint.is_here() {
            return Err(Error::misuse(format!(
                "{url:?} would show the client's secret to whoever listens on the network: use https, or \
                 ClientCredentials::dangerously_in_the_clear"
            )));
        }
        Self::of(endpoint, id.into(), secret.into())
    }

    /// As [`ClientCredentials::new`], and `http` may lead anywhere: whoever listens on the network
    /// learns the secret and the tokens.
    ///
    /// # Errors
    /// The URL cannot be asked.
    pub fn dangerously_in_the_clear(
        url: &str,
        id: impl Into<Arc<str>>,
        secret: impl Into<Secret>,
    ) -> Result<Self, Error> {
        Self::of(Endpoint::read(url)?, id.into(), secret.into())
    }

    fn of(endpoint: Endpoint, id: Arc<str>, secret: Secret) -> Result<Self, Error> {
        #[cfg(not(feature = "tls-custom"))]
        if endpoint.secure {
            return Err(Error::misuse(
                "a token endpoint with https needs TLS, which is not in this build: switch on the feature `tls`",
            ));
        }
        Ok(ClientCredentials {
            endpoint,
            id,
            secret,
            in_body: false,
            scope: None,
            parameters: Vec::new(),
            extensions: Vec::new(),
            way: Way::tcp(),
            #[cfg(feature = "tls-custom")]
            tls: Tls::new(),
            made: Arc::default(),
        })
    }

    /// What the token is for, in the server's words; several with blanks between them.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scope = Some(scope.into());
        self
    }

    /// Something more that this server wants in the question: `audience`, `resource`. The value is
    /// kept like a secret.
    pub fn parameter(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.parameters.push((name.into(), value.into()));
        self
    }

    /// Sends id and secret as `client_id` and `client_secret` among the parameters, in place of
    /// the header `Authorization`: for servers that do not read that.
    pub fn secret_in_body(mut self) -> Self {
        self.in_body = true;
        self
    }

    /// Something to say to the broker beside the token: [`Token::extension`].
    ///
    /// # Errors
    /// As there.
    pub fn extension(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, Error> {
        let (name, value) = (name.into(), value.into());
        Token::new("").extension(name.clone(), value.clone())?;
        self.extensions.push((name, value));
        Ok(self)
    }

    /// How the connection to the endpoint is secured.
    #[cfg(feature = "tls-custom")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self.made = Arc::default();
        self
    }

    /// Opens connections to the endpoint by this [`Connector`] in place of TCP.
    pub fn connector(mut self, connector: impl Connector) -> Self {
        self.way.connector(connector);
        self.made = Arc::default();
        self
    }

    async fn ask(self) -> Result<Token, Error> {
        let way = self.way().await?;
        let until = Instant::now() + ASKED_MAX;
        let asked = async {
            let stream = way
                .open(&self.endpoint.host, self.endpoint.port, until)
                .await?;
            http::exchange(stream, &self.request()).await
        };
        let late = |_| {
            let why = format!("it did not answer within {ASKED_MAX:?}");
            Err(Error::new(ErrorKind::Transport, why).retriable())
        };
        let answer = timeout_at(until, asked).await.unwrap_or_else(late)?;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        let token = granted(answer.status, &answer.body, wall.unwrap_or_default())?;
        let mut extensions = self.extensions.into_iter();
        extensions.try_fold(token, |token, (name, value)| token.extension(name, value))
    }

    /// What leads there; reads what TLS needs, the first time, where a disk that hangs holds up
    /// nobody else.
    async fn way(&self) -> Result<Way, Error> {
        #[cfg(feature = "tls-custom")]
        if self.endpoint.secure {
            let (made, mut way, tls) = (self.made.clone(), self.way.clone(), self.tls.clone());
            let making = tokio::task::spawn_blocking(move || -> Result<Way, Error> {
                let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(way) = &*made {
                    return Ok(way.clone());
                }
                way.tls = Some(Arc::new(Client::new(tls)?));
                Ok(made.insert(way).clone())
            });
            let gone = |_| Error::new(ErrorKind::Handler, "the runtime of the program is gone");
            return making.await.map_err(gone)?;
        }
        Ok(self.way.clone())
    }

    /// The whole of it, head and body.
    fn request(&self) -> Secret {
        let mut form = Zeroizing::new(String::from("grant_type=client_credentials"));
        let mut push = |name: &str, value: &[u8]| {
            let part = [&encoded(name.as_bytes())[..], "=", &encoded(value)].concat();
            *form = [&form[..], "&", &Zeroizing::new(part)].concat();
        };
        if let Some(scope) = &self.scope {
            push("scope", scope.as_bytes());
        }
        for (name, value) in &self.parameters {
            push(name, value.as_bytes());
        }
        let mut authorization = Zeroizing::new(String::new());
        if self.in_body {
            push("client_id", self.id.as_bytes());
            push("client_secret", self.secret.as_bytes());
        } else {
            // RFC 6749, section 2.3.1: each is encoded as in a form, then both as a user's.
            let user = encoded(self.id.as_bytes());
            let pair = [&user[..], ":", &encoded(self.secret.as_bytes())].concat();
            let coded = Zeroizing::new(basic(Zeroizing::new(pair).as_bytes()));
            authorization = Zeroizing::new(["Authorization: Basic ", &coded, "\r\n"].concat());
        }
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: laneway\r\nAccept: application/json\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\nConnection: close\r\n",
            self.endpoint.path,
            self.endpoint.authority,
            form.len()
        );
        join(&[
            head.as_bytes(),
            authorization.as_bytes(),
            b"\r\n",
            form.as_bytes(),
        ])
    }
}

impl CredentialProvider<Token> for ClientCredentials {
    fn provide(&self) -> Pin<Box<dyn Future<Output = Result<Token, Error>> + Send>> {
        let this = self.clone();
        Box::pin(async move {
            let at = this.endpoint.authority.clone();
            this.ask().await.map_err(|e| {
                let message = format!("the token endpoint at {at}: {}", e.message());
                e.with_message(message)
            })
        })
    }
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters: Vec<_> = self.parameters.iter().map(|(name, _)| name).collect();
        let mut shown = f.debug_struct("ClientCredentials");
        shown
            .field("endpoint", &self.endpoint)
            .field("id", &self.id)
            .field("secret", &self.secret)
            .field("scope", &self.scope)
            .field("parameters", &parameters);
        #[cfg(feature = "tls-custom")]
        shown.field("tls", &self.tls);
        shown.finish_non_exhaustive()
    }
}

/// As a form has it (`application/x-www-form-urlencoded`).
fn encoded(bytes: &[u8]) -> Zeroizing<String> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut text = Zeroizing::new(String::with_capacity(3 * bytes.len()));
    for &byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'*' => {
                text.push(char::from(byte));
            }
            b' ' => text.push('+'),
            byte => {
                text.push('%');
                text.push(char::from(HEX[usize::from(byte >> 4)]));
                text.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests;
