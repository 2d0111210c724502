//! One set of checks that every partner passes: a pair of partners with a wire between them.

#![allow(unsafe_code)] // setns and stream memory for the tests

mod support;

use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};

use scoutline_base::{DeviceId, Time};
use scoutline_device::memory::{self, WhenFull, WireConfig};
use scoutline_device::{Partner, packet, pcap, tap, xdp};
use scoutline_path::{Body, Burst, Checksum, Facts, Message, Segmentation, SegmentationKind};
use scoutline_ring::{Block, Span, Spans, StreamMemory};
use support::{Namespace, SOON, veth};

/// Two ends of a wire. `whole`: super-segments stay whole on it.
struct Pair {
    one: Box<dyn Partner>,
    two: Box<dyn Partner>,
    whole: bool,
    now: Time,
    /// Live as long as the partners.
    namespaces: Vec<Namespace>,
}

fn packet_pair(offload: bool, frames: u32) -> Pair {
    let (first, second) = veth();
    let open = |namespace: &Namespace, interface: &str| {
        let config = packet::Config { offload, ring_frames: frames, ..packet::Config::new(interface) };
        let (partner, notices) = namespace.enter(|| packet::open(DeviceId(7), &config)).expect("opens");
        assert!(notices.is_empty(), "{notices:?}");
        partner
    };
    let (one, two) = (Box::new(open(&first, "left")), Box::new(open(&second, "right")));
    Pair { one, two, whole: offload, now: Time::ZERO, namespaces: vec![first, second] }
}

/// Both ends through AF_XDP; `mtu` makes frames of one or several chunks.
fn xdp_pair(mtu: &str) -> Pair {
    let (first, second) = veth();
    for (namespace, interface) in [(&first, "left"), (&second, "right")] {
        namespace.ip(&["link", "set", interface, "mtu", mtu]);
    }
    let open = |namespace: &Namespace, interface: &str| {
        let config = xdp::Config { zero_copy: false, ..xdp::Config::new(interface) };
        let (partner, notices) = namespace.enter(|| xdp::open(DeviceId(7), &config)).expect("opens");
        assert!(notices.is_empty(), "{notices:?}");
        partner
    };
    let (one, two) = (Box::new(open(&first, "left")), Box::new(open(&second, "right")));
    Pair { one, two, whole: false, now: Time::ZERO, namespaces: vec![first, second] }
}

/// Linux's side of a tap, taken by a packet partner, and the tap.
fn tap_pair() -> Pair {
    let namespace = Namespace::new();
    let (two, notices) =
        namespace.enter(|| tap::open(DeviceId(7), &tap::Config::new("cable0"))).expect("opens");
    assert!(notices.is_empty(), "{notices:?}");
    let config = packet::Config { ring_frames: 64, ..packet::Config::new("cable0") };
    let (one, _) = namespace.enter(|| packet::open(DeviceId(7), &config)).expect("opens");
    Pair { one: Box::new(one), two: Box::new(two), whole: true, now: Time::ZERO, namespaces: vec![namespace] }
}

fn memory_pair(config: WireConfig) -> Pair {
    let whole = config.whole;
    let (one, two) = memory::wire(3, config);
    let (one, two) = (Box::new(one.with_id(DeviceId(7))), Box::new(two.with_id(DeviceId(7))));
    Pair { one, two, whole, now: Time::ZERO, namespaces: Vec::new() }
}

impl Pair {
    /// Pulls from one end until `count` messages are there.
    fn receive(&mut self, from_two: bool, count: usize) -> Burst {
        let mut burst = Burst::new();
        let until = Instant::now() + SOON;
        while burst.len() < count {
            self.now += Duration::from_micros(50);
            let end = if from_two { &mut self.two } else { &mut self.one };
            end.pull(&mut burst, 64, self.now).expect("pulls");
            assert!(Instant::now() < until, "{} of {count} arrived", burst.len());
        }
        assert!(burst.iter_mut().all(Message::settle));
        burst
    }

    fn send(&mut self, messages: Burst) {
        let mut burst = messages;
        let until = Instant::now() + SOON;
        while !burst.is_empty() {
            self.one.push(&mut burst).expect("pushes");
            if !burst.is_empty() {
                // Full: let time pass on both sides.
                self.now += Duration::from_micros(50);
                self.one.pull(&mut Burst::new(), 0, self.now).expect("pulls");
            }
            assert!(Instant::now() < until, "{} messages were never taken", burst.len());
        }
    }
}

const HEADERS: usize = 14 + 20 + 20;

/// A TCP/IPv4 frame's headers with a pseudo-header sum in the checksum field.
fn tcp_headers(payload: usize, sequence: u32) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let total = (40 + payload) as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let sum = checksum(&ip, 0);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(&ip);
    let mut tcp = vec![0x10, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0];
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    let pseudo = !checksum(&ip[12..20], 6 + u32::from(total - 20));
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
    frame.extend(&tcp);
    frame
}

