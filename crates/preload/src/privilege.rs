//! Low ports are for those who have the privilege (bind(2), ip(7) `ip_unprivileged_port_start`). The daemon holds a
//! program to what it had when it attached; what a thread has given up since, only the program's side knows.

use std::ffi::c_int;

/// CAP_NET_BIND_SERVICE (capabilities(7)).
const BIND_SERVICE: u32 = 10;
/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;
/// Where no port beyond is reserved, unless an administrator says so.
const USUAL_FIRST: u16 = 1024;

/// Whether this thread may bind to this port.
pub(crate) fn may_have(port: u16) -> bool {
    port == 0 || is_privileged() || port >= first_port()
}

fn is_privileged() -> bool {
    let mut header = [VERSION, 0];
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: both are what this version of the call reads and writes: a header of two words, two times three sets.
    let done = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) } == 0;
    done && sets[0][0] >> BIND_SERVICE & 1 != 0
}

/// The lowest port for everybody.
fn first_port() -> u16 {
    let path = c"/proc/sys/net/ipv4/ip_unprivileged_port_start";
    // SAFETY: a path that ends in zero.
    let fd: c_int = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return USUAL_FIRST;
    }
    let mut text = [0u8; 8];
    let len = crate::real::read(fd, text.as_mut_ptr().cast(), text.len());
    crate::real::close(fd);
    let digits = text.get(..len.max(0) as usize).unwrap_or_default().trim_ascii();
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(USUAL_FIRST)
}
