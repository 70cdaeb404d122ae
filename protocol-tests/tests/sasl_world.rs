//! Whole subscriptions that have to say who they are, in virtual time: every mechanism, sessions
//! that end under load, credentials that change, are refused, or do not come.

use laneway::broker::{Cluster, ClusterConfig, Fault, Rule, SaslConfig};
use laneway::engine::{Config, Event, Source};
use laneway::ids::TopicPartition;
use laneway::sasl::{Credentials, Entropy, Mechanism, Password, Settings, Token};
use laneway::time::Now;
use laneway::{Error, ErrorKind};
use laneway_protocol_tests::setting::MINUTE;
use laneway_protocol_tests::{Plan, Script, World};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const HANDSHAKE: i16 = 17;
const AUTHENTICATE: i16 = 36;

fn world(nodes: i32, seed: u64, sasl: Option<SaslConfig>) -> World {
    let config = ClusterConfig {
        nodes,
        seed,
        sasl,
        ..ClusterConfig::default()
    };
    let mut cluster = Cluster::new(config);
    cluster.create_topic("t", 6).unwrap();
    World::new(cluster, nodes, seed)
}

fn alice(session: Option<Duration>) -> SaslConfig {
    SaslConfig {
        session,
        ..SaslConfig::new([("alice", "swordfish"), ("a=b,c", "p,=w")])
    }
}

fn config(world: &World, mechanism: Mechanism) -> Config {
    let mut config = world.config();
    let nonce = std::sync::atomic::AtomicU64::new(0);
    let entropy = Entropy::new(move || {
        let n = nonce.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        bytes
    });
    config.sasl = Some(Settings::new(mechanism, entropy));
    config
}

fn with_password(world: &World, mechanism: Mechanism, user: &str, password: &str) -> Config {
    let mut config = config(world, mechanism);
    let credentials = Password::new(user, password).into();
    config.sasl.as_mut().unwrap().fixed = Some(credentials);
    config
}

fn quick() -> Script {
    Arc::new(|_, _| Plan::ack(Duration::from_millis(2)))
}

fn warnings(world: &World, member: usize) -> Vec<String> {
    let events = world.events(member).iter();
    let warnings = events.filter_map(|e| match e {
        Event::Warning { error } => Some(error.to_string()),
        _ => None,
    });
    warnings.collect()
}

/// How the member ended.
fn error(world: &World, member: usize) -> Error {
    world.finished(member).unwrap().clone().unwrap_err()
}

fn token(cluster: &Cluster, now: Now, lifetime: Duration) -> Credentials {
    let value = cluster.token(now, "alice", lifetime);
    Token::new(value).expires_in(lifetime).into()
}

#[test]
fn every_mechanism_reads_and_commits() {
    for (mechanism, user, password) in [
        (Mechanism::Plain, "alice", "swordfish"),
        (Mechanism::ScramSha256, "alice", "swordfish"),
        (Mechanism::ScramSha512, "a=b,c", "p,=w"),
    ] {
        let mut world = world(3, 1, Some(alice(None)));
        world.fill(6, 300, 12);
        let config = with_password(&world, mechanism, user, password);
        let member = world.join(config, quick());
        world.run_until(MINUTE, |w| w.all_committed(6));
        assert_eq!(world.ended(), 300);
        assert_eq!(warnings(&world, member), [""; 0]);
        // Each connection logged in once.
        let logins = world.cluster.requests(HANDSHAKE);
        assert_eq!(logins, world.cluster.requests(18), "{}", world.story());
    }
    let mut world = world(3, 1, Some(alice(None)));
    world.fill(6, 300, 12);
    let config = config(&world, Mechanism::OAuthBearer);
    let member = world.join(config, quick());
    world.run_for(SECOND);
    assert_eq!(
        (
            world.cluster.connections(),
            world.credentials_wanted(member)
        ),
        (0, 1)
    );
    world.provide(
        member,
        Box::new(|c, now| Some(Ok(token(c, now, MINUTE * 60)))),
    );
    world.run_until(MINUTE, |w| w.all_committed(6));
    assert_eq!(world.ended(), 300);
}

