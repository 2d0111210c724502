//! Connections that wait at a listening socket of the program. Each *knocks*: an end of ours connects to the stand-in, which
//! keeps it readable, and becomes the descriptor of whichever connection is the next when it is accepted, as the engine
//! ranks them.
//!
//! Of a socket that has been passed on (SCM_RIGHTS) each is *joined* to its knock at once, and its bytes are moved from
//! then on: whoever takes that out of the stand-in's queue has the connection, also a program that we do not supervise.
//! Nothing tells us of that but what it does with the connection.

use std::io;
use std::os::fd::OwnedFd;

use crate::calls::{On, Reply};
use crate::listener::Flags;
use crate::socket::{Socket, State};
use crate::supervisor::{Supervisor, time_limit};
use crate::{standin, sys, target};

/// A knock at a listening stand-in.
pub(crate) struct Waiting {
    /// The name of our end of it, by which it is known when it is taken.
    end: Vec<u8>,
    what: What,
}

enum What {
    /// Our end.
    Knock(OwnedFd),
    Joined(Connection),
}

/// A connection that has an end for the program.
pub(crate) struct Connection {
    /// Its number among the sockets.
    pub(crate) id: u64,
    /// Who has connected, unless it has reset the connection already.
    from: Option<Vec<u8>>,
}

impl Supervisor {
    /// Connections have come to a listening socket.
    pub(crate) fn on_connection(&mut self, id: u64) {
        while self.announce(id).unwrap_or(false) && self.is_shared(id) {}
        self.retry(id);
    }

    /// Knocks for a connection of the path's queue, if there is one and the program would have room for it.
    fn announce(&mut self, id: u64) -> io::Result<bool> {
        let Some(Socket { state: State::Listening { waiting, backlog, .. }, inner, .. }) =
            self.sockets.get(&id)
        else {
            return Ok(false);
        };
        if !sys::readable(inner) {
            return Ok(false);
        }
        if waiting.len() >= *backlog && self.is_shared(id) {
            self.forget_taken(id);
        }
        let Some(State::Listening { name, waiting, backlog, shared, .. }) = self.state(id) else {
            return Ok(false);
        };
        if waiting.len() >= *backlog {
            return Ok(false);
        }
        let (shared, (ours, end)) = (*shared, standin::knock(name)?);
        let what = if shared {
            What::Joined(self.join(id, ours, true)?)
        } else {
            if !sys::writable(&ours) {
                // It is still on its way: who waits is told then.
                self.poll.add(&ours, libc::EPOLLOUT as u32 | libc::EPOLLONESHOT as u32, id << 1)?;
            }
            What::Knock(ours)
        };
        if let Some(State::Listening { waiting, .. }) = self.state(id) {
            waiting.push_back(Waiting { end, what });
        }
        Ok(true)
    }

    /// Joins the next connection of the path's queue to our end of a knock; `WouldBlock`: there is none.
    fn join(&mut self, id: u64, ours: OwnedFd, waits: bool) -> io::Result<Connection> {
        let Some(socket) = self.sockets.get(&id) else { return Err(io::ErrorKind::NotFound.into()) };
        let connection = sys::accept(&socket.inner)?;
        self.poll.remove(&ours);
        let from = sys::name(libc::getpeername, &connection).ok();
        let socket = Socket::accepted(connection, ours, waits.then_some(id))?;
        Ok(Connection { id: self.insert(socket), from })
    }

    fn is_shared(&self, id: u64) -> bool {
        let state = self.sockets.get(&id).map(|socket| &socket.state);
        matches!(state, Some(State::Listening { shared: true, .. }))
    }

    /// A socket is passed on: what waits at it is whoever's that takes it.
    pub(crate) fn share(&mut self, id: u64) {
        let Some(State::Listening { waiting, shared, .. }) = self.state(id) else { return };
        *shared = true;
        for Waiting { end, what } in std::mem::take(waiting) {
            let what = match what {
                // What knocked may have gone away.
                What::Knock(ours) => self.join(id, ours, true).map(What::Joined),
                joined @ What::Joined(_) => Ok(joined),
            };
            if let (Ok(what), Some(State::Listening { waiting, .. })) = (what, self.state(id)) {
                waiting.push_back(Waiting { end, what });
            }
        }
        self.on_connection(id);
    }

    fn state(&mut self, id: u64) -> Option<&mut State> {
        Some(&mut self.sockets.get_mut(&id)?.state)
    }

    /// What is in front of the stand-in no more was taken past us: the first ones.
    fn forget_taken(&mut self, id: u64) {
        let Some(Socket { state: State::Listening { name, waiting, .. }, seen, inode, .. }) =
            self.sockets.get(&id)
        else {
            return;
        };
        let queued = match target::duplicate(seen.0, seen.1, *inode) {
            Ok(outer) => sys::queued_connections(&outer),
            // Others have it, and not the program.
            Err(_) => standin::queued_connections(name),
        };
        let is_queued = |waiting: &&Waiting| {
            let arriving = waiting.joined().and_then(|id| self.sockets.get(&id)?.arriving.as_ref());
            arriving.is_some_and(|arriving| arriving.queued)
        };
        let taken = waiting.iter().filter(is_queued).count().saturating_sub(queued);
        let Some(State::Listening { waiting, .. }) = self.state(id) else { return };
        for taken in waiting.drain(..taken).collect::<Vec<_>>() {
            self.leave(&taken);
        }
    }

