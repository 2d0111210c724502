//! The same for IPv6.

use std::net::Ipv6Addr;
use std::time::Duration;

use scoutline_wire::{icmpv6, ipv6};

use super::*;
use crate::ip6::Host6Config;
use crate::testing::{OURS6, PEER_LOCAL, PEER6, interface6, ip6_frame, ip6_header};

const FAR6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 9);
const OUT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1);

fn router6(mtu: u16) -> Router {
    let from = interface6(OUR_LINK, OURS6, false);
    let to = Interface::new(&InterfaceConfig {
        device: OUT,
        link_address: OUT_LINK,
        address: Ipv4Addr::new(10, 1, 0, 1),
        prefix_len: 24,
        gateway: None,
        ip6: Some(Host6Config { addresses: vec![(OUT6, 64)], gateway: None, autoconfigure: false }),
        seed: 1,
        mtu,
        trusted_checksums: true,
        offload: Offload::default(),
    });
    for interface in [&from, &to] {
        let probed = Time::from_millis(1);
        interface.ip6.on_timeout(probed, |_| {});
        interface.ip6.on_timeout(probed + Duration::from_secs(1), |_| {});
    }
    from.neighbours6.borrow_mut().learn(PEER6, PEER_LINK, true, Time::from_millis(1));
    to.neighbours6.borrow_mut().learn(FAR6, FAR_LINK, true, Time::from_millis(1));
    Router::between(&from, to)
}

fn header6(protocol: u8, payload_len: usize) -> ipv6::Header {
    ipv6::Header { destination: FAR6, ..ip6_header(protocol, payload_len) }
}

/// The ICMPv6 error that left: type, code, rest, and that it quotes `cause` as it came.
#[track_caller]
fn error_about6(messages: &[Message], cause: &[u8]) -> (u8, u8, [u8; 4]) {
    let [message] = messages else { panic!("{} messages instead of one error", messages.len()) };
    assert_eq!(message.facts.device, testing::DEVICE, "it goes back where the packet came from");
    let frame = bytes_of(message);
    assert_eq!((&frame[..6], &frame[6..14]), (&PEER_LINK[..], &[2, 0, 0, 0, 0, 1, 0x86, 0xdd][..]));
    let ip = ipv6::Header::parse(&frame[ETH..]).unwrap();
    assert_eq!((ip.source, ip.destination, ip.next_header), (OURS6, PEER6, ipv6::PROTOCOL_ICMPV6));
    let error = icmpv6::Header::parse(&frame[ETH + 40..], OURS6.into(), PEER6.into()).unwrap();
    assert!(cause.starts_with(&frame[ETH + 48..]) && frame.len() - ETH <= usize::from(ipv6::MIN_MTU));
    (error.kind, error.code, error.rest)
}

#[test]
fn a_packet_goes_on_with_one_hop_less() {
    let mut router = router6(1500);
    let header = ipv6::Header { traffic_class: 0xb8, flow_label: 0x12345, ..header6(17, 30) };
    let frame = ip6_frame(&header, &[9; 30]);
    let out = router.pass(testing::received(&frame));
    assert_eq!((out.len(), out[0].facts.device, out[0].facts.tos), (1, OUT, 0xb8));
    let sent = bytes_of(&out[0]);
    assert_eq!((&sent[..6], &sent[6..12], &sent[12..14]), (&FAR_LINK[..], &OUT_LINK[..], &[0x86, 0xdd][..]));
    let after = ipv6::Header::parse(&sent[ETH..]).unwrap();
    assert_eq!(after, ipv6::Header { hop_limit: header.hop_limit - 1, ..header });
    assert_eq!(sent[ETH + 40..], frame[ETH + 40..]);
}

/// RFC 8200 §4: extension headers are the destination's matter, also those that we would refuse ourselves.
#[test]
fn extension_headers_and_fragments_go_on_as_they_are() {
    let mut router = router6(1500);
    let unknown_option = [17, 0, 0xc3, 4, 1, 2, 3, 4];
    let type_0_routing = [17, 0, 0, 1, 0, 0, 0, 0];
    let fragment = [17, 0, 0, 0x41, 0, 0, 0, 7];
    let cut_off = [17, 9, 0, 0, 0, 0, 0, 0];
    for (kind, extension) in [
        (ipv6::HOP_BY_HOP, unknown_option),
        (ipv6::ROUTING, type_0_routing),
        (ipv6::FRAGMENT, fragment),
        (ipv6::DESTINATION_OPTIONS, cut_off),
    ] {
        let payload = [&extension[..], &[9; 24]].concat();
        let frame = ip6_frame(&header6(kind, payload.len()), &payload);
        let out = router.pass(testing::received(&frame));
        assert_eq!(out.len(), 1, "{kind}");
        assert_eq!(bytes_of(&out[0])[ETH + 40..], frame[ETH + 40..], "{kind}");
    }
}

