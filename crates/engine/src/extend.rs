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

mod deadline;
mod duty;
mod refusal;
mod undo;
mod weights;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use scoutline_abi::Region;
use scoutline_abi::layout::PollSet;
use scoutline_base::Time;
use scoutline_sched::Level;

use crate::clock;
use crate::sys::{self, ThreadPolicy};
use deadline::Reserved;
pub use deadline::deadlines_of_threads;
pub(crate) use duty::{Duty, Share, TakenBack};
use duty::{Seat, Step};
use refusal::Refusal;
pub use undo::{ThreadBefore, UndoLog};
use weights::{Notices, Weights, say};
pub use weights::{ThreadGroup, weights_of_threads};

/// How long a raised thread is believed to run without looking at what the kernel says of it.
const BELIEVED_NS: u64 = 500_000;
/// How long a thread is taken for the one that it was: before its id is another's, the ids of the whole machine have to go
/// round (32,768 and more).
const TRUSTED: Duration = Duration::from_millis(100);
/// Threads in the books at a time; more keep their own priority until some have ended.
const MAX_THREADS: usize = 1024;
/// How often those that have ended are looked for when the books are full.
const DROP_ENDED_EVERY: Duration = Duration::from_secs(1);

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

/// All threads that the engine has touched.
pub(crate) struct Extension {
    settings: Cell<Option<ExtensionSettings>>,
    undo: Option<Arc<dyn UndoLog>>,
    threads: RefCell<HashMap<u32, Touched>>,
    /// Ids of threads that are raised, or were when last looked at.
    raised: RefCell<Vec<u32>>,
    /// When those that have ended were looked for last.
    dropped_ended: Cell<Time>,
    /// Threads that have had SCHED_DEADLINE, by id and start: never twice, see [`Share::Deadline`].
    had_deadline: RefCell<HashSet<(u32, u64)>>,
    /// Started by the first thread that has a weight; `None`: this machine has no such groups.
    weights: OnceCell<Option<Weights>>,
    /// Threads that have a deadline or a weight: then it matters what else they serve.
    special: Cell<usize>,
    notices: Notices,
    /// For `stat`: how often a thread was raised.
    pub(crate) raises: Cell<u64>,
}

struct Touched {
    before: ThreadBefore,
    /// Its process, as the kernel told the daemon.
    process: u32,
    /// The set by which it was raised last.
    region: Arc<Region>,
    set: u32,
    priority: u8,
    raised_at: Time,
    /// When it was last seen to be the thread that it was.
    verified: Time,
    /// It sleeps for something else, or runs on another core, for all that we know.
    elsewhere: bool,
    refusal: Refusal,
    reserved: Reserved,
    seat: Seat,
}

impl Touched {
    /// See [`Extension::special`].
    fn is_special(&self) -> bool {
        matches!(self.reserved, Reserved::Has(_)) || self.seat != Seat::Home
    }

    fn shared(&self) -> Option<&PollSet> {
        self.region.set(self.set)
    }

    /// The priority that it has now: the shim takes it back by itself.
    fn priority(&self) -> u8 {
        let level = self.shared().map_or(0, |set| set.level.load(Ordering::Acquire));
        if level == 0 { 0 } else { self.priority }
    }

    fn sleeps(&self) -> bool {
        self.shared().is_none_or(|set| {
            set.sleepers.load(Ordering::Acquire) != 0 && set.signalled.load(Ordering::Acquire) == 0
        })
    }
}

impl Extension {
    /// None are touched without settings, or with nobody to remember what they were.
    pub(crate) fn new(settings: Option<ExtensionSettings>, undo: Option<Box<dyn UndoLog>>) -> Extension {
        Extension {
            settings: Cell::new(settings),
            undo: undo.map(Arc::from),
            threads: RefCell::default(),
            raised: RefCell::default(),
            dropped_ended: Cell::new(Time::ZERO),
            had_deadline: RefCell::default(),
            weights: OnceCell::new(),
            special: Cell::new(0),
            notices: Notices::default(),
            raises: Cell::new(0),
        }
    }

    /// Other settings from now on. Everybody gets back what they had; `then` is called when that is done.
    pub(crate) fn configure(&self, settings: Option<ExtensionSettings>, then: Box<dyn FnOnce() + Send>) {
        self.restore_all();
        self.settings.set(settings);
        match self.weights.get() {
            Some(Some(weights)) => weights.dissolve(then),
            _ => then(),
        }
    }

