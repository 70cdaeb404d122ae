//! Records that fail, in whole subscriptions: what a function of the record decides, what a full
//! `parked_max` stops and what it does not, how long others wait beside a hot one.

use laneway::broker::{Fault, Rule};
use laneway::engine::{Config, DeadLetterTopic, Event, HoldupState, LaneKey};
use laneway::lane::{Exhausted, Mode, Retry};
use laneway::time::Now;
use laneway::{ErrorKind, Outcome, Record};
use laneway_protocol_tests::setting::{MINUTE, always, at_once, millis, secs};
use laneway_protocol_tests::{Plan, Script, World};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const HEARTBEAT: i16 = 12;

/// So many that no two of some dozen keys share one.
const LANES: u32 = 1 << 17;

fn world(partitions: i32, seed: u64) -> World {
    let mut world = World::with_topic(1, partitions, seed);
    world.cluster.create_topic("dlq", 1).unwrap();
    world.watch_dead_letters("dlq");
    world
}

fn config(world: &World) -> Config {
    let mut config = world.config();
    config.mode = Mode::Fixed { lanes: LANES };
    config
}

fn runs_of(world: &World, offset: i64) -> Vec<Now> {
    let runs = world.handled().into_iter().filter(|h| h.offset == offset);
    runs.map(|h| h.began).collect()
}

/// A function of record, attempt and error decides: the wait, the dead letter with a reason of its
/// own, the drop; and a cap on attempts or age ends what it would go on with.
#[test]
fn a_function_decides_what_follows_a_failure() {
    let mut world = world(1, 1);
    world.fill(1, 40, 40);
    // The world cannot know that a policy drops it.
    world.settled_elsewhere("t", 0, 5);
    let mut config = config(&world);
    config.dead_letter = Some(DeadLetterTopic::Named("dlq".into()));
    config.retry = Retry::by(|attempt| {
        let record = attempt.record().unwrap();
        assert_eq!(record.attempt(), attempt.attempts() + 1);
        match (record.offset(), attempt.attempts(), attempt.error()) {
            (3, 1, Some("no route")) => Outcome::RetryAfter(secs(3)),
            (3, ..) => Outcome::dead_letter(format!("given up at {:?}", attempt.age())),
            (4, ..) => Outcome::dead_letter(""),
            (5, 2, _) => Outcome::Drop,
            (6, ..) => Outcome::RetryAfter(secs(1)),
            (7, ..) => panic!("a bug in the policy"),
            _ => Outcome::RetryAfter(millis(10)),
        }
    })
    .max_attempts(4);
    let script: Script = Arc::new(|_, r| match r.offset() {
        7 if r.attempt() > 2 => Plan::ack(Duration::ZERO),
        3..=7 => Plan::at_once(Outcome::failed("no route")),
        _ => Plan::ack(Duration::ZERO),
    });
    world.join(config, script);
    world.run_until(MINUTE, |w| w.all_committed(1));
    let said: BTreeMap<i64, (String, String)> = world
        .dead_letters()
        .iter()
        .map(|l| {
            let header = |name: &str| l.header(&format!("laneway.dlq.{name}")).unwrap();
            (l.offset, (header("error"), header("attempts")))
        })
        .collect();
    let (three, attempts) = &said[&3];
    assert!(three.starts_with("given up at 3"), "{three}");
    assert_eq!(attempts, "2");
    assert_eq!(said[&4], ("no route".into(), "1".into()));
    // The cap's end, not the function's word, which would go on for ever.
    assert_eq!(said[&6], ("no route".into(), "4".into()));
    assert_eq!(said.len(), 3);
    let three = runs_of(&world, 3);
    assert!(three[1].since(three[0]) >= secs(3), "{three:?}");
    assert_eq!((runs_of(&world, 5).len(), runs_of(&world, 7).len()), (2, 3));
    world.assert_idle(0);
}

