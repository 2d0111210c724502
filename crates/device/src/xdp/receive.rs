//! Receiving: whole packets are lent in the chunk that the kernel has put them into, long ones put together.
//!
//! Where the engine wants a bell, each queue has two receive rings over one fill ring: what is important goes to one of
//! its own (scoutline-bpf, `steer.rs`), is taken first, is not lost when the other is full, and its socket is the bell.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use scoutline_base::{DeviceId, Time};
use scoutline_path::{Burst, Checksum, Facts, Message, Segmentation, SegmentationKind};
use scoutline_ring::{Block, Pool, prefetch};

use crate::partner::{BUFFERS_READY, DeviceCounters};
use crate::software;
use crate::xdp::fill::Fill;
use crate::xdp::ring::Consumer;
use crate::xdp::socket;
use crate::xdp::umem::Umem;

/// Packets up to this length are copied out when many chunks are lent.
const SMALL_LEN: u32 = 2048;
/// What a burst plus all path queues may hold then.
const SMALL_LIMIT: u32 = 16_384;
/// A packet in several chunks: 64 KiB with its link header and tags.
const LARGE_LEN: u32 = 65_664;
const LARGE_LIMIT: u32 = 512;
/// Chunks that one packet can be in: MAX_SKB_FRAGS and its linear part.
const MAX_PARTS: u32 = 18;
/// So many packets ahead memory is asked for the headers.
const AHEAD: u32 = 8;
/// Ethernet header and a tag.
const LINK_LEN: u32 = 18;

/// A socket that packets come to.
pub(super) struct Inlet {
    pub(super) socket: OwnedFd,
    pub(super) ring: Consumer<libc::xdp_desc>,
}

/// One receive queue of the interface, as one engine has it.
pub(super) struct Queue {
    pub(super) inlet: Inlet,
    /// For what is important.
    pub(super) important: Option<Inlet>,
}

/// The receiving half.
pub(super) struct Receiver {
    umem: Rc<Umem>,
    fill: Arc<Fill>,
    queues: Vec<Queue>,
    /// Another engine was at the fill rings: what came back is still here.
    owes: bool,
    /// Queues whose fill rings want a system call.
    asleep: Vec<usize>,
    /// The queue that is looked at first.
    first: usize,
    small: Pool,
    large: Pool,
    trusted: bool,
    /// Largest network-layer packet: what is longer was put together on its way.
    mtu: u32,
}

impl Receiver {
    pub(super) fn new(
        umem: Rc<Umem>,
        fill: Arc<Fill>,
        queues: Vec<Queue>,
        trusted: bool,
        mtu: u32,
    ) -> Receiver {
        let (small, large) =
            (Pool::with_ready(SMALL_LEN, SMALL_LIMIT, BUFFERS_READY), Pool::new(LARGE_LEN, LARGE_LIMIT));
        let (owes, asleep) = (false, Vec::with_capacity(queues.len()));
        Receiver { umem, fill, queues, owes, asleep, first: 0, small, large, trusted, mtu }
    }

