//! What a program loads with RTLD_DEEPBIND (PHP its extensions) is bound to the C library's functions, past ours: it is
//! bound to ours, once the program looks up something in it.
//!
//! ```text
//!   plug-in  call connect ─► its table: connect ──✗──► the C library's
//!                                            └───────► ours
//! ```
//! A table's entry that leads to the C library, or is still to be resolved, is changed if we stand in front of that function
//! (ELF gABI, *Dynamic Linking*; psABI, *Relocation*). What leads elsewhere stays as it is: a third library may stand between.
//!
//! Left out: what lies in a namespace of its own (`dlmopen`), which the loader does not show.

use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{ptr, slice};

use libc::{Elf64_Phdr, dl_phdr_info};

use crate::loaded::{each, headers, range};
use crate::lock::{Lock, undisturbed};

/// `Elf64_Dyn`
#[repr(C)]
struct Dyn {
    tag: i64,
    value: usize,
}

/// `Elf64_Rela`
#[repr(C)]
struct Rela {
    offset: usize,
    info: u64,
    addend: i64,
}

/// `Elf64_Sym`
#[repr(C)]
struct Sym {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: u64,
}

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const STT_FUNC: u8 = 2;

/// Relocations that hold the address of a symbol: absolute, of the global offset table, of the procedure linkage table.
#[cfg(target_arch = "x86_64")]
const ADDRESSES: [u32; 3] = [1, 6, 7];
#[cfg(target_arch = "aarch64")]
const ADDRESSES: [u32; 3] = [257, 1025, 1026];

/// What has been looked at. Held over a fork, since the loader's own lock would stay taken in the child; never while something
/// is looked up, which waits for who loads, and that one may wait here.
struct Known {
    loaded: Loaded,
    ours: Ours,
}

/// How much the loader had loaded and unloaded, and where the headers of each object lie.
struct Loaded {
    changes: (u64, u64),
    headers: Vec<usize>,
}

