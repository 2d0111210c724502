//! What stands beside datagrams, errors about them, and groups.

use scoutline_abi::datagram::{ERROR_HEADER_LEN, ErrorRecord, origin, record_flag};
use scoutline_abi::layout::{datagram_flag, disconnect, membership, slot_option};
use scoutline_base::Address;

use super::*;

const GROUP: u64 = 0xffff_ef01_0203;
const CLIENT: u64 = 0xffff_0a00_0002;

fn address(low: u64) -> Address {
    Address::from_words([0, low])
}

fn send(host: &Host, slot: u32, record: Record, payload: &[u8]) {
    let record = Record { len: payload.len() as u32, ..record };
    let mut bytes = record.to_bytes().to_vec();
    bytes.extend(payload);
    bytes.resize(Record::ring_len(payload.len()) as usize, 0);
    assert_eq!(host.write(slot, &bytes), bytes.len());
}

/// Lets what was sent arrive.
fn settle_all(pair: &mut Pair) {
    let end = pair.now + Duration::from_millis(100);
    while pair.now < end && pair.step() {}
}

/// All datagrams that wait.
pub(super) fn received(host: &Host, slot: u32) -> Vec<(Record, Vec<u8>)> {
    let bytes = host.read(slot, usize::MAX);
    let (mut at, mut all) = (0, Vec::new());
    while at < bytes.len() {
        let record = Record::from_bytes(bytes[at..at + HEADER_LEN].try_into().unwrap());
        let payload = bytes[at + HEADER_LEN..][..record.len as usize].to_vec();
        at += Record::ring_len(payload.len()) as usize;
        all.push((record, payload));
    }
    all
}

pub(super) fn bound(host: &mut Host, port: u64, now: Time) -> u32 {
    let slot = host.open(slot_kind::DATAGRAM, now);
    assert_eq!(host.call(call_op::BIND, slot, [0xffff_0000_0000, port, 1, 0], now), 0);
    slot
}

fn change(host: &mut Host, slot: u32, what: u64, now: Time) -> i32 {
    host.region.call(0).unwrap().more.store(what, Ordering::Relaxed);
    host.call(call_op::MEMBERSHIP, slot, [0, GROUP, 0, 0xffff_0a00_0002], now)
}

/// Joins 239.1.2.3.
pub(super) fn join(host: &mut Host, slot: u32, now: Time) -> i32 {
    change(host, slot, membership::JOIN, now)
}

#[test]
fn what_is_said_of_a_datagram_is_told_of_it() {
    let mut pair = Pair::new(5, WireConfig::default());
    let now = pair.now;
    let (client, server) = (bound(&mut pair.client, 1000, now), bound(&mut pair.server, 53, now));
    let said = Record {
        address: address(SERVER),
        port: 53,
        tos: 0xb8,
        hop_limit: 9,
        flags: record_flag::HOP_LIMIT,
        own: "10.0.0.2".parse().unwrap(),
        ..Record::default()
    };
    send(&pair.client, client, said, b"said");
    // An address that is not ours is not sent from.
    send(&pair.client, client, Record { own: "10.0.0.77".parse().unwrap(), ..said }, b"lie");
    let mut got = Vec::new();
    pair.until("it", |pair| {
        got.extend(received(&pair.server, server));
        !got.is_empty()
    });
    pair.step();
    let (record, payload) = &got[0];
    assert_eq!((payload.as_slice(), record.tos, record.hop_limit), (&b"said"[..], 0xb8, 9));
    assert_eq!((record.address, record.own), (said.own, said.address));
    assert!(received(&pair.server, server).is_empty());
}

