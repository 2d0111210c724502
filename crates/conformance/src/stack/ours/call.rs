//! The calls of the model program, each tried until it is done: what the shim does before it sleeps, and again when it
//! is woken.

mod options;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use scoutline_abi::datagram::{HEADER_LEN, Record};
use scoutline_abi::layout::{call_op, fast_open, slot_kind, slot_request as ask, slot_state as is};
use scoutline_base::{Address, Time};
use scoutline_engine::Driven;
use scoutline_sim::model::{self, More, Socket};

use super::Program;
use super::descriptor::Fd;
use super::epoll::Epoll;
use crate::stack::{Answer, Op};

/// Linux, asm/sockios.h.
const SIOCATMARK: u64 = 0x8905;

/// How far a call has come.
pub(super) enum Tried {
    /// It returns this.
    Done(Answer),
    /// It sleeps: to be tried again as `again`, and given up after `patience`.
    Blocks {
        /// What is left of it.
        again: Op,
        /// How long it waits at most.
        patience: Option<Duration>,
    },
}

impl From<Result<Answer, i32>> for Tried {
    fn from(result: Result<Answer, i32>) -> Tried {
        Tried::Done(result.unwrap_or_else(Answer::error))
    }
}

fn done(value: i64) -> Tried {
    Tried::Done(Answer::of(value))
}

fn fails(errno: i32) -> Tried {
    Tried::Done(Answer::error(errno))
}

fn within(microseconds: u64) -> Option<Duration> {
    (microseconds > 0).then(|| Duration::from_micros(microseconds))
}

/// Tries a call. `overdue`: it has waited as long as it may.
pub(super) fn attempt(
    program: &mut Program,
    engine: &mut Driven,
    now: Time,
    op: &Op,
    new_fd: i32,
    overdue: bool,
) -> Tried {
    Caller { program, engine, now, op, new_fd, overdue }.attempt()
}

struct Caller<'a> {
    program: &'a mut Program,
    engine: &'a mut Driven,
    now: Time,
    op: &'a Op,
    new_fd: i32,
    overdue: bool,
}

