//! For how long a connection has had something to send, and what held it up (`tcpi_busy_time`, `tcpi_rwnd_limited`,
//! `tcpi_sndbuf_limited` of Linux's TCP_INFO). One thing at a time, as Linux has it: the program's full ring before the
//! peer's window, and either before being busy as such.

use std::time::Duration;

use scoutline_base::Time;

/// Nanoseconds of a tick, as a shift: about a millisecond, as Linux's jiffies, and cheap to count.
const TICK_SHIFT: u32 = 20;

fn tick(now: Time) -> u32 {
    // Wraps after 52 days.
    (now.as_nanos() >> TICK_SHIFT) as u32
}

/// What time goes to; the greater before the smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// All that was written is acknowledged.
    #[default]
    Nothing,
    /// There is something to send, or not acknowledged.
    Busy,
    /// And the peer's window keeps it from being sent.
    Window,
    /// All was sent, and the program's ring is full: more would have been written.
    Ring,
}

/// The watch of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chronograph {
    cause: Cause,
    since: u32,
    /// Ticks that went to [`Cause::Busy`], [`Cause::Window`], [`Cause::Ring`].
    totals: [u32; 3],
}

impl Chronograph {
    /// There is something to send.
    #[inline]
    pub(super) fn on_busy(&mut self, now: Time) {
        self.rise(Cause::Busy, now);
    }

    /// All that was written is acknowledged.
    #[inline]
    pub(super) fn on_idle(&mut self, now: Time) {
        self.turn(Cause::Nothing, now);
    }

    /// The peer's window keeps something from being sent.
    pub(super) fn on_window_closed(&mut self, now: Time) {
        self.rise(Cause::Window, now);
    }

    /// All was sent, and there is no room in the ring for more.
    pub(super) fn on_ring_full(&mut self, now: Time) {
        self.rise(Cause::Ring, now);
    }

    /// There is room in the ring.
    #[inline]
    pub(super) fn on_room(&mut self, now: Time) {
        if self.cause == Cause::Ring {
            self.turn(Cause::Busy, now);
        }
    }

    /// Something was sent.
    #[inline]
    pub(super) fn on_sent(&mut self, now: Time) {
        if self.cause == Cause::Window {
            self.turn(Cause::Busy, now);
        }
    }

    #[inline]
    fn rise(&mut self, cause: Cause, now: Time) {
        if cause > self.cause {
            self.turn(cause, now);
        }
    }

    fn turn(&mut self, cause: Cause, now: Time) {
        for (total, at) in self.totals.iter_mut().zip([Cause::Busy, Cause::Window, Cause::Ring]) {
            if at == self.cause {
                *total = total.saturating_add(tick(now).wrapping_sub(self.since));
            }
        }
        self.cause = cause;
        self.since = tick(now);
    }

    fn total(&self, cause: Cause, now: Time) -> Duration {
        let mut read = *self;
        read.turn(Cause::Nothing, now);
        let ticks = (cause as usize).checked_sub(1).map_or(0, |at| read.totals[at]);
        Duration::from_nanos(u64::from(ticks) << TICK_SHIFT)
    }

    /// For how long there was something to send, or not acknowledged.
    pub fn busy(&self, now: Time) -> Duration {
        [Cause::Busy, Cause::Window, Cause::Ring].map(|cause| self.total(cause, now)).iter().sum()
    }

    /// For how long of that the peer's window was what it waited for.
    pub fn window_limited(&self, now: Time) -> Duration {
        self.total(Cause::Window, now)
    }

    /// For how long of that it waited for room in the program's ring.
    pub fn ring_limited(&self, now: Time) -> Duration {
        self.total(Cause::Ring, now)
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
    fn the_ring_goes_before_the_window() {
        let mut chronograph = Chronograph::default();
        chronograph.on_busy(at(100));
        chronograph.on_window_closed(at(110));
        chronograph.on_ring_full(at(115));
        chronograph.on_window_closed(at(120));
        chronograph.on_sent(at(121));
        chronograph.on_room(at(135));
        chronograph.on_room(at(140));
        chronograph.on_idle(at(150));
        let seen = [Chronograph::busy, Chronograph::window_limited, Chronograph::ring_limited];
        assert_eq!(seen.map(|of| ticks(of(&chronograph, at(200)))), [50, 5, 20]);
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
