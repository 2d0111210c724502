//! What only `packet` does: Linux as the peer, long super-segments, tags, what it holds back, and the interface's settings.

#![allow(unsafe_code)] // setns for the tests

mod support;

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use scoutline_base::spread::engine_of_flow;
use scoutline_base::{DeviceId, Time};
use scoutline_device::{DeviceError, MAX_LONG_FRAME, Partner, Policing, SegmentLimit, Steering, packet};
use scoutline_path::{Body, Burst, Checksum, Facts, Message, Segmentation, SegmentationKind};
use scoutline_ring::{Block, gather};
use support::{Namespace, SOON, arriving, flow_frame, frame, pull, send, veth};

fn open(namespace: &Namespace, config: &packet::Config) -> packet::PacketPartner {
    let (partner, notices) = namespace.enter(|| packet::open(DeviceId(1), config)).expect("opens");
    assert!(notices.is_empty(), "{notices:?}");
    partner
}

/// What came of it.
fn police(
    namespace: &Namespace,
    partner: &mut packet::PacketPartner,
    policing: Option<Policing<'_>>,
) -> String {
    namespace.enter(|| partner.police(policing));
    let start = Instant::now();
    loop {
        if let Some(news) = partner.news() {
            return news.0;
        }
        assert!(start.elapsed() < SOON, "nothing came of it");
        std::thread::yield_now();
    }
}

/// While a flood is held back, important packets all come, of others a few, and what does not come is counted. Then all
/// come again.
#[test]
fn a_flood_is_held_back_at_the_interface() {
    let (first, second) = veth();
    let (mut one, mut two) =
        (open(&first, &packet::Config::new("left")), open(&second, &packet::Config::new("right")));
    let important = packet::Important {
        source: Ipv4Addr::new(10, 9, 0, 1).into(),
        prefix_len: 32,
        local_port: Some(0x2000..=0x2000),
    };
    let news = police(&second, &mut two, Some(Policing { exempt: &[important], only_syns: false }));
    assert!(news.contains("held back in its driver"), "{news}");
    let flood = 2000;
    let passed = arriving(&mut one, &mut two, flood, |_| frame(100, 1));
    let policed = two.counters().rx_policed;
    assert!(policed > 0 && passed + policed == flood, "{passed} came, {policed} were held back");
    let important = |_| udp_message([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], b"important", None);
    assert_eq!(arriving(&mut one, &mut two, flood, important), flood);
    assert_eq!(two.counters().rx_policed, policed, "none of those");
    police(&second, &mut two, None);
    assert_eq!(arriving(&mut one, &mut two, flood, |_| frame(100, 1)), flood);
    assert_eq!(two.counters().rx_policed, policed, "what was counted stays so");
}

/// A child that has not yet become another program has all our descriptors; nothing waits for it.
#[test]
fn a_policer_goes_while_a_child_has_its_descriptors() {
    let (_first, second) = veth();
    let mut two = open(&second, &packet::Config::new("right"));
    let has_program = || second.ip(&["link", "show", "right"]).contains("xdp");
    police(&second, &mut two, Some(Policing { exempt: &[], only_syns: false }));
    assert!(has_program());
    let held: Vec<OwnedFd> = std::fs::read_dir("/proc/self/fd")
        .expect("a listing")
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let is_link = std::fs::read_link(&path).ok()?.to_str()?.contains("bpf_link");
            let number = path.file_name()?.to_str()?.parse().ok()?;
            // SAFETY: copied at once, and not used again; one that is closed by now has no copy.
            is_link.then(|| unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().ok())?
        })
        .collect();
    assert!(!held.is_empty());
    police(&second, &mut two, None);
    assert!(!has_program());
}