/// RFC 4443 §3.1 to §3.3.
#[test]
fn what_cannot_go_on_is_dropped_and_its_sender_told() {
    let told = |router: &mut Router, header: ipv6::Header, len: usize| {
        let frame = ip6_frame(&ipv6::Header { payload_len: len as u16, ..header }, &vec![9; len]);
        error_about6(&router.pass(testing::received(&frame)), &frame[ETH..])
    };
    let mut router = router6(1500);
    for hop_limit in [0, 1] {
        let spent = ipv6::Header { hop_limit, ..header6(17, 0) };
        assert_eq!(told(&mut router, spent, 30), (icmpv6::TIME_EXCEEDED, 0, [0; 4]));
    }
    assert_eq!(router.drops(DropReason::TtlExceeded), 2);
    let elsewhere = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 9);
    let elsewhere = ipv6::Header { destination: elsewhere, ..header6(17, 0) };
    assert_eq!(
        told(&mut router, elsewhere, 30),
        (icmpv6::UNREACHABLE, icmpv6::unreachable::NO_ROUTE, [0; 4])
    );

    let mut router = router6(1300);
    let too_big = (icmpv6::PACKET_TOO_BIG, 0, [0, 0, 5, 20]);
    assert_eq!(told(&mut router, header6(17, 0), 1301 - 40), too_big);
    assert_eq!(router.drops(DropReason::NeedsFragmentation), 1);
    let fits = ip6_frame(&header6(17, 1260), &[9; 1260]);
    assert_eq!(router.pass(testing::received(&fits)).len(), 1);
    // A super-segment whose pieces do not fit.
    let mut long = testing::received(&segment6(&[7; 4_000]));
    long.facts.segmentation = Some(Segmentation { kind: SegmentationKind::Tcp6, size: 1400, header_len: 0 });
    let bytes = long.bytes()[ETH..].to_vec();
    assert_eq!(error_about6(&router.pass(long), &bytes), too_big);
}

#[test]
fn a_silent_neighbour_is_told_of() {
    let mut router = router6(1500);
    let stranger = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 77);
    let frame = ip6_frame(&ipv6::Header { destination: stranger, ..header6(17, 30) }, &[9; 30]);
    let asked = router.pass(testing::received(&frame));
    assert_eq!((asked.len(), asked[0].facts.device), (1, OUT));
    let solicitation = bytes_of(&asked[0]);
    assert_eq!(solicitation[ETH + 40], scoutline_wire::nd::NEIGHBOUR_SOLICITATION, "out there");
    for second in 1..4 {
        router.to.neighbours6.borrow_mut().on_timeout(Time::from_millis(1_000 * second + 2), |_| {});
    }
    let out = router.pass_at(testing::received(&frame), Time::from_millis(3_500));
    assert_eq!(
        error_about6(&out, &frame[ETH..]),
        (icmpv6::UNREACHABLE, icmpv6::unreachable::ADDRESS, [0; 4])
    );
}

/// RFC 4443 §2.4 (e), (f).
#[test]
fn nothing_is_said_about_errors_and_redirects_and_not_too_often() {
    let mut router = router6(1500);
    for kind in [icmpv6::UNREACHABLE, scoutline_wire::nd::REDIRECT] {
        let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        message.extend_from_slice(&[0; 40]);
        let header = ipv6::Header { hop_limit: 1, ..header6(ipv6::PROTOCOL_ICMPV6, message.len()) };
        assert!(router.pass(testing::received(&ip6_frame(&header, &message))).is_empty(), "{kind}");
    }
    let spent = ip6_frame(&ipv6::Header { hop_limit: 1, ..header6(17, 30) }, &[9; 30]);
    let told: usize = (0..200).map(|_| router.pass(testing::received(&spent)).len()).sum();
    assert_eq!(told, 50, "the interface's limit on errors, one for both families");
    assert_eq!(router.drops(DropReason::RateLimited), 150);
}

