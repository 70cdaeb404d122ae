use super::super::{Link, LinkAction, LinkConfig};
use super::*;
use crate::ids::Token;
use crate::pace::Rng;
use crate::sasl::{Mechanism, Password, Token as Bearer};
use crate::wire::message::HeartbeatRequest;
use bytes::Bytes;
use std::collections::VecDeque;

const SECOND: Duration = Duration::from_secs(1);

fn at(millis: u64) -> Now {
    Now(0) + Duration::from_millis(millis)
}

fn heartbeat() -> Request {
    Request::Heartbeat(HeartbeatRequest {
        group: "g".into(),
        generation: 3,
        member_id: "m".into(),
        instance_id: None,
    })
}

fn plain() -> Exchange {
    let password = Password::new("alice", "swordfish").into();
    Exchange::new(&Mechanism::Plain, &password, &[0; 32]).unwrap()
}

/// A broker's side of one connection: it answers in order, and from a handshake on it takes
/// nothing but the exchange.
struct Peer {
    /// API, correlation id and the bytes of a SASL message.
    asked: VecDeque<(i16, i32, Vec<u8>)>,
    /// Of each session, in milliseconds.
    lifetime: i64,
    logging_in: bool,
    logged_in: bool,
    now: Now,
    /// When it came to the last handshake, which may have waited behind other requests.
    began_at: Option<Now>,
    logins: u32,
}

impl Peer {
    fn new(lifetime: i64) -> Self {
        Peer {
            asked: VecDeque::new(),
            lifetime,
            logging_in: false,
            logged_in: false,
            now: Now(0),
            began_at: None,
            logins: 0,
        }
    }

    fn take(&mut self, frame: &[u8]) {
        let word = |i: usize| i16::from_be_bytes([frame[i], frame[i + 1]]);
        let id = i32::from_be_bytes([frame[8], frame[9], frame[10], frame[11]]);
        let api = word(4);
        match api {
            18 => {}
            17 => {
                assert!(!self.logging_in, "a handshake inside of an exchange");
                self.logging_in = true;
            }
            36 => assert!(self.logging_in, "a token out of the blue"),
            _ => assert!(
                self.logged_in && !self.logging_in,
                "API {api} inside of a login"
            ),
        }
        if api == 36 {
            // The exchange that these tests use is over with one message.
            self.logging_in = false;
            self.logged_in = true;
            self.logins += 1;
        }
        self.asked.push_back((api, id, frame[12..].to_vec()));
    }

    /// Answers the oldest request.
    fn answer(&mut self) -> Option<Bytes> {
        let (api, id, _) = self.asked.pop_front()?;
        if api == 17 {
            let soon = |at: Now| self.now.since(at) < SECOND;
            assert!(
                !self.began_at.is_some_and(soon),
                "renewed twice in a second"
            );
            self.began_at = Some(self.now);
        }
        Some(match api {
            17 => handshake(id, 0, &["PLAIN"]),
            36 => authenticated(id, 0, b"", self.lifetime),
            18 => versions(id),
            12 => [&id.to_be_bytes()[..], &[0; 8]].concat().into(),
            _ => panic!("API {api}"),
        })
    }
}

fn versions(id: i32) -> Bytes {
    let mut b = id.to_be_bytes().to_vec();
    b.extend([0, 0, 5]);
    for (key, max) in [(12i16, 4i16), (17, 1), (18, 4), (36, 2)] {
        b.extend(key.to_be_bytes());
        b.extend([0, 0]);
        b.extend(max.to_be_bytes());
        b.push(0);
    }
    b.extend([0; 5]);
    b.into()
}

fn handshake(id: i32, code: i16, mechanisms: &[&str]) -> Bytes {
    let mut b = id.to_be_bytes().to_vec();
    b.extend(code.to_be_bytes());
    b.extend(i32::try_from(mechanisms.len()).unwrap().to_be_bytes());
    for name in mechanisms {
        b.extend(i16::try_from(name.len()).unwrap().to_be_bytes());
        b.extend(name.as_bytes());
    }
    b.into()
}

