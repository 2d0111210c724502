//! The plug-in through its C interface, as packetdrill uses it: a table, a main thread that moves the clock, and a
//! thread for calls that block. (packetdrill itself runs google's scripts by `scripts/gtests`.)

#![allow(unsafe_code)] // a table of C functions

use std::ffi::{CString, c_int, c_void};
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t, timeval};
use scoutline_conformance::packet::tcp_segment;
use scoutline_packetdrill::interface::Interface;
use scoutline_packetdrill::packetdrill_interface_init;

const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
const REMOTE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const SYN_ACK: u8 = SYN | ACK;

/// The plug-in, as packetdrill holds it.
struct Drill(Interface);

// SAFETY: the interface is made for two threads: one moves the clock, the other does calls.
unsafe impl Sync for Drill {}

/// A segment that left.
#[derive(Debug)]
struct Left {
    at: i64,
    flags: u8,
    sequence: u32,
    acknowledgment: u32,
    payload: Vec<u8>,
}

impl Drill {
    fn new(flags: &str) -> Drill {
        let flags = CString::new(flags).expect("no zeros");
        let mut table = MaybeUninit::<Interface>::uninit();
        // SAFETY: a C string, and room for a table, which the call fills.
        unsafe {
            packetdrill_interface_init(flags.as_ptr(), table.as_mut_ptr());
            Drill(table.assume_init())
        }
    }

    fn now(&self) -> i64 {
        let mut time = timeval { tv_sec: 0, tv_usec: 0 };
        assert_eq!((self.0.gettimeofday)(self.0.userdata, &raw mut time, std::ptr::null_mut()), 0);
        time.tv_sec * 1_000_000 + time.tv_usec
    }

    fn sleep(&self, micros: u32) {
        assert_eq!((self.0.usleep)(self.0.userdata, micros), 0);
    }

    fn socket(&self) -> c_int {
        let fd = (self.0.socket)(self.0.userdata, libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_TCP);
        assert!(fd > 2, "{fd}");
        fd
    }

    fn inject(&self, from: u16, to: u16, (sequence, acknowledgment, flags): (u32, u32, u8), data: &[u8]) {
        let options: &[u8] = if flags & SYN == 0 { &[] } else { &[2, 4, 3, 232] };
        let segment = tcp_segment(
            (REMOTE, from),
            (LOCAL, to),
            sequence,
            acknowledgment,
            flags,
            32_768,
            0,
            options,
            data,
        );
        let draft = scoutline_conformance::packet::Draft::new(6, REMOTE, LOCAL, segment);
        let frame = draft.frames([0; 6]).remove(0);
        let packet = &frame[14..];
        let sent = (self.0.netdev_send)(self.0.userdata, packet.as_ptr().cast(), packet.len());
        assert_eq!(sent, 0);
    }

    fn left(&self) -> Left {
        let mut packet = vec![0u8; 65_536];
        let (mut len, mut at) = (packet.len(), 0);
        let into = packet.as_mut_ptr().cast::<c_void>();
        let got = (self.0.netdev_receive)(self.0.userdata, into, &raw mut len, &raw mut at);
        assert!(got == 0 && len > 0, "nothing leaves");
        let tcp = match packet[0] >> 4 {
            4 => &packet[usize::from(packet[0] & 15) * 4..len],
            _ => &packet[40..len],
        };
        let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().expect("four bytes"));
        Left {
            at,
            flags: tcp[13],
            sequence: word(4),
            acknowledgment: word(8),
            payload: tcp[usize::from(tcp[12] >> 4) * 4..].to_vec(),
        }
    }

    /// A listening socket, and a connection to it: its descriptor and the peer's next number and ours.
    fn accepted(&self) -> (c_int, u32, u32) {
        let listener = self.socket();
        let name = name(LOCAL.into(), 8080);
        assert_eq!((self.0.bind)(self.0.userdata, listener, name.at(), name.len), 0);
        assert_eq!((self.0.listen)(self.0.userdata, listener, 1), 0);
        self.inject(40_001, 8080, (1000, 0, SYN), &[]);
        let answer = self.left();
        assert_eq!((answer.flags & SYN_ACK, answer.acknowledgment), (SYN_ACK, 1001));
        let ours = answer.sequence.wrapping_add(1);
        self.inject(40_001, 8080, (1001, ours, ACK), &[]);
        let mut peer: sockaddr_in = unsafe_zeroed();
        let mut len = size_of::<sockaddr_in>() as socklen_t;
        let fd = (self.0.accept)(self.0.userdata, listener, (&raw mut peer).cast::<sockaddr>(), &raw mut len);
        // Other tests of this process take and give numbers, too.
        assert!(fd > 2 && fd != listener, "{fd}");
        assert_eq!(u16::from_be(peer.sin_port), 40_001);
        assert_eq!(u32::from_be(peer.sin_addr.s_addr), REMOTE.to_bits());
        (fd, 1001, ours)
    }
}

