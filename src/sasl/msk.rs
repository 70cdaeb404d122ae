//! `AWS_MSK_IAM`: a request signed with AWS credentials (Signature Version 4), sent as JSON.

use super::hash::Hash;
use super::secret::{Secret, join};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long a signature is good for; the broker takes no longer one.
const SIGNATURE_SECONDS: &str = "900";

/// AWS credentials, and how long they are good for.
///
/// ```
/// use laneway::sasl::AwsCredentials;
/// use std::time::Duration;
/// let credentials = AwsCredentials::new("AKIDEXAMPLE", "secret")
///     .session_token("token")
///     .expires_in(Duration::from_secs(3600));
/// assert!(!format!("{credentials:?}").contains("secret\""));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct AwsCredentials {
    access_key_id: Arc<str>,
    secret_access_key: Secret,
    session_token: Option<Secret>,
    expires_in: Option<Duration>,
}

impl AwsCredentials {
    /// Long-lived credentials.
    pub fn new(access_key_id: impl Into<Arc<str>>, secret_access_key: impl Into<Secret>) -> Self {
        AwsCredentials {
            access_key_id: access_key_id.into(),
            secret_access_key: secret_access_key.into(),
            session_token: None,
            expires_in: None,
        }
    }

    /// Temporary ones (of a role) come with a token.
    #[must_use]
    pub fn session_token(mut self, token: impl Into<Secret>) -> Self {
        self.session_token = Some(token.into());
        self
    }

    /// How long they are good for, from now.
    #[must_use]
    pub fn expires_in(mut self, lifetime: Duration) -> Self {
        self.expires_in = Some(lifetime);
        self
    }

    pub(super) fn lifetime(&self) -> Option<Duration> {
        self.expires_in
    }

    /// The only message of the exchange: `wall` is the time since 1970.
    pub(super) fn sign(&self, host: &str, region: &str, wall: Duration) -> Secret {
        let time = time_of(wall);
        let day = &time[..8];
        let scope = format!("{day}/{region}/kafka-cluster/aws4_request");
        let credential = format!("{}/{scope}", self.access_key_id);
        let session = self.session_token.as_ref();
        let session = session.map(|t| String::from_utf8_lossy(t.as_bytes()));
        // In the order of their names, as the signature wants them.
        let mut fields = vec![
            ("Action", "kafka-cluster:Connect"),
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
            ("X-Amz-Credential", &credential),
            ("X-Amz-Date", &time),
            ("X-Amz-Expires", SIGNATURE_SECONDS),
        ];
        if let Some(token) = &session {
            fields.push(("X-Amz-Security-Token", token));
        }
        fields.push(("X-Amz-SignedHeaders", "host"));
        let query: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{name}={}", percent(value)))
            .collect();
        let nothing = hex(Hash::Sha256.digest(b"").as_bytes());
        let request = format!(
            "GET\n/\n{}\nhost:{host}\n\nhost\n{nothing}",
            query.join("&")
        );
        let request = hex(Hash::Sha256.digest(request.as_bytes()).as_bytes());
        let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{request}");
        let key = signing_key(&self.secret_access_key, day, region, "kafka-cluster");
        let signature = hex(Hash::Sha256
            .hmac(key.as_bytes(), &[to_sign.as_bytes()])
            .as_bytes());

        let mut json = format!(
            "{{\"version\":\"2020_10_22\",\"host\":{},\"user-agent\":\"laneway\"",
            quoted(host)
        );
        for (name, value) in fields {
            json += &format!(",\"{}\":{}", name.to_ascii_lowercase(), quoted(value));
        }
        json += &format!(",\"x-amz-signature\":\"{signature}\"}}");
        json.into()
    }
}

impl fmt::Debug for AwsCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsCredentials")
            .field("access_key_id", &self.access_key_id)
            .field("expires_in", &self.expires_in)
            .finish_non_exhaustive()
    }
}

impl From<AwsCredentials> for super::Credentials {
    fn from(aws: AwsCredentials) -> Self {
        super::Credentials::Aws(aws)
    }
}

fn signing_key(secret: &Secret, day: &str, region: &str, service: &str) -> super::hash::Block {
    let first = join(&[b"AWS4", secret.as_bytes()]);
    let mut key = Hash::Sha256.hmac(first.as_bytes(), &[day.as_bytes()]);
    for part in [region, service, "aws4_request"] {
        key = Hash::Sha256.hmac(key.as_bytes(), &[part.as_bytes()]);
    }
    key
}

/// `20150830T123600Z`.
fn time_of(wall: Duration) -> String {
    let seconds = wall.as_secs();
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days since the 1st of March of the year 0, so that a leap day is the last of its year.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = era * 400 + year + next;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}{month:02}{date:02}T{hour:02}{minute:02}{second:02}Z")
}

fn percent(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out += &format!("\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of AWS's own documents on deriving a key.
    #[test]
    fn the_key_of_the_documents() {
        let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".into();
        let key = signing_key(&secret, "20150830", "us-east-1", "iam");
        assert_eq!(
            hex(key.as_bytes()),
            "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9"
        );
    }

    #[test]
    fn dates_are_civil() {
        for (seconds, time) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_800, "20000301T000000Z"),
            (1_440_938_160, "20150830T123600Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(time_of(Duration::from_secs(seconds)), time);
        }
    }

    /// Against a signature computed by another program (Python's `hmac`) from AWS's description.
    #[test]
    fn the_whole_message() {
        let aws = AwsCredentials::new("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
            .session_token("a/b+c==");
        let wall = Duration::from_secs(1_440_938_160);
        let message = aws.sign(
            "b-1.test.kafka.eu-central-1.amazonaws.com",
            "eu-central-1",
            wall,
        );
        let message = String::from_utf8(message.as_bytes().to_vec()).unwrap();
        assert_eq!(
            message,
            concat!(
                r#"{"version":"2020_10_22","host":"b-1.test.kafka.eu-central-1.amazonaws.com","#,
                r#""user-agent":"laneway","action":"kafka-cluster:Connect","#,
                r#""x-amz-algorithm":"AWS4-HMAC-SHA256","#,
                r#""x-amz-credential":"AKIDEXAMPLE/20150830/eu-central-1/kafka-cluster/aws4_request","#,
                r#""x-amz-date":"20150830T123600Z","x-amz-expires":"900","#,
                r#""x-amz-security-token":"a/b+c==","x-amz-signedheaders":"host","#,
                r#""x-amz-signature":"03a75fe7b6cab0e1e811f4b04ce93f29ecedd79ff6afc2b5ddb8a46d5a18fded"}"#
            )
        );
        assert!(!message.contains("wJalr"));
    }

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted("a\"b\\c\n"), r#""a\"b\\c\u000a""#);
    }
}
