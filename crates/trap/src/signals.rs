//! Signals for threads whose calls wait.
//!
//! Once a call is taken, only a fatal signal ends it before it is answered (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV). So an
//! answer, and what it writes into the program's memory, always meets the call that it is for. A call that waits for
//! long has to be ended by any signal that its thread would take, though: nobody tells of those, so `/proc` is asked, soon
//! after the call has begun to wait and seldom once it has waited for long.
//!
//! ```text
//!   pending for                 answer
//!   this thread                 ERESTARTSYS: the kernel has the handler run, and the call made again or ended by EINTR
//!   the same, and a limit       EINTR (`sock_intr_errno`)
//!   some thread of several      EINTR, when it has not been taken for a while: it may be for this one
//! ```
//! ERESTARTSYS is for a thread that will see to a signal before it is in its program again; another one's program would
//! be told that number.

use std::time::{Duration, Instant};

use crate::listener::{Answer, Call};

/// How soon and how seldom is looked.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(25)];
/// After a time that is so small a part of what a call has waited.
const PART: u32 = 16;
/// The rest between looks is so many times what one takes.
const REST: u32 = 20;
/// For how long a signal for any of several threads is left to the others.
const LEFT_ALONE: Duration = Duration::from_millis(5);

/// `linux/errno.h`: never seen by programs.
const ERESTARTSYS: i32 = 512;

/// Signals that stop a process, in the masks of `/proc`. They are for its first thread, if that is ready for them
/// (`complete_signal`); there is no handler that could be told EINTR.
const STOPS: u64 = {
    const fn bit(signal: i32) -> u64 {
        1 << (signal - 1)
    }
    bit(libc::SIGSTOP) | bit(libc::SIGTSTP) | bit(libc::SIGTTIN) | bit(libc::SIGTTOU)
};

/// A call that may be ended.
pub(crate) struct Waiting<'a> {
    pub(crate) call: &'a Call,
    /// It gives up some time.
    pub(crate) has_limit: bool,
    /// Since when a signal is there that may be for its thread.
    pub(crate) suspected: &'a mut Option<Instant>,
}

/// For whom signals wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Nobody,
    /// This thread or another one of its process.
    Any,
    This,
}

/// When to look next, if the youngest of the calls has begun to wait then, and a look takes so long.
pub(crate) fn next_look(now: Instant, youngest: Instant, look: Duration) -> Instant {
    let [soon, seldom] = LOOKS;
    now + (now.saturating_duration_since(youngest) / PART).clamp(soon, seldom).max(look * REST)
}

/// How the call is to be ended, if it is.
pub(crate) fn look(waiting: &mut Waiting<'_>, now: Instant) -> Option<Answer<'static>> {
    let thread = waiting.call.thread;
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let interrupted = Some(Answer::error(libc::EINTR));
    match pending(&status, |process| is_another_stopped(process, thread)) {
        Pending::Nobody => {
            *waiting.suspected = None;
            None
        }
        Pending::Any if now.saturating_duration_since(*waiting.suspected.get_or_insert(now)) < LEFT_ALONE => {
            None
        }
        Pending::Any => interrupted,
        Pending::This if waiting.has_limit => interrupted,
        Pending::This => Some(Answer::error(ERESTARTSYS)),
    }
}

/// `status` is a thread's (`proc_pid_status(5)`). Where the process stops, all its threads are to.
fn pending(status: &str, is_another_stopped: impl FnOnce(u32) -> bool) -> Pending {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mask = |name| field(name).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0);
    let number = |name| field(name).and_then(|text| text.parse::<u32>().ok());
    let open = !mask("SigBlk:");
    let is_alone = number("Threads:") == Some(1);
    let is_first = number("Tgid:") == number("Pid:");
    let shared = mask("ShdPnd:") & open;
    if mask("SigPnd:") & open != 0 || is_alone && shared != 0 || is_first && shared & STOPS != 0 {
        Pending::This
    } else if shared != 0 {
        Pending::Any
    } else if !is_alone && number("Tgid:").is_some_and(is_another_stopped) {
        Pending::This
    } else {
        Pending::Nobody
    }
}

/// Whether a thread of a process beside this one has been stopped by a signal.
fn is_another_stopped(process: u32, thread: u32) -> bool {
    let is_stopped = |thread: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    };
    if thread != process {
        return is_stopped(process);
    }
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let other =
        threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|&id: &u32| id != thread);
    other.is_some_and(is_stopped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(threads: u32, [own, shared, blocked]: [u64; 3]) -> String {
        format!(
            "Name:\tx\nTgid:\t7\nPid:\t7\nThreads:\t{threads}\nSigQ:\t1/2\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n\
             SigBlk:\t{blocked:016x}\nSigIgn:\t0\n"
        )
    }

    #[test]
    fn what_is_blocked_waits() {
        let of = |masks| pending(&status(1, masks), |_| unreachable!("it is alone"));
        assert_eq!(of([0, 0, 0]), Pending::Nobody);
        assert_eq!(of([4, 6, 6]), Pending::Nobody);
        assert_eq!(of([4, 0, 2]), Pending::This);
        assert_eq!(of([0, 4, 2]), Pending::This);
        assert_eq!(pending("", |_| true), Pending::Nobody, "the thread is gone");
    }

    #[test]
    fn of_several_threads_any_may_take_it() {
        assert_eq!(pending(&status(2, [0, 4, 2]), |_| false), Pending::Any);
        assert_eq!(pending(&status(2, [4, 4, 2]), |_| false), Pending::This);
        assert_eq!(pending(&status(2, [0, 0, 0]), |_| false), Pending::Nobody);
        assert_eq!(
            pending(&status(2, [0, 1 << 18, 0]), |_| false),
            Pending::This,
            "SIGSTOP is for the first one"
        );
        let second = status(2, [0, 1 << 18, 0]).replace("Pid:\t7", "Pid:\t8");
        assert_eq!(pending(&second, |_| false), Pending::Any);
        assert_eq!(pending(&status(2, [0, 0, 0]), |process| process == 7), Pending::This, "all are stopped");
    }

    #[test]
    fn looks_are_soon_and_then_seldom_and_cost_little() {
        let begin = Instant::now();
        let after = |waited: u64, look: u64| {
            let now = begin + Duration::from_millis(waited);
            (next_look(now, begin, Duration::from_millis(look)) - now).as_millis()
        };
        assert_eq!([after(0, 0), after(160, 0), after(10_000, 0), after(0, 9)], [1, 10, 25, 180]);
    }
}
