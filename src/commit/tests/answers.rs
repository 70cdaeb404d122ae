//! What comes of a commit: errors, time-outs, generations.

use super::*;

/// C09: metadata that the broker finds too large stays at home; the offset goes at once, and
/// shorter metadata is still sent.
#[test]
fn c09_error_12_is_sent_again_without_metadata() {
    let mut b = Bench::two(|_| {});
    let at = |offset, map: &str| Progress::new(offset, 7).expect("legal").with_metadata(map);
    b.note_as(P0, at(10, &"x".repeat(200)));
    b.note(P1, 4);
    b.next_commit();
    b.answer_each(|p| Some(if p == 0 { 12 } else { 0 }));
    let again = &b.commits[0].1.topics[0].partitions;
    assert_eq!(again.len(), 1, "the other one is done");
    assert_eq!((again[0].offset, again[0].metadata.as_deref()), (10, None));
    b.answer(0);
    assert_eq!(b.committed(P0), Some(10));
    assert!(b.has(|a| matches!(
        a,
        CommitAction::Notice(CommitNotice::MetadataRefused { bytes: 200, .. })
    )));
    assert_eq!(b.commit.metadata_max(), Some(199));
    b.note_as(P0, at(11, &"x".repeat(250)));
    b.next_commit();
    assert_eq!(b.commits[0].1.topics[0].partitions[0].metadata, None);
    b.answer(0);
    b.note_as(P0, at(12, &"x".repeat(50)));
    b.next_commit();
    let sent = b.commits[0].1.topics[0].partitions[0].metadata.clone();
    assert_eq!(sent.map(|m| m.len()), Some(50));
    let notices = b
        .did
        .iter()
        .filter(|a| matches!(a, CommitAction::Notice(_)));
    assert_eq!(notices.count(), 1);
}

/// C09: error 12 for a commit that has no metadata is no loop.
#[test]
fn c09_error_12_without_metadata_ends() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.flush(&[P0], SEC(60));
    b.answer(12);
    assert_eq!(b.flushed(), [(P0, false)]);
    assert!(b.has(|a| matches!(a, CommitAction::Failed { lease: P0, .. })));
    b.pass(SEC(60));
    assert_eq!(b.sent, 1);
}

/// C20: a commit that times out is made again, with what is newest, while the lease lives.
#[test]
fn c20_a_timeout_is_tried_again_with_the_newest() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.note(P1, 1);
    b.next_commit();
    b.note(P0, 30);
    b.commit.end(P1);
    b.fail(broken());
    assert!(b.moved());
    assert!(b.commits.is_empty(), "paced");
    let start = b.now;
    b.next_commit();
    assert!(b.now.since(start) <= MS(120));
    assert_eq!((b.in_flight(0), b.in_flight(1)), (Some(30), None));
    // And so it goes on, paced, for as long as it takes.
    let (start, sent) = (b.now, b.sent);
    while b.now.since(start) < SEC(60) {
        b.next_commit();
        b.fail(broken());
    }
    assert!(
        (50..=90).contains(&(b.sent - sent)),
        "{} in a minute",
        b.sent - sent
    );
    b.next_commit();
    b.answer(0);
    assert_eq!(b.committed(P0), Some(30));
    assert!(b.fatal().is_none());
}

/// C20: 7 and 14 wait where they are; 15 and 16 look for the coordinator as well.
#[test]
fn c20_g16_coordinator_errors_are_tried_again() {
    for (code, moves) in [(7, false), (14, false), (15, true), (16, true)] {
        let mut b = Bench::two(|_| {});
        b.note(P0, 10);
        b.flush(&[P0], SEC(60));
        b.answer(code);
        assert_eq!(b.moved(), moves, "code {code}");
        assert!(b.commits.is_empty(), "paced");
        // While nobody is the coordinator nothing is sent, and nothing spins.
        b.commit.set_coordinator(b.now, false);
        b.pass(SEC(5));
        assert_eq!(b.sent, 1);
        b.commit.set_coordinator(b.now, true);
        b.drain();
        assert_eq!((b.in_flight(0), b.generation()), (Some(10), 1));
        b.answer(0);
        assert_eq!(b.flushed(), [(P0, true)]);
        assert!(!b.has(|a| matches!(a, CommitAction::Rejoin(_) | CommitAction::Lost(_))));
    }
}

