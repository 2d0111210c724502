//! The program's memory, from where it may be given back at any time: by the kernel, which says so.

use std::ptr::{self, with_exposed_provenance_mut as at_mut};

use libc::iovec;

use crate::real;

/// Bytes from this place on, or to it, where the program may have given its memory back meanwhile. False: there is none.
pub(super) fn copy_bytes(here: &mut [u8], there: usize, writes: bool) -> bool {
    let there = [iovec { iov_base: at_mut(there), iov_len: here.len() }];
    copy_parts(here, &there, writes)
}

/// As [`copy_bytes`], with several places, which have room for all.
pub(super) fn copy_parts(here: &mut [u8], there: &[iovec], writes: bool) -> bool {
    let local = iovec { iov_base: here.as_mut_ptr().cast(), iov_len: here.len() };
    let number = if writes { libc::SYS_process_vm_writev } else { libc::SYS_process_vm_readv };
    // SAFETY: no arguments.
    let pid = unsafe { libc::getpid() } as usize;
    let [local, remote] = [&raw const local, there.as_ptr()].map(<*const iovec>::expose_provenance);
    real::syscall(number, pid, local, 1, remote, there.len(), 0) == here.len() as i64
}

/// As [`copy_bytes`], of one value.
pub(super) fn copy<T: Copy>(here: &mut T, there: usize, writes: bool) -> bool {
    // SAFETY: its own bytes; only numbers, and structures of them, are given.
    let bytes = unsafe { std::slice::from_raw_parts_mut(ptr::from_mut(here).cast::<u8>(), size_of::<T>()) };
    copy_bytes(bytes, there, writes)
}
