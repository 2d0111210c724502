//! A ring's submission queue, as we see it.
//!
//! ```text
//! queue     head (the kernel's), tail (the program's), array of places, or none (IORING_SETUP_NO_SQARRAY)
//! entries   64 bytes each, 128 with IORING_SETUP_SQE128 (`struct io_uring_sqe`):
//!           0 opcode  1 flags  2 ioprio  4 fd  8 off  16 addr  24 len  28 op flags  32 user_data
//!           44 splice_fd_in, file_index, addr_len
//! ```
//!
//! What a call submits is looked at, and no more: the rest may still change.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// `linux/io_uring.h`: IORING_OFF_SQ_RING, IORING_OFF_SQES.
pub(crate) const OFF_QUEUE: libc::off_t = 0;
pub(crate) const OFF_ENTRIES: libc::off_t = 0x1000_0000;
pub(crate) const ENTRY_LEN: usize = 64;
/// IORING_OP_NOP, and IORING_NOP_INJECT_RESULT (Linux 6.10): its result is what `len` says.
pub(crate) const NOP: u8 = 0;
const NOP_INJECT_RESULT: u32 = 1;
/// IOSQE_FIXED_FILE: the descriptor is an index among those registered.
pub(crate) const FIXED_FILE: u8 = 1;

/// IOSQE_IO_DRAIN: after all before it.
pub(crate) const DRAIN: u8 = 1 << 1;
/// IOSQE_IO_LINK: the next one waits for it, and fails with it; IOSQE_IO_HARDLINK, it only waits.
pub(crate) const LINK: u8 = 1 << 2;
pub(crate) const LINKS: u8 = LINK | 1 << 3;
/// IOSQE_ASYNC: by a thread of the kernel's.
const ASYNC: u8 = 1 << 4;
/// IOSQE_BUFFER_SELECT: into a buffer of those that the ring was given.
pub(crate) const BUFFER_SELECT: u8 = 1 << 5;
/// IOSQE_CQE_SKIP_SUCCESS: nothing is said of success.
pub(crate) const SKIP_SUCCESS: u8 = 1 << 6;

/// Where things are, as `io_uring_setup` says.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) count: u32,
    pub(crate) head: u32,
    pub(crate) tail: u32,
    /// `None`: entries stand in the order of the queue.
    pub(crate) array: Option<u32>,
    /// Entries of 128 bytes.
    pub(crate) long: bool,
}

/// Our mapping of a ring.
pub(crate) struct View {
    queue: *const u8,
    queue_len: usize,
    entries: *const u8,
    entries_len: usize,
    shape: Shape,
    stride: usize,
}

/// What an entry says, read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) operation: u8,
    pub(crate) flags: u8,
    /// `ioprio`.
    pub(crate) own_flags: u16,
    pub(crate) fd: c_int,
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) operation_flags: u32,
    pub(crate) user_data: u64,
    /// `splice_fd_in`, `file_index`, or `addr_len`.
    pub(crate) other: u32,
}

/// What becomes of an entry.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// It is done, with this result.
    Result(c_int),
    /// It does nothing, and nothing is said of it: its result is posted ([`super::post`]).
    Nothing,
    /// It names this descriptor and address instead, and sleeps in a thread of the kernel's if it has to.
    To(c_int, *const c_void, u64),
    /// It is another operation, with none of these of its own flags (`ioprio`).
    As(u8, u16),
}

impl View {
    /// `None`: there is no room, or the shape is none.
    pub(crate) fn map(fd: c_int, shape: Shape) -> Option<View> {
        let stride = if shape.long { 2 * ENTRY_LEN } else { ENTRY_LEN };
        if !shape.count.is_power_of_two() {
            return None;
        }
        let (word, count) = (size_of::<u32>(), shape.count as usize);
        let words_end = shape.head.max(shape.tail) as usize + word;
        let queue_len = words_end.max(shape.array.map_or(0, |array| array as usize + count * word));
        let entries_len = count * stride;
        let queue = map(fd, queue_len, OFF_QUEUE, libc::PROT_READ)?;
        let Some(entries) = map(fd, entries_len, OFF_ENTRIES, libc::PROT_READ | libc::PROT_WRITE) else {
            unmap(queue, queue_len);
            return None;
        };
        Some(View { queue, queue_len, entries, entries_len, shape, stride })
    }

