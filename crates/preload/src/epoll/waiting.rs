//! `epoll_wait`: ours from the set's ready bits, the kernel's from the kernel, and one sleep on both.

use std::ffi::{c_int, c_void};

use libc::{epoll_event, pollfd, sigset_t};

use super::sharing::{Entered, lock};
use super::{Epoll, KERNEL_LOOK_NS, let_go};
use crate::lock::Quiet;
use crate::real::err;
use crate::slot::ring_before_sleep;
use crate::table::Entry as Fd;
use crate::wait::{self, Set, Woken};
use crate::{attach, cancel, family, fruitless, memory, real, serve, table};

/// Anything in front of us that the kernel should answer alone: not an epoll of ours, or without our sockets.
pub(crate) enum Answer {
    /// The result.
    Done(isize),
    /// Ask the kernel.
    Kernel,
}

/// `epoll_wait` and its kin. `zero`: do not wait; `deadline` none: for ever.
pub(crate) fn await_events(
    mut epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    zero: bool,
    deadline: Option<u64>,
    mask: *const sigset_t,
) -> Answer {
    let Fd::Epoll(number) = table::look(epfd) else { return Answer::Kernel };
    real::pthread_testcancel();
    let _deferred = cancel::Deferred::new();
    if table::has_shared() {
        meet_watched(number);
    }
    if max <= 0 || memory::reaches_too_far(events, (max as usize).saturating_mul(size_of::<epoll_event>())) {
        return Answer::Kernel;
    }
    if memory::is_nowhere(events) {
        // An error only where there is something to tell (`ep_send_events`).
        let mut event = epoll_event { events: 0, u64: 0 };
        return match await_events(epfd, &raw mut event, 1, zero, deadline, mask) {
            Answer::Done(1..) => Answer::Done(err(libc::EFAULT)),
            answer => answer,
        };
    }
    // SAFETY: the program vouches for room for `max` events; any bytes are valid ones.
    let out = unsafe { std::slice::from_raw_parts_mut(events, max as usize) };
    let (mut spun, mut kicks, mut quiet) = (false, 0u32, None);
    let mut epoll = lock(number);
    loop {
        if !epoll.is_ours() && epfd >= 0 {
            epoll.go_on(0);
            // What the kernel tells goes to the program as it is, but for what is left out.
            let until = if zero { Some(0) } else { deadline };
            let mask = if kicks == 0 { mask } else { in_sleep(&mut quiet, mask) };
            let (n, kicked);
            (epoll, n, kicked) = wait_kernel(epoll, number, epfd, out, until, mask);
            if zero || !kicked || n != 0 {
                let_go(epoll, number);
                return Answer::Done(n);
            }
            kicks += 1;
            epfd = epoll.still_named(number, epfd);
            continue;
        }
        let n = epoll.look(epfd, out);
        if n > 0 || zero {
            let result = leave(epoll, number, epfd, n, out.len());
            match attach::region() {
                Some(region) if n == 0 => fruitless::found_nothing(region),
                _ => fruitless::found(),
            }
            return Answer::Done(result);
        }
        let Some(mut set) = epoll.ready_set() else {
            let_go(epoll, number);
            return Answer::Done(err(libc::ENOMEM));
        };
        // Who spins is not counted, and may lose the epoll: as if it had been closed before the call.
        if !spun
            && epoll.fds > 0
            && let Some(region) = attach::region()
        {
            spun = true;
            drop(epoll);
            let found = wait::spin(region, || !region.ready(set.shared).is_empty());
            epoll = lock(number);
            if table::look(epfd) != Fd::Epoll(number) {
                return Answer::Done(err(libc::EBADF));
            }
            match epoll.set {
                Some(same) if !found => set = same,
                _ => continue,
            }
        }
        let mask = in_sleep(&mut quiet, mask);
        match sleep_once(epoll, number, (epfd, set), out, deadline, mask) {
            Ok(result) => return Answer::Done(result),
            Err(locked) => epoll = locked,
        }
        epfd = epoll.still_named(number, epfd);
        spun = true;
    }
}

