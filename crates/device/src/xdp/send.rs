//! Sending by the ring: each packet is put together in a chunk, super-segments that cannot leave whole are cut on the way
//! there; the kernel takes a batch with one system call, or the hardware does without one.
//!
//! ```text
//!   chunk: | metadata: complete this checksum | frame …  |      to_send ─► sent ─► completed, and free again
//! ```
//! In copy mode the kernel makes a packet of its own of each, and takes the request to complete the checksum with it
//! (Linux 6.8, af_xdp.rst: XDP_TX_METADATA): on a veth nobody sums then. Elsewhere the sum is made here, over our copy.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use scoutline_path::{Checksum, Message, Segmentation};

use crate::partner::DeviceCounters;
use crate::software::{self, Layout, MAX_HEADERS};
use crate::vnet::{NO_PART, PARTS, gather};
use crate::xdp::ring::{Consumer, Producer};
use crate::xdp::socket;
use crate::xdp::umem::Umem;

/// Bytes in front of each frame, where the metadata stands: a cache line of its own.
pub(super) const FRAME_AT: u32 = 64;
/// `struct xsk_tx_metadata` (include/uapi/linux/if_xdp.h of Linux 6.8): flags, and a union of 16 bytes.
pub(super) const METADATA_LEN: u32 = 24;
const _: () = assert!(METADATA_LEN <= FRAME_AT && METADATA_LEN.is_multiple_of(8));
/// Ethernet header and a tag.
const LINK_LEN: usize = 18;
/// Packets after which the kernel is told, so that it and the receiver begin while we make more.
const BATCH: u32 = 64;

/// The sending half.
pub(super) struct Sender {
    umem: Rc<Umem>,
    ring: Producer<libc::xdp_desc>,
    done: RefCell<Completed>,
    /// The kernel completes checksums.
    metadata: bool,
    /// The longest frame that the interface takes.
    longest: usize,
    full: bool,
}

/// What of the sent the kernel is done with.
struct Completed {
    ring: Consumer<u64>,
    free: Vec<u32>,
    /// What each chunk holds that is out, by its place among the chunks to send.
    lens: Box<[u32]>,
    standing: u64,
}

/// Why a message is not sent.
enum Unsent {
    /// There is no room now.
    Full,
    /// It never can be.
    Never,
    /// It is longer than the device takes.
    TooLong,
}

impl Sender {
    pub(super) fn new(
        umem: Rc<Umem>,
        ring: Producer<libc::xdp_desc>,
        completion: Consumer<u64>,
        metadata: bool,
        mtu: u32,
    ) -> Sender {
        let free: Vec<u32> = umem.send_chunks().rev().collect();
        let lens = vec![0; free.len()].into();
        let done = RefCell::new(Completed { ring: completion, free, lens, standing: 0 });
        Sender { umem, ring, done, metadata, longest: mtu as usize + LINK_LEN, full: false }
    }

    /// How many packets would find a chunk; one to try with after the device was full.
    pub(super) fn room(&self) -> usize {
        if self.full { 1 } else { self.done.borrow().free.len().max(1) }
    }

    /// Bytes that have not left yet.
    pub(super) fn standing(&self) -> u64 {
        let mut done = self.done.borrow_mut();
        done.collect(&self.umem);
        done.standing
    }

    /// The kernel has taken all that was put into the ring.
    pub(super) fn is_taken(&self) -> bool {
        self.ring.waiting() == 0
    }

    /// True when the kernel has left packets in the ring and must be told again.
    #[inline]
    pub(super) fn is_stuck(&self) -> bool {
        self.ring.waiting() > 0 && self.ring.needs_wakeup()
    }

    /// `done` counts the messages that need not come again.
    pub(super) fn push(
        &mut self,
        socket: &OwnedFd,
        messages: &[Message],
        done: &mut usize,
        counters: &mut DeviceCounters,
    ) -> io::Result<()> {
        self.full = false;
        let mut result = Ok(());
        let mut begun = 0;
        self.done.get_mut().collect(&self.umem);
        while let Some(message) = messages.get(*done) {
            match self.put(message, counters) {
                Ok(packets) => begun += packets,
                Err(Unsent::Never) => counters.tx_malformed += 1,
                Err(Unsent::TooLong) => counters.tx_too_large += 1,
                Err(Unsent::Full) if begun > 0 => {
                    result = self.flush(socket);
                    begun = 0;
                    if result.is_err() {
                        break;
                    }
                    // What the kernel has copied is free already.
                    self.done.get_mut().collect(&self.umem);
                    continue;
                }
                Err(Unsent::Full) => {
                    counters.tx_full += 1;
                    self.full = true;
                    break;
                }
            }
            *done += 1;
            if begun >= BATCH {
                begun = 0;
                result = self.flush(socket);
                if result.is_err() {
                    break;
                }
            }
        }
        if result.is_ok() {
            result = self.flush(socket);
        }
        result
    }

