//! What an entry asks of the schedule: which policy serves it, and its place there.

use std::time::Duration;

use scoutline_base::Time;

use crate::levels;

/// What an entry asks of the schedule. A [`Schedule`](crate::Schedule) serves it under the policy of this name; a
/// policy on its own takes what is meant for another one as its own default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameters {
    /// Fixed priority, or idle.
    Level(Level),
    /// Earliest deadline first.
    Deadline(Deadline),
    /// A weighted fair share.
    Weight(Weight),
    /// A part of the weighted fair share of a class.
    Share(Share),
    /// A fair share from which, or for which, time can be stolen.
    Bert(Claim),
}

// Handed over with every packet.
const _: () = assert!(size_of::<Parameters>() <= 40);

impl Default for Parameters {
    fn default() -> Self {
        Parameters::Level(Level::default())
    }
}

impl From<Level> for Parameters {
    fn from(level: Level) -> Self {
        Parameters::Level(level)
    }
}

impl From<Deadline> for Parameters {
    fn from(deadline: Deadline) -> Self {
        Parameters::Deadline(deadline)
    }
}

impl From<Weight> for Parameters {
    fn from(weight: Weight) -> Self {
        Parameters::Weight(weight)
    }
}

impl From<Share> for Parameters {
    fn from(share: Share) -> Self {
        Parameters::Share(share)
    }
}

impl From<Claim> for Parameters {
    fn from(claim: Claim) -> Self {
        Parameters::Bert(claim)
    }
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

/// By when the work at hand should be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// So long after the entry woke up. It stays while the entry goes on without having slept; when it passes and
    /// there is still work, the next one follows after the same time again.
    After(Duration),
    /// At this moment: whoever enqueues has looked at its queues (a player's output queue drains at a known rate).
    At(Time),
}

impl Deadline {
    /// The moment, when `previous` is that of work which the entry has been at without a pause.
    pub(crate) fn moment(self, previous: Option<Time>, now: Time) -> Time {
        match (self, previous) {
            (Deadline::At(moment), _) => moment,
            (Deadline::After(_), Some(previous)) if previous > now => previous,
            (Deadline::After(after), Some(previous)) if previous + after > now => previous + after,
            (Deadline::After(after), _) => now + after,
        }
    }
}

/// A weight: how much an entry gets in proportion to the others, 1 to [`Weight::HIGHEST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u16);

impl Weight {
    /// The greatest weight.
    pub const HIGHEST: u16 = 10_000;

    /// This weight; what is out of range is cut to it.
    pub const fn new(weight: u64) -> Weight {
        if weight == 0 {
            Weight(1)
        } else if weight > Weight::HIGHEST as u64 {
            Weight(Weight::HIGHEST)
        } else {
            Weight(weight as u16)
        }
    }

    /// The number.
    pub const fn value(self) -> u32 {
        self.0 as u32
    }
}

impl Default for Weight {
    fn default() -> Self {
        Weight(100)
    }
}

/// A part of what a class of entries gets: the class shares with others in proportion to its weight, and its entries
/// with work share that in proportion to theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Names the class; small numbers, since there is a little memory for each up to the greatest.
    pub class: u16,
    /// Its weight from now on.
    pub class_weight: Weight,
    /// That of the entry among those of the class.
    pub weight: Weight,
}

/// What an entry asks of [`bert`](crate::bert).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Its rate, in 1/10,000 of the policy's time ([`Weight::HIGHEST`] is all of it). Reserved for an important
    /// entry while it has work; an unimportant one gets this in proportion of what is left.
    pub rate: Weight,
    /// Important entries are never stolen from.
    pub important: bool,
    /// Present for real-time work. Only important entries may steal for it.
    pub job: Option<Job>,
}

/// Work with a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// By when it should be done.
    pub deadline: Deadline,
    /// How much time all that is due by then takes, as far as one can tell: what has been done of it counts too.
    pub work: Duration,
}
