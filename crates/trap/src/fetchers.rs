//! Threads of the supervisor's that fetch threads of the program's: each waits for one of those for as long as that takes.
//!
//! A thread that does not run does not stop, one of a process in `exec` may be traced once that is over, and that `exec` waits
//! for those that are traced already: none of that is a reason to keep others waiting. Only who has begun to trace a thread
//! may go on with it (`ptrace(2)`), so each has a fetcher of its own.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::listener::{Answer, Call, Listener};
use crate::signals;
use crate::sys;
use crate::target::{self, Place, Status};

/// A thread that a debugger stops does so sooner than this, unless the machine is busy; and how long it is waited for at a time.
const PROD: Duration = Duration::from_millis(1);
const OUT: Duration = Duration::from_millis(20);
/// No more fetchers are kept for later ones.
const MOST_IDLE: usize = 32;
const STACK: usize = 128 << 10;

/// What became of a thread that was to make its call again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It does.
    Comes,
    /// It has left that call, or was not there, or has ended.
    Left,
    /// It could not be had, and may be there.
    Stays,
}

/// A call that is blocked is answered with the first of these errnos once its thread is to stop, or with the second if a
/// debugger has that.
pub(crate) type Errnos = [i32; 2];

struct Job {
    number: u64,
    call: Call,
    /// It has a limit of time.
    is_limited: bool,
    errnos: Option<Errnos>,
    progress: AtomicU8,
}

/// How far a job is: not begun; its thread is being seized; and will stop; it is not wanted any more.
const WAITS: u8 = 0;
const SEIZES: u8 = 1;
const STOPS: u8 = 2;
const CANCELLED: u8 = 3;
/// To seize a thread takes some microseconds, unless its process is in `exec`.
const SEIZED: Duration = Duration::from_millis(1);

pub(crate) struct Fetchers {
    shared: Arc<Shared>,
    next: u64,
    /// By thread, those that nothing has been told of yet.
    jobs: HashMap<u32, Arc<Job>>,
}

struct Shared {
    listener: Listener,
    work: Mutex<Work>,
    changed: Condvar,
    told: Mutex<Vec<Told>>,
    /// Something has been told.
    bell: OwnedFd,
}

/// The number of a job, whose thread that is, and what became of it.
pub(crate) type Told = (u64, u32, Outcome);

#[derive(Default)]
struct Work {
    jobs: VecDeque<Arc<Job>>,
    idle: usize,
    is_over: bool,
}

impl Fetchers {
    pub(crate) fn new(listener: &Listener) -> io::Result<Fetchers> {
        let shared = Shared {
            listener: listener.try_clone()?,
            work: Mutex::default(),
            changed: Condvar::new(),
            told: Mutex::default(),
            bell: sys::bell()?,
        };
        let fetchers = Fetchers { shared: Arc::new(shared), next: 0, jobs: HashMap::new() };
        // One at least is there, whatever the program's limits are later.
        fetchers.start()?;
        Ok(fetchers)
    }

    fn start(&self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let fetcher = thread::Builder::new().name("fetcher".to_owned()).stack_size(STACK);
        fetcher.spawn(move || shared.run()).map(drop)
    }

    /// Readable once something has been told.
    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.shared.bell
    }

    /// Has the thread of a call make it again: the number of the job.
    pub(crate) fn fetch(&mut self, call: Call, is_limited: bool, errnos: Option<Errnos>) -> u64 {
        let number = self.next;
        self.next += 1;
        let job = Arc::new(Job { number, call, is_limited, errnos, progress: AtomicU8::new(WAITS) });
        self.jobs.insert(call.thread, Arc::clone(&job));
        let mut work = lock(&self.shared.work);
        work.jobs.push_back(job);
        let are_enough = work.jobs.len() <= work.idle;
        drop(work);
        self.shared.changed.notify_one();
        if !are_enough {
            // Where there can be no more, those that are there come to it.
            let _ = self.start();
        }
        number
    }

    /// A thread makes another call than the one that it was to be fetched from: whether it is about to stop all the same.
    pub(crate) fn stops(&mut self, thread: u32) -> bool {
        let Some(job) = self.jobs.get(&thread) else { return false };
        let begin = Instant::now();
        loop {
            match job.progress.compare_exchange(WAITS, CANCELLED, Ordering::AcqRel, Ordering::Acquire) {
                Err(SEIZES) if begin.elapsed() < SEIZED => thread::yield_now(),
                seen => return seen == Err(STOPS),
            }
        }
    }

    /// What has been told since the last time.
    pub(crate) fn told(&mut self) -> Vec<Told> {
        let told = std::mem::take(&mut *lock(&self.shared.told));
        for (number, thread, _) in &told {
            if self.jobs.get(thread).is_some_and(|job| job.number == *number) {
                self.jobs.remove(thread);
            }
        }
        told
    }
}

