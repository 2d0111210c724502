//! The networks that paths serve, as the header of a region tells them ([`Header::served`](crate::layout::Header)).
//!
//! Written by the daemon into a fresh region, then by the engine whenever addresses come and go; read by shims. The
//! sequence number is odd while they are written (Linux's seqlock), so a reader never takes half of two lists.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use scoutline_base::Address;

use crate::layout::{Header, SERVED_COUNT, Served, served_flag};

/// How often a reader tries before it takes what it got: the writer may have died.
const READ_LIMIT: u32 = 1_000;

/// One address of ours with its network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Our address; of a route its network.
    pub address: Address,
    /// Bits of the 128 that name its network.
    pub prefix_len: u8,
    /// Bits of [`served_flag`].
    pub flags: u32,
    /// Linux's number of the interface: the scope of link-local addresses. 0: there is none.
    pub scope: u32,
}

impl Network {
    /// It has an address of ours; else it is only where a route leads.
    pub fn is_ours(&self) -> bool {
        self.flags & served_flag::ROUTE == 0
    }

    /// Programs on paths of this machine reach each other.
    pub fn has_own_link(&self) -> bool {
        self.flags & served_flag::OWN_LINK != 0
    }

    /// A gateway leads on to other networks of its family.
    pub fn has_gateway(&self) -> bool {
        self.flags & served_flag::GATEWAY != 0
    }

    /// Files may be sent as extents.
    pub fn takes_extents(&self) -> bool {
        self.flags & served_flag::EXTENTS != 0
    }

    /// True for addresses of the network.
    pub fn contains(&self, address: Address) -> bool {
        address.is_within(self.address, self.prefix_len)
    }
}

impl Header {
    /// Tells these networks; those beyond the room are left out.
    pub fn write_served(&self, networks: &[Network]) {
        let sequence = self.served_sequence.load(Ordering::Relaxed) | 1;
        self.served_sequence.store(sequence, Ordering::Relaxed);
        fence(Ordering::Release);
        for (entry, network) in self.served.iter().zip(networks) {
            entry.address.store(network.address);
            let put = |field: &AtomicU32, value| field.store(value, Ordering::Relaxed);
            put(&entry.prefix, u32::from(network.prefix_len));
            put(&entry.flags, network.flags);
            put(&entry.scope, network.scope);
        }
        self.served_count.store(networks.len().min(SERVED_COUNT) as u32, Ordering::Relaxed);
        self.served_sequence.store(sequence.wrapping_add(1), Ordering::Release);
    }

    /// What `look` finds among the networks as told last. It may be called more than once, and what it finds among halves of
    /// two lists is thrown away: so a reader needs no memory for them, which on the stack of a small thread it has not.
    pub fn look_at_served<R>(&self, look: impl Fn(Networks<'_>) -> R) -> R {
        let mut tries = 0;
        loop {
            let before = self.served_sequence.load(Ordering::Acquire);
            let count = (self.served_count.load(Ordering::Relaxed) as usize).min(SERVED_COUNT);
            let found = look(Networks { entries: self.served[..count].iter() });
            fence(Ordering::Acquire);
            tries += 1;
            let is_whole = before & 1 == 0 && self.served_sequence.load(Ordering::Relaxed) == before;
            if is_whole || tries == READ_LIMIT {
                return found;
            }
            std::hint::spin_loop();
        }
    }
}

/// The networks, one by one.
#[derive(Clone)]
pub struct Networks<'a> {
    entries: std::slice::Iter<'a, Served>,
}

impl ExactSizeIterator for Networks<'_> {}

impl Iterator for Networks<'_> {
    type Item = Network;

    fn next(&mut self) -> Option<Network> {
        let entry = self.entries.next()?;
        Some(Network {
            address: entry.address.load(),
            prefix_len: entry.prefix.load(Ordering::Relaxed).min(128) as u8,
            flags: entry.flags.load(Ordering::Relaxed),
            scope: entry.scope.load(Ordering::Relaxed),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    #[test]
    fn what_is_told_is_read() {
        let (region, _fd) = Region::create().unwrap();
        let header = region.header();
        let read = || header.look_at_served(|networks| networks.collect::<Vec<_>>());
        assert!(read().is_empty());
        let network = |text: &str, prefix_len, flags| Network {
            address: text.parse().unwrap(),
            prefix_len,
            flags,
            scope: 7,
        };
        let told = [network("10.0.0.1", 120, served_flag::GATEWAY), network("2001:db8::1", 64, 0)];
        header.write_served(&told);
        assert_eq!(read(), told);
        assert!(told[0].has_gateway() && !told[0].takes_extents());
        assert!(told[0].contains("10.0.0.9".parse().unwrap()));
        assert!(!told[1].contains("10.0.0.9".parse().unwrap()));
        header.write_served(&[told[1]; 100]);
        assert_eq!(read().len(), SERVED_COUNT);
    }
}
