//! The default module graph of an interface, shared by the engine and tests.

use std::rc::Rc;

use scoutline_path::GraphBuilder;

use crate::arp::ArpModule;
use crate::eth::EthModule;
use crate::icmp::IcmpModule;
use crate::ip4::Ip4Module;
use crate::udp::UdpModule;
use crate::{Bindings, Interface};

/// What the modules of one interface work with; the engine keeps it to bind ports and register paths.
#[derive(Clone)]
pub struct Net {
    /// The interface.
    pub interface: Rc<Interface>,
    /// UDP's local ports.
    pub udp: Rc<Bindings>,
}

impl Net {
    /// The modules ETH, ARP, IP4, ICMP and UDP, linked. The caller adds SOCKET, whose `Lower` services join
    /// `UDP.up`, and builds. Frames enter at [`ENTRY`].
    pub fn graph(&self) -> GraphBuilder {
        let interface = || Rc::clone(&self.interface);
        GraphBuilder::new()
            .module(Box::new(EthModule::new(interface())))
            .module(Box::new(ArpModule::new(interface())))
            .module(Box::new(Ip4Module::new(interface())))
            .module(Box::new(IcmpModule::new(interface())))
            .module(Box::new(UdpModule::new(interface(), Rc::clone(&self.udp))))
            .link("ETH.resolver", "ARP.resolver")
            .link("ARP.down", "ETH.up")
            .link("IP4.down", "ETH.up")
            .link("ICMP.down", "IP4.up")
            .link("UDP.down", "IP4.up")
    }
}

/// The module at which frames of a device enter.
pub const ENTRY: &str = "ETH";
