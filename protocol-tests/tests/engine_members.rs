//! Members of a group as whole subscriptions: hand-overs, expulsions, coordinators, the way out,
//! and the connections that all of it needs.

use laneway::broker::{Fault, Rule};
use laneway::engine::{Command, Config, Event, Source};
use laneway::group::AssignorKind;
use laneway::ids::TopicPartition;
use laneway::lane::Mode;
use laneway_protocol_tests::setting::{MINUTE, always, at_once, millis, secs};
use laneway_protocol_tests::{Plan, Script, World};
use std::sync::Arc;
use std::time::Duration;

const FETCH: i16 = 1;
const OFFSET_COMMIT: i16 = 8;
const OFFSET_FETCH: i16 = 9;
const FIND_COORDINATOR: i16 = 10;
const JOIN_GROUP: i16 = 11;
const HEARTBEAT: i16 = 12;
const SYNC_GROUP: i16 = 14;

fn count(world: &World, member: usize, which: impl Fn(&Event) -> bool) -> usize {
    world.events(member).iter().filter(|e| which(e)).count()
}

fn lost(event: &Event) -> bool {
    matches!(event, Event::Lost { .. })
}

fn granted(event: &Event) -> bool {
    matches!(event, Event::Granted { .. })
}

fn warned(event: &Event) -> bool {
    matches!(event, Event::Warning { .. })
}

/// A group whose hand-overs take their time.
fn patient(world: &World) -> Config {
    let mut config = world.config();
    config.session_timeout = secs(30);
    config.rebalance_timeout = secs(60);
    config.drain_max = secs(20);
    config.heartbeat_interval = millis(500);
    config
}

/// C18, G02, E29: a member that is closing, with handlers that still run, is asked for its
/// partitions by a rebalance. They are not given back while the handlers run, and the other member
/// begins where the last commit of the first one says.
#[test]
fn a_rebalance_while_closing_waits_for_what_runs() {
    for assignor in [AssignorKind::Range, AssignorKind::CooperativeSticky] {
        let mut world = World::with_topic(1, 2, 51);
        world.expect_drained_hand_overs();
        world.fill(2, 100, 2);
        let mut config = patient(&world);
        config.assignors = vec![assignor];
        let script: Script = Arc::new(|member, r| match (member, r.offset()) {
            (0, 20) => Plan::ack(secs(8)),
            _ => Plan::ack(millis(1)),
        });
        world.join(config.clone(), script.clone());
        world.run_until(MINUTE, |w| {
            let runs = w.handled();
            runs.iter().filter(|h| h.offset == 20).count() == 2
        });
        let deadline = world.now() + secs(15);
        world.command(0, 1, Command::Close { deadline });
        world.run_for(millis(100));
        world.join(config, script);
        world.run_until(MINUTE * 2, |w| w.all_committed(2));
        assert!(
            matches!(world.finished(0), Some(Ok(()))),
            "{}",
            world.story()
        );
        assert_eq!(
            world.handled().len(),
            100,
            "{assignor:?}: nothing ran twice"
        );
    }
}

/// C17, C19, C29: partitions go to and fro; each hand-over begins where the last commit says
/// and what had settled is never handled again.
#[test]
fn partitions_that_come_back_begin_at_the_newest_commit() {
    for seed in 0..4 {
        let mut world = World::with_topic(2, 4, seed);
        world.expect_drained_hand_overs();
        world.fill(4, 2000, 4);
        let config = patient(&world);
        let script = always(Plan::ack(millis(10)));
        world.join(config.clone(), script.clone());
        for round in 1..5 {
            world.run_for(millis(900));
            let guest = world.join(config.clone(), script.clone());
            world.run_for(millis(700 * round));
            let deadline = world.now() + secs(5);
            world.command(guest, 1, Command::Close { deadline });
        }
        world.run_until(MINUTE * 2, |w| {
            w.all_committed(4) && (1..5).all(|m| w.finished(m).is_some())
        });
        // Lanes by key, one key a partition: nothing settles above the watermark.
        assert_eq!(world.handled().len(), 2000, "seed {seed}");
        for member in 1..5 {
            assert!(matches!(world.finished(member), Some(Ok(()))));
        }
    }
}