    /// What is degraded here, for `stat`.
    pub(crate) fn notices(&self) -> Vec<String> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a thread that has this to do is to be looked at.
    #[inline]
    pub(crate) fn concerns(&self, duty: Duty) -> bool {
        duty.level > Level::Priority(0)
            || match duty.share {
                Share::Unsaid => false,
                Share::Own => self.special.get() > 0,
                Share::Deadline { .. } | Share::Group { .. } => true,
            }
    }

    /// The thread that waits on this set, of this process, has something to do for a path that asks this of it.
    pub(crate) fn raise(&self, region: &Arc<Region>, set: u32, process: u32, duty: Duty) {
        self.raise_at(clock::now(), (region, set), process, duty);
    }

    fn raise_at(&self, now: Time, (region, set): (&Arc<Region>, u32), process: u32, duty: Duty) {
        let (Some(undo), Some(settings)) = (&self.undo, self.settings.get()) else { return };
        let priority = match duty.level {
            Level::Priority(priority) => priority,
            Level::Idle => 0,
        };
        let Some(shared) = region.set(set) else { return };
        let thread = shared.thread.load(Ordering::Acquire);
        if thread == 0 {
            return;
        }
        let mut threads = self.threads.borrow_mut();
        if let Some(touched) = threads.get_mut(&thread).filter(|touched| touched.process == process) {
            touched.elsewhere = false;
            // Nearly all calls end here.
            let weighs_so = matches!((touched.seat, duty.share),
                (Seat::Group { class, weight }, Share::Group { class: its, weight: its_weight })
                    if class == its && weight == its_weight);
            if priority > 0 && !touched.is_special() && touched.priority() >= priority || weighs_so {
                return;
            }
        } else if priority == 0 && !matches!(duty.share, Share::Group { .. }) {
            return;
        }
        if !self.keep_books(&mut threads, (region, set), (thread, process), now) {
            // Whoever the set speaks of has ended, or is not to be touched: the next one that waits there takes its place.
            return;
        }
        let Some(touched) = threads.get_mut(&thread) else { return };
        let was_special = touched.is_special();
        self.seat(touched, duty.share, now);
        let reserved = self.reserve(touched, shared, duty.share, now);
        self.count_special(was_special, touched.is_special());
        if reserved || priority == 0 || touched.priority() >= priority || touched.refusal.holds(now) {
            return;
        }
        // What somebody else has given it since it lowered itself stays: with its next event it is taken as it is by then.
        if touched.before.is_changed_by_others() {
            if let Some(changed) = threads.remove(&thread) {
                self.forget(undo.as_ref(), &changed);
            }
            return;
        }
        let raised = raise_to(touched, shared, settings, priority);
        match raised {
            Ok(()) => {
                self.raises.set(self.raises.get() + 1);
                touched.refusal = Refusal::default();
                (touched.priority, touched.raised_at, touched.set) = (priority, now, set);
                touched.region = Arc::clone(region);
                let mut raised = self.raised.borrow_mut();
                if !raised.contains(&thread) {
                    raised.push(thread);
                }
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                if let Some(gone) = threads.remove(&thread) {
                    self.forget(undo.as_ref(), &gone);
                }
            }
            // On its way home from a group, which in version 1 has no time for SCHED_FIFO.
            Err(_) if touched.seat != Seat::Home => {}
            Err(error) => {
                touched.refusal.again(now);
                say(
                    &self.notices,
                    format!(
                        "there are threads that cannot be raised with their paths ({error}): it needs CAP_SYS_NICE, and \
                         in a cgroup of version 1 cpu.rt_runtime_us; they keep their own priority"
                    ),
                );
            }
        }
    }

