//! What the program's descriptor of a stream is: a TCP socket of the kernel's on the loopback interface, whose other
//! end the supervisor has once the path is connected. So every state, error and event is the kernel's own.
//!
//! ```text
//!   before       as socket() left it: POLLOUT | POLLHUP, ENOTCONN, EPIPE
//!   listening    listens at the loopback; the supervisor *knocks* for each connection that waits, and who accepts
//!                gets that knock as descriptor
//!   connecting   in SYN-SENT ([`Attempt`]): no event, no end
//!   connected    our end opens towards it: a simultaneous open (RFC 9293 §3.5, figure 7), for which its SYN need not
//!                be repeated
//!   refused      our end answers its SYN by a reset: ECONNREFUSED, POLLERR
//!   reset        our end closes with SO_LINGER 0
//! ```
//!
//! Nobody else gets in: a connection is taken only if its other end is a socket of the supervisor's. Where it is not the
//! supervisor who takes it (who has been passed a listening one, and is not supervised; an `accept` that waits for long),
//! a filter keeps those out that just try each port: knocks have a TTL of their own.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::sys;

/// Addresses of the loopback network of our own, so that what uses 127.0.0.1 keeps its ports; the next one each time,
/// since what has ended keeps its port for a minute (TIME-WAIT).
const ADDRESSES: [u8; 2] = [127, 83];
/// How much may lie between the program and the supervisor in each direction, as far as the system lets us
/// (`net.core.rmem_max`): what lies there counts as sent, and the path does not have it.
const BUFFER: i32 = 256 << 10;
/// SYNs of a socket that connects are never answered before the supervisor does, nor given up: it knows how long.
const SYNS: i32 = 127;
/// The TTL of what a stand-in is not to hear, and of the rest.
const UNHEARD: u8 = 77;
const HEARD: i32 = 64;
/// That of what knocks.
const KNOCKS: u8 = 78;
/// Connections that may wait in front of a listening socket of the program, as many as Linux has by default.
pub(crate) const BACKLOG: i32 = 4096;
/// Seconds; Linux's `tcp_fin_timeout`.
const ORPHAN_S: i32 = 60;

/// An address of no family (AF_UNSPEC), by which `connect` ends a connection.
pub(crate) const NOWHERE: [u8; 16] = [0; 16];

/// A stand-in that connects, and what is to become of it.
///
/// It is in SYN-SENT, and our end in SYN-RECEIVED: that one has its SYN, and can refuse it. What that end says until
/// then has a TTL by which a filter of the stand-in's drops it. If the connection stands, an end of ours that knows
/// nothing of all this opens towards it.
pub(crate) struct Attempt {
    ours: OwnedFd,
    our_name: Vec<u8>,
    name: Vec<u8>,
}

impl Attempt {
    pub(crate) fn new(outer: &OwnedFd) -> io::Result<Attempt> {
        bind(outer)?;
        let name = sys::name(libc::getsockname, outer)?;
        let ours = end()?;
        sys::kernel_bind(&ours, &any_port())?;
        let our_name = sys::name(libc::getsockname, &ours)?;
        for fd in [outer, &ours] {
            set(fd, libc::IPPROTO_TCP, libc::TCP_SYNCNT, SYNS)?;
        }
        set(&ours, libc::IPPROTO_IP, libc::IP_TTL, UNHEARD.into())?;
        // Nobody listens there yet, which it must not hear: whenever that comes, on a busy machine later than what follows.
        sys::drop_resets(&ours)?;
        start(sys::kernel_connect(&ours, &name))?;
        sys::drop_by_ttl(outer, UNHEARD)?;
        without_waiting(outer, || start(sys::kernel_connect(outer, &our_name)))?;
        Ok(Attempt { ours, our_name, name })
    }

    /// The connection stands: our end.
    pub(crate) fn succeed(self) -> io::Result<OwnedFd> {
        sys::reset_at_close(&self.ours);
        drop(self.ours);
        let peer = end()?;
        sys::kernel_bind(&peer, &self.our_name)?;
        start(sys::kernel_connect(&peer, &self.name))?;
        Ok(peer)
    }

    /// It does not: ECONNREFUSED.
    pub(crate) fn fail(self) {
        let _ = set(&self.ours, libc::IPPROTO_IP, libc::IP_TTL, HEARD);
        sys::reset_at_close(&self.ours);
    }
}

