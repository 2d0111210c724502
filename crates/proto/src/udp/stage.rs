//! The UDP stage of one path, connected or not.

use std::rc::Rc;

use scoutline_base::{Address, Endpoint};
use scoutline_path::{
    Body, Burst, Checksum, Context, Control, DropReason, Effect, Facts, Message, Reach, Stage,
};
use scoutline_ring::Block;
use scoutline_wire::{checksum, ipv4, ipv6, udp};

use crate::Interface;

/// The most data of one datagram over IPv4: 65,535 less the headers of IP and UDP. Above it a send is EMSGSIZE.
pub const MAX_PAYLOAD: usize = 65_535 - ipv4::MIN_HEADER_LEN - udp::HEADER_LEN;
/// The same over IPv6, whose length does not count its header.
pub const MAX_PAYLOAD6: usize = 65_535 - udp::HEADER_LEN;

/// The UDP stage.
///
/// Inward a datagram's body becomes its payload; `facts.source`, `facts.destination` and `facts.ports` say between
/// whom. Outward the payload goes to `facts.destination` and the second of `facts.ports`, or without them to the path's
/// remote; from `facts.source`, if that is given and ours. ICMP errors (`Control::Told`) go up as they are.
/// `Control::Close` is answered by `Control::Closed`.
pub struct UdpStage {
    interface: Rc<Interface>,
    local: Endpoint,
    remote: Option<Endpoint>,
}

impl UdpStage {
    /// A stage for datagrams from `local` (from an unspecified address: whichever fits the peer), and to and from `remote` alone when it is connected.
    pub fn new(interface: Rc<Interface>, local: Endpoint, remote: Option<Endpoint>) -> UdpStage {
        UdpStage { interface, local, remote }
    }

    fn inward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool {
        match &mut message.body {
            Body::Block { .. } => {}
            // RFC 1122 §4.1.3.3: ICMP errors go up to the program, which says whether it wants them.
            _ => return true,
        }
        match self.take(message) {
            Ok(()) => true,
            Err(reason) => {
                context.account.on_drop(reason);
                false
            }
        }
    }

    fn take(&self, message: &mut Message) -> Result<(), DropReason> {
        let header = udp::Header::parse(message.bytes()).map_err(reason)?;
        let Some(source) = message.facts.source else { return Err(DropReason::Malformed) };
        // A connected path takes its peer's datagrams alone, also when it was found by its port.
        let expected = Endpoint::new(source, header.source_port);
        if self.remote.is_some_and(|remote| remote != expected) {
            return Err(DropReason::NotForUs);
        }
        // The link's padding and what IP carries beyond the datagram do not belong to it.
        message.truncate(usize::from(header.len));
        // RFC 1122 §4.1.3.4: discarded in silence.
        if !checksum_fits(&self.interface, &message.facts, header, message.bytes()) {
            return Err(DropReason::BadChecksum);
        }
        message.advance(udp::HEADER_LEN);
        message.facts.ports = Some((header.source_port, header.destination_port));
        message.facts.stream_position = 0;
        Ok(())
    }

    fn outward_one(&mut self, message: &mut Message, turned: &mut Burst, context: &mut Context<'_>) -> bool {
        if let Body::Control(control) = &message.body {
            if matches!(control, Control::Close | Control::Abort) {
                turned.push(Message::control(Control::Closed));
            }
            return false;
        }
        match self.give(message, context) {
            Ok(leaves) => leaves,
            Err(reason) => {
                context.account.on_drop(reason);
                false
            }
        }
    }

    /// Makes a datagram; false when it stays on this machine.
    fn give(&self, message: &mut Message, context: &mut Context<'_>) -> Result<bool, DropReason> {
        let len = message.body_len();
        // A connected socket may still send to somebody else (RFC 1122 §4.1.4, connect(2)).
        let remote = match (message.facts.destination, message.facts.ports) {
            (Some(address), Some((_, port))) => Endpoint::new(address, port),
            _ => self.remote.ok_or(DropReason::NoRoute)?,
        };
        let (most, ip_len) = if remote.address.is_v4() {
            (MAX_PAYLOAD, ipv4::MIN_HEADER_LEN)
        } else {
            (MAX_PAYLOAD6, ipv6::HEADER_LEN)
        };
        if len > most {
            return Err(DropReason::Malformed);
        }
        let source = self.source(message, remote.address).ok_or(DropReason::NoRoute)?;
        if remote.address.is_multicast() || self.interface.is_everybody(remote.address) {
            self.loop_back(message, (source, remote), context);
            if message.facts.reach == Reach::Machine {
                return Ok(false);
            }
        }
        let len = len + udp::HEADER_LEN;
        let header = udp::Header {
            source_port: self.local.port,
            destination_port: remote.port,
            len: len as u16,
            checksum: 0,
        };
        message.facts.source = Some(source);
        message.facts.destination = Some(remote.address);
        let pseudo = checksum::pseudo_header(source, remote.address, ipv4::PROTOCOL_UDP, len);
        // Fragments cannot be completed by a device: the sum runs over all of them.
        let told = self.interface.told_mtu(remote.address, context.now);
        let mtu = self.interface.mtu_as_told(remote.address, told);
        message.facts.divisible |= told.is_some_and(|told| told.divisible);
        let fragmented = len + ip_len > usize::from(mtu);
        if message
            .facts
            .segmentation
            .is_some_and(|how| usize::from(how.size) + udp::HEADER_LEN + ip_len > usize::from(mtu))
        {
            return Err(DropReason::Malformed);
        }
        let leave =
            self.interface.offload.get().checksum && (!fragmented || message.facts.segmentation.is_some());
        let body_sum = if leave { 0 } else { checksum::sum(message.bytes()) };
        let out = message.head.prepend(udp::HEADER_LEN);
        header.emit(out);
        let sum = if leave {
            pseudo
        } else {
            let sum = checksum::add(pseudo, checksum::combine(checksum::sum(out), out.len(), body_sum));
            // RFC 768: a checksum of zero is sent as all ones.
            Some(checksum::finish(sum)).filter(|&sum| sum != 0).unwrap_or(0xffff)
        };
        out[udp::CHECKSUM_OFFSET..].copy_from_slice(&sum.to_be_bytes());
        message.facts.checksum = if leave {
            Checksum::Partial { start: 0, offset: udp::CHECKSUM_OFFSET as u16 }
        } else {
            Checksum::Complete
        };
        if let Some(segmentation) = &mut message.facts.segmentation {
            segmentation.header_len = udp::HEADER_LEN as u16;
        }
        Ok(true)
    }
}

