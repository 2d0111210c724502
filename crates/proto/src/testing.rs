//! A host for tests: the default graph, a collecting SOCKET, and literal packets.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

use scoutline_base::{Address, DeviceId, Endpoint, PathId, Time};
use scoutline_path::{
    Arity, Attributes, Body, Budget, Burst, Checksum, Context, Control, CreateError, DropReason, Effect,
    Facts, FlowKey, Grant, Graph, GraphBuilder, Limits, Message, Module, Name, Next, Path, PathTable, Runner,
    Service, ServiceKind, Side, Stage, Step, Value, Verdict, View,
};
use scoutline_ring::Block;
use scoutline_wire::{checksum, ethernet, icmp, icmpv6, ipv4, ipv6, udp};

use crate::ip6::{AddressState, Host6Config};
use crate::net::Net;
use crate::tcp::isn::Secret;
use crate::tcp::{Config, Tcp};
use crate::{Bindings, Interface, InterfaceConfig, Offload, OneClass};

pub(crate) const OUR_LINK: ethernet::Address = [2, 0, 0, 0, 0, 1];
pub(crate) const PEER_LINK: ethernet::Address = [2, 0, 0, 0, 0, 2];
pub(crate) const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub(crate) const DEVICE: DeviceId = DeviceId(3);

pub(crate) fn interface() -> Rc<Interface> {
    interface_of(OUR_LINK, OURS)
}

pub(crate) fn interface_of(link_address: ethernet::Address, address: Ipv4Addr) -> Rc<Interface> {
    Interface::new(&InterfaceConfig {
        device: DEVICE,
        link_address,
        address,
        prefix_len: 24,
        gateway: None,
        ip6: None,
        seed: 1,
        mtu: 1500,
        trusted_checksums: true,
        offload: Offload::default(),
    })
}

pub(crate) const OURS6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
pub(crate) const PEER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
/// The link-local addresses that follow from `OUR_LINK` and `PEER_LINK`.
pub(crate) const OUR_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1);
pub(crate) const PEER_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 2);

/// An interface with IPv6 beside IPv4, whose addresses are still to be probed.
pub(crate) fn interface6(
    link_address: ethernet::Address,
    address: Ipv6Addr,
    autoconfigure: bool,
) -> Rc<Interface> {
    Interface::new(&InterfaceConfig {
        device: DEVICE,
        link_address,
        address: if link_address == OUR_LINK { OURS } else { PEER },
        prefix_len: 24,
        gateway: None,
        ip6: Some(Host6Config { addresses: vec![(address, 64)], gateway: None, autoconfigure }),
        seed: 7,
        mtu: 1500,
        trusted_checksums: true,
        offload: Offload::default(),
    })
}

/// What reached the program's end.
pub(crate) type Sink = Rc<RefCell<Vec<Message>>>;

struct SocketModule {
    sink: Sink,
}

struct SocketStage {
    sink: Sink,
}

impl Module for SocketModule {
    fn name(&self) -> &'static str {
        "SOCKET"
    }
    fn services(&self) -> &'static [Service] {
        const fn lower(name: &'static str) -> Service {
            Service {
                name,
                kind: ServiceKind::Socket,
                side: Side::Lower,
                arity: Arity::Optional,
                initialise_first: true,
            }
        }
        &[const { lower("tcp") }, const { lower("udp") }]
    }
    fn create_stage(&self, attributes: &mut Attributes) -> Result<Step, CreateError> {
        let next = if attributes.number(Name::Protocol) == Some(6) { "tcp" } else { "udp" };
        let stage = SocketStage { sink: Rc::clone(&self.sink) };
        Ok(Step { stage: Some(Box::new(stage)), next: Next::Through(next) })
    }
    fn demux(&self, _view: &mut View<'_>) -> Verdict {
        Verdict::NoPath
    }
}

