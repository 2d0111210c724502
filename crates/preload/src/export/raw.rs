//! System calls that a program makes by number (`syscall(2)`, or past the C library: [`crate::dispatch`]), and io_uring.
//!
//! By number, the calls about sockets are those of the functions here (`tests/numbers.rs` compares the lists); so are
//! those that make new images and children, and those of rings ([`crate::rings`]).
//!
//! liburing makes its system calls by itself, past the C library. Where those cannot be dispatched it gets no rings, so the
//! functions with which it makes one are here as well (`io_uring_queue_init(3)`): they refuse them and count it. Where they
//! can, the call that it makes then is the one that counts.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::ptr::with_exposed_provenance as at;
use std::ptr::with_exposed_provenance_mut as at_mut;

use super::{data, exec, life, limits, locked, many};
use crate::dispatch::{self, signals};
use crate::rings::{self, Rule};
use crate::{attach, cancel, real};

/// A ring that liburing makes by calls of its own: `refused`, or what `make` gives.
fn of_library<R>(refused: impl FnOnce() -> R, make: impl FnOnce() -> R) -> R {
    match rings::rule() {
        Rule::Refused => return refused(),
        // Else its call is seen, and counted there.
        Rule::Left if !dispatch::is_on() => rings::leave(),
        Rule::Left | Rule::Native | Rule::Seen => {}
    }
    make()
}

/// As liburing says it: an errno negated.
fn refuse_library_ring() -> c_int {
    rings::refuse_setup();
    -libc::ENOSYS
}

