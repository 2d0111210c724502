//! A datagram socket that is connected on paths, and our end of its stand-in ([`super::standin`]): a pair that keeps messages
//! apart (SOCK_SEQPACKET).
//!
//! Left out: what a router says of a datagram is told to nobody, and what stands beside a message is AF_UNIX's.

use std::ffi::c_int;
use std::ptr;

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, iovec, pollfd};

use super::crossing::{Progress, ROUNDS};
use super::ferry;
use crate::control::Said;
use crate::slot::Socket;
use crate::{attach, datagram, own, real};

/// A socket and its stand-in.
pub(super) struct Parcels {
    socket: Socket,
    /// Our end of the pair.
    inner: c_int,
    /// What the other side has no room for yet.
    to_path: Option<Vec<u8>>,
    to_program: Option<Vec<u8>>,
}

impl Parcels {
    /// Takes over a hold of the socket, and our end.
    pub(super) fn new(socket: Socket, inner: c_int) -> Parcels {
        Parcels { socket, inner, to_path: None, to_program: None }
    }

    pub(super) fn socket(&self) -> Socket {
        self.socket
    }

    pub(super) fn inner(&self) -> c_int {
        self.inner
    }

    /// A descriptor of ours has another number.
    pub(super) fn relocated(&mut self, from: c_int, to: c_int) {
        if self.inner == from {
            self.inner = to;
        }
    }

    pub(super) fn advance(&mut self, space: &mut [u8]) -> Progress {
        match (self.advance_outward(space), self.advance_inward(space)) {
            (Progress::Over, _) | (_, Progress::Over) => Progress::Over,
            (Progress::Waits, Progress::Waits) => Progress::Waits,
            _ => Progress::Again,
        }
    }

    /// From the program to the path.
    fn advance_outward(&mut self, space: &mut [u8]) -> Progress {
        for _ in 0..ROUNDS {
            if let Some(parcel) = self.to_path.take()
                && !send_to_path(self.socket, &parcel)
            {
                self.to_path = Some(parcel);
                return Progress::Waits;
            }
            let got = real::recv(self.inner, space.as_mut_ptr().cast(), space.len(), MSG_DONTWAIT);
            match got {
                // An empty one, or the end of all.
                0 if self.events(libc::POLLRDHUP) & libc::POLLHUP != 0 => return Progress::Over,
                0 if self.events(libc::POLLRDHUP) != 0 => return Progress::Waits,
                0.. => {
                    self.to_path = Some(space[..got as usize].to_vec());
                    ferry::went();
                }
                _ if real::errno() == libc::EAGAIN => return Progress::Waits,
                _ => return Progress::Over,
            }
        }
        Progress::Again
    }

    /// From the path to the program.
    fn advance_inward(&mut self, space: &mut [u8]) -> Progress {
        for _ in 0..ROUNDS {
            if let Some(parcel) = self.to_program.take()
                && !self.send_to_program(&parcel)
            {
                self.to_program = Some(parcel);
                return Progress::Waits;
            }
            let iov = [iovec { iov_base: space.as_mut_ptr().cast(), iov_len: space.len() }];
            match datagram::receive(self.socket, &iov, MSG_DONTWAIT) {
                Ok(taken) => self.to_program = Some(space[..taken.copied].to_vec()),
                Err(_) if attach::dead() => return Progress::Over,
                Err(libc::EAGAIN) => return Progress::Waits,
                Err(_) => {} // of one that was sent: the next is whole
            }
        }
        Progress::Again
    }

    /// False: there is no room. Who reads no more gets nothing.
    fn send_to_program(&self, parcel: &[u8]) -> bool {
        let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
        real::send(self.inner, parcel.as_ptr().cast(), parcel.len(), flags) >= 0
            || real::errno() != libc::EAGAIN
    }

    /// What the program had written is with the path.
    pub(super) fn is_flushed(&self) -> bool {
        self.to_path.is_none() && self.events(libc::POLLIN) & libc::POLLIN == 0
    }

    fn events(&self, events: i16) -> i16 {
        let mut fds = [pollfd { fd: self.inner, events, revents: 0 }];
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        real::ppoll(fds.as_mut_ptr(), 1, &raw const zero, ptr::null());
        fds[0].revents
    }
}

impl Drop for Parcels {
    fn drop(&mut self) {
        own::discard(self.inner);
    }
}

/// False: there is no room, and the path tells when there is. What it does not take for another reason is lost.
fn send_to_path(socket: Socket, parcel: &[u8]) -> bool {
    let iov = [iovec { iov_base: parcel.as_ptr().cast_mut().cast(), iov_len: parcel.len() }];
    let out = libc::EPOLLOUT as u32;
    loop {
        let sent = datagram::send(socket, &iov, None, &Said::default(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if sent != -(libc::EAGAIN as isize) {
            return true;
        }
        if socket.readiness(out) & out == 0 {
            return false;
        }
    }
}
