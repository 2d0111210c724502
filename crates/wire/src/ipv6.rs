//! The IPv6 header (RFC 8200 §3) and the extension headers behind it (§4), walked within limits.
//!
//! ```text
//!  | version| traffic class | flow label                           |
//!  | payload length                 | next header | hop limit      |
//!  | source (16 bytes)                                             |
//!  | destination (16 bytes)                                        |
//! ```
//! Jumbograms (RFC 2675) are no part of it: their option is unknown here, as RFC 8200 has it for any other.

use std::net::Ipv6Addr;

use crate::{be16, ipv4};

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 40;
/// Every link carries packets of this length (RFC 8200 §5).
pub const MIN_MTU: u16 = 1280;
/// Length of a fragment header, in bytes.
pub const FRAGMENT_LEN: usize = 8;
/// Where the next header's number stands in the header.
pub const NEXT_HEADER_AT: usize = 6;
/// Where the hop limit stands in the header.
pub const HOP_LIMIT_AT: usize = 7;

/// Next header: hop-by-hop options.
pub const HOP_BY_HOP: u8 = 0;
/// Next header: routing.
pub const ROUTING: u8 = 43;
/// Next header: fragment.
pub const FRAGMENT: u8 = 44;
/// Next header: ICMPv6.
pub const PROTOCOL_ICMPV6: u8 = 58;
/// Next header: nothing follows.
pub const NO_NEXT_HEADER: u8 = 59;
/// Next header: destination options.
pub const DESTINATION_OPTIONS: u8 = 60;

/// Extension headers of one packet; RFC 8504 §5.3 lets a host set a limit. Each kind occurs once or twice (RFC 8200
/// §4.1), so more are made for nothing good.
pub const MAX_EXTENSIONS: usize = 8;
/// Bytes of extension headers of one packet.
pub const MAX_EXTENSIONS_LEN: usize = 1024;
/// Options of one header, padding apart: RFC 8504 §5.3's default.
pub const MAX_OPTIONS: usize = 8;

const OPTION_PAD1: u8 = 0;
const OPTION_PADN: u8 = 1;
/// RFC 2711: in front of MLD messages.
const OPTION_ROUTER_ALERT: u8 = 5;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// DSCP and ECN, as IPv4's type of service.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// Bytes behind this header.
    pub payload_len: u16,
    /// What stands there.
    pub next_header: u8,
    /// Hops left.
    pub hop_limit: u8,
    /// From whom.
    pub source: Ipv6Addr,
    /// To whom.
    pub destination: Ipv6Addr,
}

/// Why bytes are no IPv6 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Shorter than the header.
    #[error("{got} bytes cannot hold an IPv6 header of 40")]
    Truncated {
        /// Bytes there were.
        got: usize,
    },
    /// Not version 6.
    #[error("version {0} is not 6")]
    Version(u8),
    /// The packet is longer than the bytes that came.
    #[error("a packet of {need} bytes exceeds the {got} bytes that came")]
    Cut {
        /// Bytes there were.
        got: usize,
        /// Bytes of header and payload.
        need: usize,
    },
}

impl Header {
    /// Reads a header from the front of `bytes`, which also hold its payload (and may hold link padding).
    ///
    /// # Errors
    /// A wrong version, or too few bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Header, ParseError> {
        let header = Header::parse_header(bytes)?;
        if header.total_len() > bytes.len() {
            return Err(ParseError::Cut { got: bytes.len(), need: header.total_len() });
        }
        Ok(header)
    }

    /// Reads a header whose payload may be cut off, as in an ICMP error.
    ///
    /// # Errors
    /// As `parse`, the length of the payload excepted.
    #[inline]
    pub fn parse_header(bytes: &[u8]) -> Result<Header, ParseError> {
        let Some(fixed) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(ParseError::Truncated { got: bytes.len() });
        };
        if fixed[0] >> 4 != 6 {
            return Err(ParseError::Version(fixed[0] >> 4));
        }
        let first = u32::from_be_bytes([fixed[0], fixed[1], fixed[2], fixed[3]]);
        Ok(Header {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_len: be16(fixed, 4),
            next_header: fixed[NEXT_HEADER_AT],
            hop_limit: fixed[HOP_LIMIT_AT],
            source: address_at(fixed, 8),
            destination: address_at(fixed, 24),
        })
    }

    /// Bytes of header and payload.
    #[inline]
    pub const fn total_len(&self) -> usize {
        HEADER_LEN + self.payload_len as usize
    }

    /// Writes the header to the front of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than 40 bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..HEADER_LEN];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        out[0..4].copy_from_slice(&first.to_be_bytes());
        out[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        out[NEXT_HEADER_AT] = self.next_header;
        out[HOP_LIMIT_AT] = self.hop_limit;
        out[8..24].copy_from_slice(&self.source.octets());
        out[24..40].copy_from_slice(&self.destination.octets());
    }
}