/// That the interface goes down rings, rules or none; it must not ring for ever, or the engine would not sleep again.
#[test]
fn a_bell_is_silent_after_the_interface_went_down() {
    let (_first, second) = veth();
    let mut two = open(&second, &packet::Config { bell: true, ..packet::Config::new("right") });
    let mut poll = libc::pollfd { fd: two.bell_fd().expect("one"), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which outlives the call.
    let mut rings = |wait_ms| unsafe { libc::poll(&raw mut poll, 1, wait_ms) } == 1;
    assert!(!rings(0));
    second.ip(&["link", "set", "right", "down"]);
    assert!(rings(5000), "it says so");
    two.silence_bell();
    assert!(!rings(0));
    second.ip(&["link", "set", "right", "up"]);
    assert!(!rings(0));
}

/// Rules change by exchange: what was dropped before is remembered, so that at no moment everything passes.
#[test]
fn what_is_remembered_of_syns_outlives_a_change_of_rules() {
    let (first, second) = veth();
    let (mut one, mut two) =
        (open(&first, &packet::Config::new("left")), open(&second, &packet::Config::new("right")));
    police(&second, &mut two, Some(Policing { exempt: &[], only_syns: true }));
    let syn = |port: u64| {
        let mut bytes = udp_message([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], &[0; 18], None).bytes().to_vec();
        bytes[23] = 6;
        bytes[34..36].copy_from_slice(&(port as u16).to_be_bytes());
        bytes[38..].fill(0);
        (bytes[46], bytes[47]) = (0x50, 0x02);
        let (len, facts) = (bytes.len() as u32, Facts { checksum: Checksum::Complete, ..Facts::default() });
        Message::received(Block::from_bytes(bytes.into()), 0..len, facts)
    };
    let dropped: Vec<u64> =
        (1..2000).filter(|&port| arriving(&mut one, &mut two, 1, |_| syn(port)) == 0).collect();
    let again = dropped.get(..50).expect("more came than pass");
    let any = Ipv4Addr::new(10, 9, 0, 7).into();
    let exempt = &[packet::Important { source: any, prefix_len: 32, local_port: None }];
    police(&second, &mut two, Some(Policing { exempt, only_syns: true }));
    let passed = arriving(&mut one, &mut two, 50, |number| syn(again[number as usize]));
    assert!(passed >= 48, "{passed} of 50 that came again");
    assert!(two.counters().rx_policed >= dropped.len() as u64, "what was counted stays so");
}

fn udp_message(left: [u8; 6], right: [u8; 6], payload: &[u8], size: Option<u16>) -> Message {
    let mut bytes = Vec::new();
    bytes.extend(right);
    bytes.extend(left);
    bytes.extend([8, 0]);
    let total = 28 + payload.len() as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let sum = checksum(&ip, 0);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let pseudo = !checksum(&ip[12..20], 17 + u32::from(total - 20));
    bytes.extend(&ip);
    bytes.extend([0x10, 0, 0x20, 0]);
    bytes.extend((total - 20).to_be_bytes());
    bytes.extend(pseudo.to_be_bytes());
    bytes.extend(payload);
    let segmentation = size.map(|size| Segmentation { kind: SegmentationKind::Udp, size, header_len: 42 });
    let facts =
        Facts { checksum: Checksum::Partial { start: 34, offset: 6 }, segmentation, ..Facts::default() };
    let range = 0..bytes.len() as u32;
    Message { body: Body::block(Block::from_bytes(bytes.into()), range), facts, ..Message::default() }
}

fn checksum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair[1]);
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Linux's own UDP, the strictest judge of headers and checksums here, takes what we send, cut or whole.
#[test]
fn linux_accepts_what_we_send() {
    let (first, second) = veth();
    second.ip(&["addr", "add", "10.9.0.2/24", "dev", "right"]);
    let socket = second.enter(|| UdpSocket::bind("10.9.0.2:8192")).expect("binds");
    socket.set_read_timeout(Some(SOON)).unwrap();
    let right = second.enter(|| {
        packet::open(DeviceId(2), &packet::Config { dedicated: false, ..packet::Config::new("right") })
    });
    let right = right.expect("opens").0.facts().link_address;
    for offload in [true, false] {
        let config = packet::Config { offload, ..packet::Config::new("left") };
        let mut partner = open(&first, &config);
        let left = partner.facts().link_address;
        let data: Vec<u8> = (0..5000u32).map(|i| (i * 7) as u8).collect();
        let mut buffer = [0; 2000];
        send(&mut partner, udp_message(left, right, &data[..1001], None));
        let len = socket.recv(&mut buffer).expect("a datagram with a completed checksum");
        assert_eq!(buffer[..len], data[..1001]);
        send(&mut partner, udp_message(left, right, &data, Some(1000)));
        for part in data.chunks(1000) {
            let len = socket.recv(&mut buffer).expect("a datagram of a super-segment");
            assert_eq!(&buffer[..len], part);
        }
    }
}

