//! What a host knows on one link: its own addresses with their states (RFC 4862), prefixes, routers (RFC 4861 §6.3),
//! and redirected destinations. Pure: it is told the time, and says what to send.
//!
//! ```text
//!                     duplicate address detection        preferred time over        valid time over
//!  made ─► Tentative ────────────────────────────► Preferred ────────► Deprecated ─────────► (gone)
//!              │ somebody has it
//!              └────────────────► Duplicate
//! ```

use std::cell::{Cell, RefCell};
use std::net::Ipv6Addr;
use std::time::Duration;

use scoutline_base::{Address, Time};
use scoutline_wire::nd::{self, Prefix, RouterAdvertisement};
use scoutline_wire::{ethernet, ipv6};

use super::HOP_LIMIT;
use super::identification::Identifications;
use crate::destinations::Destinations;

/// Bits of a network in which addresses are made (RFC 4291 §2.5.1, RFC 4862 §5.5.3 (d)).
const AUTONOMOUS_LEN: u8 = 64;
/// Addresses that a host has, at most: Linux' `max_addresses`.
const MAX_ADDRESSES: usize = 16;
/// Prefixes and routers that are remembered.
const MAX_PREFIXES: usize = 16;
const MAX_ROUTERS: usize = 8;
/// RFC 4861 §10: MAX_RTR_SOLICITATIONS and RTR_SOLICITATION_INTERVAL.
const MAX_ROUTER_SOLICITATIONS: u8 = 3;
const ROUTER_SOLICITATION_INTERVAL: Duration = Duration::from_secs(4);
/// RFC 4861 §10: RETRANS_TIMER; RFC 4862 §5.1: one probe.
const RETRANSMIT_TIME: Duration = Duration::from_secs(1);
/// RFC 4862 §5.5.3 (e.2): a prefix's valid time is cut to no less by whoever can send advertisements.
const LEAST_CUT_VALID: Duration = Duration::from_secs(2 * 3600);

/// What a host is told at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host6Config {
    /// Addresses with the length of their network's prefix; a link-local one is made beside them.
    pub addresses: Vec<(Ipv6Addr, u8)>,
    /// Where packets for other networks go, whatever routers say.
    pub gateway: Option<Ipv6Addr>,
    /// Routers are asked for, and what they advertise is used.
    pub autoconfigure: bool,
}

/// The state of an address (RFC 4862 §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressState {
    /// Nobody is known to have it; packets for it are not taken yet.
    Tentative,
    /// In use.
    Preferred,
    /// In use, but not for what begins.
    Deprecated,
    /// Another station has it.
    Duplicate,
}

impl AddressState {
    /// For people.
    pub const fn as_str(self) -> &'static str {
        match self {
            AddressState::Tentative => "tentative",
            AddressState::Preferred => "preferred",
            AddressState::Deprecated => "deprecated",
            AddressState::Duplicate => "duplicate",
        }
    }
}

/// An address of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// The address.
    pub address: Ipv6Addr,
    /// Bits of its network.
    pub prefix_len: u8,
    /// See [`AddressState`].
    pub state: AddressState,
    /// A router's prefix made it.
    pub autonomous: bool,
    /// When the state ends: the probe's answer is due, or a lifetime is over.
    deadline: Option<Time>,
    valid_until: Option<Time>,
    preferred_until: Option<Time>,
    probed: bool,
}

#[derive(Clone, Copy, Debug)]
struct OnLink {
    network: Address,
    prefix_len: u8,
    valid_until: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Router {
    address: Ipv6Addr,
    until: Time,
}

/// What is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// A listener report for the group of this address, and a solicitation that asks whether it is in use.
    Probe(Ipv6Addr),
    /// A router solicitation.
    SolicitRouters,
}

/// IPv6 on one interface.
#[derive(Debug, Default)]
pub struct Host6 {
    /// False: there is no IPv6 here.
    pub enabled: bool,
    autoconfigure: bool,
    link_address: ethernet::Address,
    gateway: Option<Ipv6Addr>,
    addresses: RefCell<Vec<OwnAddress>>,
    on_link: RefCell<Vec<OnLink>>,
    routers: RefCell<Vec<Router>>,
    /// To which neighbour, by a router's word (RFC 4861 §8).
    redirected: RefCell<Destinations<Ipv6Addr, Ipv6Addr>>,
    hop_limit: Cell<u8>,
    mtu: Cell<u16>,
    /// What the link itself carries: routers may ask for less.
    link_mtu: u16,
    /// Solicitations that were sent, and when the next is due.
    solicited: Cell<(u8, Option<Time>)>,
    identifications: Identifications,
    /// Packets that come here may be for others.
    router: Cell<bool>,
    generation: Cell<u32>,
}

