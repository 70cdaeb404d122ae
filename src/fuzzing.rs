//! Ways in for the targets of `fuzz`, built under cargo-fuzz alone (`--cfg fuzzing`).
//!
//! The machines' op lists and naive models are those of the tests: here the fuzzer's bytes stand in
//! the place of random numbers, so that its finds steer the next list.

use bytes::Bytes;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::records::{Compression, Decoder, Encoder, Fault, Limits};

/// Lanes, runners and handlers against a model that watches every start and every result.
pub fn lanes(bytes: &[u8]) {
    crate::lane::fuzz(bytes);
}

/// A commit machine against a naive coordinator.
pub fn commits(bytes: &[u8]) {
    crate::commit::fuzz(bytes);
}

/// A membership against a coordinator that answers anything.
pub fn group(bytes: &[u8]) {
    crate::group::fuzz(bytes);
}

/// What a codec alone makes of `section`; `historic` as in message sets.
///
/// # Errors
/// It does not decompress, or is more than `limit`.
pub fn inflate(
    decoder: &mut Decoder,
    codec: Compression,
    section: Bytes,
    historic: bool,
    limit: usize,
) -> Result<Bytes, Fault> {
    let limits = Limits {
        inflated_max: limit,
    };
    match historic {
        true => decoder.inflate_messages(codec, section, &limits),
        false => decoder.inflate(codec, section, &limits),
    }
}

/// `section` as our own producer compresses it.
pub fn deflate(encoder: &mut Encoder, codec: Compression, section: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let done = encoder.deflate(codec, section, &mut out);
    assert!(done.is_ok(), "{codec}: {done:?}");
    out
}

/// A value of `strategy` by these bytes. Zeros follow their end, which some ways of drawing turn away for
/// ever: there must be more of them than are drawn.
pub(crate) fn draw<S: Strategy>(bytes: &[u8], strategy: &S) -> Option<S::Value> {
    let rng = TestRng::from_seed(RngAlgorithm::PassThrough, bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let tree = strategy.new_tree(&mut runner).ok()?;
    Some(tree.current())
}
