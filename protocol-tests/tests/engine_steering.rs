//! A running subscription is steered: paused, sought, given more or fewer workers, asked how it
//! stands, and watched for what runs too long.

use laneway::broker::{Fault, Rule};
use laneway::engine::{
    Command, Event, HoldupState, InFlight, LaneKey, Scope, SeekTo, Snapshot, Source,
};
use laneway::ids::TopicPartition;
use laneway::lane::{Mode, Retry};
use laneway::time::Now;
use laneway::{Error, ErrorKind, Outcome};
use laneway_protocol_tests::setting::{MINUTE, always, millis, secs};
use laneway_protocol_tests::{Handled, Plan, Script, World};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const FETCH: i16 = 1;
const OFFSET_COMMIT: i16 = 8;

fn partition(p: i32) -> Scope {
    ("t", p).into()
}

fn pause(what: Scope) -> Command {
    Command::Pause { what }
}

fn resume(what: Scope) -> Command {
    Command::Resume { what }
}

fn seek(what: Scope, to: SeekTo, running: InFlight) -> Command {
    Command::Seek { what, to, running }
}

/// Gives a command and waits for its answer.
fn ask(world: &mut World, id: u64, command: Command) -> Result<(), Error> {
    world.command(0, id, command);
    let answered = |w: &World| w.replies(0).iter().any(|(at, _)| at.0 == id);
    world.run_until(MINUTE * 2, answered);
    let mut replies = world.replies(0).iter();
    replies.find(|(at, _)| at.0 == id).unwrap().1.clone()
}

fn runs_of(world: &World, p: i32) -> Vec<Handled> {
    let runs = world.handled().into_iter();
    runs.filter(|h| h.partition.partition == p).collect()
}

fn offsets(world: &World, p: i32) -> Vec<i64> {
    runs_of(world, p).iter().map(|h| h.offset).collect()
}

/// Runs of a partition that began after `from`.
fn begun_after(world: &World, p: i32, from: Now) -> usize {
    let runs = runs_of(world, p).into_iter();
    runs.filter(|h| h.began > from).count()
}

fn snapshot(world: &World) -> Snapshot {
    world.engine(0).snapshot(world.now())
}

/// Records that ran at once at most, of those that took time.
fn peak(runs: &[Handled], from: Now) -> usize {
    let mut edges = Vec::new();
    for run in runs.iter().filter(|r| r.began >= from) {
        if let Some(ended) = run.ended.filter(|at| *at > run.began) {
            edges.push((run.began, 1));
            edges.push((ended, -1));
        }
    }
    edges.sort_unstable();
    let mut now = 0i32;
    let counts = edges.iter().map(|(_, step)| {
        now += step;
        now
    });
    counts.max().unwrap_or(0) as usize
}

