//! Making, naming, duplicating and closing.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr;

use libc::{sockaddr, socklen_t};
use scoutline_abi::layout::slot_state as is;
use scoutline_scout::SOL_SCOUT;

use super::{cancellable, either, interfaces, ours};
use crate::datagram::stamps;
use crate::real::{self, err, finish, finish_int};
use crate::slot::Socket;
use crate::table::Entry;
use crate::{
    accept, adopt, attach, bind, cancel, fast_open, groups, ip_options, life, options, rings, stdio, table,
    urgent,
};

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    attach::begin_for_socket();
    let fd = real::socket(family, kind, protocol);
    life::created(fd, family, kind);
    fd
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    finish_int(bind::bind(fd, address, len))
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    finish_int(bind::listen(fd, backlog))
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let _deferred = cancel::Deferred::new();
    real::pthread_testcancel();
    finish_int(life::connect(fd, address, len))
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    accept4(fd, address, len, 0)
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let there = || {
        if let Entry::StandIn(_) = table::look(fd) {
            return finish(rings::accept(fd, address, len, flags));
        }
        let new = real::accept4(fd, address, len, flags);
        if new >= 0 {
            life::closing(new); // whatever had the number was closed unseen
        }
        new as isize
    };
    cancellable(fd, |socket| accept::accept(fd, socket, address, len, flags), there) as c_int
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let there = || {
        if let Entry::StandIn(slot) = table::look(fd)
            && let Some(socket) = Socket::at(slot)
        {
            life::shutdown(socket, how);
        }
        real::shutdown(fd, how) as isize
    };
    either(fd, |socket| life::shutdown(socket, how), there) as c_int
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if let Some(result) = groups::filter::get(fd, level, name, value, len) {
        return finish_int(result);
    }
    match ours(fd).or_else(|| of_stand_in(fd, level, name)) {
        Some(socket) => finish_int(options::get(fd, socket, level, name, value, len)),
        None => not_on_paths(level, real::getsockopt(fd, level, name, value, len)),
    }
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if let Some(refused) = options::refusal(fd, level, name, value, len) {
        return finish_int(refused);
    }
    let of_group = groups::set(fd, level, name, value, len);
    if let Some(result) = of_group.or_else(|| groups::filter::set(fd, level, name, value, len)) {
        return finish_int(result);
    }
    let translated = groups::outgoing(level, name, value, len);
    let (value, len) = match &translated {
        Some(by_number) => (std::ptr::from_ref(by_number).cast(), size_of_val(by_number) as socklen_t),
        None => (value, len),
    };
    let socket = match (level, name) {
        (SOL_SCOUT, _) => adopt::adopt_for_options(fd),
        // The kernel's socket would not say later what it is.
        (libc::IPPROTO_IPV6, libc::IPV6_MTU) => ours(fd).or_else(|| adopt::adopt_for_groups(fd)),
        _ => ours(fd),
    };
    let socket = socket.or_else(|| of_stand_in(fd, level, name));
    if let Some(socket) = socket {
        return finish_int(options::set(fd, socket, level, name, value, len));
    }
    ip_options::note(level, name);
    options::note(level, name);
    fast_open::note(level, name);
    not_on_paths(level, real::setsockopt(fd, level, name, value, len))
}

/// The socket for which a ring's stand-in has this option.
fn of_stand_in(fd: c_int, level: c_int, name: c_int) -> Option<Socket> {
    if rings::is_stand_ins(level, name) { None } else { rings::of_stand_in(fd) }
}

