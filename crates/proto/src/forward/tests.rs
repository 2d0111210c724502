mod ip6;
mod merge;

use std::net::Ipv4Addr;
use std::rc::Rc;

use proptest::prelude::*;
use scoutline_base::{DeviceId, PathId, Time};
use scoutline_path::{
    Attributes, Budget, Checksum, DropReason, Facts, Grant, Limits, Message, NewPath, Path, Runner,
    Segmentation, SegmentationKind, Stage,
};
use scoutline_wire::{checksum, ethernet, icmp, ipv4};

use super::{ForwardStage, OutStage};
use crate::eth::{ANY_IP, EthStage};
use crate::testing::{self, OUR_LINK, OURS, PEER, PEER_LINK, bytes_of, completed, ip_frame};
use crate::{Interface, InterfaceConfig, Offload};

const FAR: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 9);
const FAR_LINK: ethernet::Address = [2, 0, 0, 0, 1, 9];
const OUT_LINK: ethernet::Address = [2, 0, 0, 0, 1, 1];
const OUT: DeviceId = DeviceId(4);
const ETH: usize = ethernet::HEADER_LEN;

/// A path from the usual interface to another, whose neighbours are known.
struct Router {
    path: Path,
    runner: Runner,
    to: Rc<Interface>,
    segment_len: u32,
}

impl Router {
    fn new(mtu: u16) -> Router {
        let from = testing::interface();
        let to = Interface::new(&InterfaceConfig {
            device: OUT,
            link_address: OUT_LINK,
            address: Ipv4Addr::new(10, 1, 0, 1),
            prefix_len: 24,
            gateway: None,
            ip6: None,
            seed: 1,
            mtu,
            trusted_checksums: true,
            offload: Offload::default(),
        });
        Router::between(&from, to)
    }

    fn between(from: &Rc<Interface>, to: Rc<Interface>) -> Router {
        from.neighbours.borrow_mut().learn(PEER, PEER_LINK, true, Time::from_millis(1));
        to.neighbours.borrow_mut().learn(FAR, FAR_LINK, true, Time::from_millis(1));
        let stages: Vec<Box<dyn Stage>> = vec![
            Box::new(EthStage::new(Rc::clone(from), ANY_IP as u16)),
            Box::new(ForwardStage::new(Rc::clone(from), Rc::clone(&to), true)),
            Box::new(OutStage::new(Rc::clone(&to))),
        ];
        let new = NewPath { stages, attributes: Attributes::new() };
        let id = PathId { index: 0, generation: 0 };
        let path = Path::new(id, new, Limits::default(), Budget::default());
        Router { path, runner: Runner::new(), to, segment_len: u32::MAX }
    }

    fn pass(&mut self, message: Message) -> Vec<Message> {
        self.pass_at(message, Time::from_millis(2))
    }

    fn pass_at(&mut self, message: Message, now: Time) -> Vec<Message> {
        let grant = Grant { segment_len: self.segment_len, ..Grant::new(now, 64, 64) };
        self.path.run_inward_with(&mut self.runner, grant, &mut vec![message]);
        std::mem::take(&mut self.runner.out)
    }

    fn drops(&self, reason: DropReason) -> u32 {
        self.path.account.drops(reason)
    }
}

fn header(protocol: u8, payload_len: usize) -> ipv4::Header {
    ipv4::Header { destination: FAR, ..testing::ip_header(protocol, payload_len) }
}

fn with_ttl(ttl: u8) -> Message {
    testing::received(&ip_frame(&ipv4::Header { ttl, ..header(17, 30) }, &[9; 30]))
}

