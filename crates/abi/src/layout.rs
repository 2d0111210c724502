//! The layout of a region.
//!
//! ```text
//! 0          Header           engine state, addresses served, dirty and call bitmaps
//! PROCESSES  ProcessRecord ×  which sockets each process of the program holds
//! SETS       PollSet ×        who waits, and what became ready for them
//! CALLS      Call ×           requests to the engine that want an answer
//! SLOTS      Slot ×           one per socket
//! INTERESTS  InterestList ×   what an epoll has of them, one per poll set ([`crate::interest`])
//! ARENA      rings            offsets in slots count from here
//! ```
//! Everything starts as zeros. All fields are atomics because two address spaces share them.

use std::mem::size_of;
use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering};

use scoutline_base::Address;
use scoutline_ring::{Cursors, bitmap_words, summary_words};

/// Written by the daemon into [`Header::magic`] last of all.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SCOUTLN1");
/// Sockets per region.
pub const SLOT_COUNT: usize = 16_384;
/// Engines that serve a region, at most: each has slots, and a word of their summary, of its own.
pub const ENGINE_COUNT: usize = 4;
/// Processes per region.
pub const PROCESS_COUNT: usize = 512;
/// Poll sets per region: one per epoll descriptor and one per thread that blocks.
pub const SET_COUNT: usize = 1_024;
/// Calls in flight per region.
pub const CALL_COUNT: usize = 256;
/// In [`Slot::held_from`]: calls say that more follows (MSG_MORE), not the socket (TCP_CORK). It binds until the peer
/// acknowledges something, as in Linux.
pub const HELD_BY_CALL: u64 = 1 << 63;
/// In [`Slot::held_from`]: the last call has said that more follows, whatever the socket does: what it wrote ends without
/// PSH, also where something else lets it go.
pub const HELD_UNFINISHED: u64 = 1 << 62;
/// Addresses served, at most.
pub const SERVED_COUNT: usize = 64;
/// Bytes of arena: address space only; pages exist once touched.
pub const ARENA_LEN: u64 = 8 << 30;

const SLOT_WORDS: usize = bitmap_words(SLOT_COUNT);
const SLOT_SUMMARY: usize = summary_words(SLOT_COUNT);
/// Words of [`Slot::sets`].
pub const SET_WORDS: usize = bitmap_words(SET_COUNT);

/// What the engine is doing: a shim rings the doorbell only when it must.
pub mod engine_state {
    /// It looks at the bitmaps by itself, soon.
    pub const POLLING: u32 = 0;
    /// It sleeps: mark, then ring.
    pub const SLEEPING: u32 = 1;
    /// The Linux thread runs: it looks again when Linux is idle or its quantum is over. Ring for urgent slots.
    pub const AWAY: u32 = 2;
}

/// The start of a region.
#[repr(C, align(64))]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`crate::VERSION`].
    pub version: AtomicU32,
    /// Networks that paths serve; entries in use.
    pub served_count: AtomicU32,
    /// Odd while the networks are being written; who finds it changed reads again.
    pub served_sequence: AtomicU32,
    /// By which the program's sockets are known when they are passed ([`crate::stand_in`]). Written by the engine.
    pub stand_in_key: AtomicU64,
    /// What SO_COOKIE says of sockets counts from here, so that programs' do not meet: random. Written by the daemon.
    pub cookie_base: AtomicU64,
    /// The networks: our address, prefix length, gateway.
    pub served: [Served; SERVED_COUNT],
    /// How many engines serve the region, 1 to [`ENGINE_COUNT`]; written by the daemon. See [`slots_of`].
    pub engine_count: AtomicU32,
    /// How often shims have refused io_uring. Written by shims, seldom.
    pub rings_refused: AtomicU32,
    /// How often they have let a program have a ring.
    pub rings_left: AtomicU32,
    /// How many sockets have become the kernel's, or stayed so, because a ring's operation named them.
    pub ring_sockets: AtomicU32,
    /// Written by each engine: see [`engine_state`]. The shim may change SLEEPING to POLLING when it rings.
    pub engines: [EngineWord; ENGINE_COUNT],
    /// Marked by shims: slots with new data, freed space or requests.
    pub dirty_summary: Line<{ SLOT_SUMMARY }>,
    /// See `dirty_summary`.
    pub dirty_words: [AtomicU64; SLOT_WORDS],
    /// Marked by shims: calls to be answered by each engine.
    pub calls_pending: [Line<{ CALL_COUNT / 64 }>; ENGINE_COUNT],
    /// Calls in use: a shim takes a call by setting its bit.
    pub calls_taken: Line<{ CALL_COUNT / 64 }>,
    /// How often shims have served a system call that went past the C library. Written by shims.
    pub calls_dispatched: Line<1>,
}

/// The engine's state on a cache line of its own.
#[repr(C, align(64))]
pub struct EngineWord {
    /// See [`engine_state`].
    pub state: AtomicU32,
    /// The core the engine runs on, plus one; 0: not pinned. A shim on the same core never spins.
    pub cpu_plus_one: AtomicU32,
}

/// The slots of one engine among several: whole words of the summary, so that no two engines take marks from one.
pub fn slots_of(engine: usize, engines: usize) -> Range<usize> {
    let shift = slots_shift(engines);
    engine << shift..(engine + 1) << shift
}

/// The engine that serves a slot.
#[inline]
pub fn engine_of(slot: u32, engines: usize) -> usize {
    (slot as usize >> slots_shift(engines)).min(ENGINE_COUNT - 1)
}

