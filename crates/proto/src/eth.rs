//! Ethernet: the link stage of every path.

mod module;
mod stage;

pub use module::EthModule;
pub use stage::EthStage;

use scoutline_path::{Checksum, Facts};

/// The attribute (`Name::Other`) by which a module above ETH says what its frames carry; without it IPv4.
pub const ETHERTYPE: &str = "ethertype";
/// The value of that attribute for a path that carries both versions of IP.
pub const ANY_IP: u64 = 0;

/// Moves on what counts from the first byte of the frame when `len` bytes of header come in front.
#[inline]
pub(crate) fn grow_offsets(facts: &mut Facts, len: usize) {
    if let Checksum::Partial { start, .. } = &mut facts.checksum {
        *start += len as u16;
    }
    if let Some(segmentation) = &mut facts.segmentation {
        segmentation.header_len += len as u16;
    }
}

/// Where the frame of a message that moves inward starts in its block: the link stage notes it in
/// `stream_position`, which means nothing else until a transport stage sets it. Listen, reset and ICMP stages go
/// back there.
#[inline]
pub(crate) fn frame_start(facts: &Facts) -> u32 {
    facts.stream_position as u32
}

#[cfg(test)]
mod tests;
