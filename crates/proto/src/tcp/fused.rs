//! The transformation rule that makes one stage of ETH, IP4 and TCP (Scout §3.2; DESIGN.md §2).
//!
//! The common segment is stripped of both headers after one look at 34 bytes, and one that leaves gets both in one
//! write. Everything else goes through the plain stages, which the fused one contains, so it means the same byte
//! for byte; only a path's first and rare segments ever do.

use std::rc::Rc;

use scoutline_base::Time;
use scoutline_path::{Body, Burst, Context, Message, Rule, Stage, Stages};
use scoutline_wire::{checksum, ethernet, ipv4};

use super::TcpStage;
use crate::Interface;
use crate::eth::{EthStage, grow_offsets};
use crate::ip4::{Ip4Stage, TTL, total_len_field};

const HEADERS: usize = ethernet::HEADER_LEN + ipv4::MIN_HEADER_LEN;

/// ETH, IP4 and TCP of one connection.
pub struct EthIpTcp {
    eth: EthStage,
    ip4: Ip4Stage,
    tcp: TcpStage,
    interface: Rc<Interface>,
    /// The peer is one that a packet may come from.
    valid_peer: bool,
    /// Sum over the words of the IP header that never change.
    constant_sum: u16,
}

impl EthIpTcp {
    fn new(eth: EthStage, ip4: Ip4Stage, tcp: TcpStage, interface: Rc<Interface>) -> EthIpTcp {
        let (local, remote) = (tcp.key().local, tcp.key().remote);
        let valid_peer = interface.is_valid_source(remote);
        // Addresses and protocol are summed as in a pseudo-header; the rest are four more words.
        let addresses = checksum::pseudo_header(local, remote, 0, 0);
        let fixed = [0x45, 0, 0, 0, 0, 0, 0x40, 0, TTL, ipv4::PROTOCOL_TCP];
        let constant_sum = checksum::add(addresses, checksum::sum(&fixed));
        EthIpTcp { eth, ip4, tcp, interface, valid_peer, constant_sum }
    }

    /// Strips both headers off the common segment: false, and nothing changed, for any other message.
    #[inline]
    fn strip(&self, message: &mut Message) -> bool {
        let Body::Block { block, range } = &mut message.body else { return false };
        let bytes = &block[range.start as usize..range.end as usize];
        let Some(head) = bytes.first_chunk::<HEADERS>() else { return false };
        let ip = &head[ethernet::HEADER_LEN..];
        let key = self.tcp.key();
        let total_len = u16::from_be_bytes([ip[2], ip[3]]) as usize;
        let common = head[..6] == self.interface.link_address.get()
            && head[12..15] == [0x08, 0x00, 0x45]
            // DF may be set; a fragment, or the reserved bit, is for the plain stages.
            && ip[6] & 0xbf == 0
            && ip[7] == 0
            && ip[8] != 0
            && ip[12..16] == key.remote.octets()
            && ip[16..20] == key.local.octets()
            && self.valid_peer
            && self.interface.is_ours(key.local)
            && total_len >= ipv4::MIN_HEADER_LEN
            && total_len <= bytes.len() - ethernet::HEADER_LEN
            && ipv4::checksum_is_valid(ip);
        if !common {
            return false;
        }
        let facts = &mut message.facts;
        facts.link_source = [head[6], head[7], head[8], head[9], head[10], head[11]];
        facts.tos = ip[1];
        facts.source = Some(key.remote);
        facts.destination = Some(key.local);
        facts.stream_position = u64::from(range.start);
        range.end = range.start + (ethernet::HEADER_LEN + total_len) as u32;
        range.start += HEADERS as u32;
        true
    }

    #[inline]
    fn inward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool {
        self.strip(message)
            || (self.eth.inward_one(message, context) && self.ip4.inward_one(message, context))
    }

    /// Puts both headers in front of a segment: true when it leaves.
    #[inline]
    fn outward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool {
        let key = self.tcp.key();
        let (local, remote) = (key.local, key.remote);
        let total_len = message.head.as_slice().len() + message.body_len() + ipv4::MIN_HEADER_LEN;
        let link = match message.body {
            Body::Empty | Body::Stream { .. } => self.eth.recent_link(remote, context.now),
            _ => None,
        };
        let (Some(link), Some(total_len)) = (link, total_len_field(total_len, &message.facts)) else {
            return self.ip4.outward_one(message, context) && self.eth.outward_one(message, context);
        };
        let (tos, identification) = (context.marked(message.facts.tos), self.interface.next_identification());
        let sum = checksum::add(self.constant_sum, total_len);
        let sum = checksum::add(checksum::add(sum, identification), u16::from(tos));
        let out = message.head.prepend(HEADERS);
        out[0..6].copy_from_slice(&link);
        out[6..12].copy_from_slice(&self.interface.link_address.get());
        out[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        out[15] = tos;
        out[16..18].copy_from_slice(&total_len.to_be_bytes());
        out[18..20].copy_from_slice(&identification.to_be_bytes());
        out[20..24].copy_from_slice(&[0x40, 0, TTL, ipv4::PROTOCOL_TCP]);
        out[24..26].copy_from_slice(&checksum::finish(sum).to_be_bytes());
        out[26..30].copy_from_slice(&local.octets());
        out[30..34].copy_from_slice(&remote.octets());
        message.facts.destination = Some(remote);
        grow_offsets(&mut message.facts, HEADERS);
        true
    }

    fn outward_all(&mut self, burst: &mut Burst, context: &mut Context<'_>) {
        burst.retain_mut(|message| self.outward_one(message, context));
    }
}

impl Stage for EthIpTcp {
    fn module(&self) -> &'static str {
        "ETH+IP4+TCP"
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

/// The rule: ETH, IP4 and TCP of a connection become [`EthIpTcp`]. It declines listen and reset paths.
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
        let known = matches!(&matched[..], [eth, ip4, tcp]
            if eth.measurements().is_none() && eth.as_any().is::<EthStage>()
                && ip4.measurements().is_none() && ip4.as_any().is::<Ip4Stage>()
                && tcp.measurements().is_none() && tcp.as_any().is::<TcpStage>());
        if !known {
            return Err(matched);
        }
        let mut parts = matched.into_iter().map(Stage::into_any);
        let mut next = || parts.next().expect("three stages");
        let (eth, ip4, tcp) = (next().downcast(), next().downcast(), next().downcast());
        match (eth, ip4, tcp) {
            (Ok(eth), Ok(ip4), Ok(tcp)) => {
                Ok(vec![Box::new(EthIpTcp::new(*eth, *ip4, *tcp, Rc::clone(&self.interface)))])
            }
            _ => unreachable!("checked above"),
        }
    }
}

#[cfg(test)]
mod tests;
