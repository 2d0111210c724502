//! Limits of one path, and the budget that all paths of an engine share: admission control (Scout §4.4).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::{Attributes, CreateError, Name, QueueMemory};

/// What one path may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Packets that may wait in the input queue.
    pub queue_packets: u32,
    /// Bytes of data that may wait in the input queue.
    pub queue_bytes: u64,
    /// Buffer bytes that the path may hold in all, its queue and its stages together.
    pub memory_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        // A burst of 64 KiB super-segments as one TCP flow sends them (4 MiB), and the order of what Linux gives a
        // socket (net.ipv4.tcp_rmem: 6 MiB).
        Limits { queue_packets: 256, queue_bytes: 4 << 20, memory_bytes: 8 << 20 }
    }
}

impl Limits {
    /// These limits, as far as a path's own attributes do not say otherwise.
    #[must_use]
    pub fn for_path(mut self, attributes: &Attributes) -> Limits {
        if let Some(packets) = attributes.number(Name::QueueLimit) {
            self.queue_packets = u32::try_from(packets).unwrap_or(u32::MAX);
        }
        if let Some(bytes) = attributes.number(Name::MemoryLimit) {
            self.memory_bytes = bytes;
        }
        self
    }
}

/// What all paths of an engine may use together, and what they use now (and the memory of their queues). A handle: clones share the counts.
#[derive(Clone, Debug)]
pub struct Budget {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limit_paths: Cell<u32>,
    limit_buffer_bytes: Cell<u64>,
    paths: Cell<u32>,
    buffer_bytes: Cell<u64>,
    /// What these bytes are part of.
    within: RefCell<Option<Budget>>,
    queue_memory: QueueMemory,
}

impl Default for Budget {
    fn default() -> Self {
        Budget::new(1 << 20, 1 << 30)
    }
}

impl Budget {
    /// A budget of so many paths and buffer bytes.
    pub fn new(paths: u32, buffer_bytes: u64) -> Budget {
        Budget {
            inner: Rc::new(Inner {
                limit_paths: Cell::new(paths),
                limit_buffer_bytes: Cell::new(buffer_bytes),
                paths: Cell::new(0),
                buffer_bytes: Cell::new(0),
                within: RefCell::default(),
                queue_memory: QueueMemory::default(),
            }),
        }
    }

    /// Whether one more path can be carried. Ask before creation, so that a refusal costs nothing.
    ///
    /// # Errors
    /// [`CreateError::Exhausted`] with what is spent.
    pub fn admit(&self) -> Result<(), CreateError> {
        if self.inner.paths.get() >= self.inner.limit_paths.get() {
            return Err(CreateError::Exhausted("paths"));
        }
        if self.inner.buffer_bytes.get() >= self.inner.limit_buffer_bytes.get() {
            return Err(CreateError::Exhausted("buffer memory"));
        }
        Ok(())
    }

    /// Whether `bytes` more of buffers can be held.
    #[inline]
    pub fn has_room(&self, bytes: u64) -> bool {
        self.inner.buffer_bytes.get().saturating_add(bytes) <= self.inner.limit_buffer_bytes.get()
            && self.inner.within.borrow().as_ref().is_none_or(|within| within.has_room(bytes))
    }

    /// Its bytes count in another budget too from now on, even beyond that one's limit, and no more in the one
    /// before.
    ///
    /// # Panics
    /// When the other one lies within this.
    pub fn put_within(&self, other: &Budget) {
        assert!(!other.lies_within(self), "a budget cannot be a part of itself");
        let held = self.buffer_bytes();
        other.on_held(0, held);
        if let Some(before) = self.inner.within.replace(Some(other.clone())) {
            before.on_held(held, 0);
        }
    }

    /// Whether both are handles of the same one.
    pub fn is(&self, other: &Budget) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }

    fn lies_within(&self, other: &Budget) -> bool {
        let within = self.inner.within.borrow();
        Rc::ptr_eq(&self.inner, &other.inner)
            || within.as_ref().is_some_and(|within| within.lies_within(other))
    }

    /// Takes `bytes` out of the budget; false, and nothing taken, when they are not there. For memory that is held
    /// beside paths' queues (the rings of sockets).
    pub fn charge(&self, bytes: u64) -> bool {
        let fits = self.has_room(bytes);
        if fits {
            self.on_held(0, bytes);
        }
        fits
    }

    /// Takes `bytes` even beyond the limit: for memory that is held already and comes under this budget now.
    pub fn take_over(&self, bytes: u64) {
        self.on_held(0, bytes);
    }

    /// Gives back what [`Budget::charge`] or [`Budget::take_over`] took.
    pub fn refund(&self, bytes: u64) {
        self.on_held(bytes, 0);
    }

    /// Changes the limits. What is over a new limit stays; nothing more is admitted.
    pub fn set_limits(&self, paths: u32, buffer_bytes: u64) {
        self.inner.limit_paths.set(paths);
        self.inner.limit_buffer_bytes.set(buffer_bytes);
    }

    /// Paths now.
    pub fn paths(&self) -> u32 {
        self.inner.paths.get()
    }

    /// Buffer bytes held now.
    pub fn buffer_bytes(&self) -> u64 {
        self.inner.buffer_bytes.get()
    }

    pub(crate) fn queue_memory(&self) -> QueueMemory {
        self.inner.queue_memory.clone()
    }

    pub(crate) fn on_path_made(&self) {
        self.inner.paths.set(self.inner.paths.get() + 1);
    }

    pub(crate) fn on_path_gone(&self) {
        self.inner.paths.set(self.inner.paths.get() - 1);
    }

    /// A path that held `before` bytes holds `after` now.
    #[inline]
    pub(crate) fn on_held(&self, before: u64, after: u64) {
        let now = self.inner.buffer_bytes.get().wrapping_add(after).wrapping_sub(before);
        self.inner.buffer_bytes.set(now);
        if let Some(within) = &*self.inner.within.borrow() {
            within.on_held(before, after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Budget;

    #[test]
    fn a_part_keeps_within_the_whole() {
        let (one, other) = (Budget::new(1, 100), Budget::new(1, 10));
        let parts = [Budget::new(1, u64::MAX), Budget::new(1, 60)];
        for part in &parts {
            part.put_within(&one);
        }
        assert!(parts[0].charge(70) && !parts[1].charge(31) && parts[1].charge(30));
        assert_eq!((one.buffer_bytes(), parts[0].has_room(1)), (100, false));
        parts[0].put_within(&other);
        assert_eq!(
            (one.buffer_bytes(), other.buffer_bytes()),
            (30, 70),
            "kept, though it is beyond the limit"
        );
        assert!(!parts[0].charge(1) && parts[1].charge(30) && !parts[1].charge(1));
        parts[0].refund(70);
        assert!(other.buffer_bytes() == 0 && parts[0].charge(10) && !parts[0].charge(1));
    }
}