/// C21: a topic that was deleted does not hold up the revocation of the others for long.
#[test]
fn c21_a_deleted_topic_is_given_up() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.note(P1, 10);
    b.flush(&[P0, P1], SEC(300));
    let start = b.now;
    let mut ended = Vec::new();
    while b.commit.is_flushing() {
        b.next_commit();
        b.answer_each(|p| Some(if p == 0 { 3 } else { 0 }));
        ended.extend(b.flushed());
    }
    assert_eq!(ended, [(P1, true), (P0, false)]);
    let took = b.now.since(start);
    assert!(took >= SEC(5) && took <= SEC(7), "{took:?}");
    let told = |a: &CommitAction| matches!(a, CommitAction::Notice(CommitNotice::TopicGone { .. }));
    assert!(b.has(told));
    // From then on it is rare, and a flush does not wait for it.
    let sent = b.sent;
    let end = b.now + SEC(300);
    while b.now < end {
        b.next_commit();
        b.answer(3);
    }
    assert!(b.sent - sent <= 12, "{}", b.sent - sent);
    b.flush(&[P0], SEC(300));
    assert_eq!(b.flushed(), [(P0, false)]);
    // Should it come back, its progress is not forgotten.
    b.next_commit();
    b.answer(0);
    assert_eq!(b.committed(P0), Some(10));
}

/// C22: each partition of a good answer is taken by itself.
#[test]
fn c22_partition_errors_are_each_ones_own() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.note(P1, 20);
    b.flush(&[P0, P1], SEC(60));
    b.answer_each(|p| Some(if p == 0 { 0 } else { 29 }));
    assert_eq!(b.committed(P0), Some(10));
    assert_eq!(b.committed(P1), None);
    assert_eq!(b.flushed(), [(P0, true), (P1, false)]);
    let error = b.did.iter().find_map(|a| match a {
        CommitAction::Failed { lease: P1, error } => Some(error),
        _ => None,
    });
    let error = error.expect("told");
    assert_eq!(
        (error.code(), error.partition(), error.topic()),
        (Some(29), Some(1), Some("t"))
    );
    // The one goes on, the other does not.
    b.note(P0, 11);
    b.note(P1, 21);
    b.next_commit();
    assert_eq!((b.in_flight(0), b.in_flight(1)), (Some(11), None));
}

/// C22: a partition that the answer leaves out is not done.
#[test]
fn c22_an_omitted_partition_is_not_acknowledged() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.note(P1, 20);
    b.next_commit();
    b.answer_each(|p| (p == 0).then_some(0));
    assert_eq!((b.committed(P0), b.committed(P1)), (Some(10), None));
    b.next_commit();
    assert_eq!((b.in_flight(0), b.in_flight(1)), (None, Some(20)));
    b.answer(0);
    assert_eq!(b.committed(P1), Some(20));
}

/// C22: answers by topic id (v10), in another order than asked.
#[test]
fn c22_answers_are_matched_by_id_and_index() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.note(P1, 20);
    b.next_commit();
    let (token, _) = b.commits.pop_front().expect("in flight");
    let topic = |id, partitions| OffsetCommitResponseTopic {
        name: "".into(),
        id,
        partitions,
    };
    let answer = OffsetCommitResponse {
        throttle: Duration::ZERO,
        topics: vec![
            topic(TopicId([9; 16]), vec![(0, Code(0)), (1, Code(0))]),
            topic(ID, vec![(1, Code(0)), (0, Code(-1))]),
        ],
    };
    b.commit
        .handle_response(b.now, token, Ok(Response::OffsetCommit(answer)));
    b.drain();
    assert_eq!((b.committed(P0), b.committed(P1)), (None, Some(20)));
}

