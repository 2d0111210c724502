//! Ethernet II framing (RFC 894). 802.1Q tags are not taken apart: their EtherType is one like any other.

use crate::be16;

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 14;
/// The EtherType of IPv4.
pub const TYPE_IPV4: u16 = 0x0800;
/// The EtherType of ARP.
pub const TYPE_ARP: u16 = 0x0806;
/// The EtherType of IPv6.
pub const TYPE_IPV6: u16 = 0x86dd;
/// The address of all stations.
pub const BROADCAST: Address = [0xff; 6];

/// A link address.
pub type Address = [u8; 6];

/// True for broadcast and multicast addresses: the group bit is set.
#[inline]
pub const fn is_group(address: Address) -> bool {
    address[0] & 1 == 1
}

/// The link address of an IPv4 multicast group (RFC 1112 §6.4).
#[inline]
pub const fn multicast(group: std::net::Ipv4Addr) -> Address {
    let [_, b, c, d] = group.octets();
    [0x01, 0x00, 0x5e, b & 0x7f, c, d]
}

/// The link address of an IPv6 multicast group (RFC 2464 §7).
#[inline]
pub const fn multicast6(group: std::net::Ipv6Addr) -> Address {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// To whom.
    pub destination: Address,
    /// From whom.
    pub source: Address,
    /// What follows; below 0x600 it is an 802.3 length.
    pub ethertype: u16,
}

/// Why bytes are no Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{got} bytes cannot hold an Ethernet header of 14")]
pub struct ParseError {
    /// Bytes there were.
    pub got: usize,
}

impl Header {
    /// Reads a header from the front of `bytes`.
    ///
    /// # Errors
    /// When there are fewer than 14 bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Header, ParseError> {
        let Some(fixed) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(ParseError { got: bytes.len() });
        };
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *fixed;
        Ok(Header { destination: [a, b, c, d, e, f], source: [g, h, i, j, k, l], ethertype: be16(fixed, 12) })
    }

    /// Writes the header to the front of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than 14 bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        out[0..6].copy_from_slice(&self.destination);
        out[6..12].copy_from_slice(&self.source);
        out[12..14].copy_from_slice(&self.ethertype.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_emits() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 8, 6, 99];
        let header = Header::parse(&bytes).unwrap();
        assert_eq!(header.destination, [1, 2, 3, 4, 5, 6]);
        assert_eq!(header.source, [7, 8, 9, 10, 11, 12]);
        assert_eq!(header.ethertype, TYPE_ARP);
        let mut out = [0; 14];
        header.emit(&mut out);
        assert_eq!(out, bytes[..14]);
        assert_eq!(Header::parse(&bytes[..13]), Err(ParseError { got: 13 }));
    }

    #[test]
    fn groups() {
        assert!(is_group(BROADCAST));
        assert!(is_group(multicast(std::net::Ipv4Addr::new(224, 129, 2, 3))));
        assert_eq!(multicast(std::net::Ipv4Addr::new(224, 129, 2, 3)), [1, 0, 0x5e, 1, 2, 3]);
        assert!(!is_group([2, 0, 0, 0, 0, 1]));
        let all_nodes = std::net::Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        assert_eq!(multicast6(all_nodes), [0x33, 0x33, 0, 0, 0, 1]);
    }
}
