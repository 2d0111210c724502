//! One attached program as the engine sees it: its region, its rings, who of it waits, and how it is woken.

pub(crate) mod early;
pub(crate) mod put_off;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use scoutline_abi::Region;
use scoutline_abi::layout::{
    EXCLUSIVE, EngineWord, PROCESS_COUNT, PollSet, SET_WORDS, Slot, engine_of, slot_kind, slots_of,
};
use scoutline_base::{Address, Time};
use scoutline_ring::{Bitmap, SleeperBell};
use scoutline_sched::Level;

use crate::arena::{Arena, Ring};
use crate::command::RegionId;
use crate::extend::{Duty, Extension};
use crate::file::FileMap;
use crate::program::early::Early;
use crate::program::put_off::{Bound, OfAll, PutOff};
use crate::settings::ProgramFacts;
use crate::several::{Said, Several};
use crate::socket::{NamedSources, SocketEnd};

/// Threads of a program of which none runs for so long, while Linux has turns, are stopped. The queue that is held back keeps
/// below a millisecond (see [`crate::thread`]).
const STOPPED_AFTER: Duration = Duration::from_millis(2);

/// A program: one region, and everything about it that the engine keeps for itself. Nothing here is believed
/// because the region says so.
pub(crate) struct Program {
    /// Names it.
    pub(crate) id: RegionId,
    /// What is known of it, for people and for the policy. Its paths share it, and may outlive it (TIME-WAIT).
    pub(crate) facts: Rc<ProgramFacts>,
    /// Process id of its first process.
    pub(crate) pid: u32,
    /// By which its sockets are known when they are passed.
    pub(crate) key: Cell<u64>,
    /// Its shared memory.
    pub(crate) region: Arc<Region>,
    /// Bytes that were copied into its rings.
    pub(crate) stored: Cell<u64>,
    /// Which engine this is, and the others.
    several: Several,
    arena: RefCell<Arena>,
    /// The first slot of ours that was never handed out.
    fresh_slot: Cell<usize>,
    /// Slots that were given back.
    free_slots: RefCell<Vec<u32>>,
    /// Write ends of the pipes of its poll sets.
    sets: RefCell<BTreeMap<u32, SetEnd>>,
    /// Sources of a group's filter, one after the other, before it holds.
    pub(crate) named_sources: RefCell<NamedSources>,
    /// Files that it may send from.
    files: RefCell<BTreeMap<u32, Arc<FileMap>>>,
    /// The sockets, by slot; of others' slots the shadows of those that listen.
    ends: RefCell<Vec<Option<Rc<SocketEnd>>>>,
    /// What those have become that another program took.
    moved: RefCell<BTreeMap<u32, Vec<Weak<SocketEnd>>>>,
    /// Poll sets that were woken and whose threads have not run since, as far as we have looked.
    woken: RefCell<Vec<u32>>,
    /// Since when none of those has; `None` when there are none.
    waits_since: Cell<Option<Time>>,
    /// Somebody asks for that.
    tracks_woken: bool,
    put_off: PutOff,
    /// Connections whose peers have said nothing yet; of all programs.
    pub(crate) early: Rc<Early>,
    /// Threads woken since the Linux thread last ran; shared by all programs of the engine.
    wakes: Rc<Cell<u64>>,
    /// Turns that program and network have had at rings, as [`crate::socket::growth`] counts them; of all programs.
    pub(crate) turns: Rc<Cell<u16>>,
    /// Raises threads with the paths that they serve; shared by all programs.
    extension: Rc<Extension>,
}

/// What the programs of an engine have in common.
pub(crate) struct OfEngine {
    /// Which engine it is, and the others.
    pub(crate) several: Several,
    /// Threads woken since the Linux thread last ran.
    pub(crate) wakes: Rc<Cell<u64>>,
    /// Turns at rings.
    pub(crate) turns: Rc<Cell<u16>>,
    /// The core that it is pinned to: then somebody asks which threads were woken.
    pub(crate) core: Option<usize>,
    /// Wake-ups that are put off.
    pub(crate) put_off: Rc<OfAll>,
    /// Connections whose peers have said nothing yet.
    pub(crate) early: Rc<Early>,
    /// Raises threads with the paths that they serve.
    pub(crate) extension: Rc<Extension>,
}

