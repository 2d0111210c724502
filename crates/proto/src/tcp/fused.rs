//! The transformation rules that make one stage of ETH, IP4 or IP6, and TCP (Scout §3.2; DESIGN.md §2).
//!
//! The common segment is stripped of both headers after one look at 34 bytes (54 over IPv6), and one that leaves gets both in one
//! write. Everything else goes through the plain stages, which the fused one contains, so it means the same byte
//! for byte; only a path's first and rare segments ever do.

use std::rc::Rc;

use scoutline_base::Time;
use scoutline_path::{Body, Burst, Context, FlowKey, Message, Rule, Stage, Stages};
use scoutline_wire::{checksum, ethernet, ipv4, ipv6};

use super::TcpStage;
use crate::Interface;
use crate::eth::{EthStage, grow_offsets};
use crate::ip4::{Ip4Stage, TTL, total_len_field};
use crate::ip6::Ip6Stage;

/// What the network stage of a fused path does to the common segment.
trait Network: 'static {
    /// The plain stage.
    type Plain: Stage;
    /// The modules that are fused.
    const NAME: &'static str;
    /// Length of both headers.
    const HEADERS: usize;

    fn new(plain: Self::Plain, key: &FlowKey) -> Self;

    /// When these bytes, which are at least both headers, begin with those of the common segment: the length of its
    /// packet, its type-of-service octet and the hops that it has left.
    fn common(&self, frame: &[u8], key: &FlowKey) -> Option<(usize, u8, u8)>;

    /// What follows Ethernet's header in front of `len` bytes of segment; `None` when it is too long.
    fn prepend(&self, message: &mut Message, interface: &Interface, key: &FlowKey, tos: u8) -> Option<()>;

    fn inward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool;
    fn outward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool;
}

/// The network stage over IPv4.
struct OverIp4 {
    plain: Ip4Stage,
    /// Sum over the words of the IP header that never change.
    constant_sum: u16,
}

impl Network for OverIp4 {
    type Plain = Ip4Stage;
    const NAME: &'static str = "ETH+IP4+TCP";
    const HEADERS: usize = ethernet::HEADER_LEN + ipv4::MIN_HEADER_LEN;

    fn new(plain: Ip4Stage, key: &FlowKey) -> OverIp4 {
        // Addresses and protocol are summed as in a pseudo-header; the rest are four more words.
        let addresses = checksum::pseudo_header(key.local, key.remote, 0, 0);
        let fixed = [0x45, 0, 0, 0, 0, 0, 0x40, 0, TTL, ipv4::PROTOCOL_TCP];
        OverIp4 { plain, constant_sum: checksum::add(addresses, checksum::sum(&fixed)) }
    }

