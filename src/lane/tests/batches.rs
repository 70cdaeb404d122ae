//! Batches that wait for more records.

use std::time::Duration;

use super::scenarios::{fixed, keys, millis};
use super::world::World;
use crate::lane::{LanesConfig, Mode};

fn waiting(mode: Mode) -> World {
    let mut config = LanesConfig::new(mode);
    config.batch_max = 4;
    config.batch_wait = millis(50);
    World::new(&config)
}

fn modes() -> [Mode; 4] {
    [
        Mode::Fixed { lanes: 2 },
        Mode::PerKey { at_once: 2 },
        Mode::Any { workers: 2 },
        Mode::InTurn,
    ]
}

/// A batch that is full goes at once; one that is not goes at its time, counted from its first
/// record; nothing is handed over before, and nothing is forgotten.
#[test]
fn a_batch_waits_to_be_full_but_no_longer_than_it_may() {
    for mode in modes() {
        let mut world = waiting(mode);
        let lease = world.grant(0);
        world.advance(Duration::from_secs(9));
        world.deal(lease, &keys(&[7; 3]), true);
        world.run();
        assert!(world.starts().is_empty(), "{mode:?}");
        assert_eq!(
            world.next_deadline(),
            Some(world.now + millis(50)),
            "{mode:?}"
        );
        world.advance(millis(30));
        world.deal(lease, &keys(&[7; 1]), true);
        world.run();
        assert_eq!(world.watermark(lease), 4, "{mode:?}: it is full");
        assert_eq!(world.next_deadline(), None, "{mode:?}");
        world.deal(lease, &keys(&[7; 2]), true);
        world.run();
        world.advance(millis(49));
        world.run();
        assert_eq!(world.watermark(lease), 4, "{mode:?}");
        world.advance(millis(1));
        world.run();
        assert_eq!(world.watermark(lease), 6, "{mode:?}: its time is up");
        world.finish();
    }
}

/// Where intake stops nothing waits for what cannot come.
#[test]
fn batches_do_not_wait_where_intake_has_stopped() {
    for mode in modes() {
        let mut world = waiting(mode);
        let lease = world.grant(0);
        world.deal(lease, &keys(&[7; 3]), true);
        world.run();
        assert_eq!(world.watermark(lease), 0, "{mode:?}");
        world.lanes.set_intake(false);
        world.run();
        assert_eq!(world.watermark(lease), 3, "{mode:?}");
        world.deal(lease, &keys(&[7; 2]), true);
        world.run();
        assert_eq!(world.watermark(lease), 5, "{mode:?}");
        world.lanes.set_intake(true);
        world.deal(lease, &keys(&[7; 2]), true);
        world.run();
        assert_eq!(world.watermark(lease), 5, "{mode:?}: it waits again");
        world.finish();
    }
}

/// What failed does not wait for company: it runs again when it is due.
#[test]
fn a_retry_does_not_wait_for_a_full_batch() {
    use super::world::{Act, Say};
    let mut config = fixed(1);
    config.batch_max = 4;
    config.batch_wait = Duration::from_secs(60);
    let mut world = World::new(&config);
    let lease = world.grant(0);
    world.tell([Act::Now(Say::Each(1))]);
    world.deal(lease, &keys(&[0; 4]), false);
    world.run();
    assert_eq!((world.open(lease), world.watermark(lease)), (1, 0));
    world.advance(millis(100));
    world.run();
    assert_eq!(world.watermark(lease), 4);
    world.finish();
}
