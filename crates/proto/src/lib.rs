//! Ethernet, ARP, IPv4, ICMP, IGMP, IPv6, ND, ICMPv6, MLD, UDP, TCP as modules and stages. Pure: time and randomness are handed in.
//!
//! Each protocol has a folder with the same file names: `module` (makes stages, classifies packets), `stage` (the
//! two directions of one path), the logic that the stage drives, and `tests`. What the modules of one device
//! share stands in [`Interface`]; [`net`] links them into the default module graph. [`request`] is none of these: it
//! looks into streams, for classes that depend on what is asked.
//!
//! ```text
//!        SOCKET (engine)        ARP, ND, ICMP, reassembly and resets are paths of their own that start
//!      tcp│     │udp             at their module and run beside those of the sockets
//!  ICMP  TCP   UDP  ICMP6 ND
//!    └────┼──┬──┘╲   ╱ ┌──┘      TCP and UDP go through IP4 or IP6 by the family of their addresses
//!   ARP  IP4     IP6───┘
//!    └────┴───┬───┘
//!            ETH
//!              │
//!            device (engine)
//! ```

/// The three methods by which rules and the engine find a stage that they know.
macro_rules! any_stage {
    () => {
        fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
            self
        }
        fn as_any(&self) -> &dyn std::any::Any {
            self
        }
        fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
            self
        }
    };
}

pub mod arp;
pub mod bindings;
mod destinations;
pub mod errno;
pub mod eth;
pub mod forward;
pub mod groups;
pub mod icmp;
pub mod icmp6;
pub mod igmp;
pub mod interface;
pub mod ip4;
pub mod ip6;
pub mod limit;
pub mod mld;
pub mod nd;
pub mod neighbour;
pub mod net;
pub mod path_mtu;
pub mod request;
pub mod route;
mod siphash;
pub mod tcp;
pub mod udp;

pub use bindings::{Bindings, Classifier, OneClass};
pub use interface::{Interface, InterfaceConfig, NextHop, Offload};

#[cfg(test)]
mod testing;
