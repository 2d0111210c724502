//! What only `xdp` does: frames in several chunks, several queues, rings by class, what it drops at the hook, and what is
//! left when it goes.

#![allow(unsafe_code)] // setns for the tests

mod support;

use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use scoutline_base::{DeviceId, Time};
use scoutline_device::{DeviceError, OpenError, Partner, Policing, packet, xdp};
use scoutline_path::{Burst, Checksum, Facts, Message};
use scoutline_ring::Block;
use support::{
    Namespace, SOON, arriving, datagram, followed, frame, monotonic, pull, send, super_segment, veth,
    veth_with_queues,
};

fn config(name: &str) -> xdp::Config {
    // A veth has no zero-copy, and says so when asked for it.
    xdp::Config { zero_copy: false, ..xdp::Config::new(name) }
}

fn open(namespace: &Namespace, config: &xdp::Config) -> xdp::XdpPartner {
    let (partner, notices) = namespace.enter(|| xdp::open(DeviceId(1), config)).expect("opens");
    assert!(notices.is_empty(), "{notices:?}");
    partner
}

/// Two hosts, `left` driven by `packet`, for it counts nothing and cuts nothing, and `right` by `xdp`.
fn pair(mtu: u32, config: &xdp::Config) -> (Namespace, Namespace, packet::PacketPartner, xdp::XdpPartner) {
    let (first, second) = veth();
    for (namespace, interface) in [(&first, "left"), (&second, "right")] {
        namespace.ip(&["link", "set", interface, "mtu", &mtu.to_string()]);
    }
    let two = open(&second, config);
    let (one, _) = first
        .enter(|| {
            packet::open(DeviceId(1), &packet::Config { ring_frames: 60, ..packet::Config::new("left") })
        })
        .expect("opens");
    (first, second, one, two)
}

/// What `ip link` says of the interface.
fn link(namespace: &Namespace, interface: &str) -> String {
    let output = Command::new("ip").args(["-n", &namespace.name, "-d", "link", "show", interface]).output();
    String::from_utf8(output.expect("iproute2 is installed").stdout).expect("text")
}

/// Frames of every length near the borders of chunks, in both directions.
#[test]
fn long_frames_are_whole() {
    let (_first, _second, mut one, mut two) = pair(9000, &config("right"));
    for len in [60, 1514, 1984, 2048, 3839, 3840, 3841, 4032, 4033, 4096, 7680, 8064, 8065, 9014] {
        send(&mut one, frame(len, 7));
        assert_eq!(pull(&mut two, 1)[0].bytes(), frame(len, 7).bytes(), "{len} bytes received");
        send(&mut two, frame(len, 9));
        assert_eq!(pull(&mut one, 1)[0].bytes(), frame(len, 9).bytes(), "{len} bytes sent");
    }
    send(&mut two, frame(9100, 1));
    assert_eq!(two.counters().tx_too_large, 1, "longer than the interface takes");
}

/// Between packets, and behind one another.
#[test]
fn super_segments_leave_whole_and_in_order() {
    let (_first, _second, mut one, mut two) = pair(1500, &config("right"));
    assert!(two.facts().offload.segmentation);
    let mut burst = Burst::new();
    let mut lens = Vec::new();
    for round in 1..=20 {
        burst.extend([frame(60 + round, 1), super_segment(30), super_segment(1 + round)]);
        lens.extend([60 + round, 42 + 3000, 42 + 100 * (1 + round)]);
    }
    assert_eq!(two.push(&mut burst).expect("pushes"), lens.len());
    let got = pull(&mut one, lens.len());
    assert_eq!(got.iter().map(|message| message.bytes().len()).collect::<Vec<_>>(), lens);
    let whole = got.iter().filter(|message| message.facts.segmentation.is_some_and(|how| how.size == 100));
    assert_eq!(whole.count(), 40);
}

/// With a queueing discipline, which packets of the ring pass by, and with several queues.
#[test]
fn super_segments_are_cut_where_they_could_be_overtaken() {
    for several in [false, true] {
        let (first, second) = veth_with_queues(if several { 2 } else { 1 });
        if !several {
            let status = Command::new("tc")
                .args(["-n", &second.name, "qdisc", "add", "dev", "right", "root", "pfifo"])
                .status()
                .expect("iproute2 is installed");
            assert!(status.success(), "`tc qdisc add` failed");
        }
        let mut two = open(&second, &config("right"));
        let (mut one, _) =
            first.enter(|| packet::open(DeviceId(1), &packet::Config::new("left"))).expect("opens");
        assert!(!two.facts().offload.segmentation);
        send(&mut two, super_segment(30));
        let got = pull(&mut one, 30);
        let numbers: Vec<u8> = got.iter().map(|message| message.bytes()[42]).collect();
        assert_eq!(numbers, (0..30).collect::<Vec<_>>());
    }
}

