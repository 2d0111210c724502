//! Network namespaces for tests, frames to send through them, and what comes of those.
#![allow(dead_code)] // each test file uses its part

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use scoutline_base::Time;
use scoutline_device::{Partner, xdp};
use scoutline_path::{Burst, Checksum, Facts, Message, Segmentation, SegmentationKind};
use scoutline_ring::Block;

/// How long what comes may take.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A network namespace of its own, removed on drop.
pub(crate) struct Namespace {
    pub(crate) name: String,
}

impl Namespace {
    /// # Panics
    /// Loudly, without the privilege: a test that cannot run has not passed.
    pub(crate) fn new() -> Namespace {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("scl-t{}-{number}", std::process::id());
        ip(&["netns", "add", &name]);
        let namespace = Namespace { name };
        ip(&["-n", &namespace.name, "link", "set", "lo", "up"]);
        // No router solicitations among the tests' packets.
        namespace.enter(|| {
            std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").expect("quiet namespace");
        });
        namespace
    }

    /// Runs `ip` inside; what it prints.
    pub(crate) fn ip(&self, arguments: &[&str]) -> String {
        let mut all = vec!["-n", &self.name];
        all.extend(arguments);
        ip(&all)
    }

    /// Runs `work` with this thread inside the namespace. Sockets opened there stay there.
    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        let home = File::open("/proc/thread-self/ns/net").expect("own namespace");
        let inside = File::open(format!("/run/netns/{}", self.name)).expect("the namespace exists");
        set_namespace(&inside);
        let result = work();
        set_namespace(&home);
        result
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn set_namespace(file: &File) {
    // SAFETY: no pointers.
    let status = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(status, 0, "setns: {}", std::io::Error::last_os_error());
}

fn ip(arguments: &[&str]) -> String {
    let output = Command::new("ip").args(arguments).output().expect("iproute2 is installed");
    assert!(
        output.status.success(),
        "`ip {}` failed (these tests need root): {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// Two namespaces joined by a veth pair, `left` in the first and `right` in the second, both up.
pub(crate) fn veth() -> (Namespace, Namespace) {
    veth_with_queues(1)
}

/// The same, with so many queues in each direction at both ends.
pub(crate) fn veth_with_queues(queues: usize) -> (Namespace, Namespace) {
    let (first, second) = (Namespace::new(), Namespace::new());
    let (peer, queues) = (second.name.clone(), queues.to_string());
    let queues = ["numtxqueues", &queues, "numrxqueues", &queues];
    let ends = ["type", "veth", "peer", "name", "right"];
    first.ip(&[&["link", "add", "left"], &queues[..], &ends, &queues, &["netns", &peer]].concat());
    for (namespace, interface) in [(&first, "left"), (&second, "right")] {
        namespace.ip(&["link", "set", interface, "up"]);
    }
    (first, second)
}

/// A frame of a protocol that nobody serves, to all, whose content tells this number.
pub(crate) fn frame(len: usize, fill: u8) -> Message {
    let mut bytes = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    bytes.extend((bytes.len()..len).map(|at| (at / 3) as u8 ^ fill));
    let facts = Facts { checksum: Checksum::Complete, ..Facts::default() };
    Message::received(Block::from_bytes(bytes.into()), 0..len as u32, facts)
}

/// A frame of TCP or UDP, IPv4 or IPv6, with these ports; `fragment` of IPv4: the first of several.
pub(crate) fn flow_frame(stream: bool, peer: IpAddr, ports: (u16, u16), fragment: bool) -> Vec<u8> {
    let protocol = if stream { 6 } else { 17 };
    let mut bytes = [[2u8, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]].concat();
    match peer {
        IpAddr::V4(peer) => {
            bytes.extend([
                8,
                0,
                0x45,
                0,
                0,
                40,
                0,
                1,
                if fragment { 0x20 } else { 0 },
                0,
                64,
                protocol,
                0,
                0,
            ]);
            bytes.extend(peer.octets());
            bytes.extend([10, 9, 0, 2]);
        }
        IpAddr::V6(peer) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, protocol, 64]);
            bytes.extend(peer.octets());
            bytes.extend([0; 16]);
        }
    }
    bytes.extend(ports.0.to_be_bytes());
    bytes.extend(ports.1.to_be_bytes());
    bytes.extend([0; 16]);
    bytes
}

