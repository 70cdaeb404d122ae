//! Commands that meet at bad moments: seeks beside retries, caps beside what runs, ends beside
//! commits, pauses beside rebalances; and topics that are made anew.

use laneway::broker::{Fault, Rule};
use laneway::engine::{
    Command, Config, Event, InFlight, LaneKey, Recreated, Scope, SeekTo, Source,
};
use laneway::group::{AssignorKind, TopicPattern};
use laneway::lane::{Mode, Retry};
use laneway::time::Now;
use laneway::{ErrorKind, GroupProtocol, Outcome};
use laneway_protocol_tests::setting::{MINUTE, always, at_once, millis, secs};
use laneway_protocol_tests::{Plan, Script, World};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const OFFSET_COMMIT: i16 = 8;

fn ask(world: &mut World, id: u64, command: Command) -> Result<(), laneway::Error> {
    world.command(0, id, command);
    let answered = |w: &World| w.replies(0).iter().any(|(at, _)| at.0 == id);
    world.run_until(MINUTE * 2, answered);
    let mut replies = world.replies(0).iter();
    replies.find(|(at, _)| at.0 == id).unwrap().1.clone()
}

fn seek(to: SeekTo, running: InFlight) -> Command {
    let what = Scope::All;
    Command::Seek { what, to, running }
}

/// So many that no two of some dozen keys share one.
const LANES: u32 = 1 << 17;

fn config(world: &World) -> Config {
    let mut config = world.config();
    config.mode = Mode::Fixed { lanes: LANES };
    config
}

/// A seek while records wait for their next attempt: the wait ends with the lease, nothing of the old
/// place runs again, and what is read anew begins at its first attempt.
#[test]
fn a_seek_while_retries_are_parked() {
    for (seed, running) in [(1, InFlight::Drain), (2, InFlight::Drop)] {
        for mode in [
            Mode::Fixed { lanes: LANES },
            Mode::PerKey { at_once: 4 },
            Mode::Any { workers: 4 },
            Mode::InTurn,
        ] {
            let mut world = World::with_topic(1, 1, seed);
            world.fill(1, 100, 10);
            let mut config = config(&world);
            config.mode = mode;
            if !matches!(mode, Mode::Fixed { .. } | Mode::PerKey { .. }) {
                config.lane_key = LaneKey::Partition;
            }
            if mode == Mode::InTurn {
                config.executors = 1;
                config.lane_key = LaneKey::by(|r| Some(r.offset() as u64 % 10));
            }
            config.retry = Retry::fixed(secs(20));
            let script: Script = Arc::new(|_, r| match (r.offset(), r.attempt()) {
                (5 | 65, 1..3) => Plan::at_once(Outcome::failed("not yet")),
                _ => Plan::ack(Duration::ZERO),
            });
            world.join(config, script);
            world.run_until(secs(15), |w| w.snapshot(0).parked > 0 && w.ended() >= 50);
            world.may_go_back("t", 0);
            world.skip_below("t", 0, 60);
            let before = world.handled().len();
            ask(&mut world, 1, seek(SeekTo::Offset(60), running)).unwrap();
            assert_eq!(
                world.snapshot(0).parked,
                0,
                "{mode:?}: the old wait is over"
            );
            world.run_until(MINUTE * 3, |w| w.committed(0) == 100);
            let after = world.handled()[before..].to_vec();
            assert!(after.iter().all(|h| h.offset >= 60), "{mode:?}");
            let attempts: Vec<u32> = after
                .iter()
                .filter(|h| h.offset == 65)
                .map(|h| h.attempt)
                .collect();
            assert_eq!(attempts, [1, 2, 3], "{mode:?}");
            world.run_for(MINUTE);
            world.assert_idle(0);
        }
    }
}

fn peak(world: &World, from: Now) -> usize {
    let runs = world.handled();
    let at = |now: Now| {
        let runs = runs.iter();
        let running = |h: &&_| -> bool {
            let h: &laneway_protocol_tests::Handled = h;
            h.began <= now && h.ended.is_none_or(|at| at > now)
        };
        runs.filter(running).count()
    };
    let begins = runs.iter().map(|h| h.began).filter(|b| *b > from);
    begins.map(at).max().unwrap_or(0)
}

