//! The log as overflow: a lane that does not move lets its records go and reads them again, so
//! that neither the byte budget nor the other lanes suffer.

use laneway::engine::{Config, Event, LaneKey, PartitionSnapshot};
use laneway::fetch::LossPolicy;
use laneway::lane::Mode;
use laneway::records::{BatchBuilder, Encoder};
use laneway_protocol_tests::setting::{MINUTE, secs};
use laneway_protocol_tests::{Plan, Script, World};
use std::sync::Arc;
use std::time::Duration;

const BUDGET: u64 = 1 << 20;
const BATCH: u32 = 64 << 10;

/// Batches of 20 records of about a kibibyte in partition 0, keys `k0` to `k15` in turn.
fn fill(world: &mut World, batches: usize) {
    let value = vec![7; 1000];
    for batch in 0..batches {
        let keys: Vec<String> = (0..20)
            .map(|n| format!("k{}", (batch * 20 + n) % 16))
            .collect();
        let pairs: Vec<_> = keys
            .iter()
            .map(|k| (Some(k.as_bytes()), Some(&*value)))
            .collect();
        world.append("t", 0, &pairs);
    }
}

fn config(world: &World) -> Config {
    let mut config = world.config();
    config.budget_bytes = BUDGET;
    config.batch_bytes_max = BATCH;
    config.partition_bytes_max = 64 << 10;
    config.fetch_bytes_max = 256 << 10;
    config
}

/// The first record takes `takes`, all others no time.
fn first_takes(takes: Duration) -> Script {
    Arc::new(move |_, record| match record.offset() {
        0 => Plan::ack(takes),
        _ => Plan::ack(Duration::ZERO),
    })
}

fn partition(world: &World) -> PartitionSnapshot {
    world.snapshot(0).partitions[0].clone()
}

/// Runs that began.
fn handled(world: &World) -> usize {
    world.handled().len()
}

/// One lane is stuck for a minute. Far more than the budget of other records passes meanwhile; then
/// the stuck lane's run, in order, once.
#[test]
fn a_stuck_lane_keeps_no_other_from_running() {
    // At most a few of sixteen keys share the stuck lane.
    a_stuck_one_keeps_no_other_from_running(None, 6_000);
}

/// The same where each live key has a lane of its own: one key of sixteen is stuck.
#[test]
fn a_stuck_key_keeps_no_other_from_running() {
    a_stuck_one_keeps_no_other_from_running(Some(Mode::PerKey { at_once: 8 }), 9_374);
}

fn a_stuck_one_keeps_no_other_from_running(mode: Option<Mode>, at_least: usize) {
    let mut world = World::with_topic(1, 1, 71);
    fill(&mut world, 500);
    let mut config = config(&world);
    config.mode = mode.unwrap_or(config.mode);
    world.join(config, first_takes(MINUTE));
    world.run_for(secs(30));
    let (view, ran) = (partition(&world), handled(&world));
    // Ten times the budget is in the log.
    assert!(ran > at_least, "{ran} of 10,000 ran beside the stuck lane");
    assert_eq!(view.position, 10_000, "all of it was read");
    assert_eq!(
        ran as u64 + view.gone + world.snapshot(0).queued + world.snapshot(0).out,
        10_001
    );
    assert!(view.gone > 500, "{} records were let go", view.gone);
    assert_eq!(view.reread_bytes, 0, "nothing is read again in vain");
    assert_eq!(world.committed(0), 0);
    world.run_until(MINUTE * 2, |w| w.all_committed(1));
    let view = partition(&world);
    assert_eq!(
        (view.gone, world.distinct(), handled(&world)),
        (0, 10_000, 10_000)
    );
    let log = 10_000 * 1_050;
    assert!(
        view.reread_bytes < 3 * log,
        "{} bytes read again",
        view.reread_bytes
    );
}

