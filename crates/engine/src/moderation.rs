//! Moderation of looks, as network cards moderate their interrupts: where nothing comes but short packets that are passed on,
//! and they come densely, the engine sleeps for a moment between two looks. They are put together then
//! (`proto/forward/merge.rs`), and what a look, a run, a system call and the receiver's interrupt cost is shared by more
//! of them: forwarding by `packet` takes six tenths of a core instead of all of it, and passes on more.
//!
//! Whatever else the engine does shows that somebody may wait for it, and ends it at once. Programs and important packets
//! ring, and end a sleep.

use std::time::Duration;

use scoutline_base::Time;

/// So many packets in a pause's time make it worth its wake-up.
const LEAST: u64 = 8;

/// What the engine has done lately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moderation {
    /// How long to sleep; zero: never.
    pause: Duration,
    /// Counted from here.
    since: Time,
    passed_on: u64,
    others: bool,
    /// The last look has left something.
    more: bool,
}

impl Moderation {
    /// With pauses of this length.
    pub(crate) fn new(pause: Duration) -> Moderation {
        Moderation { pause, since: Time::ZERO, passed_on: 0, others: false, more: false }
    }

    /// Pauses are this long from now on.
    pub(crate) fn set_pause(&mut self, pause: Duration) {
        self.pause = pause;
    }

    /// A look at a device; `more`: it may have left something there.
    #[inline]
    pub(crate) fn on_look(&mut self, more: bool) {
        self.more = more;
    }

    /// So many short packets were passed on.
    #[inline]
    pub(crate) fn on_passed(&mut self, packets: usize) {
        self.passed_on += packets as u64;
    }

    /// Something else was done.
    #[inline]
    pub(crate) fn on_other(&mut self) {
        self.others = true;
    }

    /// How long to sleep, nothing else being left to do.
    #[inline]
    pub(crate) fn pause(&mut self, now: Time) -> Option<Duration> {
        let counted = now.since(self.since);
        if self.more || counted < self.pause || self.pause.is_zero() {
            return None;
        }
        let wanted = u128::from(LEAST) * counted.as_nanos();
        let is_dense = !self.others && u128::from(self.passed_on) * self.pause.as_nanos() >= wanted;
        *self = Moderation { since: now, ..Moderation::new(self.pause) };
        is_dense.then_some(self.pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_micros(50);
    const HALF: Duration = Duration::from_micros(25);

    /// Whether each half of a pause that brings so many is followed by one.
    fn pauses(moderation: &mut Moderation, now: &mut Time, packets: &[usize]) -> Vec<bool> {
        packets
            .iter()
            .map(|&packets| {
                *now += HALF;
                moderation.on_passed(packets);
                moderation.pause(*now).is_some()
            })
            .collect()
    }

    fn begun() -> (Moderation, Time) {
        let (mut moderation, now) = (Moderation::new(PAUSE), Time::ZERO + Duration::from_secs(1));
        assert_eq!(moderation.pause(now), None, "a second with nothing");
        (moderation, now)
    }

    #[test]
    fn it_takes_a_dense_while() {
        let (mut moderation, mut now) = begun();
        assert_eq!(
            pauses(&mut moderation, &mut now, &[7, 0, 4, 4, 90, 0]),
            [false, false, false, true, false, true]
        );
    }

    #[test]
    fn anything_else_ends_it() {
        let (mut moderation, mut now) = begun();
        assert_eq!(pauses(&mut moderation, &mut now, &[20, 20]), [false, true]);
        moderation.on_other();
        assert_eq!(pauses(&mut moderation, &mut now, &[20, 20, 20, 20]), [false, false, false, true]);
    }

    #[test]
    fn what_is_left_at_a_device_comes_first() {
        let (mut moderation, mut now) = begun();
        moderation.on_look(true);
        assert_eq!(pauses(&mut moderation, &mut now, &[64, 64, 64]), [false; 3]);
        moderation.on_look(false);
        assert_eq!(pauses(&mut moderation, &mut now, &[3]), [true]);
    }

    #[test]
    fn never_is_never() {
        let mut moderation = Moderation::new(Duration::ZERO);
        let mut now = Time::ZERO;
        assert_eq!(pauses(&mut moderation, &mut now, &[99; 9]), [false; 9]);
    }
}
