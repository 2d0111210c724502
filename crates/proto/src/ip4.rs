//! IPv4 (RFC 791, RFC 1122 §3): validation, options skipped, fragments both ways.

mod fragment;
mod module;
mod reassembly;
mod stage;

pub use module::{Ip4Module, REASSEMBLY};
pub use reassembly::{Expired, Fragmented, Key, Limits, Offered, Reassembler};
pub use stage::{Ip4Stage, ReassemblyStage};

use scoutline_path::{DropReason, Facts, SegmentationKind};
use scoutline_wire::ipv4::{self, Header, ParseError};

use crate::Interface;

/// Hops that our packets may take; RFC 1340's recommendation and Linux' default.
pub const TTL: u8 = 64;

/// Reads and checks the header at the front of `bytes`: by itself, and whether it concerns us.
///
/// # Errors
/// Why it is to be dropped.
pub(crate) fn validate(interface: &Interface, bytes: &[u8]) -> Result<Header, DropReason> {
    let header = Header::parse(bytes).map_err(reason)?;
    // RFC 1122 §3.2.1.2: verify the checksum, discard in silence.
    if !ipv4::checksum_is_valid(&bytes[..usize::from(header.header_len)]) {
        return Err(DropReason::BadChecksum);
    }
    if !interface.accepts(header.destination.into()) {
        return Err(DropReason::NotForUs);
    }
    // RFC 1122 §3.2.1.3: discard in silence what has an invalid source.
    if !interface.is_valid_source(header.source.into()) {
        return Err(DropReason::Malformed);
    }
    if header.source.octets()[0] == 0 && !may_come_from_nowhere(&header) {
        return Err(DropReason::Malformed);
    }
    // RFC 1122 §3.2.1.7: what is for us is not discarded for its TTL, be that 0.
    Ok(header)
}

/// RFC 1122 §3.2.1.3 (a): who has no address yet asks everybody on the link (RFC 2131 §4.1), groups of the link, and
/// says by IGMP of which groups it is (RFC 3376 §4.2.13). Nobody else has a source of 0.0.0.0/8.
fn may_come_from_nowhere(header: &Header) -> bool {
    let destination = header.destination;
    destination.is_broadcast()
        || destination.octets()[..3] == [224, 0, 0]
        || destination.is_multicast() && header.protocol == scoutline_wire::igmp::PROTOCOL
}

/// The reason for a header that does not parse.
pub(crate) fn reason(error: ParseError) -> DropReason {
    match error {
        ParseError::Truncated { .. } | ParseError::Cut { .. } => DropReason::Truncated,
        _ => DropReason::Malformed,
    }
}

/// What stands in the total-length field of a datagram of `len` bytes; `None` for one that cannot be.
///
/// A TCP super-segment beyond 16 bits of length has 0 there, and is as long as its frame: so Linux has it since 6.3
/// ("BIG TCP", include/net/ip.h `iph_totlen`). It never leaves the machine so: the device cuts it.
#[inline]
pub(crate) fn total_len_field(len: usize, facts: &Facts) -> Option<u16> {
    let cut = facts.segmentation.is_some_and(|how| how.kind == SegmentationKind::Tcp4);
    u16::try_from(len).ok().or(cut.then_some(0))
}

#[cfg(test)]
mod tests;
