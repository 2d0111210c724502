//! The real functions, found behind us by `dlsym(RTLD_NEXT)`: all at once when the library is loaded, never
//! under a lock. A constructor of another library may come before ours; then the first call finds its function.
//!
//! The wrappers are safe functions: they hand pointers of the program, or of ours, to system calls, and the kernel
//! answers EFAULT to what does not point anywhere.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

use crate::cancel;
use crate::table::{self, Entry};

/// Arguments or environment of a program.
type List = *const *const c_char;

/// Stands for a function that this C library lacks.
extern "C" fn missing() -> c_long {
    set_errno(libc::ENOSYS);
    -1
}

fn resolve(name: &CStr) -> *mut c_void {
    // SAFETY: a terminated name; RTLD_NEXT is valid in a loaded object.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() { missing as *mut c_void } else { found }
}

#[cold]
fn resolve_into(pointer: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let found = resolve(name);
    pointer.store(found, Ordering::Relaxed);
    found
}

macro_rules! real {
    ($( fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $symbol:literal; )*) => {
        #[allow(non_upper_case_globals)] // named as the functions they point to
        mod pointer {
            $( pub(super) static $name: super::AtomicPtr<super::c_void> =
                super::AtomicPtr::new(std::ptr::null_mut()); )*
        }

        /// Finds all of them.
        pub(crate) fn resolve_all() {
            $( resolve_into(&pointer::$name, $symbol); )*
        }

        $(
            #[inline]
            #[allow(clippy::too_many_arguments)] // C's own
            pub(crate) fn $name($($arg: $ty),*) -> $ret {
                let mut function = pointer::$name.load(Ordering::Relaxed);
                if function.is_null() {
                    function = resolve_into(&pointer::$name, $symbol);
                }
                // SAFETY: the symbol has this signature in every C library for Linux.
                unsafe { transmute::<*mut c_void, extern "C-unwind" fn($($ty),*) -> $ret>(function)($($arg),*) }
            }
        )*
    };
}

