//! Packets that come: made from what the script says.

use std::net::Ipv4Addr;

use crate::packet::{
    Draft, LOCAL, arp_frame, icmp_echo, icmp_error, igmp_message, pattern_at, tcp_segment, udp_datagram,
};
use crate::script::{Body, Ecn, Icmp, Options, Packet, Place, Tcp, TcpOption, flag};

use super::flow::Flow;
use super::{Failure, Result, Runner};

const ICMP: u8 = 1;
const IGMP: u8 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Bytes of the link header.
const LINK_LEN: usize = 14;

impl Runner<'_> {
    /// Makes a packet and lets it come.
    pub(super) fn arrive(&mut self, packet: &Packet, place: &Place) -> Result<()> {
        let (local, remote) = self.ports_of(packet, true);
        let address = |name: &str, default| -> Result<Ipv4Addr> {
            packet.mark(name).map_or(Ok(default), |text| text.parse().map_err(|_| wrong(place, name)))
        };
        let (source, destination) = (address("from", self.remote)?, address("to", LOCAL)?);
        let (protocol, mut payload) = match &packet.body {
            Body::Tcp(tcp) => {
                let local = local.ok_or_else(|| wrong(place, "the port, before our SYN has told it"))?;
                (TCP, self.segment(tcp, (source, remote), (destination, local), packet))
            }
            Body::Udp(len) => {
                let (from, to) = ((source, remote), (destination, local.unwrap_or_default()));
                let data = pattern_at(false, 0, *len as usize);
                (UDP, udp_datagram(from, to, &data, packet.mark("no_checksum").is_none()))
            }
            Body::Icmp(icmp) => (ICMP, self.icmp(icmp, packet, place)?),
            Body::Arp(arp) => {
                let link = self.stack.link_address();
                self.stack.inject(&arp_frame(arp.request, arp.sender, arp.target, link));
                return Ok(());
            }
            Body::Igmp(bytes) => {
                let bytes: Vec<u8> = bytes.iter().map(|byte| byte.unwrap_or(0)).collect();
                (IGMP, igmp_message(&bytes))
            }
            Body::Ip6(ip6) => return self.arrive_six(ip6, packet, place),
        };
        if packet.mark("checksum") == Some("bad") {
            // Each of the four has its checksum elsewhere; a changed last byte is wrong for all.
            if let Some(last) = payload.last_mut() {
                *last ^= 0x55;
            }
        }
        let mut draft = Draft::new(protocol, source, destination, payload);
        if let Some(ecn) = packet.ecn {
            draft.tos = ecn_bits(ecn);
        }
        mark_draft(&mut draft, packet, place)?;
        self.send_frames(&draft, packet, place)
    }

    fn send_frames(&mut self, draft: &Draft, packet: &Packet, place: &Place) -> Result<()> {
        let mut link = self.stack.link_address();
        if draft.destination.is_multicast() {
            // RFC 1112 §6.4
            let [_, a, b, c] = draft.destination.octets();
            link = [1, 0, 0x5e, a & 0x7f, b, c];
        }
        match packet.mark("link") {
            Some("other") => link[5] ^= 0x40,
            Some("broadcast") => link = [0xff; 6],
            Some(_) => return Err(wrong(place, "link")),
            None => {}
        }
        let mut frames = draft.frames(link);
        if let Some(order) = packet.mark("order") {
            let chosen = |index: &str| frames.get(index.parse::<usize>().ok()?).cloned();
            let order: Option<Vec<Vec<u8>>> = order.split_whitespace().map(chosen).collect();
            frames = order.ok_or_else(|| wrong(place, "order"))?;
        }
        for mut frame in frames {
            if let Some(len) = packet.mark("cut") {
                frame.truncate(LINK_LEN + len.parse::<usize>().map_err(|_| wrong(place, "cut"))?);
            }
            self.came = frame.get(LINK_LEN..).unwrap_or_default().to_vec();
            self.stack.inject(&frame);
        }
        Ok(())
    }

    fn segment(&mut self, tcp: &Tcp, from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), packet: &Packet) -> Vec<u8> {
        let flow = self.flow((to.1, from.1));
        if tcp.flags & flag::SYN != 0 {
            flow.syn_came = Some(tcp.sequence);
        }
        let sequence = flow.remote_live(tcp.sequence);
        let acknowledgment = tcp.acknowledgment.map_or(0, |number| flow.local_live(number));
        let first = tcp.sequence.wrapping_add(u32::from(tcp.flags & flag::SYN != 0));
        let payload = pattern_at(false, flow.remote_position(first), tcp.len as usize);
        let options = option_bytes(&tcp.options, flow);
        let mut bytes = tcp_segment(
            from,
            to,
            sequence,
            acknowledgment,
            tcp.flags,
            tcp.window.unwrap_or(0),
            tcp.urgent.unwrap_or(0),
            &options,
            &payload,
        );
        if let Some(offset) = packet.mark("offset").and_then(|text| text.parse::<u8>().ok()) {
            set_octet(&mut bytes, offset << 4);
        }
        // Beside the data offset: AE and three that nobody has (RFC 9293 §3.1, RFC 9768 §3.1.1).
        if let Some(bits) = packet.mark("reserved").and_then(|text| text.parse::<u8>().ok()) {
            let offset = bytes[12] & 0xf0;
            set_octet(&mut bytes, offset | bits & 15);
        }
        bytes
    }

    fn icmp(&mut self, icmp: &Icmp, packet: &Packet, place: &Place) -> Result<Vec<u8>> {
        Ok(match *icmp {
            Icmp::Echo(request, id, sequence, len) => {
                icmp_echo(request, id, sequence, &pattern_at(false, 0, len as usize))
            }
            Icmp::Error { kind, code, mtu, about } => {
                let mut about = match about {
                    Some((first, len)) => self.outgoing(first, len, packet, place)?,
                    None => self.went.clone(),
                };
                let keep = packet.mark("bytes").and_then(|text| text.parse().ok()).unwrap_or(28);
                about.truncate(keep);
                icmp_error(kind, code, mtu.unwrap_or(0), &about)
            }
        })
    }

    /// A segment of ours as it was on the wire.
    fn outgoing(&mut self, first: u32, len: u32, packet: &Packet, place: &Place) -> Result<Vec<u8>> {
        let (local, remote) = self.ports_of(packet, true);
        let local = local.ok_or_else(|| wrong(place, "the port, before our SYN has told it"))?;
        let peer = self.remote;
        let sequence = self.flow((local, remote)).local_live(first);
        let data = vec![0; len as usize];
        let segment = tcp_segment((LOCAL, local), (peer, remote), sequence, 0, flag::ACK, 0, 0, &[], &data);
        let frame = Draft::new(TCP, LOCAL, peer, segment).frames([0; 6]).remove(0);
        Ok(frame[LINK_LEN..].to_vec())
    }
}

