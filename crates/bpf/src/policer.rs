//! A policer at XDP: while a flood lasts, it drops what is too much before anything is spent on it.
//!
//! ```text
//!   driver → native XDP: this → receive steering → generic XDP → packet taps (ours) → …
//!
//!   important by source and port ──────────────────────────────────────────► pass
//!   else: no SYN, and the flood is one of SYNs ────────────────────────────► pass
//!         its flow had `flow` packets in this window ──────────────────────► drop
//!         no SYN, and all of these together had `total` ───────────────────► drop
//!         a SYN, SYNs had `syns`, and it did not come before ──────────────► drop
//!         else ────────────────────────────────────────────────────────────► pass
//! ```
//! SYNs are counted apart, or a flood of them would take from connections that stand. And one that was dropped passes when
//! it comes again, as those of real clients do after a second (RFC 6298 §2), up to `total` of them: forged ones are
//! drawn anew. What is remembered of a SYN is 32 bits in one of two million places; at a million a second three in five
//! are there after a second.
//!
//! A flow is a source with both ports, or rather one of 4,096 buckets that these fall into: memory and time are the same
//! whatever comes. Limits hold for each core that receives. A window is 2^20 ns (1.05 ms); counting anew in each
//! needs no division. What is not IP is one flow; so are later fragments of one source, and of IPv6 all from one source
//! whose transport header stands behind extension headers.
//!
//! In the driver (native) the packet is dropped before it is given to another core; where the driver has no hook
//! (generic) it is dropped in front of the packet taps.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
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
/// SYNs are counted in place of [`TOTAL`] here: a flood of them takes nothing from connections that stand.
const SYNS: u32 = BUCKETS + 2;
/// And here those of them that come again.
const AGAIN: u32 = BUCKETS + 3;
const ENTRIES: u32 = BUCKETS + 4;
/// Places where SYNs that were dropped are remembered, a power of two: 16 MiB while a flood lasts.
const REMEMBERED: u32 = 1 << 21;
/// Where on the stack: the key of a look-up, the flow's whole hash, and a SYN's sequence number.
const KEY_AT: i16 = -4;
const HASH_AT: i16 = -8;
const SEQUENCE_AT: i16 = -12;
/// log2 of a window in nanoseconds.
const WINDOW_SHIFT: i32 = 20;
/// More rules than this are not compared: a program has to stay short. The rest counts as ordinary.
const MAX_RULES: usize = 64;

/// Packets that are never dropped: from a network, and to certain ports where that is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exempt {
    /// The peer's network. Without a prefix that of either family is every peer.
    pub source: IpAddr,
    /// Bits of it that count, 0 to 32, or 128.
    pub prefix_len: u8,
    /// Our port.
    pub local_port: Option<RangeInclusive<u16>>,
}

/// How much passes, in packets a second on each receiving core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of each flow.
    pub flow: u32,
    /// Of all flows together; of their SYNs that come again as many.
    pub total: u32,
    /// Of SYNs that did not come before.
    pub syns: u32,
    /// Nothing but SYNs is limited.
    pub only_syns: bool,
}

/// The policer of one interface, for as long as this lives.
#[derive(Debug)]
pub struct Policer {
    /// The link keeps the program; closing it detaches.
    link: OwnedFd,
    maps: Maps,
    mode: Mode,
}

/// What a program remembers.
#[derive(Debug)]
struct Maps {
    /// Counts in the windows, by core.
    buckets: OwnedFd,
    /// SYNs that were dropped.
    seen: OwnedFd,
}

impl Maps {
    fn new() -> io::Result<Maps> {
        Ok(Maps { buckets: sys::per_core_array(ENTRIES)?, seen: sys::array(REMEMBERED)? })
    }
}

impl Policer {
    /// Attaches to the interface with index `ifindex` in the caller's network namespace: in the driver if that has
    /// the hook, else in front of the packet taps.
    ///
    /// # Errors
    /// What is missing, or somebody else's XDP program is there: see [`AttachError`].
    pub fn attach(ifindex: u32, exempt: &[Exempt], limits: Limits) -> Result<Policer, AttachError> {
        let maps = Maps::new().map_err(|error| AttachError::at("load", error))?;
        let program = xdp::load("scoutline_guard", &program(&maps, exempt, limits))
            .map_err(|error| AttachError::at("load", error))?;
        let (link, mode) = xdp::attach(&program, ifindex)?;
        Ok(Policer { link, maps, mode })
    }

    /// Where it hangs.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Takes it away; how many packets it has dropped in all. Takes some 20 ms, as attaching does: the kernel waits for
    /// its receive side to come to rest.
    pub fn detach(self) -> u64 {
        drop(self.link);
        count(&self.maps.buckets).unwrap_or(0)
    }

