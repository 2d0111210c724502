//! New program images: the `exec` family, `posix_spawn` with its file actions, and shells (`system`, `popen`).
//!
//! `execl` and its kin are variadic in C, which Rust cannot define. Their entry points are a few instructions that lay
//! the arguments out as the list that `execv` wants; they stand in the registers and on the stack in that order.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::exec::{self, Action};
use crate::{attach, real};

type List = *const *const c_char;

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn execve(path: *const c_char, arguments: List, environment: List) -> c_int {
    exec::execute(environment, |environment| real::execve(path, arguments, environment))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn execv(path: *const c_char, arguments: List) -> c_int {
    execve(path, arguments, exec::environment())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn execvpe(file: *const c_char, arguments: List, environment: List) -> c_int {
    exec::execute(environment, |environment| real::execvpe(file, arguments, environment))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn execvp(file: *const c_char, arguments: List) -> c_int {
    execvpe(file, arguments, exec::environment())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fexecve(fd: c_int, arguments: List, environment: List) -> c_int {
    exec::execute(environment, |environment| real::fexecve(fd, arguments, environment))
}

#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: List,
    environment: List,
    flags: c_int,
) -> c_int {
    exec::execute(environment, |environment| real::execveat(directory, path, arguments, environment, flags))
}

extern "C-unwind" fn execl_list(path: *const c_char, arguments: List) -> c_int {
    execv(path, arguments)
}

extern "C-unwind" fn execlp_list(file: *const c_char, arguments: List) -> c_int {
    execvp(file, arguments)
}

extern "C-unwind" fn execle_list(path: *const c_char, arguments: List) -> c_int {
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
        unsafe extern "C-unwind" fn $name() {
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
extern "C-unwind" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: List,
    environment: List,
) -> c_int {
    exec::spawn(actions, environment, |actions, environment| {
        real::posix_spawn(pid, path, actions, attributes, arguments, environment)
    })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn posix_spawnp(
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: List,
    environment: List,
) -> c_int {
    exec::spawn(actions, environment, |actions, environment| {
        real::posix_spawnp(pid, file, actions, attributes, arguments, environment)
    })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn posix_spawn_file_actions_init(object: *mut c_void) -> c_int {
    exec::clear_actions(object);
    real::posix_spawn_file_actions_init(object)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn posix_spawn_file_actions_destroy(object: *mut c_void) -> c_int {
    exec::clear_actions(object);
    real::posix_spawn_file_actions_destroy(object)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn posix_spawn_file_actions_addclose(object: *mut c_void, fd: c_int) -> c_int {
    remember(object, || Action::Close(fd), real::posix_spawn_file_actions_addclose(object, fd))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn posix_spawn_file_actions_adddup2(object: *mut c_void, from: c_int, to: c_int) -> c_int {
    remember(object, || Action::Dup(from, to), real::posix_spawn_file_actions_adddup2(object, from, to))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn posix_spawn_file_actions_addopen(
    object: *mut c_void,
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    let result = real::posix_spawn_file_actions_addopen(object, fd, path, flags, mode);
    remember(object, || Action::Open { fd, path: text(path), flags, mode }, result)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn posix_spawn_file_actions_addclosefrom_np(object: *mut c_void, from: c_int) -> c_int {
    remember(object, || Action::CloseFrom(from), real::posix_spawn_file_actions_addclosefrom_np(object, from))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn posix_spawn_file_actions_addchdir_np(object: *mut c_void, path: *const c_char) -> c_int {
    let result = real::posix_spawn_file_actions_addchdir_np(object, path);
    remember(object, || Action::ChangeTo(text(path)), result)
}

/// POSIX's name of it (Issue 8), which older C libraries lack.
#[unsafe(no_mangle)]
extern "C-unwind" fn posix_spawn_file_actions_addchdir(object: *mut c_void, path: *const c_char) -> c_int {
    posix_spawn_file_actions_addchdir_np(object, path)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn posix_spawn_file_actions_addfchdir_np(object: *mut c_void, fd: c_int) -> c_int {
    let result = real::posix_spawn_file_actions_addfchdir_np(object, fd);
    remember(object, || Action::ChangeToOpen(fd), result)
}

/// As for `addchdir`.
#[unsafe(no_mangle)]
extern "C-unwind" fn posix_spawn_file_actions_addfchdir(object: *mut c_void, fd: c_int) -> c_int {
    posix_spawn_file_actions_addfchdir_np(object, fd)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn posix_spawn_file_actions_addtcsetpgrp_np(object: *mut c_void, fd: c_int) -> c_int {
    let result = real::posix_spawn_file_actions_addtcsetpgrp_np(object, fd);
    remember(object, || Action::Foreground(fd), result)
}

/// A copy of what the C library has copied.
fn text(path: *const c_char) -> CString {
    // SAFETY: the program vouches for its text, which the C library has read.
    unsafe { CStr::from_ptr(path) }.to_owned()
}

/// An action that the C library has taken (`result` 0) is ours to know, too.
fn remember(object: *const c_void, action: impl FnOnce() -> Action, result: c_int) -> c_int {
    if result == 0 {
        exec::add_action(object, action());
    }
    result
}

#[unsafe(no_mangle)]
extern "C-unwind" fn system(command: *const c_char) -> c_int {
    if attach::region().is_none() || command.is_null() {
        return real::system(command);
    }
    exec::system(command)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    if attach::region().is_none() { real::popen(command, mode) } else { exec::popen(command, mode) }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pclose(stream: *mut libc::FILE) -> c_int {
    exec::close(stream).unwrap_or_else(|| real::pclose(stream))
}
