use std::net::Ipv4Addr;
use std::time::Duration;

use proptest::prelude::*;
use scoutline_base::{PathId, Random, Time};
use scoutline_path::{Attributes, DropReason, Effect, Name, Value, Verdict};
use scoutline_wire::{checksum, ipv4};

use super::{Limits, Offered, Reassembler};
use crate::testing::{self, Host, OURS, PEER, address, ip_frame, ip_header, udp_datagram, udp_frame};

fn host() -> (Host, PathId) {
    let mut host = Host::new();
    host.know_peer();
    let attributes =
        Attributes::new().with(Name::Protocol, Value::Number(17)).with(Name::Local, address(OURS, 7));
    let path = host.create("SOCKET", attributes);
    host.net.udp.listen("0.0.0.0:7".parse().unwrap(), 0, path);
    (host, path)
}

#[test]
fn options_are_skipped_and_padding_is_cut() {
    let (mut host, path) = host();
    let datagram = udp_datagram((9, 7), b"hello");
    let header = ip_header(17, datagram.len() + 4);
    let mut ip = vec![0; 20];
    header.emit(&mut ip);
    ip[0] = 0x46;
    ip.extend_from_slice(&[1, 1, 1, 0]);
    ip[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(&ip));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip.extend_from_slice(&datagram);
    ip.extend_from_slice(&[0; 13]);
    let frame = testing::eth(0x800, &ip);
    assert_eq!(host.demux(&frame).0, Verdict::Path(path));
    host.receive(path, &frame);
    let received = host.received();
    assert_eq!(received[0].bytes(), b"hello");
    assert_eq!(
        (received[0].facts.source, received[0].facts.destination),
        (Some(PEER.into()), Some(OURS.into()))
    );
}

