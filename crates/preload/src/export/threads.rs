//! New threads: calls past the C library are dispatched in them, too ([`crate::dispatch`]).

use std::ffi::{c_int, c_void};

use crate::dispatch::{self, Routine};
use crate::real;

/// Makes a thread by `create`, with a frame of ours below its start routine if it needs one.
fn make(
    start: *mut c_void,
    argument: *mut c_void,
    first: *mut c_void,
    create: impl FnOnce(*mut c_void, *mut c_void) -> c_int,
) -> c_int {
    if !dispatch::is_wanted() {
        return create(start, argument);
    }
    let routine = Box::into_raw(Box::new(Routine { start, argument }));
    let result = create(first, routine.cast());
    if result != 0 {
        // SAFETY: made above; no thread has it.
        drop(unsafe { Box::from_raw(routine) });
    }
    result
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const c_void,
    start: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    make(start, argument, dispatch::first_frame::<*mut c_void> as *mut c_void, |start, argument| {
        real::pthread_create(thread, attributes, start, argument)
    })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn thrd_create(
    thread: *mut libc::pthread_t,
    start: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    make(start, argument, dispatch::first_frame::<c_int> as *mut c_void, |start, argument| {
        real::thrd_create(thread, start, argument)
    })
}
