//! The TCP stage of one connection: between segments on one side and controls on the other stands a [`Connection`].
//!
//! Inward, a segment's payload becomes a piece of the stream: the body is cut to what is to be stored and
//! `facts.stream_position` says where; pieces may come out of order, and the socket stage stores each at its
//! position. Controls follow the data: `Connected` before all, then `Readable`, `Acknowledged`, `PeerFinished`,
//! `Failed`, `Closed`. Outward, controls tell what the program did, and segments go out whose payload is named by
//! stream positions ([`Body::Stream`]).

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use scoutline_base::{Endpoint, Time};
use scoutline_path::{
    Body, Burst, Context, Control, DropReason, Effect, FlowKey, HeaderWishes, Message, Sent, Stage, Tuning,
};
use scoutline_wire::tcp::{Flags, Header};
use scoutline_wire::{icmp, ipv4, ipv6};

use super::fast_open::{Offer, Pending, Start};
use super::message::{Emitter, parse, restored};
use super::module::{HalfOpen, Recalled, Tcp};
use super::sizing::Sizing;
use super::{Config, Connection, Drop, Events, Input, Keepalive, State, ecn};
use crate::ip6::LONGER;
use crate::{Interface, errno};

/// Payload that counts as one message more of the device's room: a super-segment of 192 KiB as 13.
const ROOM_UNIT_LEN: u64 = 16 << 10;

/// What the headers of a segment come to on the wire: Ethernet and TCP; IP and the options of every segment beside.
const FRAME_HEADERS: u64 = 14 + 20;

/// The stage of one connection.
pub struct TcpStage {
    interface: Rc<Interface>,
    tcp: Rc<Tcp>,
    key: FlowKey,
    /// What the program said of the packets' network headers.
    headers: HeaderWishes,
    /// What the program has set before the connection begins.
    tuning: Option<Rc<Tuning>>,
    machine: Machine,
    half_open: Option<Rc<HalfOpen>>,
    /// It began on the word of a cookie (RFC 7413), and the peer has not acknowledged our SYN.
    pending: Option<Pending>,
    /// The errno of the last ICMP error: what a time-out is reported as.
    unreachable: Option<i32>,
    /// The path is served in idle time only, and its packets yield to all else beyond us too.
    background: bool,
    /// What the program was told of how far the stream is sent, and may be written.
    told_sent: Sent,
    end: End,
    /// How much had been learnt of paths when this one's was looked up.
    path_mtu_changes: u32,
    /// Then segments could be fragmented on their way.
    divisible: bool,
    /// What the socket's rings should hold.
    receive_sizing: Sizing,
    send_sizing: Sizing,
}

/// How a connection begins.
pub(super) enum Begins {
    /// With our SYN.
    Active(Option<Rc<Start>>),
    /// With a SYN, which is the first message.
    Passive(Option<Rc<Cell<Offer>>>),
    /// With the acknowledgment of a cookie, which is the first message.
    Recalled(Rc<Recalled>),
}

/// The connection, once it began.
enum Machine {
    /// Sends its SYN at the first opportunity.
    Active(Arc<Config>, Option<Rc<Start>>),
    /// Awaits the SYN that caused the path, its first message.
    Passive(Arc<Config>, Option<Rc<Cell<Offer>>>),
    /// Awaits the acknowledgment of a cookie, its first message.
    Recalled(Arc<Config>, Rc<Recalled>),
    Running(Box<Connection>),
}

/// How far the end of the connection has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    /// The program wants a reset. What windows let go of its data goes first, as soon as the device has room.
    Reset,
    /// `Closed` follows once nothing is left to send.
    Due,
    Reported,
}

/// What the segments of one burst came to.
#[derive(Default)]
struct Tally {
    events: Events,
    readable_to: u64,
    /// An ICMP error that ends nothing.
    hint: Option<i32>,
}

impl TcpStage {
    /// A stage for the connection `key`. A passive one awaits its SYN.
    pub(super) fn new(
        interface: Rc<Interface>,
        tcp: Rc<Tcp>,
        key: FlowKey,
        config: Arc<Config>,
        begins: Begins,
        half_open: Option<Rc<HalfOpen>>,
        (headers, tuning): (HeaderWishes, Option<Rc<Tuning>>),
    ) -> TcpStage {
        let machine = match begins {
            Begins::Active(start) => Machine::Active(config, start),
            Begins::Passive(offer) => Machine::Passive(config, offer),
            Begins::Recalled(recalled) => Machine::Recalled(config, recalled),
        };
        TcpStage {
            interface,
            tcp,
            key,
            headers,
            tuning,
            machine,
            half_open,
            pending: None,
            unreachable: None,
            background: false,
            told_sent: Sent::default(),
            end: End::Open,
            path_mtu_changes: 0,
            divisible: false,
            receive_sizing: Sizing::leading(),
            send_sizing: Sizing::default(),
        }
    }