/// The cap goes to 1 while 64 run: those end, then one runs at a time; and to 64 again.
#[test]
fn a_cap_of_one_while_64_run() {
    for mode in [
        Mode::Any { workers: 64 },
        Mode::PerKey { at_once: 64 },
        Mode::Fixed { lanes: 64 },
    ] {
        let mut world = World::with_topic(1, 2, 10);
        world.fill(2, 1500, 300);
        let mut config = config(&world);
        config.mode = mode;
        if matches!(mode, Mode::Any { .. }) {
            config.lane_key = LaneKey::Partition;
        }
        config.executors = 3;
        world.join(config, always(Plan::ack(millis(100))));
        world.run_until(MINUTE, |w| w.ended() > 64);
        let before = peak(&world, Now(0));
        assert!(before >= 55, "{mode:?}: {before}");
        ask(&mut world, 1, Command::SetWorkers { n: 1 }).unwrap();
        world.run_for(millis(101));
        let from = world.now();
        world.run_for(secs(3));
        assert_eq!(peak(&world, from), 1, "{mode:?}");
        let ran = world.handled().iter().filter(|h| h.began > from).count();
        assert!(
            (25..=31).contains(&ran),
            "{mode:?}: {ran} in 3 s of 100 ms each"
        );
        ask(&mut world, 2, Command::SetWorkers { n: 64 }).unwrap();
        let from = world.now();
        world.run_for(millis(500));
        assert!(peak(&world, from) >= 40, "{mode:?}");
        world.run_until(MINUTE * 3, |w| w.all_committed(2));
        assert_eq!(world.settlings(), 1500);
        world.assert_idle(0);
    }
}

/// A close while a commit is on its way: its answer comes late, never, or with an error. What had
/// settled is committed where there is time, the end comes by its deadline, and the next member
/// goes on from what stands.
#[test]
fn a_close_while_a_commit_is_out() {
    for (seed, fault) in [
        (0, Fault::DelayAnswer(secs(2))),
        (1, Fault::DelayAnswer(secs(20))),
        (2, Fault::SwallowAnswer),
        (3, Fault::Error(27)),
        (4, Fault::LateError(16)),
        (5, Fault::CutAfter),
    ] {
        let mut world = World::with_topic(1, 2, 20 + seed);
        world.fill(2, 400, 20);
        let mut config = config(&world);
        config.request_timeout = secs(4);
        config.commit_interval = millis(100);
        let rule = Rule::new(fault).api(OFFSET_COMMIT).times(1);
        world.cluster.script().add(rule);
        world.join(config.clone(), always(Plan::ack(millis(20))));
        world.run_until(MINUTE, |w| w.cluster.requests(OFFSET_COMMIT) == 1);
        world.run_for(millis(150));
        let deadline = world.now() + secs(9);
        world.command(0, 1, Command::Close { deadline });
        world.run_until(secs(10), |w| w.finished(0).is_some());
        assert!(world.now() <= deadline, "{seed}");
        let ended = world.ended();
        let committed = world.committed(0).max(0) + world.committed(1).max(0);
        // Where an answer is waited for in vain the last commit has no time.
        if seed != 1 {
            assert!(
                committed > 0,
                "{seed}: {ended} ended, {committed} committed"
            );
        }
        world.join(config, at_once());
        world.run_until(MINUTE * 2, |w| w.all_committed(2));
        assert_eq!(world.distinct(), 400, "{seed}");
    }
}

/// Pauses and resumes at every moment of rebalances, by every protocol: what is paused starts
/// nothing, also where it comes to its next owner's hands and back; all is handled in the end.
#[test]
fn pauses_at_every_moment_of_rebalances() {
    for seed in 0..9u64 {
        let mut world = World::with_topic(1, 6, 30 + seed);
        let mut config = config(&world);
        match seed % 3 {
            0 => config.assignors = vec![AssignorKind::Range],
            1 => config.assignors = vec![AssignorKind::CooperativeSticky],
            _ => config.group_protocol = GroupProtocol::Consumer,
        }
        config.mode = Mode::Fixed { lanes: 7 };
        config.retry = Retry::fixed(millis(30));
        let script: Script = Arc::new(|_, r| match (r.offset() % 9, r.attempt()) {
            (0, 1) => Plan::at_once(Outcome::failed("not yet")),
            (1, _) => Plan::ack(millis(400)),
            _ => Plan::ack(millis(3)),
        });
        world.join(config.clone(), script.clone());
        let mut dice = seed * 7919 + 1;
        let mut alive: Vec<usize> = vec![0];
        // What each member was told, by our own account.
        let mut paused: BTreeSet<(usize, i32)> = BTreeSet::new();
        for step in 0..120u64 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            world.fill(6, 6, 6);
            world.run_for(Duration::from_micros((dice >> 33) % 150_000));
            let member = alive[(dice >> 9) as usize % alive.len()];
            match (dice >> 17) % 8 {
                0 if alive.len() < 3 => alive.push(world.join(config.clone(), script.clone())),
                1 if alive.len() > 1 => {
                    let leaves = alive.swap_remove((dice >> 22) as usize % alive.len());
                    let deadline = world.now() + secs(5);
                    world.command(leaves, 1000 + step, Command::Close { deadline });
                }
                2..5 => {
                    let p = ((dice >> 25) % 6) as i32;
                    paused.insert((member, p));
                    let what = Scope::from(("t", p));
                    world.command(member, step, Command::Pause { what });
                }
                _ => {
                    let p = ((dice >> 25) % 6) as i32;
                    let what = match (dice >> 40) % 3 {
                        0 => {
                            paused.retain(|(m, _)| *m != member);
                            Scope::All
                        }
                        _ => {
                            paused.remove(&(member, p));
                            Scope::from(("t", p))
                        }
                    };
                    world.command(member, step, Command::Resume { what });
                }
            }
            assert_paused_rest(&mut world, &paused, seed);
        }
        for member in &alive {
            let what = Scope::All;
            world.command(*member, 5000, Command::Resume { what });
        }
        world.run_until(MINUTE * 3, |w| w.all_committed(6));
        assert_eq!(world.distinct(), 720, "seed {seed}");
        world.run_for(secs(20));
        alive.iter().for_each(|m| world.assert_idle(*m));
    }
}

