//! What the modules and stages of one device share: addresses, routes, neighbours, limits.

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::rc::Rc;

use scoutline_base::{Address, DeviceId, PathId, Time};
use scoutline_path::{Account, Burst, Effect, FlowKey};
use scoutline_wire::{ethernet, ipv4, ipv6};

use crate::arp::Cache;
use crate::groups::{self, Groups};
use crate::ip6::{Host6, Host6Config};
use crate::limit::TokenBucket;
use crate::{igmp, mld, nd};

/// ICMP errors that one interface sends, per second and at once: Linux' `icmp_msgs_per_sec` and `_burst`.
const ICMP_ERRORS: (u32, u32) = (1_000, 50);
/// Resets for stray segments, per second and at once.
const RESETS: (u32, u32) = (1_000, 200);

/// What an interface is made from.
#[derive(Clone, Debug)]
pub struct InterfaceConfig {
    /// The device.
    pub device: DeviceId,
    /// Our link address.
    pub link_address: ethernet::Address,
    /// Our network address.
    pub address: Ipv4Addr,
    /// Bits of the address that name the network, 0 to 32.
    pub prefix_len: u8,
    /// Where packets for other networks go.
    pub gateway: Option<Ipv4Addr>,
    /// IPv6; `None`: there is none here.
    pub ip6: Option<Host6Config>,
    /// Random: fragments are numbered from there.
    pub seed: u32,
    /// Bytes of an IP datagram that the link carries.
    pub mtu: u16,
    /// The device's frames come from this machine (veth, TAP, the memory wire), and their partial checksums with
    /// them: such frames are taken as verified.
    pub trusted_checksums: bool,
    /// What the device does for us when sending.
    pub offload: Offload,
}

/// What a device does on sending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Completes partial checksums (or passes them on to a receiver that does not need them).
    pub checksum: bool,
    /// Cuts TCP super-segments; the longest IP datagram that it takes, in bytes. Beyond 65,535 a datagram has a total
    /// length of 0 and is as long as its frame ("BIG TCP", Linux 6.3).
    pub tcp_segmentation: Option<u32>,
}

/// Where a packet for some address goes on this link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// To the neighbour with this network address.
    Neighbour(Address),
    /// To a group of stations, by this link address; nothing needs to be resolved.
    Group(ethernet::Address),
}

/// The paths that serve an interface as a whole. The engine makes them and tells their ids here; demultiplexing
/// gives packets to them.
#[derive(Debug, Default)]
pub struct ServicePaths {
    /// Made at module `ARP`.
    pub arp: Cell<Option<PathId>>,
    /// Made at module `ICMP`.
    pub icmp: Cell<Option<PathId>>,
    /// Made at module `ICMP` with `Other("unreachable")`: answers datagrams that no path takes.
    pub unreachable: Cell<Option<PathId>>,
    /// Made at module `IGMP`.
    pub igmp: Cell<Option<PathId>>,
    /// Made at module `IP4` with `Other("reassembly")`.
    pub reassembly: Cell<Option<PathId>>,
    /// Made at module `TCP` with `Other("reset")`: answers segments that no path takes.
    pub reset: Cell<Option<PathId>>,
    /// Made at module `ND`.
    pub nd: Cell<Option<PathId>>,
    /// Made at module `ICMP6`.
    pub icmp6: Cell<Option<PathId>>,
    /// Made at module `ICMP6` with `Other("unreachable6")`.
    pub unreachable6: Cell<Option<PathId>>,
    /// Made at module `IP6` with `Other("reassembly6")`.
    pub reassembly6: Cell<Option<PathId>>,
    /// Made at module `TCP` with `Other("reset6")`.
    pub reset6: Cell<Option<PathId>>,
}

