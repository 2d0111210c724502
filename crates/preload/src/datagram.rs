//! UDP's datagrams between the program's memory and the rings ([`scoutline_abi::datagram`]).

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};

use libc::{MSG_DONTWAIT, MSG_OOB, MSG_PEEK, MSG_TRUNC, iovec};
use scoutline_abi::Span2;
use scoutline_abi::datagram::{HEADER_LEN, Record, record_flag};
use scoutline_abi::layout::{slot_request as ask, slot_state as is};
use scoutline_base::Address;

use crate::address::Name;
use crate::control::Said;
use crate::real::err;
use crate::slot::{Socket, kept};
use crate::stream::{gather, scatter, total};
use crate::wait::Patience;
use crate::{attach, bind, errors, fruitless, ip_options, life, memory, options, reach, wait};

pub(crate) mod corked;
pub(crate) mod path_mtu;
pub(crate) mod stamps;

use corked::Put;

/// The largest payload of UDP over IPv4, and over IPv6.
const MAX_PAYLOAD: usize = 65_507;
const MAX_PAYLOAD6: usize = 65_527;

/// What a call that sends over IPv4 is given at most.
const MOST_TO_V4: usize = 0xffff;

/// What Linux cuts one send into at most (UDP_MAX_SEGMENTS).
const MAX_SEGMENTS: usize = 128;
/// The headers of UDP and IPv4, and of UDP and IPv6.
const HEADERS: usize = 28;
const HEADERS6: usize = 48;

/// No `connect` waits longer for what was sent to leave.
const MOST_TO_LEAVE_US: u64 = 1_000_000;

/// A datagram taken.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    /// Bytes copied to the program.
    pub(crate) copied: usize,
    /// Bytes that the datagram had.
    pub(crate) len: usize,
    /// More of it than that is lost, or was not looked at (MSG_TRUNC).
    pub(crate) is_cut: bool,
    /// Who sent it.
    pub(crate) from: Name,
    /// What else is known of it.
    pub(crate) record: Record,
}

fn name_of(socket: Socket, record: &Record) -> Name {
    let scope =
        if record.interface == 0 { socket.slot.scope.load(Ordering::Relaxed) } else { record.interface };
    Name { address: record.address, port: record.port, scope }
}

fn blocked(socket: Socket, flags: c_int) -> bool {
    flags & MSG_DONTWAIT != 0 || socket.non_blocking()
}

/// A datagram in the receive ring, and how far into it a look begins.
struct Found {
    record: Record,
    /// Of its record.
    at: u64,
    skip: usize,
}

/// The receive ring, with its lock held.
struct Incoming {
    socket: Socket,
    offset: u64,
    size: u32,
}

impl Incoming {
    fn of(socket: Socket) -> Incoming {
        Incoming {
            socket,
            offset: socket.slot.receive_offset.load(Ordering::Relaxed),
            size: socket.slot.receive_size.load(Ordering::Relaxed),
        }
    }

    /// The first one; where a look passes over what is before `from`, the one that has what is there, as Linux has it
    /// (`__skb_try_recv_from_queue`): an empty one is passed over once it was looked at.
    fn find(&self, from: Option<usize>) -> Result<Option<Found>, c_int> {
        let incoming = self.socket.slot.incoming();
        let mut at = incoming.own_head();
        let mut held = self.socket.received();
        let end = at.wrapping_add(held);
        let mut skip = from.unwrap_or(0);
        while held >= HEADER_LEN as u64 {
            let record = self.record(at)?;
            let len = record.len as usize;
            let step = Record::ring_len(len.min(1 << 20));
            if step > held {
                // Not a record: nothing in this ring can be trusted any more.
                incoming.free(end);
                return Err(libc::EIO);
            }
            let was_seen = skip > 0 || record.flags & record_flag::LOOKED_AT != 0;
            if from.is_none() || skip < len || !was_seen {
                return Ok(Some(Found { record, at, skip }));
            }
            skip -= len;
            at = at.wrapping_add(step);
            held -= step;
        }
        Ok(None)
    }

    fn spans(&self, at: u64, len: usize) -> Result<Span2, c_int> {
        self.socket.region.ring_spans(self.offset, self.size, at, len).ok_or(libc::EIO)
    }

    fn record(&self, at: u64) -> Result<Record, c_int> {
        let mut header = [0u8; HEADER_LEN];
        let to = [iovec { iov_base: header.as_mut_ptr().cast(), iov_len: HEADER_LEN }];
        scatter(&self.spans(at, HEADER_LEN)?, &to, 0);
        Ok(Record::from_bytes(header))
    }

