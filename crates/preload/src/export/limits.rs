//! Limits of resources ([`crate::limits`]).

use std::ffi::c_int;

use libc::rlimit;

use crate::{limits, memory, real};

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn setrlimit(resource: c_int, limit: *const rlimit) -> c_int {
    if memory::is_nowhere(limit) {
        return real::setrlimit(resource, limit);
    }
    // SAFETY: the program vouches for a limit there.
    let asked = unsafe { limit.read() };
    limits::set(resource, &asked).unwrap_or_else(|| real::setrlimit(resource, &raw const asked))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn setrlimit64(resource: c_int, limit: *const rlimit) -> c_int {
    setrlimit(resource, limit)
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn getrlimit(resource: c_int, limit: *mut rlimit) -> c_int {
    let result = real::getrlimit(resource, limit);
    if result == 0 {
        // SAFETY: the kernel has filled it.
        limits::show(resource, unsafe { &mut *limit });
    }
    result
}

#[unsafe(no_mangle)]
extern "C-unwind" fn getrlimit64(resource: c_int, limit: *mut rlimit) -> c_int {
    getrlimit(resource, limit)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn prlimit(
    pid: libc::pid_t,
    resource: c_int,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    // SAFETY: no arguments.
    let is_own = pid == 0 || pid == unsafe { libc::getpid() };
    let is_nowhere = |at: *const rlimit| !at.is_null() && memory::is_nowhere(at);
    if !is_own || is_nowhere(new) || is_nowhere(old) {
        return real::prlimit(pid, resource, new, old);
    }
    limits::exchange(resource, new, old)
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn prlimit64(
    pid: libc::pid_t,
    resource: c_int,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    prlimit(pid, resource, new, old)
}
