//! The functions of the table: from what C passes to an [`Op`] of the model program, and back.

use std::ffi::{c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval,
    timezone, useconds_t,
};
use scoutline_base::Address;
use scoutline_conformance::stack::{Answer, Op};

use crate::interface::Interface;
use crate::memory::{self, Errno};
use crate::plugin::Plugin;

type Data = *mut c_void;
type Result<T> = std::result::Result<T, Errno>;

/// Bytes of `struct epoll_event`.
const EVENT_LEN: usize = size_of::<epoll_event>();

/// The filled table.
pub(crate) fn table(plugin: Arc<Plugin>) -> Interface {
    Interface {
        userdata: Arc::into_raw(plugin).cast_mut().cast(),
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    }
}

fn plugin(data: Data) -> &'static Plugin {
    // SAFETY: `data` is what `table` put there, and lives until `free`, after which nothing of the table is called.
    unsafe { &*data.cast::<Plugin>() }
}

/// The answer as a system call gives it.
fn returned(result: Result<i64>) -> i64 {
    result.unwrap_or_else(|errno| {
        // SAFETY: the C library's own cell of this thread.
        unsafe { *libc::__errno_location() = errno };
        -1
    })
}

fn status(result: Result<i64>) -> c_int {
    returned(result) as c_int
}

fn size(result: Result<i64>) -> ssize_t {
    returned(result) as ssize_t
}

fn checked(answer: Answer) -> Result<Answer> {
    if answer.value < 0 { Err(answer.errno) } else { Ok(answer) }
}

fn does(data: Data, op: Op) -> Result<Answer> {
    checked(plugin(data).call(op, -1))
}

/// A call that makes a descriptor. Its number is that of an open file, so that it is no other's.
fn makes(data: Data, op: Op) -> Result<(c_int, Answer)> {
    let held = File::open("/dev/null").map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
    let fd = held.into_raw_fd();
    match checked(plugin(data).call(op, fd)) {
        Ok(answer) => Ok((fd, answer)),
        Err(errno) => {
            give_back(fd);
            Err(errno)
        }
    }
}