    /// Somebody has looked at this one.
    fn mark(&self, found: &Found) -> Result<(), c_int> {
        let flags = found.record.flags | record_flag::LOOKED_AT;
        let header = Record { flags, ..found.record }.to_bytes();
        let from = [iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: HEADER_LEN }];
        gather(&self.spans(found.at, HEADER_LEN)?, &from, 0);
        Ok(())
    }
}

fn take(socket: Socket, iov: &[iovec], flags: c_int) -> Result<Option<Taken>, c_int> {
    let _held = socket.lock_receive_in(flags)?;
    let ring = Incoming::of(socket);
    let peeks = flags & MSG_PEEK != 0;
    let from = if peeks { options::peek_mark(socket) } else { None };
    let Some(found) = ring.find(from)? else { return Ok(None) };
    let (record, len) = (found.record, found.record.len as usize);
    let (room, left) = (total(iov), len - found.skip);
    let copied = left.min(room);
    let start = found.at.wrapping_add((HEADER_LEN + found.skip) as u64);
    let spans = ring.spans(start, copied)?;
    let fails = memory::has_hole(iov, copied);
    if !fails {
        scatter(&spans, iov, 0);
    }
    if !peeks {
        // Lost, as on Linux, where it cannot be copied.
        socket.slot.incoming().free(found.at.wrapping_add(Record::ring_len(len)));
    } else if len == 0 {
        ring.mark(&found)?;
    }
    if fails {
        return Err(libc::EFAULT);
    }
    stamps::note(socket, &record);
    let told = if flags & MSG_TRUNC != 0 { len } else { copied } as i64;
    options::move_peek_offset(socket, if peeks { told } else { -told });
    // As `udp_recvmsg`: what is left in front of a mark is not missed by who has more room than that.
    let is_cut = room <= left && room < len;
    Ok(Some(Taken { copied, len, is_cut, from: name_of(socket, &record), record }))
}

/// Takes one datagram, waiting for it if the socket blocks.
pub(crate) fn receive(socket: Socket, iov: &[iovec], flags: c_int) -> Result<Taken, c_int> {
    receive_patiently(socket, iov, flags, &mut Patience::default())
}

fn receive_patiently(
    socket: Socket,
    iov: &[iovec],
    flags: c_int,
    patience: &mut Patience,
) -> Result<Taken, c_int> {
    loop {
        let errno = socket.take_error();
        if errno != 0 {
            return Err(errno);
        }
        // What a look has passed over is none that it waits for.
        let end = incoming_end(socket);
        if let Some(taken) = take(socket, iov, flags)? {
            fruitless::found();
            return Ok(taken);
        }
        if attach::dead() {
            return Err(socket.tell_dead(blocked(socket, flags)));
        }
        if blocked(socket, flags) {
            fruitless::found_nothing(socket.region);
            return Err(libc::EAGAIN); // shut or not (`__skb_recv_udp`)
        }
        if socket.requests() & ask::SHUTDOWN_READ != 0 {
            let nothing = (Name::default(), Record::default());
            return Ok(Taken { copied: 0, len: 0, is_cut: false, from: nothing.0, record: nothing.1 });
        }
        let ready = || {
            incoming_end(socket) != end
                || socket.slot.error.load(Ordering::Acquire) != 0
                || socket.requests() & ask::SHUTDOWN_READ != 0
        };
        match patience.wait_for(socket, &socket.slot.receive_timeout_us, ready) {
            Err(errno) if !attach::dead() => return Err(errno),
            _ => {}
        }
    }
}

fn connected_peer(socket: Socket) -> Name {
    let port = socket.slot.remote_port.load(Ordering::Relaxed) as u16;
    Name { address: socket.slot.remote_address.load(), port, scope: 0 }
}

/// Whether a datagram to there, or to the connected peer, is `udp_sendmsg`'s affair, or `udpv6_sendmsg`'s.
fn goes_by_v4(socket: Socket, to: Option<Name>) -> bool {
    let is_connected = || socket.state() & is::CONNECTED != 0;
    !socket.is_inet6()
        || to.map_or_else(
            || is_connected() && socket.slot.remote_address.load().is_v4(),
            |to| to.address.is_v4(),
        )
}

