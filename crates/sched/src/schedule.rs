//! What an engine drives: its CPU divided among the policies, each with a guaranteed minimum share (Scout §3.3,
//! DESIGN.md §5).
//!
//! ```text
//!   shares: worst-case fair      fixed priority │ EDF │ WFQ │ BERT │ Linux, if it has a share of its own
//!   and if none of them has work:          the idle level, by turns
//! ```
//!
//! The policies share by time as the entries of [`wfq`] do, with shares as weights: a policy with work
//! gets at least its share over any stretch of time (but for a quantum), and what others do not use is lent in
//! proportion to the shares. Nobody has to give back what it was lent, and nobody saves up what it did not use.
//! Inside its share each policy chooses by its own rule. A deadline can so be met only if the work asked for fits
//! the share of its policy.
//!
//! *Linux* stands in fixed priority at a level, or in WFQ with a weight among the paths there, or beside the policies
//! with a share of its own: then how much it gets does not depend on how many paths there are. Such a share is one
//! more beside those of the policies, or a part of the CPU against all of them together, whichever have work.
//!
//! While nothing but levels has been asked for, this is [`FixedPriority`] and nothing else: the same decisions, at the
//! price of one branch for each call.

use std::time::Duration;

use scoutline_base::Time;

use crate::fair::Fair;
use crate::slots::{self, Owners};
use crate::{
    Bert, Charged, Decision, Edf, Entry, FixedPriority, Level, Parameters, Policy, Weight, Wfq, bert, edf,
    priority, wfq,
};

/// The policies side by side. Work for each call: that of the policy concerned.
pub struct Schedule {
    configuration: Configuration,
    fixed: FixedPriority,
    edf: Edf,
    wfq: Wfq,
    bert: Bert,
    /// Linux alone, when it has a share of its own.
    linux: Wfq,
    /// Something else than a level has been asked for.
    mixed: bool,
    /// The policies' shares; a slot is a [`Kind`].
    shares: Fair,
    owners: Owners,
    /// Which policy each slot of `owners` is with.
    homes: Vec<Kind>,
    /// Whose entry was chosen last, and when; `None` for one of the idle level.
    current: Option<(Kind, Time)>,
}

/// The parameters of [`Schedule`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// How the CPU is divided.
    pub shares: Shares,
    /// Where Linux stands.
    pub linux: Linux,
    /// Of fixed priority. Its Linux quantum holds wherever Linux stands.
    pub fixed: priority::Configuration,
    /// Of EDF.
    pub edf: edf::Configuration,
    /// Of WFQ.
    pub wfq: wfq::Configuration,
    /// Of BERT. What it can count on follows from the shares.
    pub bert: bert::Configuration,
}

/// How the CPU is divided: each policy is guaranteed its number's part of the sum of them all, Linux's included if it
/// has a share of its own. A 0 counts as 1: there is no policy that never gets anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Of the priorities; the idle level has no share.
    pub fixed: u16,
    /// Of EDF.
    pub edf: u16,
    /// Of WFQ.
    pub wfq: u16,
    /// Of BERT.
    pub bert: u16,
}

impl Default for Shares {
    fn default() -> Self {
        Shares { fixed: 40, edf: 20, wfq: 20, bert: 20 }
    }
}

/// Where Linux stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linux {
    /// In fixed priority, at the level that is configured there.
    #[default]
    Priority,
    /// In WFQ, among the paths there.
    Weight(Weight),
    /// Beside the policies, with a guaranteed share as they have.
    Share(u16),
    /// Beside the policies, with so many hundredths of the CPU, 1 to 99, while Linux and any of them have work.
    Percent(u8),
}

/// The policies, as slots of the shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fixed,
    Edf,
    Wfq,
    Bert,
    Linux,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Fixed, Kind::Edf, Kind::Wfq, Kind::Bert, Kind::Linux];

    fn of(parameters: Parameters) -> Kind {
        match parameters {
            Parameters::Level(_) => Kind::Fixed,
            Parameters::Deadline(_) => Kind::Edf,
            Parameters::Weight(_) | Parameters::Share(_) => Kind::Wfq,
            Parameters::Bert(_) => Kind::Bert,
        }
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule::new(Configuration::default())
    }
}

