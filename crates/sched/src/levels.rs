//! The ready paths, level by level: one doubly linked list for each level, threaded through one vector that a
//! path's slot number indexes, and a bitmap of the levels that are not empty.
//!
//! Every operation takes constant time; memory is 16 bytes for each slot of the path table.

use scoutline_base::PathId;

use crate::Level;

/// How many levels there are: idle, and the priorities.
pub(crate) const COUNT: usize = 2 + Level::HIGHEST_PRIORITY as usize;

/// No neighbour. `Option<u32>` would make a node half as large again, and these are touched for every packet.
const NONE: u32 = u32::MAX;

/// A level's number: 0 is idle.
#[inline]
pub(crate) fn index(level: Level) -> usize {
    match level {
        Level::Idle => 0,
        Level::Priority(priority) => 1 + priority.min(Level::HIGHEST_PRIORITY) as usize,
    }
}

/// The level of this number.
#[inline]
pub(crate) fn level(index: usize) -> Level {
    match index {
        0 => Level::Idle,
        priority => Level::Priority(priority as u8 - 1),
    }
}

/// See the module.
pub(crate) struct Levels {
    nodes: Vec<Node>,
    ends: [Ends; COUNT],
    /// Bit `i` is set while list `i` is not empty.
    occupied: u128,
}

#[derive(Clone, Copy)]
struct Node {
    generation: u32,
    previous: u32,
    next: u32,
    /// Where it is, or was last.
    level: u8,
    /// False until a path of this slot has been seen.
    known: bool,
    queued: bool,
}

const _: () = assert!(size_of::<Node>() == 16);

#[derive(Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
}

impl Levels {
    pub(crate) fn new() -> Levels {
        Levels { nodes: Vec::new(), ends: [Ends { head: NONE, tail: NONE }; COUNT], occupied: 0 }
    }

    /// Puts a path at the tail of a level; one that is in a list of that level already stays where it is.
    pub(crate) fn push(&mut self, path: PathId, level: usize) {
        let index = path.index as usize;
        if index >= self.nodes.len() {
            let fresh =
                Node { generation: 0, previous: NONE, next: NONE, level: 0, known: false, queued: false };
            self.nodes.resize(index + 1, fresh);
        }
        let node = self.nodes[index];
        if node.queued {
            if node.generation == path.generation && node.level as usize == level {
                return;
            }
            // Another level, or an earlier path of this slot that nobody removed.
            self.unlink(path.index);
        }
        let tail = self.ends[level].tail;
        self.nodes[index] = Node {
            generation: path.generation,
            previous: tail,
            next: NONE,
            level: level as u8,
            known: true,
            queued: true,
        };
        match tail {
            NONE => self.ends[level].head = path.index,
            tail => self.nodes[tail as usize].next = path.index,
        }
        self.ends[level].tail = path.index;
        self.occupied |= 1 << level;
    }

    /// Takes the path at the head of a level.
    pub(crate) fn pop(&mut self, level: usize) -> Option<PathId> {
        let head = self.ends[level].head;
        if head == NONE {
            return None;
        }
        self.unlink(head);
        Some(PathId { index: head, generation: self.nodes[head as usize].generation })
    }

    /// Takes a path out of its list, if it is in one.
    pub(crate) fn remove(&mut self, path: PathId) {
        if self.is_queued(path) {
            self.unlink(path.index);
        }
    }

    /// Takes whoever has this slot out of its list.
    pub(crate) fn evict(&mut self, index: u32) {
        if self.nodes.get(index as usize).is_some_and(|node| node.queued) {
            self.unlink(index);
        }
    }

    pub(crate) fn is_queued(&self, path: PathId) -> bool {
        self.node(path).is_some_and(|node| node.queued)
    }

    /// The level at which a path is, or was last.
    #[inline]
    pub(crate) fn level_of(&self, path: PathId) -> Option<usize> {
        self.node(path).map(|node| node.level as usize)
    }

    /// The highest level that is not empty.
    #[inline]
    pub(crate) fn highest(&self) -> Option<usize> {
        self.occupied.checked_ilog2().map(|level| level as usize)
    }

    fn node(&self, path: PathId) -> Option<&Node> {
        let node = self.nodes.get(path.index as usize)?;
        (node.known && node.generation == path.generation).then_some(node)
    }

    fn unlink(&mut self, index: u32) {
        let node = self.nodes[index as usize];
        let level = node.level as usize;
        debug_assert!(node.queued, "only what is in a list can be taken out");
        match node.previous {
            NONE => self.ends[level].head = node.next,
            previous => self.nodes[previous as usize].next = node.next,
        }
        match node.next {
            NONE => self.ends[level].tail = node.previous,
            next => self.nodes[next as usize].previous = node.previous,
        }
        if self.ends[level].head == NONE {
            self.occupied &= !(1 << level);
        }
        self.nodes[index as usize].queued = false;
    }
}
