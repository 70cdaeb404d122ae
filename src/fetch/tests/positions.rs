//! Where partitions start, go on, stop and are reset.

use super::rig::*;
use crate::error::ErrorKind;
use crate::fetch::{
    FetchAction, FetchConfig, FetchEvent, FetchLink, FetchState, Hold, Loss, LossPolicy, Start,
    StartOffset,
};
use crate::ids::{LeaseId, TopicId};
use crate::wire::message::EpochEnd;

use FetchLink::{Lookup, Prompt, Waiting};

fn started(rig: &Rig) -> Vec<(i64, StartOffset)> {
    let find = |a: &FetchAction| match a {
        FetchAction::Started { offset, why, .. } => Some((*offset, *why)),
        _ => None,
    };
    rig.said.iter().filter_map(find).collect()
}

fn policy(start: StartOffset) -> Rig {
    let mut rig = Rig::new(FetchConfig {
        start,
        ..FetchConfig::default()
    });
    rig.leader(0, 1, 5);
    rig.add(0, Start::Policy);
    rig.run();
    rig
}

/// The start policy asks the leader; its answer is where reading begins.
#[test]
fn start_policy_asks_the_leader() {
    for (start, timestamp) in [
        (StartOffset::Earliest, -2),
        (StartOffset::Latest, -1),
        (StartOffset::Timestamp(1_700), 1_700),
    ] {
        let mut rig = policy(start);
        assert_eq!(rig.view(0).state, FetchState::Starting);
        assert_eq!(rig.give_offset(42), timestamp);
        assert_eq!(started(&rig), [(42, start)]);
        assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(42));
    }
}

/// Start policy `Fail`: no request, a named error.
#[test]
fn start_policy_fail_stops_with_an_error() {
    let rig = policy(StartOffset::Fail);
    let error = rig.stopped().expect("an error");
    assert_eq!(error.kind(), ErrorKind::Misuse);
    assert_eq!((error.topic(), error.partition()), (Some("t"), Some(0)));
    assert!(rig.out.is_empty());
}

/// F21: time-outs and errors are no answers: no policy runs, the question is asked again.
#[test]
fn f21_transport_failure_runs_no_policy() {
    let mut rig = policy(StartOffset::Latest);
    for _ in 0..600 {
        while rig.is_out(1, Lookup) {
            rig.fail(1, Lookup);
        }
        rig.pass(ms(100));
    }
    assert!((20..100).contains(&rig.sends), "{}", rig.sends);
    assert!(started(&rig).is_empty());
    rig.pass(ms(1_300));
    rig.give_offset_code(-1, 6);
    rig.pass(ms(1_300));
    assert!(started(&rig).is_empty());
    rig.give_offset(7);
    assert_eq!(started(&rig), [(7, StartOffset::Latest)]);
}

/// F21: a fetch that fails runs none either.
#[test]
fn f21_failed_fetch_keeps_the_position() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    for _ in 0..20 {
        rig.fail(1, Prompt);
        rig.pass(ms(1_300));
    }
    assert_eq!(rig.view(0).fetch_position, 100);
    assert!(rig.reset().is_none() && rig.stopped().is_none());
}

/// F31: an offset of -1 means "none so young" for a time, which is the end; else it is no answer.
#[test]
fn f31_negative_offset_is_no_position() {
    let mut rig = policy(StartOffset::Timestamp(9));
    assert_eq!(rig.give_offset(-1), 9);
    assert_eq!(rig.give_offset(70), -1);
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(70));

    let mut rig = policy(StartOffset::Earliest);
    rig.give_offset(-1);
    assert!(rig.out.is_empty() && started(&rig).is_empty());
    rig.pass(ms(200));
    assert_eq!(rig.give_offset(0), -2);
    assert_eq!(started(&rig), [(0, StartOffset::Earliest)]);
}

/// F35: a partition that appeared after the subscription began starts at its first record, though
/// the policy is latest.
#[test]
fn f35_new_partition_starts_at_its_first_record() {
    for start in [StartOffset::Latest, StartOffset::Fail] {
        let mut rig = Rig::new(FetchConfig {
            start,
            ..FetchConfig::default()
        });
        rig.leader(0, 1, 5);
        rig.fetch
            .add(rig.now, lease(0), tp(0), ID, Start::Policy, true);
        rig.run();
        assert_eq!(rig.give_offset(0), -2);
        assert_eq!(started(&rig), [(0, StartOffset::Earliest)]);
    }
}