/// Our functions that stand right before one of the C library, by name, and where that lies.
struct Ours {
    functions: Vec<(&'static CStr, usize)>,
    library: Range<usize>,
}

static KNOWN: Lock<Known> = Lock::new(Known {
    loaded: Loaded { changes: (0, 0), headers: Vec::new() },
    ours: Ours { functions: Vec::new(), library: 0..0 },
});

/// So often something may be unloaded while we look.
const TRIES: usize = 4;

pub(crate) fn before_fork() {
    KNOWN.take_over_fork();
}

pub(crate) fn after_fork() {
    KNOWN.give_back();
}

/// The program may have loaded something: binds it to our functions. `look_up`: the function of a name that comes first, and
/// the one that comes after ours.
pub(crate) fn look_again(look_up: impl Fn(&CStr) -> [*mut c_void; 2]) {
    for _ in 0..TRIES {
        let Some(loaded) = known(news) else { return };
        if known(|known| known.ours.library.is_empty()) {
            let ours = Ours::find(&look_up);
            known(|known| known.ours = ours);
        }
        // It waits for who loads: what is listed is as the loader leaves it then.
        look_up(c"dlsym");
        if known(|known| bind_all(known, loaded)) {
            return;
        }
    }
}

fn known<R>(work: impl FnOnce(&mut Known) -> R) -> R {
    undisturbed(|| work(&mut KNOWN.lock()))
}

/// What is loaded, if that has changed.
fn news(known: &mut Known) -> Option<Loaded> {
    let mut now = Loaded { changes: known.loaded.changes, headers: Vec::new() };
    each(&mut |info| {
        now.changes = (info.dlpi_adds, info.dlpi_subs);
        now.headers.push(info.dlpi_phdr.addr());
        now.changes == known.loaded.changes
    });
    if now.changes.1 != known.loaded.changes.1 {
        known.loaded.headers.clear(); // another object may lie where one was
    }
    (now.changes != known.loaded.changes).then_some(now)
}

/// Binds what is listed and was not before. False where something has been unloaded meanwhile: in its place there may be what
/// is just being loaded.
fn bind_all(known: &mut Known, loaded: Loaded) -> bool {
    let mut is_as_listed = true;
    each(&mut |info| {
        let at = info.dlpi_phdr.addr();
        is_as_listed = info.dlpi_subs == loaded.changes.1;
        let is_new = loaded.headers.contains(&at) && !known.loaded.headers.contains(&at);
        if is_as_listed && is_new && !is_at(info, known.ours.library.start) && !is_at(info, own()) {
            bind(info, &known.ours);
        }
        !is_as_listed
    });
    if is_as_listed {
        known.loaded = loaded;
    }
    is_as_listed
}

/// An address in this library.
fn own() -> usize {
    own as *const () as usize
}

impl Ours {
    fn find(look_up: impl Fn(&CStr) -> [*mut c_void; 2]) -> Ours {
        let [version, _] = look_up(c"gnu_get_libc_version").map(<*mut c_void>::addr);
        let mut ours = Ours { functions: Vec::new(), library: 0..0 };
        known(|_| {
            each(&mut |info| {
                if is_at(info, version) {
                    ours.library = extent(info);
                } else if is_at(info, own())
                    && let Some(object) = Object::of(info)
                {
                    ours.functions = object.functions();
                }
                false
            });
        });
        ours.functions.retain(|(name, address)| {
            let [first, next] = look_up(name).map(<*mut c_void>::addr);
            first == *address && ours.library.contains(&next)
        });
        ours.functions.sort_unstable();
        ours
    }
}

/// Changes what an object's tables say of functions before which we stand.
fn bind(info: &dl_phdr_info, ours: &Ours) {
    let Some(object) = Object::of(info) else { return };
    let extent = extent(info);
    // SAFETY: a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let parts = || headers(info).iter().map(|header| (header, range(info, header)));
    let is_data = |at: &usize| {
        let is_writable =
            |header: &Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0;
        parts().any(|(header, part)| is_writable(header) && part.contains(at))
    };
    // Whole pages of it, which the loader has made read-only.
    let final_part = parts().find(|(header, _)| header.p_type == libc::PT_GNU_RELRO);
    let final_part = final_part.map_or(0..0, |(_, part)| part.start..part.end & !(page - 1));
    for entry in object.tables.iter().flat_map(|table| table.iter()) {
        let (kind, symbol) = (entry.info as u32, (entry.info >> 32) as usize);
        if symbol == 0 || entry.addend != 0 || !ADDRESSES.contains(&kind) {
            continue;
        }
        let Some((name, is_own)) = object.symbol(symbol) else { continue };
        let at = object.base.wrapping_add(entry.offset);
        if is_own || !is_data(&at) {
            continue;
        }
        // SAFETY: the loader has written there, and the object stays while it tells of it.
        let slot = unsafe { &*ptr::with_exposed_provenance::<AtomicUsize>(at) };
        let bound = slot.load(Ordering::Relaxed);
        let is_unresolved = kind == ADDRESSES[2] && extent.contains(&bound);
        if (is_unresolved || ours.library.contains(&bound))
            && let Ok(found) = ours.functions.binary_search_by_key(&name, |(name, _)| name)
        {
            change(slot, ours.functions[found].1, final_part.contains(&at).then_some(page));
        }
    }
}

/// Writes. `page`: in one of this size that may only be read.
fn change(slot: &AtomicUsize, ours: usize, page: Option<usize>) {
    let protect = |how| {
        let Some(page) = page else { return true };
        let start = ptr::from_ref(slot).cast_mut().cast::<c_void>().map_addr(|at| at & !(page - 1));
        // SAFETY: a page of the object; it is data that nobody runs.
        unsafe { libc::mprotect(start, page, how) == 0 }
    };
    if protect(libc::PROT_READ | libc::PROT_WRITE) {
        slot.store(ours, Ordering::Relaxed);
        protect(libc::PROT_READ);
    }
}

/// An object's dynamic section.
struct Object {
    base: usize,
    symbols: *const Sym,
    names: *const u8,
    hash: *const u32,
    /// Of data, and of the procedure linkage table.
    tables: [&'static [Rela]; 2],
}

impl Object {
    /// For as long as the loader tells of the object.
    fn of(info: &dl_phdr_info) -> Option<Object> {
        let dynamic = headers(info).iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let base = info.dlpi_addr as usize;
        let mut entry = ptr::with_exposed_provenance::<Dyn>(range(info, dynamic).start);
        let mut values = [0; 7];
        let tags = [DT_SYMTAB, DT_STRTAB, DT_GNU_HASH, DT_RELA, DT_RELASZ, DT_JMPREL, DT_PLTRELSZ];
        // SAFETY: a list that ends with DT_NULL.
        while let Dyn { tag, value } = unsafe { entry.read() }
            && tag != DT_NULL
        {
            if let Some(at) = tags.iter().position(|known| *known == tag) {
                values[at] = value;
            }
            // SAFETY: it was not the last.
            entry = unsafe { entry.add(1) };
        }
        let [symbols, names, hash, data, data_len, links, links_len] = values;
        // The loader has put addresses there, but for objects whose section it cannot write (the vDSO).
        if symbols < base || names < base {
            return None;
        }
        let table = |at: usize, len: usize| match len / size_of::<Rela>() {
            0 => &[][..],
            // SAFETY: the loader's own, which stays with the object.
            count => unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(at), count) },
        };
        Some(Object {
            base,
            symbols: ptr::with_exposed_provenance(symbols),
            names: ptr::with_exposed_provenance(names),
            hash: ptr::with_exposed_provenance(hash),
            tables: [table(data, data_len), table(links, links_len)],
        })
    }