/// E30, F36: nothing of a paused partition starts, what runs of it ends and is committed, the
/// others flow, and it goes on where it was, each record once. In lanes of every kind.
#[test]
fn a_paused_partition_starts_nothing_and_goes_on_where_it_was() {
    for (kind, (mode, key, threads)) in [
        (Mode::Fixed { lanes: 8 }, LaneKey::RecordKey, false),
        (Mode::Fixed { lanes: 1 }, LaneKey::Partition, false),
        (Mode::Fixed { lanes: 3 }, LaneKey::RecordKey, true),
        (Mode::Any { workers: 5 }, LaneKey::Partition, false),
        (Mode::InTurn, LaneKey::Partition, false),
    ]
    .into_iter()
    .enumerate()
    {
        let mut world = World::with_topic(1, 2, 200 + kind as u64);
        world.fill(2, 400, 20);
        let mut config = world.config();
        (config.mode, config.lane_key) = (mode, key);
        config.one_lane_groups = threads;
        config.executors = if mode == Mode::InTurn { 1 } else { 2 };
        world.join(config, always(Plan::ack(millis(10))));
        world.run_until(MINUTE, |w| runs_of(w, 0).len() > 20);
        ask(&mut world, 1, pause(partition(0))).unwrap();
        let paused = world.now();
        let runs = runs_of(&world, 0);
        let running = runs.iter().filter(|r| r.ended.is_none()).count();
        world.run_until(MINUTE, |w| w.committed(1) == 200);
        world.run_for(secs(20));
        assert_eq!(begun_after(&world, 0, paused), 0, "{mode:?}: while paused");
        let now = snapshot(&world);
        let p = &now.partitions[0];
        assert!(p.paused && !now.partitions[1].paused);
        assert!(
            p.watermark < 200 && p.watermark == world.committed(0),
            "{now:?}"
        );
        assert!(runs_of(&world, 0).iter().all(|r| r.ended.is_some()));
        assert!(running > 0, "the pause was meant to find something running");
        // It stands still without asking for anything.
        let before = world.cluster.requests(FETCH);
        world.run_for(MINUTE);
        assert!(world.cluster.requests(FETCH) - before < 150, "{mode:?}");
        ask(&mut world, 2, resume(partition(0))).unwrap();
        world.run_until(MINUTE, |w| w.all_committed(2));
        assert_eq!(world.settlings(), 400, "{mode:?}: each once");
        world.assert_idle(0);
    }
}

/// E30: a pause holds across a rebalance, where the partition stays ours and where it comes back.
#[test]
fn a_pause_outlives_rebalances() {
    for assignor in [
        laneway::group::AssignorKind::Range,
        laneway::group::AssignorKind::CooperativeSticky,
    ] {
        let mut world = World::with_topic(1, 4, 210);
        world.fill(4, 40, 4);
        let mut config = world.config();
        config.assignors = vec![assignor];
        world.join(config.clone(), always(Plan::ack(millis(1))));
        ask(&mut world, 1, pause(Scope::All)).unwrap();
        world.run_until(MINUTE, |w| snapshot(w).partitions.len() == 4);
        world.join(config, always(Plan::ack(millis(1))));
        world.run_until(MINUTE, |w| snapshot(w).partitions.len() == 2);
        world.run_for(secs(10));
        assert!(world.handled().iter().all(|h| h.member == 1));
        assert!(snapshot(&world).partitions.iter().all(|p| p.paused));
        let now = world.now();
        let deadline = now + secs(5);
        world.command(1, 1, Command::Close { deadline });
        world.run_until(MINUTE, |w| snapshot(w).partitions.len() == 4);
        world.run_for(secs(10));
        assert!(world.handled().iter().all(|h| h.member == 1));
        ask(&mut world, 2, resume("t".into())).unwrap();
        world.run_until(MINUTE, |w| w.all_committed(4));
        assert_eq!(world.settlings(), 40);
    }
}

/// F36, E30: partitions are paused and resumed again and again, at any moment, while records fail
/// and are tried again: order, attempts and exactness hold.
#[test]
fn pauses_at_any_moment_keep_order_and_attempts() {
    for seed in 0..12u64 {
        let mut world = World::with_topic(1, 3, 220 + seed);
        world.fill(3, 600, 24);
        let mut config = world.config();
        config.mode = Mode::Fixed { lanes: 5 };
        config.one_lane_groups = seed % 3 == 2;
        config.retry = Retry::exponential(millis(1), millis(20));
        let script: Script = Arc::new(|_, r| {
            let of = (r.offset() * 31 + i64::from(r.partition())) % 11;
            match of {
                0 if r.attempt() < 3 => Plan::at_once(Outcome::Retry),
                1 | 2 => Plan::ack(millis(3)),
                3 => Plan::ack(millis(25)),
                _ => Plan::ack(Duration::ZERO),
            }
        });
        world.join(config, script);
        let mut dice = seed * 7919 + 1;
        for step in 0..300u64 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            world.run_for(Duration::from_micros((dice >> 33) % 6000));
            let p = ((dice >> 20) % 3) as i32;
            let what = match (dice >> 17) % 6 {
                0 => Scope::All,
                _ => partition(p),
            };
            let command = match (dice >> 14) % 2 {
                0 => pause(what),
                _ => resume(what),
            };
            world.command(0, step, command);
        }
        world.command(0, 1000, resume(Scope::All));
        world.run_until(MINUTE, |w| w.all_committed(3));
        assert_eq!(world.settlings(), 600, "seed {seed}");
        for run in world.handled() {
            assert!(run.attempt <= 3, "seed {seed}: {run:?}");
        }
        world.assert_idle(0);
    }
}

