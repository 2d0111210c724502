//! How long the engine looks for more work before it sleeps. Spinning saves a wake-up when work comes soon, and takes
//! the core from the programs on it when it does not; so it is done while it would have paid lately.
//!
//! ```text
//!   idle for   less than the limit    between limit and most    longer, or until a timer
//!   limit      stays                  doubles                   halves, and is soon zero
//! ```
//! Where the core is shared, the work may come from a program that cannot run while the engine spins: then it comes soon
//! after each sleep begins, and never before. So spins that find nothing, eight in a row, end the spinning for a number
//! of sleeps, which doubles while that repeats itself. So does a core that is taken from the engine while it spins: without
//! one of its own it is in the way of programs that have work, and offers them the core at each look (`sched_yield`).
//!
//! Left out on purpose: telling apart who brings work. A pause of a few kinds of traffic at once is one sequence of
//! waits.

use std::time::Duration;

/// Where it begins to grow: what a wake-up on the same core costs, several times over.
const FIRST: Duration = Duration::from_micros(10);
/// So many spins in a row find nothing, and it is given up; more than it takes to grow from [`FIRST`] to a millisecond.
const IN_VAIN: u32 = 8;
/// For how many sleeps, at first and at most.
const REST: std::ops::RangeInclusive<u32> = 64..=1024;

/// The limit of spinning, from one pause to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    most: Duration,
    limit: Duration,
    /// Spins that found nothing since one that did.
    in_vain: u32,
    /// Sleeps until it is tried again.
    resting: u32,
    /// For how many sleeps it is given up the next time.
    rest: u32,
}

impl Spin {
    /// At most so long; zero: never.
    pub(crate) fn new(most: Duration) -> Spin {
        Spin { most, limit: Duration::ZERO, in_vain: 0, resting: 0, rest: *REST.start() }
    }

    /// Another limit from now on.
    pub(crate) fn set_most(&mut self, most: Duration) {
        self.most = most;
        self.limit = self.limit.min(most);
    }

    /// How long to spin in the pause that begins now.
    #[inline]
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// There was work while the engine span: it came, or (`came` false) a timer was due so long after the last.
    #[inline]
    pub(crate) fn on_worked(&mut self, idle: Duration, came: bool) {
        if !came {
            return self.on_slept(idle, false, true);
        }
        self.in_vain = 0;
        self.rest = *REST.start();
    }

    /// The core was taken from the engine while it span: others want it.
    pub(crate) fn on_taken(&mut self) {
        self.give_up();
    }

    fn give_up(&mut self) {
        self.resting = self.rest;
        self.rest = (self.rest * 2).min(*REST.end());
        self.in_vain = 0;
        self.limit = Duration::ZERO;
    }

    /// The engine has slept: work was there so long after the last, spinning included; or, with `arrived` false, nothing
    /// came before a timer was due. Before that it span in vain, or (`span` false) did not.
    pub(crate) fn on_slept(&mut self, idle: Duration, arrived: bool, span: bool) {
        if self.resting > 0 {
            self.resting -= 1;
            return;
        }
        if span {
            self.in_vain += 1;
        }
        if self.in_vain == IN_VAIN {
            return self.give_up();
        }
        if arrived && idle <= self.most {
            self.limit = (self.limit * 2).max(FIRST).min(self.most);
        } else {
            self.limit /= 2;
            if self.limit < FIRST {
                self.limit = Duration::ZERO;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_micros(50);
    const SOON: Duration = Duration::from_micros(30);

    #[test]
    fn it_grows_while_work_comes_soon_and_ends_when_it_does_not() {
        let mut spin = Spin::new(MOST);
        assert_eq!(spin.limit(), Duration::ZERO);
        for expected in [10, 20, 40, 50, 50] {
            spin.on_slept(SOON, true, false);
            assert_eq!(spin.limit(), Duration::from_micros(expected));
        }
        for expected in [25_000, 12_500, 0, 0] {
            spin.on_slept(MOST * 3, true, false);
            assert_eq!(spin.limit(), Duration::from_nanos(expected));
        }
    }

    /// The engine sleeps `count` times, and work is there `SOON` after the last.
    fn sleep(spin: &mut Spin, count: u32) {
        (0..count).for_each(|_| spin.on_slept(SOON, true, !spin.limit().is_zero()));
    }

    #[test]
    fn what_never_finds_anything_is_given_up_for_longer_each_time() {
        let mut spin = Spin::new(MOST);
        for rest in [64, 128, 256, 512, 1024, 1024] {
            sleep(&mut spin, IN_VAIN);
            assert_eq!(spin.limit(), MOST);
            sleep(&mut spin, 1 + rest);
            assert_eq!(spin.limit(), Duration::ZERO);
        }
    }

    #[test]
    fn who_needs_the_core_gets_it() {
        let mut spin = Spin::new(MOST);
        sleep(&mut spin, 5);
        assert_eq!(spin.limit(), MOST);
        spin.on_taken();
        sleep(&mut spin, *REST.start());
        assert_eq!(spin.limit(), Duration::ZERO);
        sleep(&mut spin, 5);
        assert_eq!(spin.limit(), MOST);
        spin.on_taken();
        sleep(&mut spin, *REST.start() + 5);
        assert_eq!(spin.limit(), Duration::ZERO, "the second time for twice as long");
    }

    #[test]
    fn what_is_found_now_and_then_goes_on() {
        let mut spin = Spin::new(MOST);
        for _ in 0..1000 {
            sleep(&mut spin, IN_VAIN - 1);
            spin.on_worked(SOON, true);
        }
        assert_eq!(spin.limit(), MOST);
    }

    #[test]
    fn a_timer_is_no_arrival() {
        let mut spin = Spin::new(MOST);
        spin.on_slept(SOON, true, false);
        spin.on_slept(SOON, false, false);
        assert_eq!(spin.limit(), Duration::ZERO);
        spin.on_slept(SOON, true, false);
        assert_ne!(spin.limit(), Duration::ZERO);
        spin.on_worked(SOON, false);
        assert_eq!(spin.limit(), Duration::ZERO);
    }

    #[test]
    fn never_is_never() {
        let mut spin = Spin::new(Duration::ZERO);
        spin.on_slept(Duration::ZERO, true, false);
        assert_eq!(spin.limit(), Duration::ZERO);
    }
}
