//! `bind` and `listen`: which sockets become ours by them, and what Linux says of addresses that do not fit.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{sockaddr, socklen_t};
use scoutline_abi::layout::{call_op, slot_kind, slot_request as ask, slot_state as is};
use scoutline_base::Address;

use crate::address::{self, Given, Name};
use crate::life::{adopt, back_to_kernel};
use crate::reach::{kernel_name, kernel_port, may_bind, serves_any, speaks, suitable};
use crate::real::err;
use crate::slot::{Socket, kept};
use crate::table::{self, Entry};
use crate::{attach, call, engines, options, passing, privilege, real};

/// `bind`.
pub(crate) fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> isize {
    let given = address::parse(address, len);
    if let Some(socket) = table::socket(fd).and_then(Socket::at) {
        if let Some(errno) = address::unreadable(address, len) {
            return err(errno);
        }
        let Given::Inet(to) = given else { return err(libc::EINVAL) };
        if let Some(errno) = address::misfit(socket.is_inet6(), address, len) {
            return err(errno);
        }
        if socket.state() & is::BOUND != 0 {
            return err(libc::EINVAL);
        }
        if !socket.is_inet6() && !to.address.is_v4() {
            return err(libc::EAFNOSUPPORT);
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
        // What the kernel has bound (it sent elsewhere) is told so by the kernel.
        && kernel_port(fd) == 0
    {
        if !privilege::may_have(to.port) {
            return err(libc::EACCES);
        }
        return match adopt(fd, kind, family, Some(to)) {
            Ok(socket) => bound(fd, socket, to, 0),
            Err(result) => result,
        };
    }
    real::ours(real::bind(fd, address, len) as isize)
}

/// `bind` gave `result`. What it was asked for stays when an attempt to connect has failed, as on Linux (SOCK_BINDADDR_LOCK,
/// SOCK_BINDPORT_LOCK). At an address of IPv6 a socket takes nothing else from then on (`__inet6_bind`), and those that it
/// accepts say so, too.
fn bound(fd: c_int, socket: Socket, to: Name, result: isize) -> isize {
    let address = if to.address.is_unspecified() { 0 } else { kept::BOUND_ADDRESS };
    let port = if to.port == 0 { 0 } else { kept::BOUND_PORT };
    if result == 0 {
        socket.slot.kept_options.fetch_or(address | port, Ordering::AcqRel);
    }
    if result == 0 && socket.is_inet6() && !to.address.is_v4() && !to.address.is_unspecified() {
        options::take_v6_only(fd);
    }
    result
}

/// `listen`.
pub(crate) fn listen(fd: c_int, backlog: c_int) -> isize {
    let mut socket = table::socket(fd).and_then(Socket::at);
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
    if socket.state() & (is::CONNECTED | is::CONNECTING) != 0 {
        return err(libc::EINVAL);
    }
    if socket.state() & is::BOUND == 0 {
        let result = bind_slot(fd, socket, unbound(socket.is_inet6()));
        if result < 0 {
            return result;
        }
    }
    if socket.state() & is::LISTENING == 0 {
        socket.slot.requests.fetch_and(!(ask::SHUTDOWN | ask::SHUTDOWN_READ), Ordering::AcqRel);
    }
    options::on_listen(socket);
    let backlog = u64::from(backlog.cast_unsigned()); // below zero is very much, as on Linux
    call::call(call_op::LISTEN, socket.index, [backlog, 0, 0, 0]).min(0) as isize
}

/// A datagram socket of ours that nobody has bound gets a port.
pub(crate) fn bind_anywhere(socket: Socket) -> isize {
    let [high, low] = unbound(socket.is_inet6()).address.words();
    call::call(call_op::BIND, socket.index, [low, 0, sharing(socket), high]).min(0) as isize
}

pub(crate) fn bind_slot(fd: c_int, socket: Socket, to: Name) -> isize {
    let v6_only = socket.is_inet6() && options::is_v6_only(fd);
    let bits = sharing(socket) | u64::from(v6_only) << 2;
    let [high, low] = to.address.words();
    call::call(call_op::BIND, socket.index, [low, u64::from(to.port), bits, high]).min(0) as isize
}

/// SO_REUSEADDR and SO_REUSEPORT, as BIND has them.
pub(crate) fn sharing(socket: Socket) -> u64 {
    let kept = socket.slot.kept_options.load(Ordering::Relaxed);
    u64::from(kept & kept::REUSE_ADDRESS != 0) | u64::from(kept & kept::REUSE_PORT != 0) << 1
}

/// What a socket that was not bound is bound to.
pub(crate) fn unbound(inet6: bool) -> Name {
    Name { address: if inet6 { Address::UNSPECIFIED_V6 } else { Address::UNSPECIFIED_V4 }, ..Name::default() }
}
