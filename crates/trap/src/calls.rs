//! What each trapped call does.

mod filter;
pub(crate) mod message;

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::arrivals::Connection;
use crate::listener::{Answer, Call, Flags};
use crate::socket::{Socket, State};
use crate::standin::{self, Attempt};
use crate::supervisor::{Supervisor, time_limit};
use crate::target::{self, Descriptor};
use crate::{sys, target::read_u32};

/// `linux/tcp.h`.
const TCP_INQ: i32 = 36;
const TCP_ZEROCOPY_RECEIVE: i32 = 35;
/// The longest value of an option that is passed on: a filter of 64 sources (MCAST_MSFILTER).
const MAX_OPTION: usize = 144 + 64 * 128;

/// How long `bind` waits for a port that a socket has which is closed, and has datagrams to send.
const CLOSING_LIMIT: Duration = Duration::from_secs(5);

/// What a call comes to.
pub(crate) enum Reply {
    Now(Answer<'static>),
    /// The call waits for this socket; `errno` when the time is over.
    Later {
        socket: u64,
        limit: Option<Duration>,
        errno: i32,
        /// The program's end, if the call is to hold it.
        outer: Option<OwnedFd>,
    },
    /// A new socket's end; of a connection that has waited, where.
    Give {
        id: u64,
        outer: OwnedFd,
        flags: Flags,
        from: Option<(u64, Connection)>,
    },
}

impl Reply {
    pub(crate) fn error(errno: i32) -> Reply {
        Reply::Now(Answer::error(errno))
    }
}

/// A step's failure is the call's.
impl From<io::Error> for Reply {
    fn from(error: io::Error) -> Reply {
        Reply::error(sys::errno(&error))
    }
}

/// A call on a socket of ours.
#[derive(Clone, Copy)]
pub(crate) struct On<'a> {
    pub(crate) call: &'a Call,
    pub(crate) id: u64,
    /// The program's descriptor has O_NONBLOCK.
    pub(crate) non_blocking: bool,
    /// It has waited before.
    pub(crate) again: bool,
    /// The program's end, where the call holds it.
    pub(crate) held: Option<&'a OwnedFd>,
}

impl On<'_> {
    /// A data call with these flags may wait.
    pub(crate) fn may_wait(&self, flags: i32) -> bool {
        (self.again || !self.non_blocking) && flags & libc::MSG_DONTWAIT == 0
    }

    /// The program's end of the socket, which has this inode.
    pub(crate) fn end(&self, inode: u64) -> io::Result<OwnedFd> {
        let held = self.held.map(OwnedFd::try_clone);
        held.unwrap_or_else(|| target::duplicate(self.call.thread, self.call.fd(), inode))
    }
}

