//! Arbitrary frames against a host: the flow key in one pass, the modules' demultiplexing, and the paths that the
//! frames are given to: ARP, ICMP, neighbour discovery, reassembly, resets, UDP sockets, TCP listeners and the
//! connections they make, over IPv4 and IPv6.
//!
//! Asking twice gives the same answer; where the single pass gives a key, the modules give the same; a path gets
//! only what is its own; and whatever leaves the host is well-formed.

use std::any::Any;
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

use scoutline_base::{Address, DeviceId, Endpoint, PathId, Time};
use scoutline_path::{
    Arity, Attributes, Body, Budget, Burst, Checksum, Context, CreateError, Effect, Facts, FlowKey, Grant,
    Graph, GraphBuilder, Limits, Message, Module, Name, Next, PathTable, Runner, Service, ServiceKind, Side,
    Stage, Step, Value, Verdict, View, flow_of_frame,
};
use scoutline_proto::ip6::Host6Config;
use scoutline_proto::net::{ENTRY, Net};
use scoutline_proto::tcp::isn::Secret;
use scoutline_proto::tcp::{Config, Tcp};
use scoutline_proto::{Bindings, Interface, InterfaceConfig, Offload, OneClass};
use scoutline_ring::Block;
use scoutline_wire::{arp, checksum, ethernet, ipv4, ipv6, nd, tcp};

use crate::bytes::{Bytes, Target};

/// The target of this file.
pub const TARGETS: &[Target] = &[("demux", run)];

const OUR_LINK: ethernet::Address = [2, 0, 0, 0, 0, 1];
const PEER_LINK: ethernet::Address = [2, 0, 0, 0, 0, 2];
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OURS6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const PEER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const PEER_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const DEVICE: DeviceId = DeviceId(3);
const MAX_FRAMES: usize = 60;
/// Connections at once, at most.
const MAX_PATHS: u32 = 40;

struct SocketModule;
struct SocketStage;

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
        Ok(Step { stage: Some(Box::new(SocketStage)), next: Next::Through(next) })
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
        burst.clear();
    }
    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}
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

struct Host {
    net: Net,
    graph: Graph,
    table: PathTable,
    runner: Runner,
    flows: HashMap<FlowKey, PathId>,
    /// Over IPv4 and, with it, IPv6.
    listeners: Vec<PathId>,
    datagrams: PathId,
    services: Vec<PathId>,
    now: Time,
    /// The last segment that left: what an answer refers to.
    last: Option<(FlowKey, tcp::Header)>,
}

/// One input: a byte of settings, then frames, each with a byte of mode and one of length.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let settings = bytes.u8();
    let mut host = Host::new(settings);
    for _ in 0..MAX_FRAMES {
        if bytes.is_empty() {
            break;
        }
        let mode = bytes.u8();
        if mode >= 240 {
            host.wait(Duration::from_millis(u64::from(bytes.u16())));
            continue;
        }
        let len = usize::from(bytes.u8());
        let frame = host.frame(mode, bytes.take(len));
        let vouched = mode & 8 != 0;
        host.receive(&frame, vouched);
    }
    host.wait(Duration::from_secs(300));
}

