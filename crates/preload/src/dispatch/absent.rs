//! Where system calls cannot be dispatched (Syscall User Dispatch is x86-64's): those past the C library are the kernel's.

/// See the other `dispatch`.
pub(crate) fn start() {}

/// See the other `dispatch`.
pub(crate) fn in_child() {}

/// See the other `dispatch`.
pub(crate) fn see_all() -> bool {
    false
}

/// See the other `dispatch`.
pub(crate) fn look_again() {}

/// See the other `dispatch`.
pub(crate) fn before_fork() {}

/// See the other `dispatch`.
pub(crate) fn after_fork() {}

/// See the other `dispatch`.
pub(crate) fn resolving<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// See the other `dispatch`.
pub(crate) fn is_on() -> bool {
    false
}

/// See the other `dispatch`.
pub(crate) const SLOW_NS: u64 = 500_000_000;

/// See the other `dispatch`. Here they wait.
pub(crate) fn let_end() {}

/// See the other `dispatch`.
pub(crate) fn hold_signals() -> u64 {
    /// glibc's own, see the other `dispatch`.
    const LIBRARYS: u64 = 1 << 31 | 1 << 32;
    let mut before = 0;
    change_mask(libc::SIG_BLOCK, !LIBRARYS, &raw mut before);
    before
}

/// See the other `dispatch`.
pub(crate) fn set_mask(mask: u64) {
    change_mask(libc::SIG_SETMASK, mask, std::ptr::null_mut());
}

fn change_mask(how: std::ffi::c_int, mask: u64, before: *mut u64) {
    let (set, old) = ((&raw const mask).expose_provenance(), before.expose_provenance());
    let len = size_of::<u64>();
    crate::real::syscall(libc::SYS_rt_sigprocmask, how as usize, set, old, len, 0, 0);
}

pub(crate) mod signals {
    use std::ffi::c_long;

    use libc::sigset_t;

    pub(crate) fn strip(set: *const sigset_t, _: &mut Option<sigset_t>) -> *const sigset_t {
        set
    }

    pub(crate) fn handing_on<R>(exec: impl FnOnce() -> R) -> R {
        exec()
    }

    pub(crate) fn by_number(_: c_long, _: [usize; 6]) -> Option<c_long> {
        None
    }
}
