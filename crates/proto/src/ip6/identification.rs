//! Identifications of packets that are sent in fragments (RFC 7739 §5.3): from one pair of addresses they count up, so
//! that none comes again soon, and they tell nobody else how much is sent or what comes next.

use std::cell::RefCell;
use std::net::Ipv6Addr;

use crate::siphash::{Key, siphash};

/// Counters; pairs of addresses that share one only pass over numbers.
const COUNTERS: usize = 256;

/// The next identifications of one interface.
#[derive(Debug, Default)]
pub(super) struct Identifications {
    key: Key,
    /// Empty until something is cut.
    counters: RefCell<Vec<u32>>,
}

impl Identifications {
    /// From a secret.
    pub(super) fn new(seed: u64) -> Identifications {
        // The second half only keeps this apart from other uses of the seed.
        Identifications { key: (seed, 0x6672_6167_6d65_6e74), counters: RefCell::default() }
    }

    /// The identification of the next packet between these two.
    pub(super) fn next(&self, source: Ipv6Addr, destination: Ipv6Addr) -> u32 {
        let mut pair = [0; 32];
        pair[..16].copy_from_slice(&source.octets());
        pair[16..].copy_from_slice(&destination.octets());
        // F and G of the algorithm: two parts of one hash.
        let hash = siphash::<1, 3>(self.key, &pair);
        let mut counters = self.counters.borrow_mut();
        if counters.is_empty() {
            *counters = vec![0; COUNTERS];
        }
        let counter = &mut counters[(hash >> 32) as usize % COUNTERS];
        *counter = counter.wrapping_add(1);
        (hash as u32).wrapping_add(*counter)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn address(last: u16) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last)
    }

    #[test]
    fn of_one_pair_they_count_up() {
        let identifications = Identifications::new(1);
        let first = identifications.next(address(1), address(2));
        for count in 1..100 {
            assert_eq!(identifications.next(address(1), address(2)), first.wrapping_add(count));
        }
    }

    /// RFC 7739 §3: what one destination gets says nothing of what another gets, nor does a restart.
    #[test]
    fn of_others_they_tell_nothing() {
        let of = |seed| {
            let identifications = Identifications::new(seed);
            (2..200).map(|last| identifications.next(address(1), address(last))).collect::<Vec<_>>()
        };
        let all: BTreeSet<u32> = of(1).into_iter().chain(of(2)).collect();
        assert!(all.len() > 390, "{}", all.len());
        let near = of(1).windows(2).filter(|two| two[0].abs_diff(two[1]) < 1 << 20).count();
        assert!(near < 10, "{near} of 197 are near the one before");
    }
}
