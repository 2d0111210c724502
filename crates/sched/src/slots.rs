//! Which number an entry has inside a policy, and whose it is: paths come and go, and their slots are used again.

use scoutline_base::PathId;

use crate::Entry;

/// The number of Linux.
pub(crate) const LINUX: u32 = 0;

/// The number of an entry: dense, so that vectors can be indexed with it.
#[inline]
pub(crate) fn slot(entry: Entry) -> u32 {
    match entry {
        Entry::Linux => LINUX,
        Entry::Path(path) => path.index + 1,
    }
}

/// Whose each slot is.
#[derive(Default)]
pub(crate) struct Owners {
    generations: Vec<Option<u32>>,
}

impl Owners {
    /// Gives the entry its slot. Says whether it was somebody else's until now.
    pub(crate) fn own(&mut self, entry: Entry) -> (u32, bool) {
        let slot = slot(entry);
        if slot as usize >= self.generations.len() {
            self.generations.resize(slot as usize + 1, None);
        }
        let owner = &mut self.generations[slot as usize];
        let generation = generation(entry);
        let other = owner.is_some_and(|owner| owner != generation);
        *owner = Some(generation);
        (slot, other)
    }

    /// Whoever else has the entry's slot.
    pub(crate) fn other(&self, entry: Entry) -> Option<Entry> {
        self.entry(slot(entry)).filter(|owner| *owner != entry)
    }

    /// The entry's slot, if it is its own.
    pub(crate) fn slot(&self, entry: Entry) -> Option<u32> {
        let slot = slot(entry);
        (*self.generations.get(slot as usize)? == Some(generation(entry))).then_some(slot)
    }

    /// Who has a slot.
    pub(crate) fn entry(&self, slot: u32) -> Option<Entry> {
        let generation = (*self.generations.get(slot as usize)?)?;
        Some(match slot {
            LINUX => Entry::Linux,
            slot => Entry::Path(PathId { index: slot - 1, generation }),
        })
    }
}

fn generation(entry: Entry) -> u32 {
    match entry {
        Entry::Linux => 0,
        Entry::Path(path) => path.generation,
    }
}
