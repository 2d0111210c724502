//! Routes: the way to networks that are not on a link of ours (RFC 1122 §3.3.1.1 and §3.3.1.2, RFC 1812 §5.2.4).
//!
//! A route says where packets for a network go: straight to their destination on the device's link, to a router there,
//! or nowhere. Among those that a destination is within, the longest prefix wins, then the smallest metric, then the
//! first. Several equal ways at once (ECMP) are left out.
//!
//! Pure and small: routes are configuration, a few dozen at most, and what a path found it keeps
//! ([`crate::eth::EthStage`]), so the list is searched in order.

use scoutline_base::Address;

/// What becomes of packets for a route's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// They go to their destination, which is on the link.
    Link,
    /// They go to this router on the link.
    Via(Address),
    /// They are dropped.
    Refuse(Refusal),
}

/// How packets are refused; the names and the errors that programs get are Linux' (ip-route(8), rtnetlink(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// In silence; programs get EINVAL.
    Blackhole,
    /// As unreachable; programs get EHOSTUNREACH.
    Unreachable,
    /// As prohibited; programs get EACCES.
    Prohibit,
}

impl Refusal {
    /// Its name, as in configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Refusal::Blackhole => "blackhole",
            Refusal::Unreachable => "unreachable",
            Refusal::Prohibit => "prohibit",
        }
    }

    /// What a program is told.
    pub const fn errno(self) -> i32 {
        match self {
            Refusal::Blackhole => crate::errno::EINVAL,
            Refusal::Unreachable => crate::errno::EHOSTUNREACH,
            Refusal::Prohibit => crate::errno::EACCES,
        }
    }
}

/// One route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network; what is behind the prefix does not matter.
    pub network: Address,
    /// Bits of the 128 that name it: 96 more than as IPv4 has it.
    pub prefix_len: u8,
    /// Where its packets go.
    pub way: Way,
    /// Of two routes to the same network the smaller one's is taken.
    pub metric: u32,
    /// What is said of the way beside where it begins.
    pub metrics: Metrics,
}

/// What is said of a way, named as in ip-route(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Bytes of an IP packet that it carries: no packet is longer, and the path MTU begins here.
    pub mtu: Option<u16>,
    /// The largest segment that peers are told to send (RFC 9293 §3.7.1); default: what the MTU leaves.
    pub advmss: Option<u16>,
    /// The initial congestion window, in segments; default: RFC 6928.
    pub initcwnd: Option<u16>,
    /// The window that the SYN tells at most, in segments; default: the receive buffer.
    pub initrwnd: Option<u16>,
}

impl Route {
    /// How well it fits: the greater the better.
    pub fn rank(&self) -> Rank {
        (self.prefix_len, u32::MAX - self.metric)
    }
}

/// Length of the prefix, then the metric, the smaller the greater: compares ways to one destination.
pub type Rank = (u8, u32);

/// The routes of one device, or those of none; the best first.
#[derive(Clone, Debug, Default)]
pub struct Routes(Vec<Route>);

impl Routes {
    /// These routes, in any order; of equal ones the first counts.
    pub fn new(mut routes: Vec<Route>) -> Routes {
        routes.sort_by_key(|route| std::cmp::Reverse(route.rank()));
        Routes(routes)
    }

    /// The route for a destination.
    pub fn find(&self, destination: Address) -> Option<&Route> {
        // An IPv4 network is never within fewer than 96 bits, so no route of one family takes what is of the other but
        // `::/0` to `::/95`, which would take mapped addresses.
        self.0.iter().find(|route| {
            route.network.is_v4() == destination.is_v4()
                && destination.is_within(route.network, route.prefix_len)
        })
    }

    /// All of them, the best first.
    pub fn as_slice(&self) -> &[Route] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(network: &str, prefix_len: u8, metric: u32, via: &str) -> Route {
        let way = Way::Via(via.parse().unwrap());
        Route { network: network.parse().unwrap(), prefix_len, way, metric, metrics: Metrics::default() }
    }

    fn way(routes: &Routes, to: &str) -> Option<Way> {
        routes.find(to.parse().unwrap()).map(|route| route.way)
    }

    #[test]
    fn the_longest_prefix_wins_then_the_metric_then_the_first() {
        let routes = Routes::new(vec![
            route("0.0.0.0", 96, 0, "10.0.0.254"),
            route("192.168.0.0", 112, 5, "10.0.0.1"),
            route("192.168.0.0", 112, 3, "10.0.0.2"),
            route("192.168.0.0", 112, 3, "10.0.0.3"),
            route("192.168.7.0", 120, 9, "10.0.0.4"),
            route("2001:db8::", 32, 0, "fe80::1"),
        ]);
        let via = |text: &str| Some(Way::Via(text.parse().unwrap()));
        assert_eq!(way(&routes, "192.168.7.1"), via("10.0.0.4"));
        assert_eq!(way(&routes, "192.168.8.1"), via("10.0.0.2"));
        assert_eq!(way(&routes, "8.8.8.8"), via("10.0.0.254"));
        assert_eq!(way(&routes, "2001:db8:7::1"), via("fe80::1"));
        assert_eq!(way(&routes, "2001:db9::1"), None);
    }

    #[test]
    fn families_keep_apart() {
        let routes = Routes::new(vec![route("::", 0, 0, "fe80::1")]);
        assert_eq!(way(&routes, "10.0.0.1"), None);
        assert!(way(&routes, "2001:db8::1").is_some());
    }
}
