//! SASL as a listener does it: PLAIN, SCRAM, OAUTHBEARER with unsecured tokens, and sessions that
//! end (KIP-368).
//!
//! One setting holds for all listeners. A connection that has not said who it is, one whose
//! session is over, and one that asks for something else in the middle of an exchange are closed,
//! as Kafka closes them.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::{
    ApiKey, SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest,
    SaslHandshakeResponse,
};
use kafka_protocol::protocol::{Decodable, StrBytes};

use super::codes;
use super::core::{Call, Cluster, Outcome};
use crate::sasl::{base64_decode, base64_encode, scram_server};
use crate::time::Now;

/// Kafka lets a session be renewed once a second.
const RENEWAL_SPACING: Duration = Duration::from_secs(1);

/// Whom the listeners let in, and how.
///
/// ```
/// use laneway::broker::{ClusterConfig, SaslConfig};
/// let sasl = SaslConfig::new([("alice", "swordfish")]);
/// let cfg = ClusterConfig { sasl: Some(sasl), ..ClusterConfig::default() };
/// ```
#[derive(Clone, Debug)]
pub struct SaslConfig {
    /// Users and their passwords, for PLAIN and SCRAM.
    pub users: BTreeMap<String, String>,
    /// SASL's names of what is offered.
    pub mechanisms: Vec<String>,
    /// Rounds of SCRAM.
    pub scram_iterations: u32,
    /// How long a session lasts: Kafka's `connections.max.reauth.ms`. None: for ever.
    pub session: Option<Duration>,
}

impl SaslConfig {
    /// Every mechanism, 4096 rounds, and sessions without an end.
    pub fn new<U: Into<String>, P: Into<String>>(users: impl IntoIterator<Item = (U, P)>) -> Self {
        SaslConfig {
            users: users
                .into_iter()
                .map(|(u, p)| (u.into(), p.into()))
                .collect(),
            mechanisms: ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
                .map(str::to_owned)
                .to_vec(),
            scram_iterations: 4096,
            session: None,
        }
    }
}

/// What the brokers keep of passwords: by user, hash, password and rounds.
pub(crate) type ScramKeys = BTreeMap<(String, bool, String, u32), scram_server::Keys>;

/// What a connection has said of itself.
#[derive(Debug, Default)]
pub(crate) struct Auth {
    /// Who it is, and until when that is good.
    known: Option<(String, Option<Now>)>,
    exchange: Option<Exchange>,
    /// When the last renewal began.
    renewed_at: Option<Now>,
}

#[derive(Debug)]
struct Exchange {
    mechanism: String,
    scram: Option<(String, scram_server::Server)>,
    /// A token was complained of.
    complained: bool,
}

/// How one message of an exchange ends.
enum Verdict {
    Continue(Vec<u8>),
    /// Who it is, the last words, and how long the credentials are good for.
    Known(String, Vec<u8>, Option<Duration>),
    Refused,
}

impl Cluster {
    /// Makes a user, changes its password, or (with none) removes it. Sessions that stand go on.
    pub fn set_password(&mut self, user: &str, password: Option<&str>) {
        if let Some(sasl) = &mut self.cfg.sasl {
            match password {
                Some(password) => drop(sasl.users.insert(user.to_owned(), password.to_owned())),
                None => drop(sasl.users.remove(user)),
            }
        }
    }

    /// An unsecured token (RFC 7515, `alg` none) of this user, which is good for so long.
    #[must_use]
    pub fn token(&self, now: Now, user: &str, lifetime: Duration) -> String {
        let expires = self.wall(now) + lifetime;
        let seconds = expires.as_secs_f64();
        let claims = format!("{{\"sub\":\"{user}\",\"exp\":{seconds:.3}}}");
        let coded = |text: &str| {
            let padded = base64_encode(text.as_bytes());
            padded
                .trim_end_matches('=')
                .replace('+', "-")
                .replace('/', "_")
        };
        format!("{}.{}.", coded("{\"alg\":\"none\"}"), coded(&claims))
    }