/// E30: a drain does not wait for what is paused, and a close commits what ran of it.
#[test]
fn a_drain_leaves_what_is_paused() {
    let mut world = World::with_topic(1, 2, 240);
    world.fill(2, 200, 8);
    let config = world.config();
    world.join(config, always(Plan::ack(millis(20))));
    world.run_until(MINUTE, |w| w.ended() > 10);
    ask(&mut world, 1, pause(partition(0))).unwrap();
    let paused = world.now();
    world.command(0, 2, Command::Drain);
    world.run_until(MINUTE, |w| w.finished(0).is_some());
    assert!(world.finished(0).unwrap().is_ok());
    assert_eq!(begun_after(&world, 0, paused), 0);
    let ran = runs_of(&world, 0).len() as i64;
    assert!(world.committed(0) <= ran && world.committed(0) > 0);
}

/// F12: a seek back, forward, by time, to the beginning and to the end: what runs ends first and is
/// committed where it belongs; then every record comes from the new place.
#[test]
fn a_seek_drains_what_runs_and_goes_on_elsewhere() {
    let mut world = World::with_topic(1, 1, 250);
    world.fill(1, 100, 10);
    let mut config = world.config();
    config.mode = Mode::Fixed { lanes: 1 };
    world.join(config, always(Plan::ack(millis(20))));
    world.run_until(MINUTE, |w| w.ended() == 50);
    world.may_go_back("t", 0);
    let (to, running) = (SeekTo::Offset(10), InFlight::Drain);
    let before = world.handled().len();
    ask(&mut world, 1, seek(partition(0), to, running)).unwrap();
    assert_eq!(
        world.handled().len() as i64,
        world.committed(0),
        "what ran is committed"
    );
    assert!(before <= 52);
    world.run_until(MINUTE, |w| w.ended() == 70);
    let seen = offsets(&world, 0);
    let at = before..before + 15;
    assert_eq!(
        seen[at],
        (10..25).collect::<Vec<_>>(),
        "from the new place on"
    );
    assert_eq!(granted(&world), [0, 10]);
    assert!(
        world.committed(0) < 50,
        "commits follow: {}",
        world.committed(0)
    );

    world.skip_below("t", 0, 90);
    let to = SeekTo::Offset(90);
    ask(&mut world, 2, seek(Scope::All, to, InFlight::Drain)).unwrap();
    world.run_until(MINUTE, |w| w.committed(0) == 100);
    assert_eq!(world.handled_last().unwrap().offset, 99);

    let seen = world.handled().len();
    ask(
        &mut world,
        3,
        seek("t".into(), SeekTo::Beginning, InFlight::Drain),
    )
    .unwrap();
    world.run_until(MINUTE, |w| w.handled().len() > seen + 3);
    assert_eq!(offsets(&world, 0)[seen..seen + 3], [0, 1, 2]);

    ask(
        &mut world,
        4,
        seek("t".into(), SeekTo::End, InFlight::Drain),
    )
    .unwrap();
    let seen = world.handled().len();
    world.run_for(secs(5));
    assert_eq!(world.handled().len(), seen, "nothing is left to read");
    world.fill(1, 2, 1);
    world.run_until(MINUTE, |w| w.committed(0) == 102);
    assert_eq!(offsets(&world, 0)[seen..], [100, 101]);

    let far = SeekTo::Timestamp(i64::MAX);
    ask(&mut world, 5, seek("t".into(), far, InFlight::Drain)).unwrap();
    world.run_for(secs(5));
    assert_eq!(world.handled().len(), seen + 2);
    world.assert_idle(0);
}

