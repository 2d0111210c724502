//! Calls of programs: make, bind, listen, connect. Each is answered at once; what takes time (a handshake) shows
//! in the slot's state.

use std::any::Any;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::datagram::{ErrorRecord, origin};
use scoutline_abi::layout::fast_open::ANY_PORT;
use scoutline_abi::layout::{
    CALL_COUNT, Call, SLOT_COUNT, call_op, call_state, slot_kind, slot_option, slot_state,
};
use scoutline_base::{Address, Endpoint, PathId, Time};
use scoutline_path::{Attributes, CreateError, DropReason, Name, Path, Tuning, Value};
use scoutline_proto::bindings::Sharing;
use scoutline_proto::tcp::module::{FAST_OPEN_QUEUE, HEADERS, MAX_SEGMENT, TUNING};
use scoutline_proto::tcp::{Algorithm, ListenStage};
use scoutline_wire::ipv4::PROTOCOL_TCP as TCP;

use super::Core;
use super::binding::{V6_ONLY, anywhere, sharing_by};
use super::fast_open::begin_fast;
use super::paths::flow_key;
use super::wishes::name_in;
use crate::extend::Duty;
use crate::program::Program;
use crate::socket::{ACCEPT_RING, Sizes, SocketEnd, StreamStage};
use crate::wishes::Granted;

/// TCP_DEFER_ACCEPT counts up to this, in seconds: longer than anybody waits for a request.
const MAX_DEFER_S: u64 = 3600;
/// An errno as a result.
pub(super) type Errno = i32;

impl Core {
    /// Answers all calls that a program has posted.
    pub(super) fn answer_calls(&mut self, program: &Rc<Program>, now: Time) {
        for word in 0..CALL_COUNT / 64 {
            let mut bits = program.calls_pending()[word].swap(0, Ordering::AcqRel);
            while bits != 0 {
                let index = word as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                let Some(call) = program.region.call(index) else { continue };
                if call.state.load(Ordering::Acquire) != call_state::POSTED {
                    continue;
                }
                self.counters.calls += 1;
                let result = self.answer(program, call, now).unwrap_or_else(|errno| -errno);
                call.result.store(result, Ordering::Relaxed);
                let set = call.set.load(Ordering::Relaxed);
                call.state.store(call_state::DONE, Ordering::SeqCst);
                if let Some(set) = set.checked_sub(1) {
                    program.wake_set(set, Duty::default());
                }
            }
        }
    }

    fn answer(&mut self, program: &Rc<Program>, call: &Call, now: Time) -> Result<i32, Errno> {
        let argument = |index: usize| call.arguments[index].load(Ordering::Relaxed);
        let op = call.op.load(Ordering::Relaxed);
        if op == call_op::OPEN {
            return Self::open_socket(program, call, argument(0) as u32);
        }
        let address = || Endpoint {
            address: Address::from_words([argument(3), argument(0)]),
            port: argument(1) as u16,
        };
        if op == call_op::IS_LISTENED_AT {
            return Ok(i32::from(self.is_listened_at(argument(2) as u32, address())));
        }
        match op {
            call_op::TAKE => return self.take_passed(program, call, argument(0), now),
            call_op::IS_ON_PATHS => return Ok(i32::from(self.is_on_paths(argument(0) as u32))),
            _ => {}
        }
        let slot = call.slot.load(Ordering::Relaxed);
        // Another engine's may have a shadow here.
        let end = program.end(slot).filter(|_| program.serves(slot)).ok_or(libc::EBADF)?;
        match op {
            call_op::BIND => {
                end.v6_only.set(argument(2) & V6_ONLY != 0);
                let sharing = sharing_by(argument(2));
                match self.bind(&end, address(), sharing, now) {
                    Err(libc::EADDRINUSE) if self.finish_closed(now) => {
                        self.bind(&end, address(), sharing, now)
                    }
                    result => result,
                }
            }
            call_op::TAKE_PORT => {
                let from = program.end(argument(0) as u32).ok_or(libc::EBADF)?;
                end.take_port_of(&from).map(|()| 0)
            }
            call_op::LISTEN => self.listen(&end, argument(0), now),
            call_op::CONNECT => {
                let (scope, how) = (argument(2) as u32, argument(2) >> 32);
                self.connect(&end, address(), scope, how, now)
            }
            call_op::OPTION if argument(0) == slot_option::FAST_OPEN_KEY => {
                Self::set_fast_open_key(&end, call);
                Ok(0)
            }
            call_op::OPTION => self.set_option(&end, argument(0), argument(1), now),
            call_op::SET_CLASS => self.wish_class(&end, &name_in(call), now),
            call_op::GET_OPTION if argument(0) >= slot_option::CONGESTION => {
                self.tell_transport(&end, argument(0), call, now)
            }
            call_op::GET_OPTION => self.tell_option(&end, argument(0), call),
            call_op::MEMBERSHIP => self.change_membership(&end, call),
            call_op::TOO_LONG => {
                let error = ErrorRecord {
                    errno: libc::EMSGSIZE as u32,
                    origin: origin::LOCAL,
                    info: (argument(1) >> 16) as u32,
                    address: address().address,
                    port: address().port,
                    ..ErrorRecord::default()
                };
                end.queue_error(error, &[]);
                Ok(0)
            }
            call_op::DISCONNECT if end.kind != slot_kind::DATAGRAM => Err(libc::EOPNOTSUPP),
            call_op::DISCONNECT => self.disconnect_datagram(&end, argument(0), now).map(|()| 0),
            _ => Err(libc::EOPNOTSUPP),
        }
    }

