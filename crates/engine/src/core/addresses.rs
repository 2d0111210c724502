//! Addresses of ours that come and go: who is told, and which of them a socket uses.

use std::sync::{Arc, PoisonError};

use scoutline_abi::layout::served_flag;
use scoutline_abi::served::Network;
use scoutline_base::{Address, Endpoint, Time, V4_PREFIX_LEN};
use scoutline_proto::ip6::AddressState;

use super::Core;
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
            && self.nets.iter().zip(&self.served_of).all(|(net, &of)| net.interface().ip6.generation() == of);
        if same {
            return;
        }
        self.served_of = self.nets.iter().map(|net| net.interface().ip6.generation()).collect();
        let networks = self.networks();
        for program in self.programs.values() {
            program.region.header().write_served(&networks);
        }
        *Arc::clone(&self.served).lock().unwrap_or_else(PoisonError::into_inner) = networks;
    }

    /// Our addresses with their networks.
    pub(super) fn networks(&self) -> Vec<Network> {
        let mut networks = Vec::new();
        for (net, settings) in self.nets.iter().zip(&self.settings.devices) {
            let interface = net.interface();
            let extents = if settings.device.sends_by_kernel() { served_flag::EXTENTS } else { 0 };
            let gateway = |there| if there { extents | served_flag::GATEWAY } else { extents };
            let scope = net.device.facts().index;
            networks.push(Network {
                address: interface.address.get().into(),
                prefix_len: V4_PREFIX_LEN + interface.prefix_len.get(),
                flags: gateway(interface.gateway.get().is_some()),
                scope,
            });
            let host = &interface.ip6;
            let flags = gateway(host.router().is_some());
            for own in host.addresses().iter().filter(|own| own.state != AddressState::Duplicate) {
                // Of a router's prefix the router says what is on the link.
                let network = host.is_on_link(own.address.into()) || own.prefix_len == 128;
                let prefix_len = if network { own.prefix_len } else { 128 };
                networks.push(Network { address: own.address.into(), prefix_len, flags, scope });
            }
        }
        networks
    }

    /// True when a socket bound to `local` takes packets that come on a net.
    pub(super) fn covers(&self, net: usize, local: Endpoint) -> bool {
        let interface = self.nets[net].interface();
        match local.address {
            Address::UNSPECIFIED_V4 => true,
            Address::UNSPECIFIED_V6 => interface.ip6.enabled,
            address if address.is_multicast() => address.is_v4() || interface.ip6.enabled,
            address if self.is_for_many(address) => {
                let v4 = address.as_v4();
                v4.is_some_and(|v4| v4.is_broadcast() || interface.is_directed_broadcast(v4))
            }
            address => address == interface.address.get().into() || interface.ip6.may_be_ours(address),
        }
    }

    /// True for addresses of groups and of everybody, which sockets are bound to and do not send from.
    pub(super) fn is_for_many(&self, address: Address) -> bool {
        let everybody = |v4: std::net::Ipv4Addr| {
            v4.is_broadcast() || self.nets.iter().any(|net| net.interface().is_directed_broadcast(v4))
        };
        address.is_multicast() || address.as_v4().is_some_and(everybody)
    }

    /// The net that reaches an address; a link-local one in this scope, if it has one.
    pub(super) fn net_towards(&self, remote: Address, scope: u32) -> Option<usize> {
        if remote.is_link_local() && scope != 0 {
            let there = |net: &super::Net| net.device.facts().index == scope && net.interface().ip6.enabled;
            return self.nets.iter().position(there);
        }
        let on_link = |net: &super::Net| {
            let interface = net.interface();
            (remote.is_v4() || interface.ip6.enabled) && interface.is_on_link(remote)
        };
        self.nets
            .iter()
            .position(on_link)
            .or_else(|| self.nets.iter().position(|net| net.interface().route(remote).is_some()))
    }

    /// Bytes of an IP packet that the way to a peer carries, as far as is known; without a peer the link.
    pub(super) fn mtu_towards(&self, net: usize, remote: Option<Address>, now: Time) -> u32 {
        let interface = self.nets[net].interface();
        let mtu = match remote.map(Address::as_v6) {
            Some(Some(remote)) => interface.ip6.path_mtu(remote, now),
            _ => interface.mtu.get(),
        };
        u32::from(mtu)
    }

    /// The address that a socket bound to `local` has towards a peer.
    pub(super) fn source_towards(&self, net: usize, local: Address, remote: Address) -> Option<Address> {
        if !local.is_unspecified() && !local.is_v4() && !local.is_multicast() {
            return Some(local);
        }
        self.nets[net].interface().source_for(remote)
    }

    /// Our ends of flows to a socket that is bound to `local` on a net.
    pub(super) fn ends_at(&self, net: usize, local: Endpoint) -> Vec<Endpoint> {
        let interface = self.nets[net].interface();
        // Without IPv6 `::` is every address of IPv4.
        let only_v4 = local.address == Address::UNSPECIFIED_V6 && !interface.ip6.enabled;
        if local.address.is_v4() || only_v4 {
            return vec![Endpoint::new(interface.address.get(), local.port)];
        }
        if !local.address.is_unspecified() {
            return vec![local];
        }
        interface.ip6.addresses().iter().map(|own| Endpoint::new(own.address, local.port)).collect()
    }
}
