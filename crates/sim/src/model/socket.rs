//! One socket of a model program: the shim's rules of readiness, errors and ends, without its locks and sleeping
//! (`scoutline-preload`: slot.rs, stream.rs, datagram.rs).

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use scoutline_abi::Region;
use scoutline_abi::layout::{
    HELD_BY_CALL, HELD_UNFINISHED, Slot, UnsentBound, slot_kind, slot_request as ask, slot_state as is,
};

/// Who says that more follows what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// The socket: TCP_CORK.
    Corked,
    /// The call: MSG_MORE.
    ByCall,
    /// Either.
    Both,
}

/// A slot with its region.
#[derive(Clone, Copy)]
pub struct Socket<'a> {
    /// Where it lies.
    pub region: &'a Region,
    /// Its number there.
    pub index: u32,
    /// What it shares with the engine.
    pub slot: &'a Slot,
}

impl<'a> Socket<'a> {
    /// The socket at a slot.
    ///
    /// # Panics
    /// When a region has no such slot.
    pub fn at(region: &'a Region, index: u32) -> Socket<'a> {
        Socket { region, index, slot: region.slot(index).expect("a slot that the engine gave") }
    }

    /// Bits of [`is`].
    pub fn state(self) -> u32 {
        self.slot.state.load(Acquire)
    }

    /// Bits of [`ask`].
    pub fn requests(self) -> u32 {
        self.slot.requests.load(Acquire)
    }

    /// TCP, not UDP.
    pub fn is_stream(self) -> bool {
        self.slot.kind.load(Relaxed) != slot_kind::DATAGRAM
    }

    /// Bytes, or connections of a listening socket, that wait.
    pub fn received(self) -> u64 {
        self.slot.incoming().held()
    }

    /// Room in the send ring.
    pub fn sendable(self) -> u64 {
        let free = self.send_limit().saturating_sub(self.slot.outgoing().held());
        let free =
            self.bound().map_or(free, |bound| free.min(bound.most.saturating_sub(self.slot.unsent().into())));
        self.room_with_syn().map_or(free, |room| free.min(room))
    }

    /// What bounds what is written and not sent (TCP_NOTSENT_LOWAT).
    fn bound(self) -> Option<UnsentBound> {
        self.slot.unsent_bound().filter(|_| self.is_stream())
    }

    /// How much of the send ring may be filled (SO_SNDBUF).
    fn send_limit(self) -> u64 {
        let size = self.slot.send_size.load(Relaxed);
        u64::from(if self.is_stream() { self.slot.send_limit(size) } else { size })
    }

    /// Its SYN waits for the first that is written (RFC 7413): how much of that may go with it.
    pub fn room_with_syn(self) -> Option<u64> {
        let waits = self.state() & (is::FAST_OPEN | is::CONNECTED | is::FAILED) == is::FAST_OPEN;
        let is_first = self.slot.send_tail.load(Relaxed) == 0;
        (waits && is_first).then(|| u64::from(self.slot.mtu.load(Relaxed)))
    }

    /// Room enough to be called writable: a third.
    pub fn roomy(self) -> bool {
        let size = self.send_limit();
        let held = self.slot.outgoing().held();
        size > 0
            && match self.bound() {
                None => self.sendable() >= size / 3,
                Some(bound) => {
                    2 * u64::from(self.slot.unsent()) < u64::from(bound.low_water) && held <= size - size / 3
                }
            }
    }

    /// SO_ERROR: the pending error, or what a router has said of a connection that goes on.
    pub fn take_any_error(self) -> i32 {
        match self.take_error() {
            0 => self.slot.soft_error.swap(0, AcqRel),
            errno => errno,
        }
    }

    /// The pending error.
    pub fn take_error(self) -> i32 {
        self.slot.error.swap(0, AcqRel)
    }

    /// Has the engine look at it.
    pub fn tell(self) {
        self.region.dirty().set(self.index as usize);
    }

    /// Asks the engine for something.
    pub fn request(self, bits: u32) {
        self.slot.requests.fetch_or(bits, SeqCst);
        self.tell();
    }

    /// Nothing more will come, or nothing can.
    pub fn receive_over(self) -> bool {
        let state = self.state();
        state & (is::PEER_FINISHED | is::FAILED) != 0
            || state & (is::CONNECTING | is::CONNECTED) == 0
            || self.slot.error.load(Acquire) != 0
            || self.requests() & ask::SHUTDOWN_READ != 0
    }

    /// What a read gives when the ring is empty and nothing will come; the error, or the end of the stream.
    pub fn receive_end(self) -> Result<(), i32> {
        let state = self.state();
        if state & is::PEER_FINISHED != 0 {
            return Ok(());
        }
        if state & is::FAILED != 0 {
            return match self.take_error() {
                0 if state & is::CONNECTED == 0 => Err(libc::ENOTCONN),
                0 => Ok(()),
                errno => Err(errno),
            };
        }
        if state & is::LISTENING != 0 || state & is::CONNECTED == 0 {
            return Err(libc::ENOTCONN);
        }
        match self.take_error() {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Nothing can be sent any more.
    pub fn send_over(self) -> bool {
        let state = self.state();
        state & is::FAILED != 0
            || state & (is::CONNECTING | is::CONNECTED) == 0
            || self.slot.error.load(Acquire) != 0
            || self.requests() & ask::SHUTDOWN != 0
    }

    /// The error of a send that cannot be.
    pub fn send_end(self) -> i32 {
        let errno = self.take_error();
        if errno == 0 { libc::EPIPE } else { errno }
    }

    /// The handshake is under way.
    pub fn is_connecting(self) -> bool {
        let state = self.state();
        state & is::CONNECTING != 0
            && state & (is::CONNECTED | is::FAILED) == 0
            && self.room_with_syn().is_none()
    }

    /// How far the urgent byte is from what is read next, unless reading has passed it.
    pub fn urgent_distance(self, inline: bool) -> Option<u64> {
        let head = self.slot.receive_head.load(Relaxed);
        self.slot.urgent_mark.load(Acquire).checked_sub(1)?.checked_sub(head + self.overtaken(inline))
    }

    /// Bytes that are not given any more: they were urgent, and others have overtaken them.
    fn overtaken(self, inline: bool) -> u64 {
        let head = self.slot.receive_head.load(Relaxed);
        if inline { 0 } else { self.slot.urgent_passed().load(Acquire).saturating_sub(head) }
    }

    /// Bytes that one call can read, and whether that ends before an urgent one; behind an urgent one that comes first,
    /// unless it is `inline`.
    pub fn readable(self, inline: bool) -> (u64, bool) {
        let held = self.received().saturating_sub(self.overtaken(inline));
        match self.urgent_distance(inline) {
            Some(0) if !inline => (held.saturating_sub(1), false),
            Some(distance @ 1..) if distance <= held => (distance, true),
            _ => (held, false),
        }
    }

    /// The next byte is urgent, there, and not to be read in its place: it is passed.
    pub fn pass_urgent(self, inline: bool) {
        let overtaken = self.overtaken(inline).min(self.received());
        if overtaken > 0 {
            self.consume(self.slot.receive_head.load(Relaxed), self.received(), overtaken);
        }
        if self.urgent_distance(inline) == Some(0) && !inline && self.received() > 0 {
            let head = self.slot.receive_head.load(Relaxed);
            self.consume(head, self.received(), 1);
        }
    }

    /// `recv` with MSG_OOB.
    pub fn take_urgent(self, inline: bool, look_only: bool) -> Result<Vec<u8>, i32> {
        let mark = self.slot.urgent_mark.load(Acquire);
        let taken = self.slot.urgent_taken.load(Relaxed) == mark;
        let distance = self.urgent_distance(inline).filter(|_| !taken && !inline).ok_or(libc::EINVAL)?;
        let distance = distance + self.overtaken(inline);
        if distance >= self.received() {
            return if self.receive_over() { Ok(Vec::new()) } else { Err(libc::EAGAIN) };
        }
        if !look_only {
            self.slot.urgent_taken.store(mark, Relaxed);
        }
        Ok(self.copy_out(self.slot.receive_head.load(Relaxed) + distance, 1))
    }

    /// What is put next, up to `len` bytes of it, is urgent.
    pub fn announce_urgent(self, len: usize) {
        let len = self.sendable().min(len as u64);
        self.slot.urgent_to.store(self.slot.send_tail.load(Relaxed) + len, Release);
        self.slot.requests.fetch_or(ask::URGENT, AcqRel);
    }

    /// Up to `limit` bytes that are there; taken from the ring unless only looked at.
    pub fn take(self, limit: usize, look_only: bool) -> Vec<u8> {
        let head = self.slot.receive_head.load(Relaxed);
        let held = self.received();
        let bytes = self.copy_out(head, held.min(limit as u64) as usize);
        if !look_only {
            self.consume(head, held, bytes.len() as u64);
        }
        bytes
    }

    /// Bytes of the receive ring.
    pub fn copy_out(self, from: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        if len > 0 {
            let (offset, size) =
                (self.slot.receive_offset.load(Relaxed), self.slot.receive_size.load(Relaxed));
            let spans = self.region.ring_spans(offset, size, from, len).expect("a ring of the engine's");
            let (first, second) = bytes.split_at_mut(spans[0].len);
            // SAFETY: the spans lie in the mapping that `region` keeps, and have the lengths of the halves.
            unsafe {
                spans[0].copy_to(first);
                spans[1].copy_to(second);
            }
        }
        bytes
    }

    /// Moves the head on, and tells the engine when the window is worth an update (the shim's rule).
    pub fn consume(self, head: u64, held: u64, len: u64) {
        let size = u64::from(self.slot.receive_size.load(Relaxed));
        self.slot.incoming().free(head + len);
        let quarter = (size / 4).max(1);
        if held >= size / 2 || head / quarter != (head + len) / quarter {
            self.tell();
        }
    }

    /// Puts what fits into the send ring. More may follow: then what fills no segment is held back.
    pub fn put(self, bytes: &[u8], more: Option<More>) -> usize {
        let tail = self.slot.send_tail.load(Relaxed);
        let size = self.slot.send_size.load(Relaxed);
        let len = self.sendable().min(bytes.len() as u64) as usize;
        if len == 0 {
            return 0;
        }
        let offset = self.slot.send_offset.load(Relaxed);
        let spans = self.region.ring_spans(offset, size, tail, len).expect("a ring of the engine's");
        let (first, second) = bytes[..len].split_at(spans[0].len);
        // SAFETY: as in `copy_out`; nobody reads these bytes before the tail moves.
        unsafe {
            std::ptr::copy_nonoverlapping(first.as_ptr(), spans[0].memory.as_ptr(), first.len());
            std::ptr::copy_nonoverlapping(second.as_ptr(), spans[1].memory.as_ptr(), second.len());
        }
        let held = self.slot.held_from.load(Relaxed);
        if let Some(more) = more {
            let from = if held == 0 { tail + 1 } else { held & !(HELD_BY_CALL | HELD_UNFINISHED) };
            let bits = match more {
                More::Corked => 0,
                More::ByCall => HELD_BY_CALL | HELD_UNFINISHED,
                More::Both => HELD_UNFINISHED,
            };
            self.slot.held_from.store(from | bits, Release);
        }
        self.slot.outgoing().publish(tail + len as u64);
        if held != 0 && more.is_none() {
            self.slot.held_from.store(0, Release);
        }
        len
    }

    /// What `poll` says.
    pub fn readiness(self, low_water: u32, inline: bool) -> i16 {
        use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP};
        let state = self.state();
        let mut ready = if self.slot.error.load(Acquire) == 0 { 0 } else { POLLERR };
        let requests = self.requests();
        if !self.is_stream() {
            ready |= if self.received() > 0 || requests & ask::SHUTDOWN_READ != 0 { POLLIN } else { 0 };
            return ready | if self.roomy() { POLLOUT } else { 0 };
        }
        if state & is::LISTENING != 0 {
            return ready | if self.received() > 0 { POLLIN } else { 0 };
        }
        if state & is::FAILED != 0 {
            return ready | POLLIN | POLLOUT | POLLRDHUP | POLLHUP;
        }
        if state & is::CONNECTED == 0 {
            if self.room_with_syn().is_some() {
                return ready | POLLOUT;
            }
            return if state & is::CONNECTING == 0 { ready | POLLOUT | POLLHUP } else { ready };
        }
        if state & is::PEER_FINISHED != 0 || requests & ask::SHUTDOWN_READ != 0 {
            ready |= POLLIN | POLLRDHUP | if requests & ask::SHUTDOWN != 0 { POLLHUP } else { 0 };
        } else if self.readable(inline).0 >= u64::from(low_water.max(1)) {
            ready |= POLLIN;
        }
        let mark = self.slot.urgent_mark.load(Acquire);
        let urgent_is_there = self
            .urgent_distance(inline)
            .is_some_and(|distance| distance + self.overtaken(inline) < self.received());
        if urgent_is_there && self.slot.urgent_taken.load(Relaxed) != mark {
            ready |= libc::POLLPRI;
        }
        if requests & ask::SHUTDOWN != 0 || self.roomy() {
            ready |= POLLOUT;
        }
        ready
    }
}
