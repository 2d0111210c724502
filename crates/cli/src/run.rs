//! `scoutline run`: checks, then becomes the program.
//!
//! The environment tells the preload library what it needs: `SCOUTLINE_ATTACH` is the attach socket and
//! `SCOUTLINE_REQUIRED=1` makes it an error not to reach the daemon; with `--background`, `SCOUTLINE_BACKGROUND=1`
//! has it say so; with `--io-uring`, `SCOUTLINE_IO_URING` has it leave rings to the kernel (1), or refuse them (refuse).
//! Children inherit all of it, and the scheduling of threads and disk too. With `--trap` the program has none of it; its
//! supervisor does ([`crate::trap`]).

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, Shutdown, SocketType};

use crate::arguments::{IoUring, Run};
use crate::client::{connect, unreachable};
use crate::elf;
use crate::failure::{CANNOT_RUN, Failure, NOT_FOUND, plain};
use crate::trap;

const LIBRARY: &str = "libscoutline_preload.so";

pub(crate) fn run(arguments: &Run) -> Result<(), Failure> {
    let Some((name, rest)) = arguments.program.split_first() else {
        return Err(Failure::new(NOT_FOUND, "name a program after `--`"));
    };
    let program = elf::find(Path::new(name))?;
    let mut command = Command::new(&program);
    command.arg0(name).args(rest);
    let prepared = prepare(arguments, &program);
    if arguments.background {
        command.env("SCOUTLINE_BACKGROUND", "1");
        scoutline_daemon::lower_process()
            .map_err(|error| Failure::failed(format!("cannot lower the program: {}", plain(&error))))?;
    }
    match prepared {
        Ok(on_paths) if arguments.trap => trap::enter(&program, on_paths, arguments.background)?,
        Ok(on_paths) => {
            command.envs(on_paths);
            match arguments.io_uring {
                Some(IoUring::Kernel) => command.env("SCOUTLINE_IO_URING", "1"),
                Some(IoUring::Refuse) => command.env("SCOUTLINE_IO_URING", "refuse"),
                None => &mut command,
            };
            // The library refuses rings to who asks where it sees it. Without the privilege nobody does elsewhere.
            let is_unseen = arguments.io_uring.is_none() && scoutline_trap::dispatches().is_err();
            if arguments.io_uring == Some(IoUring::Refuse) || is_unseen {
                let _ = scoutline_trap::refuse_io_uring();
            }
        }
        // What can be had in idle time without us is had all the same.
        Err(failure) if arguments.background => eprintln!(
            "scoutline: {}: threads and disk in idle time only; its sockets are the kernel's, at their ordinary \
             priority: {}",
            program.display(),
            failure.message
        ),
        Err(failure) => return Err(failure),
    }
    let error = command.exec();
    let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN };
    Err(Failure::new(code, format!("cannot run {}: {}", program.display(), plain(&error))))
}

/// Sees that the program's sockets can be on paths; the environment that puts them there.
fn prepare(arguments: &Run, program: &Path) -> Result<[(&'static str, OsString); 3], Failure> {
    if !arguments.trap {
        elf::check(program)?;
    }
    let control =
        std::path::absolute(&arguments.control.control).unwrap_or(arguments.control.control.clone());
    let attach = scoutline_daemon::attach_path(&control);
    reach(&attach).map_err(|error| unreachable(&control, &error))?;
    let library = library()?;
    Ok([
        ("LD_PRELOAD", preload(&library, std::env::var_os("LD_PRELOAD").as_deref())),
        ("SCOUTLINE_ATTACH", attach.into_os_string()),
        ("SCOUTLINE_REQUIRED", "1".into()),
    ])
}

/// Whether a daemon listens, lets us in and is awake: it closes a connection that ends without a word. One that is
/// stopped would keep the program waiting for ever.
fn reach(attach: &Path) -> std::io::Result<()> {
    let socket = connect(attach, SocketType::SEQPACKET)?;
    rustix::net::shutdown(&socket, Shutdown::Write)?;
    let mut end = [PollFd::new(&socket, PollFlags::IN)];
    let soon = Timespec { tv_sec: 1, tv_nsec: 0 };
    if matches!(rustix::event::poll(&mut end, Some(&soon)), Ok(0)) {
        eprintln!("scoutline: waiting for the daemon at {}, which does not answer", attach.display());
    }
    // A word that comes all the same, a refusal, the library gets again.
    rustix::io::retry_on_intr(|| rustix::net::recv(&socket, &mut [0][..], RecvFlags::empty()))?;
    Ok(())
}

/// Where the preload library is.
pub(crate) fn library() -> Result<PathBuf, Failure> {
    let named = std::env::var_os("SCOUTLINE_PRELOAD").map(PathBuf::from);
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent);
    let places = match named {
        Some(named) => vec![named],
        None => beside.map_or_else(Vec::new, |directory| {
            vec![directory.join(LIBRARY), directory.join("../lib/scoutline").join(LIBRARY)]
        }),
    };
    let found = places.iter().find_map(|place| place.canonicalize().ok());
    let Some(found) = found else {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        let message = format!(
            "{LIBRARY} is missing (looked at {}); run `make build` or `make install`, or name it in SCOUTLINE_PRELOAD",
            places.join(", ")
        );
        return Err(Failure::failed(message));
    };
    // ld.so splits LD_PRELOAD at both.
    if found.as_os_str().as_bytes().iter().any(|byte| b": ".contains(byte)) {
        let message = format!("{} has a space or colon in its path; move it to one without", found.display());
        return Err(Failure::failed(message));
    }
    Ok(found)
}

/// Ours first: what is there stays.
fn preload(library: &Path, there: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    for other in there.unwrap_or_default().as_bytes().split(|byte| b": ".contains(byte)) {
        if !other.is_empty() && other != library.as_os_str().as_bytes() {
            value.push(":");
            value.push(OsStr::from_bytes(other));
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::preload;
    use std::path::Path;

    #[test]
    fn what_is_preloaded_already_stays_and_ours_comes_once() {
        let ours = Path::new("/l/ours.so");
        assert_eq!(preload(ours, None), "/l/ours.so");
        assert_eq!(preload(ours, Some("a.so /l/ours.so:b.so".as_ref())), "/l/ours.so:a.so:b.so");
    }
}