impl Schedule {
    /// A schedule without entries.
    pub fn new(configuration: Configuration) -> Schedule {
        let mut schedule = Schedule {
            configuration,
            fixed: FixedPriority::default(),
            edf: Edf::default(),
            wfq: Wfq::default(),
            bert: Bert::default(),
            linux: Wfq::default(),
            mixed: false,
            shares: Fair::new(),
            owners: Owners::default(),
            homes: Vec::new(),
            current: None,
        };
        schedule.configure(configuration);
        schedule
    }

    /// Its parameters.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Changes the parameters. Entries stay where they are, but for Linux if it stands elsewhere now.
    pub fn configure(&mut self, configuration: Configuration) {
        let moved = configuration.linux != self.configuration.linux && self.is_ready(Entry::Linux);
        if moved {
            self.remove(Entry::Linux);
        }
        self.configuration = configuration;
        let linux_quantum = configuration.fixed.linux_quantum;
        self.fixed.configure(configuration.fixed);
        self.edf.configure(edf::Configuration { linux_quantum, ..configuration.edf });
        self.wfq.configure(wfq::Configuration { linux_quantum, ..configuration.wfq });
        self.linux.configure(wfq::Configuration { linux_quantum, ..configuration.wfq });
        let capacity = self.guaranteed(Kind::Bert);
        self.bert.configure(bert::Configuration { linux_quantum, capacity, ..configuration.bert });
        for kind in Kind::ALL {
            self.shares.weigh(kind as u32, self.weight(kind));
        }
        if moved {
            // Where it can stand the time of its arrival means nothing.
            self.enqueue(Entry::Linux, Parameters::default(), Time::ZERO);
        }
    }

    /// The policy of fixed priorities.
    pub fn fixed(&self) -> &FixedPriority {
        &self.fixed
    }

    /// The policy of deadlines.
    pub fn edf(&self) -> &Edf {
        &self.edf
    }

    /// The policy of weights.
    pub fn wfq(&self) -> &Wfq {
        &self.wfq
    }

    /// The policy of claims.
    pub fn bert(&self) -> &Bert {
        &self.bert
    }

    /// What of the CPU, in 1/10,000, the policy that serves these parameters gets if all have work.
    pub fn guarantee(&self, parameters: Parameters) -> Weight {
        self.guaranteed(Kind::of(parameters))
    }

    fn guaranteed(&self, kind: Kind) -> Weight {
        let own_share =
            |kind: &Kind| *kind != Kind::Linux || matches!(self.configuration.linux, Linux::Share(_));
        let all: u32 = Kind::ALL.into_iter().filter(own_share).map(|kind| self.share(kind)).sum();
        let whole = match self.configuration.linux {
            Linux::Percent(percent) => {
                u64::from(Weight::HIGHEST) / 100 * u64::from(100 - hundredths(percent))
            }
            _ => u64::from(Weight::HIGHEST),
        };
        Weight::new(u64::from(self.share(kind)) * whole / u64::from(all))
    }

    fn share(&self, kind: Kind) -> u32 {
        let Shares { fixed, edf, wfq, bert } = self.configuration.shares;
        let share = match (kind, self.configuration.linux) {
            (Kind::Fixed, _) => fixed,
            (Kind::Edf, _) => edf,
            (Kind::Wfq, _) => wfq,
            (Kind::Bert, _) => bert,
            (Kind::Linux, Linux::Share(share)) => share,
            (Kind::Linux, _) => 1,
        };
        u32::from(share.max(1))
    }

