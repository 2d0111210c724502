//! Receiving through a TPACKET_V2 ring (Documentation/networking/packet_mmap.rst).
//!
//! ```text
//!   frame: | tpacket2_hdr | sockaddr_ll | …  | vnet header | Ethernet frame … |   status word first
//!   status: KERNEL (0) → the kernel writes a packet → USER (1) → we take it → … → back to KERNEL
//! ```
//! Who writes what: the kernel writes a frame while its status is KERNEL, and releases it to us with the USER bit
//! (its barrier, our Acquire). We own it until we store KERNEL (Release). Frames are used strictly in order, so what is in
//! one is copied out at once. Of a packet that is longer than a frame only the headers are: the rest waits in the socket's
//! queue ([`Queue`]) until it is stored, if it is a stream's, and is fetched at once otherwise.

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use scoutline_base::{DeviceId, Time};
use scoutline_path::{Body, Burst, Checksum, Facts, Message, Tail};
use scoutline_ring::{Block, Pool, gather};

use crate::error::OpenError;
use crate::packet::Config;
use crate::packet::long::{self, MAX_HONEST_LEN};
use crate::packet::queue::{FRONT, Queue};
use crate::packet::ring::{FRAME_LEN, Frame, Ring};
use crate::partner::{BUFFERS_READY, DeviceCounters};
use crate::sys::{self, Interface};

/// Buffers for what was in a frame: what a burst plus all path queues may hold before frames stay in the ring.
const BUFFERS: u32 = 16_384;
const ETHERNET_LEN: usize = 14;
const PROTOCOL_TCP: u8 = 6;
/// How often an idle socket is asked whether its interface went down.
const ERROR_INTERVAL: Duration = Duration::from_millis(10);

/// The receiving half.
pub(super) struct Receiver {
    ring: Ring,
    /// The frame that the kernel fills next, as far as we have followed it.
    head: u32,
    buffers: Pool,
    queue: Rc<Queue>,
    /// Memory for super-segments beyond 64 KiB, once one has come.
    long: Cell<Vec<u8>>,
    trusted: bool,
    error_asked: Time,
    /// PACKET_STATISTICS counts from its last reading; and those that were cut short.
    drops: Cell<u64>,
}

impl Receiver {
    pub(super) fn open(interface: &Interface, config: &Config, trusted: bool) -> Result<Receiver, OpenError> {
        let ring = Ring::open(&interface.name, interface.index, config.ring_frames)?;
        Ok(Receiver {
            queue: Rc::new(Queue::new(ring.socket().clone())),
            ring,
            head: 0,
            buffers: Pool::with_ready(FRAME_LEN, BUFFERS, BUFFERS_READY),
            long: Cell::default(),
            trusted,
            error_asked: Time::ZERO,
            drops: Cell::new(0),
        })
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        self.ring.socket()
    }

    pub(super) fn has_short_queue(&self) -> bool {
        self.ring.has_short_queue
    }

    #[inline]
    pub(super) fn has_input(&self) -> bool {
        self.ring.is_ready(self.head)
    }

    /// True when there are few buffers left to copy to, or much waits beside the ring.
    pub(super) fn pressed(&self) -> bool {
        self.buffers.in_use() >= (BUFFERS - BUFFERS / 8) as usize || self.queue.is_pressed()
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
        // A long packet may become several messages.
        while burst.len() - before < limit {
            let Some(frame) = Frame::take(&self.ring, self.head) else { break };
            match self.message(frame, now, device, burst, counters) {
                Ok(Some(message)) => {
                    counters.rx_packets += 1;
                    counters.rx_bytes += message.body_len() as u64;
                    burst.push(message);
                }
                Ok(None) => {}
                Err(NoMemory) => break, // the frame stays in the ring, and the kernel counts what does not fit
            }
            self.head = if self.head + 1 == self.ring.frames() { 0 } else { self.head + 1 };
        }
        counters.rx_copied_bytes += self.queue.take_copied();
        burst.len() - before
    }

