//! Packets that are passed on in pieces: super-segments cut to what a link is given at a time, and fragments.

use scoutline_path::{
    Body, Burst, Checksum, DropReason, Facts, Head, Message, Segmentation, SegmentationKind,
};
use scoutline_ring::Block;
use scoutline_wire::{checksum, ipv4, ipv6, udp};

use super::packet::Packet;

/// Cuts a super-segment into super-segments of at most `packets` packets each, as Linux's `tcp_gso_segment` and
/// `__udp_gso_segment` do. False, and nothing pushed, for what is none.
pub(super) fn segments(
    bytes: &[u8],
    packet: &Packet,
    how: Segmentation,
    packets: usize,
    facts: &Facts,
    into: &mut Burst,
) -> bool {
    let v4 = packet.source.is_v4();
    let expected = match how.kind {
        SegmentationKind::Tcp4 if v4 => ipv4::PROTOCOL_TCP,
        SegmentationKind::Tcp6 if !v4 => ipv4::PROTOCOL_TCP,
        SegmentationKind::Udp => ipv4::PROTOCOL_UDP,
        _ => return false,
    };
    if packet.transport.is_none() || packet.protocol != expected || how.size == 0 {
        return false;
    }
    let (headers, payload) = bytes.split_at(packet.headers_len());
    let size = packets.max(1) * usize::from(how.size);
    let count = payload.len().div_ceil(size);
    for (index, chunk) in payload.chunks(size).enumerate() {
        let mut piece = [headers, chunk].concat();
        let len = piece.len();
        let (network, upper) = piece.split_at_mut(packet.upper_at);
        if v4 {
            let first = u16::from_be_bytes([network[4], network[5]]);
            let identification = first.wrapping_add((index * packets.max(1)) as u16);
            set_lengths(network, len as u16, identification, None);
        } else {
            network[4..6].copy_from_slice(&((len - ipv6::HEADER_LEN) as u16).to_be_bytes());
        }
        if packet.protocol == ipv4::PROTOCOL_TCP {
            move_tcp(upper, index * size, index + 1 == count);
        } else {
            upper[4..6].copy_from_slice(&((udp::HEADER_LEN + chunk.len()) as u16).to_be_bytes());
        }
        let checksum = packet.make_partial(&mut piece);
        let whole = Segmentation { header_len: headers.len() as u16, ..how };
        let segmentation = (chunk.len() > usize::from(how.size)).then_some(whole);
        into.push(message(piece, Facts { checksum, segmentation, ..facts.clone() }));
    }
    true
}

/// Makes a TCP header true for the piece that begins `offset` bytes into the super-segment.
fn move_tcp(header: &mut [u8], offset: usize, is_last: bool) {
    const SEQUENCE_AT: usize = 4;
    const FLAGS_AT: usize = 13;
    const FIN_PSH: u8 = 0x09;
    const CWR: u8 = 0x80;
    let [a, b, c, d] = [0, 1, 2, 3].map(|at| header[SEQUENCE_AT + at]);
    let sequence = u32::from_be_bytes([a, b, c, d]).wrapping_add(offset as u32);
    header[SEQUENCE_AT..SEQUENCE_AT + 4].copy_from_slice(&sequence.to_be_bytes());
    if !is_last {
        header[FLAGS_AT] &= !FIN_PSH;
    }
    if offset > 0 {
        header[FLAGS_AT] &= !CWR; // RFC 3168 §6.1.2: once per window
    }
}

/// Cuts an IPv4 packet without options into fragments that fit `mtu` (RFC 791 §3.2); it may be a fragment itself.
pub(super) fn fragments(packet: &[u8], mtu: u16, facts: &Facts, into: &mut Burst) -> Result<(), DropReason> {
    let header = ipv4::Header::parse(packet).map_err(crate::ip4::reason)?;
    let piece_len = (usize::from(mtu).saturating_sub(ipv4::MIN_HEADER_LEN) & !7).max(8);
    let payload = &packet[ipv4::MIN_HEADER_LEN..];
    let count = payload.len().div_ceil(piece_len);
    for (index, chunk) in payload.chunks(piece_len).enumerate() {
        let mut piece = [&packet[..ipv4::MIN_HEADER_LEN], chunk].concat();
        let offset = header.fragment_offset + (index * piece_len) as u16;
        let more = header.more_fragments || index + 1 < count;
        let total_len = piece.len() as u16;
        set_lengths(
            &mut piece[..ipv4::MIN_HEADER_LEN],
            total_len,
            header.identification,
            Some((offset, more)),
        );
        into.push(message(
            piece,
            Facts { checksum: Checksum::Complete, segmentation: None, ..facts.clone() },
        ));
    }
    Ok(())
}

/// Makes an IPv4 header true for a piece.
pub(super) fn set_lengths(
    header: &mut [u8],
    total_len: u16,
    identification: u16,
    fragment: Option<(u16, bool)>,
) {
    header[2..4].copy_from_slice(&total_len.to_be_bytes());
    header[4..6].copy_from_slice(&identification.to_be_bytes());
    if let Some((offset, more)) = fragment {
        header[6..8].copy_from_slice(&((offset / 8) | (u16::from(more) << 13)).to_be_bytes());
    }
    header[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

pub(super) fn message(packet: Vec<u8>, facts: Facts) -> Message {
    let len = packet.len() as u32;
    let body = Body::block(Block::from_bytes(packet.into_boxed_slice()), 0..len);
    Message { head: Head::default(), body, facts }
}
