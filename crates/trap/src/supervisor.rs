//! The loop: trapped calls, sockets that are ready, calls that wait.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::calls::Reply;
use crate::datagram::Filled;
use crate::listener::{Answer, Call, Delivery, Listener};
use crate::socket::{Socket, State, take_times};
use crate::stream::Progress;
use crate::{sys, target};

/// The listener's token; sockets have `id << 1`, and 1 more for their inner side.
const LISTENER: u64 = u64::MAX;
/// Events taken at a time.
const EVENTS: usize = 64;
/// Bytes moved at a time: also more than the largest datagram.
const SPACE: usize = 128 << 10;
/// Results kept for threads that a signal has interrupted.
const MAX_UNCLAIMED: usize = 1024;
/// From so many waiting calls on, those of threads that are gone are looked for.
const MANY_BLOCKED: usize = 256;
/// Ended connections of which the local name is still known.
const MAX_ENDED: usize = 1024;

/// A call that waits for its socket.
pub(crate) struct Blocked {
    call: Call,
    socket: u64,
    /// When to give up, and what to say then.
    deadline: Option<(Instant, i32)>,
}

/// The supervisor of one program and of all that it starts.
pub(crate) struct Supervisor {
    pub(crate) listener: Listener,
    poll: sys::Poll,
    next: u64,
    pub(crate) sockets: BTreeMap<u64, Socket>,
    pub(crate) by_inode: HashMap<u64, u64>,
    blocked: Vec<Blocked>,
    /// What has been done for a call whose thread a signal took away before the answer. The kernel restarts the
    /// call, or the program does; then it gets this and it is not done twice.
    unclaimed: BTreeMap<u32, (Call, i64)>,
    /// Inodes and local names of streams that have ended while the program still holds them.
    pub(crate) ended: VecDeque<(u64, Vec<u8>)>,
    pub(crate) space: Vec<u8>,
}

impl Supervisor {
    pub(crate) fn new(listener: OwnedFd) -> io::Result<Supervisor> {
        let poll = sys::Poll::new()?;
        sys::take_turns(&listener);
        poll.add(&listener, libc::EPOLLIN as u32, LISTENER)?;
        Ok(Supervisor {
            listener: Listener::new(listener),
            poll,
            next: 0,
            sockets: BTreeMap::new(),
            by_inode: HashMap::new(),
            blocked: Vec::new(),
            unclaimed: BTreeMap::new(),
            ended: VecDeque::new(),
            space: vec![0; SPACE],
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
                if token != LISTENER {
                    self.on_ready(token >> 1, token & 1 != 0, what & libc::EPOLLHUP as u32 != 0);
                } else if what & libc::EPOLLIN as u32 != 0 {
                    if let Some(call) = self.listener.receive()? {
                        self.on_call(call);
                    }
                } else {
                    program_gone = true;
                    self.poll.remove(self.listener.descriptor());
                }
            }
            self.give_up_late_calls();
        }
        Ok(())
    }