/// The ICMP error that left: type, code, rest, and that it quotes `cause`.
#[track_caller]
fn error_about(messages: &[Message], cause: &[u8]) -> (u8, u8, [u8; 4]) {
    let [message] = messages else { panic!("{} messages instead of one error", messages.len()) };
    assert_eq!(message.facts.device, testing::DEVICE, "it goes back where the packet came from");
    let frame = bytes_of(message);
    assert_eq!((&frame[..6], &frame[6..12]), (&PEER_LINK[..], &OUR_LINK[..]));
    let ip = ipv4::Header::parse(&frame[ETH..]).unwrap();
    assert_eq!((ip.source, ip.destination, ip.protocol), (OURS, PEER, ipv4::PROTOCOL_ICMP));
    let error = icmp::Header::parse(&frame[ETH + 20..]).unwrap();
    let quoted = &frame[ETH + 28..];
    assert!(
        cause.starts_with(quoted) && quoted.len() >= 28.min(cause.len()),
        "it quotes the packet as it came"
    );
    (error.kind, error.code, error.rest)
}

#[test]
fn a_packet_goes_on_with_one_hop_less() {
    let mut router = Router::new(1500);
    let frame = ip_frame(&header(17, 30), &[9; 30]);
    let out = router.pass(testing::received(&frame));
    assert_eq!((out.len(), out[0].facts.device), (1, OUT));
    let sent = bytes_of(&out[0]);
    assert_eq!((&sent[..6], &sent[6..12], &sent[12..14]), (&FAR_LINK[..], &OUT_LINK[..], &[8, 0][..]));
    assert!(ipv4::checksum_is_valid(&sent[ETH..ETH + 20]));
    let before = ipv4::Header::parse(&frame[ETH..]).unwrap();
    let after = ipv4::Header::parse(&sent[ETH..]).unwrap();
    assert_eq!(after, ipv4::Header { ttl: before.ttl - 1, ..before });
    assert_eq!(sent[ETH + 20..], frame[ETH + 20..], "a checksum that nobody vouched for stays as it is");
    assert_eq!(out[0].facts.checksum, Checksum::Complete);
}

#[test]
fn what_cannot_go_on_is_dropped_and_its_sender_told() {
    let mut router = Router::new(1500);
    let cause = with_ttl(1);
    let bytes = cause.bytes()[ETH..].to_vec();
    assert_eq!(error_about(&router.pass(cause), &bytes), (icmp::TIME_EXCEEDED, 0, [0; 4]));
    assert_eq!(router.drops(DropReason::TtlExceeded), 1);
    assert_eq!(router.pass(with_ttl(2)).len(), 1);

    let elsewhere = ipv4::Header { destination: Ipv4Addr::new(10, 9, 9, 9), ..header(17, 30) };
    let frame = ip_frame(&elsewhere, &[9; 30]);
    let error = error_about(&router.pass(testing::received(&frame)), &frame[ETH..]);
    assert_eq!(error, (icmp::UNREACHABLE, icmp::unreachable::NETWORK, [0; 4]));
    assert_eq!(router.drops(DropReason::NoRoute), 1);

    let mut router = Router::new(600);
    let frame = ip_frame(&ipv4::Header { dont_fragment: true, ..header(17, 700) }, &[9; 700]);
    let error = error_about(&router.pass(testing::received(&frame)), &frame[ETH..]);
    assert_eq!(error, (icmp::UNREACHABLE, icmp::unreachable::FRAGMENTATION_NEEDED, [0, 0, 2, 88]));
    assert_eq!(router.drops(DropReason::NeedsFragmentation), 1);
}

#[test]
fn nothing_is_said_about_errors_and_later_fragments_and_not_too_often() {
    let mut router = Router::new(1500);
    let error = testing::icmp_message(icmp::UNREACHABLE, 1, [0; 4], &[0; 28]);
    let frame = ip_frame(&ipv4::Header { ttl: 1, ..header(1, error.len()) }, &error);
    assert!(router.pass(testing::received(&frame)).is_empty());
    let later = ipv4::Header { ttl: 1, fragment_offset: 64, ..header(17, 30) };
    assert!(router.pass(testing::received(&ip_frame(&later, &[9; 30]))).is_empty());
    let told: usize = (0..200).map(|_| router.pass(with_ttl(1)).len()).sum();
    assert_eq!(told, 50, "the interface's limit on errors");
    assert_eq!(router.drops(DropReason::RateLimited), 150);
}