/// A power of two for each, so that no look at a slot divides.
#[inline]
fn slots_shift(engines: usize) -> u32 {
    SLOT_COUNT.trailing_zeros() - engines.clamp(1, ENGINE_COUNT).next_power_of_two().trailing_zeros()
}

/// Words on a cache line of their own.
#[repr(C, align(64))]
pub struct Line<const N: usize>(pub [AtomicU64; N]);

/// Bits of [`Served::flags`].
pub mod served_flag {
    /// Files may be sent as extents: the device reads memory only through the kernel, which answers a file that
    /// shrank with an error and not with a signal.
    pub const EXTENTS: u32 = 1 << 0;
    /// A gateway leads on to other networks of this family.
    pub const GATEWAY: u32 = 1 << 1;
    /// Programs on paths of this machine reach each other.
    pub const OWN_LINK: u32 = 1 << 2;
    /// Where a route leads: none of our addresses.
    pub const ROUTE: u32 = 1 << 3;
}

/// A network that paths serve.
#[repr(C)]
pub struct Served {
    /// Our address; of a route its network.
    pub address: AtomicAddress,
    /// Bits of the 128 that name its network.
    pub prefix: AtomicU32,
    /// Bits of [`served_flag`].
    pub flags: AtomicU32,
    /// Linux's number of the interface: the scope of link-local addresses. 0: there is none.
    pub scope: AtomicU32,
    /// Spare.
    pub spare: AtomicU32,
}

/// An address in two words. Whoever writes it publishes it by something else.
#[repr(C)]
#[derive(Debug, Default)]
pub struct AtomicAddress([AtomicU64; 2]);

