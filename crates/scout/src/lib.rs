//! What a program asks of the paths of its sockets (DESIGN.md §6): class, priority, deadline, share,
//! background, extended path.
//!
//! The same as `include/scoutline.h`, which says what each option means and when it is refused: lowering oneself is
//! always allowed, rising needs a `[[permission]]` in the daemon's configuration.
//!
//! ```no_run
//! let stream = std::net::TcpStream::connect("10.0.0.2:80")?;
//! scoutline_scout::set_background(&stream, true)?;
//! match scoutline_scout::set_priority(&stream, Some(5)) {
//!     Err(error) if error.raw_os_error() == Some(libc::EPERM) => eprintln!("not allowed: it stays as it is"),
//!     other => other?,
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! All functions give the system's error: ENOPROTOOPT for a socket that is not on paths (in a program that was not
//! started by `scoutline run`, some kernels say EOPNOTSUPP), EPERM, ENOBUFS where the class cannot carry one more, ENOENT
//! for an unknown class, EINVAL for a value out of range.

#![allow(unsafe_code)] // two system calls

use std::ffi::{c_int, c_void};
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd};

/// The level of the options.
pub const SOL_SCOUT: c_int = 23_559;
/// Option: the class by name.
pub const SO_SCOUT_CLASS: c_int = 1;
/// Option: the priority, 0 to 63; -1: as the class says.
pub const SO_SCOUT_PRIORITY: c_int = 2;
/// Option: served only when nothing else has work.
pub const SO_BACKGROUND: c_int = 3;
/// Option: threads run at the priority of the path that they serve; -1: as the class says.
pub const SO_SCOUT_EXTEND: c_int = 4;
/// Option: by when what comes should be done, in microseconds, 100 to 60,000,000; -1: as the class says.
pub const SO_SCOUT_DEADLINE: c_int = 5;
/// Option: a fair share with this weight, 1 to 10,000; -1: as the class says.
pub const SO_SCOUT_WEIGHT: c_int = 6;
/// The longest name of a class that can be asked for, in bytes.
pub const CLASS_MAX: usize = 32;

/// Puts the socket into a class; `None`: the one that the rules give it.
///
/// # Errors
/// See the crate.
pub fn set_class(socket: impl AsFd, name: Option<&str>) -> Result<()> {
    set(socket, SO_SCOUT_CLASS, name.unwrap_or_default().as_bytes())
}

