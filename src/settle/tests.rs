use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{Offsets, Run, SettleError, Tracker};

fn dense(base: i64, len: u32) -> Offsets<'static> {
    Offsets::Dense { base, len }
}

/// C01: a commit is the next offset: with 41 settled alone it is 42.
#[test]
fn watermark_is_the_offset_after_the_last_settled() {
    let mut tracker = Tracker::new(41);
    let first = tracker.push(dense(41, 1), 42, -1).unwrap();
    tracker.settle(first).unwrap();
    assert!(tracker.advance());
    assert_eq!(tracker.watermark(), 42);
}

/// C01 with D05: a batch of 100..102 that covers up to 109 commits 110.
#[test]
fn trailing_gap_of_a_batch_is_covered() {
    let mut tracker = Tracker::new(100);
    let first = tracker.push(dense(100, 3), 110, -1).unwrap();
    tracker.settle_range(first, 2).unwrap();
    tracker.advance();
    assert_eq!(tracker.watermark(), 102);
    tracker.settle(first + 2).unwrap();
    tracker.advance();
    assert_eq!(tracker.watermark(), 110);
    tracker.cover(150);
    assert!(tracker.advance(), "a stretch without records moves it too");
    assert_eq!((tracker.watermark(), tracker.position()), (150, 150));
    tracker.cover(120);
    assert_eq!(tracker.watermark(), 150, "it never goes back");
}

/// C04: of 0..9 polled and only 9 done, the commit stays at 0; with 0 done it is 1.
#[test]
fn open_record_holds_the_watermark_whatever_settles_above() {
    let mut tracker = Tracker::new(0);
    let first = tracker.push(dense(0, 10), 10, -1).unwrap();
    tracker.settle(first + 9).unwrap();
    assert!(!tracker.advance());
    assert_eq!(tracker.watermark(), 0);
    assert_eq!(tracker.lowest_open(), Some((0, 0)));
    tracker.settle(first).unwrap();
    tracker.advance();
    assert_eq!(tracker.watermark(), 1);
    assert_eq!((tracker.open(), tracker.ahead()), (8, 9));
}

/// C07: offsets that are compacted away never count as open.
#[test]
fn compacted_offsets_are_settled_by_definition() {
    let mut tracker = Tracker::new(40);
    let a = tracker.push(dense(40, 10), 50, -1).unwrap();
    // 50 to 59 are gone from the log.
    let b = tracker.push(dense(60, 1), 61, -1).unwrap();
    tracker.settle_range(a, 10).unwrap();
    tracker.advance();
    assert_eq!(tracker.watermark(), 60);
    tracker.settle(b).unwrap();
    tracker.advance();
    assert_eq!(tracker.watermark(), 61);
}

/// C26, C16: the epoch of the last settled record goes with the watermark, whatever its sign.
#[test]
fn epoch_is_that_of_the_last_settled_record() {
    let mut tracker = Tracker::new(5);
    assert_eq!(tracker.watermark_epoch(), -1);
    let a = tracker.push(dense(5, 2), 7, 3).unwrap();
    let b = tracker.push(dense(7, 2), 9, 4).unwrap();
    let c = tracker.push(dense(9, 1), 12, -1).unwrap();
    tracker.settle_range(b, 2).unwrap();
    tracker.advance();
    assert_eq!((tracker.watermark(), tracker.watermark_epoch()), (5, -1));
    tracker.settle(a).unwrap();
    tracker.advance();
    assert_eq!((tracker.watermark(), tracker.watermark_epoch()), (6, 3));
    tracker.settle(a + 1).unwrap();
    tracker.advance();
    assert_eq!((tracker.watermark(), tracker.watermark_epoch()), (9, 4));
    tracker.settle(c).unwrap();
    tracker.advance();
    assert_eq!((tracker.watermark(), tracker.watermark_epoch()), (12, -1));
}