/// From the first sleep on handlers run in the kernel's call alone, which tells so, by this mask. One that took what has just
/// come, between that call and a look at it, would leave us asleep.
fn in_sleep(quiet: &mut Option<Quiet>, mask: *const sigset_t) -> *const sigset_t {
    let quiet = quiet.get_or_insert_with(Quiet::new);
    if mask.is_null() { quiet.mask() } else { mask }
}

/// What it watches may be ours since another process has adopted it.
fn meet_watched(number: u32) {
    let shared: Vec<c_int> = {
        let epoll = lock(number);
        let watched = epoll.candidates.iter().map(|item| item.fd_plus_one - 1);
        watched.filter(|&fd| table::is_shared(fd)).collect()
    };
    for fd in shared {
        family::look(fd);
    }
}

impl Epoll {
    /// What is there now, of both kinds.
    fn look(&mut self, epfd: c_int, out: &mut [epoll_event]) -> usize {
        let now = if self.kernel() > 0 || self.kick.is_some() { real::now_ns() } else { 0 };
        // Who has epolls within tells of each once, whatever is there: both kinds are seen at the same time.
        let both = !self.nested.is_empty() && out.len() > 1;
        let due = now != 0 && (both || now.wrapping_sub(self.kernel_seen_ns) >= KERNEL_LOOK_NS);
        self.forget_told();
        let mut n = 0;
        if due {
            let room = out.len().div_ceil(2);
            n = self.look_at_kernel(epfd, &mut out[..room], now);
        }
        n += self.collect(&mut out[n..]);
        if n == 0 && now != 0 && !due {
            n = self.look_at_kernel(epfd, out, now);
        }
        n
    }

    /// The calling thread slept on this set.
    fn no_longer_sleeps(&mut self, set: Set) {
        self.waiters = self.waiters.saturating_sub(1);
        set.bell().leave(1);
    }
}

/// The calling thread goes on with `n` events of at most `most`.
fn leave(mut epoll: Entered, number: u32, epfd: c_int, n: usize, most: usize) -> isize {
    epoll.go_on(n);
    epoll.pass_on(epfd, n, most);
    let_go(epoll, number);
    n as isize
}

/// Sleeps, unless there is something by now. Gives the epoll back where nothing came of it and the time is not over: it was not
/// left in between, and so not freed.
fn sleep_once(
    mut epoll: Entered,
    number: u32,
    (epfd, set): (c_int, Set),
    out: &mut [epoll_event],
    deadline: Option<u64>,
    mask: *const sigset_t,
) -> Result<isize, Entered> {
    let mut leaving = Leaving { number, set: Some(set), sleeps: false, generation: attach::generation() };
    let place = &raw mut leaving;
    let (mut n, mut woken, mut by_pipe) = (0, Woken::Event, false);
    // A handler may jump out of every moment of it: what is counted is not in doubt then for longer than a moment.
    let mut epoll = cancel::cancellable(cancelled, place.cast(), || {
        epoll.waiters += 1;
        set.enter(1);
        // SAFETY: `cancelled` looks at it only when this will not go on.
        unsafe { (*place).sleeps = true };
        serve::enter(set);
        set.bell().before_look();
        n = epoll.collect(out);
        if n == 0 {
            drop(epoll);
            ring_before_sleep();
            (woken, by_pipe) = sleep(epfd, set, deadline, mask);
            epoll = lock(number);
        }
        // SAFETY: as above.
        unsafe { (*place).sleeps = false };
        // In a child that a handler has forked here nobody was counted.
        if attach::generation() == leaving.generation {
            epoll.no_longer_sleeps(set);
        }
        epoll
    });
    let epfd = epoll.still_named(number, epfd);
    epoll.kernel_seen_ns = 0; // it may be the kernel that woke us
    if by_pipe {
        // What is in the pipe is for all who sleep: who leaves more than it takes leaves that too.
        if epoll.others_sleep() {
            n = epoll.collect(out);
        }
        if n == 0 || !epoll.has_more() {
            cancel::uncancelled(|| set.drain());
        }
    }
    if n == 0 {
        match woken {
            Woken::Event | Woken::Dead => return Err(epoll),
            Woken::Interrupted => {
                epoll.go_on(0);
                let_go(epoll, number);
                return Ok(err(libc::EINTR));
            }
            Woken::TimedOut => n = epoll.collect(out),
        }
    }
    Ok(leave(epoll, number, epfd, n, out.len()))
}

