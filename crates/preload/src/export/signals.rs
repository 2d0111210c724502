//! What programs say of signals: SIGSYS is kept from them while calls are dispatched ([`crate::dispatch`]).

use std::ffi::c_int;

use libc::{SIG_BLOCK, SIG_DFL, SIG_ERR, SIG_IGN, SIG_SETMASK, SIG_UNBLOCK, SIGSYS, sighandler_t, sigset_t};

use crate::cancel;
use crate::dispatch::signals;
use crate::real;

/// `sigset`'s: block the signal (`signal.h`).
const SIG_HOLD: sighandler_t = 2;

#[unsafe(no_mangle)]
extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    signals::action(signal, new, old)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    signals::action(signal, new, old)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    signals::mask(how, set, old, real::sigprocmask)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    signals::mask(how, set, old, real::pthread_sigmask)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sigsuspend(set: *const sigset_t) -> c_int {
    let mut copy = None;
    real::sigsuspend(signals::strip(set, &mut copy))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    signals::simple(number, handler, libc::SA_RESTART).unwrap_or_else(|| real::signal(number, handler))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    signal(number, handler)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
    signal(number, handler)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    let once = libc::SA_RESETHAND | libc::SA_NODEFER;
    signals::simple(number, handler, once).unwrap_or_else(|| real::__sysv_signal(number, handler))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    __sysv_signal(number, handler)
}

/// This signal alone.
fn alone(number: c_int) -> sigset_t {
    // SAFETY: zeros are an empty set, to which a signal is added.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigaddset(&raw mut set, number);
        set
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sigset(number: c_int, handler: sighandler_t) -> sighandler_t {
    if number != SIGSYS {
        return real::sigset(number, handler);
    }
    let set = alone(number);
    let mut before = alone(number);
    let how = if handler == SIG_HOLD { SIG_BLOCK } else { SIG_UNBLOCK };
    if sigprocmask(how, &raw const set, &raw mut before) < 0 {
        return SIG_ERR;
    }
    // SAFETY: a set that was just filled; zeros are an action.
    let (was_held, mut action): (bool, libc::sigaction) =
        unsafe { (libc::sigismember(&raw const before, number) == 1, std::mem::zeroed()) };
    let handled = if handler == SIG_HOLD {
        sigaction(number, std::ptr::null(), &raw mut action);
        action.sa_sigaction
    } else {
        signals::simple(number, handler, 0).unwrap_or(SIG_DFL)
    };
    if was_held { SIG_HOLD } else { handled }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sigignore(number: c_int) -> c_int {
    match signals::simple(number, SIG_IGN, 0) {
        Some(_) => 0,
        None => real::sigignore(number),
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sighold(number: c_int) -> c_int {
    if number != SIGSYS {
        return real::sighold(number);
    }
    let set = alone(number);
    sigprocmask(SIG_BLOCK, &raw const set, std::ptr::null_mut())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sigrelse(number: c_int) -> c_int {
    if number != SIGSYS {
        return real::sigrelse(number);
    }
    let set = alone(number);
    sigprocmask(SIG_UNBLOCK, &raw const set, std::ptr::null_mut())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sigblock(mask: c_int) -> c_int {
    real::sigblock(signals::strip_bsd(SIG_BLOCK, mask))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sigsetmask(mask: c_int) -> c_int {
    real::sigsetmask(signals::strip_bsd(SIG_SETMASK, mask))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int {
    cancel::set_cancel_type(kind, before)
}

/// Null is the kernel's to refuse, as ever: the C library looks at nothing before.
fn enter_context(next: *mut libc::ucontext_t) {
    if !next.is_null() {
        // SAFETY: the program vouches for its context.
        signals::enter_context(unsafe { &raw mut (*next).uc_sigmask });
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn setcontext(next: *mut libc::ucontext_t) -> c_int {
    enter_context(next);
    real::setcontext(next)
}

/// Who goes on with what this keeps returns through here, on its own stack.
#[unsafe(no_mangle)]
extern "C-unwind" fn swapcontext(before: *mut libc::ucontext_t, next: *mut libc::ucontext_t) -> c_int {
    enter_context(next);
    real::swapcontext(before, next)
}

/// Where a jump leads: the stack pointer among what `setjmp` keeps (glibc's `jmpbuf-offsets.h`), which it disguises
/// (`PTR_MANGLE`).
///
/// # Safety
/// `setjmp` has filled it.
unsafe fn target_of(environment: *const usize) -> usize {
    const STACK_POINTER: usize = 6;
    const TURNED: u32 = 17;
    let guard: usize;
    // SAFETY: glibc's thread block has it there, and the caller vouches for the environment.
    unsafe {
        std::arch::asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, readonly, preserves_flags));
        environment.add(STACK_POINTER).read().rotate_right(TURNED) ^ guard
    }
}

macro_rules! jumps {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C-unwind" fn $name(environment: *const usize, value: c_int) -> ! {
                // SAFETY: the program vouches for its environment.
                crate::under_way::before_jump(unsafe { target_of(environment) });
                real::$name(environment, value)
            }
        )*
    };
}

jumps! { longjmp _longjmp siglongjmp __longjmp_chk }