    #[inline]
    fn common(&self, frame: &[u8], key: &FlowKey) -> Option<(usize, u8, u8)> {
        let head = frame.first_chunk::<{ OverIp4::HEADERS }>()?;
        let ip = &head[ethernet::HEADER_LEN..];
        let total_len = u16::from_be_bytes([ip[2], ip[3]]) as usize;
        let address = |at: usize| u32::from_be_bytes([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
        let common = head[12..15] == [0x08, 0x00, 0x45]
            // DF may be set; a fragment, or the reserved bit, is for the plain stages.
            && ip[6] & 0xbf == 0
            && ip[7] == 0
            && ip[8] != 0
            && address(12) == key.remote.low_bits()
            && address(16) == key.local.low_bits()
            && total_len >= ipv4::MIN_HEADER_LEN
            && ipv4::checksum_is_valid(ip);
        common.then_some((total_len, ip[1], ip[8]))
    }

    #[inline]
    fn prepend(&self, message: &mut Message, interface: &Interface, key: &FlowKey, tos: u8) -> Option<()> {
        let len = message.head.as_slice().len() + message.body_len() + ipv4::MIN_HEADER_LEN;
        let total_len = total_len_field(len, &message.facts)?;
        let identification = interface.next_identification();
        let sum = checksum::add(self.constant_sum, total_len);
        let sum = checksum::add(checksum::add(sum, identification), u16::from(tos));
        let out = message.head.prepend(ipv4::MIN_HEADER_LEN);
        out[0] = 0x45;
        out[1] = tos;
        out[2..4].copy_from_slice(&total_len.to_be_bytes());
        out[4..6].copy_from_slice(&identification.to_be_bytes());
        out[6..10].copy_from_slice(&[0x40, 0, TTL, ipv4::PROTOCOL_TCP]);
        out[10..12].copy_from_slice(&checksum::finish(sum).to_be_bytes());
        out[12..16].copy_from_slice(&key.local.low_bits().to_be_bytes());
        out[16..20].copy_from_slice(&key.remote.low_bits().to_be_bytes());
        Some(())
    }

    #[inline]
    fn inward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool {
        self.plain.inward_one(message, context)
    }

    #[inline]
    fn outward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool {
        self.plain.outward_one(message, context)
    }
}

/// The network stage over IPv6.
struct OverIp6 {
    plain: Ip6Stage,
}

impl Network for OverIp6 {
    type Plain = Ip6Stage;
    const NAME: &'static str = "ETH+IP6+TCP";
    const HEADERS: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;

    fn new(plain: Ip6Stage, _key: &FlowKey) -> OverIp6 {
        OverIp6 { plain }
    }

    #[inline]
    fn common(&self, frame: &[u8], key: &FlowKey) -> Option<(usize, u8, u8)> {
        let head = frame.first_chunk::<{ OverIp6::HEADERS }>()?;
        let ip = &head[ethernet::HEADER_LEN..];
        let common = head[12..14] == [0x86, 0xdd]
            && ip[0] >> 4 == 6
            // No extension header.
            && ip[ipv6::NEXT_HEADER_AT] == ipv4::PROTOCOL_TCP
            && ip[8..24] == key.remote.octets()
            && ip[24..40] == key.local.octets();
        let payload_len = u16::from_be_bytes([ip[4], ip[5]]) as usize;
        common.then_some((ipv6::HEADER_LEN + payload_len, ip[0] << 4 | ip[1] >> 4, ip[7]))
    }

    #[inline]
    fn prepend(&self, message: &mut Message, interface: &Interface, key: &FlowKey, tos: u8) -> Option<()> {
        let payload_len = u16::try_from(message.head.as_slice().len() + message.body_len()).ok()?;
        let out = message.head.prepend(ipv6::HEADER_LEN);
        out[0..4].copy_from_slice(&(6 << 28 | u32::from(tos) << 20).to_be_bytes());
        out[4..6].copy_from_slice(&payload_len.to_be_bytes());
        out[6..8].copy_from_slice(&[ipv4::PROTOCOL_TCP, interface.ip6.hop_limit()]);
        out[8..24].copy_from_slice(&key.local.octets());
        out[24..40].copy_from_slice(&key.remote.octets());
        Some(())
    }

    #[inline]
    fn inward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool {
        self.plain.inward_one(message, context)
    }

    #[inline]
    fn outward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool {
        self.plain.outward_one(message, context)
    }
}

/// ETH, IP4 or IP6, and TCP of one connection.
struct Fused<N> {
    eth: EthStage,
    network: N,
    tcp: TcpStage,
    interface: Rc<Interface>,
    /// The peer is one that a packet may come from.
    valid_peer: bool,
}

impl<N: Network> Fused<N> {
    fn new(eth: EthStage, plain: N::Plain, tcp: TcpStage, interface: Rc<Interface>) -> Fused<N> {
        let network = N::new(plain, tcp.key());
        let valid_peer = interface.is_valid_source(tcp.key().remote);
        Fused { eth, network, tcp, interface, valid_peer }
    }

    /// Strips both headers off the common segment: false, and nothing changed, for any other message.
    #[inline]
    fn strip(&self, message: &mut Message) -> bool {
        let Body::Block { block, range, tail } = &mut message.body else { return false };
        let bytes = &block[range.start as usize..range.end as usize];
        let whole_len = bytes.len() + tail.as_ref().map_or(0, |tail| tail.len());
        let key = self.tcp.key();
        let Some((packet_len, tos, hops)) = self.network.common(bytes, key) else { return false };
        let common = bytes[..6] == self.interface.link_address.get()
            && packet_len <= whole_len - ethernet::HEADER_LEN
            && (tail.is_none() || packet_len == whole_len - ethernet::HEADER_LEN)
            && self.valid_peer
            && self.interface.is_ours(key.local);
        if !common {
            return false;
        }
        let facts = &mut message.facts;
        facts.link_source = [bytes[6], bytes[7], bytes[8], bytes[9], bytes[10], bytes[11]];
        (facts.tos, facts.hop_limit) = (tos, hops);
        facts.source = Some(key.remote);
        facts.destination = Some(key.local);
        facts.stream_position = u64::from(range.start);
        if tail.is_none() {
            range.end = range.start + (ethernet::HEADER_LEN + packet_len) as u32;
        }
        range.start += N::HEADERS as u32;
        true
    }

    #[inline]
    fn inward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool {
        self.strip(message)
            || (self.eth.inward_one(message, context) && self.network.inward_one(message, context))
    }

    /// Puts both headers in front of a segment: true when it leaves.
    #[inline]
    fn outward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool {
        let key = self.tcp.key();
        let remote = key.remote;
        let facts = &message.facts;
        let link = match message.body {
            // The rare header of a program's own making is for the plain stages.
            Body::Empty | Body::Stream { .. } if facts.hop_limit == 0 && !facts.divisible => {
                self.eth.recent_link(remote, context.now)
            }
            _ => None,
        };
        let tos = context.marked(message.facts.tos);
        let done = link.and_then(|link| {
            self.network.prepend(message, &self.interface, key, tos)?;
            Some(link)
        });
        let Some(link) = done else {
            return self.network.outward_one(message, context) && self.eth.outward_one(message, context);
        };
        let ethertype = if remote.is_v4() { ethernet::TYPE_IPV4 } else { ethernet::TYPE_IPV6 };
        let out = message.head.prepend(ethernet::HEADER_LEN);
        out[0..6].copy_from_slice(&link);
        out[6..12].copy_from_slice(&self.interface.link_address.get());
        out[12..14].copy_from_slice(&ethertype.to_be_bytes());
        message.facts.destination = Some(remote);
        grow_offsets(&mut message.facts, N::HEADERS);
        true
    }

    fn outward_all(&mut self, burst: &mut Burst, context: &mut Context<'_>) {
        burst.retain_mut(|message| self.outward_one(message, context));
    }
}

impl<N: Network> Stage for Fused<N> {
    fn module(&self) -> &'static str {
        N::NAME
    }

    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        burst.retain_mut(|message| self.inward_one(message, context));
        if burst.is_empty() {
            return; // as the plain TCP stage would not have been called
        }
        let before = turned.len();
        self.tcp.inward(burst, turned, context);
        debug_assert_eq!(before, 0, "stages begin with nothing turned");
        self.outward_all(turned, context);
    }

