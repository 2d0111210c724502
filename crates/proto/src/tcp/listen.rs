//! The stages without a connection: of a listen path, and of the path that resets what nobody takes.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use scoutline_base::{Address, Endpoint, Time};
use scoutline_path::{
    Attributes, Body, Burst, Context, DropReason, Effect, FlowKey, HeaderWishes, Message, Name, Stage,
    Tuning, Value,
};
use scoutline_wire::ipv4;
use scoutline_wire::tcp::{Flags, Header, Options};

use super::cookie::{self, Flow, Offered};
use super::fast_open::{self, Offer, Queue};
use super::message::{Emitter, parse, restored};
use super::module::{
    Backlog, COOKIE, FAST_OPEN_QUEUE, HALF_OPEN, HEADERS, HalfOpen, MAX_SEGMENT, OFFER, PASSIVE, Recalled,
    TUNING, Tcp, headers_of,
};
use super::options::{DEFAULT_MSS as DEFAULT_SEGMENT, Negotiated};
use super::{Config, ecn, reset_for};
use crate::Interface;

/// How long an acknowledgment may bring back a cookie (see [`cookie`]).
const COOKIE_LIFETIME: Duration = Duration::from_secs(120);
/// Attributes that a new connection has from the path that listened.
const INHERITED: [Name; 10] = [
    Name::Class,
    Name::Priority,
    Name::Device,
    Name::QueueLimit,
    Name::MemoryLimit,
    Name::ReceiveBuffer,
    Name::SendBuffer,
    Name::Other(MAX_SEGMENT),
    Name::Other(HEADERS),
    Name::Other(TUNING),
];

/// The TCP stage of a listen path: RFC 9293 §3.10.7.2, the LISTEN state.
///
/// When there is no place for another handshake a SYN is answered with a [`cookie`], and nothing is kept; the
/// acknowledgment that brings it back makes the connection.
///
/// Else each SYN becomes [`Effect::Create`] of a path that starts at `SOCKET`, with the attributes of the flow and
/// `Parent`, and the SYN as its first message, from the start of its frame. The number of handshakes is bounded by
/// the [`Backlog`].
pub struct ListenStage {
    interface: Rc<Interface>,
    tcp: Rc<Tcp>,
    local: Endpoint,
    backlog: Rc<Backlog>,
    fast_open: Rc<Queue>,
    inherited: Attributes,
    /// What `inherited` says of network headers, over each family.
    headers: [HeaderWishes; 2],
    accepted: u64,
}

impl ListenStage {
    pub(super) fn new(
        interface: Rc<Interface>,
        tcp: Rc<Tcp>,
        local: Endpoint,
        backlog: Rc<Backlog>,
        attributes: &Attributes,
    ) -> ListenStage {
        let mut inherited = Attributes::new();
        for name in INHERITED {
            if let Some(value) = attributes.value(name) {
                inherited.set(name, value.clone());
            }
        }
        let fast_open = attributes.any::<Queue>(Name::Other(FAST_OPEN_QUEUE)).unwrap_or_default();
        let headers = headers_of(&inherited);
        ListenStage { interface, tcp, local, backlog, fast_open, inherited, headers, accepted: 0 }
    }

    /// What its program has set for the connections that begin from now on.
    pub fn set_tuning(&mut self, tuning: Tuning) {
        self.inherited.remove(Name::Other(MAX_SEGMENT));
        if tuning.max_segment != 0 {
            self.inherited.set(Name::Other(MAX_SEGMENT), Value::Number(u64::from(tuning.max_segment)));
        }
        self.inherited.set(Name::Other(TUNING), Value::Any(Rc::new(tuning)));
    }

    /// What the packets of connections that begin from now on have in their network headers, see [`HEADERS`].
    pub fn set_headers(&mut self, bits: u64) {
        self.inherited.set(Name::Other(HEADERS), Value::Number(bits));
        self.headers = headers_of(&self.inherited);
    }

    /// The connections whose handshake is not complete.
    pub fn backlog(&self) -> &Rc<Backlog> {
        &self.backlog
    }

