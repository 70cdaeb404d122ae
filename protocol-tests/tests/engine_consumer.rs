//! The new group protocol (KIP-848) as whole subscriptions, against the broker's own coordinator.

use laneway::broker::{Fault, Rule};
use laneway::engine::{Command, Config, Event, Source};
use laneway::group::{GroupProtocol, TopicPattern};
use laneway::{Outcome, StartOffset};
use laneway_protocol_tests::setting::MINUTE;
use laneway_protocol_tests::{Plan, Script, World};
use std::sync::Arc;
use std::time::Duration;

/// ConsumerGroupHeartbeat.
const BEAT: i16 = 68;

fn taking(millis: u64) -> Script {
    Arc::new(move |_, _| Plan {
        takes: Duration::from_millis(millis),
        outcome: Outcome::Ack,
        panics: false,
    })
}

fn config(world: &World) -> Config {
    let mut config = world.config();
    config.group_protocol = GroupProtocol::Consumer;
    config
}

fn held(world: &World, member: usize) -> usize {
    world.engine(member).snapshot(world.now()).partitions.len()
}

fn shares(world: &World, members: &[usize]) -> Vec<usize> {
    members.iter().map(|m| held(world, *m)).collect()
}

fn close(world: &mut World, member: usize) {
    let deadline = world.now() + Duration::from_secs(20);
    world.command(member, 1, Command::Close { deadline });
    world.run_until(MINUTE, |w| w.finished(member).is_some());
    assert!(world.finished(member).unwrap().is_ok(), "{}", world.story());
}

fn epoch(world: &World) -> i32 {
    world
        .cluster
        .consumer_group_view("g")
        .map_or(-1, |g| g.epoch)
}

/// A group of the new protocol reads all of a topic, commits under its epochs, and leaves.
#[test]
fn a_group_reads_and_commits() {
    let mut world = World::with_topic(3, 6, 1);
    world.expect_drained_hand_overs();
    world.fill(6, 300, 30);
    let a = world.join(config(&world), taking(2));
    world.run_until(MINUTE, |w| w.all_committed(6));
    assert_eq!(world.settlings(), 300);
    assert_eq!(world.distinct(), 300);
    close(&mut world, a);
    let group = world.cluster.consumer_group_view("g").unwrap();
    assert_eq!((group.state, group.members.len()), ("Empty", 0));
}

/// G01: members join and leave while records flow: nothing is lost, nothing is run twice, and a
/// member that keeps its partitions goes on with them.
#[test]
fn g01_members_join_and_leave() {
    let mut world = World::with_topic(3, 12, 2);
    world.expect_drained_hand_overs();
    let mut members = vec![world.join(config(&world), taking(5))];
    for round in 0..6 {
        world.fill(12, 240, 60);
        world.run_for(Duration::from_millis(300));
        match round {
            0..3 => members.push(world.join(config(&world), taking(5))),
            _ => {
                let leaver = members.remove(0);
                close(&mut world, leaver);
            }
        }
        let n = members.len();
        world.run_until(MINUTE, |w| shares(w, &members).iter().all(|s| *s == 12 / n));
    }
    world.run_until(MINUTE, |w| w.all_committed(12));
    assert_eq!(world.settlings(), 6 * 240);
    assert_eq!(world.open(), []);
    for member in 0..world.members() {
        let lost = |e: &Event| matches!(e, Event::Lost { .. } | Event::Abandoned { .. });
        assert!(!world.events(member).iter().any(lost), "{}", world.story());
    }
}

/// A killed member is missed by the broker's own session; the rest take over.
#[test]
fn a_killed_member_is_missed() {
    let mut world = World::with_topic(2, 8, 3);
    let a = world.join(config(&world), taking(5));
    let b = world.join(config(&world), taking(5));
    world.run_until(MINUTE, |w| shares(w, &[a, b]) == [4, 4]);
    world.kill(a);
    world.fill(8, 200, 40);
    world.run_until(MINUTE, |w| held(w, b) == 8 && w.all_committed(8));
}

/// G22: a frozen member starts nothing after its session, and is given new leases when it is back.
#[test]
fn g22_a_frozen_member_loses_its_leases() {
    let mut world = World::with_topic(2, 8, 4);
    let a = world.join(config(&world), taking(5));
    let b = world.join(config(&world), taking(5));
    world.run_until(MINUTE, |w| shares(w, &[a, b]) == [4, 4]);
    world.freeze(a);
    world.fill(8, 200, 40);
    world.run_until(MINUTE, |w| held(w, b) == 8 && w.all_committed(8));
    world.thaw(a);
    let lost = |w: &World| {
        let events = w.events(a).iter();
        events.filter(|e| matches!(e, Event::Lost { .. })).count()
    };
    assert_eq!(lost(&world), 4);
    world.run_until(MINUTE, |w| shares(w, &[a, b]) == [4, 4]);
    world.fill(8, 200, 40);
    world.run_until(MINUTE, |w| w.all_committed(8));
}

