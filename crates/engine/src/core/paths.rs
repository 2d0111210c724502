//! Paths come and go: creation with class and level, effects of stages, destruction that returns everything.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::{slot_kind, slot_request, slot_state};
use scoutline_base::{DeviceId, Endpoint, PathId, Time};
use scoutline_path::{
    Attributes, Body, Control, CreateError, DropReason, Effect, FlowKey, Grant, Limits, Message, Name, Path,
    Value,
};
use scoutline_proto::bindings::ClassIndex;
use scoutline_proto::tcp::{ListenStage, TcpStage};
use scoutline_sched::{Entry, Level, Policy};
use scoutline_wire::ipv4::{PROTOCOL_TCP as TCP, PROTOCOL_UDP as UDP};
use scoutline_wire::{ethernet, ipv6};

use super::{Core, Extra};
use crate::admission::Booked;
use crate::policy::{Class, mark_of};
use crate::scheduling::{Asks, Stands};
use crate::settings::{ClassSettings, ProgramFacts};
use crate::several::Said;
use crate::socket::{Sizes, SocketEnd, StreamStage};
use crate::wishes::Granted;

/// Flags in the fourteenth byte of a TCP header.
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// Packets that are refused in one turn when a listening socket is closed.
const MOST_REFUSED: usize = 256;

impl Core {
    /// Creates a path and takes it into the tables.
    pub(super) fn make_path(
        &mut self,
        net: usize,
        module: &str,
        mut attributes: Attributes,
        (class, stands): (ClassIndex, Stands),
    ) -> Result<PathId, CreateError> {
        attributes.set(Name::Class, Value::Number(u64::from(class)));
        if let Level::Priority(priority) = stands.level {
            attributes.set(Name::Priority, Value::Number(u64::from(priority)));
        } else {
            // Not the one that it has from its listen path.
            attributes.remove(Name::Priority);
        }
        attributes.set(Name::Device, Value::Device(DeviceId(net as u16)));
        self.make_place();
        let made = self.paths.budget().admit().and_then(|()| {
            let new = self.nets[net].graph.path_create(module, attributes)?;
            self.paths.insert(new, self.limits_of(class))
        });
        let id = made.inspect_err(|_| self.counters.paths_refused += 1)?;
        self.take_in(id, net, (class, stands));
        Ok(id)
    }

    /// The engine's own notes on a path that was just made.
    pub(super) fn take_in(&mut self, id: PathId, net: usize, (class, stands): (ClassIndex, Stands)) {
        self.counters.paths_made += 1;
        self.extras.reach(id.index);
        let Stands { level, asks } = stands;
        let listens = self.paths.get(id).is_some_and(|path| path.attributes.number(Name::Listen).is_some());
        let promise = (!listens).then(|| self.promises.give(&self.policy.class(class), asks)).flatten();
        self.extras[id.index] =
            Extra { level, asks, promise: promise.map(Box::new), net: net as u16, ..Extra::default() };
        self.count_background(net, Level::default(), level);
        if level == Level::Idle
            && let Some(path) = self.paths.get_mut(id)
        {
            // Nothing of it has begun: the time does not matter.
            note_level(path, level, Time::ZERO);
        }
    }

    pub(super) fn limits_of(&self, class: ClassIndex) -> Limits {
        let queue_packets = self.policy.queue_packets(&self.policy.class(class).settings);
        Limits { queue_packets, ..Limits::default() }
    }

    /// How many packets may wait at a path in this class: at a listen path, as many as may wait to be accepted, too.
    pub(super) fn queue_packets_at(&self, id: PathId, class: &ClassSettings) -> u32 {
        match self.listeners.borrow().get(&id) {
            Some(listener) => self.policy.listen_queue_packets(class, listener.backlog.get().into()),
            None => self.policy.queue_packets(class),
        }
    }