    /// What a policy weighs among those that share.
    fn weight(&self, kind: Kind) -> u32 {
        let Linux::Percent(percent) = self.configuration.linux else { return self.share(kind) };
        if kind != Kind::Linux {
            // Fine enough that a hundredth of the least of them can be told.
            return self.share(kind) * 100;
        }
        let others = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Linux);
        let members: u64 = others.clone().map(|kind| self.shares.weight_of(kind as u32)).sum();
        let against =
            if members > 0 { members } else { others.map(|kind| u64::from(self.weight(kind))).sum() };
        let percent = u64::from(hundredths(percent));
        (against * percent / (100 - percent)).max(1) as u32
    }

    /// Linux's part is one of whoever has work, and who that is has changed perhaps.
    fn weigh_linux(&mut self) {
        if matches!(self.configuration.linux, Linux::Percent(_)) {
            self.shares.weigh(Kind::Linux as u32, self.weight(Kind::Linux));
        }
    }

    fn policy(&self, kind: Kind) -> &dyn Policy {
        match kind {
            Kind::Fixed => &self.fixed,
            Kind::Edf => &self.edf,
            Kind::Wfq => &self.wfq,
            Kind::Bert => &self.bert,
            Kind::Linux => &self.linux,
        }
    }

    fn policy_mut(&mut self, kind: Kind) -> &mut dyn Policy {
        match kind {
            Kind::Fixed => &mut self.fixed,
            Kind::Edf => &mut self.edf,
            Kind::Wfq => &mut self.wfq,
            Kind::Bert => &mut self.bert,
            Kind::Linux => &mut self.linux,
        }
    }

    /// What a policy hands out at a time.
    fn quantum(&self, kind: Kind) -> Duration {
        match kind {
            Kind::Fixed => self.configuration.fixed.path_quantum.time,
            Kind::Edf => self.configuration.edf.path_quantum.time,
            Kind::Wfq => self.configuration.wfq.path_quantum.time,
            Kind::Bert => self.configuration.bert.path_quantum.time,
            Kind::Linux => self.configuration.fixed.linux_quantum.time,
        }
    }

    /// Whether a policy has work that counts against its share: not that of the idle level.
    fn wants(&self, kind: Kind) -> bool {
        self.policy(kind).highest_ready().is_some_and(|level| level > Level::Idle)
    }

    /// The policy that an entry is with.
    fn home(&self, entry: Entry) -> Kind {
        self.owners.slot(entry).map_or(Kind::Fixed, |slot| self.homes[slot as usize])
    }

    /// Gives an entry to a policy; whichever had it or its slot before has it no more.
    fn settle(&mut self, entry: Entry, kind: Kind) {
        let slot = slots::slot(entry);
        match self.owners.entry(slot) {
            Some(owner) => {
                let home = self.homes[slot as usize];
                if owner != entry || home != kind {
                    self.policy_mut(home).remove(owner);
                }
            }
            // It came while there were only levels, if at all.
            None if kind != Kind::Fixed => self.fixed.evict(entry),
            None => {}
        }
        self.owners.own(entry);
        if slot as usize >= self.homes.len() {
            self.homes.resize(slot as usize + 1, Kind::Fixed);
        }
        self.homes[slot as usize] = kind;
    }

    fn enqueue_mixed(&mut self, entry: Entry, parameters: Parameters, now: Time) {
        let (kind, parameters) = match (entry, self.configuration.linux) {
            (Entry::Path(_), _) => (Kind::of(parameters), parameters),
            (Entry::Linux, Linux::Priority) => (Kind::Fixed, parameters),
            (Entry::Linux, Linux::Weight(weight)) => (Kind::Wfq, weight.into()),
            (Entry::Linux, Linux::Share(_) | Linux::Percent(_)) => (Kind::Linux, parameters),
        };
        self.mixed = true;
        self.settle(entry, kind);
        self.policy_mut(kind).enqueue(entry, parameters, now);
        if !self.shares.is_ready(kind as u32) && self.wants(kind) {
            self.wake(kind);
        }
    }

    fn wake(&mut self, kind: Kind) {
        self.shares.wake(kind as u32, self.weight(kind), self.quantum(kind));
        self.weigh_linux();
    }

    fn dequeue_mixed(&mut self, now: Time) -> Option<Decision> {
        match self.current.take() {
            Some((Kind::Edf, _)) => self.edf.end_turn(),
            Some((Kind::Wfq, _)) => self.wfq.end_turn(),
            Some((Kind::Bert, _)) => self.bert.end_turn(),
            Some((Kind::Linux, _)) => self.linux.end_turn(),
            Some((Kind::Fixed, _)) | None => {}
        }
        for kind in Kind::ALL {
            match (self.wants(kind), self.shares.is_ready(kind as u32)) {
                (true, false) => self.wake(kind),
                (false, true) => self.shares.sleep(kind as u32),
                _ => {}
            }
        }
        self.weigh_linux();
        let chosen = self.shares.take();
        let Some(kind) = Kind::ALL.into_iter().find(|kind| Some(*kind as u32) == chosen) else {
            return self.fixed.dequeue(now);
        };
        self.current = Some((kind, now));
        self.policy_mut(kind).dequeue(now)
    }

    fn charge_mixed(&mut self, entry: Entry, spent: Duration, now: Time) {
        let kind = self.home(entry);
        self.policy_mut(kind).charge(entry, spent, now);
        if let Some((current, since)) = &mut self.current
            && *current == kind
        {
            // Linux is charged while it runs: that time is no longer to come.
            *since = now;
        }
        // Idle work is nobody's share, nor is that of paths which were never enqueued.
        if kind != Kind::Fixed || self.fixed.level_of(entry).is_some_and(|level| level > Level::Idle) {
            self.shares.charge(kind as u32, spent);
        }
    }
}

