//! A connected stream: bytes between the program's stand-in and the path, both ways, each waiting for the other's room.
//!
//! Ends are carried over: of a direction (`shutdown`), of the program's last descriptor (`close`), and resets; and
//! urgent bytes, at their places: both of our ends have SO_OOBINLINE, so that what is read ends before the mark.

use std::io;
use std::os::fd::OwnedFd;

use crate::sys;

/// Reads of one direction before others have their turn.
pub(crate) const ROUNDS: usize = 8;

/// What is on its way.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    to_path: Lane,
    to_program: Lane,
    /// What the path has said that the program is still to hear; its bytes are in `to_program`.
    heard: Option<io::Result<usize>>,
    /// The program writes no more, and the path has been told.
    program_ended: bool,
    /// The path brings no more, and the program has been told.
    path_ended: bool,
    /// The program's last descriptor is closed.
    gone: bool,
}

/// What has been read of one direction and is not written yet.
#[derive(Debug, Default)]
struct Lane {
    bytes: Vec<u8>,
    /// What comes after them.
    urgent: Option<u8>,
}

impl Lane {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.urgent.is_none()
    }

    /// Writes what is there: whether that was all.
    fn flush(&mut self, to: &OwnedFd) -> io::Result<bool> {
        if !self.bytes.is_empty() {
            match sys::send(to, &self.bytes, 0) {
                Ok(sent) => drop(self.bytes.drain(..sent)),
                Err(error) if would_block(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if self.bytes.is_empty()
            && let Some(byte) = self.urgent
        {
            match sys::send(to, &[byte], libc::MSG_OOB) {
                Ok(_) => self.urgent = None,
                Err(error) if would_block(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.is_empty())
    }

    /// Reads as much as comes before an urgent byte, or that byte: how much; 0: the end.
    fn fill(&mut self, from: &OwnedFd, space: &mut [u8]) -> io::Result<usize> {
        // Something is there before the mark is looked at: so none comes in between to the place where we read.
        let events = sys::events(from, libc::POLLIN | libc::POLLPRI);
        if events == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if events & libc::POLLPRI != 0 && sys::at_mark(from) {
            let len = sys::receive(from, &mut space[..1], 0)?;
            self.urgent = space[..len].first().copied();
            return Ok(len);
        }
        let len = sys::receive(from, space, 0)?;
        self.bytes.extend_from_slice(&space[..len]);
        Ok(len)
    }
}

/// Where a stream stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Open,
    /// Both directions have ended well, or the program has closed and all of its bytes are with the path.
    Done,
    /// The path is gone, with this errno.
    Reset(i32),
    /// The program's end has reset the connection, for what TCP does so: it was closed before everything was read, or
    /// it has shut both directions and got more.
    Abandoned,
}

impl Stream {
    /// See [`crate::socket::Socket::interest`].
    pub(crate) fn interest(&self) -> (Option<u32>, Option<u32>) {
        let (input, output) = (libc::EPOLLIN as u32, libc::EPOLLOUT as u32);
        if self.gone && self.program_ended {
            return (None, Some(output));
        }
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
        if !self.to_path.is_empty() {
            inner = Some(inner.unwrap_or(0) | output);
        }
        // Of an end that has nothing more to do, that it has ended would be told for ever.
        (Some(peer).filter(|_| !(self.program_ended && self.path_ended)), inner)
    }

    /// The program has closed its last descriptor: what it has written is still to come, and then its end.
    pub(crate) fn on_closed(&mut self) {
        self.gone = true;
    }

    /// Whether it has.
    pub(crate) fn is_closed(&self) -> bool {
        self.gone
    }

    /// Takes what the path has brought: whether there is something. The program has it by the next [`Stream::advance`], so
    /// that the caller may see to what came before it.
    pub(crate) fn hear(&mut self, inner: &OwnedFd, space: &mut [u8]) -> bool {
        let is_over = self.path_ended || self.gone && self.program_ended;
        if self.heard.is_none() && self.to_program.is_empty() && !is_over {
            let heard = self.to_program.fill(inner, space);
            self.heard = Some(heard).filter(|heard| !heard.as_ref().is_err_and(would_block));
        }
        self.heard.is_some()
    }

    /// What the path has brought has no room with the program.
    pub(crate) fn is_full(&self) -> bool {
        !self.to_program.is_empty()
    }

    /// Moves what can be moved, to the program only what has been heard.
    pub(crate) fn advance(&mut self, peer: &OwnedFd, inner: &OwnedFd, space: &mut [u8]) -> Progress {
        let outward = match (self.advance_outward(peer, inner, space), &self.heard) {
            // The path says once why it has ended, and said it there.
            (Progress::Reset(_), Some(Err(error))) => Progress::Reset(sys::errno(error)),
            (outward, _) => outward,
        };
        if outward != Progress::Open {
            return outward;
        }
        if self.gone && self.program_ended {
            // What it had not read of its own end resets that one; what has not come so far nobody reads either.
            let unread = !self.to_program.is_empty();
            return match (self.to_path.is_empty(), unread) {
                (false, _) => Progress::Open,
                (true, true) => Progress::Abandoned,
                (true, false) => Progress::Done,
            };
        }
        let inward = self.advance_inward(peer, inner);
        if inward != Progress::Open {
            return inward;
        }
        let empty = self.to_path.is_empty() && self.to_program.is_empty();
        if self.program_ended && self.path_ended && empty { Progress::Done } else { Progress::Open }
    }

    fn advance_outward(&mut self, peer: &OwnedFd, inner: &OwnedFd, space: &mut [u8]) -> Progress {
        for _ in 0..ROUNDS {
            match self.to_path.flush(inner) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Progress::Reset(sys::errno(&error)),
            }
            if self.program_ended {
                if sys::pending_error(peer) != 0 {
                    return Progress::Abandoned;
                }
                break;
            }
            match self.to_path.fill(peer, space) {
                Ok(0) => {
                    self.program_ended = true;
                    if !self.gone {
                        // That the connection has ended meanwhile is seen elsewhere.
                        let _ = sys::shutdown(inner, libc::SHUT_WR);
                    }
                }
                Ok(_) => {}
                Err(error) if would_block(&error) => break,
                Err(_) => return Progress::Abandoned,
            }
        }
        Progress::Open
    }

    fn advance_inward(&mut self, peer: &OwnedFd, inner: &OwnedFd) -> Progress {
        match self.to_program.flush(peer) {
            Ok(true) => {}
            Ok(false) => return Progress::Open,
            Err(_) => return Progress::Abandoned,
        }
        match self.heard.take() {
            Some(Ok(0)) => {
                self.path_ended = true;
                let _ = sys::shutdown(peer, libc::SHUT_WR);
            }
            Some(Err(error)) => return Progress::Reset(sys::errno(&error)),
            Some(Ok(_)) | None => {}
        }
        if self.path_ended && !self.program_ended {
            // Taken in any case: an error that does not end the path would wake us for ever.
            let error = sys::pending_error(inner);
            if sys::hung_up(inner) {
                return Progress::Reset(error);
            }
        }
        Progress::Open
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standin;

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
            let outer = standin::socket(0).unwrap();
            let (peer, _) = standin::knock(&standin::listen(&outer).unwrap()).unwrap();
            let (program, _) = standin::open(&outer, 0, false).unwrap();
            let (inner, path) = sys::pair(libc::SOCK_STREAM).unwrap();
            let (program, path) = (Some(program), Some(path));
            Bed { stream: Stream::default(), peer, inner, program, path, space: vec![0; 65536] }
        }

        fn close(&mut self) {
            self.program = None;
            self.stream.on_closed();
        }

        fn program(&self) -> &OwnedFd {
            self.program.as_ref().unwrap()
        }

        fn path(&self) -> &OwnedFd {
            self.path.as_ref().unwrap()
        }

        fn advance(&mut self) -> Progress {
            self.stream.hear(&self.inner, &mut self.space);
            self.stream.advance(&self.peer, &self.inner, &mut self.space)
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
        sys::send(bed.program(), b"question", 0).unwrap();
        sys::shutdown(bed.program(), libc::SHUT_WR).unwrap();
        assert_eq!(bed.advance(), Progress::Open);
        assert_eq!(read(bed.path()).unwrap(), b"question");
        assert_eq!(read(bed.path()).unwrap(), b"");
        sys::send(bed.path(), b"answer", 0).unwrap();
        assert_eq!(bed.advance(), Progress::Open);
        assert_eq!(read(bed.program()).unwrap(), b"answer");
        sys::shutdown(bed.path(), libc::SHUT_WR).unwrap();
        assert_eq!(bed.advance(), Progress::Done);
        assert_eq!(read(bed.program()).unwrap(), b"");
    }

    /// The program's urgent byte goes to a socket of TCP, where it is urgent, too.
    #[test]
    fn urgent_bytes_stay_urgent_and_in_their_places() {
        let mut bed = Bed::new();
        let outer = standin::socket(0).unwrap();
        let (inner, _) = standin::knock(&standin::listen(&outer).unwrap()).unwrap();
        let (path, _) = standin::open(&outer, 0, false).unwrap();
        (bed.inner, bed.path) = (inner, Some(path));
        sys::send(bed.program(), b"before", 0).unwrap();
        sys::send(bed.program(), b"!", libc::MSG_OOB).unwrap();
        sys::send(bed.program(), b"after", 0).unwrap();
        assert_eq!(bed.advance(), Progress::Open);
        assert_eq!(read(bed.path()).unwrap(), b"before");
        let mut byte = [0];
        assert_eq!(sys::receive(bed.path(), &mut byte, libc::MSG_OOB).unwrap(), 1);
        assert_eq!(byte, *b"!");
        assert_eq!(read(bed.path()).unwrap(), b"after");
    }

    #[test]
    fn a_closed_program_s_bytes_arrive_however_slow_the_path_is() {
        let mut bed = Bed::new();
        let (mut sent, chunk) = (0, vec![7; 4096]);
        // More than the path holds: the pair and the path are both full.
        loop {
            match sys::send(bed.program(), &chunk, 0) {
                Ok(len) => sent += len,
                Err(_) if bed.stream.to_path.is_empty() => assert_eq!(bed.advance(), Progress::Open),
                Err(_) => break,
            }
        }
        bed.close();
        let mut received = 0;
        loop {
            let progress = bed.advance();
            let (peer, inner) = bed.stream.interest();
            assert!(peer.is_none_or(|events| events == 0) && inner.unwrap() & libc::EPOLLOUT as u32 != 0);
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
        sys::send(bed.path(), b"unread", 0).unwrap();
        assert_eq!(bed.advance(), Progress::Open);
        bed.close();
        assert_eq!(bed.advance(), Progress::Abandoned);
    }

    #[test]
    fn a_direction_that_the_program_has_shut_is_read_and_forgotten() {
        let mut bed = Bed::new();
        sys::shutdown(bed.program(), libc::SHUT_RD).unwrap();
        sys::send(bed.path(), b"forgotten", 0).unwrap();
        assert_eq!(bed.advance(), Progress::Open);
        sys::send(bed.program(), b"still heard", 0).unwrap();
        assert_eq!(bed.advance(), Progress::Open);
        assert_eq!(read(bed.path()).unwrap(), b"still heard");
    }

    #[test]
    fn a_reset_path_says_so() {
        let mut bed = Bed::new();
        sys::send(&bed.inner, b"unread", 0).unwrap();
        bed.path = None;
        assert_eq!(bed.advance(), Progress::Reset(libc::ECONNRESET));
    }
}
