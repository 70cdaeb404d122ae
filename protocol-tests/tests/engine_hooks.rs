//! Hooks: a program is told of partitions that come and go, and is waited for.

use laneway::engine::{Command, Config, Event, Hook, HookSet};
use laneway::group::AssignorKind;
use laneway::ids::TopicPartition;
use laneway::time::Now;
use laneway::{Error, ErrorKind};
use laneway_protocol_tests::setting::{MINUTE, always, millis, secs};
use laneway_protocol_tests::world::HookRun;
use laneway_protocol_tests::{Plan, World};
use std::sync::Arc;
use std::time::Duration;

fn hooked(world: &World) -> Config {
    let mut config = world.config();
    config.hooks = HookSet {
        granted: true,
        revoked: true,
        lost: true,
    };
    config
}

fn partitions(hook: &Hook) -> &[TopicPartition] {
    match hook {
        Hook::Granted(p) | Hook::Revoked(p) | Hook::Lost(p) => p,
        other => panic!("another hook: {other:?}"),
    }
}

fn about<'a>(
    world: &'a World,
    tp: &'a TopicPartition,
) -> impl Iterator<Item = &'a HookRun> + use<'a> {
    let hooks = world.hooks().iter();
    hooks.filter(move |h| partitions(&h.hook).contains(tp))
}

/// For each run: its member's last hook of the partition is a grant's, which had ended.
fn assert_hooked(world: &World) {
    for run in world.handled() {
        let before = about(world, &run.partition).filter(|h| h.member == run.member);
        let last = before.filter(|h| h.began <= run.began).last();
        let last = last.unwrap_or_else(|| panic!("no hook before {run:?}"));
        let ended = last.ended.is_some_and(|at| at <= run.began) && !last.dropped;
        let granted = matches!(last.hook, Hook::Granted(_));
        assert!(granted && ended, "{run:?} after {last:?}");
    }
}

/// Where hand-overs are drained: a grant's hook begins after the hook of the revoke has ended.
fn assert_handed_over(world: &World, partitions: i32) {
    for p in 0..partitions {
        let tp = TopicPartition::new("t", p);
        let mut owner: Option<usize> = None;
        let mut free_from = Now(0);
        for hook in about(world, &tp) {
            match hook.hook {
                Hook::Granted(_) => {
                    assert_eq!(owner, None, "{hook:?} while another has it");
                    assert!(hook.began >= free_from, "{hook:?} before {free_from:?}");
                    owner = Some(hook.member);
                }
                _ => {
                    assert_eq!(owner, Some(hook.member), "{hook:?}");
                    free_from = hook.ended.unwrap_or(Now::NEVER);
                    owner = None;
                }
            }
        }
    }
}

/// C18: partitions go to and fro between members that load and save: nothing is read before its
/// hook has loaded, nothing is given back before its hook has saved; each record settles once.
#[test]
fn what_one_saves_is_there_when_another_loads() {
    for (seed, assignor) in [
        (0, AssignorKind::Range),
        (1, AssignorKind::CooperativeSticky),
    ] {
        let mut world = World::with_topic(1, 6, 500 + seed);
        world.plan_hooks(Arc::new(|_, _| (millis(800), Ok(()))));
        world.expect_drained_hand_overs();
        let mut config = hooked(&world);
        config.assignors = vec![assignor];
        config.mode = laneway::lane::Mode::Fixed { lanes: 4 };
        config.lane_key = laneway::engine::LaneKey::Partition;
        for round in 0..4u64 {
            world.fill(6, 240, 12);
            let member = world.join(config.clone(), always(Plan::ack(millis(15))));
            world.run_for(secs(4));
            if round % 2 == 1 {
                let deadline = world.now() + secs(20);
                world.command(member - 1, 9, Command::Close { deadline });
            }
            world.run_for(secs(4));
        }
        world.run_until(MINUTE * 2, |w| w.all_committed(6));
        assert_hooked(&world);
        assert_handed_over(&world, 6);
        assert_eq!(world.settlings(), 960);
        assert!(world.hooks().iter().all(|h| !h.dropped));
        let deadline = world.now() + secs(20);
        for member in 0..4 {
            world.command(member, 10, Command::Close { deadline });
        }
        world.run_until(MINUTE, |w| (0..4).all(|m| w.finished(m).is_some()));
        for p in 0..6 {
            let tp = TopicPartition::new("t", p);
            let last = about(&world, &tp).last().unwrap();
            assert!(matches!(last.hook, Hook::Revoked(_)), "{last:?}");
        }
    }
}

/// G45: a hook that fails ends the subscription with its error, after the protocol's step: what
/// was to be given back is given back, and the other member works on at once.
#[test]
fn a_failing_revoke_hook_gives_back_and_ends_with_its_error() {
    let mut world = World::with_topic(1, 2, 510);
    world.plan_hooks(Arc::new(|member, hook| match (member, hook) {
        (0, Hook::Revoked(_)) => {
            let error = Error::new(ErrorKind::Handler, "on_revoked panicked: no disk");
            (millis(100), Err(error))
        }
        _ => (millis(10), Ok(())),
    }));
    world.fill(2, 400, 4);
    let mut config = hooked(&world);
    config.session_timeout = MINUTE;
    config.rebalance_timeout = MINUTE;
    world.join(config.clone(), always(Plan::ack(millis(10))));
    world.run_until(MINUTE, |w| w.ended() > 10);
    world.join(config, always(Plan::ack(millis(10))));
    world.run_until(secs(15), |w| w.finished(0).is_some());
    let error = world.finished(0).unwrap().clone().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Handler);
    assert!(error.to_string().contains("no disk"), "{error}");
    world.run_until(secs(15), |w| w.all_committed(2));
}