/// C25, E29: the commit of a revoke is never answered. The partitions are given back before the
/// group counts the member out, and nothing is lost.
#[test]
fn a_revoke_commit_that_is_never_answered_costs_no_membership() {
    let mut world = World::with_topic(1, 2, 52);
    world.fill(2, 400, 8);
    let mut config = patient(&world);
    config.rebalance_timeout = secs(30);
    config.drain_max = secs(5);
    config.request_timeout = secs(10);
    config.commit_interval = secs(3600);
    config.client_id = "first".into();
    let script = always(Plan::ack(millis(5)));
    world.join(config.clone(), script.clone());
    world.run_until(MINUTE, |w| w.ended() > 50);
    let rule = Rule::new(Fault::Swallow).api(OFFSET_COMMIT);
    world.cluster.script().add(rule.client_id("first"));
    config.client_id = "second".into();
    config.commit_interval = millis(200);
    world.join(config, script);
    world.run_for(secs(29));
    assert_eq!(count(&world, 0, lost), 0, "{}", world.story());
    assert!(count(&world, 1, granted) >= 1, "{}", world.story());
    world.cluster.script().clear();
    world.run_until(MINUTE * 3, |w| w.open().is_empty());
}

/// G04, G23: a heartbeat says that we are no member. The leases are lost at once, what runs counts
/// for nothing and is dropped, nothing is committed for it, and the member joins anew.
#[test]
fn an_expelled_member_loses_its_leases_at_once() {
    for code in [22, 25] {
        let mut world = World::with_topic(1, 2, 53);
        world.fill(2, 40, 4);
        let mut config = patient(&world);
        config.commit_interval = millis(100);
        world.join(
            config,
            Arc::new(|_, r| match (r.offset(), r.attempt()) {
                (3, _) => Plan::ack(secs(5)),
                _ => Plan::ack(Duration::ZERO),
            }),
        );
        world.run_until(MINUTE, |w| w.handled().iter().any(|h| h.offset == 3));
        let rule = Rule::new(Fault::Error(code)).api(HEARTBEAT).times(1);
        world.cluster.script().add(rule);
        world.run_until(secs(3), |w| count(w, 0, lost) == 2);
        let at = world.now();
        let running = world.handled();
        let running = running.iter().filter(|h| h.offset == 3 && h.began < at);
        assert!(running.clone().count() > 0);
        world.run_until(MINUTE, |w| w.all_committed(2));
        let handled = world.handled();
        let ghosts = handled.iter().filter(|h| h.offset == 3 && h.began < at);
        assert!(
            ghosts.clone().all(|h| h.ended.is_none()),
            "told and dropped"
        );
        assert_eq!(count(&world, 0, granted), 4, "{code}");
    }
}

/// G04, G06: a commit is refused, during a rebalance or by a coordinator that does not know us for
/// a moment. It is made again under the next generation, or under this one where no other comes
/// and heartbeats are fine; it is not put off for ever.
#[test]
fn a_commit_refused_during_a_rebalance_is_made_again() {
    for code in [27, 22, 25, 14, 15, 16, 7] {
        let mut world = World::with_topic(1, 3, 54);
        world.fill(3, 300, 6);
        let config = patient(&world);
        let rule = Rule::new(Fault::Error(code)).api(OFFSET_COMMIT);
        world.cluster.script().add(rule.skip(1).times(2));
        world.join(config, always(Plan::ack(millis(20))));
        world.run_until(MINUTE, |w| w.all_committed(3));
        assert_eq!(world.handled().len(), 300, "{code}: nobody lost anything");
        assert_eq!(count(&world, 0, lost), 0, "{code}");
    }
}

/// G16, G17: the coordinator has moved, is loading, or is not there, whatever is asked of it. The
/// member keeps what it holds and asks again, paced.
#[test]
fn coordinator_errors_on_every_call_cost_nothing() {
    for api in [
        JOIN_GROUP,
        SYNC_GROUP,
        HEARTBEAT,
        OFFSET_FETCH,
        OFFSET_COMMIT,
        FIND_COORDINATOR,
    ] {
        for code in [14, 15, 16] {
            if api == FIND_COORDINATOR && code == 16 {
                continue;
            }
            let mut world = World::with_topic(2, 2, 55);
            world.fill(2, 100, 4);
            let config = patient(&world);
            let rule = Rule::new(Fault::Error(code)).api(api);
            world.cluster.script().add(rule.times(5));
            let asked = world.cluster.requests(FIND_COORDINATOR);
            world.join(config, always(Plan::ack(millis(5))));
            world.run_until(MINUTE, |w| w.all_committed(2));
            assert_eq!(world.handled().len(), 100, "api {api}, code {code}");
            assert_eq!(count(&world, 0, lost), 0, "api {api}, code {code}");
            let asked = world.cluster.requests(FIND_COORDINATOR) - asked;
            assert!(asked < 30, "api {api}, code {code}: asked {asked} times");
        }
    }
}

