//! Datagrams between the program's pair (AF_UNIX, which keeps their borders and holds a sender back) and the path.
//!
//! The pair carries bytes only, so that `read` gets what it should. Where a datagram came from is kept here, for one
//! source at a time: a datagram of another source is held back until the program has taken all that lie in the pair.
//! So the answer to "from whom is the next one" is always known, whether the program takes it by `read` (no trap) or
//! by `recvfrom`.
//!
//! An error that waits at the path (a datagram was refused) the program's end has meanwhile as an error of its own: who
//! waits there wakes up, `poll` says POLLERR, and the next call fails. AF_UNIX knows one errno of datagrams only,
//! ECONNRESET; calls that are trapped tell the right one.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use crate::standin::NOWHERE;
use crate::sys::{self, Facts};

/// Datagrams moved before others have their turn.
const ROUNDS: usize = 64;
/// Bytes of a filling: a pair says that it has no room when a quarter of it is taken.
const FILLING: usize = 64 << 10;
/// Bytes that a pair holds, and those that are kept for a former peer.
const MOST_WRITTEN: usize = 1 << 20;
const MOST_UNSENT: usize = 4 << 20;

/// What is on its way.
#[derive(Debug, Default)]
pub(crate) struct Datagram {
    /// What belongs to those that lie in the pair.
    front: Option<Facts>,
    /// The next ones, which do not fit beside them.
    held: VecDeque<Received>,
    /// The next ones to send, which the program has written without a trap.
    unsent: VecDeque<Received>,
    /// The path had none for the last one.
    no_room: bool,
    /// The program has closed it: it is kept until all is sent.
    closed: bool,
}

/// A datagram, and what belongs to it.
pub(crate) type Received = (Vec<u8>, Facts);

/// How a turn of moving datagrams ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// With all that can be moved now.
    All,
    /// With its turn.
    More,
}

impl Datagram {
    /// What to wait for at the inner socket.
    pub(crate) fn inner_interest(&self) -> u32 {
        let input = if self.held.is_empty() && !self.closed { libc::EPOLLIN as u32 } else { 0 };
        let output = if self.no_room { libc::EPOLLOUT as u32 } else { 0 };
        input | output
    }

    /// Whether something has come that is not in the pair: it is held then.
    ///
    /// # Errors
    /// As [`Datagram::refill`].
    pub(crate) fn look(&mut self, inner: &OwnedFd, space: &mut [u8]) -> io::Result<bool> {
        if self.held.is_empty() {
            match sys::receive_message(inner, space, 0) {
                Ok((len, facts, _)) => self.held.push_back((space[..len].to_vec(), facts)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Something waits for room at the path.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.no_room
    }

    /// The path may have room again.
    pub(crate) fn look_for_room(&mut self, inner: &OwnedFd) {
        self.no_room = self.no_room && !sys::writable(inner);
    }

    /// The program has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// The program has closed it: true if all that it wrote is sent. What cannot be sent is lost, and nobody there to be
    /// told.
    pub(crate) fn finish(&mut self, peer: &OwnedFd, inner: &OwnedFd, space: &mut [u8]) -> bool {
        self.closed = true;
        while !matches!(self.drain(peer, inner, space), Ok(Moved::All)) {}
        !self.no_room
    }

    /// Sends what the program has written without a trap, until the path has no room.
    ///
    /// # Errors
    /// What the path said: of a datagram, which is lost, or (a refusal) of one that was sent before.
    pub(crate) fn drain(&mut self, peer: &OwnedFd, inner: &OwnedFd, space: &mut [u8]) -> io::Result<Moved> {
        for _ in 0..ROUNDS {
            if self.no_room || self.unsent.is_empty() && !self.take_written(peer, space) {
                return Ok(Moved::All);
            }
            let Some((bytes, facts)) = self.unsent.pop_front() else { continue };
            let send = || sys::send_message(inner, &bytes, &facts, 0);
            let mut sent = send();
            let refusal = sent.as_ref().is_err_and(|error| sys::errno(error) == libc::ECONNREFUSED);
            let refused = if refusal { std::mem::replace(&mut sent, send()).map(drop) } else { Ok(()) };
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.unsent.push_front((bytes, facts));
                    self.no_room = true;
                }
                // Without a peer `write` says so at once on Linux; here it is too late to.
                Err(error) if sys::errno(&error) == libc::EDESTADDRREQ => {}
                sent => drop(sent?),
            }
            refused?;
        }
        Ok(Moved::More)
    }

    /// Takes one out of the pair, or a filling of ours ([`Datagram::fill`]). False: there is none.
    fn take_written(&mut self, peer: &OwnedFd, space: &mut [u8]) -> bool {
        let Ok((len, by)) = sys::receive_by(peer, space) else { return false };
        if by != std::process::id() {
            self.unsent.push_back((space[..len].to_vec(), Facts::default()));
        }
        true
    }

    /// The same as [`Datagram::drain`] of all that lies there, whatever is written meanwhile.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn drain_all(&mut self, peer: &OwnedFd, inner: &OwnedFd, space: &mut [u8]) -> io::Result<()> {
        for _ in 0..ROUNDS {
            if self.drain(peer, inner, space)? == Moved::All {
                break;
            }
        }
        Ok(())
    }

