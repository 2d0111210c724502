//! The network stages: of an ordinary path, and of the reassembly path.

use std::net::Ipv4Addr;
use std::rc::Rc;

use scoutline_base::{Address, Time};
use scoutline_path::{
    Body, Burst, Checksum, Context, Control, DropReason, Effect, Facts, Message, Stage, take_packets,
};
use scoutline_wire::{ethernet, icmp, ipv4};

use super::reassembly::QUOTED;
use super::{Limits, Offered, Reassembler, TTL, fragment, total_len_field, validate};
use crate::Interface;
use crate::eth::{grow_offsets, rebuilt};

/// The network stage of one path.
///
/// Inward it sets `facts.source`, `destination`, `tos` and `hop_limit`. Outward it takes the destination from
/// `facts.destination`, or from the path where the message has none, and always leaves it there for the link stage.
pub struct Ip4Stage {
    interface: Rc<Interface>,
    protocol: u8,
    local: Option<Ipv4Addr>,
    remote: Option<Ipv4Addr>,
}

impl Ip4Stage {
    /// A stage for packets of `protocol` from `local`, and to `remote` when the path has one peer. Without `local` the
    /// source is that of the message, or chosen for its destination.
    pub fn new(
        interface: Rc<Interface>,
        protocol: u8,
        local: Option<Ipv4Addr>,
        remote: Option<Ipv4Addr>,
    ) -> Ip4Stage {
        Ip4Stage { interface, protocol, local, remote }
    }

    /// RFC 1191 §3: a router says how much arrives where this path sends datagrams. What is about no path's packet comes
    /// to none. TCP looks at its numbers, too.
    fn note_too_big(&self, message: &Message, now: Time) {
        if let Body::Control(Control::Told(told)) = &message.body
            && (told.kind, told.code) == (icmp::UNREACHABLE, icmp::unreachable::FRAGMENTATION_NEEDED)
        {
            self.interface.on_too_big(told.to.address, told.mtu, now);
        }
    }

    /// One message inward: true when it goes on.
    #[inline]
    pub(crate) fn inward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool {
        if !matches!(message.body, Body::Block { .. }) {
            self.note_too_big(message, context.now);
            return true;
        }
        let header = match validate(&self.interface, message.bytes()) {
            Ok(header) if !header.is_fragment() => header,
            Ok(_) => {
                // Demultiplexing sends fragments to the reassembly path; here none belongs.
                context.account.on_drop(DropReason::Malformed);
                return false;
            }
            Err(reason) => {
                context.account.on_drop(reason);
                return false;
            }
        };
        message.truncate(usize::from(header.total_len));
        message.advance(usize::from(header.header_len));
        message.facts.source = Some(header.source.into());
        message.facts.destination = Some(header.destination.into());
        message.facts.tos = header.tos;
        message.facts.hop_limit = header.ttl;
        true
    }

    /// One message outward, whole: true when it goes on.
    #[inline]
    pub(crate) fn outward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool {
        if let Body::Control(_) = message.body {
            return true;
        }
        let Some((source, destination)) = self.addresses(message) else {
            context.account.on_drop(DropReason::NoRoute);
            return false;
        };
        let payload_len = message.head.as_slice().len() + message.body_len();
        let Some(total_len) = total_len_field(payload_len + ipv4::MIN_HEADER_LEN, &message.facts) else {
            context.account.on_drop(DropReason::Malformed);
            return false;
        };
        message.facts.destination = Some(destination.into());
        let tos = context.marked(message.facts.tos);
        let header = self.header((source, destination), total_len, tos, &message.facts);
        header.emit(message.head.prepend(ipv4::MIN_HEADER_LEN));
        grow_offsets(&mut message.facts, ipv4::MIN_HEADER_LEN);
        true
    }