/// A tag, which the kernel takes out and keeps beside the packet, stands in the packet again.
#[test]
fn vlan_tags_are_restored() {
    let (first, second) = veth();
    let (mut one, mut two) =
        (open(&first, &packet::Config::new("left")), open(&second, &packet::Config::new("right")));
    for len in [100usize, 1518] {
        let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0x20, 5, 0x88, 0xb5];
        bytes.extend((bytes.len()..len).map(|i| i as u8));
        let facts = Facts { checksum: Checksum::Complete, ..Facts::default() };
        send(&mut one, Message::received(Block::from_bytes(bytes.clone().into()), 0..len as u32, facts));
        assert_eq!(pull(&mut two, 1)[0].bytes(), bytes);
    }
}

/// An interface that goes down is said to be, and comes back.
#[test]
fn down_is_reported_and_passes() {
    let (first, second) = veth();
    let (mut one, mut two) =
        (open(&first, &packet::Config::new("left")), open(&second, &packet::Config::new("right")));
    second.ip(&["link", "set", "right", "down"]);
    let mut burst = Burst::new();
    let mut reports = 0;
    for tick in 1..100 {
        match two.pull(&mut burst, 8, Time::from_millis(tick * 20)) {
            Err(DeviceError::Down { .. }) => reports += 1,
            other => assert_eq!(other.unwrap(), 0),
        }
    }
    assert_eq!(reports, 1);
    assert!(matches!(two.push(&mut vec![frame(60, 1)]), Err(DeviceError::Down { .. })));
    second.ip(&["link", "set", "right", "up"]);
    send(&mut one, frame(60, 9));
    assert_eq!(pull(&mut two, 1)[0].bytes(), frame(60, 9).bytes());
}

/// Sleeping as `Partner::poll_fd` advises: edge-triggered. A long packet, which leaves the socket readable for as long as it
/// waits, does not keep us awake, and the next packet wakes us.
#[test]
fn a_packet_that_waits_lets_us_sleep() {
    let (first, second) = veth();
    second.ip(&["link", "set", "right", "mtu", "9000"]);
    first.ip(&["link", "set", "left", "mtu", "9000"]);
    let (mut one, mut two) =
        (open(&first, &packet::Config::new("left")), open(&second, &packet::Config::new("right")));
    // SAFETY: plain system calls; the event lives through them.
    let (epoll, mut event) = unsafe {
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        let fd = two.poll_fd().expect("has one");
        assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event), 0);
        (epoll, event)
    };
    let mut wait = |milliseconds| {
        // SAFETY: room for one event.
        unsafe { libc::epoll_wait(epoll, &raw mut event, 1, milliseconds) }
    };
    let mut held = Burst::new();
    for fill in 0..5 {
        send(&mut one, tcp_message(&[fill; 5000], 1448));
        assert_eq!(wait(1000), 1, "packet {fill} wakes");
        held.extend(pull(&mut two, 1));
        assert!(!two.has_input());
        assert_eq!(wait(20), 0, "nothing more came");
    }
    // SAFETY: ours.
    unsafe { libc::close(epoll) };
}

const HEADERS: usize = 54;

/// A TCP super-segment of Ethernet, IP and TCP headers and `payload`, as the stages make it: beyond 64 KiB the IP header
/// has a total length of 0.
fn tcp_message(payload: &[u8], size: u16) -> Message {
    let total = u16::try_from(40 + payload.len()).unwrap_or(0);
    let mut bytes = vec![0xff; 6];
    bytes.extend([2, 0, 0, 0, 0, 1, 8, 0]);
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let sum = checksum(&ip, 0);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let pseudo = !checksum(
        &ip[12..20],
        6 + ((20 + payload.len()) as u32 & 0xffff) + ((20 + payload.len() as u32) >> 16),
    );
    bytes.extend(&ip);
    // Ports, sequence number 1,000, acknowledgment, 20 bytes of header, ACK and PSH, a window.
    bytes.extend([0x10, 0, 0x20, 0, 0, 0, 3, 0xe8, 0, 0, 0, 1, 0x50, 0x18, 1, 0]);
    bytes.extend(pseudo.to_be_bytes());
    bytes.extend([0, 0]);
    assert_eq!(bytes.len(), HEADERS);
    bytes.extend(payload);
    let segmentation = Some(Segmentation { kind: SegmentationKind::Tcp4, size, header_len: HEADERS as u16 });
    let facts =
        Facts { checksum: Checksum::Partial { start: 34, offset: 16 }, segmentation, ..Facts::default() };
    let range = 0..bytes.len() as u32;
    let body = Body::block(Block::from_bytes(bytes.into()), range);
    Message { body, facts, ..Message::default() }
}

