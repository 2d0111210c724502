//! What each trapped call does.

mod filter;
mod message;

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::listener::{Answer, Call, Flags};
use crate::socket::{Socket, State, fill};
use crate::supervisor::{Supervisor, time_limit};
use crate::target::{self, Descriptor};
use crate::{sys, target::read_u32};

/// `linux/tcp.h`.
const TCP_INQ: i32 = 36;
/// The longest value of an option that is passed on: a filter of 64 sources (MCAST_MSFILTER).
const MAX_OPTION: usize = 144 + 64 * 128;

/// What a call comes to.
pub(crate) enum Reply {
    Now(Answer),
    /// The call waits for this socket; `errno` when the time is over.
    Later {
        socket: u64,
        limit: Option<Duration>,
        errno: i32,
    },
    /// EPIPE, with the signal that belongs to it.
    BrokenPipe,
    /// A new socket; accepted from another one.
    Give {
        socket: Box<Socket>,
        outer: OwnedFd,
        flags: Flags,
        from: Option<u64>,
    },
}

impl Reply {
    pub(crate) fn error(errno: i32) -> Reply {
        Reply::Now(Answer::error(errno))
    }

    /// Of a call that sends with `flags` where nothing can be sent any more.
    fn broken_pipe(flags: i32) -> Reply {
        if flags & libc::MSG_NOSIGNAL == 0 { Reply::BrokenPipe } else { Reply::error(libc::EPIPE) }
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
}

impl Supervisor {
    /// Does a call. `again`: it has waited for its socket.
    pub(crate) fn handle(&mut self, call: &Call, again: bool) -> Reply {
        if call.number == libc::SYS_socket {
            return create(call).unwrap_or_else(Reply::from);
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
        let Some(&id) = self.by_inode.get(&inode) else { return self.on_other(call, inode) };
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.seen = (call.thread, call.fd());
        }
        let reply = self.dispatch(On { call, id, non_blocking, again }).unwrap_or_else(|reply| reply);
        self.watch(id);
        reply
    }

    fn dispatch(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        match on.call.number {
            libc::SYS_bind => self.bind(on),
            libc::SYS_listen => self.listen(on),
            libc::SYS_connect => self.connect(on),
            libc::SYS_accept | libc::SYS_accept4 => self.accept(on),
            libc::SYS_shutdown => self.shut(on),
            libc::SYS_getsockname => self.name(on, libc::getsockname),
            libc::SYS_getpeername => self.name(on, libc::getpeername),
            libc::SYS_getsockopt => self.option(on),
            libc::SYS_setsockopt => self.set_option(on),
            _ => self.message(on),
        }
    }

    /// Not a socket of ours, or one whose connection has ended.
    fn on_other(&self, call: &Call, inode: u64) -> Reply {
        let Some((_, name)) = self.ended.iter().rev().find(|(ended, _)| *ended == inode) else {
            return Reply::Now(Answer::Native);
        };
        let [_, at, len_at, flags, address, _] = call.arguments;
        match call.number {
            // With an address the pair would say EISCONN.
            libc::SYS_sendto if address != 0 => Reply::broken_pipe(flags as i32),
            libc::SYS_getsockname => {
                Reply::Now(Answer::of(target::write_sized(call.thread, at, len_at, name)))
            }
            libc::SYS_getpeername | libc::SYS_shutdown => Reply::error(libc::ENOTCONN),
            libc::SYS_connect => Reply::error(libc::EISCONN),
            libc::SYS_setsockopt => Reply::Now(Answer::Value(0)),
            _ => Reply::Now(Answer::Native),
        }
    }

    fn socket(&mut self, on: On<'_>) -> Result<&mut Socket, Reply> {
        self.sockets.get_mut(&on.id).ok_or_else(|| Reply::error(libc::EBADF))
    }

    fn bind(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        let [_, at, len, ..] = on.call.arguments;
        let address = target::read_address(on.call.thread, at, len)?;
        let mut bound = sys::with_address(libc::bind, &self.socket(on)?.inner, &address);
        if matches!(&bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse) {
            // By a socket perhaps that the program has closed, which is not trapped.
            self.see_closed();
            bound = sys::with_address(libc::bind, &self.socket(on)?.inner, &address);
        }
        bound?;
        Ok(Reply::Now(Answer::Value(0)))
    }

