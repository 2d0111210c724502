//! Calls that packetdrill makes past its table, for descriptors that are ours: `getsockopt` of code blocks (`TCP_INFO`)
//! and `sendfile`. Only where the library is preloaded as well; every other descriptor is the kernel's.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use libc::{off_t, size_t, socklen_t, ssize_t};
use scoutline_conformance::stack::Op;

use crate::calls;
use crate::plugin::Plugin;

/// The plug-in of this process.
static SERVED: Mutex<Weak<Plugin>> = Mutex::new(Weak::new());

pub(crate) fn serve(plugin: &Arc<Plugin>) {
    *SERVED.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(plugin);
}

/// The plug-in, if the descriptor is one of its.
fn of(fd: c_int) -> Option<Arc<Plugin>> {
    let plugin = SERVED.lock().unwrap_or_else(PoisonError::into_inner).upgrade()?;
    plugin.ask(move |host| host.has(fd)).then_some(plugin)
}

fn failed(errno: c_int) -> c_int {
    // SAFETY: the C library's own cell of this thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// `getsockopt`.
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    to: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    match of(fd) {
        Some(plugin) => calls::option(&plugin, fd, (level, name), to, len).map_or_else(failed, |_| 0),
        // SAFETY: the caller's promise, passed on.
        None => unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, to, len) as c_int },
    }
}

/// `sendfile` from a file to a socket.
///
/// # Safety
/// As the system call's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let Some(plugin) = of(to) else {
        // SAFETY: the caller's promise, passed on.
        return unsafe { libc::syscall(libc::SYS_sendfile, to, from, offset, count) as ssize_t };
    };
    let mut data = vec![0; count];
    // SAFETY: `data` has room for `count` bytes; a null `offset` means the file's own position.
    let read = unsafe {
        if offset.is_null() {
            libc::read(from, data.as_mut_ptr().cast(), count)
        } else {
            libc::pread(from, data.as_mut_ptr().cast(), count, *offset)
        }
    };
    if read < 0 {
        return read;
    }
    data.truncate(read as usize);
    let answer = plugin.call(Op::Send { fd: to, data, flags: 0, to: None, sent: 0 }, -1);
    if answer.value < 0 {
        return failed(answer.errno) as ssize_t;
    }
    if !offset.is_null() {
        // SAFETY: not null, and the caller's promise.
        unsafe { *offset += answer.value };
    }
    answer.value as ssize_t
}
