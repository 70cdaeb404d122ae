//! Where partitions start, go on, stop and are reset.

use super::rig::*;
use crate::error::ErrorKind;
use crate::fetch::{
    FetchAction, FetchConfig, FetchEvent, FetchLink, FetchState, Hold, Loss, LossPolicy, Start,
    StartOffset,
};
use crate::ids::{LeaseId, TopicId};
use crate::records::{BatchBuilder, Compression, ControlKind, Encoder, control_batch};
use crate::wire::message::{EpochEnd, Isolation};
use bytes::{Bytes, BytesMut};

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

/// F14: the offsets say that the position is there: it is read again, after a while.
#[test]
fn f14_position_in_range_is_read_again() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
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

/// D01: a batch cut off at the end is neither an error nor a pause.
#[test]
fn d01_cut_batch_at_the_end_is_asked_for_at_once() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    let cut = batch(103, 106).slice(..40);
    rig.give(1, Prompt, vec![part(0, 106, &[batch(100, 103), cut])]);
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(103));
    assert_eq!(rig.take_all(), [(1, 100, 103)]);
    assert!(rig.said.is_empty());
}

/// D02: a batch larger than the limit comes as a piece: the limit rises to what the piece says,
/// and falls again behind it. Over the cap it is an error that names offset and size.
#[test]
fn d02_limit_rises_to_the_batch_and_a_cap_stops_it() {
    let cfg = FetchConfig {
        partition_max_bytes: 1_000,
        batch_bytes_max: 6_000,
        ..FetchConfig::default()
    };
    let big = |base| sized(base, base + 1, 5_000);
    let mut rig = Rig::with(cfg.clone(), 2);
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.max_bytes), Some(1_000));
    let piece = big(100).slice(..1_000);
    let other = part(1, 900, &[batch(100, 103)]);
    rig.give(1, Prompt, vec![part(0, 200, &[piece]), other]);
    let raised = rig.asked(1, Prompt, 0).map(|p| p.max_bytes);
    assert_eq!(raised, i32::try_from(big(100).len()).ok());
    assert_eq!(rig.asked(1, Prompt, 1).map(|p| p.offset), Some(103));
    rig.give(
        1,
        Prompt,
        vec![part(0, 200, &[big(100)]), part(1, 103, &[])],
    );
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.max_bytes), Some(1_000));
    assert_eq!(rig.take_all(), [(2, 100, 103), (1, 100, 101)]);

    let too_big = sized(101, 102, 7_000);
    rig.give(1, Prompt, vec![part(0, 200, &[too_big.slice(..1_000)])]);
    let error = rig.stopped().expect("stopped");
    assert_eq!(error.offset(), Some(101));
    assert!(
        error.to_string().contains(&too_big.len().to_string()),
        "{error}"
    );
    assert!(rig.asked(1, Waiting, 1).is_some(), "the other flows");

    // Whole, it is refused all the same.
    let mut rig = Rig::with(cfg, 1);
    rig.give(1, Prompt, vec![part(0, 200, &[batch(100, 101), too_big])]);
    assert!(rig.stopped().is_none(), "not before what came first");
    assert_eq!(rig.take_all(), [(1, 100, 101)]);
    assert_eq!(rig.stopped().and_then(|e| e.offset()), Some(101));
}

/// D04, D05, D07: batches with few records or none still move the position.
#[test]
fn d04_d05_emptied_batches_move_the_position() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    let empty = build(BatchBuilder::new(100).covering(149));
    let mut short = BatchBuilder::new(150).covering(159);
    short.push(1, None, None, &[]).expect("first");
    let answer = part(0, 160, &[empty, build(short)]);
    rig.give(1, Prompt, vec![answer]);
    assert_eq!(rig.asked(1, Waiting, 0).map(|p| p.offset), Some(160));
    assert_eq!(rig.take_all(), [(1, -1, 150), (1, 150, 160)]);
}

/// D06: the fetch offset lies inside a batch: records below it are not wanted.
#[test]
fn d06_records_below_the_position_are_marked() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.give(1, Prompt, vec![part(0, 110, &[batch(90, 110)])]);
    assert_eq!(rig.take_all(), [(1, 100, 110)]);
}

/// An answer whose batches all lie below the position is paced and told.
#[test]
fn answers_below_the_position_do_not_spin() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    for _ in 0..600 {
        while rig.is_out(1, Prompt) {
            rig.give(1, Prompt, vec![part(0, 110, &[batch(90, 95)])]);
        }
        rig.pass(ms(100));
    }
    assert!(rig.sends < 100);
    assert!(rig.take_all().is_empty());
    let told = |a: &FetchAction| matches!(a, FetchAction::Notice(FetchEvent::NoProgress { .. }));
    assert!(rig.said.iter().any(told));
}

/// D13: a batch whose checksum does not hold is refetched once, what came before it stands, then
/// the partition stops at its offset; others run.
#[test]
fn d13_corrupt_batch_is_refetched_once_then_stops() {
    let mut rig = Rig::with(FetchConfig::default(), 2);
    let records = [batch(100, 103), batch(103, 106), batch(106, 109)];
    let others = part(1, 100, &[]);
    rig.give(1, Prompt, vec![part(0, 109, &records), others]);
    let corrupt = || crate::Error::new(ErrorKind::Peer, "corrupt batch");
    rig.take_batch();
    rig.take_batch();
    rig.fetch.corrupt(rig.now, lease(0), 103, corrupt());
    rig.run();
    assert!(!rig.fetch.has_buffered());
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(103));
    rig.give(1, Prompt, vec![part(0, 109, &records[1..])]);
    rig.take_batch();
    rig.fetch.corrupt(rig.now, lease(0), 103, corrupt());
    rig.run();
    assert!(rig.stopped().is_some());
    // The long poll that was out still named it; its answer counts for nothing.
    rig.give_session(1, 77, vec![part(0, 109, &[batch(109, 112)])]);
    assert_eq!(
        rig.fetch_out(1, Waiting).forgotten,
        [("t".into(), ID, vec![0])]
    );
    assert!(!rig.is_out(1, Prompt) && !rig.fetch.has_buffered());
    // The user seeks past it: a new lease.
    rig.fetch.remove(rig.now, lease(0));
    rig.add_as(LeaseId(9), 0, at(106));
    rig.run();
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(106));
}

