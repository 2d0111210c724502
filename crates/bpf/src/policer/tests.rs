//! The kernel itself runs the program on packets that are made here (`BPF_PROG_TEST_RUN`).

use super::program;
use crate::flow::{Buckets, Exempt, Limits, WINDOW_SHIFT};
use crate::xdp::{self, XDP_DROP, XDP_PASS};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

/// `union bpf_attr` for `BPF_PROG_TEST_RUN`, as Linux 4.12 knew it.
#[repr(C)]
struct TestRun {
    prog_fd: u32,
    verdict: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

struct Bench {
    program: OwnedFd,
    buckets: Buckets,
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
        let program =
            xdp::load("scoutline_guard", &program(&buckets, exempt, limits)).expect("the verifier takes it");
        Some(Bench { program, buckets, started: Instant::now() })
    }

    fn verdict(&self, packet: &[u8]) -> i32 {
        const BPF_PROG_TEST_RUN: libc::c_long = 10;
        let mut attr = TestRun {
            prog_fd: self.program.as_raw_fd() as u32,
            verdict: 0,
            data_size_in: packet.len() as u32,
            data_size_out: 0,
            data_in: packet.as_ptr() as u64,
            data_out: 0,
            repeat: 1,
            duration: 0,
        };
        let size = size_of::<TestRun>() as libc::c_long;
        // SAFETY: `attr` is laid out as the command demands and the packet outlives the call.
        let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attr, size) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        attr.verdict as i32
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

const LIMITS: Limits = Limits { flow: 20_000, total: 100_000 };

#[test]
fn a_flow_has_its_limit_and_others_go_on() {
    let Some(bench) = Bench::new(&[], LIMITS) else { return };
    let flood = 3000;
    let passed = bench.passed((0..flood).map(|_| udp([10, 0, 0, 2], 7, 9)));
    assert!((20..=20 * bench.windows()).contains(&passed), "{passed} of {} windows", bench.windows());
    assert_eq!(bench.buckets.dropped().unwrap(), flood - passed, "what was dropped is counted");
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

#[test]
fn what_is_exempt_always_passes() {
    let rules = [
        Exempt { source: Ipv4Addr::from([10, 1, 0, 0]).into(), prefix_len: 16, local_port: None },
        Exempt { source: Ipv4Addr::from([0, 0, 0, 0]).into(), prefix_len: 0, local_port: Some(443..=444) },
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
fn any_bytes_have_a_verdict() {
    let Some(bench) = Bench::new(&[], LIMITS) else { return };
    let whole = udp([10, 0, 0, 2], 7, 9);
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