impl Host {
    fn new(settings: u8) -> Host {
        let interface = Interface::new(&InterfaceConfig {
            device: DEVICE,
            link_address: OUR_LINK,
            address: OURS,
            prefix_len: 24,
            gateway: (settings & 1 != 0).then_some(PEER),
            ip6: (settings & 128 != 0).then(|| Host6Config {
                addresses: vec![(OURS6, 64)],
                gateway: None,
                autoconfigure: settings & 1 == 0,
            }),
            seed: 1,
            mtu: match settings & 0x82 {
                2 => 576,
                0x82 => 1280,
                _ => 1500,
            },
            trusted_checksums: settings & 4 == 0,
            offload: Offload {
                checksum: settings & 8 != 0,
                tcp_segmentation: (settings & 16 != 0).then_some(65_535),
            },
        });
        let tcp = Tcp::new(Bindings::new(Rc::new(OneClass), 1), Secret::new([7; 16]), Config::default());
        let net = Net { interface, tcp, udp: Bindings::new(Rc::new(OneClass), 2) };
        let graph = net
            .graph()
            .module(Box::new(SocketModule))
            .link("SOCKET.udp", "UDP.up")
            .link("SOCKET.tcp", "TCP.up");
        let graph =
            if settings & 32 == 0 { net.rules().into_iter().fold(graph, GraphBuilder::rule) } else { graph };
        let graph = graph.build().expect("the default graph");
        let now = Time::from_millis(1_000);
        let mut host = Host {
            net: net.clone(),
            graph,
            table: PathTable::new(Budget::new(MAX_PATHS, 1 << 24)),
            runner: Runner::new(),
            flows: HashMap::new(),
            listeners: Vec::new(),
            datagrams: PathId { index: 0, generation: 0 },
            services: Vec::new(),
            now,
            last: None,
        };
        for (module, attributes, told) in net.service_paths() {
            let id = host.create(module, attributes).expect("a service path");
            told.set(Some(id));
            host.services.push(id);
        }
        let is_dual = settings & 128 != 0;
        let families = [Address::UNSPECIFIED_V4, Address::UNSPECIFIED_V6];
        let families = &families[..if is_dual { 2 } else { 1 }];
        let socket = |protocol, local| {
            Attributes::new()
                .with(Name::Protocol, Value::Number(protocol))
                .with(Name::Local, Value::Address(local))
        };
        for &family in families {
            let at = Endpoint::new(family, 80);
            let listening = socket(6, at).with(Name::Listen, Value::Number(5));
            let listener = host.create("SOCKET", listening).expect("a listen path");
            net.tcp.bindings.listen(at, 0, listener);
            host.listeners.push(listener);
        }
        let at = Endpoint::new(*families.last().expect("a family"), 53);
        let mut attributes = socket(17, at);
        if is_dual {
            attributes.set(Name::Other(scoutline_proto::ip6::DUAL), Value::Number(1));
        }
        host.datagrams = host.create("SOCKET", attributes).expect("a datagram path");
        for &family in families {
            net.udp.listen(Endpoint::new(family, 53), 0, host.datagrams);
        }
        if is_dual {
            host.wait(Duration::from_secs(2));
        }
        if settings & 64 != 0 {
            net.interface.neighbours.borrow_mut().learn(PEER, PEER_LINK, true, now);
        }
        host
    }

    fn create(&mut self, module: &str, attributes: Attributes) -> Option<PathId> {
        let new = self.graph.path_create(module, attributes).ok()?;
        self.table.insert(new, Limits::default()).ok()
    }

    /// The frame that the input means: as it is, or with headers that get it past the first checks.
    fn frame(&self, mode: u8, bytes: &[u8]) -> Vec<u8> {
        let mut payload = bytes.to_vec();
        if mode & 1 == 0 {
            return payload;
        }
        if self.net.interface.ip6.enabled && mode & 32 != 0 && payload.len() >= ipv6::HEADER_LEN {
            return frame6(mode, payload);
        }
        if mode & 4 != 0 && payload.len() >= 20 {
            fix_datagram(&mut payload);
            if mode & 2 != 0 {
                self.answer(&mut payload);
            }
        }
        let ethertype = if mode & 6 == 2 { ethernet::TYPE_ARP } else { ethernet::TYPE_IPV4 };
        let mut frame = vec![0; ethernet::HEADER_LEN];
        let destination = if mode & 16 == 0 { OUR_LINK } else { ethernet::BROADCAST };
        ethernet::Header { destination, source: PEER_LINK, ethertype }.emit(&mut frame);
        frame.extend_from_slice(&payload);
        frame
    }

    /// Makes a datagram with TCP in it an answer to our last segment.
    fn answer(&self, datagram: &mut [u8]) {
        let start = usize::from(datagram[0] & 15) * 4;
        let Some((key, ours)) = self.last.filter(|_| datagram.len() >= start + 20 && start >= 20) else {
            return;
        };
        datagram[9] = 6;
        datagram[start..start + 2].copy_from_slice(&key.remote_port.to_be_bytes());
        datagram[start + 2..start + 4].copy_from_slice(&key.local_port.to_be_bytes());
        // The numbers are added, so that small ones are nearly right.
        let add = |bytes: &mut [u8], to: u32| {
            let little = i32::from(bytes[3] as i8);
            bytes.copy_from_slice(&to.wrapping_add_signed(little).to_be_bytes());
        };
        let controls = ours.flags.intersection(tcp::Flags::SYN | tcp::Flags::FIN).bits().count_ones();
        add(&mut datagram[start + 4..start + 8], ours.acknowledgment);
        add(&mut datagram[start + 8..start + 12], ours.sequence.wrapping_add(controls));
        fix_datagram(datagram);
    }

