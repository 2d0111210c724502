//! The network stages: of an ordinary path, and of the reassembly path.

use std::net::Ipv6Addr;
use std::rc::Rc;

use scoutline_base::{Address, Time};
use scoutline_path::{
    Body, Burst, Context, Control, DropReason, Effect, Facts, Message, Stage, take_packets,
};
use scoutline_wire::ipv6::{self, ExtensionError, FRAGMENT_LEN, HEADER_LEN, Header};
use scoutline_wire::{ethernet, icmpv6, ipv4, nd};

use super::{Piece, extension_reason, fragment, validate, whole};
use crate::Interface;
use crate::eth::{grow_offsets, rebuilt};
use crate::icmp6::error_message;
use crate::ip4::{Fragmented, Limits, Offered, Reassembler};

/// The network stage of one path.
///
/// Inward it sets `facts.source`, `destination` and `tos`. Outward it takes addresses from the path, or from `facts`
/// where the path has none, and always leaves the destination there for the link stage.
pub struct Ip6Stage {
    interface: Rc<Interface>,
    protocol: u8,
    local: Option<Ipv6Addr>,
    remote: Option<Ipv6Addr>,
    /// Packets whose extension headers are to be reported go on as they are.
    reports: bool,
}

impl Ip6Stage {
    /// A stage for packets of `protocol` from `local`, and to `remote` when the path has one peer. Without `local` the
    /// source is that of the message, or chosen for its destination.
    pub fn new(
        interface: Rc<Interface>,
        protocol: u8,
        local: Option<Ipv6Addr>,
        remote: Option<Ipv6Addr>,
    ) -> Ip6Stage {
        Ip6Stage { interface, protocol, local, remote, reports: false }
    }

    /// The stage of the path that reports what nobody takes.
    #[must_use]
    pub(crate) fn reporting(mut self, reports: bool) -> Ip6Stage {
        self.reports = reports;
        self
    }

    /// RFC 8201 §4: a router says how much arrives where this path sends datagrams. What is about no path's packet comes
    /// to none, so strangers who guess addresses and ports wrong change nothing. TCP looks at its numbers, too.
    fn note_too_big(&self, message: &Message, now: Time) {
        if let Body::Control(Control::Told(told)) = &message.body
            && told.kind == icmpv6::PACKET_TOO_BIG
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
        match self.strip(message) {
            Ok(()) => true,
            Err(reason) => {
                context.account.on_drop(reason);
                false
            }
        }
    }

    fn strip(&self, message: &mut Message) -> Result<(), DropReason> {
        let header = validate(&self.interface, message.bytes())?;
        // RFC 4291 §2.5.2: only who has no address yet speaks from none.
        if header.source.is_unspecified() && self.protocol != ipv6::PROTOCOL_ICMPV6 {
            return Err(DropReason::Malformed);
        }
        message.truncate(header.total_len());
        let offset = match ipv6::walk(message.bytes()) {
            // Demultiplexing sends fragments to the reassembly path; here none belongs.
            Ok(upper) if !whole(&upper) => return Err(DropReason::Malformed),
            Ok(upper) if upper.protocol == self.protocol || self.reports => upper.offset,
            Ok(_) => return Err(DropReason::UnknownProtocol),
            Err(ExtensionError::Problem { .. }) if self.reports => HEADER_LEN,
            Err(error) => return Err(extension_reason(error)),
        };
        message.advance(offset);
        message.facts.source = Some(header.source.into());
        message.facts.destination = Some(header.destination.into());
        message.facts.tos = header.traffic_class;
        message.facts.hop_limit = header.hop_limit;
        Ok(())
    }

    /// The addresses of a message that leaves, or why it cannot.
    #[inline]
    fn addresses(&self, message: &Message) -> Result<(Ipv6Addr, Ipv6Addr), DropReason> {
        let destination = message.facts.destination.and_then(Address::as_v6).or(self.remote);
        let destination = destination.ok_or(DropReason::NoRoute)?;
        let source = message.facts.source.and_then(Address::as_v6).or(self.local);
        let source = source.or_else(|| self.interface.source_for(destination.into())?.as_v6());
        Ok((source.ok_or(DropReason::NoRoute)?, destination))
    }

