//! Sleeping until the engine has something for us.
//!
//! A thread that blocks has a *poll set*: a number in shared memory and the read end of a pipe. To sleep it
//!
//! 1. enters the set in `slot.sets` of what it waits for and counts itself in `set.sleepers`,
//! 2. looks again (a fence stands between: the engine does the same the other way round),
//! 3. reads from the pipe. The read blocks in the kernel, so signals, SA_RESTART and EINTR are the kernel's own.
//!
//! The engine, on an event of the slot, sets its ready bit in each set that watches it, and when `sleepers` is not
//! 0 and `signalled` goes from 0 to 1 it writes one byte. Who wakes drains the pipe and clears `signalled` before
//! looking. End of file: the daemon is gone.
//!
//! A set with [`EXCLUSIVE`] in `sleepers` belongs to a thread in one blocking call, which takes what it is woken
//! for: of several such sets the engine may wake just one per event. It may choose one that is just leaving with an
//! earlier event. So who leaves takes itself off the slot, then looks at `signalled`, and passes such a wake-up on;
//! the engine sets `signalled`, then looks whether the set is still on the slot, and else chooses another.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::{pollfd, sigset_t, timespec};
use scoutline_abi::Region;
use scoutline_abi::layout::{EXCLUSIVE, EngineWord, PollSet, engine_state, slot_state};
use scoutline_ring::SleeperBell;

use crate::lock::{Lock, undisturbed};
use crate::slot::{Socket, kept, ring_before_sleep};
use crate::{attach, cancel, engines, options, poll, real, rings, serve, under_way};

/// Spinning lasts at most this long.
const SPIN_NS: u64 = 10_000;
/// A sleep ended because the socket's numbers are something else in this process, by a ring that has named it: the call
/// begins again with what its descriptor is now. No errno of Linux's that a program sees.
pub(crate) const MOVED: c_int = 512;
/// Sets kept for the next thread instead of going back to the daemon.
const CACHE_LEN: usize = 64;

/// A poll set of ours.
#[derive(Clone, Copy)]
pub(crate) struct Set {
    pub(crate) number: u32,
    pub(crate) pipe: c_int,
    pub(crate) shared: &'static PollSet,
}

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// Something may have happened.
    Event,
    /// The time was over.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
    /// The daemon is gone.
    Dead,
}

#[derive(Clone, Copy)]
struct Mine {
    set: Option<Set>,
    generation: u32,
}

thread_local! {
    // No destructor: a pthread key gives the set back (see `start`).
    static MINE: Cell<Mine> = const { Cell::new(Mine { set: None, generation: 0 }) };
    /// The frame that sleeps by the set; 0: none does.
    static USER: Cell<usize> = const { Cell::new(0) };
}

struct Cache {
    items: [Option<Set>; CACHE_LEN],
    len: usize,
}

static CACHE: Lock<Cache> = Lock::new(Cache { items: [None; CACHE_LEN], len: 0 });
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
/// Whether spinning paid lately.
static SPIN_SCORE: AtomicI32 = AtomicI32::new(0);

/// Makes the key whose destructor gives a thread's set back.
pub(crate) fn start() {
    let mut key = 0;
    // SAFETY: fills `key`; the destructor lives as long as the process.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0 {
        KEY.store(key, Ordering::Relaxed);
    }
}

extern "C" fn thread_ends(_: *mut c_void) {
    let mine = MINE.get();
    MINE.set(Mine { set: None, generation: 0 });
    if let Some(set) = mine.set
        && mine.generation == attach::generation()
    {
        give_back(set);
    }
}

/// Gives a set back: kept for the next who needs one, or returned to the daemon.
pub(crate) fn give_back(set: Set) {
    serve::leave(set);
    undisturbed(|| keep_or_free(set));
}

fn keep_or_free(set: Set) {
    let mut cache = CACHE.lock();
    if cache.len < CACHE_LEN {
        let at = cache.len;
        cache.items[at] = Some(set);
        cache.len += 1;
        return;
    }
    drop(cache);
    attach::free_set(set.number, set.pipe);
}

