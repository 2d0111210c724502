//! The fluid model that fair shares are measured against: all members are served at once, each in proportion to
//! its weight (generalised processor sharing, Parekh and Gallager 1993).
//!
//! *Virtual time* is what each of them has then got, divided by its weight. A member's own *tag* is what it has
//! really got, divided by its weight, since it joined at the virtual time of that moment: a tag above the virtual
//! time says how far a member is ahead of the fluid, one below it how much it is owed.
//!
//! Here virtual time is the mean of the members' tags by weight. So it moves by `service / weight of all` with every
//! service, and the sum of what is owed and what was got ahead is zero by construction: whatever the services were
//! worth, and whoever came and went, nothing drifts (as in EEVDF, Stoica and Abdel-Wahab 1995, and Linux since 6.6;
//! WF2Q+ instead lets virtual time jump to the least tag when all have run away from it).

use std::time::Duration;

use crate::heap::Key;

/// Virtual time for a nanosecond of service at weight 1. Fine enough that 100 ns at the greatest weight are told to a
/// few parts in a million.
pub(crate) const UNIT: u64 = 1 << 24;

/// No service counts for more than this at once.
const LONGEST: u64 = 60_000_000_000;
/// No tag is farther than this from the virtual time: far less than wrapping allows.
pub(crate) const FARTHEST: i64 = i64::MAX / 4;

/// A point in virtual time. It wraps: only those that are near each other can be compared, and the tags of all
/// members of one fluid are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Virtual(u64);

impl Virtual {
    /// How far this is after `other`; negative before it.
    #[inline]
    pub(crate) fn after(self, other: Virtual) -> i64 {
        self.0.wrapping_sub(other.0) as i64
    }

    #[inline]
    pub(crate) fn plus(self, distance: i64) -> Virtual {
        Virtual(self.0.wrapping_add(distance as u64))
    }

    pub(crate) fn max(self, other: Virtual) -> Virtual {
        if self.before(other) { other } else { self }
    }
}

impl Key for Virtual {
    #[inline]
    fn before(self, other: Virtual) -> bool {
        self.after(other) < 0
    }
}

/// How far a service moves the tag of a member of this weight.
#[inline]
pub(crate) fn distance(service: Duration, weight: u32) -> i64 {
    // Nanoseconds below 2^36 times 2^24.
    (service.as_nanos().min(u128::from(LONGEST)) as u64 * UNIT / u64::from(weight)) as i64
}

/// What a member of this weight gets while virtual time moves so far, in nanoseconds.
#[inline]
pub(crate) fn service(distance: i64, weight: u32) -> i64 {
    (i128::from(distance) * i128::from(weight) / i128::from(UNIT)) as i64
}

/// Virtual time and the sum of its members.
pub(crate) struct Fluid {
    now: Virtual,
    weight: u64,
    /// The sum of `weight × (tag - now)` over the members: below `weight`, so that `now` is the mean, rounded down.
    /// Below zero after one that was ahead has gone; virtual time then stands still until the mean has caught up.
    ahead: i128,
}

impl Fluid {
    /// Without members.
    pub(crate) fn new() -> Fluid {
        // Shortly before it wraps, so that wrapping happens in every test, and not after months.
        Fluid { now: Virtual(u64::MAX - (1 << 40)), weight: 0, ahead: 0 }
    }

    #[inline]
    pub(crate) fn now(&self) -> Virtual {
        self.now
    }

    /// The weights of all members.
    pub(crate) fn weight(&self) -> u64 {
        self.weight
    }

    pub(crate) fn join(&mut self, weight: u32, tag: Virtual) {
        self.weight += u64::from(weight);
        self.ahead += i128::from(weight) * i128::from(tag.after(self.now));
        self.settle();
    }

    pub(crate) fn leave(&mut self, weight: u32, tag: Virtual) {
        self.weight -= u64::from(weight);
        self.ahead -= i128::from(weight) * i128::from(tag.after(self.now));
        self.settle();
    }

    /// A member's tag has been moved by this.
    #[inline]
    pub(crate) fn moved(&mut self, weight: u32, distance: i64) {
        self.ahead += i128::from(weight) * i128::from(distance);
        self.settle();
    }

    /// A member's claim beside its tag has changed by these nanoseconds of service: less than zero when it was
    /// granted some, more when it used them.
    pub(crate) fn claimed(&mut self, nanoseconds: i64) {
        self.ahead += i128::from(nanoseconds) * i128::from(UNIT);
        self.settle();
    }

    /// A member counts with another weight from now on; what it has got ahead or
    /// is owed stays. Returns its new tag.
    pub(crate) fn reweigh(&mut self, (from, to): (u32, u32), tag: Virtual) -> Virtual {
        let lead = i128::from(tag.after(self.now)) * i128::from(from);
        let moved =
            self.now.plus((lead / i128::from(to)).clamp(-i128::from(FARTHEST), FARTHEST.into()) as i64);
        self.weight = self.weight - u64::from(from) + u64::from(to);
        self.ahead += i128::from(moved.after(self.now)) * i128::from(to) - lead;
        self.settle();
        moved
    }

    #[inline]
    fn settle(&mut self) {
        if self.weight == 0 {
            self.ahead = 0;
        } else if self.ahead >= i128::from(self.weight) {
            // Nearly always it fits the processor's own division.
            let by = match i64::try_from(self.ahead) {
                Ok(ahead) => ahead / self.weight as i64,
                Err(_) => (self.ahead / i128::from(self.weight)) as i64,
            };
            self.now = self.now.plus(by);
            self.ahead -= i128::from(by) * i128::from(self.weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Fluid, distance, service};

    #[test]
    fn virtual_time_is_the_mean_of_tags_by_weight() {
        let mut fluid = Fluid::new();
        let start = fluid.now();
        fluid.join(1, start);
        fluid.join(3, start);
        let first = distance(Duration::from_nanos(400), 1);
        fluid.moved(1, first);
        assert_eq!(service(fluid.now().after(start), 1), 100, "400 ns over a weight of 4");
        fluid.leave(1, start.plus(first));
        let stood = fluid.now();
        let second = distance(Duration::from_nanos(200), 3);
        fluid.moved(3, second);
        assert_eq!(fluid.now(), stood, "who left was ahead: the mean has to catch up");
        fluid.moved(3, second);
        assert!(fluid.now().after(stood) > 0);
    }

    #[test]
    fn another_weight_changes_nothing_that_was_got() {
        let mut fluid = Fluid::new();
        let start = fluid.now();
        fluid.join(10, start);
        fluid.join(10, start);
        let tag = start.plus(distance(Duration::from_micros(1), 10));
        fluid.moved(10, tag.after(start));
        let ahead = service(tag.after(fluid.now()), 10);
        let now = fluid.now();
        let tag = fluid.reweigh((10, 1), tag);
        assert!((service(tag.after(fluid.now()), 1) - ahead).abs() <= 1);
        assert_eq!(fluid.now(), now);
        assert_eq!(fluid.weight(), 11);
    }
}
