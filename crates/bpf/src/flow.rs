//! Pieces of our programs at XDP: the flow of a packet, rules about it, and counting it.
//!
//! Registers everywhere: r6 the packet, r7 its end and then what it counts with, r3 the source, or what is made of it, r5
//! the ports as they stand in the packet, r8 the transport header and then the window, r9 the bucket of the flow. On the
//! stack:
//!
//! ```text
//!   -4 key of a look-up | -8 the flow's whole hash | -12 a SYN's sequence number | -16 what it counts with
//!   -20 the ports (held.rs, known.rs) | -24 the socket (steer.rs) | -28 the source (known.rs)
//!   -32 where the engine's table of flows that are held begins (held.rs)
//! ```
//! A flow is a source with both ports, or rather one of [`BUCKETS`] that these fall into: memory and time are the same
//! whatever comes. Later fragments of one source are one flow; so is of IPv6 all from one source whose transport header
//! stands behind extension headers.
//!
//! SYNs are counted apart, or a flood of them would take from connections that stand. Those of clients that have had a
//! connection pass (`known.rs`). And one that was dropped passes when it comes again, as those of real clients do after
//! a second (RFC 6298 §2), up to `total` of them: forged ones are drawn anew. What is remembered of a SYN is 16 bits, of
//! the last four that fell into one of two million entries: at a million a second an entry gets more than that within a
//! second in one case of five hundred, and some sixty forged ones pass for others. (Four places of which each SYN had its
//! own forgot one in eight.)

use std::fs;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::held;
use crate::instruction::{Condition, Label, Operand, Operation, Program, Width};
use crate::known::{self, Known};
use crate::sys;
use crate::xdp::XDP_DROP;

use Condition::{Above, Below, Equal, NotEqual};
use Operand::{K, R};
use Operation::{Add, And, Move, Multiply, ShiftLeft, ShiftRight, Xor};
use Width::{Byte, Double, Half, Word};

/// Buckets for flows, a power of two.
pub(crate) const BUCKETS: u32 = 4096;
/// The entry behind them counts all that are not important.
pub(crate) const TOTAL: u32 = BUCKETS;
/// SYNs are counted in place of [`TOTAL`] here: a flood of them takes nothing from connections that stand.
const SYNS: u32 = BUCKETS + 1;
/// And here those of them that come again.
const AGAIN: u32 = BUCKETS + 2;
/// Here what was dropped because it was too much,
pub(crate) const POLICED: u32 = BUCKETS + 3;
/// and here what was dropped because its path has no room.
pub(crate) const HELD: u32 = BUCKETS + 4;
/// Packets of connections that stand are counted in place of [`TOTAL`] here,
pub(crate) const STANDING: u32 = BUCKETS + 5;
/// and SYNs of clients that are known here.
const KNOWN: u32 = BUCKETS + 6;
/// Each of those clients, or one of so many places that they fall into, has its own count behind that.
const CLIENT: u32 = BUCKETS + 7;
const CLIENT_BUCKETS: u32 = 4096;
const ENTRIES: u32 = CLIENT + CLIENT_BUCKETS;
/// Entries where SYNs that were dropped are remembered, a power of two, the last four in each: 16 MiB.
const REMEMBERED: u32 = 1 << 21;
const REMEMBERED_EACH: u32 = 4;
/// log2 of a window in nanoseconds.
pub(crate) const WINDOW_SHIFT: i32 = 20;
/// More rules of a family than this are not compared: a program has to stay short. The rest counts as ordinary.
const MAX_RULES: usize = 64;

/// Where on the stack, see above.
const KEY_AT: i16 = -4;
const HASH_AT: i16 = -8;
const SEQUENCE_AT: i16 = -12;
pub(crate) const KIND_AT: i16 = -16;
pub(crate) const PORTS_AT: i16 = -20;
pub(crate) const SOCKET_AT: i16 = -24;
pub(crate) const FROM_AT: i16 = -28;
pub(crate) const TABLE_AT: i16 = -32;

