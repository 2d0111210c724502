//! How long the engine looks for more work before it sleeps. Spinning saves a wake-up when work comes soon, and takes
//! the core from the programs on it when it does not; so it is done while it would have paid lately.
//!
//! ```text
//!   idle for   less than the limit    between limit and most    longer, or until a timer
//!   limit      stays                  doubles                   halves, and is soon zero
//! ```
//! Left out on purpose: telling apart who brings work. A pause of a few kinds of traffic at once is one sequence of
//! waits.

use std::time::Duration;

/// Where it begins to grow: what a wake-up on the same core costs, several times over.
const FIRST: Duration = Duration::from_micros(10);

/// The limit of spinning, from one pause to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    most: Duration,
    limit: Duration,
}

impl Spin {
    /// At most so long; zero: never.
    pub(crate) fn new(most: Duration) -> Spin {
        Spin { most, limit: Duration::ZERO }
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

    /// The engine has slept: work was there so long after the last, spinning included; or, with `arrived` false, nothing
    /// came before a timer was due.
    pub(crate) fn on_slept(&mut self, idle: Duration, arrived: bool) {
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
            spin.on_slept(SOON, true);
            assert_eq!(spin.limit(), Duration::from_micros(expected));
        }
        for expected in [25_000, 12_500, 0, 0] {
            spin.on_slept(MOST * 3, true);
            assert_eq!(spin.limit(), Duration::from_nanos(expected));
        }
    }

    #[test]
    fn a_timer_is_no_arrival() {
        let mut spin = Spin::new(MOST);
        spin.on_slept(SOON, true);
        spin.on_slept(SOON, false);
        assert_eq!(spin.limit(), Duration::ZERO);
    }

    #[test]
    fn never_is_never() {
        let mut spin = Spin::new(Duration::ZERO);
        spin.on_slept(Duration::ZERO, true);
        assert_eq!(spin.limit(), Duration::ZERO);
    }
}
