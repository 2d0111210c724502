//! ICMP (RFC 792, RFC 1122 §3.2.2): echo, errors to those whom they concern, errors about what nobody takes.

mod module;
mod stage;

pub use module::{IcmpModule, UNREACHABLE_PATH};
pub use stage::{IcmpStage, UnreachableStage};

use scoutline_base::{DeviceId, Endpoint};
use scoutline_path::{Control, FlowKey, Told};
use scoutline_wire::{icmp, icmpv6, ipv4};

use crate::errno;

/// The most of a datagram's data that is told to its program when it could not be sent.
const MAX_TOLD: usize = 512;

/// The flow of ours that an error is about.
pub(crate) fn flow_of(device: DeviceId, quoted: &icmp::Quoted) -> FlowKey {
    FlowKey {
        remote: quoted.destination.into(),
        local: quoted.source.into(),
        remote_port: quoted.ports.1,
        local_port: quoted.ports.0,
        device,
        protocol: quoted.protocol,
    }
}

/// What a path hears of a message for which no neighbour was found: as if we had sent ourselves the ICMP message, as
/// Linux does. `data`: those of a datagram.
pub(crate) fn neighbour_missing(key: &FlowKey, data: &[u8]) -> Control {
    if key.protocol != ipv4::PROTOCOL_UDP {
        return Control::Unreachable(icmp::UNREACHABLE, icmp::unreachable::HOST);
    }
    let (kind, code) = if key.local.is_v4() {
        (icmp::UNREACHABLE, icmp::unreachable::HOST)
    } else {
        (icmpv6::UNREACHABLE, icmpv6::unreachable::ADDRESS)
    };
    Control::Told(Box::new(Told {
        errno: errno::EHOSTUNREACH,
        fatal: false,
        kind,
        code,
        mtu: 0,
        from: key.local,
        to: Endpoint::new(key.remote, key.remote_port),
        quoted: data[..data.len().min(MAX_TOLD)].to_vec(),
    }))
}

#[cfg(test)]
mod tests;
