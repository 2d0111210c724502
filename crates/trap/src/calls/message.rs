//! Data calls with addresses, and those with a message header, of datagram sockets. On a stream they are the
//! kernel's own.

use std::io;
use std::os::fd::OwnedFd;

use crate::calls::{On, Reply};
use crate::datagram::{Datagram, Received};
use crate::listener::{Answer, Call};
use crate::socket::{Socket, State};
use crate::supervisor::{Supervisor, time_limit};
use crate::sys::{self, Facts};
use crate::target;

/// Most bytes of a datagram.
const MAX_DATAGRAM: usize = 65_535;
/// Most control bytes of a message that are passed on.
const MAX_CONTROL: u64 = 512;
/// Messages of one `sendmmsg` or `recvmmsg` that are done, as on Linux; who gives more is told how many were.
const MAX_MESSAGES: u64 = libc::UIO_MAXIOV as u64;
/// `struct mmsghdr` and where its length is.
const MESSAGE_STRIDE: u64 = 64;
const MESSAGE_LENGTH: u64 = 56;

/// A `struct msghdr` of the program; the offsets are those of 64-bit Linux.
struct Header {
    at: u64,
    name: (u64, u32),
    pieces: Vec<(u64, usize)>,
    control: (u64, u64),
}

impl Header {
    fn read(thread: u32, at: u64) -> Result<Header, Reply> {
        let mut bytes = [0; 56];
        sys::read_memory(thread, at, &mut bytes)?;
        let word =
            |from: usize| bytes[from..from + 8].iter().rev().fold(0, |sum, &b| sum << 8 | u64::from(b));
        let (vector, count) = (word(16), word(24));
        if count > libc::UIO_MAXIOV as u64 {
            return Err(Reply::error(libc::EMSGSIZE));
        }
        let mut raw = vec![0; count as usize * 16];
        if count > 0 {
            sys::read_memory(thread, vector, &mut raw)?;
        }
        let half = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, &b| sum << 8 | u64::from(b));
        let pieces = raw.chunks_exact(16).map(|piece| (half(&piece[..8]), half(&piece[8..]) as usize));
        Ok(Header {
            at,
            name: (word(0), word(8) as u32),
            pieces: pieces.collect(),
            control: (word(32), word(40)),
        })
    }

    /// Tells what was received beside the data.
    fn write(&self, thread: u32, facts: &Facts, mut flags: i32) -> Result<(), Reply> {
        if self.name.0 != 0 {
            let room = facts.address.len().min(self.name.1 as usize);
            sys::write_memory(thread, self.name.0, &facts.address[..room])?;
            sys::write_memory(thread, self.at + 8, &(facts.address.len() as u32).to_ne_bytes())?;
        }
        let room = if self.control.0 == 0 { 0 } else { self.control.1 as usize };
        let (told, control, whole) = cut_control(&facts.control, room);
        if !whole {
            flags |= libc::MSG_CTRUNC;
        }
        sys::write_memory(thread, self.control.0, &told)?;
        sys::write_memory(thread, self.at + 40, &(control as u64).to_ne_bytes())?;
        sys::write_memory(thread, self.at + 48, &flags.to_ne_bytes())?;
        Ok(())
    }
}

impl Supervisor {
    pub(super) fn message(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        match self.socket(on)?.state {
            State::Datagram(_) => {}
            // As where fast open is off: the program's end would go where it is told to.
            _ if flags_of_sending(on) & libc::MSG_FASTOPEN != 0 => {
                return Err(Reply::error(libc::EOPNOTSUPP));
            }
            _ => return Ok(Reply::Now(Answer::Native)),
        }
        let [_, first, second, third, fourth, _] = on.call.arguments;
        match on.call.number {
            libc::SYS_sendto => self.send_to(on),
            libc::SYS_recvfrom => self.receive_from(on),
            libc::SYS_sendmsg => self.send_message(on, first, second as i32).map(done),
            libc::SYS_recvmsg => self.receive_message(on, first, second as i32).map(done),
            number => {
                if number == libc::SYS_recvmmsg && fourth != 0 {
                    check_time(on.call.thread, fourth)?;
                }
                let one = if number == libc::SYS_sendmmsg {
                    Supervisor::send_message
                } else {
                    Supervisor::receive_message
                };
                self.many(on, (first, u64::from(second as u32), third as i32), one)
            }
        }
    }