impl Drop for Drill {
    fn drop(&mut self) {
        (self.0.free)(self.0.userdata);
    }
}

fn unsafe_zeroed<T: Copy>() -> T {
    // SAFETY: used for C structures of numbers only.
    unsafe { zeroed() }
}

struct Name {
    bytes: sockaddr_in6,
    len: socklen_t,
}

impl Name {
    fn at(&self) -> *const sockaddr {
        (&raw const self.bytes).cast()
    }
}

fn name(address: IpAddr, port: u16) -> Name {
    let mut bytes: sockaddr_in6 = unsafe_zeroed();
    let len = match address {
        IpAddr::V4(address) => {
            let mut v4: sockaddr_in = unsafe_zeroed();
            v4.sin_family = libc::AF_INET as u16;
            v4.sin_port = port.to_be();
            v4.sin_addr.s_addr = address.to_bits().to_be();
            // SAFETY: the longer structure has room for the shorter.
            unsafe { (&raw mut bytes).cast::<sockaddr_in>().write(v4) };
            size_of::<sockaddr_in>()
        }
        IpAddr::V6(address) => {
            bytes.sin6_family = libc::AF_INET6 as u16;
            bytes.sin6_port = port.to_be();
            bytes.sin6_addr.s6_addr = address.octets();
            size_of::<sockaddr_in6>()
        }
    };
    Name { bytes, len: len as socklen_t }
}

#[test]
fn a_connection_carries_data_both_ways() {
    let drill = Drill::new("");
    let (fd, theirs, ours) = drill.accepted();
    drill.inject(40_001, 8080, (theirs, ours, ACK), b"hello");
    let mut data = [0u8; 100];
    let got = (drill.0.read)(drill.0.userdata, fd, data.as_mut_ptr().cast(), data.len());
    assert_eq!(data.get(..got as usize), Some(&b"hello"[..]));
    assert_eq!((drill.0.write)(drill.0.userdata, fd, b"world!".as_ptr().cast(), 6), 6);
    let answer = loop {
        let left = drill.left();
        if !left.payload.is_empty() {
            break left;
        }
    };
    assert_eq!((answer.payload.as_slice(), answer.sequence), (&b"world!"[..], ours));
    assert_eq!(answer.acknowledgment, theirs + 5);
    assert_eq!((drill.0.close)(drill.0.userdata, fd), 0);
}

#[test]
fn time_is_the_callers() {
    let drill = Drill::new("");
    let began = drill.now();
    drill.sleep(3_600_000_000);
    let slept = drill.now() - began;
    assert!((3_600_000_000..3_600_000_100).contains(&slept), "{slept}");
    let (fd, _, _) = drill.accepted();
    assert_eq!((drill.0.write)(drill.0.userdata, fd, b"lost".as_ptr().cast(), 4), 4);
    let (first, again) = (drill.left(), drill.left());
    assert_eq!(first.sequence, again.sequence);
    // RFC 6298 §2.1, or sooner by a tail loss probe (RFC 8985 §7.2): not at once, and without anybody sleeping.
    assert!(again.at - first.at >= 2_000, "{} µs", again.at - first.at);
}