/// A cap on age counts from the first failure, also beside waits that the handler names; where its
/// end is to stop, the subscription ends at that record.
#[test]
fn an_age_ends_what_the_handler_would_go_on_with() {
    for end in [Exhausted::Drop, Exhausted::Stop] {
        let mut world = world(1, 2);
        world.fill(1, 20, 20);
        let mut config = config(&world);
        config.retry = Retry::default().max_age(secs(5)).then(end);
        let script: Script = Arc::new(|_, r| match r.offset() {
            3 => Plan::at_once(Outcome::RetryAfter(secs(2))),
            _ => Plan::ack(Duration::ZERO),
        });
        if end == Exhausted::Drop {
            // The world cannot know that it is dropped in the end.
            world.settled_elsewhere("t", 0, 3);
        }
        world.join(config, script);
        if end == Exhausted::Stop {
            world.run_until(MINUTE, |w| w.finished(0).is_some());
            let error = world.finished(0).unwrap().clone().unwrap_err();
            assert_eq!(
                (error.kind(), error.offset()),
                (ErrorKind::Handler, Some(3))
            );
            assert_eq!(world.committed(0), 3);
        } else {
            world.run_until(MINUTE, |w| w.all_committed(1));
        }
        // At 0, 2, 4 and 6 s: the last one finds itself too old.
        assert_eq!(runs_of(&world, 3).len(), 4, "{end:?}");
    }
}

/// E02: as many lanes wait as may. Nothing more is read, what was read runs, heartbeats and commits
/// go on, no fetch is made in vain; and when lanes go on, reading does.
#[test]
fn a_full_parked_max_stops_reading_and_nothing_else() {
    for mode in [Mode::Fixed { lanes: LANES }, Mode::PerKey { at_once: 16 }] {
        let mut world = world(2, 3);
        // Twenty keys that fail in partition 0, one record each; then others.
        for n in 0..20 {
            let key = format!("bad{n}");
            world.append("t", 0, &[(Some(key.as_bytes()), Some(b"v"))]);
        }
        world.fill(2, 4000, 40);
        let mut config = config(&world);
        config.mode = mode;
        config.parked_max = 20;
        config.partition_bytes_max = 4 << 10;
        config.fetch_bytes_max = 8 << 10;
        config.retry = Retry::fixed(secs(60));
        let script: Script = Arc::new(|_, r: &Record| {
            let bad = r.key().is_some_and(|k| k.starts_with(b"bad"));
            match bad && r.attempt() == 1 {
                true => Plan::at_once(Outcome::failed("poison")),
                false => Plan::ack(Duration::ZERO),
            }
        });
        world.join(config, script);
        world.run_for(secs(10));
        let now = world.snapshot(0);
        assert_eq!(now.parked, 20, "{mode:?}");
        let ran = world.settlings();
        assert!(
            ran < 3000,
            "{mode:?}: {ran} of 4,000 ran: nothing stopped it"
        );
        let holdup = now.partitions[0].holdup.clone().unwrap();
        assert_eq!((holdup.offset, holdup.attempts), (0, 1));
        assert!(
            matches!(holdup.what, HoldupState::Retrying(_)),
            "{holdup:?}"
        );
        let (beats, fetches) = (world.cluster.requests(HEARTBEAT), world.cluster.requests(1));
        world.run_for(secs(30));
        assert_eq!(
            world.settlings(),
            ran,
            "{mode:?}: at the bound nothing is read"
        );
        assert!(world.cluster.requests(HEARTBEAT) - beats >= 25, "{mode:?}");
        assert!(
            world.cluster.requests(1) - fetches < 130,
            "{mode:?}: no spinning"
        );
        world.run_until(MINUTE * 2, |w| w.all_committed(2));
        assert_eq!(world.settlings(), 4020, "{mode:?}");
        world.assert_idle(0);
    }
}

