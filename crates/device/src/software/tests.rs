//! Literal packets, and the cut against a straightforward oracle.

use scoutline_path::{Segmentation, SegmentationKind};

use super::{Unsendable, complete, fold, segment, sum};

/// RFC 1071, word by word.
fn plain_sum(bytes: &[u8]) -> u16 {
    let mut total = 0u32;
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

#[test]
fn sums_agree_with_the_definition_at_every_length() {
    let bytes: Vec<u8> = (0..300u32).map(|i| (i * 77 + 200) as u8).collect();
    for len in 0..bytes.len() {
        assert_eq!(fold(sum(&bytes[..len])), plain_sum(&bytes[..len]), "{len}");
    }
    let largest = vec![0xff; 65_536];
    assert_eq!(fold(sum(&largest)), plain_sum(&largest));
}

#[test]
fn rfc_1071_example() {
    assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
}

#[test]
fn fields_outside_are_refused() {
    let mut frame = [0; 20];
    assert_eq!(complete(&mut frame, 14, 4), Ok(()));
    assert_eq!(complete(&mut frame, 14, 5), Err(Unsendable::Checksum));
    assert_eq!(complete(&mut frame, 65_535, 65_535), Err(Unsendable::Checksum));
}

/// Ethernet, a VLAN tag, IPv4 with four bytes of options, UDP, seven bytes.
fn datagrams() -> Vec<u8> {
    let mut frame = vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0, 0, 5, 8, 0];
    frame.extend([0x46, 0, 0, 39, 0xff, 0xff, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 0]);
    frame.extend([0, 9, 0, 9, 0, 15, 0, 0]);
    frame.extend(*b"abcdefg");
    frame
}

#[test]
fn datagrams_are_cut_with_options_and_vlan() {
    let mut cut = Vec::new();
    let how = Segmentation { kind: SegmentationKind::Udp, size: 3, header_len: 0 };
    assert_eq!(segment(&datagrams(), how, |packet| cut.push(packet.to_vec())), Ok(3));
    let payloads: Vec<&[u8]> = cut.iter().map(|packet| &packet[50..]).collect();
    assert_eq!(payloads, [b"abc".as_slice(), b"def", b"g"]);
    for (index, packet) in cut.iter().enumerate() {
        assert_eq!(plain_sum(&packet[18..42]), 0xffff, "IP header");
        assert_eq!(u16::from_be_bytes([packet[22], packet[23]]), 0xffffu16.wrapping_add(index as u16));
        let len = packet.len() - 42;
        assert_eq!(u16::from_be_bytes([packet[46], packet[47]]) as usize, len);
        let mut whole = packet[30..38].to_vec();
        whole.extend([0, 17, 0, len as u8]);
        whole.extend(&packet[42..]);
        assert_eq!(plain_sum(&whole), 0xffff, "UDP checksum");
    }
}

#[test]
fn flags_of_tcp_go_where_they_belong() {
    let mut frame = datagrams()[..42].to_vec();
    frame[27] = 6;
    let mut tcp = [0; 20];
    tcp[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
    tcp[12] = 0x50;
    tcp[13] = 0x80 | 0x10 | 0x08 | 0x01; // CWR ACK PSH FIN
    frame.extend(tcp);
    frame.extend([7; 25]);
    let mut cut = Vec::new();
    let how = Segmentation { kind: SegmentationKind::Tcp4, size: 10, header_len: 0 };
    assert_eq!(segment(&frame, how, |packet| cut.push(packet.to_vec())), Ok(3));
    let flags: Vec<u8> = cut.iter().map(|packet| packet[42 + 13]).collect();
    assert_eq!(flags, [0x90, 0x10, 0x19]);
    let sequences: Vec<[u8; 4]> = cut.iter().map(|packet| packet[46..50].try_into().unwrap()).collect();
    assert_eq!(sequences, [u32::MAX.to_be_bytes(), 9u32.to_be_bytes(), 19u32.to_be_bytes()]);
}

/// Ethernet, IPv6, TCP, 25 bytes.
fn segments6() -> Vec<u8> {
    let mut frame = vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, 0, 45, 6, 64]);
    frame.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    frame.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    let mut tcp = [0; 20];
    tcp[12..14].copy_from_slice(&[0x50, 0x18]);
    frame.extend(tcp);
    frame.extend([7; 25]);
    frame
}

#[test]
fn segments_over_ipv6_are_cut() {
    let mut cut = Vec::new();
    let how = Segmentation { kind: SegmentationKind::Tcp6, size: 10, header_len: 0 };
    assert_eq!(segment(&segments6(), how, |packet| cut.push(packet.to_vec())), Ok(3));
    for (index, packet) in cut.iter().enumerate() {
        let len = packet.len() - 54;
        assert_eq!(u16::from_be_bytes([packet[18], packet[19]]) as usize, len, "payload length");
        assert_eq!(packet[58..62], (index as u32 * 10).to_be_bytes(), "sequence");
        let mut whole = packet[22..54].to_vec();
        whole.extend([0, 0, 0, len as u8, 0, 0, 0, 6]);
        whole.extend(&packet[54..]);
        assert_eq!(plain_sum(&whole), 0xffff, "checksum");
    }
    let other = Segmentation { kind: SegmentationKind::Tcp4, ..how };
    assert!(segment(&segments6(), other, |_| {}).is_err(), "of the other family");
}

/// Every prefix and many corruptions of a good frame: an error or packets, never a panic.
#[test]
fn garbage_is_refused() {
    let kinds = [SegmentationKind::Udp, SegmentationKind::Tcp4, SegmentationKind::Tcp6];
    for (good, kind) in
        [datagrams(), segments6()].into_iter().flat_map(|good| kinds.map(|kind| (good.clone(), kind)))
    {
        let how = Segmentation { kind, size: 3, header_len: 9 };
        for len in 0..good.len() {
            let _ = segment(&good[..len], how, |_| {});
        }
        for at in 0..good.len() {
            for value in [0, 0x0f, 0x45, 0x60, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = segment(&bad, how, |_| {});
            }
        }
        assert!(segment(&good, Segmentation { size: 0, ..how }, |_| {}).is_err());
    }
}
