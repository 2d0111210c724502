//! Threads that wait in calls of the kernel's (`ptrace(2)`).

use std::ffi::{c_int, c_uint};
use std::io::{self, ErrorKind};
use std::ptr;
use std::time::{Duration, Instant};

use super::check;

/// A thread stops within some 20 µs if a processor is free, and is waited for no longer than this at a time.
const SOON: Duration = Duration::from_micros(200);
const LONG: Duration = Duration::from_millis(20);

/// From `linux/errno.h`, never seen by programs: the call once more, unless a handler runs without SA_RESTART; or unless one
/// runs. The kernel looks at them where the thread has signals to see to, or is interrupted.
pub(crate) const ERESTARTSYS: c_int = 512;
/// The call once more, whatever runs.
const ERESTARTNOINTR: c_int = 513;
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

/// A thread that is to leave the call in which it sleeps, and to stand still.
#[derive(Debug)]
#[must_use = "its process would wait for this one"]
pub(crate) struct Seized {
    thread: u32,
    /// It ends, and does not stand any more.
    ends: bool,
    /// By which result it makes its call anew, once it stands in front of it.
    restart: c_int,
}

/// A thread that has left the call in which it slept, and stands still.
#[derive(Debug)]
#[must_use = "it would stand for ever"]
pub(crate) struct Stopped {
    seized: Seized,
    /// One that it takes just now, or 0.
    signal: c_int,
    /// Its process is being stopped.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    halts: bool,
}

/// What became of a thread that was to stop.
#[derive(Debug)]
pub(crate) enum Stop {
    Stopped(Stopped),
    /// It has ended.
    Ended,
    /// It ends, or stops later: its process knows of that only once it has been looked at here.
    Later(Seized),
}

/// Has a thread leave its call.
///
/// # Errors
/// It is gone, or somebody else's.
pub(crate) fn seize(thread: u32) -> io::Result<Seized> {
    request(libc::PTRACE_SEIZE, thread, 0, libc::PTRACE_O_TRACESYSGOOD as usize)?;
    let ends = request(libc::PTRACE_INTERRUPT, thread, 0, 0).is_err();
    Ok(Seized { thread, ends, restart: ERESTARTNOINTR })
}

impl Seized {
    /// Waits until it stands, for a little, or `is_ending`: one that ends stands no more.
    pub(crate) fn stop(self, is_ending: impl Fn() -> bool) -> Stop {
        if self.ends {
            return Stop::Later(self);
        }
        let told = wait_a_little(self.thread, is_ending);
        self.told(&told)
    }

    /// Whether it stands by now, or has ended.
    pub(crate) fn look(self) -> Stop {
        let told = look_at(self.thread);
        self.told(&told)
    }

    fn told(self, told: &io::Result<Option<c_int>>) -> Stop {
        match told {
            Ok(Some(status)) if libc::WIFSTOPPED(*status) => Stop::Stopped(Stopped::new(self, *status)),
            Ok(None) => Stop::Later(self),
            Ok(Some(_)) | Err(_) => Stop::Ended,
        }
    }
}

impl Stopped {
    fn new(seized: Seized, status: c_int) -> Stopped {
        let (signal, is_event) = (libc::WSTOPSIG(status), status >> 16 == PTRACE_EVENT_STOP);
        let halts = is_event && signal != libc::SIGTRAP;
        Stopped { seized, signal: if is_event { 0 } else { signal }, halts }
    }

    /// Lets it go: it sees to its signals, and makes this call anew (its number and its arguments) if that is what it left
    /// and no handler runs before; whether it does.
    ///
    /// # Errors
    /// As [`Stop::Later`].
    pub(crate) fn release(
        self,
        number: i64,
        arguments: [u64; 6],
        is_handled: impl Fn(c_int) -> bool,
        is_ending: impl Fn() -> bool,
    ) -> Result<bool, Seized> {
        #[cfg(target_arch = "x86_64")]
        if self.is_at_call() {
            return self.leave_call();
        }
        match leaves(self.seized.thread, number, arguments) {
            Some(restart) => self.until_call(restart, is_handled, is_ending),
            None => self.detach(false),
        }
    }

    fn detach(self, comes: bool) -> Result<bool, Seized> {
        let let_go = request(libc::PTRACE_DETACH, self.seized.thread, 0, self.signal as usize);
        let_go.map(|()| comes).map_err(|_| self.ending())
    }

    /// It is killed as it stands.
    fn ending(self) -> Seized {
        Seized { ends: true, ..self.seized }
    }

    /// Up to its call, but not into it: detached there it finds a signal, or one that is none, and makes it then.
    #[cfg(target_arch = "x86_64")]
    fn until_call(
        mut self,
        restart: c_int,
        is_handled: impl Fn(c_int) -> bool,
        is_ending: impl Fn() -> bool,
    ) -> Result<bool, Seized> {
        self.seized.restart = restart;
        while !self.is_at_call() {
            if self.halts || self.signal != 0 && is_handled(self.signal) {
                return self.detach(false);
            }
            if request(libc::PTRACE_SYSEMU, self.seized.thread, 0, self.signal as usize).is_err() {
                return Err(self.ending());
            }
            match self.seized.stop(&is_ending) {
                Stop::Stopped(stopped) => self = stopped,
                Stop::Ended => return Ok(false),
                Stop::Later(seized) => return Err(seized),
            }
        }
        self.leave_call()
    }

