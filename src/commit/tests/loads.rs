//! What was committed before: look-ups when a lease begins.

use super::*;

/// C10: no metadata comes back as an empty text from the broker, and is none.
#[test]
fn c10_empty_metadata_is_none() {
    let mut b = Bench::new();
    b.load(&[(P0, 0), (P1, 1)]);
    let mut with = held(1, 8);
    with.metadata = Some("map".into());
    b.answer_load(0, vec![held(0, 7), with]);
    let found: Vec<Option<Arc<str>>> = b
        .did
        .iter()
        .filter_map(|a| match a {
            CommitAction::Loaded { committed, .. } => committed.clone().map(|c| c.metadata),
            _ => None,
        })
        .collect();
    assert_eq!(found, [None, Some("map".into())]);
}

/// C12: only -1 means that nothing was committed.
#[test]
fn c12_only_minus_one_is_nothing() {
    let mut b = Bench::new();
    b.load(&[(P0, 0), (P1, 1)]);
    assert!(b.loads[0].1.require_stable);
    b.answer_load(0, vec![held(0, -1), held(1, -2)]);
    assert_eq!(b.loaded(), [(P0, None)]);
    b.next_load();
    b.answer_load(0, vec![held(1, 0)]);
    assert_eq!(b.loaded(), [(P0, None), (P1, Some(0))]);
}

/// C17: a partition granted again while its old commit is still out is read after that commit.
#[test]
fn c17_a_load_waits_for_the_commit_of_its_partition() {
    let mut b = Bench::two(|c| c.every = 1);
    b.note(P0, 100);
    b.commit.end(P0);
    b.load(&[(LeaseId(20), 0), (LeaseId(21), 5)]);
    let asked = &b.loads[0].1.topics[0].2;
    assert_eq!(asked, &[5], "the other one does not wait");
    b.answer_load(0, vec![held(5, 1)]);
    assert!(b.loads.is_empty());
    b.answer(0);
    assert_eq!(b.loads[0].1.topics[0].2, [0]);
    b.answer_load(0, vec![held(0, 100)]);
    assert_eq!(
        b.loaded(),
        [(LeaseId(21), Some(1)), (LeaseId(20), Some(100))]
    );
    // What the old lease committed is no knowledge of the new one but by the load.
    assert_eq!(b.committed(LeaseId(20)), Some(100));
}

/// G16: a coordinator that moves or loads stalls no load: it is asked again, and told.
#[test]
fn g16_loads_survive_the_coordinator() {
    let mut b = Bench::new();
    b.load(&[(P0, 0)]);
    for (code, moves) in [
        (14, false),
        (15, true),
        (16, true),
        (27, false),
        (-1, false),
    ] {
        b.did.clear();
        b.answer_load(code, Vec::new());
        assert_eq!(b.moved(), moves, "code {code}");
        assert!(b.loaded().is_empty());
        assert!(b.loads.is_empty(), "paced");
        b.next_load();
    }
    // The same codes in the partition, as old versions have them.
    for (code, moves) in [(14, false), (16, true)] {
        b.did.clear();
        b.answer_load(0, vec![held_not(0, code)]);
        assert_eq!(b.moved(), moves, "code {code}");
        b.next_load();
    }
    b.answer_load(0, vec![held(0, 7)]);
    assert_eq!(b.loaded(), [(P0, Some(7))]);
}

/// G46: a partition that the answer leaves out is asked for again; the others are taken.
#[test]
fn g46_a_missing_partition_is_asked_for_again() {
    let mut b = Bench::new();
    b.load(&[(P0, 0), (P1, 1)]);
    b.answer_load(0, vec![held(1, 20)]);
    assert_eq!(b.loaded(), [(P1, Some(20))]);
    b.next_load();
    assert_eq!(b.loads[0].1.topics[0].2, [0]);
    b.answer_load(0, vec![held(0, 10)]);
    assert_eq!(b.loaded(), [(P1, Some(20)), (P0, Some(10))]);
    assert_eq!(b.committed(P0), Some(10));
}

