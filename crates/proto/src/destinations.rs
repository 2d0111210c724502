//! What is remembered of single destinations: path MTUs ([`crate::path_mtu`]) and, of IPv6, redirects (RFC 4861 §5.1, §8).
//! Bounded: the oldest makes room.

use std::collections::{BTreeMap, VecDeque};

/// Destinations of which something is known.
const MOST: usize = 1024;

/// Something about each of some destinations.
#[derive(Debug)]
pub(crate) struct Destinations<Address, About> {
    known: BTreeMap<Address, About>,
    /// The oldest first.
    order: VecDeque<Address>,
}

impl<Address, About> Default for Destinations<Address, About> {
    fn default() -> Destinations<Address, About> {
        Destinations { known: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<Address: Copy + Ord, About> Destinations<Address, About> {
    /// What is known of one.
    pub(crate) fn of(&self, destination: Address) -> Option<&About> {
        self.known.get(&destination)
    }

    /// Something was learnt of one, in place of what was known. It keeps its age.
    pub(crate) fn set(&mut self, destination: Address, about: About) {
        if self.known.insert(destination, about).is_some() {
            return;
        }
        if self.order.len() == MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(destination);
    }

    /// Forgets those that `is_kept` says no of. True when there were any.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&About) -> bool) -> bool {
        self.known.retain(|_, about| is_kept(about));
        let known = &self.known;
        let before = self.order.len();
        self.order.retain(|destination| known.contains_key(destination));
        self.order.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_makes_room() {
        let mut all = Destinations::default();
        for destination in 0..2_000 {
            all.set(destination, 1);
            all.set(destination, 2);
        }
        assert_eq!((all.known.len(), all.order.len()), (MOST, MOST));
        assert_eq!((all.of(0), all.of(1_999)), (None, Some(&2)));
    }

    #[test]
    fn what_is_not_kept_makes_room() {
        let mut all = Destinations::default();
        for (destination, hop) in [(1, 11), (2, 11), (3, 12)] {
            all.set(destination, hop);
        }
        assert!(all.retain(|hop| *hop != 11) && !all.retain(|hop| *hop != 11));
        assert_eq!([1, 2, 3].map(|destination| all.of(destination)), [None, None, Some(&12)]);
        assert_eq!((all.known.len(), all.order.len()), (1, 1));
    }
}
