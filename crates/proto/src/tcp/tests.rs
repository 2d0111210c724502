//! The glue around the machine: two hosts on a wire, the server's paths fused and the client's plain.

mod ends;

use std::time::Duration;

use proptest::prelude::*;
use scoutline_base::PathId;
use scoutline_path::{
    Attributes, Body, Checksum, Control, DropReason, Effect, Message, Name, SegmentationKind, Value, Verdict,
};
use scoutline_wire::tcp::{Flags, Header};
use scoutline_wire::{checksum, ipv4, ipv6};

use super::{ListenStage, State, TcpStage};
use crate::testing::{
    self, Host, OUR_LINK, OURS, PEER, PEER_LINK, address, completed, control, controls, interface_of,
    stream_byte,
};
use crate::{Offload, errno};

pub(in crate::tcp) fn attributes() -> Attributes {
    Attributes::new().with(Name::Protocol, Value::Number(6))
}

pub(in crate::tcp) fn listen(host: &mut Host, backlog: u64) -> PathId {
    let any = std::net::Ipv4Addr::UNSPECIFIED;
    let listening = attributes()
        .with(Name::Local, address(any, 80))
        .with(Name::Listen, Value::Number(backlog))
        .with(Name::Class, Value::Number(3));
    let path = host.create("SOCKET", listening);
    host.net.tcp.bindings.listen("0.0.0.0:80".parse().unwrap(), 0, path);
    path
}

pub(in crate::tcp) fn connecting(host: &mut Host, local: u16) -> PathId {
    let (ours, theirs) =
        (host.interface.address.get(), if host.interface.is_ours(OURS.into()) { PEER } else { OURS });
    let flow = attributes().with(Name::Local, address(ours, local)).with(Name::Remote, address(theirs, 80));
    host.create("SOCKET", flow)
}

/// A server at `OURS` and a client at `PEER` that know each other's link addresses.
fn hosts() -> (Host, Host) {
    let server = Host::with(&interface_of(OUR_LINK, OURS), true);
    let client = Host::with(&interface_of(PEER_LINK, PEER), false);
    server.interface.neighbours.borrow_mut().learn(PEER, PEER_LINK, true, server.now);
    client.interface.neighbours.borrow_mut().learn(OURS, OUR_LINK, true, client.now);
    (server, client)
}

/// Completes the frames of the last run.
pub(in crate::tcp) fn wire(host: &Host, frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    if frames.len() != host.facts.len() {
        return frames.into_iter().map(fix).collect();
    }
    frames.into_iter().zip(&host.facts).map(|(frame, facts)| completed(frame, facts)).collect()
}

