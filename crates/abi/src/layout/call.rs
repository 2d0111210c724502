//! What programs ask of the engine: calls that want an answer, and what is in their arguments.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

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
    /// Dissolve a datagram socket's association (connect to AF_UNSPEC): argument bits of [`super::disconnect`].
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
    /// Result: its slot, held by the caller, or what was taken before | `CAME_BEFORE`, under way to it; EAGAIN: a thread is copying from or to it.
    pub const TAKE: u32 = 18;
    /// Whether a process is on paths: argument its id. Result: 0 or 1.
    pub const IS_ON_PATHS: u32 = 19;
    /// Change what groups a datagram socket is in. Arguments: the group and the source (both words of each, the first
    /// first); `more`: [`super::membership`] | a number of the caller among its process's << 8 (24 bits, for filters) |
    /// Linux's number of the interface << 32.
    pub const MEMBERSHIP: u32 = 17;
    /// A stream that begins again has the port of the one that it was: argument its slot. EINVAL: that holds none, or
    /// listens.
    pub const TAKE_PORT: u32 = 20;
}

/// What a datagram socket gives up with its peer: what its program has not chosen.
pub mod disconnect {
    /// The port.
    pub const PORT: u64 = 1 << 0;
    /// The address.
    pub const ADDRESS: u64 = 1 << 1;
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
    /// SO_RCVBUF of a connection, or a socket that listens, in bytes: so much may wait to be read.
    pub const RECEIVE_BUFFER: u64 = 50;
    /// SO_INCOMING_CPU of a socket that has no connection: a core, plus one; 0: any.
    pub const INCOMING_CPU: u64 = 51;

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
