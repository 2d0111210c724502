use std::time::Duration;

use super::*;
use crate::testing;

#[test]
fn routes() {
    let interface = testing::interface();
    let on_link = Address::from(Ipv4Addr::new(10, 0, 0, 77));
    assert_eq!(interface.route(on_link), Some(NextHop::Neighbour(on_link)));
    let group = Some(NextHop::Group(ethernet::BROADCAST));
    assert_eq!(interface.route(Ipv4Addr::new(10, 0, 0, 255).into()), group);
    assert_eq!(interface.route(Ipv4Addr::BROADCAST.into()), group);
    assert_eq!(interface.route(Ipv4Addr::new(8, 8, 8, 8).into()), None);
    let gateway = Ipv4Addr::new(10, 0, 0, 254);
    interface.gateway.set(Some(gateway));
    assert_eq!(interface.route(Ipv4Addr::new(8, 8, 8, 8).into()), Some(NextHop::Neighbour(gateway.into())));
    assert_eq!(interface.route(Ipv4Addr::LOCALHOST.into()), None);
    interface.prefix_len.set(0);
    assert_eq!(
        interface.route(Ipv4Addr::new(8, 8, 8, 8).into()),
        Some(NextHop::Neighbour(Ipv4Addr::new(8, 8, 8, 8).into()))
    );
    interface.prefix_len.set(32);
    assert!(!interface.is_directed_broadcast(interface.address.get()));
}

fn v4(text: &str) -> Address {
    text.parse().unwrap()
}

#[test]
fn several_addresses_each_with_its_network() {
    let interface = testing::interface();
    let [second, same, host] = ["192.168.1.1", "10.0.0.5", "10.0.0.130"].map(|text| text.parse().unwrap());
    interface.set_others(vec![(second, 24), (same, 24), (host, 25)]);
    for ours in ["10.0.0.1", "192.168.1.1", "10.0.0.5", "10.0.0.130"] {
        assert!(interface.is_ours(v4(ours)) && interface.accepts(v4(ours)), "{ours}");
        assert!(!interface.is_valid_source(v4(ours)), "{ours}");
    }
    assert!(interface.accepts(v4("192.168.1.255")) && !interface.is_valid_source(v4("192.168.1.255")));
    // By the longest network, and within one by the first address.
    let sources = [("10.0.0.9", "10.0.0.1"), ("10.0.0.200", "10.0.0.130"), ("192.168.1.7", "192.168.1.1")];
    for (towards, from) in sources {
        assert_eq!(interface.source_for(v4(towards)), Some(v4(from)), "{towards}");
        assert_eq!(interface.route(v4(towards)), Some(NextHop::Neighbour(v4(towards))));
    }
    // Beyond a router: from the network that it is in.
    let (network, way) = (v4("8.8.0.0"), Way::Via(v4("192.168.1.9")));
    let to = Route { network, prefix_len: 112, way, metric: 0, metrics: Metrics::default() };
    interface.set_routes(vec![to]);
    assert_eq!(interface.source_for(v4("8.8.8.8")), Some(v4("192.168.1.1")));
    assert_eq!(interface.route(v4("8.8.8.8")), Some(NextHop::Neighbour(v4("192.168.1.9"))));
    assert_eq!(interface.route(v4("8.9.8.8")), None);
}

#[test]
fn routes_go_before_networks_when_they_are_longer() {
    let interface = testing::interface();
    interface.gateway.set(Some(Ipv4Addr::new(10, 0, 0, 254)));
    let via = Way::Via(v4("10.0.0.7"));
    let metrics = Metrics::default();
    let route =
        |network: &str, prefix_len, way| Route { network: v4(network), prefix_len, way, metric: 0, metrics };
    let refuse = Way::Refuse(crate::route::Refusal::Unreachable);
    interface.set_routes(vec![
        route("10.0.0.128", 121, via),
        route("0.0.0.0", 96, via),
        route("10.0.0.0", 120, via),
        route("192.168.0.0", 112, refuse),
    ]);
    let hop = |text| Some(NextHop::Neighbour(v4(text)));
    assert_eq!(interface.route(v4("10.0.0.129")), hop("10.0.0.7"));
    assert_eq!(interface.route(v4("10.0.0.2")), hop("10.0.0.2"), "the link before a route to all of it");
    assert_eq!(interface.route(v4("8.8.8.8")), hop("10.0.0.254"), "the gateway before a default route");
    assert_eq!(interface.route(v4("192.168.3.3")), None);
}