    fn many(
        &mut self,
        on: On<'_>,
        (vector, count, flags): (u64, u64, i32),
        one: fn(&mut Supervisor, On<'_>, u64, i32) -> Result<usize, Reply>,
    ) -> Result<Reply, Reply> {
        let mut did = 0;
        while did < count.min(MAX_MESSAGES) {
            let at = vector + did * MESSAGE_STRIDE;
            match one(self, on, at, flags & !libc::MSG_WAITFORONE) {
                Ok(len) => {
                    sys::write_memory(on.call.thread, at + MESSAGE_LENGTH, &(len as u32).to_ne_bytes())?;
                    did += 1;
                }
                Err(_) if did > 0 => break,
                Err(reply) => return Err(reply),
            }
        }
        Ok(done(did as usize))
    }

    fn send_to(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        let [.., flags, address_at, address_len] = on.call.arguments;
        // An address of no length is no address, and not none.
        if address_at != 0 && address_len as u32 == 0 {
            return Err(Reply::error(libc::EINVAL));
        }
        let message = datagram_of(on.call)?;
        self.send_datagram(on, &message, flags as i32).map(done)
    }

    fn send_message(&mut self, on: On<'_>, at: u64, flags: i32) -> Result<usize, Reply> {
        let message = message_at(on.call.thread, at)?;
        self.send_datagram(on, &message, flags)
    }

    fn send_datagram(&mut self, on: On<'_>, message: &Received, flags: i32) -> Result<usize, Reply> {
        let mut space = std::mem::take(&mut self.space);
        let sent = self.socket(on).and_then(|socket| {
            fail_if_failed(on, socket)?;
            let inode = socket.inode()?;
            let Socket { state: State::Datagram(datagram), peer: Some(peer), inner, .. } = socket else {
                return Err(Reply::error(libc::EINVAL));
            };
            match datagram.send((peer, inner), message, flags, &mut space) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let outer = on.end(inode)?;
                    if !on.may_wait(flags) {
                        Datagram::fill(&outer, &space);
                    }
                    Err(wait(on, flags, (inner, libc::SO_SNDTIMEO), outer))
                }
                sent => Ok(sent?),
            }
        });
        self.space = space;
        sent?;
        Ok(message.0.len())
    }

    fn receive_from(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        let [_, at, len, flags, address_at, address_len_at] = on.call.arguments;
        let (full, facts, _) = self.take_datagram(on, flags as i32)?;
        let len = scatter(on.call.thread, &[(at, len as usize)], &self.space[..full])?;
        if address_at != 0 {
            target::write_sized(on.call.thread, address_at, address_len_at, &facts.address)?;
        }
        self.next_datagram(on);
        Ok(done(if flags as i32 & libc::MSG_TRUNC != 0 { full } else { len }))
    }

    fn receive_message(&mut self, on: On<'_>, at: u64, flags: i32) -> Result<usize, Reply> {
        let header = Header::read(on.call.thread, at)?;
        let (full, facts, mut told) = self.take_datagram(on, flags)?;
        let len = scatter(on.call.thread, &header.pieces, &self.space[..full])?;
        if len < full {
            told |= libc::MSG_TRUNC;
        }
        header.write(on.call.thread, &facts, told)?;
        self.next_datagram(on);
        Ok(if flags & libc::MSG_TRUNC != 0 { full } else { len })
    }

    /// Takes a datagram into the space, or an error of the queue; and the flags that a header has of it.
    fn take_datagram(&mut self, on: On<'_>, flags: i32) -> Result<(usize, Facts, i32), Reply> {
        if flags & libc::MSG_ERRQUEUE != 0 {
            return self.take_queued_error(on);
        }
        fail_if_failed(on, self.socket(on)?)?;
        let outer = self.end_of(on)?;
        self.refill(on.id)?;
        let mut space = std::mem::take(&mut self.space);
        let taken = self.socket(on).and_then(|socket| {
            let Socket { state: State::Datagram(datagram), inner, .. } = socket else {
                return Err(Reply::error(libc::EINVAL));
            };
            match datagram.take(&outer, flags & libc::MSG_PEEK != 0, &mut space) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let is_shut = sys::events(&outer, libc::POLLRDHUP) & libc::POLLRDHUP != 0;
                    match wait(on, flags, (inner, libc::SO_RCVTIMEO), outer) {
                        // An end, where others would wait (`__skb_wait_for_more_packets`).
                        Reply::Later { .. } if is_shut => Ok((0, Facts::default())),
                        reply => Err(reply),
                    }
                }
                taken => Ok(taken?),
            }
        });
        self.space = space;
        taken.map(|(len, facts)| (len, facts, 0))
    }

    /// The next of the errors that IP_RECVERR keeps, with the datagram that it is about. The one that waits for other
    /// calls is the next one's, as on Linux.
    fn take_queued_error(&mut self, on: On<'_>) -> Result<(usize, Facts, i32), Reply> {
        let mut space = std::mem::take(&mut self.space);
        let taken = self.socket(on).and_then(|socket| {
            let taken = sys::receive_message(&socket.inner, &mut space, libc::MSG_ERRQUEUE)?;
            take_error(on, socket);
            match sys::pending_error(&socket.inner) {
                0 => {}
                errno => socket.on_error(errno),
            }
            Ok(taken)
        });
        self.space = space;
        self.give_error(on.id);
        taken
    }

    /// The next one takes the place of the one that was taken, so that the descriptor stays readable.
    fn next_datagram(&mut self, on: On<'_>) {
        if let Err(failed) = self.refill(on.id)
            && let Ok(socket) = self.socket(on)
        {
            socket.on_error(sys::errno(&failed));
        }
        self.give_error(on.id);
        // Nothing else tells of what was moved by a call that looks only.
        self.retry(on.id);
    }
}

