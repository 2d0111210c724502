//! Packets that must leave.

use crate::packet::{Content, LOCAL, Seen, SeenTcp, pattern_at};
use crate::script::{Arp, Body, Icmp, Packet, Place, Tcp, flag};

use super::arrive::ecn_bits;
use super::flow::Flow;
use super::options::{compare_options, option_text};
use super::six::{self, compare_six};
use super::{Failure, Left, Manner, Result, Runner, time};

/// Nothing is waited for longer than this, in microseconds.
const LONGEST: i64 = 600_000_000;

/// What is different, or nothing.
pub(super) type Compared = std::result::Result<(), String>;

impl Runner<'_> {
    /// Waits for the next packet that leaves, and compares. Gives the time at which it left.
    pub(super) fn expect(
        &mut self,
        packet: &Packet,
        earliest: i64,
        latest: i64,
        place: &Place,
    ) -> Result<i64> {
        let differs = |text| Err(Failure::Differs(place.clone(), text));
        let tolerance = if latest == i64::MAX { 0 } else { self.tolerance(latest) };
        let deadline = latest.saturating_add(tolerance).min(self.stack.now().max(self.last) + LONGEST);
        let Some(left) = self.next_left(deadline, place)? else {
            return differs(format!("nothing has left by {}", time(self.stack.now())));
        };
        let at = left.at;
        if at < earliest.saturating_sub(tolerance) || at > latest.saturating_add(tolerance) {
            let text = self.describe(&left.seen);
            return differs(format!("at {}, not at {}, left {text}", time(at), time(earliest.max(0))));
        }
        let compared = match (&packet.body, &left.seen.content) {
            (Body::Tcp(tcp), Content::Tcp(_)) => self.compare_segments(tcp, packet, left, deadline, place)?,
            (Body::Udp(len), Content::Udp(ports, payload)) => {
                self.compare_datagram(*len, packet, *ports, payload).and_then(|()| header(packet, &left.seen))
            }
            (Body::Icmp(icmp), Content::Icmp(kind, code, rest, payload)) => self
                .compare_icmp(icmp, (*kind, *code), *rest, payload)
                .and_then(|()| header(packet, &left.seen)),
            (Body::Arp(arp), Content::Arp(request, _)) => {
                let (sender, target) = (left.seen.source, left.seen.destination);
                if (Arp { request: *request, sender, target }) == *arp {
                    Ok(())
                } else {
                    Err(self.describe(&left.seen))
                }
            }
            (Body::Igmp(bytes), Content::Igmp(message)) => {
                compare_bytes(bytes, message).and_then(|()| header(packet, &left.seen))
            }
            (Body::Ip6(ip6), Content::Six(six)) => compare_six(ip6, packet, six, left.seen.link_destination),
            _ => Err(self.describe(&left.seen)),
        };
        compared.map_or_else(|text| differs(format!("at {} left {text}", time(at))), |()| Ok(at))
    }

    fn next_left(&mut self, deadline: i64, place: &Place) -> Result<Option<Left>> {
        loop {
            self.collect(place)?;
            if let Some(left) = self.left.pop_front() {
                self.went.clone_from(&left.seen.bytes);
                return Ok(Some(left));
            }
            if self.stack.now() >= deadline {
                return Ok(None);
            }
            self.stack.advance(deadline);
        }
    }

    /// Compares a segment, or several that together are the one that the script names: where the cuts fall between
    /// full segments that leave together is the device's matter.
    fn compare_segments(
        &mut self,
        expected: &Tcp,
        packet: &Packet,
        first: Left,
        deadline: i64,
        place: &Place,
    ) -> Result<Compared> {
        let mut rest = expected.clone();
        let mut left = first;
        loop {
            let Content::Tcp(seen) = &left.seen.content else { return Ok(Err(self.describe(&left.seen))) };
            let len = seen.payload.len() as u32;
            let part = len > 0 && len < rest.len;
            if part && packet.mark("whole").is_some() {
                return Ok(Err(format!("{} (in pieces)", self.describe(&left.seen))));
            }
            let mut piece = rest.clone();
            if part {
                piece.len = len;
                piece.flags &= !(flag::PSH | flag::FIN);
            }
            let compared = self.compare_segment(&piece, packet, &left.seen, seen);
            if let Err(what) = compared.and_then(|()| header(packet, &left.seen)) {
                return Ok(Err(format!("{} ({what})", self.describe(&left.seen))));
            }
            if !part {
                return Ok(Ok(()));
            }
            rest.sequence = rest.sequence.wrapping_add(len);
            rest.len -= len;
            match self.next_left(deadline, place)? {
                Some(next) => left = next,
                None => return Ok(Err(format!("only up to {}", rest.sequence))),
            }
        }
    }

    fn compare_segment(&mut self, expected: &Tcp, packet: &Packet, whole: &Seen, seen: &SeenTcp) -> Compared {
        let (local, remote) = self.ports_of(packet, false);
        if seen.ports.1 != remote || local.is_some_and(|local| local != seen.ports.0) {
            return Err(format!("of another connection, {}>{}", seen.ports.0, seen.ports.1));
        }
        if local.is_none() {
            self.ports.0 = Some(seen.ports.0);
        }
        if packet.mark("to").is_none() && (whole.source, whole.destination) != (LOCAL, self.remote) {
            return Err(format!("from {} to {}", whole.source, whole.destination));
        }
        // What a moment may be off, a timestamp may be off, too.
        let ticks = (self.stack.tolerance(self.stack.now()) / 1000) as i32 + 1;
        let ticks = (self.manner == Manner::Strict).then_some(ticks);
        let unchecked = self.data_unchecked;
        let flow = self.flow(seen.ports);
        if seen.flags & flag::SYN != 0 && expected.flags & flag::SYN != 0 {
            flow.local_offset = Some(seen.sequence.wrapping_sub(expected.sequence));
            flow.local_base = expected.sequence;
            flow.remote_base = flow.syn_came.filter(|_| seen.flags & flag::ACK != 0);
        }
        let sequence = flow.local_script(seen.sequence);
        if sequence != expected.sequence {
            return Err(format!("not at {}", expected.sequence));
        }
        if seen.payload.len() != expected.len as usize {
            return Err(format!("not {} bytes", expected.len));
        }
        compare_flags(expected.flags, seen.flags)?;
        if let Some(number) = expected.acknowledgment
            && flow.remote_script(seen.acknowledgment) != number
        {
            return Err(format!("not ack {number}"));
        }
        if let Some(window) = expected.window.filter(|window| *window != seen.window) {
            return Err(format!("not win {window}"));
        }
        if let Some(urgent) = expected.urgent.filter(|urgent| *urgent != seen.urgent) {
            return Err(format!("not urg {urgent}"));
        }
        compare_options(&expected.options, seen, flow, ticks)?;
        let position = flow.local_position(sequence);
        let is_syn = seen.flags & flag::SYN != 0;
        if !unchecked && !is_syn && seen.payload != pattern_at(true, position, seen.payload.len()) {
            return Err("its data are not those of the program".into());
        }
        Ok(())
    }

    fn compare_datagram(&mut self, len: u32, packet: &Packet, ports: (u16, u16), payload: &[u8]) -> Compared {
        let (local, remote) = self.ports_of(packet, false);
        if ports.1 != remote || local.is_some_and(|local| local != ports.0) {
            return Err(format!("a datagram {}>{}, not to {remote}", ports.0, ports.1));
        }
        if local.is_none() {
            self.ports.0 = Some(ports.0);
        }
        if payload.len() != len as usize {
            return Err(format!("udp ({}), not ({len})", payload.len()));
        }
        if !self.data_unchecked && payload != pattern_at(true, 0, payload.len()) {
            return Err("a datagram whose data are not those of the program".into());
        }
        Ok(())
    }

    fn compare_icmp(&self, expected: &Icmp, seen: (u8, u8), rest: [u8; 4], payload: &[u8]) -> Compared {
        match *expected {
            Icmp::Error { kind, code, .. } => {
                if seen != (kind, code) {
                    return Err(format!("icmp type {} code {}", seen.0, seen.1));
                }
                // RFC 1122 §3.2.2: the IP header and at least eight bytes of what caused it.
                let header_len = usize::from(self.came.first().copied().unwrap_or(0) & 15) * 4;
                if payload.len() < header_len + 8 || !self.came.starts_with(&payload[..header_len + 8]) {
                    return Err("an ICMP error that does not quote what came".into());
                }
            }
            Icmp::Echo(request, id, sequence, len) => {
                let wanted = (if request { 8 } else { 0 }, 0);
                let numbers = u32::from(id) << 16 | u32::from(sequence);
                if seen != wanted || u32::from_be_bytes(rest) != numbers {
                    return Err(format!("icmp type {} with {rest:x?}", seen.0));
                }
                if payload != pattern_at(false, 0, len as usize) {
                    return Err(format!("an echo of {} bytes, or of other ones", payload.len()));
                }
            }
        }
        Ok(())
    }

    /// A packet in the script's words.
    pub(super) fn describe(&self, seen: &Seen) -> String {
        match &seen.content {
            Content::Tcp(tcp) => {
                let unknown = Flow::new(self.seed, tcp.ports);
                let flow = self.flows.get(&tcp.ports).unwrap_or(&unknown);
                let sequence = flow.local_script(tcp.sequence);
                let len = tcp.payload.len() as u32;
                let mut words = vec![flag_letters(tcp.flags)];
                words.push(format!("{sequence}:{}({len})", sequence.wrapping_add(len)));
                if tcp.flags & flag::ACK != 0 {
                    words.push(format!("ack {}", flow.remote_script(tcp.acknowledgment)));
                }
                words.push(format!("win {}", tcp.window));
                if tcp.flags & flag::URG != 0 {
                    words.push(format!("urg {}", tcp.urgent));
                }
                if !tcp.options.is_empty() {
                    words.push(format!("<{}>", option_text(&tcp.options, flow)));
                }
                if self.ports != (Some(tcp.ports.0), tcp.ports.1) {
                    words.insert(0, format!("{}>{}", tcp.ports.0, tcp.ports.1));
                }
                words.join(" ")
            }
            Content::Udp(ports, payload) => format!("{}>{} udp ({})", ports.0, ports.1, payload.len()),
            Content::Icmp(kind, code, ..) => format!("icmp type {kind} code {code}"),
            Content::Arp(request, _) => {
                let kind = if *request { "request" } else { "reply" };
                format!("arp {kind} from {} for {}", seen.source, seen.destination)
            }
            Content::Igmp(message) => {
                let bytes: Vec<String> = message.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("igmp [ {} ] to {}", bytes.join(" "), seen.destination)
            }
            Content::Six(six) => six::text(six),
            Content::Other => "something else".into(),
        }
    }
}