    /// Makes a message of a frame; nothing for one that is not for us.
    #[inline]
    fn message(
        &self,
        mut frame: Frame<'_>,
        now: Time,
        device: DeviceId,
        burst: &mut Burst,
        counters: &mut DeviceCounters,
    ) -> Result<Option<Message>, NoMemory> {
        if frame.packet_type() == libc::PACKET_OUTGOING {
            self.drop_queued(&frame);
            frame.give_back();
            return Ok(None);
        }
        let len = frame.queued().unwrap_or(frame.bytes_len());
        if !frame.is_sane() || frame.is_cut() && frame.queued().is_none() {
            // What does not fit in the queue is lost as what does not in the ring.
            if frame.is_sane() {
                self.queue.on_refused();
                self.drops.set(self.drops.get() + 1);
            } else {
                counters.rx_malformed += 1;
            }
            self.drop_queued(&frame);
            frame.give_back();
            return Ok(None);
        }
        if len > MAX_HONEST_LEN {
            self.take_long(frame, len, now, device, burst, counters);
            return Ok(None);
        }
        let Some(mut block) = self.buffers.take() else { return Err(NoMemory) };
        let (mut checksum, mut segmentation) = frame.vnet().received(self.trusted);
        if frame.checksum_valid() {
            checksum = Checksum::Verified;
        }
        let tag = frame.vlan();
        // Where the rest of it is the queue's, and whether that can wait.
        let late = frame.queued().map(|len| {
            let bytes = frame.bytes();
            let is_stream = checksum == Checksum::Verified && tag.is_none();
            let stream = if is_stream { stream_headers(bytes) } else { None };
            let start = stream.unwrap_or(FRONT).min(bytes.len());
            let tail = Tail {
                range: 0..u64::from(len) - start as u64,
                memory: Rc::new(self.queue.came(len, &bytes[..start])),
            };
            (start, tail, stream.is_some())
        });
        let tag_len = tag.map_or(0, |tag| tag.len());
        if let Some(tag) = tag {
            frame.restore_vlan(tag);
            if let Some(how) = segmentation.as_mut().filter(|how| how.header_len > 0) {
                how.header_len += tag.len() as u16;
            }
        }
        let here = match &late {
            None => frame.bytes(),
            Some((start, ..)) => &frame.bytes()[..tag_len + start],
        };
        scoutline_ring::copy_slice(here, &mut block[..here.len()]);
        counters.rx_copied_bytes += here.len() as u64;
        let facts = Facts { device, arrival: now, checksum, segmentation, ..Facts::default() };
        let mut message = Message::received(block, 0..here.len() as u32, facts);
        let mut is_whole = true;
        if let (Some((_, late, can_wait)), Body::Block { tail, .. }) = (late, &mut message.body) {
            let len = late.len() as u64;
            *tail = Some(Box::new(late));
            if !can_wait {
                counters.rx_copied_bytes += len;
                is_whole = message.settle();
            }
        }
        frame.give_back();
        counters.rx_malformed += u64::from(!is_whole);
        Ok(is_whole.then_some(message))
    }

    /// What is beside a frame that is not taken.
    #[cold]
    fn drop_queued(&self, frame: &Frame<'_>) {
        if let Some(len) = frame.queued() {
            drop(self.queue.came(len, &[]));
        }
    }

    /// Appends what a super-segment beyond 64 KiB is cut into.
    #[cold]
    fn take_long(
        &self,
        frame: Frame<'_>,
        len: u32,
        now: Time,
        device: DeviceId,
        burst: &mut Burst,
        counters: &mut DeviceCounters,
    ) {
        let mut buffer = self.long.take();
        buffer.resize(buffer.len().max(len as usize), 0);
        let bytes = &mut buffer[..len as usize];
        let (tag, vnet) = (frame.vlan(), frame.vnet());
        let segmentation = vnet.received(self.trusted).1;
        let start = &frame.bytes()[..FRONT.min(frame.bytes().len())];
        let (headers, rest) = bytes.split_at_mut(start.len());
        headers.copy_from_slice(start);
        let whole = gather(&self.queue.came(len, start), 0..rest.len() as u64, rest)
            && long::cut(vnet, self.trusted, bytes, |piece| {
                let block = Block::from_bytes(tagged(piece, tag));
                let len = block.len() as u32;
                let facts = Facts {
                    device,
                    arrival: now,
                    checksum: Checksum::Verified,
                    segmentation,
                    ..Facts::default()
                };
                counters.rx_packets += 1;
                counters.rx_bytes += u64::from(len);
                counters.rx_copied_bytes += u64::from(len);
                burst.push(Message::received(block, 0..len, facts));
            });
        frame.give_back();
        counters.rx_malformed += u64::from(!whole);
        self.long.set(buffer);
    }

    /// What the socket reports (its interface went down), asked now and then.
    pub(super) fn error(&mut self, now: Time) -> Option<i32> {
        if now - self.error_asked < ERROR_INTERVAL {
            return None;
        }
        self.error_asked = now;
        self.queue.take_error().or_else(|| sys::take_error(self.ring.socket()))
    }

    /// Packets that were lost because the ring was full, or the queue beside it.
    pub(super) fn drops(&self) -> u64 {
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the kernel writes a `tpacket_stats` and its length. It resets its own counts.
        let status = unsafe {
            libc::getsockopt(
                self.ring.socket().as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut len,
            )
        };
        if status == 0 {
            self.drops.set(self.drops.get() + u64::from(stats.tp_drops));
        }
        self.drops.get()
    }
}

/// A frame with the tag that it had.
fn tagged(frame: &[u8], tag: Option<[u8; 4]>) -> Box<[u8]> {
    match (tag, frame.split_at_checked(12)) {
        (Some(tag), Some((addresses, rest))) => [addresses, &tag, rest].concat().into(),
        _ => frame.into(),
    }
}

/// How long the headers of a stream's segment are, in a frame without tags: `None` for anything else.
fn stream_headers(frame: &[u8]) -> Option<usize> {
    let ip = frame.get(ETHERNET_LEN..)?;
    let transport = match frame[12..ETHERNET_LEN] {
        // No fragment; a reserved bit and DF are shifted out.
        [0x08, 0x00] if *ip.get(9)? == PROTOCOL_TCP && u16::from_be_bytes([ip[6], ip[7]]) << 2 == 0 => {
            usize::from(ip[0] & 15).max(5) * 4
        }
        [0x86, 0xdd] if *ip.get(6)? == PROTOCOL_TCP => 40,
        _ => return None,
    };
    let own = usize::from(ip.get(transport + 12)? >> 4) * 4;
    let all = ETHERNET_LEN + transport + own;
    (own >= 20 && all <= frame.len()).then_some(all)
}

/// No buffer is left.
struct NoMemory;
