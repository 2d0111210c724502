use std::net::Ipv6Addr;

use scoutline_path::{Control, DropReason, Effect, Verdict};
use scoutline_wire::nd::{self, ALL_NODES};
use scoutline_wire::{icmpv6, ipv6};

use crate::errno;
use crate::groups::Filter;
use crate::testing::{
    Host, OUR_LOCAL, OURS6, PEER_LINK, PEER_LOCAL, PEER6, icmp6_frame, ip6_frame, ip6_header,
    tcp_frame_plain, udp6_datagram,
};

/// A connection is told of errors in the words of ICMP; what they mean to its program is what Linux makes of ICMPv6's own.
#[test]
fn errors_mean_to_connections_what_they_mean_to_datagrams() {
    let of_both = |kind, code| {
        let (kind4, code4) = super::as_icmp4(kind, code).unwrap();
        (errno::of_connection(kind4, code4, true), errno::of_datagram6(kind, code).map(|(errno, _)| errno))
    };
    for code in 0..8 {
        let (connection, datagram) = of_both(icmpv6::UNREACHABLE, code);
        assert_eq!(connection, datagram, "unreachable {code}");
    }
    for code in 0..3 {
        let (connection, datagram) = of_both(icmpv6::PARAMETER_PROBLEM, code);
        assert_eq!(connection, datagram, "parameter problem {code}");
    }
    let (connection, datagram) = of_both(icmpv6::TIME_EXCEEDED, 0);
    assert_eq!(connection, datagram);
}

fn quote(source: Ipv6Addr) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    ipv6::Header { source, destination: PEER6, ..ip6_header(6, 8) }.emit(&mut bytes);
    bytes[40..44].copy_from_slice(&[0x1f, 0x90, 0, 80]);
    bytes
}

#[test]
fn an_echo_comes_back() {
    let mut host = Host::with_ip6();
    let path = host.interface.service_paths.icmp6.get().unwrap();
    let frame = icmp6_frame((PEER6, OURS6), icmpv6::ECHO_REQUEST, [1, 2, 3, 4], b"odd");
    assert_eq!(host.demux(&frame).0, Verdict::Path(path));
    let sent = host.receive(path, &frame);
    assert!(sent[0].starts_with(&PEER_LINK));
    let header = icmpv6::Header::parse(&sent[0][54..], OURS6.into(), PEER6.into()).unwrap();
    assert_eq!((header.kind, header.rest, &sent[0][62..]), (icmpv6::ECHO_REPLY, [1, 2, 3, 4], &b"odd"[..]));
    let long = icmp6_frame((PEER6, OURS6), icmpv6::ECHO_REQUEST, [0; 4], &[5; 4000]);
    assert_eq!(host.receive(path, &long).len(), 3, "in fragments");
}

#[test]
fn an_echo_to_all_is_answered_from_our_own_address() {
    let mut host = Host::with_ip6();
    let path = host.interface.service_paths.icmp6.get().unwrap();
    let frame = icmp6_frame((PEER6, ALL_NODES), icmpv6::ECHO_REQUEST, [0; 4], b"x");
    let sent = host.receive(path, &frame);
    let header = ipv6::Header::parse(&sent[0][14..]).unwrap();
    assert_eq!((header.source, header.destination), (OURS6, PEER6));
    assert!(icmpv6::Header::parse(&sent[0][54..], OURS6.into(), PEER6.into()).is_ok());
    let sent: usize = (0..200).map(|_| host.receive(path, &frame).len()).sum();
    assert_eq!(sent, 49, "at the rate of errors: amplifiers answer groups");
}