/// A fragment header (RFC 8200 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// What the fragmentable part begins with.
    pub next_header: u8,
    /// Where this piece stands in it, in bytes.
    pub offset: u16,
    /// This is not the last.
    pub more: bool,
    /// Which packet it belongs to.
    pub identification: u32,
}

impl Fragment {
    /// Reads a header from the front of `bytes`; `None` when there are fewer than 8.
    pub fn parse(bytes: &[u8]) -> Option<Fragment> {
        let fixed = bytes.first_chunk::<FRAGMENT_LEN>()?;
        let offset = be16(fixed, 2);
        Some(Fragment {
            next_header: fixed[0],
            offset: offset & !7,
            more: offset & 1 != 0,
            identification: u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]),
        })
    }

    /// Writes the header to the front of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than 8 bytes.
    pub fn emit(&self, out: &mut [u8]) {
        out[0] = self.next_header;
        out[1] = 0;
        out[2..4].copy_from_slice(&(self.offset & !7 | u16::from(self.more)).to_be_bytes());
        out[4..8].copy_from_slice(&self.identification.to_be_bytes());
    }

    /// True for a whole packet that carries a fragment header all the same (RFC 6946).
    pub const fn is_atomic(&self) -> bool {
        self.offset == 0 && !self.more
    }
}

/// Where the extension headers of a packet lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    /// The number of the header that is no extension header of ours: a transport's, ICMPv6's, or an unknown one.
    pub protocol: u8,
    /// Where it stands, from the first byte of the IPv6 header.
    pub offset: usize,
    /// Where the number itself stands: what an error about an unknown one points at.
    pub number_at: usize,
    /// The fragment header, if there is one. What follows a piece other than the first is no header.
    pub fragment: Option<Fragment>,
}

/// Why a packet's extension headers are not walked to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtensionError {
    /// A header reaches beyond the packet.
    #[error("an extension header reaches beyond the packet")]
    Truncated,
    /// More headers, bytes or options than the limits.
    #[error("more extension headers or options than anybody needs")]
    Limit,
    /// A malformed option or second fragment header: dropped in silence.
    #[error("a malformed extension header")]
    Malformed,
    /// To be reported as a parameter problem with this code, which points at this byte of the packet. With
    /// `even_to_groups` also when it was sent to a group.
    #[error("parameter problem {code} at {pointer}")]
    Problem {
        /// The code of the message (RFC 4443 §3.4).
        code: u8,
        /// Where the trouble is, from the first byte of the IPv6 header.
        pointer: u32,
        /// RFC 8200 §4.2: an option of kind 10.
        even_to_groups: bool,
    },
    /// An option that asks to be dropped in silence when it is unknown.
    #[error("an unknown option asks for the packet to be dropped")]
    Discard,
}

/// Code of a parameter problem: an erroneous header field.
pub const PROBLEM_FIELD: u8 = 0;
/// Code of a parameter problem: an unknown next header.
pub const PROBLEM_NEXT_HEADER: u8 = 1;
/// Code of a parameter problem: an unknown option.
pub const PROBLEM_OPTION: u8 = 2;

/// Walks the extension headers of `packet`, which begins with the IPv6 header and ends with its payload (RFC 8200
/// §4). Stops behind a fragment header: what is fragmented is looked at when it is whole.
///
/// # Errors
/// Why the packet is to be dropped, and what its sender is told.
#[inline]
pub fn walk(packet: &[u8]) -> Result<Upper, ExtensionError> {
    let next = *packet.get(NEXT_HEADER_AT).ok_or(ExtensionError::Truncated)?;
    if matches!(next, ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_UDP | PROTOCOL_ICMPV6) {
        let upper = Upper { protocol: next, offset: HEADER_LEN, number_at: NEXT_HEADER_AT, fragment: None };
        return Ok(upper);
    }
    walk_extensions(packet, next, true)
}

