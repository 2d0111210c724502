//! Low ports are for those who have the privilege (bind(2), ip(7) `ip_unprivileged_port_start`). The daemon holds a
//! program to what it had when it attached; what a thread has given up since, only the program's side knows.

use scoutline_abi::privilege::{first_port, may_bind_all};

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

/// Whether this thread may bind to this port.
pub(crate) fn may_have(port: u16) -> bool {
    port == 0 || may_bind_all(effective().into()) || port >= first_port()
}

/// Whether this thread may say what the kernel's queues do with its packets (CAP_NET_ADMIN or CAP_NET_RAW).
pub(crate) fn is_for_networks() -> bool {
    const NET_ADMIN: u32 = 12;
    const NET_RAW: u32 = 13;
    effective() & (1 << NET_ADMIN | 1 << NET_RAW) != 0
}

/// The first 32 of this thread's capabilities.
fn effective() -> u32 {
    let mut header = [VERSION, 0];
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: both are what this version of the call reads and writes: a header of two words, two times three sets.
    let done = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) } == 0;
    if done { sets[0][0] } else { 0 }
}
