use scoutline_base::PathId;
use scoutline_path::{Attributes, Checksum, Control, CreateError, DropReason, Name, Value, Verdict};
use scoutline_wire::{checksum, udp};

use crate::testing::{self, Host, OURS, PEER, address, control, controls, ip_frame, ip_header, udp_frame};
use crate::{Interface, Offload};
use std::net::Ipv4Addr;
use std::rc::Rc;

fn attributes(connected: bool) -> Attributes {
    let attributes = Attributes::new()
        .with(Name::Protocol, Value::Number(17))
        .with(Name::Local, address(Ipv4Addr::UNSPECIFIED, 7));
    if connected { attributes.with(Name::Remote, address(PEER, 9)) } else { attributes }
}

fn host(connected: bool) -> (Host, PathId) {
    let mut host = Host::new();
    host.know_peer();
    let path = host.create("SOCKET", attributes(connected));
    (host, path)
}

#[test]
fn datagrams_come_with_their_addresses() {
    let (mut host, path) = host(false);
    let frame = udp_frame((9, 7), b"hello");
    assert_eq!(host.demux(&frame).0, Verdict::NoPath);
    host.net.udp.listen("0.0.0.0:7".parse().unwrap(), 0, path);
    assert_eq!(host.demux(&frame).0, Verdict::Path(path));
    host.receive(path, &frame);
    let received = host.received();
    assert_eq!(received[0].bytes(), b"hello");
    let facts = &received[0].facts;
    assert_eq!(
        (facts.source, facts.destination, facts.ports),
        (Some(PEER.into()), Some(OURS.into()), Some((9, 7)))
    );
    host.receive(path, &udp_frame((9, 7), b""));
    assert_eq!(host.received()[0].bytes(), b"");
}

#[test]
fn checksums_are_verified_unless_vouched_for_or_absent() {
    let (mut host, path) = host(false);
    let mut bad = udp_frame((9, 7), b"hello");
    bad[40] ^= 1;
    host.receive(path, &bad);
    assert_eq!(host.drops(path), [(DropReason::BadChecksum, 1)]);
    let mut vouched = testing::received(&bad);
    vouched.facts.checksum = Checksum::Verified;
    host.receive_message(path, vouched);
    bad[40..42].fill(0);
    host.receive(path, &bad);
    assert_eq!(host.received().len(), 2);
    let partial = |host: &mut Host| {
        let mut message = testing::received(&bad);
        message.facts.checksum = Checksum::Partial { start: 34, offset: 6 };
        let Checksum::Partial { .. } = message.facts.checksum else { unreachable!() };
        host.receive_message(path, message);
        host.received().len()
    };
    assert_eq!(partial(&mut host), 1);
}

#[test]
fn partial_checksums_count_from_trusted_devices_only() {
    let (mut host, path) = host(false);
    let mut frame = udp_frame((9, 7), b"hello");
    frame[40] ^= 1;
    for (trusted, count) in [(true, 1), (false, 0)] {
        host.interface.trusted_checksums.set(trusted);
        let mut message = testing::received(&frame);
        message.facts.checksum = Checksum::Partial { start: 34, offset: 6 };
        host.receive_message(path, message);
        assert_eq!(host.received().len(), count);
    }
}

#[test]
fn lengths_that_lie_are_refused() {
    let (mut host, path) = host(false);
    let short = ip_frame(&ip_header(17, 6), &[0, 9, 0, 7, 0, 6]);
    assert_eq!(host.demux(&short).0, Verdict::Drop(DropReason::Truncated));
    host.receive(path, &short);
    let long = ip_frame(&ip_header(17, 8), &[0, 9, 0, 7, 0, 99, 0, 0]);
    host.receive(path, &long);
    let below = ip_frame(&ip_header(17, 8), &[0, 9, 0, 7, 0, 3, 0, 0]);
    assert_eq!(host.demux(&below).0, Verdict::Drop(DropReason::Malformed));
    host.receive(path, &below);
    assert_eq!(host.drops(path), [(DropReason::Truncated, 2), (DropReason::Malformed, 1)]);
    // IP may carry more than the datagram.
    let mut padded = testing::udp_datagram((9, 7), b"hi");
    padded.extend_from_slice(&[1, 2, 3]);
    host.receive(path, &ip_frame(&ip_header(17, padded.len()), &padded));
    assert_eq!(host.received()[0].bytes(), b"hi");
}