/// C33: nothing at or above the start counts as done before it settles.
#[test]
fn nothing_is_done_at_the_start() {
    let mut tracker = Tracker::new(100);
    assert_eq!((tracker.watermark(), tracker.lowest_open()), (100, None));
    let first = tracker.push(dense(100, 1), 101, -1).unwrap();
    assert_eq!(tracker.watermark(), 100);
    assert!(!tracker.is_settled(first));
    tracker.settle(first).unwrap();
    tracker.advance();
    assert_eq!(tracker.watermark(), 101, "and not past the log's end");
}

/// E05: two failures in a partition: both stay open.
#[test]
fn two_open_records_are_both_remembered() {
    let mut tracker = Tracker::new(0);
    let first = tracker.push(dense(0, 10), 10, -1).unwrap();
    for n in (0..10).filter(|n| ![3, 7].contains(n)) {
        tracker.settle(first + n).unwrap();
    }
    tracker.advance();
    assert_eq!(tracker.watermark(), 3);
    let runs: Vec<Run> = tracker.settled_runs().collect();
    assert_eq!(runs, [Run { first: 4, end: 7 }, Run { first: 8, end: 10 }]);
    tracker.settle(first + 3).unwrap();
    tracker.advance();
    assert_eq!(tracker.watermark(), 7);
}

/// E07: acks 5, 3, 4 with 2 open do not pass 2.
#[test]
fn acks_out_of_order_do_not_pass_the_gap() {
    let mut tracker = Tracker::new(2);
    let first = tracker.push(dense(2, 4), 6, -1).unwrap();
    for offset in [5, 3, 4] {
        tracker.settle(first + offset - 2).unwrap();
        tracker.advance();
        assert_eq!(tracker.watermark(), 2);
    }
    tracker.settle(first).unwrap();
    tracker.advance();
    assert_eq!(tracker.watermark(), 6);
}

/// E38, E03: a second settlement is an error with a name, and changes nothing.
#[test]
fn settling_twice_or_the_unknown_is_named() {
    let mut tracker = Tracker::new(0);
    let first = tracker.push(dense(0, 200), 200, -1).unwrap();
    tracker.settle(first + 130).unwrap();
    let twice = tracker.settle_range(first + 10, 150);
    assert_eq!(
        twice,
        Err(SettleError::Twice {
            ordinal: first + 10
        })
    );
    assert_eq!(tracker.open(), 199);
    assert!(!tracker.is_settled(first + 10), "all or nothing");
    let unknown = Err(SettleError::Unknown {
        ordinal: 199,
        next: 200,
    });
    assert_eq!(tracker.settle_range(199, 2), unknown);
    assert!(tracker.settle_range(u64::MAX, 2).is_err());
    tracker.settle_range(first, 130).unwrap();
    tracker.advance();
    let below = tracker.settle(first + 5);
    assert_eq!(below, Err(SettleError::Twice { ordinal: first + 5 }));
    assert_eq!(tracker.watermark(), 131);
}

/// I5: a batch whose offsets fall, or whose end lies before its last record, is refused whole.
#[test]
fn offsets_that_do_not_rise_are_refused() {
    let mut tracker = Tracker::new(10);
    let low = tracker.push(dense(9, 3), 12, -1);
    assert_eq!(
        low,
        Err(SettleError::Backwards {
            offset: 9,
            position: 10
        })
    );
    let deltas = [0, 4, 4];
    let same = tracker.push(
        Offsets::Sparse {
            base: 10,
            deltas: &deltas,
        },
        20,
        -1,
    );
    assert_eq!(
        same,
        Err(SettleError::Backwards {
            offset: 14,
            position: 15
        })
    );
    for bad in [
        tracker.push(dense(10, 3), 12, -1),
        tracker.push(dense(i64::MAX, 2), i64::MAX, -1),
        tracker.push(dense(i64::MAX - 1, 2), i64::MAX, -1),
        tracker.push(dense(0, 0), 9, -1),
    ] {
        assert!(matches!(bad, Err(SettleError::Uncovered { .. })), "{bad:?}");
    }
    assert_eq!((tracker.open(), tracker.position()), (0, 10));
}

