//! Whole groups in virtual time (`protocol-tests/tests/random_lives.rs`), by the fuzzer's bytes: brokers
//! crash, members come and go, answers are errors or get lost; then all is well, and everything that
//! was written must have been handled and committed.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../protocol-tests/tests/random_lives.rs"]
#[allow(dead_code)]
mod random_lives;

fuzz_target!(|input: &[u8]| laneway_fuzz::with_planned_panics(|| random_lives::fuzz(input)));
