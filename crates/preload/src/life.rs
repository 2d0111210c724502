//! The life of a socket: connect, shutdown, duplicates, close. What binds it: [`crate::bind`]; whose it is: [`crate::adopt`].
//!
//! A socket starts as the kernel's (a *candidate*). It becomes ours when it binds to an address that paths serve
//! (or to any address and a port), listens on any address, or connects or sends to where paths lead. Binding to
//! any address with port 0 decides nothing yet: the kernel picks the port, and what comes next decides.

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{Ordering, fence};

use libc::{sockaddr, socklen_t};
use scoutline_abi::layout::fast_open::ANY_PORT;
use scoutline_abi::layout::{call_op, slot_kind, slot_request as ask, slot_state as is};

use crate::address::{self, Given, Name};
use crate::adopt::{adopt_towards, back_to_kernel, renew};
use crate::bind::{begin_again, given_up};
use crate::reach::{is_broadcast, kernel_name, leads_to, may_lead_to, speaks, suitable};
use crate::real::err;
use crate::slot::{Socket, kept};
use crate::table::Entry;
use crate::wait::MOVED;
use crate::{
    attach, call, cancel, datagram, epoll, family, fast_open, options, own, reach, real, rings, stdio,
    stream, table, under_way, wait,
};

/// Asks the engine to connect, in a way of [`scoutline_abi::layout::fast_open`]; 0: it is under way, more: the SYN waits
/// for data.
pub(crate) fn connect_slot(socket: Socket, to: Name, how: u64) -> isize {
    let [high, low] = to.address.words();
    let arguments = [low, u64::from(to.port), u64::from(to.scope) | how << 32, high];
    call::call(call_op::CONNECT, socket.index, arguments) as isize
}

/// `socket` succeeded: remembers what may become ours, forgets what had the number.
pub(crate) fn created(fd: c_int, family: c_int, kind: c_int) {
    if fd < 0 || attach::region().is_none() {
        return;
    }
    let inet = family == libc::AF_INET || family == libc::AF_INET6;
    let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let candidate = inet && (kind == libc::SOCK_STREAM || kind == libc::SOCK_DGRAM);
    let entry = if candidate { Entry::Candidate { watched: false } } else { Entry::Kernel };
    left(fd, table::put(fd, entry));
}

/// A descriptor that was `entry` is gone.
pub(crate) fn left(fd: c_int, entry: Entry) {
    match entry {
        Entry::Socket(slot) => {
            if let Some(socket) = Socket::at(slot) {
                under_way::number_is_gone(socket);
                socket.release();
            }
        }
        Entry::Epoll(number) => epoll::closed(number),
        Entry::Candidate { watched: true } => epoll::drop_candidate(fd),
        Entry::Ring(number) => rings::closed(number),
        Entry::StandIn(slot) => {
            if let Some(socket) = Socket::at(slot) {
                socket.release();
            }
            rings::look_again();
        }
        _ => {}
    }
}

/// IPv6 from an address of IPv4, which is EAFNOSUPPORT (`ip6_dst_lookup_tail`).
pub(crate) fn clashes(socket: Socket, to: Name) -> bool {
    let own = socket.slot.local_address.load();
    socket.is_inet6() && own.is_v4() && !own.is_unspecified() && !to.address.is_v4()
}

/// A group's address as this socket means it: on the interface that it sends to groups by, if it has said one.
fn group_of(socket: Socket, to: Name) -> Name {
    if !to.address.is_multicast() || to.scope != 0 {
        return to;
    }
    let interface = &socket.slot.group_interface[usize::from(!to.address.is_v4())];
    Name { scope: interface.load(Ordering::Relaxed), ..to }
}