impl UdpStage {
    /// The address that a datagram comes from: what its program said, if that is ours; what its socket is bound to; else
    /// what fits the destination.
    fn source(&self, message: &Message, remote: Address) -> Option<Address> {
        if let Some(said) = message.facts.source {
            return Some(said).filter(|said| self.interface.is_ours(*said) && said.is_v4() == remote.is_v4());
        }
        let bound = Some(self.local.address).filter(|local| !local.is_unspecified() && !is_group(*local));
        bound.or_else(|| self.interface.source_for(remote))
    }
}

impl UdpStage {
    /// RFC 1112 §7.1, RFC 1122 §3.3.6: sockets of this machine get what goes to their groups, and to everybody, too. Only the
    /// former can be done without (`ip_mc_output`).
    fn loop_back(&self, message: &Message, (source, to): (Address, Endpoint), context: &mut Context<'_>) {
        let is_unwanted = message.facts.reach == Reach::Link && to.address.is_multicast();
        if is_unwanted || !self.interface.accepts(to.address) {
            return;
        }
        let bytes = message.bytes();
        let body = Body::block(Block::from_bytes(bytes.into()), 0..bytes.len() as u32);
        let facts = Facts {
            device: self.interface.device,
            arrival: context.now,
            source: Some(source),
            destination: Some(to.address),
            ports: Some((self.local.port, to.port)),
            hop_limit: if message.facts.hop_limit == 0 { 1 } else { message.facts.hop_limit },
            ..message.facts.clone()
        };
        context.effects.push(Effect::Loop(Message { body, facts, ..Message::default() }));
    }
}

/// True for addresses that a socket may be bound to and cannot send from (RFC 1122 §3.2.1.3).
fn is_group(address: Address) -> bool {
    address.is_multicast() || address == Address::from_v4(std::net::Ipv4Addr::BROADCAST)
}

impl Stage for UdpStage {
    fn module(&self) -> &'static str {
        "UDP"
    }

    fn inward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        burst.retain_mut(|message| self.inward_one(message, context));
    }

    fn outward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        burst.retain_mut(|message| self.outward_one(message, turned, context));
    }

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        facts.push(("local", self.local.to_string()));
        if let Some(remote) = self.remote {
            facts.push(("remote", remote.to_string()));
        }
    }

    any_stage!();
}

/// True when the transport checksum needs no verification: the device did it, or the sender is this machine and
/// left it partial.
#[inline]
pub(crate) fn checksum_vouched(interface: &Interface, facts: &Facts) -> bool {
    match facts.checksum {
        Checksum::Verified => true,
        Checksum::Partial { .. } => interface.trusted_checksums.get(),
        Checksum::Unverified | Checksum::Complete => false,
    }
}

/// Whether a datagram's checksum is right, or vouched for. `bytes` are all of it and nothing else.
#[inline]
fn checksum_fits(interface: &Interface, facts: &Facts, header: udp::Header, bytes: &[u8]) -> bool {
    let (Some(source), Some(destination)) = (facts.source, facts.destination) else { return false };
    // RFC 768: 0 means that the sender made none; over IPv6 each must have one (RFC 8200 §8.1).
    if header.checksum == 0 && source.is_v4() || checksum_vouched(interface, facts) {
        return true;
    }
    let pseudo = checksum::pseudo_header(source, destination, ipv4::PROTOCOL_UDP, bytes.len());
    checksum::is_valid(checksum::add(pseudo, checksum::sum(bytes)))
}

/// Whether a packet's bytes begin with a datagram that is as it was sent.
pub(crate) fn is_intact(interface: &Interface, facts: &Facts, bytes: &[u8]) -> bool {
    let Ok(header) = udp::Header::parse(bytes) else { return false };
    let datagram = bytes.get(..usize::from(header.len));
    datagram.is_some_and(|datagram| checksum_fits(interface, facts, header, datagram))
}

/// The reason for a header that does not parse.
pub(crate) fn reason(error: udp::ParseError) -> DropReason {
    match error {
        udp::ParseError::Truncated { .. } => DropReason::Truncated,
        _ => DropReason::Malformed,
    }
}
