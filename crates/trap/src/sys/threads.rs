//! Threads that wait in calls of the kernel's (`ptrace(2)`).

use std::ffi::{c_int, c_uint};
use std::io::{self, ErrorKind};
use std::ptr;

use super::check;

/// From `linux/errno.h`, never seen by programs: the call once more, unless a handler runs without SA_RESTART; or unless one
/// runs. The kernel looks at them where the thread has signals to see to, or is interrupted.
pub(crate) const ERESTARTSYS: c_int = 512;
/// The call once more, whatever runs.
pub(crate) const ERESTARTNOINTR: c_int = 513;
pub(crate) const ERESTARTNOHAND: c_int = 514;
/// From `linux/ptrace.h`.
const PTRACE_EVENT_STOP: c_int = 128;
/// What a thread that makes a call stops by (PTRACE_O_TRACESYSGOOD).
#[cfg(target_arch = "x86_64")]
const CALL: c_int = libc::SIGTRAP | 0x80;

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
#[derive(Debug)]
#[must_use = "it would stand for ever"]
pub(crate) struct Stopped {
    thread: u32,
    /// One that it takes just now, or 0.
    signal: c_int,
    /// Its process is being stopped.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    halts: bool,
}

/// Has a thread leave its call, and stand still. What follows is for this thread of ours alone, which has no other one meanwhile:
/// [`stopped`], lest its process wait for ever.
///
/// # Errors
/// It is gone, or somebody else's.
pub(crate) fn seize(thread: u32) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, thread, 0, libc::PTRACE_O_TRACESYSGOOD as usize)?;
    // One that ends is waited for all the same.
    let _ = request(libc::PTRACE_INTERRUPT, thread, 0, 0);
    Ok(())
}

impl Stopped {
    fn new(thread: u32, status: c_int) -> Stopped {
        let (signal, is_event) = (libc::WSTOPSIG(status), status >> 16 == PTRACE_EVENT_STOP);
        let halts = is_event && signal != libc::SIGTRAP;
        Stopped { thread, signal: if is_event { 0 } else { signal }, halts }
    }

    /// Lets it go: it sees to its signals, and makes this call anew (its number and its arguments, with a limit of time or
    /// without) if that is what it left and no handler runs before; whether it does is told just before it goes.
    pub(crate) fn release(
        self,
        (number, arguments, is_limited): (i64, [u64; 6], bool),
        is_handled: impl Fn(c_int) -> bool,
        tell: impl FnOnce(bool),
    ) {
        match leaves(self.thread, number, arguments, is_limited) {
            Some(restart) => self.until_call(restart, is_handled, tell),
            None => self.detach(false, tell),
        }
    }

    fn detach(self, comes: bool, tell: impl FnOnce(bool)) {
        tell(comes);
        let let_go = || request(libc::PTRACE_DETACH, self.thread, 0, self.signal as usize).is_ok();
        // One that is killed as it stands is waited for, or whoever waits for its process would for ever.
        while !let_go() && stopped().is_some() {}
    }

    /// Up to its call, but not into it: detached there it finds a signal, or one that is none, and makes it then.
    #[cfg(target_arch = "x86_64")]
    fn until_call(mut self, restart: c_int, is_handled: impl Fn(c_int) -> bool, tell: impl FnOnce(bool)) {
        while self.signal != CALL {
            let goes_on = !self.halts && (self.signal == 0 || !is_handled(self.signal));
            if !goes_on || request(libc::PTRACE_SYSEMU, self.thread, 0, self.signal as usize).is_err() {
                return self.detach(false, tell);
            }
            let Some(next) = stopped() else { return tell(false) };
            self = next;
        }
        // It stands at the entrance, and the call is left out.
        self.signal = 0;
        let is_left = registers(self.thread).and_then(|at_call| {
            let rax = (-i64::from(restart)).cast_unsigned();
            set_registers(self.thread, &libc::user_regs_struct { rax, ..at_call })
        });
        self.detach(is_left.is_some(), tell);
    }