    fn open_socket(program: &Rc<Program>, call: &Call, kind: u32) -> Result<i32, Errno> {
        if kind != slot_kind::STREAM && kind != slot_kind::DATAGRAM {
            return Err(libc::ESOCKTNOSUPPORT);
        }
        let end = SocketEnd::open(program, kind).ok_or(libc::ENFILE)?;
        end.shared().references.store(1, Ordering::Relaxed);
        let process = call.process.load(Ordering::Relaxed).checked_sub(1);
        if let Some(holds) = process.and_then(|index| program.region.holds(index)) {
            let slot = end.slot as usize % SLOT_COUNT;
            holds[slot / 64].fetch_or(1 << (slot % 64), Ordering::AcqRel);
        }
        Ok(end.slot as i32)
    }

    /// Makes the listen paths: one per net and class that connections can come to be in.
    pub(super) fn listen(&mut self, end: &Rc<SocketEnd>, backlog: u64, now: Time) -> Result<i32, Errno> {
        if end.kind != slot_kind::STREAM {
            return Err(libc::EOPNOTSUPP);
        }
        if end.path.get().is_some() {
            return Err(libc::EINVAL);
        }
        if !end.listen_paths.borrow().is_empty() {
            // Linux: listen on a listening socket changes its backlog.
            end.backlog.set(waiting_at_most(backlog));
            for &id in end.listen_paths.borrow().iter() {
                self.limit_queue(id);
            }
            self.tell_listens(end);
            return Ok(0);
        }
        if end.bound.get().is_none() {
            self.bind(end, anywhere(end), Sharing::default(), now)?;
        }
        let Some((_, local)) = end.bound.get() else { return Err(libc::EINVAL) };
        if !end.begin_listening() {
            return Err(libc::EADDRINUSE);
        }
        self.listenings = self.listenings.wrapping_add(1);
        end.listening_number.set(self.listenings);
        end.first_of_accepted.set(end.begin_with(Sizes::configured(&self.settings)));
        // Of no class: its connections may be of several.
        if !end.ensure_rings((ACCEPT_RING, 0), self.paths.budget()) {
            return Err(libc::ENOBUFS);
        }
        end.backlog.set(waiting_at_most(backlog));
        for (net, class, place) in self.listened_classes(end, local) {
            if let Err(error) = self.make_listen_path(end, net, class, place) {
                for id in end.listen_paths.take() {
                    self.destroy(id);
                }
                return Err(errno_of(&error));
            }
        }
        end.add_state(slot_state::LISTENING);
        self.tell_listens(end);
        Ok(0)
    }

