//! System calls that go past the C library, served: Syscall User Dispatch (Linux 5.11, x86-64,
//! `Documentation/admin-guide/syscall-user-dispatch.rst`).
//!
//! A thread for which it is on gets SIGSYS for each `syscall` instruction outside one range of addresses, and the call
//! is not made. The handler makes it: what is about sockets by the functions of [`crate::export`], as `syscall()`
//! does, all else natively; the result goes into the saved registers.
//!
//! ```text
//! mode       exempt range                 for
//! Off        everything                   programs without system calls of their own ([`scan`]): they pay nothing
//! Library    the C library's code         programs with some; 35 ns more for each call by the C library
//! Resolver   a few instructions of ours   a thread in getaddrinfo and its kin, whose calls are the C library's own
//! ```
//!
//! - A thread is `Off` or `Library` for good, its *base*. Threads do not inherit it: `pthread_create` puts one more frame
//!   below the start routine. A forked child's thread takes its parent's.
//! - In `Resolver` the handler goes back to the base before it does anything, since all that it calls makes its system
//!   calls in the C library, and enters it again at its end. Its own return (`rt_sigreturn`) is then in the exempt range.
//!   The selector, a byte beside the range, only lets the change of modes itself through.
//! - Nothing is blocked in the handler: calls block there, and the program's signals end them as ever. What SIGSYS
//!   means to the program, and that nobody blocks it, is [`signals`]' matter; calls that cannot be made from within a
//!   handler (of threads, stacks, masks) are [`calls`]'.
//! - It interrupts a program at an instruction of its own, which holds no lock of the C library's or ours; or the
//!   resolver in a call about sockets. The other calls of the resolver (memory, locks, files) are made natively at once.
//!
//! What is loaded later is looked at when the program asks for a function there (`export/symbols.rs`: `dlsym` by a
//! handle), for the thread that does so and those that begin later.
//!
//! Left out: code that a program makes itself (JIT), or that is loaded and never asked for by name. Threads that the C
//! library makes for itself (`getaddrinfo_a`, SIGEV_THREAD), and threads by a program's own `clone`, are not
//! dispatched. Nor are programs with parts in Go, whose stacks have no room for a handler, nor those that use this
//! facility themselves.

mod calls;
mod objects;
mod scan;
pub(crate) mod signals;

use std::arch::{asm, global_asm};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};

use crate::lock::undisturbed;
use crate::{attach, cancel, real};
use calls::Next;

const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
/// `si_code` of a SIGSYS that a dispatch has made.
const SYS_USER_DISPATCH: c_int = 2;

/// Values of the selector: the call is made; or it is dispatched.
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;

/// Where the C library's code is. 0: dispatching is not to be had.
static LIBRARY_START: AtomicUsize = AtomicUsize::new(0);
static LIBRARY_LEN: AtomicUsize = AtomicUsize::new(0);
/// Where a handler returns to in the C library.
static RESTORER: AtomicUsize = AtomicUsize::new(0);
/// The program makes system calls of its own.
static WANTED: AtomicBool = AtomicBool::new(false);
/// A part of it cannot be dispatched.
static BARRED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The thread's base is `Library`.
    static IN_LIBRARY: Cell<bool> = const { Cell::new(false) };
    /// It was, and cannot be any more.
    static LEFT: Cell<bool> = const { Cell::new(false) };
    /// Where the stack was when the thread entered the resolver; 0: it is not there.
    static RESOLVING: Cell<usize> = const { Cell::new(0) };
    static MODE: Cell<Mode> = const { Cell::new(Mode::Off) };
    /// Read by the kernel where a call would be dispatched.
    static SELECTOR: Cell<u8> = const { Cell::new(BLOCK) };
}

