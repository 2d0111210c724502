use std::net::Ipv4Addr;
use std::time::Duration;

use scoutline_path::{Control, DropReason, Effect, Message, Verdict};
use scoutline_wire::arp::{Operation, Packet};
use scoutline_wire::{ethernet, icmp};

use crate::neighbour::Found;
use crate::testing::{self, Host, OUR_LINK, OURS, PEER, PEER_LINK};

fn packet(operation: Operation, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut bytes = [0; 28];
    Packet { operation, sender_link: PEER_LINK, sender, target_link: [0; 6], target }.emit(&mut bytes);
    testing::eth(ethernet::TYPE_ARP, &bytes)
}

fn parse(frame: &[u8]) -> (ethernet::Header, Packet) {
    (ethernet::Header::parse(frame).unwrap(), Packet::parse(&frame[14..]).unwrap())
}

fn arp_path(host: &Host) -> scoutline_base::PathId {
    host.interface.service_paths.arp.get().unwrap()
}

#[test]
fn a_request_for_us_is_answered_and_learnt_from() {
    let mut host = Host::new();
    let frame = packet(Operation::Request, PEER, OURS);
    let arp = arp_path(&host);
    assert_eq!(host.demux(&frame).0, Verdict::Path(arp));
    let sent = host.receive(arp, &frame);
    assert_eq!(sent.len(), 1);
    let (link, reply) = parse(&sent[0]);
    assert_eq!((link.destination, link.source), (PEER_LINK, OUR_LINK));
    assert_eq!(reply.operation, Operation::Reply);
    assert_eq!((reply.sender_link, reply.sender), (OUR_LINK, OURS));
    assert_eq!((reply.target_link, reply.target), (PEER_LINK, PEER));
    let found = host.interface.neighbours.borrow_mut().find(PEER, host.now);
    assert!(matches!(found, Found::Known { link: PEER_LINK, .. }));
}

#[test]
fn what_is_not_about_us_makes_no_entry() {
    let mut host = Host::new();
    let arp = arp_path(&host);
    let other = Ipv4Addr::new(10, 0, 0, 9);
    assert!(host.receive(arp, &packet(Operation::Request, PEER, other)).is_empty());
    assert!(host.receive(arp, &packet(Operation::Reply, PEER, OURS)).is_empty());
    assert_eq!(host.interface.neighbours.borrow().entries().count(), 0, "nobody asked for that reply");
    // A gratuitous packet updates what is there.
    host.interface.neighbours.borrow_mut().learn(PEER, [2, 9, 9, 9, 9, 9], true, host.now);
    host.receive(arp, &packet(Operation::Request, PEER, PEER));
    let found = host.interface.neighbours.borrow_mut().find(PEER, host.now);
    assert!(matches!(found, Found::Known { link: PEER_LINK, .. }));
}

#[test]
fn a_conflict_is_counted_and_answered_at_a_limited_rate() {
    let mut host = Host::new();
    let arp = arp_path(&host);
    let claim = packet(Operation::Reply, OURS, PEER);
    let sent = host.receive(arp, &claim);
    assert_eq!(sent.len(), 1);
    let (link, announcement) = parse(&sent[0]);
    assert_eq!(link.destination, ethernet::BROADCAST);
    assert_eq!((announcement.sender, announcement.target), (OURS, OURS));
    assert!(host.receive(arp, &claim).is_empty());
    assert_eq!(host.interface.address_conflicts.get(), 2);
}

#[test]
fn bad_packets_are_counted() {
    let mut host = Host::new();
    let arp = arp_path(&host);
    let mut frame = packet(Operation::Request, PEER, OURS);
    frame[14 + 7] = 9;
    host.receive(arp, &frame);
    frame.truncate(30);
    assert_eq!(host.demux(&frame).0, Verdict::Drop(DropReason::Truncated));
    host.receive(arp, &frame);
    assert_eq!(host.drops(arp), [(DropReason::Truncated, 1), (DropReason::Malformed, 1)]);
}

/// A message as the network stage leaves it.
fn waiting(last: u8) -> Message {
    let mut message = testing::block(&[last]);
    let mut header = testing::ip_header(17, 9);
    (header.source, header.destination) = (OURS, PEER);
    message.head.prepend(8).copy_from_slice(&[0, 7, 0, 9, 0, 9, 0, 0]);
    header.emit(message.head.prepend(20));
    message
}

#[test]
fn a_silent_neighbour_is_reported_to_the_paths_that_waited() {
    let mut host = Host::new();
    let arp = arp_path(&host);
    {
        let mut neighbours = host.interface.neighbours.borrow_mut();
        neighbours.find(PEER, host.now);
        assert!(neighbours.hold(PEER, waiting(1)).is_empty());
    }
    for _ in 0..2 {
        assert_eq!(host.expire(arp, Duration::from_secs(1)).len(), 1);
    }
    assert!(host.expire(arp, Duration::from_secs(1)).is_empty());
    assert_eq!(host.drops(arp), [(DropReason::NoNeighbour, 1)]);
    let effects = host.effects();
    let [Effect::Notify(key, Control::Told(told))] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert_eq!((key.remote, key.remote_port, key.local, key.local_port), (PEER.into(), 9, OURS.into(), 7));
    assert_eq!((told.errno, told.kind, told.code), (crate::errno::EHOSTUNREACH, icmp::UNREACHABLE, 1));
}

/// A fragment has its transport header in the body; one datagram is reported once, with its data.
#[test]
fn a_datagram_in_fragments_is_reported_once() {
    let mut host = Host::new();
    let arp = arp_path(&host);
    host.interface.neighbours.borrow_mut().find(PEER, host.now);
    for offset in [0, 24, 48] {
        let mut piece = testing::block(&[&[0, 7, 0, 9, 0, 80, 0, 0], [b'd'; 16].as_slice()].concat());
        let mut header = testing::ip_header(17, 24);
        (header.source, header.destination) = (OURS, PEER);
        (header.fragment_offset, header.more_fragments) = (offset, offset < 48);
        header.emit(piece.head.prepend(20));
        assert!(host.interface.neighbours.borrow_mut().hold(PEER, piece).is_empty());
    }
    for _ in 0..3 {
        host.expire(arp, Duration::from_secs(1));
    }
    assert_eq!(host.drops(arp), [(DropReason::NoNeighbour, 3)]);
    let effects = host.effects();
    let [Effect::Notify(key, Control::Told(told))] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert_eq!((key.remote_port, key.local_port), (9, 7));
    assert_eq!(told.quoted, [b'd'; 16]);
}
