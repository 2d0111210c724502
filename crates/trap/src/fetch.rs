//! Threads that wait in calls which the kernel has are fetched (`ptrace(2)`) before something comes to their end of a socket:
//! they make their calls again, which are trapped then.
//!
//! ```text
//!   There ──▶ Fetched: released in front of its call ──▶ resumed, or another call comes, or nothing (`GONE`)
//!     │  ▲
//!     │  └─── Stuck: a debugger's, or its process is in `exec`; tried again
//!     └─────▶ Late: it is to stop, and has not done so; looked at again
//! ```
//! What comes for a socket is kept back while somebody may still wait there, but not for ever ([`KEPT_BACK`]).

use std::io;
use std::time::{Duration, Instant};

use crate::listener::Call;
use crate::signals;
use crate::socket::State;
use crate::supervisor::Supervisor;
use crate::sys::{self, Seized, Stop};
use crate::target::{self, Place, Status};
use crate::waits::{Wait, taking};

/// A thread that was fetched, and is not here after this time, was kept from making its call again.
pub(crate) const GONE: Duration = Duration::from_secs(1);
/// A thread that a debugger stops does so sooner than this, unless the machine is busy; and how long it is waited for at a time.
const PROD: Duration = Duration::from_millis(1);
const OUT: Duration = Duration::from_millis(20);
/// One whose process is in `exec` is waited for so long at a time, and looked at so often.
const HINDERED: Duration = Duration::from_millis(10);
/// How often is looked whether a thread has ended, soon after it was to stop and later.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];
/// Whoever cannot be fetched in this time gets what comes by itself: a datagram without an address.
const KEPT_BACK: Duration = Duration::from_secs(10);

/// A call that the kernel has, or that was fetched.
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
    /// It comes again: since then.
    Fetched(Instant),
}

impl Left {
    /// When something is to be done about it.
    pub(crate) fn next(&self) -> Option<Instant> {
        match self.stage {
            Stage::There => self.wait.ends(),
            Stage::Stuck(_, again) => Some(again),
            Stage::Fetched(when) => Some(when + GONE),
        }
    }

    pub(crate) fn is_fetched(&self) -> bool {
        matches!(self.stage, Stage::Fetched(_))
    }
}

/// A call whose thread was to stop, and ends, or stops late.
pub(crate) struct Late {
    wait: Wait,
    seized: Seized,
    process: u32,
    since: Instant,
    /// It may wait in the kernel's call since it was to be fetched.
    is_there: bool,
}

impl Late {
    /// When to look: a first thread ends with the last one of its process.
    pub(crate) fn next(&self, now: Instant) -> Instant {
        let [soon, seldom] = LOOKS;
        now + if now < self.since + GONE { soon } else { seldom }
    }

    /// It may wait in the kernel's call for what comes there.
    fn is_at(&self, socket: u64) -> bool {
        self.is_there && self.wait.socket == socket && !target::is_ending(self.wait.call.thread)
    }