/// Where things stand in a frame.
pub(crate) const ETHERNET_LEN: i32 = 14;
pub(crate) const IPV4_LEN: i32 = 20;
pub(crate) const IPV6_LEN: i32 = 40;
pub(crate) const ETHERTYPE_AT: i16 = 12;
pub(crate) const PROTOCOL_AT: i16 = 23;
pub(crate) const SOURCE_AT: i16 = 26;
pub(crate) const NEXT_HEADER_AT: i16 = 20;
pub(crate) const SOURCE6_AT: i16 = 22;
const TRANSPORT6_AT: i16 = 54;
/// Protocol numbers.
pub(crate) const TCP: i32 = 6;
pub(crate) const UDP: i32 = 17;
/// Factors of the hashes; odd.
pub(crate) const FOLD: u32 = 0x9e37_79b1;
pub(crate) const MIX: u32 = 0x85eb_ca6b;

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
    /// Of SYNs that did not come before, from clients that are not known.
    pub syns: u32,
    /// Of SYNs from one client that is known; what is beyond counts as a stranger's.
    pub client_syns: u32,
    /// Of SYNs from all of those together.
    pub known_syns: u32,
    /// Of each connection that stands.
    pub standing_flow: u32,
    /// Of all of those together.
    pub standing: u32,
    /// Nothing but SYNs is limited.
    pub only_syns: bool,
}

/// The counters of a program, by core.
#[derive(Debug)]
pub(crate) struct Buckets(OwnedFd);

impl Buckets {
    pub(crate) fn new() -> io::Result<Buckets> {
        sys::per_core_array(ENTRIES).map(Buckets)
    }

    /// Packets that were dropped for a reason, [`POLICED`] or [`HELD`].
    pub(crate) fn dropped(&self, reason: u32) -> io::Result<u64> {
        let mut values = vec![[0; 2]; possible_cores()];
        sys::lookup(self.0.as_fd(), reason, &mut values)?;
        Ok(values.iter().map(|value| value[1]).sum())
    }
}

/// SYNs that were dropped. A program keeps it alive: this need not outlive its loading. Making one takes
/// 4 ms, for the kernel clears it.
#[derive(Debug)]
pub(crate) struct Seen(OwnedFd);

impl Seen {
    pub(crate) fn new() -> io::Result<Seen> {
        sys::array(REMEMBERED, 8).map(Seen)
    }
}

/// Cores that there could be: the kernel writes a value for each.
fn possible_cores() -> usize {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<usize>().ok());
    // Without the file, room for as many as Linux can be built for.
    last.map_or(8192, |last| last + 1)
}

