//! Who gets how many records: executors, lanes, batches, budgets of a turn.

use super::scenarios::{ACK, fixed, keys, millis, two_lanes};
use super::world::{Act, World, lock};
use crate::ids::LeaseId;
use crate::lane::group::Cut;
use crate::lane::{KeyHash, Keys, LaneHasher, LanesConfig, Lease, LeaseState, Mode, Parcel};
use crate::time::Now;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Pitfall of the cooperative budget: where it is used up the Runner wakes itself and gives way.
#[test]
fn spent_budget_gives_way_and_loses_nothing() {
    let mut world = World::new(&fixed(4));
    let lease = world.grant(0);
    world.budget = 3;
    world.deal(lease, &keys(&[0; 100]), false);
    world.ship();
    world.deliver(0);
    let mut polls = 0;
    while world.poll(0) {
        polls += 1;
        assert!(polls < 100);
    }
    assert!(polls > 4, "{polls}");
    world.run();
    world.finish();
    assert_eq!(world.watermark(lease), 100);
}

/// Two executors whose handlers compute for 2.7 us a record, with more to do than they can: how
/// much of the time each was busy, in percent, after a start of `warm_up` turns.
fn busy_under_backlog(world: &mut World, lease: u64, dealt: &[Vec<u8>], warm_up: u32) -> [u64; 2] {
    let mut waiting = [const { VecDeque::new() }; 2];
    let mut until = [world.now; 2];
    let mut busy = [Duration::ZERO; 2];
    let mut began = world.now;
    for turn in 0..warm_up + 1500 {
        if turn == warm_up {
            (busy, began) = ([Duration::ZERO; 2], world.now);
        }
        if world.lanes.wants_more() {
            let parcel = &dealt[turn as usize % dealt.len()];
            world.deal(lease, &keys(parcel), false);
        }
        while let Some((executor, group)) = world.lanes.poll_run(world.now) {
            waiting[executor.0 as usize].push_back(group);
        }
        for e in 0..2 {
            if until[e] > world.now {
                continue;
            }
            while world.take_back(e) {}
            if let Some(group) = waiting[e].pop_front() {
                let takes = Duration::from_nanos(2_700 * group.len() as u64);
                until[e] = world.now + takes;
                busy[e] += takes;
                world.give(e, group);
                world.poll(e);
            }
        }
        world.now = world.now + Duration::from_micros(50);
    }
    for (e, groups) in waiting.into_iter().enumerate() {
        groups.into_iter().for_each(|group| world.give(e, group));
    }
    let all = world.now.since(began).as_nanos();
    busy.map(|busy| (busy.as_nanos() * 100 / all) as u64)
}

/// Pitfall "Binding": under backlog both executors work nearly all the time.
#[test]
fn both_executors_get_work() {
    for lanes in [2, 8, 64] {
        let mut config = fixed(lanes);
        config.executors = 2;
        let mut world = World::new(&config);
        let lease = world.grant(0);
        let dealt: Vec<Vec<u8>> = (0..50)
            .map(|n| (0..100).map(|i: usize| (i * 37 + n * 11) as u8).collect())
            .collect();
        let busy = busy_under_backlog(&mut world, lease, &dealt, 200);
        assert!(
            busy.iter().all(|percent| *percent >= 80),
            "{lanes}: {busy:?}"
        );
        world.finish();
    }
}

/// Pitfall "Binding": a start where every lane is on one executor does not last.
#[test]
fn uneven_start_evens_out() {
    let mut config = fixed(8);
    config.executors = 2;
    let mut world = World::new(&config);
    let (lease, filler) = (world.grant(0), world.grant(0));
    // One executor is full of one lane while the others are bound: they all go to the other.
    let (a, _) = two_lanes(&world, 8);
    let lane_of_a = world.key(Some(a)).lane(8);
    let others: Vec<u8> = (0..100)
        .filter(|k| world.key(Some(*k)).lane(8) != lane_of_a)
        .collect();
    world.deal(filler, &keys(&[a; 2000]), false);
    for _ in 0..5 {
        world.deal(lease, &keys(&others), false);
    }
    world.end_lease(filler, LeaseState::Lost);
    let busy = busy_under_backlog(&mut world, lease, &[others], 2000);
    assert!(busy.iter().all(|percent| *percent >= 80), "{busy:?}");
    world.finish();
}

/// Pitfall "Group size": a handler that takes 1 ms gets groups of one, a quick one large groups,
/// however long the engine takes to look.
#[test]
fn group_size_follows_the_handlers_pace() {
    let mut world = World::new(&fixed(4));
    let lease = world.grant(0);
    let mut sizes = Vec::new();
    for step in 0..60 {
        while world.lanes.wants_more() {
            world.deal(lease, &keys(&[0, 1, 2, 3, 4, 5, 6, 7]), false);
        }
        let shipped = world.lanes.poll_run(world.now);
        let Some((executor, group)) = shipped else {
            continue;
        };
        sizes.push(group.len());
        world.record_nanos = if step < 30 { 1_000_000 } else { 100 };
        world.give(executor.0 as usize, group);
        world.poll(0);
        world.now = world.now + Duration::from_millis(3);
        world.take_back(0);
    }
    assert!(sizes[20..29].iter().all(|size| *size == 1), "{sizes:?}");
    assert!(sizes.iter().skip(55).all(|size| *size > 500), "{sizes:?}");
    world.finish();
}