/// G16: every code that a heartbeat, a commit or a look-up of offsets may be refused with, at every
/// time: all is handled and committed in the end.
#[test]
fn g16_codes_on_every_call_cost_nothing() {
    let mut seed = 10;
    for (api, codes) in [
        (BEAT, &[14, 15, 16, 25, 69, 110][..]),
        (8, &[14, 15, 16, 25, 110, 113]),
        (9, &[14, 15, 16, 25, 113, 88]),
        (10, &[14, 15]),
    ] {
        for code in codes {
            for fault in [Fault::Error(*code), Fault::LateError(*code)] {
                seed += 1;
                let mut world = World::with_topic(3, 6, seed);
                world.fill(6, 120, 30);
                for skip in [0, 2, 5] {
                    let rule = Rule::new(fault.clone()).api(api).times(2);
                    world.cluster.script().add(rule.skip(skip));
                }
                // The very first join with this code says that the group is of another kind.
                if (api, *code) == (BEAT, 69) {
                    world.cluster.script().clear();
                    let rule = Rule::new(fault).api(api).times(1);
                    world.cluster.script().add(rule.skip(2));
                }
                let a = world.join(config(&world), taking(3));
                let b = world.join(config(&world), taking(3));
                world.run_for(Duration::from_secs(3));
                world.fill(6, 120, 30);
                world.run_until(MINUTE * 2, |w| {
                    w.all_committed(6) && shares(w, &[a, b]) == [3, 3]
                });
                assert_eq!(world.open(), [], "{api} {code}");
            }
        }
    }
}

/// G03: STALE_MEMBER_EPOCH: the epoch has moved on while a commit was on its way. The same snapshot goes
/// out under the new one, and nothing is run again.
#[test]
fn g03_a_stale_commit_is_made_again_under_the_new_epoch() {
    let mut world = World::with_topic(1, 4, 40);
    world.expect_drained_hand_overs();
    let a = world.join(config(&world), taking(2));
    world.run_until(MINUTE, |w| held(w, a) == 4);
    world.fill(4, 40, 8);
    world
        .cluster
        .script()
        .add(Rule::new(Fault::Error(113)).api(8).times(3));
    world.run_for(Duration::from_millis(400));
    let before = epoch(&world);
    let b = world.join(config(&world), taking(2));
    world.run_until(MINUTE, |w| {
        shares(w, &[a, b]) == [2, 2] && w.all_committed(4)
    });
    assert!(epoch(&world) > before);
    assert_eq!(world.settlings(), 40);
}

/// G23: FENCED_MEMBER_EPOCH: lost at once, nothing is committed under the old epoch, and the member
/// comes back under the same id.
#[test]
fn g23_fenced_is_lost() {
    let mut world = World::with_topic(1, 4, 41);
    let a = world.join(config(&world), taking(2));
    world.run_until(MINUTE, |w| held(w, a) == 4);
    let id = |w: &World| {
        let group = w.cluster.consumer_group_view("g").unwrap();
        group.members.keys().next().cloned().unwrap()
    };
    let before = id(&world);
    world
        .cluster
        .script()
        .add(Rule::new(Fault::Error(110)).api(BEAT).times(1));
    world.run_until(MINUTE, |w| {
        w.events(a).iter().any(|e| matches!(e, Event::Lost { .. }))
    });
    world.run_until(MINUTE, |w| held(w, a) == 4);
    assert_eq!(id(&world), before);
    world.fill(4, 40, 8);
    world.run_until(MINUTE, |w| w.all_committed(4));
}

/// G16: coordinators move and brokers crash: the same member, at the same epochs.
#[test]
fn g16_coordinators_move() {
    let mut world = World::with_topic(3, 6, 42);
    world.expect_drained_hand_overs();
    let a = world.join(config(&world), taking(3));
    let b = world.join(config(&world), taking(3));
    world.run_until(MINUTE, |w| shares(w, &[a, b]) == [3, 3]);
    let so_far = world.events(a).len();
    for node in [1, 2, 3, 1] {
        let now = world.now();
        world.cluster.move_coordinator(now, "g", node);
        world.fill(6, 60, 12);
        world.run_for(Duration::from_secs(3));
    }
    world.run_until(MINUTE, |w| w.all_committed(6));
    assert_eq!(world.settlings(), 240);
    let lost = |e: &Event| matches!(e, Event::Lost { .. } | Event::Revoked { .. });
    assert!(
        !world.events(a)[so_far..].iter().any(lost),
        "{}",
        world.story()
    );
}

