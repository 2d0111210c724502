//! Weighted fair queueing of processor time: each entry with work gets time in proportion to its weight, whatever
//! the others do (worst-case fair: WF2Q, Bennett and Zhang 1996; the choice is in `fair.rs`, the model in `fluid.rs`).
//!
//! What is promised: while the same entries have work all the time, none is ahead of the fluid schedule by more than
//! its last run, and none is behind it by more than the longest quantum (and what others overran theirs, each once:
//! then it waits). When work comes and goes, what a job will take is not known as it is in a switch; the tests
//! hold the distance then to three quanta. Who wakes up starts level with the fluid: it is owed nothing for the time it slept, and what it had got
//! ahead before it slept it has to wait for. So none that is ready starves.

use std::time::Duration;

use scoutline_base::Time;

use crate::fair::Fair;
use crate::slots::Owners;
use crate::{Charged, Decision, Entry, Level, Parameters, Policy, Quantum, Weight};

/// The policy. Work for each call: logarithmic in the number of ready entries, on average.
pub struct Wfq {
    configuration: Configuration,
    fair: Fair,
    owners: Owners,
    charged: Charged,
}

/// The parameters of [`Wfq`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// What a path gets at a time, whatever its weight: the weight says how often.
    pub path_quantum: Quantum,
    /// How long Linux gets the CPU at a time.
    pub linux_quantum: Quantum,
    /// Of an entry that asked for something else.
    pub weight: Weight,
}

impl Default for Configuration {
    fn default() -> Self {
        Configuration {
            path_quantum: Quantum::PATH,
            linux_quantum: Quantum::LINUX,
            weight: Weight::default(),
        }
    }
}

impl Default for Wfq {
    fn default() -> Self {
        Wfq::new(Configuration::default())
    }
}

impl Wfq {
    /// A policy without entries.
    pub fn new(configuration: Configuration) -> Wfq {
        Wfq { configuration, fair: Fair::new(), owners: Owners::default(), charged: Charged::default() }
    }

    /// Its parameters.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Changes the parameters. What is ready keeps the quantum with which it was enqueued.
    pub fn configure(&mut self, configuration: Configuration) {
        self.configuration = configuration;
    }

    /// What the fluid schedule owes an entry, in nanoseconds; below zero when the entry is ahead of it. 0 for one
    /// that has nothing to do and is not ahead.
    pub fn lag_ns(&self, entry: Entry) -> i64 {
        self.owners.slot(entry).map_or(0, |slot| self.fair.lag(slot))
    }

    /// Whoever ran last has stopped: unless it is ready again it sleeps.
    pub(crate) fn end_turn(&mut self) {
        self.fair.end_turn();
    }

    fn quantum(&self, entry: Entry) -> Quantum {
        match entry {
            Entry::Path(_) => self.configuration.path_quantum,
            Entry::Linux => self.configuration.linux_quantum,
        }
    }
}

impl Policy for Wfq {
    /// One that is ready keeps its place; with another weight it keeps what it is owed.
    fn enqueue(&mut self, entry: Entry, parameters: Parameters, _now: Time) {
        let weight = match parameters {
            Parameters::Weight(weight) => weight,
            _ => self.configuration.weight,
        };
        let (slot, other) = self.owners.own(entry);
        if other {
            self.fair.forget(slot);
        }
        self.fair.wake(slot, weight.value(), self.quantum(entry).time);
    }

    fn dequeue(&mut self, _now: Time) -> Option<Decision> {
        let slot = self.fair.take()?;
        let entry = self.owners.entry(slot)?;
        Some(Decision { entry, level: Level::default(), quantum: self.quantum(entry) })
    }

    fn charge(&mut self, entry: Entry, spent: Duration, _now: Time) {
        self.charged.add(entry, spent);
        if let Some(slot) = self.owners.slot(entry) {
            self.fair.charge(slot, spent);
        }
    }

    fn remove(&mut self, entry: Entry) {
        if let Some(slot) = self.owners.slot(entry) {
            self.fair.sleep(slot);
        }
    }

    fn is_ready(&self, entry: Entry) -> bool {
        self.owners.slot(entry).is_some_and(|slot| self.fair.is_ready(slot))
    }

    fn highest_ready(&self) -> Option<Level> {
        (self.fair.ready() > 0).then(Level::default)
    }

    /// Never: who runs has its quantum, and fairness is made over several of them.
    fn preempts(&self, _running: &Decision, _now: Time) -> bool {
        false
    }

    fn charged(&self) -> Charged {
        self.charged
    }
}

impl std::fmt::Debug for Wfq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wfq")
            .field("ready", &self.fair.ready())
            .field("charged", &self.charged)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
