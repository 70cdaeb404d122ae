//! What befalls partitions, in whole subscriptions: data that is gone, corrupt, cut or new, open
//! transactions, slow brokers.

use laneway::broker::{Fault, Rule};
use laneway::engine::{Command, Event, LaneKey, Source};
use laneway::fetch::{LossPolicy, StartOffset};
use laneway::ids::TopicPartition;
use laneway::lane::Mode;
use laneway::records::{BatchBuilder, ControlKind, Encoder, control_batch};
use laneway::wire::message::Isolation;
use laneway::{Error, ErrorKind, Outcome};
use laneway_protocol_tests::setting::{MINUTE, always, at_once, millis, secs};
use laneway_protocol_tests::{Plan, Script, World};
use std::sync::Arc;
use std::time::Duration;

const FETCH: i16 = 1;
const LIST_OFFSETS: i16 = 2;
const METADATA: i16 = 3;

/// A batch of `n` records at `base`.
fn batch(base: i64, n: usize) -> BatchBuilder {
    let mut builder = BatchBuilder::new(base);
    for i in 0..n {
        let (key, value) = (format!("k{i}"), format!("v{i}"));
        builder
            .push(0, Some(key.as_bytes()), Some(value.as_bytes()), &[])
            .unwrap();
    }
    builder
}

fn stopped(world: &World, member: usize) -> Vec<&Error> {
    let events = world.events(member).iter();
    events
        .filter_map(|e| match e {
            Event::Stopped { error } => Some(error),
            _ => None,
        })
        .collect()
}

fn losses(world: &World, member: usize) -> Vec<(i64, i64)> {
    let events = world.events(member).iter();
    events
        .filter_map(|e| match e {
            Event::DataLoss { from, to, .. } => Some((*from, *to)),
            _ => None,
        })
        .collect()
}

/// Runs seen of a partition: offsets, in the order they began.
fn offsets(world: &World, partition: i32) -> Vec<i64> {
    let runs = world.handled().into_iter();
    runs.filter(|h| h.partition.partition == partition)
        .map(|h| h.offset)
        .collect()
}

/// D13: a corrupt batch holds its own partition, at its offset, with an error that names topic,
/// partition and offset; what lies before it is handled and committed, other partitions run.
#[test]
fn a_corrupt_batch_holds_its_partition_alone() {
    let mut world = World::with_topic(1, 2, 31);
    world.fill(2, 20, 2);
    let mut bytes = batch(0, 5).build(&mut Encoder::new()).unwrap().to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let now = world.now();
    let at = world.cluster.append(now, "t", 0, bytes.into()).unwrap();
    assert_eq!(at, 10);
    world.fill(2, 20, 2);
    let config = world.config();
    world.join(config, at_once());
    world.run_until(MINUTE, |w| w.committed(0) == 10 && w.committed(1) == 20);
    world.run_for(secs(5));
    let errors = stopped(&world, 0);
    assert_eq!(errors.len(), 1, "said once: {errors:?}");
    let error = errors[0];
    assert_eq!(error.topic(), Some("t"));
    assert_eq!(error.partition(), Some(0));
    assert_eq!(error.offset(), Some(10), "{error}");
    assert!(world.finished(0).is_none(), "others run on");
    // It is read again once, to see whether it heals, and then no more.
    let before = world.cluster.requests(FETCH);
    world.run_for(MINUTE);
    let fetches = world.cluster.requests(FETCH) - before;
    assert!(fetches < 150, "{fetches} fetches in an idle minute");
    assert_eq!(world.committed(0), 10, "not past the corrupt batch");
    assert_eq!(offsets(&world, 0), (0..10).collect::<Vec<_>>());
}