#[test]
fn faults_are_counted() {
    let mut host = Host::with_ip6();
    let path = host.interface.service_paths.icmp6.get().unwrap();
    let mut bad = icmp6_frame((PEER6, OURS6), icmpv6::ECHO_REQUEST, [0; 4], b"x");
    *bad.last_mut().unwrap() ^= 1;
    host.receive(path, &bad);
    host.receive(path, &icmp6_frame((PEER6, OURS6), 200, [0; 4], b""));
    host.receive(path, &icmp6_frame((PEER6, OURS6), icmpv6::ECHO_REPLY, [0; 4], b""));
    host.receive(path, &icmp6_frame((PEER6, OURS6), icmpv6::UNREACHABLE, [0; 4], &[0x60; 9]));
    let expected = [
        (DropReason::Malformed, 1),
        (DropReason::BadChecksum, 1),
        (DropReason::UnknownProtocol, 1),
        (DropReason::NoPath, 1),
    ];
    assert_eq!(host.drops(path), expected);
    let short = ip6_frame(&ip6_header(58, 4), &[128, 0, 0, 0]);
    assert_eq!(host.demux(&short).0, Verdict::Drop(DropReason::Truncated));
}

#[test]
fn an_error_reaches_the_flow_that_it_is_about() {
    let mut host = Host::with_ip6();
    let path = host.interface.service_paths.icmp6.get().unwrap();
    host.receive(path, &icmp6_frame((PEER6, OURS6), icmpv6::UNREACHABLE, [0; 4], &quote(OURS6)));
    let effects = host.effects();
    // "No route" in the words of ICMP for IPv4.
    let [Effect::Notify(key, Control::UnreachableSegment(3, 0, _))] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((key.local, key.local_port), (OURS6.into(), 8080));
    assert_eq!((key.remote, key.remote_port, key.protocol), (PEER6.into(), 80, 6));
    host.receive(path, &icmp6_frame((PEER6, OURS6), icmpv6::UNREACHABLE, [0; 4], &quote(PEER6)));
    assert!(host.effects().is_empty(), "about a packet that was never ours");
}

#[test]
fn tcp_hears_what_the_link_on_the_way_takes() {
    let mut host = Host::with_ip6();
    let path = host.interface.service_paths.icmp6.get().unwrap();
    for (mtu, told) in [(1400u32, 1380), (1280, 1260), (u32::MAX, 65_515)] {
        let frame = icmp6_frame((PEER6, OURS6), icmpv6::PACKET_TOO_BIG, mtu.to_be_bytes(), &quote(OURS6));
        host.receive(path, &frame);
        let effects = host.effects();
        let [Effect::Notify(_, Control::TooLong(heard, _))] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(*heard, told, "40 bytes of headers less are in a segment");
    }
    // RFC 8201 §4
    host.receive(
        path,
        &icmp6_frame((PEER6, OURS6), icmpv6::PACKET_TOO_BIG, 1279u32.to_be_bytes(), &quote(OURS6)),
    );
    assert!(host.effects().is_empty(), "every link takes 1280 bytes");
}

#[test]
fn what_nobody_takes_is_reported_at_a_limited_rate() {
    let mut host = Host::with_ip6();
    let path = host.interface.service_paths.unreachable6.get().unwrap();
    let datagram = udp6_datagram((9, 7), b"hello");
    let frame = ip6_frame(&ip6_header(17, datagram.len()), &datagram);
    let (verdict, key) = host.demux(&frame);
    assert_eq!((verdict, host.interface.stray_path(&key)), (Verdict::NoPath, Some(path)));
    let sent = host.receive(path, &frame);
    let header = icmpv6::Header::parse(&sent[0][54..], OURS6.into(), PEER6.into()).unwrap();
    assert_eq!((header.kind, header.code), (icmpv6::UNREACHABLE, icmpv6::unreachable::PORT));
    assert_eq!(sent[0][62..], frame[14..], "the whole cause");
    let sent: usize = (0..100).map(|_| host.receive(path, &frame).len()).sum();
    assert_eq!(sent, 49);
    assert_eq!(host.path(path).account.drops(DropReason::RateLimited), 51);
}

