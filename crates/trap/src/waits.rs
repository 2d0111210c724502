//! Calls that wait for a socket.
//!
//! ```text
//!   taken ──▶ blocked ── after 10 ms, if the kernel's call would wait there as well ──▶ left to the kernel
//!               ▲  └── something has come, or its time is over ──▶ answered              │
//!               └────────────── the thread makes it anew ◀── fetched, before anything comes to its end
//! ```
//! A call that is blocked is in the supervisor's hands: only fatal signals end it ([`crate::signals`]). One that is left to
//! the kernel waits at the program's end, where nothing comes, like any other: signals, a debugger, a stop and the end of its
//! time are the kernel's business. Before something does come there, its thread is fetched (`ptrace(2)`), so that the call
//! is trapped again, and answered with an address or a connection.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::calls::Reply;
use crate::listener::{Answer, Call, Delivery};
use crate::signals::{Pending, Stops, Watch};
use crate::socket::{Socket, State};
use crate::supervisor::{ENDED, Supervisor};
use crate::sys;
use crate::target::{self, Place};

/// How long a call is blocked at most, if it can be left to the kernel: that, and to fetch its thread, takes some 350 µs.
const SHORT: Duration = Duration::from_millis(10);
/// From so many waiting calls on, those of threads that are gone are looked for.
const MANY: usize = 256;

/// All calls that wait.
pub(crate) struct Waits {
    blocked: Vec<Wait>,
    /// Those that the kernel has, by thread.
    left: HashMap<u32, Left>,
    stops: Stops,
    /// So many are looked through for those of threads that are gone.
    crowd: usize,
    /// Threads can be fetched, and listening sockets be kept for ourselves.
    means: (bool, bool),
}

/// A call that waits for its socket.
struct Wait {
    call: Call,
    socket: u64,
    /// When to give up, and what to say then.
    deadline: Option<(Instant, i32)>,
    /// When it is left to the kernel.
    leaves: Option<Instant>,
    signals: Watch,
    held: Option<Held>,
}

/// One that the kernel has, or that was fetched and is not here yet.
struct Left {
    wait: Wait,
    fetched: bool,
}

/// What a call that waits holds: a socket that is closed meanwhile is open until the call has ended.
struct Held {
    /// The program's end of the socket.
    outer: OwnedFd,
    /// Watched: with the thread the call ends.
    _thread: OwnedFd,
}

impl Waits {
    pub(crate) fn new() -> Waits {
        let fetches = sys::can_fetch();
        Waits {
            blocked: Vec::new(),
            left: HashMap::new(),
            stops: Stops::default(),
            crowd: MANY,
            means: (fetches, fetches && crate::can_connect()),
        }
    }

    /// The program is gone: nobody waits any more, and what a call holds would never be closed.
    pub(crate) fn clear(&mut self) {
        self.blocked.clear();
        self.left.clear();
    }

    /// The threads whose calls at a socket the kernel has.
    fn left_at(&self, socket: u64) -> impl Iterator<Item = u32> {
        let here = self.left.iter().filter(move |(_, left)| left.wait.socket == socket && !left.fetched);
        here.map(|(&thread, _)| thread)
    }

    pub(crate) fn are_left_at(&self, socket: u64) -> bool {
        self.left_at(socket).next().is_some()
    }
}

impl Supervisor {
    /// When the next of them wants something.
    pub(crate) fn next_wait(&self) -> Option<Instant> {
        let of = |wait: &Wait| {
            let look = self.is_looked_at(wait).then(|| wait.signals.next());
            [wait.deadline.map(|(when, _)| when), wait.leaves, look]
        };
        self.waits.blocked.iter().flat_map(of).flatten().min()
    }

    pub(crate) fn see_to_waits(&mut self) {
        if !self.waits.blocked.is_empty() {
            self.give_up_late_calls();
            self.leave_long_waits();
            self.look_for_signals();
        }
    }

    /// A call waits for a socket, and perhaps holds the program's end of it.
    pub(crate) fn wait(
        &mut self,
        call: Call,
        socket: u64,
        limit: Option<(Duration, i32)>,
        outer: Option<OwnedFd>,
    ) {
        if self.waits.blocked.len() + self.waits.left.len() >= self.waits.crowd {
            self.drop_ended_calls();
            self.waits.crowd = MANY.max(2 * (self.waits.blocked.len() + self.waits.left.len()));
        }
        let now = Instant::now();
        let deadline = limit.map(|(limit, errno)| (now + limit, errno));
        let leaves = self.can_leave(&call, socket, limit.is_some()).then(|| now + SHORT);
        let held = outer.and_then(|outer| self.hold(outer, call.thread));
        self.waits.blocked.push(Wait { call, socket, deadline, leaves, signals: Watch::new(now), held });
    }

