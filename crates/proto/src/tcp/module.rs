//! The TCP module, and what it shares with the engine.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use scoutline_base::{Address, Time};
use scoutline_path::{
    Attributes, CreateError, DropReason, FlowKey, HeaderWishes, Module, Name, Service, Stage, Step, Tuning,
    Value, Verdict, View,
};
use scoutline_wire::{ethernet, ipv4, ipv6, tcp};

use super::fast_open::{Cache, Keys, Offer, Outcome, Policy, Start};
use super::isn::Secret;
use super::stage::Begins;
use super::{Config, ListenStage, ResetStage, TcpStage};
use crate::udp::below;
use crate::{Bindings, Interface};

/// The attribute (`Name::Other`) of a path that begins with a SYN that it was given as its first message.
pub const PASSIVE: &str = "passive";
/// The attribute (`Name::Other`) that makes the path that answers segments which nobody takes.
pub const RESET: &str = "reset";
/// The same over IPv6.
pub const RESET6: &str = "reset6";
/// The attribute (`Name::Other`) with which a listening socket's paths share one [`Backlog`] (`Value::Any`).
pub const BACKLOG: &str = "backlog";
/// The attribute (`Name::Other`) with the largest segment of a connection, as its program set it (TCP_MAXSEG).
pub const MAX_SEGMENT: &str = "max-segment";
/// The attribute (`Name::Other`) with what else a program has set before its connection begins: a [`Tuning`] (`Value::Any`).
pub const TUNING: &str = "tuning";
/// Attribute of a path: what the program said of network headers ([`HeaderWishes::of_families`]).
pub const HEADERS: &str = "headers";
/// The attribute (`Name::Other`) with which a listening socket's paths share one
/// [`Queue`](super::fast_open::Queue) (`Value::Any`).
pub const FAST_OPEN_QUEUE: &str = "fast-open-queue";
/// The attribute (`Name::Other`) of an active connection that may use fast open: its [`Start`] (`Value::Any`).
pub const FAST_OPEN: &str = "fast-open";
/// The attribute (`Name::Other`) of a passive one: what is done with its SYN's fast open (a `Cell` of [`Offer`]).
pub(super) const OFFER: &str = "fast-open-offer";
/// The attribute (`Name::Other`) of a connection whose first message is the acknowledgment of a cookie: the SYN that
/// the cookie tells of ([`Recalled`], `Value::Any`).
pub(super) const COOKIE: &str = "cookie";
/// The attribute (`Name::Other`) by which a new connection holds its place among the half-open ones.
pub(super) const HALF_OPEN: &str = "half-open";

/// The longest IP and TCP headers that we send.
const MAX_HEADERS: u32 = (ipv6::HEADER_LEN + tcp::MAX_HEADER_LEN) as u32;
/// What a super-segment over IPv6 has at most: interfaces that take longer ones of IPv4 take 64 KiB of IPv6, the link
/// header included (Linux' `gso_max_size`).
const MAX_TRANSMIT_LEN6: u32 = u16::MAX as u32 - ethernet::HEADER_LEN as u32 - MAX_HEADERS;
/// SYNs that end TIME-WAIT in one turn, at most; of more, some begin where the clock says.
const MAX_SUCCESSORS: usize = 32;
/// Configurations that are kept ready; sockets rarely differ in more than a few.
const MAX_CONFIGS: usize = 16;

/// The connections of a listening socket whose handshake is not complete.
#[derive(Debug)]
pub struct Backlog {
    /// As `listen` said, at least 1.
    pub limit: Cell<u32>,
    /// Connections that wait for the end of their handshake.
    pub half_open: Cell<u32>,
    /// SYNs that found it full.
    pub refused: Cell<u64>,
    /// SYNs that were answered with a cookie.
    pub cookies: Cell<u64>,
    /// When the last was: acknowledgments are looked at for cookies for as long as one may come.
    pub(super) cookie_at: Cell<Option<Time>>,
}

impl Backlog {
    /// An empty backlog.
    pub fn new(limit: u32) -> Rc<Backlog> {
        Rc::new(Backlog {
            limit: Cell::new(limit.max(1)),
            half_open: Cell::new(0),
            refused: Cell::new(0),
            cookies: Cell::new(0),
            cookie_at: Cell::new(None),
        })
    }

    /// True when no more handshakes may begin.
    pub fn is_full(&self) -> bool {
        // As in Linux: half-open connections up to the limit. Those that wait to be accepted are the socket's affair.
        self.half_open.get() >= self.limit.get()
    }
}