    /// Sends a datagram of a trapped call behind those that wait.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room. Or what the path said, perhaps of one before it.
    pub(crate) fn send(
        &mut self,
        (peer, inner): (&OwnedFd, &OwnedFd),
        (bytes, facts): &Received,
        flags: i32,
        space: &mut [u8],
    ) -> io::Result<()> {
        self.drain_all(peer, inner, space)?;
        if self.no_room {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let sent = sys::send_message(inner, bytes, facts, flags).map(drop);
        self.no_room = sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        sent
    }

    /// The path has no room: nor is the program's end to have any, so that it tells when there is some again. What we put
    /// there is known by its sender, and thrown away.
    pub(crate) fn fill(outer: &OwnedFd, space: &[u8]) {
        for _ in 0..ROUNDS {
            if !sys::writable(outer) || sys::send(outer, &space[..FILLING.min(space.len())], 0).is_err() {
                break;
            }
        }
    }

    /// The socket is to have another peer: what waits goes to the one that it has (`former`), or to nobody without one.
    /// False if too much waits for that.
    pub(crate) fn address_written(&mut self, peer: &OwnedFd, former: &[u8], space: &mut [u8]) -> bool {
        let mut held: usize = self.unsent.iter().map(|(bytes, _)| bytes.len()).sum();
        if held >= MOST_UNSENT {
            return false;
        }
        // What is written meanwhile may go to either.
        let enough = held + MOST_WRITTEN;
        while held < enough && self.take_written(peer, space) {
            held += self.unsent.back().map_or(0, |(bytes, _)| bytes.len());
        }
        for (_, facts) in self.unsent.iter_mut().filter(|(_, facts)| facts.address.is_empty()) {
            facts.address = former.to_vec();
        }
        self.unsent.retain(|(_, facts)| !facts.address.is_empty());
        true
    }

    /// Puts into the pair what may lie there.
    ///
    /// # Errors
    /// An error that waited at the path.
    pub(crate) fn refill(&mut self, peer: &OwnedFd, inner: &OwnedFd, space: &mut [u8]) -> io::Result<Moved> {
        for _ in 0..ROUNDS {
            self.look(inner, space)?;
            let Some((bytes, facts)) = self.held.pop_front() else { return Ok(Moved::All) };
            let alike = self.front.as_ref().is_none_or(|front| *front == facts && facts.control.is_empty());
            if !alike && sys::untaken(peer) > 0 {
                self.held.push_front((bytes, facts));
                return Ok(Moved::All);
            }
            match sys::send(peer, &bytes, 0) {
                Ok(_) => self.front = Some(facts),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.held.push_front((bytes, facts));
                    return Ok(Moved::All);
                }
                // The program is closing.
                Err(_) => return Ok(Moved::All),
            }
        }
        Ok(Moved::More)
    }