impl Host6 {
    /// A host whose addresses are still to be probed; `None` has no IPv6. `seed` is the secret of the
    /// identifications of fragments.
    pub fn new(config: Option<&Host6Config>, link_address: ethernet::Address, mtu: u16, seed: u64) -> Host6 {
        // RFC 8200 §5: a link that carries less than 1280 bytes carries no IPv6.
        let Some(config) = config.filter(|_| mtu >= ipv6::MIN_MTU) else { return Host6::default() };
        let host = Host6 {
            enabled: true,
            autoconfigure: config.autoconfigure,
            link_address,
            gateway: config.gateway,
            hop_limit: Cell::new(HOP_LIMIT),
            mtu: Cell::new(mtu),
            link_mtu: mtu,
            identifications: Identifications::new(seed),
            solicited: Cell::new((0, config.autoconfigure.then_some(Time::ZERO))),
            ..Host6::default()
        };
        let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
        host.add(nd::interface_address(link_local, link_address), AUTONOMOUS_LEN, false);
        for &(address, prefix_len) in &config.addresses {
            host.add(address, prefix_len, false);
        }
        host
    }

    /// The machine's link with itself, whose addresses are those of other links.
    pub(crate) fn own_link(mtu: u16, seed: u64) -> Host6 {
        Host6 {
            enabled: true,
            hop_limit: Cell::new(HOP_LIMIT),
            mtu: Cell::new(mtu),
            link_mtu: mtu,
            identifications: Identifications::new(seed),
            ..Host6::default()
        }
    }

    /// Adds an address, unless it is there: true when it is new.
    fn add(&self, address: Ipv6Addr, prefix_len: u8, autonomous: bool) -> bool {
        let mut addresses = self.addresses.borrow_mut();
        let is_new = addresses.len() < MAX_ADDRESSES && addresses.iter().all(|own| own.address != address);
        if is_new {
            addresses.push(OwnAddress {
                address,
                prefix_len,
                state: AddressState::Tentative,
                autonomous,
                deadline: Some(Time::ZERO),
                valid_until: None,
                preferred_until: None,
                probed: false,
            });
            self.changed();
        }
        is_new
    }

    fn changed(&self) {
        self.generation.set(self.generation.get().wrapping_add(1));
    }

