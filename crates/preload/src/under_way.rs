//! Calls under way: each holds the socket that it works on, as Linux's `fdget` does, so that another thread's close neither
//! ends it nor gives its slot to somebody else before the call is done. And what is given back when a signal handler jumps
//! out of them (`siglongjmp`): where a jump leads is seen before it is made ([`before_jump`]).
//!
//! ```text
//!   thread: TOP ─► a call in a handler ─► the call that it has interrupted ─► none      each in its frame on the stack
//! ```

use std::cell::{Cell, LazyCell};
use std::ffi::c_int;
use std::ptr;

use crate::slot::Socket;
use crate::{attach, lock, table, wait};

/// How often a socket that is in the table and held by nobody is looked for again.
const TRIES: u32 = 1000;

/// A call, in its frame.
struct Call {
    socket: Socket,
    /// Whose hold it is: a child, which a handler has forked here, holds what stands in its table.
    process: u32,
    before: *const Call,
}

/// Which call was under way at some point of it.
pub(crate) type Mark = *const ();

thread_local! {
    static TOP: Cell<*const Call> = const { Cell::new(ptr::null()) };
}

/// `work` on the socket that `fd` is, held meanwhile. `None`: `fd` is another one by now, or none.
#[inline]
pub(crate) fn call<R>(fd: c_int, socket: Socket, work: impl FnOnce() -> R) -> Option<R> {
    if !hold(fd, socket) {
        return None;
    }
    let mut call = Call { socket, process: attach::process(), before: TOP.get() };
    if !call.before.is_null() && call.before.addr() <= (&raw const call).addr() {
        call.forget_left();
    }
    TOP.set(&raw const call);
    let result = work();
    TOP.set(call.before);
    call.give_back();
    Some(result)
}

#[inline]
fn hold(fd: c_int, socket: Socket) -> bool {
    let mut tries = 0;
    while table::socket(fd) == Some(socket.index) {
        if socket.hold_beside() {
            if table::socket(fd) == Some(socket.index) {
                return true;
            }
            socket.release();
            return false;
        }
        // It is just being closed, or entered.
        lock::back_off(tries);
        tries += 1;
        if tries == TRIES {
            socket.hold(false);
            return true;
        }
    }
    false
}

impl Call {
    /// What should lie further out was left by neither a jump nor an end: its frame is gone, unless this is a handler's stack.
    #[cold]
    fn forget_left(&mut self) {
        if !wait::is_on_signal_stack() {
            self.before = ptr::null();
        }
    }

    fn give_back(&self) {
        if self.process == attach::process() {
            self.socket.release();
        }
    }
}

/// For [`cancelled`].
pub(crate) fn mark() -> Mark {
    TOP.get().cast()
}

/// The thread is cancelled in the midst of the call with this mark. One that was jumped out of has been given back before.
pub(crate) fn cancelled(mark: Mark) {
    let top = TOP.get();
    if !mark.is_null() && top.cast() == mark {
        // SAFETY: its frame still stands.
        let call = unsafe { &*top };
        TOP.set(call.before);
        call.give_back();
    }
}

/// The calling thread is about to jump to where its stack is `target`: what it leaves is given back.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_jump(target: usize) {
    // Asked only where something is held: programs jump for other reasons, too, and often.
    let is_on_signal_stack = LazyCell::new(wait::is_on_signal_stack);
    // Stacks grow downwards, and a handler's own is left altogether.
    let leaves = |frame: usize| frame < target || *is_on_signal_stack;
    loop {
        let top = TOP.get();
        if top.is_null() || !leaves(top.addr()) {
            break;
        }
        // SAFETY: its frame still stands.
        let call = unsafe { &*top };
        TOP.set(call.before);
        call.give_back();
    }
    crate::epoll::before_jump(leaves);
    wait::before_jump(leaves);
}
