//! ICMPv6 (RFC 4443): echo, errors to the path that they are about, errors about what nobody takes, at a limited rate.
//!
//! Towards paths an error keeps the words of ICMP for IPv4 ([`scoutline_path::Control::Unreachable`]), so that
//! transports know one set of them. Neighbour discovery is [`crate::nd`]'s.

mod module;
mod stage;

pub use module::{Icmp6Module, UNREACHABLE_PATH};
pub use stage::{Icmp6Stage, UnreachableStage};

pub(crate) use stage::{error_message, parse};

use scoutline_base::DeviceId;
use scoutline_path::FlowKey;
use scoutline_wire::{icmp, icmpv6};

/// The flow of ours that an error is about.
pub(crate) fn flow_of(device: DeviceId, quoted: &icmpv6::Quoted) -> FlowKey {
    FlowKey {
        remote: quoted.destination.into(),
        local: quoted.source.into(),
        remote_port: quoted.ports.1,
        local_port: quoted.ports.0,
        device,
        protocol: quoted.protocol,
    }
}

/// What an error is in the words of ICMP for IPv4: type and code. `None` for those that concern no flow.
pub(crate) fn as_icmp4(kind: u8, code: u8) -> Option<(u8, u8)> {
    use icmpv6::unreachable as v6;
    Some(match (kind, code) {
        (icmpv6::UNREACHABLE, v6::NO_ROUTE) => (icmp::UNREACHABLE, icmp::unreachable::NETWORK),
        (icmpv6::UNREACHABLE, v6::ADMINISTRATIVE | v6::POLICY | v6::REJECT) => {
            (icmp::UNREACHABLE, icmp::unreachable::ADMINISTRATIVE[2])
        }
        (icmpv6::UNREACHABLE, v6::PORT) => (icmp::UNREACHABLE, icmp::unreachable::PORT),
        (icmpv6::UNREACHABLE, _) => (icmp::UNREACHABLE, icmp::unreachable::HOST),
        (icmpv6::PACKET_TOO_BIG, _) => (icmp::UNREACHABLE, icmp::unreachable::FRAGMENTATION_NEEDED),
        (icmpv6::TIME_EXCEEDED, code) => (icmp::TIME_EXCEEDED, code),
        // An unknown next header: the peer has no such protocol.
        (icmpv6::PARAMETER_PROBLEM, 1) => (icmp::UNREACHABLE, icmp::unreachable::PROTOCOL),
        (icmpv6::PARAMETER_PROBLEM, _) => (icmp::PARAMETER_PROBLEM, 0),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
