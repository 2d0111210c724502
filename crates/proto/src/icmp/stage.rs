//! The ICMP stages: the one that answers and notifies, and the one that reports what nobody takes.

use std::rc::Rc;

use scoutline_base::Endpoint;
use scoutline_path::{
    Body, Burst, Checksum, Context, Control, DropReason, Effect, Facts, Head, Message, Stage, Told,
    take_packets,
};
use scoutline_ring::Block;
use scoutline_wire::{checksum, icmp, ipv4};

use super::flow_of;
use crate::eth::frame_start;
use crate::udp::is_intact;
use crate::{Interface, errno};

/// The most that an error quotes of its cause, so that it never exceeds 576 bytes (RFC 1812 §4.3.2.3).
const MAX_QUOTE: usize = 576 - ipv4::MIN_HEADER_LEN - icmp::HEADER_LEN;

/// The stage of the ICMP path.
pub struct IcmpStage {
    interface: Rc<Interface>,
    echoes: u64,
    errors: u64,
}

impl IcmpStage {
    /// A stage for this interface.
    pub fn new(interface: Rc<Interface>) -> IcmpStage {
        IcmpStage { interface, echoes: 0, errors: 0 }
    }

    fn on_message(&mut self, message: Message, turned: &mut Burst, context: &mut Context<'_>) {
        let header = match icmp::Header::parse(message.bytes()) {
            Ok(header) => header,
            Err(error) => return context.account.on_drop(reason(&error)),
        };
        match header.kind {
            icmp::ECHO_REQUEST => self.on_echo(message, turned, context),
            // RFC 6633 §3: source quench is ignored. Redirects are too: routes are configuration.
            icmp::UNREACHABLE | icmp::TIME_EXCEEDED | icmp::PARAMETER_PROBLEM => {
                self.on_error(header, &message, context);
            }
            icmp::ECHO_REPLY => context.account.on_drop(DropReason::NoPath),
            // RFC 1122 §3.2.2: an unknown type is discarded in silence.
            _ => context.account.on_drop(DropReason::UnknownProtocol),
        }
    }

    /// RFC 1122 §3.2.2.6: the same data back, in place.
    fn on_echo(&mut self, mut message: Message, turned: &mut Burst, context: &mut Context<'_>) {
        // RFC 1122 §3.2.2.6 lets a host ignore requests to a broadcast address; amplifiers answer them.
        if !message.facts.destination.is_some_and(|address| self.interface.is_ours(address)) {
            return context.account.on_drop(DropReason::NotForUs);
        }
        let Body::Block { block, range, .. } = &mut message.body else { return };
        let bytes = &mut block[range.start as usize..range.end as usize];
        let old = u16::from_be_bytes([bytes[0], bytes[1]]);
        bytes[0] = icmp::ECHO_REPLY;
        let new = u16::from_be_bytes([bytes[0], bytes[1]]);
        let sum = checksum::update(u16::from_be_bytes([bytes[2], bytes[3]]), old, new);
        bytes[2..4].copy_from_slice(&sum.to_be_bytes());
        self.echoes += 1;
        let facts = Facts {
            device: message.facts.device,
            checksum: Checksum::Complete,
            source: message.facts.destination,
            destination: message.facts.source,
            tos: message.facts.tos,
            ..Facts::default()
        };
        turned.push(Message { head: Head::default(), body: message.body, facts });
    }

    /// RFC 1122 §3.2.2.1: errors are passed to the transport that caused them.
    fn on_error(&mut self, header: icmp::Header, message: &Message, context: &mut Context<'_>) {
        let quote = &message.bytes()[icmp::HEADER_LEN..];
        let Some(quoted) = icmp::Quoted::parse(quote) else {
            return context.account.on_drop(DropReason::Malformed);
        };
        if !self.interface.is_ours(quoted.source.into()) {
            return context.account.on_drop(DropReason::NotForUs);
        }
        self.errors += 1;
        let key = flow_of(self.interface.device, &quoted);
        let icmp::Header { kind, code, rest } = header;
        // RFC 1191 §4: the next-hop MTU in the low half of the unused word.
        let mtu = u16::from_be_bytes([rest[2], rest[3]]);
        let too_long = (kind, code) == (icmp::UNREACHABLE, icmp::unreachable::FRAGMENTATION_NEEDED);
        let told = match (kind, code) {
            _ if quoted.protocol == ipv4::PROTOCOL_UDP => {
                let Some((errno, fatal)) = errno::of_datagram(kind, code) else { return };
                Control::Told(Box::new(Told {
                    errno,
                    fatal,
                    kind,
                    code,
                    mtu: if too_long { mtu.into() } else { 0 },
                    from: message.facts.source.unwrap_or_default(),
                    to: Endpoint::new(quoted.destination, quoted.ports.1),
                    quoted: quote[quoted.data..].to_vec(),
                }))
            }
            _ if quoted.protocol != ipv4::PROTOCOL_TCP => Control::Unreachable(kind, code),
            _ if too_long => Control::TooLong(mtu, quoted.sequence),
            _ => Control::UnreachableSegment(kind, code, quoted.sequence),
        };
        context.effects.push(Effect::Notify(key, told));
    }
}