/// What [`sort`] looks for.
pub(crate) struct Sorting<'a> {
    /// Packets that one of these names go to the label.
    pub(crate) important: (&'a [Exempt], Label),
    /// Those of flows that are held go to the label.
    pub(crate) held: Option<(&'a OwnedFd, Label)>,
    /// All others will be [counted](Police::count); those of flows that are known to be important go to that label, too.
    pub(crate) counted: Option<&'a Known>,
}

/// Sorts a packet, whose context is in r1: what goes to no label goes on, with its bucket in r9.
pub(crate) fn sort(program: &mut Program, sorting: &Sorting<'_>) {
    let (six, done) = (program.label(), program.label());
    program.load(Word, 6, 1, 0).load(Word, 7, 1, 4).double(Move, 9, K(0));
    if sorting.counted.is_some() {
        program
            .store(Word, 10, HASH_AT, 9)
            .store(Word, 10, SEQUENCE_AT, 9)
            .store(Word, 10, FROM_AT, 9)
            .word(Move, 2, K(TOTAL as i32))
            .store(Word, 10, KIND_AT, 2);
    }
    program
        .double(Move, 2, R(6))
        .double(Add, 2, K(ETHERNET_LEN))
        .jump_if(2, Above, R(7), done)
        .load(Half, 2, 6, ETHERTYPE_AT)
        .jump_if(2, Equal, K(i32::from(0x86dd_u16.to_be())), six)
        .jump_if(2, NotEqual, K(i32::from(0x0800_u16.to_be())), done);
    read4(program, done, sorting.counted.is_some());
    let (rules, important) = sorting.important;
    for rule in rules.iter().filter(|rule| rule.prefix_len == 0 || rule.source.is_ipv4()).take(MAX_RULES) {
        pass4(program, rule, important);
    }
    settle(program, sorting, false);
    program.jump(done).place(six);
    read6(program, done, sorting.counted.is_some());
    for rule in rules.iter().filter(|rule| rule.prefix_len == 0 || rule.source.is_ipv6()).take(MAX_RULES) {
        pass6(program, rule, important);
    }
    settle(program, sorting, true);
    program.place(done);
}

/// r9 = the bucket; to the label of what is held if it is.
fn settle(program: &mut Program, sorting: &Sorting<'_>, v6: bool) {
    program
        .word(Move, 9, R(3))
        .word(Multiply, 9, K(FOLD as i32))
        .word(Xor, 9, R(5))
        .word(Multiply, 9, K(MIX as i32))
        .word(Move, 2, R(9))
        .word(ShiftRight, 2, K(15))
        .word(Xor, 9, R(2));
    // What is looked up next leaves nothing in these registers.
    program.store(Word, 10, PORTS_AT, 5);
    if let Some(known) = sorting.counted {
        program.store(Word, 10, HASH_AT, 9).store(Word, 10, FROM_AT, 3);
        known.check(program, sorting.important.1);
    }
    program.word(And, 9, K(BUCKETS as i32 - 1));
    if let Some((map, drop)) = sorting.held {
        held::check(map, program, v6, drop);
    }
}

/// r3 = source address, r5 = ports as they stand in the packet, 0 where there are none; to `other` for what is cut short.
fn read4(program: &mut Program, other: Label, counted: bool) {
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
        .load(Word, 5, 8, 0);
    if counted {
        program.load(Byte, 2, 6, PROTOCOL_AT).jump_if(2, NotEqual, K(TCP), known);
        read_syn(program, known);
    }
    program.place(known);
}

/// The same for IPv6: r3 = one word made of the source's four.
fn read6(program: &mut Program, other: Label, counted: bool) {
    let (known, ports) = (program.label(), program.label());
    program
        .double(Move, 2, R(6))
        .double(Add, 2, K(ETHERNET_LEN + IPV6_LEN))
        .jump_if(2, Above, R(7), other)
        .word(Move, 3, K(0));
    for word in 0..4 {
        let at = SOURCE6_AT + 4 * word;
        program.word(Multiply, 3, K(FOLD as i32)).load(Word, 2, 6, at).word(Xor, 3, R(2));
    }
    program
        .double(Move, 5, K(0))
        // Behind an extension header they are not looked for.
        .load(Byte, 2, 6, NEXT_HEADER_AT)
        .jump_if(2, Equal, K(TCP), ports)
        .jump_if(2, NotEqual, K(UDP), known)
        .place(ports)
        .double(Move, 2, R(6))
        .double(Add, 2, K(i32::from(TRANSPORT6_AT) + 4))
        .jump_if(2, Above, R(7), known)
        .load(Word, 5, 6, TRANSPORT6_AT);
    if counted {
        program
            .load(Byte, 2, 6, NEXT_HEADER_AT)
            .jump_if(2, NotEqual, K(TCP), known)
            .double(Move, 8, R(6))
            .double(Add, 8, K(i32::from(TRANSPORT6_AT)));
        read_syn(program, known);
    }
    program.place(known);
}

/// It counts with [`SYNS`], if the TCP header at r8 is one's; to `known` for what is cut short.
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
        .word(Move, 2, K(SYNS as i32))
        .store(Word, 10, KIND_AT, 2);
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

/// The hash of a flow as [`sort`] has it, of a source or what is made of it and ports as they stand in a packet.
pub(crate) fn hash(source: u32, ports: u32) -> u32 {
    let hash = (source.wrapping_mul(FOLD) ^ ports).wrapping_mul(MIX);
    hash ^ hash >> 15
}

/// What is counted with, and what is known.
pub(crate) struct Police<'a> {
    pub(crate) buckets: &'a Buckets,
    pub(crate) seen: &'a Seen,
    pub(crate) known: &'a Known,
    pub(crate) limits: Limits,
}

