//! UDP (RFC 768).

use crate::be16;

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 8;
/// Where the checksum stands in the header.
pub const CHECKSUM_OFFSET: usize = 6;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Port of the sender; 0 means none.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// Length of header and payload, in bytes.
    pub len: u16,
    /// Checksum as on the wire; 0 means none was made (RFC 768).
    pub checksum: u16,
}

/// Why bytes are no UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Shorter than the header, or than the length that it tells.
    #[error("{got} bytes cannot hold a UDP datagram of {need}")]
    Truncated {
        /// Bytes there were.
        got: usize,
        /// Bytes there should be.
        need: usize,
    },
    /// A length below the header's.
    #[error("length {0} is below the header's 8")]
    Length(u16),
}

impl Header {
    /// Reads a header from the front of `bytes`, which also hold the payload. The checksum is not verified.
    ///
    /// # Errors
    /// Too few bytes, or an impossible length.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Header, ParseError> {
        let Some(fixed) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(ParseError::Truncated { got: bytes.len(), need: HEADER_LEN });
        };
        let header = Header {
            source_port: be16(fixed, 0),
            destination_port: be16(fixed, 2),
            len: be16(fixed, 4),
            checksum: be16(fixed, 6),
        };
        let len = usize::from(header.len);
        if len < HEADER_LEN {
            return Err(ParseError::Length(header.len));
        }
        if len > bytes.len() {
            return Err(ParseError::Truncated { got: bytes.len(), need: len });
        }
        Ok(header)
    }

    /// Writes the header, checksum as it is, to the front of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than 8 bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        out[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        out[4..6].copy_from_slice(&self.len.to_be_bytes());
        out[6..8].copy_from_slice(&self.checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parses_and_emits() {
        let bytes = [0x00, 0x35, 0xc0, 0x00, 0x00, 0x0a, 0xab, 0xcd, 1, 2, 99];
        let header = Header::parse(&bytes).unwrap();
        assert_eq!(header, Header { source_port: 53, destination_port: 49152, len: 10, checksum: 0xabcd });
        let mut out = [0; 8];
        header.emit(&mut out);
        assert_eq!(out, bytes[..8]);
        assert_eq!(Header::parse(&bytes[..9]), Err(ParseError::Truncated { got: 9, need: 10 }));
        assert_eq!(Header::parse(&bytes[..7]), Err(ParseError::Truncated { got: 7, need: 8 }));
        assert_eq!(Header::parse(&[0, 1, 0, 2, 0, 7, 0, 0]), Err(ParseError::Length(7)));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_err(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert!(usize::from(header.len) <= bytes.len());
            }
        }
    }
}
