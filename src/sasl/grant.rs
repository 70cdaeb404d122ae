//! What a token endpoint answers (RFC 6749, sections 5.1 and 5.2; KIP-768).

use super::base64;
use super::credentials::Token;
use super::json::{Value, members};
use super::oauth::printable;
use super::secret::Secret;
use crate::error::{Error, ErrorKind};
use std::time::Duration;
use zeroize::Zeroizing;

/// What is looked at of a member that is there.
#[derive(Default)]
struct Said {
    token: Option<Zeroizing<String>>,
    kind: Option<String>,
    lifetime: Option<f64>,
    error: Option<String>,
    description: Option<String>,
}

/// The token in an answer with this HTTP status, or why there is none; `wall` is the time since
/// 1970. No part of a token gets into an error.
pub(crate) fn read(status: u16, body: &[u8], wall: Duration) -> Result<Token, Error> {
    let text = std::str::from_utf8(body).unwrap_or_default();
    let mut said = Said::default();
    let is_object = members(text, |name, value| said.take(name, value)).is_some();
    if !(200..300).contains(&status) {
        return Err(refusal(status, said, body));
    }
    if let (true, Some(error)) = (is_object, &said.error) {
        return Err(peer(format!("it answers {status} and says {error:?}")));
    }
    let token = match said.token {
        Some(token) if is_object => token,
        _ => {
            return Err(peer(format!(
                "its answer ({status}) is no JSON with an `access_token`"
            )));
        }
    };
    // RFC 6749 wants the type; some servers leave it out, and then mean this one.
    if let Some(kind) = said.kind.filter(|k| !k.eq_ignore_ascii_case("bearer")) {
        let why = format!("it gives a token of type {kind:?}, and OAUTHBEARER takes bearer tokens");
        return Err(peer(why));
    }
    // Kafka ends its fields with control characters; RFC 6750 has none in a token.
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        let why = "its token is empty, or has other than printable ASCII characters";
        return Err(peer(why.to_owned()));
    }
    let lifetime = match said.lifetime {
        Some(seconds) => Some(duration(seconds)),
        None => expiry(&token).map(|at| duration(at).saturating_sub(wall)),
    };
    let made = Token::new(Secret::from(token.as_bytes().to_vec()));
    Ok(match lifetime {
        Some(lifetime) => made.expires_in(lifetime),
        None => made,
    })
}

impl Said {
    /// Of a member that stands twice the last counts.
    fn take(&mut self, name: &str, value: Value) {
        match (name, value) {
            ("access_token", Value::Text(token)) => self.token = Some(token),
            ("token_type", Value::Text(kind)) => self.kind = Some(printable(&kind)),
            ("expires_in", Value::Number(seconds)) => self.lifetime = Some(seconds),
            // Some servers write it so.
            ("expires_in", Value::Text(seconds)) => {
                self.lifetime = seconds.parse().ok().filter(|s: &f64| s.is_finite());
            }
            ("error", Value::Text(error)) => self.error = Some(printable(&error)),
            ("error_description", Value::Text(said)) => self.description = Some(printable(&said)),
            _ => {}
        }
    }
}

/// The seconds, which may be any number there is: three centuries at most.
fn duration(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, 1e10))
}

/// When a token that is a JWT says it ends, in seconds since 1970. Its signature is the broker's
/// to check.
fn expiry(token: &str) -> Option<f64> {
    let claims = token.split('.').nth(1)?;
    let mut coded = Zeroizing::new(String::with_capacity(claims.len() + 3));
    coded.extend(claims.chars().map(|c| match c {
        '-' => '+',
        '_' => '/',
        c => c,
    }));
    while !coded.len().is_multiple_of(4) {
        coded.push('=');
    }
    let claims = Zeroizing::new(base64::decode(&coded)?);
    let mut expiry = None;
    members(std::str::from_utf8(&claims).ok()?, |name, value| {
        if let ("exp", Value::Number(at)) = (name, value) {
            expiry = Some(at);
        }
    })?;
    expiry
}

fn peer(why: String) -> Error {
    Error::new(ErrorKind::Peer, why)
}