    fn wall(&self, now: Now) -> Duration {
        let zero = u64::try_from(self.cfg.wall_ms_at_zero).unwrap_or(0);
        Duration::from_millis(zero) + now.since(Now(0))
    }

    /// Whether a request of this API may be served on a connection that said so much of itself.
    pub(crate) fn admits(&self, now: Now, auth: &Auth, api: ApiKey) -> bool {
        if self.cfg.sasl.is_none() {
            return true;
        }
        let begun = auth.exchange.is_some();
        match api {
            ApiKey::ApiVersions => !begun,
            ApiKey::SaslHandshake => !begun,
            ApiKey::SaslAuthenticate => begun,
            _ => {
                let live = |until: &Option<Now>| until.is_none_or(|until| now < until);
                !begun && auth.known.as_ref().is_some_and(|(_, until)| live(until))
            }
        }
    }

    pub(crate) fn sasl_handshake(&mut self, now: Now, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = SaslHandshakeRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let refuse = |code| SaslHandshakeResponse::default().with_error_code(code);
        let (Some(sasl), Some(auth)) = (&self.cfg.sasl, self.auths.get_mut(&call.conn)) else {
            return call.answer(&refuse(codes::ILLEGAL_SASL_STATE));
        };
        if let Some(code) = call.faults.error {
            return call.answer(&refuse(code));
        }
        let offered = || {
            sasl.mechanisms
                .iter()
                .map(|m| StrBytes::from_string(m.clone()))
        };
        if !sasl.mechanisms.iter().any(|m| *m == *req.mechanism) {
            let answer = refuse(codes::UNSUPPORTED_SASL_MECHANISM);
            return call.answer(&answer.with_mechanisms(offered().collect()));
        }
        if let Some((_, until)) = &auth.known {
            let soon = auth
                .renewed_at
                .is_some_and(|at| now.since(at) < RENEWAL_SPACING);
            if until.is_none() || soon {
                return call.answer(&refuse(codes::ILLEGAL_SASL_STATE));
            }
            auth.renewed_at = Some(now);
        }
        auth.exchange = Some(Exchange {
            mechanism: req.mechanism.to_string(),
            scram: None,
            complained: false,
        });
        let answer = SaslHandshakeResponse::default().with_mechanisms(offered().collect());
        call.answer(&answer)
    }

    pub(crate) fn sasl_authenticate(&mut self, now: Now, call: &Call, body: &mut Bytes) -> Outcome {
        let Ok(req) = SaslAuthenticateRequest::decode(body, call.version) else {
            return Outcome::Close;
        };
        let answer = SaslAuthenticateResponse::default();
        if self.cfg.sasl.is_none() {
            return call.answer(&answer.with_error_code(codes::ILLEGAL_SASL_STATE));
        }
        let exchange = self
            .auths
            .get_mut(&call.conn)
            .and_then(|a| a.exchange.take());
        let Some(mut exchange) = exchange else {
            return Outcome::Close;
        };
        let verdict = match call.faults.error {
            Some(_) => Verdict::Refused,
            None => self.judge(now, &mut exchange, &req.auth_bytes),
        };
        let Some(auth) = self.auths.get_mut(&call.conn) else {
            return Outcome::Close;
        };
        match verdict {
            Verdict::Continue(said) => {
                auth.exchange = Some(exchange);
                call.answer(&answer.with_auth_bytes(said.into()))
            }
            Verdict::Known(user, said, good_for) => {
                let session = self.cfg.sasl.as_ref().and_then(|s| s.session);
                // As Kafka has it: without that setting nothing ends, whatever the token says.
                let session = session.map(|s| good_for.map_or(s, |g| g.min(s)));
                auth.known = Some((user, session.map(|s| now + s)));
                let millis = session.map_or(0, |s| i64::try_from(s.as_millis()).unwrap_or(0));
                let mut answer = answer.with_auth_bytes(said.into());
                if call.version >= 1 {
                    answer.session_lifetime_ms = millis;
                }
                call.answer(&answer)
            }
            Verdict::Refused => {
                let code = call
                    .faults
                    .error
                    .unwrap_or(codes::SASL_AUTHENTICATION_FAILED);
                let said = format!(
                    "Authentication failed with mechanism {}",
                    exchange.mechanism
                );
                let answer = answer
                    .with_error_code(code)
                    .with_error_message(Some(StrBytes::from_string(said)));
                self.complete(now, call, call.frame(&answer));
                self.close(call.conn);
                Outcome::Parked
            }
        }
    }

