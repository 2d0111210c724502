//! A bell for packets that matter: while Linux has the engine's core, the engine sleeps, and looks at the ring now and
//! then. A packet that is more important than Linux should not wait for the next look.
//!
//! It is a packet socket of its own with a classic BPF filter (net/core/filter.c) for the sources and ports of important
//! classes. What passes is cut to a byte and makes the descriptor readable; the packet itself is in the ring. It was
//! bound before the ring, and the kernel serves the youngest socket first: who is woken finds the packet there.
//! A filter costs every packet some 40 ns; an important one 0.5 µs more.

use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use scoutline_bpf::Exempt;

use crate::error::OpenError;
use crate::ethernet::{bind, raw_socket};
use crate::sys::{self, Interface};

/// Packets that ring: from a network, and to certain ports where that is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Important {
    /// The peer's network. Without a prefix that of either family is every peer.
    pub source: IpAddr,
    /// Bits of it that count.
    pub prefix_len: u8,
    /// Our port.
    pub local_port: Option<RangeInclusive<u16>>,
}

impl Important {
    /// As our programs at XDP have it.
    pub(crate) fn exempt(&self) -> Exempt {
        let Important { source, prefix_len, local_port } = self.clone();
        Exempt { source, prefix_len, local_port }
    }
}

/// More rules than this make every packet ring: a filter has 4,096 instructions at most, and each costs time.
const MAX_RULES: usize = 64;

/// Packets taken from a bell at a time: 0.1 µs each.
const SILENCED_AT_ONCE: usize = 32;
/// A bell holds a few packets; more say nothing more. The kernel makes of it what it allows at least.
const BUFFER_LEN: libc::c_int = 1;

/// The bell's socket.
pub(super) struct Bell(OwnedFd);

impl Bell {
    /// One that nothing rings yet.
    pub(super) fn open(interface: &Interface) -> Result<Bell, OpenError> {
        let bell = Bell(raw_socket(&interface.name)?);
        let system = |action| move |error| OpenError::system(&interface.name, action, error);
        bell.listen_for(&[]).map_err(system("filter its packets"))?;
        let _ = sys::set_option(&bell.0, libc::SOL_SOCKET, libc::SO_RCVBUF, &BUFFER_LEN);
        // Linux 4.20; before it, what we send rings too.
        let _ = sys::set_option(&bell.0, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1);
        bind(&bell.0, interface.index, libc::ETH_P_ALL as u16)
            .map_err(system("bind a raw packet socket to it"))?;
        Ok(bell)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// From now on these packets ring, and no others.
    pub(super) fn listen_for(&self, rules: &[Important]) -> io::Result<()> {
        let mut program = filter(rules);
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        sys::set_option(&self.0, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    /// Takes what rang, and that the interface went down, which rings as well. The rest, if a flood does, rings again.
    pub(super) fn silence(&self) {
        let mut byte = 0u8;
        for _ in 0..SILENCED_AT_ONCE {
            // SAFETY: one byte of a local; what is longer is cut off.
            if unsafe { libc::recv(self.fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) } < 0 {
                return;
            }
        }
    }
}

/// Where IPv6's source stands in a frame, and its ports when no extension header does.
const SOURCE6_AT: u32 = 14 + 8;
const LOCAL_PORT6_AT: u32 = 14 + 40 + 2;

const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_HALF_AT: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
const LOAD_IP_HEADER_LEN: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

fn step(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// The EtherType decides between two lists of rules; each ends with "no".
fn filter(rules: &[Important]) -> Vec<libc::sock_filter> {
    let of = |v4: bool| {
        let counts = move |rule: &&Important| rule.prefix_len == 0 || rule.source.is_ipv4() == v4;
        rules.iter().filter(counts)
    };
    let list = |v4: bool| {
        if of(v4).count() > MAX_RULES {
            return vec![step(RETURN, 1, 0, 0)];
        }
        let mut list: Vec<_> = of(v4).flat_map(|rule| if v4 { rule4(rule) } else { rule6(rule) }).collect();
        list.push(step(RETURN, 0, 0, 0));
        list
    };
    let (v4, v6) = (list(true), list(false));
    let mut program = vec![step(LOAD_HALF, 12, 0, 0), step(EQUAL, 0x0800, 1, 0)];
    // Jumps of conditions are short.
    program.push(step(JUMP, v4.len() as u32, 0, 0));
    program.extend(v4);
    program.extend([step(EQUAL, 0x86dd, 1, 0), step(RETURN, 0, 0, 0)]);
    program.extend(v6);
    program
}

/// A jump counts from the instruction behind it: what fails goes on behind `parts`, which end with "yes".
fn rule_of(checks: Vec<[libc::sock_filter; 3]>, ports: Vec<libc::sock_filter>) -> Vec<libc::sock_filter> {
    let behind = ports.len() as u8 + 1;
    let count = checks.len() as u8;
    let mut rule = Vec::new();
    for (index, [load, and, mut equal]) in checks.into_iter().enumerate() {
        equal.jf = (count - 1 - index as u8) * 3 + behind;
        rule.extend([load, and, equal]);
    }
    rule.extend(ports);
    rule.push(step(RETURN, 1, 0, 0));
    rule
}

fn check(at: u32, bits: u32, mask: u32) -> [libc::sock_filter; 3] {
    [step(LOAD_WORD, at, 0, 0), step(AND, mask, 0, 0), step(EQUAL, bits & mask, 0, 0)]
}

/// The port is loaded; one outside the range goes on behind the rule's last instruction.
fn in_range(ports: &RangeInclusive<u16>) -> [libc::sock_filter; 2] {
    [step(AT_LEAST, u32::from(*ports.start()), 0, 2), step(GREATER, u32::from(*ports.end()), 1, 0)]
}

fn rule4(rule: &Important) -> Vec<libc::sock_filter> {
    let mut checks = Vec::new();
    if let (IpAddr::V4(source), 1..) = (rule.source, rule.prefix_len) {
        let mask = u32::MAX.checked_shl(32 - u32::from(rule.prefix_len.min(32))).unwrap_or(0);
        checks.push(check(26, source.to_bits(), mask));
    }
    let ports = rule.local_port.iter().flat_map(|ports| {
        let load = [step(LOAD_IP_HEADER_LEN, 14, 0, 0), step(LOAD_HALF_AT, 14 + 2, 0, 0)];
        load.into_iter().chain(in_range(ports))
    });
    rule_of(checks, ports.collect())
}

fn rule6(rule: &Important) -> Vec<libc::sock_filter> {
    let mut checks = Vec::new();
    if let IpAddr::V6(source) = rule.source {
        let mask = u128::MAX.checked_shl(128 - u32::from(rule.prefix_len.min(128))).unwrap_or(0);
        for word in 0..4 {
            let part = |bits: u128| (bits >> (96 - 32 * word)) as u32;
            if part(mask) != 0 {
                checks.push(check(SOURCE6_AT + 4 * word, part(source.to_bits()), part(mask)));
            }
        }
    }
    let ports = rule
        .local_port
        .iter()
        .flat_map(|ports| [step(LOAD_HALF, LOCAL_PORT6_AT, 0, 0)].into_iter().chain(in_range(ports)));
    rule_of(checks, ports.collect())
}

#[cfg(test)]
mod tests;
