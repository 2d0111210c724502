//! The memory that packets lie in, ours and the kernel's (af_xdp.rst: UMEM): equal chunks, each with one holder.
//!
//! ```text
//!   chunks to receive:  free ─► fill ring ─► kernel ─► receive ring ─► lent as a block ─► free
//!   chunks to send:     free ─► transmit ring ─► kernel ─► completion ring ─► free
//! ```
//! A chunk that is lent stands in nobody's way: chunks come back in any order, and any free one is filled next. Those
//! given back last are taken first, while they are in the cache.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::rc::Rc;

use scoutline_ring::{Block, BlockOwner, prefer_huge_pages};

use crate::error::OpenError;

/// Memory for packets. Lives while any block lent from it does.
pub(super) struct Umem {
    memory: NonNull<u8>,
    len: usize,
    chunk_len: u32,
    /// Chunks before this one are to receive, those from it on to send.
    receive_chunks: u32,
    free: RefCell<Vec<u32>>,
    /// Chunks that are lent now.
    lent: Cell<u32>,
}

impl Umem {
    /// Chunks of `chunk_len` bytes, a power of two from 2,048 to a page.
    pub(super) fn new(
        name: &str,
        chunk_len: u32,
        receive_chunks: u32,
        send_chunks: u32,
    ) -> Result<Umem, OpenError> {
        let len = chunk_len as usize * (receive_chunks + send_chunks) as usize;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, kind, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(OpenError::system(name, "have memory for its packets", io::Error::last_os_error()));
        }
        let memory = NonNull::new(memory.cast::<u8>()).expect("mmap gives no null pointer");
        // SAFETY: all of the mapping, which is nobody else's yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().cast::<MaybeUninit<u8>>(), len) };
        // Before the kernel pins it, and so touches all.
        prefer_huge_pages(bytes);
        let free = RefCell::new((0..receive_chunks).rev().collect());
        Ok(Umem { memory, len, chunk_len, receive_chunks, free, lent: Cell::new(0) })
    }

    /// As the kernel registers it. `metadata_len`: bytes in front of a packet to send that say what to do with it.
    pub(super) fn registration(&self, metadata_len: u32) -> libc::xdp_umem_reg {
        libc::xdp_umem_reg {
            addr: self.memory.as_ptr() as u64,
            len: self.len as u64,
            chunk_size: self.chunk_len,
            headroom: 0,
            flags: if metadata_len > 0 { libc::XDP_UMEM_TX_METADATA_LEN } else { 0 },
            tx_metadata_len: metadata_len,
        }
    }

    pub(super) fn chunk_len(&self) -> u32 {
        self.chunk_len
    }

    /// Where a chunk begins, as the kernel counts.
    #[inline]
    pub(super) fn address(&self, chunk: u32) -> u64 {
        u64::from(chunk) * u64::from(self.chunk_len)
    }

    /// The chunk that an address lies in.
    #[inline]
    pub(super) fn chunk(&self, address: u64) -> u32 {
        (address / u64::from(self.chunk_len)) as u32
    }

    /// A free chunk to receive into.
    #[inline]
    pub(super) fn take(&self) -> Option<u32> {
        self.free.borrow_mut().pop()
    }

    /// A chunk to receive into is free again.
    #[inline]
    pub(super) fn give_back(&self, chunk: u32) {
        self.free.borrow_mut().push(chunk);
    }

    /// False when half of the chunks are lent: the others are for the kernel to fill.
    #[inline]
    pub(super) fn may_lend(&self) -> bool {
        self.lent.get() < self.receive_chunks / 2
    }

    /// Where a received packet lies, or a part of one: `None` when it does not lie within a chunk to receive.
    #[inline]
    pub(super) fn received(&self, part: &libc::xdp_desc) -> Option<&[u8]> {
        let within = part.addr % u64::from(self.chunk_len) + u64::from(part.len);
        if within > u64::from(self.chunk_len) || self.chunk(part.addr) >= self.receive_chunks {
            return None;
        }
        // SAFETY: inside the mapping; zeroed or written by the kernel, which has given it to us.
        Some(unsafe {
            std::slice::from_raw_parts(self.memory.add(part.addr as usize).as_ptr(), part.len as usize)
        })
    }

    /// Lends a packet that was [received](Umem::received) whole in one chunk.
    #[inline]
    pub(super) fn lend(self: &Rc<Umem>, part: &libc::xdp_desc) -> Block {
        debug_assert!(self.received(part).is_some(), "a packet in a chunk");
        let chunk = self.chunk(part.addr);
        self.lent.set(self.lent.get() + 1);
        // SAFETY: the bytes lie inside the mapping, which lives as long as the block's owner. The chunk is ours, and no
        // one else's, until `release` puts it among the free ones.
        unsafe { Block::lent(self.memory.add(part.addr as usize), part.len, chunk, self.clone()) }
    }

    /// The bytes of a chunk to send, from `start` on.
    ///
    /// # Safety
    /// The chunk is one to send, the kernel does not have it, and there is no other such slice of it.
    #[expect(clippy::mut_from_ref, reason = "the kernel and we share the memory chunk by chunk")]
    pub(super) unsafe fn to_send(&self, chunk: u32, start: u32) -> &mut [u8] {
        assert!(self.address(chunk) < self.len as u64 && start <= self.chunk_len, "a chunk of ours");
        // SAFETY: inside the mapping; exclusive, as the caller says.
        unsafe {
            let at = self.memory.add(self.address(chunk) as usize + start as usize);
            std::slice::from_raw_parts_mut(at.as_ptr(), (self.chunk_len - start) as usize)
        }
    }

    /// The chunks to send.
    pub(super) fn send_chunks(&self) -> std::ops::Range<u32> {
        self.receive_chunks..(self.len / self.chunk_len as usize) as u32
    }
}

impl BlockOwner for Umem {
    #[inline]
    fn release(&self, chunk: u32) {
        self.lent.set(self.lent.get() - 1);
        self.give_back(chunk);
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: our mapping; every block holds an `Rc` to us, so none points into it. What the kernel still has of
        // it, it has pinned.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.len) };
    }
}