fn compare_flags(expected: u8, seen: u8) -> Compared {
    // PSH where the script does not name it is the sender's choice (RFC 9293 §3.9.1.2).
    let ignored = if expected & flag::PSH == 0 { flag::PSH } else { 0 };
    if (expected ^ seen) & !ignored == 0 {
        Ok(())
    } else {
        Err(format!("not flags {}", flag_letters(expected)))
    }
}

/// What the IP header must say, by the packet's marks.
fn header(packet: &Packet, seen: &Seen) -> Compared {
    if let Some(ecn) = packet.ecn
        && seen.tos & 3 != ecn_bits(ecn)
    {
        return Err(format!("ECN field {}", seen.tos & 3));
    }
    for (name, value) in &packet.marks {
        let wanted = value.as_deref().unwrap_or_default();
        let found = match name.as_str() {
            "ttl" => seen.ttl.to_string(),
            "tos" => seen.tos.to_string(),
            "fragments" => seen.fragments.to_string(),
            "to" => seen.destination.to_string(),
            "ip_options" => {
                let bytes: Vec<String> = seen.options.iter().map(u8::to_string).collect();
                bytes.join(" ")
            }
            "df" => (if seen.dont_fragment { "" } else { "not set" }).to_owned(),
            "no_df" => (if seen.dont_fragment { "set" } else { "" }).to_owned(),
            "win" => match &seen.content {
                Content::Tcp(tcp) if is_within(tcp.window, wanted) => wanted.to_owned(),
                Content::Tcp(tcp) => tcp.window.to_string(),
                _ => continue,
            },
            "whole" => continue, // see `compare_segments`
            other => format!("is no mark that {other}"),
        };
        if found != wanted {
            return Err(format!("{name} {found}, not {wanted}"));
        }
    }
    Ok(())
}

/// Whether a message has these bytes; `None`: any.
fn compare_bytes(expected: &[Option<u8>], seen: &[u8]) -> Compared {
    let equal = |(wanted, found): (&Option<u8>, &u8)| wanted.is_none_or(|wanted| wanted == *found);
    if expected.len() == seen.len() && expected.iter().zip(seen).all(equal) {
        return Ok(());
    }
    Err(format!("igmp {seen:02x?}"))
}

/// Whether a window lies in `least-most`.
fn is_within(window: u16, range: &str) -> bool {
    let (least, most) = range.split_once('-').unwrap_or((range, range));
    least.trim().parse::<u16>().is_ok_and(|least| window >= least)
        && most.trim().parse::<u16>().is_ok_and(|most| window <= most)
}

fn flag_letters(flags: u8) -> String {
    let letters = [
        (flag::FIN, 'F'),
        (flag::SYN, 'S'),
        (flag::RST, 'R'),
        (flag::PSH, 'P'),
        (flag::ACK, '.'),
        (flag::URG, 'U'),
        (flag::ECE, 'E'),
        (flag::CWR, 'W'),
    ];
    let text: String = letters.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, letter)| letter).collect();
    if text.is_empty() { "-".into() } else { text }
}
