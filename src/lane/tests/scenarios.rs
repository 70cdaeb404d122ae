//! Named failures, each as a short story. See SCENARIOS for the ids.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::world::{Act, Say, World, lock};
use crate::lane::{Exhausted, LanesConfig, LeaseState, Mode, Note, Retry};

pub(super) const ACK: Act = Act::Now(Say::Ack);

pub(super) fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(super) fn fixed(lanes: u32) -> LanesConfig {
    LanesConfig::new(Mode::Fixed { lanes })
}

pub(super) fn keys(keys: &[u8]) -> Vec<Option<u8>> {
    keys.iter().copied().map(Some).collect()
}

/// Two keys of different lanes.
pub(super) fn two_lanes(world: &World, lanes: u32) -> (u8, u8) {
    let lane = |key: u8| world.key(Some(key)).lane(lanes);
    let other = (1..=255).find(|key| lane(*key) != lane(0));
    (0, other.expect("some key goes elsewhere"))
}

/// E06: key k: 1 fails, 2 is queued; 2 never runs before 1 has run again.
#[test]
fn retry_runs_before_anything_newer_of_its_lane() {
    let mut world = World::new(&fixed(8));
    let lease = world.grant(0);
    world.tell([Act::Now(Say::Retry)]);
    world.deal(lease, &keys(&[0, 0, 0]), false);
    world.run();
    world.deal(lease, &keys(&[0]), false);
    world.run();
    assert_eq!(world.starts(), [(lease, 0)]);
    let due = world.lanes.next_deadline().expect("parked");
    assert!(due.since(world.now) >= millis(50) && due.since(world.now) <= millis(100));
    world.advance(millis(100));
    world.run();
    let order: Vec<u64> = world.starts().iter().map(|id| id.1).collect();
    assert_eq!(order, [0, 0, 1, 2, 3]);
    assert_eq!(world.watermark(lease), 4);
    world.finish();
}

/// E06, the pending kind: what waits behind a pending record goes back when that must run again.
#[test]
fn records_behind_a_pending_one_go_back_when_it_fails() {
    let mut world = World::new(&fixed(8));
    let lease = world.grant(0);
    world.tell([Act::Wait]);
    world.deal(lease, &keys(&[0, 0, 0]), false);
    world.run();
    assert_eq!(world.lanes.load().out, 3);
    let run = world.waiting()[0];
    world.complete(run, Say::Fail);
    world.run();
    let load = world.lanes.load();
    assert_eq!(
        (load.out, load.queued, load.parked),
        (0, 3, 1),
        "the engine sees all of it"
    );
    world.advance(millis(100));
    world.run();
    let order: Vec<u64> = world.starts().iter().map(|id| id.1).collect();
    assert_eq!(order, [0, 0, 1, 2]);
    world.finish();
}

/// E05, E04: 500 records that each fail once run twice each, and no others with them.
#[test]
fn each_failure_is_retried_alone() {
    let mut world = World::new(&fixed(64));
    let lease = world.grant(0);
    let many: Vec<Option<u8>> = (0..500u32).map(|n| Some((n % 250) as u8)).collect();
    world.tell(std::iter::repeat_n(Act::Now(Say::Retry), 500));
    // Every first attempt of the first five hundred starts fails.
    world.deal(lease, &many, false);
    world.run_out();
    assert_eq!(world.starts().len(), 1000);
    world.finish();
    assert_eq!(world.open(lease), 0);
}

/// E09: a lease ends with record 7 open; the same offset comes again under a new lease, and runs.
#[test]
fn stale_entry_at_reused_offset_does_not_swallow_record() {
    let mut world = World::new(&fixed(4));
    let old = world.grant(7);
    world.tell([Act::Wait]);
    world.deal(old, &keys(&[0, 0]), false);
    world.run();
    world.end_lease(old, LeaseState::Lost);
    let new = world.grant(7);
    world.deal(new, &keys(&[0, 0]), false);
    world.run();
    assert_eq!(world.watermark(new), 9);
    assert_eq!(
        world.watermark(old),
        7,
        "the old lease's results count for nothing"
    );
    world.finish();
}

