//! The system calls of this crate that the standard library has no safe form for: namespaces,
//! placement on cores, real-time priority, offloads of an interface, raw frames, poll, epoll, and `connect` without
//! blocking.
//!
//! Every function here is safe to call; nothing else in the crate is unsafe.

use std::io;
use std::mem;
use std::net::{SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use libc::c_int;

mod batch;

pub(crate) use batch::Batch;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of the machine share.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Places the calling thread on one core.
pub(crate) fn set_core(core: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the core is below CPU_SETSIZE, checked above.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: `set` is valid for its whole size; 0 names the calling thread.
    check(unsafe { libc::sched_setaffinity(0, mem::size_of_val(&set), &raw const set) }).map(drop)
}

/// Gives the calling thread `SCHED_FIFO` with this priority (1 to 99).
pub(crate) fn set_realtime(priority: i32) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: `parameter` is a valid sched_param; 0 names the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) }).map(drop)
}

/// Lets this process have as many open files as it may ask for.
pub(crate) fn raise_file_limit() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit to write to.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is a valid rlimit.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).map(drop)
}

/// How late timers of the calling thread may be, in nanoseconds. Ordinary threads have 50 µs (prctl(2)).
pub(crate) fn set_timer_slack(nanoseconds: u64) {
    // SAFETY: plain system call with integer arguments.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanoseconds) };
}

/// Gives a TCP socket this congestion control.
pub(crate) fn set_congestion(socket: &TcpStream, name: &[u8]) -> io::Result<()> {
    set_option(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, name)
}

/// Asks for a receive buffer of this size, beyond what the system allows others (`SO_RCVBUFFORCE`).
pub(crate) fn set_receive_buffer(socket: &impl AsRawFd, bytes: c_int) -> io::Result<()> {
    set_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes.to_ne_bytes())
}

