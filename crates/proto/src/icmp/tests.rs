use std::net::Ipv4Addr;

use scoutline_path::{Control, DropReason, Effect, Verdict};
use scoutline_wire::{checksum, icmp, ipv4};

use crate::testing::{Host, OURS, PEER, PEER_LINK, icmp_frame, icmp_message, ip_frame, ip_header, udp_frame};

fn quote(source: Ipv4Addr) -> Vec<u8> {
    let mut bytes = vec![0; 28];
    ipv4::Header { source, destination: PEER, ..ip_header(6, 8) }.emit(&mut bytes);
    bytes[20..24].copy_from_slice(&[0x1f, 0x90, 0, 80]);
    bytes
}

#[test]
fn an_echo_comes_back() {
    let mut host = Host::new();
    host.know_peer();
    let path = host.interface.service_paths.icmp.get().unwrap();
    let frame = icmp_frame(icmp::ECHO_REQUEST, 0, [1, 2, 3, 4], b"odd");
    assert_eq!(host.demux(&frame).0, Verdict::Path(path));
    let sent = host.receive(path, &frame);
    assert_eq!(sent.len(), 1);
    let header = ipv4::Header::parse(&sent[0][14..]).unwrap();
    assert_eq!((header.source, header.destination, header.protocol), (OURS, PEER, 1));
    assert!(sent[0].starts_with(&PEER_LINK) && ipv4::checksum_is_valid(&sent[0][14..34]));
    assert_eq!(sent[0][34..], icmp_message(icmp::ECHO_REPLY, 0, [1, 2, 3, 4], b"odd"));
}

#[test]
fn a_large_echo_comes_back_in_fragments() {
    let mut host = Host::new();
    host.know_peer();
    let path = host.interface.service_paths.icmp.get().unwrap();
    let sent = host.receive(path, &icmp_frame(icmp::ECHO_REQUEST, 0, [0; 4], &[5; 4000]));
    assert_eq!(sent.len(), 3);
}

#[test]
fn faults_and_broadcasts_are_counted() {
    let mut host = Host::new();
    host.know_peer();
    let path = host.interface.service_paths.icmp.get().unwrap();
    let mut bad = icmp_frame(icmp::ECHO_REQUEST, 0, [0; 4], b"x");
    *bad.last_mut().unwrap() ^= 1;
    host.receive(path, &bad);
    let message = icmp_message(icmp::ECHO_REQUEST, 0, [0; 4], b"x");
    let broadcast = ipv4::Header { destination: Ipv4Addr::new(10, 0, 0, 255), ..ip_header(1, message.len()) };
    assert!(host.receive(path, &ip_frame(&broadcast, &message)).is_empty());
    host.receive(path, &icmp_frame(99, 0, [0; 4], b""));
    host.receive(path, &ip_frame(&ip_header(1, 4), &[8, 0, 0, 0]));
    host.receive(path, &icmp_frame(icmp::UNREACHABLE, 3, [0; 4], &[0x45; 9]));
    let expected = [
        DropReason::Truncated,
        DropReason::Malformed,
        DropReason::BadChecksum,
        DropReason::NotForUs,
        DropReason::UnknownProtocol,
    ];
    assert_eq!(host.drops(path), expected.map(|reason| (reason, 1)));
}

#[test]
fn an_error_reaches_the_flow_that_it_is_about() {
    let mut host = Host::new();
    let path = host.interface.service_paths.icmp.get().unwrap();
    host.receive(path, &icmp_frame(icmp::UNREACHABLE, 1, [0; 4], &quote(OURS)));
    let effects = host.effects();
    let [Effect::Notify(key, Control::UnreachableSegment(3, 1, _))] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (key.local, key.local_port, key.remote, key.remote_port),
        (OURS.into(), 8080, PEER.into(), 80)
    );
    assert_eq!(key.protocol, 6);
    host.receive(path, &icmp_frame(icmp::UNREACHABLE, 1, [0; 4], &quote(PEER)));
    assert!(host.effects().is_empty(), "about a datagram that was never ours");
    assert_eq!(host.drops(path), [(DropReason::NotForUs, 1)]);
}

#[test]
fn what_nobody_takes_is_reported_at_a_limited_rate() {
    let mut host = Host::new();
    host.know_peer();
    let path = host.interface.service_paths.unreachable.get().unwrap();
    let frame = udp_frame((9, 7), b"hello");
    let (verdict, key) = host.demux(&frame);
    assert_eq!(verdict, Verdict::NoPath);
    assert_eq!(host.interface.stray_path(&key), Some(path));
    let sent = host.receive(path, &frame);
    assert_eq!(sent.len(), 1);
    let message = &sent[0][34..];
    assert!(checksum::is_valid(checksum::sum(message)));
    assert_eq!(message[..2], [icmp::UNREACHABLE, icmp::unreachable::PORT]);
    assert_eq!(message[8..], frame[14..], "the whole cause, options and all");
    let sent: usize = (0..100).map(|_| host.receive(path, &frame).len()).sum();
    assert_eq!(sent, 49);
    assert_eq!(host.path(path).account.drops(DropReason::RateLimited), 51);
    assert_eq!(host.path(path).account.drops(DropReason::NoPath), 101);
}

/// RFC 1122 §3.2.2.1.
#[test]
fn a_protocol_that_nobody_speaks_is_reported() {
    let mut host = Host::new();
    host.know_peer();
    let sent = host.on_frame(&ip_frame(&ip_header(253, 4), b"what"));
    assert_eq!(sent[0][34..36], [icmp::UNREACHABLE, icmp::unreachable::PROTOCOL]);
    let path = host.interface.service_paths.unreachable.get().unwrap();
    assert_eq!(host.drops(path), [(DropReason::UnknownProtocol, 1)]);
    let to_all = ipv4::Header { destination: Ipv4Addr::BROADCAST, ..ip_header(253, 4) };
    assert!(host.on_frame(&ip_frame(&to_all, b"what")).is_empty());
}

/// A flood for nobody must not cost a checksum for each; a datagram that proves broken costs no report.
#[test]
fn only_what_would_be_reported_is_read() {
    let mut host = Host::new();
    host.know_peer();
    let path = host.interface.service_paths.unreachable.get().unwrap();
    let whole = udp_frame((9, 7), b"hello");
    let mut broken = whole.clone();
    *broken.last_mut().unwrap() ^= 1;
    assert!(host.receive(path, &broken).is_empty());
    assert_eq!(host.drops(path), [(DropReason::BadChecksum, 1)]);
    let sent: usize = (0..60).map(|_| host.receive(path, &whole).len()).sum();
    assert_eq!(sent, 50, "it took nothing of the limit");
    assert!(host.receive(path, &broken).is_empty());
    assert_eq!(host.path(path).account.drops(DropReason::BadChecksum), 1);
    assert_eq!(host.path(path).account.drops(DropReason::RateLimited), 11);
}

#[test]
fn broadcasts_are_never_reported() {
    let mut host = Host::new();
    let path = host.interface.service_paths.unreachable.get().unwrap();
    let header = ipv4::Header { destination: Ipv4Addr::BROADCAST, ..ip_header(17, 8) };
    let frame = ip_frame(&header, &[0, 9, 0, 7, 0, 8, 0, 0]);
    assert_eq!(host.interface.stray_path(&host.demux(&frame).1), None);
    assert!(host.receive(path, &frame).is_empty());
}
