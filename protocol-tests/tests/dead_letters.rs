//! Dead letters in whole subscriptions: what is written, when its record settles, and what happens
//! where it cannot be written. What stands in the dead-letter topic is read off the broker's log,
//! and the world holds every commit against that.

use laneway::broker::{Cluster, ClusterConfig, Fault, Rule};
use laneway::engine::{Command, Config, DeadLetterHeaders, DeadLetterTopic, Event, TooLarge};
use laneway::lane::{Exhausted, Mode, Retry};
use laneway::records::{BatchBuilder, Encoder};
use laneway::{Error, Outcome, Record};
use laneway_protocol_tests::setting::{MINUTE, millis, secs};
use laneway_protocol_tests::{Plan, Script, World};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const PRODUCE: i16 = 0;
const METADATA: i16 = 3;
const INIT_PRODUCER_ID: i16 = 22;

/// Dead letters go to `dlq`, which has three partitions.
fn world(nodes: i32, partitions: i32, seed: u64) -> World {
    let mut world = World::with_topic(nodes, partitions, seed);
    world.cluster.create_topic("dlq", 3).unwrap();
    world.watch_dead_letters("dlq");
    world
}

fn config(world: &World) -> Config {
    let mut config = world.config();
    config.dead_letter = Some(DeadLetterTopic::Named("dlq".into()));
    // So many that no two keys share one.
    config.mode = Mode::Fixed { lanes: 1024 };
    config
}

/// Asks for a dead letter for each record that `bad` names, and acks the others.
fn script(bad: impl Fn(&Record) -> bool + Send + Sync + 'static) -> Script {
    Arc::new(move |_, record| match bad(record) {
        true => Plan::at_once(Outcome::dead_letter("no such account")),
        false => Plan::ack(Duration::ZERO),
    })
}

fn dead_lettered(world: &World, member: usize) -> Vec<(i64, i64, u32)> {
    let events = world.events(member).iter();
    events
        .filter_map(|e| match e {
            Event::DeadLettered {
                offset,
                at,
                attempts,
                ..
            } => Some((*offset, *at, *attempts)),
            _ => None,
        })
        .collect()
}

fn warnings(world: &World, member: usize) -> Vec<String> {
    let events = world.events(member).iter();
    events
        .filter_map(|e| match e {
            Event::Warning { error } => Some(error.to_string()),
            _ => None,
        })
        .collect()
}

/// P21: nothing is committed past a record whose dead letter is on its way, and its lane waits; the
/// broker's word alone settles it.
#[test]
fn p21_a_record_settles_by_the_ack_of_its_dead_letter() {
    let mut world = world(1, 1, 1);
    world.fill(1, 40, 4);
    let rule = Rule::new(Fault::DelayAnswer(secs(3))).api(PRODUCE);
    world.cluster.script().add(rule);
    let config = config(&world);
    let began = world.now();
    world.join(config, script(|r| r.offset() == 5));
    // Three other lanes run on; key 1, of offsets 5, 9, 13.., waits.
    world.run_until(secs(2), |w| w.ended() == 32);
    world.run_for(secs(1));
    assert_eq!((world.ended(), world.committed(0)), (32, 5));
    world.run_until(MINUTE, |w| w.all_committed(1));
    assert!(world.now().since(began) >= secs(3));
    assert_eq!(world.dead_letters().len(), 1);
    assert_eq!(dead_lettered(&world, 0), [(5, 0, 1)]);
    let snapshot = world.engine(0).snapshot(world.now());
    assert_eq!((snapshot.dead_lettered, snapshot.dead_letters), (1, 0));
    world.assert_idle(0);
}

