//! Questions to the kernel about interfaces: ioctl and a few libc calls, wrapped once.

use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::error::OpenError;

/// ARPHRD_ETHER (include/uapi/linux/if_arp.h).
pub(crate) const ARPHRD_ETHER: u16 = 1;
/// ETHTOOL_GDRVINFO (include/uapi/linux/ethtool.h).
const ETHTOOL_GDRVINFO: u32 = 3;
/// ETHTOOL_GCHANNELS (the same).
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// A network interface of the caller's network namespace, and a socket to ask about it.
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    socket: OwnedFd,
}

impl Interface {
    /// Finds an interface by name.
    pub(crate) fn find(name: &str) -> Result<Interface, OpenError> {
        check_name(name)?;
        let text = CString::new(name).map_err(|_| OpenError::BadName { name: name.to_owned() })?;
        // SAFETY: `text` is a C string.
        let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
        if index == 0 {
            return Err(OpenError::NoSuchInterface { name: name.to_owned(), hint: hint(name) });
        }
        let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)
            .map_err(|error| OpenError::system(name, "open a socket", error))?;
        Ok(Interface { name: name.to_owned(), index, socket })
    }

    /// The name of the interface with this index.
    pub(crate) fn name_of(index: u32) -> io::Result<String> {
        let mut name = [0; libc::IF_NAMESIZE];
        // SAFETY: `name` has the room that if_indextoname(3) asks for.
        if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it has written a C string there.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    fn request(&self) -> libc::ifreq {
        // SAFETY: `ifreq` is plain data for which zeros are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        request
    }

    fn ioctl(
        &self,
        number: libc::c_ulong,
        request: &mut libc::ifreq,
        action: &'static str,
    ) -> Result<(), OpenError> {
        // SAFETY: every request used here reads and writes an `ifreq`, whose pointers (ethtool's) are valid.
        let status =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), number as _, std::ptr::from_mut(request)) };
        if status < 0 {
            return Err(OpenError::system(&self.name, action, io::Error::last_os_error()));
        }
        Ok(())
    }

    /// True when it is administratively up.
    pub(crate) fn is_up(&self) -> Result<bool, OpenError> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFFLAGS, &mut request, "read its flags")?;
        // SAFETY: SIOCGIFFLAGS fills `ifru_flags`.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        Ok(libc::c_int::from(flags) & libc::IFF_UP != 0)
    }

    /// Brings it up.
    pub(crate) fn set_up(&self) -> Result<(), OpenError> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFFLAGS, &mut request, "read its flags")?;
        // SAFETY: SIOCGIFFLAGS filled `ifru_flags`.
        unsafe { request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
        self.ioctl(libc::SIOCSIFFLAGS, &mut request, "bring it up")
    }

    /// Hardware type (ARPHRD_) and link address.
    pub(crate) fn link_address(&self) -> Result<(u16, [u8; 6]), OpenError> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFHWADDR, &mut request, "read its link address")?;
        // SAFETY: SIOCGIFHWADDR fills `ifru_hwaddr`.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        Ok((address.sa_family, std::array::from_fn(|i| address.sa_data[i] as u8)))
    }

    /// The largest network-layer packet.
    pub(crate) fn mtu(&self) -> Result<u32, OpenError> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFMTU, &mut request, "read its MTU")?;
        // SAFETY: SIOCGIFMTU fills `ifru_mtu`.
        Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
    }

    /// Sets the largest network-layer packet.
    pub(crate) fn set_mtu(&self, mtu: u32) -> Result<(), OpenError> {
        let mut request = self.request();
        request.ifr_ifru.ifru_mtu = mtu as libc::c_int;
        self.ioctl(libc::SIOCSIFMTU, &mut request, "set its MTU")
    }

    /// Gives Linux's side of the interface an address.
    pub(crate) fn set_address(&self, address: Ipv4Addr, prefix: u8) -> Result<(), OpenError> {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
        let mut request = self.request();
        request.ifr_ifru.ifru_addr = ipv4_sockaddr(address);
        self.ioctl(libc::SIOCSIFADDR, &mut request, "set its address")?;
        request.ifr_ifru.ifru_netmask = ipv4_sockaddr(Ipv4Addr::from_bits(mask));
        self.ioctl(libc::SIOCSIFNETMASK, &mut request, "set its network mask")
    }

    /// The kernel driver's name (`veth`, `virtio_net`), where it tells.
    pub(crate) fn driver(&self) -> Option<String> {
        // struct ethtool_drvinfo: cmd, then driver[32], and 160 bytes more (include/uapi/linux/ethtool.h).
        #[repr(C)]
        struct DriverInfo {
            command: u32,
            driver: [u8; 32],
            rest: [u8; 160],
        }
        let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
        let mut request = self.request();
        request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut info).cast();
        self.ioctl(libc::SIOCETHTOOL as _, &mut request, "read its driver").ok()?;
        Some(CStr::from_bytes_until_nul(&info.driver).ok()?.to_str().ok()?.to_owned())
    }

    /// How many receive queues it uses; 1 where its driver does not tell.
    pub(crate) fn receive_queues(&self) -> u32 {
        self.queues().map_or(1, |(receive, _)| receive.max(1))
    }

    /// How many queues packets leave by, if its driver says so.
    pub(crate) fn transmit_queues(&self) -> Option<u32> {
        self.queues().map(|(_, transmit)| transmit)
    }

    /// To receive and to transmit.
    fn queues(&self) -> Option<(u32, u32)> {
        // struct ethtool_channels (include/uapi/linux/ethtool.h): the most of each kind, then how many are used.
        #[repr(C)]
        #[derive(Default)]
        struct Channels {
            command: u32,
            most: [u32; 4],
            receive: u32,
            transmit: u32,
            other: u32,
            combined: u32,
        }
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        let mut request = self.request();
        request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut channels).cast();
        self.ioctl(libc::SIOCETHTOOL as _, &mut request, "read its queues").ok()?;
        Some((channels.receive + channels.combined, channels.transmit + channels.combined))
    }

    /// The addresses that Linux itself has on it.
    pub(crate) fn linux_addresses(&self) -> Vec<IpAddr> {
        let mut found = Vec::new();
        let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
        // SAFETY: fills `list`, freed below.
        if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
            return found;
        }
        let mut item = list;
        while !item.is_null() {
            // SAFETY: an element of the list, alive until freeifaddrs.
            let entry = unsafe { &*item };
            item = entry.ifa_next;
            // SAFETY: `ifa_name` is a C string; `ifa_addr`, where set, begins with its family.
            let (name, family) = unsafe {
                let family = entry.ifa_addr.as_ref().map(|address| libc::c_int::from(address.sa_family));
                (CStr::from_ptr(entry.ifa_name), family)
            };
            if name.to_bytes() != self.name.as_bytes() {
                continue;
            }
            if family == Some(libc::AF_INET) {
                // SAFETY: an AF_INET address is a `sockaddr_in`; read unaligned as its type is wider than known.
                let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                found.push(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)).into());
            } else if family == Some(libc::AF_INET6) {
                // SAFETY: an AF_INET6 address is a `sockaddr_in6`; as above.
                let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                found.push(Ipv6Addr::from(address.sin6_addr.s6_addr).into());
            }
        }
        // SAFETY: the list came from getifaddrs.
        unsafe { libc::freeifaddrs(list) };
        found
    }
}