    fn judge(&mut self, now: Now, exchange: &mut Exchange, said: &[u8]) -> Verdict {
        let Ok(text) = std::str::from_utf8(said) else {
            return Verdict::Refused;
        };
        let judged = match exchange.mechanism.as_str() {
            "PLAIN" => self.judge_plain(text),
            "OAUTHBEARER" => self.judge_token(now, exchange, text),
            _ => self.judge_scram(exchange, text),
        };
        judged.unwrap_or(Verdict::Refused)
    }

    fn judge_plain(&self, said: &str) -> Option<Verdict> {
        let mut parts = said.split('\0').skip(1);
        let (user, password) = (parts.next()?, parts.next()?);
        let known = self.cfg.sasl.as_ref()?.users.get(user)?;
        (known == password).then(|| Verdict::Known(user.to_owned(), Vec::new(), None))
    }

    fn judge_scram(&mut self, exchange: &mut Exchange, said: &str) -> Option<Verdict> {
        if let Some((user, server)) = exchange.scram.take() {
            let last = server.finish(said)?;
            return Some(Verdict::Known(user, last.into_bytes(), None));
        }
        let nonce = self.random();
        let sasl = self.cfg.sasl.as_ref()?;
        let (user, bare) = scram_server::user_of(said)?;
        let password = sasl.users.get(&user)?.clone();
        let sha512 = exchange.mechanism == "SCRAM-SHA-512";
        // A salt for each user, the same on all nodes, as in Kafka.
        let (salt, rounds) = (format!("salt of {user}"), sasl.scram_iterations);
        let kept = (user.clone(), sha512, password.clone(), rounds);
        let keys = match self.scram_keys.get(&kept) {
            Some(keys) => keys.clone(),
            None => {
                let (password, salt) = (password.as_bytes(), salt.as_bytes());
                let keys = scram_server::Server::keys(sha512, password, salt, rounds)?;
                self.scram_keys.insert(kept, keys.clone());
                keys
            }
        };
        let nonce = format_args!("{nonce:016x}");
        let salted = (salt.as_bytes(), rounds);
        let (server, first) = scram_server::Server::new(sha512, bare, keys, salted, nonce)?;
        exchange.scram = Some((user, server));
        Some(Verdict::Continue(first.into_bytes()))
    }

    fn judge_token(&self, now: Now, exchange: &mut Exchange, said: &str) -> Option<Verdict> {
        if exchange.complained {
            return None;
        }
        let token = said
            .split('\u{1}')
            .find_map(|p| p.strip_prefix("auth=Bearer "))?;
        let claims = claims_of(token);
        let field = |name: &str| {
            let claims = claims.as_deref()?;
            let rest = &claims[claims.find(&format!("\"{name}\":"))? + name.len() + 3..];
            Some(rest[..rest.find([',', '}'])?].trim_matches('"').to_owned())
        };
        let (user, expires) = (
            field("sub"),
            field("exp").and_then(|e| e.parse::<f64>().ok()),
        );
        let left = expires
            .and_then(|e| Duration::try_from_secs_f64(e).ok())
            .and_then(|e| e.checked_sub(self.wall(now)))
            .filter(|left| !left.is_zero());
        match (user, left) {
            (Some(user), Some(left)) => Some(Verdict::Known(user, Vec::new(), Some(left))),
            _ => {
                exchange.complained = true;
                Some(Verdict::Continue(br#"{"status":"invalid_token"}"#.to_vec()))
            }
        }
    }
}

/// The middle of an unsecured token.
fn claims_of(token: &str) -> Option<String> {
    let claims = token.split('.').nth(1)?;
    let mut padded = claims.replace('-', "+").replace('_', "/");
    while !padded.len().is_multiple_of(4) {
        padded.push('=');
    }
    String::from_utf8(base64_decode(&padded)?).ok()
}