/// The SYN that a cookie tells of, and the number with which it was answered.
pub(super) struct Recalled {
    pub(super) syn: tcp::Header,
    pub(super) cookie: u32,
}

/// A place among the half-open connections: given back when dropped, however the connection ends.
pub(super) struct HalfOpen(Rc<Backlog>);

impl HalfOpen {
    pub(super) fn take(backlog: &Rc<Backlog>) -> HalfOpen {
        backlog.half_open.set(backlog.half_open.get() + 1);
        HalfOpen(Rc::clone(backlog))
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.0.half_open.set(self.0.half_open.get() - 1);
    }
}

/// What TCP's stages share on one interface.
pub struct Tcp {
    /// Ports.
    pub bindings: Rc<Bindings>,
    secret: Secret,
    config: RefCell<Config>,
    /// By sizes of receive and send ring.
    ready: RefCell<Vec<Arc<Config>>>,
    /// With which number the next connections of these flows begin: those before them are barely over.
    successors: RefCell<Vec<(FlowKey, u32)>>,
    /// SYNs that met a full backlog.
    crowded_out: Cell<u64>,
    /// See [`Tcp::fast_open_keys`].
    fast_open_keys: Keys,
    /// Servers that connections with fast open went to.
    servers: RefCell<Cache>,
}

impl Tcp {
    /// With these ports, this secret for sequence numbers, and these settings for new connections. `config.mss` and
    /// `config.max_transmit_len` are set from the interface.
    pub fn new(bindings: Rc<Bindings>, secret: Secret, config: Config) -> Rc<Tcp> {
        Rc::new(Tcp {
            bindings,
            fast_open_keys: secret.fast_open_keys(),
            secret,
            config: RefCell::new(config),
            ready: RefCell::default(),
            successors: RefCell::default(),
            crowded_out: Cell::new(0),
            servers: RefCell::default(),
        })
    }

    /// How many SYNs have met a full backlog, and at most got a cookie.
    pub fn crowded_out(&self) -> u64 {
        self.crowded_out.get()
    }

    /// One more SYN meets a full backlog.
    pub(super) fn crowd_out(&self) {
        self.crowded_out.set(self.crowded_out.get() + 1);
    }

    /// Changes the settings of connections that are made from now on.
    pub fn set_config(&self, config: Config) {
        *self.config.borrow_mut() = config;
        self.ready.borrow_mut().clear();
    }

    /// The settings for a connection with rings of these sizes; `None` is the default.
    pub(super) fn config_for(
        &self,
        interface: &Interface,
        remote: Address,
        receive: Option<u64>,
        send: Option<u64>,
        max_segment: Option<u64>,
    ) -> Arc<Config> {
        let base = self.config.borrow();
        let receive = receive.map_or(base.receive_buffer, |size| size.min(u64::from(u32::MAX)) as u32);
        let send = send.map_or(base.send_buffer, |size| size.min(u64::from(u32::MAX)) as u32);
        let longest = if remote.is_v4() { u32::MAX } else { MAX_TRANSMIT_LEN6 };
        let mss = largest_segment(interface, remote, max_segment);
        let metrics = interface.metrics(remote);
        let told = metrics.advmss.map(|told| told.min(largest_arriving(interface, remote, max_segment)));
        let max_transmit_len = match interface.offload.get().tcp_segmentation {
            Some(datagram) => base.max_transmit_len.min(datagram.saturating_sub(MAX_HEADERS)).min(longest),
            None => u32::from(mss),
        };
        let fits = |config: &Config| {
            config.receive_buffer == receive
                && config.send_buffer == send
                && config.mss == mss
                && config.max_transmit_len == max_transmit_len
                && config.advertised_mss == told
                && config.initial_window == metrics.initcwnd
                && config.initial_receive_window == metrics.initrwnd
        };
        let mut ready = self.ready.borrow_mut();
        if let Some(config) = ready.iter().find(|config| fits(config)) {
            return Arc::clone(config);
        }
        let config = Config {
            mss,
            advertised_mss: told,
            initial_window: metrics.initcwnd,
            initial_receive_window: metrics.initrwnd,
            max_transmit_len,
            receive_buffer: receive,
            receive_buffer_max: base.receive_buffer_max.max(receive),
            send_buffer: send,
            ..base.clone()
        };
        let config = Arc::new(config);
        if ready.len() == MAX_CONFIGS {
            ready.remove(0);
        }
        ready.push(Arc::clone(&config));
        config
    }

    /// What is allowed of fast open.
    pub fn fast_open_policy(&self) -> Policy {
        self.config.borrow().fast_open
    }