/// An answer to `SaslAuthenticate` version 2.
fn authenticated(id: i32, code: i16, auth: &[u8], lifetime: i64) -> Bytes {
    let mut b = id.to_be_bytes().to_vec();
    b.push(0);
    b.extend(code.to_be_bytes());
    let said: &[u8] = if code == 0 {
        b""
    } else {
        b"Authentication failed\n"
    };
    b.push(u8::try_from(said.len()).unwrap() + 1);
    b.extend(said);
    b.push(u8::try_from(auth.len()).unwrap() + 1);
    b.extend(auth);
    b.extend(lifetime.to_be_bytes());
    b.push(0);
    b.into()
}

fn link() -> Link {
    let config = Arc::new(LinkConfig::default());
    let mut link = Link::new(config, "broker:9092".into(), Now(0)).with_login(0);
    link.handle_up(Now(0));
    link
}

/// Does what the link says: requests go to the peer, logins are served. What is left is given.
fn pump(link: &mut Link, peer: &mut Peer, now: Now) -> Vec<LinkAction> {
    peer.now = now;
    let mut rest = Vec::new();
    while let Some(action) = link.poll_action() {
        match action {
            LinkAction::Send(frame) => peer.take(&frame),
            LinkAction::Login => link.login(now, plain()),
            other => rest.push(other),
        }
    }
    rest
}

/// A link that has logged in.
fn ready(lifetime: i64) -> (Link, Peer) {
    let (mut link, mut peer) = (link(), Peer::new(lifetime));
    for _ in 0..3 {
        pump(&mut link, &mut peer, Now(0));
        link.handle_frame(Now(0), peer.answer().unwrap());
    }
    let rest = pump(&mut link, &mut peer, Now(0));
    assert!(matches!(
        rest[..],
        [LinkAction::LoggedIn, LinkAction::Ready]
    ));
    assert!(link.is_ready());
    (link, peer)
}

/// What the peer refuses, and why the link then ended.
fn refused(answers: &[Bytes]) -> (Option<Error>, Error) {
    refused_by(plain(), answers)
}

fn refused_by(exchange: Exchange, answers: &[Bytes]) -> (Option<Error>, Error) {
    let mut link = link();
    let mut exchange = Some(exchange);
    link.send(Now(0), Token(9), heartbeat(), SECOND);
    link.handle_frame(Now(0), versions(0));
    let mut refused = None;
    let mut left = answers.iter();
    loop {
        match link.poll_action() {
            Some(LinkAction::Login) => link.login(Now(0), exchange.take().unwrap()),
            Some(LinkAction::Send(_)) => {}
            Some(LinkAction::Refused(error)) => refused = Some(error),
            Some(LinkAction::Answer { token, result }) => {
                assert!(token == Token(9) && result.unwrap_err().is_retriable());
            }
            Some(LinkAction::Close { error, .. }) => return (refused, error),
            Some(other) => panic!("{other:?}"),
            None => match (left.as_slice().first(), link.next_deadline()) {
                (_, Some(Now(0))) => link.handle_timeout(Now(0)),
                (Some(answer), _) => {
                    left.next();
                    link.handle_frame(Now(0), answer.clone());
                }
                (None, Some(deadline)) => link.handle_timeout(deadline),
                (None, None) => panic!("it waits for ever"),
            },
        }
    }
}

#[test]
fn nothing_goes_out_before_the_broker_knows_us() {
    let mut link = link();
    let mut peer = Peer::new(0);
    link.send(Now(0), Token(1), heartbeat(), SECOND * 30);
    let mut seen = Vec::new();
    for _ in 0..4 {
        assert!(
            pump(&mut link, &mut peer, Now(0))
                .iter()
                .all(|a| !matches!(a, LinkAction::Answer { .. }))
        );
        seen.push(peer.asked.front().unwrap().0);
        link.handle_frame(Now(0), peer.answer().unwrap());
    }
    assert_eq!(seen, [18, 17, 36, 12]);
    let rest = pump(&mut link, &mut peer, Now(0));
    assert!(matches!(
        &rest[..],
        [LinkAction::Answer {
            token: Token(1),
            result: Ok(_)
        }]
    ));
}

