//! What comes of batches: cut, large, empty, corrupt, markers, aborted ones.

use super::rig::*;
use crate::error::ErrorKind;
use crate::fetch::{FetchAction, FetchConfig, FetchEvent, FetchLink};
use crate::ids::LeaseId;
use crate::records::{BatchBuilder, Compression, ControlKind, Encoder, control_batch};
use crate::wire::message::Isolation;
use bytes::{Bytes, BytesMut};

use FetchLink::{Prompt, Waiting};

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

/// D41, D13: a format that we do not know is asked for once more, for its byte may have been damaged
/// on the way, and then stops the partition by name. A codec that we do not know stops it at once.
#[test]
fn d41_unknown_formats_and_codecs_stop_the_partition() {
    for (at, byte, again) in [(16, 3, true), (22, 7, false)] {
        let mut rig = Rig::with(FetchConfig::default(), 1);
        let mut odd = BytesMut::from(&batch(100, 103)[..]);
        odd[at] = byte;
        let odd = odd.freeze();
        rig.give(1, Prompt, vec![part(0, 109, std::slice::from_ref(&odd))]);
        if again {
            assert!(rig.stopped().is_none());
            rig.give(1, Prompt, vec![part(0, 109, &[odd])]);
        }
        let stopped = rig.stopped().expect("stopped");
        assert_eq!(stopped.offset(), Some(100));
        assert!(
            stopped.to_string().contains("unsupported format"),
            "{stopped}"
        );
        assert!(!rig.is_out(1, Prompt));
    }
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
