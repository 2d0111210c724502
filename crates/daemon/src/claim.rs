//! One daemon for an interface.
//!
//! A claim is an abstract name in the network namespace of the interface (`unix(7)`), bound while the daemon lives: it
//! needs no directory, is seen by daemons of other mount namespaces and control sockets, and is free again however the
//! daemon ends. Any user may take such a name; who is neither root nor the user of this daemon is not believed.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// What a second daemon on an interface is told.
#[derive(Debug, thiserror::Error)]
#[error(
    "{name} is served by another daemon{}; stop that one first, or add what you want to its configuration",
    pid.map_or(String::new(), |pid| format!(", with pid {pid}"))
)]
pub struct Claimed {
    /// The interface.
    name: String,
    /// Who has it.
    pid: Option<u32>,
}

/// An interface is this daemon's.
#[derive(Debug)]
pub(crate) struct Claim {
    _socket: Option<OwnedFd>,
}

impl Claim {
    /// Claims the interface of this name. Where that is not possible for another reason than a daemon that has it, there
    /// is no claim, and no error.
    pub(crate) fn of(name: &str) -> Result<Claim, Claimed> {
        let claim = || -> io::Result<OwnedFd> {
            let socket = stream()?;
            rustix::net::bind(&socket, &address(name)?)?;
            rustix::net::listen(&socket, 128)?;
            Ok(socket)
        };
        match claim() {
            Ok(socket) => Ok(Claim { _socket: Some(socket) }),
            Err(error) if error.raw_os_error() == Some(Errno::ADDRINUSE.raw_os_error()) => {
                match holder(name) {
                    Ok((_, uid)) if uid != 0 && uid != rustix::process::geteuid().as_raw() => {
                        log::warn!("{name}: a program of user {uid} says that it serves it; not believed");
                        Ok(Claim { _socket: None })
                    }
                    Ok((pid, _)) => Err(Claimed { name: name.to_owned(), pid: Some(pid) }),
                    Err(_) => Err(Claimed { name: name.to_owned(), pid: None }),
                }
            }
            Err(error) => {
                log::warn!("{name}: a second daemon on it would not be noticed: {error}");
                Ok(Claim { _socket: None })
            }
        }
    }
}

/// Process and user of who has claimed an interface.
fn holder(name: &str) -> io::Result<(u32, u32)> {
    let socket = stream()?;
    rustix::net::connect(&socket, &address(name)?)?;
    let peer = rustix::net::sockopt::socket_peercred(&socket)?;
    Ok((peer.pid.as_raw_nonzero().get().cast_unsigned(), peer.uid.as_raw()))
}

fn stream() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn address(name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("scoutline/interface/{name}").as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::Claim;
    use crate::alone;

    #[test]
    fn an_interface_is_claimed_once_at_a_time() {
        let _alone = alone();
        let name = format!("test{}", std::process::id());
        let claim = Claim::of(&name).expect("nobody has it");
        // However often others ask.
        for _ in 0..5 {
            let refused = Claim::of(&name).expect_err("it is claimed").to_string();
            assert!(refused.starts_with(&format!("{name} is served by another daemon")), "{refused}");
        }
        assert!(Claim::of(&format!("{name}b")).is_ok());
        drop(claim);
        assert!(Claim::of(&name).is_ok());
    }

    #[test]
    fn who_has_an_interface_is_named() {
        let name = format!("named{}", std::process::id());
        let _claim = Claim::of(&name).expect("nobody has it");
        let refused = Claim::of(&name).expect_err("it is claimed").to_string();
        assert!(refused.contains(&format!("with pid {};", std::process::id())), "{refused}");
    }
}
