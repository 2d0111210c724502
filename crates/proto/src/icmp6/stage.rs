//! The ICMPv6 stages: the one that answers and notifies, and the one that reports what nobody takes.

use std::collections::BTreeSet;
use std::rc::Rc;

use scoutline_base::{Address, Endpoint};
use scoutline_path::{
    Body, Burst, Checksum, Context, Control, DropReason, Effect, Facts, Head, Message, Stage, Told,
    take_packets,
};
use scoutline_ring::Block;
use scoutline_wire::ipv6::{self, ExtensionError};
use scoutline_wire::nd::{REDIRECT, solicited_node};
use scoutline_wire::{checksum, icmpv6, ipv4};

use super::{as_icmp4, flow_of};
use crate::eth::frame_start;
use crate::groups::{Record, RecordKind, Report};
use crate::ip6::LONGER;
use crate::udp::is_intact;
use crate::{Interface, errno, mld};

/// The most that an error quotes of its cause, so that it fits every link (RFC 4443 §2.4 (c)).
const MAX_QUOTE: usize = ipv6::MIN_MTU as usize - ipv6::HEADER_LEN - icmpv6::HEADER_LEN;

/// The stage of the ICMPv6 path.
pub struct Icmp6Stage {
    interface: Rc<Interface>,
    echoes: u64,
    errors: u64,
}

impl Icmp6Stage {
    /// A stage for this interface.
    pub fn new(interface: Rc<Interface>) -> Icmp6Stage {
        Icmp6Stage { interface, echoes: 0, errors: 0 }
    }

    fn on_message(&mut self, message: Message, turned: &mut Burst, context: &mut Context<'_>) {
        let header = match parse(&message) {
            Ok(header) => header,
            Err(reason) => return context.account.on_drop(reason),
        };
        match header.kind {
            icmpv6::ECHO_REQUEST => self.on_echo(message, turned, context),
            icmpv6::LISTENER_QUERY => self.on_query(&message, context),
            mld::REPORT_V1 => self.on_report(&message, context),
            icmpv6::ECHO_REPLY => context.account.on_drop(DropReason::NoPath),
            _ if header.is_error() => {
                self.on_error(header, &message, context);
            }
            // RFC 4443 §2.4 (b): an unknown informational message is discarded in silence.
            _ => context.account.on_drop(DropReason::UnknownProtocol),
        }
    }

    /// RFC 4443 §4.2: the same data back, in place; to a group too, from an address of ours.
    fn on_echo(&mut self, mut message: Message, turned: &mut Burst, context: &mut Context<'_>) {
        let (Some(source), Some(destination)) = (message.facts.source, message.facts.destination) else {
            return context.account.on_drop(DropReason::Malformed);
        };
        let ours = if destination.is_multicast() {
            // Amplifiers answer groups: only at the rate of errors.
            let chosen = self.interface.ip6.source_for(source);
            chosen.filter(|_| self.interface.icmp_errors.borrow_mut().take(context.now)).map(Address::from)
        } else {
            Some(destination)
        };
        let Some(ours) = ours.filter(|_| !source.is_unspecified()) else {
            return context.account.on_drop(DropReason::RateLimited);
        };
        let Body::Block { block, range, .. } = &mut message.body else { return };
        let bytes = &mut block[range.start as usize..range.end as usize];
        bytes[0] = icmpv6::ECHO_REPLY;
        bytes[2..4].fill(0);
        // The destination may have been a group, so the sum is made anew.
        let pseudo = checksum::pseudo_header(ours, source, ipv6::PROTOCOL_ICMPV6, bytes.len());
        let sum = checksum::finish(checksum::add(pseudo, checksum::sum(bytes)));
        bytes[2..4].copy_from_slice(&sum.to_be_bytes());
        self.echoes += 1;
        let facts = Facts {
            device: message.facts.device,
            checksum: Checksum::Complete,
            source: Some(ours),
            destination: Some(source),
            tos: message.facts.tos,
            ..Facts::default()
        };
        turned.push(Message { head: Head::default(), body: message.body, facts });
    }

    /// RFC 3810 §6.2: a router asks which groups have listeners, so that switches go on passing them. Those of neighbour
    /// discovery are told at once, those of sockets when the time has come.
    fn on_query(&mut self, message: &Message, context: &mut Context<'_>) {
        if !is_of_link(message) {
            return context.account.on_drop(DropReason::Malformed);
        }
        if !self.interface.icmp_errors.borrow_mut().take(context.now) {
            return context.account.on_drop(DropReason::RateLimited);
        }
        let Some(query) = mld::query(message.bytes()) else {
            return context.account.on_drop(DropReason::Malformed);
        };
        let is_old = {
            let mut groups = self.interface.groups6.borrow_mut();
            groups.on_query(&query, context.now);
            groups.age(context.now) > 0
        };
        let asked = |group: &Address| query.group.is_none_or(|about| about == *group);
        let own = self.interface.ip6.addresses().into_iter().map(|own| solicited_node(own.address).into());
        // Several addresses may share one.
        let own: BTreeSet<Address> = own.filter(asked).collect();
        let mut report =
            |report: &Report| mld::frames(&self.interface, report, |frame| context.out.push(frame));
        if is_old {
            own.into_iter().map(Report::Old).for_each(|old| report(&old));
        } else if !own.is_empty() {
            let record = |group| Record { kind: RecordKind::IsExclude, group, sources: Vec::new() };
            report(&Report::Records(own.into_iter().map(record).collect()));
        }
    }

