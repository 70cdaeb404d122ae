//! Brokers that answer with an error for ever, or stop answering: whole subscriptions in virtual
//! time. Each either ends with a typed error or goes on asking at a bounded pace, and closing ends
//! within its deadline whatever the broker does.

use bytes::Bytes;
use laneway::broker::{Cluster, ClusterConfig, Fault, Rule};
use laneway::engine::{Command, Config, Event, LaneKey, Source};
use laneway::ids::TopicPartition;
use laneway::lane::Mode;
use laneway::{ErrorKind, Outcome};
use laneway_protocol_tests::setting::MINUTE;
use laneway_protocol_tests::{Plan, Script, World};
use std::sync::Arc;
use std::time::Duration;

/// Metadata, FindCoordinator, JoinGroup, SyncGroup, Heartbeat, OffsetFetch, ListOffsets, Fetch,
/// OffsetCommit, LeaveGroup, ApiVersions.
const APIS: [i16; 11] = [3, 10, 11, 14, 12, 9, 2, 1, 8, 13, 18];

fn world(partitions: i32, seed: u64) -> World {
    let config = ClusterConfig {
        seed,
        ..ClusterConfig::default()
    };
    let mut cluster = Cluster::new(config);
    cluster.create_topic("t", partitions).unwrap();
    let mut world = World::new(cluster, 1, seed);
    let now = world.now();
    for at in 0..60 {
        let key = format!("k{}", at % 10);
        let pair = (Some(key.as_bytes()), Some(&b"v"[..]));
        let partition = at % partitions;
        world
            .cluster
            .append_records(now, "t", partition, &[pair])
            .unwrap();
    }
    world
}

fn config(world: &World) -> Config {
    let source = Source::Topics {
        topics: vec!["t".into()],
        group: "g".into(),
    };
    let mut config = Config::new(world.bootstrap(), source);
    config.mode = Mode::Fixed { lanes: 4 };
    config.lane_key = LaneKey::RecordKey;
    config
}

fn acks() -> Script {
    Arc::new(|_, _| Plan::ack(Duration::ZERO))
}

/// Closes, and asserts that all is over at the deadline.
fn assert_closes(world: &mut World, member: usize, what: &str) {
    if world.finished(member).is_some() {
        return;
    }
    let deadline = world.now() + Duration::from_secs(3);
    world.command(member, 99, Command::Close { deadline });
    // A step more, for what is due at that very moment.
    let until = deadline.since(world.now()) + Duration::from_millis(1);
    world.run_for(until);
    assert!(
        world.finished(member).is_some(),
        "{what}: not over at the deadline: {}",
        world.story()
    );
}

/// I10: every error code there is, at every API, for ever: no storm, no silence.
#[test]
fn every_code_at_every_api_is_paced_or_fatal() {
    for api in APIS {
        for code in (-1..=133).filter(|code| *code != 0) {
            let what = format!("api {api}, code {code}");
            let mut world = world(2, 3);
            let config = config(&world);
            world
                .cluster
                .script()
                .add(Rule::new(Fault::Error(code)).api(api));
            world.join(config, acks());
            world.run_for(Duration::from_secs(20));
            let asked = world.cluster.requests(api);
            assert!(asked <= 150, "{what}: {asked} times in 20 s");
            let all: u64 = APIS.iter().map(|api| world.cluster.requests(*api)).sum();
            assert!(all <= 400, "{what}: {all} requests in 20 s");
            if let Some(Err(error)) = world.finished(0) {
                let blame = matches!(
                    error.kind(),
                    ErrorKind::Broker | ErrorKind::Misuse | ErrorKind::Peer
                );
                assert!(blame, "{what}: {error:?}");
                assert!(error.code() == Some(code), "{what}: {error:?}");
            }
            assert_closes(&mut world, 0, &what);
        }
    }
}

/// I10, L31: connections cut at every request of an API, for ever.
#[test]
fn connections_that_are_cut_for_ever_are_paced() {
    for api in APIS {
        for fault in [
            Fault::CutBefore,
            Fault::CutAfter,
            Fault::CutAnswer(6),
            Fault::Bytes(Bytes::from_static(b"HTTP/1.1 200 OK\r\n\r\n")),
            Fault::AnswerBytes(Bytes::from_static(&[0, 0, 0, 8, 0, 0, 0, 0, 1, 2, 3, 4])),
        ] {
            let what = format!("api {api}, {fault:?}");
            let mut world = world(2, 4);
            let config = config(&world);
            world.cluster.script().add(Rule::new(fault).api(api));
            world.join(config, acks());
            world.run_for(MINUTE);
            let asked = world.cluster.requests(api);
            assert!(asked <= 200, "{what}: {asked} times in a minute");
            assert!(
                world.finished(0).is_none(),
                "{what}: what may pass is no end: {}",
                world.story()
            );
            assert_closes(&mut world, 0, &what);
        }
    }
}

/// L02: never answered again, at any one API: closing is over at its deadline, not later.
#[test]
fn closing_is_over_at_its_deadline_whoever_is_mute() {
    for api in APIS {
        for fault in [Fault::Swallow, Fault::SwallowAnswer] {
            for before in [0, 50, 5_000] {
                let what = format!("api {api}, {fault:?}, after {before} ms");
                let mut world = world(2, 5);
                let config = config(&world);
                world
                    .cluster
                    .script()
                    .add(Rule::new(fault.clone()).api(api));
                world.join(config, acks());
                world.run_for(Duration::from_millis(before));
                assert_closes(&mut world, 0, &what);
            }
        }
    }
}

