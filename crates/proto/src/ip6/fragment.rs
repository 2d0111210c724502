//! Fragmentation of what is larger than the path carries (RFC 8200 §4.5): only its sender does that.

use scoutline_path::{Body, Burst, Checksum, Facts, Head, Message};
use scoutline_ring::Block;
use scoutline_wire::ipv6::{FRAGMENT, FRAGMENT_LEN, Fragment, HEADER_LEN, Header};

/// The packet exceeds what IP can carry.
pub(super) struct TooLong;

/// Cuts `message` (transport header in `head`, data in a block body) into fragments that fit `mtu` and pushes them
/// with `facts`. `header` is that of the whole.
pub(super) fn cut(
    message: &Message,
    header: &Header,
    facts: &Facts,
    (mtu, identification): (u16, u32),
    into: &mut Burst,
) -> Result<(), TooLong> {
    let mut payload = message.head.as_slice().to_vec();
    if let Body::Block { .. } = message.body {
        payload.extend_from_slice(message.bytes());
    }
    // Pieces but the last are multiples of eight bytes.
    let piece_len = usize::from(mtu).saturating_sub(HEADER_LEN + FRAGMENT_LEN) & !7;
    if piece_len == 0 || payload.len() > usize::from(u16::MAX) {
        return Err(TooLong);
    }
    let count = payload.len().div_ceil(piece_len);
    for (index, piece) in payload.chunks(piece_len).enumerate() {
        let fragment = Fragment {
            next_header: header.next_header,
            offset: (index * piece_len) as u16,
            more: index + 1 < count,
            identification,
        };
        let header =
            Header { payload_len: (piece.len() + FRAGMENT_LEN) as u16, next_header: FRAGMENT, ..*header };
        let block = Block::from_bytes(piece.into());
        let body = Body::block(block, 0..piece.len() as u32);
        let facts = Facts { checksum: Checksum::Complete, segmentation: None, ..facts.clone() };
        let mut packet = Message { head: Head::default(), body, facts };
        fragment.emit(packet.head.prepend(FRAGMENT_LEN));
        header.emit(packet.head.prepend(HEADER_LEN));
        into.push(packet);
    }
    Ok(())
}