/// D17: null stays null and empty stays empty, headers keep their order and are there as often as
/// before, bytes that are no text stay what they are; and the headers that are added say it all.
#[test]
fn d17_a_dead_letter_is_its_record_byte_for_byte() {
    for names in [DeadLetterHeaders::Laneway, DeadLetterHeaders::Connect] {
        let mut world = world(1, 1, 2);
        let mut batch = BatchBuilder::new(0);
        let headers: [(&[u8], Option<&[u8]>); 4] = [
            (b"h", Some(b"1")),
            (&[0xff, 0], None),
            (b"h", Some(b"")),
            (b"laneway.dlq.offset", Some(b"77")),
        ];
        let (null, empty, some) = (None, Some(&b""[..]), Some(&[0xfe, 1][..]));
        let shapes = [
            (null, null),
            (empty, empty),
            (null, some),
            (some, null),
            (some, empty),
        ];
        for (n, (key, value)) in (0i64..).zip(shapes) {
            let headers = if n == 4 { &headers[..] } else { &[] };
            batch.push_raw(1000 + n, key, value, headers).unwrap();
        }
        let batch = batch.build(&mut Encoder::new()).unwrap();
        let now = world.now();
        world.cluster.append(now, "t", 0, batch).unwrap();
        let mut config = config(&world);
        config.dead_letter_headers = names;
        world.join(config, script(|_| true));
        world.run_until(MINUTE, |w| w.all_committed(1));
        let mut letters = world.dead_letters().to_vec();
        letters.sort_by_key(|l| l.offset);
        for (n, ((key, value), letter)) in (0i64..).zip(shapes.into_iter().zip(&letters)) {
            assert_eq!(
                (letter.key.as_deref(), letter.value.as_deref()),
                (key, value)
            );
            assert_eq!(letter.timestamp, 1000 + n);
            let own = letter.headers.len() - 7;
            let expected = if n == 4 { &headers[..] } else { &[] };
            let same = letter.headers[..own].iter().zip(expected);
            assert_eq!(own, expected.len());
            for ((key, value), (k, v)) in same {
                assert_eq!((&key[..], value.as_deref()), (*k, *v));
            }
            let said = |laneway: &str, connect: &str| {
                let name = match names {
                    DeadLetterHeaders::Connect => format!("__connect.errors.{connect}"),
                    _ => format!("laneway.dlq.{laneway}"),
                };
                letter.header(&name).unwrap_or_default()
            };
            assert_eq!(said("topic", "topic"), "t");
            assert_eq!(said("partition", "partition"), "0");
            assert_eq!(said("offset", "offset"), n.to_string());
            assert_eq!(said("error", "exception.message"), "no such account");
            assert_eq!(said("group", "connector.name"), "g");
            let own = |name: &str| letter.header(&format!("laneway.dlq.{name}")).unwrap();
            assert_eq!(
                (own("timestamp"), own("attempts")),
                ((1000 + n).to_string(), "1".into())
            );
        }
        assert_eq!(letters.len(), 5);
    }
}

/// A key's dead letters are where Java's producer would put them, in order.
#[test]
fn dead_letters_of_a_key_stay_together_and_in_order() {
    let mut world = world(3, 4, 3);
    world.fill(4, 400, 20);
    let config = config(&world);
    world.join(config, script(|_| true));
    world.run_until(MINUTE, |w| w.all_committed(4));
    let mut last = std::collections::BTreeMap::new();
    for letter in world.dead_letters() {
        let key = letter.key.clone().unwrap();
        let place = laneway::produce::partition_of(&key, 3);
        assert_eq!(letter.at.0.partition, place);
        let before = last.insert(key, letter.offset);
        assert!(
            before.is_none_or(|before| before < letter.offset),
            "{letter:?}"
        );
    }
    assert_eq!(world.dead_letters().len(), 400);
}

/// A poison record runs five times and becomes a dead letter; the others flow past it.
#[test]
fn a_poison_record_runs_out_of_attempts_while_the_rest_flow() {
    let mut world = world(1, 1, 4);
    world.fill(1, 200, 8);
    let mut config = config(&world);
    config.retry = Retry::fixed(secs(1))
        .max_attempts(5)
        .then(Exhausted::DeadLetter);
    let poison: Script = Arc::new(|_, record| match record.offset() {
        3 => Plan::at_once(Outcome::failed("poison")),
        _ => Plan::ack(Duration::ZERO),
    });
    world.join(config, poison);
    // Seven of eight keys are through long before the poison is given up.
    world.run_until(secs(2), |w| w.settlings() >= 175);
    assert!(world.dead_letters().is_empty());
    world.run_until(MINUTE, |w| w.all_committed(1));
    let letter = &world.dead_letters()[0];
    assert_eq!(
        (letter.offset, letter.header("laneway.dlq.attempts")),
        (3, Some("5".into()))
    );
    assert_eq!(
        letter.header("laneway.dlq.error").as_deref(),
        Some("poison")
    );
    assert_eq!(dead_lettered(&world, 0), [(3, letter.at.1, 5)]);
    assert_eq!(world.settlings(), 199);
}

