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
//! a path: when it is chosen, the engine gives up the CPU (SILK's Linux thread).
//!
//! | policy | serves | asked for by |
//! |---|---|---|
//! | [`FixedPriority`] | the highest level, in turn; idle below all | [`Level`] |
//! | [`Edf`] | the earliest deadline | [`Deadline`] |
//! | [`Wfq`] | in proportion to weights, of entries or of classes | [`Weight`], [`Share`] |
//! | [`Bert`] | in proportion to rates; important real-time work steals from the unimportant | [`Claim`] |
//! | [`Schedule`] | these side by side, each with a guaranteed share: what an engine drives | any of them |
//!
//! What a *device* sends next is decided by [`transmit`].
//!
//! [`conformance`] holds what every policy has to keep.

pub mod bert;
pub mod conformance;
pub mod edf;
mod fair;
mod fluid;
mod heap;
mod levels;
mod parameters;
pub mod priority;
pub mod schedule;
pub mod simulation;
mod slots;
pub mod transmit;
pub mod wfq;

use std::time::Duration;

use scoutline_base::{PathId, Time};

pub use bert::Bert;
pub use edf::Edf;
pub use parameters::{Claim, Deadline, Job, Level, Parameters, Share, Weight};
pub use priority::FixedPriority;
pub use schedule::Schedule;
pub use wfq::Wfq;

/// Something that can be chosen to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// A path with work.
    Path(PathId),
    /// Everything else on this CPU: the engine gives it up.
    Linux,
}

/// How much an entry may do before it is asked to stop: whichever is used up first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantum {
    /// Packets.
    pub packets: u32,
    /// Time.
    pub time: Duration,
}

impl Quantum {
    /// For a path: a burst, and far below what a person or a timer of TCP notices.
    pub const PATH: Quantum = Quantum { packets: 64, time: Duration::from_micros(100) };
    /// For Linux: how long the engine stays away at most. Above the 0.2 ms in one piece that keeps the kernel's fair
    /// server from taking 50 ms at once from a real-time engine (MEASURED.md).
    pub const LINUX: Quantum = Quantum { packets: u32::MAX, time: Duration::from_millis(2) };
}

/// Who runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The entry. It is no longer ready: the engine enqueues it again if it still has work afterwards.
    pub entry: Entry,
    /// The level at which it was chosen; the default in policies without levels.
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

impl Charged {
    #[inline]
    fn add(&mut self, entry: Entry, spent: Duration) {
        match entry {
            Entry::Path(_) => self.paths += spent,
            Entry::Linux => self.linux += spent,
        }
    }
}

/// Decides which ready entry runs next. Every call takes constant or logarithmic time, and none allocates once as
/// many paths have been seen as ever live at a time.
///
/// The engine may enqueue an entry again before or after it charges the run, and may charge time to entries that were
/// not chosen (demultiplexing).
pub trait Policy {
    /// Makes an entry ready. One that is ready already keeps its place, unless it asks for something else than
    /// before: then it gets the place of that.
    fn enqueue(&mut self, entry: Entry, parameters: Parameters, now: Time);

    /// Takes out the entry that runs next. Whoever was chosen before and has not been enqueued since sleeps.
    fn dequeue(&mut self, now: Time) -> Option<Decision>;

    /// Says how much time was spent on an entry, whether it was chosen for it or not (demultiplexing).
    fn charge(&mut self, entry: Entry, spent: Duration, now: Time);

    /// Makes an entry not ready (its path has been destroyed, say).
    fn remove(&mut self, entry: Entry);

    /// Whether an entry is ready.
    fn is_ready(&self, entry: Entry) -> bool;

    /// The level of the most important ready entry; the default for entries of policies without levels.
    fn highest_ready(&self) -> Option<Level>;

    /// Whether what is ready should have the CPU before `running`, the decision made last, has used up its quantum.
    /// For entries that can be interrupted: Linux. Each policy says when.
    fn preempts(&self, running: &Decision, now: Time) -> bool;

    /// All time that was charged so far.
    fn charged(&self) -> Charged;

    /// True when nothing is ready.
    fn is_idle(&self) -> bool {
        self.highest_ready().is_none()
    }
}
