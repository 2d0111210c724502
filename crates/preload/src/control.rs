//! Control messages of datagrams (cmsg(3), ip(7), ipv6(7), udp(7), RFC 3542 §4, §6): what a program says beside a
//! datagram, and what it is told.
//!
//! Checks, order and cutting are Linux's (`ip_cmsg_send`, `ip6_datagram_send_ctl`, `udp_cmsg_send`; `put_cmsg`,
//! `ip_cmsg_recv_offset`, `ip6_datagram_recv_ctl`), so that a program cannot tell the difference. Extension headers of
//! IPv6 cannot be sent.

use std::ffi::c_int;
use std::mem::size_of;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{
    IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, MSG_CTRUNC, SOL_SOCKET, cmsghdr, in_pktinfo, in6_pktinfo, msghdr,
    timespec, timeval,
};
use scoutline_abi::datagram::Record;
use scoutline_abi::layout::datagram_flag as want;
use scoutline_base::Address;

use crate::address::Name;
use crate::slot::Socket;
use crate::{address, memory, privilege, reach, real};

/// UDP_SEGMENT and UDP_GRO of `linux/udp.h`.
pub(crate) const UDP_SEGMENT: c_int = 103;
pub(crate) const UDP_GRO: c_int = 104;
/// Of `asm-generic/socket.h`: the same with 64-bit time on all machines, and by these numbers they are told.
pub(crate) const SO_TIMESTAMP_NEW: c_int = 63;
pub(crate) const SO_TIMESTAMPNS_NEW: c_int = 64;
pub(crate) const SO_TIMESTAMPING_NEW: c_int = 65;

/// `net.core.optmem_max` of Linux: so many bytes beside a message have no room.
const MOST_BESIDE: usize = 131_072;
/// TC_PRIO_INTERACTIVE: more is for who may.
const MOST_PRIORITY: u32 = 6;
/// SOF_TIMESTAMPING_TX_RECORD_MASK: hardware, software, schedule, acknowledgment and completion.
const TIMES_OF_SENDING: u32 = 1 | 1 << 1 | 1 << 8 | 1 << 9 | 1 << 18;

/// What a program says beside a datagram.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Said {
    /// Type of service or traffic class.
    pub(crate) tos: Option<u8>,
    /// TTL or hop limit.
    pub(crate) hop_limit: Option<u8>,
    /// Our address.
    pub(crate) own: Option<Address>,
    /// Linux's number of the interface; 0: not said.
    pub(crate) interface: u32,
    /// UDP_SEGMENT.
    pub(crate) segment: Option<u16>,
    /// IPV6_DONTFRAG.
    pub(crate) whole: Option<bool>,
}

/// The program's control messages, each with level, type and data.
struct Given<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Given<'a> {
    type Item = Result<(c_int, c_int, &'a [u8]), c_int>;

    fn next(&mut self) -> Option<Self::Item> {
        const HEAD: usize = size_of::<cmsghdr>();
        if self.rest.len() < HEAD {
            return None;
        }
        // SAFETY: as many bytes are there; any are valid.
        let head: cmsghdr = unsafe { ptr::read_unaligned(self.rest.as_ptr().cast()) };
        let len = head.cmsg_len as usize;
        if len < HEAD || len > self.rest.len() {
            self.rest = &[];
            return Some(Err(libc::EINVAL));
        }
        let data = &self.rest[HEAD..len];
        self.rest = &self.rest[align(len).min(self.rest.len())..];
        Some(Ok((head.cmsg_level, head.cmsg_type, data)))
    }
}

