//! `getifaddrs`, and SIOCGIFCONF and its kin (netdevice(7)): the addresses that paths serve are the interface's, for
//! programs that listen on each one (BIND), or look for their own.
//!
//! Those of `getifaddrs` stand in a block of their own before the list of the C library, and are known by the name that
//! each carries within itself. Of the `ioctl`s the kernel is asked first: it makes the checks, and what else it tells of
//! an interface (number, flags, MTU, hardware address) is right.

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::mem::size_of;
use std::net::Ipv4Addr;
use std::ptr;

use libc::{IF_NAMESIZE, ifaddrs, ifconf, ifreq, sockaddr_storage};
use scoutline_abi::served::Network;
use scoutline_base::Address;

use crate::address::{self, Name};
use crate::real::{err, finish_int};
use crate::{memory, reach, real};

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
        let mask = mask(network);
        self.head.ifa_name = self.name.as_mut_ptr();
        self.head.ifa_flags = (libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_MULTICAST) as u32;
        self.head.ifa_addr = to(network.address, &mut self.address);
        if network.address.is_v4() {
            self.head.ifa_netmask = to(Ipv4Addr::from_bits(mask as u32).into(), &mut self.mask);
            self.head.ifa_flags |= libc::IFF_BROADCAST as u32;
            self.head.ifa_ifu = to(broadcast(network), &mut self.broadcast);
        } else {
            self.head.ifa_netmask = to(Address::from_bits(mask), &mut self.mask);
        }
    }
}

/// The bits of a network's part, of 128.
fn mask(network: &Network) -> u128 {
    let own_bits = 128 - u32::from(network.prefix_len.min(128));
    u128::MAX.checked_shl(own_bits).unwrap_or(0)
}

/// The address of everybody on a network of IPv4.
fn broadcast(network: &Network) -> Address {
    Ipv4Addr::from_bits((network.address.to_bits() | !mask(network)) as u32).into()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn getifaddrs(list: *mut *mut ifaddrs) -> c_int {
    let result = real::getifaddrs(list);
    if result < 0 {
        return result;
    }
    let served = reach::served();
    let own = || served.iter().filter(|network| network.is_ours());
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
extern "C-unwind" fn freeifaddrs(list: *mut ifaddrs) {
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

/// Of `linux/sockios.h`.
const SIOCGIFINDEX: c_ulong = 0x8933;
const SIOCGIFCONF: c_ulong = 0x8912;
const SIOCGIFADDR: c_ulong = 0x8915;
const SIOCGIFDSTADDR: c_ulong = 0x8917;
const SIOCGIFBRDADDR: c_ulong = 0x8919;
const SIOCGIFNETMASK: c_ulong = 0x891b;

/// True for an `ioctl` about addresses of interfaces. They are IPv4's alone (`devinet_ioctl`, `inet_gifconf`).
pub(super) fn is_asked_about(request: c_ulong) -> bool {
    matches!(request, SIOCGIFCONF | SIOCGIFADDR | SIOCGIFDSTADDR | SIOCGIFBRDADDR | SIOCGIFNETMASK)
}

/// What the kernel says, and our addresses besides.
pub(super) fn tell(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    if request == SIOCGIFCONF {
        return list(fd, argument);
    }
    let result = real::ioctl(fd, request, argument);
    // There is an interface of this name, without an address that the kernel knows.
    if result < 0 && real::errno() == libc::EADDRNOTAVAIL {
        if tell_of(fd, request, ptr::with_exposed_provenance_mut(argument)) {
            return 0;
        }
        real::set_errno(libc::EADDRNOTAVAIL);
    }
    result
}

/// Ours and of IPv4, and an interface carries it.
fn is_told(network: &Network) -> bool {
    network.is_ours() && network.address.is_v4() && network.scope != 0
}

/// The interface's first address of ours, or what belongs to it; false: it has none.
fn tell_of(fd: c_int, request: c_ulong, asked: *mut ifreq) -> bool {
    // SAFETY: the kernel has read as much there.
    let mut named = unsafe { ptr::read_unaligned(asked) };
    // An alias ("eth0:1") is an address' label, and ours have none.
    if named.ifr_name.iter().take_while(|&&letter| letter != 0).any(|&letter| letter.to_ne_bytes() == *b":") {
        return false;
    }
    if real::ioctl(fd, SIOCGIFINDEX, (&raw mut named).expose_provenance()) < 0 {
        return false;
    }
    // SAFETY: an integer, whatever was written.
    let number = unsafe { named.ifr_ifru.ifru_ifindex }.cast_unsigned();
    let of_this_one = |network: &Network| is_told(network) && network.scope == number;
    let Some(network) = reach::look_at_served(|mut networks| networks.find(of_this_one)).flatten() else {
        return false;
    };
    let address = match request {
        SIOCGIFNETMASK => Ipv4Addr::from_bits(mask(&network) as u32).into(),
        SIOCGIFBRDADDR => broadcast(&network),
        _ => network.address,
    };
    // SAFETY: the program vouches for its structure.
    unsafe { put(asked, address) };
    true
}

/// Ours behind those that the kernel lists, as many as there is room for; without a buffer, the room that all take.
fn list(fd: c_int, argument: usize) -> c_int {
    let asked: *mut ifconf = ptr::with_exposed_provenance_mut(argument);
    if memory::is_nowhere(asked) {
        return real::ioctl(fd, SIOCGIFCONF, argument);
    }
    // SAFETY: the program vouches for its structure.
    let given = unsafe { ptr::read_unaligned(asked) };
    let result = real::ioctl(fd, SIOCGIFCONF, argument);
    if result < 0 {
        return result;
    }
    // SAFETY: as above; either member of the union is a pointer.
    let (listed, buffer) =
        unsafe { (ptr::read_unaligned(&raw const (*asked).ifc_len), given.ifc_ifcu.ifcu_buf) };
    let room = usize::try_from(given.ifc_len).unwrap_or(0);
    let mut len = usize::try_from(listed).unwrap_or(0);
    for network in reach::served().iter().filter(|network| is_told(network)) {
        if !buffer.is_null() {
            if room.saturating_sub(len) < size_of::<ifreq>() {
                break;
            }
            if memory::is_nowhere(buffer) {
                return finish_int(err(libc::EFAULT));
            }
            // SAFETY: zeros are a valid structure of this kind; there is room in the name for any name of Linux's,
            // and in the program's buffer, for which it vouches, for one entry more.
            unsafe {
                let mut entry: ifreq = std::mem::zeroed();
                libc::if_indextoname(network.scope, entry.ifr_name.as_mut_ptr());
                put(&raw mut entry, network.address);
                ptr::write_unaligned(buffer.add(len).cast(), entry);
            }
        }
        len += size_of::<ifreq>();
    }
    // SAFETY: as above; the kernel has written there.
    unsafe { ptr::write_unaligned(&raw mut (*asked).ifc_len, len as c_int) };
    result
}

/// Writes an address of IPv4 into an entry.
///
/// # Safety
/// The entry can be written.
unsafe fn put(entry: *mut ifreq, address: Address) {
    let address = address::sockaddr_v4(Name { address, port: 0, scope: 0 });
    // SAFETY: as the caller says; an address fits.
    unsafe { ptr::write_unaligned((&raw mut (*entry).ifr_ifru).cast(), address) };
}
