//! Addresses of ours that come and go: who is told, and which of them a socket uses.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, PoisonError};

use scoutline_abi::api::{AddressRow, RouteRow};
use scoutline_abi::layout::{served_flag, slot_kind};
use scoutline_abi::served::Network;
use scoutline_base::{Address, Endpoint, Time, V4_PREFIX_LEN};
use scoutline_proto::ip6::AddressState;
use scoutline_proto::route::{Route, Way};
use scoutline_wire::ipv4::{PROTOCOL_TCP as TCP, PROTOCOL_UDP as UDP};

use super::Core;
use super::paths::flow_key;
use crate::start::Served;

impl Core {
    /// The control thread hears of our networks through this from now on.
    pub(crate) fn share_served(&mut self, served: Served) {
        self.served = served;
        self.served_of.clear();
        self.follow_addresses();
    }

    /// Tells programs and the control thread what paths serve now, if that has changed.
    pub(super) fn follow_addresses(&mut self) {
        let same = self.served_of.len() == self.nets.len()
            && self.nets.iter().zip(&self.served_of).all(|(net, &of)| net.interface().generation() == of);
        if same {
            return;
        }
        self.served_of = self.nets.iter().map(|net| net.interface().generation()).collect();
        let networks = self.networks();
        for program in self.programs.values().filter(|_| self.several.is_first()) {
            program.region.header().write_served(&networks);
        }
        *Arc::clone(&self.served).lock().unwrap_or_else(PoisonError::into_inner) = networks;
    }

    /// Gives the devices the addresses and routes of the settings beyond their own.
    pub(super) fn apply_host(&mut self) {
        let host = &self.settings.host;
        for net in self.nets.iter().filter(|net| !net.interface().is_own_link()) {
            let interface = net.interface();
            let others = host.others.iter().filter(|(device, ..)| *device == interface.device);
            interface.set_others(others.map(|&(_, address, prefix)| (address, prefix)).collect());
            let routes = host.routes.iter().filter(|one| one.device == Some(interface.device));
            interface.set_routes(routes.map(|one| one.route).collect());
        }
        let refusals = host.routes.iter().filter(|one| one.device.is_none());
        self.routing.set_refusals(refusals.map(|one| one.route).collect());
    }

    /// Our addresses with their networks, and the networks that routes lead to.
    pub(super) fn networks(&self) -> Vec<Network> {
        let mut networks = Vec::new();
        let own_link = if self.settings.own_link.is_some() { served_flag::OWN_LINK } else { 0 };
        for (net, settings) in self.nets.iter().zip(&self.settings.devices) {
            let interface = net.interface();
            let extents = if settings.device.sends_by_kernel() { served_flag::EXTENTS } else { 0 };
            let flags = extents | own_link;
            let gateway = |there| if there { flags | served_flag::GATEWAY } else { flags };
            let scope = net.device.facts().index;
            networks.extend(interface.addresses4().into_iter().map(|(address, prefix_len)| Network {
                address: address.into(),
                prefix_len: V4_PREFIX_LEN + prefix_len,
                flags: gateway(interface.gateway.get().is_some()),
                scope,
            }));
            let host = &interface.ip6;
            let flags = gateway(host.router().is_some());
            for own in host.addresses().iter().filter(|own| own.state != AddressState::Duplicate) {
                // Of a router's prefix the router says what is on the link.
                let network = host.is_on_link(own.address.into()) || own.prefix_len == 128;
                let prefix_len = if network { own.prefix_len } else { 128 };
                networks.push(Network { address: own.address.into(), prefix_len, flags, scope });
            }
        }
        // What follows is on no device; whether files may be sent from where they lie the devices say.
        let flags = own_link | served_flag::EXTENTS;
        if self.settings.own_link.is_some_and(|own| own.loopback) {
            let loopback: [(Address, u8); 2] =
                [(Ipv4Addr::LOCALHOST.into(), V4_PREFIX_LEN + 8), (Ipv6Addr::LOCALHOST.into(), 128)];
            let of = |(address, prefix_len)| Network { address, prefix_len, flags, scope: 0 };
            networks.extend(loopback.map(of));
        }
        networks.extend(self.settings.host.routes.iter().map(|one| Network {
            address: one.route.network,
            prefix_len: one.route.prefix_len,
            flags: flags | served_flag::ROUTE,
            scope: 0,
        }));
        networks
    }

    /// True when a socket bound to `local` takes packets that come on a net.
    pub(super) fn covers(&self, net: usize, local: Endpoint) -> bool {
        let interface = self.nets[net].interface();
        if self.is_for_many(local.address) {
            return interface.takes_for_many(local.address);
        }
        if local.address.is_unspecified() {
            return interface.speaks(local.address);
        }
        if local.address.is_loopback() {
            return interface.is_own_link() && self.settings.own_link.is_some_and(|own| own.loopback);
        }
        interface.may_be_ours(local.address)
    }

