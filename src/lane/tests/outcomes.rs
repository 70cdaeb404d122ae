//! What becomes of records that fail: retries, caps, dead letters, stops, time-outs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::scenarios::{ACK, fixed, keys, millis, two_lanes};
use super::world::{Act, Say, World, lock};
use crate::ids::{ExecutorId, LeaseId};
use crate::lane::{
    Done, Exhausted, Handler, HandlerError, KeyHash, Keys, Lanes, LanesConfig, Lease, LeaseState,
    Mode, Note, NowFn, Outcome, Outcomes, Panicked, Parcel, Retry, Runner, Sink, Taken,
    TakenRecord, TimedOut, Why,
};
use crate::time::Now;

fn all_modes() -> [Mode; 3] {
    [
        Mode::Fixed { lanes: 2 },
        Mode::Any { workers: 2 },
        Mode::InTurn,
    ]
}

fn with_dead_letters(mode: Mode) -> World {
    let mut config = LanesConfig::new(mode);
    config.dead_letters = true;
    World::new(&config)
}

/// P21: a dead letter's source does not settle, and nothing newer of its lane starts, before the
/// write is acknowledged; a write that fails is given out again at its time. Other lanes go on.
#[test]
fn dead_letters_hold_their_lane_until_written() {
    let mut world = with_dead_letters(Mode::Fixed { lanes: 8 });
    let (bad, good) = two_lanes(&world, 8);
    let lease = world.grant(0);
    world.tell([Act::Now(Say::DeadLetter)]);
    world.deal(lease, &keys(&[bad, bad, good, good]), false);
    world.run();
    assert_eq!(world.starts(), [(lease, 0), (lease, 2), (lease, 3)]);
    assert_eq!((world.watermark(lease), world.open(lease)), (0, 2));
    assert_eq!((world.lanes.load().held, world.lanes.load().out), (1, 0));
    let letter = &world.writes[0];
    assert_eq!((letter.ordinal(), letter.why), (0, Why::Asked));
    assert_eq!(letter.tried.error(), Some("no such account"));
    assert_eq!(letter.tried.attempts(), 1);
    assert!(world.written(0, Some(millis(700))));
    world.run();
    assert!(world.writes.is_empty(), "not before its time");
    assert_eq!(world.next_deadline(), Some(world.now + millis(700)));
    world.advance(millis(700));
    world.run();
    assert_eq!(world.writes.len(), 1);
    assert_eq!(world.starts().len(), 3);
    assert!(world.written(0, None));
    world.run();
    assert_eq!((world.watermark(lease), world.starts().len()), (4, 4));
    world.finish();
}

/// P21: with attempts run out and a place for dead letters a record goes there by itself.
#[test]
#[cfg_attr(not(panic = "unwind"), ignore = "a panic ends the program here")]
fn exhausted_records_become_dead_letters() {
    for mode in all_modes() {
        let mut config = LanesConfig::new(mode);
        config.dead_letters = true;
        config.retry = Retry::fixed(millis(10)).max_attempts(3);
        let mut world = World::new(&config);
        let lease = world.grant(0);
        world.tell([Act::Now(Say::Fail), Act::PanicInPoll, Act::Now(Say::Fail)]);
        world.deal(lease, &keys(&[0]), false);
        for _ in 0..2 {
            world.run();
            world.advance(millis(10));
        }
        world.run();
        let letter = &world.writes[0];
        assert_eq!((letter.why, letter.tried.attempts()), (Why::Attempts, 3));
        assert_eq!(letter.tried.error(), Some("as told"));
        assert_eq!(world.open(lease), 1);
        world.finish();
        assert_eq!((world.watermark(lease), world.starts().len()), (1, 3));
    }
}

/// Dead letters without a place for them stop the subscription; the record stays open.
#[test]
fn dead_letters_without_a_topic_stop() {
    for (mode, say) in all_modes().into_iter().zip([Say::DeadLetter; 3]) {
        let mut world = World::new(&LanesConfig::new(mode));
        let lease = world.grant(0);
        world.tell([Act::Now(say)]);
        world.deal(lease, &keys(&[0, 0]), true);
        world.run();
        let noted = matches!(
            world.ledger.notes[..],
            [Note::GaveUp {
                then: Exhausted::Stop,
                why: Why::NoDeadLetters,
                ordinal: 0,
                ..
            }]
        );
        assert!(noted, "{:?}", world.ledger.notes);
        assert_eq!(world.watermark(lease), 0);
        assert!(world.lanes.poll_dead_letter().is_none());
    }
}

