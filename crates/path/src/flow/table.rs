//! An exact-match table from flow to path.
//!
//! ```text
//! slots (a power of two, at most half full), 32 bytes each, two to a cache line
//!   ┌──────────────┬────────┬───┐
//!   │ key, packed  │ PathId │ . │   a probe starts at hash(key) and goes on slot by slot
//!   └──────────────┴────────┴───┘
//! ```
//!
//! What a look-up costs is cache misses, so there is one array and no second look elsewhere: linear probing, no
//! tombstones (a removal shifts back what had been pushed on), 1.5 probes on a hit at worst load. The hash is
//! keyed by a seed from the system, so that nobody outside can aim for one slot.

use scoutline_base::PathId;

use crate::FlowKey;

/// Slots of the smallest table.
const SMALLEST: usize = 64;

/// The flows of one engine.
///
/// Look-up allocates nothing. Insertion is O(1) amortised: the table doubles when it is half full;
/// [`FlowTable::with_capacity`] avoids that.
pub struct FlowTable {
    slots: Vec<Slot>,
    /// `64 - log2(slots)`: the hash's top bits are the slot.
    shift: u32,
    len: usize,
    seed: [u64; 2],
}

/// Half a cache line. Free when `key` is zero, which no packed key is (see `pack`).
#[derive(Clone, Copy, Default)]
#[repr(align(32))]
struct Slot {
    key: [u64; 2],
    path: u64,
}

const _: () = assert!(size_of::<Slot>() == 32);

impl Slot {
    #[inline]
    fn is_free(&self) -> bool {
        self.key[1] == 0
    }
}

impl FlowTable {
    /// An empty table. `seed` is random, from the edge.
    pub fn new(seed: u64) -> FlowTable {
        FlowTable::with_capacity(SMALLEST / 2, seed)
    }

    /// An empty table that takes `flows` without growing.
    pub fn with_capacity(flows: usize, seed: u64) -> FlowTable {
        let count = (flows * 2).next_power_of_two().max(SMALLEST);
        let mut random = scoutline_base::Random::new(seed);
        FlowTable {
            slots: vec![Slot::default(); count],
            shift: 64 - count.trailing_zeros(),
            len: 0,
            seed: [random.next_u64() | 1, random.next_u64() | 1],
        }
    }

    /// The path of this flow.
    #[inline]
    pub fn lookup(&self, key: &FlowKey) -> Option<PathId> {
        let key = pack(key);
        self.find(key).map(|index| unpack_path(self.slots[index].path))
    }

    /// Sets the path of a flow; gives the one that it had.
    pub fn insert(&mut self, key: &FlowKey, path: PathId) -> Option<PathId> {
        let key = pack(key);
        if let Some(index) = self.find(key) {
            let old = std::mem::replace(&mut self.slots[index].path, pack_path(path));
            return Some(unpack_path(old));
        }
        if (self.len + 1) * 2 > self.slots.len() {
            self.grow();
        }
        self.place(Slot { key, path: pack_path(path) });
        self.len += 1;
        None
    }

    /// Takes a flow out; gives its path.
    pub fn remove(&mut self, key: &FlowKey) -> Option<PathId> {
        let mut hole = self.find(pack(key))?;
        let removed = unpack_path(self.slots[hole].path);
        let mask = self.slots.len() - 1;
        let mut next = hole;
        loop {
            next = (next + 1) & mask;
            let slot = self.slots[next];
            if slot.is_free() {
                break;
            }
            // It may move into the hole if its home is not in between (cyclically).
            let home = self.home(slot.key);
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.slots[hole] = slot;
                hole = next;
            }
        }
        self.slots[hole] = Slot::default();
        self.len -= 1;
        Some(removed)
    }

    /// Takes a flow out if it still belongs to this path.
    pub fn remove_if(&mut self, key: &FlowKey, path: PathId) -> bool {
        self.lookup(key) == Some(path) && self.remove(key).is_some()
    }

    /// Flows in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All flows, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (FlowKey, PathId)> + '_ {
        self.slots
            .iter()
            .filter(|slot| !slot.is_free())
            .map(|slot| (unpack(slot.key), unpack_path(slot.path)))
    }

    #[inline]
    fn find(&self, key: [u64; 2]) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut index = self.home(key);
        // Ends: the table is at most half full.
        loop {
            let slot = &self.slots[index & mask];
            if slot.key == key {
                return Some(index & mask);
            }
            if slot.is_free() {
                return None;
            }
            index += 1;
        }
    }

    /// Where a probe for `key` starts. Two folded multiplications (as in wyhash) with secret factors.
    #[inline]
    fn home(&self, key: [u64; 2]) -> usize {
        let first = fold(key[0] ^ self.seed[0], key[1] ^ self.seed[1]);
        let second = fold(first ^ self.seed[1], 0x9e37_79b9_7f4a_7c15);
        (second >> self.shift) as usize
    }

    fn place(&mut self, slot: Slot) {
        let mask = self.slots.len() - 1;
        let mut index = self.home(slot.key);
        while !self.slots[index].is_free() {
            index = (index + 1) & mask;
        }
        self.slots[index] = slot;
    }

    fn grow(&mut self) {
        let count = self.slots.len() * 2;
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); count]);
        self.shift = 64 - count.trailing_zeros();
        for slot in old.into_iter().filter(|slot| !slot.is_free()) {
            self.place(slot);
        }
    }
}

impl std::fmt::Debug for FlowTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FlowTable({} of {} slots)", self.len, self.slots.len())
    }
}

/// The high half of the 128-bit product, mixed with the low one.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product >> 64) as u64 ^ product as u64
}

/// Fifteen bytes of key; the sixteenth is 1, so that no key is zero.
#[inline]
fn pack(key: &FlowKey) -> [u64; 2] {
    let addresses = (key.remote.to_bits() as u64) << 32 | key.local.to_bits() as u64;
    let rest = (key.remote_port as u64) << 48
        | (key.local_port as u64) << 32
        | (key.device.0 as u64) << 16
        | (key.protocol as u64) << 8
        | 1;
    [addresses, rest]
}

fn unpack(key: [u64; 2]) -> FlowKey {
    FlowKey {
        remote: ((key[0] >> 32) as u32).into(),
        local: (key[0] as u32).into(),
        remote_port: (key[1] >> 48) as u16,
        local_port: (key[1] >> 32) as u16,
        device: scoutline_base::DeviceId((key[1] >> 16) as u16),
        protocol: (key[1] >> 8) as u8,
    }
}

#[inline]
fn pack_path(path: PathId) -> u64 {
    (path.generation as u64) << 32 | path.index as u64
}

#[inline]
fn unpack_path(path: u64) -> PathId {
    PathId { index: path as u32, generation: (path >> 32) as u32 }
}