/// A stand-in: `flags` are those of `socket`.
pub(crate) fn socket(flags: i32) -> io::Result<OwnedFd> {
    let fd = sys::kernel_socket(libc::SOCK_STREAM | flags)?;
    prepare(&fd)?;
    Ok(fd)
}

/// What is written goes to the supervisor at once: whether it waits for more is the path's decision.
fn prepare(fd: &OwnedFd) -> io::Result<()> {
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, BUFFER)
}

/// An end of the supervisor's.
fn end() -> io::Result<OwnedFd> {
    let fd = socket(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)?;
    set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, BUFFER)?;
    sys::take_urgent_in_line(&fd)?;
    Ok(fd)
}

fn set(fd: &OwnedFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    sys::kernel_set_option(fd, level, name, &value.to_ne_bytes())
}

/// To some port; unless it is bound, since it has connected or listened before.
fn bind(fd: &OwnedFd) -> io::Result<()> {
    match sys::kernel_bind(fd, &any_port()) {
        Err(error) if sys::errno(&error) == libc::EINVAL => Ok(()),
        bound => bound,
    }
}

/// Some port of the next address.
fn any_port() -> Vec<u8> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let mut name = vec![0; 16];
    name[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    name[4..8].copy_from_slice(&[ADDRESSES, next].concat());
    name
}

fn start(connecting: io::Result<()>) -> io::Result<()> {
    match connecting {
        Err(error) if sys::errno(&error) == libc::EINPROGRESS => Ok(()),
        other => other,
    }
}

/// The program's own descriptor may wait; this must not.
fn without_waiting<T>(outer: &OwnedFd, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let flags = sys::status(outer)?;
    if flags & libc::O_NONBLOCK == 0 {
        sys::set_status(outer, flags | libc::O_NONBLOCK)?;
    }
    let result = call();
    if flags & libc::O_NONBLOCK == 0 {
        sys::set_status(outer, flags)?;
    }
    result
}

/// A stand-in is as socket() left it, in whatever state it was, but for the error that the kernel has of that
/// (`tcp_disconnect`).
pub(crate) fn disconnect(outer: &OwnedFd) -> io::Result<()> {
    sys::kernel_connect(outer, &NOWHERE)
}

/// The same, without an error.
pub(crate) fn release(outer: &OwnedFd) -> io::Result<()> {
    disconnect(outer)?;
    sys::pending_error(outer);
    Ok(())
}

/// A stand-in listens: where.
pub(crate) fn listen(outer: &OwnedFd) -> io::Result<Vec<u8>> {
    bind(outer)?;
    // Where only root may do this, calls do not wait there for long either.
    let _ = sys::drop_syns_but(outer, KNOCKS);
    sys::kernel_listen(outer, BACKLOG)?;
    sys::name(libc::getsockname, outer)
}

/// How long the queue of a stand-in may be here.
pub(crate) fn longest_queue() -> usize {
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").ok();
    let most = most.and_then(|text| text.trim().parse().ok());
    most.unwrap_or(BACKLOG as usize).clamp(1, BACKLOG as usize)
}

