//! When a device is flooded: much more comes than anybody wants, and it is better held back at the interface.
//!
//! ```text
//!   off ──► on     in a look of 10 ms, 100,000 packets/s and more were unwanted, and three in four of all; where seven
//!                  in eight of those that were looked at are SYNs, nothing but SYNs
//!   off ──► SYNs   100,000 SYNs/s and more were unwanted, whatever else came
//!   SYNs ─► all    as from off, and it is not SYNs
//!   on  ──► off    for a second, less than half of that was held back
//! ```
//! In a flood of SYNs everything else is somebody's who has a connection, and is not to be limited at all.
//!
//! Unwanted is what found the receive ring full, the queue of its path full, or no path, and SYNs that found the backlog
//! full, though they are answered with cookies: to answer half a million a second takes all of a core. A program that
//! cannot quite keep up with its peer is not flooded: it takes more than a quarter.
//!
//! Of what was lost nobody knows what it was: it is taken for what was looked at. An engine that was away from its core for
//! a look has looked at nothing, and says nothing: a flood of SYNs that was taken for another then would be held back with
//! limits for everybody until its end.

use std::time::Duration;

use scoutline_base::Time;
use scoutline_device::Policing;
use scoutline_device::packet::Important;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// Unwanted packets a second that make a flood: a core spends a tenth of its time on them.
const FLOOD_RATE: u64 = 100_000;
/// No end before it has been calm for so long.
const CALM: Duration = Duration::from_secs(1);
/// Unwanted packets that have to be looked at in a look to tell what a flood is made of.
const SAMPLE: u64 = 16;
/// So many looks in a row that tell nothing are a flood of anything.
const BLIND_LOOKS: u32 = 3;

/// What a device has seen so far, in packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Arrived, dropped ones included.
    pub(crate) arrived: u64,
    /// Of these, lost for want of room in the ring: nobody knows what they were.
    pub(crate) lost: u64,
    /// Of these, for nobody, or for somebody who had no room.
    pub(crate) unwanted: Unwanted,
    /// Held back at the interface: not among the others.
    pub(crate) held_back: u64,
}

/// Packets that were looked at and that nobody wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unwanted {
    pub(crate) all: u64,
    /// Of these, SYNs.
    pub(crate) syns: u64,
}

impl Unwanted {
    /// One more.
    pub(crate) fn count(&mut self, is_syn: bool) {
        self.all += 1;
        self.syns += u64::from(is_syn);
    }
}

/// What a flood is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flood {
    Syns,
    Anything,
}

impl Flood {
    /// How it is held back beside what these rules name.
    pub(crate) fn policing(self, exempt: &[Important]) -> Policing<'_> {
        Policing { exempt, only_syns: self == Flood::Syns }
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Hold this back.
    Begin(Flood),
    /// Let all pass.
    End,
}