    /// Packets that it has dropped.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn dropped(&self) -> io::Result<u64> {
        count(&self.maps.buckets)
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

/// Where things stand in a frame.
const ETHERNET_LEN: i32 = 14;
const ETHERTYPE_AT: i16 = 12;
const SOURCE_AT: i16 = 26;
const SOURCE6_AT: i16 = 22;
const PROTOCOL_AT: i16 = 23;
/// Protocol number.
const TCP: i32 = 6;

/// Registers: r3 source, or what is made of it, r4 the entry that counts all of its kind, r5 ports, r6 packet, r7 its end
/// and then r4, r8 transport header and then the window, r9 the flow's hash.
fn program(maps: &Maps, exempt: &[Exempt], limits: Limits) -> Vec<Instruction> {
    let buckets = &maps.buckets;
    let mut program = Program::default();
    let (pass, drop, count) = (program.label(), program.label(), program.label());
    let (v6, known) = (program.label(), program.label());
    let (syn, over) = (program.label(), program.label());
    program
        .load(Word, 6, 1, 0)
        .load(Word, 7, 1, 4)
        .double(Move, 9, K(0))
        .double(Move, 4, K(TOTAL as i32))
        .store(Word, 10, HASH_AT, 9)
        .store(Word, 10, SEQUENCE_AT, 9)
        .double(Move, 2, R(6))
        .double(Add, 2, K(ETHERNET_LEN))
        .jump_if(2, Above, R(7), count)
        .load(Half, 2, 6, ETHERTYPE_AT)
        .jump_if(2, Equal, K(i32::from(0x86dd_u16.to_be())), v6)
        .jump_if(2, NotEqual, K(i32::from(0x0800_u16.to_be())), count);
    read_flow4(&mut program, count);
    pass_exempt(&mut program, exempt, true, pass);
    program.jump(known).place(v6);
    read_flow6(&mut program, count);
    pass_exempt(&mut program, exempt, false, pass);
    program
        .place(known)
        .word(Move, 9, R(3))
        .word(Multiply, 9, K(0x9e37_79b1_u32 as i32))
        .word(Xor, 9, R(5))
        .word(Multiply, 9, K(0x85eb_ca6b_u32 as i32))
        .word(Move, 2, R(9))
        .word(ShiftRight, 2, K(15))
        .word(Xor, 9, R(2))
        .store(Word, 10, HASH_AT, 9)
        .word(And, 9, K(BUCKETS as i32 - 1))
        .place(count)
        .double(Move, 7, R(4));
    if limits.only_syns {
        program.jump_if(7, NotEqual, K(SYNS as i32), pass);
    }
    program.call(sys::BPF_FUNC_KTIME_GET_NS).double(ShiftRight, 0, K(WINDOW_SHIFT)).double(Move, 8, R(0));
    police(&mut program, buckets, R(9), limits.flow, (pass, drop));
    program.jump_if(7, Equal, K(SYNS as i32), syn);
    police(&mut program, buckets, R(7), limits.total, (pass, drop));
    program.jump(pass).place(syn);
    police(&mut program, buckets, R(7), limits.syns, (pass, over));
    program.jump(pass).place(over);
    look_again(&mut program, &maps.seen, drop);
    police(&mut program, buckets, K(AGAIN as i32), limits.total, (pass, drop));
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

/// r3 = source address, r5 = ports as they stand in the packet, 0 where there are none; to `other` for what is cut short.
fn read_flow4(program: &mut Program, other: Label) {
    const IPV4_LEN: i32 = 20;
    let known = program.label();
    program
        .double(Move, 2, R(6))
        .double(Add, 2, K(ETHERNET_LEN + IPV4_LEN))
        .jump_if(2, Above, R(7), other)
        .load(Word, 3, 6, SOURCE_AT)
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
        .load(Byte, 2, 6, PROTOCOL_AT)
        .jump_if(2, NotEqual, K(TCP), known);
    read_syn(program, known);
    program.place(known);
}

/// r4 = the entry for SYNs, if the TCP header at r8 is one's; to `known` for what is cut short.
fn read_syn(program: &mut Program, known: Label) {
    const FLAGS_AT: i16 = 13;
    const FIN_SYN_RST_ACK: i32 = 0x17;
    const SYN: i32 = 0x02;
    program
        .double(Move, 2, R(8))
        .double(Add, 2, K(i32::from(FLAGS_AT) + 1))
        .jump_if(2, Above, R(7), known)
        .load(Byte, 2, 8, FLAGS_AT)
        .double(And, 2, K(FIN_SYN_RST_ACK))
        .jump_if(2, NotEqual, K(SYN), known)
        .load(Word, 2, 8, 4)
        .store(Word, 10, SEQUENCE_AT, 2)
        .double(Move, 4, K(SYNS as i32));
}

/// The same for IPv6: r3 = one word made of the source's four.
fn read_flow6(program: &mut Program, other: Label) {
    const IPV6_LEN: i32 = 40;
    const NEXT_HEADER_AT: i16 = 20;
    const PORTS_AT: i32 = ETHERNET_LEN + IPV6_LEN;
    const UDP: i32 = 17;
    let (known, ports) = (program.label(), program.label());
    program.double(Move, 2, R(6)).double(Add, 2, K(PORTS_AT)).jump_if(2, Above, R(7), other).word(
        Move,
        3,
        K(0),
    );
    for word in 0..4 {
        program.word(Multiply, 3, K(0x9e37_79b1_u32 as i32)).load(Word, 2, 6, SOURCE6_AT + 4 * word).word(
            Xor,
            3,
            R(2),
        );
    }
    program
        .double(Move, 5, K(0))
        // Behind an extension header they are not looked for.
        .load(Byte, 2, 6, NEXT_HEADER_AT)
        .jump_if(2, Equal, K(TCP), ports)
        .jump_if(2, NotEqual, K(UDP), known)
        .place(ports)
        .double(Move, 2, R(6))
        .double(Add, 2, K(PORTS_AT + 4))
        .jump_if(2, Above, R(7), known)
        .load(Word, 5, 6, PORTS_AT as i16)
        .load(Byte, 2, 6, NEXT_HEADER_AT)
        .jump_if(2, NotEqual, K(TCP), known)
        .double(Move, 8, R(6))
        .double(Add, 8, K(PORTS_AT));
    read_syn(program, known);
    program.place(known);
}

/// The rules of one family, and those of both.
fn pass_exempt(program: &mut Program, exempt: &[Exempt], v4: bool, pass: Label) {
    for rule in exempt.iter().take(MAX_RULES) {
        match rule.source {
            IpAddr::V4(source) if v4 => pass_exempt4(program, (source, rule.prefix_len), rule, pass),
            IpAddr::V6(source) if !v4 => pass_exempt6(program, (source, rule.prefix_len), rule, pass),
            _ if rule.prefix_len > 0 => {}
            _ if v4 => pass_exempt4(program, (Ipv4Addr::UNSPECIFIED, 0), rule, pass),
            _ => pass_exempt6(program, (Ipv6Addr::UNSPECIFIED, 0), rule, pass),
        }
    }
}

fn pass_exempt4(program: &mut Program, (source, prefix_len): (Ipv4Addr, u8), rule: &Exempt, pass: Label) {
    let next = program.label();
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len.min(32))).unwrap_or(0);
    program.word(Move, 2, R(3)).word(And, 2, K(mask.to_be() as i32)).jump_if_word(
        2,
        NotEqual,
        K((source.to_bits() & mask).to_be() as i32),
        next,
    );
    pass_ports(program, rule, (pass, next));
}

