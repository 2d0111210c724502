//! Threads that wait in calls which the kernel has are fetched (`ptrace(2)`) before something comes to their end of a socket:
//! they make their calls again, which are trapped then.
//!
//! ```text
//!   There ──▶ Leaving: a fetcher has it ──▶ Fetched: resumed, or another call comes, or nothing (`GONE`)
//!     ▲           │
//!     └─ Stuck ◀──┘ a debugger's: tried again
//! ```
//! What comes for a socket is kept back while somebody may still wait there, but not for ever ([`KEPT_BACK`]).

use std::time::{Duration, Instant};

use crate::fetchers::{Errnos, Outcome};
use crate::socket::State;
use crate::supervisor::Supervisor;
use crate::sys;
use crate::target::{self, Place};
use crate::waits::{Wait, taking};

/// A thread that was fetched, and is not here after this time, was kept from making its call again.
pub(crate) const GONE: Duration = Duration::from_secs(1);
/// How soon and how seldom is looked whether one that is late ends, or tried again to have one.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];
const TRIES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];
/// Whoever cannot be fetched in this time gets what comes by itself: a datagram without an address.
const KEPT_BACK: Duration = Duration::from_secs(10);

/// A call that the kernel has, or that is fetched.
pub(crate) struct Left {
    pub(crate) wait: Wait,
    pub(crate) stage: Stage,
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// The kernel has it.
    There,
    /// It could not be fetched since the first of these times, which is tried again at the second.
    Stuck(Instant, Instant),
    /// A fetcher has this job.
    Leaving(Job),
    /// It comes again: since then.
    Fetched(Instant),
}

/// What a fetcher does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    number: u64,
    since: Instant,
    /// When to look whether the thread ends.
    look: Instant,
    /// It may wait in the kernel's call, and what comes is kept back for it.
    is_there: bool,
}

impl Left {
    /// When something is to be done about it.
    pub(crate) fn next(&self) -> Option<Instant> {
        match self.stage {
            Stage::There => self.wait.ends(),
            Stage::Stuck(_, again) => Some(again),
            Stage::Leaving(job) => Some(job.look),
            Stage::Fetched(when) => Some(when + GONE),
        }
    }

    pub(crate) fn is_fetched(&self) -> bool {
        matches!(self.stage, Stage::Fetched(_))
    }

    /// It may wait in the kernel's call, for what comes to this socket.
    pub(crate) fn is_at(&self, socket: u64) -> bool {
        self.wait.socket == socket && matches!(self.stage, Stage::There | Stage::Stuck(..))
    }

    /// It was to be fetched from there, and may be there still.
    fn is_kept_back_for(&self, socket: u64) -> bool {
        self.wait.socket == socket
            && matches!(self.stage, Stage::Stuck(..) | Stage::Leaving(Job { is_there: true, .. }))
    }
}

/// So long after a time, but neither too soon nor too seldom.
fn later([soon, seldom]: [Duration; 2], since: Instant) -> Instant {
    Instant::now() + since.elapsed().clamp(soon, seldom)
}

impl Supervisor {
    /// Something is to come to the program's end of a socket: who waits there in the kernel's call makes it again first.
    /// Whether somebody may wait there still: then it is to be kept back, and [`Supervisor::see_to_kept_back`] comes to it.
    pub(crate) fn fetch(&mut self, id: u64) -> bool {
        let here: Vec<_> = self.waits.left_at(id).collect();
        self.fetch_all(&here);
        let is_kept_back = self.is_kept_back(id);
        if is_kept_back {
            self.waits.kept_back.insert(id);
        }
        is_kept_back
    }

    /// Somebody may wait in the kernel's call at the program's end of a socket.
    pub(crate) fn may_be_waited_at(&self, id: u64) -> bool {
        self.waits.left_at(id).next().is_some() || self.is_kept_back(id)
    }

    /// The same, and was to be fetched. Others may have begun to wait since then.
    fn is_kept_back(&self, id: u64) -> bool {
        self.waits.left.values().any(|left| left.is_kept_back_for(id))
    }

    /// Sockets for which something was kept back.
    pub(crate) fn see_to_kept_back(&mut self) {
        for id in std::mem::take(&mut self.waits.kept_back) {
            if self.is_kept_back(id) {
                self.waits.kept_back.insert(id);
                continue;
            }
            match self.sockets.get(&id).map(|socket| &socket.state) {
                Some(State::Datagram(_)) => self.on_datagrams(id),
                Some(State::Connecting { .. }) => self.on_connected(id),
                Some(State::Listening { .. }) => {
                    for (connection, theirs) in self.waits.returned_to(id) {
                        self.put_back(id, connection, theirs);
                    }
                    self.on_connection(id);
                }
                _ => {}
            }
            self.watch(id);
        }
    }