fn give_back(fd: c_int) {
    // SAFETY: a descriptor that `makes` opened, and that is closed once.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

extern "C" fn free(data: Data) {
    // SAFETY: what `table` put there; the caller calls this once and nothing else afterwards.
    let plugin = unsafe { Arc::from_raw(data.cast_const().cast::<Plugin>()) };
    plugin.stop();
}

extern "C" fn socket(data: Data, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let non_blocking = kind & libc::SOCK_NONBLOCK != 0;
    let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let stream = match (kind, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => true,
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => false,
        _ => return status(Err(libc::EPROTONOSUPPORT)),
    };
    let inet6 = match domain {
        libc::AF_INET => false,
        libc::AF_INET6 => true,
        _ => return status(Err(libc::EAFNOSUPPORT)),
    };
    status(makes(data, Op::Socket { inet6, stream, non_blocking }).map(|(fd, _)| i64::from(fd)))
}

extern "C" fn bind(data: Data, fd: c_int, name: *const sockaddr, len: socklen_t) -> c_int {
    let bind = || {
        let at = memory::address(name, len)?.ok_or(libc::EAFNOSUPPORT)?;
        does(data, Op::Bind { fd, at }).map(|answer| answer.value)
    };
    status(bind())
}

extern "C" fn listen(data: Data, fd: c_int, backlog: c_int) -> c_int {
    status(does(data, Op::Listen { fd, backlog }).map(|answer| answer.value))
}

extern "C" fn accept(data: Data, fd: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let accept = || {
        let (accepted, answer) = makes(data, Op::Accept { fd, non_blocking: false })?;
        tell_name(data, accepted, &answer, name, len)?;
        Ok(i64::from(accepted))
    };
    status(accept())
}

/// Tells an address in the form of the socket's family.
fn tell_name(data: Data, fd: c_int, answer: &Answer, name: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
    let Some(address) = answer.address else { return Ok(()) };
    let inet6 = plugin(data).ask(move |host| host.is_inet6(fd));
    memory::tell_address(address, inet6, name, len)
}

extern "C" fn connect(data: Data, fd: c_int, name: *const sockaddr, len: socklen_t) -> c_int {
    let connect = || {
        let to = memory::address(name, len)?;
        does(data, Op::Connect { fd, to }).map(|answer| answer.value)
    };
    status(connect())
}

/// One place in memory, as a vector.
fn piece(at: *mut c_void, len: size_t) -> [iovec; 1] {
    [iovec { iov_base: at, iov_len: len }]
}

/// Receives into pieces of memory.
fn receive(data: Data, fd: c_int, into: &[iovec], flags: c_int) -> Result<Answer> {
    let len = into.iter().map(|piece| piece.iov_len).sum();
    let reachable = into.iter().all(|piece| memory::read(piece.iov_base, piece.iov_len.min(1)).is_ok());
    // What cannot be copied stays where it is, but that there is nothing is told first.
    let flags = if reachable { flags } else { flags | libc::MSG_PEEK };
    let answer = does(data, Op::Receive { fd, len, flags })?;
    let mut rest = answer.bytes.as_slice();
    for piece in into {
        let (bytes, behind) = rest.split_at(rest.len().min(piece.iov_len));
        memory::write(piece.iov_base, bytes)?;
        rest = behind;
    }
    Ok(answer)
}

/// Sends what lies in pieces of memory.
fn transmit(data: Data, fd: c_int, from: &[iovec], flags: c_int, to: Option<(Address, u16)>) -> Result<i64> {
    let bytes = gather(from)?;
    does(data, Op::Send { fd, data: bytes, flags, to, sent: 0 }).map(|answer| answer.value)
}

fn gather(from: &[iovec]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for piece in from {
        bytes.extend(memory::read(piece.iov_base, piece.iov_len)?);
    }
    Ok(bytes)
}

extern "C" fn read(data: Data, fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    size(receive(data, fd, &piece(into, len), 0).map(|answer| answer.value))
}

extern "C" fn readv(data: Data, fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    let pieces = memory::pieces(vector, count.max(0) as usize);
    size(pieces.and_then(|into| receive(data, fd, &into, 0)).map(|answer| answer.value))
}

extern "C" fn recv(data: Data, fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    size(receive(data, fd, &piece(into, len), flags).map(|answer| answer.value))
}

extern "C" fn recvfrom(
    data: Data,
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    flags: c_int,
    name: *mut sockaddr,
    name_len: *mut socklen_t,
) -> ssize_t {
    let received = || {
        let answer = receive(data, fd, &piece(into, len), flags)?;
        tell_name(data, fd, &answer, name, name_len)?;
        Ok(answer.value)
    };
    size(received())
}

extern "C" fn recvmsg(data: Data, fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let received = || {
        // SAFETY: all bit patterns are a `msghdr`.
        let mut header: msghdr = unsafe { memory::read_as(message) }?;
        let into = memory::pieces(header.msg_iov, header.msg_iovlen)?;
        let answer = receive(data, fd, &into, flags)?;
        header.msg_controllen = 0;
        header.msg_flags = 0;
        // SAFETY: it could be read, and is the caller's.
        unsafe { message.write(header) };
        Ok(answer.value)
    };
    size(received())
}

extern "C" fn write(data: Data, fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    size(transmit(data, fd, &piece(from.cast_mut(), len), 0, None))
}

extern "C" fn writev(data: Data, fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    let pieces = memory::pieces(vector, count.max(0) as usize);
    size(pieces.and_then(|from| transmit(data, fd, &from, 0, None)))
}

extern "C" fn send(data: Data, fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    size(transmit(data, fd, &piece(from.cast_mut(), len), flags, None))
}

extern "C" fn sendto(
    data: Data,
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    name: *const sockaddr,
    name_len: socklen_t,
) -> ssize_t {
    let to = if name.is_null() { Ok(None) } else { memory::address(name, name_len) };
    size(to.and_then(|to| transmit(data, fd, &piece(from.cast_mut(), len), flags, to)))
}

extern "C" fn sendmsg(data: Data, fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let sent = || {
        // SAFETY: all bit patterns are a `msghdr`.
        let header: msghdr = unsafe { memory::read_as(message) }?;
        let from = memory::pieces(header.msg_iov, header.msg_iovlen)?;
        let name = header.msg_name.cast_const().cast();
        let to = if header.msg_name.is_null() { None } else { memory::address(name, header.msg_namelen)? };
        transmit(data, fd, &from, flags, to)
    };
    size(sent())
}

extern "C" fn fcntl(data: Data, fd: c_int, command: c_int, argument: c_long) -> c_int {
    let argument = if command == libc::F_SETFL { argument as i32 } else { 0 };
    status(does(data, Op::Fcntl { fd, command, argument }).map(|answer| answer.value))
}

extern "C" fn ioctl(data: Data, fd: c_int, request: c_ulong, to: *mut c_void) -> c_int {
    let asked = || {
        let answer = does(data, Op::Ioctl { fd, request: request & u64::from(u32::MAX) })?;
        memory::write(to, &answer.bytes)?;
        Ok(answer.value)
    };
    status(asked())
}

extern "C" fn close(data: Data, fd: c_int) -> c_int {
    let closed = does(data, Op::Close { fd });
    if closed.is_ok() {
        give_back(fd);
    }
    status(closed.map(|answer| answer.value))
}

extern "C" fn shutdown(data: Data, fd: c_int, how: c_int) -> c_int {
    status(does(data, Op::Shutdown { fd, how }).map(|answer| answer.value))
}

extern "C" fn getsockopt(
    data: Data,
    fd: c_int,
    level: c_int,
    name: c_int,
    to: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    status(option(plugin(data), fd, (level, name), to, len))
}

/// `getsockopt`: what fits, and how much that is.
pub(crate) fn option(
    plugin: &Plugin,
    fd: c_int,
    option: (c_int, c_int),
    to: *mut c_void,
    len: *mut socklen_t,
) -> Result<i64> {
    // SAFETY: all bit patterns are a number.
    let room = unsafe { memory::read_as(len) }? as usize;
    let answer = checked(plugin.call(Op::GetOption { fd, option, len: room }, -1))?;
    let given = answer.bytes.len().min(room);
    memory::write(to, &answer.bytes[..given])?;
    memory::write(len.cast(), &(given as socklen_t).to_ne_bytes())?;
    Ok(0)
}

extern "C" fn setsockopt(
    data: Data,
    fd: c_int,
    level: c_int,
    name: c_int,
    from: *const c_void,
    len: socklen_t,
) -> c_int {
    let set = || {
        let value = memory::read(from, len as usize)?;
        does(data, Op::SetOption { fd, option: (level, name), value }).map(|answer| answer.value)
    };
    status(set())
}

extern "C" fn poll(data: Data, fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let polled = || {
        let count = count as usize;
        let asked: Vec<pollfd> = (0..count)
            // SAFETY: all bit patterns are a `pollfd`.
            .map(|index| unsafe { memory::read_as(fds.wrapping_add(index)) })
            .collect::<Result<_>>()?;
        let fds_asked = asked.iter().map(|entry| (entry.fd, entry.events)).collect();
        let answer = does(data, Op::Poll { fds: fds_asked, timeout })?;
        for (index, revents) in answer.events.iter().enumerate() {
            let at = fds.wrapping_add(index).cast::<u8>().wrapping_add(offset_of!(pollfd, revents));
            memory::write(at.cast(), &revents.to_ne_bytes())?;
        }
        Ok(answer.value)
    };
    status(polled())
}

extern "C" fn netdev_send(data: Data, packet: *const c_void, len: size_t) -> c_int {
    status(memory::read(packet, len).map(|packet| {
        plugin(data).inject(packet);
        0
    }))
}

extern "C" fn netdev_receive(data: Data, into: *mut c_void, len: *mut size_t, at: *mut c_longlong) -> c_int {
    let received = || {
        let Some((time, packet)) = plugin(data).await_packet() else {
            // packetdrill has no other way to hear that none will come.
            eprintln!("scoutline: no packet leaves any more");
            memory::write(len.cast(), &0usize.to_ne_bytes())?;
            return Ok(0);
        };
        // SAFETY: all bit patterns are a number.
        let room: size_t = unsafe { memory::read_as(len) }?;
        let given = packet.len().min(room);
        memory::write(into, &packet[..given])?;
        memory::write(len.cast(), &given.to_ne_bytes())?;
        memory::write(at.cast(), &time.to_ne_bytes())?;
        Ok(0)
    };
    status(received())
}

extern "C" fn usleep(data: Data, micros: useconds_t) -> c_int {
    plugin(data).sleep(i64::from(micros));
    0
}

extern "C" fn gettimeofday(data: Data, time: *mut timeval, _zone: *mut timezone) -> c_int {
    let now = plugin(data).read_clock();
    let told = [now / 1_000_000, now % 1_000_000];
    let bytes: Vec<u8> = told.iter().flat_map(|part| part.to_ne_bytes()).collect();
    status(memory::write(time.cast(), &bytes).map(|()| 0))
}

extern "C" fn epoll_create(data: Data, size: c_int) -> c_int {
    if size <= 0 {
        return status(Err(libc::EINVAL));
    }
    status(makes(data, Op::EpollCreate).map(|(fd, _)| i64::from(fd)))
}

extern "C" fn epoll_ctl(data: Data, epoll: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let control = || {
        let asked = if event.is_null() {
            epoll_event { events: 0, u64: 0 }
        } else {
            // SAFETY: all bit patterns are an `epoll_event`.
            unsafe { memory::read_as(event) }?
        };
        let op = Op::EpollControl { epoll, op, fd, events: asked.events, data: asked.u64 };
        does(data, op).map(|answer| answer.value)
    };
    status(control())
}

extern "C" fn epoll_wait(
    data: Data,
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    let wait = || {
        let most = usize::try_from(most).ok().filter(|most| *most > 0).ok_or(libc::EINVAL)?;
        let answer = does(data, Op::EpollWait { epoll, most, timeout })?;
        for (index, event) in answer.bytes.chunks(size_of::<u32>() + size_of::<u64>()).enumerate() {
            let (events_told, data_told) = event.split_at(size_of::<u32>());
            let told = epoll_event {
                events: u32::from_ne_bytes(events_told.try_into().expect("four bytes")),
                u64: u64::from_ne_bytes(data_told.try_into().expect("eight bytes")),
            };
            // SAFETY: an `epoll_event` is plain memory without padding where the kernel packs it, and is only read.
            let bytes = unsafe { std::slice::from_raw_parts((&raw const told).cast(), EVENT_LEN) };
            memory::write(events.wrapping_add(index).cast(), bytes)?;
        }
        Ok(answer.value)
    };
    status(wait())
}

extern "C" fn pipe(_data: Data, _fds: *mut c_int) -> c_int {
    status(Err(libc::ENOSYS))
}

extern "C" fn splice(
    _data: Data,
    _from: c_int,
    _from_at: *mut loff_t,
    _to: c_int,
    _to_at: *mut loff_t,
    _len: size_t,
    _flags: c_uint,
) -> c_int {
    status(Err(libc::ENOSYS))
}