/// What a thread takes back that no longer sleeps in an epoll; without a set it slept in the kernel's.
struct Leaving {
    number: u32,
    set: Option<Set>,
    /// It is counted as asleep.
    sleeps: bool,
    /// In whose books.
    generation: u32,
}

/// A thread is cancelled in its sleep, or a handler jumps out of it. What woke it is for others, too: level-triggered bits and
/// what is in the pipe stay.
extern "C" fn cancelled(leaving: *mut c_void) {
    // SAFETY: what the sleeper gave, in a frame that still stands and does not go on.
    let leaving = unsafe { &*leaving.cast::<Leaving>() };
    if !leaving.sleeps || leaving.generation != attach::generation() {
        return;
    }
    let mut epoll = lock(leaving.number);
    if let Some(set) = leaving.set {
        epoll.no_longer_sleeps(set);
    } else {
        epoll.waiters = epoll.waiters.saturating_sub(1);
        epoll.in_kernel = epoll.in_kernel.saturating_sub(1);
    }
    let_go(epoll, leaving.number);
}

/// Sleeps on both. Says why it ended, and whether there is something in the pipe.
fn sleep(epfd: c_int, set: Set, deadline: Option<u64>, mask: *const sigset_t) -> (Woken, bool) {
    let look = |fd| pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [look(epfd), look(if attach::dead() { -1 } else { set.pipe })];
    match wait::await_own(&mut fds, deadline, mask) {
        0 => (Woken::TimedOut, false),
        n if n > 0 => (Woken::Event, fds[1].revents != 0),
        _ => (Woken::Interrupted, false),
    }
}

/// Only kernel descriptors are in it. Answers the epoll, the result and whether we were woken by ourselves.
fn wait_kernel(
    mut epoll: Entered,
    number: u32,
    epfd: c_int,
    out: &mut [epoll_event],
    deadline: Option<u64>,
    mask: *const sigset_t,
) -> (Entered, isize, bool) {
    let timeout = match deadline {
        None => -1,
        Some(at) => {
            let left = at.saturating_sub(real::now_ns());
            left.div_ceil(1_000_000).min(i32::MAX as u64) as c_int
        }
    };
    let mut leaving = Leaving { number, set: None, sleeps: false, generation: attach::generation() };
    let place = &raw mut leaving;
    let (mut n, mut errno) = (0, 0);
    // See `sleep_once`.
    let mut epoll = cancel::cancellable(cancelled, place.cast(), || {
        epoll.waiters += 1;
        epoll.in_kernel += 1;
        // SAFETY: `cancelled` looks at it only when this will not go on.
        unsafe { (*place).sleeps = true };
        drop(epoll);
        n = real::epoll_pwait(epfd, out.as_mut_ptr(), out.len() as c_int, timeout, mask);
        errno = real::errno();
        let mut epoll = lock(number);
        // SAFETY: as above.
        unsafe { (*place).sleeps = false };
        epoll.waiters = epoll.waiters.saturating_sub(1);
        epoll.in_kernel = epoll.in_kernel.saturating_sub(1);
        epoll
    });
    if n < 0 {
        return (epoll, err(errno), false);
    }
    let kept = epoll.strip(out, n as usize);
    (epoll, kept as isize, kept != n as usize)
}
