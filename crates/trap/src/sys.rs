//! The system calls, as safe functions. They go through the C library, since that is where the preload library
//! under the supervisor stands.

use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::io::{self, Error};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

mod bare;
mod closings;
mod threads;

pub(crate) use bare::{
    drop_by_ttl, drop_resets, drop_syns_but, kernel_accept, kernel_bind, kernel_connect, kernel_listen,
    kernel_set_option, kernel_socket,
};
pub(crate) use closings::Closings;
#[cfg(test)]
pub(crate) use threads::tests::receiver;
pub(crate) use threads::{
    ERESTARTNOHAND, ERESTARTNOINTR, ERESTARTSYS, IS_CERTAIN, can_fetch, seize, stopped,
};

/// From `linux/seccomp.h`.
const SECCOMP_FILTER_FLAG_NEW_LISTENER: c_ulong = 1 << 3;
/// The same, of Linux 5.19.
const SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV: c_ulong = 1 << 5;
/// From `linux/pidfd.h` (6.9): the descriptor of a thread that is not its group's leader.
const PIDFD_THREAD: c_uint = libc::O_EXCL as c_uint;

/// Descriptors that no socket gets.
const SPARE: libc::rlim_t = 16;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn check_size(result: isize) -> io::Result<usize> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result as usize) }
}

fn owned(result: c_int) -> io::Result<OwnedFd> {
    // SAFETY: a fresh descriptor of ours.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The errno of an error.
pub(crate) fn errno(error: &Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn seccomp(steps: &[libc::sock_filter], flags: c_ulong) -> io::Result<c_int> {
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_ptr().cast_mut() };
    let mode = c_ulong::from(libc::SECCOMP_SET_MODE_FILTER);
    // SAFETY: the kernel copies the program, which lives until the call returns.
    check(unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) } as c_int)
}

/// Installs a filter whose notifications come from the descriptor that is returned (close-on-exec), and says whether a
/// call that was taken there can be ended before its answer by fatal signals only (Linux 5.19), as it should. Without the
/// privilege this process gives up gaining privileges by `exec`, as the kernel demands.
pub(crate) fn install_filter(steps: &[libc::sock_filter]) -> io::Result<(OwnedFd, bool)> {
    let install = |flags| {
        let fd = match seccomp(steps, flags) {
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
                // SAFETY: numbers only.
                check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
                seccomp(steps, flags)
            }
            other => other,
        };
        // SAFETY: a fresh descriptor of ours.
        fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
    };
    match install(SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok((install(SECCOMP_FILTER_FLAG_NEW_LISTENER)?, false))
        }
        installed => Ok((installed?, true)),
    }
}

/// Installs a filter without notifications.
pub(crate) fn install_plain_filter(steps: &[libc::sock_filter]) -> io::Result<()> {
    seccomp(steps, 0).map(drop)
}

/// Asks for a ring, as the program has: the library under this process refuses, counts and says so.
pub(crate) fn count_ring() {
    // SAFETY: the kernel, where it is asked at all, answers EFAULT to a null pointer.
    unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, ptr::null_mut::<c_void>()) };
}

/// Lets `pid` look into this process where Yama would not (`ptrace_scope`); without Yama it is not needed.
pub(crate) fn let_read(pid: u32) {
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, c_ulong::from(pid), 0, 0, 0) };
}

/// Syscall User Dispatch; it stays off in this thread, as it is.
pub(crate) fn try_dispatch() -> io::Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
    let off: c_ulong = 0;
    // SAFETY: numbers only.
    match unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, off, off, off, off) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// As many descriptors as are allowed, but for the spare ones: each socket of the program takes two.
pub(crate) fn raise_descriptor_limit() {
    limit_descriptors(SPARE);
}

