//! How long a turn of Linux lasts before paths of its own level interrupt it. A program that never sleeps must not keep
//! what comes now and then waiting for a whole quantum; but most programs sleep long before, and a timer for a moment
//! that is never reached costs more on a virtual machine than the turn (20 to 30 µs, set and taken back; `rr` on one
//! core: 107 µs, and 48 without). So the moment moves away while turns end by themselves, and is back when one does not.
//!
//! Left out on purpose: telling programs apart. A turn belongs to all that the core has to run.

use std::time::Duration;

/// What Linux has at least beyond what the paths had: some three switches.
const LEAST: Duration = Duration::from_micros(50);
/// So far the moment moves away: then a program that begins to compute is in the way of paths once, for so long.
const MOST: Duration = Duration::from_millis(1);

/// The limit of turns, from one to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    more: Duration,
}

impl Turn {
    /// How long Linux may keep paths of its level waiting in the turn that begins now, if they have had the core for `had`.
    #[inline]
    pub(crate) fn limit(self, had: Duration) -> Duration {
        had + LEAST + self.more
    }

    /// The turn has ended by itself: everything on the core sleeps.
    #[inline]
    pub(crate) fn on_idle(&mut self) {
        self.more = (self.more * 2).clamp(LEAST, MOST);
    }

    /// Paths had to interrupt it.
    #[inline]
    pub(crate) fn on_interrupted(&mut self) {
        self.more = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HAD: Duration = Duration::from_micros(20);

    #[test]
    fn programs_that_sleep_by_themselves_are_left_alone() {
        let mut turn = Turn::default();
        assert_eq!(turn.limit(HAD), HAD + LEAST);
        (0..20).for_each(|_| turn.on_idle());
        assert_eq!(turn.limit(HAD), HAD + LEAST + MOST);
    }

    #[test]
    fn a_program_that_does_not_is_interrupted_late_once() {
        let mut turn = Turn::default();
        (0..20).for_each(|_| turn.on_idle());
        turn.on_interrupted();
        assert_eq!(turn.limit(HAD), HAD + LEAST);
    }
}
