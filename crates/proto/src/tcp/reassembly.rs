//! Ranges of a stream that are held beyond its in-order part: out-of-order data at the receiver, selectively
//! acknowledged data at the sender.
//!
//! Ranges only: the data itself already lies in the receive ring, at its position. Their number is bounded, so a
//! hostile peer that sends every second byte costs a fixed amount of memory.

use std::ops::Range;

/// Most ranges held at once: 32 KiB. Slow start into a policer loses every second segment; 4 MiB of that stay below it.
pub const MAX_RANGES: usize = 2048;
/// Room for more ranges than this goes back when there is none.
const KEPT_RANGES: usize = 16;

/// No place for one more range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Disjoint, non-adjacent ranges in growing order. Eight bytes while nobody needs any.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    #[allow(clippy::box_collection)] // a list with nothing in it takes 24 bytes of each connection
    ranges: Option<Box<Vec<Range<u64>>>>,
}

impl Ranges {
    /// True without any range: the common case.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    /// The ranges in growing order.
    #[inline]
    pub fn as_slice(&self) -> &[Range<u64>] {
        self.ranges.as_deref().map_or(&[], Vec::as_slice)
    }

    /// Adds a range, merging with what it touches. True when it held anything new.
    ///
    /// # Errors
    /// When it touches nothing and all places are taken; nothing has changed then.
    pub fn insert(&mut self, new: Range<u64>) -> Result<bool, Full> {
        if new.is_empty() {
            return Ok(false);
        }
        let ranges = self.ranges.get_or_insert_default();
        // Nearly always at or behind the last one.
        let first = ranges.partition_point(|range| range.end < new.start);
        let after = first + ranges[first..].partition_point(|range| range.start <= new.end);
        if first == after {
            if ranges.len() >= MAX_RANGES {
                return Err(Full);
            }
            ranges.insert(first, new);
            return Ok(true);
        }
        let old = &ranges[first];
        if old.start <= new.start && old.end >= new.end {
            return Ok(false);
        }
        let start = old.start.min(new.start);
        let end = ranges[after - 1].end.max(new.end);
        ranges[first] = start..end;
        ranges.drain(first + 1..after);
        Ok(true)
    }

    /// Drops all below `position`.
    pub fn trim_below(&mut self, position: u64) {
        self.forget(self.as_slice().partition_point(|range| range.end <= position));
        if let Some(first) = self.ranges.as_mut().and_then(|ranges| ranges.first_mut()) {
            first.start = first.start.max(position);
        }
    }

    /// Given that the stream is complete to `position`: how far it is complete with what is held. What is then
    /// in order is forgotten.
    pub fn advance(&mut self, position: u64) -> u64 {
        let mut end = position;
        let joined = self
            .as_slice()
            .iter()
            .take_while(|range| {
                let joins = range.start <= end;
                if joins {
                    end = end.max(range.end);
                }
                joins
            })
            .count();
        self.forget(joined);
        end
    }

    /// Drops the first ones, and with the last one much room.
    fn forget(&mut self, count: usize) {
        let Some(ranges) = self.ranges.as_mut().filter(|_| count > 0) else { return };
        ranges.drain(..count);
        if ranges.is_empty() && ranges.capacity() > KEPT_RANGES {
            self.ranges = None;
        }
    }

    /// The range that holds `position`.
    pub fn containing(&self, position: u64) -> Option<Range<u64>> {
        let at = self.as_slice().partition_point(|range| range.end <= position);
        self.as_slice().get(at).filter(|range| range.start <= position).cloned()
    }

    /// The first range that starts after `position`.
    pub fn following(&self, position: u64) -> Option<Range<u64>> {
        let at = self.as_slice().partition_point(|range| range.start <= position);
        self.as_slice().get(at).cloned()
    }

    /// The end of the last range.
    #[inline]
    pub fn highest(&self) -> Option<u64> {
        self.as_slice().last().map(|range| range.end)
    }

    /// Positions held within `of`.
    pub fn count_within(&self, of: Range<u64>) -> u64 {
        let within = self.as_slice().iter();
        within.map(|range| range.end.min(of.end).saturating_sub(range.start.max(of.start))).sum()
    }

    /// Forgets all, and the memory with it.
    pub fn clear(&mut self) {
        self.ranges = None;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn merges_bridges_and_advances() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.insert(10..20), Ok(true));
        assert_eq!(ranges.insert(30..40), Ok(true));
        assert_eq!(ranges.insert(12..18), Ok(false));
        assert_eq!(ranges.insert(20..30), Ok(true));
        assert_eq!(ranges.as_slice(), std::slice::from_ref(&(10..40)));
        assert_eq!(ranges.advance(5), 5);
        assert_eq!(ranges.advance(10), 40);
        assert!(ranges.is_empty());
        assert_eq!(ranges.insert(7..7), Ok(false));
    }

    #[test]
    fn a_peer_that_sends_every_second_byte_meets_the_limit() {
        let mut ranges = Ranges::default();
        for at in 0..MAX_RANGES as u64 {
            assert_eq!(ranges.insert(2 * at..2 * at + 1), Ok(true));
        }
        assert_eq!(ranges.insert(10_000..10_001), Err(Full));
        assert_eq!(ranges.insert(1..2), Ok(true), "what joins needs no place");
        assert_eq!(ranges.insert(10_000..10_001), Ok(true));
    }

    proptest! {
        #[test]
        fn agrees_with_a_set_of_positions(
            steps in proptest::collection::vec((0u64..200, 0u64..30, any::<bool>()), 1..60)
        ) {
            let (mut ranges, mut set, mut base) = (Ranges::default(), BTreeSet::new(), 0);
            for (start, len, advance) in steps {
                let range = start.max(base)..(start + len).max(base);
                let new = range.clone().any(|at| !set.contains(&at));
                prop_assert_eq!(ranges.insert(range.clone()), Ok(new));
                set.extend(range);
                if advance {
                    let mut expected = base;
                    while set.contains(&expected) {
                        expected += 1;
                    }
                    base = ranges.advance(base);
                    prop_assert_eq!(base, expected);
                    set.retain(|&at| at >= base);
                }
                prop_assert_eq!(ranges.count_within(0..1000), set.len() as u64);
                for pair in ranges.as_slice().windows(2) {
                    prop_assert!(pair[0].end < pair[1].start);
                }
                for at in 0..230 {
                    prop_assert_eq!(ranges.containing(at).is_some(), set.contains(&at));
                }
            }
        }
    }
}
