//! The kernel itself runs the program on packets that are made here (`BPF_PROG_TEST_RUN`).

use super::program;
use crate::flow::{Buckets, Exempt, Limits, POLICED, Police, Seen, WINDOW_SHIFT};
use crate::known::{Known, KnownAs, Peer};
use crate::sys;
use crate::xdp::{self, XDP_DROP, XDP_PASS};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

struct Bench {
    program: OwnedFd,
    buckets: Buckets,
    known: Known,
    started: Instant,
}

impl Bench {
    /// `None` where this process may not load programs.
    fn new(exempt: &[Exempt], limits: Limits) -> Option<Bench> {
        // Limits are for each core: stay on one.
        // SAFETY: a set of cores on our stack, with one core in it that we run on now.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
        }
        let buckets = match Buckets::new() {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                eprintln!("not run: no permission to load eBPF programs");
                return None;
            }
            made => made.unwrap(),
        };
        let (seen, known) = (Seen::new().unwrap(), Known::new().unwrap());
        let police = Police { buckets: &buckets, seen: &seen, known: &known, limits };
        let program = xdp::load("scoutline_guard", &program(&police, exempt)).expect("the verifier takes it");
        Some(Bench { program, buckets, known, started: Instant::now() })
    }

    fn verdict(&self, packet: &[u8]) -> i32 {
        sys::test(self.program.as_fd(), packet, &mut []).unwrap() as i32
    }

    fn passed(&self, packets: impl Iterator<Item = Vec<u8>>) -> u64 {
        packets.filter(|packet| self.verdict(packet) == XDP_PASS).count() as u64
    }

    /// Windows that have begun since the start, and perhaps one more.
    fn windows(&self) -> u64 {
        (self.started.elapsed().as_nanos() >> WINDOW_SHIFT) as u64 + 2
    }
}

fn udp(source: [u8; 4], source_port: u16, port: u16) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&source);
    frame[30..34].copy_from_slice(&[10, 0, 0, 1]);
    frame[34..36].copy_from_slice(&source_port.to_be_bytes());
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame
}

/// A datagram over IPv6, behind extension headers where `next_header` is none of UDP.
fn udp6(source: Ipv6Addr, next_header: u8, source_port: u16, port: u16) -> Vec<u8> {
    let mut frame = vec![0; 70];
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    frame[14] = 0x60;
    frame[20] = next_header;
    frame[22..38].copy_from_slice(&source.octets());
    frame[53] = 1;
    frame[54..56].copy_from_slice(&source_port.to_be_bytes());
    frame[56..58].copy_from_slice(&port.to_be_bytes());
    frame
}

const PEER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, 2);

const LIMITS: Limits = Limits {
    flow: 20_000,
    total: 100_000,
    syns: 100_000,
    client_syns: 50_000,
    known_syns: 150_000,
    standing_flow: 200_000,
    standing: 400_000,
    only_syns: false,
};

#[test]
fn a_flow_has_its_limit_and_others_go_on() {
    let Some(bench) = Bench::new(&[], LIMITS) else { return };
    let flood = 3000;
    let passed = bench.passed((0..flood).map(|_| udp([10, 0, 0, 2], 7, 9)));
    assert!((20..=20 * bench.windows()).contains(&passed), "{passed} of {} windows", bench.windows());
    assert_eq!(bench.buckets.dropped(POLICED).unwrap(), flood - passed, "what was dropped is counted");
    // Another flow is held back by the limit of all alone, of which the first could take a fifth.
    assert_eq!(bench.verdict(&udp([10, 0, 0, 3], 7, 9)), XDP_PASS);
}

#[test]
fn all_flows_together_have_a_limit() {
    let Some(bench) = Bench::new(&[], LIMITS) else { return };
    let flows = (0..4000u16).map(|port| udp([10, 0, 0, 2], port, 9));
    let passed = bench.passed(flows);
    assert!((100..=104 * bench.windows()).contains(&passed), "{passed} of {} windows", bench.windows());
}

/// A TCP segment with these flags, in either family.
fn tcp(v6: bool, source_port: u16, flags: u8) -> Vec<u8> {
    let mut frame = if v6 {
        udp6(PEER6, 6, source_port, 80)
    } else {
        let mut frame = udp([10, 0, 0, 2], source_port, 80);
        frame[23] = 6;
        frame
    };
    frame[if v6 { 54 } else { 34 } + 13] = flags;
    frame
}

