//! What programs call about the C library's streams where that does something to a descriptor past us; see [`stdio`].
//!
//! `dprintf` is variadic in C, which Rust cannot define: its entry points lay the arguments out as a `va_list`, by the
//! psABI of x86-64 (§3.5.7). Elsewhere it is the C library's own, which finds our sockets by its streams up to glibc 2.36.

use std::ffi::{c_char, c_int, c_void};

use libc::FILE;

use crate::{exec, life, real, stdio, table};

#[unsafe(no_mangle)]
extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    stdio::opened(fd);
    real::fdopen(fd, mode)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    stdio::reopening(stream);
    real::freopen(path, mode, stream)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    stdio::reopening(stream);
    real::freopen64(path, mode, stream)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    if let Some(status) = exec::close(stream) {
        return status;
    }
    if !stdio::is_served() && !stream.is_null() {
        // The C library closes the descriptor without asking anybody.
        life::closing(real::fileno(stream));
    }
    real::fclose(stream)
}

unsafe extern "C" {
    /// The program's standard error.
    static stderr: *mut FILE;
}

#[unsafe(no_mangle)]
extern "C-unwind" fn perror(text: *const c_char) {
    if table::socket(2).is_some() {
        // For a stream without orientation the C library makes a second one, on a duplicate that we do not see.
        // SAFETY: a pointer of the C library's, which the program may change, but not meanwhile.
        let stream = unsafe { stderr };
        if !stream.is_null() {
            let errno = real::errno();
            real::orientation(stream, -1);
            real::set_errno(errno);
        }
    }
    real::perror(text);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    stdio::print(fd, |text| real::vasprintf(text, format, arguments))
        .unwrap_or_else(|| real::vdprintf(fd, format, arguments))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    stdio::print(fd, |text| real::vasprintf_checked(text, flag, format, arguments))
        .unwrap_or_else(|| real::vdprintf_checked(fd, flag, format, arguments))
}

/// A function of C with variable arguments, which calls `$listed` with its named ones and a `va_list` of the others.
/// `$named`: bytes of the named ones in the register save area; `$last`: the register for the list.
#[cfg(target_arch = "x86_64")]
macro_rules! variadic {
    ($name:ident, $listed:ident, $named:literal, $last:literal) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name() {
            // On the stack: the list (24 bytes), room, the save area at 32: six registers, then eight of vectors, which
            // are there if `al` says so.
            std::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 216",
                ".cfi_adjust_cfa_offset 216",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2:",
                concat!("mov dword ptr [rsp], ", $named),
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                concat!("mov ", $last, ", rsp"),
                "call {listed}",
                "add rsp, 216",
                ".cfi_adjust_cfa_offset -216",
                "ret",
                ".cfi_endproc",
                listed = sym $listed,
            );
        }
    };
}

#[cfg(target_arch = "x86_64")]
variadic!(dprintf, vdprintf, "16", "rdx");
#[cfg(target_arch = "x86_64")]
variadic!(__dprintf_chk, __vdprintf_chk, "24", "rcx");
