//! Identifiers.

use std::fmt;

/// Names one path of one engine. A slot number and a generation: a stale id never names the slot's next path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId {
    /// The slot in the engine's path table.
    pub index: u32,
    /// Counts the uses of the slot.
    pub generation: u32,
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// Names one device (network partner) of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);