fn granted(world: &World) -> Vec<i64> {
    let events = world.events(0).iter();
    events
        .filter_map(|e| match e {
            Event::Granted { offset, .. } => Some(*offset),
            _ => None,
        })
        .collect()
}

/// E26: a seek that drops goes at once, however long handlers would run; what they return counts
/// for nothing, and it waits for the old run before the lane's next record.
#[test]
fn a_seek_that_drops_waits_for_nobody() {
    let mut world = World::with_topic(1, 1, 260);
    world.fill(1, 20, 4);
    let mut config = world.config();
    config.mode = Mode::Fixed { lanes: 256 };
    let script: Script = Arc::new(|_, r| match r.offset() {
        5 if r.attempt() == 1 => Plan::ack(secs(3600)),
        _ => Plan::ack(millis(1)),
    });
    world.join(config, script);
    world.run_until(MINUTE, |w| w.ended() == 16);
    world.may_go_back("t", 0);
    world.skip_below("t", 0, 10);
    let before = world.now();
    let drop = seek(partition(0), SeekTo::Offset(10), InFlight::Drop);
    ask(&mut world, 1, drop).unwrap();
    assert!(world.now().since(before) < millis(1), "at once");
    world.run_until(MINUTE, |w| w.committed(0) == 20);
    let abandoned = |e: &&Event| matches!(e, Event::Abandoned { records: 1.., .. });
    assert_eq!(world.events(0).iter().filter(abandoned).count(), 1);
    world.assert_idle(0);
}

/// E29: a seek whose handlers outlive `drain_max` takes place then; of two seeks of one partition
/// the later counts; both are answered.
#[test]
fn the_later_of_two_seeks_counts_and_neither_waits_for_ever() {
    let mut world = World::with_topic(1, 1, 270);
    world.fill(1, 40, 4);
    let mut config = world.config();
    config.drain_max = secs(5);
    config.mode = Mode::Fixed { lanes: 256 };
    let script: Script = Arc::new(|_, r| match r.offset() {
        5 => Plan::ack(secs(3600)),
        _ => Plan::ack(millis(1)),
    });
    world.join(config, script);
    world.run_until(MINUTE, |w| w.ended() == 31);
    world.may_go_back("t", 0);
    world.skip_below("t", 0, 30);
    let to = |offset| seek(partition(0), SeekTo::Offset(offset), InFlight::Drain);
    world.command(0, 1, to(10));
    let from = world.now();
    world.run_for(secs(1));
    ask(&mut world, 2, to(30)).unwrap();
    assert!(world.now().since(from) < secs(6));
    assert!(world.replies(0).iter().all(|(_, r)| r.is_ok()));
    assert_eq!(world.replies(0).len(), 2);
    world.run_until(MINUTE, |w| w.committed(0) == 40);
    assert_eq!(granted(&world), [0, 30]);
}

/// E29: a partition is revoked while a seek waits for what runs: the group gets it in time, and
/// who waits for the seek is told so.
#[test]
fn a_revoke_overtakes_a_seek() {
    let mut world = World::with_topic(1, 2, 280);
    world.fill(2, 40, 2);
    let mut config = world.config();
    config.drain_max = secs(20);
    config.rebalance_timeout = secs(30);
    let stuck = Arc::new(AtomicUsize::new(0));
    let script: Script = Arc::new(move |_, r| match r.offset() {
        5 if stuck.fetch_add(1, Ordering::Relaxed) < 2 => Plan::ack(secs(3600)),
        _ => Plan::ack(millis(1)),
    });
    world.join(config.clone(), script.clone());
    world.run_until(MINUTE, |w| w.ended() >= 10);
    let to = seek(Scope::All, SeekTo::Offset(0), InFlight::Drain);
    world.command(0, 1, to);
    world.join(config, script);
    let answered = |w: &World| w.replies(0).len() == 1;
    world.run_until(MINUTE, answered);
    let error = world.replies(0)[0].1.clone().unwrap_err();
    assert!(
        error.is_retriable() && error.to_string().contains("seek again"),
        "{error}"
    );
    world.run_until(MINUTE * 3, |w| w.all_committed(2));
}

