//! A token bucket: a rate with a burst, in virtual time.

use std::time::Duration;

use scoutline_base::Time;

/// Lets `rate` events a second pass, and `burst` at once after a pause.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    /// Nanoseconds of credit that one event costs.
    cost: u64,
    /// The most credit that a pause gathers, in nanoseconds.
    most: u64,
    credit: u64,
    last: Time,
}

impl TokenBucket {
    /// A full bucket.
    ///
    /// # Panics
    /// When `rate` or `burst` is zero.
    pub fn new(rate: u32, burst: u32) -> TokenBucket {
        assert!(rate > 0 && burst > 0, "a bucket that lets nothing pass");
        let cost = 1_000_000_000 / u64::from(rate);
        let most = cost * u64::from(burst);
        TokenBucket { cost, most, credit: most, last: Time::ZERO }
    }

    /// True when one more event could pass now; nothing is taken. For whom to find out whether it should is dear.
    pub fn has(&mut self, now: Time) -> bool {
        let passed: Duration = now.since(self.last);
        self.last = self.last.max(now);
        self.credit = self.credit.saturating_add(passed.as_nanos() as u64).min(self.most);
        self.credit >= self.cost
    }

    /// True when one more event may pass now.
    pub fn take(&mut self, now: Time) -> bool {
        let enough = self.has(now);
        if enough {
            self.credit -= self.cost;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_the_rate() {
        let mut bucket = TokenBucket::new(10, 3);
        let start = Time::from_millis(5_000);
        assert_eq!((0..5).filter(|_| bucket.take(start)).count(), 3);
        assert!(!bucket.take(start + Duration::from_millis(99)));
        assert!(bucket.has(start + Duration::from_millis(100)), "to ask takes nothing");
        assert!(bucket.take(start + Duration::from_millis(100)));
        assert!(!bucket.take(start), "time that goes back gives nothing");
    }
}
