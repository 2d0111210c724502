//! Calls that wait for a socket.
//!
//! ```text
//!   taken ──▶ blocked ── after 10 ms, if the kernel's call would wait there as well ──▶ left to the kernel
//!               ▲  └── something has come, or its time is over ──▶ answered              │
//!               └────────────── the thread makes it anew ◀── fetched, before anything comes to its end
//! ```
//! A call that is blocked is in the supervisor's hands: only fatal signals end it ([`crate::signals`]). One that is left to
//! the kernel waits at the program's end, where nothing comes, like any other: signals, a debugger and a stop are the
//! kernel's business. Before something does come there, or when its time is over, its thread is fetched (`ptrace(2)`), so
//! that the call is trapped again, and answered with an address or a connection.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::calls::Reply;
use crate::listener::{Answer, Call, Delivery};
use crate::signals::{self, Pending, Stops, Watch};
use crate::socket::{Socket, State};
use crate::supervisor::{ENDED, Supervisor};
use crate::sys::{self, Stop};
use crate::target::{self, Place};

/// How long a call is blocked at most, if it can be left to the kernel: that, and to fetch its thread, takes some 350 µs.
const SHORT: Duration = Duration::from_millis(10);
/// How often is looked whether a thread has ended.
const ENDS: Duration = Duration::from_millis(1);
/// From so many waiting calls on, those of threads that are gone are looked for.
const MANY: usize = 256;

/// All calls that wait.
pub(crate) struct Waits {
    blocked: Vec<Wait>,
    /// Those that the kernel has, by thread.
    left: HashMap<u32, Left>,
    /// Threads that end, and are to be waited for.
    ending: Vec<u32>,
    /// The number that the next call has, if none is missing.
    next_id: Option<u64>,
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
    /// Its thread has just looked for signals.
    is_fresh: bool,
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
            ending: Vec::new(),
            next_id: None,
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

    /// The kernel numbers calls one by one (`seccomp_next_notify_id`). One that was ended by a signal before it was taken leaves
    /// a gap: it may be what a fetched thread made, and the next one, which has all of its time before it, looks like it.
    fn see_number(&mut self, id: u64) {
        if self.next_id.replace(id.wrapping_add(1)).is_some_and(|expected| expected != id) {
            self.left.retain(|_, left| !left.fetched || left.wait.deadline.is_none());
        }
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
        let left = self.waits.left.values().filter(|left| !left.fetched);
        let ends = left.filter_map(|left| left.wait.deadline).map(|(when, _)| when);
        let ending = self.waits.ending.first().map(|_| Instant::now() + ENDS);
        self.waits.blocked.iter().flat_map(of).flatten().chain(ends).chain(ending).min()
    }

