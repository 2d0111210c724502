//! The socket's own queue: packets longer than a frame of the ring wait there whole, in the kernel's memory, while their
//! beginning stands in the ring (PACKET_COPY_THRESH, packet_mmap.rst), in the same order.
//!
//! ```text
//!   came ─► waiting ──copied──────────────────────► done        its bytes go straight to where they are stored
//!              │  └────a later one is copied──► aside ─► done    the queue gives them in order only
//!              └────its message is dropped──► unwanted ─► done
//! ```
//! So a segment of a stream is copied once between the kernel and the ring of its socket, and not at all if it is dropped.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::rc::Rc;

use libc::{iovec, msghdr};
use scoutline_ring::{Block, Pool, Span, Spans, StreamMemory, copy_spans};

use crate::packet::ring::Ring;
use crate::vnet::VNET_LEN;

/// Longest packet, with its vnet header, for which buffers to set it aside are kept, and how many.
const ASIDE_LEN: u32 = 66_048;
const ASIDE_LIMIT: u32 = 256;
/// What is skipped in front of what is copied, at most: headers.
const FRONT: usize = 256;
/// Spans that are copied to at once: of a ring that may wrap.
const MOST_SPANS: usize = 2;

/// See the head of this file.
pub(super) struct Queue {
    ring: Rc<Ring>,
    state: RefCell<State>,
    buffers: Pool,
    /// Bytes that wait in the kernel's memory.
    waiting: Cell<u64>,
    /// Bytes that were set aside since somebody asked.
    copied: Cell<u64>,
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
        Queue { ring, state: RefCell::default(), buffers, waiting: Cell::new(0), copied: Cell::new(0) }
    }

    /// The next packet of the queue has so many bytes; `start` of them, its headers, the caller has from the ring.
    pub(super) fn came(self: &Rc<Queue>, len: u32, start: u32) -> Late {
        let mut state = self.state.borrow_mut();
        let number = state.first + state.packets.len() as u64;
        state.packets.push_back(Packet { len, is: Is::Waiting });
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

    /// Has the packet's bytes from `skip` on copied to `to`, once. False: they are not to be had.
    fn copy(&self, number: u64, skip: usize, to: &[Span]) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(at) = state.place(number) else { return false };
        let got = if matches!(state.packets[at].is, Is::Waiting) && skip <= FRONT && to.len() <= MOST_SPANS {
            self.set_aside(&mut state, at);
            self.receive(&mut state, skip, to)
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
            self.receive(&mut state, 0, &[]);
        }
        state.forget_done();
    }

    /// Takes the packets in front of place `end` out of the kernel's queue.
    fn set_aside(&self, state: &mut State, end: usize) {
        while state.received < end {
            let Packet { len, is } = &state.packets[state.received];
            if matches!(is, Is::Unwanted) {
                self.receive(state, 0, &[]);
                continue;
            }
            let len = VNET_LEN + *len as usize;
            let kept = if len <= ASIDE_LEN as usize { self.buffers.take() } else { None };
            let mut block = kept.unwrap_or_else(|| Block::from_bytes(vec![0; len].into()));
            let to = Span { memory: NonNull::from(&mut block[..len]).cast(), len };
            let at = state.received;
            if self.receive_into(state, to, &[]) {
                state.packets[at].is = Is::Aside(block);
                self.copied.set(self.copied.get() + len as u64);
            }
        }
    }

    /// Takes the next packet out of the kernel's queue, its bytes from `skip` on to `to`. False: it is not what we thought.
    fn receive(&self, state: &mut State, skip: usize, to: &[Span]) -> bool {
        let mut front = [0u8; VNET_LEN + FRONT];
        let front =
            Span { memory: NonNull::from(&mut front[..VNET_LEN + skip]).cast(), len: VNET_LEN + skip };
        self.receive_into(state, front, to)
    }

    /// The same: its vnet header and what follows to `front`, then the rest to `to`.
    fn receive_into(&self, state: &mut State, front: Span, to: &[Span]) -> bool {
        let mut parts = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 1 + MOST_SPANS];
        let spans = std::iter::once(&front).chain(to);
        for (part, span) in parts.iter_mut().zip(spans) {
            *part = iovec { iov_base: span.memory.as_ptr().cast(), iov_len: span.len };
        }
        // SAFETY: zeros are a valid message.
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = 1 + to.len();
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: the spans are mapped, and nobody refers to them.
        let got = unsafe { libc::recvmsg(self.ring.socket().as_raw_fd(), &raw mut message, flags) };
        let packet = &mut state.packets[state.received];
        packet.is = Is::Done;
        self.waiting.set(self.waiting.get() - u64::from(packet.len));
        state.received += 1;
        usize::try_from(got) == Ok(VNET_LEN + packet.len as usize)
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
        self.queue.copy(self.number, self.skip(&range), to)
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.queue.leave(self.number);
    }
}
