//! The two listening sockets: made with their mode, refused when another daemon lives, removed at the end.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// How long to wait for descriptors to come back.
const PAUSE: Duration = Duration::from_millis(500);

/// Where programs attach: beside the control socket.
pub fn attach_path(control: &Path) -> PathBuf {
    let mut name = OsString::from(control);
    name.push(".attach");
    name.into()
}

/// Why a socket could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Another daemon answers there.
    #[error("{} is in use: a daemon is already running there, pid {pid}; stop it with `scoutline stop --control {}`, \
             or choose another socket with --control", path.display(), path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
        /// Who listens.
        pid: i32,
    },
    /// Something that is no socket has that name.
    #[error("{} exists and is no socket; remove it, or choose another with --control", path.display())]
    NotASocket {
        /// The name.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {action} {}: {}; check the directory and its permissions, or choose another with --control",
            path.display(), source)]
    System {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What it said.
        source: Errno,
    },
}

/// A listening socket with a name in the file system. The name goes with it.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Without descriptors to accept with, connections wait until then.
    closed_until: Cell<Option<Instant>>,
}

impl Listener {
    /// Listens at `path`; a name left by a daemon that has died is replaced.
    pub(crate) fn bind(
        path: &Path,
        kind: SocketType,
        mode: u32,
        group: Option<u32>,
    ) -> Result<Listener, SocketError> {
        let failed = |action| move |source| SocketError::System { action, path: path.to_owned(), source };
        if let Some(directory) = path.parent().filter(|directory| !directory.exists()) {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(|error| {
                let source = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                SocketError::System { action: "make the directory of", path: path.to_owned(), source }
            })?;
        }
        clear_stale(path, kind)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)
            .map_err(failed("make a socket for"))?;
        let address = SocketAddrUnix::new(path).map_err(failed("name a socket"))?;
        // Nobody can connect before `listen`, and by then mode and group are right.
        rustix::net::bind(&socket, &address).map_err(failed("listen at"))?;
        let listener = Listener { socket, path: path.to_owned(), closed_until: Cell::new(None) };
        if let Some(group) = group {
            rustix::fs::chown(path, None, Some(Gid::from_raw(group))).map_err(failed("give the group to"))?;
        }
        rustix::fs::chmod(path, Mode::from_bits_truncate(mode)).map_err(failed("set the mode of"))?;
        rustix::net::listen(&listener.socket, BACKLOG).map_err(failed("listen at"))?;
        Ok(listener)
    }

    /// Whether connections are taken now.
    pub(crate) fn is_open(&self) -> bool {
        self.closed_until.get().is_none_or(|until| until <= Instant::now())
    }

    /// The next connection; `None` when there is none (or no descriptor for it) now.
    pub(crate) fn accept(&self) -> Option<OwnedFd> {
        loop {
            match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(connection) => return Some(connection),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return None,
                Err(error) => {
                    log::warn!("cannot accept a connection at {}: {error}", self.path.display());
                    self.closed_until.set(Some(Instant::now() + PAUSE));
                    return None;
                }
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Whoever removed it before us has done our work.
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes what a dead daemon left; refuses when a live one answers.
fn clear_stale(path: &Path, kind: SocketType) -> Result<(), SocketError> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(SocketError::NotASocket { path: path.to_owned() });
    }
    let failed = |action| move |source| SocketError::System { action, path: path.to_owned(), source };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)
        .map_err(failed("make a socket for"))?;
    let address = SocketAddrUnix::new(path).map_err(failed("name a socket"))?;
    match rustix::net::connect(&probe, &address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(|error| {
            failed("remove the stale socket")(Errno::from_io_error(&error).unwrap_or(Errno::IO))
        }),
        // A full backlog (EAGAIN) means a live listener too.
        Ok(()) | Err(Errno::AGAIN) => {
            let pid = rustix::net::sockopt::socket_peercred(&probe)
                .map_or(0, |peer| peer.pid.as_raw_nonzero().get());
            Err(SocketError::InUse { path: path.to_owned(), pid })
        }
        Err(error) => Err(failed("ask who listens at")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Listener, SocketError, attach_path};
    use rustix::net::SocketType;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn stale_is_replaced_live_is_refused_and_the_name_goes() {
        let path = std::env::temp_dir().join(format!("scoutline-bind-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap()); // leaves its name, as a killed daemon does
        let listener = Listener::bind(&path, SocketType::STREAM, 0o640, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let refused = Listener::bind(&path, SocketType::STREAM, 0o640, None).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(&format!("pid {}", std::process::id())), "{text}");
        drop(listener);
        assert!(!path.exists());
        fs::write(&path, "x").unwrap();
        let refused = Listener::bind(&path, SocketType::STREAM, 0o640, None);
        assert!(matches!(refused, Err(SocketError::NotASocket { .. })));
        fs::remove_file(&path).unwrap();
        assert_eq!(attach_path("/run/c.sock".as_ref()).to_str(), Some("/run/c.sock.attach"));
    }
}
