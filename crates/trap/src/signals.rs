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
use crate::target::{self, Status};

/// How soon and how seldom is looked.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];
/// After a time that is so small a part of what a call has waited.
const PART: u32 = 16;
/// For each call that waits: a look costs some 20 µs.
const EACH: [Duration; 2] = [Duration::from_micros(200), Duration::from_micros(1250)];

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

    /// A call that has waited long ago already waits on, among so many.
    pub(crate) fn begin_again(&mut self, now: Instant, waiting: usize) {
        self.next = now + interval(now.saturating_duration_since(self.since), waiting);
    }

    /// When to look.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Whether a signal waits for the call's thread. It is always looked before a connection is given, before a datagram
    /// only where the call has waited for so long that 20 µs more are little: datagrams may be lost.
    pub(crate) fn is_called_away(&self, call: &Call, takes_connection: bool) -> bool {
        (takes_connection || self.since.elapsed() >= LOOKS[0])
            && Status::of(call.thread).is_some_and(|status| pending(&status, || false) == Pending::This)
    }

    /// Looks, when it is time to; so many calls wait.
    pub(crate) fn look(
        &mut self,
        call: &Call,
        waiting: usize,
        control: &mut JobControl,
        now: Instant,
    ) -> Pending {
        if now < self.next {
            return Pending::Nobody;
        }
        self.begin_again(now, waiting);
        let Some(status) = Status::of(call.thread) else { return Pending::Nobody };
        pending(&status, || control.is_another_stopped(status.process, call.thread, now))
    }
}

/// Whether a thread has a handler for this signal.
pub(crate) fn is_handled(thread: u32, signal: i32) -> bool {
    // One that is gone makes no call.
    Status::of(thread).is_none_or(|status| status.caught & 1 << (signal - 1) != 0)
}

/// Until the next look at a call that has waited so long, among so many.
fn interval(waited: Duration, waiting: usize) -> Duration {
    let count = u32::try_from(waiting).unwrap_or(u32::MAX);
    let [soon, seldom] = [0, 1].map(|at| LOOKS[at].max(EACH[at] * count));
    (waited / PART).clamp(soon, seldom)
}

/// The signals that a thread would take, or may.
fn open(status: &Status) -> u64 {
    (status.own | status.shared) & !status.blocked
}

/// Where one thread of a process is stopped, all are to stop.
fn pending(status: &Status, is_another_stopped: impl FnOnce() -> bool) -> Pending {
    let is_alone = status.threads == 1;
    if open(status) == 0 {
        return if !is_alone && is_another_stopped() { Pending::This } else { Pending::Nobody };
    }
    let is_own = status.own & !status.blocked != 0;
    if is_own || is_alone || is_another_stopped() { Pending::This } else { Pending::Any }
}

/// Which processes are being stopped.
#[derive(Debug, Default)]
pub(crate) struct JobControl {
    /// None of their threads was, when they were looked at last; and when to look again.
    none: HashMap<u32, Instant>,
}

impl JobControl {
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
            if id != thread && target::state(id) == Some('T') {
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

    fn status(threads: u32, [own, shared, blocked]: [u64; 3]) -> Status {
        Status { process: 7, threads, own, shared, blocked, ..Status::default() }
    }

    #[test]
    fn what_is_blocked_waits() {
        let of = |masks| pending(&status(1, masks), || unreachable!("it is alone"));
        assert_eq!(of([0; 3]), Pending::Nobody);
        assert_eq!(of([4, 6, 6]), Pending::Nobody);
        assert_eq!(of([4, 0, 2]), Pending::This);
        assert_eq!(of([0, 4, 2]), Pending::This);
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
        assert_eq!([after(0, 1), after(160, 1), after(10_000, 1)], [1, 10, 50]);
        assert_eq!([after(0, 200), after(160, 200), after(10_000, 200)], [40, 40, 250]);
    }
}
