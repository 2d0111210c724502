//! What the paths of a class ask of the schedule, and what that means wherever else the engine asks how important a
//! path is.
//!
//! The schedule's policies (`scoutline_sched`) decide which path runs next. Other rules compare *levels*: who may call
//! the engine back from Linux, whose thread is raised, whose events a program sees first. Priorities are levels; what
//! paths of the other policies count as there is decided in [`Asks::counts_as`], and nowhere else:
//!
//! | | `priority` p | idle | `edf` | `wfq` | `bert` with a job, important | other `bert` |
//! |---|---|---|---|---|---|---|
//! | order among ready paths | level p | last | deadline | weight | rate, steals | rate |
//! | counts as level | p | idle | Linux's + 1 | 0 | Linux's + 1 | 0 |
//! | urgent: packets and program ring while Linux has the core; sent at once | p above Linux's | no | yes | no | yes | no |
//! | interrupts Linux | p above Linux's | no | while its share lasts | when owed a quantum | when owed a quantum | when owed a quantum |
//! | its threads | FIFO base + p, from 1 on | own | FIFO, as level | own | FIFO, as level | own |
//! | events of one program | by level | last | by level | as 0 | by level | as 0 |
//! | is sorted (demultiplexing) at whose cost | its account | its account | and its share | and its share | and its share | and its share |
//!
//! So work with a deadline is urgent like a priority just above Linux, for it can be late, and shares of best effort
//! are like priority 0, for they are made over many turns. A path that wakes computes its absolute deadline from what
//! waits for it: see [`Asks::parameters`].
//!
//! Levels cost nothing beside the levels (`scoutline_sched::schedule`): the policies' shares count from the first path
//! on that asks for something else.

use std::time::Duration;

use scoutline_base::Time;
use scoutline_sched::{Claim, Deadline, Job, Level, Parameters, Weight};

/// What a path asks of the schedule. Small: every path has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asks {
    /// The level that it counts as.
    #[default]
    Level,
    /// That its work is done in time (EDF).
    Deadline {
        /// Microseconds after the work came.
        within_us: u32,
        /// Engine time that it takes at most in each such time, for admission; 0: not said.
        budget_us: u32,
    },
    /// A share of WFQ. Of a class: its weight among the classes of WFQ; of a path: among those of its class, or, if
    /// that is none of WFQ, among the classes.
    Weight(Weight),
    /// A share of its own (BERT).
    Rate {
        /// In 1/10,000 of the engine's CPU.
        rate: Weight,
        /// It is never stolen from.
        important: bool,
        /// Its work comes in jobs, each with a deadline.
        job: Option<JobAsks>,
    },
}

/// Real-time work, as far as one can tell beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobAsks {
    /// Microseconds in which a job is to be done.
    pub within_us: u32,
    /// Microseconds of engine time that it takes.
    pub budget_us: u32,
}

// There may be a million paths.
const _: () = assert!(size_of::<Asks>() <= 16);

impl Asks {
    /// The level that it stands for where only levels are known, when Linux stands at `linux`; `level` is what it
    /// asks for as a level.
    pub fn counts_as(self, level: Level, linux: Level) -> Level {
        match self {
            Asks::Level => level,
            Asks::Deadline { .. } | Asks::Rate { important: true, job: Some(_), .. } => above(linux),
            Asks::Weight(_) | Asks::Rate { .. } => Level::default(),
        }
    }

    /// What to tell the schedule. `since` is when the oldest of what waits came, and `capacity` what BERT can count on
    /// in 1/10,000 of the CPU.
    #[inline]
    pub(crate) fn parameters(self, level: Level, since: Time, capacity: Weight) -> Parameters {
        match self {
            Asks::Level => level.into(),
            Asks::Deadline { within_us, .. } => Deadline::At(since + micros(within_us)).into(),
            Asks::Weight(weight) => weight.into(),
            Asks::Rate { rate, important, job } => {
                let part = u64::from(rate.value()) * u64::from(Weight::HIGHEST) / u64::from(capacity.value());
                let job = job.map(|job| Job {
                    // One job follows the other while there is work without a pause.
                    deadline: Deadline::After(micros(job.within_us)),
                    work: micros(job.budget_us),
                });
                Claim { rate: Weight::new(part), important, job }.into()
            }
        }
    }