    /// True for addresses of groups and of everybody, which sockets are bound to and do not send from.
    pub(super) fn is_for_many(&self, address: Address) -> bool {
        address.is_multicast() || self.nets.iter().any(|net| net.interface().is_everybody(address))
    }

    /// Whether somebody on paths takes what is sent to an address of this machine.
    pub(super) fn is_listened_at(&self, kind: u32, local: Endpoint) -> bool {
        let Some(net) = self.routing.own_link() else { return false };
        let (protocol, bindings) = match kind {
            slot_kind::STREAM => (TCP, &self.nets[net].tcp),
            _ => (UDP, &self.nets[net].udp),
        };
        let key = flow_key(net, protocol, local, Endpoint::new(local.address.unspecified(), 0));
        bindings.listener(&key, 0).is_some()
    }

    /// Bytes of an IP packet that the way to a peer carries, as far as is known; without a peer the link.
    pub(super) fn mtu_towards(&self, net: usize, remote: Option<Address>, now: Time) -> u32 {
        let interface = self.nets[net].interface();
        u32::from(remote.map_or(interface.mtu.get(), |remote| interface.path_mtu(remote, now)))
    }

    /// The address that a socket bound to `local` has towards a peer.
    pub(super) fn source_towards(&self, net: usize, local: Address, remote: Address) -> Option<Address> {
        if !local.is_unspecified() && !self.is_for_many(local) {
            return Some(local);
        }
        self.nets[net].interface().source_for(remote)
    }

    /// Our ends of flows to a socket that is bound to `local` on a net.
    pub(super) fn ends_at(&self, net: usize, local: Endpoint) -> Vec<Endpoint> {
        let interface = self.nets[net].interface();
        if !local.address.is_unspecified() {
            return vec![local];
        }
        if interface.is_own_link() {
            // Whatever the machine has on its devices, those of the family.
            let others = (0..self.nets.len()).filter(|&other| other != net);
            return others.flat_map(|other| self.ends_at(other, local)).collect();
        }
        // Without IPv6 `::` is every address of IPv4.
        let only_v4 = local.address == Address::UNSPECIFIED_V6 && !interface.ip6.enabled;
        if local.address.is_v4() || only_v4 {
            let ours = interface.addresses4().into_iter();
            return ours.map(|(address, _)| Endpoint::new(address, local.port)).collect();
        }
        interface.ip6.addresses().iter().map(|own| Endpoint::new(own.address, local.port)).collect()
    }

    /// Our addresses, for people.
    pub(super) fn address_rows(&self) -> Vec<AddressRow> {
        let mut rows = Vec::new();
        for net in self.nets.iter().filter(|net| !net.interface().is_own_link()) {
            let device = net.device.name();
            let row = |address: String, state: AddressState| AddressRow {
                device: device.to_owned(),
                address,
                state: state.as_str().to_owned(),
            };
            let v4 = net.interface().addresses4().into_iter();
            rows.extend(v4.map(|(address, len)| row(format!("{address}/{len}"), AddressState::Preferred)));
            let v6 = net.interface().ip6.addresses().into_iter();
            rows.extend(v6.map(|own| row(format!("{}/{}", own.address, own.prefix_len), own.state)));
        }
        rows
    }

    /// Networks, gateways and routes, the best of each network first, for people.
    pub(super) fn route_rows(&self) -> Vec<RouteRow> {
        let mut routes: Vec<(Route, Option<usize>)> = Vec::new();
        for (number, net) in self.nets.iter().enumerate().filter(|(_, net)| !net.interface().is_own_link()) {
            routes.extend(net.interface().ways().into_iter().map(|route| (route, Some(number))));
        }
        let refusals = self.settings.host.routes.iter().filter(|one| one.device.is_none());
        routes.extend(refusals.map(|one| (one.route, None)));
        routes.sort_by_key(|(route, _)| {
            (!route.network.is_v4(), std::cmp::Reverse(route.rank()), route.network)
        });
        routes.dedup();
        let row = |(route, net): (Route, Option<usize>)| {
            let (kind, via) = match route.way {
                Way::Link => ("link", None),
                Way::Via(router) => ("via", Some(router.to_ip().to_string())),
                Way::Refuse(refusal) => (refusal.as_str(), None),
            };
            let v4 = if route.network.is_v4() { V4_PREFIX_LEN } else { 0 };
            let len = route.prefix_len - v4;
            RouteRow {
                to: format!("{}/{len}", route.network.to_ip()),
                kind: kind.to_owned(),
                via,
                device: net.map(|net| self.nets[net].device.name().to_owned()),
                metric: route.metric,
                mtu: route.metrics.mtu,
                advmss: route.metrics.advmss,
                initcwnd: route.metrics.initcwnd,
                initrwnd: route.metrics.initrwnd,
            }
        };
        routes.into_iter().map(row).collect()
    }
}