/// `Outcome::Stop`: told with the record, which stays open; nothing newer of its lane starts.
#[test]
fn stop_leaves_the_record_open() {
    let mut world = World::new(&fixed(1));
    let lease = world.grant(0);
    world.tell([ACK, Act::Now(Say::Stop)]);
    world.deal(lease, &keys(&[0, 0, 0]), false);
    world.run();
    let noted = matches!(
        world.ledger.notes[..],
        [Note::GaveUp {
            then: Exhausted::Stop,
            why: Why::Asked,
            ordinal: 1,
            attempts: 1,
            ..
        }]
    );
    assert!(noted, "{:?}", world.ledger.notes);
    assert_eq!((world.watermark(lease), world.starts().len()), (1, 2));
    assert_eq!(world.next_deadline(), None);
}

/// The cap that only tells: the record goes on being tried, and the cap is told of once.
#[test]
fn keep_goes_on_after_the_cap() {
    let mut config = fixed(1);
    config.retry = Retry::fixed(millis(10))
        .max_attempts(3)
        .then(Exhausted::Keep);
    let mut world = World::new(&config);
    let lease = world.grant(0);
    world.tell([Act::Now(Say::Fail); 9]);
    world.deal(lease, &keys(&[0]), false);
    world.run_out();
    assert_eq!((world.starts().len(), world.watermark(lease)), (10, 1));
    let caps = world.ledger.notes.iter().filter(|n| {
        matches!(
            n,
            Note::GaveUp {
                then: Exhausted::Keep,
                attempts: 3,
                ..
            }
        )
    });
    assert_eq!(caps.count(), 1);
    world.finish();
}

/// A cap on age counts from the first failure.
#[test]
fn a_record_that_fails_for_too_long_is_given_up() {
    let mut config = fixed(1);
    config.retry = Retry::fixed(millis(400))
        .max_age(Duration::from_secs(1))
        .or_drop();
    let mut world = World::new(&config);
    let lease = world.grant(0);
    world.advance(Duration::from_secs(3600));
    world.otherwise(Act::Now(Say::Fail));
    world.deal(lease, &keys(&[0]), false);
    world.run_out();
    assert_eq!(world.starts().len(), 4, "at 0, 400, 800 and 1200 ms");
    assert_eq!(world.watermark(lease), 1);
}

/// E33: of one batch some are acked, one is to run again and one is a dead letter: nothing newer
/// of the lane starts before both are through, whichever comes first.
#[test]
fn a_batch_of_every_outcome_keeps_the_lanes_order() {
    for write_first in [true, false] {
        let mut config = fixed(1);
        config.batch_max = 4;
        config.dead_letters = true;
        let mut world = World::new(&config);
        let lease = world.grant(0);
        world.tell([Act::Now(Say::DeadLetter)]);
        world.deal(lease, &keys(&[0; 6]), false);
        world.run();
        assert_eq!(
            (world.starts().len(), world.writes.len()),
            (4, 4),
            "a batch that fails as one"
        );
        for _ in 0..3 {
            world.written(0, None);
            world.run();
        }
        assert_eq!((world.starts().len(), world.watermark(lease)), (4, 3));
        match write_first {
            true => drop(world.written(0, None)),
            false => drop(world.written(0, Some(millis(1)))),
        }
        world.run();
        assert_eq!(world.starts().len(), if write_first { 6 } else { 4 });
        world.finish();
        assert_eq!(world.watermark(lease), 6);
    }
}

/// What ends with a drop while its lease is being drained is done with, as any result counts then;
/// what would run again, or be written, stays open for whoever gets the partition.
#[test]
fn a_last_attempt_that_fails_in_a_drain_is_dropped() {
    let of = |how, attempts, say| {
        let mut config = fixed(1);
        config.dead_letters = true;
        config.retry = Retry::fixed(millis(10)).max_attempts(attempts).or_drop();
        let mut world = World::new(&config);
        let lease = world.grant(0);
        world.tell([Act::Wait]);
        world.deal(lease, &keys(&[0, 0]), false);
        world.run();
        world.end_lease(lease, how);
        let runs = world.waiting();
        world.complete(runs[0], say);
        world.run();
        assert_eq!(world.next_deadline(), None, "nothing is tried again");
        world.watermark(lease)
    };
    use LeaseState::{Draining, Lost};
    assert_eq!(of(Draining, 1, Say::Fail), 1, "the cap: dropped");
    assert_eq!(of(Draining, 1, Say::Drop), 1);
    assert_eq!(of(Draining, 2, Say::Fail), 0, "there is another attempt");
    assert_eq!(of(Draining, 1, Say::DeadLetter), 0, "nothing is written");
    assert_eq!(of(Lost, 1, Say::Fail), 0, "not ours any more");
}