impl Policy for Schedule {
    /// A path stands in the policy that its parameters name; where Linux stands is in the [`Configuration`], and its
    /// parameters mean nothing.
    #[inline]
    fn enqueue(&mut self, entry: Entry, parameters: Parameters, now: Time) {
        let fixed = match entry {
            Entry::Path(_) => matches!(parameters, Parameters::Level(_)),
            Entry::Linux => self.configuration.linux == Linux::Priority,
        };
        if fixed && !self.mixed {
            self.fixed.enqueue(entry, parameters, now);
        } else {
            self.enqueue_mixed(entry, parameters, now);
        }
    }

    #[inline]
    fn dequeue(&mut self, now: Time) -> Option<Decision> {
        if self.mixed { self.dequeue_mixed(now) } else { self.fixed.dequeue(now) }
    }

    #[inline]
    fn charge(&mut self, entry: Entry, spent: Duration, now: Time) {
        if self.mixed {
            self.charge_mixed(entry, spent, now);
        } else {
            self.fixed.charge(entry, spent, now);
        }
    }

    fn remove(&mut self, entry: Entry) {
        let home = self.home(entry);
        self.policy_mut(home).remove(entry);
    }

    fn is_ready(&self, entry: Entry) -> bool {
        self.policy(self.home(entry)).is_ready(entry)
    }

    #[inline]
    fn highest_ready(&self) -> Option<Level> {
        let fixed = self.fixed.highest_ready();
        if !self.mixed {
            return fixed;
        }
        Kind::ALL.into_iter().filter_map(|kind| self.policy(kind).highest_ready()).max()
    }

    /// When the policy of what runs says so; when another policy has waited so long that its share owes it a quantum,
    /// or is EDF and has not used up its share: its work cannot wait for a whole slice of Linux; and always when what
    /// runs is idle work and something else is ready.
    #[inline]
    fn preempts(&self, running: &Decision, now: Time) -> bool {
        if !self.mixed {
            return self.fixed.preempts(running, now);
        }
        let Some((kind, since)) = self.current else {
            if running.level > Level::Idle {
                // It was chosen while there were only levels.
                return self.fixed.preempts(running, now);
            }
            return Kind::ALL.into_iter().any(|kind| self.wants(kind));
        };
        let owed = |other: Kind| {
            let patience = if other == Kind::Edf { 0 } else { self.quantum(other).as_nanos() as i64 };
            self.shares.lag_after(other as u32, now.since(since)) >= patience
        };
        self.policy(kind).preempts(running, now)
            || Kind::ALL.into_iter().any(|other| other != kind && self.wants(other) && owed(other))
    }

    fn charged(&self) -> Charged {
        let mut sum = Charged::default();
        for kind in Kind::ALL {
            let charged = self.policy(kind).charged();
            sum.paths += charged.paths;
            sum.linux += charged.linux;
        }
        sum
    }
}

/// A part of the CPU that leaves something for both.
fn hundredths(percent: u8) -> u8 {
    percent.clamp(1, 99)
}

impl std::fmt::Debug for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Schedule")
            .field("mixed", &self.mixed)
            .field("fixed", &self.fixed)
            .field("edf", &self.edf)
            .field("wfq", &self.wfq)
            .field("bert", &self.bert)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
