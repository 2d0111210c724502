//! Groups of programs: IP_ADD_MEMBERSHIP and its kin (ip(7), RFC 3376 §2), their IPv6 and protocol-independent forms
//! (RFC 3493 §5.2, RFC 3678), and which interface they go out by.
//!
//! A group on an interface of ours is the engine's affair, on another one the kernel's. A socket that is still the
//! kernel's becomes ours with a group of ours.

use std::ffi::{c_int, c_void};

use libc::{IPPROTO_IP, IPPROTO_IPV6, in_addr, ip_mreq, ip_mreq_source, ip_mreqn, ipv6_mreq, socklen_t};
use scoutline_abi::layout::{call_op, membership};
use scoutline_base::Address;

use crate::address::{self, Given, Name};
use crate::options::value;
use crate::real::err;
use crate::slot::Socket;
use crate::{adopt, call, reach, real};

pub(crate) mod filter;

/// Of `linux/in.h`; libc has them not for every target.
const MCAST_JOIN_GROUP: c_int = 42;
const MCAST_BLOCK_SOURCE: c_int = 43;
const MCAST_UNBLOCK_SOURCE: c_int = 44;
const MCAST_LEAVE_GROUP: c_int = 45;
const MCAST_JOIN_SOURCE_GROUP: c_int = 46;
const MCAST_LEAVE_SOURCE_GROUP: c_int = 47;