/// C23: a coordinator that dies under ten thousand partitions: requests stay bounded, and all
/// arrives once it is back.
#[test]
fn c23_many_partitions_take_several_commits() {
    let mut b = Bench::new();
    let lease = |p: i32| LeaseId(p as u64 + 1000);
    for p in 0..10_000 {
        b.commit.begin(b.now, lease(p), tp(p), ID);
        b.note_as(
            lease(p),
            Progress::new(1, 0)
                .expect("legal")
                .with_metadata("m".repeat(90)),
        );
    }
    b.commit.flush_all(b.now, b.now + SEC(60));
    b.drain();
    b.fail(broken());
    let mut rounds = 0;
    while b.commit.is_flushing() {
        b.next_commit();
        let (_, request) = &b.commits[0];
        let parts = request.topics.iter().flat_map(|t| &t.partitions);
        let bytes: usize = parts
            .map(|p| 33 + p.metadata.as_ref().map_or(0, |m| m.len()))
            .sum();
        assert!(bytes <= COMMIT_BYTES_MAX);
        b.answer(0);
        rounds += 1;
    }
    assert!((2..=4).contains(&rounds), "{rounds}");
    let ended = b.flushed();
    assert_eq!(ended.len(), 10_000);
    assert!(ended.iter().all(|(_, complete)| *complete));
}

/// C25: a revoke's commit that nobody answers ends at its deadline.
#[test]
fn c25_every_flush_ends_at_its_deadline() {
    type Trouble = fn(&mut Bench);
    let troubles: [Trouble; 5] = [
        |_| {}, // no answer ever
        |b| b.fail(broken()),
        |b| b.answer(14),
        |b| {
            b.answer(16);
            b.commit.set_coordinator(b.now, false);
        },
        |b| b.answer(27),
    ];
    for (n, trouble) in troubles.into_iter().enumerate() {
        let mut b = Bench::two(|_| {});
        b.note(P0, 10);
        let start = b.now;
        b.flush(&[P0], SEC(4));
        trouble(&mut b);
        while b.commit.is_flushing() {
            if !b.commits.is_empty() && n == 1 {
                b.fail(broken());
            } else if !b.commits.is_empty() && n == 2 {
                b.answer(14);
            } else {
                b.wake();
            }
        }
        assert_eq!(b.now.since(start), SEC(4), "trouble {n}");
        assert_eq!(b.flushed(), [(P0, false)]);
    }
}

/// G03: a commit of an older generation is made again under the next one, for what lives.
#[test]
fn g03_illegal_generation_keeps_the_snapshot() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.note(P1, 20);
    b.next_commit();
    assert_eq!(b.generation(), 1);
    b.answer(22);
    assert!(b.has(|a| matches!(a, CommitAction::Rejoin(Code(22)))));
    assert!(b.fatal().is_none());
    b.pass(SEC(9));
    assert_eq!(b.sent, 1, "that generation rests");
    b.commit.end(P1); // the new assignment leaves it out
    b.member(member(2));
    assert_eq!(b.generation(), 2);
    assert_eq!((b.in_flight(0), b.in_flight(1)), (Some(10), None));
    b.answer(0);
    assert_eq!(b.committed(P0), Some(10));
}

/// G03: the refusal of a generation that we have left already is no news.
#[test]
fn g03_a_refusal_that_is_overtaken_is_sent_again_at_once() {
    for code in [22, 25, 27, 82] {
        let mut b = Bench::two(|_| {});
        b.note(P0, 10);
        b.next_commit();
        b.member(member_called("m2", 5));
        b.answer(code);
        assert!(!b.has(|a| matches!(a, CommitAction::Rejoin(_) | CommitAction::Lost(_))));
        b.next_commit();
        assert_eq!(
            (b.in_flight(0), b.generation()),
            (Some(10), 5),
            "code {code}"
        );
    }
}

/// G06: a rebalance under way is no error: the snapshot waits for the next generation.
#[test]
fn g06_rebalance_in_progress_waits_for_the_next_generation() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.flush(&[P0], SEC(60));
    b.answer(27);
    assert!(b.has(|a| matches!(a, CommitAction::Rejoin(Code(27)))));
    b.pass(SEC(4));
    assert_eq!(b.sent, 1);
    b.note(P0, 12);
    b.member(member(2));
    assert_eq!((b.in_flight(0), b.generation()), (Some(12), 2));
    b.answer(0);
    assert_eq!(b.flushed(), [(P0, true)]);
}

/// G06: should no new generation come, the commit is tried again, rarely, and said once.
#[test]
fn g06_without_a_new_generation_it_is_tried_rarely() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 10);
    b.next_commit();
    let end = b.now + SEC(60);
    while b.now < end {
        b.answer(27);
        b.next_commit();
    }
    assert!(b.sent <= 14, "{}", b.sent);
    let said = b
        .did
        .iter()
        .filter(|a| matches!(a, CommitAction::Rejoin(_)));
    assert_eq!(said.count(), 1);
}

