//! The C library's own streams on sockets of ours: standard input and output of a program that inetd or `git daemon`
//! started, `fdopen` on a connection.
//!
//! A `FILE` reads, writes and closes by a table of functions, and glibc's functions make the system call themselves, past
//! every library in front of it. So the entries for these three are exchanged in glibc's two tables for descriptors,
//! once, when the program attaches:
//!
//! ```text
//! stdin, stdout, fdopen(…) ─► _IO_file_jumps  (bytes)            read ─┐
//! the same after `fwide`    ─► _IO_wfile_jumps (wide characters) write ┼─► ours? `data`, `life` : as before
//!                                                                close ┘
//! ```
//! Buffering, positions, locks, orientation, `fileno`, flushing at `exit` and what a fork copies stay glibc's own, and
//! C++ streams stand on these. The other way, streams of ours by `fopencookie`, would have no `fileno`, and come too late
//! for who has kept the pointer `stdout`.
//!
//! The tables are part of glibc's ABI since 2.2 (`_IO_file_jumps` is exported), but a table of another shape is left
//! alone: an entry is exchanged only where it is the exported function that belongs there. Without that, who has a
//! stream on a socket of ours is told.
//!
//! Left out: streams of other C libraries; `perror` before anything was written to an unoriented `stderr` makes it one of
//! bytes.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{FILE, ssize_t};

use crate::table::Entry;
use crate::{cancel, export, life, real, table};

type Read = extern "C" fn(*mut FILE, *mut c_void, ssize_t) -> ssize_t;
type Write = extern "C" fn(*mut FILE, *const c_void, ssize_t) -> ssize_t;
type Close = extern "C" fn(*mut FILE) -> c_int;

/// Words of a table before the entry (`struct _IO_jump_t` of glibc's `libioP.h`, the two unused ones included).
const READ_AT: usize = 14;
const WRITE_AT: usize = 15;
const CLOSE_AT: usize = 17;
/// In a FILE's first word: a call failed. The macros of `stdio.h` look at it in programs.
const ERROR_SEEN: c_int = 0x20;

/// glibc's own functions; null: the tables are as they were.
static REAL_READ: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static REAL_WRITE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static REAL_CLOSE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// Some stream beside the standard ones may be on a socket of ours.
static ANY_OPENED: AtomicBool = AtomicBool::new(false);
static SAID: AtomicBool = AtomicBool::new(false);

fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a terminated name.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// From now on streams find our sockets. Called while the program is loaded, by its only thread.
pub(crate) fn serve() {
    let originals = [c"_IO_file_read", c"_IO_file_write", c"_IO_file_close"].map(symbol);
    let tables = [c"_IO_file_jumps", c"_IO_wfile_jumps"].map(|name| symbol(name).cast::<*mut c_void>());
    if originals.iter().any(|function| function.is_null())
        || !tables.into_iter().all(|table| is_known(table, originals))
        || !tables.into_iter().all(|table| protect(table, libc::PROT_READ | libc::PROT_WRITE))
    {
        return;
    }
    for (original, kept) in originals.into_iter().zip([&REAL_READ, &REAL_WRITE, &REAL_CLOSE]) {
        kept.store(original, Ordering::Release);
    }
    for table in tables {
        // SAFETY: both tables are as we know them, and were made writable. No other thread runs.
        unsafe {
            *table.add(READ_AT) = read as *mut c_void;
            *table.add(WRITE_AT) = write as *mut c_void;
            *table.add(CLOSE_AT) = close as *mut c_void;
        }
    }
    for table in tables {
        protect(table, libc::PROT_READ);
    }
}

/// The table has these functions where we know them.
fn is_known(table: *mut *mut c_void, [read, write, close]: [*mut c_void; 3]) -> bool {
    // SAFETY: the C library's table of 21 words, when there is one.
    !table.is_null()
        && unsafe {
            *table.add(READ_AT) == read && *table.add(WRITE_AT) == write && *table.add(CLOSE_AT) == close
        }
}

/// Changes how the pages of a table may be used: the loader has left them read-only.
fn protect(table: *mut *mut c_void, how: c_int) -> bool {
    // SAFETY: no arguments that could be wrong.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.unsigned_abs() as usize;
    let first = table.addr() & !(page - 1);
    let end = table.wrapping_add(CLOSE_AT + 1).addr().next_multiple_of(page);
    // SAFETY: whole pages of the C library's data, mapped for as long as the process lives.
    unsafe { libc::mprotect(table.with_addr(first).cast(), end - first, how) == 0 }
}

