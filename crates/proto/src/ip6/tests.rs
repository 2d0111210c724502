use std::net::Ipv6Addr;
use std::time::Duration;

use proptest::prelude::*;
use scoutline_base::PathId;
use scoutline_path::{Attributes, DropReason, Effect, Message, Name, Value, Verdict};
use scoutline_wire::ipv6::{self, Fragment};
use scoutline_wire::{ethernet, icmpv6};

use crate::testing::{
    self, Host, OURS6, PEER, PEER_LINK, PEER6, address, ip6_frame, ip6_header, udp6_datagram,
};

const UDP: u8 = 17;

/// A host with a UDP path at port 7.
fn host(remote: Option<Ipv6Addr>) -> (Host, PathId) {
    let mut host = Host::with_ip6();
    let mut attributes = Attributes::new()
        .with(Name::Protocol, Value::Number(17))
        .with(Name::Local, address(Ipv6Addr::UNSPECIFIED, 7));
    if let Some(remote) = remote {
        attributes.set(Name::Remote, address(remote, 9));
    }
    let path = host.create("SOCKET", attributes);
    host.net.udp.listen("[::]:7".parse().unwrap(), 0, path);
    (host, path)
}

fn udp_frame(payload: &[u8]) -> Vec<u8> {
    let datagram = udp6_datagram((9, 7), payload);
    ip6_frame(&ip6_header(UDP, datagram.len()), &datagram)
}

#[test]
fn a_datagram_comes_with_its_addresses_and_goes_back() {
    let (mut host, path) = host(None);
    let frame = udp_frame(b"hello");
    assert_eq!(host.demux(&frame).0, Verdict::Path(path));
    host.receive(path, &frame);
    let received = host.received();
    assert_eq!(received[0].bytes(), b"hello");
    assert_eq!(received[0].facts.source, Some(PEER6.into()));
    let mut answer = testing::block(b"back");
    answer.facts.destination = Some(PEER6.into());
    answer.facts.ports = Some((7, 9));
    let sent = host.send(path, answer);
    assert!(sent[0].starts_with(&PEER_LINK));
    let header = ipv6::Header::parse(&sent[0][14..]).unwrap();
    assert_eq!((header.source, header.destination, header.hop_limit), (OURS6, PEER6, super::HOP_LIMIT));
    let sum = scoutline_wire::checksum::pseudo_header(OURS6, PEER6, UDP, 12);
    let sum = scoutline_wire::checksum::add(sum, scoutline_wire::checksum::sum(&sent[0][54..]));
    assert!(scoutline_wire::checksum::is_valid(sum));
}

#[test]
fn what_no_honest_packet_is_gets_dropped() {
    let (mut host, path) = host(None);
    let good = udp_frame(b"x");
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let mapped = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x0a00, 2).octets();
    let ours_mapped = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x0a00, 1).octets();
    let cases = [
        ("an IPv4 address as source", with(22, &mapped), DropReason::Malformed),
        ("our IPv4 address as destination", with(38, &ours_mapped), DropReason::Malformed),
        ("a group as source", with(22, &[0xff, 2]), DropReason::Malformed),
        ("our own address as source", with(22, &OURS6.octets()), DropReason::Malformed),
        ("loopback as source", with(22, &Ipv6Addr::LOCALHOST.octets()), DropReason::Malformed),
        ("nobody as source", with(22, &Ipv6Addr::UNSPECIFIED.octets()), DropReason::Malformed),
        ("for somebody else", with(38, &PEER6.octets()), DropReason::NotForUs),
        ("version 4", with(14, &[0x45]), DropReason::Malformed),
        ("longer than the frame", with(18, &[0, 99]), DropReason::Truncated),
        ("no UDP checksum", with(60, &[0, 0]), DropReason::BadChecksum),
        ("a wrong UDP checksum", with(62, &[99]), DropReason::BadChecksum),
    ];
    for (what, frame, reason) in cases {
        let before = host.path(path).account.drops(reason);
        host.receive(path, &frame);
        assert_eq!(host.path(path).account.drops(reason), before + 1, "{what}");
    }
    assert!(host.received().is_empty());
}