/// An independent checksum: RFC 1071, word by word.
fn checksum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn payload(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

fn partial() -> Checksum {
    Checksum::Partial { start: 34, offset: 16 }
}

fn with_head(headers: &[u8], body: Body, facts: Facts) -> Message {
    let mut message = Message { body, facts, ..Message::default() };
    message.head.prepend(headers.len()).copy_from_slice(headers);
    message
}

/// A plain frame of `len` bytes that nobody need touch.
fn plain(len: usize, seed: u8) -> (Message, Vec<u8>) {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]; // IEEE 802 local experimental
    bytes.extend(payload(len - 14, seed));
    let facts = Facts { checksum: Checksum::Complete, ..Facts::default() };
    let body = Block::from_bytes(bytes[14..].into());
    let range = 0..body.len() as u32;
    (with_head(&bytes[..14], Body::block(body, range), facts), bytes)
}

fn super_segment(len: usize, size: u16, body: Body) -> Message {
    let segmentation = Segmentation { kind: SegmentationKind::Tcp4, size, header_len: HEADERS as u16 };
    let facts = Facts { checksum: partial(), segmentation: Some(segmentation), ..Facts::default() };
    with_head(&tcp_headers(len, 1000), body, facts)
}

/// A send ring that wraps.
struct Ring {
    bytes: UnsafeCell<Vec<u8>>,
}

impl StreamMemory for Ring {
    fn spans(&self, range: Range<u64>) -> Spans {
        // SAFETY: nobody changes the vector while the test runs.
        let bytes = unsafe { &mut *self.bytes.get() };
        let (size, len) = (bytes.len(), (range.end - range.start) as usize);
        let at = range.start as usize % size;
        let first = len.min(size - at);
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: `at` is inside the vector.
        [Span { memory: unsafe { start.add(at) }, len: first }, Span { memory: start, len: len - first }]
            .into()
    }
}

fn stream_body(data: &[u8]) -> Body {
    let size = data.len() + 1000;
    let at = size - data.len() / 2; // the second half wraps
    let mut bytes = vec![0; size];
    for (i, byte) in data.iter().enumerate() {
        bytes[(at + i) % size] = *byte;
    }
    let range = at as u64..(at + data.len()) as u64;
    Body::Stream { range, memory: Some(Rc::new(Ring { bytes: UnsafeCell::new(bytes) })) }
}

/// Puts TCP payloads back together by sequence number; checks what is not vouched for.
fn reassemble(burst: &Burst) -> Vec<u8> {
    let mut pieces: Vec<(u32, Vec<u8>)> = Vec::new();
    for message in burst {
        let bytes = message.bytes();
        assert_eq!(checksum(&bytes[14..34], 0), 0, "IP header checksum");
        let total = u16::from_be_bytes([bytes[16], bytes[17]]) as usize;
        assert_eq!(total + 14, bytes.len());
        if message.facts.checksum == Checksum::Unverified {
            let sum =
                checksum(&bytes[34..], !u32::from(checksum(&bytes[26..34], total as u32 - 20 + 6)) & 0xffff);
            assert_eq!(sum, 0, "TCP checksum");
        }
        let sequence = u32::from_be_bytes(bytes[38..42].try_into().unwrap());
        pieces.push((sequence, bytes[HEADERS..].to_vec()));
    }
    pieces.sort();
    let mut data = Vec::new();
    for (sequence, piece) in pieces {
        assert_eq!(sequence, 1000 + data.len() as u32);
        data.extend(piece);
    }
    data
}

fn frames_arrive_intact(pair: &mut Pair) {
    for len in [60, 61, 100, 1000, 1513, 1514] {
        let (message, bytes) = plain(len, len as u8);
        pair.send(vec![message]);
        let burst = pair.receive(true, 1);
        assert_eq!(burst[0].bytes(), bytes);
        assert_eq!(burst[0].facts.device, DeviceId(7));
    }
}

fn super_segments_both_ways(pair: &mut Pair) {
    for (len, size, stream) in
        [(1448, 1448, false), (5000, 1448, false), (60_000, 1448, true), (65_467, 1448, true)]
    {
        let data = payload(len, 5);
        let body = if stream {
            stream_body(&data)
        } else {
            Body::block(Block::from_bytes(data.clone().into()), 0..len as u32)
        };
        pair.send(vec![super_segment(len, size, body)]);
        let count = if pair.whole { 1 } else { len.div_ceil(size as usize) };
        let burst = pair.receive(true, count);
        assert_eq!(reassemble(&burst), data, "{len} bytes");
        if pair.whole && len > size as usize {
            let segmentation = burst[0].facts.segmentation.expect("still a super-segment");
            assert_eq!((segmentation.kind, segmentation.size), (SegmentationKind::Tcp4, size));
        }
        std::mem::swap(&mut pair.one, &mut pair.two);
    }
}

