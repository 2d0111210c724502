//! ICMP for IPv4 (RFC 792).

use std::net::Ipv4Addr;

use crate::{be16, checksum, ipv4};

/// Length of the header that all messages share, in bytes.
pub const HEADER_LEN: usize = 8;
/// Type: echo reply.
pub const ECHO_REPLY: u8 = 0;
/// Type: destination unreachable.
pub const UNREACHABLE: u8 = 3;
/// Type: source quench (deprecated by RFC 6633, to be ignored).
pub const SOURCE_QUENCH: u8 = 4;
/// Type: redirect.
pub const REDIRECT: u8 = 5;
/// Type: echo request.
pub const ECHO_REQUEST: u8 = 8;
/// Type: time exceeded.
pub const TIME_EXCEEDED: u8 = 11;
/// Type: parameter problem.
pub const PARAMETER_PROBLEM: u8 = 12;

/// Code of [`TIME_EXCEEDED`]: it has passed too many routers.
pub const TTL_EXCEEDED: u8 = 0;
/// Code of [`TIME_EXCEEDED`]: fragments did not all come in time.
pub const REASSEMBLY_TIME: u8 = 1;

/// Codes of [`UNREACHABLE`].
pub mod unreachable {
    /// The network cannot be reached.
    pub const NETWORK: u8 = 0;
    /// The host cannot be reached.
    pub const HOST: u8 = 1;
    /// The host does not know the protocol.
    pub const PROTOCOL: u8 = 2;
    /// Nobody listens at the port.
    pub const PORT: u8 = 3;
    /// It would have to be fragmented, and must not be.
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// The source route failed.
    pub const SOURCE_ROUTE: u8 = 5;
    /// Codes 9, 10 and 13: an administrator forbids it (RFC 1122 §3.2.2.1, RFC 1812 §5.2.7.1).
    pub const ADMINISTRATIVE: [u8; 3] = [9, 10, 13];
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type of the message.
    pub kind: u8,
    /// The code within the type.
    pub code: u8,
    /// What the type makes of it: identifier and sequence number, next-hop MTU, a pointer.
    pub rest: [u8; 4],
}

/// Why bytes are no ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Shorter than the header is.
    #[error("{got} bytes cannot hold an ICMP header of 8")]
    Truncated {
        /// Bytes there were.
        got: usize,
    },
    /// The checksum is wrong.
    #[error("the ICMP checksum is wrong")]
    Checksum,
}

impl Header {
    /// Reads a message and verifies its checksum, which covers all of `bytes`.
    ///
    /// # Errors
    /// Too few bytes, or a wrong checksum.
    pub fn parse(bytes: &[u8]) -> Result<Header, ParseError> {
        let header = Header::parse_unverified(bytes)?;
        if !checksum::is_valid(checksum::sum(bytes)) {
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

    /// True for messages that report an error: about these no error is ever sent (RFC 1122 §3.2.2).
    pub const fn is_error(&self) -> bool {
        matches!(self.kind, UNREACHABLE | SOURCE_QUENCH | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM)
    }

    /// Writes header and checksum to the front of `message`, whose payload is in place behind it.
    ///
    /// # Panics
    /// When `message` is shorter than 8 bytes.
    pub fn emit(&self, message: &mut [u8]) {
        message[0] = self.kind;
        message[1] = self.code;
        message[2..4].fill(0);
        message[4..8].copy_from_slice(&self.rest);
        let sum = checksum::finish(checksum::sum(message));
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
}

/// What an error message quotes of the datagram that it is about: always one of ours, so `source` is us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// Who sent the datagram.
    pub source: Ipv4Addr,
    /// Who should have got it.
    pub destination: Ipv4Addr,
    /// Its protocol.
    pub protocol: u8,
    /// Its ports; 0 for protocols without.
    pub ports: (u16, u16),
    /// The four bytes after the ports: TCP's sequence number (RFC 5927 §4.1 checks it).
    pub sequence: u32,
    /// Where, in the quotation, that follows which stands behind these eight bytes: a datagram's data.
    pub data: usize,
}

impl Quoted {
    /// Reads the quotation from the payload of an error: an IP header and at least eight bytes.
    ///
    /// `None` when it is cut short, garbled, or about a fragment other than the first.
    pub fn parse(bytes: &[u8]) -> Option<Quoted> {
        let header = ipv4::Header::parse_header(bytes).ok()?;
        if header.fragment_offset != 0 {
            return None;
        }
        // RFC 792: the header and the first 64 bits of the datagram's data.
        let data = bytes[usize::from(header.header_len)..].first_chunk::<8>()?;
        let has_ports = matches!(header.protocol, ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_UDP);
        Some(Quoted {
            source: header.source,
            destination: header.destination,
            protocol: header.protocol,
            ports: if has_ports { (be16(data, 0), be16(data, 2)) } else { (0, 0) },
            sequence: u32::from_be_bytes([data[4], data[5], data[6], data[7]]),
            data: usize::from(header.header_len) + data.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_echo_request_parses() {
        let bytes = [8, 0, 0xf7, 0xfd, 0, 1, 0, 1];
        let header = Header::parse(&bytes).unwrap();
        assert_eq!(header, Header { kind: ECHO_REQUEST, code: 0, rest: [0, 1, 0, 1] });
        let mut out = [0xff; 8];
        header.emit(&mut out);
        assert_eq!(out, bytes);
        let mut bad = bytes;
        bad[7] = 2;
        assert_eq!(Header::parse(&bad), Err(ParseError::Checksum));
        assert_eq!(Header::parse(&bytes[..7]), Err(ParseError::Truncated { got: 7 }));
    }

    #[test]
    fn a_quotation_gives_the_flow() {
        let mut bytes = [0u8; 28];
        let header = ipv4::Header {
            header_len: 20,
            tos: 0,
            total_len: 1500,
            identification: 7,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 3,
            protocol: ipv4::PROTOCOL_TCP,
            source: Ipv4Addr::new(10, 0, 0, 2),
            destination: Ipv4Addr::new(10, 0, 9, 9),
        };
        header.emit(&mut bytes);
        bytes[20..28].copy_from_slice(&[0x1f, 0x90, 0, 80, 1, 2, 3, 4]);
        let quoted = Quoted::parse(&bytes).unwrap();
        assert_eq!(quoted.ports, (8080, 80));
        assert_eq!(quoted.sequence, 0x0102_0304);
        assert_eq!(Quoted::parse(&bytes[..27]), None);
        bytes[7] = 1;
        assert_eq!(Quoted::parse(&bytes), None, "a later fragment has no ports");
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_err(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Header::parse(&bytes);
            let _ = Quoted::parse(&bytes);
        }
    }
}
