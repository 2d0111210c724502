//! The mapped TPACKET_V2 ring, its frames, and how a held frame is taken out of the kernel's way.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use scoutline_ring::{Block, BlockOwner};

use crate::error::OpenError;
use crate::ethernet::{bind, raw_socket};
use crate::packet::long::MAX_HONEST_LEN;
use crate::sys;
use crate::vnet::{VNET_LEN, VnetHeader};

/// One frame holds a packet of 64 KiB with its Ethernet header, and about 96 bytes of the ring's own headers. Whole
/// pages, so that a frame can be moved in the address space (17 of 4 KiB).
pub(super) const FRAME_LEN: u32 = 69_632;
/// Frames lie in physically contiguous blocks of this size, none across a border: 30 of them in 2 MiB.
const BLOCK_LEN: u32 = 2 << 20;
pub(super) const FRAMES_PER_BLOCK: u32 = BLOCK_LEN / FRAME_LEN;
/// Bytes kept free in front of the packet; they align the IP header to 32 bytes.
const RESERVE: libc::c_int = 6;
/// How much of packets longer than a frame may wait in the socket's queue.
const LONG_BUFFER_LEN: libc::c_int = 8 << 20;
/// `sockaddr_ll` follows the aligned header (TPACKET2_HDRLEN).
const ADDRESS_AT: usize = 32;
/// Frames detached at one time: 17 MiB.
const DETACHED_LIMIT: usize = 256;
/// A packet is in the frame.
const USER: u32 = libc::TP_STATUS_USER;

/// The mapped ring with its socket. Lives while any block lent from it does. Only the engine's thread touches it;
/// the kernel shares the frames' memory alone, by the status words.
pub(super) struct Ring {
    socket: OwnedFd,
    /// The mapping as it was made. All of it stays ours until the end, also where frames have moved away.
    memory: NonNull<u8>,
    memory_len: usize,
    slots: Box<[Slot]>,
    out_count: Cell<u32>,
    detached: RefCell<Detached>,
}

/// One frame.
struct Slot {
    /// Where it is mapped now.
    memory: Cell<NonNull<u8>>,
    /// Lent out.
    out: Cell<bool>,
    /// Counts detachments: a block whose tag has an older one holds a detached copy.
    generation: Cell<u16>,
}

/// Address ranges, each as long as a frame, outside of the ring's own use.
#[derive(Default)]
struct Detached {
    /// Held copies by tag.
    copies: Vec<(u32, NonNull<u8>)>,
    /// Ranges that frames may be moved to.
    spare: Vec<NonNull<u8>>,
    /// Every range that was made beyond the first mapping, to be unmapped at the end.
    made: Vec<NonNull<u8>>,
}

