//! One conversation, whatever the mechanism.

use super::MESSAGE_BYTES_MAX;
use super::credentials::{Credentials, Mechanism, Password, Token};
use super::hash::Hash;
use super::oauth;
use super::scram::{Memo, Next, Scram};
use super::secret::{Secret, join};
use crate::error::{Error, ErrorKind};

/// What to do next in an [`Exchange`].
#[derive(Debug)]
pub enum Step {
    /// Send this to the server, and give its answer to [`Exchange::answer`].
    Send(Secret),
    /// There is something to compute: call [`Exchange::work`], when convenient and until it says
    /// something else. Each call is short.
    Work,
    /// The server is content, and so are we.
    Done,
}

/// The client's side of one conversation.
///
/// ```
/// use laneway::sasl::{Exchange, Mechanism, Password, Step};
/// let password = Password::new("alice", "swordfish").into();
/// let mut exchange = Exchange::new(&Mechanism::Plain, &password, &[0; 32]).unwrap();
/// assert_eq!(exchange.start().as_bytes(), b"\0alice\0swordfish");
/// // PLAIN is over with the server's first answer, whatever is in it.
/// assert!(matches!(exchange.answer(b""), Ok(Step::Done)));
/// ```
#[derive(Debug)]
pub struct Exchange {
    mechanism: &'static str,
    state: State,
    /// What the server said of a token.
    complaint: Option<String>,
}

#[derive(Debug)]
enum State {
    Plain(Password),
    Scram(Box<Scram>),
    OAuth(Token),
    /// The first message was made elsewhere, and any answer will do.
    #[cfg(feature = "msk-iam")]
    Signed(Secret),
    /// The server is told that we have heard its complaint.
    Resigned,
    Over,
}

impl Exchange {
    /// `entropy` is used once: for a nonce.
    ///
    /// # Errors
    /// The credentials are of another kind than the mechanism needs, or cannot be sent by it.
    pub fn new(
        mechanism: &Mechanism,
        credentials: &Credentials,
        entropy: &[u8; 32],
    ) -> Result<Self, Error> {
        Self::remembering(mechanism, credentials, entropy, Memo::default())
    }

    pub(super) fn remembering(
        mechanism: &Mechanism,
        credentials: &Credentials,
        entropy: &[u8; 32],
        memo: Memo,
    ) -> Result<Self, Error> {
        let scram = |hash, p: &Password| {
            let scram = Scram::new(hash, &p.user, p.password.clone(), entropy, memo);
            State::Scram(Box::new(scram))
        };
        let state = match (mechanism, credentials) {
            (Mechanism::Plain, Credentials::Password(p)) => {
                if p.user.contains('\0') || p.password.as_bytes().contains(&0) {
                    return Err(Error::misuse(
                        "a user or password with a zero byte in it cannot be sent by SASL PLAIN",
                    ));
                }
                State::Plain(p.clone())
            }
            (Mechanism::ScramSha256, Credentials::Password(p)) => scram(Hash::Sha256, p),
            (Mechanism::ScramSha512, Credentials::Password(p)) => scram(Hash::Sha512, p),
            (Mechanism::OAuthBearer, Credentials::Token(token)) => {
                let bytes = token.value().as_bytes();
                if bytes.is_empty() || !bytes.iter().all(u8::is_ascii_graphic) {
                    return Err(Error::misuse(
                        "a bearer token is printable ASCII without spaces, and not empty: \
                         the provider gave something else",
                    ));
                }
                State::OAuth(token.clone())
            }
            _ => {
                let name = mechanism.name();
                let why = format!("these are credentials of another kind than {name} needs");
                return Err(Error::misuse(why));
            }
        };
        Ok(Exchange {
            mechanism: mechanism.name(),
            state,
            complaint: None,
        })
    }

    #[cfg(feature = "msk-iam")]
    pub(super) fn signed(mechanism: &Mechanism, first: Secret) -> Self {
        Exchange {
            mechanism: mechanism.name(),
            state: State::Signed(first),
            complaint: None,
        }
    }