    /// Gives the kernel what was put into the ring. What it does not take now stays there.
    pub(super) fn flush(&mut self, socket: &OwnedFd) -> io::Result<()> {
        self.ring.publish();
        let mut before = self.ring.waiting();
        while before > 0 && self.ring.needs_wakeup() {
            let result = socket::kick_transmit(socket);
            let waiting = self.ring.waiting();
            match result.map_err(|error| (error.raw_os_error(), error)) {
                // In copy mode it takes 32 at a time and says EAGAIN while there are more.
                Ok(()) | Err((Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR), _)) => {}
                Err((_, error)) => return Err(error),
            }
            if waiting == before {
                return Ok(()); // its queue is full, or hardware goes on by itself
            }
            before = waiting;
        }
        Ok(())
    }

    /// Puts the packets of one message into the ring and says how many there are; all of them or none.
    fn put(&mut self, message: &Message, counters: &mut DeviceCounters) -> Result<u32, Unsent> {
        let mut parts = [NO_PART; PARTS];
        let (count, len) = gather(message, &mut parts).ok_or(Unsent::Never)?;
        let mut from = Parts { parts: &parts[..count], at: 0 };
        let packets = if let Some(segmentation) = message.facts.segmentation {
            self.put_cut(&mut from, len, segmentation)?
        } else {
            let checksum = match message.facts.checksum {
                Checksum::Partial { start, offset } => Some((start, offset)),
                _ => None,
            };
            // Headers stand in the first chunk.
            let most = len.min(self.capacity());
            if checksum.is_some_and(|(start, field)| start as usize + field as usize + 2 > most) {
                return Err(Unsent::Never);
            }
            self.ask(1, len)?;
            self.put_packet(&mut from, &[], len, checksum);
            1
        };
        counters.tx_packets += 1;
        counters.tx_bytes += len as u64;
        counters.tx_copied_bytes += len as u64;
        counters.tx_software += u64::from(packets > 1);
        Ok(packets)
    }

    /// Cuts a super-segment into packets.
    fn put_cut(&mut self, from: &mut Parts<'_>, len: usize, how: Segmentation) -> Result<u32, Unsent> {
        let mut headers = [0; MAX_HEADERS];
        let begin = len.min(MAX_HEADERS);
        from.peek(&mut headers[..begin]);
        let layout = Layout::of(&headers[..begin], how.kind).ok_or(Unsent::Never)?;
        let size = how.size as usize;
        if size == 0 {
            return Err(Unsent::Never);
        }
        let payload = len - layout.payload;
        let packets = payload.div_ceil(size).max(1);
        self.ask(packets, layout.payload + size.min(payload))?;
        from.skip(layout.payload);
        let mut left = payload;
        for index in 0..packets {
            let body = left.min(size);
            left -= body;
            let mut headers = headers;
            let headers = &mut headers[..layout.payload];
            let packet = layout.payload + body;
            let checksum = layout.rewrite_headers(headers, packet, index, size, left == 0);
            self.put_packet(from, headers, packet, Some(checksum));
        }
        Ok(packets as u32)
    }

    /// Bytes of a frame that a chunk holds: an even number.
    fn capacity(&self) -> usize {
        (self.umem.chunk_len() - FRAME_AT) as usize
    }

    /// Whether there is room for so many packets of at most `len` bytes.
    fn ask(&mut self, packets: usize, len: usize) -> Result<(), Unsent> {
        let chunks = packets.saturating_mul(len.div_ceil(self.capacity()));
        let done = self.done.get_mut();
        if chunks > done.lens.len() || len > self.longest {
            return Err(Unsent::TooLong);
        }
        // The ring has as many entries as there are chunks.
        if chunks > done.free.len() { Err(Unsent::Full) } else { Ok(()) }
    }

    /// Puts one packet of `len` bytes into the ring, for which there is room: `headers`, then what comes next in `from`.
    fn put_packet(&mut self, from: &mut Parts<'_>, headers: &[u8], len: usize, checksum: Option<(u16, u16)>) {
        let capacity = self.capacity();
        let done = self.done.get_mut();
        // Until the kernel has the first, its sum can be put in: of the parts behind it, then.
        let (mut sum, mut first) = (0, None);
        let mut left = len;
        while left > 0 {
            let part = left.min(capacity);
            let chunk = done.free.pop().expect("`ask` has counted them");
            done.standing += part as u64;
            done.lens[(chunk - self.umem.send_chunks().start) as usize] = part as u32;
            // SAFETY: a free chunk to send, which the kernel does not have.
            let memory = unsafe { self.umem.to_send(chunk, FRAME_AT) };
            let own = if first.is_none() { headers } else { &[] };
            memory[..own.len()].copy_from_slice(own);
            from.copy(&mut memory[own.len()..part]);
            let mut options = if left > part { libc::XDP_PKT_CONTD } else { 0 };
            if let Some((start, field)) = checksum {
                if !self.metadata {
                    // Parts begin at even distances from `start`: all of them are even.
                    let from = if first.is_none() { start as usize } else { 0 };
                    sum += software::sum(memory.get(from..part).unwrap_or(&[]));
                } else if first.is_none() {
                    // SAFETY: as above, and the slice before is not used any more.
                    let memory = unsafe { self.umem.to_send(chunk, FRAME_AT - METADATA_LEN) };
                    write_metadata(memory, start, field);
                    options |= libc::XDP_TX_METADATA;
                }
            }
            first = first.or(Some(chunk));
            let addr = self.umem.address(chunk) + u64::from(FRAME_AT);
            self.ring.put(libc::xdp_desc { addr, len: part as u32, options });
            left -= part;
        }
        if let (Some((start, field)), Some(chunk), false) = (checksum, first, self.metadata) {
            // SAFETY: not published yet, and no other slice of it is left.
            let memory = unsafe { self.umem.to_send(chunk, FRAME_AT) };
            let at = start as usize + field as usize;
            memory[at..at + 2].copy_from_slice(&software::checksum_of(sum).to_be_bytes());
        }
    }
}