/// G19, G21: handlers that take longer than the session never endanger it, nor does a rebalance
/// that another member holds up for longer.
#[test]
fn handlers_longer_than_the_session_do_not_endanger_it() {
    let mut world = World::with_topic(1, 4, 56);
    world.fill(4, 24, 4);
    let mut config = world.config();
    config.session_timeout = secs(6);
    config.rebalance_timeout = MINUTE * 2;
    config.drain_max = MINUTE;
    let script: Script = Arc::new(|member, _| match member {
        0 => Plan::ack(secs(20)),
        _ => Plan::ack(Duration::ZERO),
    });
    world.join(config.clone(), script.clone());
    world.run_for(secs(5));
    world.join(config, script);
    world.run_for(secs(15));
    // The second member has been waiting in JoinGroup for longer than the session.
    world.run_until(MINUTE * 3, |w| w.all_committed(4));
    for member in 0..2 {
        assert_eq!(count(&world, member, lost), 0, "{}", world.story());
    }
}

/// G22: no heartbeat is answered for longer than the session. The leases are lost by our own clock,
/// nothing starts after that, and it comes back by itself.
#[test]
fn leases_are_lost_by_our_own_clock_when_no_heartbeat_is_answered() {
    let mut world = World::with_topic(2, 2, 57);
    let coordinator = world.cluster.coordinator("g").unwrap_or(1);
    world.fill(2, 4000, 8);
    let mut config = world.config();
    config.rebalance_timeout = secs(20);
    world.join(config, always(Plan::ack(millis(50))));
    world.run_until(MINUTE, |w| w.ended() > 50);
    for api in [HEARTBEAT, OFFSET_COMMIT, JOIN_GROUP] {
        world
            .cluster
            .script()
            .add(Rule::new(Fault::Swallow).api(api));
    }
    let at = world.now();
    world.run_until(secs(11), |w| count(w, 0, lost) == 2);
    assert!(world.now().since(at) > secs(8), "not before its time");
    let lost_at = world.now();
    world.run_for(secs(20));
    let started = world.handled().iter().filter(|h| h.began > lost_at).count();
    assert_eq!(
        started, 0,
        "nothing starts without a lease, coordinator {coordinator}"
    );
    world.cluster.script().clear();
    world.run_until(MINUTE * 3, |w| w.all_committed(2));
}

/// G24: a revoke with nothing in flight is done at once.
#[test]
fn a_revoke_with_nothing_in_flight_takes_no_time() {
    let mut world = World::with_topic(1, 4, 58);
    world.fill(4, 40, 4);
    let config = patient(&world);
    world.join(config.clone(), at_once());
    world.run_until(MINUTE, |w| w.all_committed(4));
    world.run_for(secs(3));
    let at = world.now();
    world.join(config, at_once());
    world.run_until(secs(10), |w| count(w, 1, granted) == 2);
    assert!(
        world.now().since(at) < secs(2),
        "{:?}",
        world.now().since(at)
    );
}

/// G26, E10: records that were fetched and not begun when their partition left are not handled
/// here any more, and their bytes are returned.
#[test]
fn buffered_records_do_not_survive_a_revoke() {
    let mut world = World::with_topic(1, 2, 59);
    world.expect_drained_hand_overs();
    world.fill(2, 2000, 2);
    let mut config = patient(&world);
    config.budget_bytes = 256 << 10;
    let script = always(Plan::ack(millis(20)));
    world.join(config.clone(), script.clone());
    world.run_until(MINUTE, |w| w.ended() > 20);
    world.join(config, script);
    world.run_until(MINUTE, |w| count(w, 1, granted) == 1);
    let taken_over = world.now();
    world.run_until(MINUTE * 2, |w| w.all_committed(2));
    let runs = world.handled();
    for partition in 0..2 {
        let after = runs
            .iter()
            .filter(|h| h.partition.partition == partition && h.began > taken_over + millis(100));
        let members: std::collections::BTreeSet<_> = after.map(|h| h.member).collect();
        assert_eq!(members.len(), 1, "partition {partition}");
    }
    assert_eq!(runs.len(), 2000);
    world.run_for(secs(3));
    world.assert_idle(0);
    world.assert_idle(1);
}

