//! `security.protocol` and what hangs on it: put together once every name has been read.

use super::Ignored;
use super::oauth::OAuth;
use crate::error::Error;
use crate::subscription::Sasl;
#[cfg(feature = "tls-custom")]
use crate::{Tls, TlsVersion};

/// What the names of security say, before it is known which of them count.
#[derive(Default)]
pub(crate) struct Security {
    pub protocol: Protocol,
    pub ca: Option<Pem>,
    pub chain: Option<Pem>,
    pub key: Option<Pem>,
    /// In the order given; none: both.
    pub versions: Vec<&'static str>,
    pub trust_anyone: bool,
    pub any_name: bool,
    pub mechanism: Option<String>,
    pub user: Option<String>,
    pub password: Option<String>,
    pub oauth: OAuth,
    /// Names that were given, for what is said where the protocol has no use for them.
    pub tls_names: Vec<&'static str>,
    pub sasl_names: Vec<&'static str>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    #[default]
    Plaintext,
    Tls,
    Sasl,
    SaslTls,
}

/// PEM in a file, or in the value itself.
#[derive(Clone)]
#[cfg_attr(not(feature = "tls-custom"), expect(dead_code))]
pub(crate) enum Pem {
    File(String),
    Text(String),
}

/// How to authenticate, or what must still be called.
pub(crate) enum Login {
    None,
    By(Sasl),
    Wanting(Error),
}

const NO_TLS: &str = "security.protocol has no TLS (SSL or SASL_SSL does)";
const NO_SASL: &str = "security.protocol has no SASL (SASL_PLAINTEXT or SASL_SSL does)";

impl Security {
    /// What was given and has no use under this protocol.
    pub(crate) fn unused(&self) -> Vec<Ignored> {
        let mut unused = Vec::new();
        let mut list = |names: &[&'static str], why| {
            unused.extend(names.iter().map(|name| Ignored {
                name: (*name).to_owned(),
                why,
            }));
        };
        if !self.protocol.has_tls() {
            list(&self.tls_names, NO_TLS);
        }
        if !self.protocol.has_sasl() {
            list(&self.sasl_names, NO_SASL);
        }
        unused
    }

    #[cfg(feature = "tls-custom")]
    pub(crate) fn tls(&self) -> Result<Option<Tls>, Error> {
        if !self.protocol.has_tls() {
            return Ok(None);
        }
        let mut tls = Tls::new();
        tls = match &self.ca {
            None => tls,
            Some(Pem::File(path)) => tls.ca_file(path),
            Some(Pem::Text(pem)) => tls.ca_pem(pem),
        };
        tls = match (&self.chain, &self.key) {
            (None, None) => tls,
            (Some(Pem::File(chain)), Some(Pem::File(key))) => tls.identity_files(chain, key),
            (Some(Pem::Text(chain)), Some(Pem::Text(key))) => tls.identity_pem(chain, key),
            (Some(_), Some(_)) => {
                return Err(Error::misuse(
                    "the client certificate and its key: give both as files or both as text",
                ));
            }
            _ => {
                return Err(Error::misuse(
                    "a client certificate needs its key and the key its certificate: give ssl.certificate.location with \
                     ssl.key.location, or ssl.keystore.certificate.chain with ssl.keystore.key",
                ));
            }
        };
        if !self.versions.is_empty() {
            let of = |name: &&str| match *name {
                "TLSv1.2" => TlsVersion::V1_2,
                _ => TlsVersion::V1_3,
            };
            tls = tls.versions(self.versions.iter().map(of));
        }
        if self.any_name {
            tls = tls.dangerously_skip_host_name_check();
        }
        if self.trust_anyone {
            tls = tls.dangerously_trust_anyone();
        }
        Ok(Some(tls))
    }

    #[cfg(not(feature = "tls-custom"))]
    pub(crate) fn tls(&self) -> Result<Option<std::convert::Infallible>, Error> {
        match self.protocol.has_tls() {
            false => Ok(None),
            true => Err(Error::misuse(
                "security.protocol asks for TLS, which is not in this build: switch on the feature `tls`",
            )),
        }
    }