impl Stage for SocketStage {
    fn module(&self) -> &'static str {
        "SOCKET"
    }
    fn inward(&mut self, burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {
        self.sink.borrow_mut().append(burst);
    }
    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}
    any_stage!();
}

/// One host.
pub(crate) struct Host {
    pub(crate) net: Net,
    pub(crate) interface: Rc<Interface>,
    pub(crate) graph: Graph,
    pub(crate) table: PathTable,
    pub(crate) runner: Runner,
    pub(crate) sink: Sink,
    pub(crate) now: Time,
    pub(crate) transmit_room: usize,
    /// Exact flows, as the engine's table.
    pub(crate) flows: HashMap<FlowKey, PathId>,
    /// What the messages of the last run said about themselves.
    pub(crate) facts: Vec<Facts>,
    /// All effects so far, as text.
    pub(crate) log: Vec<String>,
    /// Whether the last run stopped early.
    pub(crate) more: bool,
    /// Paths made by effects.
    pub(crate) created: Vec<PathId>,
}

impl Host {
    /// A host with its service paths.
    pub(crate) fn new() -> Host {
        Host::with(&interface(), false)
    }

    /// A host with this interface, its paths transformed or plain.
    pub(crate) fn with(interface: &Rc<Interface>, fused: bool) -> Host {
        let net = test_net(interface);
        let sink = Sink::default();
        let graph = net
            .graph()
            .module(Box::new(SocketModule { sink: Rc::clone(&sink) }))
            .link("SOCKET.udp", "UDP.up")
            .link("SOCKET.tcp", "TCP.up");
        let graph = if fused { net.rules().into_iter().fold(graph, GraphBuilder::rule) } else { graph };
        let graph = graph.build().unwrap();
        let mut host = Host {
            interface: Rc::clone(interface),
            net,
            graph,
            table: PathTable::new(Budget::new(100, 1 << 30)),
            runner: Runner::new(),
            sink,
            now: Time::from_millis(1_000),
            transmit_room: 64,
            flows: HashMap::new(),
            facts: Vec::new(),
            log: Vec::new(),
            more: false,
            created: Vec::new(),
        };
        for (module, attributes, told) in host.net.clone().service_paths() {
            told.set(Some(host.create(module, attributes)));
        }
        host
    }

    pub(crate) fn create(&mut self, module: &str, attributes: Attributes) -> PathId {
        self.try_create(module, attributes).unwrap()
    }

    pub(crate) fn try_create(&mut self, module: &str, attributes: Attributes) -> Result<PathId, CreateError> {
        let new = self.graph.path_create(module, attributes)?;
        let key = flow_of(&new.attributes);
        let id = self.table.insert(new, Limits::default())?;
        if let Some(key) = key {
            self.flows.insert(key, id);
        }
        Ok(id)
    }

    /// What the engine does with a frame: exact flow, modules, stray path; then the effects. What left, whole.
    pub(crate) fn on_frame(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        self.on_received(received(frame))
    }

    pub(crate) fn on_received(&mut self, message: Message) -> Vec<Vec<u8>> {
        let (verdict, key) = self.demux(message.bytes());
        let path = match (self.flows.get(&key), verdict) {
            (_, Verdict::Drop(_)) => return Vec::new(),
            (Some(&id), _) | (None, Verdict::Path(id)) => id,
            _ => match self.interface.stray_path(&key) {
                Some(id) => id,
                None => return Vec::new(),
            },
        };
        let mut out = self.receive_message(path, message);
        out.append(&mut self.carry_out(path));
        out
    }