    /// In how many microseconds its work is to be done, if that is said.
    pub(crate) fn deadline_us(self) -> Option<u32> {
        match self {
            Asks::Deadline { within_us, .. } => Some(within_us),
            Asks::Rate { job, .. } => job.map(|job| job.within_us),
            Asks::Level | Asks::Weight(_) => None,
        }
    }

    /// Its weight in WFQ.
    pub(crate) fn weight(self) -> Option<Weight> {
        match self {
            Asks::Weight(weight) => Some(weight),
            Asks::Level | Asks::Deadline { .. } | Asks::Rate { .. } => None,
        }
    }

    /// The same with this deadline; what has none is served by EDF.
    pub(crate) fn within(self, within_us: u32) -> Asks {
        match self {
            Asks::Rate { rate, important, job: Some(job) } => {
                Asks::Rate { rate, important, job: Some(JobAsks { within_us, ..job }) }
            }
            Asks::Deadline { budget_us, .. } => Asks::Deadline { within_us, budget_us },
            Asks::Level | Asks::Weight(_) | Asks::Rate { job: None, .. } => {
                Asks::Deadline { within_us, budget_us: 0 }
            }
        }
    }

    /// The name of its policy, as in the configuration.
    pub(crate) fn policy(self, level: Level) -> &'static str {
        match self {
            Asks::Level if level == Level::Idle => "idle",
            Asks::Level => "priority",
            Asks::Deadline { .. } => "edf",
            Asks::Weight(_) => "wfq",
            Asks::Rate { .. } => "bert",
        }
    }
}

/// Where a path stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stands {
    /// What it counts as.
    pub level: Level,
    /// What it asks of the schedule.
    pub asks: Asks,
}

impl Stands {
    /// What asks for this, when Linux stands at `linux`; `level` counts only for what asks for a level.
    pub fn new(asks: Asks, level: Level, linux: Level) -> Stands {
        Stands { level: asks.counts_as(level, linux), asks }
    }
}

impl From<Level> for Stands {
    fn from(level: Level) -> Stands {
        Stands { level, asks: Asks::Level }
    }
}

fn above(level: Level) -> Level {
    match level {
        Level::Idle => Level::Priority(1),
        Level::Priority(priority) => Level::priority(u64::from(priority) + 1),
    }
}

fn micros(micros: u32) -> Duration {
    Duration::from_micros(micros.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINUX: Level = Level::Priority(4);
    const ALL: Weight = Weight::new(10_000);

    fn rate(important: bool, job: Option<JobAsks>) -> Asks {
        Asks::Rate { rate: Weight::new(500), important, job }
    }

    #[test]
    fn work_with_a_deadline_counts_as_urgent_and_shares_as_ordinary() {
        let job = Some(JobAsks { within_us: 10_000, budget_us: 500 });
        let deadline = Asks::Deadline { within_us: 1_000, budget_us: 0 };
        for (asks, expected) in [
            (Asks::Level, Level::Priority(9)),
            (deadline, Level::Priority(5)),
            (rate(true, job), Level::Priority(5)),
            (rate(false, job), Level::Priority(0)),
            (rate(true, None), Level::Priority(0)),
            (Asks::Weight(Weight::new(7)), Level::Priority(0)),
        ] {
            assert_eq!(Stands::new(asks, Level::Priority(9), LINUX).level, expected, "{asks:?}");
        }
        let highest = Level::Priority(Level::HIGHEST_PRIORITY);
        assert_eq!(deadline.counts_as(Level::Idle, highest), highest);
    }

    #[test]
    fn deadlines_count_from_what_waits() {
        let deadline = Asks::Deadline { within_us: 1_500, budget_us: 0 };
        let asked = deadline.parameters(Level::Idle, Time::from_millis(7), ALL);
        assert_eq!(asked, Deadline::At(Time::from_micros(8_500)).into());
    }

    #[test]
    fn rates_are_of_the_cpu_and_claims_of_the_policy() {
        let Parameters::Bert(claim) =
            rate(true, None).parameters(Level::Idle, Time::ZERO, Weight::new(2_000))
        else {
            panic!("another policy");
        };
        assert_eq!(claim.rate.value(), 2_500, "5 % of the CPU are a quarter of a fifth");
    }
}