    /// Sees that the books are about this thread, and that it is the one that they are about. False: it is not to be
    /// touched.
    fn keep_books(
        &self,
        threads: &mut HashMap<u32, Touched>,
        (region, set): (&Arc<Region>, u32),
        (thread, process): (u32, u32),
        now: Time,
    ) -> bool {
        let Some(undo) = &self.undo else { return false };
        let known = threads.get(&thread).filter(|known| known.process == process);
        if known.is_none_or(|known| now.since(known.verified) > TRUSTED) {
            // An id is used again once its thread has ended: it may be another's by now, of any program.
            let started = sys::thread_stat(thread).map_or(0, |stat| stat.started);
            let same = |known: &Touched| known.process == process && known.before.started == started;
            match threads.get_mut(&thread) {
                Some(known) if same(known) && !known.before.is_changed_by_others() => known.verified = now,
                // It is still the one in the books, and another program's: this one has no say about it.
                Some(known)
                    if known.process != process
                        && known.before.started == started
                        && sys::is_thread_of(thread, known.process) =>
                {
                    return false;
                }
                Some(_) => {
                    if let Some(gone) = threads.remove(&thread) {
                        self.forget(undo.as_ref(), &gone);
                    }
                }
                None => {}
            }
        }
        if threads.contains_key(&thread) {
            return true;
        }
        if threads.len() >= MAX_THREADS {
            self.drop_ended(threads, undo.as_ref(), now);
            if threads.len() >= MAX_THREADS {
                return false;
            }
        }
        let touched = touch(undo.as_ref(), region, set, (thread, process), now);
        if let (None, Some(shared)) = (&touched, region.set(set)) {
            shared.level.store(0, Ordering::SeqCst);
        }
        touched.map(|touched| threads.insert(thread, touched)).is_some()
    }

    /// Makes room in the books, now and then: each look costs a few microseconds.
    #[cold]
    fn drop_ended(&self, threads: &mut HashMap<u32, Touched>, undo: &dyn UndoLog, now: Time) {
        if now.since(self.dropped_ended.get()) < DROP_ENDED_EVERY {
            return;
        }
        self.dropped_ended.set(now);
        threads.retain(|thread, touched| {
            let lives = sys::is_thread_of(*thread, touched.process);
            if !lives {
                self.forget(undo, touched);
            }
            lives
        });
    }

    /// A thread is as it was, or gone.
    fn forget(&self, undo: &dyn UndoLog, touched: &Touched) {
        self.count_special(touched.is_special(), false);
        if touched.seat != Seat::Home
            && let Some(Some(weights)) = self.weights.get()
        {
            weights.leave(&touched.before);
        }
        undo.forget(&touched.before);
    }

    fn count_special(&self, before: bool, now: bool) {
        self.special.set(self.special.get() + usize::from(now) - usize::from(before));
    }

    /// Puts a thread into the control group of the class that it serves, or back.
    fn seat(&self, touched: &mut Touched, share: Share, now: Time) {
        let (seat, step) = touched.seat.serve(share, now);
        let weights = || {
            let undo = self.undo.as_ref()?;
            self.weights.get_or_init(|| Weights::start(Arc::clone(undo), &self.notices)).as_ref()
        };
        let thread = &touched.before;
        let taken = match step {
            Some(Step::Enter { class, weight }) => {
                weights().is_none_or(|weights| weights.enter(thread, class, weight))
            }
            Some(Step::Leave) => {
                if let Some(weights) = weights() {
                    weights.leave(thread);
                }
                true
            }
            None => true,
        };
        // Else it is tried again with the thread's next event.
        if taken {
            touched.seat = seat;
        }
    }

    /// The most important priority at which a raised thread wants the core now.
    pub(crate) fn wanted(&self, now: Time) -> Option<Level> {
        let mut raised = self.raised.borrow_mut();
        if raised.is_empty() {
            return None;
        }
        let mut threads = self.threads.borrow_mut();
        let mut most = 0;
        raised.retain(|thread| {
            let Some(touched) = threads.get_mut(thread) else { return false };
            let priority = touched.priority();
            if priority == 0 {
                return false;
            }
            if touched.sleeps() || touched.elsewhere {
                return true;
            }
            if now.since(touched.raised_at).as_nanos() as u64 > BELIEVED_NS {
                touched.raised_at = now;
                match sys::thread_stat(*thread) {
                    Ok(stat) if stat.runs => {}
                    Ok(_) => {
                        touched.elsewhere = true;
                        return true;
                    }
                    Err(_) => return false,
                }
            }
            most = most.max(priority);
            true
        });
        (most > 0).then_some(Level::Priority(most))
    }

    /// Linux had nothing to run: whoever is raised waits for something else, or has another core.
    pub(crate) fn core_was_idle(&self) {
        let mut threads = self.threads.borrow_mut();
        for thread in &*self.raised.borrow() {
            if let Some(touched) = threads.get_mut(thread) {
                touched.elsewhere = true;
            }
        }
    }

    /// Threads that have SCHED_DEADLINE, and threads in control groups of classes.
    pub(crate) fn shared_now(&self) -> (usize, usize) {
        let threads = self.threads.borrow();
        let count = |which: fn(&Touched) -> bool| threads.values().filter(|touched| which(touched)).count();
        (
            count(|touched| matches!(touched.reserved, Reserved::Has(_))),
            count(|touched| matches!(touched.seat, Seat::Group { .. })),
        )
    }