/// The same without a look at what options and routing headers ask for: what a packet is, not whether it is in order.
pub fn skip(packet: &[u8]) -> Result<Upper, ExtensionError> {
    let next = *packet.get(NEXT_HEADER_AT).ok_or(ExtensionError::Truncated)?;
    walk_extensions(packet, next, false)
}

fn walk_extensions(packet: &[u8], mut next: u8, strictly: bool) -> Result<Upper, ExtensionError> {
    let (mut offset, mut number_at) = (HEADER_LEN, NEXT_HEADER_AT);
    for count in 0.. {
        let is_first = count == 0;
        let len = match next {
            FRAGMENT => {
                let header =
                    packet.get(offset..).and_then(Fragment::parse).ok_or(ExtensionError::Truncated)?;
                let upper = Upper {
                    protocol: header.next_header,
                    offset: offset + FRAGMENT_LEN,
                    number_at: offset,
                    fragment: Some(header),
                };
                return Ok(upper);
            }
            // RFC 8200 §4.1: directly behind the IPv6 header or nowhere.
            HOP_BY_HOP if !is_first && strictly => {
                return Err(problem(PROBLEM_NEXT_HEADER, number_at));
            }
            HOP_BY_HOP | DESTINATION_OPTIONS | ROUTING => {
                let rest = packet.get(offset..offset + 2).ok_or(ExtensionError::Truncated)?;
                8 * (usize::from(rest[1]) + 1)
            }
            _ => return Ok(Upper { protocol: next, offset, number_at, fragment: None }),
        };
        let header = packet.get(offset..offset + len).ok_or(ExtensionError::Truncated)?;
        if count >= MAX_EXTENSIONS || offset + len - HEADER_LEN > MAX_EXTENSIONS_LEN {
            return Err(ExtensionError::Limit);
        }
        if !strictly {
            // It is only passed over.
        } else if next == ROUTING {
            // RFC 8200 §4.4: of a type that we do not know, which all are (RFC 5095 for type 0), with segments left.
            if header[3] != 0 {
                return Err(problem(PROBLEM_FIELD, offset + 2));
            }
        } else {
            look_at_options(header, offset)?;
        }
        number_at = offset;
        next = header[0];
        offset += len;
    }
    Err(ExtensionError::Limit)
}

fn problem(code: u8, pointer: usize) -> ExtensionError {
    ExtensionError::Problem { code, pointer: pointer as u32, even_to_groups: false }
}

/// RFC 8200 §4.2. `at` is where the header stands in the packet.
fn look_at_options(header: &[u8], at: usize) -> Result<(), ExtensionError> {
    let (mut index, mut count) = (2, 0);
    while index < header.len() {
        let kind = header[index];
        if kind == OPTION_PAD1 {
            index += 1;
            continue;
        }
        let len = *header.get(index + 1).ok_or(ExtensionError::Malformed)?;
        let end = index + 2 + usize::from(len);
        if end > header.len() {
            return Err(ExtensionError::Malformed);
        }
        if kind != OPTION_PADN {
            count += 1;
            if count > MAX_OPTIONS {
                return Err(ExtensionError::Limit);
            }
            let known = kind == OPTION_ROUTER_ALERT;
            let pointer = (at + index) as u32;
            match kind >> 6 {
                _ if known => {}
                0 => {}
                1 => return Err(ExtensionError::Discard),
                action => {
                    let even_to_groups = action == 2;
                    return Err(ExtensionError::Problem { code: PROBLEM_OPTION, pointer, even_to_groups });
                }
            }
        }
        index = end;
    }
    Ok(())
}

/// The value of the router alert (RFC 2711) in the hop-by-hop options of `packet`, if there is one.
pub fn router_alert(packet: &[u8]) -> Option<u16> {
    if *packet.get(NEXT_HEADER_AT)? != HOP_BY_HOP {
        return None;
    }
    let len = 8 * (usize::from(*packet.get(HEADER_LEN + 1)?) + 1);
    let mut options = packet.get(HEADER_LEN + 2..HEADER_LEN + len)?;
    loop {
        match options {
            [OPTION_PAD1, rest @ ..] => options = rest,
            [OPTION_ROUTER_ALERT, 2, high, low, ..] => return Some(u16::from_be_bytes([*high, *low])),
            [_, len, rest @ ..] => options = rest.get(usize::from(*len)..)?,
            _ => return None,
        }
    }
}

/// The address in `bytes` at `at`.
#[inline]
pub(crate) fn address_at(bytes: &[u8], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[at..at + 16]);
    Ipv6Addr::from(octets)
}

#[cfg(test)]
mod tests;
