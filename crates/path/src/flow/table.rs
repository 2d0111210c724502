//! An exact-match table from flow to path: extendible hashing (Fagin, Nievergelt, Pippenger and Strong 1979) over pages
//! that are probed line by line.
//!
//! ```text
//! directory            pages of 256 cache lines each: IPv4 two slots to a line, IPv6 one
//!  00 ──────────────►  ┌──────────────────┬──────────────────┐
//!  01 ──┬───────────►  │ key PathId       │ key PathId       │  a probe starts at the line that the
//!  10 ──┘              ├──────────────────┼──────────────────┤  hash's low bits name, and goes on slot
//!  11 ──────────────►  │ key PathId       │ free: it ends    │  by slot, around the page
//!  hash's top bits     └──────────────────┴──────────────────┘
//! ```
//!
//! What a look-up costs is cache misses. So key and path stand in one line, 1.1 lines are touched on a hit with a million
//! flows, and the directory (16 KiB then) stays in the cache. There are no tombstones: a removal shifts back what had been
//! pushed on. The hash is keyed by a seed from the system, so that nobody outside can aim for one line.
//!
//! Growth never stops the engine: a page that is three quarters full is divided in two, which moves the flows of this
//! page only ([`PAGE_LINES`] lines: some 10 µs), whatever the number of others. Pages are not joined again.
//!
//! Pages lie in slabs of 8 MiB that the kernel is asked to back by huge pages: with pages of 4 KiB most of a look-up among a
//! million flows was the walk of the page table. For a burst, [`Probe::prefetch`] has the lines brought in together.

use scoutline_base::{Address, DeviceId, PathId, Random};
use scoutline_ring::{prefer_huge_pages, prefetch};

use crate::FlowKey;

/// Lines of a page: 16 KiB. Larger ones make dividing longer, smaller ones the directory larger than the first cache.
const PAGE_LINES: usize = 256;
/// Pages of a slab: 8 MiB, so that most of it is whole huge pages wherever it begins.
const SLAB_PAGES: usize = 512;
/// A table this small needs no huge page: 128 pages are 2 MiB.
const SMALL_PAGES: usize = 128;

/// The flows of one engine.
///
/// Look-up allocates nothing. Insertion takes constant time, and that of dividing one page now and then.
pub struct FlowTable {
    v4: Slots<V4_WORDS, V4_SLOTS>,
    v6: Slots<V6_WORDS, V6_SLOTS>,
}

/// Two addresses of four bytes, and the rest.
const V4_WORDS: usize = 2;
/// Two addresses of sixteen bytes, and the rest.
const V6_WORDS: usize = 5;
/// Slots in a line.
const V4_SLOTS: usize = 2;
const V6_SLOTS: usize = 1;

/// The flows of one family, whose keys pack into `N` words, `S` to a line.
struct Slots<const N: usize, const S: usize> {
    /// By the top bits of the hash: the page's number. A page is named by all entries that begin with its bits.
    directory: Vec<u32>,
    /// `63 - log2(directory)`, see [`Slots::page_of`].
    shift: u32,
    pages: Vec<Page>,
    /// Filled from the front; their memory is asked for whole and touched page by page.
    slabs: Vec<Vec<Line<N, S>>>,
    len: usize,
    seed: [u64; 2],
}

/// What is known of a page beside its lines.
struct Page {
    /// How many of the hash's top bits all its flows have in common.
    depth: u32,
    /// Flows in it.
    len: u32,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line<const N: usize, const S: usize>([Slot<N>; S]);

/// Free when the last word of `key` is zero, which that of no packed key is (see `rest`).
#[derive(Clone, Copy)]
#[repr(align(32))]
struct Slot<const N: usize> {
    key: [u64; N],
    path: u64,
}

const _: () = assert!(size_of::<Line<V4_WORDS, V4_SLOTS>>() == 64);
const _: () = assert!(size_of::<Line<V6_WORDS, V6_SLOTS>>() == 64);

impl<const N: usize> Slot<N> {
    const FREE: Slot<N> = Slot { key: [0; N], path: 0 };

    #[inline]
    fn is_free(&self) -> bool {
        self.key[N - 1] == 0
    }
}

/// The lines of one page.
type Lines<const N: usize, const S: usize> = [Line<N, S>; PAGE_LINES];

impl FlowTable {
    /// An empty table. `seed` is random, from the edge.
    pub fn new(seed: u64) -> FlowTable {
        let mut random = Random::new(seed);
        FlowTable { v4: Slots::new(&mut random), v6: Slots::new(&mut random) }
    }

    /// The path of this flow.
    #[inline(always)]
    pub fn lookup(&self, key: &FlowKey) -> Option<PathId> {
        self.probe(key).path()
    }