// The exempt range of `Resolver`: the end of our handler, and what the change of modes begins and ends with.
global_asm!(
    ".pushsection .text.scoutline_gate, \"ax\", @progbits",
    ".balign 64",
    ".hidden scoutline_gate",
    ".hidden scoutline_gate_end",
    ".hidden scoutline_gate_mask",
    ".globl scoutline_gate",
    ".globl scoutline_gate_mask",
    ".globl scoutline_gate_end",
    "scoutline_gate:",
    "mov rsp, rdi",
    "mov eax, 15",
    "syscall",
    "ud2",
    "scoutline_gate_mask:",
    "mov r10, rcx",
    "mov eax, 14",
    "syscall",
    "ret",
    "scoutline_gate_end:",
    ".popsection",
);

unsafe extern "C" {
    /// `rt_sigreturn` with the stack at a frame's `ucontext`.
    fn scoutline_gate(stack: usize) -> !;
    /// `rt_sigprocmask`.
    fn scoutline_gate_mask(how: c_int, set: *const u64, old: *mut u64, len: usize) -> isize;
    static scoutline_gate_end: u8;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Off,
    Library,
    Resolver,
}

impl Mode {
    /// The thread's base.
    fn base() -> Mode {
        if IN_LIBRARY.get() { Mode::Library } else { Mode::Off }
    }

    /// The calling thread goes into this mode, from any. False: the kernel refused.
    fn enter(self) -> bool {
        let gate = scoutline_gate as *const () as usize;
        let (on, start, len) = match self {
            Mode::Off => (0, 0, 0),
            Mode::Library => (1, LIBRARY_START.load(Ordering::Relaxed), LIBRARY_LEN.load(Ordering::Relaxed)),
            Mode::Resolver => (1, gate, (&raw const scoutline_gate_end).addr() - gate),
        };
        // A signal handler of the program's in between would find its calls made natively, or the mode not to be what it
        // is called. The mode is known before the first of these and behind the last one.
        let before = hold_signals();
        // Off has no selector.
        let selector = SELECTOR.with(|byte| if on == 1 { byte.as_ptr().expose_provenance() } else { 0 });
        // Whatever the mode is, this call is made; and the mode is known again before another can be dispatched.
        SELECTOR.set(ALLOW);
        compiler_fence(Ordering::SeqCst);
        let entered =
            real::syscall(libc::SYS_prctl, PR_SET_SYSCALL_USER_DISPATCH, on, start, len, selector, 0) == 0;
        if entered {
            MODE.set(self);
        }
        compiler_fence(Ordering::SeqCst);
        SELECTOR.set(BLOCK);
        set_mask(before);
        entered
    }
}

/// `call`, of whose instructions none is dispatched; nor of a signal handler's meanwhile, and for as long as one that jumps
/// out of it stays away from the resolver.
fn undispatched<R>(call: impl FnOnce() -> R) -> R {
    SELECTOR.set(ALLOW);
    compiler_fence(Ordering::SeqCst);
    let result = call();
    compiler_fence(Ordering::SeqCst);
    SELECTOR.set(BLOCK);
    result
}

/// Who waits for the daemon with signals held looks after them so often: it may be stopped.
pub(crate) const SLOW_NS: u64 = 500_000_000;

thread_local! {
    /// The mask before signals were held, for as long as they are.
    static HELD_SINCE: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// No signal comes until [`set_mask`] with the answer, but what an instruction raises (Linux ends who blocks that), SIGSYS for
/// one, and glibc's own: for another thread's `setuid`, which waits for it, and for a cancellation, for which glibc waits at the
/// end of each call in which a thread is cancelled (`nptl/cancellation.c`).
pub(crate) fn hold_signals() -> u64 {
    let all = !(signals::OURS | signals::RAISED | signals::LIBRARYS | signals::NEVER_HELD);
    let mut before = 0;
    change_mask(libc::SIG_BLOCK, &raw const all, &raw mut before);
    if before & all != all {
        HELD_SINCE.set(before);
    }
    before
}

/// Has come what waits since [`hold_signals`], and ends or stops the process without a handler.
pub(crate) fn let_end() {
    let mut waiting = 0u64;
    let place = (&raw mut waiting).expose_provenance();
    real::syscall(libc::SYS_rt_sigpending, place, size_of::<u64>(), 0, 0, 0, 0);
    waiting &= !HELD_SINCE.get();
    for signal in (1..=64).filter(|&signal| waiting & signals::bit(signal) != 0 && signals::ends(signal)) {
        let alone = signals::bit(signal);
        signals::native_mask(libc::SIG_UNBLOCK, &raw const alone, ptr::null_mut());
        signals::native_mask(libc::SIG_BLOCK, &raw const alone, ptr::null_mut());
    }
}

/// These signals and no others are blocked.
pub(crate) fn set_mask(mask: u64) {
    if mask == HELD_SINCE.get() {
        HELD_SINCE.set(u64::MAX);
    }
    change_mask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut());
}

