//! Multicast listener discovery, the listener's side (RFC 3810; RFC 2710 towards older routers): queries read, reports
//! as frames. The machine is the interface's [`Groups`](crate::groups::Groups).
//!
//! The groups of neighbour discovery are reported by [`crate::nd`].

use std::net::Ipv6Addr;
use std::time::Duration;

use scoutline_base::Address;
use scoutline_path::{Body, Checksum, Facts, Message};
use scoutline_ring::Block;
use scoutline_wire::ipv6::{self, Header, PROTOCOL_ICMPV6};
use scoutline_wire::{ethernet, icmpv6};

use crate::Interface;
use crate::eth::encapsulate;
use crate::groups::{Query, Record, Report};
use crate::igmp::split;

/// Where reports of version 2 go (RFC 3810 §5.2.14), and where listeners of version 1 say that they leave.
const ALL_ROUTERS_V2: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Types of version 1 (RFC 2710 §3).
pub(crate) const REPORT_V1: u8 = 131;
const DONE_V1: u8 = 132;
/// RFC 2711 §2.1: the packet holds a message of multicast listener discovery.
const ROUTER_ALERT_MLD: u16 = 0;
/// A hop-by-hop header with that router alert, padded.
const ROUTER_ALERT: [u8; 8] = [PROTOCOL_ICMPV6, 0, 5, 2, 0, 0, 1, 0];
/// Lengths of the queries of version 1, and of version 2 without sources (RFC 3810 §8.1).
const QUERY_LEN: usize = 24;
const QUERY_V2_LEN: usize = 28;

/// Reads a query: an ICMPv6 message whose checksum was verified. `None` when it is cut short, or of no version (§8.1).
pub(crate) fn query(bytes: &[u8]) -> Option<Query> {
    let address = |at: usize| -> Option<Address> {
        let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
        Some(Ipv6Addr::from(octets).into())
    };
    let code = u32::from(u16::from_be_bytes([*bytes.get(4)?, *bytes.get(5)?]));
    let group = Some(address(8)?).filter(|group| !group.is_unspecified());
    if (QUERY_LEN + 1..QUERY_V2_LEN).contains(&bytes.len()) {
        return None;
    }
    if bytes.len() == QUERY_LEN {
        let within = Duration::from_millis(code.into());
        return Some(Query { group, sources: Vec::new(), within, robustness: 0, age: 1 });
    }
    // RFC 3810 §5.1.3: small numbers as they are, larger ones with an exponent.
    let millis = if code < 32_768 { code } else { (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3) };
    let count = usize::from(u16::from_be_bytes([bytes[26], bytes[27]]));
    let sources: Option<Vec<Address>> = (0..count).map(|n| address(QUERY_V2_LEN + 16 * n)).collect();
    let within = Duration::from_millis(millis.into());
    Some(Query { group, sources: sources?, within, robustness: bytes[24] & 7, age: 0 })
}

/// The group that a listener of version 1 reports (RFC 2710 §3).
pub(crate) fn reported(bytes: &[u8]) -> Option<Address> {
    let octets: [u8; 16] = bytes.get(8..QUERY_LEN)?.try_into().ok()?;
    Some(Ipv6Addr::from(octets).into())
}

/// Whether a message is one that routers and listeners of this link send (RFC 3810 §6.2, RFC 2710 §3): from a link-local
/// address, with one hop to go, and with a router alert in `packet`, which is the whole of it.
pub(crate) fn is_of_link(facts: &Facts, packet: &[u8]) -> bool {
    let is_local = facts.source.is_some_and(Address::is_link_local);
    is_local && facts.hop_limit == 1 && ipv6::router_alert(packet) == Some(ROUTER_ALERT_MLD)
}

/// Where reports come from (RFC 3810 §5.2.13): a link-local address, or none until there is one (RFC 3590).
pub(crate) fn source(interface: &Interface) -> Ipv6Addr {
    let source = interface.ip6.source_for(ALL_ROUTERS_V2.into());
    source.filter(|&source| Address::from(source).is_link_local()).unwrap_or(Ipv6Addr::UNSPECIFIED)
}

/// The frames that say it.
pub(crate) fn frames(interface: &Interface, report: &Report, mut send: impl FnMut(Message)) {
    let mut old = |kind, group: Address, to: Option<Ipv6Addr>| {
        if let Some(group) = group.as_v6() {
            let mut message = vec![0; icmpv6::HEADER_LEN];
            message.extend(group.octets());
            send(frame(interface, kind, [0; 4], message, to.unwrap_or(group)));
        }
    };
    match report {
        Report::Old(group) | Report::Oldest(group) => old(REPORT_V1, *group, None),
        Report::Left(group) => old(DONE_V1, *group, Some(ALL_ROUTERS)),
        Report::Records(records) => {
            for part in split(records, |record| 20 + 16 * record.sources.len()) {
                let [high, low] = (part.len() as u16).to_be_bytes();
                let bytes = report_v2(part);
                send(frame(interface, icmpv6::LISTENER_REPORT, [0, 0, high, low], bytes, ALL_ROUTERS_V2));
            }
        }
    }
}

/// RFC 3810 §5.2, without the header.
fn report_v2(records: &[Record]) -> Vec<u8> {
    let mut message = vec![0; icmpv6::HEADER_LEN];
    for record in records {
        message.extend([record.kind as u8, 0]);
        message.extend((record.sources.len() as u16).to_be_bytes());
        message.extend(record.group.octets());
        message.extend(record.sources.iter().flat_map(|source| source.octets()));
    }
    message
}

fn frame(interface: &Interface, kind: u8, rest: [u8; 4], mut bytes: Vec<u8>, to: Ipv6Addr) -> Message {
    let source = source(interface);
    icmpv6::Header { kind, code: 0, rest }.emit(&mut bytes, source, to);
    let facts = Facts { device: interface.device, checksum: Checksum::Complete, ..Facts::default() };
    let len = bytes.len();
    let body = Body::block(Block::from_bytes(bytes.into_boxed_slice()), 0..len as u32);
    let mut message = Message { body, facts, ..Message::default() };
    message.head.prepend(ROUTER_ALERT.len()).copy_from_slice(&ROUTER_ALERT);
    let header = Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: (ROUTER_ALERT.len() + len) as u16,
        next_header: ipv6::HOP_BY_HOP,
        hop_limit: 1,
        source,
        destination: to,
    };
    header.emit(message.head.prepend(ipv6::HEADER_LEN));
    encapsulate(&mut message, ethernet::multicast6(to), interface.link_address.get(), ethernet::TYPE_IPV6);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_of_both_versions() {
        let mut bytes = vec![130, 0, 0, 0, 0x03, 0xe8, 0, 0];
        bytes.extend([0; 16]);
        let first =
            Query { group: None, sources: Vec::new(), within: Duration::from_secs(1), robustness: 0, age: 1 };
        assert_eq!(query(&bytes), Some(first.clone()));
        bytes.extend([2, 125]);
        assert_eq!(query(&bytes), None, "of no version");
        bytes.extend([0, 1]);
        assert_eq!(query(&bytes), None, "its source is missing");
        let source: Ipv6Addr = "2001:db8::9".parse().unwrap();
        bytes.extend(source.octets());
        bytes[4..6].copy_from_slice(&[0x80, 1]);
        let second = Query {
            sources: vec![source.into()],
            within: Duration::from_millis(0x1001 << 3),
            robustness: 2,
            age: 0,
            ..first
        };
        assert_eq!(query(&bytes), Some(second));
        for len in 0..bytes.len() {
            let _ = query(&bytes[..len]);
        }
    }
}
