//! Neighbour discovery (RFC 4861) and the addresses that follow from it (RFC 4862): who on the link has which
//! address, which routers there are, and whether an address of ours is in use already.
//!
//! The sibling of ARP: the wording of messages, and the path that hears them. What is known of stations, and for how
//! long, is the neighbour cache's matter ([`crate::neighbour`]); what a host knows beside its neighbours is
//! [`crate::ip6::Host6`].
//!
//! Left out on purpose: the groups of our own addresses' solicitations are reported once, in version 2, and to queries at
//! once; no nonces in probes (RFC 7527); no advertisements as a router (RFC 4861 §6.2).

mod module;
mod stage;

pub use module::NdModule;
pub use stage::NdStage;

use std::net::Ipv6Addr;

use scoutline_path::{Checksum, Facts, Message};
use scoutline_wire::ipv6::{self, HEADER_LEN, Header, PROTOCOL_ICMPV6};
use scoutline_wire::nd::{self, Advertisement, Solicitation};
use scoutline_wire::{ethernet, icmpv6};

use crate::Interface;
use crate::eth::encapsulate;
use crate::groups::RecordKind;

/// Where a message goes, and as whose.
#[derive(Clone, Copy, Debug)]
struct Course {
    source: Ipv6Addr,
    destination: Ipv6Addr,
    link: ethernet::Address,
}

/// A whole frame that carries a message of neighbour discovery.
fn frame(interface: &Interface, way: Course, header: icmpv6::Header, body: &[u8]) -> Message {
    let facts = Facts { device: interface.device, checksum: Checksum::Complete, ..Facts::default() };
    let mut message = Message { facts, ..Message::default() };
    let out = message.head.prepend(icmpv6::HEADER_LEN + body.len());
    out[icmpv6::HEADER_LEN..].copy_from_slice(body);
    header.emit(out, way.source, way.destination);
    put_header(interface, &mut message, way, PROTOCOL_ICMPV6, nd::HOP_LIMIT);
    message
}

/// Puts IPv6's and Ethernet's headers in front.
fn put_header(interface: &Interface, message: &mut Message, way: Course, next_header: u8, hop_limit: u8) {
    let header = Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: message.head.as_slice().len() as u16,
        next_header,
        hop_limit,
        source: way.source,
        destination: way.destination,
    };
    header.emit(message.head.prepend(HEADER_LEN));
    encapsulate(message, way.link, interface.link_address.get(), ethernet::TYPE_IPV6);
}

fn to_group(source: Ipv6Addr, group: Ipv6Addr) -> Course {
    Course { source, destination: group, link: ethernet::multicast6(group) }
}

/// The frame that asks for `address`: the group of those who may have it, or the station that had it last (§7.2.2,
/// §7.3.3).
pub fn solicitation_frame(
    interface: &Interface,
    address: Ipv6Addr,
    last: Option<ethernet::Address>,
    source: Option<Ipv6Addr>,
) -> Message {
    let source = source.or_else(|| interface.ip6.source_for(address.into()));
    let source = source.unwrap_or(Ipv6Addr::UNSPECIFIED);
    let way = match last {
        Some(link) => Course { source, destination: address, link },
        None => to_group(source, nd::solicited_node(address)),
    };
    // §4.3: without an address of our own there is no link address to be told.
    let source_link = (!source.is_unspecified()).then(|| interface.link_address.get());
    solicit(interface, way, Solicitation { target: address, source_link })
}

/// The frame that asks whether anybody has `address` already (RFC 4862 §5.4.2).
pub fn probe_frame(interface: &Interface, address: Ipv6Addr) -> Message {
    let way = to_group(Ipv6Addr::UNSPECIFIED, nd::solicited_node(address));
    solicit(interface, way, Solicitation { target: address, source_link: None })
}

fn solicit(interface: &Interface, way: Course, solicitation: Solicitation) -> Message {
    let mut body = [0; 24];
    let len = solicitation.emit(&mut body);
    let header = icmpv6::Header { kind: nd::NEIGHBOUR_SOLICITATION, code: 0, rest: [0; 4] };
    frame(interface, way, header, &body[..len])
}

/// The frame that asks for routers (§6.3.7).
pub fn router_solicitation_frame(interface: &Interface) -> Message {
    let source = interface.ip6.source_for(nd::ALL_ROUTERS.into()).unwrap_or(Ipv6Addr::UNSPECIFIED);
    let header = icmpv6::Header { kind: nd::ROUTER_SOLICITATION, code: 0, rest: [0; 4] };
    let mut option = [0; 8];
    option[..2].copy_from_slice(&[1, 1]);
    option[2..].copy_from_slice(&interface.link_address.get());
    // §4.1: without an address of our own there is no link address to be told.
    let body = if source.is_unspecified() { &[][..] } else { &option };
    frame(interface, to_group(source, nd::ALL_ROUTERS), header, body)
}

/// The frame that says that an address is ours: to who asked, or to all.
fn advertisement_frame(interface: &Interface, address: Ipv6Addr, way: Course, solicited: bool) -> Message {
    let advertisement = Advertisement {
        router: interface.ip6.is_router(),
        solicited,
        overrides: true,
        target: address,
        target_link: Some(interface.link_address.get()),
    };
    let mut body = [0; 24];
    let len = advertisement.emit(&mut body);
    let header = icmpv6::Header { kind: nd::NEIGHBOUR_ADVERTISEMENT, code: 0, rest: advertisement.flags() };
    frame(interface, way, header, &body[..len])
}

/// The frame that tells switches and routers that we have joined the group of an address' solicitations (RFC 3810 §5.2,
/// one record that excludes nobody from now on; RFC 3590 lets it come from the unspecified address).
pub fn report_frame(interface: &Interface, address: Ipv6Addr) -> Message {
    const ALL_ROUTERS_V2: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
    // RFC 3810 §5: a router alert (RFC 2711), padded.
    const ROUTER_ALERT: [u8; 8] = [PROTOCOL_ICMPV6, 0, 5, 2, 0, 0, 1, 0];
    let source = crate::mld::source(interface);
    let facts = Facts { device: interface.device, checksum: Checksum::Complete, ..Facts::default() };
    let mut message = Message { facts, ..Message::default() };
    let out = message.head.prepend(icmpv6::HEADER_LEN + 20);
    out[8..12].copy_from_slice(&[RecordKind::ToExclude as u8, 0, 0, 0]);
    out[12..28].copy_from_slice(&nd::solicited_node(address).octets());
    let header = icmpv6::Header { kind: icmpv6::LISTENER_REPORT, code: 0, rest: [0, 0, 0, 1] };
    header.emit(out, source, ALL_ROUTERS_V2);
    message.head.prepend(8).copy_from_slice(&ROUTER_ALERT);
    put_header(interface, &mut message, to_group(source, ALL_ROUTERS_V2), ipv6::HOP_BY_HOP, 1);
    message
}

#[cfg(test)]
mod tests;