#[test]
fn several_together_come_apart_unless_the_program_gathers_them() {
    let mut pair = Pair::new(5, WireConfig::default());
    let now = pair.now;
    let (client, server) = (bound(&mut pair.client, 1000, now), bound(&mut pair.server, 53, now));
    let to = Record { address: address(SERVER), port: 53, segment: 100, ..Record::default() };
    let payload = pattern(250, 1);
    for (gathers, expected) in [(false, vec![(100, 0), (100, 0), (50, 0)]), (true, vec![(250, 100)])] {
        let flags = if gathers { datagram_flag::GATHER } else { 0 };
        pair.server.slot(server).datagram_flags.store(flags, Ordering::Relaxed);
        send(&pair.client, client, to, &payload);
        let mut got = Vec::new();
        pair.until("all", |pair| {
            got.extend(received(&pair.server, server));
            got.iter().map(|(record, _)| record.len).sum::<u32>() >= 250
        });
        let shape: Vec<_> = got.iter().map(|(record, _)| (record.len, record.segment)).collect();
        assert_eq!(shape, expected);
        assert_eq!(got.into_iter().flat_map(|(_, payload)| payload).collect::<Vec<u8>>(), payload);
    }
    // More than anybody may cut one into: the program scribbled.
    send(&pair.client, client, Record { segment: 1, ..to }, &payload);
    pair.step();
    assert!(received(&pair.server, server).is_empty());
}

#[test]
fn errors_go_to_who_sent_the_datagram() {
    let mut pair = Pair::new(5, WireConfig::default());
    let now = pair.now;
    let [asking, other] = [1000, 1001].map(|port| bound(&mut pair.client, port, now));
    let option = [slot_option::QUEUE_ERRORS, 1, 0, 0];
    assert_eq!(pair.client.call(call_op::OPTION, asking, option, now), 0);
    let slot = pair.client.slot(asking);
    slot.datagram_flags.store(datagram_flag::ERRORS, Ordering::Relaxed);
    let nobody = Record { address: address(SERVER), port: 9, ..Record::default() };
    // One that did not ask hears nothing.
    send(&pair.client, other, nobody, b"lost");
    for _ in 0..40 {
        send(&pair.client, asking, nobody, b"nobody");
        pair.step();
    }
    pair.until("an error", |pair| pair.client.slot(asking).errors_tail.load(Ordering::Acquire) >= 16);
    let slot = pair.client.slot(asking);
    assert_eq!(slot.errors_tail.load(Ordering::Acquire), 16, "and no more than there is room for");
    assert_eq!(slot.error.load(Ordering::Acquire), libc::ECONNREFUSED);
    assert_eq!(pair.client.slot(other).error.load(Ordering::Acquire), 0);
    let (at, len) = (slot.errors_offset.load(Ordering::Relaxed), ERROR_HEADER_LEN + 6);
    let spans = pair.client.region.ring_spans(at, 16 * 1024, 0, len).unwrap();
    let mut bytes = vec![0; len];
    // SAFETY: the span lies in the mapping that the region keeps.
    unsafe { spans[0].copy_to(&mut bytes) };
    let error = ErrorRecord::from_bytes(bytes[..ERROR_HEADER_LEN].try_into().unwrap());
    assert_eq!((error.errno, error.origin), (libc::ECONNREFUSED as u32, origin::ICMP));
    assert_eq!((error.kind, error.code, error.address, error.port), (3, 3, address(SERVER), 9));
    assert_eq!((error.offender, &bytes[ERROR_HEADER_LEN..]), (address(SERVER), &b"nobody"[..]));
}

