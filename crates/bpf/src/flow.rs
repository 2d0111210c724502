//! Pieces of our programs at XDP: the flow of a packet, rules about it, and counting it.
//!
//! Registers everywhere: r6 the packet, r7 its end, r3 the source (IPv4), r5 the ports as they stand in the packet, r9 the
//! bucket of the flow, r8 the window. A flow is a five-tuple, or rather one of [`BUCKETS`] that five-tuples fall into:
//! memory and time are the same whatever comes.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::held::Held;
use crate::instruction::{Condition, Label, Operand, Operation, Program, Width};
use crate::sys;
use crate::xdp::XDP_DROP;

use Condition::{Above, Below, Equal, NotEqual};
use Operand::{K, R};
use Operation::{Add, And, Move, Multiply, ShiftLeft, ShiftRight, Xor};
use Width::{Byte, Double, Half, Word};

/// Buckets for flows, a power of two.
pub(crate) const BUCKETS: u32 = 4096;
/// The entry behind them counts all that are not important.
const TOTAL: u32 = BUCKETS;
/// And this one what was dropped.
const DROPPED: u32 = BUCKETS + 1;
/// log2 of a window in nanoseconds.
pub(crate) const WINDOW_SHIFT: i32 = 20;
/// More rules than this are not compared: a program has to stay short. The rest counts as ordinary.
const MAX_RULES: usize = 64;

/// Where things stand in a frame.
const ETHERNET_LEN: i32 = 14;
const IPV4_LEN: i32 = 20;
const SOURCE6_AT: i16 = 14 + 8;
const PORTS6_AT: i16 = 14 + 40;

/// Packets that are never dropped: from a network, and to certain ports where that is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exempt {
    /// The peer's network. Without a prefix that of either family is every peer.
    pub source: IpAddr,
    /// Bits of it that count.
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

/// The counters of a program.
#[derive(Debug)]
pub(crate) struct Buckets(OwnedFd);

impl Buckets {
    pub(crate) fn new() -> io::Result<Buckets> {
        sys::per_core_array(BUCKETS + 2).map(Buckets)
    }

    /// Packets that were dropped.
    pub(crate) fn dropped(&self) -> io::Result<u64> {
        let mut values = vec![[0; 2]; possible_cores()];
        sys::lookup(self.0.as_fd(), DROPPED, &mut values)?;
        Ok(values.iter().map(|value| value[1]).sum())
    }
}

/// Cores that there could be: the kernel writes a value for each.
fn possible_cores() -> usize {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<usize>().ok());
    // Without the file, room for as many as Linux can be built for.
    last.map_or(8192, |last| last + 1)
}

/// Sorts a packet, whose context is in r1: to `important` if a rule names it, to the label beside `held` if its flow is
/// held; else on, with its bucket in r9.
pub(crate) fn sort(program: &mut Program, rules: &[Exempt], important: Label, held: Option<(&Held, Label)>) {
    let (six, known, done) = (program.label(), program.label(), program.label());
    program
        .load(Word, 6, 1, 0)
        .load(Word, 7, 1, 4)
        .double(Move, 9, K(0))
        .double(Move, 2, R(6))
        .double(Add, 2, K(ETHERNET_LEN + IPV4_LEN))
        .jump_if(2, Above, R(7), done)
        .load(Half, 2, 6, 12)
        .jump_if(2, Equal, K(i32::from(0x86dd_u16.to_be())), six)
        .jump_if(2, NotEqual, K(i32::from(0x0800_u16.to_be())), done);
    read4(program, known);
    program.place(known);
    for rule in rules.iter().filter(|rule| rule.prefix_len == 0 || rule.source.is_ipv4()).take(MAX_RULES) {
        pass4(program, rule, important);
    }
    hash(program);
    if let Some((held, drop)) = held {
        held.check(program, false, drop);
    }
    program.jump(done).place(six);
    read6(program, done);
    for rule in rules.iter().filter(|rule| rule.prefix_len == 0 || rule.source.is_ipv6()).take(MAX_RULES) {
        pass6(program, rule, important);
    }
    hash(program);
    if let Some((held, drop)) = held {
        held.check(program, true, drop);
    }
    program.place(done);
}

/// r9 = the bucket.
fn hash(program: &mut Program) {
    program
        .word(Move, 9, R(3))
        .word(Multiply, 9, K(0x9e37_79b1_u32 as i32))
        .word(Xor, 9, R(5))
        .word(Multiply, 9, K(0x85eb_ca6b_u32 as i32))
        .word(Move, 2, R(9))
        .word(ShiftRight, 2, K(15))
        .word(Xor, 9, R(2))
        .word(And, 9, K(BUCKETS as i32 - 1));
}

/// r3 = source address, r5 = ports as they stand in the packet, 0 where there are none; then to `known`.
fn read4(program: &mut Program, known: Label) {
    program
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
        .load(Word, 5, 8, 0);
}

