//! Packets that do not go on, and what their senders are told (RFC 1812 §4.3, RFC 4443).

use std::rc::Rc;

use scoutline_path::{Body, Burst, Checksum, Context, DropReason, Facts, Head, Message, Stage};
use scoutline_ring::Block;
use scoutline_wire::{icmp, icmpv6, ipv4, ipv6};

use crate::Interface;
use crate::icmp6::error_message;
use crate::ip4::Ip4Stage;
use crate::ip6::Ip6Stage;

/// The most that an error quotes of its cause, so that it never exceeds 576 bytes (RFC 1812 §4.3.2.3). ICMPv6 has its own
/// limit.
const MAX_QUOTE: usize = 576 - ipv4::MIN_HEADER_LEN - icmp::HEADER_LEN;

/// Why a packet does not go on, and what its sender is told of that.
pub(super) struct Refusal(pub(super) DropReason, pub(super) Option<Told>);

impl From<DropReason> for Refusal {
    fn from(reason: DropReason) -> Refusal {
        Refusal(reason, None)
    }
}

/// What a sender can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Its packet has come too far.
    HopsExceeded,
    /// There is no way to the destination.
    NoRoute,
    /// The destination's neighbour does not answer.
    NoNeighbour,
    /// The source means nothing where the packet would go.
    OutOfScope,
    /// The next link carries no more bytes than this.
    TooLong(u16),
}

impl Refusal {
    /// Drops a packet for this reason and tells its sender so.
    pub(super) fn told(reason: DropReason, told: Told) -> Refusal {
        Refusal(reason, Some(told))
    }
}

impl Told {
    /// Type, code, and the rest of the header in ICMP.
    fn icmp4(self) -> (u8, u8, [u8; 4]) {
        let unreachable = |code| (icmp::UNREACHABLE, code, [0; 4]);
        match self {
            Told::HopsExceeded => (icmp::TIME_EXCEEDED, icmp::TTL_EXCEEDED, [0; 4]),
            Told::NoRoute | Told::OutOfScope => unreachable(icmp::unreachable::NETWORK),
            Told::NoNeighbour => unreachable(icmp::unreachable::HOST),
            // RFC 1191 §4: with the MTU of the next hop.
            Told::TooLong(mtu) => {
                let [high, low] = mtu.to_be_bytes();
                (icmp::UNREACHABLE, icmp::unreachable::FRAGMENTATION_NEEDED, [0, 0, high, low])
            }
        }
    }

    /// The same in ICMPv6 (RFC 4443 §3.1 to §3.3).
    fn icmp6(self) -> (u8, u8, [u8; 4]) {
        let unreachable = |code| (icmpv6::UNREACHABLE, code, [0; 4]);
        match self {
            Told::HopsExceeded => (icmpv6::TIME_EXCEEDED, icmpv6::HOP_LIMIT_EXCEEDED, [0; 4]),
            Told::NoRoute => unreachable(icmpv6::unreachable::NO_ROUTE),
            Told::NoNeighbour => unreachable(icmpv6::unreachable::ADDRESS),
            Told::OutOfScope => unreachable(icmpv6::unreachable::SCOPE),
            Told::TooLong(mtu) => (icmpv6::PACKET_TOO_BIG, 0, u32::from(mtu).to_be_bytes()),
        }
    }
}

/// Tells the sender of a packet that came in at `from`, where that is allowed, at a limited rate. True when it is told.
pub(super) fn report(
    from: &Rc<Interface>,
    packet: &[u8],
    told: Told,
    turned: &mut Burst,
    context: &mut Context<'_>,
) -> bool {
    let mut errors = Burst::new();
    if packet.first().is_some_and(|first| first >> 4 == 6) {
        let Ok(header) = ipv6::Header::parse(packet) else { return false };
        let packet = &packet[..header.total_len()];
        errors.extend(error_message(from, &header, packet, told.icmp6(), context));
        let mut ip6 = Ip6Stage::new(Rc::clone(from), ipv6::PROTOCOL_ICMPV6, None, None);
        ip6.outward(&mut errors, turned, context);
    } else if let Some((error, sender)) = error4(from, packet, told.icmp4(), context) {
        errors.push(error);
        let mut ip4 = Ip4Stage::new(Rc::clone(from), ipv4::PROTOCOL_ICMP, None, Some(sender));
        ip4.outward(&mut errors, turned, context);
    }
    let is_told = !errors.is_empty();
    turned.append(&mut errors);
    is_told
}

/// The ICMP message, and to whom; `None` where none may be sent (RFC 1812 §4.3.2.7), or not so many (§4.3.2.8).
fn error4(
    from: &Interface,
    packet: &[u8],
    (kind, code, rest): (u8, u8, [u8; 4]),
    context: &mut Context<'_>,
) -> Option<(Message, std::net::Ipv4Addr)> {
    let header = ipv4::Header::parse(packet).ok()?;
    let payload = &packet[usize::from(header.header_len)..];
    let about_error = header.protocol == ipv4::PROTOCOL_ICMP
        && !matches!(payload.first(), Some(&(icmp::ECHO_REQUEST | icmp::ECHO_REPLY)));
    if about_error || header.fragment_offset != 0 {
        return None;
    }
    if !from.icmp_errors.borrow_mut().take(context.now) {
        context.account.on_drop(DropReason::RateLimited);
        return None;
    }
    let quote = &packet[..usize::from(header.total_len).min(packet.len()).min(MAX_QUOTE)];
    let mut bytes = vec![0; icmp::HEADER_LEN + quote.len()];
    bytes[icmp::HEADER_LEN..].copy_from_slice(quote);
    icmp::Header { kind, code, rest }.emit(&mut bytes);
    let len = bytes.len() as u32;
    let facts = Facts { device: from.device, checksum: Checksum::Complete, ..Facts::default() };
    let body = Body::block(Block::from_bytes(bytes.into_boxed_slice()), 0..len);
    Some((Message { head: Head::default(), body, facts }, header.source))
}