real! {
    fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t = c"read";
    fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t = c"write";
    fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t = c"readv";
    fn writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t = c"writev";
    fn preadv2(fd: c_int, iov: *const iovec, n: c_int, position: off_t, flags: c_int) -> ssize_t = c"preadv2";
    fn pwritev2(fd: c_int, iov: *const iovec, n: c_int, position: off_t, flags: c_int) -> ssize_t = c"pwritev2";
    fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t = c"recv";
    fn recvfrom(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, from: *mut sockaddr, len: *mut socklen_t)
        -> ssize_t = c"recvfrom";
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = c"recvmsg";
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int
        = c"recvmmsg";
    fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t = c"send";
    fn sendto(fd: c_int, buf: *const c_void, n: size_t, flags: c_int, to: *const sockaddr, len: socklen_t)
        -> ssize_t = c"sendto";
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = c"sendmsg";
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int = c"sendmmsg";
    fn close(fd: c_int) -> c_int = c"close";
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = c"close_range";
    fn dup(fd: c_int) -> c_int = c"dup";
    fn dup2(from: c_int, to: c_int) -> c_int = c"dup2";
    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int = c"dup3";
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int = c"fcntl";
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int = c"ioctl";
    fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int = c"socket";
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int = c"bind";
    fn listen(fd: c_int, backlog: c_int) -> c_int = c"listen";
    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int = c"accept4";
    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int = c"connect";
    fn shutdown(fd: c_int, how: c_int) -> c_int = c"shutdown";
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int
        = c"getsockopt";
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int
        = c"setsockopt";
    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int = c"getsockname";
    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int = c"getpeername";
    fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int = c"poll";
    fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int = c"ppoll";
    fn select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int
        = c"select";
    fn pselect(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t) -> c_int = c"pselect";
    fn epoll_create(size: c_int) -> c_int = c"epoll_create";
    fn epoll_create1(flags: c_int) -> c_int = c"epoll_create1";
    fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int = c"epoll_ctl";
    fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int = c"epoll_wait";
    fn epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t)
        -> c_int = c"epoll_pwait";
    fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec,
        mask: *const sigset_t) -> c_int = c"epoll_pwait2";
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t = c"sendfile64";
    fn splice(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, n: size_t, flags: c_uint)
        -> ssize_t = c"splice";
    fn getifaddrs(list: *mut *mut libc::ifaddrs) -> c_int = c"getifaddrs";
    fn mlockall(flags: c_int) -> c_int = c"mlockall";
    fn getaddrinfo(node: *const c_char, service: *const c_char, hints: *const libc::addrinfo,
        list: *mut *mut libc::addrinfo) -> c_int = c"getaddrinfo";
    fn freeifaddrs(list: *mut libc::ifaddrs) -> () = c"freeifaddrs";
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long = c"syscall";
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int = c"io_uring_setup";
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int = c"io_uring_queue_init";
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int
        = c"io_uring_queue_init_params";
    fn io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void,
        len: size_t) -> c_int = c"io_uring_queue_init_mem";
    fn io_uring_get_probe() -> *mut c_void = c"io_uring_get_probe";
    fn exit_now(status: c_int) -> ! = c"_exit";
    fn setrlimit(resource: c_int, limit: *const libc::rlimit) -> c_int = c"setrlimit";
    fn getrlimit(resource: c_int, limit: *mut libc::rlimit) -> c_int = c"getrlimit";
    fn prlimit(pid: libc::pid_t, resource: c_int, new: *const libc::rlimit, old: *mut libc::rlimit) -> c_int
        = c"prlimit";
    fn fork() -> libc::pid_t = c"fork";
    fn execve(path: *const c_char, arguments: List, environment: List) -> c_int = c"execve";
    fn execvpe(file: *const c_char, arguments: List, environment: List) -> c_int = c"execvpe";
    fn fexecve(fd: c_int, arguments: List, environment: List) -> c_int = c"fexecve";
    fn execveat(directory: c_int, path: *const c_char, arguments: List, environment: List, flags: c_int) -> c_int
        = c"execveat";
    fn posix_spawn(pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: List, environment: List) -> c_int = c"posix_spawn";
    fn posix_spawnp(pid: *mut libc::pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: List, environment: List) -> c_int = c"posix_spawnp";
    fn posix_spawn_file_actions_init(object: *mut c_void) -> c_int = c"posix_spawn_file_actions_init";
    fn posix_spawn_file_actions_destroy(object: *mut c_void) -> c_int = c"posix_spawn_file_actions_destroy";
    fn posix_spawn_file_actions_addclose(object: *mut c_void, fd: c_int) -> c_int
        = c"posix_spawn_file_actions_addclose";
    fn posix_spawn_file_actions_adddup2(object: *mut c_void, from: c_int, to: c_int) -> c_int
        = c"posix_spawn_file_actions_adddup2";
    fn posix_spawn_file_actions_addopen(object: *mut c_void, fd: c_int, path: *const c_char, flags: c_int,
        mode: libc::mode_t) -> c_int = c"posix_spawn_file_actions_addopen";
    fn posix_spawn_file_actions_addclosefrom_np(object: *mut c_void, from: c_int) -> c_int
        = c"posix_spawn_file_actions_addclosefrom_np";
    fn posix_spawn_file_actions_addchdir_np(object: *mut c_void, path: *const c_char) -> c_int
        = c"posix_spawn_file_actions_addchdir_np";
    fn posix_spawn_file_actions_addfchdir_np(object: *mut c_void, fd: c_int) -> c_int
        = c"posix_spawn_file_actions_addfchdir_np";
    fn posix_spawn_file_actions_addtcsetpgrp_np(object: *mut c_void, fd: c_int) -> c_int
        = c"posix_spawn_file_actions_addtcsetpgrp_np";
    fn system(command: *const c_char) -> c_int = c"system";
    fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE = c"popen";
    fn pclose(stream: *mut libc::FILE) -> c_int = c"pclose";
    fn pthread_create(thread: *mut libc::pthread_t, attributes: *const c_void, start: *mut c_void,
        argument: *mut c_void) -> c_int = c"pthread_create";
    fn pthread_testcancel() -> () = c"pthread_testcancel";
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int = c"pthread_setcancelstate";
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int = c"pthread_setcanceltype";
    fn cleanup_push(buffer: *mut cancel::CleanUp, routine: extern "C" fn(*mut c_void), argument: *mut c_void) -> ()
        = c"_pthread_cleanup_push";
    fn cleanup_pop(buffer: *mut cancel::CleanUp, execute: c_int) -> () = c"_pthread_cleanup_pop";
    fn fclose(stream: *mut libc::FILE) -> c_int = c"fclose";
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE = c"fdopen";
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE = c"freopen";
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE
        = c"freopen64";
    fn perror(text: *const c_char) -> () = c"perror";
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int = c"vdprintf";
    fn vdprintf_checked(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int
        = c"__vdprintf_chk";
    fn vasprintf(to: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int = c"vasprintf";
    fn vasprintf_checked(to: *mut *mut c_char, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int
        = c"__vasprintf_chk";
    fn orientation(stream: *mut libc::FILE, mode: c_int) -> c_int = c"fwide";
    fn fileno(stream: *mut libc::FILE) -> c_int = c"fileno_unlocked";
    fn openpty(master: *mut c_int, slave: *mut c_int, name: *mut c_char, termios: *const c_void, size: *const c_void)
        -> c_int = c"openpty";
    fn getenv(name: *const c_char) -> *mut c_char = c"getenv";
}

#[cfg(target_arch = "x86_64")]
pub(crate) use dispatched::*;

/// What stands in front of these is for dispatched calls only.
#[cfg(target_arch = "x86_64")]
pub(crate) mod dispatched {
    use std::ffi::c_uchar;

    use libc::sighandler_t;

    #[allow(clippy::wildcard_imports)] // the types of the list above
    use super::*;

    real! {
        fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction)
            -> c_int = c"sigaction";
        fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int = c"sigprocmask";
        fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t)
            -> c_int = c"pthread_sigmask";
        fn sigsuspend(set: *const sigset_t) -> c_int = c"sigsuspend";
        fn longjmp(environment: *const usize, value: c_int) -> ! = c"longjmp";
        fn _longjmp(environment: *const usize, value: c_int) -> ! = c"_longjmp";
        fn siglongjmp(environment: *const usize, value: c_int) -> ! = c"siglongjmp";
        fn __longjmp_chk(environment: *const usize, value: c_int) -> ! = c"__longjmp_chk";
        fn signal(number: c_int, handler: sighandler_t) -> sighandler_t = c"signal";
        fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t = c"__sysv_signal";
        fn sigset(number: c_int, handler: sighandler_t) -> sighandler_t = c"sigset";
        fn sigignore(number: c_int) -> c_int = c"sigignore";
        fn sighold(number: c_int) -> c_int = c"sighold";
        fn sigrelse(number: c_int) -> c_int = c"sigrelse";
        fn sigblock(mask: c_int) -> c_int = c"sigblock";
        fn sigsetmask(mask: c_int) -> c_int = c"sigsetmask";
        fn setcontext(next: *const libc::ucontext_t) -> c_int = c"setcontext";
        fn swapcontext(before: *mut libc::ucontext_t, next: *const libc::ucontext_t)
            -> c_int = c"swapcontext";
        fn thrd_create(thread: *mut libc::pthread_t, start: *mut c_void, argument: *mut c_void) -> c_int
            = c"thrd_create";
        fn getnameinfo(address: *const sockaddr, len: socklen_t, host: *mut c_char, host_len: socklen_t,
            service: *mut c_char, service_len: socklen_t, flags: c_int) -> c_int = c"getnameinfo";
        fn gethostbyname(name: *const c_char) -> *mut c_void = c"gethostbyname";
        fn gethostbyname2(name: *const c_char, family: c_int) -> *mut c_void = c"gethostbyname2";
        fn gethostbyname_r(name: *const c_char, entry: *mut c_void, room: *mut c_char, len: usize,
            result: *mut *mut c_void, error: *mut c_int) -> c_int = c"gethostbyname_r";
        fn gethostbyname2_r(name: *const c_char, family: c_int, entry: *mut c_void, room: *mut c_char,
            len: usize, result: *mut *mut c_void, error: *mut c_int) -> c_int = c"gethostbyname2_r";
        fn gethostbyaddr(address: *const c_void, len: socklen_t, family: c_int)
            -> *mut c_void = c"gethostbyaddr";
        fn gethostbyaddr_r(address: *const c_void, len: socklen_t, family: c_int, entry: *mut c_void,
            room: *mut c_char, room_len: usize, result: *mut *mut c_void, error: *mut c_int)
            -> c_int = c"gethostbyaddr_r";
        fn res_query(name: *const c_char, class: c_int, kind: c_int, answer: *mut c_uchar, len: c_int)
            -> c_int = c"res_query";
        fn res_search(name: *const c_char, class: c_int, kind: c_int, answer: *mut c_uchar, len: c_int)
            -> c_int = c"res_search";
        fn res_querydomain(name: *const c_char, domain: *const c_char, class: c_int, kind: c_int,
            answer: *mut c_uchar, len: c_int) -> c_int = c"res_querydomain";
        fn res_send(question: *const c_uchar, question_len: c_int, answer: *mut c_uchar, len: c_int)
            -> c_int = c"res_send";
        fn res_nquery(state: *mut c_void, name: *const c_char, class: c_int, kind: c_int,
            answer: *mut c_uchar, len: c_int) -> c_int = c"res_nquery";
        fn res_nsearch(state: *mut c_void, name: *const c_char, class: c_int, kind: c_int,
            answer: *mut c_uchar, len: c_int) -> c_int = c"res_nsearch";
        fn res_nquerydomain(state: *mut c_void, name: *const c_char, domain: *const c_char, class: c_int,
            kind: c_int, answer: *mut c_uchar, len: c_int) -> c_int = c"res_nquerydomain";
        fn res_nsend(state: *mut c_void, question: *const c_uchar, question_len: c_int,
            answer: *mut c_uchar, len: c_int) -> c_int = c"res_nsend";
    }
}

