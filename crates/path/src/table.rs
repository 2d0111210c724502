//! The paths of one engine, by id: slots with generations, so that a stale id names nothing.

use scoutline_base::PathId;
use scoutline_ring::prefetch;

use crate::attributes::Commons;
use crate::{Account, Budget, CreateError, DropReason, Limits, NewPath, Path, Stages};

/// Slots of one chunk. The table grows by chunks and never moves a path, so that growing past 100,000 paths costs
/// no more than growing past 100.
const CHUNK: usize = 256;

/// All paths of an engine. Insert, look-up and removal take constant time.
#[derive(Default)]
pub struct PathTable {
    chunks: Vec<Vec<Slot>>,
    /// Free slots, the warmest last.
    free: Vec<u32>,
    len: usize,
    budget: Budget,
    /// What the attributes of paths have in common.
    commons: Commons,
}

struct Slot {
    generation: u32,
    path: Option<Path>,
}

impl PathTable {
    /// An empty table within this budget.
    pub fn new(budget: Budget) -> PathTable {
        PathTable { budget, ..PathTable::default() }
    }

    /// Takes a new path in, within its limits.
    ///
    /// # Errors
    /// [`CreateError::Exhausted`] when the budget carries no more; the new path is dropped. Ask
    /// [`Budget::admit`] before creation to save the work.
    pub fn insert(&mut self, mut new: NewPath, limits: Limits) -> Result<PathId, CreateError> {
        self.budget.admit()?;
        new.attributes = self.commons.settle(new.attributes);
        if new.stages.capacity() > new.stages.len() {
            // Not shrunk where they are: that would leave scraps between what paths keep.
            let mut stages = Stages::with_capacity(new.stages.len());
            stages.append(&mut new.stages);
            new.stages = stages;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow()?,
        };
        let budget = self.budget.clone();
        let slot = &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK];
        let id = PathId { index, generation: slot.generation };
        slot.path = Some(Path::new(id, new, limits, budget));
        self.len += 1;
        Ok(id)
    }

    /// A path; `None` when it is gone.
    #[inline]
    pub fn get(&self, id: PathId) -> Option<&Path> {
        let slot = self.chunks.get(id.index as usize / CHUNK)?.get(id.index as usize % CHUNK)?;
        slot.path.as_ref().filter(|_| slot.generation == id.generation)
    }

    /// See [`PathTable::get`].
    #[inline]
    pub fn get_mut(&mut self, id: PathId) -> Option<&mut Path> {
        let slot = self.chunks.get_mut(id.index as usize / CHUNK)?.get_mut(id.index as usize % CHUNK)?;
        slot.path.as_mut().filter(|_| slot.generation == id.generation)
    }

    /// Has what is looked at first of a path brought into the cache.
    #[inline]
    pub fn prefetch(&self, id: PathId) {
        if let Some(slot) =
            self.chunks.get(id.index as usize / CHUNK).and_then(|chunk| chunk.get(id.index as usize % CHUNK))
        {
            prefetch(slot);
        }
    }

    /// Takes a path out, with all that waits in its queue. Its id names nothing from now on.
    pub fn remove(&mut self, id: PathId) -> Option<Path> {
        let slot = self.chunks.get_mut(id.index as usize / CHUNK)?.get_mut(id.index as usize % CHUNK)?;
        if slot.generation != id.generation {
            return None;
        }
        let path = slot.path.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        self.len -= 1;
        Some(path)
    }

    /// Ends a path: its buffers return to their owners, and its account is folded into its class's. False when it
    /// is gone already.
    pub fn destroy(&mut self, id: PathId, classes: &mut ClassAccounts) -> bool {
        let Some(path) = self.remove(id) else { return false };
        classes.fold(&path);
        true
    }

    /// All paths, in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        self.chunks.iter().flatten().filter_map(|slot| slot.path.as_ref())
    }

    /// See [`PathTable::iter`].
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.chunks.iter_mut().flatten().filter_map(|slot| slot.path.as_mut())
    }

    /// How many slots there are: all paths have an index below it.
    pub fn slots(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    /// The path that is in a slot now. With [`PathTable::slots`] it lets a walk over all paths be made in pieces,
    /// between which paths come and go.
    pub fn at(&self, index: u32) -> Option<&Path> {
        self.chunks.get(index as usize / CHUNK)?.get(index as usize % CHUNK)?.path.as_ref()
    }

    /// How many paths there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the paths share.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    fn grow(&mut self) -> Result<u32, CreateError> {
        let first = self.chunks.len() * CHUNK;
        if u32::try_from(first + CHUNK).is_err() {
            return Err(CreateError::Exhausted("path ids"));
        }
        self.chunks.push((0..CHUNK).map(|_| Slot { generation: 0, path: None }).collect());
        self.free.extend((first as u32 + 1..(first + CHUNK) as u32).rev());
        Ok(first as u32)
    }
}

/// What was spent on finished paths, class by class.
#[derive(Clone, Debug, Default)]
pub struct ClassAccounts {
    classes: Vec<ClassAccount>,
}

/// One class's share of [`ClassAccounts`].
#[derive(Clone, Debug, Default)]
pub struct ClassAccount {
    /// The sum over its finished paths.
    pub account: Account,
    /// How many there were.
    pub finished: u64,
}

impl ClassAccounts {
    /// Adds the account of a path that has finished, as far as it is not [charged](Path::settle) already.
    pub fn fold(&mut self, path: &Path) {
        self.of(path.class()).account.fold(&path.account_in_class());
        self.of(path.class()).finished += 1;
    }

    /// Adds what was spent in a class by a path that lives on in another.
    pub(crate) fn charge(&mut self, class: u16, spent: &Account) {
        self.of(class).account.fold(spent);
    }

    /// Counts what was refused a path of this class before there was one.
    pub fn on_drop(&mut self, class: u16, reason: DropReason) {
        self.of(class).account.on_drop(reason);
    }

    fn of(&mut self, class: u16) -> &mut ClassAccount {
        let class = class as usize;
        if class >= self.classes.len() {
            self.classes.resize_with(class + 1, ClassAccount::default);
        }
        &mut self.classes[class]
    }

    /// Adds one class's sum to another's: the first is gone, and its number may be used anew.
    pub fn merge(&mut self, gone: u16, into: u16) {
        let Some(sum) = self.classes.get_mut(gone as usize).map(std::mem::take) else { return };
        let into = self.of(into);
        into.account.fold(&sum.account);
        into.finished += sum.finished;
    }

    /// A class's sum, if a path of it has finished.
    pub fn class(&self, class: u16) -> Option<&ClassAccount> {
        self.classes.get(class as usize)
    }

    /// All classes in order.
    pub fn iter(&self) -> impl Iterator<Item = &ClassAccount> {
        self.classes.iter()
    }
}

#[cfg(test)]
mod tests;
