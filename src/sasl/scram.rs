//! SCRAM (RFC 5802, RFC 7677): both sides prove that they know the password, and neither sends it.

use super::base64;
use super::hash::{Block, Hash, Keyed};
use super::secret::{Secret, join};
use super::{SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Rounds computed in one go: about a millisecond.
const SLICE_ROUNDS: u32 = 4096;

/// The longest nonce of a server. Kafka's own adds 26 letters to ours.
const NONCE_BYTES_MAX: usize = 512;

/// What the password comes to under one salt: enough to authenticate, so it is as secret.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    client: Block,
    server: Block,
}

/// The keys of the last salt and number of rounds, for the next connection with the same password:
/// RFC 5802 lets a client keep them.
#[derive(Clone, Default)]
pub(crate) struct Memo(Arc<Mutex<Option<Salted>>>);

/// A salt, a number of rounds, and what they made of the password.
type Salted = (Vec<u8>, u32, Keys);

impl Memo {
    fn find(&self, salt: &[u8], rounds: u32) -> Option<Keys> {
        let memo = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (of_salt, of_rounds, keys) = memo.as_ref()?;
        (of_salt == salt && *of_rounds == rounds).then(|| keys.clone())
    }

    fn keep(&self, salt: Vec<u8>, rounds: u32, keys: Keys) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((salt, rounds, keys));
    }
}

impl fmt::Debug for Memo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memo(..)")
    }
}

/// PBKDF2 of one block, which can be paused.
#[derive(Debug)]
pub(crate) struct Stretch {
    hash: Hash,
    key: Keyed,
    last: Block,
    sum: Block,
    left: u32,
}

impl Stretch {
    pub(crate) fn new(hash: Hash, password: &[u8], salt: &[u8], rounds: u32) -> Self {
        let key = Keyed::new(hash, password);
        let last = key.mac(&[salt, &1u32.to_be_bytes()]);
        Stretch {
            hash,
            key,
            sum: last.clone(),
            last,
            left: rounds.saturating_sub(1),
        }
    }

    /// Does some rounds; the keys once there are none left.
    pub(crate) fn work(&mut self, rounds: u32) -> Option<Keys> {
        let now = rounds.min(self.left);
        for _ in 0..now {
            self.last = self.key.mac(&[self.last.as_bytes()]);
            self.sum.xor(&self.last);
        }
        self.left -= now;
        (self.left == 0).then(|| Keys {
            client: self.hash.hmac(self.sum.as_bytes(), &[b"Client Key"]),
            server: self.hash.hmac(self.sum.as_bytes(), &[b"Server Key"]),
        })
    }
}

/// The client's side of one exchange.
///
/// ```text
///   Begun --server-first--> Stretching --rounds--> Proven --server-final--> Over
///                     \------ keys known ----------^
/// ```
#[derive(Debug)]
pub(super) struct Scram {
    hash: Hash,
    password: Secret,
    memo: Memo,
    /// Ours.
    nonce: String,
    /// `n=...,r=...`, which the proof covers.
    first_bare: Vec<u8>,
    state: State,
}

#[derive(Debug)]
enum State {
    Begun,
    Stretching {
        stretch: Box<Stretch>,
        server: ServerFirst,
    },
    Proven {
        /// What the server must say.
        signature: Block,
    },
    Over,
}

/// What a server's first message asks for.
#[derive(Debug)]
struct ServerFirst {
    text: Vec<u8>,
    nonce: String,
    salt: Vec<u8>,
    rounds: u32,
}

/// What follows an answer.
#[derive(Debug)]
pub(super) enum Next {
    Send(Secret),
    Work,
    Done,
}

impl Scram {
    pub(super) fn new(
        hash: Hash,
        user: &str,
        password: Secret,
        entropy: &[u8; 32],
        memo: Memo,
    ) -> Self {
        let nonce = base64::encode(&entropy[..24]);
        let user = user.replace('=', "=3D").replace(',', "=2C");
        let first_bare = format!("n={user},r={nonce}").into_bytes();
        Scram {
            hash,
            password,
            memo,
            nonce,
            first_bare,
            state: State::Begun,
        }
    }

    pub(super) fn first(&self) -> Secret {
        // No channel binding, and nobody but ourselves to act as.
        join(&[b"n,,", &self.first_bare])
    }

