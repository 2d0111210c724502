//! The loop: trapped calls, sockets that are ready, calls that wait.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::calls::Reply;
use crate::datagram::Moved;
use crate::fetchers::Fetchers;
use crate::listener::{Answer, Call, Delivery, Listener};
use crate::socket::{Named, Socket, State};
use crate::standin;
use crate::stream::{Progress, ROUNDS};
use crate::sys::{self, Closings};
use crate::target;
use crate::waits::Waits;

/// The listener's token; sockets have `id << 1`, and 1 more for their inner side.
const LISTENER: u64 = u64::MAX;
/// Sockets have been closed.
const CLOSINGS: u64 = u64::MAX - 1;
/// A thread has ended whose call held a socket.
pub(crate) const ENDED: u64 = u64::MAX - 2;
/// A thread was fetched.
const FETCHED: u64 = u64::MAX - 3;
/// Events taken at a time.
const EVENTS: usize = 64;
/// Bytes moved at a time: also more than the largest datagram.
const SPACE: usize = 128 << 10;
/// How often what is full is looked at.
const FULL_LOOKS: Duration = Duration::from_millis(10);

/// The supervisor of one program and of all that it starts.
pub(crate) struct Supervisor {
    pub(crate) listener: Listener,
    pub(crate) poll: sys::Poll,
    /// The paths of datagram sockets alone.
    datagrams: sys::Poll,
    pub(crate) closings: Closings,
    next: u64,
    pub(crate) sockets: BTreeMap<u64, Socket>,
    pub(crate) by_inode: HashMap<u64, u64>,
    by_watch: HashMap<i32, u64>,
    pub(crate) waits: Waits,
    pub(crate) fetchers: Fetchers,
    /// Sockets that have been passed on and seem to have no room for a connection that waits: looked at again now and
    /// then, since nobody tells when others take some.
    pub(crate) full: BTreeSet<u64>,
    /// Sockets that wait for a port which another one has that is closed, and not done.
    pub(crate) binding: BTreeSet<u64>,
    /// The most connections that may wait at a stand-in.
    pub(crate) backlog: usize,
    pub(crate) space: Vec<u8>,
    /// That a program cannot be looked into.
    pub(crate) said_closed: bool,
}

impl Supervisor {
    pub(crate) fn new(listener: OwnedFd) -> io::Result<Supervisor> {
        let poll = sys::Poll::new()?;
        sys::take_turns(&listener);
        poll.add(&listener, libc::EPOLLIN as u32, LISTENER)?;
        let closings = Closings::new()?;
        poll.add(closings.descriptor(), libc::EPOLLIN as u32, CLOSINGS)?;
        let listener = Listener::new(listener);
        let fetchers = Fetchers::new(&listener)?;
        poll.add(fetchers.bell(), libc::EPOLLIN as u32, FETCHED)?;
        Ok(Supervisor {
            listener,
            poll,
            datagrams: sys::Poll::new()?,
            closings,
            next: 0,
            sockets: BTreeMap::new(),
            by_inode: HashMap::new(),
            by_watch: HashMap::new(),
            waits: Waits::new(),
            fetchers,
            full: BTreeSet::new(),
            binding: BTreeSet::new(),
            backlog: standin::longest_queue(),
            space: vec![0; SPACE],
            said_closed: false,
        })
    }

