//! Whole groups in virtual time (`protocol-tests/src/lives`), by the fuzzer's bytes: brokers
//! crash, members come and go, answers are errors or get lost; then all is well, and everything that
//! was written must have been handled and committed.
#![no_main]

use laneway_protocol_tests::lives;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| laneway_fuzz::with_planned_panics(|| lives::fuzz(input)));