    pub(crate) fn sasl(&mut self) -> Result<Login, Error> {
        if !self.protocol.has_sasl() {
            return Ok(Login::None);
        }
        let Some(mechanism) = self.mechanism.take() else {
            return Err(Error::misuse(
                "security.protocol asks for SASL and there is no `sasl.mechanism`: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512",
            ));
        };
        let by: fn(String, String) -> Sasl = match mechanism.as_str() {
            "PLAIN" => |user, password| Sasl::plain(user, password),
            "SCRAM-SHA-256" => |user, password| Sasl::scram_sha_256(user, password),
            "SCRAM-SHA-512" => |user, password| Sasl::scram_sha_512(user, password),
            "OAUTHBEARER" => return self.oauth.login(),
            "AWS_MSK_IAM" => {
                return Ok(Login::Wanting(Error::misuse(format!(
                    "sasl.mechanism={mechanism} wants a provider, which no property can name: call Kafka::sasl with one \
                     after Kafka::from_properties"
                ))));
            }
            "GSSAPI" => {
                return Err(Error::misuse(
                    "sasl.mechanism=GSSAPI (Kerberos) is not spoken: use SCRAM, OAUTHBEARER or mutual TLS",
                ));
            }
            other => {
                return Err(Error::misuse(format!(
                    "sasl.mechanism={other} is not known: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER and \
                     AWS_MSK_IAM are"
                )));
            }
        };
        match (self.user.take(), self.password.take()) {
            (Some(user), Some(password)) => Ok(Login::By(by(user, password))),
            _ => Err(Error::misuse(format!(
                "sasl.mechanism={mechanism} needs a user and a password: sasl.jaas.config with a username and a \
                 password, or sasl.username and sasl.password"
            ))),
        }
    }

    /// `org.apache.kafka...PlainLoginModule required username="alice" password="secret";`
    pub(super) fn jaas(&mut self, text: &str) -> Result<(), String> {
        let mut words = jaas_words(text)?.into_iter();
        let module = words.next().unwrap_or_default();
        let known = [
            "PlainLoginModule",
            "ScramLoginModule",
            "OAuthBearerLoginModule",
            "IAMLoginModule",
        ];
        if !known.iter().any(|name| module.ends_with(name)) {
            return Err(
                "its login module is none of those for PLAIN, SCRAM, OAUTHBEARER and AWS_MSK_IAM"
                    .to_owned(),
            );
        }
        words
            .next()
            .filter(|flag| flag == "required")
            .ok_or_else(|| "it does not read `MODULE required OPTION=\"VALUE\" ...;`".to_owned())?;
        for option in words {
            match option.split_once('=') {
                Some(("username", user)) => self.user = Some(user.to_owned()),
                Some(("password", password)) => self.password = Some(password.to_owned()),
                Some(("clientId", id)) => self.oauth.id = Some(id.to_owned()),
                Some(("clientSecret", secret)) => self.oauth.secret = Some(secret.to_owned()),
                Some(("scope", scope)) => self.oauth.scope = Some(scope.to_owned()),
                Some((name, value)) if name.starts_with("extension_") => {
                    let pair = (name["extension_".len()..].to_owned(), value.to_owned());
                    self.oauth.extensions.push(pair);
                }
                Some(_) => {}
                None => return Err("it has an option without a value".to_owned()),
            }
        }
        Ok(())
    }
}

impl Protocol {
    pub(super) fn read(name: &str) -> Result<Self, String> {
        Ok(match name.to_ascii_uppercase().as_str() {
            "PLAINTEXT" => Protocol::Plaintext,
            "SSL" => Protocol::Tls,
            "SASL_PLAINTEXT" => Protocol::Sasl,
            "SASL_SSL" => Protocol::SaslTls,
            _ => return Err("none of PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL".to_owned()),
        })
    }

    fn has_tls(self) -> bool {
        matches!(self, Protocol::Tls | Protocol::SaslTls)
    }

    fn has_sasl(self) -> bool {
        matches!(self, Protocol::Sasl | Protocol::SaslTls)
    }
}

/// The words up to the `;`, without their quotes.
fn jaas_words(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' if quoted => word.extend(chars.next()),
            '"' => quoted = !quoted,
            ';' if !quoted => {
                if !word.is_empty() {
                    words.push(word);
                }
                return match chars.as_str().trim() {
                    "" => Ok(words),
                    _ => Err("it has more than one login module".to_owned()),
                };
            }
            c if c.is_whitespace() && !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    Err("it does not end in `;`".to_owned())
}

/// Kafka takes PEM with its lines joined by blanks, as values of properties often have it.
pub(super) fn pem_lines(value: &str) -> String {
    const BEGIN: &str = "-----BEGIN ";
    if value.contains('\n') || !value.contains(BEGIN) {
        return value.to_owned();
    }
    let mut out = String::with_capacity(value.len() + 64);
    for item in value.split(BEGIN).skip(1) {
        let Some((label, rest)) = item.split_once("-----") else {
            continue;
        };
        let body = rest.split("-----END").next().unwrap_or_default();
        out.push_str(&format!("{BEGIN}{label}-----\n"));
        for line in body.split_whitespace() {
            out.push_str(line);
            out.push('\n');
        }
        out.push_str(&format!("-----END {label}-----\n"));
    }
    out
}
