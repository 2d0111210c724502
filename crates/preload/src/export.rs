//! The C functions that the library puts before the C library's: each asks the table whether the descriptor is
//! ours, and hands over to the real function when it is not.
//!
//! `fcntl` and `ioctl` are variadic in C. They are defined here with a fixed third argument: on x86-64 and aarch64 a
//! variadic call passes it in the same register, and who passes none leaves garbage that is not looked at.

mod configured;
mod data;
mod exec;
mod interfaces;
mod life;
mod limits;
mod locked;
mod many;
#[cfg(target_arch = "x86_64")]
mod names;
mod raw;
#[cfg(target_arch = "x86_64")]
mod signals;
mod streams;
mod symbols;
#[cfg(target_arch = "x86_64")]
mod threads;

use std::ffi::c_int;
use std::slice;

use libc::{iovec, msghdr, ssize_t};

use crate::real::{self, err, finish};
use crate::slot::Socket;
use crate::wait::MOVED;
use crate::{cancel, memory, under_way};

pub(crate) use data::{RWF_NOWAIT, read, receive_message, write};
pub(crate) use raw::by_number;
#[cfg(target_arch = "x86_64")]
pub(crate) use {many::concerns as poll_concerns, many::poll_plain as poll};

/// The socket behind a descriptor, if ours.
#[inline]
fn ours(fd: c_int) -> Option<Socket> {
    Socket::of(fd)
}

/// [`either`] for a cancellation point: a thread that is cancelled already does nothing more, though it need not wait.
#[inline]
fn cancellable(fd: c_int, here: impl Fn(Socket) -> isize, there: impl Fn() -> ssize_t) -> ssize_t {
    if ours(fd).is_some() {
        real::pthread_testcancel();
    }
    either(fd, here, there)
}

/// What `here` gives with the socket of ours that `fd` is, or `there` if it is none: at once, or since `here` slept
/// ([`MOVED`]).
#[inline]
fn either(fd: c_int, here: impl Fn(Socket) -> isize, there: impl Fn() -> ssize_t) -> ssize_t {
    let _deferred = cancel::Deferred::new();
    loop {
        let Some(socket) = ours(fd) else {
            let result = there();
            // Another thread may have made it one of ours by `dup2` since we looked.
            if result < 0 && real::errno() == libc::ENOTCONN && ours(fd).is_some() {
                continue;
            }
            return result;
        };
        match under_way::call(fd, socket, || here(socket)) {
            Some(result) if result != err(MOVED) => return finish(result),
            _ => {}
        }
    }
}

/// A program's io vector.
fn vector<'a>(iov: *const iovec, count: usize) -> Result<&'a [iovec], isize> {
    if count > libc::UIO_MAXIOV as usize {
        return Err(err(libc::EINVAL));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if memory::is_nowhere(iov) {
        return Err(err(libc::EFAULT));
    }
    // SAFETY: the program vouches for `count` elements.
    let iov = unsafe { slice::from_raw_parts(iov, count) };
    memory::check(iov).map_err(err)?;
    Ok(iov)
}

/// That of a message (`copy_msghdr_from_user`).
fn vector_of<'a>(message: &msghdr) -> Result<&'a [iovec], isize> {
    if !message.msg_name.is_null() && message.msg_namelen.cast_signed() < 0 {
        return Err(err(libc::EINVAL));
    }
    if message.msg_iovlen > libc::UIO_MAXIOV as usize {
        return Err(err(libc::EMSGSIZE));
    }
    vector(message.msg_iov, message.msg_iovlen)
}
