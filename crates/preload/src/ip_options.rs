//! Options of IP, IPv6 and UDP on datagram sockets (ip(7), ipv6(7), udp(7)), and those of the socket level that ask for
//! control messages. Those of streams are in [`headers`].
//!
//! The kernel's socket behind the descriptor checks and keeps them, for itself and for `getsockopt`: what it took is read
//! back and put into the slot, where the data path finds it. So values, errors and defaults are the kernel's own.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, SOL_SOCKET, socklen_t};
use scoutline_abi::datagram::SendOptions;
use scoutline_abi::layout::{datagram_flag as want, slot_state as is};
use scoutline_base::Address;

use crate::control::{SO_TIMESTAMP_NEW, SO_TIMESTAMPING_NEW, SO_TIMESTAMPNS_NEW, UDP_GRO, UDP_SEGMENT};

use crate::datagram::{corked, stamps};
use crate::slot::{Socket, kept};
use crate::{errors, groups, headers, options, real};

/// IP_MTU_DISCOVER's values beyond those of libc.
const PMTUDISC_INTERFACE: u8 = 4;
/// What hosts give their packets, and so nothing that a program has set.
pub(crate) const USUAL_HOPS: c_int = 64;

/// The program has set such an option on some socket: those of kernel sockets that become ours are looked at.
static ANY_SET: AtomicBool = AtomicBool::new(false);

/// Options of which the slot has one bit each.
const FLAGS: [(c_int, c_int, u32); 24] = [
    (IPPROTO_UDP, UDP_GRO, want::GATHER),
    (IPPROTO_IP, libc::IP_RECVERR, want::ERRORS),
    (IPPROTO_IPV6, libc::IPV6_RECVERR, want::ERRORS6),
    (IPPROTO_IP, libc::IP_PKTINFO, want::INFO),
    (IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, want::INFO6),
    (IPPROTO_IP, libc::IP_RECVTTL, want::HOPS),
    (IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, want::HOPS6),
    (IPPROTO_IP, libc::IP_RECVTOS, want::TOS),
    (IPPROTO_IPV6, libc::IPV6_RECVTCLASS, want::TOS6),
    (IPPROTO_IP, libc::IP_RECVORIGDSTADDR, want::DESTINATION),
    (IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR, want::DESTINATION6),
    (SOL_SOCKET, libc::SO_TIMESTAMP, want::TIME),
    (SOL_SOCKET, libc::SO_TIMESTAMPNS, want::TIME | want::TIME_NS),
    (SOL_SOCKET, libc::SO_TIMESTAMPING, want::TIMING),
    (SOL_SOCKET, libc::SO_RXQ_OVFL, want::LOST),
    (IPPROTO_IP, IP_MULTICAST_ALL, want::OWN_GROUPS),
    (IPPROTO_IPV6, IPV6_MULTICAST_ALL, want::OWN_GROUPS6),
    (IPPROTO_UDP, UDP_SEGMENT, 0),
    (IPPROTO_UDP, libc::UDP_CORK, 0),
    (SOL_SOCKET, SO_TIMESTAMP_NEW, want::TIME),
    (SOL_SOCKET, SO_TIMESTAMPNS_NEW, want::TIME | want::TIME_NS),
    (SOL_SOCKET, SO_TIMESTAMPING_NEW, want::TIMING),
    (IPPROTO_IPV6, libc::IPV6_DONTFRAG, want::WHOLE6),
    (IPPROTO_IPV6, IPV6_RECVPATHMTU, want::PATH_MTU6),
];

/// Of `linux/in.h` and `linux/in6.h`.
const IP_MULTICAST_ALL: c_int = 49;
const IPV6_MULTICAST_ALL: c_int = 29;
const IPV6_RECVPATHMTU: c_int = 60;

