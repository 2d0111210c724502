//! The same for sockets of datagrams: what is moved at once is one datagram, by way of memory of ours.

use std::ffi::{c_int, c_uint};

use libc::{iovec, off_t};

use super::{PIPE_PAGE, await_pipe};
use crate::control::Said;
use crate::datagram;
use crate::real::{self, err};
use crate::slot::Socket;
use crate::wait::patiently;

/// What one datagram can carry, and a byte more, which is EMSGSIZE.
const MOST: usize = 65_508;

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
    // SAFETY: plain system calls, about a descriptor of the program's and memory of ours.
    let position = at.unwrap_or_else(|| unsafe { libc::lseek(from, 0, libc::SEEK_CUR) });
    if position < 0 {
        return real::ours(-1);
    }
    let mut bytes = vec![0u8; want.min(MOST)];
    // SAFETY: as above.
    let read = || unsafe { libc::pread(from, bytes.as_mut_ptr().cast(), bytes.len(), position) };
    let got = real::ours(real::uncancelled(read));
    if got <= 0 {
        return got;
    }
    let sent = send(socket, &mut bytes[..got as usize], 0);
    if sent < 0 {
        return sent;
    }
    match at {
        Some(at) => *at += sent as off_t,
        // SAFETY: as above.
        None => _ = unsafe { libc::lseek(from, position + sent as off_t, libc::SEEK_SET) },
    }
    sent
}

/// From a pipe to the socket. What cannot be sent is lost, where Linux leaves it in the pipe.
pub(super) fn splice_in(from: c_int, socket: Socket, want: usize, flags: c_uint) -> isize {
    if want == 0 {
        return 0;
    }
    patiently(socket, |patience| {
        if let Err(result) = await_pipe(from, libc::POLLIN, flags, (socket, &*patience)) {
            return result;
        }
        let mut bytes = vec![0u8; want.min(MOST)];
        let len = bytes.len();
        let got = real::ours(real::uncancelled(|| real::readv(from, part(&mut bytes, len).as_ptr(), 1)));
        let more = if flags & libc::SPLICE_F_MORE == 0 { 0 } else { libc::MSG_MORE };
        if got <= 0 { got } else { send(socket, &mut bytes[..got as usize], more) }
    })
}

/// From the socket to a pipe: a datagram, as much of it as the pipe has room for.
pub(super) fn splice_out(socket: Socket, to: c_int, want: usize, flags: c_uint) -> isize {
    let ready = patiently(socket, |patience| await_pipe(to, libc::POLLOUT, flags, (socket, &*patience)));
    if let Err(result) = ready {
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
    real::ours(real::uncancelled(|| real::writev(to, part(&mut bytes, copied).as_ptr(), 1)))
}

/// Bytes for which a pipe has room, in whole pages: one at least.
fn room_of(pipe: c_int) -> usize {
    let size = real::fcntl(pipe, libc::F_GETPIPE_SZ, 0).max(0) as usize;
    let mut held: c_int = 0;
    real::ioctl(pipe, libc::FIONREAD, (&raw mut held).expose_provenance());
    let free = size.saturating_sub(held.max(0) as usize);
    (free / PIPE_PAGE * PIPE_PAGE).max(PIPE_PAGE)
}
