//! `sendfile` without a copy: the stream gets an *extent* that names a piece of a file, and the device reads the
//! file's pages when the segment is made.
//!
//! The daemon must have the file: it is sent over once, and known again by device, inode, size and times. What cannot
//! be done this way (short pieces, pipes, no more files) is copied through the ring as ever. Numbers belong to the
//! region, so a forked child goes on with its parent's.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::atomic::Ordering;

use libc::off_t;
use scoutline_abi::layout::{EXTENT_COUNT, MAX_AHEAD, MIN_EXTENT, slot_state};

use crate::slot::Socket;
use crate::stream::publish;
use crate::{attach, cancel};

/// Files that a thread remembers.
const REMEMBERED: usize = 32;

/// What tells one content of a file from another.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size: i64,
    changed: (i64, i64),
}

/// A file that the daemon was asked to map, and its number if it did.
#[derive(Clone, Copy)]
struct Known {
    identity: Identity,
    number: Option<u32>,
}

thread_local! {
    static FILES: [Cell<Option<Known>>; REMEMBERED] = const { [const { Cell::new(None) }; REMEMBERED] };
    static NEXT: Cell<usize> = const { Cell::new(0) };
}

/// Puts up to `want` bytes of `from` at `at` (its own position if `None`) into the stream. `None`: to be copied.
pub(crate) fn send(socket: Socket, from: c_int, at: Option<off_t>, want: usize) -> Option<usize> {
    if (want as u64) < MIN_EXTENT || !allowed(socket) {
        return None;
    }
    // SAFETY: zeros are a valid `stat`, and `fstat` fills it.
    let stat = unsafe {
        let mut stat: libc::stat = zeroed();
        if libc::fstat(from, &raw mut stat) < 0 || stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        stat
    };
    let start = match at {
        Some(at) => at,
        // SAFETY: plain system call.
        None => unsafe { libc::lseek(from, 0, libc::SEEK_CUR) },
    };
    let left = u64::try_from(stat.st_size.checked_sub(start)?).ok()?;
    let identity = Identity {
        device: stat.st_dev,
        inode: stat.st_ino,
        size: stat.st_size,
        changed: (stat.st_mtime, stat.st_mtime_nsec),
    };
    if !is_resident(from, start, left.min(want as u64).min(MAX_AHEAD)) {
        return None;
    }
    let file = number_of(identity, from)?;
    let slot = socket.slot;
    let held = socket.lock_send().ok()?;
    let tail = slot.outgoing().own_tail();
    let ahead = tail.wrapping_sub(slot.outgoing().freed());
    let pushed = slot.extents_tail.load(Ordering::Relaxed);
    let waiting = pushed.wrapping_sub(slot.extents_head.load(Ordering::Acquire));
    let len = left
        .min(want as u64)
        .min(MAX_AHEAD.saturating_sub(ahead + u64::from(slot.send_size.load(Ordering::Relaxed))));
    if waiting as usize >= EXTENT_COUNT || len < MIN_EXTENT || socket.sendable() == 0 {
        return None;
    }
    let extent = &slot.extents[pushed as usize % EXTENT_COUNT];
    extent.position.store(tail, Ordering::Relaxed);
    extent.offset.store(start as u64, Ordering::Relaxed);
    extent.len.store(len as u32, Ordering::Relaxed);
    extent.file.store(file, Ordering::Relaxed);
    slot.extents_tail.store(pushed.wrapping_add(1), Ordering::Release);
    publish(socket, tail, len, 0);
    drop(held);
    if at.is_none() {
        // SAFETY: plain system call.
        unsafe { libc::lseek(from, start + len as off_t, libc::SEEK_SET) };
    }
    Some(len as usize)
}

/// True when these bytes of the file are in the page cache. What is not is copied: then the disk is waited for here, by
/// the program that wants it, and not by the engine, on which everybody depends.
fn is_resident(fd: c_int, start: off_t, len: u64) -> bool {
    // cachestat(2), since Linux 6.5, for owners of the file; others are asked about every 64 KiB below.
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = [start as u64, len];
    let mut counts = [0u64; 5];
    // SAFETY: two structures of ours in the form that the call takes; it writes five counters.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, fd, range.as_ptr(), counts.as_mut_ptr(), 0u32) };
    let pages = (start as u64 + len).div_ceil(4096) - start as u64 / 4096;
    if result == 0 {
        return counts[0] >= pages;
    }
    // A byte of a page that is not there is EAGAIN. Readahead brings more than this step at once, so what lies between
    // two pages that are there is there too, but for pages that were evicted singly.
    const STEP: u64 = 64 << 10;
    let end = start as u64 + len - 1;
    (start as u64..end).step_by(STEP as usize).chain([end]).all(|at| {
        let mut byte = 0u8;
        let iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: one byte of ours.
        cancel::uncancelled(|| unsafe {
            libc::preadv2(fd, &raw const iov, 1, at as off_t, libc::RWF_NOWAIT) == 1
        })
    })
}

/// True when the engine takes extents, whichever device the socket uses, and not on the machine's link with itself.
fn allowed(socket: Socket) -> bool {
    if socket.state() & slot_state::COPIES != 0 {
        return false;
    }
    socket
        .region
        .header()
        .look_at_served(|mut networks| networks.len() > 0 && networks.all(|network| network.takes_extents()))
}

/// The daemon's number of a file.
fn number_of(identity: Identity, fd: c_int) -> Option<u32> {
    FILES.with(|files| {
        let known = files.iter().filter_map(Cell::get).find(|known| known.identity == identity);
        if let Some(known) = known {
            return known.number;
        }
        let number = attach::give_file(fd).ok();
        let next = NEXT.get();
        NEXT.set((next + 1) % REMEMBERED);
        files[next].set(Some(Known { identity, number }));
        number
    })
}
