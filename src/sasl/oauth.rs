//! OAUTHBEARER (RFC 7628): a token, and a server that says in JSON why it does not like it.

use super::credentials::Token;
use super::secret::{Secret, join};
use std::fmt::Write;

/// What a server's complaint is cut to.
const COMPLAINT_CHARS_MAX: usize = 200;

/// The client's message. Extensions (KIP-342) have been checked when the token was made.
pub(super) fn first(token: &Token) -> Secret {
    let mut extensions = String::new();
    for (name, value) in token.extensions() {
        // Writing to a string cannot fail.
        let _ = write!(extensions, "{name}={value}\u{1}");
    }
    let value = token.value().as_bytes();
    join(&[
        b"n,,\x01auth=Bearer ",
        value,
        b"\x01",
        extensions.as_bytes(),
        b"\x01",
    ])
}

/// What the client says to a complaint, so that the server ends the exchange.
pub(super) fn resigned() -> Secret {
    Secret::from("\u{1}")
}

/// A server's complaint in one line: `status`, and `scope` where it names one.
pub(super) fn complaint(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let field = |name: &str| {
        let rest = &text[text.find(&format!("\"{name}\""))? + name.len() + 2..];
        let rest = rest.trim_start().strip_prefix(':')?.trim_start();
        let value = rest.strip_prefix('"')?;
        Some(printable(&value[..value.find('"')?]))
    };
    match (field("status"), field("scope")) {
        (Some(status), Some(scope)) => format!("{status}, scope {scope:?} wanted"),
        (Some(status), None) => status,
        (None, _) => printable(&text),
    }
}

/// What may stand in a log: no controls, and not much of it.
pub(super) fn printable(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(COMPLAINT_CHARS_MAX).map(clean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_the_standard() {
        let token = Token::new("abc.def.ghi");
        assert_eq!(
            first(&token).as_bytes(),
            b"n,,\x01auth=Bearer abc.def.ghi\x01\x01"
        );
        let token = token.extension("logicalCluster", "lkc-1").unwrap();
        let token = token.extension("identityPoolId", "pool 7").unwrap();
        assert_eq!(
            first(&token).as_bytes(),
            b"n,,\x01auth=Bearer abc.def.ghi\x01logicalCluster=lkc-1\x01identityPoolId=pool 7\x01\x01"
        );
    }

    #[test]
    fn complaints_are_read_where_they_can_be() {
        assert_eq!(complaint(br#"{"status":"invalid_token"}"#), "invalid_token");
        let both = br#"{ "scope" : "kafka", "status" : "insufficient_scope" }"#;
        assert_eq!(
            complaint(both),
            "insufficient_scope, scope \"kafka\" wanted"
        );
        assert_eq!(complaint(b"no\njson"), "no json");
        assert_eq!(complaint(br#"{"status":"#), "{\"status\":");
        assert_eq!(complaint(&[b'x'; 100_000]).len(), COMPLAINT_CHARS_MAX);
        assert_eq!(complaint(&[0xff]), "\u{fffd}");
    }
}
