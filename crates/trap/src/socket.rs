//! One socket of the program, as the supervisor has it.
//!
//! ```text
//!            bind            listen                    accept
//! Fresh ───────────▶ Fresh ─────────▶ Listening ──────────────────▶ Stream (another socket)
//!   ├── connect ──▶ Connecting ── established ──▶ Stream ── both ends closed, or reset ──▶ gone
//!   │                    └── failed ──▶ Failed (Fresh, if the call waited for it)
//! Datagram ─── bind, connect, data ───▶ Datagram
//! ```
//!
//! Until it is connected, *filler* stands in the program's way out: bytes that leave no room, so that the
//! descriptor becomes writable when the connection stands, and not before. In front of a listening socket's program
//! lie bytes, the *tokens*, while connections wait, one for each that came: so its descriptor is readable, and each
//! wakes somebody. Reads and writes of a stream that is not connected would wait for good there; a time-out of the
//! shortest kind has them fail (EAGAIN) until it is.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use crate::datagram::Datagram;
use crate::listener::Call;
use crate::stream::Stream;
use crate::sys;

/// What the pair may hold in each direction, as far as the system lets us.
const BUFFER: i32 = 1 << 20;
/// A piece of what fills the smallest send buffer (SOCK_MIN_SNDBUF, about 4.5 KiB). A socket counts as writable while
/// less than a quarter of that is in use (`unix_writable`), and takes a write while it is not all.
const FILLER: [u8; 2048] = [0; 2048];

/// How long reads and writes wait.
const TIMEOUTS: [i32; 2] = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO];
/// `struct timeval`: a microsecond, which the kernel makes a tick.
const SHORTEST: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// See the module.
pub(crate) struct Socket {
    /// The program's end, as `/proc` names it.
    pub(crate) inode: u64,
    /// Our end.
    pub(crate) peer: OwnedFd,
    /// The socket on a path.
    pub(crate) inner: OwnedFd,
    /// A thread and a descriptor that the program's end had when a call named it last.
    pub(crate) seen: (u32, i32),
    /// For SO_ERROR; 0: none.
    pub(crate) error: i32,
    /// What a stream's program has set IP_RECVERR and IPV6_RECVERR to, which `inner` is not told: its error would end
    /// the connection.
    pub(crate) reported: [bool; 2],
    pub(crate) state: State,
    /// What the loop waits for at `peer` and at `inner`, if at all.
    pub(crate) watched: (Option<u32>, Option<u32>),
}

pub(crate) enum State {
    /// A stream socket that is not connected.
    Fresh,
    Connecting {
        /// The program's end, to make room in it. While we hold it we do not see that the program closes it.
        outer: OwnedFd,
        /// To where.
        address: Vec<u8>,
    },
    Listening {
        /// Tokens lie there.
        signalled: bool,
        /// Accepted for a call that has been interrupted.
        ready: VecDeque<OwnedFd>,
    },
    Stream(Stream),
    /// A connection has failed, and the program does not know yet.
    Failed,
    Datagram(Datagram),
}

impl Socket {
    /// For `socket`: with the program's end.
    pub(crate) fn create(call: &Call) -> io::Result<(Socket, OwnedFd)> {
        let [family, kind, protocol] = [0, 1, 2].map(|at| call.arguments[at] as i32);
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let stream = kind & !flags == libc::SOCK_STREAM;
        let inner = sys::socket(family, kind | flags, protocol)?;
        let (peer, outer) = sys::pair(if stream { libc::SOCK_STREAM } else { libc::SOCK_SEQPACKET })?;
        if kind & libc::SOCK_NONBLOCK != 0 {
            sys::set_non_blocking(&outer);
        }
        set_buffer(&peer, BUFFER)?;
        let state = if stream {
            fill(&outer)?;
            take_times(&outer)?;
            State::Fresh
        } else {
            set_buffer(&outer, BUFFER)?;
            State::Datagram(Datagram::default())
        };
        Ok((Socket::new(inner, peer, sys::inode(&outer)?, state), outer))
    }

    /// For `accept`: with the program's end.
    pub(crate) fn accepted(inner: OwnedFd, non_blocking: bool) -> io::Result<(Socket, OwnedFd)> {
        let (peer, outer) = sys::pair(libc::SOCK_STREAM)?;
        if non_blocking {
            sys::set_non_blocking(&outer);
        }
        set_buffer(&peer, BUFFER)?;
        set_buffer(&outer, BUFFER)?;
        Ok((Socket::new(inner, peer, sys::inode(&outer)?, State::Stream(Stream::default())), outer))
    }