/// F36: a seek in a paused partition moves it and leaves it paused.
#[test]
fn a_paused_partition_is_sought_and_stays_paused() {
    let mut world = World::with_topic(1, 1, 290);
    world.fill(1, 40, 4);
    let config = world.config();
    world.join(config, always(Plan::ack(millis(5))));
    world.run_until(MINUTE, |w| w.ended() > 5);
    ask(&mut world, 1, pause(Scope::All)).unwrap();
    world.may_go_back("t", 0);
    world.skip_below("t", 0, 30);
    let to = seek("t".into(), SeekTo::Offset(30), InFlight::Drain);
    ask(&mut world, 2, to).unwrap();
    let seen = world.handled().len();
    world.run_for(secs(10));
    assert_eq!(world.handled().len(), seen);
    ask(&mut world, 3, resume(Scope::All)).unwrap();
    world.run_until(MINUTE, |w| w.committed(0) == 40);
    assert_eq!(offsets(&world, 0)[seen..].iter().min(), Some(&30));
}

/// What cannot be sought says why.
#[test]
fn seeks_that_cannot_be_say_why() {
    let mut world = World::with_topic(1, 1, 300);
    let config = world.config();
    world.join(config, always(Plan::ack(Duration::ZERO)));
    world.run_until(MINUTE, |w| snapshot(w).partitions.len() == 1);
    let mut id = 0;
    let mut refused = |world: &mut World, command: Command| {
        id += 1;
        let error = ask(world, id, command).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse);
        error.to_string()
    };
    let to = |what: Scope, to| seek(what, to, InFlight::Drain);
    let words = refused(&mut world, to("other".into(), SeekTo::Beginning));
    assert!(words.contains("holds no such partition"), "{words}");
    let words = refused(&mut world, to(Scope::All, SeekTo::Offset(-1)));
    assert!(words.contains("SeekTo::Beginning"), "{words}");
    let words = refused(&mut world, Command::SetWorkers { n: 0 });
    assert!(words.contains("pause"), "{words}");
}

/// F12: an offset that the log does not have is a loss, under the loss policy; the user seeks on.
#[test]
fn a_seek_out_of_range_stops_until_the_next_seek() {
    let mut world = World::with_topic(1, 1, 310);
    world.fill(1, 20, 2);
    let config = world.config();
    world.join(config, always(Plan::ack(Duration::ZERO)));
    world.run_until(MINUTE, |w| w.committed(0) == 20);
    world.may_go_back("t", 0);
    let to = |offset| seek(Scope::All, SeekTo::Offset(offset), InFlight::Drain);
    ask(&mut world, 1, to(1000)).unwrap();
    let stopped = |e: &Event| matches!(e, Event::Stopped { .. });
    world.run_until(MINUTE, |w| w.events(0).iter().any(stopped));
    ask(&mut world, 2, to(15)).unwrap();
    world.fill(1, 5, 1);
    world.run_until(MINUTE, |w| w.committed(0) == 25);
    assert_eq!(world.settlings(), 20 + 10);
}

