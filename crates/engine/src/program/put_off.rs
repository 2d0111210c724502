//! Wake-ups that are put off: a thread that may run on the engine's own core alone cannot run before the engine gives that
//! core away, so it is woken then, and once. Woken at once it would stand in Linux's run queue for the rest of the
//! engine's turn, and count there as one that waits for a core.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::sys;

/// A thread is asked about once in so many wake-ups: others may bind it anew.
const ASKED_EVERY: u32 = 256;

/// Poll sets whose bells are put off.
pub(super) struct PutOff {
    /// The engine's core, if it has one.
    core: Option<usize>,
    sets: RefCell<Vec<u32>>,
    /// How many there are, of all programs of the engine.
    count: Rc<Cell<usize>>,
}

/// Who sleeps on a poll set, and whether it may run on the engine's core alone, as of when it was asked about last.
#[derive(Clone, Copy, Default)]
pub(super) struct Bound {
    thread: u32,
    is_here: bool,
    wakes_left: u32,
}

impl PutOff {
    pub(super) fn new(core: Option<usize>, count: Rc<Cell<usize>>) -> PutOff {
        PutOff { core, sets: RefCell::default(), count }
    }

    /// Whether this bell rings later. `thread` is what the program says: whoever names another is woken too late by a
    /// turn of the engine, and nobody else is.
    pub(super) fn puts_off(&self, set: u32, thread: u32, bound: &Cell<Bound>) -> bool {
        let Some(core) = self.core.filter(|_| thread != 0) else { return false };
        let mut of = bound.get();
        if of.thread != thread || of.wakes_left == 0 {
            let is_here = sys::only_core_of(thread) == Some(core);
            of = Bound { thread, is_here, wakes_left: ASKED_EVERY };
        }
        of.wakes_left -= 1;
        bound.set(of);
        if of.is_here {
            self.sets.borrow_mut().push(set);
            self.count.set(self.count.get() + 1);
        }
        of.is_here
    }

    /// The sets whose bells are to ring now.
    pub(super) fn take(&self) -> Vec<u32> {
        let sets = self.sets.take();
        self.count.set(self.count.get().saturating_sub(sets.len()));
        sets
    }

    /// A set is given back.
    pub(super) fn forget(&self, set: u32) {
        let mut sets = self.sets.borrow_mut();
        let before = sets.len();
        sets.retain(|&other| other != set);
        self.count.set(self.count.get().saturating_sub(before - sets.len()));
    }
}

impl Drop for PutOff {
    fn drop(&mut self) {
        self.take();
    }
}
