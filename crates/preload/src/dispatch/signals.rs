//! SIGSYS, which dispatching takes: the program keeps its own, and never blocks ours.
//!
//! A thread whose call is dispatched while it blocks SIGSYS, or while the process has no handler for it, is ended by the
//! kernel. So the handler is ours from the start, and what the program says of SIGSYS is kept here: its handler is called
//! for every SIGSYS that no dispatch has made (seccomp's, `kill`'s), and masks reach the kernel without it, those of
//! `sigprocmask` and the ones that handlers and waits ask for. What was said is what is read back.
//!
//! - A new image begins with what was said: [`handing_on`].
//! - `setcontext` and `swapcontext` set a mask that they find in memory; there SIGSYS is taken out of it.
//!
//! Left out: a SIGSYS that is sent to who "blocks" it is delivered at once. What `getcontext` and `sigsetjmp` keep has it not
//! blocked, so behind a jump back it does not count as blocked. A signal handler that puts it into the mask to which it
//! returns (`uc_sigmask` of its third argument) blocks it indeed, and the thread's next call past the C library ends the
//! program: to stand in the way of that return would take a trampoline of ours in each handler's frame, and unwinders
//! (cancellation, exceptions, debuggers) know only the C library's. No program that we know of does it.

use std::arch::global_asm;
use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::mem::{transmute, zeroed};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use libc::{SIG_BLOCK, SIG_DFL, SIG_IGN, SIG_SETMASK, SIG_UNBLOCK, SIGSYS, sigset_t};

use crate::real;

/// SIGSYS in the first word of a set, which is all that the kernel has.
pub(super) const OURS: u64 = bit(SIGSYS);
/// What instructions raise besides.
pub(super) const RAISED: u64 =
    bit(libc::SIGSEGV) | bit(libc::SIGBUS) | bit(libc::SIGILL) | bit(libc::SIGFPE) | bit(libc::SIGTRAP);
/// What the kernel takes out of every mask.
pub(super) const NEVER_HELD: u64 = bit(libc::SIGKILL) | bit(libc::SIGSTOP);
/// glibc's SIGCANCEL and SIGSETXID (`nptl/pthreadP.h`).
pub(super) const LIBRARYS: u64 = bit(32) | bit(33);
const KERNEL_SET_LEN: usize = size_of::<u64>();
/// Of a stack for signals: it is none while a handler runs (`linux/signal.h`).
pub(super) const SS_AUTODISARM: c_int = c_int::MIN;

/// A signal that ends or stops the process, since it has no handler.
pub(super) fn ends(signal: c_int) -> bool {
    // SAFETY: zeros are a valid structure, which the call fills.
    let mut action: libc::sigaction = unsafe { zeroed() };
    let is_default =
        real::sigaction(signal, ptr::null(), &raw mut action) == 0 && action.sa_sigaction == SIG_DFL;
    is_default && ![libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT].contains(&signal)
}

pub(super) const fn bit(signal: c_int) -> u64 {
    if signal >= 1 && signal <= 64 { 1 << (signal - 1) } else { 0 }
}

/// Whether SIGSYS is kept here.
static KEPT: AtomicBool = AtomicBool::new(false);
/// What the program has said of it, as `sigaction` has it.
static HANDLER: AtomicUsize = AtomicUsize::new(SIG_DFL);
static FLAGS: AtomicI32 = AtomicI32::new(0);
static MASK: AtomicU64 = AtomicU64::new(0);
/// Signals whose handlers asked for SIGSYS to be blocked, a bit each.
static ASKED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The thread has blocked SIGSYS, as far as it knows.
    static BLOCKED: Cell<bool> = const { Cell::new(false) };
}

type Handler = extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// The kernel's `struct sigaction` on x86-64.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelAction {
    pub(super) handler: usize,
    pub(super) flags: u64,
    pub(super) restorer: usize,
    pub(super) mask: u64,
}

/// What a signal does, as both interfaces say it.
#[derive(Clone, Copy)]
struct Said {
    handler: usize,
    flags: c_int,
    mask: u64,
}

fn first_word(set: *const sigset_t) -> u64 {
    // SAFETY: the program vouches for its set, of which the kernel reads this word too.
    unsafe { set.cast::<u64>().read_unaligned() }
}

