//! Leases that are asked for what they have in the moment that a commit is made.

use super::*;

fn bench() -> Bench {
    Bench::two(|cfg| cfg.asks = true)
}

fn at(offset: i64, map: &str) -> Answer {
    Answer::Progress(Progress::new(offset, 7).expect("legal").with_metadata(map))
}

impl Bench {
    fn touch(&mut self, lease: LeaseId) {
        self.commit.touch(self.now, lease, 1);
        self.drain();
    }

    /// Whom the machine asks, once it does.
    fn asked(&mut self) -> Vec<LeaseId> {
        loop {
            let ask = |a: &CommitAction| matches!(a, CommitAction::Ask { .. });
            if let Some(at) = self.did.iter().position(ask) {
                let CommitAction::Ask { leases } = self.did.remove(at) else {
                    unreachable!("just found");
                };
                assert!(
                    self.commits.is_empty(),
                    "nothing goes out before the answer"
                );
                return leases;
            }
            self.wake();
        }
    }

    fn answer_ask(&mut self, answers: &[(LeaseId, Answer)]) {
        self.commit.answer(self.now, answers.iter().cloned());
        self.drain();
    }

    fn sent(&self, p: i32) -> Option<(i64, Option<String>)> {
        let parts = self
            .commits
            .front()?
            .1
            .topics
            .iter()
            .flat_map(|t| &t.partitions);
        let mut of = parts.filter(|c| c.partition == p);
        of.next()
            .map(|c| (c.offset, c.metadata.as_deref().map(str::to_owned)))
    }
}

/// C05, C31: offset and map are asked for together, when the commit is made and not before; what
/// settles while it is out belongs to the next.
#[test]
fn c31_the_snapshot_is_taken_when_the_commit_is_made() {
    let mut b = bench();
    b.touch(P0);
    b.touch(P0);
    assert_eq!(b.asked(), [P0]);
    b.answer_ask(&[(P0, at(100, "map of 100"))]);
    assert_eq!(b.sent(0), Some((100, Some("map of 100".to_owned()))));
    b.touch(P0);
    b.answer(0);
    assert_eq!(b.committed(P0), Some(100));
    // The same offset with a fuller map is progress, and is paced.
    let before = b.now;
    assert_eq!(b.asked(), [P0]);
    assert!(b.now.since(before) >= SEC(4));
    b.answer_ask(&[(P0, at(100, "fuller map of 100"))]);
    assert_eq!(b.sent(0), Some((100, Some("fuller map of 100".to_owned()))));
    b.answer(0);
    // What the broker has already is not sent again, and a flush that waits for it is done.
    b.touch(P0);
    b.flush(&[P0], SEC(60));
    assert_eq!(b.asked(), [P0]);
    b.answer_ask(&[(P0, at(100, "fuller map of 100"))]);
    assert_eq!(b.sent(0), None);
    assert_eq!(b.flushed(), [(P0, true)]);
    b.did.clear();
    b.pass(SEC(60));
    assert!(b.did.is_empty(), "{:?}", b.did);
}

/// C09: refused for its length, it is asked for again at once: the answer is a shorter one.
#[test]
fn c09_what_is_too_long_is_asked_for_again() {
    let mut b = bench();
    b.touch(P0);
    b.touch(P1);
    b.flush(&[P0], SEC(60));
    assert_eq!(b.asked(), [P0, P1]);
    b.answer_ask(&[(P0, at(10, &"x".repeat(200))), (P1, at(4, ""))]);
    let start = b.now;
    b.answer_each(|p| Some(if p == 0 { 12 } else { 0 }));
    let refused = |a: &CommitAction| {
        matches!(
            a,
            CommitAction::Notice(CommitNotice::MetadataRefused { bytes: 200, .. })
        )
    };
    assert!(b.has(refused));
    assert_eq!(b.asked(), [P0]);
    assert_eq!(b.now, start, "without a pause");
    b.answer_ask(&[(P0, at(10, &"x".repeat(100)))]);
    assert_eq!(b.sent(0).and_then(|s| s.1).map(|m| m.len()), Some(100));
    b.answer(0);
    assert_eq!(b.flushed(), [(P0, true)]);
    // An owner that does not learn loses its map, not its offset.
    b.touch(P0);
    b.asked();
    b.answer_ask(&[(P0, at(11, &"x".repeat(300)))]);
    assert_eq!(b.sent(0), Some((11, None)));
}

/// Whoever says "later" is asked after the interval; whoever has nothing is done with; whoever
/// says nothing goes with the next commit, which follows at once.
#[test]
fn answers_may_wait_or_be_left_out() {
    let mut b = bench();
    b.touch(P0);
    b.touch(P1);
    assert_eq!(b.asked(), [P0, P1]);
    b.answer_ask(&[(P0, at(5, ""))]);
    assert_eq!((b.in_flight(0), b.in_flight(1)), (Some(5), None));
    let start = b.now;
    b.answer(0);
    assert_eq!(b.asked(), [P1]);
    assert_eq!(b.now, start);
    b.answer_ask(&[(P1, Answer::Later)]);
    assert!(b.commits.is_empty());
    assert_eq!(b.asked(), [P1]);
    assert_eq!(b.now.since(start), SEC(5));
    b.answer_ask(&[(P1, Answer::Nothing)]);
    b.flush(&[P1], SEC(60));
    assert_eq!(b.flushed(), [(P1, true)]);
    assert!(b.commits.is_empty());
    // An answer that nobody asked for changes nothing.
    b.answer_ask(&[(P0, at(99, ""))]);
    b.pass(SEC(60));
    assert_eq!((b.sent, b.committed(P0)), (1, Some(5)));
}

/// The coordinator goes away between question and answer: the answer waits for it.
#[test]
fn answers_outlive_the_coordinator() {
    let mut b = bench();
    b.touch(P0);
    b.asked();
    b.commit.set_coordinator(b.now, false);
    b.answer_ask(&[(P0, at(5, "map"))]);
    assert!(b.commits.is_empty());
    b.commit.set_coordinator(b.now, true);
    b.drain();
    b.next_commit();
    assert_eq!(b.sent(0), Some((5, Some("map".to_owned()))));
    // And a lease that ends in between is not heard.
    b.answer(0);
    b.touch(P0);
    b.asked();
    b.commit.end(P0);
    b.answer_ask(&[(P0, at(6, "map"))]);
    assert!(b.commits.is_empty());
}

/// C12: keeping an idle partition alive asks for what it has; without asking, metadata that is
/// not ours is not carried on.
#[test]
fn c12_keep_alives_carry_the_map_of_their_moment() {
    let found = || OffsetFetchPartition {
        metadata: Some("somebody's".into()),
        ..held(0, 100)
    };
    let mut b = Bench::with(|cfg| cfg.asks = true);
    b.load(&[(P0, 0)]);
    b.answer_load(0, vec![found()]);
    assert_eq!(b.asked(), [P0]);
    assert_eq!(b.now, Now(1_000_000_000) + SEC(3600));
    b.answer_ask(&[(P0, at(100, "map"))]);
    assert_eq!(b.sent(0), Some((100, Some("map".to_owned()))));
    b.answer(0);
    assert_eq!(b.asked(), [P0]);
    b.answer_ask(&[(P0, at(100, "map"))]);
    assert!(
        b.sent(0).is_some(),
        "though the broker has it: that is the point"
    );

    let mut b = Bench::new();
    b.load(&[(P0, 0)]);
    b.answer_load(0, vec![found()]);
    b.next_commit();
    assert_eq!(b.sent(0), Some((100, None)));
}
