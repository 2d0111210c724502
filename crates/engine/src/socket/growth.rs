//! Rings that grow: a stream begins with small ones, and the engine exchanges them for larger ones as the connection
//! needs it.
//!
//! ```text
//!   first      what every connection begins with
//!     │        the program is slower than the network for a moment (receive ring half full, send ring three quarters)
//!   ordinary   what scheduling on this machine asks for (`receive_buffer`, `send_buffer`)
//!     │        the path is long: twice what passes in a round trip (`scoutline_proto`'s sizing),
//!     │        its program waits for so much at once (SO_RCVLOWAT),
//!     │        or program and network take turns at it: twice the ring ([`Turns`])
//!   most       `receive_buffer_max`, `send_buffer_max`; or what the program has set (SO_RCVBUF, SO_SNDBUF; socket(7))
//! ```
//! The program copies under a lock of the direction, in shared memory. The engine *tries* to take that lock, and puts the
//! growth off when somebody has it: then nobody is within the ring, and offset and size change together. It never waits,
//! so a program that keeps its lock for ever, or writes garbage there, only keeps its own rings small.
//!
//! What stands in a receive ring is copied over (the old ring goes back at once; with a lot in it the growth is put off).
//! What stands in a send ring stays there, below the position of the exchange, until the peer has acknowledged it: mostly that
//! is all it holds. The shim needs to know nothing of that: what it may write is still the size less what is
//! outstanding. Both rings count in the budget of the class, and a growth leaves most of that to others.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use scoutline_abi::layout::{ENGINE_HOLDS, MAX_AHEAD};
use scoutline_base::Time;

use super::SocketEnd;
use crate::arena::Ring;
use crate::settings::EngineSettings;

/// The rings that a connection begins with.
const FIRST: u32 = 64 << 10;
/// What is copied at most: once for a growth, and a fourth of what a burst of 64 long packets has copied anyhow.
const MAX_COPY: u64 = 1 << 20;
/// A growth is no reason to refuse connections: so many times as much must be left.
const LEAVES: u64 = 4;
/// The least that a program can have.
const LEAST: u32 = 4 << 10;

/// So many turns in a row, each soon after the one before it, and the ring is what a turn is worth.
const TURNS: u8 = 4;
/// Soon, in units of 4.2 ms: turns that are rarer do not limit anybody.
const SOON: u8 = 2;
/// In so many units of 0.26 ms a ring's worth passes where what runs on this machine is the limit: 4 Gbit/s at 256 KiB.
const QUICK: u8 = 2;
/// What the rings that take turns may hold together, so that a processor's cache does: beyond that copies are slower by
/// more than the turns cost (8 connections of 4 MiB each sent 23 Gbit/s here, of 512 KiB 37).
const CACHED: u64 = 4 << 20;

/// In [`Turns`]' steps.
const HALF: u8 = 0x80;

/// Whether program and network take turns at a ring: one fills it, the other empties it. Where both are on one core, or
/// wake each other, a turn costs some tens of microseconds however much it moves; so a ring that is full and empty in
/// quick succession is too small, however short the path. A program that is slower than the network never empties its
/// receive ring, one that is faster never sees its send ring empty: there a larger ring would only hold more.
///
/// But where both run in turn, each may always find the other in the midst of its work, so that the ring is never seen empty
/// (receiving on one core it stayed at 256 KiB so, at half the throughput of 4 MiB). So a full ring's worth that
/// passes counts as a turn as well, if it does in next to no time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turns {
    /// How many in a row; with [`HALF`], the first half of the next is done.
    steps: u8,
    /// When the last one was over, in units of 4.2 ms; a wrong guess when they wrap, after a second, does no harm.
    at: u8,
    /// When a ring's worth begins to pass, in units of 0.26 ms: they wrap after 67 ms, and four wrong guesses are needed.
    from_at: u8,
    /// And in which of the rings' worths, of which the stream consists.
    from: u8,
    /// How many all rings of the engine had had by the last one.
    all: u16,
}

impl Turns {
    /// In units of 4.2 and of 0.26 ms.
    fn ticks(now: Time) -> (u8, u8) {
        ((now.as_nanos() >> 22) as u8, (now.as_nanos() >> 18) as u8)
    }