/// What a peer may send where its interface is set to more than 64 KiB: longer than a frame of the ring, or than an IP
/// header can say. It arrives as super-segments that are neither.
#[test]
fn long_super_segments_are_cut_on_arrival() {
    let (first, second) = veth();
    first.enter(|| {
        let limit = SegmentLimit::named("left").expect("asks").expect("Linux 6.3");
        assert!(limit.most > MAX_LONG_FRAME, "{limit:?}");
        SegmentLimit::set(limit.interface, MAX_LONG_FRAME + 1).expect("sets");
    });
    let config = |name: &str| packet::Config { ring_frames: 60, ..packet::Config::new(name) };
    let (mut one, mut two) = (open(&first, &config("left")), open(&second, &config("right")));
    assert_eq!(one.facts().offload.max_segment_len, MAX_LONG_FRAME);
    assert!(two.facts().offload.max_segment_len < MAX_LONG_FRAME);
    // One that fits a frame but not an IP header, some that fit neither, and an ordinary one between.
    for len in [66_000, 3_000, 100_000, MAX_LONG_FRAME as usize - HEADERS] {
        let payload: Vec<u8> = (0..len).map(|at| (at / 7 % 251) as u8).collect();
        send(&mut one, tcp_message(&payload, 1448));
        let pieces = len.div_ceil(45 * 1448).max(1);
        let mut burst = pull(&mut two, pieces);
        assert!(burst.iter_mut().all(Message::settle));
        let mut got = Vec::new();
        for (index, message) in burst.iter().enumerate() {
            let bytes = message.bytes();
            let sequence = u32::from_be_bytes([bytes[38], bytes[39], bytes[40], bytes[41]]);
            assert_eq!(sequence as usize, 1_000 + got.len());
            assert_eq!(usize::from(u16::from_be_bytes([bytes[16], bytes[17]])), bytes.len() - 14);
            assert_eq!(bytes[47] & 8 != 0, index + 1 == pieces, "PSH stands on the last one");
            assert_eq!(message.facts.checksum, Checksum::Verified);
            assert_eq!(message.facts.segmentation.map(|how| how.size), Some(1448));
            got.extend_from_slice(&bytes[HEADERS..]);
        }
        assert!(got == payload, "{len} bytes came as they were");
    }
    let counters = two.counters();
    assert_eq!((counters.rx_malformed, counters.rx_ring_drops), (0, 0), "{counters:?}");
}

fn bytes_of(number: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 5 % 251) as u8 ^ number).collect()
}

/// What a message has behind its headers, and where it is still the kernel's.
fn rest_of(message: &Message) -> Vec<u8> {
    let tail = message.tail().expect("it waits beside the ring");
    let mut rest = vec![0; tail.len()];
    assert!(gather(&*tail.memory, tail.range.clone(), &mut rest));
    rest
}