    #[cfg(target_arch = "x86_64")]
    fn is_at_call(&self) -> bool {
        self.signal == CALL
    }

    /// From the entrance to a call, which is left out (PTRACE_SYSEMU).
    #[cfg(target_arch = "x86_64")]
    fn leave_call(mut self) -> Result<bool, Seized> {
        self.signal = 0;
        let is_left = registers(self.seized.thread).and_then(|at_call| {
            let rax = (-i64::from(self.seized.restart)).cast_unsigned();
            set_registers(self.seized.thread, &libc::user_regs_struct { rax, ..at_call })
        });
        self.detach(is_left.is_some())
    }

    /// Nobody tells here whether a handler runs.
    #[cfg(not(target_arch = "x86_64"))]
    fn until_call(self, _: c_int, _: impl Fn(c_int) -> bool, _: impl Fn() -> bool) -> Result<bool, Seized> {
        self.detach(true)
    }
}

/// The next that there is to tell of a thread that is ours, if it comes soon: one that ends may have to wait for others, and
/// those for us.
fn wait_a_little(thread: u32, is_ending: impl Fn() -> bool) -> io::Result<Option<c_int>> {
    let begin = Instant::now();
    loop {
        let told = look_at(thread)?;
        if told.is_some() || begin.elapsed() > LONG {
            return Ok(told);
        }
        if begin.elapsed() < SOON {
            std::thread::yield_now();
        } else if is_ending() {
            return look_at(thread);
        } else {
            std::thread::sleep(SOON);
        }
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
fn leaves(thread: u32, number: i64, arguments: [u64; 6]) -> Option<c_int> {
    let registers = registers(thread)?;
    let libc::user_regs_struct { rdi, rsi, rdx, r10, r8, r9, .. } = registers;
    // Where it is in no call the number is below zero.
    let found = registers.orig_rax.cast_signed();
    let is_it = (found, [rdi, rsi, rdx, r10, r8, r9]) == (number, arguments);
    match registers.rax.cast_signed().wrapping_neg() as c_int {
        ERESTARTSYS if is_it => Some(ERESTARTSYS),
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
fn leaves(_: u32, _: i64, _: [u64; 6]) -> Option<c_int> {
    Some(ERESTARTSYS)
}

/// Whether a call that comes again is known for certain, and one with a limit can be made anew.
pub(crate) const IS_CERTAIN: bool = cfg!(target_arch = "x86_64");

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

    /// Waits until it receives: the arguments.
    fn await_call(thread: u32) -> [u64; 6] {
        let file = format!("/proc/{thread}/syscall");
        loop {
            let text = std::fs::read_to_string(&file).unwrap();
            assert_ne!(text, "-1 0x0 0x0\n", "it has ended");
            let mut words = text.split_whitespace();
            if words.next() == Some(libc::SYS_recvfrom.to_string().as_str()) {
                let mut argument = || u64::from_str_radix(&words.next().unwrap()[2..], 16).unwrap();
                return [0; 6].map(|_: u64| argument());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn release(stopped: Stopped, arguments: [u64; 6]) -> Result<bool, Seized> {
        stopped.release(libc::SYS_recvfrom, arguments, |_| true, || false)
    }

    fn stopped(thread: u32) -> Stopped {
        let Stop::Stopped(stopped) = seize(thread).unwrap().stop(|| false) else { panic!("it has ended") };
        stopped
    }

    /// Until there is something to tell of it.
    fn looked_at(mut seized: Seized) -> Stop {
        loop {
            match seized.look() {
                Stop::Later(later) => seized = later,
                stop => return stop,
            }
            std::thread::yield_now();
        }
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
            assert!(release(stopped(child), arguments).unwrap());
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
            assert!(!release(stopped(child), others).unwrap());
            assert_eq!(await_call(child), arguments);
        }
        assert!(!stopped(child).release(libc::SYS_recvmsg, arguments, |_| true, || false).unwrap());
        assert_eq!(await_call(child), arguments);
        send(&ours, b"abc", 0).unwrap();
        // SAFETY: a place that may be left out.
        unsafe { libc::waitpid(child.cast_signed(), ptr::null_mut(), 0) };
    }

    /// The call is not left out, however late it is seen to stand there.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn who_stands_late_at_its_call_makes_it() {
        let (ours, theirs) = pair(libc::SOCK_DGRAM).unwrap();
        let child = receiver(theirs.as_raw_fd());
        let arguments = await_call(child);
        let Stopped { seized, .. } = stopped(child);
        assert!(leaves(child, libc::SYS_recvfrom, arguments).is_some());
        request(libc::PTRACE_SYSEMU, child, 0, 0).unwrap();
        let Stop::Stopped(late) = looked_at(seized) else { panic!("it has ended") };
        assert!(release(late, arguments).unwrap());
        send(&ours, b"abc", 0).unwrap();
        let mut status = 0;
        // SAFETY: writes one number.
        unsafe { libc::waitpid(child.cast_signed(), &raw mut status, 0) };
        assert_eq!(libc::WEXITSTATUS(status), 3);
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
        let seized = release(stopped, arguments).unwrap_err();
        assert!(matches!(looked_at(seized), Stop::Ended));
    }
}