    /// Of a ring, whose size is a power of two.
    fn lap(position: u64, size: u32) -> u8 {
        (position >> size.trailing_zeros()) as u8
    }

    fn count(self) -> u8 {
        self.steps & !HALF
    }

    /// The first half of a turn: a receive ring is full, or a send ring empty.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.steps |= HALF;
    }

    /// The second half, at a ring of `size` bytes, through which all before `position` has passed; `all` counts the turns of the
    /// engine's rings.
    #[inline]
    fn end(&mut self, position: u64, size: u32, all: &Cell<u16>, now: Time) {
        if self.steps & HALF != 0 {
            self.steps &= !HALF;
            let soon = Turns::ticks(now).0.wrapping_sub(self.at) <= SOON;
            self.pass(position, size, now);
            self.add(soon, size, all, now);
        }
    }

    /// Whether another ring's worth passes than at the last turn, or when this was looked at.
    #[inline]
    fn has_passed(self, position: u64, size: u32) -> bool {
        Turns::lap(position, size) != self.from
    }

    /// It has, and the ring is full: a turn, if it took next to no time.
    #[inline]
    fn end_full(&mut self, position: u64, size: u32, all: &Cell<u16>, now: Time) {
        if Turns::ticks(now).1.wrapping_sub(self.from_at) <= QUICK {
            self.add(true, size, all, now);
        }
        self.pass(position, size, now);
    }

    #[inline]
    fn pass(&mut self, position: u64, size: u32, now: Time) {
        (self.from, self.from_at) = (Turns::lap(position, size), Turns::ticks(now).1);
    }

    fn add(&mut self, soon: bool, size: u32, all: &Cell<u16>, now: Time) {
        all.set(all.get().wrapping_add(1));
        // Those who had one since share the cache.
        let fits = u64::from(size) * 2 * u64::from(all.get().wrapping_sub(self.all)) <= CACHED;
        (self.at, self.all) = (Turns::ticks(now).0, all.get());
        let count = if soon && fits { TURNS.min(self.count() + 1) } else { 0 };
        self.steps = self.steps & HALF | count;
    }

    /// The size that a ring should have for it to take turns at it, if there have been enough of them, or else `need`.
    #[inline]
    fn need(self, need: u32, size: u32) -> u32 {
        if self.count() < TURNS { need } else { need.max(size.saturating_mul(2)) }
    }

    /// The ring has grown: the next turn tells whether that was enough.
    #[inline]
    fn on_grown(&mut self) {
        self.steps = self.steps & HALF | self.count().min(TURNS - 1);
    }
}

/// Where the program waits for room it soon fills its send ring: it is full from three quarters on.
fn is_full(held: u64, size: u32) -> bool {
    held > u64::from(size / 4 * 3)
}

/// Sizes of one ring, powers of two in bytes: see the module's drawing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    receive: Size,
    send: Size,
}

/// Of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    first: u32,
    ordinary: u32,
    most: u32,
}

impl Size {
    fn new(ordinary: u32, most: u32, grows: bool) -> Size {
        Size { first: if grows { FIRST.min(ordinary) } else { ordinary }, ordinary, most: most.max(ordinary) }
    }

    /// The size that a ring should have, if that is more than it has.
    #[inline]
    fn wanted(self, size: u32, need: u32, presses: bool) -> Option<u32> {
        let to = need.min(self.most).max(if presses { self.ordinary } else { 0 });
        (to > size).then_some(to)
    }

    /// With what the program has set; 0: nothing. What it set is as far as the ring grows, and it need not be needed to
    /// be had.
    fn asked(self, bytes: u32) -> Size {
        if bytes == 0 {
            return self;
        }
        let most = bytes.clamp(LEAST, 1 << 31).next_power_of_two().min(self.most);
        Size { first: self.first.min(most), ordinary: most, most }
    }
}