/// A poll set as the daemon has made it.
struct SetEnd {
    /// Write end of its pipe.
    pipe: Arc<OwnedFd>,
    /// The process that asked for it, as the kernel says.
    process: u32,
    /// Who sleeps by it.
    bound: Cell<Bound>,
}

impl SetEnd {
    fn ring(&self) {
        // SAFETY: one byte from a constant to a pipe that we own. A full pipe means a wake-up is pending already.
        unsafe { libc::write(self.pipe.as_raw_fd(), b"!".as_ptr().cast(), 1) };
    }
}

impl Program {
    /// A program that has just attached.
    pub(crate) fn new(
        id: RegionId,
        facts: ProgramFacts,
        pid: u32,
        region: Arc<Region>,
        engine: OfEngine,
    ) -> Program {
        let OfEngine { several, wakes, turns, core, put_off, early, extension } = engine;
        let (engine, engines) = (several.index, several.count());
        Program {
            id,
            facts: Rc::new(facts),
            pid,
            key: Cell::new(0),
            region,
            stored: Cell::new(0),
            several,
            arena: RefCell::new(Arena::part(engine, engines)),
            fresh_slot: Cell::new(slots_of(engine, engines).start),
            free_slots: RefCell::default(),
            sets: RefCell::default(),
            named_sources: RefCell::default(),
            files: RefCell::default(),
            ends: RefCell::new(Vec::new()),
            moved: RefCell::default(),
            woken: RefCell::default(),
            waits_since: Cell::new(None),
            tracks_woken: core.is_some(),
            put_off: PutOff::new(put_off),
            early,
            wakes,
            turns,
            extension,
        }
    }

    /// Its sockets are known by this key from now on when they are passed; the program is told.
    pub(crate) fn set_key(&self, key: u64) {
        self.key.set(key);
        self.region.header().stand_in_key.store(key, Ordering::Release);
    }

    /// Takes the marks of the slots that this engine serves.
    pub(crate) fn take_dirty(&self, mut found: impl FnMut(u32)) {
        let first = self.slots().start;
        self.dirty().drain(|slot| found((first + slot) as u32));
    }

