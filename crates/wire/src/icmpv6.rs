//! ICMP for IPv6 (RFC 4443): the header that all messages share, and what an error quotes. The messages of neighbour
//! discovery are in [`crate::nd`].

use std::net::Ipv6Addr;

use scoutline_base::Address;

use crate::ipv6::{self, PROTOCOL_ICMPV6};
use crate::{be16, checksum, ipv4};

/// Length of the header that all messages share, in bytes.
pub const HEADER_LEN: usize = 8;
/// Type: destination unreachable.
pub const UNREACHABLE: u8 = 1;
/// Type: packet too big; the rest of the header is the MTU.
pub const PACKET_TOO_BIG: u8 = 2;
/// Type: time exceeded.
pub const TIME_EXCEEDED: u8 = 3;
/// Type: parameter problem; the rest of the header points at it.
pub const PARAMETER_PROBLEM: u8 = 4;
/// Type: echo request.
pub const ECHO_REQUEST: u8 = 128;
/// Type: echo reply.
pub const ECHO_REPLY: u8 = 129;
/// Type: multicast listener query (RFC 3810 §5.1).
pub const LISTENER_QUERY: u8 = 130;
/// Type: multicast listener report, version 2 (RFC 3810 §5.2).
pub const LISTENER_REPORT: u8 = 143;

/// Code of [`TIME_EXCEEDED`]: it has passed too many routers.
pub const HOP_LIMIT_EXCEEDED: u8 = 0;
/// Code of [`TIME_EXCEEDED`]: fragments did not all come in time.
pub const REASSEMBLY_TIME: u8 = 1;

/// Codes of [`UNREACHABLE`] (RFC 4443 §3.1).
pub mod unreachable {
    /// No route leads there.
    pub const NO_ROUTE: u8 = 0;
    /// An administrator forbids it.
    pub const ADMINISTRATIVE: u8 = 1;
    /// Beyond the scope of the source address.
    pub const SCOPE: u8 = 2;
    /// The address cannot be reached.
    pub const ADDRESS: u8 = 3;
    /// Nobody listens at the port.
    pub const PORT: u8 = 4;
    /// The source address fails a policy.
    pub const POLICY: u8 = 5;
    /// The route is rejected.
    pub const REJECT: u8 = 6;
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type of the message.
    pub kind: u8,
    /// The code within the type.
    pub code: u8,
    /// What the type makes of it: identifier and sequence number, MTU, a pointer.
    pub rest: [u8; 4],
}

/// Why bytes are no ICMPv6 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Shorter than the header is.
    #[error("{got} bytes cannot hold an ICMPv6 header of 8")]
    Truncated {
        /// Bytes there were.
        got: usize,
    },
    /// The checksum is wrong.
    #[error("the ICMPv6 checksum is wrong")]
    Checksum,
}

impl Header {
    /// Reads a message between these addresses and verifies its checksum, which covers all of `bytes` (RFC 4443
    /// §2.3).
    ///
    /// # Errors
    /// Too few bytes, or a wrong checksum.
    pub fn parse(bytes: &[u8], source: Address, destination: Address) -> Result<Header, ParseError> {
        let header = Header::parse_unverified(bytes)?;
        let pseudo = checksum::pseudo_header(source, destination, PROTOCOL_ICMPV6, bytes.len());
        if !checksum::is_valid(checksum::add(pseudo, checksum::sum(bytes))) {
            return Err(ParseError::Checksum);
        }
        Ok(header)
    }

