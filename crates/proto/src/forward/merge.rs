//! Datagrams of one flow that follow one another, as one super-segment: what costs a call and an interrupt for each of
//! them at the outgoing device costs one for all, as by Linux's `rx-udp-gro-forwarding`.

use scoutline_path::{Burst, Checksum, Facts, Message, Segmentation, SegmentationKind};
use scoutline_wire::{ipv4, ipv6, udp};

use super::cut;
use super::packet::Packet;

/// Packets in one: Linux takes no more (`UDP_MAX_SEGMENTS`).
const MOST: usize = 64;
/// Longer datagrams are not copied for it.
const LONGEST: usize = 512;

/// Whether a packet may be put together with others, if its checksum is right.
pub(super) fn is_fit(packet: &Packet) -> bool {
    packet.protocol == ipv4::PROTOCOL_UDP && packet.transport.is_some() && packet.total_len <= LONGEST
}

/// Puts packets together that differ in nothing but their data; the last one of several may be shorter. Their checksums
/// are partial. `longest`: bytes of what is made, with `link_len` in front of each packet.
pub(super) fn merge(burst: &mut Burst, link_len: usize, longest: usize) {
    let mut from = 0;
    let mut to = 0;
    while from < burst.len() {
        let next = from + run(&burst[from..], link_len, longest);
        if next - from > 1
            && let Some(whole) = join(&burst[from..next])
        {
            burst[to] = whole;
            to += 1;
        } else {
            for at in from..next {
                burst.swap(to, at);
                to += 1;
            }
        }
        from = next;
    }
    burst.truncate(to);
}

/// How many of the first ones go together; at least 1.
fn run(burst: &[Message], link_len: usize, longest: usize) -> usize {
    let first = burst[0].bytes();
    let Some(headers) = headers_of(&burst[0]) else { return 1 };
    let most = (longest / (link_len + first.len())).min(MOST);
    let mut count = 1;
    for message in burst.iter().take(most).skip(1) {
        let bytes = message.bytes();
        let fits =
            bytes.len() > headers && bytes.len() <= first.len() && headers_of(message) == Some(headers);
        if !fits || !goes_on(&first[..headers], &bytes[..headers], count as u16) {
            break;
        }
        count += 1;
        if bytes.len() < first.len() {
            break;
        }
    }
    count
}

/// Bytes of headers in front of the data of a datagram whose checksum is to be completed and that is one packet.
fn headers_of(message: &Message) -> Option<usize> {
    let Checksum::Partial { start, offset } = message.facts.checksum else { return None };
    let whole = message.facts.segmentation.is_none() && usize::from(offset) == udp::CHECKSUM_OFFSET;
    let headers = usize::from(start) + udp::HEADER_LEN;
    let len = message.bytes().len();
    (whole && len > headers && len <= LONGEST).then_some(headers)
}

/// Whether these headers are those of the packet `index` behind the first.
fn goes_on(first: &[u8], next: &[u8], index: u16) -> bool {
    let upper_at = first.len() - udp::HEADER_LEN;
    let ports = upper_at..upper_at + 4;
    if first[0] >> 4 == 6 {
        return first[..4] == next[..4] && first[6..ports.end] == next[6..ports.end];
    }
    let identification = |header: &[u8]| u16::from_be_bytes([header[4], header[5]]);
    // Who cuts it counts up from the first. RFC 6864 §4.1: that of an atomic datagram says nothing.
    let atomic = first[6] & 0x40 != 0;
    first[..2] == next[..2]
        && first[6..10] == next[6..10]
        && first[12..ports.end] == next[12..ports.end]
        && (atomic || identification(next) == identification(first).wrapping_add(index))
}

/// One packet of several.
fn join(burst: &[Message]) -> Option<Message> {
    let first = &burst[0];
    let packet = Packet::parse(first.bytes()).ok()?;
    let headers = packet.headers_len();
    let size = first.bytes().len() - headers;
    let mut whole = Vec::with_capacity(headers + burst.len() * size);
    whole.extend_from_slice(&first.bytes()[..headers]);
    for message in burst {
        whole.extend_from_slice(&message.bytes()[headers..]);
    }
    let len = whole.len();
    let (network, upper) = whole.split_at_mut(packet.upper_at);
    let upper_len = upper.len() as u16;
    upper[4..6].copy_from_slice(&upper_len.to_be_bytes());
    if packet.source.is_v4() {
        let identification = u16::from_be_bytes([network[4], network[5]]);
        cut::set_lengths(network, len as u16, identification, None);
    } else {
        network[4..6].copy_from_slice(&((len - ipv6::HEADER_LEN) as u16).to_be_bytes());
    }
    let checksum = packet.begin_checksum(&mut whole);
    let segmentation =
        Segmentation { kind: SegmentationKind::Udp, size: size as u16, header_len: headers as u16 };
    let facts = Facts { checksum, segmentation: Some(segmentation), ..first.facts.clone() };
    Some(cut::message(whole, facts))
}