impl Caller<'_> {
    fn attempt(&mut self) -> Tried {
        match *self.op {
            Op::Socket { inet6, stream, non_blocking } => self.socket(inet6, stream, non_blocking),
            Op::Poll { ref fds, timeout } => self.poll(fds, timeout),
            Op::Close { fd } => self.close_fd(fd),
            Op::EpollCreate => {
                let set = self.program.epolls.len() as u32;
                self.program.epolls.insert(self.new_fd, Epoll::new(set));
                done(0)
            }
            Op::EpollControl { epoll, op, fd, events, data } => self.control(epoll, op, fd, (events, data)),
            Op::EpollWait { epoll, most, timeout } => self.await_events(epoll, most, timeout),
            Op::Bind { fd, .. }
            | Op::Listen { fd, .. }
            | Op::Accept { fd, .. }
            | Op::Connect { fd, .. }
            | Op::Send { fd, .. }
            | Op::Receive { fd, .. }
            | Op::Shutdown { fd, .. }
            | Op::SetOption { fd, .. }
            | Op::GetOption { fd, .. }
            | Op::Fcntl { fd, .. }
            | Op::Ioctl { fd, .. }
            | Op::Name { fd, .. } => {
                let Some(mut state) = self.program.fds.get(&fd).cloned() else { return fails(libc::EBADF) };
                let tried = self.of_socket(&mut state);
                self.program.fds.insert(fd, state);
                tried
            }
        }
    }

    fn of_socket(&mut self, fd: &mut Fd) -> Tried {
        match *self.op {
            Op::Bind { at, .. } => self.bind(fd, at),
            Op::Listen { backlog, .. } => self.listen(fd, backlog),
            Op::Accept { non_blocking, .. } => self.accept(fd, non_blocking),
            Op::Connect { to, .. } => self.connect(fd, to),
            Op::Send { ref data, flags, to, sent, .. } => {
                let socket = self.at(fd);
                if socket.is_stream() && flags & libc::MSG_FASTOPEN != 0 {
                    self.send_fast(fd, to, data, flags)
                } else if socket.is_stream() {
                    self.send(fd, data, flags, sent)
                } else {
                    self.send_datagram(fd, data, flags, to)
                }
            }
            Op::Receive { len, flags, .. } => {
                let socket = self.at(fd);
                if socket.is_stream() {
                    self.receive(fd, len, flags)
                } else {
                    self.receive_datagram(fd, len, flags)
                }
            }
            Op::Shutdown { how, .. } => self.shutdown(fd, how),
            Op::SetOption { option, ref value, .. } => self.set_option(fd, option, value).into(),
            Op::GetOption { option, .. } => self.option(fd, option).into(),
            Op::Fcntl { command, argument, .. } => match command {
                libc::F_SETFL => {
                    fd.non_blocking = argument & libc::O_NONBLOCK != 0;
                    done(0)
                }
                _ => done(i64::from(libc::O_RDWR | if fd.non_blocking { libc::O_NONBLOCK } else { 0 })),
            },
            Op::Ioctl { request, .. } => self.ioctl(fd, request),
            Op::Name { peer, .. } => self.name(fd, peer),
            Op::Socket { .. }
            | Op::Poll { .. }
            | Op::Close { .. }
            | Op::EpollCreate
            | Op::EpollControl { .. }
            | Op::EpollWait { .. } => fails(libc::EBADF),
        }
    }

    fn at(&self, fd: &Fd) -> Socket<'_> {
        Socket::at(&self.program.region, fd.slot)
    }

    /// Asks the engine; it answers at once.
    fn call(&mut self, op: u32, slot: u32, arguments: [u64; 4]) -> i32 {
        model::call(&self.program.region, self.engine, self.now, op, slot, arguments)
    }

    /// A call whose answer is the result of the program's own.
    fn plain(&mut self, op: u32, slot: u32, arguments: [u64; 4]) -> Tried {
        match self.call(op, slot, arguments) {
            result if result < 0 => fails(-result),
            _ => done(0),
        }
    }

    fn blocks(&self, patience: Option<Duration>) -> Tried {
        Tried::Blocks { again: self.op.clone(), patience }
    }

    fn socket(&mut self, inet6: bool, stream: bool, non_blocking: bool) -> Tried {
        let kind = if stream { slot_kind::STREAM } else { slot_kind::DATAGRAM };
        let family = if inet6 { libc::AF_INET6 } else { libc::AF_INET };
        let slot = self.call(call_op::OPEN, 0, [u64::from(kind), family as u64, 0, 0]);
        if slot < 0 {
            return fails(-slot);
        }
        let fd = Fd { slot: slot as u32, inet6, non_blocking, low_water: 1, ..Fd::default() };
        self.program.fds.insert(self.new_fd, fd);
        done(0)
    }

    fn bind(&mut self, fd: &Fd, (address, port): (Address, u16)) -> Tried {
        if self.at(fd).state() & is::BOUND != 0 {
            return fails(libc::EINVAL);
        }
        let [first, second] = address.words();
        self.plain(call_op::BIND, fd.slot, [second, u64::from(port), fd.reuse, first])
    }

    fn listen(&mut self, fd: &Fd, backlog: i32) -> Tried {
        let socket = self.at(fd);
        if !socket.is_stream() {
            return fails(libc::EOPNOTSUPP);
        }
        if socket.state() & (is::CONNECTED | is::CONNECTING) != 0 {
            return fails(libc::EINVAL);
        }
        self.plain(call_op::LISTEN, fd.slot, [u64::from(backlog.cast_unsigned()), 0, 0, 0])
    }

    fn accept(&mut self, fd: &Fd, non_blocking: bool) -> Tried {
        let listener = self.at(fd);
        if !listener.is_stream() {
            return fails(libc::EOPNOTSUPP);
        }
        if listener.state() & is::LISTENING == 0 || listener.requests() & ask::SHUTDOWN_READ != 0 {
            return fails(libc::EINVAL);
        }
        if listener.received() == 0 {
            return if fd.non_blocking || self.overdue {
                fails(libc::EAGAIN)
            } else {
                self.blocks(within(fd.receive_timeout_us))
            };
        }
        let head = listener.slot.receive_head.load(Relaxed);
        let (offset, size) =
            (listener.slot.receive_offset.load(Relaxed), listener.slot.receive_size.load(Relaxed));
        let spans = listener.region.ring_spans(offset, size, head * 4, 4).expect("a queue of the engine's");
        let mut entry = [0; 4];
        // SAFETY: four bytes of the queue, which never wrap.
        unsafe { spans[0].copy_to(&mut entry) };
        listener.slot.receive_head.store(head + 1, Release);
        let slot = u32::from_le_bytes(entry);
        let accepted = Socket::at(&self.program.region, slot);
        accepted.slot.references.fetch_add(1, SeqCst);
        let address = Some(remote(accepted));
        let inherited = Fd { slot, non_blocking, connect_pending: false, ..fd.clone() };
        self.program.fds.insert(self.new_fd, inherited);
        Tried::Done(Answer { address, ..Answer::of(0) })
    }

    fn connect(&mut self, fd: &mut Fd, to: Option<(Address, u16)>) -> Tried {
        let socket = self.at(fd);
        let state = socket.state();
        if !socket.is_stream() {
            return match to {
                Some((address, port)) => self.plain(call_op::CONNECT, fd.slot, peer(address, port, 0)),
                None => self.plain(call_op::DISCONNECT, fd.slot, [0; 4]),
            };
        }
        if fd.connect_pending {
            if state & (is::FAILED | is::CONNECTED) != 0 {
                fd.connect_pending = false;
            }
            if state & is::FAILED != 0 {
                let errno = socket.take_error();
                return fails(if errno == 0 { libc::ECONNABORTED } else { errno });
            }
            if state & is::CONNECTED != 0 {
                return done(0);
            }
            return match (fd.non_blocking, self.overdue) {
                (true, _) => fails(libc::EALREADY),
                (false, true) => fails(libc::EINPROGRESS),
                (false, false) => self.blocks(within(fd.send_timeout_us)),
            };
        }
        if state & (is::CONNECTED | is::LISTENING) != 0 {
            return fails(libc::EISCONN);
        }
        let Some((address, port)) = to else { return fails(libc::EAFNOSUPPORT) };
        let how = if fd.fast_open_connect { fast_open::OPTION } else { 0 };
        let result = self.call(call_op::CONNECT, fd.slot, peer(address, port, how));
        if result < 0 {
            return fails(-result);
        }
        if result > 0 {
            return done(0); // the SYN waits for what is written
        }
        fd.connect_pending = true;
        if fd.non_blocking { fails(libc::EINPROGRESS) } else { self.blocks(within(fd.send_timeout_us)) }
    }

    /// `sendto` with MSG_FASTOPEN: connects as well.
    fn send_fast(&mut self, fd: &mut Fd, to: Option<(Address, u16)>, data: &[u8], flags: i32) -> Tried {
        let flags = flags & !libc::MSG_FASTOPEN;
        let state = self.at(fd).state();
        if state & is::CONNECTED != 0 && !std::mem::take(&mut fd.connect_pending) {
            return fails(libc::EISCONN);
        }
        let waits = self.at(fd).room_with_syn().is_some();
        if state & is::CONNECTED == 0 && fd.connect_pending {
            return fails(libc::EALREADY);
        }
        if state & is::CONNECTED == 0 && !waits {
            let Some((address, port)) = to else { return fails(libc::EOPNOTSUPP) };
            let how = if data.is_empty() { fast_open::NO_DATA } else { fast_open::DATA };
            let result = self.call(call_op::CONNECT, fd.slot, peer(address, port, how));
            if result < 0 {
                return fails(-result);
            }
            fd.connect_pending = true;
            if result == 0 && (fd.non_blocking || flags & libc::MSG_DONTWAIT != 0) {
                return fails(libc::EINPROGRESS);
            }
        }
        match self.send(fd, data, flags, 0) {
            // As Linux: a call that blocks returns when the connection stands.
            Tried::Done(answer) if answer.value >= 0 && !fd.non_blocking && self.at(fd).is_connecting() => {
                let again = Op::Send { fd: self.fd(), data: data.to_vec(), flags, to, sent: data.len() };
                Tried::Blocks { again, patience: within(fd.send_timeout_us) }
            }
            Tried::Blocks { mut again, patience } => {
                if let Op::Send { flags, .. } = &mut again {
                    *flags &= !libc::MSG_FASTOPEN;
                }
                Tried::Blocks { again, patience }
            }
            tried @ Tried::Done(_) => tried,
        }
    }

    /// The descriptor of a call that sends.
    fn fd(&self) -> i32 {
        if let Op::Send { fd, .. } = *self.op { fd } else { -1 }
    }

    /// `sent` of the data has gone before: a call that blocks returns when all has.
    fn send(&mut self, fd: &mut Fd, data: &[u8], flags: i32, sent: usize) -> Tried {
        let socket = Socket::at(&self.program.region, fd.slot);
        let ends = |errno| if sent > 0 { done(sent as i64) } else { fails(errno) };
        if socket.send_over() {
            return if sent > 0 { done(sent as i64) } else { fails(socket.send_end()) };
        }
        let non_blocking = fd.non_blocking || flags & libc::MSG_DONTWAIT != 0;
        let room = if socket.is_connecting() { 0 } else { socket.sendable() };
        if room == 0 {
            if non_blocking || self.overdue {
                return ends(libc::EAGAIN);
            }
            socket.slot.send_wanted.store(1, SeqCst);
            return self.blocks(within(fd.send_timeout_us));
        }
        if sent > 0 && !socket.roomy() {
            // The shim is woken when there is room enough, not for every byte.
            socket.slot.send_wanted.store(1, SeqCst);
            return self.blocks(within(fd.send_timeout_us));
        }
        let fits = data.len() - sent <= socket.sendable() as usize;
        let more = match (fd.cork, fits && flags & libc::MSG_MORE != 0) {
            (true, false) => Some(More::Corked),
            (true, true) => Some(More::Both),
            (false, true) => Some(More::ByCall),
            (false, false) => None,
        };
        if flags & libc::MSG_OOB != 0 {
            socket.announce_urgent(data.len() - sent);
        }
        let mut put = sent + socket.put(&data[sent..], more);
        // The shim may be in no hurry to tell when more follows: but this program sleeps between its calls.
        socket.tell();
        while put < data.len() && socket.slot.unsent_bound().is_some() {
            // The engine runs beside the program, and what it sends meanwhile makes room (TCP_NOTSENT_LOWAT).
            self.engine.settle(self.now);
            match socket.put(&data[put..], more) {
                0 => break,
                next => put += next,
            }
            socket.tell();
        }
        if put == data.len() || non_blocking {
            return done(put as i64);
        }
        socket.slot.send_wanted.store(1, SeqCst);
        let mut again = self.op.clone();
        if let Op::Send { sent, .. } = &mut again {
            *sent = put;
        }
        Tried::Blocks { again, patience: within(fd.send_timeout_us) }
    }

    fn receive(&mut self, fd: &Fd, len: usize, flags: i32) -> Tried {
        let socket = self.at(fd);
        let look_only = flags & libc::MSG_PEEK != 0;
        if flags & libc::MSG_OOB != 0 {
            return match socket.take_urgent(fd.oob_inline, look_only) {
                Ok(bytes) => Tried::Done(Answer { bytes: bytes.clone(), ..Answer::of(bytes.len() as i64) }),
                Err(errno) => fails(errno),
            };
        }
        if len == 0 {
            return done(0);
        }
        let target = if flags & libc::MSG_WAITALL != 0 { len } else { len.min(fd.low_water.max(1) as usize) };
        let over = socket.receive_over();
        let listening = socket.state() & is::LISTENING != 0;
        let (held, ends) = if listening { (0, false) } else { socket.readable(fd.oob_inline) };
        let held = held as usize;
        let non_blocking = fd.non_blocking || flags & libc::MSG_DONTWAIT != 0 || self.overdue;
        if held >= target || (held > 0 && (over || ends || non_blocking)) {
            if !look_only {
                socket.pass_urgent(fd.oob_inline);
            }
            let bytes = socket.take(len.min(held), look_only);
            return Tried::Done(Answer { bytes: bytes.clone(), ..Answer::of(bytes.len() as i64) });
        }
        if over || listening {
            return match socket.receive_end() {
                Ok(()) => done(0),
                Err(errno) => fails(errno),
            };
        }
        if non_blocking { fails(libc::EAGAIN) } else { self.blocks(within(fd.receive_timeout_us)) }
    }

    fn send_datagram(&mut self, fd: &Fd, data: &[u8], flags: i32, to: Option<(Address, u16)>) -> Tried {
        let socket = self.at(fd);
        if data.len() > 65_507 {
            return fails(libc::EMSGSIZE);
        }
        if to.is_some() && socket.state() & is::BOUND == 0 {
            // The shim binds a socket that sends to where paths lead.
            let [first, second] = fd.any().words();
            let result = self.call(call_op::BIND, fd.slot, [second, 0, 0, first]);
            if result < 0 {
                return fails(-result);
            }
        }
        let socket = self.at(fd);
        let (address, port) = match to {
            Some((_, 0)) => return fails(libc::EINVAL),
            Some(to) => to,
            None if socket.state() & is::CONNECTED == 0 => return fails(libc::EDESTADDRREQ),
            None => (Address::UNSPECIFIED_V4, 0),
        };
        let errno = socket.take_error();
        if errno != 0 {
            return fails(errno);
        }
        let mut bytes =
            Record { len: data.len() as u32, address, port, ..Record::default() }.to_bytes().to_vec();
        bytes.extend(data);
        bytes.resize(Record::ring_len(data.len()) as usize, 0);
        if bytes.len() as u64 > u64::from(socket.slot.send_size.load(Relaxed)) {
            return fails(libc::EMSGSIZE);
        }
        if socket.sendable() < bytes.len() as u64 {
            let non_blocking = fd.non_blocking || flags & libc::MSG_DONTWAIT != 0 || self.overdue;
            return if non_blocking { fails(libc::EAGAIN) } else { self.blocks(within(fd.send_timeout_us)) };
        }
        socket.put(&bytes, None);
        socket.tell();
        done(data.len() as i64)
    }

    fn receive_datagram(&mut self, fd: &Fd, len: usize, flags: i32) -> Tried {
        let socket = self.at(fd);
        let errno = socket.take_error();
        if errno != 0 {
            return fails(errno);
        }
        let held = socket.received();
        if held < HEADER_LEN as u64 {
            let non_blocking = fd.non_blocking || flags & libc::MSG_DONTWAIT != 0 || self.overdue;
            return if non_blocking {
                fails(libc::EAGAIN)
            } else {
                self.blocks(within(fd.receive_timeout_us))
            };
        }
        let head = socket.slot.receive_head.load(Relaxed);
        let header: [u8; HEADER_LEN] = socket.copy_out(head, HEADER_LEN).try_into().expect("a header");
        let record = Record::from_bytes(header);
        let copied = (record.len as usize).min(len);
        let bytes = socket.copy_out(head + HEADER_LEN as u64, copied);
        if flags & libc::MSG_PEEK == 0 {
            socket.slot.receive_head.store(head + Record::ring_len(record.len as usize), Release);
        }
        let value = if flags & libc::MSG_TRUNC != 0 { i64::from(record.len) } else { copied as i64 };
        let address = Some((record.address, record.port));
        Tried::Done(Answer { bytes, address, ..Answer::of(value) })
    }

    fn shutdown(&mut self, fd: &mut Fd, how: i32) -> Tried {
        let socket = self.at(fd);
        let bits = match how {
            libc::SHUT_RD => ask::SHUTDOWN_READ,
            libc::SHUT_WR => ask::SHUTDOWN,
            libc::SHUT_RDWR => ask::SHUTDOWN | ask::SHUTDOWN_READ,
            _ => return fails(libc::EINVAL),
        };
        let state = socket.state();
        if state & is::LISTENING == 0 && (state & is::CONNECTED == 0 || state & is::FAILED != 0) {
            return fails(libc::ENOTCONN);
        }
        let is_watched = socket.slot.sets.iter().any(|word| word.load(Relaxed) != 0);
        socket.request(bits | if is_watched { ask::WAKE } else { 0 });
        done(0)
    }

    fn close_fd(&mut self, fd: i32) -> Tried {
        let Some(state) = self.program.fds.remove(&fd) else {
            return if self.program.epolls.remove(&fd).is_some() { done(0) } else { fails(libc::EBADF) };
        };
        for epoll in self.program.epolls.values_mut() {
            epoll.forget(fd);
        }
        self.close(&state)
    }

    fn close(&mut self, fd: &Fd) -> Tried {
        let socket = self.at(fd);
        let abort = if fd.linger_plus_one == 1 { ask::ABORT } else { 0 };
        if socket.slot.references.fetch_sub(1, SeqCst) == 1 {
            socket.request(ask::CLOSE | abort);
        }
        done(0)
    }

    fn ioctl(&mut self, fd: &Fd, request: u64) -> Tried {
        let socket = self.at(fd);
        let value = match request {
            libc::FIONREAD if socket.is_stream() && fd.oob_inline => socket.received(),
            libc::FIONREAD if socket.is_stream() => socket.readable(false).0,
            SIOCATMARK => u64::from(socket.urgent_distance(fd.oob_inline) == Some(0)),
            libc::FIONREAD if socket.received() >= HEADER_LEN as u64 => {
                let head = socket.slot.receive_head.load(Relaxed);
                let header = socket.copy_out(head, HEADER_LEN).try_into().expect("a header");
                u64::from(Record::from_bytes(header).len)
            }
            libc::FIONREAD => 0,
            libc::TIOCOUTQ => {
                socket.slot.send_tail.load(Relaxed).wrapping_sub(socket.slot.send_head.load(Acquire))
            }
            _ => return fails(libc::EINVAL),
        };
        Tried::Done(Answer { bytes: (value as i32).to_ne_bytes().to_vec(), ..Answer::of(0) })
    }

    fn poll(&mut self, fds: &[(i32, i16)], timeout: i32) -> Tried {
        let region = &self.program.region;
        let events: Vec<i16> = fds
            .iter()
            .map(|(fd, asked)| match self.program.fds.get(fd) {
                Some(state) => {
                    let socket = Socket::at(region, state.slot);
                    if asked & libc::POLLOUT != 0 && !socket.roomy() {
                        socket.slot.send_wanted.store(1, SeqCst);
                    }
                    socket.readiness(state.low_water, state.oob_inline)
                        & (asked | libc::POLLERR | libc::POLLHUP)
                }
                None => libc::POLLNVAL,
            })
            .collect();
        let ready = events.iter().filter(|events| **events != 0).count();
        if ready > 0 || timeout == 0 || self.overdue {
            return Tried::Done(Answer { events, ..Answer::of(ready as i64) });
        }
        self.blocks(u64::try_from(timeout).ok().map(Duration::from_millis))
    }

    fn control(&mut self, epoll: i32, op: i32, fd: i32, asked: (u32, u64)) -> Tried {
        let Program { region, fds, epolls } = &mut *self.program;
        let (Some(epoll), Some(state)) = (epolls.get_mut(&epoll), fds.get(&fd)) else {
            return fails(libc::EBADF);
        };
        epoll.control(region, op, (fd, state), asked).map(|()| Answer::of(0)).into()
    }

    fn await_events(&mut self, epoll: i32, most: usize, timeout: i32) -> Tried {
        let Program { region, epolls, .. } = &mut *self.program;
        let Some(epoll) = epolls.get_mut(&epoll) else { return fails(libc::EBADF) };
        let told = epoll.collect(region, most);
        if told.is_empty() && timeout != 0 && !self.overdue {
            return self.blocks(u64::try_from(timeout).ok().map(Duration::from_millis));
        }
        // As struct epoll_event has it: packed.
        let bytes =
            told.iter().flat_map(|(events, data)| events.to_ne_bytes().into_iter().chain(data.to_ne_bytes()));
        Tried::Done(Answer { bytes: bytes.collect(), ..Answer::of(told.len() as i64) })
    }

    fn name(&mut self, fd: &Fd, peer: bool) -> Tried {
        let socket = self.at(fd);
        let address = if peer {
            if socket.state() & is::CONNECTED == 0 || socket.state() & is::FAILED != 0 {
                return fails(libc::ENOTCONN);
            }
            remote(socket)
        } else {
            let slot = socket.slot;
            (slot.local_address.load(), slot.local_port.load(Relaxed) as u16)
        };
        Tried::Done(Answer { address: Some(address), ..Answer::of(0) })
    }
}

/// The arguments of CONNECT; `how` is of [`fast_open`].
fn peer(address: Address, port: u16, how: u64) -> [u64; 4] {
    let [first, second] = address.words();
    [second, u64::from(port), how << 32, first]
}

fn remote(socket: Socket<'_>) -> (Address, u16) {
    let slot = socket.slot;
    (slot.remote_address.load(), slot.remote_port.load(Relaxed) as u16)
}
