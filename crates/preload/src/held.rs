//! The two locks of a socket: `receive_lock` and `send_lock` admit one thread of all processes to a direction.
//!
//! The holder is a process record plus one, so that a dead holder's lock can be taken over, and a mark of its thread, so
//! that a signal handler does not wait for the very thread that it has interrupted. They are held for one copy, never
//! while sleeping.
//!
//! A holder may be *stopped* in the midst of its copy (SIGSTOP, a debugger). Its lock cannot be taken over, for it goes
//! on with that copy some day. Who waits for it then does so as for data that do not come: by O_NONBLOCK, by
//! SO_RCVTIMEO and SO_SNDTIMEO, and by signals. That a process is stopped stands in `/proc/PID/stat` (proc_pid_stat(5));
//! where that cannot be read a holder counts as running, and is waited for.

use std::cell::Cell;
use std::ffi::c_int;
use std::io::{Cursor, Write};
use std::mem::size_of;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{itimerspec, timespec};
use scoutline_abi::Region;
use scoutline_abi::layout::{ENGINE_HOLDS, HOLDER_PROCESS};

use crate::lock::back_off;
use crate::{attach, cancel, own, real, wait};

/// A direction's lock, held. Given back on drop.
pub(crate) struct Held {
    word: &'static AtomicU32,
    mark: u32,
    /// How many locks the thread had before.
    before: usize,
}

/// As many locks a thread has at most: of a connection and of what it is sent from, and a handler's as many.
const MOST: usize = 8;

/// A lock, and the frame that has taken it.
type Taken = (usize, Option<&'static AtomicU32>);

thread_local! {
    /// Locks that the thread has, the last one last, and how many.
    static TAKEN: [Cell<Taken>; MOST] = const { [const { Cell::new((0, None)) }; MOST] };
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// A handler's frame lies further below the frame that it has interrupted: the kernel puts all registers between them.
const LEAST_SIGNAL_FRAME: usize = 512;

/// Tries after which a look is due whether the holder lives.
const LOOK_FOR_DEATH: u32 = 256;
/// Tries after which a look is due whether it is stopped: by then this thread naps between its tries.
const LOOK_FOR_STOP: u32 = 64;
const FIRST_LOOK_FOR_STOP: u32 = 192;
/// How often a stopped holder is looked at: in no step with a program's own timers, for a signal that comes between two
/// looks ends the call, and one in the midst of a look does not.
const TICK_NS: i64 = 5_303_000;

/// What stands in a lock that the calling thread holds.
#[inline]
fn own_mark() -> u32 {
    (attach::process() + 1) | this_thread() << HOLDER_PROCESS.count_ones()
}

/// The calling thread holds it: a signal handler has interrupted it there.
pub(crate) fn is_own(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) == own_mark()
}

impl Held {
    /// `patience`: how many microseconds a stopped holder is waited for (0: for ever); `None`: not at all.
    ///
    /// # Errors
    /// EAGAIN when the calling thread has it already, or a stopped holder keeps it; EINTR after a signal handler.
    #[inline]
    pub(crate) fn take(
        region: &'static Region,
        word: &'static AtomicU32,
        patience: impl FnOnce() -> Option<u64>,
    ) -> Result<Held, i32> {
        let me = own_mark();
        let frame = 0u8; // its address tells where we are
        let here = (&raw const frame).addr();
        // Before it is ours: a handler that comes in between finds both, or neither.
        let before = still_there(here);
        TAKEN.with(|taken| {
            if let Some(place) = taken.get(before) {
                place.set((here, Some(word)));
            }
        });
        COUNT.set(before + 1);
        if word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
            let was_left = was_left(before, here);
            Held::wait(region, word, (me, was_left), patience()).inspect_err(|_| COUNT.set(before))?;
        }
        Ok(Held { word, mark: me, before })
    }

    #[cold]
    fn wait(
        region: &'static Region,
        word: &'static AtomicU32,
        (me, was_left): (u32, bool),
        patience: Option<u64>,
    ) -> Result<(), i32> {
        let mut tries = 0u32;
        let mut ticks = None;
        loop {
            let holder = word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).err();
            let Some(holder) = holder else { return Ok(()) };
            if holder == me {
                // Its own frame is there no more where a handler has jumped out of it.
                return if was_left { Ok(()) } else { Err(libc::EAGAIN) };
            }
            if (tries.is_multiple_of(LOOK_FOR_DEATH) || ticks.is_some())
                && holder != 0
                && !is_alive(region, holder)
                && word.compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Ok(());
            }
            tries += 1;
            let due = tries >= FIRST_LOOK_FOR_STOP && tries.is_multiple_of(LOOK_FOR_STOP);
            if (due || ticks.is_some()) && is_stopped(region, holder) {
                let patience = patience.ok_or(libc::EAGAIN)?;
                ticks.get_or_insert_with(|| Ticks::new(patience)).next()?;
            } else {
                ticks = None;
                back_off(tries);
            }
        }
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        // Only our own: it may have been taken over while we were taken for dead, or be the parent's of whom a handler has
        // forked in the midst.
        if self.mark == own_mark() {
            let _ = self.word.compare_exchange(self.mark, 0, Ordering::Release, Ordering::Relaxed);
        }
        COUNT.set(self.before);
    }
}

/// How many locks the thread has that have not been left by other ways than [`before_jump`] sees: stacks grow downwards, so
/// frames that were left lie below.
#[inline]
fn still_there(here: usize) -> usize {
    let count = COUNT.get();
    if count == 0 || wait::is_on_signal_stack() {
        return count;
    }
    let is_gone = |at: &usize| TAKEN.with(|taken| taken.get(*at).is_none_or(|place| place.get().0 < here));
    count - (0..count).rev().take_while(is_gone).count()
}

