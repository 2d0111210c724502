//! Threads of programs: what the scheduler of Linux has for them, and whether they are still the ones that they were.

use std::fs::File;
use std::io::{Error, Read, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::check;

/// `struct sched_attr` (`sched_setattr(2)`), its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    run_time: u64,
    deadline: u64,
    period: u64,
}

/// Its flag for SCHED_RESET_ON_FORK.
const RESET_ON_FORK: u64 = 1;

/// A thread's policy and real-time priority, as `sched_getscheduler` and `sched_getparam` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadPolicy {
    pub(crate) policy: i32,
    pub(crate) priority: i32,
}

impl ThreadPolicy {
    /// What a thread has.
    pub(crate) fn of(thread: u32) -> Result<ThreadPolicy> {
        let mut attributes = Attributes::default();
        let size = size_of::<Attributes>() as u32;
        // SAFETY: fills the structure, of which it is told the length.
        let result = unsafe {
            libc::syscall(libc::SYS_sched_getattr, thread.cast_signed(), &raw mut attributes, size, 0)
        };
        check(result as i32)?;
        let alone = if attributes.flags & RESET_ON_FORK != 0 { libc::SCHED_RESET_ON_FORK } else { 0 };
        let policy = attributes.policy.cast_signed() | alone;
        Ok(ThreadPolicy { policy, priority: attributes.priority.cast_signed() })
    }

    /// Gives it to a thread; `alone`: what the thread forks does not inherit it.
    pub(crate) fn give(self, thread: u32, alone: bool) -> Result<()> {
        let parameters = libc::sched_param { sched_priority: self.priority };
        let policy = if alone { self.policy | libc::SCHED_RESET_ON_FORK } else { self.policy };
        // SAFETY: the structure outlives the call.
        check(unsafe { libc::sched_setscheduler(thread.cast_signed(), policy, &raw const parameters) })
    }

    /// As [`scoutline_abi::layout::PollSet::own_policy`] has it.
    pub(crate) fn packed(self) -> u32 {
        self.policy.cast_unsigned() & 0xff | self.priority.cast_unsigned() << 8
    }
}

/// What SCHED_DEADLINE is given (`sched(7)`): so much time in each period, which is the deadline too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) run_time_ns: u64,
    pub(crate) period_ns: u64,
}

impl Reservation {
    /// The least that the kernel takes: none of the bandwidth that it admits.
    pub(crate) const NOTHING: Reservation = Reservation { run_time_ns: 1024, period_ns: 4_190_000_000 };

    /// Gives a thread SCHED_DEADLINE; what it forks does not inherit it, and could not (`sched(7)`).
    pub(crate) fn give(self, thread: u32) -> Result<()> {
        let attributes = Attributes {
            size: size_of::<Attributes>() as u32,
            policy: libc::SCHED_DEADLINE.cast_unsigned(),
            flags: RESET_ON_FORK,
            nice: 0,
            priority: 0,
            run_time: self.run_time_ns,
            deadline: self.period_ns,
            period: self.period_ns,
        };
        // SAFETY: the structure outlives the call, and says how long it is.
        let result =
            unsafe { libc::syscall(libc::SYS_sched_setattr, thread.cast_signed(), &raw const attributes, 0) };
        check(result as i32)
    }

    /// Whether a thread has SCHED_DEADLINE.
    pub(crate) fn is_held_by(thread: u32) -> bool {
        let of = ThreadPolicy::of(thread);
        of.is_ok_and(|of| of.policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_DEADLINE)
    }

    /// Takes a thread's reservation, if it has one, before it gets another policy. A thread that leaves SCHED_DEADLINE
    /// while it sleeps has its bandwidth stay admitted for ever (measured on Linux 6.18: a thread that has 10 % and
    /// leaves ten times has used up a core); of nothing, nothing is lost.
    pub(crate) fn take_from_holder(thread: u32) {
        if Reservation::is_held_by(thread) {
            // If that fails the thread is gone.
            let _ = Reservation::NOTHING.give(thread);
        }
    }
}

/// What `/proc` says of a thread.
pub(crate) struct ThreadStat {
    /// It runs, or would if it had a core.
    pub(crate) runs: bool,
    /// In clock ticks since boot.
    pub(crate) started: u64,
}

/// Looks at a thread: three system calls.
pub(crate) fn thread_stat(thread: u32) -> Result<ThreadStat> {
    let mut line = [0; 1024];
    let len = File::open(format!("/proc/{thread}/stat"))?.read(&mut line)?;
    let text = String::from_utf8_lossy(&line[..len]);
    // The name, in parentheses, may hold anything. Behind it: state, and the start as 20th (proc(5)).
    let mut fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let runs = fields.next() == Some("R");
    let started = fields.nth(18).and_then(|field| field.parse().ok());
    let started = started.ok_or_else(|| Error::other("/proc/PID/stat has no start time"))?;
    Ok(ThreadStat { runs, started })
}

/// Whether a thread belongs to a process.
pub(crate) fn is_thread_of(thread: u32, process: u32) -> bool {
    process != 0 && std::path::Path::new(&format!("/proc/{process}/task/{thread}")).exists()
}

/// Tells a thread from a later one with its id.
#[derive(Debug)]
pub(crate) enum ThreadHandle {
    /// A pidfd: readable once the thread has ended (`pidfd_open(2)`). One system call to look.
    Descriptor(OwnedFd),
    /// When it started, where the kernel gives no descriptor of such a thread: three, and text.
    Start { thread: u32, started: u64 },
}

impl ThreadHandle {
    /// Of a thread that started then.
    pub(crate) fn of(thread: u32, started: u64) -> ThreadHandle {
        // Before Linux 6.9 only threads that lead a process have one, without the flag. The id of such a thread is not
        // another's before the whole process has ended, which is what that descriptor tells.
        const NOT_ONLY_LEADERS: libc::c_int = libc::O_EXCL; // PIDFD_THREAD
        for flags in [NOT_ONLY_LEADERS, 0] {
            // SAFETY: no pointers.
            let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, thread.cast_signed(), flags) } as i32;
            if fd >= 0 {
                // SAFETY: just made, owned by nobody else.
                let handle = ThreadHandle::Descriptor(unsafe { OwnedFd::from_raw_fd(fd) });
                // It may have ended, and its id been given anew, before there was a descriptor.
                if thread_stat(thread).is_ok_and(|stat| stat.started == started) {
                    return handle;
                }
                break;
            }
        }
        ThreadHandle::Start { thread, started }
    }

    /// Whether the thread has not ended.
    pub(crate) fn lives(&self) -> bool {
        match self {
            ThreadHandle::Descriptor(fd) => {
                let mut ended = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: the structure outlives the call, which does not wait.
                unsafe { libc::poll(&raw mut ended, 1, 0) == 0 }
            }
            ThreadHandle::Start { thread, started } => {
                thread_stat(*thread).is_ok_and(|stat| stat.started == *started)
            }
        }
    }
}

#[cfg(test)]
mod tests;
