//! Sockets on paths for programs that no library can be preloaded under: static ones, and Go's, whose system calls
//! pass the C library by (seccomp user notification: `seccomp_unotify(2)`).
//!
//! A *supervisor* process has the preload library under itself, so its sockets are on paths like any program's. The
//! program has, for each of its sockets, a socket of the kernel's: of a stream a TCP socket on the loopback interface,
//! of datagrams one end of a pair of AF_UNIX sockets. The supervisor has the other end and the *inner* socket, and moves
//! bytes between the two. So `read`, `write`, `poll`, `epoll`, `dup`, `close`, `fork`,
//! `exec`, SCM_RIGHTS and signals are the kernel's own and cost no trap. Only the calls that name addresses or
//! options are trapped, and answered by the supervisor with the inner socket.
//!
//! ```text
//!   program                     supervisor                                          daemon
//!   fd ── read, write ───────── peer ── stream, datagram ── inner ── shim, region ── path
//!   socket, bind, listen,   ┐
//!   connect, accept, …Name, ├── listener ── calls
//!   …Option, with addresses ┘
//! ```
//!
//! `filter` says which calls are trapped; `listener` takes and answers them; `target` is the program seen from
//! outside; `socket` is one of its sockets, `standin` what a stream's descriptor is; `calls` answers; `arrivals` has
//! connections that wait to be accepted; `passing` sees which sockets others get; `waits` has calls that wait, here or in
//! the kernel; `fetch` has those come back, by `fetchers`, and `signals` sees which of those here a signal would end; `stream` and `datagram` move; `supervisor` is the
//! loop.
//!
//! A program that changes memory while a call is answered harms itself: what is read is copied once, checked, and
//! used for its own sockets only.
//!
//! Left out on purpose: 32-bit programs and raw sockets (they keep the kernel's); SIOC… of the interface table on a
//! trapped socket; fast open.
#![allow(unsafe_code)] // system calls about other processes are this crate's subject; `sys` has them all

mod arrivals;
mod calls;
mod datagram;
mod fetch;
mod fetchers;
mod filter;
mod listener;
mod passing;
mod signals;
mod socket;
mod standin;
mod stream;
mod supervisor;
mod sys;
mod target;
mod waits;

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;

pub use filter::refuse_io_uring;

/// Whether system calls that programs make past the C library can be served under the preloaded library (Syscall User
/// Dispatch).
///
/// # Errors
/// What the kernel said; ENOSYS on other processors than x86-64.
pub fn dispatches() -> io::Result<()> {
    sys::try_dispatch()
}

/// The program's side, before `exec`: installs the filter and hands its listener to the supervisor that reads and
/// writes at the other ends of two pipes. Afterwards this process must make no trapped call but `exec`.
///
/// # Errors
/// What the kernel said; EOF when the supervisor ended.
pub fn enter(mut from_supervisor: impl Read, mut to_supervisor: impl Write) -> io::Result<()> {
    let mut word = [0; 4];
    from_supervisor.read_exact(&mut word)?;
    sys::let_read(u32::from_le_bytes(word));
    let (listener, stands) = filter::install()?;
    if !stands {
        eprintln!(
            "scoutline: on Linux before 5.19 a signal may end a trapped call while it is answered: what the call sent is \
             sent twice then, what it received is lost, or written where the program is not prepared for it. Use a newer \
             kernel for programs that handle signals."
        );
    }
    to_supervisor.write_all(&listener.as_raw_fd().to_le_bytes())?;
    from_supervisor.read_exact(&mut word)?;
    Ok(())
}

/// Whether the calling process can open connections for a program: some machines let only root put a filter on a socket.
pub fn can_connect() -> bool {
    let tried =
        sys::kernel_socket(libc::SOCK_STREAM | libc::SOCK_CLOEXEC).and_then(|fd| sys::drop_resets(&fd));
    !tried.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// The supervisor's side: answers the calls of process `pid` and of all that it starts, until all of them are gone
/// and what they wrote is with the paths.
///
/// # Errors
/// The listener cannot be had, or the loop cannot wait.
pub fn supervise(pid: u32, mut from_program: impl Read, mut to_program: impl Write) -> io::Result<()> {
    sys::raise_descriptor_limit();
    to_program.write_all(&std::process::id().to_le_bytes())?;
    let mut word = [0; 4];
    from_program.read_exact(&mut word)?;
    let number = i32::from_le_bytes(word);
    let process = sys::pidfd(pid)?;
    let listener = sys::take(&process, number)?;
    to_program.write_all(&word)?;
    drop((from_program, to_program, process));
    supervisor::Supervisor::new(listener)?.run()
}
