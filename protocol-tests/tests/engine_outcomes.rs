//! What whole subscriptions do with outcomes, in virtual time.

use laneway::engine::{Config, Event};
use laneway::lane::{Exhausted, Mode};
use laneway::{ErrorKind, Outcome, Record, Retry};
use laneway_protocol_tests::setting::{MINUTE, millis};
use laneway_protocol_tests::{Plan, Script, World};
use std::sync::Arc;
use std::time::Duration;

/// `bad` is done with the record at this offset of partition 0; others are acked after 1 ms.
fn at(offset: i64, bad: Plan) -> Script {
    Arc::new(
        move |_, record: &Record| match (record.partition(), record.offset()) {
            (0, o) if o == offset => bad.clone(),
            _ => Plan::ack(millis(1)),
        },
    )
}

/// Runs one member to its end, which must be an error that names the record at offset 7.
fn ends_at_seven(config: impl FnOnce(&mut Config), bad: Plan) -> laneway::Error {
    let mut world = World::with_topic(1, 1, 3);
    world.fill(1, 20, 4);
    let mut settings = world.config();
    config(&mut settings);
    world.join(settings, at(7, bad));
    world.run_until(MINUTE, |world| world.finished(0).is_some());
    let error = world.finished(0).cloned().unwrap().unwrap_err();
    assert_eq!(
        (error.topic(), error.partition(), error.offset()),
        (Some("t"), Some(0), Some(7))
    );
    assert!(
        (0..=7).contains(&world.committed(0)),
        "the offset stays: {}",
        world.committed(0)
    );
    error
}

/// `Outcome::Stop` ends the subscription with an error that names the record, and so does a cap
/// that ends in a stop; nothing past the record is committed.
#[test]
fn a_stop_names_the_record_and_commits_nothing_past_it() {
    let error = ends_at_seven(|_| {}, Plan::at_once(Outcome::Stop));
    assert_eq!(error.kind(), ErrorKind::Handler);
    let cap = Retry::fixed(millis(10))
        .max_attempts(3)
        .then(Exhausted::Stop);
    let error = ends_at_seven(
        |c| c.retry = cap,
        Plan::at_once(Outcome::failed("no route")),
    );
    let told = error.to_string();
    assert!(
        told.contains("3 times") && told.contains("no route"),
        "{told}"
    );
}

/// A dead letter without a topic for it is a misuse, in words that name the setting.
#[test]
fn a_dead_letter_without_a_topic_stops_the_subscription() {
    let error = ends_at_seven(
        |_| {},
        Plan::at_once(Outcome::dead_letter("no such account")),
    );
    assert_eq!(error.kind(), ErrorKind::Misuse);
    let told = error.to_string();
    assert!(
        told.contains(".dead_letter(topic)") && told.contains("no such account"),
        "{told}"
    );
}

/// A cap that keeps trying is told of once, as a warning that names the record; the record settles
/// when it goes well at last.
#[test]
fn a_cap_that_keeps_trying_warns_once() {
    let mut world = World::with_topic(1, 1, 4);
    world.fill(1, 20, 4);
    let mut settings = world.config();
    settings.retry = Retry::fixed(millis(10))
        .max_attempts(3)
        .then(Exhausted::Keep);
    let script: Script = Arc::new(
        |_, record: &Record| match (record.offset(), record.attempt()) {
            (7, attempt) if attempt < 6 => Plan::at_once(Outcome::failed("not yet")),
            _ => Plan::ack(millis(1)),
        },
    );
    world.join(settings, script);
    world.run_until(MINUTE, |world| world.all_committed(1));
    let warnings = world.events(0).iter().filter(|e| match e {
        Event::Warning { error } => error.offset() == Some(7),
        _ => false,
    });
    assert_eq!(warnings.count(), 1);
}

/// E38: a handler that never ends is dropped at its time-out and its record runs again; other
/// lanes go on meanwhile, and the number of such records is told.
#[test]
fn a_handler_that_never_ends_costs_its_lane_a_time_out() {
    let mut world = World::with_topic(1, 1, 5);
    world.fill(1, 40, 8);
    let mut settings = world.config();
    settings.mode = Mode::PerKey { at_once: 4 };
    settings.handler_timeout = Some(Duration::from_secs(2));
    settings.retry = Retry::fixed(millis(10));
    let script: Script = Arc::new(
        |_, record: &Record| match (record.offset(), record.attempt()) {
            (0, 1) => Plan::ack(100 * MINUTE),
            _ => Plan::ack(millis(1)),
        },
    );
    world.join(settings, script);
    world.run_until(Duration::from_secs(1), |world| world.distinct() == 35);
    world.run_until(MINUTE, |world| world.all_committed(1));
    assert_eq!(world.engine(0).snapshot(world.now()).timed_out, 1);
    let again = world
        .handled()
        .into_iter()
        .filter(|h| h.offset == 0)
        .count();
    assert_eq!(again, 2);
}

/// A lane for each live key: members come and go, nothing is lost, order holds within each key.
/// The world checks every run.
#[test]
fn lanes_per_key_lose_nothing_when_members_join_and_leave() {
    for seed in 0..6 {
        let mut world = World::with_topic(2, 4, seed);
        world.fill(4, 2000, 300);
        let script: Script = Arc::new(|_, record: &Record| {
            let of = record.offset() as u64 * 7 + record.partition() as u64;
            match of % 40 {
                0 if record.attempt() < 3 => Plan::at_once(Outcome::failed("not yet")),
                _ => Plan::ack(millis(of % 5)),
            }
        });
        let settings = |world: &World| {
            let mut settings = world.config();
            settings.mode = Mode::PerKey { at_once: 16 };
            settings.retry = Retry::fixed(millis(20));
            settings
        };
        let first = settings(&world);
        world.join(first, script.clone());
        world.run_for(millis(300));
        let second = settings(&world);
        world.join(second, script.clone());
        world.run_for(Duration::from_secs(4));
        world.command(0, 1, laneway::engine::Command::Drain);
        world.run_until(2 * MINUTE, |world| world.all_committed(4));
        assert_eq!(world.distinct(), 2000);
    }
}