/// No run has begun in a partition that its member has paused.
fn assert_paused_rest(world: &mut World, paused: &BTreeSet<(usize, i32)>, seed: u64) {
    let from = world.now();
    world.run_for(millis(5));
    let handled = world.handled();
    for run in handled.iter().rev().take_while(|h| h.began > from) {
        let place = (run.member, run.partition.partition);
        assert!(
            !paused.contains(&place),
            "seed {seed}: {run:?} while paused"
        );
    }
}

/// Seeks and pauses while a stuck lane has let records go and reads them again: each record of the
/// last place runs once, in order, whatever was let go before.
#[test]
fn seeks_and_pauses_beside_what_was_let_go() {
    let mut let_go_before = 0;
    for seed in 0..6u64 {
        let mut world = World::with_topic(1, 1, 50 + seed);
        let value = vec![b'v'; 1000];
        for at in 0..1200i32 {
            let key = format!("k{}", at % 24);
            world.append("t", 0, &[(Some(key.as_bytes()), Some(&value[..]))]);
        }
        let mut config = world.config();
        config.mode = Mode::Fixed { lanes: 8 };
        config.budget_bytes = 256 << 10;
        config.batch_bytes_max = 64 << 10;
        config.partition_bytes_max = 16 << 10;
        config.fetch_bytes_max = 32 << 10;
        config.drain_max = secs(3);
        let script: Script = Arc::new(move |_, r| match r.offset() {
            3 | 700 => Plan::ack(secs(4)),
            at if at % 31 == 0 && r.attempt() < 3 => Plan::at_once(Outcome::Retry),
            _ => Plan::ack(Duration::ZERO),
        });
        world.join(config, script);
        world.may_go_back("t", 0);
        world.run_until(MINUTE, |w| {
            let p = &w.snapshot(0).partitions;
            p.first().is_some_and(|p| p.gone > 30)
        });
        let_go_before += world.snapshot(0).partitions[0].gone;
        let running = if seed % 2 == 0 {
            InFlight::Drop
        } else {
            InFlight::Drain
        };
        if seed % 3 == 0 {
            let what = Scope::All;
            ask(&mut world, 1, Command::Pause { what }).unwrap();
        }
        let to = 10 * (seed as i64 + 1);
        world.skip_below("t", 0, to);
        ask(&mut world, 2, seek(SeekTo::Offset(to), running)).unwrap();
        let at = world.handled().len();
        assert_eq!(world.snapshot(0).partitions[0].gone, 0, "seed {seed}");
        world.run_for(secs(1));
        if seed % 3 == 0 {
            assert_eq!(world.handled().len(), at, "seed {seed}: still paused");
            let what = Scope::All;
            ask(&mut world, 3, Command::Resume { what }).unwrap();
        }
        world.run_until(MINUTE * 3, |w| w.committed(0) == 1200);
        let mut settled: Vec<i64> = world.handled()[at..]
            .iter()
            .filter(|h| h.offset % 31 != 0 || h.attempt == 3)
            .map(|h| h.offset)
            .collect();
        settled.sort_unstable();
        // What began between the seek and its answer is of the new place too.
        settled.dedup();
        assert!(
            settled.len() as i64 >= 1200 - to - 100,
            "seed {seed}: {}",
            settled.len()
        );
        world.run_for(secs(10));
        world.assert_idle(0);
    }
    assert!(let_go_before > 180, "nothing was let go");
}

