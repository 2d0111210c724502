//! A ring's submission queue, and which descriptors its entries name.
//!
//! ```text
//! queue     head (the kernel's), tail (the program's), array of places, or none (IORING_SETUP_NO_SQARRAY)
//! entries   64 bytes each, 128 with IORING_SETUP_SQE128 (`struct io_uring_sqe`):
//!           0 opcode  1 flags  2 ioprio  4 fd  8 off  16 addr  24 len  28 op flags  …  44 splice_fd_in, file_index
//! ```
//!
//! Whatever waits is looked at, also beyond what this call submits: another thread's call may come first.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Parameters, SETUP_NO_SQARRAY, SETUP_SQE128, each_file, moving};

/// `linux/io_uring.h`: IORING_OFF_SQ_RING, IORING_OFF_SQES.
const OFF_QUEUE: libc::off_t = 0;
const OFF_ENTRIES: libc::off_t = 0x1000_0000;
const ENTRY_LEN: usize = 64;
/// IOSQE_FIXED_FILE: the descriptor is an index among those registered.
const FIXED_FILE: u8 = 1;
/// SPLICE_F_FD_IN_FIXED.
const IN_IS_FIXED: u32 = 1 << 31;

/// Operations, `enum io_uring_op`.
mod op {
    pub(super) const NOP: u8 = 0;
    pub(super) const POLL_REMOVE: u8 = 7;
    pub(super) const TIMEOUT: u8 = 11;
    pub(super) const TIMEOUT_REMOVE: u8 = 12;
    pub(super) const ASYNC_CANCEL: u8 = 14;
    pub(super) const LINK_TIMEOUT: u8 = 15;
    pub(super) const OPENAT: u8 = 18;
    pub(super) const CLOSE: u8 = 19;
    pub(super) const FILES_UPDATE: u8 = 20;
    pub(super) const STATX: u8 = 21;
    pub(super) const MADVISE: u8 = 25;
    pub(super) const OPENAT2: u8 = 28;
    pub(super) const EPOLL_CTL: u8 = 29;
    pub(super) const SPLICE: u8 = 30;
    pub(super) const PROVIDE_BUFFERS: u8 = 31;
    pub(super) const REMOVE_BUFFERS: u8 = 32;
    pub(super) const TEE: u8 = 33;
    pub(super) const RENAMEAT: u8 = 35;
    pub(super) const LINKAT: u8 = 39;
    pub(super) const MSG_RING: u8 = 40;
    pub(super) const SETXATTR: u8 = 42;
    pub(super) const GETXATTR: u8 = 44;
    pub(super) const SOCKET: u8 = 45;
    pub(super) const WAITID: u8 = 50;
    pub(super) const FUTEX_WAITV: u8 = 53;
    pub(super) const FIXED_FD_INSTALL: u8 = 54;
    pub(super) const PIPE: u8 = 62;
}

/// Our mapping of a ring.
pub(super) struct View {
    queue: *const u8,
    queue_len: usize,
    entries: *const u8,
    entries_len: usize,
    head: usize,
    tail: usize,
    /// `None`: entries stand in the order of the queue.
    array: Option<usize>,
    count: u32,
    stride: usize,
}

/// What an entry says, read once.
#[derive(Clone, Copy)]
pub(super) struct Said {
    operation: u8,
    flags: u8,
    fd: c_int,
    offset: u64,
    address: u64,
    len: u32,
    operation_flags: u32,
    /// `splice_fd_in` or `file_index`.
    other: u32,
}

impl View {
    /// `None`: there is no room, or the kernel says of the ring what cannot be.
    pub(super) fn map(fd: c_int, parameters: &Parameters) -> Option<View> {
        let count = parameters.sq_entries;
        let offsets = &parameters.sq_off;
        let stride = if parameters.flags & SETUP_SQE128 != 0 { 2 * ENTRY_LEN } else { ENTRY_LEN };
        let array = (parameters.flags & SETUP_NO_SQARRAY == 0).then_some(offsets.array as usize);
        if !count.is_power_of_two() {
            return None;
        }
        let word = size_of::<u32>();
        let last_word = offsets.head.max(offsets.tail) as usize + word;
        let queue_len = last_word.max(array.map_or(0, |array| array + count as usize * word));
        let entries_len = count as usize * stride;
        let queue = map(fd, queue_len, OFF_QUEUE)?;
        let Some(entries) = map(fd, entries_len, OFF_ENTRIES) else {
            unmap(queue, queue_len);
            return None;
        };
        let (head, tail) = (offsets.head as usize, offsets.tail as usize);
        Some(View { queue, queue_len, entries, entries_len, head, tail, array, count, stride })
    }