#[test]
fn the_password_is_in_the_frame_and_nowhere_else() {
    let mut link = link();
    link.handle_frame(Now(0), versions(0));
    let mut shown = String::new();
    let mut frames = Vec::new();
    for answer in [handshake(1, 0, &[]), authenticated(2, 58, b"", 0)] {
        while let Some(action) = link.poll_action() {
            match action {
                LinkAction::Login => link.login(Now(0), plain()),
                LinkAction::Send(frame) => frames.push(frame),
                other => shown += &format!("{other:?}"),
            }
        }
        shown += &format!("{link:?}");
        link.handle_frame(Now(0), answer);
    }
    while let Some(action) = link.poll_action() {
        shown += &format!("{action:?}");
    }
    assert!(
        frames
            .iter()
            .any(|f| f.windows(9).any(|w| w == b"swordfish"))
    );
    assert!(
        !shown.contains("swordfish") && shown.contains("Authentication failed"),
        "{shown}"
    );
}

/// A listener of another kind, a mechanism it does not do, and credentials that it does not take:
/// each in words, and each for the keeper of credentials to judge.
#[test]
fn refusals_are_told_apart() {
    let (refused_error, error) = refused(&[handshake(1, 34, &[])]);
    let told = refused_error.unwrap();
    assert_eq!(told.code(), Some(34));
    assert!(
        told.to_string().contains("does not do SASL") && told.broker().is_some(),
        "{told}"
    );
    assert!(!error.is_retriable());

    let (told, _) = refused(&[handshake(1, 33, &["SCRAM-SHA-256", "GSS\nAPI"])]);
    let told = told.unwrap().to_string();
    assert!(
        told.contains("PLAIN") && told.contains("SCRAM-SHA-256, GSS API"),
        "{told}"
    );

    let (told, _) = refused(&[handshake(1, 0, &[]), authenticated(2, 58, b"", 0)]);
    let told = told.unwrap();
    assert_eq!((told.code(), told.is_retriable()), (Some(58), false));
    assert!(
        told.to_string().contains("(Authentication failed )"),
        "{told}"
    );

    // Where the broker says that it may pass, it is the connection that fails.
    let (told, error) = refused(&[handshake(1, 0, &[]), authenticated(2, 15, b"", 0)]);
    assert!(told.is_none() && error.is_retriable(), "{error}");
}

#[test]
fn a_complaint_about_a_token_is_in_the_error() {
    let token = Bearer::new("t0ken").into();
    let exchange = Exchange::new(&Mechanism::OAuthBearer, &token, &[0; 32]).unwrap();
    let said = br#"{"status":"invalid_token"}"#;
    let answers = [
        handshake(1, 0, &[]),
        authenticated(2, 0, said, 0),
        authenticated(3, 58, b"", 0),
    ];
    let (told, _) = refused_by(exchange, &answers);
    let told = told.unwrap().to_string();
    assert!(
        told.contains("invalid_token") && !told.contains("t0ken"),
        "{told}"
    );
}

