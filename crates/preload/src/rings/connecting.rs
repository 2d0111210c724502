//! IORING_OP_CONNECT to where paths lead: the path connects, and the entry waits for it at a stand-in.
//!
//! ```text
//!   program's end ── CONNECT ──► listening socket of ours, whose queue is full: it waits, in a thread of the kernel's
//!                                  path connected    the queue is emptied, the entry succeeds, and that is the pair
//!                                  path failed       the socket closes: ECONNREFUSED
//! ```
//!
//! So the entry ends when the connection stands, or does not, and can be cancelled or have a time-out. One that has failed
//! leaves a socket that may connect again; by then the kernel may not have begun with the entry, so it names the stand-in by
//! a descriptor of ours. Who cancels it leaves an attempt that ends by itself. Whoever is in the network namespace finds
//! the name (`/proc/net/unix`) and may connect to it: it is this process that is waited for, and nobody else.

use std::ffi::c_int;
use std::ptr::with_exposed_provenance as at;

use libc::{sockaddr, sockaddr_storage, sockaddr_un, socklen_t};
use scoutline_abi::layout::slot_state as is;

use super::crossing::Crossing;
use super::ferry;
use super::queue::{Answer, Said};
use super::standin::{End, unix_socket};
use super::{ALONE, moving, standin};
use crate::slot::Socket;
use crate::table::{self, Entry};
use crate::{attach, cancel, life, options, real};

/// How long the program's end may take to come to a connection that stands.
const PATIENCE_NS: u64 = 10_000_000_000;

/// A connection that is on its way, and a program's end that waits for it.
pub(super) struct Attempt {
    socket: Socket,
    /// Where the program's end connects to; it reads this.
    listening: End,
    name: Box<sockaddr_un>,
    name_len: socklen_t,
    /// Has the one place there.
    filler: End,
    /// The program's end, by which the entry names it.
    named: End,
    /// The same, by its file, and a number that it has in the program.
    outer: (u64, c_int),
    /// It has succeeded, and the program's end is to come until then.
    met_until: Option<u64>,
}

/// What an entry whose attempt has failed may yet look at: it runs in a thread of the kernel's.
pub(super) struct Late {
    until: u64,
    named: End,
    _name: Box<sockaddr_un>,
}

impl Late {
    /// It has looked by now.
    pub(super) fn is_over(&self, now: u64) -> bool {
        now >= self.until
    }

    /// A descriptor of ours has another number.
    pub(super) fn relocated(&mut self, from: c_int, to: c_int) {
        self.named.relocated(from, to);
    }
}

/// What came of an attempt.
pub(super) enum Step {
    Waits,
    /// It has succeeded: the program's end comes.
    Met,
    /// Somebody else came.
    Again,
    /// And has come.
    Stands(Crossing),
    /// Or nobody came.
    Failed,
}

/// An entry connects `fd`.
pub(super) fn connect(said: Said) -> Option<Answer> {
    let (address, len) = (at::<sockaddr>(said.address as usize), said.offset);
    if len > size_of::<sockaddr_storage>() as u64
        || !life::connects_by_paths(said.fd, address, len as socklen_t)
    {
        moving::named(said.fd);
        return None;
    }
    Some(cancel::uncancelled(|| begin(said.fd, address, len as socklen_t)))
}

fn begin(fd: c_int, address: *const sockaddr, len: socklen_t) -> Answer {
    let _alone = ALONE.enter();
    if !ferry::reserve() {
        return Answer::Result(-libc::ENOMEM);
    }
    let non_blocking = set_non_blocking(fd, true);
    let result = life::connect(fd, address, len) as c_int;
    set_non_blocking(fd, non_blocking);
    if result != 0 && result != -libc::EINPROGRESS {
        return Answer::Result(result);
    }
    let socket = Socket::of(fd);
    let Some(socket) = socket.filter(|socket| socket.hold_beside()) else {
        return Answer::Result(result);
    };
    if result == 0 {
        if standin::put(fd, socket) {
            moving::stood_in();
        } else {
            socket.release();
        }
        return Answer::Result(0);
    }
    let Some(attempt) = Attempt::new(fd, socket) else {
        socket.release();
        return Answer::Result(-libc::ENOMEM);
    };
    moving::stood_in();
    let to = Answer::To(attempt.named.fd(), (&raw const *attempt.name).cast(), attempt.name_len.into());
    ferry::add(attempt.into());
    to
}

