//! A dispatched system call, answered.
//!
//! Most can be made from within a handler as from anywhere. The others:
//!
//! ```text
//! rt_sigprocmask      changes what the handler's end restores
//! sigaltstack         the same
//! rt_sigreturn        ends the program's own handler, below ours
//! clone, clone3       the child begins on its own stack where the parent was interrupted: by a return address there
//! fork and its kin    by the C library's `fork`, whose handlers let a child have sockets; so are vfork and what shares memory
//!                     with its parent, whose child would run on our frames
//! int 0x80            a call of 32 bits, made by an instruction of ours with the selector open
//! munmap, madvise     of the stack below us: the call is made again, undispatched, and so are all to come of the thread
//! arch_prctl          of the thread's FS: the same
//! ```
//! Who changes FS takes the C library's thread from itself, ours with it: whatever we know of the thread lies there, and no
//! function of either can be called until FS is back. The same holds for `wrfsbase`, of which nobody tells us. Of the calls of
//! 32 bits those about signals and children end the dispatch as well: they are about frames of another form.
//!
//! Children that are to be in another name space, or to have a process descriptor, are made natively, without handlers: what
//! they see of our sockets is their parent's.

use std::ffi::{c_int, c_long};
use std::ptr::{with_exposed_provenance as at, with_exposed_provenance_mut as at_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{
    CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID, CLONE_PARENT_SETTID, CLONE_THREAD, CLONE_VFORK, CLONE_VM,
    REG_R8, REG_R9, REG_R10, REG_RAX, REG_RDI, REG_RDX, REG_RIP, REG_RSI, REG_RSP, ucontext_t,
};

use super::signals;
use crate::table::Entry;
use crate::{attach, cancel, export, family, real, table};

/// `AUDIT_ARCH_X86_64`; else `int 0x80`.
const X86_64: u32 = 0xc000_003e;
/// Numbers of 32 bits (`asm/unistd_32.h`) about signals, threads and children: fork, execve, signal, sigaction, sigsuspend,
/// sigreturn, clone, sigprocmask, rt_sigreturn to rt_sigsuspend, sigaltstack, vfork, execveat, clone3.
const OF_THIS_THREAD_32: [c_long; 17] =
    [2, 11, 48, 67, 72, 119, 120, 126, 173, 174, 175, 176, 179, 186, 190, 358, 435];
/// Bytes of `syscall`, and of `int 0x80`.
const INSTRUCTION_LEN: i64 = 2;
/// `linux/sched.h`: struct clone_args, the first one and that up to `cgroup` (CLONE_ARGS_SIZE_VER0, _VER2).
const CLONE3_LEAST: usize = 64;
const CLONE3_MOST: usize = 88;
/// `stack` and `stack_size` in it, in words.
const CLONE3_STACK: usize = 5;
const CLONE3_STACK_SIZE: usize = 6;
/// How many numbers the child is to have.
const CLONE3_NUMBERS: usize = 9;

/// Whether this process has said that it serves such calls.
static SAID: AtomicBool = AtomicBool::new(false);

/// How the handler ends.
pub(super) enum Next {
    /// As it began, with the result in the registers.
    Return,
    /// With another frame than its own, which lies at this place.
    LeaveFrame(usize),
    /// The thread makes the call again, and all to come, by itself.
    Undispatched,
}

/// What the kernel puts behind a SIGSYS (`siginfo_t`, `_sigsys`).
#[repr(C)]
struct Information {
    head: [u32; 4],
    call_address: usize,
    number: c_int,
    architecture: u32,
}

/// Makes the call that was dispatched.
///
/// A call by instruction is no place to be cancelled. The C library's own `poll` is, in which the resolver waits for its
/// answer; its others end soon, and the thread is cancelled behind them.
pub(super) fn answer(info: *mut libc::siginfo_t, interrupted: &mut ucontext_t) -> Next {
    // SAFETY: as in `answer_uncancelled`.
    let Information { call_address, number, .. } = unsafe { info.cast::<Information>().read() };
    if number == libc::SYS_poll as c_int && super::library().contains(&call_address) {
        let registers = &mut interrupted.uc_mcontext.gregs;
        let [fds, n, timeout] = [REG_RDI, REG_RSI, REG_RDX].map(|name| registers[name as usize] as usize);
        let result = cancel::cancelled_as_there(|| export::poll(at_mut(fds), n as _, timeout as c_int));
        registers[REG_RAX as usize] = real::ours(result as isize) as i64;
        return Next::Return;
    }
    cancel::uncancelled(|| answer_uncancelled(info, interrupted))
}

#[inline(never)]
fn answer_uncancelled(info: *mut libc::siginfo_t, interrupted: &mut ucontext_t) -> Next {
    // SAFETY: the kernel's structure, with `si_code` SYS_USER_DISPATCH.
    let Information { call_address, number, architecture, .. } = unsafe { info.cast::<Information>().read() };
    let registers = &mut interrupted.uc_mcontext.gregs;
    let stack = registers[REG_RSP as usize] as usize;
    let arguments =
        [REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9].map(|name| registers[name as usize] as usize);
    let number = c_long::from(number);
    let is_undispatched = match architecture {
        X86_64 => is_of_this_thread(number, arguments),
        _ => OF_THIS_THREAD_32.contains(&number),
    };
    if is_undispatched {
        registers[REG_RIP as usize] -= INSTRUCTION_LEN;
        return Next::Undispatched;
    }
    if architecture != X86_64 {
        registers[REG_RAX as usize] = super::undispatched(|| {
            // SAFETY: a system call with the program's own arguments.
            unsafe { call_of_32_bits(registers.as_ptr(), number) }
        });
        return Next::Return;
    }
    let result = match number {
        libc::SYS_rt_sigreturn => return Next::LeaveFrame(stack),
        libc::SYS_rt_sigprocmask => {
            // SAFETY: a kernel's set is the first word of the C library's.
            let mask = unsafe { &mut *(&raw mut interrupted.uc_sigmask).cast::<u64>() };
            signals::edit(mask, arguments)
        }
        libc::SYS_sigaltstack => {
            if interrupted.uc_stack.ss_flags & signals::SS_AUTODISARM != 0 {
                // Each signal takes such a stack away until its handler's end, ours as well.
                native(number, [(&raw const interrupted.uc_stack).expose_provenance(), 0, 0, 0, 0, 0]);
            }
            let result = native(number, arguments);
            // SAFETY: fills the structure that the handler's end restores.
            unsafe { libc::sigaltstack(std::ptr::null(), &raw mut interrupted.uc_stack) };
            result
        }
        libc::SYS_fork | libc::SYS_vfork => real::ours(real::fork() as isize),
        libc::SYS_clone => clone(registers, arguments),
        libc::SYS_clone3 => clone3(registers, arguments),
        _ => serve(number, arguments, super::library().contains(&call_address)),
    };
    interrupted.uc_mcontext.gregs[REG_RAX as usize] = result as i64;
    Next::Return
}

/// Calls about the very thread, which a handler on its stack cannot make for it.
fn is_of_this_thread(number: c_long, [a, b, ..]: [usize; 6]) -> bool {
    const ARCH_SET_FS: usize = 0x1002;
    let here = (&raw const number).addr();
    match number {
        libc::SYS_munmap | libc::SYS_madvise | libc::SYS_mremap => (a..a.saturating_add(b)).contains(&here),
        libc::SYS_arch_prctl => a == ARCH_SET_FS,
        _ => false,
    }
}

fn native(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    real::ours(real::syscall(number, a, b, c, d, e, f) as isize)
}

/// Any other call. `resolves`: it is the resolver's.
fn serve(number: c_long, arguments: [usize; 6], resolves: bool) -> isize {
    let fd = arguments[0] as c_int;
    // Under the resolver our own functions make calls, too (plug-ins of the C library's call them).
    if resolves && (table::is_own(fd) || !is_resolvers(number)) {
        return native(number, arguments);
    }
    let before = is_on_paths(number, arguments);
    let Some(result) = export::by_number(number, arguments) else { return native(number, arguments) };
    let result = real::ours(result as isize);
    if !resolves && (before || is_on_paths(number, arguments)) {
        count();
    }
    result
}

/// Calls of the resolver that sockets of ours may be behind. It makes the others under locks of the C library's.
fn is_resolvers(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_socket
            | libc::SYS_connect
            | libc::SYS_bind
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_read
            | libc::SYS_poll
            | libc::SYS_ppoll
            | libc::SYS_ioctl
            | libc::SYS_fcntl
            | libc::SYS_setsockopt
            | libc::SYS_getsockopt
            | libc::SYS_getsockname
            | libc::SYS_getpeername
            | libc::SYS_shutdown
            | libc::SYS_close
    )
}

