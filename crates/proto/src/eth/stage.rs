//! The link stage: strips the header inward, finds the neighbour and prepends it outward.

use std::rc::Rc;

use scoutline_base::{Address, Time};
use scoutline_path::{Body, Burst, Context, DropReason, Message, Stage};
use scoutline_wire::ethernet;

use super::encapsulate;
use crate::neighbour::{self, Resolved};
use crate::{Interface, NextHop};

/// The link stage of one path.
///
/// Inward it sets `facts.link_source`. Outward a message goes to the neighbour on the way to
/// `facts.destination`; one without (ARP's) goes to the link address in `facts.link_source`.
pub struct EthStage {
    interface: Rc<Interface>,
    ethertype: u16,
    /// The neighbour found last, for paths that speak with one peer.
    recent: Option<Recent>,
    /// A message of this path waits for its neighbour, so this path drives the cache's timers.
    waits: bool,
}

#[derive(Clone, Copy, Debug)]
struct Recent {
    destination: Address,
    link: ethernet::Address,
    until: Time,
    generation: u32,
}

impl EthStage {
    /// A stage whose frames carry `ethertype`; 0: either version of IP.
    pub fn new(interface: Rc<Interface>, ethertype: u16) -> EthStage {
        EthStage { interface, ethertype, recent: None, waits: false }
    }

    /// One message inward: true when it goes on.
    #[inline]
    pub(crate) fn inward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool {
        // The stages behind this one want it in one piece.
        if !message.settle() {
            context.account.on_drop(DropReason::Lost);
            return false;
        }
        let Body::Block { block, range, .. } = &mut message.body else { return true };
        let bytes = &block[range.start as usize..range.end as usize];
        let Ok(header) = ethernet::Header::parse(bytes) else {
            context.account.on_drop(DropReason::Truncated);
            return false;
        };
        if header.destination != self.interface.link_address.get() && !ethernet::is_group(header.destination)
        {
            context.account.on_drop(DropReason::NotForUs);
            return false;
        }
        if header.ethertype != self.ethertype && !self.carries(header.ethertype) {
            context.account.on_drop(DropReason::UnknownProtocol);
            return false;
        }
        message.facts.link_source = header.source;
        message.facts.stream_position = u64::from(range.start);
        range.start += ethernet::HEADER_LEN as u32;
        true
    }

    /// One message outward: true when it leaves.
    #[inline]
    pub(crate) fn outward_one(&mut self, message: &mut Message, context: &mut Context<'_>) -> bool {
        if let Body::Control(_) = message.body {
            return true;
        }
        let link = match message.facts.destination {
            None => message.facts.link_source,
            Some(destination) => match self.recent_link(destination, context.now) {
                Some(link) => link,
                None => match self.resolve(destination, message, context) {
                    Some(link) => link,
                    None => return false,
                },
            },
        };
        let ethertype = match self.ethertype {
            0 if message.facts.destination.is_some_and(Address::is_v4) => ethernet::TYPE_IPV4,
            0 => ethernet::TYPE_IPV6,
            ethertype => ethertype,
        };
        encapsulate(message, link, self.interface.link_address.get(), ethertype);
        true
    }

    /// For paths of both versions.
    fn carries(&self, ethertype: u16) -> bool {
        self.ethertype == 0 && matches!(ethertype, ethernet::TYPE_IPV4 | ethernet::TYPE_IPV6)
    }

    /// What a remembered answer is compared with.
    #[inline]
    fn generation(&self, destination: Address) -> u32 {
        let neighbours = self.interface.neighbours_of(destination).borrow().generation();
        neighbours.wrapping_add(self.interface.generation())
    }

    /// The link address for `destination` when this path found it lately and it still holds.
    #[inline]
    pub(crate) fn recent_link(&self, destination: Address, now: Time) -> Option<ethernet::Address> {
        let recent = self.recent?;
        let holds = recent.destination == destination
            && now < recent.until
            && recent.generation == self.generation(destination);
        holds.then_some(recent.link)
    }

    /// Asks routes and neighbours. Without an answer the message is taken: it waits, or it is dropped.
    fn resolve(
        &mut self,
        destination: Address,
        message: &mut Message,
        context: &mut Context<'_>,
    ) -> Option<ethernet::Address> {
        let next_hop = match self.interface.route(destination) {
            Some(NextHop::Neighbour(address)) => address,
            Some(NextHop::Group(link)) => {
                self.remember(destination, link, Time::MAX);
                return Some(link);
            }
            None => {
                context.account.on_drop(DropReason::NoRoute);
                return None;
            }
        };
        match neighbour::resolve(&self.interface, next_hop, message, context) {
            Resolved::Known(link, until) => {
                self.remember(destination, link, until);
                Some(link)
            }
            Resolved::Waits => {
                self.waits = true;
                None
            }
            Resolved::Dropped => None,
        }
    }

    fn remember(&mut self, destination: Address, link: ethernet::Address, until: Time) {
        let generation = self.generation(destination);
        self.recent = Some(Recent { destination, link, until, generation });
    }
}

impl Stage for EthStage {
    fn module(&self) -> &'static str {
        "ETH"
    }

    fn inward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        burst.retain_mut(|message| self.inward_one(message, context));
    }

    fn outward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        burst.retain_mut(|message| self.outward_one(message, context));
    }

    fn next_timeout(&self) -> Option<Time> {
        if self.waits { self.interface.next_neighbour_timeout() } else { None }
    }

    fn on_timeout(&mut self, _inward: &mut Burst, _outward: &mut Burst, context: &mut Context<'_>) {
        if !self.waits {
            return;
        }
        self.interface.on_neighbour_timeout(context.now, context.out, context.account, context.effects);
        self.waits = self.interface.asks_neighbours();
    }

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        if let Some(recent) = self.recent {
            let [a, b, c, d, e, f] = recent.link;
            facts.push(("link", format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")));
        }
    }

    any_stage!();
}