    /// The backlog at a listen path has changed.
    pub(super) fn limit_queue(&mut self, id: PathId) {
        let Some(number) = self.paths.get(id).map(Path::class) else { return };
        let packets = self.queue_packets_at(id, &self.policy.class(u32::from(number)).settings);
        if let Some(path) = self.paths.get_mut(id) {
            path.set_class(number, packets);
        }
    }

    /// What the rules of classes look at beside the flow, for when the classes change. With that the path is one of
    /// a socket, and its packets are marked as its class says.
    pub(super) fn note_origin(&mut self, id: PathId, tos: Option<u8>, program: &Rc<ProgramFacts>) {
        let extra = &mut self.extras[id.index];
        extra.tos = tos;
        extra.program = Some(Rc::clone(program));
        if let Some(path) = self.paths.get_mut(id) {
            let class = self.policy.class(u32::from(path.class()));
            path.set_mark(mark_of(class.settings.mark, extra.level));
        }
        self.note_apart(id);
    }

    /// Our end of flows to a socket that is bound to `local` on a net, as classes' rules look at it.
    pub(super) fn place_key(&self, net: usize, protocol: u8, local: Endpoint) -> FlowKey {
        let at = self.ends_at(net, local).first().copied().unwrap_or(local);
        flow_key(net, protocol, at, Endpoint::new(at.address.unspecified(), 0))
    }

    /// Why a SYN to a listen path is refused: dropped before it costs anything.
    pub(super) fn refuses_connection(&self, id: PathId, message: &Message) -> Option<DropReason> {
        let class = self.policy.class(u32::from(self.paths.get(id)?.class()));
        self.admit_connection(&class, class.settings.asks).err()?;
        if !is_syn(message.bytes()) {
            return None;
        }
        // Its program may have asked for something else.
        let listener = self.listeners.borrow().get(&id).cloned()?;
        let Granted { class, stands, .. } = self.granted(class, &listener);
        self.admit_connection(&class, stands.asks).err()
    }

    /// Whether one more connection of this class, which asks for this, can be carried.
    pub(super) fn admit_connection(&self, class: &Class, asks: Asks) -> Result<(), DropReason> {
        if class.is_full() {
            return Err(DropReason::ConnectionLimit);
        }
        self.admit(class, asks)
    }

    /// Whether one more path of this class, with the rings of its socket, can be carried.
    pub(super) fn admit(&self, class: &Class, asks: Asks) -> Result<(), DropReason> {
        let (receive, send) = Sizes::configured(&self.settings).first();
        if !class.memory.has_room(u64::from(receive) + u64::from(send)) {
            return Err(DropReason::MemoryLimit);
        }
        self.promises.admit(class, asks, None)
    }

    /// What the books have for a path.
    pub(super) fn booked(&self, id: PathId) -> Option<Booked> {
        let class = u32::from(self.paths.get(id)?.class());
        Some(Booked { class, asks: self.extras[id.index].asks })
    }

    /// Whether a socket's path can be carried where it would go.
    pub(super) fn admit_move(&self, id: PathId, end: &SocketEnd, to: &Granted) -> Result<(), DropReason> {
        let has = self.booked(id);
        if has.is_some_and(|has| has.class != to.class.number) {
            let takes_seat = self.paths.get(id).and_then(Path::stage::<StreamStage>).is_some();
            if takes_seat && to.class.is_full() {
                return Err(DropReason::ConnectionLimit);
            }
            if !end.fits(&to.class.memory) {
                return Err(DropReason::MemoryLimit);
            }
        }
        self.promises.admit(&to.class, to.stands.asks, has)
    }

    /// The path serves exactly this flow from now on.
    pub(super) fn bind_flow(&mut self, id: PathId, key: FlowKey) {
        self.flows.insert(&key, id);
        self.extras[id.index].flow = Some(key);
    }

