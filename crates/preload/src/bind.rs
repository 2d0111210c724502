//! `bind` and `listen`: which sockets become ours by them, and what Linux says of addresses that do not fit.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{sockaddr, socklen_t};
use scoutline_abi::layout::{call_op, disconnect, slot_kind, slot_request as ask, slot_state as is};
use scoutline_base::Address;

use crate::address::{self, Given, Name};
use crate::adopt::{adopt, back_to_kernel, renew};
use crate::reach::{
    is_reached, kernel_has, kernel_name, kernel_port, may_bind, serves_any, speaks, suitable,
};
use crate::real::err;
use crate::slot::{Socket, kept};
use crate::table::{self, Entry};
use crate::{attach, call, engines, options, passing, privilege, real};

/// `bind`.
pub(crate) fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> isize {
    let given = address::parse(address, len);
    if let Some(socket) = Socket::of(fd) {
        if let Some(errno) = address::unreadable(address, len) {
            return err(errno);
        }
        let to = match address::to_bind(socket.is_inet6(), address, len) {
            Ok(to) => to,
            Err(errno) => return err(errno),
        };
        let socket = match begin_again(fd, socket) {
            Ok(socket) => socket,
            Err(result) => return result,
        };
        if socket.state() & (is::BOUND | is::CONNECTING | is::CONNECTED | is::LISTENING) != 0 {
            // IPv4 looks at the address first (`__inet_bind`).
            let is_ours = socket.is_inet6() || may_bind(to) || kernel_has(to);
            return err(if is_ours { libc::EINVAL } else { libc::EADDRNOTAVAIL });
        }
        if !may_bind(to) {
            back_to_kernel(fd, socket);
            return real::ours(real::bind(fd, address, len) as isize);
        }
        if !privilege::may_have(to.port) {
            return err(libc::EACCES);
        }
        if to.port != 0 && engines::of_port(socket.region, to.port) != socket.engine() {
            // It became ours for an option that only the engine knows, before it was known to which engine it belongs.
            static SAID: AtomicBool = AtomicBool::new(false);
            let remedy = b"with several engines, bind before asking for a class, a priority or a group";
            passing::say_once(&SAID, remedy);
            return err(libc::EINVAL);
        }
        if has_no_port(fd, to) {
            return bound(fd, socket, to, 0);
        }
        return bound(fd, socket, to, bind_slot(fd, socket, to));
    }
    if let Given::Inet(to) = given
        && attach::region().is_some()
        && (!to.address.is_unspecified() || to.port != 0)
        && may_bind(to)
        && let Some((kind, family)) = suitable(fd)
        && (to.address.is_unspecified() || speaks(fd, family, to.address))
        && (family == libc::AF_INET6 || to.address.is_v4())
        && address::misfit(family == libc::AF_INET6, address, len).is_none()
        && (kind == slot_kind::DATAGRAM || !to.address.is_multicast())
    {
        if kernel_port(fd) != 0 {
            return err(libc::EINVAL); // it sent elsewhere; the kernel does not know the address
        }
        if !privilege::may_have(to.port) {
            return err(libc::EACCES);
        }
        return match adopt(fd, kind, family, (!has_no_port(fd, to)).then_some(to)) {
            Ok(socket) => bound(fd, socket, to, 0),
            Err(result) => result,
        };
    }
    let result = real::ours(real::bind(fd, address, len) as isize);
    if let Given::Inet(to) = given
        && result == 0
        && to.address.is_unspecified()
        && to.port == 0
    {
        take_any_port(fd);
    }
    result
}

/// A datagram socket at every address has a port of the kernel's choice, which its program may tell to others: so it is
/// ours, where the port is free on our side, until it sends to where paths do not lead.
fn take_any_port(fd: c_int) {
    if matches!(table::look(fd), Entry::Candidate { .. })
        && serves_any()
        && let Some((slot_kind::DATAGRAM, family)) = suitable(fd)
        && let Some(name) = kernel_name(fd)
        && name.port != 0
        && let Ok(socket) = adopt(fd, slot_kind::DATAGRAM, family, Some(name))
    {
        options::keep(socket, kept::ANY_PORT, true);
    }
}

/// A datagram socket that is ours for its port only, and has sent nothing.
pub(crate) fn may_leave(socket: Socket) -> bool {
    !socket.is_stream() && options::kept_bit(socket, kept::ANY_PORT) != 0
}

/// Such a one is to send to `to`: it stays where paths lead there.
pub(crate) fn leave_for(fd: c_int, socket: Socket, to: Name) {
    if is_reached(to) {
        options::keep(socket, kept::ANY_PORT, false);
    } else {
        back_to_kernel(fd, socket);
    }
}

/// An attempt to connect that has failed leaves Linux's socket as it was before (`tcp_done`), and so does listening that has
/// ended: here that is a fresh one. What the program has bound it to stays.
pub(crate) fn begin_again(fd: c_int, socket: Socket) -> Result<Socket, isize> {
    if socket.is_stream() && socket.is_unconnected_again() { renew(fd, socket) } else { Ok(socket) }
}

/// The port is chosen when the socket connects, listens or sends (IP_BIND_ADDRESS_NO_PORT).
fn has_no_port(fd: c_int, to: Name) -> bool {
    to.port == 0 && options::binds_without_port(fd)
}