/// Options that say how to send.
const SENDING: [(c_int, c_int); 12] = [
    (IPPROTO_IP, libc::IP_TOS),
    (IPPROTO_IP, libc::IP_TTL),
    (IPPROTO_IP, libc::IP_MULTICAST_TTL),
    (IPPROTO_IP, libc::IP_MULTICAST_LOOP),
    (IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (IPPROTO_IPV6, libc::IPV6_TCLASS),
    (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS),
    (IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP),
    (IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (IPPROTO_IP, libc::IP_MULTICAST_IF),
    (IPPROTO_IPV6, libc::IPV6_MULTICAST_IF),
];

/// True for options that this module keeps.
pub(crate) fn is_known(level: c_int, name: c_int) -> bool {
    FLAGS.iter().any(|&(l, n, _)| (l, n) == (level, name)) || SENDING.contains(&(level, name))
}

/// `setsockopt` on a socket that is still the kernel's.
pub(crate) fn note(level: c_int, name: c_int) {
    let of_streams = [(IPPROTO_IP, libc::IP_MINTTL), (IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT)];
    if is_known(level, name) || of_streams.contains(&(level, name)) {
        ANY_SET.store(true, Ordering::Relaxed);
    }
}

/// Sockets of the kernel's came with what somebody else has set.
pub(crate) fn note_any() {
    ANY_SET.store(true, Ordering::Relaxed);
}

/// `setsockopt` on a datagram socket of ours: `None` where that is somebody else's affair.
pub(crate) fn set(
    fd: c_int,
    socket: Socket,
    level: c_int,
    name: c_int,
    from: *const c_void,
    len: socklen_t,
) -> Option<isize> {
    if socket.is_stream() {
        return headers::set(fd, socket, level, name, from, len);
    }
    if (level, name) == (IPPROTO_IPV6, libc::IPV6_MTU) {
        return Some(set_most(fd, socket, from, len));
    }
    if !is_known(level, name) {
        return None;
    }
    let result = real::ours(real::setsockopt(fd, level, name, from, len) as isize);
    if result < 0 {
        return Some(result);
    }
    let taken = take_over(fd, socket, level, name);
    // The kernel tells an address only, which there may be none of.
    if (level, name) == (IPPROTO_IP, libc::IP_MULTICAST_IF)
        && len as usize >= size_of::<libc::ip_mreqn>()
        && let Ok(given) = options::value::<libc::ip_mreqn>(from, len)
    {
        socket.slot.group_interface[0].store(given.imr_ifindex.unsigned_abs(), Ordering::Relaxed);
    }
    Some(taken)
}

/// IPV6_MTU, which cannot be read back: the kernel's socket only checks it.
fn set_most(fd: c_int, socket: Socket, from: *const c_void, len: socklen_t) -> isize {
    let result = real::ours(real::setsockopt(fd, IPPROTO_IPV6, libc::IPV6_MTU, from, len) as isize);
    if result == 0
        && let Ok(bytes) = options::value::<c_int>(from, len)
    {
        socket.slot.most_in_packet().store(bytes.unsigned_abs(), Ordering::Relaxed);
    }
    result
}

/// The most that a packet of a datagram over IPv6 may have; 0: as the way carries.
pub(crate) fn most_in_packet(socket: Socket) -> u16 {
    u16::try_from(socket.slot.most_in_packet().load(Ordering::Relaxed)).unwrap_or(0)
}

/// `getsockopt` where the kernel's socket does not know better.
pub(crate) fn get(socket: Socket, level: c_int, name: c_int) -> Option<Result<c_int, c_int>> {
    if socket.is_stream() {
        return headers::get(socket, level, name);
    }
    match (level, name) {
        (IPPROTO_IP, libc::IP_MTU) => {}
        (IPPROTO_IPV6, libc::IPV6_MTU) if socket.is_inet6() => {}
        _ => return None,
    }
    let connected = socket.state() & is::CONNECTED != 0;
    let mtu = socket.slot.mtu.load(Ordering::Relaxed) as c_int;
    Some(if connected { Ok(mtu) } else { Err(libc::ENOTCONN) })
}

/// What was set on the kernel's socket before it became ours.
pub(crate) fn carry_over(fd: c_int, socket: Socket) {
    // IP_MULTICAST_ALL is on for sockets of IPv4 alone (`inet_create`, `inet6_create`).
    if socket.is_inet6() && !socket.is_stream() {
        keep(socket, want::OWN_GROUPS, true);
    }
    if !ANY_SET.load(Ordering::Relaxed) {
        return;
    }
    if socket.is_stream() {
        return headers::carry_over(fd, socket);
    }
    for (level, name) in FLAGS.iter().map(|&(level, name, _)| (level, name)).chain(SENDING) {
        if level != IPPROTO_IPV6 || socket.is_inet6() {
            take_over(fd, socket, level, name);
        }
    }
}

/// What the kernel keeps for a socket of ours is given to another descriptor's, which will be its as well.
pub(crate) fn carry_along(from: c_int, to: c_int, socket: Socket) {
    let of_all =
        [(SOL_SOCKET, libc::SO_MARK), (SOL_SOCKET, libc::SO_PRIORITY), (IPPROTO_IPV6, libc::IPV6_V6ONLY)];
    let of_datagrams = FLAGS.iter().map(|&(level, name, _)| (level, name)).chain(SENDING);
    let is_stream = socket.is_stream();
    for (level, name) in of_all.into_iter().chain(of_datagrams.filter(|_| !is_stream)) {
        let value = options::kernel_int(from, level, name);
        if (level != IPPROTO_IPV6 || socket.is_inet6()) && value != options::kernel_int(to, level, name) {
            let len = size_of::<c_int>() as socklen_t;
            real::setsockopt(to, level, name, (&raw const value).cast(), len);
        }
    }
}

/// The slot has of this option what the kernel's socket has.
fn take_over(fd: c_int, socket: Socket, level: c_int, name: c_int) -> isize {
    let value = options::kernel_int(fd, level, name);
    match (level, name) {
        (IPPROTO_UDP, UDP_SEGMENT) => socket.slot.segment.store(value.unsigned_abs(), Ordering::Relaxed),
        (IPPROTO_UDP, libc::UDP_CORK) => {
            options::keep(socket, kept::CORK, value != 0);
            return if value == 0 { corked::push(socket) } else { 0 };
        }
        // One excludes the other, and each switches the time on or off.
        (SOL_SOCKET, libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS | SO_TIMESTAMP_NEW | SO_TIMESTAMPNS_NEW) => {
            let is_on = |name| options::kernel_int(fd, SOL_SOCKET, name) != 0;
            let ns = is_on(libc::SO_TIMESTAMPNS) || is_on(SO_TIMESTAMPNS_NEW);
            keep(socket, want::TIME, ns || is_on(libc::SO_TIMESTAMP) || is_on(SO_TIMESTAMP_NEW));
            keep(socket, want::TIME_NS, ns);
            take_over_numbers(fd, socket);
            if value != 0 {
                stamps::on_times_wanted(socket);
            }
        }
        // Times of the network card are not to be had here, nor those of sending.
        (SOL_SOCKET, libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW) => {
            let value = options::kernel_int(fd, SOL_SOCKET, libc::SO_TIMESTAMPING);
            take_over_numbers(fd, socket);
            let both = libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_RX_SOFTWARE;
            keep(socket, want::TIMING, value.cast_unsigned() & both == both);
        }
        (IPPROTO_IP, IP_MULTICAST_ALL) => keep(socket, want::OWN_GROUPS, value == 0),
        (IPPROTO_IPV6, IPV6_MULTICAST_ALL) => keep(socket, want::OWN_GROUPS6, value == 0),
        _ if SENDING.contains(&(level, name)) => take_over_sending(fd, socket, level, name, value),
        _ => {
            let flag = FLAGS.iter().find(|&&(l, n, _)| (l, n) == (level, name)).map_or(0, |&(_, _, bit)| bit);
            if flag & (want::ERRORS | want::ERRORS6) != 0 && value != 0 {
                let made = errors::want_queue(socket);
                if made < 0 {
                    return made;
                }
            }
            keep(socket, flag, value != 0);
        }
    }
    0
}

/// By which numbers times are told.
fn take_over_numbers(fd: c_int, socket: Socket) {
    let new = [SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW, SO_TIMESTAMPING_NEW];
    let by_new = new.into_iter().any(|name| options::kernel_int(fd, SOL_SOCKET, name) != 0);
    keep(socket, want::TIME_NEW, by_new);
}

fn keep(socket: Socket, flag: u32, on: bool) {
    let flags = &socket.slot.datagram_flags;
    if on {
        flags.fetch_or(flag, Ordering::Release);
    } else {
        flags.fetch_and(!flag, Ordering::Release);
    }
}

fn take_over_sending(fd: c_int, socket: Socket, level: c_int, name: c_int, value: c_int) {
    match (level, name) {
        (IPPROTO_IP, libc::IP_MULTICAST_IF) => {
            return socket.slot.group_interface[0].store(groups::outgoing_of(fd), Ordering::Relaxed);
        }
        (IPPROTO_IPV6, libc::IPV6_MULTICAST_IF) => {
            return socket.slot.group_interface[1].store(value.max(0).unsigned_abs(), Ordering::Relaxed);
        }
        _ => {}
    }
    let word = &socket.slot.send_options[usize::from(level == IPPROTO_IPV6)];
    let mut options = SendOptions::from_word(word.load(Ordering::Relaxed));
    let octet = value.clamp(0, 255) as u8;
    match (level, name) {
        (IPPROTO_IP, libc::IP_TOS) | (IPPROTO_IPV6, libc::IPV6_TCLASS) => options.tos = octet,
        (IPPROTO_IP, libc::IP_TTL) | (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
            options.hop_limit = (value != USUAL_HOPS).then_some(octet);
        }
        (IPPROTO_IP, libc::IP_MULTICAST_TTL) | (IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS) => {
            options.group_hop_limit = (value != 1).then_some(octet);
        }
        (IPPROTO_IP, libc::IP_MULTICAST_LOOP) | (IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP) => {
            options.no_loop = value == 0;
        }
        _ => options.discover = Some(octet),
    }
    word.store(options.to_word(), Ordering::Relaxed);
}

/// How a socket sends to an address.
pub(crate) fn sending(socket: Socket, to: Address) -> SendOptions {
    SendOptions::from_word(socket.slot.send_options[usize::from(!to.is_v4())].load(Ordering::Relaxed))
}

/// True when datagrams must not be cut into fragments here (IP_PMTUDISC_DO, _PROBE, _INTERFACE).
pub(crate) fn never_cuts(options: SendOptions) -> bool {
    options.discover.is_some_and(|how| (libc::IP_PMTUDISC_DO as u8..=PMTUDISC_INTERFACE).contains(&how))
}

/// True when datagrams to addresses of IPv6 must not be cut, whatever IPV6_MTU_DISCOVER says (IPV6_DONTFRAG).
pub(crate) fn is_whole(socket: Socket) -> bool {
    socket.slot.datagram_flags.load(Ordering::Relaxed) & want::WHOLE6 != 0
}

/// True when routers must not either (IP_PMTUDISC_DO, _PROBE).
pub(crate) fn forbids_fragments(options: SendOptions) -> bool {
    options.discover.is_some_and(|how| (libc::IP_PMTUDISC_DO as u8..PMTUDISC_INTERFACE).contains(&how))
}

/// True when routers may, as Linux's `ip_dont_fragment` has it. What a program does not say is IP_PMTUDISC_WANT.
pub(crate) fn is_divisible(options: SendOptions) -> bool {
    options.discover.is_some_and(|how| how == libc::IP_PMTUDISC_DONT as u8 || how >= PMTUDISC_INTERFACE)
}