/// Long segments wait beside the ring. They may be taken in any order, in part, or not at all, and the device may go.
#[test]
fn long_segments_wait_until_they_are_stored() {
    let (first, second) = veth();
    for (namespace, interface) in [(&first, "left"), (&second, "right")] {
        namespace.ip(&["link", "set", interface, "mtu", "9000"]);
    }
    let config = |name: &str| packet::Config { ring_frames: 60, ..packet::Config::new(name) };
    let (mut one, mut two) = (open(&first, &config("left")), open(&second, &config("right")));
    let lens = [3_000, 60_000, 2_500, 65_000, 40_000, 9_000, 64_000, 5_000];
    let mut come = |one: &mut packet::PacketPartner| {
        for (number, len) in lens.iter().enumerate() {
            send(one, tcp_message(&bytes_of(number as u8, *len), 1448));
            send(one, frame(5_000, number as u8)); // no stream's, so it is fetched at once
        }
        let (segments, others): (Burst, Burst) =
            pull(&mut two, 2 * lens.len()).into_iter().partition(|message| message.tail().is_some());
        for (number, other) in others.iter().enumerate() {
            assert_eq!(other.bytes(), frame(5_000, number as u8).bytes());
        }
        segments
    };
    for round in 0..40 {
        let mut segments: Vec<_> = come(&mut one).into_iter().enumerate().collect();
        assert_eq!(segments.len(), lens.len());
        // Another order in each round.
        segments.rotate_left(round % lens.len());
        if round % 2 == 1 {
            segments.reverse();
        }
        for (number, mut message) in segments {
            assert_eq!(message.bytes().len(), HEADERS);
            let expected = bytes_of(number as u8, lens[number]);
            match (number + round) % 4 {
                0 => drop(message),
                1 => assert!(rest_of(&message) == expected, "segment {number}"),
                2 => {
                    message.settle();
                    assert!(message.bytes()[HEADERS..] == expected, "segment {number}, settled");
                }
                _ => {
                    message.advance(HEADERS + 700);
                    message.truncate(1_500);
                    assert!(rest_of(&message) == expected[700..2_200], "segment {number}, a part of it");
                }
            }
        }
    }
    // Spans stay as long as the message.
    let segments = come(&mut one);
    drop(two);
    for (number, message) in segments.iter().enumerate().rev() {
        let tail = message.tail().expect("it waits");
        let spans = [tail.memory.spans(tail.range.clone()), tail.memory.spans(tail.range.clone())];
        assert_eq!(spans[0][0].memory, spans[1][0].memory);
        assert!(rest_of(message) == bytes_of(number as u8, lens[number]), "segment {number}");
    }
}

/// A long segment with this number in the stream, and content that tells it.
fn segment_at(number: u8, len: usize) -> Message {
    let mut message = tcp_message(&bytes_of(number, len), 1448);
    let Body::Block { block, .. } = &mut message.body else { unreachable!() };
    block[38..42].copy_from_slice(&(u32::from(number) * 60_000).to_be_bytes());
    message
}

/// Takes one message as soon as it has come, and looks at nothing before: who finds nothing asks the socket for its error.
fn pull_next(partner: &mut packet::PacketPartner) -> Message {
    let start = Instant::now();
    while !partner.has_input() {
        assert!(start.elapsed() < SOON, "nothing comes: {:?}", partner.counters());
    }
    let mut burst = Burst::new();
    assert_eq!(partner.pull(&mut burst, 1, Time::ZERO).expect("pulls"), 1);
    burst.remove(0)
}

/// The error of an interface that was down takes nobody's place: what came since has its own bytes, and the error is told
/// afterwards.
#[test]
fn long_segments_are_right_after_the_interface_was_down() {
    let (first, second) = veth();
    let (mut one, mut two) =
        (open(&first, &packet::Config::new("left")), open(&second, &packet::Config::new("right")));
    second.ip(&["link", "set", "right", "down"]);
    second.ip(&["link", "set", "right", "up"]);
    // The carrier is there in its own time.
    let start = Instant::now();
    while !two.has_input() {
        let _ = one.push(&mut vec![frame(60, 1)]);
        assert!(start.elapsed() < SOON, "nothing comes");
    }
    send(&mut one, frame(60, 2));
    while pull_next(&mut two).bytes() != frame(60, 2).bytes() {}
    for number in 0..3 {
        send(&mut one, segment_at(number, 60_000));
    }
    for number in 0..3 {
        assert!(rest_of(&pull_next(&mut two)) == bytes_of(number, 60_000), "segment {number}");
    }
    let told = two.pull(&mut Burst::new(), 1, Time::from_millis(100));
    assert!(matches!(told, Err(DeviceError::Down { .. })), "{told:?}");
    assert_eq!(two.pull(&mut Burst::new(), 1, Time::from_millis(200)).expect("works"), 0);
}