/// Moves the calling thread into the network namespace behind `namespace`.
pub(crate) fn enter_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the borrowed descriptor is open; setns touches no memory of ours.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Makes `command` start in a network namespace, on one core, in a process group of its own, and get
/// SIGTERM should the thread that spawned it end.
///
/// `namespace` must stay open until the command is spawned: the closure owns it.
pub(crate) fn prepare(command: &mut Command, namespace: Option<OwnedFd>, core: Option<usize>) {
    command.process_group(0);
    let before_exec = move || {
        if let Some(namespace) = &namespace {
            // SAFETY: the closure owns the descriptor, so it is open.
            check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
        }
        if let Some(core) = core {
            set_core(core)?;
        }
        // SAFETY: plain system call with integer arguments.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) })?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes only async-signal-safe system calls and neither
    // allocates nor takes a lock.
    unsafe { command.pre_exec(before_exec) };
}

/// Sends `signal` to every process of a group; false when the group has none left.
pub(crate) fn signal_group(group: i32, signal: c_int) -> bool {
    // A group of 0 or 1 would name ourselves or everything.
    assert!(group > 1, "not a process group of ours: {group}");
    // SAFETY: plain system call with integer arguments.
    unsafe { libc::kill(-group, signal) == 0 }
}

/// Sends `signal` to one process; false when there is none.
pub(crate) fn signal_process(process: i32, signal: c_int) -> bool {
    assert!(process > 1, "not a process of ours: {process}");
    // SAFETY: plain system call with integer arguments.
    unsafe { libc::kill(process, signal) == 0 }
}

/// Starts a TCP connection from the address `source` without waiting for it.
pub(crate) fn connect_from(
    source: Option<std::net::Ipv4Addr>,
    target: SocketAddrV4,
    congestion: &[u8],
) -> io::Result<TcpStream> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain system call with integer arguments.
    let fd = check(unsafe { libc::socket(libc::AF_INET, kind, 0) })?;
    // SAFETY: `fd` was made just now and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if !congestion.is_empty() {
        set_option(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, congestion)?;
    }
    if let Some(source) = source {
        // The kernel picks the port in connect, where it knows the whole four-tuple: a port may then
        // be shared by connections to different servers.
        let on = 1_i32.to_ne_bytes();
        set_option(fd.as_raw_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &on)?;
        let address = socket_address(SocketAddrV4::new(source, 0));
        let length = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` is a valid sockaddr_in of the length given.
        check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) })?;
    }
    let address = socket_address(target);
    let length = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: `address` is a valid sockaddr_in of the length given.
    match check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), length) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(TcpStream::from(fd)),
    }
}

/// Takes up to `limit` bytes from a TCP socket without copying them (tcp(7): MSG_TRUNC); how many.
pub(crate) fn discard(socket: &TcpStream, limit: usize) -> io::Result<usize> {
    // SAFETY: with MSG_TRUNC TCP writes nothing to the buffer, which may then be null.
    let taken = unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), limit, libc::MSG_TRUNC) };
    if taken < 0 { Err(io::Error::last_os_error()) } else { Ok(taken as usize) }
}

fn set_option(fd: RawFd, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    // SAFETY: `value` is readable for its length.
    let result = unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), value.len() as u32) };
    check(result).map(drop)
}

/// A UDP socket at an address that others may have as well (SO_REUSEPORT).
pub(crate) fn shared_udp_socket(at: SocketAddrV4) -> io::Result<UdpSocket> {
    // SAFETY: plain arguments; the descriptor that comes of it is nobody else's.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        UdpSocket::from(OwnedFd::from_raw_fd(check(fd)?))
    };
    set_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, &1_i32.to_ne_bytes())?;
    let address = socket_address(at);
    let len = size_of_val(&address) as u32;
    // SAFETY: `address` is a socket address of this length.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(socket)
}

fn socket_address(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
        sin_zero: [0; 8],
    }
}

/// An `ifreq` that names this interface, and a socket of the caller's namespace to ask with.
fn interface_request(interface: &str) -> io::Result<(OwnedFd, libc::ifreq)> {
    // SAFETY: `ifreq` is plain data for which zeros are valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: plain system call with integer arguments.
    let fd = check(unsafe { libc::socket(libc::AF_INET, kind, 0) })?;
    // SAFETY: `fd` was made just now and has no other owner.
    Ok((unsafe { OwnedFd::from_raw_fd(fd) }, request))
}

/// The link address of an interface of the caller's namespace.
pub(crate) fn link_address(interface: &str) -> io::Result<[u8; 6]> {
    let (fd, mut request) = interface_request(interface)?;
    // SAFETY: `request` is an ifreq with a name, into which this command writes an address.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) })?;
    // SAFETY: the command has filled in this member of the union; its bytes are plain data.
    let bytes = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(std::array::from_fn(|index| bytes[index] as u8))
}

/// Sends whole frames at one interface of the namespace in which it was opened.
pub(crate) struct FrameSender {
    fd: OwnedFd,
}

impl FrameSender {
    pub(crate) fn open(interface: &str) -> io::Result<FrameSender> {
        let index = interface_index(interface)?;
        // Protocol 0: it receives nothing.
        // SAFETY: plain system call with integer arguments.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: `fd` was made just now and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        set_option(fd.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1_i32.to_ne_bytes())?;
        // SAFETY: `sockaddr_ll` is plain data for which zeros are valid.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        (address.sll_family, address.sll_ifindex) = (libc::AF_PACKET as u16, index as i32);
        let length = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` is a valid sockaddr_ll of the length given.
        check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) })?;
        Ok(FrameSender { fd })
    }

    /// Sends the frames, or the first of them, with one system call; how many. One that the receiver has no room for is no
    /// error, and counts: it ends the call, and is told by the next one if others went before it.
    pub(crate) fn send<const N: usize>(&self, frames: [&[u8]; N]) -> io::Result<u64> {
        let mut parts = frames
            .map(|frame| libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() });
        // SAFETY: `mmsghdr` is plain data for which zeros are valid: no address, no control data.
        let mut messages: [libc::mmsghdr; N] = unsafe { mem::zeroed() };
        for (message, part) in messages.iter_mut().zip(&mut parts) {
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
        }
        // SAFETY: each of the N messages points to its part, which points to its frame; sending only reads them.
        let sent = unsafe { libc::sendmmsg(self.fd.as_raw_fd(), messages.as_mut_ptr(), N as u32, 0) };
        match check(sent) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN)) => Ok(1),
            other => other.map(|count| count as u64),
        }
    }
}

/// The number of an interface of the caller's namespace.
pub(crate) fn interface_index(interface: &str) -> io::Result<u32> {
    let (asking, mut request) = interface_request(interface)?;
    // SAFETY: `request` is an ifreq with a name, into which this command writes an index.
    check(unsafe { libc::ioctl(asking.as_raw_fd(), libc::SIOCGIFINDEX as _, &raw mut request) })?;
    // SAFETY: the command has filled in this member of the union.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex } as u32)
}

/// ETHTOOL_STXCSUM and ETHTOOL_SGRO (include/uapi/linux/ethtool.h).
const ETHTOOL_STXCSUM: u32 = 0x17;
/// The same.
const ETHTOOL_SCHANNELS: u32 = 0x3d;
const ETHTOOL_SGRO: u32 = 0x2c;

/// Has the kernel complete checksums, and so also cut super-segments, before frames reach this interface of the
/// caller's namespace (`ethtool -K NAME tx off`; segmentation offload depends on checksum offload).
pub(crate) fn offloads_off(interface: &str) -> io::Result<()> {
    set_feature(interface, ETHTOOL_STXCSUM, 0)
}

/// Has this interface of the caller's namespace put segments together as they arrive (`ethtool -K NAME gro on`): a veth then
/// has NAPI, as network cards have, and takes frames that its other end was sent by a program.
pub(crate) fn gro_on(interface: &str) -> io::Result<()> {
    set_feature(interface, ETHTOOL_SGRO, 1)
}