/// The kernel spreads flows over the queues, and all of them come; what is slept on is told by each.
#[test]
fn several_queues_are_one_device() {
    let (first, second) = veth_with_queues(4);
    first.ip(&["addr", "add", "10.9.0.1/24", "dev", "left"]);
    first.ip(&["neigh", "add", "10.9.0.2", "lladdr", "02:00:00:00:00:02", "dev", "left"]);
    let mut two = open(&second, &config("right"));
    let socket = first.enter(|| UdpSocket::bind("10.9.0.1:0")).expect("binds");
    let mut got = Vec::new();
    for port in 1000..1200u16 {
        socket.send_to(&port.to_be_bytes(), ("10.9.0.2", port)).expect("sends");
        got.extend(pull(&mut two, 1));
    }
    let mut ports: Vec<u16> =
        got.iter().map(|message| u16::from_be_bytes(message.bytes()[36..38].try_into().unwrap())).collect();
    ports.sort_unstable();
    assert_eq!(ports, (1000..1200).collect::<Vec<_>>());
    let vouched = got.iter().filter(|message| message.facts.checksum == Checksum::Verified).count();
    assert_eq!(vouched, got.len(), "a veth's sender leaves checksums to its device");
    assert!(!two.has_input());
    socket.send_to(b"wake", ("10.9.0.2", 5)).expect("sends");
    let mut poll = libc::pollfd { fd: two.poll_fd().expect("one"), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which outlives the call.
    assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 5000) }, 1);
}

/// With zero-copy asked for, a veth says that it has none.
#[test]
fn an_interface_without_zero_copy_says_so() {
    let (first, _second) = veth();
    let (_partner, notices) =
        first.enter(|| xdp::open(DeviceId(1), &xdp::Config::new("left"))).expect("opens");
    assert!(notices[0].0.contains("no zero-copy"), "{notices:?}");
}

/// A queue that another has is told after a moment; when that has just gone, it is waited for.
#[test]
fn a_busy_interface_is_told_and_one_that_was_left_is_taken() {
    let (_first, second) = veth();
    let one = open(&second, &config("right"));
    let error = second.enter(|| xdp::open(DeviceId(2), &config("right"))).map(|_| ()).expect_err("is in use");
    assert!(matches!(error, OpenError::Busy { .. }), "{error}");
    drop(one);
    for _ in 0..5 {
        drop(open(&second, &config("right")));
    }
    assert!(!link(&second, "right").contains("xdp"), "nothing is left: {}", link(&second, "right"));
}

/// An interface that goes down is said to be, and comes back; one that goes for good is said to have gone.
#[test]
fn down_and_gone_are_told_apart() {
    let (_first, second, mut one, mut two) = pair(1500, &config("right"));
    second.ip(&["link", "set", "right", "down"]);
    let later = |tick: u64| Time::from_millis(tick * 20);
    assert!(matches!(two.pull(&mut Burst::new(), 8, later(1)), Err(DeviceError::Down { .. })));
    assert!(matches!(two.push(&mut vec![frame(60, 1)]), Err(DeviceError::Down { .. })));
    second.ip(&["link", "set", "right", "up"]);
    send(&mut one, frame(60, 9));
    assert_eq!(pull(&mut two, 1)[0].bytes(), frame(60, 9).bytes());
    second.ip(&["link", "del", "right"]);
    assert!(matches!(two.pull(&mut Burst::new(), 8, later(2)), Err(DeviceError::Gone { .. })));
    assert!(matches!(two.push(&mut vec![frame(60, 1)]), Err(DeviceError::Gone { .. })));
}

/// A datagram over IPv6.
fn datagram6(source_port: u16, port: u16) -> Message {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64];
    bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    bytes.extend(source_port.to_be_bytes());
    bytes.extend(port.to_be_bytes());
    bytes.extend([0, 8, 0, 0]);
    let len = bytes.len() as u32;
    let facts = Facts { checksum: Checksum::Complete, ..Facts::default() };
    Message::received(Block::from_bytes(bytes.into()), 0..len, facts)
}

