//! Time as the core knows it: a number that the caller passes in.
//!
//! The core never reads a clock. Whoever drives it (the tokio shell, a blocking loop, the
//! simulator) takes a reading, hands it to `handle_*` and sleeps until `next_deadline`.

use std::ops::Add;
use std::time::Duration;

/// Monotonic nanoseconds since a moment that the driver chose.
///
/// ```
/// use laneway::time::Now;
/// use std::time::Duration;
/// let later = Now(5) + Duration::from_nanos(7);
/// assert_eq!(later.since(Now(5)), Duration::from_nanos(7));
/// assert_eq!(Now(5).since(later), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Now(pub u64);

impl Now {
    /// A moment that never comes.
    pub const NEVER: Now = Now(u64::MAX);

    /// Time gone by since `earlier`; zero where `earlier` is the later of the two.
    #[must_use]
    pub fn since(self, earlier: Now) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Now {
    type Output = Now;

    /// Saturates at [`Now::NEVER`].
    fn add(self, rhs: Duration) -> Now {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Now(self.0.saturating_add(nanos))
    }
}

/// The earlier of two optional deadlines.
#[must_use]
pub fn earliest(a: Option<Now>, b: Option<Now>) -> Option<Now> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
