//! The socket's own queue: packets longer than a frame of the ring wait there whole, in the kernel's memory, while their
//! beginning stands in the ring (PACKET_COPY_THRESH, packet_mmap.rst), in the same order.
//!
//! ```text
//!   came ─► waiting ──copied──────────────────► gone        its bytes go straight to where they are stored
//!              │  └────a later one is copied──► aside        the queue gives them in order only
//!              └────its message is dropped──► unwanted ─► gone
//! ```
//! So a segment of a stream is copied once between the kernel and the ring of its socket, and not at all if it is dropped.
//!
//! That both are in one order is all that says which packet of the queue belongs to which frame. So each is looked at when
//! it comes out, and one that is not as its frame said is thrown away until the right one comes: were the two ever apart,
//! some packets would be lost, and no stream would get another's bytes.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;

use libc::{iovec, msghdr};
use scoutline_ring::{Block, Pool, Span, Spans, StreamMemory, copy_spans};

use crate::packet::ring::QUEUE_BYTES;
use crate::software;
use crate::vnet::VNET_LEN;

/// Longest packet, with its vnet header, for which buffers to set it aside are kept, and how many.
const ASIDE_LEN: u32 = 66_048;
const ASIDE_LIMIT: u32 = 256;
/// What is skipped in front of what is copied, at most: headers.
pub(super) const FRONT: usize = 256;
/// Spans that are copied to at once: of a ring that may wrap.
const MOST_SPANS: usize = 2;
/// When so many bytes wait, what is dropped makes room at once.
const MUCH: u64 = QUEUE_BYTES as u64 / 2;
/// How often the kernel is asked for one packet: errors of the socket come first, and what is not the one.
const MOST_TRIES: usize = 64;

/// See the head of this file.
pub(super) struct Queue {
    socket: Rc<OwnedFd>,
    state: RefCell<State>,
    buffers: Pool,
    /// Bytes that wait in the kernel's memory.
    waiting: Cell<u64>,
    /// The kernel had no room for a packet. It counts each for more than its bytes, so only it can tell.
    is_full: Cell<bool>,
    /// Bytes that were set aside since somebody asked.
    copied: Cell<u64>,
    /// What the socket reported when a packet was asked for.
    error: Cell<Option<i32>>,
}

#[derive(Default)]
struct State {
    /// What is in the kernel's queue, in its order.
    packets: VecDeque<Packet>,
    /// The number of the first of them.
    first: u64,
    /// Those that were taken out before their turn, by number, with their vnet headers.
    aside: HashMap<u64, Block>,
}

struct Packet {
    len: u32,
    /// So many bytes at its beginning have this sum.
    start: u32,
    sum: u64,
    is_wanted: bool,
}

impl Queue {
    pub(super) fn new(socket: Rc<OwnedFd>) -> Queue {
        let buffers = Pool::new(ASIDE_LEN, ASIDE_LIMIT);
        let (waiting, is_full, copied, error) = Default::default();
        Queue { socket, state: RefCell::default(), buffers, waiting, is_full, copied, error }
    }

    /// The next packet of the queue has so many bytes; `start`, its headers, the caller has from the ring.
    ///
    /// # Panics
    /// When those are more than [`FRONT`].
    pub(super) fn came(self: &Rc<Queue>, len: u32, start: &[u8]) -> Late {
        assert!(start.len() <= FRONT, "headers");
        let mut state = self.state.borrow_mut();
        let number = state.first + state.packets.len() as u64;
        let (sum, start) = (software::sum(start), start.len() as u32);
        state.packets.push_back(Packet { len, start, sum, is_wanted: true });
        self.waiting.set(self.waiting.get() + u64::from(len));
        self.is_full.set(false);
        Late { queue: self.clone(), number, start }
    }

    /// A packet came that should have been in the queue, and is not.
    pub(super) fn on_refused(&self) {
        self.is_full.set(true);
    }

    /// True when what waits should go.
    pub(super) fn is_pressed(&self) -> bool {
        let waiting = self.waiting.get();
        waiting > MUCH || waiting > 0 && self.is_full.get()
    }

    /// Bytes that were set aside since the last call.
    pub(super) fn take_copied(&self) -> u64 {
        self.copied.take()
    }

    /// What the socket reported since the last call.
    pub(super) fn take_error(&self) -> Option<i32> {
        self.error.take()
    }

    /// Has the packet's bytes from `skip` on copied to `to`, once. False: they are not to be had.
    ///
    /// # Safety
    /// `to` is mapped, and nobody refers to it.
    unsafe fn copy(&self, number: u64, skip: usize, to: &[Span]) -> bool {
        let mut state = self.state.borrow_mut();
        if number >= state.first && skip <= FRONT && to.len() <= MOST_SPANS {
            self.set_aside(&mut state, number);
            // SAFETY: the caller vouches for `to`.
            return unsafe { self.receive(&mut state, skip, to) };
        }
        // SAFETY: the memory is ours until the packet is left, and the caller vouches for `to`.
        self.hold(&mut state, number, skip).is_some_and(|from| unsafe { copy_spans(&[from], to) })
    }

    /// The memory of a packet from `skip` on, set aside; it stays until the packet is [left](Queue::leave).
    fn hold(&self, state: &mut State, number: u64, skip: usize) -> Option<Span> {
        self.set_aside(state, number + 1);
        let rest = state.aside.get(&number)?.get(VNET_LEN + skip..)?;
        Some(Span { memory: NonNull::from(rest).cast(), len: rest.len() })
    }