/// A drain waits for the write that is under way and counts it; what waits for its next try is
/// left open. Under a lost lease the write's word means nothing.
#[test]
fn dead_letters_and_the_end_of_a_lease() {
    for how in [LeaseState::Draining, LeaseState::Lost] {
        let mut world = with_dead_letters(Mode::Fixed { lanes: 8 });
        let (a, b) = two_lanes(&world, 8);
        let lease = world.grant(0);
        world.tell([Act::Now(Say::DeadLetter); 2]);
        world.deal(lease, &keys(&[a, b, a]), false);
        world.run();
        assert_eq!(world.writes.len(), 2);
        world.written(1, Some(millis(5)));
        let arc = Arc::clone(&world.ledger.leases[&lease].lease);
        assert_eq!(world.lanes.in_executors(&arc), 1);
        world.end_lease(lease, how);
        let lost = how == LeaseState::Lost;
        assert_eq!(world.lanes.load().held, usize::from(!lost));
        assert_eq!(world.lanes.in_executors(&arc), u64::from(!lost));
        assert_eq!(world.written(0, None), !lost);
        assert_eq!(world.watermark(lease), i64::from(!lost));
        assert_eq!(world.lanes.load(), Default::default());
        assert_eq!(world.next_deadline(), None, "no timer is left");
        let next = world.grant(0);
        world.deal(next, &keys(&[a, b]), false);
        world.finish();
        assert_eq!(world.watermark(next), 2, "the lanes live on");
    }
}

/// E02: lanes that wait for a retry or a dead letter are bounded: at the bound no more is wanted,
/// and more is once one of them goes on.
#[test]
fn parked_lanes_are_bounded() {
    let mut config = fixed(512);
    config.parked_max = 100;
    config.dead_letters = true;
    let mut world = World::new(&config);
    let lease = world.grant(0);
    world.otherwise(Act::Now(Say::Retry));
    let taken = |world: &World| world.lanes.load().parked + world.lanes.load().held;
    let mut key = 0;
    while world.lanes.wants_more() {
        assert!(taken(&world) < 100);
        if key == 50 {
            world.otherwise(Act::Now(Say::DeadLetter));
        }
        world.deal(lease, &keys(&[key]), false);
        world.run();
        key += 1;
    }
    assert_eq!(taken(&world), 100);
    assert!(world.lanes.load().held > 0 && world.lanes.load().parked > 0);
    world.written(0, None);
    world.run();
    assert!(world.lanes.wants_more(), "one has gone on");
    world.finish();
}

/// What a handler sees of earlier runs: their number and the last error, in a batch for each.
#[test]
fn attempts_and_errors_are_seen_again() {
    let mut config = fixed(1);
    config.batch_max = 3;
    config.retry = Retry::fixed(millis(1));
    let mut lanes = Lanes::new(&config);
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut runner = Runner::new(Fails(Arc::clone(&seen)), &config.runner());
    let lease = Lease::new(LeaseId(1));
    let parcel = Arc::new(Parcel {
        lease,
        first_ordinal: 0,
        taken_at: Now(0),
        len: 3,
        load: (),
    });
    lanes.deal(&parcel, Keys::Same(KeyHash::new(9)));
    let mut now = Now(0);
    while lock(&seen).len() < 9 {
        turn(&mut lanes, &mut runner, now);
        now = now + millis(1);
        lanes.handle_timeout(now);
    }
    let first: Vec<Run> = lock(&seen).clone();
    for (n, (index, attempts, error)) in first.into_iter().enumerate() {
        let run = n as u32 / 3;
        assert_eq!((index, attempts), (n as u32 % 3, run));
        assert_eq!(
            error,
            (run > 0).then(|| format!("run {} of {index}", run - 1))
        );
    }
}