/// In the server's words, where it has some.
fn refusal(status: u16, said: Said, body: &[u8]) -> Error {
    let words = match (said.error, said.description) {
        (Some(error), Some(more)) => format!("{error}: {more}"),
        (Some(error), None) => error,
        (None, _) => printable(&String::from_utf8_lossy(&body[..body.len().min(1024)])),
    };
    match status {
        300..400 => peer(format!(
            "it answers {status}, sends us elsewhere and is not followed there: give the address of the endpoint itself"
        )),
        // What may pass: too many requests, a server in trouble.
        408 | 425 | 429 | 500.. => {
            let why = format!("it answers {status}: {words}");
            Error::new(ErrorKind::Transport, why).retriable()
        }
        _ => Error::misuse(format!(
            "it refuses ({status}): {words}; are the client's id, secret and scope right?"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: Duration = Duration::from_secs(1_000_000);

    fn given(body: &str) -> Token {
        read(200, body.as_bytes(), WALL).unwrap()
    }

    fn expires_in(token: &Token) -> Option<Duration> {
        crate::sasl::Credentials::from(token.clone()).expires_in()
    }

    #[test]
    fn tokens_with_what_they_say_of_their_life() {
        let token = given(
            r#"{"access_token":"ab.c-d_e","token_type":"Bearer","expires_in":3600,"scope":"kafka"}"#,
        );
        assert_eq!(
            token,
            Token::new("ab.c-d_e").expires_in(Duration::from_secs(3600))
        );
        for (lifetime, wanted) in [
            ("\"60\"", Some(60)),
            ("0", Some(0)),
            ("-5", Some(0)),
            ("1e300", Some(10_000_000_000)),
            ("null", None),
            ("\"soon\"", None),
            ("\"NaN\"", None),
            ("\"inf\"", None),
        ] {
            let token = given(&format!(
                r#"{{"access_token":"x","expires_in":{lifetime}}}"#
            ));
            assert_eq!(
                expires_in(&token),
                wanted.map(Duration::from_secs),
                "{lifetime}"
            );
        }
    }

    /// Kafka's own client reads the end of a token's life from the token itself.
    #[test]
    fn a_token_without_a_life_beside_it_may_carry_one() {
        for (claims, wanted) in [
            (r#"{"sub":"a","exp":1000090}"#, Some(90)),
            (r#"{"exp":1000090,"x":"??>>~~"}"#, Some(90)),
            (r#"{"exp":999000}"#, Some(0)),
            (r#"{"exp":"1000090"}"#, None),
            ("no json", None),
        ] {
            let coded = base64::encode(claims.as_bytes())
                .replace('+', "-")
                .replace('/', "_");
            let coded = coded.trim_end_matches('=');
            let token = given(&format!(r#"{{"access_token":"e30.{coded}.sig"}}"#));
            assert_eq!(
                expires_in(&token),
                wanted.map(Duration::from_secs),
                "{claims}"
            );
        }
        assert_eq!(expires_in(&given(r#"{"access_token":"a.!!!.b"}"#)), None);
        // What stands beside it counts first.
        let both = given(r#"{"access_token":"e30.eyJleHAiOjF9.s","expires_in":5}"#);
        assert_eq!(expires_in(&both), Some(Duration::from_secs(5)));
    }

    #[test]
    fn refusals_in_the_servers_words() {
        for (status, body, words, kind, may_pass) in [
            (
                401,
                r#"{"error":"invalid_client","error_description":"bad\nsecret"}"#,
                "(401): invalid_client: bad secret; are",
                ErrorKind::Misuse,
                false,
            ),
            (
                400,
                r#"{"error":"invalid_scope"}"#,
                "invalid_scope;",
                ErrorKind::Misuse,
                false,
            ),
            (404, "<html>", "(404): <html>", ErrorKind::Misuse, false),
            (503, "later", "503: later", ErrorKind::Transport, true),
            (429, "", "429", ErrorKind::Transport, true),
            (302, "", "not followed", ErrorKind::Peer, false),
            (200, "<html>", "no JSON", ErrorKind::Peer, false),
            (200, r#"{"token":"x"}"#, "no JSON", ErrorKind::Peer, false),
            (
                200,
                r#"{"access_token":7}"#,
                "no JSON",
                ErrorKind::Peer,
                false,
            ),
            (
                200,
                r#"{"access_token":"t0ken"#,
                "no JSON",
                ErrorKind::Peer,
                false,
            ),
            (
                200,
                r#"{"access_token":"t0ken",}"#,
                "no JSON",
                ErrorKind::Peer,
                false,
            ),
            (
                200,
                r#"{"access_token":""}"#,
                "empty",
                ErrorKind::Peer,
                false,
            ),
            (
                200,
                r#"{"access_token":"t0ken\u0001"}"#,
                "printable",
                ErrorKind::Peer,
                false,
            ),
            (
                200,
                r#"{"access_token":"t0ken two"}"#,
                "printable",
                ErrorKind::Peer,
                false,
            ),
            (
                200,
                r#"{"access_token":"t0ken","token_type":"DPoP"}"#,
                "\"DPoP\"",
                ErrorKind::Peer,
                false,
            ),
            (
                200,
                r#"{"error":"oops","access_token":"t0ken"}"#,
                "\"oops\"",
                ErrorKind::Peer,
                false,
            ),
        ] {
            let error = read(status, body.as_bytes(), WALL).unwrap_err();
            assert!(error.message().contains(words), "{error}");
            assert_eq!(
                (error.kind(), error.is_retriable()),
                (kind, may_pass),
                "{error}"
            );
            assert!(!error.message().contains("t0ken"), "{error}");
        }
        let long = read(500, &[b'x'; 100_000], WALL).unwrap_err();
        assert!(long.message().len() < 300);
        assert!(read(200, &[0xff; 10], WALL).is_err());
    }
}