/// Whether a call is about a socket of ours, or an epoll.
fn is_on_paths(number: c_long, [a, b, c, ..]: [usize; 6]) -> bool {
    let ours = |fd: usize| matches!(family::look(fd as c_int), Entry::Socket(_) | Entry::Epoll(_));
    match number {
        libc::SYS_poll | libc::SYS_ppoll => export::poll_concerns(at_mut(a), b as _),
        libc::SYS_sendfile => ours(a) || ours(b),
        libc::SYS_splice => ours(a) || ours(c),
        _ => ours(a),
    }
}

/// One more call that was served so.
fn count() {
    let Some(region) = attach::region() else { return };
    region.header().calls_dispatched.0[0].fetch_add(1, Ordering::Relaxed);
    if !SAID.load(Ordering::Relaxed) && !SAID.swap(true, Ordering::Relaxed) {
        real::say(&[
            b"system calls that this program makes past the C library are served; each takes some microseconds more",
        ]);
    }
}

/// `clone`.
fn clone(registers: &[i64], [flags, stack, c, d, e, f]: [usize; 6]) -> isize {
    let shares = flags & CLONE_VM as usize != 0;
    if stack != 0 {
        let stack = stack - size_of::<usize>();
        return onto(libc::SYS_clone, registers, stack, [flags, stack]);
    }
    let flags = if shares && flags & CLONE_THREAD as usize == 0 {
        flags & !(CLONE_VM | CLONE_VFORK) as usize
    } else {
        flags
    };
    if flags & !TOLD == libc::SIGCHLD as usize {
        return fork(flags, c, d);
    }
    native(libc::SYS_clone, [flags, stack, c, d, e, f])
}

