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
//! A send ring that has to grow is full, so what stands there stays, below the position of the exchange, until the peer
//! has acknowledged it. The shim needs to know nothing of that: what it may write is still the size less what is
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
/// What is copied at most: some ten microseconds of the engine's time.
const MAX_COPY: u64 = 256 << 10;
/// A growth is no reason to refuse connections: so many times as much must be left.
const LEAVES: u64 = 4;
/// The least that a program can have.
const LEAST: u32 = 4 << 10;

/// So many turns in a row, each soon after the one before it, and the ring is what a turn is worth.
const TURNS: u8 = 4;
/// Soon, in [`Turns`]' ticks, where the ring was full and empty: 8.4 ms.
const SOON: u16 = 32;
/// And where it was more and less than half full: it holds what passes in a millisecond.
const SOON_HALF: u16 = 2;
/// What the rings that take turns may hold together, so that a processor's cache does: beyond that copies are slower by
/// more than the turns cost (8 connections of 4 MiB each sent 23 Gbit/s here, of 512 KiB 37).
const CACHED: u64 = 4 << 20;

/// Whether program and network take turns at a ring: one fills it, the other empties it. Where both are on one core, or
/// wake each other, a turn costs some tens of microseconds however much it moves; so a ring that is full and empty in
/// quick succession is too small, however short the path. A program that is slower than the network never empties its
/// receive ring, one that is faster never sees its send ring empty: there a larger ring would only hold more.
///
/// But where they run in turn, one may find the other always in the midst of its work, and a full ring half full and full again
/// (receiving on one core: 256 KiB to the end, at half the throughput of 4 MiB). So that counts, too, while it is so
/// quick that what runs on this machine is the limit, whoever is the slower one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turns {
    /// The first half of one is done.
    half: Half,
    /// In a row.
    count: u8,
    /// When the last one was over, in ticks; a wrong guess when they wrap, after 17 s, does no harm.
    at: u16,
    /// How many all rings of the engine had had by then.
    all: u16,
}

/// How far the first half of a turn has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Half {
    #[default]
    Not,
    /// The ring has crossed its middle.
    Middle,
    /// It is full or empty.
    Whole,
}

impl Half {
    /// Of an emptying.
    #[inline]
    fn of(held: u64) -> Half {
        if held == 0 { Half::Whole } else { Half::Middle }
    }
}

impl Turns {
    /// 0.26 ms.
    fn tick(now: Time) -> u16 {
        (now.as_nanos() >> 18) as u16
    }

    /// The first half of a turn: a receive ring is full, or a send ring empty.
    #[inline]
    fn begin(&mut self, half: Half) {
        self.half = self.half.max(half);
    }

    /// The second half, at a ring of `size` bytes; `all` counts the turns of the engine's rings.
    #[inline]
    fn end(&mut self, half: Half, size: u32, all: &Cell<u16>, now: Time) {
        let half = std::mem::take(&mut self.half).min(half);
        if half == Half::Not {
            return;
        }
        all.set(all.get().wrapping_add(1));
        // Those who had one since share the processors and their cache.
        let (tick, others) = (Turns::tick(now), all.get().wrapping_sub(self.all));
        let soon = if half == Half::Whole { SOON } else { SOON_HALF.saturating_mul(others) };
        let is_soon = tick.wrapping_sub(self.at) <= soon;
        let fits = u64::from(size) * 2 * u64::from(others) <= CACHED;
        (self.at, self.all) = (tick, all.get());
        self.count = if is_soon && fits { self.count.saturating_add(1) } else { 0 };
    }

    /// There have been enough of them: the ring should have twice its size. Says so once for each.
    #[inline]
    fn are_enough(&mut self) -> bool {
        let are = self.count >= TURNS;
        self.count = self.count.min(TURNS - 1);
        are
    }
}