#[test]
fn each_fault_has_its_reason() {
    let (mut host, path) = host();
    let good = udp_frame((9, 7), b"hello");
    let mut bad = |change: &dyn Fn(&mut Vec<u8>), fix: bool, reason: DropReason| {
        let mut frame = good.clone();
        change(&mut frame);
        if fix {
            frame[24..26].fill(0);
            let sum = checksum::finish(checksum::sum(&frame[14..34]));
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        let before = host.path(path).account.drops(reason);
        host.receive(path, &frame);
        assert_eq!(host.path(path).account.drops(reason), before + 1, "{reason:?}");
    };
    bad(&|f| f.truncate(33), false, DropReason::Truncated);
    bad(&|f| f.truncate(40), false, DropReason::Truncated);
    bad(&|f| f[14] = 0x65, true, DropReason::Malformed);
    bad(&|f| f[14] = 0x44, true, DropReason::Malformed);
    bad(&|f| f[22] ^= 1, false, DropReason::BadChecksum);
    bad(&|f| f[33] = 200, true, DropReason::NotForUs);
    bad(&|f| f[26] = 127, true, DropReason::Malformed);
    bad(&|f| f[26..30].copy_from_slice(&OURS.octets()), true, DropReason::Malformed);
    bad(&|f| f[20] = 0x20, true, DropReason::Malformed);
    let mut unknown = good.clone();
    unknown[23] = 200;
    assert_eq!(host.demux(&unknown).0, Verdict::NoPath, "its sender is told");
    let mut to_all = good.clone();
    to_all[..6].fill(0xff);
    assert_eq!(host.demux(&to_all).0, Verdict::Drop(DropReason::NotForUs), "one station's, sent to all");
    assert!(host.received().is_empty());
}

#[test]
fn what_the_link_cannot_carry_is_cut_and_put_together_again() {
    let (mut host, path) = host();
    let payload: Vec<u8> = (0..9000u32).map(|index| index as u8).collect();
    let mut message = testing::block(&payload);
    message.facts.destination = Some(PEER.into());
    message.facts.ports = Some((7, 9));
    let frames = host.send(path, message);
    assert_eq!(frames.len(), 7);
    let mut reassembler = Reassembler::new(Limits::default());
    for (index, frame) in frames.iter().enumerate() {
        assert!(frame.len() <= 1514);
        let header = ipv4::Header::parse(&frame[14..]).unwrap();
        assert!(ipv4::checksum_is_valid(&frame[14..34]) && header.is_fragment() && !header.dont_fragment);
        let offered = reassembler.offer(&header, &frame[34..], Time::ZERO);
        if index < 6 {
            assert_eq!(offered, Offered::Kept);
            continue;
        }
        let Offered::Complete(header, whole) = offered else { panic!("{offered:?}") };
        assert_eq!(usize::from(header.total_len), 20 + 8 + 9000);
        assert_eq!(whole[8..], payload);
        let pseudo = checksum::pseudo_header(OURS, PEER, 17, whole.len());
        assert!(checksum::is_valid(checksum::add(pseudo, checksum::sum(&whole))));
    }
}

#[test]
fn a_whole_datagram_is_classified_again() {
    let (mut host, path) = host();
    let payload = vec![7; 3000];
    let datagram = udp_datagram((9, 7), &payload);
    let reassembly = host.interface.service_paths.reassembly.get().unwrap();
    for (start, end) in [(1600, 3008), (0, 800), (800, 1600)] {
        let header = ipv4::Header {
            fragment_offset: start as u16,
            more_fragments: end != 3008,
            ..ip_header(17, end - start)
        };
        let frame = ip_frame(&header, &datagram[start..end]);
        assert_eq!(host.demux(&frame).0, Verdict::Path(reassembly));
        assert!(host.effects().is_empty());
        host.receive(reassembly, &frame);
    }
    let mut effects = host.effects();
    let Some(Effect::Reclassify(message)) = effects.pop() else { panic!("{effects:?}") };
    assert_eq!(host.demux(message.bytes()).0, Verdict::Path(path));
    host.receive_message(path, message);
    assert_eq!(host.received()[0].bytes(), payload);
}

#[test]
fn reassembly_ends_after_its_time() {
    let (mut host, _) = host();
    let reassembly = host.interface.service_paths.reassembly.get().unwrap();
    let header = ipv4::Header { more_fragments: true, ..ip_header(17, 8) };
    host.know_peer();
    host.receive(reassembly, &ip_frame(&header, &[9; 8]));
    let later = ipv4::Header { fragment_offset: 8, more_fragments: true, identification: 2, ..header };
    host.receive(reassembly, &ip_frame(&later, &[0; 8]));
    host.expire(reassembly, Duration::from_secs(29));
    assert_eq!(host.drops(reassembly), []);
    host.know_peer();
    let sent = host.expire(reassembly, Duration::from_secs(1));
    assert_eq!(host.drops(reassembly), [(DropReason::FragmentTimeout, 2)]);
    // RFC 1122 §3.3.2: about the datagram whose first fragment came.
    assert_eq!(sent.len(), 1);
    let report = &sent[0][34..];
    assert!(checksum::is_valid(checksum::sum(report)));
    assert_eq!((report[0], report[1]), (11, 1));
    assert_eq!(report[8..], ip_frame(&header, &[9; 8])[14..]);
    assert_eq!(host.path(reassembly).next_timeout(), None);
}

#[test]
fn what_is_for_us_is_taken_whatever_its_ttl() {
    let (mut host, path) = host();
    for ttl in [0, 1] {
        let datagram = udp_datagram((9, 7), b"hello");
        let header = ipv4::Header { ttl, ..ip_header(17, datagram.len()) };
        let frame = ip_frame(&header, &datagram);
        assert_eq!(host.demux(&frame).0, Verdict::Path(path));
        host.receive(path, &frame);
        assert_eq!(host.received()[0].bytes(), b"hello", "RFC 1122 §3.2.1.7: {ttl}");
    }
}

/// RFC 1122 §3.2.1.3 (a), RFC 2131 §4.1.
#[test]
fn from_nowhere_comes_what_is_for_everybody() {
    let (mut host, path) = host();
    let mut send = |source: [u8; 4], destination: Ipv4Addr| {
        // Without a UDP checksum, so that it need not be made anew.
        let mut datagram = udp_datagram((9, 7), b"hello");
        datagram[6..8].fill(0);
        let header = ipv4::Header { source: source.into(), destination, ..ip_header(17, datagram.len()) };
        host.receive(path, &ip_frame(&header, &datagram));
        (host.received().len(), host.drops(path).len())
    };
    assert_eq!(send([0; 4], Ipv4Addr::BROADCAST), (1, 0));
    assert_eq!(send([0; 4], OURS), (0, 1));
    assert_eq!(send([0, 1, 2, 3], OURS), (0, 1));
    assert_eq!(host.path(path).account.drops(DropReason::Malformed), 2);
}

fn piece(start: usize, more: bool, id: u16) -> ipv4::Header {
    ipv4::Header {
        fragment_offset: start as u16,
        more_fragments: more,
        identification: id,
        ..ip_header(17, 8)
    }
}

#[test]
fn overlap_drops_the_whole_datagram() {
    let mut reassembler = Reassembler::new(Limits::default());
    let refused = Offered::Refused(DropReason::FragmentOverlap);
    let mut offer = |header: ipv4::Header, bytes: &[u8]| reassembler.offer(&header, bytes, Time::ZERO);
    assert_eq!(offer(piece(0, true, 1), &[1; 16]), Offered::Kept);
    assert_eq!(offer(piece(0, true, 1), &[1; 16]), Offered::Duplicate);
    assert_eq!(offer(piece(8, true, 1), &[1; 16]), refused);
    assert_eq!(offer(piece(16, false, 1), &[1; 8]), refused, "poisoned");
    // The same place with other bytes; two ends; a piece behind the end.
    assert_eq!(offer(piece(0, true, 2), &[1; 8]), Offered::Kept);
    assert_eq!(offer(piece(0, true, 2), &[2; 8]), refused);
    assert_eq!(offer(piece(16, false, 3), &[1; 8]), Offered::Kept);
    assert_eq!(offer(piece(32, false, 3), &[1; 8]), refused);
    assert_eq!(offer(piece(16, false, 4), &[1; 8]), Offered::Kept);
    assert_eq!(offer(piece(24, true, 4), &[1; 8]), refused);
    assert_eq!(offer(piece(24, true, 5), &[1; 8]), Offered::Kept);
    assert_eq!(offer(piece(16, false, 5), &[1; 8]), refused);
    assert_eq!(offer(piece(0, true, 6), &[1; 9]), Offered::Refused(DropReason::Malformed));
    assert_eq!(offer(piece(65528, false, 6), &[1; 8]), Offered::Refused(DropReason::Malformed));
    assert_eq!(offer(piece(8, false, 6), &[]), Offered::Refused(DropReason::Malformed));
    assert_eq!(reassembler.bytes(), 0);
}

#[test]
fn what_has_come_may_come_again_in_other_pieces() {
    let bytes: Vec<u8> = (0..48).collect();
    let mut reassembler = Reassembler::new(Limits::default());
    let mut offer = |start: usize, end: usize, id: u16| {
        reassembler.offer(&piece(start, end != 48, id), &bytes[start..end], Time::ZERO)
    };
    assert_eq!(offer(0, 24, 1), Offered::Kept);
    for (start, end) in [(0, 8), (8, 16), (8, 24), (0, 24)] {
        assert_eq!(offer(start, end, 1), Offered::Duplicate, "{start}..{end} of one piece");
    }
    assert_eq!(offer(24, 32, 1), Offered::Kept);
    assert_eq!(offer(16, 32, 1), Offered::Duplicate, "of two");
    assert!(matches!(offer(32, 48, 1), Offered::Complete(_, whole) if whole == bytes));
    // The end alone comes again; bytes that are missing make an overlap.
    assert_eq!(offer(24, 48, 2), Offered::Kept);
    assert_eq!(offer(40, 48, 2), Offered::Duplicate);
    assert_eq!(offer(16, 32, 2), Offered::Refused(DropReason::FragmentOverlap));
    assert_eq!(offer(0, 8, 3), Offered::Kept);
    assert_eq!(offer(16, 24, 3), Offered::Kept);
    assert_eq!(offer(0, 24, 3), Offered::Refused(DropReason::FragmentOverlap), "a gap is in it");
    // Other bytes, or another end: contradictions.
    assert_eq!(offer(0, 24, 4), Offered::Kept);
    let other = reassembler.offer(&piece(8, true, 4), &[0xee; 8], Time::ZERO);
    assert_eq!(other, Offered::Refused(DropReason::FragmentOverlap));
    assert_eq!(reassembler.offer(&piece(0, true, 5), &bytes[..24], Time::ZERO), Offered::Kept);
    let end = reassembler.offer(&piece(8, false, 5), &bytes[8..16], Time::ZERO);
    assert_eq!(end, Offered::Refused(DropReason::FragmentOverlap));
}

/// RFC 3168 §5.3, and what Linux makes of each mix (ip_frag_ecn_table).
#[test]
fn a_mark_on_a_piece_is_on_the_whole() {
    let (not_ect, ect1, ect0, ce) = (0b00, 0b01, 0b10, 0b11);
    for (fields, whole) in [
        ([not_ect, not_ect, not_ect], Some(not_ect)),
        ([ect0, ce, ect0], Some(ce)),
        ([ce, ect0, ect0], Some(ce)),
        ([ect1, ect1, ce], Some(ce)),
        ([ect0, ect1, ce], Some(ce)),
        ([ce, ce, ce], Some(ce)),
        ([ect0, ect1, ect1], Some(ect0)),
        ([ect1, ect0, ect0], Some(ect1)),
        ([not_ect, ce, not_ect], None),
        ([ce, ce, not_ect], None),
        ([not_ect, ect0, ect0], None),
        ([ect1, not_ect, not_ect], None),
        ([not_ect, ect0, ce], None),
    ] {
        let mut reassembler = Reassembler::new(Limits::default());
        let mut offer = |index: usize| {
            let header = ipv4::Header { tos: 46 << 2 | fields[index], ..piece(index * 8, index < 2, 1) };
            reassembler.offer(&header, &[1; 8], Time::ZERO)
        };
        // The last piece to come is not the first of the datagram.
        assert_eq!((offer(2), offer(0)), (Offered::Kept, Offered::Kept));
        match (offer(1), whole) {
            (Offered::Complete(header, _), Some(ecn)) => assert_eq!(header.tos, 46 << 2 | ecn, "{fields:?}"),
            (Offered::Refused(reason), None) => assert_eq!(reason, DropReason::Malformed, "{fields:?}"),
            (offered, _) => panic!("{fields:?}: {offered:?}"),
        }
        assert_eq!((reassembler.bytes(), reassembler.datagrams()), (0, 0));
    }
}

#[test]
fn limits_hold() {
    let limits = Limits { datagrams: 3, datagrams_per_source: 2, pieces: 2, bytes: 40, ..Limits::default() };
    let mut reassembler = Reassembler::new(limits);
    let refused = Offered::Refused(DropReason::FragmentLimit);
    let mut offer = |header: ipv4::Header| reassembler.offer(&header, &[0; 8], Time::ZERO);
    assert_eq!(offer(piece(0, true, 1)), Offered::Kept);
    assert_eq!(offer(piece(0, true, 2)), Offered::Kept);
    assert_eq!(offer(piece(0, true, 3)), refused, "per source");
    let other = |id| ipv4::Header { source: OURS, ..piece(0, true, id) };
    assert_eq!(offer(other(1)), Offered::Kept);
    assert_eq!(offer(other(2)), refused, "in all");
    assert_eq!(offer(piece(8, true, 1)), Offered::Kept);
    assert_eq!(offer(piece(16, true, 1)), refused, "pieces");
    assert_eq!(offer(piece(8, true, 2)), Offered::Kept);
    assert_eq!(reassembler.bytes(), 24);
    let large = reassembler.offer(&ipv4::Header { source: OURS, ..piece(8, true, 1) }, &[0; 24], Time::ZERO);
    assert_eq!(large, refused, "bytes");
    assert_eq!(reassembler.bytes(), 24);
}

proptest! {
    #[test]
    fn any_cut_in_any_order_with_duplicates_comes_together(len in 1usize..20_000, seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let payload: Vec<u8> = (0..len).map(|_| random.next_u32() as u8).collect();
        let mut pieces = Vec::new();
        let mut start = 0;
        while start < len {
            let end = (start + 8 * (1 + random.below(300) as usize)).max(start + len.div_ceil(100) / 8 * 8 + 8);
            pieces.push((start, end.min(len)));
            start = end;
        }
        for index in (1..pieces.len()).rev() {
            pieces.swap(index, random.below(index as u32 + 1) as usize);
        }
        let mut reassembler = Reassembler::new(Limits::default());
        let count = pieces.len();
        for (index, (start, end)) in pieces.into_iter().enumerate() {
            let header = piece(start, end != len, 9);
            let offered = reassembler.offer(&header, &payload[start..end], Time::ZERO);
            if index + 1 < count {
                prop_assert_eq!(offered, Offered::Kept);
                if random.chance(0.2) {
                    let again = reassembler.offer(&header, &payload[start..end], Time::ZERO);
                    prop_assert_eq!(again, Offered::Duplicate);
                }
            } else {
                let Offered::Complete(header, whole) = offered else { panic!("{offered:?}") };
                prop_assert_eq!(header.payload_len(), len);
                prop_assert_eq!(whole, payload.clone());
            }
        }
        prop_assert_eq!((reassembler.bytes(), reassembler.datagrams()), (0, 0));
    }

    /// Whatever comes, no byte of a datagram that completes was ever contradicted.
    #[test]
    fn random_fragments_never_break_the_accounting(operations in proptest::collection::vec((0usize..40, 1usize..10, any::<bool>(), 0u16..3), 0..200)) {
        let mut reassembler = Reassembler::new(Limits { pieces: 8, bytes: 600, ..Limits::default() });
        for (start, len, more, id) in operations {
            let payload: Vec<u8> = (start * 8..(start + len) * 8).map(|index| index as u8).collect();
            let offered = reassembler.offer(&piece(start * 8, more, id), &payload, Time::ZERO);
            if let Offered::Complete(_, whole) = offered {
                prop_assert!(whole.iter().enumerate().all(|(index, &byte)| byte == index as u8));
            }
            prop_assert!(reassembler.bytes() <= 600 && reassembler.datagrams() <= 3);
        }
        reassembler.on_timeout(Time::from_millis(31_000));
        prop_assert_eq!((reassembler.bytes(), reassembler.datagrams()), (0, 0));
    }

    #[test]
    fn demux_agrees_with_the_single_pass(mut frame in prop_oneof![
        Just(udp_frame((9, 7), b"hello")), Just(testing::tcp_frame_plain((9, 7)))
    ], changes in proptest::collection::vec((14usize..42, any::<u8>()), 0..3)) {
        for (at, value) in changes {
            frame[at] = value;
        }
        let (host, _) = host();
        let before = host.demux(&frame);
        prop_assert_eq!(before, host.demux(&frame), "asking changes nothing");
        if let Some(key) = scoutline_path::flow_of_frame(&frame, testing::DEVICE)
            && !matches!(before.0, Verdict::Drop(_))
        {
            prop_assert_eq!(key, before.1);
        }
    }

    #[test]
    fn any_bytes_classify_and_run_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), valid in any::<bool>()) {
        let (mut host, path) = host();
        let mut frame = testing::eth(0x800, &bytes);
        if valid && bytes.len() >= 20 {
            frame[14] = 0x45;
            frame[16..18].copy_from_slice(&(bytes.len() as u16).to_be_bytes());
            frame[26..30].copy_from_slice(&PEER.octets());
            frame[30..34].copy_from_slice(&OURS.octets());
            frame[24..26].fill(0);
            let sum = checksum::finish(checksum::sum(&frame[14..34]));
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        let _ = host.demux(&frame);
        let service = &host.interface.service_paths;
        let all = [service.arp.get(), service.icmp.get(), service.unreachable.get(), service.reassembly.get()];
        for id in all.into_iter().flatten().chain([path]) {
            host.receive(id, &frame);
        }
    }
}