impl AtomicAddress {
    /// Writes it.
    pub fn store(&self, address: Address) {
        for (word, value) in self.0.iter().zip(address.words()) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Reads it. Zeros are `::`.
    pub fn load(&self) -> Address {
        let [high, low] = &self.0;
        Address::from_words([high.load(Ordering::Relaxed), low.load(Ordering::Relaxed)])
    }
}

/// One process of the program.
#[repr(C, align(64))]
pub struct ProcessRecord {
    /// 1 while in use; set and cleared by the daemon.
    pub alive: AtomicU32,
    /// For people.
    pub pid: AtomicU32,
    /// Slot that the process is taking from an accept queue right now, plus one: robustness against its death
    /// between taking and holding. Only one thread at a time may use it (guarded by a lock in the shim).
    pub claiming: AtomicU32,
    /// The listening slot of that claim, plus one.
    pub claiming_from: AtomicU32,
    /// Slots that it holds, one bit each. Written by its process; by its parent before a fork; read by the daemon
    /// when the process is gone.
    pub holds: [AtomicU64; SLOT_WORDS],
}

/// Something that waits for sockets: an epoll descriptor, or a thread in a blocking call, in `poll` or `select`.
///
/// Each has a pipe: the daemon writes a byte to wake; its end of file means that the daemon is gone.
#[repr(C, align(64))]
pub struct PollSet {
    /// How many threads sleep on it, or are about to; with [`EXCLUSIVE`] set, one thread in one blocking call.
    /// Written by shims.
    pub sleepers: AtomicU32,
    /// 1 after the engine has written to the pipe and until a shim has drained it.
    pub signalled: AtomicU32,
    /// The thread that sleeps on it or did last; 0: none yet. Written by shims.
    pub thread: AtomicU32,
    /// The priority to which the engine has raised that thread; 0: it has its own. Set by the engine after raising,
    /// cleared by the thread after lowering itself.
    pub level: AtomicU32,
    /// What its own is: SCHED_ policy, real-time priority << 8, perhaps [`HAS_DEADLINE`]. Written by the engine before
    /// `level`.
    pub own_policy: AtomicU32,
    /// 1: an epoll that has its listening sockets with EPOLLEXCLUSIVE. Of several such sets one is woken for a connection.
    /// Written by shims.
    pub one_takes: AtomicU32,
    /// Processes that have it; written by the daemon. More than one: an epoll that was shared by a fork.
    pub holders: AtomicU32,
    /// Spare.
    pub spare: AtomicU32,
    /// Summary of `words`.
    pub ready_summary: [AtomicU64; SLOT_SUMMARY],
    /// Slots where something happened. Set by the engine (and by shims on registration); cleared by shims.
    pub ready_words: [AtomicU64; SLOT_WORDS],
}

/// In [`PollSet::sleepers`]: the sleeper is a single blocking call, which takes what it is woken for. Of several
/// such sets one is woken per event: a hundred processes in `accept` do not all run for one connection.
pub const EXCLUSIVE: u32 = 1 << 31;

/// In [`PollSet::own_policy`]: what the engine has given the thread is SCHED_DEADLINE, without a `level`.
pub const HAS_DEADLINE: u32 = 1 << 31;

/// A request to the engine that wants an answer.
#[repr(C, align(64))]
pub struct Call {
    /// See [`call_state`].
    pub state: AtomicU32,
    /// See [`call_op`].
    pub op: AtomicU32,
    /// The slot concerned, where there is one.
    pub slot: AtomicU32,
    /// The process record of the caller, plus one.
    pub process: AtomicU32,
    /// The poll set to wake when answered, plus one; 0: the caller spins or looks again.
    pub set: AtomicU32,
    /// The answer: 0 or more is success (for OPEN the slot), below 0 an errno negated.
    pub result: AtomicI32,
    /// Arguments, by `op`.
    pub arguments: [AtomicU64; 4],
    /// One more, where `op` has one.
    pub more: AtomicU64,
}

/// States of a call.
pub mod call_state {
    /// Not in use.
    pub const FREE: u32 = 0;
    /// Filled and marked; the engine's turn.
    pub const POSTED: u32 = 1;
    /// Answered; the caller's turn.
    pub const DONE: u32 = 2;
}

/// Operations of a call.
pub mod call_op {
    /// Make a socket: arguments kind, family, options ([`super::slot_option`]). Result: its slot, held by the caller.
    pub const OPEN: u32 = 1;
    /// Bind: arguments address (its second word), port (0: any), bits (1 SO_REUSEADDR, 2 SO_REUSEPORT, 4
    /// IPV6_V6ONLY), address (its first word).
    pub const BIND: u32 = 2;
    /// Listen: argument backlog.
    pub const LISTEN: u32 = 3;
    /// Connect: arguments address (its second word), port, scope of a link-local one (0: not said) | [`super::fast_open`]
    /// << 32, address (its first word). Result 0: under way (stream) or done (datagram); more: the SYN waits for data, of
    /// which so many bytes may go with it.
    pub const CONNECT: u32 = 4;
    /// Change an option: argument [`super::slot_option`] number, value.
    pub const OPTION: u32 = 5;
    /// Dissolve a datagram socket's association (connect to AF_UNSPEC).
    pub const DISCONNECT: u32 = 6;
    /// Put the socket into a class: the arguments are its name, [`super::CLASS_NAME_LEN`] bytes in memory order, zeros
    /// behind it; nothing but zeros: as the rules say.
    pub const SET_CLASS: u32 = 7;
    /// What a socket's path has: argument [`super::slot_option`] number. Result: its value; for CLASS the length of the
    /// name, and the arguments are the name as for SET_CLASS.
    pub const GET_OPTION: u32 = 8;
    /// Whether somebody on paths takes what is sent to an address of this machine: arguments as for CONNECT, but for
    /// the third, the kind of socket. The slot does not matter. Result: 0 or 1.
    pub const IS_LISTENED_AT: u32 = 9;
    /// Queue an error of this machine's: a datagram was too long. Arguments: its destination (second word), port | the
    /// MTU << 16, nothing, its destination (first word).
    pub const TOO_LONG: u32 = 16;
    /// Take a socket that another program has passed: argument the word of its stand-in ([`crate::stand_in`]). It moves.
    /// Result: its slot, held by the caller; EAGAIN: a thread is copying from or to it.
    pub const TAKE: u32 = 18;
    /// Whether a process is on paths: argument its id. Result: 0 or 1.
    pub const IS_ON_PATHS: u32 = 19;
    /// Change what groups a datagram socket is in. Arguments: the group and the source (both words of each, the first
    /// first); `more`: [`super::membership`] | a number of the caller among its process's << 8 (24 bits, for filters) |
    /// Linux's number of the interface << 32.
    pub const MEMBERSHIP: u32 = 17;
}

/// How CONNECT opens (RFC 7413).
pub mod fast_open {
    /// What is written first goes with the SYN, if there is a cookie for the server; else the SYN asks for one at once
    /// (MSG_FASTOPEN with data). EOPNOTSUPP where fast open is off.
    pub const DATA: u64 = 1;
    /// The SYN goes at once, with the cookie or the request for one (MSG_FASTOPEN without data). EOPNOTSUPP as well.
    pub const NO_DATA: u64 = 2;
    /// As DATA, but where fast open is off, the connection begins as ever (TCP_FASTOPEN_CONNECT: the kernel may have
    /// allowed it, and `connect` does not fail for it).
    pub const OPTION: u64 = 3;
    /// Beside these, of a stream that is bound: the program has left its port to the kernel, and another will do where a
    /// connection to this peer had it just now.
    pub const ANY_PORT: u64 = 1 << 8;
}

/// What MEMBERSHIP does.
pub mod membership {
    /// Every source (IP_ADD_MEMBERSHIP).
    pub const JOIN: u64 = 1;
    /// No more.
    pub const LEAVE: u64 = 2;
    /// This source (IP_ADD_SOURCE_MEMBERSHIP).
    pub const JOIN_SOURCE: u64 = 3;
    /// Not this source any more.
    pub const LEAVE_SOURCE: u64 = 4;
    /// Every source but this one.
    pub const BLOCK_SOURCE: u64 = 5;
    /// This source again.
    pub const UNBLOCK_SOURCE: u64 = 6;
    /// The first source of a filter to come (IP_MSFILTER): what was named before of another is forgotten.
    pub const FIRST_OF_FILTER: u64 = 7;
    /// One more of its sources.
    pub const NEXT_OF_FILTER: u64 = 8;
    /// The filter holds from now on: only the sources that were named. In place of a source their number (EAGAIN: that
    /// is not how many were named, since somebody else sets a filter of this socket).
    pub const FILTER_INCLUDES: u64 = 9;
    /// The same: all but the sources that were named.
    pub const FILTER_EXCLUDES: u64 = 10;
    /// Changes nothing. In place of a source a number. Result: how many sources the filter has | [`EXCLUDES`];
    /// arguments: the source with that number, if there is one.
    pub const FILTER: u64 = 11;
    /// In the result of [`FILTER`]: all sources but these are wanted.
    pub const EXCLUDES: u32 = 1 << 16;
    /// Sources that a filter may have: `mld_max_msf` of Linux, where IPv4 has ten (`igmp_max_msf`).
    pub const MOST_SOURCES: usize = 64;
    /// See [`MOST_SOURCES`].
    pub const MOST_SOURCES_V4: usize = 10;
}

/// Bytes of a class's name in a call: all its arguments.
pub const CLASS_NAME_LEN: usize = 32;

/// Options that the engine must know (argument of `OPTION`, and bits 1 << n of `OPEN`'s options).
pub mod slot_option {
    /// TCP_NODELAY.
    pub const NO_DELAY: u64 = 1;
    /// SO_KEEPALIVE; value: idle | interval << 20 | count << 40 (seconds), 0 off.
    pub const KEEP_ALIVE: u64 = 2;
    /// SO_BROADCAST.
    pub const BROADCAST: u64 = 3;
    /// TCP_DEFER_ACCEPT; value: seconds, 0 off.
    pub const DEFER_ACCEPT: u64 = 4;
    /// Priority of its path: 0 to 63, [`AS_CLASS`]: what the class says. Asked for: [`NO_PRIORITY`] in the background.
    pub const PRIORITY: u64 = 5;
    /// Served only when nothing else has work: 0 or 1.
    pub const BACKGROUND: u64 = 6;
    /// Threads run at the priority of the path: 0, 1, [`AS_CLASS`].
    pub const EXTEND: u64 = 7;
    /// The class: only to be asked for.
    pub const CLASS: u64 = 8;
    /// By when what comes to its path should be done, in microseconds: [`DEADLINES_US`], [`AS_CLASS`]. Asked for:
    /// [`NONE`] without one.
    pub const DEADLINE: u64 = 9;
    /// Its weight among the paths of WFQ: 1 to 10,000, [`AS_CLASS`]. Asked for: [`NONE`] where it has none.
    pub const WEIGHT: u64 = 10;
    /// TCP_CONGESTION: 1 cubic, 2 reno, 3 bbr, 4 ledbat++ ([`CONGESTION_NAMES`]).
    pub const CONGESTION: u64 = 32;
    /// TCP_USER_TIMEOUT in milliseconds.
    pub const USER_TIMEOUT: u64 = 33;
    /// TCP_MAXSEG; asked for: what is in use.
    pub const MAX_SEGMENT: u64 = 34;
    /// TCP_QUICKACK: 0 or 1.
    pub const QUICK_ACK: u64 = 35;
    /// SO_MAX_PACING_RATE as [`pacing_word`] has it.
    pub const MAX_PACING_RATE: u64 = 36;

