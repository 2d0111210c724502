//! Pacing: data leaves at a rate, in bursts of about a millisecond, instead of as fast as the window opens.
//!
//! The pacer says when the next burst may go. Timers are coarse (the engine's tick is a millisecond) and come late; what
//! a burst is late by, the next ones make up for, within a bound.

use std::time::Duration;

use scoutline_base::Time;

/// The time that one burst stands for. Shorter ones cost wake-ups, longer ones queues.
const BURST: Duration = Duration::from_millis(1);
/// No burst is longer than this, however fast: what devices take at once.
const MAX_BURST: u64 = 64 << 10;
/// What a late timer makes up for at most.
const MAX_LATE: Duration = Duration::from_millis(4);

/// The pacer of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pacer {
    /// When more may go.
    next: Time,
}

impl Pacer {
    /// When more may go, if that is not now.
    #[inline]
    pub fn wait(&self, now: Time) -> Option<Time> {
        (self.next > now).then_some(self.next)
    }

    /// `bytes` left at `now`, at so many bytes a second.
    pub fn on_sent(&mut self, bytes: u64, rate: u64, now: Time) {
        let takes = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let takes = Duration::from_nanos(takes.min(1 << 40) as u64);
        let earliest = Time::from_nanos(now.as_nanos().saturating_sub(MAX_LATE.as_nanos() as u64));
        self.next = self.next.max(earliest) + takes;
    }
}

/// Bytes of one burst at this rate: at least two segments.
pub fn burst(rate: u64, segment: u32) -> u64 {
    (rate / (1_000_000_000 / BURST.as_nanos() as u64))
        .clamp(2 * u64::from(segment), MAX_BURST.max(2 * u64::from(segment)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_follow_the_rate_and_lateness_is_made_up_for() {
        let mut pacer = Pacer::default();
        let at = |micros| Time::from_micros(micros);
        assert_eq!(pacer.wait(at(10_000)), None);
        // 1 MB/s: 2,000 bytes take 2 ms. It never sent, so it counts as 4 ms late.
        for _ in 0..3 {
            pacer.on_sent(2_000, 1_000_000, at(10_000));
        }
        assert_eq!(pacer.wait(at(10_000)), Some(at(12_000)));
        assert_eq!(pacer.wait(at(12_000)), None);
        pacer.on_sent(2_000, 1_000_000, at(13_000));
        assert_eq!(pacer.wait(at(13_000)), Some(at(14_000)), "a millisecond late");
        pacer.on_sent(2_000, 1_000_000, at(1_000_000));
        assert_eq!(pacer.wait(at(1_000_000)), None, "but no more than 4");
        pacer.on_sent(1, 0, at(2_000_000));
        assert!(pacer.wait(at(2_000_000)).is_some(), "a rate of nothing is slow, and no fault");
    }

    #[test]
    fn a_burst_is_a_millisecond_within_bounds() {
        assert_eq!(burst(10_000_000, 1448), 10_000);
        assert_eq!(burst(1_000, 1448), 2_896);
        assert_eq!(burst(u64::MAX, 1448), 64 << 10);
        assert_eq!(burst(1, 65_000), 130_000);
    }
}
