//! Any schedule of lanes, runners and handlers, against the tests' own model
//! (`src/lane/tests/model.rs`).
#![no_main]

use laneway_fuzz::{with_planned_panics, with_tail};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| with_planned_panics(|| laneway::fuzzing::lanes(&with_tail(input))));
