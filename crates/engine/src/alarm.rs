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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::clock;

    const LONG: Duration = Duration::from_secs(5);

    /// An alarm that is set, by a sleep of so long that ended at once, and a bell that is silent by now.
    fn set_for(limit: Duration) -> (Alarm, UnixStream, UnixStream) {
        let mut alarm = Alarm::new().unwrap();
        let (mut silent, mut bell) = UnixStream::pair().unwrap();
        bell.write_all(&[1]).unwrap();
        assert!(alarm.sleep_on(silent.as_raw_fd(), clock::now(), limit), "rung");
        silent.read_exact(&mut [0]).unwrap();
        (alarm, silent, bell)
    }

    #[test]
    fn a_timer_that_is_due_in_time_is_not_set_anew() {
        let (mut alarm, silent, _bell) = set_for(Duration::from_millis(500));
        let (now, due) = (clock::now(), alarm.due);
        assert!(!alarm.sleep_on(silent.as_raw_fd(), now, LONG), "silent");
        assert!(alarm.due == due && clock::now() >= due);
    }

    #[test]
    fn a_long_sleep_does_not_end_with_a_timer_that_is_due_soon() {
        let (mut alarm, silent, _bell) = set_for(LONG);
        // As one that was set a while ago.
        alarm.due = clock::now() + SOON / 2;
        let limit = 3 * SOON;
        let now = clock::now();
        assert!(!alarm.sleep_on(silent.as_raw_fd(), now, limit), "silent");
        assert!(alarm.due == now + limit && clock::now() >= alarm.due);
    }

    #[test]
    fn a_timer_that_is_due_too_late_is_set_anew() {
        let (mut alarm, silent, _bell) = set_for(LONG);
        let now = clock::now();
        assert!(!alarm.sleep_on(silent.as_raw_fd(), now, SOON), "silent");
        assert!(alarm.due == now + SOON && clock::now() >= alarm.due);
    }
}