    /// Gives the program's end an error, unless it has one: that of a datagram which its peer, turning away, did not take
    /// (`unix_dgram_disconnected`). What the program has written before is sent; what it writes meanwhile is lost.
    ///
    /// # Errors
    /// It has none: `WouldBlock` as long as something waits that the path has no room for, or as the kernel says.
    pub(crate) fn give_error(
        &mut self,
        (peer, inner): (&OwnedFd, &OwnedFd),
        outer: &OwnedFd,
        space: &mut [u8],
    ) -> io::Result<()> {
        // A send would take it away.
        if sys::events(outer, 0) & libc::POLLERR != 0 {
            return Ok(());
        }
        let name = sys::name_unix(outer)?;
        // Each failure is that of one datagram.
        let drained = (0..ROUNDS).any(|_| matches!(self.drain(peer, inner, space), Ok(Moved::All)));
        if !drained || self.no_room {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        sys::send(outer, &[], 0)?;
        sys::kernel_connect(peer, &NOWHERE)?;
        sys::kernel_connect(peer, &name)
    }

    /// The next datagram of the pair, for a call that asks from whom it is, into `space`: its own length and what belongs
    /// to it. `outer` is the program's end.
    ///
    /// # Errors
    /// `WouldBlock`: there is none.
    pub(crate) fn take(
        &mut self,
        outer: &OwnedFd,
        peek: bool,
        space: &mut [u8],
    ) -> io::Result<(usize, Facts)> {
        let facts = self.front.clone().unwrap_or_default();
        let flags = libc::MSG_TRUNC | if peek { libc::MSG_PEEK } else { 0 };
        sys::receive(outer, space, flags).map(|len| (len.min(space.len()), facts))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    struct Bed {
        datagram: Datagram,
        peer: OwnedFd,
        outer: OwnedFd,
        inner: OwnedFd,
        address: std::net::SocketAddr,
        space: Vec<u8>,
    }

    impl Bed {
        fn new() -> Bed {
            let (peer, outer) = sys::pair(libc::SOCK_DGRAM).unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let address = socket.local_addr().unwrap();
            let inner = socket.as_fd().try_clone_to_owned().unwrap();
            Bed { datagram: Datagram::default(), peer, outer, inner, address, space: vec![0; 65536] }
        }

        fn take(&mut self, peek: bool) -> Option<(Vec<u8>, Facts)> {
            self.datagram.refill(&self.peer, &self.inner, &mut self.space).unwrap();
            let taken = self.datagram.take(&self.outer, peek, &mut self.space);
            taken.ok().map(|(len, facts)| (self.space[..len].to_vec(), facts))
        }
    }

    #[test]
    fn sources_are_told_apart_whoever_takes_the_datagram() {
        let mut bed = Bed::new();
        let senders = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let port = |at: usize| senders[at].local_addr().unwrap().port().to_be_bytes();
        for (at, text) in [(0, "a"), (0, "b"), (1, "c"), (0, "")] {
            senders[at].send_to(text.as_bytes(), bed.address).unwrap();
        }
        let (bytes, facts) = bed.take(true).unwrap();
        assert_eq!((bytes.as_slice(), &facts.address[2..4]), (&b"a"[..], &port(0)[..]));
        let (bytes, facts) = bed.take(false).unwrap();
        assert_eq!((bytes.as_slice(), &facts.address[2..4]), (&b"a"[..], &port(0)[..]));
        // The second one by `read`, which nobody sees.
        let mut space = [0; 16];
        assert_eq!(sys::receive(&bed.outer, &mut space, 0).unwrap(), 1);
        let (bytes, facts) = bed.take(false).unwrap();
        assert_eq!((bytes.as_slice(), &facts.address[2..4]), (&b"c"[..], &port(1)[..]));
        let (bytes, facts) = bed.take(false).unwrap();
        assert_eq!((bytes.as_slice(), &facts.address[2..4]), (&b""[..], &port(0)[..]));
        assert!(bed.take(false).is_none());
    }

    #[test]
    fn an_error_wakes_who_reads_once_and_nothing_else_is_lost() {
        let Bed { mut datagram, peer, outer, inner, mut space, address } = Bed::new();
        let ends = (&peer, &inner);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.send_to(b"behind", address).unwrap();
        let reader = outer.try_clone().unwrap();
        let waiting = std::thread::spawn(move || std::fs::File::from(reader).read(&mut [0; 16]));
        datagram.give_error(ends, &outer, &mut space).unwrap();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(sys::errno(&error), libc::ECONNRESET);
        assert_eq!(sys::pending_error(&outer), 0);

        // Twice, before it is read.
        datagram.give_error(ends, &outer, &mut space).unwrap();
        datagram.give_error(ends, &outer, &mut space).unwrap();
        let events = libc::POLLIN | libc::POLLOUT;
        assert_eq!(sys::events(&outer, events), libc::POLLOUT | libc::POLLERR);
        assert_eq!(sys::errno(&sys::send(&outer, b"x", 0).unwrap_err()), libc::ECONNRESET);
        assert_eq!(datagram.refill(&peer, &inner, &mut space).unwrap(), Moved::All);
        assert_eq!(sys::receive(&outer, &mut space, 0).unwrap(), 6);
        sys::send(&outer, b"written", 0).unwrap();
        assert_eq!(sys::receive(&peer, &mut space, 0).unwrap(), 7);
    }

    #[test]
    fn what_was_written_before_an_error_is_sent() {
        let Bed { mut datagram, peer, outer, inner, mut space, .. } = Bed::new();
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_nonblocking(true).unwrap();
        let name = sys::name(libc::getsockname, &receiver.as_fd().try_clone_to_owned().unwrap()).unwrap();
        sys::with_address(libc::connect, &inner, &name).unwrap();
        // The first one is too long for a datagram.
        sys::send(&outer, &vec![0; 65_508], 0).unwrap();
        sys::send(&outer, b"behind", 0).unwrap();
        let failed = datagram.drain(&peer, &inner, &mut space).unwrap_err();
        assert_eq!(sys::errno(&failed), libc::EMSGSIZE);
        datagram.give_error((&peer, &inner), &outer, &mut space).unwrap();
        assert_eq!(receiver.recv(&mut space).unwrap(), 6);
        assert_eq!(sys::pending_error(&outer), libc::ECONNRESET);
    }

    #[test]
    fn what_is_written_without_a_trap_is_sent_also_before_an_end() {
        let Bed { mut datagram, peer, outer, inner, mut space, .. } = Bed::new();
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let name = sys::name(libc::getsockname, &receiver.as_fd().try_clone_to_owned().unwrap()).unwrap();
        sys::with_address(libc::connect, &inner, &name).unwrap();
        sys::send(&outer, b"one", 0).unwrap();
        sys::send(&outer, b"", 0).unwrap();
        datagram.drain(&peer, &inner, &mut space).unwrap();
        let mut bytes = [0; 16];
        assert_eq!(receiver.recv(&mut bytes).unwrap(), 3);
        assert_eq!(receiver.recv(&mut bytes).unwrap(), 0);
        drop(outer);
        datagram.drain(&peer, &inner, &mut space).unwrap();
    }
}