#[test]
fn martians_and_what_is_for_ourselves_end_here() {
    let mut router = Router::new(1500);
    for source in
        [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED, OURS, Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::BROADCAST]
    {
        let frame = ip_frame(&ipv4::Header { source, ..header(17, 30) }, &[9; 30]);
        assert!(router.pass(testing::received(&frame)).is_empty(), "{source}");
    }
    assert_eq!(router.drops(DropReason::Malformed), 5);
    for destination in [Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 1, 0, 255), Ipv4Addr::new(224, 0, 0, 1)]
    {
        let frame = ip_frame(&ipv4::Header { destination, ..header(17, 30) }, &[9; 30]);
        assert!(router.pass(testing::received(&frame)).is_empty(), "{destination}");
    }
    assert_eq!(router.drops(DropReason::NotForUs), 3);
    let mut frame = ip_frame(&header(17, 30), &[9; 30]);
    frame[ETH + 10] ^= 1;
    assert!(router.pass(testing::received(&frame)).is_empty());
    assert_eq!(router.drops(DropReason::BadChecksum), 1);
}

#[test]
fn an_unknown_neighbour_is_asked_for_and_given_up() {
    let mut router = Router::new(1500);
    let stranger = Ipv4Addr::new(10, 1, 0, 77);
    let frame = ip_frame(&ipv4::Header { destination: stranger, ..header(17, 30) }, &[9; 30]);
    let asked = router.pass(testing::received(&frame));
    assert_eq!((asked.len(), asked[0].facts.device), (1, OUT));
    assert_eq!(bytes_of(&asked[0])[12..14], [8, 6], "an ARP request, out there");
    for second in 1..5 {
        router.to.neighbours.borrow_mut().on_timeout(Time::from_millis(1_000 * second + 2), |_| {});
    }
    assert!(router.to.neighbours.borrow().has_failed(stranger, Time::from_millis(3_500)));
}

/// A TCP packet, or super-segment, with its checksum as a trusted device hands it over: partial, or right.
fn segment(payload: &[u8], flags: u8, dont_fragment: bool, partial: bool) -> Vec<u8> {
    let header = ipv4::Header { dont_fragment, ..header(6, 20 + payload.len()) };
    let mut tcp = vec![0; 20];
    tcp[0..4].copy_from_slice(&[0, 80, 4, 0]);
    tcp[4..8].copy_from_slice(&0xffff_ff00_u32.to_be_bytes());
    tcp[12] = 5 << 4;
    tcp[13] = flags;
    tcp.extend_from_slice(payload);
    let pseudo = checksum::pseudo_header(PEER, FAR, 6, tcp.len());
    let field = if partial { pseudo } else { checksum::finish(checksum::add(pseudo, checksum::sum(&tcp))) };
    tcp[16..18].copy_from_slice(&field.to_be_bytes());
    ip_frame(&header, &tcp)
}

/// As the device cuts it: payload pieces that stand on the wire, with sequence numbers.
fn on_the_wire(message: &Message) -> Vec<(u32, Vec<u8>)> {
    let frame = completed(bytes_of(message), &message.facts);
    let ip = ipv4::Header::parse(&frame[ETH..]).unwrap();
    assert!(ipv4::checksum_is_valid(&frame[ETH..ETH + 20]));
    assert_eq!((usize::from(ip.total_len), ip.ttl), (frame.len() - ETH, 62));
    let tcp = &frame[ETH + 20..];
    let pseudo = checksum::pseudo_header(PEER, FAR, 6, tcp.len());
    assert!(checksum::is_valid(checksum::add(pseudo, checksum::sum(tcp))), "the checksum is right");
    let sequence = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
    let size = message.facts.segmentation.map_or(usize::MAX, |how| {
        assert_eq!(usize::from(how.header_len), ETH + 40);
        usize::from(how.size)
    });
    let chunks = tcp[20..].chunks(size.min(tcp.len()));
    let mut at = sequence;
    let mut pieces = Vec::new();
    for chunk in chunks {
        pieces.push((at, chunk.to_vec()));
        at = at.wrapping_add(chunk.len() as u32);
    }
    pieces
}

