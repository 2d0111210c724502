//! The IPv4 header (RFC 791 §3.1). Options are skipped: `header_len` tells where the payload starts, and RFC
//! 1122 §3.2.1.8 lets a host ignore what they say.

use std::net::Ipv4Addr;

use crate::{be16, checksum};

/// Length of a header without options, in bytes.
pub const MIN_HEADER_LEN: usize = 20;
/// Where the checksum stands in the header.
pub const CHECKSUM_OFFSET: usize = 10;
/// Protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;
/// Protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// Protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// The bits of the type-of-service octet that are ECN's (RFC 3168 §5).
pub const ECN_MASK: u8 = 0b11;
/// ECT(0): may be marked instead of dropped.
pub const ECN_CAPABLE: u8 = 0b10;
/// CE: was marked.
pub const ECN_CE: u8 = 0b11;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of this header with its options, in bytes. Always 20 when emitted.
    pub header_len: u8,
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Length of header and payload, in bytes.
    pub total_len: u16,
    /// Which datagram a fragment belongs to.
    pub identification: u16,
    /// Routers must not fragment it.
    pub dont_fragment: bool,
    /// This is a fragment, and not the last.
    pub more_fragments: bool,
    /// Where the payload stands in the whole datagram's payload, in bytes.
    pub fragment_offset: u16,
    /// Hops left.
    pub ttl: u8,
    /// What the payload is.
    pub protocol: u8,
    /// From whom.
    pub source: Ipv4Addr,
    /// To whom.
    pub destination: Ipv4Addr,
}

/// Why bytes are no IPv4 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Shorter than the header is.
    #[error("{got} bytes cannot hold an IPv4 header of {need}")]
    Truncated {
        /// Bytes there were.
        got: usize,
        /// Bytes there should be.
        need: usize,
    },
    /// Not version 4.
    #[error("version {0} is not 4")]
    Version(u8),
    /// A header length below five words, or a total length below the header's.
    #[error("header length {header_len} or total length {total_len} is impossible")]
    Length {
        /// Bytes of header.
        header_len: usize,
        /// Bytes of datagram.
        total_len: usize,
    },
    /// The datagram is longer than the bytes that came.
    #[error("total length {total_len} exceeds the {got} bytes that came")]
    Cut {
        /// Bytes there were.
        got: usize,
        /// Bytes of datagram.
        total_len: usize,
    },
}

