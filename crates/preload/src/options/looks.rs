//! What a socket says of itself to `getsockopt` beyond what was set: its peer, its port, its family, what its way carries.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, socklen_t};
use scoutline_abi::layout::{slot_request as ask, slot_state as is};

use super::{give, has_ended, path_mtu};
use crate::real::err;
use crate::slot::Socket;
use crate::{address, life, memory, urgent};

/// Of `asm-generic/socket.h`, `linux/in.h`, `linux/in6.h` and `linux/tcp.h`, where `libc` lacks them.
const SO_PEERNAME: c_int = 28;
const IP_PROTOCOL: c_int = 52;
const IPV6_ADDRFORM: c_int = 1;
const IPV6_PATHMTU: c_int = 61;
const TCP_AO_REPAIR: c_int = 42;
const TCP_ZEROCOPY_RECEIVE: c_int = 35;

/// Of `struct tcp_zerocopy_receive`, which programs have in several lengths: where its fields lie, and its length.
mod zero_copy_receive {
    pub(super) const LENGTH: usize = 8;
    pub(super) const RECV_SKIP_HINT: usize = 12;
    pub(super) const INQ: usize = 16;
    pub(super) const ERR: usize = 20;
    pub(super) const COPYBUF_LEN: usize = 32;
    pub(super) const MSG_FLAGS: usize = 56;
    pub(super) const RESERVED: usize = 60;
    pub(super) const SIZE: usize = 64;
    /// What may be asked for beside it (TCP_CMSG_INQ, TCP_CMSG_TS).
    pub(super) const MSG_FLAGS_KNOWN: u32 = 3;
}

/// `struct ip6_mtuinfo`. Linux names nobody where it was asked for.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PathMtu {
    pub(crate) to: libc::sockaddr_in6,
    pub(crate) mtu: u32,
}

const _: () = assert!(size_of::<PathMtu>() == 32);

/// `None` where that is somebody else's affair.
pub(super) fn get(
    socket: Socket,
    (level, name): (c_int, c_int),
    to: *mut c_void,
    len: *mut socklen_t,
) -> Option<isize> {
    Some(match (level, name) {
        (SOL_SOCKET, SO_PEERNAME) => peer_name(socket, to, len),
        // What raw sockets have as their protocol; a connection that is over has given it back.
        (IPPROTO_IP, IP_PROTOCOL) => {
            let is_over = socket.state() & is::FAILED != 0 || socket.is_stream() && has_ended(socket);
            let port = socket.slot.local_port.load(Ordering::Relaxed);
            give(if is_over { 0 } else { port }, to, len)
        }
        // The kernel's socket behind listens to nobody.
        (IPPROTO_TCP, TCP_AO_REPAIR) if socket.state() & is::LISTENING != 0 => err(libc::EPERM),
        (IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) if socket.is_stream() => zero_copy_receive(socket, to, len),
        (IPPROTO_IPV6, IPV6_ADDRFORM) if socket.is_inet6() && is_established(socket) => {
            give(libc::AF_INET6, to, len)
        }
        (IPPROTO_IPV6, IPV6_PATHMTU) if socket.is_inet6() => path_mtu_of(socket, to, len),
        _ => return None,
    })
}

fn is_established(socket: Socket) -> bool {
    let is_open = socket.state() & (is::CONNECTED | is::FAILED | is::PEER_FINISHED) == is::CONNECTED;
    is_open && (!socket.is_stream() || socket.requests() & ask::SHUTDOWN == 0)
}

/// How much room a program has; 0 where it does not say.
fn room(len: *mut socklen_t) -> usize {
    // SAFETY: the program vouches for its length.
    if memory::is_nowhere(len) { 0 } else { unsafe { std::ptr::read_unaligned(len) as usize } }
}

/// Rings are not mapped into programs: all that waits is to be had by a copy, as Linux says of what fills no page
/// (`tcp_zerocopy_receive`).
fn zero_copy_receive(socket: Socket, to: *mut c_void, len: *mut socklen_t) -> isize {
    use zero_copy_receive as at;
    let room = room(len);
    if room < at::RECV_SKIP_HINT {
        return err(libc::EINVAL);
    }
    if memory::is_nowhere(to) {
        return err(libc::EFAULT);
    }
    let mut asked = [0u8; at::SIZE];
    // SAFETY: the program vouches for as many bytes as it says.
    let given = unsafe { std::slice::from_raw_parts(to.cast::<u8>(), room) };
    let (known, beyond) = given.split_at(room.min(at::SIZE));
    asked[..known.len()].copy_from_slice(known);
    let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| asked[at + byte]));
    let is_page = word(0).is_multiple_of(4096);
    let is_known = word(at::MSG_FLAGS) & !at::MSG_FLAGS_KNOWN == 0 && word(at::RESERVED) == 0;
    if !is_page || !is_known || beyond.iter().any(|&byte| byte != 0) {
        return err(libc::EINVAL);
    }
    if socket.state() & is::LISTENING != 0 {
        return err(libc::ENOTCONN);
    }
    let waiting = urgent::readable(socket).min(u64::from(u32::MAX)) as u32;
    if waiting == 0 && socket.state() & is::PEER_FINISHED != 0 {
        return err(libc::EIO);
    }
    for (at, value) in [
        (at::LENGTH, 0),
        (at::RECV_SKIP_HINT, waiting),
        (at::INQ, waiting),
        (at::ERR, 0),
        (at::COPYBUF_LEN, 0),
        (at::MSG_FLAGS, 0),
    ] {
        if at + size_of::<u32>() <= room {
            // SAFETY: as above.
            unsafe { to.byte_add(at).cast::<u32>().write_unaligned(value) };
        }
    }
    if room > at::SIZE {
        // SAFETY: the program vouches for its length, which was read.
        unsafe { std::ptr::write_unaligned(len, at::SIZE as socklen_t) };
    }
    0
}

/// As `sk_getsockopt`, who had a peer has it when the connection is over, too, and no more room than its name may be given.
fn peer_name(socket: Socket, to: *mut c_void, len: *mut socklen_t) -> isize {
    if socket.state() & is::CONNECTED == 0 {
        return err(libc::ENOTCONN);
    }
    let peer = life::remote(socket);
    let is_cut = |size| room(len) > size;
    if socket.is_inet6() {
        let v6 = address::sockaddr_v6(peer);
        return if is_cut(size_of_val(&v6)) { err(libc::EINVAL) } else { give(v6, to, len) };
    }
    let v4 = address::sockaddr_v4(peer);
    if is_cut(size_of_val(&v4)) { err(libc::EINVAL) } else { give(v4, to, len) }
}

fn path_mtu_of(socket: Socket, to: *mut c_void, len: *mut socklen_t) -> isize {
    let mtu = match socket.state() & (is::CONNECTED | is::FAILED) {
        is::CONNECTED if socket.is_stream() => path_mtu(socket).unsigned_abs(),
        is::CONNECTED => socket.slot.mtu.load(Ordering::Relaxed),
        _ => 0,
    };
    if room(len) < size_of::<PathMtu>() {
        return err(libc::EINVAL);
    }
    if mtu == 0 {
        return err(libc::ENOTCONN);
    }
    // SAFETY: zeros are a valid address.
    give(PathMtu { to: unsafe { std::mem::zeroed() }, mtu }, to, len)
}
