//! What a ring works on in the place of a socket that listens on paths and cannot move: a listening socket of AF_UNIX, under
//! the program's own numbers, to which the ferry connects an end for each connection that the path has. What is accepted is
//! a stand-in ([`super::standin`]).
//!
//! ```text
//!   path's queue ── ferry: takes, connects ──► queue of the stand-in, at most BACKLOG + 1 ── ACCEPT, accept ──► program
//! ```
//!
//! The numbers hold the socket ([`Entry::StandIn`]), so it goes with the last of them. The kernel writes a name of AF_UNIX
//! where an ACCEPT wants the peer's; after each `io_uring_enter` such names, which say whose they are, are made the peer's
//! ([`translate`]). Who looks for completions without a call finds AF_UNIX there.
//!
//! The stand-in's name, too, is known to whoever is in the network namespace. A call gives the program nobody but who comes
//! from the ferry; a ring's ACCEPT is the kernel's, and gives it others, whose names are of AF_UNIX.
//!
//! Left out: the order of importance among the few connections in the stand-in's queue.

use std::ffi::c_int;
use std::mem::{self, offset_of};
use std::ptr::{self, with_exposed_provenance as at};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_un, socklen_t};
use scoutline_abi::layout::{slot_request as ask, slot_state as is};

use super::crossing::Crossing;
use super::queue::Said;
use super::standin::{End, unix_socket};
use super::{ALONE, ferry, standin, theirs};
use crate::lock::{self, Lock};
use crate::real::err;
use crate::slot::Socket;
use crate::table::{self, Entry};
use crate::{accept as accepting, address, attach, life, memory, real};

/// Connections that wait at a stand-in, less one.
const BACKLOG: c_int = 16;
/// ACCEPTs that are remembered for their peers' names.
const MOST_NOTED: usize = 256;

/// A socket that listens on paths, and the name of its stand-in.
pub(super) struct Listener {
    socket: Socket,
    generation: u32,
    name: (sockaddr_un, socklen_t),
    /// One that has been taken, and for which the stand-in had no room.
    waiting: Option<Crossing>,
    /// There was no descriptor for one.
    lacks_descriptor: bool,
}

/// Puts one under each number that the socket has in this process. False: it does not listen, or there is none to be had.
pub(super) fn put(socket: Socket) -> bool {
    let listens = socket.is_stream() && socket.state() & is::LISTENING != 0;
    if !listens || !ferry::reserve() {
        return false;
    }
    let flags = if socket.non_blocking() { libc::SOCK_NONBLOCK } else { 0 };
    let outer = unix_socket(flags);
    let name = standin::bind_to_name(outer, socket).filter(|_| real::listen(outer, BACKLOG) == 0);
    let Some(name) = name else {
        real::close_uncancelled(outer);
        return false;
    };
    crate::options::carry_waits(outer, socket);
    standin::take_numbers(outer, socket, |other| {
        table::stand_in(other, socket.index);
    });
    real::close_uncancelled(outer);
    crate::epoll::forget(socket);
    standin::wake_sleepers(socket);
    let generation = socket.generation();
    ferry::add(Listener { socket, generation, name, waiting: None, lacks_descriptor: false }.into());
    true
}

impl Listener {
    pub(super) fn socket(&self) -> Socket {
        self.socket
    }

    /// A descriptor of ours has another number.
    pub(super) fn relocated(&mut self, from: c_int, to: c_int) {
        if let Some(crossing) = &mut self.waiting {
            crossing.inner.relocated(from, to);
        }
    }

    /// This process has it.
    pub(super) fn is_open(&self) -> bool {
        self.socket.generation() == self.generation && self.socket.is_held_here()
    }

    /// It has what it cannot give to the program yet, and of which nobody tells when it can.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.is_some() || self.lacks_descriptor
    }

    /// Connects what waits; those that are connected cross from now on. False: it listens no more.
    pub(super) fn advance(&mut self, fresh: &mut Vec<Crossing>) -> bool {
        loop {
            if attach::dead() {
                self.shut();
            }
            if !self.is_open() || attach::dead() {
                return false;
            }
            let Some(crossing) = self.waiting.take().or_else(|| self.take()) else { return true };
            match crossing.connect(&self.name.0, self.name.1) {
                Ok(()) => fresh.push(crossing),
                Err(libc::EAGAIN) => {
                    self.waiting = Some(crossing);
                    return true;
                }
                Err(_) => {
                    self.waiting = Some(crossing);
                    return false;
                }
            }
        }
    }

    /// The next connection of the path's, with our end of its pair to be.
    fn take(&mut self) -> Option<Crossing> {
        let shut = self.socket.requests() & ask::SHUTDOWN_READ != 0;
        self.lacks_descriptor = false;
        if self.socket.state() & is::LISTENING == 0 || shut || self.socket.received() == 0 {
            return None;
        }
        // Not while the process is copied: the child would have our end, too.
        let alone = ALONE.enter();
        let inner = unix_socket(libc::SOCK_NONBLOCK);
        if inner < 0 {
            self.lacks_descriptor = true;
            return None; // the connection waits, as on Linux
        }
        let inner = End::new(inner);
        drop(alone);
        let Ok(Some(accepted)) = accepting::take(self.socket, 0) else {
            return None;
        };
        crate::options::keep(accepted, crate::slot::kept::OOB_INLINE, true);
        standin::bind_to_name(inner.fd(), accepted);
        standin::prepare(inner.fd());
        Some(Crossing::new(accepted, inner, (0, -1)))
    }

    /// The daemon is gone: who waits at the stand-in hears that nobody comes any more.
    fn shut(&self) {
        for fd in 0..=table::highest() {
            if table::look(fd) == Entry::StandIn(self.socket.index) {
                real::shutdown(fd, libc::SHUT_RDWR);
            }
        }
    }

    /// Whom nobody has accepted is reset.
    fn refuse(&mut self) {
        if let Some(crossing) = self.waiting.take() {
            crossing.refuse();
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.refuse();
    }
}