fn set_first_word(set: *mut sigset_t, word: u64) {
    // SAFETY: as above, for a set that is to be written.
    unsafe { set.cast::<u64>().write_unaligned(word) };
}

/// `handler` is SIGSYS's from now on. False: the kernel refused.
pub(super) fn keep(handler: Handler) -> bool {
    // SAFETY: zeros are a valid action; both outlive the call.
    let before = unsafe {
        let mut action: libc::sigaction = zeroed();
        let mut before = action;
        action.sa_sigaction = handler as *const () as usize;
        // Nothing is blocked in it: calls block there, and signals reach them as they would reach the program's.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
        if real::sigaction(SIGSYS, &raw const action, &raw mut before) < 0 {
            return false;
        }
        before
    };
    say(Said {
        handler: before.sa_sigaction,
        flags: before.sa_flags,
        mask: first_word(&raw const before.sa_mask),
    });
    KEPT.store(true, Ordering::Release);
    unblock();
    true
}

/// The calling thread does not block SIGSYS in the kernel.
pub(super) fn unblock() {
    let mut before = 0u64;
    if native_mask(SIG_UNBLOCK, &raw const OURS_ALONE, &raw mut before) == 0 && before & OURS != 0 {
        BLOCKED.set(true);
    }
}

static OURS_ALONE: u64 = OURS;

pub(super) fn native_mask(how: c_int, set: *const u64, old: *mut u64) -> c_long {
    let (set, old) = (set.expose_provenance(), old.expose_provenance());
    real::syscall(libc::SYS_rt_sigprocmask, how as usize, set, old, KERNEL_SET_LEN, 0, 0)
}

fn said() -> Said {
    Said {
        handler: HANDLER.load(Ordering::Relaxed),
        flags: FLAGS.load(Ordering::Relaxed),
        mask: MASK.load(Ordering::Relaxed),
    }
}

fn say(said: Said) {
    FLAGS.store(said.flags, Ordering::Relaxed);
    MASK.store(said.mask, Ordering::Relaxed);
    HANDLER.store(said.handler, Ordering::Relaxed);
}

/// A SIGSYS that is none of ours: what the program wants done with it.
pub(super) fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Said { handler, flags, mask } = said();
    // SAFETY: the kernel's own structure.
    let is_forced = unsafe { (*info).si_code } > 0;
    if handler == SIG_IGN && !is_forced {
        return;
    }
    if handler == SIG_DFL || handler == SIG_IGN {
        // SAFETY: zeros are the default action; the signal ends the process.
        unsafe {
            let default: libc::sigaction = zeroed();
            real::sigaction(SIGSYS, &raw const default, ptr::null_mut());
            libc::raise(SIGSYS);
        }
        return;
    }
    if flags & libc::SA_RESETHAND != 0 {
        HANDLER.store(SIG_DFL, Ordering::Relaxed);
    }
    let blocked = mask & !OURS;
    if blocked != 0 {
        // The kernel sets it back when our handler ends.
        native_mask(SIG_BLOCK, &raw const blocked, ptr::null_mut());
    }
    // SAFETY: the kernel's own structure.
    let interrupted = unsafe { &*context.cast::<libc::ucontext_t>() };
    match other_stack(interrupted).filter(|_| flags & libc::SA_ONSTACK != 0) {
        // SAFETY: the program vouches for its handler, and for the stack that it has given for such.
        Some(top) => unsafe { scoutline_on_stack(top, handler, signal, info, context) },
        // SAFETY: what the program gave as its handler; one that takes less does not look at the others.
        None => unsafe { transmute::<usize, Handler>(handler)(signal, info, context) },
    }
}

/// Where the program's stack for signals begins, if it has one and was interrupted elsewhere (`sigaltstack(2)`). Our own
/// handler is not on it: it may be a small one.
fn other_stack(interrupted: &libc::ucontext_t) -> Option<usize> {
    let libc::stack_t { ss_sp, ss_flags, ss_size } = interrupted.uc_stack;
    let stack = interrupted.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    if ss_size == 0 || ss_flags & libc::SS_DISABLE != 0 {
        return None;
    }
    // With SS_AUTODISARM the kernel has taken it away until our handler's end, so nobody else goes there.
    if ss_flags & SS_AUTODISARM == 0 && (ss_sp.addr() + 1..=ss_sp.addr() + ss_size).contains(&stack) {
        return None;
    }
    Some((ss_sp.addr() + ss_size) & !15)
}

