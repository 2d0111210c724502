//! SYN cookies: a listening socket that has no place for more handshakes answers without remembering (RFC 4987 §3.6).
//!
//! The initial sequence number carries the minute, the peer's segment size (one of a few) and a keyed hash of both and of
//! the flow; the acknowledgment brings it back. What else the SYN offered goes into the low bits of our timestamp, as in
//! Linux, which the peer echoes: so scaling, SACK and ECN survive a flood, if the peer has timestamps.
//!
//! ```text
//!  initial sequence number: hash of flow + theirs + (minute << 24) + 24 bits of (hash of flow and minute + size)
//!  timestamp:               … 26 bits of clock │ ECN │ SACK │ window scale (4 bits, 15: none)
//! ```

use scoutline_base::Time;

use crate::tcp::isn::{Endpoint, Secret};

/// Segment sizes that a cookie can tell, in bytes: the largest that is not above the peer's. The first stands for all
/// that is smaller than the second.
const SEGMENTS: [u16; 8] = [216, 536, 1220, 1300, 1440, 1460, 4312, 8960];
/// A cookie is taken for this many minutes after the one in which it was made.
const MAX_AGE_MINUTES: u32 = 1;
const DATA_BITS: u32 = 24;
const DATA: u32 = (1 << DATA_BITS) - 1;

const SCALE: u32 = 0xf;
const NO_SCALE: u8 = 0xf;
const SACK: u32 = 1 << 4;
const ECN: u32 = 1 << 5;
const OPTIONS: u32 = 0x3f;

/// What a timestamp carries of a SYN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// The shift of the peer's window.
    pub window_scale: Option<u8>,
    /// It understands SACK.
    pub sack: bool,
    /// It offers ECN.
    pub ecn: bool,
}

impl Offered {
    /// The latest timestamp not after `now` that carries these.
    pub fn timestamp(&self, now: u32) -> u32 {
        let scale = u32::from(self.window_scale.map_or(NO_SCALE, |scale| scale.min(14)));
        let bits = scale | if self.sack { SACK } else { 0 } | if self.ecn { ECN } else { 0 };
        let stamp = now & !OPTIONS | bits;
        if (now.wrapping_sub(stamp) as i32) < 0 { stamp.wrapping_sub(OPTIONS + 1) } else { stamp }
    }

    /// What an echo brings back.
    pub fn from_echo(echo: u32) -> Offered {
        let scale = (echo & SCALE) as u8;
        Offered {
            window_scale: (scale != NO_SCALE).then_some(scale),
            sack: echo & SACK != 0,
            ecn: echo & ECN != 0,
        }
    }
}

/// The two ends of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Ours.
    pub ours: Endpoint,
    /// The peer's.
    pub theirs: Endpoint,
}

fn minute(now: Time) -> u32 {
    (now.as_millis() / 60_000) as u32
}

fn of_minute(secret: &Secret, flow: &Flow, minute: u32) -> u32 {
    secret.cookie(flow.ours, flow.theirs, Some(minute))
}

/// The initial sequence number of the answer to a SYN with number `theirs` that offers segments of `segment` bytes.
pub fn make(secret: &Secret, flow: &Flow, theirs: u32, segment: u16, now: Time) -> u32 {
    let index = SEGMENTS.iter().rposition(|&size| size <= segment).unwrap_or(0) as u32;
    let minute = minute(now);
    let data = of_minute(secret, flow, minute).wrapping_add(index) & DATA;
    secret
        .cookie(flow.ours, flow.theirs, None)
        .wrapping_add(theirs)
        .wrapping_add(minute << DATA_BITS)
        .wrapping_add(data)
}

/// The peer's segment size, if `cookie` is one of ours, made lately for a SYN with number `theirs`.
pub fn check(secret: &Secret, flow: &Flow, cookie: u32, theirs: u32, now: Time) -> Option<u16> {
    let rest = cookie.wrapping_sub(secret.cookie(flow.ours, flow.theirs, None)).wrapping_sub(theirs);
    let age = minute(now).wrapping_sub(rest >> DATA_BITS) & (u32::MAX >> DATA_BITS);
    if age > MAX_AGE_MINUTES {
        return None;
    }
    let made = minute(now).wrapping_sub(age);
    let index = (rest & DATA).wrapping_sub(of_minute(secret, flow, made)) & DATA;
    SEGMENTS.get(index as usize).copied()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn flow(port: u16) -> Flow {
        let address = |last| Ipv4Addr::new(10, 0, 0, last).into();
        Flow { ours: (address(1), 80), theirs: (address(2), port) }
    }

    fn minutes(count: u64) -> Time {
        Time::from_millis(count * 60_000 + 30_000)
    }

    proptest! {
        #[test]
        fn a_cookie_tells_the_segment_size_for_its_flow_and_for_two_minutes(
            key in any::<[u8; 16]>(), theirs in any::<u32>(), segment in 88u16..=9000, at in 0u64..100_000
        ) {
            let secret = Secret::new(key);
            let cookie = make(&secret, &flow(5000), theirs, segment, minutes(at));
            let told = check(&secret, &flow(5000), cookie, theirs, minutes(at)).unwrap();
            prop_assert!(told <= segment || told == SEGMENTS[0]);
            prop_assert!(segment < SEGMENTS[1] || u32::from(told) * 3 >= u32::from(segment));
            prop_assert_eq!(check(&secret, &flow(5000), cookie, theirs, minutes(at + 1)), Some(told));
            prop_assert_eq!(check(&secret, &flow(5000), cookie, theirs, minutes(at + 2)), None);
            // Eight sizes of 2^24, in two minutes of 256: one guess in some millions is right.
            prop_assert_eq!(check(&secret, &flow(5001), cookie, theirs, minutes(at)), None);
            prop_assert_eq!(check(&Secret::new([9; 16]), &flow(5000), cookie, theirs, minutes(at)), None);
        }

        #[test]
        fn a_timestamp_carries_the_offer_and_is_never_in_the_future(
            now in any::<u32>(), scale in proptest::option::of(0u8..=14), sack in any::<bool>(), ecn in any::<bool>()
        ) {
            let offered = Offered { window_scale: scale, sack, ecn };
            let stamp = offered.timestamp(now);
            prop_assert_eq!(Offered::from_echo(stamp), offered);
            prop_assert!(now.wrapping_sub(stamp) < 64);
        }
    }
}