/// Handlers that never end, that panic for ever and that ask again for ever: a drain waits for them,
/// a close ends by its deadline, and everyone who asked is answered.
#[test]
fn the_end_has_one_deadline_whatever_handlers_do() {
    for seed in 0..2u64 {
        let mut world = World::with_topic(1, 2, 60 + seed);
        world.fill(2, 60, 60);
        let mut config = config(&world);
        config.drain_max = secs(10);
        config.retry = Retry::fixed(millis(500));
        let script: Script = Arc::new(move |_, r| match r.offset() % 5 {
            0 => Plan::ack(MINUTE * 60),
            1 => Plan {
                panics: true,
                ..Plan::ack(millis(1))
            },
            2 => Plan::at_once(Outcome::Retry),
            _ => Plan::ack(millis(5)),
        });
        world.join(config, script);
        world.run_for(secs(2));
        // A drain that can never end, then a close.
        world.command(0, 1, Command::Drain);
        world.run_for(secs(20));
        assert!(world.finished(0).is_none(), "it has something to run");
        let deadline = world.now() + secs(5);
        world.command(0, 2, Command::Close { deadline });
        world.command(0, 3, Command::CommitNow);
        world.run_until(secs(6), |w| w.finished(0).is_some());
        assert!(world.now() <= deadline);
        assert_eq!(world.replies(0).len(), 3, "everyone is answered");
    }
}

/// A pattern finds a new topic and new partitions within the metadata's age (and the join that
/// follows), by either protocol.
#[test]
fn patterns_find_within_the_metadatas_age() {
    for protocol in [GroupProtocol::Classic, GroupProtocol::Consumer] {
        let mut world = World::with_topic(1, 2, 70);
        let mut config = world.config();
        config.group_protocol = protocol;
        config.metadata_age_max = secs(30);
        config.start = laneway::StartOffset::Latest;
        config.source = Source::Pattern {
            pattern: TopicPattern::new("t(-.*)?").unwrap(),
            group: Arc::from("g"),
        };
        world.join(config, at_once());
        let held = |w: &World| w.snapshot(0).partitions.len();
        world.run_until(MINUTE, |w| held(w) == 2);
        // Off the beat of the refreshes.
        world.run_for(secs(41));
        let at = world.now();
        world.cluster.create_topic("t-new", 3).unwrap();
        world.append("t-new", 2, &[(Some(b"k"), Some(b"v"))]);
        world.run_until(MINUTE, |w| held(w) == 5);
        let took = world.now().since(at);
        assert!(took <= secs(33), "{protocol:?}: {took:?}");
        world.run_until(secs(2), |w| w.ended() == 1);
        world.run_for(secs(17));
        let at = world.now();
        world.cluster.add_partitions("t", 4).unwrap();
        world.append("t", 3, &[(Some(b"k"), Some(b"v"))]);
        world.run_until(MINUTE, |w| held(w) == 7);
        let took = world.now().since(at);
        assert!(took <= secs(33), "{protocol:?}: {took:?}");
        world.run_until(secs(2), |w| w.ended() == 2);
    }
}

/// F28: where the user wants it, a topic that is made anew ends the subscription, in words that name
/// it; partitions of other topics are drained and committed, and nothing is committed of the new one.
#[test]
fn f28_a_topic_made_anew_may_end_the_subscription() {
    for protocol in [GroupProtocol::Classic, GroupProtocol::Consumer] {
        let mut world = World::with_topic(2, 1, 80);
        world.cluster.create_topic("u", 2).unwrap();
        let mut config = config(&world);
        config.group_protocol = protocol;
        config.metadata_age_max = secs(5);
        config.recreated = Recreated::Stop;
        config.source = Source::Topics {
            topics: vec!["t".into(), "u".into()],
            group: Arc::from("g"),
        };
        for p in 0..2 {
            world.append("u", p, &[(Some(b"k"), Some(b"v"))]);
        }
        world.fill(1, 400, 40);
        world.join(config, always(Plan::ack(millis(700))));
        // Its last commit has landed: the next one would carry its name, and so be the new one's.
        let committed = |w: &World, p| w.cluster.committed("g", "u", p).is_some();
        world.run_until(MINUTE, |w| {
            w.ended() > 40 && committed(w, 0) && committed(w, 1)
        });
        world.recreate_topic("u", 2);
        world.append("u", 0, &[(Some(b"k"), Some(b"v"))]);
        world.run_until(MINUTE, |w| w.finished(0).is_some());
        let error = world.finished(0).unwrap().clone().unwrap_err();
        assert_eq!(
            (error.kind(), error.topic()),
            (ErrorKind::Broker, Some("u"))
        );
        assert!(error.message().contains("Recreated::Stop"), "{error}");
        let losses = world.events(0).iter();
        let losses = losses
            .filter(|e| matches!(e, Event::DataLoss { .. }))
            .count();
        assert!(losses >= 1, "{protocol:?}");
        // Handlers of the other topic ended and were committed.
        let unfinished = world.handled().into_iter().filter(|h| h.ended.is_none());
        assert_eq!(unfinished.count(), 0, "{protocol:?}");
        assert!(world.committed(0) >= 40, "{}", world.committed(0));
        for p in 0..2 {
            let new = world.cluster.committed("g", "u", p);
            assert!(new.is_none(), "{protocol:?}: {new:?}");
        }
    }
}