    /// The connection, once it began (`TCP_INFO`).
    pub fn connection(&self) -> Option<&Connection> {
        match &self.machine {
            Machine::Running(connection) => Some(connection),
            _ => None,
        }
    }

    /// See [`TcpStage::connection`].
    pub fn connection_mut(&mut self) -> Option<&mut Connection> {
        match &mut self.machine {
            Machine::Running(connection) => Some(connection),
            _ => None,
        }
    }

    /// The next connection of this flow begins behind all numbers of this one (RFC 6191 §2). To be called in the turn in
    /// which it is made.
    pub fn precede(&self) {
        if let Some(connection) = self.connection() {
            self.tcp.succeed(self.key, connection.next_initial());
        }
    }

    /// Makes the connection one of background traffic, or not any more; also one that has not begun.
    pub fn set_background(&mut self, background: bool, now: Time) {
        self.background = background;
        if let Machine::Running(connection) = &mut self.machine {
            connection.set_background(background, now);
        }
    }

    /// The flow.
    pub fn key(&self) -> &FlowKey {
        &self.key
    }

    /// What was said of a connection before it began.
    fn prepare(&self, connection: &mut Connection, now: Time) {
        connection.set_background(self.background, now);
        if let Some(tuning) = &self.tuning {
            connection.tune(tuning, now);
        }
    }

    /// Goes on as if the SYN that was answered with a cookie had made a connection.
    fn recall(&mut self, now: Time) {
        if let Machine::Recalled(config, recalled) = &self.machine {
            let (_, offset) = self.tcp.initial(&self.key, now);
            let config = Arc::clone(config);
            let mut connection = Connection::recall(config, recalled.cookie, offset, &recalled.syn, now);
            self.prepare(&mut connection, now);
            self.machine = Machine::Running(Box::new(connection));
        }
    }

    /// Begins an active open.
    fn begin(&mut self, now: Time) {
        if let Machine::Active(config, start) = &self.machine {
            let (iss, offset) = self.tcp.initial(&self.key, now);
            let config = Arc::clone(config);
            let mut connection = match start {
                Some(start) => Connection::connect_fast(config, iss, offset, start, now),
                None => Connection::connect(config, iss, offset, now),
            };
            self.prepare(&mut connection, now);
            self.machine = Machine::Running(Box::new(connection));
        }
    }

    /// One message inward: true when it goes on, with a piece of the stream.
    fn inward_one(&mut self, message: &mut Message, tally: &mut Tally, context: &mut Context<'_>) -> bool {
        match message.body {
            Body::Control(Control::Unreachable(kind, code)) => {
                self.on_unreachable(kind, code, tally, context.now);
                return false;
            }
            Body::Control(Control::UnreachableSegment(kind, code, sequence)) => {
                if self.connection().is_some_and(|connection| connection.is_outstanding(sequence)) {
                    self.on_unreachable(kind, code, tally, context.now);
                }
                return false;
            }
            Body::Control(Control::TooLong(mtu, sequence)) => {
                self.on_too_long(mtu, sequence, context.now);
                return false;
            }
            Body::Block { .. } => {}
            _ => return true,
        }
        match self.on_packet(message, tally, context) {
            Ok(goes_on) => goes_on,
            Err(reason) => {
                context.account.on_drop(reason);
                false
            }
        }
    }

