//! When a device is flooded: much more comes than anybody wants, and it is better held back at the interface.
//!
//! ```text
//!   off ──► on     in a look of 10 ms, 100,000 packets/s and more were unwanted, and three in four of all
//!   on  ──► off    for a second, less than half of that was held back
//! ```
//! Unwanted is what found the receive ring full, the queue of its path full, or no path. A program that cannot quite keep
//! up with its peer is not flooded: it takes more than a quarter.

use std::time::Duration;

use scoutline_base::Time;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// Unwanted packets a second that make a flood: a core spends a tenth of its time on them.
const FLOOD_RATE: u64 = 100_000;
/// No end before it has been calm for so long.
const CALM: Duration = Duration::from_secs(1);

/// What a device has seen so far, in packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Arrived, dropped ones included.
    pub(crate) arrived: u64,
    /// Of these, for nobody, or for somebody who had no room.
    pub(crate) unwanted: u64,
    /// Held back at the interface: not among the others.
    pub(crate) held_back: u64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Hold back.
    Begin,
    /// Let all pass.
    End,
}

/// Looks at one device.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    looked: Time,
    seen: Seen,
    /// While it is on: the last look that was not calm.
    flooded: Option<Time>,
}

impl Detector {
    /// Whether it is time to look again.
    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        now.since(self.looked) >= LOOK
    }

    /// When it must be looked at although nothing comes.
    pub(crate) fn next_look(&self) -> Option<Time> {
        self.flooded.map(|_| self.looked + LOOK)
    }

    /// True while a flood is held back.
    pub(crate) fn is_on(&self) -> bool {
        self.flooded.is_some()
    }

    /// Looks at what was seen until now.
    pub(crate) fn look(&mut self, seen: Seen, now: Time) -> Option<Change> {
        let window = now.since(self.looked).as_micros().max(1) as u64;
        let rate = |now: u64, then: u64| now.saturating_sub(then).saturating_mul(1_000_000) / window;
        let arrived = rate(seen.arrived, self.seen.arrived);
        let unwanted = rate(seen.unwanted, self.seen.unwanted);
        let held_back = rate(seen.held_back, self.seen.held_back);
        (self.looked, self.seen) = (now, seen);
        match self.flooded {
            None if unwanted >= FLOOD_RATE && unwanted / 3 >= arrived.saturating_sub(unwanted) => {
                self.flooded = Some(now);
                Some(Change::Begin)
            }
            Some(_) if held_back.max(unwanted) >= FLOOD_RATE / 2 => {
                self.flooded = Some(now);
                None
            }
            Some(last) if now.since(last) >= CALM => {
                self.flooded = None;
                Some(Change::End)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CALM, Change, Detector, LOOK, Seen};
    use scoutline_base::Time;

    struct Device {
        detector: Detector,
        seen: Seen,
        now: Time,
    }

    impl Device {
        fn new() -> Device {
            Device { detector: Detector::default(), seen: Seen::default(), now: Time::ZERO }
        }

        /// A look later, at so many packets a second.
        fn look(&mut self, arrived: u64, unwanted: u64, held_back: u64) -> Option<Change> {
            self.now += LOOK;
            self.seen.arrived += arrived / 100;
            self.seen.unwanted += unwanted / 100;
            self.seen.held_back += held_back / 100;
            assert!(self.detector.is_due(self.now));
            self.detector.look(self.seen, self.now)
        }
    }

    #[test]
    fn a_flood_begins_at_once_and_ends_after_a_calm() {
        let mut device = Device::new();
        assert_eq!(device.look(50_000, 0, 0), None);
        assert_eq!(device.look(1_200_000, 1_150_000, 0), Some(Change::Begin));
        assert!(device.detector.next_look().is_some(), "it looks although nothing comes");
        for _ in 0..500 {
            assert_eq!(device.look(100_000, 90_000, 1_000_000), None, "held back, it is still there");
        }
        let calm_looks = (CALM.as_millis() / LOOK.as_millis()) as usize;
        for _ in 1..calm_looks {
            assert_eq!(device.look(50_000, 0, 0), None);
        }
        assert_eq!(device.look(50_000, 0, 0), Some(Change::End));
        assert_eq!(device.detector.next_look(), None);
    }

    #[test]
    fn much_traffic_is_no_flood() {
        let mut device = Device::new();
        assert_eq!(device.look(2_000_000, 0, 0), None, "all of it is wanted");
        assert_eq!(device.look(600_000, 400_000, 0), None, "a program that does not quite keep up");
        assert_eq!(device.look(90_000, 90_000, 0), None, "little of it");
    }

    #[test]
    fn a_pause_of_a_flood_is_not_its_end() {
        let mut device = Device::new();
        assert_eq!(device.look(1_000_000, 1_000_000, 0), Some(Change::Begin));
        for look in 0..1000 {
            let rate = if look % 50 == 0 { 1_000_000 } else { 0 };
            assert_eq!(device.look(0, 0, rate), None);
        }
    }
}
