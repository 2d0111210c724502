//! Reading and writing.

use std::ffi::{c_int, c_uint, c_void};
use std::{mem, ptr};

use libc::{
    MSG_DONTWAIT, MSG_ERRQUEUE, MSG_FASTOPEN, MSG_TRUNC, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec,
};

use super::{cancellable, either, ours, vector, vector_of};
use crate::address::{self, Given, Name};
use crate::control::{Said, Writer};
use crate::datagram::path_mtu;
use crate::real::{self, err, finish, finish_int};
use crate::slot::Socket;
use crate::wait::MOVED;
use crate::{
    adopt, bind, cancel, control, datagram, errors, family, fast_open, memory, options, passing, sendfile,
    stream, table, zero_copy,
};

/// SPLICE_F_ALL of Linux.
const SPLICE_FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
const MSG_WAITFORONE: c_int = libc::MSG_WAITFORONE;

fn one(buf: *const c_void, n: size_t) -> [iovec; 1] {
    [iovec { iov_base: buf.cast_mut(), iov_len: n.min(memory::MOST_MOVED) }]
}

/// What `read` and `write` are given: they look at its end first, unlike `recv` and `send` (`vfs_read`).
fn whole(buf: *const c_void, n: size_t) -> Result<[iovec; 1], isize> {
    if memory::reaches_too_far(buf, n) { Err(err(libc::EFAULT)) } else { Ok(one(buf, n)) }
}

/// Receives; fills in the sender where asked.
fn receive(socket: Socket, iov: &[iovec], flags: c_int, from: *mut sockaddr, len: *mut socklen_t) -> isize {
    if flags & MSG_ERRQUEUE != 0 {
        return receive_error(socket, iov, from, len);
    }
    if socket.is_stream() {
        let result = stream::receive(socket, iov, flags);
        if result < 0 || from.is_null() {
            return result;
        }
        if memory::is_nowhere(len) {
            return err(libc::EFAULT);
        }
        // SAFETY: the program vouches for its length. TCP names nobody, as on Linux.
        unsafe {
            if ptr::read_unaligned(len).cast_signed() < 0 {
                return err(libc::EINVAL);
            }
            ptr::write_unaligned(len, 0);
        }
        return result;
    }
    if path_mtu::is_to_tell(socket) {
        return path_mtu::take(socket).map_or_else(err, |(to, _)| address::write(to, true, from, len));
    }
    match datagram::receive(socket, iov, flags) {
        Err(errno) => err(errno),
        Ok(taken) => {
            let named = address::write(taken.from, socket.is_inet6(), from, len);
            if named < 0 {
                return named;
            }
            if flags & MSG_TRUNC != 0 { taken.len as isize } else { taken.copied as isize }
        }
    }
}

fn send(socket: Socket, iov: &[iovec], flags: c_int, to: *const sockaddr, len: socklen_t) -> isize {
    if socket.is_stream() {
        return zero_copy::sent(socket, flags, stream::send(socket, iov, flags));
    }
    match address::destination(socket.is_inet6(), to, len) {
        Ok(to) => zero_copy::sent(socket, flags, datagram::send(socket, iov, to, &Said::default(), flags)),
        Err(errno) => err(errno),
    }
}

/// A kernel socket that sends to where paths lead becomes ours first, and one of ours that sends elsewhere may go back.
fn move_for_send(fd: c_int, to: *const sockaddr, len: socklen_t) {
    if to.is_null() {
        return;
    }
    let parsed = || match address::parse(to, len) {
        Given::Inet(to @ Name { port: 1.., .. }) => Some(to),
        _ => None,
    };
    match family::look(fd) {
        table::Entry::Candidate { .. } => {
            if let Some(to) = parsed() {
                adopt::adopt_for_send(fd, to);
            }
        }
        table::Entry::Socket(_) => {
            if let Some(socket) = Socket::of(fd)
                && bind::may_leave(socket)
                && let Some(to) = parsed()
            {
                bind::leave_for(fd, socket, to);
            }
        }
        _ => {}
    }
}

