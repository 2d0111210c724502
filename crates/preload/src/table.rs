//! Which descriptors are ours: one word per descriptor number, process-local, read without a lock.
//!
//! A word is `value << 8 | kind`. It is written by whoever opens, duplicates or closes the descriptor, before a
//! closed number can be given out again; a descriptor beyond the table is the kernel's.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

/// Descriptors that the table covers (address space only: pages exist once touched).
pub(crate) const LEN: usize = 1 << 20;

const SOCKET: u64 = 1;
const EPOLL: u64 = 2;
const INTERNAL: u64 = 3;
const CANDIDATE: u64 = 4;

static TABLE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// The highest number ever entered.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Nothing of ours.
    Kernel,
    /// A socket on paths: its slot.
    Socket(u32),
    /// An epoll descriptor: its number in `epoll`.
    Epoll(u32),
    /// The shim's own.
    Internal,
    /// A socket of the kernel's that may yet become ours; `watched`: some epoll has it.
    Candidate {
        /// See above.
        watched: bool,
    },
}

fn decode(word: u64) -> Entry {
    match word & 0xff {
        SOCKET => Entry::Socket((word >> 8) as u32),
        EPOLL => Entry::Epoll((word >> 8) as u32),
        INTERNAL => Entry::Internal,
        CANDIDATE => Entry::Candidate { watched: word >> 8 != 0 },
        _ => Entry::Kernel,
    }
}

fn encode(entry: Entry) -> u64 {
    match entry {
        Entry::Kernel => 0,
        Entry::Socket(slot) => u64::from(slot) << 8 | SOCKET,
        Entry::Epoll(number) => u64::from(number) << 8 | EPOLL,
        Entry::Internal => INTERNAL,
        Entry::Candidate { watched } => u64::from(watched) << 8 | CANDIDATE,
    }
}

/// Makes the table. False when there is no address space.
pub(crate) fn create() -> bool {
    // SAFETY: a fresh anonymous mapping.
    let memory = unsafe {
        libc::mmap(
            ptr::null_mut(),
            LEN * size_of::<AtomicU64>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return false;
    }
    TABLE.store(memory.cast(), Ordering::Release);
    true
}

#[inline]
fn cell(fd: c_int) -> Option<&'static AtomicU64> {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() || fd as u32 as usize >= LEN {
        return None;
    }
    // SAFETY: the mapping is never undone and `fd` is within it.
    Some(unsafe { &*table.add(fd as usize) })
}

/// What `fd` is.
#[inline]
pub(crate) fn look(fd: c_int) -> Entry {
    cell(fd).map_or(Entry::Kernel, |cell| decode(cell.load(Ordering::Acquire)))
}

/// The slot of `fd` when it is a socket of ours.
#[inline]
pub(crate) fn socket(fd: c_int) -> Option<u32> {
    let word = cell(fd)?.load(Ordering::Acquire);
    (word & 0xff == SOCKET).then_some((word >> 8) as u32)
}

/// Enters `fd`; answers what was there. False numbers are ignored.
pub(crate) fn put(fd: c_int, entry: Entry) -> Entry {
    let Some(cell) = cell(fd) else { return Entry::Kernel };
    if entry != Entry::Kernel {
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
    }
    decode(cell.swap(encode(entry), Ordering::AcqRel))
}

/// True when `fd` can be entered.
pub(crate) fn covers(fd: c_int) -> bool {
    cell(fd).is_some()
}

/// The highest number ever entered.
pub(crate) fn highest() -> c_int {
    HIGHEST.load(Ordering::Relaxed)
}
