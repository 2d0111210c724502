//! Which sockets have been closed for good: by the last descriptor of them, whoever had it (`inotify(7)`).

use std::ffi::{CString, c_int};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::{check, check_size, owned};

/// `struct inotify_event` without a name.
const EVENT: usize = 16;

/// Watches open files.
pub(crate) struct Closings(OwnedFd);

impl Closings {
    pub(crate) fn new() -> io::Result<Closings> {
        // SAFETY: numbers only.
        owned(unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) }).map(Closings)
    }

    /// Readable once something has been closed.
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.0
    }

    /// Watches the file behind a descriptor: the watch's number.
    pub(crate) fn watch(&self, fd: &OwnedFd) -> io::Result<c_int> {
        let path = CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("a path without zeros");
        // SAFETY: a name that ends with zero.
        check(unsafe { libc::inotify_add_watch(self.0.as_raw_fd(), path.as_ptr(), libc::IN_CLOSE) })
    }

    /// Watches it no more, which lets go of the file.
    pub(crate) fn forget(&self, watch: c_int) {
        // SAFETY: numbers only.
        unsafe { libc::inotify_rm_watch(self.0.as_raw_fd(), watch) };
    }

    /// The watches whose files have been closed; `None` in their place: some that cannot be told.
    pub(crate) fn take(&self) -> Vec<Option<c_int>> {
        let mut closed = Vec::new();
        let mut space = [0u8; 256 * EVENT];
        loop {
            // SAFETY: writes at most the length that we give.
            let len = unsafe { libc::read(self.0.as_raw_fd(), space.as_mut_ptr().cast(), space.len()) };
            let Ok(len @ 1..) = check_size(len) else { return closed };
            for event in space[..len].chunks_exact(EVENT) {
                let word =
                    |at: usize| u32::from_ne_bytes([event[at], event[at + 1], event[at + 2], event[at + 3]]);
                let (watch, what) = (word(0).cast_signed(), word(4));
                if what & libc::IN_CLOSE != 0 {
                    closed.push(Some(watch));
                } else if what & libc::IN_Q_OVERFLOW != 0 {
                    closed.push(None);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{kernel_socket, send};
    use super::*;

    #[test]
    fn the_last_descriptor_of_a_socket_tells() {
        let closings = Closings::new().unwrap();
        let [one, other] = [0, 1].map(|_| kernel_socket(libc::SOCK_STREAM).unwrap());
        let watches = [&one, &other].map(|fd| closings.watch(fd).unwrap());
        let second = one.try_clone().unwrap();
        let _ = send(&one, b"x", 0);
        drop(one);
        assert_eq!(closings.take(), []);
        drop(second);
        assert_eq!(closings.take(), [Some(watches[0])]);
        closings.forget(watches[0]);
        closings.forget(watches[1]);
        drop(other);
        assert_eq!(closings.take(), []);
    }
}
