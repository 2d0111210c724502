//! The same for sockets of datagrams: what is moved at once is one datagram, by way of memory of ours.

use std::ffi::{c_int, c_uint};

use libc::{iovec, off_t};

use super::{PIPE_PAGE, await_pipe, send_read};
use crate::cancel;
use crate::control::Said;
use crate::datagram;
use crate::lock::undisturbed;
use crate::real::{self, err};
use crate::slot::Socket;
use crate::wait::await_own;

/// What one datagram can carry by IPv6, and some bytes more, which is EMSGSIZE.
const MOST: usize = 65_536;

fn part(bytes: &mut [u8], len: usize) -> [iovec; 1] {
    [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len }]
}

fn send(socket: Socket, bytes: &mut [u8], flags: c_int) -> isize {
    let len = bytes.len();
    datagram::send(socket, &part(bytes, len), None, &Said::default(), flags)
}

/// Sends what a file has at `at`, or where it stands; `at` moves.
pub(super) fn send_file(socket: Socket, from: c_int, at: &mut Option<off_t>, want: usize) -> isize {
    if want == 0 {
        return 0;
    }
    let sent = send_read(from, *at, want.min(MOST), |bytes| send(socket, bytes, 0));
    if let Some(at) = at.as_mut().filter(|_| sent > 0) {
        *at += sent as off_t;
    }
    sent
}

/// From a pipe to the socket. What cannot be sent stays in the pipe: what goes out is a copy (tee(2)), and taken out of the
/// pipe then.
pub(super) fn splice_in(from: c_int, socket: Socket, want: usize, flags: c_uint) -> isize {
    if want == 0 {
        return 0;
    }
    let mut bytes = vec![0u8; want.min(MOST)];
    let got = loop {
        if let Err(result) = await_pipe(from, libc::POLLIN, flags) {
            return result;
        }
        // Another thread may have taken what was there.
        let got = copy_of(from, &mut bytes);
        if got != err(libc::EAGAIN) {
            break got;
        }
    };
    if got <= 0 {
        return got;
    }
    let more = if flags & libc::SPLICE_F_MORE == 0 { 0 } else { libc::MSG_MORE };
    let sent = send(socket, &mut bytes[..got as usize], more);
    if sent > 0 {
        take_out(from, &mut bytes[..sent as usize]);
    }
    sent
}

/// Takes so many bytes out of a pipe, unless another one was first.
fn take_out(from: c_int, bytes: &mut [u8]) {
    let mut ready = [libc::pollfd { fd: from, events: libc::POLLIN, revents: 0 }];
    let len = bytes.len();
    cancel::uncancelled(|| {
        if await_own(&mut ready, Some(0), std::ptr::null()) > 0 {
            real::readv(from, part(bytes, len).as_ptr(), 1);
        }
    });
}

/// A pipe of ours, both ends.
struct Pipe([c_int; 2]);

impl Pipe {
    fn new() -> Result<Pipe, c_int> {
        let mut ends = [-1; 2];
        // SAFETY: fills the array.
        let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if made < 0 { Err(real::errno()) } else { Ok(Pipe(ends)) }
    }
}

/// What is in a pipe, without waiting: bytes, or an errno negated. Nobody sleeps, is cancelled or jumps
/// out while the copy has descriptors.
fn copy_of(from: c_int, bytes: &mut [u8]) -> isize {
    let copy = || {
        let copy = match Pipe::new() {
            Ok(pipe) => pipe,
            Err(errno) => return err(errno),
        };
        let [read, write] = copy.0;
        let len = bytes.len();
        // SAFETY: plain system call.
        let copied = unsafe { libc::tee(from, write, len, libc::SPLICE_F_NONBLOCK) };
        if copied <= 0 {
            return real::ours(copied);
        }
        real::ours(real::readv(read, part(bytes, copied as usize).as_ptr(), 1))
    };
    cancel::uncancelled(|| undisturbed(copy))
}

impl Drop for Pipe {
    fn drop(&mut self) {
        for end in self.0 {
            real::close_uncancelled(end);
        }
    }
}

/// From the socket to a pipe: a datagram, as much of it as the pipe has room for.
pub(super) fn splice_out(socket: Socket, to: c_int, want: usize, flags: c_uint) -> isize {
    if let Err(result) = await_pipe(to, libc::POLLOUT, flags) {
        return result;
    }
    let mut bytes = vec![0u8; want.min(room_of(to)).min(MOST)];
    let len = bytes.len();
    let copied = match datagram::receive(socket, &part(&mut bytes, len), 0) {
        Err(errno) => return err(errno),
        Ok(taken) => taken.copied,
    };
    if copied == 0 {
        return 0;
    }
    real::ours(cancel::uncancelled(|| real::writev(to, part(&mut bytes, copied).as_ptr(), 1)))
}

/// Bytes for which a pipe that is ready for POLLOUT has room for certain: what is in it may have a page for each byte.
fn room_of(pipe: c_int) -> usize {
    let mut held: c_int = 0;
    real::ioctl(pipe, libc::FIONREAD, (&raw mut held).expose_provenance());
    if held > 0 {
        PIPE_PAGE
    } else {
        (real::fcntl(pipe, libc::F_GETPIPE_SZ, 0).max(0) as usize).max(PIPE_PAGE)
    }
}
