//! Initial sequence numbers (RFC 6528) and timestamp offsets (RFC 7323 §7.1), from a keyed hash of the flow.
//!
//! The key comes from the system's randomness, at the edge, once per daemon.

use std::net::IpAddr;

use scoutline_base::Time;

use crate::siphash::{self, Key, siphash};
use crate::tcp::fast_open::Keys;

/// One end of a flow: address and port.
pub type Endpoint = (IpAddr, u16);

/// What initial sequence numbers are made from. One per daemon; the key is secret.
#[derive(Clone)]
pub struct Secret {
    key: Key,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// A secret from sixteen bytes of the system's randomness.
    pub fn new(key: [u8; 16]) -> Secret {
        Secret { key: siphash::key(key) }
    }

    /// The initial sequence number of a flow, from our end to the other (RFC 6528 §3: M + F).
    pub fn initial_sequence(&self, ours: Endpoint, theirs: Endpoint, now: Time) -> u32 {
        // RFC 9293 §3.4.1: M grows by one every four microseconds.
        let clock = (now.as_nanos() / 4_000) as u32;
        clock.wrapping_add(self.flow(ours, theirs, 0) as u32)
    }

    /// What to add to the timestamp clock for this flow, so that it tells nothing about uptime or other flows.
    pub fn timestamp_offset(&self, ours: Endpoint, theirs: Endpoint) -> u32 {
        // Without the ports' order mattering to the clock: one offset per flow, another purpose byte.
        self.flow(ours, theirs, 1) as u32
    }

    /// A hash of the flow for a SYN cookie, and of a minute if one is given.
    pub fn cookie(&self, ours: Endpoint, theirs: Endpoint, minute: Option<u32>) -> u32 {
        let flow = self.flow(ours, theirs, 2 + u8::from(minute.is_some()));
        match minute {
            None => flow as u32,
            Some(minute) => {
                let mut bytes = [0; 12];
                bytes[..8].copy_from_slice(&flow.to_le_bytes());
                bytes[8..].copy_from_slice(&minute.to_le_bytes());
                siphash::<1, 3>(self.key, &bytes) as u32
            }
        }
    }

    /// Keys for cookies of fast open, where a program gives none.
    pub fn fast_open_keys(&self) -> Keys {
        let half = |purpose| siphash::<2, 4>(self.key, &[purpose]).to_le_bytes();
        let mut key = [0; 16];
        key[..8].copy_from_slice(&half(4));
        key[8..].copy_from_slice(&half(5));
        Keys::new(key, None)
    }

    fn flow(&self, ours: Endpoint, theirs: Endpoint, purpose: u8) -> u64 {
        let mut bytes = [0; 37];
        for (at, (address, port)) in [(0, ours), (18, theirs)] {
            match address {
                IpAddr::V4(address) => bytes[at..at + 4].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => bytes[at..at + 16].copy_from_slice(&address.octets()),
            }
            bytes[at + 16..at + 18].copy_from_slice(&port.to_be_bytes());
        }
        bytes[36] = purpose;
        siphash::<1, 3>(self.key, &bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn flows_differ_and_the_clock_advances() {
        let secret = Secret::new([7; 16]);
        let ours = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 80);
        let theirs = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 5000);
        let first = secret.initial_sequence(ours, theirs, Time::ZERO);
        let later = secret.initial_sequence(ours, theirs, Time::from_micros(4_000));
        assert_eq!(later.wrapping_sub(first), 1_000, "four microseconds a unit");
        assert_ne!(first, secret.initial_sequence(theirs, ours, Time::ZERO));
        assert_ne!(first, Secret::new([8; 16]).initial_sequence(ours, theirs, Time::ZERO));
        assert_ne!(first, secret.timestamp_offset(ours, theirs));
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
