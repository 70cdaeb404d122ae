//! When a record runs again, and what happens when it has run often enough.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::outcome::Outcome;
use crate::time::Now;

/// How failed records are tried again.
///
/// ```
/// use laneway::Retry;
/// use laneway::lane::Exhausted;
/// use std::time::Duration;
/// let retry = Retry::exponential(Duration::from_millis(100), Duration::from_secs(30))
///     .max_attempts(8)
///     .max_age(Duration::from_secs(600))
///     .then(Exhausted::Drop);
/// assert_eq!(retry.end(), Some(Exhausted::Drop));
/// ```
#[derive(Clone, Debug)]
pub struct Retry {
    waits: Waits,
    attempts_max: Option<u32>,
    age_max: Option<Duration>,
    then: Option<Exhausted>,
}

/// How long a record waits.
#[derive(Clone)]
enum Waits {
    Fixed(Duration),
    Exponential { min: Duration, max: Duration },
    By(RetryFn),
}

/// The function of [`Retry::by`].
pub type RetryFn = Arc<dyn Fn(&Attempt<'_>) -> Outcome + Send + Sync>;

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waits::Fixed(wait) => write!(f, "Fixed({wait:?})"),
            Waits::Exponential { min, max } => write!(f, "Exponential({min:?}..{max:?})"),
            Waits::By(_) => f.write_str("By(..)"),
        }
    }
}

/// What becomes of a record whose attempts or time have run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exhausted {
    /// It is written to the dead-letter topic, and settles once that is acknowledged.
    DeadLetter,
    /// It settles as dropped.
    Drop,
    /// It stays open, its lane waits, and the subscription stops.
    Stop,
    /// It goes on being tried. The cap is only told of.
    Keep,
}

/// Why a record was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// It ran as often as [`Retry::max_attempts`] allows.
    Attempts,
    /// It has been failing for as long as [`Retry::max_age`] allows.
    Age,
    /// The handler, or the function of [`Retry::by`], said so.
    Asked,
    /// It was to become a dead letter, and there is nowhere to put those.
    NoDeadLetters,
}

/// One failed run, as the function of [`Retry::by`] sees it.
pub struct Attempt<'a> {
    /// The record's `Arc<Parcel<L>>`.
    pub(crate) parcel: &'a dyn Any,
    pub(crate) index: u32,
    pub(crate) tried: &'a Arc<Tried>,
    age: Duration,
}

impl Attempt<'_> {
    /// How often the record has run, this time included.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.tried.attempts
    }

    /// What the handler said, or the panic's words.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.tried.error()
    }

    /// The time since the record first failed; zero when this was the first time.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age
    }
}

impl fmt::Debug for Attempt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("attempts", &self.attempts())
            .field("error", &self.error())
            .field("age", &self.age)
            .finish_non_exhaustive()
    }
}

/// What is known of a record that has run before.
#[derive(Debug)]
pub struct Tried {
    pub(super) attempts: u32,
    /// When it first failed.
    pub(super) first: Now,
    /// When it failed last.
    pub(super) last: Now,
    pub(super) error: Option<Box<str>>,
}

impl Tried {
    /// The same, with this for its last error, unless it is empty.
    pub(super) fn because(self: Arc<Self>, reason: Box<str>) -> Arc<Self> {
        match reason.is_empty() {
            true => self,
            false => Arc::new(Tried {
                error: Some(reason),
                ..*self
            }),
        }
    }

    /// How often it has run.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// What the handler said last, or the panic's words; none where it only asked for a retry.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// When it first failed.
    #[must_use]
    pub fn first_failed(&self) -> Now {
        self.first
    }
}

/// What follows a failure.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// It runs again after this.
    After(Duration),
    /// It is given up.
    End(Exhausted, Why),
    /// It is done with, by the word of the function.
    Settled(Outcome),
}

impl Retry {
    /// No second attempt. What a failure then means must be named, unless a dead-letter topic is:
    /// see [`then`](Self::then).
    #[must_use]
    pub fn none() -> Self {
        Retry::fixed(Duration::ZERO).max_attempts(1)
    }