    fn listen(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        let socket = self.socket(on)?;
        sys::listen(&socket.inner, on.call.arguments[1] as i32)?;
        if let State::Fresh = socket.state {
            socket.state = State::Listening { signalled: false, ready: VecDeque::new() };
        }
        Ok(Reply::Now(Answer::Value(0)))
    }

    fn connect(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        let [_, at, len, ..] = on.call.arguments;
        let address = target::read_address(on.call.thread, at, len)?;
        let socket = self.socket(on)?;
        match &socket.state {
            State::Connecting { .. } if on.non_blocking && !on.again => Err(Reply::error(libc::EALREADY)),
            State::Connecting { .. } => Ok(wait_for_connection(on.id, socket)),
            State::Stream(_) if on.again => Ok(Reply::Now(Answer::Value(0))),
            State::Failed => {
                // Told once, by whichever call; who has it from SO_ERROR is told that much (`inet_stream_connect`).
                fill(&target::duplicate(on.call.thread, on.call.fd(), socket.inode)?)?;
                socket.state = State::Fresh;
                let error = Some(std::mem::take(&mut socket.error)).filter(|&error| error != 0);
                Err(Reply::error(error.unwrap_or(libc::ECONNABORTED)))
            }
            _ if on.again => Err(Reply::error(std::mem::take(&mut socket.error))),
            State::Fresh => start_connecting(on, socket, &address),
            State::Stream(_) | State::Listening { .. } | State::Datagram(_) => {
                sys::with_address(libc::connect, &socket.inner, &address)?;
                Ok(Reply::Now(Answer::Value(0)))
            }
        }
    }

    fn accept(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        let [_, at, len_at, flags, ..] = on.call.arguments;
        let flags = if on.call.number == libc::SYS_accept4 { flags as i32 } else { 0 };
        if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
            return Err(Reply::error(libc::EINVAL));
        }
        let socket = self.socket(on)?;
        let State::Listening { ready, .. } = &mut socket.state else {
            return Err(Reply::error(libc::EINVAL));
        };
        let taken = ready.pop_front().map_or_else(|| sys::accept(&socket.inner), Ok);
        // Tokens that stay wake the program once too often; a connection that it is not given is lost.
        let _ = take_tokens(on, socket);
        let accepted = match taken {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if on.non_blocking && !on.again {
                    return Err(Reply::error(libc::EAGAIN));
                }
                let limit = time_limit(&socket.inner, libc::SO_RCVTIMEO);
                return Ok(Reply::Later { socket: on.id, limit, errno: libc::EAGAIN });
            }
            Err(error) => return Err(error.into()),
        };
        if at != 0
            && let Ok(name) = sys::name(libc::getpeername, &accepted)
        {
            target::write_sized(on.call.thread, at, len_at, &name)?;
        }
        let reported = socket.reported;
        let (mut accepted, outer) = Socket::accepted(accepted, flags & libc::SOCK_NONBLOCK != 0)?;
        accepted.reported = reported;
        let flags = Flags { close_on_exec: flags & libc::SOCK_CLOEXEC != 0 };
        Ok(Reply::Give { socket: Box::new(accepted), outer, flags, from: Some(on.id) })
    }

    /// Of a connection or a datagram socket the pair's own end is shut, and the path's when that is seen.
    fn shut(&mut self, on: On<'_>) -> Result<Reply, Reply> {
        let how = on.call.arguments[1] as i32;
        let mut space = std::mem::take(&mut self.space);
        let ended = self.socket(on).map(|socket| match &mut socket.state {
            State::Datagram(datagram) => datagram.shut(how, &socket.peer, &socket.inner, &mut space),
            _ => false,
        });
        self.space = space;
        if ended? {
            self.remove(on.id);
            return Ok(Reply::Now(Answer::Native));
        }
        let socket = self.socket(on)?;
        match &socket.state {
            State::Stream(_) | State::Connecting { .. } | State::Datagram(_) => {
                return Ok(Reply::Now(Answer::Native));
            }
            State::Fresh | State::Failed | State::Listening { .. } => sys::shutdown(&socket.inner, how)?,
        }
        if how != libc::SHUT_WR && matches!(socket.state, State::Listening { .. }) {
            // It listens no more: whoever waits for a connection is told so.
            take_tokens(on, socket)?;
            socket.state = State::Fresh;
            self.retry(on.id);
        }
        Ok(Reply::Now(Answer::Value(0)))
    }

    fn name(
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
        if room.cast_signed() < 0 {
            return Err(Reply::error(libc::EINVAL));
        }
        if filter::is_filter(level, name) {
            return self.filter(on, room as usize);
        }
        let socket = self.socket(on)?;
        if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
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
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) && socket.error != 0 {
            let inode = socket.inode;
            let outer = || target::duplicate(on.call.thread, on.call.fd(), inode);
            let error = socket.take_error(outer).to_ne_bytes();
            len = error.len().min(value.len());
            value[..len].copy_from_slice(&error[..len]);
        }
        sys::write_memory(on.call.thread, at, &value[..len])?;
        sys::write_memory(on.call.thread, len_at, &(len as u32).to_ne_bytes())?;
        Ok(Reply::Now(Answer::Value(0)))
    }

    /// Datagrams that the program has written already leave by the options that held then.
    fn send_written(&mut self, on: On<'_>) -> Result<(), Reply> {
        let mut space = std::mem::take(&mut self.space);
        let sent = self.socket(on).map(|socket| {
            if let State::Datagram(datagram) = &mut socket.state
                && let Err(error) = datagram.drain(&socket.peer, &socket.inner, &mut space)
            {
                socket.on_error(sys::errno(&error));
            }
        });
        self.space = space;
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
        // Reading and writing happen on the program's end. What waits for a low water mark must come there, too.
        if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
            return Ok(Reply::Now(Answer::Native));
        }
        // What asks for notices about what the pair copies would wait for them.
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ZEROCOPY) && value == 1i32.to_ne_bytes() {
            return Err(Reply::error(libc::EOPNOTSUPP));
        }
        let socket = self.socket(on)?;
        // Looks and control messages are the pair's, which knows nothing of these but their being off.
        let off = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_PEEK_OFF) => Some(-1i32),
            (libc::IPPROTO_TCP, TCP_INQ) => Some(0),
            _ => None,
        };
        if off.is_some_and(|off| value != off.to_ne_bytes()) {
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
        let times = level == libc::SOL_SOCKET && [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].contains(&name);
        let connected = !matches!(socket.state, State::Fresh | State::Listening { .. } | State::Failed);
        Ok(Reply::Now(if times && connected { Answer::Native } else { Answer::Value(0) }))
    }
}

