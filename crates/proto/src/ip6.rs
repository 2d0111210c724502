//! IPv6 (RFC 8200): validation, extension headers within limits, fragments both ways, and what a host on one link
//! knows about addresses and routers (RFC 4861, RFC 4862).
//!
//! Left out on purpose: jumbograms, source routes (all routing headers with segments left are refused, RFC 5095),
//! flow labels of our own (0 is sent), AH and ESP.

mod dual;
mod fragment;
mod host;
mod identification;
mod module;
mod reassembly;
mod stage;

pub use dual::DualStage;
pub use host::{AddressState, Host6, Host6Config, OwnAddress, Task};
pub use module::{DUAL, Ip6Module, REASSEMBLY};
pub use reassembly::Piece;
pub use stage::{Ip6Stage, ReassemblyStage};

use scoutline_base::Address;
use scoutline_path::DropReason;
use scoutline_wire::ipv6::{self, ExtensionError, Header, ParseError, Upper};

use crate::Interface;

/// Hops that our packets may take until a router says otherwise: Linux' default.
pub const HOP_LIMIT: u8 = 64;
/// By how much its header is longer than IPv4's.
pub(crate) const LONGER: u16 = (ipv6::HEADER_LEN - scoutline_wire::ipv4::MIN_HEADER_LEN) as u16;

/// Reads and checks the header at the front of `bytes`: by itself, and whether it concerns us.
///
/// # Errors
/// Why it is to be dropped.
#[inline]
pub(crate) fn validate(interface: &Interface, bytes: &[u8]) -> Result<Header, DropReason> {
    let header = Header::parse(bytes).map_err(reason)?;
    let (source, destination) = (Address::from(header.source), Address::from(header.destination));
    // RFC 4038 §4.2, RFC 4291 §2.5.5.2: what stands for an IPv4 address never comes off a wire.
    if source.is_v4() || destination.is_v4() {
        return Err(DropReason::Malformed);
    }
    if !interface.accepts(destination) {
        return Err(DropReason::NotForUs);
    }
    if !interface.is_valid_source(source) {
        return Err(DropReason::Malformed);
    }
    Ok(header)
}

/// The reason for a header that does not parse.
pub(crate) fn reason(error: ParseError) -> DropReason {
    match error {
        ParseError::Truncated { .. } | ParseError::Cut { .. } => DropReason::Truncated,
        _ => DropReason::Malformed,
    }
}

/// The reason for extension headers that cannot be walked.
pub(crate) fn extension_reason(error: ExtensionError) -> DropReason {
    match error {
        ExtensionError::Truncated => DropReason::Truncated,
        ExtensionError::Problem { code: ipv6::PROBLEM_OPTION, .. } => DropReason::UnknownProtocol,
        _ => DropReason::Malformed,
    }
}

/// The extension headers of a whole packet, an atomic fragment's included (RFC 6946): `None` for a real fragment.
#[inline]
pub(crate) fn whole(upper: &Upper) -> bool {
    upper.fragment.is_none()
}

#[cfg(test)]
mod tests;