/// D26, C06: markers at the end are nobody's to handle and hold no commit back, also where
/// nothing is open above the watermark.
#[test]
fn a_marker_at_the_end_is_passed_by_the_commit() {
    let mut world = World::with_topic(1, 1, 32);
    let data = batch(0, 2).transactional().producer(7, 0, 0);
    let now = world.now();
    let data = data.build(&mut Encoder::new()).unwrap();
    world.cluster.append(now, "t", 0, data).unwrap();
    let marker = control_batch(2, ControlKind::Commit, 7, 0, 0, 0);
    world.cluster.append(now, "t", 0, marker).unwrap();
    let config = world.config();
    world.join(config, at_once());
    world.run_until(MINUTE, |w| w.committed(0) == 3);
    assert_eq!(offsets(&world, 0), [0, 1]);
    world.run_for(secs(5));
    world.assert_idle(0);
}

/// D45: with read_committed an open transaction holds the reader at the last stable offset.
/// It waits there without spinning, and goes on when the transaction ends.
#[test]
fn an_open_transaction_is_waited_for_without_spinning() {
    let mut world = World::with_topic(1, 1, 33);
    world.fill(1, 5, 1);
    let now = world.now();
    let open = batch(5, 3).transactional().producer(7, 0, 0);
    let open = open.build(&mut Encoder::new()).unwrap();
    world.cluster.append(now, "t", 0, open).unwrap();
    world.fill(1, 5, 1);
    let mut config = world.config();
    config.isolation = Isolation::ReadCommitted;
    world.join(config, at_once());
    world.run_until(MINUTE, |w| w.committed(0) == 5);
    world.run_for(secs(2));
    let (steps, fetches) = (world.steps(), world.cluster.requests(FETCH));
    world.run_for(MINUTE);
    assert!(world.steps() - steps < 3000, "{}", world.steps() - steps);
    assert!(world.cluster.requests(FETCH) - fetches < 200);
    assert_eq!(world.ended(), 5);
    let p = &world.engine(0).snapshot(world.now()).partitions[0];
    assert_eq!((p.last_stable_offset, p.high_watermark), (5, 13), "{p:?}");
    let now = world.now();
    let marker = control_batch(13, ControlKind::Abort, 7, 0, 0, 0);
    world.cluster.append(now, "t", 0, marker).unwrap();
    world.run_until(MINUTE, |w| w.committed(0) == 14);
    let seen = offsets(&world, 0);
    assert_eq!(seen, [0, 1, 2, 3, 4, 8, 9, 10, 11, 12], "aborted: none");
}

/// F11, F45: records are deleted under the reader, who stops by default: the partition is held
/// with an error that names the offset, others run, and nothing is skipped.
#[test]
fn deleted_records_stop_their_partition_by_default() {
    let mut world = World::with_topic(1, 2, 34);
    world.fill(2, 40, 2);
    let mut config = world.config();
    // The reader stands still at 20, with nothing buffered.
    world.join(config.clone(), at_once());
    world.run_until(MINUTE, |w| w.all_committed(2));
    let deadline = world.now() + secs(5);
    world.command(0, 1, Command::Close { deadline });
    world.run_until(MINUTE, |w| w.finished(0).is_some());
    world.fill(2, 160, 2);
    world.delete_records("t", 0, 50);
    config.client_id = "second".into();
    world.join(config, at_once());
    world.run_until(MINUTE, |w| w.committed(1) == w.log_end(1));
    world.run_for(secs(10));
    let errors = stopped(&world, 1);
    assert_eq!(errors.len(), 1, "{}", world.story());
    assert_eq!(errors[0].partition(), Some(0));
    assert_eq!(errors[0].offset(), Some(20), "{}", errors[0]);
    assert_eq!(world.committed(0), 20);
    assert!(offsets(&world, 0).iter().all(|o| *o < 20));
    assert!(losses(&world, 1).is_empty());
}

