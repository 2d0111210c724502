//! ARP for IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;

use crate::be16;
use crate::ethernet::{Address, TYPE_IPV4};

/// Length of a packet, in bytes.
pub const PACKET_LEN: usize = 28;
const HARDWARE_ETHERNET: u16 = 1;

/// What a packet asks or says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Who has the target address?
    Request,
    /// The sender has the sender address.
    Reply,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Request or reply.
    pub operation: Operation,
    /// Link address of the sender.
    pub sender_link: Address,
    /// Network address of the sender; unspecified in a probe (RFC 5227 §1.1).
    pub sender: Ipv4Addr,
    /// Link address of the target; means nothing in a request.
    pub target_link: Address,
    /// Network address of the target.
    pub target: Ipv4Addr,
}

/// Why bytes are no ARP packet that we understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Shorter than a packet is.
    #[error("{got} bytes cannot hold an ARP packet of 28")]
    Truncated {
        /// Bytes there were.
        got: usize,
    },
    /// Not IPv4 over Ethernet, by type or by address length.
    #[error("hardware type {hardware} and protocol {protocol:#06x} are not IPv4 over Ethernet")]
    Kind {
        /// Hardware type.
        hardware: u16,
        /// Protocol type.
        protocol: u16,
    },
    /// Neither request nor reply.
    #[error("operation {0} is neither request nor reply")]
    Operation(u16),
}

impl Packet {
    /// Reads a packet from the front of `bytes`; link padding may follow.
    ///
    /// # Errors
    /// When the bytes are too few or speak of other networks.
    pub fn parse(bytes: &[u8]) -> Result<Packet, ParseError> {
        let Some(fixed) = bytes.first_chunk::<PACKET_LEN>() else {
            return Err(ParseError::Truncated { got: bytes.len() });
        };
        let (hardware, protocol) = (be16(fixed, 0), be16(fixed, 2));
        // RFC 826, packet reception: the type and length checks.
        if hardware != HARDWARE_ETHERNET || protocol != TYPE_IPV4 || fixed[4..6] != [6, 4] {
            return Err(ParseError::Kind { hardware, protocol });
        }
        let operation = match be16(fixed, 6) {
            1 => Operation::Request,
            2 => Operation::Reply,
            other => return Err(ParseError::Operation(other)),
        };
        let link = |at: usize| -> Address { std::array::from_fn(|index| fixed[at + index]) };
        let network = |at: usize| Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]);
        Ok(Packet {
            operation,
            sender_link: link(8),
            sender: network(14),
            target_link: link(18),
            target: network(24),
        })
    }

    /// Writes the packet to the front of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than 28 bytes.
    pub fn emit(&self, out: &mut [u8]) {
        out[0..2].copy_from_slice(&HARDWARE_ETHERNET.to_be_bytes());
        out[2..4].copy_from_slice(&TYPE_IPV4.to_be_bytes());
        out[4..6].copy_from_slice(&[6, 4]);
        let operation: u16 = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        out[6..8].copy_from_slice(&operation.to_be_bytes());
        out[8..14].copy_from_slice(&self.sender_link);
        out[14..18].copy_from_slice(&self.sender.octets());
        out[18..24].copy_from_slice(&self.target_link);
        out[24..28].copy_from_slice(&self.target.octets());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REQUEST: [u8; 28] =
        [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];

    #[test]
    fn parses_a_request() {
        let packet = Packet::parse(&REQUEST).unwrap();
        assert_eq!(packet.operation, Operation::Request);
        assert_eq!(packet.sender_link, [2, 0, 0, 0, 0, 1]);
        assert_eq!(packet.sender, Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(packet.target, Ipv4Addr::new(10, 0, 0, 2));
        let mut out = [0xff; 28];
        packet.emit(&mut out);
        assert_eq!(out, REQUEST);
    }

    #[test]
    fn refuses_what_is_not_ipv4_over_ethernet() {
        for (at, value) in [(1, 6), (2, 0x86), (4, 8), (5, 16)] {
            let mut bytes = REQUEST;
            bytes[at] = value;
            assert!(matches!(Packet::parse(&bytes), Err(ParseError::Kind { .. })), "byte {at}");
        }
        let mut bytes = REQUEST;
        bytes[7] = 3;
        assert_eq!(Packet::parse(&bytes), Err(ParseError::Operation(3)));
        assert_eq!(Packet::parse(&bytes[..27]), Err(ParseError::Truncated { got: 27 }));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_err(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Packet::parse(&bytes);
        }
    }
}
