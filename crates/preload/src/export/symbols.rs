//! `dlsym`: who looks a function up by a handle of the C library (Python's `ctypes.CDLL("libc.so.6")`) gets ours where it
//! stands before that.
//!
//! What RTLD_NEXT and RTLD_DEFAULT mean depends on who calls, which the C library sees by the return address. So those are
//! handed over by a jump.
//!
//! Left out: `dlvsym`, which asks for one of several versions.

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::{attach, dispatch};

/// The version that `dlsym` has had from the beginning.
#[cfg(target_arch = "x86_64")]
const VERSION: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const VERSION: &CStr = c"GLIBC_2.17";

/// The C library's.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

extern "C" fn resolve() -> *mut c_void {
    // SAFETY: terminated names.
    let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), VERSION.as_ptr()) };
    REAL.store(found, Ordering::Relaxed);
    found
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dlsym() {
    // RTLD_NEXT is -1, RTLD_DEFAULT 0.
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "lea rax, [rdi + 1]",
        "cmp rax, 1",
        "ja {by_handle}",
        "mov rax, qword ptr [rip + {real}]",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {resolve}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        by_handle = sym by_handle,
        real = sym REAL,
        resolve = sym resolve,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "add x16, x0, #1",
        "cmp x16, #1",
        "b.ls 1f",
        "b {by_handle}",
        "1:",
        "adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {resolve}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x16",
        by_handle = sym by_handle,
        real = sym REAL,
        resolve = sym resolve,
    );
}

extern "C-unwind" fn by_handle(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let found = look_up(handle, name);
    if found.is_null() || attach::region().is_none() {
        return found;
    }
    // Who asks has loaded it.
    dispatch::look_again();
    before(found, name).unwrap_or(found)
}

/// The C library's `dlsym`, called from here.
fn look_up(from: *mut c_void, name: *const c_char) -> *mut c_void {
    let real = match REAL.load(Ordering::Relaxed) {
        real if real.is_null() => resolve(),
        real => real,
    };
    // SAFETY: the C library's function; who calls vouches for handle and name.
    unsafe {
        transmute::<*mut c_void, extern "C" fn(*mut c_void, *const c_char) -> *mut c_void>(real)(from, name)
    }
}

/// Our function of this name, if `found` is the very one that it stands before: not where a third one lies between, which
/// may mean to call the C library's.
fn before(found: *mut c_void, name: *const c_char) -> Option<*mut c_void> {
    let [first, next] = [libc::RTLD_DEFAULT, libc::RTLD_NEXT].map(|from| look_up(from, name));
    if first.is_null() || next.is_null() {
        // What the program has not asked for has not failed.
        // SAFETY: no arguments.
        unsafe { libc::dlerror() };
        return None;
    }
    (next == found && first != found && is_ours(first)).then_some(first)
}

/// Whether an address is of this library.
fn is_ours(address: *mut c_void) -> bool {
    // Found out by several threads at once if need be: none may wait for another here, who may wait for the loader.
    static BASE: AtomicUsize = AtomicUsize::new(0);
    let base_of = |address: *const c_void| {
        // SAFETY: zeros are a valid structure to fill.
        unsafe {
            let mut about: libc::Dl_info = std::mem::zeroed();
            if libc::dladdr(address, &raw mut about) == 0 { 0 } else { about.dli_fbase.addr() }
        }
    };
    if BASE.load(Ordering::Relaxed) == 0 {
        BASE.store(base_of((&raw const REAL).cast()), Ordering::Relaxed);
    }
    BASE.load(Ordering::Relaxed) == base_of(address)
}