    /// A word of a mapping that is so long; the offset is within.
    fn word(mapping: *const u8, offset: usize) -> &'static AtomicU32 {
        // SAFETY: callers keep to the mappings' lengths; offsets are the kernel's, and multiples of four.
        unsafe { AtomicU32::from_ptr(mapping.add(offset).cast_mut().cast()) }
    }

    /// Calls `visit` with each entry that waits to be submitted, `most` of them. Its answer: what becomes of it, if it does
    /// not stay as it is. How many places of the queue that were.
    pub(crate) fn each_waiting(&self, most: u32, mut visit: impl FnMut(Said) -> Option<Answer>) -> u32 {
        let Shape { count, head, tail, array, .. } = self.shape;
        let head = View::word(self.queue, head as usize).load(Ordering::Acquire);
        let tail = View::word(self.queue, tail as usize).load(Ordering::Acquire);
        let waiting = tail.wrapping_sub(head).min(count).min(most);
        for step in 0..waiting {
            let place = (head.wrapping_add(step) & (count - 1)) as usize;
            let index = match array {
                Some(array) => {
                    View::word(self.queue, array as usize + 4 * place).load(Ordering::Relaxed) as usize
                }
                None => place,
            };
            // The kernel drops others.
            if index < count as usize
                && let Some(answer) = visit(self.said(index))
            {
                match answer {
                    Answer::Result(result) => self.answer(index, result, 0),
                    Answer::Nothing => self.answer(index, 0, SKIP_SUCCESS),
                    Answer::To(fd, address, len) => self.redirect(index, fd, address, len),
                    Answer::As(operation, without) => self.change(index, operation, without),
                }
            }
        }
        waiting
    }

    /// The entry does nothing any more but say this result; its flags and what it is known by stay, as far as they are not
    /// its operation's. Kernels before 6.10 say 0, whatever it is.
    fn answer(&self, index: usize, result: c_int, more_flags: u8) {
        let word = |offset: usize| View::word(self.entries, index * self.stride + offset);
        let [_, flags, ..] = word(0).load(Ordering::Relaxed).to_le_bytes();
        word(4).store(u32::MAX, Ordering::Relaxed);
        word(24).store(result.cast_unsigned(), Ordering::Relaxed);
        word(28).store(if result == 0 { 0 } else { NOP_INJECT_RESULT }, Ordering::Relaxed);
        // Nobody may wait for all before him and say nothing.
        let without = FIXED_FILE | BUFFER_SELECT | if more_flags == 0 { 0 } else { DRAIN };
        let head = u32::from_le_bytes([NOP, (flags & !without) | more_flags, 0, 0]);
        word(0).store(head, Ordering::Relaxed);
    }

    fn redirect(&self, index: usize, fd: c_int, address: *const c_void, len: u64) {
        let word = |offset: usize| View::word(self.entries, index * self.stride + offset);
        word(4).store(fd.cast_unsigned(), Ordering::Relaxed);
        for (offset, value) in [(8, len), (16, address.expose_provenance() as u64)] {
            word(offset).store(value as u32, Ordering::Relaxed);
            word(offset + 4).store((value >> 32) as u32, Ordering::Relaxed);
        }
        word(0).fetch_or(u32::from(ASYNC) << 8, Ordering::Relaxed);
    }

    fn change(&self, index: usize, operation: u8, without: u16) {
        let word = View::word(self.entries, index * self.stride);
        let [_, flags, low, high] = word.load(Ordering::Relaxed).to_le_bytes();
        let [low, high] = (u16::from_le_bytes([low, high]) & !without).to_le_bytes();
        word.store(u32::from_le_bytes([operation, flags, low, high]), Ordering::Relaxed);
    }

    fn said(&self, index: usize) -> Said {
        let word =
            |offset: usize| View::word(self.entries, index * self.stride + offset).load(Ordering::Relaxed);
        let long = |offset: usize| u64::from(word(offset)) | u64::from(word(offset + 4)) << 32;
        let [operation, flags, low, high] = word(0).to_le_bytes();
        Said {
            operation,
            flags,
            own_flags: u16::from_le_bytes([low, high]),
            fd: word(4).cast_signed(),
            offset: long(8),
            address: long(16),
            len: word(24),
            operation_flags: word(28),
            user_data: long(32),
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

/// Memory that is shared with the kernel.
pub(crate) fn map(fd: c_int, len: usize, offset: libc::off_t, access: c_int) -> Option<*const u8> {
    // SAFETY: a fresh mapping of the ring, where the kernel puts it.
    let memory = unsafe { libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, fd, offset) };
    (memory != libc::MAP_FAILED).then_some(memory.cast_const().cast())
}

/// What [`map`] gave, whose last user this is.
pub(crate) fn unmap(memory: *const u8, len: usize) {
    // SAFETY: a mapping of ours, whose last user this is.
    unsafe { libc::munmap(memory.cast_mut().cast::<c_void>(), len) };
}
