//! Sessions, which fetch a partition is in, followers, pacing.

use super::rig::*;
use crate::fetch::{FetchAction, FetchConfig, FetchEvent, FetchLink, FetchState, Hold};
use crate::ids::{LeaseId, NodeId, TopicId};
use crate::wire::Response;
use crate::wire::message::{BrokerEndpoint, Code, Isolation};

use FetchLink::{Prompt, Waiting};

/// A new partition is read without waiting, then joins the long poll; what comes in moves both.
#[test]
fn a_partition_is_prompt_until_caught_up_and_then_waits() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(100));
    assert!(!rig.is_out(1, Waiting));
    rig.give(1, Prompt, vec![part(0, 106, &[batch(100, 103)])]);
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(103));
    rig.give(1, Prompt, vec![part(0, 106, &[batch(103, 106)])]);
    assert!(!rig.is_out(1, Prompt));
    let request = rig.fetch_out(1, Waiting);
    assert_eq!((request.session_id, request.session_epoch), (0, 0));
    assert_eq!(request.max_wait, ms(500));
    assert_eq!(rig.take_all(), [(1, 100, 103), (1, 103, 106)]);
    // The session goes on, and says only what has changed.
    rig.give_session(1, 77, vec![part(0, 108, &[batch(106, 108)])]);
    let request = rig.fetch_out(1, Waiting);
    assert_eq!((request.session_id, request.session_epoch), (77, 1));
    assert_eq!(rig.asked(1, Waiting, 0).map(|p| p.offset), Some(108));
    rig.give_session(1, 77, vec![]);
    let request = rig.fetch_out(1, Waiting);
    assert_eq!((request.session_id, request.session_epoch), (77, 2));
    assert!(request.topics.is_empty() && request.forgotten.is_empty());
    assert_eq!(rig.take_all(), [(1, 106, 108)]);
}

/// A partition that long polls leave behind twice gets its own fetch and leaves the session; one
/// that was only once behind stays.
#[test]
fn a_backlog_leaves_the_session_with_hysteresis() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.open_session();
    rig.give_session(1, 77, vec![part(0, 110, &[batch(100, 102)])]);
    assert!(rig.is_out(1, Waiting) && !rig.is_out(1, Prompt));
    rig.give_session(1, 77, vec![part(0, 110, &[batch(102, 104)])]);
    assert!(!rig.is_out(1, Waiting));
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(104));
    rig.give(1, Prompt, vec![part(0, 110, &[batch(104, 110)])]);
    assert_eq!(rig.asked(1, Waiting, 0).map(|p| p.offset), Some(110));
}

/// A partition that catches up while a long poll without it is out is looked at meanwhile, at
/// growing gaps, and joins when the poll ends.
#[test]
fn a_partition_that_the_long_poll_lacks_is_not_blind() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.open_session();
    rig.leader(1, 1, 5);
    rig.add(1, at(100));
    rig.run();
    let sends = rig.sends;
    for _ in 0..3 {
        rig.give(1, Prompt, vec![part(1, 100, &[])]);
        assert!(!rig.is_out(1, Prompt));
        rig.pass(ms(400));
    }
    assert_eq!(rig.sends - sends, 3);
    rig.give_session(1, 77, vec![]);
    assert!(
        rig.asked(1, Waiting, 1).is_none(),
        "it is in the prompt fetch"
    );
    rig.give(1, Prompt, vec![part(1, 100, &[])]);
    rig.give_session(1, 77, vec![]);
    assert!(rig.asked(1, Waiting, 1).is_some());
}

/// F01: the broker has forgotten the session: same positions, a full request, no event.
#[test]
fn f01_forgotten_session_is_opened_anew_in_silence() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.open_session();
    rig.give_session(1, 77, vec![part(0, 103, &[batch(100, 103)])]);
    let said = rig.said.len();
    rig.answer(1, Waiting, Ok(error_body(70)));
    let request = rig.fetch_out(1, Waiting);
    assert_eq!((request.session_id, request.session_epoch), (0, 0));
    assert_eq!(rig.asked(1, Waiting, 0).map(|p| p.offset), Some(103));
    assert_eq!(rig.said.len(), said);
}