    fn limit_ms(&self) -> i32 {
        let deadlines = self.blocked.iter().filter_map(|blocked| blocked.deadline);
        let Some(first) = deadlines.map(|(when, _)| when).min() else { return -1 };
        let left = first.saturating_duration_since(Instant::now());
        // Rounded up, or the last millisecond would be spent spinning.
        i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX)
    }

    fn give_up_late_calls(&mut self) {
        if self.blocked.iter().all(|blocked| blocked.deadline.is_none()) {
            return;
        }
        let now = Instant::now();
        let late = |blocked: &Blocked| blocked.deadline.is_some_and(|(when, _)| when <= now);
        for blocked in self.blocked.extract_if(.., |blocked| late(blocked)) {
            let errno = blocked.deadline.map_or(libc::EAGAIN, |(_, errno)| errno);
            self.listener.answer(&blocked.call, &Answer::error(errno));
        }
    }

    fn on_call(&mut self, call: Call) {
        // What this thread waited for before was interrupted.
        self.blocked.retain(|blocked| blocked.call.thread != call.thread);
        if let Some((before, value)) = self.unclaimed.remove(&call.thread)
            && before.is_repeated_by(&call)
        {
            self.conclude(&call, &Answer::Value(value));
            return;
        }
        let reply = self.handle(&call, false);
        self.reply(call, reply);
    }

    fn reply(&mut self, call: Call, reply: Reply) {
        match reply {
            Reply::Now(answer) => self.conclude(&call, &answer),
            Reply::BrokenPipe => self.break_pipe(&call),
            Reply::Later { socket, limit, errno } => {
                if self.blocked.len() >= MANY_BLOCKED {
                    // Of threads that were killed meanwhile nobody else tells.
                    self.blocked.retain(|blocked| self.listener.is_valid(&blocked.call));
                }
                let deadline = limit.map(|limit| (Instant::now() + limit, errno));
                self.blocked.push(Blocked { call, socket, deadline });
            }
            Reply::Give { socket, outer, flags, from } => {
                match self.listener.answer(&call, &Answer::Descriptor(outer, flags)) {
                    Delivery::Done(number) => {
                        let mut socket = *socket;
                        socket.seen = (call.thread, number.unwrap_or(-1));
                        self.insert(socket);
                    }
                    Delivery::Gone => self.put_back(from, *socket),
                }
            }
        }
    }

    fn conclude(&mut self, call: &Call, answer: &Answer) {
        if self.listener.answer(call, answer) == Delivery::Gone
            && let Answer::Value(value) = *answer
            && (value >= 0 || value == -i64::from(libc::EINPROGRESS))
            && self.unclaimed.len() < MAX_UNCLAIMED
        {
            self.unclaimed.insert(call.thread, (*call, value));
        }
    }

    /// SIGPIPE belongs before the answer: who blocks it looks for it then. A handler of it would interrupt the call,
    /// which would be made again, and so runs after.
    fn break_pipe(&self, call: &Call) {
        let handled = target::handles(call.thread, libc::SIGPIPE);
        if !handled {
            sys::signal(call.thread, libc::SIGPIPE);
        }
        let delivery = self.listener.answer(call, &Answer::error(libc::EPIPE));
        if handled && delivery == Delivery::Done(None) {
            sys::signal(call.thread, libc::SIGPIPE);
        }
    }

    /// A connection that nobody has taken waits for the next `accept`.
    fn put_back(&mut self, from: Option<u64>, socket: Socket) {
        let listener = from.and_then(|from| self.sockets.get_mut(&from));
        if let Some(Socket { state: State::Listening { ready, .. }, .. }) = listener {
            ready.push_back(socket.inner);
        }
    }

    fn insert(&mut self, socket: Socket) {
        let id = self.next;
        self.next += 1;
        self.by_inode.insert(socket.inode, id);
        self.sockets.insert(id, socket);
        self.watch(id);
    }

    /// Waits for what the socket needs now.
    pub(crate) fn watch(&mut self, id: u64) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        let (peer, inner) = socket.interest();
        let (old_peer, old_inner) = std::mem::replace(&mut socket.watched, (peer, inner));
        let token = id << 1;
        let watched = match (old_peer, peer) {
            (None, Some(events)) => self.poll.add(&socket.peer, events, token),
            (Some(_), None) => {
                self.poll.remove(&socket.peer);
                Ok(())
            }
            (Some(old), Some(events)) if old != events => self.poll.set(&socket.peer, events, token),
            _ => Ok(()),
        };
        let watched = watched.and_then(|()| match (old_inner, inner) {
            (None, Some(events)) => self.poll.add(&socket.inner, events, token | 1),
            (Some(_), None) => {
                self.poll.remove(&socket.inner);
                Ok(())
            }
            (Some(old), Some(events)) if old != events => self.poll.set(&socket.inner, events, token | 1),
            _ => Ok(()),
        });
        if watched.is_err() {
            self.remove(id);
        }
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Socket> {
        let socket = self.sockets.remove(&id)?;
        self.by_inode.remove(&socket.inode);
        for blocked in self.blocked.extract_if(.., |blocked| blocked.socket == id) {
            self.listener.answer(&blocked.call, &Answer::error(libc::EINVAL));
        }
        Some(socket)
    }

    fn on_ready(&mut self, id: u64, inner: bool, hung_up: bool) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        let closed = hung_up && !inner;
        match &mut socket.state {
            State::Fresh | State::Failed | State::Listening { .. } if !inner => {
                // Closed; or written to although the connection has failed, which ends the pair.
                self.remove(id);
            }
            State::Fresh | State::Failed => {}
            State::Connecting { .. } => self.on_connected(id),
            State::Listening { .. } => self.on_connection(id),
            State::Stream(stream) => {
                let progress = stream.advance(&socket.peer, &socket.inner, closed, &mut self.space);
                self.on_progress(id, &progress);
                self.retry(id);
            }
            State::Datagram(_) => self.on_datagrams(id),
        }
        self.watch(id);
    }

    /// Looks at once for sockets that the program has closed.
    pub(crate) fn see_closed(&mut self) {
        let closed = self.sockets.iter().filter(|(_, socket)| sys::hung_up(&socket.peer));
        for id in closed.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.on_ready(id, false, true);
        }
    }

    fn on_datagrams(&mut self, id: u64) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        let State::Datagram(datagram) = &mut socket.state else { return };
        let (peer, inner) = (&socket.peer, &socket.inner);
        if datagram.has_read_error(peer) {
            socket.error = 0;
        }
        let drained = datagram.drain(peer, inner, &mut self.space);
        let refilled = datagram.refill(peer, inner, &mut self.space);
        if matches!(refilled, Ok(Filled::More)) {
            // Watched anew it is an edge again.
            socket.watched.1 = Some(0);
        }
        let failed = drained.as_ref().err().or(refilled.as_ref().err()).map(sys::errno);
        match failed.unwrap_or(socket.error) {
            0 => {}
            errno => socket.on_error(errno),
        }
        if drained.is_ok_and(|closed| closed) {
            self.remove(id);
        } else {
            self.retry(id);
        }
    }

    /// A connection stands, or has failed.
    fn on_connected(&mut self, id: u64) {
        let waited_for = self.blocked.iter().any(|blocked| blocked.socket == id);
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        socket.error = sys::pending_error(&socket.inner);
        if socket.error == 0 && sys::name(libc::getpeername, &socket.inner).is_err() {
            return;
        }
        let State::Connecting { outer, address } = std::mem::replace(&mut socket.state, State::Fresh) else {
            return;
        };
        // The next call on the inner socket tells the end of this attempt once more: 0, or an error. A program that
        // waits has it from us; so has one that asks for SO_ERROR.
        if waited_for || socket.error != 0 {
            let _ = sys::with_address(libc::connect, &socket.inner, &address);
        }
        if socket.error == 0 {
            socket.establish(&outer);
        } else {
            // There is nothing to wait for any more.
            let _ = take_times(&outer);
            if !waited_for {
                socket.remove_filler();
                socket.state = State::Failed;
            }
        }
        drop(outer);
        self.retry(id);
    }

    /// A connection waits to be accepted: by who waits for it, else the program's descriptor becomes readable.
    fn on_connection(&mut self, id: u64) {
        self.retry(id);
        if let Some(Socket { state: State::Listening { signalled, .. }, peer, inner, .. }) =
            self.sockets.get_mut(&id)
            && sys::readable(inner)
        {
            *signalled |= sys::send(peer, &[0]).is_ok();
        }
    }

    /// Tries the calls again that wait for a socket.
    pub(crate) fn retry(&mut self, id: u64) {
        let waiting: Vec<Call> =
            self.blocked.iter().filter(|blocked| blocked.socket == id).map(|blocked| blocked.call).collect();
        for call in waiting {
            if !self.listener.is_valid(&call) {
                self.blocked.retain(|blocked| blocked.call.id != call.id);
                continue;
            }
            match self.handle(&call, true) {
                // It keeps its place and its deadline.
                Reply::Later { .. } => {}
                reply => {
                    self.blocked.retain(|blocked| blocked.call.id != call.id);
                    self.reply(call, reply);
                }
            }
        }
    }

    fn on_progress(&mut self, id: u64, progress: &Progress) {
        if *progress == Progress::Open {
            return;
        }
        let Some(socket) = self.remove(id) else { return };
        match progress {
            Progress::Abandoned => {
                // `struct linger`: on, no seconds. Closing is a reset then.
                let now = [1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat();
                let _ = sys::set_option(&socket.inner, libc::SOL_SOCKET, libc::SO_LINGER, &now);
            }
            Progress::Reset(_) => {
                // An end that closes over unread bytes resets the other one.
                if let Some(outer) = self.outer(&socket) {
                    let _ = sys::send(&outer, &[0]);
                }
                self.remember(&socket);
            }
            Progress::Done | Progress::Open => self.remember(&socket),
        }
    }

    /// The program's end of a socket that no call names now: where it was last, or at another number, of that process
    /// or of another one.
    fn outer(&self, socket: &Socket) -> Option<OwnedFd> {
        let (thread, fd) = socket.seen;
        target::duplicate(thread, fd, socket.inode).ok().or_else(|| {
            let mut others: Vec<u32> = self.sockets.values().map(|other| other.seen.0).collect();
            others.push(thread);
            others.sort_unstable();
            others.dedup();
            others.into_iter().find_map(|process| target::find(process, socket.inode))
        })
    }

    fn remember(&mut self, socket: &Socket) {
        if let Ok(name) = sys::name(libc::getsockname, &socket.inner) {
            self.ended.push_back((socket.inode, name));
            if self.ended.len() > MAX_ENDED {
                self.ended.pop_front();
            }
        }
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