/// E01: what a stuck record costs is one bit for each record above it.
#[test]
fn stuck_record_costs_a_bit_for_each_record_above() {
    let mut tracker = Tracker::new(0);
    tracker.push(dense(0, 1), 1, 0).unwrap();
    let empty = tracker.bytes_held();
    for n in 1..1_000_000 / 100 {
        let base = n * 100 - 99;
        let first = tracker.push(dense(base, 100), base + 100, 0).unwrap();
        tracker.settle_range(first, 100).unwrap();
        tracker.advance();
    }
    assert_eq!((tracker.watermark(), tracker.open()), (0, 1));
    let held = tracker.bytes_held() - empty;
    assert!(held <= 1_000_000 / 8 * 2, "{held}");
    tracker.settle(0).unwrap();
    tracker.advance();
    assert!(tracker.bytes_held() <= empty + 64, "and is given back");
}

/// What a tracker must be: a set of open offsets.
#[derive(Default)]
struct Naive {
    start: i64,
    offsets: BTreeMap<u64, (i64, i32)>,
    open: BTreeSet<u64>,
    position: i64,
}

impl Naive {
    fn watermark(&self) -> i64 {
        let lowest = self.open.first().map(|ordinal| self.offsets[ordinal].0);
        lowest.unwrap_or(self.position)
    }

    fn epoch(&self) -> i32 {
        let below = self.open.first().copied().unwrap_or(u64::MAX);
        let last = self.offsets.range(..below).next_back();
        last.map_or(-1, |(_, (_, epoch))| *epoch)
    }

    fn runs(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut run: Option<Run> = None;
        let Some(lowest) = self.open.first() else {
            return runs;
        };
        for (ordinal, (offset, _)) in self.offsets.range(lowest..) {
            if self.open.contains(ordinal) {
                runs.extend(run.take());
            } else {
                let first = run.map_or(*offset, |run| run.first);
                let end = offset + 1;
                run = Some(Run { first, end });
            }
        }
        runs.extend(run);
        runs
    }
}

#[derive(Clone, Debug)]
enum Op {
    Push {
        gap: u8,
        steps: Vec<u8>,
        tail: u8,
        epoch: i8,
    },
    Cover(u8),
    Settle(u16),
    Range(u16, u8),
    Advance,
}