/// `io_uring_setup` by number. `None`: the kernel's alone.
fn setup(entries: c_uint, parameters: usize) -> Option<c_long> {
    match rings::rule() {
        Rule::Native => None,
        Rule::Left => {
            rings::leave();
            None
        }
        Rule::Refused => Some(rings::refuse_setup()),
        Rule::Seen => Some(rings::setup(entries, at_mut(parameters))),
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int {
    of_library(refuse_library_ring, || real::io_uring_setup(entries, parameters))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
    of_library(refuse_library_ring, || real::io_uring_queue_init(entries, ring, flags))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn io_uring_queue_init_params(
    entries: c_uint,
    ring: *mut c_void,
    parameters: *mut c_void,
) -> c_int {
    of_library(refuse_library_ring, || real::io_uring_queue_init_params(entries, ring, parameters))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn io_uring_queue_init_mem(
    entries: c_uint,
    ring: *mut c_void,
    parameters: *mut c_void,
    memory: *mut c_void,
    len: usize,
) -> c_int {
    of_library(refuse_library_ring, || real::io_uring_queue_init_mem(entries, ring, parameters, memory, len))
}

/// Makes a ring to ask what rings can do; null where there are none.
#[unsafe(no_mangle)]
extern "C-unwind" fn io_uring_get_probe() -> *mut c_void {
    let refused = || {
        rings::refuse_setup();
        std::ptr::null_mut()
    };
    of_library(refused, real::io_uring_get_probe)
}

/// `syscall`, variadic in C: who gives fewer arguments leaves garbage that is not looked at.
#[unsafe(no_mangle)]
extern "C-unwind" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    match number {
        // What `fork` of older C libraries was. Others share memory with their child, which then is not ours to serve.
        libc::SYS_clone if a == libc::SIGCHLD as usize && b == 0 && attach::region().is_some() => {
            real::fork().into()
        }
        // A fork into namespaces of its own, which the C library has no function for.
        libc::SYS_clone if is_fork_into_namespaces(a) && b == 0 && attach::region().is_some() => {
            attach::fork_by(|| real::syscall(number, a, b, c, d, e, f))
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork | libc::SYS_vfork if attach::region().is_some() => life::vfork().into(),
        // `syscall` is no cancellation point.
        _ => cancel::uncancelled(|| by_number(number, [a, b, c, d, e, f]))
            .unwrap_or_else(|| real::syscall(number, a, b, c, d, e, f)),
    }
}

/// Whether these flags of `clone` make a child with nothing in common but that it is one.
fn is_fork_into_namespaces(flags: usize) -> bool {
    const NAMESPACES: c_int = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    flags & !(NAMESPACES as usize) == libc::SIGCHLD as usize
}

/// The call, if a function here is in front of it: -1 and `errno` on failure.
pub(crate) fn by_number(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    attach::region()?;
    let [a, b, c, d, e, f] = arguments;
    let (fd, int) = (a as c_int, |value: usize| value as c_int);
    let result = match number {
        libc::SYS_io_uring_setup => return setup(a as c_uint, b),
        libc::SYS_io_uring_enter => return rings::enter(arguments),
        libc::SYS_io_uring_register => return rings::register(arguments),
        libc::SYS_read => data::read(fd, at_mut::<c_void>(b), c) as c_long,
        libc::SYS_connect => life::connect(fd, at(b), c as c_uint).into(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => many::poll_plain(at_mut(a), b as _, c as c_int).into(),
        libc::SYS_write => data::write(fd, at::<c_void>(b), c) as c_long,
        libc::SYS_readv => data::readv(fd, at(b), int(c)) as c_long,
        libc::SYS_writev => data::writev(fd, at(b), int(c)) as c_long,
        // The fifth argument is the upper half of the position, on machines of 32 bits.
        libc::SYS_preadv2 => data::preadv2(fd, at(b), int(c), d as i64, int(f)) as c_long,
        libc::SYS_pwritev2 => data::pwritev2(fd, at(b), int(c), d as i64, int(f)) as c_long,
        libc::SYS_recvfrom => data::recvfrom(fd, at_mut(b), c, int(d), at_mut(e), at_mut(f)) as c_long,
        libc::SYS_sendto => data::sendto(fd, at(b), c, int(d), at(e), f as c_uint) as c_long,
        libc::SYS_recvmsg => data::recvmsg(fd, at_mut(b), int(c)) as c_long,
        libc::SYS_sendmsg => data::sendmsg(fd, at(b), int(c)) as c_long,
        libc::SYS_recvmmsg => data::recvmmsg(fd, at_mut(b), c as c_uint, int(d), at_mut(e)).into(),
        libc::SYS_sendmmsg => data::sendmmsg(fd, at_mut(b), c as c_uint, int(d)).into(),
        libc::SYS_accept => life::accept(fd, at_mut(b), at_mut(c)).into(),
        libc::SYS_accept4 => life::accept4(fd, at_mut(b), at_mut(c), int(d)).into(),
        libc::SYS_sendfile => data::sendfile64(fd, int(b), at_mut(c), d) as c_long,
        libc::SYS_splice => data::splice(fd, at_mut(b), int(c), at_mut(d), e, f as c_uint) as c_long,
        libc::SYS_socket => life::socket(fd, int(b), int(c)).into(),
        libc::SYS_bind => life::bind(fd, at(b), c as c_uint).into(),
        libc::SYS_listen => life::listen(fd, int(b)).into(),
        libc::SYS_shutdown => life::shutdown(fd, int(b)).into(),
        libc::SYS_getsockname => life::getsockname(fd, at_mut(b), at_mut(c)).into(),
        libc::SYS_getpeername => life::getpeername(fd, at_mut(b), at_mut(c)).into(),
        libc::SYS_getsockopt => life::getsockopt(fd, int(b), int(c), at_mut(d), at_mut(e)).into(),
        libc::SYS_setsockopt => life::setsockopt(fd, int(b), int(c), at(d), e as c_uint).into(),
        libc::SYS_close => life::close(fd).into(),
        libc::SYS_close_range => life::close_range(a as c_uint, b as c_uint, int(c)).into(),
        libc::SYS_dup => life::dup(fd).into(),
        libc::SYS_dup3 => life::dup3(fd, int(b), int(c)).into(),
        libc::SYS_fcntl => life::fcntl(fd, int(b), c).into(),
        libc::SYS_ioctl => life::ioctl(fd, b as _, c).into(),
        libc::SYS_epoll_create1 => many::epoll_create1(fd).into(),
        libc::SYS_epoll_ctl => many::epoll_ctl(fd, int(b), int(c), at_mut(d)).into(),
        libc::SYS_epoll_pwait => {
            many::with_mask(at(e), f, |mask| many::epoll_pwait(fd, at_mut(b), int(c), int(d), mask))
        }
        libc::SYS_epoll_pwait2 => {
            many::with_mask(at(e), f, |mask| many::epoll_pwait2(fd, at_mut(b), int(c), at(d), mask))
        }
        libc::SYS_ppoll => many::ppoll_by_number(at_mut(a), b as _, at_mut(c), at(d), e),
        libc::SYS_pselect6 => many::pselect6(int(a), [b, c, d].map(at_mut), at_mut(e), at(f)),
        libc::SYS_execve => exec::execve(at(a), at(b), at(c)).into(),
        libc::SYS_execveat => exec::execveat(fd, at(b), at(c), at(d), int(e)).into(),
        libc::SYS_exit_group => life::exit_now(fd),
        libc::SYS_getrlimit => limits::getrlimit(int(a), at_mut(b)).into(),
        libc::SYS_setrlimit => limits::setrlimit(int(a), at(b)).into(),
        libc::SYS_mlockall => locked::mlockall(int(a)).into(),
        libc::SYS_prlimit64 => limits::prlimit64(int(a), int(b), at(c), at_mut(d)).into(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => many::epoll_wait(fd, at_mut(b), int(c), int(d)).into(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => many::select(int(a), at_mut(b), at_mut(c), at_mut(d), at_mut(e)).into(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_create => many::epoll_create(fd).into(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => life::dup2(fd, int(b)).into(),
        _ => return signals::by_number(number, arguments),
    };
    Some(result)
}
