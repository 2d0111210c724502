//! Sockets of ours that one process passes to another (SCM_RIGHTS, unix(7)).
//!
//! Accepted sockets are duplicates of their listener's kernel socket, so a descriptor alone does not say which socket of
//! ours it is. What is passed instead is a *stand-in*, a fresh kernel socket that carries the program's key and the
//! slot's number ([`scoutline_abi::stand_in`]).
//!
//! The sender counts the socket as held (`references`) and as under way (`in_flight`); the receiver takes that hold
//! over. So a socket lives that is closed at one end before it comes out at the other.
//!
//! Processes of one program are those that share a region: forked ones, and those that an `exec` with sockets made.
//! They go on sharing the socket. A process of another program on paths has the engine *move* it into its own region,
//! when it receives it: then the sender's descriptor is one where nothing comes any more and that takes nothing, as if
//! it had been shut down. Of one without a peer each further program has its own at the same port. To a process that is
//! not on paths the kernel has nothing to give: `sendmsg` fails with EOPNOTSUPP where the other end (SO_PEERCRED) is
//! known to be one, with a line on standard error; where it turns out later, its socket was never connected.
//!
//! Left out: MSG_PEEK of what comes from another program. A message that
//! nobody ever receives keeps its socket open until the program ends, and ends with it.

use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, size_of};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{cmsghdr, mmsghdr, msghdr};
use scoutline_abi::layout::{PROCESS_COUNT, call_op};
use scoutline_abi::stand_in;

use crate::real::{self, err};
use crate::slot::Socket;
use crate::table::{self, Entry};
use crate::{attach, call, cancel, engines, family, ip_options, memory};

/// Stand-ins in one message: Linux's own limit of descriptors (SCM_MAX_FD).
const MOST: usize = 253;
/// What a Unix stream takes as one piece, if the smallest of buffers has room for any (`unix_stream_sendmsg`).
const WHOLE: usize = 1024;
/// How long a socket is tried to be taken whose ring a thread of its old program is copying to or from.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Between two tries, in microseconds.
const PAUSE_US: u64 = 50;

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
    // SAFETY: the program vouches for its message, where one can be.
    let given = if memory::is_nowhere(message) { None } else { unsafe { message.as_ref() } };
    let Some(given) = given.filter(|given| given.msg_controllen > 0 && attach::region().is_some()) else {
        return real::ours(real::sendmsg(fd, message, flags));
    };
    let (mut ours, mut internal) = (false, false);
    each_descriptor(given, |fd| match family::look(*fd) {
        Entry::Socket(_) => ours = true,
        Entry::Internal(_) => internal = true,
        _ => {}
    });
    if internal {
        return err(libc::EBADF);
    }
    if !ours {
        return real::ours(real::sendmsg(fd, message, flags));
    }
    if !is_on_paths(fd) {
        static SAID: AtomicBool = AtomicBool::new(false);
        say_once(&SAID, b"a socket on paths cannot be passed to a program that is not (EOPNOTSUPP)");
        return err(libc::EOPNOTSUPP);
    }
    send_stand_ins(fd, given, flags)
}

pub(crate) fn say_once(said: &AtomicBool, what: &[u8]) {
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
    let mut sent: Vec<StandIn> = Vec::new();
    let mut failed = 0;
    each_descriptor(&message, |fd| {
        let Some(socket) = table::socket(*fd).and_then(Socket::at) else { return };
        match make_stand_in(*fd, socket) {
            Ok(made) if sent.len() < MOST => {
                sent.push((made, socket));
                *fd = made;
            }
            Ok(made) => {
                real::close_uncancelled(made);
                failed = libc::EINVAL;
            }
            Err(errno) => failed = errno,
        }
    });
    for (_, socket) in &sent {
        socket.put_in_flight();
    }
    let is_whole = len_of(&message) <= WHOLE;
    let mut sending =
        ManuallyDrop::new(Sending { stand_ins: sent, is_whole, generation: attach::generation() });
    let place = (&raw mut sending).cast();
    let send = || real::ours(real::sendmsg(fd, &raw const message, flags));
    let result = if failed == 0 { cancel::cancellable(cancelled, place, send) } else { err(failed) };
    ManuallyDrop::into_inner(sending).finish(result >= 0);
    result
}

/// A kernel socket that is sent, and what it stands for.
type StandIn = (c_int, Socket);

/// A message with these in it.
struct Sending {
    stand_ins: Vec<StandIn>,
    /// The kernel takes all of it or nothing.
    is_whole: bool,
    /// In whose books.
    generation: u32,
}

impl Sending {
    fn finish(self, was_sent: bool) {
        for (made, socket) in self.stand_ins {
            if !was_sent {
                socket.take_from_flight(false);
                socket.release();
            }
            real::close_uncancelled(made);
        }
    }
}

/// A thread is cancelled while it waits for room, or a handler jumps out of that. Of a stream's message the first part may have
/// gone, with all that stands beside it: that counts as sent.
extern "C" fn cancelled(sending: *mut c_void) {
    // SAFETY: what `send_stand_ins` gave, in a frame that still stands and does not go on.
    let sending = unsafe { sending.cast::<Sending>().read() };
    let was_sent = !sending.is_whole || sending.generation != attach::generation();
    sending.finish(was_sent);
}

/// Bytes of a message that the kernel may take.
fn len_of(message: &msghdr) -> usize {
    if memory::is_nowhere(message.msg_iov) || message.msg_iovlen > libc::UIO_MAXIOV as usize {
        return 0;
    }
    // SAFETY: the program vouches for its vector.
    let parts = unsafe { std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen) };
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.iov_len))
}