    /// A rate in bytes a second, all bits set where there is no limit, as a word that is 0 for that; or from it. 0 paces
    /// nothing either (`tcp_update_skb_after_send` of Linux), but reads back as 0.
    #[must_use]
    pub const fn pacing_word(rate: u64) -> u64 {
        match rate {
            0 => u64::MAX,
            u64::MAX => 0,
            rate => rate,
        }
    }

    /// TCP_INFO: only to be asked for. A second argument n asks for its bytes from 32 n on, which the arguments are then.
    pub const INFO: u64 = 37;
    /// TCP_NOTSENT_LOWAT in bytes; 0: not set.
    pub const UNSENT_LOW_WATER: u64 = 38;

    /// TCP_FASTOPEN of a listening socket: how many connections may have begun with data whose handshake is not complete.
    pub const FAST_OPEN: u64 = 39;
    /// TCP_FASTOPEN_CONNECT: only whether it is allowed.
    pub const FAST_OPEN_CONNECT: u64 = 40;
    /// TCP_FASTOPEN_NO_COOKIE of a listening socket: 0 or 1.
    pub const FAST_OPEN_NO_COOKIE: u64 = 41;
    /// TCP_FASTOPEN_KEY of a listening socket. The value is 0 or the first half of the key before, whose second half is
    /// `more`; the key is in the arguments behind, 16 bytes in memory order. A key before of zeros is none. Asked for: its
    /// length is the result, the arguments are the key and the one before.
    pub const FAST_OPEN_KEY: u64 = 42;
    /// What IP_TOS, IP_TTL and IP_MTU_DISCOVER say of a stream: type of service | hops << 8 (0: not said) | 1 << 16 if
    /// routers may fragment; in the upper 32 bits the same of IPv6.
    pub const HEADERS: u64 = 43;
    /// TCP_SYNCNT: how often a SYN, or a SYN-ACK, goes again; 0: as configured. Asked for, so are the next two.
    pub const SYN_COUNT: u64 = 44;
    /// TCP_LINGER2: seconds in FIN-WAIT-2 once the program has closed; 0: as configured; [`AS_CLASS`]: none. Asked for: one
    /// more, and 0 for none.
    pub const ORPHAN_WAIT: u64 = 45;
    /// TCP_WINDOW_CLAMP in bytes: the most that the peer is offered; 0: as much as there is room for.
    pub const WINDOW_CLAMP: u64 = 46;
    /// SO_BINDTODEVICE: Linux's number of the interface by which all comes and goes; 0: any.
    pub const DEVICE: u64 = 47;
    /// SO_REUSEADDR and SO_REUSEPORT of a socket that is bound, as BIND has them.
    pub const SHARING: u64 = 48;
    /// SO_SNDBUF has grown: who waits for room may have it.
    pub const SEND_BUFFER: u64 = 49;

    /// Errors are queued for the program (IP_RECVERR, IPV6_RECVERR): 0 or 1. Room is made for them.
    pub const QUEUE_ERRORS: u64 = 64;

    /// The names of congestion controls, from 1 on.
    pub const CONGESTION_NAMES: [&str; 4] = ["cubic", "reno", "bbr", "ledbat++"];
    /// Length of TCP_INFO, in bytes.
    pub const INFO_LEN: usize = 256;