/// As over IPv4: a flood for nobody must not cost a checksum for each.
#[test]
fn only_what_would_be_reported_is_read() {
    let mut host = Host::with_ip6();
    let path = host.interface.service_paths.unreachable6.get().unwrap();
    let mut datagram = udp6_datagram((9, 7), b"hello");
    let whole = ip6_frame(&ip6_header(17, datagram.len()), &datagram);
    *datagram.last_mut().unwrap() ^= 1;
    let broken = ip6_frame(&ip6_header(17, datagram.len()), &datagram);
    assert!(host.receive(path, &broken).is_empty());
    assert_eq!(host.drops(path), [(DropReason::BadChecksum, 1)]);
    let sent: usize = (0..60).map(|_| host.receive(path, &whole).len()).sum();
    assert_eq!(sent, 50, "it took nothing of the limit");
    assert!(host.receive(path, &broken).is_empty());
    assert_eq!(host.path(path).account.drops(DropReason::BadChecksum), 1);
    assert_eq!(host.path(path).account.drops(DropReason::RateLimited), 11);
}

#[test]
fn an_error_fits_every_link_and_is_never_about_an_error() {
    let mut host = Host::with_ip6();
    let path = host.interface.service_paths.unreachable6.get().unwrap();
    let datagram = udp6_datagram((9, 7), &[7; 1400]);
    let sent = host.receive(path, &ip6_frame(&ip6_header(17, datagram.len()), &datagram));
    assert_eq!(sent[0].len(), 14 + 1280);
    // An error behind an option that is to be reported.
    let mut payload = vec![58, 0, 0x9e, 4, 0, 0, 0, 0];
    payload.extend_from_slice(&[1, 4, 0, 0, 0, 0, 0, 0]);
    assert!(host.receive(path, &ip6_frame(&ip6_header(60, payload.len()), &payload)).is_empty());
    let to_group = ipv6::Header { destination: ALL_NODES, ..ip6_header(17, 8) };
    assert!(host.receive(path, &ip6_frame(&to_group, &[0, 9, 0, 7, 0, 8, 0, 0])).is_empty());
}

/// A message of multicast listener discovery behind this hop-by-hop header.
fn mld_frame(source: Ipv6Addr, hop_limit: u8, alert: [u8; 8], kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 8];
    message.extend_from_slice(body);
    icmpv6::Header { kind, code: 0, rest: [0; 4] }.emit(&mut message, source, ALL_NODES);
    let payload = [&alert[..], &message].concat();
    let header = ip6_header(ipv6::HOP_BY_HOP, payload.len());
    ip6_frame(&ipv6::Header { source, destination: ALL_NODES, hop_limit, ..header }, &payload)
}

const ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];

#[test]
fn a_query_hears_of_our_groups() {
    let mut host = Host::with_ip6();
    let path = host.interface.service_paths.icmp6.get().unwrap();
    // Of version 2, about all groups.
    let mut body = [0; 20];
    body[16..18].copy_from_slice(&[2, 125]);
    let query = |source, hop_limit, alert| mld_frame(source, hop_limit, alert, icmpv6::LISTENER_QUERY, &body);
    let frame = query(PEER_LOCAL, 1, ALERT);
    assert_eq!(host.demux(&frame).0, Verdict::Path(path));
    let sent = host.receive(path, &frame);
    assert_eq!(sent.len(), 1);
    let upper = ipv6::walk(&sent[0][14..]).unwrap();
    assert_eq!((upper.protocol, upper.offset), (58, 48), "behind a router alert");
    let message = &sent[0][14 + upper.offset..];
    let groups = "ff02::16".parse::<Ipv6Addr>().unwrap();
    let source = ipv6::Header::parse(&sent[0][14..]).unwrap().source;
    assert_eq!(source, OUR_LOCAL, "RFC 3810 §5.2.13");
    assert!(icmpv6::Header::parse(message, source.into(), groups.into()).is_ok());
    let ours = nd::solicited_node(OURS6);
    assert_eq!(ours, nd::solicited_node(OUR_LOCAL), "both addresses have one group,");
    assert_eq!((message[7], &message[12..]), (1, &ours.octets()[..]), "which is told once");
    // About this one, and about another.
    let about = |group: [u8; 16]| {
        let body = [&group[..], &[2, 125, 0, 0]].concat();
        mld_frame(PEER_LOCAL, 1, ALERT, icmpv6::LISTENER_QUERY, &body)
    };
    let sent = host.receive(path, &about(ours.octets()));
    assert_eq!((sent.len(), &sent[0][14 + 48 + 12..]), (1, &ours.octets()[..]));
    assert!(host.receive(path, &about(nd::solicited_node(PEER6).octets())).is_empty());
    // RFC 3810 §6.2: what a router of the link would not send.
    let padded = [58, 0, 1, 4, 0, 0, 0, 0];
    let other_alert = [58, 0, 5, 2, 0, 1, 1, 0];
    for (what, frame) in [
        ("from beyond the link", query(PEER_LOCAL, 2, ALERT)),
        ("from a global address", query(PEER6, 1, ALERT)),
        ("without a router alert", query(PEER_LOCAL, 1, padded)),
        ("with another's router alert", query(PEER_LOCAL, 1, other_alert)),
        ("of no version", mld_frame(PEER_LOCAL, 1, ALERT, icmpv6::LISTENER_QUERY, &[0; 18])),
    ] {
        assert!(host.receive(path, &frame).is_empty(), "{what}");
    }
    assert_eq!(host.drops(path), [(DropReason::Malformed, 5)]);
}

