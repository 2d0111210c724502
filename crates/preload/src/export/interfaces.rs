//! `getifaddrs`: the addresses that paths serve are the interface's, for programs that listen on each one (BIND).
//!
//! Ours stand in a block of their own before the list of the C library, and are known by the name that each carries
//! within itself.

use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::net::Ipv4Addr;
use std::ptr;

use libc::{IF_NAMESIZE, ifaddrs, sockaddr_storage};
use scoutline_abi::served::Network;
use scoutline_base::Address;

use crate::address::{self, Name};
use crate::{reach, real};

#[repr(C)]
struct Entry {
    head: ifaddrs,
    address: sockaddr_storage,
    mask: sockaddr_storage,
    broadcast: sockaddr_storage,
    name: [c_char; IF_NAMESIZE],
}

impl Entry {
    fn fill(&mut self, network: &Network) {
        let to = |address: Address, place: &mut sockaddr_storage| {
            let scope = if address == network.address { network.scope } else { 0 };
            let mut len = size_of::<sockaddr_storage>() as libc::socklen_t;
            let name = Name { address, port: 0, scope };
            address::write(name, !network.address.is_v4(), ptr::from_mut(place).cast(), &raw mut len);
            ptr::from_mut(place).cast()
        };
        let own_bits = 128 - u32::from(network.prefix_len.min(128));
        let mask = u128::MAX.checked_shl(own_bits).unwrap_or(0);
        self.head.ifa_name = self.name.as_mut_ptr();
        self.head.ifa_flags = (libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_MULTICAST) as u32;
        self.head.ifa_addr = to(network.address, &mut self.address);
        if network.address.is_v4() {
            self.head.ifa_netmask = to(Ipv4Addr::from_bits(mask as u32).into(), &mut self.mask);
            self.head.ifa_flags |= libc::IFF_BROADCAST as u32;
            let all = Ipv4Addr::from_bits((network.address.to_bits() | !mask) as u32);
            self.head.ifa_ifu = to(all.into(), &mut self.broadcast);
        } else {
            self.head.ifa_netmask = to(Address::from_bits(mask), &mut self.mask);
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn getifaddrs(list: *mut *mut ifaddrs) -> c_int {
    let result = real::getifaddrs(list);
    let Some(served) = reach::served().filter(|_| result == 0) else { return result };
    let own = || served.as_slice().iter().filter(|network| network.is_ours());
    let count = own().count();
    if count == 0 {
        return result;
    }
    // SAFETY: no pointers. Zeros are a valid entry.
    let entries = unsafe { libc::calloc(count, size_of::<Entry>()) }.cast::<Entry>();
    if entries.is_null() {
        return result;
    }
    // SAFETY: as many entries as addresses, which nobody else has yet; the C library has filled `list`.
    unsafe {
        for (at, network) in own().enumerate() {
            let entry = &mut *entries.add(at);
            entry.fill(network);
            libc::if_indextoname(network.scope, entry.name.as_mut_ptr());
            entry.head.ifa_next =
                if at + 1 < count { ptr::from_mut(&mut (*entries.add(at + 1)).head) } else { *list };
        }
        *list = ptr::from_mut(&mut (*entries).head);
    }
    result
}

#[unsafe(no_mangle)]
extern "C" fn freeifaddrs(list: *mut ifaddrs) {
    let mut at = list;
    // SAFETY: a list of `getifaddrs`, as the program vouches; ours come first.
    unsafe {
        while !at.is_null() && (*at).ifa_name == ptr::addr_of_mut!((*at.cast::<Entry>()).name).cast() {
            at = (*at).ifa_next;
        }
    }
    real::freeifaddrs(at);
    if at != list {
        // SAFETY: our block, from `calloc`.
        unsafe { libc::free(list.cast::<c_void>()) };
    }
}