/// If the queue were ever to have another packet in front than the ring says, nobody would get what is another's, and what
/// comes later would be right.
#[test]
fn a_segment_whose_bytes_are_gone_has_no_others() {
    let (first, second) = veth();
    let (mut one, mut two) =
        (open(&first, &packet::Config::new("left")), open(&second, &packet::Config::new("right")));
    let mut come = |two: &mut packet::PacketPartner, numbers: std::ops::Range<u8>| {
        numbers
            .map(|number| {
                send(&mut one, segment_at(number, 60_000));
                pull_next(two)
            })
            .collect::<Burst>()
    };
    let held = come(&mut two, 0..3);
    let fd = two.poll_fd().expect("has one");
    let mut stolen = [0u8; 100];
    // SAFETY: `stolen` has as many bytes.
    assert!(unsafe { libc::recv(fd, stolen.as_mut_ptr().cast(), stolen.len(), libc::MSG_DONTWAIT) } > 0);
    for message in &held {
        let tail = message.tail().expect("it waits");
        assert!(!gather(&*tail.memory, tail.range.clone(), &mut vec![0; tail.len()]));
    }
    drop(held);
    let held = come(&mut two, 3..6);
    for (number, message) in (3..6).zip(&held) {
        assert!(rest_of(message) == bytes_of(number, 60_000), "segment {number}");
    }
}

/// What there is no room for beside the ring is counted as lost, and the rest is right.
#[test]
fn what_waits_beside_the_ring_has_a_bound() {
    let (first, second) = veth();
    let config = |name: &str| packet::Config { ring_frames: 4096, ..packet::Config::new(name) };
    let (mut one, mut two) = (open(&first, &config("left")), open(&second, &config("right")));
    let mut held = Burst::new();
    for number in 0..2_000u32 {
        send(&mut one, tcp_message(&bytes_of(number as u8, 60_000), 1448));
        if number % 16 == 15 {
            let start = Instant::now();
            while held.len() as u64 + two.counters().rx_ring_drops <= u64::from(number) {
                two.pull(&mut held, 64, Time::ZERO).expect("pulls");
                assert!(start.elapsed() < SOON, "{} of {number}: {:?}", held.len(), two.counters());
            }
        }
    }
    assert!(two.counters().rx_ring_drops > 0 && two.pressed(), "{:?}", two.counters());
    assert!(held.len() > 200, "{} wait", held.len());
    for message in held.iter_mut().rev() {
        let rest = rest_of(message);
        assert!(rest == bytes_of(rest[0], 60_000));
    }
    held.clear();
    assert!(!two.pressed());
    send(&mut one, tcp_message(&bytes_of(7, 60_000), 1448));
    assert!(rest_of(&pull(&mut two, 1)[0]) == bytes_of(7, 60_000));
}

/// However little may wait beside the ring, its user hears that it is full, and what it then drops makes room, be it behind
/// something that waits on.
#[test]
fn what_is_dropped_makes_room_beside_the_ring() {
    let (first, second) = veth();
    let (mut one, mut two) =
        (open(&first, &packet::Config::new("left")), open(&second, &packet::Config::new("right")));
    let little: libc::c_int = 200_000;
    // SAFETY: the kernel reads an int.
    let set = unsafe {
        let (fd, value) = (two.poll_fd().expect("has one"), (&raw const little).cast());
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, value, size_of_val(&little) as u32)
    };
    assert_eq!(set, 0);
    let mut held = Burst::new();
    let mut number = 0;
    let mut fill = |two: &mut packet::PacketPartner, held: &mut Burst| {
        let (start, before) = (Instant::now(), two.counters().rx_ring_drops);
        while two.counters().rx_ring_drops == before {
            assert!(number < 100 && start.elapsed() < SOON, "{number} have room: {:?}", two.counters());
            assert!(held.is_empty() || !two.pressed(), "{} wait, and there is room", held.len());
            send(&mut one, segment_at(number, 60_000));
            number += 1;
            while two.has_input() {
                two.pull(held, 64, Time::ZERO).expect("pulls");
            }
        }
        assert!(two.pressed(), "{} wait, and there is no room for more", held.len());
    };
    fill(&mut two, &mut held);
    let fitted = held.len();
    assert!(fitted >= 3, "{fitted} fit");
    // The first stays, the others go from the last on, and as many have room again.
    while held.len() > 1 {
        held.pop();
    }
    assert!(!two.pressed());
    fill(&mut two, &mut held);
    assert!(held.len() > fitted / 2, "{} of {fitted} fit again", held.len());
    assert!(rest_of(&held[0]) == bytes_of(0, 60_000));
}