/// Three stuck lanes at once, freed one after the other.
#[test]
fn several_stuck_lanes_are_freed_one_by_one() {
    for mode in [None, Some(Mode::PerKey { at_once: 8 })] {
        let mut world = World::with_topic(1, 1, 72);
        fill(&mut world, 400);
        let mut config = config(&world);
        config.mode = mode.unwrap_or(config.mode);
        world.join(
            config,
            Arc::new(|_, record| match record.offset() {
                at @ 0..=2 => Plan::ack(secs(40 + 20 * at as u64)),
                _ => Plan::ack(Duration::ZERO),
            }),
        );
        world.run_until(MINUTE * 5, |w| w.all_committed(1));
        assert_eq!((world.distinct(), handled(&world)), (8_000, 8_000));
    }
}

/// A slow lane that is not stuck: it lets go and catches up in many passes.
#[test]
fn a_slow_lane_catches_up_in_passes() {
    let mut world = World::with_topic(1, 1, 73);
    fill(&mut world, 300);
    let mut config = config(&world);
    // A function of the record picks the lane.
    config.lane_key = LaneKey::by(|record| record.key().map(|k| u64::from(k[k.len() - 1])));
    world.join(
        config,
        Arc::new(|_, record| match record.key() {
            Some(b"k3") => Plan::ack(Duration::from_millis(50)),
            _ => Plan::ack(Duration::ZERO),
        }),
    );
    world.run_until(MINUTE * 10, |w| w.all_committed(1));
    assert_eq!((world.distinct(), handled(&world)), (6_000, 6_000));
    assert!(partition(&world).reread_bytes > 0);
}

/// What was let go is compacted away before it is read again: settled by definition.
#[test]
fn gone_records_that_were_compacted_away_hold_nothing_back() {
    let mut world = World::with_topic(1, 1, 74);
    let now = world.now();
    let batch = |at: i64, keeps: fn(i64) -> bool| {
        let mut builder = BatchBuilder::new(at * 20).covering(at * 20 + 19);
        for offset in (at * 20..at * 20 + 20).filter(|o| keeps(*o)) {
            let key = format!("k{}", offset % 16);
            builder
                .push_at(offset, 0, Some(key.as_bytes()), Some(&[7; 1000]), &[])
                .unwrap();
        }
        builder.build(&mut Encoder::new()).unwrap()
    };
    for at in 0..300 {
        world
            .cluster
            .append(now, "t", 0, batch(at, |_| true))
            .unwrap();
    }
    let config = config(&world);
    world.join(config, first_takes(MINUTE));
    world.run_for(secs(30));
    let gone = partition(&world).gone;
    assert!(gone > 300);
    // Seven in eight records go, the last ones of a batch and whole batches among them.
    let left: Vec<u8> = (0..300)
        .filter(|at| at % 9 != 4)
        .flat_map(|at| batch(at, |offset| offset / 3 % 8 == 1))
        .collect();
    world.cluster.replace_log("t", 0, left.into()).unwrap();
    world.run_until(MINUTE * 2, |w| w.committed(0) == 6_000);
    let view = partition(&world);
    assert_eq!(view.gone, 0);
    assert!(view.reread_bytes > 0);
}

/// The log's start rises above what was let go: loud, and by default the lane stands still.
#[test]
fn gone_records_that_retention_took_are_told() {
    for policy in [LossPolicy::Stop, LossPolicy::Earliest] {
        let mut world = World::with_topic(1, 1, 75);
        fill(&mut world, 300);
        let mut config = config(&world);
        config.loss = policy;
        world.join(config, first_takes(MINUTE));
        world.run_for(secs(30));
        let before = partition(&world);
        assert!(before.gone > 300);
        world.delete_records("t", 0, 5_000);
        let stopped = |w: &World| {
            let events = w.events(0).iter();
            events
                .filter(|e| matches!(e, Event::Stopped { .. }))
                .count()
        };
        if policy == LossPolicy::Stop {
            world.run_until(MINUTE * 2, |w| stopped(w) == 1);
            world.run_for(MINUTE);
            assert_eq!(stopped(&world), 1, "said once");
            assert!(world.committed(0) < 5_000, "nothing is skipped");
            continue;
        }
        world.run_until(MINUTE * 2, |w| w.committed(0) == 6_000);
        let lost: Vec<_> = world
            .events(0)
            .iter()
            .filter_map(|e| match e {
                Event::DataLoss { from, to, why, .. } => Some((*from, *to, why.clone())),
                _ => None,
            })
            .collect();
        assert_eq!(lost.len(), 1, "{lost:?}");
        assert!(
            lost[0].1 == 5_000 && lost[0].2.contains("records that were let go"),
            "{lost:?}"
        );
        assert_eq!(partition(&world).gone, 0);
    }
}