    /// Reads a header without looking at the checksum.
    ///
    /// # Errors
    /// Too few bytes.
    pub fn parse_unverified(bytes: &[u8]) -> Result<Header, ParseError> {
        let Some(fixed) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(ParseError::Truncated { got: bytes.len() });
        };
        Ok(Header { kind: fixed[0], code: fixed[1], rest: [fixed[4], fixed[5], fixed[6], fixed[7]] })
    }

    /// True for messages that report an error: about these no error is ever sent (RFC 4443 §2.4 (e.1)).
    pub const fn is_error(&self) -> bool {
        self.kind < 128
    }

    /// Writes header and checksum to the front of `message`, whose payload is in place behind it.
    ///
    /// # Panics
    /// When `message` is shorter than 8 bytes.
    pub fn emit(&self, message: &mut [u8], source: Ipv6Addr, destination: Ipv6Addr) {
        message[0] = self.kind;
        message[1] = self.code;
        message[2..4].fill(0);
        message[4..8].copy_from_slice(&self.rest);
        let pseudo = checksum::pseudo_header(source, destination, PROTOCOL_ICMPV6, message.len());
        let sum = checksum::finish(checksum::add(pseudo, checksum::sum(message)));
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The flow that an error is about, as far as its quotation tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// Who sent the packet that caused it.
    pub source: Ipv6Addr,
    /// To whom.
    pub destination: Ipv6Addr,
    /// Its transport protocol.
    pub protocol: u8,
    /// Source and destination port; 0 where the protocol has none.
    pub ports: (u16, u16),
    /// The four bytes after the ports: TCP's sequence number (RFC 5927 §4.1 checks it); 0 where there are no ports.
    pub sequence: u32,
    /// Where, in the quotation, that follows which stands behind these eight bytes: a datagram's data.
    pub data: usize,
}

impl Quoted {
    /// Reads the packet that an error quotes, which may be cut off; `None` when it does not tell its flow.
    pub fn parse(bytes: &[u8]) -> Option<Quoted> {
        let header = ipv6::Header::parse_header(bytes).ok()?;
        let upper = ipv6::walk(bytes).ok()?;
        // Pieces other than the first have no transport header.
        if upper.fragment.is_some_and(|fragment| fragment.offset != 0) {
            return None;
        }
        let (ports, sequence) = match upper.protocol {
            ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_UDP => {
                let data = bytes.get(upper.offset..)?.first_chunk::<8>()?;
                ((be16(data, 0), be16(data, 2)), u32::from_be_bytes([data[4], data[5], data[6], data[7]]))
            }
            _ => ((0, 0), 0),
        };
        let ipv6::Header { source, destination, .. } = header;
        let data = (upper.offset + 8).min(bytes.len());
        Some(Quoted { source, destination, protocol: upper.protocol, ports, sequence, data })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    const B: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

    #[test]
    fn emits_what_parses() {
        let mut message = [9; 12];
        Header { kind: ECHO_REQUEST, code: 0, rest: [1, 2, 3, 4] }.emit(&mut message, A, B);
        let header = Header::parse(&message, A.into(), B.into()).unwrap();
        assert_eq!(header, Header { kind: ECHO_REQUEST, code: 0, rest: [1, 2, 3, 4] });
        assert!(!header.is_error());
        // The addresses belong to what is summed.
        assert_eq!(Header::parse(&message, A.into(), A.into()), Err(ParseError::Checksum));
        assert_eq!(Header::parse(&message[..7], A.into(), B.into()), Err(ParseError::Truncated { got: 7 }));
    }

    #[test]
    fn a_quotation_tells_its_flow() {
        let mut bytes = vec![0; 48];
        let header = ipv6::Header {
            traffic_class: 0,
            flow_label: 0,
            payload_len: 900,
            next_header: ipv4::PROTOCOL_TCP,
            hop_limit: 3,
            source: A,
            destination: B,
        };
        header.emit(&mut bytes);
        bytes[40..48].copy_from_slice(&[0x1f, 0x90, 0, 80, 1, 2, 3, 4]);
        let quoted = Quoted::parse(&bytes).unwrap();
        assert_eq!((quoted.source, quoted.destination, quoted.ports), (A, B, (8080, 80)));
        assert_eq!(quoted.sequence, 0x0102_0304);
        assert_eq!(Quoted::parse(&bytes[..47]), None);
    }

    proptest! {
        #[test]
        fn any_quotation_parses_or_not(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), v6 in any::<bool>()) {
            if let (true, Some(first)) = (v6, bytes.first_mut()) { *first = 0x60; }
            Quoted::parse(&bytes);
        }
    }
}