/// One interface: a device with its addresses.
#[derive(Debug)]
pub struct Interface {
    /// The device.
    pub device: DeviceId,
    /// Our link address.
    pub link_address: Cell<ethernet::Address>,
    /// Our network address.
    pub address: Cell<Ipv4Addr>,
    /// Bits of the address that name the network.
    pub prefix_len: Cell<u8>,
    /// Where packets for other networks go.
    pub gateway: Cell<Option<Ipv4Addr>>,
    /// Bytes of an IP datagram that the link carries.
    pub mtu: Cell<u16>,
    /// Frames with partial checksums are taken as verified.
    pub trusted_checksums: Cell<bool>,
    /// What the device does on sending.
    pub offload: Cell<Offload>,
    /// Link addresses of neighbours.
    pub neighbours: RefCell<Cache>,
    /// Addresses, routers and path MTUs of IPv6.
    pub ip6: Host6,
    /// Link addresses of neighbours that speak IPv6.
    pub neighbours6: RefCell<nd::Cache>,
    /// The groups of IPv4 that sockets are in here.
    pub groups: RefCell<Groups>,
    /// Those of IPv6.
    pub groups6: RefCell<Groups>,
    /// The paths that serve the interface as a whole.
    pub service_paths: ServicePaths,
    /// Times that another station claimed our network address (RFC 5227 §2.4).
    pub address_conflicts: Cell<u64>,
    /// The limit on ICMP errors that we send (RFC 1812 §4.3.2.8).
    pub icmp_errors: RefCell<TokenBucket>,
    /// The limit on resets for segments of no connection.
    pub resets: RefCell<TokenBucket>,
    identification: Cell<u16>,
}

impl Interface {
    /// An interface without neighbours and service paths.
    pub fn new(config: &InterfaceConfig) -> Rc<Interface> {
        Rc::new(Interface {
            device: config.device,
            link_address: Cell::new(config.link_address),
            address: Cell::new(config.address),
            prefix_len: Cell::new(config.prefix_len.min(32)),
            gateway: Cell::new(config.gateway),
            mtu: Cell::new(config.mtu),
            trusted_checksums: Cell::new(config.trusted_checksums),
            offload: Cell::new(config.offload),
            neighbours: RefCell::default(),
            ip6: Host6::new(config.ip6.as_ref(), config.link_address, config.mtu, config.seed),
            neighbours6: RefCell::default(),
            groups: RefCell::new(Groups::new(u64::from(config.seed) | 1 << 32)),
            groups6: RefCell::new(Groups::new(u64::from(config.seed) | 2 << 32)),
            service_paths: ServicePaths::default(),
            address_conflicts: Cell::new(0),
            icmp_errors: RefCell::new(TokenBucket::new(ICMP_ERRORS.0, ICMP_ERRORS.1)),
            resets: RefCell::new(TokenBucket::new(RESETS.0, RESETS.1)),
            identification: Cell::new(1),
        })
    }

    /// Where a packet for `destination` goes, or `None` when no route leads there.
    #[inline]
    pub fn route(&self, destination: Address) -> Option<NextHop> {
        match destination.as_v4() {
            Some(destination) => self.route4(destination),
            None => self.route6(destination),
        }
    }

    fn route6(&self, destination: Address) -> Option<NextHop> {
        if !self.ip6.enabled || destination.is_unspecified() || destination.is_loopback() {
            return None;
        }
        if let Some(group) = destination.as_v6().filter(|_| destination.is_multicast()) {
            return Some(NextHop::Group(ethernet::multicast6(group)));
        }
        if self.ip6.is_on_link(destination) {
            return Some(NextHop::Neighbour(destination));
        }
        self.ip6.router().map(|router| NextHop::Neighbour(router.into()))
    }