// Calls a handler on another stack, through which it can be unwound.
global_asm!(
    ".pushsection .text.scoutline_on_stack, \"ax\", @progbits",
    ".hidden scoutline_on_stack",
    ".globl scoutline_on_stack",
    ".type scoutline_on_stack, @function",
    "scoutline_on_stack:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rsp, rdi",
    "mov rax, rsi",
    "mov edi, edx",
    "mov rsi, rcx",
    "mov rdx, r8",
    "call rax",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C-unwind" {
    /// Calls `handler` with the others, with the stack at `top`.
    fn scoutline_on_stack(
        top: usize,
        handler: usize,
        signal: c_int,
        info: *mut libc::siginfo_t,
        context: *mut c_void,
    );
}

/// `exec`, of a new image or of a child: it begins with SIGSYS blocked or ignored, as the program has said. Here that is so
/// for the moment only, in which a call past the C library would be the end: so it is not ignored while other threads run.
pub(crate) fn handing_on<R>(exec: impl FnOnce() -> R) -> R {
    if !KEPT.load(Ordering::Acquire) {
        return exec();
    }
    let is_blocked = BLOCKED.get();
    let is_ignored = said().handler == SIG_IGN && is_only_thread();
    // SAFETY: zeros are a valid action.
    let (mut ignore, mut ours): (libc::sigaction, libc::sigaction) = unsafe { (zeroed(), zeroed()) };
    ignore.sa_sigaction = SIG_IGN;
    if is_ignored {
        real::sigaction(SIGSYS, &raw const ignore, &raw mut ours);
    }
    if is_blocked {
        native_mask(SIG_BLOCK, &raw const OURS_ALONE, ptr::null_mut());
    }
    let result = exec();
    let errno = real::errno();
    if is_blocked {
        native_mask(SIG_UNBLOCK, &raw const OURS_ALONE, ptr::null_mut());
    }
    if is_ignored {
        real::sigaction(SIGSYS, &raw const ours, ptr::null_mut());
    }
    real::set_errno(errno);
    result
}

/// No other thread runs. Where that cannot be seen, another one may.
fn is_only_thread() -> bool {
    // Links of a directory: itself, what is above it, and one for each thread.
    // SAFETY: fills the structure that we give; a terminated name.
    unsafe {
        let mut about: libc::stat = zeroed();
        libc::stat(c"/proc/self/task".as_ptr(), &raw mut about) == 0 && about.st_nlink == 3
    }
}

/// `sigaction`.
pub(crate) fn action(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    if !KEPT.load(Ordering::Acquire) {
        return real::sigaction(signal, new, old);
    }
    if signal == SIGSYS {
        let before = said();
        if !new.is_null() {
            // SAFETY: the program vouches for its action.
            let new = unsafe { new.read() };
            say(Said {
                handler: new.sa_sigaction,
                flags: new.sa_flags,
                mask: first_word(&raw const new.sa_mask),
            });
        }
        if !old.is_null() {
            // SAFETY: the program vouches for the place; zeros are a valid action.
            unsafe {
                let mut answer: libc::sigaction = zeroed();
                answer.sa_sigaction = before.handler;
                answer.sa_flags = before.flags;
                set_first_word(&raw mut answer.sa_mask, before.mask);
                old.write(answer);
            }
        }
        return 0;
    }
    // SAFETY: the program vouches for its action, or passes null.
    let Some(new) = (unsafe { new.as_ref() }) else {
        let result = real::sigaction(signal, new, old);
        tell_asked(signal, asked(signal), old);
        return result;
    };
    let mut changed = *new;
    let word = first_word(&raw const new.sa_mask);
    set_first_word(&raw mut changed.sa_mask, word & !OURS);
    let before = ask(signal, word & OURS != 0);
    let result = real::sigaction(signal, &raw const changed, old);
    if result < 0 {
        ask(signal, before);
    } else {
        tell_asked(signal, before, old);
    }
    result
}

