//! Who sleeps, and who has to be woken: the two halves of each promise that no wake-up is lost, side by side.
//!
//! Both go the same way (Dekker's): each side stores its own word, then a fence, then looks at the other's. So at least
//! one of the two sees the other. `tests/loom.rs` tries every order.
//!
//! ```text
//!  program → engine   [`EngineBell`]                      engine → program   [`SleeperBell`]
//!  mark the slot      │ state := SLEEPING                 cursor moves       │ sleepers += 1
//!  fence              │ fence                             fence              │ fence
//!  state is SLEEPING? │ any mark?                         sleepers > 0?      │ cursor moved?
//!  CAS to POLLING,    │ none: sleep                       signalled 0 → 1:   │ no: sleep on the pipe
//!  then ring          │                                   write to the pipe  │ woken: drain, signalled := 0
//! ```
//! The byte may follow the claim later: the engine writes it when it gives the core away on which alone the sleeper can run.
//! The words lie in shared memory: a program that writes nonsense there loses its own wake-ups, and can have the engine come
//! back early from Linux's turns, as it can by calls; nothing else.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// How a program wakes an engine that sleeps. The word is the engine's; programs may only change `sleeping` to `polling`,
/// and `away` to `sleeping`, and ring when they have.
#[derive(Clone, Copy)]
pub struct EngineBell<'a>(pub &'a AtomicU32);

impl EngineBell<'_> {
    /// The engine is in this state from now on. If that means sleeping, it looks once more at everything that programs
    /// mark before it does.
    #[inline]
    pub fn publish(self, state: u32) {
        self.0.store(state, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The engine's state, after a mark: who finds it asleep calls [`EngineBell::claim`].
    #[inline]
    pub fn look_after_mark(self) -> u32 {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }

    /// Whether the engine has said so, as far as is known here.
    #[inline]
    pub fn is(self, state: u32) -> bool {
        self.0.load(Ordering::Relaxed) == state
    }

    /// Of all that find the engine asleep one rings: true. Else it fell asleep, woke and has seen our mark since we
    /// looked, or another rings.
    #[inline]
    pub fn claim(self, sleeping: u32, polling: u32) -> bool {
        self.0.compare_exchange(sleeping, polling, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }
}

/// When an engine that is away takes its core back for a mark, by a clock that both sides have; zero: not in this turn. One
/// ring is enough for a turn, so whoever rings writes zero. It is a hint: the engine has a timer besides.
#[derive(Clone, Copy)]
pub struct Moment<'a>(pub &'a AtomicU64);

impl Moment<'_> {
    /// Before the engine says that it is away.
    #[inline]
    pub fn publish(self, leave_ns: u64) {
        self.0.store(leave_ns, Ordering::Relaxed);
    }

    /// When it is, in this turn.
    #[inline]
    pub fn look(self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&leave_ns| leave_ns != 0)
    }

    /// True for one of all that find this moment past, if its turn is not over.
    #[inline]
    pub fn claim(self, leave_ns: u64) -> bool {
        self.0.compare_exchange(leave_ns, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// How an engine wakes threads that sleep on a poll set: words of the set, and a pipe.
#[derive(Clone, Copy)]
pub struct SleeperBell<'a> {
    /// Threads that sleep, or are about to. Written by them.
    pub sleepers: &'a AtomicU32,
    /// 1 from the writing of a byte to its draining.
    pub signalled: &'a AtomicU32,
}

impl SleeperBell<'_> {
    /// After something happened, and a fence: whether anybody sleeps who may not see it.
    #[inline]
    pub fn has_sleepers(self) -> bool {
        self.sleepers.load(Ordering::SeqCst) != 0
    }

    /// True when a byte must be written to the pipe: none stands in it that nobody has drained.
    #[inline]
    pub fn claim(self) -> bool {
        self.signalled.swap(1, Ordering::SeqCst) == 0
    }

    /// A thread is about to sleep, and counts as `weight`. Before it does, and after each wake-up, it looks at what it
    /// waits for, behind a fence ([`SleeperBell::before_look`]).
    #[inline]
    pub fn enter(self, weight: u32) {
        self.sleepers.fetch_add(weight, Ordering::SeqCst);
    }

    /// See [`SleeperBell::enter`].
    #[inline]
    pub fn before_look(self) {
        fence(Ordering::SeqCst);
    }

    /// It has drained the pipe: what happens from now on is signalled again.
    #[inline]
    pub fn drained(self) {
        self.signalled.store(0, Ordering::SeqCst);
    }

    /// It sleeps no longer.
    #[inline]
    pub fn leave(self, weight: u32) {
        self.sleepers.fetch_sub(weight, Ordering::SeqCst);
    }
}