/// L21: sessions end every few seconds while records flow: nothing is lost, doubled or out of
/// order (the world looks after that at every step), and no connection is made anew for it.
#[test]
fn l21_sessions_end_under_load() {
    for (seed, session) in [(1, 1500), (2, 2000), (3, 3700)] {
        let mut world = world(3, seed, Some(alice(Some(Duration::from_millis(session)))));
        let config = with_password(&world, Mechanism::ScramSha256, "alice", "swordfish");
        let member = world.join(config, quick());
        world.run_for(SECOND * 5);
        let (opened, logged_in) = (
            world.cluster.requests(18),
            world.cluster.requests(HANDSHAKE),
        );
        for _ in 0..300 {
            world.fill(6, 12, 12);
            world.run_for(Duration::from_millis(100));
        }
        world.run_until(MINUTE, |w| w.all_committed(6));
        assert_eq!((world.ended(), world.distinct()), (3600, 3600));
        assert_eq!(world.cluster.requests(18), opened, "{}", world.story());
        let renewed = world.cluster.requests(HANDSHAKE) - logged_in;
        let times = 30_000 / session;
        assert!(
            (times * 3..=times * 12).contains(&renewed),
            "{renewed} renewals in 30 s"
        );
        assert_eq!(warnings(&world, member), [""; 0]);
        let generation = world.engine(member).snapshot(world.now()).generation;
        assert_eq!(generation, Some(1), "the membership stood");
    }
}

/// L21: a session shorter than the long poll, and than a parked join.
#[test]
fn l21_a_session_shorter_than_a_long_poll() {
    let mut world = world(1, 4, Some(alice(Some(SECOND * 2))));
    let mut settings = with_password(&world, Mechanism::Plain, "alice", "swordfish");
    settings.fetch_wait_max = SECOND * 20;
    settings.request_timeout = SECOND * 30;
    let member = world.join(settings, quick());
    world.run_for(SECOND * 5);
    let opened = world.cluster.requests(18);
    for _ in 0..10 {
        world.run_for(SECOND * 13);
        world.fill(6, 12, 12);
    }
    world.run_until(MINUTE, |w| w.all_committed(6));
    assert_eq!(world.ended(), 120);
    assert_eq!(warnings(&world, member), [""; 0]);
    // Idle connections may be closed and opened again; that is little over two minutes.
    assert!(
        world.cluster.requests(18) - opened <= 2,
        "{}",
        world.story()
    );
}

/// A password that is wrong: the subscription ends with the broker's words, at once.
#[test]
fn a_wrong_password_ends_the_subscription() {
    for mechanism in [Mechanism::Plain, Mechanism::ScramSha512] {
        let mut world = world(3, 5, Some(alice(None)));
        let config = with_password(&world, mechanism, "alice", "sword");
        let member = world.join(config, quick());
        world.run_until(SECOND * 2, |w| w.finished(member).is_some());
        let error = error(&world, member);
        assert_eq!((error.kind(), error.code()), (ErrorKind::Broker, Some(58)));
        assert!(!error.is_retriable() && error.broker().is_some());
        assert!(!format!("{error:?}").contains("sword"), "{error:?}");
        assert!(world.cluster.requests(AUTHENTICATE) <= 2, "no storm");
    }
}

/// A listener without SASL, and a mechanism that is not offered: named in words.
#[test]
fn a_listener_of_another_kind_is_named() {
    let mut plaintext = world(1, 6, None);
    let config = with_password(&plaintext, Mechanism::Plain, "alice", "swordfish");
    let member = plaintext.join(config, quick());
    plaintext.run_until(SECOND * 2, |w| w.finished(member).is_some());
    let told = error(&plaintext, member);
    assert_eq!(told.code(), Some(34));
    assert!(told.to_string().contains("does not do SASL"), "{told}");

    let mut sasl = alice(None);
    sasl.mechanisms = vec!["SCRAM-SHA-512".to_owned()];
    let mut world = world(1, 6, Some(sasl));
    let config = with_password(&world, Mechanism::Plain, "alice", "swordfish");
    let member = world.join(config, quick());
    world.run_until(SECOND * 2, |w| w.finished(member).is_some());
    let told = error(&world, member);
    assert_eq!(told.code(), Some(33));
    assert!(told.to_string().contains("offers SCRAM-SHA-512"), "{told}");

    // The reverse: no SASL on our side.
    let config = world.config();
    world.join(config, quick());
    world.run_for(SECOND * 20);
    assert!(
        warnings(&world, 1).iter().any(|w| w.contains("SASL")),
        "{}",
        world.story()
    );
}

/// Where the broker says that it may pass, it is tried again, at the pace of connections.
#[test]
fn what_may_pass_is_tried_again() {
    let mut world = world(1, 7, Some(alice(None)));
    world
        .cluster
        .script()
        .add(Rule::new(Fault::Error(15)).api(AUTHENTICATE).times(5));
    world.fill(6, 60, 12);
    let config = with_password(&world, Mechanism::Plain, "alice", "swordfish");
    world.join(config, quick());
    world.run_until(MINUTE, |w| w.all_committed(6));
    assert_eq!(world.ended(), 60);
}