/// Puts SIGSYS back into the mask that is read, where it was asked for.
fn tell_asked(signal: c_int, asked: bool, old: *mut libc::sigaction) {
    if asked && (1..=64).contains(&signal) && !old.is_null() {
        // SAFETY: just written by the kernel.
        let mask = unsafe { &raw mut (*old).sa_mask };
        set_first_word(mask, first_word(mask) | OURS);
    }
}

fn asked(signal: c_int) -> bool {
    ASKED.load(Ordering::Relaxed) & bit(signal) != 0
}

/// Notes whether a signal's handler is to block SIGSYS; answers what it was.
fn ask(signal: c_int, on: bool) -> bool {
    let before = if on {
        ASKED.fetch_or(bit(signal), Ordering::Relaxed)
    } else {
        ASKED.fetch_and(!bit(signal), Ordering::Relaxed)
    };
    before & bit(signal) != 0
}

/// `signal` and its kin for SIGSYS, with what they say besides; `None`: not SIGSYS, or not kept.
pub(crate) fn simple(signal: c_int, handler: usize, flags: c_int) -> Option<usize> {
    if signal != SIGSYS || !KEPT.load(Ordering::Acquire) {
        return None;
    }
    let before = said().handler;
    say(Said { handler, flags, mask: 0 });
    Some(before)
}

/// How a mask changes what the thread says of SIGSYS; answers what it said before.
fn note(how: c_int, word: u64) -> bool {
    let before = BLOCKED.get();
    let named = word & OURS != 0;
    match how {
        SIG_BLOCK => BLOCKED.set(before || named),
        SIG_UNBLOCK => BLOCKED.set(before && !named),
        SIG_SETMASK => BLOCKED.set(named),
        _ => {}
    }
    before
}

/// `pthread_sigmask` and `sigprocmask`, by the real one of the two.
pub(crate) fn mask(
    how: c_int,
    set: *const sigset_t,
    old: *mut sigset_t,
    real: impl FnOnce(c_int, *const sigset_t, *mut sigset_t) -> c_int,
) -> c_int {
    if !KEPT.load(Ordering::Acquire) {
        return real(how, set, old);
    }
    let mut copy = None;
    let stripped = strip(set, &mut copy);
    let before = if set.is_null() { BLOCKED.get() } else { note(how, first_word(set)) };
    let result = real(how, stripped, old);
    if result != 0 {
        BLOCKED.set(before);
    } else if before && !old.is_null() {
        set_first_word(old, first_word(old) | OURS);
    }
    result
}

/// A mask that does not block SIGSYS, of which the kernel reads the first word: itself, or a copy.
pub(crate) fn strip(set: *const sigset_t, copy: &mut Option<sigset_t>) -> *const sigset_t {
    if set.is_null() || !KEPT.load(Ordering::Acquire) || first_word(set) & OURS == 0 {
        return set;
    }
    // SAFETY: zeros are an empty set.
    let copy = copy.insert(unsafe { zeroed() });
    set_first_word(copy, first_word(set) & !OURS);
    copy
}

/// A context that the thread goes on with sets this mask: noted, and without SIGSYS from now on.
pub(crate) fn enter_context(mask: *mut sigset_t) {
    if KEPT.load(Ordering::Acquire) {
        let word = first_word(mask);
        note(SIG_SETMASK, word);
        if word & OURS != 0 {
            set_first_word(mask, word & !OURS);
        }
    }
}

/// A set of BSD's (`sigblock`), noted and without SIGSYS.
pub(crate) fn strip_bsd(how: c_int, mask: c_int) -> c_int {
    if !KEPT.load(Ordering::Acquire) {
        return mask;
    }
    note(how, u64::from(mask.cast_unsigned()));
    mask & !(OURS as c_int)
}