    pub(super) fn make_listen_path(
        &mut self,
        end: &Rc<SocketEnd>,
        net: usize,
        class: u32,
        place: Endpoint,
    ) -> Result<(), CreateError> {
        let stands = self.granted(self.policy.class(class), end).listen_stands;
        let mut at = place;
        // For people: where there is but one address, it.
        if place.address == Address::UNSPECIFIED_V4
            && let [(only, _)] = self.nets[net].interface().addresses4()[..]
        {
            at.address = only.into();
        }
        let attributes = Attributes::new()
            .with(Name::Protocol, Value::Number(u64::from(TCP)))
            .with(Name::Listen, Value::Number(end.backlog.get().into()))
            .with(Name::Local, Value::Address(at))
            .with(Name::ReceiveBuffer, Value::Number(u64::from(end.first_of_accepted.get().0)))
            .with(Name::SendBuffer, Value::Number(end.most_written()))
            .with(Name::PathName, Value::Text(format!("listen {place}").into()));
        let queue: Rc<dyn Any> = Rc::clone(end.fast_open.get_or_init(Rc::default)) as Rc<dyn Any>;
        let attributes = with_tuning(attributes, end).with(Name::Other(FAST_OPEN_QUEUE), Value::Any(queue));
        let id = self.make_path(net, "SOCKET", attributes, (class, stands))?;
        self.nets[net].tcp.listen(place, class, id);
        self.prefer_near(end, id);
        self.listeners.borrow_mut().insert(id, Rc::clone(end));
        self.limit_queue(id);
        end.listen_paths.borrow_mut().push(id);
        Ok(())
    }

    fn connect(
        &mut self,
        end: &Rc<SocketEnd>,
        remote: Endpoint,
        scope: u32,
        how: u64,
        now: Time,
    ) -> Result<i32, Errno> {
        let (fast, any_port) = (how & !ANY_PORT, how & ANY_PORT != 0);
        if end.kind == slot_kind::DATAGRAM {
            if end.bound.get().is_none() {
                // As Linux's `inet_autobind` has it.
                let bound = self.bind(end, self.unbound(end), Sharing::default(), now);
                bound.map_err(|errno| if errno == libc::EADDRINUSE { libc::EAGAIN } else { errno })?;
            }
            return self.connect_datagram(end, Some(remote), scope, now).map(|()| 0);
        }
        if end.path.get().is_some() {
            return Err(libc::EISCONN);
        }
        if !end.listen_paths.borrow().is_empty() {
            return Err(libc::EOPNOTSUPP);
        }
        let net = self.routing.towards_by(remote.address, scope, end.tuning.get().device)?;
        let bound = end.bound.get().map_or_else(|| self.unbound(end), |(_, local)| local);
        let address = self.source_towards(net, bound.address, remote.address).ok_or(libc::EADDRNOTAVAIL)?;
        if address.is_v4() != remote.address.is_v4() {
            return Err(libc::ENETUNREACH);
        }
        let is_taken = |port| {
            let before = self.flows.lookup(&flow_key(net, TCP, Endpoint::new(address, port), remote));
            before.is_some_and(|before| !self.may_follow(net, before, now))
        };
        let port = match bound.port {
            port if port != 0 && !(any_port && is_taken(port)) => port,
            _ => self.free_port(end, &[net], address, Some(remote), now).ok_or(libc::EADDRNOTAVAIL)?,
        };
        let local = Endpoint::new(address, port);
        end.shared().scope.store(self.nets[net].device.facts().index, Ordering::Relaxed);
        let start = self.fast_start(end, net, (local, remote), fast, now)?;
        let key = flow_key(net, TCP, local, remote);
        let before = self.flows.lookup(&key);
        // It is there, or in TIME-WAIT (`__inet_check_established` of Linux).
        let may_follow = |before| {
            let chosen = port == bound.port && !any_port;
            if chosen {
                self.may_follow_as_bound(net, before, now)
            } else {
                self.may_follow(net, before, now)
            }
        };
        if before.is_some_and(|before| !may_follow(before)) {
            return Err(libc::EADDRNOTAVAIL);
        }
        let ruled = self.policy.class(self.policy.class_for(&key, None, Some(&end.program.facts)));
        let by_rules = ruled.number;
        let Granted { class, stands, .. } = self.granted(ruled, end);
        // Not EAGAIN: programs (curl, libuv) take that for a connection under way, and wait.
        self.refuse(self.admit_connection(&class, stands.asks), class.number)?;
        let rings = end.begin_with(Sizes::configured(&self.settings));
        if !end.ensure_rings(rings, &class.memory) {
            return Err(libc::ENOBUFS);
        }
        // Before the first packet: an answer may come in the same turn of the loop.
        end.add_state(slot_state::CONNECTING | slot_state::BOUND);
        if let Some(before) = before {
            self.give_way(before);
        }
        let mut attributes = socket_attributes(end, TCP, local, Some(remote));
        let room = start.map_or(0, |start| begin_fast(end, start, &mut attributes));
        let made = self.make_path(net, "SOCKET", attributes, (class.number, stands));
        let id = made.map_err(|error| {
            end.clear_state(slot_state::CONNECTING | slot_state::FAST_OPEN);
            errno_of(&error)
        })?;
        end.path.set(Some(id));
        self.bind_flow(id, key);
        self.tell_elsewhere(&key, Some(self.several.index));
        if let Some(stage) = self.paths.get_mut(id).and_then(Path::stage_mut::<StreamStage>) {
            stage.set_ruled(by_rules);
        }
        self.note_origin(id, None, &end.program.facts);
        self.look_into_requests(id);
        self.kick(id, now);
        if room > 0 {
            end.signal(); // it is writable
        }
        Ok(room as i32)
    }

