//! The offset map as whole subscriptions keep it: written with commits, read at the grant, in
//! virtual time. That nothing which a commit covers runs again is checked at every step of every
//! world; see `checks.rs`.

use laneway::broker::{Cluster, ClusterConfig, Committed};
use laneway::engine::{Command, Config, Event};
use laneway::fetch::LossPolicy;
use laneway::group::AssignorKind;
use laneway::lane::Mode;
use laneway::records::{BatchBuilder, Encoder};
use laneway::settle::{Map, MapWriter, Run};
use laneway::{MapFull, OffsetMap, Outcome};
use laneway_protocol_tests::setting::{MINUTE, millis};
use laneway_protocol_tests::{Plan, Script, World};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);

/// Up to 64 records at once, in any order.
fn config(world: &World) -> Config {
    let mut config = world.config();
    config.mode = Mode::Any { workers: 64 };
    config
}

/// Member 0 never ends the records that `holds` names; everyone else is quick.
fn held_by_the_first(holds: impl Fn(i64) -> bool + Send + Sync + 'static) -> Script {
    Arc::new(
        move |member, record| match member == 0 && holds(record.offset()) {
            true => Plan::ack(DAY),
            false => Plan::ack(Duration::ZERO),
        },
    )
}

fn quick() -> Script {
    Arc::new(|_, _| Plan::ack(Duration::ZERO))
}