    /// Nobody tells here whether a handler runs.
    #[cfg(not(target_arch = "x86_64"))]
    fn until_call(self, _: c_int, _: impl Fn(c_int) -> bool, tell: impl FnOnce(bool)) {
        self.detach(true, tell);
    }
}

/// Waits for the next stop of the thread that is this one's; `None`: it has ended. In `exec` it gets its process's number.
pub(crate) fn stopped() -> Option<Stopped> {
    let mut status = 0;
    loop {
        // SAFETY: writes one number.
        let waited = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        match check(waited) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(thread) if libc::WIFSTOPPED(status) => {
                return Some(Stopped::new(thread.cast_unsigned(), status));
            }
            Ok(_) | Err(_) => return None,
        }
    }
}

/// Calls that say EINTR at each stop, though no handler runs (`signal(7)`), and do nothing twice when they are made anew.
#[cfg(target_arch = "x86_64")]
const EINTR_AT_STOPS: [i64; 16] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_io_getevents,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    // With a limit.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_write,
    libc::SYS_sendto,
    libc::SYS_accept,
    libc::SYS_accept4,
];

/// Whether a thread that stands is about to make this call anew: by which result it does so from the call's entrance. Whatever
/// else it left and would be told EINTR of, without a handler, it makes anew, too.
#[cfg(target_arch = "x86_64")]
fn leaves(thread: u32, number: i64, arguments: [u64; 6], is_limited: bool) -> Option<c_int> {
    let registers = registers(thread)?;
    let libc::user_regs_struct { rdi, rsi, rdx, r10, r8, r9, .. } = registers;
    // Where it is in no call the number is below zero.
    let found = registers.orig_rax.cast_signed();
    let is_it = (found, [rdi, rsi, rdx, r10, r8, r9]) == (number, arguments);
    match registers.rax.cast_signed().wrapping_neg() as c_int {
        // The kernel says EINTR of one with a limit, and so this is the program's next call, which nobody has taken yet.
        ERESTARTSYS if is_it && !is_limited => Some(ERESTARTSYS),
        // Told EINTR there, the program's next call would be taken for this one.
        ERESTARTNOHAND if is_it => Some(ERESTARTNOINTR),
        libc::EINTR if is_it || EINTR_AT_STOPS.contains(&found) => {
            let rax = (-i64::from(ERESTARTNOHAND)).cast_unsigned();
            set_registers(thread, &libc::user_regs_struct { rax, ..registers })?;
            is_it.then_some(ERESTARTNOINTR)
        }
        _ => None,
    }
}

#[cfg(target_arch = "x86_64")]
fn registers(thread: u32) -> Option<libc::user_regs_struct> {
    let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::uninit();
    // SAFETY: writes such a structure, whole if it says so.
    unsafe {
        check(libc::ptrace(libc::PTRACE_GETREGS, thread, 0, registers.as_mut_ptr()) as c_int).ok()?;
        Some(registers.assume_init())
    }
}

#[cfg(target_arch = "x86_64")]
fn set_registers(thread: u32, registers: &libc::user_regs_struct) -> Option<()> {
    // SAFETY: reads such a structure.
    check(unsafe { libc::ptrace(libc::PTRACE_SETREGS, thread, 0, ptr::from_ref(registers)) } as c_int)
        .ok()
        .map(drop)
}

/// Nobody tells here, so that an equal call counts as the same.
#[cfg(not(target_arch = "x86_64"))]
fn leaves(_: u32, _: i64, _: [u64; 6], _: bool) -> Option<c_int> {
    Some(ERESTARTSYS)
}