/// A set with its pipe, non-blocking if asked.
pub(crate) fn new_set(non_blocking: bool) -> Option<Set> {
    let region = attach::region()?;
    // Who is cancelled in it (a descriptor of ours is moved, and closed) has more than this to give back.
    let set = cancel::uncancelled(|| undisturbed(|| kept_or_new(region)))?;
    set.shared.one_takes.store(0, Ordering::Relaxed);
    set.shared.cpu_plus_one.store(0, Ordering::Relaxed);
    let flags = real::fcntl(set.pipe, libc::F_GETFL, 0);
    let flags = if non_blocking { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    real::fcntl(set.pipe, libc::F_SETFL, flags as usize);
    Some(set)
}

fn kept_or_new(region: &'static Region) -> Option<Set> {
    let mut cache = CACHE.lock();
    let kept = if cache.len > 0 {
        cache.len -= 1;
        let at = cache.len;
        cache.items[at].take()
    } else {
        None
    };
    drop(cache);
    if kept.is_some() {
        return kept;
    }
    let (number, pipe) = attach::new_set(region)?;
    Some(Set { number, pipe, shared: region.set(number)? })
}

/// The calling thread's set, if it has one.
#[inline]
pub(crate) fn own_set() -> Option<Set> {
    let mine = MINE.get();
    mine.set.filter(|_| mine.generation == attach::generation())
}

/// The calling thread's set, made at first use.
pub(crate) fn thread_set() -> Option<Set> {
    let mine = MINE.get();
    let generation = attach::generation();
    if let Some(set) = mine.set
        && mine.generation == generation
    {
        return Some(set);
    }
    let set = new_set(false)?;
    serve::enter(set);
    MINE.set(Mine { set: Some(set), generation });
    let key = KEY.load(Ordering::Relaxed);
    if key != u32::MAX {
        // SAFETY: a key of ours; any value but null makes its destructor run.
        unsafe { libc::pthread_setspecific(key, ptr::without_provenance(1)) };
    }
    Some(set)
}

/// The thread's set is in use, as long as nobody gives it back.
///
/// A signal handler may run in the midst of a sleep, and call, too. It must not take the byte that the sleep is to be
/// woken by: whoever asks the engine there does so without the set, and who sleeps there has a set of its own.
#[derive(Clone, Copy)]
pub(crate) struct InUse {
    before: usize,
    /// The set is not the thread's, which what it has interrupted sleeps by.
    nested: Option<Set>,
}

/// The calling thread's set, to sleep by from this frame on; in a handler that has interrupted a sleep a set of its own.
pub(crate) fn use_set(frame: *const u64) -> Option<(Set, InUse)> {
    let (before, here) = (USER.get(), frame.addr());
    let nested = if is_within(before, here) { Some(new_set(false)?) } else { None };
    let set = nested.or_else(|| own_after(before))?;
    USER.set(here);
    Some((set, InUse { before: if nested.is_some() { before } else { 0 }, nested }))
}

/// The calling thread's set for a question to the engine, in which no handler runs; `None` where a sleep that it has
/// interrupted is to be woken by it.
pub(crate) fn set_to_ask(frame: *const u64) -> Option<Set> {
    let before = USER.get();
    if is_within(before, frame.addr()) {
        return None;
    }
    USER.set(0);
    own_after(before)
}

/// The calling thread's set, which nobody uses. Who has jumped out of such a use may have taken the byte that woke it, and
/// said neither that nor that it sleeps no more.
fn own_after(left: usize) -> Option<Set> {
    let set = thread_set()?;
    if left != 0 {
        set.none_sleeps();
    }
    Some(set)
}

/// Whether a frame is within one that uses the set. Stacks grow downwards: one that is not above was left by a jump out of
/// a handler, unless the handler has a stack of its own.
fn is_within(user: usize, here: usize) -> bool {
    user != 0 && (here < user || is_on_signal_stack())
}

/// What [`use_set`] gave is not used any more.
pub(crate) fn used(using: InUse) {
    USER.set(using.before);
    if let Some(set) = using.nested {
        give_back(set);
    }
}

/// The same for who has left its sleep at once: it may have taken the byte that woke it without having said so, and may
/// have said already that it sleeps no more.
pub(crate) fn left_asleep(set: Set, using: InUse) {
    set.none_sleeps();
    used(using);
}

/// In a child that a handler has forked in the midst of a sleep: its sets are others.
pub(crate) fn forget_use() {
    USER.set(0);
}

pub(crate) fn is_on_signal_stack() -> bool {
    signal_stack().is_some()
}

/// The stack for signals, if it is what the calling thread runs on.
pub(crate) fn signal_stack() -> Option<Range<usize>> {
    // SAFETY: a structure of numbers and a pointer.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: fills the structure that we give.
    let got = unsafe { libc::sigaltstack(ptr::null(), &raw mut stack) };
    let start = stack.ss_sp.addr();
    (got == 0 && stack.ss_flags & libc::SS_ONSTACK != 0).then_some(start..start + stack.ss_size)
}

/// A pipe of ours was moved. Other threads' sets are not reachable: they are protected by being high.
pub(crate) fn relocated(from: c_int, to: c_int) {
    let mut mine = MINE.get();
    if let Some(set) = &mut mine.set
        && set.pipe == from
    {
        set.pipe = to;
        MINE.set(mine);
    }
    undisturbed(|| {
        for item in CACHE.lock().items.iter_mut().flatten() {
            if item.pipe == from {
                item.pipe = to;
            }
        }
    });
}

/// Nobody may be in the cache while the process is copied.
pub(crate) fn before_fork() {
    CACHE.take_over_fork();
}

/// See [`before_fork`].
pub(crate) fn after_fork() {
    CACHE.give_back();
}

/// The kept sets are the parent's.
pub(crate) fn in_child() {
    let mut cache = CACHE.lock();
    cache.len = 0;
    cache.items = [None; CACHE_LEN];
}

/// From now on the engine marks the slot in the set.
pub(crate) fn watch(socket: Socket, set: u32) {
    let (word, bit) = (set as usize / 64, 1u64 << (set % 64));
    if let Some(cell) = socket.slot.sets.get(word) {
        cell.fetch_or(bit, Ordering::SeqCst);
        socket.slot.sets_summary.fetch_or(1 << word, Ordering::SeqCst);
    }
}

/// Some set has it. An answer of the moment: for who alone could change it, or has put up a fence behind what those see that
/// enter their set later.
pub(crate) fn is_watched(socket: Socket) -> bool {
    socket.slot.sets_summary.load(Ordering::Acquire) != 0
        && socket.slot.sets.iter().any(|word| word.load(Ordering::Relaxed) != 0)
}

/// No more.
pub(crate) fn unwatch(socket: Socket, set: Set) {
    let (word, bit) = (set.number as usize / 64, 1u64 << (set.number % 64));
    if let Some(cell) = socket.slot.sets.get(word) {
        cell.fetch_and(!bit, Ordering::SeqCst);
    }
    socket.region.ready(set.shared).clear(socket.index as usize);
}

impl Set {
    /// How the engine knows that somebody sleeps here.
    pub(crate) fn bell(&self) -> SleeperBell<'_> {
        SleeperBell { sleepers: &self.shared.sleepers, signalled: &self.shared.signalled }
    }

    /// The calling thread is about to sleep by it, and counts as `weight` (see [`SleeperBell::enter`]).
    pub(crate) fn enter(&self, weight: u32) {
        self.tell_core();
        self.bell().enter(weight);
    }

    /// Where there are several engines they know by it whom to wake for a connection on their core.
    fn tell_core(&self) {
        if attach::region().is_some_and(|region| region.engines() > 1) {
            self.shared.cpu_plus_one.store(cpu().wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Of a set by which one thread sleeps, this one.
    fn none_sleeps(&self) {
        self.shared.sleepers.store(0, Ordering::SeqCst);
        self.bell().drained();
    }

    /// Takes what was written to the pipe. Only after `ppoll` named it, or on a non-blocking pipe.
    pub(crate) fn drain(&self) -> Woken {
        let mut bytes = [0u8; 64];
        let got = real::read(self.pipe, bytes.as_mut_ptr().cast(), bytes.len());
        if got > 0 {
            self.bell().drained();
            return Woken::Event;
        }
        if got == 0 {
            attach::on_daemon_ended();
            return Woken::Dead;
        }
        match real::errno() {
            libc::EINTR => Woken::Interrupted,
            _ => Woken::Event, // EAGAIN: another thread was first
        }
    }

    /// Sleeps until woken; `deadline` on the monotonic clock. With one, or if `never_restarts`, every signal handler ends it.
    pub(crate) fn sleep(&self, deadline: Option<u64>, never_restarts: bool) -> Woken {
        if deadline.is_none() && !never_restarts {
            return self.drain();
        }
        let mut fds = [pollfd { fd: self.pipe, events: libc::POLLIN, revents: 0 }];
        match await_own(&mut fds, deadline, ptr::null()) {
            0 => Woken::TimedOut,
            n if n > 0 => self.drain(),
            _ => Woken::Interrupted,
        }
    }
}

/// How long it is until then.
pub(crate) fn left(deadline: u64) -> timespec {
    let left = deadline.saturating_sub(real::now_ns());
    timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 }
}

/// `ppoll` with a deadline. Result as the real one's, errno negated.
pub(crate) fn ppoll_until(fds: &mut [pollfd], deadline: Option<u64>, mask: *const sigset_t) -> isize {
    let timeout = deadline.map(left);
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    real::ours(real::ppoll(fds.as_mut_ptr(), fds.len() as u64, timeout, mask) as isize)
}

/// As [`ppoll_until`], for descriptors of our choice: Linux refuses more than RLIMIT_NOFILE says, which may be 0 by now,
/// and `select` it does not.
pub(crate) fn await_own(fds: &mut [pollfd], deadline: Option<u64>, mask: *const sigset_t) -> isize {
    match ppoll_until(fds, deadline, mask) {
        refused if refused == -(libc::EINVAL as isize) => poll::select_until(fds, deadline, mask),
        result => result,
    }
}

/// The core that we run on: from glibc 2.35 on it stands where the kernel writes it for each thread (rseq).
fn cpu() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::sched_getcpu() }.cast_unsigned()
}

