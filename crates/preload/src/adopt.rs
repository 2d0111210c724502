//! Whose a socket is: how a candidate of the kernel's becomes ours, goes back, and begins anew ([`crate::life`] says when).

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::socklen_t;
use scoutline_abi::layout::{call_op, slot_flag, slot_kind};
use scoutline_base::spread::EPHEMERAL_FROM;

use crate::address::{self, Name};
use crate::bind::{bind_slot, unbound};
use crate::reach::{is_reached, kernel_name, kernel_port, serves_any, speaks, suitable};
use crate::real::err;
use crate::slot::{Socket, kept};
use crate::table::Entry;
use crate::{attach, call, engines, epoll, family, headers, options, passing, real, rings, table};

/// A fresh slot for `fd`, not yet entered in the table.
fn open(
    fd: c_int,
    kind: u32,
    family: c_int,
    engines: impl IntoIterator<Item = usize>,
) -> Result<Socket, isize> {
    let mut opened = -libc::ECONNRESET;
    for engine in engines {
        opened = call::ask_engine(engine, call_op::OPEN, [u64::from(kind), family as u64, 0, 0]);
        if opened != -libc::ENFILE {
            break; // that one has no slot left, and another may
        }
    }
    if opened < 0 {
        return Err(opened as isize);
    }
    let Some(socket) = Socket::at(opened as u32) else { return Err(err(libc::EPROTO)) };
    socket.hold(true);
    let flags = real::fcntl(fd, libc::F_GETFL, 0);
    let mut ours = 0;
    if flags >= 0 && flags & libc::O_NONBLOCK != 0 {
        ours |= slot_flag::NONBLOCK;
    }
    if family == libc::AF_INET6 {
        ours |= slot_flag::INET6;
    }
    socket.slot.flags.store(ours, Ordering::Release);
    for kept in &socket.slot.keep_alive_times {
        kept.store(0, Ordering::Relaxed);
    }
    options::carry_over(fd, socket);
    Ok(socket)
}

/// From now on `fd` is this socket, and so are its duplicates.
fn enter(fd: c_int, socket: Socket) {
    let is_twin = table::is_twin(fd);
    let (before, is_shared) = table::adopt(fd, socket.index);
    if let Entry::Candidate { watched: true } = before {
        epoll::adopt(fd, socket);
    }
    if is_twin {
        enter_twins(fd, socket);
    }
    if is_shared {
        family::share(fd, socket);
    }
}

/// The other descriptors of what was the kernel's socket behind `fd` are this socket, too.
pub(crate) fn enter_twins(fd: c_int, socket: Socket) {
    let inode = real::inode(fd);
    for other in (0..=table::highest()).filter(|&other| table::is_twin(other) && real::inode(other) == inode)
    {
        socket.hold(false);
        follow(other, socket);
    }
}

/// A candidate that another descriptor names, too, is this socket, which is held for it.
pub(crate) fn follow(fd: c_int, socket: Socket) {
    match table::follow(fd, socket.index) {
        Some(Entry::Candidate { watched: true }) => epoll::adopt(fd, socket),
        Some(_) => {}
        None => socket.release(), // closed meanwhile
    }
}

/// Makes `fd` ours and binds it; on failure it stays the kernel's.
pub(crate) fn adopt(fd: c_int, kind: u32, family: c_int, name: Option<Name>) -> Result<Socket, isize> {
    adopt_towards(fd, kind, family, name, None)
}

/// The same for a socket that is to connect to `remote`.
pub(crate) fn adopt_towards(
    fd: c_int,
    kind: u32,
    family: c_int,
    name: Option<Name>,
    remote: Option<Name>,
) -> Result<Socket, isize> {
    let port = name.map_or(0, |name| name.port);
    let engines = attach::region().map(|region| engines::for_socket(region, kind, port, remote));
    let socket = open(fd, kind, family, engines.into_iter().flatten())?;
    if let Some(name) = name {
        let result = bind_slot(fd, socket, name);
        if result < 0 {
            socket.release();
            return Err(result);
        }
        // The kernel has chosen it, or bound it for a program that we did not see.
        options::keep(socket, kept::PORT_GIVEN, (1..EPHEMERAL_FROM).contains(&name.port));
    }
    enter(fd, socket);
    Ok(socket)
}

/// `fd` for an option of ours: a TCP socket that may become ours does so now. What paths do not lead to gives it back.
pub(crate) fn adopt_for_options(fd: c_int) -> Option<Socket> {
    if let Some(socket) = Socket::of(fd) {
        return Some(socket);
    }
    if !matches!(table::look(fd), Entry::Candidate { .. }) || !serves_any() {
        return None;
    }
    let Some((slot_kind::STREAM, family)) = suitable(fd) else { return None };
    let name = kernel_name(fd).filter(|name| name.port != 0);
    // One that listens, or is bound to an address or connected, stays the kernel's.
    if options::of_kernel(fd, libc::SO_ACCEPTCONN) != 0
        || name.is_some_and(|name| !name.address.is_unspecified())
    {
        return None;
    }
    adopt(fd, slot_kind::STREAM, family, name).ok()
}

