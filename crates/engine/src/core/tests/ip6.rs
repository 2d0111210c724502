//! Two engines that speak IPv6 to each other: addresses are probed, neighbours found, both families served.

use std::net::Ipv6Addr;

use scoutline_abi::layout::slot_flag;
use scoutline_base::Address;
use scoutline_proto::ip6::Host6Config;

use super::*;

const SERVER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

fn with_ip6(address: Ipv6Addr) -> impl FnOnce(&mut EngineSettings) {
    move |settings| {
        settings.devices[0].ip6 =
            Some(Host6Config { addresses: vec![(address, 64)], gateway: None, autoconfigure: false });
    }
}

fn pair(seed: u64, config: WireConfig) -> Pair {
    let (a, b) = wire(seed, config);
    let mut pair = Pair {
        client: Host::with([10, 0, 0, 2], a, RINGS, with_ip6(CLIENT6)),
        server: Host::with([10, 0, 0, 1], b, RINGS, with_ip6(SERVER6)),
        now: Time::from_millis(1),
    };
    // Both may lose their own probes: what matters is that nobody answers them.
    pair.until("addresses in use", |pair| {
        let in_use = |host: &Host, address: Ipv6Addr| host.core.nets[0].interface().is_ours(address.into());
        in_use(&pair.client, CLIENT6) && in_use(&pair.server, SERVER6)
    });
    pair
}

/// The arguments of BIND and CONNECT.
fn arguments(address: Address, port: u64, bits: u64) -> [u64; 4] {
    let [high, low] = address.words();
    [low, port, bits, high]
}

/// A socket of the server that listens at `::`.
fn listen(pair: &mut Pair, port: u64, bits: u64) -> u32 {
    let now = pair.now;
    let listener = pair.server.open(slot_kind::STREAM, now);
    pair.server.slot(listener).flags.store(slot_flag::INET6, Ordering::Release);
    let at = arguments(Address::UNSPECIFIED_V6, port, bits);
    assert_eq!(pair.server.call(call_op::BIND, listener, at, now), 0);
    assert_eq!(pair.server.call(call_op::LISTEN, listener, [16, 0, 0, 0], now), 0);
    listener
}

fn connect(pair: &mut Pair, address: Address, port: u64) -> u32 {
    let now = pair.now;
    let slot = pair.client.open(slot_kind::STREAM, now);
    pair.client.slot(slot).flags.store(slot_flag::INET6, Ordering::Release);
    assert_eq!(pair.client.call(call_op::CONNECT, slot, arguments(address, port, 0), now), 0);
    slot
}

fn accepted(pair: &mut Pair, listener: u32, client: u32) -> u32 {
    let mut accepted = None;
    pair.until("accept", |pair| {
        accepted = accepted.or_else(|| pair.server.accept(listener));
        accepted.is_some() && pair.client.state(client) & slot_state::CONNECTED != 0
    });
    accepted.unwrap()
}

fn transfer(seed: u64, config: WireConfig, len: usize) {
    let mut pair = pair(seed, config);
    let listener = listen(&mut pair, 80, 0);
    let client = connect(&mut pair, SERVER6.into(), 80);
    let server = accepted(&mut pair, listener, client);
    let slot = pair.server.slot(server);
    assert_eq!(slot.local_address.load(), SERVER6.into());
    assert_eq!(slot.remote_address.load(), CLIENT6.into());
    let (up, down) = (pattern(len, seed), pattern(len, seed + 1));
    let (mut sent_up, mut sent_down) = (0, 0);
    let (mut got_up, mut got_down) = (Vec::new(), Vec::new());
    pair.until("transfer", |pair| {
        sent_up += pair.client.write(client, &up[sent_up..]);
        sent_down += pair.server.write(server, &down[sent_down..]);
        // As over IPv4: once all of it stands in the ring nothing may be due any more.
        let most = if pair.client.slot(client).outgoing().held() == 0 { usize::MAX } else { 10_000 };
        got_up.extend(pair.server.read(server, most));
        got_down.extend(pair.client.read(client, usize::MAX));
        got_up.len() == len && got_down.len() == len
    });
    assert!(got_up == up && got_down == down, "seed {seed}: the streams differ");
    let fused = pair.server.core.paths.iter().any(|path| path.stages()[0].module() == "ETH+IP6+TCP");
    assert!(fused, "connections over IPv6 are transformed too");
    pair.client.request(client, slot_request::CLOSE);
    pair.until("end of file", |pair| pair.server.state(server) & slot_state::PEER_FINISHED != 0);
    pair.server.request(server, slot_request::CLOSE);
    pair.server.request(listener, slot_request::CLOSE);
    pair.until("both gone", |pair| pair.client.socket_paths() + pair.server.socket_paths() == 0);
}

