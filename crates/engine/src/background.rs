//! Idle time of other resources than the wire: a process whose processor and disk come after everything else
//! (`scoutline run --background`).
//!
//! Threads and children inherit both, and a program that it becomes (`exec`) keeps them.

use std::io::{Error, Result};

/// `ioprio_set(2)`, which the C library does not have: `IOPRIO_WHO_PROCESS`, and `IOPRIO_CLASS_IDLE` in its place.
const WHO_PROCESS: libc::c_int = 1;
const CLASS_IDLE: libc::c_int = 3 << 13;

/// Puts the calling thread on SCHED_IDLE and its disk I/O into the idle class. Neither needs a privilege. Whether the
/// second has an effect is the block device's scheduler's to say (`bfq` and `mq-deadline` obey).
///
/// # Errors
/// What the kernel says; a thread of real-time priority without the privilege to keep it may still lower itself.
pub fn lower_process() -> Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure outlives the call; without SCHED_RESET_ON_FORK, so that children inherit it.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if done < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: three integers.
    let done = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, CLASS_IDLE) };
    if done < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_and_those_that_it_starts_are_idle() {
        let policies = std::thread::spawn(|| {
            lower_process().unwrap();
            let of_this_thread = || {
                // SAFETY: integers only.
                unsafe { (libc::sched_getscheduler(0), libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0)) }
            };
            [of_this_thread(), std::thread::spawn(of_this_thread).join().unwrap()]
        });
        assert_eq!(policies.join().unwrap(), [(libc::SCHED_IDLE, i64::from(CLASS_IDLE)); 2]);
    }
}