/// So many datagrams of 100 bytes as one.
pub(crate) fn super_segment(count: usize) -> Message {
    let len = 100 * count;
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    bytes.extend(((28 + len) as u16).to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2, 0x30, 0, 0x30, 1]);
    bytes.extend(((8 + len) as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend((0..len).map(|at| (at / 100) as u8));
    let facts = Facts {
        checksum: Checksum::Partial { start: 34, offset: 6 },
        segmentation: Some(Segmentation { kind: SegmentationKind::Udp, size: 100, header_len: 42 }),
        ..Facts::default()
    };
    let len = bytes.len() as u32;
    Message::received(Block::from_bytes(bytes.into()), 0..len, facts)
}

/// A datagram to this port; its flow is another for each source port.
pub(crate) fn datagram(source_port: u16, port: u16) -> Message {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    bytes.extend([0x45, 0, 0, 46, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
    bytes.extend(source_port.to_be_bytes());
    bytes.extend(port.to_be_bytes());
    bytes.extend([0, 26, 0, 0]);
    bytes.resize(60, 7);
    let facts = Facts { checksum: Checksum::Complete, ..Facts::default() };
    Message::received(Block::from_bytes(bytes.into()), 0..60, facts)
}

/// CLOCK_MONOTONIC.
pub(crate) fn monotonic() -> Time {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Time::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Until the program in the hook does what was asked for last.
pub(crate) fn followed(two: &mut xdp::XdpPartner) {
    let start = Instant::now();
    while !two.has_followed() {
        assert!(start.elapsed() < SOON, "nothing came of it");
        std::thread::yield_now();
    }
}

pub(crate) fn send(partner: &mut dyn Partner, message: Message) {
    assert_eq!(partner.push(&mut vec![message]).expect("pushes"), 1);
}

/// Pulls until so many have come.
pub(crate) fn pull(partner: &mut dyn Partner, count: usize) -> Burst {
    let mut burst = Burst::new();
    let start = Instant::now();
    while burst.len() < count {
        partner.pull(&mut burst, count, Time::ZERO).expect("pulls");
        assert!(start.elapsed() < SOON, "{} of {count}: {:?}", burst.len(), partner.counters());
    }
    burst
}

/// So many may be under way: where a core gets behind, the kernel drops what is beyond the 256 of a veth with XDP, or the
/// 1,000 of `netdev_max_backlog`, and that is in nobody's counters here.
const UNDER_WAY: u64 = 64;

/// Sends so many and says how many arrive; all others have to be counted as dropped.
pub(crate) fn arriving(
    from: &mut dyn Partner,
    to: &mut dyn Partner,
    count: u64,
    message: impl Fn(u64) -> Message,
) -> u64 {
    let known = |to: &dyn Partner| {
        let counters = to.counters();
        (counters.rx_packets, counters.rx_ring_drops + counters.rx_policed + counters.rx_held_back)
    };
    let before = known(to);
    let await_known = |to: &mut dyn Partner, sent: u64| {
        let start = Instant::now();
        loop {
            pull_all(to);
            let now = known(to);
            if now.0 + now.1 - before.0 - before.1 >= sent {
                return now.0 - before.0;
            }
            assert!(start.elapsed() < SOON, "of {sent}: {:?}", to.counters());
        }
    };
    for number in 0..count {
        send(from, message(number));
        pull_all(to);
        if (number + 1) % UNDER_WAY == 0 {
            await_known(to, number + 1);
        }
    }
    await_known(to, count)
}

fn pull_all(partner: &mut dyn Partner) {
    while partner.has_input() {
        partner.pull(&mut Burst::new(), 64, Time::ZERO).expect("pulls");
    }
}