/// Makes the checksum of a segment right, whatever it was.
fn fix(mut frame: Vec<u8>) -> Vec<u8> {
    if let Ok(ip) = ipv6::Header::parse(&frame[14..]) {
        // What is no segment is complete.
        if ip.next_header == ipv4::PROTOCOL_TCP {
            frame[54 + 16..54 + 18].fill(0);
            let pseudo = checksum::pseudo_header(ip.source, ip.destination, 6, ip.payload_len.into());
            let sum = checksum::finish(checksum::add(pseudo, checksum::sum(&frame[54..])));
            frame[54 + 16..54 + 18].copy_from_slice(&sum.to_be_bytes());
        }
        return frame;
    }
    let ip = ipv4::Header::parse(&frame[14..]).unwrap();
    let start = 14 + usize::from(ip.header_len);
    frame[start + 16..start + 18].fill(0);
    let segment = &frame[start..14 + usize::from(ip.total_len)];
    let pseudo = checksum::pseudo_header(ip.source, ip.destination, 6, segment.len());
    let sum = checksum::finish(checksum::add(pseudo, checksum::sum(segment)));
    frame[start + 16..start + 18].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Carries frames to and fro until both are silent; `frames` go to `first`.
fn exchange(first: &mut Host, second: &mut Host, frames: Vec<Vec<u8>>) {
    let mut to_first = frames;
    for _ in 0..1000 {
        let mut to_second = Vec::new();
        for frame in to_first.drain(..) {
            let sent = first.on_frame(&frame);
            to_second.append(&mut wire(first, sent));
        }
        for frame in to_second {
            let sent = second.on_frame(&frame);
            to_first.append(&mut wire(second, sent));
        }
        if to_first.is_empty() {
            return;
        }
    }
    panic!("two hosts that never rest");
}

struct Connected {
    server: Host,
    client: Host,
    listen: PathId,
    child: PathId,
    path: PathId,
}

fn connected_with(offload: Offload) -> Connected {
    let (mut server, mut client) = hosts();
    server.interface.offload.set(offload);
    client.interface.offload.set(offload);
    let listen = listen(&mut server, 8);
    let path = connecting(&mut client, 5000);
    let sent = client.expire(path, Duration::ZERO);
    assert_eq!(sent.len(), 1);
    let sent = wire(&client, sent);
    exchange(&mut server, &mut client, sent);
    let child = server.created[0];
    Connected { server, client, listen, child, path }
}

fn connected() -> Connected {
    connected_with(Offload { checksum: true, tcp_segmentation: Some(65_535) })
}

fn state(host: &Host, path: PathId) -> State {
    host.path(path).stage::<TcpStage>().unwrap().connection().unwrap().state()
}

fn next_initial(host: &Host, path: PathId) -> u32 {
    host.path(path).stage::<TcpStage>().unwrap().connection().unwrap().next_initial()
}

/// The bytes of the pieces that reached a socket, checked against the stream.
fn check_pieces(messages: &[Message]) -> u64 {
    let mut count = 0;
    for message in messages.iter().filter(|message| !matches!(message.body, Body::Control(_))) {
        let start = message.facts.stream_position;
        assert!(message.bytes().iter().zip(start..).all(|(&byte, position)| byte == stream_byte(position)));
        count += message.body_len() as u64;
    }
    count
}

fn header_of(frame: &[u8]) -> Header {
    Header::parse(&frame[34..]).unwrap().0
}

#[test]
fn a_connection_is_made_through_the_listen_path() {
    let Connected { server, client, listen, child, path } = connected();
    assert_eq!(controls(&client.received()), [Control::Connected]);
    assert_eq!(controls(&server.received()), [Control::Connected]);
    assert_eq!((state(&server, child), state(&client, path)), (State::Established, State::Established));
    let stage = server.path(listen).stage::<ListenStage>().unwrap();
    assert_eq!(stage.backlog().half_open.get(), 0);
    let inherited = &server.path(child).attributes;
    assert_eq!(inherited.number(Name::Class), Some(3));
    assert_eq!(inherited.path(Name::Parent), Some(listen));
    assert_eq!(inherited.address(Name::Local), Some(format!("{OURS}:80").parse().unwrap()));
    // Server paths are fused here, and say as much as plain ones.
    assert_eq!(server.path(child).stages()[0].module(), "ETH+IP4+TCP");
    let facts = server.path(child).describe().remove(0).facts;
    assert!(facts.contains(&("state", "ESTABLISHED".to_owned())));
    assert!(facts.iter().any(|(name, _)| *name == "cwnd"));
}

#[test]
fn data_flows_both_ways_in_super_segments() {
    let Connected { mut server, mut client, child, path, .. } = connected();
    server.received();
    client.received();
    let sent = client.send(path, control(Control::Written(100_000)));
    // Ten segments of the initial window, in one.
    let facts = &client.facts[0];
    let segmentation = facts.segmentation.unwrap();
    assert_eq!((segmentation.kind, segmentation.size), (SegmentationKind::Tcp4, 1448));
    assert_eq!(segmentation.header_len, 14 + 20 + 32);
    assert_eq!(facts.checksum, Checksum::Partial { start: 34, offset: 16 });
    let sent = wire(&client, sent);
    let mut total = 0;
    let mut to_server = sent;
    while !to_server.is_empty() {
        let mut to_client = Vec::new();
        for frame in to_server.drain(..) {
            let out = server.on_frame(&frame);
            to_client.extend(wire(&server, out));
            let received = server.received();
            total += check_pieces(&received);
            for told in controls(&received) {
                let Control::Readable(position) = told else { panic!("{told:?}") };
                let out = server.send(child, control(Control::Consumed(position)));
                to_client.extend(wire(&server, out));
            }
        }
        for frame in to_client {
            let out = client.on_frame(&frame);
            to_server.extend(wire(&client, out));
        }
        if to_server.is_empty() {
            // A delayed acknowledgment is due.
            let out = server.expire(child, Duration::from_millis(50));
            for frame in wire(&server, out) {
                let out = client.on_frame(&frame);
                to_server.extend(wire(&client, out));
            }
        }
    }
    assert_eq!(total, 100_000);
    let told = controls(&client.received());
    assert_eq!(told.last(), Some(&Control::Acknowledged(100_000)));
    let sent = server.send(child, control(Control::Written(10)));
    let sent = wire(&server, sent);
    client.on_frame(&sent[0]);
    let received = client.received();
    assert_eq!(check_pieces(&received), 10);
    assert_eq!(controls(&received), [Control::Readable(10)]);
}

#[test]
fn without_offload_segments_fit_the_link_and_empty_ones_are_complete() {
    let Connected { mut server, mut client, path, .. } = connected_with(Offload::default());
    let sent = client.send(path, control(Control::Written(5000)));
    assert!(sent.iter().all(|frame| frame.len() <= 1514));
    assert!(client.facts.iter().all(|facts| facts.segmentation.is_none()));
    assert!(client.facts.iter().all(|facts| matches!(facts.checksum, Checksum::Partial { .. })));
    let sent = wire(&client, sent);
    server.on_frame(&sent[0]);
    let answers = server.on_frame(&sent[1]);
    assert_eq!(server.facts[0].checksum, Checksum::Complete);
    assert_eq!(fix(answers[0].clone()), answers[0]);
}

#[test]
fn a_newer_syn_takes_over_from_time_wait() {
    let Connected { mut server, mut client, child, path, .. } = connected();
    let sent = server.send(child, control(Control::Close));
    let sent = wire(&server, sent);
    exchange(&mut client, &mut server, sent);
    let sent = client.send(path, control(Control::Close));
    let sent = wire(&client, sent);
    exchange(&mut server, &mut client, sent);
    assert_eq!(state(&server, child), State::TimeWait);
    let least = next_initial(&server, child);
    client.destroy(path);
    server.received();
    client.received();
    let path = connecting(&mut client, 5000);
    let sent = client.expire(path, Duration::from_secs(5));
    let sent = wire(&client, sent);
    server.now = client.now;
    exchange(&mut server, &mut client, sent);
    assert_eq!(server.created.len(), 2);
    assert_eq!(controls(&server.received()), [Control::Closed, Control::Connected]);
    assert_eq!(state(&server, server.created[1]), State::Established);
    // RFC 6191 §2: it began behind all numbers of the one before.
    assert_eq!(next_initial(&server, server.created[1]).wrapping_sub(least), 65_537 + 1);
}

fn segment(flags: Flags, change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut header = Header {
        source_port: 5000,
        destination_port: 80,
        sequence: 100,
        acknowledgment: 700,
        flags,
        window: 1000,
        ..Header::default()
    };
    change(&mut header);
    let mut bytes = vec![0; header.emitted_len()];
    header.emit(&mut bytes);
    fix(testing::ip_frame(&testing::ip_header(6, bytes.len()), &bytes))
}

#[test]
fn the_listen_state_follows_the_standard() {
    let mut host = Host::new();
    host.know_peer();
    let path = listen(&mut host, 2);
    assert_eq!(host.demux(&segment(Flags::SYN, |_| ())).0, Verdict::Path(path));
    assert!(host.receive(path, &segment(Flags::RST, |_| ())).is_empty());
    assert!(host.receive(path, &segment(Flags::FIN, |_| ())).is_empty());
    let sent = host.receive(path, &segment(Flags::ACK | Flags::SYN, |_| ()));
    let reset = header_of(&sent[0]);
    assert_eq!((reset.sequence, reset.flags), (700, Flags::RST));
    assert_eq!((reset.source_port, reset.destination_port), (80, 5000));
    assert_eq!(fix(sent[0].clone()), sent[0]);
    assert_eq!(host.drops(path), [(DropReason::NoPath, 1), (DropReason::BadFlags, 2)]);
    assert!(host.effects().is_empty());
}

#[test]
fn a_syn_is_given_on_from_its_ethernet_header() {
    let mut host = Host::new();
    let path = listen(&mut host, 2);
    let syn = segment(Flags::SYN, |_| ());
    host.receive(path, &syn);
    host.receive(path, &syn);
    let effects = host.effects();
    let [Effect::Create { module: "SOCKET", first: Some(first), .. }] = &effects[..] else {
        panic!("{effects:?}: the second within one run is the same connection");
    };
    assert_eq!(first.bytes(), syn);
    assert_eq!(first.facts.checksum, Checksum::Verified);
}

#[test]
fn the_backlog_bounds_handshakes_and_dropping_one_frees_it() {
    let mut host = Host::new();
    host.know_peer();
    let path = listen(&mut host, 2);
    let backlog = host.path(path).stage::<ListenStage>().unwrap().backlog().clone();
    for port in 1..5 {
        host.on_frame(&segment(Flags::SYN, |header| header.source_port = port));
    }
    assert_eq!((host.created.len(), backlog.half_open.get(), backlog.cookies.get()), (2, 2, 2));
    assert_eq!((backlog.refused.get(), host.drops(path).len()), (0, 0));
    host.destroy(host.created[0]);
    assert_eq!(backlog.half_open.get(), 1);
    // A reset of the other, or a path that the engine could not make, gives its place back too.
    host.on_frame(&segment(Flags::RST, |header| (header.source_port, header.sequence) = (2, 101)));
    assert_eq!(backlog.half_open.get(), 0);
    host.receive(path, &segment(Flags::SYN, |_| ()));
    assert_eq!(backlog.half_open.get(), 1);
    drop(host.effects());
    assert_eq!(backlog.half_open.get(), 0);
}

/// RFC 4987 §3.6, and what the timestamp brings back.
#[test]
fn in_a_flood_a_cookie_makes_the_connection_with_all_that_was_offered() {
    let (mut server, mut client) = hosts();
    let listen = listen(&mut server, 1);
    let backlog = server.path(listen).stage::<ListenStage>().unwrap().backlog().clone();
    server.on_frame(&segment(Flags::SYN, |header| header.source_port = 77));
    assert!(backlog.is_full());
    let path = connecting(&mut client, 5000);
    let sent = client.expire(path, Duration::ZERO);
    let syn = wire(&client, sent);
    let answer = server.on_frame(&syn[0]);
    assert_eq!((server.created.len(), backlog.cookies.get()), (1, 1), "nothing is kept");
    assert_eq!(server.net.tcp.crowded_out(), 1, "and the engine is told");
    let answer = wire(&server, answer);
    exchange(&mut client, &mut server, answer);
    let child = server.created[1];
    assert_eq!((state(&server, child), state(&client, path)), (State::Established, State::Established));
    let info = |host: &Host, path| host.path(path).stage::<TcpStage>().unwrap().connection().unwrap().info();
    let (ours, theirs) = (info(&server, child), info(&client, path));
    assert!(ours.sack && ours.timestamps && theirs.sack && theirs.timestamps);
    assert_eq!((ours.snd_wscale, ours.rcv_wscale), (theirs.rcv_wscale, theirs.snd_wscale));
    assert_eq!((ours.snd_mss, theirs.snd_mss), (1448, 1448));
    assert_eq!(backlog.half_open.get(), 1, "the flood's, not this");
    let sent = client.send(path, control(Control::Written(3_000)));
    let sent = wire(&client, sent);
    exchange(&mut server, &mut client, sent);
    assert_eq!(check_pieces(&server.received()), 3_000);
}

/// A server whose backlog is full, a client that has its cookie, the listen path and the client's, and the acknowledgment
/// that is on its way.
fn with_a_cookie() -> (Host, Host, [PathId; 2], Vec<Vec<u8>>) {
    let (mut server, mut client) = hosts();
    let listen = listen(&mut server, 1);
    server.on_frame(&segment(Flags::SYN, |header| header.source_port = 77));
    let path = connecting(&mut client, 5000);
    let sent = client.expire(path, Duration::ZERO);
    let syn = wire(&client, sent);
    let answer = server.on_frame(&syn[0]);
    let sent = client.on_frame(&wire(&server, answer)[0]);
    let acknowledgment = wire(&client, sent);
    (server, client, [listen, path], acknowledgment)
}

/// What a client sends at once behind the cookie's acknowledgment comes in the same burst, and all of it is the connection's.
#[test]
fn what_comes_with_a_cookie_is_for_its_connection() {
    let (mut server, mut client, [listen, path], mut burst) = with_a_cookie();
    let sent = client.send(path, control(Control::Written(4_000)));
    burst.append(&mut wire(&client, sent));
    assert!(burst.len() > 2, "the last one's number is not the cookie's");
    for frame in &burst {
        assert!(server.receive(listen, frame).is_empty(), "a reset");
    }
    server.carry_out(listen);
    let child = server.created[1];
    assert_eq!(state(&server, child), State::Established);
    assert_eq!(check_pieces(&server.received()), 4_000, "none of it has to be sent again");
}

/// Where the connection cannot be made, what comes with its cookie is dropped with it, and nothing is reset: the client sends
/// it again.
#[test]
fn what_comes_with_a_cookie_that_is_refused_is_dropped() {
    let (mut server, _, [listen, _], burst) = with_a_cookie();
    for _ in 0..3 {
        assert!(server.receive(listen, &burst[0]).is_empty());
    }
    let effects = server.effects();
    let [Effect::Create { .. }, Effect::Follow(..), Effect::Follow(..)] = &effects[..] else {
        panic!("{effects:?}: none of them comes back to the listen path");
    };
}

#[test]
fn a_guess_is_no_cookie_and_a_cookie_serves_its_flow_only() {
    let (mut server, mut client) = hosts();
    let listen = listen(&mut server, 1);
    let path = connecting(&mut client, 5000);
    let sent = client.expire(path, Duration::ZERO);
    let syn = wire(&client, sent).remove(0);
    server.on_frame(&segment(Flags::SYN, |header| header.source_port = 77));
    let answer = header_of(&server.on_frame(&syn)[0]);
    let acknowledge = |port: u16, acknowledgment: u32| {
        segment(Flags::ACK, |header| {
            header.source_port = port;
            header.sequence = answer.acknowledgment;
            header.acknowledgment = acknowledgment;
        })
    };
    for (port, number) in
        [(5000, answer.sequence.wrapping_add(1_000)), (5001, answer.sequence.wrapping_add(1))]
    {
        let sent = server.on_frame(&acknowledge(port, number));
        assert_eq!(header_of(&sent[0]).flags, Flags::RST);
    }
    assert_eq!(server.created.len(), 1);
    // Later than two minutes it is none either.
    server.now += Duration::from_secs(130);
    server.on_frame(&acknowledge(5000, answer.sequence.wrapping_add(1)));
    assert_eq!(server.created.len(), 1);
    assert!(server.path(listen).account.drops(DropReason::NoPath) > 0);
}

/// RFC 5927 §4.1: whoever does not see our segments cannot end a connection attempt.
#[test]
fn an_icmp_error_about_a_number_that_was_not_sent_is_ignored() {
    let (_, mut client) = hosts();
    let path = connecting(&mut client, 5000);
    let sent = client.expire(path, Duration::ZERO);
    let sequence = header_of(&wire(&client, sent)[0]).sequence;
    for wrong in [sequence.wrapping_add(2), sequence.wrapping_sub(1), sequence ^ 1 << 31] {
        client.receive_message(path, control(Control::UnreachableSegment(3, 3, wrong)));
    }
    assert_eq!(state(&client, path), State::SynSent);
    client.receive_message(path, control(Control::UnreachableSegment(3, 3, sequence)));
    assert_eq!(controls(&client.received()), [Control::Failed(errno::ECONNREFUSED), Control::Closed]);
}

/// RFC 1191 §6.4
#[test]
fn a_router_that_takes_less_shortens_segments_and_what_was_too_long_goes_again() {
    let Connected { mut server, mut client, child, path, .. } = connected_with(Offload::default());
    let sent = client.send(path, control(Control::Written(4_000)));
    let sent = wire(&client, sent);
    assert_eq!(sent[0].len(), 1514);
    // The router quotes the IP header and eight bytes.
    let error = |mtu: u16, quoted: &[u8]| {
        let [high, low] = mtu.to_be_bytes();
        testing::icmp_frame(3, 4, [0, 0, high, low], quoted)
    };
    let mut elsewhere = sent[0][14..42].to_vec();
    elsewhere[24] ^= 0x55;
    let to_client = |mut frame: Vec<u8>| {
        frame[..6].copy_from_slice(&PEER_LINK);
        frame[26..30].copy_from_slice(&OURS.octets());
        frame[30..34].copy_from_slice(&PEER.octets());
        frame[24..26].fill(0);
        let sum = checksum::finish(checksum::sum(&frame[14..34]));
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    client.on_frame(&to_client(error(600, &elsewhere)));
    let info = |host: &Host| host.path(path).stage::<TcpStage>().unwrap().connection().unwrap().info();
    assert_eq!(info(&client).snd_mss, 1448, "RFC 5927: about nothing that is in flight");
    let mut again = client.on_frame(&to_client(error(1_200, &sent[0][14..42])));
    let more = client.expire(path, Duration::ZERO);
    again.extend(more);
    assert_eq!((info(&client).snd_mss, info(&client).path_mtu), (1_148, 1_200));
    assert_eq!(info(&client).ssthresh, u32::MAX, "that is no congestion");
    assert!(!again.is_empty() && again.iter().all(|frame| frame.len() <= 1_214), "{}", again.len());
    let again: Vec<_> = again.into_iter().map(fix).collect();
    exchange(&mut server, &mut client, again);
    assert_eq!(check_pieces(&server.received()), 4_000);
    assert_eq!(state(&server, child), State::Established);
}

#[test]
fn stray_segments_are_reset_at_a_limited_rate() {
    let mut host = Host::new();
    host.know_peer();
    let reset = host.interface.service_paths.reset.get().unwrap();
    let syn = segment(Flags::SYN, |_| ());
    let sent = host.on_frame(&syn);
    assert_eq!(header_of(&sent[0]).flags, Flags::RST | Flags::ACK);
    assert_eq!(header_of(&sent[0]).acknowledgment, 101);
    assert!(host.on_frame(&segment(Flags::RST, |_| ())).is_empty());
    let sent: usize = (0..300).map(|_| host.on_frame(&syn).len()).sum();
    assert_eq!(sent, 199);
    assert_eq!(host.path(reset).account.drops(DropReason::RateLimited), 101);
}

#[test]
fn a_refused_connection_fails() {
    let (mut server, mut client) = hosts();
    let path = connecting(&mut client, 5000);
    let sent = client.expire(path, Duration::ZERO);
    let sent = wire(&client, sent);
    exchange(&mut server, &mut client, sent);
    let told = controls(&client.received());
    assert_eq!(told, [Control::Failed(errno::ECONNREFUSED), Control::Closed]);
}

#[test]
fn a_silent_neighbour_or_an_icmp_error_fails_an_opening_connection() {
    let mut client = Host::new();
    let path = connecting(&mut client, 5000);
    assert_eq!(client.expire(path, Duration::ZERO).len(), 1, "the ARP request");
    for _ in 0..3 {
        client.expire(path, Duration::from_secs(1));
        client.carry_out(path);
    }
    let told = controls(&client.received());
    assert_eq!(told, [Control::Failed(errno::EHOSTUNREACH), Control::Closed]);
    let path = connecting(&mut client, 5001);
    client.expire(path, Duration::ZERO);
    client.receive_message(path, control(Control::Unreachable(3, 4)));
    assert!(client.received().is_empty(), "a smaller MTU is no end");
    client.receive_message(path, control(Control::Unreachable(3, 3)));
    assert_eq!(controls(&client.received()), [Control::Failed(errno::ECONNREFUSED), Control::Closed]);
}

#[test]
fn an_established_connection_outlives_icmp_errors_and_dies_of_resets() {
    let Connected { mut server, mut client, child, path, .. } = connected();
    server.received();
    client.received();
    server.receive_message(child, control(Control::Unreachable(3, 3)));
    assert_eq!(controls(&server.received()), [Control::Hint(errno::ECONNREFUSED)], "for who asks");
    let sent = client.send(path, control(Control::Abort));
    assert_eq!(controls(&client.received()), [Control::Closed]);
    server.on_frame(&wire(&client, sent)[0]);
    assert_eq!(controls(&server.received()), [Control::Failed(errno::ECONNRESET), Control::Closed]);
}

#[test]
fn bad_segments_are_counted_under_their_reasons() {
    let Connected { mut server, child, .. } = connected();
    let good = segment(Flags::ACK, |_| ());
    let mut bad = good.clone();
    bad[50] ^= 1;
    server.receive(child, &bad);
    let mut short = testing::ip_frame(&testing::ip_header(6, 10), &good[34..44]);
    assert_eq!(server.demux(&short).0, Verdict::Drop(DropReason::Truncated));
    server.receive(child, &short);
    short = good.clone();
    short[46] = 0x40;
    assert_eq!(server.demux(&short).0, Verdict::Drop(DropReason::Malformed));
    server.receive(child, &short);
    let expected = [DropReason::Truncated, DropReason::Malformed, DropReason::BadChecksum];
    assert_eq!(server.drops(child), expected.map(|reason| (reason, 1)));
    let broadcast = ipv4::Header { destination: [10, 0, 0, 255].into(), ..testing::ip_header(6, 20) };
    let frame = testing::ip_frame(&broadcast, &good[34..54]);
    assert_eq!(server.demux(&frame).0, Verdict::Drop(DropReason::NotForUs));
}

#[test]
fn options_of_a_socket_reach_the_machine() {
    let Connected { mut client, path, .. } = connected();
    client.send(path, control(Control::KeepAlive(Some((10, 1, 3)))));
    client.send(path, control(Control::NoDelay(true)));
    let due = client.path(path).next_timeout().unwrap();
    assert_eq!(due - client.now, Duration::from_secs(10));
    assert_eq!(client.expire(path, Duration::from_secs(10)).len(), 1, "a probe");
}

proptest! {
    #[test]
    fn any_segment_runs_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let Connected { mut server, listen, child, .. } = connected();
        let mut message = testing::received(&testing::ip_frame(&testing::ip_header(6, bytes.len()), &bytes));
        let _ = server.demux(message.bytes());
        for path in [child, listen, server.interface.service_paths.reset.get().unwrap()] {
            let frame = message.bytes().to_vec();
            message.facts.checksum = Checksum::Verified;
            server.receive_message(path, message);
            message = testing::received(&frame);
        }
    }
}
