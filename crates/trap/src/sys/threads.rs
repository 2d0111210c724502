//! Threads that wait in calls of the kernel's (`ptrace(2)`).

use std::ffi::{c_int, c_uint};
use std::io::{self, ErrorKind};
use std::ptr;
use std::time::{Duration, Instant};

use super::check;

/// A thread stops within some 20 µs if a processor is free, and is waited for no longer than this at a time.
const SOON: Duration = Duration::from_micros(200);
const LONG: Duration = Duration::from_millis(100);

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

/// A thread that has left the call in which it slept, and stands still.
pub(crate) struct Stopped {
    pub(crate) thread: u32,
    /// One that it takes just now, or 0.
    pub(crate) signal: c_int,
}

/// What became of a thread that was to stop.
pub(crate) enum Stop {
    Stopped(Stopped),
    /// It has ended.
    Ended,
    /// It ends, and its process knows of that only once it has been waited for here; or it stops only later ([`reap`]).
    Ends(u32),
}

/// Has a thread leave the call in which it sleeps. `meanwhile` ends a sleep that only fatal signals end, by ERESTARTSYS or
/// its kin.
///
/// # Errors
/// It is gone, or somebody else's.
pub(crate) fn stop(thread: u32, meanwhile: impl FnOnce()) -> io::Result<Stop> {
    request(libc::PTRACE_SEIZE, thread, 0, 0)?;
    let interrupted = request(libc::PTRACE_INTERRUPT, thread, 0, 0);
    meanwhile();
    if interrupted.is_err() {
        return Ok(Stop::Ends(thread));
    }
    let Some(status) = wait_a_little(thread)? else { return Ok(Stop::Ends(thread)) };
    if !libc::WIFSTOPPED(status) {
        return Ok(Stop::Ended);
    }
    Ok(Stop::Stopped(Stopped { thread, signal: signal_of(status) }))
}

/// The signal that a thread takes as it stops.
fn signal_of(status: c_int) -> c_int {
    if status >> 16 == PTRACE_EVENT_STOP { 0 } else { libc::WSTOPSIG(status) }
}

impl Stopped {
    /// Lets it go: it sees to its signals, and makes the call anew, or says EINTR if they want that. False: it ends, as
    /// [`Stop::Ends`].
    pub(crate) fn release(self) -> bool {
        restart(self.thread);
        request(libc::PTRACE_DETACH, self.thread, 0, self.signal as usize).is_ok()
    }
}

/// Whether a thread that ends has ended, or one that had not stopped has, and goes on.
pub(crate) fn reap(thread: u32) -> bool {
    match look_at(thread) {
        Ok(Some(status)) if libc::WIFSTOPPED(status) => {
            Stopped { thread, signal: signal_of(status) }.release()
        }
        Ok(None) => false,
        Ok(Some(_)) | Err(_) => true,
    }
}

/// The next that there is to tell of a thread that is ours, if it comes soon: one that ends may have to wait for others, and
/// those for us.
fn wait_a_little(thread: u32) -> io::Result<Option<c_int>> {
    let begin = Instant::now();
    loop {
        let told = look_at(thread)?;
        if told.is_some() || begin.elapsed() > LONG {
            return Ok(told);
        }
        if begin.elapsed() < SOON { std::thread::yield_now() } else { std::thread::sleep(SOON) }
    }
}

/// What there is to tell of it now.
fn look_at(thread: u32) -> io::Result<Option<c_int>> {
    let mut status = 0;
    loop {
        // SAFETY: writes one number.
        let waited =
            unsafe { libc::waitpid(thread.cast_signed(), &raw mut status, libc::__WALL | libc::WNOHANG) };
        match check(waited) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            waited => return waited.map(|who| (who != 0).then_some(status)),
        }
    }
}

/// What has a limit, or waits for events, says EINTR at each stop; unless a handler runs, that is not for the program.
#[cfg(target_arch = "x86_64")]
fn restart(thread: u32) {
    let read = |at: usize| {
        // SAFETY: as above; the C library returns the value.
        unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, thread, at, 0) }
    };
    // Where it is in no call the number is below zero.
    if read(NUMBER) >= 0 && read(RESULT) == -i64::from(libc::EINTR) {
        let _ = request(libc::PTRACE_POKEUSER, thread, RESULT, (-(ERESTARTNOHAND as isize)) as usize);
    }
}

/// Such calls are not left to the kernel (`RESTARTS_LIMITED`).
#[cfg(not(target_arch = "x86_64"))]
fn restart(_: u32) {}

/// Whether a call that has a limit can be made anew.
pub(crate) const RESTARTS_LIMITED: bool = cfg!(target_arch = "x86_64");

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::super::{pair, send, set_option};
    use super::*;

    /// A process that receives once and ends with how much that was, or with an errno and 100.
    fn receiver(fd: c_int) -> u32 {
        let mut space = [0u8; 8];
        // The table of descriptors is one: a copy would keep those of tests beside this one open.
        let flags = libc::CLONE_FILES | libc::SIGCHLD;
        // SAFETY: as `fork`, after which the two calls of the child are allowed.
        unsafe {
            match libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) {
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
            let Stop::Stopped(stopped) = stop(child, || {}).unwrap() else { panic!("it has ended") };
            assert!(stopped.release());
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
        assert!(stop(child, || {}).is_err());
        // SAFETY: as above.
        unsafe { libc::waitpid(child.cast_signed(), ptr::null_mut(), 0) };
    }

    /// Else whoever waits for its process would for ever.
    #[test]
    fn who_is_killed_as_it_stands_is_given_back() {
        let (_ours, theirs) = pair(libc::SOCK_DGRAM).unwrap();
        let child = receiver(theirs.as_raw_fd());
        await_call(child);
        let Stop::Stopped(stopped) = stop(child, || {}).unwrap() else { panic!("it has ended") };
        // SAFETY: numbers only.
        unsafe { libc::kill(child.cast_signed(), libc::SIGKILL) };
        while std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap().contains(") t ") {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!stopped.release());
        while !reap(child) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