    /// Until the program and all that it started are gone, and what they wrote is with the paths.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let mut program_gone = false;
        while !program_gone || !self.sockets.is_empty() {
            let count = self.poll.wait(&mut events, self.limit_ms())?;
            for event in &events[..count] {
                let (token, what) = (event.u64, event.events);
                // Who takes connections makes one call after another: each would wait for a whole round of streams.
                if !program_gone {
                    self.take_call()?;
                }
                if token == CLOSINGS {
                    self.see_closed();
                } else if token == ENDED {
                    self.drop_ended_calls();
                } else if token == FETCHED {
                    sys::silence(self.fetchers.bell());
                } else if token != LISTENER {
                    self.on_ready(token);
                } else if what & libc::EPOLLIN as u32 == 0 {
                    program_gone = true;
                    // Who reads what the program says has heard all of it.
                    sys::leave_output();
                    self.poll.remove(self.listener.descriptor());
                    self.waits.clear();
                }
            }
            self.see_to_waits();
            for id in std::mem::take(&mut self.full) {
                self.on_connection(id);
            }
        }
        Ok(())
    }

    /// Answers a call, if there is one.
    fn take_call(&mut self) -> io::Result<()> {
        if sys::readable(self.listener.descriptor())
            && let Some(call) = self.listener.receive()?
        {
            self.on_call(call);
        }
        Ok(())
    }

    fn limit_ms(&self) -> i32 {
        let looks = (!self.full.is_empty()).then(|| Instant::now() + FULL_LOOKS);
        let Some(first) = self.next_wait().into_iter().chain(looks).min() else { return -1 };
        let left = first.saturating_duration_since(Instant::now());
        // Rounded up, or the last millisecond would be spent spinning.
        i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX)
    }

    fn on_call(&mut self, call: Call) {
        if !self.resume(&call) {
            let reply = self.handle(&call);
            self.reply(call, reply);
        }
    }

    pub(crate) fn reply(&mut self, call: Call, reply: Reply) {
        match reply {
            Reply::Now(answer) => drop(self.listener.answer(&call, &answer)),
            Reply::Later { socket, limit, errno, outer } => {
                self.wait(call, socket, limit.map(|limit| (limit, errno)), outer);
            }
            Reply::Give { id, outer, flags, from } => {
                match (self.listener.answer(&call, &Answer::Descriptor(&outer, flags)), from) {
                    (Delivery::Done(number), _) => {
                        if let Some(socket) = self.sockets.get_mut(&id) {
                            socket.seen = (call.thread, number.unwrap_or(-1));
                        }
                        self.watch(id);
                    }
                    (Delivery::Gone, Some((listener, connection))) => {
                        self.put_back(listener, connection, outer);
                    }
                    (Delivery::Gone, None) => drop(self.remove(id)),
                }
            }
        }
    }

    /// A new socket: its number.
    ///
    /// # Errors
    /// It cannot be watched.
    pub(crate) fn insert(&mut self, socket: Socket) -> io::Result<u64> {
        let id = self.next;
        self.next += 1;
        if let State::Datagram(_) = socket.state {
            self.datagrams.add(&socket.inner, (libc::EPOLLIN | libc::EPOLLET) as u32, id)?;
        }
        self.sockets.insert(id, socket);
        self.watch(id);
        let unwatched = || io::Error::from_raw_os_error(libc::ENOMEM);
        self.sockets.contains_key(&id).then_some(id).ok_or_else(unwatched)
    }

    /// Calls know the program's end of a socket from now on, and we that it is closed.
    pub(crate) fn name(&mut self, id: u64, outer: &OwnedFd) -> io::Result<()> {
        if let Some(socket) = self.sockets.get_mut(&id) {
            let (inode, watch) = (sys::inode(outer)?, self.closings.watch(outer)?);
            socket.named = Some(Named { inode, watch });
            self.by_inode.insert(inode, id);
            self.by_watch.insert(watch, id);
        }
        Ok(())
    }

    /// Waits for what the socket needs now.
    pub(crate) fn watch(&mut self, id: u64) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        let (peer, inner) = socket.interest();
        let (old_peer, old_inner) = std::mem::replace(&mut socket.watched, (peer, inner));
        let token = id << 1;
        let mut watched = Ok(());
        // An end of ours that has been closed is watched no more.
        if let Some(end) = &socket.peer {
            watched = change(&self.poll, end, (old_peer, peer), token);
        }
        let watched = watched.and_then(|()| change(&self.poll, &socket.inner, (old_inner, inner), token | 1));
        if watched.is_err() {
            self.remove(id);
        }
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Socket> {
        self.stop_listening(id);
        let socket = self.sockets.remove(&id)?;
        if let Some(Named { inode, watch }) = socket.named {
            self.by_inode.remove(&inode);
            self.by_watch.remove(&watch);
            self.closings.forget(watch);
        }
        self.full.remove(&id);
        self.end_waits(id);
        Some(socket)
    }

    fn on_ready(&mut self, token: u64) {
        let id = token >> 1;
        if !self.see_arrival(id) {
            return;
        }
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        match (&mut socket.state, &socket.peer) {
            (State::Connecting { .. }, _) => self.on_connected(id),
            // One of its knocks has arrived, or has failed.
            (State::Listening { .. }, _) if token & 1 == 0 => self.on_knock(id),
            (State::Listening { .. }, _) => self.on_connection(id),
            (State::Stream(_), Some(peer)) => {
                // An end of its direction may be that of the program's last descriptor.
                if sys::events(peer, libc::POLLRDHUP) & libc::POLLRDHUP != 0 {
                    return self.on_ended(id);
                }
                self.advance(id);
                self.retry(id);
            }
            (State::Datagram(datagram), _) if datagram.is_closed() => self.on_closed(id),
            (State::Datagram(_), _) => self.on_datagrams(id),
            (State::Stream(_) | State::Fresh | State::Failed | State::Ended, _) => {}
        }
        self.watch(id);
    }

    /// The program's end writes no more: whether it is closed is known before it is told.
    fn on_ended(&mut self, id: u64) {
        self.see_closed();
        self.advance(id);
        self.retry(id);
        self.watch(id);
    }

    /// Moves what a stream can move. Datagrams that had come before what its path says now are with the program first: it
    /// may look for them when it has read that, by calls that nobody sees.
    fn advance(&mut self, id: u64) {
        for _ in 0..ROUNDS {
            let Some(Socket { state: State::Stream(stream), inner, .. }) = self.sockets.get_mut(&id) else {
                return;
            };
            let has_heard = stream.hear(inner, &mut self.space);
            if has_heard {
                self.bring_datagrams();
            }
            let Some(Socket { state: State::Stream(stream), peer: Some(peer), inner, .. }) =
                self.sockets.get_mut(&id)
            else {
                return;
            };
            let progress = stream.advance(peer, inner, &mut self.space);
            let is_done = !has_heard || stream.is_full();
            self.on_progress(id, &progress);
            if is_done {
                break;
            }
        }
    }

    /// Puts into the pairs all datagrams that have come.
    pub(crate) fn bring_datagrams(&mut self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let mut count = EVENTS;
        for _ in 0..ROUNDS {
            if count < EVENTS {
                break;
            }
            count = self.datagrams.wait(&mut events, 0).unwrap_or(0);
            for event in &events[..count] {
                self.on_ready(event.u64 << 1 | 1);
            }
        }
    }

    /// Looks at once for sockets that the program has closed.
    pub(crate) fn see_closed(&mut self) {
        for watch in self.closings.take() {
            let closed = match watch {
                Some(watch) => self.by_watch.get(&watch).copied().into_iter().collect(),
                None => self.lost(),
            };
            for id in closed {
                self.on_closed(id);
            }
        }
    }

    /// Sockets that nobody is known to have any more.
    fn lost(&self) -> Vec<u64> {
        // Of a socket that has been passed on others may have the last descriptor.
        let known = self.sockets.iter().filter(|(_, socket)| socket.named.is_some() && !socket.shared);
        let lost = known.filter(|(_, socket)| self.outer(socket).is_none());
        lost.map(|(&id, _)| id).collect()
    }

    /// The program has closed its last descriptor of a socket.
    fn on_closed(&mut self, id: u64) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        match (&mut socket.state, &socket.peer) {
            (State::Stream(stream), Some(_)) => {
                stream.on_closed();
                self.advance(id);
                self.watch(id);
            }
            (State::Datagram(datagram), Some(peer)) => {
                datagram.look_for_room(&socket.inner);
                if datagram.finish(peer, &socket.inner, &mut self.space) {
                    self.remove(id);
                    // Its port is free.
                    for id in std::mem::take(&mut self.binding) {
                        self.retry(id);
                    }
                } else {
                    self.watch(id);
                }
            }
            _ => drop(self.remove(id)),
        }
    }

    pub(crate) fn on_datagrams(&mut self, id: u64) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        let (State::Datagram(datagram), Some(peer)) = (&mut socket.state, &socket.peer) else { return };
        datagram.look_for_room(&socket.inner);
        let drained = datagram.drain(peer, &socket.inner, &mut self.space);
        let mut refilled = self.refill(id);
        let failed = refilled.as_ref().err().map(sys::errno);
        if failed.is_some() {
            // What lies behind it is no edge.
            refilled = self.refill(id);
        }
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        if matches!(refilled, Ok(Moved::More)) {
            // Watched anew it is an edge again.
            socket.watched.1 = Some(0);
        }
        if !matches!(drained, Ok(Moved::All)) {
            // So is what was written behind it.
            socket.watched.0 = Some(0);
        }
        if let Err(unsent) = drained {
            socket.on_unsent(sys::errno(&unsent));
        }
        if let Some(errno) = failed {
            socket.on_error(errno);
        }
        self.give_error(id);
        self.retry(id);
    }

    /// Puts into the pair what may lie there. Whoever waits for it in the kernel's call is to know from whom it is.
    ///
    /// # Errors
    /// An error that waited at the path.
    pub(crate) fn refill(&mut self, id: u64) -> io::Result<Moved> {
        let may_be_waited_at = self.may_be_waited_at(id);
        let Some(Socket { state: State::Datagram(datagram), peer: Some(_), inner, .. }) =
            self.sockets.get_mut(&id)
        else {
            return Ok(Moved::All);
        };
        if may_be_waited_at && (!datagram.look(inner, &mut self.space)? || self.fetch(id)) {
            return Ok(Moved::All);
        }
        match self.sockets.get_mut(&id) {
            Some(Socket { state: State::Datagram(datagram), peer: Some(peer), inner, .. }) => {
                datagram.refill(peer, inner, &mut self.space)
            }
            _ => Ok(Moved::All),
        }
    }

    /// What waits as an error of datagrams, the program's end is to have.
    pub(crate) fn give_error(&mut self, id: u64) {
        if !self.sockets.get(&id).is_some_and(Socket::owes_error) || self.fetch(id) {
            return;
        }
        let Some(owing) = self.sockets.get(&id) else { return };
        let outer = self.outer(owing);
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.give_error(outer.as_ref(), &mut self.space);
        }
    }

    /// A connection stands, or has failed.
    pub(crate) fn on_connected(&mut self, id: u64) {
        if self.fetch(id) {
            return;
        }
        let waited_for = self.is_waited_for(id);
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        socket.error = sys::pending_error(&socket.inner);
        if socket.error == 0 && sys::name(libc::getpeername, &socket.inner).is_err() {
            return;
        }
        let State::Connecting { attempt, address } = std::mem::replace(&mut socket.state, State::Fresh)
        else {
            return;
        };
        // The next call on the inner socket tells the end of this attempt once more: 0, or an error. A program that
        // waits has it from us; so has one that asks for SO_ERROR.
        if waited_for || socket.error != 0 {
            let _ = sys::with_address(libc::connect, &socket.inner, &address);
        }
        if socket.error == 0 {
            if let Err(error) = socket.establish(attempt) {
                socket.error = sys::errno(&error);
            }
        } else if waited_for {
            // It is told by the call alone.
            let outer = self.sockets.get(&id).and_then(|socket| self.outer(socket));
            let _ = outer.map(|outer| standin::release(&outer));
        } else {
            socket.state = State::Failed;
            attempt.fail();
        }
        self.retry(id);
    }

    fn on_progress(&mut self, id: u64, progress: &Progress) {
        if *progress == Progress::Open {
            return;
        }
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        if let State::Stream(stream) = &socket.state
            && stream.is_closed()
        {
            if *progress == Progress::Abandoned {
                sys::reset_at_close(&socket.inner);
            }
            self.remove(id);
            return;
        }
        socket.end(progress);
        if socket.named.is_none() && socket.arriving.is_none() {
            self.remove(id);
        }
    }

    /// The program's end of a socket that no call names now: where it was last, or at another number, of that process
    /// or of another one, which may be a child that has made no call yet.
    pub(crate) fn outer(&self, socket: &Socket) -> Option<OwnedFd> {
        let (thread, fd) = socket.seen;
        let inode = socket.inode().ok()?;
        target::duplicate(thread, fd, inode).ok().or_else(|| {
            let mut others: Vec<u32> = self.sockets.values().map(|other| other.seen.0).collect();
            others.push(thread);
            others.sort_unstable();
            others.dedup();
            let find = |&process: &u32| target::find(process, inode);
            others.iter().find_map(find).or_else(|| target::descendants(&others).iter().find_map(find))
        })
    }
}

/// Has a descriptor watched for these events, which was for those before.
fn change(poll: &sys::Poll, fd: &OwnedFd, events: (Option<u32>, Option<u32>), token: u64) -> io::Result<()> {
    match events {
        (None, Some(events)) => poll.add(fd, events, token),
        (Some(_), None) => {
            poll.remove(fd);
            Ok(())
        }
        (Some(old), Some(events)) if old != events => poll.set(fd, events, token),
        _ => Ok(()),
    }
}

/// A `struct timeval` as an option gives it; `None`: no limit.
pub(crate) fn time_limit(socket: &OwnedFd, name: i32) -> Option<Duration> {
    let mut value = [0; 16];
    sys::option(socket, libc::SOL_SOCKET, name, &mut value).ok()?;
    let [seconds, micros] =
        [0, 8].map(|at| value[at..at + 8].iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte)));
    Some(Duration::from_secs(seconds) + Duration::from_micros(micros)).filter(|limit| !limit.is_zero())
}