fn important(source: std::net::IpAddr, port: u16) -> packet::Important {
    packet::Important {
        source,
        prefix_len: if source.is_ipv4() { 32 } else { 128 },
        local_port: Some(port..=port),
    }
}

/// What is important is not lost when the ring of all else is full, comes first, and rings.
#[test]
fn what_is_important_has_a_ring_of_its_own() {
    let (_first, _second, mut one, mut two) =
        pair(1500, &xdp::Config { ring_frames: 64, bell: true, ..config("right") });
    two.ring_for(&[important([10, 9, 0, 1].into(), 443), important("fd00::1".parse().unwrap(), 444)])
        .expect("takes the rules");
    followed(&mut two);
    for number in 0..200 {
        send(&mut one, datagram(number, 80));
    }
    send(&mut one, datagram(1, 443));
    send(&mut one, datagram6(1, 444));
    let mut poll = libc::pollfd { fd: two.bell_fd().expect("one"), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which outlives the call.
    assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 5000) }, 1, "it rings");
    let start = Instant::now();
    while two.counters().rx_ring_drops < 200 - 64 {
        assert!(start.elapsed() < SOON, "{:?}", two.counters());
        std::thread::yield_now();
    }
    let burst = pull(&mut two, 2 + 64);
    let ports = |message: &Message| message.bytes()[if message.bytes()[12] == 8 { 37 } else { 57 }];
    let first: Vec<u8> = burst.iter().take(3).map(ports).collect();
    assert_eq!(first, [443_u16 as u8, 444_u16 as u8, 80]);
    assert_eq!(two.counters().rx_important, 2);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 0) }, 0, "what rang was taken");
    two.ring_for(&[]).expect("takes the rules");
    followed(&mut two);
    send(&mut one, datagram(1, 443));
    pull(&mut two, 1);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 0) }, 0, "nothing is important now");
}

/// Rules change while packets come, and there is no moment without a program: who waits for the kernel is another thread.
#[test]
fn no_packet_is_lost_while_rules_change() {
    let (_first, _second, mut one, mut two) = pair(1500, &config("right"));
    for flooded in [true, false, true, false] {
        let exempt = [important([10, 9, 0, 1].into(), 80)];
        two.police(flooded.then_some(Policing { exempt: &exempt, only_syns: false }));
        let mut during = 0;
        while !two.has_followed() {
            assert_eq!(arriving(&mut one, &mut two, 20, |_| datagram(1, 80)), 20);
            during += 1;
        }
        println!("{during} bursts during the change");
    }
    assert_eq!(two.counters().rx_policed, 0);
}

/// While a flood is held back, what is important all comes, of all else a few.
#[test]
fn a_flood_is_held_back_at_the_interface() {
    let (_first, _second, mut one, mut two) = pair(1500, &config("right"));
    let exempt = [important([10, 9, 0, 1].into(), 443)];
    two.police(Some(Policing { exempt: &exempt, only_syns: false }));
    followed(&mut two);
    let news = two.news().expect("says so").0;
    assert!(news.contains("is held back"), "{news}");
    let passed = arriving(&mut one, &mut two, 2000, |_| datagram(1, 80));
    assert!(passed < 2000, "all came");
    assert_eq!(arriving(&mut one, &mut two, 2000, |_| datagram(1, 443)), 2000);
    two.police(None);
    followed(&mut two);
    assert!(two.news().expect("says so").0.contains("over"));
    assert_eq!(arriving(&mut one, &mut two, 2000, |_| datagram(1, 80)), 2000);
}

/// A SYN from this port.
fn syn(source_port: u16) -> Message {
    let mut bytes = datagram(source_port, 80).bytes().to_vec();
    bytes.resize(60, 0);
    (bytes[23], bytes[46], bytes[47]) = (6, 0x50, 0x02);
    let facts = Facts { checksum: Checksum::Complete, ..Facts::default() };
    Message::received(Block::from_bytes(bytes.into()), 0..60, facts)
}

