//! The header parsers of `scoutline_wire`: any bytes parse or err, and what parses survives a round trip.

use std::net::{Ipv4Addr, Ipv6Addr};

use scoutline_wire::{arp as arp_wire, checksum, ethernet as eth_wire, icmp as icmp_wire};
use scoutline_wire::{icmpv6 as icmp6_wire, igmp as igmp_wire, ipv6 as ip6_wire, nd as nd_wire};
use scoutline_wire::{ipv4 as ip_wire, tcp, udp as udp_wire, vnet as vnet_wire};

use crate::bytes::{Bytes, Target};

/// The targets of this file.
pub const TARGETS: &[Target] = &[
    ("ethernet", ethernet),
    ("arp", arp),
    ("ipv4", ipv4),
    ("icmp", icmp),
    ("udp", udp),
    ("tcp_header", tcp_header),
    ("vnet", vnet),
    ("ipv6", ipv6),
    ("icmpv6", icmpv6),
    ("nd", nd),
    ("igmp", igmp),
];

/// Ethernet headers.
pub fn ethernet(data: &[u8]) {
    let Ok(header) = eth_wire::Header::parse(data) else {
        assert!(data.len() < eth_wire::HEADER_LEN);
        return;
    };
    let mut out = [0xee; eth_wire::HEADER_LEN];
    header.emit(&mut out);
    assert_eq!(out, data[..eth_wire::HEADER_LEN]);
    assert_eq!(eth_wire::is_group(header.destination), data[0] & 1 == 1);
    let group = eth_wire::multicast(Ipv4Addr::new(data[0], data[1], data[2], data[3]));
    assert!(eth_wire::is_group(group));
}

/// ARP packets.
pub fn arp(data: &[u8]) {
    if let Ok(packet) = arp_wire::Packet::parse(data) {
        let mut out = [0xee; arp_wire::PACKET_LEN];
        packet.emit(&mut out);
        assert_eq!(out, data[..arp_wire::PACKET_LEN]);
    }
}

/// IPv4 headers with options.
pub fn ipv4(data: &[u8]) {
    let cut = ip_wire::Header::parse_header(data);
    let whole = ip_wire::Header::parse(data);
    let Ok(header) = cut else {
        assert_eq!(whole.err(), cut.err());
        return;
    };
    let header_len = usize::from(header.header_len);
    let total_len = usize::from(header.total_len);
    assert!((20..=60).contains(&header_len) && header_len <= data.len() && header_len <= total_len);
    assert_eq!(whole.is_ok(), total_len <= data.len());
    assert_eq!(header.payload_len(), total_len - header_len);
    assert_eq!(header.fragment_offset % 8, 0);
    let _ = ip_wire::checksum_is_valid(&data[..header_len]);
    // Options are not emitted, the rest is.
    let plain = ip_wire::Header { header_len: 20, ..header };
    let mut out = [0xee; 20];
    plain.emit(&mut out);
    assert!(ip_wire::checksum_is_valid(&out));
    assert_eq!(ip_wire::Header::parse_header(&out), Ok(plain));
    if header_len == 20 && data[6] & 0x80 == 0 {
        assert_eq!(out[..10], data[..10]);
        assert_eq!(out[12..], data[12..20]);
    }
}

/// ICMP messages, and what errors quote.
pub fn icmp(data: &[u8]) {
    if let Some(quoted) = icmp_wire::Quoted::parse(data) {
        assert!(data.len() >= 28);
        assert!(quoted.ports == (0, 0) || matches!(quoted.protocol, 6 | 17));
    }
    let Ok(header) = icmp_wire::Header::parse_unverified(data) else {
        assert!(data.len() < icmp_wire::HEADER_LEN);
        return;
    };
    let verified = icmp_wire::Header::parse(data);
    assert!(verified.is_err() || verified == Ok(header));
    let _ = (header.is_error(), icmp_wire::Quoted::parse(&data[icmp_wire::HEADER_LEN..]));
    let mut message = data.to_vec();
    header.emit(&mut message);
    assert_eq!(icmp_wire::Header::parse(&message), Ok(header));
    assert_eq!(message[8..], data[8..]);
    if verified.is_ok() {
        // Zero has two forms; all else has one.
        let zero = |bytes: &[u8]| matches!(bytes[2..4], [0, 0] | [0xff, 0xff]);
        assert!(message[2..4] == data[2..4] || (zero(&message) && zero(data)));
    }
}