/// RFC 1122 §4.1.3.1.
#[test]
fn at_port_0_is_nobody_and_the_sender_is_told() {
    let host = Host::new();
    let (verdict, key) = host.demux(&udp_frame((9, 0), b"x"));
    assert_eq!(verdict, Verdict::NoPath);
    assert_eq!(host.interface.stray_path(&key), host.interface.service_paths.unreachable.get());
    let host = Host::with_ip6();
    let (verdict, key) =
        host.demux(&testing::ip6_frame(&testing::ip6_header(17, 9), &testing::udp6_datagram((9, 0), b"x")));
    assert_eq!(verdict, Verdict::NoPath);
    assert_eq!(host.interface.stray_path(&key), host.interface.service_paths.unreachable6.get());
}

fn sent_sum(frame: &[u8]) -> u16 {
    let datagram = &frame[34..];
    checksum::add(checksum::pseudo_header(OURS, PEER, 17, datagram.len()), checksum::sum(datagram))
}

#[test]
fn outward_to_the_remote_or_to_where_the_message_says() {
    let (mut host, path) = host(true);
    let sent = host.send(path, testing::block(b"odd"));
    let header = udp::Header::parse(&sent[0][34..]).unwrap();
    assert_eq!((header.source_port, header.destination_port, header.len), (7, 9, 11));
    assert!(checksum::is_valid(sent_sum(&sent[0])));
    let wildcard = host.create("SOCKET", attributes(false));
    let mut message = testing::block(b"x");
    assert!(host.send(wildcard, testing::block(b"lost")).is_empty());
    assert_eq!(host.drops(wildcard), [(DropReason::NoRoute, 1)]);
    message.facts.destination = Some(PEER.into());
    message.facts.ports = Some((0, 99));
    let sent = host.send(wildcard, message);
    assert_eq!(udp::Header::parse(&sent[0][34..]).unwrap().destination_port, 99);
}

#[test]
fn a_device_completes_the_checksum() {
    let (mut host, path) = host(true);
    host.interface.offload.set(Offload { checksum: true, tcp_segmentation: None });
    let sent = host.send(path, testing::block(b"hello"));
    let pseudo = checksum::pseudo_header(OURS, PEER, 17, 13);
    assert_eq!(sent[0][40..42], pseudo.to_be_bytes());
    // What is cut into fragments cannot be left to it.
    let sent = host.send(path, testing::block(&[3; 2000]));
    assert_eq!(sent.len(), 2);
    assert_ne!(sent[0][40..42], checksum::pseudo_header(OURS, PEER, 17, 2008).to_be_bytes());
    assert!(host.send(path, testing::block(&vec![0; super::MAX_PAYLOAD + 1])).is_empty());
    assert_eq!(host.drops(path), [(DropReason::Malformed, 1)]);
}

#[test]
fn errors_go_up_and_a_close_is_answered() {
    let (mut host, path) = host(true);
    let told = Control::Told(Box::default());
    host.receive_message(path, control(told.clone()));
    assert_eq!(controls(&host.received()), [told]);
    host.send(path, control(Control::Close));
    assert_eq!(controls(&host.received()), [Control::Closed]);
}

#[test]
fn a_connected_path_takes_its_peer_alone() {
    let (mut host, path) = host(true);
    host.receive(path, &udp_frame((10, 7), b"other"));
    assert_eq!(host.drops(path), [(DropReason::NotForUs, 1)]);
}

#[test]
fn creation_checks_addresses() {
    let (mut host, _) = host(false);
    let udp = || Attributes::new().with(Name::Protocol, Value::Number(17));
    let missing = host.try_create("SOCKET", udp());
    assert!(matches!(missing, Err(CreateError::MissingAttribute { .. })));
    let foreign = udp().with(Name::Local, address(PEER, 7));
    assert_eq!(host.try_create("SOCKET", foreign), Err(CreateError::Unreachable));
    let far =
        udp().with(Name::Local, address(OURS, 7)).with(Name::Remote, address(Ipv4Addr::new(192, 0, 2, 1), 9));
    assert_eq!(host.try_create("SOCKET", far), Err(CreateError::Unreachable));
    let _: &Rc<Interface> = &host.interface;
}
