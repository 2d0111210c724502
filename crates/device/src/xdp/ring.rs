//! The four kinds of ring that an AF_XDP socket shares with the kernel (Documentation/networking/af_xdp.rst).
//!
//! ```text
//!   producer, consumer: counts of all entries ever put in and taken out; entry n stands at n modulo the size
//!
//!   fill         we produce chunks to receive into       the kernel takes them
//!   receive      the kernel produces received packets    we take them
//!   transmit     we produce packets to send              the kernel takes them
//!   completion   the kernel produces chunks it has sent  we take them
//! ```
//! Who produces writes entries, then stores the producer's count (Release); who consumes loads that count (Acquire),
//! reads the entries, then stores the consumer's count (Release), which the producer loads (Acquire) before it writes
//! there again. Each side keeps its own count.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// One mapped ring of entries `T`; it lives on when the socket is closed.
struct Mapping<T> {
    memory: NonNull<u8>,
    len: usize,
    offsets: libc::xdp_ring_offset,
    size: u32,
    entries: PhantomData<T>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and has one user, whichever thread that is in.
unsafe impl<T: Send> Send for Mapping<T> {}

impl<T: Copy> Mapping<T> {
    fn new(socket: &OwnedFd, page: i64, size: u32, offsets: libc::xdp_ring_offset) -> io::Result<Mapping<T>> {
        assert!(size.is_power_of_two(), "the kernel wants powers of two");
        let len = offsets.desc as usize + size as usize * size_of::<T>();
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a fresh mapping of a ring that was just set up.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, socket.as_raw_fd(), page) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).expect("mmap gives no null pointer");
        Ok(Mapping { memory, len, offsets, size, entries: PhantomData })
    }

    #[inline]
    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel says where its 32-bit words stand, aligned, inside the mapping, which lives as long as
        // `self`; both sides access them as atomics.
        unsafe { AtomicU32::from_ptr(self.memory.add(offset as usize).cast().as_ptr()) }
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    #[inline]
    fn entry(&self, count: u32) -> NonNull<T> {
        let at = self.offsets.desc as usize + (count & (self.size - 1)) as usize * size_of::<T>();
        // SAFETY: inside the mapping, see `new`.
        unsafe { self.memory.add(at).cast() }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nobody refers into it.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.len) };
    }
}

/// A ring that we put entries into.
pub(super) struct Producer<T> {
    ring: Mapping<T>,
    /// Entries put in so far; the kernel sees them once they are published.
    next: u32,
}

impl<T: Copy> Producer<T> {
    pub(super) fn new(
        socket: &OwnedFd,
        page: i64,
        size: u32,
        offsets: libc::xdp_ring_offset,
    ) -> io::Result<Producer<T>> {
        Ok(Producer { ring: Mapping::new(socket, page, size, offsets)?, next: 0 })
    }

    /// Puts an entry in. There has to be room: by [`Producer::waiting`], or because no more entries exist. The kernel does
    /// not see it yet.
    #[inline]
    pub(super) fn put(&mut self, entry: T) {
        debug_assert!(self.waiting() < self.ring.size, "no room");
        // SAFETY: the kernel has taken what stood there (the caller knows), and does not look there until `publish`.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Gives the kernel all entries that were put in.
    #[inline]
    pub(super) fn publish(&self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Entries that the kernel has not taken.
    #[inline]
    pub(super) fn waiting(&self) -> u32 {
        self.next.wrapping_sub(self.ring.consumer().load(Ordering::Acquire))
    }

    /// True when the kernel goes on with this ring only after a system call.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.word(self.ring.offsets.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring that we take entries from.
pub(super) struct Consumer<T> {
    ring: Mapping<T>,
    /// Entries taken so far; the kernel sees it once they are released.
    next: u32,
    /// The kernel had put in so many when we looked last.
    put: u32,
}

impl<T: Copy> Consumer<T> {
    pub(super) fn new(
        socket: &OwnedFd,
        page: i64,
        size: u32,
        offsets: libc::xdp_ring_offset,
    ) -> io::Result<Consumer<T>> {
        Ok(Consumer { ring: Mapping::new(socket, page, size, offsets)?, next: 0, put: 0 })
    }

    /// True when there is an entry.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.ring.producer().load(Ordering::Acquire) != self.next
    }

    /// Entry number `ahead` from the front, if it is there; it stays.
    #[inline]
    pub(super) fn peek(&mut self, ahead: u32) -> Option<T> {
        if self.put.wrapping_sub(self.next) <= ahead {
            self.put = self.ring.producer().load(Ordering::Acquire);
            if self.put.wrapping_sub(self.next) <= ahead {
                return None;
            }
        }
        // SAFETY: the kernel has written it (Acquire above) and leaves it alone until it is released.
        Some(unsafe { self.ring.entry(self.next.wrapping_add(ahead)).read() })
    }

    /// The same among those that were there when [`Consumer::peek`] has looked.
    #[inline]
    pub(super) fn known(&self, ahead: u32) -> Option<T> {
        // SAFETY: as there.
        (self.put.wrapping_sub(self.next) > ahead)
            .then(|| unsafe { self.ring.entry(self.next.wrapping_add(ahead)).read() })
    }

    /// So many from the front were taken. The kernel does not see it yet.
    #[inline]
    pub(super) fn take(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
    }

    /// Gives the places of all entries that were taken back to the kernel.
    #[inline]
    pub(super) fn release(&self) {
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}
