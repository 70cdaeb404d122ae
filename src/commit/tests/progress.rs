//! What is committed, and when.

use super::*;

#[test]
fn progress_waits_for_the_interval_and_one_commit_carries_all() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 5);
    b.pass(SEC(3));
    b.note(P1, 8);
    b.note(P0, 6);
    assert!(b.commits.is_empty());
    let start = b.now;
    b.next_commit();
    assert_eq!(b.now.since(start), SEC(2), "five seconds after the first");
    assert_eq!((b.in_flight(0), b.in_flight(1)), (Some(6), Some(8)));
    b.answer(0);
    assert_eq!((b.committed(P0), b.committed(P1)), (Some(6), Some(8)));
    // Nothing new: nothing is sent until the partitions must be kept alive.
    b.pass(SEC(3000));
    assert_eq!(b.sent, 1);
}

#[test]
fn enough_settled_records_do_not_wait() {
    let mut b = Bench::two(|c| c.every = 3);
    b.note(P0, 1);
    b.note(P0, 2);
    assert!(b.commits.is_empty());
    b.note(P0, 3);
    assert_eq!(b.in_flight(0), Some(3));
    // What settles meanwhile counts for the next one.
    for offset in 4..=6 {
        b.note(P0, offset);
    }
    b.answer(0);
    assert_eq!(b.in_flight(0), Some(6));
}

/// C01: the watermark is the next offset to read, and goes out as it is.
#[test]
fn c01_the_commit_is_the_next_offset() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 42); // record 41 settled
    b.flush(&[P0], SEC(1));
    assert_eq!(b.in_flight(0), Some(42));
}

/// C02: however many ask for a commit, one is in flight, and the newest goes last.
#[test]
fn c02_one_commit_in_flight() {
    let mut b = Bench::two(|c| c.every = 1);
    b.note(P0, 10);
    assert_eq!(b.in_flight(0), Some(10));
    b.note(P0, 20);
    b.flush(&[P0], SEC(60));
    b.commit.flush_all(b.now, b.now + SEC(60));
    b.pass(SEC(20));
    b.commit.set_coordinator(b.now, false);
    b.commit.set_coordinator(b.now, true);
    b.member(member(2));
    assert_eq!(b.sent, 1, "the first is still out");
    b.answer(0);
    assert_eq!((b.sent, b.in_flight(0)), (2, Some(20)));
    assert_eq!(b.generation(), 2);
    // The first answer once more changes nothing.
    b.commit.handle_response(b.now, Token(0), Err(broken()));
    b.drain();
    assert_eq!(b.sent, 2);
    b.answer(0);
    assert_eq!(b.committed(P0), Some(20));
}

/// C05: offset, epoch and metadata are of one moment, and a change of any goes out.
#[test]
fn c05_offset_and_map_are_one_snapshot() {
    let mut b = Bench::two(|_| {});
    let at = |offset, map: &str| Progress::new(offset, 7).expect("legal").with_metadata(map);
    b.note_as(P0, at(100, "map of 100"));
    b.next_commit();
    b.note_as(P0, at(105, "map of 105"));
    let sent = b.commits[0].1.topics[0].partitions[0].clone();
    assert_eq!(
        (sent.offset, sent.metadata.as_deref()),
        (100, Some("map of 100"))
    );
    b.answer(0);
    b.next_commit();
    let sent = b.commits[0].1.topics[0].partitions[0].clone();
    assert_eq!(
        (sent.offset, sent.metadata.as_deref()),
        (105, Some("map of 105"))
    );
    b.answer(0);
    // The watermark stands still while more settles above it.
    b.note_as(P0, at(105, "fuller map of 105"));
    b.next_commit();
    let sent = b.commits[0].1.topics[0].partitions[0].clone();
    assert_eq!(
        (sent.offset, sent.metadata.as_deref()),
        (105, Some("fuller map of 105"))
    );
    b.answer(0);
    let sent = b.sent;
    b.note_as(P0, at(105, "fuller map of 105"));
    b.pass(SEC(60));
    assert_eq!(b.sent, sent, "the same again is no progress");
}

/// C12, KIP-211: idle partitions are committed again while we own them, so that the broker does
/// not forget them; silently, and never further than we know.
#[test]
fn c12_idle_partitions_are_kept_alive() {
    let mut b = Bench::new();
    b.load(&[(P0, 0), (P1, 1)]);
    b.answer_load(0, vec![held(0, 100), held(1, -1)]);
    b.did.clear();
    for _ in 0..24 {
        b.next_commit();
        assert_eq!((b.in_flight(0), b.in_flight(1)), (Some(100), None));
        b.answer(0);
    }
    assert!(b.did.is_empty(), "{:?}", b.did);
    assert_eq!(b.now, Now(1_000_000_000) + SEC(3600) * 24);
}

/// C13: a negative commit cannot be made.
#[test]
fn c13_negative_is_unrepresentable() {
    assert!(Progress::new(-1, 0).is_none());
    assert!(Progress::new(i64::MIN, 0).is_none());
    assert!(Progress::new(0, -9).is_some_and(|p| p.leader_epoch == -1));
}