/// Fails each record in words of its own.
struct Fails(Arc<std::sync::Mutex<Vec<Run>>>);

/// Index, attempts before, the last error.
type Run = (u32, u32, Option<String>);

impl Handler<()> for Fails {
    type Run = std::future::Ready<Outcomes>;

    fn run(&self, taken: Taken<()>) -> Self::Run {
        let each = |r: TakenRecord<'_, ()>| {
            let attempts = r.tried.map_or(0, |t| t.attempts());
            let error = r.tried.and_then(|t| t.error()).map(str::to_owned);
            lock(&self.0).push((r.index, attempts, error));
            Outcome::failed(format!("run {attempts} of {}", r.index))
        };
        std::future::ready(Outcomes::Each(taken.records().map(each).collect()))
    }
}

#[derive(Default)]
struct Told {
    settled: Vec<u64>,
    notes: Vec<Note>,
}

impl Sink for Told {
    fn settled(&mut self, _: &Arc<Lease>, ranges: impl Iterator<Item = (u64, u64)>) {
        self.settled
            .extend(ranges.flat_map(|(first, len)| first..first + len));
    }

    fn note(&mut self, note: Note) {
        self.notes.push(note);
    }
}

fn turn<H: Handler<()>>(lanes: &mut Lanes<()>, runner: &mut Runner<(), H>, now: Now) -> Told {
    let mut told = Told::default();
    while let Some((_, group)) = lanes.poll_run(now) {
        runner.give(group);
    }
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(done) = runner.poll(&mut cx, now, &mut || true) {
        match done {
            Done::Group(group) => lanes.take_back(now, ExecutorId(0), group, &mut told),
            Done::Late(lates) => lanes.late(now, ExecutorId(0), lates, &mut told),
        }
    }
    told
}

/// The policy sees errors, panics and time-outs by their type, and what it says is done; its own
/// panic is a failure.
#[test]
#[cfg_attr(not(panic = "unwind"), ignore = "a panic ends the program here")]
fn the_error_policy_decides() {
    let mut config = fixed(1);
    config.timeout = Some(millis(50));
    config.dead_letters = true;
    let mut lanes = Lanes::new(&config);
    let mut runner = Runner::new(Judged, &config.runner());
    let lease = Lease::new(LeaseId(1));
    let deal = |lanes: &mut Lanes<()>, first: u64, len: u32| {
        let lease = Arc::clone(&lease);
        let parcel = Arc::new(Parcel {
            lease,
            first_ordinal: first,
            taken_at: Now(0),
            len,
            load: (),
        });
        lanes.deal(&parcel, Keys::Same(KeyHash::new(9)));
    };
    deal(&mut lanes, 0, 4);
    let told = turn(&mut lanes, &mut runner, Now(0));
    assert_eq!(told.settled, [0, 1], "an error dropped, a panic acked");
    let told = turn(&mut lanes, &mut runner, Now(0) + millis(50));
    assert_eq!(told.settled, [] as [u64; 0]);
    let letter = lanes.poll_dead_letter().expect("the third timed out");
    assert_eq!(
        (letter.ordinal(), letter.tried.error()),
        (2, Some("the handler took longer than 50ms"))
    );
    assert_eq!(lanes.timed_out(), 1);
    lanes.dead_letter_done(letter.id, &mut Told::default());
    let told = turn(&mut lanes, &mut runner, Now(0) + millis(60));
    let [
        Note::Retrying {
            ordinal: 3,
            panicked: true,
            reason,
            ..
        },
    ] = &told.notes[..]
    else {
        panic!("{:?}", told.notes);
    };
    assert_eq!(reason.as_deref(), Some("the policy's own"));
}

/// Fails by index: an error, a panic, for ever pending, an error that the policy panics on.
struct Judged;

struct JudgedRun(u32);

impl Future for JudgedRun {
    type Output = Result<Outcomes, String>;

    fn poll(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0 {
            0 => Poll::Ready(Err("broken".to_owned())),
            1 => panic!("at the second"),
            2 => Poll::Pending,
            _ => Poll::Ready(Err("odd".to_owned())),
        }
    }
}

impl Handler<()> for Judged {
    type Run = JudgedRun;

    fn run(&self, taken: Taken<()>) -> JudgedRun {
        JudgedRun(taken.first.1)
    }

