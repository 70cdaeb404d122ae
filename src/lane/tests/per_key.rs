//! A lane for each live key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::scenarios::{ACK, keys, millis};
use super::world::{Act, Say, World, lock};
use crate::ids::{ExecutorId, LeaseId};
use crate::lane::{
    Done, Handler, KeyHash, Keys, Lanes, LanesConfig, Lease, LeaseState, Mode, Note, Outcome,
    Parcel, Retry, Runner, Sink, Taken,
};
use crate::time::Now;

fn per_key(at_once: u32) -> LanesConfig {
    let mut config = LanesConfig::new(Mode::PerKey { at_once });
    config.executors = 2;
    config
}

/// Sixteen at once and no more, over two executors; every key in order (the world looks).
#[test]
fn at_most_n_records_run_at_once() {
    let mut world = World::new(&per_key(16));
    let lease = world.grant(0);
    world.otherwise(Act::Wait);
    let many: Vec<u8> = (0..200).map(|n| n % 40).collect();
    world.deal(lease, &keys(&many), false);
    for _ in 0..200 {
        world.run();
        assert!(lock(&world.script).at_once_seen <= 16);
        let Some(run) = world.waiting().first().copied() else {
            break;
        };
        world.complete(run, Say::Ack);
    }
    world.run();
    assert_eq!(lock(&world.script).at_once_seen, 16);
    assert_eq!(world.watermark(lease), 200);
    world.finish();
}

/// Over any number of keys the work is done about as soon as it could be: however the keys share
/// out among the executors, none is left over when the others are done. The least that any client
/// could take is the sum over sixteen, or the busiest key.
#[test]
fn no_key_is_left_over_when_the_others_are_done() {
    const RECORDS: u64 = 5_000;
    let nanos = |ordinal: u64| ordinal.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 42;
    for n in [5u64, 17, 18, 19, 20, 23, 27, 33, 40, 50, 63, 100, 200] {
        let mut world = World::new(&per_key(16));
        let lease = world.grant(0);
        world.otherwise(Act::Wait);
        let key = |ordinal: u64| (ordinal % n) as u8;
        let mut busiest = vec![0; n as usize];
        (0..RECORDS).for_each(|ordinal| busiest[usize::from(key(ordinal))] += nanos(ordinal));
        let sum: u64 = busiest.iter().sum();
        let floor = busiest.into_iter().max().unwrap_or(0).max(sum / 16);
        let (mut dealt, mut ends) = (0, BTreeMap::new());
        loop {
            while dealt < RECORDS && world.lanes.wants_more() {
                let many: Vec<u8> = (dealt..RECORDS.min(dealt + 100)).map(key).collect();
                dealt += many.len() as u64;
                world.deal(lease, &keys(&many), false);
            }
            world.run();
            for run in world.waiting() {
                let (_, ordinal) = lock(&world.script).runs[&run].records[0];
                let end = || (world.now + Duration::from_nanos(nanos(ordinal)), run);
                if !ends.values().any(|known| *known == run) {
                    ends.insert(end(), run);
                }
            }
            let Some(((at, _), run)) = ends.pop_first() else {
                break;
            };
            world.go_to(at);
            world.complete(run, Say::Ack);
        }
        assert_eq!(world.watermark(lease), RECORDS as i64);
        let over = world.now.0 as f64 / floor as f64;
        // The rest is the end: what is left of some keys when there are fewer than sixteen.
        assert!(over < 1.05, "{n} keys: {over} of the floor");
        world.finish();
    }
}

/// One key is stuck: its records wait, those of 200 others pass, whatever they hash to.
#[test]
fn two_keys_never_wait_for_each_other() {
    let mut world = World::new(&per_key(2));
    let lease = world.grant(0);
    world.tell([Act::Wait]);
    world.deal(lease, &keys(&[0, 0, 0]), false);
    world.run();
    for round in 0..10 {
        let others: Vec<u8> = (1..=200)
            .map(|n: u8| n.wrapping_add(round))
            .filter(|n| *n != 0)
            .collect();
        world.deal(lease, &keys(&others), false);
        world.run();
    }
    assert_eq!(world.open(lease), 3, "only the stuck key's");
    assert_eq!(world.lanes.load().keys, 1);
    let run = world.waiting()[0];
    world.complete(run, Say::Ack);
    world.run();
    assert_eq!(world.open(lease), 0);
    world.finish();
}

