//! Calls about sockets that are the kernel's, and stay so: past the library under this process, which might put them
//! on paths. They are made by the C library's own `syscall`.

use std::ffi::{CStr, c_int, c_long, c_ulong, c_void};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use super::{aligned, check, owned};

/// The version that the C library's functions have had from the beginning.
#[cfg(target_arch = "x86_64")]
const OLDEST: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const OLDEST: &CStr = c"GLIBC_2.17";

type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;

/// Where `syscall` is in the object that has another of the C library's functions, one that no library replaces.
fn find() -> Option<Syscall> {
    const NONE: c_int = 0;
    // SAFETY: names end with zero, the structure is ours, and what is found is called by its own signature.
    unsafe {
        let known = libc::dlsym(libc::RTLD_DEFAULT, c"getppid".as_ptr());
        let mut found: libc::Dl_info = zeroed();
        if known.is_null() || libc::dladdr(known, &raw mut found) == NONE || found.dli_fname.is_null() {
            return None;
        }
        let library =
            libc::dlopen(CStr::from_ptr(found.dli_fname).as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        // By its version, since by the name alone the preload library may say itself.
        let function = libc::dlvsym(library, c"syscall".as_ptr(), OLDEST.as_ptr());
        (!function.is_null()).then(|| std::mem::transmute::<*mut c_void, Syscall>(function))
    }
}

fn call(number: c_long, arguments: [c_ulong; 5]) -> io::Result<c_int> {
    static FOUND: OnceLock<Syscall> = OnceLock::new();
    // Where nothing can be loaded nothing can be preloaded.
    let function = FOUND.get_or_init(|| find().unwrap_or(libc::syscall));
    let [a, b, c, d, e] = arguments;
    // SAFETY: each call below has pointers to what lives until it returns, and is as long as it says.
    check(unsafe { function(number, a, b, c, d, e) } as c_int)
}

fn number(fd: &OwnedFd) -> c_ulong {
    fd.as_raw_fd() as c_ulong
}

/// `socket`, of IPv4.
pub(crate) fn kernel_socket(kind: c_int) -> io::Result<OwnedFd> {
    owned(call(libc::SYS_socket, [libc::AF_INET as c_ulong, kind as c_ulong, 0, 0, 0])?)
}

fn with_name(which: c_long, fd: &OwnedFd, name: &[u8]) -> io::Result<()> {
    let (address, len) = aligned(name);
    call(which, [number(fd), (&raw const address).expose_provenance() as c_ulong, len.into(), 0, 0]).map(drop)
}

/// `bind`.
pub(crate) fn kernel_bind(fd: &OwnedFd, name: &[u8]) -> io::Result<()> {
    with_name(libc::SYS_bind, fd, name)
}

/// `connect`.
pub(crate) fn kernel_connect(fd: &OwnedFd, name: &[u8]) -> io::Result<()> {
    with_name(libc::SYS_connect, fd, name)
}

/// `listen`.
pub(crate) fn kernel_listen(fd: &OwnedFd, backlog: c_int) -> io::Result<()> {
    call(libc::SYS_listen, [number(fd), backlog as c_ulong, 0, 0, 0]).map(drop)
}

/// `accept4`: also who has connected, which what has been reset does not tell afterwards.
pub(crate) fn kernel_accept(fd: &OwnedFd, flags: c_int) -> io::Result<(OwnedFd, Vec<u8>)> {
    let mut name = vec![0u8; size_of::<libc::sockaddr_in>()];
    let mut len = name.len() as libc::socklen_t;
    let at =
        [name.as_mut_ptr().expose_provenance(), (&raw mut len).expose_provenance()].map(|at| at as c_ulong);
    let accepted = owned(call(libc::SYS_accept4, [number(fd), at[0], at[1], flags as c_ulong, 0])?)?;
    name.truncate(len as usize);
    Ok((accepted, name))
}

/// `setsockopt`.
pub(crate) fn kernel_set_option(fd: &OwnedFd, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    let at = value.as_ptr().expose_provenance() as c_ulong;
    call(libc::SYS_setsockopt, [number(fd), level as c_ulong, name as c_ulong, at, value.len() as c_ulong])
        .map(drop)
}

const fn step(code: u32, jump_if_not: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: jump_if_not, k }
}

const DROP: libc::sock_filter = step(libc::BPF_RET | libc::BPF_K, 0, 0);
const TAKE: libc::sock_filter = step(libc::BPF_RET | libc::BPF_K, 0, u32::MAX);

/// Where what is asked for stands: in TCP's header (RFC 9293 §3.1), with which begins what filters look at, and in that of
/// IPv4 (RFC 791 §3.1).
const FLAGS_AT: u32 = 13;
const TTL_AT: u32 = libc::SKF_NET_OFF.cast_unsigned() + 8;
const SYN: u32 = 2;
const RST: u32 = 4;

const fn load(at: u32) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, at)
}

/// Leaves out so many steps unless one of these bits is set.
const fn has(bits: u32, if_not: u8) -> libc::sock_filter {
    step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, if_not, bits)
}

const fn is(value: u8, if_not: u8) -> libc::sock_filter {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, if_not, value as u32)
}

/// A socket hears no reset from now on.
pub(crate) fn drop_resets(fd: &OwnedFd) -> io::Result<()> {
    attach(fd, &[load(FLAGS_AT), has(RST, 1), DROP, TAKE])
}

/// Has a socket of IPv4 get no packet any more that has this TTL.
pub(crate) fn drop_by_ttl(fd: &OwnedFd, ttl: u8) -> io::Result<()> {
    attach(fd, &[load(TTL_AT), is(ttl, 1), DROP, TAKE])
}

/// Has a socket of IPv4 get no SYN any more but those that have this TTL.
pub(crate) fn drop_syns_but(fd: &OwnedFd, ttl: u8) -> io::Result<()> {
    attach(fd, &[load(FLAGS_AT), has(SYN, 2), load(TTL_AT), is(ttl, 1), TAKE, DROP])
}

fn attach(fd: &OwnedFd, steps: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_ptr().cast_mut() };
    let at = (&raw const program).expose_provenance() as c_ulong;
    let (level, name) = (libc::SOL_SOCKET as c_ulong, libc::SO_ATTACH_FILTER as c_ulong);
    call(libc::SYS_setsockopt, [number(fd), level, name, at, size_of_val(&program) as c_ulong]).map(drop)
}
