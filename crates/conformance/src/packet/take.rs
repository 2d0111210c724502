//! Taking frames apart. Whatever leaves a stack must be well formed: lengths, checksums.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use super::six::{ETHERTYPE_IPV6, Six, take_six};
use super::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ICMP, IGMP, LINK_LEN, TCP, UDP, be16, be32, checksum, pseudo};

/// Why what left the stack is no packet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what left is malformed: {0}")]
pub struct Malformed(pub &'static str);

/// A packet that left.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Link address that it came from.
    pub link_source: [u8; 6],
    /// Link address that it went to.
    pub link_destination: [u8; 6],
    /// Of the IP header; for ARP the sender's address.
    pub source: Ipv4Addr,
    /// Of the IP header; for ARP the target's address.
    pub destination: Ipv4Addr,
    /// Type of service.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Don't fragment.
    pub dont_fragment: bool,
    /// From how many fragments it was put together.
    pub fragments: usize,
    /// Options of an IPv4 header.
    pub options: Vec<u8>,
    /// What is in it.
    pub content: Content,
    /// The IP packet, for errors about it.
    pub bytes: Vec<u8>,
}

/// What a packet carries.
#[derive(Clone, Debug)]
pub enum Content {
    /// A segment.
    Tcp(SeenTcp),
    /// Ports and payload of a datagram.
    Udp((u16, u16), Vec<u8>),
    /// Type, code, the four bytes after the checksum, the rest.
    Icmp(u8, u8, [u8; 4], Vec<u8>),
    /// A request, not a reply; the target's link address.
    Arp(bool, [u8; 6]),
    /// A packet of IPv6.
    Six(Six),
    /// A message of IGMP.
    Igmp(Vec<u8>),
    /// Nothing that scripts speak of.
    Other,
}

/// A TCP segment that left.
#[derive(Clone, Debug)]
pub struct SeenTcp {
    /// Source and destination.
    pub ports: (u16, u16),
    /// As on the wire.
    pub sequence: u32,
    /// As on the wire.
    pub acknowledgment: u32,
    /// All eight bits.
    pub flags: u8,
    /// Window field.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Bytes of the options.
    pub options: Vec<u8>,
    /// Its data.
    pub payload: Vec<u8>,
}

/// Takes a frame apart.
///
/// # Errors
/// When lengths or checksums are wrong.
pub fn take(frame: &[u8]) -> Result<Seen, Malformed> {
    if frame.len() < LINK_LEN {
        return Err(Malformed("shorter than a link header"));
    }
    let mut seen = Seen {
        link_source: frame[6..12].try_into().expect("six bytes"),
        link_destination: frame[..6].try_into().expect("six bytes"),
        source: Ipv4Addr::UNSPECIFIED,
        destination: Ipv4Addr::UNSPECIFIED,
        tos: 0,
        ttl: 0,
        dont_fragment: false,
        fragments: 1,
        options: Vec::new(),
        content: Content::Other,
        bytes: frame[LINK_LEN..].to_vec(),
    };
    match be16(frame, 12) {
        ETHERTYPE_IPV4 => take_ipv4(&frame[LINK_LEN..], &mut seen)?,
        ETHERTYPE_ARP => take_arp(&frame[LINK_LEN..], &mut seen)?,
        ETHERTYPE_IPV6 => seen.content = Content::Six(take_six(frame)?),
        _ => {}
    }
    Ok(seen)
}

fn address(bytes: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(be32(bytes, at))
}

fn take_arp(bytes: &[u8], seen: &mut Seen) -> Result<(), Malformed> {
    if bytes.len() < 28 || bytes[..6] != [0, 1, 8, 0, 6, 4] {
        return Err(Malformed("ARP, but not for IPv4 on Ethernet"));
    }
    if bytes[8..14] != seen.link_source {
        return Err(Malformed("ARP names another sender than the frame"));
    }
    (seen.source, seen.destination) = (address(bytes, 14), address(bytes, 24));
    let target = bytes[18..24].try_into().expect("six bytes");
    seen.content = Content::Arp(be16(bytes, 6) == 1, target);
    Ok(())
}

