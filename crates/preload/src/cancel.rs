//! Where a thread of the program's is cancelled (`pthread_cancel`): where it sleeps in a call of ours, as in the C library's,
//! and nowhere else, whatever type of cancellation it has chosen.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;

use crate::real::{
    self, cleanup_pop, cleanup_push, errno, pthread_setcancelstate, pthread_setcanceltype, set_errno,
};

// `pthread.h`, the same in every C library for Linux.
const ENABLE: c_int = 0;
const DISABLE: c_int = 1;
const DEFERRED: c_int = 0;
const ASYNCHRONOUS: c_int = 1;

thread_local! {
    /// The program has said that the thread may be cancelled at any moment. Only it changes that.
    static ANYWHERE: Cell<bool> = const { Cell::new(false) };
    /// About where on its stack the thread is made deferred for a call; 0: nowhere.
    static MADE_DEFERRED: Cell<usize> = const { Cell::new(0) };
    /// About where on its stack it has come to be not cancelled by us; 0: nowhere.
    static UNCANCELLED: Cell<usize> = const { Cell::new(0) };
}

/// Room for what the C library keeps of a clean-up handler: `struct _pthread_cleanup_buffer`, four words.
#[repr(C)]
pub(crate) struct CleanUp([usize; 4]);

/// `sleep`, a call in which a thread may be cancelled; `undo` is called with `argument` if it is.
pub(crate) fn cancellable<R>(
    undo: extern "C" fn(*mut c_void),
    argument: *mut c_void,
    sleep: impl FnOnce() -> R,
) -> R {
    let mut buffer = CleanUp([0; 4]);
    cleanup_push(&raw mut buffer, undo, argument);
    let result = sleep();
    cleanup_pop(&raw mut buffer, 0);
    result
}

/// `work`, in which the thread is not cancelled: it holds something, and calls what a cancellation would end.
pub(crate) fn uncancelled<R>(work: impl FnOnce() -> R) -> R {
    // glibc 2.36: who can be cancelled anywhere, and is so by `pthread_setcancelstate`, does not end as PTHREAD_CANCELED.
    let _deferred = Deferred::new();
    let mut before = ENABLE;
    // First, or a handler that jumps away from between the two would leave the thread so for good.
    let outer = UNCANCELLED.get();
    if outer == 0 {
        UNCANCELLED.set((&raw const before).addr());
    }
    pthread_setcancelstate(DISABLE, &raw mut before);
    if before != ENABLE {
        UNCANCELLED.set(outer);
        return work();
    }
    let result = work();
    be_cancelled();
    result
}

/// The thread leaves [`uncancelled`].
fn be_cancelled() {
    pthread_setcancelstate(ENABLE, ptr::null_mut());
    UNCANCELLED.set(0);
}

/// A handler of this thread jumps: it can be cancelled again if that leaves [`uncancelled`].
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_jump(leaves: impl Fn(usize) -> bool) {
    let frame = UNCANCELLED.get();
    if frame != 0 && leaves(frame) {
        be_cancelled();
    }
    if MADE_DEFERRED.get() != 0 && leaves(MADE_DEFERRED.get()) {
        drop(Deferred(()));
    }
}

/// `work` for who can be cancelled at any moment here, as the C library has it around its own calls that sleep: for the
/// time of it only where it sleeps itself. Who cannot is not cancelled in it at all.
#[cfg(target_arch = "x86_64")]
pub(crate) fn cancelled_as_there<R>(work: impl FnOnce() -> R) -> R {
    let mut before = DEFERRED;
    pthread_setcanceltype(DEFERRED, &raw mut before);
    if before == DEFERRED {
        return uncancelled(work);
    }
    await_cancellation();
    let result = work();
    pthread_setcanceltype(before, ptr::null_mut());
    result
}

/// Of a program.
#[cfg(target_arch = "x86_64")]
pub(crate) fn set_cancel_type(kind: c_int, before: *mut c_int) -> c_int {
    if kind != DEFERRED && kind != ASYNCHRONOUS {
        return libc::EINVAL;
    }
    let was = ANYWHERE.replace(kind == ASYNCHRONOUS);
    if !before.is_null() {
        // SAFETY: the program vouches for its integer.
        unsafe { before.write(if was { ASYNCHRONOUS } else { DEFERRED }) };
    }
    if MADE_DEFERRED.get() == 0 {
        pthread_setcanceltype(kind, ptr::null_mut());
    }
    0
}

/// The thread is cancelled where it sleeps only, until dropped: code of ours cannot be left anywhere.
pub(crate) struct Deferred(());

impl Deferred {
    /// Of a thread that may be cancelled anywhere, unless it is so already.
    #[inline]
    pub(crate) fn new() -> Option<Deferred> {
        (ANYWHERE.get() && MADE_DEFERRED.get() == 0).then(|| {
            let here = 0u8;
            pthread_setcanceltype(DEFERRED, ptr::null_mut());
            await_cancellation();
            MADE_DEFERRED.set((&raw const here).addr());
            Deferred(())
        })
    }
}

/// The signal of a `pthread_cancel` that found the thread as it was before may still be on its way. glibc 2.36 heeds only the
/// type when it comes, which any `write` of its own changes, and not the state (`sigcancel_handler`). At their end such
/// functions await it (`nptl/cancellation.c`).
fn await_cancellation() {
    let before = errno();
    real::read(-1, ptr::null_mut(), 0);
    set_errno(before);
}

impl Drop for Deferred {
    fn drop(&mut self) {
        MADE_DEFERRED.set(0);
        if ANYWHERE.get() {
            pthread_setcanceltype(ASYNCHRONOUS, ptr::null_mut());
        }
    }
}