    fn is_kept_back_for(&self) -> bool {
        self.since.elapsed() < KEPT_BACK
    }
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
        self.waits.left_at(id).next().is_some() || self.is_late_at(id, true)
    }

    /// The same, and was to be fetched. Others may have begun to wait since then.
    fn is_kept_back(&self, id: u64) -> bool {
        let is_stuck = |left: &Left| left.wait.socket == id && matches!(left.stage, Stage::Stuck(..));
        self.waits.left.values().any(is_stuck) || self.is_late_at(id, true)
    }

    /// Who was to leave the kernel's call there has not done so; what comes is kept back for it, or no more.
    fn is_late_at(&self, id: u64, is_kept_back: bool) -> bool {
        self.waits.late.iter().any(|late| late.is_kept_back_for() == is_kept_back && late.is_at(id))
    }

    /// Sockets for which something was kept back.
    pub(crate) fn see_to_kept_back(&mut self) {
        for id in std::mem::take(&mut self.waits.kept_back) {
            if self.is_kept_back(id) {
                self.waits.kept_back.insert(id);
                continue;
            }
            match self.sockets.get(&id).map(|socket| &socket.state) {
                Some(State::Datagram(_)) => {
                    self.on_datagrams(id);
                    self.watch(id);
                }
                // What it accepts has to be a connection then.
                Some(State::Listening { .. }) if self.is_late_at(id, false) => self.share(id),
                Some(State::Listening { .. }) => self.on_connection(id),
                _ => {}
            }
        }
    }

    /// The kernel began the time of a call anew when it got it.
    pub(crate) fn fetch_late_calls(&mut self) {
        let now = Instant::now();
        let late = self.waits.left.iter().filter(|(_, left)| left.next().is_some_and(|when| when <= now));
        let late: Vec<_> = late.map(|(&thread, _)| thread).collect();
        self.fetch_all(&late);
    }

    fn fetch_all(&mut self, threads: &[u32]) {
        for thread in threads {
            let Some(left) = self.waits.left.remove(thread) else { continue };
            let now = Instant::now();
            match left.stage {
                Stage::There => self.fetch_one(left.wait, now),
                Stage::Stuck(since, again) if again <= now => self.fetch_one(left.wait, since),
                // One that does not come.
                Stage::Fetched(when) if when + GONE <= now => {}
                // One that was fetched as another one was, or is tried again later.
                Stage::Fetched(_) | Stage::Stuck(..) => drop(self.waits.left.insert(*thread, left)),
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
        let is_there = socket.inode().ok().and_then(|inode| target::has(call.thread, call.fd(), inode));
        if call.number == libc::SYS_connect {
            // It would be made with whatever has the number now; the stand-in tells it by itself.
            if is_there == Some(false) {
                return;
            }
        } else if let Some(outer) = self.outer(socket) {
            // The number may be closed, or another file's, when it is made again.
            wait.held = self.hold(outer, call.thread);
        } else if is_there == Some(false) {
            // Nobody has the socket any more but this one call: what comes is its, and it could not be made again.
            self.share(id);
            return;
        }
        wait.is_fresh = false;
        let is_out = match self.seize(&call) {
            Ok(seized) => return self.expect(wait, seized, Some(since)),
            Err(error) => match sys::errno(&error) {
                libc::EPERM => drive_out(&call),
                errno => errno == libc::ESRCH,
            },
        };
        // It may take what comes by itself.
        if !is_out && taking(&call).is_some() {
            self.try_later(wait, since);
        }
    }

    /// What comes is kept back for a thread that could not be fetched, since then; but not for ever.
    fn try_later(&mut self, wait: Wait, since: Instant) {
        let (id, tried) = (wait.socket, since.elapsed());
        if tried < KEPT_BACK {
            let again = Instant::now() + tried.clamp(OUT, KEPT_BACK / 10);
            self.waits.left.insert(wait.call.thread, Left { wait, stage: Stage::Stuck(since, again) });
        } else if matches!(self.state(id), Some(State::Listening { .. })) {
            self.share(id);
        }
    }

    /// A process in `exec` waits for its threads that end, one that is to be traced for that `exec`, and those that have ended
    /// for whoever traces them: so none is seized while another one of its process may have to be waited for. The first one
    /// is not waited for.
    pub(crate) fn seize(&mut self, call: &Call) -> io::Result<Seized> {
        let begin = Instant::now();
        loop {
            self.see_late_ones();
            let process = |call: &Call| Status::of(call.thread).map_or(0, |status| status.process);
            let own = if self.waits.late.is_empty() { 0 } else { process(call) };
            let hinders = |late: &Late| late.process == own && late.wait.call.thread != late.process;
            if !self.waits.late.iter().any(hinders) {
                return sys::seize(call.thread);
            }
            if begin.elapsed() > HINDERED {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            std::thread::sleep(LOOKS[0]);
        }
    }

    /// Looks whether threads have ended that were to stop, or stand by now.
    pub(crate) fn see_late_ones(&mut self) {
        for Late { wait, seized, process, since, is_there } in std::mem::take(&mut self.waits.late) {
            match seized.look() {
                Stop::Later(seized) => {
                    self.waits.late.push(Late { wait, seized, process, since, is_there });
                }
                stop => self.go_on(wait, stop, is_there.then_some(since)),
            }
        }
    }

    /// Lets a thread go on once it stands: its call comes again, unless it ends or was no more there. `since`: it is to be
    /// fetched from the kernel's call.
    pub(crate) fn expect(&mut self, wait: Wait, seized: Seized, since: Option<Instant>) {
        let thread = wait.call.thread;
        let stop = seized.stop(|| target::is_ending(thread));
        self.go_on(wait, stop, since);
    }

    fn go_on(&mut self, wait: Wait, stop: Stop, since: Option<Instant>) {
        let Call { thread, number, arguments, .. } = wait.call;
        let released = match stop {
            Stop::Ended => return,
            Stop::Later(seized) => Err(seized),
            Stop::Stopped(stopped) => {
                let is_handled = |signal| signals::is_handled(thread, signal);
                stopped.release(number, arguments, is_handled, || target::is_ending(thread))
            }
        };
        match released {
            // Where nobody knows it may be another one, which has all of its time before it.
            Ok(true) if wait.ends().is_none() || sys::IS_CERTAIN => {
                self.waits.left.insert(thread, Left { wait, stage: Stage::Fetched(Instant::now()) });
            }
            Ok(_) => {}
            Err(seized) => {
                let process = Status::of(thread).map_or(0, |status| status.process);
                let (is_there, since) = (since.is_some(), since.unwrap_or_else(Instant::now));
                self.waits.late.push(Late { wait, seized, process, since, is_there });
            }
        }
    }
}

/// The thread of a call is a debugger's, which stops it in these moments; or lets it sleep on: then a signal that means
/// nothing to the program has it make its call again (one with a limit says EINTR). Whether it left it, as far as was seen.
fn drive_out(call: &Call) -> bool {
    let begin = Instant::now();
    let mut is_prodded = false;
    while begin.elapsed() < OUT {
        let stands = matches!(target::state(call.thread), None | Some('t' | 'T'));
        if stands || target::place(call) == Place::Elsewhere {
            return true;
        }
        if !is_prodded && begin.elapsed() > PROD {
            is_prodded = true;
            let status = Status::of(call.thread).unwrap_or_default();
            let means_nothing = |signal: &i32| (status.caught | status.blocked) & 1 << (signal - 1) == 0;
            if let Some(signal) =
                [libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD].into_iter().find(means_nothing)
            {
                sys::signal(status.process, call.thread, signal);
            }
        }
        std::thread::yield_now();
    }
    false
}
