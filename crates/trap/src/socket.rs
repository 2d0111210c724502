//! One socket of the program, as the supervisor has it.
//!
//! ```text
//!            bind            listen                    accept
//! Fresh ───────────▶ Fresh ─────────▶ Listening ──────────────────▶ Stream (another socket)
//!   ├── connect ──▶ Connecting ── established ──▶ Stream ── both ends closed, or reset ──▶ Ended
//!   │                    └── failed ──▶ Failed (Fresh, if the call waited for it)
//! Datagram ─── bind, connect, data ───▶ Datagram
//! ```
//!
//! The program's end of a stream is a stand-in ([`crate::standin`]) from the beginning, so that each of its
//! descriptors, and each epoll that has it, goes from state to state with it. All are kept until the program has closed
//! its last descriptor.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use crate::arrivals::Waiting;
use crate::datagram::Datagram;
use crate::listener::Call;
use crate::standin::{self, Attempt};
use crate::stream::{Progress, ROUNDS, Stream};
use crate::sys;

/// What a pair may hold in each direction, as far as the system lets us.
const BUFFER: i32 = 1 << 20;

/// See the module.
pub(crate) struct Socket {
    /// The program's end, if it has got it by a call.
    pub(crate) named: Option<Named>,
    /// It has been passed on, perhaps to a program that we do not supervise.
    pub(crate) shared: bool,
    /// It waits to be accepted.
    pub(crate) arriving: Option<Arriving>,
    /// Our end of what the program has, where there is one.
    pub(crate) peer: Option<OwnedFd>,
    /// The socket on a path.
    pub(crate) inner: OwnedFd,
    /// A thread and a descriptor that the program's end had when a call named it last.
    pub(crate) seen: (u32, i32),
    /// For SO_ERROR; 0: none. Where the program's end has it too, that one decides whether it has been told.
    pub(crate) error: i32,
    /// How far that is so, of datagrams.
    share: Share,
    /// What a stream's program has set IP_RECVERR and IPV6_RECVERR to, which `inner` is not told: its error would end
    /// the connection.
    pub(crate) reported: [bool; 2],
    pub(crate) state: State,
    /// What the loop waits for at `peer` and at `inner`, if at all.
    pub(crate) watched: (Option<u32>, Option<u32>),
}

/// What the program's end of a datagram socket has of an error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    /// Nothing, and it gets nothing.
    None,
    /// It is still to get it.
    Owed,
    Given,
}

/// How the program's end of a socket is known.
#[derive(Clone, Copy)]
pub(crate) struct Named {
    /// As `/proc` names it.
    pub(crate) inode: u64,
    /// That its last descriptor is closed is told by this number.
    pub(crate) watch: i32,
}

/// A connection that waits in front of a stand-in.
pub(crate) struct Arriving {
    /// The socket that listens.
    pub(crate) at: u64,
    /// It is in the stand-in's queue.
    pub(crate) queued: bool,
}

pub(crate) enum State {
    /// A stream socket that is not connected.
    Fresh,
    Connecting {
        /// What the program's end waits for.
        attempt: Attempt,
        /// To where.
        address: Vec<u8>,
    },
    Listening {
        /// Where the program's end listens.
        name: Vec<u8>,
        /// What is in front of it.
        waiting: VecDeque<Waiting>,
        /// How much may be in front of it.
        backlog: usize,
    },
    Stream(Stream),
    /// A connection has failed, and the program does not know yet.
    Failed,
    /// A connection is over.
    Ended,
    Datagram(Datagram),
}

impl Socket {
    /// For `socket`: with the program's end.
    pub(crate) fn create(call: &Call) -> io::Result<(Socket, OwnedFd)> {
        let [family, kind, protocol] = [0, 1, 2].map(|at| call.arguments[at] as i32);
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let inner = sys::socket(family, kind | flags, protocol)?;
        let non_blocking = kind & libc::SOCK_NONBLOCK;
        if kind & !flags == libc::SOCK_STREAM {
            sys::take_urgent_in_line(&inner)?;
            let outer = standin::socket(non_blocking | libc::SOCK_CLOEXEC)?;
            return Ok((Socket::new(inner, None, State::Fresh), outer));
        }
        let (peer, outer) = sys::pair(libc::SOCK_DGRAM)?;
        sys::ask_who_sends(&peer)?;
        if non_blocking != 0 {
            sys::set_non_blocking(&outer);
        }
        set_buffer(&peer, BUFFER)?;
        set_buffer(&outer, BUFFER)?;
        let state = State::Datagram(Datagram::default());
        Ok((Socket::new(inner, Some(peer), state), outer))
    }

    /// A connection with our end of it, which perhaps waits to be accepted at a socket.
    pub(crate) fn accepted(inner: OwnedFd, peer: OwnedFd, waits_at: Option<u64>) -> io::Result<Socket> {
        sys::take_urgent_in_line(&inner)?;
        let arriving = waits_at.map(|at| Arriving { at, queued: sys::writable(&peer) });
        Ok(Socket { arriving, ..Socket::new(inner, Some(peer), State::Stream(Stream::default())) })
    }

    fn new(inner: OwnedFd, peer: Option<OwnedFd>, state: State) -> Socket {
        Socket {
            named: None,
            shared: false,
            arriving: None,
            peer,
            inner,
            seen: (0, -1),
            error: 0,
            share: Share::None,
            reported: [false; 2],
            state,
            watched: (None, None),
        }
    }

