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

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::arrivals::Connection;
use crate::calls::Reply;
use crate::fetch::{Left, Stage};
use crate::listener::{Answer, Call, Delivery};
use crate::signals::{JobControl, Pending, Watch};
use crate::socket::State;
use crate::supervisor::{ENDED, Supervisor, time_limit};
use crate::sys;
use crate::target::{self, Place, Status};

/// How long a call is blocked at least, if it can be left to the kernel: that, and to fetch its thread, takes some 350 µs;
/// and at most, if it was fetched in vain or could not be left again and again.
const STAYS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(640)];
/// From so many waiting calls on, those of threads that are gone are looked for.
const MANY: usize = 256;

/// All calls that wait.
pub(crate) struct Waits {
    blocked: Vec<Wait>,
    /// Those that the kernel has, by thread.
    pub(crate) left: HashMap<u32, Left>,
    /// Sockets for which something is kept back until nobody waits there in the kernel's calls.
    pub(crate) kept_back: BTreeSet<u64>,
    /// Of that: connections that calls were to have, with the listening socket and the program's end.
    pub(crate) returned: Vec<(u64, Connection, OwnedFd)>,
    /// The number that the next call has, if none is missing.
    next_id: Option<u64>,
    control: JobControl,
    /// So many are looked through for those of threads that are gone.
    crowd: usize,
    means: Means,
}

/// What the system lets us do.
#[derive(Clone, Copy)]
struct Means {
    /// Threads can be fetched.
    fetches: bool,
    /// Listening stand-ins can be kept for ourselves.
    keeps: bool,
}

/// A call that waits for its socket.
pub(crate) struct Wait {
    pub(crate) call: Call,
    pub(crate) socket: u64,
    /// When to give up, and what to say then.
    deadline: Option<(Instant, i32)>,
    /// How long it may wait, as its socket said when it began to.
    limit: Option<Duration>,
    /// When it is left to the kernel, and how long it is blocked until then.
    leaves: Option<Instant>,
    stays: Duration,
    /// Its thread has just looked for signals.
    pub(crate) is_fresh: bool,
    signals: Watch,
    pub(crate) held: Option<Held>,
}

/// What a call that waits holds: a socket that is closed meanwhile is open until the call has ended.
pub(crate) struct Held {
    /// The program's end of the socket, which all that wait for it share.
    outer: Rc<OwnedFd>,
    /// Watched: with the thread the call ends.
    _thread: OwnedFd,
}

impl Waits {
    pub(crate) fn new() -> Waits {
        let fetches = sys::can_fetch();
        let keeps = fetches && crate::can_connect();
        Waits {
            blocked: Vec::new(),
            left: HashMap::new(),
            kept_back: BTreeSet::new(),
            returned: Vec::new(),
            next_id: None,
            control: JobControl::default(),
            crowd: MANY,
            means: Means { fetches, keeps },
        }
    }

    /// The program is gone: nobody waits any more, and what is held would never be closed.
    pub(crate) fn clear(&mut self) {
        self.blocked.clear();
        self.left.clear();
        self.returned.clear();
    }

    /// The kernel numbers calls one by one (`seccomp_next_notify_id`). One that was ended by a signal before it was taken leaves
    /// a gap: it may be what a fetched thread made, and the next one, which has all of its time before it, looks like it.
    fn see_number(&mut self, id: u64) {
        if self.next_id.replace(id.wrapping_add(1)).is_some_and(|expected| expected != id) {
            self.left.retain(|_, left| !left.is_fetched() || left.wait.deadline.is_none());
        }
    }

    /// The threads whose calls at a socket the kernel has.
    pub(crate) fn left_at(&self, socket: u64) -> impl Iterator<Item = u32> {
        let here = self.left.iter().filter(move |(_, left)| left.is_at(socket));
        here.map(|(&thread, _)| thread)
    }

    /// The program's end of a socket, if a call that waits for it holds that.
    fn held(&self, socket: u64) -> Option<Rc<OwnedFd>> {
        let left = self.left.values().map(|left| &left.wait);
        let mut waiting = self.blocked.iter().chain(left).filter(|wait| wait.socket == socket);
        waiting.find_map(|wait| wait.held.as_ref().map(|held| Rc::clone(&held.outer)))
    }

    /// Connections that wait to be put back there.
    pub(crate) fn returned_to(&mut self, listener: u64) -> Vec<(Connection, OwnedFd)> {
        let returned = self.returned.extract_if(.., |(to, ..)| *to == listener);
        returned.map(|(_, connection, theirs)| (connection, theirs)).collect()
    }
}

impl Supervisor {
    /// When the next of them wants something.
    pub(crate) fn next_wait(&self) -> Option<Instant> {
        let of = |wait: &Wait| {
            let look = self.is_looked_at(wait).then(|| wait.signals.next());
            [wait.deadline.map(|(when, _)| when), wait.leaves, look]
        };
        let left = self.waits.left.values().filter_map(Left::next);
        self.waits.blocked.iter().flat_map(of).flatten().chain(left).min()
    }