/// `connect`.
pub(crate) fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> isize {
    let given = peer_given(fd, address, len);
    let kernel = || real::ours(real::connect(fd, address, len) as isize);
    let stream = |socket, to| match connect_stream(fd, socket, to) {
        Ok(done) => done.unwrap_or_else(kernel),
        Err(result) => result,
    };
    if let Given::Inet(to) = given
        && is_broadcast(to.address)
    {
        if options::is_stream(fd) {
            return if to.address.is_v4() { err(libc::ENETUNREACH) } else { kernel() }; // `tcp_v4_connect`
        }
        if !options::may_broadcast(fd) {
            return err(libc::EACCES);
        }
    }
    if let Some(socket) = Socket::of(fd) {
        if let Some(errno) = address::unreadable(address, len) {
            return err(errno);
        }
        if socket.is_stream() && given != Given::Unspecified && len >= 2 {
            match settle(socket, !socket.non_blocking()) {
                Ok(false) => {}
                Ok(true) => return 0,
                Err(result) => return result,
            }
        }
        let misfit = address::misfit(socket.is_inet6(), address, len);
        return match given {
            Given::Inet(_) if !socket.is_inet6() && misfit.is_some() => err(libc::EAFNOSUPPORT),
            Given::Inet(to) if socket.is_stream() => misfit.map_or_else(|| stream(socket, to), err),
            Given::Inet(to) if clashes(socket, to) => err(libc::EAFNOSUPPORT),
            Given::Inet(to) if leads_to(group_of(socket, to), slot_kind::DATAGRAM) => {
                datagram::await_sent(socket);
                options::keep(socket, kept::ANY_PORT, false); // it has a peer on paths
                connect_slot(socket, group_of(socket, to), 0)
            }
            Given::Inet(to) => {
                // Where it cannot go it keeps the peer that it has.
                if let refusal @ (libc::ENETUNREACH | libc::EHOSTUNREACH) = reach::refusal_of_host(to) {
                    return err(refusal);
                }
                back_to_kernel(fd, socket);
                kernel()
            }
            Given::Unspecified if !socket.is_stream() => {
                datagram::await_sent(socket);
                call::call(call_op::DISCONNECT, socket.index, [given_up(socket), 0, 0, 0]).min(0) as isize
            }
            Given::Unspecified => disconnect_stream(fd, socket),
            Given::Other => err(address::refusal(socket.is_inet6(), address, len)),
        };
    }
    let Given::Inet(to) = given else { return kernel() };
    let Some((kind, family)) = suited(fd, to, address, len) else { return kernel() };
    let name = kernel_name(fd).filter(|name| name.port != 0);
    // The kernel has chosen that port, and does not know what we use.
    let adopted = adopt_towards(fd, kind, family, name.map(Name::anywhere), Some(to))
        .or_else(|_| adopt_towards(fd, kind, family, None, Some(to)));
    match adopted {
        Ok(socket) if kind == slot_kind::STREAM => {
            if name.is_some() {
                socket.slot.kept_options.fetch_or(kept::ANY_PORT, Ordering::AcqRel);
            }
            stream(socket, to)
        }
        Ok(socket) => connect_slot(socket, to, 0),
        Err(result) => result,
    }
}

/// The peer that is given to `connect`. No address means this host: for IPv4 the socket's own, else the loopback one of the
/// socket's family (`ip_route_output_key`, `tcp_v6_connect`).
fn peer_given(fd: c_int, address: *const sockaddr, len: socklen_t) -> Given {
    let given = address::parse(address, len);
    let Given::Inet(to) = given else { return given };
    if !to.address.is_unspecified() {
        return given;
    }
    let own = Socket::of(fd)
        .map(|socket| socket.slot.local_address.load())
        .or_else(|| kernel_name(fd).map(|name| name.address))
        .filter(|own| own.is_v4() && !own.is_unspecified());
    let address = match own {
        Some(own) if to.address.is_v4() => own,
        None if !to.address.is_v4() => Ipv6Addr::LOCALHOST.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    };
    Given::Inet(Name { address, ..to })
}

/// The kind and family of a socket of the kernel's that may become ours to connect to `to`, which is at `address`.
fn suited(fd: c_int, to: Name, address: *const sockaddr, len: socklen_t) -> Option<(u32, c_int)> {
    // The last asks most.
    let suits = |&(kind, family): &(u32, c_int)| {
        let takes_both = family == libc::AF_INET6 && kind == slot_kind::DATAGRAM;
        (takes_both || address::misfit(family == libc::AF_INET6, address, len).is_none())
            && speaks(fd, family, to.address)
            && (kind != slot_kind::STREAM || !reach::is_bound_elsewhere(fd, to))
            && leads_to(to, kind)
    };
    if may_lead_to(to) { suitable(fd).filter(suits) } else { None }
}