#[test]
fn extension_headers_are_passed_over_or_reported() {
    let (mut host, path) = host(None);
    let with_option = |kind: u8| {
        let datagram = udp6_datagram((9, 7), b"ext");
        let mut payload = vec![UDP, 0, kind, 4, 0, 0, 0, 0];
        payload.extend_from_slice(&datagram);
        ip6_frame(&ip6_header(ipv6::DESTINATION_OPTIONS, payload.len()), &payload)
    };
    let skipped = with_option(0x1e);
    assert_eq!(host.demux(&skipped).0, Verdict::Path(path));
    host.receive(path, &skipped);
    assert_eq!(host.received()[0].bytes(), b"ext");
    let unreachable = host.interface.service_paths.unreachable6.get().unwrap();
    let unknown = with_option(0x9e);
    assert_eq!(host.demux(&unknown).0, Verdict::Path(unreachable));
    let sent = host.receive(unreachable, &unknown);
    let header = icmpv6::Header::parse(&sent[0][54..], OURS6.into(), PEER6.into()).unwrap();
    assert_eq!((header.kind, header.code, header.rest), (icmpv6::PARAMETER_PROBLEM, 2, [0, 0, 0, 42]));
    assert_eq!(host.demux(&with_option(0x5e)).0, Verdict::Drop(DropReason::Malformed));
    // An unknown next header (RFC 8200 §4).
    for next in [200, 1] {
        let strange = ip6_frame(&ip6_header(next, 4), &[0; 4]);
        let (verdict, key) = host.demux(&strange);
        assert_eq!(
            (verdict, host.interface.stray_path(&key)),
            (Verdict::NoPath, Some(unreachable)),
            "{next}"
        );
        let sent = host.receive(unreachable, &strange);
        let header = icmpv6::Header::parse(&sent[0][54..], OURS6.into(), PEER6.into()).unwrap();
        assert_eq!((header.kind, header.code, header.rest), (icmpv6::PARAMETER_PROBLEM, 1, [0, 0, 0, 6]));
    }
    assert_eq!(host.demux(&ip6_frame(&ip6_header(59, 0), &[])).0, Verdict::Drop(DropReason::UnknownProtocol));
}

fn pieces(payload: &[u8], cuts: &[usize], next: u8) -> Vec<Vec<u8>> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut & !7).filter(|&cut| cut < payload.len()).collect();
    ends.push(payload.len());
    ends.sort_unstable();
    ends.dedup();
    let mut start = 0;
    let mut frames = Vec::new();
    for end in ends.into_iter().filter(|&end| end > 0) {
        let fragment = Fragment {
            next_header: next,
            offset: start as u16,
            more: end < payload.len(),
            identification: 77,
        };
        let mut bytes = vec![0; 8];
        fragment.emit(&mut bytes);
        bytes.extend_from_slice(&payload[start..end]);
        frames.push(ip6_frame(&ip6_header(ipv6::FRAGMENT, bytes.len()), &bytes));
        start = end;
    }
    frames
}

/// Runs frames through the reassembly path: what came out, classified afresh.
fn reassemble(host: &mut Host, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let path = host.interface.service_paths.reassembly6.get().unwrap();
    let mut whole = Vec::new();
    for frame in frames {
        assert_eq!(host.demux(frame).0, Verdict::Path(path));
        host.receive(path, frame);
        whole.extend(host.effects().into_iter().map(|effect| match effect {
            Effect::Reclassify(message) => message.bytes().to_vec(),
            effect => panic!("{effect:?}"),
        }));
    }
    whole
}

#[test]
fn overlaps_and_incomplete_headers_are_refused() {
    let (mut host, _) = host(None);
    let datagram = udp6_datagram((9, 7), &[5; 100]);
    let path = host.interface.service_paths.reassembly6.get().unwrap();
    let mut frames = pieces(&datagram, &[48], UDP);
    // RFC 5722: the second begins within the first; the whole is gone, whatever else comes.
    let mut overlap = frames[1].clone();
    overlap[56..58].copy_from_slice(&40u16.to_be_bytes());
    frames.insert(1, overlap);
    assert!(reassemble(&mut host, &frames).is_empty());
    assert_eq!(host.path(path).account.drops(DropReason::FragmentOverlap), 2);
    host.expire(path, Duration::from_secs(60));
    // RFC 7112: a first fragment without the transport header.
    let tiny = pieces(&datagram, &[8], 6);
    host.receive(path, &tiny[0]);
    assert_eq!(host.path(path).account.drops(DropReason::Malformed), 1);
    // RFC 6980: neighbour discovery in fragments.
    let solicitation = pieces(&[135, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8], &[8], 58);
    host.receive(path, &solicitation[0]);
    assert_eq!(host.path(path).account.drops(DropReason::Malformed), 2);
    // RFC 6980 §5: and behind the header of an atomic one.
    let solicitation = pieces(&[135, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8], &[], 58);
    host.receive(path, &solicitation[0]);
    assert_eq!(host.path(path).account.drops(DropReason::Malformed), 3);
    assert!(host.effects().is_empty());
    // RFC 6946: an atomic fragment is whole, also beside pieces of the same number.
    let atomic = pieces(&datagram, &[], UDP);
    assert_eq!(reassemble(&mut host, &atomic).len(), 1);
}

