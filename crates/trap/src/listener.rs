//! Trapped calls: taking and answering them (`seccomp_unotify(2)`).

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys;

/// A trapped call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The kernel's name for this one call.
    pub(crate) id: u64,
    /// The calling thread.
    pub(crate) thread: u32,
    /// Which call.
    pub(crate) number: i64,
    /// Its arguments.
    pub(crate) arguments: [u64; 6],
}

impl Call {
    /// The first argument, which is a descriptor in all calls but `socket`.
    pub(crate) fn fd(&self) -> i32 {
        self.arguments[0] as i32
    }

    /// The same call by the same thread, once more.
    pub(crate) fn is_like(&self, other: &Call) -> bool {
        Call { id: other.id, ..*self } == *other
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) enum Answer<'a> {
    /// What the call returns; below 0 an errno negated.
    Value(i64),
    /// The kernel shall do the call as it stands.
    Native,
    /// The call returns a descriptor: this one of ours, in the program's table.
    Descriptor(&'a OwnedFd, Flags),
}

impl Answer<'_> {
    /// An errno.
    pub(crate) fn error(errno: i32) -> Self {
        Answer::Value(-i64::from(errno))
    }
}

/// Flags of a descriptor in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags {
    /// Closed by `exec`.
    pub(crate) close_on_exec: bool,
}

/// What became of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It arrived; with the descriptor's number in the program, if it was one.
    Done(Option<i32>),
    /// A signal has ended the call, or its thread is gone.
    Gone,
}

/// The supervisor's end of a filter.
pub(crate) struct Listener(OwnedFd);

impl Listener {
    pub(crate) fn new(fd: OwnedFd) -> Listener {
        Listener(fd)
    }

    /// The same end, for another thread.
    pub(crate) fn try_clone(&self) -> io::Result<Listener> {
        self.0.try_clone().map(Listener)
    }

    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.0
    }

    /// The next call; `None` if it has gone meanwhile.
    pub(crate) fn receive(&self) -> io::Result<Option<Call>> {
        // SAFETY: plain numbers; the kernel demands zeros.
        let mut notification: libc::seccomp_notif = unsafe { zeroed() };
        match sys::control(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, &mut notification) {
            Ok(_) => Ok(Some(Call {
                id: notification.id,
                thread: notification.pid,
                number: i64::from(notification.data.nr),
                arguments: notification.data.args,
            })),
            Err(error) if matches!(sys::errno(&error), libc::ENOENT | libc::EINTR) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the call still waits, so that its thread is who it was.
    pub(crate) fn is_valid(&self, call: &Call) -> bool {
        let mut id = call.id;
        sys::control(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID as _, &mut id).is_ok()
    }

    /// Answers a call.
    pub(crate) fn answer(&self, call: &Call, answer: &Answer<'_>) -> Delivery {
        let (value, native) = match answer {
            Answer::Descriptor(fd, flags) => return self.give(call, fd, *flags),
            Answer::Value(value) => (*value, false),
            Answer::Native => (0, true),
        };
        let mut response = libc::seccomp_notif_resp {
            id: call.id,
            val: value.max(0),
            error: value.min(0) as i32,
            flags: if native { libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 } else { 0 },
        };
        match sys::control(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, &mut response) {
            Ok(_) => Delivery::Done(None),
            Err(_) => Delivery::Gone,
        }
    }

    fn give(&self, call: &Call, fd: &OwnedFd, flags: Flags) -> Delivery {
        let mut request = libc::seccomp_notif_addfd {
            id: call.id,
            flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
            srcfd: fd.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: if flags.close_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        match sys::control(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD as _, &mut request) {
            Ok(number) => Delivery::Done(Some(number)),
            Err(error) => match sys::errno(&error) {
                libc::ENOENT | libc::EINPROGRESS => Delivery::Gone,
                // The program's table is full.
                errno => {
                    self.answer(call, &Answer::error(errno));
                    Delivery::Gone
                }
            },
        }
    }
}