    fn on_packet(
        &mut self,
        message: &mut Message,
        tally: &mut Tally,
        context: &mut Context<'_>,
    ) -> Result<bool, DropReason> {
        let (header, header_len) = parse(&self.interface, message)?;
        if message.facts.hop_limit < self.headers.least_hops {
            return Err(DropReason::TtlExceeded);
        }
        let payload_len = (message.body_len() - header_len) as u32;
        let now = context.now;
        self.recall(now);
        let connection = match &mut self.machine {
            Machine::Running(connection) => connection,
            Machine::Passive(..) => {
                if header.flags & (Flags::SYN | Flags::ACK | Flags::RST) != Flags::SYN {
                    tally.events |= Events::CLOSED;
                    return Err(DropReason::BadFlags);
                }
                let syn = Header { flags: ecn::flags_of_syn(header.flags, message.facts.tos), ..header };
                let input = self.accept(&syn, payload_len, now);
                return Ok(deliver(message, &input, header_len, tally));
            }
            Machine::Active(..) | Machine::Recalled(..) => {
                self.begin(now);
                return Err(DropReason::BadFlags);
            }
        };
        connection.on_arrived(payload_len, message.facts.segmentation.map(|cut| cut.size));
        let input = connection.on_segment(&header, payload_len, now);
        if message.facts.tos & ipv4::ECN_MASK == ipv4::ECN_CE && input.drop.is_none() {
            connection.on_congestion_experienced();
        }
        if input.events.contains(Events::NEW_SYN) {
            self.tcp.succeed(self.key, connection.next_initial());
            tally.events |= input.events | Events::CLOSED;
            yield_to(message, context);
            return Ok(false);
        }
        match input.drop {
            Some(drop) => context.account.on_drop(reason(drop)),
            // As in Linux's `tcp_ack`: something worked.
            None if self.unreachable.is_some() && connection.state() != State::Closed => {
                self.unreachable = None;
                tally.hint = tally.hint.or(Some(0));
            }
            None => {}
        }
        Ok(deliver(message, &input, header_len, tally))
    }

    /// The SYN that caused the path has come. Data on it is left to be sent again (RFC 9293 §3.10.7.2 lets it be queued
    /// or not), but for a fast open.
    fn accept(&mut self, syn: &Header, payload_len: u32, now: Time) -> Input {
        let Machine::Passive(config, offer) = &self.machine else { return Input::default() };
        let (iss, offset) = self.tcp.initial(&self.key, now);
        let Offer { answer, accepted } = offer.as_ref().map(|offer| offer.take()).unwrap_or_default();
        let config = Arc::clone(config);
        let mut connection = Connection::accept_answering(config, iss, offset, syn, answer, now);
        self.prepare(&mut connection, now);
        let input = if accepted.is_some() { connection.begin_fast(payload_len) } else { Input::default() };
        self.pending = accepted;
        self.machine = Machine::Running(Box::new(connection));
        input
    }

    /// The peer has acknowledged our SYN, or will not: a fast open is over.
    fn settle_fast_open(&mut self, events: Events, now: Time) {
        let is_open = self.connection().is_some_and(|connection| connection.state() == State::SynReceived);
        if !is_open
            && let Some(pending) = self.pending.take()
            && events.contains(Events::RESET)
        {
            pending.on_reset(now);
        }
        if let Machine::Running(connection) = &mut self.machine
            && let Some(outcome) = connection.take_fast_open_outcome()
        {
            self.tcp.learn_fast_open(&self.key, &outcome, now);
        }
    }

    /// RFC 8201 §5.2: what this connection believes holds for all that goes to its peer.
    fn on_too_long(&mut self, mtu: u16, sequence: u32, now: Time) {
        if let Machine::Running(connection) = &mut self.machine
            && let Some(mtu) = connection.on_too_long(mtu, sequence, now)
        {
            let mtu = u32::from(mtu) + u32::from(self.longer());
            self.interface.on_too_big(self.key.remote, mtu, now);
        }
    }

    /// What others have been told of the way to the peer.
    #[cold]
    fn look_at_path_mtu(&mut self, now: Time) {
        let longer = self.longer();
        let Machine::Running(connection) = &mut self.machine else { return };
        if connection.state() == State::SynSent {
            return; // what the peer takes is still to be heard
        }
        self.path_mtu_changes = self.interface.path_mtu_changes();
        let told = self.interface.told_mtu(self.key.remote, now);
        self.divisible = told.is_some_and(|told| told.divisible);
        if let Some(told) = told {
            connection.on_told_by_others(told.mtu - longer, told.until);
        }
    }

    /// By how much the packets' headers are longer than IPv4's, as which the connection counts them.
    fn longer(&self) -> u16 {
        if self.key.remote.is_v4() { 0 } else { LONGER }
    }