    /// Those marks.
    #[inline]
    pub(crate) fn dirty(&self) -> Bitmap<'_> {
        let used = self.fresh_slot.get() - self.slots().start;
        self.region.dirty_of(self.several.index, self.several.count(), used)
    }

    /// Marks of calls that this engine is to answer.
    #[inline]
    pub(crate) fn calls_pending(&self) -> &[AtomicU64] {
        &self.region.header().calls_pending[self.several.index].0
    }

    /// There is a mark or a call for this engine.
    #[inline]
    pub(crate) fn has_called(&self) -> bool {
        self.has_posted() || !self.dirty().is_empty()
    }

    /// There is a call.
    #[inline]
    pub(crate) fn has_posted(&self) -> bool {
        self.calls_pending().iter().any(|word| word.load(Ordering::Acquire) != 0)
    }

    /// What this engine tells the shim of itself.
    pub(crate) fn engine_word(&self) -> &EngineWord {
        &self.region.header().engines[self.several.index]
    }

    /// The core of the engine that serves a slot, plus one; `None` where there is one engine, or it is not pinned. Anything
    /// may stand there: it is only used as a hint.
    pub(crate) fn core_of(&self, slot: u32) -> Option<NonZeroU32> {
        if !self.several.is_several() {
            return None;
        }
        let engine = &self.region.header().engines[engine_of(slot, self.several.count())];
        NonZeroU32::new(engine.cpu_plus_one.load(Ordering::Relaxed))
    }

    /// The slot is one of this engine's.
    pub(crate) fn serves(&self, slot: u32) -> bool {
        self.slots().contains(&(slot as usize))
    }

    fn slots(&self) -> Range<usize> {
        slots_of(self.several.index, self.several.count())
    }

    /// Of a bitmap of slots the words of those that this engine has ever handed out.
    pub(crate) fn words_used(&self) -> Range<usize> {
        self.slots().start / 64..self.fresh_slot.get().div_ceil(64)
    }

    /// One of its processes says that it has this id.
    pub(crate) fn has_process(&self, pid: u32) -> bool {
        let records = (0..PROCESS_COUNT as u32).filter_map(|number| self.region.process(number));
        records
            .filter(|record| record.alive.load(Ordering::Acquire) != 0)
            .any(|record| record.pid.load(Ordering::Relaxed) == pid)
    }

    /// Tells the engine that serves this slot.
    pub(crate) fn tell_of(&self, slot: u32, said: Said) {
        self.several.tell(engine_of(slot, self.several.count()), said);
    }

    /// A free slot, reset; `None` when all are in use.
    pub(crate) fn take_slot(&self, kind: u32) -> Option<u32> {
        let given_back = self.free_slots.borrow_mut().pop();
        let index = given_back.or_else(|| self.take_fresh_slot())?;
        let slot = self.slot(index);
        reset(slot);
        // What shims have noted of the socket that had the slot before is about that one.
        slot.generation.fetch_add(1, Ordering::AcqRel);
        slot.kind.store(kind, Ordering::Release);
        Some(index)
    }

    fn take_fresh_slot(&self) -> Option<u32> {
        let (fresh, slots) = (self.fresh_slot.get(), self.slots());
        if !slots.contains(&fresh) {
            return None;
        }
        self.fresh_slot.set(fresh + 1);
        // Before anybody learns of the slot.
        let used = &self.region.header().slots_used[self.several.index];
        used.store((fresh + 1 - slots.start) as u32, Ordering::Release);
        Some(fresh as u32)
    }

    /// Gives a slot back.
    pub(crate) fn give_slot(&self, index: u32) {
        self.slot(index).kind.store(slot_kind::FREE, Ordering::Release);
        self.free_slots.borrow_mut().push(index);
    }

    /// A slot of ours by number.
    ///
    /// # Panics
    /// When the number is out of range: the engine only keeps numbers that it handed out.
    #[inline]
    pub(crate) fn slot(&self, index: u32) -> &Slot {
        self.region.slot(index).expect("the engine handed out this slot")
    }

    /// A ring of the arena.
    pub(crate) fn take_ring(&self, size: u32) -> Option<Ring> {
        self.arena.borrow_mut().allocate(size)
    }

    /// Gives a ring back.
    pub(crate) fn give_ring(&self, ring: Ring) {
        self.arena.borrow_mut().release(ring);
    }

    /// Bytes of rings in use.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.arena.borrow().in_use()
    }

    /// The socket at a slot.
    pub(crate) fn end(&self, slot: u32) -> Option<Rc<SocketEnd>> {
        self.ends.borrow().get(slot as usize)?.clone()
    }

    /// Enters a socket.
    pub(crate) fn keep_end(&self, slot: u32, end: Rc<SocketEnd>) {
        let mut ends = self.ends.borrow_mut();
        if ends.len() <= slot as usize {
            ends.resize_with(slot as usize + 1, || None);
        }
        ends[slot as usize] = Some(end);
    }

    /// Lets go of a socket: its slot and rings return once nothing else refers to it.
    pub(crate) fn forget_end(&self, slot: u32) {
        if let Some(entry) = self.ends.borrow_mut().get_mut(slot as usize) {
            *entry = None;
        }
        self.moved.borrow_mut().remove(&slot);
    }

    /// Another program has taken it.
    pub(crate) fn note_moved(&self, slot: u32, to: &Rc<SocketEnd>) {
        let mut moved = self.moved.borrow_mut();
        let all = moved.entry(slot).or_default();
        all.retain(|end| end.upgrade().is_some());
        all.push(Rc::downgrade(to));
    }

    /// What a socket has become that other programs took, of which none may be there any more; `None`: nobody has.
    pub(crate) fn moved(&self, slot: u32) -> Option<Vec<Rc<SocketEnd>>> {
        let moved = self.moved.borrow();
        let ends = moved.get(&slot)?.iter().filter_map(Weak::upgrade);
        Some(ends.filter(|end| !end.closed.get()).collect())
    }

    /// Lets go of all sockets.
    pub(crate) fn forget_all(&self) {
        drop(self.ends.take());
    }

    /// All sockets.
    pub(crate) fn ends(&self) -> Vec<Rc<SocketEnd>> {
        self.ends.borrow().iter().flatten().cloned().collect()
    }

    /// A poll set came into use. What happened before we knew its pipe is made good by one wake-up.
    pub(crate) fn add_set(&self, set: u32, pipe: Arc<OwnedFd>, process: u32) {
        self.sets.borrow_mut().insert(set, SetEnd { pipe, process, bound: Cell::default() });
        if let Some(shared) = self.region.set(set) {
            // Whatever was signalled went to the pipe of an earlier set with this number, by us or by another engine.
            shared.signalled.store(0, Ordering::SeqCst);
            if self.several.is_first() {
                shared.thread.store(0, Ordering::SeqCst);
                shared.level.store(0, Ordering::SeqCst);
            }
        }
        self.wake_set(set, Duty::default());
    }

    /// A file to send from.
    pub(crate) fn add_file(&self, file: u32, map: Arc<FileMap>) {
        self.files.borrow_mut().insert(file, map);
    }

    /// A file by number.
    pub(crate) fn file(&self, file: u32) -> Option<Arc<FileMap>> {
        self.files.borrow().get(&file).cloned()
    }

    /// A poll set is given back.
    pub(crate) fn remove_set(&self, set: u32) {
        self.sets.borrow_mut().remove(&set);
        self.put_off.forget(set);
        self.woken.borrow_mut().retain(|&other| other != set);
    }

    /// Something happened at a slot: marks it ready in every poll set that watches it and wakes who sleeps there.
    /// Says how many threads were woken. What happened must have been stored before. With `one_is_enough` (a new
    /// connection to accept) one of those is woken that are in a blocking call or in an epoll that takes alone, of them one
    /// that sleeps on the core `near` (plus one), if one does; else all are, for they may wait for different things. Their
    /// threads are scheduled with the path, as `duty` says; with `one_is_enough` one of them is, and the others find
    /// nothing when they run.
    pub(crate) fn signal(
        &self,
        index: u32,
        one_is_enough: bool,
        near: Option<NonZeroU32>,
        duty: Duty,
    ) -> u64 {
        let slot = self.slot(index);
        // Pairs with the shim's: register or go to sleep, fence, look again. Either we see it registered, or it
        // sees what we stored.
        fence(Ordering::SeqCst);
        let mut woken = 0;
        let mut exclusive_woken = false;
        let first = near.filter(|_| one_is_enough).and_then(|core| self.sleeper_on(slot, core));
        let chosen =
            (one_is_enough && duty.level > Level::Priority(0)).then(|| self.who_accepts(slot, first));
        for set in watching_from(slot, first) {
            let Some(shared) = self.region.set(set) else { continue };
            if one_is_enough && shared.sleepers.load(Ordering::SeqCst) & EXCLUSIVE != 0 {
                // Looks at the socket itself when it wakes: no mark needed. One that has been woken already is busy
                // with an earlier event.
                if !exclusive_woken && self.wake_set(set, duty) {
                    // It may have been leaving with that event: then it has taken itself off the slot, or sees that it
                    // was signalled and marks the slot for another wake-up.
                    exclusive_woken =
                        slot.sets[set as usize / 64].load(Ordering::SeqCst) >> (set % 64) & 1 != 0;
                    woken += 1;
                }
                continue;
            }
            let duty = if chosen.is_some_and(|chosen| chosen != Some(set)) { Duty::default() } else { duty };
            // Of epolls that ask for it those are told up to the first that is woken, as on Linux.
            let takes_alone = one_is_enough && shared.one_takes.load(Ordering::Acquire) != 0;
            if takes_alone && exclusive_woken {
                continue;
            }
            self.region.ready(shared).set(index as usize);
            // It may be busy with something less important.
            self.raise(set, duty);
            let woke = self.wake_set(set, duty);
            exclusive_woken |= takes_alone && woke;
            woken += u64::from(woke);
        }
        woken
    }

    /// A set that watches a listening slot and whose thread sleeps on this core; first one of those of which one is woken.
    fn sleeper_on(&self, slot: &Slot, core: NonZeroU32) -> Option<u32> {
        let mut sleeper = None;
        for set in watching(slot) {
            let Some(shared) = self.region.set(set) else { continue };
            if shared.cpu_plus_one.load(Ordering::Relaxed) != core.get() || !sleeps(shared) {
                continue;
            }
            let is_alone = shared.sleepers.load(Ordering::Relaxed) & EXCLUSIVE != 0;
            if is_alone || shared.one_takes.load(Ordering::Acquire) != 0 {
                return Some(set);
            }
            sleeper = sleeper.or(Some(set));
        }
        sleeper
    }

    /// The set, of those that watch a listening slot, whose thread is to take what came: one that sleeps, if one does.
    fn who_accepts(&self, slot: &Slot, first: Option<u32>) -> Option<u32> {
        let may =
            |shared: &PollSet| sleeps(shared) && shared.sleepers.load(Ordering::Acquire) & EXCLUSIVE == 0;
        watching_from(slot, first)
            .find(|&set| self.region.set(set).is_some_and(may))
            .or_else(|| watching(slot).next())
    }

    /// The thread of this set has something to do for a path that asks this of it.
    pub(crate) fn raise(&self, set: u32, duty: Duty) {
        if self.extension.concerns(duty)
            && let Some(SetEnd { process, .. }) = self.sets.borrow().get(&set)
        {
            self.extension.raise(&self.region, set, *process, duty);
        }
    }

    /// Wakes who sleeps on a poll set, to do this; false when nobody does or it has been woken already.
    pub(crate) fn wake_set(&self, set: u32, duty: Duty) -> bool {
        let Some(shared) = self.region.set(set) else { return false };
        let bell = SleeperBell { sleepers: &shared.sleepers, signalled: &shared.signalled };
        if !bell.has_sleepers() {
            return false;
        }
        let sets = self.sets.borrow();
        let Some(end) = sets.get(&set) else { return false };
        if !bell.claim() {
            return false;
        }
        self.raise(set, duty);
        // Of several that sleep by it another may run elsewhere.
        let is_alone = shared.sleepers.load(Ordering::Relaxed) & !EXCLUSIVE == 1;
        let thread = (shared.thread.load(Ordering::Relaxed), end.process);
        if !is_alone || !self.put_off.puts_off(set, thread, &end.bound) {
            end.ring();
        }
        self.wakes.set(self.wakes.get() + 1);
        let mut woken = self.woken.borrow_mut();
        if self.tracks_woken && !woken.contains(&set) {
            woken.push(set);
        }
        true
    }

    /// Wakes those whose wake-ups were put off.
    pub(crate) fn ring_put_off(&self) {
        let sets = self.sets.borrow();
        self.put_off.take().iter().filter_map(|set| sets.get(set)).for_each(SetEnd::ring);
    }

    /// Urgent data came for a socket whose owner is told by the pipe of this set (its number plus one; 0: it has none).
    pub(crate) fn signal_owner(&self, set_plus_one: u32) {
        let sets = self.sets.borrow();
        if let Some(end) = set_plus_one.checked_sub(1).and_then(|set| sets.get(&set)) {
            end.ring();
        }
    }

    /// Threads that were woken and have not run yet: they wait in Linux's run queue. `linux_ran` is when Linux last had the
    /// core: a program of which none runs while it has is stopped (SIGSTOP, a debugger, a frozen control group), and its
    /// threads do not count until they are woken once more.
    pub(crate) fn backlog(&self, linux_ran: Time) -> usize {
        let mut woken = self.woken.borrow_mut();
        let before = woken.len();
        woken.retain(|&set| {
            self.region.set(set).is_some_and(|shared| {
                shared.signalled.load(Ordering::Relaxed) != 0 && shared.sleepers.load(Ordering::Relaxed) != 0
            })
        });
        let since = self.waits_since.get().filter(|_| woken.len() == before).unwrap_or(linux_ran);
        if linux_ran.since(since) > STOPPED_AFTER {
            woken.clear();
        }
        self.waits_since.set((!woken.is_empty()).then_some(since));
        woken.len()
    }
}

