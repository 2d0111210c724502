use std::net::Ipv6Addr;
use std::time::Duration;

use proptest::prelude::*;
use scoutline_path::{Attributes, Control, DropReason, Effect, Name, Value, Verdict};
use scoutline_wire::ipv6;
use scoutline_wire::nd::{self, Advertisement, Solicitation};

use crate::NextHop;
use crate::ip6::AddressState;
use crate::neighbour::Found;
use crate::testing::{
    self, Host, OUR_LINK, OUR_LOCAL, OURS6, PEER_LINK, PEER_LOCAL, PEER6, address, icmp6_frame, interface6,
};

fn solicitation(source: Ipv6Addr, target: Ipv6Addr, link: bool) -> Vec<u8> {
    let mut body = [0; 24];
    let len = Solicitation { target, source_link: link.then_some(PEER_LINK) }.emit(&mut body);
    let to = nd::solicited_node(target);
    icmp6_frame((source, to), nd::NEIGHBOUR_SOLICITATION, [0; 4], &body[..len])
}

fn advertisement(target: Ipv6Addr, to: Ipv6Addr, solicited: bool, overrides: bool) -> Vec<u8> {
    let said = Advertisement { router: false, solicited, overrides, target, target_link: Some(PEER_LINK) };
    let mut body = [0; 24];
    said.emit(&mut body);
    icmp6_frame((target, to), nd::NEIGHBOUR_ADVERTISEMENT, said.flags(), &body)
}

fn nd_path(host: &Host) -> scoutline_base::PathId {
    host.interface.service_paths.nd.get().unwrap()
}

/// A host with a UDP path to `PEER6`, which it does not know yet.
fn asking_host() -> (Host, scoutline_base::PathId) {
    let mut host = Host::with(&interface6(OUR_LINK, OURS6, false), false);
    host.settle_ip6();
    let attributes = Attributes::new()
        .with(Name::Protocol, Value::Number(17))
        .with(Name::Local, address(OURS6, 7))
        .with(Name::Remote, address(PEER6, 9));
    let path = host.create("SOCKET", attributes);
    (host, path)
}

#[test]
fn an_address_is_probed_before_it_is_used() {
    let mut host = Host::with(&interface6(OUR_LINK, OURS6, true), false);
    let path = nd_path(&host);
    let sent = host.expire(path, Duration::ZERO);
    let kinds: Vec<u8> = sent
        .iter()
        .map(|frame| {
            let upper = ipv6::walk(&frame[14..]).unwrap();
            frame[14 + upper.offset]
        })
        .collect();
    assert_eq!(kinds, [143, 135, 143, 135, 133], "for each address a report and a probe; then for routers");
    let probe = &sent[3];
    let header = ipv6::Header::parse(&probe[14..]).unwrap();
    assert!(header.source.is_unspecified());
    assert_eq!((header.destination, header.hop_limit), (nd::solicited_node(OURS6), 255));
    assert_eq!(probe[..6], [0x33, 0x33, 0xff, 0, 0, 1]);
    // Asked for meanwhile: not ours to answer yet.
    assert!(host.receive(path, &solicitation(PEER6, OURS6, true)).is_empty());
    host.expire(path, Duration::from_secs(1));
    assert!(host.interface.is_ours(OURS6.into()));
    assert_eq!(host.receive(path, &solicitation(PEER6, OURS6, true)).len(), 1);
}

#[test]
fn who_has_or_probes_our_address_takes_it() {
    for frame in
        [solicitation(Ipv6Addr::UNSPECIFIED, OURS6, false), advertisement(OURS6, nd::ALL_NODES, false, true)]
    {
        let mut host = Host::with(&interface6(OUR_LINK, OURS6, false), false);
        let path = nd_path(&host);
        host.expire(path, Duration::ZERO);
        host.receive(path, &frame);
        host.expire(path, Duration::from_secs(2));
        assert!(!host.interface.is_ours(OURS6.into()) && host.interface.is_ours(OUR_LOCAL.into()));
        let states: Vec<_> = host.interface.ip6.addresses().iter().map(|own| own.state).collect();
        assert_eq!(states, [AddressState::Preferred, AddressState::Duplicate]);
        assert_eq!(host.interface.address_conflicts.get(), 1);
    }
}

