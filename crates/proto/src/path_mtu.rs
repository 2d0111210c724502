//! How much arrives at single destinations, of either family, as routers have told (RFC 1191 §3, RFC 8201 §4): what one
//! flow has learnt holds for all that go there (RFC 8201 §5.2).
//!
//! Who has told is for the flow to judge: what is about nothing that it sends comes to nobody here.

use std::time::Duration;

use scoutline_base::{Address, Time};
use scoutline_wire::ipv6;

/// Nobody makes us send shorter packets than this over IPv4 (RFC 5927 §7.2). Linux: `ip_rt_min_pmtu`.
pub const LEAST_MTU: u16 = 552;
/// RFC 1191 §6.3, RFC 8201 §4: how long a path MTU is believed before a larger one is tried.
pub(crate) const PATH_MTU_TIME: Duration = Duration::from_secs(600);

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