/// E02: a full `parked_max` of records whose dead letters cannot be written: said, waited for, and
/// all flows again once they can be.
#[test]
fn dead_letters_that_wait_fill_the_bound_and_free_it() {
    let mut world = world(1, 4);
    world.fill(1, 2000, 50);
    let mut config = config(&world);
    config.dead_letter = Some(DeadLetterTopic::Named("dlq".into()));
    config.parked_max = 10;
    config.partition_bytes_max = 4 << 10;
    config.fetch_bytes_max = 4 << 10;
    world
        .cluster
        .script()
        .add(Rule::new(Fault::Error(29)).api(0));
    let script: Script = Arc::new(|_, r| match r.offset() % 5 {
        0 => Plan::at_once(Outcome::dead_letter("no such account")),
        _ => Plan::ack(Duration::ZERO),
    });
    world.join(config, script);
    world.run_for(secs(40));
    let now = world.snapshot(0);
    assert!(now.dead_letters >= 10 && now.dead_lettered == 0, "{now:?}");
    let ran = world.handled().len();
    assert!(ran < 1500, "{ran}");
    let holdup = now.partitions[0].holdup.clone().unwrap();
    assert_eq!((holdup.offset, holdup.what), (0, HoldupState::DeadLetter));
    world.cluster.script().clear();
    world.run_until(MINUTE * 3, |w| w.all_committed(1));
    assert_eq!(world.dead_letters().len(), 400);
    world.assert_idle(0);
}

/// How long records of quiet partitions waited from being written to their start: the mean and the
/// longest, in milliseconds. Beside them stands a partition with this many records.
fn quiet_waits(busy: usize, mode: Mode, key: LaneKey) -> (f64, u64) {
    const QUIET: i32 = 12;
    let mut world = World::with_topic(1, 1 + QUIET, 5);
    let value = [7; 100];
    for batch in 0..busy / 100 {
        let keys: Vec<String> = (0..100)
            .map(|n| format!("hot{}", (batch + n) % 7))
            .collect();
        let pairs: Vec<_> = keys
            .iter()
            .map(|k| (Some(k.as_bytes()), Some(&value[..])))
            .collect();
        world.append("t", 0, &pairs);
    }
    let mut config = world.config();
    (config.mode, config.lane_key, config.executors) = (mode, key, 2);
    config.partition_bytes_max = 64 << 10;
    config.fetch_bytes_max = 256 << 10;
    config.budget_bytes = 1 << 20;
    config.batch_bytes_max = 64 << 10;
    world.join(config, always(Plan::ack(millis(1))));
    world.run_until(MINUTE, |w| {
        w.snapshot(0).partitions.len() == 1 + QUIET as usize
    });
    world.run_for(millis(300));
    let mut written = BTreeMap::new();
    for n in 0..120 {
        let p = 1 + n % QUIET;
        let key = format!("cold{p}");
        let offset = world.append("t", p, &[(Some(key.as_bytes()), Some(b"v"))]);
        written.insert((p, offset), world.now());
        world.run_for(millis(10));
    }
    world.run_for(secs(2));
    let waits: Vec<u64> = world
        .handled()
        .iter()
        .filter_map(|h| {
            let at = written.get(&(h.partition.partition, h.offset))?;
            Some(u64::try_from(h.began.since(*at).as_micros()).unwrap())
        })
        .collect();
    assert_eq!(
        waits.len(),
        120,
        "{mode:?}: some did not run within two seconds"
    );
    let mean = waits.iter().sum::<u64>() as f64 / 120_000.0;
    (mean, waits.iter().max().unwrap() / 1000)
}