#[test]
fn a_solicitation_is_answered_and_learnt_from() {
    let mut host = Host::with_ip6();
    let path = nd_path(&host);
    let frame = solicitation(PEER_LOCAL, OURS6, true);
    assert_eq!(host.demux(&frame).0, Verdict::Path(path));
    let sent = host.receive(path, &frame);
    assert!(sent[0].starts_with(&PEER_LINK));
    let header = ipv6::Header::parse(&sent[0][14..]).unwrap();
    assert_eq!((header.source, header.destination, header.hop_limit), (OURS6, PEER_LOCAL, 255));
    let said = Advertisement::parse(&sent[0][54..]).unwrap();
    let expected = Advertisement {
        router: false,
        solicited: true,
        overrides: true,
        target: OURS6,
        target_link: Some(OUR_LINK),
    };
    assert_eq!(said, expected);
    let found = host.interface.neighbours6.borrow_mut().find(PEER_LOCAL, host.now);
    assert!(matches!(found, Found::Known { link: PEER_LINK, .. }), "{found:?}");
    // Another's probe for an address that we have: told to all.
    let sent = host.receive(path, &solicitation(Ipv6Addr::UNSPECIFIED, OURS6, false));
    let header = ipv6::Header::parse(&sent[0][14..]).unwrap();
    assert_eq!(header.destination, nd::ALL_NODES);
    assert!(!Advertisement::parse(&sent[0][54..]).unwrap().solicited);
}

#[test]
fn what_did_not_come_from_the_link_is_dropped() {
    let mut host = Host::with_ip6();
    let path = nd_path(&host);
    let mut far = solicitation(PEER_LOCAL, OURS6, true);
    far[21] = 254;
    let probe_with_link = solicitation(Ipv6Addr::UNSPECIFIED, OURS6, true);
    let mut bad_sum = solicitation(PEER_LOCAL, OURS6, true);
    bad_sum[56] ^= 1;
    let to_all = advertisement(PEER6, nd::ALL_NODES, true, true);
    let router = icmp6_frame((PEER6, nd::ALL_NODES), nd::ROUTER_ADVERTISEMENT, [64, 0, 7, 8], &[0; 8]);
    for frame in [far, probe_with_link, to_all, router] {
        assert!(host.receive(path, &frame).is_empty());
    }
    host.receive(path, &bad_sum);
    let mut own = solicitation(PEER_LOCAL, OURS6, true);
    own[6..12].copy_from_slice(&OUR_LINK);
    host.receive(path, &own);
    // We advertise nothing, so nobody's question for routers is answered.
    let question = icmp6_frame((PEER_LOCAL, nd::ALL_NODES), nd::ROUTER_SOLICITATION, [0; 4], &[]);
    host.receive(path, &question);
    let drops = |reason| host.path(path).account.drops(reason);
    assert_eq!(drops(DropReason::Malformed), 4);
    assert_eq!((drops(DropReason::BadChecksum), drops(DropReason::NotForUs)), (1, 1));
    assert_eq!(drops(DropReason::UnknownProtocol), 1);
}

#[test]
fn a_message_waits_for_its_neighbour() {
    let (mut host, path) = asking_host();
    let sent = host.send(path, testing::block(b"first"));
    assert_eq!(sent.len(), 1);
    let asked = Solicitation::parse(&sent[0][54..]).unwrap();
    assert_eq!((asked.target, asked.source_link), (PEER6, Some(OUR_LINK)));
    assert_eq!(sent[0][..6], [0x33, 0x33, 0xff, 0, 0, 2]);
    assert_eq!(host.expire(path, Duration::from_secs(1)).len(), 1);
    let nd = nd_path(&host);
    let sent = host.receive(nd, &advertisement(PEER6, OURS6, true, true));
    assert_eq!(sent.len(), 1);
    assert!(sent[0].starts_with(&PEER_LINK) && sent[0].ends_with(b"first"));
    assert_eq!(host.send(path, testing::block(b"second")).len(), 1);
}

/// A destination that is not on the link.
const FAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 9);
/// Another router, and its link address.
const OTHER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfe);
const OTHER_LINK: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];

fn redirect(from: Ipv6Addr, target: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
    let mut body = [target.octets(), destination.octets()].concat();
    body.extend_from_slice(&[2, 1]);
    body.extend_from_slice(&OTHER_LINK);
    icmp6_frame((from, OURS6), nd::REDIRECT, [0; 4], &body)
}

/// A host with a router at `PEER_LOCAL`.
fn host_with_router() -> (Host, scoutline_base::PathId) {
    let mut host = Host::with(&interface6(OUR_LINK, OURS6, true), false);
    host.settle_ip6();
    let path = nd_path(&host);
    let router = icmp6_frame((PEER_LOCAL, nd::ALL_NODES), nd::ROUTER_ADVERTISEMENT, [64, 0, 7, 8], &[0; 8]);
    host.receive(path, &router);
    assert_eq!(host.interface.ip6.router(), Some(PEER_LOCAL));
    (host, path)
}

