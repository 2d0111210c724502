//! Whose a socket is: where paths lead, and which kernel sockets could go there.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::socklen_t;
use scoutline_abi::layout::slot_kind;

use crate::address::{self, Given, V4};
use crate::{attach, options, real};

/// What the daemon serves: our address, the network's mask, the gateway or 0.
pub(crate) fn served() -> impl Iterator<Item = (u32, u32, u32)> {
    let header = attach::region().filter(|_| !attach::dead()).map(scoutline_abi::Region::header);
    header.into_iter().flat_map(|header| {
        let count = header.served_count.load(Ordering::Acquire) as usize;
        header.served.iter().take(count).map(|served| {
            let prefix = served.prefix.load(Ordering::Relaxed).min(32);
            let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
            (served.address.load(Ordering::Relaxed), mask, served.gateway.load(Ordering::Relaxed))
        })
    })
}

/// True for an address of ours.
pub(crate) fn is_served_address(address: u32) -> bool {
    served().any(|(ours, _, _)| ours == address)
}

/// True when paths lead to `address`.
pub(crate) fn is_reached(address: u32) -> bool {
    if address == 0 || address >> 24 == 127 {
        return false;
    }
    if served().any(|(ours, mask, _)| ours & mask == address & mask) {
        return true;
    }
    served().any(|(_, _, gateway)| gateway != 0) && !is_host_address(address)
}

/// True for an address of the host's own: the kernel would send to it from itself.
fn is_host_address(address: u32) -> bool {
    let fd = real::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
    if fd < 0 {
        return false;
    }
    // SAFETY: zeros are a valid address.
    let mut to: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_in>() as socklen_t;
    address::write(V4 { address, port: 9 }, false, (&raw mut to).cast(), &raw mut len);
    let mut same = false;
    if real::connect(fd, (&raw const to).cast(), len) == 0 {
        real::getsockname(fd, (&raw mut to).cast(), &raw mut len);
        same =
            address::parse((&raw const to).cast(), len) == Given::V4(V4 { address, port: kernel_port(fd) });
    }
    real::close(fd);
    same
}

/// The local name of a kernel socket.
pub(crate) fn kernel_name(fd: c_int) -> Option<V4> {
    // SAFETY: zeros are a valid address.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
    if real::getsockname(fd, (&raw mut name).cast(), &raw mut len) < 0 {
        return None;
    }
    match address::parse((&raw const name).cast(), len) {
        Given::V4(name) => Some(name),
        _ => None,
    }
}

/// Its port; 0 none.
pub(crate) fn kernel_port(fd: c_int) -> u16 {
    kernel_name(fd).map_or(0, |name| name.port)
}

/// The kind and family of a kernel socket that could be ours.
pub(crate) fn suitable(fd: c_int) -> Option<(u32, c_int)> {
    let family = options::of_kernel(fd, libc::SO_DOMAIN);
    if family != libc::AF_INET && (family != libc::AF_INET6 || options::is_v6_only(fd)) {
        return None;
    }
    let kind = match options::of_kernel(fd, libc::SO_PROTOCOL) {
        libc::IPPROTO_TCP => slot_kind::STREAM,
        libc::IPPROTO_UDP => slot_kind::DATAGRAM,
        _ => return None,
    };
    Some((kind, family))
}
