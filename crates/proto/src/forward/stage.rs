//! The two stages that a cut-through path has beside the link stage at which packets come in.

use std::rc::Rc;

use scoutline_base::Time;
use scoutline_path::{Body, Burst, Checksum, Context, DropReason, Facts, Head, Message, Stage};
use scoutline_ring::Block;
use scoutline_wire::{checksum, ethernet, icmp, ipv4};

use super::cut;
use crate::eth::EthStage;
use crate::ip4::Ip4Stage;
use crate::{Interface, NextHop};

/// The most that an error quotes of its cause, so that it never exceeds 576 bytes (RFC 1812 §4.3.2.3).
const MAX_QUOTE: usize = 576 - ipv4::MIN_HEADER_LEN - icmp::HEADER_LEN;

/// The network stage: decides whether a packet goes on, and changes what changes on each hop.
pub struct ForwardStage {
    from: Rc<Interface>,
    to: Rc<Interface>,
    forwarded: u64,
    errors: u64,
}

/// Why a packet does not go on, and what its sender is told: type, code, and the rest of the ICMP header.
struct Refusal(DropReason, Option<(u8, u8, [u8; 4])>);

impl From<DropReason> for Refusal {
    fn from(reason: DropReason) -> Refusal {
        Refusal(reason, None)
    }
}

impl Refusal {
    fn told(reason: DropReason, kind: u8, code: u8) -> Refusal {
        Refusal(reason, Some((kind, code, [0; 4])))
    }
}

impl ForwardStage {
    /// A stage for packets that come in at one interface and leave by another.
    pub fn new(from: Rc<Interface>, to: Rc<Interface>) -> ForwardStage {
        ForwardStage { from, to, forwarded: 0, errors: 0 }
    }

