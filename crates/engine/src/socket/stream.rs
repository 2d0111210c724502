//! The SOCKET stage of a TCP path.

use std::any::Any;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use scoutline_abi::layout::{HELD_BY_CALL, HELD_UNFINISHED, slot_kind, slot_request, slot_state};
use scoutline_base::{Endpoint, Time};
use scoutline_path::{
    Account, Attributes, Body, Budget, Burst, Context, Control, CreateError, DropReason, Effect, Message,
    Name, Stage, Tuning,
};
use scoutline_proto::bindings::ClassIndex;

use super::SocketEnd;
use super::asked::{Asked, Move};
use super::end::HeldPort;
use super::module::Standing;
use super::queue::{accept_queue_push, stand_in_queue};
use super::written::Written;
use crate::policy::{Class, Seat};
use crate::seldom::Rare;
use crate::wishes::Wishes;

/// Looks at an extent of a file that we do not know yet. The control thread needs microseconds to tell us of it;
/// each look is a turn of the loop.
const LOOK_AGAIN_LIMIT: u32 = 100;

/// Moves a stream between a TCP stage and the rings of a socket.
pub(crate) struct StreamStage {
    end: Option<Rc<SocketEnd>>,
    /// The listening socket that a passive path belongs to until it is accepted.
    parent: Option<Rc<SocketEnd>>,
    /// What the protocol says that its rings should hold: receive and send.
    needs: (u32, u32),
    /// Whose memory its rings will be.
    memory: Option<Budget>,
    /// Its place among the connections of its class, until the program has closed it and the peer has all data.
    seat: Option<Seat>,
    /// Ours and the peer's, until its socket has them.
    addresses: Option<Box<(Endpoint, Endpoint)>>,
    /// The class that the rules give it; its program may have asked for another.
    ruled: ClassIndex,
    standing: Standing,
    /// A peer began it.
    is_passive: bool,
    /// Bytes of the stream that count as received could not be stored: from there on the program gets none.
    is_lost: bool,
    /// What is sent is read by this process.
    copies: bool,
    /// What is asked on it, where that can change its class.
    asked: Option<Box<Asked>>,
    /// The protocol below has been told: written, consumed, requests.
    told_written: u64,
    told_consumed: u64,
    told_requests: u32,
    told_held: u64,
    told_ring: u32,
    told_no_delay: bool,
    told_keep_alive: u64,
    told_tuning: Rare<Tuning>,
    told_headers: u64,
    /// Times in a row that the program's position could not be understood yet.
    looked_again: u32,
    /// Connected, and kept from `accept` until data comes or this is over (TCP_DEFER_ACCEPT, tcp(7)).
    deferred: Option<Box<Deferred>>,
    /// What its socket was bound to. As on Linux nobody else has that while old segments may be about (TIME-WAIT), but for
    /// those whom it shares it with.
    port: Option<Box<HeldPort>>,
}

// There may be a hundred thousand.
const _: () = assert!(size_of::<StreamStage>() <= 160);

/// A connection that its listening socket's program does not hear of yet. It counts in the backlog meanwhile.
struct Deferred {
    until: Time,
    listener: Rc<SocketEnd>,
}

impl Deferred {
    fn new(until: Time, listener: &Rc<SocketEnd>) -> Deferred {
        listener.deferring.set(listener.deferring.get() + 1);
        Deferred { until, listener: Rc::clone(listener) }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        self.listener.deferring.set(self.listener.deferring.get() - 1);
    }
}

impl StreamStage {
    /// What is sent is read by this process: see [`SocketEnd::send_by_copies`].
    pub(crate) fn by_copies(mut self, copies: bool) -> StreamStage {
        self.copies = copies;
        if let Some(end) = self.end.as_ref().filter(|_| copies) {
            end.send_by_copies();
        }
        self
    }

    /// A passive connection that has not gone to its listening socket's queue.
    pub(crate) fn is_unaccepted(&self) -> bool {
        self.parent.is_some()
    }

    /// The stage of an active connection, on a socket with rings.
    pub(crate) fn active(end: Rc<SocketEnd>, class: &Class, standing: Standing) -> StreamStage {
        StreamStage { end: Some(end), seat: Some(class.seat()), ..StreamStage::empty(class, standing) }
    }

    /// The stage of a passive connection: it gets its socket once the handshake is complete.
    pub(crate) fn passive(parent: Rc<SocketEnd>, class: &Class, standing: Standing) -> StreamStage {
        let (memory, seat) = (Some(class.memory.clone()), Some(class.seat()));
        let empty = StreamStage::empty(class, standing);
        StreamStage { parent: Some(parent), memory, seat, is_passive: true, ..empty }
    }