/// Whether a call that comes again is known for certain, and one with a limit can be made anew.
pub(crate) const IS_CERTAIN: bool = cfg!(target_arch = "x86_64");

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::AsRawFd as _;
    use std::time::Duration;

    use super::super::{pair, send, set_option};
    use super::*;

    /// A process that receives once and ends with how much that was, or with an errno and 100.
    pub(crate) fn receiver(fd: c_int) -> u32 {
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

    /// Waits until it receives: the arguments.
    fn await_call(thread: u32) -> [u64; 6] {
        let file = format!("/proc/{thread}/syscall");
        loop {
            let text = std::fs::read_to_string(&file).unwrap();
            assert_ne!(text, "-1 0x0 0x0\n", "it has ended");
            let mut words = text.split_whitespace();
            // It sleeps there: after a stop its call shows before it has come back to it.
            let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).unwrap();
            let sleeps = stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S"));
            if words.next() == Some(libc::SYS_recvfrom.to_string().as_str()) && sleeps {
                let mut argument = || u64::from_str_radix(&words.next().unwrap()[2..], 16).unwrap();
                return [0; 6].map(|_: u64| argument());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn release(stopped: Stopped, arguments: [u64; 6], is_limited: bool) -> bool {
        let mut comes = None;
        stopped.release((libc::SYS_recvfrom, arguments, is_limited), |_| true, |told| comes = Some(told));
        comes.unwrap()
    }

    fn stopped(thread: u32) -> Stopped {
        seize(thread).unwrap();
        super::stopped().expect("it has not ended")
    }

    fn fetched(limit: bool) -> c_int {
        let (ours, theirs) = pair(libc::SOCK_DGRAM).unwrap();
        if limit {
            let minute = [60u64.to_ne_bytes(), 0u64.to_ne_bytes()].concat();
            set_option(&theirs, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &minute).unwrap();
        }
        let child = receiver(theirs.as_raw_fd());
        let arguments = await_call(child);
        for _ in 0..20 {
            assert!(release(stopped(child), arguments, limit));
            assert_eq!(await_call(child), arguments);
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
        if IS_CERTAIN {
            assert_eq!(fetched(true), 3);
        }
    }

    /// Or what a thread did before would be taken for what it does now.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn another_call_is_told_from_the_one_that_is_meant() {
        let (ours, theirs) = pair(libc::SOCK_DGRAM).unwrap();
        let child = receiver(theirs.as_raw_fd());
        let arguments = await_call(child);
        for at in 0..arguments.len() {
            let mut others = arguments;
            others[at] += 1;
            assert!(!release(stopped(child), others, false));
            assert_eq!(await_call(child), arguments);
        }
        stopped(child).release((libc::SYS_recvmsg, arguments, false), |_| true, |comes| assert!(!comes));
        assert_eq!(await_call(child), arguments);
        // The kernel would say EINTR of one with a limit: it is the next one.
        assert!(!release(stopped(child), arguments, true));
        assert_eq!(await_call(child), arguments);
        send(&ours, b"abc", 0).unwrap();
        // SAFETY: a place that may be left out.
        unsafe { libc::waitpid(child.cast_signed(), ptr::null_mut(), 0) };
    }

    #[test]
    fn who_has_ended_is_not_waited_for() {
        let (ours, theirs) = pair(libc::SOCK_DGRAM).unwrap();
        let child = receiver(theirs.as_raw_fd());
        send(&ours, b"abc", 0).unwrap();
        // SAFETY: numbers only, and a place that may be left out.
        unsafe { libc::waitid(libc::P_PID, child, ptr::null_mut(), libc::WEXITED | libc::WNOWAIT) };
        assert!(seize(child).is_err());
        // SAFETY: as above.
        unsafe { libc::waitpid(child.cast_signed(), ptr::null_mut(), 0) };
    }

    /// Else whoever waits for its process would for ever.
    #[test]
    fn who_is_killed_as_it_stands_is_given_back() {
        let (_ours, theirs) = pair(libc::SOCK_DGRAM).unwrap();
        let child = receiver(theirs.as_raw_fd());
        let arguments = await_call(child);
        let stopped = stopped(child);
        // SAFETY: numbers only.
        unsafe { libc::kill(child.cast_signed(), libc::SIGKILL) };
        while std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap().contains(") t ") {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!release(stopped, arguments, false));
        assert!(super::stopped().is_none());
    }
}
