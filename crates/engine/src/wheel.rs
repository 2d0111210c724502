//! Timers of paths: a hierarchical wheel (Varghese and Lauck 1987, scheme 7) with one lazy timer per path.
//!
//! A path's deadline moves later all the time (each acknowledgment restarts the retransmission timer). So a timer
//! that is already set earlier is left where it is; when it fires, the engine asks the path and sets it again.
//! Arming, re-arming and firing take constant time, whatever idle neighbours there are.

use scoutline_base::{PathId, Time};

use crate::by_path::ByPath;

/// log2 of a tick in nanoseconds: about a millisecond, finer than any TCP timer.
const TICK_SHIFT: u32 = 20;
/// log2 of the slots of a level.
const SLOT_SHIFT: u32 = 8;
const SLOTS: usize = 1 << SLOT_SHIFT;
/// 256^4 ticks: 52 days.
const LEVELS: usize = 4;

/// The wheel.
pub(crate) struct Wheel {
    /// The tick up to which everything has fired.
    now_tick: u64,
    levels: [Vec<Vec<Entry>>; LEVELS],
    occupied: [[u64; SLOTS / 64]; LEVELS],
    /// By the index of its path: where its timer lies. A path has one at most, or whoever makes deadlines come nearer
    /// again and again (a peer does) would leave a timer here each time.
    places: ByPath<Option<Place>>,
    count: usize,
}

/// Where a timer lies: level, slot, and which of that slot's.
#[derive(Clone, Copy)]
struct Place {
    level: u8,
    slot: u8,
    index: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    path: PathId,
    tick: u64,
}

impl Wheel {
    /// An empty wheel that begins at `now`.
    pub(crate) fn new(now: Time) -> Wheel {
        Wheel {
            now_tick: now.as_nanos() >> TICK_SHIFT,
            levels: std::array::from_fn(|_| vec![Vec::new(); SLOTS]),
            occupied: [[0; SLOTS / 64]; LEVELS],
            places: ByPath::default(),
            count: 0,
        }
    }

    /// Sets the timer of `path`, in place of the one that it has. The caller keeps the returned moment (never before
    /// `at`, at most a tick later) and does not set another timer that would fire later than it.
    pub(crate) fn arm(&mut self, path: PathId, at: Time) -> Time {
        self.disarm(path);
        let tick = (at.as_nanos() >> TICK_SHIFT).max(self.now_tick) + 1;
        self.place(Entry { path, tick });
        self.count += 1;
        Time::from_nanos(tick << TICK_SHIFT)
    }

    /// Takes the timer of `path` away, or of one before it that had its index.
    pub(crate) fn disarm(&mut self, path: PathId) {
        let Some(place) = self.places.get_mut(path.index).and_then(Option::take) else { return };
        let entries = &mut self.levels[usize::from(place.level)][usize::from(place.slot)];
        entries.swap_remove(place.index as usize);
        self.count -= 1;
        match entries.get(place.index as usize) {
            Some(moved) => self.places[moved.path.index] = Some(place),
            None if entries.is_empty() => {
                let (word, bit) = (usize::from(place.slot) / 64, 1 << (place.slot % 64));
                self.occupied[usize::from(place.level)][word] &= !bit;
            }
            None => {}
        }
    }