/// `bind` gave `result`. What it was asked for stays when an attempt to connect has failed, as on Linux (SOCK_BINDADDR_LOCK,
/// SOCK_BINDPORT_LOCK). At an address of IPv6 a socket takes nothing else from then on (`__inet6_bind`), and those that it
/// accepts say so, too.
fn bound(fd: c_int, socket: Socket, to: Name, result: isize) -> isize {
    if result == 0 {
        options::keep(socket, kept::ADDRESS_GIVEN, !to.address.is_unspecified());
        options::keep(socket, kept::PORT_GIVEN, to.port != 0);
        if socket.state() & is::BOUND == 0 {
            socket.slot.local_address.store(to.address);
        }
    }
    if result == 0 && socket.is_inet6() && !to.address.is_v4() && !to.address.is_unspecified() {
        options::take_v6_only(fd);
        options::keep(socket, kept::V6_ONLY, true);
    }
    result
}

/// `listen`.
pub(crate) fn listen(fd: c_int, backlog: c_int) -> isize {
    let mut socket = Socket::of(fd);
    if socket.is_none()
        && let Entry::Candidate { .. } = table::look(fd)
        && serves_any()
        && let Some((slot_kind::STREAM, family)) = suitable(fd)
        && let Some(name) = kernel_name(fd)
        && name.address.is_unspecified()
    {
        // The kernel's port, so that `getsockname` keeps its answer; another one if it is taken on our side.
        let adopted = adopt(fd, slot_kind::STREAM, family, Some(name))
            .or_else(|_| adopt(fd, slot_kind::STREAM, family, Some(Name { port: 0, ..name })));
        match adopted {
            Ok(adopted) => socket = Some(adopted),
            Err(result) => return result,
        }
    }
    let Some(socket) = socket else { return real::ours(real::listen(fd, backlog) as isize) };
    if !socket.is_stream() {
        return err(libc::EOPNOTSUPP);
    }
    let socket = match begin_again(fd, socket) {
        Ok(socket) => socket,
        Err(result) => return result,
    };
    let is_connected = socket.state() & (is::CONNECTED | is::CONNECTING) != 0 || socket.connect_is_pending();
    if is_connected || options::kept_bit(socket, kept::STUCK) != 0 {
        return err(libc::EINVAL);
    }
    if socket.state() & is::BOUND == 0 {
        let result = bind_slot(fd, socket, without_port(socket));
        if result < 0 {
            return result;
        }
    }
    if socket.state() & is::LISTENING == 0 {
        socket.slot.requests.fetch_and(!(ask::SHUTDOWN | ask::SHUTDOWN_READ), Ordering::AcqRel);
    }
    options::on_listen(socket);
    let backlog = u64::from(backlog.cast_unsigned()); // below zero is very much, as on Linux
    ask_for_port(call_op::LISTEN, socket, [backlog, 0, 0, 0]).min(0) as isize
}

/// A datagram socket of ours that nobody has bound gets a port.
pub(crate) fn bind_anywhere(socket: Socket) -> isize {
    let [high, low] = without_port(socket).address.words();
    let done = ask_for_port(call_op::BIND, socket, [low, 0, sharing(socket), high]);
    // As Linux's `inet_autobind` has it.
    if done == -libc::EADDRINUSE { err(libc::EAGAIN) } else { done.min(0) as isize }
}

/// What a socket of ours that has no port is bound to: the address that its program has given it.
fn without_port(socket: Socket) -> Name {
    let given = socket.slot.local_address.load();
    let anywhere = unbound(socket.is_inet6());
    if given.is_unspecified() { anywhere } else { Name { address: given, ..anywhere } }
}

pub(crate) fn bind_slot(fd: c_int, socket: Socket, to: Name) -> isize {
    let v6_only = socket.is_inet6() && options::is_v6_only(fd);
    options::keep(socket, kept::V6_ONLY, v6_only);
    let bits = sharing(socket) | u64::from(v6_only) << 2;
    let [high, low] = to.address.words();
    ask_for_port(call_op::BIND, socket, [low, u64::from(to.port), bits, high]).min(0) as isize
}

/// What a process had is free when it has ended: nobody is told that a port is taken by one that its parent has waited for.
fn ask_for_port(op: u32, socket: Socket, arguments: [u64; 4]) -> c_int {
    let ask = || call::call(op, socket.index, arguments);
    match ask() {
        taken if taken == -libc::EADDRINUSE && attach::settle() => ask(),
        done => done,
    }
}

/// SO_REUSEADDR and SO_REUSEPORT, as BIND has them.
pub(crate) fn sharing(socket: Socket) -> u64 {
    let kept = socket.slot.kept_options.load(Ordering::Relaxed);
    u64::from(kept & kept::REUSE_ADDRESS != 0) | u64::from(kept & kept::REUSE_PORT != 0) << 1
}

/// What a socket that goes with its peer gives up: what its program has not chosen (`__udp_disconnect`).
pub(crate) fn given_up(socket: Socket) -> u64 {
    let has = |bit| options::kept_bit(socket, bit) != 0;
    let port = if has(kept::PORT_GIVEN) { 0 } else { disconnect::PORT };
    port | if has(kept::ADDRESS_GIVEN) { 0 } else { disconnect::ADDRESS }
}

/// What a socket that was not bound is bound to.
pub(crate) fn unbound(inet6: bool) -> Name {
    Name { address: if inet6 { Address::UNSPECIFIED_V6 } else { Address::UNSPECIFIED_V4 }, ..Name::default() }
}