/// P09: a topic that is not there is said so at once; records that need it wait, paced, the others
/// run; once it is there everything is written, once.
#[test]
fn p09_a_missing_topic_is_said_at_once_and_waited_for() {
    let mut world = World::with_topic(1, 1, 5);
    world.watch_dead_letters("dlq");
    world.fill(1, 80, 8);
    let config = config(&world);
    world.join(config, script(|r| r.offset() == 8));
    world.run_until(secs(5), |w| w.settlings() >= 70);
    let said = warnings(&world, 0);
    assert!(said[0].contains("dlq does not exist"), "{said:?}");
    let asked = world.cluster.requests(METADATA);
    world.run_for(MINUTE * 5);
    let asked = world.cluster.requests(METADATA) - asked;
    assert!((5..700).contains(&asked), "I10: {asked}");
    assert_eq!(world.cluster.requests(PRODUCE), 0);
    assert_eq!((world.committed(0), world.settlings()), (8, 71));
    world.cluster.create_topic("dlq", 2).unwrap();
    world.run_until(MINUTE, |w| w.all_committed(1));
    assert_eq!(world.dead_letters().len(), 1);
    world.assert_idle(0);
}

/// A topic that may not be written to, or not even be seen: said, waited for at a pace, and nothing
/// lost. The subscription goes on.
#[test]
fn a_forbidden_topic_is_waited_for() {
    for api in [PRODUCE, METADATA, INIT_PRODUCER_ID] {
        let mut world = world(1, 1, 6);
        world.fill(1, 80, 8);
        let code = if api == INIT_PRODUCER_ID { 31 } else { 29 };
        let mut rule = Rule::new(Fault::Error(code)).api(api);
        if api != INIT_PRODUCER_ID {
            rule = rule.topic("dlq", (api == PRODUCE).then_some(0));
        }
        for partition in [1, 2] {
            if api == PRODUCE {
                let rule = rule.clone().topic("dlq", Some(partition));
                world.cluster.script().add(rule);
            }
        }
        world.cluster.script().add(rule);
        let config = config(&world);
        world.join(config, script(|r| r.offset() == 8));
        world.run_until(secs(10), |w| w.settlings() >= 70);
        world.run_for(MINUTE * 5);
        assert!(world.finished(0).is_none(), "{}", world.story());
        let said = warnings(&world, 0);
        let told = |words: &str| said.iter().any(|w| w.contains(words));
        match api {
            METADATA => assert!(told("dlq is forbidden"), "{said:?}"),
            _ => assert!(told("dead letters cannot be written to dlq"), "{said:?}"),
        }
        assert!(said.len() < 8, "{said:?}");
        let asked = world.cluster.requests(PRODUCE) + world.cluster.requests(INIT_PRODUCER_ID);
        assert!(asked < 40, "I10: {asked}");
        assert_eq!((world.committed(0), world.dead_letters().len()), (8, 0));
        world.cluster.script().clear();
        world.run_until(MINUTE * 3, |w| w.all_committed(1));
        assert_eq!(world.dead_letters().len(), 1);
    }
}

/// P22: a record that its dead-letter topic does not take is cut, and a header says how long it was;
/// or the subscription ends at it, and nothing past it is committed.
#[test]
fn p22_a_dead_letter_that_is_too_large() {
    for policy in [TooLarge::Truncate, TooLarge::Stop] {
        let limits = ClusterConfig {
            message_bytes_max: 2000,
            ..ClusterConfig::default()
        };
        let mut cluster = Cluster::new(limits);
        cluster.create_topic("t", 1).unwrap();
        cluster.create_topic("dlq", 1).unwrap();
        let mut world = World::new(cluster, 1, 7);
        world.watch_dead_letters("dlq");
        let large = vec![b'x'; 10_000];
        world.fill(1, 4, 4);
        world.append("t", 0, &[(Some(b"big"), Some(&large))]);
        world.fill(1, 20, 4);
        let mut config = config(&world);
        config.dead_letter_too_large = policy;
        world.join(config, script(|r| r.offset() == 4 || r.offset() == 2));
        if policy == TooLarge::Stop {
            world.run_until(MINUTE, |w| w.finished(0).is_some());
            let error = world.finished(0).unwrap().as_ref().unwrap_err();
            assert_eq!((error.topic(), error.offset()), (Some("t"), Some(4)));
            assert!(error.to_string().contains("max.message.bytes"), "{error}");
            assert_eq!(world.committed(0), 4);
            assert_eq!(world.dead_letters().len(), 1);
            continue;
        }
        world.run_until(MINUTE, |w| w.all_committed(1));
        let letters = world.dead_letters();
        assert_eq!(letters.len(), 2);
        let cut = letters.iter().find(|l| l.offset == 4).unwrap();
        let header = |name: &str| cut.header(&format!("laneway.dlq.{name}"));
        assert_eq!(header("truncated.value").as_deref(), Some("10000"));
        let left = cut.value.as_ref().unwrap();
        assert!(
            large.starts_with(left) && left.len() > 400,
            "{}",
            left.len()
        );
        assert_eq!(cut.key.as_deref(), Some(&b"big"[..]));
        let said = warnings(&world, 0);
        assert!(said.iter().any(|w| w.contains("it is cut")), "{said:?}");
        let requests = world.cluster.requests(PRODUCE);
        assert!(requests < 10, "{requests}");
    }
}

