//! New program images: the `exec` family and `posix_spawn` with its file actions.
//!
//! `execl` and its kin are variadic in C, which Rust cannot define. Their entry points are a few instructions that lay
//! the arguments out as the list that `execv` wants; they stand in the registers and on the stack in that order.

use std::ffi::{c_char, c_int, c_void};

use crate::exec::{self, Action};
use crate::real;

type List = *const *const c_char;

unsafe extern "C" {
    /// The program's environment.
    static environ: List;
}

fn current() -> List {
    // SAFETY: a pointer of the C library's; who changes the environment meanwhile does what POSIX forbids.
    unsafe { environ }
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn execve(path: *const c_char, arguments: List, environment: List) -> c_int {
    exec::execute(environment, |environment| real::execve(path, arguments, environment))
}

#[unsafe(no_mangle)]
extern "C" fn execv(path: *const c_char, arguments: List) -> c_int {
    execve(path, arguments, current())
}

#[unsafe(no_mangle)]
extern "C" fn execvpe(file: *const c_char, arguments: List, environment: List) -> c_int {
    exec::execute(environment, |environment| real::execvpe(file, arguments, environment))
}

#[unsafe(no_mangle)]
extern "C" fn execvp(file: *const c_char, arguments: List) -> c_int {
    execvpe(file, arguments, current())
}

#[unsafe(no_mangle)]
extern "C" fn fexecve(fd: c_int, arguments: List, environment: List) -> c_int {
    exec::execute(environment, |environment| real::fexecve(fd, arguments, environment))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: List,
    environment: List,
    flags: c_int,
) -> c_int {
    exec::execute(environment, |environment| real::execveat(directory, path, arguments, environment, flags))
}

extern "C" fn execl_list(path: *const c_char, arguments: List) -> c_int {
    execv(path, arguments)
}

extern "C" fn execlp_list(file: *const c_char, arguments: List) -> c_int {
    execvp(file, arguments)
}

extern "C" fn execle_list(path: *const c_char, arguments: List) -> c_int {
    let mut end = arguments;
    // SAFETY: the program vouches for a list that null ends, and for the environment behind it.
    let environment = unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        end.add(1).cast::<List>().read()
    };
    execve(path, arguments, environment)
}

/// A function of C with variable arguments behind a first one, which calls `$list` with that and the others as a list.
macro_rules! variadic {
    ($name:ident, $list:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            // The return address is taken out from between the arguments in registers, pushed here, and the others.
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(
                "pop r11",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push r11",
                "call {list}",
                "pop r11",
                "add rsp, 40",
                "push r11",
                "ret",
                list = sym $list,
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "mov x29, sp",
                "str x1, [sp, #24]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x1, sp, #24",
                "bl {list}",
                "ldp x29, x30, [sp], #80",
                "ret",
                list = sym $list,
            );
        }
    };
}

variadic!(execl, execl_list);
variadic!(execlp, execlp_list);
variadic!(execle, execle_list);

#[unsafe(no_mangle)]
extern "C" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: List,
    environment: List,
) -> c_int {
    exec::spawn(actions, environment, |environment| {
        real::posix_spawn(pid, path, actions, attributes, arguments, environment)
    })
}

#[unsafe(no_mangle)]
extern "C" fn posix_spawnp(
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: List,
    environment: List,
) -> c_int {
    exec::spawn(actions, environment, |environment| {
        real::posix_spawnp(pid, file, actions, attributes, arguments, environment)
    })
}

#[unsafe(no_mangle)]
extern "C" fn posix_spawn_file_actions_init(object: *mut c_void) -> c_int {
    exec::clear_actions(object);
    real::posix_spawn_file_actions_init(object)
}

#[unsafe(no_mangle)]
extern "C" fn posix_spawn_file_actions_destroy(object: *mut c_void) -> c_int {
    exec::clear_actions(object);
    real::posix_spawn_file_actions_destroy(object)
}

#[unsafe(no_mangle)]
extern "C" fn posix_spawn_file_actions_addclose(object: *mut c_void, fd: c_int) -> c_int {
    remember(object, Action::Gone(fd), real::posix_spawn_file_actions_addclose(object, fd))
}

#[unsafe(no_mangle)]
extern "C" fn posix_spawn_file_actions_adddup2(object: *mut c_void, from: c_int, to: c_int) -> c_int {
    remember(object, Action::Dup(from, to), real::posix_spawn_file_actions_adddup2(object, from, to))
}

#[unsafe(no_mangle)]
extern "C" fn posix_spawn_file_actions_addopen(
    object: *mut c_void,
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    let result = real::posix_spawn_file_actions_addopen(object, fd, path, flags, mode);
    remember(object, Action::Gone(fd), result)
}

#[unsafe(no_mangle)]
extern "C" fn posix_spawn_file_actions_addclosefrom_np(object: *mut c_void, from: c_int) -> c_int {
    remember(object, Action::CloseFrom, real::posix_spawn_file_actions_addclosefrom_np(object, from))
}

/// An action that the C library has taken (`result` 0) is ours to know, too.
fn remember(object: *const c_void, action: Action, result: c_int) -> c_int {
    if result == 0 {
        exec::add_action(object, action);
    }
    result
}
