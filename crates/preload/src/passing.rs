//! Sockets of ours that one process of a program passes to another (SCM_RIGHTS, unix(7)).
//!
//! Accepted sockets are duplicates of their listener's kernel socket, so a descriptor alone does not say which socket of
//! ours it is. What is passed instead is a *stand-in*, a fresh kernel socket that carries the slot's number in an
//! option that the kernel keeps for it and nobody needs, the pacing rate:
//!
//! ```text
//! bits 48..  a mark    bits 16..48  the region's inode    bits 0..16  the slot
//! ```
//! The sender counts the socket as held (`references`) and as under way (`in_flight`); the receiver takes that hold
//! over. So a socket lives that is closed at one end before it comes out at the other.
//!
//! Processes of one program are those that share a region: forked ones, and those that an `exec` with sockets made.
//! To any other, the kernel has nothing to give: `sendmsg` fails with EOPNOTSUPP where the other end (SO_PEERCRED) is
//! known to be one, with a line on standard error; where it turns out later, its socket was never connected.
//!
//! Left out: `sendmmsg` and `recvmmsg` on Unix sockets. A message that nobody ever receives keeps its socket open until
//! the program ends.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{cmsghdr, msghdr};
use scoutline_abi::layout::PROCESS_COUNT;

use crate::attach;
use crate::real::{self, err};
use crate::slot::Socket;
use crate::table::{self, Entry};

const MARK: u64 = 0x5c07;
/// Stand-ins in one message: Linux's own limit of descriptors (SCM_MAX_FD).
const MOST: usize = 253;

/// The region as stand-ins name it.
fn region_number() -> u32 {
    static NUMBER: OnceLock<u32> = OnceLock::new();
    *NUMBER.get_or_init(|| {
        // SAFETY: zeros are a valid structure, and the call fills it.
        unsafe {
            let mut facts: libc::stat = std::mem::zeroed();
            if libc::fstat(attach::memory(), &raw mut facts) == 0 { facts.st_ino as u32 } else { 0 }
        }
    })
}

