//! ARP (RFC 826): who on the link has which address.
//!
//! [`Cache`] is pure. Stages of any path ask it on their way out and leave a message with it when the answer is
//! not there yet; the ARP path hears the answer and sends what waited. A path that waits drives the cache's
//! timers itself, so no path depends on another's being run.

mod cache;
mod module;
mod stage;

pub use cache::{Cache, Found, Question};
pub use module::ArpModule;
pub use stage::ArpStage;

use scoutline_base::Address;
use scoutline_path::{Account, Checksum, DropReason, Effect, Facts, FlowKey, Message};
use scoutline_wire::arp::{Operation, PACKET_LEN, Packet};
use scoutline_wire::{ethernet, icmp};
use std::net::Ipv4Addr;

use crate::Interface;

/// Puts the Ethernet header in front of a message that leaves, and moves on what counts from the frame's start.
#[inline]
pub(crate) fn encapsulate(
    message: &mut Message,
    destination: ethernet::Address,
    source: ethernet::Address,
    ethertype: u16,
) {
    ethernet::Header { destination, source, ethertype }.emit(message.head.prepend(ethernet::HEADER_LEN));
    crate::eth::grow_offsets(&mut message.facts, ethernet::HEADER_LEN);
}

/// A whole frame that carries an ARP packet.
pub fn frame(interface: &Interface, packet: &Packet, destination: ethernet::Address) -> Message {
    let facts = Facts { device: interface.device, checksum: Checksum::Complete, ..Facts::default() };
    let mut message = Message { facts, ..Message::default() };
    packet.emit(message.head.prepend(PACKET_LEN));
    encapsulate(&mut message, destination, interface.link_address.get(), ethernet::TYPE_ARP);
    message
}

/// The frame that asks for `address`: to all, or to the station that had it last (RFC 1122 §2.3.2.1 (2)).
pub fn request_frame(interface: &Interface, address: Ipv4Addr, last: Option<ethernet::Address>) -> Message {
    // The asked one learns who we are from this: it must be an address that it can reach.
    let sender = interface.source_for(address.into()).and_then(Address::as_v4);
    question(interface, sender.unwrap_or(interface.address.get()), address, last)
}

/// The frame that tells all that we have this address (RFC 5227 §2.3): for the engine, when a device is opened.
pub fn announcement_frame(interface: &Interface, ours: Ipv4Addr) -> Message {
    question(interface, ours, ours, None)
}

fn question(
    interface: &Interface,
    sender: Ipv4Addr,
    target: Ipv4Addr,
    last: Option<ethernet::Address>,
) -> Message {
    let sender_link = interface.link_address.get();
    let packet = Packet { operation: Operation::Request, sender_link, sender, target_link: [0; 6], target };
    frame(interface, &packet, last.unwrap_or(ethernet::BROADCAST))
}

/// Drops a message whose neighbour never answered, and tells its path.
pub(crate) fn on_given_up(
    interface: &Interface,
    message: &Message,
    account: &mut Account,
    effects: &mut Vec<Effect>,
) {
    account.on_drop(DropReason::NoNeighbour);
    // The head holds what an ICMP error would quote: the IP header and the transport's first bytes.
    if let Some(quoted) = icmp::Quoted::parse(message.head.as_slice()) {
        let key = FlowKey {
            remote: quoted.destination.into(),
            local: quoted.source.into(),
            remote_port: quoted.ports.1,
            local_port: quoted.ports.0,
            device: interface.device,
            protocol: quoted.protocol,
        };
        effects.push(Effect::Notify(key, crate::icmp::neighbour_missing(&key, message)));
    }
}

#[cfg(test)]
mod tests;