    pub(crate) fn see_to_waits(&mut self) {
        self.see_fetched();
        self.see_to_left();
        self.see_to_kept_back();
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
        let limit = limit.map(|(limit, _)| limit);
        let [stays, _] = STAYS;
        let leaves = self.can_leave(&call, socket, limit.is_some()).then(|| now + stays);
        let held = outer.and_then(|outer| self.hold(socket, outer, call.thread));
        let signals = Watch::new(now);
        let wait = Wait { call, socket, deadline, limit, leaves, stays, is_fresh: false, signals, held };
        self.waits.blocked.push(wait);
    }

    /// Not where its end cannot be watched (EMFILE): the socket would stay open for good.
    pub(crate) fn hold(&self, socket: u64, outer: OwnedFd, thread: u32) -> Option<Held> {
        let thread = sys::end_of_thread(thread).ok()?;
        self.poll.add(&thread, libc::EPOLLIN as u32, ENDED).ok()?;
        let outer = self.waits.held(socket).unwrap_or_else(|| Rc::new(outer));
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
        let mut in_vain = None;
        for wait in waiting {
            let takes = taking(&wait.call);
            // What the one before it did not find is not there.
            let is_in_vain = takes.is_some() && takes == in_vain;
            if !is_in_vain && wait.is_called_away() {
                self.interrupt(wait, true);
                continue;
            }
            let waits = if is_in_vain { Some(wait) } else { self.try_again(wait) };
            if waits.is_some() {
                in_vain = takes;
            }
            // It keeps its place and its deadline.
            self.waits.blocked.extend(waits);
        }
    }

    /// The call, if it waits on.
    fn try_again(&mut self, wait: Wait) -> Option<Wait> {
        if !self.listener.is_valid(&wait.call) {
            return None;
        }
        match self.handle_again(&wait.call, wait.socket, wait.held.as_ref().map(|held| &*held.outer)) {
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
        let Means { fetches, keeps } = self.waits.means;
        let can_again = !is_limited || sys::IS_CERTAIN;
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
            let status = Status::of(wait.call.thread);
            let Some(status) = status.filter(|status| status.tracer == 0 && self.may_leave(&wait)) else {
                wait.stay(now);
                self.waits.blocked.push(wait);
                continue;
            };
            if status.threads > 1 && wait.deadline.is_some() && !wait.is_fresh {
                // A signal that another thread took may have left a mark, for which it would say EINTR.
                self.interrupt(wait, false);
            } else if let Delivery::Done(_) = self.listener.answer(&wait.call, &Answer::Native) {
                wait.held = None;
                self.waits.left.insert(wait.call.thread, Left { wait, stage: Stage::There });
            }
        }
    }

    /// The kernel has the same call before it as we, and nothing would end it there.
    fn may_leave(&self, Wait { call, socket, limit, .. }: &Wait) -> bool {
        let Some(socket) = self.sockets.get(socket) else { return false };
        let is_empty = match &socket.state {
            State::Listening { waiting, .. } => waiting.is_empty(),
            _ => true,
        };
        let found = target::descriptor(call.thread, call.fd());
        let is_it = found
            .is_some_and(|found| !found.non_blocking && socket.inode().is_ok_and(|it| it == found.inode));
        // The program may have set another one meanwhile, which is not this call's.
        let its_limit = if call.number == libc::SYS_connect { libc::SO_SNDTIMEO } else { libc::SO_RCVTIMEO };
        let same_limit = time_limit(&socket.inner, its_limit) == *limit;
        is_empty && is_it && same_limit && target::place(call) == Place::InCall
    }

    /// A call comes, and is what its thread was fetched from: it waits on, or is answered. Whatever else comes, what that
    /// thread did before is over.
    pub(crate) fn resume(&mut self, call: &Call) -> bool {
        // Whether it comes has been told before it did.
        self.see_fetched();
        self.waits.see_number(call.id);
        // On Linux before 5.19 a signal has ended what this thread waited for before.
        self.waits.blocked.retain(|wait| wait.call.thread != call.thread);
        let left = self.waits.left.remove(&call.thread);
        if self.fetchers.stops(call.thread) {
            // From here only an answer lets it do so, and then it makes this call.
            self.listener.answer(call, &Answer::error(sys::ERESTARTNOINTR));
            return true;
        }
        let Some(left) = left else { return false };
        let is_fetched = left.is_fetched();
        let mut wait = left.wait;
        // Who connects again waits for the connection that the socket has, if for as long as he likes.
        let is_anew = call.number == libc::SYS_connect && wait.deadline.is_none();
        if !is_fetched || !wait.call.is_like(call) || is_anew {
            return false;
        }
        wait.call = *call;
        if !wait.is_fresh && wait.is_called_away() {
            self.interrupt(wait, true);
            return true;
        }
        if let Some(mut wait) = self.try_again(wait) {
            let now = Instant::now();
            wait.signals.begin_again(now, self.waits.blocked.len());
            if !self.can_leave(call, wait.socket, wait.deadline.is_some()) {
                wait.leaves = None;
            } else if wait.is_fresh {
                wait.leaves = Some(now);
            } else {
                wait.stay(now);
            }
            self.waits.blocked.push(wait);
        }
        true
    }

