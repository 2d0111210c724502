//! Policies over virtual time: which path runs next (Scout §3.3, SILK §3.2, DESIGN.md §5). Pure.
//!
//! An engine drives one [`Policy`]:
//!
//! ```text
//! packet or doorbell ─► enqueue(path) ─┐
//!                                      ▼
//!      run the entry ◄── decision ── dequeue(now)
//!           │
//!           ├─► charge(entry, time spent)
//!           └─► enqueue(entry) again, at the tail, if it still has work
//! ```
//!
//! Paths run without preemption, so a decision carries a quantum that the engine keeps to. *Linux* is an entry like
//! a path: when it is chosen, the engine gives up the CPU (SILK's Linux thread). [`FixedPriority`] is the policy so
//! far; [`conformance`] holds what every policy has to keep.

pub mod conformance;
mod levels;
mod priority;

use std::time::Duration;

use scoutline_base::{PathId, Time};

pub use priority::{Configuration, FixedPriority};

/// Something that can be chosen to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// A path with work.
    Path(PathId),
    /// Everything else on this CPU: the engine gives it up.
    Linux,
}

/// How important an entry is; greater is more important.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Below every priority: served when nothing else is ready.
    Idle,
    /// A fixed priority, 0 to [`Level::HIGHEST_PRIORITY`].
    Priority(u8),
}

impl Level {
    /// The greatest priority.
    pub const HIGHEST_PRIORITY: u8 = 63;

    /// The level of this priority; what is above the highest is cut to it.
    pub const fn priority(priority: u64) -> Level {
        if priority > Level::HIGHEST_PRIORITY as u64 {
            Level::Priority(Level::HIGHEST_PRIORITY)
        } else {
            Level::Priority(priority as u8)
        }
    }

    /// All levels, the least important first.
    pub fn all() -> impl Iterator<Item = Level> {
        (0..levels::COUNT).map(levels::level)
    }
}

impl Default for Level {
    fn default() -> Self {
        Level::Priority(0)
    }
}

/// What an entry asks of the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Its level.
    pub level: Level,
}

/// How much an entry may do before it is asked to stop: whichever is used up first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantum {
    /// Packets.
    pub packets: u32,
    /// Time.
    pub time: Duration,
}

/// Who runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The entry. It is no longer ready: the engine enqueues it again if it still has work afterwards.
    pub entry: Entry,
    /// The level at which it was chosen.
    pub level: Level,
    /// How much it may do.
    pub quantum: Quantum,
}

/// All time that was charged, by kind of entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charged {
    /// To paths.
    pub paths: Duration,
    /// To Linux.
    pub linux: Duration,
}

/// Decides which ready entry runs next. Every call takes constant time or nearly so, and none allocates once as
/// many paths have been seen as ever live at a time.
pub trait Policy {
    /// Makes an entry ready. One that is ready already keeps its place, unless its level has changed: then it goes
    /// to the tail of the new one.
    fn enqueue(&mut self, entry: Entry, parameters: Parameters, now: Time);

    /// Takes out the entry that runs next.
    fn dequeue(&mut self, now: Time) -> Option<Decision>;

    /// Says how much time was spent on an entry, whether it was chosen for it or not (demultiplexing).
    fn charge(&mut self, entry: Entry, spent: Duration, now: Time);

    /// Makes an entry not ready (its path has been destroyed, say).
    fn remove(&mut self, entry: Entry);

    /// Whether an entry is ready.
    fn is_ready(&self, entry: Entry) -> bool;

    /// The level of the most important ready entry.
    fn highest_ready(&self) -> Option<Level>;

    /// All time that was charged so far.
    fn charged(&self) -> Charged;

    /// True when nothing is ready.
    fn is_idle(&self) -> bool {
        self.highest_ready().is_none()
    }
}