/// The flags of a call that sends; 0: it does not.
fn flags_of_sending(on: On<'_>) -> i32 {
    let [_, _, second, third, ..] = on.call.arguments;
    match on.call.number {
        libc::SYS_sendmsg => second as i32,
        libc::SYS_sendto | libc::SYS_sendmmsg => third as i32,
        _ => 0,
    }
}

/// A call tells the error that waits at its socket.
fn fail_if_failed(on: On<'_>, socket: &mut Socket) -> Result<(), Reply> {
    if socket.error == 0 {
        return Ok(());
    }
    match take_error(on, socket) {
        0 => Ok(()),
        errno => Err(Reply::error(errno)),
    }
}

/// Takes the error that waits at a socket which a call names.
fn take_error(on: On<'_>, socket: &mut Socket) -> i32 {
    let inode = socket.inode();
    socket.take_error(|| target::duplicate(on.call.thread, on.call.fd(), inode?))
}

/// Control messages as the kernel lays them out in a room (`put_cmsg`): the bytes, how many of the room they take, and
/// whether that is all. The last one may be cut.
fn cut_control(control: &[u8], room: usize) -> (Vec<u8>, usize, bool) {
    const HEADER: usize = 16;
    let (mut told, mut rest) = (Vec::new(), control);
    while rest.len() >= HEADER {
        let len = rest[..8].iter().rev().fold(0usize, |sum, &byte| sum << 8 | usize::from(byte));
        let len = len.clamp(HEADER, rest.len());
        let left = room - told.len();
        if left < HEADER {
            return (told.clone(), told.len(), false);
        }
        if left < len {
            told.extend_from_slice(&left.to_ne_bytes());
            told.extend_from_slice(&rest[8..left]);
            return (told, room, false);
        }
        let padded = len.next_multiple_of(8).min(left).min(rest.len());
        told.extend_from_slice(&rest[..padded]);
        rest = &rest[len.next_multiple_of(8).min(rest.len())..];
    }
    let len = told.len();
    (told, len, true)
}

/// A `struct timespec` of the program has to be one.
fn check_time(thread: u32, at: u64) -> Result<(), Reply> {
    let mut bytes = [0; 16];
    sys::read_memory(thread, at, &mut bytes)?;
    let [seconds, nanos] = [0, 8]
        .map(|from| bytes[from..from + 8].iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte)));
    let right = seconds.cast_signed() >= 0 && nanos < 1_000_000_000;
    if right { Ok(()) } else { Err(Reply::error(libc::EINVAL)) }
}

