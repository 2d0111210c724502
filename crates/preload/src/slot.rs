//! One socket in shared memory: who holds it, whether it is ready, its two locks ([`crate::held`]), and telling the
//! engine.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM};
use scoutline_abi::Region;
use scoutline_abi::layout::{
    EngineWord, SLOT_COUNT, Slot, engine_state, slot_flag, slot_kind, slot_request as ask, slot_state as is,
};
use scoutline_ring::{EngineBell, Moment, bitmap_words};

use crate::held::{self, Held};
use crate::lock::Section;
use crate::{accept, attach, engines, epoll, family, fast_open, real, serve, table, urgent, wait, zero_copy};

pub(crate) mod kept;

const IN: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
const OUT: u32 = (EPOLLOUT | EPOLLWRNORM) as u32;
const RDHUP: u32 = EPOLLRDHUP as u32;
const HUP: u32 = EPOLLHUP as u32;
const ERR: u32 = EPOLLERR as u32;
const PRI: u32 = libc::EPOLLPRI as u32;

/// Descriptors of this process per slot, calls under way on it included (32 bits); above that the mark of who has changed it
/// last, of those who have one ([`Socket::was_changed_by`]).
static COUNTS: [AtomicU64; SLOT_COUNT] = [const { AtomicU64::new(0) }; SLOT_COUNT];

const WORDS: usize = bitmap_words(SLOT_COUNT);
/// Sockets that have told this process that the daemon is gone, see [`Socket::tell_dead`].
static TOLD: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// What a process holds and a socket's `references` change together, or a fork would count one without the other.
/// A handler that interrupts the change of one socket may change another one.
static HOLDS: Section = Section::new();
/// Half of Linux's SOCK_MIN_RCVBUF: SO_RCVBUF leaves as much of a ring.
const LEAST_RECEIVE: u32 = 1152;
/// A blocking call on such a socket takes so long, in microseconds.
const DEAD_PAUSE_US: u64 = 500_000;

/// A slot with its number and region, as everything here takes it.
#[derive(Clone, Copy)]
pub(crate) struct Socket {
    pub(crate) region: &'static Region,
    pub(crate) index: u32,
    pub(crate) slot: &'static Slot,
}

impl Socket {
    /// What a descriptor is, if ours: also since another process of the program has made it so.
    #[inline]
    pub(crate) fn of(fd: c_int) -> Option<Socket> {
        Socket::at(table::socket(fd).or_else(|| family::meet(fd))?)
    }

    /// The socket with this slot number.
    #[inline]
    pub(crate) fn at(index: u32) -> Option<Socket> {
        let region = attach::region()?;
        region.slot(index).map(|slot| Socket { region, index, slot })
    }