fn ipv4_sockaddr(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (to, from) in data[2..].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as u16, sa_data: data }
}

/// Refuses what can never be an interface's name.
pub(crate) fn check_name(name: &str) -> Result<(), OpenError> {
    let bad = |c: char| c == '/' || c == '\0' || c == ':' || c.is_whitespace();
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(bad) {
        return Err(OpenError::BadName { name: name.to_owned() });
    }
    Ok(())
}

/// A socket that closes on exec.
pub(crate) fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// How long a page of memory is.
pub(crate) fn page_len() -> u32 {
    // SAFETY: no pointers; the kernel always knows.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u32 }
}

/// Sets a socket option of plain data.
pub(crate) fn set_option<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes from `value`.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option that is one number.
pub(crate) fn option(socket: &OwnedFd, level: i32, option: i32) -> io::Result<u32> {
    let mut value = 0u32;
    let mut len = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`.
    let status =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut len) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Reads (and clears) the error that a socket holds.
pub(crate) fn take_error(socket: &OwnedFd) -> Option<i32> {
    let mut error: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes an int to `error` and its length to `len`.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut error).cast(),
            &raw mut len,
        )
    };
    (status == 0 && error != 0).then_some(error)
}

/// The names of all interfaces here.
pub(crate) fn names() -> Vec<String> {
    let mut found = Vec::new();
    // SAFETY: returns a list that ends with a zero index, freed below.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return found;
    }
    let mut item = list;
    loop {
        // SAFETY: the list ends with a zero index, which stops us.
        let entry = unsafe { &*item };
        if entry.if_index == 0 {
            break;
        }
        // SAFETY: a C string for every entry but the last.
        found.push(unsafe { CStr::from_ptr(entry.if_name) }.to_string_lossy().into_owned());
        // SAFETY: not yet at the end.
        item = unsafe { item.add(1) };
    }
    // SAFETY: the list came from if_nameindex.
    unsafe { libc::if_freenameindex(list) };
    found
}

/// What to say to someone who named an interface that is not there.
fn hint(wanted: &str) -> String {
    let all = names();
    let mut near: Vec<(usize, &String)> =
        all.iter().map(|name| (distance(wanted, name), name)).filter(|(far, _)| *far <= 2).collect();
    near.sort();
    if let Some((_, name)) = near.first() {
        return format!("did you mean {name}?");
    }
    format!("there are: {}", all.join(", "))
}

/// Edit distance (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substitute = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::{check_name, distance, hint};

    #[test]
    fn near_misses_are_named() {
        assert_eq!(distance("veth0", "vteh0"), 2);
        assert_eq!(distance("", "lo"), 2);
        assert_eq!(hint("loo"), "did you mean lo?");
        assert!(hint("nothing-like-it").contains("lo"));
    }

    #[test]
    fn names_are_checked() {
        assert!(check_name("eth0").is_ok());
        for bad in ["", "a/b", "a b", "sixteen-letters!"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
