//! Which descriptors are ours: one word per descriptor number, process-local, read without a lock.
//!
//! A word is `value << 8 | kind`. It is written by whoever opens, duplicates or closes the descriptor, before a
//! closed number can be given out again; a descriptor beyond the table is the kernel's.

use std::ffi::c_int;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

use crate::{cancel, real};

/// Descriptors that the table covers (address space only: pages exist once touched).
pub(crate) const LEN: usize = 1 << 20;

const KERNEL: u64 = 0;
const SOCKET: u64 = 1;
const EPOLL: u64 = 2;
const INTERNAL: u64 = 3;
const CANDIDATE: u64 = 4;
const RING: u64 = 5;
const STAND_IN: u64 = 6;
/// A thread is closing what it was: nobody finds that here any more, and the kernel has not closed its part yet.
const CLOSING: u64 = 7;

/// How often who finds that looks again at once, and how often in pauses of so many microseconds.
const LOOKS: u32 = 200;
const PAUSES: u32 = 40;
const PAUSE_US: u64 = 50;

/// In a candidate's value: some epoll has it; it stays the kernel's; another descriptor names the same socket, here or in
/// another process.
const WATCHED: u64 = 1;
const STAYS: u64 = 2;
const TWIN: u64 = 4;
const SHARED: u64 = 8;

static TABLE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// The highest number ever entered.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);
static HAS_SHARED: AtomicBool = AtomicBool::new(false);

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Nothing of ours.
    Kernel,
    /// A socket on paths: its slot.
    Socket(u32),
    /// An epoll descriptor: its number in `epoll`.
    Epoll(u32),
    /// The shim's own; with a set's number it is the pipe of that.
    Internal(Option<u32>),
    /// A socket of the kernel's that may yet become ours; `watched`: some epoll has it.
    Candidate {
        /// See above.
        watched: bool,
    },
    /// A ring of `io_uring`: its number in `rings`.
    Ring(u32),
    /// The kernel's to all calls, and held: it stands for a listening socket, of which this is the slot
    /// (`rings::listening`).
    StandIn(u32),
}

fn decode(word: u64) -> Entry {
    match word & 0xff {
        SOCKET => Entry::Socket((word >> 8) as u32),
        EPOLL => Entry::Epoll((word >> 8) as u32),
        INTERNAL => Entry::Internal(((word >> 8) as u32).checked_sub(1)),
        CANDIDATE => Entry::Candidate { watched: word >> 8 & WATCHED != 0 },
        RING => Entry::Ring((word >> 8) as u32),
        STAND_IN => Entry::StandIn((word >> 8) as u32),
        _ => Entry::Kernel,
    }
}