impl Sizes {
    /// Of sockets for which nobody has asked anything.
    pub(crate) fn configured(settings: &EngineSettings) -> Sizes {
        let grows = settings.buffers_grow;
        let size = |ordinary, most: u32| Size::new(ordinary, if grows { most } else { ordinary }, grows);
        Sizes {
            receive: size(settings.receive_buffer, settings.receive_buffer_max),
            send: size(settings.send_buffer, settings.send_buffer_max),
        }
    }

    /// The rings of a connection at first: receive and send.
    pub(crate) fn first(&self) -> (u32, u32) {
        (self.receive.first, self.send.first)
    }

    /// The rings of a datagram socket, which do not grow.
    pub(crate) fn datagram(&self) -> (u32, u32) {
        (self.receive.ordinary, self.send.ordinary)
    }
}

impl SocketEnd {
    /// Its sizes with what its program has asked for.
    fn asked_sizes(&self) -> Sizes {
        let (sizes, slot) = (self.sizes.get(), self.shared());
        Sizes {
            receive: sizes.receive.asked(slot.asked_receive_buffer.load(Ordering::Relaxed)),
            send: sizes.send.asked(slot.asked_send_buffer.load(Ordering::Relaxed)),
        }
    }

    /// It is to have rings of these sizes. What they are at first, or those of connections that it accepts.
    pub(crate) fn begin_with(&self, sizes: Sizes) -> (u32, u32) {
        self.sizes.set(sizes);
        self.asked_sizes().first()
    }

    /// What the program may have written beyond what is acknowledged: in the largest ring, or in files.
    pub(crate) fn most_written(&self) -> u64 {
        MAX_AHEAD.max(u64::from(self.sizes.get().send.most))
    }

    /// The program waits for more than half of what the receive ring holds (SO_RCVLOWAT).
    #[inline]
    pub(super) fn is_below_mark(&self) -> bool {
        self.receive_mark() > self.receive.get().size
    }

    /// The ring that SO_RCVLOWAT asks for: twice as much, so that the rest can come while that is read
    /// (`tcp_set_rcvlowat` of Linux).
    #[inline]
    fn receive_mark(&self) -> u32 {
        let mark = self.shared().receive_low_water.load(Ordering::Relaxed);
        mark.saturating_mul(2).min(1 << 31).next_power_of_two().min(self.sizes.get().receive.most)
    }

    /// Makes the receive ring larger if it should be, with a need of `need` bytes. True when it did.
    #[inline]
    pub(super) fn fit_receive(&self, need: u32, now: Time) -> bool {
        let (size, consumed) = (self.receive.get().size, self.consumed.get());
        let held = self.received.get().saturating_sub(consumed);
        let presses = held > u64::from(size / 2);
        let mut turns = self.receive_turns.get();
        if presses {
            turns.begin();
            if turns.has_passed(consumed, size) {
                turns.end_full(consumed, size, &self.program.turns, now);
            }
        } else if held == 0 {
            turns.end(consumed, size, &self.program.turns, now);
        }
        self.receive_turns.set(turns);
        let need = turns.need(need.max(self.receive_mark()), size);
        if self.sizes.get().receive.wanted(size, need, presses).is_none() {
            return false;
        }
        let grows =
            self.asked_sizes().receive.wanted(size, need, presses).is_some_and(|to| self.grow_receive(to));
        if grows {
            turns.on_grown();
            self.receive_turns.set(turns);
        }
        grows
    }

    /// The same of the send ring.
    #[inline]
    pub(super) fn fit_send(&self, need: u32, now: Time) -> bool {
        let (size, freed) = (self.send.get().size, self.freed.get());
        let is_full = is_full(self.written.get().saturating_sub(freed), size);
        let mut turns = self.send_turns.get();
        if is_full {
            turns.end(freed, size, &self.program.turns, now);
            self.send_turns.set(turns);
        }
        let takes_turns = turns.count() >= TURNS;
        // However long the path, a ring that the program does not fill is large enough.
        if !is_full && !takes_turns {
            return false;
        }
        let need = turns.need(need, size);
        if self.sizes.get().send.wanted(size, need, true).is_none() {
            return false;
        }
        let grows = self.asked_sizes().send.wanted(size, need, true).is_some_and(|to| self.grow_send(to));
        if grows {
            turns.on_grown();
            self.send_turns.set(turns);
        }
        grows
    }