/// All that are allowed, but for so many.
fn limit_descriptors(kept: libc::rlim_t) {
    // SAFETY: fills and reads a structure of ours.
    unsafe {
        let mut limit: libc::rlimit = zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max - kept.min(limit.rlim_max / 2);
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// For what is asked about the sockets that there are, when the others are all taken.
pub(crate) fn with_spare<T>(ask: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match ask() {
        Err(error) if errno(&error) == libc::EMFILE => {
            limit_descriptors(0);
            let told = ask();
            limit_descriptors(SPARE);
            told
        }
        told => told,
    }
}

/// This process reads and says nothing any more: whoever is at the other ends need not wait for its end.
pub(crate) fn leave_output() {
    let Ok(nowhere) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") else { return };
    for standard in 0..3 {
        // SAFETY: numbers only.
        unsafe { libc::dup2(nowhere.as_raw_fd(), standard) };
    }
}

/// A descriptor of the process of thread `pid`.
pub(crate) fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    let open = |pid: u32, flags: c_uint| unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) as c_int };
    owned(open(pid, 0)).or_else(|_| owned(open(pid, PIDFD_THREAD))).or_else(|error| {
        // An older kernel, and a thread: its process will do.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let group = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
        owned(open(group.ok_or(error)?, 0))
    })
}

/// A descriptor that is readable once thread `tid`, or on an older kernel its process, has ended.
pub(crate) fn end_of_thread(tid: u32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, tid, PIDFD_THREAD) as c_int }).or_else(|_| pidfd(tid))
}

/// What other threads of ours ring ([`ring`]): readable then.
pub(crate) fn bell() -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

pub(crate) fn ring(bell: &OwnedFd) {
    // SAFETY: numbers only. It is full after 2^64 rings.
    unsafe { libc::eventfd_write(bell.as_raw_fd(), 1) };
}

/// It has been heard.
pub(crate) fn silence(bell: &OwnedFd) {
    let mut rings = 0;
    // SAFETY: writes one number.
    unsafe { libc::eventfd_read(bell.as_raw_fd(), &raw mut rings) };
}

/// Sends a thread a signal.
pub(crate) fn signal(process: u32, thread: u32, signal: c_int) {
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
}

/// A duplicate of another process's descriptor.
pub(crate) fn take(process: &OwnedFd, number: c_int) -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) as c_int })
}

/// An `ioctl` with a structure.
pub(crate) fn control<T>(fd: RawFd, request: c_ulong, argument: &mut T) -> io::Result<c_int> {
    // SAFETY: each request of this crate's is given the structure that it is defined with.
    check(unsafe { libc::ioctl(fd, request, ptr::from_mut(argument)) })
}

/// Has the kernel run the supervisor and the program in turn on one core (`linux/seccomp.h`, 6.6), which is what
/// they do: waking another core costs more than the call. An older kernel does without.
pub(crate) fn take_turns(listener: &OwnedFd) {
    const SYNC_WAKE_UP: c_ulong = 1;
    // SAFETY: numbers only.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS as _, SYNC_WAKE_UP) };
}

/// Copies out of another process; all or nothing.
pub(crate) fn read_memory(pid: u32, from: u64, to: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: ptr::without_provenance_mut(from as usize), iov_len: to.len() };
    // SAFETY: writes at most `to`; the other side's addresses are only numbers here.
    let got = unsafe { libc::process_vm_readv(pid as i32, &raw const local, 1, &raw const remote, 1, 0) };
    if check_size(got)? == to.len() { Ok(()) } else { Err(Error::from_raw_os_error(libc::EFAULT)) }
}

/// Copies into another process; all or nothing.
pub(crate) fn write_memory(pid: u32, to: u64, from: &[u8]) -> io::Result<()> {
    if from.is_empty() {
        return Ok(());
    }
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let remote = libc::iovec { iov_base: ptr::without_provenance_mut(to as usize), iov_len: from.len() };
    // SAFETY: reads `from`; the other side's addresses are only numbers here.
    let got = unsafe { libc::process_vm_writev(pid as i32, &raw const local, 1, &raw const remote, 1, 0) };
    if check_size(got)? == from.len() { Ok(()) } else { Err(Error::from_raw_os_error(libc::EFAULT)) }
}

