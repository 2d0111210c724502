//! A socket, as program and engine share it: its fields by who writes them, and the bits in them.

use std::sync::atomic::{AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering};

use scoutline_ring::Cursors;

use super::{AtomicAddress, PROCESS_COUNT, SET_WORDS};

/// In [`Slot::held_from`]: calls say that more follows (MSG_MORE), not the socket (TCP_CORK). It binds until the peer
/// acknowledges something, as in Linux.
pub const HELD_BY_CALL: u64 = 1 << 63;
/// In [`Slot::held_from`]: the last call has said that more follows, whatever the socket does: what it wrote ends without
/// PSH, also where something else lets it go.
pub const HELD_UNFINISHED: u64 = 1 << 62;

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
    /// Something has happened that the engine has no part in: a send with MSG_ZEROCOPY is complete, a stand-in serves the
    /// socket from now on, or it was shut. Who waits for it is woken. Taken by the engine.
    pub const WAKE: u32 = 1 << 5;
    /// `shutdown` of a connection that opens: it ends without a word to the peer, and the socket may connect again. Taken
    /// by the engine, before it says DISCONNECTED; one that finds the connection open, or failed, does nothing.
    pub const DISCONNECT: u32 = 1 << 6;
    /// What a stream's engine takes.
    pub const ONCE: u32 = URGENT | WAKE | DISCONNECT;
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
    /// TCP_DEFER_ACCEPT in seconds; 0 off. Of datagram sockets: see [`Slot::port_range`].
    pub defer_accept_s: AtomicU32,

    // Lines 3 to 5: who waits.
    /// Non-zero words of `sets`, one bit each; set by shims, never cleared by them.
    pub sets_summary: AtomicU32,
    /// Extents ever pushed; written by shims after the extent, before `send_tail`.
    pub extents_tail: AtomicU32,
    /// Extents ever taken; written by the engine.
    pub extents_head: AtomicU32,
    /// Sends with MSG_ZEROCOPY ever done, see [`slot_request::WAKE`]. Written by shims.
    pub zero_copy_done: AtomicU32,
    /// The ring of extents: entry `n` stands at `n % EXTENT_COUNT`.
    pub extents: [Extent; EXTENT_COUNT],
    /// Poll sets that watch this socket. Written by shims.
    pub sets: [AtomicU64; SET_WORDS],

    // Line 6: addresses, written by the engine.
    /// Ours. While the socket has no port a shim writes what it shall be (IP_BIND_ADDRESS_NO_PORT).
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
    /// UDP_SEGMENT; 0: off. Of streams: see [`Slot::port_range`].
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

    /// IP_LOCAL_PORT_RANGE, as Linux has it: the lowest port that may be chosen | the highest << 16; 0: not said. Written by
    /// shims.
    #[inline]
    pub fn port_range(&self) -> &AtomicU32 {
        let is_datagram = self.kind.load(Ordering::Relaxed) == slot_kind::DATAGRAM;
        if is_datagram { &self.defer_accept_s } else { &self.segment }
    }

    /// Of a datagram socket: IPV6_MTU, the most in a fragment over IPv6; 0: not said. Written by shims.
    #[inline]
    pub fn most_in_packet(&self) -> &AtomicU32 {
        &self.asked_max_segment
    }

    /// Of a datagram socket: what the way to where a datagram was too long carries, and where that was, for who has asked
    /// (IPV6_RECVPATHMTU); 0: nothing is to be told. Written by shims.
    #[inline]
    pub fn path_mtu_to_tell(&self) -> (&AtomicU32, [&AtomicU64; 2]) {
        (&self.asked_user_timeout_ms, [&self.urgent_mark, &self.urgent_to])
    }

    /// Of a datagram socket: when the last datagram came that was read, CLOCK_REALTIME in nanoseconds (SIOCGSTAMP); 0: none
    /// was, 1: nobody had asked for that. Written by shims.
    #[inline]
    pub fn last_read(&self) -> &AtomicU64 {
        &self.urgent_taken
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
    /// IPV6_RECVPATHMTU.
    pub const PATH_MTU6: u32 = 1 << 19;
}
