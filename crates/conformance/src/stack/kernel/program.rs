//! The thread that does the calls.

use std::collections::HashMap;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use scoutline_base::Address;

use crate::stack::{Answer, Op};

/// Descriptors by the script's number.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveFds(Arc<Mutex<HashMap<i32, i32>>>);

impl LiveFds {
    fn with<T>(&self, what: impl FnOnce(&mut HashMap<i32, i32>) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A number that the script never got is no descriptor.
    fn live(&self, script: i32) -> i32 {
        self.with(|fds| fds.get(&script).copied().unwrap_or(-1))
    }

    pub(super) fn all(&self) -> Vec<i32> {
        self.with(|fds| fds.values().copied().collect())
    }
}

/// Does what it is told until nobody is there to tell.
pub(super) fn program(
    orders: &Receiver<(Op, i32)>,
    answers: &Sender<(Instant, Answer)>,
    bell: &OwnedFd,
    fds: &LiveFds,
) {
    while let Ok((op, new_fd)) = orders.recv() {
        let answer = call(&op, new_fd, fds)
            .unwrap_or_else(|error| Answer::error(error.raw_os_error().unwrap_or(libc::EIO)));
        let _ = answers.send((Instant::now(), answer));
        // SAFETY: one byte from a constant.
        unsafe { libc::write(bell.as_raw_fd(), b"!".as_ptr().cast(), 1) };
    }
    for fd in fds.with(std::mem::take).into_values() {
        // SAFETY: the descriptor is the script's, and nobody uses it any more.
        unsafe { libc::close(fd) };
    }
}

fn checked(value: isize) -> io::Result<Answer> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(Answer::of(value as i64)) }
}

fn address(to: (Address, u16)) -> libc::sockaddr_in {
    // SAFETY: zeros are a valid address.
    let mut name: libc::sockaddr_in = unsafe { zeroed() };
    name.sin_family = libc::AF_INET as u16;
    name.sin_port = to.1.to_be();
    name.sin_addr.s_addr = to.0.low_bits().to_be();
    name
}

fn read_address(name: &libc::sockaddr_in) -> (Address, u16) {
    (Ipv4Addr::from_bits(u32::from_be(name.sin_addr.s_addr)).into(), u16::from_be(name.sin_port))
}

const NAME_LEN: u32 = size_of::<libc::sockaddr_in>() as u32;