/// A SYN that was dropped passes when it comes again, though the rules have changed since.
#[test]
fn what_is_remembered_of_syns_outlives_a_change_of_rules() {
    let (_first, _second, mut one, mut two) = pair(1500, &config("right"));
    two.police(Some(Policing { exempt: &[], only_syns: true }));
    followed(&mut two);
    // Those that arrive, of these ports.
    let mut come = |two: &mut xdp::XdpPartner, ports: &[u16]| -> Vec<u16> {
        let dropped = two.counters().rx_policed;
        for &port in ports {
            send(&mut one, syn(port));
        }
        let (mut burst, start) = (Burst::new(), Instant::now());
        while burst.len() as u64 + two.counters().rx_policed - dropped < ports.len() as u64 {
            two.pull(&mut burst, ports.len(), Time::ZERO).expect("pulls");
            assert!(start.elapsed() < SOON, "{:?}", two.counters());
        }
        burst.iter().map(|message| u16::from_be_bytes([message.bytes()[34], message.bytes()[35]])).collect()
    };
    let mut dropped = Vec::new();
    for first in (0..20_000).step_by(200) {
        let ports: Vec<u16> = (first..first + 200).collect();
        let passed = come(&mut two, &ports);
        dropped.extend(ports.into_iter().filter(|port| !passed.contains(port)));
        if dropped.len() >= 50 {
            break;
        }
    }
    // Fewer than may come again at once.
    let again = dropped.get(..50).expect("more came than pass");
    two.police(Some(Policing { exempt: &[important([10, 9, 0, 1].into(), 443)], only_syns: true }));
    followed(&mut two);
    assert_eq!(come(&mut two, again), again);
}

/// A flow whose path has no room is dropped at the hook for a moment, and no other.
#[test]
fn one_flow_is_held_back_and_comes_again() {
    let (_first, _second, mut one, mut two) = pair(1500, &config("right"));
    type Make = fn(u16, u16) -> Message;
    // The first one puts another program in place.
    two.hold_back(datagram(6, 80).bytes(), monotonic(), 7);
    followed(&mut two);
    for make in [datagram as Make, datagram6 as Make] {
        let start = Instant::now();
        // On a busy machine the moment may be over before the packet is there.
        loop {
            two.hold_back(make(5, 80).bytes(), monotonic() + Duration::from_millis(100), 7);
            if arriving(&mut one, &mut two, 1, |_| make(5, 80)) == 0 {
                break;
            }
            assert!(start.elapsed() < SOON, "never held back");
        }
        two.hold_back(make(5, 80).bytes(), monotonic() + Duration::from_millis(100), 7);
        let others = arriving(&mut one, &mut two, 1000, |number| make(1000 + number as u16, 80));
        assert_eq!(others, 1000, "no other flow is touched");
        two.hold_back(make(5, 80).bytes(), monotonic(), 7);
        assert_eq!(arriving(&mut one, &mut two, 10, |_| make(5, 80)), 10, "the moment is over");
        two.hold_back(make(5, 80).bytes(), monotonic() + Duration::from_secs(60), 7);
        assert_eq!(arriving(&mut one, &mut two, 10, |_| make(5, 80)), 10, "clocks that differ stop nobody");
    }
    two.hold_back(&[0; 20], monotonic(), 7);
    let counters = two.counters();
    assert!(counters.rx_held_back >= 2 && counters.rx_policed == 0, "{counters:?}");
}

/// Each owner is told what was dropped for it, once, though its flow has lost its place since.
#[test]
fn what_is_held_back_is_told_by_owner() {
    let (_first, _second, mut one, mut two) = pair(1500, &config("right"));
    let told = |two: &mut xdp::XdpPartner| {
        let mut told = Vec::new();
        two.tell_held_back(monotonic(), &mut |owner, dropped| told.push((owner, dropped)));
        told
    };
    two.hold_back(datagram(6, 80).bytes(), monotonic(), 0);
    followed(&mut two);
    let start = Instant::now();
    let mut dropped = [0, 0];
    while dropped.contains(&0) {
        for (owner, dropped) in (0..).zip(&mut dropped) {
            // The same flow: the second owner takes the place of the first.
            two.hold_back(datagram(5, 80).bytes(), monotonic() + Duration::from_millis(100), owner);
            *dropped += 10 - arriving(&mut one, &mut two, 10, |_| datagram(5, 80));
        }
        assert!(start.elapsed() < SOON, "never held back");
    }
    let mut sums = [0, 0];
    for (owner, dropped) in told(&mut two) {
        sums[owner as usize] += dropped;
    }
    assert_eq!(sums, dropped);
    assert_eq!(told(&mut two), [], "it is told once");
}
