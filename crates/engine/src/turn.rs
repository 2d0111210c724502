//! How long a turn of Linux lasts before paths of its own level interrupt it. A program that never sleeps must not keep
//! what comes now and then waiting for a whole quantum; but most programs sleep long before, and a timer for a moment
//! that is never reached costs more on a virtual machine than the turn (set and taken back 20 to 30 µs; `rr` on one core,
//! AMD EPYC under Firecracker, Linux 6.18: 107 to 148 µs with it, 44 to 65 without). So the moment moves away while turns
//! end by themselves and soon, and is back when paths waited for one that did not. A turn that a program gives back, since it
//! has nothing to do, has ended by itself.
//!
//! It moves away, too, where paths wait at the end of each turn and each begins with threads that they have woken: then the
//! core is full, and what counts is how much is done in one go. Interrupted at once, a client on this core had three
//! answers at a time and not fifty (`redis` on one core: 11,500 commands/s, and 28,000 so; the kernel 38,000). Who spins for
//! what paths bring is woken by nobody.
//!
//! Left out on purpose: telling programs apart. A turn belongs to all that the core has to run.

use std::time::Duration;

/// What Linux has at least beyond what the paths had: some three switches.
const LEAST: Duration = Duration::from_micros(50);
/// So far the moment moves away: a program that begins to compute is in the way of paths for so long, once.
const MOST: Duration = Duration::from_millis(1);
/// And so far where the core has work all the time, of which the threads that paths wake are a part.
const MOST_PRESSED: Duration = Duration::from_micros(200);

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

    /// The turn has ended by itself, after so long: everything on the core sleeps, as far as is known.
    #[inline]
    pub(crate) fn on_idle(&mut self, lasted: Duration, had: Duration, paths_wait: bool) {
        if lasted <= had + LEAST {
            self.more = (self.more * 2).clamp(LEAST, MOST);
        } else if paths_wait {
            self.on_interrupted();
        }
    }

    /// Paths had to interrupt it, or the quantum was over.
    #[inline]
    pub(crate) fn on_interrupted(&mut self) {
        self.more = Duration::ZERO;
    }

    /// Paths that waited already interrupted it. `has_woken`: it had begun with threads that paths had woken; now and then the
    /// program is awake still, so that without it the moment comes back slowly.
    #[inline]
    pub(crate) fn on_pressed(&mut self, has_woken: bool) {
        self.more = match self.more.min(MOST_PRESSED) {
            more if has_woken => (more * 2).clamp(LEAST, MOST_PRESSED),
            more if more > LEAST => more * 7 / 8,
            _ => Duration::ZERO,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HAD: Duration = Duration::from_micros(20);

    /// After turns that ended by themselves at once.
    fn after_short_ones() -> Turn {
        let mut turn = Turn::default();
        (0..20).for_each(|_| turn.on_idle(LEAST, HAD, true));
        turn
    }

    #[test]
    fn programs_that_sleep_by_themselves_are_left_alone() {
        assert_eq!(Turn::default().limit(HAD), HAD + LEAST);
        assert_eq!(after_short_ones().limit(HAD), HAD + LEAST + MOST);
    }

    #[test]
    fn a_program_that_does_not_is_interrupted_late_once() {
        let mut turn = after_short_ones();
        turn.on_interrupted();
        assert_eq!(turn.limit(HAD), HAD + LEAST);
    }

    #[test]
    fn on_a_full_core_turns_grow_up_to_a_bound() {
        let mut turn = Turn::default();
        for expected in [50, 100, 200, 200] {
            turn.on_pressed(true);
            assert_eq!(turn.limit(HAD), HAD + LEAST + Duration::from_micros(expected));
        }
        turn.on_pressed(false);
        assert_eq!(turn.limit(HAD), HAD + LEAST + Duration::from_micros(175));
        (0..20).for_each(|_| turn.on_pressed(false));
        assert_eq!(turn.limit(HAD), HAD + LEAST);
        turn.on_pressed(true);
        turn.on_interrupted();
        assert_eq!(turn.limit(HAD), HAD + LEAST);
    }

    #[test]
    fn long_turns_count_if_paths_waited() {
        let mut turn = after_short_ones();
        turn.on_idle(MOST, HAD, false);
        assert_eq!(turn.limit(HAD), HAD + LEAST + MOST);
        turn.on_idle(MOST, HAD, true);
        assert_eq!(turn.limit(HAD), HAD + LEAST);
        // The sentinel may run now and then beside a program that computes (before Linux 6.18): that is no idle core.
        (0..20).for_each(|_| turn.on_idle(MOST, HAD, false));
        assert_eq!(turn.limit(HAD), HAD + LEAST);
    }
}