/// How many records run at once can be changed while they do, down and up, with and without lanes.
#[test]
fn workers_can_be_changed_at_run_time() {
    for mode in [Mode::Any { workers: 6 }, Mode::Fixed { lanes: 6 }] {
        let mut world = World::with_topic(1, 4, 320);
        world.fill(4, 800, 64);
        let mut config = world.config();
        config.mode = mode;
        if matches!(mode, Mode::Any { .. }) {
            config.lane_key = LaneKey::Partition;
        }
        world.join(config, always(Plan::ack(millis(20))));
        world.run_until(MINUTE, |w| w.ended() > 100);
        assert_eq!(peak(&world.handled(), Now(0)), 6, "{mode:?}");
        ask(&mut world, 1, Command::SetWorkers { n: 2 }).unwrap();
        assert_eq!(snapshot(&world).workers, Some(2));
        world.run_for(millis(25)); // what ran when it was said ends
        let from = world.now();
        world.run_for(millis(500));
        assert_eq!(peak(&world.handled(), from), 2, "{mode:?}");
        let n = if matches!(mode, Mode::Any { .. }) {
            12
        } else {
            100
        };
        ask(&mut world, 2, Command::SetWorkers { n }).unwrap();
        let from = world.now();
        world.run_for(millis(500));
        let most = peak(&world.handled(), from);
        let lanes = if matches!(mode, Mode::Any { .. }) {
            12
        } else {
            6
        };
        assert_eq!(most, lanes, "{mode:?}");
        world.run_until(MINUTE, |w| w.all_committed(4));
        world.assert_idle(0);
    }
    let mut world = World::with_topic(1, 1, 321);
    let mut config = world.config();
    (config.mode, config.executors, config.lane_key) = (Mode::InTurn, 1, LaneKey::Partition);
    world.join(config, always(Plan::ack(millis(1))));
    let error = ask(&mut world, 1, Command::SetWorkers { n: 4 }).unwrap_err();
    assert!(error.to_string().contains("workers_by_key"), "{error}");
}

/// E07: `commit_now` answers once the broker has acknowledged what had settled, however many
/// ask, and says so where that cannot be.
#[test]
fn commit_now_answers_once_it_is_acknowledged() {
    let mut world = World::with_topic(1, 1, 330);
    world.fill(1, 50, 5);
    let mut config = world.config();
    config.commit_interval = MINUTE;
    config.request_timeout = secs(5);
    world.join(config, always(Plan::ack(Duration::ZERO)));
    world.run_until(MINUTE, |w| w.ended() == 50);
    assert_eq!(world.committed(0), -1);
    for id in 1..10 {
        world.command(0, id, Command::CommitNow);
    }
    world.run_until(secs(1), |w| !w.replies(0).is_empty());
    assert_eq!(world.committed(0), 50, "not before");
    world.run_until(secs(1), |w| w.replies(0).len() == 9);
    assert!(world.replies(0).iter().all(|(_, r)| r.is_ok()));
    assert_eq!(world.cluster.requests(OFFSET_COMMIT), 1, "one for all");
    world.fill(1, 10, 5);
    world.run_until(MINUTE, |w| w.ended() == 60);
    let rule = Rule::new(Fault::Error(16)).api(OFFSET_COMMIT);
    world.cluster.script().add(rule);
    let error = ask(&mut world, 20, Command::CommitNow).unwrap_err();
    assert!(error.is_retriable(), "{error}");
}

/// E01: a record that runs for longer than `stall_after` is told of, once and then each time its
/// age has doubled; the session lives; the snapshot says which record holds the commit back.
#[test]
fn a_record_that_runs_too_long_is_told_of() {
    let mut world = World::with_topic(1, 2, 340);
    world.fill(2, 40, 4);
    let mut config = world.config();
    config.stall_after = Some(secs(10));
    let script: Script = Arc::new(|_, r| match (r.partition(), r.offset()) {
        (0, 5) => Plan::ack(secs(3600)),
        _ => Plan::ack(millis(1)),
    });
    world.join(config, script);
    world.run_until(MINUTE, |w| w.committed(1) == 20);
    world.run_for(secs(100));
    let stalls: Vec<_> = stalls(&world);
    let ages: Vec<u64> = stalls.iter().map(|(_, _, age)| age.as_secs()).collect();
    assert_eq!(ages, [10, 20, 40, 80], "{stalls:?}");
    assert!(stalls.iter().all(|(p, o, _)| (p.partition, *o) == (0, 5)));
    assert_eq!(snapshot(&world).generation, Some(1), "the session lives");
    let now = snapshot(&world);
    assert_eq!(now.stalls, 4);
    let oldest = now.oldest_running.clone().unwrap();
    assert_eq!((oldest.offset, oldest.attempt), (5, 1));
    assert!(oldest.running_for > secs(100));
    let holdup = now.partitions[0].holdup.clone().unwrap();
    assert_eq!((holdup.offset, holdup.attempts), (5, 1));
    assert!(holdup.holds_for > secs(100), "{holdup:?}");
    assert!(matches!(holdup.what, HoldupState::Running(age) if age > secs(100)));
    assert_eq!(now.partitions[1].holdup, None);
    let lane = now.lanes.iter().find(|l| l.running.is_some()).unwrap();
    assert_eq!(Some(lane.lane), oldest.lane);
    assert!(lane.queued + lane.out > 1, "{lane:?}");
}