    /// Waits this long before each further attempt.
    #[must_use]
    pub fn fixed(wait: Duration) -> Self {
        Retry::with(Waits::Fixed(wait))
    }

    /// Waits `min` before the second attempt and twice as long before each further one, up to
    /// `max`; each wait is shortened by up to a half, at random, so that records which failed
    /// together do not come back together.
    #[must_use]
    pub fn exponential(min: Duration, max: Duration) -> Self {
        Retry::with(Waits::Exponential {
            min,
            max: max.max(min),
        })
    }

    /// Asks a function after each failed run: it sees the record, the number of attempts and the
    /// last error, and answers with what shall become of the record:
    /// [`Outcome::RetryAfter`] to run it again, [`Outcome::DeadLetter`] (whose reason the dead
    /// letter carries; an empty one leaves it at the last error), [`Outcome::Drop`] or
    /// [`Outcome::Stop`] to give it up. [`Outcome::Retry`] and [`Outcome::Failed`], and a panic in
    /// it, mean a wait as the default policy has it. It is not asked where the handler itself
    /// named the wait or the end, nor at a cap on attempts or age: what was named for the cap's end
    /// counts there. It runs on the thread that keeps the group's session: keep it quick, and let
    /// it not block.
    ///
    /// ```
    /// use laneway::{Outcome, Retry};
    /// use std::time::Duration;
    /// let retry = Retry::by(|attempt| match attempt.error() {
    ///     Some(words) if words.contains("no such account") => Outcome::dead_letter(words),
    ///     _ => Outcome::RetryAfter(Duration::from_secs(1) * attempt.attempts().min(60)),
    /// });
    /// ```
    #[must_use]
    pub fn by(f: impl Fn(&Attempt<'_>) -> Outcome + Send + Sync + 'static) -> Self {
        Retry::with(Waits::By(Arc::new(f)))
    }

    fn with(waits: Waits) -> Self {
        Retry {
            waits,
            attempts_max: None,
            age_max: None,
            then: None,
        }
    }

    /// Runs a record at most `n` times, the first one included. What happens then must be named by
    /// [`then`](Self::then), unless a dead-letter topic is set: then it goes there.
    #[must_use]
    pub fn max_attempts(mut self, n: u32) -> Self {
        self.attempts_max = Some(n.max(1));
        self
    }

    /// Tries a record for at most this long after it first failed in this process. What happens
    /// then must be named, as for [`max_attempts`](Self::max_attempts).
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> Self {
        self.age_max = Some(age);
        self
    }

    /// What becomes of a record whose attempts or time have run out.
    #[must_use]
    pub fn then(mut self, then: Exhausted) -> Self {
        self.then = Some(then);
        self
    }

    /// A record whose attempts have run out is dropped.
    #[must_use]
    pub fn or_drop(self) -> Self {
        self.then(Exhausted::Drop)
    }

    /// A record whose attempts have run out stops the subscription.
    #[must_use]
    pub fn or_stop(self) -> Self {
        self.then(Exhausted::Stop)
    }

    /// The cap on attempts and what was named for its end, if there is a cap.
    #[must_use]
    pub fn cap(&self) -> Option<(u32, Option<Exhausted>)> {
        self.attempts_max.map(|n| (n, self.then))
    }

    /// Whether attempts or time may run out.
    #[must_use]
    pub fn is_capped(&self) -> bool {
        self.attempts_max.is_some() || self.age_max.is_some()
    }

    /// What was named for the end, if it was.
    #[must_use]
    pub fn end(&self) -> Option<Exhausted> {
        self.then
    }

    /// Why a subscription cannot be run with this, in words: a cap whose end is not named, or an
    /// end that there is no place for.
    #[must_use]
    pub fn refusal(&self, dead_letters: bool) -> Option<&'static str> {
        match (self.is_capped(), self.then) {
            (true, None) if !dead_letters => Some(
                "the retries have a cap (Retry::none, max_attempts or max_age) and nothing says what happens at it; \
                 add .then(Exhausted::Drop), .then(Exhausted::Stop) or .then(Exhausted::Keep), or .dead_letter(topic)",
            ),
            (_, Some(Exhausted::DeadLetter)) if !dead_letters => Some(
                "the retries end in a dead letter, and there is no topic for it; add .dead_letter(topic)",
            ),
            (false, Some(_)) => Some(
                "Retry::then names the end of retries that have none; add .max_attempts(n) or .max_age(duration)",
            ),
            _ => None,
        }
    }