/// A broker that has not heard of a user yet refuses once; the others have taken the password.
#[test]
fn one_refusal_of_a_password_that_works_is_survived() {
    let mut world = world(3, 8, Some(alice(None)));
    let config = with_password(&world, Mechanism::ScramSha256, "alice", "swordfish");
    let member = world.join(config, quick());
    world.run_for(SECOND * 5);
    world
        .cluster
        .script()
        .add(Rule::new(Fault::Error(58)).api(AUTHENTICATE).times(1));
    world.cut(member);
    world.fill(6, 60, 12);
    world.run_until(MINUTE, |w| w.all_committed(6));
    assert_eq!(
        warnings(&world, member).len(),
        1,
        "{:?}",
        warnings(&world, member)
    );
    // Removed for good: three refusals, and the end.
    world.cluster.set_password("alice", None);
    world.cut(member);
    world.run_until(MINUTE, |w| w.finished(member).is_some());
    assert_eq!(error(&world, member).code(), Some(58));
}

/// L24: short-lived tokens over a minute: each is renewed before it ends, on the same connections.
#[test]
fn l24_tokens_are_renewed_in_time() {
    let mut world = world(3, 9, Some(alice(Some(MINUTE * 60))));
    let config = config(&world, Mechanism::OAuthBearer);
    let member = world.join(config, quick());
    world.provide(
        member,
        Box::new(|c, now| Some(Ok(token(c, now, SECOND * 10)))),
    );
    world.run_for(SECOND * 5);
    let opened = world.cluster.requests(18);
    for _ in 0..60 {
        world.fill(6, 12, 12);
        world.run_for(SECOND);
    }
    world.run_until(MINUTE, |w| w.all_committed(6));
    assert_eq!(world.ended(), 720);
    assert_eq!(world.cluster.requests(18), opened, "{}", world.story());
    let asked = world.credentials_wanted(member);
    assert!((7..=11).contains(&asked), "{asked} tokens in a minute");
    assert_eq!(warnings(&world, member), [""; 0]);
}

/// L24: the identity provider is away for a while: a warning early, no harm; away for good: the
/// old token is used to its end, and the subscription ends late, with the provider's words.
#[test]
fn l24_a_provider_that_fails_warns_early_and_ends_late() {
    let mut world = world(3, 10, Some(alice(Some(MINUTE * 60))));
    let mut settings = config(&world, Mechanism::OAuthBearer);
    settings.sasl.as_mut().unwrap().late_max = SECOND * 60;
    let member = world.join(settings, quick());
    let away = Rc::new(Cell::new(false));
    let is_away = away.clone();
    let provider = move |c: &mut Cluster, now: Now| {
        Some(match is_away.get() {
            false => Ok(token(c, now, SECOND * 100)),
            true => Err(Error::new(
                ErrorKind::Transport,
                "the identity provider is away",
            )),
        })
    };
    world.provide(member, Box::new(provider));
    world.run_for(SECOND * 5);
    away.set(true);
    world.run_for(SECOND * 85);
    assert!(
        warnings(&world, member)[0].contains("is away"),
        "warned before it mattered"
    );
    away.set(false);
    world.run_for(SECOND * 60);
    let opened = world.cluster.requests(18);
    world.fill(6, 60, 12);
    world.run_until(MINUTE, |w| w.all_committed(6));
    assert_eq!(world.cluster.requests(18), opened, "nothing was lost by it");

    away.set(true);
    let asked = world.credentials_wanted(member);
    let mut went_on = 0;
    while world.finished(member).is_none() {
        went_on += 1;
        assert!(went_on < 400, "{}", world.story());
        world.run_for(SECOND);
    }
    assert!((60..=170).contains(&went_on), "{went_on} s");
    let told = error(&world, member).to_string();
    assert!(told.contains("is away") && told.contains("60s"), "{told}");
    assert!(world.credentials_wanted(member) - asked < 30, "no storm");
}

/// L24: the password is changed on the brokers, and the provider knows the new one.
#[test]
fn l24_a_changed_password_comes_from_the_provider() {
    let mut world = world(3, 11, Some(alice(Some(SECOND * 3))));
    let config = config(&world, Mechanism::ScramSha512);
    let member = world.join(config, quick());
    let current = Rc::new(Cell::new("swordfish"));
    let known = current.clone();
    let provider = move |_: &mut Cluster, _| Some(Ok(Password::new("alice", known.get()).into()));
    world.provide(member, Box::new(provider));
    world.fill(6, 60, 12);
    world.run_until(MINUTE, |w| w.all_committed(6));
    world.cluster.set_password("alice", Some("marlin"));
    current.set("marlin");
    for _ in 0..20 {
        world.fill(6, 12, 12);
        world.run_for(SECOND);
    }
    world.run_until(MINUTE, |w| w.all_committed(6));
    assert!(world.finished(member).is_none());
    assert_eq!(
        warnings(&world, member).len(),
        1,
        "{:?}",
        warnings(&world, member)
    );
    assert!(world.credentials_wanted(member) <= 3);
}

