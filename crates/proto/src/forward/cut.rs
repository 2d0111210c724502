//! Packets that are passed on in pieces: super-segments cut to what a link is given at a time, and fragments.

use scoutline_path::{Body, Burst, Checksum, Facts, Head, Message, Segmentation, SegmentationKind};
use scoutline_ring::Block;
use scoutline_wire::{checksum, ipv4, tcp, udp};

/// Where the transport checksum stands, and how long the transport header is; `None` for other protocols, and when the
/// packet ends before.
pub(super) fn transport(packet: &[u8], header: &ipv4::Header) -> Option<(u16, usize)> {
    let payload = &packet[usize::from(header.header_len)..];
    match header.protocol {
        ipv4::PROTOCOL_TCP => {
            let len = usize::from(*payload.get(12)? >> 4) * 4;
            (len >= 20 && len <= payload.len()).then_some((tcp::CHECKSUM_OFFSET as u16, len))
        }
        ipv4::PROTOCOL_UDP => {
            (payload.len() >= udp::HEADER_LEN).then_some((udp::CHECKSUM_OFFSET as u16, udp::HEADER_LEN))
        }
        _ => None,
    }
}

/// Leaves the transport checksum to the device: the field gets the pseudo-header's sum.
pub(super) fn make_partial(packet: &mut [u8], header: &ipv4::Header, field: u16) -> Checksum {
    let start = usize::from(header.header_len);
    let sum =
        checksum::pseudo_header(header.source, header.destination, header.protocol, packet.len() - start);
    let at = start + usize::from(field);
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    Checksum::Partial { start: start as u16, offset: field }
}

/// Cuts a super-segment into super-segments of at most `packets` packets each, as Linux's `tcp_gso_segment` and
/// `__udp_gso_segment` do. False, and nothing pushed, for what is none.
pub(super) fn segments(
    packet: &[u8],
    header: &ipv4::Header,
    how: Segmentation,
    packets: usize,
    facts: &Facts,
    into: &mut Burst,
) -> bool {
    const FIN_PSH: u8 = 0x09;
    const CWR: u8 = 0x80;
    let Some((field, transport_len)) = transport(packet, header) else { return false };
    let expected = match how.kind {
        SegmentationKind::Tcp4 => ipv4::PROTOCOL_TCP,
        SegmentationKind::Tcp6 => return false,
        SegmentationKind::Udp => ipv4::PROTOCOL_UDP,
    };
    if header.protocol != expected || how.size == 0 {
        return false;
    }
    let ip_len = usize::from(header.header_len);
    let (headers, payload) = packet.split_at(ip_len + transport_len);
    let size = packets.max(1) * usize::from(how.size);
    let count = payload.len().div_ceil(size);
    for (index, chunk) in payload.chunks(size).enumerate() {
        let mut piece = [headers, chunk].concat();
        let identification = header.identification.wrapping_add((index * packets.max(1)) as u16);
        let total_len = piece.len() as u16;
        set_lengths(&mut piece[..ip_len], total_len, identification, None);
        match how.kind {
            SegmentationKind::Tcp4 | SegmentationKind::Tcp6 => {
                let at = ip_len + 4;
                let sequence = u32::from_be_bytes([piece[at], piece[at + 1], piece[at + 2], piece[at + 3]]);
                let sequence = sequence.wrapping_add((index * size) as u32);
                piece[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
                let flags = &mut piece[ip_len + 13];
                if index + 1 < count {
                    *flags &= !FIN_PSH;
                }
                if index > 0 {
                    *flags &= !CWR; // RFC 3168 §6.1.2: once per window
                }
            }
            SegmentationKind::Udp => {
                let len = (udp::HEADER_LEN + chunk.len()) as u16;
                piece[ip_len + 4..ip_len + 6].copy_from_slice(&len.to_be_bytes());
            }
        }
        let checksum = make_partial(&mut piece, header, field);
        let whole = Segmentation { header_len: headers.len() as u16, ..how };
        let segmentation = (chunk.len() > usize::from(how.size)).then_some(whole);
        into.push(message(piece, Facts { checksum, segmentation, ..facts.clone() }));
    }
    true
}

/// Cuts a packet without options into fragments that fit `mtu` (RFC 791 §3.2); it may be a fragment itself.
pub(super) fn fragments(packet: &[u8], header: &ipv4::Header, mtu: u16, facts: &Facts, into: &mut Burst) {
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
}

/// Makes an IP header true for a piece.
fn set_lengths(header: &mut [u8], total_len: u16, identification: u16, fragment: Option<(u16, bool)>) {
    header[2..4].copy_from_slice(&total_len.to_be_bytes());
    header[4..6].copy_from_slice(&identification.to_be_bytes());
    if let Some((offset, more)) = fragment {
        header[6..8].copy_from_slice(&((offset / 8) | (u16::from(more) << 13)).to_be_bytes());
    }
    header[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn message(packet: Vec<u8>, facts: Facts) -> Message {
    let len = packet.len() as u32;
    let body = Body::Block { block: Block::from_bytes(packet.into_boxed_slice()), range: 0..len };
    Message { head: Head::default(), body, facts }
}