    fn route4(&self, destination: Ipv4Addr) -> Option<NextHop> {
        if destination.is_broadcast() || self.is_directed_broadcast(destination) {
            return Some(NextHop::Group(ethernet::BROADCAST));
        }
        if destination.is_multicast() {
            return Some(NextHop::Group(ethernet::multicast(destination)));
        }
        // RFC 1122 §3.2.1.3: these never appear outside a host.
        if destination.is_unspecified() || destination.is_loopback() {
            return None;
        }
        // RFC 1122 §3.3.1.1: directly when it is on the connected network, by the gateway else.
        if self.is_on_link4(destination) {
            return Some(NextHop::Neighbour(destination.into()));
        }
        self.gateway.get().map(|gateway| NextHop::Neighbour(gateway.into()))
    }

    /// True when `address` is in a network of this link.
    pub fn is_on_link(&self, address: Address) -> bool {
        match address.as_v4() {
            Some(address) => self.is_on_link4(address),
            None => self.ip6.is_on_link(address),
        }
    }

    fn is_on_link4(&self, address: Ipv4Addr) -> bool {
        (u32::from(address) ^ u32::from(self.address.get())) & self.mask() == 0
    }

    /// True for the broadcast addresses of our network (RFC 1122 §3.3.6: the limited one apart).
    pub fn is_directed_broadcast(&self, address: Ipv4Addr) -> bool {
        // RFC 3021: networks of 31 bits (and hosts) have none.
        self.prefix_len.get() < 31
            && self.is_on_link4(address)
            && u32::from(address) | self.mask() == u32::MAX
    }

    /// True for an address of our own that is in use.
    #[inline]
    pub fn is_ours(&self, address: Address) -> bool {
        address == self.address.get().into() || self.ip6.is_ours(address)
    }

    /// The address that packets to `destination` come from, or `None` when no address of its family is in use.
    pub fn source_for(&self, destination: Address) -> Option<Address> {
        if destination.is_v4() {
            return Some(self.address.get().into());
        }
        self.ip6.source_for(destination).map(Address::from)
    }

    /// True when we take packets for this address: our own, and the broadcasts that reach us.
    #[inline]
    pub fn accepts(&self, destination: Address) -> bool {
        if self.is_ours(destination) {
            return true;
        }
        match destination.as_v4() {
            Some(v4) if v4.is_multicast() => {
                v4 == groups::ALL_HOSTS || self.groups.borrow().contains(destination)
            }
            Some(v4) => v4.is_broadcast() || self.is_directed_broadcast(v4),
            None => {
                destination.is_multicast()
                    && (destination.as_v6().is_some_and(|group| self.ip6.is_in_group(group))
                        || self.groups6.borrow().contains(destination))
            }
        }
    }

    /// The groups of the family of `group`.
    pub fn groups_of(&self, group: Address) -> &RefCell<Groups> {
        if group.is_v4() { &self.groups } else { &self.groups6 }
    }

    /// False for source addresses that no honest packet from the link has (RFC 1122 §3.2.1.3).
    #[inline]
    pub fn is_valid_source(&self, source: Address) -> bool {
        let Some(source) = source.as_v4() else {
            // RFC 4291 §2.5.3, §2.7: neither may be a source off the link. `::` asks whether an address is in use.
            return !(source.is_multicast() || source.is_loopback() || self.ip6.is_ours(source));
        };
        let reserved = source.is_broadcast() || source.is_multicast() || source.is_loopback();
        !(reserved || self.is_directed_broadcast(source) || self.is_ours(source.into()))
    }

    /// The identification of the next datagram.
    #[inline]
    pub fn next_identification(&self) -> u16 {
        let identification = self.identification.get();
        self.identification.set(identification.wrapping_add(1));
        identification
    }

    /// The service path that answers a packet for which demultiplexing found no path: a reset for a TCP segment,
    /// an ICMP error for other datagrams. `None` when it is to be dropped in silence.
    pub fn stray_path(&self, key: &FlowKey) -> Option<PathId> {
        if !self.is_ours(key.local) {
            return None;
        }
        match key.protocol {
            ipv4::PROTOCOL_TCP if !key.local.is_v4() => self.service_paths.reset6.get(),
            ipv4::PROTOCOL_TCP => self.service_paths.reset.get(),
            ipv4::PROTOCOL_ICMP | ipv6::PROTOCOL_ICMPV6 => None,
            _ if !key.local.is_v4() => self.service_paths.unreachable6.get(),
            _ => self.service_paths.unreachable.get(),
        }
    }

