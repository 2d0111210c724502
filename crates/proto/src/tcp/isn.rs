//! Initial sequence numbers (RFC 6528) and timestamp offsets (RFC 7323 §7.1), from a keyed hash of the flow.
//!
//! The hash is SipHash-1-3 (Aumasson and Bernstein 2012): a pseudo-random function of the secret, cheap for the
//! 40 bytes of a flow. The key comes from the system's randomness, at the edge, once per daemon.

use std::net::IpAddr;

use scoutline_base::Time;

/// One end of a flow: address and port.
pub type Endpoint = (IpAddr, u16);

/// What initial sequence numbers are made from. One per daemon; the key is secret.
#[derive(Clone)]
pub struct Secret {
    key: (u64, u64),
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// A secret from sixteen bytes of the system's randomness.
    pub fn new(key: [u8; 16]) -> Secret {
        let (low, high) = key.split_at(8);
        let read = |half: &[u8]| half.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
        Secret { key: (read(low), read(high)) }
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

/// SipHash with `C` rounds per word and `D` at the end.
fn siphash<const C: usize, const D: usize>(key: (u64, u64), bytes: &[u8]) -> u64 {
    let mut v = [
        key.0 ^ 0x736f_6d65_7073_6575,
        key.1 ^ 0x646f_7261_6e64_6f6d,
        key.0 ^ 0x6c79_6765_6e65_7261,
        key.1 ^ 0x7465_6462_7974_6573,
    ];
    let mut absorb = |word: u64, rounds: usize| {
        v[3] ^= word;
        for _ in 0..rounds {
            sip_round(&mut v);
        }
        v[0] ^= word;
    };
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        absorb(little_endian(word), C);
    }
    // The last word carries the length in its top byte.
    absorb(little_endian(words.remainder()) | (bytes.len() as u64) << 56, C);
    v[2] ^= 0xff;
    for _ in 0..D {
        sip_round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn siphash_2_4_matches_the_paper() {
        // Appendix A of the paper: key 00..0f, message 00..0e.
        let key: [u8; 16] = std::array::from_fn(|i| i as u8);
        let message: [u8; 15] = std::array::from_fn(|i| i as u8);
        assert_eq!(siphash::<2, 4>(Secret::new(key).key, &message), 0xa129_ca61_49be_45e5);
    }

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