/// `rt_sigprocmask`, by an instruction that the mode exempts.
fn change_mask(how: c_int, set: *const u64, old: *mut u64) {
    if MODE.get() == Mode::Resolver {
        // SAFETY: a system call that reads and writes words of the caller's.
        unsafe { scoutline_gate_mask(how, set, old, size_of::<u64>()) };
    } else {
        signals::native_mask(how, set, old);
    }
}

/// Whether dispatching is to be had, and for whom: called once attached, by the program's only thread.
pub(crate) fn start() {
    // The supervisor of a trapped program is ours, and makes no call past the C library about a socket of paths.
    if !real::getenv(c"SCOUTLINE_PROGRAM".as_ptr()).is_null() {
        return;
    }
    let Some(library) = objects::library() else { return };
    LIBRARY_LEN.store(library.len(), Ordering::Relaxed);
    // Kernels without it say EINVAL.
    if !Mode::Off.enter() || !signals::keep(on_signal) {
        return;
    }
    RESTORER.store(signals::restorer(), Ordering::Relaxed);
    LIBRARY_START.store(library.start, Ordering::Release);
    let of_their_own = objects::make_calls_of_their_own(&self::library());
    BARRED.store(of_their_own.is_none(), Ordering::Relaxed);
    WANTED.store(of_their_own == Some(true), Ordering::Relaxed);
    begin();
}

/// Whether threads can be dispatched at all.
fn is_available() -> bool {
    LIBRARY_START.load(Ordering::Acquire) != 0
}

fn library() -> Range<usize> {
    let start = LIBRARY_START.load(Ordering::Acquire);
    start..start + LIBRARY_LEN.load(Ordering::Relaxed)
}

/// The calling thread's base is as the program needs it.
fn begin() {
    if is_wanted() && !IN_LIBRARY.get() && !LEFT.get() && RESOLVING.get() == 0 {
        signals::unblock();
        IN_LIBRARY.set(Mode::Library.enter());
    }
}

/// From now on whatever goes past the C library is seen, in this thread and those to come. False: it cannot be. Threads that
/// were there before are dispatched if code that was loaded at the start makes such calls.
pub(crate) fn see_all() -> bool {
    if !is_available() || BARRED.load(Ordering::Relaxed) {
        return false;
    }
    WANTED.store(true, Ordering::Relaxed);
    begin();
    is_on()
}

/// The program may have loaded something. If that makes such calls, they are seen in this thread and those to come.
pub(crate) fn look_again() {
    if !is_available() || BARRED.load(Ordering::Relaxed) {
        return;
    }
    // A handler in between might fork, which waits for who looks, or jump out.
    match undisturbed(|| objects::make_calls_of_their_own(&library())) {
        Some(true) => WANTED.store(true, Ordering::Relaxed),
        Some(false) => {}
        None => BARRED.store(true, Ordering::Relaxed),
    }
    begin();
}

/// Nobody may look at what is loaded while the process is copied.
pub(crate) fn before_fork() {
    objects::before_fork();
}

/// See [`before_fork`].
pub(crate) fn after_fork() {
    objects::after_fork();
}

/// Whether the calling thread's calls past the C library are seen.
pub(crate) fn is_on() -> bool {
    IN_LIBRARY.get()
}

/// Whether new threads are to [`begin_thread`].
pub(crate) fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed) && !BARRED.load(Ordering::Relaxed)
}

/// In a new thread, before its start routine.
pub(crate) fn begin_thread() {
    begin();
}