/// Of a socket of ours, or the kernel's; what it was before.
fn set_non_blocking(fd: c_int, on: bool) -> bool {
    if let Some(socket) = Socket::of(fd) {
        let before = socket.non_blocking();
        socket.set_non_blocking(on);
        return before;
    }
    let flags = real::fcntl(fd, libc::F_GETFL, 0);
    let to = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    real::fcntl(fd, libc::F_SETFL, to as usize);
    flags & libc::O_NONBLOCK != 0
}

impl Attempt {
    /// Takes over a hold of the socket. `None`: there are no descriptors.
    fn new(fd: c_int, socket: Socket) -> Option<Attempt> {
        let (outer, listening, filler) = (unix_socket(0), unix_socket(libc::SOCK_NONBLOCK), unix_socket(0));
        let name = standin::bind_to_name(listening, socket).filter(|_| outer >= 0 && filler >= 0);
        let ready = name.filter(|(name, len)| {
            real::listen(listening, 0) == 0
                && real::connect(filler, std::ptr::from_ref(name).cast(), *len) == 0
        });
        let Some((name, len)) = ready else {
            for end in [outer, listening, filler] {
                real::close_uncancelled(end);
            }
            return None;
        };
        standin::take_place(outer, socket);
        let file = real::inode(outer);
        Some(Attempt {
            socket,
            listening: End::new(listening),
            name: Box::new(name),
            name_len: len,
            filler: End::new(filler),
            named: End::new(outer),
            outer: (file, fd),
            met_until: None,
        })
    }

    pub(super) fn socket(&self) -> Socket {
        self.socket
    }

    pub(super) fn listening(&self) -> c_int {
        self.listening.fd()
    }

    /// A descriptor of ours has another number.
    pub(super) fn relocated(&mut self, from: c_int, to: c_int) {
        self.listening.relocated(from, to);
        self.filler.relocated(from, to);
        self.named.relocated(from, to);
    }

    /// It is over; what stays for a while.
    pub(super) fn into_late(self, now: u64) -> Late {
        Late { until: now + PATIENCE_NS, named: self.named, _name: self.name }
    }

    pub(super) fn has_met(&self) -> bool {
        self.met_until.is_some()
    }

    pub(super) fn advance(&mut self, now: u64) -> Step {
        let Some(until) = self.met_until else {
            if self.socket.state() & (is::CONNECTED | is::FAILED) == 0 && !attach::dead() {
                return Step::Waits;
            }
            if life::await_connection(self.socket) < 0 {
                self.give_back();
                return Step::Failed;
            }
            self.met_until = Some(now + PATIENCE_NS);
            // The one place is free.
            real::close_uncancelled(self.accept());
            return Step::Met;
        };
        // Not while the process is copied: the child would have our end, too.
        let alone = ALONE.enter();
        let inner = self.accept();
        if inner < 0 {
            return if now < until { Step::Waits } else { Step::Failed };
        }
        if !standin::is_from_here(inner) {
            real::close_uncancelled(inner);
            return if now < until { Step::Again } else { Step::Failed };
        }
        let inner = End::new(inner);
        drop(alone);
        standin::prepare(inner.fd());
        Step::Stands(Crossing::new(self.socket, inner, self.outer))
    }

    /// The program has a socket as it was before the attempt, which may connect again. Before its entry ends.
    fn give_back(&self) {
        let _alone = ALONE.enter();
        let (file, _) = self.outer;
        let family = if self.socket.is_inet6() { libc::AF_INET6 } else { libc::AF_INET };
        let fresh = real::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if fresh < 0 {
            return; // the stand-in stays, of which the program can only close
        }
        options::carry_back(fresh, self.socket);
        for fd in 0..=table::highest() {
            if table::is_kernels(fd) && real::inode(fd) == file && standin::replace(fd, fresh) {
                table::put(fd, Entry::Candidate { watched: false });
                table::note_twin(fd);
            }
        }
        real::close_uncancelled(fresh);
    }

    fn accept(&self) -> c_int {
        real::accept4(self.listening.fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC)
    }
}