fn create(call: &Call) -> io::Result<Reply> {
    let (socket, outer) = Socket::create(call)?;
    let flags = Flags { close_on_exec: call.arguments[1] as i32 & libc::SOCK_CLOEXEC != 0 };
    Ok(Reply::Give { socket: Box::new(socket), outer, flags, from: None })
}

fn start_connecting(on: On<'_>, socket: &mut Socket, address: &[u8]) -> Result<Reply, Reply> {
    let outer = target::duplicate(on.call.thread, on.call.fd(), socket.inode)?;
    let connecting = sys::with_address(libc::connect, &socket.inner, address);
    if connecting.as_ref().map_or_else(|error| sys::errno(error) == libc::EINPROGRESS, |()| true) {
        socket.give_times_back(&outer);
    }
    match connecting {
        Ok(()) => {
            socket.establish(&outer);
            Ok(Reply::Now(Answer::Value(0)))
        }
        Err(error) if sys::errno(&error) == libc::EINPROGRESS => {
            socket.state = State::Connecting { outer, address: address.to_vec() };
            if on.non_blocking {
                return Err(error.into());
            }
            Ok(wait_for_connection(on.id, socket))
        }
        Err(error) => Err(error.into()),
    }
}

/// When no connection waits any more the program's descriptor is not readable.
fn take_tokens(on: On<'_>, socket: &mut Socket) -> Result<(), Reply> {
    if let State::Listening { signalled, ready } = &mut socket.state
        && *signalled
        && ready.is_empty()
        && !sys::readable(&socket.inner)
    {
        let outer = target::duplicate(on.call.thread, on.call.fd(), socket.inode)?;
        while sys::receive(&outer, &mut [0; 64], 0).is_ok_and(|len| len == 64) {}
        *signalled = false;
    }
    Ok(())
}

fn wait_for_connection(id: u64, socket: &Socket) -> Reply {
    let limit = time_limit(&socket.inner, libc::SO_SNDTIMEO);
    Reply::Later { socket: id, limit, errno: libc::EINPROGRESS }
}