/// In a forked child: the kernel has forgotten it.
pub(crate) fn in_child() {
    if MODE.get() != Mode::Off {
        MODE.get().enter();
    }
}

/// `work`, a function of the C library's resolver, whose calls about sockets are served.
pub(crate) fn resolving<R>(work: impl FnOnce() -> R) -> R {
    let place = 0u8;
    let here = (&raw const place).addr();
    let within = RESOLVING.get();
    // Within itself it is on already; where it was jumped out of, it is off, or we stand above the place.
    let is_within = MODE.get() == Mode::Resolver && here < within;
    if !is_available() || attach::region().is_none() || attach::dead() || is_within {
        return work();
    }
    signals::unblock();
    RESOLVING.set(here);
    Mode::Resolver.enter();
    let result = cancel::cancellable(resolved, ptr::null_mut(), work);
    Mode::base().enter();
    RESOLVING.set(within);
    result
}

/// The thread is cancelled in the resolver.
extern "C" fn resolved(_: *mut c_void) {
    Mode::base().enter();
    RESOLVING.set(0);
}

/// SIGSYS. Leaves `errno` as it was. Where the resolver's thread is cancelled, it is unwound through here: nothing is
/// dropped in any of the frames.
extern "C-unwind" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let errno = real::errno();
    let was = MODE.get();
    if was == Mode::Resolver {
        Mode::base().enter();
    }
    // SAFETY: what the kernel gives to a handler with SA_SIGINFO.
    let (code, interrupted) = unsafe { ((*info).si_code, &mut *context.cast::<libc::ucontext_t>()) };
    // Where we have not asked for it, the program has.
    let next = if code == SYS_USER_DISPATCH && was != Mode::Off {
        calls::answer(info, interrupted)
    } else {
        signals::pass_on(signal, info, context);
        Next::Return
    };
    real::set_errno(errno);
    let resolves = was == Mode::Resolver && !is_left(interrupted);
    match next {
        Next::Return if resolves => leave(context.addr(), true),
        Next::Return => {}
        Next::LeaveFrame(stack) => leave(stack, resolves),
        Next::Undispatched => {
            IN_LIBRARY.set(false);
            LEFT.set(true);
            Mode::Off.enter();
        }
    }
}

/// Whether the interrupted code stands outside of the resolver, which a signal handler of the program's has jumped out of.
fn is_left(interrupted: &libc::ucontext_t) -> bool {
    let stack = interrupted.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    let other = interrupted.uc_stack.ss_sp.addr();
    let is_left = stack > RESOLVING.get() && !(other..other + interrupted.uc_stack.ss_size).contains(&stack);
    if is_left {
        RESOLVING.set(0);
    }
    is_left
}

/// Ends a signal handler whose frame is at `stack`.
fn leave(stack: usize, resolving: bool) -> ! {
    if resolving {
        Mode::Resolver.enter();
        // SAFETY: the frame is the kernel's own, above us on this stack or on the one that was interrupted.
        unsafe { scoutline_gate(stack) }
    }
    // SAFETY: as above; the C library's restorer is `rt_sigreturn` and nothing else.
    unsafe {
        asm!("mov rsp, {}", "jmp {}", in(reg) stack, in(reg) RESTORER.load(Ordering::Relaxed), options(noreturn))
    }
}

/// A start routine of a thread, and its argument.
pub(crate) struct Routine {
    pub(crate) start: *mut c_void,
    pub(crate) argument: *mut c_void,
}

/// The first frame of a thread, with the result that its start routine has: a pointer by `pthread_create`, an integer by
/// `thrd_create`. It is unwound where the thread is cancelled, and has nothing to drop.
pub(crate) extern "C-unwind" fn first_frame<R>(routine: *mut c_void) -> R {
    // SAFETY: what `export::threads` gave, as its only owner.
    let Routine { start, argument } = *unsafe { Box::from_raw(routine.cast::<Routine>()) };
    begin_thread();
    // SAFETY: the program's start routine.
    unsafe { transmute::<*mut c_void, extern "C-unwind" fn(*mut c_void) -> R>(start)(argument) }
}