/// F11, F45: told to go on at the earliest record, the reader says what it lost and goes on; what
/// was running at the time may end, and nothing that is left is skipped.
#[test]
fn deleted_records_are_told_and_the_rest_is_read() {
    for (seed, slow) in (0..8).zip([10_u64, 15, 19, 45, 49, 50, 55, 90]) {
        let mut world = World::with_topic(1, 1, seed);
        world.fill(1, 100, 10);
        let mut config = world.config();
        config.loss = LossPolicy::Earliest;
        config.partition_bytes_max = 400;
        // One record runs while the log is cut.
        world.join(
            config,
            Arc::new(move |_, r| match r.offset().unsigned_abs() == slow {
                true => Plan::ack(secs(3)),
                false => Plan::ack(millis(20)),
            }),
        );
        world.run_until(MINUTE, |w| w.ended() > 8);
        world.run_for(millis(seed * 30));
        world.delete_records("t", 0, 50);
        world.run_until(MINUTE, |w| w.all_committed(1));
        assert_eq!(world.open(), [], "seed {seed}");
        let seen = offsets(&world, 0);
        assert!((50..100).all(|o| seen.contains(&o)), "seed {seed}");
        let losses = losses(&world, 0);
        assert!(losses.len() <= 1, "seed {seed}: {losses:?}");
        if (0..50).any(|o| !seen.contains(&o)) {
            assert_eq!(losses.len(), 1, "seed {seed}: lost in silence");
            assert_eq!(losses[0].1, 50, "seed {seed}");
        }
    }
}

/// F17: an unclean election cuts the log under the reader. It says so, handles what the new
/// history has from there, and what it had handed out of the old one counts for nothing.
#[test]
fn a_truncated_log_is_told_and_read_anew() {
    let mut world = World::with_topic(2, 1, 35);
    world.fill(1, 100, 10);
    let mut config = world.config();
    config.loss = LossPolicy::Nearest;
    config.metadata_age_max = secs(2);
    world.join(config, at_once());
    world.run_until(MINUTE, |w| w.all_committed(1));
    world.truncate("t", 0, 60);
    world.fill(1, 20, 10);
    world.run_until(MINUTE, |w| {
        let again = w.handled()[100..].iter().filter(|h| h.offset >= 60).count();
        again == 20
    });
    assert_eq!(losses(&world, 0), [(100, 60)], "{}", world.story());
    world.run_until(MINUTE, |w| w.committed(0) == 80);
}

/// F17: a truncation that skips nothing is no reason to stop: with the default policy too reading
/// goes on where the histories part, loudly, and the commit goes back with it.
#[test]
fn a_truncated_log_skips_nothing_by_default() {
    let mut world = World::with_topic(2, 2, 36);
    world.fill(2, 100, 10);
    let mut config = world.config();
    config.metadata_age_max = secs(2);
    world.join(config, at_once());
    world.run_until(MINUTE, |w| w.all_committed(2));
    world.truncate("t", 0, 30);
    world.fill(2, 20, 10);
    world.run_until(MINUTE, |w| w.committed(1) == 60 && w.committed(0) == 40);
    assert_eq!(losses(&world, 0), [(50, 30)]);
    assert_eq!(world.open(), []);
    assert_eq!(world.handled().len(), 120);
}

/// F28: the topic is made anew while its old records run and while the partition is being given
/// back. Nothing of the old one is credited to the new one, and a lease that was on its way out
/// stays on its way out.
#[test]
fn a_topic_recreated_during_a_drain_is_not_taken_up_again() {
    let mut world = World::with_topic(1, 2, 37);
    world.fill(2, 40, 4);
    let mut config = world.config();
    config.metadata_age_max = secs(1);
    config.drain_max = secs(8);
    config.session_timeout = secs(30);
    config.rebalance_timeout = secs(40);
    config.heartbeat_interval = millis(500);
    // The first record of each key is slow for the first member.
    let script: Script = Arc::new(|member, r| match (member, r.offset() < 2) {
        (0, true) => Plan::ack(secs(6)),
        _ => Plan::ack(Duration::ZERO),
    });
    world.join(config.clone(), script.clone());
    world.run_until(MINUTE, |w| w.handled().len() >= 2);
    world.join(config, script);
    // The revoke is heard of with the next heartbeat; the drain lasts until the handlers end.
    world.run_for(secs(1));
    world.recreate_topic("t", 2);
    world.fill(2, 40, 4);
    let made_anew = world.now();
    world.run_until(MINUTE * 2, |w| w.all_committed(2) && w.open().is_empty());
    world.run_for(secs(5));
    let snapshots = [0, 1].map(|m| world.engine(m).snapshot(world.now()));
    for partition in 0..2 {
        let holders = snapshots.iter().filter(|s| {
            s.partitions
                .iter()
                .any(|p| p.partition.partition == partition)
        });
        assert_eq!(
            holders.count(),
            1,
            "partition {partition}: {}",
            world.story()
        );
    }
    let later: Vec<_> = world.handled();
    let later: Vec<_> = later.iter().filter(|h| h.began > made_anew).collect();
    assert!(later.len() >= 40, "{}", world.story());
}

