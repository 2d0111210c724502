//! What is kept of each path beside it, by the path's index.
//!
//! It grows by chunks, as the table of paths does: what is there is never moved, so that growing past a million takes no
//! longer than growing past a hundred, and no half of it stands empty.

use std::ops::{Index, IndexMut};

/// Entries of a chunk, a power of two: 34 KiB of the largest.
const CHUNK: usize = 256;

/// Entries for all indices below a bound that rises as it has to.
pub(crate) struct ByPath<T> {
    chunks: Vec<Box<[T; CHUNK]>>,
}

impl<T> Default for ByPath<T> {
    fn default() -> Self {
        ByPath { chunks: Vec::new() }
    }
}

impl<T: Default> ByPath<T> {
    /// Has an entry for this index, and for those below it.
    pub(crate) fn reach(&mut self, index: u32) {
        while self.chunks.len() <= index as usize / CHUNK {
            let chunk: Vec<T> = std::iter::repeat_with(T::default).take(CHUNK).collect();
            let Ok(chunk) = chunk.into_boxed_slice().try_into() else { unreachable!("as many as it has") };
            self.chunks.push(chunk);
        }
    }
}

impl<T> ByPath<T> {
    /// The entry, if it was ever reached.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.chunks.get(index as usize / CHUNK).map(|chunk| &chunk[index as usize % CHUNK])
    }

    /// See [`ByPath::get`].
    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.chunks.get_mut(index as usize / CHUNK).map(|chunk| &mut chunk[index as usize % CHUNK])
    }

    /// All entries, by index.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }
}

/// # Panics
/// For an index that was never reached.
impl<T> Index<u32> for ByPath<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u32) -> &T {
        &self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for ByPath<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use scoutline_base::Random;

    use super::{ByPath, CHUNK};

    /// Against a map: what was set stays, what was not is the default, and nothing is moved.
    #[test]
    fn is_like_a_map_and_moves_nothing() {
        let mut random = Random::new(1);
        let (mut table, mut oracle) = (ByPath::<u64>::default(), BTreeMap::new());
        assert!(table.get(0).is_none());
        table.reach(0);
        let first: *const u64 = &raw const table[0];
        let mut highest = 0;
        for _ in 0..2_000 {
            let (index, value) = (random.below(20 * CHUNK as u32), random.next_u64());
            table.reach(index);
            table[index] = value;
            oracle.insert(index, value);
            highest = highest.max(index);
        }
        for index in 0..=highest {
            let expected = oracle.get(&index).copied().unwrap_or_default();
            assert_eq!(table.get(index), Some(&expected));
            assert_eq!(table.get_mut(index).copied(), Some(expected));
        }
        assert!(table.get((highest / CHUNK as u32 + 1) * CHUNK as u32).is_none());
        assert_eq!(table.iter().filter(|&&value| value != 0).count(), oracle.len());
        assert_eq!(first, &raw const table[0]);
    }
}