/// G33: the topic gains partitions while the group rebalances. They are assigned in the end.
#[test]
fn partitions_that_appear_during_a_rebalance_are_assigned() {
    let mut world = World::with_topic(1, 2, 60);
    world.fill(2, 40, 4);
    let mut config = patient(&world);
    config.metadata_age_max = secs(4);
    let rule = Rule::new(Fault::Delay(secs(3))).api(SYNC_GROUP);
    world.cluster.script().add(rule.times(3));
    world.join(config.clone(), at_once());
    world.join(config, at_once());
    world.run_for(millis(500));
    world.cluster.add_partitions("t", 5).unwrap();
    world.append("t", 4, &[(None, Some(b"new"))]);
    world.run_until(MINUTE, |w| w.all_committed(5));
    let snapshots = [0, 1].map(|m| world.engine(m).snapshot(world.now()).partitions.len());
    assert_eq!(snapshots[0] + snapshots[1], 5);
}

/// G36, C21: the topic is deleted while its partitions are being given back: nothing hangs, the
/// member is told, and it can leave.
#[test]
fn a_topic_deleted_during_a_rebalance_hangs_nobody() {
    let mut world = World::with_topic(1, 2, 61);
    world.cluster.create_topic("other", 2).unwrap();
    world.fill(2, 400, 4);
    let mut config = patient(&world);
    config.metadata_age_max = secs(3);
    config.drain_max = secs(3);
    world.join(config.clone(), always(Plan::ack(millis(50))));
    world.run_until(MINUTE, |w| w.ended() > 20);
    world.join(config, always(Plan::ack(millis(50))));
    let now = world.now();
    world.cluster.delete_topic(now, "t").unwrap();
    world.run_for(secs(20));
    let finds = world.cluster.requests(OFFSET_COMMIT);
    world.run_for(MINUTE);
    assert!(world.cluster.requests(OFFSET_COMMIT) - finds < 70, "paced");
    for member in 0..2 {
        let deadline = world.now() + secs(5);
        world.command(member, 1, Command::Close { deadline });
        world.run_until(secs(30), |w| w.finished(member).is_some());
        assert!(
            matches!(world.finished(member), Some(Ok(()))),
            "{}",
            world.story()
        );
    }
}

/// E21, E22: a drain of three minutes sends no fetch, keeps the membership alive, and runs what was
/// dealt to its end.
#[test]
fn a_long_drain_fetches_nothing_and_keeps_the_session() {
    let mut world = World::with_topic(1, 2, 62);
    world.fill(2, 200, 4);
    let mut config = world.config();
    config.session_timeout = secs(10);
    world.join(config, always(Plan::ack(secs(6))));
    world.run_for(secs(1));
    world.command(0, 1, Command::Drain);
    world.run_for(millis(700));
    let (fetches, beats) = (
        world.cluster.requests(FETCH),
        world.cluster.requests(HEARTBEAT),
    );
    world.run_for(MINUTE * 3);
    assert_eq!(world.cluster.requests(FETCH), fetches, "no intake");
    assert!(world.cluster.requests(HEARTBEAT) - beats > 150, "alive");
    assert_eq!(count(&world, 0, lost), 0);
    let group = world.cluster.group_view("g").unwrap();
    assert_eq!(group.members.len(), 1);
    world.run_until(MINUTE * 10, |w| w.finished(0).is_some());
    assert!(world.handled().iter().all(|h| h.ended.is_some()));
    let committed: i64 = (0..2).map(|p| world.committed(p)).sum();
    assert_eq!(usize::try_from(committed).unwrap(), world.ended());
}

/// E21: a drain that is asked for while the committed offsets are still being looked up reads
/// nothing afterwards either.
#[test]
fn a_drain_before_the_start_reads_nothing() {
    let mut world = World::with_topic(1, 2, 63);
    world.fill(2, 200, 4);
    let rule = Rule::new(Fault::Delay(secs(2))).api(OFFSET_FETCH);
    world.cluster.script().add(rule);
    let config = world.config();
    world.join(config, at_once());
    world.run_until(secs(10), |w| w.cluster.requests(OFFSET_FETCH) > 0);
    world.command(0, 1, Command::Drain);
    world.run_until(MINUTE, |w| w.finished(0).is_some());
    assert!(
        matches!(world.finished(0), Some(Ok(()))),
        "{}",
        world.story()
    );
    assert_eq!(world.cluster.requests(FETCH), 0);
    assert_eq!(world.handled().len(), 0);
}