    fn receive(&mut self, frame: &[u8], vouched: bool) {
        let checksum = if vouched { Checksum::Verified } else { Checksum::Unverified };
        let facts = Facts { device: DEVICE, arrival: self.now, checksum, ..Facts::default() };
        // Not at the block's start, as in a ring with headroom.
        let mut memory = vec![0xee; 10];
        memory.extend_from_slice(frame);
        let range = 10..memory.len() as u32;
        self.classify(Message::received(Block::from_bytes(memory.into_boxed_slice()), range, facts), 0);
    }

    fn classify(&mut self, message: Message, depth: usize) {
        assert!(depth < 4, "classified again and again");
        let quick = flow_of_frame(message.bytes(), DEVICE);
        let entry = self.graph.find(ENTRY).expect("the entry");
        let (verdict, key) = self.graph.demux(message.bytes(), DEVICE, entry);
        assert_eq!(self.graph.demux(message.bytes(), DEVICE, entry), (verdict, key), "no side effects");
        let is_known = quick.and_then(|key| self.flows.get(&key)).copied();
        if let Some(quick) = quick
            && !matches!(verdict, Verdict::Drop(_))
        {
            assert_eq!(quick, key, "one pass and the modules agree");
        }
        let id = match verdict {
            _ if is_known.is_some() => is_known,
            Verdict::Path(id) => {
                self.check_owner(id, &key, message.bytes());
                self.flows.get(&key).copied().or(Some(id))
            }
            Verdict::NoPath => self.flows.get(&key).copied().or_else(|| self.net.interface.stray_path(&key)),
            Verdict::Drop(_) | Verdict::Group => None,
            Verdict::Up(_) => panic!("the graph resolves these"),
        };
        if let Some(id) = id {
            self.run(id, Some(message), depth);
        }
    }

    /// A path gets only what its protocol and port say.
    fn check_owner(&self, id: PathId, key: &FlowKey, frame: &[u8]) {
        let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
        if let Some(family) = self.listeners.iter().position(|&listener| listener == id) {
            assert_eq!((ethertype, key.protocol, key.local_port), ([0x0800, 0x86dd][family], 6, 80));
            assert!(self.net.interface.is_ours(key.local));
            assert_eq!(key.local.is_v4(), family == 0);
        } else if id == self.datagrams {
            assert_eq!((key.protocol, key.local_port), (17, 53));
            assert_eq!(ethertype == 0x0800, key.local.is_v4());
        } else {
            let service = &self.net.interface.service_paths;
            assert!(self.services.contains(&id));
            assert_eq!(service.arp.get() == Some(id), ethertype == 0x0806);
            if service.icmp.get() == Some(id) {
                assert_eq!(key.protocol, 1);
            }
            if [&service.icmp6, &service.nd].iter().any(|path| path.get() == Some(id)) {
                assert_eq!((ethertype, key.protocol), (0x86dd, 58));
            }
        }
    }

    fn run(&mut self, id: PathId, message: Option<Message>, depth: usize) {
        let grant = Grant::new(self.now, 64, 64);
        let Some(path) = self.table.get_mut(id) else { return };
        if let Some(message) = message {
            path.run_inward_with(&mut self.runner, grant, &mut vec![message]);
        } else {
            path.on_timeout(&mut self.runner, grant);
            assert!(path.next_timeout().is_none_or(|at| at > self.now), "a time-out makes progress");
        }
        self.sent();
        for effect in std::mem::take(&mut self.runner.effects) {
            self.carry_out(id, effect, depth);
        }
    }