#[test]
fn packets_leave_with_the_mark_of_their_path() {
    let (mut host, _) = host();
    let attributes = Attributes::new()
        .with(Name::Protocol, Value::Number(17))
        .with(Name::Local, address(OURS, 7))
        .with(Name::Remote, address(PEER, 9));
    let path = host.create("SOCKET", attributes);
    let tos = |frames: &[Vec<u8>]| -> Vec<u8> {
        frames.iter().map(|frame| ipv4::Header::parse(&frame[14..]).unwrap().tos).collect()
    };
    assert_eq!(tos(&host.send(path, testing::block(b"x"))), [0]);
    host.table.get_mut(path).unwrap().set_mark(Some(46));
    assert_eq!(tos(&host.send(path, testing::block(b"x"))), [46 << 2]);
    assert_eq!(tos(&host.send(path, testing::block(&[0; 2000]))), [46 << 2; 2], "every fragment");
    let with_ecn = || {
        let mut message = testing::block(b"x");
        message.facts.tos = 8 << 2 | 0b01;
        message
    };
    assert_eq!(tos(&host.send(path, with_ecn())), [46 << 2 | 0b01], "ECN stays");
    host.table.get_mut(path).unwrap().set_mark(None);
    assert_eq!(tos(&host.send(path, with_ecn())), [8 << 2 | 0b01]);
}
