//! What a gap that is filled makes late: how old a timestamp may be then.
//!
//! ```text
//!   sent      A₁  B₂  C₃ …  Y₉  A₁₀ again        (the indices are the timestamps)
//!   arrives       B₂  C₃ …      A₁₀  Y₉          the path has held Y up
//! ```
//! With A the stream goes on and TS.Recent is 10. By RFC 7323 §5.3 R1 the segment Y is an old duplicate from then on: it
//! is dropped, missed, and sent again, with a newer timestamp still. On a path that reorders each repair so makes new
//! losses, and each of them costs the sender a part of its window. Y is none of those that R1 is against, of an earlier
//! turn of the sequence space: what was sent since TS.Recent was taken from something before the gap lies within the
//! window. So for a while after a gap was filled, a timestamp is old only if it was old before.

use std::time::Duration;

use scoutline_base::Time;

/// How long at least something may be late, and three times that at most. Until that is over nobody fills the three fourths
/// of a turn that are left of the sequence space, at less than 170 Gbit/s.
const LATENESS: Duration = Duration::from_millis(50);

/// The timestamps that are not too old.
#[derive(Clone, Copy, Debug)]
pub(super) struct Late {
    /// TS.Recent before the first gap that was filled in this stretch, and in the stretch before.
    recent: u32,
    before: u32,
    /// When this stretch began.
    since: Time,
}

impl Late {
    /// A gap is filled now, by which TS.Recent changes from `recent`.
    pub(super) fn new(recent: u32, now: Time) -> Late {
        Late { recent, before: recent, since: now }
    }

    /// And one more.
    pub(super) fn on_filled(&mut self, recent: u32, now: Time) {
        if self.is_over(now) {
            *self = Late::new(recent, now);
        } else if now >= self.since + LATENESS {
            *self = Late { recent, before: self.recent, since: now };
        }
    }

    /// Nothing may be late any more.
    pub(super) fn is_over(&self, now: Time) -> bool {
        now >= self.since + 2 * LATENESS
    }

    /// Something with this timestamp may come now.
    pub(super) fn permits(&self, timestamp: u32, now: Time) -> bool {
        let oldest = if now < self.since + LATENESS { self.before } else { self.recent };
        !self.is_over(now) && (timestamp.wrapping_sub(oldest) as i32) >= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Duration = Duration::from_millis(25);

    fn at(halves: u32) -> Time {
        Time::ZERO + HALF * halves
    }

    #[test]
    fn what_was_fresh_before_a_gap_was_filled_is_so_for_a_while() {
        let late = Late::new(100, at(0));
        for halves in 0..4 {
            assert!(late.permits(100, at(halves)) && late.permits(150, at(halves)));
            assert!(!late.permits(99, at(halves)), "it was old before");
        }
        assert!(!late.permits(150, at(4)));
    }

    /// However many follow: each is covered for as long, and nothing for much longer.
    #[test]
    fn gaps_that_are_filled_one_after_the_other_move_what_is_old() {
        let mut late = Late::new(0, at(0));
        for halves in 1..40 {
            let recent = 100 * halves;
            late.on_filled(recent, at(halves));
            assert!(late.permits(recent, at(halves)) && late.permits(recent, at(halves + 1)));
            assert!(!late.permits(recent.saturating_sub(500), at(halves)) || halves < 5);
        }
    }

    #[test]
    fn nothing_is_late_for_three_times_as_long() {
        let mut late = Late::new(100, at(0));
        late.on_filled(300, at(3));
        assert!(late.permits(100, at(4)), "as in the stretch before");
        assert!(!late.permits(100, at(5)) && late.permits(300, at(5)));
        assert!(!late.permits(300, at(7)));
    }

    #[test]
    fn timestamps_wrap() {
        let late = Late::new(u32::MAX - 1, at(0));
        assert!(late.permits(3, at(1)) && late.permits(u32::MAX, at(1)));
        assert!(!late.permits(u32::MAX - 2, at(1)));
    }
}
