//! Extended paths, the program's side: a thread that the engine has raised lowers itself when it goes on to something
//! less important, and one that was not raised asks for it when it takes something important (see
//! `scoutline_engine`'s extend.rs).
//!
//! Lowering needs no privilege, and it is this thread's own affair when to do so: the engine could only guess.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use scoutline_abi::layout::{HAS_DEADLINE, slot_state};

use crate::real;
use crate::slot::{Socket, ring_if_away};
use crate::wait::{self, Set};

/// Importance of what has priority 0: from above it on, threads are raised.
pub(crate) const ORDINARY: u32 = 1;
/// Less important events are held back behind more important ones for so long at most.
pub(crate) const HOLD_NS: u64 = 2_000_000;
/// A thread that was not raised asks again after so long.
const ASK_AGAIN_NS: u64 = 5_000_000;
/// Events that are given at a time, once important ones have been seen: behind a batch of them the next important one
/// has to wait.
pub(crate) const BATCH: usize = 16;

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
    /// The set on which the thread has slept last: by its own or by an epoll's it may have been raised.
    static LAST: Cell<Option<Set>> = const { Cell::new(None) };
    /// When the thread has asked to be raised by [`go_on_with`].
    static ASKED_NS: Cell<u64> = const { Cell::new(0) };
}

/// Something important has been seen by this process.
static IMPORTANT_SEEN: AtomicBool = AtomicBool::new(false);

/// The calling thread's id.
pub(crate) fn thread() -> u32 {
    let known = THREAD.get();
    if known != 0 {
        return known;
    }
    // SAFETY: no arguments.
    let id = unsafe { libc::gettid() }.cast_unsigned();
    THREAD.set(id);
    id
}

/// After a fork.
pub(crate) fn in_child() {
    THREAD.set(0);
    LAST.set(None);
}

/// The calling thread is the one that sleeps on this set.
#[inline]
pub(crate) fn enter(set: Set) {
    let id = thread();
    if let Some(last) = LAST.get()
        && last.number != set.number
    {
        leave(last);
    }
    LAST.set(Some(set));
    sign(set, id);
}

/// Writes into a set whose it is. One that is raised by way of this set lowers itself first: what the set says is about
/// that thread.
fn sign(set: Set, id: u32) {
    let theirs = set.shared.thread.load(Ordering::Relaxed);
    if theirs != id && (theirs == 0 || set.shared.level.load(Ordering::Acquire) == 0) {
        set.shared.thread.store(id, Ordering::Release);
    }
}

/// The calling thread waits on this set no more.
pub(crate) fn leave(set: Set) {
    let level = set.shared.level.load(Ordering::Acquire);
    if level != 0 && set.shared.thread.load(Ordering::Relaxed) == thread() {
        lower(set, level);
    }
}

/// The calling thread goes on with something of this importance.
#[inline]
pub(crate) fn serve(importance: u32) {
    if importance > ORDINARY {
        return;
    }
    for set in [LAST.get(), wait::own_set()].into_iter().flatten() {
        leave(set);
    }
}

/// The daemon is gone, and its guard perhaps with it (a control group that is killed): nobody else lowers the calling
/// thread any more.
#[cold]
pub(crate) fn orphaned() {
    serve(ORDINARY);
    for set in [LAST.get(), wait::own_set()].into_iter().flatten() {
        let own = set.shared.own_policy.load(Ordering::Relaxed);
        let is_ours = set.shared.thread.load(Ordering::Relaxed) == thread();
        if is_ours && own & HAS_DEADLINE != 0 && policy() == Some(libc::SCHED_DEADLINE) {
            return_to(own);
        }
    }
}

/// Whether the calling thread is raised, as far as it knows.
#[inline]
pub(crate) fn is_raised() -> bool {
    [LAST.get(), wait::own_set()]
        .into_iter()
        .flatten()
        .any(|set| set.shared.level.load(Ordering::Relaxed) != 0)
}