/// A flood of SYNs leaves connections that stand what they had, and the other way round.
#[test]
fn syns_have_a_limit_of_their_own() {
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    for v6 in [false, true] {
        for (flood, others) in [(SYN, ACK), (SYN, SYN | ACK), (ACK, SYN)] {
            let Some(bench) = Bench::new(&[], LIMITS) else { return };
            // In one window or two: less than the limit of others is ever used.
            let flooded = bench.passed((0..4000u16).map(|port| tcp(v6, port, flood)));
            assert!((100..=104 * bench.windows()).contains(&flooded), "{flooded}");
            let passed = bench.passed((5000..5050u16).map(|port| tcp(v6, port, others)));
            assert_eq!(passed, 50, "flags {others:#x} beside a flood of {flood:#x}, IPv6: {v6}");
        }
    }
}

/// Who has a connection may send on it what it likes: in a flood of SYNs nothing else is anybody's attack.
#[test]
fn a_flood_of_syns_limits_nothing_else() {
    for v6 in [false, true] {
        let limits = Limits { syns: 10_000, only_syns: true, ..LIMITS };
        let Some(bench) = Bench::new(&[], limits) else { return };
        let flooded = bench.passed((0..4000u16).map(|port| tcp(v6, port, 0x02)));
        assert!((10..=12 * bench.windows()).contains(&flooded), "{flooded}");
        assert_eq!(bench.passed((0..3000).map(|_| tcp(v6, 7, 0x10))), 3000, "one connection, IPv6: {v6}");
        assert_eq!(bench.passed((0..3000).map(|_| udp([10, 0, 0, 2], 7, 9))), 3000);
    }
}

/// The peer of [`tcp`] with this port.
fn peer(v6: bool, source_port: u16) -> Peer {
    let source = if v6 { PEER6.into() } else { Ipv4Addr::new(10, 0, 0, 2).into() };
    Peer { source, source_port, local_port: 80 }
}

/// A flood of anything takes nothing from a connection that stands, and nothing at all from one that is important.
#[test]
fn a_connection_that_stands_has_limits_of_its_own() {
    const ACK: u8 = 0x10;
    for v6 in [false, true] {
        let Some(bench) = Bench::new(&[], LIMITS) else { return };
        bench.known.know(&peer(v6, 7), KnownAs::Standing);
        bench.known.know(&peer(v6, 9), KnownAs::Important);
        // Whenever the window of the flood ends, the next one is full after 104 of them.
        let mut flood = (10_000..60_000u16).map(|port| tcp(v6, port, ACK));
        let beside = |bench: &Bench, packets: u32, port: u16, flood: &mut dyn Iterator<Item = Vec<u8>>| {
            (0..packets)
                .filter(|_| {
                    bench.passed(flood.take(10));
                    bench.verdict(&tcp(v6, port, ACK)) == XDP_PASS
                })
                .count()
        };
        assert_eq!(beside(&bench, 100, 7, &mut flood), 100, "IPv6: {v6}");
        let strangers = beside(&bench, 100, 8, &mut flood);
        assert!(strangers < 100, "{strangers} of a stranger");
        // It has a limit, too.
        let many = bench.passed((0..3000).map(|_| tcp(v6, 7, ACK)));
        assert!((200..=210 * bench.windows()).contains(&many) && many < 3000, "{many}");
        assert_eq!(bench.passed((0..3000).map(|_| tcp(v6, 9, ACK))), 3000, "what is important has none");
        bench.known.forget(&peer(v6, 9));
        assert!(bench.passed((0..3000).map(|_| tcp(v6, 9, ACK))) < 3000, "its end was told");
    }
}

/// Who has had a connection makes another at once, whatever comes from forged addresses, within limits of its own.
#[test]
fn a_client_that_is_known_connects_at_once() {
    const SYN: u8 = 0x02;
    for v6 in [false, true] {
        for only_syns in [false, true] {
            let limits = Limits { syns: 10_000, only_syns, ..LIMITS };
            let Some(bench) = Bench::new(&[], limits) else { return };
            let stranger = |port: u16| {
                let mut frame = tcp(v6, port, SYN);
                frame[if v6 { 30 } else { 28 }] ^= 0x55;
                frame
            };
            bench.known.know(&peer(v6, 7), KnownAs::Standing);
            // Also after its end.
            bench.known.forget(&peer(v6, 7));
            for port in 100..140 {
                bench.passed((0..40).map(|other| stranger(40 * port + other)));
                assert_eq!(bench.verdict(&tcp(v6, port, SYN)), XDP_PASS, "IPv6: {v6}, port {port}");
            }
            let strangers = bench.passed((10_000..13_000).map(stranger));
            assert!(strangers <= 12 * bench.windows() && strangers < 3000, "{strangers}");
            let many = bench.passed((10_000..16_000).map(|port| tcp(v6, port, SYN)));
            assert!((40..6000).contains(&many) && many <= 64 * bench.windows(), "{many}");
        }
    }
}

