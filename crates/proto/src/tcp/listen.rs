//! The stages without a connection: of a listen path, and of the path that resets what nobody takes.

use std::rc::Rc;

use scoutline_base::Endpoint;
use scoutline_path::{
    Attributes, Body, Burst, Context, DropReason, Effect, FlowKey, Message, Name, Stage, Value,
};
use scoutline_wire::ipv4;
use scoutline_wire::tcp::{Flags, Header};

use super::module::{Backlog, HALF_OPEN, HalfOpen, PASSIVE};
use super::reset_for;
use super::stage::{Emitter, parse, restored};
use crate::Interface;

/// Attributes that a new connection has from the path that listened.
const INHERITED: [Name; 7] = [
    Name::Class,
    Name::Priority,
    Name::Device,
    Name::QueueLimit,
    Name::MemoryLimit,
    Name::ReceiveBuffer,
    Name::SendBuffer,
];

/// The TCP stage of a listen path: RFC 9293 §3.10.7.2, the LISTEN state.
///
/// Each SYN becomes [`Effect::Create`] of a path that starts at `SOCKET`, with the attributes of the flow and
/// `Parent`, and the SYN as its first message, from the start of its frame. The number of handshakes is bounded by
/// the [`Backlog`].
pub struct ListenStage {
    interface: Rc<Interface>,
    local: Endpoint,
    backlog: Rc<Backlog>,
    inherited: Attributes,
    accepted: u64,
}

impl ListenStage {
    pub(super) fn new(
        interface: Rc<Interface>,
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
        ListenStage { interface, local, backlog, inherited, accepted: 0 }
    }

    /// The connections that no program has yet: the engine counts those that wait for accept there.
    pub fn backlog(&self) -> &Rc<Backlog> {
        &self.backlog
    }

    fn on_packet(&mut self, message: Message, turned: &mut Burst, context: &mut Context<'_>) {
        let (header, header_len) = match parse(&self.interface, &message) {
            Ok(parsed) => parsed,
            Err(reason) => return context.account.on_drop(reason),
        };
        let flags = header.flags;
        // First: a reset is ignored. Second: an acknowledgment is of nothing that we sent. Third: a SYN.
        if flags.contains(Flags::RST) {
            return context.account.on_drop(DropReason::BadFlags);
        }
        if flags.contains(Flags::ACK) {
            context.account.on_drop(DropReason::NoPath);
            return reset(&self.interface, &message, &header, header_len, turned, context);
        }
        if !flags.contains(Flags::SYN) {
            return context.account.on_drop(DropReason::BadFlags);
        }
        self.on_syn(message, &header, context);
    }

    fn on_syn(&mut self, message: Message, header: &Header, context: &mut Context<'_>) {
        let (Some(source), Some(destination)) = (message.facts.source, message.facts.destination) else {
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
            self.backlog.refused.set(self.backlog.refused.get() + 1);
            return context.account.on_drop(DropReason::BacklogFull);
        }
        self.accepted += 1;
        let local = Endpoint::new(destination, header.destination_port);
        let half_open = Rc::new(HalfOpen::take(&self.backlog));
        let attributes = self
            .inherited
            .clone()
            .with(Name::Protocol, Value::Number(u64::from(ipv4::PROTOCOL_TCP)))
            .with(Name::Local, Value::Address(local))
            .with(Name::Remote, Value::Address(remote))
            .with(Name::Device, Value::Device(self.interface.device))
            .with(Name::Parent, Value::Path(context.path))
            .with(Name::Other(PASSIVE), Value::Number(1))
            .with(Name::Other(HALF_OPEN), Value::Any(half_open));
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
        facts.push(("waiting", self.backlog.waiting.get().to_string()));
        facts.push(("syns", self.accepted.to_string()));
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

/// Answers a segment of no connection, at a limited rate.
fn reset(
    interface: &Interface,
    message: &Message,
    header: &Header,
    header_len: usize,
    turned: &mut Burst,
    context: &mut Context<'_>,
) {
    let (Some(source), Some(destination)) = (message.facts.source, message.facts.destination) else { return };
    let payload_len = (message.body_len() - header_len) as u32;
    let Some(answer) = reset_for(header, payload_len).filter(|_| interface.is_ours(destination)) else {
        return;
    };
    if context.transmit_room == 0 || !interface.resets.borrow_mut().take(context.now) {
        return context.account.on_drop(DropReason::RateLimited);
    }
    context.transmit_room -= 1;
    let key = FlowKey {
        remote: source,
        local: destination,
        remote_port: header.source_port,
        local_port: header.destination_port,
        device: interface.device,
        protocol: ipv4::PROTOCOL_TCP,
    };
    turned.push(Emitter { interface, key: &key }.message(&answer, 0, Body::Empty));
}
