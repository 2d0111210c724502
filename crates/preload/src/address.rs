//! Socket addresses as C passes them.

use std::ffi::c_int;
use std::mem::{size_of, zeroed};
use std::ptr;

use libc::{AF_INET, AF_INET6, AF_UNSPEC, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use scoutline_base::Address;

use crate::memory;
use crate::real::err;

/// The shortest `sockaddr_in6` that Linux takes: without the scope (RFC 2133).
const SIN6_LEN_RFC2133: usize = 24;

/// An address and port, host byte order. IPv4-mapped addresses are IPv4's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) address: Address,
    pub(crate) port: u16,
    /// Which link a link-local address is on: the interface's number, 0: not said.
    pub(crate) scope: u32,
}

impl Name {
    /// Every address of the same family, at the same port.
    pub(crate) fn anywhere(self) -> Name {
        Name { address: self.address.unspecified(), scope: 0, ..self }
    }
}

/// What Linux says of an address of the other family: of AF_INET6 to each socket of AF_INET, v4-mapped or not; of AF_INET
/// where one of AF_INET6 takes only addresses of its own family (`inet6_bind`, `tcp_v6_connect`).
pub(crate) fn misfit(inet6: bool, address: *const sockaddr, len: socklen_t) -> Option<c_int> {
    if memory::is_nowhere(address) || (len as usize) < 2 {
        return None;
    }
    // SAFETY: the program vouches for `len` bytes, and two of them are the family.
    let family = c_int::from(unsafe { ptr::read_unaligned(ptr::addr_of!((*address).sa_family)) });
    let (other, least) =
        if inet6 { (AF_INET, SIN6_LEN_RFC2133) } else { (AF_INET6, size_of::<sockaddr_in>()) };
    let short = (len as usize) < least;
    (family == other).then_some(if short { libc::EINVAL } else { libc::EAFNOSUPPORT })
}

/// No address has such a length.
fn is_misfit(len: socklen_t) -> bool {
    len as usize > size_of::<sockaddr_storage>()
}

/// What is wrong with what a program gave, whatever it says (`move_addr_to_kernel`); `None`: it can be read.
pub(crate) fn unreadable(address: *const sockaddr, len: socklen_t) -> Option<c_int> {
    if is_misfit(len) {
        return Some(libc::EINVAL);
    }
    (len > 0 && memory::is_nowhere(address)).then_some(libc::EFAULT)
}

/// What a program gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// IPv4 or IPv6.
    Inet(Name),
    /// AF_UNSPEC.
    Unspecified,
    /// Anything else: the kernel's affair.
    Other,
}

/// Reads a program's address.
pub(crate) fn parse(address: *const sockaddr, len: socklen_t) -> Given {
    if memory::is_nowhere(address) || (len as usize) < 2 || is_misfit(len) {
        return Given::Other;
    }
    // SAFETY: the program vouches for `len` bytes; each read stays within them and needs no alignment.
    unsafe {
        let family = c_int::from(ptr::read_unaligned(ptr::addr_of!((*address).sa_family)));
        match family {
            AF_UNSPEC => Given::Unspecified,
            AF_INET if len as usize >= size_of::<sockaddr_in>() => Given::Inet(read_v4(address)),
            AF_INET6 if len as usize >= SIN6_LEN_RFC2133 => {
                let mut v6: sockaddr_in6 = zeroed();
                let bytes = (len as usize).min(size_of::<sockaddr_in6>());
                ptr::copy_nonoverlapping(address.cast::<u8>(), (&raw mut v6).cast(), bytes);
                Given::Inet(Name {
                    address: Address::from_octets(v6.sin6_addr.s6_addr),
                    port: u16::from_be(v6.sin6_port),
                    scope: v6.sin6_scope_id,
                })
            }
            _ => Given::Other,
        }
    }
}

/// Reads an IPv4 address, whatever its family says.
///
/// # Safety
/// A `sockaddr_in` can be read there; it need not be aligned.
unsafe fn read_v4(address: *const sockaddr) -> Name {
    // SAFETY: as the caller says.
    let v4 = unsafe { ptr::read_unaligned(address.cast::<sockaddr_in>()) };
    let address = std::net::Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr));
    Name { address: address.into(), port: u16::from_be(v4.sin_port), scope: 0 }
}

