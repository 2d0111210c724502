//! packetdrill's table of functions (`struct packetdrill_interface` of its `packetdrill.h`), as the C ABI has it: the
//! order of the fields is the interface. Each function gets [`Interface::userdata`] first and answers as the system
//! call of its name does, with `errno`.

use std::ffi::{c_int, c_long, c_longlong, c_uint, c_ulong, c_void};

use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval,
    timezone, useconds_t,
};

type Data = *mut c_void;

/// The table.
#[repr(C)]
#[allow(missing_docs)] // each is the system call of its name, but for the five that say so
pub struct Interface {
    /// Ours, handed to each function.
    pub userdata: Data,
    /// The end: called once.
    pub free: extern "C" fn(Data),
    pub socket: extern "C" fn(Data, c_int, c_int, c_int) -> c_int,
    pub bind: extern "C" fn(Data, c_int, *const sockaddr, socklen_t) -> c_int,
    pub listen: extern "C" fn(Data, c_int, c_int) -> c_int,
    pub accept: extern "C" fn(Data, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub connect: extern "C" fn(Data, c_int, *const sockaddr, socklen_t) -> c_int,
    pub read: extern "C" fn(Data, c_int, *mut c_void, size_t) -> ssize_t,
    pub readv: extern "C" fn(Data, c_int, *const iovec, c_int) -> ssize_t,
    pub recv: extern "C" fn(Data, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    pub recvfrom:
        extern "C" fn(Data, c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t,
    pub recvmsg: extern "C" fn(Data, c_int, *mut msghdr, c_int) -> ssize_t,
    pub write: extern "C" fn(Data, c_int, *const c_void, size_t) -> ssize_t,
    pub writev: extern "C" fn(Data, c_int, *const iovec, c_int) -> ssize_t,
    pub send: extern "C" fn(Data, c_int, *const c_void, size_t, c_int) -> ssize_t,
    pub sendto:
        extern "C" fn(Data, c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t,
    pub sendmsg: extern "C" fn(Data, c_int, *const msghdr, c_int) -> ssize_t,
    /// Variadic in C. A callee that takes its one further argument as an ordinary one reads the same register on every
    /// machine that Linux and we run on.
    pub fcntl: extern "C" fn(Data, c_int, c_int, c_long) -> c_int,
    /// Variadic in C, as `fcntl`.
    pub ioctl: extern "C" fn(Data, c_int, c_ulong, *mut c_void) -> c_int,
    pub close: extern "C" fn(Data, c_int) -> c_int,
    pub shutdown: extern "C" fn(Data, c_int, c_int) -> c_int,
    pub getsockopt: extern "C" fn(Data, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    pub setsockopt: extern "C" fn(Data, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub poll: extern "C" fn(Data, *mut pollfd, nfds_t, c_int) -> c_int,
    /// A packet comes, network header first. 0, or -1.
    pub netdev_send: extern "C" fn(Data, *const c_void, size_t) -> c_int,
    /// Waits for the next packet that leaves: its bytes, their number (in: the room), and when it left in microseconds.
    /// 0, or -1 to be asked again.
    pub netdev_receive: extern "C" fn(Data, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    pub usleep: extern "C" fn(Data, useconds_t) -> c_int,
    pub gettimeofday: extern "C" fn(Data, *mut timeval, *mut timezone) -> c_int,
    pub epoll_create: extern "C" fn(Data, c_int) -> c_int,
    pub epoll_ctl: extern "C" fn(Data, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    pub epoll_wait: extern "C" fn(Data, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pub pipe: extern "C" fn(Data, *mut c_int) -> c_int,
    pub splice: extern "C" fn(Data, c_int, *mut loff_t, c_int, *mut loff_t, size_t, c_uint) -> c_int,
}