    fn empty(class: &Class, standing: Standing) -> StreamStage {
        StreamStage {
            end: None,
            parent: None,
            needs: (0, 0),
            memory: None,
            seat: None,
            addresses: None,
            ruled: class.number,
            standing,
            is_passive: false,
            is_lost: false,
            copies: false,
            asked: None,
            told_written: 0,
            told_consumed: 0,
            told_requests: 0,
            told_held: 0,
            told_ring: 0,
            told_no_delay: false,
            told_keep_alive: 0,
            told_tuning: Rare::default(),
            told_headers: 0,
            looked_again: 0,
            deferred: None,
            port: None,
        }
    }

    /// The socket, once there is one.
    pub(crate) fn end(&self) -> Option<&Rc<SocketEnd>> {
        self.end.as_ref()
    }

    /// A connection of this listening socket whose handshake is not complete.
    pub(crate) fn is_half_open_of(&self, listener: &Rc<SocketEnd>) -> bool {
        self.parent.as_ref().is_some_and(|parent| Rc::ptr_eq(parent, listener))
    }

    /// Its socket is another one from now on, in the same state.
    pub(crate) fn set_end(&mut self, end: Rc<SocketEnd>) {
        self.end = Some(end);
    }

    /// Its listening socket is another one from now on.
    pub(crate) fn set_listener(&mut self, listener: &Rc<SocketEnd>) {
        self.parent = Some(Rc::clone(listener));
        self.deferred =
            self.deferred.take().map(|deferred| Box::new(Deferred::new(deferred.until, listener)));
    }

    /// Puts its socket into the queue of a listening one; false when that is full.
    pub(crate) fn wait_at(&self, listener: &SocketEnd) -> bool {
        self.end.as_ref().is_some_and(|end| accept_queue_push(listener, end.slot, self.standing))
    }

    /// A connection that a peer began.
    pub(crate) fn is_passive(&self) -> bool {
        self.is_passive
    }

    /// The program can still ask or be asked.
    pub(crate) fn is_used(&self) -> bool {
        self.seat.is_some()
    }

    /// What is asked on it, if that is looked at.
    pub(crate) fn asked(&mut self) -> Option<&mut Asked> {
        self.asked.as_deref_mut()
    }

    /// What is asked on it is looked at from now on, or no longer.
    pub(crate) fn set_asked(&mut self, asked: Option<Asked>) {
        let asked = asked.map(|asked| match &self.end {
            Some(end) => asked.joining(end),
            None => asked,
        });
        self.asked = asked.map(Box::new);
    }

    /// The class that the rules give it.
    pub(crate) fn ruled(&self) -> ClassIndex {
        self.ruled
    }

    /// The rules give it this class.
    pub(crate) fn set_ruled(&mut self, class: ClassIndex) {
        self.ruled = class;
    }

    /// What its program asks for it, or for the listening socket that it belongs to until it has one of its own.
    pub(crate) fn wishes(&self) -> Option<Wishes> {
        let end = self.end.as_ref().or(self.parent.as_ref())?;
        end.wishes.borrow().as_deref().cloned()
    }

    /// The path is in another class now: memory and connection count there.
    pub(crate) fn set_class(&mut self, class: &Class, standing: Standing) {
        self.standing = standing;
        self.memory = self.memory.take().map(|_| class.memory.clone());
        self.seat = self.seat.take().map(|_| class.seat());
        if let Some(end) = &self.end {
            end.move_charge(&class.memory);
            if end.shared().state.load(Ordering::Relaxed) & slot_state::CONNECTED != 0 {
                end.stand(standing);
                stand_in_queue(end, standing);
            }
        }
    }

    /// The class becomes that of what was asked: here at once, for what is signalled next is about it; the engine does
    /// the rest after this run.
    fn follow(&mut self, context: &mut Context<'_>) {
        let Some(asked) = &mut self.asked else { return };
        asked.charge(context.account);
        let requests = asked.take_requests();
        if asked.class().number == self.ruled {
            context.account.requests += requests;
            return;
        }
        let wishes = self.end.as_ref().and_then(|end| end.wishes.borrow().as_deref().cloned());
        let Move { ruled, class, standing, not_admitted } = asked.go(wishes.as_ref(), self.end.as_deref());
        if let Some((class, reason)) = not_admitted {
            context.effects.push(Effect::NotAdmitted { class: class as u16, reason });
        }
        if ruled == self.ruled {
            context.account.requests += requests;
            return;
        }
        self.ruled = ruled;
        asked.enter(class.number);
        self.set_class(&class, standing);
        context.effects.push(Effect::SetClass { class: ruled as u16, requests });
    }