/// Who is told of a child's number, beside the parent by the result.
const TOLD: usize = (CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID) as usize;

/// A child with a copy of everything, of whose number these places are told.
fn fork(flags: usize, of_parent: usize, of_child: usize) -> isize {
    let tell = |flag: c_int, place: usize, number: c_int| {
        if flags & flag as usize != 0 {
            // SAFETY: the program vouches for its place.
            unsafe { at_mut::<c_int>(place).write_unaligned(number) };
        }
    };
    let child = real::fork();
    if child == 0 {
        // SAFETY: no arguments.
        tell(CLONE_CHILD_SETTID, of_child, unsafe { libc::gettid() });
        if flags & CLONE_CHILD_CLEARTID as usize != 0 {
            real::syscall(libc::SYS_set_tid_address, of_child, 0, 0, 0, 0, 0);
        }
    } else if child > 0 {
        tell(CLONE_PARENT_SETTID, of_parent, child);
    }
    real::ours(child as isize)
}

/// `clone3`.
fn clone3(registers: &[i64], arguments: [usize; 6]) -> isize {
    let [given, len, ..] = arguments;
    if given == 0 || !(CLONE3_LEAST..=CLONE3_MOST).contains(&len) {
        return native(libc::SYS_clone3, arguments); // the kernel's to refuse, or too new for us
    }
    let mut copy = [0u64; CLONE3_MOST / 8];
    // SAFETY: the program vouches for so many bytes, which fit.
    unsafe { std::ptr::copy_nonoverlapping(at::<u8>(given), copy.as_mut_ptr().cast(), len) };
    let stack = (copy[CLONE3_STACK] + copy[CLONE3_STACK_SIZE]) as usize;
    if stack != 0 {
        copy[CLONE3_STACK_SIZE] -= size_of::<usize>() as u64;
        let place = (&raw const copy).expose_provenance();
        return onto(libc::SYS_clone3, registers, stack - size_of::<usize>(), [place, len]);
    }
    if copy[0] & CLONE_THREAD as u64 == 0 {
        copy[0] &= !(CLONE_VM | CLONE_VFORK) as u64;
    }
    let [flags, _, of_child, of_parent, signal, ..] = copy.map(|word| word as usize);
    let has_number = len > CLONE3_LEAST && copy[CLONE3_NUMBERS] != 0;
    if flags & !TOLD == 0 && signal == libc::SIGCHLD as usize && !has_number {
        return fork(flags, of_parent, of_child);
    }
    native(libc::SYS_clone3, [(&raw const copy).expose_provenance(), len, 0, 0, 0, 0])
}