    /// Carries out effects as the engine does.
    pub(crate) fn carry_out(&mut self, path: PathId) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        for effect in self.effects() {
            self.log.push(format!("{effect:?}"));
            match effect {
                Effect::Create { module, attributes, first } => {
                    let Ok(id) = self.try_create(module, attributes) else { continue };
                    self.created.push(id);
                    if let Some(message) = first {
                        out.append(&mut self.receive_message(id, message));
                    }
                }
                Effect::Destroy => self.destroy(path),
                // There is one class, one device, and there are no sockets.
                Effect::Established
                | Effect::Spare
                | Effect::Full { .. }
                | Effect::SetClass { .. }
                | Effect::NotAdmitted { .. }
                | Effect::Elsewhere(_)
                | Effect::Loop(_) => {}
                Effect::Reclassify(message) => out.append(&mut self.on_received(message)),
                Effect::Follow(key, message) => {
                    if let Some(&id) = self.flows.get(&key) {
                        out.append(&mut self.receive_message(id, message));
                    }
                }
                Effect::Stray(key, message) => {
                    let path = self.flows.get(&key).copied().or_else(|| self.interface.stray_path(&key));
                    out.append(&mut self.receive_message(path.unwrap(), message));
                }
                Effect::Notify(key, control) => {
                    if let Some(&id) = self.flows.get(&key) {
                        out.append(&mut self.receive_message(id, Message::control(control)));
                    }
                }
            }
        }
        out
    }

    pub(crate) fn destroy(&mut self, path: PathId) {
        self.flows.retain(|_, other| *other != path);
        self.net.tcp.bindings.unlisten(path);
        self.table.remove(path);
    }

    pub(crate) fn path(&self, id: PathId) -> &Path {
        self.table.get(id).unwrap()
    }

    pub(crate) fn drops(&self, id: PathId) -> Vec<(DropReason, u32)> {
        self.path(id).account.all_drops().collect()
    }

    fn grant(&self) -> Grant {
        Grant::new(self.now, 64, self.transmit_room)
    }

    pub(crate) fn demux(&self, frame: &[u8]) -> (Verdict, FlowKey) {
        self.graph.demux(frame, DEVICE, self.graph.find(crate::net::ENTRY).unwrap())
    }

    /// Runs a frame inward through a path: what left, whole frames.
    pub(crate) fn receive(&mut self, id: PathId, frame: &[u8]) -> Vec<Vec<u8>> {
        self.receive_message(id, received(frame))
    }

    pub(crate) fn receive_message(&mut self, id: PathId, message: Message) -> Vec<Vec<u8>> {
        let grant = self.grant();
        let path = self.table.get_mut(id).unwrap();
        self.more = path.run_inward_with(&mut self.runner, grant, &mut vec![message]).more;
        self.sent()
    }

    pub(crate) fn send(&mut self, id: PathId, message: Message) -> Vec<Vec<u8>> {
        let grant = self.grant();
        let path = self.table.get_mut(id).unwrap();
        self.more = path.run_outward(&mut self.runner, grant, &mut vec![message]).more;
        self.sent()
    }

    pub(crate) fn expire(&mut self, id: PathId, after: Duration) -> Vec<Vec<u8>> {
        self.now += after;
        let grant = self.grant();
        self.table.get_mut(id).unwrap().on_timeout(&mut self.runner, grant);
        self.sent()
    }

    pub(crate) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.runner.effects)
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        self.facts = self.runner.out.iter().map(|message| message.facts.clone()).collect();
        self.runner.out.drain(..).map(|message| bytes_of(&message)).collect()
    }

    pub(crate) fn know_peer(&self) {
        self.interface.neighbours.borrow_mut().learn(PEER, PEER_LINK, true, self.now);
    }

    /// A host at `OURS6` whose addresses are in use, and that knows `PEER6`.
    pub(crate) fn with_ip6() -> Host {
        let mut host = Host::with(&interface6(OUR_LINK, OURS6, false), false);
        host.settle_ip6();
        host.know_peer6(PEER6, PEER_LINK);
        host
    }

    /// Probes the addresses; nobody answers.
    pub(crate) fn settle_ip6(&mut self) {
        let nd = self.interface.service_paths.nd.get().unwrap();
        self.expire(nd, Duration::ZERO);
        self.expire(nd, Duration::from_secs(1));
        assert!(self.interface.ip6.addresses().iter().all(|own| own.state == AddressState::Preferred));
    }

    pub(crate) fn know_peer6(&self, address: Ipv6Addr, link: ethernet::Address) {
        self.interface.neighbours6.borrow_mut().learn(address, link, true, self.now);
    }

    pub(crate) fn received(&self) -> Vec<Message> {
        std::mem::take(&mut *self.sink.borrow_mut())
    }
}