/// Flags, where summing begins, and where the sum goes from there.
fn write_metadata(memory: &mut [u8], start: u16, field: u16) {
    memory[..METADATA_LEN as usize].fill(0);
    memory[..8].copy_from_slice(&u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM).to_ne_bytes());
    memory[8..10].copy_from_slice(&start.to_ne_bytes());
    memory[10..12].copy_from_slice(&field.to_ne_bytes());
}

impl Completed {
    /// Takes back the chunks that the kernel is done with.
    fn collect(&mut self, umem: &Umem) {
        while let Some(address) = self.ring.peek(0) {
            self.ring.take(1);
            let chunk = umem.chunk(address);
            let place = chunk.wrapping_sub(umem.send_chunks().start) as usize;
            let Some(len) = self.lens.get_mut(place) else { continue };
            self.standing -= u64::from(std::mem::take(len));
            self.free.push(chunk);
        }
        self.ring.release();
    }
}

/// Parts of a message, read one after the other.
struct Parts<'a> {
    parts: &'a [libc::iovec],
    /// Bytes of the first that are done.
    at: usize,
}

impl Parts<'_> {
    /// Fills `to` with what comes next.
    ///
    /// # Panics
    /// When there is less.
    fn copy(&mut self, to: &mut [u8]) {
        let mut done = 0;
        while done < to.len() {
            let first = self.parts[0];
            let len = (first.iov_len - self.at).min(to.len() - done);
            // SAFETY: the parts point into a message that the caller holds, and `len` bytes are left of this one; `to`
            // has room. Another process may be writing a send ring: then the bytes are whatever it writes.
            unsafe {
                let from = first.iov_base.cast::<u8>().cast_const().add(self.at);
                scoutline_ring::copy(from, to[done..].as_mut_ptr(), len);
            }
            done += len;
            self.at += len;
            if self.at == first.iov_len {
                (self.parts, self.at) = (&self.parts[1..], 0);
            }
        }
    }

    /// The same, and it comes again.
    fn peek(&self, to: &mut [u8]) {
        Parts { parts: self.parts, at: self.at }.copy(to);
    }

    /// Leaves out what comes next.
    fn skip(&mut self, mut len: usize) {
        while len > 0 {
            let left = self.parts[0].iov_len - self.at;
            if len < left {
                self.at += len;
                return;
            }
            len -= left;
            (self.parts, self.at) = (&self.parts[1..], 0);
        }
    }
}