/// Whether we run on the engine's core.
pub(crate) fn is_on_core_of(engine: &EngineWord) -> bool {
    cpu().wrapping_add(1) == engine.cpu_plus_one.load(Ordering::Relaxed)
}

/// Spins for a moment if the engine is at work on another core and spinning paid lately. True: it is ready.
pub(crate) fn spin(region: &Region, mut ready: impl FnMut() -> bool) -> bool {
    let engines = engines::all(region);
    let works = || engines.iter().any(|engine| engine.state.load(Ordering::Relaxed) == engine_state::POLLING);
    if !works() {
        return false;
    }
    let here = cpu().wrapping_add(1);
    let homes = engines.iter().map(|engine| engine.cpu_plus_one.load(Ordering::Relaxed));
    if homes.into_iter().any(|home| home == 0 || home == here) {
        return false;
    }
    let score = SPIN_SCORE.load(Ordering::Relaxed);
    if score < 0 {
        // Did not pay: try again after a while.
        SPIN_SCORE.store(score + 1, Ordering::Relaxed);
        return false;
    }
    let end = real::now_ns() + SPIN_NS;
    loop {
        for _ in 0..32 {
            std::hint::spin_loop();
        }
        if ready() {
            SPIN_SCORE.store((score + 1).min(8), Ordering::Relaxed);
            return true;
        }
        if real::now_ns() >= end || !works() {
            SPIN_SCORE.store(if score < 2 { -32 } else { score - 2 }, Ordering::Relaxed);
            return false;
        }
    }
}

