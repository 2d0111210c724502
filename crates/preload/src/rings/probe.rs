//! What operations a ring has (IORING_REGISTER_PROBE).

use std::ffi::{c_int, c_long};
use std::ptr::with_exposed_provenance_mut as at_mut;

use super::REGISTER_PROBE;
use super::entries::ABSENT;
use crate::real;

/// `struct io_uring_probe`: the head; `struct io_uring_probe_op`, and where its flags are, of which one is known.
const HEAD_LEN: usize = 16;
const OPERATION_LEN: usize = 8;
const FLAGS: usize = 2;

/// The kernel has this operation.
pub(super) fn knows(fd: c_int, operation: u8) -> bool {
    const COUNT: usize = 64;
    let mut probe = [0u8; HEAD_LEN + COUNT * OPERATION_LEN];
    let place = probe.as_mut_ptr().expose_provenance();
    let (fd, what) = (fd as usize, REGISTER_PROBE as usize);
    let asked = real::syscall(libc::SYS_io_uring_register, fd, what, place, COUNT, 0, 0);
    let flags = probe.get(HEAD_LEN + usize::from(operation) * OPERATION_LEN + FLAGS);
    asked >= 0 && flags.is_some_and(|flags| flags & 1 != 0)
}

/// IORING_REGISTER_PROBE: what a ring cannot do here, the kernel cannot.
pub(super) fn probe([fd, operation, place, count, ..]: [usize; 6]) -> c_long {
    let result = real::syscall(libc::SYS_io_uring_register, fd, operation, place, count, 0, 0);
    if result >= 0 && usize::from(ABSENT) < count as u32 as usize {
        let flags = place + HEAD_LEN + usize::from(ABSENT) * OPERATION_LEN + FLAGS;
        // SAFETY: the program vouches for room for so many operations.
        unsafe { at_mut::<u16>(flags).write_unaligned(0) };
    }
    result
}