/// The same of an error, and where its datagram was to go.
fn receive_error(socket: Socket, iov: &[iovec], from: *mut sockaddr, len: *mut socklen_t) -> isize {
    // SAFETY: zeros are a valid message.
    let mut message: msghdr = unsafe { mem::zeroed() };
    if !from.is_null() {
        if memory::is_nowhere(from) || memory::is_nowhere(len) {
            return err(libc::EFAULT);
        }
        // SAFETY: the program vouches for its length.
        message.msg_namelen = unsafe { ptr::read_unaligned(len) };
        message.msg_name = from.cast();
    }
    let result = errors::receive(socket, iov, &mut message);
    if result.is_ok() && !from.is_null() {
        // SAFETY: as above.
        unsafe { ptr::write_unaligned(len, message.msg_namelen) };
    }
    result.map_or_else(err, |copied| copied as isize)
}

/// `recvmsg` of a socket of ours.
pub(crate) fn receive_message(socket: Socket, message: &mut msghdr, flags: c_int) -> isize {
    let iov = match vector_of(message) {
        Ok(iov) => iov,
        Err(result) => return result,
    };
    if flags & MSG_ERRQUEUE != 0 {
        return errors::receive(socket, iov, message).map_or_else(err, |copied| copied as isize);
    }
    if socket.is_stream() {
        let result = stream::receive(socket, iov, flags);
        if result >= 0 {
            message.msg_namelen = 0;
            message.msg_flags = flags & libc::MSG_OOB;
            let mut writer = Writer::new(message);
            if let Some((level, kind, value)) = options::queued(socket) {
                writer.put(level, kind, &value);
            }
            writer.finish(message);
        }
        return result;
    }
    if path_mtu::is_to_tell(socket) {
        return path_mtu::tell(socket, message).map_or_else(err, |()| 0);
    }
    match datagram::receive(socket, iov, flags) {
        Err(errno) => err(errno),
        Ok(taken) => {
            if message.msg_name.is_null() {
                message.msg_namelen = 0;
            }
            let len = &raw mut message.msg_namelen;
            address::write(taken.from, socket.is_inet6(), message.msg_name.cast(), len);
            message.msg_flags = if taken.is_cut { MSG_TRUNC } else { 0 };
            let mut writer = Writer::new(message);
            control::tell(socket, &taken.record, &mut writer);
            writer.finish(message);
            if flags & MSG_TRUNC != 0 { taken.len as isize } else { taken.copied as isize }
        }
    }
}

/// That of a message's name: what is too long is cut (`copy_msghdr_from_user`), and below zero is not.
fn name_len(message: &msghdr) -> socklen_t {
    let len = message.msg_namelen;
    if len.cast_signed() < 0 { len } else { len.min(size_of::<libc::sockaddr_storage>() as socklen_t) }
}