/// F35: a partition that is added later is read from its first record, whatever the start policy.
#[test]
fn a_partition_added_later_is_read_from_its_first_record() {
    let mut world = World::with_topic(1, 2, 38);
    world.fill(2, 10, 2);
    for partition in 0..2 {
        world.skip_below("t", partition, 5);
    }
    let mut config = world.config();
    config.start = StartOffset::Latest;
    config.metadata_age_max = secs(3);
    world.join(config, at_once());
    world.run_for(secs(2));
    world.fill(2, 10, 2);
    world.run_until(MINUTE, |w| w.all_committed(2));
    assert_eq!(world.ended(), 10, "what was there before is skipped");
    world.cluster.add_partitions("t", 3).unwrap();
    world.append("t", 2, &[(None, Some(b"early")), (None, None)]);
    world.run_until(MINUTE, |w| w.all_committed(3));
    assert_eq!(offsets(&world, 2), [0, 1]);
}

/// F39: a broker that holds every fetch for seconds delays nobody else's partitions.
#[test]
fn a_slow_broker_delays_only_its_own_partitions() {
    let mut world = World::with_topic(3, 3, 39);
    let leader = world.cluster.partition_view("t", 0).unwrap().leader;
    let slow = Rule::new(Fault::Delay(secs(8))).api(FETCH).node(leader);
    world.cluster.script().add(slow);
    world.fill(3, 300, 3);
    let config = world.config();
    world.join(config, at_once());
    let began = world.now();
    world.run_until(MINUTE, |w| w.committed(1) == 100 && w.committed(2) == 100);
    let took = world.now().since(began);
    assert!(took < secs(6), "{took:?}");
    // Also in the steady state.
    for _ in 0..20 {
        world.fill(3, 3, 3);
        let began = world.now();
        let end = world.log_end(1);
        world.run_until(secs(3), |w| {
            let seen = w.handled();
            let last = |p: i32| {
                seen.iter()
                    .any(|h| h.partition.partition == p && h.offset == end - 1)
            };
            last(1) && last(2)
        });
        assert!(world.now().since(began) < secs(1));
    }
    world.cluster.script().clear();
    world.run_until(MINUTE, |w| w.all_committed(3));
}

/// F46: metadata says for a while that a partition which the group gave us does not exist. It is
/// asked for again, paced, and read once it is there.
#[test]
fn a_partition_that_metadata_omits_is_read_once_it_is_there() {
    let mut world = World::with_topic(2, 3, 40);
    world.fill(3, 30, 3);
    let mut config = world.config();
    config.metadata_age_max = MINUTE * 5;
    world.join(config, at_once());
    world.run_until(MINUTE, |w| w.all_committed(3));
    let rule = Rule::new(Fault::Error(3)).api(METADATA).topic("t", Some(2));
    world.cluster.script().add(rule);
    world.cut(0);
    let now = world.now();
    world.cluster.move_leader(now, "t", 2, 2);
    world.fill(3, 30, 3);
    let asked = world.cluster.requests(METADATA);
    world.run_for(MINUTE);
    let asked = world.cluster.requests(METADATA) - asked;
    assert!(asked < 150, "paced: {asked}");
    world.cluster.script().clear();
    world.run_until(secs(30), |w| w.all_committed(3));
}