#[test]
fn groups_reach_every_member_and_nobody_else() {
    let mut pair = Pair::new(5, WireConfig::default());
    let now = pair.now;
    let servers = [0; 3].map(|_| bound(&mut pair.server, 53, now));
    let (sender, member) = (bound(&mut pair.client, 1000, now), bound(&mut pair.client, 53, now));
    pair.server.slot(servers[2]).datagram_flags.store(datagram_flag::OWN_GROUPS, Ordering::Relaxed);
    let to = Record { address: address(GROUP), port: 53, ..Record::default() };
    send(&pair.client, sender, to, b"too early");
    settle_all(&mut pair);
    assert_eq!(change(&mut pair.server, servers[0], membership::JOIN, now), 0);
    assert_eq!(change(&mut pair.server, servers[0], membership::JOIN, now), -libc::EADDRINUSE);
    assert_eq!(change(&mut pair.server, servers[1], membership::LEAVE, now), -libc::EADDRNOTAVAIL);
    assert_eq!(change(&mut pair.client, member, membership::JOIN, now), 0);
    send(&pair.client, sender, to, b"all");
    send(&pair.client, sender, Record { flags: record_flag::NO_LOOP, ..to }, b"others");
    send(&pair.client, sender, Record { flags: record_flag::HOP_LIMIT, ..to }, b"here");
    let mut got = Vec::new();
    pair.until("them", |pair| {
        got.extend(received(&pair.server, servers[0]));
        got.len() >= 2
    });
    settle_all(&mut pair);
    let texts =
        |got: Vec<(Record, Vec<u8>)>| -> Vec<Vec<u8>> { got.into_iter().map(|(_, text)| text).collect() };
    assert_eq!(got[0].0.own, address(GROUP));
    assert_eq!(texts(got), [b"all".to_vec(), b"others".to_vec()]);
    // Linux: who is bound to every address takes what others on the machine are in, unless it says otherwise.
    assert_eq!(texts(received(&pair.server, servers[1])).len(), 2);
    assert!(received(&pair.server, servers[2]).is_empty());
    assert_eq!(texts(received(&pair.client, member)), [b"all".to_vec(), b"here".to_vec()]);
    // This sender only, then not this sender.
    assert_eq!(change(&mut pair.server, servers[0], membership::LEAVE, now), 0);
    assert_eq!(change(&mut pair.server, servers[2], membership::JOIN_SOURCE, now), 0);
    send(&pair.client, sender, to, b"wanted");
    pair.until("it", |pair| !received(&pair.server, servers[2]).is_empty());
    assert_eq!(change(&mut pair.server, servers[2], membership::LEAVE_SOURCE, now), 0);
    assert_eq!(change(&mut pair.server, servers[1], membership::JOIN, now), 0);
    assert_eq!(change(&mut pair.server, servers[1], membership::BLOCK_SOURCE, now), 0);
    received(&pair.server, servers[1]);
    send(&pair.client, sender, to, b"blocked");
    settle_all(&mut pair);
    assert!(received(&pair.server, servers[1]).is_empty());
    // With the socket goes the membership.
    pair.server.request(servers[1], slot_request::CLOSE);
    pair.step();
    let groups = &pair.server.core.nets[0].interface().groups;
    assert!(!groups.borrow().contains(address(GROUP)));
}

