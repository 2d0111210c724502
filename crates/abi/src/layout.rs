//! The layout of a region.
//!
//! ```text
//! 0          Header           engine state, addresses served, dirty and call bitmaps
//! PROCESSES  ProcessRecord ×  the processes of the program
//! HOLDS      bitmap ×         which sockets each of them holds
//! SETS       PollSet ×        who waits, and what became ready for them
//! CALLS      Call ×           requests to the engine that want an answer
//! SLOTS      Slot ×           one per socket
//! INTERESTS  InterestList ×   what an epoll has of them, one per poll set ([`crate::interest`])
//! ARENA      rings            offsets in slots count from here
//! ```
//! There is room for far more of each than a program uses: who looks through all slots, or at a bitmap of them, ends where
//! none has been handed out yet ([`Header::slots_used`]), and so what lies behind has no memory.
//!
//! Everything starts as zeros. All fields are atomics because two address spaces share them.

use std::mem::{offset_of, size_of};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use scoutline_base::Address;
use scoutline_ring::{bitmap_words, summary_words};

mod call;
mod slot;

pub use call::{CLASS_NAME_LEN, Call, call_op, call_state, disconnect, fast_open, membership, slot_option};
pub use slot::{
    ENGINE_HOLDS, EXTENT_COUNT, Extent, HELD_BY_CALL, HELD_UNFINISHED, HOLDER_PROCESS, MAX_AHEAD, MIN_EXTENT,
    Slot, UnsentBound, datagram_flag, slot_flag, slot_kind, slot_request, slot_state,
};

/// Written by the daemon into [`Header::magic`] last of all.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SCOUTLN1");
/// Sockets per region.
pub const SLOT_COUNT: usize = 65_536;
/// Engines that serve a region, at most: each has slots, and words of their summary, of its own.
pub const ENGINE_COUNT: usize = 4;
/// Processes per region.
pub const PROCESS_COUNT: usize = 512;
/// Poll sets per region: one per epoll descriptor and one per thread that blocks.
pub const SET_COUNT: usize = 1_024;
/// Calls in flight per region.
pub const CALL_COUNT: usize = 256;
/// Addresses served, at most.
pub const SERVED_COUNT: usize = 64;
/// Bytes of arena: address space only; pages exist once touched.
pub const ARENA_LEN: u64 = 8 << 30;

const SLOT_WORDS: usize = bitmap_words(SLOT_COUNT);
/// Words of a summary of slots.
pub(crate) const SLOT_SUMMARY: usize = summary_words(SLOT_COUNT);
/// Words of [`Slot::sets`].
pub const SET_WORDS: usize = bitmap_words(SET_COUNT);

/// What the engine is doing: a shim rings the doorbell only when it must.
pub mod engine_state {
    /// It looks at the bitmaps by itself, soon.
    pub const POLLING: u32 = 0;
    /// It sleeps: mark, then ring.
    pub const SLEEPING: u32 = 1;
    /// The Linux thread runs: it looks again when Linux is idle or its quantum is over. Ring for urgent slots; for others once,
    /// from [a moment](super::EngineWord::leave_ns) on. A program that runs on the engine's core and has nothing to do says
    /// SLEEPING in its place, and rings, if that [is taken](super::EngineWord::takes_back).
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
    /// So many of each engine's slots, the first ones, have been handed out at some time: nobody else looks further. Written by
    /// the engine, which itself goes by a number of its own; apart from [`EngineWord`], which it writes often.
    pub slots_used: [AtomicU32; ENGINE_COUNT],
    /// How often shims have refused io_uring. Written by shims, seldom.
    pub rings_refused: AtomicU32,
    /// How often they have let a program have a ring.
    pub rings_left: AtomicU32,
    /// How many sockets have become the kernel's, or stayed so, or have a stand-in, because a ring's operation named them.
    pub ring_sockets: AtomicU32,
    /// Written by each engine: see [`engine_state`]. The shim may change SLEEPING to POLLING, and AWAY to SLEEPING, when it
    /// rings.
    pub engines: [EngineWord; ENGINE_COUNT],
    /// Marked by shims: slots with new data, freed space or requests.
    pub dirty_summary: Line<{ SLOT_SUMMARY }>,
    /// Marked by shims: calls to be answered by each engine.
    pub calls_pending: [Line<{ CALL_COUNT / 64 }>; ENGINE_COUNT],
    /// Calls in use: a shim takes a call by setting its bit.
    pub calls_taken: Line<{ CALL_COUNT / 64 }>,
    /// How often shims have served a system call that went past the C library. Written by shims.
    pub calls_dispatched: Line<1>,
    /// See `dirty_summary`. Last, for a small program uses no more than the beginning of it.
    pub dirty_words: [AtomicU64; SLOT_WORDS],
}

/// The engine's state on a cache line of its own.
#[repr(C, align(64))]
pub struct EngineWord {
    /// See [`engine_state`].
    pub state: AtomicU32,
    /// The core the engine runs on, plus one; 0: not pinned. A shim on the same core never spins.
    pub cpu_plus_one: AtomicU32,
    /// While it is away: 1 if a program on its core may say that it has nothing to do ([`engine_state::AWAY`]).
    pub takes_back: AtomicU32,
    /// While it is away: from when on (CLOCK_MONOTONIC, in nanoseconds) it takes its core back for a mark; 0: not in this
    /// turn. Who has marked something, and rings for it then or at the end of a piece of work, changes it to 0.
    pub leave_ns: AtomicU64,
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
    /// How many of its threads close, just now, what another process may make a socket of paths.
    pub closing: AtomicU32,
    /// Spare.
    pub spare: AtomicU32,
}

/// Slots that a process holds, one bit each. Written by its process; by its parent before a fork; read by the daemon when
/// the process is gone. Apart from the records, which are looked through for one process.
pub type Holds = [AtomicU64; SLOT_WORDS];

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
    /// The core on which the thread ran that fell asleep on it last, plus one; 0: nobody has said. Written by shims where
    /// there are several engines, before they count themselves among `sleepers`. Only a hint.
    pub cpu_plus_one: AtomicU32,
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

/// Byte offset of each part.
pub mod offset {
    use super::{
        ARENA_LEN, CALL_COUNT, Call, Header, Holds, PROCESS_COUNT, PollSet, ProcessRecord, SET_COUNT,
        SLOT_COUNT, Slot, size_of,
    };
    use crate::interest::InterestList;

    const fn page(n: usize) -> usize {
        n.div_ceil(4096) * 4096
    }

    /// Process records.
    pub const PROCESSES: usize = page(size_of::<Header>());
    /// What the processes hold.
    pub const HOLDS: usize = PROCESSES + page(PROCESS_COUNT * size_of::<ProcessRecord>());
    /// Poll sets.
    pub const SETS: usize = HOLDS + page(PROCESS_COUNT * size_of::<Holds>());
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
    assert!(offset_of!(PollSet, cpu_plus_one) < 64, "who falls asleep writes to one line");
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
