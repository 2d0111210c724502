//! Fragmentation of what is larger than the link carries (RFC 791 §3.2).

use scoutline_path::{Body, Burst, Checksum, Facts, Head, Message};
use scoutline_ring::Block;
use scoutline_wire::ipv4::{Header, MIN_HEADER_LEN};

/// The datagram exceeds what IP can carry, or the link carries less than a header and eight bytes.
pub(super) struct TooLong;

/// Cuts `message` (transport header in `head`, data in a block body) into fragments that fit `mtu` and pushes
/// them with `facts`. `header` is that of the whole; the pieces carry its identification.
pub(super) fn cut(
    message: &Message,
    header: &Header,
    facts: &Facts,
    mtu: u16,
    into: &mut Burst,
) -> Result<(), TooLong> {
    let mut payload = message.head.as_slice().to_vec();
    if let Body::Block { .. } = message.body {
        payload.extend_from_slice(message.bytes());
    }
    // Pieces but the last are multiples of eight bytes.
    let piece_len = usize::from(mtu).saturating_sub(MIN_HEADER_LEN) & !7;
    if piece_len == 0 || payload.len() + MIN_HEADER_LEN > usize::from(u16::MAX) {
        return Err(TooLong);
    }
    let count = payload.len().div_ceil(piece_len);
    for (index, piece) in payload.chunks(piece_len).enumerate() {
        let header = Header {
            total_len: (piece.len() + MIN_HEADER_LEN) as u16,
            dont_fragment: false,
            more_fragments: index + 1 < count,
            fragment_offset: (index * piece_len) as u16,
            ..*header
        };
        let block = Block::from_bytes(piece.into());
        let body = Body::block(block, 0..piece.len() as u32);
        let facts = Facts { checksum: Checksum::Complete, segmentation: None, ..facts.clone() };
        let mut fragment = Message { head: Head::default(), body, facts };
        header.emit(fragment.head.prepend(MIN_HEADER_LEN));
        into.push(fragment);
    }
    Ok(())
}
