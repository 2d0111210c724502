//! The memory that packets lie in, ours and the kernel's (af_xdp.rst: UMEM): equal chunks, each with one holder.
//!
//! ```text
//!   chunks to receive:  free ─► fill ring ─► kernel ─► receive ring ─► lent as a block ─► free
//!   chunks to send:     free ─► transmit ring ─► kernel ─► completion ring ─► free
//! ```
//! A chunk that is lent stands in nobody's way: chunks come back in any order, and any free one is filled next. Those
//! given back last are taken first, while they are in the cache.
//!
//! Several engines share the memory. A chunk is whoever's ring it came by, comes back to the engine that lent it, and goes
//! from there to where all free ones are (`fill.rs`).

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use scoutline_ring::{Block, BlockOwner, prefer_huge_pages};

use crate::error::OpenError;

/// Memory for packets, of all engines.
pub(super) struct Memory {
    at: NonNull<u8>,
    len: usize,
    chunk_len: u32,
    /// Chunks before this one are to receive, those from it on to send.
    receive_chunks: u32,
}

// SAFETY: the mapping belongs to the process, not to a thread; of each chunk there is one holder, who alone uses its bytes.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// The memory as one engine has it. Lives while any block lent from it does.
pub(super) struct Umem {
    memory: Arc<Memory>,
    /// Chunks to receive that came back.
    free: RefCell<Vec<u32>>,
    /// Chunks that are lent now.
    lent: Cell<u32>,
    most_lent: u32,
    send_chunks: Range<u32>,
}

impl Memory {
    /// Chunks of `chunk_len` bytes, a power of two from 2,048 to a page.
    pub(super) fn new(
        name: &str,
        chunk_len: u32,
        receive_chunks: u32,
        send_chunks: u32,
    ) -> Result<Memory, OpenError> {
        let len = chunk_len as usize * (receive_chunks + send_chunks) as usize;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, kind, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(OpenError::system(name, "have memory for its packets", io::Error::last_os_error()));
        }
        let at = NonNull::new(memory.cast::<u8>()).expect("mmap gives no null pointer");
        // SAFETY: all of the mapping, which is nobody else's yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr().cast::<MaybeUninit<u8>>(), len) };
        // Before the kernel pins it, and so touches all.
        prefer_huge_pages(bytes);
        Ok(Memory { at, len, chunk_len, receive_chunks })
    }

    /// As the kernel registers it. `metadata_len`: bytes in front of a packet to send that say what to do with it.
    pub(super) fn registration(&self, metadata_len: u32) -> libc::xdp_umem_reg {
        libc::xdp_umem_reg {
            addr: self.at.as_ptr() as u64,
            len: self.len as u64,
            chunk_size: self.chunk_len,
            headroom: 0,
            flags: if metadata_len > 0 { libc::XDP_UMEM_TX_METADATA_LEN } else { 0 },
            tx_metadata_len: metadata_len,
        }
    }

    /// How many chunks there are to receive into.
    pub(super) fn receive_chunks(&self) -> u32 {
        self.receive_chunks
    }

    /// Where a chunk begins, as the kernel counts.
    #[inline]
    pub(super) fn address(&self, chunk: u32) -> u64 {
        u64::from(chunk) * u64::from(self.chunk_len)
    }

    /// The chunk that an address lies in.
    #[inline]
    fn chunk(&self, address: u64) -> u32 {
        (address / u64::from(self.chunk_len)) as u32
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our mapping; every block holds an `Rc` that holds us, so none points into it. What the kernel still has
        // of it, it has pinned.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

impl Umem {
    /// For an engine that lends so many chunks at most, and sends by these.
    pub(super) fn new(memory: Arc<Memory>, most_lent: u32, send_chunks: Range<u32>) -> Umem {
        Umem { memory, free: RefCell::default(), lent: Cell::new(0), most_lent, send_chunks }
    }

    pub(super) fn chunk_len(&self) -> u32 {
        self.memory.chunk_len
    }

    /// Where a chunk begins, as the kernel counts.
    #[inline]
    pub(super) fn address(&self, chunk: u32) -> u64 {
        self.memory.address(chunk)
    }

    /// The chunk that an address lies in.
    #[inline]
    pub(super) fn chunk(&self, address: u64) -> u32 {
        self.memory.chunk(address)
    }

    /// Moves the chunks that came back to others.
    #[inline]
    pub(super) fn give_free(&self, to: &mut Vec<u32>) {
        to.append(&mut self.free.borrow_mut());
    }

    /// A chunk to receive into is free again.
    #[inline]
    pub(super) fn give_back(&self, chunk: u32) {
        self.free.borrow_mut().push(chunk);
    }

    /// False when so many are lent that the others are for the kernel to fill, and for other engines.
    #[inline]
    pub(super) fn may_lend(&self) -> bool {
        self.lent.get() < self.most_lent
    }

    /// Where a received packet lies, or a part of one: `None` when it does not lie within a chunk to receive.
    #[inline]
    pub(super) fn received(&self, part: &libc::xdp_desc) -> Option<&[u8]> {
        let Memory { at, chunk_len, receive_chunks, .. } = *self.memory;
        let within = part.addr % u64::from(chunk_len) + u64::from(part.len);
        if within > u64::from(chunk_len) || self.chunk(part.addr) >= receive_chunks {
            return None;
        }
        // SAFETY: inside the mapping; zeroed or written by the kernel, which has given it to us.
        Some(unsafe { std::slice::from_raw_parts(at.add(part.addr as usize).as_ptr(), part.len as usize) })
    }

    /// Lends a packet that was [received](Umem::received) whole in one chunk.
    #[inline]
    pub(super) fn lend(self: &Rc<Umem>, part: &libc::xdp_desc) -> Block {
        debug_assert!(self.received(part).is_some(), "a packet in a chunk");
        let chunk = self.chunk(part.addr);
        self.lent.set(self.lent.get() + 1);
        // SAFETY: the bytes lie inside the mapping, which lives as long as the block's owner. The chunk is ours, and no
        // one else's, until `release` puts it among the free ones.
        unsafe { Block::lent(self.memory.at.add(part.addr as usize), part.len, chunk, self.clone()) }
    }

    /// The bytes of a chunk to send, from `start` on.
    ///
    /// # Safety
    /// The chunk is one to send, the kernel does not have it, and there is no other such slice of it.
    #[expect(clippy::mut_from_ref, reason = "the kernel and we share the memory chunk by chunk")]
    pub(super) unsafe fn to_send(&self, chunk: u32, start: u32) -> &mut [u8] {
        let Memory { at, chunk_len, .. } = *self.memory;
        assert!(self.send_chunks.contains(&chunk) && start <= chunk_len, "a chunk of ours");
        // SAFETY: inside the mapping; exclusive, as the caller says.
        unsafe {
            let at = at.add(self.address(chunk) as usize + start as usize);
            std::slice::from_raw_parts_mut(at.as_ptr(), (chunk_len - start) as usize)
        }
    }

    /// The chunks to send.
    pub(super) fn send_chunks(&self) -> Range<u32> {
        self.send_chunks.clone()
    }
}

impl BlockOwner for Umem {
    #[inline]
    fn release(&self, chunk: u32) {
        self.lent.set(self.lent.get() - 1);
        self.give_back(chunk);
    }
}