    pub(super) fn answer(&mut self, said: &[u8]) -> Result<Next, String> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Begun => {
                let server = server_first(said, &self.nonce)?;
                if let Some(keys) = self.memo.find(&server.salt, server.rounds) {
                    return Ok(Next::Send(self.prove(&server, &keys)));
                }
                let (password, salt) = (self.password.as_bytes(), &server.salt);
                let stretch = Stretch::new(self.hash, password, salt, server.rounds);
                let stretch = Box::new(stretch);
                self.state = State::Stretching { stretch, server };
                Ok(Next::Work)
            }
            State::Proven { signature } => check_server(said, &signature).map(|()| Next::Done),
            State::Stretching { .. } | State::Over => {
                Err("the server spoke out of turn in a SCRAM exchange".to_owned())
            }
        }
    }

    /// Some more rounds.
    pub(super) fn work(&mut self) -> Next {
        let State::Stretching { stretch, .. } = &mut self.state else {
            return Next::Work;
        };
        let Some(keys) = stretch.work(SLICE_ROUNDS) else {
            return Next::Work;
        };
        let State::Stretching { server, .. } = std::mem::replace(&mut self.state, State::Over)
        else {
            return Next::Work;
        };
        let proof = self.prove(&server, &keys);
        self.memo.keep(server.salt, server.rounds, keys);
        Next::Send(proof)
    }

    fn prove(&mut self, server: &ServerFirst, keys: &Keys) -> Secret {
        // `biws` is `n,,` again.
        let bare = format!("c=biws,r={}", server.nonce);
        let parts: [&[u8]; 5] = [&self.first_bare, b",", &server.text, b",", bare.as_bytes()];
        let stored = self.hash.digest(keys.client.as_bytes());
        let mut proof = self.hash.hmac(stored.as_bytes(), &parts);
        proof.xor(&keys.client);
        let signature = self.hash.hmac(keys.server.as_bytes(), &parts);
        self.state = State::Proven { signature };
        let proof = base64::encode(proof.as_bytes());
        join(&[bare.as_bytes(), b",p=", proof.as_bytes()])
    }
}

fn server_first(said: &[u8], nonce: &str) -> Result<ServerFirst, String> {
    let wrong = |what: &str| Err(format!("the server's first SCRAM message {what}"));
    let Ok(text) = std::str::from_utf8(said) else {
        return wrong("is not text");
    };
    if text.starts_with("m=") {
        return wrong("asks for an extension that we do not know");
    }
    let mut parts = text.split(',');
    let mut part = |name: &str| parts.next().and_then(|p| p.strip_prefix(name));
    let (Some(theirs), Some(salt), Some(rounds)) = (part("r="), part("s="), part("i=")) else {
        return wrong("is not one: a nonce, a salt and a number of rounds must be in it");
    };
    if !theirs.starts_with(nonce) || theirs.len() == nonce.len() {
        return wrong("has a nonce that does not begin with ours and go on: somebody replays");
    }
    if theirs.len() > NONCE_BYTES_MAX {
        return wrong("has a nonce of absurd length");
    }
    let salt = match base64::decode(salt) {
        Some(salt) if !salt.is_empty() => salt,
        _ => return wrong("has no salt"),
    };
    let Ok(rounds) = rounds.parse::<u32>() else {
        return wrong("has a number of rounds that is no number");
    };
    if rounds < SCRAM_ITERATIONS_MIN {
        return wrong(&format!(
            "asks for {rounds} rounds, fewer than {SCRAM_ITERATIONS_MIN}: the password would be \
             cheap to guess; raise `iterations` of the user's credential"
        ));
    }
    if rounds > SCRAM_ITERATIONS_MAX {
        return wrong(&format!(
            "asks for {rounds} rounds, more than {SCRAM_ITERATIONS_MAX}: that keeps us computing \
             for nothing; lower `iterations` of the user's credential"
        ));
    }
    Ok(ServerFirst {
        text: said.to_vec(),
        nonce: theirs.to_owned(),
        salt,
        rounds,
    })
}