/// Offsets that a member handled, in order.
fn offsets_of(world: &World, member: usize) -> Vec<i64> {
    let runs = world.handled().into_iter().filter(|h| h.member == member);
    runs.map(|h| h.offset)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

fn settled(world: &World, member: usize) -> u64 {
    world.engine(member).snapshot(world.now()).settled
}

/// The metadata beside what `g` has committed of partition 0.
fn metadata(world: &World) -> String {
    let committed = world.cluster.committed("g", "t", 0);
    committed.map_or(String::new(), |c| c.metadata.clone())
}

fn commit(world: &mut World, offset: i64, metadata: &str) {
    let committed = Committed {
        offset,
        leader_epoch: -1,
        metadata: metadata.to_owned(),
    };
    world.cluster.commit("g", "t", 0, committed);
    world.skip_below("t", 0, offset);
}

/// As [`commit`], by an owner that really had settled what the map says.
fn commit_truly(world: &mut World, offset: i64, metadata: &str) {
    commit(world, offset, metadata);
    let map = Map::read(offset, metadata).unwrap();
    for settled in (offset..map.end()).filter(|o| map.is_settled(*o)) {
        world.settled_elsewhere("t", 0, settled);
    }
}

/// A third of all offsets, in no pattern that packs.
fn irregular(offset: i64) -> bool {
    let mut z = (offset as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z >> 40).is_multiple_of(3)
}

/// A map as text: `open` offsets, everything else up to `end` settled.
fn map(base: i64, open: &[i64], end: i64) -> String {
    let open = open.iter().map(|first| Run {
        first: *first,
        end: first + 1,
    });
    MapWriter::new().write(base, end, open, 4096).text
}

fn warnings(world: &World, member: usize) -> Vec<String> {
    let events = world.events(member).iter();
    let warned = events.filter_map(|e| match e {
        Event::Warning { error } => Some(error.message().to_owned()),
        _ => None,
    });
    warned.collect()
}

fn unused(world: &World, member: usize) -> u64 {
    world.engine(member).snapshot(world.now()).maps_unused
}

fn finish(world: &mut World) {
    world.run_until(MINUTE * 5, |w| w.all_committed(1));
    assert_eq!(world.open(), []);
    assert_eq!(metadata(world), "", "nothing is open, so there is no map");
}

/// C04, C05, C31, E01: a crash repeats only what had not settled, not all above the lowest gap.
#[test]
fn a_crash_repeats_only_what_had_not_settled() {
    let mut world = World::with_topic(1, 1, 1);
    world.fill(1, 200, 200);
    let script = held_by_the_first(|o| o % 7 == 3);
    world.join(config(&world), script.clone());
    world.run_until(MINUTE, |w| settled(w, 0) == 200 - 29);
    world.run_for(millis(500));
    assert_eq!(
        world.committed(0),
        3,
        "C04: and the commit passes nothing that is open"
    );
    world.kill(0);
    let second = world.join(config(&world), script);
    finish(&mut world);
    let open: Vec<i64> = (0..200).filter(|o| o % 7 == 3).collect();
    assert_eq!(offsets_of(&world, second), open);
    let snapshot = world.engine(second).snapshot(world.now());
    assert_eq!(snapshot.settled_before, 197 - 29, "each is accounted for");
    assert_eq!((snapshot.settled, snapshot.maps_unused), (29, 0));
}

/// C05: a commit of the same offset with a fuller map goes out too, at the commit's own pace; and
/// nothing is sent when nothing settles.
#[test]
fn the_map_grows_while_the_offset_stands_still() {
    let mut world = World::with_topic(1, 1, 2);
    world.fill(1, 40, 40);
    let script: Script = Arc::new(|_, record| match record.offset() {
        0 => Plan::ack(DAY),
        at => Plan::ack(millis(100 * at as u64)),
    });
    world.join(config(&world), script);
    world.run_for(Duration::from_secs(5));
    let commits = world.cluster.commits().count();
    assert!((15..=22).contains(&commits), "{commits} in 4 s at 200 ms");
    let ends: Vec<i64> = world
        .cluster
        .commits()
        .map(|c| {
            assert_eq!(c.committed.offset, 0);
            Map::read(0, &c.committed.metadata).unwrap().end()
        })
        .collect();
    assert!(ends.is_sorted() && ends.last() == Some(&40), "{ends:?}");
    world.run_for(MINUTE);
    assert_eq!(world.cluster.commits().count(), commits);
}

/// G01, C29: what settled above the watermark is handed over with the partition, under each kind
/// of rebalance.
#[test]
fn a_hand_over_repeats_nothing_that_settled() {
    for assignors in [
        vec![AssignorKind::Range],
        vec![AssignorKind::CooperativeSticky],
    ] {
        for seed in 0..4 {
            let mut world = World::with_topic(1, 4, seed);
            world.fill(4, 400, 400);
            let mut config = config(&world);
            config.assignors.clone_from(&assignors);
            config.drain_max = millis(300);
            let script = held_by_the_first(|o| o % 10 == 2);
            world.join(config.clone(), script.clone());
            world.run_until(MINUTE, |w| settled(w, 0) == 400 - 40);
            world.join(config.clone(), script.clone());
            world.run_until(MINUTE, |w| {
                w.engine(1).snapshot(w.now()).partitions.len() == 2
            });
            world.run_for(Duration::from_secs(2));
            // The first one's own restart: closed with records that never end.
            let deadline = world.now() + millis(500);
            world.command(0, 1, Command::Close { deadline });
            world.run_until(MINUTE * 5, |w| w.all_committed(4));
            assert_eq!(world.open(), []);
            assert_eq!(world.settlings(), 400, "{assignors:?}: settled once each");
        }
    }
}

/// C09: a broker that takes 100 characters, or none at all: the commit goes through with the
/// lower part or nothing, at once, said once; a crash repeats what is above it.
#[test]
fn a_broker_that_takes_less_gets_less() {
    for limit in [100, 0] {
        let cluster = ClusterConfig {
            offset_metadata_max: limit,
            ..ClusterConfig::default()
        };
        let mut cluster = Cluster::new(cluster);
        cluster.create_topic("t", 1).unwrap();
        let mut world = World::new(cluster, 1, 3);
        world.fill(1, 3000, 3000);
        let mut config = config(&world);
        config.mode = Mode::Any { workers: 3000 };
        // As C09 has it: thousands of gaps, in no regular pattern.
        let script = held_by_the_first(irregular);
        let held = (0..3000).filter(|o| irregular(*o)).count() as u64;
        world.join(config.clone(), script.clone());
        world.run_until(MINUTE, |w| settled(w, 0) == 3000 - held);
        world.run_for(Duration::from_secs(2));
        let base = world.committed(0);
        assert!(base < 30, "{base}");
        let kept = metadata(&world);
        assert!(kept.len() <= limit, "{}", kept.len());
        assert_eq!(kept.is_empty(), limit == 0, "{kept}");
        let said = warnings(&world, 0);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("offset.metadata.max.bytes"), "{said:?}");
        let end = Map::read(base, &kept).unwrap().end();
        world.kill(0);
        let second = world.join(config, script);
        finish(&mut world);
        let again = offsets_of(&world, second);
        let expected = (0..3000).filter(|o| irregular(*o) || *o >= end);
        assert!(again.into_iter().eq(expected), "limit {limit}");
    }
}