    /// What makes cookies of fast open where a listening socket has no keys of its own.
    pub fn fast_open_keys(&self) -> Keys {
        self.config.borrow().fast_open_keys.unwrap_or(self.fast_open_keys)
    }

    /// How a connection begins that may use fast open; `None` where that is not allowed.
    pub fn fast_start(
        &self,
        interface: &Interface,
        (local, remote): (Address, Address),
        max_segment: Option<u64>,
        now: Time,
    ) -> Option<Start> {
        let policy = self.fast_open_policy();
        let known = self.servers.borrow_mut().look(local, remote, now);
        let mss = segment_within(interface.path_mtu(remote, now), remote, max_segment);
        policy.contains(Policy::CLIENT).then(|| Start::new(known, policy, mss))
    }

    /// How that went.
    pub(super) fn learn_fast_open(&self, key: &FlowKey, outcome: &Outcome, now: Time) {
        self.servers.borrow_mut().learn(key.local, key.remote, outcome, now);
    }

    /// The secret behind sequence numbers and cookies.
    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Initial sequence number and timestamp offset of a flow (RFC 6528, RFC 7323 §5.4).
    pub(super) fn initial(&self, key: &FlowKey, now: Time) -> (u32, u32) {
        let ours = (key.local.to_ip(), key.local_port);
        let theirs = (key.remote.to_ip(), key.remote_port);
        let iss = self.succeeding(key).unwrap_or_else(|| self.secret.initial_sequence(ours, theirs, now));
        (iss, self.secret.timestamp_offset(ours, theirs))
    }

    /// A SYN has ended TIME-WAIT of this flow, or a program here does: its connection, made in this turn, begins with
    /// `iss`, behind all numbers of the one before (RFC 6191 §2; a fast connection is ahead of the clock of RFC 6528).
    pub(super) fn succeed(&self, key: FlowKey, iss: u32) {
        let mut successors = self.successors.borrow_mut();
        if successors.len() == MAX_SUCCESSORS {
            successors.remove(0);
        }
        successors.push((key, iss));
    }

    fn succeeding(&self, key: &FlowKey) -> Option<u32> {
        let mut successors = self.successors.borrow_mut();
        let at = successors.iter().position(|(flow, _)| flow == key)?;
        Some(successors.swap_remove(at).1)
    }
}

/// The largest segment that the link takes, and the route, and the program: its MSS (RFC 6691: the MTU less both headers
/// without options).
fn largest_segment(interface: &Interface, remote: Address, max_segment: Option<u64>) -> u16 {
    segment_within(interface.mtu_of_way(remote), remote, max_segment)
}

/// The same of what comes, which is bound by the link alone: a route says what it carries from here.
fn largest_arriving(interface: &Interface, remote: Address, max_segment: Option<u64>) -> u16 {
    let link = if remote.is_v4() { interface.mtu.get() } else { interface.ip6.mtu() };
    segment_within(link, remote, max_segment)
}

fn segment_within(mtu: u16, remote: Address, max_segment: Option<u64>) -> u16 {
    let headers = if remote.is_v4() { ipv4::MIN_HEADER_LEN } else { ipv6::HEADER_LEN };
    let mss = mtu.saturating_sub((headers + tcp::MIN_HEADER_LEN) as u16).max(64);
    max_segment.map_or(mss, |most| mss.min(most.max(64) as u16))
}

/// Makes TCP's stages; finds the listen path of a segment that no exact flow takes.
pub struct TcpModule {
    interface: Rc<Interface>,
    tcp: Rc<Tcp>,
}

impl TcpModule {
    /// The module for this interface.
    pub fn new(interface: Rc<Interface>, tcp: Rc<Tcp>) -> TcpModule {
        TcpModule { interface, tcp }
    }

