//! What a ring works on in the place of a stream that is connected on paths: one end of a pair of sockets of the kernel's,
//! under the program's own numbers. [`super::ferry`] has the other end, and the path.
//!
//! ```text
//!   program, ring ── descriptor ══ pair ══ our end ── ferry ── rings of the slot ── path
//! ```
//!
//! So what rings do, and calls, `poll`, `dup` and `fork` with them, is the kernel's. Names and options are the path's: the
//! descriptor's peer, our end, is bound to a name that says which socket it stands for ([`Said`]), so descriptors that
//! nobody has told us of (of a ring's, of a message's) are known as well.
//!
//! Left out, as the pair is of AF_UNIX: urgent data come in the stream; what a path ends with is ECONNRESET; a signal for
//! SO_KEEPALIVE's or a router's errors.

use std::ffi::c_int;
use std::io::{Cursor, Write as _};
use std::mem::{offset_of, zeroed};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libc::{sockaddr_un, socklen_t};

use super::ferry::{self, Crossing};
use crate::slot::{Socket, kept};
use crate::{epoll, options, own, real, table};

/// What may lie between the program and the path in each direction, as far as the system lets us.
const BUFFER: c_int = 256 << 10;
const PREFIX: &str = "scoutline-ring/";

/// This process has had some, or may have inherited one.
static ANY: AtomicBool = AtomicBool::new(false);

/// Puts one under each number that the socket has in this process. The ferry takes over a hold of it. False: there is none to
/// be had, and all is as before.
pub(super) fn put(fd: c_int, socket: Socket) -> bool {
    let mut pair = [-1; 2];
    // SAFETY: fills the array.
    let made = unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr())
    };
    if made < 0 {
        return false;
    }
    let [inner, outer] = pair;
    if !ferry::reserve() {
        real::close(inner);
        real::close(outer);
        return false;
    }
    bind_to_name(inner, socket);
    prepare(inner);
    take_place(outer, socket);
    let crossing = Crossing::new(socket, own::protect(inner), (inode(outer), fd));
    real::close(outer);
    ferry::add(crossing.into());
    true
}

/// Has `outer`, the program's end, under each number that the socket has in this process. Our ends are named by then.
pub(super) fn take_place(outer: c_int, socket: Socket) {
    ANY.store(true, Ordering::Release);
    prepare(outer);
    if socket.non_blocking() {
        let flags = real::fcntl(outer, libc::F_GETFL, 0);
        real::fcntl(outer, libc::F_SETFL, (flags | libc::O_NONBLOCK) as usize);
    }
    options::carry_waits(outer, socket);
    // An urgent byte has no other place there.
    options::keep(socket, kept::OOB_INLINE, true);
    for other in 0..=table::highest() {
        if table::socket(other) != Some(socket.index) {
            continue;
        }
        let keeps = real::fcntl(other, libc::F_GETFD, 0) & libc::FD_CLOEXEC;
        let flags = if keeps == 0 { 0 } else { libc::O_CLOEXEC };
        if real::dup3(outer, other, flags) == other && table::give_up(other, socket.index, true) {
            socket.release();
        }
    }
    // What it watched was the socket; the stand-in it would have to be told of.
    epoll::forget(socket);
}

/// Room in one direction.
pub(super) fn prepare(end: c_int) {
    set(end, libc::SO_SNDBUF, BUFFER);
}

fn set(fd: c_int, name: c_int, value: c_int) {
    let len = size_of::<c_int>() as socklen_t;
    real::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const value).cast(), len);
}

/// The file behind a descriptor; 0: there is none.
pub(super) fn inode(fd: c_int) -> u64 {
    // SAFETY: zeros are a valid structure, which the call fills.
    let mut status: libc::stat = unsafe { zeroed() };
    // SAFETY: as above.
    if unsafe { libc::fstat(fd, &raw mut status) } == 0 { status.st_ino } else { 0 }
}

/// An abstract name of AF_UNIX for our end: which program's, which socket, and which of its stand-ins. `None`: there is none
/// to be had.
pub(super) fn bind_to_name(inner: c_int, socket: Socket) -> Option<(sockaddr_un, socklen_t)> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let key = socket.region.header().stand_in_key.load(Ordering::Acquire);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: zeros are a valid address.
    let mut name: sockaddr_un = unsafe { zeroed() };
    name.sun_family = libc::AF_UNIX as u16;
    let mut text = Cursor::new([0u8; 107]);
    // SAFETY: no arguments.
    let pid = unsafe { libc::getpid() };
    let said = write!(text, "{PREFIX}{key:x}/{:x}/{:x}/{pid:x}/{count:x}", socket.index, socket.generation());
    let len = text.position() as usize;
    for (to, from) in name.sun_path[1..].iter_mut().zip(text.into_inner()) {
        *to = from.cast_signed();
    }
    let len = (offset_of!(sockaddr_un, sun_path) + 1 + len) as socklen_t;
    let bound = said.is_ok() && real::bind(inner, (&raw const name).cast(), len) == 0;
    bound.then_some((name, len))
}

/// The socket on paths for which a descriptor of the kernel's stands.
pub(crate) fn socket_of(fd: c_int) -> Option<Socket> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: zeros are a valid address.
    let mut name: sockaddr_un = unsafe { zeroed() };
    let mut len = size_of::<sockaddr_un>() as socklen_t;
    let errno = real::errno();
    if real::getpeername(fd, (&raw mut name).cast(), &raw mut len) < 0 {
        real::set_errno(errno);
        return None;
    }
    let path = offset_of!(sockaddr_un, sun_path);
    if name.sun_family != libc::AF_UNIX as u16 || (len as usize) <= path + 1 || name.sun_path[0] != 0 {
        return None;
    }
    let bytes: Vec<u8> =
        name.sun_path[1..(len as usize - path)].iter().map(|byte| byte.cast_unsigned()).collect();
    let (key, index, generation) = read(std::str::from_utf8(&bytes).ok()?)?;
    let socket = Socket::at(index)?;
    let own = socket.region.header().stand_in_key.load(Ordering::Acquire);
    (own == key && socket.generation() == generation).then_some(socket)
}

/// Key, slot and generation.
fn read(name: &str) -> Option<(u64, u32, u32)> {
    let mut parts = name.strip_prefix(PREFIX)?.split('/');
    let key = u64::from_str_radix(parts.next()?, 16).ok()?;
    let mut word = || u32::from_str_radix(parts.next()?, 16).ok();
    Some((key, word()?, word()?))
}

/// Of a stand-in's options, those that are the kernel's: what reading and writing goes by.
pub(crate) fn is_kernels(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET
        && matches!(
            name,
            libc::SO_ERROR | libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | libc::SO_RCVLOWAT | 66 | 67
        )
}
