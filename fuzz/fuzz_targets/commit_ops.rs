//! Any list of operations on a commit machine and answers to it, against a naive coordinator
//! (`src/commit/property.rs`).
#![no_main]

use laneway_fuzz::{with_planned_panics, with_tail};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| with_planned_panics(|| laneway::fuzzing::commits(&with_tail(input))));