    fn carry_out(&mut self, id: PathId, effect: Effect, depth: usize) {
        match effect {
            Effect::Create { module, attributes, first } => {
                let address = |name| attributes.address(name);
                let (Some(local), Some(remote)) = (address(Name::Local), address(Name::Remote)) else {
                    panic!("a connection has two ends");
                };
                let key = FlowKey {
                    remote: remote.address,
                    local: local.address,
                    remote_port: remote.port,
                    local_port: local.port,
                    device: DEVICE,
                    protocol: 6,
                };
                assert!(!self.flows.contains_key(&key), "{key:?} twice");
                if let Some(new) = self.create(module, attributes) {
                    self.flows.insert(key, new);
                    if let Some(first) = first {
                        self.run(new, Some(first), depth + 1);
                    }
                }
            }
            Effect::SetClass { .. } | Effect::NotAdmitted { .. } => panic!("nobody here looks into requests"),
            Effect::Elsewhere(_) => panic!("there is one device"),
            // There are no sockets, and there is place for all paths.
            Effect::Loop(_) | Effect::Established | Effect::Spare | Effect::Full { .. } => {}
            Effect::Destroy => {
                assert!(!self.services.contains(&id) && !self.listeners.contains(&id), "it serves all");
                self.flows.retain(|_, path| *path != id);
                self.table.remove(id);
            }
            Effect::Reclassify(message) => self.classify(message, depth + 1),
            Effect::Follow(key, message) => {
                if let Some(&path) = self.flows.get(&key) {
                    self.run(path, Some(message), depth + 1);
                }
            }
            Effect::Stray(key, message) => {
                let path = self.flows.get(&key).copied().or_else(|| self.net.interface.stray_path(&key));
                if let Some(path) = path {
                    self.run(path, Some(message), depth + 1);
                }
            }
            Effect::Notify(key, control) => {
                if let Some(&path) = self.flows.get(&key) {
                    self.run(path, Some(Message::control(control)), depth + 1);
                }
            }
        }
    }

    /// What left is well-formed.
    fn sent(&mut self) {
        for message in std::mem::take(&mut self.runner.out) {
            let mut frame = message.head.as_slice().to_vec();
            match &message.body {
                Body::Block { .. } => frame.extend_from_slice(message.bytes()),
                Body::Empty => {}
                other => panic!("{other:?} left the host"),
            }
            let header = ethernet::Header::parse(&frame).expect("a frame");
            assert_eq!(header.source, OUR_LINK);
            let payload = &frame[ethernet::HEADER_LEN..];
            if header.ethertype == ethernet::TYPE_ARP {
                arp::Packet::parse(payload).expect("an ARP packet");
                continue;
            }
            if header.ethertype == ethernet::TYPE_IPV6 {
                self.sent6(payload, &message);
                continue;
            }
            assert_eq!(header.ethertype, ethernet::TYPE_IPV4);
            assert!(payload.len() <= usize::from(self.net.interface.mtu.get()), "fits the link");
            let ip = ipv4::Header::parse(payload).expect("a datagram");
            assert!(ipv4::checksum_is_valid(&payload[..usize::from(ip.header_len)]));
            assert_eq!(usize::from(ip.total_len), payload.len());
            assert_eq!(ip.source, OURS);
            let segment = &payload[usize::from(ip.header_len)..];
            if ip.protocol == ipv4::PROTOCOL_TCP {
                let (header, _) = tcp::Header::parse(segment).expect("a segment");
                let key = FlowKey {
                    remote: ip.destination.into(),
                    local: ip.source.into(),
                    remote_port: header.destination_port,
                    local_port: header.source_port,
                    device: DEVICE,
                    protocol: 6,
                };
                if message.facts.checksum == Checksum::Complete {
                    let pseudo = checksum::pseudo_header(ip.source, ip.destination, 6, segment.len());
                    assert!(checksum::is_valid(checksum::add(pseudo, checksum::sum(segment))));
                }
                if !header.flags.contains(tcp::Flags::RST) {
                    self.last = Some((key, header));
                }
            }
        }
    }