/// D13: an error of transfer heals.
#[test]
fn d13_second_fetch_heals() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    rig.give(1, Prompt, vec![part(0, 103, &[batch(100, 103)])]);
    rig.take_batch();
    let error = crate::Error::new(ErrorKind::Peer, "corrupt batch");
    rig.fetch.corrupt(rig.now, lease(0), 100, error);
    rig.run();
    rig.give(1, Prompt, vec![part(0, 103, &[batch(100, 103)])]);
    assert_eq!(rig.take_all(), [(1, 100, 103)]);
    assert!(rig.stopped().is_none());
}

/// D11, D13: a header that breaks the frame: good batches before it are given, then as above.
#[test]
fn d11_broken_frame_gives_what_came_before_it() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    let mut broken = BytesMut::from(&batch(103, 106)[..]);
    broken[8..12].copy_from_slice(&13i32.to_be_bytes());
    let broken = broken.freeze();
    rig.give(
        1,
        Prompt,
        vec![part(0, 109, &[batch(100, 103), broken.clone()])],
    );
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(103));
    rig.give(1, Prompt, vec![part(0, 109, &[broken])]);
    assert!(rig.stopped().is_none());
    assert_eq!(rig.take_all(), [(1, 100, 103)]);
    assert_eq!(rig.stopped().and_then(|e| e.offset()), Some(103));
}

/// D41: a format that we do not know stops the partition by name. D13's second fetch is spared
/// where the bytes cannot have been damaged.
#[test]
fn d41_old_message_format_stops_at_once() {
    let mut rig = Rig::with(FetchConfig::default(), 1);
    let mut old = BytesMut::from(&batch(100, 103)[..]);
    old[16] = 1;
    rig.give(1, Prompt, vec![part(0, 109, &[old.freeze()])]);
    assert!(rig.stopped().is_some_and(|e| e.offset() == Some(100)));
    assert!(!rig.is_out(1, Prompt));
}

/// D26, D28, D45: markers and aborted records are gaps, in order, under read_committed; under
/// read_uncommitted the aborted records are given.
#[test]
fn d26_d28_markers_and_aborted_records_are_gaps() {
    let log = [
        control_batch(100, ControlKind::Abort, 7, 0, 1, 0),
        transactional(101, 103),
        batch(103, 104),
        control_batch(104, ControlKind::Abort, 7, 0, 1, 0),
        transactional(105, 106),
        control_batch(106, ControlKind::Commit, 7, 0, 1, 0),
    ];
    for isolation in [Isolation::ReadCommitted, Isolation::ReadUncommitted] {
        let mut rig = Rig::with(
            FetchConfig {
                isolation,
                ..FetchConfig::default()
            },
            1,
        );
        let mut answer = part(0, 107, &log);
        answer.aborted = vec![(7, 101)];
        rig.give(1, Prompt, vec![answer]);
        let aborted = match isolation {
            Isolation::ReadCommitted => (1, -1, 103),
            Isolation::ReadUncommitted => (1, 101, 103),
        };
        assert_eq!(
            rig.take_all(),
            [
                (1, -1, 101),
                aborted,
                (1, 103, 104),
                (1, -1, 105),
                (1, 105, 106),
                (1, -1, 107)
            ]
        );
        assert_eq!(rig.view(0).position, 107);
    }
}

/// D32: an aborted batch is left out by its header, still compressed; a broken marker is refused.
#[test]
fn d32_aborted_and_compressed() {
    let mut builder = BatchBuilder::new(100)
        .producer(7, 0, 0)
        .transactional()
        .compression(Compression::Gzip);
    builder.push(1, None, Some(&[0; 500]), &[]).expect("first");
    let mut rig = Rig::with(
        FetchConfig {
            isolation: Isolation::ReadCommitted,
            ..FetchConfig::default()
        },
        1,
    );
    let mut marker = BytesMut::from(&control_batch(101, ControlKind::Abort, 7, 0, 1, 0)[..]);
    marker[70] ^= 1;
    let mut answer = part(0, 102, &[build(builder), marker.freeze()]);
    answer.aborted = vec![(7, 100)];
    rig.give(1, Prompt, vec![answer]);
    assert_eq!(rig.take_all(), [(1, -1, 101)]);
    let refetched = |a: &FetchAction| matches!(a, FetchAction::Notice(FetchEvent::Refetch { .. }));
    assert!(rig.said.iter().any(refetched));
    assert_eq!(rig.asked(1, Prompt, 0).map(|p| p.offset), Some(101));
}

fn build(builder: BatchBuilder) -> Bytes {
    builder.build(&mut Encoder::new()).expect("small")
}

fn transactional(from: i64, to: i64) -> Bytes {
    let mut builder = BatchBuilder::new(from).producer(7, 0, 0).transactional();
    for _ in from..to {
        builder.push(1, None, None, &[]).expect("rising");
    }
    build(builder)
}