fn align(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

/// The control messages of a call, before anything else is looked at (`____sys_sendmsg`).
pub(crate) fn buffer(message: &msghdr) -> Result<&[u8], c_int> {
    let (at, len) = (message.msg_control.cast::<u8>(), message.msg_controllen);
    match len {
        0 => Ok(&[]),
        MOST_BESIDE.. => Err(libc::ENOBUFS),
        _ if memory::is_nowhere(at) => Err(libc::EFAULT),
        // SAFETY: the program vouches for its control buffer.
        _ => Ok(unsafe { std::slice::from_raw_parts(at, len) }),
    }
}

/// Whether a stream would send with these beside (`sock_cmsg_send`): other levels than the socket's say nothing there.
pub(crate) fn check_for_stream(beside: &[u8]) -> Result<(), c_int> {
    for given in (Given { rest: beside }) {
        let (level, kind, data) = given?;
        if level == SOL_SOCKET {
            check_for_socket(kind, data)?;
        }
    }
    Ok(())
}

/// What is said to the socket level (`__sock_cmsg_send`). Marks and priorities are the kernel's queues', and times of
/// sending are not told.
fn check_for_socket(kind: c_int, data: &[u8]) -> Result<(), c_int> {
    match kind {
        libc::SCM_RIGHTS | libc::SCM_CREDENTIALS => Ok(()),
        libc::SO_MARK if !privilege::is_for_networks() => Err(libc::EPERM),
        libc::SO_MARK => exactly::<u32>(data).map(drop),
        libc::SO_PRIORITY => {
            let may = |priority| priority <= MOST_PRIORITY || privilege::is_for_networks();
            exactly::<u32>(data).and_then(|priority| may(priority).then_some(()).ok_or(libc::EPERM))
        }
        libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW => {
            let known = |flags: u32| flags & !TIMES_OF_SENDING == 0;
            exactly(data).and_then(|flags| known(flags).then_some(()).ok_or(libc::EINVAL))
        }
        _ => Err(libc::EINVAL),
    }
}

/// Reads what is said beside a datagram to an address of IPv4 or IPv6 from a socket of that family.
pub(crate) fn read(beside: &[u8], inet6: bool, to_v4: bool) -> Result<Said, c_int> {
    let mut said = Said::default();
    for given in (Given { rest: beside }) {
        let (level, kind, data) = given?;
        match level {
            SOL_SOCKET => check_for_socket(kind, data)?,
            IPPROTO_UDP if kind == UDP_SEGMENT => said.segment = Some(exactly(data)?),
            IPPROTO_UDP => return Err(libc::EINVAL),
            IPPROTO_IP if to_v4 => read_v4(kind, data, &mut said)?,
            IPPROTO_IPV6 if to_v4 && inet6 && kind == libc::IPV6_PKTINFO => {
                let info: in6_pktinfo = exactly(data)?;
                let own = Address::from_octets(info.ipi6_addr.s6_addr);
                // That of IPv6 is none (`ip_cmsg_send`).
                if !own.is_v4() {
                    return Err(libc::EINVAL);
                }
                said.interface = info.ipi6_ifindex;
                said.own = Some(own).filter(|own| !own.is_unspecified());
            }
            IPPROTO_IPV6 if !to_v4 => read_v6(kind, data, &mut said)?,
            _ => {}
        }
    }
    if said
        .own
        .is_some_and(|own| !reach::is_served_address(Name { address: own, port: 0, scope: said.interface }))
    {
        return Err(if to_v4 { libc::ENETUNREACH } else { libc::EINVAL });
    }
    Ok(said)
}

fn read_v4(kind: c_int, data: &[u8], said: &mut Said) -> Result<(), c_int> {
    match kind {
        libc::IP_PKTINFO => {
            let info: in_pktinfo = exactly(data)?;
            said.interface = info.ipi_ifindex.cast_unsigned();
            let own = std::net::Ipv4Addr::from_bits(u32::from_be(info.ipi_spec_dst.s_addr));
            said.own = Some(Address::from(own)).filter(|own| !own.is_unspecified());
        }
        libc::IP_TTL => {
            let hops: c_int = exactly(data)?;
            said.hop_limit = Some(u8::try_from(hops).ok().filter(|hops| *hops > 0).ok_or(libc::EINVAL)?);
        }
        libc::IP_TOS => {
            let tos = if let [tos] = data { c_int::from(*tos) } else { exactly(data)? };
            said.tos = Some(u8::try_from(tos).map_err(|_| libc::EINVAL)?);
        }
        _ => return Err(libc::EINVAL),
    }
    Ok(())
}

fn read_v6(kind: c_int, data: &[u8], said: &mut Said) -> Result<(), c_int> {
    // -1 stands for the socket's own.
    let octet = || match exactly::<c_int>(data)? {
        -1 => Ok(None),
        value => u8::try_from(value).map(Some).map_err(|_| libc::EINVAL),
    };
    match kind {
        libc::IPV6_PKTINFO => {
            let info: in6_pktinfo = at_least(data)?;
            said.interface = info.ipi6_ifindex;
            let own = Address::from_octets(info.ipi6_addr.s6_addr);
            said.own = Some(own).filter(|own| !own.is_unspecified());
        }
        libc::IPV6_HOPLIMIT => said.hop_limit = octet()?,
        libc::IPV6_TCLASS => said.tos = octet()?,
        libc::IPV6_DONTFRAG => {
            let whole = exactly::<c_int>(data)?;
            if !(0..=1).contains(&whole) {
                return Err(libc::EINVAL);
            }
            said.whole = Some(whole != 0);
        }
        _ => return Err(libc::EINVAL),
    }
    Ok(())
}

/// A C value of just this size.
fn exactly<T: Copy>(data: &[u8]) -> Result<T, c_int> {
    if data.len() == size_of::<T>() { at_least(data) } else { Err(libc::EINVAL) }
}

/// A C value of integers, and perhaps more behind it.
fn at_least<T: Copy>(data: &[u8]) -> Result<T, c_int> {
    if data.len() < size_of::<T>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: so many bytes are there; the types here are made of integers, for which any bytes are valid.
    Ok(unsafe { ptr::read_unaligned(data.as_ptr().cast()) })
}

/// Where a program gets control messages.
pub(crate) struct Writer {
    at: *mut u8,
    room: usize,
    written: usize,
    flags: c_int,
}

impl Writer {
    /// Into the control buffer of `message`.
    pub(crate) fn new(message: &msghdr) -> Writer {
        let at: *mut u8 = message.msg_control.cast();
        let room = if at.is_null() { 0 } else { message.msg_controllen };
        Writer { at, room, written: 0, flags: 0 }
    }

    /// Puts one; cut to the room that is left, as Linux does.
    pub(crate) fn put<T: Copy>(&mut self, level: c_int, kind: c_int, value: &T) {
        const HEAD: usize = size_of::<cmsghdr>();
        let left = self.room - self.written;
        if left < HEAD {
            self.flags |= MSG_CTRUNC;
            return;
        }
        let whole = HEAD + size_of::<T>();
        let len = whole.min(left);
        if len < whole {
            self.flags |= MSG_CTRUNC;
        }
        // SAFETY: zeros are a valid header.
        let mut head: cmsghdr = unsafe { std::mem::zeroed() };
        head.cmsg_len = len as _;
        head.cmsg_level = level;
        head.cmsg_type = kind;
        // SAFETY: `len` bytes are left in the program's buffer.
        unsafe {
            let to = self.at.add(self.written);
            ptr::copy_nonoverlapping((&raw const head).cast::<u8>(), to, HEAD);
            ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), to.add(HEAD), len - HEAD);
        }
        self.written += align(whole).min(left);
    }

    /// Tells the program how much there is.
    pub(crate) fn finish(self, message: &mut msghdr) {
        message.msg_controllen = self.written as _;
        message.msg_flags |= self.flags;
    }
}

