//! Round-trip time and the retransmission time-out (RFC 6298), in nanoseconds.
//!
//! One segment at a time is timed by our own clock (Karn's rule excludes retransmitted ones); timestamps
//! (RFC 7323 §4) give a sample where Karn's rule forbids one, in their coarser unit.

use std::time::Duration;

/// RFC 6298 §2.1: before any measurement.
const INITIAL_RTO: Duration = Duration::from_secs(1);
/// RFC 6298 §2.5: a ceiling of at least 60 s; Linux takes 120 s.
const MAX_RTO: Duration = Duration::from_secs(120);
/// Doubling more often than this is pointless: the ceiling is reached.
const MAX_BACKOFF: u8 = 16;

/// Smoothed round-trip time, its variation, and the time-out that follows from them.
#[derive(Clone, Copy, Debug)]
pub struct RttEstimator {
    /// 0 until the first sample.
    smoothed_ns: u64,
    variation_ns: u64,
    least_ns: u64,
    rto_ns: u64,
    backoff: u8,
}

impl Default for RttEstimator {
    /// Without a sample yet.
    fn default() -> RttEstimator {
        RttEstimator {
            smoothed_ns: 0,
            variation_ns: 0,
            least_ns: u64::MAX,
            rto_ns: INITIAL_RTO.as_nanos() as u64,
            backoff: 0,
        }
    }
}

impl RttEstimator {
    /// Takes a measurement and ends any back-off. `min_rto` is the least that the variation contributes to the time-out.
    pub fn on_sample(&mut self, sample: Duration, min_rto: Duration) {
        let sample = (sample.as_nanos() as u64).clamp(1, MAX_RTO.as_nanos() as u64);
        self.least_ns = self.least_ns.min(sample);
        if self.smoothed_ns == 0 {
            // RFC 6298 §2.2
            self.smoothed_ns = sample;
            self.variation_ns = sample / 2;
        } else {
            // RFC 6298 §2.3: alpha 1/8, beta 1/4; the variation first, with the old mean.
            let error = self.smoothed_ns.abs_diff(sample);
            self.variation_ns = self.variation_ns - self.variation_ns / 4 + error / 4;
            self.smoothed_ns = (self.smoothed_ns - self.smoothed_ns / 8 + sample / 8).max(1);
        }
        // As Linux does, the floor applies to the variation term: a path of long but steady delay would else
        // have no slack for the peer's delayed acknowledgment.
        self.rto_ns = self.smoothed_ns + (4 * self.variation_ns).max(min_rto.as_nanos() as u64);
        self.backoff = 0;
    }

    /// The time-out to arm now, back-off included.
    #[inline]
    pub fn rto(&self) -> Duration {
        let ceiling = MAX_RTO.as_nanos() as u64;
        Duration::from_nanos((self.rto_ns << self.backoff).min(ceiling))
    }

    /// Doubles the time-out (RFC 6298 §5.5).
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// Ends the back-off without a sample: the peer acknowledged new data.
    #[inline]
    pub fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    /// How many times the time-out has doubled.
    pub fn backoff(&self) -> u8 {
        self.backoff
    }

    /// RFC 6298 §5.7: when the SYN's timer expired and nothing was measured, data starts with three seconds.
    pub fn after_lost_syn(&mut self) {
        self.backoff = 0;
        if self.smoothed_ns == 0 {
            self.rto_ns = self.rto_ns.max(3_000_000_000);
        }
    }

    /// The smoothed round-trip time; `None` before the first sample.
    #[inline]
    pub fn smoothed(&self) -> Option<Duration> {
        (self.smoothed_ns != 0).then(|| Duration::from_nanos(self.smoothed_ns))
    }

    /// The mean deviation.
    pub fn variation(&self) -> Duration {
        Duration::from_nanos(self.variation_ns)
    }

    /// The least sample ever taken.
    pub fn least(&self) -> Option<Duration> {
        (self.least_ns != u64::MAX).then(|| Duration::from_nanos(self.least_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(200);

    #[test]
    fn first_sample_sets_mean_and_half_as_variation() {
        let mut rtt = RttEstimator::default();
        assert_eq!((rtt.rto(), rtt.smoothed(), rtt.least()), (INITIAL_RTO, None, None));
        rtt.on_sample(Duration::from_millis(200), MIN);
        assert_eq!(rtt.smoothed(), Some(Duration::from_millis(200)));
        assert_eq!(rtt.variation(), Duration::from_millis(100));
        assert_eq!(rtt.rto(), Duration::from_millis(600));
    }

    #[test]
    fn steady_samples_leave_the_floor_and_backoff_doubles_to_the_ceiling() {
        let mut rtt = RttEstimator::default();
        for _ in 0..200 {
            rtt.on_sample(Duration::from_micros(50), MIN);
        }
        let rto = rtt.rto();
        assert!(rto >= MIN && rto < MIN + Duration::from_millis(1), "{rto:?}");
        rtt.back_off();
        assert_eq!(rtt.rto(), rto * 2);
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(), MAX_RTO);
        rtt.reset_backoff();
        assert_eq!(rtt.rto(), rto);
    }

    #[test]
    fn a_lost_syn_without_measurement_means_three_seconds() {
        let mut rtt = RttEstimator::default();
        rtt.back_off();
        rtt.after_lost_syn();
        assert_eq!(rtt.rto(), Duration::from_secs(3));
        rtt.on_sample(Duration::ZERO, MIN);
        assert!(rtt.smoothed().is_some(), "a zero sample still counts");
    }
}