/// What a call keeps from one sleep on a socket to the next. What it does between its sleeps is [`cancel::uncancelled`].
#[derive(Default)]
pub(crate) struct Patience {
    /// It has slept, and its limit is what the socket said then, whatever that says now.
    began: bool,
    deadline: Option<u64>,
    /// The call has done a part of its work: a signal handler ends it, restarting or not, for it has something to say.
    pub(crate) has_part: bool,
}

impl Patience {
    /// Blocks until `ready` says so; for so many microseconds at most from the first time on (0: for ever).
    ///
    /// # Errors
    /// As [`wait_for`].
    pub(crate) fn wait_for(
        &mut self,
        socket: Socket,
        timeout_us: &AtomicU64,
        ready: impl Fn() -> bool,
    ) -> Result<(), c_int> {
        if !std::mem::replace(&mut self.began, true) {
            self.deadline = deadline_us(timeout_us.load(Ordering::Relaxed));
        }
        sleep_until(socket, self, ready)
    }
}

/// `sleep` for something else than a socket, in a call.
pub(crate) fn elsewhere<R>(sleep: impl FnOnce() -> R) -> R {
    let mut call = under_way::mark();
    cancel::cancellable(given_back, (&raw mut call).cast(), sleep)
}

/// A thread is cancelled in [`elsewhere`].
extern "C" fn given_back(call: *mut c_void) {
    // SAFETY: what `elsewhere` gave, in a frame that still stands.
    under_way::cancelled(unsafe { call.cast::<under_way::Mark>().read() });
}

/// Blocks until `ready` says so, in a call that is done with the socket then.
///
/// # Errors
/// EAGAIN at the deadline, EINTR after a signal handler, ECONNRESET when the daemon is gone, [`MOVED`].
pub(crate) fn wait_for(socket: Socket, deadline: Option<u64>, ready: impl Fn() -> bool) -> Result<(), c_int> {
    sleep_until(socket, &Patience { deadline, ..Patience::default() }, ready)
}

/// Another thread's close must neither give the slot to somebody else nor end the connection before this call has what it
/// slept for.
fn sleep_until(socket: Socket, patience: &Patience, ready: impl Fn() -> bool) -> Result<(), c_int> {
    // Nobody has it any more: what is waited for does not come.
    under_way::meanwhile(socket, || sleep_held(socket, patience, ready)).unwrap_or(Err(libc::EBADF))
}