    fn on_packet(&mut self, message: Message, turned: &mut Burst, context: &mut Context<'_>) {
        let (header, header_len) = match parse(&self.interface, &message) {
            Ok(parsed) => parsed,
            Err(reason) => return context.account.on_drop(reason),
        };
        let is_v6 = message.facts.source.is_some_and(|source| !source.is_v4());
        if message.facts.hop_limit < self.headers[usize::from(is_v6)].least_hops {
            return context.account.on_drop(DropReason::TtlExceeded);
        }
        let flags = header.flags;
        // First: a reset is ignored. Second: an acknowledgment is of nothing that we sent. Third: a SYN.
        if flags.contains(Flags::RST) {
            return context.account.on_drop(DropReason::BadFlags);
        }
        if flags.contains(Flags::ACK) && !flags.contains(Flags::SYN) && self.expects_cookies(context.now) {
            return match self.recall(&message, &header, context.now) {
                Some(recalled) => self.on_cookie(message, &header, recalled, context),
                None => self.on_no_cookie(message, &header, context),
            };
        }
        if flags.contains(Flags::ACK) {
            context.account.on_drop(DropReason::NoPath);
            return reset(&self.interface, &message, &header, header_len, turned, context);
        }
        if !flags.contains(Flags::SYN) {
            return context.account.on_drop(DropReason::BadFlags);
        }
        let syn = Header { flags: ecn::flags_of_syn(flags, message.facts.tos), ..header };
        self.on_syn(message, &syn, header_len, turned, context);
    }

    /// The connection that the acknowledgment of a cookie makes.
    fn on_cookie(
        &mut self,
        message: Message,
        header: &Header,
        recalled: Recalled,
        context: &mut Context<'_>,
    ) {
        let Some(source) = message.facts.source else { return };
        let remote = Endpoint::new(source, header.source_port);
        if context.effects.iter().any(|effect| is_creation_for(effect, remote)) {
            return match key_of(&self.interface, &message, header) {
                Some(key) => context.effects.push(Effect::Follow(key, restored(message))),
                None => context.account.on_drop(DropReason::Malformed),
            };
        }
        let begins = Some((Name::Other(COOKIE), Value::Any(Rc::new(recalled))));
        self.create(message, header, remote, begins, context);
    }

    /// An acknowledgment that brings back no cookie. What follows one that does may have come to this path, too, before
    /// that made the connection.
    fn on_no_cookie(&mut self, message: Message, header: &Header, context: &mut Context<'_>) {
        self.backlog.refused.set(self.backlog.refused.get() + 1);
        match key_of(&self.interface, &message, header) {
            Some(key) => context.effects.push(Effect::Stray(key, restored(message))),
            None => context.account.on_drop(DropReason::Malformed),
        }
    }

    /// Cookies may be about.
    fn expects_cookies(&self, now: Time) -> bool {
        self.backlog.cookie_at.get().is_some_and(|at| now.since(at) < COOKIE_LIFETIME)
    }

    fn flow(message: &Message, header: &Header) -> Option<Flow> {
        let (source, destination) = (message.facts.source?, message.facts.destination?);
        let ours = (destination.to_ip(), header.destination_port);
        Some(Flow { ours, theirs: (source.to_ip(), header.source_port) })
    }

    fn config(&self, remote: Address) -> Arc<Config> {
        self.tcp.config_for(
            &self.interface,
            remote,
            self.inherited.number(Name::ReceiveBuffer),
            self.inherited.number(Name::SendBuffer),
            self.inherited.number(Name::Other(MAX_SEGMENT)),
        )
    }

    /// The SYN that an acknowledgment's cookie tells of.
    fn recall(&self, message: &Message, header: &Header, now: Time) -> Option<Recalled> {
        let flow = ListenStage::flow(message, header)?;
        let cookie = header.acknowledgment.wrapping_sub(1);
        let theirs = header.sequence.wrapping_sub(1);
        let segment = cookie::check(self.tcp.secret(), &flow, cookie, theirs, now)?;
        let offered = header.options.timestamps.map(|(_, echo)| {
            let offset = self.tcp.secret().timestamp_offset(flow.ours, flow.theirs);
            Offered::from_echo(echo.wrapping_sub(offset))
        });
        let offered = offered.unwrap_or_default();
        let mut flags = Flags::SYN;
        flags.set(Flags::ECE | Flags::CWR, offered.ecn);
        let options = Options {
            mss: Some(segment),
            window_scale: offered.window_scale,
            sack_permitted: offered.sack,
            timestamps: header.options.timestamps.map(|(value, _)| (value, 0)),
            ..Options::default()
        };
        let syn = Header { sequence: theirs, acknowledgment: 0, flags, options, ..*header };
        Some(Recalled { syn, cookie })
    }