/// F42: a look-up is pending while another partition of it is revoked: the rest still gets its
/// answer, and one that the answer left out is asked again.
#[test]
fn f42_pending_lookup_survives_a_revoke() {
    let mut rig = policy(StartOffset::Earliest);
    rig.leader(1, 1, 5);
    rig.add(1, Start::Policy);
    rig.fetch.remove(rig.now, lease(0));
    rig.run();
    // The answer is about partition 0 alone.
    rig.give_offset(0);
    assert_eq!(rig.offsets_out(1).topics[0].1[0].partition, 1);
    rig.give_offset(0);
    rig.pass(ms(200));
    assert_eq!(rig.offsets_out(1).topics[0].1[0].partition, 1);
    assert_eq!(rig.fetch.stats().foreign, 2);
}

/// F19: a seek while a look-up is out: the old lease's answer is dropped.
#[test]
fn f19_late_lookup_does_not_move_a_new_position() {
    let mut rig = policy(StartOffset::Earliest);
    rig.fetch.remove(rig.now, lease(0));
    rig.add_as(LeaseId(9), 0, at(100));
    rig.run();
    rig.give_offset(7);
    assert!(started(&rig).is_empty());
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(100));
}

/// F19: as well for a validation.
#[test]
fn f19_late_validation_does_not_end_a_new_lease() {
    let mut rig = Rig::new(FetchConfig::default());
    rig.leader(0, 1, 5);
    rig.add(
        0,
        Start::At {
            offset: 120,
            epoch: 4,
        },
    );
    rig.run();
    rig.leader(0, 1, 6);
    rig.run();
    rig.fetch.remove(rig.now, lease(0));
    rig.add_as(LeaseId(9), 0, at(130));
    rig.run();
    rig.give(1, Prompt, vec![part(0, 200, &[])]);
    rig.give_epoch_end(1, 0, 4, 110);
    assert!(rig.reset().is_none());
}

/// F11, F45: retention moved the start above the position. Each policy, and what it says.
#[test]
fn f11_out_of_range_below_follows_the_policy() {
    for (loss, asked, to) in [
        (LossPolicy::Nearest, &[-2][..], 180),
        (LossPolicy::Earliest, &[-2], 180),
        (LossPolicy::Latest, &[-2, -1], 200),
    ] {
        let mut rig = Rig::with(
            FetchConfig {
                loss,
                start: StartOffset::Latest,
                ..FetchConfig::default()
            },
            1,
        );
        rig.give(1, Prompt, vec![error_part(0, 1)]);
        for timestamp in asked {
            let offset = if *timestamp == -2 { 180 } else { 200 };
            assert_eq!(rig.give_offset(offset), *timestamp);
        }
        assert_eq!(rig.reset(), Some((1, 100, to)));
        let lost = Loss::BelowStart {
            log_start: 180,
            lost: 80,
        };
        assert!(
            rig.said
                .iter()
                .any(|a| matches!(a, FetchAction::Reset { why, .. } if *why == lost))
        );
        assert!(rig.out.is_empty(), "until a new lease");
    }
}

/// F11, F45: what was fetched before is given before the end of the lease is said.
#[test]
fn f45_buffered_records_come_before_the_reset() {
    let mut rig = Rig::with(
        FetchConfig {
            loss: LossPolicy::Nearest,
            ..FetchConfig::default()
        },
        1,
    );
    rig.give(1, Prompt, vec![part(0, 200, &[batch(100, 103)])]);
    rig.give(1, Prompt, vec![error_part(0, 1)]);
    rig.give_offset(150);
    assert!(rig.reset().is_none());
    assert_eq!(rig.take_all(), [(1, 100, 103)]);
    assert_eq!(rig.reset(), Some((1, 103, 150)));
}