/// True when streams find our sockets.
pub(crate) fn is_served() -> bool {
    !REAL_READ.load(Ordering::Acquire).is_null()
}

/// A stream is opened on this descriptor.
pub(crate) fn opened(fd: c_int) {
    if table::look(fd) != Entry::Kernel {
        ANY_OPENED.store(true, Ordering::Relaxed);
        tell_if_not_served();
    }
}

/// Something was put on this number, on which a stream may be already.
pub(crate) fn put_under(fd: c_int) {
    if table::socket(fd).is_some() {
        ANY_OPENED.store(true, Ordering::Relaxed);
    }
}

/// Says once what does not work, if it does not.
pub(crate) fn tell_if_not_served() {
    if !is_served() && !SAID.swap(true, Ordering::Relaxed) {
        real::say(&[
            b"this C library's streams are not as we know them: a standard stream, or `fdopen`, on a socket will not work; ",
            b"`scoutline run --trap` serves such programs",
        ]);
    }
}

/// Whether one of the standard streams is a socket of ours.
pub(crate) fn is_standard() -> bool {
    (0..=2).any(|fd| table::socket(fd).is_some())
}

/// Whether the C library, which flushes streams after the last code of ours has run, may still write to sockets of ours.
pub(crate) fn may_flush() -> bool {
    is_served() && (ANY_OPENED.load(Ordering::Relaxed) || is_standard())
}

/// Flushes before the descriptor is replaced past us (`freopen`): the C library does it by `dup3` of its own.
pub(crate) fn reopening(stream: *mut FILE) {
    if stream.is_null() {
        return;
    }
    let fd = real::fileno(stream);
    if table::look(fd) != Entry::Kernel {
        // SAFETY: the program vouches for its stream.
        unsafe { libc::fflush(stream) };
        life::closing(fd);
    }
}

extern "C" fn read(stream: *mut FILE, buf: *mut c_void, n: ssize_t) -> ssize_t {
    let fd = real::fileno(stream);
    if table::socket(fd).is_some() {
        return export::read(fd, buf, n.max(0).unsigned_abs());
    }
    // SAFETY: stored before the table could lead here; the C library's function of this type.
    unsafe { transmute::<*mut c_void, Read>(REAL_READ.load(Ordering::Relaxed))(stream, buf, n) }
}

/// All of it, or the stream is marked as failed. How much was written.
extern "C" fn write(stream: *mut FILE, buf: *const c_void, n: ssize_t) -> ssize_t {
    let fd = real::fileno(stream);
    if table::socket(fd).is_none() {
        // SAFETY: as in `read`.
        return unsafe {
            transmute::<*mut c_void, Write>(REAL_WRITE.load(Ordering::Relaxed))(stream, buf, n)
        };
    }
    let done = write_all(fd, buf, n);
    if done < n {
        // SAFETY: a FILE begins with its flags, which programs' own macros read.
        unsafe { *stream.cast::<c_int>() |= ERROR_SEEN };
    }
    done
}

/// How much was written before a call failed.
fn write_all(fd: c_int, buf: *const c_void, n: ssize_t) -> ssize_t {
    let mut done = 0;
    while done < n {
        let got = export::write(fd, buf.wrapping_byte_offset(done), (n - done).unsigned_abs());
        if got < 0 {
            break;
        }
        done += got;
    }
    done
}

extern "C" fn close(stream: *mut FILE) -> c_int {
    let fd = real::fileno(stream);
    if table::look(fd) != Entry::Kernel {
        // The C library's own is no place to be cancelled.
        return cancel::uncancelled(|| life::close(fd));
    }
    // SAFETY: as in `read`.
    unsafe { transmute::<*mut c_void, Close>(REAL_CLOSE.load(Ordering::Relaxed))(stream) }
}

/// `vdprintf` on a socket of ours; `None` when it is not. From 2.37 on glibc writes here without a stream.
pub(crate) fn print(fd: c_int, format: impl FnOnce(*mut *mut c_char) -> c_int) -> Option<c_int> {
    table::socket(fd)?;
    let mut text = ptr::null_mut();
    let n = format(&raw mut text);
    if n < 0 {
        return Some(n);
    }
    let done = write_all(fd, text.cast(), n as ssize_t);
    let errno = real::errno();
    // SAFETY: what `vasprintf` has made.
    unsafe { libc::free(text.cast()) };
    real::set_errno(errno);
    Some(if done < n as ssize_t { -1 } else { n })
}
