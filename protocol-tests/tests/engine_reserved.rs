//! Partitions kept out of a group's sharing, and who reads them.

use laneway::Outcome;
use laneway::engine::{Command, Config, Event, Source};
use laneway::group::AssignorKind;
use laneway::ids::TopicPartition;
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

fn held(world: &World, member: usize) -> Vec<String> {
    let snapshot = world.engine(member).snapshot(world.now());
    let live = snapshot.partitions.iter().filter(|p| !p.draining);
    live.map(|p| p.partition.to_string()).collect()
}

fn count(world: &World, member: usize) -> usize {
    held(world, member).len()
}

fn direct(world: &World, partition: i32) -> Config {
    let mut config = world.config();
    config.reserve = vec![TopicPartition::new("t", partition)];
    config.direct = true;
    config
}

/// Five partitions, two subscribers, a direct reader of one: the two get two each. The reader
/// dies: nobody takes its partition. A subscriber dies: the other takes its two. It comes back:
/// spread again. The reader comes back: its partition is its own. Released, it is shared out.
fn five_partitions(assignors: &[AssignorKind]) {
    let mut world = World::with_topic(1, 5, 60);
    let mut settings = world.config();
    settings.assignors = assignors.to_vec();
    let mut reader = direct(&world, 4);
    reader.assignors = assignors.to_vec();
    let a = world.join(settings.clone(), quick());
    let r = world.join(reader.clone(), quick());
    let b = world.join(settings.clone(), quick());
    let spread = |w: &World, a, b| count(w, a) == 2 && count(w, b) == 2;
    world.run_until(MINUTE, |w| spread(w, a, b) && held(w, r) == ["t-4"]);
    world.fill(5, 50, 5);
    world.run_until(MINUTE, |w| w.all_committed(5));
    world.kill(r);
    world.run_for(Duration::from_secs(40));
    assert!(spread(&world, a, b), "{}", world.story());
    world.kill(b);
    world.run_until(MINUTE, |w| count(w, a) == 4);
    world.run_for(Duration::from_secs(20));
    assert!(!held(&world, a).contains(&"t-4".to_owned()));
    let b = world.join(settings, quick());
    world.run_until(MINUTE, |w| spread(w, a, b));
    world.fill(5, 50, 5);
    world.run_for(Duration::from_secs(10));
    assert!(!world.all_committed(5), "nobody reads what is reserved");
    let r = world.join(reader, quick());
    world.run_until(MINUTE, |w| held(w, r) == ["t-4"] && w.all_committed(5));
    assert!(spread(&world, a, b));
    // The reader goes for good, and somebody says so.
    world.kill(r);
    world.run_for(Duration::from_secs(40));
    let partitions = vec![TopicPartition::new("t", 4)];
    world.command(a, 5, Command::Release { partitions });
    world.run_until(MINUTE, |w| count(w, a) + count(w, b) == 5);
    assert!(world.replies(a).iter().all(|(_, result)| result.is_ok()));
    assert_eq!(world.open(), []);
}

#[test]
fn five_partitions_two_subscribers_and_a_direct_reader() {
    five_partitions(&[AssignorKind::Range, AssignorKind::CooperativeSticky]);
}

#[test]
fn five_partitions_two_subscribers_and_a_direct_reader_cooperatively() {
    five_partitions(&[AssignorKind::CooperativeSticky]);
}

/// A group of four over topic A (3 partitions) and topic B (8): the fourth is idle on A and busy on
/// B; an owner of A is killed: the fourth takes over.
#[test]
fn the_fourth_of_four_takes_over() {
    let mut world = World::with_topic(1, 3, 61);
    world.cluster.create_topic("u", 8).unwrap();
    let mut settings = world.config();
    settings.assignors = vec![AssignorKind::Range];
    settings.source = Source::Topics {
        topics: vec!["t".into(), "u".into()],
        group: Arc::from("g"),
    };
    let four: Vec<usize> = (0..4)
        .map(|_| world.join(settings.clone(), quick()))
        .collect();
    let of = |w: &World, m: usize, topic: &str| {
        let all = held(w, m);
        all.iter().filter(|tp| tp.starts_with(topic)).count()
    };
    world.run_until(MINUTE, |w| {
        four.iter().all(|m| of(w, *m, "u-") == 2)
            && four.iter().filter(|m| of(w, **m, "t-") == 1).count() == 3
    });
    let idle = *four.iter().find(|m| of(&world, **m, "t-") == 0).unwrap();
    let owner = *four.iter().find(|m| of(&world, **m, "t-") == 1).unwrap();
    world.kill(owner);
    world.run_until(MINUTE, |w| of(w, idle, "t-") == 1);
}

/// What does not exist cannot be reserved: an error that names the setting, and nothing that was
/// committed changes.
#[test]
fn a_reservation_of_nothing_is_refused() {
    let mut world = World::with_topic(1, 2, 62);
    world.fill(2, 20, 4);
    let a = world.join(world.config(), quick());
    world.run_until(MINUTE, |w| w.all_committed(2));
    let r = world.join(direct(&world, 7), quick());
    world.run_until(MINUTE, |w| w.finished(r).is_some());
    let words = world.finished(r).unwrap().as_ref().unwrap_err().to_string();
    assert!(
        words.contains("reserve") && words.contains("0 to 1"),
        "{words}"
    );
    world.run_for(Duration::from_secs(30));
    assert!(world.all_committed(2));
    assert!(world.finished(a).is_none());
    let lost = |e: &Event| matches!(e, Event::Lost { .. });
    assert!(!world.events(a).iter().any(lost));
    assert_eq!(count(&world, a), 2);
}