    #[inline]
    pub(crate) fn state(self) -> u32 {
        self.slot.state.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn requests(self) -> u32 {
        self.slot.requests.load(Ordering::Acquire)
    }

    pub(crate) fn is_stream(self) -> bool {
        self.slot.kind.load(Ordering::Relaxed) != slot_kind::DATAGRAM
    }

    /// Tells it from other sockets that had this slot.
    #[inline]
    pub(crate) fn generation(self) -> u32 {
        self.slot.generation.load(Ordering::Acquire)
    }

    /// SO_COOKIE: no other socket has it, nor had.
    pub(crate) fn cookie(self) -> u64 {
        let base = self.region.header().cookie_base.load(Ordering::Relaxed);
        let own = u64::from(self.generation()) << SLOT_COUNT.trailing_zeros() | u64::from(self.index);
        base.wrapping_add(own)
    }

    /// Some process has it.
    #[inline]
    pub(crate) fn is_held(self) -> bool {
        self.slot.references.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn is_inet6(self) -> bool {
        self.slot.flags.load(Ordering::Relaxed) & slot_flag::INET6 != 0
    }

    #[inline]
    pub(crate) fn non_blocking(self) -> bool {
        self.slot.flags.load(Ordering::Relaxed) & slot_flag::NONBLOCK != 0
    }

    pub(crate) fn set_non_blocking(self, on: bool) {
        if on {
            self.slot.flags.fetch_or(slot_flag::NONBLOCK, Ordering::Relaxed);
        } else {
            self.slot.flags.fetch_and(!slot_flag::NONBLOCK, Ordering::Relaxed);
        }
    }

    /// Bytes (entries of a listening socket) that wait to be read. Garbage from the other side counts as nothing.
    #[inline]
    pub(crate) fn received(self) -> u64 {
        let held = self.slot.incoming().held();
        if held > u64::from(self.slot.receive_size.load(Ordering::Relaxed)) { 0 } else { held }
    }

    /// Bytes that may be put into the send ring: as many as are free, and as may be unsent (TCP_NOTSENT_LOWAT).
    #[inline]
    pub(crate) fn sendable(self) -> u64 {
        let free = self.send_limit().saturating_sub(self.slot.outgoing().held());
        if !self.is_stream() {
            return free;
        }
        match self.slot.unsent_bound() {
            None => free,
            Some(bound) => free.min(bound.most.saturating_sub(self.slot.unsent().into())),
        }
    }

    /// How much of the send ring may be filled: less than all where SO_SNDBUF of a stream says so.
    #[inline]
    pub(crate) fn send_limit(self) -> u64 {
        let size = self.slot.send_size.load(Ordering::Relaxed);
        u64::from(if self.is_stream() { self.slot.send_limit(size) } else { size })
    }

    /// Room enough to call the socket writable: a third of what may be filled, as Linux does.
    #[inline]
    pub(crate) fn roomy(self) -> bool {
        let size = self.send_limit();
        if self.is_stream()
            && let Some(bound) = self.slot.unsent_bound()
        {
            // Half of it, lest a writer be woken for every segment (Linux: `tcp_stream_memory_free`).
            let held = self.slot.outgoing().held();
            return 2 * u64::from(self.slot.unsent()) < u64::from(bound.low_water)
                && held <= size - size / 3
                && size > 0;
        }
        size > 0 && self.sendable() >= size / 3
    }

    /// As [`Socket::roomy`]; when not, the engine is asked to tell of room.
    pub(crate) fn roomy_or_ask(self) -> bool {
        if self.roomy() {
            return true;
        }
        self.slot.send_wanted.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.roomy()
    }

    /// An attempt to connect has failed, and `connect` has said so, or it was given up: Linux forgets it then, as it does
    /// that it has listened. Otherwise the socket is one whose connection is over.
    pub(crate) fn is_unconnected_again(self) -> bool {
        let has_failed = self.state() & (is::FAILED | is::CONNECTED) == is::FAILED;
        has_failed && !self.connect_is_pending()
            || self.slot.kept_options.load(Ordering::Acquire) & kept::BEGINS_AGAIN != 0
    }

    /// No call has said yet how the attempt to connect has ended, and one is to.
    pub(crate) fn connect_is_pending(self) -> bool {
        self.state() & is::DISCONNECTED == 0
            && self.slot.kept_options.load(Ordering::Acquire) & kept::CONNECT_PENDING != 0
    }

    /// There is a pending error.
    #[inline]
    pub(crate) fn has_error(self) -> bool {
        self.slot.error.load(Ordering::Acquire) != 0
    }

    /// Takes the pending error; 0 none.
    pub(crate) fn take_error(self) -> i32 {
        if self.slot.error.load(Ordering::Acquire) == 0 {
            0
        } else {
            self.slot.error.swap(0, Ordering::AcqRel)
        }
    }

    /// The next call finds this error pending.
    pub(crate) fn put_error(self, errno: i32) {
        self.slot.error.store(errno, Ordering::Release);
    }

    /// SO_ERROR: the pending error, or what a router has said of a connection that goes on (`sk_err_soft` of Linux).
    pub(crate) fn take_any_error(self) -> i32 {
        match self.take_error() {
            0 if self.is_stream() => self.slot.soft_error.swap(0, Ordering::AcqRel),
            errno => errno,
        }
    }

    /// What `poll` would say, as Linux's `tcp_poll` and `udp_poll` do. OUT is looked at only when `interest` has it,
    /// for looking asks the engine to tell of room.
    pub(crate) fn readiness(self, interest: u32) -> u32 {
        if attach::dead() {
            return if self.was_told() { OUT } else { IN | OUT | RDHUP | HUP | ERR };
        }
        let state = self.state();
        let mut ready = if self.slot.error.load(Ordering::Acquire) == 0 { 0 } else { ERR };
        if zero_copy::is_waiting(self) {
            ready |= ERR;
        }
        let requests = self.requests();
        if !self.is_stream() {
            if self.errors_waiting() > 0 {
                ready |= ERR;
            }
            let read_shut = requests & ask::SHUTDOWN_READ != 0;
            if self.received() > 0 || read_shut {
                ready |= IN;
            }
            if read_shut {
                ready |= RDHUP | if requests & ask::SHUTDOWN == 0 { 0 } else { HUP };
            }
            if interest & OUT != 0 && self.roomy_or_ask() {
                ready |= OUT;
            }
            return ready;
        }
        if state & is::LISTENING != 0 {
            if requests & ask::SHUTDOWN_READ != 0 {
                return OUT | HUP; // it listens no more
            }
            return if self.received() > 0 { IN } else { 0 }; // no error: `inet_csk_listen_poll`
        }
        if self.is_unconnected_again() {
            return ready | OUT | HUP;
        }
        if state & is::URGENT != 0 && urgent::is_waiting(self) {
            ready |= PRI;
        }
        if state & is::FAILED != 0 {
            return ready | IN | OUT | RDHUP | HUP;
        }
        if state & is::CONNECTED == 0 {
            if fast_open::room(self).is_some() {
                return ready | OUT; // the SYN waits for what is written
            }
            // SYN-SENT says nothing; a socket that was never connected is Linux's OUT and HUP.
            return if state & is::CONNECTING == 0 { ready | OUT | HUP } else { ready };
        }
        let ended = state & is::PEER_FINISHED != 0 || requests & ask::SHUTDOWN_READ != 0;
        if ended {
            ready |= IN | RDHUP;
            if requests & ask::SHUTDOWN != 0 {
                ready |= HUP;
            }
        } else {
            let mut target = u64::from(self.readable_from());
            if state & is::URGENT != 0 {
                target += urgent::hidden(self);
            }
            if self.received() >= target {
                ready |= IN;
            }
        }
        if interest & OUT != 0 && (requests & ask::SHUTDOWN != 0 || self.roomy_or_ask()) {
            ready |= OUT;
        }
        ready
    }

    /// What `accept` and the receiving calls of datagrams say when the daemon is gone: ECONNRESET. A program closes
    /// a connection that fails so, but keeps such a socket and calls again at once: from then on it is one where
    /// nobody calls any more, lest the program's loop take a core and fill its log.
    pub(crate) fn tell_dead(self, non_blocking: bool) -> i32 {
        let (word, bit) = (self.index as usize / 64, 1u64 << (self.index % 64));
        if TOLD[word].fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            if non_blocking {
                return libc::EAGAIN;
            }
            real::nap(DEAD_PAUSE_US);
        }
        libc::ECONNRESET
    }

    fn was_told(self) -> bool {
        TOLD[self.index as usize / 64].load(Ordering::Relaxed) >> (self.index % 64) & 1 != 0
    }

    /// SO_RCVLOWAT, at least 1.
    pub(crate) fn low_water(self) -> u32 {
        self.slot.receive_low_water.load(Ordering::Relaxed).max(1)
    }

    /// So much may wait to be read of a stream: what the ring holds, or less where SO_RCVBUF has said so since.
    #[inline]
    pub(crate) fn receive_bound(self) -> u32 {
        let size = self.slot.receive_size.load(Ordering::Relaxed);
        match self.slot.asked_receive_buffer.load(Ordering::Relaxed) {
            0 => size,
            asked => size.min(asked.max(LEAST_RECEIVE)),
        }
    }

    /// From how many bytes on it is readable. SO_RCVLOWAT may be more than the ring can hold, which grows no further:
    /// then half of the ring.
    fn readable_from(self) -> u32 {
        let asked = self.low_water();
        let most = match self.receive_bound() {
            0 => u32::MAX, // no ring yet
            size => size / 2,
        };
        asked.min(most).max(1)
    }

    /// 0 idle, else the priority of its path plus one.
    #[inline]
    pub(crate) fn importance(self) -> u32 {
        let importance = self.slot.importance.load(Ordering::Relaxed).into();
        if importance > serve::ORDINARY && self.state() & scoutline_abi::layout::slot_state::LISTENING != 0 {
            return accept::waiting_importance(self, importance);
        }
        importance
    }

    /// Marks the slot and wakes the engine if it sleeps (see [`engine_state`]).
    #[inline]
    pub(crate) fn tell(self) {
        self.region.dirty().set(self.index as usize);
        wake_engine(self.region, self.engine(), self.slot.urgent.load(Ordering::Relaxed) != 0);
    }

    /// Shuts it in these directions; who watches it is woken, which may sleep in a call that this ends. Who begins to do so
    /// from here on sees it by itself, as a server's thread does that waits for its peer's end next, with each connection.
    pub(crate) fn shut(self, what: u32) {
        self.slot.requests.fetch_or(what, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if wait::is_watched(self) {
            self.wake_all();
        } else {
            self.tell();
        }
    }

    /// Wakes all who wait for it, which only the engine can.
    pub(crate) fn wake_all(self) {
        self.slot.requests.fetch_or(ask::WAKE, Ordering::AcqRel);
        self.tell();
    }

    /// The engine that serves it.
    #[inline]
    pub(crate) fn engine(self) -> usize {
        engines::of_slot(self.region, self.index)
    }

    /// As [`Self::tell`], but an engine that has left its core to Linux learns of it when it looks by itself.
    pub(crate) fn tell_unhurried(self) {
        self.region.dirty().set(self.index as usize);
        let engine = self.engine();
        let word = &self.region.header().engines[engine];
        if EngineBell(&word.state).look_after_mark() != engine_state::AWAY {
            wake_engine(self.region, engine, false);
        }
    }

    /// The receive side, alone. EAGAIN in a signal handler that has interrupted its own thread there: that goes on only
    /// when the handler returns. EAGAIN, too, while a process has it that is stopped.
    #[inline]
    pub(crate) fn lock_receive(self) -> Result<Held, i32> {
        Held::take(self.region, &self.slot.receive_lock, || None)
    }

    /// The send side, alone; EAGAIN as for the other.
    #[inline]
    pub(crate) fn lock_send(self) -> Result<Held, i32> {
        Held::take(self.region, &self.slot.send_lock, || None)
    }

    /// The receive side for a call with these flags, which waits for a process that is stopped as it does for data:
    /// not at all, or until its time is over (EAGAIN), or a signal handler has run (EINTR).
    #[inline]
    pub(crate) fn lock_receive_in(self, flags: i32) -> Result<Held, i32> {
        let timeout = || self.patience(flags, &self.slot.receive_timeout_us);
        Held::take(self.region, &self.slot.receive_lock, timeout)
    }

    /// The send side for a call with these flags.
    #[inline]
    pub(crate) fn lock_send_in(self, flags: i32) -> Result<Held, i32> {
        let timeout = || self.patience(flags, &self.slot.send_timeout_us);
        Held::take(self.region, &self.slot.send_lock, timeout)
    }

    /// How long a call waits, in microseconds (0: for ever); `None`: not at all.
    fn patience(self, flags: i32, timeout_us: &AtomicU64) -> Option<u64> {
        let blocks = flags & libc::MSG_DONTWAIT == 0 && !self.non_blocking();
        blocks.then(|| timeout_us.load(Ordering::Relaxed))
    }

    /// The calling thread, interrupted by the handler that asks, has the receive side.
    pub(crate) fn receives_here(self) -> bool {
        held::is_own(&self.slot.receive_lock)
    }

    /// One descriptor (or sleeping thread) more in this process. `counted`: the engine has already counted this
    /// process among `references` (OPEN does). True: this process has come to hold it by this.
    pub(crate) fn hold(self, counted: bool) -> bool {
        if COUNTS[self.index as usize].fetch_add(1, Ordering::AcqRel) as u32 == 0 {
            // While the process is copied as well: a child whose table has what its record does not hold would close
            // it for all.
            let _changing = HOLDS.enter();
            let (word, bit) = (self.index as usize / 64, 1u64 << (self.index % 64));
            // Where it holds already, another thread is giving up the last hold, finds this one, and leaves all as it is.
            let is_first = attach::holds(self.region)
                .is_none_or(|holds| holds[word].fetch_or(bit, Ordering::AcqRel) & bit == 0);
            if is_first && !counted {
                self.slot.references.fetch_add(1, Ordering::AcqRel);
            }
            return is_first;
        }
        false
    }

    /// One more of those that this process has; false: it has none.
    pub(crate) fn hold_beside(self) -> bool {
        let more = |counted: u64| (counted as u32 > 0).then(|| counted + 1);
        COUNTS[self.index as usize].fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// The same, with a mark.
    #[inline]
    pub(crate) fn hold_by(self, mark: u32) -> bool {
        let more = |counted: u64| (counted as u32 > 0).then(|| marked(counted as u32 + 1, mark));
        COUNTS[self.index as usize].fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// The last change of the count that has a mark has this one: who made it was in the midst of it, and cannot know.
    pub(crate) fn was_changed_by(self, mark: u32) -> bool {
        COUNTS[self.index as usize].load(Ordering::Relaxed) >> u32::BITS == u64::from(mark)
    }

    /// One descriptor of one process names it, and no thread sleeps on it.
    pub(crate) fn is_held_once(self) -> bool {
        self.count() == 1 && self.slot.references.load(Ordering::Acquire) == 1
    }

    /// One descriptor more, if the record says that this process holds it.
    pub(crate) fn hold_again(self) -> bool {
        let _changing = HOLDS.enter();
        let is_in_record = self.is_in_record();
        if is_in_record {
            COUNTS[self.index as usize].fetch_add(1, Ordering::AcqRel);
        }
        is_in_record
    }

    /// The record says that this process holds it.
    pub(crate) fn is_in_record(self) -> bool {
        let (word, bit) = (self.index as usize / 64, 1u64 << (self.index % 64));
        attach::holds(self.region).is_some_and(|holds| holds[word].load(Ordering::Acquire) & bit != 0)
    }

    /// This process holds it.
    pub(crate) fn is_held_here(self) -> bool {
        self.count() > 0
    }

    fn count(self) -> u32 {
        COUNTS[self.index as usize].load(Ordering::Acquire) as u32
    }

    /// Under way to another process: held by none.
    pub(crate) fn put_in_flight(self) {
        self.slot.references.fetch_add(1, Ordering::AcqRel);
        self.slot.in_flight.fetch_add(1, Ordering::AcqRel);
    }

    /// It has come: the hold is this process's. `peeked`: it will come once more.
    pub(crate) fn take_from_flight(self, peeked: bool) {
        if peeked {
            self.hold(false);
            return;
        }
        // Counted for the flight; this process counts once.
        if !self.hold(true) {
            self.slot.references.fetch_sub(1, Ordering::AcqRel);
        }
        self.slot.in_flight.fetch_sub(1, Ordering::AcqRel);
    }

    /// One less; the last of the last process closes the socket.
    pub(crate) fn release(self) {
        self.released(COUNTS[self.index as usize].fetch_sub(1, Ordering::AcqRel));
    }

    /// The same, with a mark.
    #[inline]
    pub(crate) fn release_by(self, mark: u32) {
        let less = |counted: u64| Some(marked((counted as u32).wrapping_sub(1), mark));
        let before = COUNTS[self.index as usize].fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        self.released(before.unwrap_or_else(|counted| counted));
    }

    #[inline]
    fn released(self, before: u64) {
        if before as u32 != 1 {
            return;
        }
        let importance = self.importance();
        self.release_last();
        serve::closed(importance);
    }

    /// No descriptor of this process is left.
    fn release_last(self) {
        urgent::forget_owner(self);
        if attach::dead() {
            epoll::forget(self);
            return;
        }
        let (word, bit) = (self.index as usize / 64, 1u64 << (self.index % 64));
        let abort = self.slot.linger_plus_one.load(Ordering::Relaxed) == 1;
        let changing = HOLDS.enter();
        if self.is_held_here() {
            return; // another descriptor has met it meanwhile ([`Socket::hold_again`])
        }
        // What another process has put there it may have taken back.
        let held = attach::holds(self.region)
            .is_none_or(|holds| holds[word].fetch_and(!bit, Ordering::AcqRel) & bit != 0);
        // Both are read before the count falls: afterwards the slot may be somebody else's.
        let last = held && self.slot.references.fetch_sub(1, Ordering::AcqRel) == 1;
        drop(changing);
        if last {
            // Epolls have a socket until nobody has a descriptor of it. The slot is given to another one only after this.
            epoll::forget(self);
            let how = if abort { ask::CLOSE | ask::ABORT } else { ask::CLOSE };
            self.slot.requests.fetch_or(how, Ordering::AcqRel);
            self.tell();
        }
    }
}

/// What stands in `COUNTS`.
fn marked(count: u32, mark: u32) -> u64 {
    u64::from(mark) << u32::BITS | u64::from(count)
}

thread_local! {
    /// The engine, plus one, that this thread rings, of all that found it asleep. It stands here still once a handler has
    /// jumped out of that, and everybody waits for the ring.
    static RINGS: Cell<usize> = const { Cell::new(0) };
}

/// Rings an engine that was found asleep, unless somebody else does.
fn ring_sleeping(bell: EngineBell<'_>, engine: usize) {
    ring_late();
    RINGS.set(engine + 1);
    if bell.claim(engine_state::SLEEPING, engine_state::POLLING) {
        attach::ring(engine);
    }
    RINGS.set(0);
}

/// A ring that a handler has jumped out of is made up for.
#[inline]
fn ring_late() {
    if let Some(engine) = RINGS.get().checked_sub(1) {
        attach::ring(engine);
        RINGS.set(0);
    }
}

/// After marking, wakes the engine if nobody else will.
#[inline]
pub(crate) fn wake_engine(region: &Region, engine: usize, urgent: bool) {
    let word = &region.header().engines[engine];
    let bell = EngineBell(&word.state);
    match bell.look_after_mark() {
        engine_state::SLEEPING => ring_sleeping(bell, engine),
        engine_state::POLLING => ring_late(),
        // Behind a raised thread it would look, see that one go on running, and leave it the core: `ring_before_sleep`.
        engine_state::AWAY if urgent && !(wait::is_on_core_of(word) && serve::is_raised()) => {
            attach::ring(engine);
        }
        engine_state::AWAY => on_marked_away(word, engine),
        _ => {}
    }
}

thread_local! {
    /// The engine, plus one, that was away when this thread last marked something; 0 once it was rung for that. Perhaps it has
    /// seen the mark since: the next turn is like this one, so the thread rings in its place, once.
    static MARKED: Cell<usize> = const { Cell::new(0) };
}

/// A mark that is so late rings at once. Before that the thread goes on to the end of its piece of work: write, shutdown and
/// close make one packet.
const IN_PIECE_NS: u64 = 50_000;

/// Something is marked while the engine is away. It would notice by a timer, which costs more than a ring where it runs on a
/// virtual machine, and ends the turn later.
#[inline]
fn on_marked_away(word: &EngineWord, engine: usize) {
    MARKED.set(engine + 1);
    ring_awaited(word, engine, IN_PIECE_NS);
}

/// Between two pieces of work of a thread, before it begins with what it has just found, or found none, and before it sleeps,
/// for others may go on: the engine has its core for what was marked, if it takes it back by now.
#[inline]
pub(crate) fn ring_if_awaited() {
    // Where the daemon is another one by now, it may have fewer.
    if let Some(engine) = MARKED.get().checked_sub(1)
        && let Some(word) = attach::region().and_then(|region| engines::all(region).get(engine))
        && EngineBell(&word.state).is(engine_state::AWAY)
    {
        ring_awaited(word, engine, 0);
    }
}

/// Rings if the moment has been past for so long. What a raised thread has marked: `ring_before_sleep`.
fn ring_awaited(word: &EngineWord, engine: usize, late_ns: u64) {
    let moment = Moment(&word.leave_ns);
    if let Some(leave_ns) = moment.look()
        && real::now_ns() >= leave_ns.saturating_add(late_ns)
        && !serve::is_raised()
        && moment.claim(leave_ns)
    {
        MARKED.set(0);
        attach::ring(engine);
    }
}

/// A thread is about to sleep. If it was raised, the engine may take its core then, and is told: it has not looked for what
/// is no more important since, and what the thread has marked goes out now. So write, shutdown and close make one
/// packet. Should the thread not sleep for long, the engine looks by itself. Any other rings as after a piece of work.
#[inline]
pub(crate) fn ring_before_sleep() {
    ring_if_awaited();
    ring_late();
    if serve::is_raised() {
        ring_if_away();
    }
}

/// Has the engine look, if Linux has its core.
pub(crate) fn ring_if_away() {
    let Some(region) = attach::region() else { return };
    for (engine, word) in engines::all(region).iter().enumerate() {
        match word.state.load(Ordering::Relaxed) {
            engine_state::AWAY => attach::ring(engine),
            engine_state::SLEEPING => ring_sleeping(EngineBell(&word.state), engine),
            _ => {}
        }
    }
}

/// See [`Section::jumped_out`].
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_jump(leaves: impl Fn(usize) -> bool) {
    HOLDS.jumped_out(leaves);
}

/// Nobody may come to hold a socket, nor give one up, while the process is copied.
pub(crate) fn before_fork() {
    HOLDS.take_over_fork();
}

/// See [`before_fork`].
pub(crate) fn after_fork() {
    HOLDS.give_back();
}

/// The child will hold what this process holds.
pub(crate) fn share_with_child(region: &'static Region, child: u32) {
    let Some(holds) = attach::holds(region) else { return };
    for word in region.words_used() {
        let mut bits = holds[word].load(Ordering::Acquire);
        while bits != 0 {
            share_one(region, child, word as u32 * 64 + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
}

/// Another process of the program holds this socket, which is held here, from now on.
pub(crate) fn share_one(region: &'static Region, process: u32, index: u32) {
    let (Some(holds), Some(slot)) = (region.holds(process), region.slot(index)) else { return };
    let (word, bit) = (index as usize / 64, 1u64 << (index % 64));
    // Counted first: who releases what the record holds may do so at once.
    slot.references.fetch_add(1, Ordering::AcqRel);
    if holds[word].fetch_or(bit, Ordering::AcqRel) & bit != 0 {
        slot.references.fetch_sub(1, Ordering::AcqRel);
    }
}

/// It does not, unless it has let it go by itself.
pub(crate) fn unshare_one(region: &'static Region, process: u32, index: u32) {
    let (Some(holds), Some(slot)) = (region.holds(process), region.slot(index)) else { return };
    let (word, bit) = (index as usize / 64, 1u64 << (index % 64));
    if holds[word].fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
        slot.references.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Closes what the record holds and no descriptor names.
pub(crate) fn drop_unheld(region: &'static Region) {
    let Some(holds) = attach::holds(region) else { return };
    for word in region.words_used() {
        let mut bits = holds[word].load(Ordering::Acquire);
        while bits != 0 {
            let index = word as u32 * 64 + bits.trailing_zeros();
            bits &= bits - 1;
            let Some(socket) = Socket::at(index).filter(|socket| !socket.is_held_here()) else { continue };
            // Unless another process has adopted it since this one was begun.
            family::meet_all();
            if !socket.is_held_here() {
                socket.release_last();
            }
        }
    }
}

/// Threads that slept in the parent do not exist here: counts are made anew from the table.
pub(crate) fn in_child(region: &Region) {
    for count in region.slots_used().filter_map(|slot| COUNTS.get(slot as usize)) {
        if count.load(Ordering::Relaxed) != 0 {
            count.store(0, Ordering::Relaxed);
        }
    }
    for fd in 0..=table::highest() {
        if let Some(index) = table::held(fd)
            && let Some(count) = COUNTS.get(index as usize)
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}