/// Whether `connect` of this stream is the paths' affair.
pub(crate) fn connects_by_paths(fd: c_int, address: *const sockaddr, len: socklen_t) -> bool {
    let Given::Inet(to) = peer_given(fd, address, len) else { return false };
    match Socket::of(fd) {
        Some(socket) => socket.is_stream() && leads_to(to, slot_kind::STREAM),
        None => {
            !is_broadcast(to.address)
                && suited(fd, to, address, len).is_some_and(|(kind, _)| kind == slot_kind::STREAM)
        }
    }
}

/// `connect` to nowhere, as Linux's `tcp_disconnect`: the socket is from then on one that was never connected, but for an
/// error, and has no port. The peer gets a reset once no other process has the connection: the slot is theirs as well.
fn disconnect_stream(fd: c_int, socket: Socket) -> isize {
    let state = socket.state();
    if state & (is::CONNECTED | is::CONNECTING | is::LISTENING | is::FAILED) == 0 {
        // There is nothing to leave: what it is bound to stays. Who watches it has an event (`sk_error_report`).
        epoll::renewed(socket, socket);
        return 0;
    }
    if state & is::LISTENING != 0 {
        shutdown(socket, libc::SHUT_RD);
    }
    let ends = state & (is::CONNECTED | is::CONNECTING) != 0
        && state & is::FAILED == 0
        && !options::has_ended(socket);
    let linger = socket.slot.linger_plus_one.swap(1, Ordering::AcqRel);
    // Who sleeps on it has what it slept for no more.
    let is_alone = socket.slot.references.load(Ordering::Acquire) == 1; // else others have it still
    options::keep(socket, kept::DISCONNECTED, is_alone && state & is::LISTENING == 0);
    socket.wake_all();
    match renew(fd, socket) {
        Ok(fresh) => {
            fresh.slot.linger_plus_one.store(linger, Ordering::Release);
            if ends {
                fresh.put_error(libc::ECONNRESET);
            }
            0
        }
        Err(refused) => {
            options::keep(socket, kept::DISCONNECTED, false);
            socket.slot.linger_plus_one.store(linger, Ordering::Release);
            refused
        }
    }
}

/// What a call that connects a stream finds. True: the connection stands, and no call has told so yet.
pub(crate) fn settle(socket: Socket, blocks: bool) -> Result<bool, isize> {
    let pending = socket.connect_is_pending();
    let state = socket.state();
    if pending {
        // A second call tells how the first one ended.
        if state & (is::FAILED | is::CONNECTED) == 0 && !blocks {
            return Err(err(libc::EALREADY));
        }
        let failed = await_connection(socket);
        if failed == err(libc::EINPROGRESS) {
            return Err(err(libc::EALREADY)); // this call's time is over, too
        }
        return if failed < 0 { Err(failed) } else { Ok(true) };
    }
    if options::kept_bit(socket, kept::STUCK) != 0 {
        return Err(err(libc::EINVAL));
    }
    if state & (is::CONNECTED | is::LISTENING) != 0 && !socket.is_unconnected_again() {
        return Err(err(libc::EISCONN)); // though it be over (SS_CONNECTED of Linux)
    }
    Ok(false)
}

/// The socket that is to connect to `to`: a fresh one after a failure. `None`: `fd` is the kernel's now.
pub(crate) fn ready(fd: c_int, socket: Socket, to: Name) -> Result<Option<Socket>, isize> {
    let socket = begin_again(fd, socket)?;
    if to.address.is_multicast() {
        return Err(err(libc::ENETUNREACH)); // `tcp_v4_connect`, `tcp_v6_connect`
    }
    if clashes(socket, to) {
        return Err(err(libc::EAFNOSUPPORT));
    }
    if !leads_to(to, slot_kind::STREAM) {
        back_to_kernel(fd, socket);
        return Ok(None);
    }
    if to.port == 0 {
        return Err(err(libc::ECONNREFUSED)); // nobody can listen there
    }
    Ok(Some(socket))
}