    fn on_unreachable(&mut self, kind: u8, code: u8, tally: &mut Tally, now: Time) {
        let Machine::Running(connection) = &mut self.machine else { return };
        let too_long = kind == icmp::UNREACHABLE && code == icmp::unreachable::FRAGMENTATION_NEEDED;
        let over_v6 = !self.key.remote.is_v4();
        let Some(errno) = errno::of_connection(kind, code, over_v6).filter(|_| !too_long) else { return };
        self.unreachable = Some(errno);
        // While a connection opens, Linux gives up on any of these (RFC 5461 §4.1 describes it); RFC 1122 §4.2.3.9
        // asks so for codes 2 to 4. Later they are hints.
        let events = connection.on_unreachable(true, now);
        tally.hint = Some(errno).filter(|_| events.is_empty() && connection.state() != State::Closed);
        tally.events |= events;
    }

    /// One control outward.
    fn on_control(&mut self, control: &Control, now: Time) -> Events {
        if let Control::Headers(bits) = *control {
            self.headers = HeaderWishes::of_families(bits)[usize::from(!self.key.remote.is_v4())];
        }
        let Machine::Running(connection) = &mut self.machine else {
            // Nothing was ever sent: there is nothing to end.
            let ends = matches!(control, Control::Close | Control::Abort);
            return if ends { Events::CLOSED } else { Events::empty() };
        };
        match *control {
            Control::Consumed(position) => connection.on_consumed(position),
            Control::ReceiveBuffer(size) => connection.set_receive_buffer(size),
            Control::Written(position) => connection.on_written(position),
            Control::SendRing(size) => connection.set_ring(size),
            Control::Urge(position) => connection.set_urgent(position),
            Control::Held { from, by_call, unfinished } => connection.set_held(from, by_call, unfinished),
            Control::Shutdown => connection.shutdown(),
            Control::ShutdownRead => connection.shutdown_read(),
            Control::Close if !connection.resets_on_close() => return connection.close(now),
            // Linux has sent by now what was written; here it may be told of in the same look of the engine.
            Control::Close | Control::Abort if self.end == End::Open => self.end = End::Reset,
            Control::NoDelay(nodelay) => connection.set_nodelay(nodelay),
            Control::Tune(ref tuning) => connection.tune(tuning, now),
            Control::KeepAlive(times) => {
                let times = times.map(|(idle, interval, count)| Keepalive {
                    idle: Duration::from_secs(u64::from(idle)),
                    interval: Duration::from_secs(u64::from(interval)),
                    count: count.min(255) as u8,
                });
                connection.set_keepalive(times, now);
            }
            _ => {}
        }
        Events::empty()
    }

    /// The program has taken the stream up to `position`: what its ring should hold.
    fn receive_need(&mut self, position: u64, now: Time) -> Option<Message> {
        let connection = self.connection()?;
        let (round_trip, segment) = (connection.least_round_trip(), connection.segment_payload());
        let need = self.receive_sizing.on_passed(position, round_trip, segment, now)?;
        Some(Message::control(Control::NeedReceive(need)))
    }

    /// Tells the program's side what happened, in order. `Connected` is the caller's: it goes before the data.
    fn report(&mut self, tally: &Tally, into: &mut Burst, now: Time) {
        let events = tally.events;
        let mut tell = |control| into.push(Message::control(control));
        if events.contains(Events::URGENT)
            && let Some(mark) = self.connection().and_then(Connection::urgent_mark)
        {
            // Before what brings the byte: nobody shall read it as one like others.
            tell(Control::Urgent(mark));
        }
        if events.contains(Events::READABLE) {
            tell(Control::Readable(tally.readable_to));
        }
        if let Machine::Running(connection) = &self.machine {
            if events.contains(Events::ACKNOWLEDGED) {
                let (position, segment) = (connection.acknowledged(), connection.segment_payload());
                tell(Control::Acknowledged(position));
                let round_trip = connection.least_round_trip();
                if let Some(need) = self.send_sizing.on_passed(position, round_trip, segment, now) {
                    tell(Control::NeedSend(need));
                }
            }
            if events.contains(Events::PEER_FINISHED) {
                tell(Control::PeerFinished);
            }
        }
        if let Some(errno) = self.failure(events) {
            tell(Control::Failed(errno));
        } else if let Some(errno) = tally.hint {
            tell(Control::Hint(errno));
        }
        if events.contains(Events::CLOSED) && self.end != End::Reported {
            self.end = End::Due;
        }
        if events.intersects(Events::CONNECTED | Events::CLOSED) {
            self.half_open = None;
        }
        if self.pending.is_some() || events.contains(Events::CONNECTED) {
            self.settle_fast_open(events, now);
        }
    }

