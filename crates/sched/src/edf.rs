//! Earliest deadline first (Liu and Layland 1973), as Scout schedules its video paths (Scout §4.2): of the ready,
//! the one whose deadline comes first.
//!
//! An entry asks for a moment that it has computed from its queues, or for so long after its wake-up; see
//! [`Deadline`]. While the work asked for is less than the time there is, and no run takes longer than the least
//! slack, every deadline is met.
//!
//! A deadline that has passed counts as one of this moment. So an entry that never catches up competes with the
//! others by turns instead of holding the CPU, and none that is ready starves.

use std::time::Duration;

use scoutline_base::Time;

use crate::heap::{Heap, Key};
use crate::slots::Owners;
use crate::{Charged, Deadline, Decision, Entry, Level, Parameters, Policy, Quantum};

/// The policy. Work for each call: logarithmic in the number of ready entries.
pub struct Edf {
    configuration: Configuration,
    nodes: Vec<Node>,
    ready: Heap<Due>,
    owners: Owners,
    /// Who was chosen last: until the next choice it is at the same work if it is enqueued again.
    current: Option<u32>,
    /// Counts what was enqueued: of those with one deadline the first to come is served first.
    arrivals: u64,
    missed: u64,
    charged: Charged,
}

/// The parameters of [`Edf`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// What a path gets at a time.
    pub path_quantum: Quantum,
    /// How long Linux gets the CPU at a time.
    pub linux_quantum: Quantum,
    /// Of an entry that asked for something else.
    pub deadline: Deadline,
}

impl Default for Configuration {
    fn default() -> Self {
        Configuration {
            path_quantum: Quantum::PATH,
            linux_quantum: Quantum::LINUX,
            // A frame of video, roughly.
            deadline: Deadline::After(Duration::from_millis(40)),
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Node {
    /// What it asked for last, as a moment.
    deadline: Time,
    /// That deadline was missed, and counted.
    missed: bool,
    /// The deadline before that, while the last run is not charged: the run was for that one.
    before: Option<Time>,
}

/// When something is due, and in which order it came.
#[derive(Clone, Copy)]
struct Due(Time, u64);

impl Key for Due {
    #[inline]
    fn before(self, other: Due) -> bool {
        (self.0, self.1) < (other.0, other.1)
    }
}

impl Default for Edf {
    fn default() -> Self {
        Edf::new(Configuration::default())
    }
}

impl Edf {
    /// A policy without entries.
    pub fn new(configuration: Configuration) -> Edf {
        Edf {
            configuration,
            nodes: Vec::new(),
            ready: Heap::new(),
            owners: Owners::default(),
            current: None,
            arrivals: 0,
            missed: 0,
            charged: Charged::default(),
        }
    }

    /// Its parameters.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Changes the parameters. What is ready keeps its deadline.
    pub fn configure(&mut self, configuration: Configuration) {
        self.configuration = configuration;
    }

    /// How many deadlines had passed when the work was still going on, or not begun.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// The deadline of an entry that is ready or running.
    pub fn deadline(&self, entry: Entry) -> Option<Time> {
        let slot = self.owners.slot(entry)?;
        let active = self.ready.contains(slot) || self.current == Some(slot);
        active.then(|| self.nodes[slot as usize].deadline)
    }

    /// Whoever ran last has stopped: what it does next is other work.
    pub(crate) fn end_turn(&mut self) {
        if let Some(slot) = self.current.take() {
            self.nodes[slot as usize].before = None;
        }
    }

    fn forget(&mut self, slot: u32) {
        self.ready.remove(slot);
        self.current = self.current.filter(|current| *current != slot);
    }

    fn see(&mut self, slot: u32, now: Time) {
        let node = &mut self.nodes[slot as usize];
        if now > node.deadline && !node.missed {
            node.missed = true;
            self.missed += 1;
        }
    }

    fn quantum(&self, entry: Entry) -> Quantum {
        match entry {
            Entry::Path(_) => self.configuration.path_quantum,
            Entry::Linux => self.configuration.linux_quantum,
        }
    }
}

impl Policy for Edf {
    /// One that is ready keeps its place, unless it asks for another moment.
    fn enqueue(&mut self, entry: Entry, parameters: Parameters, now: Time) {
        let asked = match parameters {
            Parameters::Deadline(deadline) => deadline,
            _ => self.configuration.deadline,
        };
        let (slot, other) = self.owners.own(entry);
        if other {
            self.forget(slot);
        }
        if slot as usize >= self.nodes.len() {
            self.nodes.resize(slot as usize + 1, Node::default());
        }
        let ready = self.ready.contains(slot);
        let node = &mut self.nodes[slot as usize];
        if ready && (matches!(asked, Deadline::After(_)) || asked == Deadline::At(node.deadline)) {
            return;
        }
        let at_it = ready || self.current == Some(slot);
        let deadline = asked.moment(at_it.then_some(node.deadline), now);
        if !at_it || node.deadline != deadline {
            let before = (self.current == Some(slot) && !ready && !node.missed).then_some(node.deadline);
            *node = Node { deadline, missed: false, before };
        }
        self.arrivals += 1;
        self.ready.set(slot, Due(deadline.max(now), self.arrivals));
    }

    fn dequeue(&mut self, now: Time) -> Option<Decision> {
        self.end_turn();
        let (_, slot) = self.ready.first()?;
        self.ready.remove(slot);
        self.current = Some(slot);
        self.see(slot, now);
        let entry = self.owners.entry(slot)?;
        Some(Decision { entry, level: Level::default(), quantum: self.quantum(entry) })
    }

    fn charge(&mut self, entry: Entry, spent: Duration, now: Time) {
        self.charged.add(entry, spent);
        if let Some(slot) = self.owners.slot(entry).filter(|slot| self.current == Some(*slot)) {
            match self.nodes[slot as usize].before.take() {
                Some(before) => self.missed += u64::from(now > before),
                None => self.see(slot, now),
            }
        }
    }

    fn remove(&mut self, entry: Entry) {
        if let Some(slot) = self.owners.slot(entry) {
            self.ready.remove(slot);
        }
    }

    fn is_ready(&self, entry: Entry) -> bool {
        self.owners.slot(entry).is_some_and(|slot| self.ready.contains(slot))
    }

    fn highest_ready(&self) -> Option<Level> {
        self.ready.first().map(|_| Level::default())
    }

    /// When something is due before what runs.
    fn preempts(&self, running: &Decision, _now: Time) -> bool {
        let Some(Due(first, _)) = self.ready.first().map(|(due, _)| due) else { return false };
        self.deadline(running.entry).is_some_and(|deadline| first < deadline)
    }

    fn charged(&self) -> Charged {
        self.charged
    }
}

impl std::fmt::Debug for Edf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Edf")
            .field("first", &self.ready.first().map(|(due, _)| due.0))
            .field("missed", &self.missed)
            .field("charged", &self.charged)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