    /// Interrupts calls whose threads may have signals to take.
    fn look_for_signals(&mut self) {
        let now = Instant::now();
        let mut control = std::mem::take(&mut self.waits.control);
        let blocked = std::mem::take(&mut self.waits.blocked);
        let count = blocked.len();
        for mut wait in blocked {
            let is_looked_at = self.is_looked_at(&wait);
            let pending = is_looked_at.then(|| wait.signals.look(&wait.call, count, &mut control, now));
            match pending.unwrap_or(Pending::Nobody) {
                Pending::Nobody => self.waits.blocked.push(wait),
                pending => self.interrupt(wait, pending == Pending::This),
            }
        }
        self.waits.control = control;
    }

    /// Has the kernel do what signals want of a call that is blocked: there may be none, unless that is sure.
    fn interrupt(&mut self, mut wait: Wait, is_sure: bool) {
        let errno = if wait.deadline.is_some() { sys::ERESTARTNOHAND } else { sys::ERESTARTSYS };
        // A debugger has it: without a signal its program would be told the kernel's number.
        let of_debugged = if is_sure { errno } else { libc::EINTR };
        wait.is_fresh = true;
        self.give_to_fetcher(wait, Some([errno, of_debugged]), Instant::now());
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
        (wait.leaves.is_none() || wait.stays > STAYS[0]) && is_interruptible
    }
}

impl Wait {
    /// When its time is over.
    pub(crate) fn ends(&self) -> Option<Instant> {
        self.deadline.map(|(when, _)| when)
    }

    /// In the kernel a signal that was there first had ended the call: a thread that is cancelled takes nothing along.
    fn is_called_away(&self) -> bool {
        taking(&self.call).is_some_and(|takes| self.signals.is_called_away(&self.call, takes))
    }

    /// It is blocked for longer than before.
    fn stay(&mut self, now: Instant) {
        let [_, most] = STAYS;
        self.stays = most.min(2 * self.stays);
        self.leaves = Some(now + self.stays);
        self.is_fresh = false;
    }
}

/// What a call takes from its socket: datagrams or connections; `None`: neither.
pub(crate) fn taking(call: &Call) -> Option<bool> {
    match call.number {
        libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_recvmmsg => Some(false),
        libc::SYS_accept | libc::SYS_accept4 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::GONE;

    /// Fetched calls of threads 1 (without a limit) and 2 (with one), and one of thread 3 that the kernel has.
    fn left() -> Waits {
        let mut waits = Waits::new();
        let now = Instant::now();
        let soon = Some((now + GONE / 2, libc::EAGAIN));
        for (thread, stage, deadline) in
            [(1, Stage::Fetched(now), None), (2, Stage::Fetched(now), soon), (3, Stage::There, soon)]
        {
            let call = Call { id: 0, thread, number: libc::SYS_recvfrom, arguments: [0; 6] };
            let wait = Wait {
                call,
                socket: 0,
                deadline,
                limit: None,
                leaves: None,
                stays: STAYS[0],
                is_fresh: false,
                signals: Watch::new(now),
                held: None,
            };
            waits.left.insert(thread, Left { wait, stage });
        }
        waits
    }

    #[test]
    fn who_may_have_come_and_gone_unseen_has_all_of_its_time_again() {
        let mut waits = left();
        for id in [u64::MAX - 1, u64::MAX, 0, 1] {
            waits.see_number(id);
        }
        assert_eq!(waits.left.len(), 3, "none is missing");
        waits.see_number(3);
        let mut threads: Vec<_> = waits.left.keys().copied().collect();
        threads.sort_unstable();
        assert_eq!(threads, [1, 3]);
        waits.see_number(4);
        assert_eq!(waits.left.len(), 2);
    }

    #[test]
    fn one_that_was_fetched_is_expected_for_a_while_whatever_its_own_limit() {
        let waits = left();
        let next = |thread: u32| waits.left[&thread].next();
        assert_eq!(next(1), next(2));
        assert!(next(3) < next(1));
        assert_eq!(waits.left_at(0).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn one_that_cannot_leave_is_blocked_for_longer_and_longer_but_not_for_ever() {
        let Left { mut wait, .. } = left().left.remove(&1).unwrap();
        let now = Instant::now();
        let stays = [(); 8].map(|()| {
            wait.stay(now);
            wait.leaves.unwrap() - now
        });
        assert_eq!(stays[..2].iter().map(Duration::as_millis).collect::<Vec<_>>(), [20, 40]);
        assert_eq!(stays[7], STAYS[1]);
    }
}