/// Makes a child that begins where the parent was interrupted, with its registers but for the first two arguments, and
/// with its own stack: the address lies there, one word lower than it was given, for the C library's `syscall` to return to.
fn onto(number: c_long, registers: &[i64], stack: usize, first: [usize; 2]) -> isize {
    let Some(instruction) = instruction() else { return real::err(libc::ENOSYS) };
    let place: *mut i64 = at_mut(stack);
    // SAFETY: the program vouches for the child's stack.
    unsafe { place.write_unaligned(registers[REG_RIP as usize]) };
    let mut given = [0; 23];
    given.copy_from_slice(&registers[..23]);
    given[REG_RAX as usize] = number;
    given[REG_RDI as usize] = first[0] as i64;
    given[REG_RSI as usize] = first[1] as i64;
    // SAFETY: the child returns to the program; the parent returns here.
    let result = unsafe { with_registers(given.as_ptr(), instruction) };
    real::ours(result)
}

/// Where the C library's `syscall` has its instruction: what follows is the check for errors, and a return.
fn instruction() -> Option<usize> {
    static FOUND: OnceLock<Option<usize>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        const CHECKED: [u8; 8] = [0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];
        // SAFETY: a terminated name.
        let function = unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) }.cast::<u8>();
        // SAFETY: within the C library's code, which is longer.
        let code = unsafe { std::slice::from_raw_parts(function, 64) };
        code.windows(CHECKED.len()).position(|bytes| bytes == CHECKED).map(|found| function.addr() + found)
    })
}

/// Loads the registers of `gregs` (all but the stack's) and calls `instruction`.
#[unsafe(naked)]
unsafe extern "C" fn with_registers(gregs: *const i64, instruction: usize) -> isize {
    // gregs: r8 r9 r10 r11 r12 r13 r14 r15 rdi rsi rbp rbx rdx rax rcx rsp rip …
    std::arch::naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "mov rcx, rdi",
        "mov r11, rsi",
        "mov r8, [rcx]",
        "mov r9, [rcx + 8]",
        "mov r10, [rcx + 16]",
        "mov r12, [rcx + 32]",
        "mov r13, [rcx + 40]",
        "mov r14, [rcx + 48]",
        "mov r15, [rcx + 56]",
        "mov rdi, [rcx + 64]",
        "mov rsi, [rcx + 72]",
        "mov rbp, [rcx + 80]",
        "mov rbx, [rcx + 88]",
        "mov rdx, [rcx + 96]",
        "mov rax, [rcx + 104]",
        "call r11",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}

/// `int 0x80` with the registers of `gregs`, but with this number: what it returns.
#[unsafe(naked)]
unsafe extern "C" fn call_of_32_bits(gregs: *const i64, number: c_long) -> i64 {
    std::arch::naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov r11, rdi",
        "mov eax, esi",
        "mov rdi, [r11 + 64]",
        "mov rsi, [r11 + 72]",
        "mov rbp, [r11 + 80]",
        "mov rbx, [r11 + 88]",
        "mov rdx, [r11 + 96]",
        "mov rcx, [r11 + 112]",
        "int 0x80",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}