    /// Deadlines of less than a few runs of others cannot be met; those beyond a minute are none.
    pub const DEADLINES_US: std::ops::RangeInclusive<u64> = 100..=60_000_000;
    /// Answer: none.
    pub const NONE: i32 = 0;
    /// Value: not said.
    pub const AS_CLASS: u64 = u64::MAX;
    /// Answer: none.
    pub const NO_PRIORITY: i32 = 64;
}

/// Kinds of a slot.
pub mod slot_kind {
    /// Not in use.
    pub const FREE: u32 = 0;
    /// TCP.
    pub const STREAM: u32 = 1;
    /// UDP.
    pub const DATAGRAM: u32 = 2;
}

/// Bits of [`Slot::state`], written by the engine.
pub mod slot_state {
    /// It listens; its receive ring holds slot numbers of accepted sockets (u32 each).
    pub const LISTENING: u32 = 1 << 0;
    /// A connection attempt is under way.
    pub const CONNECTING: u32 = 1 << 1;
    /// It was connected (and may have failed or finished since); datagram: it has a peer.
    pub const CONNECTED: u32 = 1 << 2;
    /// The peer sends no more: end of file once the ring is empty.
    pub const PEER_FINISHED: u32 = 1 << 3;
    /// It failed: `error` says why, or said so.
    pub const FAILED: u32 = 1 << 4;
    /// It has a local address.
    pub const BOUND: u32 = 1 << 5;
    /// What it sends must stand in its ring: no extents.
    pub const COPIES: u32 = 1 << 6;
    /// Its peer has sent urgent data: `urgent_mark` counts.
    pub const URGENT: u32 = 1 << 7;
    /// Its SYN waits, or waited, for what is written first: `mtu` bytes of it at most go with it (RFC 7413). Until then
    /// it is writable.
    pub const FAST_OPEN: u32 = 1 << 8;
    /// What is written and not sent has a bound: [`super::Slot::unsent_told`] counts.
    pub const UNSENT_BOUNDED: u32 = 1 << 9;
    /// With FAILED: its program has given up the attempt to connect ([`super::slot_request::DISCONNECT`]).
    pub const DISCONNECTED: u32 = 1 << 10;

    /// A connection attempt is under way, and has not ended.
    #[must_use]
    pub const fn opens(state: u32) -> bool {
        state & (CONNECTING | CONNECTED | FAILED) == CONNECTING
    }
}

/// Bits of [`Slot::requests`], set by shims.
pub mod slot_request {
    /// `shutdown(SHUT_WR)`.
    pub const SHUTDOWN: u32 = 1 << 0;
    /// The last descriptor was closed.
    pub const CLOSE: u32 = 1 << 1;
    /// Closed with a reset (SO_LINGER with time 0).
    pub const ABORT: u32 = 1 << 2;
    /// `shutdown(SHUT_RD)`.
    pub const SHUTDOWN_READ: u32 = 1 << 3;
    /// What is written up to `urgent_to` is urgent (MSG_OOB). Set before it is written; taken by the engine.
    pub const URGENT: u32 = 1 << 4;
    /// The program has been put a notice that a send with MSG_ZEROCOPY is complete: who waits for events is woken. Taken
    /// by the engine.
    pub const COMPLETED: u32 = 1 << 5;
    /// `shutdown` of a connection that opens: it ends without a word to the peer, and the socket may connect again. Taken
    /// by the engine, before it says DISCONNECTED; one that finds the connection open, or failed, does nothing.
    pub const DISCONNECT: u32 = 1 << 6;
    /// What a stream's engine takes.
    pub const ONCE: u32 = URGENT | COMPLETED | DISCONNECT;
}

/// Bits of [`Slot::flags`], of the open file description, set by shims.
pub mod slot_flag {
    /// O_NONBLOCK.
    pub const NONBLOCK: u32 = 1 << 0;
    /// AF_INET6 socket: addresses of IPv4 are shown as v4-mapped.
    pub const INET6: u32 = 1 << 1;
    /// O_ASYNC and the like are kept only to be read back.
    pub const OTHER: u32 = 1 << 2;
}

/// Extents that may wait for the engine. One per `sendfile`; the engine takes them at its next look.
pub const EXTENT_COUNT: usize = 2;
/// Bytes of an extent, at least: what is shorter is copied into the ring.
pub const MIN_EXTENT: u64 = 16 << 10;
/// Bytes that a stream may be ahead of what the peer has acknowledged, extents included.
pub const MAX_AHEAD: u64 = 8 << 20;

/// A piece of the outgoing stream that lies in a file, not in the ring: `sendfile` without a copy. The file was given
/// to the daemon before ([`crate::attach::kind::FILE`]). Positions count the piece as if it stood in the ring.
#[repr(C)]
pub struct Extent {
    /// Where in the stream it begins.
    pub position: AtomicU64,
    /// Where in the file it begins.
    pub offset: AtomicU64,
    /// Its length.
    pub len: AtomicU32,
    /// The file's number.
    pub file: AtomicU32,
}

/// Holder of a direction's lock: the engine, which has tried to take it and exchanges the ring for a larger one. It
/// waits for nothing meanwhile.
pub const ENGINE_HOLDS: u32 = u32::MAX;
/// The part of another holder that is its process record plus one. Above stands which of its threads it is, for itself.
pub const HOLDER_PROCESS: u32 = 0x3ff;
const _: () = assert!(PROCESS_COUNT < HOLDER_PROCESS as usize);

/// A socket.
#[repr(C, align(64))]
pub struct Slot {
    // Line 0: written by the engine.
    /// See [`slot_state`].
    pub state: AtomicU32,
    /// Pending error (SO_ERROR), an errno; the shim takes it with a swap.
    pub error: AtomicI32,
    /// Bytes ever put into the receive ring in order (positions only grow).
    pub receive_tail: AtomicU64,
    /// Bytes of the send ring ever freed (acknowledged by the peer, or sent for datagrams).
    pub send_head: AtomicU64,
    /// Where the rings lie in the arena; sizes are powers of two.
    pub receive_offset: AtomicU64,
    /// See `receive_offset`.
    pub send_offset: AtomicU64,
    /// Size of the receive ring in bytes.
    pub receive_size: AtomicU32,
    /// Size of the send ring in bytes.
    pub send_size: AtomicU32,
    /// See [`slot_kind`].
    pub kind: AtomicU32,
    /// How important its path is: 0 idle, else its priority plus one; of a listening socket, the most important
    /// connection that waits.
    pub importance: AtomicU16,
    /// 1: more important than Linux: ring the doorbell even while the engine is AWAY.
    pub urgent: AtomicU16,
    /// Tells the sockets apart that have this slot one after another.
    pub generation: AtomicU32,
    /// How far the outgoing stream has been sent, the low half of the position. Only kept while there is a bound on what is
    /// not: see [`Slot::unsent_bound`].
    pub sent: AtomicU32,

