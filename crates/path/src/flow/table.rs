//! An exact-match table from flow to path.
//!
//! ```text
//! slots (a power of two, at most half full): IPv4 32 bytes each, two to a cache line; IPv6 64
//!   ┌──────────────┬────────┬───┐
//!   │ key, packed  │ PathId │ . │   a probe starts at hash(key) and goes on slot by slot
//!   └──────────────┴────────┴───┘
//! ```
//!
//! What a look-up costs is cache misses, so each family has one array of its own and no second look elsewhere: linear
//! probing, no tombstones (a removal shifts back what had been pushed on), 1.5 probes on a hit at worst load. The hash
//! is keyed by a seed from the system, so that nobody outside can aim for one slot.

use scoutline_base::{Address, DeviceId, PathId, Random};

use crate::FlowKey;

/// Slots of the smallest table.
const SMALLEST: usize = 64;

/// The flows of one engine.
///
/// Look-up allocates nothing. Insertion is O(1) amortised: the table doubles when it is half full;
/// [`FlowTable::with_capacity`] avoids that.
pub struct FlowTable {
    v4: Slots<V4_WORDS>,
    v6: Slots<V6_WORDS>,
}

/// Two addresses of four bytes, and the rest.
const V4_WORDS: usize = 2;
/// Two addresses of sixteen bytes, and the rest.
const V6_WORDS: usize = 5;

/// The flows of one family, whose keys pack into `N` words.
struct Slots<const N: usize> {
    slots: Vec<Slot<N>>,
    /// `64 - log2(slots)`: the hash's top bits are the slot.
    shift: u32,
    len: usize,
    seed: [u64; 2],
}

/// Free when the last word of `key` is zero, which that of no packed key is (see `rest`).
#[derive(Clone, Copy)]
#[repr(align(32))]
struct Slot<const N: usize> {
    key: [u64; N],
    path: u64,
}

const _: () = assert!(size_of::<Slot<V4_WORDS>>() == 32 && size_of::<Slot<V6_WORDS>>() == 64);

impl<const N: usize> Slot<N> {
    const FREE: Slot<N> = Slot { key: [0; N], path: 0 };

    #[inline]
    fn is_free(&self) -> bool {
        self.key[N - 1] == 0
    }
}

impl FlowTable {
    /// An empty table. `seed` is random, from the edge.
    pub fn new(seed: u64) -> FlowTable {
        FlowTable::with_capacity(SMALLEST / 2, seed)
    }

    /// An empty table that takes `flows` of IPv4 without growing.
    pub fn with_capacity(flows: usize, seed: u64) -> FlowTable {
        let mut random = Random::new(seed);
        FlowTable {
            v4: Slots::with_capacity(flows, &mut random),
            v6: Slots::with_capacity(SMALLEST / 2, &mut random),
        }
    }

    /// The path of this flow.
    #[inline(always)]
    pub fn lookup(&self, key: &FlowKey) -> Option<PathId> {
        if is_v4(key) { self.v4.lookup(pack_v4(key)) } else { self.v6.lookup(pack_v6(key)) }
    }

    /// Sets the path of a flow; gives the one that it had.
    pub fn insert(&mut self, key: &FlowKey, path: PathId) -> Option<PathId> {
        if is_v4(key) { self.v4.insert(pack_v4(key), path) } else { self.v6.insert(pack_v6(key), path) }
    }

    /// Takes a flow out; gives its path.
    pub fn remove(&mut self, key: &FlowKey) -> Option<PathId> {
        if is_v4(key) { self.v4.remove(pack_v4(key)) } else { self.v6.remove(pack_v6(key)) }
    }

    /// Takes a flow out if it still belongs to this path.
    pub fn remove_if(&mut self, key: &FlowKey, path: PathId) -> bool {
        self.lookup(key) == Some(path) && self.remove(key).is_some()
    }

    /// Flows in the table.
    pub fn len(&self) -> usize {
        self.v4.len + self.v6.len
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All flows, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (FlowKey, PathId)> + '_ {
        let v4 = self.v4.iter().map(|(key, path)| (unpack_v4(key), path));
        v4.chain(self.v6.iter().map(|(key, path)| (unpack_v6(key), path)))
    }
}

impl<const N: usize> Slots<N> {
    fn with_capacity(flows: usize, random: &mut Random) -> Slots<N> {
        let count = (flows * 2).next_power_of_two().max(SMALLEST);
        Slots {
            slots: vec![Slot::FREE; count],
            shift: 64 - count.trailing_zeros(),
            len: 0,
            seed: [random.next_u64() | 1, random.next_u64() | 1],
        }
    }