    fn new(inner: OwnedFd, peer: OwnedFd, inode: u64, state: State) -> Socket {
        Socket {
            inode,
            peer,
            inner,
            seen: (0, -1),
            error: 0,
            reported: [false; 2],
            state,
            watched: (None, None),
        }
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
            State::Fresh => (Some(0), None),
            State::Connecting { .. } => (Some(0), Some(output)),
            // Each connection is an edge.
            State::Listening { .. } => (Some(0), Some(input | edge)),
            State::Stream(stream) => stream.interest(),
            State::Failed => (Some(input), None),
            // Each datagram that the program takes is an edge; and an error, which may stay in a queue.
            State::Datagram(datagram) => {
                (Some(input | output | edge), Some(datagram.inner_interest() | edge))
            }
        }
    }

    /// Keeps an error for the program. Of a datagram socket an empty datagram tells it that something is to be had.
    pub(crate) fn on_error(&mut self, errno: i32) {
        self.error = errno;
        if let State::Datagram(datagram) = &mut self.state {
            datagram.tell_error(&self.peer);
        }
    }

    /// Takes the error that waits; 0: none. `outer` is the program's end, if it can be had.
    pub(crate) fn take_error(&mut self, outer: impl FnOnce() -> io::Result<OwnedFd>) -> i32 {
        if self.error != 0
            && let State::Datagram(datagram) = &mut self.state
        {
            datagram.take_error_back(outer);
        }
        std::mem::take(&mut self.error)
    }

    /// The program asks for a connection: its reads and writes wait for it as long as they are to.
    pub(crate) fn give_times_back(&self, outer: &OwnedFd) {
        for name in TIMEOUTS {
            let mut value = [0; 16];
            if sys::option(&self.inner, libc::SOL_SOCKET, name, &mut value).is_ok() {
                let _ = sys::set_option(outer, libc::SOL_SOCKET, name, &value);
            }
        }
    }

    /// The connection stands: the program may write.
    pub(crate) fn establish(&mut self, outer: &OwnedFd) {
        let _ = set_buffer(outer, BUFFER);
        self.remove_filler();
        self.state = State::Stream(Stream::default());
    }

    /// Makes the program's end writable.
    pub(crate) fn remove_filler(&self) {
        let mut space = [0; FILLER.len()];
        while sys::receive(&self.peer, &mut space, 0).is_ok_and(|len| len > 0) {}
    }
}

/// Makes the program's end unwritable.
pub(crate) fn fill(outer: &OwnedFd) -> io::Result<()> {
    set_buffer(outer, 1)?;
    // Not only poll, but also write has to find no room: what was written before the connection stands would be lost.
    while sys::send(outer, &FILLER).is_ok() {}
    Ok(())
}

/// Reads and writes of the program fail (EAGAIN) instead of waiting.
pub(crate) fn take_times(outer: &OwnedFd) -> io::Result<()> {
    for name in TIMEOUTS {
        sys::set_option(outer, libc::SOL_SOCKET, name, &SHORTEST)?;
    }
    Ok(())
}

fn set_buffer(fd: &OwnedFd, len: i32) -> io::Result<()> {
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &len.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writable(fd: &OwnedFd) -> bool {
        let poll = sys::Poll::new().unwrap();
        poll.add(fd, libc::EPOLLOUT as u32, 0).unwrap();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 1];
        poll.wait(&mut events, 0).unwrap() == 1
    }

    #[test]
    fn a_stream_is_writable_once_it_is_established() {
        let arguments = [libc::AF_INET as u64, libc::SOCK_STREAM as u64, 0, 0, 0, 0];
        let call = Call { id: 0, thread: 0, number: libc::SYS_socket, arguments };
        let (mut socket, outer) = Socket::create(&call).unwrap();
        assert!(!writable(&outer));
        assert!(sys::send(&outer, b"too early").is_err());
        socket.establish(&outer);
        assert!(writable(&outer));
        // Nothing of the filler is left for the path.
        let mut space = [0; 16];
        assert!(sys::receive(&socket.peer, &mut space, 0).is_err());
        fill(&outer).unwrap();
        assert!(!writable(&outer));
    }
}