/// What Linux says of a length, or else a family, that it does not connect to (`__ip4_datagram_connect`, `tcp_v4_connect`
/// and those of IPv6).
pub(crate) fn refusal(inet6: bool, address: *const sockaddr, len: socklen_t) -> c_int {
    let is_of_inet6 = inet6 && misfit(inet6, address, len).is_none();
    let shortest = if is_of_inet6 { SIN6_LEN_RFC2133 } else { size_of::<sockaddr_in>() };
    if (len as usize) < shortest { libc::EINVAL } else { libc::EAFNOSUPPORT }
}

/// What a program binds a socket to (`inet_bind`, `inet6_bind`): AF_UNSPEC is 0.0.0.0, if it says that.
pub(crate) fn to_bind(inet6: bool, address: *const sockaddr, len: socklen_t) -> Result<Name, c_int> {
    match parse(address, len) {
        Given::Inet(to) => misfit(inet6, address, len).map_or(Ok(to), Err),
        Given::Unspecified if !inet6 && len as usize >= size_of::<sockaddr_in>() => {
            // SAFETY: the program vouches for `len` bytes, which are enough.
            let to = unsafe { read_v4(address) };
            if to.address.is_unspecified() { Ok(to) } else { Err(libc::EAFNOSUPPORT) }
        }
        _ => Err(refusal(inet6, address, len)),
    }
}

/// Where a program wants to send a datagram (`udp_sendmsg`, `udpv6_sendmsg`); `None`: to the connected peer.
pub(crate) fn destination(inet6: bool, to: *const sockaddr, len: socklen_t) -> Result<Option<Name>, c_int> {
    if to.is_null() {
        return Ok(None);
    }
    if let Some(errno) = unreadable(to, len) {
        return Err(errno);
    }
    match parse(to, len) {
        Given::Inet(_) if !inet6 && misfit(inet6, to, len).is_some() => Err(libc::EAFNOSUPPORT),
        Given::Inet(to) => Ok(Some(to)),
        Given::Unspecified if inet6 => Ok(None),
        // SAFETY: the program vouches for `len` bytes, which are enough.
        Given::Unspecified if len as usize >= size_of::<sockaddr_in>() => Ok(Some(unsafe { read_v4(to) })),
        _ if inet6 => Err(libc::EINVAL),
        _ => Err(refusal(inet6, to, len)),
    }
}

/// A name as AF_INET has it.
pub(crate) fn sockaddr_v4(name: Name) -> sockaddr_in {
    // SAFETY: zeros are a valid address.
    let mut v4: sockaddr_in = unsafe { zeroed() };
    v4.sin_family = AF_INET as u16;
    v4.sin_port = name.port.to_be();
    v4.sin_addr.s_addr = name.address.as_v4().map_or(0, |address| address.to_bits().to_be());
    v4
}

/// A name as AF_INET6 has it: IPv4 v4-mapped, but its unspecified address as `::`; link-local ones with their scope.
pub(crate) fn sockaddr_v6(name: Name) -> sockaddr_in6 {
    // SAFETY: zeros are a valid address.
    let mut v6: sockaddr_in6 = unsafe { zeroed() };
    v6.sin6_family = AF_INET6 as u16;
    v6.sin6_port = name.port.to_be();
    if !name.address.is_unspecified() {
        v6.sin6_addr.s6_addr = name.address.octets();
    }
    if name.address.is_link_local() {
        v6.sin6_scope_id = name.scope;
    }
    v6
}

/// Writes an address for the program, cut to the room that it has, as Linux does (`move_addr_to_user`); `inet6` shows
/// IPv4 v4-mapped, but its unspecified address as `::`. No address is wanted where `address` is null.
pub(crate) fn write(from: Name, inet6: bool, address: *mut sockaddr, len: *mut socklen_t) -> isize {
    if address.is_null() {
        return 0;
    }
    if memory::is_nowhere(address) || memory::is_nowhere(len) {
        return err(libc::EFAULT);
    }
    // SAFETY: the program vouches for `len` and for `*len` bytes at `address`; no more is written.
    unsafe {
        let Ok(room) = usize::try_from(ptr::read_unaligned(len).cast_signed()) else {
            return err(libc::EINVAL);
        };
        if inet6 {
            let v6 = sockaddr_v6(from);
            let full = size_of::<sockaddr_in6>();
            ptr::copy_nonoverlapping((&raw const v6).cast::<u8>(), address.cast(), full.min(room));
            ptr::write_unaligned(len, full as socklen_t);
        } else {
            let v4 = sockaddr_v4(from);
            let full = size_of::<sockaddr_in>();
            ptr::copy_nonoverlapping((&raw const v4).cast::<u8>(), address.cast(), full.min(room));
            ptr::write_unaligned(len, full as socklen_t);
        }
    }
    0
}