    /// RFC 2710 §4: another listener has told an old router of a group.
    fn on_report(&mut self, message: &Message, context: &mut Context<'_>) {
        match mld::reported(message.bytes()).filter(|_| is_of_link(message)) {
            Some(group) => self.interface.groups6.borrow_mut().on_report(group, context.now),
            None => context.account.on_drop(DropReason::Malformed),
        }
    }

    /// RFC 4443 §2.4 (d): errors are passed to the transport that caused them.
    fn on_error(&mut self, header: icmpv6::Header, message: &Message, context: &mut Context<'_>) {
        let quote = &message.bytes()[icmpv6::HEADER_LEN..];
        let Some(quoted) = icmpv6::Quoted::parse(quote) else {
            return context.account.on_drop(DropReason::Malformed);
        };
        if !self.interface.is_ours(quoted.source.into()) {
            return context.account.on_drop(DropReason::NotForUs);
        }
        let Some((kind, code)) = as_icmp4(header.kind, header.code) else {
            return context.account.on_drop(DropReason::UnknownProtocol);
        };
        self.errors += 1;
        let mtu = u32::from_be_bytes(header.rest);
        let is_of_transport = matches!(quoted.protocol, ipv4::PROTOCOL_UDP | ipv4::PROTOCOL_TCP);
        if header.kind == icmpv6::PACKET_TOO_BIG && !is_of_transport {
            // RFC 8201 §4: of datagrams and segments the path that has sent them tells (`Ip6Stage`), if there is one.
            self.interface.on_too_big(quoted.destination.into(), mtu, context.now);
        }
        let key = flow_of(self.interface.device, &quoted);
        let told = match header.kind {
            _ if quoted.protocol == ipv4::PROTOCOL_UDP => {
                let Some((errno, fatal)) = errno::of_datagram6(header.kind, header.code) else { return };
                let too_big = header.kind == icmpv6::PACKET_TOO_BIG;
                Control::Told(Box::new(Told {
                    errno,
                    fatal,
                    kind: header.kind,
                    code: header.code,
                    mtu: if too_big { mtu } else { 0 },
                    from: message.facts.source.unwrap_or_default(),
                    to: Endpoint::new(quoted.destination, quoted.ports.1),
                    quoted: quote[quoted.data..].to_vec(),
                }))
            }
            _ if quoted.protocol != ipv4::PROTOCOL_TCP => Control::Unreachable(kind, code),
            icmpv6::PACKET_TOO_BIG if mtu < ipv6::MIN_MTU.into() => {
                // RFC 8201 §4: every link takes 1280 bytes; a router that says less is not believed.
                return context.account.on_drop(DropReason::Malformed);
            }
            icmpv6::PACKET_TOO_BIG => {
                // TCP counts as if the headers were IPv4's.
                Control::TooLong((mtu.min(u16::MAX.into()) - u32::from(LONGER)) as u16, quoted.sequence)
            }
            _ => Control::UnreachableSegment(kind, code, quoted.sequence),
        };
        context.effects.push(Effect::Notify(key, told));
    }
}

impl Stage for Icmp6Stage {
    fn module(&self) -> &'static str {
        "ICMP6"
    }

    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        take_packets(burst, |message| self.on_message(message, turned, context));
    }

    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        facts.push(("echoes", self.echoes.to_string()));
        facts.push(("errors", self.errors.to_string()));
    }

    any_stage!();
}

/// The stage of the path that gets packets which no other path takes, and those whose extension headers cannot be
/// followed: it tells their senders (RFC 4443 §3.1, §3.4), at a limited rate.
pub struct UnreachableStage {
    interface: Rc<Interface>,
    sent: u64,
}

impl UnreachableStage {
    /// A stage for this interface.
    pub fn new(interface: Rc<Interface>) -> UnreachableStage {
        UnreachableStage { interface, sent: 0 }
    }

