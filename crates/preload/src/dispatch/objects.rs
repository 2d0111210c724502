//! The program and its libraries as they are loaded: where the C library's code is, and who makes system calls.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use libc::dl_phdr_info;

use super::scan;

/// What the loader had loaded and unloaded when we looked last, and how many objects there were.
static LOADED: AtomicU64 = AtomicU64::new(0);
static UNLOADED: AtomicU64 = AtomicU64::new(0);
static LOOKED_AT: AtomicUsize = AtomicUsize::new(0);

/// Libraries that make system calls by instruction, and never about sockets: of threads and memory (futex, mmap), of
/// files (libaio), or those that watch the program's memory and stacks.
const NEVER_SOCKETS: [&[u8]; 12] = [
    b"ld-linux-x86-64.so",
    b"linux-vdso.so",
    b"libgomp.so",
    b"libgcc_s.so",
    b"libaio.so",
    b"libitm.so",
    b"libunwind",
    b"libasan.so",
    b"libtsan.so",
    b"libubsan.so",
    b"liblsan.so",
    b"libhwasan.so",
];

fn headers(info: &dl_phdr_info) -> &[libc::Elf64_Phdr] {
    if info.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: the loader's own headers, which stay while it tells of them.
    unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) }
}

const PAGE: usize = 4096;

/// The code of an object, piece by piece.
fn code(info: &dl_phdr_info) -> impl Iterator<Item = Range<usize>> {
    let base = info.dlpi_addr as usize;
    let mapped = headers(info)
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0);
    mapped.map(move |header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        start..start.wrapping_add(header.p_memsz as usize)
    })
}

/// Calls `visit` with each object until it says so.
fn each(visit: &mut dyn FnMut(&dl_phdr_info) -> bool) {
    extern "C" fn one(info: *mut dl_phdr_info, _: usize, visit: *mut c_void) -> c_int {
        // SAFETY: the loader's structure, and what `each` gave.
        let (info, visit) = unsafe { (&*info, &mut **visit.cast::<&mut dyn FnMut(&dl_phdr_info) -> bool>()) };
        c_int::from(visit(info))
    }
    let mut visit = visit;
    // SAFETY: `one` gets the pointer during the call only.
    unsafe { libc::dl_iterate_phdr(Some(one), (&raw mut visit).cast()) };
}

fn symbol(name: &CStr) -> usize {
    // SAFETY: a terminated name.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }.addr()
}

/// The C library's code, if all that we call is in one piece there: glibc from 2.34 on, and nobody in front of it.
pub(super) fn library() -> Option<Range<usize>> {
    let wanted =
        [c"gnu_get_libc_version", c"syscall", c"pthread_create", c"pthread_sigmask", c"sigaction", c"read"]
            .map(symbol);
    let mut found = None;
    each(&mut |info| {
        found = code(info).find(|code| wanted.iter().all(|address| code.contains(address)));
        found.is_some()
    });
    found
}

/// Whether an object that we have not looked at yet makes system calls by itself that may be about sockets.
pub(super) fn make_calls_of_their_own() -> bool {
    let own = make_calls_of_their_own as *const () as usize;
    let library = super::library();
    let (mut at, mut first, mut wanted) = (0, 0, false);
    each(&mut |info| {
        if at == 0 {
            let news = LOADED.swap(info.dlpi_adds, Ordering::Relaxed) != info.dlpi_adds;
            // New ones come last, unless some went.
            let all = UNLOADED.swap(info.dlpi_subs, Ordering::Relaxed) != info.dlpi_subs;
            if !news && !all {
                return true;
            }
            first = if all { 0 } else { LOOKED_AT.load(Ordering::Relaxed) };
        }
        at += 1;
        let ranges = || code(info);
        if at > first
            && !ranges().any(|code| code.contains(&own) || code == library)
            && is_readable(info)
            && !is_named_so(info)
        {
            // SAFETY: mapped as long as the loader tells of it, and readable.
            wanted |= ranges().any(|code| scan::has_syscall(unsafe { bytes(code) }));
        }
        wanted
    });
    LOOKED_AT.fetch_max(at, Ordering::Relaxed);
    wanted
}

/// # Safety
/// The range is mapped and readable for as long as the slice is used.
unsafe fn bytes<'a>(code: Range<usize>) -> &'a [u8] {
    let start: *const u8 = std::ptr::with_exposed_provenance(code.start);
    // One call instead of a page fault for each 64 KiB; kernels without it (before 5.14) say EINVAL.
    let first = code.start & !(PAGE - 1);
    let whole = std::ptr::with_exposed_provenance_mut(first);
    // SAFETY: reads what is mapped; nothing changes.
    unsafe { libc::madvise(whole, code.end - first, libc::MADV_POPULATE_READ) };
    // SAFETY: the caller's.
    unsafe { slice::from_raw_parts(start, code.len()) }
}

/// Whether code is mapped readable, too.
fn is_readable(info: &dl_phdr_info) -> bool {
    headers(info).iter().all(|header| {
        header.p_type != libc::PT_LOAD || header.p_flags & (libc::PF_X | libc::PF_R) != libc::PF_X
    })
}

fn is_named_so(info: &dl_phdr_info) -> bool {
    if info.dlpi_name.is_null() {
        return false;
    }
    // SAFETY: the loader's terminated name.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    NEVER_SOCKETS.iter().any(|known| name.starts_with(known))
}