/// Back to the policy that the thread had before the engine raised it.
#[cold]
fn lower(set: Set, level: u32) {
    let own = set.shared.own_policy.load(Ordering::Relaxed);
    let cleared = set.shared.level.compare_exchange(level, 0, Ordering::SeqCst, Ordering::Relaxed);
    // What somebody else has given it meanwhile (`chrt`) stays.
    if policy().is_some() {
        return_to(own);
    }
    let again = set.shared.level.load(Ordering::SeqCst);
    if cleared.is_err() || again != 0 {
        // The engine has raised it once more meanwhile: before our call, or after it?
        if policy() != Some(libc::SCHED_FIFO) {
            let _ = set.shared.level.compare_exchange(again, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
    // Not before: the engine takes the core at once, and a raise that it means for what comes next must not be undone by us
    // when we go on.
    ring_if_away();
}

/// The policy of the calling thread, if it is the engine's or we have lowered it: then it has the flag.
fn policy() -> Option<c_int> {
    // SAFETY: no pointers.
    let policy = unsafe { libc::sched_getscheduler(0) };
    (policy & libc::SCHED_RESET_ON_FORK != 0).then_some(policy & !libc::SCHED_RESET_ON_FORK)
}

/// Gives the calling thread the policy that it had by itself. The flag stays: without privilege it cannot be taken away.
fn return_to(own: u32) {
    let parameters = libc::sched_param { sched_priority: (own >> 8 & 0xff) as c_int };
    let policy = (own & 0xff) as c_int | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the structure outlives the call. It concerns the calling thread alone.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
}

/// The calling thread has taken a connection that it was perhaps not woken for.
#[inline]
pub(crate) fn took(socket: Socket) {
    if socket.importance() > ORDINARY {
        ask(socket);
    } else {
        leave_own();
    }
}

/// In the midst of its work the calling thread comes to something ordinary. By an epoll it may have been raised for what
/// waits there: that it finds when it asks for events again, and until then it has to get there.
#[inline]
fn leave_own() {
    if let Some(set) = wait::own_set() {
        leave(set);
    }
}

/// The calling thread goes on with an event of this socket, for which it has perhaps not been woken.
pub(crate) fn go_on_with(socket: Socket) {
    let importance = socket.importance();
    serve(importance);
    if importance > ORDINARY && socket.slot.state.load(Ordering::Relaxed) & slot_state::LISTENING == 0 {
        let now = real::now_ns();
        // Where threads are not raised it asks in vain, and the engine has a path to look at each time.
        if now.wrapping_sub(ASKED_NS.get()) >= ASK_AGAIN_NS {
            ASKED_NS.set(now);
            ask(socket);
        }
    }
}

/// Asks the engine to raise the calling thread, if it is not yet: one that an epoll has given this connection is.
#[cold]
fn ask(socket: Socket) {
    let Some(set) = wait::thread_set() else { return };
    let importance = socket.importance();
    let is_enough = |set: &Set| {
        set.shared.level.load(Ordering::Relaxed).saturating_add(1) >= importance
            && set.shared.thread.load(Ordering::Relaxed) == thread()
    };
    if [LAST.get(), Some(set)].iter().flatten().any(is_enough) {
        return;
    }
    sign(set, thread());
    socket.slot.server.store(set.number + 1, Ordering::Release);
    socket.tell();
}

/// An important connection is closed: its thread is an ordinary one again.
#[inline]
pub(crate) fn closed(importance: u32) {
    if importance > ORDINARY {
        leave_own();
    }
}

/// Holding less important events back, for one epoll.
#[derive(Clone, Copy)]
pub(crate) struct Hold {
    since_ns: u64,
}

impl Hold {
    pub(crate) const NONE: Hold = Hold { since_ns: 0 };

    /// Important events are ready, and `others` are too: whether the others stay back for now.
    pub(crate) fn holds(&mut self, others: bool, now: u64) -> bool {
        saw_important();
        if !others {
            self.since_ns = 0;
            return true;
        }
        if self.since_ns == 0 {
            self.since_ns = now;
        }
        let holds = now.wrapping_sub(self.since_ns) < HOLD_NS;
        if !holds {
            self.since_ns = 0;
        }
        holds
    }
}

/// Something important is ready.
#[inline]
pub(crate) fn saw_important() {
    IMPORTANT_SEEN.store(true, Ordering::Relaxed);
}

/// Whether something important has come to this process at all.
#[inline]
pub(crate) fn has_important() -> bool {
    IMPORTANT_SEEN.load(Ordering::Relaxed)
}