fn pass_exempt6(program: &mut Program, (source, prefix_len): (Ipv6Addr, u8), rule: &Exempt, pass: Label) {
    let next = program.label();
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix_len.min(128))).unwrap_or(0);
    let network = source.to_bits() & mask;
    for word in 0..4 {
        let of = |bits: u128| ((bits >> (96 - 32 * word)) as u32).to_be() as i32;
        if of(mask) == 0 {
            break;
        }
        program.load(Word, 2, 6, SOURCE6_AT + 4 * word as i16).word(And, 2, K(of(mask))).jump_if_word(
            2,
            NotEqual,
            K(of(network)),
            next,
        );
    }
    pass_ports(program, rule, (pass, next));
}

/// From the network of the rule: passes if it is also to one of its ports.
fn pass_ports(program: &mut Program, rule: &Exempt, (pass, next): (Label, Label)) {
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

/// Goes on with a SYN that came before; else remembers it and goes to `drop`.
fn look_again(program: &mut Program, seen: &OwnedFd, drop: Label) {
    let again = program.label();
    // The upper bits of a product depend on all of the hash.
    program.load(Word, 9, 10, HASH_AT).word(Move, 3, R(9)).word(Multiply, 3, K(0x9e37_79b1_u32 as i32)).word(
        ShiftRight,
        3,
        K((u32::BITS - REMEMBERED.ilog2()) as i32),
    );
    find(program, seen, R(3))
        .jump_if(0, Equal, K(0), drop)
        .load(Word, 1, 10, SEQUENCE_AT)
        .word(Xor, 1, R(9))
        .load(Word, 2, 0, 0)
        .jump_if(2, Equal, R(1), again)
        .store(Word, 0, 0, 1)
        .jump(drop)
        .place(again);
}

/// r0 = the entry of this number.
fn find<'a>(program: &'a mut Program, map: &OwnedFd, entry: Operand) -> &'a mut Program {
    program
        .word(Move, 2, entry)
        .store(Word, 10, KEY_AT, 2)
        .double(Move, 2, R(10))
        .double(Add, 2, K(i32::from(KEY_AT)))
        .map(1, map.as_raw_fd())
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
