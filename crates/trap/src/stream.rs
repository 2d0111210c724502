//! A connected stream: bytes between the program's pair and the path, both ways, each waiting for the other's room.
//!
//! Ends are carried over: of a direction (`shutdown`), of the program's last descriptor (`close`), and resets, which
//! the program sees as ECONNRESET whatever the path said.

use std::io::ErrorKind::{ConnectionReset, WouldBlock};
use std::os::fd::OwnedFd;

use crate::sys;

/// Reads of one direction before others have their turn.
const ROUNDS: usize = 8;

/// What is on its way.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    to_path: Vec<u8>,
    to_program: Vec<u8>,
    /// The program writes no more, and the path has been told.
    program_ended: bool,
    /// The path brings no more, and the program has been told.
    path_ended: bool,
    /// The program's end is closed, or shut in both directions.
    gone: bool,
}

/// Where a stream stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Open,
    /// Both directions have ended well, or the program has closed and all of its bytes are with the path.
    Done,
    /// The path is gone, with this errno.
    Reset(i32),
    /// The program has closed without reading everything: as TCP does then, the connection is reset.
    Abandoned,
}

impl Stream {
    /// See [`crate::socket::Socket::interest`].
    pub(crate) fn interest(&self) -> (Option<u32>, Option<u32>) {
        let (input, output) = (libc::EPOLLIN as u32, libc::EPOLLOUT as u32);
        let mut peer = if self.to_path.is_empty() && !self.program_ended { input } else { 0 };
        // A path that has ended one direction may still be reset; while bytes wait for the program that has time.
        let mut inner = match (self.to_program.is_empty(), self.path_ended) {
            (true, false) => Some(input),
            (true, true) if !self.program_ended => Some(0),
            _ => None,
        };
        if !self.to_program.is_empty() {
            peer |= output;
        }
        // Of a closed end nothing more is told: what is left is read as the path takes it.
        if !self.to_path.is_empty() || self.gone {
            inner = Some(inner.unwrap_or(0) | output);
        }
        (Some(peer).filter(|_| !self.gone), inner)
    }

    /// Moves what can be moved. `hung_up`: the pair was seen to be.
    pub(crate) fn advance(
        &mut self,
        peer: &OwnedFd,
        inner: &OwnedFd,
        hung_up: bool,
        space: &mut [u8],
    ) -> Progress {
        self.gone |= hung_up;
        let outward = self.advance_outward(peer, inner, space);
        if outward != Progress::Open {
            return outward;
        }
        if self.gone {
            return if self.program_ended { Progress::Done } else { Progress::Open };
        }
        let inward = self.advance_inward(peer, inner, space);
        if inward != Progress::Open {
            return inward;
        }
        let empty = self.to_path.is_empty() && self.to_program.is_empty();
        if self.program_ended && self.path_ended && empty { Progress::Done } else { Progress::Open }
    }

    fn advance_outward(&mut self, peer: &OwnedFd, inner: &OwnedFd, space: &mut [u8]) -> Progress {
        for _ in 0..ROUNDS {
            if !self.to_path.is_empty() {
                match sys::send(inner, &self.to_path) {
                    Ok(sent) => drop(self.to_path.drain(..sent)),
                    Err(error) if error.kind() == WouldBlock => break,
                    Err(error) => return Progress::Reset(sys::errno(&error)),
                }
                if !self.to_path.is_empty() {
                    break;
                }
            }
            if self.program_ended {
                break;
            }
            match sys::receive(peer, space, 0) {
                Ok(0) => {
                    self.program_ended = true;
                    self.gone |= sys::hung_up(peer);
                    if !self.gone {
                        // That the connection has ended meanwhile is seen elsewhere.
                        let _ = sys::shutdown(inner, libc::SHUT_WR);
                    }
                }
                Ok(len) => match sys::send(inner, &space[..len]) {
                    Ok(sent) => self.to_path.extend_from_slice(&space[sent..len]),
                    Err(error) if error.kind() == WouldBlock => self.to_path.extend_from_slice(&space[..len]),
                    Err(error) => return Progress::Reset(sys::errno(&error)),
                },
                Err(error) if error.kind() == ConnectionReset => return Progress::Abandoned,
                Err(_) => break,
            }
        }
        Progress::Open
    }

