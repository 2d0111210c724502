//! Frames as bytes: what scripts inject, and what came out, taken apart.
//!
//! Written apart from `scoutline-wire` on purpose: a fault in one of the two shows as a difference, and scripts need
//! what our own emitter refuses to make (bad checksums, impossible options).

mod build;
mod six;
mod take;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use build::{Draft, arp_frame, icmp_echo, icmp_error, igmp_message, tcp_segment, udp_datagram};
pub use six::Six;
pub use take::{Content, Malformed, Reassembly, Seen, SeenTcp, take};

/// The stack under test.
pub const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
/// Its gateway, whose link address scripts use.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 2);
/// The peer, behind the gateway.
pub const REMOTE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Prefix length of our network.
pub const PREFIX: u8 = 24;
/// Of the peer's network, to which a route may lead.
pub const REMOTE_PREFIX: u8 = 24;
/// Link address of the gateway.
pub const GATEWAY_LINK: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The stack under test over IPv6, where a script turns that on; beside it fe80::ff:fe00:1.
pub const LOCAL6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
/// Its gateway.
pub const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
/// Prefix length of our network.
pub const PREFIX6: u8 = 64;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const LINK_LEN: usize = 14;
const ICMP: u8 = 1;
const IGMP: u8 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The Internet checksum (RFC 1071) over some pieces; each but the last of even length.
fn checksum(pieces: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for piece in pieces {
        for pair in piece.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The pseudo header of TCP and UDP (RFC 9293 §3.1).
fn pseudo(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: usize) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&source.octets());
    bytes[4..8].copy_from_slice(&destination.octets());
    bytes[9] = protocol;
    bytes[10..].copy_from_slice(&(len as u16).to_be_bytes());
    bytes
}

/// The byte at a position of a stream: what programs write, what peers send, and what both must find. One sequence for
/// each direction, so that an echo does not look right by chance.
pub fn pattern(outward: bool, position: u64) -> u8 {
    let mixed =
        (position + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ if outward { 0x5bd1_e995_0000_0000 } else { 0 };
    (mixed >> 32) as u8 ^ (mixed >> 56) as u8
}

/// A piece of that sequence.
pub fn pattern_at(outward: bool, position: u64, len: usize) -> Vec<u8> {
    (position..position + len as u64).map(|position| pattern(outward, position)).collect()
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_taken_apart_again() {
        let segment =
            tcp_segment((REMOTE, 40001), (LOCAL, 8080), 7, 9, 0x18, 1000, 0, &[2, 4, 5, 180], b"abc");
        let frame = Draft::new(TCP, REMOTE, LOCAL, segment).frames([2, 0, 0, 0, 0, 1]).remove(0);
        let seen = take(&frame).unwrap();
        let Content::Tcp(tcp) = seen.content else { panic!("not TCP") };
        assert_eq!((tcp.ports, tcp.sequence, tcp.acknowledgment, tcp.window), ((40001, 8080), 7, 9, 1000));
        assert_eq!((tcp.options.as_slice(), tcp.payload.as_slice()), (&[2u8, 4, 5, 180][..], &b"abc"[..]));
    }

    #[test]
    fn each_flipped_bit_is_found() {
        let segment = tcp_segment((REMOTE, 40001), (LOCAL, 8080), 7, 9, 0x18, 1000, 0, &[], b"abcd");
        let frame = Draft::new(TCP, REMOTE, LOCAL, segment).frames([2, 0, 0, 0, 0, 1]).remove(0);
        for bit in LINK_LEN * 8..frame.len() * 8 {
            let mut broken = frame.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert!(take(&broken).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn each_flipped_bit_behind_options_is_found() {
        // An echo behind destination options.
        let bytes = vec![58, 0, 1, 4, 0, 0, 0, 0, 128, 0, 0, 0, 0, 1, 0, 2, 7];
        let mut six = Six { next: 60, source: GATEWAY6, destination: LOCAL6, hop: 64, bytes };
        six.complete();
        let frame = six.frame([2, 0, 0, 0, 0, 1], 2, 0);
        let Content::Six(seen) = take(&frame).unwrap().content else { panic!("not IPv6") };
        assert_eq!(seen, six);
        let (upper, addresses) = (LINK_LEN + 48..frame.len(), LINK_LEN + 8..LINK_LEN + 40);
        for bit in upper.chain(addresses).flat_map(|byte| 8 * byte..8 * byte + 8) {
            let mut broken = frame.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert!(take(&broken).is_err(), "bit {bit}");
        }
        assert!(take(&six.frame([2, 0, 0, 0, 0, 1], 2, 1)).is_err(), "longer than it is");
    }

    #[test]
    fn fragments_come_together_again() {
        let datagram = udp_datagram((REMOTE, 53), (LOCAL, 1000), &pattern_at(false, 0, 3000), true);
        let mut draft = Draft::new(UDP, REMOTE, LOCAL, datagram);
        draft.fragment = Some(800);
        let frames = draft.frames([2, 0, 0, 0, 0, 1]);
        assert_eq!(frames.len(), 4);
        let mut reassembly = Reassembly::default();
        let whole: Vec<_> = frames.into_iter().filter_map(|frame| reassembly.add(frame)).collect();
        let seen = take(&whole[0].0).unwrap();
        assert_eq!((whole.len(), whole[0].1), (1, 4));
        let Content::Udp(_, payload) = seen.content else { panic!("not UDP") };
        assert_eq!(payload, pattern_at(false, 0, 3000));
    }
}
