//! For how long a connection has had something to send, and what held it up (`tcpi_busy_time`, `tcpi_rwnd_limited` of
//! Linux's TCP_INFO). For how long the program waited for room in its ring is not measured here: nobody tells.

use std::time::Duration;

use scoutline_base::Time;

/// Nanoseconds of a tick, as a shift: about a millisecond, as Linux's jiffies, and cheap to count.
const TICK_SHIFT: u32 = 20;
/// A watch that stands.
const STANDS: u32 = u32::MAX;

fn tick(now: Time) -> u32 {
    // Wraps after 52 days.
    (now.as_nanos() >> TICK_SHIFT) as u32 & !1
}

/// A watch that may be started while it runs. In ticks, for there is one of these for each connection and cause.
#[derive(Clone, Copy, Debug)]
struct Stopwatch {
    /// Never odd, so never [`STANDS`], while it runs.
    since: u32,
    total: u32,
}

impl Stopwatch {
    const NEW: Stopwatch = Stopwatch { since: STANDS, total: 0 };

    #[inline]
    fn start(&mut self, now: Time) {
        if self.since == STANDS {
            self.since = tick(now);
        }
    }

    #[inline]
    fn stop(&mut self, now: Time) {
        self.total = self.total(now);
        self.since = STANDS;
    }

    #[inline]
    fn total(self, now: Time) -> u32 {
        if self.since == STANDS {
            return self.total;
        }
        self.total.saturating_add(tick(now).wrapping_sub(self.since))
    }

    fn elapsed(self, now: Time) -> Duration {
        Duration::from_nanos(u64::from(self.total(now)) << TICK_SHIFT)
    }
}

/// The watches of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Chronograph {
    busy: Stopwatch,
    window: Stopwatch,
}

impl Default for Chronograph {
    fn default() -> Chronograph {
        Chronograph { busy: Stopwatch::NEW, window: Stopwatch::NEW }
    }
}

impl Chronograph {
    /// There is something to send.
    #[inline]
    pub(super) fn on_busy(&mut self, now: Time) {
        self.busy.start(now);
    }

    /// All that was written is acknowledged.
    #[inline]
    pub(super) fn on_idle(&mut self, now: Time) {
        self.busy.stop(now);
    }

    /// The peer's window keeps something from being sent.
    pub(super) fn on_window_closed(&mut self, now: Time) {
        self.window.start(now);
    }

    /// Something was sent.
    #[inline]
    pub(super) fn on_sent(&mut self, now: Time) {
        if self.window.since != STANDS {
            self.window.stop(now);
        }
    }

    /// For how long there was something to send, or not acknowledged.
    pub fn busy(&self, now: Time) -> Duration {
        self.busy.elapsed(now)
    }

    /// For how long of that the peer's window was what it waited for.
    pub fn window_limited(&self, now: Time) -> Duration {
        self.window.elapsed(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ticks: u64) -> Time {
        Time::from_nanos(ticks << TICK_SHIFT)
    }

    fn ticks(time: Duration) -> u64 {
        time.as_nanos() as u64 >> TICK_SHIFT
    }

    #[test]
    fn times_add_up_and_run_on() {
        let mut chronograph = Chronograph::default();
        assert_eq!(chronograph.busy(at(50)), Duration::ZERO);
        chronograph.on_busy(at(100));
        chronograph.on_busy(at(120));
        assert_eq!(ticks(chronograph.busy(at(150))), 50, "busy since the first");
        chronograph.on_window_closed(at(150));
        chronograph.on_window_closed(at(160));
        assert_eq!(ticks(chronograph.window_limited(at(170))), 20);
        chronograph.on_sent(at(180));
        chronograph.on_sent(at(190));
        chronograph.on_idle(at(200));
        assert_eq!(ticks(chronograph.busy(at(900))), 100);
        assert_eq!(ticks(chronograph.window_limited(at(900))), 30);
        chronograph.on_busy(at(1_000));
        assert_eq!(ticks(chronograph.busy(at(1_002))), 102);
    }

    #[test]
    fn the_count_of_ticks_may_wrap() {
        let mut chronograph = Chronograph::default();
        let wrap = 1 << 32;
        chronograph.on_busy(at(wrap - 2));
        chronograph.on_idle(at(wrap + 8));
        assert_eq!(ticks(chronograph.busy(at(wrap + 9))), 10);
    }
}