/// C09: under a limit of our own nothing is refused; what fits is kept and nothing stalls.
#[test]
fn a_short_map_keeps_its_lower_part_and_nothing_stalls() {
    let mut world = World::with_topic(1, 1, 4);
    world.fill(1, 2000, 2000);
    let mut config = config(&world);
    config.metadata_max = 40;
    config.mode = Mode::Any { workers: 2000 };
    let script = held_by_the_first(irregular);
    let held = (0..2000).filter(|o| irregular(*o)).count() as u64;
    world.join(config.clone(), script.clone());
    world.run_until(MINUTE, |w| settled(w, 0) == 2000 - held);
    world.run_for(Duration::from_secs(1));
    let kept = Map::read(world.committed(0), &metadata(&world)).unwrap();
    assert!(kept.end() > 150, "{}", kept.end());
    assert!(warnings(&world, 0).is_empty());
    world.kill(0);
    world.join(config, script);
    finish(&mut world);
}

/// C32: metadata that is no map, from whomever: nothing at or above the committed offset counts as
/// settled, and each partition says so once.
#[test]
fn metadata_that_is_no_map_skips_nothing() {
    for text in [
        "consumer-1",
        "m",
        "{\"a\":1}",
        "none",
        "NULL",
        "egA=",
        "TAABAQ==",
        "AQAAAYvP5WgA",
        "bAA=",
        "bg==",
        "bgABAAKZ",
        "Sg==",
        "YQ==",
        "YSi1L/0AWA==",
        "Sii1L/0AWCEAAAABAAIA",
        "%bgABAAI=",
    ] {
        let mut world = World::with_topic(1, 1, 5);
        world.fill(1, 30, 30);
        commit(&mut world, 10, text);
        let member = world.join(config(&world), quick());
        finish(&mut world);
        assert_eq!(
            offsets_of(&world, member),
            (10..30).collect::<Vec<_>>(),
            "{text}"
        );
        let said = warnings(&world, member);
        assert_eq!(
            (said.len(), unused(&world, member)),
            (1, 1),
            "{text}: {said:?}"
        );
        assert!(said[0].contains("is no offset map"), "{said:?}");
    }
}

/// C08: a map that does not fit the log is dropped: nothing of another log is skipped.
#[test]
fn a_map_of_another_log_is_dropped() {
    // The log ends below the map's end.
    let mut world = World::with_topic(1, 1, 6);
    world.fill(1, 120, 120);
    commit(&mut world, 100, &map(100, &[100, 150], 180));
    let member = world.join(config(&world), quick());
    finish(&mut world);
    assert_eq!(offsets_of(&world, member), (100..120).collect::<Vec<_>>());
    assert_eq!(unused(&world, member), 1);

    // It has a record that the map holds settled before the first open one.
    let mut world = World::with_topic(1, 1, 6);
    world.fill(1, 40, 40);
    commit(&mut world, 10, "bgAAAAU=");
    let member = world.join(config(&world), quick());
    finish(&mut world);
    assert_eq!(offsets_of(&world, member), (10..40).collect::<Vec<_>>());
    assert_eq!(unused(&world, member), 1);

    // It was reset to 0..20, or begins at 150: the position is not the committed offset.
    for (records, begins) in [(20, 20), (200, 150)] {
        let mut world = World::with_topic(1, 1, 6);
        world.fill(1, records, records);
        world.delete_records("t", 0, begins);
        commit(&mut world, 100, &map(100, &[100], 180));
        let mut config = config(&world);
        config.loss = LossPolicy::Nearest;
        let member = world.join(config, quick());
        world.run_for(Duration::from_secs(2));
        world.fill(1, 170, 170);
        world.run_until(MINUTE, |w| {
            w.distinct() as i64 >= records as i64 + 170 - begins
        });
        let expected: Vec<i64> = (begins..records as i64 + 170).collect();
        assert_eq!(offsets_of(&world, member), expected);
        let snapshot = world.engine(member).snapshot(world.now());
        assert_eq!(snapshot.settled_before, 0, "no map for another position");
    }
}

