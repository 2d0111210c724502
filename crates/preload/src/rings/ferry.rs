//! Bytes between stand-ins ([`super::standin`]) and their paths: one thread of the library's in the program.
//!
//! It is there while there are stand-ins, and sleeps in an epoll of the kernel's that has our ends of the pairs, edge
//! triggered, a bell for new ones, and the pipe of a poll set ([`crate::wait`]) in which the engine marks paths. So a turn
//! costs what has something to do, however many there are. With nothing to serve for a second it ends.
//!
//! The thread blocks all signals, and is never cancelled. A forked child has no such thread, and not the ends: its
//! descriptors are served by its parent. When the process exits what the program has written goes to the paths first,
//! unless the peer takes none of it for [`PATIENCE_NS`]; one that is killed loses what lies in the pairs.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::epoll_event;

use super::ALONE;
use super::connecting::{Attempt, Step};
use super::crossing::{Crossing, Progress};
use super::listening::Listener;
use crate::lock::Lock;
use crate::slot::Socket;
use crate::wait::{self, Set};
use crate::{attach, dispatch, own, real};

const SPACE: usize = 64 << 10;
const EVENTS: usize = 64;
const STACK: usize = 256 << 10;
/// At exit.
const PATIENCE_NS: u64 = 5_000_000_000;
/// How often attempts are looked at whose programs are to come; and how long the thread stays with nothing to serve.
const LOOK_MS: c_int = 1000;
/// How often a queue is tried that its program lets fill up: nobody tells that it has taken one.
const FULL_MS: c_int = 2;
/// What an event of the epoll is about, other than a slot.
const BELL: u64 = u64::MAX;
const PIPE: u64 = u64::MAX - 1;

/// What a slot's events are about.
pub(super) enum Passage {
    Crossing(Crossing),
    Attempt(Attempt),
    Listener(Listener),
}

impl From<Crossing> for Passage {
    fn from(crossing: Crossing) -> Passage {
        Passage::Crossing(crossing)
    }
}

impl From<Attempt> for Passage {
    fn from(attempt: Attempt) -> Passage {
        Passage::Attempt(attempt)
    }
}

impl From<Listener> for Passage {
    fn from(listener: Listener) -> Passage {
        Passage::Listener(listener)
    }
}

impl Passage {
    fn socket(&self) -> Socket {
        match self {
            Passage::Crossing(crossing) => crossing.socket(),
            Passage::Attempt(attempt) => attempt.socket(),
            Passage::Listener(listener) => listener.socket(),
        }
    }

    /// Whose events are waited for.
    fn end(&self) -> Option<c_int> {
        match self {
            Passage::Crossing(crossing) => Some(crossing.inner()),
            Passage::Attempt(attempt) => Some(attempt.listening()),
            Passage::Listener(_) => None,
        }
    }

    /// It holds its socket.
    fn holds(&self) -> bool {
        !matches!(self, Passage::Listener(_))
    }
}

struct Shared {
    fresh: Vec<Passage>,
    /// An eventfd by which the thread is told of `fresh`, or to hurry; -1: there is no thread.
    bell: c_int,
}

static SHARED: Lock<Shared> = Lock::new(Shared { fresh: Vec::new(), bell: -1 });
/// How often somebody has waited for what the program had written by then, and up to which of them it has gone.
static ASKED: AtomicU32 = AtomicU32::new(0);
static FLUSHED: AtomicU32 = AtomicU32::new(0);

/// There is a thread. False: none is to be had.
pub(super) fn reserve() -> bool {
    let signals = dispatch::hold_signals();
    let mut shared = SHARED.lock();
    if shared.bell < 0 {
        shared.bell = start();
    }
    let has = shared.bell >= 0;
    drop(shared);
    dispatch::set_mask(signals);
    has
}

/// From now on the thread serves it.
pub(super) fn add(passage: Passage) {
    let signals = dispatch::hold_signals();
    let mut shared = SHARED.lock();
    shared.fresh.push(passage);
    if shared.bell < 0 {
        shared.bell = start(); // it has ended since it was reserved
    }
    ring(shared.bell);
    drop(shared);
    dispatch::set_mask(signals);
}

/// A listening socket may have been closed.
pub(crate) fn look_again() {
    let signals = dispatch::hold_signals();
    let shared = SHARED.lock();
    if shared.bell >= 0 {
        ring(shared.bell);
    }
    drop(shared);
    dispatch::set_mask(signals);
}

fn ring(bell: c_int) {
    let one = 1u64;
    real::write(bell, (&raw const one).cast(), size_of::<u64>());
}

/// A forked child has nothing of it.
pub(super) fn in_child() {
    SHARED.give_back();
    let mut shared = SHARED.lock();
    // Another thread of the parent's may have been changing it.
    mem::forget(mem::take(&mut shared.fresh));
    shared.bell = -1;
}