    /// What follows a failed run for which the handler named nothing, or only the wait; and the
    /// reason, where the function of [`Retry::by`] has one of its own.
    pub(super) fn next(
        &self,
        now: Now,
        parcel: &dyn Any,
        index: u32,
        tried: &Arc<Tried>,
        wait: Option<Duration>,
        jitter: &mut Jitter,
    ) -> (Next, Option<Box<str>>) {
        let age = now.since(tried.first);
        let spent = match (self.attempts_max, self.age_max) {
            (Some(max), _) if tried.attempts >= max => Some(Why::Attempts),
            (_, Some(max)) if age >= max => Some(Why::Age),
            _ => None,
        };
        if let Some(why) = spent {
            let then = self.then.unwrap_or(Exhausted::DeadLetter);
            if then != Exhausted::Keep {
                return (Next::End(then, why), None);
            }
        }
        if let Some(wait) = wait {
            return (Next::After(wait), None);
        }
        let next = match &self.waits {
            Waits::Fixed(wait) => Next::After(*wait),
            Waits::Exponential { min, max } => {
                Next::After(backoff(*min, *max, tried.attempts, jitter))
            }
            Waits::By(f) => {
                let attempt = Attempt {
                    parcel,
                    index,
                    tried,
                    age,
                };
                match catch_unwind(AssertUnwindSafe(|| f(&attempt))) {
                    Ok(Outcome::RetryAfter(wait)) => Next::After(wait),
                    Ok(Outcome::DeadLetter(reason)) => {
                        return (Next::End(Exhausted::DeadLetter, Why::Asked), Some(reason));
                    }
                    Ok(Outcome::Stop) => Next::End(Exhausted::Stop, Why::Asked),
                    Ok(settled @ (Outcome::Ack | Outcome::Drop)) => Next::Settled(settled),
                    Ok(Outcome::Retry | Outcome::Failed(_)) | Err(_) => {
                        Next::After(backoff(MIN, MAX, tried.attempts, jitter))
                    }
                }
            }
        };
        (next, None)
    }

    /// Whether this failure is the one at which a cap was reached that is only told of.
    pub(super) fn passes_cap(&self, now: Now, tried: &Tried, before: Option<Now>) -> Option<Why> {
        if self.then != Some(Exhausted::Keep) {
            return None;
        }
        if self.attempts_max == Some(tried.attempts) {
            return Some(Why::Attempts);
        }
        let max = self.age_max?;
        let was = before.is_some_and(|at| at.since(tried.first) >= max);
        (now.since(tried.first) >= max && !was).then_some(Why::Age)
    }
}

const MIN: Duration = Duration::from_millis(100);
const MAX: Duration = Duration::from_secs(30);

/// The wait after `attempts` failed attempts (at least one).
fn backoff(min: Duration, max: Duration, attempts: u32, jitter: &mut Jitter) -> Duration {
    let doublings = attempts.saturating_sub(1).min(31);
    let full = min.saturating_mul(1 << doublings).min(max);
    let half = full / 2;
    full - half.mul_f64(jitter.unit())
}

