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

/// Strangers' connections that one `accept` closes: a queue of them.
const MAX_STRANGERS: usize = standin::BACKLOG as usize;

/// One in the queue of a listening stand-in.
pub(crate) struct Waiting {
    /// The name of its other end, by which it is known when it is taken.
    end: Vec<u8>,
    what: What,
}

enum What {
    /// Our end of a knock.
    Knock(OwnedFd),
    /// A connection has that end.
    Joined(Connection),
    /// A call has taken this connection, and the program has not; with its end. What is in the queue keeps its place.
    Given(OwnedFd, Connection),
}

/// A connection that has an end for the program.
pub(crate) struct Connection {
    /// Its number among the sockets.
    pub(crate) id: u64,
    /// Who has connected, unless it has reset the connection already.
    peer: Option<Vec<u8>>,
}

impl Supervisor {
    /// Connections have come to a listening socket.
    pub(crate) fn on_connection(&mut self, id: u64) {
        self.announce_all(id);
        self.retry(id);
    }

    /// A knock has arrived, or has failed.
    pub(crate) fn on_knock(&mut self, id: u64) {
        if let Some(State::Listening { waiting, .. }) = self.state(id) {
            waiting.retain(|waiting| !matches!(&waiting.what, What::Knock(ours) if sys::hung_up(ours)));
        }
        self.retry(id);
    }

    fn announce_all(&mut self, id: u64) {
        while self.announce(id).unwrap_or(false) && self.is_shared(id) {}
    }