proptest! {
    /// Whole or in pieces: the same bytes at the same places in the stream, no piece longer than the link is given at a
    /// time, FIN and PSH on the last alone.
    #[test]
    fn super_segments_arrive_as_they_were_sent(
        len in 1usize..20_000, size in 500u16..1448, frames in 1u32..20, partial in any::<bool>(),
    ) {
        let mut router = Router::new(1500);
        let limit = frames * (u32::from(size) + 54);
        router.segment_len = limit;
        let payload: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
        let mut message = testing::received(&segment(&payload, 0x19, true, partial));
        message.facts.checksum = Checksum::Verified;
        if len > usize::from(size) {
            message.facts.segmentation = Some(Segmentation { kind: SegmentationKind::Tcp4, size, header_len: 0 });
        } else {
            prop_assume!(len <= 1460);
        }
        let out = router.pass(message);
        let packets = len.div_ceil(usize::from(size)) as u32;
        prop_assert_eq!(out.len() as u32, if len > usize::from(size) { packets.div_ceil(frames) } else { 1 });
        let mut at = 0xffff_ff00_u32;
        let mut got = Vec::new();
        for (number, message) in out.iter().enumerate() {
            prop_assert!(message.wire_len() <= limit.max(1514));
            let flags = bytes_of(message)[ETH + 20 + 13];
            prop_assert_eq!(flags, if number + 1 == out.len() { 0x19 } else { 0x10 });
            for (sequence, piece) in on_the_wire(message) {
                prop_assert_eq!(sequence, at);
                prop_assert!(piece.len() <= usize::from(size).max(1460));
                at = at.wrapping_add(piece.len() as u32);
                got.extend(piece);
            }
        }
        prop_assert_eq!(got, payload);
    }

    /// Fragments of a packet, which may be one already, put together are the packet; each fits the link.
    #[test]
    fn fragments_put_together_are_the_packet(
        len in 1usize..1480, mtu in 68u16..1500, offset in 0u16..100, more in any::<bool>(),
    ) {
        let mut router = Router::new(mtu);
        let len = if more { len.div_ceil(8) * 8 } else { len };
        let payload: Vec<u8> = (0..len).map(|at| (at * 13) as u8).collect();
        let whole = ipv4::Header { fragment_offset: offset * 8, more_fragments: more, ..header(17, len) };
        let out = router.pass(testing::received(&ip_frame(&whole, &payload)));
        let mut got = vec![0; len];
        let mut covered = 0;
        for message in &out {
            let frame = bytes_of(message);
            let ip = ipv4::Header::parse(&frame[ETH..]).unwrap();
            prop_assert!(ipv4::checksum_is_valid(&frame[ETH..ETH + 20]));
            prop_assert!(ip.total_len <= mtu && usize::from(ip.total_len) == frame.len() - ETH);
            prop_assert_eq!(ip.identification, whole.identification);
            let at = usize::from(ip.fragment_offset - offset * 8);
            let piece = &frame[ETH + 20..];
            got[at..at + piece.len()].copy_from_slice(piece);
            covered += piece.len();
            let last = at + piece.len() == len;
            prop_assert_eq!(ip.more_fragments, more || !last);
        }
        prop_assert_eq!((got, covered), (payload, len));
    }

    /// Any bytes: dropped with a reason or passed on, never a panic.
    #[test]
    fn any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..120), real in any::<bool>(), size in 0u16..100) {
        let mut router = Router::new(576);
        if real && bytes.len() > 34 {
            let protocol = if bytes[0] & 1 == 0 { 6 } else { 17 };
            let frame = ip_frame(&header(protocol, bytes.len() - 34), &bytes[34..]);
            bytes = frame;
        }
        let mut message = testing::received(&bytes);
        message.facts = Facts { checksum: Checksum::Verified, ..message.facts };
        message.facts.segmentation =
            (size > 0).then_some(Segmentation { kind: SegmentationKind::Tcp4, size, header_len: 0 });
        router.segment_len = 80;
        let out = router.pass(message);
        let drops: u32 = router.path.account.all_drops().map(|(_, count)| count).sum();
        prop_assert!(drops > 0 || !out.is_empty());
    }
}