/// C07: what the map holds open and the log has no more is settled; what is behind it goes on.
#[test]
fn open_records_that_are_gone_hold_nothing_back() {
    let mut world = World::with_topic(1, 1, 7);
    let mut log = Vec::new();
    let mut batch = |from: i64, to: i64| {
        let mut builder = BatchBuilder::new(from);
        for offset in from..to {
            builder
                .push(1000, Some(&offset.to_be_bytes()), Some(b"v"), &[])
                .unwrap();
        }
        log.extend(builder.build(&mut Encoder::new()).unwrap());
    };
    batch(40, 50);
    batch(60, 80);
    world.cluster.replace_log("t", 0, log.into()).unwrap();
    // 45 and 50 to 52 open, 75 too; 40 to 44 were compacted out of the map's sight.
    commit_truly(&mut world, 40, &map(40, &[40, 45, 50, 51, 52, 75], 78));
    let member = world.join(config(&world), quick());
    finish(&mut world);
    assert_eq!(offsets_of(&world, member), [40, 45, 75, 78, 79]);
    assert_eq!(world.committed(0), 80);
    assert_eq!(unused(&world, member), 0);
}

/// C33: after a restore the commit is what is open, and never past the log's end.
#[test]
fn after_a_restore_nothing_more_is_done_than_was() {
    let mut world = World::with_topic(1, 1, 8);
    world.fill(1, 103, 103);
    commit(&mut world, 100, &map(100, &[100], 101));
    let script: Script = Arc::new(|_, record| match record.offset() {
        101 => Plan::ack(millis(3000)),
        _ => Plan::ack(Duration::ZERO),
    });
    world.join(config(&world), script);
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.committed(0), 101);
    let map = Map::read(101, &metadata(&world)).unwrap();
    assert_eq!(
        (map.is_settled(101), map.is_settled(102), map.end()),
        (false, true, 103)
    );
    finish(&mut world);
    assert_eq!(world.committed(0), 103);
}

/// What was inherited is kept through a life that reads none of it again.
#[test]
fn a_map_survives_a_life_that_gets_nowhere() {
    let mut world = World::with_topic(1, 1, 9);
    world.fill(1, 500, 500);
    let open: Vec<i64> = (100..490).step_by(5).collect();
    commit_truly(&mut world, 100, &map(100, &open, 492));
    let mut config = config(&world);
    config.ahead_max = 10;
    config.partition_bytes_max = 200;
    let member = world.join(config.clone(), held_by_the_first(|o| o == 105));
    world.run_for(Duration::from_secs(5));
    assert!(world.committed(0) == 105 && settled(&world, member) > 0);
    let kept = Map::read(105, &metadata(&world)).unwrap();
    assert_eq!(kept.end(), 492, "far above what was read");
    world.kill(member);
    world.join(config, quick());
    finish(&mut world);
}

/// `ReadOnly` obeys what it finds and leaves nothing behind; `Off` does neither.
#[test]
fn maps_can_be_read_only_or_left_alone() {
    for (policy, expected) in [
        (OffsetMap::ReadOnly, vec![10, 13, 19]),
        (OffsetMap::Off, (10..20).collect()),
    ] {
        let mut world = World::with_topic(1, 1, 10);
        world.fill(1, 20, 20);
        commit_truly(&mut world, 10, &map(10, &[10, 13], 19));
        let mut config = config(&world);
        config.offset_map = policy;
        let script = held_by_the_first(|o| o == 13);
        let member = world.join(config.clone(), script.clone());
        world.run_for(Duration::from_secs(2));
        assert_eq!(offsets_of(&world, member), expected, "{policy:?}");
        assert_eq!(
            (world.committed(0), &metadata(&world)[..]),
            (13, ""),
            "{policy:?}"
        );
        world.kill(member);
        let second = world.join(config, script);
        finish(&mut world);
        assert_eq!(
            offsets_of(&world, second),
            (13..20).collect::<Vec<_>>(),
            "{policy:?}"
        );
    }
}

