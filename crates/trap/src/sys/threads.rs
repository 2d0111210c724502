//! Threads that wait in calls of the kernel's (`ptrace(2)`).

use std::ffi::{c_int, c_uint};
use std::io::{self, ErrorKind};
use std::ptr;

use super::check;

/// From `linux/errno.h`, never seen by programs: the call once more, unless a handler runs without SA_RESTART; or unless one
/// runs. The kernel looks at them where the thread has signals to see to, or is interrupted.
pub(crate) const ERESTARTSYS: c_int = 512;
pub(crate) const ERESTARTNOHAND: c_int = 514;
/// From `linux/ptrace.h`.
const PTRACE_EVENT_STOP: c_int = 128;
/// `struct user` of x86-64: what a call returns, and its number.
#[cfg(target_arch = "x86_64")]
const RESULT: usize = 80;
#[cfg(target_arch = "x86_64")]
const NUMBER: usize = 120;

/// A request without an answer.
fn request(what: c_uint, thread: u32, at: usize, value: usize) -> io::Result<()> {
    let [at, value] = [at, value].map(ptr::without_provenance_mut::<u8>);
    // SAFETY: the addresses of these requests are numbers, none of our memory.
    check(unsafe { libc::ptrace(what, thread, at, value) } as c_int).map(drop)
}

/// Whether this process may ask for threads at all; whether for a certain one is the same as with its memory.
pub(crate) fn can_fetch() -> bool {
    const NOBODY: u32 = i32::MAX as u32;
    let asked = request(libc::PTRACE_SEIZE, NOBODY, 0, 0);
    asked.is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH))
}

/// Has a thread leave the call that it waits in, see to its signals, and make the call anew, or say EINTR if they want that.
/// `meanwhile` ends a sleep that only fatal signals end, by ERESTARTSYS or its kin.
///
/// # Errors
/// It is gone, or somebody else's.
pub(crate) fn fetch(thread: u32, number: i64, meanwhile: impl FnOnce()) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, thread, 0, 0)?;
    request(libc::PTRACE_INTERRUPT, thread, 0, 0)?;
    meanwhile();
    let Some((event, signal)) = stop_of(thread)? else { return Ok(()) };
    let signal = if event == PTRACE_EVENT_STOP {
        restart(thread, number);
        0
    } else {
        // One that it was to take just now: it takes it.
        signal
    };
    request(libc::PTRACE_DETACH, thread, 0, signal as usize)
}

/// The next stop of a thread that is ours; `None`: it has ended.
fn stop_of(thread: u32) -> io::Result<Option<(c_int, c_int)>> {
    let mut status = 0;
    loop {
        // SAFETY: writes one number.
        match check(unsafe { libc::waitpid(thread.cast_signed(), &raw mut status, libc::__WALL) }) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            waited => {
                waited?;
                break;
            }
        }
    }
    Ok(libc::WIFSTOPPED(status).then(|| (status >> 16, libc::WSTOPSIG(status))))
}

/// What has a limit says EINTR at each stop; as long as no signal is there, that is not for the program.
#[cfg(target_arch = "x86_64")]
fn restart(thread: u32, number: i64) {
    let read = |at: usize| {
        // SAFETY: as above; the C library returns the value.
        unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, thread, at, 0) }
    };
    if read(NUMBER) == number && read(RESULT) == -i64::from(libc::EINTR) {
        let _ = request(libc::PTRACE_POKEUSER, thread, RESULT, (-(ERESTARTNOHAND as isize)) as usize);
    }
}

/// Such calls are not left to the kernel (`RESTARTS_LIMITED`).
#[cfg(not(target_arch = "x86_64"))]
fn restart(_: u32, _: i64) {}

/// Whether a call that has a limit can be made anew.
pub(crate) const RESTARTS_LIMITED: bool = cfg!(target_arch = "x86_64");

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::time::Duration;

    use super::super::{pair, send, set_option};
    use super::*;

    /// A process that receives once and ends with how much that was, or with an errno and 100.
    fn receiver(fd: c_int) -> u32 {
        let mut space = [0u8; 8];
        // SAFETY: the child makes two calls, which are allowed after `fork`.
        unsafe {
            match libc::fork() {
                0 => {
                    let got = libc::recv(fd, space.as_mut_ptr().cast(), space.len(), 0) as c_int;
                    libc::_exit(if got < 0 { 100 + *libc::__errno_location() } else { got })
                }
                child => child as u32,
            }
        }
    }

    fn await_call(thread: u32) {
        let number = format!("{} ", libc::SYS_recvfrom);
        let file = format!("/proc/{thread}/syscall");
        while !std::fs::read_to_string(&file).unwrap().starts_with(&number) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn fetched(limit: bool) -> c_int {
        let (ours, theirs) = pair(libc::SOCK_DGRAM).unwrap();
        if limit {
            let minute = [60u64.to_ne_bytes(), 0u64.to_ne_bytes()].concat();
            set_option(&theirs, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &minute).unwrap();
        }
        let child = receiver(theirs.as_raw_fd());
        for _ in 0..20 {
            await_call(child);
            fetch(child, libc::SYS_recvfrom, || {}).unwrap();
        }
        send(&ours, b"abc", 0).unwrap();
        let mut status = 0;
        // SAFETY: writes one number.
        unsafe { libc::waitpid(child.cast_signed(), &raw mut status, 0) };
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_call_is_made_anew_and_the_program_does_not_know() {
        assert!(can_fetch());
        assert_eq!(fetched(false), 3);
        if RESTARTS_LIMITED {
            assert_eq!(fetched(true), 3);
        }
    }

    #[test]
    fn who_has_ended_is_not_waited_for() {
        let (ours, theirs) = pair(libc::SOCK_DGRAM).unwrap();
        let child = receiver(theirs.as_raw_fd());
        send(&ours, b"abc", 0).unwrap();
        // SAFETY: numbers only, and a place that may be left out.
        unsafe { libc::waitid(libc::P_PID, child, ptr::null_mut(), libc::WEXITED | libc::WNOWAIT) };
        assert!(fetch(child, libc::SYS_recvfrom, || {}).is_err());
        // SAFETY: as above.
        unsafe { libc::waitpid(child.cast_signed(), ptr::null_mut(), 0) };
    }
}
