//! Where system calls cannot be dispatched (Syscall User Dispatch is x86-64's): those past the C library are the kernel's.

/// See the other `dispatch`.
pub(crate) fn start() {}

/// See the other `dispatch`.
pub(crate) fn in_child() {}

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
