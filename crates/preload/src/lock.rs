//! A small lock for the shim's own tables: no memory, no futex, safe to set back in a forked child.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::sigset_t;

use crate::{cancel, dispatch, real};

/// Data behind a lock that is held for moments only.
pub(crate) struct Lock<T> {
    /// FREE, or the thread that has it, or TAKEN.
    held: AtomicUsize,
    /// About where on its stack it took it.
    frame: AtomicUsize,
    data: UnsafeCell<T>,
}

const FREE: usize = 0;
/// Across a fork: by no frame.
const TAKEN: usize = 1;

// SAFETY: `held` lets one thread at a time at the data.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The lock, held. Given back on drop.
pub(crate) struct Guard<'a, T>(&'a Lock<T>);

/// Waits between two tries: first spinning, then giving up the core, then napping.
pub(crate) fn back_off(tries: u32) {
    if tries < 64 {
        std::hint::spin_loop();
    } else if tries < 128 {
        // Among threads of different real-time priority this alone would be for ever: the holder may be below us.
        // SAFETY: no arguments.
        unsafe { libc::sched_yield() };
    } else {
        cancel::uncancelled(|| real::nap(50));
    }
}

impl<T> Lock<T> {
    /// Free, around `data`.
    pub(crate) const fn new(data: T) -> Lock<T> {
        Lock { held: AtomicUsize::new(FREE), frame: AtomicUsize::new(0), data: UnsafeCell::new(data) }
    }

    /// Waits until it is ours.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let mut tries = 0;
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            back_off(tries);
            tries += 1;
        }
    }

    /// The same, if nobody has it.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        let here = 0u8;
        self.held.compare_exchange(FREE, this_thread(), Ordering::Acquire, Ordering::Relaxed).ok()?;
        self.frame.store((&raw const here).addr(), Ordering::Relaxed);
        Some(Guard(self))
    }

    /// Takes it across a fork: [`Lock::give_back`] in parent and child.
    pub(crate) fn take_over_fork(&self) {
        std::mem::forget(self.lock());
        self.held.store(TAKEN, Ordering::Relaxed);
    }

    /// Frees it, whoever held it: after `take_over_fork`, or in a child whose other threads are gone.
    pub(crate) fn give_back(&self) {
        self.frame.store(0, Ordering::Relaxed);
        self.held.store(FREE, Ordering::Release);
    }

    /// A handler of this thread jumps: if a frame that it leaves has the lock, it is the caller's now, and what is behind it
    /// may be half done.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn jumped_out(&self, leaves: impl Fn(usize) -> bool) -> Option<Guard<'_, T>> {
        let frame = self.frame.load(Ordering::Relaxed); // 0: it has only just been taken
        let is_left = self.held.load(Ordering::Relaxed) == this_thread() && (frame == 0 || leaves(frame));
        is_left.then(|| Guard(self))
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so the lock is ours.
        unsafe { &*self.0.data.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists, so the lock is ours, and `&mut self` makes the access unique.
        unsafe { &mut *self.0.data.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// Signals held, until dropped: the mask of before.
pub(crate) struct Quiet(u64);

impl Quiet {
    /// From now on.
    pub(crate) fn new() -> Quiet {
        Quiet(dispatch::hold_signals())
    }

    /// For a call that sleeps, in which they come.
    pub(crate) fn mask(&self) -> *const sigset_t {
        ptr::from_ref(&self.0).cast() // as much of a set as the kernel reads
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        dispatch::set_mask(self.0);
    }
}

/// `work` in which no handler runs that would wait for its own thread there, or jump out.
pub(crate) fn undisturbed<R>(work: impl FnOnce() -> R) -> R {
    let _quiet = Quiet::new();
    work()
}

/// What is found out once.
pub(crate) fn once<T>(cell: &OnceLock<T>, find: impl FnOnce() -> T) -> &T {
    cell.get().unwrap_or_else(|| cancel::uncancelled(|| undisturbed(|| cell.get_or_init(find))))
}

thread_local! {
    /// Its address tells the threads of a process apart.
    static HERE: u16 = const { 0 };
}

/// Code that one thread at a time is in. Its signal handlers, too, when they have interrupted it there: so what it does
/// may be begun anew between any two of its steps.
pub(crate) struct Section {
    /// The thread that is in it; 0: none.
    thread: AtomicUsize,
    /// About where on its stack it came in.
    frame: AtomicUsize,
}

/// See [`Section::enter`]. Left on drop.
pub(crate) struct Inside<'a>(&'a Section);

impl Section {
    /// With nobody in it.
    pub(crate) const fn new() -> Section {
        Section { thread: AtomicUsize::new(0), frame: AtomicUsize::new(0) }
    }

    /// Waits until nobody else is in it. `None`: a handler's, which leaves nothing.
    #[must_use]
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        let (me, here) = (this_thread(), 0u8);
        let mut tries = 0;
        while let Err(other) = self.thread.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed)
        {
            if other == me {
                return None;
            }
            back_off(tries);
            tries += 1;
        }
        self.frame.store((&raw const here).addr(), Ordering::Relaxed);
        Some(Inside(self))
    }

    /// A handler of this thread jumps: whoever was in it and is left by that is in it no more.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn jumped_out(&self, leaves: impl Fn(usize) -> bool) {
        let frame = self.frame.load(Ordering::Relaxed); // 0: it has only just come in
        if self.thread.load(Ordering::Relaxed) == this_thread() && (frame == 0 || leaves(frame)) {
            self.give_back();
        }
    }

    /// Keeps others out across a fork: [`Section::give_back`] in parent and child.
    pub(crate) fn take_over_fork(&self) {
        std::mem::forget(self.enter());
    }

    /// In a forked child: of those who were in it there is the calling thread alone.
    pub(crate) fn in_child(&self) {
        if self.thread.load(Ordering::Relaxed) != this_thread() {
            self.thread.store(0, Ordering::Relaxed);
        }
    }

    /// Lets others in again. Nothing where a handler's fork has done so within what it interrupted.
    pub(crate) fn give_back(&self) {
        if self.thread.load(Ordering::Relaxed) == this_thread() {
            self.frame.store(0, Ordering::Relaxed);
        }
        let _ = self.thread.compare_exchange(this_thread(), 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// The same in a forked child; neither FREE nor TAKEN.
fn this_thread() -> usize {
    HERE.with(|here| ptr::from_ref(here).addr())
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}
