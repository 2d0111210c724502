//! Signals for threads whose calls are blocked.
//!
//! Once a call is taken, only a fatal signal ends it before it is answered (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV). So an
//! answer, and what it writes into the program's memory, always meets the call that it is for. One that is blocked for long,
//! since the kernel cannot have it ([`crate::waits`]), has to be ended by any signal that its thread would take, though:
//! nobody tells of those, so `/proc` is asked, soon after the call has begun to wait and seldom once it has waited for long.
//! The thread is interrupted then, so that the kernel decides.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::listener::Call;

/// How soon and how seldom is looked.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];
/// After a time that is so small a part of what a call has waited.
const PART: u32 = 16;
/// More calls than this that wait are looked at more seldom: each look costs some 10 µs.
const MANY: u32 = 40;

/// When a call is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    since: Instant,
    next: Instant,
}

/// For whom signals wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    Nobody,
    /// This thread or another one of its process.
    Any,
    This,
}

impl Watch {
    /// A call begins to wait.
    pub(crate) fn new(now: Instant) -> Watch {
        Watch { since: now, next: now + LOOKS[0] }
    }

    /// When to look.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Looks, when it is time to; so many calls wait.
    pub(crate) fn look(&mut self, call: &Call, waiting: usize, stops: &mut Stops, now: Instant) -> Pending {
        if now < self.next {
            return Pending::Nobody;
        }
        self.next = now + interval(now.saturating_duration_since(self.since), waiting);
        let thread = call.thread;
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
        let process = number(&status, "Tgid:").unwrap_or(0);
        pending(&status, || stops.is_another_stopped(process, thread, now))
    }
}

/// Whether a thread has signals to take, or may have.
pub(crate) fn are_pending(thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    pending(&status, || false) != Pending::Nobody
}

/// Until the next look at a call that has waited so long, among so many.
fn interval(waited: Duration, waiting: usize) -> Duration {
    let [soon, seldom] = LOOKS;
    let many = u32::try_from(waiting).unwrap_or(u32::MAX) / MANY;
    (waited / PART).clamp(soon, seldom * many.max(1))
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn number(status: &str, name: &str) -> Option<u32> {
    field(status, name)?.parse().ok()
}

/// `status` is a thread's (`proc_pid_status(5)`). Where one thread of a process is stopped, all are to stop.
fn pending(status: &str, is_another_stopped: impl FnOnce() -> bool) -> Pending {
    let mask = |name| field(status, name).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0);
    let open = !mask("SigBlk:");
    let is_alone = number(status, "Threads:") == Some(1);
    let shared = mask("ShdPnd:") & open;
    if mask("SigPnd:") & open != 0 || is_alone && shared != 0 || !is_alone && is_another_stopped() {
        Pending::This
    } else if shared != 0 {
        Pending::Any
    } else {
        Pending::Nobody
    }
}

/// Which processes are being stopped.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    /// None of their threads was, when they were looked at last; and when to look again.
    none: HashMap<u32, Instant>,
}

impl Stops {
    /// Whether a thread of a process beside this one has been stopped by a signal, as far as was looked lately.
    fn is_another_stopped(&mut self, process: u32, thread: u32, now: Instant) -> bool {
        if self.none.get(&process).is_some_and(|&next| now < next) {
            return false;
        }
        self.none.retain(|_, next| now < *next);
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let mut count = 0;
        for id in threads.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
            count += 1;
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            let state = stat.rsplit_once(')').map_or("", |(_, rest)| rest.trim_start());
            if id != thread && state.starts_with('T') {
                return true;
            }
        }
        self.none.insert(process, now + LOOKS[1] + LOOKS[0] * count);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(threads: u32, [own, shared, blocked]: [u64; 3]) -> String {
        format!(
            "Name:\tx\nTgid:\t7\nPid:\t7\nThreads:\t{threads}\nSigQ:\t1/2\nSigPnd:\t{own:016x}\n\
             ShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t0\n"
        )
    }

    #[test]
    fn what_is_blocked_waits() {
        let of = |masks| pending(&status(1, masks), || unreachable!("it is alone"));
        assert_eq!(of([0; 3]), Pending::Nobody);
        assert_eq!(of([4, 6, 6]), Pending::Nobody);
        assert_eq!(of([4, 0, 2]), Pending::This);
        assert_eq!(of([0, 4, 2]), Pending::This);
        assert_eq!(pending("", || false), Pending::Nobody, "the thread is gone");
    }

    #[test]
    fn of_several_threads_any_may_take_it() {
        let of = |masks, stopped| pending(&status(2, masks), || stopped);
        assert_eq!(of([0, 4, 2], false), Pending::Any);
        assert_eq!(of([4, 4, 2], false), Pending::This);
        assert_eq!(of([0, 0, 0], false), Pending::Nobody);
        assert_eq!(of([0, 4, 0], true), Pending::This, "all are to stop");
    }

    #[test]
    fn looks_are_soon_and_then_seldom_and_cost_little() {
        let after = |waited, waiting| interval(Duration::from_millis(waited), waiting).as_millis();
        assert_eq!([after(0, 1), after(160, 1), after(10_000, 1), after(10_000, 200)], [1, 10, 50, 250]);
        assert_eq!(after(0, 200), 1, "however many wait beside it");
    }
}
