//! The system calls of the engine's loop, each with the small safe form that the loop needs.

use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

mod threads;

pub(crate) use threads::{Reservation, ThreadHandle, ThreadPolicy, is_thread_of, thread_stat};

/// An eventfd that never blocks.
pub(crate) fn eventfd() -> Result<OwnedFd> {
    // SAFETY: no pointers; the result is checked.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: just made, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Adds one to an eventfd. A full counter means that it has been rung already.
pub(crate) fn ring(fd: RawFd) {
    let one = 1u64;
    // SAFETY: eight bytes of a local.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}

/// Takes what a non-blocking descriptor holds, up to a page; false at the end of file.
pub(crate) fn drain(fd: RawFd) -> bool {
    let mut bytes = MaybeUninit::<[u8; 4096]>::uninit();
    // SAFETY: the buffer is ours, and nobody reads it.
    unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), size_of_val(&bytes)) != 0 }
}

/// Takes what an eventfd holds, waiting for it if it was made to wait.
pub(crate) fn wait_rung(fd: RawFd) {
    let mut count = 0u64;
    // SAFETY: eight bytes of a local.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
}

/// Pins the calling thread to one core.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    // SAFETY: a zeroed cpu_set_t is an empty one; CPU_SET checks its index against the set's size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if cpu >= libc::CPU_SETSIZE as usize {
            return Err(Error::from_raw_os_error(libc::EINVAL));
        }
        libc::CPU_SET(cpu, &mut set);
        check(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set))
    }
}

/// The one core on which a thread may run; `None`: on several, or there is no such thread.
pub(crate) fn only_core_of(thread: u32) -> Option<usize> {
    let mut cores = [0u64; 128];
    let thread = libc::pid_t::try_from(thread).ok()?;
    // SAFETY: the kernel writes at most as many bytes as `cores` has.
    let len = unsafe { libc::sched_getaffinity(thread, size_of_val(&cores), cores.as_mut_ptr().cast()) };
    let mut found = cores.iter().enumerate().filter(|(_, word)| **word != 0);
    let (Some((at, word)), None, true) = (found.next(), found.next(), len >= 0) else { return None };
    word.is_power_of_two().then(|| at * 64 + word.trailing_zeros() as usize)
}

/// Lets the calling thread run on every core.
pub(crate) fn run_anywhere() {
    let all = [u8::MAX; 1024];
    // SAFETY: the bytes outlive the call, which takes those of them that name cores. Refused, it stays where it is.
    unsafe { libc::sched_setaffinity(0, all.len(), all.as_ptr().cast()) };
}

/// Gives the calling thread SCHED_IDLE.
pub(crate) fn set_idle_policy() -> Result<()> {
    set_policy(libc::SCHED_IDLE, 0)
}

/// Gives the calling thread SCHED_FIFO with this priority.
pub(crate) fn set_realtime(priority: u8) -> Result<()> {
    set_policy(libc::SCHED_FIFO, i32::from(priority))
}

/// Whether threads can be given SCHED_FIFO with this priority here. For `scoutline doctor`.
///
/// # Errors
/// As the kernel says; EPERM also where the control group has no real-time budget, whatever the privilege.
pub fn realtime_of_threads(priority: u8) -> Result<()> {
    let tried = std::thread::Builder::new().spawn(move || set_realtime(priority))?.join();
    tried.unwrap_or_else(|_| Err(Error::other("the attempt has failed")))
}

fn set_policy(policy: i32, priority: i32) -> Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the structure outlives the call. What the thread forks does not inherit it.
    check(unsafe { libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &raw const parameters) })
}

/// Lets timers of the calling thread be as exact as they can (the default slack is 50 µs).
pub(crate) fn exact_timers() {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// How long the calling thread has run.
pub(crate) fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure; every thread has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Random bytes for keys.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: the buffer is ours; up to 256 bytes arrive whole once the system's generator is ready.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    bytes
}

fn check(result: i32) -> Result<()> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// What an engine sleeps on.
pub(crate) struct Sleeper {
    epoll: OwnedFd,
}

impl Sleeper {
    /// Sleeps on nothing yet.
    pub(crate) fn new() -> Result<Sleeper> {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: just made, owned by nobody else.
        Ok(Sleeper { epoll: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Wakes when `fd` gets input. Edge-triggered for devices, whose sockets stay readable while a packet waits.
    pub(crate) fn watch(&self, fd: RawFd, edge: bool) -> Result<()> {
        let events = libc::EPOLLIN as u32 | if edge { libc::EPOLLET as u32 } else { 0 };
        let mut event = libc::epoll_event { events, u64: fd as u64 };
        // SAFETY: the structure outlives the call.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) })
    }

    /// Its descriptor, for another sleeper to watch.
    pub(crate) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// The watched descriptors that have input now, sixteen at most.
    pub(crate) fn ready(&self) -> impl Iterator<Item = RawFd> + use<> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        // SAFETY: the call fills at most sixteen events of ours.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), 16, 0) };
        events.into_iter().take(count.max(0) as usize).map(|event| event.u64 as RawFd)
    }

    /// Sleeps until something happens or `limit` is over (`None`: for good). Says which have input, eight at most.
    pub(crate) fn sleep(&self, limit: Option<Duration>) -> impl Iterator<Item = RawFd> + use<> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        let limit = limit.map(timespec);
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: events and limit outlive the call; the call fills at most eight. An error (EINTR) is an early
        // wake-up. epoll_pwait2 is there since Linux 5.11, which is older than what the rest needs.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                8,
                limit,
                std::ptr::null::<libc::sigset_t>(),
                8,
            )
        };
        events.into_iter().take(count.max(0) as usize).map(|event| event.u64 as RawFd)
    }
}

/// Sleeps until one of them is readable. Says whether the first is.
pub(crate) fn wait_for_either(one: RawFd, other: RawFd) -> bool {
    let mut polls = [one, other].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: the array outlives the call. An error (EINTR) is an early wake-up.
    unsafe { libc::ppoll(polls.as_mut_ptr(), 2, std::ptr::null(), std::ptr::null()) };
    polls[0].revents != 0
}

/// Has the timer `fd` become readable after `delay`, and not before.
pub(crate) fn set_timer(fd: RawFd, delay: Duration) {
    // A delay of zero would switch it off.
    let value = timespec(delay.max(Duration::from_nanos(1)));
    let setting = libc::itimerspec { it_interval: timespec(Duration::ZERO), it_value: value };
    // SAFETY: the structure outlives the call, which can only fail for a wrong descriptor.
    unsafe { libc::timerfd_settime(fd, 0, &raw const setting, std::ptr::null_mut()) };
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
