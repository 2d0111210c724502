//! Monotonic time as a plain number of nanoseconds.

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A moment: nanoseconds since an origin that the engine (or a simulation) chose. Never wall-clock time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);
    /// Later than any time that is ever reached (584 years).
    pub const MAX: Time = Time(u64::MAX);

    /// The moment `nanoseconds` after the origin.
    #[inline]
    pub const fn from_nanos(nanoseconds: u64) -> Time {
        Time(nanoseconds)
    }

    /// The moment `microseconds` after the origin.
    #[inline]
    pub const fn from_micros(microseconds: u64) -> Time {
        Time(microseconds * 1_000)
    }

    /// The moment `milliseconds` after the origin.
    #[inline]
    pub const fn from_millis(milliseconds: u64) -> Time {
        Time(milliseconds * 1_000_000)
    }

    /// Nanoseconds since the origin.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Microseconds since the origin, rounded down.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Milliseconds since the origin, rounded down.
    #[inline]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The time from `earlier` to `self`; zero when `earlier` is in fact later.
    #[inline]
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    #[inline]
    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(duration.as_nanos() as u64))
    }
}

impl AddAssign<Duration> for Time {
    #[inline]
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Time> for Time {
    type Output = Duration;
    #[inline]
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}
