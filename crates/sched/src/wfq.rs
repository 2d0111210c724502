//! Weighted fair queueing of processor time: each entry with work gets time in proportion to its weight, whatever
//! the others do (worst-case fair: WF2Q, Bennett and Zhang 1996; the choice is in `fair.rs`, the model in `fluid.rs`).
//!
//! What is promised: while the same entries have work all the time, none is ahead of the fluid schedule by more than
//! its last run, and none is behind it by more than the longest quantum (and what others overran theirs, each once:
//! then it waits). When work comes and goes, what a job will take is not known as it is in a switch; the tests
//! hold the distance then to three quanta. Who wakes up starts level with the fluid: it is owed nothing for the time it slept, and what it had got
//! ahead before it slept it has to wait for. So none that is ready starves.
//!
//! Entries may stand together in a *class* ([`Share`]): then the class has the weight, however many of its entries
//! have work, and divides what it gets among them, by the weights that they have there (hierarchical fair queueing,
//! the same authors, SIGCOMM 1996):
//!
//! ```text
//!   all:      Linux 100    path 50    class 3 (200)         class 7 (100)
//!   class 3:                          path 1, path 1        a third of its time each while all have work,
//!   class 7:                                  path 1        half while two have
//! ```
//! Each level adds its own quantum to the distance from the fluid schedule.

mod class;

use std::time::Duration;

use scoutline_base::Time;

use crate::fair::Fair;
use crate::slots::Owners;
use crate::{Charged, Decision, Entry, Level, Parameters, Policy, Quantum, Share, Weight};

use class::Class;

/// The policy. Work for each call: logarithmic in the number of ready entries, on average.
pub struct Wfq {
    configuration: Configuration,
    /// Classes, and entries that stand by themselves; by [`alone`] and [`of_class`].
    fair: Fair,
    owners: Owners,
    /// By number.
    classes: Vec<Class>,
    /// Which member of which class has a slot.
    members: Vec<Option<Member>>,
    /// The class whose member was taken last.
    current: Option<u16>,
    charged: Charged,
}

#[derive(Clone, Copy)]
struct Member {
    class: u16,
    number: u32,
}

/// The number of an entry that stands by itself among all that share the time: even ones are of slots.
fn alone(slot: u32) -> u32 {
    slot << 1
}

/// The number of a class there.
fn of_class(class: u16) -> u32 {
    u32::from(class) << 1 | 1
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
        Wfq {
            configuration,
            fair: Fair::new(),
            owners: Owners::default(),
            classes: Vec::new(),
            members: Vec::new(),
            current: None,
            charged: Charged::default(),
        }
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
    /// that has nothing to do and is not ahead. Of a member of a class: out of what the class has got.
    pub fn lag_ns(&self, entry: Entry) -> i64 {
        self.owners.slot(entry).map_or(0, |slot| match self.member(slot) {
            Some(member) => self.classes[usize::from(member.class)].lag(member.number),
            None => self.fair.lag(alone(slot)),
        })
    }

    /// The same of a class as a whole.
    pub fn class_lag_ns(&self, class: u16) -> i64 {
        self.fair.lag(of_class(class))
    }

    /// Whoever ran last has stopped: unless it is ready again it sleeps.
    pub(crate) fn end_turn(&mut self) {
        if let Some(class) = self.current.take() {
            self.classes[usize::from(class)].end_turn();
        }
        self.fair.end_turn();
    }

    fn member(&self, slot: u32) -> Option<Member> {
        self.members.get(slot as usize).copied().flatten()
    }

    /// The member of this class that has a slot, with a number in the class from now on if it had none.
    fn join(&mut self, slot: u32, class: u16) -> u32 {
        if slot as usize >= self.members.len() {
            self.members.resize(slot as usize + 1, None);
        }
        if usize::from(class) >= self.classes.len() {
            self.classes.resize_with(usize::from(class) + 1, Class::new);
        }
        let classes = &mut self.classes;
        let join = || Member { class, number: classes[usize::from(class)].join(slot) };
        self.members[slot as usize].get_or_insert_with(join).number
    }

    /// Whoever had the slot until now stands there no more, and leaves nothing behind.
    fn leave(&mut self, slot: u32) {
        match self.member(slot) {
            Some(Member { class, number }) => {
                self.classes[usize::from(class)].leave(number);
                self.members[slot as usize] = None;
                self.rest(class);
            }
            None => self.fair.forget(alone(slot)),
        }
    }

    /// A class of which no member is ready is not either.
    fn rest(&mut self, class: u16) {
        if !self.classes[usize::from(class)].has_ready() {
            self.fair.sleep(of_class(class));
        }
    }

    fn quantum(&self, entry: Entry) -> Quantum {
        match entry {
            Entry::Path(_) => self.configuration.path_quantum,
            Entry::Linux => self.configuration.linux_quantum,
        }
    }
}

impl Policy for Wfq {
    /// One that is ready keeps its place; with another weight it keeps what it is owed, but not in another class.
    fn enqueue(&mut self, entry: Entry, parameters: Parameters, _now: Time) {
        let (slot, other) = self.owners.own(entry);
        let class = match parameters {
            Parameters::Share(share) => Some(share.class),
            _ => None,
        };
        if other || self.member(slot).map(|member| member.class) != class {
            self.leave(slot);
        }
        let quantum = self.quantum(entry).time;
        match parameters {
            Parameters::Share(Share { class, class_weight, weight }) => {
                let number = self.join(slot, class);
                self.classes[usize::from(class)].wake(number, weight.value(), quantum);
                self.fair.wake(of_class(class), class_weight.value(), self.configuration.path_quantum.time);
            }
            Parameters::Weight(weight) => self.fair.wake(alone(slot), weight.value(), quantum),
            _ => self.fair.wake(alone(slot), self.configuration.weight.value(), quantum),
        }
    }

    fn dequeue(&mut self, _now: Time) -> Option<Decision> {
        self.end_turn();
        let number = self.fair.take()?;
        let slot = if number & 1 == 0 {
            number >> 1
        } else {
            let class = (number >> 1) as u16;
            self.current = Some(class);
            let members = &mut self.classes[usize::from(class)];
            let slot = members.take()?;
            if members.has_ready() {
                let weight = self.fair.own_weight(number);
                self.fair.wake(number, weight, self.configuration.path_quantum.time);
            }
            slot
        };
        let entry = self.owners.entry(slot)?;
        Some(Decision { entry, level: Level::default(), quantum: self.quantum(entry) })
    }

    fn charge(&mut self, entry: Entry, spent: Duration, _now: Time) {
        self.charged.add(entry, spent);
        let Some(slot) = self.owners.slot(entry) else { return };
        match self.member(slot) {
            Some(Member { class, number }) => {
                self.classes[usize::from(class)].charge(number, spent);
                self.fair.charge(of_class(class), spent);
            }
            None => {
                self.fair.charge(alone(slot), spent);
            }
        }
    }

    fn remove(&mut self, entry: Entry) {
        let Some(slot) = self.owners.slot(entry) else { return };
        match self.member(slot) {
            Some(Member { class, number }) => {
                self.classes[usize::from(class)].sleep(number);
                self.rest(class);
            }
            None => self.fair.sleep(alone(slot)),
        }
    }

    fn is_ready(&self, entry: Entry) -> bool {
        self.owners.slot(entry).is_some_and(|slot| match self.member(slot) {
            Some(Member { class, number }) => self.classes[usize::from(class)].is_ready(number),
            None => self.fair.is_ready(alone(slot)),
        })
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