fn test_net(interface: &Rc<Interface>) -> Net {
    let tcp = Tcp::new(Bindings::new(Rc::new(OneClass), 1), Secret::new([7; 16]), Config::default());
    Net { interface: Rc::clone(interface), tcp, udp: Bindings::new(Rc::new(OneClass), 2) }
}

fn flow_of(attributes: &Attributes) -> Option<FlowKey> {
    let (local, remote) = (attributes.address(Name::Local)?, attributes.address(Name::Remote)?);
    Some(FlowKey {
        remote: remote.address,
        local: match local.address {
            Address::UNSPECIFIED_V4 => OURS.into(),
            Address::UNSPECIFIED_V6 => OURS6.into(),
            address => address,
        },
        remote_port: remote.port,
        local_port: local.port,
        device: DEVICE,
        protocol: attributes.number(Name::Protocol)? as u8,
    })
}

/// The byte at a position of any test stream.
pub(crate) fn stream_byte(position: u64) -> u8 {
    (position % 251) as u8
}

/// Completes a partial checksum, as every device can.
pub(crate) fn completed(mut frame: Vec<u8>, facts: &Facts) -> Vec<u8> {
    if let Checksum::Partial { start, offset } = facts.checksum {
        let (start, at) = (usize::from(start), usize::from(start + offset));
        let sum = checksum::finish(checksum::sum(&frame[start..]));
        frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

/// The bytes that a device would send: stream bodies by [`stream_byte`], partial checksums as they are.
pub(crate) fn bytes_of(message: &Message) -> Vec<u8> {
    let mut bytes = message.head.as_slice().to_vec();
    match &message.body {
        Body::Block { .. } => bytes.extend_from_slice(message.bytes()),
        Body::Stream { range, .. } => bytes.extend(range.clone().map(stream_byte)),
        Body::Empty => {}
        Body::Control(control) => panic!("{control:?} left the path"),
    }
    bytes
}

pub(crate) fn received(frame: &[u8]) -> Message {
    // Not at the block's start, as in a ring with headroom.
    let mut bytes = vec![0xee; 10];
    bytes.extend_from_slice(frame);
    let range = 10..bytes.len() as u32;
    let facts = Facts { device: DEVICE, ..Facts::default() };
    Message::received(Block::from_bytes(bytes.into_boxed_slice()), range, facts)
}

pub(crate) fn block(bytes: &[u8]) -> Message {
    let body = Body::block(Block::from_bytes(bytes.into()), 0..bytes.len() as u32);
    Message { body, facts: Facts { checksum: Checksum::Complete, ..Facts::default() }, ..Message::default() }
}

pub(crate) fn control(control: Control) -> Message {
    Message::control(control)
}

pub(crate) fn controls(messages: &[Message]) -> Vec<Control> {
    let of = |message: &Message| match &message.body {
        Body::Control(control) => Some(control.clone()),
        _ => None,
    };
    messages.iter().filter_map(of).collect()
}

pub(crate) fn eth(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 14];
    ethernet::Header { destination: OUR_LINK, source: PEER_LINK, ethertype }.emit(&mut frame);
    frame.extend_from_slice(payload);
    frame
}

pub(crate) fn ip_header(protocol: u8, payload_len: usize) -> ipv4::Header {
    ipv4::Header {
        header_len: 20,
        tos: 0,
        total_len: (20 + payload_len) as u16,
        identification: 77,
        dont_fragment: false,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 63,
        protocol,
        source: PEER,
        destination: OURS,
    }
}

pub(crate) fn ip_frame(header: &ipv4::Header, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; 20];
    header.emit(&mut datagram);
    datagram.extend_from_slice(payload);
    eth(ethernet::TYPE_IPV4, &datagram)
}