    // Line 1: written by shims.
    /// Bytes ever taken from the receive ring.
    pub receive_head: AtomicU64,
    /// Bytes ever put into the send ring.
    pub send_tail: AtomicU64,
    /// See [`slot_request`].
    pub requests: AtomicU32,
    /// See [`slot_flag`].
    pub flags: AtomicU32,
    /// Holder of the receive side: see [`HOLDER_PROCESS`], or [`ENGINE_HOLDS`]; 0 free. Offset, size and contents of
    /// a stream's ring change under it only, but for the bytes that the cursors hand over.
    pub receive_lock: AtomicU32,
    /// Holder of the send side.
    pub send_lock: AtomicU32,
    /// Processes that hold the socket.
    pub references: AtomicU32,
    /// 1: a shim found the send ring full and wants to hear of space.
    pub send_wanted: AtomicU32,
    /// `SO_LINGER`: seconds plus one; 0 off.
    pub linger_plus_one: AtomicU32,
    /// Shim's own bits for options that it only keeps (SO_REUSEADDR and so on).
    pub kept_options: AtomicU32,
    /// TCP_KEEPIDLE in seconds; then TCP_KEEPINTVL in seconds << 16 | TCP_KEEPCNT. 0: not set. The shim's own: the
    /// engine hears of them by `OPTION`.
    pub keep_alive_times: [AtomicU32; 2],
    /// From where on in the outgoing stream the program holds back what fills no segment (TCP_CORK), plus one; 0: nowhere.
    /// With [`HELD_BY_CALL`] where only calls have said so (MSG_MORE), with [`HELD_UNFINISHED`] where the last call has. Set
    /// before what is held back is written, cleared after what follows it. Of a datagram socket the shims' own: bytes of a
    /// datagram that is made by several calls (MSG_MORE, UDP_CORK), plus one; the engine does not look.
    pub held_from: AtomicU64,

    // Line 2: ports (engine), timeouts (shim).
    /// Port, host byte order.
    pub local_port: AtomicU32,
    /// Port.
    pub remote_port: AtomicU32,
    /// SO_RCVTIMEO in microseconds; 0 none.
    pub receive_timeout_us: AtomicU64,
    /// SO_SNDTIMEO in microseconds; 0 none.
    pub send_timeout_us: AtomicU64,
    /// SO_RCVLOWAT.
    pub receive_low_water: AtomicU32,
    /// SO_RCVBUF and SO_SNDBUF as the program set them, before Linux's doubling; 0: not set. The engine reads them when
    /// it makes a stream's rings larger: what was set is as far as they grow. What stands in a send ring that is larger
    /// already is bounded by [`Slot::send_limit`].
    pub asked_receive_buffer: AtomicU32,
    /// See `asked_receive_buffer`.
    pub asked_send_buffer: AtomicU32,
    /// TCP_USER_TIMEOUT in milliseconds and TCP_MAXSEG as the program set them, for reading back; 0: not set.
    pub asked_user_timeout_ms: AtomicU32,
    /// See `asked_user_timeout_ms`.
    pub asked_max_segment: AtomicU32,
    /// A thread that is not raised begins to serve it: its poll set plus one. Set by shims, taken by the engine.
    pub server: AtomicU32,
    /// Scope of a link-local `remote_address` or `local_address`: Linux's number of the interface.
    pub scope: AtomicU32,
    /// Messages under way (SCM_RIGHTS) that hold it. Written by shims.
    pub in_flight: AtomicU32,
    /// TCP_NOTSENT_LOWAT in bytes; 0: not set, so as configured; 2³² - 1: no bound.
    pub unsent_low_water: AtomicU32,
    /// TCP_DEFER_ACCEPT in seconds; 0 off.
    pub defer_accept_s: AtomicU32,

    // Lines 3 to 5: who waits.
    /// Non-zero words of `sets`, one bit each; set by shims, never cleared by them.
    pub sets_summary: AtomicU32,
    /// Extents ever pushed; written by shims after the extent, before `send_tail`.
    pub extents_tail: AtomicU32,
    /// Extents ever taken; written by the engine.
    pub extents_head: AtomicU32,
    /// Sends with MSG_ZEROCOPY ever done, see [`slot_request::COMPLETED`]. Written by shims.
    pub zero_copy_done: AtomicU32,
    /// The ring of extents: entry `n` stands at `n % EXTENT_COUNT`.
    pub extents: [Extent; EXTENT_COUNT],
    /// Poll sets that watch this socket. Written by shims.
    pub sets: [AtomicU64; SET_WORDS],