/// The class of now; a longer name is cut to [`CLASS_MAX`] bytes.
///
/// # Errors
/// See the crate.
pub fn class(socket: impl AsFd) -> Result<String> {
    let mut name = [0; CLASS_MAX + 1];
    let len = get(socket, SO_SCOUT_CLASS, &mut name)?;
    let name = &name[..len];
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(len);
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// Has the socket's path run at this priority, 0 to 63; `None`: that of its class.
///
/// # Errors
/// See the crate.
pub fn set_priority(socket: impl AsFd, priority: Option<u8>) -> Result<()> {
    set(socket, SO_SCOUT_PRIORITY, &priority.map_or(-1, c_int::from).to_ne_bytes())
}

/// The priority of now; `None` in the background.
///
/// # Errors
/// See the crate.
pub fn priority(socket: impl AsFd) -> Result<Option<u8>> {
    Ok(u8::try_from(get_int(socket, SO_SCOUT_PRIORITY)?).ok())
}

/// Has what comes to the socket done within so many microseconds (policy edf, or bert where its class has real-time work
/// there); `None`: as its class says.
///
/// # Errors
/// See the crate.
pub fn set_deadline_us(socket: impl AsFd, deadline_us: Option<u32>) -> Result<()> {
    let deadline_us = deadline_us.map_or(-1, |us| c_int::try_from(us).unwrap_or(c_int::MAX));
    set(socket, SO_SCOUT_DEADLINE, &deadline_us.to_ne_bytes())
}

/// The deadline of now, in microseconds, if there is one.
///
/// # Errors
/// See the crate.
pub fn deadline_us(socket: impl AsFd) -> Result<Option<u32>> {
    Ok(u32::try_from(get_int(socket, SO_SCOUT_DEADLINE)?).ok())
}

/// Has the socket served by a fair share with this weight (policy wfq), 1 to 10,000; `None`: as its class says.
///
/// # Errors
/// See the crate.
pub fn set_weight(socket: impl AsFd, weight: Option<u16>) -> Result<()> {
    set(socket, SO_SCOUT_WEIGHT, &weight.map_or(-1, c_int::from).to_ne_bytes())
}

/// The weight of now, if it has one.
///
/// # Errors
/// See the crate.
pub fn weight(socket: impl AsFd) -> Result<Option<u16>> {
    Ok(u16::try_from(get_int(socket, SO_SCOUT_WEIGHT)?).ok())
}

/// Has the socket served only when nothing else has work, or as its class says.
///
/// # Errors
/// See the crate.
pub fn set_background(socket: impl AsFd, on: bool) -> Result<()> {
    set(socket, SO_BACKGROUND, &c_int::from(on).to_ne_bytes())
}

/// Whether it is served only when nothing else has work.
///
/// # Errors
/// See the crate.
pub fn background(socket: impl AsFd) -> Result<bool> {
    Ok(get_int(socket, SO_BACKGROUND)? != 0)
}

/// Has the threads that serve the socket run at the priority of its path, or not; `None`: as its class says.
///
/// # Errors
/// See the crate.
pub fn set_extended(socket: impl AsFd, extended: Option<bool>) -> Result<()> {
    set(socket, SO_SCOUT_EXTEND, &extended.map_or(-1, c_int::from).to_ne_bytes())
}

/// Whether they do, where the daemon raises threads at all.
///
/// # Errors
/// See the crate.
pub fn extended(socket: impl AsFd) -> Result<bool> {
    Ok(get_int(socket, SO_SCOUT_EXTEND)? != 0)
}

fn set(socket: impl AsFd, option: c_int, value: &[u8]) -> Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let len = value.len() as libc::socklen_t;
    // SAFETY: `value` has `len` bytes, which are only read.
    let done = unsafe { libc::setsockopt(fd, SOL_SCOUT, option, value.as_ptr().cast::<c_void>(), len) };
    if done < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// How many bytes there are.
fn get(socket: impl AsFd, option: c_int, value: &mut [u8]) -> Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    let room = value.len();
    let mut len = room as libc::socklen_t;
    let to = value.as_mut_ptr().cast::<c_void>();
    // SAFETY: `value` has `len` bytes, of which no more are written.
    let done = unsafe { libc::getsockopt(fd, SOL_SCOUT, option, to, &raw mut len) };
    if done < 0 { Err(Error::last_os_error()) } else { Ok((len as usize).min(room)) }
}

fn get_int(socket: impl AsFd, option: c_int) -> Result<c_int> {
    let mut value = [0; size_of::<c_int>()];
    get(socket, option, &mut value)?;
    Ok(c_int::from_ne_bytes(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_does_not_know_the_level() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let datagram = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let refused = |result: Result<()>| {
            let errno = result.unwrap_err().raw_os_error();
            assert!(matches!(errno, Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP)), "{errno:?}");
        };
        refused(set_priority(&listener, Some(1)));
        refused(set_background(&datagram, true));
        refused(class(&listener).map(drop));
    }

    #[test]
    fn the_header_says_the_same() {
        let header = include_str!("../include/scoutline.h");
        for (name, value) in [
            ("SOL_SCOUT", SOL_SCOUT),
            ("SO_SCOUT_CLASS", SO_SCOUT_CLASS),
            ("SO_SCOUT_PRIORITY", SO_SCOUT_PRIORITY),
            ("SO_BACKGROUND", SO_BACKGROUND),
            ("SO_SCOUT_EXTEND", SO_SCOUT_EXTEND),
            ("SO_SCOUT_DEADLINE", SO_SCOUT_DEADLINE),
            ("SO_SCOUT_WEIGHT", SO_SCOUT_WEIGHT),
            ("SCOUT_CLASS_MAX", CLASS_MAX as c_int),
        ] {
            assert!(header.contains(&format!("#define {name} {value}\n")), "{name}");
        }
    }
}
