use std::net::Ipv6Addr;
use std::time::Duration;

use proptest::prelude::*;
use scoutline_base::Time;
use scoutline_path::{Attributes, Control, DropReason, Effect, Message, Name, Value, Verdict};
use scoutline_wire::ipv6;
use scoutline_wire::nd::{self, Advertisement, Solicitation};

use super::cache::{Cache, Found};
use crate::ip6::AddressState;
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
    let redirect = icmp6_frame((PEER_LOCAL, OURS6), nd::REDIRECT, [0; 4], &[0; 32]);
    host.receive(path, &redirect);
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

/// RFC 4861 §7.2.5: the flag goes from true to false.
#[test]
fn a_router_that_says_it_is_none_is_left() {
    let mut host = Host::with(&interface6(OUR_LINK, OURS6, true), false);
    host.settle_ip6();
    let path = nd_path(&host);
    let router = icmp6_frame((PEER_LOCAL, nd::ALL_NODES), nd::ROUTER_ADVERTISEMENT, [64, 0, 7, 8], &[0; 8]);
    host.receive(path, &router);
    assert_eq!(host.interface.ip6.router(), Some(PEER_LOCAL));
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

#[test]
fn the_states_of_a_neighbour() {
    let mut cache = Cache::default();
    let mut now = Time::from_millis(1000);
    let said = |solicited, overrides, link| Advertisement {
        router: false,
        solicited,
        overrides,
        target: PEER6,
        target_link: link,
    };
    let state = |cache: &Cache| cache.entries().next().unwrap().2;
    assert!(cache.on_advertisement(&said(true, true, Some(PEER_LINK)), now).is_empty());
    assert_eq!(cache.entries().count(), 0, "nobody asked");
    assert_eq!(cache.find(PEER6, now), Found::Unknown { request: true });
    cache.hold(PEER6, Message::default());
    cache.on_advertisement(&said(true, true, None), now);
    assert_eq!(state(&cache), "incomplete", "without a link address it is no answer");
    assert_eq!(cache.on_advertisement(&said(true, false, Some(PEER_LINK)), now).len(), 1);
    assert_eq!(state(&cache), "reachable");
    now += Duration::from_secs(31);
    assert!(matches!(cache.find(PEER6, now), Found::Known { .. }));
    assert_eq!(state(&cache), "delay");
    let mut asked = Vec::new();
    cache.on_timeout(now + Duration::from_secs(4), |question| asked.push(question));
    assert!(asked.is_empty());
    now += Duration::from_secs(5);
    cache.on_timeout(now, |question| asked.push(question));
    assert_eq!((state(&cache), asked[0].link), ("probe", Some(PEER_LINK)));
    cache.on_advertisement(&said(true, false, None), now);
    assert_eq!(state(&cache), "reachable");
    // Another link address without the override flag: not believed, but asked about (RFC 4861 §7.2.5).
    cache.on_advertisement(&said(true, false, Some([2, 9, 9, 9, 9, 9])), now);
    assert_eq!(state(&cache), "stale");
    assert_eq!(cache.entries().next().unwrap().1, Some(PEER_LINK));
    let generation = cache.generation();
    cache.on_advertisement(&said(true, true, Some([2, 9, 9, 9, 9, 9])), now);
    assert_eq!((state(&cache), cache.entries().next().unwrap().1), ("reachable", Some([2, 9, 9, 9, 9, 9])));
    assert_ne!(cache.generation(), generation, "who remembers the old one asks again");
    // Silence ends it.
    now += Duration::from_secs(31);
    cache.find(PEER6, now);
    for _ in 0..4 {
        now += Duration::from_secs(5);
        cache.on_timeout(now, |_| ());
    }
    assert_eq!(state(&cache), "failed");
}

proptest! {
    #[test]
    fn the_cache_stays_bounded_and_consistent(operations in proptest::collection::vec((0u8..6, any::<u16>(), 0u64..3), 0..400)) {
        let mut cache = Cache::default();
        let mut now = Time::ZERO;
        for (operation, number, seconds) in operations {
            let address = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number % 50);
            now += Duration::from_secs(seconds);
            let said = Advertisement {
                router: false,
                solicited: number & 64 != 0,
                overrides: number & 128 != 0,
                target: address,
                target_link: (number & 256 != 0).then_some([2, 0, 0, 0, 0, number as u8]),
            };
            match operation {
                0 | 1 => { cache.find(address, now); }
                2 => { cache.on_source(address, PEER_LINK, now); }
                3 => { cache.hold(address, Message::default()); }
                4 => { cache.on_advertisement(&said, now); }
                _ => { cache.on_timeout(now, |_| ()); }
            }
            cache.on_timeout(now, |_| ());
            prop_assert!(cache.next_timeout().is_none_or(|due| due > now));
            prop_assert!(cache.entries().count() <= 50);
        }
    }

    #[test]
    fn many_addresses_evict_the_old(start in any::<u16>()) {
        let mut cache = Cache::default();
        for index in 0..5000u32 {
            let low = u32::from(start).wrapping_add(index);
            let address = Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(low));
            cache.on_source(address, PEER_LINK, Time::from_millis(u64::from(index)));
        }
        prop_assert!(cache.entries().count() <= 4096);
    }

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