/// Tells the program about a datagram what it asked for.
pub(crate) fn tell(socket: Socket, record: &Record, to: &mut Writer) {
    let wants = socket.slot.datagram_flags.load(Ordering::Relaxed);
    let wants_of_program =
        wants & !(want::GATHER | want::ERRORS | want::ERRORS6 | want::WHOLE6 | want::PATH_MTU6);
    if wants_of_program == 0 && record.segment == 0 {
        return;
    }
    if wants & want::TIME != 0 {
        tell_time(record.arrival_ns, wants, to);
    }
    if wants & want::TIMING != 0 {
        // `struct scm_timestamping`: of software; the second is no longer used, the third is the network card's.
        let none = timespec { tv_sec: 0, tv_nsec: 0 };
        let by_new = wants & want::TIME_NEW != 0;
        let kind = if by_new { SO_TIMESTAMPING_NEW } else { libc::SCM_TIMESTAMPING };
        to.put(SOL_SOCKET, kind, &[wall_time(record.arrival_ns), none, none]);
    }
    if wants & want::LOST != 0 && record.lost != 0 {
        to.put(SOL_SOCKET, libc::SO_RXQ_OVFL, &record.lost);
    }
    if record.segment != 0 && wants & want::GATHER != 0 {
        to.put(IPPROTO_UDP, UDP_GRO, &c_int::from(record.segment));
    }
    if socket.is_inet6() && wants & want::INFO6 != 0 {
        let mut info =
            in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: record.own.octets() }, ipi6_ifindex: 0 };
        info.ipi6_ifindex = record.interface;
        to.put(IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
    }
    if record.address.is_v4() {
        tell_v4(socket, record, wants, to);
    } else {
        tell_v6(socket, record, wants, to);
    }
}

