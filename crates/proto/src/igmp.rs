//! IGMP, the host's side (RFC 3376; RFC 2236 and RFC 1112 towards older routers): queries are heard here, and what the
//! interface's [`Groups`](crate::groups::Groups) have to say becomes frames.

mod module;
mod stage;

pub use module::IgmpModule;
pub use stage::IgmpStage;

use std::net::Ipv4Addr;

use scoutline_path::{Body, Checksum, Facts, Message};
use scoutline_ring::Block;
use scoutline_wire::{checksum, ethernet, igmp, ipv4};

use crate::Interface;
use crate::eth::encapsulate;
use crate::groups::{Record, Report};

/// Records are split among reports of this length, which every link carries.
const MAX_REPORT: usize = 1_200;
/// RFC 3376 §4: IP's header with a router alert (RFC 2113).
const HEADER_LEN: usize = 24;
const ROUTER_ALERT: [u8; 4] = [148, 4, 0, 0];
/// §4: precedence of internetwork control.
const TOS: u8 = 0xc0;

/// The frames that say it.
pub(crate) fn frames(interface: &Interface, report: &Report, mut send: impl FnMut(Message)) {
    let mut old = |kind, group: scoutline_base::Address, to: Option<Ipv4Addr>| {
        if let Some(group) = group.as_v4() {
            let mut message = vec![0; igmp::HEADER_LEN];
            message[4..8].copy_from_slice(&group.octets());
            send(frame(interface, kind, message, to.unwrap_or(group)));
        }
    };
    match report {
        Report::Old(group) => old(igmp::REPORT_V2, *group, None),
        Report::Oldest(group) => old(igmp::REPORT_V1, *group, None),
        Report::Left(group) => old(igmp::LEAVE, *group, Some(igmp::ALL_ROUTERS)),
        Report::Records(records) => {
            for part in split(records, |record| 8 + 4 * record.sources.len()) {
                send(frame(interface, igmp::REPORT_V3, report_v3(part), igmp::ALL_ROUTERS_V3));
            }
        }
    }
}

/// Records that stand in one report each.
pub(crate) fn split(records: &[Record], len: impl Fn(&Record) -> usize) -> Vec<&[Record]> {
    let (mut parts, mut from, mut bytes) = (Vec::new(), 0, 0);
    for (at, record) in records.iter().enumerate() {
        if bytes > 0 && bytes + len(record) > MAX_REPORT {
            parts.push(&records[from..at]);
            (from, bytes) = (at, 0);
        }
        bytes += len(record);
    }
    parts.push(&records[from..]);
    parts
}

/// RFC 3376 §4.2, without type and checksum.
fn report_v3(records: &[Record]) -> Vec<u8> {
    let mut message = vec![0; igmp::HEADER_LEN];
    message[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
    for record in records {
        let octets = |address: &scoutline_base::Address| address.low_bits().to_be_bytes();
        message.extend([record.kind as u8, 0]);
        message.extend((record.sources.len() as u16).to_be_bytes());
        message.extend(octets(&record.group));
        message.extend(record.sources.iter().flat_map(octets));
    }
    message
}

fn frame(interface: &Interface, kind: u8, mut bytes: Vec<u8>, to: Ipv4Addr) -> Message {
    igmp::emit(kind, &mut bytes);
    let facts = Facts { device: interface.device, checksum: Checksum::Complete, ..Facts::default() };
    let len = bytes.len() as u32;
    let body = Body::block(Block::from_bytes(bytes.into_boxed_slice()), 0..len);
    let mut message = Message { body, facts, ..Message::default() };
    let source = interface.source_for(to.into()).and_then(scoutline_base::Address::as_v4);
    let header = ipv4::Header {
        header_len: ipv4::MIN_HEADER_LEN as u8,
        tos: TOS,
        total_len: (HEADER_LEN + len as usize) as u16,
        identification: interface.next_identification(),
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        // §4: it never leaves the link.
        ttl: 1,
        protocol: igmp::PROTOCOL,
        // RFC 3376 §4.2.13: from no address while there is none.
        source: source.unwrap_or(Ipv4Addr::UNSPECIFIED),
        destination: to,
    };
    let out = message.head.prepend(HEADER_LEN);
    header.emit(out);
    out[0] = 4 << 4 | (HEADER_LEN / 4) as u8;
    out[ipv4::MIN_HEADER_LEN..].copy_from_slice(&ROUTER_ALERT);
    out[ipv4::CHECKSUM_OFFSET..ipv4::CHECKSUM_OFFSET + 2].fill(0);
    let sum = checksum::finish(checksum::sum(out));
    out[ipv4::CHECKSUM_OFFSET..ipv4::CHECKSUM_OFFSET + 2].copy_from_slice(&sum.to_be_bytes());
    encapsulate(&mut message, ethernet::multicast(to), interface.link_address.get(), ethernet::TYPE_IPV4);
    message
}

#[cfg(test)]
mod tests;