/// Our end of a connection hears of it when nobody has the other one any more: Linux forgets an end that has been closed
/// after a minute, and answers for it by a reset then.
pub(crate) fn end_with_its_owner(ours: &OwnedFd) -> io::Result<()> {
    set(ours, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(ours, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, ORPHAN_S)?;
    set(ours, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, ORPHAN_S)
}

/// Makes the stand-in that listens there readable, and somebody who waits for it wake up: our end of the connection,
/// and its name.
pub(crate) fn knock(listener: &[u8]) -> io::Result<(OwnedFd, Vec<u8>)> {
    let peer = end()?;
    set(&peer, libc::IPPROTO_IP, libc::IP_TTL, KNOCKS.into())?;
    sys::kernel_bind(&peer, &any_port())?;
    start(sys::kernel_connect(&peer, listener))?;
    let name = sys::name(libc::getsockname, &peer)?;
    Ok((peer, name))
}

/// The program's end of a knock, out of its listening stand-in: with the name of ours.
///
/// # Errors
/// EAGAIN: there is none.
pub(crate) fn open(outer: &OwnedFd, flags: i32, is_shared: bool) -> io::Result<(OwnedFd, Vec<u8>)> {
    if !sys::readable(outer) {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    // Where others take connections, too, what was there may be gone, and we must not wait for more.
    let accept = || sys::kernel_accept(outer, flags);
    let (accepted, name) = if is_shared { without_waiting(outer, accept)? } else { accept()? };
    prepare(&accepted)?;
    Ok((accepted, name))
}

/// Connections in the queue of the stand-in that listens there, as the table of all sockets has it (`proc_net(5)`), if it
/// does.
pub(crate) fn queued_connections(listener: &[u8]) -> Option<usize> {
    const LISTEN: &str = "0A";
    let [_, _, p, q, a, b, c, d, ..] = *listener else { return None };
    // The address as a number of this machine's.
    let name = format!("{:08X}:{p:02X}{q:02X}", u32::from_ne_bytes([a, b, c, d]));
    // Those that listen come first: what follows is not read.
    let table = BufReader::new(File::open("/proc/net/tcp").ok()?);
    table.lines().map_while(Result::ok).find_map(|line| {
        let row: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, state, queues, ..] = row[..] else { return None };
        let (_, queued) = queues.split_once(':').filter(|_| local == name && state == LISTEN)?;
        usize::from_str_radix(queued, 16).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(fd: &OwnedFd) -> i16 {
        sys::events(fd, libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP)
    }

    fn connected() -> (OwnedFd, OwnedFd) {
        let outer = socket(0).unwrap();
        let peer = Attempt::new(&outer).unwrap().succeed().unwrap();
        (outer, peer)
    }

    #[test]
    fn a_stand_in_waits_in_silence_and_is_connected_at_once() {
        let outer = socket(0).unwrap();
        assert_eq!(events(&outer), libc::POLLOUT | libc::POLLHUP);
        let attempt = Attempt::new(&outer).unwrap();
        assert_eq!(events(&outer), 0);
        assert_eq!(sys::status(&outer).unwrap() & libc::O_NONBLOCK, 0);
        let peer = attempt.succeed().unwrap();
        assert_eq!((events(&outer), events(&peer)), (libc::POLLOUT, libc::POLLOUT));
        sys::send(&outer, b"question", 0).unwrap();
        assert_eq!(sys::receive(&peer, &mut [0; 16], 0).unwrap(), 8);
        sys::reset_at_close(&peer);
        drop(peer);
        assert_eq!(sys::pending_error(&outer), libc::ECONNRESET);
    }

    #[test]
    fn a_stand_in_is_refused_and_may_try_again() {
        let outer = socket(0).unwrap();
        Attempt::new(&outer).unwrap().fail();
        assert_ne!(events(&outer) & (libc::POLLERR | libc::POLLHUP), 0);
        assert_eq!(sys::errno(&sys::receive(&outer, &mut [0; 1], 0).unwrap_err()), libc::ECONNREFUSED);
        release(&outer).unwrap();
        assert_eq!(events(&outer), libc::POLLOUT | libc::POLLHUP);
        let attempt = Attempt::new(&outer).unwrap();
        let _peer = attempt.succeed().unwrap();
        assert_eq!(events(&outer), libc::POLLOUT);
    }

    #[test]
    fn two_connect_at_the_same_time() {
        let (one, other) = (connected(), connected());
        sys::send(&one.0, b"a", 0).unwrap();
        sys::send(&other.0, b"bc", 0).unwrap();
        assert_eq!(sys::receive(&other.1, &mut [0; 4], 0).unwrap(), 2);
        assert_eq!(sys::receive(&one.1, &mut [0; 4], 0).unwrap(), 1);
    }

    #[test]
    fn a_knock_wakes_and_is_the_connection() {
        let outer = socket(0).unwrap();
        let listener = listen(&outer).unwrap();
        assert_eq!(events(&outer), 0);
        assert!(open(&outer, 0, false).is_err());
        let (peer, name) = knock(&listener).unwrap();
        assert_eq!(events(&outer), libc::POLLIN);
        assert_eq!([queued_connections(&listener), sys::queued_connections(&outer)], [Some(1); 2]);
        let (accepted, from) = open(&outer, 0, false).unwrap();
        assert_eq!(from, name);
        assert_eq!([queued_connections(&listener), sys::queued_connections(&outer)], [Some(0); 2]);
        sys::send(&peer, b"x", 0).unwrap();
        assert_eq!(sys::receive(&accepted, &mut [0; 4], 0).unwrap(), 1);
        // Whoever stops listening may begin again.
        sys::shutdown(&outer, libc::SHUT_RD).unwrap();
        let _knock = knock(&listen(&outer).unwrap()).unwrap();
        assert_eq!(events(&outer), libc::POLLIN);
    }
}