/// RFC 4861 §8.3.
#[test]
fn a_router_tells_of_a_better_way() {
    let (mut host, path) = host_with_router();
    let interface = std::rc::Rc::clone(&host.interface);
    let hop = |destination: Ipv6Addr| interface.route(destination.into());
    let neighbour = |address: Ipv6Addr| Some(NextHop::Neighbour(address.into()));
    assert_eq!(hop(FAR), neighbour(PEER_LOCAL));
    let generation = interface.generation();
    host.receive(path, &redirect(PEER_LOCAL, OTHER, FAR));
    assert_eq!(hop(FAR), neighbour(OTHER));
    assert_ne!(interface.generation(), generation, "who remembers the old way asks again");
    let known = interface.neighbours6.borrow_mut().find(OTHER, host.now);
    assert!(matches!(known, Found::Known { link: OTHER_LINK, .. }), "{known:?}");
    // The destination itself is on the link.
    let near = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 10);
    host.receive(path, &redirect(PEER_LOCAL, near, near));
    assert_eq!(hop(near), neighbour(near));
    // §7.3.3: the better way is none any more.
    interface.ip6.on_unreachable(OTHER);
    assert_eq!((hop(FAR), hop(near)), (neighbour(PEER_LOCAL), neighbour(near)));
    interface.set_routes(Vec::new());
    assert_eq!(hop(near), neighbour(PEER_LOCAL));
}

/// RFC 4861 §8.1: each check, and §8.2: routers decide for themselves.
#[test]
fn redirects_of_others_than_the_first_hop_are_refused() {
    let (mut host, path) = host_with_router();
    let mut far_away = redirect(PEER_LOCAL, OTHER, FAR);
    far_away[21] = 254;
    let global = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xfe);
    for (what, frame) in [
        ("from beyond the link", far_away),
        ("from a router that is not the first hop", redirect(OTHER, OTHER, FAR)),
        ("from a global address", redirect(PEER6, OTHER, FAR)),
        ("to a router by its global address", redirect(PEER_LOCAL, global, FAR)),
        ("of a group", redirect(PEER_LOCAL, OTHER, nd::ALL_NODES)),
        ("of what is on the link", redirect(PEER_LOCAL, OTHER, PEER6)),
        ("to ourselves", redirect(PEER_LOCAL, OUR_LOCAL, FAR)),
        ("too short", icmp6_frame((PEER_LOCAL, OURS6), nd::REDIRECT, [0; 4], &[0; 31])),
    ] {
        host.receive(path, &frame);
        let hop = host.interface.route(FAR.into());
        assert_eq!(hop, Some(NextHop::Neighbour(PEER_LOCAL.into())), "{what}");
    }
    let drops: u32 = host.drops(path).iter().map(|(_, count)| count).sum();
    assert_eq!(drops, 8);
    host.interface.ip6.become_router();
    host.receive(path, &redirect(PEER_LOCAL, OTHER, FAR));
    assert_eq!(host.interface.route(FAR.into()), Some(NextHop::Neighbour(PEER_LOCAL.into())));
}

/// RFC 4861 §7.2.4, RFC 4291 §2.8.
#[test]
fn who_forwards_says_so() {
    let mut host = Host::with_ip6();
    let path = nd_path(&host);
    assert!(!host.interface.accepts(nd::ALL_ROUTERS.into()));
    host.interface.ip6.become_router();
    let sent = host.receive(path, &solicitation(PEER_LOCAL, OURS6, true));
    assert!(Advertisement::parse(&sent[0][54..]).unwrap().router);
    assert!(host.interface.accepts(nd::ALL_ROUTERS.into()));
}

/// RFC 4861 §7.2.5: the flag goes from true to false.
#[test]
fn a_router_that_says_it_is_none_is_left() {
    let (mut host, path) = host_with_router();
    host.receive(path, &advertisement(PEER_LOCAL, OUR_LOCAL, true, true));
    assert_eq!(host.interface.ip6.router(), None);
}

#[test]
fn a_neighbour_that_never_answers_is_given_up() {
    let (mut host, path) = asking_host();
    host.send(path, testing::block(b"lost"));
    for _ in 0..2 {
        assert_eq!(host.expire(path, Duration::from_secs(1)).len(), 1);
    }
    assert!(host.expire(path, Duration::from_secs(1)).is_empty());
    assert_eq!(host.drops(path), [(DropReason::NoNeighbour, 1)]);
    let effects = host.effects();
    let [Effect::Notify(key, Control::Told(told))] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((key.remote, key.remote_port, key.local, key.local_port), (PEER6.into(), 9, OURS6.into(), 7));
    assert_eq!((told.errno, told.kind, told.code), (crate::errno::EHOSTUNREACH, 1, 3));
}

proptest! {
    #[test]
    fn any_message_is_taken_or_dropped(kind in 130u8..140, rest in any::<[u8; 4]>(), body in proptest::collection::vec(any::<u8>(), 0..120)) {
        let mut host = Host::with(&interface6(OUR_LINK, OURS6, true), false);
        host.settle_ip6();
        let frame = icmp6_frame((PEER_LOCAL, OURS6), kind, rest, &body);
        if let (Verdict::Path(path), _) = host.demux(&frame) {
            host.receive(path, &frame);
        }
        host.effects();
    }
}