    /// The socket of a passive path, made when the first thing is to be kept in it.
    fn ensure_end(&mut self, context: &Context<'_>) -> Option<Rc<SocketEnd>> {
        if self.end.is_none() {
            let parent = self.parent.as_ref()?;
            if parent.closed.get() {
                return None;
            }
            let end = SocketEnd::open(&parent.program, slot_kind::STREAM)?;
            end.sizes.set(parent.sizes.get());
            // The window was made for what listening promised, whatever was asked for since.
            let first = parent.first_of_accepted.get();
            if !self.memory.as_ref().is_some_and(|memory| end.ensure_rings(first, memory)) {
                end.program.forget_end(end.slot);
                return None;
            }
            end.path.set(Some(context.path));
            if self.copies {
                end.send_by_copies();
            }
            end.no_delay.set(parent.no_delay.get());
            end.keep_alive.set(parent.keep_alive.get());
            end.tuning.set(parent.tuning.get());
            end.headers.set(parent.headers.get());
            end.wishes.borrow_mut().clone_from(&parent.wishes.borrow());
            if let Some((local, remote)) = self.addresses.take().map(|addresses| *addresses) {
                set_addresses(&end, local, remote);
            }
            self.end = Some(end);
        }
        self.end.clone()
    }

    /// The handshake is complete: the socket goes to its listening socket's queue.
    fn on_connected(&mut self, end: &SocketEnd) -> bool {
        end.stand(self.standing);
        end.clear_state(slot_state::CONNECTING);
        end.add_state(slot_state::CONNECTED | slot_state::BOUND);
        let Some(parent) = self.parent.take() else {
            end.signal();
            return true;
        };
        accept_queue_push(&parent, end.slot, self.standing)
    }

    /// Bytes that the protocol counts as received are not there: the connection ends, and the program hears that it failed.
    fn on_lost(&mut self, turned: &mut Burst) {
        if std::mem::replace(&mut self.is_lost, true) {
            return;
        }
        if let Some(end) = &self.end {
            end.fail(libc::ECONNRESET);
        }
        turned.push(Message::control(Control::Abort));
    }

    fn on_control(&mut self, control: &Control, turned: &mut Burst, context: &mut Context<'_>) {
        // Told in the same burst, by who does not know that the bytes are not there.
        if self.is_lost
            && let Control::Readable(_) | Control::Urgent(_) | Control::PeerFinished = control
        {
            return;
        }
        if let Control::Connected = control {
            context.effects.push(Effect::Established);
            let wait = self.parent.as_ref().map_or(0, |parent| parent.defer_accept.get());
            if wait == 0 {
                self.hand_over(turned, context);
            } else {
                let until = context.now + Duration::from_secs(u64::from(wait));
                self.deferred = self.parent.as_ref().map(|listener| Box::new(Deferred::new(until, listener)));
            }
            return;
        }
        if self.deferred.is_some() {
            match control {
                Control::Readable(_) | Control::Urgent(_) | Control::PeerFinished => {
                    self.hand_over(turned, context);
                }
                Control::Failed(_) | Control::Closed => self.deferred = None,
                _ => {}
            }
        }
        if let Control::Closed = control {
            context.effects.push(Effect::Destroy);
        }
        if let (Control::Readable(position), Some(end), Some(asked)) = (control, &self.end, &mut self.asked) {
            asked.on_readable(end, *position);
            self.follow(context);
        }
        let Some(end) = &self.end else { return };
        match control {
            Control::Readable(position) => {
                end.publish_received(*position);
                end.program.early.on_word(end);
                end.signal();
                if end.fit_receive(self.needs.0, context.now) {
                    turned.push(Message::control(Control::ReceiveBuffer(end.receive_size())));
                }
            }
            Control::NeedReceive(bytes) => self.needs.0 = *bytes,
            Control::NeedSend(bytes) => self.needs.1 = *bytes,
            Control::Acknowledged(position) => {
                end.on_acknowledged(*position, context.now);
                if end.publish_freed(*position) {
                    end.signal();
                }
            }
            Control::Urgent(position) => end.publish_urgent(*position),
            Control::Sent(sent) if end.publish_sent(sent) => end.signal(),
            Control::PeerFinished => {
                end.add_state(slot_state::PEER_FINISHED);
                end.program.early.on_word(end);
                end.signal();
            }
            Control::Failed(errno) => end.fail(*errno),
            Control::Hint(errno) => end.hint(*errno),
            _ => {}
        }
    }

