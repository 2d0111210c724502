//! Opening any device by its configuration.

use scoutline_base::DeviceId;

use crate::error::OpenError;
use crate::partner::{Notice, Partner};
use crate::{packet, pcap, tap, vlan, xdp};

/// Which device to open. (`memory` has two ends: [`crate::memory::wire`].)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// What its messages say where they came from.
    pub id: DeviceId,
    /// Driver and options.
    pub driver: Driver,
}

impl DeviceConfig {
    /// True when what is sent is read by the kernel only, never by this process: memory that may vanish (a file that
    /// shrinks) can then be sent without risk.
    pub fn sends_by_kernel(&self) -> bool {
        match &self.driver {
            Driver::Packet(options) => options.offload,
            Driver::Tap(_) => true,
            Driver::Pcap(_) | Driver::Xdp(_) => false,
            Driver::Vlan(options) => options.by_kernel,
        }
    }
}

/// A driver with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Driver {
    /// An ordinary interface.
    Packet(packet::Config),
    /// An ordinary interface, for small packets.
    Xdp(xdp::Config),
    /// A cable into Linux.
    Tap(tap::Config),
    /// Capture files.
    Pcap(pcap::Config),
    /// A network on another device: opened on that ([`vlan::open`]).
    Vlan(vlan::Config),
}

/// Opens a device in the caller's network namespace. Notices tell what is not as it should be and what follows.
///
/// # Errors
/// One clear line with the remedy.
pub fn open(config: &DeviceConfig) -> Result<(Box<dyn Partner>, Vec<Notice>), OpenError> {
    fn boxed<P: Partner + 'static>((partner, notices): (P, Vec<Notice>)) -> (Box<dyn Partner>, Vec<Notice>) {
        (Box::new(partner), notices)
    }
    match &config.driver {
        Driver::Packet(options) => packet::open(config.id, options).map(boxed),
        Driver::Xdp(options) => xdp::open(config.id, options).map(boxed),
        Driver::Tap(options) => tap::open(config.id, options).map(boxed),
        Driver::Pcap(options) => pcap::open(config.id, options).map(boxed),
        Driver::Vlan(options) => Err(OpenError::NoParent { name: options.name.clone() }),
    }
}