    fn on_message(&mut self, message: &Message, turned: &mut Burst, context: &mut Context<'_>) {
        // The packet itself counts as dropped, whether its sender is told or not.
        let Some((header, packet)) = original(message) else {
            return context.account.on_drop(DropReason::Malformed);
        };
        let destination = Address::from(header.destination);
        // The limit is asked before the datagram is read, or a flood for nobody would cost a checksum for each.
        let may = !destination.is_multicast() && self.interface.icmp_errors.borrow_mut().has(context.now);
        let is_broken =
            |offset| !is_intact(&self.interface, &message.facts, packet.get(offset..).unwrap_or_default());
        let (reason, told) = match ipv6::walk(packet) {
            // Broken, it may be for anybody.
            Ok(upper) if upper.protocol == ipv4::PROTOCOL_UDP && may && is_broken(upper.offset) => {
                return context.account.on_drop(DropReason::BadChecksum);
            }
            Ok(upper) if upper.protocol == ipv4::PROTOCOL_UDP => {
                (DropReason::NoPath, (icmpv6::UNREACHABLE, icmpv6::unreachable::PORT, [0; 4]))
            }
            Ok(upper) => {
                let pointer = (upper.number_at as u32).to_be_bytes();
                let told = (icmpv6::PARAMETER_PROBLEM, ipv6::PROBLEM_NEXT_HEADER, pointer);
                (DropReason::UnknownProtocol, told)
            }
            Err(ExtensionError::Problem { code, pointer, even_to_groups }) => {
                context.account.on_drop(DropReason::UnknownProtocol);
                if destination.is_multicast() && !even_to_groups {
                    return;
                }
                let told = (icmpv6::PARAMETER_PROBLEM, code, pointer.to_be_bytes());
                return self.tell(&header, packet, told, turned, context);
            }
            Err(error) => return context.account.on_drop(crate::ip6::extension_reason(error)),
        };
        context.account.on_drop(reason);
        // RFC 4443 §2.4 (e.3): not about what came to a group.
        if !destination.is_multicast() {
            self.tell(&header, packet, told, turned, context);
        }
    }

    fn tell(
        &mut self,
        header: &ipv6::Header,
        packet: &[u8],
        told: (u8, u8, [u8; 4]),
        turned: &mut Burst,
        context: &mut Context<'_>,
    ) {
        if let Some(message) = error_message(&self.interface, header, packet, told, context) {
            self.sent += 1;
            turned.push(message);
        }
    }
}

impl Stage for UnreachableStage {
    fn module(&self) -> &'static str {
        "ICMP6"
    }

    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        take_packets(burst, |message| self.on_message(&message, turned, context));
    }

    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        facts.push(("sent", self.sent.to_string()));
    }

    any_stage!();
}

/// The error about a packet, type, code and the rest of its header as told: `None` where none may be sent (RFC 4443
/// §2.4 (e)), or not so many (§2.4 (f)).
pub(crate) fn error_message(
    interface: &Interface,
    header: &ipv6::Header,
    packet: &[u8],
    (kind, code, rest): (u8, u8, [u8; 4]),
    context: &mut Context<'_>,
) -> Option<Message> {
    let source = Address::from(header.source);
    let about_error = match ipv6::skip(packet) {
        Ok(upper) if upper.protocol == ipv6::PROTOCOL_ICMPV6 => {
            packet.get(upper.offset).is_none_or(|&kind| kind < 128 || kind == REDIRECT)
        }
        _ => false,
    };
    if about_error || source.is_unspecified() || source.is_multicast() {
        return None;
    }
    if !interface.icmp_errors.borrow_mut().take(context.now) {
        context.account.on_drop(DropReason::RateLimited);
        return None;
    }
    let ours = Some(Address::from(header.destination)).filter(|&address| interface.is_ours(address));
    let ours = ours.or_else(|| interface.source_for(source)).and_then(Address::as_v6)?;
    let quote = &packet[..packet.len().min(MAX_QUOTE)];
    let mut bytes = vec![0; icmpv6::HEADER_LEN + quote.len()];
    bytes[icmpv6::HEADER_LEN..].copy_from_slice(quote);
    icmpv6::Header { kind, code, rest }.emit(&mut bytes, ours, header.source);
    let len = bytes.len() as u32;
    let body = Body::block(Block::from_bytes(bytes.into_boxed_slice()), 0..len);
    let facts = Facts {
        device: interface.device,
        checksum: Checksum::Complete,
        source: Some(ours.into()),
        destination: Some(source),
        ..Facts::default()
    };
    Some(Message { head: Head::default(), body, facts })
}

/// The packet of a message whose headers were stripped: its header, and all of its bytes.
fn original(message: &Message) -> Option<(ipv6::Header, &[u8])> {
    let Body::Block { block, range, .. } = &message.body else { return None };
    let start = frame_start(&message.facts) as usize + scoutline_wire::ethernet::HEADER_LEN;
    let packet = block.get(start..range.end as usize)?;
    let header = ipv6::Header::parse_header(packet).ok()?;
    Some((header, packet))
}

/// True for a message of multicast listener discovery that may be one.
fn is_of_link(message: &Message) -> bool {
    original(message).is_some_and(|(_, packet)| mld::is_of_link(&message.facts, packet))
}

/// Reads an ICMPv6 message whose IPv6 header was stripped.
pub(crate) fn parse(message: &Message) -> Result<icmpv6::Header, DropReason> {
    let (Some(source), Some(destination)) = (message.facts.source, message.facts.destination) else {
        return Err(DropReason::Malformed);
    };
    icmpv6::Header::parse(message.bytes(), source, destination).map_err(|error| match error {
        icmpv6::ParseError::Truncated { .. } => DropReason::Truncated,
        icmpv6::ParseError::Checksum => DropReason::BadChecksum,
        _ => DropReason::Malformed,
    })
}
