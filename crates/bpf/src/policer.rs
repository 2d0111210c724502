//! A policer at XDP: while a flood lasts, it drops what is too much before anything is spent on it.
//!
//! ```text
//!   driver → native XDP: this → receive steering → generic XDP → packet taps (ours) → …
//!
//!   important by source and port ──────────────────────────────────────────► pass
//!   else: its flow had `flow_limit` packets in this window ────────────────► drop
//!         all of these flows together had `total_limit` ───────────────────► drop
//!         else ────────────────────────────────────────────────────────────► pass
//! ```
//! A flow is a five-tuple, or rather one of 4,096 buckets that five-tuples fall into: memory and time are the same
//! whatever comes. Limits hold for each core that receives. A window is 2^20 ns (1.05 ms); counting anew in each
//! needs no division. What is not IPv4 is one flow.
//!
//! In the driver (native) the packet is dropped before it is given to another core; where the driver has no hook
//! (generic) it is dropped in front of the packet taps.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::instruction::{Condition, Instruction, Label, Operand, Operation, Program, Width};
use crate::sys;
use crate::tcx::AttachError;
use crate::xdp::{self, Mode, XDP_DROP, XDP_PASS};

use Condition::{Above, Below, Equal, NotEqual};
use Operand::{K, R};
use Operation::{Add, And, Move, Multiply, ShiftLeft, ShiftRight, Xor};
use Width::{Byte, Double, Half, Word};

/// Buckets for flows, a power of two.
const BUCKETS: u32 = 4096;
/// The entry behind them counts all that are not important.
const TOTAL: u32 = BUCKETS;
/// And this one what was dropped.
const DROPPED: u32 = BUCKETS + 1;
/// log2 of a window in nanoseconds.
const WINDOW_SHIFT: i32 = 20;
/// More rules than this are not compared: a program has to stay short. The rest counts as ordinary.
const MAX_RULES: usize = 64;

/// Packets that are never dropped: IPv4 from a network, and to certain ports where that is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exempt {
    /// The peer's network.
    pub source: Ipv4Addr,
    /// Bits of it that count, 0 to 32.
    pub prefix_len: u8,
    /// Our port.
    pub local_port: Option<RangeInclusive<u16>>,
}

/// How much passes, in packets a second on each receiving core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of each flow.
    pub flow: u32,
    /// Of all flows together.
    pub total: u32,
}

/// The policer of one interface, for as long as this lives.
#[derive(Debug)]
pub struct Policer {
    /// The link keeps the program; closing it detaches.
    link: OwnedFd,
    buckets: OwnedFd,
    mode: Mode,
}

impl Policer {
    /// Attaches to the interface with index `ifindex` in the caller's network namespace: in the driver if that has
    /// the hook, else in front of the packet taps.
    ///
    /// # Errors
    /// What is missing, or somebody else's XDP program is there: see [`AttachError`].
    pub fn attach(ifindex: u32, exempt: &[Exempt], limits: Limits) -> Result<Policer, AttachError> {
        let buckets = sys::per_core_array(BUCKETS + 2).map_err(|error| AttachError::at("load", error))?;
        let program = xdp::load("scoutline_guard", &program(&buckets, exempt, limits))
            .map_err(|error| AttachError::at("load", error))?;
        let (link, mode) = xdp::attach(&program, ifindex)?;
        Ok(Policer { link, buckets, mode })
    }

    /// Where it hangs.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Takes it away; how many packets it has dropped in all. Takes some 20 ms, as attaching does: the kernel waits for
    /// its receive side to come to rest.
    pub fn detach(self) -> u64 {
        drop(self.link);
        count(&self.buckets).unwrap_or(0)
    }

    /// Packets that it has dropped.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn dropped(&self) -> io::Result<u64> {
        count(&self.buckets)
    }
}

fn count(buckets: &OwnedFd) -> io::Result<u64> {
    let mut values = vec![[0; 2]; possible_cores()];
    sys::lookup(buckets.as_fd(), DROPPED, &mut values)?;
    Ok(values.iter().map(|value| value[1]).sum())
}

/// Cores that there could be: the kernel writes a value for each.
fn possible_cores() -> usize {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<usize>().ok());
    // Without the file, room for as many as Linux can be built for.
    last.map_or(8192, |last| last + 1)
}