/// The process or its image ends: waits until what the program has written is with the paths.
pub(crate) fn flush() {
    let bell = SHARED.lock().bell;
    if bell < 0 || attach::dead() {
        return;
    }
    let turn = ASKED.fetch_add(1, Ordering::SeqCst) + 1;
    ring(bell);
    let deadline = real::now_ns() + PATIENCE_NS;
    loop {
        let flushed = FLUSHED.load(Ordering::Acquire);
        if flushed.wrapping_sub(turn).cast_signed() >= 0 {
            return;
        }
        let now = real::now_ns();
        if now >= deadline {
            return;
        }
        let left = deadline - now;
        let time =
            libc::timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        futex(wait, flushed as usize, (&raw const time).expose_provenance());
    }
}

/// On what says that all is flushed.
fn futex(operation: c_int, value: usize, time: usize) {
    let word = FLUSHED.as_ptr().expose_provenance();
    real::syscall(libc::SYS_futex, word, operation as usize, value, time, 0, 0);
}

/// What the thread begins with.
struct Ferry {
    epoll: c_int,
    bell: c_int,
    set: Set,
    passages: HashMap<u32, Passage>,
    /// Attempts that have succeeded, and whose programs are to come.
    met: usize,
    /// Listening sockets of which a program has not taken what is there.
    full: usize,
    /// For a second there was nothing to serve.
    is_idle: bool,
    /// Of passages that are new while others are looked at.
    next: Vec<u32>,
    space: Vec<u8>,
}

/// The thread's bell; -1: it cannot be.
fn start() -> c_int {
    let Some(set) = wait::new_set(true) else { return -1 };
    let epoll = real::epoll_create1(libc::EPOLL_CLOEXEC);
    // SAFETY: no pointers.
    let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if epoll < 0 || bell < 0 {
        real::close(epoll);
        real::close(bell);
        wait::give_back(set);
        return -1;
    }
    let (epoll, bell) = (own::protect(epoll), own::protect(bell));
    watch(epoll, bell, BELL);
    watch(epoll, set.pipe, PIPE);
    let space = vec![0; SPACE];
    let ferry = Box::into_raw(Box::new(Ferry {
        epoll,
        bell,
        set,
        passages: HashMap::new(),
        met: 0,
        full: 0,
        is_idle: false,
        next: Vec::new(),
        space,
    }));
    // SAFETY: a structure that is filled, used and emptied here; the routine takes the box.
    let started = unsafe {
        let mut attributes: libc::pthread_attr_t = mem::zeroed();
        let mut thread: libc::pthread_t = mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, STACK);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let start: extern "C" fn(*mut c_void) -> *mut c_void = run;
        let made = real::pthread_create(
            &raw mut thread,
            (&raw const attributes).cast(),
            start as *mut c_void,
            ferry.cast(),
        );
        libc::pthread_attr_destroy(&raw mut attributes);
        made == 0
    };
    if started {
        return bell;
    }
    own::discard(epoll);
    own::discard(bell);
    wait::give_back(set);
    // SAFETY: made above, and nobody has it.
    drop(unsafe { Box::from_raw(ferry) });
    -1
}

fn watch(epoll: c_int, fd: c_int, what: u64) -> bool {
    let edges = if what < PIPE { libc::EPOLLET | libc::EPOLLOUT | libc::EPOLLRDHUP } else { 0 };
    let mut event = epoll_event { events: (libc::EPOLLIN | edges) as u32, u64: what };
    real::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) == 0
}

extern "C" fn run(ferry: *mut c_void) -> *mut c_void {
    // Those that the C library sends to all threads (setuid, pthread_cancel) are its own.
    dispatch::set_mask(!(3 << 31) & !(1 << (libc::SIGSYS - 1)));
    // SAFETY: a terminated name, of which the kernel takes a copy.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"scoutline".as_ptr()) };
    // SAFETY: `start` has given it to this thread.
    let ferry = *unsafe { Box::from_raw(ferry.cast::<Ferry>()) };
    real::uncancelled(|| ferry.run());
    ptr::null_mut()
}

impl Ferry {
    fn run(mut self) {
        self.set.bell().enter(1);
        let mut due: Vec<u32> = Vec::new();
        loop {
            self.sleep(&mut due);
            due.sort_unstable();
            due.dedup();
            let mut again = Vec::new();
            for &slot in &due {
                match self.advance(slot) {
                    Progress::Waits => {}
                    Progress::Again => again.push(slot),
                    Progress::Over => self.end(slot),
                }
            }
            due = again;
            due.append(&mut self.next);
            if due.is_empty() && ASKED.load(Ordering::SeqCst) != FLUSHED.load(Ordering::Relaxed) {
                self.tell_flushed(&mut due);
            }
            if self.is_idle && self.leave() {
                return;
            }
        }
    }

    /// The thread ends, unless there is something new: another one begins with the next stand-in.
    fn leave(&self) -> bool {
        let mut shared = SHARED.lock();
        if !shared.fresh.is_empty() {
            return false;
        }
        shared.bell = -1;
        self.set.bell().leave(1);
        own::discard(self.bell);
        own::discard(self.epoll);
        wait::give_back(self.set);
        true
    }