    /// Source and destination of a message that leaves; `None` when there is none.
    #[inline]
    fn addresses(&self, message: &Message) -> Option<(Ipv4Addr, Ipv4Addr)> {
        let facts = &message.facts;
        let destination = facts.destination.and_then(Address::as_v4).or(self.remote)?;
        let source = facts.source.and_then(Address::as_v4).or(self.local);
        Some((source.or_else(|| self.interface.source_for(destination.into())?.as_v4())?, destination))
    }

    fn header(
        &self,
        (source, destination): (Ipv4Addr, Ipv4Addr),
        total_len: u16,
        tos: u8,
        facts: &Facts,
    ) -> ipv4::Header {
        // RFC 1112 §6.1: what goes to a group stays on the link unless a program says otherwise.
        let usual = if destination.is_multicast() { 1 } else { TTL };
        ipv4::Header {
            header_len: ipv4::MIN_HEADER_LEN as u8,
            tos,
            total_len,
            identification: self.interface.next_identification(),
            // RFC 1191 §3: TCP fits its segments to the path, and what is whole here of a socket's datagrams fits it as far
            // as is known; what may grow beyond it must stay divisible on the way.
            dont_fragment: facts.dont_fragment
                || matches!(self.protocol, ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_UDP) && !facts.divisible,
            more_fragments: false,
            fragment_offset: 0,
            ttl: if facts.hop_limit == 0 { usual } else { facts.hop_limit },
            protocol: self.protocol,
            source,
            destination,
        }
    }

    /// True for a message that must be cut here: larger than the link carries, and no super-segment.
    #[inline]
    fn exceeds(&self, message: &Message, now: Time) -> bool {
        let len = message.head.as_slice().len() + message.body_len() + ipv4::MIN_HEADER_LEN;
        len > usize::from(self.mtu(message, now))
            && message.facts.segmentation.is_none()
            && self.protocol != ipv4::PROTOCOL_TCP
            && !matches!(message.body, Body::Control(_))
    }

    /// Bytes of a packet that the way of a message carries.
    #[inline]
    fn mtu(&self, message: &Message, now: Time) -> u16 {
        let destination = message.facts.destination.or(self.remote.map(Address::from));
        destination.map_or(self.interface.mtu.get(), |destination| self.interface.path_mtu(destination, now))
    }

    fn push_fragments(&self, message: &Message, into: &mut Burst, context: &mut Context<'_>) {
        let Some((source, destination)) = self.addresses(message) else {
            return context.account.on_drop(DropReason::NoRoute);
        };
        let tos = context.marked(message.facts.tos);
        let header = self.header((source, destination), 0, tos, &message.facts);
        let facts = Facts { destination: Some(destination.into()), ..message.facts.clone() };
        if fragment::cut(message, &header, &facts, self.mtu(message, context.now), into).is_err() {
            context.account.on_drop(DropReason::Malformed);
        }
    }
}

impl Stage for Ip4Stage {
    fn module(&self) -> &'static str {
        "IP4"
    }

    fn inward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        burst.retain_mut(|message| self.inward_one(message, context));
    }

    fn outward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        if !burst.iter().any(|message| self.exceeds(message, context.now)) {
            return burst.retain_mut(|message| self.outward_one(message, context));
        }
        let mut whole = std::mem::take(burst);
        for mut message in whole.drain(..) {
            if self.exceeds(&message, context.now) {
                self.push_fragments(&message, burst, context);
            } else if self.outward_one(&mut message, context) {
                burst.push(message);
            }
        }
    }

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        if let Some(local) = self.local {
            facts.push(("source", local.to_string()));
        }
        if let Some(remote) = self.remote {
            facts.push(("destination", remote.to_string()));
        }
    }

    any_stage!();
}

/// The stage of the path to which all fragments go: puts datagrams together and has them classified again.
pub struct ReassemblyStage {
    interface: Rc<Interface>,
    reassembler: Reassembler,
    completed: u64,
}

