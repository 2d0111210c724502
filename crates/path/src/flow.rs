//! The key of a flow: what an exact match needs.

use std::net::Ipv4Addr;

use scoutline_base::DeviceId;

/// A flow as seen by this host: `local` is our end whichever way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The peer's address.
    pub remote: Ipv4Addr,
    /// Our address.
    pub local: Ipv4Addr,
    /// The peer's port; 0 where the protocol has none.
    pub remote_port: u16,
    /// Our port; 0 where the protocol has none.
    pub local_port: u16,
    /// The device it arrives on.
    pub device: DeviceId,
    /// IP protocol number.
    pub protocol: u8,
}

impl Default for FlowKey {
    fn default() -> Self {
        FlowKey {
            remote: Ipv4Addr::UNSPECIFIED,
            local: Ipv4Addr::UNSPECIFIED,
            remote_port: 0,
            local_port: 0,
            device: DeviceId::default(),
            protocol: 0,
        }
    }
}