/// I7: who is in no group is over as soon as its drain is, whatever still runs: the executors are
/// told to drop it before the end, for nothing follows that.
#[test]
fn what_runs_is_dropped_before_the_end() {
    let mut world = World::with_topic(1, 1, 91);
    world.fill(1, 20, 4);
    let mut config = world.config();
    config.source = Source::Partitions {
        partitions: vec![TopicPartition::new("t", 0)],
        group: Some("g".into()),
    };
    world.join(config, always(Plan::ack(MINUTE)));
    world.run_until(MINUTE, |w| w.handled().len() == 4);
    let deadline = world.now() + millis(100);
    world.command(0, 1, Command::Close { deadline });
    // The world fails at an action that comes after the end.
    world.run_until(secs(10), |w| w.finished(0).is_some());
    world.run_for(secs(1));
    let abandoned = count(&world, 0, |e| {
        matches!(e, Event::Abandoned { records: 4, .. })
    });
    assert_eq!((abandoned, world.ended()), (1, 0));
}

/// C18, E22: close drops what has not begun, lets what runs end, commits it and leaves, in this
/// order; the broker sees the last commit before the leave.
#[test]
fn close_ends_what_runs_and_drops_what_waits() {
    let mut world = World::with_topic(1, 1, 64);
    world.fill(1, 500, 1);
    let mut config = world.config();
    config.commit_interval = secs(3600);
    world.join(config, always(Plan::ack(millis(300))));
    world.run_until(MINUTE, |w| w.handled().len() == 5);
    let deadline = world.now() + secs(10);
    world.command(0, 1, Command::Close { deadline });
    world.run_until(secs(5), |w| w.finished(0).is_some());
    assert_eq!(world.handled().len(), 5);
    assert_eq!(world.ended(), 5, "what ran has ended");
    assert_eq!(world.committed(0), 5);
    assert_eq!(world.cluster.group_view("g").unwrap().members.len(), 0);
    assert_eq!(world.replies(0).len(), 1);
}

/// C18, E23: every broker is gone; close ends within its deadline all the same.
#[test]
fn close_with_no_broker_ends_in_time() {
    let mut world = World::with_topic(1, 2, 65);
    world.fill(2, 100, 4);
    let config = world.config();
    world.join(config, always(Plan::ack(millis(100))));
    world.run_until(MINUTE, |w| w.ended() > 5);
    world.mute(0, 1);
    world.run_for(secs(2));
    let deadline = world.now() + secs(3);
    world.command(0, 1, Command::Close { deadline });
    world.run_until(secs(20), |w| w.finished(0).is_some());
    assert_eq!(world.replies(0).len(), 1);
}

/// E23, E28: however many commands wait for an answer, a close is obeyed, and everyone is answered.
#[test]
fn a_close_is_obeyed_however_many_commands_wait() {
    let mut world = World::with_topic(1, 1, 71);
    world.fill(1, 20, 2);
    let config = world.config();
    world
        .cluster
        .script()
        .add(Rule::new(Fault::Swallow).api(OFFSET_COMMIT));
    world.join(config, at_once());
    world.run_until(MINUTE, |w| w.ended() == 20);
    for id in 0..100 {
        world.command(0, id, Command::CommitNow);
    }
    let refused = world.replies(0).len();
    assert!((30..=40).contains(&refused), "bounded: {refused}");
    for id in 100..200 {
        let deadline = world.now() + secs(3);
        world.command(0, id, Command::Close { deadline });
    }
    world.run_until(secs(10), |w| w.finished(0).is_some());
    let mut ids: Vec<_> = world.replies(0).iter().map(|(id, _)| id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..200).collect::<Vec<_>>(), "each once");
}

/// L02: a peer that goes mute, without a word, is given up after the request's time-out; fetching
/// goes on over a new connection and nothing is handled twice.
#[test]
fn a_mute_peer_is_given_up_and_nothing_repeats() {
    let mut world = World::with_topic(2, 2, 66);
    world.fill(2, 100, 4);
    let mut config = patient(&world);
    config.request_timeout = secs(4);
    world.join(config, always(Plan::ack(millis(5))));
    world.run_until(MINUTE, |w| w.all_committed(2));
    for node in 1..=2 {
        world.mute(0, node);
        world.run_for(secs(8));
        world.unmute(0, node);
        world.fill(2, 100, 4);
        world.run_until(secs(20), |w| w.all_committed(2));
    }
    assert_eq!(world.handled().len(), 300);
    assert_eq!(count(&world, 0, lost), 0);
}

