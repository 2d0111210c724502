//! Ethernet: the link stage of every path.

mod module;
mod stage;

pub use module::EthModule;
pub use stage::EthStage;

use scoutline_path::{Checksum, Facts, Message};
use scoutline_ring::Block;
use scoutline_wire::ethernet;

use crate::Interface;

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

/// Puts the Ethernet header in front of a message that leaves, and moves on what counts from the frame's start.
#[inline]
pub(crate) fn encapsulate(
    message: &mut Message,
    destination: ethernet::Address,
    source: ethernet::Address,
    ethertype: u16,
) {
    ethernet::Header { destination, source, ethertype }.emit(message.head.prepend(ethernet::HEADER_LEN));
    grow_offsets(&mut message.facts, ethernet::HEADER_LEN);
}

/// A frame as if a packet that came in pieces, the last of them in `last`, had come whole. `emit` writes its network
/// header, of `header_len` bytes.
pub(crate) fn rebuilt(
    interface: &Interface,
    last: &Message,
    (ethertype, header_len): (u16, usize),
    emit: impl FnOnce(&mut [u8]),
    payload: &[u8],
) -> Message {
    let headers = ethernet::HEADER_LEN + header_len;
    let mut frame = Vec::with_capacity(headers + payload.len());
    frame.resize(headers, 0);
    let (destination, source) = (interface.link_address.get(), last.facts.link_source);
    ethernet::Header { destination, source, ethertype }.emit(&mut frame);
    emit(&mut frame[ethernet::HEADER_LEN..]);
    frame.extend_from_slice(payload);
    let facts = Facts {
        device: last.facts.device,
        arrival: last.facts.arrival,
        checksum: Checksum::Unverified,
        ..Facts::default()
    };
    let len = frame.len() as u32;
    Message::received(Block::from_bytes(frame.into_boxed_slice()), 0..len, facts)
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
