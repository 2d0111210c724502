//! The gateway as a station on the link: packetdrill speaks of packets only, so link headers are made and taken here,
//! and questions for link addresses are answered (RFC 826, RFC 4861 §7.2.4).

use std::net::{Ipv4Addr, Ipv6Addr};

use scoutline_conformance::packet::{GATEWAY_LINK, arp_frame};
use scoutline_wire::nd::{self, Advertisement, Solicitation};
use scoutline_wire::{icmpv6, ipv6};

/// Bytes of a link header.
const LINK_LEN: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ARP: [u8; 2] = [0x08, 0x06];
const ICMPV6: u8 = 58;

/// What to do with a frame of ours.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A packet, for packetdrill.
    Packet(Vec<u8>),
    /// A question about a neighbour: the answer, a frame.
    Question(Vec<u8>),
    /// Other talk of hosts on a link.
    Other,
}

/// A packet from the gateway, as a frame for `station`.
pub(crate) fn frame(packet: &[u8], station: [u8; 6]) -> Vec<u8> {
    let ethertype = if packet.first().is_some_and(|byte| byte >> 4 == 6) { IPV6 } else { IPV4 };
    [&station, &GATEWAY_LINK, ethertype.as_slice(), packet].concat()
}

/// Sorts a frame that left `station`.
pub(crate) fn sort(frame: &[u8], station: [u8; 6]) -> Frame {
    let Some((link, packet)) = frame.split_at_checked(LINK_LEN) else { return Frame::Other };
    match [link[12], link[13]] {
        ARP => arp_answer(packet, station).map_or(Frame::Other, Frame::Question),
        IPV6 if is_link_talk(packet) => advertisement(packet, station).map_or(Frame::Other, Frame::Question),
        IPV4 | IPV6 => Frame::Packet(packet.to_vec()),
        _ => Frame::Other,
    }
}

fn arp_answer(packet: &[u8], station: [u8; 6]) -> Option<Vec<u8>> {
    const REQUEST: [u8; 2] = [0, 1];
    let address = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
    let (sender, target) = (address(14)?, address(24)?);
    // Who asks for its own address only tells of it.
    (packet[6..8] == REQUEST && sender != target).then(|| arp_frame(false, target, sender, station))
}

/// Neighbour discovery and group membership: what never leaves a link. Multicast reports begin with a hop-by-hop header.
fn is_link_talk(packet: &[u8]) -> bool {
    let Ok(header) = ipv6::Header::parse_header(packet) else { return true };
    let kind = packet.get(ipv6::HEADER_LEN).copied().unwrap_or_default();
    header.destination.is_multicast()
        || header.next_header == ICMPV6 && (nd::ROUTER_SOLICITATION..=137).contains(&kind)
}

fn advertisement(packet: &[u8], station: [u8; 6]) -> Option<Vec<u8>> {
    let header = ipv6::Header::parse_header(packet).ok()?;
    let message = packet.get(ipv6::HEADER_LEN..)?;
    // RFC 4862 §5.4: who asks without an address has just chosen one; nobody else has it.
    if header.next_header != ICMPV6
        || message.first() != Some(&nd::NEIGHBOUR_SOLICITATION)
        || header.source.is_unspecified()
    {
        return None;
    }
    let target = Solicitation::parse(message).ok()?.target;
    let advertisement = Advertisement {
        router: true,
        solicited: true,
        overrides: true,
        target,
        target_link: Some(GATEWAY_LINK),
    };
    Some(frame(&advertise(&advertisement, target, header.source), station))
}

fn advertise(advertisement: &Advertisement, from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![0; icmpv6::HEADER_LEN + 24];
    let body_len = advertisement.emit(&mut message[icmpv6::HEADER_LEN..]);
    message.truncate(icmpv6::HEADER_LEN + body_len);
    let header = icmpv6::Header { kind: nd::NEIGHBOUR_ADVERTISEMENT, code: 0, rest: advertisement.flags() };
    header.emit(&mut message, from, to);
    let mut packet = vec![0; ipv6::HEADER_LEN];
    // RFC 4861 §7.1.2: a hop limit of 255 shows that it comes from this link.
    packet[0] = 0x60;
    packet[4..6].copy_from_slice(&(message.len() as u16).to_be_bytes());
    packet[6..8].copy_from_slice(&[ICMPV6, 255]);
    packet[8..24].copy_from_slice(&from.octets());
    packet[24..40].copy_from_slice(&to.octets());
    packet.extend(message);
    packet
}