    /// Begins to look a flow up.
    #[inline(always)]
    pub fn probe(&self, key: &FlowKey) -> Probe<'_> {
        let v6 = || Seek::V6(self.v6.search(pack_v6(key)));
        Probe(if is_v4(key) { Seek::V4(self.v4.search(pack_v4(key))) } else { v6() })
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
    #[inline]
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

/// A flow that is being looked up: what can be done without its line is done.
#[derive(Clone, Copy)]
pub struct Probe<'t>(Seek<'t>);

#[derive(Clone, Copy)]
enum Seek<'t> {
    V4(Search<'t, V4_WORDS, V4_SLOTS>),
    V6(Search<'t, V6_WORDS, V6_SLOTS>),
}

/// A key, its page, and the line in which it is looked for first.
#[derive(Clone, Copy)]
struct Search<'t, const N: usize, const S: usize> {
    lines: &'t Lines<N, S>,
    home: usize,
    key: [u64; N],
}

impl Probe<'_> {
    /// Has the line in which it begins brought into the cache.
    #[inline(always)]
    pub fn prefetch(&self) {
        match &self.0 {
            Seek::V4(search) => prefetch(search.line()),
            Seek::V6(search) => prefetch(search.line()),
        }
    }

    /// The flow's path.
    #[inline(always)]
    pub fn path(&self) -> Option<PathId> {
        match &self.0 {
            Seek::V4(search) => search.path(),
            Seek::V6(search) => search.path(),
        }
    }
}

impl<const N: usize, const S: usize> Search<'_, N, S> {
    #[inline(always)]
    fn line(&self) -> &Line<N, S> {
        &self.lines[self.home % PAGE_LINES]
    }

    #[inline(always)]
    fn path(&self) -> Option<PathId> {
        let mut line = self.home;
        // Ends: no page is full.
        loop {
            // All slots of a line are compared before anything is decided: which of them it is, nobody can predict.
            let (mut path, mut found, mut free) = (0, false, false);
            for slot in &self.lines[line % PAGE_LINES].0 {
                let is_it = same(slot.key, self.key);
                path |= if is_it { slot.path } else { 0 };
                found |= is_it;
                free |= slot.is_free();
            }
            if found {
                return Some(unpack_path(path));
            }
            if free {
                return None;
            }
            line += 1;
        }
    }
}

impl<const N: usize, const S: usize> Slots<N, S> {
    const PAGE_SLOTS: usize = PAGE_LINES * S;
    /// A page with more flows is divided: probes stay short, and end.
    const FULL: u32 = (Self::PAGE_SLOTS / 4 * 3) as u32;

    fn new(random: &mut Random) -> Slots<N, S> {
        let mut slots = Slots {
            directory: vec![0],
            shift: 63,
            pages: Vec::new(),
            slabs: Vec::new(),
            len: 0,
            seed: [random.next_u64() | 1, random.next_u64() | 1],
        };
        slots.add_page(0);
        slots
    }