    /// The sockets of the queues, in order.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(|queue| queue.inlet.socket.as_fd())
    }

    /// Those for what is important.
    pub(super) fn important_sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().filter_map(|queue| Some(queue.important.as_ref()?.socket.as_fd()))
    }

    /// That of a queue.
    pub(super) fn socket(&self, queue: usize) -> &OwnedFd {
        &self.queues[queue].inlet.socket
    }

    #[inline]
    pub(super) fn has_input(&self) -> bool {
        let is_ready = |inlet: &Inlet| inlet.ring.is_ready();
        let is_due = |queue: &Queue| is_ready(&queue.inlet) || queue.important.as_ref().is_some_and(is_ready);
        // With nothing to receive into, no packet would wake who owes.
        self.owes || self.queues.iter().any(is_due)
    }

    /// True when so many chunks are lent that packets are copied, or few buffers are left to copy to.
    pub(super) fn pressed(&self) -> bool {
        let few = |pool: &Pool, limit: u32| pool.in_use() >= (limit - limit / 8) as usize;
        !self.umem.may_lend() || few(&self.small, SMALL_LIMIT) || few(&self.large, LARGE_LIMIT)
    }

    pub(super) fn pull(
        &mut self,
        burst: &mut Burst,
        limit: usize,
        now: Time,
        device: DeviceId,
        counters: &mut DeviceCounters,
    ) -> usize {
        let before = burst.len();
        for queue in 0..self.queues.len() {
            if self.queues[queue].important.is_some() {
                self.pull_from((queue, true), burst, before + limit, (now, device), counters);
            }
        }
        counters.rx_important += (burst.len() - before) as u64;
        // Each queue comes first in turn, or a full one would keep the others waiting.
        self.first = (self.first + 1) % self.queues.len();
        for turn in 0..self.queues.len() {
            let queue = (self.first + turn) % self.queues.len();
            self.pull_from((queue, false), burst, before + limit, (now, device), counters);
        }
        self.refill();
        burst.len() - before
    }

    /// Takes packets off one ring of a queue, the important or the other one, until the burst is so long.
    fn pull_from(
        &mut self,
        from: (usize, bool),
        burst: &mut Burst,
        until: usize,
        (now, device): (Time, DeviceId),
        counters: &mut DeviceCounters,
    ) {
        while burst.len() < until {
            let Some(taken) = self.next(from) else { break };
            let Ok(Taken { block, len, copied }) = taken else {
                counters.rx_malformed += 1;
                continue;
            };
            let Some((checksum, segmentation)) = self.facts_of(&block[..len as usize]) else {
                counters.rx_malformed += 1;
                continue;
            };
            counters.rx_relief_copies += u64::from(copied);
            counters.rx_copied_bytes += if copied { u64::from(len) } else { 0 };
            let facts = Facts { device, arrival: now, checksum, segmentation, ..Facts::default() };
            counters.rx_packets += 1;
            counters.rx_bytes += u64::from(len);
            burst.push(Message::received(block, 0..len, facts));
        }
        ring(&mut self.queues, from).release();
    }

    /// The next packet of a ring; `None`: there is none, or no buffer for it.
    #[inline]
    fn next(&mut self, from: (usize, bool)) -> Option<Result<Taken, Unusable>> {
        let ring = ring(&mut self.queues, from);
        let first = ring.peek(0)?;
        // Another core has written it: to wait for its headers costs more than all else that is done here.
        if let Some(head) = ring.known(AHEAD).and_then(|later| self.umem.received(&later)?.first()) {
            prefetch(head);
        }
        if first.options & libc::XDP_PKT_CONTD != 0 {
            return self.put_together(from);
        }
        let Some(bytes) = self.umem.received(&first) else {
            ring.take(1);
            return Some(Err(Unusable));
        };
        if bytes.len() < 14 {
            ring.take(1);
            self.umem.give_back(self.umem.chunk(first.addr));
            return Some(Err(Unusable));
        }
        if self.umem.may_lend() {
            ring.take(1);
            return Some(Ok(Taken { block: self.umem.lend(&first), len: first.len, copied: false }));
        }
        let mut copy = if first.len <= SMALL_LEN { self.small.take()? } else { self.large.take()? };
        copy[..bytes.len()].copy_from_slice(bytes);
        ring.take(1);
        self.umem.give_back(self.umem.chunk(first.addr));
        Some(Ok(Taken { block: copy, len: first.len, copied: true }))
    }

    /// The next packet, which is in several chunks.
    #[cold]
    fn put_together(&mut self, from: (usize, bool)) -> Option<Result<Taken, Unusable>> {
        let ring = ring(&mut self.queues, from);
        let mut count = 0;
        while ring.peek(count)?.options & libc::XDP_PKT_CONTD != 0 {
            count += 1;
        }
        count += 1;
        let mut block = self.large.take()?;
        let (mut len, mut whole) = (0, count <= MAX_PARTS);
        for _ in 0..count {
            let part = ring.peek(0)?;
            ring.take(1);
            let Some(bytes) = self.umem.received(&part) else {
                whole = false;
                continue;
            };
            match block.get_mut(len..len + bytes.len()) {
                Some(to) => to.copy_from_slice(bytes),
                None => whole = false,
            }
            len += bytes.len();
            self.umem.give_back(self.umem.chunk(part.addr));
        }
        let usable = whole && len >= 14;
        Some(if usable { Ok(Taken { block, len: len as u32, copied: false }) } else { Err(Unusable) })
    }

    /// AF_XDP tells neither checksums nor cuts: they are seen in the packet itself. `None`: it cannot be taken.
    #[inline]
    fn facts_of(&self, frame: &[u8]) -> Option<(Checksum, Option<Segmentation>)> {
        let long = frame.len() as u32 > self.mtu + LINK_LEN;
        if !self.trusted && !long {
            return Some((Checksum::Unverified, None));
        }
        let Some(transport) = software::transport(frame) else {
            return (!long).then_some((Checksum::Unverified, None));
        };
        let vouched = transport.is_partial && self.trusted;
        let checksum = if vouched { Checksum::Verified } else { Checksum::Unverified };
        if !long {
            return Some((checksum, None));
        }
        // Where one datagram ended and the next began is lost; of a stream nothing is.
        let size = (self.mtu + 14).checked_sub(transport.headers as u32)? as u16;
        let segmentation = Segmentation { kind: transport.kind, size, header_len: transport.headers as u16 };
        (transport.kind != SegmentationKind::Udp).then_some((checksum, Some(segmentation)))
    }

    /// Gives back chunks that are free, and the kernel as many as are to wait in the fill rings.
    fn refill(&mut self) {
        self.owes = !self.fill.give(&self.umem, &mut self.asleep);
        for queue in self.asleep.drain(..) {
            socket::kick_fill(&self.queues[queue].inlet.socket);
        }
    }

    /// Packets that the kernel dropped because there was no chunk or the ring was full.
    pub(super) fn drops(&self) -> u64 {
        let drops = |inlet: &Inlet| {
            let statistics = socket::statistics(&inlet.socket);
            statistics.map_or(0, |statistics| statistics.rx_dropped + statistics.rx_ring_full)
        };
        self.queues.iter().map(|queue| drops(&queue.inlet) + queue.important.as_ref().map_or(0, drops)).sum()
    }
}

/// One ring of a queue; the important one is only asked for where it is.
#[inline]
fn ring(queues: &mut [Queue], (queue, important): (usize, bool)) -> &mut Consumer<libc::xdp_desc> {
    let queue = &mut queues[queue];
    match &mut queue.important {
        Some(inlet) if important => &mut inlet.ring,
        _ => &mut queue.inlet.ring,
    }
}

/// What was taken off a ring is no packet that could be used.
struct Unusable;

/// A packet that was taken off a ring.
struct Taken {
    block: Block,
    /// The block may be longer.
    len: u32,
    /// Out of a chunk, to give that back.
    copied: bool,
}
