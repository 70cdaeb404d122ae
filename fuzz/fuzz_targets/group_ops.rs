//! A membership, and a coordinator that answers anything (`src/group/tests/random.rs`).
#![no_main]

use laneway_fuzz::{with_planned_panics, with_tail};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| with_planned_panics(|| laneway::fuzzing::group(&with_tail(input))));