/// Where one stood is the socket again, with one of the kernel's behind it: who names it makes another one.
pub(super) fn step_back() {
    for fd in 0..=table::highest() {
        let Entry::StandIn(slot) = table::look(fd) else { continue };
        let family = match Socket::at(slot) {
            Some(socket) if socket.is_inet6() => libc::AF_INET6,
            _ => libc::AF_INET,
        };
        let keeps = real::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC == 0;
        let plain = real::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if plain >= 0 && real::dup3(plain, fd, if keeps { 0 } else { libc::O_CLOEXEC }) == fd {
            standin::came_back(slot);
            table::put(fd, Entry::Socket(slot));
        }
        real::close_uncancelled(plain);
    }
}

/// `accept` by a call on a stand-in.
pub(crate) fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> isize {
    loop {
        let new = real::accept4(fd, ptr::null_mut(), ptr::null_mut(), flags);
        if new < 0 {
            return err(real::errno());
        }
        life::closing(new); // whatever had the number was closed unseen
        let Some(socket) = standin::socket_of(new) else {
            // From nobody of ours, or of a path that has ended before it was accepted.
            real::close_uncancelled(new);
            continue;
        };
        if !address.is_null() {
            let named = address::write(life::remote(socket), socket.is_inet6(), address, len);
            if named < 0 {
                real::close_uncancelled(new);
                return named;
            }
        }
        return new as isize;
    }
}

/// Where an ACCEPT has the peer's name written.
#[derive(Clone, Copy)]
struct Noted {
    address: usize,
    len: usize,
    room: socklen_t,
}

static NOTED: Lock<Vec<Noted>> = Lock::new(Vec::new());
/// As many, to be seen without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// An entry accepts: where it has the peer's name written is remembered.
pub(super) fn note(said: Said) {
    let (address, len) = (said.address as usize, said.offset as usize);
    let is_ours = matches!(table::look(said.fd), Entry::StandIn(_));
    if !is_ours || address == 0 || memory::is_nowhere(at::<socklen_t>(len)) {
        return;
    }
    let mut room: socklen_t = 0;
    if !theirs::copy(&mut room, len, false) || (room as usize) < size_of::<sockaddr_in>() {
        return;
    }
    noted(|noted| {
        noted.retain(|one| one.address != address);
        if noted.len() >= MOST_NOTED {
            noted.remove(0);
        }
        noted.push(Noted { address, len, room });
    });
}

/// Names of ours that have been written by now become the peers'.
pub(super) fn translate() {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let errno = real::errno();
    // Another thread that has it may have looked at ours too early.
    noted(|noted| noted.retain(|one| !one.translate()));
    real::set_errno(errno);
}

fn noted(work: impl FnOnce(&mut Vec<Noted>)) {
    lock::undisturbed(|| {
        let mut noted = NOTED.lock();
        work(&mut noted);
        COUNT.store(noted.len(), Ordering::Release);
    });
}

/// What the parent's threads wait for is not this process's, nor does anybody here serve what stands there: who names it
/// makes another one.
pub(super) fn in_child() {
    for fd in 0..=table::highest() {
        if let Entry::StandIn(slot) = table::look(fd) {
            table::put(fd, Entry::Socket(slot));
        }
    }
    NOTED.give_back();
    mem::forget(mem::take(&mut *NOTED.lock()));
    COUNT.store(0, Ordering::Relaxed);
}

impl Noted {
    /// True: it is done with. The program may have given the memory back since (who cancels an entry): what is not ours
    /// stays as it is.
    fn translate(self) -> bool {
        let mut octets = [0u8; size_of::<sockaddr_in>()];
        if !theirs::copy(&mut octets, self.address, false) {
            return true;
        }
        let family = octets.first_chunk().map(|two| u16::from_ne_bytes(*two));
        if family != Some(libc::AF_UNIX as u16) {
            return false;
        }
        let Some(socket) = octets[offset_of!(sockaddr_un, sun_path)..].first_chunk().and_then(standin::named)
        else {
            return false;
        };
        // SAFETY: zeros are a valid address.
        let mut name: sockaddr_in6 = unsafe { mem::zeroed() };
        let mut len = size_of::<sockaddr_in6>() as socklen_t;
        address::write(life::remote(socket), socket.is_inet6(), (&raw mut name).cast(), &raw mut len);
        let bytes = len.min(self.room) as usize;
        // SAFETY: so many bytes of a structure of numbers.
        let given = unsafe { std::slice::from_raw_parts_mut((&raw mut name).cast::<u8>(), bytes) };
        theirs::copy_bytes(given, self.address, true);
        theirs::copy(&mut len, self.len, true);
        true
    }
}