/// A broker without the APIs that SASL needs, a server that lies, and one that falls silent.
#[test]
fn what_is_no_refusal_costs_the_connection_alone() {
    let password = Password::new("alice", "swordfish").into();
    let scram = || Exchange::new(&Mechanism::ScramSha256, &password, &[0; 32]).unwrap();
    let many = b"r=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAxy,s=c2FsdA==,i=2147483648";
    let answers = [handshake(1, 0, &[]), authenticated(2, 0, many, 0)];
    let (told, error) = refused_by(scram(), &answers);
    assert!(told.is_none());
    assert_eq!(error.kind(), ErrorKind::Peer);
    assert!(error.to_string().contains("2147483648 rounds"), "{error}");

    let some = b"r=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAxy,s=c2FsdA==,i=4096";
    let lie = authenticated(3, 0, b"v=AAAA", 0);
    let answers = [handshake(1, 0, &[]), authenticated(2, 0, some, 0), lie];
    let (told, error) = refused_by(scram(), &answers);
    assert!(
        told.is_none() && error.to_string().contains("did not prove"),
        "{error}"
    );

    let (told, error) = refused(&[handshake(1, 0, &[])]);
    assert!(told.is_none() && error.is_retriable());
    assert!(
        error
            .to_string()
            .contains("no answer to SaslAuthenticate within 30s"),
        "{error}"
    );

    let mut none = versions(0).to_vec();
    none[14 + 1] = 99; // SaslHandshake is another API now
    let mut link = link();
    link.handle_frame(Now(0), none.into());
    assert!(matches!(link.poll_action(), Some(LinkAction::Send(_))));
    assert!(matches!(link.poll_action(), Some(LinkAction::Login)));
    link.login(Now(0), plain());
    let Some(LinkAction::Refused(told)) = link.poll_action() else {
        panic!("it cannot go on");
    };
    assert!(told.to_string().contains("SaslHandshake"), "{told}");
}

/// L08: the end of the connection in the middle of an exchange comes with a hint.
#[test]
fn l08_an_end_during_authentication_has_a_hint() {
    let mut link = link();
    link.handle_frame(Now(0), versions(0));
    pump(&mut link, &mut Peer::new(0), Now(0));
    link.handle_down(Now(0), transport("the broker closed the connection"));
    let Some(LinkAction::Close { error, .. }) = link.poll_action() else {
        panic!("it is over");
    };
    assert!(
        error.is_retriable() && error.to_string().contains("TLS"),
        "{error}"
    );
}