impl Header {
    /// Reads a header from the front of `bytes`, which also hold its payload (and may hold link padding).
    /// The checksum is not looked at: see [`checksum_is_valid`].
    ///
    /// # Errors
    /// By RFC 1122 §3.2.1.1 and §3.2.1.2: a wrong version or length, or too few bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Header, ParseError> {
        let header = Header::parse_header(bytes)?;
        let total_len = usize::from(header.total_len);
        if total_len > bytes.len() {
            return Err(ParseError::Cut { got: bytes.len(), total_len });
        }
        Ok(header)
    }

    /// Reads a header whose payload may be cut off, as in an ICMP error.
    ///
    /// # Errors
    /// As `parse`, the length of the payload excepted.
    #[inline]
    pub fn parse_header(bytes: &[u8]) -> Result<Header, ParseError> {
        let Some(fixed) = bytes.first_chunk::<MIN_HEADER_LEN>() else {
            return Err(ParseError::Truncated { got: bytes.len(), need: MIN_HEADER_LEN });
        };
        if fixed[0] >> 4 != 4 {
            return Err(ParseError::Version(fixed[0] >> 4));
        }
        let header_len = usize::from(fixed[0] & 0x0f) * 4;
        let total_len = usize::from(be16(fixed, 2));
        if header_len < MIN_HEADER_LEN || total_len < header_len {
            return Err(ParseError::Length { header_len, total_len });
        }
        if bytes.len() < header_len {
            return Err(ParseError::Truncated { got: bytes.len(), need: header_len });
        }
        let fragment = be16(fixed, 6);
        Ok(Header {
            header_len: header_len as u8,
            tos: fixed[1],
            total_len: total_len as u16,
            identification: be16(fixed, 4),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            more_fragments: fragment & MORE_FRAGMENTS != 0,
            fragment_offset: (fragment & 0x1fff) << 3,
            ttl: fixed[8],
            protocol: fixed[9],
            source: Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]),
            destination: Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]),
        })
    }

    /// True for a part of a datagram.
    #[inline]
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// Bytes of payload.
    #[inline]
    pub const fn payload_len(&self) -> usize {
        self.total_len as usize - self.header_len as usize
    }

    /// Writes a header of 20 bytes with its checksum to the front of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than 20 bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..MIN_HEADER_LEN];
        let mut fragment = self.fragment_offset >> 3;
        if self.dont_fragment {
            fragment |= DONT_FRAGMENT;
        }
        if self.more_fragments {
            fragment |= MORE_FRAGMENTS;
        }
        out[0] = 0x45;
        out[1] = self.tos;
        out[2..4].copy_from_slice(&self.total_len.to_be_bytes());
        out[4..6].copy_from_slice(&self.identification.to_be_bytes());
        out[6..8].copy_from_slice(&fragment.to_be_bytes());
        out[8] = self.ttl;
        out[9] = self.protocol;
        out[10..12].fill(0);
        out[12..16].copy_from_slice(&self.source.octets());
        out[16..20].copy_from_slice(&self.destination.octets());
        let sum = checksum::finish(checksum::sum(out));
        out[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// True when the checksum over a whole header (with its options) holds.
#[inline]
pub fn checksum_is_valid(header: &[u8]) -> bool {
    checksum::is_valid(checksum::sum(header))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The header that most textbooks show, followed by nothing.
    const HEADER: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0,
        0xa8, 0x00, 0xc7,
    ];

    #[test]
    fn parses_and_emits() {
        let header = Header::parse_header(&HEADER).unwrap();
        assert_eq!((header.total_len, header.ttl, header.protocol), (0x73, 64, PROTOCOL_UDP));
        assert!(header.dont_fragment && !header.is_fragment());
        assert_eq!(header.destination, Ipv4Addr::new(192, 168, 0, 199));
        assert!(checksum_is_valid(&HEADER));
        let mut out = [0xff; 20];
        header.emit(&mut out);
        assert_eq!(out, HEADER);
        assert_eq!(Header::parse(&HEADER), Err(ParseError::Cut { got: 20, total_len: 0x73 }));
    }

    #[test]
    fn refuses_impossible_lengths_and_versions() {
        let mut bytes = HEADER;
        bytes[0] = 0x65;
        assert_eq!(Header::parse_header(&bytes), Err(ParseError::Version(6)));
        bytes[0] = 0x44;
        assert!(matches!(Header::parse_header(&bytes), Err(ParseError::Length { header_len: 16, .. })));
        bytes[0] = 0x46;
        assert_eq!(Header::parse_header(&bytes), Err(ParseError::Truncated { got: 20, need: 24 }));
        bytes[0] = 0x45;
        bytes[3] = 19;
        assert!(matches!(Header::parse_header(&bytes), Err(ParseError::Length { total_len: 19, .. })));
        assert_eq!(Header::parse(&bytes[..19]), Err(ParseError::Truncated { got: 19, need: 20 }));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_err(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert!(usize::from(header.total_len) <= bytes.len());
                prop_assert!(header.payload_len() + usize::from(header.header_len) <= bytes.len());
            }
        }

        #[test]
        fn what_is_emitted_parses_to_the_same(
            tos in any::<u8>(), len in 20u16.., id in any::<u16>(), flags in any::<(bool, bool)>(),
            offset in 0u16..0x2000, ttl in any::<u8>(), protocol in any::<u8>(), addresses in any::<(u32, u32)>(),
        ) {
            let header = Header {
                header_len: 20, tos, total_len: len, identification: id, dont_fragment: flags.0,
                more_fragments: flags.1, fragment_offset: offset << 3, ttl, protocol,
                source: addresses.0.into(), destination: addresses.1.into(),
            };
            let mut out = [0xff; 20];
            header.emit(&mut out);
            prop_assert!(checksum_is_valid(&out));
            prop_assert_eq!(Header::parse_header(&out), Ok(header));
        }
    }
}