/// E11: the old run of key k still goes on when k's record comes back: the new one waits.
#[test]
fn key_stays_busy_until_its_old_run_has_ended() {
    let mut world = World::new(&fixed(4));
    let old = world.grant(0);
    world.tell([Act::Wait]);
    world.deal(old, &keys(&[0]), false);
    world.run();
    world.end_lease(old, LeaseState::Draining);
    let new = world.grant(0);
    world.deal(new, &keys(&[0]), false);
    world.run();
    assert_eq!(world.starts(), [(old, 0)]);
    let lease = Arc::clone(&world.ledger.leases[&old].lease);
    assert_eq!(world.lanes.in_executors(&lease), 1);
    let run = world.waiting()[0];
    world.complete(run, Say::Ack);
    world.run();
    assert_eq!(world.starts(), [(old, 0), (new, 0)]);
    assert_eq!(world.watermark(old), 1, "while draining, results count");
    assert_eq!(world.lanes.in_executors(&lease), 0);
    world.finish();
}

/// E10: 40 records in flight when their lease is lost; their results come late. All counts return
/// to zero at once or with them.
#[test]
fn counts_of_a_lost_lease_return_to_zero() {
    let mut world = World::new(&fixed(4));
    let lease = world.grant(0);
    world.otherwise(Act::Wait);
    let forty: Vec<Option<u8>> = (0..40).map(Some).collect();
    world.deal(lease, &forty, false);
    world.run();
    world.deal(lease, &forty, false);
    assert!(world.lanes.load().queued > 0);
    world.end_lease(lease, LeaseState::Lost);
    assert_eq!(world.lanes.load().queued, 0);
    world.run();
    assert_eq!(world.lanes.load(), Default::default());
    assert_eq!(world.watermark(lease), 0);
    world.finish();
}

/// C29, E22: results that arrive while a lease drains still count; what had not started does not
/// start.
#[test]
fn draining_lease_keeps_results_and_starts_nothing() {
    let mut world = World::new(&fixed(1));
    let lease = world.grant(0);
    world.tell([ACK, Act::Wait]);
    world.deal(lease, &keys(&[0, 0, 0, 0]), false);
    world.run();
    world.end_lease(lease, LeaseState::Draining);
    world.run();
    assert_eq!(world.lanes.load().out, 1, "what waited has come back");
    let run = world.waiting()[0];
    world.complete(run, Say::Ack);
    world.run();
    assert_eq!(world.watermark(lease), 2);
    assert_eq!(world.starts().len(), 2);
    world.finish();
}

/// C29: a record that fails while its lease drains is left open, not parked.
#[test]
fn failure_while_draining_parks_nothing() {
    let mut world = World::new(&fixed(1));
    let lease = world.grant(0);
    let other = world.grant(0);
    world.tell([Act::Wait]);
    world.deal(lease, &keys(&[0]), false);
    world.deal(other, &keys(&[0]), false);
    world.run();
    world.end_lease(lease, LeaseState::Draining);
    let run = world.waiting()[0];
    world.complete(run, Say::Retry);
    world.run();
    assert_eq!(world.lanes.next_deadline(), None);
    assert_eq!((world.open(lease), world.watermark(other)), (1, 1));
    world.finish();
}

/// E25: a panic in the call, at the first poll, later, or in the future's drop is caught; the
/// record runs again and its lane lives.
#[test]
#[cfg_attr(not(panic = "unwind"), ignore = "a panic ends the program here")]
fn panics_are_caught_wherever_they_happen() {
    for act in [
        Act::PanicInCall,
        Act::PanicInPoll,
        Act::PanicLater,
        Act::PanicInDrop,
    ] {
        let mut world = World::new(&fixed(2));
        let lease = world.grant(0);
        world.tell([act]);
        world.deal(lease, &keys(&[0, 0, 1]), false);
        world.run();
        let Some(Note::Retrying {
            reason, attempts, ..
        }) = world.ledger.notes.first()
        else {
            panic!("{act:?}: {:?}", world.ledger.notes);
        };
        assert!(
            reason
                .as_deref()
                .is_some_and(|words| words.contains("told to panic"))
        );
        assert_eq!(*attempts, 1);
        world.finish();
        assert_eq!(world.watermark(lease), 3);
    }
}

/// E26, E08: a future that is dropped before its end settles nothing; when its lease lives, the
/// record runs again.
#[test]
fn cancelled_run_settles_nothing() {
    let mut config = LanesConfig::new(Mode::InTurn);
    config.batch_max = 4;
    let mut world = World::new(&config);
    let (lost, kept) = (world.grant(0), world.grant(0));
    world.tell([Act::Wait]);
    world.deal(lost, &keys(&[0, 1]), false);
    world.deal(kept, &keys(&[2, 3]), false);
    world.run();
    assert_eq!(world.starts().len(), 4, "one batch over both");
    world.end_lease(lost, LeaseState::Lost);
    world.run();
    assert_eq!((world.open(lost), world.open(kept)), (2, 0));
    let again: Vec<_> = world.starts()[4..].iter().map(|id| id.0).collect();
    assert!(again.iter().all(|lease| *lease == kept));
    assert!(world.ledger.notes.is_empty(), "it counts as no attempt");
    world.finish();
}

