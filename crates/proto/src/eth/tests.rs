use std::net::Ipv4Addr;
use std::time::Duration;

use scoutline_base::PathId;
use scoutline_path::{Attributes, DropReason, Name, Value, Verdict};
use scoutline_wire::{arp, ethernet};

use crate::testing::{
    self, Host, OUR_LINK, OURS, PEER, PEER_LINK, address, ip6_frame, ip6_header, udp_frame, udp6_datagram,
};

/// A host with a connected UDP path.
fn host() -> (Host, PathId) {
    let mut host = Host::new();
    let attributes = Attributes::new()
        .with(Name::Protocol, Value::Number(17))
        .with(Name::Local, address(OURS, 7))
        .with(Name::Remote, address(PEER, 9));
    let path = host.create("SOCKET", attributes);
    (host, path)
}

#[test]
fn frames_for_others_and_unknown_types_are_dropped() {
    let (mut host, path) = host();
    let good = udp_frame((9, 7), b"hello");
    host.receive(path, &good);
    assert_eq!(host.received()[0].facts.link_source, PEER_LINK);
    let mut other = good.clone();
    other[5] = 77;
    assert_eq!(host.demux(&other).0, Verdict::Drop(DropReason::NotForUs));
    host.receive(path, &other);
    let mut unknown = good.clone();
    unknown[12..14].copy_from_slice(&[0x88, 0xb5]);
    assert_eq!(host.demux(&unknown).0, Verdict::Drop(DropReason::UnknownProtocol));
    host.receive(path, &unknown);
    assert_eq!(host.demux(&good[..13]).0, Verdict::Drop(DropReason::Truncated));
    host.receive(path, &good[..13]);
    let expected = [DropReason::Truncated, DropReason::NotForUs, DropReason::UnknownProtocol].map(|r| (r, 1));
    assert_eq!(host.drops(path), expected);
}

#[test]
fn a_message_waits_for_its_neighbour() {
    let (mut host, path) = host();
    let sent = host.send(path, testing::block(b"first"));
    assert_eq!(sent.len(), 1);
    let request = arp::Packet::parse(&sent[0][14..]).unwrap();
    assert_eq!((request.operation, request.target), (arp::Operation::Request, PEER));
    // The path that waits drives the timer itself.
    assert!(host.path(path).next_timeout().is_some());
    assert_eq!(host.expire(path, Duration::from_secs(1)).len(), 1);
    let mut reply = [0; 28];
    arp::Packet {
        operation: arp::Operation::Reply,
        sender_link: PEER_LINK,
        sender: PEER,
        target_link: OUR_LINK,
        target: OURS,
    }
    .emit(&mut reply);
    let arp_path = host.interface.service_paths.arp.get().unwrap();
    let sent = host.receive(arp_path, &testing::eth(ethernet::TYPE_ARP, &reply));
    assert_eq!(sent.len(), 1);
    let header = ethernet::Header::parse(&sent[0]).unwrap();
    assert_eq!((header.destination, header.ethertype), (PEER_LINK, ethernet::TYPE_IPV4));
    assert!(sent[0].ends_with(b"first"));
    assert_eq!(host.send(path, testing::block(b"second")).len(), 1);
    assert_eq!(host.expire(path, Duration::from_secs(1)).len(), 0);
    assert_eq!(host.path(path).next_timeout(), None);
}

#[test]
fn groups_and_missing_routes() {
    let mut host = Host::new();
    let attributes =
        Attributes::new().with(Name::Protocol, Value::Number(17)).with(Name::Local, address(OURS, 7));
    let path = host.create("SOCKET", attributes);
    let mut to = |ip: Ipv4Addr| {
        let mut message = testing::block(b"x");
        message.facts.destination = Some(ip.into());
        message.facts.ports = Some((7, 9));
        host.send(path, message)
    };
    assert!(to(Ipv4Addr::BROADCAST)[0].starts_with(&ethernet::BROADCAST));
    assert!(to(Ipv4Addr::new(224, 0, 0, 251))[0].starts_with(&[1, 0, 0x5e, 0, 0, 251]));
    assert!(to(Ipv4Addr::new(192, 0, 2, 1)).is_empty());
    assert_eq!(host.drops(path), [(DropReason::NoRoute, 1)]);
}

/// RFC 1122 §3.2.2, §4.2.3.10, RFC 4443 §2.4 (e.4): what came to a group of the link is for who wants it, and nobody else
/// answers. Over IPv4 what came to everybody's link address is refused before (RFC 1122 §3.3.6).
#[test]
fn nobody_is_told_of_what_came_to_a_group_of_the_link() {
    let mut host = Host::with_ip6();
    let path = host.create(
        "SOCKET",
        Attributes::new()
            .with(Name::Protocol, Value::Number(17))
            .with(Name::Local, address(Ipv4Addr::UNSPECIFIED, 7)),
    );
    host.net.udp.listen("0.0.0.0:7".parse().unwrap(), 0, path);
    host.net.udp.listen("[::]:7".parse().unwrap(), 0, path);
    let groups = [[1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1], [0xff; 6]];
    let to = |group: [u8; 6], mut frame: Vec<u8>| {
        frame[..6].copy_from_slice(&group);
        host.demux(&frame).0
    };
    let six = |next: u8, bytes: &[u8]| ip6_frame(&ip6_header(next, bytes.len()), bytes);
    let syn = &testing::tcp_frame_plain((9, 7))[34..];
    for group in groups {
        if group != [0xff; 6] {
            assert_eq!(to(group, testing::udp_frame((9, 7), b"x")), Verdict::Path(path));
            assert_eq!(to(group, testing::udp_frame((9, 8), b"x")), Verdict::Drop(DropReason::NoPath));
            assert_eq!(to(group, testing::tcp_frame_plain((9, 7))), Verdict::Drop(DropReason::NotForUs));
            let unknown = testing::ip_frame(&testing::ip_header(200, 1), b"x");
            assert_eq!(to(group, unknown), Verdict::Drop(DropReason::UnknownProtocol));
        }
        assert_eq!(to(group, six(17, &udp6_datagram((9, 7), b"x"))), Verdict::Path(path));
        assert_eq!(to(group, six(17, &udp6_datagram((9, 8), b"x"))), Verdict::Drop(DropReason::NoPath));
        assert_eq!(to(group, six(6, syn)), Verdict::Drop(DropReason::NotForUs));
        assert_eq!(to(group, six(200, b"x")), Verdict::Drop(DropReason::UnknownProtocol));
    }
}