fn tell_v4(socket: Socket, record: &Record, wants: u32, to: &mut Writer) {
    let bits = |address: Address| address.as_v4().map_or(0, |v4| v4.to_bits().to_be());
    if wants & want::INFO != 0 {
        // What came to a group or to all, an answer is sent from our address on that link.
        let local = reach::address_for(record.own, record.interface);
        let info = in_pktinfo {
            ipi_ifindex: record.interface.cast_signed(),
            ipi_spec_dst: libc::in_addr { s_addr: bits(local) },
            ipi_addr: libc::in_addr { s_addr: bits(record.own) },
        };
        to.put(IPPROTO_IP, libc::IP_PKTINFO, &info);
    }
    if wants & want::HOPS != 0 {
        to.put(IPPROTO_IP, libc::IP_TTL, &c_int::from(record.hop_limit));
    }
    if wants & want::TOS != 0 {
        to.put(IPPROTO_IP, libc::IP_TOS, &record.tos);
    }
    if wants & want::DESTINATION != 0 {
        to.put(IPPROTO_IP, libc::IP_RECVORIGDSTADDR, &address::sockaddr_v4(destination(socket, record)));
    }
}

fn tell_v6(socket: Socket, record: &Record, wants: u32, to: &mut Writer) {
    if wants & want::HOPS6 != 0 {
        to.put(IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &c_int::from(record.hop_limit));
    }
    if wants & want::TOS6 != 0 {
        to.put(IPPROTO_IPV6, libc::IPV6_TCLASS, &c_int::from(record.tos));
    }
    if wants & want::DESTINATION6 != 0 {
        to.put(IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR, &address::sockaddr_v6(destination(socket, record)));
    }
}

fn destination(socket: Socket, record: &Record) -> Name {
    let port = socket.slot.local_port.load(Ordering::Relaxed) as u16;
    Name { address: record.own, port, scope: record.interface }
}

/// The engine tells times of CLOCK_MONOTONIC; programs are told CLOCK_REALTIME.
pub(crate) fn wall_time(arrival_ns: u64) -> timespec {
    /// By how much the former is ahead of the latter, as it was last told by: one datagram has one time, however often it is
    /// looked at, though the two clocks are not read at once.
    static AHEAD_NS: AtomicU64 = AtomicU64::new(0);
    const APART_NS: u64 = 100_000;
    let now = real::wall_ns().wrapping_sub(real::now_ns());
    let before = AHEAD_NS.load(Ordering::Relaxed);
    let ahead = if now.abs_diff(before) < APART_NS { before } else { now };
    AHEAD_NS.store(ahead, Ordering::Relaxed);
    let time = arrival_ns.wrapping_add(ahead);
    timespec { tv_sec: (time / 1_000_000_000) as i64, tv_nsec: (time % 1_000_000_000) as i64 }
}

fn tell_time(arrival_ns: u64, wants: u32, to: &mut Writer) {
    let time = wall_time(arrival_ns);
    let by_new = wants & want::TIME_NEW != 0;
    // On 64-bit machines both kinds are alike but for the number.
    if wants & want::TIME_NS != 0 {
        to.put(SOL_SOCKET, if by_new { SO_TIMESTAMPNS_NEW } else { libc::SO_TIMESTAMPNS }, &time);
    } else {
        let time = timeval { tv_sec: time.tv_sec, tv_usec: time.tv_nsec / 1000 };
        to.put(SOL_SOCKET, if by_new { SO_TIMESTAMP_NEW } else { libc::SO_TIMESTAMP }, &time);
    }
}

/// The error beside what it quotes: `struct sock_extended_err` and the offender's address behind it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Extended<A: Copy> {
    pub(crate) errno: u32,
    pub(crate) origin: u8,
    pub(crate) kind: u8,
    pub(crate) code: u8,
    pub(crate) pad: u8,
    pub(crate) info: u32,
    pub(crate) data: u32,
    pub(crate) offender: A,
}

const _: () = assert!(size_of::<Extended<libc::sockaddr_in>>() == 32);
