//! The ARP stage: answers, learns, and sends what waited.

use std::rc::Rc;
use std::time::Duration;

use scoutline_base::Time;
use scoutline_path::{Burst, Checksum, Context, DropReason, Facts, Message, Stage, take_packets};
use scoutline_wire::arp::{Operation, PACKET_LEN, Packet, ParseError};
use scoutline_wire::ethernet;

use crate::{Interface, neighbour};

/// RFC 5227 §2.4 (b): an address is defended at most once in this time.
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// The stage of the one ARP path of an interface.
pub struct ArpStage {
    interface: Rc<Interface>,
    /// When we may defend our address again.
    defend_from: Time,
}

impl ArpStage {
    /// A stage for this interface.
    pub fn new(interface: Rc<Interface>) -> ArpStage {
        ArpStage { interface, defend_from: Time::ZERO }
    }

    fn on_message(&mut self, message: &Message, turned: &mut Burst, context: &mut Context<'_>) {
        let packet = match Packet::parse(message.bytes()) {
            Ok(packet) => packet,
            Err(error) => {
                let reason = match error {
                    ParseError::Truncated { .. } => DropReason::Truncated,
                    _ => DropReason::Malformed,
                };
                return context.account.on_drop(reason);
            }
        };
        let interface = Rc::clone(&self.interface);
        if ethernet::is_group(packet.sender_link)
            || packet.sender.is_broadcast()
            || packet.sender.is_multicast()
            // RFC 1122 §3.2.1.3 (g): never outside of a host.
            || packet.sender.is_loopback()
        {
            return context.account.on_drop(DropReason::Malformed);
        }
        let ours = interface.is_ours(packet.target.into());
        if interface.is_ours(packet.sender.into()) {
            return self.on_conflict(&packet, context);
        }
        // RFC 5227 §1.1: a probe has no sender to learn from.
        if !packet.sender.is_unspecified() {
            // RFC 826: an entry that exists is updated by any packet; one is made only for whoever speaks to us.
            // A reply that nobody asked for makes none.
            let create =
                ours && packet.operation == Operation::Request && interface.is_on_link(packet.sender.into());
            let waited = interface.neighbours.borrow_mut().learn(
                packet.sender,
                packet.sender_link,
                create,
                context.now,
            );
            let sender = (packet.sender.into(), packet.sender_link);
            neighbour::release(&interface, sender, waited, context.out);
        }
        if ours && packet.operation == Operation::Request {
            turned.push(self.reply(&packet));
        }
    }

    fn reply(&self, request: &Packet) -> Message {
        let reply = Packet {
            operation: Operation::Reply,
            sender_link: self.interface.link_address.get(),
            sender: request.target,
            target_link: request.sender_link,
            target: request.sender,
        };
        let facts = Facts {
            device: self.interface.device,
            checksum: Checksum::Complete,
            link_source: request.sender_link, // the link stage sends there: see EthStage
            ..Facts::default()
        };
        let mut message = Message { facts, ..Message::default() };
        reply.emit(message.head.prepend(PACKET_LEN));
        message
    }

    /// Somebody says that our address is theirs (RFC 5227 §2.4): counted, and answered by an announcement.
    fn on_conflict(&mut self, packet: &Packet, context: &mut Context<'_>) {
        context.account.on_drop(DropReason::NotForUs);
        if packet.sender_link == self.interface.link_address.get() {
            return; // an echo of our own
        }
        self.interface.address_conflicts.set(self.interface.address_conflicts.get() + 1);
        if context.now >= self.defend_from {
            self.defend_from = context.now + DEFEND_INTERVAL;
            context.out.push(super::announcement_frame(&self.interface, packet.sender));
        }
    }
}

impl Stage for ArpStage {
    fn module(&self) -> &'static str {
        "ARP"
    }

    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        take_packets(burst, |message| self.on_message(&message, turned, context));
    }

    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}

    fn next_timeout(&self) -> Option<Time> {
        self.interface.next_neighbour_timeout()
    }

    fn on_timeout(&mut self, _inward: &mut Burst, _outward: &mut Burst, context: &mut Context<'_>) {
        self.interface.on_neighbour_timeout(context.now, context.out, context.account, context.effects);
    }

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        let neighbours = self.interface.neighbours.borrow();
        facts.push(("neighbours", neighbours.entries().count().to_string()));
        facts.push(("waiting-bytes", neighbours.waiting_bytes().to_string()));
        facts.push(("conflicts", self.interface.address_conflicts.get().to_string()));
    }

    any_stage!();
}