    #[inline]
    fn lookup(&self, key: [u64; N]) -> Option<PathId> {
        self.find(key).map(|index| unpack_path(self.slots[index].path))
    }

    fn insert(&mut self, key: [u64; N], path: PathId) -> Option<PathId> {
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

    fn remove(&mut self, key: [u64; N]) -> Option<PathId> {
        let mut hole = self.find(key)?;
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
        self.slots[hole] = Slot::FREE;
        self.len -= 1;
        Some(removed)
    }

    fn iter(&self) -> impl Iterator<Item = ([u64; N], PathId)> + '_ {
        self.slots.iter().filter(|slot| !slot.is_free()).map(|slot| (slot.key, unpack_path(slot.path)))
    }

    #[inline]
    fn find(&self, key: [u64; N]) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut index = self.home(key);
        // Ends: the table is at most half full.
        loop {
            let slot = &self.slots[index & mask];
            if same(slot.key, key) {
                return Some(index & mask);
            }
            if slot.is_free() {
                return None;
            }
            index += 1;
        }
    }

    /// Where a probe for `key` starts. Folded multiplications (as in wyhash) with secret factors.
    #[inline]
    fn home(&self, key: [u64; N]) -> usize {
        let mut hash = fold(key[0] ^ self.seed[0], key[1] ^ self.seed[1]);
        for &word in &key[2..] {
            hash = fold(hash ^ word, self.seed[0]);
        }
        let last = fold(hash ^ self.seed[1], 0x9e37_79b9_7f4a_7c15);
        (last >> self.shift) as usize
    }

    fn place(&mut self, slot: Slot<N>) {
        let mask = self.slots.len() - 1;
        let mut index = self.home(slot.key);
        while !self.slots[index].is_free() {
            index = (index + 1) & mask;
        }
        self.slots[index] = slot;
    }

    fn grow(&mut self) {
        let count = self.slots.len() * 2;
        let old = std::mem::replace(&mut self.slots, vec![Slot::FREE; count]);
        self.shift = 64 - count.trailing_zeros();
        for slot in old.into_iter().filter(|slot| !slot.is_free()) {
            self.place(slot);
        }
    }
}

impl std::fmt::Debug for FlowTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slots = self.v4.slots.len() + self.v6.slots.len();
        write!(f, "FlowTable({} of {slots} slots)", self.len())
    }
}

/// Equality without a call: of arrays of this length the compiler makes one of `memcmp`.
#[inline]
fn same<const N: usize>(a: [u64; N], b: [u64; N]) -> bool {
    (0..N).fold(0, |difference, index| difference | (a[index] ^ b[index])) == 0
}

/// The high half of the 128-bit product, mixed with the low one.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product >> 64) as u64 ^ product as u64
}

#[inline]
fn is_v4(key: &FlowKey) -> bool {
    key.local.is_v4() && key.remote.is_v4()
}

/// All but the addresses: seven bytes, and an eighth that is 1, so that no key is zero.
#[inline]
fn rest(key: &FlowKey) -> u64 {
    (key.remote_port as u64) << 48
        | (key.local_port as u64) << 32
        | (key.device.0 as u64) << 16
        | (key.protocol as u64) << 8
        | 1
}

#[inline]
fn pack_v4(key: &FlowKey) -> [u64; V4_WORDS] {
    [(key.remote.low_bits() as u64) << 32 | key.local.low_bits() as u64, rest(key)]
}

#[inline]
fn pack_v6(key: &FlowKey) -> [u64; V6_WORDS] {
    let ([a, b], [c, d]) = (key.remote.words(), key.local.words());
    [a, b, c, d, rest(key)]
}

fn unpack_v4([addresses, rest]: [u64; V4_WORDS]) -> FlowKey {
    let address = |bits: u32| std::net::Ipv4Addr::from_bits(bits).into();
    unpack(address((addresses >> 32) as u32), address(addresses as u32), rest)
}

fn unpack_v6([a, b, c, d, rest]: [u64; V6_WORDS]) -> FlowKey {
    unpack(Address::from_words([a, b]), Address::from_words([c, d]), rest)
}

fn unpack(remote: Address, local: Address, rest: u64) -> FlowKey {
    FlowKey {
        remote,
        local,
        remote_port: (rest >> 48) as u16,
        local_port: (rest >> 32) as u16,
        device: DeviceId((rest >> 16) as u16),
        protocol: (rest >> 8) as u8,
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