/// Registers: r3 source, r5 ports, r6 packet, r7 its end, r8 transport header and then the window, r9 the flow's hash.
fn program(buckets: &OwnedFd, exempt: &[Exempt], limits: Limits) -> Vec<Instruction> {
    let mut program = Program::default();
    let (pass, drop, count) = (program.label(), program.label(), program.label());
    program.load(Word, 6, 1, 0).load(Word, 7, 1, 4).double(Move, 9, K(0));
    read_flow(&mut program, count);
    for rule in exempt.iter().take(MAX_RULES) {
        pass_exempt(&mut program, rule, pass);
    }
    program
        .word(Move, 9, R(3))
        .word(Multiply, 9, K(0x9e37_79b1_u32 as i32))
        .word(Xor, 9, R(5))
        .word(Multiply, 9, K(0x85eb_ca6b_u32 as i32))
        .word(Move, 2, R(9))
        .word(ShiftRight, 2, K(15))
        .word(Xor, 9, R(2))
        .word(And, 9, K(BUCKETS as i32 - 1))
        .place(count)
        .call(sys::BPF_FUNC_KTIME_GET_NS)
        .double(ShiftRight, 0, K(WINDOW_SHIFT))
        .double(Move, 8, R(0));
    police(&mut program, buckets, R(9), limits.flow, (pass, drop));
    police(&mut program, buckets, K(TOTAL as i32), limits.total, (pass, drop));
    program.place(pass).word(Move, 0, K(XDP_PASS)).exit().place(drop);
    let out = program.label();
    find(&mut program, buckets, K(DROPPED as i32))
        .jump_if(0, Equal, K(0), out)
        .load(Double, 1, 0, 8)
        .double(Add, 1, K(1))
        .store(Double, 0, 8, 1)
        .place(out)
        .word(Move, 0, K(XDP_DROP))
        .exit();
    program.assemble()
}

/// r3 = source address, r5 = ports as they stand in the packet, 0 where there are none; to `other` for what is not
/// IPv4.
fn read_flow(program: &mut Program, other: Label) {
    const ETHERNET_LEN: i32 = 14;
    const IPV4_LEN: i32 = 20;
    let known = program.label();
    program
        .double(Move, 2, R(6))
        .double(Add, 2, K(ETHERNET_LEN + IPV4_LEN))
        .jump_if(2, Above, R(7), other)
        .load(Half, 2, 6, 12)
        .jump_if(2, NotEqual, K(i32::from(0x0800_u16.to_be())), other)
        .load(Word, 3, 6, 26)
        .double(Move, 5, K(0))
        // Only the first fragment has ports.
        .load(Half, 2, 6, 20)
        .double(And, 2, K(i32::from(0x1fff_u16.to_be())))
        .jump_if(2, NotEqual, K(0), known)
        .load(Byte, 2, 6, 14)
        .double(And, 2, K(0x0f))
        .double(ShiftLeft, 2, K(2))
        .double(Move, 8, R(6))
        .double(Add, 8, K(ETHERNET_LEN))
        .double(Add, 8, R(2))
        .double(Move, 2, R(8))
        .double(Add, 2, K(4))
        .jump_if(2, Above, R(7), known)
        .load(Word, 5, 8, 0)
        .place(known);
}

fn pass_exempt(program: &mut Program, rule: &Exempt, pass: Label) {
    let next = program.label();
    let mask = u32::MAX.checked_shl(32 - u32::from(rule.prefix_len.min(32))).unwrap_or(0);
    program.word(Move, 2, R(3)).word(And, 2, K(mask.to_be() as i32)).jump_if_word(
        2,
        NotEqual,
        K((rule.source.to_bits() & mask).to_be() as i32),
        next,
    );
    if let Some(ports) = &rule.local_port {
        program
            .double(Move, 2, R(5))
            .double(ShiftRight, 2, K(16))
            .network_half(2)
            .jump_if(2, Below, K(i32::from(*ports.start())), next)
            .jump_if(2, Above, K(i32::from(*ports.end())), next);
    }
    program.jump(pass).place(next);
}

/// r0 = the entry of this number.
fn find<'a>(program: &'a mut Program, buckets: &OwnedFd, entry: Operand) -> &'a mut Program {
    program
        .word(Move, 2, entry)
        .store(Word, 10, -4, 2)
        .double(Move, 2, R(10))
        .double(Add, 2, K(-4))
        .map(1, buckets.as_raw_fd())
        .call(sys::BPF_FUNC_MAP_LOOKUP_ELEM)
}

/// Counts the packet in an entry: to `drop` when the window has had its limit.
fn police(
    program: &mut Program,
    buckets: &OwnedFd,
    entry: Operand,
    limit: u32,
    (pass, drop): (Label, Label),
) {
    let in_window = (u64::from(limit) << WINDOW_SHIFT) / 1_000_000_000;
    let same = program.label();
    find(program, buckets, entry)
        .jump_if(0, Equal, K(0), pass)
        .load(Double, 1, 0, 0)
        .jump_if(1, Equal, R(8), same)
        .store(Double, 0, 0, 8)
        .double(Move, 1, K(0))
        .store(Double, 0, 8, 1)
        .place(same)
        .load(Double, 1, 0, 8)
        .double(Add, 1, K(1))
        .store(Double, 0, 8, 1)
        .jump_if(1, Above, K(in_window.max(1) as i32), drop);
}

#[cfg(test)]
mod tests;