/// The calling thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: the C library's own cell of this thread.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno`.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: the C library's own cell of this thread.
    unsafe { *libc::__errno_location() = value };
}

/// A result of ours (`-errno` on failure) as C returns it.
#[inline]
pub(crate) fn finish(result: isize) -> isize {
    if result < 0 {
        set_errno(-result as c_int);
        -1
    } else {
        result
    }
}

/// As [`finish`], for functions that return `int`.
#[inline]
pub(crate) fn finish_int(result: isize) -> c_int {
    finish(result) as c_int
}

/// An errno as a result of ours.
#[inline]
pub(crate) fn err(errno: c_int) -> isize {
    -(errno as isize)
}

/// A result of a real function as a result of ours.
#[inline]
pub(crate) fn ours(result: isize) -> isize {
    if result < 0 { err(errno()) } else { result }
}

/// One line on standard error, without stdio or memory, and without SIGPIPE. Nothing where standard error is a connection:
/// to the kernel's socket behind it nobody listens, and the peer is not whom it is for.
pub(crate) fn say(parts: &[&[u8]]) {
    if table::look(2) != Entry::Kernel {
        return;
    }
    let mut line = [0u8; 512];
    let mut len = 0;
    for part in [&b"scoutline: "[..]].iter().chain(parts).chain([&&b"\n"[..]]) {
        let take = part.len().min(line.len() - len);
        line[len..len + take].copy_from_slice(&part[..take]);
        len += take;
    }
    cancel::uncancelled(|| without_pipe_signal(|| write(2, line.as_ptr().cast(), len)));
}

