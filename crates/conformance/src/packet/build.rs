//! Making frames.

use std::net::Ipv4Addr;

use super::{ETHERTYPE_ARP, ETHERTYPE_IPV4, GATEWAY_LINK, LINK_LEN, TCP, UDP, checksum, pseudo};

/// An IPv4 packet to be, with what may be wrong with it.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Transport protocol.
    pub protocol: u8,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Header and payload of the transport protocol.
    pub payload: Vec<u8>,
    /// Type of service.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Identification.
    pub id: u16,
    /// Don't fragment.
    pub dont_fragment: bool,
    /// IP options, a multiple of four bytes.
    pub options: Vec<u8>,
    /// Cut into fragments of so much payload (a multiple of eight).
    pub fragment: Option<usize>,
    /// Added to the header's checksum.
    pub checksum_error: u16,
    /// Version and header length as they are to be, where they are to be wrong.
    pub version: Option<u8>,
    /// Added to the total length.
    pub length_error: i32,
    /// Bytes of link padding behind it.
    pub padding: usize,
}

impl Draft {
    /// An ordinary packet.
    pub fn new(protocol: u8, source: Ipv4Addr, destination: Ipv4Addr, payload: Vec<u8>) -> Draft {
        Draft {
            protocol,
            source,
            destination,
            payload,
            tos: 0,
            ttl: 64,
            id: 0x1234,
            dont_fragment: false,
            options: Vec::new(),
            fragment: None,
            checksum_error: 0,
            version: None,
            length_error: 0,
            padding: 0,
        }
    }

    /// The frames, from the gateway to this link address.
    pub fn frames(&self, to: [u8; 6]) -> Vec<Vec<u8>> {
        let size = self.fragment.unwrap_or(usize::MAX);
        let mut frames = Vec::new();
        let mut at = 0;
        loop {
            let len = size.min(self.payload.len() - at);
            let more = at + len < self.payload.len();
            frames.push(self.frame(to, at, len, more));
            at += len;
            if !more {
                return frames;
            }
        }
    }

    fn frame(&self, to: [u8; 6], at: usize, len: usize, more: bool) -> Vec<u8> {
        let header_len = 20 + self.options.len();
        let mut header = vec![0; header_len];
        header[0] = self.version.unwrap_or(0x40 | (header_len / 4) as u8);
        header[1] = self.tos;
        let total = (header_len + len) as i32 + self.length_error;
        header[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        header[4..6].copy_from_slice(&self.id.to_be_bytes());
        let place = (at / 8) as u16 | u16::from(more) << 13 | u16::from(self.dont_fragment) << 14;
        header[6..8].copy_from_slice(&place.to_be_bytes());
        header[8] = self.ttl;
        header[9] = self.protocol;
        header[12..16].copy_from_slice(&self.source.octets());
        header[16..20].copy_from_slice(&self.destination.octets());
        header[20..].copy_from_slice(&self.options);
        let sum = checksum(&[&header]).wrapping_add(self.checksum_error);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut frame = link(to, ETHERTYPE_IPV4);
        frame.extend(header);
        frame.extend(&self.payload[at..at + len]);
        frame.extend(std::iter::repeat_n(0xee, self.padding));
        frame
    }
}

fn link(to: [u8; 6], ethertype: u16) -> Vec<u8> {
    let mut frame = Vec::with_capacity(LINK_LEN);
    frame.extend(to);
    frame.extend(GATEWAY_LINK);
    frame.extend(ethertype.to_be_bytes());
    frame
}

/// A message of IGMP (RFC 3376 §4) with its checksum.
pub fn igmp_message(bytes: &[u8]) -> Vec<u8> {
    let mut message = bytes.to_vec();
    if message.len() >= 4 {
        let sum = checksum(&[&message]);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    message
}

/// A TCP segment with its checksum.
#[allow(clippy::too_many_arguments)] // the fields of the header, in its order
pub fn tcp_segment(
    from: (Ipv4Addr, u16),
    to: (Ipv4Addr, u16),
    sequence: u32,
    acknowledgment: u32,
    flags: u8,
    window: u16,
    urgent: u16,
    options: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let header_len = 20 + options.len();
    let mut bytes = vec![0; header_len];
    bytes[0..2].copy_from_slice(&from.1.to_be_bytes());
    bytes[2..4].copy_from_slice(&to.1.to_be_bytes());
    bytes[4..8].copy_from_slice(&sequence.to_be_bytes());
    bytes[8..12].copy_from_slice(&acknowledgment.to_be_bytes());
    bytes[12] = (header_len as u8 / 4) << 4;
    bytes[13] = flags;
    bytes[14..16].copy_from_slice(&window.to_be_bytes());
    bytes[18..20].copy_from_slice(&urgent.to_be_bytes());
    bytes[20..].copy_from_slice(options);
    bytes.extend(payload);
    let sum = checksum(&[&pseudo(from.0, to.0, TCP, bytes.len()), &bytes]);
    bytes[16..18].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// A datagram, with its checksum or (RFC 768) without.
pub fn udp_datagram(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), payload: &[u8], sum: bool) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes[0..2].copy_from_slice(&from.1.to_be_bytes());
    bytes[2..4].copy_from_slice(&to.1.to_be_bytes());
    bytes[4..6].copy_from_slice(&((8 + payload.len()) as u16).to_be_bytes());
    bytes.extend(payload);
    if sum {
        let sum = match checksum(&[&pseudo(from.0, to.0, UDP, bytes.len()), &bytes]) {
            0 => 0xffff,
            sum => sum,
        };
        bytes[6..8].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

/// An ICMP error about the packet that begins so.
pub fn icmp_error(kind: u8, code: u8, mtu: u16, about: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, code, 0, 0, 0, 0];
    bytes.extend(mtu.to_be_bytes());
    bytes.extend(about);
    summed(bytes)
}

/// An echo request or reply.
pub fn icmp_echo(request: bool, id: u16, sequence: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![if request { 8 } else { 0 }, 0, 0, 0];
    bytes.extend(id.to_be_bytes());
    bytes.extend(sequence.to_be_bytes());
    bytes.extend(payload);
    summed(bytes)
}

fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = checksum(&[&bytes]);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// An ARP packet from the gateway's link address (RFC 826). A request goes to all.
pub fn arp_frame(request: bool, sender: Ipv4Addr, target: Ipv4Addr, to: [u8; 6]) -> Vec<u8> {
    let mut frame = link(if request { [0xff; 6] } else { to }, ETHERTYPE_ARP);
    frame.extend([0, 1, 8, 0, 6, 4, 0, if request { 1 } else { 2 }]);
    frame.extend(GATEWAY_LINK);
    frame.extend(sender.octets());
    frame.extend(if request { [0; 6] } else { to });
    frame.extend(target.octets());
    frame
}
