//! When a record runs again, and what happens when it has run often enough.

use std::time::Duration;

/// How failed records are tried again.
///
/// ```
/// use laneway::lane::{Exhausted, Retry};
/// use std::time::Duration;
/// let retry = Retry::exponential(Duration::from_millis(100), Duration::from_secs(30))
///     .max_attempts(8)
///     .or_drop();
/// assert_eq!(retry.cap(), Some((8, Some(Exhausted::Drop))));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    min: Duration,
    max: Duration,
    attempts_max: Option<u32>,
    then: Option<Exhausted>,
}

/// What becomes of a record whose attempts have run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exhausted {
    /// It settles as dropped.
    Drop,
    /// It stays open, its lane waits, and the subscription is told to stop.
    Stop,
}

impl Retry {
    /// Waits `min` before the second attempt and twice as long before each further one, up to
    /// `max`; each wait is shortened by up to a half, at random, so that records which failed
    /// together do not come back together.
    #[must_use]
    pub fn exponential(min: Duration, max: Duration) -> Self {
        Retry {
            min,
            max: max.max(min),
            attempts_max: None,
            then: None,
        }
    }

    /// Runs a record at most `n` times, the first one included. What happens then must be named:
    /// [`or_drop`](Self::or_drop) or [`or_stop`](Self::or_stop).
    #[must_use]
    pub fn max_attempts(mut self, n: u32) -> Self {
        self.attempts_max = Some(n.max(1));
        self
    }

    /// A record whose attempts have run out is dropped.
    #[must_use]
    pub fn or_drop(mut self) -> Self {
        self.then = Some(Exhausted::Drop);
        self
    }

    /// A record whose attempts have run out stops the subscription.
    #[must_use]
    pub fn or_stop(mut self) -> Self {
        self.then = Some(Exhausted::Stop);
        self
    }

    /// The cap on attempts and what was named for its end, if there is a cap.
    #[must_use]
    pub fn cap(&self) -> Option<(u32, Option<Exhausted>)> {
        self.attempts_max.map(|n| (n, self.then))
    }

    /// What happens to a record that has run `attempts` times, if that is often enough.
    pub(super) fn exhausted(&self, attempts: u32) -> Option<Exhausted> {
        let max = self.attempts_max?;
        (attempts >= max).then(|| self.then.unwrap_or(Exhausted::Stop))
    }

    /// The wait after `attempts` failed attempts (at least one).
    pub(super) fn wait(&self, attempts: u32, jitter: &mut Jitter) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        let full = self.min.saturating_mul(1 << doublings).min(self.max);
        let half = full / 2;
        full - half.mul_f64(jitter.unit())
    }
}

impl Default for Retry {
    /// 100 ms to 30 s, without a cap.
    fn default() -> Self {
        Retry::exponential(Duration::from_millis(100), Duration::from_secs(30))
    }
}

/// Whether an attempt's number is one to be loud about: 10, 100, 1000 and so on.
pub(super) fn is_loud(attempts: u32) -> bool {
    attempts >= 10 && 10u32.checked_pow(attempts.ilog10()) == Some(attempts)
}

/// A small random sequence from a seed (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Jitter(u64);

impl Jitter {
    pub(super) fn new(seed: u64) -> Self {
        Jitter(seed)
    }

    /// From 0 up to, not counting, 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_between_half_and_whole() {
        let retry = Retry::default();
        let mut jitter = Jitter::new(7);
        for (attempts, full) in [
            (1, 100),
            (2, 200),
            (4, 800),
            (9, 25_600),
            (10, 30_000),
            (99, 30_000),
        ] {
            for _ in 0..50 {
                let wait = retry.wait(attempts, &mut jitter);
                assert!(wait <= Duration::from_millis(full), "{attempts}: {wait:?}");
                assert!(
                    wait >= Duration::from_millis(full / 2),
                    "{attempts}: {wait:?}"
                );
            }
        }
    }

    #[test]
    fn loud_at_powers_of_ten_from_ten_on() {
        let loud: Vec<u32> = (0..2000).filter(|n| is_loud(*n)).collect();
        assert_eq!(loud, [10, 100, 1000]);
        assert!(!is_loud(u32::MAX));
    }

    #[test]
    fn a_cap_without_a_named_end_stops() {
        let retry = Retry::default().max_attempts(3);
        assert_eq!(retry.exhausted(2), None);
        assert_eq!(retry.exhausted(3), Some(Exhausted::Stop));
        assert_eq!(retry.or_drop().exhausted(4), Some(Exhausted::Drop));
        assert_eq!(Retry::default().exhausted(u32::MAX), None);
    }
}
