//! Any list of operations on a settlement tracker, beside a set of open offsets: the watermark
//! never passes an open record, never goes back, and every answer is the same.
//!
//! Each operation is a byte that says which, and as many bytes as it needs.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use laneway::settle::{Offsets, Run, Tracker};
use libfuzzer_sys::fuzz_target;

#[derive(Default)]
struct Naive {
    offsets: BTreeMap<u64, (i64, i32)>,
    open: BTreeSet<u64>,
    position: i64,
    next: u64,
}

impl Naive {
    fn watermark(&self) -> i64 {
        let lowest = self.open.first().map(|ordinal| self.offsets[ordinal].0);
        lowest.unwrap_or(self.position)
    }

    fn epoch(&self) -> i32 {
        let below = self.open.first().copied().unwrap_or(self.next);
        let last = self.offsets.range(..below).next_back();
        last.map_or(-1, |(_, (_, epoch))| *epoch)
    }

    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut goes_on = false;
        let lowest = self.open.first().copied().unwrap_or(self.next);
        for (ordinal, (offset, _)) in self.offsets.range(lowest..) {
            let (settled, end) = (!self.open.contains(ordinal), offset + 1);
            match runs.last_mut() {
                Some(run) if settled && goes_on => run.end = end,
                _ if settled => runs.push(Run {
                    first: *offset,
                    end,
                }),
                _ => {}
            }
            goes_on = settled;
        }
        runs
    }
}

/// Records that one input may push.
const RECORDS_MAX: u64 = 20_000;

fuzz_target!(|input: &[u8]| {
    let mut bytes = input.iter().copied();
    let mut tracker = Tracker::new(0);
    let mut naive = Naive::default();
    while let Some(op) = bytes.next() {
        let mut byte = || bytes.next().unwrap_or(0);
        match op % 6 {
            0 | 1 => {
                let (len, gap, tail) = (byte(), byte() % 8, byte() % 4);
                let step = if op % 6 == 0 {
                    1
                } else {
                    u32::from(byte() % 3)
                };
                push(&mut tracker, &mut naive, [len, gap, tail], step, op);
            }
            2 => {
                naive.position += i64::from(byte());
                tracker.cover(naive.position);
            }
            3 | 4 => {
                let at = u64::from(byte()) << 8 | u64::from(byte());
                let first = at % (naive.next + 2);
                let len = if op % 6 == 3 { 1 } else { u64::from(byte()) };
                let all = (first..first + len).all(|n| naive.open.contains(&n));
                assert_eq!(tracker.settle_range(first, len).is_ok(), all);
                if all {
                    for ordinal in first..first + len {
                        naive.open.remove(&ordinal);
                    }
                }
            }
            _ => {
                let before = tracker.watermark();
                tracker.advance();
                assert!(tracker.watermark() >= before);
                assert_eq!(tracker.watermark(), naive.watermark());
                assert_eq!(tracker.watermark_epoch(), naive.epoch());
                assert!(tracker.settled_runs().eq(naive.runs()));
                let lowest = naive.open.first().map(|n| (*n, naive.offsets[n].0));
                assert_eq!(tracker.lowest_open(), lowest);
            }
        }
        assert!(tracker.watermark() <= naive.watermark());
        assert_eq!(tracker.open(), naive.open.len() as u64);
        assert_eq!(tracker.position(), naive.position);
        // A bit a record, a segment a batch, four bytes a record beside gaps: with room to spare.
        assert!(tracker.bytes_held() as u64 <= 4096 + naive.next * 64 + 256 * 64);
    }
});

/// Pushes a batch. A `step` of zero makes offsets that do not rise: refused, if there are two.
fn push(tracker: &mut Tracker, naive: &mut Naive, [len, gap, tail]: [u8; 3], step: u32, op: u8) {
    if naive.next + u64::from(len) > RECORDS_MAX {
        return;
    }
    let base = naive.position + i64::from(gap);
    let deltas: Vec<u32> = (0..u32::from(len)).map(|n| n * step).collect();
    let last = deltas.last().map_or(-1, |delta| i64::from(*delta));
    let to = base + last + 1 + i64::from(tail);
    let epoch = i32::from(op) / 6;
    let offsets = match step {
        1 => Offsets::Dense {
            base,
            len: len.into(),
        },
        _ => Offsets::Sparse {
            base,
            deltas: &deltas,
        },
    };
    let pushed = tracker.push(offsets, to, epoch);
    if step == 0 && len > 1 {
        assert!(pushed.is_err());
        return;
    }
    assert_eq!(pushed, Ok(naive.next));
    for delta in deltas {
        let offset = base + i64::from(delta);
        naive.offsets.insert(naive.next, (offset, epoch));
        naive.open.insert(naive.next);
        naive.next += 1;
    }
    naive.position = to;
}
