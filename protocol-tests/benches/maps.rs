//! How long a map takes to write, at most: the commit is made on the engine's thread.
//!
//! `cargo bench -p laneway-protocol-tests --bench maps`

use laneway::settle::{MapWriter, Run};
use std::time::Instant;

/// Stretches of one to `open` open offsets and one to `settled` settled ones.
fn random(open: u64, settled: u64, stretches: usize) -> (Vec<Run>, i64) {
    let mut seed = 42u64;
    let mut roll = |n: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 33) % n + 1) as i64
    };
    let (mut at, mut runs) = (0, Vec::with_capacity(stretches));
    for _ in 0..stretches {
        let end = at + roll(open);
        runs.push(Run { first: at, end });
        at = end + roll(settled);
    }
    (runs, at)
}

fn main() {
    let states = [
        (
            "one open record, a million settled",
            random(1, 1_000_000, 1),
        ),
        ("a hundred stretches", random(3, 200, 100)),
        ("2,000 stretches", random(3, 20, 2_000)),
        ("10,000 stretches, short", random(2, 2, 10_000)),
        ("10,000 stretches, long", random(10, 1_000, 10_000)),
        ("a million in turn", random(1, 1, 1_000_000)),
        ("a million, short", random(2, 3, 1_000_000)),
        ("a million, long", random(100, 1_000, 1_000_000)),
        ("a million, very long", random(100, 100_000, 1_000_000)),
    ];
    for (name, (runs, end)) in &states {
        let mut writer = MapWriter::new();
        let mut worst = 0.0f64;
        let mut total = 0.0;
        let times = 50;
        let mut chars = 0;
        for n in 0..=times {
            let began = Instant::now();
            let written = writer.write(0, *end, runs.iter().copied(), 4096);
            let took = began.elapsed().as_secs_f64() * 1e3;
            chars = written.text.len();
            if n > 0 {
                worst = worst.max(took);
                total += took;
            }
        }
        let mean = total / f64::from(times);
        println!("{name:>36}: {mean:.3} ms, at most {worst:.3} ms, {chars} characters");
    }
}