/// Sources are named one by one; only then they are the filter, and only if nobody else has named any meanwhile.
#[test]
fn a_whole_filter_holds_at_once() {
    let mut pair = Pair::new(5, WireConfig::default());
    let now = pair.now;
    let slot = bound(&mut pair.server, 53, now);
    let host = &mut pair.server;
    let mut say = |what: u64, caller: u64, second: [u64; 2]| {
        host.region.call(0).unwrap().more.store(what | caller << 8, Ordering::Relaxed);
        let result = host.call(call_op::MEMBERSHIP, slot, [0, GROUP, second[0], second[1]], now);
        let word = |index: usize| host.region.call(0).unwrap().arguments[index].load(Ordering::Relaxed);
        (result, Address::from_words([word(0), word(1)]))
    };
    let source = |low: u64| [0, 0xffff_0a00_0000 + low];
    assert_eq!(say(membership::FILTER, 1, [0, 0]).0, -libc::EADDRNOTAVAIL);
    assert_eq!(say(membership::FILTER_EXCLUDES, 1, [0, 0]).0, -libc::EINVAL);
    assert_eq!(say(membership::FILTER_INCLUDES, 1, [0, 0]).0, -libc::EADDRNOTAVAIL);
    assert_eq!(say(membership::JOIN, 1, [0, 0]).0, 0);
    assert_eq!(say(membership::FILTER, 1, [0, 0]).0, membership::EXCLUDES.cast_signed());
    // Two threads: neither has the other's sources.
    assert_eq!(say(membership::FIRST_OF_FILTER, 1, source(9)).0, 0);
    assert_eq!(say(membership::FIRST_OF_FILTER, 2, source(7)).0, 0);
    assert_eq!(say(membership::NEXT_OF_FILTER, 1, source(8)).0, 0);
    assert_eq!(say(membership::FILTER_INCLUDES, 1, [0, 2]).0, -libc::EAGAIN);
    assert_eq!(say(membership::FILTER_INCLUDES, 2, [0, 1]).0, -libc::EAGAIN);
    assert_eq!(say(membership::FILTER, 1, [0, 0]).0, membership::EXCLUDES.cast_signed());
    for (what, low) in [(membership::FIRST_OF_FILTER, 9), (membership::NEXT_OF_FILTER, 8)] {
        assert_eq!(say(what, 1, source(low)).0, 0);
    }
    assert_eq!(say(membership::FILTER_INCLUDES, 1, [0, 2]).0, 0);
    assert_eq!(say(membership::FILTER, 1, [0, 0]), (2, Address::from_words(source(9))));
    assert_eq!(say(membership::FILTER, 1, [0, 1]), (2, Address::from_words(source(8))));
    assert_eq!(say(membership::FILTER, 1, [0, u64::MAX]).0, 2);
    // Limits: of what is named, and of what IPv4 takes.
    for low in 0..membership::MOST_SOURCES as u64 {
        let what = if low == 0 { membership::FIRST_OF_FILTER } else { membership::NEXT_OF_FILTER };
        assert_eq!(say(what, 1, source(low)).0, 0);
    }
    assert_eq!(say(membership::NEXT_OF_FILTER, 1, source(99)).0, -libc::ENOBUFS);
    assert_eq!(say(membership::FILTER_INCLUDES, 1, [0, 64]).0, -libc::ENOBUFS);
    // Of nothing: that is to leave.
    assert_eq!(say(membership::FILTER_INCLUDES, 1, [0, 0]).0, 0);
    assert_eq!(say(membership::FILTER, 1, [0, 0]).0, -libc::EADDRNOTAVAIL);
}

#[test]
fn everybody_means_every_socket() {
    let mut pair = Pair::new(5, WireConfig::default());
    let now = pair.now;
    let servers = [0; 2].map(|_| bound(&mut pair.server, 53, now));
    let sender = bound(&mut pair.client, 1000, now);
    let to = Record { address: address(0xffff_0a00_00ff), port: 53, ..Record::default() };
    send(&pair.client, sender, to, b"all");
    for server in servers {
        pair.until("it", |pair| !received(&pair.server, server).is_empty());
    }
}

/// `connect` to AF_UNSPEC: whose choice port and address were is known to the program's side.
#[test]
fn a_socket_gives_up_with_its_peer_what_its_program_has_not_chosen() {
    let mut pair = Pair::new(5, WireConfig::default());
    let now = pair.now;
    let host = &mut pair.client;
    let (slot, other) = (host.open(slot_kind::DATAGRAM, now), host.open(slot_kind::DATAGRAM, now));
    let port = |host: &Host| host.slot(slot).local_port.load(Ordering::Relaxed);
    let connect = |host: &mut Host| assert_eq!(host.call(call_op::CONNECT, slot, [SERVER, 53, 0, 0], now), 0);
    let is_bound = |host: &Host| host.slot(slot).state.load(Ordering::Relaxed) & slot_state::BOUND != 0;
    connect(host);
    let chosen = port(host);
    assert_eq!(host.call(call_op::DISCONNECT, slot, [0; 4], now), 0);
    assert!(is_bound(host) && port(host) == chosen, "nothing is to be given up");
    connect(host);
    let all = disconnect::PORT | disconnect::ADDRESS;
    assert_eq!(host.call(call_op::DISCONNECT, slot, [all, 0, 0, 0], now), 0);
    assert!(!is_bound(host) && port(host) == 0 && host.slot(slot).local_address.load().is_unspecified());
    // Somebody else may have it, and nothing of the old one is in the way.
    assert_eq!(host.call(call_op::BIND, other, [0xffff_0000_0000, chosen.into(), 0, 0], now), 0);
    assert_eq!(host.call(call_op::DISCONNECT, slot, [all, 0, 0, 0], now), 0, "once more changes nothing");
    assert_eq!(host.call(call_op::BIND, slot, [CLIENT, 0, 0, 0], now), 0);
    connect(host);
    assert_eq!(host.call(call_op::DISCONNECT, slot, [disconnect::PORT, 0, 0, 0], now), 0);
    assert_eq!((port(host), host.slot(slot).local_address.load()), (0, address(CLIENT)));
    // The address that it kept is the one that it is bound to next; one of somebody else's is not.
    connect(host);
    assert_eq!(host.slot(slot).local_address.load(), address(CLIENT));
    assert_eq!(host.call(call_op::DISCONNECT, slot, [all, 0, 0, 0], now), 0);
    host.slot(slot).local_address.store(address(SERVER));
    connect(host);
    assert_eq!(host.slot(slot).local_address.load(), address(CLIENT), "not what a program scribbles");
}

