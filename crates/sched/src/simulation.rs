//! A CPU in virtual time: tasks ask for work, a policy says who runs, and a fluid schedule of the same tasks says what
//! each would have got on a machine that serves all at once. For the tests of the policies and for
//! `scoutline bench sched`; no part of a running engine.
//!
//! A run takes its quantum or what the task has left, whichever is less, and cannot be interrupted, but for
//! Linux's: there the engine looks up every 100 µs and asks the policy whether something else should run.

mod fluid;

use std::collections::VecDeque;
use std::time::Duration;

use scoutline_base::{PathId, Random, Time};

use crate::{Claim, Deadline, Entry, Job, Level, Policy, Share, Weight};

use fluid::Ideal;

/// How often the engine looks up while Linux runs.
const LOOK: Duration = Duration::from_micros(100);

/// The work of who always has more: thirty years.
const FOREVER: Duration = Duration::from_secs(1_000_000_000);

/// One task.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// What it asks of the policy.
    pub asks: Asks,
    /// The work that it has.
    pub load: Load,
    /// Its place in the fluid schedule.
    pub ideal: Place,
    /// Up to how long a run takes beyond its quantum, at random.
    pub overrun: Duration,
    /// Whether it is Linux. Every other task is a path.
    pub linux: bool,
}

/// What a task asks of the policy, each time that it is enqueued.
#[derive(Clone, Copy, Debug)]
pub enum Asks {
    /// A level.
    Level(Level),
    /// The deadline of the job that it is at.
    Deadline,
    /// A weight.
    Weight(Weight),
    /// A part of a class's.
    Share(Share),
    /// A rate, as best effort.
    Rate {
        /// In 1/10,000.
        rate: Weight,
        /// Whether it is immune.
        important: bool,
    },
    /// A rate, with the deadline of the job that it is at and the work that the job is worth.
    RealTime {
        /// In 1/10,000.
        rate: Weight,
        /// Whether it may steal.
        important: bool,
    },
}

/// The work that a task has.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// More than it will ever get.
    Always,
    /// A job now and then.
    Periodic {
        /// Between two jobs.
        period: Duration,
        /// Of the first one.
        offset: Duration,
        /// What a job takes.
        work: Duration,
        /// Up to how much a job takes less or more than that, at random.
        jitter: Duration,
        /// By when it should be done, from its arrival on.
        deadline: Duration,
    },
}

/// A place in the fluid schedule: of the groups with work each gets in proportion to its share, those of a lower rank
/// only what no higher one wants; inside a group the members with work get in proportion to their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The higher goes first.
    pub rank: u8,
    /// Which group.
    pub group: u8,
    /// The group's share.
    pub share: u32,
    /// The member's weight.
    pub weight: u32,
}

impl Place {
    /// With this weight among all.
    pub fn weight(weight: u32) -> Place {
        Place { rank: 1, group: 0, share: 1, weight }
    }
}

/// What became of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The work that it asked for; what it got, if it always has more.
    pub asked: Duration,
    /// The CPU that it got.
    pub got: Duration,
    /// What it would have got in the fluid schedule.
    pub ideal: Duration,
    /// The most that it was behind the fluid schedule.
    pub behind: Duration,
    /// The most that it was ahead of it.
    pub ahead: Duration,
    /// Jobs done by their deadlines.
    pub met: u64,
    /// Jobs whose deadlines passed before they were done.
    pub missed: u64,
    /// The longest time that one had to wait while it was ready.
    pub longest_wait: Duration,
}

struct State {
    task: Task,
    entry: Entry,
    /// Deadline, what the job takes, and what is left of that.
    jobs: VecDeque<(Time, Duration, Duration)>,
    /// Arrival, deadline and work of jobs that have not been seen yet.
    coming: VecDeque<(Time, Time, Duration)>,
    next: Option<Time>,
    ready_since: Option<Time>,
    outcome: Outcome,
}

/// Tasks, a policy and a clock.
pub struct Simulation<'a, P> {
    policy: &'a mut P,
    states: Vec<State>,
    ideal: Ideal,
    random: Random,
    now: Time,
}

/// Runs the tasks under a policy for a time. Everything random follows from `seed`.
pub fn simulate(policy: &mut impl Policy, tasks: &[Task], time: Duration, seed: u64) -> Vec<Outcome> {
    let end = Time::ZERO + time;
    let mut simulation = Simulation::new(policy, tasks, seed);
    while simulation.now < end {
        simulation.step(end);
    }
    simulation.outcomes()
}