/// P02: answers that are lost, leaders that move, brokers that are away for a while: each dead letter
/// is there once.
#[test]
fn p02_lost_answers_make_no_second_dead_letter() {
    for seed in 0..6 {
        let mut world = world(3, 4, 100 + seed);
        world.fill(4, 400, 20);
        for (fault, skip) in [
            (Fault::SwallowAnswer, 0),
            (Fault::CutAfter, 1),
            (Fault::LateError(7), 2),
            (Fault::LateError(20), 4),
            (Fault::CutBefore, 5),
            (Fault::Error(6), 7),
            (Fault::Error(-1), 8),
        ] {
            let rule = Rule::new(fault).api(PRODUCE).skip(skip).times(1);
            world.cluster.script().add(rule);
        }
        let mut config = config(&world);
        config.request_timeout = secs(4);
        config.ahead_max = 12;
        world.join(config, script(|r| r.offset() % 3 == 0));
        let (a, b) = (1 + (seed % 3) as i32, 1 + ((seed + 1) % 3) as i32);
        world.run_for(millis(40));
        let now = world.now();
        world.cluster.move_leader(now, "dlq", 0, a);
        world.run_for(secs(1));
        let now = world.now();
        world.cluster.crash(now, b);
        world.run_for(secs(20));
        let now = world.now();
        world.cluster.restart(now, b);
        world.run_until(MINUTE * 3, |w| w.all_committed(4));
        let letters = world.dead_letters();
        let each: BTreeSet<_> = letters.iter().map(|l| (&l.source, l.offset)).collect();
        assert_eq!(
            each.len(),
            letters.len(),
            "seed {seed}: a dead letter twice"
        );
        let expected: usize = (0..4)
            .map(|p| (0..world.log_end(p)).filter(|o| o % 3 == 0).count())
            .sum();
        assert_eq!(each.len(), expected, "seed {seed}");
        world.assert_idle(0);
    }
}

/// P01: the dead-letter topic is deleted and made anew while letters are on their way: none is lost.
#[test]
fn p01_the_dead_letter_topic_is_made_anew_under_load() {
    for seed in 0..4 {
        let mut world = world(1, 2, 200 + seed);
        world.fill(2, 600, 20);
        let mut config = config(&world);
        config.ahead_max = 20;
        let slow = Rule::new(Fault::DelayAnswer(millis(30))).api(PRODUCE);
        world.cluster.script().add(slow);
        world.join(config, script(|_| true));
        world.run_until(MINUTE, |w| w.dead_letters().len() > 100);
        let now = world.now();
        world.cluster.delete_topic(now, "dlq").unwrap();
        world.run_for(secs(3 + seed * 5));
        world.cluster.create_topic("dlq", 1 + seed as i32).unwrap();
        world.run_until(MINUTE * 3, |w| w.all_committed(2));
        let letters = world.dead_letters();
        let each: BTreeSet<_> = letters.iter().map(|l| (&l.source, l.offset)).collect();
        assert_eq!(each.len(), 600, "seed {seed}");
    }
}