    /// A word of a mapping that is so long; the offset is within.
    fn word(mapping: *const u8, offset: usize) -> &'static AtomicU32 {
        // SAFETY: callers keep to the mappings' lengths; offsets are the kernel's, and multiples of four.
        unsafe { AtomicU32::from_ptr(mapping.add(offset).cast_mut().cast()) }
    }

    /// Calls `visit` with each entry that waits to be submitted.
    pub(super) fn each_waiting(&self, mut visit: impl FnMut(Said)) {
        let head = View::word(self.queue, self.head).load(Ordering::Acquire);
        let tail = View::word(self.queue, self.tail).load(Ordering::Acquire);
        for step in 0..tail.wrapping_sub(head).min(self.count) {
            let place = (head.wrapping_add(step) & (self.count - 1)) as usize;
            let index = match self.array {
                Some(array) => View::word(self.queue, array + 4 * place).load(Ordering::Relaxed) as usize,
                None => place,
            };
            // The kernel drops others.
            if index < self.count as usize {
                visit(self.said(index));
            }
        }
    }

    fn said(&self, index: usize) -> Said {
        let word =
            |offset: usize| View::word(self.entries, index * self.stride + offset).load(Ordering::Relaxed);
        let long = |offset: usize| u64::from(word(offset)) | u64::from(word(offset + 4)) << 32;
        let [operation, flags, ..] = word(0).to_le_bytes();
        Said {
            operation,
            flags,
            fd: word(4).cast_signed(),
            offset: long(8),
            address: long(16),
            len: word(24),
            operation_flags: word(28),
            other: word(44),
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        unmap(self.queue, self.queue_len);
        unmap(self.entries, self.entries_len);
    }
}

fn map(fd: c_int, len: usize, offset: libc::off_t) -> Option<*const u8> {
    // SAFETY: a fresh mapping of the ring, where the kernel puts it.
    let memory = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, offset) };
    (memory != libc::MAP_FAILED).then_some(memory.cast_const().cast())
}

fn unmap(memory: *const u8, len: usize) {
    // SAFETY: a mapping of ours, whose last user this is.
    unsafe { libc::munmap(memory.cast_mut().cast::<c_void>(), len) };
}

/// What an entry names is the kernel's before the kernel has the entry.
pub(super) fn look_at(said: Said) {
    let Said { operation, flags, fd, .. } = said;
    match operation {
        // `fd` is none, a directory, a ring, a domain, or names what is to be cancelled.
        op::NOP
        | op::POLL_REMOVE
        | op::TIMEOUT
        | op::TIMEOUT_REMOVE
        | op::ASYNC_CANCEL
        | op::LINK_TIMEOUT
        | op::OPENAT
        | op::OPENAT2
        | op::STATX
        | op::MADVISE
        | op::PROVIDE_BUFFERS
        | op::REMOVE_BUFFERS
        | op::RENAMEAT..=op::LINKAT
        | op::MSG_RING
        | op::SETXATTR
        | op::GETXATTR
        | op::WAITID..=op::FUTEX_WAITV
        | op::FIXED_FD_INSTALL
        | op::PIPE => {}
        op::SOCKET => moving::made(),
        op::CLOSE if said.other == 0 => moving::closing(fd),
        op::CLOSE => {}
        op::FILES_UPDATE => each_file(said.address as usize, said.len),
        op::EPOLL_CTL => moving::named(said.offset as c_int),
        _ => {
            if flags & FIXED_FILE == 0 {
                moving::named(fd);
            }
            if matches!(operation, op::SPLICE | op::TEE) && said.operation_flags & IN_IS_FIXED == 0 {
                moving::named(said.other.cast_signed());
            }
        }
    }
}
