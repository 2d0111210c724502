//! How much arrives at single destinations, of either family, as routers have told (RFC 1191 §3, RFC 8201 §4): what one
//! flow has learnt holds for all that go there (RFC 8201 §5.2). Bounded: the oldest makes room.
//!
//! Who has told is for the flow to judge: what is about nothing that it sends comes to nobody here.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use scoutline_base::{Address, Time};
use scoutline_wire::ipv6;

/// Nobody makes us send shorter packets than this over IPv4 (RFC 5927 §7.2). Linux: `ip_rt_min_pmtu`.
pub const LEAST_MTU: u16 = 552;
/// RFC 1191 §6.3, RFC 8201 §4: how long a path MTU is believed before a larger one is tried.
pub(crate) const PATH_MTU_TIME: Duration = Duration::from_secs(600);
/// Destinations of which something is known.
const MAX_DESTINATIONS: usize = 1024;

/// What routers have told of the way to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// What arrives.
    pub mtu: u16,
    /// Until when that is believed.
    pub until: Time,
    /// IPv4: they have told of less, which is not believed. What goes there may be fragmented on its way, in case that it
    /// was true (RFC 1191 §3 gives a host this choice). Linux: `mtu lock`.
    pub divisible: bool,
}

/// The destinations whose path carries less than the link.
#[derive(Debug, Default)]
pub(crate) struct PathMtus {
    known: BTreeMap<Address, Told>,
    /// The oldest first.
    order: VecDeque<Address>,
}

impl PathMtus {
    /// What was told lately of the way to `destination`.
    pub(crate) fn of(&self, destination: Address, now: Time) -> Option<Told> {
        self.known.get(&destination).copied().filter(|told| now < told.until)
    }

    /// A router has told of the way to `destination`.
    pub(crate) fn set(&mut self, destination: Address, told: Told) {
        if self.known.insert(destination, told).is_some() {
            return;
        }
        if self.order.len() == MAX_DESTINATIONS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(destination);
    }
}

/// What a router says of the way to `destination`, where that is to be believed: no link carries less than 1280 bytes of
/// IPv6 (RFC 8201 §4), and no IPv4 packet is cut to crumbs.
pub(crate) fn believed(destination: Address, mtu: u32, now: Time) -> Option<Told> {
    let mtu = mtu.min(u32::from(u16::MAX)) as u16;
    let until = now + PATH_MTU_TIME;
    if destination.is_v4() {
        return Some(Told { mtu: mtu.max(LEAST_MTU), until, divisible: mtu < LEAST_MTU });
    }
    (mtu >= ipv6::MIN_MTU).then_some(Told { mtu, until, divisible: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u16) -> Address {
        std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).into()
    }

    fn told(mtu: u32, now: Time) -> Told {
        believed(address(1), mtu, now).unwrap()
    }

    #[test]
    fn a_path_mtu_is_believed_for_ten_minutes() {
        let mut all = PathMtus::default();
        let now = Time::from_millis(5);
        assert_eq!(all.of(address(1), now), None);
        all.set(address(1), told(1300, now));
        assert_eq!(
            all.of(address(1), now),
            Some(Told { mtu: 1300, until: now + PATH_MTU_TIME, divisible: false })
        );
        assert_eq!(all.of(address(2), now), None);
        assert_eq!(all.of(address(1), now + PATH_MTU_TIME), None);
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut all = PathMtus::default();
        for last in 0..2_000 {
            all.set(address(last), told(1400, Time::ZERO));
            all.set(address(last), told(1300, Time::ZERO));
        }
        assert_eq!((all.known.len(), all.order.len()), (MAX_DESTINATIONS, MAX_DESTINATIONS));
        assert_eq!(all.of(address(0), Time::ZERO), None);
        assert_eq!(all.of(address(1999), Time::ZERO).map(|told| told.mtu), Some(1300));
    }
}
