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
//! Programs on paths are told of the moment, and ring when they mark something from then on ([`Turn::slack`]). So the timer is
//! needed only for who computes without a call, and for what devices bring meanwhile, and is later while programs ring before
//! it: set once in many turns instead of in each.
//!
//! Left out on purpose: telling programs apart. A turn belongs to all that the core has to run.

use std::time::Duration;

/// What Linux has at least beyond what the paths had: some three switches.
const LEAST: Duration = Duration::from_micros(50);
/// So far the moment moves away: a program that begins to compute is in the way of paths for so long, once.
const MOST: Duration = Duration::from_millis(1);
/// And so far where the core has work all the time, of which the threads that paths wake are a part.
const MOST_PRESSED: Duration = Duration::from_micros(200);
/// And so far where programs ring: a turn that they end costs no timer, and does more in one go.
const MOST_TOLD: Duration = Duration::from_micros(100);
/// The timer is later than the moment by so much at least: a program that marks something and asks for more all the time rings
/// first.
const GRACE: Duration = Duration::from_micros(25);

/// The limit of turns, from one to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    more: Duration,
    slack: Duration,
}

impl Turn {
    /// How long Linux may keep paths of its level waiting in the turn that begins now, if they have had the core for `had`.
    #[inline]
    pub(crate) fn limit(self, had: Duration) -> Duration {
        had + LEAST + self.more + self.slack.min(MOST_TOLD)
    }

    /// By how much the timer may be later.
    #[inline]
    pub(crate) fn slack(self) -> Duration {
        GRACE + self.slack
    }

    /// Paths that waited have the core so long after the moment: a program has `rung`, or any timer was due, a look's for one. Who
    /// has not rung by then does not, and in a few turns the timer is there in time.
    #[inline]
    pub(crate) fn on_moment(&mut self, rung: bool, late: Duration) {
        if rung {
            self.loosen();
        } else if late >= LEAST {
            self.slack = Some(self.slack / 4).filter(|&slack| slack >= GRACE).unwrap_or_default();
        }
    }

    /// Programs end their turns, by sleeping or a ring.
    #[inline]
    fn loosen(&mut self) {
        self.slack = (self.slack * 2).clamp(LEAST, MOST);
    }

    /// The turn has ended by itself, after so long: everything on the core sleeps, as far as is known.
    #[inline]
    pub(crate) fn on_idle(&mut self, lasted: Duration, had: Duration, paths_wait: bool) {
        if lasted <= had + LEAST {
            self.more = (self.more * 2).clamp(LEAST, MOST);
            self.loosen();
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
        assert_eq!(after_short_ones().limit(HAD), HAD + LEAST + MOST + MOST_TOLD);
    }

    #[test]
    fn a_program_that_does_not_is_interrupted_late_once() {
        let mut turn = after_short_ones();
        turn.on_interrupted();
        assert_eq!(turn.limit(HAD), HAD + LEAST + MOST_TOLD);
        assert_eq!(turn.slack(), GRACE + MOST);
        turn.on_moment(false, GRACE + MOST);
        turn.on_moment(false, GRACE + MOST / 4);
        turn.on_moment(false, GRACE + MOST / 16);
        assert_eq!((turn.limit(HAD), turn.slack()), (HAD + LEAST, GRACE));
    }

    #[test]
    fn who_computes_is_found_out_by_a_look_before_the_timer() {
        let mut turn = after_short_ones();
        (0..3).for_each(|_| turn.on_moment(false, MOST / 2));
        assert_eq!(turn.slack(), GRACE);
    }

    #[test]
    fn the_timer_is_late_while_programs_ring_before_it() {
        let mut turn = Turn::default();
        for expected in [50, 100, 200, 400, 800, 1_000, 1_000] {
            turn.on_moment(true, Duration::ZERO);
            assert_eq!(turn.slack(), GRACE + Duration::from_micros(expected));
        }
        // In the midst of a piece of work.
        turn.on_moment(false, GRACE);
        assert_eq!(turn.slack(), GRACE + MOST);
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
        assert_eq!(turn.limit(HAD), HAD + LEAST + MOST + MOST_TOLD);
        turn.on_idle(MOST, HAD, true);
        assert_eq!(turn.limit(HAD), HAD + LEAST + MOST_TOLD);
        // The sentinel may run now and then beside a program that computes (before Linux 6.18): that is no idle core.
        (0..20).for_each(|_| turn.on_idle(MOST, HAD, false));
        assert_eq!(turn.limit(HAD), HAD + LEAST + MOST_TOLD);
    }
}
