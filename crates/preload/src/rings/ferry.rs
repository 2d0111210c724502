//! Bytes between stand-ins ([`super::standin`]) and their paths: one thread of the library's in the program.
//!
//! It is there while there are stand-ins, and sleeps in an epoll of the kernel's that has our ends of the pairs, edge
//! triggered, a bell for new ones, and the pipe of a poll set ([`crate::wait`]) in which the engine marks paths. So a turn
//! costs what has something to do, however many there are. With nothing to serve for a second it ends.
//!
//! The thread blocks all signals, and is never cancelled. A forked child has no such thread, and not the ends: its
//! descriptors are served by its parent. When the process exits what the program has written by then goes to the paths first,
//! unless the peers take none of it for [`PATIENCE_NS`]; one that is killed loses what lies in the pairs.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::epoll_event;

use super::ALONE;
use super::connecting::{Attempt, Late, Step};
use super::crossing::{Crossing, Known, Progress};
use super::listening::Listener;
use super::parcels::Parcels;
use super::pending::{self, Pending};
use crate::lock::{self, Lock};
use crate::slot::Socket;
use crate::wait::{self, Set};
use crate::{attach, cancel, dispatch, own, real};

const SPACE: usize = 64 << 10;
const EVENTS: usize = 64;
const STACK: usize = 256 << 10;
/// At exit: without a byte that goes, and in all.
const PATIENCE_NS: u64 = 5_000_000_000;
const MOST_PATIENCE_NS: u64 = 30_000_000_000;
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
    Parcels(Parcels),
    Attempt(Attempt),
    Listener(Listener),
    Pending(Pending),
}

impl From<Crossing> for Passage {
    fn from(crossing: Crossing) -> Passage {
        Passage::Crossing(crossing)
    }
}