    fn connection_stage(&self, attributes: &mut Attributes) -> Result<TcpStage, CreateError> {
        let local = attributes.require_address(Name::Local, "TCP", "Local")?;
        let remote = attributes.require_address(Name::Remote, "TCP", "Remote")?;
        // A connection is between two hosts (RFC 9293 §3.9.2.3, MUST-57).
        let address = remote.address;
        let none = address.is_multicast() || address.is_unspecified() && !address.is_v4();
        if none || !self.interface.is_valid_source(address) || remote.port == 0 {
            return Err(CreateError::Unreachable);
        }
        let local_ip = Some(local.address).filter(|local| !local.is_unspecified());
        let local_ip = local_ip.or_else(|| self.interface.source_for(address));
        let local_ip = local_ip.ok_or(CreateError::Unreachable)?;
        let key = FlowKey {
            remote: address,
            local: local_ip,
            remote_port: remote.port,
            local_port: local.port,
            device: self.interface.device,
            protocol: ipv4::PROTOCOL_TCP,
        };
        let config = self.tcp.config_for(
            &self.interface,
            address,
            attributes.number(Name::ReceiveBuffer),
            attributes.number(Name::SendBuffer),
            attributes.number(Name::Other(MAX_SEGMENT)),
        );
        let headers = headers_of(attributes)[usize::from(!address.is_v4())];
        let tuning = attributes.any::<Tuning>(Name::Other(TUNING));
        let passive = attributes.remove(Name::Other(PASSIVE)).is_some();
        let half_open = attributes.any::<HalfOpen>(Name::Other(HALF_OPEN));
        attributes.remove(Name::Other(HALF_OPEN));
        let recalled = attributes.any::<Recalled>(Name::Other(COOKIE));
        attributes.remove(Name::Other(COOKIE));
        let offer = attributes.any::<Cell<Offer>>(Name::Other(OFFER));
        attributes.remove(Name::Other(OFFER));
        let start = attributes.any::<Start>(Name::Other(FAST_OPEN));
        attributes.remove(Name::Other(FAST_OPEN));
        let begins = match (passive, recalled) {
            (true, Some(recalled)) => Begins::Recalled(recalled),
            (true, None) => Begins::Passive(offer),
            (false, _) => Begins::Active(start),
        };
        let (interface, tcp) = (Rc::clone(&self.interface), Rc::clone(&self.tcp));
        Ok(TcpStage::new(interface, tcp, key, config, begins, half_open, (headers, tuning)))
    }
}

/// What the program said of headers, over each family.
pub(super) fn headers_of(attributes: &Attributes) -> [HeaderWishes; 2] {
    HeaderWishes::of_families(attributes.number(Name::Other(HEADERS)).unwrap_or(0))
}

impl Module for TcpModule {
    fn name(&self) -> &'static str {
        "TCP"
    }

    fn services(&self) -> &'static [Service] {
        crate::udp::SERVICES
    }

    fn protocol(&self) -> Option<u32> {
        Some(u32::from(ipv4::PROTOCOL_TCP))
    }

    fn create_stage(&self, attributes: &mut Attributes) -> Result<Step, CreateError> {
        attributes.set(Name::Protocol, Value::Number(u64::from(ipv4::PROTOCOL_TCP)));
        let interface = Rc::clone(&self.interface);
        let mut family = Address::UNSPECIFIED_V4;
        let stage: Box<dyn Stage> = if attributes.value(Name::Other(RESET)).is_some() {
            Box::new(ResetStage::new(interface))
        } else if attributes.value(Name::Other(RESET6)).is_some() {
            family = Address::UNSPECIFIED_V6;
            Box::new(ResetStage::new(interface))
        } else if let Some(limit) = attributes.number(Name::Listen) {
            let local = attributes.require_address(Name::Local, "TCP", "Local")?;
            family = local.address;
            attributes.remove(Name::Remote);
            let backlog = attributes.any::<Backlog>(Name::Other(BACKLOG));
            let backlog = backlog.unwrap_or_else(|| Backlog::new(limit.min(u64::from(u32::MAX)) as u32));
            Box::new(ListenStage::new(interface, Rc::clone(&self.tcp), local, backlog, attributes))
        } else {
            let stage = self.connection_stage(attributes)?;
            family = stage.key().remote;
            Box::new(stage)
        };
        Ok(Step { stage: Some(stage), next: below(family) })
    }

    fn demux(&self, view: &mut View<'_>) -> Verdict {
        let Some(fixed) = view.bytes[view.offset..view.end].first_chunk::<{ tcp::MIN_HEADER_LEN }>() else {
            return Verdict::Drop(DropReason::Truncated);
        };
        view.key.remote_port = u16::from_be_bytes([fixed[0], fixed[1]]);
        view.key.local_port = u16::from_be_bytes([fixed[2], fixed[3]]);
        let header_len = usize::from(fixed[12] >> 4) * 4;
        if header_len < tcp::MIN_HEADER_LEN {
            return Verdict::Drop(DropReason::Malformed);
        }
        if header_len > view.end - view.offset {
            return Verdict::Drop(DropReason::Truncated);
        }
        // RFC 9293 §3.9.2.3 (MUST-57), RFC 1122 §4.2.3.10: never to a broadcast or multicast address, be it the link's.
        if view.group || !self.interface.is_ours(view.key.local) {
            return Verdict::Drop(DropReason::NotForUs);
        }
        self.tcp.bindings.listener(&view.key, view.tos).map_or(Verdict::NoPath, Verdict::Path)
    }
}