/// RFC 3168 §5.3.
#[test]
fn a_mark_on_a_piece_is_on_the_whole() {
    let (mut host, _) = host(None);
    let mut frames = pieces(&udp6_datagram((9, 7), &[5; 100]), &[48], UDP);
    let mark = |frame: &mut Vec<u8>, ecn: u8| frame[15] = frame[15] & 0x0f | ecn << 4;
    mark(&mut frames[0], 0b10);
    mark(&mut frames[1], 0b11);
    let whole = reassemble(&mut host, &frames);
    assert_eq!(ipv6::Header::parse(&whole[0][14..]).unwrap().traffic_class, 0b11);
    mark(&mut frames[0], 0);
    assert!(reassemble(&mut host, &frames).is_empty(), "it could not be marked");
}

/// RFC 8200 §4.5, RFC 7112 §5: where the fault is.
#[test]
fn the_sender_of_a_wrong_fragment_is_told() {
    let (mut host, _) = host(None);
    let path = host.interface.service_paths.reassembly6.get().unwrap();
    let frames = pieces(&udp6_datagram((9, 7), &[5; 100]), &[48], UDP);
    // One byte less, and more to come.
    let mut uneven = frames[0].clone();
    uneven[18..20].copy_from_slice(&55u16.to_be_bytes());
    uneven.truncate(frames[0].len() - 1);
    // Beyond what a length can tell.
    let mut beyond = frames[1].clone();
    beyond[56..58].copy_from_slice(&0xfff8u16.to_be_bytes());
    let tiny = pieces(&udp6_datagram((9, 7), &[5; 100]), &[8], 6).swap_remove(0);
    for (frame, code, pointer) in [(uneven, 0, 4), (beyond, 0, 42), (tiny, 3, 0)] {
        let sent = host.receive(path, &frame);
        let header = icmpv6::Header::parse(&sent[0][54..], OURS6.into(), PEER6.into()).unwrap();
        assert_eq!((header.kind, header.code), (icmpv6::PARAMETER_PROBLEM, code));
        assert_eq!(header.rest, u32::to_be_bytes(pointer));
        assert_eq!(sent[0][62..62 + 40], frame[14..54], "the packet that it is about");
    }
    assert_eq!(host.path(path).account.drops(DropReason::Malformed), 3);
}

#[test]
fn what_never_becomes_whole_is_told() {
    let (mut host, _) = host(None);
    let path = host.interface.service_paths.reassembly6.get().unwrap();
    let frames = pieces(&udp6_datagram((9, 7), &[5; 100]), &[48], UDP);
    host.receive(path, &frames[0]);
    let sent = host.expire(path, Duration::from_secs(61));
    let header = icmpv6::Header::parse(&sent[0][54..], OURS6.into(), PEER6.into()).unwrap();
    assert_eq!((header.kind, header.code), (icmpv6::TIME_EXCEEDED, icmpv6::REASSEMBLY_TIME));
    assert_eq!(sent[0][62..62 + 48], frames[0][14..62], "the fragment's own headers");
    assert_eq!(host.path(path).account.drops(DropReason::FragmentTimeout), 1);
}

