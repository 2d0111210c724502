//! Frames as the simulation's own eyes see them: TCP segments only, parsed a second time, apart from `wire`. What both
//! got wrong alike would not show otherwise.

use std::net::{Ipv4Addr, Ipv6Addr};

use scoutline_base::{Address, Endpoint};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A TCP segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) source: Endpoint,
    pub(crate) destination: Endpoint,
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    /// The window scale option.
    pub(crate) scale: Option<u8>,
    /// Payload bytes.
    pub(crate) len: u32,
    /// Where the TCP header lies in the frame, and where the payload.
    pub(crate) tcp_at: usize,
    pub(crate) payload_at: usize,
    /// Where the packet ends: behind it there may be padding.
    pub(crate) end: usize,
}

/// Where an IP packet's payload lies, its protocol, and the sum of the pseudo-header.
struct Packet {
    protocol: u8,
    source: Address,
    destination: Address,
    at: usize,
    end: usize,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A whole IP packet without extension headers; fragments are none.
fn packet(frame: &[u8]) -> Option<Packet> {
    match u16_at(frame, 12)? {
        0x0800 => {
            let header_len = usize::from(frame.get(14)? & 15) * 4;
            let is_fragment = u16_at(frame, 20)? & 0x3fff != 0;
            let address = |at: usize| Some(Ipv4Addr::from(u32_at(frame, at)?).into());
            (!is_fragment).then_some(Packet {
                protocol: *frame.get(23)?,
                source: address(26)?,
                destination: address(30)?,
                at: 14 + header_len,
                end: 14 + usize::from(u16_at(frame, 16)?),
            })
        }
        0x86dd => {
            let address = |at: usize| {
                let octets: [u8; 16] = frame.get(at..at + 16)?.try_into().ok()?;
                Some(Ipv6Addr::from(octets).into())
            };
            Some(Packet {
                protocol: *frame.get(20)?,
                source: address(22)?,
                destination: address(38)?,
                at: 54,
                end: 54 + usize::from(u16_at(frame, 18)?),
            })
        }
        _ => None,
    }
    .filter(|packet| packet.end <= frame.len() && packet.at <= packet.end)
}

/// The TCP segment in a frame.
pub(crate) fn segment(frame: &[u8]) -> Option<Segment> {
    let packet = packet(frame).filter(|packet| packet.protocol == TCP)?;
    let at = packet.at;
    let payload_at = at + usize::from(frame.get(at + 12)? >> 4) * 4;
    if payload_at > packet.end || payload_at < at + 20 {
        return None;
    }
    Some(Segment {
        source: Endpoint::new(packet.source, u16_at(frame, at)?),
        destination: Endpoint::new(packet.destination, u16_at(frame, at + 2)?),
        sequence: u32_at(frame, at + 4)?,
        acknowledgment: u32_at(frame, at + 8)?,
        flags: *frame.get(at + 13)?,
        window: u16_at(frame, at + 14)?,
        scale: window_scale(&frame[at + 20..payload_at]),
        len: (packet.end - payload_at) as u32,
        tcp_at: at,
        payload_at,
        end: packet.end,
    })
}

/// RFC 7323 §2.2.
fn window_scale(mut options: &[u8]) -> Option<u8> {
    loop {
        match options {
            [1, rest @ ..] => options = rest,
            [3, 3, scale, ..] => return Some((*scale).min(14)),
            [kind, len, ..] if *kind != 0 && *len >= 2 => options = options.get(usize::from(*len)..)?,
            _ => return None,
        }
    }
}

/// True for a whole UDP datagram.
pub(crate) fn is_datagram(frame: &[u8]) -> bool {
    packet(frame).is_some_and(|packet| packet.protocol == UDP)
}

/// Whether the checksums of a TCP segment are right: that of IPv4's header, and its own.
pub(crate) fn is_intact(frame: &[u8]) -> bool {
    let Some(packet) = packet(frame) else { return false };
    let header_is_right = frame[12] != 8 || fold(sum(&frame[14..packet.at])) == 0xffff;
    header_is_right && fold(pseudo_sum(&packet) + sum(&frame[packet.at..packet.end])) == 0xffff
}

/// Puts a right TCP checksum in.
pub(crate) fn mend(frame: &mut [u8]) {
    let Some(packet) = packet(frame) else { return };
    let field = packet.at + 16;
    frame[field..field + 2].fill(0);
    let sum = !fold(pseudo_sum(&packet) + sum(&frame[packet.at..packet.end]));
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

fn pseudo_sum(packet: &Packet) -> u64 {
    let len = (packet.end - packet.at) as u64;
    let addresses = [packet.source, packet.destination].map(|address| match address.as_v4() {
        Some(v4) => sum(&v4.octets()),
        None => sum(&address.octets()),
    });
    addresses[0] + addresses[1] + u64::from(packet.protocol) + len
}

fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let whole: u64 = words.by_ref().map(|word| u64::from(word[0]) << 8 | u64::from(word[1])).sum();
    whole + words.remainder().first().map_or(0, |last| u64::from(*last) << 8)
}

fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