/// A kernel socket of the same kind that says which of ours it stands for.
fn make_stand_in(fd: c_int, socket: Socket) -> Result<c_int, c_int> {
    let family = if socket.is_inet6() { libc::AF_INET6 } else { libc::AF_INET };
    let kind = if socket.is_stream() { libc::SOCK_STREAM } else { libc::SOCK_DGRAM };
    let made = real::socket(family, kind | libc::SOCK_CLOEXEC, 0);
    if made < 0 {
        return Err(real::errno());
    }
    ip_options::carry_along(fd, made, socket);
    stand_for(made, Some(socket)).map(|()| made).inspect_err(|_| {
        real::close_uncancelled(made);
    })
}

/// From now on a kernel socket says which of ours it stands for, or none.
pub(crate) fn stand_for(fd: c_int, socket: Option<Socket>) -> Result<(), c_int> {
    let word = socket.map_or(u64::MAX, |socket| {
        stand_in::word(socket.region.header().stand_in_key.load(Ordering::Acquire), socket.index)
    });
    let len = size_of::<u64>() as libc::socklen_t;
    let value = (&raw const word).cast();
    if real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, value, len) < 0 {
        return Err(real::errno());
    }
    Ok(())
}

/// What a kernel socket says: its word, and the slot of this program's that it stands for.
fn said(fd: c_int) -> Option<(u64, Option<u32>)> {
    let mut word = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    let value = (&raw mut word).cast();
    let got = real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, value, &raw mut len);
    let (key, slot) = stand_in::read(word).filter(|_| got >= 0)?;
    let own = attach::region().map(|region| region.header().stand_in_key.load(Ordering::Acquire));
    Some((word, (own == Some(key)).then_some(slot)))
}

/// The slot of this program's that a kernel socket stands for.
pub(crate) fn stood_for(fd: c_int) -> Option<u32> {
    said(fd)?.1
}

/// False when the other end of a Unix socket is known to be a process that is not on paths.
fn is_on_paths(fd: c_int) -> bool {
    let Some(region) = attach::region() else { return false };
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let value = (&raw mut peer).cast();
    if real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, value, &raw mut len) < 0 || peer.pid <= 0 {
        return true; // not connected: nobody knows
    }
    let pid = peer.pid.cast_unsigned();
    let is_ours = (0..PROCESS_COUNT as u32)
        .filter_map(|number| region.process(number))
        .any(|record| record.alive.load(Ordering::Acquire) != 0 && record.pid.load(Ordering::Relaxed) == pid);
    is_ours || call::ask_engine(0, call_op::IS_ON_PATHS, [pid.into(), 0, 0, 0]) == 1
}

/// `sendmmsg` on a socket of the kernel's; `None`: no message has one of ours beside it.
pub(crate) fn send_many(fd: c_int, messages: &mut [mmsghdr], flags: c_int) -> Option<isize> {
    attach::region()?;
    let mut ours = false;
    for message in messages.iter().filter(|message| message.msg_hdr.msg_controllen > 0) {
        each_descriptor(&message.msg_hdr, |fd| {
            ours |= matches!(family::look(*fd), Entry::Socket(_) | Entry::Internal(_));
        });
    }
    if !ours {
        return None;
    }
    for (done, message) in messages.iter_mut().enumerate() {
        let result = send(fd, &raw const message.msg_hdr, flags);
        if result < 0 {
            return Some(if done == 0 { result } else { done as isize });
        }
        message.msg_len = result as u32;
    }
    Some(messages.len() as isize)
}

/// `recvmmsg` on a socket of the kernel's gave these.
pub(crate) fn received_many(messages: &[mmsghdr], flags: c_int) {
    if attach::region().is_some() {
        for message in messages.iter().filter(|message| message.msg_hdr.msg_controllen > 0) {
            each_descriptor(&message.msg_hdr, |fd| came(*fd, flags & libc::MSG_PEEK != 0));
        }
    }
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
    let Some((word, own)) = said(fd) else { return };
    let socket = if let Some(slot) = own {
        Socket::at(slot).filter(|socket| socket.slot.in_flight.load(Ordering::Acquire) > 0).inspect(
            |socket| {
                socket.take_from_flight(peeked);
            },
        )
    } else if peeked {
        return;
    } else {
        take(word)
    };
    if let Some(socket) = socket {
        table::put(fd, Entry::Socket(socket.index));
    } else {
        static SAID: AtomicBool = AtomicBool::new(false);
        say_once(&SAID, b"a socket came whose program is gone, or on other paths: it is not connected here");
    }
}

/// Has the engine move a socket of another program here. One that came before is here already, and once more under way.
fn take(word: u64) -> Option<Socket> {
    let begun = real::now_ns();
    let engine = engines::of_slot(attach::region()?, stand_in::read(word)?.1);
    let taken = loop {
        let result = call::ask_engine(engine, call_op::TAKE, [word, 0, 0, 0]);
        // A thread is within its rings, and may have been interrupted there.
        if result != -libc::EAGAIN || real::now_ns() - begun > PATIENCE_NS {
            break u32::try_from(result).ok()?;
        }
        real::nap(PAUSE_US);
    };
    let socket = Socket::at(taken & !stand_in::CAME_BEFORE)?;
    if taken & stand_in::CAME_BEFORE == 0 {
        socket.hold(true);
    } else {
        socket.take_from_flight(false);
    }
    Some(socket)
}