    fn advance_inward(&mut self, peer: &OwnedFd, inner: &OwnedFd, space: &mut [u8]) -> Progress {
        for _ in 0..ROUNDS {
            if !self.to_program.is_empty() {
                match sys::send(peer, &self.to_program) {
                    Ok(sent) => drop(self.to_program.drain(..sent)),
                    Err(error) if error.kind() == WouldBlock => break,
                    Err(_) if sys::hung_up(peer) => return Progress::Abandoned,
                    // The program has shut this direction only: what comes is read and forgotten.
                    Err(_) => self.to_program.clear(),
                }
                if !self.to_program.is_empty() {
                    break;
                }
            }
            if self.path_ended {
                if !self.program_ended {
                    // Taken in any case: an error that does not end the path would wake us for ever.
                    let error = sys::pending_error(inner);
                    if sys::hung_up(inner) {
                        return Progress::Reset(error);
                    }
                }
                break;
            }
            match sys::receive(inner, space, 0) {
                Ok(0) => {
                    self.path_ended = true;
                    let _ = sys::shutdown(peer, libc::SHUT_WR);
                }
                Ok(len) => self.to_program.extend_from_slice(&space[..len]),
                Err(error) if error.kind() == WouldBlock => break,
                Err(error) => return Progress::Reset(sys::errno(&error)),
            }
        }
        Progress::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bed {
        stream: Stream,
        peer: OwnedFd,
        inner: OwnedFd,
        program: Option<OwnedFd>,
        path: Option<OwnedFd>,
        space: Vec<u8>,
    }

    impl Bed {
        /// A pair stands for the path as well.
        fn new() -> Bed {
            let (peer, program) = sys::pair(libc::SOCK_STREAM).unwrap();
            let (inner, path) = sys::pair(libc::SOCK_STREAM).unwrap();
            let (program, path) = (Some(program), Some(path));
            Bed { stream: Stream::default(), peer, inner, program, path, space: vec![0; 65536] }
        }

        fn program(&self) -> &OwnedFd {
            self.program.as_ref().unwrap()
        }

        fn path(&self) -> &OwnedFd {
            self.path.as_ref().unwrap()
        }

        fn advance(&mut self) -> Progress {
            let hung_up = sys::hung_up(&self.peer);
            self.stream.advance(&self.peer, &self.inner, hung_up, &mut self.space)
        }
    }

    fn read(fd: &OwnedFd) -> Result<Vec<u8>, i32> {
        let mut space = vec![0; 65536];
        let len = sys::receive(fd, &mut space, 0).map_err(|error| sys::errno(&error))?;
        space.truncate(len);
        Ok(space)
    }

    #[test]
    fn bytes_and_ends_of_both_directions_are_carried_over() {
        let mut bed = Bed::new();
        sys::send(bed.program(), b"question").unwrap();
        sys::shutdown(bed.program(), libc::SHUT_WR).unwrap();
        assert_eq!(bed.advance(), Progress::Open);
        assert_eq!(read(bed.path()).unwrap(), b"question");
        assert_eq!(read(bed.path()).unwrap(), b"");
        sys::send(bed.path(), b"answer").unwrap();
        assert_eq!(bed.advance(), Progress::Open);
        assert_eq!(read(bed.program()).unwrap(), b"answer");
        sys::shutdown(bed.path(), libc::SHUT_WR).unwrap();
        assert_eq!(bed.advance(), Progress::Done);
        assert_eq!(read(bed.program()).unwrap(), b"");
    }

    #[test]
    fn a_closed_program_s_bytes_arrive_however_slow_the_path_is() {
        let mut bed = Bed::new();
        let (mut sent, chunk) = (0, vec![7; 4096]);
        // More than the path holds: the pair and the path are both full.
        loop {
            match sys::send(bed.program(), &chunk) {
                Ok(len) => sent += len,
                Err(_) if bed.stream.to_path.is_empty() => assert_eq!(bed.advance(), Progress::Open),
                Err(_) => break,
            }
        }
        bed.program = None;
        let mut received = 0;
        loop {
            let progress = bed.advance();
            let (peer, inner) = bed.stream.interest();
            assert!(peer.is_none() && inner.unwrap() & libc::EPOLLOUT as u32 != 0);
            while let Ok(bytes) = read(bed.path()) {
                received += bytes.len();
            }
            if progress == Progress::Done {
                break;
            }
        }
        assert_eq!(received, sent);
    }

    #[test]
    fn a_program_that_closes_without_reading_abandons() {
        let mut bed = Bed::new();
        sys::send(bed.path(), b"unread").unwrap();
        assert_eq!(bed.advance(), Progress::Open);
        bed.program = None;
        assert_eq!(bed.advance(), Progress::Abandoned);
    }

    #[test]
    fn a_direction_that_the_program_has_shut_is_read_and_forgotten() {
        let mut bed = Bed::new();
        sys::shutdown(bed.program(), libc::SHUT_RD).unwrap();
        sys::send(bed.path(), b"forgotten").unwrap();
        assert_eq!(bed.advance(), Progress::Open);
        sys::send(bed.program(), b"still heard").unwrap();
        assert_eq!(bed.advance(), Progress::Open);
        assert_eq!(read(bed.path()).unwrap(), b"still heard");
    }

    #[test]
    fn a_reset_path_says_so() {
        let mut bed = Bed::new();
        sys::send(&bed.inner, b"unread").unwrap();
        bed.path = None;
        assert_eq!(bed.advance(), Progress::Reset(libc::ECONNRESET));
    }
}