    /// When [`Interface::on_neighbour_timeout`] has work.
    pub fn next_neighbour_timeout(&self) -> Option<Time> {
        let neighbours = self.neighbours.borrow().next_timeout();
        let neighbours6 = self.neighbours6.borrow().next_timeout();
        let groups = self.groups.borrow().next_timeout();
        let groups6 = self.groups6.borrow().next_timeout();
        [neighbours, neighbours6, self.ip6.next_timeout(), groups, groups6].into_iter().flatten().min()
    }

    /// True while an answer of some neighbour is awaited.
    pub fn asks_neighbours(&self) -> bool {
        self.neighbours.borrow().next_timeout().or(self.neighbours6.borrow().next_timeout()).is_some()
    }

    /// Tells routers of groups, asks again for neighbours that did not answer, and gives up those who never do: what waited for them is
    /// dropped as `NoNeighbour`, and the paths it came from are told that the host is unreachable.
    pub fn on_neighbour_timeout(
        &self,
        now: Time,
        out: &mut Burst,
        account: &mut Account,
        effects: &mut Vec<Effect>,
    ) {
        let given_up = self.neighbours.borrow_mut().on_timeout(now, |question| {
            out.push(crate::arp::request_frame(self, question.address, question.link));
        });
        for message in given_up {
            crate::arp::on_given_up(self, &message, account, effects);
        }
        let given_up = self.neighbours6.borrow_mut().on_timeout(now, |question| {
            out.push(nd::solicitation_frame(self, question.address, question.link));
        });
        for message in given_up {
            nd::on_given_up(self, &message, account, effects);
        }
        self.ip6.on_timeout(now, |task| match task {
            crate::ip6::Task::Probe(address) => {
                out.push(nd::report_frame(self, address, nd::Report::ToExclude));
                out.push(nd::probe_frame(self, address));
            }
            crate::ip6::Task::SolicitRouters => out.push(nd::router_solicitation_frame(self)),
        });
        for report in self.groups.borrow_mut().on_timeout(now) {
            igmp::frames(self, &report, |frame| out.push(frame));
        }
        for report in self.groups6.borrow_mut().on_timeout(now) {
            mld::frames(self, &report, |frame| out.push(frame));
        }
    }

    fn mask(&self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix_len.get())).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn routes() {
        let interface = testing::interface();
        let on_link = Address::from(Ipv4Addr::new(10, 0, 0, 77));
        assert_eq!(interface.route(on_link), Some(NextHop::Neighbour(on_link)));
        let group = Some(NextHop::Group(ethernet::BROADCAST));
        assert_eq!(interface.route(Ipv4Addr::new(10, 0, 0, 255).into()), group);
        assert_eq!(interface.route(Ipv4Addr::BROADCAST.into()), group);
        assert_eq!(interface.route(Ipv4Addr::new(8, 8, 8, 8).into()), None);
        let gateway = Ipv4Addr::new(10, 0, 0, 254);
        interface.gateway.set(Some(gateway));
        assert_eq!(
            interface.route(Ipv4Addr::new(8, 8, 8, 8).into()),
            Some(NextHop::Neighbour(gateway.into()))
        );
        assert_eq!(interface.route(Ipv4Addr::LOCALHOST.into()), None);
        interface.prefix_len.set(0);
        assert_eq!(
            interface.route(Ipv4Addr::new(8, 8, 8, 8).into()),
            Some(NextHop::Neighbour(Ipv4Addr::new(8, 8, 8, 8).into()))
        );
        interface.prefix_len.set(32);
        assert!(!interface.is_directed_broadcast(interface.address.get()));
    }
}