    /// Not where its end cannot be watched (EMFILE): the socket would stay open for good.
    fn hold(&self, outer: OwnedFd, thread: u32) -> Option<Held> {
        let thread = sys::end_of_thread(thread).ok()?;
        self.poll.add(&thread, libc::EPOLLIN as u32, ENDED).ok()?;
        Some(Held { outer, _thread: thread })
    }

    /// Calls that wait no more: their threads were killed, or a signal took them away.
    pub(crate) fn drop_ended_calls(&mut self) {
        self.waits.blocked.retain(|wait| self.listener.is_valid(&wait.call));
        self.waits.left.retain(|&thread, _| target::exists(thread));
    }

    /// A call is here that waits for this socket.
    pub(crate) fn is_waited_for(&self, id: u64) -> bool {
        self.waits.blocked.iter().any(|wait| wait.socket == id)
    }

    /// Tries the calls again that wait for a socket.
    pub(crate) fn retry(&mut self, id: u64) {
        let waiting: Vec<_> = self.waits.blocked.extract_if(.., |wait| wait.socket == id).collect();
        for wait in waiting {
            let waits = self.try_again(wait);
            // It keeps its place and its deadline.
            self.waits.blocked.extend(waits);
        }
    }

    /// The call, if it waits on.
    fn try_again(&mut self, wait: Wait) -> Option<Wait> {
        if !self.listener.is_valid(&wait.call) {
            return None;
        }
        match self.handle_again(&wait.call, wait.socket, wait.held.as_ref().map(|held| &held.outer)) {
            Reply::Later { .. } => return Some(wait),
            reply => self.reply(wait.call, reply),
        }
        None
    }

    /// A socket is gone.
    pub(crate) fn end_waits(&mut self, id: u64) {
        for wait in self.waits.blocked.extract_if(.., |wait| wait.socket == id) {
            self.listener.answer(&wait.call, &Answer::error(libc::EINVAL));
        }
    }

    fn give_up_late_calls(&mut self) {
        let now = Instant::now();
        for wait in &mut self.waits.blocked {
            if let Some((_, errno)) = wait.deadline.filter(|&(when, _)| when <= now) {
                self.listener.answer(&wait.call, &Answer::error(errno));
            }
        }
        self.waits.blocked.retain(|wait| wait.deadline.is_none_or(|(when, _)| when > now));
    }

    /// The kernel's call would wait for the same at the program's end.
    fn can_leave(&self, call: &Call, socket: u64, is_limited: bool) -> bool {
        let (fetches, keeps) = self.waits.means;
        let can_again = !is_limited || sys::RESTARTS_LIMITED;
        match call.number {
            libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_recvmmsg => fetches && can_again,
            libc::SYS_accept | libc::SYS_accept4 => keeps && can_again,
            // What it says at the end of its time is not what this one says.
            libc::SYS_connect => {
                let state = self.sockets.get(&socket).map(|socket| &socket.state);
                fetches && !is_limited && matches!(state, Some(State::Connecting { .. }))
            }
            _ => false,
        }
    }

    fn leave_long_waits(&mut self) {
        let now = Instant::now();
        let is_due = |wait: &mut Wait| wait.leaves.is_some_and(|when| when <= now);
        let due: Vec<_> = self.waits.blocked.extract_if(.., is_due).collect();
        for wait in due {
            // Nothing lies at its end, then.
            let Some(mut wait) = self.try_again(wait) else { continue };
            wait.leaves = None;
            if !self.may_leave(&wait) {
                self.waits.blocked.push(wait);
            } else if let Delivery::Done(_) = self.listener.answer(&wait.call, &Answer::Native) {
                wait.held = None;
                self.waits.left.insert(wait.call.thread, Left { wait, fetched: false });
            }
        }
    }

    /// The kernel has the same call before it as we, nothing would end it there, and its thread can be fetched.
    fn may_leave(&self, Wait { call, socket, .. }: &Wait) -> bool {
        let Some(socket) = self.sockets.get(socket) else { return false };
        let is_empty = match &socket.state {
            State::Listening { waiting, .. } => waiting.is_empty(),
            _ => true,
        };
        let found = target::descriptor(call.thread, call.fd());
        let is_it = found
            .is_some_and(|found| !found.non_blocking && socket.inode().is_ok_and(|it| it == found.inode));
        is_empty && is_it && target::place(call) == Place::InCall && !target::is_traced(call.thread)
    }