/// E32: a key keeps its lane while anything of it is held, running, queued, parked or on its way
/// to a dead letter, however many keys come and go; then the lane is another's. The table holds
/// what is held and nothing else.
#[test]
fn e32_a_busy_key_is_never_without_its_lane() {
    let mut config = per_key(8);
    config.dead_letters = true;
    config.retry = Retry::fixed(Duration::from_secs(5));
    let mut world = World::new(&config);
    let lease = world.grant(0);
    world.tell([Act::Wait, Act::Now(Say::Retry), Act::Now(Say::DeadLetter)]);
    for key in [1, 2, 3] {
        world.deal(lease, &keys(&[key, key]), false);
        world.run();
    }
    assert_eq!(world.lanes.load().keys, 3);
    for round in 0..300u32 {
        let passing: Vec<u8> = (0..100)
            .map(|n| 4 + ((n + round * 7) % 250) as u8)
            .collect();
        world.deal(lease, &keys(&passing), false);
        world.run();
        assert_eq!(world.lanes.load().keys, 3, "those that passed have none");
        if round % 50 == 0 {
            world.deal(lease, &keys(&[1, 2, 3]), false);
        }
    }
    assert_eq!(world.open(lease), 6 + 18);
    world.finish();
    assert_eq!(world.lanes.load().keys, 0);
}

/// A lease ends while lanes of it are sealed, parked or listed: their keys are forgotten, and the
/// same keys run under the next lease.
#[test]
fn keys_of_an_ended_lease_are_forgotten() {
    for how in [LeaseState::Draining, LeaseState::Lost] {
        let mut world = World::new(&per_key(4));
        let lease = world.grant(0);
        world.tell([Act::Now(Say::Retry), Act::Wait, Act::Yield(1, Say::Fail)]);
        world.deal(lease, &keys(&[1, 1, 2, 2, 3, 3]), false);
        world.run();
        assert!(world.lanes.load().keys >= 2);
        world.end_lease(lease, how);
        let next = world.grant(0);
        world.deal(next, &keys(&[1, 2, 3, 1, 2, 3]), false);
        world.run();
        world.finish();
        assert_eq!(world.watermark(next), 6);
        assert_eq!(world.lanes.load().keys, 0);
    }
}

/// Records without a key are in no lane: they run at once beside each other, in any order, also
/// where a group is one lane's run.
#[test]
fn records_without_a_key_run_in_any_order() {
    for blocking in [false, true] {
        let mut config = per_key(8);
        config.blocking = blocking;
        config.executors = 8;
        let mut world = World::new(&config);
        let lease = world.grant(0);
        world.otherwise(Act::Wait);
        let mut some = vec![None; 6];
        some.push(Some(9));
        some.extend([None; 6]);
        world.deal(lease, &some, false);
        world.run();
        assert_eq!(world.waiting().len(), 8, "blocking: {blocking}");
        let keyed = lock(&world.script)
            .runs
            .values()
            .any(|r| r.keys == [Some(9)]);
        assert!(keyed || !blocking, "neither kind starves the other");
        world.finish();
        assert_eq!(world.watermark(lease), 13);
    }
}

/// A retry of a key stops nothing else, and comes before anything newer of the key.
#[test]
fn a_retry_parks_its_key_alone() {
    let mut world = World::new(&per_key(4));
    let lease = world.grant(0);
    world.tell([Act::Now(Say::Retry), ACK]);
    world.deal(lease, &keys(&[1, 2, 1, 2]), false);
    world.run();
    assert_eq!(world.open(lease), 2);
    world.advance(millis(100));
    world.run();
    let of_one: Vec<u64> = world
        .starts()
        .iter()
        .map(|id| id.1)
        .filter(|n| n % 2 == 0)
        .collect();
    assert_eq!(of_one, [0, 0, 2]);
    world.finish();
}