/// C15: nothing to send is nothing in flight, and the flush ends at once.
#[test]
fn c15_an_empty_commit_is_none() {
    let mut b = Bench::two(|_| {});
    b.flush(&[P0, P1], SEC(60));
    assert!(b.commits.is_empty());
    assert!(!b.commit.in_flight());
    assert_eq!(b.flushed(), [(P0, true), (P1, true)]);
    assert!(!b.commit.is_flushing());
    b.note(P0, 3);
    b.flush(&[P0, P1], SEC(60));
    assert_eq!(b.flushed(), [(P1, true)]);
    b.answer(0);
    assert_eq!(b.flushed(), [(P0, true)]);
    assert!(!b.commit.in_flight());
}

/// C16: offsets alone tell the order inside a lease; an unknown epoch hides no progress.
#[test]
fn c16_order_is_by_offset() {
    let mut b = Bench::two(|_| {});
    b.note_as(P0, Progress::new(5, 3).expect("legal"));
    b.next_commit();
    b.answer(0);
    b.note_as(P0, Progress::new(10, -1).expect("legal"));
    b.next_commit();
    assert_eq!(b.in_flight(0), Some(10));
    b.answer(0);
    assert_eq!(b.committed(P0), Some(10));
}

/// C17, I2: what an ended lease had is never sent for the next one.
#[test]
fn c17_a_new_lease_inherits_nothing() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 100);
    b.commit.end(P0);
    let next = LeaseId(20);
    b.load(&[(next, 0)]);
    b.answer_load(0, vec![held(0, 500)]);
    b.commit.flush_all(b.now, b.now + SEC(60));
    b.note(P0, 101); // a late result of the lease that ended
    b.pass(SEC(60));
    assert_eq!(b.sent, 0);
    b.note(next, 400);
    b.pass(SEC(60));
    assert_eq!(b.sent, 0, "never back within a lease");
    b.note(next, 501);
    b.next_commit();
    assert_eq!(b.in_flight(0), Some(501));
}

/// C26: the epoch of the last settled record goes with the offset.
#[test]
fn c26_the_leader_epoch_is_sent() {
    let mut b = Bench::two(|_| {});
    b.note_as(P0, Progress::new(10, 12).expect("legal"));
    b.next_commit();
    assert_eq!(b.commits[0].1.topics[0].partitions[0].leader_epoch, 12);
    assert_eq!(b.commits[0].1.topics[0].id, ID);
}

/// C28: progress between the snapshot and its answer is not lost.
#[test]
fn c28_progress_while_in_flight_is_committed_next() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.next_commit();
    b.note(P0, 11);
    b.answer(0);
    assert_eq!(b.committed(P0), Some(10));
    // Nothing else happens, and still it goes out.
    b.next_commit();
    assert_eq!(b.in_flight(0), Some(11));
    b.answer(0);
    assert_eq!(b.committed(P0), Some(11));
}

/// C28: a flush asked for while an older commit is out waits for the newer one.
#[test]
fn c28_a_flush_waits_for_what_came_after_the_snapshot() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.next_commit();
    b.note(P0, 11);
    b.flush(&[P0], SEC(60));
    b.answer(0);
    assert!(b.flushed().is_empty());
    assert_eq!(b.in_flight(0), Some(11));
    b.answer(0);
    assert_eq!(b.flushed(), [(P0, true)]);
}

/// C29: results that come while the flush runs count for it.
#[test]
fn c29_progress_during_a_flush_is_part_of_it() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.flush(&[P0], SEC(60));
    for offset in 11..=15 {
        b.note(P0, offset);
    }
    b.answer(0);
    assert_eq!(b.in_flight(0), Some(15));
    b.answer(0);
    assert_eq!(b.flushed(), [(P0, true)]);
    assert_eq!(b.committed(P0), Some(15));
}

/// G02: after the lease is lost nothing of it goes out, not even by a retry, and the answer to
/// what is out means nothing.
#[test]
fn g02_nothing_is_committed_for_a_lost_lease() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 101);
    b.note(P1, 1);
    b.next_commit();
    b.note(P0, 102);
    b.commit.end(P0);
    b.member(member(2));
    b.fail(broken());
    b.note(P0, 103);
    b.next_commit();
    assert_eq!((b.in_flight(0), b.in_flight(1)), (None, Some(1)));
    assert_eq!(b.generation(), 2);
    b.answer(0);
    b.pass(SEC(60));
    assert!(!b.has(|a| matches!(a, CommitAction::Committed { lease: P0, .. })));
    assert_eq!(b.committed(P0), None);
}

/// An ended lease ends its flush, so that nobody waits for it.
#[test]
fn an_ended_lease_ends_its_flush() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 1);
    b.flush(&[P0], SEC(60));
    b.commit.end(P0);
    b.drain();
    assert_eq!(b.flushed(), [(P0, false)]);
    b.answer(0);
    assert!(b.did.is_empty(), "{:?}", b.did);
}
