//! A rate, and how far a link of that rate is behind with what it was given.

use std::time::Duration;

use scoutline_base::Time;

/// Bits per second; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BitRate(u64);

const NANOS: u128 = 1_000_000_000;

impl BitRate {
    /// A rate; 0 counts as 1.
    pub const fn new(bits_per_second: u64) -> BitRate {
        BitRate(if bits_per_second == 0 { 1 } else { bits_per_second })
    }

    /// Bits per second.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// How long so many bytes take, rounded up: the sum over many messages never comes to more than the rate.
    #[inline]
    pub fn time_for(self, bytes: u32) -> Duration {
        let nanos = (u128::from(bytes) * 8 * NANOS).div_ceil(u128::from(self.0));
        Duration::from_nanos(nanos.min(u128::from(u64::MAX)) as u64)
    }

    /// Bytes that pass in a time, rounded down.
    pub fn bytes_in(self, time: Duration) -> u64 {
        (u128::from(self.0) * time.as_nanos() / (8 * NANOS)) as u64
    }
}

/// A token bucket seen from the other side: when the link will be through with what it has.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    rate: BitRate,
    busy_until: Time,
}

impl Pace {
    /// A link that has nothing to do.
    pub fn new(rate: BitRate) -> Pace {
        Pace { rate, busy_until: Time::ZERO }
    }

    /// The same, faster or slower from now on.
    #[must_use]
    pub fn with_rate(self, rate: BitRate) -> Pace {
        Pace { rate, ..self }
    }

    /// Its rate.
    #[inline]
    pub fn rate(&self) -> BitRate {
        self.rate
    }

    /// When what it has will take at most `bound`.
    #[inline]
    pub fn ready_at(&self, bound: Duration) -> Time {
        Time::ZERO + self.busy_until.since(Time::ZERO + bound)
    }

    /// It got so many bytes at `now`. Time in which it had nothing is lost.
    #[inline]
    pub fn on_sent(&mut self, bytes: u32, now: Time) {
        self.busy_until = self.busy_until.max(now) + self.rate.time_for(bytes);
    }

    /// What it got last was taken back.
    pub fn on_recalled(&mut self, bytes: u32) {
        self.busy_until = Time::ZERO + self.busy_until.since(Time::ZERO + self.rate.time_for(bytes));
    }
}
