//! A stream on paths and our end of its stand-in ([`super::standin`]): bytes and ends of both directions.
//!
//! ```text
//!                program writes, shuts, closes              peer sends, ends, resets
//!   our end      bytes, end, hang-up                        bytes, SHUT_WR, closed with something unread: ECONNRESET
//!   path         bytes, SHUT_WR, close (ABORT if unread)    bytes, end, error
//! ```
//!
//! Bytes are copied twice more than by a call: into the pair, and out of it. A direction waits while the other side of it has
//! no room, with one copy's bytes at most in hand.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering;

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, iovec, sockaddr_un, socklen_t};
use scoutline_abi::layout::slot_state as is;

use super::standin::End;
use super::{ALONE, ferry, standin};
use crate::slot::Socket;
use crate::{life, real, stream, table};

/// Copies of one direction before others have their turn.
pub(super) const ROUNDS: usize = 8;

/// A stream and its stand-in.
pub(super) struct Crossing {
    pub(super) socket: Socket,
    /// Our end of the pair.
    pub(super) inner: End,
    /// The program's end, by its file, and a number that it had.
    outer: (u64, c_int),
    to_path: Vec<u8>,
    to_program: Vec<u8>,
    /// Bytes that the path has, and so many are asked for: by whom (`ferry::flush`), and up to where.
    sent: u64,
    asked: (u32, u64),
    /// The program has shut what it reads, or closed, and some that came was for nobody.
    lost: bool,
    /// The program sends no more, and the path has been told.
    program_ended: bool,
    /// The peer sends no more, and the program has been told.
    path_ended: bool,
}

/// Which descriptors stand for sockets, once somebody has asked for it: to find out takes a look at all.
pub(super) type Known = Option<BTreeMap<u32, c_int>>;

/// What an advance has come to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Until the next event.
    Waits,
    /// It had its turn, and there is more.
    Again,
    /// Nothing will come any more.
    Over,
    /// Nor will it, and the program is to be told why ([`Crossing::tell_reset`]).
    Reset,
}

impl Crossing {
    /// Takes over a hold of the socket, and our end; `outer` is the program's, by its file and a number that it has.
    pub(super) fn new(socket: Socket, inner: End, outer: (u64, c_int)) -> Crossing {
        Crossing {
            socket,
            inner,
            outer,
            to_path: Vec::new(),
            to_program: Vec::new(),
            sent: 0,
            asked: (0, 0),
            lost: false,
            program_ended: false,
            path_ended: false,
        }
    }

    /// Our end goes to a listening stand-in.
    ///
    /// # Errors
    /// EAGAIN: it has no room.
    pub(super) fn connect(&self, name: &sockaddr_un, len: socklen_t) -> Result<(), c_int> {
        let connected = real::connect(self.inner.fd(), ptr::from_ref(name).cast(), len);
        if connected == 0 { Ok(()) } else { Err(real::errno()) }
    }

    /// Nobody has accepted it.
    pub(super) fn refuse(self) {
        self.socket.slot.linger_plus_one.store(1, Ordering::Relaxed);
        let _alone = ALONE.enter();
        self.socket.release();
    }

    pub(super) fn advance(&mut self, space: &mut [u8]) -> Progress {
        let outward = self.advance_outward(space);
        let is_over = matches!(outward, Progress::Over | Progress::Reset);
        let inward = if is_over { outward } else { self.advance_inward(space) };
        match (outward, inward) {
            (_, Progress::Over | Progress::Reset) => inward,
            (Progress::Waits, Progress::Waits) => Progress::Waits,
            _ => Progress::Again,
        }
    }

    /// From the program to the path.
    fn advance_outward(&mut self, space: &mut [u8]) -> Progress {
        for _ in 0..ROUNDS {
            if !self.to_path.is_empty() {
                match send_to_path(self.socket, &self.to_path) {
                    Ok(0) => return Progress::Waits,
                    Ok(sent) => {
                        drop(self.to_path.drain(..sent));
                        self.went(sent);
                    }
                    Err(_) => return Progress::Reset,
                }
                if !self.to_path.is_empty() {
                    continue;
                }
            }
            if self.program_ended {
                return if self.is_closed() { self.close() } else { Progress::Waits };
            }
            let got = real::recv(self.inner.fd(), space.as_mut_ptr().cast(), space.len(), MSG_DONTWAIT);
            match got {
                1.. => match send_to_path(self.socket, &space[..got as usize]) {
                    Ok(sent) => {
                        self.to_path.extend_from_slice(&space[sent..got as usize]);
                        self.went(sent);
                    }
                    Err(_) => return Progress::Reset,
                },
                0 if self.is_closed() => return self.close(),
                0 => {
                    self.program_ended = true;
                    life::shutdown(self.socket, libc::SHUT_WR);
                }
                _ if real::errno() == libc::EAGAIN => return Progress::Waits,
                _ => return self.abort(),
            }
        }
        Progress::Again
    }