impl ReassemblyStage {
    /// A stage with these limits.
    pub fn new(interface: Rc<Interface>, limits: Limits) -> ReassemblyStage {
        ReassemblyStage { interface, reassembler: Reassembler::new(limits), completed: 0 }
    }

    fn on_message(&mut self, message: &Message, context: &mut Context<'_>) {
        let bytes = message.bytes();
        let header = match validate(&self.interface, bytes) {
            Ok(header) if header.is_fragment() => header,
            Ok(_) => return context.account.on_drop(DropReason::Malformed),
            Err(reason) => return context.account.on_drop(reason),
        };
        let payload = &bytes[usize::from(header.header_len)..usize::from(header.total_len)];
        match self.reassembler.offer(&header, payload, context.now) {
            Offered::Kept | Offered::Duplicate => {}
            Offered::Refused(reason) => context.account.on_drop(reason),
            Offered::Complete(header, payload) => {
                self.completed += 1;
                let whole = self.rebuild(message, &header, &payload);
                context.effects.push(Effect::Reclassify(whole));
            }
        }
    }

    /// RFC 1122 §3.3.2: tells the sender, when the first fragment had come.
    fn report_expired(
        &self,
        header: &ipv4::Header,
        start: &[u8],
        outward: &mut Burst,
        context: &mut Context<'_>,
    ) {
        let interface = &self.interface;
        // RFC 1122 §3.2.2: never about broadcasts or errors, and at a limited rate (RFC 1812 §4.3.2.8).
        let may = interface.is_ours(header.destination.into())
            && !header.source.is_unspecified()
            && header.protocol != ipv4::PROTOCOL_ICMP
            && interface.icmp_errors.borrow_mut().take(context.now);
        if !may {
            return;
        }
        let mut message = Message::default();
        let report = message.head.prepend(icmp::HEADER_LEN + ipv4::MIN_HEADER_LEN + QUOTED);
        ipv4::Header { header_len: ipv4::MIN_HEADER_LEN as u8, ..*header }
            .emit(&mut report[icmp::HEADER_LEN..]);
        report[icmp::HEADER_LEN + ipv4::MIN_HEADER_LEN..].copy_from_slice(&start[..QUOTED]);
        icmp::Header { kind: icmp::TIME_EXCEEDED, code: icmp::REASSEMBLY_TIME, rest: [0; 4] }.emit(report);
        message.facts.device = interface.device;
        message.facts.checksum = Checksum::Complete;
        let ours = Some(header.destination);
        let mut ip4 = Ip4Stage::new(Rc::clone(interface), ipv4::PROTOCOL_ICMP, ours, Some(header.source));
        if ip4.outward_one(&mut message, context) {
            outward.push(message);
        }
    }

    /// A frame as if the datagram had come in one piece, without IP options.
    fn rebuild(&self, last: &Message, header: &ipv4::Header, payload: &[u8]) -> Message {
        let as_one = (ethernet::TYPE_IPV4, ipv4::MIN_HEADER_LEN);
        rebuilt(&self.interface, last, as_one, |out| header.emit(out), payload)
    }
}

impl Stage for ReassemblyStage {
    fn module(&self) -> &'static str {
        "IP4"
    }

    fn inward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        take_packets(burst, |message| self.on_message(&message, context));
    }

    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}

    fn next_timeout(&self) -> Option<Time> {
        self.reassembler.next_timeout()
    }

    fn on_timeout(&mut self, _inward: &mut Burst, outward: &mut Burst, context: &mut Context<'_>) {
        for expired in self.reassembler.on_timeout(context.now) {
            context.account.on_drop(DropReason::FragmentTimeout);
            if let Some((header, start)) = expired.first {
                self.report_expired(&header, &start, outward, context);
            }
        }
    }

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        facts.push(("state", "reassembly".to_owned()));
        facts.push(("datagrams", self.reassembler.datagrams().to_string()));
        facts.push(("bytes", self.reassembler.bytes().to_string()));
        facts.push(("completed", self.completed.to_string()));
    }

    any_stage!();
}
