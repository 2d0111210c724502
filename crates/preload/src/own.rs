//! Descriptors that are the shim's own: high, so that the program's numbers are what they would be without us, and
//! protected from the program, which may close or replace numbers that it does not know.

use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use scoutline_abi::layout::SLOT_COUNT;

use crate::{attach, epoll, real, rings, table, wait};

/// The shim's own descriptors: the descriptor plus one, and above it, for a pipe, its set's number plus one. 0: free.
static INTERNAL: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// So many are known; a ring's stand-ins (`rings::standin`) have one each.
const MOST: usize = SLOT_COUNT;
/// Of these places the first ones were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

fn used() -> &'static [AtomicU64] {
    &INTERNAL[..USED.load(Ordering::Acquire)]
}

/// Moves a descriptor of ours out of the program's way and protects it from being closed. Closes `fd`.
pub(crate) fn protect(fd: c_int) -> c_int {
    enter(move_up(fd), 0)
}

/// As [`protect`], for the pipe of a set.
pub(crate) fn protect_set(pipe: c_int, set: u32) -> c_int {
    enter(move_up(pipe), u64::from(set) + 1)
}

/// Moves a descriptor out of the program's way. Closes `fd`.
pub(crate) fn move_up(fd: c_int) -> c_int {
    let moved = copy_up(fd, libc::F_DUPFD_CLOEXEC);
    if moved >= 0 {
        real::close_uncancelled(fd); // who calls may hold a lock
        return moved;
    }
    real::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
    fd
}

/// As [`protect`], but open in a new program image, too.
pub(crate) fn move_up_open(fd: c_int) -> c_int {
    let moved = copy_up(fd, libc::F_DUPFD);
    if moved >= 0 {
        real::close_uncancelled(fd);
        return moved;
    }
    real::fcntl(fd, libc::F_SETFD, 0);
    fd
}

/// A duplicate with a high number, by this `fcntl`; below 0 there is none.
pub(crate) fn copy_up(fd: c_int, how: c_int) -> c_int {
    // SAFETY: fills the structure that we give.
    let limit = unsafe {
        let mut limit: libc::rlimit = zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 { limit.rlim_cur } else { 1024 }
    };
    // High, but not so high that the kernel's table, which every fork copies, grows large.
    let limit = (limit.min(8192) as usize).min(table::LEN);
    for base in [limit / 8 * 7, limit / 2] {
        let moved = real::fcntl(fd, how, base);
        if moved >= 0 {
            return moved;
        }
    }
    -1
}

/// From now on a descriptor is the shim's own; with a set's number plus one it is the pipe of that.
pub(crate) fn enter(fd: c_int, set_plus_one: u64) -> c_int {
    table::put(fd, table::Entry::Internal);
    let word = set_plus_one << 32 | (fd as u64 + 1);
    for (at, place) in INTERNAL.iter().enumerate() {
        if place.load(Ordering::Relaxed) != 0 {
            continue;
        }
        USED.fetch_max(at + 1, Ordering::AcqRel);
        if place.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            break;
        }
    }
    fd
}

/// Changes what the registry says of `fd`.
fn reenter(fd: c_int, change: impl Fn(u64) -> u64) {
    for place in used() {
        let word = place.load(Ordering::Acquire);
        if word as u32 == fd as u32 + 1 {
            place.store(change(word), Ordering::Release);
            break;
        }
    }
}

/// Closes a descriptor of ours.
pub(crate) fn discard(fd: c_int) {
    reenter(fd, |_| 0);
    table::put(fd, table::Entry::Kernel);
    real::close_uncancelled(fd);
}

/// The program wants the number of one of our descriptors for itself (`dup2`): ours moves away.
pub(crate) fn relocate(fd: c_int) {
    let moved = real::fcntl(fd, libc::F_DUPFD_CLOEXEC, fd as usize + 1);
    if moved < 0 {
        return;
    }
    reenter(fd, |word| word & !0xffff_ffff | (moved as u64 + 1));
    table::put(moved, table::Entry::Internal);
    table::put(fd, table::Entry::Kernel);
    attach::relocated(fd, moved);
    wait::relocated(fd, moved);
    epoll::relocated(fd, moved);
    rings::relocated(fd, moved);
}

/// Calls `visit` with each of them, and with the number of the set whose pipe it is.
pub(crate) fn each(mut visit: impl FnMut(c_int, Option<u32>)) {
    for place in used() {
        let word = place.load(Ordering::Relaxed);
        let fd = word as u32 as c_int - 1;
        if fd >= 0 {
            visit(fd, ((word >> 32) as u32).checked_sub(1));
        }
    }
}