/// `struct group_req` and `struct group_source_req`.
#[derive(Clone, Copy)]
#[repr(C)]
struct GroupRequest {
    interface: u32,
    group: libc::sockaddr_storage,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct SourceRequest {
    interface: u32,
    group: libc::sockaddr_storage,
    source: libc::sockaddr_storage,
}

/// How a program names an interface.
#[derive(Clone, Copy)]
enum Which {
    Any,
    Number(u32),
    Of(Address),
}

struct Change {
    what: u64,
    which: Which,
    group: Address,
    source: Address,
}

/// `setsockopt` of a group: `None` where it is something else, or the kernel's affair.
pub(crate) fn set(
    fd: c_int,
    level: c_int,
    name: c_int,
    from: *const c_void,
    len: socklen_t,
) -> Option<isize> {
    if !matches!(level, IPPROTO_IP | IPPROTO_IPV6) || !reach::serves_any() {
        return None;
    }
    // The kernel says what is wrong with one that cannot be read.
    let Ok(change) = parse(level, name, from, len)? else { return None };
    // Nor is a group of the other family, or a mapped one, any of the level's.
    if change.group.is_v4() != (level == IPPROTO_IP) {
        return None;
    }
    let (socket, interface) = place(fd, change.which, change.group)?;
    let ([a, b], [c, d]) = (change.group.words(), change.source.words());
    let more = change.what | u64::from(interface) << 32;
    Some(call::call_with(call_op::MEMBERSHIP, socket.index, [a, b, c, d], more).0.min(0) as isize)
}

/// The socket, ours from now on, and our interface; `None` where the group is on one of the kernel's.
fn place(fd: c_int, which: Which, group: Address) -> Option<(Socket, u32)> {
    let known = Socket::of(fd);
    let interface = interface_of(which, group, known.is_some())?;
    Some((known.or_else(|| adopt::adopt_for_groups(fd))?, interface))
}

/// Our interface that is meant; 0: any.
fn interface_of(which: Which, group: Address, is_ours: bool) -> Option<u32> {
    match which {
        Which::Any if is_ours => Some(0),
        Which::Any => reach::leads_to_group(Name { address: group, port: 0, scope: 0 }).then_some(0),
        Which::Number(number) => reach::is_served_interface(number).then_some(number),
        Which::Of(address) => reach::interface_of(address),
    }
}

fn parse(level: c_int, name: c_int, from: *const c_void, len: socklen_t) -> Option<Result<Change, isize>> {
    let protocol_independent = match name {
        MCAST_JOIN_GROUP => Some(membership::JOIN),
        MCAST_LEAVE_GROUP => Some(membership::LEAVE),
        MCAST_JOIN_SOURCE_GROUP => Some(membership::JOIN_SOURCE),
        MCAST_LEAVE_SOURCE_GROUP => Some(membership::LEAVE_SOURCE),
        MCAST_BLOCK_SOURCE => Some(membership::BLOCK_SOURCE),
        MCAST_UNBLOCK_SOURCE => Some(membership::UNBLOCK_SOURCE),
        _ => None,
    };
    if let Some(what) = protocol_independent {
        return Some(parse_any(what, from, len));
    }
    let v4 = match (level, name) {
        (IPPROTO_IP, libc::IP_ADD_MEMBERSHIP) => return Some(parse_v4(membership::JOIN, from, len)),
        (IPPROTO_IP, libc::IP_DROP_MEMBERSHIP) => return Some(parse_v4(membership::LEAVE, from, len)),
        (IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP) => return Some(parse_v6(membership::JOIN, from, len)),
        (IPPROTO_IPV6, libc::IPV6_DROP_MEMBERSHIP) => return Some(parse_v6(membership::LEAVE, from, len)),
        (IPPROTO_IP, libc::IP_ADD_SOURCE_MEMBERSHIP) => membership::JOIN_SOURCE,
        (IPPROTO_IP, libc::IP_DROP_SOURCE_MEMBERSHIP) => membership::LEAVE_SOURCE,
        (IPPROTO_IP, libc::IP_BLOCK_SOURCE) => membership::BLOCK_SOURCE,
        (IPPROTO_IP, libc::IP_UNBLOCK_SOURCE) => membership::UNBLOCK_SOURCE,
        _ => return None,
    };
    Some(value::<ip_mreq_source>(from, len).map(|given| Change {
        what: v4,
        which: by_address(given.imr_interface),
        group: of(given.imr_multiaddr),
        source: of(given.imr_sourceaddr),
    }))
}

fn of(address: in_addr) -> Address {
    std::net::Ipv4Addr::from_bits(u32::from_be(address.s_addr)).into()
}

fn by_address(address: in_addr) -> Which {
    if address.s_addr == 0 { Which::Any } else { Which::Of(of(address)) }
}

fn by_number(number: u32) -> Which {
    if number == 0 { Which::Any } else { Which::Number(number) }
}

fn parse_v4(what: u64, from: *const c_void, len: socklen_t) -> Result<Change, isize> {
    let source = Address::UNSPECIFIED_V4;
    if len as usize >= size_of::<ip_mreqn>() {
        let given: ip_mreqn = value(from, len)?;
        let which = match given.imr_ifindex {
            0 => by_address(given.imr_address),
            number => Which::Number(number.unsigned_abs()),
        };
        return Ok(Change { what, which, group: of(given.imr_multiaddr), source });
    }
    let given: ip_mreq = value(from, len)?;
    Ok(Change { what, which: by_address(given.imr_interface), group: of(given.imr_multiaddr), source })
}

fn parse_v6(what: u64, from: *const c_void, len: socklen_t) -> Result<Change, isize> {
    let given: ipv6_mreq = value(from, len)?;
    let group = Address::from_octets(given.ipv6mr_multiaddr.s6_addr);
    Ok(Change { what, which: by_number(given.ipv6mr_interface), group, source: Address::UNSPECIFIED_V6 })
}

fn parse_any(what: u64, from: *const c_void, len: socklen_t) -> Result<Change, isize> {
    let name = |storage: &libc::sockaddr_storage| match address::parse(
        std::ptr::from_ref(storage).cast(),
        size_of::<libc::sockaddr_storage>() as socklen_t,
    ) {
        Given::Inet(name) => Ok(name.address),
        _ => Err(err(libc::EADDRNOTAVAIL)),
    };
    if what == membership::JOIN || what == membership::LEAVE {
        let given: GroupRequest = value(from, len)?;
        let group = name(&given.group)?;
        return Ok(Change { what, which: by_number(given.interface), group, source: group.unspecified() });
    }
    let given: SourceRequest = value(from, len)?;
    let (group, source) = (name(&given.group)?, name(&given.source)?);
    Ok(Change { what, which: by_number(given.interface), group, source })
}

/// IP_MULTICAST_IF with an address of ours, which the kernel does not know: by the interface's number. `None`: as it is.
pub(crate) fn outgoing(level: c_int, name: c_int, from: *const c_void, len: socklen_t) -> Option<ip_mreqn> {
    if (level, name) != (IPPROTO_IP, libc::IP_MULTICAST_IF) {
        return None;
    }
    let local = match len as usize {
        12.. => {
            let given: ip_mreqn = value(from, len).ok()?;
            (given.imr_ifindex == 0).then_some(given.imr_address)
        }
        8.. => value::<ip_mreq>(from, len).ok().map(|given| given.imr_interface),
        _ => value::<in_addr>(from, len).ok(),
    };
    let local = local?;
    let number = reach::interface_of(of(local))?;
    Some(ip_mreqn { imr_multiaddr: in_addr { s_addr: 0 }, imr_address: local, imr_ifindex: number as c_int })
}

/// The interface of the kernel's socket for groups of IPv4, if it is ours; 0: none.
pub(crate) fn outgoing_of(fd: c_int) -> u32 {
    let mut local = in_addr { s_addr: 0 };
    let mut len = size_of::<in_addr>() as socklen_t;
    real::getsockopt(fd, IPPROTO_IP, libc::IP_MULTICAST_IF, (&raw mut local).cast(), &raw mut len);
    if local.s_addr == 0 { 0 } else { reach::interface_of(of(local)).unwrap_or(0) }
}