/// RFC 2710 §4: who hears another's report says nothing itself.
#[test]
fn an_old_router_hears_of_a_group_once() {
    let group: Ipv6Addr = "ff05::77".parse().unwrap();
    for other_reports in [false, true] {
        let mut host = Host::with_ip6();
        let path = host.interface.service_paths.icmp6.get().unwrap();
        let mut groups = host.interface.groups6.borrow_mut();
        let holder = groups.new_holder();
        groups.set(holder, group.into(), Filter::all());
        while let Some(due) = groups.next_timeout() {
            host.now = host.now.max(due);
            groups.on_timeout(due);
        }
        drop(groups);
        // Within ten seconds.
        let mut query = mld_frame(PEER_LOCAL, 1, ALERT, icmpv6::LISTENER_QUERY, &[0; 16]);
        let code = 14 + 48 + 4;
        query[code..code + 2].copy_from_slice(&10_000u16.to_be_bytes());
        let sum = u16::from_be_bytes([query[code - 2], query[code - 1]]);
        let sum = scoutline_wire::checksum::update(sum, 0, 10_000);
        query[code - 2..code].copy_from_slice(&sum.to_be_bytes());
        host.receive(path, &query);
        if other_reports {
            host.receive(path, &mld_frame(PEER_LOCAL, 1, ALERT, 131, &group.octets()));
        }
        let mut groups = host.interface.groups6.borrow_mut();
        let mut reports = 0;
        while let Some(due) = groups.next_timeout() {
            reports += groups.on_timeout(due).len();
        }
        drop(groups);
        assert_eq!(reports, usize::from(!other_reports));
        assert_eq!(host.drops(path), []);
    }
}

#[test]
fn a_segment_for_nobody_is_reset() {
    let mut host = Host::with_ip6();
    let segment = &tcp_frame_plain((9, 7))[34..];
    let mut segment = segment.to_vec();
    let pseudo = scoutline_wire::checksum::pseudo_header(PEER6, OURS6, 6, segment.len());
    segment[16..18].fill(0);
    let sum = scoutline_wire::checksum::add(pseudo, scoutline_wire::checksum::sum(&segment));
    segment[16..18].copy_from_slice(&scoutline_wire::checksum::finish(sum).to_be_bytes());
    let frame = ip6_frame(&ip6_header(6, segment.len()), &segment);
    let (_, key) = host.demux(&frame);
    let path = host.interface.stray_path(&key).unwrap();
    assert_eq!(Some(path), host.interface.service_paths.reset6.get());
    let sent = host.receive(path, &frame);
    let header = ipv6::Header::parse(&sent[0][14..]).unwrap();
    assert_eq!((header.source, header.destination), (OURS6, PEER6));
    assert_eq!(sent[0][54 + 13], 0x14, "RST and ACK");
}
