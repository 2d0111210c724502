//! Who holds stolen time, by when each should have used it, and what is left to steal.
//!
//! A theft is feasible if until no thief's end more has been stolen than the crowd gets in the model until then: what
//! is due first is served first, so it does not matter from which part of its time the crowd gives.

use crate::fluid::{self, Virtual};
use crate::heap::Key as _;

/// So many thieves are weighed one by one: a bound on the work, far beyond what fits a CPU at once.
const EXACT: usize = 64;

/// The thieves, in order of their ends.
#[derive(Default)]
pub(super) struct Thefts {
    thieves: Vec<(Virtual, u32)>,
}

impl Thefts {
    /// A slot holds stolen time until this end.
    pub(super) fn add(&mut self, slot: u32, by: Virtual) {
        let place = self.thieves.partition_point(|(end, _)| !by.before(*end));
        self.thieves.insert(place, (by, slot));
    }

    /// A slot that held some until this end holds none any more.
    pub(super) fn remove(&mut self, slot: u32, by: Virtual) {
        let first = self.thieves.partition_point(|(end, _)| end.before(by));
        let place = self.thieves[first..].iter().position(|(_, thief)| *thief == slot);
        if let Some(place) = place {
            self.thieves.remove(first + place);
        }
    }

    /// How many nanoseconds more can be stolen by one who is not among the thieves, but holds `own` already, to be
    /// used `by` then, of a crowd that can give at `rate` and gets nothing until `tag`. `granted` says what a thief
    /// still holds.
    pub(super) fn limit(
        &self,
        (now, by): (Virtual, Virtual),
        (tag, rate): (Virtual, u32),
        own: u64,
        granted: impl Fn(u32) -> u64,
    ) -> u64 {
        let until = |end: Virtual, from: Virtual| fluid::service(end.after(from).max(0), rate);
        if self.thieves.len() > EXACT {
            // As if all of them used what they hold at once.
            return until(by, tag.max(now)) as u64;
        }
        let mut held = 0;
        let mut limit = i64::MAX;
        let mut before = 0;
        for &(end, thief) in &self.thieves {
            held += granted(thief) as i64;
            if end.before(by) {
                before = held;
            } else {
                limit = limit.min(until(end, now) - held);
            }
        }
        let last = self.thieves.last().map_or(by, |(end, _)| end.max(by));
        let limit = limit.min(until(by, now) - before) - own as i64;
        limit.min(until(last, tag.max(now))).max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::{Thefts, Virtual};
    use crate::fluid::{Fluid, distance};
    use std::time::Duration;

    fn after(start: Virtual, millis: u64) -> Virtual {
        start.plus(distance(Duration::from_millis(millis), 100))
    }

    #[test]
    fn what_is_due_first_counts_for_all_that_is_due_later() {
        let start = Fluid::new().now();
        let mut thefts = Thefts::default();
        // A crowd with half of the whole, 100: it gets 5 ms until 10.
        let limit = |thefts: &Thefts, by: u64, tag: u64| {
            thefts.limit((start, after(start, by)), (after(start, tag), 50), 0, |slot| {
                u64::from(slot) * 1_000_000
            })
        };
        assert_eq!(limit(&thefts, 10, 0), 5_000_000);
        thefts.add(3, after(start, 20));
        assert_eq!(limit(&thefts, 10, 6), 5_000_000, "the other has until 20");
        assert_eq!(limit(&thefts, 18, 6), 7_000_000, "10 until 20, and 3 are gone");
        assert_eq!(limit(&thefts, 30, 6), 12_000_000);
        thefts.add(4, after(start, 8));
        assert_eq!(limit(&thefts, 10, 14), 1_000_000);
        assert_eq!(limit(&thefts, 5, 14), 0, "what is due at 8 takes all until then");
        assert_eq!(limit(&thefts, 30, 30), 0, "nothing is left of the crowd's time");
        thefts.remove(4, after(start, 8));
        assert_eq!(limit(&thefts, 10, 6), 5_000_000);
    }
}