    fn failure(&self, events: Events) -> Option<i32> {
        if events.contains(Events::REFUSED) {
            Some(self.unreachable.unwrap_or(errno::ECONNREFUSED))
        } else if events.contains(Events::RESET) {
            Some(errno::ECONNRESET)
        } else if events.contains(Events::TIMED_OUT) {
            Some(self.unreachable.unwrap_or(errno::ETIMEDOUT))
        } else {
            None
        }
    }

    /// The acknowledgment that a segment of a burst has for itself.
    #[inline]
    fn tell(&mut self, turned: &mut Burst, context: &mut Context<'_>) {
        if let Machine::Running(connection) = &mut self.machine
            && context.transmit_room > 0
            && let Some(transmit) = connection.poll_told(context.now)
        {
            let emitter = Emitter { interface: &self.interface, key: &self.key, headers: self.headers };
            context.transmit_room -= 1;
            turned.push(emitter.segment(&transmit));
        }
    }

    /// Makes segments while the device has room, and then reports the end if it was reached.
    fn transmit(&mut self, outward: &mut Burst, inward: &mut Burst, context: &mut Context<'_>) {
        if !self.make_segments(outward, inward, context) {
            return;
        }
        if self.end == End::Reset {
            let ended = self.connection_mut().map_or(Events::CLOSED, Connection::abort);
            self.report(&Tally { events: ended, ..Tally::default() }, inward, context.now);
            if !self.make_segments(outward, inward, context) {
                return;
            }
        }
        if self.end == End::Due {
            self.end = End::Reported;
            inward.push(Message::control(Control::Closed));
        }
    }

    /// False when the device had room for less than there is.
    fn make_segments(&mut self, outward: &mut Burst, inward: &mut Burst, context: &mut Context<'_>) -> bool {
        if self.path_mtu_changes != self.interface.path_mtu_changes() {
            self.look_at_path_mtu(context.now);
        }
        let headers = HeaderWishes { divisible: self.headers.divisible || self.divisible, ..self.headers };
        let emitter = Emitter { interface: &self.interface, key: &self.key, headers };
        let ip_len = if self.key.remote.is_v4() { ipv4::MIN_HEADER_LEN } else { ipv6::HEADER_LEN } as u64;
        let Machine::Running(connection) = &mut self.machine else { return true };
        let all = loop {
            if context.transmit_room == 0 {
                context.more = true;
                return false;
            }
            let headers = FRAME_HEADERS + ip_len + connection.options_len();
            let frame = u64::from(connection.segment_payload()) + headers;
            let segments = u64::from(context.segment_len).min(context.transmit_len) / frame;
            let Some(transmit) = connection.poll_transmit_within(segments, context.now) else {
                // Acknowledgments never wait for room, data does.
                let waits = segments == 0 && connection.has_data();
                context.more |= waits;
                break !waits;
            };
            let payload = transmit.payload.as_ref().map_or(0, |range| range.end - range.start);
            // A long super-segment takes the device's time of several packets.
            let cost = 1 + (payload / ROOM_UNIT_LEN) as usize;
            context.transmit_room = context.transmit_room.saturating_sub(cost);
            let wire = payload.div_ceil(frame - headers).max(1) * headers + payload;
            context.transmit_len = context.transmit_len.saturating_sub(wire);
            let mut message = emitter.segment(&transmit);
            // Whoever has sent all that he will send does nothing when that is acknowledged.
            message.facts.can_wait = connection.is_peer_finished() && transmit.header.flags == Flags::ACK;
            message.facts.can_wait &= matches!(message.body, Body::Empty);
            outward.push(message);
        };
        if let Some(sent) = connection.news_of_sent(&self.told_sent) {
            self.told_sent = sent;
            inward.push(Message::control(Control::Sent(sent)));
        }
        all
    }
}