    /// Something is to come to the program's end of a socket: who waits there in the kernel's call makes it again first.
    pub(crate) fn fetch(&mut self, id: u64) {
        for thread in self.waits.left_at(id).collect::<Vec<_>>() {
            if let Some(left) = self.waits.left.remove(&thread)
                && let Some(wait) = self.fetch_one(left.wait)
            {
                self.waits.left.insert(thread, Left { wait, fetched: true });
            }
        }
    }

    /// The call, if it is to come again.
    fn fetch_one(&mut self, mut wait: Wait) -> Option<Wait> {
        let Wait { call, socket: id, .. } = wait;
        if target::place(&call) == Place::Elsewhere {
            return None;
        }
        let socket = self.sockets.get(&id)?;
        if !is_at(&call, socket) {
            // The number is closed, or another file's.
            let Some(outer) = self.outer(socket) else {
                // Nobody has the socket any more but this one call: what comes is its, and it could not be made again.
                self.share(id);
                return None;
            };
            wait.held = self.hold(outer, call.thread);
        }
        // Who is traced meanwhile has been fetched by that.
        let _ = sys::fetch(call.thread, call.number, || {});
        Some(wait)
    }

    /// A call comes, and is what its thread was fetched from: it waits on, or is answered. Whatever else comes, what that
    /// thread did before is over.
    pub(crate) fn resume(&mut self, call: &Call) -> bool {
        // On Linux before 5.19 a signal has ended what this thread waited for before.
        self.waits.blocked.retain(|wait| wait.call.thread != call.thread);
        let Some(Left { mut wait, fetched }) = self.waits.left.remove(&call.thread) else { return false };
        // Who connects again waits for the connection that the socket has.
        if !fetched || !wait.call.is_like(call) || call.number == libc::SYS_connect {
            return false;
        }
        wait.call = *call;
        if let Some(mut wait) = self.try_again(wait) {
            let now = Instant::now();
            // What has a limit would begin it anew.
            wait.leaves = wait.deadline.is_none().then(|| now + SHORT);
            wait.signals = Watch::new(now);
            self.waits.blocked.push(wait);
        }
        true
    }

    /// Interrupts calls whose threads may have signals to take.
    fn look_for_signals(&mut self) {
        let now = Instant::now();
        let mut stops = std::mem::take(&mut self.waits.stops);
        let blocked = std::mem::take(&mut self.waits.blocked);
        let count = blocked.len();
        for mut wait in blocked {
            let is_looked_at = self.is_looked_at(&wait);
            let pending = is_looked_at.then(|| wait.signals.look(&wait.call, count, &mut stops, now));
            match pending.unwrap_or(Pending::Nobody) {
                Pending::Nobody => self.waits.blocked.push(wait),
                pending => self.interrupt(wait, pending == Pending::This),
            }
        }
        self.waits.stops = stops;
    }

    /// Has the kernel do what signals want of a call that is blocked: there may be none, unless that is sure.
    fn interrupt(&mut self, wait: Wait, is_sure: bool) {
        let (call, is_limited) = (wait.call, wait.deadline.is_some());
        let answer = |errno| {
            self.listener.answer(&call, &Answer::error(errno));
        };
        let errno = if is_limited { sys::ERESTARTNOHAND } else { sys::ERESTARTSYS };
        if sys::fetch(call.thread, call.number, || answer(errno)).is_err() {
            // A debugger has it. Without a signal its program would be told that number.
            return answer(if is_sure { errno } else { libc::EINTR });
        }
        // The same call has the same socket again, also where its number is another one's.
        if !is_limited && !self.sockets.get(&wait.socket).is_some_and(|socket| is_at(&call, socket)) {
            self.waits.left.insert(call.thread, Left { wait, fetched: true });
        }
    }

    /// It waits here for long, and in the kernel signals would end it.
    fn is_looked_at(&self, wait: &Wait) -> bool {
        let is_datagram =
            |id| matches!(self.sockets.get(id).map(|socket| &socket.state), Some(State::Datagram(_)));
        let is_interruptible = match wait.call.number {
            libc::SYS_bind => false,
            libc::SYS_connect => !is_datagram(&wait.socket),
            _ => true,
        };
        wait.leaves.is_none() && is_interruptible
    }
}

/// The number that a call names is still this socket's.
fn is_at(call: &Call, socket: &Socket) -> bool {
    let found = target::descriptor(call.thread, call.fd());
    found.map(|found| found.inode) == socket.inode().ok()
}