    // Line 6: addresses, written by the engine.
    /// Ours.
    pub local_address: AtomicAddress,
    /// The peer's.
    pub remote_address: AtomicAddress,
    // Line 6 as well: what few sockets have.
    /// Position of the urgent byte of the incoming stream plus one; 0: there never was one. Written by the engine.
    pub urgent_mark: AtomicU64,
    /// `urgent_mark` of the last byte that was read out of band. Written by shims.
    pub urgent_taken: AtomicU64,
    /// Where the urgent part of the outgoing stream ends. Written by shims.
    pub urgent_to: AtomicU64,
    /// The poll set whose pipe tells the socket's owner (F_SETOWN) of urgent data, by SIGURG, plus one; 0: none. Written by
    /// shims.
    pub owner_set: AtomicU32,
    /// As many of them as the program has been told of. Written by shims.
    pub zero_copy_told: AtomicU32,

    // Line 7: datagrams. Written by the engine:
    /// Where the ring of errors lies in the arena: [`crate::datagram::ERROR_COUNT`] of
    /// [`crate::datagram::ERROR_LEN`] bytes. Only while `errors_queued`. Of a stream, which has none: see
    /// [`Slot::urgent_passed`].
    pub errors_offset: AtomicU64,
    /// Errors ever put there. Of a stream: see [`Slot::unsent_told`].
    pub errors_tail: AtomicU32,
    /// 1: there is a ring of errors.
    pub errors_queued: AtomicU32,
    /// Bytes of an IP packet that the way to the peer, or without one the link, carries. Of a stream: see
    /// [`slot_state::FAST_OPEN`].
    pub mtu: AtomicU32,
    // Written by shims:
    /// Errors ever taken. Of a stream, and written by the engine: see [`Slot::unsent_told`].
    pub errors_head: AtomicU32,
    /// See [`datagram_flag`].
    pub datagram_flags: AtomicU32,
    /// UDP_SEGMENT; 0: off.
    pub segment: AtomicU32,
    /// How it sends, IPv4 and IPv6: [`crate::datagram::SendOptions`] as words.
    pub send_options: [AtomicU64; 2],
    /// IP_MULTICAST_IF and IPV6_MULTICAST_IF: Linux's number of the interface; 0: not said.
    pub group_interface: [AtomicU32; 2],
    // Of a stream, written by shims:
    /// SO_PEEK_OFF, its bits inverted: 0 is -1, off.
    pub peek_offset_inverted: AtomicU32,
    // Of a stream, written by the engine:
    /// What a router has said of a connection that goes on, an errno, until something is heard of the peer. The shim takes
    /// it with a swap, for SO_ERROR alone.
    pub soft_error: AtomicI32,
}

/// The least that SO_SNDBUF leaves of a send ring (Linux: `SOCK_MIN_SNDBUF`).
const LEAST_SEND_LIMIT: u32 = 4608;

/// What leaves as one at most, where the engine has not said.
const UNSENT_STEP: u64 = 64 << 10;

/// What bounds data that are written and not sent, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsentBound {
    /// It is writable when twice what is unsent is less (Linux: `tcp_stream_memory_free`).
    pub low_water: u32,
    /// So much may be unsent: the bound, in whole bursts. Linux fills the buffer that it has begun, which is one.
    pub most: u64,
}

impl Slot {
    /// Of a stream: reading goes on at this position of the incoming stream where it has not come there. What is before it
    /// was urgent, and overtaken by another urgent byte while it was next to be read. Written by the engine.
    #[inline]
    pub fn urgent_passed(&self) -> &AtomicU64 {
        &self.errors_offset
    }

    /// The cursors of what comes in: the engine writes, the program reads.
    #[inline]
    pub fn incoming(&self) -> Cursors<'_> {
        Cursors { head: &self.receive_head, tail: &self.receive_tail }
    }

    /// How much of its send ring, which has `size` bytes, a stream's program may fill: all, unless it has set SO_SNDBUF to
    /// less since the ring was made. That bounds what is held in bytes as Linux tells it back, doubled (socket(7)). The
    /// engine may believe it: whatever a program writes here, it gets no more than the ring.
    #[inline]
    pub fn send_limit(&self, size: u32) -> u32 {
        match self.asked_send_buffer.load(Ordering::Relaxed) {
            0 => size,
            asked => size.min(asked.saturating_mul(2).max(LEAST_SEND_LIMIT)),
        }
    }

    /// Of a stream, as the engine tells it while [`slot_state::UNSENT_BOUNDED`]: the bound on what is unsent in bytes, and how
    /// much may be unsent for its sake.
    #[inline]
    pub fn unsent_told(&self) -> (&AtomicU32, &AtomicU32) {
        (&self.errors_tail, &self.errors_head)
    }

    /// What bounds a stream's data that are written and not sent: TCP_NOTSENT_LOWAT, else what is configured for all.
    #[inline]
    pub fn unsent_bound(&self) -> Option<UnsentBound> {
        let said = self.unsent_low_water.load(Ordering::Relaxed);
        let is_told = self.state.load(Ordering::Acquire) & slot_state::UNSENT_BOUNDED != 0;
        let (told, most) = self.unsent_told();
        let told = if is_told { told.load(Ordering::Relaxed) } else { 0 };
        match if said == 0 { told } else { said } {
            0 | u32::MAX => None,
            low_water if low_water == told => {
                Some(UnsentBound { low_water, most: most.load(Ordering::Relaxed).into() })
            }
            low_water => {
                Some(UnsentBound { low_water, most: u64::from(low_water).next_multiple_of(UNSENT_STEP) })
            }
        }
    }

    /// Bytes written and not sent, where there is such a bound.
    #[inline]
    pub fn unsent(&self) -> u32 {
        (self.send_tail.load(Ordering::Acquire) as u32).wrapping_sub(self.sent.load(Ordering::Acquire))
    }

    /// The cursors of what goes out: the program writes, the engine reads.
    #[inline]
    pub fn outgoing(&self) -> Cursors<'_> {
        Cursors { head: &self.send_head, tail: &self.send_tail }
    }
}