    /// Carries out what stages asked for, in order.
    pub(super) fn carry_out(
        &mut self,
        net: usize,
        from: Option<PathId>,
        mut effects: Vec<Effect>,
        now: Time,
    ) {
        for effect in effects.drain(..) {
            match effect {
                Effect::Create { module, attributes, first } => {
                    self.create_child(net, from, module, attributes, first, now);
                }
                Effect::Destroy => {
                    if let Some(id) = from {
                        self.destroy(id);
                    }
                }
                Effect::Established => {
                    if let Some(id) = from {
                        self.make_known(id);
                    }
                }
                Effect::Spare => {
                    if let Some(id) = from {
                        self.note_spare(id);
                    }
                }
                Effect::Full { message, until } => {
                    if let (Some(id), Body::Block { block, range, .. }) = (from, &message.body) {
                        self.hold_back(net, id, &block[..range.end as usize], until);
                    }
                }
                Effect::SetClass { class, requests } => {
                    if let Some(id) = from {
                        self.follow_request(id, u32::from(class), requests, now);
                    }
                }
                Effect::NotAdmitted { class, reason } => {
                    self.counters.paths_refused += 1;
                    self.finished.on_drop(class, reason);
                }
                Effect::Reclassify(message) => self.classify(net, message, now),
                Effect::Follow(key, message) => match self.flows.lookup(&key) {
                    Some(id) => _ = self.offer(id, message, now),
                    // Its peer sends it again, as what it follows.
                    None => self.count_drop(from, DropReason::Refused),
                },
                Effect::Stray(key, message) => match self.flows.lookup(&key) {
                    Some(id) => _ = self.offer(id, message, now),
                    None => self.refuse_stray(net, &key, message, now),
                },
                Effect::Loop(message) => self.loop_back(net, &message),
                Effect::Notify(key, control) => self.notify(net, &key, control, now),
                Effect::Elsewhere(message) => {
                    if let Some(id) = from {
                        self.send_elsewhere(id, message, now);
                    }
                }
            }
        }
        // The vector goes back to be used again, unless a nested run has left another.
        if self.runner.effects.capacity() < effects.capacity() {
            self.runner.effects = effects;
        }
    }

    /// A listen path met a SYN.
    fn create_child(
        &mut self,
        net: usize,
        from: Option<PathId>,
        module: &'static str,
        attributes: Attributes,
        first: Option<Message>,
        now: Time,
    ) {
        let Some((local, remote)) = attributes.address(Name::Local).zip(attributes.address(Name::Remote))
        else {
            return;
        };
        let key = flow_key(net, TCP, local, remote);
        if let Some(existing) = self.flows.lookup(&key) {
            // A second SYN of the same burst: the path made for the first takes it.
            if let Some(message) = first {
                self.offer(existing, message, now);
            }
            return;
        }
        let parent = from.and_then(|id| self.listeners.borrow().get(&id).cloned());
        if let Some(listener) = &parent {
            let waiting = listener.waiting().saturating_add(listener.deferring.get().into());
            if waiting >= u64::from(listener.backlog.get()) {
                self.count_drop(from, DropReason::BacklogFull);
                return;
            }
        }
        let program = parent.as_ref().map(|listener| Rc::clone(&listener.program.facts));
        let tos = first.as_ref().map(|message| message.facts.tos);
        let class = self.policy.class(self.policy.class_for(&key, tos, program.as_deref()));
        let ruled = class.number;
        let (class, stands) = match &parent {
            Some(listener) => {
                let granted = self.granted(class, listener);
                (granted.class, granted.stands)
            }
            None => (Rc::clone(&class), class.stands_of(None)),
        };
        // SYNs of one burst have all passed the look at the limit before the first of them counts.
        if let Err(reason) = self.admit_connection(&class, stands.asks) {
            self.count_refusal(from, reason);
            return;
        }
        match self.make_path(net, module, attributes, (class.number, stands)) {
            Ok(id) => {
                self.bind_flow(id, key);
                if let Some(stage) = self.paths.get_mut(id).and_then(|path| path.stage_mut::<StreamStage>()) {
                    stage.set_ruled(ruled);
                }
                if let Some(program) = &program {
                    self.note_origin(id, tos, program);
                    self.look_into_requests(id);
                }
                if let Some(message) = first {
                    self.offer(id, message, now);
                }
            }
            Err(_) => self.count_drop(from, DropReason::Refused),
        }
    }

