//! Named failures, each as a short story. See SCENARIOS for the ids.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::world::{Act, Say, World, lock};
use crate::ids::LeaseId;
use crate::lane::group::Cut;
use crate::lane::{
    Exhausted, KeyHash, Keys, LaneHasher, LanesConfig, Lease, LeaseState, Mode, Note, Parcel, Retry,
};

const ACK: Act = Act::Now(Say::Ack);

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn fixed(lanes: u32) -> LanesConfig {
    LanesConfig::new(Mode::Fixed { lanes })
}

fn keys(keys: &[u8]) -> Vec<Option<u8>> {
    keys.iter().copied().map(Some).collect()
}

/// Two keys of different lanes.
fn two_lanes(world: &World, lanes: u32) -> (u8, u8) {
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

/// Pitfall "Group size": a handler that takes 1 ms gets groups of one, a quick one large groups.
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
        let a_record = if step < 30 { 1_000_000 } else { 100 };
        world.now = world.now + Duration::from_nanos(a_record * group.len() as u64);
        world.give(executor.0 as usize, group);
        world.poll(0);
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
