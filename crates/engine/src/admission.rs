//! Admission: a path that the CPU or the memory cannot carry is refused before it costs anything (Scout §4.4,
//! DESIGN.md §2), counted in its class under one reason, and never at the cost of those that are there.
//!
//! | what | who promises how much of it | limits | reason |
//! |---|---|---|---|
//! | CPU | a path of EDF with a budget: budget / deadline; an important one of BERT: its rate | the guaranteed share of the policy; `cpu_limit_percent` of the class | `cpu-limit` |
//! | memory | a socket: its rings | `memory` of the class; that of its policy in `[scheduler]` | `memory-limit` |
//! | connections | a TCP connection | `connections` of the class | `connection-limit` |
//!
//! The sum of budget / deadline within the share is the utilisation test of EDF (Liu and Layland 1973, theorem 7, for
//! deadlines equal to periods). Other paths promise nothing: theirs is best effort. Listen paths promise nothing
//! either; they live on what the promises leave.
//!
//! A SYN that is refused is dropped, as Linux drops it when the accept queue is full: the peer asks again. `connect`
//! and the first use of a datagram socket are ENOBUFS, as Linux says when it has no room for what a socket needs; not
//! EAGAIN, which programs take for a connection under way. What a change of classes brings to more than a limit
//! stays; then nothing more is admitted.

use std::cell::Cell;
use std::rc::Rc;

use scoutline_base::Time;
use scoutline_path::DropReason;
use scoutline_sched::{Level, Schedule, Weight};

use crate::policy::Class;
use crate::scheduling::{Asks, JobAsks};

/// Names of the policies in the order of [`Asks::index`].
pub(crate) const POLICIES: [&str; 4] = ["priority", "edf", "wfq", "bert"];

/// Millionths of the CPU.
pub(crate) type Millionths = u64;

impl Asks {
    /// Which policy.
    pub(crate) fn index(self) -> usize {
        match self {
            Asks::Level => 0,
            Asks::Deadline { .. } => 1,
            Asks::Weight(_) => 2,
            Asks::Rate { .. } => 3,
        }
    }

    /// What a path that asks for this is promised.
    pub(crate) fn promised(self) -> Millionths {
        match self {
            Asks::Deadline { within_us, budget_us } => {
                (u64::from(budget_us) * 1_000_000).div_ceil(u64::from(within_us.max(1)))
            }
            Asks::Rate { rate, important: true, .. } => u64::from(rate.value()) * 100,
            Asks::Level | Asks::Weight(_) | Asks::Rate { .. } => 0,
        }
    }
}

/// What of the CPU each policy has to give, and has given.
pub(crate) struct Promises {
    limits: [Millionths; POLICIES.len()],
    given: [Rc<Cell<Millionths>>; POLICIES.len()],
}

/// Given back when dropped.
pub(crate) struct Promise {
    of: [Rc<Cell<Millionths>>; 2],
    amount: Millionths,
}

impl Promises {
    /// What this schedule guarantees.
    pub(crate) fn of(schedule: &Schedule) -> Promises {
        Promises { limits: Promises::limits_of(schedule), given: Default::default() }
    }

    /// It guarantees something else now. What was given stays.
    pub(crate) fn follow(&mut self, schedule: &Schedule) {
        self.limits = Promises::limits_of(schedule);
    }

    fn limits_of(schedule: &Schedule) -> [Millionths; POLICIES.len()] {
        let share = |parameters| u64::from(schedule.guarantee(parameters).value()) * 100;
        let job = JobAsks { within_us: 1, budget_us: 1 };
        let asks = [
            Asks::Level,
            Asks::Deadline { within_us: 1, budget_us: 1 },
            Asks::Weight(Weight::default()),
            Asks::Rate { rate: Weight::default(), important: true, job: Some(job) },
        ];
        asks.map(|asks| {
            let parameters =
                asks.parameters(Level::default(), Time::default(), Weight::new(u64::from(Weight::HIGHEST)));
            let whole = u64::from(Weight::HIGHEST);
            // The unimportant of BERT keep a little.
            let spared =
                if asks.index() == 3 { schedule.bert().configuration().spared.value().into() } else { 0 };
            share(parameters) * (whole - spared) / whole
        })
    }

    /// Whether a path of this class that asks for this can be carried.
    pub(crate) fn admit(&self, class: &Class, asks: Asks) -> Result<(), DropReason> {
        let amount = asks.promised();
        let fits = amount == 0
            || self.given(asks) + amount <= self.limit(asks)
                && class.settings.cpu_limit.is_none_or(|limit| class.promised.get() + amount <= limit);
        if fits { Ok(()) } else { Err(DropReason::CpuLimit) }
    }

    /// Takes what it promises out of what there is, admitted or not.
    pub(crate) fn give(&self, class: &Class, asks: Asks) -> Option<Promise> {
        let amount = asks.promised();
        (amount > 0).then(|| {
            let of = [Rc::clone(&self.given[asks.index()]), Rc::clone(&class.promised)];
            for sum in &of {
                sum.set(sum.get() + amount);
            }
            Promise { of, amount }
        })
    }

    /// What the policy has to give.
    pub(crate) fn limit(&self, asks: Asks) -> Millionths {
        self.limits[asks.index()]
    }

    /// What it has given.
    pub(crate) fn given(&self, asks: Asks) -> Millionths {
        self.given[asks.index()].get()
    }

    /// For each policy: what it has to give, and what it has given.
    pub(crate) fn all(&self) -> [(Millionths, Millionths); POLICIES.len()] {
        std::array::from_fn(|policy| (self.limits[policy], self.given[policy].get()))
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.of.iter().for_each(|sum| sum.set(sum.get() - self.amount));
    }
}
