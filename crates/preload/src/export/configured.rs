//! `getaddrinfo` with AI_ADDRCONFIG, which is the default: addresses of a family of which the machine has none are not to be
//! looked for. glibc asks the kernel for that (netlink), which knows nothing of paths' addresses, and where paths have the
//! only ones it finds no name. So where they have one of a family that is asked for, the question is decided here.

use std::ffi::{c_char, c_int};
use std::{mem, ptr};

use libc::{AF_INET, AF_INET6, AF_UNSPEC, addrinfo, ifaddrs};
use scoutline_abi::served::Network;

use crate::dispatch::resolving;
use crate::{address, reach, real};

/// The families of which there are addresses beside the loopback ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Families {
    inet: bool,
    inet6: bool,
}

#[unsafe(no_mangle)]
extern "C-unwind" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
    list: *mut *mut addrinfo,
) -> c_int {
    // SAFETY: the program vouches for its hints; zeros are valid ones.
    let mut asked = unsafe {
        hints.as_ref().copied().unwrap_or(addrinfo {
            ai_flags: libc::AI_V4MAPPED | libc::AI_ADDRCONFIG,
            ai_family: AF_UNSPEC,
            ..mem::zeroed()
        })
    };
    let is_asked = asked.ai_flags & libc::AI_ADDRCONFIG != 0;
    let family = if is_asked { family(asked.ai_family, of_paths(), of_kernel) } else { None };
    let hints = match family {
        Some(family) => {
            (asked.ai_family, asked.ai_flags) = (family, asked.ai_flags & !libc::AI_ADDRCONFIG);
            &raw const asked
        }
        None => hints,
    };
    resolving(|| real::getaddrinfo(node, service, hints, list))
}

/// The family to look for; `None`: the C library finds it out rightly.
fn family(asked: c_int, paths: Families, kernel: impl FnOnce() -> Families) -> Option<c_int> {
    match asked {
        AF_INET if paths.inet => Some(AF_INET),
        AF_INET6 if paths.inet6 => Some(AF_INET6),
        AF_UNSPEC if paths != Families::default() => {
            let kernel = if paths.inet && paths.inet6 { paths } else { kernel() };
            Some(match (paths.inet || kernel.inet, paths.inet6 || kernel.inet6) {
                (true, false) => AF_INET,
                (false, true) => AF_INET6,
                _ => AF_UNSPEC,
            })
        }
        _ => None,
    }
}

fn of_paths() -> Families {
    let has = |v4: bool| {
        let is_one = move |network: Network| {
            network.is_ours() && network.address.is_v4() == v4 && !network.address.is_loopback()
        };
        reach::look_at_served(move |mut networks| networks.any(is_one)).unwrap_or(false)
    };
    Families { inet: has(true), inet6: has(false) }
}

fn of_kernel() -> Families {
    let mut list: *mut ifaddrs = ptr::null_mut();
    let mut found = Families::default();
    if real::getifaddrs(&raw mut list) < 0 {
        return found;
    }
    let mut at: *const ifaddrs = list;
    // SAFETY: a list that the C library has made, whose addresses are as long as their families want.
    while let Some(entry) = unsafe { at.as_ref() } {
        at = entry.ifa_next;
        // SAFETY: as above.
        match unsafe { entry.ifa_addr.as_ref() }.map(|address| c_int::from(address.sa_family)) {
            Some(AF_INET) => found.inet |= !is_loopback(entry, size_of::<libc::sockaddr_in>()),
            Some(AF_INET6) => found.inet6 |= !is_loopback(entry, size_of::<libc::sockaddr_in6>()),
            _ => {}
        }
    }
    real::freeifaddrs(list);
    found
}

fn is_loopback(entry: &ifaddrs, len: usize) -> bool {
    let given = address::parse(entry.ifa_addr, len as libc::socklen_t);
    matches!(given, address::Given::Inet(name) if name.address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_of_paths_and_kernel_are_put_together() {
        let families = |inet, inet6| Families { inet, inet6 };
        let none = || families(false, false);
        let both = || families(true, true);
        assert_eq!(family(AF_UNSPEC, none(), both), None);
        assert_eq!(family(AF_UNSPEC, families(true, false), none), Some(AF_INET));
        assert_eq!(family(AF_UNSPEC, families(true, false), both), Some(AF_UNSPEC));
        assert_eq!(family(AF_UNSPEC, families(false, true), none), Some(AF_INET6));
        assert_eq!(family(AF_INET, families(true, false), none), Some(AF_INET));
        assert_eq!(family(AF_INET6, families(true, false), none), None);
    }
}
