//! Brokers of other makes, and what is odd about them, in virtual time.

use laneway::broker::{Fault, Rule};
use laneway::engine::{Command, Event, InFlight, SeekTo};
use laneway_protocol_tests::setting::{MINUTE, always, millis};
use laneway_protocol_tests::{Plan, World};

const OFFSET_FETCH: i16 = 9;
const UNSTABLE_OFFSET_COMMIT: i16 = 88;

/// Q06: a broker whose offsets of one partition stay unstable for ever. It is asked at a bounded pace and
/// said so, the other partition runs, and the owner gives the wait up by a seek: that partition
/// runs from there, and its settling is committed as ever.
#[test]
fn q06_offsets_that_stay_unstable_are_said_and_given_up_by_a_seek() {
    let mut world = World::with_topic(1, 2, 81);
    world.fill(2, 100, 4);
    let rule = Rule::new(Fault::Error(UNSTABLE_OFFSET_COMMIT)).api(OFFSET_FETCH);
    world.cluster.script().add(rule.topic("t", Some(0)));
    let config = world.config();
    let member = world.join(config, always(Plan::ack(millis(1))));
    world.run_for(MINUTE * 5);
    let of = |w: &World, partition| {
        let handled = w.handled();
        let of = handled
            .iter()
            .filter(|h| h.partition.partition == partition);
        of.count()
    };
    let other = of(&world, 1);
    assert!(other > 0);
    assert_eq!((of(&world, 0), other), (0, world.ended()));
    let asked = world.cluster.requests(OFFSET_FETCH);
    assert!(
        (5..=400).contains(&asked),
        "{asked} questions in five minutes"
    );
    let said = |e: &&Event| matches!(e, Event::Warning { error } if error.code() == Some(UNSTABLE_OFFSET_COMMIT));
    let said = world.events(member).iter().filter(said).count();
    assert!(
        (1..=10).contains(&said),
        "{said} warnings: {}",
        world.story()
    );

    let what = ("t", 0).into();
    let (to, running) = (SeekTo::Beginning, InFlight::Drop);
    world.command(member, 1, Command::Seek { what, to, running });
    world.run_until(MINUTE, |w| w.all_committed(2));
    assert!(matches!(world.replies(member), [(_, Ok(()))]));
    assert_eq!((world.distinct(), world.ended()), (100, 100));
    // Nobody asks on for what is no longer wanted.
    let asked = world.cluster.requests(OFFSET_FETCH);
    world.run_for(MINUTE * 5);
    assert_eq!(world.cluster.requests(OFFSET_FETCH), asked);
}