/// F11: by default the partition stops, others run.
#[test]
fn f11_out_of_range_stops_by_default_and_others_run() {
    let mut rig = Rig::with(FetchConfig::default(), 2);
    rig.give(
        1,
        Prompt,
        vec![error_part(0, 1), part(1, 103, &[batch(100, 103)])],
    );
    for _ in 0..20 {
        if rig.is_out(1, Lookup) {
            rig.give_offset(180);
        }
        if rig.is_out(1, Prompt) {
            rig.give(1, Prompt, vec![error_part(0, 1)]);
        }
        rig.pass(ms(1_000));
    }
    let error = rig.stopped().expect("stopped");
    assert_eq!((error.offset(), error.code()), (Some(100), Some(1)));
    assert!(error.to_string().contains("80 offsets"), "{error}");
    assert_eq!(rig.view(0).state, FetchState::Ended);
    assert!(rig.asked(1, Waiting, 1).is_some());
    assert_eq!(rig.take_all(), [(2, 100, 103)]);
}

/// F11: a position above the log's end.
#[test]
fn f11_out_of_range_above() {
    for (loss, to) in [
        (LossPolicy::Nearest, 60),
        (LossPolicy::Latest, 60),
        (LossPolicy::Earliest, 20),
    ] {
        let mut rig = Rig::with(
            FetchConfig {
                loss,
                ..FetchConfig::default()
            },
            1,
        );
        rig.give(1, Prompt, vec![error_part(0, 1)]);
        assert_eq!(rig.give_offset(20), -2);
        assert_eq!(rig.give_offset(60), -1);
        assert_eq!(rig.reset(), Some((1, 100, to)));
    }
}

/// F12: out of range for a position that was sought away from is nothing.
#[test]
fn f12_late_out_of_range_after_a_seek() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.fetch.remove(rig.now, lease(0));
    rig.add_as(LeaseId(9), 0, at(500));
    rig.run();
    rig.give(1, Prompt, vec![error_part(0, 1)]);
    assert!(!rig.is_out(1, Lookup));
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(500));
}

/// F13: out of range from a follower: the leader is asked for records, nobody for offsets.
#[test]
fn f13_out_of_range_from_a_follower_counts_for_nothing() {
    let mut rig = Rig::with(
        FetchConfig {
            rack: "east".into(),
            ..FetchConfig::default()
        },
        1,
    );
    let mut named = part(0, 200, &[]);
    named.preferred_replica = 3;
    rig.give(1, Prompt, vec![named]);
    rig.give(3, Prompt, vec![error_part(0, 1)]);
    assert!(!rig.is_out(3, Lookup) && !rig.is_out(1, Lookup));
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(100));
    // The leader's word counts, and the leader is asked for the log's start.
    rig.give(1, Prompt, vec![error_part(0, 1)]);
    assert!(rig.is_out(1, Lookup));
}

/// F14: a new leader's start is above the position for two seconds; nothing is skipped.
#[test]
fn f14_late_local_start_is_waited_out() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    let until = rig.now + ms(2_000);
    while rig.now < until {
        if rig.is_out(1, Prompt) {
            rig.give(1, Prompt, vec![error_part(0, 1)]);
        }
        if rig.is_out(1, Lookup) {
            rig.give_offset(150);
        }
        rig.pass(ms(20));
    }
    rig.pass(ms(2_000));
    rig.give(1, Prompt, vec![part(0, 103, &[batch(100, 103)])]);
    assert!(rig.stopped().is_none() && rig.reset().is_none());
    assert_eq!(rig.take_all(), [(1, 100, 103)]);
    assert!(rig.sends < 40, "{}", rig.sends);
}

/// F14: the offsets say that the position is there: it is read again, after a while, and without
/// the epoch, since a broker that has lost its epochs says "out of range" to that too.
#[test]
fn f14_position_in_range_is_read_again() {
    let mut rig = Rig::new(FetchConfig::default());
    rig.leader(0, 1, 5);
    rig.add(
        0,
        Start::At {
            offset: 100,
            epoch: 5,
        },
    );
    rig.run();
    let asked = rig.asked(1, Prompt, 0).expect("asked");
    assert_eq!(asked.last_fetched_epoch, 5);
    rig.give(1, Prompt, vec![error_part(0, 1)]);
    rig.give_offset(20);
    rig.give_offset(200);
    assert!(rig.out.is_empty());
    rig.pass(ms(200));
    let asked = rig.asked(1, Prompt, 0).expect("asked");
    assert_eq!((asked.offset, asked.last_fetched_epoch), (100, -1));
}