/// Fairness among partitions: one with 60,000 records beside twelve quiet ones. What those wait is,
/// on the mean, at most twice what they wait alone and some handler calls' time (1 ms each): with
/// lanes four calls, at the longest thirty; without lanes, where records run as they came, what two
/// groups for each executor take.
#[test]
fn a_busy_partition_does_not_hold_quiet_ones_up() {
    for (mode, key, (calls, calls_longest)) in [
        (Mode::PerKey { at_once: 16 }, LaneKey::Partition, (4, 30)),
        (Mode::PerKey { at_once: 16 }, LaneKey::RecordKey, (4, 30)),
        (Mode::Fixed { lanes: LANES }, LaneKey::RecordKey, (4, 30)),
        (Mode::Any { workers: 16 }, LaneKey::Partition, (32, 100)),
    ] {
        let (alone, alone_longest) = quiet_waits(0, mode, key.clone());
        let (beside, longest) = quiet_waits(60_000, mode, key);
        println!("{mode:?}: {beside:.2} ms, longest {longest}; alone {alone:.2}, {alone_longest}");
        assert!(
            beside <= 2.0 * alone + f64::from(calls),
            "{mode:?}: {beside} ms, alone {alone}"
        );
        assert!(
            longest <= 2 * alone_longest + calls_longest,
            "{mode:?}: {longest} ms, alone {alone_longest}"
        );
    }
}

/// The session lives while a handler runs for an hour, by either protocol: it keeps its membership,
/// is told of at doubling ages, and its record is committed in the end.
#[test]
fn a_session_outlives_a_handler_of_an_hour() {
    for protocol in [
        laneway::GroupProtocol::Classic,
        laneway::GroupProtocol::Consumer,
    ] {
        let mut world = world(2, 6);
        world.fill(2, 20, 4);
        let mut config = config(&world);
        config.group_protocol = protocol;
        let script: Script = Arc::new(|_, r| match (r.partition(), r.offset()) {
            (0, 5) => Plan::ack(MINUTE * 60),
            _ => Plan::ack(Duration::ZERO),
        });
        world.join(config, script);
        world.run_until(MINUTE, |w| w.committed(1) == 10);
        let generation = world.snapshot(0).generation;
        world.run_for(MINUTE * 59);
        assert_eq!(world.committed(0), 5, "{protocol:?}");
        let now = world.snapshot(0);
        assert_eq!(now.generation, generation, "{protocol:?}");
        let age = now.oldest_running.unwrap().running_for;
        assert!(age > MINUTE * 59, "{age:?}");
        world.run_until(MINUTE * 3, |w| w.all_committed(2));
        let mut ages = Vec::new();
        for event in world.events(0) {
            match event {
                Event::Stalled { running_for, .. } => ages.push(running_for.as_secs() / 60),
                Event::Lost { partition } => panic!("{protocol:?}: {partition} was lost"),
                _ => {}
            }
        }
        assert_eq!(ages, [5, 10, 20, 40], "{protocol:?}");
        assert_eq!(world.settlings(), 20);
    }
}

/// E38: handlers come to their time-out in the very moment in which their partitions are revoked,
/// a little before and a little after: each record settles once, nobody runs two of a key at once.
#[test]
fn time_outs_and_revokes_of_one_moment() {
    for shift in [0u64, 1, 2, 3, 5, 8, 13, 21] {
        let mut world = world(4, 70 + shift);
        world.fill(4, 200, 40);
        let mut config = config(&world);
        config.handler_timeout = Some(secs(2));
        config.retry = Retry::fixed(millis(700));
        config.drain_max = secs(3);
        let script: Script = Arc::new(|_, r| match (r.offset() % 7, r.attempt()) {
            (0, 1) => Plan::ack(secs(30)),
            (1, _) => Plan::ack(millis(1999)),
            _ => Plan::ack(millis(1)),
        });
        world.join(config.clone(), script.clone());
        world.run_until(MINUTE, |w| w.ended() > 100);
        let began = world.handled().iter().map(|h| h.began).min().unwrap();
        // Joining takes about a round trip; the time-outs of the first runs are at 2 s.
        let until = began + secs(2);
        let left = until.since(world.now()).saturating_sub(millis(4));
        world.run_for(left + Duration::from_micros(500 * shift));
        world.expect_drained_hand_overs();
        world.join(config, script);
        world.run_until(MINUTE * 3, |w| w.all_committed(4));
        assert_eq!(world.distinct(), 200, "shift {shift}");
        assert_eq!(world.settled_again().len(), 0, "shift {shift}");
        world.run_for(secs(5));
        world.assert_idle(0);
        world.assert_idle(1);
    }
}