    /// The send ring will be free up to `position`. The program may have filled it since the engine looked, which then never
    /// sees it full.
    #[inline]
    pub(super) fn on_acknowledged(&self, position: u64, now: Time) {
        let size = self.send.get().size;
        let mut turns = self.send_turns.get();
        if !turns.has_passed(position, size) {
            return;
        }
        let written = self.shared().send_tail.load(Ordering::Acquire);
        let held = written.checked_sub(self.freed.get()).filter(|&held| held <= u64::from(size));
        if held.is_some_and(|held| is_full(held, size)) && !self.has_extents() {
            turns.end_full(position, size, &self.program.turns, now);
        } else {
            turns.pass(position, size, now);
        }
        self.send_turns.set(turns);
    }

    /// How much of the send ring the program may fill.
    #[inline]
    pub(super) fn send_limit(&self) -> u32 {
        self.shared().send_limit(self.send.get().size)
    }

    /// How much of the send ring the program may fill, where it has written all of that.
    #[inline]
    pub(super) fn send_ring_if_full(&self) -> Option<u32> {
        let limit = self.send_limit();
        let held = self.written.get().saturating_sub(self.freed.get());
        (held >= u64::from(limit)).then_some(limit)
    }

    fn grow_receive(&self, to: u32) -> bool {
        let slot = self.shared();
        let before = self.receive.get();
        let until = self.stored.get().max(self.received.get());
        let more = u64::from(to - before.size);
        if until - self.read_consumed() > MAX_COPY.min(u64::from(before.size)) || !self.leaves_room(more) {
            return false;
        }
        let Some(_held) = Held::try_take(&slot.receive_lock) else { return false };
        let from = self.read_consumed();
        let Some(ring) = self.take_larger(to, more) else { return false };
        self.copy_over(before, ring, from, until);
        self.receive.set(ring);
        self.program.give_ring(before);
        slot.receive_offset.store(ring.offset, Ordering::Relaxed);
        slot.receive_size.store(ring.size, Ordering::Release);
        true
    }

    fn grow_send(&self, to: u32) -> bool {
        let slot = self.shared();
        if self.send_before.get().is_some() || self.has_extents() || !self.leaves_room(u64::from(to)) {
            return false;
        }
        let Some(_held) = Held::try_take(&slot.send_lock) else { return false };
        let before = self.send.get();
        // Nobody is writing: this is all that stands in the old ring.
        let until = slot.send_tail.load(Ordering::Acquire);
        let fits = until.checked_sub(self.freed.get()).is_some_and(|held| held <= u64::from(before.size));
        if !fits || slot.extents_tail.load(Ordering::Acquire) != self.extents_taken.get() {
            return false;
        }
        let Some(ring) = self.take_larger(to, u64::from(to)) else { return false };
        self.send.set(ring);
        self.send_before.set(Some((before, until)));
        slot.send_offset.store(ring.offset, Ordering::Relaxed);
        slot.send_size.store(ring.size, Ordering::Release);
        true
    }

    /// All that stood in the send ring before the last exchange is acknowledged.
    #[cold]
    pub(super) fn leave_ring_before(&self) {
        if let Some((before, _)) = self.send_before.take() {
            self.program.give_ring(before);
            if let Some((memory, bytes)) = &mut *self.charged.borrow_mut() {
                memory.refund(u64::from(before.size));
                *bytes -= u64::from(before.size);
            }
        }
    }

    fn leaves_room(&self, more: u64) -> bool {
        self.charged.borrow().as_ref().is_some_and(|(memory, _)| memory.has_room(more * LEAVES))
    }

    /// A ring that is charged, `more` bytes beyond what is now.
    fn take_larger(&self, to: u32, more: u64) -> Option<Ring> {
        let mut charged = self.charged.borrow_mut();
        let (memory, bytes) = charged.as_mut()?;
        let ring = self.program.take_ring(to)?;
        memory.take_over(more);
        *bytes += more;
        Some(ring)
    }