    /// The inode of the program's end.
    pub(crate) fn inode(&self) -> io::Result<u64> {
        self.named.map(|named| named.inode).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Of an option that asks a stream for reports of errors: the socket that it is about, and its value.
    pub(crate) fn report(&mut self, level: i32, name: i32) -> Option<(&OwnedFd, &mut bool)> {
        let which = match (&self.state, level, name) {
            (State::Datagram(_), ..) => return None,
            (_, libc::IPPROTO_IP, libc::IP_RECVERR) => 0,
            (_, libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => 1,
            _ => return None,
        };
        Some((&self.inner, &mut self.reported[which]))
    }

    /// What to wait for at `peer` and at `inner`, if at all.
    pub(crate) fn interest(&self) -> (Option<u32>, Option<u32>) {
        let (input, output, edge) = (libc::EPOLLIN as u32, libc::EPOLLOUT as u32, libc::EPOLLET as u32);
        match &self.state {
            State::Fresh | State::Failed | State::Ended => (None, None),
            // The end of the attempt is an edge; each connection is one.
            State::Connecting { .. } => (None, Some(output | edge)),
            State::Listening { .. } => (None, Some(input | edge)),
            State::Stream(stream) => {
                let queued = self.arriving.as_ref().is_none_or(|arriving| arriving.queued);
                // A TCP socket of the kernel's that has an end to tell before it is connected is connected no more.
                if queued { stream.interest() } else { (Some(output), None) }
            }
            // Each datagram that the program takes is an edge; and an error, which may stay in a queue.
            State::Datagram(datagram) => {
                (Some(input | output | edge), Some(datagram.inner_interest() | edge))
            }
        }
    }

    /// Keeps an error of datagrams for the program.
    pub(crate) fn on_error(&mut self, errno: i32) {
        (self.error, self.share) = (errno, Share::Owed);
    }

    /// The same of a datagram that was not sent, which the program has taken for sent. Only calls that are trapped tell it:
    /// the next `write` is not to fail for it.
    pub(crate) fn on_unsent(&mut self, errno: i32) {
        self.on_error(errno);
        // A refusal is of one before it.
        if errno != libc::ECONNREFUSED {
            self.share = Share::None;
        }
    }

    /// The program's end is still to have an error of datagrams.
    pub(crate) fn owes_error(&self) -> bool {
        self.error != 0 && self.share == Share::Owed
    }

    /// Lets the program's end have it, if it can. Where that end is not to be found, whoever reads there gets an empty
    /// datagram, lest he sleep for ever.
    pub(crate) fn give_error(&mut self, outer: Option<&OwnedFd>, space: &mut [u8]) {
        let (State::Datagram(datagram), Some(peer)) = (&mut self.state, &self.peer) else { return };
        let Some(outer) = outer else {
            let _ = sys::send(peer, &[], 0);
            self.share = Share::None;
            return;
        };
        if datagram.give_error((peer, &self.inner), outer, space).is_ok() {
            self.share = Share::Given;
        }
    }

    /// Takes the error that waits; 0: none. `outer` is the program's end, if it can be had.
    pub(crate) fn take_error(&mut self, outer: impl FnOnce() -> io::Result<OwnedFd>) -> i32 {
        let kept = std::mem::take(&mut self.error);
        let share = std::mem::replace(&mut self.share, Share::None);
        let is_datagram = matches!(self.state, State::Datagram(_));
        if is_datagram && kept == 0 {
            return 0;
        }
        // It may have read it there, in which case it is told no more.
        let told = outer().map_or(if is_datagram { kept } else { 0 }, |outer| sys::pending_error(&outer));
        if kept != 0 && (told != 0 || is_datagram && share != Share::Given) { kept } else { told }
    }

    /// The connection stands: the program's end gets ours.
    pub(crate) fn establish(&mut self, attempt: Attempt) -> io::Result<()> {
        self.peer = Some(attempt.succeed()?);
        self.state = State::Stream(Stream::default());
        Ok(())
    }

    /// A connection that is accepted brings what waits at its path already.
    pub(crate) fn bring(&mut self, space: &mut [u8]) {
        if let (State::Stream(stream), Some(peer)) = (&mut self.state, &self.peer)
            && sys::readable(&self.inner)
        {
            let mut progress = Progress::Open;
            for _ in 0..ROUNDS {
                let has_heard = stream.hear(&self.inner, space);
                progress = stream.advance(peer, &self.inner, space);
                if !has_heard || stream.is_full() || progress != Progress::Open {
                    break;
                }
            }
            if progress != Progress::Open {
                self.end(&progress);
            }
        }
    }

    /// The connection is over, and the program's end of it open.
    pub(crate) fn end(&mut self, progress: &Progress) {
        let peer = self.peer.take();
        match *progress {
            Progress::Abandoned => {
                let _ = sys::with_address(libc::connect, &self.inner, &standin::NOWHERE);
            }
            Progress::Reset(errno) => {
                self.error = errno;
                peer.iter().for_each(sys::reset_at_close);
            }
            Progress::Done | Progress::Open => {}
        }
        self.state = State::Ended;
    }
}

fn set_buffer(fd: &OwnedFd, len: i32) -> io::Result<()> {
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &len.to_ne_bytes())
}