/// For executors that are threads: an executor has one group, and a group is one lane's.
#[test]
fn blocking_executor_has_one_lanes_records_only() {
    let mut config = fixed(8);
    config.executors = 2;
    config.blocking = true;
    let mut world = World::new(&config);
    let lease = world.grant(0);
    let many: Vec<u8> = (0..100).collect();
    world.deal(lease, &keys(&many), false);
    let mut groups = 0;
    while let Some((executor, group)) = world.lanes.poll_run(world.now) {
        groups += 1;
        let segs = group.segs.iter();
        let lanes: HashSet<_> = segs
            .map(|seg| match seg.cut {
                Cut::Range { lane, .. } => lane,
                Cut::Items { .. } => panic!("not a range"),
            })
            .collect();
        assert_eq!(lanes.len(), 1);
        world.give(executor.0 as usize, group);
    }
    assert_eq!(groups, 2);
    world.finish();
}

/// E13, E17: records without a key rotate over the lanes, and go round a blocked one.
#[test]
fn records_without_a_key_rotate_and_avoid_blocked_lanes() {
    let mut world = World::new(&fixed(4));
    let lease = world.grant(0);
    world.otherwise(Act::Wait);
    world.deal(lease, &[None; 3], false);
    world.run();
    assert_eq!(world.waiting().len(), 3, "three lanes of their own");
    world.otherwise(ACK);
    world.deal(lease, &[None; 20], false);
    world.run();
    assert_eq!(world.open(lease), 3, "all went to the free lane");
    world.finish();
}

/// E12: the same key in two topics is two lane keys; E15: an empty key is a key; E14: equal bytes
/// are equal wherever they lie.
#[test]
fn lane_keys_are_topic_and_bytes() {
    let hasher = LaneHasher::new([3; 32]);
    assert_ne!(hasher.key("a", b"k"), hasher.key("b", b"k"));
    assert!(!hasher.key("a", b"").is_keyless());
    assert_ne!(hasher.key("a", b""), hasher.key("b", b""));
    let (one, other) = (b"key".to_vec(), [b'k', b'e', b'y']);
    assert_eq!(hasher.key("a", &one), hasher.key("a", &other));
    assert_eq!(hasher.salted(hasher.salt("a"), b"k"), hasher.key("a", b"k"));
    assert_ne!(hasher.partition("a", 0), hasher.partition("a", 1));
    assert_ne!(
        hasher.key("a", b"k"),
        LaneHasher::new([4; 32]).key("a", b"k")
    );
    assert_eq!(
        format!("{hasher:?}"),
        "LaneHasher { .. }",
        "no seeds in logs"
    );
}

/// E16: lanes are even for ordinary keys.
#[test]
fn lanes_are_even() {
    let hasher = LaneHasher::new([9; 32]);
    let mut lanes = [0u32; 64];
    for n in 0..64_000u32 {
        let key = hasher.key("orders", format!("customer-{n}").as_bytes());
        lanes[key.lane(64) as usize] += 1;
    }
    assert!(lanes.iter().all(|n| (850..1150).contains(n)), "{lanes:?}");
}

/// E18, E19: what is wanted is bounded, and counts what is in flight.
#[test]
fn wants_are_bounded_by_what_is_out_and_queued() {
    let mut config = fixed(4);
    config.executors = 2;
    config.queued_max = 500;
    let mut world = World::new(&config);
    let lease = world.grant(0);
    let many: Vec<u8> = (0..100).collect();
    let mut dealt = 0;
    while world.lanes.wants_more() {
        world.deal(lease, &keys(&many), false);
        dealt += 100;
        assert!(dealt < 10_000);
    }
    // Nothing has come back: shipping makes no more room than the two groups.
    world.otherwise(Act::Wait);
    world.run();
    while world.lanes.wants_more() {
        world.deal(lease, &keys(&many), false);
        world.run();
        dealt += 100;
        assert!(dealt < 10_000, "all lanes wait: nothing more is wanted");
    }
    world.finish();
}

/// A parcel of a lease that has ended is not dealt.
#[test]
fn parcel_of_an_ended_lease_is_dropped() {
    let mut world = World::new(&fixed(4));
    let lease = Lease::new(LeaseId(99));
    world.lanes.end_lease(&lease, LeaseState::Draining);
    let parcel = Arc::new(Parcel {
        lease: Arc::clone(&lease),
        first_ordinal: 0,
        taken_at: Now(0),
        len: 1,
        load: vec![None],
    });
    world.lanes.deal(&parcel, Keys::Same(KeyHash::new(5)));
    assert_eq!(world.lanes.load(), Default::default());
    assert_eq!(lease.state(), LeaseState::Draining);
    world.finish();
}

/// A Runner that is dropped drops its futures, gives its permits back, and survives their panics.
#[test]
fn dropped_runner_gives_its_permits_back() {
    let mut world = World::new(&LanesConfig::new(Mode::Any { workers: 3 }));
    let lease = world.grant(0);
    world.otherwise(Act::Wait);
    world.deal(lease, &keys(&[0; 5]), false);
    world.run();
    let permits = world.permits.clone().expect("capped");
    assert_eq!(permits.taken(), 3);
    world.execs.clear();
    assert_eq!(permits.taken(), 0);
    assert!(lock(&world.script).runs.is_empty());
}

/// The pending call that began first, for the watch over progress.
#[test]
fn oldest_running_record_is_known() {
    let mut world = World::new(&fixed(8));
    let lease = world.grant(0);
    world.otherwise(Act::Wait);
    let (a, b) = two_lanes(&world, 8);
    world.deal(lease, &keys(&[a]), false);
    world.run();
    let began = world.now;
    world.advance(millis(5));
    world.deal(lease, &keys(&[b]), false);
    world.run();
    let oldest = world.execs[0].runner.oldest_running().expect("runs");
    assert_eq!(
        (oldest.lease.0, oldest.ordinal, oldest.since),
        (lease, 0, began)
    );
    assert_eq!(world.execs[0].runner.pending(), 2);
    world.finish();
    assert_eq!(world.execs[0].runner.oldest_running(), None);
}