/// Where no broker was ever reached there is nobody to part from: closing takes no time.
#[test]
fn closing_without_a_broker_takes_no_time() {
    for api in [18, 3, 10] {
        let mut world = world(2, 5);
        let config = config(&world);
        world
            .cluster
            .script()
            .add(Rule::new(Fault::Swallow).api(api));
        world.join(config, acks());
        world.run_for(Duration::from_secs(40));
        let deadline = world.now() + MINUTE;
        world.command(0, 1, Command::Close { deadline });
        world.run_for(Duration::from_millis(1));
        assert!(
            matches!(world.finished(0), Some(Ok(()))),
            "api {api}: {}",
            world.story()
        );
    }
}

/// A close that comes while the group takes partitions away does not wait for that drain.
#[test]
fn a_close_during_a_revocation_is_over_at_its_deadline() {
    let mut world = world(2, 6);
    let config = config(&world);
    // One record never ends.
    let stuck: Script = Arc::new(|_, r| match r.offset() {
        3 => Plan::ack(Duration::from_secs(3600)),
        _ => Plan::ack(Duration::ZERO),
    });
    world.join(config.clone(), stuck.clone());
    world.run_for(Duration::from_secs(5));
    world.join(config, stuck);
    // The first member has heard of the rebalance by its next heartbeat.
    world.run_for(Duration::from_secs(5));
    let snapshot = world.engine(0).snapshot(world.now());
    assert!(
        snapshot.partitions.iter().any(|p| p.draining),
        "{snapshot:?}"
    );
    assert_closes(&mut world, 0, "revoked");
    assert_closes(&mut world, 1, "joining");
}

/// A close without a deadline of its own drops what runs and still commits what settled.
#[test]
fn closing_at_once_commits_what_settled() {
    let mut world = world(1, 7);
    let config = config(&world);
    world.join(
        config,
        Arc::new(|_, r| match r.offset() {
            50 => Plan::ack(Duration::from_secs(3600)),
            _ => Plan::ack(Duration::ZERO),
        }),
    );
    world.run_for(Duration::from_millis(900));
    let deadline = world.now();
    world.command(0, 1, Command::Close { deadline });
    world.run_for(Duration::from_millis(100));
    assert!(
        matches!(world.finished(0), Some(Ok(()))),
        "{}",
        world.story()
    );
    let committed = world.cluster.committed("g", "t", 0).map(|c| c.offset);
    assert_eq!(committed, Some(50));
}

/// The first failure of many is told of at once, with its reason, lane and offset; the rest every
/// ten seconds at most.
#[test]
fn the_first_failure_is_told_and_the_flood_is_not() {
    let mut world = world(1, 8);
    let config = config(&world);
    world.join(
        config,
        Arc::new(|_, _| Plan::at_once(Outcome::failed("no such table"))),
    );
    let told = |w: &World| {
        let events = w.events(0).iter();
        let told = events.filter(|e| matches!(e, Event::Retrying { reason, lane: Some(_), attempts: 1.., .. } if reason == "no such table"));
        told.count()
    };
    world.run_until(Duration::from_secs(5), |w| told(w) == 1);
    world.run_for(MINUTE);
    // Once in ten seconds, and the tenth attempt of each of the four lanes' first records.
    assert!((4..=12).contains(&told(&world)), "{}", told(&world));
}

/// E25: a handler's panic is told of at the first attempt.
#[test]
fn the_first_panic_is_told() {
    let mut world = world(1, 9);
    let config = config(&world);
    world.join(
        config,
        Arc::new(|_, r| Plan {
            takes: Duration::from_millis(1),
            outcome: Outcome::Ack,
            panics: r.offset() == 7 && r.attempt() == 1,
        }),
    );
    world.run_for(Duration::from_secs(5));
    let told: Vec<_> = world
        .events(0)
        .iter()
        .filter(|e| {
            matches!(e, Event::Panicked { offset: 7, attempts: 1, message, .. } if message.contains("planned"))
        })
        .collect();
    assert_eq!(told.len(), 1, "{}", world.story());
}

/// A topic that does not exist is waited for, and said.
#[test]
fn an_unknown_topic_is_said() {
    let mut world = world(1, 10);
    let mut config = config(&world);
    config.source = Source::Topics {
        topics: vec!["tpyo".into()],
        group: "g".into(),
    };
    world
        .cluster
        .script()
        .add(Rule::new(Fault::Error(3)).api(3));
    world.join(config, acks());
    world.run_for(Duration::from_secs(10));
    assert_eq!(warned(&world, "`tpyo` does not exist"), 1);
    world.run_for(MINUTE);
    // Again at ten times as many answers, not at each.
    assert_eq!(warned(&world, "`tpyo` does not exist"), 2);
}

fn warned(world: &World, words: &str) -> usize {
    let events = world.events(0).iter();
    let warned = events.filter(|e| match e {
        Event::Warning { error } => error.to_string().contains(words),
        _ => false,
    });
    warned.count()
}

/// A partition chosen by hand that does not exist is said; the others run.
#[test]
fn an_unknown_partition_is_said() {
    let mut world = world(1, 11);
    let mut config = config(&world);
    config.source = Source::Partitions {
        partitions: vec![TopicPartition::new("t", 0), TopicPartition::new("t", 7)],
        group: None,
    };
    world.join(config, acks());
    world.run_for(Duration::from_secs(20));
    assert_eq!(world.ended(), 60);
    assert!(
        (1..=4).contains(&warned(&world, "t-7")),
        "{}",
        world.story()
    );
}