    fn went(&mut self, sent: usize) {
        self.sent += sent as u64;
        ferry::went();
    }

    /// From the path to the program.
    fn advance_inward(&mut self, space: &mut [u8]) -> Progress {
        for _ in 0..ROUNDS {
            if !self.to_program.is_empty() {
                match self.send_to_program(&self.to_program) {
                    Some(0) => return Progress::Waits,
                    Some(sent) => drop(self.to_program.drain(..sent)),
                    None => {
                        self.to_program.clear();
                        self.lost = true;
                    }
                }
                if !self.to_program.is_empty() {
                    continue;
                }
            }
            if self.path_ended {
                // It may still be reset.
                return if self.socket.state() & is::FAILED == 0 { Progress::Waits } else { Progress::Reset };
            }
            let iov = [iovec { iov_base: space.as_mut_ptr().cast(), iov_len: space.len() }];
            match stream::receive(self.socket, &iov, MSG_DONTWAIT) {
                0 => {
                    self.path_ended = true;
                    real::shutdown(self.inner.fd(), libc::SHUT_WR);
                }
                got if got > 0 => {
                    let bytes = &space[..got as usize];
                    match self.send_to_program(bytes) {
                        Some(sent) => self.to_program.extend_from_slice(&bytes[sent..]),
                        None => self.lost = true,
                    }
                }
                failed if failed == -(libc::EAGAIN as isize) => return Progress::Waits,
                _ => return Progress::Reset,
            }
        }
        Progress::Again
    }

    /// `None`: it reads no more (SHUT_RD, or closed, which is seen elsewhere).
    fn send_to_program(&self, bytes: &[u8]) -> Option<usize> {
        let sent =
            real::send(self.inner.fd(), bytes.as_ptr().cast(), bytes.len(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if sent < 0 && real::errno() != libc::EAGAIN { None } else { Some(sent.max(0) as usize) }
    }

    /// The program has closed its last descriptor, or shut both directions.
    fn is_closed(&self) -> bool {
        self.inner.events(0) & libc::POLLHUP != 0
    }

    /// The program has closed, and all that it wrote is with the path. What it has not read resets the connection, as on
    /// Linux.
    fn close(&mut self) -> Progress {
        let has_all = !self.lost && self.to_program.is_empty() && self.socket.received() == 0;
        if has_all { Progress::Over } else { self.abort() }
    }

    /// The program has closed before it had read everything.
    fn abort(&mut self) -> Progress {
        self.socket.slot.linger_plus_one.store(1, Ordering::Relaxed);
        Progress::Over
    }

    /// The path is no more: ECONNRESET to the program, which an end of AF_UNIX says where the other one goes with something
    /// unread. So there is something.
    pub(super) fn tell_reset(&self, known: &mut Known) {
        let (file, number) = self.outer;
        let is_outer = |&fd: &c_int| table::is_kernels(fd) && real::inode(fd) == file;
        let found = match file {
            0 => known.get_or_insert_with(standin::descriptors).get(&self.socket.index).copied(),
            _ => Some(number).filter(is_outer).or_else(|| (0..=table::highest()).find(is_outer)),
        };
        let own = found.map_or(-1, |fd| real::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0));
        // The number may be another file's by now.
        if own >= 0 && standin::socket_of(own).is_some_and(|socket| socket.index == self.socket.index) {
            real::send(own, c"!".as_ptr().cast(), 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        }
        if own >= 0 {
            real::close_uncancelled(own);
        }
    }

    /// What the program had written when this was asked first is with the path.
    pub(super) fn is_flushed(&mut self, turn: u32) -> bool {
        if self.asked.0 != turn {
            let mut waiting: c_int = 0;
            real::ioctl(self.inner.fd(), libc::FIONREAD, (&raw mut waiting).expose_provenance());
            self.asked =
                (turn, self.sent + self.to_path.len() as u64 + u64::from(waiting.max(0).unsigned_abs()));
        }
        self.sent >= self.asked.1
    }
}

/// How much the path has taken; 0: it has no room.
fn send_to_path(socket: Socket, bytes: &[u8]) -> Result<usize, isize> {
    let iov = [iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
    match stream::send(socket, &iov, MSG_DONTWAIT | MSG_NOSIGNAL) {
        failed if failed == -(libc::EAGAIN as isize) => Ok(0),
        failed if failed < 0 => Err(failed),
        sent => Ok(sent as usize),
    }
}
