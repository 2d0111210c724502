//! IGMP (RFC 3376; version 2: RFC 2236; version 1: RFC 1112 appendix I).

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::{be16, checksum};

/// IP protocol number.
pub const PROTOCOL: u8 = 2;
/// Type: membership query, of any version.
pub const QUERY: u8 = 0x11;
/// Type: membership report, version 1.
pub const REPORT_V1: u8 = 0x12;
/// Type: membership report, version 2.
pub const REPORT_V2: u8 = 0x16;
/// Type: leave group, version 2.
pub const LEAVE: u8 = 0x17;
/// Type: membership report, version 3.
pub const REPORT_V3: u8 = 0x22;
/// Length of the messages of versions 1 and 2, and of the fixed part of a report of version 3.
pub const HEADER_LEN: usize = 8;
/// Length of a query of version 3 without sources.
pub const QUERY_V3_LEN: usize = 12;
/// Where reports of version 3 go (RFC 3376 §4.2.14).
pub const ALL_ROUTERS_V3: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
/// Where hosts of version 2 say that they leave (RFC 2236 §3).
pub const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);

/// What a query that says nothing of it is to be answered within: version 1 (RFC 3376 §7.2.1).
const WITHIN_V1: Duration = Duration::from_secs(10);

/// A message that hosts listen to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A router asks.
    Query {
        /// About which group; `0.0.0.0`: all.
        group: Ipv4Addr,
        /// And which sources; none: all.
        sources: Vec<Ipv4Addr>,
        /// By when it wants an answer.
        within: Duration,
        /// Querier's robustness variable; 0: not said.
        robustness: u8,
        /// Of the router: 1, 2 or 3.
        version: u8,
    },
    /// A host of version 1 or 2 is in a group.
    Report(Ipv4Addr),
}

/// Why bytes are no message for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Shorter than they have to be.
    #[error("{got} bytes cannot hold an IGMP message of {need}")]
    Truncated {
        /// Bytes there were.
        got: usize,
        /// Bytes there should be.
        need: usize,
    },
    /// The checksum is wrong.
    #[error("the IGMP checksum is wrong")]
    Checksum,
    /// A type that concerns routers only, or none.
    #[error("type {0:#x} is not for hosts")]
    Kind(u8),
}

impl Message {
    /// Reads a message and verifies its checksum, which covers all of `bytes`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Message, ParseError> {
        let need = |need: usize| ParseError::Truncated { got: bytes.len(), need };
        let fixed = bytes.first_chunk::<HEADER_LEN>().ok_or(need(HEADER_LEN))?;
        if !checksum::is_valid(checksum::sum(bytes)) {
            return Err(ParseError::Checksum);
        }
        let group = Ipv4Addr::new(fixed[4], fixed[5], fixed[6], fixed[7]);
        match fixed[0] {
            REPORT_V1 | REPORT_V2 => return Ok(Message::Report(group)),
            QUERY => {}
            kind => return Err(ParseError::Kind(kind)),
        }
        // RFC 3376 §7.1: versions are told by length and code.
        if bytes.len() < QUERY_V3_LEN {
            let version = if fixed[1] == 0 { 1 } else { 2 };
            let within =
                if fixed[1] == 0 { WITHIN_V1 } else { Duration::from_millis(100) * u32::from(fixed[1]) };
            return Ok(Message::Query { group, sources: Vec::new(), within, robustness: 0, version });
        }
        let count = usize::from(be16(bytes, 10));
        let listed =
            bytes.get(QUERY_V3_LEN..QUERY_V3_LEN + 4 * count).ok_or(need(QUERY_V3_LEN + 4 * count))?;
        let (listed, _) = listed.as_chunks::<4>();
        let sources = listed.iter().map(|&octets| Ipv4Addr::from(octets)).collect();
        let within = Duration::from_millis(100) * code(fixed[1]);
        Ok(Message::Query { group, sources, within, robustness: bytes[8] & 7, version: 3 })
    }
}

/// RFC 3376 §4.1.1, §4.1.7: small numbers as they are, larger ones with an exponent.
fn code(code: u8) -> u32 {
    let code = u32::from(code);
    if code < 128 { code } else { (code & 0xf | 0x10) << ((code >> 4 & 7) + 3) }
}

/// Writes type and checksum to the front of `message`, whose other fields are in place.
///
/// # Panics
/// When `message` is shorter than 8 bytes.
pub fn emit(kind: u8, message: &mut [u8]) {
    message[0] = kind;
    message[2..4].fill(0);
    let sum = checksum::finish(checksum::sum(message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(bytes: &[u8]) -> Vec<u8> {
        let mut message = bytes.to_vec();
        emit(bytes[0], &mut message);
        message
    }

    #[test]
    fn queries_of_three_versions() {
        let group = Ipv4Addr::new(239, 1, 2, 3);
        let parsed = |bytes: &[u8]| Message::parse(&message(bytes)).unwrap();
        let query = |within, robustness, version, sources: &[Ipv4Addr]| Message::Query {
            group,
            sources: sources.to_vec(),
            within: Duration::from_millis(within),
            robustness,
            version,
        };
        assert_eq!(parsed(&[0x11, 0, 0, 0, 239, 1, 2, 3]), query(10_000, 0, 1, &[]));
        assert_eq!(parsed(&[0x11, 20, 0, 0, 239, 1, 2, 3]), query(2_000, 0, 2, &[]));
        let third = [0x11, 0x81, 0, 0, 239, 1, 2, 3, 0x0b, 125, 0, 1, 192, 0, 2, 1];
        assert_eq!(parsed(&third), query(13_600, 3, 3, &[Ipv4Addr::new(192, 0, 2, 1)]));
        assert_eq!(
            Message::parse(&message(&third[..12])),
            Err(ParseError::Truncated { got: 12, need: 16 }),
            "its source is missing"
        );
        assert_eq!(parsed(&[0x16, 0, 0, 0, 239, 1, 2, 3]), Message::Report(group));
        let mut bad = message(&third);
        bad[9] ^= 1;
        assert_eq!(Message::parse(&bad), Err(ParseError::Checksum));
        assert_eq!(Message::parse(&message(&[0x22; 8])), Err(ParseError::Kind(0x22)));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_err(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Message::parse(&bytes);
        }
    }
}
