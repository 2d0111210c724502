//! A datagram socket that is connected on paths, and our end of its stand-in ([`super::standin`]): a pair that keeps messages
//! apart (SOCK_SEQPACKET).
//!
//! Left out: what a router says of a datagram is told to nobody, and what stands beside a message is AF_UNIX's.

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, iovec};

use super::crossing::{Progress, ROUNDS};
use super::ferry;
use super::standin::End;
use crate::control::Said;
use crate::slot::Socket;
use crate::{attach, datagram, real};

/// A socket and its stand-in.
pub(super) struct Parcels {
    pub(super) socket: Socket,
    /// Our end of the pair.
    pub(super) inner: End,
    /// What the other side has no room for yet.
    to_path: Option<Vec<u8>>,
    to_program: Option<Vec<u8>>,
}

impl Parcels {
    /// Takes over a hold of the socket, and our end.
    pub(super) fn new(socket: Socket, inner: End) -> Parcels {
        Parcels { socket, inner, to_path: None, to_program: None }
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
            let got = real::recv(self.inner.fd(), space.as_mut_ptr().cast(), space.len(), MSG_DONTWAIT);
            match got {
                // An empty one, or the end of all.
                0 if self.inner.events(libc::POLLRDHUP) & libc::POLLHUP != 0 => return Progress::Over,
                0 if self.inner.events(libc::POLLRDHUP) != 0 => return Progress::Waits,
                0.. => {
                    let parcel = &space[..got as usize];
                    ferry::went();
                    if !send_to_path(self.socket, parcel) {
                        self.to_path = Some(parcel.to_vec());
                        return Progress::Waits;
                    }
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
                Ok(taken) => {
                    let parcel = &space[..taken.copied];
                    if !self.send_to_program(parcel) {
                        self.to_program = Some(parcel.to_vec());
                        return Progress::Waits;
                    }
                }
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
        real::send(self.inner.fd(), parcel.as_ptr().cast(), parcel.len(), flags) >= 0
            || real::errno() != libc::EAGAIN
    }

    /// What the program had written is with the path.
    pub(super) fn is_flushed(&self) -> bool {
        self.to_path.is_none() && self.inner.events(libc::POLLIN) & libc::POLLIN == 0
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