    /// What is due: a call is over, since the kernel began its time anew when it got it; one does not come; one is late.
    pub(crate) fn see_to_left(&mut self) {
        let now = Instant::now();
        let due = self.waits.left.iter().filter(|(_, left)| left.next().is_some_and(|when| when <= now));
        let due: Vec<_> = due.map(|(&thread, _)| thread).collect();
        self.fetch_all(&due);
    }

    fn fetch_all(&mut self, threads: &[u32]) {
        for thread in threads {
            let Some(left) = self.waits.left.remove(thread) else { continue };
            let now = Instant::now();
            match left.stage {
                Stage::There => self.fetch_one(left.wait, now),
                Stage::Stuck(since, again) if again <= now => self.fetch_one(left.wait, since),
                Stage::Leaving(job) if job.look <= now => self.see_late(left.wait, job),
                // One that does not come.
                Stage::Fetched(when) if when + GONE <= now => {}
                _ => drop(self.waits.left.insert(*thread, left)),
            }
        }
    }

    /// Has the thread of a call make it again, if it is there; which is tried since then.
    fn fetch_one(&mut self, mut wait: Wait, since: Instant) {
        let Wait { call, socket: id, .. } = wait;
        let Some(socket) = self.sockets.get(&id) else { return };
        if target::is_ending(call.thread) || target::place(&call) == Place::Elsewhere {
            return;
        }
        let Ok(inode) = socket.inode() else { return };
        let is_there = target::has(call.thread, call.fd(), inode);
        if call.number == libc::SYS_connect {
            // It would be made with whatever has the number now; the stand-in tells it by itself.
            if is_there == Some(false) {
                return;
            }
        } else if let Some(outer) =
            target::duplicate(call.thread, call.fd(), inode).ok().or_else(|| self.outer(socket))
        {
            // The number may be closed, or another file's, when it is made again.
            wait.held = self.hold(id, outer, call.thread);
        } else if is_there == Some(false) {
            // Nobody has the socket any more but this one call: what comes is its, and it could not be made again.
            self.share(id);
            return;
        }
        wait.is_fresh = false;
        self.give_to_fetcher(wait, None, since);
    }

    /// The thread of a call makes it again as soon as it can; tried since then. One that is blocked is answered so.
    pub(crate) fn give_to_fetcher(&mut self, wait: Wait, errnos: Option<Errnos>, since: Instant) {
        let call = wait.call;
        let number = self.fetchers.fetch(call, wait.ends().is_some(), errnos);
        let job = Job { number, since, look: later(LOOKS, since), is_there: errnos.is_none() };
        self.waits.left.insert(call.thread, Left { wait, stage: Stage::Leaving(job) });
    }

    /// What has become of threads that were to make their calls again.
    pub(crate) fn see_fetched(&mut self) {
        for (number, thread, outcome) in self.fetchers.told() {
            let Some(left) = self.waits.left.remove(&thread) else { continue };
            match (left.stage, outcome) {
                (Stage::Leaving(job), outcome) if job.number == number => {
                    self.see_outcome(left.wait, job, outcome);
                }
                _ => drop(self.waits.left.insert(thread, left)),
            }
        }
    }

    fn see_outcome(&mut self, wait: Wait, job: Job, outcome: Outcome) {
        let stage = match outcome {
            // Where nobody knows it may be another one, which has all of its time before it.
            Outcome::Comes if wait.ends().is_none() || sys::IS_CERTAIN => Stage::Fetched(Instant::now()),
            // It may take what comes by itself.
            Outcome::Stays if taking(&wait.call).is_some() => {
                if job.since.elapsed() > KEPT_BACK {
                    return self.give_up(wait.socket);
                }
                Stage::Stuck(job.since, later(TRIES, job.since))
            }
            _ => return,
        };
        self.waits.left.insert(wait.call.thread, Left { wait, stage });
    }

    /// One that has not stopped yet. Who ends does not stop, and its fetcher knows late of it: a first thread ends with the
    /// last one of its process.
    fn see_late(&mut self, wait: Wait, mut job: Job) {
        let (thread, id) = (wait.call.thread, wait.socket);
        if target::is_ending(thread) {
            return;
        }
        let gives_up = job.is_there && job.since.elapsed() > KEPT_BACK;
        job.is_there &= !gives_up;
        job.look = later(LOOKS, job.since);
        self.waits.left.insert(thread, Left { wait, stage: Stage::Leaving(job) });
        if gives_up {
            self.give_up(id);
        }
    }

    /// What somebody accepts who could not be fetched has to be a connection.
    fn give_up(&mut self, id: u64) {
        if matches!(self.state(id), Some(State::Listening { .. })) {
            self.share(id);
        }
    }
}
