//! `[[route]]` and `[local]`: where packets go that no device's own network takes, and those for this machine.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use scoutline_base::{Address, DeviceId, V4_PREFIX_LEN};
use scoutline_engine::{HostSettings, Metrics, OwnLink, Refusal, Route as EngineRoute, RouteSettings, Way};
use serde::Deserialize;
use toml::Spanned;

use super::check::{Checked, fault};
use super::{AnyNetwork, Config, Device, Ip6Mode, Network};

/// Addresses and routes that a program can be told of: the header of a region holds so many networks, those that
/// routers advertise (16 on a device at most) among them.
const MAX_NETWORKS: usize = scoutline_abi::layout::SERVED_COUNT;

/// RFC 791 §3.2: what every link carries.
const LEAST_MTU: u32 = 68;
/// RFC 8200 §5.
const LEAST_MTU6: u32 = 1280;
/// Linux: `TCP_MIN_MSS`, and the largest packet without its headers.
const ADVERTISED: RangeInclusive<u32> = 88..=65_495;
/// In segments.
const INITIAL_WINDOWS: RangeInclusive<u32> = 1..=65_535;

/// `[[route]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The network.
    pub to: Spanned<AnyNetwork>,
    /// The router; without one the network is on the device's link.
    pub via: Option<Spanned<IpAddr>>,
    /// The device; default: the one on whose network the router is.
    pub device: Option<Spanned<String>>,
    /// Of two routes to the same network the smaller one's is taken.
    #[serde(default)]
    pub metric: u32,
    /// What becomes of the packets; default: they go there.
    #[serde(default, rename = "type")]
    pub kind: RouteKind,
    /// Bytes of an IP packet that the way carries at most; default: what the device carries.
    pub mtu: Option<Spanned<u32>>,
    /// The largest segment that peers are told to send; default: what the MTU leaves.
    pub advmss: Option<Spanned<u32>>,
    /// The initial congestion window, in segments; default: ten, as RFC 6928 has it.
    pub initcwnd: Option<Spanned<u32>>,
    /// The window that the SYN tells at most, in segments; default: the receive buffer.
    pub initrwnd: Option<Spanned<u32>>,
}

/// `type = "…"`, named as in ip-route(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteKind {
    /// They go there.
    #[default]
    Unicast,
    /// They are dropped; programs get EINVAL.
    Blackhole,
    /// Programs get EHOSTUNREACH.
    Unreachable,
    /// Programs get EACCES.
    Prohibit,
}

/// `[local]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Local {
    /// Two programs on paths of this machine reach each other at its addresses.
    pub enabled: bool,
    /// Loopback addresses belong to paths, for programs on paths.
    pub loopback: bool,
}

impl Default for Local {
    fn default() -> Local {
        Local { enabled: true, loopback: false }
    }
}

impl Local {
    /// In the engine's words.
    pub(super) fn own_link(&self) -> Option<OwnLink> {
        self.enabled.then_some(OwnLink { loopback: self.loopback })
    }
}

impl Config {
    /// Addresses and routes in the engine's words. They have been checked.
    pub(super) fn host(&self) -> HostSettings {
        let numbered = self.device.iter().enumerate();
        let others = numbered.flat_map(|(index, device)| {
            let other = move |network: &Network| (DeviceId(index as u16), network.address, network.prefix);
            device.networks().split_first().map_or(&[][..], |(_, others)| others).iter().map(other)
        });
        HostSettings {
            others: others.collect(),
            routes: self.route.iter().map(|one| self.route(one)).collect(),
        }
    }

    fn route(&self, route: &Route) -> RouteSettings {
        let AnyNetwork { prefix, .. } = *route.to.get_ref();
        let network = Address::from(route.to.get_ref().base());
        let prefix_len = if network.is_v4() { V4_PREFIX_LEN + prefix } else { prefix };
        let way = match (route.kind.refusal(), &route.via) {
            (Some(refusal), _) => Way::Refuse(refusal),
            (None, Some(via)) => Way::Via((*via.get_ref()).into()),
            (None, None) => Way::Link,
        };
        let device = self.device_of(route).map(|index| DeviceId(index as u16));
        let metrics = Metrics {
            mtu: number(route.mtu.as_ref()),
            advmss: number(route.advmss.as_ref()),
            initcwnd: number(route.initcwnd.as_ref()),
            initrwnd: number(route.initrwnd.as_ref()),
        };
        RouteSettings {
            device,
            route: EngineRoute { network, prefix_len, way, metric: route.metric, metrics },
        }
    }

    /// The device of a route: as it says, or the one on whose network its router is.
    fn device_of(&self, route: &Route) -> Option<usize> {
        if let Some(name) = &route.device {
            return self.device.iter().position(|device| device.name.get_ref() == name.get_ref());
        }
        let via = *route.via.as_ref()?.get_ref();
        self.device.iter().position(|device| device.reaches(via))
    }
}

/// One of a route's metrics. It has been checked.
fn number(value: Option<&Spanned<u32>>) -> Option<u16> {
    value.and_then(|value| u16::try_from(*value.get_ref()).ok())
}

impl Route {
    /// The metrics that it has, by name, with what each may be.
    fn metrics(&self) -> impl Iterator<Item = (&'static str, &Spanned<u32>, RangeInclusive<u32>)> {
        let least_mtu = if self.to.get_ref().address.is_ipv4() { LEAST_MTU } else { LEAST_MTU6 };
        [
            ("mtu", &self.mtu, least_mtu..=u32::from(u16::MAX)),
            ("advmss", &self.advmss, ADVERTISED),
            ("initcwnd", &self.initcwnd, INITIAL_WINDOWS),
            ("initrwnd", &self.initrwnd, INITIAL_WINDOWS),
        ]
        .into_iter()
        .filter_map(|(name, value, range)| Some((name, value.as_ref()?, range)))
    }
}

