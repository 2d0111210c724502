//! What both drivers of ordinary interfaces do: blocks that are held, rings that are full, Linux kept silent, and errors
//! that name their remedy.

#![allow(unsafe_code)] // setns for the tests

mod support;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use scoutline_base::{DeviceId, Time};
use scoutline_device::{DeviceConfig, Driver, Notice, OpenError, Partner, Station, packet, xdp};
use scoutline_path::Burst;
use support::{Namespace, SOON, frame, pull, send, veth};

fn over_packet(station: Station, ring_frames: u32) -> Driver {
    Driver::Packet(packet::Config { ring_frames, ..packet::Config::of(station) })
}

fn over_xdp(station: Station, ring_frames: u32) -> Driver {
    // A veth has no zero-copy, and says so when asked for it.
    Driver::Xdp(xdp::Config { ring_frames, zero_copy: false, ..xdp::Config::of(station) })
}

/// A driver, with a station and so many frames in its ring.
type Make = fn(Station, u32) -> Driver;

/// Both drivers, each with the shortest ring that it takes.
const DRIVERS: [(Make, u32); 2] = [(over_packet, 30), (over_xdp, 64)];

fn try_open(namespace: &Namespace, driver: Driver) -> Result<(Box<dyn Partner>, Vec<Notice>), OpenError> {
    namespace.enter(|| scoutline_device::open(&DeviceConfig { id: DeviceId(1), driver }))
}

fn open(namespace: &Namespace, driver: Driver) -> Box<dyn Partner> {
    let (partner, notices) = try_open(namespace, driver).expect("opens");
    assert!(notices.is_empty(), "{notices:?}");
    partner
}

/// Two hosts, `left` driven by `packet`, for it counts nothing and cuts nothing, and `right` by this driver.
fn pair(mtu: u32, right: Driver) -> ([Namespace; 2], Box<dyn Partner>, Box<dyn Partner>) {
    let (first, second) = veth();
    for (namespace, interface) in [(&first, "left"), (&second, "right")] {
        namespace.ip(&["link", "set", interface, "mtu", &mtu.to_string()]);
    }
    let two = open(&second, right);
    let one = open(&first, over_packet(Station::new("left"), 60));
    ([first, second], one, two)
}

/// Frames are held while the ring goes round many times, more than it has places: nothing is lost, nothing changes under
/// a holder, and everything returns.
#[test]
fn held_frames_never_stop_the_ring() {
    for (make, ring_frames) in DRIVERS {
        for (mtu, len) in [(1500, 1200), (9000, 5000), (9000, 9000)] {
            let (_namespaces, mut one, mut two) = pair(mtu, make(Station::new("right"), ring_frames));
            let kind = two.facts().kind;
            let mut held = Vec::new();
            for round in 0..600u32 {
                send(&mut *one, frame(len, round as u8));
                let message = pull(&mut *two, 1).pop().expect("one");
                if round % 4 == 0 {
                    held.push((round as u8, message));
                }
            }
            for (fill, message) in &held {
                assert_eq!(message.bytes(), frame(len, *fill).bytes(), "{kind}: frame {fill} of {len} bytes");
            }
            let counters = two.counters();
            assert_eq!((counters.rx_packets, counters.rx_ring_drops), (600, 0), "{kind}: {counters:?}");
            // Return them in no particular order, and go round again.
            while !held.is_empty() {
                held.swap_remove(held.len() / 2);
            }
            assert!(!two.pressed(), "{kind}");
            for round in 0..200u32 {
                send(&mut *one, frame(len, round as u8));
                assert_eq!(pull(&mut *two, 1)[0].bytes(), frame(len, round as u8).bytes(), "{kind}");
            }
            // A block outlives its partner.
            send(&mut *one, frame(len, 3));
            let last = pull(&mut *two, 1);
            drop(two);
            assert_eq!(last[0].bytes(), frame(len, 3).bytes(), "{kind}");
        }
    }
}