/// RFC 4291 §2.5.2, §2.5.3, §2.5.6, §2.7.
#[test]
fn martians_and_what_is_for_ourselves_or_one_link_end_here() {
    let mut router = router6(1500);
    let mapped = Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped();
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    for source in [Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED, OURS6, OUT6, mapped, group] {
        let frame = ip6_frame(&ipv6::Header { source, ..header6(17, 30) }, &[9; 30]);
        assert!(router.pass(testing::received(&frame)).is_empty(), "{source}");
    }
    assert_eq!(router.drops(DropReason::Malformed), 6);
    for destination in [OUT6, PEER_LOCAL] {
        let frame = ip6_frame(&ipv6::Header { destination, ..header6(17, 30) }, &[9; 30]);
        assert!(router.pass(testing::received(&frame)).is_empty(), "{destination}");
    }
    assert_eq!(router.drops(DropReason::NotForUs), 2);
    // Its address means nothing out there.
    let frame = ip6_frame(&ipv6::Header { source: PEER_LOCAL, ..header6(17, 30) }, &[9; 30]);
    let asked = router.pass(testing::received(&frame));
    assert_eq!(router.drops(DropReason::NotForUs), 3);
    let bytes: Vec<Vec<u8>> = asked.iter().map(bytes_of).collect();
    assert_eq!(
        bytes[0][ETH + 40],
        scoutline_wire::nd::NEIGHBOUR_SOLICITATION,
        "whom to tell is not known yet"
    );
}

fn segment6(payload: &[u8]) -> Vec<u8> {
    let mut tcp = vec![0; 20];
    tcp[4..8].copy_from_slice(&0xffff_ff00_u32.to_be_bytes());
    tcp[12] = 5 << 4;
    tcp[13] = 0x19;
    tcp.extend_from_slice(payload);
    let pseudo = checksum::pseudo_header(PEER6, FAR6, 6, tcp.len());
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
    ip6_frame(&header6(6, tcp.len()), &tcp)
}

proptest! {
    /// Whole or in pieces: the same bytes at the same places in the stream, each piece with lengths and checksum of its
    /// own.
    #[test]
    fn super_segments_arrive_as_they_were_sent(len in 2_000usize..20_000, size in 500u16..1428, frames in 1u32..20) {
        let mut router = router6(1500);
        router.segment_len = frames * (u32::from(size) + 74);
        let payload: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
        let mut message = testing::received(&segment6(&payload));
        message.facts.checksum = Checksum::Verified;
        message.facts.segmentation = Some(Segmentation { kind: SegmentationKind::Tcp6, size, header_len: 0 });
        let out = router.pass(message);
        prop_assert_eq!(out.len() as u32, (len.div_ceil(usize::from(size)) as u32).div_ceil(frames));
        let (mut at, mut got) = (0xffff_ff00_u32, Vec::new());
        for (number, message) in out.iter().enumerate() {
            let frame = completed(bytes_of(message), &message.facts);
            let ip = ipv6::Header::parse(&frame[ETH..]).unwrap();
            prop_assert_eq!((ip.total_len(), ip.hop_limit), (frame.len() - ETH, 62));
            let tcp = &frame[ETH + 40..];
            let pseudo = checksum::pseudo_header(PEER6, FAR6, 6, tcp.len());
            prop_assert!(checksum::is_valid(checksum::add(pseudo, checksum::sum(tcp))));
            prop_assert_eq!(u32::from_be_bytes(tcp[4..8].try_into().unwrap()), at);
            prop_assert_eq!(tcp[13], if number + 1 == out.len() { 0x19 } else { 0x10 });
            at = at.wrapping_add(tcp.len() as u32 - 20);
            got.extend_from_slice(&tcp[20..]);
        }
        prop_assert_eq!(got, payload);
    }

    /// Any bytes: dropped with a reason or passed on, never a panic.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), next in 0usize..7, size in 0u16..100) {
        let mut router = router6(1280);
        let protocols = [0, 6, 17, 43, 44, 58, 60];
        let frame = ip6_frame(&header6(protocols[next], bytes.len()), &bytes);
        let mut message = testing::received(&frame);
        message.facts.checksum = Checksum::Verified;
        message.facts.segmentation =
            (size > 0).then_some(Segmentation { kind: SegmentationKind::Tcp6, size, header_len: 0 });
        router.segment_len = 80;
        let out = router.pass(message);
        let drops: u32 = router.path.account.all_drops().map(|(_, count)| count).sum();
        prop_assert!(drops > 0 || !out.is_empty());
    }
}
