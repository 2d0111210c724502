//! Receiving through a TPACKET_V2 ring (Documentation/networking/packet_mmap.rst).
//!
//! ```text
//!   frame: | tpacket2_hdr | sockaddr_ll | …  | vnet header | Ethernet frame … |   status word first
//!   status: KERNEL (0) → the kernel writes a packet → USER (1) → we take it → … → back to KERNEL
//! ```
//! Who writes what: the kernel writes a frame while its status is KERNEL, and releases it to us with the USER bit
//! (its barrier, our Acquire). We own it until we store KERNEL (Release). Frames are used strictly in order, so one
//! frame that stays out blocks the ring when the kernel comes round to it. Three things relieve that: small frames
//! are copied out at once, large ones are copied too when half of the ring is out, and a frame that is still out
//! when its turn comes again is detached (see [`Ring::detach`]): its holder keeps a copy at the same address.

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use scoutline_base::{DeviceId, Time};
use scoutline_path::{Burst, Checksum, Facts, Message};
use scoutline_ring::{Block, Pool};

use crate::error::OpenError;
use crate::packet::ring::{FRAME_LEN, FRAMES_PER_BLOCK, Frame, Ring};
use crate::packet::{Config, long};
use crate::partner::DeviceCounters;
use crate::sys::{self, Interface};
use crate::vnet::VnetHeader;

/// Frames up to this length are copied out at once (a copy of 2 KiB takes 50 ns).
const SMALL_LEN: u32 = 2048;
/// Small buffers: what a burst plus all path queues may hold before frames stay in the ring.
const SMALL_LIMIT: u32 = 16_384;
/// Large buffers, for relief only.
const LARGE_LIMIT: u32 = 256;
/// How often an idle socket is asked whether its interface went down.
const ERROR_INTERVAL: Duration = Duration::from_millis(10);

/// The receiving half.
pub(super) struct Receiver {
    ring: Rc<Ring>,
    /// The frame that the kernel fills next, as far as we have followed it.
    head: u32,
    small: Pool,
    large: Pool,
    /// Memory for super-segments beyond 64 KiB, once one has come.
    long: Cell<Vec<u8>>,
    trusted: bool,
    error_asked: Time,
    /// PACKET_STATISTICS counts from its last reading.
    drops: Cell<u64>,
}

impl Receiver {
    pub(super) fn open(interface: &Interface, config: &Config, trusted: bool) -> Result<Receiver, OpenError> {
        // A tag has 16 bits for the frame.
        let ring = Ring::open(
            &interface.name,
            interface.index,
            config.ring_frames.clamp(FRAMES_PER_BLOCK, 0xffff - FRAMES_PER_BLOCK),
        )?;
        Ok(Receiver {
            ring: Rc::new(ring),
            head: 0,
            small: Pool::new(SMALL_LEN, SMALL_LIMIT),
            large: Pool::new(FRAME_LEN, LARGE_LIMIT),
            long: Cell::default(),
            trusted,
            error_asked: Time::ZERO,
            drops: Cell::new(0),
        })
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        self.ring.socket()
    }

    #[inline]
    pub(super) fn has_input(&self) -> bool {
        self.ring.is_ready(self.head)
    }

    /// True when so many frames are lent that large packets are copied, or the ring stands still, or there are few
    /// buffers left to copy to.
    pub(super) fn pressed(&self) -> bool {
        let few = |pool: &Pool, limit: u32| pool.in_use() >= (limit - limit / 8) as usize;
        few(&self.small, SMALL_LIMIT)
            || few(&self.large, LARGE_LIMIT)
            || self.ring.frames_out() >= self.ring.frames() / 2
            || self.ring.is_out(self.head)
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
        while burst.len() - before < limit && self.is_clear(counters) {
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
        self.is_clear(counters); // else nothing arrives that would wake us
        burst.len() - before
    }

    /// Makes sure that the frame that comes next is not still out; false when it must stay out.
    #[inline]
    fn is_clear(&self, counters: &mut DeviceCounters) -> bool {
        if !self.ring.is_out(self.head) {
            return true;
        }
        let detached = self.ring.detach(self.head);
        counters.rx_relief_copies += u64::from(detached);
        detached
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
            frame.give_back();
            return Ok(None);
        }
        if frame.is_long() {
            self.take_long(frame, now, device, burst, counters);
            return Ok(None);
        }
        if !frame.is_whole() {
            counters.rx_malformed += 1;
            frame.give_back();
            return Ok(None);
        }
        let may_lend = self.ring.frames_out() < self.ring.frames() / 2;
        let copy = if frame.restored_len() <= SMALL_LEN {
            self.small.take()
        } else if may_lend {
            None
        } else {
            self.large.take()
        };
        if copy.is_none() && !may_lend {
            return Err(NoMemory);
        }
        let (mut checksum, mut segmentation) = frame.vnet().received(self.trusted);
        if frame.checksum_valid() {
            checksum = Checksum::Verified;
        }
        if let Some(tag) = frame.vlan() {
            frame.restore_vlan(tag);
            if let Some(how) = segmentation.as_mut().filter(|how| how.header_len > 0) {
                how.header_len += tag.len() as u16;
            }
        }
        let len = frame.bytes().len() as u32;
        let block = if let Some(mut block) = copy {
            scoutline_ring::copy_slice(frame.bytes(), &mut block[..len as usize]);
            frame.give_back();
            counters.rx_relief_copies += 1;
            counters.rx_copied_bytes += u64::from(len);
            block
        } else {
            frame.lend()
        };
        let facts = Facts { device, arrival: now, checksum, segmentation, ..Facts::default() };
        Ok(Some(Message::received(block, 0..len, facts)))
    }

    /// Appends what a super-segment beyond 64 KiB is cut into.
    #[cold]
    fn take_long(
        &self,
        frame: Frame<'_>,
        now: Time,
        device: DeviceId,
        burst: &mut Burst,
        counters: &mut DeviceCounters,
    ) {
        let mut buffer = self.long.take();
        let mut whole = true;
        let tag = frame.vlan();
        let mut add = |vnet: VnetHeader, bytes: &[u8]| {
            let segmentation = vnet.received(self.trusted).1;
            whole = long::cut(vnet, self.trusted, bytes, |piece| {
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
        };
        if frame.is_whole() {
            add(frame.vnet(), frame.bytes());
        } else if let Some((vnet, bytes)) = long::take(self.ring.socket(), &mut buffer) {
            add(vnet, bytes);
        } else {
            whole = false;
        }
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
        sys::take_error(self.ring.socket())
    }

    /// Packets that the kernel dropped because the ring was full.
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

/// Neither a buffer nor a frame to lend.
struct NoMemory;