/// F14, F21: an answer "out of range" that ListOffsets does not confirm, and offsets that cannot
/// be looked up for a while, skip nothing and repeat nothing.
#[test]
fn an_unconfirmed_out_of_range_moves_nothing() {
    let mut world = World::with_topic(1, 2, 41);
    world.fill(2, 200, 10);
    let mut config = world.config();
    config.loss = LossPolicy::Latest;
    config.start = StartOffset::Earliest;
    let rule = Rule::new(Fault::Error(1)).api(FETCH).topic("t", Some(0));
    world.cluster.script().add(rule.skip(2).times(3));
    let rule = Rule::new(Fault::Error(6)).api(LIST_OFFSETS);
    world.cluster.script().add(rule.times(4));
    world.join(config, always(Plan::ack(millis(2))));
    world.run_until(MINUTE, |w| w.all_committed(2));
    assert_eq!(world.handled().len(), 200);
    assert!(losses(&world, 0).is_empty());
}

/// DESIGN: a panic of the lane function is a handler's error. It stops the record's partition at
/// that record; what lies before it runs, and other partitions run on.
#[test]
#[cfg_attr(not(panic = "unwind"), ignore = "a panic ends the program here")]
fn a_lane_function_that_panics_stops_its_partition_at_that_record() {
    let mut world = World::with_topic(1, 2, 42);
    for partition in 0..2 {
        let pairs: Vec<_> = (0..10).map(|_| (None, Some(&b"v"[..]))).collect();
        world.append("t", partition, &pairs);
    }
    let mut config = world.config();
    config.lane_key = LaneKey::by(|r| {
        assert!(r.partition() != 0 || r.offset() != 6, "a planned panic");
        Some(r.offset().unsigned_abs())
    });
    world.join(config, at_once());
    world.run_until(MINUTE, |w| w.committed(1) == 10);
    world.run_for(secs(3));
    let mut seen = offsets(&world, 0);
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4, 5], "{}", world.story());
    assert_eq!(world.committed(0), 6);
    let errors = stopped(&world, 0);
    assert_eq!(errors.len(), 1, "{}", world.story());
    assert_eq!(errors[0].kind(), ErrorKind::Handler, "{}", errors[0]);
    assert_eq!(
        (errors[0].partition(), errors[0].offset()),
        (Some(0), Some(6))
    );
    world.assert_idle(0);
}

/// E27: what befalls one partition leaves the leases, positions and runs of the others alone.
#[test]
fn one_partitions_errors_restart_no_other() {
    let mut world = World::with_topic(2, 4, 43);
    world.fill(4, 400, 8);
    let config = world.config();
    for code in [3, 5, 6, 74, 75, 76, 56, 9, -1, 999] {
        let rule = Rule::new(Fault::Error(code)).api(FETCH).topic("t", Some(1));
        world.cluster.script().add(rule.times(2));
    }
    world.join(
        config,
        Arc::new(|_, r| match (r.partition(), r.attempt()) {
            (1, 1..3) => Plan::at_once(Outcome::failed("not yet")),
            _ => Plan::ack(millis(1)),
        }),
    );
    world.run_until(MINUTE * 2, |w| w.all_committed(4));
    let others = world.handled();
    let others = others.iter().filter(|h| h.partition.partition != 1);
    assert_eq!(others.count(), 300, "each once");
    let granted = world.events(0).iter();
    let granted = granted
        .filter(|e| matches!(e, Event::Granted { .. }))
        .count();
    assert_eq!(granted, 4, "{}", world.story());
}

/// E01, promise 6: a stuck record lets its partition run `ahead_max` above it and no further;
/// other partitions never notice, and it goes on when the record is done.
#[test]
fn a_stuck_record_holds_its_partition_at_ahead_max_alone() {
    let mut world = World::with_topic(1, 2, 44);
    world.fill(2, 2000, 40);
    let mut config = world.config();
    config.ahead_max = 100;
    config.mode = Mode::Fixed { lanes: 256 };
    config.lane_key =
        LaneKey::by(|r| Some(r.offset().unsigned_abs() % 37 + 37 * r.partition() as u64));
    config.partition_bytes_max = 2000;
    world.join(
        config,
        Arc::new(|_, r| match (r.partition(), r.offset()) {
            (0, 3) => Plan::ack(secs(20)),
            _ => Plan::ack(Duration::ZERO),
        }),
    );
    world.run_for(secs(10));
    assert_eq!(world.committed(1), 1000, "{}", world.story());
    assert_eq!(world.committed(0), 3);
    let snapshot = world.engine(0).snapshot(world.now());
    let stuck = snapshot
        .partitions
        .iter()
        .find(|p| p.partition.partition == 0);
    let ahead = stuck.unwrap().ahead;
    assert!((50..=150).contains(&ahead), "{ahead}");
    world.run_until(MINUTE, |w| w.all_committed(2));
    assert_eq!(world.ended(), 2000);
}

