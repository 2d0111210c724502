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

/// The destinations whose path carries less than the link.
#[derive(Debug, Default)]
pub(crate) struct PathMtus {
    /// What arrives, and until when that is believed.
    known: BTreeMap<Address, (u16, Time)>,
    /// The oldest first.
    order: VecDeque<Address>,
}

impl PathMtus {
    /// What arrives at `destination`, where that was told lately, and until when it is believed.
    pub(crate) fn of(&self, destination: Address, now: Time) -> Option<(u16, Time)> {
        self.known.get(&destination).copied().filter(|&(_, until)| now < until)
    }

    /// A router has told what arrives at `destination`.
    pub(crate) fn set(&mut self, destination: Address, mtu: u16, now: Time) {
        if self.known.insert(destination, (mtu, now + PATH_MTU_TIME)).is_some() {
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
pub(crate) fn believed(destination: Address, mtu: u32) -> Option<u16> {
    let mtu = mtu.min(u32::from(u16::MAX)) as u16;
    if destination.is_v4() {
        return Some(mtu.max(LEAST_MTU));
    }
    (mtu >= ipv6::MIN_MTU).then_some(mtu)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u16) -> Address {
        std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).into()
    }

    #[test]
    fn a_path_mtu_is_believed_for_ten_minutes() {
        let mut all = PathMtus::default();
        let now = Time::from_millis(5);
        assert_eq!(all.of(address(1), now), None);
        all.set(address(1), 1300, now);
        assert_eq!(all.of(address(1), now), Some((1300, now + PATH_MTU_TIME)));
        assert_eq!(all.of(address(2), now), None);
        assert_eq!(all.of(address(1), now + PATH_MTU_TIME), None);
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut all = PathMtus::default();
        for last in 0..2_000 {
            all.set(address(last), 1400, Time::ZERO);
            all.set(address(last), 1300, Time::ZERO);
        }
        assert_eq!((all.known.len(), all.order.len()), (MAX_DESTINATIONS, MAX_DESTINATIONS));
        assert_eq!(all.of(address(0), Time::ZERO), None);
        assert_eq!(all.of(address(1999), Time::ZERO).map(|(mtu, _)| mtu), Some(1300));
    }
}