fn done(value: usize) -> Reply {
    Reply::Now(Answer::Value(value as i64))
}

/// The call waits as long as this option of the path's socket says, and holds the program's end: whatever becomes of
/// its descriptor, the socket is open until the call has ended.
fn wait(on: On<'_>, flags: i32, (inner, limit): (&OwnedFd, i32), outer: OwnedFd) -> Reply {
    if !on.may_wait(flags) {
        return Reply::error(libc::EAGAIN);
    }
    let limit = time_limit(inner, limit);
    Reply::Later { socket: on.id, limit, errno: libc::EAGAIN, outer: Some(outer) }
}

/// What `sendto` sends, and to where.
fn datagram_of(call: &Call) -> Result<Received, Reply> {
    let [_, at, len, _, address_at, address_len] = call.arguments;
    // Without an address its length says nothing.
    let address_len = if address_at == 0 { 0 } else { address_len };
    let address = target::read_address(call.thread, address_at, address_len)?;
    let bytes = gather_datagram(call.thread, &[(at, len as usize)])?;
    Ok((bytes, Facts { address, control: Vec::new() }))
}

/// What a message header has to be sent, and to where.
fn message_at(thread: u32, at: u64) -> Result<Received, Reply> {
    let header = Header::read(thread, at)?;
    let bytes = gather_datagram(thread, &header.pieces)?;
    if header.control.1 > MAX_CONTROL {
        return Err(Reply::error(libc::ENOBUFS));
    }
    let mut control = vec![0; header.control.1 as usize];
    if !control.is_empty() {
        sys::read_memory(thread, header.control.0, &mut control)?;
    }
    let address = match header.name {
        (0, _) => Vec::new(),
        // A longer one is cut, one below nothing refused (`copy_msghdr_from_user`).
        (at, len) if len.cast_signed() >= 0 => {
            target::read_address(thread, at, len.min(target::MAX_ADDRESS).into())?
        }
        _ => return Err(Reply::error(libc::EINVAL)),
    };
    Ok((bytes, Facts { address, control }))
}

/// The bytes of a datagram to send.
fn gather_datagram(thread: u32, pieces: &[(u64, usize)]) -> Result<Vec<u8>, Reply> {
    let len = pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.1));
    if len > MAX_DATAGRAM { Err(Reply::error(libc::EMSGSIZE)) } else { gather(thread, pieces) }
}

/// The bytes of these pieces, which are not too many.
fn gather(thread: u32, pieces: &[(u64, usize)]) -> Result<Vec<u8>, Reply> {
    let mut bytes = Vec::new();
    for &(at, len) in pieces.iter().filter(|piece| piece.1 > 0) {
        let from = bytes.len();
        bytes.resize(from + len, 0);
        sys::read_memory(thread, at, &mut bytes[from..])?;
    }
    Ok(bytes)
}

/// Writes as much of a datagram as fits: how much that is.
fn scatter(thread: u32, pieces: &[(u64, usize)], bytes: &[u8]) -> Result<usize, Reply> {
    let mut did = 0;
    for &(at, room) in pieces {
        let len = room.min(bytes.len() - did);
        sys::write_memory(thread, at, &bytes[did..did + len])?;
        did += len;
    }
    Ok(did)
}

#[cfg(test)]
mod tests {
    use super::cut_control;

    /// Two control messages of 20 bytes, padded to 24.
    fn two() -> Vec<u8> {
        let one = [&20u64.to_le_bytes()[..], &[1; 12], &[0; 4]].concat();
        [&one[..], &one[..]].concat()
    }

    #[test]
    fn control_messages_are_cut_to_the_room() {
        assert_eq!(cut_control(&two(), 48), (two(), 48, true));
        assert_eq!(cut_control(&two(), 30), (two()[..24].to_vec(), 24, false));
        let (told, len, whole) = cut_control(&two(), 18);
        assert_eq!((told.len(), len, whole, told[0]), (18, 18, false, 18));
        assert_eq!(cut_control(&two(), 0), (Vec::new(), 0, false));
    }
}