impl Supervisor {
    /// Does a call.
    pub(crate) fn handle(&mut self, call: &Call) -> Reply {
        if call.number == libc::SYS_socket {
            return self.create(call).unwrap_or_else(Reply::from);
        }
        if call.number == libc::SYS_io_uring_setup {
            sys::count_ring();
            return Reply::error(libc::ENOSYS);
        }
        let Some(found) = target::descriptor(call.thread, call.fd()) else {
            return Reply::Now(Answer::Native);
        };
        if !self.listener.is_valid(call) {
            // Whoever has the thread's number now is somebody else. Nobody hears this.
            return Reply::error(libc::EINTR);
        }
        let Descriptor { inode, non_blocking } = found;
        let Some(&id) = self.by_inode.get(&inode) else {
            self.see_passed(call);
            return Reply::Now(Answer::Native);
        };
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.seen = (call.thread, call.fd());
        }
        let on = On { call, id, non_blocking, again: false, held: None };
        let reply = self.dispatch(on).unwrap_or_else(|reply| reply);
        self.watch(id);
        reply
    }

    /// Does a call that has waited for its socket, whatever its descriptor is now.
    pub(crate) fn handle_again(&mut self, call: &Call, id: u64, held: Option<&OwnedFd>) -> Reply {
        let on = On { call, id, non_blocking: false, again: true, held };
        let reply = self.dispatch(on).unwrap_or_else(|reply| reply);
        self.watch(id);
        reply
    }

    /// The program's end of the socket that a call is about.
    pub(crate) fn end_of(&mut self, on: On<'_>) -> Result<OwnedFd, Reply> {
        let inode = self.socket(on)?.inode()?;
        Ok(on.end(inode)?)
    }

    fn dispatch(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        match on.call.number {
            libc::SYS_bind => self.bind(on),
            libc::SYS_listen => self.listen(on),
            libc::SYS_connect => self.connect(on),
            libc::SYS_accept | libc::SYS_accept4 => self.accept(on),
            libc::SYS_shutdown => self.shut(on),
            libc::SYS_getsockname => self.tell_name(on, libc::getsockname),
            libc::SYS_getpeername => self.tell_name(on, libc::getpeername),
            libc::SYS_getsockopt => self.option(on),
            libc::SYS_setsockopt => self.set_option(on),
            _ => self.message(on),
        }
    }

    pub(crate) fn socket(&mut self, on: On<'_>) -> Result<&mut Socket, Reply> {
        self.sockets.get_mut(&on.id).ok_or_else(|| Reply::error(libc::EBADF))
    }

    fn bind(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        let [_, at, len, ..] = on.call.arguments;
        let address = target::read_address(on.call.thread, at, len)?;
        if !target::may_have_port(on.call.thread, &address) {
            return Err(Reply::error(libc::EACCES));
        }
        // What was written before has bound it.
        self.send_written(on)?;
        let mut bound = sys::with_address(libc::bind, &self.socket(on)?.inner, &address);
        if matches!(&bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse) {
            // By a socket perhaps that the program has closed, which is not trapped, or that only a call held.
            self.drop_ended_calls();
            self.see_closed();
            bound = sys::with_address(libc::bind, &self.socket(on)?.inner, &address);
        }
        if matches!(&bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse) && self.is_closing() {
            // The port is free as soon as what was written there is sent.
            self.binding.insert(on.id);
            let limit = Some(CLOSING_LIMIT);
            return Ok(Reply::Later { socket: on.id, limit, errno: libc::EADDRINUSE, outer: None });
        }
        bound?;
        Ok(Reply::Now(Answer::Value(0)))
    }

    /// A socket that the program has closed still has datagrams to send.
    fn is_closing(&self) -> bool {
        let closed =
            |socket: &Socket| matches!(&socket.state, State::Datagram(datagram) if datagram.is_closed());
        self.sockets.values().any(closed)
    }

    fn listen(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        let socket = self.socket(on)?;
        let wanted = on.call.arguments[1] as i32;
        sys::listen(&socket.inner, wanted)?;
        if let State::Fresh = socket.state {
            let name = standin::listen(&self.end_of(on)?)?;
            self.socket(on)?.state = State::Listening { name, waiting: VecDeque::new(), backlog: 0 };
        }
        let most = self.backlog;
        if let State::Listening { backlog, .. } = &mut self.socket(on)?.state {
            // As Linux has it, below zero is very much.
            *backlog = (wanted.cast_unsigned() as usize).clamp(1, most);
        }
        // There may be room for what waits.
        self.on_connection(on.id);
        Ok(Reply::Now(Answer::Value(0)))
    }

    fn connect(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        let [_, at, len, ..] = on.call.arguments;
        let address = target::read_address(on.call.thread, at, len)?;
        let socket = self.socket(on)?;
        match &socket.state {
            State::Datagram(_) => self.aim(on, &address),
            _ if address.get(..2) == Some(&[0, 0]) => self.disconnect(on, &address),
            State::Connecting { .. } if on.non_blocking && !on.again => Err(Reply::error(libc::EALREADY)),
            State::Connecting { .. } => Ok(wait_for_connection(on.id, socket, libc::EALREADY)),
            State::Stream(_) if on.again => Ok(Reply::Now(Answer::Value(0))),
            State::Failed => {
                let outer = self.end_of(on)?;
                // Told once, by whichever call; who has it from another one is told that much (`inet_stream_connect`).
                let socket = self.socket(on)?;
                let error = socket.take_error(|| outer.try_clone());
                socket.state = State::Fresh;
                standin::release(&outer)?;
                Err(Reply::error(if error == 0 { libc::ECONNABORTED } else { error }))
            }
            _ if on.again => Err(Reply::error(std::mem::take(&mut socket.error))),
            State::Fresh => self.start_connecting(on, &address),
            State::Stream(_) | State::Listening { .. } | State::Ended => {
                sys::with_address(libc::connect, &socket.inner, &address)?;
                Ok(Reply::Now(Answer::Value(0)))
            }
        }
    }

    /// Datagrams go to another peer from now on, or to none; those that were written before do not.
    fn aim(&mut self, on: On<'_>, address: &[u8]) -> Result<Reply, Reply> {
        self.send_written(on)?;
        let mut space = std::mem::take(&mut self.space);
        let is_addressed = self.socket(on).map(|socket| match (&mut socket.state, &socket.peer) {
            (State::Datagram(datagram), Some(peer)) if datagram.waits_for_room() => {
                let former = sys::name(libc::getpeername, &socket.inner).unwrap_or_default();
                datagram.address_written(peer, &former, &mut space)
            }
            _ => true,
        });
        self.space = space;
        if !is_addressed? {
            return Ok(Reply::Later { socket: on.id, limit: None, errno: 0, outer: None });
        }
        let socket = self.socket(on)?;
        sys::with_address(libc::connect, &socket.inner, address)?;
        Ok(Reply::Now(Answer::Value(0)))
    }

    fn start_connecting(&mut self, on: On<'_>, address: &[u8]) -> Result<Reply, Reply> {
        let outer = self.end_of(on)?;
        // It may be to connect to what it has closed.
        self.see_closed();
        let socket = self.socket(on)?;
        let connecting = sys::with_address(libc::connect, &socket.inner, address);
        match connecting {
            Ok(()) => {
                socket.establish(Attempt::new(&outer)?)?;
                Ok(Reply::Now(Answer::Value(0)))
            }
            Err(error) if sys::errno(&error) == libc::EINPROGRESS => {
                socket.state =
                    State::Connecting { attempt: Attempt::new(&outer)?, address: address.to_vec() };
                if on.non_blocking {
                    return Err(error.into());
                }
                Ok(wait_for_connection(on.id, socket, libc::EINPROGRESS))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A stream is to be as it was before it was connected, or listened.
    fn disconnect(&mut self, on: On<'_>, address: &[u8]) -> Result<Reply, Reply> {
        let outer = self.end_of(on)?;
        let socket = self.socket(on)?;
        sys::with_address(libc::connect, &socket.inner, address)?;
        standin::disconnect(&outer)?;
        self.stop_listening(on.id);
        let socket = self.socket(on)?;
        (socket.peer, socket.state, socket.error) = (None, State::Fresh, 0);
        socket.watched.0 = None;
        // It listens no more: whoever waits for a connection is told so.
        self.retry(on.id);
        Ok(Reply::Now(Answer::Value(0)))
    }

    /// The program's end is shut by the kernel, and the path's when that is seen.
    fn shut(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        let how = on.call.arguments[1] as i32;
        let socket = self.socket(on)?;
        match &socket.state {
            // Whoever waits there in a call that is trapped would not hear of it.
            State::Datagram(_) => {
                // It says so, and does it (`inet_shutdown`).
                let is_connected = sys::name(libc::getpeername, &socket.inner);
                sys::shutdown(&self.end_of(on)?, how)?;
                self.retry(on.id);
                is_connected?;
                return Ok(Reply::Now(Answer::Value(0)));
            }
            State::Connecting { .. } => return self.shut_connecting(on, how),
            State::Listening { .. } if [libc::SHUT_RD, libc::SHUT_RDWR].contains(&how) => {
                sys::shutdown(&socket.inner, how)?;
                // It listens no more: whoever waits for a connection is told so.
                self.stop_listening(on.id);
                self.retry(on.id);
            }
            _ => {}
        }
        Ok(Reply::Now(Answer::Native))
    }

    /// The attempt to connect is over: who waits for it is told, and else the program's end tells it, which the kernel
    /// shuts in SYN-SENT, too.
    fn shut_connecting(&mut self, on: On<'_>, how: i32) -> Result<Reply, Reply> {
        let waited_for = self.is_waited_for(on.id);
        let outer = self.end_of(on)?;
        let socket = self.socket(on)?;
        sys::shutdown(&socket.inner, how)?;
        let error = sys::pending_error(&socket.inner);
        if error == 0 {
            return Ok(Reply::Now(Answer::Native)); // it stands: the path's end is shut when the program's is seen to be
        }
        socket.state = State::Fresh;
        if !waited_for {
            return Ok(Reply::Now(Answer::Native));
        }
        socket.error = error;
        standin::release(&outer)?;
        self.retry(on.id);
        Ok(Reply::Now(Answer::Value(0)))
    }

    fn tell_name(
        &mut self,
        on: On<'_>,
        call: unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32,
    ) -> Result<Reply, Reply> {
        let [_, at, len_at, ..] = on.call.arguments;
        let name = sys::name(call, &self.socket(on)?.inner)?;
        target::write_sized(on.call.thread, at, len_at, &name)?;
        Ok(Reply::Now(Answer::Value(0)))
    }

    fn option(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        let [_, level, name, at, len_at, _] = on.call.arguments;
        let (level, name) = (level as i32, name as i32);
        let room = read_u32(on.call.thread, len_at)?;
        // The level of IPv6 takes it for very much, or is none of the socket's.
        if room.cast_signed() < 0 && level != libc::IPPROTO_IPV6 {
            return Err(Reply::error(libc::EINVAL));
        }
        if filter::is_filter(level, name) {
            return self.filter(on, room as usize);
        }
        let socket = self.socket(on)?;
        let stream = !matches!(socket.state, State::Datagram(_));
        if stream && of_reading(level, name) {
            return Ok(Reply::Now(Answer::Native));
        }
        let mut value = [0; MAX_OPTION];
        let value = &mut value[..MAX_OPTION.min(room as usize)];
        let mut len = sys::option(&socket.inner, level, name, value)?;
        if let Some((_, &mut on)) = socket.report(level, name) {
            // In one byte, if there is no room for four.
            for (to, from) in value[..len].iter_mut().zip(i32::from(on).to_ne_bytes()) {
                *to = from;
            }
        }
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
            let inode = socket.inode()?;
            let outer = || target::duplicate(on.call.thread, on.call.fd(), inode);
            let error = socket.take_error(outer);
            if error != 0 {
                let error = error.to_ne_bytes();
                len = error.len().min(value.len());
                value[..len].copy_from_slice(&error[..len]);
            }
        }
        sys::write_memory(on.call.thread, at, &value[..len])?;
        sys::write_memory(on.call.thread, len_at, &(len as u32).to_ne_bytes())?;
        Ok(Reply::Now(Answer::Value(0)))
    }

    /// Datagrams that the program has written already leave by the options that held then.
    fn send_written(&mut self, on: On<'_>) -> Result<(), Reply> {
        let mut space = std::mem::take(&mut self.space);
        let sent = self.socket(on).map(|socket| {
            if let (State::Datagram(datagram), Some(peer)) = (&mut socket.state, &socket.peer)
                && let Err(error) = datagram.drain_all(peer, &socket.inner, &mut space)
            {
                socket.on_unsent(sys::errno(&error));
            }
        });
        self.space = space;
        self.give_error(on.id);
        sent
    }

    fn set_option(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        let [_, level, name, at, len, _] = on.call.arguments;
        let (level, name, len) = (level as i32, name as i32, len as u32 as usize);
        if len > MAX_OPTION {
            return Err(Reply::error(libc::EINVAL));
        }
        let mut value = vec![0; len];
        if len > 0 {
            sys::read_memory(on.call.thread, at, &mut value)?;
        }
        let socket = self.socket(on)?;
        let stream = !matches!(socket.state, State::Datagram(_));
        if stream && of_reading(level, name) {
            return Ok(Reply::Now(Answer::Native));
        }
        if !stream && (level, name) == (libc::SOL_SOCKET, libc::SO_PEEK_OFF) && value != (-1i32).to_ne_bytes()
        {
            return Err(Reply::error(libc::ENOPROTOOPT));
        }
        if let Some((inner, reported)) = socket.report(level, name) {
            // An `int`, or its first byte.
            let on = value.iter().take(if len < 4 { 1 } else { 4 }).any(|&byte| byte != 0);
            // Off, which tells whether such a call is right.
            sys::set_option(inner, level, name, &vec![0; len])?;
            *reported = on;
            return Ok(Reply::Now(Answer::Value(0)));
        }
        self.send_written(on)?;
        let socket = self.socket(on)?;
        sys::set_option(&socket.inner, level, name, &value)?;
        let native = if stream { is_common(level, name) } else { is_time(level, name) };
        Ok(Reply::Now(if native { Answer::Native } else { Answer::Value(0) }))
    }

    fn create(&mut self, call: &Call) -> io::Result<Reply> {
        if !target::can_be_served(call.thread) {
            if !std::mem::replace(&mut self.said_closed, true) {
                eprintln!(
                    "scoutline: process {} is not dumpable (prctl(2), PR_SET_DUMPABLE; a program that cannot be read): its \
                     sockets are the kernel's; as root it is served",
                    call.thread
                );
            }
            return Ok(Reply::Now(Answer::Native));
        }
        let (socket, outer) = Socket::create(call)?;
        let id = self.insert(socket)?;
        if let Err(error) = self.name(id, &outer) {
            self.remove(id);
            return Err(error);
        }
        let flags = Flags { close_on_exec: call.arguments[1] as i32 & libc::SOCK_CLOEXEC != 0 };
        Ok(Reply::Give { id, outer, flags, from: None })
    }
}

/// Options of a stream that are about its reads and writes only, which are the program's own end's.
fn of_reading(level: i32, name: i32) -> bool {
    const SOCKET: [i32; 4] = [libc::SO_RCVLOWAT, libc::SO_ZEROCOPY, libc::SO_PEEK_OFF, libc::SO_OOBINLINE];
    level == libc::SOL_SOCKET && SOCKET.contains(&name)
        || level == libc::IPPROTO_TCP && [TCP_INQ, TCP_ZEROCOPY_RECEIVE].contains(&name)
}

/// How long calls wait.
fn is_time(level: i32, name: i32) -> bool {
    level == libc::SOL_SOCKET && [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].contains(&name)
}

/// Options that both have: the path for itself, and the program's end for reads and writes.
fn is_common(level: i32, name: i32) -> bool {
    is_time(level, name) || (level, name) == (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT)
}

fn wait_for_connection(id: u64, socket: &Socket, errno: i32) -> Reply {
    let limit = time_limit(&socket.inner, libc::SO_SNDTIMEO);
    Reply::Later { socket: id, limit, errno, outer: None }
}