fn partial_checksums_are_completed_or_vouched_for(pair: &mut Pair) {
    let data = payload(777, 9);
    let facts = Facts { checksum: partial(), ..Facts::default() };
    let body = Body::block(Block::from_bytes(data.clone().into()), 0..777);
    pair.send(vec![with_head(&tcp_headers(777, 1000), body, facts)]);
    let burst = pair.receive(true, 1);
    assert_eq!(reassemble(&burst), data);
}

fn garbage_does_no_harm(pair: &mut Pair) {
    let (good, bytes) = plain(200, 1);
    let mut burst = Burst::new();
    burst.push(Message::default()); // empty
    burst.push(Message::control(scoutline_path::Control::Close));
    burst.push(Message { body: Body::Stream { range: 0..10, memory: None }, ..Message::default() });
    // A checksum far outside, a cut of size zero, a cut of something that is no TCP.
    for (checksum, segmentation) in [
        (Checksum::Partial { start: 65_000, offset: 65_000 }, None),
        (Checksum::Complete, Some(Segmentation { kind: SegmentationKind::Tcp4, size: 0, header_len: 0 })),
        (partial(), Some(Segmentation { kind: SegmentationKind::Udp, size: 3, header_len: 60_000 })),
    ] {
        let (mut message, _) = plain(100, 2);
        message.facts.checksum = checksum;
        message.facts.segmentation = segmentation;
        burst.push(message);
    }
    burst.push(plain(14, 0).0);
    burst.push(good);
    pair.send(burst);
    let until = Instant::now() + SOON;
    loop {
        assert!(Instant::now() < until, "the good frame never came");
        if pair.receive(true, 1).iter().any(|message| message.bytes() == bytes) {
            return;
        }
    }
}

fn input_is_announced(pair: &mut Pair) {
    let mut burst = Burst::new();
    pair.now += Duration::from_secs(1);
    while pair.two.pull(&mut burst, 64, pair.now).unwrap() > 0 {}
    assert!(!pair.two.has_input(), "nothing was sent");
    pair.send(vec![plain(100, 1).0, plain(100, 2).0]);
    let until = Instant::now() + SOON;
    let mut taken = 0;
    while taken < 2 {
        pair.now += Duration::from_millis(1);
        if pair.two.has_input() {
            taken += pair.two.pull(&mut burst, 1, pair.now).unwrap();
        } else if pair.two.poll_fd().is_none() {
            taken += pair.two.pull(&mut burst, 1, pair.now).unwrap(); // time moves by pulling
        }
        assert!(Instant::now() < until, "input was not announced");
    }
    assert!(!pair.two.has_input(), "all was taken");
}

/// Bursts larger than the device takes at once arrive whole and in order.
fn bursts_stay_in_order(pair: &mut Pair) {
    let mut expected = Vec::new();
    for round in 0..20u8 {
        let mut burst = Burst::new();
        for number in 0..50u8 {
            let (message, bytes) = plain(200, round.wrapping_mul(50).wrapping_add(number));
            burst.push(message);
            expected.push(bytes);
        }
        pair.send(burst);
        let from = round as usize * 50;
        let got = pair.receive(true, 50);
        for (message, bytes) in got.iter().zip(&expected[from..]) {
            assert_eq!(message.bytes(), bytes);
        }
    }
    let (sent, got) = (pair.one.counters(), pair.two.counters());
    assert!(sent.tx_packets >= 1000 && got.rx_packets >= 1000, "{sent:?} {got:?}");
}

/// The whole suite.
fn conforms(mut pair: Pair) {
    assert!(!pair.one.name().is_empty() && pair.one.room() > 0);
    frames_arrive_intact(&mut pair);
    super_segments_both_ways(&mut pair);
    partial_checksums_are_completed_or_vouched_for(&mut pair);
    input_is_announced(&mut pair);
    bursts_stay_in_order(&mut pair);
    garbage_does_no_harm(&mut pair);
}

#[test]
fn packet_conforms() {
    conforms(packet_pair(true, 64));
}

#[test]
fn packet_without_offload_conforms() {
    conforms(packet_pair(false, 64));
}

#[test]
fn xdp_conforms() {
    conforms(xdp_pair("1500"));
    conforms(xdp_pair("9000"));
}

#[test]
fn tap_conforms() {
    conforms(tap_pair());
}

