//! The books about threads: what each was, what it has, and what it gets.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use scoutline_abi::Region;
use scoutline_abi::layout::{ENGINE_COUNT, PollSet};
use scoutline_base::Time;
use scoutline_sched::Level;

use super::ExtensionSettings;
use super::deadline::{self, Reserved};
use super::duty::{Duty, Seat, Share, Step, TakenBack};
use super::refusal::Refusal;
use super::undo::{ThreadBefore, UndoLog};
use super::weights::{Notices, Weights, say};
use crate::sys::{self, ThreadHandle, ThreadPolicy};

/// How long a raised thread is believed to run without looking at what the kernel says of it.
const BELIEVED_NS: u64 = 500_000;
/// How long a thread is taken for the one that it was: before its id is another's, the ids of the whole machine have to go
/// round (32,768 and more).
pub(super) const TRUSTED: Duration = Duration::from_millis(100);
/// Threads in the books at a time; more keep their own priority until some have ended.
pub(super) const MAX_THREADS: usize = 1024;
/// How often those that have ended are looked for when the books are full.
pub(super) const DROP_ENDED_EVERY: Duration = Duration::from_secs(1);

/// All threads that engines have touched.
pub(super) struct Books {
    settings: Option<ExtensionSettings>,
    pub(super) threads: HashMap<u32, Touched>,
    /// Ids of threads that are raised, or were when last looked at.
    raised: Vec<u32>,
    /// When those that have ended were looked for last.
    dropped_ended: Time,
    pub(super) means: Means,
}

/// What it takes to touch a thread.
pub(super) struct Means {
    undo: Option<Arc<dyn UndoLog>>,
    /// Threads that have had SCHED_DEADLINE, by id and start: never twice, see [`Share::Deadline`].
    pub(super) had_deadline: HashSet<(u32, u64)>,
    /// Started by the first thread that has a weight; `None`: this machine has no such groups.
    weights: OnceCell<Option<Weights>>,
    /// Threads that have a deadline or a weight: then it matters what else they serve.
    special: usize,
    pub(super) notices: Notices,
}

pub(super) struct Touched {
    pub(super) before: ThreadBefore,
    pub(super) handle: ThreadHandle,
    /// Its process, as the kernel told the daemon.
    pub(super) process: u32,
    /// The set by which it was raised last.
    pub(super) region: Arc<Region>,
    pub(super) set: u32,
    pub(super) priority: u8,
    pub(super) raised_at: Time,
    /// When it was last seen to be the thread that it was.
    pub(super) verified: Time,
    /// On which engines' cores it does not run, for all that we know: it sleeps for something else, or has another core.
    pub(super) elsewhere: [bool; ENGINE_COUNT],
    pub(super) refusal: Refusal,
    pub(super) reserved: Reserved,
    pub(super) seat: Seat,
}

impl Touched {
    /// See [`Means::special`].
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

impl Books {
    /// None are touched without settings, or with nobody to remember what they were.
    pub(super) fn new(
        settings: Option<ExtensionSettings>,
        undo: Option<Arc<dyn UndoLog>>,
        notices: Notices,
    ) -> Books {
        Books {
            settings,
            threads: HashMap::new(),
            raised: Vec::new(),
            dropped_ended: Time::ZERO,
            means: Means {
                undo,
                had_deadline: HashSet::new(),
                weights: OnceCell::new(),
                special: 0,
                notices,
            },
        }
    }

    /// Threads that have a deadline or a weight.
    pub(super) fn special(&self) -> usize {
        self.means.special
    }

    /// Threads that are raised, or were when last looked at.
    pub(super) fn listed_raised(&self) -> usize {
        self.raised.len()
    }

    /// See [`super::Extension::configure`].
    pub(super) fn configure(&mut self, settings: Option<ExtensionSettings>, then: Box<dyn FnOnce() + Send>) {
        self.restore_all();
        self.settings = settings;
        match self.means.weights.get() {
            Some(Some(weights)) => weights.dissolve(then),
            _ => then(),
        }
    }