#[allow(clippy::too_many_lines)] // one arm for each call
fn call(op: &Op, new_fd: i32, fds: &LiveFds) -> io::Result<Answer> {
    let live = |fd: &i32| fds.live(*fd);
    // SAFETY: each call gets pointers to locals of the right size that outlive it.
    unsafe {
        match op {
            Op::Socket { stream, non_blocking, .. } => {
                let kind = if *stream { libc::SOCK_STREAM } else { libc::SOCK_DGRAM };
                let flags = libc::SOCK_CLOEXEC | if *non_blocking { libc::SOCK_NONBLOCK } else { 0 };
                let fd = libc::socket(libc::AF_INET, kind | flags, 0);
                if fd >= 0 && *stream {
                    // The machine's default may be another one.
                    let name = b"cubic";
                    libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_ptr().cast(), 5);
                }
                made(fd, new_fd, fds, None)
            }
            Op::Bind { fd, at } => {
                let name = address(*at);
                checked(libc::bind(live(fd), (&raw const name).cast(), NAME_LEN) as isize)
            }
            Op::Listen { fd, backlog } => checked(libc::listen(live(fd), *backlog) as isize),
            Op::Accept { fd, non_blocking } => {
                let mut name = address((Address::UNSPECIFIED_V4, 0));
                let mut len = NAME_LEN;
                let flags = libc::SOCK_CLOEXEC | if *non_blocking { libc::SOCK_NONBLOCK } else { 0 };
                let accepted = libc::accept4(live(fd), (&raw mut name).cast(), &raw mut len, flags);
                made(accepted, new_fd, fds, Some(read_address(&name)))
            }
            Op::Connect { fd, to } => {
                let mut name = address(to.unwrap_or((Address::UNSPECIFIED_V4, 0)));
                if to.is_none() {
                    name.sin_family = libc::AF_UNSPEC as u16;
                }
                checked(libc::connect(live(fd), (&raw const name).cast(), NAME_LEN) as isize)
            }
            Op::Send { fd, data, flags, to, .. } => {
                let name = to.map(address);
                let at = name.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                let len = if to.is_some() { NAME_LEN } else { 0 };
                let flags = flags | libc::MSG_NOSIGNAL;
                checked(libc::sendto(live(fd), data.as_ptr().cast(), data.len(), flags, at.cast(), len))
            }
            Op::Receive { fd, len, flags } => {
                let mut bytes = vec![0u8; *len];
                let mut name = address((Address::UNSPECIFIED_V4, 0));
                let mut name_len = NAME_LEN;
                let (to, name_at) = (bytes.as_mut_ptr().cast(), (&raw mut name).cast());
                let got = libc::recvfrom(live(fd), to, *len, *flags, name_at, &raw mut name_len);
                let answer = checked(got)?;
                bytes.truncate(got as usize);
                let address = (name_len > 0).then(|| read_address(&name));
                Ok(Answer { bytes, address, ..answer })
            }
            Op::Close { fd } => match fds.with(|fds| fds.remove(fd)) {
                Some(live) => checked(libc::close(live) as isize),
                None => Err(io::Error::from_raw_os_error(libc::EBADF)),
            },
            Op::Shutdown { fd, how } => checked(libc::shutdown(live(fd), *how) as isize),
            Op::SetOption { fd, option, value } => {
                let (at, len) = (value.as_ptr().cast(), value.len() as u32);
                checked(libc::setsockopt(live(fd), option.0, option.1, at, len) as isize)
            }
            Op::GetOption { fd, option, len } => {
                let mut bytes = vec![0u8; *len];
                let mut given = *len as u32;
                let at = bytes.as_mut_ptr().cast();
                let answer =
                    checked(libc::getsockopt(live(fd), option.0, option.1, at, &raw mut given) as isize)?;
                bytes.truncate(given as usize);
                Ok(Answer { bytes, ..answer })
            }
            Op::Fcntl { fd, command, argument } => {
                checked(libc::fcntl(live(fd), *command, *argument) as isize)
            }
            Op::Ioctl { fd, request } => {
                let mut value = 0i32;
                let answer =
                    checked(libc::ioctl(live(fd), *request as libc::Ioctl, &raw mut value) as isize)?;
                Ok(Answer { bytes: value.to_ne_bytes().to_vec(), ..answer })
            }
            Op::Poll { fds: asked, timeout } => {
                let mut polled: Vec<libc::pollfd> = asked
                    .iter()
                    .map(|(fd, events)| libc::pollfd { fd: live(fd), events: *events, revents: 0 })
                    .collect();
                let ready = libc::poll(polled.as_mut_ptr(), polled.len() as u64, *timeout);
                let events = polled.iter().map(|entry| entry.revents).collect();
                Ok(Answer { events, ..checked(ready as isize)? })
            }
            Op::EpollCreate | Op::EpollControl { .. } | Op::EpollWait { .. } => {
                Err(io::Error::from_raw_os_error(libc::ENOSYS))
            }
            Op::Name { fd, peer } => {
                let mut name = address((Address::UNSPECIFIED_V4, 0));
                let mut len = NAME_LEN;
                let at = (&raw mut name).cast();
                let result = if *peer {
                    libc::getpeername(live(fd), at, &raw mut len)
                } else {
                    libc::getsockname(live(fd), at, &raw mut len)
                };
                Ok(Answer { address: Some(read_address(&name)), ..checked(result as isize)? })
            }
        }
    }
}

/// A new descriptor, under the script's number.
fn made(fd: i32, script: i32, fds: &LiveFds, address: Option<(Address, u16)>) -> io::Result<Answer> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    fds.with(|fds| fds.insert(script, fd));
    Ok(Answer { address, ..Answer::of(0) })
}