/// A static member that closes leaves its place open (-2): its next life finds all as it was, and
/// nobody else is disturbed. After a kill the next life waits for the old session to end.
#[test]
fn restarts_of_static_members_move_nothing() {
    let mut world = World::with_topic(2, 6, 48);
    world.fill(6, 60, 12);
    let named = |world: &World, name: &str| {
        let mut config = config(world);
        config.instance_id = Some(Arc::from(name));
        config
    };
    let a = world.join(named(&world, "a"), taking(2));
    let b = world.join(named(&world, "b"), taking(2));
    world.run_until(MINUTE, |w| {
        shares(w, &[a, b]) == [3, 3] && w.all_committed(6)
    });
    let (before, so_far) = (epoch(&world), world.events(b).len());
    close(&mut world, a);
    world.fill(6, 60, 12);
    world.run_for(Duration::from_secs(3));
    let a = world.join(named(&world, "a"), taking(2));
    world.run_until(MINUTE, |w| held(w, a) == 3 && w.all_committed(6));
    world.run_for(Duration::from_secs(30));
    assert_eq!(epoch(&world), before);
    let moves = |e: &Event| {
        matches!(
            e,
            Event::Granted { .. } | Event::Revoked { .. } | Event::Lost { .. }
        )
    };
    assert!(
        !world.events(b)[so_far..].iter().any(moves),
        "{}",
        world.story()
    );
    // A killed one did not say that it goes.
    world.kill(a);
    let a = world.join(named(&world, "a"), taking(2));
    world.run_for(Duration::from_secs(3));
    assert_eq!(held(&world, a), 0);
    world.run_until(MINUTE, |w| shares(w, &[a, b]) == [3, 3]);
    assert!(world.finished(a).is_none());
}

/// G14: the answer to a static member's join is lost. The broker takes its second join for a
/// stranger's (apache/kafka#23542), which the member mends at once instead of dying of it.
#[test]
fn g14_a_lost_answer_makes_no_twin() {
    for fault in [Fault::CutAfter, Fault::SwallowAnswer] {
        let mut world = World::with_topic(1, 4, 49);
        world.fill(4, 40, 8);
        world
            .cluster
            .script()
            .add(Rule::new(fault).api(BEAT).times(1));
        let mut settings = config(&world);
        settings.instance_id = Some(Arc::from("a"));
        let a = world.join(settings, taking(1));
        world.run_until(Duration::from_secs(8), |w| held(w, a) == 4);
        world.run_until(MINUTE, |w| w.all_committed(4));
        assert!(world.finished(a).is_none(), "{}", world.story());
    }
}

