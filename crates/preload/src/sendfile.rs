//! `sendfile` and `splice`: files and pipes straight into and out of the rings, without memory between.
//!
//! A ring is locked meanwhile, and nobody shall wait for a disk or for another's pipe while others wait for him. So what is
//! read or written under a lock is what can be at once (RWF_NOWAIT); of a file, what has to be waited for is read
//! into memory of ours first.

mod datagrams;

use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;

use libc::{iovec, off_t, pollfd};
use scoutline_abi::Span2;

use crate::cancel;
use crate::extent;
use crate::real::{self, err};
use crate::slot::Socket;
use crate::stream::{await_room, consume, publish, put, receive_patiently, send_end, tell_sent};
use crate::wait::{self, Patience, await_own};

/// Bytes read under the send lock at once.
const CHUNK: usize = 1 << 20;
/// And without it.
const STEP: usize = 64 << 10;
/// What is ready for POLLOUT has room for as much.
const PIPE_PAGE: usize = 4096;

fn vector(spans: &Span2) -> [iovec; 2] {
    spans.map(|span| iovec { iov_base: span.memory.as_ptr().cast(), iov_len: span.len })
}

/// Fills the send ring by `read`, which gets the spans and answers bytes or an errno negated. Answers the same.
fn fill(socket: Socket, want: usize, flags: c_int, read: impl FnOnce(&[iovec; 2]) -> isize) -> isize {
    let slot = socket.slot;
    // Not EAGAIN: to wait for readiness would not help.
    let Ok(_held) = socket.lock_send() else { return err(libc::EINTR) };
    let len = socket.sendable().min(want.min(CHUNK) as u64) as usize;
    let tail = slot.outgoing().own_tail();
    let size = slot.send_size.load(Ordering::Relaxed);
    let offset = slot.send_offset.load(Ordering::Relaxed);
    let Some(spans) = socket.region.ring_spans(offset, size, tail, len) else { return err(libc::EIO) };
    if len == 0 {
        return err(libc::EAGAIN);
    }
    let got = read(&vector(&spans));
    if got > 0 {
        publish(socket, tail, (got as u64).min(len as u64), flags);
    }
    got
}

/// Reads at `at`, or where the file stands, without waiting for anything. EAGAIN, or EOPNOTSUPP of a file that cannot say.
fn read_now(from: c_int, spans: &[iovec; 2], at: Option<off_t>) -> isize {
    let at = at.unwrap_or(-1);
    // SAFETY: both parts lie in our mapping; -1 is the file's own position.
    let read = || unsafe { libc::preadv2(from, spans.as_ptr(), 2, at, libc::RWF_NOWAIT) };
    real::ours(cancel::uncancelled(read))
}

/// Bad descriptors count too: what is done with them says so.
fn is_seekable(fd: c_int) -> bool {
    // SAFETY: plain system call.
    let result = real::ours(unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) } as isize);
    result != err(libc::ESPIPE)
}

/// What Linux says of the file, before it looks at the socket (`do_sendfile`, `vfs_splice_read`): that it cannot be read, or
/// that nothing is left of it.
fn says_first(from: c_int, at: Option<off_t>) -> Option<isize> {
    let flags = real::fcntl(from, libc::F_GETFL, 0);
    if flags < 0 || flags & libc::O_ACCMODE == libc::O_WRONLY {
        return Some(err(libc::EBADF));
    }
    // SAFETY: plain system calls; fstat fills the structure that it is given.
    let (file, at) = unsafe {
        let mut file: libc::stat = std::mem::zeroed();
        if libc::fstat(from, &raw mut file) < 0 {
            return None;
        }
        (file, at.unwrap_or_else(|| libc::lseek(from, 0, libc::SEEK_CUR)))
    };
    match file.st_mode & libc::S_IFMT {
        libc::S_IFDIR => Some(err(libc::EINVAL)),
        libc::S_IFCHR if file.st_rdev == libc::makedev(1, 3) => Some(err(libc::EINVAL)), // `null_fops`
        // Of some files (procfs) there is more than they say.
        libc::S_IFREG if file.st_size > 0 && at >= file.st_size => Some(0),
        _ => None,
    }
}