/// `connect` of a stream; `None`: it is the kernel's now.
fn connect_stream(fd: c_int, socket: Socket, to: Name) -> Result<Option<isize>, isize> {
    let Some(socket) = ready(fd, socket, to)? else { return Ok(None) };
    socket.take_error(); // what ended the connection before is not this one's (`tcp_connect_init`)
    let any_port = socket.slot.kept_options.load(Ordering::Relaxed) & kept::ANY_PORT != 0;
    let any_port = if any_port { ANY_PORT } else { 0 };
    let result = connect_slot(socket, to, fast_open::how_to_connect(socket) | any_port);
    if result < 0 {
        return Err(result);
    }
    if result > 0 {
        return Ok(Some(0)); // with TCP_FASTOPEN_CONNECT the SYN goes with what is written first
    }
    socket.slot.kept_options.fetch_or(kept::CONNECT_PENDING, Ordering::AcqRel);
    if socket.non_blocking() {
        // Within one call Linux never sees the answer; ours may have it already, and says so the same way later.
        return Err(err(libc::EINPROGRESS));
    }
    Ok(Some(await_connection(socket)))
}

pub(crate) fn await_connection(socket: Socket) -> isize {
    let deadline = wait::deadline_us(socket.slot.send_timeout_us.load(Ordering::Relaxed));
    let settled = || socket.state() & (is::CONNECTED | is::FAILED) != 0;
    if !settled()
        && let Err(errno) = wait::wait_for(socket, deadline, settled)
    {
        return err(match errno {
            libc::EAGAIN => libc::EINPROGRESS,
            MOVED => libc::EINTR,
            _ => errno,
        });
    }
    socket.slot.kept_options.fetch_and(!kept::CONNECT_PENDING, Ordering::AcqRel);
    if socket.state() & is::FAILED != 0 {
        let errno = socket.take_error();
        options::keep(socket, kept::BEGINS_AGAIN, true);
        stream::drop_received(socket); // `tcp_disconnect`
        return err(if errno == 0 { libc::ECONNABORTED } else { errno });
    }
    0
}

pub(crate) fn remote(socket: Socket) -> Name {
    let slot = socket.slot;
    Name {
        address: slot.remote_address.load(),
        port: slot.remote_port.load(Ordering::Relaxed) as u16,
        scope: slot.scope.load(Ordering::Relaxed),
    }
}

/// `getsockname` on a socket of ours.
pub(crate) fn local_name(socket: Socket, address: *mut sockaddr, len: *mut socklen_t) -> isize {
    if address.is_null() {
        return err(libc::EFAULT);
    }
    let slot = socket.slot;
    let own = slot.local_address.load();
    // An attempt to connect has left it, unless the program has chosen it.
    let is_left = socket.is_stream()
        && socket.is_unconnected_again()
        && slot.kept_options.load(Ordering::Relaxed) & kept::ADDRESS_GIVEN == 0;
    let name = Name {
        address: if is_left { own.unspecified() } else { own },
        port: slot.local_port.load(Ordering::Relaxed) as u16,
        scope: slot.scope.load(Ordering::Relaxed),
    };
    address::write(name, socket.is_inet6(), address, len)
}

/// `getpeername` on a socket of ours.
pub(crate) fn peer_name(socket: Socket, address: *mut sockaddr, len: *mut socklen_t) -> isize {
    let state = socket.state();
    let has_peer = state & is::CONNECTED != 0 && state & is::FAILED == 0;
    let is_nobody = socket.slot.remote_port.load(Ordering::Relaxed) == 0;
    if !has_peer || is_nobody || socket.is_stream() && options::has_ended(socket) {
        return err(libc::ENOTCONN);
    }
    if address.is_null() {
        return err(libc::EFAULT);
    }
    address::write(remote(socket), socket.is_inet6(), address, len)
}