/// What no retry mends ends the subscription with an error that names the setting.
#[test]
fn refusals_name_the_setting() {
    type Spoil = fn(&mut World, &mut Config);
    let cases: [(i32, &str, Spoil); 6] = [
        (112, "server_assignor", |_, c| {
            c.server_assignor = Some("fair".into())
        }),
        (128, "Topics::pattern", |w, _| {
            w.cluster
                .script()
                .add(Rule::new(Fault::Error(128)).api(BEAT));
        }),
        (69, "group id", |w, _| {
            w.cluster
                .script()
                .add(Rule::new(Fault::Error(69)).api(BEAT));
        }),
        (81, "group.consumer.max.size", |w, _| {
            w.cluster
                .script()
                .add(Rule::new(Fault::Error(81)).api(BEAT));
        }),
        (82, "instance_id", |w, c| {
            c.instance_id = Some("i".into());
            w.cluster
                .script()
                .add(Rule::new(Fault::Error(82)).api(BEAT));
        }),
        (30, "GROUP_AUTHORIZATION_FAILED", |w, _| {
            w.cluster
                .script()
                .add(Rule::new(Fault::Error(30)).api(BEAT));
        }),
    ];
    for (code, words, spoil) in cases {
        let mut world = World::with_topic(1, 2, 43);
        let mut settings = config(&world);
        spoil(&mut world, &mut settings);
        let a = world.join(settings, taking(1));
        world.run_until(MINUTE, |w| w.finished(a).is_some());
        let error = world.finished(a).unwrap().as_ref().unwrap_err();
        assert_eq!(error.code(), Some(code as i16), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// A group with classic members is of another kind for this coordinator: said in words, and what
/// it has committed stays.
#[test]
fn a_group_of_another_kind_is_refused() {
    let mut world = World::with_topic(1, 2, 44);
    world.fill(2, 20, 4);
    let classic = world.join(world.config(), taking(1));
    world.run_until(MINUTE, |w| held(w, classic) == 2 && w.all_committed(2));
    let other = world.join(config(&world), taking(1));
    world.run_until(MINUTE, |w| w.finished(other).is_some());
    let words = world
        .finished(other)
        .unwrap()
        .as_ref()
        .unwrap_err()
        .to_string();
    assert!(words.contains("another kind"), "{words}");
    assert!(world.all_committed(2));
}

/// A broker that is too old does not know the call: that is said, with the way out.
#[test]
fn an_old_broker_is_named() {
    use laneway::broker::{Cluster, ClusterConfig};
    let mut cfg = ClusterConfig::default();
    cfg.versions.insert(BEAT, (1, 0));
    let mut cluster = Cluster::new(cfg);
    cluster.create_topic("t", 2).unwrap();
    let mut world = World::new(cluster, 1, 45);
    let a = world.join(config(&world), taking(1));
    world.run_until(MINUTE, |w| w.finished(a).is_some());
    let words = world.finished(a).unwrap().as_ref().unwrap_err().to_string();
    assert!(
        words.contains("Kafka 4.0") && words.contains("GroupProtocol::Classic"),
        "{words}"
    );
}

fn by_pattern(world: &World, pattern: &str, protocol: GroupProtocol) -> Config {
    let mut config = world.config();
    config.group_protocol = protocol;
    config.metadata_age_max = Duration::from_secs(5);
    config.source = Source::Pattern {
        pattern: TopicPattern::new(pattern).unwrap(),
        group: Arc::from("g"),
    };
    config
}

fn append(world: &mut World, topic: &str, partition: i32, records: usize) {
    for _ in 0..records {
        world.append(topic, partition, &[(Some(b"k"), Some(b"v"))]);
    }
}

fn committed(world: &World, topic: &str, partition: i32) -> i64 {
    let committed = world.cluster.committed("g", topic, partition);
    committed.map_or(-1, |c| c.offset)
}

/// F35: a pattern finds topics and partitions that come later, and reads them from their first
/// record though the policy is the latest; what was there before begins at the latest.
#[test]
fn f35_patterns_find_what_comes_later() {
    for protocol in [GroupProtocol::Classic, GroupProtocol::Consumer] {
        let mut world = World::with_topic(2, 2, 46);
        world.cluster.create_topic("t-x", 1).unwrap();
        world.cluster.create_topic("other", 1).unwrap();
        append(&mut world, "t", 0, 10);
        world.skip_below("t", 0, 10);
        let mut settings = by_pattern(&world, "t(-.*)?", protocol);
        settings.start = StartOffset::Latest;
        let a = world.join(settings.clone(), taking(1));
        let b = world.join(settings, taking(1));
        world.run_until(MINUTE, |w| held(w, a) + held(w, b) == 3);
        world.run_for(Duration::from_secs(2));
        world.cluster.create_topic("t-new", 2).unwrap();
        append(&mut world, "t-new", 0, 5);
        append(&mut world, "t-new", 1, 5);
        world.cluster.add_partitions("t-x", 2).unwrap();
        append(&mut world, "t-x", 1, 5);
        world.run_until(MINUTE, |w| {
            committed(w, "t-new", 0) == 5
                && committed(w, "t-new", 1) == 5
                && committed(w, "t-x", 1) == 5
        });
        assert_eq!(world.distinct(), 15, "{protocol:?}");
        assert_eq!(held(&world, a) + held(&world, b), 6);
        // A deleted topic ends without an error.
        let now = world.now();
        world.cluster.delete_topic(now, "t-x").unwrap();
        world.run_until(MINUTE, |w| held(w, a) + held(w, b) == 4);
        assert!(world.finished(a).is_none() && world.finished(b).is_none());
        append(&mut world, "t-new", 0, 5);
        world.run_until(MINUTE, |w| committed(w, "t-new", 0) == 10);
    }
}

/// F28: a topic that is made anew under its name is another one: nothing of the old positions or
/// commits counts, and its first record is read whatever the policy.
#[test]
fn f28_a_topic_made_anew_begins_afresh() {
    for protocol in [GroupProtocol::Classic, GroupProtocol::Consumer] {
        let mut world = World::with_topic(2, 2, 47);
        world.cluster.create_topic("t-x", 2).unwrap();
        let mut settings = by_pattern(&world, "t.*", protocol);
        settings.start = StartOffset::Latest;
        let a = world.join(settings, taking(1));
        world.run_until(MINUTE, |w| held(w, a) == 4);
        world.run_for(Duration::from_secs(2));
        append(&mut world, "t-x", 0, 20);
        world.run_until(MINUTE, |w| committed(w, "t-x", 0) == 20);
        world.recreate_topic("t-x", 2);
        append(&mut world, "t-x", 0, 7);
        append(&mut world, "t-x", 1, 3);
        world.run_until(MINUTE, |w| {
            committed(w, "t-x", 0) == 7 && committed(w, "t-x", 1) == 3
        });
    }
}