/// What a datagram is to be: the record that stands before it; `segment` is what it is cut by, should it be longer.
fn record_for(socket: Socket, len: usize, to: Option<Name>, said: &Said) -> Result<Record, c_int> {
    let towards = to.unwrap_or_else(|| connected_peer(socket));
    let v4 = towards.address.is_v4();
    if len > MOST_TO_V4 && goes_by_v4(socket, to) {
        return Err(libc::EMSGSIZE); // `udp_sendmsg` looks at this first
    }
    let address = match to {
        Some(Name { port: 0, .. }) => return Err(libc::EINVAL),
        Some(to) if !socket.is_inet6() && !to.address.is_v4() => return Err(libc::EAFNOSUPPORT),
        Some(to) if life::clashes(socket, to) => return Err(libc::EAFNOSUPPORT),
        Some(to) if to.address.is_v4() && options::kept_bit(socket, kept::V6_ONLY) != 0 => {
            return Err(libc::ENETUNREACH);
        }
        Some(to) => to.address,
        None if socket.state() & is::CONNECTED == 0 => return Err(libc::EDESTADDRREQ),
        None => Address::default(),
    };
    let broadcasts = socket.slot.kept_options.load(Ordering::Relaxed) & kept::BROADCAST != 0;
    if !broadcasts && to.is_some() && reach::is_broadcast(address) {
        return Err(libc::EACCES);
    }
    let options = ip_options::sending(socket, towards.address);
    let segment = said.segment.unwrap_or_else(|| socket.slot.segment.load(Ordering::Relaxed) as u16);
    check_len(socket, len, towards, segment, said.whole)?;
    let group = towards.address.is_multicast();
    let usual = if group { options.group_hop_limit } else { options.hop_limit };
    let hop_limit = said.hop_limit.or(usual);
    let flag = |on: bool, flag| if on { flag } else { 0 };
    if said.interface != 0 && !group && !reach::is_interface(said.interface) {
        return Err(libc::ENODEV);
    }
    let group_interface = || socket.slot.group_interface[usize::from(!v4)].load(Ordering::Relaxed);
    let interface = match (said.interface, to) {
        (0, Some(to)) if to.address.is_link_local() && to.scope != 0 => to.scope,
        (0, _) if group => group_interface(),
        (interface, _) => interface,
    };
    // Of an interface that is named Linux takes for granted that everybody is there.
    let chooses = to.is_some() && interface == 0 && !options::may_be_bound_to_device();
    if chooses && reach::is_out_of_reach(address) {
        return Err(libc::ENETUNREACH);
    }
    Ok(Record {
        len: len as u32,
        address,
        port: to.map_or(0, |to| to.port),
        tos: said.tos.unwrap_or(options.tos),
        hop_limit: hop_limit.unwrap_or(0),
        interface,
        segment,
        flags: flag(hop_limit.is_some(), record_flag::HOP_LIMIT)
            | flag(ip_options::forbids_fragments(options), record_flag::DONT_FRAGMENT)
            | flag(ip_options::is_divisible(options), record_flag::DIVISIBLE)
            | flag(options.no_loop, record_flag::NO_LOOP),
        own: said.own.unwrap_or_default(),
        most: if v4 { 0 } else { ip_options::most_in_packet(socket) },
        ..Record::default()
    })
}

/// What is too long for one packet may have to be refused: `ip_append_data` and `udp_send_skb` of Linux.
fn check_len(
    socket: Socket,
    len: usize,
    towards: Name,
    segment: u16,
    whole: Option<bool>,
) -> Result<(), c_int> {
    let options = ip_options::sending(socket, towards.address);
    let mtu = socket.slot.mtu.load(Ordering::Relaxed);
    let mtu = match ip_options::most_in_packet(socket) {
        most @ 1.. if !towards.address.is_v4() => mtu.min(most.into()),
        _ => mtu,
    };
    if len > if towards.address.is_v4() { MAX_PAYLOAD } else { MAX_PAYLOAD6 } {
        errors::too_long(socket, towards, mtu);
        return Err(libc::EMSGSIZE);
    }
    let room = (mtu as usize).saturating_sub(if towards.address.is_v4() { HEADERS } else { HEADERS6 });
    if segment != 0 {
        if len.min(segment.into()) > room {
            return Err(libc::EMSGSIZE);
        }
        return if len > usize::from(segment) * MAX_SEGMENTS { Err(libc::EINVAL) } else { Ok(()) };
    }
    let whole = || whole.unwrap_or_else(|| ip_options::is_whole(socket)) && !towards.address.is_v4();
    if len > room && (ip_options::never_cuts(options) || whole()) {
        if whole() {
            path_mtu::note(socket, towards.address, mtu);
        }
        errors::too_long(socket, towards, mtu);
        return Err(libc::EMSGSIZE);
    }
    Ok(())
}

