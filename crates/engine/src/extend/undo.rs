//! What threads were before they were touched, and who remembers it.

use std::io;

use super::ThreadGroup;
use crate::sys::{self, Reservation, ThreadPolicy};

/// A thread as it was before it was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadBefore {
    /// Its id.
    pub thread: u32,
    /// When it started, in clock ticks since boot: ids are used again.
    pub started: u64,
    /// `SCHED_OTHER` and so on.
    pub policy: i32,
    /// Real-time priority.
    pub priority: i32,
}

impl ThreadBefore {
    /// What the kernel says of a thread now.
    ///
    /// # Errors
    /// It is gone.
    pub fn of(thread: u32) -> io::Result<ThreadBefore> {
        let ThreadPolicy { policy, priority } = ThreadPolicy::of(thread)?;
        Ok(ThreadBefore { thread, started: sys::thread_stat(thread)?.started, policy, priority })
    }

    /// Gives the thread back what it had, if it is still the same one and what it has is ours: what somebody has given
    /// it since (`chrt`, or the program itself) stays.
    ///
    /// # Errors
    /// As the kernel says; a thread that is gone is none.
    pub fn restore(&self) -> io::Result<()> {
        let is_same = sys::thread_stat(self.thread).is_ok_and(|stat| stat.started == self.started);
        if !is_same || !ThreadPolicy::of(self.thread).is_ok_and(is_ours) {
            return Ok(());
        }
        Reservation::take_from_holder(self.thread);
        ThreadPolicy { policy: self.policy, priority: self.priority }.give(self.thread, false)
    }

    /// Whether the thread has neither what it had nor what we give.
    pub(super) fn is_changed_by_others(&self) -> bool {
        let before = ThreadPolicy { policy: self.policy, priority: self.priority };
        ThreadPolicy::of(self.thread).is_ok_and(|now| !is_ours(now) && now != before)
    }
}

/// All that we, and the shim, give carries this flag, and what others give takes it away unless they ask for it. Only a
/// thread that had it before it was touched cannot be told by it.
fn is_ours(policy: ThreadPolicy) -> bool {
    policy.policy & libc::SCHED_RESET_ON_FORK != 0
}

/// Who remembers what threads were, beyond the life of this process.
pub trait UndoLog: Send + Sync {
    /// A thread is about to be touched. On an error it is not.
    ///
    /// # Errors
    /// Nobody would remember.
    fn note(&self, before: &ThreadBefore) -> io::Result<()>;

    /// The thread is as it was before.
    fn forget(&self, before: &ThreadBefore);

    /// A control group is about to be made. On an error it is not.
    ///
    /// # Errors
    /// Nobody would remember.
    fn note_group(&self, group: &ThreadGroup) -> io::Result<()>;

    /// The group is gone.
    fn forget_group(&self, group: &ThreadGroup);
}