/// C09, E01: `Wait` stops the partition's intake when its map is nearly full; what is below goes
/// on, retries too, and once it is shorter all goes on. Other partitions do not notice.
#[test]
fn a_full_map_stops_intake_and_nothing_else() {
    let mut world = World::with_topic(1, 2, 11);
    for n in 0..3000i64 {
        let key = n.to_be_bytes();
        world.append("t", 0, &[(Some(&key), Some(b"v"))]);
        world.append("t", 1, &[(Some(&key), Some(b"v"))]);
    }
    let mut config = config(&world);
    config.map_full = MapFull::Wait;
    config.metadata_max = 64;
    config.partition_bytes_max = 2000;
    config.mode = Mode::Any { workers: 200 };
    let script: Script = Arc::new(|_, record| {
        // Slow ones in no pattern, of partition 0 alone; one of them fails a few times first.
        match (record.partition(), record.offset()) {
            (0, 0) if record.attempt() < 5 => Plan::at_once(Outcome::RetryAfter(millis(2000))),
            (0, o) if o * o % 13 < 3 && o < 1000 => Plan::ack(millis(4000)),
            _ => Plan::ack(Duration::ZERO),
        }
    });
    world.join(config, script);
    world.run_until(MINUTE, |w| w.committed(1) == 3000);
    world.run_for(millis(500));
    let first = world.engine(0).snapshot(world.now()).partitions[0].clone();
    assert!(first.map_full && first.watermark == 0, "{first:?}");
    assert!(first.position < 1000, "{first:?}");
    world.run_until(MINUTE * 5, |w| w.all_committed(2));
    assert_eq!(world.open(), []);
    assert!(warnings(&world, 0).is_empty());
    let whole = world
        .cluster
        .commits()
        .filter(|c| c.partition == 0 && !c.committed.metadata.is_empty());
    for c in whole {
        Map::read(c.committed.offset, &c.committed.metadata).unwrap();
    }
}

/// C09: under `Wait` a crash repeats nothing that had settled and been committed, however full
/// the map was; `a crash` comes at any moment.
#[test]
fn under_wait_a_commit_never_says_less_than_the_one_before() {
    for seed in 0..12u64 {
        let mut world = World::with_topic(1, 1, seed);
        world.fill(1, 2000, 2000);
        let mut config = config(&world);
        config.map_full = MapFull::Wait;
        config.metadata_max = 32;
        config.mode = Mode::Any { workers: 300 };
        config.commit_interval = millis(20);
        let script: Script = Arc::new(move |_, record| {
            let o = record.offset() as u64;
            let roll = (o + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ seed) >> 40;
            Plan::ack(millis(if roll.is_multiple_of(5) {
                1500
            } else {
                roll % 40
            }))
        });
        world.join(config.clone(), script.clone());
        world.run_for(millis(300 + 137 * seed));
        let mut covered = BTreeSet::new();
        for c in world.cluster.commits() {
            let map = Map::read(c.committed.offset, &c.committed.metadata).unwrap();
            covered.extend(
                (0..c.committed.offset)
                    .chain((map.base()..map.end()).filter(|o| map.is_settled(*o))),
            );
        }
        world.kill(0);
        let second = world.join(config, script);
        finish(&mut world);
        let again: Vec<i64> = offsets_of(&world, second)
            .into_iter()
            .filter(|o| covered.contains(o))
            .collect();
        assert!(again.is_empty(), "seed {seed}: {again:?}");
    }
}

/// A topic that was made anew inherits no map.
#[test]
fn another_past_inherits_no_map() {
    let mut world = World::with_topic(1, 1, 12);
    world.fill(1, 50, 50);
    let mut config = config(&world);
    config.metadata_age_max = millis(1000);
    config.loss = LossPolicy::Nearest;
    world.join(config.clone(), held_by_the_first(|o| o % 5 == 1));
    world.run_until(MINUTE, |w| settled(w, 0) == 40);
    world.run_for(Duration::from_secs(1));
    assert!(!metadata(&world).is_empty());
    world.recreate_topic("t", 1);
    world.fill(1, 50, 50);
    world.run_for(Duration::from_secs(30));
    let runs = world.handled().len();
    assert!(runs >= 100, "{runs}: each of the new ones ran");
}
