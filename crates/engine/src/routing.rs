//! Which device leads to an address: the networks, gateways and routes of all devices compared, the machine's own
//! addresses first.
//!
//! ```text
//!   one of ours? ─► the link with itself        else, over all devices: the longest prefix, then the smallest metric
//! ```
//! Shared (`Rc`) by the core, which makes paths, and by datagram sockets without a peer, which ask for every datagram.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use scoutline_base::Address;
use scoutline_proto::Interface;
use scoutline_proto::errno::ENETUNREACH;
use scoutline_proto::route::{Route, Routes, Way};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Routing {
    /// By number of the net, each with Linux's number of the interface.
    nets: RefCell<Vec<(Rc<Interface>, u32)>>,
    /// The number of the machine's link with itself.
    own_link: Cell<Option<usize>>,
    /// Routes that lead nowhere.
    refusals: RefCell<Routes>,
}

impl Routing {
    /// Takes in the next net; `index` is Linux's number of its interface.
    pub(crate) fn add(&self, interface: Rc<Interface>, index: u32) {
        let mut nets = self.nets.borrow_mut();
        if interface.is_own_link() {
            self.own_link.set(Some(nets.len()));
        }
        nets.push((interface, index));
    }

    /// The machine's link with itself.
    pub(crate) fn own_link(&self) -> Option<usize> {
        self.own_link.get()
    }

    /// Linux's number of the interface that has this address.
    pub(crate) fn interface_of(&self, address: Address) -> Option<u32> {
        let nets = self.nets.borrow();
        let has_it = |net: &Interface| !net.is_own_link() && net.is_ours(address);
        nets.iter().find(|(net, _)| has_it(net)).map(|(_, index)| *index)
    }

    /// What leads nowhere from now on.
    pub(crate) fn set_refusals(&self, routes: Vec<Route>) {
        *self.refusals.borrow_mut() = Routes::new(routes);
    }

    /// The net that reaches an address; one that is link-local, a group's or everybody's in this scope, if it has one.
    ///
    /// # Errors
    /// The errno that Linux has for it.
    pub(crate) fn towards(&self, remote: Address, scope: u32) -> Result<usize, i32> {
        self.towards_by(remote, scope, 0)
    }

    /// The same for who takes one interface only (SO_BINDTODEVICE), by Linux's number; 0: any.
    pub(crate) fn towards_by(&self, remote: Address, scope: u32, device: u32) -> Result<usize, i32> {
        let nets = self.nets.borrow();
        let is_its = |index: u32| device == 0 || index == device;
        if let Some(own) = self.own_link.get()
            && nets[own].0.is_ours(remote)
        {
            return Ok(own);
        }
        let everybody = || nets.iter().any(|(net, _)| net.is_everybody(remote));
        if scope != 0 && (remote.is_link_local() || remote.is_multicast() || everybody()) {
            let there =
                nets.iter().position(|(net, index)| *index == scope && is_its(*index) && net.speaks(remote));
            return there.ok_or(ENETUNREACH);
        }
        let mut best = None;
        for (number, (net, _)) in nets.iter().enumerate().filter(|(_, (_, index))| is_its(*index)) {
            if let Some((_, rank)) = net.way(remote).filter(|_| !net.is_own_link())
                && best.is_none_or(|(_, other)| rank > other)
            {
                best = Some((number, rank));
            }
        }
        let refusals = self.refusals.borrow();
        if let Some(route) = refusals.find(remote)
            && let Way::Refuse(refusal) = route.way
            && best.is_none_or(|(_, rank)| route.rank() > rank)
        {
            return Err(refusal.errno());
        }
        // Groups have no way: the first device that speaks to them.
        let group = || nets.iter().position(|(net, index)| is_its(*index) && net.route(remote).is_some());
        best.map(|(number, _)| number).or_else(group).ok_or(ENETUNREACH)
    }
}

#[cfg(test)]
mod tests {
    use scoutline_base::DeviceId;
    use scoutline_proto::errno::{EACCES, EHOSTUNREACH, EINVAL};
    use scoutline_proto::route::{Metrics, Refusal};
    use scoutline_proto::{InterfaceConfig, Offload};