impl Stage for IcmpStage {
    fn module(&self) -> &'static str {
        "ICMP"
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

/// The stage of the path that gets datagrams which no other path takes: it tells their senders (RFC 1122 §3.2.2.1,
/// §4.1.3.1), at a limited rate.
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
        // The datagram itself counts as dropped, whether its sender is told or not.
        let facts = &message.facts;
        let Some((header, datagram)) = original(message) else {
            return context.account.on_drop(DropReason::Malformed);
        };
        // RFC 1122 §3.2.2: never about broadcasts and multicasts, fragments other than the first, or errors (ICMP
        // never comes here). Invalid sources were refused by the network stage.
        let may = self.interface.is_ours(header.destination.into())
            && !header.source.is_unspecified()
            && header.fragment_offset == 0
            && header.protocol != ipv4::PROTOCOL_ICMP;
        // The limit is asked before the datagram is read, or a flood for nobody would cost a checksum for each.
        let has_room = self.interface.icmp_errors.borrow_mut().has(context.now);
        let code = if header.protocol == ipv4::PROTOCOL_UDP {
            let bytes = datagram.get(usize::from(header.header_len)..).unwrap_or_default();
            // Broken, it may be for anybody.
            if may && has_room && !is_intact(&self.interface, facts, bytes) {
                return context.account.on_drop(DropReason::BadChecksum);
            }
            context.account.on_drop(DropReason::NoPath);
            icmp::unreachable::PORT
        } else {
            context.account.on_drop(DropReason::UnknownProtocol);
            icmp::unreachable::PROTOCOL
        };
        if !may {
            return;
        }
        if !self.interface.icmp_errors.borrow_mut().take(context.now) {
            return context.account.on_drop(DropReason::RateLimited);
        }
        self.sent += 1;
        let quote = &datagram[..datagram.len().min(MAX_QUOTE)];
        let mut bytes = vec![0; icmp::HEADER_LEN + quote.len()];
        bytes[icmp::HEADER_LEN..].copy_from_slice(quote);
        icmp::Header { kind: icmp::UNREACHABLE, code, rest: [0; 4] }.emit(&mut bytes);
        let len = bytes.len() as u32;
        let body = Body::block(Block::from_bytes(bytes.into_boxed_slice()), 0..len);
        let facts = Facts {
            device: facts.device,
            checksum: Checksum::Complete,
            source: Some(header.destination.into()),
            destination: Some(header.source.into()),
            ..Facts::default()
        };
        turned.push(Message { head: Head::default(), body, facts });
    }
}

impl Stage for UnreachableStage {
    fn module(&self) -> &'static str {
        "ICMP"
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

/// The datagram of a message whose headers were stripped: its header, and all of its bytes.
fn original(message: &Message) -> Option<(ipv4::Header, &[u8])> {
    let Body::Block { block, range, .. } = &message.body else { return None };
    let start = frame_start(&message.facts) as usize + scoutline_wire::ethernet::HEADER_LEN;
    let datagram = block.get(start..range.end as usize)?;
    let header = ipv4::Header::parse_header(datagram).ok()?;
    Some((header, datagram))
}

fn reason(error: &icmp::ParseError) -> DropReason {
    match error {
        icmp::ParseError::Truncated { .. } => DropReason::Truncated,
        icmp::ParseError::Checksum => DropReason::BadChecksum,
        _ => DropReason::Malformed,
    }
}