impl Stage for TcpStage {
    fn module(&self) -> &'static str {
        "TCP"
    }

    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        let mut tally = Tally::default();
        burst.retain_mut(|message| {
            let goes_on = self.inward_one(message, &mut tally, context);
            self.tell(turned, context);
            goes_on
        });
        if tally.events.contains(Events::CONNECTED) {
            burst.insert(0, Message::control(Control::Connected));
        }
        if tally.events.contains(Events::TIME_WAIT) {
            context.effects.push(Effect::Spare);
        }
        self.report(&tally, burst, context.now);
        self.transmit(turned, burst, context);
    }

    fn outward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        let mut tally = Tally::default();
        if !burst.iter().any(|message| matches!(message.body, Body::Control(Control::Close | Control::Abort)))
        {
            self.begin(context.now);
        }
        burst.retain(|message| {
            match &message.body {
                Body::Control(control) => {
                    tally.events |= self.on_control(control, context.now);
                    if let Control::Consumed(position) = control {
                        turned.extend(self.receive_need(*position, context.now));
                    }
                }
                // Data comes by position; a body here is a fault of the path's other end.
                _ => context.account.on_drop(DropReason::Malformed),
            }
            false
        });
        self.report(&tally, turned, context.now);
        self.transmit(burst, turned, context);
    }

    fn next_timeout(&self) -> Option<Time> {
        match &self.machine {
            Machine::Running(connection) => connection.next_timeout(),
            // At once: the first run of an active path begins it, however it comes about.
            Machine::Active(..) => Some(Time::ZERO),
            Machine::Passive(..) | Machine::Recalled(..) => None,
        }
    }

    fn on_timeout(&mut self, inward: &mut Burst, outward: &mut Burst, context: &mut Context<'_>) {
        self.begin(context.now);
        let mut tally = Tally::default();
        if let Machine::Running(connection) = &mut self.machine {
            tally.events = connection.on_timeout(context.now);
        }
        self.report(&tally, inward, context.now);
        self.transmit(outward, inward, context);
    }

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        let key = &self.key;
        facts.push(("local", Endpoint::new(key.local, key.local_port).to_string()));
        facts.push(("remote", Endpoint::new(key.remote, key.remote_port).to_string()));
        let Machine::Running(connection) = &self.machine else {
            let state = if matches!(self.machine, Machine::Passive(..) | Machine::Recalled(..)) {
                State::Listen
            } else {
                State::Closed
            };
            return facts.push(("state", state.as_str().to_owned()));
        };
        let info = connection.info();
        facts.push(("state", info.state.as_str().to_owned()));
        if let Some(srtt) = info.srtt {
            facts.push(("srtt-us", srtt.as_micros().to_string()));
        }
        facts.push(("rto-us", info.rto.as_micros().to_string()));
        facts.push(("congestion", info.congestion.name().to_owned()));
        if let Some(rate) = info.pacing_rate {
            facts.push(("pacing-bytes-per-s", rate.to_string()));
        }
        facts.push(("cwnd", info.cwnd.to_string()));
        if info.ssthresh != u32::MAX {
            facts.push(("ssthresh", info.ssthresh.to_string()));
        }
        facts.push(("unacked", info.unacked.to_string()));
        facts.push(("unsent", info.unsent.to_string()));
        facts.push(("snd-wnd", info.snd_wnd.to_string()));
        facts.push(("rcv-wnd", info.rcv_wnd.to_string()));
        facts.push(("mss", info.snd_mss.to_string()));
        facts.push(("retransmits", info.retransmits.to_string()));
    }

    any_stage!();
}

/// Books what came of a segment. True when the message goes on, cut to its piece of the stream.
fn deliver(message: &mut Message, input: &Input, header_len: usize, tally: &mut Tally) -> bool {
    tally.events |= input.events;
    let Some(deliver) = input.deliver else { return false };
    tally.readable_to = tally.readable_to.max(deliver.in_order_to);
    message.advance(header_len + deliver.skip as usize);
    message.truncate(deliver.len as usize);
    message.facts.stream_position = deliver.position;
    true
}

/// RFC 9293 §3.10.7.4 and RFC 6191: in TIME-WAIT a newer SYN may begin the next connection of the same flow: this
/// path ends, and the SYN is classified afresh.
fn yield_to(message: &mut Message, context: &mut Context<'_>) {
    let message = restored(std::mem::take(message));
    context.effects.push(Effect::Destroy);
    context.effects.push(Effect::Reclassify(message));
}

/// The reason under which a segment that TCP refused is counted.
fn reason(drop: Drop) -> DropReason {
    match drop {
        Drop::Closed | Drop::NoReceiver => DropReason::Closed,
        Drop::Duplicate | Drop::OutOfWindow => DropReason::OutOfWindow,
        Drop::Paws | Drop::MissingTimestamp => DropReason::Paws,
        Drop::BadAck => DropReason::BadAcknowledgment,
        Drop::ReassemblyLimit => DropReason::ReassemblyLimit,
        Drop::MissingAck | Drop::UnexpectedSyn | Drop::BadReset => DropReason::BadFlags,
    }
}