    /// SASL's name of the mechanism.
    #[must_use]
    pub fn mechanism(&self) -> &'static str {
        self.mechanism
    }

    /// The first message.
    #[must_use]
    pub fn start(&self) -> Secret {
        match &self.state {
            State::Plain(p) => join(&[b"\0", p.user.as_bytes(), b"\0", p.password.as_bytes()]),
            State::Scram(scram) => scram.first(),
            State::OAuth(token) => oauth::first(token),
            #[cfg(feature = "msk-iam")]
            State::Signed(first) => first.clone(),
            State::Resigned | State::Over => Secret::default(),
        }
    }

    /// The server's answer, once it has said that there is no error in it.
    ///
    /// # Errors
    /// The server did not keep to the mechanism, asks for what we do not do, or did not prove who
    /// it is. The connection must not be used.
    pub fn answer(&mut self, said: &[u8]) -> Result<Step, Error> {
        if said.len() > MESSAGE_BYTES_MAX {
            let (name, n) = (self.mechanism, said.len());
            let why = format!("{n} bytes came in a {name} exchange: no server has so much to say");
            return Err(Error::new(ErrorKind::Peer, why));
        }
        match &mut self.state {
            // Some servers put words into it; PLAIN has none.
            State::Plain(_) => Ok(Step::Done),
            #[cfg(feature = "msk-iam")]
            State::Signed(_) => Ok(Step::Done),
            State::Scram(scram) => match scram.answer(said) {
                Ok(next) => Ok(next.into()),
                Err(why) => Err(Error::new(ErrorKind::Peer, why)),
            },
            State::OAuth(_) if said.is_empty() => Ok(Step::Done),
            State::OAuth(_) => {
                self.complaint = Some(oauth::complaint(said));
                self.state = State::Resigned;
                Ok(Step::Send(oauth::resigned()))
            }
            State::Resigned | State::Over => {
                self.state = State::Over;
                let why = "the server accepted a token that it had complained of";
                Err(Error::new(ErrorKind::Peer, why))
            }
        }
    }

    /// Computes for a moment.
    pub fn work(&mut self) -> Step {
        match &mut self.state {
            State::Scram(scram) => scram.work().into(),
            _ => Step::Done,
        }
    }

    /// What the server said of a token that it did not take.
    #[must_use]
    pub fn complaint(&self) -> Option<&str> {
        self.complaint.as_deref()
    }
}

impl From<Next> for Step {
    fn from(next: Next) -> Step {
        match next {
            Next::Send(bytes) => Step::Send(bytes),
            Next::Work => Step::Work,
            Next::Done => Step::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(mechanism: &Mechanism, credentials: &Credentials) -> Exchange {
        Exchange::new(mechanism, credentials, &[3; 32]).unwrap()
    }

    /// L35: words in the answer to PLAIN are no error.
    #[test]
    fn l35_words_after_plain_are_ignored() {
        let mut plain = exchange(&Mechanism::Plain, &Password::new("u", "p").into());
        assert!(matches!(plain.answer(b"welcome"), Ok(Step::Done)));
    }

    #[test]
    fn a_complaint_is_heard_out() {
        let mut oauth = exchange(&Mechanism::OAuthBearer, &Token::new("t").into());
        let said = br#"{"status":"invalid_token"}"#;
        let Ok(Step::Send(resigned)) = oauth.answer(said) else {
            panic!("one byte ends the exchange");
        };
        assert_eq!(resigned.as_bytes(), b"\x01");
        assert_eq!(oauth.complaint(), Some("invalid_token"));
        assert!(oauth.answer(b"").is_err());
        let mut content = exchange(&Mechanism::OAuthBearer, &Token::new("t").into());
        assert!(matches!(content.answer(b""), Ok(Step::Done)));
    }

    /// A server with a megabyte to say is not listened to, whatever the mechanism.
    #[test]
    fn a_megabyte_is_too_much_to_say() {
        for (mechanism, credentials) in [
            (Mechanism::Plain, Password::new("u", "p").into()),
            (Mechanism::ScramSha512, Password::new("u", "p").into()),
            (Mechanism::OAuthBearer, Token::new("t").into()),
        ] {
            let mut exchange = exchange(&mechanism, &credentials);
            let told = exchange.answer(&vec![b'x'; 1 << 20]).unwrap_err();
            assert_eq!(told.kind(), ErrorKind::Peer);
        }
    }

    #[test]
    fn what_cannot_be_sent_is_said_before() {
        let wrong = |m: &Mechanism, c: Credentials| Exchange::new(m, &c, &[0; 32]).unwrap_err();
        for error in [
            wrong(&Mechanism::Plain, Password::new("u\0", "p").into()),
            wrong(&Mechanism::Plain, Password::new("u", "p\0").into()),
            wrong(&Mechanism::OAuthBearer, Token::new("").into()),
            wrong(&Mechanism::OAuthBearer, Token::new("a b").into()),
            wrong(&Mechanism::OAuthBearer, Token::new("a\u{1}b").into()),
            wrong(&Mechanism::OAuthBearer, Password::new("u", "p").into()),
            wrong(&Mechanism::ScramSha256, Token::new("t").into()),
        ] {
            assert_eq!(error.kind(), ErrorKind::Misuse);
        }
    }

    /// Nothing that a user or a log can see shows what is secret.
    #[test]
    fn secrets_are_not_shown() {
        let password: Credentials = Password::new("alice", "swordfish").into();
        let token = Token::new("swordfish")
            .extension("logicalCluster", "c")
            .unwrap();
        let token: Credentials = token.into();
        let mut shown = format!("{password:?} {token:?}");
        for (mechanism, credentials) in [
            (Mechanism::Plain, &password),
            (Mechanism::ScramSha256, &password),
            (Mechanism::OAuthBearer, &token),
        ] {
            let mut exchange = exchange(&mechanism, credentials);
            shown += &format!("{exchange:?} {:?}", exchange.start());
            let step = exchange.answer(b"r=AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDxy,s=c2FsdA==,i=4096");
            shown += &format!("{step:?} {exchange:?} {:?}", exchange.work());
        }
        assert!(shown.contains("alice"));
        assert!(!shown.contains("swordfish"), "{shown}");
        let in_numbers = format!("{:?}", b"swordfish");
        assert!(!shown.contains(in_numbers.trim_matches(['[', ']'])));
    }
}