    /// One message outward, whole: true when it goes on.
    #[inline]
    pub(crate) fn outward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool {
        if let Body::Control(_) = message.body {
            return true;
        }
        let payload_len = message.head.as_slice().len() + message.body_len();
        let made = self.addresses(message).and_then(|(source, destination)| {
            let payload_len = u16::try_from(payload_len).map_err(|_| DropReason::Malformed)?;
            let tos = context.marked(message.facts.tos);
            Ok(self.header(source, destination, payload_len, tos, message.facts.hop_limit))
        });
        let header = match made {
            Ok(header) => header,
            Err(reason) => {
                context.account.on_drop(reason);
                return false;
            }
        };
        message.facts.destination = Some(header.destination.into());
        header.emit(message.head.prepend(HEADER_LEN));
        grow_offsets(&mut message.facts, HEADER_LEN);
        true
    }

    fn header(
        &self,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        payload_len: u16,
        tos: u8,
        hop_limit: u8,
    ) -> Header {
        // RFC 3493 §5.2: what goes to a group stays on the link unless a program says otherwise.
        let usual = if destination.is_multicast() { 1 } else { self.interface.ip6.hop_limit() };
        Header {
            traffic_class: tos,
            flow_label: 0,
            payload_len,
            next_header: self.protocol,
            hop_limit: if hop_limit == 0 { usual } else { hop_limit },
            source,
            destination,
        }
    }

    /// What the path carries, for a message that must be cut here: larger than that, and no super-segment.
    #[inline]
    fn exceeds(&self, message: &Message, now: Time) -> Option<u16> {
        if message.facts.segmentation.is_some()
            || self.protocol == ipv4::PROTOCOL_TCP
            || matches!(message.body, Body::Control(_))
        {
            return None;
        }
        let len = message.head.as_slice().len() + message.body_len() + HEADER_LEN;
        let destination = message.facts.destination.and_then(Address::as_v6).or(self.remote)?;
        // What fits the smallest path needs no look at what is known.
        if len <= usize::from(ipv6::MIN_MTU) {
            return None;
        }
        let mtu = self.interface.path_mtu(destination.into(), now);
        if len <= usize::from(mtu) {
            return None;
        }
        // Only what the way does not carry is cut as it was asked for (`ip6_finish_output` of Linux).
        Some(if message.facts.most == 0 { mtu } else { mtu.min(message.facts.most.max(ipv6::MIN_MTU)) })
    }

    fn push_fragments(&self, message: &Message, mtu: u16, into: &mut Burst, context: &mut Context<'_>) {
        let (source, destination) = match self.addresses(message) {
            Ok(addresses) => addresses,
            Err(reason) => return context.account.on_drop(reason),
        };
        let tos = context.marked(message.facts.tos);
        let header = self.header(source, destination, 0, tos, message.facts.hop_limit);
        let facts = Facts { destination: Some(destination.into()), ..message.facts.clone() };
        let identification = self.interface.ip6.next_identification(source, destination);
        if fragment::cut(message, &header, &facts, (mtu, identification), into).is_err() {
            context.account.on_drop(DropReason::Malformed);
        }
    }
}