    /// A connection is not admitted: counted where it would have begun.
    pub(super) fn count_refusal(&mut self, at: Option<PathId>, reason: DropReason) {
        self.counters.paths_refused += 1;
        self.count_drop(at, reason);
    }

    pub(super) fn count_drop(&mut self, id: Option<PathId>, reason: DropReason) {
        match id.and_then(|id| self.paths.get_mut(id)) {
            Some(path) => path.account.on_drop(reason),
            None => self.unowned.on_drop(reason),
        }
    }

    /// A datagram of a socket leaves by another device than that of the path which made it: by the socket's path there.
    fn send_elsewhere(&mut self, from: PathId, message: Message, now: Time) {
        let end = self.paths.get(from).and_then(socket_of);
        let net = message.facts.destination.and_then(|to| self.routing.towards(to, message.facts.scope).ok());
        let found = end.zip(net).and_then(|(end, net)| Some((self.side_path(&end, net)?, net)));
        let Some((id, net)) = found else { return self.count_drop(Some(from), DropReason::NoRoute) };
        let flow = self.queued_flow(net, id);
        if !self.has_room(net, flow.as_ref()) {
            self.flush(net, now);
            if !self.has_room(net, flow.as_ref()) {
                return self.count_drop(Some(id), DropReason::QueueFull);
            }
        }
        let Some(path) = self.paths.get_mut(id) else { return };
        let grant = Grant::new(now, 1, 1);
        path.run_outward(&mut self.runner, grant, &mut vec![message]);
        let mut made = std::mem::take(&mut self.runner.out);
        self.emit(net, flow.as_ref(), &mut made);
        self.runner.out = made;
        let effects = std::mem::take(&mut self.runner.effects);
        self.carry_out(net, Some(id), effects, now);
    }

    /// The path of a datagram socket on another net than its first one's. Who has a peer gets one when he sends there.
    fn side_path(&mut self, end: &Rc<SocketEnd>, net: usize) -> Option<PathId> {
        let is_there = |id: &&PathId| usize::from(self.extras[id.index].net) == net;
        let has = end.side_paths.borrow().iter().find(is_there).copied();
        let (_, bound) = end.bound.get()?;
        has.or_else(|| {
            let own = Endpoint::new(end.shared().local_address.load(), bound.port);
            self.make_side_path(end, net, own).ok().map(|(_, id)| id)
        })
    }

    /// Tells the path of a flow something.
    pub(super) fn notify(&mut self, net: usize, key: &FlowKey, control: Control, now: Time) {
        let exact = self.flows.lookup(key);
        let id = exact.or_else(|| match key.protocol {
            UDP => self.nets[net].udp.listener(key, 0),
            _ => None,
        });
        if let Some(id) = id {
            self.offer(id, Message::control(control), now);
        } else if let Some(engine) = self.whose(key) {
            self.several.give(engine, Said::Told { net, key: *key, control });
        }
    }

    /// Ends a path; everything that it held returns.
    pub(super) fn destroy(&mut self, id: PathId) {
        if self.paths.get(id).is_none() {
            return;
        }
        self.schedule.remove(Entry::Path(id));
        self.wheel.disarm(id);
        self.forget_known(id);
        let extra = std::mem::take(&mut self.extras[id.index]);
        self.count_background(extra.net as usize, extra.level, Level::default());
        self.count_apart(extra.apart, None);
        if let Some(to) = extra.to {
            self.count_background(usize::from(to), extra.level, Level::default());
            self.forwarders.retain(|_, other| *other != id);
        }
        if let Some(key) = extra.flow
            && self.flows.lookup(&key) == Some(id)
        {
            self.flows.remove(&key);
            self.tell_elsewhere(&key, None);
        }
        let net = &self.nets[extra.net as usize];
        if self.listeners.borrow_mut().remove(&id).is_some() {
            net.tcp.unlisten(id);
        }
        net.udp.unlisten(id);
        let mut sides = Vec::new();
        if let Some(path) = self.paths.get(id)
            && let Some(end) = socket_of(path)
        {
            if end.path.get() != Some(id) && end.kind == slot_kind::DATAGRAM {
                end.side_paths.borrow_mut().retain(|&other| other != id);
                self.paths.destroy(id, &mut self.finished);
                return;
            }
            end.path.set(None);
            sides = end.side_paths.take();
            // Or it was never handed over: it waits in no queue, and nobody will close it.
            if end.closed.get() || path.stage::<StreamStage>().is_some_and(StreamStage::is_unaccepted) {
                end.release_port();
                end.program.forget_end(end.slot);
            }
        }
        self.paths.destroy(id, &mut self.finished);
        for id in sides {
            self.destroy(id);
        }
    }