/// Somebody sleeps by this set who has not been woken.
fn sleeps(shared: &PollSet) -> bool {
    shared.sleepers.load(Ordering::Acquire) != 0 && shared.signalled.load(Ordering::Acquire) == 0
}

/// The poll sets that watch a slot, this one before the others: each once, whatever changes meanwhile.
fn watching_from(slot: &Slot, first: Option<u32>) -> impl Iterator<Item = u32> {
    first.into_iter().chain(watching(slot).filter(move |&set| Some(set) != first))
}

/// The poll sets that watch a slot.
fn watching(slot: &Slot) -> impl Iterator<Item = u32> {
    let mut words = slot.sets_summary.load(Ordering::Acquire) & ((1u64 << SET_WORDS) - 1) as u32;
    let (mut word, mut bits) = (0, 0);
    std::iter::from_fn(move || {
        while bits == 0 {
            if words == 0 {
                return None;
            }
            word = words.trailing_zeros();
            words &= words - 1;
            bits = slot.sets[word as usize].load(Ordering::Acquire);
        }
        let set = word * 64 + bits.trailing_zeros();
        bits &= bits - 1;
        Some(set)
    })
}

/// Puts a slot back to what a fresh one is.
fn reset(slot: &Slot) {
    let relaxed = Ordering::Relaxed;
    slot.state.store(0, relaxed);
    slot.error.store(0, relaxed);
    slot.soft_error.store(0, relaxed);
    slot.receive_tail.store(0, relaxed);
    slot.receive_head.store(0, relaxed);
    slot.send_head.store(0, relaxed);
    slot.send_tail.store(0, relaxed);
    slot.receive_size.store(0, relaxed);
    slot.send_size.store(0, relaxed);
    slot.urgent.store(0, relaxed);
    slot.requests.store(0, relaxed);
    slot.in_flight.store(0, relaxed);
    slot.flags.store(0, relaxed);
    slot.receive_lock.store(0, relaxed);
    slot.send_lock.store(0, relaxed);
    slot.references.store(0, relaxed);
    slot.send_wanted.store(0, relaxed);
    slot.linger_plus_one.store(0, relaxed);
    slot.kept_options.store(0, relaxed);
    slot.receive_timeout_us.store(0, relaxed);
    slot.send_timeout_us.store(0, relaxed);
    slot.receive_low_water.store(1, relaxed);
    slot.asked_receive_buffer.store(0, relaxed);
    slot.asked_send_buffer.store(0, relaxed);
    slot.asked_user_timeout_ms.store(0, relaxed);
    slot.asked_max_segment.store(0, relaxed);
    slot.unsent_low_water.store(0, relaxed);
    slot.defer_accept_s.store(0, relaxed);
    slot.peek_offset_inverted.store(0, relaxed);
    slot.sent.store(0, relaxed);
    slot.held_from.store(0, relaxed);
    for times in &slot.keep_alive_times {
        times.store(0, relaxed);
    }
    for mark in [&slot.urgent_mark, &slot.urgent_taken, &slot.urgent_to, slot.urgent_passed()] {
        mark.store(0, relaxed);
    }
    slot.owner_set.store(0, relaxed);
    slot.local_address.store(Address::UNSPECIFIED_V4);
    slot.remote_address.store(Address::UNSPECIFIED_V4);
    for address in [&slot.local_port, &slot.remote_port, &slot.scope] {
        address.store(0, relaxed);
    }
    slot.extents_tail.store(0, relaxed);
    slot.extents_head.store(0, relaxed);
    for word in [&slot.errors_tail, &slot.errors_queued, &slot.mtu, &slot.errors_head, &slot.datagram_flags] {
        word.store(0, relaxed);
    }
    for word in [&slot.zero_copy_done, &slot.zero_copy_told] {
        word.store(0, relaxed);
    }
    for word in [&slot.segment, &slot.group_interface[0], &slot.group_interface[1]] {
        word.store(0, relaxed);
    }
    slot.send_options.iter().for_each(|word| word.store(0, relaxed));
    slot.importance.store(0, relaxed);
    slot.server.store(0, relaxed);
    slot.sets_summary.store(0, relaxed);
    for word in &slot.sets {
        word.store(0, relaxed);
    }
}

#[cfg(test)]
mod tests;