/// UDP headers.
pub fn udp(data: &[u8]) {
    if let Ok(header) = udp_wire::Header::parse(data) {
        assert!((8..=data.len()).contains(&usize::from(header.len)));
        let mut out = [0xee; udp_wire::HEADER_LEN];
        header.emit(&mut out);
        assert_eq!(out, data[..udp_wire::HEADER_LEN]);
    }
}

/// TCP headers and options: parsed from the bytes, and made from them.
pub fn tcp_header(data: &[u8]) {
    if let Ok((header, len)) = tcp::Header::parse(data) {
        assert!((20..=60).contains(&len) && len <= data.len() && len.is_multiple_of(4));
        emitted(&header);
    }
    emitted(&made(&mut Bytes::new(data)));
}

fn made(bytes: &mut Bytes<'_>) -> tcp::Header {
    let choice = bytes.u8();
    let mut options = tcp::Options {
        mss: (choice & 1 != 0).then(|| bytes.u16()),
        window_scale: (choice & 2 != 0).then(|| bytes.u8()),
        sack_permitted: choice & 4 != 0,
        timestamps: (choice & 8 != 0).then(|| (bytes.u32(), bytes.u32())),
        ..tcp::Options::default()
    };
    for block in 0..choice >> 4 {
        assert_eq!(options.sack.push(bytes.u32(), bytes.u32()), block < 4);
    }
    tcp::Header {
        source_port: bytes.u16(),
        destination_port: bytes.u16(),
        sequence: bytes.u32(),
        acknowledgment: bytes.u32(),
        flags: tcp::Flags::from_bits_retain(bytes.u8()),
        window: bytes.u16(),
        urgent: bytes.u16(),
        options,
    }
}

/// What is emitted reads as what was meant, but for SACK blocks that find no room.
fn emitted(header: &tcp::Header) {
    let mut out = [0xee; 64];
    let len = header.emit(&mut out);
    assert_eq!(len, header.emitted_len());
    assert!((20..=60).contains(&len) && len.is_multiple_of(4));
    assert_eq!(out[len..], [0xee; 64][len..]);
    let (read, read_len) = tcp::Header::parse(&out[..len]).expect("what we emit parses");
    assert_eq!(read_len, len);
    let (blocks, all) = (read.options.sack.as_slice(), header.options.sack.as_slice());
    assert_eq!(blocks, &all[..blocks.len()]);
    assert!(blocks.len() == all.len() || len + 8 > 60, "left out without need");
    let mut rest = read;
    rest.options.sack = header.options.sack;
    assert_eq!(rest, *header);
}

/// The header for offloads in front of frames; and sums, which it tells of.
pub fn vnet(data: &[u8]) {
    let Some(header) = vnet_wire::Header::parse(data) else {
        assert!(data.len() < vnet_wire::HEADER_LEN);
        return;
    };
    let mut out = [0xee; vnet_wire::HEADER_LEN_MERGED];
    header.emit(&mut out);
    assert_eq!(out[..10], data[..10]);
    assert_eq!(out[10..], [0xee; 2]);
    // A partial checksum over any part: in one piece, or in two.
    let rest = &data[10..];
    let cut = usize::from(header.csum_start) % (rest.len() + 1);
    let (front, back) = rest.split_at(cut);
    let sum = checksum::combine(checksum::sum(front), cut, checksum::sum(back));
    assert_eq!(sum, checksum::sum(rest));
}