/// E29, C18: a partition that is taken away waits for its dead letter, until the drain's deadline;
/// what comes after that is the next owner's, who runs the record again.
#[test]
fn a_drain_waits_for_dead_letters_until_its_deadline() {
    for (answer, in_time) in [(secs(4), true), (secs(25), false)] {
        let mut world = world(1, 2, 8);
        world.fill(2, 40, 8);
        let mut config = config(&world);
        config.drain_max = secs(10);
        config.request_timeout = secs(60);
        config.session_timeout = secs(60);
        config.rebalance_timeout = secs(120);
        let slow = Rule::new(Fault::DelayAnswer(answer)).api(PRODUCE).times(1);
        world.cluster.script().add(slow);
        let bad = |r: &Record| r.offset() == 3 && r.partition() == 1;
        world.join(config.clone(), script(bad));
        world.run_until(secs(5), |w| w.dead_letters().len() == 1);
        world.join(config, script(bad));
        world.run_until(MINUTE * 2, |w| w.all_committed(2));
        world.run_for(MINUTE);
        let copies = world.dead_letters().len();
        let abandoned = world.events(0).iter();
        let abandoned = abandoned
            .filter(|e| matches!(e, Event::Abandoned { .. }))
            .count();
        match in_time {
            true => assert_eq!((copies, abandoned), (1, 0)),
            // Its partition may have stayed here; then it was drained all the same (eagerly).
            false => assert_eq!((copies, abandoned), (2, 1)),
        }
    }
}

/// P25, C18: draining waits for the dead letters, closing ends within its deadline whatever they do,
/// and what was not acknowledged has not settled.
#[test]
fn p25_closing_with_dead_letters_out() {
    let mut world = world(1, 1, 9);
    world.fill(1, 40, 8);
    let slow = Rule::new(Fault::DelayAnswer(secs(5))).api(PRODUCE).times(1);
    world.cluster.script().add(slow);
    let config = config(&world);
    world.join(config.clone(), script(|r| r.offset() == 3));
    world.run_until(secs(2), |w| w.dead_letters().len() == 1);
    world.command(0, 1, Command::Drain);
    world.run_until(secs(20), |w| w.finished(0).is_some());
    assert!(world.finished(0).unwrap().is_ok());
    assert_eq!(
        (world.committed(0), dead_lettered(&world, 0).len()),
        (40, 1)
    );

    let mut world = self::world(1, 1, 10);
    world.fill(1, 40, 8);
    let silent = Rule::new(Fault::Swallow).api(PRODUCE);
    world.cluster.script().add(silent);
    world.join(config, script(|r| r.offset() == 3));
    world.run_for(secs(2));
    let began = world.now();
    let deadline = began + secs(10);
    world.command(0, 1, Command::Close { deadline });
    world.run_until(secs(11), |w| w.finished(0).is_some());
    assert!(world.now() <= deadline);
    assert_eq!((world.committed(0), world.dead_letters().len()), (3, 0));
}

/// A function of the record names the topic; what it must not name ends the subscription, and the
/// record stays open.
#[test]
fn the_topic_may_be_a_function_of_the_record() {
    let mut world = world(1, 1, 11);
    world.cluster.create_topic("dlq-2", 1).unwrap();
    world.watch_dead_letters("dlq-2");
    world.fill(1, 40, 8);
    let mut config = config(&world);
    config.dead_letter = Some(DeadLetterTopic::By(Arc::new(|record| {
        match record.offset() % 2 {
            0 => "dlq".into(),
            _ => "dlq-2".into(),
        }
    })));
    world.join(config, script(|r| r.offset() < 10));
    world.run_until(MINUTE, |w| w.all_committed(1));
    for letter in world.dead_letters() {
        let expected = if letter.offset % 2 == 0 {
            "dlq"
        } else {
            "dlq-2"
        };
        assert_eq!(&*letter.at.0.topic, expected);
    }
    assert_eq!(world.dead_letters().len(), 10);

    type Names = fn(&Record) -> Arc<str>;
    let wrong: [(Names, &str); 3] = [
        (|_| panic!("a bug"), "panicked"),
        (|_| "no topic's name!".into(), "no topic's name"),
        (|_| "t".into(), "own topic"),
    ];
    for (f, words) in wrong {
        let mut world = self::world(1, 1, 12);
        world.fill(1, 40, 8);
        let mut config = self::config(&world);
        config.dead_letter = Some(DeadLetterTopic::By(Arc::new(f)));
        world.join(config, script(|r| r.offset() == 10));
        world.run_until(MINUTE, |w| w.finished(0).is_some());
        let error: &Error = world.finished(0).unwrap().as_ref().unwrap_err();
        assert!(error.message().contains(words), "{error}");
        assert_eq!(error.offset(), Some(10));
        assert!(world.committed(0) <= 10);
    }
}
