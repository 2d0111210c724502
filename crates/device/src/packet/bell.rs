//! A bell for packets that matter: while Linux has the engine's core, the engine sleeps, and looks at the ring now and
//! then. A packet that is more important than Linux should not wait for the next look.
//!
//! It is a packet socket of its own with a classic BPF filter (net/core/filter.c) for the sources and ports of important
//! classes. What passes is cut to a byte and makes the descriptor readable; the packet itself is in the ring. It was
//! bound before the ring, and the kernel serves the youngest socket first: who is woken finds the packet there.
//! A filter costs every packet some 40 ns; an important one 0.5 µs more.

use std::io;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::error::OpenError;
use crate::packet::open::{bind, raw_socket};
use crate::sys::{self, Interface};

/// Packets that ring: IPv4 from a network, and to certain ports where that is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Important {
    /// The peer's network.
    pub source: Ipv4Addr,
    /// Bits of it that count, 0 to 32.
    pub prefix_len: u8,
    /// Our port.
    pub local_port: Option<RangeInclusive<u16>>,
}

/// More rules than this make every packet ring: a filter has 4,096 instructions at most, and each costs time.
const MAX_RULES: usize = 64;

/// Packets taken from a bell at a time: 0.1 µs each.
const SILENCED_AT_ONCE: usize = 32;
/// A bell holds a few packets; more say nothing more. The kernel makes of it what it allows at least.
const BUFFER_LEN: libc::c_int = 1;

/// A bell that nothing rings yet.
pub(super) fn open(interface: &Interface) -> Result<OwnedFd, OpenError> {
    let socket = raw_socket(&interface.name)?;
    let system = |action| move |error| OpenError::system(&interface.name, action, error);
    listen_for(&socket, &[]).map_err(system("filter its packets"))?;
    let _ = sys::set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &BUFFER_LEN);
    // Linux 4.20; before it, what we send rings too.
    let _ = sys::set_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1);
    bind(&socket, interface.index, libc::ETH_P_ALL as u16)
        .map_err(system("bind a raw packet socket to it"))?;
    Ok(socket)
}

/// From now on these packets ring, and no others.
pub(super) fn listen_for(socket: &OwnedFd, rules: &[Important]) -> io::Result<()> {
    let mut program = filter(rules);
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Takes what rang; the rest, if a flood does, rings again.
pub(super) fn silence(socket: &OwnedFd) {
    let mut byte = 0u8;
    for _ in 0..SILENCED_AT_ONCE {
        // SAFETY: one byte of a local; what is longer is cut off.
        if unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) } < 0 {
            return;
        }
    }
}

const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_HALF_AT: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
const LOAD_IP_HEADER_LEN: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

fn filter(rules: &[Important]) -> Vec<libc::sock_filter> {
    let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let mut program = vec![step(LOAD_HALF, 12, 0, 0), step(EQUAL, 0x0800, 1, 0), step(RETURN, 0, 0, 0)];
    if rules.len() > MAX_RULES {
        program.push(step(RETURN, 1, 0, 0));
    }
    for rule in rules.iter().take(MAX_RULES) {
        let mask = u32::MAX.checked_shl(32 - u32::from(rule.prefix_len.min(32))).unwrap_or(0);
        program.push(step(LOAD_WORD, 26, 0, 0));
        program.push(step(AND, mask, 0, 0));
        // A jump counts from the instruction behind it: over what is left of this rule.
        let left = if rule.local_port.is_some() { 5 } else { 1 };
        program.push(step(EQUAL, rule.source.to_bits() & mask, 0, left));
        if let Some(ports) = &rule.local_port {
            program.push(step(LOAD_IP_HEADER_LEN, 14, 0, 0));
            program.push(step(LOAD_HALF_AT, 14 + 2, 0, 0));
            program.push(step(AT_LEAST, u32::from(*ports.start()), 0, 2));
            program.push(step(GREATER, u32::from(*ports.end()), 1, 0));
        }
        program.push(step(RETURN, 1, 0, 0));
    }
    program.push(step(RETURN, 0, 0, 0));
    program
}