    /// Threads that are raised now.
    pub(crate) fn raised_now(&self) -> usize {
        let threads = self.threads.borrow();
        self.raised.borrow().iter().filter(|id| threads.get(id).is_some_and(|it| it.priority() > 0)).count()
    }

    /// A process of this program is gone, and its threads with it; or it has called `exec`, and goes on as another
    /// program.
    pub(crate) fn forget_process(&self, region: &Arc<Region>, process: u32) {
        self.forget_if(|touched| Arc::ptr_eq(&touched.region, region) && touched.process == process);
    }

    /// A program is gone or lets go of its region: its threads get back what they had.
    pub(crate) fn forget_region(&self, region: &Arc<Region>) {
        self.forget_if(|touched| Arc::ptr_eq(&touched.region, region));
    }

    /// The classes have changed: who has something by what they were gets back what it had. Whoever serves something that
    /// is still important is raised again with the next event.
    pub(crate) fn take_back(&self, taken: &TakenBack) {
        if taken.is_empty() {
            return;
        }
        self.forget_if(|touched| match (touched.reserved, touched.seat) {
            (Reserved::Has(has), _) => taken.lasting().any(|share| deadline::wanted(share) == Some(has)),
            (_, Seat::Group { class, .. }) => taken.group(class),
            _ => taken.levels() && touched.priority() > 0,
        });
    }

    /// Everybody gets back what they had.
    pub(crate) fn restore_all(&self) {
        self.forget_if(|_| true);
    }

    fn forget_if(&self, which: impl Fn(&Touched) -> bool) {
        let Some(undo) = &self.undo else { return };
        self.threads.borrow_mut().retain(|_, touched| {
            if !which(touched) {
                return true;
            }
            if let Some(shared) = touched.shared()
                && shared.thread.load(Ordering::Acquire) == touched.before.thread
            {
                shared.level.store(0, Ordering::SeqCst);
            }
            if let Err(error) = touched.before.restore() {
                eprintln!(
                    "scoutline: warn: thread {} keeps its raised priority: {error}",
                    touched.before.thread
                );
            }
            self.forget(undo.as_ref(), touched);
            false
        });
        let threads = self.threads.borrow();
        self.raised.borrow_mut().retain(|thread| threads.contains_key(thread));
    }
}

/// Gives a thread SCHED_FIFO at this priority of a path.
fn raise_to(
    touched: &Touched,
    shared: &PollSet,
    settings: ExtensionSettings,
    priority: u8,
) -> io::Result<()> {
    let raised = ThreadPolicy {
        policy: libc::SCHED_FIFO,
        priority: i32::from(settings.base) + i32::from(priority.min(settings.range)),
    };
    let own = ThreadPolicy { policy: touched.before.policy, priority: touched.before.priority };
    shared.own_policy.store(own.packed(), Ordering::Relaxed);
    shared.level.store(u32::from(priority), Ordering::SeqCst);
    let thread = touched.before.thread;
    match raised.give(thread, true) {
        Ok(()) if shared.level.load(Ordering::SeqCst) == 0 => {
            // It has lowered itself in between, on another core, and must not stay raised unseen.
            let _ = own.give(thread, true);
            Ok(())
        }
        Err(error) => {
            shared.level.store(0, Ordering::SeqCst);
            Err(error)
        }
        done => done,
    }
}

/// Takes a thread into the books, if it is one of this process.
fn touch(
    undo: &dyn UndoLog,
    region: &Arc<Region>,
    set: u32,
    (thread, process): (u32, u32),
    now: Time,
) -> Option<Touched> {
    if !sys::is_thread_of(thread, process) {
        return None;
    }
    let before = ThreadBefore::of(thread).ok()?;
    // A program that has chosen real time for itself knows better.
    if matches!(
        before.policy & !libc::SCHED_RESET_ON_FORK,
        libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE
    ) {
        return None;
    }
    undo.note(&before).ok()?;
    let region = Arc::clone(region);
    Some(Touched {
        before,
        process,
        region,
        set,
        priority: 0,
        raised_at: now,
        verified: now,
        elsewhere: false,
        refusal: Refusal::default(),
        reserved: Reserved::default(),
        seat: Seat::default(),
    })
}

#[cfg(test)]
mod tests;