fn encode(entry: Entry) -> u64 {
    match entry {
        Entry::Kernel => KERNEL,
        Entry::Socket(slot) => u64::from(slot) << 8 | SOCKET,
        Entry::Epoll(number) => u64::from(number) << 8 | EPOLL,
        Entry::Internal(set) => set.map_or(0, |set| u64::from(set) + 1) << 8 | INTERNAL,
        Entry::Candidate { watched } => (if watched { WATCHED } else { 0 }) << 8 | CANDIDATE,
        Entry::Ring(number) => u64::from(number) << 8 | RING,
        Entry::StandIn(slot) => u64::from(slot) << 8 | STAND_IN,
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
    // So it is no part of another mapping either.
    // SAFETY: the mapping just made.
    unsafe { libc::madvise(memory, LEN * size_of::<AtomicU64>(), libc::MADV_DONTDUMP) };
    TABLE.store(memory.cast(), Ordering::Release);
    true
}

/// The addresses that it takes, most of them without memory.
pub(crate) fn addresses() -> Range<usize> {
    let start = TABLE.load(Ordering::Acquire).addr();
    start..start + LEN * size_of::<AtomicU64>()
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
    cell(fd).map_or(Entry::Kernel, |cell| decode(settled(cell)))
}

/// Whether `fd` is the shim's own.
pub(crate) fn is_own(fd: c_int) -> bool {
    matches!(look(fd), Entry::Internal(_))
}

/// The slot of `fd` when it is a socket of ours.
#[inline]
pub(crate) fn socket(fd: c_int) -> Option<u32> {
    let word = settled(cell(fd)?);
    (word & 0xff == SOCKET).then_some((word >> 8) as u32)
}

/// A word, once nobody is closing what it is of: a call meanwhile would reach the kernel's socket behind ours, which was
/// never connected (EPIPE, with its signal), where it is to find EBADF.
#[inline]
fn settled(cell: &AtomicU64) -> u64 {
    let word = cell.load(Ordering::Acquire);
    if word == CLOSING { closed(cell) } else { word }
}

/// Who closes it may have been left by a jump out of a signal handler, be interrupted by the handler that asks, or be
/// another process's, which has forked meanwhile: after a while it counts as closed.
#[cold]
fn closed(cell: &AtomicU64) -> u64 {
    let errno = real::errno();
    for look in 0..LOOKS + PAUSES {
        if look < LOOKS {
            std::hint::spin_loop();
        } else {
            cancel::uncancelled(|| real::nap(PAUSE_US));
        }
        let word = cell.load(Ordering::Acquire);
        if word != CLOSING {
            real::set_errno(errno);
            return word;
        }
    }
    real::set_errno(errno);
    match cell.compare_exchange(CLOSING, KERNEL, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => KERNEL,
        Err(other) => other,
    }
}

/// Takes `fd` out, and has `close` close it in the kernel, before anybody can be given the number again: what it was, and
/// what that said.
pub(crate) fn close_by(fd: c_int, close: impl FnOnce() -> c_int) -> (Entry, c_int) {
    let Some(cell) = cell(fd) else { return (Entry::Kernel, close()) };
    let entry = decode(cell.swap(CLOSING, Ordering::AcqRel));
    let result = close();
    // Unless somebody has the number by now.
    let _ = cell.compare_exchange(CLOSING, KERNEL, Ordering::AcqRel, Ordering::Relaxed);
    (entry, result)
}

/// The slot that `fd` holds: of a socket of ours, or of one that it stands for.
pub(crate) fn held(fd: c_int) -> Option<u32> {
    match look(fd) {
        Entry::Socket(slot) | Entry::StandIn(slot) => Some(slot),
        _ => None,
    }
}

/// `fd` is a stand-in for the socket that it was. False: it was not.
pub(crate) fn stand_in(fd: c_int, slot: u32) -> bool {
    let (from, to) = (encode(Entry::Socket(slot)), encode(Entry::StandIn(slot)));
    cell(fd).is_some_and(|cell| cell.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok())
}

/// Enters `fd`; answers what was there. False numbers are ignored.
pub(crate) fn put(fd: c_int, entry: Entry) -> Entry {
    let Some(cell) = cell(fd) else { return Entry::Kernel };
    if entry != Entry::Kernel {
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
    }
    decode(cell.swap(encode(entry), Ordering::AcqRel))
}

/// What stood for a descriptor, with its marks.
#[derive(Clone, Copy)]
pub(crate) struct Before(u64);

impl Before {
    pub(crate) fn entry(self) -> Entry {
        decode(self.0)
    }
}

/// [`put`], which may be [undone](restore).
pub(crate) fn replace(fd: c_int, entry: Entry) -> Before {
    let Some(cell) = cell(fd) else { return Before(KERNEL) };
    HIGHEST.fetch_max(fd, Ordering::Relaxed);
    Before(cell.swap(encode(entry), Ordering::AcqRel))
}

/// False: it is something else than `entry` by now.
pub(crate) fn restore(fd: c_int, entry: Entry, before: Before) -> bool {
    let restored = |cell: &AtomicU64| {
        cell.compare_exchange(encode(entry), before.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    cell(fd).is_some_and(restored)
}

/// `fd` is this socket from now on; what it was, and whether as a candidate that is shared.
pub(crate) fn adopt(fd: c_int, slot: u32) -> (Entry, bool) {
    let Some(cell) = cell(fd) else { return (Entry::Kernel, false) };
    HIGHEST.fetch_max(fd, Ordering::Relaxed);
    let before = cell.swap(encode(Entry::Socket(slot)), Ordering::AcqRel);
    (decode(before), has_others(before, SHARED))
}

/// `fd` is this socket no more, but a candidate again, or (`stays`) the kernel's for good. False: it was not, so the hold of
/// this descriptor is somebody else's to release.
pub(crate) fn give_up(fd: c_int, slot: u32, stays: bool) -> bool {
    let kernels = if stays { STAYS << 8 | CANDIDATE } else { encode(Entry::Candidate { watched: false }) };
    let ours = encode(Entry::Socket(slot));
    cell(fd)
        .is_some_and(|cell| cell.compare_exchange(ours, kernels, Ordering::AcqRel, Ordering::Acquire).is_ok())
}

/// A candidate from now on is one no more, watched or not. False: it is none, or was none already.
pub(crate) fn keep_kernels(fd: c_int) -> bool {
    let keep = |word: u64| (word & 0xff == CANDIDATE && !stays(word)).then_some(word | STAYS << 8);
    cell(fd).is_some_and(|cell| cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, keep).is_ok())
}

/// Some epoll has a candidate.
pub(crate) fn watch(fd: c_int) {
    note(fd, WATCHED);
}

/// A candidate is named by another descriptor, too.
pub(crate) fn note_twin(fd: c_int) {
    note(fd, TWIN);
}

/// Another process of the program may have this candidate, too.
pub(crate) fn note_shared(fd: c_int) {
    note(fd, SHARED);
    if is_shared(fd) {
        HAS_SHARED.store(true, Ordering::Relaxed);
    }
}

/// Some candidate is shared, or was.
pub(crate) fn has_shared() -> bool {
    HAS_SHARED.load(Ordering::Relaxed)
}

/// See [`note_shared`].
#[inline]
pub(crate) fn is_shared(fd: c_int) -> bool {
    cell(fd).is_some_and(|cell| has_others(cell.load(Ordering::Acquire), SHARED))
}

/// Nobody else makes this candidate ours, as far as is known.
pub(crate) fn forget_shared(fd: c_int) {
    let forgotten = |word: u64| (word & 0xff == CANDIDATE).then_some(word & !(SHARED << 8));
    if let Some(cell) = cell(fd) {
        let _ = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, forgotten);
    }
}

fn note(fd: c_int, bit: u64) {
    let noted = |word: u64| (word & 0xff == CANDIDATE).then_some(word | bit << 8);
    if let Some(cell) = cell(fd) {
        let _ = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, noted);
    }
}

