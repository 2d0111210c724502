//! The two stages that a cut-through path has beside the link stage at which packets come in.

use std::rc::Rc;

use scoutline_base::{Address, Time};
use scoutline_path::{Body, Burst, Checksum, Context, DropReason, Facts, Message, Segmentation, Stage};
use scoutline_wire::{checksum, ethernet};

use super::packet::Packet;
use super::refusal::{Refusal, Told, report};
use super::{cut, merge};
use crate::eth::{ANY_IP, EthStage};
use crate::{Interface, NextHop};

/// The network stage: decides whether a packet goes on, and changes what changes on each hop.
pub struct ForwardStage {
    from: Rc<Interface>,
    to: Rc<Interface>,
    /// The device that they leave by takes datagrams that have been put together.
    merges: bool,
    forwarded: u64,
    errors: u64,
}

impl ForwardStage {
    /// A stage for packets that come in at one interface and leave by another; `merges`: its device cuts super-segments of
    /// UDP itself.
    pub fn new(from: Rc<Interface>, to: Rc<Interface>, merges: bool) -> ForwardStage {
        ForwardStage { from, to, merges, forwarded: 0, errors: 0 }
    }

    /// RFC 1812 §5.2, RFC 8200 §3: a packet whose link header has been stripped goes to `onward`, in one piece or several.
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
        message.truncate(header.total_len);
        message.facts = Facts {
            device: self.to.device,
            arrival: message.facts.arrival,
            checksum: message.facts.checksum,
            segmentation: message.facts.segmentation,
            destination: Some(header.destination),
            tos: header.tos,
            ..Facts::default()
        };
        let Body::Block { block, range, .. } = &mut message.body else { return Ok(()) };
        let packet = &mut block[range.start as usize..range.end as usize];
        header.age(packet);
        // What is known to be right may be partial as it stands: whoever sends it completes it.
        message.facts.checksum = match message.facts.checksum {
            Checksum::Verified => header.make_partial(packet),
            Checksum::Unverified if self.merges && merge::is_fit(&header) && header.is_intact(packet) => {
                header.make_partial(packet)
            }
            _ => Checksum::Complete,
        };
        let Some(how) = message.facts.segmentation else {
            let mtu = self.mtu(header.destination);
            if packet.len() <= usize::from(mtu) {
                onward.push(message);
                return Ok(());
            }
            complete(packet, message.facts.checksum);
            let cut = cut::fragments(packet, mtu, &message.facts, onward);
            return cut.map_err(|reason| (message, reason.into()));
        };
        let headers = header.headers_len();
        let frame = ethernet::HEADER_LEN + headers + usize::from(how.size);
        let packets = context.segment_len as usize / frame;
        let has = packet.len().saturating_sub(headers).div_ceil(usize::from(how.size.max(1)));
        if has <= packets {
            message.facts.segmentation = Some(Segmentation { header_len: headers as u16, ..how });
            onward.push(message);
        } else if !cut::segments(packet, &header, how, packets, &message.facts, onward) {
            return Err((message, DropReason::Malformed.into()));
        }
        Ok(())
    }

    /// Everything that can be wrong with it, before anything is changed.
    fn examine(&self, message: &Message, now: Time) -> Result<Packet, Refusal> {
        let packet = Packet::parse(message.bytes())?;
        let Packet { source, destination, .. } = packet;
        // RFC 1812 §5.3.7: martian addresses.
        if source.is_unspecified() || !self.from.is_valid_source(source) || self.to.is_ours(source) {
            return Err(DropReason::Malformed.into());
        }
        // RFC 4291 §2.5.6: what is of one link stays there; RFC 4443 §3.1 says so.
        if destination.is_link_local() || self.to.is_ours(destination) {
            return Err(DropReason::NotForUs.into());
        }
        if source.is_link_local() {
            return Err(Refusal::told(DropReason::NotForUs, Told::OutOfScope));
        }
        // RFC 1812 §5.3.1, RFC 4443 §3.3.
        if packet.hops <= 1 {
            return Err(Refusal::told(DropReason::TtlExceeded, Told::HopsExceeded));
        }
        let next_hop = match self.to.route(destination) {
            Some(NextHop::Neighbour(next_hop)) => next_hop,
            Some(NextHop::Group(_)) => return Err(DropReason::NotForUs.into()),
            None => return Err(Refusal::told(DropReason::NoRoute, Told::NoRoute)),
        };
        if self.to.neighbours_of(next_hop).borrow().has_failed(next_hop, now) {
            return Err(Refusal::told(DropReason::NoNeighbour, Told::NoNeighbour));
        }
        let segmentation = message.facts.segmentation;
        let longest =
            segmentation.map_or(packet.total_len, |how| packet.headers_len() + usize::from(how.size));
        let mtu = self.mtu(destination);
        if longest > usize::from(mtu) && !(packet.divisible && segmentation.is_none()) {
            return Err(Refusal::told(DropReason::NeedsFragmentation, Told::TooLong(mtu)));
        }
        Ok(packet)
    }

    /// Bytes of a packet that the outgoing link carries, and the route.
    fn mtu(&self, destination: Address) -> u16 {
        // Routers there may ask for less IPv6 than the link could carry.
        self.to.mtu_of_way(destination)
    }
}

/// Makes a partial checksum whole: nobody can complete it who sends a piece.
fn complete(packet: &mut [u8], partial: Checksum) {
    let Checksum::Partial { start, offset } = partial else { return };
    let (start, at) = (usize::from(start), usize::from(start + offset));
    let sum = match checksum::finish(checksum::sum(&packet[start..])) {
        0 => 0xffff, // RFC 768
        sum => sum,
    };
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
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
                Err((message, Refusal(reason, told))) => {
                    context.account.on_drop(reason);
                    if let Some(told) = told
                        && report(&self.from, message.bytes(), told, turned, context)
                    {
                        self.errors += 1;
                    }
                }
            }
        }
        if self.merges && burst.len() > 1 {
            merge::merge(burst, ethernet::HEADER_LEN, context.segment_len as usize);
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
    /// A stage for packets of both versions of IP that leave by this interface.
    pub fn new(to: Rc<Interface>) -> OutStage {
        OutStage { eth: EthStage::new(to, ANY_IP as u16) }
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
