//! Completions that are ours to say: a ring of the library's own posts them into the program's (IORING_OP_MSG_RING, Linux
//! 5.18). So what the library does in an operation's place ends in the program's ring as by the kernel, with the value by
//! which the program knows it, and wakes who waits there.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::queue::{ENTRY_LEN, OFF_ENTRIES, OFF_QUEUE, SKIP_SUCCESS, map, unmap};
use super::{Parameters, probe};
use crate::lock::{self, Lock};
use crate::table::{self, Entry};
use crate::{own, real};

/// `linux/io_uring.h`: features, one of Linux 6.10, which tells that its NOP says a result that is asked for.
const FEAT_SINGLE_MMAP: u32 = 1 << 0;
const FEAT_CQE_SKIP: u32 = 1 << 11;
const FEAT_RECVSEND_BUNDLE: u32 = 1 << 14;
const OP_MSG_RING: u8 = 40;
/// How often the kernel is asked that has no memory.
const MOST_TRIES: u32 = 10_000;
/// `struct io_uring_cqe`.
const COMPLETION_LEN: usize = 16;

/// Our ring, of one entry.
struct Poster {
    fd: c_int,
    queue: *mut u8,
    queue_len: usize,
    entry: *mut u8,
    parameters: Parameters,
}

// SAFETY: mappings of ours, changed under the lock alone.
unsafe impl Send for Poster {}

static POSTER: Lock<Option<Poster>> = Lock::new(None);

/// What is known of it.
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
const ABSENT: u32 = 1;
/// The kernel's NOP says 0 alone.
const THERE: u32 = 2;
const INJECTS: u32 = 3;

/// Whether there is one; it is made at the first question.
pub(super) fn is_there() -> bool {
    state() >= THERE
}

/// Whether a NOP says the result that it is to say.
pub(super) fn nops_have_results() -> bool {
    state() != THERE
}

fn state() -> u32 {
    let known = STATE.load(Ordering::Acquire);
    if known != UNKNOWN {
        return known;
    }
    lock::undisturbed(|| {
        let mut poster = POSTER.lock();
        if poster.is_none() {
            *poster = Poster::new();
        }
        let found = match poster.as_ref() {
            None => ABSENT,
            Some(one) if one.parameters.features & FEAT_RECVSEND_BUNDLE != 0 => INJECTS,
            Some(_) => THERE,
        };
        STATE.store(found, Ordering::Release);
        found
    })
}

/// Says this result in the ring with this number, which the program has as `fd` or as another one. False: it is not there.
pub(super) fn post(number: u32, fd: c_int, user_data: u64, result: c_int) -> bool {
    let is_it = |fd: &c_int| table::look(*fd) == Entry::Ring(number);
    let Some(fd) = Some(fd).filter(is_it).or_else(|| (0..=table::highest()).find(is_it)) else {
        return false;
    };
    lock::undisturbed(|| POSTER.lock().as_mut().is_some_and(|poster| poster.post(fd, user_data, result)))
}

/// A descriptor of ours has another number.
pub(super) fn relocated(from: c_int, to: c_int) {
    lock::undisturbed(|| {
        if let Some(poster) = POSTER.lock().as_mut().filter(|poster| poster.fd == from) {
            poster.fd = to;
        }
    });
}

/// The ring is the parent's.
pub(super) fn in_child() {
    POSTER.give_back();
    if let Some(poster) = POSTER.lock().take() {
        own::discard(poster.fd);
    }
    STATE.store(UNKNOWN, Ordering::Relaxed);
}

impl Poster {
    /// `None`: the kernel does not have what it takes, or refuses it.
    fn new() -> Option<Poster> {
        // SAFETY: zeros are valid parameters.
        let mut parameters: Parameters = unsafe { std::mem::zeroed() };
        let place = (&raw mut parameters).expose_provenance();
        let fd = real::syscall(libc::SYS_io_uring_setup, 1, place, 0, 0, 0, 0) as c_int;
        if fd < 0 {
            return None;
        }
        let made = Poster::of(fd, parameters);
        if made.is_none() {
            real::close_uncancelled(fd);
        }
        made
    }

    fn of(fd: c_int, parameters: Parameters) -> Option<Poster> {
        let needed = FEAT_SINGLE_MMAP | FEAT_CQE_SKIP;
        if parameters.features & needed != needed || !probe::knows(fd, OP_MSG_RING) {
            return None;
        }
        let cqes = parameters.cq_off.cqes as usize + parameters.cq_entries as usize * COMPLETION_LEN;
        let queue_len = cqes.max(parameters.sq_off.array as usize + size_of::<u32>());
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let queue = map(fd, queue_len, OFF_QUEUE, access)?;
        let Some(entry) = map(fd, ENTRY_LEN, OFF_ENTRIES, access) else {
            unmap(queue, queue_len);
            return None;
        };
        let (queue, entry) = (queue.cast_mut(), entry.cast_mut());
        Some(Poster { fd: own::protect(fd), queue, queue_len, entry, parameters })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: an offset that the kernel has given, in a mapping that is as long.
        unsafe { AtomicU32::from_ptr(self.queue.add(offset as usize).cast()) }
    }

    /// The kernel takes the entry, as soon as it has memory for it.
    fn enter(&self) -> bool {
        for tries in 0..MOST_TRIES {
            if real::syscall(libc::SYS_io_uring_enter, self.fd as usize, 1, 0, 0, 0, 0) == 1 {
                return true;
            }
            if !matches!(real::errno(), libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOMEM) {
                return false;
            }
            lock::back_off(tries);
        }
        false
    }

    fn post(&mut self, to: c_int, user_data: u64, result: c_int) -> bool {
        let mut entry = [0u8; ENTRY_LEN];
        entry[0] = OP_MSG_RING;
        entry[1] = SKIP_SUCCESS;
        entry[4..8].copy_from_slice(&to.to_ne_bytes());
        entry[8..16].copy_from_slice(&user_data.to_ne_bytes());
        entry[24..28].copy_from_slice(&result.to_ne_bytes());
        // SAFETY: our own entry, of this length, which the kernel reads in the call below.
        unsafe { ptr::copy_nonoverlapping(entry.as_ptr(), self.entry, ENTRY_LEN) };
        let (sq, cq) = (self.parameters.sq_off, self.parameters.cq_off);
        let tail = self.word(sq.tail);
        self.word(sq.array).store(0, Ordering::Relaxed);
        tail.store(tail.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        if !self.enter() {
            // Not taken: the place is free again.
            tail.store(self.word(sq.head).load(Ordering::Acquire), Ordering::Release);
            return false;
        }
        // Only a failure is told.
        let (head, done) = (self.word(cq.head), self.word(cq.tail).load(Ordering::Acquire));
        head.swap(done, Ordering::AcqRel) == done
    }
}

impl Drop for Poster {
    fn drop(&mut self) {
        unmap(self.queue, self.queue_len);
        unmap(self.entry, ENTRY_LEN);
    }
}
