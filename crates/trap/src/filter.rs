//! Which calls are trapped, as a classic BPF program (`seccomp(2)`, `struct seccomp_data`).
//!
//! What can be told from a call's own arguments is decided here; whether a descriptor is one of ours the supervisor
//! looks up. `recv` and `send` without an address are the hot ones, and trapped only with a flag that means something
//! else on the pair's end.

use std::io;
use std::os::fd::OwnedFd;

use crate::sys;

/// Calls that are always trapped.
const TRAPPED: [i64; 14] = [
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e; // AUDIT_ARCH_X86_64
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7; // AUDIT_ARCH_AARCH64

// Offsets in `struct seccomp_data`; arguments are 64 bits wide, the low half first on our machines.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
/// Flags of `recv` that a pair of datagrams would not obey: the full length, errors, and one that UDP takes no notice of.
const FLAGS_OF_RECEIVING: u32 = (libc::MSG_TRUNC | libc::MSG_ERRQUEUE | libc::MSG_OOB) as u32;
/// The same of `send`: more of a datagram is to come.
const FLAGS_OF_SENDING: u32 = libc::MSG_MORE as u32;
/// The type in `socket`'s second argument, without SOCK_NONBLOCK and SOCK_CLOEXEC.
const TYPE_MASK: u32 = 0xf;

type Step = libc::sock_filter;

const fn step(code: u16, k: u32) -> Step {
    Step { code, jt: 0, jf: 0, k }
}

/// Jumps over so many steps when the accumulator is, or is not, `k`.
const fn skip(k: u32, if_equal: u8, if_not: u8) -> Step {
    Step { code: EQUAL, jt: if_equal, jf: if_not, k }
}

/// Other architectures' calls have other numbers: they go on to the kernel. `ring` is what becomes of rings.
fn prologue(ring: u32) -> Vec<Step> {
    vec![
        step(LOAD, ARCH),
        skip(ARCHITECTURE, 1, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW),
        step(LOAD, NUMBER),
        // io_uring reads and writes behind every trap; without it programs fall back to calls.
        skip(libc::SYS_io_uring_setup as u32, 0, 1),
        step(RETURN, ring),
    ]
}

fn program() -> Vec<Step> {
    let notify = step(RETURN, libc::SECCOMP_RET_USER_NOTIF);
    let allow = step(RETURN, libc::SECCOMP_RET_ALLOW);
    let mut steps = prologue(libc::SECCOMP_RET_USER_NOTIF);
    for number in TRAPPED {
        steps.extend([skip(number as u32, 0, 1), notify]);
    }
    for (number, flags) in [(libc::SYS_sendto, FLAGS_OF_SENDING), (libc::SYS_recvfrom, FLAGS_OF_RECEIVING)] {
        // With an address: the fifth argument is a pointer.
        steps.extend([
            skip(number as u32, 0, 9),
            step(LOAD, argument(4)),
            skip(0, 0, 5),
            step(LOAD, argument(4) + 4),
            skip(0, 0, 3),
            step(LOAD, argument(3)),
            step(AND, flags),
            skip(0, 1, 0),
            notify,
            allow,
        ]);
    }
    steps.extend([
        skip(libc::SYS_socket as u32, 0, 8),
        step(LOAD, argument(0)),
        skip(libc::AF_INET as u32, 1, 0),
        skip(libc::AF_INET6 as u32, 0, 5),
        step(LOAD, argument(1)),
        step(AND, TYPE_MASK),
        skip(libc::SOCK_STREAM as u32, 1, 0),
        skip(libc::SOCK_DGRAM as u32, 0, 1),
        notify,
        allow,
    ]);
    steps
}

/// Installs the filter for this process and all that it starts: the listener, and whether signals leave calls alone that
/// are being answered.
pub(crate) fn install() -> io::Result<(OwnedFd, bool)> {
    sys::install_filter(&program())
}

/// Has `io_uring_setup` fail with ENOSYS in this process and all that it starts. An unprivileged process that could
/// still gain privileges is left alone: the kernel would want it to give them up for good.
///
/// # Errors
/// What the kernel said.
pub fn refuse_io_uring() -> io::Result<()> {
    let mut steps = prologue(REFUSE);
    steps.push(step(RETURN, libc::SECCOMP_RET_ALLOW));
    sys::install_plain_filter(&steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel does (`Documentation/networking/filter.rst`).
    fn verdict(number: i64, arguments: [u64; 6], architecture: u32) -> u32 {
        let mut data = [0; 64];
        data[0..4].copy_from_slice(&(number as u32).to_le_bytes());
        data[4..8].copy_from_slice(&architecture.to_le_bytes());
        for (at, argument) in arguments.iter().enumerate() {
            data[16 + 8 * at..24 + 8 * at].copy_from_slice(&argument.to_le_bytes());
        }
        let steps = program();
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let now = steps[at];
            at += 1;
            match now.code {
                LOAD => {
                    let from = now.k as usize;
                    accumulator = u32::from_le_bytes(data[from..from + 4].try_into().unwrap());
                }
                AND => accumulator &= now.k,
                EQUAL => at += usize::from(if accumulator == now.k { now.jt } else { now.jf }),
                RETURN => return now.k,
                other => panic!("code {other}"),
            }
        }
    }

    const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;
    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

    #[test]
    fn sockets_of_the_internet_families_are_trapped() {
        let socket = |family: i32, kind: i32| {
            verdict(libc::SYS_socket, [family as u64, kind as u64, 0, 0, 0, 0], ARCHITECTURE)
        };
        assert_eq!(
            socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK),
            NOTIFY
        );
        assert_eq!(socket(libc::AF_INET6, libc::SOCK_DGRAM), NOTIFY);
        assert_eq!(socket(libc::AF_INET, libc::SOCK_RAW), ALLOW);
        assert_eq!(socket(libc::AF_UNIX, libc::SOCK_STREAM), ALLOW);
        assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_DGRAM), ALLOW);
    }

    #[test]
    fn data_calls_are_trapped_with_an_address_only() {
        for number in [libc::SYS_sendto, libc::SYS_recvfrom] {
            assert_eq!(verdict(number, [3, 0x1000, 10, 0, 0, 0], ARCHITECTURE), ALLOW);
            assert_eq!(verdict(number, [3, 0x1000, 10, 0, 0x10, 16], ARCHITECTURE), NOTIFY);
            // A pointer whose low half is zero.
            assert_eq!(verdict(number, [3, 0x1000, 10, 0, 1 << 32, 16], ARCHITECTURE), NOTIFY);
        }
        let receive =
            |flags: i32| verdict(libc::SYS_recvfrom, [3, 0x1000, 10, flags as u64, 0, 0], ARCHITECTURE);
        assert_eq!(receive(libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_WAITALL), ALLOW);
        assert_eq!(receive(libc::MSG_PEEK | libc::MSG_TRUNC), NOTIFY);
        assert_eq!(receive(libc::MSG_ERRQUEUE), NOTIFY);
        assert_eq!(receive(libc::MSG_OOB), NOTIFY);
        let send = [3, 0x1000, 10, libc::MSG_TRUNC as u64, 0, 0];
        assert_eq!(verdict(libc::SYS_sendto, send, ARCHITECTURE), ALLOW);
        let send = [3, 0x1000, 10, (libc::MSG_MORE | libc::MSG_NOSIGNAL) as u64, 0, 0];
        assert_eq!(verdict(libc::SYS_sendto, send, ARCHITECTURE), NOTIFY);
        for number in
            [libc::SYS_read, libc::SYS_write, libc::SYS_close, libc::SYS_execve, libc::SYS_socketpair]
        {
            assert_eq!(verdict(number, [3; 6], ARCHITECTURE), ALLOW);
        }
        for number in TRAPPED {
            assert_eq!(verdict(number, [3; 6], ARCHITECTURE), NOTIFY);
        }
    }

    #[test]
    fn rings_are_told_to_the_supervisor_and_other_architectures_pass() {
        assert_eq!(verdict(libc::SYS_io_uring_setup, [8, 0, 0, 0, 0, 0], ARCHITECTURE), NOTIFY);
        assert_eq!(verdict(libc::SYS_connect, [3; 6], ARCHITECTURE ^ 1), ALLOW);
    }
}