/// `socket`.
pub(crate) fn socket(family: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    owned(unsafe { libc::socket(family, kind, protocol) })
}

/// A connected pair of AF_UNIX sockets: the supervisor's end, which never blocks, and the program's.
pub(crate) fn pair(kind: c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: fills two integers.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()) })?;
    // SAFETY: fresh descriptors of ours.
    let [ours, theirs] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    set_non_blocking(&ours);
    Ok((ours, theirs))
}

/// Gives an AF_UNIX socket a name by which another can connect to it, if it has none: which.
pub(crate) fn name_unix(fd: &OwnedFd) -> io::Result<Vec<u8>> {
    // Of no length: one that nobody has, in the abstract name space (`unix(7)`).
    kernel_bind(fd, &(libc::AF_UNIX as libc::sa_family_t).to_ne_bytes())?;
    name(libc::getsockname, fd)
}

/// Sets O_NONBLOCK.
pub(crate) fn set_non_blocking(fd: &OwnedFd) {
    // SAFETY: numbers only. O_NONBLOCK is the only flag that a fresh socket may have.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) };
}

/// The inode behind a descriptor.
pub(crate) fn inode(fd: &OwnedFd) -> io::Result<u64> {
    // SAFETY: fills a structure of ours.
    unsafe {
        let mut found: libc::stat = zeroed();
        check(libc::fstat(fd.as_raw_fd(), &raw mut found))?;
        Ok(found.st_ino)
    }
}

/// `bind` or `connect` with an address of a program.
pub(crate) fn with_address(
    call: unsafe extern "C" fn(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int,
    fd: &OwnedFd,
    address: &[u8],
) -> io::Result<()> {
    let (address, len) = aligned(address);
    // SAFETY: the address is as long as we say.
    check(unsafe { call(fd.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// An address of a program where C wants it.
fn aligned(bytes: &[u8]) -> (libc::sockaddr_storage, libc::socklen_t) {
    let len = bytes.len().min(size_of::<libc::sockaddr_storage>());
    // SAFETY: zeros are a valid address, and `len` bytes fit.
    let address = unsafe {
        let mut address: libc::sockaddr_storage = zeroed();
        ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut address).cast::<u8>(), len);
        address
    };
    (address, len as libc::socklen_t)
}

/// `getsockname` or `getpeername`.
pub(crate) fn name(
    call: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int,
    fd: &OwnedFd,
) -> io::Result<Vec<u8>> {
    let mut space = [0u64; 16];
    let mut len = size_of_val(&space) as libc::socklen_t;
    // SAFETY: writes at most the length that we give.
    check(unsafe { call(fd.as_raw_fd(), space.as_mut_ptr().cast(), &raw mut len) })?;
    Ok(space.iter().flat_map(|word| word.to_ne_bytes()).take(len as usize).collect())
}

/// `listen`.
pub(crate) fn listen(fd: &OwnedFd, backlog: c_int) -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

/// `accept4`, for a descriptor that never blocks.
pub(crate) fn accept(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no address is asked for.
    owned(unsafe { libc::accept4(fd.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), flags) })
}

/// `shutdown`.
pub(crate) fn shutdown(fd: &OwnedFd, how: c_int) -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe { libc::shutdown(fd.as_raw_fd(), how) }).map(drop)
}

/// `getsockopt` into `value`: the length.
pub(crate) fn option(fd: &OwnedFd, level: c_int, name: c_int, value: &mut [u8]) -> io::Result<usize> {
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: writes at most the length that we give.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut len) })?;
    Ok((len as usize).min(value.len()))
}

/// `setsockopt`.
pub(crate) fn set_option(fd: &OwnedFd, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    let (data, len) = (value.as_ptr().cast::<c_void>(), value.len() as libc::socklen_t);
    // SAFETY: the value is as long as we say.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, data, len) }).map(drop)
}

