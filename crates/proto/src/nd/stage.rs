//! The stage of neighbour discovery: answers, learns, and sends what waited.

use std::net::Ipv6Addr;
use std::rc::Rc;

use scoutline_base::{Address, Time};
use scoutline_path::{Burst, Context, DropReason, Message, Stage, take_packets};
use scoutline_wire::ethernet;
use scoutline_wire::nd::{self, Advertisement, ParseError, Redirect, RouterAdvertisement, Solicitation};

use super::{Course, advertisement_frame, to_group};
use crate::Interface;
use crate::icmp6::parse;
use crate::neighbour::{self, Claim};
use crate::route::Way;

/// The stage of the one path of neighbour discovery of an interface.
pub struct NdStage {
    interface: Rc<Interface>,
    routers_heard: u64,
    redirects: u64,
}

impl NdStage {
    /// A stage for this interface.
    pub fn new(interface: Rc<Interface>) -> NdStage {
        NdStage { interface, routers_heard: 0, redirects: 0 }
    }

    fn on_message(&mut self, message: &Message, context: &mut Context<'_>) {
        if let Err(reason) = self.take(message, context) {
            context.account.on_drop(reason);
        }
    }

    fn take(&mut self, message: &Message, context: &mut Context<'_>) -> Result<(), DropReason> {
        let header = parse(message)?;
        // RFC 4861 §6.1, §7.1: it never passed a router.
        if message.facts.hop_limit != nd::HOP_LIMIT {
            return Err(DropReason::Malformed);
        }
        // What we send ourselves may come back to us.
        if message.facts.link_source == self.interface.link_address.get() {
            return Err(DropReason::NotForUs);
        }
        let source = message.facts.source.and_then(Address::as_v6).ok_or(DropReason::Malformed)?;
        let destination = message.facts.destination.and_then(Address::as_v6).ok_or(DropReason::Malformed)?;
        match header.kind {
            nd::NEIGHBOUR_SOLICITATION => self.on_solicitation(message, (source, destination), context),
            nd::NEIGHBOUR_ADVERTISEMENT => self.on_advertisement(message, destination, context),
            nd::ROUTER_ADVERTISEMENT => self.on_router_advertisement(message, source, context),
            nd::REDIRECT => self.on_redirect(message, source, context),
            // Routers that advertise themselves are asked to (§6.2.6); we do not.
            _ => Err(DropReason::UnknownProtocol),
        }
    }

    /// §7.2.3, and RFC 4862 §5.4.3.
    fn on_solicitation(
        &mut self,
        message: &Message,
        (source, destination): (Ipv6Addr, Ipv6Addr),
        context: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let solicitation = Solicitation::parse(message.bytes()).map_err(reason)?;
        let target = solicitation.target;
        let is_probe = source.is_unspecified();
        // §7.1.1: a probe goes to the group, and tells no link address.
        if is_probe && (solicitation.source_link.is_some() || destination != nd::solicited_node(target)) {
            return Err(DropReason::Malformed);
        }
        let host = &self.interface.ip6;
        if host.is_tentative(target) {
            // Two probe the same address: neither gets it. Who merely asks is not answered yet.
            if is_probe {
                self.on_duplicate(target);
            }
            return Err(DropReason::NotForUs);
        }
        if !host.is_ours(target.into()) {
            return Err(DropReason::NotForUs);
        }
        if let Some(link) = solicitation.source_link.filter(|&link| !is_probe && !ethernet::is_group(link)) {
            let waited = self.interface.neighbours6.borrow_mut().on_source(source, link, context.now);
            neighbour::release(&self.interface, (source.into(), link), waited, context.out);
        }
        // §7.2.4: to the asker, or to all when it has no address.
        let way = if is_probe {
            to_group(target, nd::ALL_NODES)
        } else {
            let link = solicitation.source_link.unwrap_or(message.facts.link_source);
            Course { source: target, destination: source, link }
        };
        context.out.push(advertisement_frame(&self.interface, target, way, !is_probe));
        Ok(())
    }

    /// §7.2.5, and RFC 4862 §5.4.4.
    fn on_advertisement(
        &mut self,
        message: &Message,
        destination: Ipv6Addr,
        context: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let said = Advertisement::parse(message.bytes()).map_err(reason)?;
        // §7.1.2.
        if destination.is_multicast() && said.solicited {
            return Err(DropReason::Malformed);
        }
        if self.interface.ip6.may_be_ours(said.target.into()) {
            self.on_duplicate(said.target);
            return Err(DropReason::NotForUs);
        }
        if said.target_link.is_some_and(ethernet::is_group) {
            return Err(DropReason::Malformed);
        }
        if !said.router {
            self.interface.ip6.on_no_router(said.target);
        }
        let Advertisement { solicited, overrides, target, target_link: link, .. } = said;
        let claim = Claim { link, solicited, overrides };
        let waited = self.interface.neighbours6.borrow_mut().on_claim(target, claim, context.now);
        if let Some(link) = link {
            neighbour::release(&self.interface, (target.into(), link), waited, context.out);
        }
        Ok(())
    }

