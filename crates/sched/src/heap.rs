//! A heap of slots in order of a key, from which any slot can be taken: four children a node, since a node's
//! children then lie in one or two cache lines and the way down is half as long.
//!
//! Every operation takes logarithmic time; the place of each slot is kept in a vector that the slot's number
//! indexes, and nothing is allocated once as many slots have been seen as ever take part.

/// Something that a heap can be ordered by.
pub(crate) trait Key: Copy {
    /// Whether it comes out before `other`.
    fn before(self, other: Self) -> bool;
}

const CHILDREN: usize = 4;
/// Not in the heap. `Option<u32>` would double the vector that every operation touches.
const NOWHERE: u32 = u32::MAX;

/// See the module.
pub(crate) struct Heap<K> {
    items: Vec<(K, u32)>,
    places: Vec<u32>,
}

impl<K: Key> Heap<K> {
    pub(crate) fn new() -> Heap<K> {
        Heap { items: Vec::new(), places: Vec::new() }
    }

    /// The slot that comes first, and its key.
    #[inline]
    pub(crate) fn first(&self) -> Option<(K, u32)> {
        self.items.first().copied()
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.places.get(slot as usize).is_some_and(|place| *place != NOWHERE)
    }

    /// Puts a slot in, or changes its key.
    pub(crate) fn set(&mut self, slot: u32, key: K) {
        if slot as usize >= self.places.len() {
            self.places.resize(slot as usize + 1, NOWHERE);
        }
        let place = match self.places[slot as usize] {
            NOWHERE => {
                self.items.push((key, slot));
                self.items.len() - 1
            }
            place => {
                self.items[place as usize].0 = key;
                place as usize
            }
        };
        let place = self.up(place);
        self.down(place);
    }

    /// Takes a slot out. Says whether it was in.
    pub(crate) fn remove(&mut self, slot: u32) -> bool {
        if !self.contains(slot) {
            return false;
        }
        let place = self.places[slot as usize] as usize;
        self.places[slot as usize] = NOWHERE;
        let last = self.items.pop();
        if let Some(last) = last.filter(|_| place < self.items.len()) {
            self.items[place] = last;
            self.places[last.1 as usize] = place as u32;
            let place = self.up(place);
            self.down(place);
        }
        true
    }

    fn up(&mut self, mut place: usize) -> usize {
        let item = self.items[place];
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if !item.0.before(self.items[parent].0) {
                break;
            }
            self.put(place, self.items[parent]);
            place = parent;
        }
        self.put(place, item);
        place
    }

    fn down(&mut self, mut place: usize) {
        let item = self.items[place];
        loop {
            let children = place * CHILDREN + 1;
            let end = (children + CHILDREN).min(self.items.len());
            let Some(mut least) = (children < end).then_some(children) else { break };
            for child in children + 1..end {
                if self.items[child].0.before(self.items[least].0) {
                    least = child;
                }
            }
            if !self.items[least].0.before(item.0) {
                break;
            }
            self.put(place, self.items[least]);
            place = least;
        }
        self.put(place, item);
    }

    #[inline]
    fn put(&mut self, place: usize, item: (K, u32)) {
        self.items[place] = item;
        self.places[item.1 as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::{Heap, Key};

    impl Key for u8 {
        fn before(self, other: u8) -> bool {
            self < other
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_map(operations in prop::collection::vec((0u32..40, any::<Option<u8>>()), 0..400)) {
            let mut heap = Heap::new();
            let mut map = BTreeMap::new();
            for (slot, key) in operations {
                if let Some(key) = key {
                    heap.set(slot, key);
                    map.insert(slot, key);
                } else {
                    prop_assert_eq!(heap.remove(slot), map.remove(&slot).is_some());
                }
                prop_assert_eq!(heap.first().map(|(key, _)| key), map.values().min().copied());
                prop_assert!((0..40).all(|slot| heap.contains(slot) == map.contains_key(&slot)));
            }
            let mut drained = Vec::new();
            while let Some((key, slot)) = heap.first() {
                prop_assert_eq!(map.remove(&slot), Some(key));
                heap.remove(slot);
                drained.push(key);
            }
            prop_assert!(drained.is_sorted() && map.is_empty());
        }
    }
}