    /// Timers that are set.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    fn place(&mut self, entry: Entry) {
        // The level is the highest digit (base 256) in which the tick differs from now.
        let differing = (entry.tick ^ self.now_tick) | 1;
        let level = ((differing.ilog2() / SLOT_SHIFT) as usize).min(LEVELS - 1);
        let slot = (entry.tick >> (SLOT_SHIFT * level as u32)) as usize % SLOTS;
        let (index, of) = (self.levels[level][slot].len() as u32, entry.path.index);
        self.levels[level][slot].push(entry);
        self.places.reach(of);
        self.places[of] = Some(Place { level: level as u8, slot: slot as u8, index });
        self.occupied[level][slot / 64] |= 1 << (slot % 64);
    }

    /// Moves to `now` and calls `fire` for each timer that is due. A timer fires once; stale paths are the caller's
    /// to recognise.
    pub(crate) fn advance(&mut self, now: Time, mut fire: impl FnMut(PathId)) {
        let target = now.as_nanos() >> TICK_SHIFT;
        while self.now_tick < target {
            if self.count == 0 {
                self.now_tick = target;
                return;
            }
            self.now_tick += 1;
            // Entering a new slot of a higher level spreads its timers over the levels below.
            for level in (1..LEVELS).rev() {
                let span = SLOT_SHIFT * level as u32;
                if self.now_tick.trailing_zeros() >= span {
                    let slot = (self.now_tick >> span) as usize % SLOTS;
                    for entry in self.take(level, slot) {
                        self.place(entry);
                    }
                }
            }
            let slot = self.now_tick as usize % SLOTS;
            for entry in self.take(0, slot) {
                debug_assert_eq!(entry.tick, self.now_tick);
                self.places[entry.path.index] = None;
                self.count -= 1;
                fire(entry.path);
            }
        }
    }

    fn take(&mut self, level: usize, slot: usize) -> Vec<Entry> {
        let bit = 1 << (slot % 64);
        if self.occupied[level][slot / 64] & bit == 0 {
            return Vec::new();
        }
        self.occupied[level][slot / 64] &= !bit;
        std::mem::take(&mut self.levels[level][slot])
    }

    /// No timer fires before this moment; `None` when none is set. Exact within the lowest level, else the start of
    /// the higher level's slot.
    pub(crate) fn next(&self) -> Option<Time> {
        if self.count == 0 {
            return None;
        }
        for level in 0..LEVELS {
            let span = SLOT_SHIFT * level as u32;
            let here = (self.now_tick >> span) as usize % SLOTS;
            for slot in here + 1..SLOTS {
                if self.occupied[level][slot / 64] & (1 << (slot % 64)) != 0 {
                    let base = self.now_tick >> span >> SLOT_SHIFT << SLOT_SHIFT;
                    return Some(Time::from_nanos(((base + slot as u64) << span) << TICK_SHIFT));
                }
            }
        }
        // What lies in no slot ahead has wrapped into the top level: look again within its smallest step.
        Some(Time::from_nanos((self.now_tick + SLOTS as u64) << TICK_SHIFT))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use scoutline_base::{PathId, Random, Time};

    use super::Wheel;

    /// A peer that lets deadlines come nearer and go again must not fill the wheel.
    #[test]
    fn a_path_has_one_timer() {
        let mut now = Time::from_millis(1);
        let mut wheel = Wheel::new(now);
        let (busy, other) = (PathId { index: 3, generation: 1 }, PathId { index: 1, generation: 1 });
        wheel.arm(other, now + Duration::from_secs(7200));
        for _ in 0..10_000 {
            wheel.arm(busy, now + Duration::from_secs(7200));
            wheel.arm(busy, now + Duration::from_millis(200));
            wheel.arm(busy, now + Duration::from_millis(40));
            assert_eq!(wheel.len(), 2);
            // A tick late at most, and a tick is longer than a millisecond.
            now += Duration::from_millis(42);
            let mut fired = Vec::new();
            wheel.advance(now, |path| fired.push(path));
            assert_eq!(fired, [busy]);
        }
        wheel.arm(PathId { index: 3, generation: 2 }, now + Duration::from_secs(1));
        wheel.disarm(busy);
        wheel.disarm(other);
        assert_eq!((wheel.len(), wheel.next()), (0, None));
    }

    /// Against a sorted list: every timer fires once, never early, at most one tick (and the step) late.
    #[test]
    fn fires_like_a_sorted_list() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let mut now = Time::from_millis(u64::from(random.below(1 << 30)));
            let mut wheel = Wheel::new(now);
            let mut pending: Vec<(u32, Time)> = Vec::new();
            for index in 0..2_000 {
                let spread = 1u32 << (random.below(27));
                let at = now + Duration::from_micros(u64::from(random.below(spread)) * 10);
                let promised = wheel.arm(PathId { index, generation: 0 }, at);
                assert!(promised >= at && promised.since(at) <= Duration::from_nanos(2 << 20));
                pending.push((index, promised));
                if random.chance(0.2) {
                    // Nearer than before, or gone.
                    let at = random.below(pending.len() as u32) as usize;
                    let (index, before) = pending[at];
                    let path = PathId { index, generation: 0 };
                    if random.chance(0.5) {
                        wheel.disarm(path);
                        pending.swap_remove(at);
                    } else {
                        let half = Duration::from_nanos(before.since(now).as_nanos() as u64 / 2);
                        pending[at].1 = wheel.arm(path, now + half);
                    }
                }
                if random.chance(0.3) {
                    if let Some(next) = wheel.next() {
                        let earliest = pending.iter().map(|p| p.1).min().unwrap();
                        assert!(next <= earliest, "sleeping until {next:?} misses {earliest:?}");
                    }
                    let step = 1 << random.below(24);
                    now += Duration::from_micros(u64::from(random.below(step)));
                    wheel.advance(now, |path| {
                        let at = pending.iter().position(|p| p.0 == path.index).expect("fires once");
                        assert!(pending.swap_remove(at).1 <= now, "never early");
                    });
                    assert!(
                        pending.iter().all(|p| p.1.as_nanos() >> 20 > now.as_nanos() >> 20),
                        "never late"
                    );
                }
            }
        }
    }
}