    /// §6.3.4.
    fn on_router_advertisement(
        &mut self,
        message: &Message,
        source: Ipv6Addr,
        context: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let said = RouterAdvertisement::parse(message.bytes()).map_err(reason)?;
        // §6.1.2: routers speak from their link-local address.
        if !Address::from(source).is_link_local() {
            return Err(DropReason::Malformed);
        }
        self.routers_heard += 1;
        if let Some(link) = said.source_link.filter(|&link| !ethernet::is_group(link)) {
            let waited = self.interface.neighbours6.borrow_mut().on_source(source, link, context.now);
            neighbour::release(&self.interface, (source.into(), link), waited, context.out);
        }
        self.interface.ip6.on_router_advertisement(source, &said, context.now);
        Ok(())
    }

    /// §8.
    fn on_redirect(
        &mut self,
        message: &Message,
        source: Ipv6Addr,
        context: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let said = Redirect::parse(message.bytes()).map_err(reason)?;
        let Redirect { target, destination, target_link } = said;
        // §8.1: routers speak from their link-local address, of a router by its own, and of single destinations.
        let is_router = Address::from(source).is_link_local();
        let is_next_hop = target == destination || Address::from(target).is_link_local();
        if !is_router || !is_next_hop || destination.is_multicast() || Address::from(destination).is_v4() {
            return Err(DropReason::Malformed);
        }
        // §8.1: from the first hop for this destination, or anybody could draw our packets.
        let interface = &self.interface;
        let from_first_hop = match interface.way(destination.into()) {
            Some((Way::Via(router), _)) => router == source.into(),
            _ => false,
        };
        let to_ourselves = interface.is_ours(target.into()) || interface.ip6.is_tentative(target);
        if !from_first_hop || to_ourselves || !interface.ip6.on_redirect(destination, target) {
            return Err(DropReason::NotForUs);
        }
        self.redirects += 1;
        if let Some(link) = target_link.filter(|&link| !ethernet::is_group(link)) {
            let waited = interface.neighbours6.borrow_mut().on_source(target, link, context.now);
            neighbour::release(interface, (target.into(), link), waited, context.out);
        }
        Ok(())
    }

    /// Another station has an address of ours, or probes it with us.
    fn on_duplicate(&self, address: Ipv6Addr) {
        self.interface.ip6.on_duplicate(address);
        self.interface.address_conflicts.set(self.interface.address_conflicts.get() + 1);
    }
}

fn reason(error: ParseError) -> DropReason {
    match error {
        ParseError::Truncated { .. } => DropReason::Truncated,
        _ => DropReason::Malformed,
    }
}

impl Stage for NdStage {
    fn module(&self) -> &'static str {
        "ND"
    }

    fn inward(&mut self, burst: &mut Burst, _turned: &mut Burst, context: &mut Context<'_>) {
        take_packets(burst, |message| self.on_message(&message, context));
    }

    fn outward(&mut self, _burst: &mut Burst, _turned: &mut Burst, _context: &mut Context<'_>) {}

    fn next_timeout(&self) -> Option<Time> {
        self.interface.next_neighbour_timeout()
    }

    fn on_timeout(&mut self, _inward: &mut Burst, _outward: &mut Burst, context: &mut Context<'_>) {
        self.interface.on_neighbour_timeout(context.now, context.out, context.account, context.effects);
    }

    fn describe(&self, facts: &mut Vec<(&'static str, String)>) {
        let addresses = self.interface.ip6.addresses();
        let shown: Vec<String> = addresses
            .iter()
            .map(|own| format!("{}/{} {}", own.address, own.prefix_len, own.state.as_str()))
            .collect();
        facts.push(("addresses", shown.join(", ")));
        let neighbours = self.interface.neighbours6.borrow();
        facts.push(("neighbours", neighbours.entries().count().to_string()));
        facts.push(("waiting-bytes", neighbours.waiting_bytes().to_string()));
        if let Some(router) = self.interface.ip6.router() {
            facts.push(("router", router.to_string()));
        }
        facts.push(("routers-heard", self.routers_heard.to_string()));
        facts.push(("redirects", self.redirects.to_string()));
    }

    any_stage!();
}