fn stalls(world: &World) -> Vec<(TopicPartition, i64, Duration)> {
    let events = world.events(0).iter();
    events
        .filter_map(|e| match e {
            Event::Stalled {
                partition,
                offset,
                running_for,
                ..
            } => Some((partition.clone(), *offset, *running_for)),
            _ => None,
        })
        .collect()
}

/// E01: where the user wants it, such a record ends the subscription, which leaves its group.
#[test]
fn a_stall_may_end_the_subscription() {
    let mut world = World::with_topic(1, 1, 350);
    world.fill(1, 10, 1);
    let mut config = world.config();
    config.stall_after = Some(secs(30));
    config.stall_stops = true;
    let script: Script = Arc::new(|_, r| match r.offset() {
        5 => Plan::ack(secs(3600)),
        _ => Plan::ack(millis(1)),
    });
    world.join(config.clone(), script);
    world.run_until(MINUTE, |w| w.finished(0).is_some());
    let error = world.finished(0).unwrap().clone().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Handler);
    assert_eq!(error.offset(), Some(5), "{error}");
    assert_eq!(world.committed(0), 5);
    // The next member need not wait for a session to run out.
    world.join(config, always(Plan::ack(Duration::ZERO)));
    world.run_until(secs(2), |w| w.committed(0) == 10);
}

/// The snapshot says of a failing record when it runs again and how often it has run.
#[test]
fn the_snapshot_shows_a_record_that_waits_for_its_next_attempt() {
    for mode in [Mode::Fixed { lanes: 4 }, Mode::Any { workers: 4 }] {
        let mut world = World::with_topic(1, 1, 360);
        world.fill(1, 20, 4);
        let mut config = world.config();
        config.mode = mode;
        if matches!(mode, Mode::Any { .. }) {
            config.lane_key = LaneKey::Partition;
        }
        config.retry = Retry::exponential(secs(8), secs(8));
        let script: Script = Arc::new(|_, r| match r.offset() {
            5 => Plan::at_once(Outcome::failed("no")),
            _ => Plan::ack(millis(1)),
        });
        world.join(config, script);
        world.run_until(MINUTE, |w| w.ended() > 15 && snapshot(w).retries == 2);
        world.run_for(secs(1));
        let now = snapshot(&world);
        let holdup = now.partitions[0].holdup.clone().unwrap();
        assert_eq!((holdup.offset, holdup.attempts), (5, 2), "{mode:?}");
        assert!(
            matches!(holdup.what, HoldupState::Retrying(wait) if wait < secs(8) && wait > secs(2)),
            "{holdup:?}"
        );
        ask(&mut world, 1, pause(Scope::All)).unwrap();
        let now = snapshot(&world);
        let holdup = now.partitions[0].holdup.clone().unwrap();
        assert_eq!((holdup.attempts, holdup.what), (2, HoldupState::Paused));
    }
}

