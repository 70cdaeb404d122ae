//! Whole subscriptions in virtual time: the engine, its runners and the broker's core, unchanged.

use laneway::broker::{Cluster, ClusterConfig};
use laneway::engine::{Command, CommitMode, Config, Event, LaneKey, Source};
use laneway::lane::Mode;
use laneway::records::{BatchBuilder, Compression, Encoder};
use laneway::{Outcome, Record};
use laneway_protocol_tests::setting::{MINUTE, always, millis};
use laneway_protocol_tests::{Handled, Plan, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

fn world(nodes: i32, partitions: i32, seed: u64) -> World {
    let config = ClusterConfig {
        nodes,
        seed,
        ..ClusterConfig::default()
    };
    let mut cluster = Cluster::new(config);
    cluster.create_topic("t", partitions).unwrap();
    World::new(cluster, nodes, seed)
}

/// `records` records, keys in turn; a key always goes to the same partition.
fn fill(world: &mut World, partitions: i32, records: usize, keys: usize) {
    for at in 0..records {
        let key = format!("k{}", at % keys);
        let value = at.to_string();
        let partition = i32::try_from(at % keys).unwrap() % partitions;
        let pair = (Some(key.as_bytes()), Some(value.as_bytes()));
        world.append("t", partition, &[pair]);
    }
}

fn config(world: &World) -> Config {
    let group = Arc::from("g");
    let mut config = Config::new(
        world.bootstrap(),
        Source::Topics {
            topics: vec!["t".into()],
            group,
        },
    );
    config.mode = Mode::Fixed { lanes: 8 };
    config.lane_key = LaneKey::RecordKey;
    config.executors = 2;
    config.session_timeout = Duration::from_secs(10);
    config.heartbeat_interval = Duration::from_secs(1);
    config.commit_interval = millis(200);
    config
}

fn offset_of(record: &Record) -> (i32, i64) {
    (record.partition(), record.offset())
}

/// Distinct records that have been handled to the end.
fn distinct(world: &World) -> usize {
    let ended = world.handled().into_iter().filter(|h| h.ended.is_some());
    ended
        .map(|h| (h.partition, h.offset))
        .collect::<BTreeSet<_>>()
        .len()
}

/// I3: runs of one key never overlap in one member, and start in offset order; an older record
/// starts after a newer one only where the partition was granted anew in between.
fn assert_key_order(world: &World) {
    let mut by_key: BTreeMap<(usize, Option<Vec<u8>>), Vec<Handled>> = BTreeMap::new();
    for h in world.handled() {
        by_key.entry((h.member, h.key.clone())).or_default().push(h);
    }
    for ((member, key), runs) in by_key {
        for pair in runs.windows(2) {
            let (first, then) = (&pair[0], &pair[1]);
            assert!(
                first.offset <= then.offset || world.was_granted(then, first.began, then.began),
                "member {member} key {key:?}: {first:?} then {then:?}",
            );
            // A run without an end was dropped with its lease.
            let over = first.ended.is_some_and(|ended| ended <= then.began);
            let dropped = first.ended.is_none() && world.was_granted(then, first.began, then.began);
            assert!(over || dropped, "overlap: {first:?} and {then:?}");
        }
    }
}

fn committed(world: &World, partition: i32) -> i64 {
    world
        .cluster
        .committed("g", "t", partition)
        .map_or(-1, |c| c.offset)
}

fn log_end(world: &World, partition: i32) -> i64 {
    world
        .cluster
        .partition_view("t", partition)
        .unwrap()
        .log_end
}

fn all_committed(world: &World, partitions: i32) -> bool {
    (0..partitions).all(|p| committed(world, p) == log_end(world, p))
}

#[test]
fn every_record_runs_once_in_key_order_and_all_is_committed() {
    for seed in 0..10 {
        let mut world = world(3, 6, seed);
        fill(&mut world, 6, 600, 30);
        let config = config(&world);
        world.join(
            config,
            Arc::new(|_, r| Plan::ack(millis(r.offset().unsigned_abs() % 5))),
        );
        world.run_until(MINUTE, |w| all_committed(w, 6));
        assert_eq!(world.ended(), 600);
        assert_eq!(distinct(&world), 600);
        assert_key_order(&world);
    }
}

/// C04, E05, E07: the commit waits at the slow record while others settle past it, then jumps.
#[test]
fn the_commit_waits_at_the_lowest_open_record_and_then_jumps() {
    let mut world = world(1, 1, 3);
    fill(&mut world, 1, 1000, 50);
    let config = config(&world);
    // Record 7 takes a while; its key's later records wait for it, nobody else does.
    world.join(
        config,
        Arc::new(|_, r| match r.offset() {
            7 => Plan::ack(Duration::from_secs(5)),
            _ => Plan::ack(Duration::ZERO),
        }),
    );
    world.run_for(Duration::from_secs(4));
    let waiting = world.handled().iter().filter(|h| h.ended.is_none()).count();
    assert_eq!(waiting, 1);
    assert_eq!(committed(&world, 0), 7, "not past the open record");
    assert!(world.ended() > 600, "other lanes flow: {}", world.ended());
    world.run_until(MINUTE, |w| all_committed(w, 1));
    assert_eq!(distinct(&world), 1000);
    assert_eq!(world.ended(), 1000);
    assert_key_order(&world);
}

/// E06, I3: a retry holds its lane; nothing newer of the lane starts before it has succeeded.
#[test]
fn a_retry_runs_before_anything_newer_of_its_lane() {
    let mut world = world(1, 2, 5);
    fill(&mut world, 2, 200, 10);
    let config = config(&world);
    world.join(
        config,
        Arc::new(|_, r| match (r.offset() % 10, r.attempt()) {
            (3, 1..=3) => Plan::at_once(Outcome::failed("not yet")),
            _ => Plan::ack(millis(1)),
        }),
    );
    world.run_until(MINUTE, |w| all_committed(w, 2));
    let handled = world.handled();
    assert_key_order(&world);
    assert_eq!(distinct(&world), 200);
    let most = handled.iter().map(|h| h.attempt).max();
    assert_eq!(most, Some(4));
}

/// E25: a panic is an outcome: the record runs again, its lane lives, others never notice.
#[test]
#[cfg_attr(not(panic = "unwind"), ignore = "a panic ends the program here")]
fn a_panic_is_retried_and_its_lane_lives() {
    let mut world = world(1, 1, 6);
    fill(&mut world, 1, 50, 5);
    let config = config(&world);
    world.join(
        config,
        Arc::new(|_, r| Plan {
            takes: millis(1),
            outcome: Outcome::Ack,
            panics: r.offset() == 11 && r.attempt() < 3,
        }),
    );
    world.run_until(MINUTE, |w| all_committed(w, 1));
    assert_eq!(distinct(&world), 50);
}

/// Members come and go over six partitions with 3000 records.
fn come_and_go(seed: u64, lane_key: LaneKey) -> World {
    let mut world = world(3, 6, seed);
    fill(&mut world, 6, 3000, 60);
    let script = always(Plan::ack(millis(20)));
    let mut settings = config(&world);
    settings.lane_key = lane_key;
    world.join(settings.clone(), script.clone());
    world.run_until(MINUTE, |w| w.ended() > 100);
    world.join(settings.clone(), script.clone());
    world.run_until(MINUTE, |w| w.ended() > 1200);
    world.join(settings, script);
    world.run_until(MINUTE, |w| w.ended() > 1800);
    let deadline = world.now() + Duration::from_secs(10);
    world.command(0, 1, Command::Close { deadline });
    world.run_until(MINUTE * 2, |w| all_committed(w, 6));
    assert_eq!(distinct(&world), 3000, "seed {seed}");
    assert!(
        matches!(world.finished(0), Some(Ok(()))),
        "{}",
        world.story()
    );
    assert_key_order(&world);
    world
}

/// G01, C18, C29: in lanes by partition nothing settles above the watermark, so a drained
/// hand-over loses nothing, repeats nothing and keeps the order across members.
#[test]
fn members_join_and_leave_without_a_loss_or_a_repeat() {
    for seed in 0..6 {
        let world = come_and_go(seed, LaneKey::Partition);
        assert_eq!(
            world.handled().len(),
            3000,
            "nothing ran twice, seed {seed}"
        );
        let mut by_partition: BTreeMap<_, Vec<Handled>> = BTreeMap::new();
        for h in world.handled() {
            by_partition.entry(h.partition.clone()).or_default().push(h);
        }
        for runs in by_partition.values() {
            for pair in runs.windows(2) {
                assert!(pair[0].offset < pair[1].offset, "{pair:?}");
                assert!(pair[0].ended.unwrap() <= pair[1].began, "{pair:?}");
            }
        }
    }
}

/// G01, E05: in lanes by key what had settled above the watermark runs again elsewhere; nothing
/// is lost, and within a lease every key keeps its order.
#[test]
fn lanes_by_key_lose_nothing_when_members_join_and_leave() {
    for seed in 0..6 {
        come_and_go(seed, LaneKey::RecordKey);
    }
}

/// E36: a kill repeats at most what was in flight or settled since the last acknowledged commit.
#[test]
fn a_kill_loses_nothing_and_repeats_little() {
    for seed in 0..6 {
        let mut world = world(1, 4, seed);
        fill(&mut world, 4, 2000, 40);
        let script = always(Plan::ack(millis(5)));
        let settings = config(&world);
        world.join(settings.clone(), script.clone());
        world.run_until(MINUTE, |w| w.ended() > 500);
        world.kill(0);
        let before = world.handled().len();
        let committed_then: i64 = (0..4).map(|p| committed(&world, p).max(0)).sum();
        world.join(settings, script);
        world.run_until(MINUTE * 2, |w| all_committed(w, 4));
        assert_eq!(distinct(&world), 2000);
        let repeated = world.handled().len() - 2000;
        let uncommitted = before - usize::try_from(committed_then).unwrap();
        assert!(
            repeated <= uncommitted,
            "{repeated} of {uncommitted}, seed {seed}"
        );
    }
}

/// G22, G23: a member that was stopped past its session starts nothing of what it had, commits
/// nothing of it, and comes back as a new member.
#[test]
fn a_frozen_member_starts_nothing_after_its_session() {
    let mut world = world(1, 2, 8);
    fill(&mut world, 2, 2000, 20);
    let script = always(Plan::ack(millis(10)));
    let settings = config(&world);
    world.join(settings.clone(), script.clone());
    world.run_until(MINUTE, |w| w.ended() > 200);
    world.freeze(0);
    let frozen_at = world.now();
    world.join(settings, script);
    world.run_for(Duration::from_secs(14));
    let thawed_at = world.now();
    world.thaw(0);
    world.run_until(MINUTE * 3, |w| all_committed(w, 2));
    assert_eq!(distinct(&world), 2000);
    let lost = world
        .events(0)
        .iter()
        .any(|e| matches!(e, Event::Lost { .. }));
    assert!(lost, "{}", world.story());
    // Whatever it runs after the thaw, it runs under leases that it was granted anew.
    let granted = world
        .events(0)
        .iter()
        .filter(|e| matches!(e, Event::Granted { .. }))
        .count();
    let restarted = world
        .handled()
        .iter()
        .any(|h| h.member == 0 && h.began > thawed_at);
    assert!(!restarted || granted > 2, "{frozen_at:?} {}", world.story());
}

/// F10, I10: a caught-up subscription sleeps between its long polls and heartbeats.
#[test]
fn an_idle_subscription_is_idle() {
    let mut world = world(1, 8, 9);
    fill(&mut world, 8, 80, 16);
    let settings = config(&world);
    world.join(settings, always(Plan::ack(Duration::ZERO)));
    world.run_until(MINUTE, |w| all_committed(w, 8));
    world.run_for(Duration::from_secs(10));
    let before = world.steps();
    world.run_for(MINUTE);
    let steps = world.steps() - before;
    // 120 long polls and 60 heartbeats, each a handful of steps.
    assert!(steps < 3000, "{steps} steps in an idle minute");
}

/// E23: a handler that never returns does not hold the close beyond its deadline, and nothing
/// past it is committed.
#[test]
fn close_ends_at_its_deadline_with_a_stuck_handler() {
    let mut world = world(1, 1, 10);
    fill(&mut world, 1, 100, 10);
    let settings = config(&world);
    world.join(
        settings,
        Arc::new(|_, r| match r.offset() {
            5 => Plan::ack(Duration::from_secs(3600)),
            _ => Plan::ack(Duration::ZERO),
        }),
    );
    world.run_for(Duration::from_secs(3));
    let deadline = world.now() + Duration::from_secs(2);
    world.command(0, 7, Command::Close { deadline });
    world.run_until(Duration::from_secs(20), |w| w.finished(0).is_some());
    assert!(world.now() <= deadline, "{:?}", world.now());
    assert!(
        world
            .events(0)
            .iter()
            .any(|e| matches!(e, Event::Abandoned { records: 1.., .. }))
    );
    assert_eq!(committed(&world, 0), 5);
    assert_eq!(world.replies(0).len(), 1);
}

/// Drain runs what was dealt, commits it and leaves.
#[test]
fn drain_runs_what_was_dealt() {
    let mut world = world(1, 2, 11);
    fill(&mut world, 2, 400, 10);
    let settings = config(&world);
    world.join(settings, always(Plan::ack(millis(3))));
    world.run_until(MINUTE, |w| w.ended() > 50);
    world.command(0, 1, Command::Drain);
    world.run_until(MINUTE, |w| w.finished(0).is_some());
    let ended = world.ended();
    assert!(
        world.handled().iter().all(|h| h.ended.is_some()),
        "all that began has ended"
    );
    let total: i64 = (0..2).map(|p| committed(&world, p)).sum();
    assert_eq!(usize::try_from(total).unwrap(), ended, "{}", world.story());
}

/// G16, L32: the coordinator moves and brokers crash; members keep what they hold and go on.
#[test]
fn coordinators_move_and_brokers_crash() {
    for seed in 0..4 {
        let mut world = world(3, 6, seed);
        fill(&mut world, 6, 3000, 60);
        let settings = config(&world);
        world.join(settings.clone(), always(Plan::ack(millis(10))));
        world.join(settings, always(Plan::ack(millis(10))));
        for round in 0..4 {
            let node = 1 + (round + i32::try_from(seed).unwrap()) % 3;
            world.run_for(millis(700));
            let now = world.now();
            world.cluster.crash(now, node);
            world.run_for(Duration::from_secs(2));
            let now = world.now();
            world.cluster.restart(now, node);
        }
        world.run_until(MINUTE * 3, |w| all_committed(w, 6));
        assert_eq!(distinct(&world), 3000, "seed {seed}: {}", world.story());
        assert_key_order(&world);
    }
}

/// L02, L03: connections break at any moment and nothing is lost.
#[test]
fn cut_connections_cost_nothing() {
    let mut world = world(2, 4, 12);
    fill(&mut world, 4, 2000, 40);
    let settings = config(&world);
    world.join(settings, always(Plan::ack(millis(5))));
    for _ in 0..8 {
        world.run_for(millis(300));
        world.cut(0);
    }
    world.run_until(MINUTE * 2, |w| all_committed(w, 4));
    assert_eq!(distinct(&world), 2000);
    assert_eq!(
        world.handled().len(),
        2000,
        "no lease was lost over a broken connection"
    );
}

/// Commit::Auto commits positions as records are handed out.
#[test]
fn auto_commits_what_was_handed_out() {
    let mut world = world(1, 1, 13);
    fill(&mut world, 1, 20, 4);
    let mut settings = config(&world);
    settings.commit = CommitMode::Auto;
    world.join(settings, always(Plan::ack(Duration::from_secs(30))));
    world.run_for(Duration::from_secs(3));
    assert_eq!(committed(&world, 0), 20);
    assert_eq!(world.ended(), 0);
}

/// Without workers one record runs at a time, whatever its partition.
#[test]
fn without_workers_one_record_runs_at_a_time() {
    let mut world = world(1, 4, 14);
    fill(&mut world, 4, 80, 8);
    let mut settings = config(&world);
    settings.mode = Mode::InTurn;
    settings.lane_key = LaneKey::Partition;
    settings.executors = 1;
    world.join(settings, always(Plan::ack(millis(2))));
    world.run_until(MINUTE, |w| all_committed(w, 4));
    let handled = world.handled();
    assert_eq!(handled.len(), 80);
    for pair in handled.windows(2) {
        assert!(pair[0].ended.unwrap() <= pair[1].began);
    }
}

/// `workers(n)` runs n at once, in any order, and no more.
#[test]
fn workers_run_as_many_at_once_as_named() {
    let mut world = world(1, 2, 15);
    fill(&mut world, 2, 200, 2);
    let mut settings = config(&world);
    settings.mode = Mode::Any { workers: 5 };
    settings.lane_key = LaneKey::Partition;
    world.join(settings, always(Plan::ack(millis(10))));
    world.run_until(MINUTE, |w| all_committed(w, 2));
    let handled = world.handled();
    assert_eq!(distinct(&world), 200);
    let mut edges: Vec<(u64, i32)> = Vec::new();
    for h in &handled {
        edges.push((h.began.0, 1));
        edges.push((h.ended.unwrap().0, -1));
    }
    edges.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, step) in edges {
        now += step;
        most = most.max(now);
    }
    assert_eq!(most, 5);
}

