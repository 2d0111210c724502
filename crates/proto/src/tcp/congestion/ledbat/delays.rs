//! What of a round trip is the path, and what is the queue (RFC 6817 §2.4.2, §3.4).

use std::time::Duration;

use scoutline_base::Time;

/// RFC 6817 §2.5 BASE_HISTORY: minutes for which a base delay is believed, for routes change.
const HISTORY_MINUTES: usize = 10;
const MINUTE: Duration = Duration::from_secs(60);
/// RFC 6817 §2.4.2: the current delay is the least of this many samples: some are inflated by delayed
/// acknowledgments or a busy host.
const CURRENT_SAMPLES: usize = 4;

/// Round-trip times of late. `Duration::MAX`, of which nothing is less, stands where none is known.
#[derive(Clone, Debug)]
pub(super) struct Delays {
    /// The least of each minute, the current one first.
    minutes: [Duration; HISTORY_MINUTES],
    minute_began: Time,
    /// The last samples, in no order.
    current: [Duration; CURRENT_SAMPLES],
    next: usize,
}

impl Default for Delays {
    fn default() -> Delays {
        Delays {
            minutes: [Duration::MAX; HISTORY_MINUTES],
            minute_began: Time::ZERO,
            current: [Duration::MAX; CURRENT_SAMPLES],
            next: 0,
        }
    }
}

impl Delays {
    /// Takes a round-trip time.
    pub(super) fn on_sample(&mut self, sample: Duration, now: Time) {
        self.on_base(sample, now);
        self.current[self.next] = sample;
        self.next = (self.next + 1) % CURRENT_SAMPLES;
    }

    /// Takes a round-trip time of an earlier moment.
    pub(super) fn on_base(&mut self, sample: Duration, now: Time) {
        let minutes = (now.since(self.minute_began).as_secs() / MINUTE.as_secs()) as usize;
        if minutes > 0 {
            let turned = minutes.min(HISTORY_MINUTES);
            self.minutes.rotate_right(turned);
            self.minutes[..turned].fill(Duration::MAX);
            self.minute_began = now;
        }
        self.minutes[0] = self.minutes[0].min(sample);
    }

    /// The round trip with empty queues; `None` before the first sample.
    pub(super) fn base(&self) -> Option<Duration> {
        self.minutes.iter().min().copied().filter(|base| *base != Duration::MAX)
    }

    /// What the queues add now; `None` before the first sample.
    pub(super) fn queueing(&self) -> Option<Duration> {
        let current = self.current.iter().min().copied().filter(|current| *current != Duration::MAX)?;
        Some(current.saturating_sub(self.base()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn the_base_is_the_least_of_ten_minutes_and_is_forgotten_then() {
        let mut delays = Delays::default();
        assert_eq!((delays.base(), delays.queueing()), (None, None));
        let mut now = Time::from_millis(5);
        delays.on_sample(millis(20), now);
        assert_eq!((delays.base(), delays.queueing()), (Some(millis(20)), Some(Duration::ZERO)));
        // The route is longer from now on.
        for minute in 0..10 {
            assert_eq!(delays.base(), Some(millis(20)), "minute {minute}");
            now += MINUTE;
            delays.on_sample(millis(50 + minute), now);
        }
        assert_eq!(delays.base(), Some(millis(50)));
        assert_eq!(delays.queueing(), Some(millis(6)), "the least of the last four, less the base");
        delays.on_sample(millis(90), now + MINUTE * 600);
        assert_eq!(delays.base(), Some(millis(90)), "a long silence forgets all");
    }

    #[test]
    fn one_inflated_sample_is_no_queue_and_four_are() {
        let mut delays = Delays::default();
        let now = Time::from_millis(5);
        delays.on_base(millis(10), now);
        assert_eq!(delays.queueing(), None, "nothing of now");
        delays.on_sample(millis(12), now);
        for _ in 0..3 {
            delays.on_sample(millis(52), now);
            assert_eq!(delays.queueing(), Some(millis(2)));
        }
        delays.on_sample(millis(52), now);
        assert_eq!(delays.queueing(), Some(millis(42)));
    }
}