/// E28: an error that ends a subscription is told to who waits at once, and the group hears that
/// the member is gone: nobody waits for its session to run out.
#[test]
fn a_fatal_error_leaves_the_group() {
    let mut world = World::with_topic(1, 1, 370);
    world.fill(1, 200, 4);
    let mut config = world.config();
    config.session_timeout = MINUTE;
    config.commit_interval = millis(50);
    world.join(config.clone(), always(Plan::ack(millis(10))));
    world.run_until(MINUTE, |w| w.ended() > 20);
    world.command(0, 1, Command::Drain);
    let rule = Rule::new(Fault::Error(30)).api(OFFSET_COMMIT).times(1);
    world.cluster.script().add(rule);
    world.run_until(secs(5), |w| w.finished(0).is_some());
    let error = world.finished(0).unwrap().clone().unwrap_err();
    assert_eq!(error.code(), Some(30), "{error}");
    assert_eq!(world.replies(0).len(), 1);
    world.join(config, always(Plan::ack(Duration::ZERO)));
    world.run_until(secs(3), |w| w.committed(0) == 200);
}

/// A manual reader is steered like a member.
#[test]
fn a_manual_reader_pauses_and_seeks() {
    let mut world = World::with_topic(1, 2, 380);
    world.fill(2, 40, 4);
    let mut config = world.config();
    config.source = Source::Partitions {
        partitions: vec![TopicPartition::new("t", 0), TopicPartition::new("t", 1)],
        group: None,
    };
    world.join(config, always(Plan::ack(Duration::ZERO)));
    world.run_until(MINUTE, |w| w.ended() == 40);
    let to = seek(partition(1), SeekTo::Beginning, InFlight::Drain);
    ask(&mut world, 1, to).unwrap();
    world.run_until(MINUTE, |w| w.ended() == 60);
    assert_eq!(runs_of(&world, 1).len(), 40);
    ask(&mut world, 2, pause(Scope::All)).unwrap();
    world.fill(2, 10, 4);
    world.run_for(secs(10));
    assert_eq!(world.ended(), 60);
}

/// F36, E30: pauses while a lane that does not move has let its records go and reads them again:
/// nothing is read again of a paused partition, and order and exactness hold.
#[test]
fn pauses_and_what_was_let_go_get_along() {
    for seed in 0..6u64 {
        let mut world = World::with_topic(1, 2, 400 + seed);
        let value = vec![b'v'; 1000];
        for at in 0..1200i32 {
            let key = format!("k{}", at % 24);
            let pair = (Some(key.as_bytes()), Some(&value[..]));
            world.append("t", at % 24 % 2, &[pair]);
        }
        let mut config = world.config();
        config.mode = Mode::Fixed { lanes: 8 };
        config.budget_bytes = 256 << 10;
        config.partition_bytes_max = 16 << 10;
        config.fetch_bytes_max = 32 << 10;
        let script: Script = Arc::new(move |_, r| match r.offset() {
            3 => Plan::ack(secs(2)),
            at if at % 97 == 0 => Plan::ack(millis(300)),
            at if at % 31 == 0 && r.attempt() < 3 => Plan::at_once(Outcome::Retry),
            _ => Plan::ack(Duration::ZERO),
        });
        world.join(config, script);
        let mut dice = seed * 7919 + 3;
        let mut let_go = 0;
        for step in 0..120u64 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            world.run_for(Duration::from_micros((dice >> 33) % 90_000));
            let what = match (dice >> 17) % 5 {
                0 => Scope::All,
                _ => partition(((dice >> 20) % 2) as i32),
            };
            let command = match (dice >> 14) % 3 {
                0 => pause(what),
                _ => resume(what),
            };
            world.command(0, step, command);
            let gone = snapshot(&world).partitions.into_iter().map(|p| p.gone);
            let_go = let_go.max(gone.sum());
        }
        assert!(let_go > 0, "seed {seed}: nothing was let go");
        world.command(0, 1000, resume(Scope::All));
        world.run_until(MINUTE * 3, |w| w.all_committed(2));
        assert_eq!(world.settlings(), 1200, "seed {seed}");
        world.assert_idle(0);
    }
}