impl Drop for Fetchers {
    fn drop(&mut self) {
        lock(&self.shared.work).is_over = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn run(&self) {
        while let Some(job) = self.next() {
            self.fetch(&job, |outcome| self.tell((job.number, job.call.thread, outcome)));
        }
    }

    /// The next job; `None`: there are enough that wait for one.
    fn next(&self) -> Option<Arc<Job>> {
        let mut work = lock(&self.work);
        if work.jobs.is_empty() && work.idle >= MOST_IDLE {
            return None;
        }
        work.idle += 1;
        while work.jobs.is_empty() && !work.is_over {
            work = self.changed.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
        work.idle -= 1;
        work.jobs.pop_front()
    }

    fn tell(&self, told: Told) {
        lock(&self.told).push(told);
        sys::ring(&self.bell);
    }

    fn fetch(&self, Job { call, is_limited, errnos, progress, .. }: &Job, tell: impl Fn(Outcome)) {
        let begins = progress.compare_exchange(WAITS, SEIZES, Ordering::AcqRel, Ordering::Acquire);
        if begins.is_err() {
            return tell(Outcome::Left);
        }
        // It sleeps where only a fatal signal wakes it, or this.
        let answer =
            |which: usize| errnos.map(|errnos| self.listener.answer(call, &Answer::error(errnos[which])));
        match sys::seize(call.thread) {
            Ok(()) => {
                progress.store(STOPS, Ordering::Release);
                answer(0);
                let Some(stopped) = sys::stopped() else { return tell(Outcome::Left) };
                let is_handled = |signal| signals::is_handled(call.thread, signal);
                let comes = |comes| tell(if comes { Outcome::Comes } else { Outcome::Left });
                stopped.release((call.number, call.arguments, *is_limited), is_handled, comes);
            }
            // Without a signal its program would be told the number that is the kernel's own.
            Err(_) if answer(1).is_some() => tell(Outcome::Left),
            Err(error) => {
                let is_out = sys::errno(&error) != libc::EPERM || drive_out(call);
                tell(if is_out { Outcome::Left } else { Outcome::Stays });
            }
        }
    }
}

/// What nobody leaves half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        thread::yield_now();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    /// What has been told once it is so much.
    fn told(fetchers: &mut Fetchers, count: usize) -> Vec<Told> {
        let poll = sys::Poll::new().unwrap();
        poll.add(fetchers.bell(), libc::EPOLLIN as u32, 0).unwrap();
        let mut told = Vec::new();
        while told.len() < count {
            assert_eq!(poll.wait(&mut [libc::epoll_event { events: 0, u64: 0 }], 60_000).unwrap(), 1);
            sys::silence(fetchers.bell());
            told.extend(fetchers.told());
        }
        told
    }

    #[test]
    fn each_job_is_told_of_once_however_many_there_are() {
        const MANY: usize = 2 * MOST_IDLE;
        let nowhere = std::fs::File::open("/dev/null").unwrap();
        let mut fetchers = Fetchers::new(&Listener::new(nowhere.into())).unwrap();
        let (_ours, theirs) = sys::pair(libc::SOCK_DGRAM).unwrap();
        let children: Vec<u32> = (0..MANY).map(|_| sys::receiver(theirs.as_raw_fd())).collect();
        let threads: Vec<u32> = children.iter().copied().chain([i32::MAX as u32]).collect();
        for round in 0..3 {
            let jobs = threads.iter().map(|&thread| {
                // None of them is in this one.
                let call = Call { id: 0, thread, number: libc::SYS_recvfrom, arguments: [0; 6] };
                (fetchers.fetch(call, false, None), thread, Outcome::Left)
            });
            let jobs: Vec<Told> = jobs.collect();
            let mut told = told(&mut fetchers, jobs.len());
            told.sort_unstable_by_key(|&(number, ..)| number);
            assert_eq!(told, jobs, "round {round}");
        }
        for child in children {
            assert!(target::exists(child), "it waits on");
            // SAFETY: numbers only, and a place that may be left out.
            unsafe {
                libc::kill(child.cast_signed(), libc::SIGKILL);
                libc::waitpid(child.cast_signed(), std::ptr::null_mut(), 0);
            }
        }
    }
}