#[test]
fn ports_are_chosen_where_the_program_says() {
    let range = |low: u32, high: u32| high << 16 | low;
    let mut pair = Pair::new(5, WireConfig::default());
    let now = pair.now;
    let host = &mut pair.client;
    let mut ports = std::collections::BTreeSet::new();
    let mut results = Vec::new();
    for _ in 0..4 {
        let slot = host.open(slot_kind::DATAGRAM, now);
        host.slot(slot).port_range().store(range(40_000, 40_002), Ordering::Relaxed);
        results.push(host.call(call_op::CONNECT, slot, [SERVER, 53, 0, 0], now));
        ports.insert(host.slot(slot).local_port.load(Ordering::Relaxed));
    }
    assert_eq!(results, [0, 0, 0, -libc::EAGAIN]);
    assert_eq!(ports.into_iter().collect::<Vec<_>>(), [0, 40_000, 40_001, 40_002]);
    // An end that is not among those which all choose from says nothing, nor does a range that is turned round.
    for (low, high, expected) in [(1, 5, 0), (0, 0xffff, 0), (50_000, 40_000, -libc::EAGAIN)] {
        let slot = host.open(slot_kind::DATAGRAM, now);
        host.slot(slot).port_range().store(range(low, high), Ordering::Relaxed);
        assert_eq!(host.call(call_op::CONNECT, slot, [SERVER, 53, 0, 0], now), expected, "{low} to {high}");
    }
}

#[test]
fn a_port_is_free_at_once_though_its_socket_still_sends() {
    const COUNT: usize = 100;
    let mut pair = Pair::new(5, WireConfig::default());
    let now = pair.now;
    let server = bound(&mut pair.server, 53, now);
    let bind = |host: &mut Host, slot| host.call(call_op::BIND, slot, [CLIENT, 7000, 0, 0], now);
    let host = &mut pair.client;
    for connected in [true, false] {
        let slot = host.open(slot_kind::DATAGRAM, now);
        assert_eq!(bind(host, slot), 0, "connected {connected}");
        let to = Record { address: address(SERVER), port: 53, ..Record::default() };
        if connected {
            assert_eq!(host.call(call_op::CONNECT, slot, [SERVER, 53, 0, 0], now), 0);
        }
        for number in 0..COUNT {
            send(host, slot, if connected { Record::default() } else { to }, &[number as u8]);
        }
        host.request(slot, slot_request::CLOSE);
    }
    let next = host.open(slot_kind::DATAGRAM, now);
    assert_eq!(bind(host, next), 0);
    assert_eq!(host.call(call_op::CONNECT, next, [SERVER, 53, 0, 0], now), 0);
    settle_all(&mut pair);
    assert_eq!(received(&pair.server, server).len(), 2 * COUNT);
    // What comes there is the next one's.
    send(&pair.server, server, Record { address: address(CLIENT), port: 7000, ..Record::default() }, b"abc");
    settle_all(&mut pair);
    assert_eq!(received(&pair.client, next).len(), 1);
}