/// E33: of ten records the fourth fails: the acked ones settle, it alone runs again, and before
/// anything newer of its lane.
#[test]
fn part_of_a_batch_fails() {
    let mut config = fixed(1);
    config.batch_max = 7;
    let mut world = World::new(&config);
    let lease = world.grant(0);
    // The fourth of each seven says retry.
    world.tell([Act::Now(Say::Each(8))]);
    world.deal(lease, &keys(&[0; 10]), false);
    world.run();
    assert_eq!((world.watermark(lease), world.open(lease)), (3, 4));
    assert_eq!(world.starts().len(), 7);
    world.advance(millis(100));
    world.run();
    let order: Vec<u64> = world.starts()[7..].iter().map(|id| id.1).collect();
    assert_eq!(order, [3, 7, 8, 9]);
    world.finish();
}

/// E33: a list with too few outcomes leaves the others failed, in words.
#[test]
fn missing_outcomes_are_failures() {
    let mut config = fixed(1);
    config.batch_max = 4;
    let mut world = World::new(&config);
    let lease = world.grant(0);
    world.tell([Act::Now(Say::Each(128))]);
    world.deal(lease, &keys(&[0; 4]), false);
    world.run();
    assert_eq!(world.watermark(lease), 3);
    let Note::Retrying { reason, .. } = &world.ledger.notes[0] else {
        panic!("{:?}", world.ledger.notes);
    };
    assert!(
        reason
            .as_deref()
            .is_some_and(|words| words.contains("fewer outcomes"))
    );
    world.finish();
}

/// E41: with batches, a lane's records go into one only when no earlier one of it runs.
#[test]
fn batch_is_one_lanes_run() {
    let mut config = fixed(2);
    config.batch_max = 10;
    config.executors = 2;
    let mut world = World::new(&config);
    let (a, b) = two_lanes(&world, 2);
    let lease = world.grant(0);
    world.otherwise(Act::Wait);
    world.deal(lease, &keys(&[a, b, a, b, a]), false);
    world.run();
    let script = lock(&world.script);
    let mut batches: Vec<Vec<_>> = script.runs.values().map(|run| run.keys.clone()).collect();
    batches.sort();
    assert_eq!(batches, [vec![Some(a); 3], vec![Some(b); 2]]);
    drop(script);
    world.deal(lease, &keys(&[a, a]), false);
    world.run();
    assert_eq!(world.waiting().len(), 2, "the lanes are busy");
    world.finish();
}

/// Promise 6: one lane is stuck, ten thousand records of the others flow past it, from the same
/// parcels; the watermark waits and then jumps.
#[test]
fn slow_lane_stops_nothing_but_itself() {
    let mut config = fixed(8);
    config.executors = 2;
    let mut world = World::new(&config);
    let (slow, _) = two_lanes(&world, 8);
    let lease = world.grant(0);
    world.tell([Act::Wait]);
    world.deal(lease, &keys(&[slow]), false);
    world.run();
    let stuck = world.key(Some(slow)).lane(8);
    let other: Vec<u8> = (0..=255)
        .filter(|k| world.key(Some(*k)).lane(8) != stuck)
        .collect();
    for n in 0..100 {
        let mut parcel: Vec<u8> = (0..100).map(|i| other[(n * 7 + i) % other.len()]).collect();
        parcel[n] = slow;
        world.deal(lease, &keys(&parcel), false);
        world.run();
    }
    assert_eq!(world.watermark(lease), 0);
    assert_eq!(world.open(lease), 101, "only the slow lane's are open");
    let run = world.waiting()[0];
    world.complete(run, Say::Ack);
    world.run();
    assert_eq!(world.watermark(lease), 10_001);
    world.finish();
}

/// E02, promise 6: a hundred poisoned keys under endless retry leave a healthy one alone.
#[test]
fn poisoned_lanes_leave_the_others_alone() {
    let mut world = World::new(&fixed(512));
    let lease = world.grant(0);
    world.otherwise(Act::Now(Say::Retry));
    let poisoned: Vec<u8> = (0..100).collect();
    world.deal(lease, &keys(&poisoned), false);
    world.run();
    let taken: HashSet<u32> = (0..100).map(|k| world.key(Some(k)).lane(512)).collect();
    let healthy = (100..=255).find(|k| !taken.contains(&world.key(Some(*k)).lane(512)));
    let healthy = healthy.expect("a free lane");
    world.otherwise(ACK);
    let before = world.starts().len();
    assert!(world.lanes.wants_more() && world.lanes.takes(world.key(Some(healthy))));
    assert!(
        !world.lanes.takes(world.key(Some(0))),
        "the engine can tell them apart"
    );
    world.deal(lease, &keys(&[healthy; 50]), false);
    world.run();
    assert_eq!(world.starts().len(), before + 50);
    world.finish();
}