/// Calls `visit` with each descriptor in the control data, by reference.
fn each_descriptor(message: &msghdr, mut visit: impl FnMut(&mut c_int)) {
    // SAFETY: the program, or the kernel, vouches for the control data; CMSG_* stay within it.
    unsafe {
        let mut head: *mut cmsghdr = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(head);
                // A length beyond the data is the kernel's to refuse.
                let room =
                    (message.msg_control as usize + message.msg_controllen).saturating_sub(data as usize);
                let len = ((*head).cmsg_len as usize).saturating_sub(data as usize - head as usize);
                for at in 0..len.min(room) / size_of::<c_int>() {
                    let place: *mut c_int = data.add(at * size_of::<c_int>()).cast();
                    let mut fd = place.read_unaligned();
                    visit(&mut fd);
                    place.write_unaligned(fd);
                }
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
}

/// `sendmsg` on a socket of the kernel's.
pub(crate) fn send(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    // SAFETY: the program vouches for its message, or passes null.
    let given = unsafe { message.as_ref() };
    let Some(given) = given.filter(|given| given.msg_controllen > 0 && attach::region().is_some()) else {
        return real::ours(real::sendmsg(fd, message, flags));
    };
    let (mut ours, mut internal) = (false, false);
    each_descriptor(given, |fd| match table::look(*fd) {
        Entry::Socket(_) => ours = true,
        Entry::Internal => internal = true,
        _ => {}
    });
    if internal {
        return err(libc::EBADF);
    }
    if !ours {
        return real::ours(real::sendmsg(fd, message, flags));
    }
    if !is_of_program(fd) {
        static SAID: AtomicBool = AtomicBool::new(false);
        say_once(&SAID, b"a socket on paths cannot be passed to another program (EOPNOTSUPP)");
        return err(libc::EOPNOTSUPP);
    }
    send_stand_ins(fd, given, flags)
}

fn say_once(said: &AtomicBool, what: &[u8]) {
    if !said.swap(true, Ordering::Relaxed) {
        real::say(&[what]);
    }
}

/// Sends stand-ins in the place of our sockets.
fn send_stand_ins(fd: c_int, given: &msghdr, flags: c_int) -> isize {
    // A copy: the program's message stays as it is. In words, as control data is aligned to them.
    let mut control = vec![0usize; given.msg_controllen.div_ceil(size_of::<usize>())];
    // SAFETY: the program vouches for so many bytes, and the copy has as many at least.
    unsafe {
        let from = given.msg_control.cast::<u8>();
        std::ptr::copy_nonoverlapping(from, control.as_mut_ptr().cast(), given.msg_controllen);
    }
    let mut message = *given;
    message.msg_control = control.as_mut_ptr().cast::<c_void>();
    let mut sent: Vec<(c_int, Socket)> = Vec::new();
    let mut failed = 0;
    each_descriptor(&message, |fd| {
        let Some(socket) = table::socket(*fd).and_then(Socket::at) else { return };
        match stand_in(socket) {
            Ok(made) if sent.len() < MOST => {
                sent.push((made, socket));
                *fd = made;
            }
            Ok(made) => {
                real::close(made);
                failed = libc::EINVAL;
            }
            Err(errno) => failed = errno,
        }
    });
    for (_, socket) in &sent {
        socket.put_in_flight();
    }
    let result =
        if failed == 0 { real::ours(real::sendmsg(fd, &raw const message, flags)) } else { err(failed) };
    for (made, socket) in sent {
        if result < 0 {
            socket.take_from_flight(false);
            socket.release();
        }
        real::close(made);
    }
    result
}

/// A kernel socket of the same kind that says which of ours it stands for.
fn stand_in(socket: Socket) -> Result<c_int, c_int> {
    let family = if socket.is_inet6() { libc::AF_INET6 } else { libc::AF_INET };
    let kind = if socket.is_stream() { libc::SOCK_STREAM } else { libc::SOCK_DGRAM };
    let made = real::socket(family, kind | libc::SOCK_CLOEXEC, 0);
    if made < 0 {
        return Err(real::errno());
    }
    let word = MARK << 48 | u64::from(region_number()) << 16 | u64::from(socket.index);
    let len = size_of::<u64>() as libc::socklen_t;
    let value = (&raw const word).cast();
    if real::setsockopt(made, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, value, len) < 0 {
        let errno = real::errno();
        real::close(made);
        return Err(errno);
    }
    Ok(made)
}

/// False when the other end of a Unix socket is known to be another program's.
fn is_of_program(fd: c_int) -> bool {
    let Some(region) = attach::region() else { return false };
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let value = (&raw mut peer).cast();
    if real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, value, &raw mut len) < 0 || peer.pid <= 0 {
        return true; // not connected: nobody knows
    }
    (0..PROCESS_COUNT as u32).filter_map(|number| region.process(number)).any(|record| {
        record.alive.load(Ordering::Acquire) != 0
            && record.pid.load(Ordering::Relaxed) == peer.pid.cast_unsigned()
    })
}

/// `recvmsg` on a socket of the kernel's.
pub(crate) fn receive(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    let got = real::ours(real::recvmsg(fd, message, flags));
    // SAFETY: as in `send`.
    let taken = unsafe { message.as_ref() };
    if let Some(taken) = taken.filter(|taken| got >= 0 && taken.msg_controllen > 0)
        && attach::region().is_some()
    {
        each_descriptor(taken, |fd| came(*fd, flags & libc::MSG_PEEK != 0));
    }
    got
}

/// A descriptor has come: it is entered if it stands for a socket of ours.
fn came(fd: c_int, peeked: bool) {
    let mut word = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    let value = (&raw mut word).cast();
    let got = real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, value, &raw mut len);
    if got < 0 || word >> 48 != MARK || word == u64::MAX {
        return;
    }
    let socket = Socket::at(u32::from(word as u16)).filter(|socket| {
        (word >> 16) as u32 == region_number() && socket.slot.in_flight.load(Ordering::Acquire) > 0
    });
    if let Some(socket) = socket {
        socket.take_from_flight(peeked);
        table::put(fd, Entry::Socket(socket.index));
    } else {
        static SAID: AtomicBool = AtomicBool::new(false);
        say_once(&SAID, b"a socket on paths came from another program: it is not connected here");
    }
}