impl Default for Retry {
    /// 100 ms to 30 s, without a cap.
    fn default() -> Self {
        Retry::exponential(MIN, MAX)
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

    fn tried(attempts: u32) -> Arc<Tried> {
        Arc::new(Tried {
            attempts,
            first: Now(0),
            last: Now(0),
            error: Some("no route".into()),
        })
    }

    fn next(retry: &Retry, now: Now, attempts: u32) -> Next {
        let tried = tried(attempts);
        let (next, _) = retry.next(now, &(), 0, &tried, None, &mut Jitter::new(7));
        next
    }

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
                let (next, _) = retry.next(Now(0), &(), 0, &tried(attempts), None, &mut jitter);
                let Next::After(wait) = next else {
                    panic!("{next:?}");
                };
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
    fn caps_end_as_named() {
        let retry = Retry::fixed(MIN).max_attempts(3);
        assert_eq!(next(&retry, Now(0), 2), Next::After(MIN));
        assert_eq!(
            next(&retry, Now(0), 3),
            Next::End(Exhausted::DeadLetter, Why::Attempts)
        );
        let dropped = Next::End(Exhausted::Drop, Why::Attempts);
        assert_eq!(next(&retry.or_drop(), Now(0), 4), dropped);
        assert_eq!(
            next(&Retry::none().or_stop(), Now(0), 1),
            Next::End(Exhausted::Stop, Why::Attempts)
        );
        let aged = Retry::fixed(MIN).max_age(MAX).or_stop();
        let (young, old) = (Now(0) + (MAX - MIN), Now(0) + MAX);
        assert_eq!(next(&aged, young, 9), Next::After(MIN));
        assert_eq!(next(&aged, old, 9), Next::End(Exhausted::Stop, Why::Age));
    }

    #[test]
    fn kept_ones_go_on_and_are_told_of_once() {
        let keep = Retry::fixed(MIN)
            .max_attempts(3)
            .max_age(MAX)
            .then(Exhausted::Keep);
        assert_eq!(next(&keep, Now(0) + MAX, 99), Next::After(MIN));
        let told = |attempts, now, before| keep.passes_cap(now, &tried(attempts), before);
        assert_eq!(told(2, Now(0), None), None);
        assert_eq!(told(3, Now(0), Some(Now(0))), Some(Why::Attempts));
        assert_eq!(told(4, Now(0), Some(Now(0))), None);
        assert_eq!(told(5, Now(0) + MAX, Some(Now(0))), Some(Why::Age));
        assert_eq!(told(6, Now(0) + MAX + MIN, Some(Now(0) + MAX)), None);
    }

    #[test]
    #[cfg_attr(not(panic = "unwind"), ignore = "a panic ends the program here")]
    fn a_function_sees_attempts_and_error_and_decides() {
        let retry = Retry::by(|attempt| match attempt.attempts() {
            1 => Outcome::RetryAfter(Duration::from_secs(7)),
            2 => Outcome::Retry,
            3 => Outcome::dead_letter("no"),
            4 => Outcome::Stop,
            5 if attempt.error() == Some("no route") => Outcome::Drop,
            _ => panic!("as told"),
        });
        assert_eq!(next(&retry, Now(0), 1), Next::After(Duration::from_secs(7)));
        assert!(matches!(next(&retry, Now(0), 2), Next::After(_)));
        let asked = |then| Next::End(then, Why::Asked);
        let third = retry.next(Now(0), &(), 0, &tried(3), None, &mut Jitter::new(7));
        assert_eq!(third, (asked(Exhausted::DeadLetter), Some("no".into())));
        assert_eq!(next(&retry, Now(0), 4), asked(Exhausted::Stop));
        assert_eq!(next(&retry, Now(0), 5), Next::Settled(Outcome::Drop));
        assert!(matches!(next(&retry, Now(0), 6), Next::After(_)));
    }

    #[test]
    fn what_cannot_be_is_refused_in_words() {
        let cap = Retry::default().max_attempts(3);
        assert!(
            cap.refusal(false)
                .is_some_and(|w| w.contains("Exhausted::Drop"))
        );
        assert_eq!(cap.refusal(true), None);
        let dead = cap.then(Exhausted::DeadLetter);
        assert!(
            dead.refusal(false)
                .is_some_and(|w| w.contains(".dead_letter(topic)"))
        );
        assert_eq!(dead.refusal(true), None);
        assert!(Retry::default().or_stop().refusal(true).is_some());
        assert_eq!(Retry::default().refusal(false), None);
        assert!(Retry::none().refusal(false).is_some());
    }
}