    /// Ends a path but for the packets that wait in its queue, which came by this net.
    pub(super) fn destroy_but_queued(&mut self, id: PathId) -> (usize, Vec<Message>) {
        let net = self.extras[id.index].net as usize;
        let mut waiting = Vec::new();
        while let Some(message) = self.paths.get_mut(id).and_then(Path::take_queued) {
            if !matches!(message.body, Body::Control(_)) {
                waiting.push(message);
            }
        }
        self.destroy(id);
        (net, waiting)
    }

    /// Looks for other paths for them, or refuses them.
    pub(super) fn classify_queued(&mut self, (net, waiting): (usize, Vec<Message>), now: Time) {
        for message in waiting {
            self.classify(net, message, now);
        }
    }

    /// A slot without a path was marked: it may be closed.
    pub(super) fn check_pathless(end: &Rc<SocketEnd>) {
        let requests = end.shared().requests.load(Ordering::Acquire);
        if requests & (slot_request::CLOSE | slot_request::ABORT) != 0 {
            end.closed.set(true);
            end.release_port();
            end.program.forget_end(end.slot);
        }
    }

    /// A listening slot was marked: it may be closed, or somebody was woken who did not need it.
    pub(super) fn check_listener(&mut self, end: &Rc<SocketEnd>, now: Time) {
        let requests = end.shared().requests.load(Ordering::Acquire);
        if requests & (slot_request::CLOSE | slot_request::ABORT) != 0 {
            self.close_listener(end, now);
        } else if requests & slot_request::SHUTDOWN_READ != 0 {
            end.shared().requests.fetch_and(!slot_request::WAKE, Ordering::AcqRel);
            self.stop_listening(end, now);
            end.signal();
        } else if requests & slot_request::WAKE != 0 {
            end.shared().requests.fetch_and(!slot_request::WAKE, Ordering::AcqRel);
            end.program.signal(end.slot, false, None, end.duty.get());
        } else if end.received.get() != end.shared().receive_head.load(Ordering::Acquire) {
            end.signal();
        }
    }

    /// Ends a listening socket: its listen paths go, and connections that nobody has accepted are reset.
    pub(super) fn close_listener(&mut self, end: &Rc<SocketEnd>, now: Time) {
        end.closed.set(true);
        self.stop_listening(end, now);
        end.release_port();
        end.program.forget_end(end.slot);
    }

