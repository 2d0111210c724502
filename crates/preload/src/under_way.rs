//! Calls under way: each holds the socket that it works on, as Linux's `fdget` does, so that another thread's close neither
//! ends it nor gives its slot to somebody else before the call is done. And what is given back when a signal handler jumps
//! out of them (`siglongjmp`): where a jump leads is seen before it is made ([`before_jump`]).
//!
//! ```text
//!   thread: TOP ─► a call in a handler ─► the call that it has interrupted ─► none      each in its frame on the stack
//! ```
//! A handler may interrupt the very change of a socket's count. So calls mark their changes (`slot::COUNTS`): the last one
//! tells whether the hold was taken. Where another call on that socket has changed it since, nobody knows, and it stays
//! held, until the program ends: a socket too many, never one too few.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

use crate::slot::Socket;
use crate::{attach, lock, table, wait};
#[cfg(target_arch = "x86_64")]
use crate::{cancel, real};

/// How often a socket that is in the table and held by nobody is looked for again.
const TRIES: u32 = 1000;

/// A call, in its frame.
struct Call {
    socket: Socket,
    /// Whose hold it is: a child, which a handler has forked here, holds what stands in its table.
    generation: u32,
    /// It is between the change of the count that takes its hold and the one that gives it back.
    is_held: Cell<bool>,
    /// The number of the set by which it sleeps, plus one; 0: it does not.
    sleeps_by: Cell<u32>,
    /// A handler that has interrupted it has closed a number of its socket: it begins again with what its own is then.
    is_left: Cell<bool>,
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
    Call::new(socket).make(|call| call.hold_what_is(fd), work)
}

/// `work`, in which the thread sleeps, in a call on `socket` or beside one: held meanwhile, by the call if it is that one's.
/// `None`: nobody has it.
pub(crate) fn meanwhile<R>(socket: Socket, work: impl FnOnce() -> R) -> Option<R> {
    let call = Call::new(socket);
    let is_held = call.before().is_some_and(|outer| {
        // One that sleeps already is what a handler, in which we are, has interrupted, and may jump back to.
        let is_asleep = outer.sleeps_by.get() != 0;
        outer.socket.index == socket.index
            && outer.generation == call.generation
            && outer.is_held.get()
            && !is_asleep
    });
    if is_held { Some(work()) } else { call.make(Call::hold, work) }
}

impl Call {
    fn new(socket: Socket) -> Call {
        Call {
            socket,
            generation: attach::generation(),
            is_held: Cell::new(false),
            sleeps_by: Cell::new(0),
            is_left: Cell::new(false),
            before: TOP.get(),
        }
    }

    /// The call further out, if it still stands: what was left by neither a jump nor an end lies further down, unless this is
    /// a handler's stack.
    #[inline]
    fn before(&self) -> Option<&Call> {
        let is_there = !self.before.is_null()
            && (self.before.addr() > ptr::from_ref(self).addr() || wait::is_on_signal_stack());
        // SAFETY: its frame is further out.
        if is_there { Some(unsafe { &*self.before }) } else { None }
    }

    /// Does it, if it gets its hold.
    #[inline]
    fn make<R>(mut self, hold: impl FnOnce(&Call) -> bool, work: impl FnOnce() -> R) -> Option<R> {
        self.before = self.before().map_or(ptr::null(), ptr::from_ref);
        TOP.set(&raw const self);
        let result = hold(&self).then(|| {
            self.is_held.set(true);
            let result = work();
            self.give_back();
            result
        });
        TOP.set(self.before);
        result
    }

    /// Marks of this frame: the change that takes the hold, and the one that gives it back.
    fn marks(&self) -> [u32; 2] {
        let place = ((ptr::from_ref(self).addr() >> 3) as u32) << 1;
        [place, place | 1]
    }

    #[inline]
    fn hold(&self) -> bool {
        self.socket.hold_by(self.marks()[0])
    }

    #[inline]
    fn hold_what_is(&self, fd: c_int) -> bool {
        let mut tries = 0;
        while table::socket(fd) == Some(self.socket.index) {
            if tries == TRIES {
                self.socket.hold(false);
                return true;
            }
            if self.hold() {
                if table::socket(fd) == Some(self.socket.index) {
                    return true;
                }
                self.socket.release_by(self.marks()[1]);
                return false;
            }
            // It is just being closed, or entered.
            lock::back_off(tries);
            tries += 1;
        }
        false
    }

    #[inline]
    fn give_back(&self) {
        self.is_held.set(false);
        if self.generation == attach::generation() {
            self.socket.release_by(self.marks()[1]);
        }
    }

    /// It goes on no more, from wherever it was.
    fn end(&self) {
        TOP.set(self.before);
        if self.is_held.get()
            || self.generation == attach::generation() && self.socket.was_changed_by(self.marks()[0])
        {
            self.give_back();
        }
    }
}

/// The innermost call of the thread, which sleeps on its socket by this set (0, or its number and one).
pub(crate) fn sleeps_by(set_plus_one: u32) {
    // SAFETY: who sleeps is in a call.
    unsafe { &*TOP.get() }.sleeps_by.set(set_plus_one);
}

/// Whether that call is to begin again.
pub(crate) fn is_left() -> bool {
    // SAFETY: as above.
    unsafe { &*TOP.get() }.is_left.get()
}

/// A number of the socket is gone. Calls of this very thread that a handler has interrupted find that when it returns, as
/// Linux begins them again; those of other threads have the socket, and sleep on.
pub(crate) fn number_is_gone(socket: Socket) {
    let here = Call::new(socket);
    let mut call = here.before();
    while let Some(outer) = call {
        // Those of a parent are not this process's.
        if outer.socket.index == socket.index && outer.generation == here.generation {
            outer.is_left.set(true);
            if let Some(set) = outer.sleeps_by.get().checked_sub(1) {
                attach::wake_set(set);
            }
        }
        call = outer.before();
    }
}

/// For [`cancelled`].
pub(crate) fn mark() -> Mark {
    TOP.get().cast()
}

/// The thread is cancelled in the midst of the call with this mark. One that was jumped out of has been given back before.
pub(crate) fn cancelled(mark: Mark) {
    if mark.is_null() || TOP.get().cast() != mark {
        return;
    }
    // SAFETY: its frame still stands.
    unsafe { &*TOP.get() }.end();
    // A jump is seen before it is made there, so this is the thread's end.
    #[cfg(target_arch = "x86_64")]
    while !TOP.get().is_null() {
        // SAFETY: as above; those further out end as well.
        unsafe { &*TOP.get() }.end();
    }
}

/// The calling thread is about to jump to where its stack is `target`: what it leaves is given back.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_jump(target: usize) {
    let errno = real::errno();
    // Asked only where something is held: programs jump for other reasons, too, and often.
    let stack = std::cell::LazyCell::new(wait::signal_stack);
    // Stacks grow downwards. From a handler's own a jump leads to frames of it, or leaves it altogether.
    let leaves = |frame: usize| match &*stack {
        Some(own) if own.contains(&frame) => !own.contains(&target) || frame < target,
        Some(own) => !own.contains(&target) && frame < target,
        None => frame < target,
    };
    // Locks first: to give up a socket's last hold takes some.
    crate::held::before_jump(leaves);
    crate::epoll::before_jump(leaves);
    crate::slot::before_jump(leaves);
    crate::accept::before_jump(leaves);
    loop {
        let top = TOP.get();
        if top.is_null() || !leaves(top.addr()) {
            break;
        }
        // SAFETY: its frame still stands.
        unsafe { &*top }.end();
    }
    cancel::before_jump(leaves);
    real::set_errno(errno);
}
