//! What a ring works on in the place of a socket that is connected on paths: one end of a pair of sockets of the kernel's,
//! under the program's own numbers. [`super::ferry`] has the other end, and the path.
//!
//! ```text
//!   program, ring ── descriptor ══ pair ══ our end ── ferry ── rings of the slot ── path
//! ```
//!
//! So what rings do, and calls, `poll`, `dup` and `fork` with them, is the kernel's. Names and options are the path's: the
//! descriptor's peer, our end, is bound to a name that says which socket it stands for ([`Said`]), so descriptors that
//! nobody has told us of (of a ring's, of a message's) are known as well.
//!
//! Left out, as the pair is of AF_UNIX: urgent data come in the stream; what a path ends with is ECONNRESET; a signal for
//! SO_KEEPALIVE's or a router's errors.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::mem::{offset_of, zeroed};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libc::{pollfd, sockaddr_un, socklen_t};
use scoutline_abi::Region;
use scoutline_abi::layout::SLOT_COUNT;

use super::crossing::Crossing;
use super::ferry;
use super::parcels::Parcels;
use crate::slot::{Socket, kept};
use crate::table;
use crate::{epoll, options, own, real};

/// What may lie between the program and the path in each direction, as far as the system lets us.
const BUFFER: c_int = 256 << 10;
/// Of our names, behind the octet 0 that makes one abstract.
const MAGIC: [u8; 2] = *b"\x9dS";
/// A name's octets: MAGIC, slot, generation, five of what SO_COOKIE says of the program's sockets, process, and which of its
/// names. What fits into a `sockaddr_in` says which socket it is: more of the name of who is accepted a program may have no
/// room for. Everybody can read it (`/proc/net/unix`), so nothing in it is secret.
const NAME_LEN: usize = 22;

const _: () = assert!(SLOT_COUNT <= 1 << 16);

/// This process has had some, or may have inherited one.
static ANY: AtomicBool = AtomicBool::new(false);

/// Puts one under each number that the socket has in this process. The ferry takes over a hold of it. False: there is none to
/// be had, and all is as before.
pub(super) fn put(fd: c_int, socket: Socket) -> bool {
    let mut pair = [-1; 2];
    let kind = if socket.is_stream() { libc::SOCK_STREAM } else { libc::SOCK_SEQPACKET };
    // SAFETY: fills the array.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) };
    if made < 0 {
        return false;
    }
    let [inner, outer] = pair;
    if !ferry::reserve() {
        real::close_uncancelled(inner);
        real::close_uncancelled(outer);
        return false;
    }
    bind_to_name(inner, socket);
    prepare(inner);
    take_place(outer, socket);
    let (inner, outer_is) = (End::new(inner), (real::inode(outer), fd));
    real::close_uncancelled(outer);
    ferry::add(if socket.is_stream() {
        Crossing::new(socket, inner, outer_is).into()
    } else {
        Parcels::new(socket, inner).into()
    });
    true
}

pub(super) fn unix_socket(flags: c_int) -> c_int {
    real::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags, 0)
}

/// The generations of sockets that are the kernel's in this process since, or have a stand-in there, plus one, by slot.
static LEFT: [AtomicU32; SLOT_COUNT] = [const { AtomicU32::new(0) }; SLOT_COUNT];

/// Its numbers are something else in this process: a thread that sleeps on it has to go there.
#[inline]
pub(crate) fn has_left(socket: Socket) -> bool {
    LEFT[socket.index as usize].load(Ordering::SeqCst) == socket.generation().wrapping_add(1)
}

/// Who sleeps on it is woken. Its numbers are something else by now.
pub(super) fn wake_sleepers(socket: Socket) {
    LEFT[socket.index as usize].store(socket.generation().wrapping_add(1), Ordering::SeqCst);
    socket.wake_all();
}

/// The numbers are this slot's socket again.
pub(super) fn came_back(slot: u32) {
    LEFT[slot as usize].store(0, Ordering::SeqCst);
}

/// Those are the parent's.
pub(super) fn in_child(region: &Region) {
    let used = region.slots_used().filter_map(|slot| LEFT.get(slot as usize));
    for left in used.filter(|left| left.load(Ordering::Relaxed) != 0) {
        left.store(0, Ordering::Relaxed);
    }
}

/// Our end of a stand-in: among our own descriptors, and closed with this.
pub(super) struct End(c_int);

impl End {
    pub(super) fn new(fd: c_int) -> End {
        End(own::protect(fd))
    }

    pub(super) fn fd(&self) -> c_int {
        self.0
    }

    /// A descriptor of ours has another number.
    pub(super) fn relocated(&mut self, from: c_int, to: c_int) {
        if self.0 == from {
            self.0 = to;
        }
    }

    /// Which of these events there are, and of those that are always told.
    pub(super) fn events(&self, events: i16) -> i16 {
        let mut fds = [pollfd { fd: self.0, events, revents: 0 }];
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        real::ppoll(fds.as_mut_ptr(), 1, &raw const zero, ptr::null());
        fds[0].revents
    }
}

impl Drop for End {
    fn drop(&mut self) {
        own::discard(self.0);
    }
}

/// Has `outer`, the program's end, under each number that the socket has in this process. Our ends are named by then.
pub(super) fn take_place(outer: c_int, socket: Socket) {
    prepare(outer);
    if socket.non_blocking() {
        let flags = real::fcntl(outer, libc::F_GETFL, 0);
        real::fcntl(outer, libc::F_SETFL, (flags | libc::O_NONBLOCK) as usize);
    }
    options::carry_waits(outer, socket);
    // An urgent byte has no other place there.
    options::keep(socket, kept::OOB_INLINE, true);
    take_numbers(outer, socket, |other| {
        if table::give_up(other, socket.index, true) {
            socket.release();
        }
    });
    // What it watched was the socket; the stand-in it would have to be told of.
    epoll::forget(socket);
    wake_sleepers(socket);
}

