//! Socket addresses as C passes them.

use std::ffi::c_int;
use std::mem::{size_of, zeroed};
use std::ptr;

use libc::{AF_INET, AF_INET6, AF_UNSPEC, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

/// An IPv4 address and port, host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct V4 {
    pub(crate) address: u32,
    pub(crate) port: u16,
}

/// What a program gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// IPv4, plain, mapped into IPv6, or `::` (address 0).
    V4(V4),
    /// AF_UNSPEC.
    Unspecified,
    /// Anything else: the kernel's affair.
    Other,
}

/// Reads a program's address.
pub(crate) fn parse(address: *const sockaddr, len: socklen_t) -> Given {
    if address.is_null() || (len as usize) < 2 {
        return Given::Other;
    }
    // SAFETY: the program vouches for `len` bytes; each read stays within them and needs no alignment.
    unsafe {
        let family = c_int::from(ptr::read_unaligned(ptr::addr_of!((*address).sa_family)));
        match family {
            AF_UNSPEC => Given::Unspecified,
            AF_INET if len as usize >= size_of::<sockaddr_in>() => {
                let v4 = ptr::read_unaligned(address.cast::<sockaddr_in>());
                Given::V4(V4 { address: u32::from_be(v4.sin_addr.s_addr), port: u16::from_be(v4.sin_port) })
            }
            AF_INET6 if len as usize >= 24 => {
                let mut v6: sockaddr_in6 = zeroed();
                let bytes = (len as usize).min(size_of::<sockaddr_in6>());
                ptr::copy_nonoverlapping(address.cast::<u8>(), (&raw mut v6).cast(), bytes);
                let port = u16::from_be(v6.sin6_port);
                let b = v6.sin6_addr.s6_addr;
                if b == [0; 16] {
                    Given::V4(V4 { address: 0, port })
                } else if b[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] {
                    Given::V4(V4 { address: u32::from_be_bytes([b[12], b[13], b[14], b[15]]), port })
                } else {
                    Given::Other
                }
            }
            _ => Given::Other,
        }
    }
}

/// Writes an address for the program, cut to the room that it has, as Linux does; `inet6` shows it v4-mapped.
pub(crate) fn write(from: V4, inet6: bool, address: *mut sockaddr, len: *mut socklen_t) {
    if address.is_null() || len.is_null() {
        return;
    }
    // SAFETY: the program vouches for `len` and for `*len` bytes at `address`; no more is written.
    unsafe {
        let room = ptr::read_unaligned(len) as usize;
        if inet6 {
            let mut v6: sockaddr_in6 = zeroed();
            v6.sin6_family = AF_INET6 as u16;
            v6.sin6_port = from.port.to_be();
            if from.address != 0 {
                v6.sin6_addr.s6_addr[10] = 0xff;
                v6.sin6_addr.s6_addr[11] = 0xff;
                v6.sin6_addr.s6_addr[12..].copy_from_slice(&from.address.to_be_bytes());
            }
            let full = size_of::<sockaddr_in6>();
            ptr::copy_nonoverlapping((&raw const v6).cast::<u8>(), address.cast(), full.min(room));
            ptr::write_unaligned(len, full as socklen_t);
        } else {
            let mut v4: sockaddr_in = zeroed();
            v4.sin_family = AF_INET as u16;
            v4.sin_port = from.port.to_be();
            v4.sin_addr.s_addr = from.address.to_be();
            let full = size_of::<sockaddr_in>();
            ptr::copy_nonoverlapping((&raw const v4).cast::<u8>(), address.cast(), full.min(room));
            ptr::write_unaligned(len, full as socklen_t);
        }
    }
}