impl<'a, P: Policy> Simulation<'a, P> {
    /// Before anything happened.
    pub fn new(policy: &'a mut P, tasks: &[Task], seed: u64) -> Simulation<'a, P> {
        let state = |(index, task): (usize, &Task)| State {
            task: *task,
            entry: if task.linux {
                Entry::Linux
            } else {
                Entry::Path(PathId { index: index as u32, generation: 0 })
            },
            jobs: VecDeque::new(),
            coming: VecDeque::new(),
            next: Some(match task.load {
                Load::Always => Time::ZERO,
                Load::Periodic { offset, .. } => Time::ZERO + offset,
            }),
            ready_since: None,
            outcome: Outcome::default(),
        };
        Simulation {
            policy,
            states: tasks.iter().enumerate().map(state).collect(),
            ideal: Ideal::new(tasks.iter().map(|task| task.ideal)),
            random: Random::new(seed),
            now: Time::ZERO,
        }
    }

    /// The policy, as it stands.
    pub fn policy(&self) -> &P {
        self.policy
    }

    /// What time it is.
    pub fn now(&self) -> Time {
        self.now
    }

    /// What the tasks got so far.
    pub fn outcomes(self) -> Vec<Outcome> {
        let outcome = |(index, mut state): (usize, State)| {
            state.outcome.ideal = self.ideal.got(index);
            if matches!(state.task.load, Load::Always) {
                state.outcome.asked = state.outcome.got;
            }
            // What is not done and should be.
            state.outcome.missed += state.jobs.iter().filter(|(due, _, _)| *due < self.now).count() as u64;
            state.outcome
        };
        self.states.into_iter().enumerate().map(outcome).collect()
    }

    /// One run, or one wait for work.
    pub fn step(&mut self, end: Time) {
        self.arrive(None);
        let Some(decision) = self.policy.dequeue(self.now) else {
            let next = self.states.iter().filter_map(|state| state.next).min();
            self.go_to(next.map_or(end, |next| next.min(end)));
            return;
        };
        let chosen = match decision.entry {
            Entry::Path(path) => path.index as usize,
            Entry::Linux => self.states.iter().position(|state| state.task.linux).expect("Linux is a task"),
        };
        let start = self.now;
        let waited = self.states[chosen].ready_since.take().expect("it was ready");
        let longest = &mut self.states[chosen].outcome.longest_wait;
        *longest = (*longest).max(start.since(waited));
        let overrun = below(&mut self.random, self.states[chosen].task.overrun);
        let left = self.states[chosen].left();
        if decision.entry == Entry::Linux {
            let mut ran = Duration::ZERO;
            while ran < decision.quantum.time && ran < left {
                ran = (ran + LOOK).min(left).min(decision.quantum.time);
                self.go_to(start + ran);
                self.arrive(Some(chosen));
                if self.policy.preempts(&decision, self.now) {
                    break;
                }
            }
        } else {
            self.go_to(start + left.min(decision.quantum.time + overrun));
        }
        let spent = self.now.since(start);
        self.states[chosen].serve(start, spent);
        if !self.states[chosen].jobs.is_empty() {
            self.make_ready(chosen, start);
        }
        self.policy.charge(decision.entry, spent, self.now);
        self.observe();
    }

    fn go_to(&mut self, to: Time) {
        // The fluid schedule sees each job when it comes, not when the run during which it came is over.
        self.announce(to);
        self.ideal.go_to(to);
        self.now = to;
    }

    fn announce(&mut self, to: Time) {
        for (index, state) in self.states.iter_mut().enumerate() {
            while let Some(at) = state.next.filter(|at| *at <= to) {
                let (work, due) = state.job(at, &mut self.random);
                state.coming.push_back((at, due, work));
                self.ideal.arrive(index, at, work);
            }
        }
    }

    /// Work that has come by now makes its task ready, but for the one that is running.
    fn arrive(&mut self, running: Option<usize>) {
        self.announce(self.now);
        for index in 0..self.states.len() {
            let state = &mut self.states[index];
            while let Some((_, due, work)) =
                state.coming.front().copied().filter(|(at, _, _)| *at <= self.now)
            {
                state.coming.pop_front();
                state.outcome.asked += work;
                state.jobs.push_back((due, work, work));
            }
            if state.ready_since.is_none() && running != Some(index) && !state.jobs.is_empty() {
                self.make_ready(index, self.now);
            }
        }
    }

    fn make_ready(&mut self, index: usize, now: Time) {
        let state = &mut self.states[index];
        let Some((due, work, _)) = state.jobs.front().copied() else { return };
        let parameters = match state.task.asks {
            Asks::Level(level) => level.into(),
            Asks::Deadline => Deadline::At(due).into(),
            Asks::Weight(weight) => weight.into(),
            Asks::Share(share) => share.into(),
            Asks::Rate { rate, important } => Claim { rate, important, job: None }.into(),
            Asks::RealTime { rate, important } => {
                let job = Some(Job { deadline: Deadline::At(due), work });
                Claim { rate, important, job }.into()
            }
        };
        state.ready_since.get_or_insert(self.now);
        self.policy.enqueue(state.entry, parameters, now);
    }

    fn observe(&mut self) {
        for (index, state) in self.states.iter_mut().enumerate() {
            let (got, ideal) = (state.outcome.got, self.ideal.got(index));
            let outcome = &mut state.outcome;
            outcome.behind = outcome.behind.max(ideal.saturating_sub(got));
            outcome.ahead = outcome.ahead.max(got.saturating_sub(ideal));
        }
    }
}

impl State {
    /// The job that comes at this moment: what it takes, and when it is due. The next one is planned.
    fn job(&mut self, at: Time, random: &mut Random) -> (Duration, Time) {
        match self.task.load {
            Load::Always => {
                self.next = None;
                (FOREVER, Time::MAX)
            }
            Load::Periodic { period, work, jitter, deadline, .. } => {
                self.next = Some(at + period);
                let work = (work + below(random, jitter * 2)).saturating_sub(jitter);
                (work.max(Duration::from_nanos(1)), at + deadline)
            }
        }
    }

    fn left(&self) -> Duration {
        self.jobs.iter().fold(Duration::ZERO, |sum, (_, _, left)| sum.saturating_add(*left))
    }

    fn serve(&mut self, start: Time, spent: Duration) {
        self.outcome.got += spent;
        let mut left = spent;
        while let Some((due, _, job)) = self.jobs.front_mut().filter(|_| !left.is_zero()) {
            let done = left.min(*job);
            *job -= done;
            left -= done;
            if !job.is_zero() {
                break;
            }
            if start + spent.saturating_sub(left) <= *due {
                self.outcome.met += 1;
            } else {
                self.outcome.missed += 1;
            }
            self.jobs.pop_front();
        }
    }
}

fn below(random: &mut Random, bound: Duration) -> Duration {
    match bound.as_nanos() as u32 {
        0 => Duration::ZERO,
        bound => Duration::from_nanos(random.below(bound).into()),
    }
}