/// IPv6 headers and the extension headers behind them.
pub fn ipv6(data: &[u8]) {
    let whole = ip6_wire::Header::parse(data);
    let Ok(header) = ip6_wire::Header::parse_header(data) else {
        assert!(whole.is_err());
        return;
    };
    assert_eq!(whole.is_ok(), header.total_len() <= data.len());
    let mut out = [0xee; ip6_wire::HEADER_LEN];
    header.emit(&mut out);
    assert_eq!(out, data[..ip6_wire::HEADER_LEN]);
    let Ok(upper) = ip6_wire::walk(data) else { return };
    assert!(upper.offset <= data.len() || upper.offset == ip6_wire::HEADER_LEN);
    assert_eq!(data[upper.number_at], upper.protocol);
    assert!(upper.offset - ip6_wire::HEADER_LEN <= ip6_wire::MAX_EXTENSIONS_LEN + ip6_wire::FRAGMENT_LEN);
    if let Some(fragment) = upper.fragment {
        assert_eq!(fragment.offset % 8, 0);
        let at = upper.offset - ip6_wire::FRAGMENT_LEN;
        let mut out = [0; ip6_wire::FRAGMENT_LEN];
        fragment.emit(&mut out);
        assert_eq!(ip6_wire::Fragment::parse(&out), Some(fragment));
        assert_eq!(out[4..], data[at + 4..at + 8]);
    }
}

/// ICMPv6 messages, and what errors quote.
pub fn icmpv6(data: &[u8]) {
    if let Some(quoted) = icmp6_wire::Quoted::parse(data) {
        assert!(data.len() >= 40);
        assert!(quoted.ports == (0, 0) || matches!(quoted.protocol, 6 | 17));
    }
    let Ok(header) = icmp6_wire::Header::parse_unverified(data) else {
        assert!(data.len() < icmp6_wire::HEADER_LEN);
        return;
    };
    let _ = icmp6_wire::Quoted::parse(&data[icmp6_wire::HEADER_LEN..]);
    let (ours, theirs) = (Ipv6Addr::LOCALHOST, nd_wire::ALL_NODES);
    let mut message = data.to_vec();
    header.emit(&mut message, ours, theirs);
    assert_eq!(icmp6_wire::Header::parse(&message, ours.into(), theirs.into()), Ok(header));
    assert_eq!(message[8..], data[8..]);
}

/// Messages of neighbour discovery: what is read is what is written.
pub fn nd(data: &[u8]) {
    let head = |rest: [u8; 4], body: &[u8]| [&[0; 4], &rest[..], body].concat();
    let mut body = [0xee; 24];
    if let Ok(solicitation) = nd_wire::Solicitation::parse(data) {
        let len = solicitation.emit(&mut body);
        assert_eq!(nd_wire::Solicitation::parse(&head([0; 4], &body[..len])), Ok(solicitation));
    }
    if let Ok(advertisement) = nd_wire::Advertisement::parse(data) {
        let len = advertisement.emit(&mut body);
        let again = nd_wire::Advertisement::parse(&head(advertisement.flags(), &body[..len]));
        assert_eq!(again, Ok(advertisement));
    }
    if let Ok(router) = nd_wire::RouterAdvertisement::parse(data) {
        assert!(
            router.prefixes.len() <= nd_wire::MAX_PREFIXES && data.len() >= 16 + 32 * router.prefixes.len()
        );
        assert!(router.prefixes.iter().all(|prefix| prefix.prefix_len <= 128));
    }
}

/// IGMP messages of three versions: what is read was there, whole and with its sum.
pub fn igmp(data: &[u8]) {
    // Few bytes have their own sum: with the right one they are read, too.
    let mut message = data.to_vec();
    if message.len() >= igmp_wire::HEADER_LEN {
        igmp_wire::emit(data[0], &mut message);
    }
    for bytes in [data, &message] {
        let Ok(read) = igmp_wire::Message::parse(bytes) else { continue };
        assert!(checksum::is_valid(checksum::sum(bytes)) && bytes.len() >= igmp_wire::HEADER_LEN);
        let octets: [u8; 4] = bytes[4..8].try_into().expect("eight bytes at least");
        match read {
            igmp_wire::Message::Report(group) => assert_eq!(group.octets(), octets),
            igmp_wire::Message::Query { group, sources, within, robustness, version } => {
                assert_eq!(group.octets(), octets);
                assert!(bytes.len() >= igmp_wire::HEADER_LEN + 4 * sources.len());
                // RFC 3376 §4.1.1: the largest code, 0xff, is 31,744 tenths of a second.
                assert!(within.as_millis() <= 3_174_400 && robustness <= 7 && (1..=3).contains(&version));
                assert!(version == 3 || sources.is_empty());
            }
        }
    }
}
