//! Connections over hours of virtual time: idle ones, and those that a broker wishes silent.

use laneway::broker::{Fault, Rule};
use laneway::engine::Event;
use laneway_protocol_tests::setting::{MINUTE, always, millis, secs};
use laneway_protocol_tests::{Plan, World};

const FETCH: i16 = 1;
const METADATA: i16 = 3;
const HEARTBEAT: i16 = 12;
const JOIN_GROUP: i16 = 11;
const API_VERSIONS: i16 = 18;

fn warnings(world: &World) -> usize {
    let warned = |e: &&Event| matches!(e, Event::Warning { .. });
    world.events(0).iter().filter(warned).count()
}

/// A connection that has nothing to carry is closed after its time and opened again for the next
/// request, here metadata every minute; without a word to the user, and without a record lost.
#[test]
fn idle_connections_are_closed_and_opened_again() {
    let opened = |idle| {
        let mut world = World::with_topic(2, 2, 71);
        world.fill(2, 100, 4);
        let mut config = world.config();
        config.idle_max = idle;
        config.metadata_age_max = MINUTE;
        world.join(config, always(Plan::ack(millis(1))));
        world.run_until(MINUTE, |w| w.all_committed(2));
        let before = world.cluster.requests(API_VERSIONS);
        let asked = world.cluster.requests(METADATA);
        world.run_for(MINUTE * 10);
        assert!(world.cluster.requests(METADATA) - asked >= 9);
        let opened = world.cluster.requests(API_VERSIONS) - before;
        world.fill(2, 100, 4);
        world.run_until(MINUTE, |w| w.all_committed(2));
        assert_eq!((world.distinct(), warnings(&world)), (200, 0));
        opened
    };
    let (soon, never) = (opened(secs(20)), opened(MINUTE * 60));
    assert_eq!(never, 0);
    assert!((5..60).contains(&soon), "{soon} connections in ten minutes");
}

/// L29: a broker wishes the fetches silent for a minute, four sessions long: no fetch leaves, heartbeats
/// do, the membership stands, and the records come afterwards.
#[test]
fn l29_a_throttled_fetch_holds_up_no_heartbeat() {
    let mut world = World::with_topic(1, 2, 72);
    world.fill(2, 100, 4);
    let mut config = world.config();
    config.session_timeout = secs(15);
    config.heartbeat_interval = secs(2);
    world.join(config, always(Plan::ack(millis(1))));
    world.run_until(MINUTE, |w| w.all_committed(2));
    let rule = Rule::new(Fault::Throttle(MINUTE)).api(FETCH).times(1);
    world.cluster.script().add(rule);
    // The fetch that is out now is answered with the wish.
    world.run_for(secs(2));
    world.fill(2, 100, 4);
    let of = |w: &World, api| w.cluster.requests(api);
    let (fetches, beats) = (of(&world, FETCH), of(&world, HEARTBEAT));
    let joins = of(&world, JOIN_GROUP);
    world.run_for(secs(50));
    assert_eq!(
        of(&world, FETCH),
        fetches,
        "fetches in the minute of silence"
    );
    assert!(
        of(&world, HEARTBEAT) - beats >= 20,
        "heartbeats in fifty seconds"
    );
    assert_eq!(world.distinct(), 100);
    world.run_until(MINUTE, |w| w.all_committed(2));
    assert_eq!((world.distinct(), of(&world, JOIN_GROUP)), (200, joins));
    assert!(
        !world
            .events(0)
            .iter()
            .any(|e| matches!(e, Event::Lost { .. }))
    );
}