impl Ring {
    pub(super) fn open(name: &str, ifindex: u32, frames: u32) -> Result<Ring, OpenError> {
        let socket = raw_socket(name)?;
        let option = |option, value: libc::c_int, action| {
            sys::set_option(&socket, libc::SOL_PACKET, option, &value)
                .map_err(|error| OpenError::system(name, action, error))
        };
        option(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as i32, "choose TPACKET_V2")?;
        option(libc::PACKET_VNET_HDR, 1, "switch vnet headers on")?;
        // What is longer than a frame comes whole through the socket's queue; the value only has to be above 0.
        option(libc::PACKET_COPY_THRESH, 1, "receive long packets")?;
        option(libc::PACKET_RESERVE, RESERVE, "reserve head room")?;
        // Linux 4.20; before it, outgoing packets are skipped one by one.
        let _ = option(libc::PACKET_IGNORE_OUTGOING, 1, "leave outgoing packets out");
        if sys::set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &LONG_BUFFER_LEN).is_err() {
            // Without the privilege to exceed the system's limit, take what there is.
            let _ = sys::set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &LONG_BUFFER_LEN);
        }
        let blocks = frames.div_ceil(FRAMES_PER_BLOCK);
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_LEN,
            tp_block_nr: blocks,
            tp_frame_size: FRAME_LEN,
            tp_frame_nr: blocks * FRAMES_PER_BLOCK,
        };
        sys::set_option(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request).map_err(|error| {
            OpenError::system(name, "set up its receive ring (ring_frames too large?)", error)
        })?;
        let memory_len = blocks as usize * BLOCK_LEN as usize;
        // SAFETY: a fresh shared mapping of the ring just set up.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                memory_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                socket.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(OpenError::system(name, "map its receive ring", io::Error::last_os_error()));
        }
        let memory: NonNull<u8> = NonNull::new(memory.cast()).expect("mmap gives no null pointer");
        let slot = |index: u32| {
            let block = (index / FRAMES_PER_BLOCK) as usize * BLOCK_LEN as usize;
            let within = (index % FRAMES_PER_BLOCK) as usize * FRAME_LEN as usize;
            // SAFETY: frames lie in blocks, and blocks in the mapping.
            let at = unsafe { memory.add(block + within) };
            Slot { memory: Cell::new(at), out: Cell::new(false), generation: Cell::new(0) }
        };
        let slots = (0..blocks * FRAMES_PER_BLOCK).map(slot).collect();
        let (out_count, detached) = (Cell::new(0), RefCell::default());
        let ring = Ring { socket, memory, memory_len, slots, out_count, detached };
        bind(&ring.socket, ifindex, libc::ETH_P_ALL as u16)
            .map_err(|error| OpenError::system(name, "bind a raw packet socket to it", error))?;
        Ok(ring)
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(super) fn frames(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Frames that are lent out now, detached ones not counted.
    #[inline]
    pub(super) fn frames_out(&self) -> u32 {
        self.out_count.get()
    }

    #[inline]
    pub(super) fn is_out(&self, index: u32) -> bool {
        self.slots[index as usize].out.get()
    }

    /// True when frame `index` holds a packet for us.
    #[inline]
    pub(super) fn is_ready(&self, index: u32) -> bool {
        !self.is_out(index) && self.status(index).load(Ordering::Acquire) & USER != 0
    }

    #[inline]
    fn status(&self, index: u32) -> &AtomicU32 {
        // SAFETY: each frame begins with its 32-bit status word, aligned, mapped as long as `self` lives, and
        // accessed by both sides as an atomic. A frame moves only in `detach`, which keeps no such reference.
        unsafe { AtomicU32::from_ptr(self.slots[index as usize].memory.get().cast().as_ptr()) }
    }

    /// Takes frame `index`, which is lent out, back for the kernel: the frame's pages move to another address, and
    /// a private copy takes their place, so that the block that is out keeps its address and its bytes.
    ///
    /// There is something at the old address at every moment: another thread's `mmap` would take a hole.
    ///
    /// Measured: 18 µs for a frame of 5 KB, 55 µs for one of 64 KB, most of it page faults. False when too many are
    /// detached already or the kernel gives no memory, or cannot move pages alone (before Linux 5.13).
    pub(super) fn detach(&self, index: u32) -> bool {
        let mut detached = self.detached.borrow_mut();
        if detached.copies.len() >= DETACHED_LIMIT {
            return false;
        }
        if detached.spare.is_empty() {
            let Some(range) = map_private() else { return false };
            detached.spare.push(range);
            detached.made.push(range);
        }
        let slot = &self.slots[index as usize];
        let (old, Some(copy)) = (slot.memory.get(), map_private()) else { return false };
        // SAFETY: the frame begins with this structure and is ours while its status says USER.
        let header: libc::tpacket2_hdr = unsafe { old.cast().read() };
        let used = u32::from(header.tp_mac).saturating_add(header.tp_snaplen).min(FRAME_LEN);
        // SAFETY: both ranges are mapped and FRAME_LEN long; the frame's holder is on this thread, so nobody writes
        // it meanwhile, and the kernel does not touch a frame whose status says USER.
        unsafe { std::ptr::copy_nonoverlapping(old.as_ptr(), copy.as_ptr(), used as usize) };
        let fresh = *detached.spare.last().expect("one was just put there");
        // SAFETY: `fresh` is a range of ours that nothing refers to, and the holder of `old` is on this thread.
        if !unsafe { move_range(old, fresh, libc::MREMAP_DONTUNMAP) } {
            // SAFETY: `copy` was made above.
            unsafe { libc::munmap(copy.as_ptr().cast(), FRAME_LEN as usize) };
            return false;
        }
        detached.spare.pop();
        // SAFETY: `old` has no pages now, and only the holder's block points there; the copy has the same bytes.
        let placed = unsafe { move_range(copy, old, 0) };
        // No pages under a block that is out cannot be left: better no engine than one that faults later.
        assert!(placed, "the kernel took a page range and did not give it back");
        slot.memory.set(fresh);
        detached.copies.push((tag(index, slot.generation.get()), old));
        slot.generation.set(slot.generation.get().wrapping_add(1));
        slot.out.set(false);
        self.out_count.set(self.out_count.get() - 1);
        self.status(index).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        true
    }
}