    fn on_error(&self, record: &TakenRecord<'_, ()>, error: &dyn HandlerError) -> Outcome {
        if let Some(Panicked(words)) = error.downcast_ref() {
            assert!(words == "at the second" || record.index == 3, "{words}");
            return match record.index {
                3 => Outcome::Retry,
                _ => Outcome::Ack,
            };
        }
        if let Some(TimedOut(after)) = error.downcast_ref() {
            return Outcome::dead_letter(TimedOut(*after).to_string());
        }
        assert!(record.index != 3, "the policy's own");
        Outcome::Drop
    }
}

/// E38: a handler that never ends is dropped at its time-out and counts as failed, whatever lane
/// it is in; a result that is there when the time is up counts. Its lane goes on with the retry.
#[test]
fn handlers_that_take_too_long_are_dropped() {
    for mode in all_modes() {
        let mut config = LanesConfig::new(mode);
        config.timeout = Some(Duration::from_secs(1));
        config.retry = Retry::fixed(millis(10));
        let mut world = World::new(&config);
        let lease = world.grant(0);
        world.tell([Act::Wait, Act::Wait]);
        world.deal(lease, &keys(&[0, 0]), true);
        world.run();
        assert_eq!(
            world.next_deadline(),
            Some(world.now + Duration::from_secs(1))
        );
        world.advance(millis(999));
        world.run();
        assert!(world.ledger.notes.is_empty());
        world.advance(millis(1));
        world.run();
        let Some(Note::Retrying {
            reason,
            attempts: 1,
            ordinal: 0,
            ..
        }) = world.ledger.notes.first()
        else {
            panic!("{mode:?}: {:?}", world.ledger.notes);
        };
        assert_eq!(reason.as_deref(), Some("the handler took longer than 1s"));
        assert!(world.lanes.timed_out() >= 1);
        world.run_out();
        world.finish();
        assert_eq!(world.watermark(lease), 2);
    }
    let mut config = fixed(1);
    config.timeout = Some(Duration::from_secs(1));
    let mut world = World::new(&config);
    let lease = world.grant(0);
    world.tell([Act::Wait]);
    world.deal(lease, &keys(&[0]), false);
    world.run();
    let run = world.waiting()[0];
    world.complete(run, Say::Ack);
    world.advance(Duration::from_secs(5));
    world.run();
    assert_eq!((world.watermark(lease), world.lanes.timed_out()), (1, 0));
    world.finish();
}

/// A call that blocks its thread cannot be dropped: its lane waits until it returns, and what it
/// returns too late counts for nothing.
#[test]
fn a_blocking_call_that_returns_too_late_has_failed() {
    let clock = Arc::new(AtomicU64::new(0));
    let mut config = fixed(1);
    config.blocking = true;
    config.timeout = Some(Duration::from_secs(1));
    let mut lanes = Lanes::new(&config);
    let mut runner_config = config.runner();
    let read = Arc::clone(&clock);
    runner_config.clock = Some(NowFn(Arc::new(move || Now(read.load(Ordering::SeqCst)))));
    let mut runner = Runner::new(Blocks(Arc::clone(&clock)), &runner_config);
    let lease = Lease::new(LeaseId(1));
    let parcel = Arc::new(Parcel {
        lease,
        first_ordinal: 0,
        taken_at: Now(0),
        len: 2,
        load: (),
    });
    lanes.deal(&parcel, Keys::Same(KeyHash::new(9)));
    let told = turn(&mut lanes, &mut runner, Now(0));
    assert_eq!(told.settled, [0], "it took just as long as it may");
    assert!(matches!(
        told.notes[..],
        [Note::Retrying {
            ordinal: 1,
            attempts: 1,
            ..
        }]
    ));
    assert_eq!(lanes.timed_out(), 1);
}

/// Takes one second, then two.
struct Blocks(Arc<AtomicU64>);

impl Handler<()> for Blocks {
    type Run = std::future::Ready<Outcomes>;

    fn run(&self, taken: Taken<()>) -> Self::Run {
        let took = u64::from(taken.first.1 + 1) * 1_000_000_000;
        self.0.fetch_add(took, Ordering::SeqCst);
        std::future::ready(Outcomes::All(Outcome::Ack))
    }
}