/// How long the cold keys' records waited from being dealt to their start, in milliseconds: the
/// mean and the longest. Handlers take 1 ms of virtual time, 16 at once; every millisecond `hot`
/// records of one key and one of each of some cold keys arrive.
fn cold_waits(hot: u32, rounds: u32) -> (f64, u64) {
    let mut config = LanesConfig::new(Mode::PerKey { at_once: 16 });
    config.queued_max = 10_000_000;
    let mut lanes: Lanes<Vec<u32>> = Lanes::new(&config);
    let now = Arc::new(Mutex::new(Now(0)));
    let seen = Arc::new(Mutex::new(Seen::default()));
    let handler = Timed(Arc::clone(&now), Arc::clone(&seen));
    let mut runner = Runner::new(handler, &config.runner());
    let lease = Lease::new(LeaseId(1));
    let (mut ordinal, mut cold, mut round) = (0u64, 0u32, 0);
    while round < rounds || lock(&seen).started < u64::from(rounds) * 8 {
        if round < rounds {
            // Cold keys: 8 a millisecond, in turn over 1,000.
            let mut load: Vec<u32> = vec![0; hot as usize];
            load.extend((0..8).map(|n| 1 + (cold + n) % 1000));
            cold += 8;
            let hashes: Vec<KeyHash> = load
                .iter()
                .map(|k| KeyHash::new((u64::from(*k) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
                .collect();
            let len = load.len() as u32;
            let dealt = lock(&now).0 / 1_000_000;
            let parcel = Arc::new(Parcel {
                lease: Arc::clone(&lease),
                first_ordinal: ordinal,
                taken_at: Now(0),
                len,
                load,
            });
            lock(&seen).dealt.push((ordinal, dealt));
            ordinal += u64::from(len);
            lanes.deal(&parcel, Keys::Each(&hashes));
        }
        round += 1;
        turn(&mut lanes, &mut runner, &now, &seen);
        *lock(&now) = Now(u64::from(round) * 1_000_000);
    }
    let seen = lock(&seen);
    let mean = seen.waited as f64 / seen.started as f64;
    (mean, seen.longest)
}

/// What handlers of cold keys saw.
#[derive(Default)]
struct Seen {
    /// First ordinal of each parcel, and when it was dealt.
    dealt: Vec<(u64, u64)>,
    started: u64,
    waited: u64,
    longest: u64,
    /// Handlers that end at the next turn of the clock.
    asleep: Vec<Waker>,
}

struct Timed(Arc<Mutex<Now>>, Arc<Mutex<Seen>>);

struct TimedRun(Arc<Mutex<Now>>, Arc<Mutex<Seen>>, Now);

impl Handler<Vec<u32>> for Timed {
    type Run = TimedRun;

    fn run(&self, taken: Taken<Vec<u32>>) -> TimedRun {
        let now = *lock(&self.0);
        let (parcel, index) = taken.first;
        if parcel.load[index as usize] != 0 {
            let mut seen = lock(&self.1);
            let at = seen
                .dealt
                .partition_point(|(first, _)| *first <= parcel.first_ordinal)
                - 1;
            let waited = now.0 / 1_000_000 - seen.dealt[at].1;
            seen.started += 1;
            seen.waited += waited;
            seen.longest = seen.longest.max(waited);
        }
        TimedRun(Arc::clone(&self.0), Arc::clone(&self.1), now + millis(1))
    }
}

impl Future for TimedRun {
    type Output = Outcome;

    fn poll(self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        if *lock(&self.0) >= self.2 {
            return Poll::Ready(Outcome::Ack);
        }
        lock(&self.1).asleep.push(cx.waker().clone());
        Poll::Pending
    }
}

struct Quiet;

impl Sink for Quiet {
    fn settled(&mut self, _: &Arc<Lease>, ranges: impl Iterator<Item = (u64, u64)>) {
        ranges.for_each(drop);
    }

    fn note(&mut self, note: Note) {
        panic!("{note:?}");
    }
}

/// Everything that happens in one millisecond.
fn turn(
    lanes: &mut Lanes<Vec<u32>>,
    runner: &mut Runner<Vec<u32>, Timed>,
    now: &Mutex<Now>,
    seen: &Mutex<Seen>,
) {
    let woken = std::mem::take(&mut lock(seen).asleep);
    woken.into_iter().for_each(Waker::wake);
    let now = *lock(now);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        let mut moved = false;
        while let Some((_, group)) = lanes.poll_run(now) {
            runner.give(group);
            moved = true;
        }
        while let Poll::Ready(done) = runner.poll(&mut cx, now, &mut || true) {
            moved = true;
            match done {
                Done::Group(group) => lanes.take_back(now, ExecutorId(0), group, &mut Quiet),
                Done::Late(lates) => lanes.late(now, ExecutorId(0), lates, &mut Quiet),
            }
        }
        if !moved {
            return;
        }
    }
}

/// Fairness: a hot key with a million records beside 1,000 cold ones. What the cold ones wait
/// stays within 1 ms (one handler's time) of what they wait alone, on the mean and at the longest.
#[test]
fn a_hot_key_does_not_hold_the_cold_ones_up() {
    let (alone, alone_longest) = cold_waits(0, 1000);
    let (beside, beside_longest) = cold_waits(1000, 1000);
    assert!(beside <= alone + 1.0, "{beside} ms, alone {alone} ms");
    assert!(
        beside_longest <= alone_longest + 1,
        "{beside_longest} ms, alone {alone_longest} ms"
    );
}

/// A hasher's unlucky neighbour: lanes are told apart by all 64 bits.
#[test]
fn keys_are_told_apart_by_all_their_bits() {
    let mut lanes: Lanes<()> = Lanes::new(&LanesConfig::new(Mode::PerKey { at_once: 4 }));
    let parcel = Arc::new(Parcel {
        lease: Lease::new(LeaseId(1)),
        first_ordinal: 0,
        taken_at: Now(0),
        len: 64,
        load: (),
    });
    let hashes: Vec<KeyHash> = (0..64).map(|bit| KeyHash::new(1 << bit)).collect();
    lanes.deal(&parcel, Keys::Each(&hashes));
    assert_eq!(lanes.load().keys, 64);
}
