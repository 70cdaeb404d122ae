//! Pacing of what is tried again: seeded randomness and exponential back-off with jitter.
//!
//! It is not a timer and knows no clock: it gives durations, and the machine that asked adds them
//! to its `now`.
//!
//! Invariants:
//!
//! 1. The same seed gives the same numbers, on every target.
//! 2. A wait is never zero and never above the maximum.

use std::time::Duration;

/// A small seeded source of numbers (SplitMix64): for spreading load, never for secrets.
///
/// ```
/// use laneway::pace::Rng;
/// let mut a = Rng::new(&[7; 32], 1);
/// let mut b = Rng::new(&[7; 32], 1);
/// assert_eq!(a.next_u64(), b.next_u64());
/// assert!(a.below(10) < 10);
/// ```
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// One stream of `seed`. Streams of different `salt` differ, so that two machines with one
    /// seed do not move in step.
    #[must_use]
    pub fn new(seed: &[u8; 32], salt: u64) -> Self {
        let mut state = salt;
        for chunk in seed.chunks_exact(8) {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            state = mix(state ^ u64::from_le_bytes(word)).wrapping_add(GOLDEN);
        }
        Rng(state)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number below `bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of a plain remainder is below 2^-32 for every bound that we use.
        self.next_u64().checked_rem(bound).unwrap_or(0)
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i as u64 + 1) as usize;
            items.swap(i, j);
        }
    }
}

/// Waits that double from `base` to `max`, each moved by up to a fifth either way.
///
/// ```
/// use laneway::pace::{Backoff, Rng};
/// use std::time::Duration;
/// let mut rng = Rng::new(&[0; 32], 0);
/// let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(10));
/// let first = backoff.next(&mut rng);
/// assert!(first >= Duration::from_millis(40) && first <= Duration::from_millis(60));
/// for _ in 0..100 {
///     assert!(backoff.next(&mut rng) <= Duration::from_secs(10));
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    attempts: u32,
}

impl Backoff {
    /// Starts at `base`, ends at `max`.
    #[must_use]
    pub fn new(base: Duration, max: Duration) -> Self {
        let base = base.max(WAIT_MIN);
        Backoff {
            base,
            max: max.max(base),
            attempts: 0,
        }
    }

    /// How long to wait now; the next wait is longer.
    #[allow(clippy::should_implement_trait)] // it has no end and needs a source of jitter
    pub fn next(&mut self, rng: &mut Rng) -> Duration {
        let doubled = self
            .base
            .saturating_mul(1u32.checked_shl(self.attempts).unwrap_or(u32::MAX));
        self.attempts = self.attempts.saturating_add(1);
        let full = doubled.min(self.max);
        // 80 % to 120 %, in thousandths.
        let thousandths = 800 + rng.below(401) as u32;
        (full.saturating_mul(thousandths) / 1000).clamp(WAIT_MIN, self.max)
    }

    /// Something went well: the next wait is the first one again.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }

    /// How many waits were given since the last reset.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
}

/// Whether attempt number `n` is worth a word to the user: the 1st, 10th, 100th and so on.
#[must_use]
pub(crate) fn worth_a_word(n: u32) -> bool {
    n > 0 && 10u32.pow(n.ilog10()) == n
}

/// As [`worth_a_word`] for what mostly is over in a moment: the 3rd, 30th, 300th and so on.
#[must_use]
pub(crate) fn worth_a_word_later(n: u32) -> bool {
    n.is_multiple_of(3) && worth_a_word(n / 3)
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The odd number that SplitMix64 steps by.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// No wait is shorter, so that a zero in a config cannot make a loop without a pause.
const WAIT_MIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_with_jitter_and_stop_at_the_maximum() {
        let mut rng = Rng::new(&[3; 32], 0);
        let mut b = Backoff::new(Duration::from_millis(50), Duration::from_secs(10));
        for n in 0..200u32 {
            let full = Duration::from_millis(50)
                .saturating_mul(1 << n.min(20))
                .min(Duration::from_secs(10));
            let wait = b.next(&mut rng);
            assert!(wait >= full * 4 / 5, "attempt {n}: {wait:?}");
            assert!(wait <= (full * 6 / 5).min(Duration::from_secs(10)));
        }
        b.reset();
        assert!(b.next(&mut rng) <= Duration::from_millis(60));
    }

    #[test]
    fn a_zero_in_the_config_still_waits() {
        let mut rng = Rng::new(&[3; 32], 0);
        let mut b = Backoff::new(Duration::ZERO, Duration::ZERO);
        assert!(b.next(&mut rng) >= Duration::from_millis(1));
    }

    #[test]
    fn seeds_and_salts_differ_and_a_shuffle_keeps_all() {
        assert_ne!(
            Rng::new(&[1; 32], 0).next_u64(),
            Rng::new(&[2; 32], 0).next_u64()
        );
        assert_ne!(
            Rng::new(&[1; 32], 0).next_u64(),
            Rng::new(&[1; 32], 1).next_u64()
        );
        let mut items: Vec<u32> = (0..50).collect();
        Rng::new(&[1; 32], 0).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn powers_of_ten_are_worth_a_word() {
        let said: Vec<u32> = (0..2000).filter(|n| worth_a_word(*n)).collect();
        assert_eq!(said, [1, 10, 100, 1000]);
        let later: Vec<u32> = (0..2000).filter(|n| worth_a_word_later(*n)).collect();
        assert_eq!(later, [3, 30, 300]);
    }
}