/// F01: and when it always says so, we do not spin.
#[test]
fn f01_a_session_that_is_always_forgotten_is_paced() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.open_session();
    let sends = rig.sends;
    for _ in 0..600 {
        while rig.is_out(1, Waiting) {
            rig.answer(1, Waiting, Ok(error_body(70)));
        }
        rig.pass(ms(100));
    }
    assert!(rig.sends - sends < 120, "{} in a minute", rig.sends - sends);
}

/// F02: the epochs disagree: the session is rebuilt, and the old one closed.
#[test]
fn f02_session_of_another_epoch_is_rebuilt() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.open_session();
    rig.answer(1, Waiting, Ok(error_body(71)));
    let request = rig.fetch_out(1, Waiting);
    assert_eq!((request.session_id, request.session_epoch), (77, 0));
    assert!(rig.asked(1, Waiting, 0).is_some());
    rig.give_session(1, 78, vec![]);
    let request = rig.fetch_out(1, Waiting);
    assert_eq!((request.session_id, request.session_epoch), (78, 1));
}

/// F02: a lost answer leaves the broker's epoch unknown.
#[test]
fn f02_lost_answer_rebuilds_the_session() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.open_session();
    rig.fail(1, Waiting);
    rig.pass(ms(200));
    let request = rig.fetch_out(1, Waiting);
    assert_eq!((request.session_id, request.session_epoch), (77, 0));
    assert!(rig.asked(1, Waiting, 0).is_some());
}

/// F03: no session is granted: every request is a full one.
#[test]
fn f03_session_id_zero_means_full_requests() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.give(1, Prompt, vec![part(0, 100, &[])]);
    for offset in [100, 103, 103] {
        let request = rig.fetch_out(1, Waiting);
        assert_eq!((request.session_id, request.session_epoch), (0, 0));
        assert_eq!(rig.asked(1, Waiting, 0).map(|p| p.offset), Some(offset));
        let records: &[_] = match offset {
            100 => &[batch(100, 103)],
            _ => &[],
        };
        rig.pass(ms(500));
        rig.give_session(1, 0, vec![part(0, 103, records)]);
    }
    assert_eq!(rig.take_all(), [(1, 100, 103)]);
}

/// F05, F38: a revoked partition goes on the forget list, and what still comes for it is dropped.
#[test]
fn f05_revoked_partition_is_forgotten_and_its_late_answer_dropped() {
    let mut rig = Rig::with(FetchConfig::default(), 2);
    rig.give(1, Prompt, vec![part(0, 100, &[]), part(1, 100, &[])]);
    rig.give_session(1, 77, vec![]);
    rig.fetch.remove(rig.now, lease(1));
    rig.run();
    rig.give_session(1, 77, vec![part(1, 103, &[batch(100, 103)])]);
    assert_eq!(rig.fetch.stats().foreign, 1);
    assert!(!rig.fetch.has_buffered());
    let request = rig.fetch_out(1, Waiting);
    assert_eq!(request.forgotten, [("t".into(), ID, vec![1])]);
    assert!(request.topics.is_empty());
    // And the next one does not forget it twice.
    rig.give_session(1, 77, vec![part(1, 103, &[batch(100, 103)])]);
    assert!(rig.fetch_out(1, Waiting).forgotten.is_empty());
    assert!(!rig.fetch.has_buffered());
}

/// F38: granted anew, a partition takes nothing from its old lease's answer.
#[test]
fn f38_answer_of_an_old_lease_does_not_move_the_new_one() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.fetch.remove(rig.now, lease(0));
    rig.add_as(LeaseId(9), 0, at(50));
    rig.run();
    rig.give(1, Prompt, vec![part(0, 103, &[batch(100, 103)])]);
    let view = rig.fetch.view(LeaseId(9)).expect("leased");
    assert_eq!((view.position, view.fetch_position), (50, 50));
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(50));
}