/// E03: a record that fails again and again waits in one place, with one timer.
#[test]
fn record_that_fails_again_has_one_timer() {
    for mode in [
        Mode::Fixed { lanes: 2 },
        Mode::Any { workers: 2 },
        Mode::InTurn,
    ] {
        let mut world = World::new(&LanesConfig::new(mode));
        let lease = world.grant(0);
        world.otherwise(Act::Now(Say::Retry));
        world.deal(lease, &keys(&[0]), false);
        for _ in 0..20 {
            world.run();
            assert_eq!(world.lanes.load().parked, 1);
            world.now = world.lanes.next_deadline().expect("parked");
            world.lanes.handle_timeout(world.now);
            assert_eq!(world.lanes.load().parked, 0);
        }
        world.finish();
    }
}

/// I10: attempts are paced, up to 30 s apart, and loud at 10, 100, 1000.
#[test]
fn attempts_are_paced_and_loud_at_powers_of_ten() {
    let mut world = World::new(&fixed(2));
    let lease = world.grant(0);
    world.otherwise(Act::Now(Say::Fail));
    world.deal(lease, &keys(&[0]), false);
    world.run();
    let mut loud = Vec::new();
    while world.starts().len() < 120 {
        let due = world.lanes.next_deadline().expect("parked");
        let attempts = world.starts().len();
        let wait = due.since(world.now);
        assert!(wait >= millis(50) && wait <= Duration::from_secs(30));
        if attempts > 10 {
            assert!(wait >= Duration::from_secs(15));
        }
        world.now = due;
        world.lanes.handle_timeout(due);
        world.run();
    }
    for note in &world.ledger.notes {
        if let Note::Retrying {
            attempts,
            loud: true,
            ..
        } = note
        {
            loud.push(*attempts);
        }
    }
    assert_eq!(loud, [10, 100]);
    world.finish();
}

/// A cap with `or_drop` settles the record and goes on; the note names it.
#[test]
#[cfg_attr(not(panic = "unwind"), ignore = "a panic ends the program here")]
fn attempts_run_out_and_the_record_is_dropped() {
    for mode in [
        Mode::Fixed { lanes: 2 },
        Mode::Any { workers: 2 },
        Mode::InTurn,
    ] {
        let mut config = LanesConfig::new(mode);
        config.retry = Retry::default().max_attempts(3).or_drop();
        let mut world = World::new(&config);
        let lease = world.grant(0);
        world.tell([Act::Now(Say::Fail), Act::PanicInPoll, Act::Now(Say::Retry)]);
        world.deal(lease, &keys(&[0]), false);
        world.run_out();
        world.finish();
        assert_eq!(world.starts().len(), 3);
        assert_eq!(world.watermark(lease), 1);
        let last = &world.ledger.notes[world.ledger.notes.len() - 2..];
        assert!(matches!(
            last,
            [
                Note::GaveUp {
                    attempts: 3,
                    then: Exhausted::Drop,
                    ..
                },
                Note::Dropped { ordinal: 0, .. }
            ]
        ));
    }
}

/// E23: a cap with `or_stop`: the record stays open, its lane waits, the watermark does not pass.
#[test]
fn attempts_run_out_and_the_lane_stops() {
    let mut config = fixed(1);
    config.retry = Retry::default().max_attempts(1).or_stop();
    let mut world = World::new(&config);
    let lease = world.grant(0);
    world.tell([Act::Now(Say::Retry)]);
    world.deal(lease, &keys(&[0, 0]), false);
    world.run();
    assert_eq!(world.lanes.next_deadline(), None);
    assert_eq!((world.watermark(lease), world.starts().len()), (0, 1));
    let gave_up = matches!(
        world.ledger.notes[0],
        Note::GaveUp {
            then: Exhausted::Stop,
            ..
        }
    );
    assert!(gave_up);
    world.end_lease(lease, LeaseState::Draining);
    let next = world.grant(0);
    world.deal(next, &keys(&[0]), false);
    world.finish();
    assert_eq!(
        world.watermark(next),
        1,
        "the lane lives on under another lease"
    );
}