/// The same of IPv6, the source folded; to `other` if it is too short.
fn read6(program: &mut Program, other: Label) {
    let (ports, done) = (program.label(), program.label());
    program
        .double(Move, 2, R(6))
        .double(Add, 2, K(i32::from(PORTS6_AT) + 4))
        .jump_if(2, Above, R(7), other)
        .load(Word, 3, 6, SOURCE6_AT);
    for word in 1..4 {
        program.load(Word, 2, 6, SOURCE6_AT + 4 * word).word(Multiply, 3, K(0x01000193)).word(Xor, 3, R(2));
    }
    program
        .double(Move, 5, K(0))
        .load(Byte, 2, 6, 14 + 6)
        // TCP and UDP at once behind the header: what has extension headers has no ports here.
        .jump_if(2, Equal, K(6), ports)
        .jump_if(2, NotEqual, K(17), done)
        .place(ports)
        .load(Word, 5, 6, PORTS6_AT)
        .place(done);
}

fn pass4(program: &mut Program, rule: &Exempt, pass: Label) {
    let next = program.label();
    if let (IpAddr::V4(source), 1..) = (rule.source, rule.prefix_len) {
        let mask = u32::MAX.checked_shl(32 - u32::from(rule.prefix_len.min(32))).unwrap_or(0);
        program.word(Move, 2, R(3)).word(And, 2, K(mask.to_be() as i32)).jump_if_word(
            2,
            NotEqual,
            K((source.to_bits() & mask).to_be() as i32),
            next,
        );
    }
    pass_port(program, rule, next);
    program.jump(pass).place(next);
}

fn pass6(program: &mut Program, rule: &Exempt, pass: Label) {
    let next = program.label();
    if let (IpAddr::V6(source), 1..) = (rule.source, rule.prefix_len) {
        let mask = u128::MAX.checked_shl(128 - u32::from(rule.prefix_len.min(128))).unwrap_or(0);
        for word in 0..4 {
            let part = |bits: u128| (bits >> (96 - 32 * word)) as u32;
            if part(mask) != 0 {
                program
                    .load(Word, 2, 6, SOURCE6_AT + 4 * word as i16)
                    .word(And, 2, K(part(mask).to_be() as i32))
                    .jump_if_word(2, NotEqual, K(part(source.to_bits() & mask).to_be() as i32), next);
            }
        }
    }
    pass_port(program, rule, next);
    program.jump(pass).place(next);
}

/// To `next` when the packet is not to a port of the rule.
fn pass_port(program: &mut Program, rule: &Exempt, next: Label) {
    if let Some(ports) = &rule.local_port {
        program
            .double(Move, 2, R(5))
            .double(ShiftRight, 2, K(16))
            .network_half(2)
            .jump_if(2, Below, K(i32::from(*ports.start())), next)
            .jump_if(2, Above, K(i32::from(*ports.end())), next);
    }
}

/// Counts a packet that was sorted: to `drop` when its flow, or all flows, have had their limit in this window.
pub(crate) fn police(program: &mut Program, buckets: &Buckets, limits: Limits, drop: Label) {
    program.call(sys::BPF_FUNC_KTIME_GET_NS).double(ShiftRight, 0, K(WINDOW_SHIFT)).double(Move, 8, R(0));
    count(program, buckets, R(9), limits.flow, drop);
    count(program, buckets, K(TOTAL as i32), limits.total, drop);
}

/// Drops the packet, and counts that.
pub(crate) fn drop_counted(program: &mut Program, buckets: &Buckets) {
    let out = program.label();
    find(program, buckets, K(DROPPED as i32))
        .jump_if(0, Equal, K(0), out)
        .load(Double, 1, 0, 8)
        .double(Add, 1, K(1))
        .store(Double, 0, 8, 1)
        .place(out)
        .word(Move, 0, K(XDP_DROP))
        .exit();
}

/// r0 = the entry of this number.
fn find<'a>(program: &'a mut Program, buckets: &Buckets, entry: Operand) -> &'a mut Program {
    find_in(program, &buckets.0, entry)
}

/// r0 = the entry of this number in an array.
pub(crate) fn find_in<'a>(program: &'a mut Program, map: &OwnedFd, entry: Operand) -> &'a mut Program {
    program
        .word(Move, 2, entry)
        .store(Word, 10, -4, 2)
        .double(Move, 2, R(10))
        .double(Add, 2, K(-4))
        .map(1, map.as_raw_fd())
        .call(sys::BPF_FUNC_MAP_LOOKUP_ELEM)
}

/// Counts the packet in an entry: to `drop` when the window has had its limit.
fn count(program: &mut Program, buckets: &Buckets, entry: Operand, limit: u32, drop: Label) {
    let in_window = (u64::from(limit) << WINDOW_SHIFT) / 1_000_000_000;
    let (same, none) = (program.label(), program.label());
    find(program, buckets, entry)
        .jump_if(0, Equal, K(0), none)
        .load(Double, 1, 0, 0)
        .jump_if(1, Equal, R(8), same)
        .store(Double, 0, 0, 8)
        .double(Move, 1, K(0))
        .store(Double, 0, 8, 1)
        .place(same)
        .load(Double, 1, 0, 8)
        .double(Add, 1, K(1))
        .store(Double, 0, 8, 1)
        .jump_if(1, Above, K(in_window.max(1) as i32), drop)
        .place(none);
}
