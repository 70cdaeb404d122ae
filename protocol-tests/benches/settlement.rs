//! Nanoseconds a settle with one million records open: in order, in reverse, at random, and with
//! the lowest record stuck; each beside a bare loop that only sets a bit in the same order.
//!
//! `cargo bench -p laneway-protocol-tests --bench settlement`

use std::hint::black_box;
use std::time::Instant;

use laneway::settle::{Offsets, Tracker};

const OPEN: u64 = 1_000_000;
const BATCH: u32 = 100;
/// Settlements between two moves of the watermark: a group.
const GROUP: usize = 256;
const RUNS: usize = 7;

fn full(gaps: bool) -> Tracker {
    let mut tracker = Tracker::new(0);
    let deltas: Vec<u32> = (0..BATCH).map(|n| n * 2).collect();
    while tracker.open() < OPEN {
        let base = tracker.position();
        let (batch, to) = match gaps {
            false => (Offsets::Dense { base, len: BATCH }, base + i64::from(BATCH)),
            true => {
                let deltas = &deltas[..];
                (
                    Offsets::Sparse { base, deltas },
                    base + i64::from(BATCH) * 2,
                )
            }
        };
        tracker.push(batch, to, 0).expect("offsets rise");
    }
    tracker
}

fn settle(order: &[u64], gaps: bool) -> (f64, i64) {
    let mut tracker = full(gaps);
    let began = Instant::now();
    for group in order.chunks(GROUP) {
        for ordinal in group {
            tracker.settle(*ordinal).expect("settles once");
        }
        tracker.advance();
    }
    (per(began, order), tracker.watermark())
}

fn bare(order: &[u64]) -> f64 {
    let mut words = vec![0u64; OPEN as usize / 64 + 1];
    let began = Instant::now();
    for group in order.chunks(GROUP) {
        for ordinal in group {
            words[(ordinal >> 6) as usize] |= 1 << (ordinal & 63);
        }
        black_box(&mut words);
    }
    per(began, order)
}

fn per(began: Instant, order: &[u64]) -> f64 {
    began.elapsed().as_nanos() as f64 / order.len() as f64
}

fn least(run: impl Fn() -> f64) -> f64 {
    (0..RUNS).map(|_| run()).fold(f64::INFINITY, f64::min)
}

fn main() {
    let in_order: Vec<u64> = (0..OPEN).collect();
    let reverse: Vec<u64> = (0..OPEN).rev().collect();
    let mut random = in_order.clone();
    let mut state = 1u64;
    for at in (1..random.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        random.swap(at, (state >> 33) as usize % (at + 1));
    }
    let stuck: Vec<u64> = (1..OPEN).collect();
    println!("ns a settle with {OPEN} open, least of {RUNS} runs");
    println!("{:<24}{:>8}{:>8}{:>8}", "", "settle", "gaps", "bare");
    for (name, order, end) in [
        ("in order", &in_order, OPEN as i64),
        ("reverse", &reverse, OPEN as i64),
        ("random", &random, OPEN as i64),
        ("lowest stuck", &stuck, 0),
    ] {
        assert_eq!(settle(order, false).1, end);
        let (dense, gaps) = (
            least(|| settle(order, false).0),
            least(|| settle(order, true).0),
        );
        println!(
            "{name:<24}{dense:>8.2}{gaps:>8.2}{:>8.2}",
            least(|| bare(order))
        );
    }
    let ranges: Vec<u64> = in_order.iter().copied().step_by(BATCH as usize).collect();
    let by_range = least(|| {
        let mut tracker = full(false);
        let began = Instant::now();
        for first in &ranges {
            tracker.settle_range(*first, BATCH.into()).expect("once");
            tracker.advance();
        }
        per(began, &in_order)
    });
    println!("{:<24}{by_range:>8.2}", "ranges of 100");
    println!(
        "{} KB held with {OPEN} open",
        full(false).bytes_held() / 1024
    );
    println!(
        "{} KB held with {OPEN} open and gaps",
        full(true).bytes_held() / 1024
    );
}