/// L21: a session that ends with requests out: they are answered first, in their order, then the
/// exchange, then what waited.
#[test]
fn l21_a_session_is_renewed_between_requests() {
    let (mut link, mut peer) = ready(10_000);
    link.send(at(6500), Token(1), heartbeat(), SECOND * 30);
    link.send(at(6500), Token(2), heartbeat(), SECOND * 30);
    pump(&mut link, &mut peer, at(6500));
    assert_eq!(link.next_deadline(), Some(at(7000)));
    link.handle_timeout(at(7000));
    pump(&mut link, &mut peer, at(8500));
    link.send(at(8600), Token(3), heartbeat(), SECOND * 30);
    assert!(pump(&mut link, &mut peer, at(8600)).is_empty());
    let asked: Vec<_> = peer.asked.iter().map(|a| a.0).collect();
    assert_eq!(asked, [12, 12, 17]);
    let mut order = Vec::new();
    while let Some(answer) = peer.answer() {
        link.handle_frame(at(8700), answer);
        for action in pump(&mut link, &mut peer, at(8700)) {
            match action {
                LinkAction::Answer { token, result } => {
                    result.unwrap();
                    order.push(token.0);
                }
                LinkAction::LoggedIn => order.push(0),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(order, [1, 2, 0, 3]);
    assert_eq!(peer.logins, 2);
}

/// L21: a request that the broker holds past the session's end is waited for, and costs nothing.
#[test]
fn l21_a_session_shorter_than_a_long_poll() {
    let (mut link, mut peer) = ready(2000);
    link.send(at(0), Token(1), heartbeat(), SECOND * 300);
    pump(&mut link, &mut peer, at(0));
    link.handle_timeout(at(1700));
    pump(&mut link, &mut peer, at(1700));
    // The handshake waits behind the poll: its time begins where the poll's ends.
    assert_eq!(link.next_deadline(), Some(at(300_000)));
    link.handle_frame(at(200_000), peer.answer().unwrap());
    let rest = pump(&mut link, &mut peer, at(200_000));
    assert!(matches!(
        &rest[..],
        [LinkAction::Answer { result: Ok(_), .. }]
    ));
    for _ in 0..2 {
        link.handle_frame(at(200_000), peer.answer().unwrap());
        pump(&mut link, &mut peer, at(200_000));
    }
    assert_eq!((peer.logins, link.is_over()), (2, false));
}

/// L22: no lifetime, one below zero and one of a millisecond: no renewals, and no storm of them.
#[test]
fn l22_odd_lifetimes_renew_nothing() {
    for lifetime in [0, -1, i64::MIN, 1, 1000] {
        let (mut link, mut peer) = ready(lifetime);
        for second in 1..1000 {
            let now = at(second * 1000);
            link.send(now, Token(second), heartbeat(), SECOND * 30);
            pump(&mut link, &mut peer, now);
            assert_eq!(peer.asked.len(), 1, "{lifetime}");
            link.handle_frame(now, peer.answer().unwrap());
            pump(&mut link, &mut peer, now);
        }
        assert_eq!(peer.logins, 1, "{lifetime}");
    }
    // One that is never used up must not overflow either.
    let (link, _) = ready(i64::MAX);
    assert_eq!(link.next_deadline(), None);
}

/// A link without traffic lets its session end, and renews it before the next request.
#[test]
fn an_idle_session_is_renewed_when_it_is_needed() {
    let (mut link, mut peer) = ready(5000);
    assert_eq!(link.next_deadline(), None);
    link.send(at(60_000), Token(1), heartbeat(), SECOND * 30);
    pump(&mut link, &mut peer, at(60_000));
    let asked: Vec<_> = peer.asked.iter().map(|a| a.0).collect();
    assert_eq!(asked, [17]);
    assert_eq!(link.idle_since(), Now(0));
}

/// Without credentials the old session goes on; with them it is renewed at once.
#[test]
fn a_renewal_without_credentials_comes_late() {
    let (mut link, mut peer) = ready(10_000);
    link.send(at(8500), Token(1), heartbeat(), SECOND * 30);
    assert!(matches!(link.poll_action(), Some(LinkAction::Login)));
    assert!(link.poll_action().is_none());
    link.login_later(at(8500));
    let rest = pump(&mut link, &mut peer, at(8500));
    assert!(rest.is_empty() && peer.asked.len() == 1);
    link.handle_frame(at(8501), peer.answer().unwrap());
    assert_eq!(pump(&mut link, &mut peer, at(8501)).len(), 1);
    link.login(at(9000), plain());
    pump(&mut link, &mut peer, at(9000));
    assert_eq!(peer.asked.front().unwrap().0, 17);
}

/// L21: whatever comes when, every request is answered once and in order, nothing is written
/// inside an exchange, and no answer is taken for another.
#[test]
fn l21_renewals_under_load_lose_and_reorder_nothing() {
    for seed in 0..200 {
        let mut rng = Rng::new(&[7; 32], seed);
        let (mut link, mut peer) = ready(1300 + i64::try_from(rng.below(4000)).unwrap());
        let (mut now, mut sent, mut answered) = (Now(0), 0, 0);
        for _ in 0..2000 {
            now = now + Duration::from_millis(rng.below(200));
            peer.now = now;
            match rng.below(4) {
                0 | 1 if link.pending() < 100 => {
                    sent += 1;
                    link.send(now, Token(sent), heartbeat(), SECOND * 3000);
                }
                2 => {
                    if let Some(answer) = peer.answer() {
                        link.handle_frame(now, answer);
                    }
                }
                _ => {
                    if link.next_deadline().is_some_and(|at| at <= now) {
                        link.handle_timeout(now);
                    }
                }
            }
            for action in pump(&mut link, &mut peer, now) {
                match action {
                    LinkAction::Answer { token, result } => {
                        result.unwrap();
                        answered += 1;
                        assert_eq!(token, Token(answered), "seed {seed}");
                    }
                    LinkAction::LoggedIn => {}
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
        }
        assert!(
            answered > 100 && peer.logins > 10,
            "{answered} answers, {} logins",
            peer.logins
        );
        assert!(sent - answered <= link.pending() as u64);
    }
}