/// `shutdown` on a socket of ours.
pub(crate) fn shutdown(socket: Socket, how: c_int) -> isize {
    let what = match how {
        libc::SHUT_RD => ask::SHUTDOWN_READ,
        libc::SHUT_WR => ask::SHUTDOWN,
        libc::SHUT_RDWR => ask::SHUTDOWN | ask::SHUTDOWN_READ,
        _ => return err(libc::EINVAL),
    };
    if socket.is_stream() && give_up_connecting(socket) {
        return 0;
    }
    let state = socket.state();
    if socket.connect_is_pending() {
        // From now on it counts as told (`inet_shutdown`).
        let is_over = state & is::FAILED != 0 || options::has_ended(socket);
        options::keep(socket, kept::CONNECT_PENDING, false);
        options::keep(socket, kept::STUCK, is_over);
    }
    let is_listening = state & is::LISTENING != 0;
    if !is_listening && (state & is::CONNECTED == 0 || state & is::FAILED != 0) {
        if !socket.is_stream() {
            // It is shut for all that (`inet_shutdown`).
            socket.shut(what);
        }
        return err(libc::ENOTCONN);
    }
    if !is_listening && socket.is_stream() && options::has_ended(socket) {
        return err(libc::ENOTCONN);
    }
    socket.shut(what);
    if is_listening && what & ask::SHUTDOWN_READ != 0 {
        // Who listens again right away must not be shut by this; and nobody is let in any more.
        let ended = || socket.state() & is::LISTENING == 0;
        await_or_gone(socket, ended);
        options::keep(socket, kept::BEGINS_AGAIN, true);
    }
    0
}

/// Ends an attempt to connect, in whichever direction the socket is shut, as Linux does (`inet_shutdown` in SYN-SENT). False:
/// none is under way, or it ended meanwhile.
fn give_up_connecting(socket: Socket) -> bool {
    if !is::opens(socket.state()) {
        return false;
    }
    socket.slot.requests.fetch_or(ask::DISCONNECT, Ordering::AcqRel);
    socket.tell();
    // Who connects again right away must not be ended by this.
    let answered = || !is::opens(socket.state());
    await_or_gone(socket, answered);
    // One that came too late is for nobody.
    socket.slot.requests.fetch_and(!ask::DISCONNECT, Ordering::AcqRel);
    socket.state() & is::DISCONNECTED != 0
}

/// Waits for an answer of the engine, whatever handlers run meanwhile, for as long as anybody has the socket.
fn await_or_gone(socket: Socket, answered: impl Fn() -> bool) {
    while !answered() && !attach::dead() {
        match cancel::uncancelled(|| wait::wait_for(socket, None, &answered)) {
            Err(libc::EBADF) => return,
            Err(MOVED | libc::EPIPE) => cancel::uncancelled(|| real::nap(50)),
            _ => {}
        }
    }
}

/// `close`.
pub(crate) fn close(fd: c_int) -> c_int {
    if table::is_shared(fd) {
        real::pthread_testcancel(); // not from here on
    }
    let closing = family::Closing::begin(fd);
    match family::look(fd) {
        Entry::Kernel => real::close(fd),
        Entry::Internal(_) => {
            real::set_errno(libc::EBADF);
            -1
        }
        _ => {
            if closing.is_none() {
                real::pthread_testcancel();
            }
            let (entry, result) = table::close_by(fd, || real::close_uncancelled(fd));
            let errno = real::errno();
            drop(closing);
            if let Entry::Socket(slot) = entry
                && let Some(socket) = Socket::at(slot)
            {
                let mut rest = (fd, entry);
                cancel::cancellable(left_lingering, (&raw mut rest).cast(), || stream::linger(socket));
            }
            left(fd, entry);
            real::set_errno(errno);
            result
        }
    }
}

/// A thread is cancelled while it lingers, or a handler jumps out of that: the number is gone all the same.
extern "C" fn left_lingering(rest: *mut c_void) {
    // SAFETY: what `close` gave, in a frame that still stands.
    let (fd, entry) = unsafe { rest.cast::<(c_int, Entry)>().read() };
    left(fd, entry);
}

/// The process ends in good order: its sockets are closed as Linux would close them, with what they still have to
/// send. (A killed process cannot say so; the daemon sees its connection end.)
pub(crate) fn leave() {
    if attach::region().is_none() || attach::dead() || !attach::is_owner() {
        return;
    }
    rings::flush();
    for fd in 0..=table::highest() {
        if table::held(fd).is_some() {
            left(fd, table::put(fd, Entry::Kernel));
        }
    }
}