/// E33: one outcome for each record of a batch, every kind of them at once: what passed settles, what
/// is dead is written, what failed runs again at its own time, and nothing newer of the lane starts
/// before all of them are through. While the lease drains, what passed settles and that is all.
#[test]
fn each_record_of_a_batch_has_an_outcome_of_its_own() {
    struct Each(Arc<AtomicU64>, bool);
    impl Handler<()> for Each {
        type Run = std::future::Ready<Vec<Outcome>>;

        fn run(&self, taken: Taken<()>) -> Self::Run {
            if self.1 {
                // The group takes the partition back while the batch runs.
                taken.first.0.lease.lower(LeaseState::Draining);
            }
            let outcome = |record: TakenRecord<'_, ()>| {
                self.0.fetch_add(1, Ordering::SeqCst);
                match (record.index, record.tried.is_some()) {
                    (1, _) => Outcome::dead_letter("no such account"),
                    (2, false) => Outcome::failed("not yet"),
                    (3, _) => Outcome::Drop,
                    (4, false) => Outcome::RetryAfter(millis(70)),
                    _ => Outcome::Ack,
                }
            };
            std::future::ready(taken.records().map(outcome).collect())
        }
    }
    #[derive(Default)]
    struct Settled(Vec<u64>, Vec<Note>);
    impl Sink for Settled {
        fn settled(&mut self, _: &Arc<Lease>, ranges: impl Iterator<Item = (u64, u64)>) {
            self.0
                .extend(ranges.flat_map(|(first, len)| first..first + len));
        }

        fn note(&mut self, note: Note) {
            self.1.push(note);
        }
    }
    for drains in [false, true] {
        let mut config = fixed(1);
        (config.batch_max, config.dead_letters) = (5, true);
        config.retry = Retry::fixed(millis(30));
        let mut lanes = Lanes::new(&config);
        let runs = Arc::new(AtomicU64::new(0));
        let mut runner = Runner::new(Each(Arc::clone(&runs), drains), &config.runner());
        let lease = Lease::new(LeaseId(1));
        let parcel = Arc::new(Parcel {
            lease: Arc::clone(&lease),
            first_ordinal: 0,
            taken_at: Now(0),
            len: 8,
            load: (),
        });
        lanes.deal(&parcel, Keys::Same(KeyHash::new(9)));
        let mut settled = Settled::default();
        let mut turn = |lanes: &mut Lanes<()>, now: Now, settled: &mut Settled| {
            let mut cx = Context::from_waker(Waker::noop());
            while let Some((executor, group)) = lanes.poll_run(now) {
                runner.give(group);
                while let Poll::Ready(done) = runner.poll(&mut cx, now, &mut || true) {
                    match done {
                        Done::Group(group) => lanes.take_back(now, executor, group, settled),
                        Done::Late(lates) => lanes.late(now, executor, lates, settled),
                    }
                }
            }
        };
        turn(&mut lanes, Now(0), &mut settled);
        settled.0.sort_unstable();
        assert_eq!(settled.0, [0, 3]);
        assert_eq!(runs.load(Ordering::SeqCst), 5);
        let letter = lanes.poll_dead_letter();
        if drains {
            lanes.end_lease(&lease, LeaseState::Draining);
            assert!(letter.is_none(), "nothing is written any more");
            assert_eq!(lanes.load(), Default::default());
            assert_eq!(lanes.next_deadline(), None, "nothing runs again");
            continue;
        }
        let letter = letter.unwrap();
        assert_eq!(letter.ordinal(), 1);
        lanes.handle_timeout(Now(0) + millis(30));
        turn(&mut lanes, Now(0) + millis(30), &mut settled);
        assert_eq!(settled.0.len(), 2, "the lane waits for the write");
        assert!(lanes.dead_letter_done(letter.id, &mut settled));
        let mut now = Now(0) + millis(30);
        while lanes.load() != Default::default() {
            turn(&mut lanes, now, &mut settled);
            assert!(settled.0.iter().all(|o| *o < 5) || now >= Now(0) + millis(70));
            now = lanes.next_deadline().unwrap_or(now);
            lanes.handle_timeout(now);
        }
        assert_eq!(now, Now(0) + millis(70));
        let order: Vec<u64> = settled.0[2..].to_vec();
        assert_eq!(order, [1, 2, 4, 5, 6, 7]);
        assert_eq!(runs.load(Ordering::SeqCst), 10);
    }
}