/// G06: no membership, no commit; in a group generation -1 is never used.
#[test]
fn g06_without_a_membership_nothing_is_sent() {
    let mut b = Bench::two(|c| c.every = 1);
    b.member(None);
    b.note(P0, 10);
    b.flush(&[P0], SEC(3));
    b.pass(SEC(60));
    assert_eq!(b.sent, 0);
    assert_eq!(b.flushed(), [(P0, false)]);
    b.member(member(4));
    assert_eq!((b.in_flight(0), b.generation()), (Some(10), 4));
}

/// G04: a refusal that heartbeats do not confirm was a mistake: what is left to commit goes out
/// again under the same membership, paced.
#[test]
fn g04_a_refusal_that_nobody_confirms_is_tried_again() {
    for code in [22, 25] {
        let mut b = Bench::two(|_| {});
        b.note(P0, 10);
        b.next_commit();
        b.answer(code);
        b.note(P0, 11);
        b.pass(SEC(11));
        assert_eq!(b.sent, 2, "{code}");
        b.answer(code);
        b.pass(SEC(11));
        assert_eq!((b.sent, b.in_flight(0)), (3, Some(11)));
        b.answer(0);
        assert_eq!(b.committed(P0), Some(11));
    }
}

/// UNKNOWN_MEMBER_ID and a fenced instance: nothing goes out under that member for a while, and
/// what waited for it is told.
#[test]
fn a_lost_membership_commits_nothing() {
    for code in [25, 82, 110] {
        let mut b = Bench::two(|_| {});
        b.note(P0, 10);
        b.flush(&[P0], SEC(60));
        b.answer(code);
        assert!(b.has(|a| matches!(a, CommitAction::Lost(c) if c.0 == code)));
        assert_eq!(b.flushed(), [(P0, false)]);
        b.member(member(2)); // the same member under another number
        b.pass(SEC(9));
        assert_eq!(b.sent, 1);
        b.commit.end(P0);
        b.commit.end(P1);
        b.member(member_called("m2", 3));
        b.commit.begin(b.now, LeaseId(30), tp(0), ID);
        b.note(LeaseId(30), 50);
        b.next_commit();
        assert_eq!((b.in_flight(0), b.generation()), (Some(50), 3));
    }
}

/// The static member's own id goes with each commit.
#[test]
fn a_static_member_says_who_it_is() {
    let mut b = Bench::two(|_| {});
    let mut me = member(1).expect("one");
    me.instance_id = Some("i".into());
    b.member(Some(me));
    b.note(P0, 10);
    b.next_commit();
    let (_, request) = &b.commits[0];
    assert_eq!(request.instance_id.as_deref(), Some("i"));
    assert_eq!(&*request.member_id, "m1");
}

/// A manual reader commits as nobody; a group with members refuses that, which is misuse, in words.
#[test]
fn a_manual_reader_refused_by_a_live_group_is_misuse() {
    for code in [25, 22] {
        let mut b = Bench::two(|c| c.manual = true);
        b.note(P0, 10);
        b.flush(&[P0], SEC(60));
        let (_, request) = &b.commits[0];
        assert_eq!((request.generation, &*request.member_id), (-1, ""));
        b.answer(0);
        assert_eq!(b.flushed(), [(P0, true)]);
        b.note(P0, 11);
        b.flush(&[P0], SEC(60));
        b.answer(code);
        assert_eq!(b.flushed(), [(P0, false)]);
        let error = b.fatal().expect("told");
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::Misuse, Some(code))
        );
        assert!(
            error.to_string().contains("group `g` has members"),
            "{error}"
        );
        b.note(P0, 12);
        b.flush(&[P0], SEC(60));
        assert_eq!(b.flushed(), [(P0, false)]);
        b.pass(SEC(60));
        assert_eq!(b.sent, 2);
        assert_eq!(b.commit.next_deadline(), None);
    }
}

/// Misuse and bugs from below are not tried again.
#[test]
fn what_no_retry_cures_is_fatal() {
    let mut b = Bench::two(|_| {});
    b.note(P0, 1);
    b.flush(&[P0], SEC(60));
    b.fail(Error::misuse("this broker is older than Kafka 2.1"));
    assert!(b.fatal().is_some());
    assert_eq!(b.flushed(), [(P0, false)]);
    assert_eq!(b.commit.next_deadline(), None);
}