/// Connections in the queue of a listening socket of the kernel's (`tcpi_unacked`), if that is known.
pub(crate) fn queued_connections(fd: &OwnedFd) -> Option<usize> {
    const UNACKED: usize = 24;
    let mut facts = [0; UNACKED + 4];
    let len = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut facts).ok()?;
    let [.., a, b, c, d] = facts;
    (len == facts.len()).then(|| u32::from_ne_bytes([a, b, c, d]) as usize)
}

/// The error that waits at a socket, which is thereby taken; 0: none.
pub(crate) fn pending_error(fd: &OwnedFd) -> i32 {
    let mut value = [0; 4];
    match option(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut value) {
        Ok(_) => i32::from_ne_bytes(value),
        Err(error) => errno(&error),
    }
}

/// `recv` without waiting. With MSG_TRUNC in `flags` the length is the datagram's own.
pub(crate) fn receive(fd: &OwnedFd, into: &mut [u8], flags: c_int) -> io::Result<usize> {
    let flags = flags | libc::MSG_DONTWAIT;
    // SAFETY: writes at most the length that we give.
    check_size(unsafe { libc::recv(fd.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), flags) })
}

/// `recv` of a datagram of AF_UNIX without waiting, at a socket that asks who has sent it ([`ask_who_sends`]): its length
/// and that process; 0: it is not known here.
pub(crate) fn receive_by(fd: &OwnedFd, into: &mut [u8]) -> io::Result<(usize, u32)> {
    let mut control = [0u64; 4];
    let mut iov = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: everything that the header points to lives until the call returns and is as long as it says; the kernel
    // lays control messages out as `CMSG_FIRSTHDR` expects.
    unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let len = check_size(libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT))?;
        let first = libc::CMSG_FIRSTHDR(&raw const message);
        let is_told = !first.is_null()
            && ((*first).cmsg_level, (*first).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS);
        let by =
            if is_told { ptr::read_unaligned(libc::CMSG_DATA(first).cast::<libc::ucred>()).pid } else { 0 };
        Ok((len, by.cast_unsigned()))
    }
}

/// Has a socket of AF_UNIX be told who sends (SO_PASSCRED).
pub(crate) fn ask_who_sends(fd: &OwnedFd) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_PASSCRED, &1i32.to_ne_bytes())
}

/// `send` without waiting.
pub(crate) fn send(fd: &OwnedFd, bytes: &[u8], flags: c_int) -> io::Result<usize> {
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: reads `bytes`.
    check_size(unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// A message with what belongs to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The other side's address; empty: none.
    pub(crate) address: Vec<u8>,
    /// Control messages as `recvmsg` lays them out.
    pub(crate) control: Vec<u8>,
}

/// `sendmsg` of a datagram without waiting.
pub(crate) fn send_message(fd: &OwnedFd, bytes: &[u8], facts: &Facts, flags: c_int) -> io::Result<usize> {
    let (address, len) = aligned(&facts.address);
    let mut control = [0u64; 64];
    let control_len = facts.control.len().min(size_of_val(&control));
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: everything that the header points to lives until the call returns and is as long as it says.
    unsafe {
        ptr::copy_nonoverlapping(facts.control.as_ptr(), control.as_mut_ptr().cast::<u8>(), control_len);
        let mut message: libc::msghdr = zeroed();
        if len > 0 {
            message.msg_name = (&raw const address).cast_mut().cast();
            message.msg_namelen = len;
        }
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        if control_len > 0 {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = control_len as _;
        }
        let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        check_size(libc::sendmsg(fd.as_raw_fd(), &raw const message, flags))
    }
}

/// `recvmsg` of a datagram without waiting: its length, what belongs to it, and the flags that came with it.
pub(crate) fn receive_message(
    fd: &OwnedFd,
    into: &mut [u8],
    flags: c_int,
) -> io::Result<(usize, Facts, c_int)> {
    let mut address = [0u64; 16];
    let mut control = [0u64; 64];
    let mut iov = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let bytes =
        |words: &[u64], len: usize| words.iter().flat_map(|word| word.to_ne_bytes()).take(len).collect();
    // SAFETY: everything that the header points to lives until the call returns and is as long as it says.
    unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_name = address.as_mut_ptr().cast();
        message.msg_namelen = size_of_val(&address) as _;
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = flags | libc::MSG_DONTWAIT;
        let len = check_size(libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags))?;
        let facts = Facts {
            address: bytes(&address, message.msg_namelen as usize),
            control: bytes(&control, message.msg_controllen as usize),
        };
        Ok((len, facts, message.msg_flags))
    }
}