/// `fd` for a group of ours: a datagram socket that may become ours does so now, bound or not.
pub(crate) fn adopt_for_groups(fd: c_int) -> Option<Socket> {
    if !matches!(table::look(fd), Entry::Candidate { .. }) {
        return None;
    }
    let Some((slot_kind::DATAGRAM, family)) = suitable(fd) else { return None };
    let name = kernel_name(fd).filter(|name| name.port != 0);
    // Bound to a group it takes nothing that is for us alone.
    let place = |name: Name| if name.address.is_multicast() { name } else { name.anywhere() };
    adopt(fd, slot_kind::DATAGRAM, family, name.map(place)).ok()
}

/// `sendto` on a kernel datagram socket: makes it ours if paths lead there.
pub(crate) fn adopt_for_send(fd: c_int, to: Name) -> Option<Socket> {
    if !matches!(table::look(fd), Entry::Candidate { .. }) || !is_reached(to) {
        return None;
    }
    let Some((slot_kind::DATAGRAM, family)) = suitable(fd) else { return None };
    if !speaks(fd, family, to.address) {
        return None;
    }
    let nothing = unbound(family == libc::AF_INET6);
    let name = kernel_name(fd).map_or(nothing, Name::anywhere);
    adopt(fd, slot_kind::DATAGRAM, family, Some(name))
        .or_else(|_| adopt(fd, slot_kind::DATAGRAM, family, Some(nothing)))
        .ok()
}

/// The descriptor goes back to the kernel's socket behind it.
pub(crate) fn give_up(fd: c_int, socket: Socket) {
    if table::give_up(fd, socket.index, false) {
        epoll::go_back(fd, socket);
        socket.release();
    }
}

/// A socket that was only bound turns out to go where paths do not lead.
pub(crate) fn back_to_kernel(fd: c_int, socket: Socket) {
    let port = socket.slot.local_port.load(Ordering::Relaxed) as u16;
    let address = socket.slot.local_address.load();
    let inet6 = socket.is_inet6();
    let non_blocking = socket.non_blocking();
    let is_it = |&other: &c_int| table::socket(other) == Some(socket.index);
    let all: Vec<c_int> =
        if socket.is_held_once() { vec![fd] } else { (0..=table::highest()).filter(is_it).collect() };
    rings::goes_back(socket);
    for &one in &all {
        give_up(one, socket);
        if all.len() > 1 {
            table::note_twin(one);
        }
    }
    if passing::stood_for(fd) == Some(socket.index) {
        // For other processes it is no more what it was for this one.
        let _ = passing::stand_for(fd, None);
    }
    let flags = real::fcntl(fd, libc::F_GETFL, 0);
    let flags = if non_blocking { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    real::fcntl(fd, libc::F_SETFL, flags as usize);
    if port != 0 && kernel_port(fd) == 0 && address.is_unspecified() {
        // SAFETY: zeros are a valid address.
        let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
        address::write(Name { address, port, scope: 0 }, inet6, (&raw mut name).cast(), &raw mut len);
        real::bind(fd, (&raw const name).cast(), len);
    }
}

/// A fresh slot for a socket that begins again, under all descriptors that it has in this process, and where its epolls
/// watch it.
pub(crate) fn renew(fd: c_int, old: Socket) -> Result<Socket, isize> {
    let family = if old.is_inet6() { libc::AF_INET6 } else { libc::AF_INET };
    let fresh = open(fd, slot_kind::STREAM, family, [old.engine()])?;
    options::inherit(old, fresh);
    fresh.put_error(old.slot.error.load(Ordering::Acquire));
    fresh.slot.peek_offset_inverted.store(0, Ordering::Relaxed); // off (`tcp_disconnect`)
    if options::kept_bit(old, kept::ADDRESS_GIVEN) != 0 {
        fresh.slot.local_address.store(old.slot.local_address.load());
    }
    if options::kept_bit(old, kept::PORT_GIVEN) != 0 {
        // One that has lost it, since its engine is gone, begins without.
        call::call(call_op::TAKE_PORT, fresh.index, [old.index.into(), 0, 0, 0]);
    }
    headers::tell(fresh); // of the old one alone the engine knew
    fresh.set_non_blocking(old.non_blocking());
    epoll::renewed(old, fresh);
    for other in 0..=table::highest() {
        if table::look(other) == Entry::Socket(old.index) {
            fresh.hold(false);
            table::put(other, Entry::Socket(fresh.index));
            old.release();
        }
    }
    fresh.release(); // the descriptors hold it now
    Ok(fresh)
}