    /// The name of a symbol that relocations or the hash table tell of, and whether the object has it itself.
    fn symbol(&self, index: usize) -> Option<(&'static CStr, bool)> {
        // SAFETY: within the table, whose names are terminated.
        unsafe {
            let symbol = &*self.symbols.add(index);
            (symbol.name != 0)
                .then(|| (CStr::from_ptr(self.names.add(symbol.name as usize).cast()), symbol.section != 0))
        }
    }

    /// The functions that it defines.
    fn functions(&self) -> Vec<(&'static CStr, usize)> {
        let mut functions = Vec::new();
        if self.hash.is_null() {
            return functions;
        }
        // SAFETY: a GNU hash table: counts of buckets, unhashed symbols, words of 64 bits of a filter; filter, buckets, and a
        // value for each hashed symbol, whose lowest bit ends a chain.
        unsafe {
            let [buckets, first, filter] = [0, 1, 2].map(|at| self.hash.add(at).read() as usize);
            let chains = self.hash.add(4 + 2 * filter);
            let values = chains.add(buckets);
            for bucket in 0..buckets {
                let mut index = chains.add(bucket).read() as usize;
                while index >= first {
                    let symbol = &*self.symbols.add(index);
                    if symbol.info & 15 == STT_FUNC
                        && let Some((name, true)) = self.symbol(index)
                    {
                        functions.push((name, self.base.wrapping_add(symbol.value)));
                    }
                    if values.add(index - first).read() & 1 != 0 {
                        break;
                    }
                    index += 1;
                }
            }
        }
        functions
    }
}

/// From an object's lowest address to its highest.
fn extent(info: &dl_phdr_info) -> Range<usize> {
    let mapped = || headers(info).iter().filter(|header| header.p_type == libc::PT_LOAD);
    let start = mapped().map(|header| range(info, header).start).min().unwrap_or(0);
    start..mapped().map(|header| range(info, header).end).max().unwrap_or(0)
}

fn is_at(info: &dl_phdr_info, address: usize) -> bool {
    extent(info).contains(&address)
}