/// `rt_sigprocmask`, of which the result is in `mask`: what is blocked when the interrupted code goes on.
pub(super) fn edit(mask: &mut u64, [how, set, old, len, ..]: [usize; 6]) -> isize {
    if len != KERNEL_SET_LEN {
        return real::err(libc::EINVAL);
    }
    let how = how as c_int;
    let set: *const u64 = ptr::with_exposed_provenance(set);
    let old: *mut u64 = ptr::with_exposed_provenance_mut(old);
    let seen = *mask | if BLOCKED.get() { OURS } else { 0 };
    if !set.is_null() {
        // SAFETY: the program vouches for its set.
        let word = unsafe { set.read_unaligned() };
        // SIGKILL and SIGSTOP are nobody's to block.
        let word = word & !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));
        *mask = match how {
            SIG_BLOCK => *mask | word,
            SIG_UNBLOCK => *mask & !word,
            SIG_SETMASK => word,
            _ => return real::err(libc::EINVAL),
        } & !OURS;
        note(how, word);
    }
    if !old.is_null() {
        // SAFETY: the program vouches for the place.
        unsafe { old.write_unaligned(seen) };
    }
    0
}

/// `rt_sigaction`, `rt_sigprocmask` and `rt_sigsuspend` by number, -1 and errno on failure; `None`: another call.
pub(crate) fn by_number(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    if !KEPT.load(Ordering::Acquire) {
        return None;
    }
    let [a, b, c, d, ..] = arguments;
    let native = |a, b, c, d| real::syscall(number, a, b, c, d, 0, 0);
    match number {
        libc::SYS_rt_sigaction if d == KERNEL_SET_LEN => Some(kernel_action(
            a as c_int,
            ptr::with_exposed_provenance(b),
            ptr::with_exposed_provenance_mut(c),
        )),
        libc::SYS_rt_sigprocmask if d == KERNEL_SET_LEN => {
            let real = |how: c_int, set: *const sigset_t, old: *mut sigset_t| {
                native(how as usize, set.expose_provenance(), old.expose_provenance(), d) as c_int
            };
            let (set, old) = (ptr::with_exposed_provenance(b), ptr::with_exposed_provenance_mut(c));
            Some(mask(a as c_int, set, old, real).into())
        }
        libc::SYS_rt_sigsuspend if b == KERNEL_SET_LEN => {
            let mut copy = None;
            let set = strip(ptr::with_exposed_provenance(a), &mut copy);
            Some(native(set.expose_provenance(), b, c, d))
        }
        _ => None,
    }
}

/// `rt_sigaction`.
fn kernel_action(signal: c_int, new: *const KernelAction, old: *mut KernelAction) -> c_long {
    let native = |new: *const KernelAction| {
        let (new, old) = (new.expose_provenance(), old.expose_provenance());
        real::syscall(libc::SYS_rt_sigaction, signal as usize, new, old, KERNEL_SET_LEN, 0, 0)
    };
    let add = |on: bool| {
        if on && !old.is_null() {
            // SAFETY: just written by the kernel.
            unsafe { (*old).mask |= OURS };
        }
    };
    // SAFETY: the program vouches for its action, or passes null.
    let given = unsafe { new.as_ref() }.copied();
    if signal == SIGSYS {
        let before = said();
        if let Some(new) = given {
            say(Said { handler: new.handler, flags: new.flags as c_int, mask: new.mask });
        }
        if !old.is_null() {
            let flags = i64::from(before.flags).cast_unsigned() & 0xffff_ffff;
            // SAFETY: the program vouches for the place.
            unsafe {
                old.write(KernelAction { handler: before.handler, flags, restorer: 0, mask: before.mask });
            }
        }
        return 0;
    }
    let Some(mut changed) = given else {
        let result = native(new);
        add(result == 0 && asked(signal));
        return result;
    };
    let before = ask(signal, changed.mask & OURS != 0);
    changed.mask &= !OURS;
    let result = native(&raw const changed);
    if result < 0 {
        ask(signal, before);
    }
    add(result == 0 && before);
    result
}

/// The kernel's view of what SIGSYS does: where handlers return to (`sa_restorer`).
pub(super) fn restorer() -> usize {
    let mut now = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    let place = (&raw mut now).expose_provenance();
    real::syscall(libc::SYS_rt_sigaction, SIGSYS as usize, 0, place, KERNEL_SET_LEN, 0, 0);
    now.restorer
}
