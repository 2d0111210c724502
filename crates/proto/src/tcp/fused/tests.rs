use std::fmt::Write;
use std::time::Duration;

use proptest::prelude::*;
use scoutline_base::{Address, Endpoint, PathId, Random};
use scoutline_path::{Attributes, Body, Control, Name, Value};
use scoutline_wire::{checksum, ethernet};

use crate::Offload;
use crate::tcp::TcpStage;
use crate::tcp::module::HEADERS;
use crate::tcp::tests::{connecting, listen, wire};
use crate::testing::{
    Host, OUR_LINK, OURS, OURS6, PEER, PEER_LINK, PEER6, address, completed, control, interface_of,
    interface6,
};

/// Everything of a host that can be told apart from outside.
fn observed(host: &mut Host, path: PathId, frames: &[Vec<u8>]) -> String {
    let mut text = format!("{frames:02x?}\n");
    for facts in &host.facts {
        writeln!(text, "{:?} {:?} {:?}", facts.checksum, facts.segmentation, facts.destination).unwrap();
    }
    for message in host.received() {
        let facts = &message.facts;
        let header = (facts.tos, facts.hop_limit);
        let about = (facts.stream_position, facts.source, facts.destination, header, facts.link_source);
        writeln!(text, "{:?} {about:?} {:02x?}", message.body, message.bytes()).unwrap();
    }
    writeln!(text, "{:?} {}", std::mem::take(&mut host.log), host.more).unwrap();
    if let Some(path) = host.table.get(path) {
        let drops: Vec<_> = path.account.all_drops().collect();
        write!(text, "{drops:?} {:?}", path.next_timeout()).unwrap();
    }
    text
}

/// The host with this link address, over the one family or the other.
fn host(v6: bool, link: ethernet::Address, fused: bool) -> Host {
    let is_ours = link == OUR_LINK;
    if !v6 {
        return Host::with(&interface_of(link, if is_ours { OURS } else { PEER }), fused);
    }
    let mut host = Host::with(&interface6(link, if is_ours { OURS6 } else { PEER6 }, false), fused);
    host.settle_ip6();
    host
}

/// A host hears that who had the link address `whose` is at `link`.
fn know(host: &Host, v6: bool, whose: ethernet::Address, link: ethernet::Address) {
    let is_ours = whose == OUR_LINK;
    if v6 {
        host.know_peer6(if is_ours { OURS6 } else { PEER6 }, link);
    } else {
        let address = if is_ours { OURS } else { PEER };
        host.interface.neighbours.borrow_mut().learn(address, link, true, host.now);
    }
}

fn listen6(host: &mut Host, backlog: u64) -> PathId {
    let listening = Attributes::new()
        .with(Name::Protocol, Value::Number(6))
        .with(Name::Local, address(std::net::Ipv6Addr::UNSPECIFIED, 80))
        .with(Name::Listen, Value::Number(backlog));
    let path = host.create("SOCKET", listening);
    host.net.tcp.bindings.listen("[::]:80".parse().unwrap(), 0, path);
    path
}

fn connecting6(host: &mut Host, local: u16) -> PathId {
    let flow = Attributes::new()
        .with(Name::Protocol, Value::Number(6))
        .with(Name::Local, address(PEER6, local))
        .with(Name::Remote, address(OURS6, 80));
    host.create("SOCKET", flow)
}

/// Does something to a frame, or nothing.
fn mangle(random: &mut Random, mut frame: Vec<u8>) -> Vec<u8> {
    match random.below(12) {
        0 => {
            let at = random.below(frame.len() as u32) as usize;
            frame[at] ^= 1 << random.below(8);
        }
        1 => frame.truncate(random.below(frame.len() as u32 + 1) as usize),
        2 => frame.extend_from_slice(&[0; 6]),
        3 if frame.len() >= 34 && frame[14] == 0x45 => {
            // An IP option.
            let mut ip = frame[14..34].to_vec();
            ip[0] = 0x46;
            let total = u16::from_be_bytes([ip[2], ip[3]]) + 4;
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip.extend_from_slice(&[1, 1, 1, 0]);
            ip[10..12].fill(0);
            let sum = checksum::finish(checksum::sum(&ip));
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            frame.splice(14..34, ip);
        }
        3 if frame.len() >= 54 && frame[14] >> 4 == 6 => {
            // Options for the destination, all padding.
            let next = std::mem::replace(&mut frame[20], 60);
            let len = u16::from_be_bytes([frame[18], frame[19]]) + 8;
            frame[18..20].copy_from_slice(&len.to_be_bytes());
            frame.splice(54..54, [next, 0, 1, 4, 0, 0, 0, 0]);
        }
        _ => {}
    }
    frame
}