#[test]
fn a_call_that_blocks_returns_at_its_moment() {
    let drill = Drill::new("");
    let (fd, theirs, ours) = drill.accepted();
    let reads = AtomicI32::new(0);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut data = [0u8; 10];
            // SAFETY: no arguments.
            reads.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            let got = (drill.0.read)(drill.0.userdata, fd, data.as_mut_ptr().cast(), data.len());
            (got, drill.now())
        });
        // It sleeps once it blocks (proc(5)).
        let sleeps = |thread: i32| {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
        };
        while !sleeps(reads.load(Ordering::SeqCst)) {
            thread::yield_now();
        }
        drill.sleep(100_000);
        // Code blocks ask for TCP_INFO while a call waits.
        let (mut kind, mut len) = (0, size_of::<i32>() as libc::socklen_t);
        let (level, option, to) = (libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast());
        assert_eq!((drill.0.getsockopt)(drill.0.userdata, fd, level, option, to, &raw mut len), 0);
        assert_eq!(kind, libc::SOCK_STREAM);
        let before = drill.now();
        drill.inject(40_001, 8080, (theirs, ours, ACK), b"late");
        // Whatever the main thread does next, the reader sees the time at which its data came.
        drill.sleep(10_000_000);
        let (got, at) = reader.join().expect("it ends");
        assert_eq!(got, 4);
        assert!((before..before + 1000).contains(&at), "at {at}, after {before}");
    });
}

#[test]
fn a_pointer_to_nothing_is_efault() {
    let drill = Drill::new("");
    let (fd, _, _) = drill.accepted();
    let nowhere = std::ptr::without_provenance_mut::<c_void>(8);
    assert_eq!((drill.0.write)(drill.0.userdata, fd, nowhere, 100), -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
    assert_eq!((drill.0.close)(drill.0.userdata, 12_345), -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
}

#[test]
fn ipv6_leaves_for_its_gateway() {
    let drill = Drill::new("mtu=1520");
    let fd = (drill.0.socket)(drill.0.userdata, libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
    let peer = name(Ipv6Addr::new(0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1).into(), 8080);
    assert_eq!((drill.0.connect)(drill.0.userdata, fd, peer.at(), peer.len), -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINPROGRESS));
    let syn = drill.left();
    assert_eq!((syn.flags, syn.payload.len()), (SYN, 0));
}

#[test]
fn events_come_once_by_edge() {
    let drill = Drill::new("");
    let (fd, theirs, ours) = drill.accepted();
    let epoll = (drill.0.epoll_create)(drill.0.userdata, 1);
    let edge = (libc::EPOLLIN | libc::EPOLLET) as u32;
    let mut event = libc::epoll_event { events: edge, u64: 77 };
    let add = libc::EPOLL_CTL_ADD;
    assert_eq!((drill.0.epoll_ctl)(drill.0.userdata, epoll, add, fd, &raw mut event), 0);
    let wait = || {
        let mut told = libc::epoll_event { events: 0, u64: 0 };
        let number = (drill.0.epoll_wait)(drill.0.userdata, epoll, &raw mut told, 1, 0);
        (number, told.events, told.u64)
    };
    assert_eq!(wait().0, 0);
    drill.inject(40_001, 8080, (theirs, ours, ACK), b"one");
    assert_eq!(wait(), (1, libc::EPOLLIN as u32, 77));
    assert_eq!(wait().0, 0);
    drill.inject(40_001, 8080, (theirs + 3, ours, ACK), b"two");
    assert_eq!(wait(), (1, libc::EPOLLIN as u32, 77));
}

#[test]
fn longer_packets_than_the_links_are_taken_as_merged_ones() {
    let drill = Drill::new("");
    let (fd, theirs, ours) = drill.accepted();
    drill.inject(40_001, 8080, (theirs, ours, ACK), &vec![7; 20_000]);
    assert_eq!(drill.left().acknowledgment, theirs + 20_000);
    let mut data = vec![0u8; 30_000];
    assert_eq!((drill.0.read)(drill.0.userdata, fd, data.as_mut_ptr().cast(), data.len()), 20_000);
}