#[test]
fn without_an_address_there_is_no_ip4() {
    let interface = testing::interface();
    interface.address.set(NO_ADDRESS);
    for address in ["0.0.0.0", "10.0.0.2", "0.0.0.7"] {
        assert!(!interface.is_ours(v4(address)) && !interface.is_on_link(v4(address)), "{address}");
        assert_eq!(interface.source_for(v4(address)), None);
    }
    assert_eq!(interface.route(v4("10.0.0.2")), None);
    assert!(!interface.speaks(v4("10.0.0.2")) && interface.addresses4().is_empty());
}

#[test]
fn the_own_link_has_every_address_of_the_machine_and_nobody_elses() {
    let machine = testing::interface();
    let own = Interface::own_link(DeviceId(9), vec![Rc::clone(&machine)], 1, Offload::default());
    let here = Some(NextHop::Group(own.link_address.get()));
    for ours in ["10.0.0.1", "127.0.0.1", "127.9.9.9", "::1"] {
        let ours: Address = ours.parse().unwrap();
        assert!(own.accepts(ours) && own.is_valid_source(ours) && own.may_be_ours(ours), "{ours:?}");
        assert_eq!(own.route(ours), here);
    }
    for other in ["10.0.0.2", "10.0.0.255", "255.255.255.255", "0.0.0.0", "2001:db8::1", "ff02::1"] {
        let other: Address = other.parse().unwrap();
        assert!(!own.accepts(other) && !own.is_valid_source(other), "{other:?}");
        assert_eq!(own.route(other), None);
    }
    assert_eq!(own.source_for(v4("127.9.9.9")), Some(v4("127.0.0.1")));
    assert_eq!(own.source_for(v4("10.0.0.1")), Some(v4("10.0.0.1")));
    machine.set_others(vec![(Ipv4Addr::new(10, 7, 0, 1), 24)]);
    assert!(own.is_ours(v4("10.7.0.1")));
}

#[test]
fn a_routes_metrics_hold_where_it_decides() {
    let interface = testing::interface();
    let metrics = Metrics { mtu: Some(1_000), initcwnd: Some(4), ..Metrics::default() };
    let route = |network: &str, prefix_len, metrics| {
        let way = Way::Via(v4("10.0.0.9"));
        Route { network: v4(network), prefix_len, way, metric: 0, metrics }
    };
    interface.gateway.set(Some(Ipv4Addr::new(10, 0, 0, 254)));
    assert_eq!(interface.metrics(v4("8.8.8.8")), Metrics::default());
    interface.set_routes(vec![
        route("8.8.0.0", 112, metrics),
        route("8.8.7.0", 120, Metrics { mtu: Some(9_000), ..Metrics::default() }),
        // The network of the link, and what the gateway has already.
        route("10.0.0.0", 120, metrics),
        route("0.0.0.0", 96, metrics),
    ]);
    assert_eq!(interface.metrics(v4("8.8.8.8")), metrics);
    assert_eq!(interface.mtu_of_way(v4("8.8.8.8")), 1_000);
    assert_eq!(interface.mtu_of_way(v4("8.8.7.8")), 1_500, "no more than the link carries");
    assert_eq!(interface.path_mtu(v4("10.0.0.7"), Time::ZERO), 1_500);
    assert_eq!(interface.metrics(v4("9.9.9.9")), Metrics::default());
    interface.set_routes(Vec::new());
    assert_eq!(interface.mtu_of_way(v4("8.8.8.8")), 1_500);
}

#[test]
fn a_path_mtu_is_believed_for_ten_minutes() {
    let interface = testing::interface();
    let (near, far, now) = (v4("10.0.0.7"), v4("8.8.8.8"), Time::from_millis(5));
    assert_eq!(interface.told_mtu(far, now), None);
    interface.on_too_big(far, 1_300, now);
    interface.on_too_big(far, 1_400, now + Duration::from_secs(1));
    let until = now + path_mtu::PATH_MTU_TIME;
    assert_eq!(interface.told_mtu(far, now), Some(Told { mtu: 1_300, until, divisible: false }));
    assert_eq!((interface.path_mtu(far, now), interface.path_mtu(near, now)), (1_300, 1_500));
    assert_eq!((interface.told_mtu(far, until), interface.path_mtu(far, until)), (None, 1_500));
}