    /// RFC 1812 §5.2: a packet whose link header has been stripped goes to `onward`, in one piece or several.
    #[allow(clippy::result_large_err)] // what does not go on comes back, and nothing is allocated for that
    fn pass(
        &mut self,
        mut message: Message,
        onward: &mut Burst,
        context: &Context<'_>,
    ) -> Result<(), (Message, Refusal)> {
        let header = match self.examine(&message, context.now) {
            Ok(header) => header,
            Err(refusal) => return Err((message, refusal)),
        };
        message.truncate(usize::from(header.total_len));
        message.facts = Facts {
            device: self.to.device,
            arrival: message.facts.arrival,
            checksum: message.facts.checksum,
            segmentation: message.facts.segmentation,
            destination: Some(header.destination.into()),
            tos: header.tos,
            ..Facts::default()
        };
        let Body::Block { block, range } = &mut message.body else { return Ok(()) };
        let packet = &mut block[range.start as usize..range.end as usize];
        age(packet);
        let whole = !header.is_fragment();
        let transport = cut::transport(packet, &header).filter(|_| whole);
        // What is known to be right may be partial as it stands: whoever sends it completes it.
        message.facts.checksum = match (message.facts.checksum, transport) {
            (Checksum::Verified, Some((field, _))) if !has_no_checksum(packet, &header) => {
                cut::make_partial(packet, &header, field)
            }
            _ => Checksum::Complete,
        };
        let Some(how) = message.facts.segmentation else {
            if packet.len() <= usize::from(self.to.mtu.get()) {
                onward.push(message);
            } else {
                if let Checksum::Partial { start, offset } = message.facts.checksum {
                    // Nobody can complete it who sends a piece.
                    let (start, offset) = (usize::from(start), usize::from(offset));
                    let sum = match checksum::finish(checksum::sum(&packet[start..])) {
                        0 => 0xffff, // RFC 768
                        sum => sum,
                    };
                    packet[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
                }
                cut::fragments(packet, &header, self.to.mtu.get(), &message.facts, onward);
            }
            return Ok(());
        };
        let headers = usize::from(header.header_len) + transport.map_or(0, |(_, len)| len);
        let frame = ethernet::HEADER_LEN + headers + usize::from(how.size);
        let packets = context.segment_len as usize / frame;
        let has = packet.len().saturating_sub(headers).div_ceil(usize::from(how.size.max(1)));
        if has <= packets {
            message.facts.segmentation =
                Some(scoutline_path::Segmentation { header_len: headers as u16, ..how });
            onward.push(message);
        } else if !cut::segments(packet, &header, how, packets, &message.facts, onward) {
            return Err((message, DropReason::Malformed.into()));
        }
        Ok(())
    }

    /// Everything that can be wrong with it, before anything is changed.
    fn examine(&self, message: &Message, now: Time) -> Result<ipv4::Header, Refusal> {
        let packet = message.bytes();
        let header = ipv4::Header::parse(packet).map_err(crate::ip4::reason)?;
        if !ipv4::checksum_is_valid(&packet[..usize::from(header.header_len)]) {
            return Err(DropReason::BadChecksum.into());
        }
        // A fragment that ends behind the longest datagram.
        if usize::from(header.fragment_offset) + usize::from(header.total_len) > usize::from(u16::MAX) {
            return Err(DropReason::Malformed.into());
        }
        // RFC 1812 §5.3.7: martian addresses.
        let source = header.source;
        if source.is_unspecified()
            || !self.from.is_valid_source(source.into())
            || self.to.is_ours(source.into())
        {
            return Err(DropReason::Malformed.into());
        }
        if self.to.is_ours(header.destination.into()) {
            return Err(DropReason::NotForUs.into());
        }
        // RFC 1812 §5.3.1
        if header.ttl <= 1 {
            return Err(Refusal::told(DropReason::TtlExceeded, icmp::TIME_EXCEEDED, icmp::TTL_EXCEEDED));
        }
        let next_hop = match self.to.route(header.destination.into()) {
            Some(NextHop::Neighbour(next_hop)) => next_hop,
            Some(NextHop::Group(_)) => return Err(DropReason::NotForUs.into()),
            None => {
                return Err(Refusal::told(
                    DropReason::NoRoute,
                    icmp::UNREACHABLE,
                    icmp::unreachable::NETWORK,
                ));
            }
        };
        let failed = |next_hop| self.to.neighbours.borrow().has_failed(next_hop, now);
        if next_hop.as_v4().is_some_and(failed) {
            let host = icmp::unreachable::HOST;
            return Err(Refusal::told(DropReason::NoNeighbour, icmp::UNREACHABLE, host));
        }
        let mtu = self.to.mtu.get();
        let longest = match message.facts.segmentation {
            Some(how) => {
                let transport = cut::transport(packet, &header).map_or(0, |(_, len)| len);
                usize::from(header.header_len) + transport + usize::from(how.size)
            }
            None => usize::from(header.total_len),
        };
        let divisible = !header.dont_fragment
            && message.facts.segmentation.is_none()
            && usize::from(header.header_len) == ipv4::MIN_HEADER_LEN;
        if longest > usize::from(mtu) && !divisible {
            // RFC 1191 §4: with the MTU of the next hop.
            let [high, low] = mtu.to_be_bytes();
            let error = (icmp::UNREACHABLE, icmp::unreachable::FRAGMENTATION_NEEDED, [0, 0, high, low]);
            return Err(Refusal(DropReason::NeedsFragmentation, Some(error)));
        }
        Ok(header)
    }

    /// Tells the sender, where that is allowed (RFC 1812 §4.3.2.7), at a limited rate (§4.3.2.8).
    fn report(
        &mut self,
        message: &Message,
        (kind, code, rest): (u8, u8, [u8; 4]),
        turned: &mut Burst,
        context: &mut Context<'_>,
    ) {
        let packet = message.bytes();
        let Ok(header) = ipv4::Header::parse(packet) else { return };
        let payload = &packet[usize::from(header.header_len)..];
        let about_error = header.protocol == ipv4::PROTOCOL_ICMP
            && !matches!(payload.first(), Some(&(icmp::ECHO_REQUEST | icmp::ECHO_REPLY)));
        if about_error || header.fragment_offset != 0 {
            return;
        }
        if !self.from.icmp_errors.borrow_mut().take(context.now) {
            return context.account.on_drop(DropReason::RateLimited);
        }
        let quote = &packet[..usize::from(header.total_len).min(packet.len()).min(MAX_QUOTE)];
        let mut bytes = vec![0; icmp::HEADER_LEN + quote.len()];
        bytes[icmp::HEADER_LEN..].copy_from_slice(quote);
        icmp::Header { kind, code, rest }.emit(&mut bytes);
        let len = bytes.len() as u32;
        let facts = Facts { device: self.from.device, checksum: Checksum::Complete, ..Facts::default() };
        let body = Body::Block { block: Block::from_bytes(bytes.into_boxed_slice()), range: 0..len };
        let mut message = Message { head: Head::default(), body, facts };
        let mut ip4 = Ip4Stage::new(Rc::clone(&self.from), ipv4::PROTOCOL_ICMP, None, Some(header.source));
        if ip4.outward_one(&mut message, context) {
            self.errors += 1;
            turned.push(message);
        }
    }
}

/// RFC 1812 §5.3.1, RFC 1624: one hop less, and the header's checksum with it.
fn age(packet: &mut [u8]) {
    let word = |packet: &[u8], at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let old = word(packet, 8);
    packet[8] -= 1;
    let sum = checksum::update(word(packet, 10), old, word(packet, 8));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// RFC 768: a datagram whose sender made no checksum.
fn has_no_checksum(packet: &[u8], header: &ipv4::Header) -> bool {
    let at = usize::from(header.header_len) + scoutline_wire::udp::CHECKSUM_OFFSET;
    header.protocol == ipv4::PROTOCOL_UDP && packet.get(at..at + 2) == Some(&[0, 0])
}

impl Stage for ForwardStage {
    fn module(&self) -> &'static str {
        "FORWARD"
    }

    fn inward(&mut self, burst: &mut Burst, turned: &mut Burst, context: &mut Context<'_>) {
        let mut came = std::mem::take(burst);
        for message in came.drain(..) {
            if !matches!(message.body, Body::Block { .. }) {
                continue;
            }
            match self.pass(message, burst, context) {
                Ok(()) => self.forwarded += 1,
                Err((message, Refusal(reason, error))) => {
                    context.account.on_drop(reason);
                    if let Some(error) = error {
                        self.report(&message, error, turned, context);
                    }
                }
            }
        }
    }

    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        facts.push(("forwarded", self.forwarded.to_string()));
        facts.push(("icmp-errors", self.errors.to_string()));
    }

    any_stage!();
}

/// The link stage at the other device: what goes inward here leaves.
pub struct OutStage {
    eth: EthStage,
}

impl OutStage {
    /// A stage for IPv4 packets that leave by this interface.
    pub fn new(to: Rc<Interface>) -> OutStage {
        OutStage { eth: EthStage::new(to, ethernet::TYPE_IPV4) }
    }
}

impl Stage for OutStage {
    fn module(&self) -> &'static str {
        "ETH"
    }

    fn inward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        for mut message in burst.drain(..) {
            if self.eth.outward_one(&mut message, context) {
                context.out.push(message);
            }
        }
    }

    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}

    fn next_timeout(&self) -> Option<Time> {
        self.eth.next_timeout()
    }

    fn on_timeout(&mut self, inward: &mut Burst, outward: &mut Burst, context: &mut Context<'_>) {
        self.eth.on_timeout(inward, outward, context);
    }

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        self.eth.describe(facts);
    }

    any_stage!();
}