/// Partitions by hand join no group; a group id there only keeps offsets.
#[test]
fn partitions_by_hand_join_no_group() {
    let mut world = world(1, 3, 16);
    fill(&mut world, 3, 90, 9);
    let mut settings = config(&world);
    settings.source = Source::Partitions {
        partitions: vec![
            laneway::ids::TopicPartition::new("t", 0),
            laneway::ids::TopicPartition::new("t", 2),
        ],
        group: Some("g".into()),
    };
    world.join(settings, always(Plan::ack(millis(1))));
    world.run_until(MINUTE, |w| {
        committed(w, 0) == log_end(w, 0) && committed(w, 2) == log_end(w, 2)
    });
    assert_eq!(committed(&world, 1), -1);
    assert!(world.handled().iter().all(|h| h.partition.partition != 1));
    assert_eq!(world.handled().len(), 60);
}

/// F28: a topic that was deleted and made anew inherits nothing.
#[test]
fn a_recreated_topic_inherits_no_commit() {
    let mut world = world(1, 1, 17);
    fill(&mut world, 1, 100, 5);
    let mut settings = config(&world);
    settings.metadata_age_max = Duration::from_secs(2);
    world.join(settings, always(Plan::ack(Duration::ZERO)));
    world.run_until(MINUTE, |w| all_committed(w, 1));
    world.recreate_topic("t", 1);
    fill(&mut world, 1, 10, 5);
    world.run_until(MINUTE, |w| w.ended() == 110);
    let seen: Vec<_> = world.handled()[100..].iter().map(|h| h.offset).collect();
    assert_eq!(seen.len(), 10);
    assert!(
        world
            .events(0)
            .iter()
            .any(|e| matches!(e, Event::DataLoss { .. }))
    );
    world.run_for(Duration::from_secs(2));
    assert_eq!(committed(&world, 0), 10);
}