/// The limit of an interface can be read, set and put back; what the driver cannot do is refused.
#[test]
fn the_limit_of_super_segments_is_the_interfaces() {
    let (first, _second) = veth();
    first.enter(|| {
        let before = SegmentLimit::named("left").expect("asks").expect("Linux 6.3");
        SegmentLimit::set(before.interface, 100_000).expect("sets");
        assert_eq!(
            SegmentLimit::of(before.interface).expect("asks"),
            Some(SegmentLimit { now: 100_000, ..before })
        );
        assert!(SegmentLimit::set(before.interface, before.most + 1).is_err());
        SegmentLimit::set(before.interface, before.now).expect("sets");
        assert_eq!(SegmentLimit::of(before.interface).expect("asks"), Some(before));
        assert!(SegmentLimit::of(9_999).is_err());
        assert!(SegmentLimit::named("none").is_err());
    });
}

/// Which cores get an interface's packets can be read, set and put back, in the namespace of whoever asks.
#[test]
fn steering_is_the_interfaces() {
    let (first, _second) = veth();
    first.enter(|| {
        let queues = Steering::named("left").expect("asks");
        let [queue] = &queues[..] else { panic!("one receive queue: {queues:?}") };
        assert!(!queue.is_on(), "{queue:?}");
        Steering::set(queue.interface, &queue.queue, "1").expect("sets");
        let set = Steering::named("left").expect("asks").remove(0);
        assert!(set.is_on(), "{set:?}");
        Steering::set(queue.interface, &queue.queue, &queue.cores).expect("puts back");
        assert_eq!(Steering::named("left").expect("asks"), queues);
        assert!(Steering::set(9_999, &queue.queue, "0").is_err());
        assert!(Steering::set(queue.interface, "rx-99", "0").is_err());
        assert!(Steering::named("none").is_err());
    });
}

/// The kernel gives each packet to the engine that the rule names; what has no ports goes to the first.
#[test]
fn flows_are_spread_as_the_rule_says() {
    let (first, second) = veth();
    let mut left = open(&first, &packet::Config::new("left"));
    for engines in 2..=4 {
        let spread = packet::Spread::default();
        let member = |index| {
            let spread = spread.of_engine(index);
            open(
                &second,
                &packet::Config { spread: Some(spread), ring_frames: 64, ..packet::Config::new("right") },
            )
        };
        let mut members: Vec<_> = (0..engines).map(member).collect();
        let mut hits = vec![0; engines];
        let mut arrives_at = |bytes: Vec<u8>, expected: usize, what: &str| {
            let (len, facts) =
                (bytes.len() as u32, Facts { checksum: Checksum::Complete, ..Facts::default() });
            send(&mut left, Message::received(Block::from_bytes(bytes.into()), 0..len, facts));
            let start = Instant::now();
            let came = loop {
                let mut burst = Burst::new();
                let came = members
                    .iter_mut()
                    .position(|member| member.pull(&mut burst, 8, Time::ZERO).expect("pulls") > 0);
                if let Some(came) = came {
                    break came;
                }
                assert!(start.elapsed() < SOON, "{what} is lost");
            };
            assert_eq!(came, expected, "{what} among {engines}");
            hits[came] += 1;
        };
        let peers: [IpAddr; 4] = [
            "10.9.0.1".parse().unwrap(),
            "192.168.77.3".parse().unwrap(),
            "2001:db8::1".parse().unwrap(),
            "fe80::ff:fe00:1".parse().unwrap(),
        ];
        for (number, peer) in (0u16..200).zip(peers.into_iter().cycle()) {
            for stream in [false, true] {
                for local in [80, 8000 + number, 32_768 + 131 * number] {
                    let port = 1024 + 311 * number;
                    let expected = engine_of_flow(stream, peer, port, local, engines);
                    let what = format!("{peer} {port} to {local}, stream {stream}");
                    arrives_at(flow_frame(stream, peer, (port, local), false), expected, &what);
                }
            }
        }
        arrives_at(flow_frame(true, peers[0], (5000, 80), true), 0, "a fragment");
        arrives_at(frame(60, 1).bytes().to_vec(), 0, "another protocol");
        assert!(hits.iter().all(|&hits| hits > 1200 / engines / 2), "{hits:?}");
    }
}