/// F17: a new leader epoch: the leader is asked where the epoch of the last record ended; the
/// log was cut at 110, so the lease ends there.
#[test]
fn f17_truncation_is_found_by_the_epoch() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.give(
        1,
        Prompt,
        vec![part(0, 120, &[batch(100, 105), batch(105, 120)])],
    );
    assert_eq!(rig.fetch.take(rig.now).map(|_| ()), Some(()));
    rig.leader(0, 2, 6);
    rig.run();
    assert!(!rig.is_out(2, Prompt), "not before the position is valid");
    let asked = &rig.epochs_out(2).topics[0].1[0];
    assert_eq!((asked.epoch, asked.current_leader_epoch), (5, 6));
    rig.give_epoch_end(2, 0, 5, 110);
    // Of the two batches one was taken: what lies between is read again.
    assert_eq!(rig.reset(), Some((1, 120, 105)));
    assert!(!rig.fetch.has_buffered());
    let why = Loss::Truncated {
        epoch: 5,
        end_offset: 110,
    };
    assert!(
        rig.said
            .iter()
            .any(|a| matches!(a, FetchAction::Reset { why: w, .. } if *w == why))
    );
}

/// F17: all was taken: the lease goes back to where the histories part. The same from a fetch's
/// own answer (version 12 and up).
#[test]
fn f17_truncation_below_what_was_taken() {
    for by_fetch in [false, true] {
        let mut rig = Rig::with(FetchConfig::default(), 1);
        rig.give(1, Prompt, vec![part(0, 120, &[batch(100, 120)])]);
        rig.take_all();
        rig.leader(0, 2, 6);
        rig.run();
        if by_fetch {
            rig.give_epoch_end(2, 0, 5, 120);
            let asked = rig.asked(2, Prompt, 0).expect("asked");
            assert_eq!(
                (asked.current_leader_epoch, asked.last_fetched_epoch),
                (6, 5)
            );
            let mut cut = part(0, 115, &[]);
            cut.diverging = Some(EpochEnd {
                epoch: 5,
                end_offset: 110,
            });
            rig.give(2, Prompt, vec![cut]);
        } else {
            rig.give_epoch_end(2, 0, 5, 110);
        }
        assert_eq!(rig.reset(), Some((1, 120, 110)));
        assert!(!rig.is_out(2, Prompt));
    }
}

/// F18: (-1, -1) is "cannot tell": reading goes on, and says so once. So does a broker that
/// refuses the question.
#[test]
fn f18_undefined_epoch_end_is_no_loss() {
    for code in [0, 29, 35] {
        let mut rig = Rig::with(FetchConfig::default(), 1);
        for round in 0..3 {
            let base = 100 + 3 * round;
            let node = i32::try_from(1 + round).expect("small");
            rig.give(node, Prompt, vec![part(0, 900, &[batch(base, base + 3)])]);
            rig.leader(0, node + 1, 6 + node);
            rig.run();
            rig.pass(ms(200));
            rig.give_epoch_end(node + 1, code, -1, -1);
            assert!(rig.asked(node + 1, Prompt, 0).is_some());
        }
        assert!(rig.reset().is_none() && rig.stopped().is_none());
        let is =
            |a: &&FetchAction| matches!(a, FetchAction::Notice(FetchEvent::NotValidated { .. }));
        assert_eq!(rig.said.iter().filter(is).count(), 1);
        assert_eq!(rig.take_all().len(), 3);
    }
}

/// F20: the leader changes with each answer: look-ups are paced.
#[test]
fn f20_leader_that_alternates_is_paced() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.give(1, Prompt, vec![part(0, 900, &[batch(100, 103)])]);
    let sends = rig.sends;
    for round in 0..6_000 {
        let node = 1 + round % 2;
        rig.leader(0, node, 6 + round);
        rig.run();
        if rig.is_out(node, Lookup) {
            rig.give_epoch_end(node, 74, -1, -1);
        }
        rig.out.retain(|o| o.link != Prompt);
        rig.pass(ms(10));
    }
    assert!(rig.sends - sends < 100, "{}", rig.sends - sends);
}

