//! Static members (KIP-345) as whole subscriptions: restarts that move nothing.

use laneway::Outcome;
use laneway::engine::{Command, Config, Event};
use laneway::group::{AssignorKind, OnClose};
use laneway_protocol_tests::setting::MINUTE;
use laneway_protocol_tests::{Plan, Script, World};
use std::sync::Arc;
use std::time::Duration;

fn quick() -> Script {
    Arc::new(|_, _| Plan {
        takes: Duration::from_millis(2),
        outcome: Outcome::Ack,
        panics: false,
    })
}

fn named(world: &World, name: &str) -> Config {
    let mut config = world.config();
    config.instance_id = Some(Arc::from(name));
    config
}

fn generation(world: &World) -> i32 {
    world.cluster.group_view("g").map_or(-1, |g| g.generation)
}

/// Grants and losses of a member so far: what a rebalance would add to.
fn moves(world: &World, member: usize) -> usize {
    let moved = |e: &&Event| {
        matches!(
            e,
            Event::Granted { .. } | Event::Revoked { .. } | Event::Lost { .. }
        )
    };
    world.events(member).iter().filter(moved).count()
}

fn settled(world: &World, member: usize) -> bool {
    let engine = world.engine(member);
    engine
        .snapshot(world.now())
        .partitions
        .iter()
        .all(|p| p.watermark >= 0)
        && !engine.snapshot(world.now()).partitions.is_empty()
}

/// Three members; each in turn closes and comes back under its name, once gently and once by a
/// kill. The generation stays, nobody else gives up or gets anything, nothing is lost.
fn restarts_move_nothing(assignors: &[AssignorKind]) {
    let mut world = World::with_topic(3, 9, 7);
    world.fill(9, 300, 30);
    let names = ["a", "b", "c"];
    let mut members: Vec<usize> = Vec::new();
    for name in names {
        let mut config = named(&world, name);
        config.assignors = assignors.to_vec();
        members.push(world.join(config, quick()));
    }
    world.run_until(MINUTE, |w| {
        members.iter().all(|m| settled(w, *m)) && w.all_committed(9)
    });
    let before = generation(&world);
    for (at, name) in names.iter().enumerate() {
        for gently in [true, false] {
            let others: Vec<(usize, usize)> = members
                .iter()
                .filter(|m| **m != members[at])
                .map(|m| (*m, moves(&world, *m)))
                .collect();
            let old = members[at];
            if gently {
                let deadline = world.now() + Duration::from_secs(5);
                world.command(old, 1, Command::Close { deadline });
                world.run_until(MINUTE, |w| w.finished(old).is_some());
            } else {
                world.kill(old);
            }
            world.fill(9, 90, 30);
            world.run_for(Duration::from_secs(2));
            let mut config = named(&world, name);
            config.assignors = assignors.to_vec();
            members[at] = world.join(config, quick());
            let new = members[at];
            world.run_until(MINUTE, |w| settled(w, new) && w.all_committed(9));
            assert_eq!(
                generation(&world),
                before,
                "{name}, gently {gently}: {}",
                world.story()
            );
            for (other, moved) in others {
                assert_eq!(moves(&world, other), moved, "{name}: {}", world.story());
            }
        }
    }
    world.run_for(Duration::from_secs(20));
    assert_eq!(generation(&world), before);
    assert_eq!(world.open(), []);
}

#[test]
fn restarts_of_static_members_move_nothing_eager() {
    restarts_move_nothing(&[AssignorKind::Range, AssignorKind::CooperativeSticky]);
}

#[test]
fn restarts_of_static_members_move_nothing_cooperative() {
    restarts_move_nothing(&[AssignorKind::CooperativeSticky]);
}

/// One that does not come back is missed when its session is over; its partitions go on.
#[test]
fn a_static_member_that_stays_away_is_missed() {
    let mut world = World::with_topic(1, 4, 8);
    let (a, b) = (named(&world, "a"), named(&world, "b"));
    let a = world.join(a, quick());
    let b = world.join(b, quick());
    world.run_until(MINUTE, |w| settled(w, a) && settled(w, b));
    let deadline = world.now() + Duration::from_secs(5);
    world.command(a, 1, Command::Close { deadline });
    world.run_until(MINUTE, |w| w.finished(a).is_some());
    world.fill(4, 100, 10);
    world.run_for(Duration::from_secs(4));
    assert!(!world.all_committed(4), "its partitions wait for it");
    world.run_until(MINUTE, |w| w.all_committed(4));
    assert_eq!(world.engine(b).snapshot(world.now()).partitions.len(), 4);
}

/// KIP-1092: a static member that is told to leave gives its place up at once.
#[test]
fn a_static_member_may_leave() {
    let mut world = World::with_topic(1, 4, 9);
    let mut a = named(&world, "a");
    a.on_close = Some(OnClose::Leave);
    let b = named(&world, "b");
    let a = world.join(a, quick());
    let b = world.join(b, quick());
    world.run_until(MINUTE, |w| settled(w, a) && settled(w, b));
    let deadline = world.now() + Duration::from_secs(5);
    world.command(a, 1, Command::Close { deadline });
    world.run_until(MINUTE, |w| w.finished(a).is_some());
    world.run_until(Duration::from_secs(8), |w| {
        w.engine(b).snapshot(w.now()).partitions.len() == 4
    });
}

/// G14: two processes of one name: the older ends with an error that says why, the newer goes on.
#[test]
fn g14_of_two_with_one_name_the_older_ends() {
    let mut world = World::with_topic(1, 4, 10);
    world.fill(4, 100, 10);
    let (first, second) = (named(&world, "a"), named(&world, "a"));
    let first = world.join(first, quick());
    world.run_until(MINUTE, |w| settled(w, first) && w.all_committed(4));
    let second = world.join(second, quick());
    world.run_until(MINUTE, |w| w.finished(first).is_some());
    let error = world.finished(first).unwrap().as_ref().unwrap_err();
    assert_eq!(error.code(), Some(82), "{error}");
    world.fill(4, 100, 10);
    world.run_until(MINUTE, |w| w.all_committed(4));
    assert!(world.finished(second).is_none());
}

/// G14: the answer to the first join gets lost; the second try is the same process, and lives.
#[test]
fn g14_a_lost_answer_makes_no_twin() {
    use laneway::broker::{Fault, Rule};
    for fault in [Fault::CutAfter, Fault::SwallowAnswer] {
        let mut world = World::with_topic(1, 4, 11);
        world.fill(4, 100, 10);
        world
            .cluster
            .script()
            .add(Rule::new(fault).api(11).times(1));
        let mut config = named(&world, "a");
        config.rebalance_timeout = Duration::from_secs(12);
        let a = world.join(config, quick());
        world.run_until(MINUTE, |w| settled(w, a) && w.all_committed(4));
        world.run_for(Duration::from_secs(30));
        assert!(world.finished(a).is_none(), "{}", world.story());
        let group = world.cluster.group_view("g").unwrap();
        assert_eq!(group.members.len(), 1);
    }
}