/// `outer` has each number that the socket has in this process; `taken` enters it.
pub(super) fn take_numbers(outer: c_int, socket: Socket, taken: impl Fn(c_int)) {
    ANY.store(true, Ordering::Release);
    for other in 0..=table::highest() {
        if table::socket(other) == Some(socket.index) && replace(other, outer) {
            taken(other);
        }
    }
}

/// `fd` is `by` from now on, and closed by `exec` as before.
pub(super) fn replace(fd: c_int, by: c_int) -> bool {
    let keeps = real::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC;
    let flags = if keeps == 0 { 0 } else { libc::O_CLOEXEC };
    real::dup3(by, fd, flags) == fd
}

/// Room in one direction.
pub(super) fn prepare(end: c_int) {
    set(end, libc::SO_SNDBUF, BUFFER);
}

fn set(fd: c_int, name: c_int, value: c_int) {
    let len = size_of::<c_int>() as socklen_t;
    real::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const value).cast(), len);
}

/// An abstract name of AF_UNIX for our end: which program's, which socket, and which of its stand-ins. `None`: there is none
/// to be had.
pub(super) fn bind_to_name(inner: c_int, socket: Socket) -> Option<(sockaddr_un, socklen_t)> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: no arguments.
    let pid = unsafe { libc::getpid() };
    let mut octets = [0u8; NAME_LEN];
    octets[1..3].copy_from_slice(&MAGIC);
    octets[3..5].copy_from_slice(&(socket.index as u16).to_ne_bytes());
    octets[5..9].copy_from_slice(&socket.generation().to_ne_bytes());
    octets[9..14].copy_from_slice(&program_of(socket)[..5]);
    octets[14..18].copy_from_slice(&pid.to_ne_bytes());
    octets[18..22].copy_from_slice(&count.to_ne_bytes());
    // SAFETY: zeros are a valid address.
    let mut name: sockaddr_un = unsafe { zeroed() };
    name.sun_family = libc::AF_UNIX as u16;
    for (to, from) in name.sun_path.iter_mut().zip(octets) {
        *to = c_char::from_ne_bytes([from]);
    }
    let len = (offset_of!(sockaddr_un, sun_path) + NAME_LEN) as socklen_t;
    let bound = real::bind(inner, (&raw const name).cast(), len) == 0;
    bound.then_some((name, len))
}

fn program_of(socket: Socket) -> [u8; 8] {
    socket.region.header().cookie_base.load(Ordering::Relaxed).to_ne_bytes()
}

/// Process and user who made the other end of an end of AF_UNIX.
fn peer_of(fd: c_int) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as socklen_t;
    let got = real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut len);
    (got == 0).then_some(peer)
}

/// This process has made the other end.
pub(super) fn is_from_here(fd: c_int) -> bool {
    // SAFETY: no arguments.
    peer_of(fd).is_some_and(|peer| peer.pid == unsafe { libc::getpid() })
}

/// So has who may do to this process what it likes: a name can be anybody's.
fn is_believed(fd: c_int) -> bool {
    let mut users = [0; 4]; // the first is root
    let [_, own, effective, saved] = &mut users;
    // SAFETY: fills the three.
    unsafe { libc::getresuid(own, effective, saved) };
    peer_of(fd).is_some_and(|peer| users.contains(&peer.uid))
}

/// The socket on paths for which a descriptor of the kernel's stands, connected or listening.
pub(crate) fn socket_of(fd: c_int) -> Option<Socket> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: zeros are a valid address.
    let mut name: sockaddr_un = unsafe { zeroed() };
    let mut len = size_of::<sockaddr_un>() as socklen_t;
    let errno = real::errno();
    let peer = real::getpeername(fd, (&raw mut name).cast(), &raw mut len);
    // Who listens has no peer, but a name itself.
    let listening = peer < 0
        && real::errno() == libc::ENOTCONN
        && real::getsockname(fd, (&raw mut name).cast(), &raw mut len) == 0;
    real::set_errno(errno);
    let octets = name.sun_path.map(|letter| letter.to_ne_bytes()[0]);
    let whole = (peer == 0 || listening)
        && len as usize == offset_of!(sockaddr_un, sun_path) + NAME_LEN
        && c_int::from(name.sun_family) == libc::AF_UNIX;
    if whole { named(octets.first_chunk()?).filter(|_| listening || is_believed(fd)) } else { None }
}

/// The descriptors that stand for sockets, by slot, wherever they came from.
pub(super) fn descriptors() -> BTreeMap<u32, c_int> {
    let names = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let fds = names.filter_map(|name| name.ok()?.file_name().to_str()?.parse().ok());
    let theirs = fds.filter(|&fd| !table::is_own(fd));
    theirs.filter_map(|fd| Some((socket_of(fd)?.index, fd))).collect()
}

/// The socket that the first octets of a name mean.
pub(super) fn named(octets: &[u8; 14]) -> Option<Socket> {
    let [0, a, b, s0, s1, g0, g1, g2, g3, key @ ..] = *octets else { return None };
    let socket = Socket::at(u16::from_ne_bytes([s0, s1]).into())?;
    let is_it = [a, b] == MAGIC
        && key == program_of(socket)[..5]
        && socket.generation() == u32::from_ne_bytes([g0, g1, g2, g3]);
    is_it.then_some(socket)
}

/// Of a stand-in's options, those that are the kernel's: what reading and writing goes by.
pub(crate) fn is_kernels(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET
        && matches!(
            name,
            libc::SO_ERROR | libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | libc::SO_RCVLOWAT | 66 | 67
        )
}