#[test]
fn what_is_too_big_is_cut_to_the_path() {
    let (mut host, path) = host(Some(PEER6));
    assert_eq!(host.send(path, testing::block(&[1; 1452])).len(), 1);
    assert_eq!(host.send(path, testing::block(&[1; 1453])).len(), 2);
    // RFC 8201: a router says what it carries.
    let mut quote = vec![0; 48];
    ipv6::Header { source: OURS6, destination: PEER6, ..ip6_header(UDP, 8) }.emit(&mut quote);
    quote[40..44].copy_from_slice(&[0, 7, 0, 9]);
    let icmp = host.interface.service_paths.icmp6.get().unwrap();
    let too_big =
        |mtu: u32| testing::icmp6_frame((PEER6, OURS6), icmpv6::PACKET_TOO_BIG, mtu.to_be_bytes(), &quote);
    // It is the path that has sent such a packet that learns of it, as the engine finds it.
    let hear = |host: &mut Host, mtu: u32| {
        host.receive(icmp, &too_big(mtu));
        let told = host.effects();
        let [Effect::Notify(_, control)] = &told[..] else { panic!("{told:?}") };
        host.receive_message(path, Message::control(control.clone()));
    };
    host.receive(icmp, &too_big(1400));
    host.effects();
    assert_eq!(host.send(path, testing::block(&[1; 1452])).len(), 1, "no path has heard of it");
    hear(&mut host, 1400);
    let sent = host.send(path, testing::block(&[1; 1452]));
    let lens: Vec<usize> = sent.iter().map(|frame| frame.len() - 14).collect();
    assert!(lens.len() == 2 && lens[0] <= 1400, "{lens:?}");
    // No less than every link carries, whatever anybody says.
    hear(&mut host, 100);
    let sent = host.send(path, testing::block(&[1; 1452]));
    assert!(sent.len() == 2 && sent[0].len() - 14 > 1280);
    host.now += Duration::from_secs(601);
    host.know_peer6(PEER6, PEER_LINK);
    assert_eq!(host.send(path, testing::block(&[1; 1452])).len(), 1, "believed for ten minutes");
}

#[test]
fn a_dual_socket_speaks_both() {
    let mut host = Host::with_ip6();
    host.know_peer();
    let attributes = Attributes::new()
        .with(Name::Protocol, Value::Number(17))
        .with(Name::Local, address(Ipv6Addr::UNSPECIFIED, 7))
        .with(Name::Other(super::DUAL), Value::Number(1));
    let path = host.create("SOCKET", attributes);
    host.receive(path, &udp_frame(b"six"));
    host.receive(path, &testing::udp_frame((9, 7), b"four"));
    let received = host.received();
    let sources: Vec<_> = received.iter().map(|message| message.facts.source.unwrap()).collect();
    assert_eq!(sources, [PEER6.into(), PEER.into()]);
    for (to, ethertype) in [(PEER6.into(), ethernet::TYPE_IPV6), (PEER.into(), ethernet::TYPE_IPV4)] {
        let mut message = testing::block(b"answer");
        message.facts.destination = Some(to);
        message.facts.ports = Some((7, 9));
        let sent = host.send(path, message);
        assert_eq!(sent[0][12..14], ethertype.to_be_bytes());
        assert!(sent[0].starts_with(&PEER_LINK) && sent[0].ends_with(b"answer"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_cut_comes_together_in_any_order(
        len in 1usize..6000, cuts in proptest::collection::vec(48usize..6000, 0..8),
        order in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let (mut host, path) = host(None);
        let payload: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let datagram = udp6_datagram((9, 7), &payload);
        let mut frames = pieces(&datagram, &cuts, UDP);
        // Shuffled, some twice.
        for index in &order {
            let frame = frames.remove(index.index(frames.len()));
            frames.push(frame);
        }
        if frames.len() > 1 {
            frames.insert(1, frames[0].clone());
        }
        let whole = reassemble(&mut host, &frames);
        prop_assert!(!whole.is_empty());
        host.receive(path, &whole[0]);
        let received = host.received();
        prop_assert_eq!(received[0].bytes(), &payload[..]);
    }

    #[test]
    fn any_frame_is_taken_or_dropped(bytes in proptest::collection::vec(any::<u8>(), 0..200), next in any::<u8>()) {
        let (mut host, path) = host(None);
        let frame = ip6_frame(&ip6_header(next, bytes.len()), &bytes);
        if let (Verdict::Path(id), _) = host.demux(&frame) {
            host.receive(id, &frame);
        }
        host.receive(path, &frame);
        let paths = &host.interface.service_paths;
        for id in [paths.reassembly6.get().unwrap(), paths.unreachable6.get().unwrap()] {
            host.receive(id, &frame);
        }
        host.effects();
    }
}