/// Has this interface of the caller's namespace use so many queues in each direction (`ethtool -L NAME rx COUNT tx COUNT`).
pub(crate) fn set_queues(interface: &str, count: u32) -> io::Result<()> {
    /// struct ethtool_channels: the most of each kind, then how many there are to be: to receive, to transmit, …
    #[repr(C)]
    struct Channels {
        command: u32,
        most: [u32; 4],
        count: [u32; 4],
    }
    let mut channels = Channels { command: ETHTOOL_SCHANNELS, most: [0; 4], count: [count, count, 0, 0] };
    let (fd, mut request) = interface_request(interface)?;
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: `request` is an ifreq whose data is the ethtool_channels that this command reads.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) }).map(drop)
}

fn set_feature(interface: &str, command: u32, data: u32) -> io::Result<()> {
    /// struct ethtool_value
    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }
    let mut value = Value { command, data };
    let (fd, mut request) = interface_request(interface)?;
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: `request` is an ifreq whose data is the ethtool_value that this command reads.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) }).map(drop)
}

/// Waits until one of these descriptors is readable or its other end is closed, or for `timeout`; which are.
pub(crate) fn poll_input<const N: usize>(
    descriptors: [RawFd; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let timeout = timeout.map(timespec);
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `polled` has room for N; the timeout is null or a valid timespec; no signal mask is given. A number
    // that is no open descriptor is reported, not used.
    let result = unsafe { libc::ppoll(polled.as_mut_ptr(), N as libc::nfds_t, timeout, std::ptr::null()) };
    match check(result) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok([false; N]),
        Err(error) => Err(error),
        Ok(_) => Ok(polled.map(|polled| polled.revents != 0)),
    }
}

/// What to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum For {
    /// Something to read, or to accept.
    Input,
    /// Room to write.
    Output,
}

/// Waits until one of these descriptors is ready, or has an error, or for `timeout`. Which, their owners find out.
pub(crate) fn poll(descriptors: &[RawFd], what: For, timeout: Duration) -> io::Result<()> {
    let events = match what {
        For::Input => libc::POLLIN,
        For::Output => libc::POLLOUT,
    };
    let mut polled: Vec<libc::pollfd> =
        descriptors.iter().map(|&fd| libc::pollfd { fd, events, revents: 0 }).collect();
    let (count, timeout) = (polled.len() as libc::nfds_t, timespec(timeout));
    // SAFETY: `polled` has room for `count`; the timeout is a valid timespec; no signal mask is given. A number that
    // is no open descriptor is reported, not used.
    let result = unsafe { libc::ppoll(polled.as_mut_ptr(), count, &raw const timeout, std::ptr::null()) };
    match check(result) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        other => other.map(drop),
    }
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: duration.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(duration.subsec_nanos() as i32),
    }
}

/// An epoll set, edge-triggered, whose tokens are indices.
pub(crate) struct Poll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

/// One event of a [`Poll`].
#[derive(Clone, Copy)]
pub(crate) struct Event {
    /// What was given to [`Poll::add`].
    pub(crate) token: usize,
    /// The peer has closed its side, or the connection is gone.
    pub(crate) closed: bool,
}

impl Poll {
    /// An empty set that reports up to `capacity` events at once.
    pub(crate) fn new(capacity: usize) -> io::Result<Poll> {
        // SAFETY: plain system call with integer arguments.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: `fd` was made just now and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Poll { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; capacity.max(1)] })
    }

    /// Watches a socket for readability, the peer's close and, if asked, writability. Closing it
    /// removes it.
    pub(crate) fn add(&self, socket: &impl AsRawFd, token: usize, write: bool) -> io::Result<()> {
        let write = if write { libc::EPOLLOUT } else { 0 };
        let interest = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET | write;
        let mut event = libc::epoll_event { events: interest as u32, u64: token as u64 };
        let (set, fd) = (self.fd.as_raw_fd(), socket.as_raw_fd());
        // SAFETY: both descriptors are open and `event` is valid.
        check(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) }).map(drop)
    }

    /// Waits up to `timeout` and returns how many events there are for [`Poll::event`].
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<usize> {
        let (room, length) = (self.events.as_mut_ptr(), self.events.len() as c_int);
        let timeout = timespec(timeout);
        let set = self.fd.as_raw_fd();
        // SAFETY: `room` is valid for `length` events, `timeout` is a valid timespec, and no signal mask
        // is given.
        match check(unsafe { libc::epoll_pwait2(set, room, length, &raw const timeout, std::ptr::null()) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            other => other.map(|count| count as usize),
        }
    }

    /// The event with this index of the last [`Poll::wait`].
    pub(crate) fn event(&self, index: usize) -> Event {
        let event = self.events[index];
        let gone = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
        Event { token: event.u64 as usize, closed: event.events & gone != 0 }
    }
}