    fn set_option(&mut self, end: &Rc<SocketEnd>, option: u64, value: u64, now: Time) -> Result<i32, Errno> {
        match option {
            slot_option::NO_DELAY => end.no_delay.set(value != 0),
            slot_option::KEEP_ALIVE => end.keep_alive.set(value),
            slot_option::FAST_OPEN..=slot_option::FAST_OPEN_NO_COOKIE => {
                return self.set_fast_open(end, option, value);
            }
            slot_option::DEFER_ACCEPT => end.defer_accept.set(value.min(MAX_DEFER_S) as u32),
            slot_option::QUEUE_ERRORS
                if value != 0
                    && end.kind == slot_kind::DATAGRAM
                    && !end.ensure_errors(self.paths.budget()) =>
            {
                return Err(libc::ENOBUFS);
            }
            slot_option::BROADCAST | slot_option::QUEUE_ERRORS => {}
            slot_option::SEND_BUFFER => end.tell_of_room(),
            slot_option::CONGESTION..=slot_option::MAX_PACING_RATE
            | slot_option::UNSENT_LOW_WATER
            | slot_option::SYN_COUNT..=slot_option::WINDOW_CLAMP => {
                tune(end, option, value)?;
                if option == slot_option::MAX_SEGMENT || option >= slot_option::SYN_COUNT {
                    self.tune_listening(end);
                }
            }
            slot_option::RECEIVE_BUFFER | slot_option::INCOMING_CPU => {
                tune(end, option, value)?;
                self.tune_listening(end);
            }
            slot_option::DEVICE => tune(end, option, value)?,
            slot_option::SHARING => end.share_port(sharing_by(value)),
            slot_option::HEADERS => {
                end.headers.set(value);
                self.tune_listening(end);
            }
            slot_option::PRIORITY
            | slot_option::DEADLINE
            | slot_option::WEIGHT
            | slot_option::BACKGROUND
            | slot_option::EXTEND => {
                return self.wish_option(end, option, value, now);
            }
            _ => return Err(libc::ENOPROTOOPT),
        }
        if !end.listen_paths.is_empty() {
            self.tell_listens(end);
        }
        if let Some(id) = end.path.get()
            && self.paths.get(id).is_some()
        {
            self.kick(id, now);
        }
        Ok(0)
    }

    /// Options of a listening socket that its handshakes need: the connections that begin from now on have them.
    pub(super) fn tune_listening(&mut self, end: &Rc<SocketEnd>) {
        let (tuning, headers) = (end.tuning.get(), end.headers.get());
        let paths = end.listen_paths.borrow();
        for &id in &*paths {
            if let Some(stage) = self.paths.get_mut(id).and_then(Path::stage_mut::<ListenStage>) {
                stage.set_tuning(tuning);
                stage.set_headers(headers);
            }
            self.prefer_near(end, id);
        }
    }

    /// Connections that live here come first to those who want them here (SO_INCOMING_CPU), of all who share the port. Of one
    /// engine alone a single one would have them all.
    fn prefer_near(&self, end: &SocketEnd, id: PathId) {
        if self.several.is_several() {
            let here = self.settings.cpu.map(|cpu| cpu as u32 + 1);
            let is_near = here == Some(end.tuning.get().incoming_cpu);
            self.nets.iter().for_each(|net| net.tcp.prefer(id, is_near));
        }
    }

    /// What a program is told when its path was not admitted; counted in the class.
    pub(super) fn refuse(&mut self, admitted: Result<(), DropReason>, class: u32) -> Result<(), Errno> {
        admitted.map_err(|reason| {
            self.counters.paths_refused += 1;
            self.finished.on_drop(class as u16, reason);
            libc::ENOBUFS
        })
    }
}