/// The C library closes `fd` by itself right after this.
pub(crate) fn closing(fd: c_int) {
    if !matches!(family::look(fd), Entry::Kernel | Entry::Internal(_)) {
        left(fd, table::put(fd, Entry::Kernel));
    }
}

/// `close_range`, our own descriptors left out.
pub(crate) fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 || first > last {
        return real::close_range(first, last, flags);
    }
    let highest = table::highest().max(0) as u32;
    let mut from = first;
    for fd in first..=last.min(highest) {
        let _closing = family::Closing::begin(fd as c_int);
        match family::look(fd as c_int) {
            Entry::Internal(_) => {
                if from < fd {
                    real::close_range(from, fd - 1, flags);
                }
                from = fd + 1;
            }
            Entry::Kernel => {}
            _ => {
                let close = || real::close_uncancelled(fd as c_int);
                let (entry, _) = table::close_by(fd as c_int, close);
                left(fd as c_int, entry);
            }
        }
    }
    if from <= last { real::close_range(from, last, flags) } else { 0 }
}

/// `to` now names what `from` names.
pub(crate) fn duplicated(from: c_int, to: c_int) {
    if to < 0 || attach::region().is_none() {
        return;
    }
    let entry = match family::look(from) {
        entry @ (Entry::Socket(slot) | Entry::StandIn(slot)) => {
            if let Some(socket) = Socket::at(slot) {
                socket.hold(false);
            }
            entry
        }
        Entry::Epoll(number) => {
            epoll::duplicated(number);
            Entry::Epoll(number)
        }
        Entry::Candidate { .. } => {
            table::note_twin(from);
            Entry::Candidate { watched: false }
        }
        Entry::Ring(number) if rings::duplicated(number) => Entry::Ring(number),
        Entry::Ring(_) | Entry::Internal(_) | Entry::Kernel => Entry::Kernel,
    };
    left(to, table::put(to, entry));
    if let Entry::Candidate { .. } = entry {
        table::note_twin(to);
    }
    follow(from, to, entry);
}

/// After a duplicate is in the table: a ring's operation may have moved the socket meanwhile (`rings::moving`).
fn follow(from: c_int, to: c_int, entry: Entry) {
    fence(Ordering::SeqCst);
    if table::is_kernels(from) {
        match entry {
            Entry::Socket(slot) => {
                if let Some(socket) = Socket::at(slot).filter(|_| table::give_up(to, slot, true)) {
                    socket.release();
                }
            }
            _ => {
                table::keep_kernels(to);
            }
        }
    }
}

/// `dup2` and `dup3`: `real` does it in the kernel.
pub(crate) fn replace(from: c_int, to: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if table::is_own(from) {
        real::set_errno(libc::EBADF);
        return -1;
    }
    if from == to || real::fcntl(from, libc::F_GETFD, 0) < 0 {
        return real();
    }
    let _closing = family::Closing::begin(to);
    if matches!(family::look(to), Entry::Internal(_)) {
        own::relocate(to);
    }
    let entry = family::look(from);
    let ours = if let Entry::Socket(slot) = entry { Socket::at(slot) } else { None };
    let Some(socket) = ours else {
        let result = real();
        if result >= 0 {
            duplicated(from, to);
            stdio::put_under(to);
        }
        return result;
    };
    // Before the kernel does it: who calls on `to` meanwhile has what it was or this one, never the kernel's socket behind.
    socket.hold(false);
    let before = table::replace(to, entry);
    let result = real();
    if result < 0 {
        let errno = real::errno();
        // Who has closed it in between has given back our hold; a number beyond the table nobody has.
        if !table::covers(to) || table::restore(to, entry, before) {
            socket.release();
        }
        real::set_errno(errno);
        return result;
    }
    left(to, before.entry());
    if table::look(to) == entry {
        follow(from, to, entry);
    } else if real::fcntl(to, libc::F_GETFD, 0) >= 0 {
        duplicated(from, to); // another thread has closed what it was in between
    }
    stdio::put_under(to);
    result
}