/// Kernels differ in what they say to a level that they do not know.
fn not_on_paths(level: c_int, result: c_int) -> c_int {
    if level == SOL_SCOUT && result < 0 && real::errno() == libc::EOPNOTSUPP {
        real::set_errno(libc::ENOPROTOOPT);
    }
    result
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match ours(fd).or_else(|| rings::of_stand_in(fd)) {
        Some(socket) => finish_int(life::local_name(socket, address, len)),
        None => real::getsockname(fd, address, len),
    }
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match ours(fd).or_else(|| rings::of_stand_in(fd)) {
        Some(socket) => finish_int(life::peer_name(socket, address, len)),
        None => real::getpeername(fd, address, len),
    }
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn close(fd: c_int) -> c_int {
    let _deferred = cancel::Deferred::new();
    life::close(fd)
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    life::close_range(first, last, flags)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn closefrom(first: c_int) {
    life::close_range(first.max(0) as c_uint, c_uint::MAX, 0);
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn dup(fd: c_int) -> c_int {
    if table::is_own(fd) {
        return finish_int(err(libc::EBADF));
    }
    let new = real::dup(fd);
    life::duplicated(fd, new);
    new
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn dup2(from: c_int, to: c_int) -> c_int {
    life::replace(from, to, || real::dup2(from, to))
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    life::replace(from, to, || real::dup3(from, to, flags))
}

fn may_be_ours(fd: c_int) -> bool {
    matches!(table::look(fd), Entry::Socket(_) | Entry::Candidate { .. })
}

fn control(fd: c_int, command: c_int, argument: usize) -> c_int {
    if table::is_own(fd) {
        return finish_int(err(libc::EBADF));
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let new = real::fcntl(fd, command, argument);
            life::duplicated(fd, new);
            new
        }
        libc::F_SETFL if argument as c_int & libc::O_ASYNC != 0 && may_be_ours(fd) => {
            finish_int(err(libc::EOPNOTSUPP)) // SIGIO is not sent
        }
        libc::F_GETFL | libc::F_SETFL => {
            let Some(socket) = ours(fd) else { return real::fcntl(fd, command, argument) };
            if command == libc::F_SETFL {
                let kept = real::fcntl(fd, libc::F_GETFL, 0);
                let asked = argument as c_int;
                // Those of the file are the kernel's to keep and to refuse.
                if (asked ^ kept) & KEPT_BY_FILE != 0 {
                    let of_file = asked & !libc::O_NONBLOCK | kept & libc::O_NONBLOCK;
                    if real::fcntl(fd, libc::F_SETFL, of_file as usize) < 0 {
                        return -1;
                    }
                }
                socket.set_non_blocking(asked & libc::O_NONBLOCK != 0);
                return 0;
            }
            let flags = real::fcntl(fd, libc::F_GETFL, 0) & !libc::O_NONBLOCK;
            flags | if socket.non_blocking() { libc::O_NONBLOCK } else { 0 }
        }
        libc::F_SETOWN | urgent::F_SETOWN_EX => match ours(fd).filter(|socket| socket.is_stream()) {
            Some(socket) if urgent::set_owner(socket, command, argument) < 0 => -1,
            // The kernel's socket keeps it to be read back.
            _ => real::fcntl(fd, command, argument),
        },
        _ => real::fcntl(fd, command, argument),
    }
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    control(fd, command, argument)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    control(fd, command, argument)
}

/// Flags of descriptors that are the kernel's affair.
const KEPT_BY_FILE: c_int = libc::O_APPEND | libc::O_NOATIME | libc::O_DIRECT;
/// `linux/sockios.h`
const SIOCOUTQNSD: c_ulong = 0x894b;
/// `asm/sockios.h`
const SIOCATMARK: c_ulong = 0x8905;
/// The C library's own goes around `ioctl`.
#[unsafe(no_mangle)]
extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    let mut is_at_mark: c_int = 0;
    let argument = (&raw mut is_at_mark).expose_provenance();
    if ioctl(fd, SIOCATMARK, argument) < 0 { -1 } else { is_at_mark }
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    if interfaces::is_asked_about(request) {
        return interfaces::tell(fd, request, argument);
    }
    let Some(socket) = ours(fd) else { return real::ioctl(fd, request, argument) };
    let int = ptr::with_exposed_provenance_mut::<c_int>(argument);
    let give = |value: u64| {
        if int.is_null() {
            return finish_int(err(libc::EFAULT));
        }
        // SAFETY: the program vouches for its integer.
        unsafe { ptr::write_unaligned(int, value.min(i32::MAX as u64) as c_int) };
        0
    };
    match request {
        libc::FIONREAD => {
            if socket.state() & is::LISTENING != 0 {
                return finish_int(err(libc::EINVAL));
            }
            if socket.is_stream() {
                return give(urgent::readable(socket));
            }
            give(crate::datagram::next_len(socket))
        }
        libc::TIOCOUTQ | SIOCOUTQNSD if socket.state() & is::LISTENING != 0 => finish_int(err(libc::EINVAL)),
        libc::TIOCOUTQ => give(crate::options::unacknowledged(socket)),
        // SAFETY: as above.
        libc::FIOASYNC if !int.is_null() && unsafe { ptr::read_unaligned(int) } != 0 => {
            finish_int(err(libc::EOPNOTSUPP)) // as O_ASYNC
        }
        _ if stamps::is_request(request) => finish_int(stamps::tell(socket, request, argument)),
        SIOCATMARK if socket.is_stream() => give(u64::from(urgent::is_at_mark(socket))),
        SIOCOUTQNSD if socket.is_stream() => give(crate::options::unsent(socket)),
        libc::FIONBIO => {
            if int.is_null() {
                return finish_int(err(libc::EFAULT));
            }
            // SAFETY: as above.
            socket.set_non_blocking(unsafe { ptr::read_unaligned(int) } != 0);
            0
        }
        _ => real::ioctl(fd, request, argument),
    }
}

#[unsafe(export_name = "_exit")]
pub(super) extern "C-unwind" fn exit_now(status: c_int) -> ! {
    life::leave();
    real::exit_now(status)
}

#[unsafe(export_name = "_Exit")]
extern "C-unwind" fn exit_c99(status: c_int) -> ! {
    exit_now(status)
}

/// After the program's own handlers of `exit`.
extern "C-unwind" fn end() {
    if !stdio::may_flush() {
        life::leave();
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C-unwind" fn() = end;

/// The C library's own puts the three descriptors past us, as do the next two.
#[unsafe(no_mangle)]
extern "C-unwind" fn daemon(stays_in_directory: c_int, keeps_streams: c_int) -> c_int {
    match real::fork() {
        -1 => return -1,
        0 => {}
        _ => exit_now(0),
    }
    // SAFETY: plain system calls, with a terminated name.
    unsafe {
        if libc::setsid() < 0 {
            return -1;
        }
        if stays_in_directory == 0 {
            libc::chdir(c"/".as_ptr());
        }
    }
    if keeps_streams != 0 {
        return 0;
    }
    // SAFETY: a terminated name.
    let null = cancel::uncancelled(|| unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) });
    if null < 0 {
        return -1;
    }
    become_standard(null);
    0
}

/// See [`daemon`].
#[unsafe(no_mangle)]
extern "C-unwind" fn login_tty(fd: c_int) -> c_int {
    // SAFETY: no arguments.
    unsafe { libc::setsid() };
    if real::ioctl(fd, libc::TIOCSCTTY, 0) < 0 {
        return -1;
    }
    become_standard(fd);
    0
}

/// See [`daemon`].
#[unsafe(no_mangle)]
extern "C-unwind" fn forkpty(
    to_master: *mut c_int,
    name: *mut c_char,
    termios: *const c_void,
    size: *const c_void,
) -> libc::pid_t {
    let (mut master, mut slave) = (-1, -1);
    if real::openpty(&raw mut master, &raw mut slave, name, termios, size) < 0 {
        return -1;
    }
    let child = real::fork();
    match child {
        -1 => {
            close(master);
            close(slave);
        }
        0 => {
            close(master);
            if login_tty(slave) < 0 {
                exit_now(1);
            }
        }
        _ => {
            // SAFETY: the program vouches for its integer.
            unsafe { to_master.write(master) };
            close(slave);
        }
    }
    child
}

/// The standard streams are on `fd`, which is closed.
fn become_standard(fd: c_int) {
    for standard in 0..=2 {
        dup2(fd, standard);
    }
    if fd > 2 {
        close(fd);
    }
}

/// A child that shares our memory would undo what the fork handlers do: a full fork is always correct.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn vfork() -> libc::pid_t {
    real::fork()
}