/// Long enough in release for a count of instructions: there the beginning is little of it.
const ROUNDS: u64 = if cfg!(debug_assertions) { 2_000 } else { 20_000 };

/// The common case many times over: all that is sent arrives. Its cost: `valgrind --tool=callgrind --collect-atstart=no
/// --toggle-collect='*EthIpTcp*Stage*inward*' --toggle-collect='*EthIpTcp*Stage*outward*'` on this test alone, in
/// release.
#[test]
fn a_long_exchange_on_the_fused_path() {
    let offload = Offload { checksum: true, tcp_segmentation: Some(65_535) };
    let mut server = Host::with(&interface_of(OUR_LINK, OURS), true);
    let mut client = Host::with(&interface_of(PEER_LINK, PEER), true);
    server.interface.neighbours.borrow_mut().learn(PEER, PEER_LINK, true, server.now);
    client.interface.neighbours.borrow_mut().learn(OURS, OUR_LINK, true, client.now);
    server.interface.offload.set(offload);
    client.interface.offload.set(offload);
    listen(&mut server, 8);
    let path = connecting(&mut client, 5000);
    let sent = client.expire(path, Duration::ZERO);
    let mut to_server = wire(&client, sent);
    let (mut written, mut read, mut child) = (0, 0, None);
    for round in 0..ROUNDS {
        let mut to_client = Vec::new();
        for frame in to_server.drain(..) {
            let out =
                if let Some(child) = child { server.receive(child, &frame) } else { server.on_frame(&frame) };
            to_client.append(&mut wire(&server, out));
        }
        child = server.created.first().copied();
        for message in server.received() {
            if let (Body::Control(Control::Readable(position)), Some(child)) = (message.body, child) {
                read = position;
                let out = server.send(child, control(Control::Consumed(position)));
                to_client.append(&mut wire(&server, out));
            }
        }
        for frame in to_client {
            let out = client.receive(path, &frame);
            to_server.append(&mut wire(&client, out));
        }
        client.received();
        if to_server.is_empty() {
            written += 1448 * (1 + round % 4);
            let out = client.send(path, control(Control::Written(written)));
            to_server.append(&mut wire(&client, out));
        }
        if to_server.is_empty() {
            let Some(child) = child else { continue };
            let out = server.expire(child, Duration::from_millis(50));
            client.now = server.now;
            for frame in wire(&server, out) {
                let out = client.receive(path, &frame);
                to_server.append(&mut wire(&client, out));
            }
        }
    }
    assert!(read > 1_000_000 && read <= written && written - read <= 4 * 1448, "{read} of {written}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// A transformed path does byte for byte what the plain one does: the same operations and the same frames,
    /// intact and mangled, lost, doubled and reordered, to both.
    #[test]
    fn fused_and_plain_are_the_same(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let offload = Offload { checksum: random.chance(0.5), tcp_segmentation: random.chance(0.5).then_some(65_535) };
        let v6 = random.chance(0.5);
        let mut peer = host(v6, OUR_LINK, false);
        if v6 { listen6(&mut peer, 8) } else { listen(&mut peer, 8) };
        know(&peer, v6, PEER_LINK, PEER_LINK);
        let mut both = [false, true].map(|fused| {
            let mut host = host(v6, PEER_LINK, fused);
            host.interface.offload.set(offload);
            let path = if v6 { connecting6(&mut host, 5000) } else { connecting(&mut host, 5000) };
            (host, path)
        });
        prop_assert_ne!(both[0].0.path(both[0].1).stages().len(), both[1].0.path(both[1].1).stages().len());
        let mark = random.chance(0.5).then(|| random.below(64) as u8);
        for (host, path) in &mut both {
            host.table.get_mut(*path).unwrap().set_mark(mark);
        }
        if random.chance(0.8) {
            for (host, _) in &both {
                know(host, v6, OUR_LINK, OUR_LINK);
            }
        }
        let mut to_peer: Vec<Vec<u8>> = Vec::new();
        let mut to_both: Vec<Vec<u8>> = Vec::new();
        let (mut written, mut consumed, mut peer_written) = (0u64, 0u64, 0u64);
        for _ in 0..150 {
            let choice = random.below(20);
            let step = Duration::from_millis(u64::from(random.below(400)));
            let room = if random.chance(0.1) { random.below(3) as usize } else { 64 };
            let frame = if to_both.is_empty() || choice > 8 {
                None
            } else {
                let at = if random.chance(0.2) { random.below(to_both.len() as u32) as usize } else { 0 };
                let frame = if random.chance(0.1) { to_both[at].clone() } else { to_both.remove(at) };
                Some(mangle(&mut random, frame)).filter(|_| random.chance(0.95))
            };
            written += u64::from(random.below(4000));
            consumed += u64::from(random.below(4000));
            let told = match choice {
                9 | 10 => Some(Control::Written(written)),
                11 => Some(Control::Consumed(consumed)),
                12 => Some(Control::NoDelay(random.chance(0.5))),
                13 if random.chance(0.05) => Some(Control::Shutdown),
                13 if random.chance(0.05) => Some(Control::ShutdownRead),
                13 if random.chance(0.05) => Some(Control::Close),
                13 if random.chance(0.05) => Some(Control::Abort),
                _ => None,
            };
            let forget = choice == 14 && random.chance(0.2);
            let mut seen = Vec::new();
            let mut sent = Vec::new();
            for (host, path) in &mut both {
                host.transmit_room = room;
                let frames = if let Some(frame) = &frame {
                    host.receive(*path, frame)
                } else if let Some(told) = &told {
                    host.send(*path, control(told.clone()))
                } else if forget {
                    // Another station took the address over.
                    let changed = [2, 0, 0, 0, 9, random.clone().below(255) as u8];
                    know(host, v6, OUR_LINK, changed);
                    Vec::new()
                } else {
                    host.expire(*path, if choice > 14 { step } else { Duration::ZERO })
                };
                sent = frames.iter().cloned().zip(&host.facts).map(|(frame, facts)| completed(frame, facts)).collect();
                let mut frames = frames;
                frames.extend(host.carry_out(*path));
                seen.push(observed(host, *path, &frames));
            }
            prop_assert_eq!(&seen[0], &seen[1]);
            to_peer.append(&mut sent);
            peer.now = both[0].0.now;
            for frame in std::mem::take(&mut to_peer) {
                if random.chance(0.05) {
                    continue;
                }
                let answers = peer.on_frame(&frame);
                to_both.append(&mut wire(&peer, answers));
            }
            if let Some(&child) = peer.created.first().filter(|_| choice == 15) {
                peer_written += u64::from(random.below(20_000));
                let read = peer.received().iter().fold(0, |read, message| match message.body {
                    Body::Control(Control::Readable(position)) => position,
                    _ => read,
                });
                for told in [Control::Written(peer_written), Control::Consumed(read)] {
                    let sent = peer.send(child, control(told));
                    to_both.append(&mut wire(&peer, sent));
                }
                let sent = peer.expire(child, Duration::ZERO);
                to_both.append(&mut wire(&peer, sent));
            }
        }
    }
}

/// Type of service, hops, and whether routers may fragment it.
fn network_header(frame: &[u8]) -> (u8, u8, bool) {
    let ip = &frame[ethernet::HEADER_LEN..];
    if ip[0] >> 4 == 4 { (ip[1], ip[8], ip[6] & 0x40 == 0) } else { (ip[0] << 4 | ip[1] >> 4, ip[7], false) }
}

/// IP_TOS, IP_TTL and IP_MTU_DISCOVER of both ends, by both ways of making headers.
#[test]
fn packets_have_what_the_program_said_of_headers() {
    const THEIRS: u64 = (0x48 | 30 << 8) << 32 | (0x28 | 20 << 8);
    const OTHERS: u64 = (0xb8 | 7 << 8) << 32 | (0x10 | 9 << 8);
    for (v6, fused) in [(false, false), (false, true), (true, false), (true, true)] {
        let [mut server, mut client] = [OUR_LINK, PEER_LINK].map(|link| host(v6, link, fused));
        know(&server, v6, PEER_LINK, PEER_LINK);
        know(&client, v6, OUR_LINK, OUR_LINK);
        let saying = |bits: u64| {
            Attributes::new()
                .with(Name::Protocol, Value::Number(6))
                .with(Name::Other(HEADERS), Value::Number(bits))
        };
        let ends = [(OURS, OURS6), (PEER, PEER6)];
        let [ours, theirs] = ends.map(|(v4, v6_one)| -> Address {
            if v6 { v6_one.into() } else { v4.into() }
        });
        let at = |address: Address, port| Value::Address(Endpoint::new(address, port));
        let listening = saying(OTHERS).with(Name::Local, at(ours, 80)).with(Name::Listen, Value::Number(8));
        let listener = server.create("SOCKET", listening);
        server.net.tcp.bindings.listen(Endpoint::new(ours, 80), 0, listener);
        let flow = saying(THEIRS).with(Name::Local, at(theirs, 5000)).with(Name::Remote, at(ours, 80));
        let path = client.create("SOCKET", flow);
        let (mine, other) = if v6 { ((0x48, 30), (0xb8, 7)) } else { ((0x28, 20), (0x10, 9)) };
        let headers =
            |frames: &[Vec<u8>]| frames.iter().map(|frame| network_header(frame)).collect::<Vec<_>>();

        let syn = client.expire(path, Duration::ZERO);
        let syn = wire(&client, syn);
        assert_eq!(headers(&syn), [(mine.0, mine.1, false)], "SYN, {v6} {fused}");
        let answer = server.on_frame(&syn[0]);
        let answer = wire(&server, answer);
        assert_eq!(headers(&answer), [(other.0, other.1, false)], "SYN-ACK, {v6} {fused}");
        let acknowledgment = client.receive(path, &answer[0]);
        let acknowledgment = wire(&client, acknowledgment);
        assert_eq!(headers(&acknowledgment), [(mine.0, mine.1, false)], "ACK, {v6} {fused}");

        let mut written = 0;
        let mut write = |client: &mut Host, said: u64| {
            client.send(path, control(Control::Headers(said << 32 | said)));
            written += 100;
            let sent = client.send(path, control(Control::Written(written)));
            headers(&wire(client, sent))
        };
        client.send(path, control(Control::NoDelay(true)));
        assert_eq!(write(&mut client, 0), [(0, 64, false)], "as ever, {v6} {fused}");
        assert_eq!(write(&mut client, 0x20), [(0x20, 64, false)], "service, {v6} {fused}");
        assert_eq!(write(&mut client, 1 << 16), [(0, 64, !v6)], "divisible, {v6} {fused}");
        assert_eq!(write(&mut client, 1 << 8), [(0, 1, false)], "one hop, {v6} {fused}");
    }
}

/// RFC 8201 §5.2, of what RFC 5927 §7.2 lets a connection believe.
#[test]
fn what_one_connection_is_told_of_the_path_holds_for_the_next() {
    for (v6, fused) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut server, mut client) = (host(v6, OUR_LINK, fused), host(v6, PEER_LINK, fused));
        know(&server, v6, PEER_LINK, PEER_LINK);
        know(&client, v6, OUR_LINK, OUR_LINK);
        let _listener = if v6 { listen6(&mut server, 8) } else { listen(&mut server, 8) };
        let mut connect = |client: &mut Host, port| {
            let path = if v6 { connecting6(client, port) } else { connecting(client, port) };
            let syn = client.expire(path, Duration::ZERO);
            let answer = server.on_frame(&wire(client, syn)[0]);
            client.receive(path, &wire(&server, answer)[0]);
            path
        };
        let connection_of = |client: &Host, path| {
            client.path(path).stage::<TcpStage>().unwrap().connection().unwrap().info().snd_mss
        };
        let (path, standing) = (connect(&mut client, 5000), connect(&mut client, 5001));
        let sent = client.send(path, control(Control::Written(1)));
        let sent = wire(&client, sent);
        let header_len = if v6 { 54 } else { 34 };
        let sequence = u32::from_be_bytes(sent[0][header_len + 4..header_len + 8].try_into().unwrap());
        let peer: Address = if v6 { OURS6.into() } else { OURS.into() };
        // TCP counts as if its headers were IPv4's.
        let longer = if v6 { 20 } else { 0 };
        let told = |sequence| control(Control::TooLong(1_300 - longer, sequence));
        client.receive_message(path, told(sequence ^ 1 << 30));
        assert_eq!(client.interface.path_mtu(peer, client.now), 1_500, "a guess, {v6} {fused}");
        client.receive_message(path, told(sequence));
        assert_eq!(client.interface.path_mtu(peer, client.now), 1_300, "{v6} {fused}");
        let later = connect(&mut client, 5002);
        client.send(standing, control(Control::Written(1)));
        for path in [path, standing, later] {
            assert_eq!(connection_of(&client, path), 1_300 - longer - 40 - 12, "{v6} {fused}");
        }
        client.now += Duration::from_secs(600);
        let last = connect(&mut client, 5003);
        assert_eq!(connection_of(&client, last), 1_500 - longer - 40 - 12, "{v6} {fused}");
    }
}