/// A block's tag: the frame it was lent from and the frame's generation.
fn tag(index: u32, generation: u16) -> u32 {
    u32::from(generation) << 16 | index
}

/// Zeroed private memory for one frame.
fn map_private() -> Option<NonNull<u8>> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh anonymous mapping.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), FRAME_LEN as usize, access, kind, -1, 0) };
    if memory == libc::MAP_FAILED { None } else { NonNull::new(memory.cast()) }
}

/// Moves the pages of one frame's range to another's place. With `MREMAP_DONTUNMAP` the range stays, without pages.
///
/// # Safety
/// `from` is mapped, and whatever is mapped at `to` may go.
unsafe fn move_range(from: NonNull<u8>, to: NonNull<u8>, flags: libc::c_int) -> bool {
    let len = FRAME_LEN as usize;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | flags;
    // SAFETY: see above.
    let at = unsafe { libc::mremap(from.as_ptr().cast(), len, len, flags, to.as_ptr()) };
    at != libc::MAP_FAILED
}

impl BlockOwner for Ring {
    #[inline]
    fn release(&self, released: u32) {
        let index = released & 0xffff;
        let slot = &self.slots[index as usize];
        if released == tag(index, slot.generation.get()) && slot.out.get() {
            slot.out.set(false);
            self.out_count.set(self.out_count.get() - 1);
            self.status(index).store(libc::TP_STATUS_KERNEL, Ordering::Release);
            return;
        }
        let mut detached = self.detached.borrow_mut();
        if let Some(at) = detached.copies.iter().position(|(tag, _)| *tag == released) {
            let (_, range) = detached.copies.swap_remove(at);
            // SAFETY: the copy's only holder has gone; the range stays ours, its pages go.
            unsafe { libc::madvise(range.as_ptr().cast(), FRAME_LEN as usize, libc::MADV_DONTNEED) };
            detached.spare.push(range);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: our mappings; every block holds an `Rc` to us, so none points into them any more.
        unsafe {
            libc::munmap(self.memory.as_ptr().cast(), self.memory_len);
            for range in &self.detached.get_mut().made {
                libc::munmap(range.as_ptr().cast(), FRAME_LEN as usize);
            }
        }
    }
}

/// A frame that the kernel has given us and that we have not yet lent or given back.
pub(super) struct Frame<'a> {
    ring: &'a Rc<Ring>,
    index: u32,
    header: libc::tpacket2_hdr,
    memory: NonNull<u8>,
    /// First byte of the packet, from the start of the frame.
    start: u32,
    len: u32,
}