/// G45: a grant's hook that fails: its partitions are never read, and the member leaves.
#[test]
fn a_failing_grant_hook_reads_nothing() {
    let mut world = World::with_topic(1, 2, 520);
    world.plan_hooks(Arc::new(|_, hook| match hook {
        Hook::Granted(_) => (
            millis(10),
            Err(Error::new(ErrorKind::Handler, "on_granted failed")),
        ),
        _ => (Duration::ZERO, Ok(())),
    }));
    world.fill(2, 40, 4);
    let config = hooked(&world);
    world.join(config, always(Plan::ack(millis(1))));
    world.run_until(MINUTE, |w| w.finished(0).is_some());
    assert!(world.finished(0).unwrap().is_err());
    assert_eq!(world.handled(), []);
}

/// G45, E29: hooks that never end hold up neither the group nor a close: a revoke's is dropped at
/// the group's deadline, a grant's when its partitions are taken away again.
#[test]
fn hooks_that_never_end_hold_up_nobody() {
    for stuck_grant in [true, false] {
        let mut world = World::with_topic(1, 2, 530);
        world.plan_hooks(Arc::new(move |member, hook| {
            let stuck = match hook {
                Hook::Granted(_) => stuck_grant,
                _ => !stuck_grant,
            };
            match member == 0 && stuck {
                true => (secs(100_000), Ok(())),
                false => (millis(10), Ok(())),
            }
        }));
        world.fill(2, 40, 4);
        let mut config = hooked(&world);
        config.rebalance_timeout = secs(20);
        config.drain_max = secs(5);
        world.join(config.clone(), always(Plan::ack(millis(1))));
        world.run_for(secs(5));
        assert_eq!(world.handled().is_empty(), stuck_grant);
        let granted = world.now();
        world.join(config, always(Plan::ack(millis(1))));
        let second = |w: &World| w.hooks().iter().any(|h| h.member == 1);
        world.run_until(secs(40), second);
        assert!(world.now().since(granted) < secs(30));
        let now = world.now();
        world.command(
            0,
            7,
            Command::Close {
                deadline: now + secs(10),
            },
        );
        world.run_until(secs(11), |w| w.finished(0).is_some());
        assert!(world.finished(0).unwrap().is_ok());
        world.run_until(MINUTE, |w| w.all_committed(2));
        let warned = |e: &Event| match e {
            Event::Warning { error } => error.to_string().contains("was dropped"),
            _ => false,
        };
        assert!(world.events(0).iter().any(warned));
        assert_hooked(&world);
    }
}

/// G23: a member that was frozen past its session hears that its partitions are lost, and then of
/// what it is granted anew.
#[test]
fn a_lost_partition_is_told_as_lost() {
    let mut world = World::with_topic(1, 1, 540);
    world.plan_hooks(Arc::new(|_, _| (millis(300), Ok(()))));
    world.fill(1, 400, 4);
    let mut config = hooked(&world);
    config.session_timeout = secs(6);
    world.join(config.clone(), always(Plan::ack(millis(20))));
    world.run_until(MINUTE, |w| w.ended() > 10);
    world.freeze(0);
    world.run_for(secs(20));
    world.thaw(0);
    world.run_until(MINUTE, |w| w.all_committed(1));
    let told: Vec<&Hook> = world.hooks().iter().map(|h| &h.hook).collect();
    assert!(
        matches!(
            told[..],
            [Hook::Granted(_), Hook::Lost(_), Hook::Granted(_)]
        ),
        "{told:?}"
    );
    assert_hooked(&world);
}

/// A manual reader's hooks: at its start and at its end. What has not begun cannot be sought.
#[test]
fn a_manual_reader_has_hooks_too() {
    let mut world = World::with_topic(1, 1, 550);
    world.plan_hooks(Arc::new(|_, _| (secs(2), Ok(()))));
    world.fill(1, 40, 4);
    let mut config = hooked(&world);
    config.source = laneway::engine::Source::Partitions {
        partitions: vec![TopicPartition::new("t", 0)],
        group: None,
    };
    world.join(config, always(Plan::ack(millis(1))));
    world.run_for(secs(1));
    let (what, to) = (laneway::Scope::All, laneway::SeekTo::End);
    let running = laneway::InFlight::Drain;
    world.command(0, 1, Command::Seek { what, to, running });
    let refused = world.replies(0)[0].1.clone().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Misuse);
    assert_eq!(world.handled(), []);
    world.run_until(MINUTE, |w| w.ended() == 40);
    world.command(0, 2, Command::Drain);
    world.run_until(MINUTE, |w| w.finished(0).is_some());
    assert_eq!(world.hooks().len(), 2);
    assert!(world.hooks()[1].ended.is_some(), "the end waits for it");
}