#[test]
fn memory_conforms() {
    conforms(memory_pair(WireConfig::default()));
    conforms(memory_pair(WireConfig { whole: true, ..WireConfig::default() }));
    conforms(memory_pair(WireConfig { offload: false, ..WireConfig::default() }));
    let (queue_limit, when_full) = (3, WhenFull::Refuse);
    conforms(memory_pair(WireConfig {
        rate_bits: Some(1_000_000_000),
        queue_limit,
        when_full,
        ..WireConfig::default()
    }));
}

/// A device that is full leaves the rest in the burst; nothing is lost and the order stays.
fn full_leaves_the_rest(pair: &mut Pair) {
    let frames: Vec<(Message, Vec<u8>)> = (0..60).map(|number| plain(1000, number)).collect();
    let (mut burst, expected): (Burst, Vec<Vec<u8>>) = frames.into_iter().unzip();
    let mut got = Burst::new();
    let mut left = 0;
    let until = Instant::now() + SOON;
    while got.len() < expected.len() {
        let before = burst.len();
        let sent = pair.one.push(&mut burst).unwrap();
        assert_eq!(before - sent, burst.len());
        left += burst.len();
        pair.now += Duration::from_micros(500);
        pair.one.pull(&mut Burst::new(), 0, pair.now).unwrap();
        pair.two.pull(&mut got, 64, pair.now).unwrap();
        assert!(Instant::now() < until, "{} arrived", got.len());
    }
    let counters = pair.one.counters();
    assert!(left > 0 && counters.tx_full > 0, "{} was never full: {counters:?}", pair.one.name());
    for (message, bytes) in got.iter().zip(&expected) {
        assert_eq!(message.bytes(), bytes);
    }
}

#[test]
fn a_full_device_leaves_the_rest_in_the_burst() {
    full_leaves_the_rest(&mut memory_pair(WireConfig {
        rate_bits: Some(100_000_000),
        queue_limit: 5,
        when_full: WhenFull::Refuse,
        ..WireConfig::default()
    }));
    for offload in [true, false] {
        let mut pair = packet_pair(offload, 64);
        let namespace = &pair.namespaces[0].name;
        let limit = ["rate", "10mbit", "burst", "2kb", "limit", "5kb"];
        let tc = std::process::Command::new("tc")
            .args(["-n", namespace, "qdisc", "add", "dev", "left", "root", "tbf"])
            .args(limit)
            .status();
        assert!(tc.expect("tc is installed").success());
        full_leaves_the_rest(&mut pair);
    }
}

/// What is written to a file comes back from it: whole packets with complete checksums.
#[test]
fn pcap_conforms() {
    let path = std::env::temp_dir().join(format!("scoutline-{}.pcap", std::process::id()));
    let _cleanup = RemoveOnDrop(path.clone());
    let config = pcap::Config { write: Some(path.clone()), ..pcap::Config::default() };
    let (mut writer, _) = pcap::open(DeviceId(1), &config).unwrap();
    let data = payload(60_000, 4);
    let mut burst = vec![plain(60, 1).0, super_segment(60_000, 1448, stream_body(&data))];
    writer.advance(Time::from_millis(5));
    assert_eq!(writer.push(&mut burst).unwrap(), 2);
    writer.advance(Time::from_millis(9));
    let mut burst =
        vec![Message::default(), Message::control(scoutline_path::Control::Abort), plain(99, 2).0];
    assert_eq!(writer.push(&mut burst).unwrap(), 3);
    assert!(burst.is_empty());

    for pace in [pcap::Pace::AsFastAsPossible, pcap::Pace::ByTime] {
        let config = pcap::Config { read: Some(path.clone()), pace, ..pcap::Config::default() };
        let (mut replay, notices) = pcap::open(DeviceId(7), &config).unwrap();
        assert!(notices.is_empty());
        assert!(replay.has_input());
        let mut got = Burst::new();
        let began = Time::from_millis(100);
        replay.pull(&mut got, 1000, began).unwrap();
        if pace == pcap::Pace::ByTime {
            assert!(!replay.has_input() && !replay.is_finished());
            assert_eq!(replay.next_event(), Some(Time::from_millis(104)));
            replay.pull(&mut got, 1000, Time::from_millis(104)).unwrap();
        }
        assert!(replay.is_finished() && !replay.has_input() && replay.next_event().is_none());
        let got: Burst = got.into_iter().filter(|message| !message.bytes().is_empty()).collect();
        assert_eq!(got[0].bytes(), plain(60, 1).1);
        assert_eq!(got.last().unwrap().bytes(), plain(99, 2).1);
        let segments: Burst = got.into_iter().filter(|message| message.bytes()[12..14] == [8, 0]).collect();
        assert_eq!(segments.len(), 60_000usize.div_ceil(1448));
        assert_eq!(reassemble(&segments), data);
    }
}

struct RemoveOnDrop(std::path::PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