impl Stage for Ip6Stage {
    fn module(&self) -> &'static str {
        "IP6"
    }

    fn inward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        burst.retain_mut(|message| self.inward_one(message, context));
    }

    fn outward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        if !burst.iter().any(|message| self.exceeds(message, context.now).is_some()) {
            return burst.retain_mut(|message| self.outward_one(message, context));
        }
        let mut whole = std::mem::take(burst);
        for mut message in whole.drain(..) {
            if let Some(mtu) = self.exceeds(&message, context.now) {
                self.push_fragments(&message, mtu, burst, context);
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

/// The stage of the path to which all fragments go: puts packets together and has them classified again.
pub struct ReassemblyStage {
    interface: Rc<Interface>,
    reassembler: Reassembler<Piece>,
    completed: u64,
}

impl ReassemblyStage {
    /// A stage with these limits.
    pub fn new(interface: Rc<Interface>, limits: Limits) -> ReassemblyStage {
        ReassemblyStage { interface, reassembler: Reassembler::new(limits), completed: 0 }
    }

    fn on_message(&mut self, message: &Message, turned: &mut Burst, context: &mut Context<'_>) {
        match self.take(message, context.now) {
            Ok(Some(whole)) => {
                self.completed += 1;
                context.effects.push(Effect::Reclassify(whole));
            }
            Ok(None) => {}
            Err(Fault(reason, problem)) => {
                context.account.on_drop(reason);
                if let Some(problem) = problem {
                    self.report_problem(message.bytes(), problem, turned, context);
                }
            }
        }
    }

    fn take(&mut self, message: &Message, now: Time) -> Result<Option<Message>, Fault> {
        let bytes = message.bytes();
        let header = validate(&self.interface, bytes)?;
        let packet = &bytes[..header.total_len()];
        let upper = ipv6::walk(packet).map_err(extension_reason)?;
        let fragment = upper.fragment.ok_or(DropReason::Malformed)?;
        let payload = &packet[upper.offset..];
        let piece = Piece { header, fragment };
        // RFC 6980 §5: neighbour discovery with a fragment header is ignored, an atomic one's as well, in silence.
        if fragment.offset == 0 && is_neighbour_discovery(upper.protocol, payload) {
            return Err(DropReason::Malformed.into());
        }
        // RFC 6946 §4: whole by itself, whatever else has its identification.
        if fragment.is_atomic() {
            let whole = piece.of_whole(payload.len(), piece.ecn());
            return Ok(Some(self.rebuild(message, &whole.header, payload)?));
        }
        if fragment.more && !payload.len().is_multiple_of(8) {
            let at = Problem { code: ipv6::PROBLEM_FIELD, pointer: PAYLOAD_LEN_AT };
            return Err(Fault(DropReason::Malformed, Some(at)));
        }
        if usize::from(fragment.offset) + payload.len() > usize::from(u16::MAX) {
            let pointer = (upper.offset - FRAGMENT_LEN + FRAGMENT_OFFSET_AT) as u32;
            let at = Problem { code: ipv6::PROBLEM_FIELD, pointer };
            return Err(Fault(DropReason::Malformed, Some(at)));
        }
        if fragment.offset == 0 && !holds_all_headers(upper.protocol, payload) {
            let at = Problem { code: INCOMPLETE_CHAIN, pointer: 0 };
            return Err(Fault(DropReason::Malformed, Some(at)));
        }
        match self.reassembler.offer(&piece, payload, now) {
            Offered::Kept | Offered::Duplicate => Ok(None),
            Offered::Refused(reason) => Err(reason.into()),
            Offered::Complete(whole, payload) => Ok(Some(self.rebuild(message, &whole.header, &payload)?)),
        }
    }

    /// RFC 8200 §4.5: tells the sender of a fragment what is wrong with it.
    fn report_problem(
        &self,
        packet: &[u8],
        Problem { code, pointer }: Problem,
        turned: &mut Burst,
        context: &mut Context<'_>,
    ) {
        // RFC 4443 §2.4 (e.3): not about what went to a group.
        let Ok(header) = Header::parse(packet) else { return };
        if header.destination.is_multicast() {
            return;
        }
        let told = (icmpv6::PARAMETER_PROBLEM, code, pointer.to_be_bytes());
        let packet = &packet[..header.total_len().min(packet.len())];
        let Some(mut message) = error_message(&self.interface, &header, packet, told, context) else {
            return;
        };
        let mut ip6 = Ip6Stage::new(Rc::clone(&self.interface), ipv6::PROTOCOL_ICMPV6, None, None);
        if ip6.outward_one(&mut message, context) {
            turned.push(message);
        }
    }

    /// A frame as if the packet had come in one piece, without extension headers in front of its fragments.
    fn rebuild(&self, last: &Message, header: &Header, payload: &[u8]) -> Result<Message, DropReason> {
        // RFC 8200 §4.5: fragments of fragments are not made by anybody honest.
        if header.next_header == ipv6::FRAGMENT {
            return Err(DropReason::Malformed);
        }
        let as_one = (ethernet::TYPE_IPV6, HEADER_LEN);
        Ok(rebuilt(&self.interface, last, as_one, |out| header.emit(out), payload))
    }

    /// RFC 8200 §4.5: tells the sender, when the first fragment had come.
    fn report_expired(&self, piece: &Piece, start: &[u8], outward: &mut Burst, context: &mut Context<'_>) {
        let mut quote = vec![0; HEADER_LEN + FRAGMENT_LEN + start.len()];
        let header = Header { next_header: ipv6::FRAGMENT, ..piece.header };
        header.emit(&mut quote);
        piece.fragment.emit(&mut quote[HEADER_LEN..]);
        quote[HEADER_LEN + FRAGMENT_LEN..].copy_from_slice(start);
        let told = (icmpv6::TIME_EXCEEDED, icmpv6::REASSEMBLY_TIME, [0; 4]);
        let Some(mut message) = error_message(&self.interface, &header, &quote, told, context) else {
            return;
        };
        let mut ip6 = Ip6Stage::new(Rc::clone(&self.interface), ipv6::PROTOCOL_ICMPV6, None, None);
        if ip6.outward_one(&mut message, context) {
            outward.push(message);
        }
    }
}

/// Why a fragment is dropped, and what of that its sender is told.
struct Fault(DropReason, Option<Problem>);

impl From<DropReason> for Fault {
    fn from(reason: DropReason) -> Fault {
        Fault(reason, None)
    }
}

/// What an ICMPv6 parameter problem says (RFC 4443 §3.4).
#[derive(Clone, Copy)]
struct Problem {
    code: u8,
    /// Where, from the packet's first byte.
    pointer: u32,
}

/// RFC 7112 §5: the first fragment has no complete chain of headers.
const INCOMPLETE_CHAIN: u8 = 3;
/// Where the payload's length stands in the header.
const PAYLOAD_LEN_AT: u32 = 4;
/// Where the offset stands in a fragment header.
const FRAGMENT_OFFSET_AT: usize = 2;

/// RFC 7112 §5: the first fragment has every header up to the transport's, or filters would be blind.
fn holds_all_headers(protocol: u8, payload: &[u8]) -> bool {
    let least = match protocol {
        ipv4::PROTOCOL_TCP => 20,
        ipv4::PROTOCOL_UDP | ipv6::PROTOCOL_ICMPV6 => 8,
        _ => 0,
    };
    payload.len() >= least
}

/// True for the messages of RFC 4861.
fn is_neighbour_discovery(protocol: u8, payload: &[u8]) -> bool {
    protocol == ipv6::PROTOCOL_ICMPV6
        && payload.first().is_some_and(|kind| (nd::ROUTER_SOLICITATION..=nd::REDIRECT).contains(kind))
}

impl Stage for ReassemblyStage {
    fn module(&self) -> &'static str {
        "IP6"
    }

    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        take_packets(burst, |message| self.on_message(&message, turned, context));
    }

    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}

    fn next_timeout(&self) -> Option<Time> {
        self.reassembler.next_timeout()
    }

    fn on_timeout(&mut self, _inward: &mut Burst, outward: &mut Burst, context: &mut Context<'_>) {
        for expired in self.reassembler.on_timeout(context.now) {
            context.account.on_drop(DropReason::FragmentTimeout);
            if let Some((piece, start)) = expired.first {
                self.report_expired(&piece, &start, outward, context);
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