/// A provider that never answers: nothing is opened, and after five minutes that is that.
#[test]
fn a_provider_that_hangs_is_given_up_late() {
    let mut world = world(1, 12, Some(alice(None)));
    let config = config(&world, Mechanism::OAuthBearer);
    let member = world.join(config, quick());
    world.run_until(SECOND * 310, |w| w.finished(member).is_some());
    assert!(world.now() >= Now(0) + SECOND * 300);
    assert_eq!(world.cluster.requests(18), 0);
    let warned = warnings(&world, member);
    assert!(warned[0].contains("within 30s"), "{warned:?}");
}

/// L30: a broker that takes its time to authenticate is waited for.
#[test]
fn l30_slow_authentication_is_waited_for() {
    let mut world = world(1, 13, Some(alice(None)));
    world
        .cluster
        .script()
        .add(Rule::new(Fault::Delay(SECOND * 8)).api(AUTHENTICATE));
    world.fill(6, 60, 12);
    let config = with_password(&world, Mechanism::ScramSha256, "alice", "swordfish");
    world.join(config, quick());
    world.run_until(MINUTE * 3, |w| w.all_committed(6));
    assert_eq!(
        world.cluster.requests(18),
        world.cluster.requests(HANDSHAKE)
    );
}

/// An answer to the first `SaslAuthenticate` of a connection, in version 2; `auth` is what the
/// server says, behind the length that it claims.
fn authenticated(claimed: &[u8], auth: &[u8]) -> Vec<u8> {
    let mut body = vec![0, 0, 0, 2, 0, 0, 0, 1];
    body.extend_from_slice(claimed);
    body.extend_from_slice(auth);
    body.extend([0; 9]);
    let mut frame = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    frame.extend(body);
    frame
}

/// The length of so many bytes, as a flexible version has it.
fn length(n: usize) -> Vec<u8> {
    let (mut left, mut out) = (n + 1, Vec::new());
    while left >= 0x80 {
        out.push(u8::try_from(left & 0x7f).unwrap() | 0x80);
        left >>= 7;
    }
    out.push(u8::try_from(left).unwrap());
    out
}

/// A broker that answers authentication with what no broker says: the connection to it ends, paced
/// and in words, and the partitions of the others are read on.
#[test]
fn hostile_answers_to_authentication_cost_that_broker_alone() {
    // The first nonces of this file's entropy, base64 of 24 bytes, are zeros but for the first.
    let says = |text: &str| authenticated(&length(text.len()), text.as_bytes());
    let megabyte = vec![b'r'; 1 << 20];
    for (name, bytes) in [
        (
            "2^31 rounds",
            says("r=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAx,s=c2FsdA==,i=2147483648"),
        ),
        ("another nonce", says("r=x,s=c2FsdA==,i=4096")),
        (
            "a megabyte",
            authenticated(&length(megabyte.len()), &megabyte),
        ),
        (
            "a megabyte claimed",
            authenticated(&length(megabyte.len()), b"r="),
        ),
        (
            "4 GiB claimed",
            authenticated(&[0xff, 0xff, 0xff, 0xff, 0x0f], b"r="),
        ),
        ("nothing", says("")),
        ("binary", authenticated(&length(4), &[0xff, 0, 0xfe, 1])),
        ("cut short", vec![0, 0, 0, 5, 0, 0, 0, 2, 0]),
        ("no frame", vec![0xff; 8]),
    ] {
        let mut world = world(3, 14, Some(alice(None)));
        let rule = Rule::new(Fault::AnswerBytes(bytes.into()))
            .api(AUTHENTICATE)
            .node(1);
        world.cluster.script().add(rule);
        world.fill(6, 120, 12);
        let mut config = with_password(&world, Mechanism::ScramSha256, "alice", "swordfish");
        let partitions = (0..6).map(|p| TopicPartition::new("t", p)).collect();
        config.source = Source::Partitions {
            partitions,
            group: None,
        };
        let member = world.join(config, quick());
        let led = |w: &World, node: i32| {
            let leader = |p: i32| w.cluster.partition_view("t", p).unwrap().leader;
            (0..6).filter(|p| leader(*p) == node).count()
        };
        let others = 20 * (6 - led(&world, 1));
        world.run_until(MINUTE, |w| w.ended() >= others);
        world.run_for(MINUTE * 2);
        assert!(
            world.finished(member).is_none(),
            "{name}: {}",
            world.story()
        );
        assert_eq!(world.ended(), others, "{name}");
        let asked = world.cluster.requests(AUTHENTICATE);
        assert!(asked < 120, "{name}: {asked} logins in two minutes");
    }
}