/// The partition moves to another member while records are gone: it reads them, nobody twice.
#[test]
fn gone_records_go_with_their_partition() {
    let mut world = World::with_topic(1, 1, 76);
    fill(&mut world, 300);
    let first = config(&world);
    world.join(first.clone(), first_takes(MINUTE));
    world.run_for(secs(30));
    assert!(partition(&world).gone > 300);
    world.kill(0);
    world.join(first, first_takes(Duration::ZERO));
    world.run_until(MINUTE * 2, |w| w.all_committed(1));
    assert_eq!(world.distinct(), 6_000);
}

/// Random logs, keys, speeds and budgets: whatever lanes let go and read again, each record runs
/// once, in order, and nothing stalls.
#[test]
fn whatever_is_let_go_runs_once_and_in_order() {
    let mut reread = 0;
    for seed in 0..80u64 {
        let roll = move |n: u64, salt: u64| {
            let z = (seed << 32 ^ n << 8 ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z ^ (z >> 32)
        };
        let mut world = World::with_topic(1, 2, seed);
        let value = vec![7; 1000];
        let mut at = 0;
        for batch in 0..120 {
            let keys: Vec<_> = (0..1 + roll(batch, 1) % 16)
                .map(|_| {
                    at += 1;
                    let key = format!("k{}", roll(at, 2) % (3 + seed % 20));
                    (!roll(at, 3).is_multiple_of(11)).then_some(key)
                })
                .collect();
            let pairs: Vec<_> = keys
                .iter()
                .map(|k| {
                    (
                        k.as_ref().map(String::as_bytes),
                        Some(&value[..roll(at, 4) as usize % 1000]),
                    )
                })
                .collect();
            // A key is in one partition.
            world.append("t", (seed % 20 == 0) as i32, &pairs);
        }
        let mut config = world.config();
        let n = 2 + (seed % 5) as u32;
        config.mode = match seed % 2 {
            0 => Mode::Fixed { lanes: n },
            _ => Mode::PerKey { at_once: n },
        };
        config.executors = 1 + (seed % 3) as u32;
        config.one_lane_groups = seed % 7 == 3;
        config.budget_bytes = [40 << 10, 80 << 10, 160 << 10][seed as usize % 3];
        config.batch_bytes_max = 32 << 10;
        config.partition_bytes_max = 8 << 10;
        config.fetch_bytes_max = 24 << 10;
        let script: Script = Arc::new(move |_, record| {
            let key = record.key().map_or(0, |k| u64::from(k[k.len() - 1]));
            let slow = roll(key, 5).is_multiple_of(3);
            let n = record.offset() as u64;
            let takes = match (slow, roll(n, 6) % 40) {
                (true, 0) => 5_000,
                (true, 1..=6) => 300,
                (_, 7..=12) => 3,
                _ => 0,
            };
            Plan::ack(Duration::from_millis(takes))
        });
        world.join(config, script);
        world.run_until(MINUTE * 30, |w| w.all_committed(2));
        let written = (world.log_end(0) + world.log_end(1)) as usize;
        assert_eq!(
            (world.distinct(), handled(&world)),
            (written, written),
            "seed {seed}"
        );
        world.run_for(secs(5));
        world.assert_idle(0);
        let views = world.snapshot(0).partitions;
        assert!(views.iter().all(|p| p.gone == 0), "seed {seed}");
        reread += views.iter().map(|p| p.reread_bytes).sum::<u64>();
    }
    assert!(reread > 1 << 20, "{reread} bytes were read again");
}