/// G46: 88 waits for the transaction to end, paced; it is no "none".
#[test]
fn g46_unstable_offsets_are_waited_for() {
    let mut b = Bench::new();
    b.load(&[(P0, 0)]);
    let (end, mut asked) = (b.now + SEC(60), 0);
    while b.now < end {
        b.answer_load(0, vec![held_not(0, 88)]);
        b.next_load();
        asked += 1;
    }
    assert!((40..=80).contains(&asked), "{asked} in a minute");
    assert!(b.loaded().is_empty());
    assert!(b.has(|a| matches!(a, CommitAction::Notice(CommitNotice::LoadRetrying { .. }))));
    b.answer_load(0, vec![held(0, 9)]);
    assert_eq!(b.loaded(), [(P0, Some(9))]);
}

/// G46: an error of the group is one of every partition, whatever the partitions say.
#[test]
fn g46_a_group_error_applies_to_all() {
    let mut b = Bench::new();
    b.load(&[(P0, 0), (P1, 1)]);
    b.answer_load(16, vec![held(0, -1), held(1, -1)]);
    assert!(b.loaded().is_empty());
    b.next_load();
    b.answer_load(30, vec![held(0, -1), held(1, -1)]);
    assert!(b.loaded().is_empty());
    assert_eq!(b.fatal().and_then(Error::code), Some(30));
}

/// F21: neither a time-out nor an error of any kind ever means that nothing was committed.
#[test]
fn f21_a_failure_is_never_nothing() {
    let mut b = Bench::new();
    b.load(&[(P0, 0)]);
    let error = |kind| Error::new(kind, "no").retriable();
    for kind in [ErrorKind::Transport, ErrorKind::Peer, ErrorKind::Broker] {
        let (token, _) = b.loads.pop_front().expect("a load");
        b.commit.handle_response(b.now, token, Err(error(kind)));
        b.drain();
        assert!(b.moved());
        assert!(b.loaded().is_empty());
        b.next_load();
    }
    for code in (-1..134).filter(|c| ![0, 24, 29, 30].contains(c)) {
        b.answer_load(0, vec![held_not(0, code)]);
        assert!(b.loaded().is_empty(), "code {code}");
        b.next_load();
    }
    b.answer_load(0, vec![held(0, -1)]);
    assert_eq!(b.loaded(), [(P0, None)]);
}

/// F21: rights are an error of the lease, told once, and no "none".
#[test]
fn f21_a_load_without_rights_fails() {
    let mut b = Bench::new();
    b.load(&[(P0, 0), (P1, 1)]);
    b.answer_load(0, vec![held_not(0, 29), held(1, 3)]);
    assert_eq!(b.loaded(), [(P1, Some(3))]);
    let told = |a: &CommitAction| matches!(a, CommitAction::Failed { lease: P0, error } if error.code() == Some(29));
    assert!(b.has(told));
    b.pass(SEC(60));
    assert!(b.loads.is_empty());
}

/// A load that comes back after its lease ended, or was replaced, is for nobody.
#[test]
fn a_load_of_an_ended_lease_is_for_nobody() {
    let mut b = Bench::new();
    b.load(&[(P0, 0)]);
    b.commit.end(P0);
    b.load(&[(LeaseId(20), 0)]);
    b.answer_load(0, vec![held(0, 5)]);
    assert!(b.loaded().is_empty());
    b.next_load();
    b.answer_load(0, vec![held(0, 6)]);
    assert_eq!(b.loaded(), [(LeaseId(20), Some(6))]);
}

/// A seek begins a lease of its own: it may commit below what the one before had.
#[test]
fn a_seek_may_go_back_by_a_lease_of_its_own() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 100);
    b.next_commit();
    b.answer(0);
    b.commit.begin(b.now, LeaseId(40), tp(0), ID);
    b.note(P0, 101);
    b.note(LeaseId(40), 5);
    b.next_commit();
    assert_eq!(b.in_flight(0), Some(5));
    assert_eq!(b.commits[0].1.topics[0].partitions.len(), 1);
}
