//! What routers have said of single destinations (RFC 4861 §5.1, the Destination Cache): which neighbour is the better first
//! hop (RFC 4861 §8). Bounded: the oldest makes room. How much arrives there is told by [`crate::path_mtu`].

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv6Addr;

/// Destinations of which something is known.
const MAX_DESTINATIONS: usize = 1024;

/// The destinations.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    known: BTreeMap<Ipv6Addr, Destination>,
    /// The oldest first.
    order: VecDeque<Ipv6Addr>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Destination {
    /// Where a router said that its packets go.
    next_hop: Option<Ipv6Addr>,
}

impl Destinations {
    /// The neighbour to which a router has redirected packets.
    pub(super) fn next_hop(&self, destination: Ipv6Addr) -> Option<Ipv6Addr> {
        self.known.get(&destination)?.next_hop
    }

    /// A router has redirected packets to this neighbour.
    pub(super) fn set_next_hop(&mut self, destination: Ipv6Addr, next_hop: Ipv6Addr) {
        self.entry(destination).next_hop = Some(next_hop);
    }

    /// Nothing goes by way of this neighbour any more (RFC 4861 §7.2.5, §7.3.3); `None`: of any. True when that changes
    /// something.
    pub(super) fn leave(&mut self, next_hop: Option<Ipv6Addr>) -> bool {
        let mut changed = false;
        for destination in self.known.values_mut() {
            if destination.next_hop.is_some() && (next_hop.is_none() || destination.next_hop == next_hop) {
                destination.next_hop = None;
                changed = true;
            }
        }
        changed
    }

    fn entry(&mut self, destination: Ipv6Addr) -> &mut Destination {
        if !self.known.contains_key(&destination) {
            if self.known.len() == MAX_DESTINATIONS
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
            self.order.push_back(destination);
        }
        self.known.entry(destination).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u16) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last)
    }

    #[test]
    fn a_next_hop_is_left_when_it_is_gone() {
        let mut destinations = Destinations::default();
        for (destination, hop) in [(1, 11), (2, 11), (3, 12)] {
            destinations.set_next_hop(address(destination), address(hop));
        }
        assert!(destinations.leave(Some(address(11))) && !destinations.leave(Some(address(11))));
        let hops = [1, 2, 3].map(|last| destinations.next_hop(address(last)));
        assert_eq!(hops, [None, None, Some(address(12))]);
        assert!(destinations.leave(None) && !destinations.leave(None));
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut destinations = Destinations::default();
        for last in 0..2_000 {
            destinations.set_next_hop(address(last), address(1));
        }
        assert_eq!(
            (destinations.known.len(), destinations.order.len()),
            (MAX_DESTINATIONS, MAX_DESTINATIONS)
        );
        assert_eq!(
            (destinations.next_hop(address(0)), destinations.next_hop(address(1999))),
            (None, Some(address(1)))
        );
    }
}