/// `write`, of whose EPIPE the program is not told.
fn without_pipe_signal(write: impl FnOnce() -> ssize_t) {
    let none = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: signal sets of ours, which these calls fill and read.
    unsafe {
        let mut pipe: sigset_t = std::mem::zeroed();
        let (mut before, mut pending) = (pipe, pipe);
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before);
        let broken = write() < 0 && errno() == libc::EPIPE;
        if broken && libc::sigismember(&raw const pending, libc::SIGPIPE) == 0 {
            libc::sigtimedwait(&raw const pipe, ptr::null_mut(), &raw const none);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
    }
}

/// The file behind a descriptor; 0: there is none.
pub(crate) fn inode(fd: c_int) -> u64 {
    // SAFETY: zeros are a valid structure, which the call fills.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { libc::fstat(fd, &raw mut status) } == 0 { status.st_ino } else { 0 }
}

/// Nanoseconds of the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure that we give.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of the wall clock.
pub(crate) fn wall_ns() -> u64 {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure that we give.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// `close` of what the program has not asked to close: no place to be cancelled.
pub(crate) fn close_uncancelled(fd: c_int) -> c_int {
    syscall(libc::SYS_close, fd as usize, 0, 0, 0, 0, 0) as c_int
}

/// Waits a moment with nothing to wait for.
pub(crate) fn nap(us: u64) {
    let pause = timespec { tv_sec: 0, tv_nsec: us as c_long * 1000 };
    ppoll(ptr::null_mut(), 0, &raw const pause, ptr::null());
}