/// Bytes that a socket has sent and its peer has not taken yet (AF_UNIX: SIOCOUTQ).
pub(crate) fn untaken(fd: &OwnedFd) -> c_int {
    let mut value: c_int = 0;
    if control(fd.as_raw_fd(), libc::TIOCOUTQ, &mut value).is_err() { 0 } else { value }
}

/// Whether the next byte to read is an urgent one.
pub(crate) fn at_mark(fd: &OwnedFd) -> bool {
    const SIOCATMARK: c_ulong = 0x8905; // `asm-generic/sockios.h`
    let mut value: c_int = 0;
    control(fd.as_raw_fd(), SIOCATMARK, &mut value).is_ok() && value != 0
}

/// Has urgent bytes lie among the others.
pub(crate) fn take_urgent_in_line(fd: &OwnedFd) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, &1i32.to_ne_bytes())
}

/// Closing resets the connection.
pub(crate) fn reset_at_close(fd: &OwnedFd) {
    // `struct linger`: on, no seconds.
    let now = [1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat();
    let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &now);
}

/// Whether the other end of a connection is gone, or both directions are shut.
pub(crate) fn hung_up(fd: &OwnedFd) -> bool {
    events(fd, 0) & libc::POLLHUP != 0
}

/// Whether a socket has something to read, or a connection to accept.
pub(crate) fn readable(fd: &OwnedFd) -> bool {
    events(fd, libc::POLLIN) & libc::POLLIN != 0
}

/// Whether a socket has room, or is connected at last.
pub(crate) fn writable(fd: &OwnedFd) -> bool {
    events(fd, libc::POLLOUT) & libc::POLLOUT != 0
}

/// Which of these events there are, and of those that are always told.
pub(crate) fn events(fd: &OwnedFd, events: i16) -> i16 {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: one element.
    if unsafe { libc::poll(&raw mut poll, 1, 0) } > 0 { poll.revents } else { 0 }
}

/// The flags of an open file (F_GETFL).
pub(crate) fn status(fd: &OwnedFd) -> io::Result<c_int> {
    // SAFETY: numbers only.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })
}

/// Sets them.
pub(crate) fn set_status(fd: &OwnedFd, flags: c_int) -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) }).map(drop)
}

/// An epoll descriptor.
pub(crate) struct Poll(OwnedFd);

impl Poll {
    pub(crate) fn new() -> io::Result<Poll> {
        // SAFETY: numbers only.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Poll)
    }

    fn change(&self, op: c_int, fd: &OwnedFd, events: u32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: one event, which is copied.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd.as_raw_fd(), &raw mut event) }).map(drop)
    }

    pub(crate) fn add(&self, fd: &OwnedFd, events: u32, token: u64) -> io::Result<()> {
        self.change(libc::EPOLL_CTL_ADD, fd, events, token)
    }

    pub(crate) fn set(&self, fd: &OwnedFd, events: u32, token: u64) -> io::Result<()> {
        self.change(libc::EPOLL_CTL_MOD, fd, events, token)
    }

    pub(crate) fn remove(&self, fd: &OwnedFd) {
        let _ = self.change(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Waits for at most so many milliseconds, -1: for ever. An interruption is no event.
    pub(crate) fn wait(&self, events: &mut [libc::epoll_event], limit_ms: c_int) -> io::Result<usize> {
        let room = events.len() as c_int;
        // SAFETY: writes at most `room` events.
        let got = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), room, limit_ms) };
        match check(got) {
            Ok(count) => Ok(count as usize),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }
}
