//! What the modules and stages of one device share: addresses, routes, neighbours, limits.

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::rc::Rc;

use scoutline_base::{Address, DeviceId, PathId, Time, V4_PREFIX_LEN};
use scoutline_path::{Account, Burst, Effect, FlowKey};
use scoutline_wire::{ethernet, ipv4, ipv6};

use crate::destinations::Destinations;
use crate::groups::{self, Groups};
use crate::ip6::{Host6, Host6Config};
use crate::limit::TokenBucket;
use crate::neighbour::{self, Cache};
use crate::path_mtu::{self, Told};
use crate::route::{Metrics, Rank, Route, Routes, Way};
use crate::{igmp, mld, nd};

/// ICMP errors that one interface sends, per second and at once: Linux' `icmp_msgs_per_sec` and `_burst`.
const ICMP_ERRORS: (u32, u32) = (1_000, 50);
/// Resets for stray segments, per second and at once.
const RESETS: (u32, u32) = (1_000, 200);
/// What the machine's link with itself carries: as much as a datagram's length can tell.
pub const OWN_LINK_MTU: u16 = u16::MAX;
/// Bits of an address.
const ADDRESS_LEN: u8 = 128;
/// A network without any address: how an interface without IPv4 has its own.
const NO_ADDRESS: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

/// What an interface is made from.
#[derive(Clone, Debug)]
pub struct InterfaceConfig {
    /// The device.
    pub device: DeviceId,
    /// Our link address.
    pub link_address: ethernet::Address,
    /// Our first IPv4 address; the unspecified one: there is none.
    pub address: Ipv4Addr,
    /// Bits of the address that name the network, 0 to 32.
    pub prefix_len: u8,
    /// Where packets for other networks go.
    pub gateway: Option<Ipv4Addr>,
    /// IPv6; `None`: there is none here.
    pub ip6: Option<Host6Config>,
    /// Random and secret: what the link may not guess comes from it.
    pub seed: u64,
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
    /// Our first IPv4 address; the unspecified one: there is none.
    pub address: Cell<Ipv4Addr>,
    /// Bits of the address that name the network.
    pub prefix_len: Cell<u8>,
    /// Our other IPv4 addresses, with the bits that name their networks.
    others: RefCell<Vec<(Ipv4Addr, u8)>>,
    routes: RefCell<Routes>,
    /// Some of them say more than where they lead.
    has_metrics: Cell<bool>,
    /// The interfaces whose addresses are ours: of the machine's link with itself only.
    machine: Option<Vec<Rc<Interface>>>,
    /// Changes whenever addresses or routes that are set here do.
    generation: Cell<u32>,
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
    /// How much arrives at single destinations.
    path_mtus: RefCell<Destinations<Address, Told>>,
    path_mtu_changes: Cell<u32>,
    /// Addresses and routers of IPv6.
    pub ip6: Host6,
    /// Link addresses of neighbours that speak IPv6.
    pub neighbours6: RefCell<Cache>,
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
        let ip6 = Host6::new(config.ip6.as_ref(), config.link_address, config.mtu, config.seed);
        Rc::new(Interface::with(config, ip6, None))
    }

    /// The machine's link with itself: every address of these interfaces is ours, and so are the loopback addresses.
    /// There is nobody else, so nobody is asked for.
    pub fn own_link(
        device: DeviceId,
        machine: Vec<Rc<Interface>>,
        seed: u64,
        offload: Offload,
    ) -> Rc<Interface> {
        let config = InterfaceConfig {
            device,
            link_address: OWN_LINK,
            address: NO_ADDRESS,
            prefix_len: 32,
            gateway: None,
            ip6: None,
            seed,
            mtu: OWN_LINK_MTU,
            trusted_checksums: true,
            offload,
        };
        Rc::new(Interface::with(&config, Host6::own_link(OWN_LINK_MTU, seed), Some(machine)))
    }

    fn with(config: &InterfaceConfig, ip6: Host6, machine: Option<Vec<Rc<Interface>>>) -> Interface {
        Interface {
            device: config.device,
            link_address: Cell::new(config.link_address),
            address: Cell::new(config.address),
            prefix_len: Cell::new(config.prefix_len.min(32)),
            others: RefCell::default(),
            routes: RefCell::default(),
            has_metrics: Cell::new(false),
            machine,
            generation: Cell::new(0),
            gateway: Cell::new(config.gateway),
            mtu: Cell::new(config.mtu),
            trusted_checksums: Cell::new(config.trusted_checksums),
            offload: Cell::new(config.offload),
            neighbours: RefCell::default(),
            path_mtus: RefCell::default(),
            path_mtu_changes: Cell::new(0),
            ip6,
            neighbours6: RefCell::default(),
            groups: RefCell::new(Groups::new(config.seed ^ 4)),
            groups6: RefCell::new(Groups::new(config.seed ^ 6)),
            service_paths: ServicePaths::default(),
            address_conflicts: Cell::new(0),
            icmp_errors: RefCell::new(TokenBucket::new(ICMP_ERRORS.0, ICMP_ERRORS.1)),
            resets: RefCell::new(TokenBucket::new(RESETS.0, RESETS.1)),
            identification: Cell::new(1),
        }
    }

    /// True for the machine's link with itself.
    #[inline]
    pub fn is_own_link(&self) -> bool {
        self.machine.is_some()
    }

    /// Our IPv4 addresses beside the first, each with the bits that name its network.
    pub fn set_others(&self, others: Vec<(Ipv4Addr, u8)>) {
        *self.others.borrow_mut() = others;
        self.changed();
    }

    /// The ways to networks that are not on the link.
    pub fn set_routes(&self, routes: Vec<Route>) {
        self.has_metrics.set(routes.iter().any(|route| route.metrics != Metrics::default()));
        *self.routes.borrow_mut() = Routes::new(routes);
        self.ip6.forget_redirects();
        self.changed();
    }

    fn changed(&self) {
        self.generation.set(self.generation.get().wrapping_add(1));
    }

    /// Changes whenever addresses, networks or ways do.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.get().wrapping_add(self.ip6.generation())
    }

    /// Our IPv4 addresses with the bits that name their networks, the first one first.
    pub fn addresses4(&self) -> Vec<(Ipv4Addr, u8)> {
        let first = (self.address.get(), self.prefix_len.get());
        let first = Some(first).filter(|(address, _)| *address != NO_ADDRESS);
        first.into_iter().chain(self.others.borrow().iter().copied()).collect()
    }

    /// Where a packet for `destination` goes, or `None` when no route leads there.
    #[inline]
    pub fn route(&self, destination: Address) -> Option<NextHop> {
        if self.is_own_link() {
            return self.is_ours(destination).then(|| NextHop::Group(self.link_address.get()));
        }
        if let Some(group) = self.group(destination) {
            return Some(NextHop::Group(group));
        }
        match self.way(destination)?.0 {
            Way::Link => Some(NextHop::Neighbour(destination)),
            Way::Via(router) => Some(NextHop::Neighbour(router)),
            Way::Refuse(_) => None,
        }
    }

    /// The link address of a group of stations.
    fn group(&self, destination: Address) -> Option<ethernet::Address> {
        let Some(destination) = destination.as_v4() else {
            let group = destination.as_v6().filter(|_| destination.is_multicast() && self.ip6.enabled);
            return group.map(ethernet::multicast6);
        };
        if destination.is_broadcast() || self.is_directed_broadcast(destination) {
            return Some(ethernet::BROADCAST);
        }
        destination.is_multicast().then(|| ethernet::multicast(destination))
    }

    /// The best way to a station's address from here, with what it is worth against those of other interfaces.
    pub fn way(&self, destination: Address) -> Option<(Way, Rank)> {
        // RFC 1122 §3.2.1.3, RFC 4291 §2.5: these never appear outside a host.
        let nowhere = destination.is_unspecified() || destination.is_loopback() || destination.is_multicast();
        if nowhere || !destination.is_v4() && !self.ip6.enabled {
            return None;
        }
        // RFC 4861 §8.3: what a router said of this destination goes before what is said of many.
        if let Some(next_hop) = destination.as_v6().and_then(|destination| self.ip6.redirected(destination)) {
            let next_hop = Address::from(next_hop);
            let way = if next_hop == destination { Way::Link } else { Way::Via(next_hop) };
            return Some((way, (ADDRESS_LEN, u32::MAX)));
        }
        let routes = self.routes.borrow();
        let routed = routes.find(destination).map(|route| (route.way, route.rank()));
        // A network's own link before a route to the whole of it, and the gateway before another default route.
        match (self.own_way(destination), routed) {
            (Some(own), Some(routed)) => Some(if routed.1 > own.1 { routed } else { own }),
            (own, routed) => own.or(routed),
        }
    }

    /// The way without routes.
    fn own_way(&self, destination: Address) -> Option<(Way, Rank)> {
        // RFC 1122 §3.3.1.1: directly when it is on the connected network, by the gateway else.
        let connected = self.network_len(destination).map(|len| (Way::Link, (len, u32::MAX)));
        let gateway = || {
            if destination.is_v4() {
                Some((Way::Via(self.gateway.get()?.into()), (V4_PREFIX_LEN, u32::MAX)))
            } else {
                Some((Way::Via(self.ip6.router()?.into()), (0, u32::MAX)))
            }
        };
        connected.or_else(gateway)
    }

    /// What the route to a destination says of the way there; nothing where no route decides it.
    pub fn metrics(&self, destination: Address) -> Metrics {
        if !self.has_metrics.get() {
            return Metrics::default();
        }
        let routes = self.routes.borrow();
        let route = routes.find(destination);
        let own = self.own_way(destination);
        let route = route.filter(|route| own.is_none_or(|(_, rank)| route.rank() > rank));
        route.map_or_else(Metrics::default, |route| route.metrics)
    }

    /// Bytes of an IP packet that the link and the route to a destination carry.
    #[inline]
    pub fn mtu_of_way(&self, destination: Address) -> u16 {
        let link = if destination.is_v4() { self.mtu.get() } else { self.ip6.mtu() };
        self.bounded(destination, link)
    }

    /// The same, as far as routers on the way have told (RFC 1191, RFC 8201).
    #[inline]
    pub fn path_mtu(&self, destination: Address, now: Time) -> u16 {
        self.mtu_as_told(destination, self.told_mtu(destination, now))
    }

    /// The same, by what [`Interface::told_mtu`] has said.
    #[inline]
    pub fn mtu_as_told(&self, destination: Address, told: Option<Told>) -> u16 {
        let most = self.mtu_of_way(destination);
        told.map_or(most, |told| told.mtu.min(most))
    }

    /// What routers have told of the way to a destination.
    #[inline]
    pub fn told_mtu(&self, destination: Address, now: Time) -> Option<Told> {
        if self.path_mtu_changes.get() == 0 {
            return None;
        }
        self.path_mtus.borrow().of(destination).copied().filter(|told| now < told.until)
    }

    /// How often [`Interface::on_too_big`] has told something new: who goes by [`Interface::told_mtu`] looks again.
    #[inline]
    pub fn path_mtu_changes(&self) -> u32 {
        self.path_mtu_changes.get()
    }

    /// RFC 1191 §3, RFC 8201 §4: a router carries no more than `mtu` bytes on the way to `destination`. Nothing when that
    /// says nothing new (it never raises what is known), or is not to be believed.
    pub fn on_too_big(&self, destination: Address, mtu: u32, now: Time) {
        let Some(told) = path_mtu::believed(destination, mtu, now) else { return };
        let before = self.told_mtu(destination, now);
        let divides = told.divisible && !before.is_some_and(|before| before.divisible);
        if divides || told.mtu < self.mtu_as_told(destination, before) {
            self.path_mtus.borrow_mut().set(destination, told);
            self.path_mtu_changes.set(self.path_mtu_changes.get().wrapping_add(1).max(1));
        }
    }

    #[inline]
    fn bounded(&self, destination: Address, mtu: u16) -> u16 {
        if !self.has_metrics.get() {
            return mtu;
        }
        self.metrics(destination).mtu.map_or(mtu, |most| most.min(mtu))
    }

    /// Every way from here: the networks on the link, the gateways, and the routes.
    pub fn ways(&self) -> Vec<Route> {
        let metrics = Metrics::default();
        let route =
            |network: Address, prefix_len, way| Route { network, prefix_len, way, metric: 0, metrics };
        let connected = self.addresses4().into_iter().map(|(address, len)| {
            let network = Ipv4Addr::from_bits(address.to_bits() & mask(len));
            route(network.into(), V4_PREFIX_LEN + len, Way::Link)
        });
        let connected6 = self.ip6.networks().into_iter().map(|(network, len)| route(network, len, Way::Link));
        let default = |router: Address, network, len| route(network, len, Way::Via(router));
        let gateway =
            self.gateway.get().map(|router| default(router.into(), Address::UNSPECIFIED_V4, V4_PREFIX_LEN));
        let router = self.ip6.router().map(|router| default(router.into(), Address::UNSPECIFIED_V6, 0));
        let routes = self.routes.borrow();
        let all = connected.chain(connected6).chain(gateway).chain(router);
        all.chain(routes.as_slice().iter().copied()).collect()
    }

    /// Bits (of 128) of the longest network on this link that an address is in.
    fn network_len(&self, address: Address) -> Option<u8> {
        let Some(address) = address.as_v4() else { return self.ip6.network_len(address) };
        self.network_of(address).map(|(_, prefix_len)| V4_PREFIX_LEN + prefix_len)
    }

    /// Our address in the longest of our networks that `address` is in.
    fn network_of(&self, address: Ipv4Addr) -> Option<(Ipv4Addr, u8)> {
        let first = (self.address.get(), self.prefix_len.get());
        let others = self.others.borrow();
        let all = std::iter::once(first).chain(others.iter().copied());
        let holds = |&(ours, len): &(Ipv4Addr, u8)| {
            ours != NO_ADDRESS && (u32::from(address) ^ u32::from(ours)) & mask(len) == 0
        };
        // Of several addresses in one network the first speaks, as Linux' primary one does.
        all.filter(holds).reduce(|best, one| if one.1 > best.1 { one } else { best })
    }

    /// True when `address` is in a network of this link.
    pub fn is_on_link(&self, address: Address) -> bool {
        if self.is_own_link() {
            return self.is_ours(address);
        }
        match address.as_v4() {
            Some(address) => self.network_of(address).is_some(),
            None => self.ip6.is_on_link(address),
        }
    }

    /// True for the broadcast addresses of our networks (RFC 1122 §3.3.6: the limited one apart).
    pub fn is_directed_broadcast(&self, address: Ipv4Addr) -> bool {
        let of = |ours: Ipv4Addr, len: u8| {
            let differ = u32::from(address) ^ u32::from(ours);
            // RFC 3021: networks of 31 bits (and hosts) have none.
            len < 31 && differ & mask(len) == 0 && u32::from(address) | mask(len) == u32::MAX
        };
        let first = self.address.get();
        first != NO_ADDRESS && of(first, self.prefix_len.get())
            || self.others.borrow().iter().any(|&(ours, len)| of(ours, len))
    }

    /// True for the address of everybody, or of everybody on a network of ours.
    pub fn is_everybody(&self, address: Address) -> bool {
        address.as_v4().is_some_and(|v4| v4.is_broadcast() || self.is_directed_broadcast(v4))
    }

    /// True when sockets may take here what goes to this group, or to everybody.
    pub fn takes_for_many(&self, address: Address) -> bool {
        !self.is_own_link() && (address.is_multicast() && self.speaks(address) || self.is_everybody(address))
    }

    /// True for an address of our own that is in use.
    #[inline]
    pub fn is_ours(&self, address: Address) -> bool {
        let first = self.address.get();
        address == first.into() && first != NO_ADDRESS || self.is_another_of_ours(address)
    }

    fn is_another_of_ours(&self, address: Address) -> bool {
        if let Some(machine) = &self.machine {
            return address.is_loopback() || machine.iter().any(|interface| interface.is_ours(address));
        }
        match address.as_v4() {
            Some(address) => self.others.borrow().iter().any(|&(ours, _)| ours == address),
            None => self.ip6.is_ours(address),
        }
    }

    /// True for an address of ours that may also be tentative: programs may bind to it.
    pub fn may_be_ours(&self, address: Address) -> bool {
        let of_machine = |machine: &Vec<Rc<Interface>>| machine.iter().any(|one| one.may_be_ours(address));
        self.is_ours(address)
            || !address.is_v4() && self.ip6.may_be_ours(address)
            || self.machine.as_ref().is_some_and(of_machine)
    }

    /// True when it has part in the family of this address.
    pub fn speaks(&self, address: Address) -> bool {
        if !address.is_v4() {
            return self.ip6.enabled;
        }
        self.is_own_link() || self.address.get() != NO_ADDRESS
    }

    /// The address that packets to `destination` come from, or `None` when no address of its family is in use.
    pub fn source_for(&self, destination: Address) -> Option<Address> {
        if self.is_own_link() {
            // Who speaks to itself has one address. Linux answers for all of 127/8 from its first.
            let loopback = destination.is_loopback() && destination.is_v4();
            return Some(if loopback { Ipv4Addr::LOCALHOST.into() } else { destination });
        }
        if !destination.is_v4() {
            return self.ip6.source_for(destination).map(Address::from);
        }
        let first = Some(self.address.get()).filter(|&first| first != NO_ADDRESS)?;
        if self.others.borrow().is_empty() {
            return Some(first.into());
        }
        // RFC 1122 §3.3.4.3: the one on the network of the destination, or of the router on the way.
        let towards = match self.way(destination) {
            Some((Way::Via(router), _)) => router,
            _ => destination,
        };
        let ours = towards.as_v4().and_then(|towards| self.network_of(towards));
        Some(ours.map_or(first, |(ours, _)| ours).into())
    }

    /// True when we take packets for this address: our own, and the broadcasts that reach us.
    #[inline]
    pub fn accepts(&self, destination: Address) -> bool {
        if self.is_ours(destination) {
            return true;
        }
        if self.is_own_link() {
            return false;
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

    /// The neighbours of the family of `address`.
    #[inline]
    pub fn neighbours_of(&self, address: Address) -> &RefCell<Cache> {
        if address.is_v4() { &self.neighbours } else { &self.neighbours6 }
    }

    /// The groups of the family of `group`.
    pub fn groups_of(&self, group: Address) -> &RefCell<Groups> {
        if group.is_v4() { &self.groups } else { &self.groups6 }
    }

    /// False for source addresses that no honest packet from the link has (RFC 1122 §3.2.1.3).
    #[inline]
    pub fn is_valid_source(&self, source: Address) -> bool {
        if self.is_own_link() {
            return self.is_ours(source);
        }
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
            // Each family's own; the other's is a protocol that we do not have.
            ipv4::PROTOCOL_ICMP if key.local.is_v4() => None,
            ipv6::PROTOCOL_ICMPV6 if !key.local.is_v4() => None,
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

    /// Asks again for neighbours that did not answer, probes addresses, asks for routers, and tells them of groups.
    pub fn on_neighbour_timeout(
        &self,
        now: Time,
        out: &mut Burst,
        account: &mut Account,
        effects: &mut Vec<Effect>,
    ) {
        neighbour::on_timeout(self, now, out, account, effects);
        self.ip6.on_timeout(now, |task| match task {
            crate::ip6::Task::Probe(address) => {
                out.push(nd::report_frame(self, address));
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
}

/// The link address of the machine's link with itself: locally administered, and nobody's on any wire.
const OWN_LINK: ethernet::Address = [2, 0, 0, 0, 0, 0];

fn mask(prefix_len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0)
}

#[cfg(test)]
mod tests;
