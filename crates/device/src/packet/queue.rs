//! The socket's own queue: packets longer than a frame of the ring wait there whole, in the kernel's memory, while their
//! beginning stands in the ring (PACKET_COPY_THRESH, packet_mmap.rst), in the same order.
//!
//! ```text
//!   came ─► waiting ──copied──────────────────────► done        its bytes go straight to where they are stored
//!              │  └────a later one is copied──► aside ─► done    the queue gives them in order only
//!              └────its message is dropped──► unwanted ─► done
//! ```
//! So a segment of a stream is copied once between the kernel and the ring of its socket, and not at all if it is dropped.
//!
//! That both are in one order is all that says which packet of the queue belongs to which frame. So each is looked at when
//! it comes out, and one that is not as its frame said is thrown away until the right one comes: were the two ever apart,
//! some packets would be lost, and no stream would get another's bytes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::rc::Rc;

use libc::{iovec, msghdr};
use scoutline_ring::{Block, Pool, Span, Spans, StreamMemory, copy_spans};

use crate::packet::ring::Ring;
use crate::software;
use crate::vnet::VNET_LEN;

/// Longest packet, with its vnet header, for which buffers to set it aside are kept, and how many.
const ASIDE_LEN: u32 = 66_048;
const ASIDE_LIMIT: u32 = 256;
/// What is skipped in front of what is copied, at most: headers.
pub(super) const FRONT: usize = 256;
/// Spans that are copied to at once: of a ring that may wrap.
const MOST_SPANS: usize = 2;
/// How often the kernel is asked for one packet: errors of the socket come first, and what is not the one.
const MOST_TRIES: usize = 64;

/// See the head of this file.
pub(super) struct Queue {
    ring: Rc<Ring>,
    state: RefCell<State>,
    buffers: Pool,
    /// Bytes that wait in the kernel's memory.
    waiting: Cell<u64>,
    /// Bytes that were set aside since somebody asked.
    copied: Cell<u64>,
    /// What the socket reported when a packet was asked for.
    error: Cell<Option<i32>>,
}

#[derive(Default)]
struct State {
    /// In the order of the queue; done ones only behind others.
    packets: VecDeque<Packet>,
    /// The number of the first of them.
    first: u64,
    /// So many of them, at the front, are not in the kernel's queue any more.
    received: usize,
}

struct Packet {
    len: u32,
    is: Is,
    /// So many bytes at its beginning have this sum.
    start: u32,
    sum: u64,
}

enum Is {
    Waiting,
    Unwanted,
    Aside(Block),
    Done,
}

impl Queue {
    pub(super) fn new(ring: Rc<Ring>) -> Queue {
        let buffers = Pool::new(ASIDE_LEN, ASIDE_LIMIT);
        let (waiting, copied, error) = Default::default();
        Queue { ring, state: RefCell::default(), buffers, waiting, copied, error }
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
        state.packets.push_back(Packet { len, is: Is::Waiting, start, sum });
        self.waiting.set(self.waiting.get() + u64::from(len));
        Late { queue: self.clone(), number, start }
    }

    pub(super) fn waiting(&self) -> u64 {
        self.waiting.get()
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
        let Some(at) = state.place(number) else { return false };
        let got = if matches!(state.packets[at].is, Is::Waiting) && skip <= FRONT && to.len() <= MOST_SPANS {
            self.set_aside(&mut state, at);
            // SAFETY: the caller vouches for `to`.
            unsafe { self.receive(&mut state, skip, to) }
        } else {
            // SAFETY: the memory is ours until the packet is left, and the caller vouches for `to`.
            self.hold(&mut state, at, skip).is_some_and(|from| unsafe { copy_spans(&[from], to) })
        };
        state.forget_done();
        got
    }

    /// The memory of the packet at a place from `skip` on, set aside; it stays until the packet is [left](Queue::leave).
    fn hold(&self, state: &mut State, at: usize, skip: usize) -> Option<Span> {
        if matches!(state.packets[at].is, Is::Waiting) {
            self.set_aside(state, at + 1);
        }
        let Is::Aside(block) = &state.packets[at].is else { return None };
        let rest = block.get(VNET_LEN + skip..)?;
        Some(Span { memory: NonNull::from(rest).cast(), len: rest.len() })
    }

    /// Nobody wants the packet any more.
    fn leave(&self, number: u64) {
        let mut state = self.state.borrow_mut();
        let Some(at) = state.place(number) else { return };
        let packet = &mut state.packets[at];
        packet.is = if matches!(packet.is, Is::Waiting) { Is::Unwanted } else { Is::Done };
        // Their memory is the kernel's.
        while let Some(Packet { is: Is::Unwanted, .. }) = state.packets.get(state.received) {
            self.throw_away(&mut state);
        }
        state.forget_done();
    }

    /// Takes the packets in front of place `end` out of the kernel's queue.
    fn set_aside(&self, state: &mut State, end: usize) {
        while state.received < end {
            let Packet { len, is, .. } = &state.packets[state.received];
            if matches!(is, Is::Unwanted) {
                self.throw_away(state);
                continue;
            }
            let len = VNET_LEN + *len as usize;
            let kept = if len <= ASIDE_LEN as usize { self.buffers.take() } else { None };
            let mut block = kept.unwrap_or_else(|| Block::from_bytes(vec![0; len].into()));
            let at = state.received;
            // SAFETY: it goes nowhere else.
            if unsafe { self.receive_into(state, &mut block[..len], &[]) } {
                state.packets[at].is = Is::Aside(block);
                self.copied.set(self.copied.get() + len as u64);
            }
        }
    }

    /// Takes the next packet out of the kernel's queue, which nobody wants.
    fn throw_away(&self, state: &mut State) {
        let start = state.packets[state.received].start as usize;
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
        let packet = &mut state.packets[state.received];
        packet.is = Is::Done;
        self.waiting.set(self.waiting.get() - u64::from(packet.len));
        state.received += 1;
        let (len, headers) = (VNET_LEN + packet.len as usize, VNET_LEN..VNET_LEN + packet.start as usize);
        for _ in 0..MOST_TRIES {
            let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
            // SAFETY: `first` is ours and the caller vouches for `to`: the spans are mapped, and nobody refers to them.
            let got = unsafe { libc::recvmsg(self.ring.socket().as_raw_fd(), &raw mut message, flags) };
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

impl State {
    fn place(&self, number: u64) -> Option<usize> {
        let at = number.checked_sub(self.first)? as usize;
        (at < self.packets.len()).then_some(at)
    }

    fn forget_done(&mut self) {
        while matches!(self.packets.front(), Some(Packet { is: Is::Done, .. })) {
            self.packets.pop_front();
            self.first += 1;
            self.received -= 1;
        }
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
        let place = state.place(self.number);
        let held = place.and_then(|at| self.queue.hold(&mut state, at, self.skip(&range)));
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