/// F06: the forget list carries the id that the session was told, whatever is known now.
#[test]
fn f06_forget_list_remembers_the_topic_id() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.open_session();
    rig.leader(1, 1, 5);
    rig.add(1, at(0));
    rig.fetch.remove(rig.now, lease(0));
    rig.run();
    rig.give(1, Prompt, vec![part(1, 0, &[])]);
    rig.give_session(1, 77, vec![]);
    assert_eq!(
        rig.fetch_out(1, Waiting).forgotten,
        [("t".into(), ID, vec![0])]
    );
}

/// F07: whatever differs from what was last sent is sent again: here the position of a new lease,
/// though the broker's session holds the partition.
#[test]
fn f07_session_learns_of_a_moved_position() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.open_session();
    rig.fetch.remove(rig.now, lease(0));
    rig.add_as(LeaseId(9), 0, at(40));
    rig.run();
    rig.give(1, Prompt, vec![part(0, 40, &[])]);
    rig.give_session(1, 77, vec![part(0, 103, &[batch(100, 103)])]);
    assert_eq!(rig.asked(1, Waiting, 0).map(|p| p.offset), Some(40));
    assert!(rig.fetch_out(1, Waiting).forgotten.is_empty());
    assert!(!rig.fetch.has_buffered());
}

/// F09: an error of the whole answer, each time: paced, told, positions untouched.
#[test]
fn f09_unknown_top_level_error_is_paced() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    for _ in 0..600 {
        while rig.is_out(1, Prompt) {
            rig.answer(1, Prompt, Ok(error_body(999)));
        }
        rig.pass(ms(100));
    }
    assert!(rig.sends < 100, "{} in a minute", rig.sends);
    assert_eq!(rig.view(0).fetch_position, 100);
    let told = |a: &FetchAction| matches!(a, FetchAction::Notice(FetchEvent::NodeTrouble { error, .. }) if error.code() == Some(999));
    assert!(rig.said.iter().any(told));
}

/// F10: everything paused, or no leader: no request, no wake-up, or few.
#[test]
fn f10_nothing_to_fetch_is_quiet() {
    let mut rig = Rig::with(FetchConfig::default(), 2);
    rig.fetch.hold(lease(0), Hold::Paused, true);
    rig.fetch.hold(lease(1), Hold::Ahead, true);
    rig.give(1, Prompt, vec![part(0, 100, &[]), part(1, 100, &[])]);
    let sends = rig.sends;
    assert_eq!(rig.fetch.next_deadline(), None);
    rig.pass(ms(60_000));
    assert_eq!(rig.sends, sends);

    let mut rig = Rig::new(FetchConfig::default());
    rig.leader(0, -1, -1);
    rig.add(0, at(100));
    rig.run();
    rig.pass(ms(60_000));
    assert_eq!(rig.sends, 0);
    assert!((10..120).contains(&rig.refreshes()), "{}", rig.refreshes());
}

/// F10: a broker that answers long polls at once and empty is not asked in a loop; an honest one
/// is asked as often as it waits.
#[test]
fn f10_hasty_empty_long_polls_are_paced() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.open_session();
    let sends = rig.sends;
    for _ in 0..60_000 {
        if rig.is_out(1, Waiting) {
            rig.give_session(1, 77, vec![]);
        }
        rig.pass(ms(1));
    }
    assert!(rig.sends - sends < 200, "{}", rig.sends - sends);
}

/// D45: under read_committed an open transaction holds answers back: the partition counts as
/// caught up at the last stable offset, polls are paced, both lags can be told.
#[test]
fn d45_open_transaction_does_not_spin() {
    let cfg = FetchConfig {
        isolation: Isolation::ReadCommitted,
        ..FetchConfig::default()
    };
    let mut rig = Rig::with(cfg, 1);
    let stuck = || {
        let mut p = part(0, 200, &[]);
        p.last_stable_offset = 100;
        p
    };
    assert_eq!(rig.fetch_out(1, Prompt).isolation, Isolation::ReadCommitted);
    rig.give(1, Prompt, vec![stuck()]);
    assert!(rig.is_out(1, Waiting) && !rig.is_out(1, Prompt));
    let view = rig.view(0);
    assert_eq!((view.high_watermark, view.last_stable_offset), (200, 100));
    let sends = rig.sends;
    for _ in 0..6_000 {
        if rig.is_out(1, Waiting) {
            rig.give_session(1, 77, vec![stuck()]);
        }
        rig.pass(ms(10));
    }
    assert!(rig.sends - sends < 200, "{}", rig.sends - sends);
}