/// C07, D04, D05: offsets that compaction took away are nobody's to settle: the commit passes them,
/// also where they lie below the first record, between two, and behind the last.
#[test]
fn compacted_offsets_hold_no_commit_back() {
    let mut world = World::with_topic(1, 1, 45);
    let now = world.now();
    for b in [
        batch(10, 1),
        batch(20, 3).covering(59),
        batch(60, 1).covering(99),
    ] {
        let bytes = b.build(&mut Encoder::new()).unwrap();
        world.cluster.append(now, "t", 0, bytes).unwrap();
    }
    let config = world.config();
    world.join(config, always(Plan::ack(millis(1))));
    world.run_until(MINUTE, |w| w.committed(0) == 100);
    let mut seen = offsets(&world, 0);
    seen.sort_unstable();
    assert_eq!(seen, [10, 20, 21, 22, 60]);
    world.run_for(secs(3));
    world.assert_idle(0);
}

/// C04, E07: `CommitNow` is answered when the broker has what had settled, and no more than that;
/// its answer is an error where the broker does not take it.
#[test]
fn commit_now_is_answered_when_the_broker_has_it() {
    let mut world = World::with_topic(1, 1, 46);
    world.fill(1, 50, 10);
    let mut config = world.config();
    config.commit_interval = secs(3600);
    config.request_timeout = secs(3);
    world.join(
        config,
        Arc::new(|_, r| match r.offset() {
            5 => Plan::ack(secs(20)),
            _ => Plan::ack(Duration::ZERO),
        }),
    );
    world.run_for(secs(2));
    assert_eq!(world.committed(0), -1);
    world.command(0, 1, Command::CommitNow);
    world.run_until(secs(1), |w| w.replies(0).len() == 1);
    assert!(world.replies(0)[0].1.is_ok());
    assert_eq!(world.committed(0), 5);
    world.run_until(secs(30), |w| w.ended() == 50);
    world.cluster.script().add(Rule::new(Fault::Swallow).api(8));
    world.command(0, 2, Command::CommitNow);
    world.run_until(secs(10), |w| w.replies(0).len() == 2);
    assert!(world.replies(0)[1].1.is_err());
    assert_eq!(world.committed(0), 5);
    world.cluster.script().clear();
    world.run_until(MINUTE, |w| w.committed(0) == 50);
}

/// E36, C17: a reader of partitions by hand that is killed goes on from its commit, without a
/// group; what had been committed is not handled again.
#[test]
fn a_manual_reader_goes_on_from_its_commit() {
    let mut world = World::with_topic(2, 2, 47);
    world.fill(2, 400, 2);
    let mut config = world.config();
    config.source = Source::Partitions {
        partitions: vec![TopicPartition::new("t", 0), TopicPartition::new("t", 1)],
        group: Some("g".into()),
    };
    world.join(config.clone(), always(Plan::ack(millis(5))));
    world.run_until(MINUTE, |w| w.committed(0) > 50 && w.committed(1) > 50);
    world.kill(0);
    let from = [world.committed(0), world.committed(1)];
    let before = world.handled().len();
    world.join(config, always(Plan::ack(millis(5))));
    world.run_until(MINUTE, |w| w.all_committed(2));
    for run in &world.handled()[before..] {
        assert!(
            run.offset >= from[run.partition.partition as usize],
            "{run:?}"
        );
    }
    assert_eq!(world.open(), []);
}