    /// The program gets the connection.
    fn hand_over(&mut self, burst: &mut Burst, context: &mut Context<'_>) {
        self.deferred = None;
        let ensured = self.ensure_end(context);
        let had_room = ensured.is_some();
        self.tell_options(burst);
        let accepted = match ensured {
            Some(end) => self.on_connected(&end),
            None => false,
        };
        if !accepted {
            // Nobody holds it, and nobody will.
            if let Some(end) = &self.end {
                end.closed.set(true);
            }
            // Without a socket: its class, or the program, has no memory for it.
            let reason = if had_room { DropReason::BacklogFull } else { DropReason::MemoryLimit };
            context.account.on_drop(reason);
            burst.push(Message::control(Control::Abort));
        }
    }

    /// Options that the protocol below has not been told.
    fn tell_options(&mut self, burst: &mut Burst) {
        let Some(end) = &self.end else { return };
        let (no_delay, keep_alive, tuning) = (end.no_delay.get(), end.keep_alive.get(), end.tuning.get());
        if no_delay != self.told_no_delay {
            self.told_no_delay = no_delay;
            burst.push(Message::control(Control::NoDelay(no_delay)));
        }
        if keep_alive != self.told_keep_alive {
            self.told_keep_alive = keep_alive;
            let field = |shift: u32| (keep_alive >> shift & 0xf_ffff) as u32;
            let times = (keep_alive != 0).then(|| (field(0), field(20), field(40)));
            burst.push(Message::control(Control::KeepAlive(times)));
        }
        if tuning != self.told_tuning.get() {
            self.told_tuning.set(tuning);
            burst.push(Message::control(Control::Tune(tuning)));
        }
        if end.headers.get() != self.told_headers {
            self.told_headers = end.headers.get();
            burst.push(Message::control(Control::Headers(self.told_headers)));
        }
    }

    /// A closed socket whose data the peer has is needed no longer, though the path may linger in TIME-WAIT. One that ends
    /// before goes with the path: what this run has made may name its memory.
    fn release_if_done(&mut self, account: &mut Account) {
        let done =
            self.end.as_ref().is_some_and(|end| end.closed.get() && end.freed.get() == end.written.get());
        if done && let Some(end) = self.end.take() {
            end.path.set(None);
            self.port = end.take_port();
            end.program.forget_end(end.slot);
            self.seat = None;
            // Nobody asks any more: it keeps its class.
            if let Some(asked) = self.asked.take() {
                account.buffer_bytes_held = account.buffer_bytes_held.saturating_sub(asked.charged());
            }
        }
    }
}

