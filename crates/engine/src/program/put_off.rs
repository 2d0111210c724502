//! Wake-ups that are put off: a thread that may run on the engine's own core alone, and not before the engine, cannot run
//! until that core is given away, so it is woken then, and once. Woken at once it would stand in Linux's run queue for the
//! rest of the engine's turn, and count there as one that waits for a core.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::sys::{self, ThreadPolicy};

/// A poll set's thread is asked about once in so many wake-ups: others may bind it anew.
const ASKED_EVERY: u32 = 256;

/// Where an engine has a core before everybody else on it.
#[derive(Clone, Copy)]
pub(crate) struct Home {
    pub(crate) core: usize,
    /// Its priority among the real-time ones.
    pub(crate) priority: u8,
}

/// Of all programs of an engine.
#[derive(Default)]
pub(crate) struct OfAll {
    /// `None`: no wake-up is put off.
    pub(crate) home: Cell<Option<Home>>,
    /// How many are put off.
    count: Cell<usize>,
}

/// Poll sets of one program whose bells are put off.
pub(super) struct PutOff {
    pub(super) of_all: Rc<OfAll>,
    sets: RefCell<Vec<u32>>,
}

/// Who sleeps on a poll set, and whether its wake-ups are put off, as of when it was asked about last.
#[derive(Clone, Copy, Default)]
pub(super) struct Bound {
    thread: u32,
    is_here: bool,
    wakes_left: u32,
}

impl OfAll {
    pub(crate) fn is_empty(&self) -> bool {
        self.count.get() == 0
    }
}

impl Home {
    /// Whether a thread of a process can run only when this engine does not. What the program says of it is not believed:
    /// in a container it is another's number.
    fn holds(self, thread: u32, process: u32) -> bool {
        let waits = |ThreadPolicy { policy, priority }: ThreadPolicy| {
            policy & !libc::SCHED_RESET_ON_FORK != libc::SCHED_DEADLINE && priority < i32::from(self.priority)
        };
        sys::is_thread_of(thread, process)
            && sys::only_core_of(thread) == Some(self.core)
            && ThreadPolicy::of(thread).is_ok_and(waits)
    }
}

impl PutOff {
    pub(super) fn new(of_all: Rc<OfAll>) -> PutOff {
        PutOff { of_all, sets: RefCell::default() }
    }

    /// Whether the bell of a set, by which this thread of this process sleeps alone, rings later.
    pub(super) fn puts_off(&self, set: u32, (thread, process): (u32, u32), bound: &Cell<Bound>) -> bool {
        let Some(home) = self.of_all.home.get() else { return false };
        let mut of = bound.get();
        if of.wakes_left == 0 {
            of = Bound { thread, is_here: home.holds(thread, process), wakes_left: ASKED_EVERY };
        }
        of.wakes_left -= 1;
        bound.set(of);
        let later = of.is_here && of.thread == thread;
        if later {
            self.sets.borrow_mut().push(set);
            self.of_all.count.set(self.of_all.count.get() + 1);
        }
        later
    }

    /// The sets whose bells are to ring now.
    pub(super) fn take(&self) -> Vec<u32> {
        let sets = self.sets.take();
        self.are_less_by(sets.len());
        sets
    }

    /// A set is given back.
    pub(super) fn forget(&self, set: u32) {
        let mut sets = self.sets.borrow_mut();
        let before = sets.len();
        sets.retain(|&other| other != set);
        self.are_less_by(before - sets.len());
    }

    fn are_less_by(&self, sets: usize) {
        self.of_all.count.set(self.of_all.count.get() - sets);
    }
}

impl Drop for PutOff {
    fn drop(&mut self) {
        self.take();
    }
}
