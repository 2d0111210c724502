//! Descriptors that are the shim's own: high, so that the program's numbers are what they would be without us, and
//! protected from the program, which may close or replace numbers that it does not know.

use std::ffi::c_int;
use std::mem::zeroed;

use crate::lock::undisturbed;
use crate::table::Entry;
use crate::{attach, epoll, real, rings, table, wait};

/// Moves a descriptor of ours out of the program's way and protects it from being closed. Closes `fd`.
pub(crate) fn protect(fd: c_int) -> c_int {
    enter(move_up(fd), None)
}

/// As [`protect`], for the pipe of a set.
pub(crate) fn protect_set(pipe: c_int, set: u32) -> c_int {
    enter(move_up(pipe), Some(set))
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

/// From now on a descriptor is the shim's own; with a set's number it is the pipe of that.
pub(crate) fn enter(fd: c_int, set: Option<u32>) -> c_int {
    table::put(fd, Entry::Internal(set));
    fd
}

/// Closes a descriptor of ours.
pub(crate) fn discard(fd: c_int) {
    table::put(fd, Entry::Kernel);
    real::close_uncancelled(fd);
}

/// The program wants the number of one of our descriptors for itself (`dup2`): ours moves away.
pub(crate) fn relocate(fd: c_int) {
    // A fork in between would give the child one set twice.
    let moved = undisturbed(|| {
        attach::while_none_comes(|| {
            let entry @ Entry::Internal(_) = table::look(fd) else { return -1 };
            let moved = real::fcntl(fd, libc::F_DUPFD_CLOEXEC, fd as usize + 1);
            if moved >= 0 {
                table::put(moved, entry);
                table::put(fd, Entry::Kernel);
            }
            moved
        })
    });
    if moved < 0 {
        return;
    }
    attach::relocated(fd, moved);
    wait::relocated(fd, moved);
    epoll::relocated(fd, moved);
    rings::relocated(fd, moved);
}

/// Calls `visit` with each of them, and with the number of the set whose pipe it is.
pub(crate) fn each(mut visit: impl FnMut(c_int, Option<u32>)) {
    for fd in 0..=table::highest() {
        if let Entry::Internal(set) = table::look(fd) {
            visit(fd, set);
        }
    }
}