#[test]
fn a_clean_wire() {
    transfer(1, WireConfig::default(), 2_000_000);
}

#[test]
fn loss_reordering_duplication_and_delay() {
    for seed in 0..4 {
        transfer(seed, hard_wire(), 200_000);
    }
}

#[test]
fn one_socket_serves_both_families() {
    let mut pair = pair(5, WireConfig::default());
    let listener = listen(&mut pair, 80, 0);
    for (address, peer) in [
        (Address::from(SERVER6), Address::from(CLIENT6)),
        ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()),
    ] {
        let client = connect(&mut pair, address, 80);
        let server = accepted(&mut pair, listener, client);
        assert_eq!(pair.server.slot(server).remote_address.load(), peer);
    }
    // Who wants IPv6 only leaves the port of IPv4 to others, and refuses it.
    const V6_ONLY: u64 = 4;
    let only = listen(&mut pair, 81, V6_ONLY);
    let refused = connect(&mut pair, "10.0.0.1".parse().unwrap(), 81);
    pair.until("refused", |pair| pair.client.state(refused) & slot_state::FAILED != 0);
    let client = connect(&mut pair, SERVER6.into(), 81);
    accepted(&mut pair, only, client);
    let now = pair.now;
    let four = pair.server.open(slot_kind::STREAM, now);
    let v4 = |port| arguments(Address::UNSPECIFIED_V4, port, 0);
    assert_eq!(pair.server.call(call_op::BIND, four, v4(80), now), -libc::EADDRINUSE);
    assert_eq!(pair.server.call(call_op::BIND, four, v4(81), now), 0);
}

#[test]
fn link_local_addresses_and_refusals() {
    let mut pair = pair(6, WireConfig::default());
    let local = pair.server.core.nets[0].interface().ip6.addresses()[0].address;
    let listener = listen(&mut pair, 80, 0);
    let client = connect(&mut pair, local.into(), 80);
    let server = accepted(&mut pair, listener, client);
    assert!(pair.server.slot(server).remote_address.load().is_link_local());
    let refused = connect(&mut pair, SERVER6.into(), 99);
    pair.until("refused", |pair| pair.client.state(refused) & slot_state::FAILED != 0);
    assert_eq!(pair.client.slot(refused).error.load(Ordering::Relaxed), libc::ECONNREFUSED);
    // Nobody has that address.
    let silent = connect(&mut pair, "2001:db8::99".parse().unwrap(), 80);
    pair.until("unreachable", |pair| pair.client.state(silent) & slot_state::FAILED != 0);
    assert_eq!(pair.client.slot(silent).error.load(Ordering::Relaxed), libc::EHOSTUNREACH);
    // No route leads there.
    let now = pair.now;
    let slot = pair.client.open(slot_kind::STREAM, now);
    let far = arguments("2001:db9::1".parse().unwrap(), 80, 0);
    assert_eq!(pair.client.call(call_op::CONNECT, slot, far, now), -libc::ENETUNREACH);
}

#[test]
fn programs_are_told_of_addresses_as_they_come() {
    let pair = pair(7, WireConfig::default());
    let header = pair.server.region.header();
    let addresses: Vec<Address> =
        header.look_at_served(|networks| networks.map(|network| network.address).collect());
    assert_eq!(addresses.len(), 3, "{addresses:?}");
    assert!(addresses.contains(&SERVER6.into()) && addresses.contains(&"10.0.0.1".parse().unwrap()));
}
