//! ARP (RFC 826): who on the link has which address.
//!
//! The wording of its packets, and the path that hears them. What is known of stations, and for how long, is the
//! neighbour cache's matter ([`crate::neighbour`]).

mod module;
mod stage;

pub use module::ArpModule;
pub use stage::ArpStage;

use scoutline_base::Address;
use scoutline_path::{Checksum, Facts, Message};
use scoutline_wire::arp::{Operation, PACKET_LEN, Packet};
use scoutline_wire::ethernet;
use std::net::Ipv4Addr;

use crate::Interface;
use crate::eth::encapsulate;

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

#[cfg(test)]
mod tests;