/// F22, F23: a leaderless moment's epoch of -1 and a stale broker's lower one undo nothing.
#[test]
fn f22_f23_older_leader_epochs_are_ignored() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.leader(0, 2, 4);
    rig.run();
    assert!(rig.is_out(1, Prompt) && !rig.is_out(2, Prompt));
    rig.leader(0, -1, -1);
    rig.run();
    assert_eq!(rig.view(0).state, FetchState::NoLeader);
    rig.leader(0, 2, 4);
    rig.run();
    assert_eq!(rig.view(0).state, FetchState::NoLeader);
    rig.leader(0, 2, 6);
    rig.run();
    let asked = rig.asked(2, Prompt, 0).expect("asked");
    assert_eq!(asked.current_leader_epoch, 6);
}

/// F28: the topic was made anew: nothing of the old positions holds, and it is loud.
#[test]
fn f28_recreated_topic_ends_the_lease() {
    let new = TopicId([8; 16]);
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.give(1, Prompt, vec![part(0, 900, &[batch(100, 103)])]);
    rig.fetch
        .set_leader(rig.now, &tp(0), Some(crate::ids::NodeId(1)), 0, new);
    rig.run();
    let error = rig.stopped().expect("stopped");
    assert!(error.to_string().contains("made anew"), "{error}");
    assert!(rig.take_all().is_empty());

    let mut rig = Rig::with(
        FetchConfig {
            loss: LossPolicy::Nearest,
            ..FetchConfig::default()
        },
        1,
    );
    rig.fetch
        .set_leader(rig.now, &tp(0), Some(crate::ids::NodeId(1)), 0, new);
    rig.run();
    rig.give(1, Prompt, vec![part(0, 900, &[batch(100, 103)])]);
    assert!(rig.take_all().is_empty(), "an answer of the old topic");
    assert_eq!(rig.give_offset(3), -2);
    assert_eq!(rig.reset(), Some((1, 100, 3)));
    let why = Loss::Recreated { old: ID, new };
    assert!(
        rig.said
            .iter()
            .any(|a| matches!(a, FetchAction::Reset { why: w, .. } if *w == why))
    );
}

/// F36: an answer that comes while paused is kept; a seek drops it.
#[test]
fn f36_pause_keeps_what_comes_and_a_seek_drops_it() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.fetch.hold(lease(0), Hold::Paused, true);
    rig.give(1, Prompt, vec![part(0, 200, &[batch(100, 103)])]);
    assert!(rig.take_all().is_empty());
    assert_eq!(rig.view(0).buffered_bytes, batch(100, 103).len());
    rig.fetch.hold(lease(0), Hold::Paused, false);
    assert_eq!(rig.take_all(), [(1, 100, 103)]);
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(103));
    rig.fetch.hold(lease(0), Hold::Paused, true);
    rig.fetch.remove(rig.now, lease(0));
    rig.add_as(LeaseId(9), 0, at(150));
    rig.fetch.hold(LeaseId(9), Hold::Paused, true);
    rig.run();
    rig.give(1, Prompt, vec![part(0, 200, &[batch(103, 106)])]);
    rig.fetch.hold(LeaseId(9), Hold::Paused, false);
    assert!(rig.take_all().is_empty());
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(150));
}

/// F46: a partition that no metadata names yet waits, asks for metadata at a pace, and is told.
#[test]
fn f46_partition_without_metadata_waits_and_is_told() {
    let mut rig = Rig::new(FetchConfig::default());
    rig.add(0, at(100));
    rig.run();
    assert_eq!(rig.refreshes(), 1);
    rig.pass(ms(20_000));
    assert!((5..60).contains(&rig.refreshes()));
    let told = |a: &FetchAction| matches!(a, FetchAction::Notice(FetchEvent::NoLeader { .. }));
    assert!(rig.said.iter().any(told));
    rig.leader(0, 1, 0);
    rig.run();
    assert!(rig.asked(1, Prompt, 0).is_some());
}