/// Whether the last of so many locks was left by other ways than [`before_jump`] sees: a handler's frame would lie further
/// below.
#[cold]
fn was_left(count: usize, here: usize) -> bool {
    let last = count.checked_sub(1).and_then(|last| TAKEN.with(|taken| taken.get(last).map(Cell::get)));
    last.is_some_and(|(frame, _)| here + LEAST_SIGNAL_FRAME > frame) && !wait::is_on_signal_stack()
}

/// A handler of this thread jumps: gives back what frames have that it leaves.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_jump(leaves: impl Fn(usize) -> bool) {
    TAKEN.with(|taken| {
        while let Some(last) = COUNT.get().checked_sub(1)
            && let Some((frame, Some(word))) = taken.get(last).map(Cell::get)
            && leaves(frame)
        {
            COUNT.set(last);
            // It may only have asked for what one further out has.
            let is_same = |other: &Cell<Taken>| other.get().1.is_some_and(|other| ptr::eq(other, word));
            if !taken[..last].iter().any(is_same) {
                let _ = word.compare_exchange(own_mark(), 0, Ordering::Release, Ordering::Relaxed);
            }
        }
    });
}

fn is_alive(region: &Region, holder: u32) -> bool {
    match holder {
        ENGINE_HOLDS => !attach::dead(),
        _ => region
            .process((holder & HOLDER_PROCESS).wrapping_sub(1))
            .is_some_and(|process| process.alive.load(Ordering::Acquire) != 0),
    }
}

/// The holder's process is stopped, by a signal or by who traces it.
fn is_stopped(region: &Region, holder: u32) -> bool {
    let number = (holder & HOLDER_PROCESS).wrapping_sub(1);
    if holder == ENGINE_HOLDS || number == attach::process() {
        return false; // who runs this is not
    }
    let pid = region.process(number).map_or(0, |process| process.pid.load(Ordering::Relaxed));
    pid != 0 && cancel::uncancelled(|| matches!(state_of(pid), Some(b'T' | b't')))
}

/// The letter in `/proc/PID/stat`. No memory is asked for: it may be a signal handler that wants to know.
fn state_of(pid: u32) -> Option<u8> {
    let mut path = Cursor::new([0u8; 32]);
    write!(path, "/proc/{pid}/stat\0").ok()?;
    let path = path.into_inner();
    // SAFETY: a terminated path.
    let fd = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    let mut text = [0u8; 128];
    let got = real::read(fd, text.as_mut_ptr().cast(), text.len());
    real::close_uncancelled(fd);
    let text = text.get(..usize::try_from(got).ok()?)?;
    // The name before it may have any bytes, parentheses too, but is at most 64 long.
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    text.get(name_end + 2).copied()
}

/// The moments at which a stopped holder is looked at again.
struct Ticks {
    /// When the call's time is over.
    deadline: Option<u64>,
    /// A timer of the kernel's; below 0 there is none.
    timer: c_int,
}

impl Ticks {
    /// For so many microseconds; 0: for ever.
    fn new(timeout_us: u64) -> Ticks {
        let deadline = wait::deadline_us(timeout_us);
        let timer = if deadline.is_some() { -1 } else { new_timer() };
        Ticks { deadline, timer }
    }

    /// Sleeps until the next one. What Linux would restart after a signal handler (SA_RESTART) it restarts here, for this is
    /// a `read` of its own; a call that has a time-out it never restarts (signal(7)), and it is a `ppoll` here.
    fn next(&self) -> Result<(), i32> {
        if self.deadline.is_some_and(|at| real::now_ns() >= at) {
            return Err(libc::EAGAIN);
        }
        cancel::uncancelled(|| {
            if self.timer < 0 {
                let pause = timespec { tv_sec: 0, tv_nsec: TICK_NS };
                let result =
                    real::ours(real::ppoll(ptr::null_mut(), 0, &raw const pause, ptr::null()) as isize);
                return if self.deadline.is_some() && result < 0 { Err(libc::EINTR) } else { Ok(()) };
            }
            let mut expired = 0u64;
            let got = real::read(self.timer, (&raw mut expired).cast(), size_of::<u64>());
            if got < 0 && real::errno() == libc::EINTR { Err(libc::EINTR) } else { Ok(()) }
        })
    }
}

impl Drop for Ticks {
    fn drop(&mut self) {
        if self.timer >= 0 {
            cancel::uncancelled(|| own::discard(self.timer));
        }
    }
}

fn new_timer() -> c_int {
    // SAFETY: no pointers.
    let timer = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
    if timer < 0 {
        return -1;
    }
    let timer = own::protect(timer);
    let tick = timespec { tv_sec: 0, tv_nsec: TICK_NS };
    let times = itimerspec { it_interval: tick, it_value: tick };
    // SAFETY: reads the structure that we give.
    unsafe { libc::timerfd_settime(timer, 0, &raw const times, ptr::null_mut()) };
    timer
}

/// Tells the threads of a process apart: their descriptors stand at different places. Two that live are alike by chance
/// only, one pair in four million.
#[inline]
fn this_thread() -> u32 {
    /// 2^64 over the golden ratio: whatever regular distances stacks have, the upper bits differ (Knuth, vol. 3, 6.4).
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    // SAFETY: no arguments.
    let descriptor = unsafe { libc::pthread_self() } as u64;
    (descriptor.wrapping_mul(SPREAD) >> (u64::BITS - HOLDER_PROCESS.count_zeros())) as u32
}