    /// See [`super::Extension::raise`]; whether a thread has been raised.
    pub(super) fn raise(
        &mut self,
        now: Time,
        (region, set): (&Arc<Region>, u32),
        process: u32,
        duty: Duty,
    ) -> bool {
        let Some(settings) = self.settings.filter(|_| self.means.undo.is_some()) else { return false };
        let priority = match duty.level {
            Level::Priority(priority) => priority,
            Level::Idle => 0,
        };
        let Some(shared) = region.set(set) else { return false };
        let thread = shared.thread.load(Ordering::Acquire);
        if thread == 0 {
            return false;
        }
        if let Some(touched) = self.threads.get_mut(&thread).filter(|touched| touched.process == process) {
            touched.elsewhere = [false; ENGINE_COUNT];
            // Nearly all calls end here.
            let weighs_so = matches!((touched.seat, duty.share),
                (Seat::Group { class, weight }, Share::Group { class: its, weight: its_weight })
                    if class == its && weight == its_weight);
            if priority > 0 && !touched.is_special() && touched.priority() >= priority || weighs_so {
                if touched.sleeps() {
                    touched.raised_at = now; // it is about to be woken
                }
                return false;
            }
        } else if priority == 0 && !matches!(duty.share, Share::Group { .. }) {
            return false;
        }
        if !self.keep((region, set), (thread, process), now) {
            // Whoever the set speaks of has ended, or is not to be touched: the next one that waits there takes its place.
            return false;
        }
        let Some(touched) = self.threads.get_mut(&thread) else { return false };
        let was_special = touched.is_special();
        self.means.seat(touched, duty.share, now);
        let reserved = self.means.reserve(touched, shared, duty.share, now);
        self.means.count_special(was_special, touched.is_special());
        if reserved || priority == 0 || touched.priority() >= priority || touched.refusal.holds(now) {
            return false;
        }
        // What somebody else has given it since it lowered itself stays: with its next event it is taken as it is by then.
        if touched.before.is_changed_by_others() {
            self.drop_thread(thread);
            return false;
        }
        match raise_to(touched, shared, settings, priority) {
            Ok(()) => {
                touched.refusal = Refusal::default();
                (touched.priority, touched.raised_at, touched.set) = (priority, now, set);
                touched.region = Arc::clone(region);
                if !self.raised.contains(&thread) {
                    self.raised.push(thread);
                }
                return true;
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => self.drop_thread(thread),
            // On its way home from a group, which in version 1 has no time for SCHED_FIFO.
            Err(_) if touched.seat != Seat::Home => {}
            Err(error) => {
                touched.refusal.again(now);
                say(
                    &self.means.notices,
                    format!(
                        "there are threads that cannot be raised with their paths ({error}): it needs CAP_SYS_NICE, and \
                         in a cgroup of version 1 cpu.rt_runtime_us; they keep their own priority"
                    ),
                );
            }
        }
        false
    }

    /// Sees that the books are about this thread, and that it is the one that they are about. False: it is not to be
    /// touched.
    pub(super) fn keep(
        &mut self,
        (region, set): (&Arc<Region>, u32),
        (thread, process): (u32, u32),
        now: Time,
    ) -> bool {
        let known = self.threads.get(&thread).filter(|known| known.process == process);
        if known.is_none_or(|known| now.since(known.verified) > TRUSTED) {
            match self.threads.get_mut(&thread) {
                // An id is used again once its thread has ended: it may be another's by now, of any program.
                Some(known) if !known.handle.lives() => self.drop_thread(thread),
                Some(known) if known.process == process && !known.before.is_changed_by_others() => {
                    known.verified = now;
                }
                // It is still the one in the books, and another program's: this one has no say about it.
                Some(known) if known.process != process && sys::is_thread_of(thread, known.process) => {
                    return false;
                }
                Some(_) => self.drop_thread(thread),
                None => {}
            }
        }
        if self.threads.contains_key(&thread) {
            return true;
        }
        if self.threads.len() >= MAX_THREADS {
            self.drop_ended(now);
            if self.threads.len() >= MAX_THREADS {
                return false;
            }
        }
        let Some(undo) = &self.means.undo else { return false };
        let touched = touch(undo.as_ref(), region, set, (thread, process), now);
        if let (None, Some(shared)) = (&touched, region.set(set)) {
            shared.level.store(0, Ordering::SeqCst);
        }
        touched.map(|touched| self.threads.insert(thread, touched)).is_some()
    }

    /// Makes room in the books, now and then: each look costs a few microseconds.
    #[cold]
    fn drop_ended(&mut self, now: Time) {
        if now.since(self.dropped_ended) < DROP_ENDED_EVERY {
            return;
        }
        self.dropped_ended = now;
        self.threads.retain(|thread, touched| {
            let lives = sys::is_thread_of(*thread, touched.process);
            if !lives {
                self.means.forget(touched);
            }
            lives
        });
    }

    /// A thread is not in the books any more: it is as it was, or gone.
    fn drop_thread(&mut self, thread: u32) {
        if let Some(gone) = self.threads.remove(&thread) {
            self.means.forget(&gone);
        }
    }

    /// See [`super::Extension::wanted`].
    pub(super) fn wanted(&mut self, engine: usize, now: Time) -> Option<Level> {
        let mut most = 0;
        let threads = &mut self.threads;
        self.raised.retain(|thread| {
            let Some(touched) = threads.get_mut(thread) else { return false };
            let priority = touched.priority();
            if priority == 0 {
                return false;
            }
            if touched.sleeps() || touched.elsewhere[engine] {
                return true;
            }
            if now.since(touched.raised_at).as_nanos() as u64 > BELIEVED_NS {
                touched.raised_at = now;
                match sys::thread_stat(*thread) {
                    Ok(stat) if stat.runs => {}
                    Ok(_) => {
                        touched.elsewhere = [true; ENGINE_COUNT];
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

    /// See [`super::Extension::core_was_idle`].
    pub(super) fn core_was_idle(&mut self, engine: usize) {
        for thread in &self.raised {
            if let Some(touched) = self.threads.get_mut(thread) {
                touched.elsewhere[engine] = true;
            }
        }
    }

    /// Threads that have SCHED_DEADLINE, and threads in control groups of classes.
    pub(super) fn shared_now(&self) -> (usize, usize) {
        let count =
            |which: fn(&Touched) -> bool| self.threads.values().filter(|touched| which(touched)).count();
        (
            count(|touched| matches!(touched.reserved, Reserved::Has(_))),
            count(|touched| matches!(touched.seat, Seat::Group { .. })),
        )
    }

    /// Threads that are raised now.
    pub(super) fn raised_now(&self) -> usize {
        self.raised.iter().filter(|id| self.threads.get(id).is_some_and(|it| it.priority() > 0)).count()
    }

    /// See [`super::Extension::forget_process`].
    pub(super) fn forget_process(&mut self, region: &Arc<Region>, process: u32) {
        self.forget_if(|touched| Arc::ptr_eq(&touched.region, region) && touched.process == process);
    }

    /// See [`super::Extension::forget_region`].
    pub(super) fn forget_region(&mut self, region: &Arc<Region>) {
        self.forget_if(|touched| Arc::ptr_eq(&touched.region, region));
    }

    /// See [`super::Extension::take_back`].
    pub(super) fn take_back(&mut self, taken: &TakenBack) {
        self.forget_if(|touched| match (touched.reserved, touched.seat) {
            (Reserved::Has(has), _) => taken.lasting().any(|share| deadline::wanted(share) == Some(has)),
            (_, Seat::Group { class, .. }) => taken.group(class),
            _ => taken.levels() && touched.priority() > 0,
        });
    }

    /// Everybody gets back what they had.
    pub(super) fn restore_all(&mut self) {
        self.forget_if(|_| true);
    }

    fn forget_if(&mut self, which: impl Fn(&Touched) -> bool) {
        self.threads.retain(|_, touched| {
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
            self.means.forget(touched);
            false
        });
        self.raised.retain(|thread| self.threads.contains_key(thread));
    }
}

impl Means {
    /// A thread is as it was, or gone.
    fn forget(&mut self, touched: &Touched) {
        self.count_special(touched.is_special(), false);
        if touched.seat != Seat::Home
            && let Some(Some(weights)) = self.weights.get()
        {
            weights.leave(&touched.before);
        }
        if let Some(undo) = &self.undo {
            undo.forget(&touched.before);
        }
    }

    fn count_special(&mut self, before: bool, now: bool) {
        self.special = self.special + usize::from(now) - usize::from(before);
    }

    /// Puts a thread into the control group of the class that it serves, or back.
    fn seat(&mut self, touched: &mut Touched, share: Share, now: Time) {
        let (seat, step) = touched.seat.serve(share, now);
        let thread = &touched.before;
        let taken = match step {
            Some(Step::Enter { class, weight }) => {
                self.weights().is_none_or(|weights| weights.enter(thread, class, weight))
            }
            Some(Step::Leave) => {
                if let Some(weights) = self.weights() {
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

    fn weights(&self) -> Option<&Weights> {
        let undo = self.undo.as_ref()?;
        self.weights.get_or_init(|| Weights::start(Arc::clone(undo), &self.notices)).as_ref()
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
pub(super) fn touch(
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
        handle: ThreadHandle::of(thread, before.started),
        before,
        process,
        region,
        set,
        priority: 0,
        raised_at: now,
        verified: now,
        elsewhere: [false; ENGINE_COUNT],
        refusal: Refusal::default(),
        reserved: Reserved::default(),
        seat: Seat::default(),
    })
}