impl Police<'_> {
    /// Counts a packet that was sorted for it: to `drop` when its flow, or all of its kind, have had their limit in this
    /// window.
    pub(crate) fn count(&self, program: &mut Program, drop: Label) {
        let Police { buckets, limits, .. } = *self;
        let (syn, stands, pass) = (program.label(), program.label(), program.label());
        program.load(Word, 7, 10, KIND_AT);
        if limits.only_syns {
            program.jump_if(7, NotEqual, K(SYNS as i32), pass);
        }
        program.call(sys::BPF_FUNC_KTIME_GET_NS).double(ShiftRight, 0, K(WINDOW_SHIFT)).double(Move, 8, R(0));
        if !limits.only_syns {
            program.jump_if(7, Equal, K(SYNS as i32), syn).jump_if(7, Equal, K(STANDING as i32), stands);
            count(program, buckets, R(9), limits.flow, drop);
            count(program, buckets, R(7), limits.total, drop);
            program.jump(pass).place(stands);
            count(program, buckets, R(9), limits.standing_flow, drop);
            count(program, buckets, R(7), limits.standing, drop);
            program.jump(pass).place(syn);
        }
        self.count_syn(program, pass, drop);
        program.place(pass);
    }

    /// Goes on, or to `pass`, with a SYN that may pass.
    fn count_syn(&self, program: &mut Program, pass: Label, drop: Label) {
        let Police { buckets, seen, known, limits } = *self;
        let (stranger, over) = (program.label(), program.label());
        known.check_client(program, stranger);
        known::hash_client(program, CLIENT_BUCKETS);
        program.word(Add, 2, K(CLIENT as i32));
        count(program, buckets, R(2), limits.client_syns, stranger);
        count(program, buckets, K(KNOWN as i32), limits.known_syns, stranger);
        program.jump(pass).place(stranger);
        count(program, buckets, R(9), limits.flow, drop);
        count(program, buckets, R(7), limits.syns, over);
        program.jump(pass).place(over);
        look_again(program, seen, drop);
        count(program, buckets, K(AGAIN as i32), limits.total, drop);
    }
}

/// Goes on with a SYN that came before; else remembers it and goes to `drop`.
fn look_again(program: &mut Program, seen: &Seen, drop: Label) {
    let again = program.label();
    program
        .load(Word, 9, 10, HASH_AT)
        .word(Move, 3, R(9))
        // The upper bits of a product depend on all of the hash.
        .word(Multiply, 3, K(FOLD as i32))
        .word(ShiftRight, 3, K((u32::BITS - REMEMBERED.ilog2()) as i32));
    find(program, &seen.0, R(3))
        .jump_if(0, Equal, K(0), drop)
        .load(Word, 1, 10, SEQUENCE_AT)
        .word(Xor, 1, R(9))
        .word(Multiply, 1, K(MIX as i32))
        .word(ShiftRight, 1, K(16))
        .load(Double, 2, 0, 0)
        .double(Move, 3, R(2));
    for _ in 0..REMEMBERED_EACH {
        program.double(Move, 4, R(3)).double(And, 4, K(0xffff)).jump_if(4, Equal, R(1), again).double(
            ShiftRight,
            3,
            K(16),
        );
    }
    program
        // The earliest of the four goes.
        .double(ShiftLeft, 2, K(16))
        .double(Add, 2, R(1))
        .store(Double, 0, 0, 2)
        .jump(drop)
        .place(again);
}

/// Drops the packet, and counts that under a reason.
pub(crate) fn drop_counted(program: &mut Program, buckets: &Buckets, reason: u32) {
    let out = program.label();
    find(program, &buckets.0, K(reason as i32))
        .jump_if(0, Equal, K(0), out)
        .load(Double, 1, 0, 8)
        .double(Add, 1, K(1))
        .store(Double, 0, 8, 1)
        .place(out)
        .word(Move, 0, K(XDP_DROP))
        .exit();
}

/// r0 = the entry of this number.
pub(crate) fn find<'a>(program: &'a mut Program, map: &OwnedFd, entry: Operand) -> &'a mut Program {
    program
        .word(Move, 2, entry)
        .store(Word, 10, KEY_AT, 2)
        .double(Move, 2, R(10))
        .double(Add, 2, K(i32::from(KEY_AT)))
        .map(1, map.as_raw_fd())
        .call(sys::BPF_FUNC_MAP_LOOKUP_ELEM)
}

/// Counts the packet in an entry: to `drop` when the window has had its limit.
fn count(program: &mut Program, buckets: &Buckets, entry: Operand, limit: u32, drop: Label) {
    let in_window = (u64::from(limit) << WINDOW_SHIFT) / 1_000_000_000;
    let (same, none) = (program.label(), program.label());
    find(program, &buckets.0, entry)
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