    /// Knocks for a connection of the path's queue, if there is one and the program would have room for it.
    fn announce(&mut self, id: u64) -> io::Result<bool> {
        let is_shared = self.is_shared(id);
        let Some(Socket { state: State::Listening { waiting, backlog, .. }, inner, .. }) =
            self.sockets.get(&id)
        else {
            return Ok(false);
        };
        // What is on its way is enough.
        let is_expected =
            matches!(waiting.back(), Some(Waiting { what: What::Knock(ours), .. }) if !sys::writable(ours));
        if is_expected || !sys::readable(inner) {
            return Ok(false);
        }
        if waiting.len() >= *backlog && is_shared {
            self.forget_taken(id);
        }
        if self.may_be_waited_at(id) {
            return if self.fetch(id) { Ok(false) } else { self.announce(id) };
        }
        let Some(State::Listening { name, waiting, backlog }) = self.state(id) else { return Ok(false) };
        if waiting.len() >= *backlog {
            if is_shared {
                self.full.insert(id);
            }
            return Ok(false);
        }
        let (ours, end) = standin::knock(name)?;
        let what = if is_shared {
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

    /// Joins the next connection of the path's queue to our end of a knock; EAGAIN: there is none.
    fn join(&mut self, id: u64, ours: OwnedFd, waits: bool) -> io::Result<Connection> {
        let listener = self.sockets.get(&id).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        if waits {
            standin::end_with_its_owner(&ours)?;
        }
        let connection = sys::accept(&listener.inner)?;
        self.poll.remove(&ours);
        let peer = sys::name(libc::getpeername, &connection).ok();
        let id = self.insert(Socket::accepted(connection, ours, waits.then_some(id))?)?;
        Ok(Connection { id, peer })
    }

    fn is_shared(&self, id: u64) -> bool {
        self.sockets.get(&id).is_some_and(|socket| socket.shared)
    }

    /// A socket is passed on: what waits at it is whoever's that takes it.
    pub(crate) fn share(&mut self, id: u64) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        if std::mem::replace(&mut socket.shared, true) {
            return;
        }
        let Some(State::Listening { waiting, .. }) = self.state(id) else { return };
        for Waiting { end, what } in std::mem::take(waiting) {
            let what = match what {
                // What knocked may have gone away.
                What::Knock(ours) => self.join(id, ours, true).map(What::Joined),
                joined => Ok(joined),
            };
            if let (Ok(what), Some(State::Listening { waiting, .. })) = (what, self.state(id)) {
                waiting.push_back(Waiting { end, what });
            }
        }
        self.on_connection(id);
    }

    pub(crate) fn state(&mut self, id: u64) -> Option<&mut State> {
        Some(&mut self.sockets.get_mut(&id)?.state)
    }

    /// What is in front of the stand-in no more was taken past us: the first of what has arrived there.
    fn forget_taken(&mut self, id: u64) {
        let Some(socket @ Socket { state: State::Listening { name, waiting, .. }, seen, .. }) =
            self.sockets.get(&id)
        else {
            return;
        };
        let outer = socket.inode().and_then(|inode| target::duplicate(seen.0, seen.1, inode));
        let queued = match outer {
            Ok(outer) => sys::queued_connections(&outer),
            // Others have it, and not the program.
            Err(_) => standin::queued_connections(name),
        };
        let Some(queued) = queued else { return };
        let here: Vec<usize> = waiting
            .iter()
            .enumerate()
            .filter(|(_, waiting)| waiting.joined().is_some_and(|id| self.is_queued(id)))
            .map(|(at, _)| at)
            .collect();
        let taken = here.len().saturating_sub(queued);
        for &at in here[..taken].iter().rev() {
            if let Some(State::Listening { waiting, .. }) = self.state(id)
                && let Some(taken) = waiting.remove(at)
            {
                self.leave(&taken);
            }
        }
    }

    fn is_queued(&self, id: u64) -> bool {
        let arriving = self.sockets.get(&id).and_then(|socket| socket.arriving.as_ref());
        arriving.is_some_and(|arriving| arriving.queued)
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

    /// Of a connection that waits: it is in the queue now; or its end is used, and so has been taken past us. False: it is
    /// on its way there, or will never be.
    pub(crate) fn see_arrival(&mut self, id: u64) -> bool {
        let Some(Socket { arriving: Some(arriving), peer: Some(peer), .. }) = self.sockets.get_mut(&id)
        else {
            return true;
        };
        let events = sys::events(peer, libc::POLLIN | libc::POLLOUT);
        let (at, was_queued) = (arriving.at, arriving.queued);
        let failed = !was_queued && events & (libc::POLLERR | libc::POLLHUP) != 0;
        arriving.queued |= !failed && events & libc::POLLOUT != 0;
        let (is_queued, is_used) = (arriving.queued, events & libc::POLLIN != 0);
        if failed || is_queued && is_used {
            if let Some(State::Listening { waiting, .. }) = self.state(at)
                && let Some(place) = waiting.iter().position(|waiting| waiting.joined() == Some(id))
                && let Some(taken) = waiting.remove(place)
            {
                self.leave(&taken);
            }
            if failed {
                self.remove(id);
            }
        } else if is_queued == was_queued {
            return is_queued;
        }
        self.watch(id);
        self.on_connection(at);
        !failed
    }

    /// A socket listens no more: its stand-in resets what waits.
    pub(crate) fn stop_listening(&mut self, id: u64) {
        let Some(State::Listening { waiting, .. }) = self.state(id) else { return };
        let waiting = std::mem::take(waiting);
        for waiting in waiting {
            self.leave(&waiting);
        }
        // Their ends are closed with that.
        drop(self.waits.returned_to(id));
        if let Some(state) = self.state(id) {
            *state = State::Fresh;
        }
    }

    /// The next connection, as the program is to have it; EAGAIN: there is none.
    fn next_connection(
        &mut self,
        on: On<'_>,
        outer: &OwnedFd,
        flags: i32,
    ) -> io::Result<(OwnedFd, Connection)> {
        let mut announced = false;
        for _ in 0..MAX_STRANGERS {
            let is_shared = self.is_shared(on.id);
            let Some(State::Listening { waiting, .. }) = self.state(on.id) else {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            };
            match standin::open(outer, flags, is_shared) {
                Ok((theirs, end)) => {
                    let at = waiting.iter().position(|waiting| waiting.end == end);
                    let joined = match at.and_then(|at| waiting.remove(at)).map(|taken| taken.what) {
                        Some(What::Joined(connection)) => Ok(connection),
                        Some(What::Given(before, connection)) => return Ok((before, connection)),
                        Some(What::Knock(ours)) => self.join(on.id, ours, false),
                        // A stranger's connection is closed.
                        None => continue,
                    };
                    match joined {
                        Ok(connection) => return Ok((theirs, connection)),
                        // Who knocked has gone away.
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => {
                            // It waits on, and is to be seen.
                            drop(theirs);
                            let _ = self.announce(on.id);
                            return Err(error);
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !announced => {
                    announced = true;
                    self.announce(on.id)?;
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
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
        let told = match &connection.peer {
            Some(peer) if at != 0 => target::write_sized(on.call.thread, at, len_at, peer),
            _ => Ok(()),
        };
        self.adopt(on, connection.id, &theirs)?;
        told?;
        let flags = Flags { close_on_exec: flags & libc::SOCK_CLOEXEC != 0 };
        Ok(Reply::Give { id: connection.id, outer: theirs, flags, from: Some((on.id, connection)) })
    }

    /// Whoever waits for the next connection is told of it.
    fn announce_next(&mut self, id: u64) {
        let is_next = matches!(self.state(id), Some(State::Listening { waiting, .. }) if waiting.is_empty());
        if is_next || self.is_shared(id) {
            self.announce_all(id);
        }
    }

    /// A connection is given to the program, with all that has come.
    fn adopt(&mut self, on: On<'_>, id: u64, theirs: &OwnedFd) -> Result<(), Reply> {
        let reported = self.socket(on)?.reported;
        if let Err(error) = self.name(id, theirs) {
            self.remove(id);
            return Err(error.into());
        }
        self.bring_datagrams();
        let mut space = std::mem::take(&mut self.space);
        if let Some(socket) = self.sockets.get_mut(&id) {
            (socket.arriving, socket.reported) = (None, reported);
            socket.bring(&mut space);
        }
        self.space = space;
        Ok(())
    }

    /// A connection that a call was to have, and that the program has not got, waits again.
    pub(crate) fn put_back(&mut self, listener: u64, connection: Connection, theirs: OwnedFd) {
        if self.fetch(listener) {
            // Who waits there would take the knock for a connection.
            return self.waits.returned.push((listener, connection, theirs));
        }
        if let Some(State::Listening { name, waiting, .. }) = self.state(listener)
            && let Ok((_, end)) = standin::knock(name)
        {
            waiting.push_back(Waiting { end, what: What::Given(theirs, connection) });
        }
        self.retry(listener);
    }
}

impl Waiting {
    fn joined(&self) -> Option<u64> {
        match &self.what {
            What::Joined(connection) => Some(connection.id),
            What::Knock(_) | What::Given(..) => None,
        }
    }
}
