//! The program and its libraries as they are loaded: where the C library's code is, and who makes system calls.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::{ptr, slice};

use libc::dl_phdr_info;

use super::scan;
use crate::lock::Lock;

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

/// What is loaded later and has more code than this is not looked at: that would read gigabytes of some libraries from disk,
/// at 45 µs for each MiB that is there already.
const MOST_LATER: usize = 64 << 20;

/// What has been looked at: how much the loader had loaded and unloaded by then, and where the headers of each object lie. A
/// fork waits for who looks, since the loader's own lock would stay taken in the child.
struct Known {
    changes: (u64, u64),
    headers: Vec<usize>,
}

static KNOWN: Lock<Known> = Lock::new(Known { changes: (0, 0), headers: Vec::new() });

pub(super) fn before_fork() {
    KNOWN.take_over_fork();
}

pub(super) fn after_fork() {
    KNOWN.give_back();
}

/// Whether the program, or a library of its, makes system calls by itself that may be about sockets, of those that were not
/// looked at before. `None` where a part of it is in Go: a routine there may stand on a stack with no room for a signal handler.
pub(super) fn make_calls_of_their_own(library: &Range<usize>) -> Option<bool> {
    let own = make_calls_of_their_own as *const () as usize;
    let (mut wanted, mut is_go) = (false, false);
    let mut known = KNOWN.lock();
    let is_first = known.headers.is_empty();
    let mut now = Known { changes: known.changes, headers: Vec::new() };
    each(&mut |info| {
        now.changes = (info.dlpi_adds, info.dlpi_subs);
        if now.changes == known.changes {
            return true;
        }
        if now.changes.1 != known.changes.1 {
            known.headers.clear(); // another object may lie where one was
        }
        now.headers.push(info.dlpi_phdr.addr());
        if known.headers.contains(&info.dlpi_phdr.addr()) {
            return false;
        }
        let ranges = || code(info);
        is_go |= has_go_note(info);
        if !wanted
            && !ranges().any(|code| code.contains(&own) || code == *library)
            && (is_first || ranges().map(|code| code.len()).sum::<usize>() <= MOST_LATER)
            && is_readable(info)
            && !is_named_so(info)
        {
            // SAFETY: mapped as long as the loader tells of it, and readable.
            wanted = ranges().any(|code| scan::has_syscall(unsafe { bytes(code) }));
        }
        is_go
    });
    if !now.headers.is_empty() {
        *known = now;
    }
    (!is_go).then_some(wanted)
}

/// Whether an object says that Go's linker has made it (a note of that name; elf(5)).
fn has_go_note(info: &dl_phdr_info) -> bool {
    let notes = headers(info).iter().filter(|header| header.p_type == libc::PT_NOTE);
    notes.into_iter().any(|header| {
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        // SAFETY: a part of the object that the loader has mapped readable, for as long as it tells of it.
        let notes = unsafe {
            slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(start), header.p_memsz as usize)
        };
        scan::is_of_go(notes)
    })
}

/// # Safety
/// The range is mapped and readable for as long as the slice is used.
unsafe fn bytes<'a>(code: Range<usize>) -> &'a [u8] {
    let start: *const u8 = ptr::with_exposed_provenance(code.start);
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