    pub(crate) fn see_to_waits(&mut self) {
        self.waits.ending.retain(|&thread| !sys::reap(thread));
        self.fetch_late_calls();
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
        let signals = Watch::new(now);
        self.waits.blocked.push(Wait { call, socket, deadline, leaves, is_fresh: false, signals, held });
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
            Reply::Later { .. } => Some(wait),
            reply => {
                self.reply(wait.call, reply);
                None
            }
        }
    }

    /// A socket is gone.
    pub(crate) fn end_waits(&mut self, id: u64) {
        for wait in self.waits.blocked.extract_if(.., |wait| wait.socket == id) {
            self.listener.answer(&wait.call, &Answer::error(libc::EINVAL));
        }
        self.waits.left.retain(|_, left| left.wait.socket != id);
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
        let [_, _, second, third, ..] = call.arguments;
        // The pair refuses what UDP takes no notice of.
        let is_plain = |flags: u64| flags as i32 & libc::MSG_OOB == 0;
        match call.number {
            libc::SYS_recvfrom | libc::SYS_recvmmsg => fetches && can_again && is_plain(third),
            libc::SYS_recvmsg => fetches && can_again && is_plain(second),
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
            let (is_traced, has_others) = target::company(wait.call.thread);
            if is_traced || !self.may_leave(&wait) {
                self.waits.blocked.push(wait);
            } else if has_others && wait.deadline.is_some() && !wait.is_fresh {
                // A signal that another thread took may have left a mark, for which it would say EINTR.
                self.interrupt(wait, false);
            } else if let Delivery::Done(_) = self.listener.answer(&wait.call, &Answer::Native) {
                wait.held = None;
                self.waits.left.insert(wait.call.thread, Left { wait, fetched: false });
            }
        }
    }

    /// The kernel has the same call before it as we, and nothing would end it there.
    fn may_leave(&self, Wait { call, socket, .. }: &Wait) -> bool {
        let Some(socket) = self.sockets.get(socket) else { return false };
        let is_empty = match &socket.state {
            State::Listening { waiting, .. } => waiting.is_empty(),
            _ => true,
        };
        let found = target::descriptor(call.thread, call.fd());
        let is_it = found
            .is_some_and(|found| !found.non_blocking && socket.inode().is_ok_and(|it| it == found.inode));
        is_empty && is_it && target::place(call) == Place::InCall
    }

    /// Something is to come to the program's end of a socket: who waits there in the kernel's call makes it again first.
    pub(crate) fn fetch(&mut self, id: u64) {
        let here: Vec<_> = self.waits.left_at(id).collect();
        self.fetch_all(&here);
    }

    /// The kernel began the time of a call anew when it got it.
    fn fetch_late_calls(&mut self) {
        let now = Instant::now();
        let is_late = |left: &Left| !left.fetched && left.wait.deadline.is_some_and(|(when, _)| when <= now);
        let late: Vec<_> =
            self.waits.left.iter().filter(|(_, left)| is_late(left)).map(|(&it, _)| it).collect();
        self.fetch_all(&late);
    }

    fn fetch_all(&mut self, threads: &[u32]) {
        for thread in threads {
            if let Some(left) = self.waits.left.remove(thread)
                && let Some(wait) = self.fetch_one(left.wait)
            {
                self.waits.left.insert(*thread, Left { wait, fetched: true });
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
            // It would be made with whatever has the number now; the stand-in tells it by itself.
            if call.number == libc::SYS_connect {
                return None;
            }
            // The number is closed, or another file's.
            let Some(outer) = self.outer(socket) else {
                // Nobody has the socket any more but this one call: what comes is its, and it could not be made again.
                self.share(id);
                return None;
            };
            wait.held = self.hold(outer, call.thread);
        }
        wait.is_fresh = false;
        match sys::stop(call.thread, || {}) {
            Ok(stop) => self.release(stop).then_some(wait),
            // Who is traced meanwhile has been fetched by that.
            Err(_) => Some(wait),
        }
    }

    /// Lets a thread go on: whether it makes its call again at once, as far as is known.
    fn release(&mut self, stop: Stop) -> bool {
        match stop {
            Stop::Ended => false,
            Stop::Ends(thread) => {
                self.waits.ending.push(thread);
                false
            }
            Stop::Stopped(stopped) => {
                let thread = stopped.thread;
                let makes_it_again = stopped.signal == 0 && !signals::are_pending(thread);
                let goes_on = stopped.release();
                if !goes_on {
                    self.waits.ending.push(thread);
                }
                goes_on && makes_it_again
            }
        }
    }

    /// A call comes, and is what its thread was fetched from: it waits on, or is answered. Whatever else comes, what that
    /// thread did before is over.
    pub(crate) fn resume(&mut self, call: &Call) -> bool {
        self.waits.see_number(call.id);
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
            let can_leave = self.can_leave(call, wait.socket, wait.deadline.is_some());
            wait.leaves = can_leave.then_some(if wait.is_fresh { now } else { now + SHORT });
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
    fn interrupt(&mut self, mut wait: Wait, is_sure: bool) {
        let (call, is_limited) = (wait.call, wait.deadline.is_some());
        let answer = |errno| {
            self.listener.answer(&call, &Answer::error(errno));
        };
        let errno = if is_limited { sys::ERESTARTNOHAND } else { sys::ERESTARTSYS };
        match sys::stop(call.thread, || answer(errno)) {
            Ok(stop) => {
                if self.release(stop) {
                    wait.is_fresh = true;
                    self.waits.left.insert(call.thread, Left { wait, fetched: true });
                }
            }
            // A debugger has it. Without a signal its program would be told that number.
            Err(_) => answer(if is_sure { errno } else { libc::EINTR }),
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