    fn advance(&mut self, slot: u32) -> Progress {
        match self.passages.get_mut(&slot) {
            None => Progress::Waits,
            Some(Passage::Listener(listener)) => {
                let mut fresh = Vec::new();
                self.full -= usize::from(listener.is_full());
                let goes_on = listener.advance(&mut fresh);
                self.full += usize::from(listener.is_full());
                for crossing in fresh {
                    self.take_in(crossing.into());
                }
                if goes_on { Progress::Waits } else { Progress::Over }
            }
            Some(Passage::Crossing(crossing)) => crossing.advance(&mut self.space),
            Some(Passage::Attempt(attempt)) => match attempt.advance(real::now_ns()) {
                Step::Waits => Progress::Waits,
                Step::Met => {
                    self.met += 1;
                    Progress::Again
                }
                Step::Stands(crossing) => {
                    self.met -= 1;
                    watch(self.epoll, crossing.inner(), slot.into());
                    self.passages.insert(slot, crossing.into());
                    Progress::Again
                }
                Step::Again => Progress::Again,
                Step::Failed => Progress::Over,
                Step::Alone => {
                    self.met -= 1;
                    Progress::Over
                }
            },
        }
    }

    /// Until something is due; adds it.
    fn sleep(&mut self, due: &mut Vec<u32>) {
        let mut events = [epoll_event { events: 0, u64: 0 }; EVENTS];
        let timeout = match (due.is_empty(), self.full, self.met) {
            (false, ..) => 0,
            (true, 1.., _) => FULL_MS,
            (true, 0, 1..) => LOOK_MS,
            (true, 0, 0) if self.passages.is_empty() => LOOK_MS,
            (true, 0, 0) => -1,
        };
        let count = real::epoll_wait(self.epoll, events.as_mut_ptr(), EVENTS as c_int, timeout);
        for event in &events[..count.max(0) as usize] {
            match event.u64 {
                BELL => {
                    let mut count = 0u64;
                    real::read(self.bell, (&raw mut count).cast(), size_of::<u64>());
                    self.board(due);
                }
                PIPE => {
                    self.set.drain();
                    if attach::dead() {
                        // Once: it stays readable.
                        real::epoll_ctl(self.epoll, libc::EPOLL_CTL_DEL, self.set.pipe, ptr::null_mut());
                        due.extend(self.passages.keys());
                    }
                }
                slot => due.push(slot as u32),
            }
        }
        self.is_idle = count == 0 && due.is_empty() && self.passages.is_empty();
        if count == 0 && (self.met > 0 || self.full > 0) {
            let waits = |passage: &Passage| !matches!(passage, Passage::Crossing(_));
            due.extend(self.passages.iter().filter(|(_, passage)| waits(passage)).map(|(slot, _)| slot));
        }
        self.set.bell().before_look();
        if let Some(region) = attach::region() {
            region.ready(self.set.shared).drain(|slot| due.push(slot as u32));
        }
    }

    /// Those that are new.
    fn board(&mut self, due: &mut Vec<u32>) {
        let fresh = mem::take(&mut SHARED.lock().fresh);
        // First those whose slots may be others' by now.
        let is_gone = |passage: &Passage| matches!(passage, Passage::Listener(gone) if !gone.is_open());
        let gone: Vec<u32> =
            self.passages.iter().filter(|(_, passage)| is_gone(passage)).map(|(slot, _)| *slot).collect();
        for slot in gone {
            self.end(slot);
        }
        for passage in fresh {
            self.take_in(passage);
        }
        due.append(&mut self.next);
    }

    fn take_in(&mut self, passage: Passage) {
        let socket = passage.socket();
        wait::watch(socket, self.set.number);
        if let Some(end) = passage.end() {
            watch(self.epoll, end, socket.index.into());
        }
        self.passages.insert(socket.index, passage);
        self.next.push(socket.index);
    }

    fn end(&mut self, slot: u32) {
        if let Some(passage) = self.passages.remove(&slot) {
            self.full -= usize::from(matches!(&passage, Passage::Listener(listener) if listener.is_full()));
            wait::unwatch(passage.socket(), self.set);
            // Not while the process is copied: the child's copy would be the one that closes it.
            let alone = ALONE.enter();
            let (socket, holds) = (passage.socket(), passage.holds());
            drop(passage);
            if holds {
                socket.release();
            }
            drop(alone);
        }
    }

    /// Somebody waits for this: everything that the program has written is with the paths.
    fn tell_flushed(&mut self, due: &mut Vec<u32>) {
        let asked = ASKED.load(Ordering::SeqCst);
        self.board(due);
        let is_through = |passage: &Passage| match passage {
            Passage::Crossing(crossing) => crossing.is_flushed(),
            Passage::Attempt(attempt) => !attempt.has_met(),
            Passage::Listener(_) => true,
        };
        if due.is_empty() && self.passages.values().all(is_through) {
            FLUSHED.store(asked, Ordering::Release);
            futex(libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX as usize, 0);
        }
    }
}