impl From<Parcels> for Passage {
    fn from(parcels: Parcels) -> Passage {
        Passage::Parcels(parcels)
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

impl From<Pending> for Passage {
    fn from(pending: Pending) -> Passage {
        Passage::Pending(pending)
    }
}

impl Passage {
    fn socket(&self) -> Socket {
        match self {
            Passage::Crossing(crossing) => crossing.socket,
            Passage::Parcels(parcels) => parcels.socket,
            Passage::Attempt(attempt) => attempt.socket(),
            Passage::Listener(listener) => listener.socket(),
            Passage::Pending(pending) => pending.0,
        }
    }

    /// Whose events are waited for.
    fn end(&self) -> Option<c_int> {
        match self {
            Passage::Crossing(crossing) => Some(crossing.inner.fd()),
            Passage::Parcels(parcels) => Some(parcels.inner.fd()),
            Passage::Attempt(attempt) => Some(attempt.listening()),
            Passage::Listener(_) | Passage::Pending(_) => None,
        }
    }

    /// A descriptor of ours has another number.
    fn relocated(&mut self, from: c_int, to: c_int) {
        match self {
            Passage::Crossing(crossing) => crossing.inner.relocated(from, to),
            Passage::Parcels(parcels) => parcels.inner.relocated(from, to),
            Passage::Attempt(attempt) => attempt.relocated(from, to),
            Passage::Listener(listener) => listener.relocated(from, to),
            Passage::Pending(_) => {}
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
/// The thread's own, which it has but while it sleeps. Taken before `SHARED`.
static FERRY: Lock<Option<Box<Ferry>>> = Lock::new(None);
/// How often somebody has waited for what the program had written by then, and up to which of them it has gone. Asked with
/// `SHARED` locked, or the thread may have ended.
static ASKED: AtomicU32 = AtomicU32::new(0);
static FLUSHED: AtomicU32 = AtomicU32::new(0);
/// How often bytes have gone to a path while somebody waited.
static GONE: AtomicU32 = AtomicU32::new(0);

/// `work` on what is shared. A signal handler that interrupted it there would wait for its own thread.
fn shared<R>(work: impl FnOnce(&mut Shared) -> R) -> R {
    lock::undisturbed(|| work(&mut SHARED.lock()))
}

/// There is a thread. False: none is to be had.
pub(super) fn reserve() -> bool {
    shared(|shared| {
        if shared.bell < 0 {
            shared.bell = start();
        }
        shared.bell >= 0
    })
}

/// From now on the thread serves it.
pub(super) fn add(passage: Passage) {
    shared(|shared| {
        shared.fresh.push(passage);
        if shared.bell < 0 {
            shared.bell = start(); // it has ended since it was reserved
        }
        ring(shared.bell);
    });
}

/// A listening socket may have been closed, or what waits for another one cancelled.
pub(crate) fn look_again() {
    shared(|shared| {
        if shared.bell >= 0 {
            ring(shared.bell);
        }
    });
}

/// A descriptor of ours has another number, and the program gets the one that it had.
pub(super) fn relocated(from: c_int, to: c_int) {
    lock::undisturbed(|| {
        if let Some(ferry) = FERRY.lock().as_mut() {
            ferry.relocated(from, to);
        }
    });
    shared(|shared| {
        if shared.bell == from {
            shared.bell = to;
        }
        shared.fresh.iter_mut().for_each(|passage| passage.relocated(from, to));
    });
}

fn ring(bell: c_int) {
    let one = 1u64;
    real::write(bell, (&raw const one).cast(), size_of::<u64>());
}

/// A forked child has nothing of it.
pub(super) fn in_child() {
    FERRY.give_back();
    mem::forget(FERRY.lock().take());
    SHARED.give_back();
    let mut shared = SHARED.lock();
    // Another thread of the parent's may have been changing it.
    mem::forget(mem::take(&mut shared.fresh));
    shared.bell = -1;
    FLUSHED.store(ASKED.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// The process or its image ends: waits until what the program has written is with the paths.
pub(crate) fn flush() {
    if attach::dead() {
        return;
    }
    let asked = shared(|shared| {
        (shared.bell >= 0).then(|| {
            let turn = ASKED.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
            ring(shared.bell);
            turn
        })
    });
    let Some(turn) = asked else { return };
    let end = real::now_ns() + MOST_PATIENCE_NS;
    let (mut gone, mut deadline) = (GONE.load(Ordering::Relaxed), real::now_ns() + PATIENCE_NS);
    loop {
        let flushed = FLUSHED.load(Ordering::Acquire);
        if flushed.wrapping_sub(turn).cast_signed() >= 0 {
            return;
        }
        let now = real::now_ns();
        if now >= deadline {
            let before = mem::replace(&mut gone, GONE.load(Ordering::Relaxed));
            if now >= end || before == gone {
                return;
            }
            deadline = (now + PATIENCE_NS).min(end);
        }
        let time = wait::left(deadline);
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        futex(wait, flushed as usize, (&raw const time).expose_provenance());
    }
}

/// Bytes have gone to a path.
pub(super) fn went() {
    if ASKED.load(Ordering::Relaxed) != FLUSHED.load(Ordering::Relaxed) {
        GONE.fetch_add(1, Ordering::Relaxed);
    }
}

/// On what says that all is flushed.
fn futex(operation: c_int, value: usize, time: usize) {
    let word = FLUSHED.as_ptr().expose_provenance();
    real::syscall(libc::SYS_futex, word, operation as usize, value, time, 0, 0);
}

/// What the thread has.
struct Ferry {
    epoll: c_int,
    bell: c_int,
    set: Set,
    passages: HashMap<u32, Passage>,
    /// Slots with something to do in the next turn.
    due: Vec<u32>,
    /// Attempts that have succeeded, and whose programs are to come.
    met: usize,
    /// What is left of those that have failed.
    late: Vec<Late>,
    /// Listening sockets of which a program has not taken what is there.
    full: usize,
    /// When those were looked at last, and attempts that have succeeded.
    looked: u64,
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
        real::close_uncancelled(epoll);
        real::close_uncancelled(bell);
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
        due: Vec::new(),
        met: 0,
        late: Vec::new(),
        full: 0,
        looked: 0,
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
    let ferry = unsafe { Box::from_raw(ferry.cast::<Ferry>()) };
    cancel::uncancelled(|| serve(ferry));
    ptr::null_mut()
}

fn serve(ferry: Box<Ferry>) {
    ferry.set.bell().enter(1);
    let (mut epoll, mut timeout) = (ferry.epoll, ferry.timeout());
    *FERRY.lock() = Some(ferry);
    loop {
        let mut events = [epoll_event { events: 0, u64: 0 }; EVENTS];
        // Its number may be the program's by now: then it fails at once, and the next one is with the other number.
        let count = real::epoll_wait(epoll, events.as_mut_ptr(), EVENTS as c_int, timeout);
        let mut held = FERRY.lock();
        let Some(ferry) = held.as_mut() else { return };
        if !ferry.turn(&events[..count.max(0) as usize]) {
            *held = None;
            return;
        }
        (epoll, timeout) = (ferry.epoll, ferry.timeout());
    }
}

impl Ferry {
    /// After these events; false: the thread ends.
    fn turn(&mut self, events: &[epoll_event]) -> bool {
        let mut due = mem::take(&mut self.due);
        self.gather(events, &mut due);
        due.sort_unstable();
        due.dedup();
        let (mut again, mut known) = (Vec::new(), Known::None);
        for &slot in &due {
            match self.advance(slot, &mut known) {
                Progress::Waits => {}
                Progress::Again => again.push(slot),
                Progress::Over | Progress::Reset => self.end(slot),
            }
        }
        again.append(&mut self.next);
        if ASKED.load(Ordering::SeqCst) != FLUSHED.load(Ordering::Relaxed) {
            self.tell_flushed(&mut again);
        }
        self.due = again;
        !(self.is_idle && self.leave())
    }

    fn relocated(&mut self, from: c_int, to: c_int) {
        if self.set.pipe == from {
            // It is taken out by its number.
            real::epoll_ctl(self.epoll, libc::EPOLL_CTL_DEL, from, ptr::null_mut());
            watch(self.epoll, to, PIPE);
        }
        for own in [&mut self.epoll, &mut self.bell, &mut self.set.pipe] {
            if *own == from {
                *own = to;
            }
        }
        self.passages.values_mut().for_each(|passage| passage.relocated(from, to));
        self.late.iter_mut().for_each(|late| late.relocated(from, to));
    }

    /// How often passages are looked at of which nobody tells.
    fn looks(&self) -> Option<c_int> {
        match (self.full, self.met + self.late.len()) {
            (1.., _) => Some(FULL_MS),
            (0, 1..) => Some(LOOK_MS),
            (0, 0) => None,
        }
    }

    /// How long the thread sleeps at most.
    fn timeout(&self) -> c_int {
        match self.looks() {
            _ if !self.due.is_empty() => 0,
            Some(ms) => ms,
            None if self.passages.is_empty() => LOOK_MS,
            None => -1,
        }
    }

    /// The thread ends, unless there is something new: another one begins with the next stand-in.
    fn leave(&self) -> bool {
        let mut shared = SHARED.lock();
        let is_asked = ASKED.load(Ordering::Relaxed) != FLUSHED.load(Ordering::Relaxed);
        if is_asked || !shared.fresh.is_empty() {
            return false;
        }
        shared.bell = -1;
        self.set.bell().leave(1);
        own::discard(self.bell);
        own::discard(self.epoll);
        wait::give_back(self.set);
        true
    }

    fn advance(&mut self, slot: u32, known: &mut Known) -> Progress {
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
            Some(Passage::Crossing(crossing)) => {
                let progress = crossing.advance(&mut self.space);
                if progress == Progress::Reset {
                    crossing.tell_reset(known);
                }
                progress
            }
            Some(Passage::Parcels(parcels)) => parcels.advance(&mut self.space),
            Some(Passage::Pending(pending)) => pending.advance(&mut self.space),
            Some(Passage::Attempt(attempt)) => match attempt.advance(real::now_ns()) {
                Step::Waits => Progress::Waits,
                Step::Met => {
                    self.met += 1;
                    Progress::Again
                }
                Step::Stands(crossing) => {
                    self.met -= 1;
                    watch(self.epoll, crossing.inner.fd(), slot.into());
                    self.passages.insert(slot, crossing.into());
                    Progress::Again
                }
                Step::Again => Progress::Again,
                Step::Failed => Progress::Over,
            },
        }
    }

    /// Adds what is due.
    fn gather(&mut self, events: &[epoll_event], due: &mut Vec<u32>) {
        for event in events {
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
        self.is_idle =
            events.is_empty() && due.is_empty() && self.passages.is_empty() && self.late.is_empty();
        // Also where others' events never leave it a pause.
        let looks = self.looks();
        let now = if looks.is_some() { real::now_ns() } else { 0 };
        if looks.is_some_and(|ms| now - self.looked >= ms as u64 * 1_000_000) {
            self.looked = now;
            self.late.retain(|late| !late.is_over(now));
            let waits = |passage: &Passage| matches!(passage, Passage::Attempt(_) | Passage::Listener(_));
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
        let is_gone = |passage: &Passage| match passage {
            Passage::Listener(listener) => !listener.is_open(),
            Passage::Pending(Pending(socket)) => !pending::has(*socket),
            _ => false,
        };
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
        self.end(socket.index); // one that listened, and has lost its stand-in or its slot
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
            self.met -= usize::from(matches!(&passage, Passage::Attempt(attempt) if attempt.has_met()));
            wait::unwatch(passage.socket(), self.set);
            // Not while the process is copied: the child's copy would be the one that closes it.
            let alone = ALONE.enter();
            let (socket, holds) = (passage.socket(), passage.holds());
            if let Passage::Attempt(attempt) = passage {
                self.late.push(attempt.into_late(real::now_ns()));
            }
            if holds {
                socket.release();
            }
            drop(alone);
        }
    }

    /// Somebody waits for this: everything that the program had written by then is with the paths.
    fn tell_flushed(&mut self, due: &mut Vec<u32>) {
        let asked = ASKED.load(Ordering::SeqCst);
        self.board(due);
        let mut is_through = true;
        for passage in self.passages.values_mut() {
            is_through &= match passage {
                Passage::Crossing(crossing) => crossing.is_flushed(asked),
                Passage::Parcels(parcels) => parcels.is_flushed(),
                Passage::Attempt(attempt) => !attempt.has_met(),
                Passage::Listener(_) | Passage::Pending(_) => true,
            };
        }
        if is_through {
            FLUSHED.store(asked, Ordering::Release);
            futex(libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX as usize, 0);
        }
    }
}