fn op() -> impl Strategy<Value = Op> {
    let steps = prop_oneof![
        prop::collection::vec(Just(1u8), 1..150),
        prop::collection::vec(1u8..4, 1..40),
    ];
    prop_oneof![
        3 => (0u8..5, steps, 0u8..3, -1i8..3)
            .prop_map(|(gap, steps, tail, epoch)| Op::Push { gap, steps, tail, epoch }),
        1 => (0u8..9).prop_map(Op::Cover),
        4 => any::<u16>().prop_map(Op::Settle),
        6 => (any::<u16>(), 0u8..200).prop_map(|(at, len)| Op::Range(at, len)),
        3 => Just(Op::Advance),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// I1 I2: against a set of open offsets, every answer is the same.
    #[test]
    fn tracker_equals_a_set_of_open_offsets(
        start in 0i64..1000,
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut tracker = Tracker::new(start);
        let mut naive = Naive { start, position: start, ..Naive::default() };
        let mut next = 0u64;
        for op in ops {
            match op {
                Op::Push { gap, steps, tail, epoch } => {
                    let base = naive.position + i64::from(gap);
                    let mut at = 0;
                    let mut deltas = vec![0u32];
                    for step in &steps[1..] {
                        at += u32::from(*step);
                        deltas.push(at);
                    }
                    let to = base + i64::from(at) + 1 + i64::from(tail);
                    let offsets = match steps.iter().all(|step| *step == 1) {
                        true => dense(base, deltas.len() as u32),
                        false => Offsets::Sparse { base, deltas: &deltas },
                    };
                    let first = tracker.push(offsets, to, epoch.into());
                    prop_assert_eq!(first, Ok(next));
                    for delta in deltas {
                        naive.offsets.insert(next, (base + i64::from(delta), epoch.into()));
                        naive.open.insert(next);
                        next += 1;
                    }
                    naive.position = to;
                }
                Op::Cover(by) => {
                    naive.position += i64::from(by);
                    tracker.cover(naive.position);
                }
                Op::Settle(at) if next > 0 => {
                    let ordinal = u64::from(at) % next;
                    let was = naive.open.remove(&ordinal);
                    prop_assert_eq!(tracker.settle(ordinal).is_ok(), was);
                }
                Op::Range(at, len) if next > 0 => {
                    let (first, len) = (u64::from(at) % (next + 2), u64::from(len));
                    let all = (first..first + len).all(|n| naive.open.contains(&n));
                    prop_assert_eq!(tracker.settle_range(first, len).is_ok(), all);
                    if all {
                        naive.open.retain(|n| !(first..first + len).contains(n));
                    }
                }
                Op::Settle(_) | Op::Range(..) => {}
                Op::Advance => {
                    let before = tracker.watermark();
                    tracker.advance();
                    prop_assert_eq!(tracker.watermark(), naive.watermark());
                    prop_assert!(tracker.watermark() >= before.max(naive.start));
                    prop_assert_eq!(tracker.watermark_epoch(), naive.epoch());
                    prop_assert_eq!(tracker.settled_runs().collect::<Vec<_>>(), naive.runs());
                    let lowest = naive.open.first().map(|n| (*n, naive.offsets[n].0));
                    prop_assert_eq!(tracker.lowest_open(), lowest);
                    let ahead = naive.open.first().map_or(0, |low| next - low);
                    prop_assert_eq!(tracker.ahead(), ahead);
                    for (ordinal, (offset, _)) in naive.offsets.range(next - ahead..) {
                        prop_assert_eq!(tracker.offset_of(*ordinal), Some(*offset));
                    }
                }
            }
            prop_assert!(tracker.watermark() <= naive.watermark());
            prop_assert_eq!(tracker.open(), naive.open.len() as u64);
            prop_assert_eq!(tracker.position(), naive.position);
            let probe = next / 2;
            prop_assert_eq!(tracker.is_settled(probe), next > 0 && !naive.open.contains(&probe));
        }
    }
}

#[test]
fn offsets_lead_back_to_ordinals() {
    let mut tracker = Tracker::new(10);
    tracker.push(dense(10, 5), 15, 0).unwrap();
    let deltas = [2, 3, 7];
    tracker
        .push(
            Offsets::Sparse {
                base: 20,
                deltas: &deltas,
            },
            30,
            0,
        )
        .unwrap();
    tracker.push(dense(30, 2), 32, 1).unwrap();
    let expected = [
        (0, 0),
        (10, 0),
        (12, 2),
        (14, 4),
        (15, 5),
        (22, 5),
        (23, 6),
        (24, 7),
        (27, 7),
        (28, 8),
        (31, 9),
        (32, 10),
        (99, 10),
    ];
    for (offset, ordinal) in expected {
        assert_eq!(
            tracker.first_at_or_after(offset),
            ordinal,
            "offset {offset}"
        );
    }
    for ordinal in 0..10 {
        let offset = tracker.offset_of(ordinal).unwrap();
        assert_eq!(tracker.first_at_or_after(offset), ordinal);
    }
    tracker.settle_range(0, 3).unwrap();
    tracker.advance();
    assert_eq!(tracker.first_at_or_after(10), 3, "none below the watermark");
}

/// Where `usize` has 32 bits (these tests run so as WebAssembly too): an offset, and the distance
/// between two, may have more.
#[test]
fn offsets_of_more_than_32_bits_are_kept() {
    const FAR: i64 = 1 << 40;
    let mut tracker = Tracker::new(FAR);
    let first = tracker.push(dense(FAR, 2), FAR + 2, -1).unwrap();
    // A gap wider than 32 bits can count, of offsets that compaction took.
    let wide = FAR + (1 << 33);
    let second = tracker.push(dense(wide, 3), wide + 3, -1).unwrap();
    tracker.settle_range(first, 2).unwrap();
    assert!(tracker.advance());
    assert_eq!(tracker.watermark(), wide);
    assert_eq!(tracker.lowest_open(), Some((second, wide)));
    tracker.settle_range(second, 3).unwrap();
    tracker.advance();
    assert_eq!(tracker.watermark(), wide + 3);
    tracker.cover(i64::MAX - 1);
    assert_eq!(tracker.watermark(), i64::MAX - 1);
}