    fn outward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        self.tcp.outward(burst, turned, context);
        self.outward_all(burst, context);
    }

    fn next_timeout(&self) -> Option<Time> {
        self.eth.next_timeout().into_iter().chain(self.tcp.next_timeout()).min()
    }

    fn on_timeout(&mut self, inward: &mut Burst, outward: &mut Burst, context: &mut Context<'_>) {
        let is_due = |due: Option<Time>| due.is_some_and(|due| due <= context.now);
        let (eth, tcp) = (is_due(self.eth.next_timeout()), is_due(self.tcp.next_timeout()));
        if eth {
            self.eth.on_timeout(&mut Burst::new(), &mut Burst::new(), context);
        }
        if tcp {
            let mut segments = Burst::new();
            self.tcp.on_timeout(inward, &mut segments, context);
            self.outward_all(&mut segments, context);
            outward.append(&mut segments);
        }
    }

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        self.eth.describe(facts);
        self.tcp.describe(facts);
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }

    // Whoever looks for the connection finds it as in a plain path.
    fn as_any(&self) -> &dyn std::any::Any {
        &self.tcp
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        &mut self.tcp
    }
}

/// The rule: ETH, IP4 and TCP of a connection become one stage. It declines listen and reset paths.
pub struct FuseEthIpTcp {
    interface: Rc<Interface>,
}

impl FuseEthIpTcp {
    /// The rule for paths of this interface.
    pub fn new(interface: Rc<Interface>) -> FuseEthIpTcp {
        FuseEthIpTcp { interface }
    }
}

impl Rule for FuseEthIpTcp {
    fn name(&self) -> &'static str {
        "fuse-eth-ip4-tcp"
    }

    fn pattern(&self) -> &[&str] {
        &["ETH", "IP4", "TCP"]
    }

    fn apply(&self, matched: Stages) -> Result<Stages, Stages> {
        fuse::<OverIp4>(matched, &self.interface)
    }
}

/// The same over IPv6.
pub struct FuseEthIp6Tcp {
    interface: Rc<Interface>,
}

impl FuseEthIp6Tcp {
    /// The rule for paths of this interface.
    pub fn new(interface: Rc<Interface>) -> FuseEthIp6Tcp {
        FuseEthIp6Tcp { interface }
    }
}

impl Rule for FuseEthIp6Tcp {
    fn name(&self) -> &'static str {
        "fuse-eth-ip6-tcp"
    }

    fn pattern(&self) -> &[&str] {
        &["ETH", "IP6", "TCP"]
    }

    fn apply(&self, matched: Stages) -> Result<Stages, Stages> {
        fuse::<OverIp6>(matched, &self.interface)
    }
}

fn fuse<N: Network>(matched: Stages, interface: &Rc<Interface>) -> Result<Stages, Stages> {
    let known = matches!(&matched[..], [eth, ip, tcp]
        if eth.measurements().is_none() && eth.as_any().is::<EthStage>()
            && ip.measurements().is_none() && ip.as_any().is::<N::Plain>()
            && tcp.measurements().is_none() && tcp.as_any().is::<TcpStage>());
    if !known {
        return Err(matched);
    }
    let mut parts = matched.into_iter().map(Stage::into_any);
    let mut next = || parts.next().expect("three stages");
    let (eth, ip, tcp) = (next().downcast(), next().downcast(), next().downcast());
    match (eth, ip, tcp) {
        (Ok(eth), Ok(ip), Ok(tcp)) => {
            Ok(vec![Box::new(Fused::<N>::new(*eth, *ip, *tcp, Rc::clone(interface)))])
        }
        _ => unreachable!("checked above"),
    }
}

#[cfg(test)]
mod tests;