    /// The listening part of that. The port stays, and the socket may listen again.
    fn stop_listening(&mut self, end: &Rc<SocketEnd>, now: Time) {
        let shared = end.shared();
        if !end.is_shadow {
            shared.state.fetch_and(!slot_state::LISTENING, Ordering::AcqRel);
        }
        let begun = |id: &PathId| {
            let stage = self.paths.get(*id).and_then(Path::stage::<ListenStage>);
            stage.is_some_and(|stage| stage.backlog().half_open.get() > 0)
        };
        let has_begun = end.deferring.get() > 0 || end.listen_paths.borrow().iter().any(begun);
        let listened: Vec<_> =
            end.listen_paths.take().into_iter().map(|id| self.destroy_but_queued(id)).collect();
        end.end_listening();
        // As Linux: who has not finished the handshake hears of the end by the reset of its next segment, which may wait
        // in the queue of its path: a client that has finished it may send no other. To look for them among all paths
        // costs too much where there is none: a program may have thousands of listening sockets.
        let half_open =
            |path: &&Path| path.stage::<StreamStage>().is_some_and(|stage| stage.is_half_open_of(end));
        let orphans: Vec<PathId> =
            if has_begun { self.paths.iter().filter(half_open).map(Path::id).collect() } else { Vec::new() };
        let unfinished: Vec<_> = orphans.into_iter().map(|id| self.destroy_but_queued(id)).collect();
        // In this turn: a long backlog's rest hears of it when it asks again.
        let mut left = MOST_REFUSED;
        for (net, mut waiting) in unfinished.into_iter().chain(listened) {
            for _ in waiting.drain(left.min(waiting.len())..) {
                self.unowned.on_drop(DropReason::NoPath);
            }
            left -= waiting.len();
            self.classify_queued((net, waiting), now);
        }
        // One that is not in the queue any more has been accepted, and maybe closed since.
        if end.is_shadow {
            return; // the queue is its engine's
        }
        self.tell_unlistens(end);
        for slot in end.queued().collect::<Vec<_>>() {
            self.end_orphan(&end.program, end.as_listener(), slot, now);
        }
        // Not before: who waits is known by the queue.
        shared.receive_head.store(shared.receive_tail.load(Ordering::Acquire), Ordering::Release);
    }

    /// Ends a socket as if its program had died: the peer gets a reset.
    pub(crate) fn abort_end(&mut self, end: &Rc<SocketEnd>, now: Time) {
        self.finish_end(end, slot_request::ABORT, now);
    }

    /// Ends a socket, with CLOSE or ABORT, for a program that cannot say so any more.
    pub(crate) fn finish_end(&mut self, end: &Rc<SocketEnd>, how: u32, now: Time) {
        if !end.listen_paths.is_empty() {
            self.close_listener(end, now);
            return;
        }
        end.shared().requests.fetch_or(how, Ordering::AcqRel);
        match end.path.get() {
            Some(id) if self.paths.get(id).is_some() => {
                self.note_closed(end, id);
                self.kick(id, now);
            }
            _ => Core::check_pathless(end),
        }
    }
}

/// Tells the protocol where its path stands: what is background yields beyond us too.
pub(super) fn note_level(path: &mut scoutline_path::Path, level: Level, now: Time) {
    if let Some(tcp) = path.stage_mut::<TcpStage>() {
        tcp.set_background(level == Level::Idle, now);
    }
}

/// The socket at the program's end of a path.
pub(super) fn socket_of(path: &scoutline_path::Path) -> Option<Rc<SocketEnd>> {
    path.stage::<crate::socket::StreamStage>()
        .and_then(|stage| stage.end().cloned())
        .or_else(|| path.stage::<crate::socket::DatagramStage>().map(|stage| Rc::clone(stage.end())))
}

/// True for a TCP segment that asks for a connection. The frame has been looked at by demultiplexing.
pub(super) fn is_syn(frame: &[u8]) -> bool {
    let Some(ip) = frame.get(ethernet::HEADER_LEN..) else { return false };
    let (protocol_at, header_len) = match ip.first() {
        Some(first) if first >> 4 == 4 => (9, usize::from(first & 0x0f) * 4),
        // Behind extension headers it is looked at when the path exists.
        _ => (ipv6::NEXT_HEADER_AT, ipv6::HEADER_LEN),
    };
    let flags = ip.get(header_len + 13);
    ip.get(protocol_at) == Some(&TCP) && flags.is_some_and(|flags| flags & (SYN | ACK) == SYN)
}

/// The key of a flow on a net.
pub(super) fn flow_key(net: usize, protocol: u8, local: Endpoint, remote: Endpoint) -> FlowKey {
    FlowKey {
        remote: remote.address,
        local: local.address,
        remote_port: remote.port,
        local_port: local.port,
        device: DeviceId(net as u16),
        protocol,
    }
}
