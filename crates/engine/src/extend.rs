//! Extended paths (SILK §3.3, DESIGN.md §5): a thread of a program runs at the priority of the path that it serves.
//!
//! ```text
//!   engine: something happens on a path of priority p ≥ 1
//!      └─► the thread that waits for it: SCHED_FIFO base + p, then it is woken          (raise)
//!   shim:  the thread goes on to something less important, or closes the connection
//!      └─► its own policy again, by itself: lowering needs no privilege                  (lower)
//! ```
//! A thread is known by the poll set on which it waits: the shim writes its id there, and the daemon knows from the
//! kernel whose process asked for the set, so no program can have another's threads touched. Whether a raised thread
//! is still running is seen by the same set: it waits there again, or does not. While one runs, Linux stands at its
//! priority in the engine's schedule, and paths of lower priority wait: no priority inversion between the engine and
//! programs on its core.
//!
//! What a thread was before is noted once with [`UndoLog`], whose owner puts it back even when this process is killed.
//! Beside the levels threads have deadlines and weights: see [`duty`] and [`weights`].
//!
//! A thread may serve paths of several engines. So the books about threads ([`books`]) are one for all engines, behind a
//! lock: it is taken for what is important only, and where the schedule asks each turn, what it was told last will do
//! while another engine has the lock.

mod books;
mod deadline;
mod duty;
mod refusal;
mod undo;
mod weights;

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use scoutline_abi::Region;
use scoutline_base::Time;
use scoutline_sched::Level;

use crate::clock;
use books::Books;
pub use deadline::deadlines_of_threads;
pub(crate) use duty::{Duty, Share, TakenBack};
pub use undo::{ThreadBefore, UndoLog};
use weights::Notices;
pub use weights::{ThreadGroup, weights_of_threads};

/// How priorities of paths become those of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtensionSettings {
    /// A path of priority p has its threads at SCHED_FIFO `base` + p.
    pub base: u8,
    /// p counts up to this.
    pub range: u8,
}

impl Default for ExtensionSettings {
    fn default() -> ExtensionSettings {
        // Below the engine (50) and the kernel's own threaded interrupts (50), above what others use by default.
        ExtensionSettings { base: 10, range: 30 }
    }
}

/// The threads that the engines of a daemon have touched.
pub(crate) struct Threads {
    books: Mutex<Books>,
    /// Threads that have a deadline or a weight: then it matters what else they serve.
    special: AtomicUsize,
    /// Threads that are raised, or were when last looked at.
    raised: AtomicUsize,
    notices: Notices,
}

impl Threads {
    /// None are touched without settings, or with nobody to remember what they were.
    pub(crate) fn new(settings: Option<ExtensionSettings>, undo: Option<Box<dyn UndoLog>>) -> Arc<Threads> {
        let notices = Notices::default();
        let books = Books::new(settings, undo.map(Arc::from), Arc::clone(&notices));
        Arc::new(Threads {
            books: Mutex::new(books),
            special: AtomicUsize::new(0),
            raised: AtomicUsize::new(0),
            notices,
        })
    }
}

/// What one engine has to do with them.
pub(crate) struct Extension {
    threads: Arc<Threads>,
    /// Number of the engine.
    engine: usize,
    /// What [`Extension::wanted`] said last.
    wanted: Cell<Option<Level>>,
    /// For `stat`: how often this engine raised a thread.
    pub(crate) raises: Cell<u64>,
}

impl Extension {
    pub(crate) fn new(threads: Arc<Threads>, engine: usize) -> Extension {
        Extension { threads, engine, wanted: Cell::new(None), raises: Cell::new(0) }
    }

    /// Reads or writes in the books.
    fn with<T>(&self, then: impl FnOnce(&mut Books) -> T) -> T {
        self.with_locked(self.threads.books.lock().unwrap_or_else(PoisonError::into_inner), then)
    }

    fn with_locked<T>(&self, mut books: MutexGuard<Books>, then: impl FnOnce(&mut Books) -> T) -> T {
        let result = then(&mut books);
        self.threads.special.store(books.special(), Ordering::Relaxed);
        self.threads.raised.store(books.listed_raised(), Ordering::Relaxed);
        result
    }

    /// Other settings from now on. Everybody gets back what they had; `then` is called when that is done.
    pub(crate) fn configure(&self, settings: Option<ExtensionSettings>, then: Box<dyn FnOnce() + Send>) {
        self.with(|books| books.configure(settings, then));
    }

    /// What is degraded here, for `stat`.
    pub(crate) fn notices(&self) -> Vec<String> {
        self.threads.notices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a thread that has this to do is to be looked at.
    #[inline]
    pub(crate) fn concerns(&self, duty: Duty) -> bool {
        duty.level > Level::Priority(0)
            || match duty.share {
                Share::Unsaid => false,
                Share::Own => self.threads.special.load(Ordering::Relaxed) > 0,
                Share::Deadline { .. } | Share::Group { .. } => true,
            }
    }

    /// The thread that waits on this set, of this process, has something to do for a path that asks this of it.
    pub(crate) fn raise(&self, region: &Arc<Region>, set: u32, process: u32, duty: Duty) {
        self.raise_at(clock::now(), (region, set), process, duty);
    }

    fn raise_at(&self, now: Time, set: (&Arc<Region>, u32), process: u32, duty: Duty) {
        if self.with(|books| books.raise(now, set, process, duty)) {
            self.raises.set(self.raises.get() + 1);
        }
    }

    /// The most important priority at which a raised thread wants this engine's core now.
    pub(crate) fn wanted(&self, now: Time) -> Option<Level> {
        if self.threads.raised.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let books = match self.threads.books.try_lock() {
            Ok(books) => books,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return self.wanted.get(),
        };
        let wanted = self.with_locked(books, |books| books.wanted(self.engine, now));
        self.wanted.set(wanted);
        wanted
    }

    /// Linux had nothing to run on this engine's core: whoever is raised waits for something else, or has another core.
    pub(crate) fn core_was_idle(&self) {
        self.with(|books| books.core_was_idle(self.engine));
    }

    /// Threads that have SCHED_DEADLINE, and threads in control groups of classes.
    pub(crate) fn shared_now(&self) -> (usize, usize) {
        self.with(|books| books.shared_now())
    }

    /// Threads that are raised now.
    pub(crate) fn raised_now(&self) -> usize {
        self.with(|books| books.raised_now())
    }

    /// A process of this program is gone, and its threads with it; or it has called `exec`, and goes on as another
    /// program.
    pub(crate) fn forget_process(&self, region: &Arc<Region>, process: u32) {
        self.with(|books| books.forget_process(region, process));
    }

    /// A program is gone or lets go of its region: its threads get back what they had.
    pub(crate) fn forget_region(&self, region: &Arc<Region>) {
        self.with(|books| books.forget_region(region));
    }

    /// The classes have changed: who has something by what they were gets back what it had. Whoever serves something that
    /// is still important is raised again with the next event.
    pub(crate) fn take_back(&self, taken: &TakenBack) {
        if !taken.is_empty() {
            self.with(|books| books.take_back(taken));
        }
    }

    /// Everybody gets back what they had.
    pub(crate) fn restore_all(&self) {
        self.with(Books::restore_all);
    }
}

#[cfg(test)]
mod tests;