/// A later connection takes the place of an earlier one, whose end takes nothing from it.
#[test]
fn a_place_is_of_the_last_who_took_it() {
    let Some(bench) = Bench::new(&[], LIMITS) else { return };
    let all = |port| bench.passed((0..500).map(|_| tcp(false, port, 0x10))) == 500;
    for port in 1..3000 {
        bench.known.know(&peer(false, port), KnownAs::Important);
    }
    let still: Vec<u16> = (1..3000).filter(|&port| all(port)).collect();
    assert!(still.len() > 2900, "{} of 2999 have a place", still.len());
    (1..3000).filter(|port| !still.contains(port)).for_each(|port| bench.known.forget(&peer(false, port)));
    assert!(still.iter().all(|&port| all(port)), "they lost theirs to the end of others");
    for &port in &still {
        bench.known.forget(&peer(false, port));
    }
    assert!(!still.iter().any(|&port| all(port)), "nobody is important any more");
}

/// What a real client does: it sends the same SYN again.
#[test]
fn a_syn_that_comes_again_passes() {
    for v6 in [false, true] {
        let Some(bench) = Bench::new(&[], LIMITS) else { return };
        let syn = |port: u16, sequence: u8| {
            let mut frame = tcp(v6, port, 0x02);
            frame[if v6 { 54 } else { 34 } + 7] = sequence;
            frame
        };
        let dropped: Vec<u16> = (0..4000).filter(|&port| bench.verdict(&syn(port, 1)) == XDP_DROP).collect();
        assert!(dropped.len() > 500, "{}", dropped.len());
        let again = bench.passed(dropped[..50].iter().map(|&port| syn(port, 1)));
        // Some lost their places to others.
        assert!(again >= 45, "{again} of 50 pass, IPv6: {v6}");
        // Within a limit of their own.
        let many = bench.passed((0..40).flat_map(|_| dropped[50..100].iter().map(|&port| syn(port, 1))));
        assert!((50..=208 * bench.windows()).contains(&many), "{many}");
    }
}

/// A stranger asks again after a second, in which a million others came.
#[test]
fn a_syn_is_remembered_among_a_million() {
    let limits = Limits { syns: 1, total: 10_000_000, ..LIMITS };
    let Some(bench) = Bench::new(&[], limits) else { return };
    let mut frame = tcp(false, 0, 0x02);
    let mut syn = |source: [u8; 4], port: u16| {
        frame[26..30].copy_from_slice(&source);
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        bench.verdict(&frame)
    };
    let strangers: Vec<u16> =
        (0..2000).filter(|&port| syn([10, 0, 0, 2], port) == XDP_DROP).take(200).collect();
    assert_eq!(strangers.len(), 200);
    for forged in 0..1_000_000_u32 {
        let [a, b, c, _] = forged.to_le_bytes();
        syn([198, 18, a, b], u16::from(c));
    }
    let again = strangers.iter().filter(|&&port| syn([10, 0, 0, 2], port) == XDP_PASS).count();
    assert!(again >= 192, "{again} of 200 pass");
}

#[test]
fn what_is_exempt_always_passes() {
    let rules = [
        Exempt { source: Ipv4Addr::new(10, 1, 0, 0).into(), prefix_len: 16, local_port: None },
        Exempt { source: Ipv4Addr::UNSPECIFIED.into(), prefix_len: 0, local_port: Some(443..=444) },
    ];
    let Some(bench) = Bench::new(&rules, LIMITS) else { return };
    for (source, port, exempt) in [
        ([10, 1, 200, 3], 9, true),
        ([10, 2, 200, 3], 9, false),
        ([10, 2, 200, 3], 443, true),
        ([10, 2, 200, 3], 444, true),
        ([10, 2, 200, 3], 442, false),
        ([10, 2, 200, 3], 445, false),
    ] {
        let passed = bench.passed((0..2000).map(|_| udp(source, 7, port)));
        assert_eq!(passed == 2000, exempt, "{source:?} port {port}: {passed} passed");
    }
    // A later fragment carries data where ports would be.
    let mut fragment = udp([10, 2, 200, 3], 7, 443);
    fragment[21] = 1;
    assert!(bench.passed((0..2000).map(|_| fragment.clone())) < 2000);
}