fn check_server(said: &[u8], signature: &Block) -> Result<(), String> {
    let text = std::str::from_utf8(said).unwrap_or_default();
    let first = text.split(',').next().unwrap_or_default();
    if first.starts_with("e=") {
        return Err("the server refused the SCRAM proof in its own words".to_owned());
    }
    let theirs = first.strip_prefix("v=").and_then(base64::decode);
    match theirs {
        Some(theirs) if signature.is(&theirs) => Ok(()),
        _ => Err("the server did not prove that it knows the password: \
                  it is not the broker that the user was made on"
            .to_owned()),
    }
}

/// The server's side, for the embedded broker.
#[cfg(any(test, feature = "broker-core"))]
pub(crate) mod server {
    pub(crate) use super::Keys;
    use super::Stretch;
    use crate::sasl::base64;
    use crate::sasl::hash::Hash;
    use std::fmt;

    /// An exchange that waits for the client's proof.
    #[derive(Debug)]
    pub(crate) struct Server {
        hash: Hash,
        keys: Keys,
        nonce: String,
        transcript: String,
    }

    /// What the client's first message says: the user, and the rest.
    pub(crate) fn user_of(first: &str) -> Option<(String, &str)> {
        let bare = first.strip_prefix("n,,")?;
        let name = bare.strip_prefix("n=")?.split(',').next()?;
        Some((name.replace("=2C", ",").replace("=3D", "="), bare))
    }

    impl Server {
        /// What a server keeps of a password; `sha512` picks the hash.
        pub(crate) fn keys(
            sha512: bool,
            password: &[u8],
            salt: &[u8],
            rounds: u32,
        ) -> Option<Keys> {
            let hash = if sha512 { Hash::Sha512 } else { Hash::Sha256 };
            Stretch::new(hash, password, salt, rounds).work(rounds)
        }

        /// Answers the client's first message.
        pub(crate) fn new(
            sha512: bool,
            bare: &str,
            keys: Keys,
            (salt, rounds): (&[u8], u32),
            nonce: impl fmt::Display,
        ) -> Option<(Server, String)> {
            let hash = if sha512 { Hash::Sha512 } else { Hash::Sha256 };
            let theirs = bare.split(',').find_map(|p| p.strip_prefix("r="))?;
            let nonce = format!("{theirs}{nonce}");
            let first = format!("r={nonce},s={},i={rounds}", base64::encode(salt));
            let transcript = format!("{bare},{first},");
            let server = Server {
                hash,
                keys,
                nonce,
                transcript,
            };
            Some((server, first))
        }