    /// Answers a SYN with a cookie.
    fn send_cookie(
        &mut self,
        message: &Message,
        header: &Header,
        turned: &mut Burst,
        context: &mut Context<'_>,
    ) {
        let Some(flow) = ListenStage::flow(message, header) else { return };
        let config = self.config(flow.theirs.0.into());
        if context.transmit_room == 0 || !config.syn_cookies {
            self.backlog.refused.set(self.backlog.refused.get() + 1);
            return context.account.on_drop(DropReason::BacklogFull);
        }
        context.transmit_room -= 1;
        let secret = self.tcp.secret();
        let mut ours = Negotiated::offer(&config);
        ours.accept(&header.options);
        // What a timestamp does not bring back cannot be agreed on.
        let timestamps = header.options.timestamps.filter(|_| ours.timestamps);
        ours.sack &= timestamps.is_some();
        ours.window_scaling &= timestamps.is_some();
        let both = Flags::ECE | Flags::CWR;
        let ecn = timestamps.is_some() && config.ecn != ecn::Policy::Off && header.flags.contains(both);
        let window_scale = header.options.window_scale.filter(|_| ours.window_scaling);
        let offered = Offered { window_scale, sack: ours.sack, ecn };
        let offset = secret.timestamp_offset(flow.ours, flow.theirs);
        let stamp = offered.timestamp(context.now.as_millis() as u32).wrapping_add(offset);
        let segment = header.options.mss.unwrap_or(DEFAULT_SEGMENT);
        let mut flags = Flags::SYN | Flags::ACK;
        flags.set(Flags::ECE, ecn);
        let answer = Header {
            source_port: header.destination_port,
            destination_port: header.source_port,
            sequence: cookie::make(secret, &flow, header.sequence, segment, context.now),
            acknowledgment: header.sequence.wrapping_add(1),
            flags,
            window: config.syn_window(u64::from(config.receive_buffer)),
            options: ours.syn_options(config.told_mss(), (stamp, timestamps.map_or(0, |(value, _)| value))),
            ..Header::default()
        };
        self.backlog.cookie_at.set(Some(context.now));
        self.backlog.cookies.set(self.backlog.cookies.get() + 1);
        if let Some(key) = key_of(&self.interface, message, header) {
            let headers = self.headers[usize::from(!key.remote.is_v4())];
            let emitter = Emitter { interface: &self.interface, key: &key, headers };
            turned.push(emitter.message(&answer, 0, Body::Empty));
        }
    }

    /// What is done with the fast open of a SYN (RFC 7413).
    fn fast_offer(&self, message: &Message, header: &Header, header_len: usize, now: Time) -> Option<Offer> {
        let has_data = message.body_len() > header_len;
        let option = header.options.fast_open;
        if option.is_none() && !has_data {
            return None;
        }
        let (client, server) = (message.facts.source?, message.facts.destination?);
        let (policy, keys) = (self.tcp.fast_open_policy(), self.tcp.fast_open_keys());
        let syn = fast_open::Syn { option, has_data, client, server };
        Some(fast_open::consider(&self.fast_open, policy, self.backlog.limit.get(), &keys, &syn, now))
    }

    fn on_syn(
        &mut self,
        message: Message,
        header: &Header,
        header_len: usize,
        turned: &mut Burst,
        context: &mut Context<'_>,
    ) {
        let Some(source) = message.facts.source else {
            return context.account.on_drop(DropReason::Malformed);
        };
        if header.source_port == 0 {
            return context.account.on_drop(DropReason::Malformed);
        }
        let remote = Endpoint::new(source, header.source_port);
        // A SYN that was sent twice within one burst makes one connection.
        if context.effects.iter().any(|effect| is_creation_for(effect, remote)) {
            return context.account.on_drop(DropReason::BadFlags);
        }
        if self.backlog.is_full() {
            self.tcp.crowd_out();
            return self.send_cookie(&message, header, turned, context);
        }
        let offer = self.fast_offer(&message, header, header_len, context.now);
        let begins = offer.map(|offer| (Name::Other(OFFER), Value::Any(Rc::new(Cell::new(offer)))));
        self.create(message, header, remote, begins, context);
    }