    fn copy_over(&self, from: Ring, to: Ring, mut at: u64, until: u64) {
        while at < until {
            let left = |ring: Ring| u64::from(ring.size) - at % u64::from(ring.size);
            let len = (until - at).min(left(from)).min(left(to)) as usize;
            let span = |ring: Ring| self.program.region.ring_spans(ring.offset, ring.size, at, len);
            let (Some(source), Some(target)) = (span(from), span(to)) else { return };
            // SAFETY: both spans are `len` bytes of our mapping, since `len` reaches no ring's end; two rings of one
            // arena do not overlap. What the other process may scribble there meanwhile is its own data.
            unsafe {
                scoutline_ring::copy(source[0].memory.as_ptr(), target[0].memory.as_ptr(), len);
            }
            at += len as u64;
        }
    }
}

/// A direction's lock, held by the engine. Given back on drop.
pub(super) struct Held<'a>(&'a AtomicU32);

impl Held<'_> {
    pub(super) fn try_take(word: &AtomicU32) -> Option<Held<'_>> {
        word.compare_exchange(0, ENGINE_HOLDS, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Held(word))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Only our own: the word is shared memory.
        let _ = self.0.compare_exchange(ENGINE_HOLDS, 0, Ordering::Release, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const KIB: u32 = 1 << 10;

    /// Rings of these sizes at each of which a turn is taken, `pause` after the one before; what they become. Whole ones, or such
    /// that are never seen empty.
    fn become_of(sizes: &[u32], whole: bool, pause: Duration) -> Vec<u32> {
        let (mut sizes, all) = (sizes.to_vec(), Cell::new(u16::MAX - 7));
        let mut turns = vec![(Turns::default(), 1 << 30); sizes.len()];
        let mut now = Time::from_millis(1_000);
        for _ in 0..40 {
            for ((turns, position), size) in turns.iter_mut().zip(&mut sizes) {
                *position += u64::from(*size);
                if whole {
                    turns.begin();
                    turns.end(*position, *size, &all, now);
                    let count = turns.count();
                    turns.end(*position, *size, &all, now);
                    assert_eq!(turns.count(), count, "half a turn is none");
                } else if turns.has_passed(*position, *size) {
                    turns.end_full(*position, *size, &all, now);
                }
                let need = turns.need(0, *size);
                if need > 0 {
                    *size = need;
                    turns.on_grown();
                }
                now += pause;
            }
        }
        sizes
    }

    #[test]
    fn who_takes_turns_grows_as_far_as_the_cache_goes() {
        for (whole, soon) in [(true, 100), (false, 60)] {
            let soon = Duration::from_micros(soon);
            assert_eq!(become_of(&[256 * KIB], whole, soon), [4096 * KIB]);
            assert_eq!(become_of(&[256 * KIB; 8], whole, soon), [512 * KIB; 8]);
            assert_eq!(become_of(&[64 * KIB; 64], whole, soon), [64 * KIB; 64]);
        }
    }

    #[test]
    fn turns_now_and_then_are_enough() {
        let becomes = |whole, millis| become_of(&[256 * KIB], whole, Duration::from_millis(millis))[0];
        assert_eq!(becomes(true, 20), 256 * KIB);
        assert_eq!(becomes(true, 4), 4096 * KIB);
        assert_eq!(becomes(false, 4), 256 * KIB, "a slow program");
    }

    /// A slow program's ring is emptied now and then, and is full in between: neither makes the other's turns more.
    #[test]
    fn turns_that_are_not_quick_leave_whole_ones_alone() {
        let (mut turns, all) = (Turns::default(), Cell::new(0));
        let mut now = Time::from_millis(1_000);
        for turn in 1..=TURNS + 1 {
            now += Duration::from_millis(4);
            turns.begin();
            assert!(turns.has_passed(u64::from(turn) << 20, 256 * KIB));
            turns.end_full(u64::from(turn) << 20, 256 * KIB, &all, now);
            now += Duration::from_millis(4);
            turns.end(u64::from(turn) << 20, 256 * KIB, &all, now);
        }
        assert_eq!((turns.count(), all.get()), (TURNS, u16::from(TURNS) + 1));
    }
}