/// A send ring of this size that holds so much.
fn is_filled(held: u64, size: u32) -> bool {
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
        let mut need = need.max(self.receive_mark());
        let size = self.receive.get().size;
        let held = self.received.get().saturating_sub(self.consumed.get());
        let presses = held > u64::from(size / 2);
        let mut turns = self.receive_turns.get();
        if presses {
            turns.begin(Half::Whole);
        } else {
            turns.end(Half::of(held), size, &self.program.turns, now);
        }
        if turns.are_enough() {
            need = need.max(size.saturating_mul(2));
        }
        self.receive_turns.set(turns);
        if self.sizes.get().receive.wanted(size, need, presses).is_none() {
            return false;
        }
        self.asked_sizes().receive.wanted(size, need, presses).is_some_and(|to| self.grow_receive(to))
    }

    /// The same of the send ring.
    #[inline]
    pub(super) fn fit_send(&self, mut need: u32, now: Time) -> bool {
        let size = self.send.get().size;
        let filled = is_filled(self.written.get().saturating_sub(self.freed.get()), size);
        let mut turns = self.send_turns.get();
        if filled {
            turns.end(Half::Whole, size, &self.program.turns, now);
        }
        let takes_turns = turns.are_enough();
        self.send_turns.set(turns);
        // However long the path, a ring that the program does not fill is large enough.
        if !filled && !takes_turns {
            return false;
        }
        if takes_turns {
            need = need.max(size.saturating_mul(2));
        }
        if self.sizes.get().send.wanted(size, need, true).is_none() {
            return false;
        }
        self.asked_sizes().send.wanted(size, need, true).is_some_and(|to| self.grow_send(to))
    }

    /// The send ring will be free up to `position`.
    #[inline]
    pub(super) fn on_acknowledged(&self, position: u64, now: Time) {
        let size = self.send.get().size;
        let held = self.written.get().saturating_sub(position);
        if held > u64::from(size / 2) {
            return;
        }
        let mut turns = self.send_turns.get();
        // The program may have filled it since the engine looked.
        let written = self.shared().send_tail.load(Ordering::Acquire);
        if is_filled(written.saturating_sub(self.freed.get()), size) {
            turns.end(Half::Whole, size, &self.program.turns, now);
        }
        turns.begin(Half::of(held));
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

    /// Rings of `size` that take turns one after the other, `pause` between two; what they become.
    fn become_of(sizes: &[u32], half: Half, pause: Duration) -> Vec<u32> {
        let (mut sizes, all) = (sizes.to_vec(), Cell::new(u16::MAX - 7));
        let mut turns = vec![Turns::default(); sizes.len()];
        let mut now = Time::from_millis(1_000);
        for _ in 0..40 {
            for (turns, size) in turns.iter_mut().zip(&mut sizes) {
                turns.begin(Half::Whole);
                turns.end(half, *size, &all, now);
                if turns.are_enough() {
                    *size *= 2;
                }
                turns.end(Half::Whole, *size, &all, now);
                assert!(!turns.are_enough(), "half a turn is none");
                now += pause;
            }
        }
        sizes
    }

    #[test]
    fn who_takes_turns_grows_as_far_as_the_cache_goes() {
        let soon = Duration::from_micros(100);
        for half in [Half::Whole, Half::Middle] {
            assert_eq!(become_of(&[256 << 10], half, soon), [4 << 20]);
            assert_eq!(become_of(&[256 << 10; 8], half, soon), [512 << 10; 8]);
            assert_eq!(become_of(&[64 << 10; 64], half, soon), [64 << 10; 64]);
        }
    }

    #[test]
    fn turns_now_and_then_are_enough() {
        let becomes = |half, millis| become_of(&[256 << 10], half, Duration::from_millis(millis))[0];
        assert_eq!(becomes(Half::Whole, 20), 256 << 10);
        assert_eq!(becomes(Half::Whole, 4), 4 << 20);
        assert_eq!(becomes(Half::Middle, 4), 256 << 10, "a slow program");
    }
}
