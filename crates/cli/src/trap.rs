//! `scoutline run --trap`: the program's calls about sockets are trapped, and a supervisor answers them.
//!
//! ```text
//! run ──▶ supervise --detach ──▶ supervise      with the preload library; a child of nobody here, so that the
//!  │            (ends at once)        │         program never waits for it, and in a process group of its own
//!  │◀────────── its pid ──────────────┤
//!  │ installs the filter              │
//!  ├─────────── listener ────────────▶│
//!  │◀────────── taken ────────────────┤
//!  ▼ exec                             ▼ answers until the program and all that it started are gone
//! ```

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::{CANNOT_RUN, Failure, plain};

/// How the first child tells the second one what to preload; it must not have it under itself.
const PRELOAD: &str = "SCOUTLINE_TRAP_PRELOAD";
/// For the daemon: whose sockets these are (`crates/preload`).
const PROGRAM: &str = "SCOUTLINE_PROGRAM";

/// Has the calls of this process trapped from now on; `environment` puts a process on paths.
pub(crate) fn enter(
    program: &Path,
    environment: [(&'static str, OsString); 3],
    background: bool,
) -> Result<(), Failure> {
    if cfg!(target_feature = "crt-static") {
        let why = "this `scoutline` is statically linked, and so is the supervisor, which has to load the library for \
                   preloading; use one that is linked dynamically";
        return Err(Failure::new(CANNOT_RUN, format!("cannot trap {}: {why}", program.display())));
    }
    let failed = |what: &str, error: &io::Error| {
        Failure::new(CANNOT_RUN, format!("cannot trap {}: {what}: {}", program.display(), plain(error)))
    };
    let started = || -> io::Result<(io::PipeReader, io::PipeWriter)> {
        let (from_supervisor, theirs_out) = io::pipe()?;
        let (theirs_in, to_supervisor) = io::pipe()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["supervise", "--detach", &std::process::id().to_string()]);
        for (name, value) in environment {
            command.env(if name == "LD_PRELOAD" { PRELOAD } else { name }, value);
        }
        if background {
            command.env("SCOUTLINE_BACKGROUND", "1");
        }
        command.env(PROGRAM, program.file_name().unwrap_or_default());
        command.stdin(Stdio::from(OwnedFd::from(theirs_in)));
        command.stdout(Stdio::from(OwnedFd::from(theirs_out)));
        command.status()?;
        Ok((from_supervisor, to_supervisor))
    };
    let (from_supervisor, to_supervisor) =
        started().map_err(|error| failed("its supervisor does not start", &error))?;
    scoutline_trap::enter(from_supervisor, to_supervisor).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => failed("its supervisor has ended; what it said stands above", &error),
        _ => failed(
            "no filter with notifications (Linux 5.14, seccomp(2)); another debugger may have one",
            &error,
        ),
    })
}

/// The supervisor, or with `detach` who starts it.
pub(crate) fn supervise(pid: u32, detach: bool) -> Result<(), Failure> {
    if detach {
        return detached(pid)
            .map_err(|error| Failure::failed(format!("cannot start the supervisor: {}", plain(&error))));
    }
    if !scoutline_trap::can_connect() {
        eprintln!(
            "scoutline: warn: connections that this program opens will fail (EPERM): this machine lets only root put \
             filters on sockets (SO_ATTACH_FILTER), which --trap needs for them; run it as root"
        );
    }
    // Not buffered, as those of the library are.
    let file = |end: BorrowedFd<'_>| end.try_clone_to_owned().map(File::from);
    let ended = file(io::stdin().as_fd())
        .and_then(|from_program| scoutline_trap::supervise(pid, from_program, file(io::stdout().as_fd())?));
    ended.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "; it may not look into the program: see ptrace(2), ptrace_scope"
            }
            _ => "",
        };
        Failure::failed(format!("the supervisor of process {pid} ends: {}{hint}", plain(&error)))
    })
}

fn detached(pid: u32) -> io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["supervise", &pid.to_string()]).process_group(0);
    if let Some(library) = std::env::var_os(PRELOAD) {
        command.env("LD_PRELOAD", library).env_remove(PRELOAD);
    }
    command.spawn().map(drop)
}