/// L15, L17: every node that metadata knows is replaced by one at another address. The bootstrap
/// addresses lead to the new ones, without a restart.
#[test]
fn replaced_brokers_are_found_by_the_bootstrap_addresses() {
    let mut world = World::with_topic(2, 2, 67);
    world.fill(2, 100, 4);
    let mut config = patient(&world);
    config.metadata_age_max = secs(20);
    world.join(config, always(Plan::ack(millis(5))));
    world.run_until(MINUTE, |w| w.all_committed(2));
    // Metadata names addresses that lead nowhere; then it is mended.
    for node in 1..=2 {
        world
            .cluster
            .set_advertised(node, "broker", 7000 + node as u16);
    }
    world.cut(0);
    world.run_for(secs(30));
    for node in 1..=2 {
        world
            .cluster
            .set_advertised(node, "broker", 9000 + node as u16);
    }
    world.fill(2, 100, 4);
    world.run_until(MINUTE * 3, |w| w.all_committed(2));
    assert_eq!(world.distinct(), 200);
}

/// L18: a broker that asks for a new bootstrap again and again (129) is obeyed, paced.
#[test]
fn rebootstrap_again_and_again_is_paced() {
    let mut world = World::with_topic(2, 2, 68);
    world.fill(2, 100, 4);
    let mut config = patient(&world);
    config.metadata_age_max = secs(5);
    world.join(config, always(Plan::ack(millis(5))));
    world.run_until(MINUTE, |w| w.all_committed(2));
    world
        .cluster
        .script()
        .add(Rule::new(Fault::TopError(129)).api(3));
    let asked = world.cluster.requests(3);
    world.run_for(MINUTE);
    assert!(world.cluster.requests(3) - asked < 200);
    world.cluster.script().clear();
    world.fill(2, 100, 4);
    world.run_until(MINUTE, |w| w.all_committed(2));
}

/// E28: an error that nothing mends ends the subscription at once, every command that waits hears
/// it, and nothing is said afterwards.
#[test]
fn a_fatal_error_answers_everyone_at_once() {
    let mut world = World::with_topic(1, 2, 69);
    world.fill(2, 400, 4);
    let config = patient(&world);
    world.join(config, always(Plan::ack(millis(500))));
    world.run_until(MINUTE, |w| w.ended() > 5);
    world.command(0, 1, Command::Drain);
    world.command(0, 2, Command::CommitNow);
    let rule = Rule::new(Fault::Error(30)).api(HEARTBEAT);
    world.cluster.script().add(rule);
    world.run_until(secs(5), |w| w.finished(0).is_some());
    let error = world.finished(0).unwrap().as_ref().unwrap_err();
    assert_eq!(error.code(), Some(30), "{error}");
    let drained = world.replies(0).iter().find(|(id, _)| id.0 == 1).unwrap();
    assert_eq!(drained.1.as_ref().unwrap_err().code(), Some(30));
    assert_eq!(world.replies(0).len(), 2);
    // What still ran comes back to an engine that has ended.
    world.run_for(secs(30));
    assert_eq!(count(&world, 0, warned), 0);
}

/// E23, G01: handlers outlive the drain of a revoke. They are abandoned at its deadline, the
/// partition moves on, and what they return counts for nothing.
#[test]
fn handlers_that_outlive_a_drain_are_abandoned() {
    let mut world = World::with_topic(1, 2, 70);
    world.fill(2, 40, 2);
    let mut config = patient(&world);
    config.drain_max = secs(3);
    config.mode = Mode::Fixed { lanes: 256 };
    let script: Script = Arc::new(|member, r| match (member, r.offset()) {
        (0, 5) => Plan::ack(secs(3600)),
        _ => Plan::ack(Duration::ZERO),
    });
    world.join(config.clone(), script.clone());
    world.run_until(MINUTE, |w| w.ended() == 10);
    // Two keys in two of 256 lanes: each partition stands at its own record 5.
    assert!((0..2).all(|p| world.committed(p) <= 5));
    world.join(config, script);
    world.run_until(secs(20), |w| count(w, 1, granted) == 1);
    assert!(
        count(&world, 0, |e| matches!(
            e,
            Event::Abandoned { records: 1.., .. }
        )) >= 1
    );
    let moved = world
        .handled()
        .iter()
        .any(|h| h.member == 1 && h.offset == 5);
    world.run_for(secs(5));
    assert!(
        moved
            || world
                .handled()
                .iter()
                .any(|h| h.member == 1 && h.offset == 5)
    );
    assert_eq!(count(&world, 0, lost), 0);
}