/// P21: a partition is revoked while a dead letter's leader is away: the drain's deadline comes, the
/// record is run again by whoever gets it, and nothing is committed past it before a letter stands.
#[test]
fn a_revoke_while_the_dead_letters_leader_is_away() {
    for back_after in [2u64, 20] {
        let mut world = World::with_topic(3, 2, 80 + back_after);
        world.cluster.create_topic("dlq", 1).unwrap();
        world.watch_dead_letters("dlq");
        world.fill(2, 40, 8);
        let coordinator = world.cluster.coordinator("g").unwrap();
        // Its leader is a broker that neither coordinates nor leads what is read.
        let away = (1..=3).find(|n| *n != coordinator).unwrap();
        let now = world.now();
        world.cluster.move_leader(now, "dlq", 0, away);
        for p in 0..2 {
            world.cluster.move_leader(now, "t", p, coordinator);
        }
        let mut config = config(&world);
        config.dead_letter = Some(DeadLetterTopic::Named("dlq".into()));
        config.drain_max = secs(8);
        config.request_timeout = secs(4);
        let script: Script = Arc::new(|_, r| match (r.partition(), r.offset()) {
            (_, 3) => Plan::at_once(Outcome::dead_letter("no such account")),
            _ => Plan::ack(millis(1)),
        });
        // The leader hears nobody; it still leads.
        let silent = Rule::new(Fault::Swallow).api(0);
        world.cluster.script().add(silent);
        world.join(config.clone(), script.clone());
        world.run_until(MINUTE, |w| w.ended() >= 30);
        world.join(config, script);
        world.run_for(secs(back_after));
        assert!(world.committed(0) <= 3 && world.committed(1) <= 3);
        world.cluster.script().clear();
        world.run_until(MINUTE * 3, |w| w.all_committed(2));
        let letters = world.dead_letters().len();
        assert!((2..=4).contains(&letters), "{letters}");
        world.run_for(secs(10));
        world.assert_idle(0);
        world.assert_idle(1);
    }
}

/// A map that is full and a partition at `ahead_max`, both at once, above one stuck record: the
/// other partition flows; after a crash nothing that the map covered runs again.
#[test]
fn a_partition_at_ahead_max_keeps_its_map_over_a_crash() {
    for ahead_max in [50u64, 400] {
        let mut world = world(2, 90);
        world.fill(2, 2000, 100);
        let mut config = config(&world);
        config.mode = Mode::PerKey { at_once: 64 };
        config.ahead_max = ahead_max;
        config.metadata_max = 64;
        let stuck: Script = Arc::new(|_, r| match (r.partition(), r.offset()) {
            (0, o) if o % 97 == 3 => Plan::ack(MINUTE * 60),
            _ => Plan::ack(Duration::ZERO),
        });
        world.join(config.clone(), stuck);
        world.run_until(MINUTE, |w| w.committed(1) == 1000);
        world.run_for(secs(5));
        let p = world.snapshot(0).partitions[0].clone();
        // Checked batch by batch, of one record here.
        assert!(p.ahead >= ahead_max && p.ahead <= ahead_max + 400, "{p:?}");
        let ran = world.settlings();
        world.kill(0);
        world.join(config, at_once());
        world.run_until(MINUTE, |w| w.all_committed(2));
        assert_eq!(world.distinct(), 2000);
        // The world refuses a run of what the map covered; the rest of what settled may repeat.
        assert!(world.settled_again().len() as u64 <= p.ahead, "{ran}");
    }
}