/// Whether another descriptor may name the same candidate.
pub(crate) fn is_twin(fd: c_int) -> bool {
    cell(fd).is_some_and(|cell| has_others(cell.load(Ordering::Acquire), TWIN))
}

/// A candidate with one of these bits that does not stay the kernel's.
fn has_others(word: u64, bits: u64) -> bool {
    word & 0xff == CANDIDATE && word >> 8 & bits != 0 && !stays(word)
}

/// Such a candidate is this socket from now on; what it was. `None`: it was none any more.
pub(crate) fn follow(fd: c_int, slot: u32) -> Option<Entry> {
    let ours = |word: u64| has_others(word, TWIN | SHARED).then_some(encode(Entry::Socket(slot)));
    cell(fd)?.fetch_update(Ordering::AcqRel, Ordering::Acquire, ours).ok().map(decode)
}

/// Whether `fd` stays the kernel's.
pub(crate) fn is_kernels(fd: c_int) -> bool {
    cell(fd).is_some_and(|cell| {
        let word = cell.load(Ordering::Acquire);
        word & 0xff == CANDIDATE && stays(word)
    })
}

fn stays(word: u64) -> bool {
    word >> 8 & STAYS != 0
}

/// True when `fd` can be entered.
pub(crate) fn covers(fd: c_int) -> bool {
    cell(fd).is_some()
}

/// The highest number ever entered.
pub(crate) fn highest() -> c_int {
    HIGHEST.load(Ordering::Relaxed)
}