    #[inline(always)]
    fn search(&self, key: [u64; N]) -> Search<'_, N, S> {
        let hash = self.hash(key);
        Search { lines: self.lines(self.page_of(hash)), home: home(hash), key }
    }

    fn insert(&mut self, key: [u64; N], path: PathId) -> Option<PathId> {
        let hash = self.hash(key);
        let mut page = self.page_of(hash);
        let lines = self.lines_mut(page);
        if let Some(at) = find(lines, hash, key) {
            let old = std::mem::replace(&mut slot_mut(lines, at).path, pack_path(path));
            return Some(unpack_path(old));
        }
        while self.pages[page].len >= Self::FULL {
            self.divide(page, hash);
            page = self.page_of(hash);
        }
        place(self.lines_mut(page), hash, Slot { key, path: pack_path(path) });
        self.pages[page].len += 1;
        self.len += 1;
        None
    }

    fn remove(&mut self, key: [u64; N]) -> Option<PathId> {
        let (hash, seed) = (self.hash(key), self.seed);
        let page = self.page_of(hash);
        let lines = self.lines_mut(page);
        let mut hole = find(lines, hash, key)?;
        let removed = unpack_path(slot(lines, hole).path);
        let mask = Self::PAGE_SLOTS - 1;
        let mut next = hole;
        loop {
            next = (next + 1) & mask;
            let moving = *slot(lines, next);
            if moving.is_free() {
                break;
            }
            // It may move into the hole if its home is not in between (cyclically).
            let home = home(hash_of(moving.key, seed)) * S;
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                *slot_mut(lines, hole) = moving;
                hole = next;
            }
        }
        *slot_mut(lines, hole) = Slot::FREE;
        self.pages[page].len -= 1;
        self.len -= 1;
        Some(removed)
    }

    fn iter(&self) -> impl Iterator<Item = ([u64; N], PathId)> + '_ {
        let slots = self.slabs.iter().flatten().flat_map(|line| &line.0);
        slots.filter(|slot| !slot.is_free()).map(|slot| (slot.key, unpack_path(slot.path)))
    }

    #[inline]
    fn hash(&self, key: [u64; N]) -> u64 {
        hash_of(key, self.seed)
    }

    /// The number of the page for this hash.
    #[inline]
    fn page_of(&self, hash: u64) -> usize {
        // In two steps, since a directory of one entry takes none of the 64 bits.
        self.directory[(hash >> 1 >> self.shift) as usize] as usize
    }

    #[inline]
    fn lines(&self, page: usize) -> &Lines<N, S> {
        let slab = &self.slabs[page / SLAB_PAGES];
        slab[page % SLAB_PAGES * PAGE_LINES..].first_chunk().expect("slabs are made of whole pages")
    }

    #[inline]
    fn lines_mut(&mut self, page: usize) -> &mut Lines<N, S> {
        let slab = &mut self.slabs[page / SLAB_PAGES];
        slab[page % SLAB_PAGES * PAGE_LINES..].first_chunk_mut().expect("slabs are made of whole pages")
    }

    fn add_page(&mut self, depth: u32) -> usize {
        let page = self.pages.len();
        if page.is_multiple_of(SLAB_PAGES) {
            self.slabs.push(Vec::with_capacity(SLAB_PAGES * PAGE_LINES));
        }
        let slab = self.slabs.last_mut().expect("the first page brings the first slab");
        if page >= SMALL_PAGES && (page.is_multiple_of(SLAB_PAGES) || page == SMALL_PAGES) {
            prefer_huge_pages(slab.spare_capacity_mut());
        }
        slab.resize(slab.len() + PAGE_LINES, Line([Slot::FREE; S]));
        self.pages.push(Page { depth, len: 0 });
        page
    }

    /// Divides a page, that of the hash `of`, by the next bit of its flows' hashes. That ends: nobody who does not know the
    /// seed can make a page's flows agree in more bits than as many flows agree in by chance.
    fn divide(&mut self, page: usize, of: u64) {
        let depth = self.pages[page].depth + 1;
        if 63 - self.shift < depth {
            self.directory = self.directory.iter().flat_map(|&page| [page; 2]).collect();
            self.shift -= 1;
        }
        self.pages[page].depth = depth;
        let other = self.add_page(depth);
        let old = std::mem::replace(self.lines_mut(page), [Line([Slot::FREE; S]); PAGE_LINES]);
        let mut moved = 0;
        for slot in old.iter().flat_map(|line| line.0).filter(|slot| !slot.is_free()) {
            let hash = self.hash(slot.key);
            let to_other = hash >> (64 - depth) & 1 == 1;
            moved += u32::from(to_other);
            place(self.lines_mut(if to_other { other } else { page }), hash, slot);
        }
        self.pages[page].len -= moved;
        self.pages[other].len = moved;
        // The other page's entries: all that begin with the bits which the page had, and a 1.
        let wide = 63 - self.shift - depth;
        let first = ((of >> (64 - depth) | 1) as usize) << wide;
        self.directory[first..first + (1 << wide)].fill(other as u32);
    }
}

impl std::fmt::Debug for FlowTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pages = self.v4.pages.len() + self.v6.pages.len();
        write!(f, "FlowTable({} in {pages} pages)", self.len())
    }
}

/// The line in which a probe begins: the hash's low bits, as its top bits have chosen the page.
#[inline]
fn home(hash: u64) -> usize {
    hash as usize % PAGE_LINES
}

#[inline]
fn slot<const N: usize, const S: usize>(lines: &Lines<N, S>, at: usize) -> &Slot<N> {
    &lines[at / S % PAGE_LINES].0[at % S]
}

#[inline]
fn slot_mut<const N: usize, const S: usize>(lines: &mut Lines<N, S>, at: usize) -> &mut Slot<N> {
    &mut lines[at / S % PAGE_LINES].0[at % S]
}

/// Which slot of a page has this key.
#[inline]
fn find<const N: usize, const S: usize>(lines: &Lines<N, S>, hash: u64, key: [u64; N]) -> Option<usize> {
    let mut line = home(hash);
    // Ends: no page is full.
    loop {
        for (index, slot) in lines[line].0.iter().enumerate() {
            if same(slot.key, key) {
                return Some(line * S + index);
            }
            if slot.is_free() {
                return None;
            }
        }
        line = (line + 1) % PAGE_LINES;
    }
}

/// Puts a flow that is not there into the first free slot of its page.
fn place<const N: usize, const S: usize>(lines: &mut Lines<N, S>, hash: u64, new: Slot<N>) {
    let mut at = home(hash) * S;
    while !slot(lines, at).is_free() {
        at += 1;
    }
    *slot_mut(lines, at) = new;
}

/// Folded multiplications (as in wyhash) with secret factors.
#[inline]
fn hash_of<const N: usize>(key: [u64; N], seed: [u64; 2]) -> u64 {
    let mut hash = fold(key[0] ^ seed[0], key[1] ^ seed[1]);
    for &word in &key[2..] {
        hash = fold(hash ^ word, seed[0]);
    }
    fold(hash ^ seed[1], 0x9e37_79b9_7f4a_7c15)
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