    /// Nobody wants the packet any more.
    fn leave(&self, number: u64) {
        let mut state = self.state.borrow_mut();
        let Some(at) = number.checked_sub(state.first) else {
            state.aside.remove(&number);
            return;
        };
        let packet = &mut state.packets[at as usize];
        packet.is_wanted = false;
        // Its memory is the kernel's, for as long as anything in front of it is there. Under pressure that goes, too, but no
        // more than twice as much as it is long: a path whose queue is full drops the last of many.
        if self.is_pressed() {
            let enough = self.waiting.get().saturating_sub(2 * u64::from(packet.len));
            while state.first < number && self.waiting.get() > enough {
                let next = state.first + 1;
                self.set_aside(&mut state, next);
            }
            self.is_full.set(false);
        }
        while state.packets.front().is_some_and(|packet| !packet.is_wanted) {
            self.throw_away(&mut state);
        }
    }

    /// Takes the packets in front of this number out of the kernel's queue.
    fn set_aside(&self, state: &mut State, number: u64) {
        while state.first < number
            && let Some(packet) = state.packets.front()
        {
            if !packet.is_wanted {
                self.throw_away(state);
                continue;
            }
            let (number, len) = (state.first, VNET_LEN + packet.len as usize);
            let kept = if len <= ASIDE_LEN as usize { self.buffers.take() } else { None };
            let mut block = kept.unwrap_or_else(|| Block::from_bytes(vec![0; len].into()));
            // SAFETY: it goes nowhere else.
            if unsafe { self.receive_into(state, &mut block[..len], &[]) } {
                state.aside.insert(number, block);
                self.copied.set(self.copied.get() + len as u64);
            }
        }
    }

    /// Takes the next packet out of the kernel's queue, which nobody wants.
    fn throw_away(&self, state: &mut State) {
        let start = state.packets.front().map_or(0, |packet| packet.start as usize);
        // SAFETY: it goes nowhere.
        unsafe { self.receive(state, start, &[]) };
    }

    /// Takes the next packet out of the kernel's queue, its bytes from `skip` on, behind its headers, to `to`. False: it is
    /// lost.
    ///
    /// # Safety
    /// As for [`Queue::copy`].
    unsafe fn receive(&self, state: &mut State, skip: usize, to: &[Span]) -> bool {
        let mut front = [0u8; VNET_LEN + FRONT];
        // SAFETY: the caller vouches for `to`.
        unsafe { self.receive_into(state, &mut front[..VNET_LEN + skip], to) }
    }

    /// The same: its vnet header and what follows, its headers at least, to `front`, then the rest to `to`.
    ///
    /// # Safety
    /// As for [`Queue::copy`].
    unsafe fn receive_into(&self, state: &mut State, front: &mut [u8], to: &[Span]) -> bool {
        let mut parts = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 1 + MOST_SPANS];
        let first = Span { memory: NonNull::from(&mut *front).cast(), len: front.len() };
        let mut count = 0;
        for (part, span) in parts.iter_mut().zip(std::iter::once(&first).chain(to)) {
            *part = iovec { iov_base: span.memory.as_ptr().cast(), iov_len: span.len };
            count += 1;
        }
        // SAFETY: zeros are a valid message.
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = count;
        let Some(packet) = state.packets.pop_front() else { return false };
        state.first += 1;
        self.waiting.set(self.waiting.get() - u64::from(packet.len));
        let (len, headers) = (VNET_LEN + packet.len as usize, VNET_LEN..VNET_LEN + packet.start as usize);
        for _ in 0..MOST_TRIES {
            let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
            // SAFETY: `first` is ours and the caller vouches for `to`: the spans are mapped, and nobody refers to them.
            let got = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
            if got >= 0 {
                // SAFETY: as long as `front`, and the kernel is done with it.
                let front = unsafe { std::slice::from_raw_parts(first.memory.as_ptr(), first.len) };
                if got as usize == len && software::sum(&front[headers.clone()]) == packet.sum {
                    return true;
                }
                continue; // not this one, which comes behind it
            }
            match io::Error::last_os_error().raw_os_error() {
                // It was taken out and could not be copied; or there is none.
                Some(libc::EFAULT | libc::EINVAL | libc::EAGAIN) => return false,
                // What had happened to the socket (its interface went down) is told once, before any packet.
                error => self.error.set(error),
            }
        }
        false
    }
}

/// What a message has of a packet that waits: its bytes behind the headers, the first at position 0.
pub(super) struct Late {
    queue: Rc<Queue>,
    number: u64,
    start: u32,
}

impl Late {
    fn skip(&self, range: &Range<u64>) -> usize {
        self.start as usize + range.start as usize
    }
}

impl StreamMemory for Late {
    fn spans(&self, range: Range<u64>) -> Spans {
        let mut spans = Spans::default();
        let len = (range.end - range.start) as usize;
        let mut state = self.queue.state.borrow_mut();
        let held = self.queue.hold(&mut state, self.number, self.skip(&range));
        if let Some(span) = held.filter(|span| span.len >= len) {
            spans.push(Span { len, ..span });
        }
        spans
    }

    unsafe fn copy_to(&self, range: Range<u64>, to: &[Span]) -> bool {
        // SAFETY: the caller vouches for `to`.
        unsafe { self.queue.copy(self.number, self.skip(&range), to) }
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.queue.leave(self.number);
    }
}

#[cfg(test)]
mod tests;
