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
//! EAGAIN, which programs take for a connection under way.
//!
//! | a path that lives changes its class | |
//! |---|---|
//! | because its program asked (`setsockopt`) | admitted there first, or refused: ENOBUFS, and all stays as it was |
//! | because of what was asked on it | admitted there first; or it goes back to the class in which it began, without a promise if there is none left, and is tried again with the next request |
//! | because the classes were changed | it stays, even beyond a limit; then nothing more is admitted |

use std::cell::Cell;
use std::rc::Rc;

use scoutline_base::Time;
use scoutline_path::DropReason;
use scoutline_proto::bindings::ClassIndex;
use scoutline_sched::{Level, Schedule, Weight};

use crate::policy::Class;
use crate::scheduling::{Asks, JobAsks, Stands};

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
    limits: Cell<[Millionths; POLICIES.len()]>,
    given: [Rc<Cell<Millionths>>; POLICIES.len()],
}

/// What the books have for a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Booked {
    /// Its class.
    pub(crate) class: ClassIndex,
    /// What it asks for, and is promised.
    pub(crate) asks: Asks,
}

/// Given back when dropped.
pub(crate) struct Promise {
    of: [Rc<Cell<Millionths>>; 2],
    amount: Millionths,
}

impl Promises {
    /// What this schedule guarantees.
    pub(crate) fn of(schedule: &Schedule) -> Promises {
        Promises { limits: Cell::new(Promises::limits_of(schedule)), given: Default::default() }
    }

    /// It guarantees something else now. What was given stays.
    pub(crate) fn follow(&self, schedule: &Schedule) {
        self.limits.set(Promises::limits_of(schedule));
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

    /// Whether a path of this class that asks for this can be carried, in the place of what it is promised already.
    pub(crate) fn admit(&self, class: &Class, asks: Asks, has: Option<Booked>) -> Result<(), DropReason> {
        let amount = asks.promised();
        let of_policy = has.filter(|has| has.asks.index() == asks.index());
        let of_class = has.filter(|has| has.class == class.number);
        let promised = |has: Option<Booked>| has.map_or(0, |has| has.asks.promised());
        // Who is beyond a limit already may stay.
        let no_more = of_policy.is_some_and(|_| of_class.is_some()) && amount <= promised(of_policy);
        let fits = |given: Millionths, returned, limit| given.saturating_sub(returned) + amount <= limit;
        let carried = amount == 0
            || no_more
            || fits(self.given(asks), promised(of_policy), self.limit(asks))
                && class
                    .settings
                    .cpu_limit
                    .is_none_or(|limit| fits(class.promised.get(), promised(of_class), limit));
        if carried { Ok(()) } else { Err(DropReason::CpuLimit) }
    }

    /// Where a path of this class stands which is there whatever can be promised: as it asks, or without a promise.
    pub(crate) fn carried(&self, class: &Class, stands: Stands, has: Option<Booked>) -> Stands {
        match self.admit(class, stands.asks, has) {
            Ok(()) => stands,
            Err(_) => Level::default().into(),
        }
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
        self.limits.get()[asks.index()]
    }

    /// What it has given.
    pub(crate) fn given(&self, asks: Asks) -> Millionths {
        self.given[asks.index()].get()
    }

    /// For each policy: what it has to give, and what it has given.
    pub(crate) fn all(&self) -> [(Millionths, Millionths); POLICIES.len()] {
        std::array::from_fn(|policy| (self.limits.get()[policy], self.given[policy].get()))
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.of.iter().for_each(|sum| sum.set(sum.get() - self.amount));
    }
}