    /// Changes whenever addresses, networks or routers do.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.get()
    }

    /// Our addresses.
    pub fn addresses(&self) -> Vec<OwnAddress> {
        self.addresses.borrow().clone()
    }

    /// True for an address of ours that is in use.
    #[inline]
    pub fn is_ours(&self, address: Address) -> bool {
        use AddressState::{Deprecated, Preferred};
        let of = |own: &OwnAddress| {
            Address::from(own.address) == address && matches!(own.state, Preferred | Deprecated)
        };
        self.addresses.borrow().iter().any(of)
    }

    /// True for an address of ours that may also be tentative: programs may bind to it.
    pub fn may_be_ours(&self, address: Address) -> bool {
        let of =
            |own: &OwnAddress| Address::from(own.address) == address && own.state != AddressState::Duplicate;
        self.addresses.borrow().iter().any(of)
    }

    /// True for the groups that we are in: all nodes, all routers if we are one (RFC 4291 §2.8), and those of our
    /// addresses' solicitations.
    pub fn is_in_group(&self, group: Ipv6Addr) -> bool {
        group == nd::ALL_NODES
            || group == nd::ALL_ROUTERS && self.is_router()
            || self.addresses.borrow().iter().any(|own| nd::solicited_node(own.address) == group)
    }

    /// True when `address` is on this link (RFC 4861 §2.1).
    pub fn is_on_link(&self, address: Address) -> bool {
        self.network_len(address).is_some()
    }

    /// Bits of the longest network on this link that `address` is in.
    pub(crate) fn network_len(&self, address: Address) -> Option<u8> {
        if address.is_link_local() {
            return Some(AUTONOMOUS_LEN);
        }
        let (on_link, addresses) = (self.on_link.borrow(), self.addresses.borrow());
        let told = on_link.iter().map(|on| (on.network, on.prefix_len));
        let configured = addresses.iter().filter(|own| !own.autonomous);
        let configured = configured.map(|own| (Address::from(own.address), own.prefix_len));
        let holds = told.chain(configured).filter(|&(network, len)| address.is_within(network, len));
        holds.map(|(_, len)| len).max()
    }

    /// The networks on this link, each with its length.
    pub(crate) fn networks(&self) -> Vec<(Address, u8)> {
        let (on_link, addresses) = (self.on_link.borrow(), self.addresses.borrow());
        let told = on_link.iter().map(|on| (on.network, on.prefix_len));
        let base = |own: &OwnAddress| {
            let mask = u128::MAX.checked_shl(128 - u32::from(own.prefix_len)).unwrap_or(0);
            Address::from_bits(Address::from(own.address).to_bits() & mask)
        };
        let configured = addresses.iter().filter(|own| !own.autonomous);
        told.chain(configured.map(|own| (base(own), own.prefix_len))).collect()
    }

    /// The router for other networks: as configured, else the first that advertises itself.
    pub fn router(&self) -> Option<Ipv6Addr> {
        self.gateway.or_else(|| self.routers.borrow().first().map(|router| router.address))
    }

    /// RFC 4861 §7.2.5: a station that was a router says that it is none any more.
    pub fn on_no_router(&self, address: Ipv6Addr) {
        let mut routers = self.routers.borrow_mut();
        let before = routers.len();
        routers.retain(|router| router.address != address);
        let was_router = routers.len() != before;
        drop(routers);
        if was_router {
            self.forget_redirects_to(address);
            self.changed();
        }
    }

    /// RFC 4861 §6.3.6, §7.3.3: a neighbour does not answer. What was redirected to it goes to the router again, and if
    /// it was that, another goes before it from now on.
    pub fn on_unreachable(&self, neighbour: Ipv6Addr) {
        let mut changed = self.forget_redirects_to(neighbour);
        let mut routers = self.routers.borrow_mut();
        if routers.len() > 1 && routers[0].address == neighbour {
            routers.rotate_left(1);
            changed = true;
        }
        drop(routers);
        if changed {
            self.changed();
        }
    }

    /// The source address for packets to `destination` (RFC 6724 §5, the rules that can differ here: 1 same address,
    /// 2 scope, 3 avoid deprecated ones, 8 longest common prefix).
    pub fn source_for(&self, destination: Address) -> Option<Ipv6Addr> {
        // A group of the link is reached from a link-local address, as one beyond from a global one.
        let [high, _] = destination.words();
        let near = destination.is_link_local()
            || destination.is_multicast() && (high >> 48 & 0xf) <= 2
            || destination.is_unspecified();
        let score = |own: &&OwnAddress| {
            let address = Address::from(own.address);
            let common = (address.to_bits() ^ destination.to_bits()).leading_zeros();
            (
                address == destination,
                address.is_link_local() == near,
                own.state == AddressState::Preferred,
                common,
            )
        };
        let addresses = self.addresses.borrow();
        let usable = |own: &&OwnAddress| {
            matches!(own.state, AddressState::Preferred | AddressState::Deprecated)
                && (near || !Address::from(own.address).is_link_local())
        };
        addresses.iter().filter(usable).max_by_key(score).map(|own| own.address)
    }

    /// The hop limit of outgoing packets.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.hop_limit.get()
    }

    /// Bytes of a packet that this link carries.
    #[inline]
    pub fn mtu(&self) -> u16 {
        self.mtu.get()
    }

    /// The identification of the next packet between these two that is cut into fragments.
    pub fn next_identification(&self, source: Ipv6Addr, destination: Ipv6Addr) -> u32 {
        self.identifications.next(source, destination)
    }

    /// The neighbour to which a router has redirected packets for `destination`: the destination itself, or another
    /// router.
    pub(crate) fn redirected(&self, destination: Ipv6Addr) -> Option<Ipv6Addr> {
        self.redirected.borrow().of(destination).copied()
    }

    /// RFC 4861 §8.3: the router on the way to `destination` says that `target` is the better first hop. Routers decide
    /// for themselves (§8.2): false.
    pub(crate) fn on_redirect(&self, destination: Ipv6Addr, target: Ipv6Addr) -> bool {
        if self.is_router() {
            return false;
        }
        self.redirected.borrow_mut().set(destination, target);
        self.changed();
        true
    }

    /// Ways have changed that redirects were said about.
    pub(crate) fn forget_redirects(&self) {
        if self.redirected.borrow_mut().retain(|_| false) {
            self.changed();
        }
    }

    /// Nothing goes by way of this neighbour any more (RFC 4861 §7.2.5, §7.3.3). True when that changes something.
    fn forget_redirects_to(&self, neighbour: Ipv6Addr) -> bool {
        self.redirected.borrow_mut().retain(|next_hop| *next_hop != neighbour)
    }

    /// Packets that come here may be for others from now on (RFC 4861 §2.1).
    pub fn become_router(&self) {
        self.router.set(true);
    }

    /// True when packets that come here may be for others.
    pub fn is_router(&self) -> bool {
        self.router.get()
    }

    /// Another station has, or asks for, an address that we probe (RFC 4862 §5.4.3, §5.4.4): true when that ends it.
    pub fn on_duplicate(&self, address: Ipv6Addr) -> bool {
        let mut addresses = self.addresses.borrow_mut();
        let tentative =
            |own: &&mut OwnAddress| own.address == address && own.state == AddressState::Tentative;
        let Some(own) = addresses.iter_mut().find(tentative) else { return false };
        own.state = AddressState::Duplicate;
        own.deadline = None;
        self.changed();
        true
    }

    /// True while the address is probed.
    pub fn is_tentative(&self, address: Ipv6Addr) -> bool {
        let tentative = |own: &OwnAddress| own.address == address && own.state == AddressState::Tentative;
        self.addresses.borrow().iter().any(tentative)
    }

    /// RFC 4861 §6.3.4: a router on the link says what is so here.
    pub fn on_router_advertisement(&self, from: Ipv6Addr, said: &RouterAdvertisement, now: Time) {
        if !self.autoconfigure {
            return;
        }
        self.solicited.set((MAX_ROUTER_SOLICITATIONS, None));
        if let Some(limit) = said.hop_limit {
            self.hop_limit.set(limit);
        }
        if let Some(mtu) = said.mtu
            && (u32::from(ipv6::MIN_MTU)..=u32::from(self.link_mtu)).contains(&mtu)
        {
            self.mtu.set(mtu as u16);
        }
        self.on_router(from, said.lifetime, now);
        for prefix in &said.prefixes {
            // RFC 4861 §6.3.4, RFC 4862 §5.5.3 (b), (c).
            let network = Address::from(prefix.network);
            let fits = !network.is_link_local() && !network.is_multicast() && !network.is_v4();
            if fits && prefix.preferred.unwrap_or(Duration::MAX) <= prefix.valid.unwrap_or(Duration::MAX) {
                self.on_prefix(prefix, now);
            }
        }
    }

    fn on_router(&self, from: Ipv6Addr, lifetime: Duration, now: Time) {
        let mut routers = self.routers.borrow_mut();
        let before = routers.len();
        let known = routers.iter().position(|router| router.address == from);
        match known {
            Some(index) if lifetime.is_zero() => _ = routers.remove(index),
            Some(index) => routers[index].until = now + lifetime,
            None if lifetime.is_zero() || before >= MAX_ROUTERS => {}
            None => routers.push(Router { address: from, until: now + lifetime }),
        }
        if routers.len() != before {
            self.changed();
        }
    }

    fn on_prefix(&self, prefix: &Prefix, now: Time) {
        let until = |lifetime: Option<Duration>| lifetime.map(|lifetime| now + lifetime);
        if prefix.on_link {
            let mut on_link = self.on_link.borrow_mut();
            let before = on_link.len();
            let network = Address::from(prefix.network);
            let same = |on: &OnLink| on.network == network && on.prefix_len == prefix.prefix_len;
            on_link.retain(|on| !same(on));
            if prefix.valid != Some(Duration::ZERO) && on_link.len() < MAX_PREFIXES {
                let valid_until = until(prefix.valid);
                on_link.push(OnLink { network, prefix_len: prefix.prefix_len, valid_until });
            }
            if on_link.len() != before {
                self.changed();
            }
        }
        if prefix.autonomous && prefix.prefix_len == AUTONOMOUS_LEN {
            self.on_autonomous(prefix, now);
        }
    }

    /// RFC 4862 §5.5.3 (d), (e).
    fn on_autonomous(&self, prefix: &Prefix, now: Time) {
        let until = |lifetime: Option<Duration>| lifetime.map(|lifetime| now + lifetime);
        let address = nd::interface_address(prefix.network, self.link_address);
        // (d): without a valid lifetime none is made; (e): one that is there hears that it ends.
        let fresh = prefix.valid != Some(Duration::ZERO) && self.add(address, AUTONOMOUS_LEN, true);
        let mut addresses = self.addresses.borrow_mut();
        let Some(own) = addresses.iter_mut().find(|own| own.address == address) else { return };
        // A configured one lives for ever.
        if !own.autonomous {
            return;
        }
        let remaining = own.valid_until.map_or(Duration::MAX, |until| until.since(now));
        let told = prefix.valid.unwrap_or(Duration::MAX);
        if fresh || told > LEAST_CUT_VALID || told > remaining {
            own.valid_until = until(prefix.valid);
        } else if remaining > LEAST_CUT_VALID {
            own.valid_until = Some(now + LEAST_CUT_VALID);
        }
        own.preferred_until = until(prefix.preferred);
        if own.state == AddressState::Deprecated && own.preferred_until.is_none_or(|until| until > now) {
            own.state = AddressState::Preferred;
        }
        if matches!(own.state, AddressState::Preferred | AddressState::Deprecated) {
            own.deadline = own.next_deadline();
        }
    }

    /// When [`Host6::on_timeout`] has work.
    pub fn next_timeout(&self) -> Option<Time> {
        if !self.enabled {
            return None;
        }
        let addresses = self.addresses.borrow();
        let of_addresses = addresses.iter().filter_map(|own| own.deadline).min();
        let of_routers = self.routers.borrow().iter().map(|router| router.until).min();
        let of_networks = self.on_link.borrow().iter().filter_map(|on| on.valid_until).min();
        let solicited = self.solicited.get().1;
        [of_addresses, of_routers, of_networks, solicited].into_iter().flatten().min()
    }

    /// What is due: states change, and `send` is told what goes out.
    pub fn on_timeout(&self, now: Time, mut send: impl FnMut(Task)) {
        let mut tasks = Vec::new();
        let mut changed = false;
        self.addresses.borrow_mut().retain_mut(|own| {
            if own.deadline.is_none_or(|due| due > now) {
                return true;
            }
            changed |= own.step(now, &mut tasks);
            own.deadline.is_some() || own.valid_until.is_none_or(|until| until > now)
        });
        let retain = |until: Option<Time>| until.is_none_or(|until| until > now);
        let count = self.routers.borrow().len() + self.on_link.borrow().len();
        self.routers.borrow_mut().retain(|router| retain(Some(router.until)));
        self.on_link.borrow_mut().retain(|on| retain(on.valid_until));
        changed |= count != self.routers.borrow().len() + self.on_link.borrow().len();
        if changed {
            self.changed();
        }
        let (sent, due) = self.solicited.get();
        if due.is_some_and(|due| due <= now) {
            tasks.push(Task::SolicitRouters);
            let next = (sent + 1 < MAX_ROUTER_SOLICITATIONS).then(|| now + ROUTER_SOLICITATION_INTERVAL);
            self.solicited.set((sent + 1, next));
        }
        tasks.into_iter().for_each(&mut send);
    }
}

impl OwnAddress {
    fn next_deadline(&self) -> Option<Time> {
        match self.state {
            AddressState::Preferred => self.preferred_until.into_iter().chain(self.valid_until).min(),
            AddressState::Deprecated => self.valid_until,
            AddressState::Tentative | AddressState::Duplicate => None,
        }
    }

    /// The deadline has come: true when others see a change.
    fn step(&mut self, now: Time, tasks: &mut Vec<Task>) -> bool {
        match self.state {
            AddressState::Tentative if !self.probed => {
                self.probed = true;
                self.deadline = Some(now + RETRANSMIT_TIME);
                tasks.push(Task::Probe(self.address));
                return false;
            }
            AddressState::Tentative => self.state = AddressState::Preferred,
            _ => {}
        }
        if self.state == AddressState::Preferred && self.preferred_until.is_some_and(|until| until <= now) {
            self.state = AddressState::Deprecated;
        }
        self.deadline = self.next_deadline().filter(|&due| due > now);
        true
    }
}

#[cfg(test)]
mod tests;