        /// Answers the client's proof; `None` where it is wrong.
        pub(crate) fn finish(self, last: &str) -> Option<String> {
            let (bare, proof) = last.rsplit_once(",p=")?;
            if bare != format!("c=biws,r={}", self.nonce) {
                return None;
            }
            let all = format!("{}{bare}", self.transcript);
            let stored = self.hash.digest(self.keys.client.as_bytes());
            let mut expected = self.hash.hmac(stored.as_bytes(), &[all.as_bytes()]);
            expected.xor(&self.keys.client);
            if !expected.is(&base64::decode(proof)?) {
                return None;
            }
            let signature = self
                .hash
                .hmac(self.keys.server.as_bytes(), &[all.as_bytes()]);
            Some(format!("v={}", base64::encode(signature.as_bytes())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(hash: Hash, user: &str, password: &str, nonce: &str) -> Scram {
        let mut scram = Scram::new(hash, user, password.into(), &[7; 32], Memo::default());
        let first = format!("n={user},r={nonce}");
        (scram.nonce, scram.first_bare) = (nonce.to_owned(), first.into_bytes());
        scram
    }

    fn serve(sha512: bool, bare: &str, password: &[u8]) -> (server::Server, String) {
        let keys = server::Server::keys(sha512, password, b"salt", 4096).unwrap();
        server::Server::new(sha512, bare, keys, (b"salt", 4096), "xyz").unwrap()
    }

    fn proof(scram: &mut Scram, server_first: &str) -> String {
        let mut next = scram.answer(server_first.as_bytes()).unwrap();
        loop {
            match next {
                Next::Send(proof) => {
                    return String::from_utf8(proof.as_bytes().to_vec()).unwrap();
                }
                Next::Work => next = scram.work(),
                Next::Done => panic!("too early"),
            }
        }
    }

    /// L28: the exchange of RFC 7677, section 3.
    #[test]
    fn l28_the_vector_of_the_standard() {
        let mut scram = client(Hash::Sha256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO");
        assert_eq!(
            scram.first().as_bytes(),
            b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
        );
        let said = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        assert_eq!(
            proof(&mut scram, said),
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
             p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        let last = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
        assert!(matches!(scram.answer(last), Ok(Next::Done)));
        // Nothing comes after.
        assert!(scram.answer(last).is_err());
    }

    /// L28: both hashes, names with commas and equals signs, against the server's side.
    #[test]
    fn l28_both_sides_agree_for_awkward_names() {
        for sha512 in [false, true] {
            let hash = if sha512 { Hash::Sha512 } else { Hash::Sha256 };
            for user in ["alice", "a=b,c", "=2C", ",,==", "täglich"] {
                let memo = Memo::default();
                for _ in 0..2 {
                    let mut scram = Scram::new(hash, user, "p,=w".into(), &[9; 32], memo.clone());
                    let first = String::from_utf8(scram.first().as_bytes().to_vec()).unwrap();
                    let (named, bare) = server::user_of(&first).unwrap();
                    assert_eq!(named, user);
                    let (there, said) = serve(sha512, bare, b"p,=w");
                    let last = there.finish(&proof(&mut scram, &said)).unwrap();
                    assert!(matches!(scram.answer(last.as_bytes()), Ok(Next::Done)));
                }
                assert!(memo.find(b"salt", 4096).is_some());
                assert!(memo.find(b"salt", 4097).is_none());
            }
        }
    }

    /// A wrong password is a wrong proof; and a server that only pretends is not believed.
    #[test]
    fn a_wrong_password_proves_nothing_on_either_side() {
        let mut scram = Scram::new(Hash::Sha256, "u", "right".into(), &[1; 32], Memo::default());
        let first = String::from_utf8(scram.first().as_bytes().to_vec()).unwrap();
        let (_, bare) = server::user_of(&first).unwrap();
        let (there, said) = serve(false, bare, b"wrong");
        assert_eq!(there.finish(&proof(&mut scram, &said)), None);
        for pretended in ["", "v=", "v=AAAA", "e=invalid-proof", "v=\u{fffd}"] {
            let mut scram = client(Hash::Sha256, "u", "right", "abc");
            proof(&mut scram, "r=abcd,s=c2FsdA==,i=4096");
            assert!(scram.answer(pretended.as_bytes()).is_err(), "{pretended}");
        }
    }

    /// L28: a nonce that is not ours, no salt, and numbers of rounds out of bounds: each is said.
    #[test]
    fn l28_what_a_server_may_not_ask() {
        for (said, why) in [
            ("r=xbcd,s=c2FsdA==,i=4096", "nonce"),
            ("r=abc,s=c2FsdA==,i=4096", "nonce"),
            ("r=abcd,s=,i=4096", "salt"),
            ("r=abcd,s=?,i=4096", "salt"),
            ("r=abcd,s=c2FsdA==,i=1", "fewer"),
            ("r=abcd,s=c2FsdA==,i=4095", "fewer"),
            ("r=abcd,s=c2FsdA==,i=2147483648", "more"),
            ("r=abcd,s=c2FsdA==,i=99999999999", "no number"),
            ("r=abcd,s=c2FsdA==,i=-1", "no number"),
            ("m=x,r=abcd,s=c2FsdA==,i=4096", "extension"),
            ("", "nonce"),
        ] {
            let mut scram = client(Hash::Sha512, "u", "p", "abc");
            let told = scram.answer(said.as_bytes()).unwrap_err();
            assert!(told.contains(why), "{said}: {told}");
        }
        let mut scram = client(Hash::Sha512, "u", "p", "abc");
        assert!(scram.answer(&[0xff, 0xfe]).unwrap_err().contains("text"));
    }

    #[test]
    fn a_million_rounds_come_in_slices() {
        let mut scram = client(Hash::Sha256, "u", "p", "abc");
        let next = scram.answer(b"r=abcd,s=c2FsdA==,i=20000").unwrap();
        assert!(matches!(next, Next::Work));
        let slices = 1
            + (0..100)
                .take_while(|_| matches!(scram.work(), Next::Work))
                .count();
        assert_eq!(slices, 20_000usize.div_ceil(SLICE_ROUNDS as usize));
    }
}