fn take_ipv4(bytes: &[u8], seen: &mut Seen) -> Result<(), Malformed> {
    let header_len = usize::from(bytes.first().copied().unwrap_or(0) & 15) * 4;
    if bytes.len() < 20 || bytes[0] >> 4 != 4 || header_len < 20 || bytes.len() < header_len {
        return Err(Malformed("no IPv4 header"));
    }
    let total = usize::from(be16(bytes, 2));
    if total < header_len || total > bytes.len() {
        return Err(Malformed("IPv4 total length"));
    }
    if checksum(&[&bytes[..header_len]]) != 0 {
        return Err(Malformed("IPv4 header checksum"));
    }
    (seen.source, seen.destination) = (address(bytes, 12), address(bytes, 16));
    (seen.tos, seen.ttl) = (bytes[1], bytes[8]);
    seen.dont_fragment = bytes[6] & 0x40 != 0;
    seen.bytes = bytes[..total].to_vec();
    let payload = &bytes[header_len..total];
    let protocol = bytes[9];
    let sum = || checksum(&[&pseudo(seen.source, seen.destination, protocol, payload.len()), payload]);
    seen.content = match protocol {
        TCP => {
            if payload.len() < 20 || usize::from(payload[12] >> 4) * 4 < 20 {
                return Err(Malformed("no TCP header"));
            }
            if sum() != 0 {
                return Err(Malformed("TCP checksum"));
            }
            Content::Tcp(take_tcp(payload)?)
        }
        UDP => {
            if payload.len() < 8 || usize::from(be16(payload, 4)) != payload.len() {
                return Err(Malformed("UDP length"));
            }
            if be16(payload, 6) != 0 && sum() != 0 {
                return Err(Malformed("UDP checksum"));
            }
            Content::Udp((be16(payload, 0), be16(payload, 2)), payload[8..].to_vec())
        }
        ICMP => {
            if payload.len() < 8 || checksum(&[payload]) != 0 {
                return Err(Malformed("ICMP checksum or length"));
            }
            let rest = payload[4..8].try_into().expect("four bytes");
            Content::Icmp(payload[0], payload[1], rest, payload[8..].to_vec())
        }
        IGMP => {
            if payload.len() < 8 || checksum(&[payload]) != 0 {
                return Err(Malformed("IGMP checksum or length"));
            }
            Content::Igmp(payload.to_vec())
        }
        _ => Content::Other,
    };
    seen.options = bytes[20..header_len].to_vec();
    Ok(())
}

fn take_tcp(bytes: &[u8]) -> Result<SeenTcp, Malformed> {
    let header_len = usize::from(bytes[12] >> 4) * 4;
    if header_len > bytes.len() {
        return Err(Malformed("TCP data offset"));
    }
    if bytes[12] & 15 != 0 {
        return Err(Malformed("TCP reserved bits"));
    }
    Ok(SeenTcp {
        ports: (be16(bytes, 0), be16(bytes, 2)),
        sequence: be32(bytes, 4),
        acknowledgment: be32(bytes, 8),
        flags: bytes[13],
        window: be16(bytes, 14),
        urgent: be16(bytes, 18),
        options: bytes[20..header_len].to_vec(),
        payload: bytes[header_len..].to_vec(),
    })
}

/// More fragments follow, or it is not the first.
fn is_fragment(ip: &[u8]) -> bool {
    let (flags, place) = (ip[6] & 0x20, be16(ip, 6) & 0x1fff);
    flags != 0 || place != 0
}

/// Puts fragments that leave together again: they leave in order and unlost.
#[derive(Debug, Default)]
pub struct Reassembly {
    parts: HashMap<u16, Vec<Vec<u8>>>,
}

impl Reassembly {
    /// Takes a frame; gives the whole one, once it is there, with the first fragment's headers, and the number of its
    /// pieces.
    pub fn add(&mut self, frame: Vec<u8>) -> Option<(Vec<u8>, usize)> {
        let ip = frame.get(LINK_LEN..)?;
        if be16(&frame, 12) != ETHERTYPE_IPV4 || ip.len() < 20 || !is_fragment(ip) {
            return Some((frame, 1));
        }
        let (id, more) = (be16(ip, 4), ip[6] & 0x20 != 0);
        self.parts.entry(id).or_default().push(frame);
        if more {
            return None;
        }
        let parts = self.parts.remove(&id)?;
        let header_len = usize::from(parts[0].get(LINK_LEN)? & 15) * 4;
        let mut whole = parts[0][..LINK_LEN + header_len].to_vec();
        for part in &parts {
            let ip = &part[LINK_LEN..];
            let (start, total) = (usize::from(ip[0] & 15) * 4, usize::from(be16(ip, 2)));
            let place = usize::from(be16(ip, 6) & 0x1fff) * 8;
            // A wrong offset leaves a packet that no checksum will like.
            whole.resize((LINK_LEN + header_len + place).max(whole.len()), 0);
            whole.truncate(LINK_LEN + header_len + place);
            whole.extend(ip.get(start..total)?);
        }
        let total = (whole.len() - LINK_LEN) as u16;
        whole[LINK_LEN + 2..LINK_LEN + 4].copy_from_slice(&total.to_be_bytes());
        whole[LINK_LEN + 6..LINK_LEN + 8].fill(0);
        whole[LINK_LEN + 10..LINK_LEN + 12].fill(0);
        let sum = checksum(&[&whole[LINK_LEN..LINK_LEN + header_len]]);
        whole[LINK_LEN + 10..LINK_LEN + 12].copy_from_slice(&sum.to_be_bytes());
        Some((whole, parts.len()))
    }
}
