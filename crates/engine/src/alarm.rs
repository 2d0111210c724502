//! A timer that is set seldom. Where Linux runs on a virtual machine, to set one that is due within 0.1 ms takes 6 µs, and
//! to take it back as much again; and nearly all of the engine's sleeps beside Linux end before theirs is due. So the
//! timer stays set when the sleep ends: the next one has it already, and wakes early for it at most once.

use std::io::Result;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use scoutline_base::Time;

use crate::sys;

/// A sleep that is to be twice as long at least does not end with a timer that is due so soon.
const SOON: Duration = Duration::from_micros(200);

/// A timer of CLOCK_MONOTONIC.
pub(crate) struct Alarm {
    timer: OwnedFd,
    /// When it is due, or was last.
    due: Time,
}

impl Alarm {
    /// Not set yet.
    pub(crate) fn new() -> Result<Alarm> {
        // SAFETY: no pointers; the result is checked.
        let fd =
            unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: just made, owned by nobody else.
        Ok(Alarm { timer: unsafe { OwnedFd::from_raw_fd(fd) }, due: Time::ZERO })
    }

    /// Sleeps until `fd` is readable, for `limit` at most and perhaps less. Says whether it is.
    pub(crate) fn sleep_on(&mut self, fd: RawFd, now: Time, limit: Duration) -> bool {
        let is_soon = self.due < now + SOON && limit >= 2 * SOON;
        if self.due <= now || self.due > now + limit || is_soon {
            self.due = now + limit;
            sys::set_timer(self.timer.as_raw_fd(), limit);
        }
        sys::wait_for_either(fd, self.timer.as_raw_fd())
    }
}