impl Stage for StreamStage {
    fn module(&self) -> &'static str {
        "SOCKET"
    }

    fn establish(&mut self, attributes: &mut Attributes) -> Result<(), CreateError> {
        let addresses = attributes.address(Name::Local).zip(attributes.address(Name::Remote));
        match (&self.end, addresses) {
            (Some(end), Some((local, remote))) => set_addresses(end, local, remote),
            _ => self.addresses = addresses.map(Box::new),
        }
        Ok(())
    }

    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        for mut message in burst.drain(..) {
            let is_whole = self.asked.is_none() || message.settle();
            match &message.body {
                Body::Control(control) => {
                    let control = control.clone();
                    self.on_control(&control, turned, context);
                }
                Body::Block { .. } => {
                    let Some(end) = self.ensure_end(context) else {
                        context.drop_message(message, DropReason::Closed);
                        continue;
                    };
                    let position = message.facts.stream_position;
                    let is_stored =
                        is_whole && end.store(position, message.bytes()) && store_tail(&end, &message);
                    if !is_stored {
                        context.drop_message(message, DropReason::Lost);
                        self.on_lost(turned);
                    } else if let Some(asked) = &mut self.asked {
                        asked.on_stored(&end, position, message.bytes());
                    }
                }
                Body::Empty | Body::Stream { .. } => {}
            }
        }
        if let Some(end) = &self.end {
            end.tell_urgent();
            context.account.wakeups += end.wakeups.take();
        }
        self.release_if_done(context.account);
    }

    fn outward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        self.tell_options(burst);
        let Some(end) = &self.end else { return };
        let slot = end.shared();
        // Requests before cursors: what was written before a shutdown is seen with it.
        let mut requests = slot.requests.load(Ordering::Acquire);
        let written = match end.read_written() {
            Written::To(position) => position,
            Written::Later if self.looked_again < LOOK_AGAIN_LIMIT => {
                // A close must not overtake what was written before it.
                self.looked_again += 1;
                context.more = true;
                return;
            }
            Written::Later | Written::Nonsense => {
                requests |= slot_request::ABORT;
                self.told_written
            }
        };
        self.looked_again = 0;
        // After the position: what is held back of it was said before it was written.
        let held = slot.held_from.load(Ordering::Acquire);
        if held != self.told_held {
            self.told_held = held;
            let from = (held & !(HELD_BY_CALL | HELD_UNFINISHED)).checked_sub(1);
            let by_call = held & HELD_BY_CALL != 0;
            let unfinished = held & HELD_UNFINISHED != 0;
            burst.push(Message::control(Control::Held { from, by_call, unfinished }));
        }
        // As well: the request is older than the position.
        let once = slot.requests.load(Ordering::Acquire) & slot_request::ONCE;
        if once != 0 {
            slot.requests.fetch_and(!once, Ordering::AcqRel);
            if once & slot_request::URGENT != 0 {
                burst.push(Message::control(Control::Urge(slot.urgent_to.load(Ordering::Acquire))));
            }
            if once & slot_request::WAKE != 0 {
                end.signal();
            }
            if once & slot_request::DISCONNECT != 0 && end.disconnect() {
                burst.push(Message::control(Control::Abort)); // RFC 9293 §3.10.5: SYN-SENT ends without a reset
            }
        }
        if end.fit_send(self.needs.1, context.now) && end.is_writer_to_wake() {
            end.signal();
        }
        if written > self.told_written {
            let to = match &mut self.asked {
                Some(asked) => asked.on_written(end, self.told_written, written),
                None => written,
            };
            self.told_written = to;
            let ring = end.send_ring_if_full();
            if ring.is_some_and(|size| size != self.told_ring) {
                self.told_ring = ring.unwrap_or_default();
                burst.push(Message::control(Control::SendRing(self.told_ring)));
            }
            burst.push(Message::control(Control::Written(to)));
            if to < written {
                // Nor must the end overtake it.
                context.more = true;
                requests &= slot_request::ABORT;
            }
        }
        let consumed = end.read_consumed();
        let is_read = consumed > self.told_consumed;
        if is_read {
            self.told_consumed = consumed;
            burst.push(Message::control(Control::Consumed(consumed)));
        }
        if (is_read || end.is_below_mark()) && end.fit_receive(self.needs.0, context.now) {
            burst.push(Message::control(Control::ReceiveBuffer(end.receive_size())));
        }
        let fresh = requests & !self.told_requests;
        self.told_requests |= requests;
        if fresh & slot_request::SHUTDOWN != 0 {
            burst.push(Message::control(Control::Shutdown));
        }
        if fresh & slot_request::SHUTDOWN_READ != 0 {
            burst.push(Message::control(Control::ShutdownRead));
        }
        if fresh & slot_request::ABORT != 0 {
            burst.push(Message::control(Control::Abort));
        } else if fresh & slot_request::CLOSE != 0 {
            burst.push(Message::control(Control::Close));
        }
        if requests & (slot_request::CLOSE | slot_request::ABORT) != 0 {
            end.closed.set(true);
            self.release_if_done(context.account);
        }
        self.follow(context);
    }

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        if let Some(end) = &self.end {
            facts.push(("receive-buffer", end.receive_size().to_string()));
            facts.push(("send-buffer", end.send_size().to_string()));
        }
        let Some(asked) = &self.asked else { return };
        if let Some(name) = asked.server_name() {
            facts.push(("server-name", name.to_owned()));
        }
        if let Some(refused) = asked.refused() {
            facts.push(("class-refused", refused));
        }
        if let Some(reason) = asked.opaque() {
            facts.push(("requests-unseen", reason.to_string()));
        }
    }

    fn next_timeout(&self) -> Option<Time> {
        self.deferred.as_ref().map(|deferred| deferred.until)
    }

    fn on_timeout(&mut self, _inward: &mut Burst, outward: &mut Burst, context: &mut Context<'_>) {
        if self.deferred.as_ref().is_some_and(|deferred| deferred.until <= context.now) {
            self.hand_over(outward, context);
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Stores what of a message lies elsewhere.
fn store_tail(end: &SocketEnd, message: &Message) -> bool {
    let position = message.facts.stream_position + message.bytes().len() as u64;
    message.tail().is_none_or(|tail| end.store_from(position, &*tail.memory, tail.range.clone()))
}

/// Tells the shim the addresses of a socket.
pub(crate) fn set_addresses(end: &SocketEnd, local: Endpoint, remote: Endpoint) {
    let slot = end.shared();
    slot.local_address.store(local.address);
    slot.local_port.store(u32::from(local.port), Ordering::Relaxed);
    slot.remote_address.store(remote.address);
    slot.remote_port.store(u32::from(remote.port), Ordering::Relaxed);
}