/// Exchanges octet 12, data offset and reserved bits, and keeps the checksum right (RFC 1624 §3: HC' = ~(~HC + ~m + m')).
fn set_octet(segment: &mut [u8], octet: u8) {
    let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let before = word(segment, 12);
    segment[12] = octet;
    let mut sum = u32::from(!word(segment, 16)) + u32::from(!before) + u32::from(word(segment, 12));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    segment[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

pub(super) fn wrong(place: &Place, what: &str) -> Failure {
    Failure::Unsupported(place.clone(), what.to_owned())
}

/// The ECN field's two bits.
pub(super) fn ecn_bits(ecn: Ecn) -> u8 {
    match ecn {
        Ecn::Not => 0,
        Ecn::Ect1 => 1,
        Ecn::Ect0 => 2,
        Ecn::Ce => 3,
    }
}

fn mark_draft(draft: &mut Draft, packet: &Packet, place: &Place) -> Result<()> {
    for (name, value) in &packet.marks {
        let text = value.as_deref().unwrap_or_default();
        let number = || text.parse::<i32>().map_err(|_| wrong(place, name));
        match name.as_str() {
            "ttl" => draft.ttl = number()? as u8,
            "tos" => draft.tos = number()? as u8,
            "id" => draft.id = number()? as u16,
            "protocol" => draft.protocol = number()? as u8,
            "fragment" => draft.fragment = Some(number()? as usize),
            "ip_checksum" => draft.checksum_error = 1,
            "version" => draft.version = Some(number()? as u8),
            "length" => draft.length_error = number()?,
            "padding" => draft.padding = number()? as usize,
            "df" => draft.dont_fragment = true,
            "ip_options" => {
                let bytes: std::result::Result<Vec<u8>, _> =
                    text.split_whitespace().map(str::parse).collect();
                draft.options = bytes.map_err(|_| wrong(place, name))?;
            }
            "checksum" | "no_checksum" | "from" | "to" | "order" | "link" | "cut" | "offset" | "reserved"
            | "bytes" => {}
            _ => return Err(wrong(place, name)),
        }
    }
    Ok(())
}

fn option_bytes(options: &Options, flow: &Flow) -> Vec<u8> {
    let Options::List(list) = options else { return Vec::new() };
    let mut bytes = Vec::new();
    for option in list {
        match option {
            TcpOption::End => bytes.push(0),
            TcpOption::Nop => bytes.push(1),
            TcpOption::Mss(mss) => {
                bytes.extend([2, 4]);
                bytes.extend(mss.unwrap_or(0).to_be_bytes());
            }
            TcpOption::WindowScale(shift) => bytes.extend([3, 3, shift.unwrap_or(0)]),
            TcpOption::SackPermitted => bytes.extend([4, 2]),
            TcpOption::Sack(blocks) => {
                bytes.extend([5, 2 + 8 * blocks.len() as u8]);
                for (left, right) in blocks {
                    bytes.extend(flow.local_live(*left).to_be_bytes());
                    bytes.extend(flow.local_live(*right).to_be_bytes());
                }
            }
            TcpOption::Timestamps(value, echo) => {
                let echo = echo.filter(|echo| *echo != 0).map_or(0, |echo| flow.echo_live(echo));
                bytes.extend([8, 10]);
                bytes.extend(value.unwrap_or(0).to_be_bytes());
                bytes.extend(echo.to_be_bytes());
            }
            TcpOption::Other(kind, content) => {
                bytes.extend([*kind, 2 + content.len() as u8]);
                bytes.extend(content);
            }
            TcpOption::Raw(content) => bytes.extend(content),
        }
    }
    while !bytes.len().is_multiple_of(4) {
        bytes.push(0);
    }
    bytes
}