/// F24: a follower's own answer names no replica, which changes nothing.
#[test]
fn f24_no_replica_named_is_no_change() {
    let mut rig = racked(1);
    redirect(&mut rig, 3);
    for base in [100, 103, 106] {
        assert_eq!(rig.asked(3, Prompt, 0).map(|p| p.offset), Some(base));
        rig.give(3, Prompt, vec![part(0, 200, &[batch(base, base + 3)])]);
    }
    assert!(!rig.is_out(1, Prompt));
}

/// F25: the named replica is not in the cluster: the leader is asked on, in a way that makes it
/// answer, and metadata is refreshed.
#[test]
fn f25_unknown_replica_does_not_strand_the_partition() {
    let mut rig = racked(1);
    rig.fetch.set_nodes(rig.now, [NodeId(1), NodeId(2)]);
    let refreshes = rig.refreshes();
    redirect(&mut rig, 99);
    rig.pass(ms(300));
    assert!(!rig.is_out(99, Prompt));
    assert_eq!(&*rig.fetch_out(1, Prompt).rack, "");
    assert_eq!(rig.refreshes(), refreshes + 1);
    rig.give(1, Prompt, vec![part(0, 103, &[batch(100, 103)])]);
    assert_eq!(rig.take_all(), [(1, 100, 103)]);
}

/// F26: the replica dies: the leader meanwhile; later the leader may name it again.
#[test]
fn f26_dead_replica_falls_back_to_the_leader() {
    let mut rig = racked(1);
    redirect(&mut rig, 3);
    rig.fail(3, Prompt);
    assert!(rig.asked(1, Prompt, 0).is_some());
    assert_eq!(&*rig.fetch_out(1, Prompt).rack, "");
    rig.give(1, Prompt, vec![part(0, 100, &[])]);
    rig.give_session(1, 77, vec![]);
    rig.pass(ms(31_000));
    rig.give_session(1, 77, vec![]);
    assert_eq!(&*rig.fetch_out(1, Waiting).rack, "east");
    let mut named = part(0, 100, &[]);
    named.preferred_replica = 3;
    rig.give_session(1, 77, vec![named]);
    assert!(rig.asked(3, Prompt, 0).is_some());
}

/// F26: a preference ends with its age.
#[test]
fn f26_preference_expires() {
    let mut rig = racked(1);
    redirect(&mut rig, 3);
    rig.pass(ms(301_000));
    rig.give(3, Prompt, vec![part(0, 200, &[batch(100, 103)])]);
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(103));
}

/// F27: back at the leader the position is the one after the follower's last answer.
#[test]
fn f27_going_back_to_the_leader_repeats_nothing() {
    let mut rig = racked(1);
    redirect(&mut rig, 3);
    rig.leader(0, 2, 6);
    rig.run();
    // The follower's answer comes late, for a fetch that is no longer waited for.
    rig.give(3, Prompt, vec![part(0, 200, &[batch(100, 103)])]);
    rig.give(2, Prompt, vec![part(0, 200, &[batch(100, 103)])]);
    assert_eq!(rig.asked(2, Prompt, 0).map(|p| p.offset), Some(103));
    assert_eq!(rig.take_all(), [(1, 100, 103)]);
}

/// F29: UNKNOWN_TOPIC_ID just after creation passes with a refresh; if it lasts it is told.
#[test]
fn f29_unknown_topic_id_is_retried_then_told() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.give(1, Prompt, vec![error_part(0, 100)]);
    assert_eq!(rig.refreshes(), 1);
    assert!(!rig.said.iter().any(|a| matches!(a, FetchAction::Notice(_))));
    for _ in 0..20 {
        rig.pass(ms(1_300));
        rig.give(1, Prompt, vec![error_part(0, 100)]);
    }
    let told = |a: &&FetchAction| {
        matches!(
            a,
            FetchAction::Notice(FetchEvent::Trouble {
                code: Code(100),
                ..
            })
        )
    };
    assert_eq!(rig.said.iter().filter(told).count(), 2);
    rig.pass(ms(1_300));
    rig.give(1, Prompt, vec![part(0, 103, &[batch(100, 103)])]);
    assert_eq!(rig.take_all(), [(1, 100, 103)]);
}