fn sleep_held(socket: Socket, patience: &Patience, ready: impl Fn() -> bool) -> Result<(), c_int> {
    let deadline = patience.deadline;
    if ready() || spin(socket.region, &ready) {
        return Ok(());
    }
    if attach::dead() {
        serve::orphaned();
        return Err(libc::ECONNRESET);
    }
    let frame = 0u64; // its address tells where we are
    let Some((set, using)) = use_set(&raw const frame) else { return poll_slowly(socket, deadline, ready) };
    serve::enter(set);
    let generation = attach::generation();
    let mut leaving = Leaving { socket, set, using, generation, call: under_way::mark() };
    // From before the set is on the socket until it is no more: a handler may jump out of every moment of it.
    let result = cancel::cancellable(cancelled, (&raw mut leaving).cast(), || {
        watch(socket, set.number);
        set.enter(1 + EXCLUSIVE);
        under_way::sleeps_by(set.number + 1);
        let result = loop {
            set.bell().before_look();
            if rings::has_left(socket) || under_way::is_left() {
                break Err(MOVED);
            }
            if ready() {
                break Ok(());
            }
            if options::kept_bit(socket, kept::DISCONNECTED) != 0 {
                break Err(libc::EPIPE); // `sk_wait_event`
            }
            ring_before_sleep();
            let woken = set.sleep(deadline, patience.has_part);
            if attach::generation() != generation {
                return Err(if woken == Woken::Interrupted { libc::EINTR } else { MOVED });
            }
            if woken == Woken::Event {
                set.tell_core(); // it may run elsewhere by now
                continue;
            }
            break match woken {
                // What came before the handler would have ended the sleep.
                Woken::Interrupted => Err(libc::EINTR),
                Woken::Dead => Err(libc::ECONNRESET),
                _ if ready() => Ok(()),
                _ => Err(libc::EAGAIN),
            };
        };
        under_way::sleeps_by(0);
        set.bell().leave(1 + EXCLUSIVE);
        unwatch(socket, set);
        Ok(result)
    });
    let result = match result {
        Ok(result) => result,
        Err(errno) => {
            // A handler has forked here, and this is the child: the set is its parent's, who sleeps on.
            forget_use();
            return Err(errno);
        }
    };
    // Before the set may be another thread's.
    let signalled = set.shared.signalled.load(Ordering::SeqCst) != 0;
    used(using);
    if result == Err(libc::ECONNRESET) {
        serve::orphaned();
    } else if socket.state() & slot_state::LISTENING == 0 {
        serve::serve(socket.importance());
    }
    if signalled && (result.is_err() || socket.state() & slot_state::LISTENING != 0) {
        socket.tell(); // a wake-up that others may have
    }
    result
}

/// What a thread takes back that no longer waits for a socket.
struct Leaving {
    socket: Socket,
    set: Set,
    using: InUse,
    /// Whose they are.
    generation: u32,
    call: under_way::Mark,
}

/// A thread is cancelled in its sleep, or a signal handler jumps out of it (the C library's `longjmp` calls this, too).
extern "C" fn cancelled(leaving: *mut c_void) {
    // SAFETY: what `sleep_until` gave, in a frame that still stands.
    let Leaving { socket, set, using, generation, call } = unsafe { leaving.cast::<Leaving>().read() };
    if generation == attach::generation() {
        unwatch(socket, set);
        left_asleep(set, using);
        // A wake-up that it was to have goes to another one.
        socket.tell();
    } else {
        forget_use(); // it is a child's: its parent sleeps on
    }
    under_way::cancelled(call);
}

/// No set is left: looks every millisecond. Slow, and seen as such, but never wrong.
fn poll_slowly(socket: Socket, deadline: Option<u64>, ready: impl Fn() -> bool) -> Result<(), c_int> {
    loop {
        elsewhere(|| real::nap(1000));
        if ready() {
            return Ok(());
        }
        if rings::has_left(socket) || under_way::is_left() {
            return Err(MOVED);
        }
        if attach::dead() {
            return Err(libc::ECONNRESET);
        }
        if deadline.is_some_and(|at| real::now_ns() >= at) {
            return Err(libc::EAGAIN);
        }
    }
}

/// The deadline of a timeout in microseconds; 0: none.
pub(crate) fn deadline_us(timeout_us: u64) -> Option<u64> {
    (timeout_us != 0).then(|| real::now_ns().saturating_add(timeout_us.saturating_mul(1000)))
}
