//! The program's memory, as far as a pointer alone tells that it is none.
//!
//! Bytes are copied here, so a pointer into a hole of the address space is SIGSEGV where the kernel says EFAULT. What
//! can be known without a look at the mappings is EFAULT here, too: the first page (null, and members of null), and what
//! lies beyond all programs. Lengths are the kernel's affair the same way (`import_iovec` of Linux).

use std::ffi::c_int;

use libc::iovec;

/// MAX_RW_COUNT of Linux: one call moves no more.
pub(crate) const MOST_MOVED: usize = 0x7fff_f000;
/// No program has this page (`vm.mmap_min_addr`).
const FIRST_PAGE: usize = 4096;
/// Programs end below it, with page tables of five levels, too.
const END: usize = 1 << 56;

/// Nothing can be at this place.
pub(crate) fn is_nowhere<T>(at: *const T) -> bool {
    !(FIRST_PAGE..END).contains(&at.addr())
}

/// So many bytes reach beyond what a program can have (`access_ok`).
pub(crate) fn reaches_too_far<T>(at: *const T, len: usize) -> bool {
    at.addr().checked_add(len).is_none_or(|end| end > END)
}

/// Among the first `len` bytes there is a part in which nothing can be: EFAULT where they are copied. What lies behind
/// them nobody looks at.
pub(crate) fn has_hole(iov: &[iovec], len: usize) -> bool {
    let mut left = len;
    iov.iter().any(|part| {
        let reached = part.iov_len.min(left);
        left -= reached;
        reached > 0 && is_nowhere(part.iov_base)
    })
}

/// The kernel's checks of a vector, before anything is copied.
pub(crate) fn check(iov: &[iovec]) -> Result<(), c_int> {
    if iov.iter().any(|part| part.iov_len > isize::MAX as usize) {
        return Err(libc::EINVAL);
    }
    if iov.iter().any(|part| reaches_too_far(part.iov_base, part.iov_len.min(MOST_MOVED))) {
        return Err(libc::EFAULT);
    }
    Ok(())
}