/// Q01, F30: without an id for one topic the request goes by name; a session does not mix.
#[test]
fn f30_zero_topic_id_goes_by_name() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.open_session();
    assert!(rig.fetch_out(1, Waiting).by_id);
    let other = crate::ids::TopicPartition::new("u", 0);
    rig.fetch
        .set_leader(rig.now, &other, Some(NodeId(1)), 1, TopicId::ZERO);
    rig.fetch.add(
        rig.now,
        LeaseId(5),
        other.clone(),
        TopicId::ZERO,
        at(0),
        false,
    );
    rig.run();
    let by_name = |name: &str, partition| {
        let mut body = body(0, vec![partition]);
        body.topics[0].name = name.into();
        body.topics[0].id = TopicId::ZERO;
        Ok(Response::Fetch(body))
    };
    assert!(!rig.fetch_out(1, Prompt).by_id);
    rig.answer(1, Prompt, by_name("u", part(0, 3, &[batch(0, 3)])));
    assert_eq!(rig.take_all(), [(5, 0, 3)]);
    rig.give_session(1, 77, vec![]);
    let request = rig.fetch_out(1, Waiting);
    assert!(!request.by_id);
    assert_eq!((request.session_id, request.session_epoch), (77, 0));
    assert_eq!(request.topics.len(), 2);
}

/// Q07: a cluster in the middle of an upgrade gives an id for one topic late. The session by name
/// is followed by one by id; no position moves, nothing comes twice, nothing is left out.
#[test]
fn q07_names_give_way_to_ids() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.open_session();
    let (other, late) = (crate::ids::TopicPartition::new("u", 0), TopicId([9; 16]));
    let leader = Some(NodeId(1));
    rig.fetch
        .set_leader(rig.now, &other, leader, 1, TopicId::ZERO);
    let (lease, start) = (LeaseId(5), at(0));
    rig.fetch
        .add(rig.now, lease, other.clone(), TopicId::ZERO, start, false);
    rig.run();
    let named = |id: TopicId, session: i32, partitions| {
        let mut body = body(session, partitions);
        for topic in &mut body.topics {
            (topic.name, topic.id) = ("u".into(), id);
        }
        Ok(Response::Fetch(body))
    };
    let first = named(TopicId::ZERO, 0, vec![part(0, 3, &[batch(0, 3)])]);
    rig.answer(1, Prompt, first);
    assert_eq!(rig.take_all(), [(5, 0, 3)]);
    rig.give_session(1, 77, vec![]);
    assert!(!rig.fetch_out(1, Waiting).by_id);

    rig.fetch.set_leader(rig.now, &other, leader, 1, late);
    rig.pass(ms(500)); // an empty answer that comes sooner would be paced
    rig.answer(1, Waiting, named(TopicId::ZERO, 78, vec![]));
    let request = rig.fetch_out(1, Waiting);
    assert!(request.by_id && request.topics.len() == 2, "{request:?}");
    let u = request.topics.iter().find(|t| t.id == late);
    let u = u.expect("the late id is used");
    assert_eq!(u.partitions[0].offset, 3);
    let next = named(late, 79, vec![part(0, 5, &[batch(3, 5)])]);
    rig.answer(1, Waiting, next);
    assert_eq!(rig.take_all(), [(5, 3, 5)]);
}

/// F39: a broker that holds its answers back delays no other.
#[test]
fn f39_slow_broker_delays_no_other() {
    let mut rig = Rig::new(FetchConfig::default());
    for (p, node) in [(0, 1), (1, 2)] {
        rig.leader(p, node, 5);
        rig.add(p, at(100));
    }
    rig.run();
    for base in (100..160).step_by(3) {
        rig.give(2, Prompt, vec![part(1, 900, &[batch(base, base + 3)])]);
        assert_eq!(rig.take_all().len(), 1);
        rig.pass(ms(10));
    }
    assert!(rig.is_out(1, Prompt));
}