/// How many connections wait to be accepted: one more than `listen` says, as on Linux (`sk_acceptq_is_full`).
fn waiting_at_most(backlog: u64) -> u32 {
    backlog.min(u64::from(ACCEPT_RING / 4) - 1) as u32 + 1
}

pub(super) fn socket_attributes(
    end: &Rc<SocketEnd>,
    protocol: u8,
    local: Endpoint,
    remote: Option<Endpoint>,
) -> Attributes {
    let any: Rc<dyn Any> = Rc::clone(end) as Rc<dyn Any>;
    let mut attributes = Attributes::new()
        .with(Name::Protocol, Value::Number(u64::from(protocol)))
        .with(Name::Socket, Value::Any(any))
        .with(Name::Local, Value::Address(local))
        .with(Name::ReceiveBuffer, Value::Number(u64::from(end.receive_size())))
        .with(Name::SendBuffer, Value::Number(end.most_written()));
    if let Some(remote) = remote {
        attributes.set(Name::Remote, Value::Address(remote));
    }
    with_tuning(attributes, end)
}

/// What a handshake needs of the options, and what headers have, if the program said so.
fn with_tuning(mut attributes: Attributes, end: &SocketEnd) -> Attributes {
    let tuning = end.tuning.get();
    for (name, number) in [(MAX_SEGMENT, tuning.max_segment.into()), (HEADERS, end.headers.get())] {
        if number != 0 {
            attributes.set(Name::Other(name), Value::Number(number));
        }
    }
    if tuning != Tuning::default() {
        attributes.set(Name::Other(TUNING), Value::Any(Rc::new(tuning)));
    }
    attributes
}

/// Keeps an option of TCP; the stage hears of it in its next run.
fn tune(end: &SocketEnd, option: u64, value: u64) -> Result<(), Errno> {
    let mut tuning = end.tuning.get();
    match option {
        slot_option::CONGESTION => {
            let number = u8::try_from(value).ok().and_then(Algorithm::by_number).ok_or(libc::ENOENT)?;
            tuning.congestion = number.number();
        }
        slot_option::USER_TIMEOUT => {
            tuning.user_timeout_ms = u32::try_from(value).map_err(|_| libc::EINVAL)?;
        }
        slot_option::MAX_SEGMENT => tuning.max_segment = u16::try_from(value).map_err(|_| libc::EINVAL)?,
        slot_option::QUICK_ACK => {
            tuning.quick_ack = if value == 0 { 2 } else { 1 };
            tuning.quick_ack_said = tuning.quick_ack_said.wrapping_add(1);
        }
        slot_option::UNSENT_LOW_WATER => {
            tuning.unsent_low_water = u32::try_from(value).map_err(|_| libc::EINVAL)?;
        }
        slot_option::SYN_COUNT => tuning.syn_count = u8::try_from(value).map_err(|_| libc::EINVAL)?,
        slot_option::ORPHAN_WAIT if value == slot_option::AS_CLASS => tuning.orphan_wait_s = -1,
        slot_option::ORPHAN_WAIT => {
            tuning.orphan_wait_s = i8::try_from(value).map_err(|_| libc::EINVAL)?;
        }
        slot_option::DEVICE => tuning.device = u32::try_from(value).map_err(|_| libc::EINVAL)?,
        slot_option::INCOMING_CPU => {
            tuning.incoming_cpu = u32::try_from(value).map_err(|_| libc::EINVAL)?;
        }
        slot_option::RECEIVE_BUFFER => {
            tuning.receive_most = u32::try_from(value).map_err(|_| libc::EINVAL)?;
        }
        slot_option::WINDOW_CLAMP => {
            tuning.window_clamp = u32::try_from(value).map_err(|_| libc::EINVAL)?;
        }
        _ => tuning.max_pacing_rate = value,
    }
    end.tuning.set(tuning);
    Ok(())
}

/// What a program is told when a path cannot be made.
pub(super) fn errno_of(error: &CreateError) -> Errno {
    match error {
        CreateError::InUse => libc::EADDRINUSE,
        CreateError::Unreachable => libc::ENETUNREACH,
        CreateError::Exhausted(_) => libc::ENOBUFS,
        _ => libc::EINVAL,
    }
}