/// Reads what a file has at `at`, or where it stands, however long that takes, and has it sent: what `send` answers, bytes
/// or an errno negated. The file stands behind what was sent.
fn send_read(from: c_int, at: Option<off_t>, want: usize, send: impl FnOnce(&mut [u8]) -> isize) -> isize {
    // SAFETY: plain system calls, about a descriptor of the program's and memory of ours.
    let position = at.unwrap_or_else(|| unsafe { libc::lseek(from, 0, libc::SEEK_CUR) });
    if position < 0 {
        return real::ours(-1);
    }
    let mut bytes = vec![0u8; want];
    // SAFETY: as above.
    let read = || unsafe { libc::pread(from, bytes.as_mut_ptr().cast(), bytes.len(), position) };
    let got = real::ours(cancel::uncancelled(read));
    if got <= 0 {
        return got;
    }
    let sent = send(&mut bytes[..got as usize]);
    if sent > 0 && at.is_none() {
        // SAFETY: as above.
        unsafe { libc::lseek(from, position + sent as off_t, libc::SEEK_SET) };
    }
    sent
}

/// Puts what was read into the send ring. EAGAIN: others took the room meanwhile.
fn put_read(socket: Socket, bytes: &mut [u8]) -> isize {
    let part = [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    match put(socket, &part, 0, bytes.len(), 0) {
        // As in `fill`.
        Err(libc::EAGAIN) => err(libc::EINTR),
        Err(errno) => err(errno),
        Ok(0) => err(libc::EAGAIN),
        Ok(sent) => sent as isize,
    }
}

/// `sendfile` to a socket of ours.
pub(crate) fn sendfile(socket: Socket, from: c_int, offset: *mut off_t, want: usize) -> isize {
    // SAFETY: the program vouches for its offset.
    let mut at = (!offset.is_null()).then(|| unsafe { offset.read_unaligned() });
    // sendfile(2): of a file that can be read anywhere.
    let is_beyond = |at: off_t| at < 0 || at.checked_add_unsigned(want as u64).is_none();
    if at.is_some_and(is_beyond) || at.is_none() && !is_seekable(from) || want.cast_signed() < 0 {
        return says_first(from, at).filter(|&said| said != 0).unwrap_or(err(libc::EINVAL));
    }
    if !socket.is_stream() {
        let sent = datagrams::send_file(socket, from, &mut at, want);
        if let Some(at) = at.filter(|_| sent > 0) {
            // SAFETY: as above.
            unsafe { offset.write_unaligned(at) };
        }
        return sent;
    }
    let (result, done) = send_file(socket, from, &mut at, want, &mut Patience::default());
    if done == 0 {
        return if result == err(libc::ESPIPE) { err(libc::EINVAL) } else { result };
    }
    if let Some(at) = at {
        // SAFETY: as above.
        unsafe { offset.write_unaligned(at) };
    }
    done as isize
}

/// Sends what the file has from `at` on, which moves, or where it stands: a result, and how much was sent before.
fn send_file(
    socket: Socket,
    from: c_int,
    at: &mut Option<off_t>,
    want: usize,
    patience: &mut Patience,
) -> (isize, usize) {
    let mut done = 0;
    // Whether the file says that it would have to be waited for.
    let mut says = true;
    // Linux moves at most 2 GiB at once.
    let want = want.min(0x7fff_f000);
    let result = loop {
        if done == want {
            break 0;
        }
        patience.has_part = done > 0;
        match await_room(socket, 0, patience) {
            Err(errno) if done == 0 => break says_first(from, *at).unwrap_or(err(errno)),
            Err(errno) => break err(errno),
            Ok(false) if done > 0 => break 0,
            Ok(false) => break says_first(from, *at).unwrap_or_else(|| send_end(socket, 0)),
            Ok(true) => {}
        }
        if let Some(sent) = extent::send(socket, from, *at, want - done) {
            done += sent;
            *at = at.map(|at| at + sent as off_t);
            tell_sent(socket, 0);
            continue;
        }
        let mut got = err(libc::EOPNOTSUPP);
        if says {
            got = fill(socket, want - done, 0, |spans| read_now(from, spans, *at));
            says = got != err(libc::EOPNOTSUPP);
        }
        // Not for want of room.
        if !says || got == err(libc::EAGAIN) && socket.sendable() > 0 {
            got = send_read(from, *at, (want - done).min(STEP), |bytes| put_read(socket, bytes));
        }
        if got == err(libc::EAGAIN) {
            continue;
        }
        if got <= 0 {
            let said = if done == 0 { says_first(from, *at).filter(|&said| said != 0) } else { None };
            break said.unwrap_or(got);
        }
        done += got as usize;
        *at = at.map(|at| at + got as off_t);
        tell_sent(socket, 0);
    };
    (result, done)
}

/// Waits until a pipe is ready, unless asked not to.
fn await_pipe(fd: c_int, events: i16, flags: c_uint) -> Result<(), isize> {
    let file = real::fcntl(fd, libc::F_GETFL, 0);
    let block = flags & libc::SPLICE_F_NONBLOCK == 0 && file & libc::O_NONBLOCK == 0;
    let mut fds = [pollfd { fd, events, revents: 0 }];
    let deadline = if block { None } else { Some(0) };
    match wait::elsewhere(|| await_own(&mut fds, deadline, std::ptr::null())) {
        0 => Err(err(libc::EAGAIN)),
        n if n < 0 => Err(n),
        // Nobody reads it, and nobody will.
        _ if events == libc::POLLOUT && fds[0].revents & libc::POLLERR != 0 => {
            // SAFETY: a plain system call.
            unsafe { libc::raise(libc::SIGPIPE) };
            Err(err(libc::EPIPE))
        }
        _ => Ok(()),
    }
}

/// `splice` from a pipe to a socket of ours.
pub(crate) fn splice_in(from: c_int, socket: Socket, want: usize, flags: c_uint) -> isize {
    if !socket.is_stream() {
        return datagrams::splice_in(from, socket, want, flags);
    }
    splice_in_patiently(from, socket, want, flags, &mut Patience::default())
}

fn splice_in_patiently(
    from: c_int,
    socket: Socket,
    want: usize,
    flags: c_uint,
    patience: &mut Patience,
) -> isize {
    let wait = if flags & libc::SPLICE_F_NONBLOCK == 0 { 0 } else { libc::MSG_DONTWAIT };
    let more = if flags & libc::SPLICE_F_MORE == 0 { 0 } else { libc::MSG_MORE };
    loop {
        if let Err(result) = await_pipe(from, libc::POLLIN, flags) {
            return result;
        }
        match await_room(socket, wait, patience) {
            Err(errno) => return err(errno),
            Ok(false) => return send_end(socket, 0),
            Ok(true) => {}
        }
        let got = fill(socket, want, more, |spans| match read_now(from, spans, None) {
            // Before Linux 6.5 a pipe cannot say.
            unsaid if unsaid == err(libc::EOPNOTSUPP) => {
                real::ours(cancel::uncancelled(|| real::readv(from, spans.as_ptr(), 2)))
            }
            got => got,
        });
        if got > 0 {
            tell_sent(socket, more);
        }
        // Another thread has taken what was there, or the room; who does not wait is told so by the looks above.
        if got != err(libc::EAGAIN) {
            return got;
        }
    }
}

/// `splice` from a socket of ours to a pipe.
pub(crate) fn splice_out(socket: Socket, to: c_int, want: usize, flags: c_uint) -> isize {
    if want == 0 {
        return 0;
    }
    if !socket.is_stream() {
        return datagrams::splice_out(socket, to, want, flags);
    }
    splice_out_patiently(socket, to, want, flags, &mut Patience::default())
}

fn splice_out_patiently(
    socket: Socket,
    to: c_int,
    want: usize,
    flags: c_uint,
    patience: &mut Patience,
) -> isize {
    loop {
        if let Err(result) = await_pipe(to, libc::POLLOUT, flags) {
            return result;
        }
        let mut byte = 0u8;
        let peek = [iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
        // SPLICE_F_NONBLOCK is about the pipe only (splice(2)).
        let there = receive_patiently(socket, &peek, libc::MSG_PEEK, patience);
        if there <= 0 {
            return there;
        }
        // Another thread may have filled the pipe or taken the bytes; who does not wait is told so by the looks above.
        let put = empty(socket, to, want);
        if put != err(libc::EAGAIN) {
            return put;
        }
    }
}

/// Writes a page at most of what was received to a pipe that has room for that.
fn empty(socket: Socket, to: c_int, want: usize) -> isize {
    let slot = socket.slot;
    let Ok(_held) = socket.lock_receive() else { return err(libc::EINTR) };
    let head = slot.incoming().own_head();
    let held = socket.received();
    let len = held.min(want.min(PIPE_PAGE) as u64) as usize;
    if len == 0 {
        return err(libc::EAGAIN);
    }
    let size = slot.receive_size.load(Ordering::Relaxed);
    let Some(spans) = socket.region.ring_spans(slot.receive_offset.load(Ordering::Relaxed), size, head, len)
    else {
        return err(libc::EIO);
    };
    let parts = vector(&spans);
    // SAFETY: both parts lie in our mapping; -1 is the position of what has none.
    let write = || unsafe { libc::pwritev2(to, parts.as_ptr(), 2, -1, libc::RWF_NOWAIT) };
    let put = cancel::uncancelled(|| match real::ours(write()) {
        // Before Linux 6.5 a pipe cannot say.
        unsaid if unsaid == err(libc::EOPNOTSUPP) => real::ours(real::writev(to, parts.as_ptr(), 2)),
        put => put,
    });
    if put > 0 {
        consume(socket, head, held, put as u64);
    }
    put
}