/// Sends one datagram, to `to` or to the connected peer, with what is said beside it; or adds to the one that is held back
/// (see [`corked`]), which has its own destination.
pub(crate) fn send(socket: Socket, iov: &[iovec], to: Option<Name>, said: &Said, flags: c_int) -> isize {
    if socket.state() & is::BOUND == 0 {
        let bound = bind::bind_anywhere(socket);
        if bound < 0 {
            return bound;
        }
    }
    // IPv6 does not look at it (`udp_sendmsg`, `udpv6_sendmsg`).
    if flags & MSG_OOB != 0 && goes_by_v4(socket, to) {
        return err(libc::EOPNOTSUPP);
    }
    let len = total(iov);
    let fails = memory::has_hole(iov, len);
    if corked::is_held(socket) {
        if len > MOST_TO_V4 && goes_by_v4(socket, to) {
            return err(libc::EMSGSIZE); // what there is stays: `udp_sendmsg` looks at this first
        }
        if fails {
            corked::drop_held(socket); // what cannot be added to takes with it what there is
            return err(libc::EFAULT);
        }
        let added = put_patiently(socket, iov, None, flags, &mut Patience::default());
        if added != corked::NONE_HELD {
            return added;
        }
        // Another thread has sent it meanwhile.
    }
    match record_for(socket, len, to, said) {
        // Looked at last, as where it is copied.
        Ok(_) if fails => err(libc::EFAULT),
        Ok(record) => put_patiently(socket, iov, Some(record), flags, &mut Patience::default()),
        Err(errno) => err(errno),
    }
}

/// Puts a datagram, or more of the one that is held back, into the ring once there is room.
fn put_patiently(
    socket: Socket,
    iov: &[iovec],
    record: Option<Record>,
    flags: c_int,
    patience: &mut Patience,
) -> isize {
    // What cannot be added to takes with it what there is (`udp_flush_pending_frames`).
    let failed = |errno| {
        if record.is_none() {
            corked::drop_held(socket);
        }
        err(errno)
    };
    loop {
        if attach::dead() {
            return err(libc::ECONNRESET);
        }
        let errno = socket.take_error();
        if errno != 0 {
            return failed(errno);
        }
        if socket.requests() & ask::SHUTDOWN != 0 {
            return err(libc::EPIPE); // SIGPIPE is for streams
        }
        let step = match corked::put(socket, iov, record.as_ref(), flags) {
            Put::Done(result) => return result,
            Put::Failed(errno) => return failed(errno),
            Put::NoRoom(step) => step,
        };
        let slot = socket.slot;
        slot.send_wanted.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if socket.sendable() >= step {
            continue;
        }
        if blocked(socket, flags) {
            return failed(libc::EAGAIN);
        }
        let ready = || {
            socket.sendable() >= step
                || socket.slot.error.load(Ordering::Acquire) != 0
                || socket.requests() & ask::SHUTDOWN != 0
        };
        if let Err(errno) = patience.wait_for(socket, &slot.send_timeout_us, ready) {
            return failed(errno);
        }
    }
}

/// What was sent to one peer leaves before the socket has another one, or none: to Linux it has left when the call returns.
pub(crate) fn await_sent(socket: Socket) {
    let slot = socket.slot;
    let settled = || {
        slot.send_wanted.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        slot.outgoing().held() == 0
    };
    if slot.outgoing().held() != 0 {
        socket.tell();
        let _ = wait::wait_for(socket, wait::deadline_us(MOST_TO_LEAVE_US), settled);
    }
}

/// Where what has come ends.
fn incoming_end(socket: Socket) -> u64 {
    socket.slot.incoming().own_head().wrapping_add(socket.received())
}

/// Payload bytes of the next datagram (FIONREAD); 0 when there is none.
pub(crate) fn next_len(socket: Socket) -> u64 {
    let Ok(_held) = socket.lock_receive_in(MSG_DONTWAIT) else { return 0 };
    match Incoming::of(socket).find(None) {
        Ok(Some(found)) => found.record.len.into(),
        _ => 0,
    }
}
