//! TCP Fast Open (RFC 7413) as programs ask for it on Linux: options of listening sockets, TCP_FASTOPEN_CONNECT,
//! MSG_FASTOPEN.
//!
//! A socket whose SYN waits for data is CONNECTING with FAST_OPEN, and its send ring has never held anything: what is
//! written first, as much as fits the SYN, needs no connection.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{
    IPPROTO_TCP, MSG_DONTWAIT, MSG_FASTOPEN, TCP_FASTOPEN, TCP_FASTOPEN_CONNECT, iovec, sockaddr, socklen_t,
};
use scoutline_abi::layout::{call_op, fast_open, slot_kind, slot_option, slot_state as is};

use crate::address::{self, Given, Name};
use crate::options::{ask, give, has_ended, keep, kept_bit, kernel_int, tell, value};
use crate::reach::{is_broadcast, kernel_name, leads_to, may_lead_to, speaks, suitable};
use crate::real::err;
use crate::slot::{Socket, kept};
use crate::{adopt, attach, call, life, stream};

/// Not in `libc`: linux/tcp.h.
pub(crate) const TCP_FASTOPEN_KEY: c_int = 33;
/// As well.
pub(crate) const TCP_FASTOPEN_NO_COOKIE: c_int = 34;
const KEY_LEN: usize = 16;

/// Some socket of the kernel's may have such an option.
static NOTED: AtomicBool = AtomicBool::new(false);

/// One of the options of fast open.
pub(crate) fn is_option(name: c_int) -> bool {
    matches!(name, TCP_FASTOPEN | TCP_FASTOPEN_CONNECT | TCP_FASTOPEN_KEY | TCP_FASTOPEN_NO_COOKIE)
}

/// An option is set on a socket of the kernel's, which may become ours.
pub(crate) fn note(level: c_int, name: c_int) {
    if level == IPPROTO_TCP && is_option(name) {
        NOTED.store(true, Ordering::Relaxed);
    }
}

/// What was set on the kernel's socket before it became ours. It keeps no key of its own that could be told from all
/// others'.
pub(crate) fn carry_over(fd: c_int, socket: Socket) {
    if !NOTED.load(Ordering::Relaxed) {
        return;
    }
    let of = |name| kernel_int(fd, IPPROTO_TCP, name).max(0).unsigned_abs();
    keep(socket, kept::FAST_OPEN_CONNECT, of(TCP_FASTOPEN_CONNECT) != 0);
    let (limit, no_cookie) = (of(TCP_FASTOPEN), of(TCP_FASTOPEN_NO_COOKIE));
    if limit != 0 {
        tell(socket, slot_option::FAST_OPEN, limit.into());
    }
    if no_cookie != 0 {
        tell(socket, slot_option::FAST_OPEN_NO_COOKIE, no_cookie.into());
    }
}

/// `setsockopt` of one of these options.
pub(crate) fn set(socket: Socket, name: c_int, from: *const c_void, len: socklen_t) -> Result<isize, isize> {
    let state = socket.state();
    let is_over = || state & is::FAILED != 0 || has_ended(socket);
    let is_closed = state & (is::CONNECTING | is::CONNECTED) == 0 || is_over();
    if name == TCP_FASTOPEN_KEY {
        return set_key(socket, from, len);
    }
    let number: c_int = value(from, len)?;
    let is_switch = (0..=1).contains(&number);
    let option = match name {
        TCP_FASTOPEN if number >= 0 && is_closed => slot_option::FAST_OPEN,
        TCP_FASTOPEN_NO_COOKIE if is_switch && is_closed => slot_option::FAST_OPEN_NO_COOKIE,
        TCP_FASTOPEN_CONNECT if is_switch => slot_option::FAST_OPEN_CONNECT,
        _ => return Err(err(libc::EINVAL)),
    };
    let result = tell(socket, option, u64::from(number.unsigned_abs()));
    if result == 0 && name == TCP_FASTOPEN_CONNECT {
        if !is_closed || socket.state() & is::LISTENING != 0 {
            return Err(err(libc::EINVAL));
        }
        keep(socket, kept::FAST_OPEN_CONNECT, number != 0);
    }
    Ok(result)
}

/// One key, or two: the one that makes cookies, and the one that made them before.
fn set_key(socket: Socket, from: *const c_void, len: socklen_t) -> Result<isize, isize> {
    let (primary, before): ([u64; 2], [u64; 2]) = match len as usize {
        KEY_LEN => (value(from, len)?, [0; 2]),
        len if len == 2 * KEY_LEN => value(from, len as socklen_t)?,
        _ => return Err(err(libc::EINVAL)),
    };
    let arguments = [slot_option::FAST_OPEN_KEY, before[0], primary[0], primary[1]];
    Ok(call::call_with(call_op::OPTION, socket.index, arguments, before[1]).0.min(0) as isize)
}