    /// The path of a connection, with its first message, and the attribute that says how it begins if not as ever.
    fn create(
        &mut self,
        message: Message,
        header: &Header,
        remote: Endpoint,
        begins: Option<(Name, Value)>,
        context: &mut Context<'_>,
    ) {
        let Some(destination) = message.facts.destination else {
            return context.account.on_drop(DropReason::Malformed);
        };
        self.accepted += 1;
        let local = Endpoint::new(destination, header.destination_port);
        let half_open = Rc::new(HalfOpen::take(&self.backlog));
        let mut attributes = self
            .inherited
            .clone()
            .with(Name::Protocol, Value::Number(u64::from(ipv4::PROTOCOL_TCP)))
            .with(Name::Local, Value::Address(local))
            .with(Name::Remote, Value::Address(remote))
            .with(Name::Device, Value::Device(self.interface.device))
            .with(Name::Parent, Value::Path(context.path))
            .with(Name::Other(PASSIVE), Value::Number(1))
            .with(Name::Other(HALF_OPEN), Value::Any(half_open));
        if let Some((begins, how)) = begins {
            attributes.set(begins, how);
        }
        let first = Some(restored(message));
        context.effects.push(Effect::Create { module: "SOCKET", attributes, first });
    }
}

fn is_creation_for(effect: &Effect, remote: Endpoint) -> bool {
    matches!(effect, Effect::Create { attributes, .. } if attributes.address(Name::Remote) == Some(remote))
}

impl Stage for ListenStage {
    fn module(&self) -> &'static str {
        "TCP"
    }

    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        burst.retain_mut(|message| {
            if let Body::Control(_) = message.body {
                return true;
            }
            self.on_packet(std::mem::take(message), turned, context);
            false
        });
    }

    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        facts.push(("local", self.local.to_string()));
        facts.push(("state", "LISTEN".to_owned()));
        facts.push(("backlog", self.backlog.limit.get().to_string()));
        facts.push(("half-open", self.backlog.half_open.get().to_string()));
        facts.push(("syns", self.accepted.to_string()));
        if self.backlog.cookies.get() > 0 {
            facts.push(("cookies", self.backlog.cookies.get().to_string()));
        }
        if !self.fast_open.is_empty() {
            facts.push(("fast-open", self.fast_open.len().to_string()));
        }
    }

    any_stage!();
}

/// The TCP stage of the path that gets segments which no other path takes: RFC 9293 §3.10.7.1, the CLOSED state.
pub struct ResetStage {
    interface: Rc<Interface>,
}

impl ResetStage {
    pub(super) fn new(interface: Rc<Interface>) -> ResetStage {
        ResetStage { interface }
    }

    fn on_packet(&mut self, message: &Message, turned: &mut Burst, context: &mut Context<'_>) {
        match parse(&self.interface, message) {
            Ok((header, header_len)) => {
                context.account.on_drop(DropReason::NoPath);
                reset(&self.interface, message, &header, header_len, turned, context);
            }
            Err(reason) => context.account.on_drop(reason),
        }
    }
}

impl Stage for ResetStage {
    fn module(&self) -> &'static str {
        "TCP"
    }

    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        burst.retain(|message| {
            if let Body::Control(_) = message.body {
                return true;
            }
            self.on_packet(message, turned, context);
            false
        });
    }

    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        facts.push(("state", "CLOSED".to_owned()));
    }

    any_stage!();
}

/// The flow of a segment that came.
fn key_of(interface: &Interface, message: &Message, header: &Header) -> Option<FlowKey> {
    Some(FlowKey {
        remote: message.facts.source?,
        local: message.facts.destination?,
        remote_port: header.source_port,
        local_port: header.destination_port,
        device: interface.device,
        protocol: ipv4::PROTOCOL_TCP,
    })
}

/// Answers a segment of no connection, at a limited rate.
fn reset(
    interface: &Interface,
    message: &Message,
    header: &Header,
    header_len: usize,
    turned: &mut Burst,
    context: &mut Context<'_>,
) {
    let Some(key) = key_of(interface, message, header) else { return };
    let payload_len = (message.body_len() - header_len) as u32;
    let Some(answer) = reset_for(header, payload_len).filter(|_| interface.is_ours(key.local)) else {
        return;
    };
    if context.transmit_room == 0 || !interface.resets.borrow_mut().take(context.now) {
        return context.account.on_drop(DropReason::RateLimited);
    }
    context.transmit_room -= 1;
    // As Linux: the answer has the type of service of what it answers (RFC 9293 §3.9.2.1 asks nothing of it).
    let headers = HeaderWishes { tos: message.facts.tos & !ipv4::ECN_MASK, ..HeaderWishes::default() };
    turned.push(Emitter { interface, key: &key, headers }.message(&answer, 0, Body::Empty));
}