/// F41: a leader hint is passed on whole, and the partition waits for the leader it names.
#[test]
fn f41_leader_hint_is_passed_on() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    let mut answer = error_part(0, 6);
    answer.current_leader = Some((4, 6));
    let mut response = body(0, vec![answer]);
    response.endpoints.push(BrokerEndpoint {
        node: NodeId(4),
        host: "four".into(),
        port: 9092,
        rack: None,
    });
    rig.answer(1, Prompt, Ok(Response::Fetch(response)));
    let hinted = rig.said.iter().any(|a| {
        matches!(a, FetchAction::Hint { partition: 0, leader: NodeId(4), epoch: 6, endpoints, .. }
            if endpoints.len() == 1)
    });
    assert!(hinted);
    rig.leader(0, 4, 6);
    rig.run();
    assert!(rig.asked(4, Prompt, 0).is_some(), "at once");
}

/// D43: a partition named twice, or never asked for: the first counts, the rest is counted.
#[test]
fn d43_first_answer_wins_and_foreign_ones_are_dropped() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    let twice = vec![
        part(0, 103, &[batch(100, 103)]),
        part(0, 103, &[batch(100, 103)]),
        part(8, 103, &[batch(100, 103)]),
    ];
    rig.give(1, Prompt, twice);
    assert_eq!(rig.take_all(), [(1, 100, 103)]);
    assert_eq!(rig.fetch.stats().foreign, 2);
}

/// I10: each error that a partition can have is paced, and none moves the position.
#[test]
fn partition_errors_are_paced() {
    for code in [-1, 3, 5, 6, 9, 29, 56, 74, 75, 76, 78, 100, 103, 999] {
        let mut rig = Rig::with(FetchConfig::default(), 1);
        for _ in 0..600 {
            while rig.is_out(1, Prompt) {
                rig.give(1, Prompt, vec![error_part(0, code)]);
            }
            rig.pass(ms(100));
        }
        assert!((10..100).contains(&rig.sends), "{code}: {}", rig.sends);
        assert!(rig.refreshes() < 100);
        assert_eq!(rig.view(0).fetch_position, 100);
        assert_eq!(rig.view(0).high_watermark, -1);
        rig.pass(ms(2_000));
        rig.give(1, Prompt, vec![part(0, 103, &[batch(100, 103)])]);
        assert_eq!(rig.take_all(), [(1, 100, 103)], "{code}");
    }
}

/// E30: a hold is what it was last told to be; C19: a held partition gives nothing and asks for
/// nothing, so its position stands still.
#[test]
fn e30_c19_a_held_partition_stands_still() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.fetch.hold(lease(0), Hold::Ahead, true);
    rig.fetch.hold(lease(0), Hold::Ahead, true);
    rig.give(1, Prompt, vec![part(0, 200, &[batch(100, 103)])]);
    assert!(rig.take_all().is_empty() && !rig.fetch.has_buffered());
    assert_eq!(rig.view(0).state, FetchState::Held);
    assert_eq!(rig.view(0).position, 100);
    assert!(rig.out.is_empty());
    // A new lease begins without a hold.
    rig.fetch.remove(rig.now, lease(0));
    rig.add_as(LeaseId(9), 0, at(100));
    rig.run();
    assert!(rig.is_out(1, Prompt));
}

fn racked(partitions: i32) -> Rig {
    let cfg = FetchConfig {
        rack: "east".into(),
        ..FetchConfig::default()
    };
    Rig::with(cfg, partitions)
}

/// The leader names a replica.
fn redirect(rig: &mut Rig, replica: i32) {
    assert_eq!(&*rig.fetch_out(1, Prompt).rack, "east");
    let mut answer = part(0, 200, &[]);
    answer.preferred_replica = replica;
    rig.give(1, Prompt, vec![answer]);
}