/// `getsockopt` of one of these options.
pub(crate) fn get(socket: Socket, name: c_int, to: *mut c_void, len: *mut socklen_t) -> isize {
    let option = match name {
        TCP_FASTOPEN_CONNECT => return give(kept_bit(socket, kept::FAST_OPEN_CONNECT), to, len),
        TCP_FASTOPEN => slot_option::FAST_OPEN,
        TCP_FASTOPEN_NO_COOKIE => slot_option::FAST_OPEN_NO_COOKIE,
        _ => slot_option::FAST_OPEN_KEY,
    };
    match ask(socket, option, 0) {
        (failed, _) if failed < 0 => failed as isize,
        (number, _) if name != TCP_FASTOPEN_KEY => give(number, to, len),
        (bytes, [first, second, ..]) if bytes as usize == KEY_LEN => give([first, second], to, len),
        (_, words) => give(words, to, len),
    }
}

/// How the program wants to connect, as CONNECT has it.
pub(crate) fn how_to_connect(socket: Socket) -> u64 {
    if kept_bit(socket, kept::FAST_OPEN_CONNECT) != 0 { fast_open::OPTION } else { 0 }
}

/// The socket's SYN waits for the first that is written: how much of that may go with it.
pub(crate) fn room(socket: Socket) -> Option<u64> {
    let waits = socket.state() & (is::FAST_OPEN | is::CONNECTED | is::FAILED) == is::FAST_OPEN;
    let is_first = waits && socket.slot.send_tail.load(Ordering::Acquire) == 0;
    is_first.then(|| u64::from(socket.slot.mtu.load(Ordering::Relaxed)))
}

/// A call with MSG_FASTOPEN; `None`: it is the kernel's, or of a datagram socket.
pub(crate) fn send_to(
    fd: c_int,
    iov: &[iovec],
    flags: c_int,
    to: *const sockaddr,
    len: socklen_t,
) -> Option<isize> {
    let given = address::parse(to, len);
    let socket = socket_for(fd, &given)?;
    let given = match address::misfit(socket.is_inet6(), to, len) {
        None => Ok(given),
        Some(_) if socket.is_inet6() => Err(libc::EINVAL), // as for any other family
        Some(errno) => Err(errno),
    };
    let flags = flags & !MSG_FASTOPEN;
    let blocks = flags & MSG_DONTWAIT == 0 && !socket.non_blocking();
    match begin(fd, socket, stream::total(iov) > 0, blocks, given) {
        Ok(socket) => Some(stream::send(socket?, iov, flags)),
        Err(result) => Some(result),
    }
}

/// `fd` for a call with MSG_FASTOPEN; `None`: it is the kernel's, or no stream.
fn socket_for(fd: c_int, given: &Given) -> Option<Socket> {
    if let Some(socket) = Socket::of(fd) {
        return Some(socket).filter(|socket| socket.is_stream());
    }
    let Given::Inet(to) = *given else { return None };
    if attach::region().is_none() || to.port == 0 || !may_lead_to(to) {
        return None;
    }
    let (kind, family) = suitable(fd)?;
    if kind != slot_kind::STREAM || !speaks(fd, family, to.address) || !leads_to(to, kind) {
        return None;
    }
    let name = kernel_name(fd).filter(|name| name.port != 0);
    adopt::adopt(fd, kind, family, name.map(Name::anywhere)).ok()
}

/// The socket that may be written to now: its SYN waits for data, or its connection stands, or data may follow its SYN
/// as ever. `None`: it is the kernel's.
fn begin(
    fd: c_int,
    socket: Socket,
    has_data: bool,
    blocks: bool,
    given: Result<Given, c_int>,
) -> Result<Option<Socket>, isize> {
    // Linux: once it stands, the flag is ignored by the call that hears of it, and by no other.
    if room(socket).is_some() || life::settle(socket, blocks)? {
        return Ok(Some(socket));
    }
    let to = match given.map_err(err)? {
        Given::Inet(to) if is_broadcast(to.address) => return Err(err(libc::ENETUNREACH)),
        Given::Inet(to) => to,
        Given::Unspecified => return Err(err(libc::EOPNOTSUPP)),
        Given::Other => return Err(err(libc::EINVAL)),
    };
    let Some(socket) = life::ready(fd, socket, to)? else { return Ok(None) };
    let how = if has_data { fast_open::DATA } else { fast_open::NO_DATA };
    let result = life::connect_slot(socket, to, how);
    if result < 0 {
        return Err(result);
    }
    socket.slot.kept_options.fetch_or(kept::CONNECT_PENDING, Ordering::AcqRel);
    if result == 0 {
        // There is no cookie: the SYN asks for one, and data follow it as ever.
        if !blocks {
            return Err(err(libc::EINPROGRESS));
        }
        let failed = life::await_connection(socket);
        if failed < 0 {
            return Err(failed);
        }
    }
    Ok(Some(socket))
}

/// So much went with the SYN: as on Linux, a call that blocks returns when the connection stands. When SO_SNDTIMEO ends
/// first, it is sent all the same.
pub(crate) fn await_answer(socket: Socket, sent: usize) -> isize {
    match life::await_connection(socket) {
        failed if failed < 0 && failed != err(libc::EINPROGRESS) => failed,
        _ => sent as isize,
    }
}