pub(crate) fn ip6_header(next_header: u8, payload_len: usize) -> ipv6::Header {
    ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: payload_len as u16,
        next_header,
        hop_limit: 63,
        source: PEER6,
        destination: OURS6,
    }
}

pub(crate) fn ip6_frame(header: &ipv6::Header, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 40];
    header.emit(&mut packet);
    packet.extend_from_slice(payload);
    let mut frame = eth(ethernet::TYPE_IPV6, &packet);
    if header.destination.is_multicast() {
        frame[..6].copy_from_slice(&ethernet::multicast6(header.destination));
    }
    frame
}

/// A frame with an ICMPv6 message; of neighbour discovery with its hop limit.
pub(crate) fn icmp6_frame(
    (source, destination): (Ipv6Addr, Ipv6Addr),
    kind: u8,
    rest: [u8; 4],
    payload: &[u8],
) -> Vec<u8> {
    let mut message = vec![0; 8];
    message.extend_from_slice(payload);
    icmpv6::Header { kind, code: 0, rest }.emit(&mut message, source, destination);
    let hop_limit = if (133..=137).contains(&kind) { 255 } else { 63 };
    let header =
        ipv6::Header { hop_limit, source, destination, ..ip6_header(ipv6::PROTOCOL_ICMPV6, message.len()) };
    ip6_frame(&header, &message)
}

pub(crate) fn udp6_datagram(ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; 8];
    let len = 8 + payload.len();
    udp::Header { source_port: ports.0, destination_port: ports.1, len: len as u16, checksum: 0 }
        .emit(&mut datagram);
    datagram.extend_from_slice(payload);
    let sum = checksum::add(checksum::pseudo_header(PEER6, OURS6, 17, len), checksum::sum(&datagram));
    let sum = Some(checksum::finish(sum)).filter(|&sum| sum != 0).unwrap_or(0xffff);
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    datagram
}

pub(crate) fn udp_datagram(ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; 8];
    let len = 8 + payload.len();
    udp::Header { source_port: ports.0, destination_port: ports.1, len: len as u16, checksum: 0 }
        .emit(&mut datagram);
    datagram.extend_from_slice(payload);
    let sum = checksum::add(checksum::pseudo_header(PEER, OURS, 17, len), checksum::sum(&datagram));
    let sum = Some(checksum::finish(sum)).filter(|&sum| sum != 0).unwrap_or(0xffff);
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    datagram
}

pub(crate) fn udp_frame(ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let datagram = udp_datagram(ports, payload);
    ip_frame(&ip_header(17, datagram.len()), &datagram)
}

pub(crate) fn icmp_message(kind: u8, code: u8, rest: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 8];
    message.extend_from_slice(payload);
    icmp::Header { kind, code, rest }.emit(&mut message);
    message
}

pub(crate) fn icmp_frame(kind: u8, code: u8, rest: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let message = icmp_message(kind, code, rest, payload);
    ip_frame(&ip_header(1, message.len()), &message)
}

pub(crate) fn address(ip: impl Into<Address>, port: u16) -> Value {
    Value::Address(Endpoint::new(ip, port))
}

/// A frame with the headers of a segment, checksum left out.
pub(crate) fn tcp_frame_plain(ports: (u16, u16)) -> Vec<u8> {
    let mut segment = [0; 20];
    let header = scoutline_wire::tcp::Header {
        source_port: ports.0,
        destination_port: ports.1,
        sequence: 5,
        flags: scoutline_wire::tcp::Flags::SYN,
        ..scoutline_wire::tcp::Header::default()
    };
    header.emit(&mut segment);
    ip_frame(&ip_header(6, 20), &segment)
}
