//! The default module graph of an interface, shared by the engine and tests.
//!
//! What these modules expect of whoever runs them:
//! - A frame is looked up by its exact flow first, then by [`Graph::demux`](scoutline_path::Graph::demux) from
//!   [`ENTRY`]; what has no path goes to [`Interface::stray_path`].
//! - [`Net::service_paths`] are made when the interface is opened, and
//!   [`announcement_frame`](crate::arp::announcement_frame) goes out.
//! - Ports are reserved and released in the [`Bindings`]; listening paths and unconnected datagram paths are
//!   registered there with `listen`, and taken out with `unlisten` when they end.
//! - An active path begins at its first run outward, or by its time-out, which is due at once.
//! - A path whose run says `more` is kicked outward again once the device has room.
//! - `Destroy` and `Reclassify` in one run are carried out in order: a newer SYN takes over from TIME-WAIT.
//! - Devices complete every partial checksum, and cut super-segments where the interface says that they do.

use std::cell::Cell;
use std::rc::Rc;

use scoutline_base::PathId;
use scoutline_path::{Attributes, GraphBuilder, Name, Rule, Value};

use crate::arp::ArpModule;
use crate::eth::EthModule;
use crate::icmp::IcmpModule;
use crate::icmp6::Icmp6Module;
use crate::igmp::IgmpModule;
use crate::ip4::Ip4Module;
use crate::ip6::Ip6Module;
use crate::nd::NdModule;
use crate::tcp::{FuseEthIp6Tcp, FuseEthIpTcp, Tcp, TcpModule};
use crate::udp::UdpModule;
use crate::{Bindings, Interface};

/// What the modules of one interface work with; the engine keeps it to bind ports and register paths.
#[derive(Clone)]
pub struct Net {
    /// The interface.
    pub interface: Rc<Interface>,
    /// TCP's ports, secret and settings.
    pub tcp: Rc<Tcp>,
    /// UDP's local ports.
    pub udp: Rc<Bindings>,
}

impl Net {
    /// The modules ETH, ARP, IP4, ICMP, IGMP, IP6, ND, ICMP6, TCP and UDP, linked, without rules. The caller adds SOCKET, whose `Lower`
    /// services join `TCP.up` and `UDP.up`, and builds. Frames enter at [`ENTRY`].
    pub fn graph(&self) -> GraphBuilder {
        let interface = || Rc::clone(&self.interface);
        GraphBuilder::new()
            .module(Box::new(EthModule::new(interface())))
            .module(Box::new(ArpModule::new(interface())))
            .module(Box::new(Ip4Module::new(interface())))
            .module(Box::new(IcmpModule::new(interface())))
            .module(Box::new(IgmpModule::new(interface())))
            .module(Box::new(Ip6Module::new(interface())))
            .module(Box::new(NdModule::new(interface())))
            .module(Box::new(Icmp6Module::new(interface())))
            .module(Box::new(TcpModule::new(interface(), Rc::clone(&self.tcp))))
            .module(Box::new(UdpModule::new(interface(), Rc::clone(&self.udp))))
            .link("ETH.resolver", "ARP.resolver")
            .link("ARP.down", "ETH.up")
            .link("IP4.down", "ETH.up")
            .link("ICMP.down", "IP4.up")
            .link("IGMP.down", "IP4.up")
            .link("TCP.down", "IP4.up")
            .link("UDP.down", "IP4.up")
            .link("ETH.resolver6", "ND.resolver")
            .link("IP6.down", "ETH.up")
            .link("ND.down", "IP6.up")
            .link("ICMP6.down", "IP6.up")
            .link("TCP.down6", "IP6.up")
            .link("UDP.down6", "IP6.up")
    }

    /// The transformation rules that make paths of this interface fast.
    pub fn rules(&self) -> Vec<Box<dyn Rule>> {
        vec![
            Box::new(FuseEthIpTcp::new(Rc::clone(&self.interface))),
            Box::new(FuseEthIp6Tcp::new(Rc::clone(&self.interface))),
        ]
    }

    /// The paths that serve the interface as a whole, for the engine to make: the module at which each starts,
    /// its attributes, and where its id is to be told.
    pub fn service_paths(&self) -> Vec<(&'static str, Attributes, &Cell<Option<PathId>>)> {
        let flag = |name| Attributes::new().with(Name::Other(name), Value::Number(1));
        let paths = &self.interface.service_paths;
        let mut all = vec![
            ("ARP", Attributes::new(), &paths.arp),
            ("ICMP", Attributes::new(), &paths.icmp),
            ("ICMP", flag(crate::icmp::UNREACHABLE_PATH), &paths.unreachable),
            ("IGMP", Attributes::new(), &paths.igmp),
            ("IP4", flag(crate::ip4::REASSEMBLY), &paths.reassembly),
            ("TCP", flag(crate::tcp::module::RESET), &paths.reset),
        ];
        if self.interface.ip6.enabled {
            all.extend([
                ("ND", Attributes::new(), &paths.nd),
                ("ICMP6", Attributes::new(), &paths.icmp6),
                ("ICMP6", flag(crate::icmp6::UNREACHABLE_PATH), &paths.unreachable6),
                ("IP6", flag(crate::ip6::REASSEMBLY), &paths.reassembly6),
                ("TCP", flag(crate::tcp::module::RESET6), &paths.reset6),
            ]);
        }
        all
    }
}

/// The module at which frames of a device enter.
pub const ENTRY: &str = "ETH";

#[cfg(test)]
mod tests {
    use crate::testing::Host;

    #[test]
    fn the_graph_is_sound_and_starts_from_the_device_on() {
        let host = Host::new();
        let names: Vec<_> =
            host.graph.initialisation_order().iter().map(|&id| host.graph.module(id).name()).collect();
        let place = |name| names.iter().position(|&other| other == name).unwrap();
        for (below, above) in [
            ("ETH", "ARP"),
            ("ETH", "IP4"),
            ("IP4", "ICMP"),
            ("IP4", "UDP"),
            ("IP4", "TCP"),
            ("ETH", "IP6"),
            ("IP6", "ND"),
            ("IP6", "ICMP6"),
            ("IP6", "UDP"),
            ("IP6", "TCP"),
            ("TCP", "SOCKET"),
        ] {
            assert!(place(below) < place(above), "{names:?}");
        }
        let paths = &host.interface.service_paths;
        for path in [&paths.arp, &paths.icmp, &paths.unreachable, &paths.reassembly, &paths.reset] {
            assert_eq!(host.path(path.get().unwrap()).stages()[0].module(), "ETH");
        }
    }
}