impl RouteKind {
    fn refusal(self) -> Option<Refusal> {
        match self {
            RouteKind::Unicast => None,
            RouteKind::Blackhole => Some(Refusal::Blackhole),
            RouteKind::Unreachable => Some(Refusal::Unreachable),
            RouteKind::Prohibit => Some(Refusal::Prohibit),
        }
    }
}

impl Device {
    /// Its IPv4 addresses with their networks, the first one first.
    pub(crate) fn networks(&self) -> &[Network] {
        self.address.as_ref().map_or(&[], |networks| &networks.get_ref().0)
    }

    /// True when an address is on one of its networks, and not its own.
    fn reaches(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => {
                self.networks().iter().any(|network| network.contains(address) && network.address != address)
            }
            IpAddr::V6(address) => self.address6.iter().any(|network| {
                let network = network.get_ref();
                let within = Address::from(address).is_within(network.address.into(), network.prefix);
                within && network.address != address
            }),
        }
    }
}

pub(super) fn check_routes(config: &Config) -> Checked {
    let addresses = config.device.iter().map(|device| device.networks().len() + device.address6.len() + 1);
    let known = addresses.sum::<usize>() + config.route.len() + 2;
    if let Some(route) = config.route.last().filter(|_| known > MAX_NETWORKS) {
        let message = format!("too many addresses and routes, {known} in all; at most {MAX_NETWORKS}");
        return fault(&route.to, message);
    }
    for (index, route) in config.route.iter().enumerate() {
        check_route(config, route)?;
        let (to, metric) = (route.to.get_ref(), route.metric);
        let same = |other: &&Route| {
            let theirs = other.to.get_ref();
            (theirs.base(), theirs.prefix, other.metric) == (to.base(), to.prefix, metric)
        };
        if config.route[..index].iter().any(|other| same(&other)) {
            let message = format!(
                "there are two routes to {to} with metric {metric}; remove one, or give the lesser one a greater metric"
            );
            return fault(&route.to, message);
        }
    }
    Ok(())
}

fn check_route(config: &Config, route: &Route) -> Checked {
    let to = *route.to.get_ref();
    if to.base().is_multicast() || to.base().is_loopback() {
        return fault(&route.to, format!("no route leads to {to}: it is not the address of another host"));
    }
    if to.base() != to.address {
        let message = format!("{to} names a host, not a network; write \"{}/{}\"", to.base(), to.prefix);
        return fault(&route.to, message);
    }
    if let Some(name) = &route.device
        && !config.device.iter().any(|device| device.name.get_ref() == name.get_ref())
    {
        let names: Vec<&str> = config.device.iter().map(|device| device.name.get_ref().as_str()).collect();
        let message =
            format!("[[route]] device = \"{}\" is none of the devices: {}", name.get_ref(), names.join(", "));
        return fault(name, message);
    }
    if route.kind.refusal().is_some() {
        let surplus = "a route that leads nowhere has no router and no device; take out";
        return match (&route.via, &route.device) {
            (Some(via), _) => fault(via, format!("{surplus} via")),
            (None, Some(device)) => fault(device, format!("{surplus} device")),
            (None, None) => match route.metrics().next() {
                Some((name, value, _)) => {
                    fault(value, format!("a route that leads nowhere has no {name}; take it out"))
                }
                None => Ok(()),
            },
        };
    }
    let mut wrong = route.metrics().filter(|(_, value, range)| !range.contains(value.get_ref()));
    if let Some((name, value, range)) = wrong.next() {
        let (least, most) = (range.start(), range.end());
        let message = format!("{name} = {} is out of range; it must be {least} to {most}", value.get_ref());
        return fault(value, message);
    }
    check_way(config, route)
}

/// A route that leads somewhere.
fn check_way(config: &Config, route: &Route) -> Checked {
    let to = route.to.get_ref();
    if let Some(via) = &route.via {
        let router = *via.get_ref();
        if router.is_ipv4() != to.address.is_ipv4() {
            return fault(via, format!("the router {router} and the network {to} are of different families"));
        }
        let near = matches!(router, IpAddr::V6(router) if router.is_unicast_link_local());
        if near && route.device.is_none() {
            let message = format!("the router {router} is on every link; say which with device = \"…\"");
            return fault(via, message);
        }
        let there = config.device_of(route).map(|index| &config.device[index]);
        if !near && !there.is_some_and(|device| device.reaches(router)) {
            let place =
                route.device.as_ref().map_or("a device".into(), |name| format!("`{}`", name.get_ref()));
            let message = format!("the router {router} must be another address of a network of {place}");
            return fault(via, message);
        }
    }
    let Some(device) = config.device_of(route).map(|index| &config.device[index]) else {
        let message = format!(
            "the route to {to} needs via = \"…\" (a router), or device = \"…\" (on whose link the network is), or \
             type = \"unreachable\""
        );
        return fault(&route.to, message);
    };
    let has_family =
        if to.address.is_ipv4() { !device.networks().is_empty() } else { device.ip6_mode() != Ip6Mode::Off };
    if !has_family {
        let message = format!("`{}` has no address of the family of {to}", device.name.get_ref());
        return fault(&route.to, message);
    }
    Ok(())
}