/// DESIGN: without workers a parked record's partition waits and the others run, one at a time.
#[test]
fn in_turn_a_parked_partition_does_not_stop_the_others() {
    let mut world = World::new(&LanesConfig::new(Mode::InTurn));
    let (p0, p1) = (world.grant(0), world.grant(0));
    world.tell([Act::Now(Say::Retry)]);
    world.deal(p0, &keys(&[0; 50]), true);
    world.deal(p1, &keys(&[1; 50]), true);
    world.run();
    assert_eq!((world.watermark(p0), world.watermark(p1)), (0, 50));
    assert_eq!(lock(&world.script).at_once_seen, 1);
    world.finish();
    assert_eq!(world.watermark(p0), 50);
}

/// Under `Any` a retry holds up nothing.
#[test]
fn without_lanes_nothing_waits_for_a_retry() {
    let mut config = LanesConfig::new(Mode::Any { workers: 4 });
    config.executors = 2;
    let mut world = World::new(&config);
    let lease = world.grant(0);
    world.tell([Act::Now(Say::Retry)]);
    world.deal(lease, &keys(&[0; 100]), false);
    world.run();
    assert_eq!((world.open(lease), world.watermark(lease)), (1, 0));
    world.advance(millis(100));
    world.run();
    assert_eq!(world.watermark(lease), 100);
    world.finish();
}

/// E42: the cap goes from 16 to 4 to 16 with work queued; it holds, over two executors.
#[test]
fn cap_changes_at_run_time() {
    let mut config = LanesConfig::new(Mode::Any { workers: 16 });
    config.executors = 2;
    let mut world = World::new(&config);
    let lease = world.grant(0);
    world.otherwise(Act::Wait);
    for _ in 0..10 {
        world.deal(lease, &keys(&[0; 20]), false);
        world.run();
    }
    assert_eq!(world.waiting().len(), 16);
    let permits = world.permits.clone().expect("capped");
    permits.set_limit(4);
    for _ in 0..12 {
        let run = world.waiting()[0];
        world.complete(run, Say::Ack);
        world.run();
    }
    assert_eq!(world.waiting().len(), 4);
    for _ in 0..20 {
        let run = world.waiting()[0];
        world.complete(run, Say::Ack);
        world.run();
        assert_eq!(world.waiting().len(), 4);
    }
    permits.set_limit(16);
    world.run();
    assert_eq!(world.waiting().len(), 16);
    world.finish();
}

/// E31: each pending slot's wake polls that slot, and only once; an idle Runner is not woken.
#[test]
fn wakes_are_neither_lost_nor_multiplied() {
    let mut world = World::new(&fixed(64));
    let lease = world.grant(0);
    world.otherwise(Act::Wait);
    let many: Vec<u8> = (0..200).collect();
    world.deal(lease, &keys(&many), false);
    world.run();
    let waiting = world.waiting();
    assert!(waiting.len() > 30, "many lanes have a pending record");
    let bell = Arc::clone(&world.execs[0].bell);
    let before = bell.count.load(Ordering::SeqCst);
    world.run();
    assert_eq!(bell.count.load(Ordering::SeqCst), before);
    for run in &waiting {
        world.complete(*run, Say::Ack);
    }
    assert_eq!(
        bell.count.load(Ordering::SeqCst),
        before + 1,
        "one wake for all"
    );
    world.run();
    assert!(world.waiting().iter().all(|run| !waiting.contains(run)));
    world.finish();
}

/// I3: a record fails while its lease rests; the one behind it, in the executor's next group,
/// comes back when the lease has gone on already, and stays behind it.
#[test]
fn what_comes_back_after_a_rest_stays_behind_what_failed_in_it() {
    let mut world = World::new(&fixed(1));
    let lease = world.grant(0);
    let right = Arc::clone(&world.ledger.leases[&lease].lease);
    world.tell([Act::Wait]);
    world.deal(lease, &keys(&[0]), false);
    world.ship();
    world.deal(lease, &keys(&[0, 0]), false);
    world.ship();
    assert!(world.deliver(0));
    world.poll(0);
    world.lanes.rest(&right);
    let run = world.waiting()[0];
    world.complete(run, Say::Fail);
    world.poll(0);
    while world.take_back(0) {}
    world.lanes.go_on(&right);
    world.run();
    world.finish();
    let starts: Vec<u64> = world.starts().iter().map(|(_, ordinal)| *ordinal).collect();
    assert_eq!(starts, [0, 0, 1, 2]);
}