    use super::*;

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    fn interface(number: u16, ours: &str, gateway: Option<&str>) -> Rc<Interface> {
        Interface::new(&InterfaceConfig {
            device: DeviceId(number),
            link_address: [2, 0, 0, 0, 1, number as u8],
            address: ours.parse().unwrap(),
            prefix_len: 24,
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            ip6: None,
            seed: 1,
            mtu: 1500,
            trusted_checksums: false,
            offload: Offload::default(),
        })
    }

    fn route(network: &str, prefix_len: u8, way: Way) -> Route {
        let metrics = Metrics::default();
        Route { network: address(network), prefix_len: 96 + prefix_len, way, metric: 0, metrics }
    }

    /// 10.0.0.1 with the gateway, 10.0.1.1 with a router to 10.9.0.0/16, and the link of the machine with itself.
    fn routing() -> Routing {
        let nets = vec![interface(0, "10.0.0.1", Some("10.0.0.254")), interface(1, "10.0.1.1", None)];
        nets[1].set_routes(vec![route("10.9.0.0", 16, Way::Via(address("10.0.1.9")))]);
        let routing = Routing::default();
        for (net, number) in nets.iter().zip([4, 7]) {
            routing.add(Rc::clone(net), number);
        }
        routing.add(Interface::own_link(DeviceId(2), nets, 1, Offload::default()), 0);
        routing
    }

    #[test]
    fn the_longest_prefix_of_all_devices() {
        let routing = routing();
        let cases = [("10.0.0.7", 0), ("10.0.1.7", 1), ("10.9.3.4", 1), ("8.8.8.8", 0)];
        for (to, net) in cases {
            assert_eq!(routing.towards(address(to), 0), Ok(net), "{to}");
        }
        for group in ["255.255.255.255", "224.0.0.251", "10.0.1.255"] {
            assert!(routing.towards(address(group), 0).is_ok_and(|net| net < 2), "{group}");
        }
    }

    /// SO_BINDTODEVICE: by its interface, or not at all.
    #[test]
    fn bound_to_an_interface() {
        let routing = routing();
        let cases =
            [("10.0.0.7", Ok(0), Err(ENETUNREACH)), ("10.0.1.7", Ok(0), Ok(1)), ("10.9.3.4", Ok(0), Ok(1))];
        for (to, by_first, by_second) in cases {
            assert_eq!(routing.towards_by(address(to), 0, 4), by_first, "{to}");
            assert_eq!(routing.towards_by(address(to), 0, 7), by_second, "{to}");
        }
        assert_eq!(routing.towards_by(address("224.0.0.251"), 0, 7), Ok(1));
        assert_eq!(routing.towards_by(address("224.0.0.251"), 4, 7), Err(ENETUNREACH));
        assert_eq!(routing.towards_by(address("10.0.1.1"), 0, 4), Ok(2), "it is ours");
        assert_eq!(routing.towards_by(address("10.0.0.7"), 0, 99), Err(ENETUNREACH));
    }

    #[test]
    fn what_is_ours_stays_in_the_machine() {
        let routing = routing();
        assert_eq!(routing.own_link(), Some(2));
        for ours in ["10.0.0.1", "10.0.1.1", "127.0.0.1", "::1"] {
            assert_eq!(routing.towards(address(ours), 0), Ok(2), "{ours}");
        }
        assert_eq!(routing.towards(address("0.0.0.0"), 0), Err(ENETUNREACH));
        assert_eq!(routing.towards(address("2001:db8::1"), 0), Err(ENETUNREACH));
    }

    #[test]
    fn refused_as_linux_does() {
        let routing = routing();
        let refuse = |network, prefix_len, refusal| route(network, prefix_len, Way::Refuse(refusal));
        routing.set_refusals(vec![
            refuse("10.9.7.0", 24, Refusal::Unreachable),
            refuse("8.8.0.0", 16, Refusal::Blackhole),
            refuse("9.0.0.0", 8, Refusal::Prohibit),
            refuse("10.0.0.0", 8, Refusal::Blackhole),
        ]);
        let cases =
            [("10.9.7.1", EHOSTUNREACH), ("8.8.8.8", EINVAL), ("9.1.1.1", EACCES), ("10.77.0.1", EINVAL)];
        for (to, errno) in cases {
            assert_eq!(routing.towards(address(to), 0), Err(errno), "{to}");
        }
        assert_eq!(routing.towards(address("10.9.8.1"), 0), Ok(1), "more is known of it");
        assert_eq!(routing.towards(address("10.0.0.7"), 0), Ok(0));
    }
}