/// Bits of [`Slot::datagram_flags`]: what a program wants to be told with each datagram. The engine looks at the first.
pub mod datagram_flag {
    /// UDP_GRO: datagrams of one length from one sender may come together.
    pub const GATHER: u32 = 1 << 0;
    /// IP_RECVERR; of a stream, too.
    pub const ERRORS: u32 = 1 << 1;
    /// IPV6_RECVERR.
    pub const ERRORS6: u32 = 1 << 2;
    /// IP_PKTINFO.
    pub const INFO: u32 = 1 << 3;
    /// IPV6_RECVPKTINFO.
    pub const INFO6: u32 = 1 << 4;
    /// IP_RECVTTL.
    pub const HOPS: u32 = 1 << 5;
    /// IPV6_RECVHOPLIMIT.
    pub const HOPS6: u32 = 1 << 6;
    /// IP_RECVTOS.
    pub const TOS: u32 = 1 << 7;
    /// IPV6_RECVTCLASS.
    pub const TOS6: u32 = 1 << 8;
    /// IP_RECVORIGDSTADDR.
    pub const DESTINATION: u32 = 1 << 9;
    /// IPV6_RECVORIGDSTADDR.
    pub const DESTINATION6: u32 = 1 << 10;
    /// SO_TIMESTAMP or SO_TIMESTAMPNS.
    pub const TIME: u32 = 1 << 11;
    /// The latter.
    pub const TIME_NS: u32 = 1 << 12;
    /// SO_RXQ_OVFL.
    pub const LOST: u32 = 1 << 13;
    /// IP_MULTICAST_ALL is off: only groups that the socket itself is in.
    pub const OWN_GROUPS: u32 = 1 << 14;
    /// IPV6_MULTICAST_ALL is off.
    pub const OWN_GROUPS6: u32 = 1 << 15;
    /// SO_TIMESTAMPING asks for software's times of what comes.
    pub const TIMING: u32 = 1 << 16;
    /// The times by the numbers of 64-bit time on all machines (SO_TIMESTAMP_NEW and its kin).
    pub const TIME_NEW: u32 = 1 << 17;
    /// IPV6_DONTFRAG.
    pub const WHOLE6: u32 = 1 << 18;
}

/// Byte offset of each part.
pub mod offset {
    use super::{
        ARENA_LEN, CALL_COUNT, Call, Header, PROCESS_COUNT, PollSet, ProcessRecord, SET_COUNT, SLOT_COUNT,
        Slot, size_of,
    };
    use crate::interest::InterestList;

    const fn page(n: usize) -> usize {
        n.div_ceil(4096) * 4096
    }

    /// Process records.
    pub const PROCESSES: usize = page(size_of::<Header>());
    /// Poll sets.
    pub const SETS: usize = PROCESSES + page(PROCESS_COUNT * size_of::<ProcessRecord>());
    /// Calls.
    pub const CALLS: usize = SETS + page(SET_COUNT * size_of::<PollSet>());
    /// Slots.
    pub const SLOTS: usize = CALLS + page(CALL_COUNT * size_of::<Call>());
    /// Interest lists: address space only; pages exist once touched.
    pub const INTERESTS: usize = SLOTS + page(SLOT_COUNT * size_of::<Slot>());
    /// Rings. On a 2 MiB boundary.
    pub const ARENA: usize =
        (INTERESTS + SET_COUNT * size_of::<InterestList>()).div_ceil(2 << 20) * (2 << 20);
    /// Length of the whole region.
    pub const END: usize = ARENA + ARENA_LEN as usize;
}

const _: () = {
    assert!(size_of::<Call>() == 64);
    assert!(size_of::<Slot>() == 512);
    // The slots of an engine are whole words of the summary.
    assert!(SLOT_COUNT.is_power_of_two() && SLOT_COUNT / ENGINE_COUNT.next_power_of_two() >= 64 * 64);
    assert!(SLOT_COUNT.is_multiple_of(64) && SET_COUNT.is_multiple_of(64) && CALL_COUNT.is_multiple_of(64));
    assert!(SET_WORDS <= 32, "sets_summary has one bit per word");
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_of_one_engine() {
        for engines in 1..=ENGINE_COUNT {
            for slot in (0..SLOT_COUNT).step_by(61) {
                let of: Vec<usize> =
                    (0..engines).filter(|&engine| slots_of(engine, engines).contains(&slot)).collect();
                assert!(of.len() <= 1, "slot {slot} of {engines}");
                if let [engine] = of[..] {
                    assert_eq!(engine_of(slot as u32, engines), engine);
                }
            }
            assert!((0..engines).all(|engine| slots_of(engine, engines).len() >= SLOT_COUNT / ENGINE_COUNT));
            assert!(engine_of(u32::MAX, engines) < ENGINE_COUNT, "whatever a program writes");
        }
    }
}