    /// A connection waits at its listening socket no more, and the program has not got it by a call.
    fn leave(&mut self, waiting: &Waiting) {
        let Some(id) = waiting.joined() else { return };
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        socket.arriving = None;
        if let State::Ended = socket.state {
            self.remove(id);
        }
    }

    /// Of a connection that waits: it is in the queue now; or its end is used, and so has been taken past us.
    pub(crate) fn see_arrival(&mut self, id: u64) {
        let Some(Socket { arriving: Some(arriving), peer: Some(peer), .. }) = self.sockets.get_mut(&id)
        else {
            return;
        };
        let (events, at) = (sys::events(peer, libc::POLLIN | libc::POLLOUT), arriving.at);
        let (before, used) = (arriving.queued, events & libc::POLLIN != 0);
        arriving.queued |= events & libc::POLLOUT != 0;
        if arriving.queued == before && !used {
            return;
        }
        if used
            && let Some(State::Listening { waiting, .. }) = self.state(at)
            && let Some(place) = waiting.iter().position(|waiting| waiting.joined() == Some(id))
            && let Some(taken) = waiting.remove(place)
        {
            self.leave(&taken);
        }
        self.on_connection(at);
    }

    /// A socket listens no more: its stand-in resets what waits.
    pub(crate) fn stop_listening(&mut self, id: u64) {
        let Some(State::Listening { waiting, .. }) = self.state(id) else { return };
        let waiting = std::mem::take(waiting);
        for waiting in waiting {
            self.leave(&waiting);
        }
        if let Some(state) = self.state(id) {
            *state = State::Fresh;
        }
    }

    /// The next connection, as the program is to have it; `WouldBlock`: there is none.
    fn next_connection(
        &mut self,
        on: On<'_>,
        outer: &OwnedFd,
        flags: i32,
    ) -> io::Result<(OwnedFd, Connection)> {
        let mut announced = false;
        loop {
            let Some(State::Listening { waiting, ready, .. }) = self.state(on.id) else {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            };
            if let Some(before) = ready.pop_front() {
                return Ok(before);
            }
            match standin::open(outer, flags) {
                Ok((theirs, end)) => {
                    let at = waiting.iter().position(|waiting| waiting.end == end);
                    let joined = match at.and_then(|at| waiting.remove(at)).map(|taken| taken.what) {
                        Some(What::Joined(connection)) => Ok(connection),
                        Some(What::Knock(ours)) => self.join(on.id, ours, false),
                        // A stranger's connection is closed.
                        None => continue,
                    };
                    match joined {
                        // Who knocked has gone away.
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        joined => return Ok((theirs, joined?)),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !announced => {
                    announced = true;
                    self.announce(on.id)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn accept(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        let [_, at, len_at, flags, ..] = on.call.arguments;
        let flags = if on.call.number == libc::SYS_accept4 { flags as i32 } else { 0 };
        if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
            return Err(Reply::error(libc::EINVAL));
        }
        if let State::Datagram(_) = self.socket(on)?.state {
            return Err(Reply::error(libc::EOPNOTSUPP));
        }
        let outer = self.end_of(on)?;
        let (theirs, connection) =
            match self.next_connection(on, &outer, flags & libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && (on.again || !on.non_blocking) => {
                    let limit = time_limit(&self.socket(on)?.inner, libc::SO_RCVTIMEO);
                    return Ok(Reply::Later {
                        socket: on.id,
                        limit,
                        errno: libc::EAGAIN,
                        outer: Some(outer),
                    });
                }
                next => next?,
            };
        self.announce_next(on.id);
        let told = match &connection.from {
            Some(from) if at != 0 => target::write_sized(on.call.thread, at, len_at, from),
            _ => Ok(()),
        };
        self.adopt(on, connection.id, &theirs)?;
        told?;
        let flags = Flags { close_on_exec: flags & libc::SOCK_CLOEXEC != 0 };
        Ok(Reply::Give { id: connection.id, outer: theirs, flags, from: Some((on.id, connection)) })
    }

    /// Whoever waits for the next connection is told of it.
    fn announce_next(&mut self, id: u64) {
        if let Some(State::Listening { waiting, shared, .. }) = self.state(id)
            && (*shared || waiting.is_empty())
        {
            let _ = self.announce(id);
        }
    }

    /// A connection is given to the program, with all that has come.
    fn adopt(&mut self, on: On<'_>, id: u64, theirs: &OwnedFd) -> Result<(), Reply> {
        let reported = self.socket(on)?.reported;
        let mut space = std::mem::take(&mut self.space);
        if let Some(socket) = self.sockets.get_mut(&id) {
            (socket.arriving, socket.reported) = (None, reported);
            socket.bring(&mut space);
        }
        self.space = space;
        Ok(self.name(id, theirs)?)
    }

    /// A connection that a call was to have, and that nobody has taken, is the next one.
    pub(crate) fn put_back(&mut self, listener: u64, connection: Connection, theirs: OwnedFd) {
        if let Some(State::Listening { name, ready, .. }) = self.state(listener) {
            ready.push_back((theirs, connection));
            // Somebody may wait for it. Of this nothing but its place in the queue is used.
            let _ = standin::knock(name);
        }
        self.retry(listener);
    }
}

impl Waiting {
    fn joined(&self) -> Option<u64> {
        match &self.what {
            What::Joined(connection) => Some(connection.id),
            What::Knock(_) => None,
        }
    }
}