/// Looks at one device.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    looked: Time,
    seen: Seen,
    /// Looks in a row in which much was lost, and too little looked at.
    blind: u32,
    /// While it is on: the last look that was not calm.
    flooded: Option<(Time, Flood)>,
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

    /// The flood that is held back.
    pub(crate) fn is_on(&self) -> Option<Flood> {
        self.flooded.map(|(_, flood)| flood)
    }

    /// Looks at what was seen until now.
    pub(crate) fn look(&mut self, seen: Seen, now: Time) -> Option<Change> {
        let window = now.since(self.looked).as_micros().max(1) as u64;
        let rate = |now: u64, then: u64| now.saturating_sub(then).saturating_mul(1_000_000) / window;
        let arrived = rate(seen.arrived, self.seen.arrived);
        let looked_at = rate(seen.unwanted.all, self.seen.unwanted.all);
        let syns = rate(seen.unwanted.syns, self.seen.unwanted.syns);
        let unwanted = looked_at + rate(seen.lost, self.seen.lost);
        let held_back = rate(seen.held_back, self.seen.held_back);
        let sample = Unwanted {
            all: seen.unwanted.all.saturating_sub(self.seen.unwanted.all),
            syns: seen.unwanted.syns.saturating_sub(self.seen.unwanted.syns),
        };
        (self.looked, self.seen) = (now, seen);
        let is_flood = unwanted >= FLOOD_RATE && unwanted / 3 >= arrived.saturating_sub(unwanted);
        let kind = is_flood.then(|| self.kind_of(sample)).flatten();
        if !is_flood {
            self.blind = 0;
        }
        match self.flooded {
            None if kind.is_some() || syns >= FLOOD_RATE => {
                let flood = kind.unwrap_or(Flood::Syns);
                self.flooded = Some((now, flood));
                Some(Change::Begin(flood))
            }
            Some((_, Flood::Syns)) if kind == Some(Flood::Anything) => {
                self.flooded = Some((now, Flood::Anything));
                Some(Change::Begin(Flood::Anything))
            }
            Some((_, held)) if held_back.max(unwanted) >= FLOOD_RATE / 2 => {
                self.flooded = Some((now, held));
                None
            }
            Some((last, _)) if now.since(last) >= CALM => {
                self.flooded = None;
                Some(Change::End)
            }
            _ => None,
        }
    }

    /// What a flood is made of, by those of its packets that were looked at; `None`: that cannot be said yet.
    fn kind_of(&mut self, sample: Unwanted) -> Option<Flood> {
        let tells = sample.all >= SAMPLE;
        self.blind = if tells { 0 } else { self.blind + 1 };
        if tells && sample.syns > sample.all / 8 * 7 {
            Some(Flood::Syns)
        } else if tells || self.blind >= BLIND_LOOKS {
            Some(Flood::Anything)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CALM, Change, Detector, Flood, LOOK, Seen};
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
            self.seen.unwanted.all += unwanted / 100;
            self.seen.held_back += held_back / 100;
            assert!(self.detector.is_due(self.now));
            self.detector.look(self.seen, self.now)
        }
    }

    #[test]
    fn a_flood_begins_at_once_and_ends_after_a_calm() {
        let mut device = Device::new();
        assert_eq!(device.look(50_000, 0, 0), None);
        assert_eq!(device.look(1_200_000, 1_150_000, 0), Some(Change::Begin(Flood::Anything)));
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
    fn a_flood_of_syns_is_told_from_others_until_others_come() {
        let mut device = Device::new();
        // Most of it finds the ring full, and nobody sees what it is.
        let lose = |device: &mut Device, syns: u64, others: u64, lost: u64| {
            device.seen.lost += lost / 100;
            device.seen.unwanted.syns += syns / 100;
            device.look(syns + others + lost + 50_000, syns + others, 0)
        };
        assert_eq!(lose(&mut device, 90_000, 1_000, 900_000), Some(Change::Begin(Flood::Syns)));
        assert_eq!(lose(&mut device, 90_000, 1_000, 900_000), None, "it takes a while to be held back");
        assert_eq!(lose(&mut device, 10_000, 20_000, 0), None, "then little comes through");
        assert_eq!(lose(&mut device, 10_000, 90_000, 800_000), Some(Change::Begin(Flood::Anything)));
        assert_eq!(
            lose(&mut device, 90_000, 0, 900_000),
            None,
            "all that there was is held back until it is over"
        );
        assert_eq!(device.detector.is_on(), Some(Flood::Anything));
    }

    /// An engine that was away from its core comes back to a full ring, and looks before it has taken anything from it.
    #[test]
    fn what_nobody_looked_at_does_not_tell_what_it_is() {
        let mut device = Device::new();
        let lose = |device: &mut Device, syns: u64, lost: u64| {
            device.seen.lost += lost;
            device.seen.unwanted.syns += syns;
            device.seen.unwanted.all += syns;
            device.look(100 * (syns + lost), 0, 0)
        };
        assert_eq!(lose(&mut device, 0, 5_000), None, "nothing was looked at yet");
        assert_eq!(lose(&mut device, 900, 5_000), Some(Change::Begin(Flood::Syns)));
        for _ in 0..100 {
            assert_eq!(lose(&mut device, 3, 5_000), None, "away for a look");
            assert_eq!(lose(&mut device, 0, 5_000), None, "and for two");
            assert_eq!(lose(&mut device, 900, 5_000), None);
        }
        let mut device = Device::new();
        let begun: Vec<_> = (0..3).map(|_| lose(&mut device, 0, 5_000)).collect();
        assert_eq!(begun, [None, None, Some(Change::Begin(Flood::Anything))], "it does not wait for ever");
    }

    #[test]
    fn a_flood_of_syns_is_one_beside_much_else() {
        let mut device = Device::new();
        device.seen.unwanted.syns += 1_500;
        assert_eq!(device.look(900_000, 150_000, 0), Some(Change::Begin(Flood::Syns)));
        assert_eq!(device.look(900_000, 100, 150_000), None);
    }

    #[test]
    fn a_pause_of_a_flood_is_not_its_end() {
        let mut device = Device::new();
        assert_eq!(device.look(1_000_000, 1_000_000, 0), Some(Change::Begin(Flood::Anything)));
        for look in 0..1000 {
            let rate = if look % 50 == 0 { 1_000_000 } else { 0 };
            assert_eq!(device.look(0, 0, rate), None);
        }
    }
}