/// A ring that nobody empties drops, counts, and works again.
#[test]
fn a_full_ring_drops_and_recovers() {
    for (make, ring_frames) in DRIVERS {
        let (_namespaces, mut one, mut two) = pair(1500, make(Station::new("right"), ring_frames));
        let lost = 200 - u64::from(ring_frames);
        for _ in 0..200 {
            send(&mut *one, frame(100, 1));
        }
        // Softirqs bring them: all have come when the ring is full and the rest is counted.
        let start = Instant::now();
        while two.counters().rx_ring_drops < lost {
            assert!(start.elapsed() < SOON, "{:?}", two.counters());
            std::thread::yield_now();
        }
        assert_eq!(pull(&mut *two, ring_frames as usize).len(), ring_frames as usize);
        assert_eq!(two.counters().rx_ring_drops, lost);
        send(&mut *one, frame(100, 2));
        assert_eq!(pull(&mut *two, 1)[0].bytes(), frame(100, 2).bytes());
    }
}

/// While it is open Linux does not see what arrives, but for a `packet` that shares it: then it answers for us. When it
/// goes Linux is as it was.
#[test]
fn linux_is_kept_silent() {
    let shared = packet::Config { dedicated: false, ..packet::Config::new("left") };
    let own = DRIVERS.map(|(make, _)| (make(Station::new("left"), 64), true));
    for (driver, silent) in own.into_iter().chain([(Driver::Packet(shared), false)]) {
        let (first, second) = veth();
        first.ip(&["addr", "add", "10.9.0.1/24", "dev", "left"]);
        second.ip(&["addr", "add", "10.9.0.2/24", "dev", "right"]);
        let mut partner = open(&first, driver);
        let left = partner.facts().link_address.map(|byte| format!("{byte:02x}")).join(":");
        second.ip(&["neigh", "add", "10.9.0.1", "lladdr", &left, "dev", "right"]);
        let socket = second.enter(|| UdpSocket::bind("10.9.0.2:0")).expect("binds");
        socket.connect("10.9.0.1:9").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        socket.send(b"is anybody there?").unwrap();
        let answer = socket.recv(&mut [0; 10]).unwrap_err().kind();
        let kind = partner.facts().kind;
        // The read times out, or: ICMP port unreachable.
        let expected = if silent { ErrorKind::WouldBlock } else { ErrorKind::ConnectionRefused };
        assert_eq!(answer, expected, "{kind}");
        // Either way the packet came to us.
        let mut burst = Burst::new();
        partner.pull(&mut burst, 64, Time::ZERO).unwrap();
        assert!(burst.iter().any(|message| message.bytes().ends_with(b"is anybody there?")));
        drop((burst, partner));
        // Tests beside this one start `ip`: from its fork to its exec the child has our descriptors too, the program's link
        // and the sockets among them, and what was dropped here lives until then.
        let start = Instant::now();
        loop {
            let answer = socket.send(b"and now?").and_then(|_| socket.recv(&mut [0; 10]));
            match answer.expect_err("nobody answers").kind() {
                ErrorKind::ConnectionRefused => break,
                // The read has timed out.
                ErrorKind::WouldBlock => assert!(start.elapsed() < SOON, "{kind}, silent: {silent}"),
                other => panic!("{kind}, silent: {silent}: {other}"),
            }
        }
    }
}

#[test]
fn open_errors_name_the_remedy() {
    let namespace = Namespace::new();
    namespace.ip(&["link", "add", "down0", "type", "veth", "peer", "name", "down1"]);
    for (make, _) in DRIVERS {
        let open = |name: &str| {
            try_open(&namespace, make(Station::new(name), 64)).map(|_| ()).expect_err("must fail")
        };
        assert_eq!(open("lp").to_string(), "no interface lp here; did you mean lo?");
        assert!(matches!(open("a-name-of-more-than-15"), OpenError::BadName { .. }));
        assert!(matches!(open("lo"), OpenError::NotEthernet { kind: 772, .. }), "{}", open("lo"));
        let down = open("down0");
        assert_eq!(down.to_string(), "down0 is down: bring it up with `ip link set down0 up`");
    }
}

#[test]
fn an_address_that_linux_has_too_is_noticed() {
    for (make, _) in DRIVERS {
        let (first, _second) = veth();
        first.ip(&["addr", "add", "10.9.0.1/24", "dev", "left"]);
        let address = Some(Ipv4Addr::new(10, 9, 0, 1));
        let (_partner, notices) =
            try_open(&first, make(Station { address, ..Station::new("left") }, 64)).unwrap();
        assert_eq!(notices.len(), 1);
        assert!(notices[0].to_string().contains("ip address del 10.9.0.1 dev left"), "{}", notices[0]);
    }
}