impl<'a> Frame<'a> {
    /// The packet in frame `index`, if there is one.
    #[inline]
    pub(super) fn take(ring: &'a Rc<Ring>, index: u32) -> Option<Frame<'a>> {
        if !ring.is_ready(index) {
            return None;
        }
        let memory = ring.slots[index as usize].memory.get();
        // SAFETY: the frame begins with this structure, and is ours since its status says USER (Acquire).
        let header: libc::tpacket2_hdr = unsafe { memory.cast().read() };
        let (start, len) = (u32::from(header.tp_mac), header.tp_snaplen);
        Some(Frame { ring, index, header, memory, start, len })
    }

    /// The kernel or the hardware has verified its transport checksum.
    #[inline]
    pub(super) fn checksum_valid(&self) -> bool {
        self.header.tp_status & libc::TP_STATUS_CSUM_VALID != 0
    }

    /// Length once the VLAN tag is back.
    #[inline]
    pub(super) fn restored_len(&self) -> u32 {
        let vlan = self.header.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
        self.len + if vlan { 4 } else { 0 }
    }

    #[inline]
    pub(super) fn packet_type(&self) -> libc::c_uchar {
        const PACKET_TYPE_AT: usize = std::mem::offset_of!(libc::sockaddr_ll, sll_pkttype);
        // SAFETY: a `sockaddr_ll` stands at this offset of each frame, which is ours.
        unsafe { self.memory.add(ADDRESS_AT + PACKET_TYPE_AT).read() }
    }

    /// True for a packet that the kernel has put into the socket's queue too, since it does not fit, and for one whose
    /// IP header cannot say how long it is.
    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.header.tp_status & libc::TP_STATUS_COPY != 0 || self.len > MAX_HONEST_LEN
    }

    /// False when the packet is cut short, or the header is not sane.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.header.tp_len == self.len
            && self.len >= 14
            && self.start as usize >= ADDRESS_AT + size_of::<libc::sockaddr_ll>() + VNET_LEN
            && self.start.checked_add(self.len).is_some_and(|end| end <= FRAME_LEN)
    }

    #[inline]
    pub(super) fn vnet(&self) -> VnetHeader {
        // SAFETY: `is_whole` found room for it in front of the packet; the frame is ours.
        let bytes = unsafe {
            let at = self.memory.add(self.start as usize - VNET_LEN);
            std::slice::from_raw_parts(at.as_ptr(), VNET_LEN)
        };
        VnetHeader::read(bytes)
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `is_whole` found the packet inside the frame, which is ours; zeroed or written by the kernel.
        unsafe {
            let at = self.memory.add(self.start as usize);
            std::slice::from_raw_parts(at.as_ptr(), self.len as usize)
        }
    }

    /// The VLAN tag that the driver or kernel took out, as it stood in the frame.
    pub(super) fn vlan(&self) -> Option<[u8; 4]> {
        if self.header.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
            return None;
        }
        let protocol = if self.header.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
            self.header.tp_vlan_tpid
        } else {
            0x8100
        };
        let ([a, b], [c, d]) = (protocol.to_be_bytes(), self.header.tp_vlan_tci.to_be_bytes());
        Some([a, b, c, d])
    }

    /// Puts such a tag back in its place, over the vnet header (already read).
    pub(super) fn restore_vlan(&mut self, tag: [u8; 4]) {
        const { assert!(VNET_LEN >= 4) };
        self.start -= 4;
        self.len += 4;
        // SAFETY: the four bytes in front were the vnet header's; the sixteen lie inside the frame, which is ours.
        let bytes = unsafe {
            let at = self.memory.add(self.start as usize);
            std::slice::from_raw_parts_mut(at.as_ptr(), 16)
        };
        bytes.copy_within(4.., 0);
        bytes[12..].copy_from_slice(&tag);
    }

    #[inline]
    pub(super) fn give_back(self) {
        self.ring.status(self.index).store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }

    #[inline]
    pub(super) fn lend(self) -> Block {
        let slot = &self.ring.slots[self.index as usize];
        slot.out.set(true);
        self.ring.out_count.set(self.ring.out_count.get() + 1);
        // SAFETY: the bytes lie inside the frame (`is_whole`); the frame stays ours, and no one else's, until
        // `release` stores KERNEL; the mapping lives as long as the ring, which the block holds.
        unsafe {
            let memory = self.memory.add(self.start as usize);
            Block::lent(memory, self.len, tag(self.index, slot.generation.get()), self.ring.clone())
        }
    }
}
