//! SCHED_DEADLINE for threads that serve nothing but paths with a deadline. Why only once: [`Share::Deadline`].

use std::io;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::{HAS_DEADLINE, PollSet};
use scoutline_base::Time;

use super::books::{MAX_THREADS, Means, TRUSTED, Touched};
use super::duty::Share;
use super::undo::ThreadBefore;
use super::weights::say;
use crate::sys::{self, Reservation, ThreadPolicy};

/// Whether a thread has SCHED_DEADLINE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reserved {
    /// It may come to have it.
    #[default]
    NotYet,
    /// It has.
    Has(Reservation),
    /// It had, or cannot have it.
    Never,
}

impl Means {
    /// Gives a thread SCHED_DEADLINE, or takes it; whether it has it now.
    pub(super) fn reserve(
        &mut self,
        touched: &mut Touched,
        shared: &PollSet,
        share: Share,
        now: Time,
    ) -> bool {
        let thread = touched.before.thread;
        if share == Share::Unsaid {
            return matches!(touched.reserved, Reserved::Has(_));
        }
        match (touched.reserved, wanted(share)) {
            // Somebody else may have given it another policy.
            (Reserved::Has(has), Some(wanted)) if has == wanted && now.since(touched.raised_at) > TRUSTED => {
                touched.raised_at = now;
                if !Reservation::is_held_by(thread) {
                    touched.reserved = Reserved::Never;
                }
            }
            (Reserved::Has(has), Some(wanted)) if has == wanted => {}
            (Reserved::Has(_), None) => {
                touched.reserved = Reserved::Never;
                leave_deadline(&touched.before);
            }
            // One that is raised is about to lower itself, and would take the other policy for that.
            (Reserved::NotYet, Some(wanted)) if shared.level.load(Ordering::Acquire) == 0 => {
                self.give_reservation(touched, shared, wanted, now);
            }
            (Reserved::Has(_), Some(wanted)) => self.give_reservation(touched, shared, wanted, now),
            _ => {}
        }
        matches!(touched.reserved, Reserved::Has(_))
    }

    /// Notes that a thread gets SCHED_DEADLINE; false if it had it before.
    fn is_first_deadline(&mut self, thread: (u32, u64)) -> bool {
        let had = &mut self.had_deadline;
        if had.len() >= MAX_THREADS {
            had.retain(|&(id, started)| sys::thread_stat(id).is_ok_and(|stat| stat.started == started));
        }
        had.len() < MAX_THREADS && had.insert(thread)
    }

    fn give_reservation(&mut self, touched: &mut Touched, shared: &PollSet, wanted: Reservation, now: Time) {
        let ThreadBefore { thread, started, .. } = touched.before;
        if touched.reserved == Reserved::NotYet && !self.is_first_deadline((thread, started)) {
            touched.reserved = Reserved::Never;
            return;
        }
        // For the thread itself, should nobody else be left to take it back.
        let own = ThreadPolicy { policy: touched.before.policy, priority: touched.before.priority };
        shared.own_policy.store(own.packed() | HAS_DEADLINE, Ordering::Relaxed);
        match wanted.give(thread) {
            Ok(()) => {
                touched.reserved = Reserved::Has(wanted);
                touched.raised_at = now;
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => {
                if touched.reserved != Reserved::NotYet {
                    leave_deadline(&touched.before);
                }
                touched.reserved = Reserved::Never;
                let why = match error.raw_os_error() {
                    Some(libc::EPERM) => "it needs CAP_SYS_NICE, and a thread that may run on every core",
                    Some(libc::EBUSY) => "what all such threads may take together is given away (sched(7))",
                    _ => "the kernel takes 2 to 4,000,000 us of a deadline_us up to 4,000,000",
                };
                let line = format!(
                    "a thread of a class with thread_budget_us runs as SCHED_FIFO and not as SCHED_DEADLINE ({error}): \
                     {why}"
                );
                say(&self.notices, line);
            }
        }
    }
}

/// What a share asks for.
pub(super) fn wanted(share: Share) -> Option<Reservation> {
    match share {
        Share::Deadline { within_us, budget_us } => Some(Reservation {
            run_time_ns: u64::from(budget_us) * 1000,
            period_ns: u64::from(within_us) * 1000,
        }),
        Share::Unsaid | Share::Own | Share::Group { .. } => None,
    }
}

/// Gives a thread what it was, but for what it forks: it may only put that back itself with a privilege.
fn leave_deadline(before: &ThreadBefore) {
    Reservation::take_from_holder(before.thread);
    // It may have ended.
    let _ = ThreadPolicy { policy: before.policy, priority: before.priority }.give(before.thread, true);
}

/// Whether threads can be given SCHED_DEADLINE here. For `scoutline doctor`.
///
/// # Errors
/// As the kernel says.
pub fn deadlines_of_threads() -> io::Result<()> {
    // A thread that ends with it: whoever leaves it must not come back. It has time enough to end: Linux 6.1 lets one
    // that has used up its time wait for the next period, again and again.
    let enough = Reservation { run_time_ns: 20_000_000, ..Reservation::NOTHING };
    let tried = std::thread::spawn(move || enough.give(0)).join();
    tried.unwrap_or_else(|_| Err(io::Error::other("the attempt has failed")))
}
