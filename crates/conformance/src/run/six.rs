//! IPv6 packets that come and that must leave.

use crate::packet::Six;
use crate::script::{Ip6, Packet, Place};

use super::arrive::wrong;
use super::expect::Compared;
use super::{Result, Runner};

/// The gateway's link address ends so.
const GATEWAY: u8 = 2;

/// The neighbour that a mark names by the last byte of its link address.
fn neighbour(packet: &Packet, mark: &str, place: &Place) -> Result<Option<u8>> {
    packet.mark(mark).map(|text| text.parse().map_err(|_| wrong(place, mark))).transpose()
}

impl Runner<'_> {
    pub(super) fn arrive_six(&mut self, ip6: &Ip6, packet: &Packet, place: &Place) -> Result<()> {
        let Ip6 { next, source, destination, hop, bytes } = ip6;
        let bytes = bytes.iter().map(|byte| byte.unwrap_or(0)).collect();
        let (source, destination) = (*source, *destination);
        let mut six = Six { next: *next, source, destination, hop: hop.unwrap_or(64), bytes };
        if packet.mark("no_checksum").is_none() {
            six.complete();
        }
        if packet.mark("checksum") == Some("bad")
            && let Some(last) = six.bytes.last_mut()
        {
            *last ^= 0x55;
        }
        let from = neighbour(packet, "link_from", place)?.unwrap_or(GATEWAY);
        let length = packet.mark("length").map_or(Ok(0), str::parse).map_err(|_| wrong(place, "length"))?;
        let known = ["checksum", "no_checksum", "link_from", "length"];
        if let Some((name, _)) = packet.marks.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            return Err(wrong(place, name));
        }
        let frame = six.frame(self.stack.link_address(), from, length);
        self.stack.inject(&frame);
        Ok(())
    }
}

/// Whether what left to this link address is what the script says.
pub(super) fn compare_six(expected: &Ip6, packet: &Packet, seen: &Six, link: [u8; 6]) -> Compared {
    let Ip6 { next, source, destination, hop, bytes } = expected;
    if (*next, *source, *destination) != (seen.next, seen.source, seen.destination) {
        return Err(text(seen));
    }
    if hop.is_some_and(|hop| hop != seen.hop) {
        return Err(format!("hop limit {}", seen.hop));
    }
    let equal = |(wanted, found): (&Option<u8>, &u8)| wanted.is_none_or(|wanted| wanted == *found);
    if bytes.len() != seen.bytes.len() || !bytes.iter().zip(&seen.bytes).all(equal) {
        return Err(text(seen));
    }
    if packet.mark("link_to").is_some_and(|to| to.parse() != Ok(link[5])) {
        return Err(format!("to the link address {link:x?}"));
    }
    Ok(())
}

/// A packet in the script's words.
pub(super) fn text(six: &Six) -> String {
    let bytes: Vec<String> = six.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let Six { next, source, destination, hop, .. } = six;
    format!("ip6 {next} from {source} to {destination} hop {hop} [ {} ]", bytes.join(" "))
}
