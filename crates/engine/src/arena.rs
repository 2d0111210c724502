//! Hands out the rings of a region's arena: powers of two, the one given back last first, because its pages and
//! cache lines are warm.

use scoutline_abi::layout::ARENA_LEN;

/// The smallest ring: a page.
const MIN_SHIFT: u32 = 12;
/// The largest ring: 64 MiB.
const MAX_SHIFT: u32 = 26;

/// The free space of one arena.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    /// Where nothing has been handed out yet.
    fresh: u64,
    /// Where it ends.
    end: u64,
    /// Rings given back, by size class.
    free: [Vec<u64>; (MAX_SHIFT - MIN_SHIFT + 1) as usize],
    /// Bytes handed out now.
    in_use: u64,
}

/// A ring within an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ring {
    /// Offset from the arena's start.
    pub(crate) offset: u64,
    /// Bytes; a power of two, or 0 for no ring.
    pub(crate) size: u32,
}

impl Arena {
    /// One engine's part among several.
    pub(crate) fn part(engine: usize, engines: usize) -> Arena {
        let len = ((ARENA_LEN / engines as u64) >> MAX_SHIFT) << MAX_SHIFT;
        Arena { fresh: len * engine as u64, end: len * (engine as u64 + 1), ..Arena::default() }
    }

    /// A ring of at least `size` bytes; `None` when the arena is full.
    pub(crate) fn allocate(&mut self, size: u32) -> Option<Ring> {
        let shift = size.max(1).next_power_of_two().trailing_zeros().clamp(MIN_SHIFT, MAX_SHIFT);
        let len = 1u64 << shift;
        let offset = match self.free[(shift - MIN_SHIFT) as usize].pop() {
            Some(offset) => offset,
            None if self.fresh + len <= self.end => {
                let offset = self.fresh;
                self.fresh += len;
                offset
            }
            None => return None,
        };
        self.in_use += len;
        Some(Ring { offset, size: len as u32 })
    }

    /// Takes a ring back.
    pub(crate) fn release(&mut self, ring: Ring) {
        if ring.size > 0 {
            self.in_use -= u64::from(ring.size);
            self.free[(ring.size.trailing_zeros() - MIN_SHIFT) as usize].push(ring.offset);
        }
    }

    /// Bytes handed out now.
    pub(crate) fn in_use(&self) -> u64 {
        self.in_use
    }
}

#[cfg(test)]
mod tests {
    use super::{ARENA_LEN, Arena, MAX_SHIFT};

    #[test]
    fn warm_rings_first_and_the_end_is_respected() {
        let mut arena = Arena::part(0, 1);
        let a = arena.allocate(5000).unwrap();
        let b = arena.allocate(8192).unwrap();
        assert_eq!((a.size, b.size), (8192, 8192));
        assert_ne!(a.offset, b.offset);
        arena.release(a);
        arena.release(b);
        assert_eq!(arena.allocate(8192), Some(b), "last in, first out");
        let mut count = 0;
        while arena.allocate(u32::MAX / 64).is_some() {
            count += 1;
        }
        assert_eq!(count, 127, "8 GiB hold 128 rings of 64 MiB, less the one begun");
    }

    #[test]
    fn parts_of_several_engines_do_not_overlap() {
        let mut rings = Vec::new();
        for engine in 0..3 {
            let mut arena = Arena::part(engine, 3);
            rings.extend(std::iter::from_fn(|| arena.allocate(1 << MAX_SHIFT)));
        }
        rings.sort_by_key(|ring| ring.offset);
        assert!(rings.windows(2).all(|pair| pair[0].offset + (1 << MAX_SHIFT) <= pair[1].offset));
        assert!(rings.last().is_some_and(|last| last.offset + (1 << MAX_SHIFT) <= ARENA_LEN));
        assert_eq!(rings.len(), 126, "42 each");
    }
}
