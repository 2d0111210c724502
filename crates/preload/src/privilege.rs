//! Low ports are for those who have the privilege (bind(2), ip(7) `ip_unprivileged_port_start`). The daemon holds a
//! program to what it had when it attached; what a thread has given up since, only the program's side knows.

use scoutline_abi::privilege::{first_port, may_bind_all};

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

/// Whether this thread may bind to this port.
pub(crate) fn may_have(port: u16) -> bool {
    port == 0 || is_privileged() || port >= first_port()
}

fn is_privileged() -> bool {
    let mut header = [VERSION, 0];
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: both are what this version of the call reads and writes: a header of two words, two times three sets.
    let done = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) } == 0;
    done && may_bind_all(sets[0][0].into())
}
