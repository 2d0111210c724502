//! IPv6 packets (RFC 8200), byte by byte: what stands behind their header is the script's to say.

use std::net::Ipv6Addr;

use super::{GATEWAY_LINK, LINK_LEN, Malformed, TCP, UDP, be16, checksum};

pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
const HEADER_LEN: usize = 40;
const ICMP6: u8 = 58;
/// Extension headers that scripts put in front of others: hop-by-hop, routing, destination options.
const EXTENSIONS: [u8; 3] = [0, 43, 60];

/// An IPv6 packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Six {
    /// What stands behind the header.
    pub next: u8,
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Hop limit.
    pub hop: u8,
    /// What stands behind the header.
    pub bytes: Vec<u8>,
}

impl Six {
    /// Where the upper layer begins and which it is, behind extension headers of the ordinary kinds.
    fn upper(&self) -> Option<(u8, usize)> {
        let (mut next, mut at) = (self.next, 0);
        while EXTENSIONS.contains(&next) {
            let header = self.bytes.get(at..at + 2)?;
            (next, at) = (header[0], at + 8 + 8 * usize::from(header[1]));
        }
        Some((next, at)).filter(|(_, at)| *at <= self.bytes.len())
    }

    /// The checksum over the pseudo header (RFC 8200 §8.1) and the upper layer, and where it stands; `None`: there is none.
    fn sum(&self) -> Option<(u16, usize)> {
        let (next, at) = self.upper()?;
        let place = match next {
            ICMP6 => 2,
            TCP => 16,
            UDP => 6,
            _ => return None,
        };
        let upper = self.bytes.get(at..).filter(|upper| upper.len() >= place + 2)?;
        let len = (upper.len() as u32).to_be_bytes();
        let pseudo: [&[u8]; 4] = [&self.source.octets(), &self.destination.octets(), &len, &[0, 0, 0, next]];
        let pieces: Vec<&[u8]> = pseudo.into_iter().chain([upper]).collect();
        Some((checksum(&pieces), at + place))
    }

    /// Fills in the checksum, where it is zero.
    pub fn complete(&mut self) {
        if let Some((sum, place)) = self.sum()
            && self.bytes[place..place + 2] == [0, 0]
        {
            self.bytes[place..place + 2].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// The frame, from the neighbour 02:00:00:00:00:NN to this link address, or to the group's (RFC 2464 §7); the payload's
    /// length wrong by so much.
    pub fn frame(&self, to: [u8; 6], neighbour: u8, length_error: i32) -> Vec<u8> {
        let [.., a, b, c, d] = self.destination.octets();
        let mut frame = Vec::with_capacity(LINK_LEN + HEADER_LEN + self.bytes.len());
        frame.extend(if self.destination.is_multicast() { [0x33, 0x33, a, b, c, d] } else { to });
        frame.extend(&GATEWAY_LINK[..5]);
        frame.push(neighbour);
        frame.extend(ETHERTYPE_IPV6.to_be_bytes());
        frame.extend([0x60, 0, 0, 0]);
        frame.extend(((self.bytes.len() as i32 + length_error) as u16).to_be_bytes());
        frame.extend([self.next, self.hop]);
        frame.extend(self.source.octets());
        frame.extend(self.destination.octets());
        frame.extend(&self.bytes);
        frame
    }
}

/// Takes what left apart.
pub(super) fn take_six(frame: &[u8]) -> Result<Six, Malformed> {
    let packet = &frame[LINK_LEN..];
    if packet.len() < HEADER_LEN || packet[0] >> 4 != 6 {
        return Err(Malformed("no IPv6 header"));
    }
    let len = usize::from(be16(packet, 4));
    let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).expect("16 bytes"));
    let bytes = packet.get(HEADER_LEN..HEADER_LEN + len).ok_or(Malformed("IPv6 payload length"))?;
    let six = Six {
        next: packet[6],
        source: address(8),
        destination: address(24),
        hop: packet[7],
        bytes: bytes.into(),
    };
    if six.sum().is_some_and(|(sum, _)| sum != 0) {
        return Err(Malformed("checksum over IPv6"));
    }
    let [.., a, b, c, d] = six.destination.octets();
    if six.destination.is_multicast() && frame[..6] != [0x33, 0x33, a, b, c, d] {
        return Err(Malformed("a group's packet to another link address"));
    }
    Ok(six)
}