fn send_message(socket: Socket, message: &msghdr, flags: c_int) -> isize {
    let iov = match vector_of(message) {
        Ok(iov) => iov,
        Err(result) => return result,
    };
    let beside = match control::buffer(message) {
        Ok(beside) => beside,
        Err(errno) => return err(errno),
    };
    if socket.is_stream() {
        return match control::check_for_stream(beside) {
            Ok(()) => zero_copy::sent(socket, flags, stream::send(socket, iov, flags)),
            Err(errno) => stream::refuse(socket, flags, errno),
        };
    }
    let inet6 = socket.is_inet6();
    // Without a length nobody is named, unlike for `sendto`.
    let name = if name_len(message) == 0 { ptr::null() } else { message.msg_name.cast() };
    let said = address::destination(inet6, name, name_len(message)).and_then(|to| {
        let towards = to.map_or_else(|| socket.slot.remote_address.load(), |to| to.address);
        Ok((to, control::read(beside, inet6, towards.is_v4())?))
    });
    match said {
        Ok((to, said)) => zero_copy::sent(socket, flags, datagram::send(socket, iov, to, &said, flags)),
        Err(errno) => err(errno),
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    let here = |socket| match whole(buf, n) {
        _ if n == 0 => 0, // unlike `recv`, which waits
        Ok(iov) => receive(socket, &iov, 0, ptr::null_mut(), ptr::null_mut()),
        Err(result) => result,
    };
    cancellable(fd, here, || real::read(fd, buf, n))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t) -> ssize_t {
    check(n, room);
    read(fd, buf, n)
}

/// What the fortified functions do to a program that would overrun its buffer.
fn check(n: size_t, room: size_t) {
    if n > room {
        real::say(&[b"*** buffer overflow detected ***: terminated"]);
        // SAFETY: ends the process.
        unsafe { libc::abort() };
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
    let here = |socket| match whole(buf, n) {
        Ok(iov) => send(socket, &iov, 0, ptr::null(), 0),
        Err(result) => result,
    };
    cancellable(fd, here, || real::write(fd, buf, n))
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    let here = |socket| match vector(iov, n as usize) {
        Ok(iov) if stream::total(iov) == 0 => 0,
        Ok(iov) => receive(socket, iov, 0, ptr::null_mut(), ptr::null_mut()),
        Err(result) => result,
    };
    cancellable(fd, here, || real::readv(fd, iov, n))
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    let here = |socket| match vector(iov, n as usize) {
        Ok(iov) if stream::total(iov) == 0 => 0, // unlike `write`, which sends an empty datagram (`vfs_writev`)
        Ok(iov) => send(socket, iov, 0, ptr::null(), 0),
        Err(result) => result,
    };
    cancellable(fd, here, || real::writev(fd, iov, n))
}

/// Flags of `preadv2` and `pwritev2` that say something of files only (`linux/fs.h`): RWF_HIPRI, _DSYNC, _SYNC, _APPEND,
/// _NOAPPEND. The others a socket does not have.
const OF_FILES: c_int = 0x1 | 0x2 | 0x4 | RWF_APPEND | RWF_NOAPPEND;
pub(crate) const RWF_NOWAIT: c_int = 0x8;
const RWF_APPEND: c_int = 0x10;
const RWF_NOAPPEND: c_int = 0x20;

/// The flags of `recv` and `send` for those of `preadv2` and `pwritev2` (`kiocb_set_rw_flags`).
fn of_vector(flags: c_int) -> Result<c_int, isize> {
    if flags & !(OF_FILES | RWF_NOWAIT) != 0 {
        return Err(err(libc::EOPNOTSUPP));
    }
    if flags & RWF_APPEND != 0 && flags & RWF_NOAPPEND != 0 {
        return Err(err(libc::EINVAL));
    }
    Ok(if flags & RWF_NOWAIT != 0 { MSG_DONTWAIT } else { 0 })
}

/// A socket has no positions: with one the kernel's own says so. -1: where the stream is.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn preadv2(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    position: off_t,
    flags: c_int,
) -> ssize_t {
    let there = || real::preadv2(fd, iov, n, position, flags);
    if position != -1 {
        return there();
    }
    let here = |socket| match vector(iov, n as usize) {
        Ok(iov) if stream::total(iov) == 0 => 0,
        Ok(iov) => of_vector(flags).map_or_else(
            |failed| failed,
            |flags| receive(socket, iov, flags, ptr::null_mut(), ptr::null_mut()),
        ),
        Err(result) => result,
    };
    cancellable(fd, here, there)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn preadv64v2(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    position: off_t,
    flags: c_int,
) -> ssize_t {
    preadv2(fd, iov, n, position, flags)
}

/// As [`preadv2`].
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn pwritev2(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    position: off_t,
    flags: c_int,
) -> ssize_t {
    let there = || real::pwritev2(fd, iov, n, position, flags);
    if position != -1 {
        return there();
    }
    let here = |socket| match vector(iov, n as usize) {
        Ok(iov) if stream::total(iov) == 0 => 0,
        Ok(iov) => {
            of_vector(flags).map_or_else(|failed| failed, |flags| send(socket, iov, flags, ptr::null(), 0))
        }
        Err(result) => result,
    };
    cancellable(fd, here, there)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pwritev64v2(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    position: off_t,
    flags: c_int,
) -> ssize_t {
    pwritev2(fd, iov, n, position, flags)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
    let here = |socket| receive(socket, &one(buf, n), flags, ptr::null_mut(), ptr::null_mut());
    cancellable(fd, here, || real::recv(fd, buf, n, flags))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(n, room);
    recv(fd, buf, n, flags)
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    flags: c_int,
    from: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    let here = |socket| receive(socket, &one(buf, n), flags, from, len);
    cancellable(fd, here, || real::recvfrom(fd, buf, n, flags, from, len))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    check(n, room);
    recvfrom(fd, buf, n, flags, from, len)
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let here = |socket| {
        if memory::is_nowhere(message) {
            return err(libc::EFAULT);
        }
        // SAFETY: the program vouches for its message.
        receive_message(socket, unsafe { &mut *message }, flags)
    };
    cancellable(fd, here, || finish(passing::receive(fd, message, flags)))
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let there = || {
        let got = real::recvmmsg(fd, messages, n, flags, timeout);
        if got > 0 {
            // SAFETY: the kernel has filled as many.
            passing::received_many(unsafe { std::slice::from_raw_parts(messages, got as usize) }, flags);
        }
        got as isize
    };
    let here = |socket| match n {
        0 => 0,
        _ if memory::is_nowhere(messages) => err(libc::EFAULT),
        _ => {
            // SAFETY: the program vouches for `n` messages, and for its timeout, or passes null.
            let (messages, timeout) =
                unsafe { (std::slice::from_raw_parts_mut(messages, n as usize), timeout.as_mut()) };
            receive_messages(socket, messages, flags, timeout)
        }
    };
    cancellable(fd, here, there) as c_int
}

fn receive_messages(
    socket: Socket,
    messages: &mut [mmsghdr],
    flags: c_int,
    mut timeout: Option<&mut timespec>,
) -> isize {
    let end = timeout.as_deref().and_then(deadline_ns);
    if timeout.is_some() && end.is_none() {
        return err(libc::EINVAL);
    }
    let mut done = 0;
    let mut flags_now = flags & !MSG_WAITFORONE;
    for message in messages {
        let result = receive_message(socket, &mut message.msg_hdr, flags_now);
        if result < 0 {
            if done == 0 {
                return result;
            }
            // `do_recvmmsg`: the next call says so.
            if ![libc::EAGAIN, libc::EINTR, MOVED].contains(&(-result as c_int)) {
                socket.put_error(-result as i32);
            }
            break;
        }
        message.msg_len = result as c_uint;
        done += 1;
        if flags & MSG_WAITFORONE != 0 {
            flags_now |= MSG_DONTWAIT;
        }
        // As Linux: the time is looked at between messages only, and what is left of it is told.
        if let (Some(end), Some(timeout)) = (end, timeout.as_deref_mut()) {
            let left = end.saturating_sub(real::now_ns());
            timeout.tv_sec = (left / 1_000_000_000) as i64;
            timeout.tv_nsec = (left % 1_000_000_000) as i64;
            if left == 0 {
                break;
            }
        }
    }
    done
}

#[unsafe(export_name = "send")]
extern "C-unwind" fn send_plain(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
    let here = |socket| send(socket, &one(buf, n), flags, ptr::null(), 0);
    cancellable(fd, here, || real::send(fd, buf, n, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn sendto(
    fd: c_int,
    buf: *const c_void,
    n: size_t,
    flags: c_int,
    to: *const sockaddr,
    len: socklen_t,
) -> ssize_t {
    if flags & MSG_FASTOPEN != 0
        && let Some(result) = fast_open::send_to(fd, &one(buf, n), flags, to, len)
    {
        return finish(result);
    }
    move_for_send(fd, to, len);
    // A stream has no use for the name, but it is looked at (`move_addr_to_kernel`).
    let misnamed = if to.is_null() { None } else { address::unreadable(to, len) };
    let here = |socket: Socket| match misnamed.filter(|_| socket.is_stream()) {
        Some(errno) => err(errno),
        None => send(socket, &one(buf, n), flags, to, len),
    };
    cancellable(fd, here, || real::sendto(fd, buf, n, flags, to, len))
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program vouches for its message, where one can be.
    let given = if memory::is_nowhere(message) { None } else { unsafe { message.as_ref() } };
    if flags & MSG_FASTOPEN != 0
        && let Some(message) = given
        && let Ok(iov) = vector_of(message)
        && let Some(result) = fast_open::send_to(fd, iov, flags, message.msg_name.cast(), message.msg_namelen)
    {
        return finish(result);
    }
    let Some(given) = given else { return finish(passing::send(fd, message, flags)) };
    move_for_send(fd, given.msg_name.cast(), name_len(given));
    let here = |socket| send_message(socket, given, flags);
    cancellable(fd, here, || finish(passing::send(fd, message, flags)))
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
) -> c_int {
    if memory::is_nowhere(messages) || n == 0 {
        return real::sendmmsg(fd, messages, n, flags);
    }
    let most = n.min(libc::UIO_MAXIOV as c_uint) as usize;
    // SAFETY: the program vouches for `n` messages; one of these has them at a time.
    let given = || unsafe { std::slice::from_raw_parts_mut(messages, most) };
    let first = &given()[0].msg_hdr;
    move_for_send(fd, first.msg_name.cast(), name_len(first));
    let there = || {
        let passed = passing::send_many(fd, given(), flags);
        passed.map_or_else(|| real::sendmmsg(fd, messages, n, flags), finish_int) as isize
    };
    cancellable(fd, |socket| send_messages(socket, given(), flags), there) as c_int
}

fn send_messages(socket: Socket, messages: &mut [mmsghdr], flags: c_int) -> isize {
    let mut done = 0;
    for message in messages {
        let result = send_message(socket, &message.msg_hdr, flags);
        if result < 0 {
            return if done == 0 { result } else { done };
        }
        message.msg_len = result as c_uint;
        done += 1;
        // Behind a part of a message nothing goes (`__sys_sendmmsg`).
        let is_part = |iov| stream::total(iov) > result as usize;
        if socket.is_stream() && vector_of(&message.msg_hdr).is_ok_and(is_part) {
            break;
        }
    }
    done
}

fn send_file(out: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
    if !offset.is_null() && memory::is_nowhere(offset) {
        return finish(err(libc::EFAULT));
    }
    if table::socket(from).is_some() {
        return cancel::uncancelled(|| send_from_socket(out, from, offset, n));
    }
    // The C library's is no cancellation point.
    let here = |socket| cancel::uncancelled(|| sendfile::sendfile(socket, from, offset, n));
    either(out, here, || real::sendfile(out, from, offset, n))
}

/// Only into a pipe, since what is read must not be dropped (`splice_direct_to_actor`).
fn send_from_socket(out: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
    if !offset.is_null() {
        return finish(err(libc::ESPIPE));
    }
    if real::fcntl(out, libc::F_GETPIPE_SZ, 0) < 0 {
        let is_open = real::fcntl(out, libc::F_GETFD, 0) >= 0;
        return finish(err(if is_open { libc::EINVAL } else { libc::EBADF }));
    }
    let may_wait = real::fcntl(out, libc::F_GETFL, 0) & libc::O_NONBLOCK == 0;
    let flags = if may_wait { 0 } else { libc::SPLICE_F_NONBLOCK };
    splice(from, ptr::null_mut(), out, ptr::null_mut(), n, flags)
}

// On 64-bit machines `off_t` is 64 bits wide in both.
#[unsafe(export_name = "sendfile")]
extern "C-unwind" fn sendfile_plain(out: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
    send_file(out, from, offset, n)
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn sendfile64(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    n: size_t,
) -> ssize_t {
    send_file(out, from, offset, n)
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    n: size_t,
    flags: c_uint,
) -> ssize_t {
    let (source, target) = (ours(from), ours(to));
    let there = || real::splice(from, from_at, to, to_at, n, flags);
    if n == 0 || source.is_none() && target.is_none() {
        return there();
    }
    if flags & !SPLICE_FLAGS != 0 {
        return finish(err(libc::EINVAL));
    }
    // A socket has no positions, nor has the pipe on the other side.
    if source.is_some() && !to_at.is_null() || target.is_some() && !from_at.is_null() {
        return finish(err(libc::ESPIPE));
    }
    if source.is_some() && !from_at.is_null() || target.is_some() && !to_at.is_null() {
        return finish(err(libc::EINVAL));
    }
    // One side has to be a pipe.
    let other = if source.is_some() { to } else { from };
    if source.is_some() != target.is_some() && real::fcntl(other, libc::F_GETPIPE_SZ, 0) < 0 {
        let is_open = real::fcntl(other, libc::F_GETFD, 0) >= 0;
        return finish(err(if is_open { libc::EINVAL } else { libc::EBADF }));
    }
    let wrong_end = if source.is_some() { libc::O_RDONLY } else { libc::O_WRONLY };
    if source.is_some() != target.is_some()
        && real::fcntl(other, libc::F_GETFL, 0) & libc::O_ACCMODE == wrong_end
    {
        return finish(err(libc::EBADF));
    }
    match (source, target) {
        (None, _) => cancellable(to, |socket| sendfile::splice_in(from, socket, n, flags), there),
        (_, None) => cancellable(from, |socket| sendfile::splice_out(socket, to, n, flags), there),
        (Some(_), Some(_)) => finish(err(libc::EINVAL)), // neither is a pipe
    }
}

/// The time a caller may wait, as a deadline.
pub(super) fn deadline_ns(timeout: &timespec) -> Option<u64> {
    let s = u64::try_from(timeout.tv_sec).ok()?;
    let ns = u64::try_from(timeout.tv_nsec).ok().filter(|ns| *ns < 1_000_000_000)?;
    Some(real::now_ns().saturating_add(s.saturating_mul(1_000_000_000)).saturating_add(ns))
}