#[test]
fn lane_functions_see_the_record() {
    let mut world = world(1, 1, 18);
    fill(&mut world, 1, 60, 60);
    let mut settings = config(&world);
    settings.lane_key = LaneKey::by(|r| Some(r.offset().unsigned_abs() % 2));
    world.join(
        settings,
        Arc::new(|_, r| Plan::ack(millis(1 + offset_of(r).1.unsigned_abs() % 3))),
    );
    world.run_until(MINUTE, |w| all_committed(w, 1));
    for parity in 0..2 {
        let runs: Vec<_> = world
            .handled()
            .into_iter()
            .filter(|h| h.offset % 2 == parity)
            .collect();
        for pair in runs.windows(2) {
            assert!(pair[0].offset < pair[1].offset && pair[0].ended.unwrap() <= pair[1].began);
        }
    }
}

/// I6, promise 5: batches that grow a hundredfold when they are opened keep to the budget all the
/// same, and every lane still gets its work.
#[test]
fn batches_that_grow_keep_to_the_budget() {
    let mut world = world(1, 2, 31);
    let value = vec![b'x'; 500];
    let mut encoder = Encoder::new();
    for n in 0..200 {
        let mut batch = BatchBuilder::new(0).compression(Compression::Zstd);
        for i in 0..100 {
            let key = format!("k{}", (n * 7 + i) % 40);
            batch
                .push(1000, Some(key.as_bytes()), Some(&value), &[])
                .unwrap();
        }
        let now = world.now();
        let batch = batch.build(&mut encoder).unwrap();
        world.cluster.append(now, "t", n % 2, batch).unwrap();
    }
    let mut settings = config(&world);
    settings.budget_bytes = 1 << 20;
    settings.executors = 2;
    world.join(settings, always(Plan::ack(Duration::from_micros(200))));
    let mut most = 0;
    world.run_until(MINUTE * 2, |w| {
        most = most.max(w.engine(0).snapshot(w.now()).budget_used);
        all_committed(w, 2)
    });
    assert_eq!(distinct(&world), 20_000);
    // One batch is 57 KB with its index.
    assert!(most <= (1 << 20) + (64 << 10), "{most} bytes of 1 MiB");
    assert!(most > 1 << 19, "the budget is made use of: {most}");
}
