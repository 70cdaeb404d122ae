//! A few random lives of whole groups; the program `simulate` lives any number of them.
//!
//! `LIVES=from..to cargo test -p laneway-protocol-tests --test random_lives` runs other seeds.

use laneway_protocol_tests::lives::live;

/// I1 to I10, E29, G01, L02: whatever happens, everything that was written is handled at least
/// once, nothing is committed before that, and in the end nothing is held.
#[test]
fn every_life_ends_with_everything_handled_and_committed() {
    all_live("0..24", false);
}

/// G01, C18, E29: where members only join and leave, brokers restart and leaders move, every
/// hand-over is drained: no lane runs in two places, nobody loses a partition, and in lanes by
/// partition every record settles exactly once.
#[test]
fn gentle_lives_hand_over_without_a_repeat() {
    all_live("0..16", true);
}

fn all_live(seeds: &str, gentle: bool) {
    let range = std::env::var("LIVES").unwrap_or_else(|_| seeds.to_owned());
    let (from, to) = range.split_once("..").expect("LIVES=from..to");
    let mut failed = Vec::new();
    for seed in from.parse::<u64>().unwrap()..to.parse::<u64>().unwrap() {
        let told = live(seed, gentle, u64::MAX);
        if let Some(failure) = told.failure {
            let deeds = told.deeds.join("\n");
            eprintln!("=== seed {seed}: {}\n{deeds}\n{failure}", told.settings);
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "seeds {failed:?}");
}