    /// The same over IPv6.
    fn sent6(&self, packet: &[u8], message: &Message) {
        let interface = &self.net.interface;
        assert!(packet.len() <= usize::from(interface.ip6.mtu()), "fits the link");
        let ip = ipv6::Header::parse(packet).expect("a packet");
        assert_eq!(ip.total_len(), packet.len());
        let source = Address::from(ip.source);
        assert!(source.is_unspecified() || interface.is_ours(source));
        assert!(!Address::from(ip.destination).is_v4());
        let upper = ipv6::walk(packet).expect("extension headers in order");
        if upper.fragment.is_some() || message.facts.checksum != Checksum::Complete {
            return;
        }
        let body = &packet[upper.offset..];
        let pseudo = checksum::pseudo_header(ip.source, ip.destination, upper.protocol, body.len());
        assert!(checksum::is_valid(checksum::add(pseudo, checksum::sum(body))));
        let discovery = upper.protocol == 58 && (nd::ROUTER_SOLICITATION..=nd::REDIRECT).contains(&body[0]);
        assert!(!discovery || ip.hop_limit == nd::HOP_LIMIT);
    }

    /// Time passes; all that is due happens in order.
    fn wait(&mut self, by: Duration) {
        let end = self.now + by;
        for round in 0.. {
            assert!(round < 20_000, "time-outs without end");
            let due = self.table.iter().filter_map(|path| Some((path.next_timeout()?, path.id()))).min();
            let Some((at, id)) = due.filter(|(at, _)| *at <= end) else { break };
            self.now = self.now.max(at);
            self.run(id, None, 0);
        }
        self.now = end;
    }
}

/// An IPv6 packet with a header that gets past the first checks: from the peer, to us or to a group of ours, and with
/// the checksum of its ICMPv6 message if it has one.
fn frame6(mode: u8, mut packet: Vec<u8>) -> Vec<u8> {
    packet[0] = 0x60 | packet[0] & 0x0f;
    let len = (packet.len() - ipv6::HEADER_LEN) as u16;
    packet[4..6].copy_from_slice(&len.to_be_bytes());
    let source = match mode & 0x0a {
        0 => PEER6,
        2 => PEER_LOCAL,
        8 => Ipv6Addr::UNSPECIFIED,
        _ => <[u8; 16]>::try_from(&packet[8..24]).expect("sixteen bytes").into(),
    };
    let destination = match mode & 0x14 {
        0 => OURS6,
        4 => nd::solicited_node(OURS6),
        16 => nd::ALL_NODES,
        _ => <[u8; 16]>::try_from(&packet[24..40]).expect("sixteen bytes").into(),
    };
    packet[8..24].copy_from_slice(&source.octets());
    packet[24..40].copy_from_slice(&destination.octets());
    if mode & 64 != 0 {
        packet[ipv6::NEXT_HEADER_AT] = ipv6::PROTOCOL_ICMPV6;
        packet[ipv6::HOP_LIMIT_AT] = nd::HOP_LIMIT;
    }
    let upper = ipv6::walk(&packet).ok().filter(|upper| upper.fragment.is_none());
    if let Some(upper) = upper.filter(|upper| packet.len() >= upper.offset + 4 && upper.protocol == 58) {
        let body = &mut packet[upper.offset..];
        body[2..4].fill(0);
        let pseudo = checksum::pseudo_header(source, destination, 58, body.len());
        let sum = checksum::finish(checksum::add(pseudo, checksum::sum(body)));
        body[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    let link = if destination.is_multicast() { ethernet::multicast6(destination) } else { OUR_LINK };
    let mut frame = vec![0; ethernet::HEADER_LEN];
    ethernet::Header { destination: link, source: PEER_LINK, ethertype: ethernet::TYPE_IPV6 }
        .emit(&mut frame);
    frame.extend_from_slice(&packet);
    frame
}

/// Lengths, addresses and checksum of an IPv4 header that is otherwise as it is.
fn fix_datagram(datagram: &mut [u8]) {
    let words = (datagram[0] & 15).max(5);
    datagram[0] = 0x40 | words;
    let len = datagram.len() as u16;
    datagram[2..4].copy_from_slice(&len.to_be_bytes());
    datagram[12..16].copy_from_slice(&PEER.octets());
    datagram[16..20].copy_from_slice(&OURS.octets());
    let header_len = usize::from(words) * 4;
    if header_len > datagram.len() {
        return;
    }
    datagram[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(&datagram[..header_len]));
    datagram[10..12].copy_from_slice(&sum.to_be_bytes());
}