#[test]
fn flows_of_ip6_are_told_apart() {
    let Some(bench) = Bench::new(&[], LIMITS) else { return };
    let flood = 3000;
    let passed = bench.passed((0..flood).map(|_| udp6(PEER6, 17, 7, 9)));
    assert!((20..=20 * bench.windows()).contains(&passed), "{passed} of {} windows", bench.windows());
    let Some(bench) = Bench::new(&[], LIMITS) else { return };
    // By each word of the source, and by the ports: only the limit of all holds them back.
    let source = |number: u32| {
        let shift = 32 * (number % 4);
        Ipv6Addr::from_bits(PEER6.to_bits() ^ u128::from(number / 4 + 1) << shift)
    };
    let passed = bench.passed((0..4000).map(|number| udp6(source(number), 17, 7, 9)));
    assert!((100..=104 * bench.windows()).contains(&passed), "{passed} of {} windows", bench.windows());
    let Some(bench) = Bench::new(&[], LIMITS) else { return };
    let passed = bench.passed((0..4000u16).map(|port| udp6(PEER6, 6, port, 9)));
    assert!((100..=104 * bench.windows()).contains(&passed), "{passed} of {} windows", bench.windows());
}

#[test]
fn what_is_exempt_in_ip6_always_passes() {
    let rules = [
        Exempt {
            source: Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, 0).into(),
            prefix_len: 64,
            local_port: None,
        },
        Exempt {
            source: Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 9).into(),
            prefix_len: 128,
            local_port: None,
        },
        Exempt {
            source: Ipv6Addr::new(0x2001, 0xdb8, 0x20, 0, 0, 0, 0, 0).into(),
            prefix_len: 43,
            local_port: None,
        },
        Exempt { source: Ipv4Addr::UNSPECIFIED.into(), prefix_len: 0, local_port: Some(443..=444) },
        Exempt { source: Ipv4Addr::new(10, 1, 0, 0).into(), prefix_len: 16, local_port: None },
    ];
    let Some(bench) = Bench::new(&rules, LIMITS) else { return };
    let flood = |source: &str, next_header, port| {
        let source = source.parse().unwrap();
        bench.passed((0..2000).map(|_| udp6(source, next_header, 7, port)))
    };
    for (source, port, exempt) in [
        ("2001:db8:0:7::1", 9, true),
        ("2001:db8:0:7:ffff::", 9, true),
        ("2001:db8:0:6::1", 9, false),
        ("2001:db8:1::9", 9, true),
        ("2001:db8:1::8", 9, false),
        ("2001:db8:2f::1", 9, true),
        ("2001:db8:40::1", 9, false),
        ("2001:db9::1", 443, true),
        ("2001:db9::1", 445, false),
        // Not that of IPv4, mapped.
        ("::ffff:10.1.0.1", 9, false),
    ] {
        let passed = flood(source, 17, port);
        assert_eq!(passed == 2000, exempt, "{source} port {port}: {passed} passed");
    }
    assert!(flood("2001:db9::1", 60, 443) < 2000, "what stands behind an extension header is no port");
}

#[test]
fn any_bytes_have_a_verdict() {
    let Some(bench) = Bench::new(&[], LIMITS) else { return };
    let whole = udp([10, 0, 0, 2], 7, 9);
    let long = udp6(PEER6, 17, 7, 9);
    for len in 14..long.len() {
        assert!([XDP_PASS, XDP_DROP].contains(&bench.verdict(&long[..len])), "{len} bytes of IPv6");
    }
    // The kernel does not test with less than a link header.
    for len in 14..whole.len() {
        for header_len in 0..16 {
            let mut packet = whole[..len].to_vec();
            if len > 14 {
                packet[14] = 0x40 | header_len;
            }
            assert!([XDP_PASS, XDP_DROP].contains(&bench.verdict(&packet)));
        }
    }
}
