//! The IP6 module.

use std::net::Ipv6Addr;
use std::rc::Rc;
use std::time::Duration;

use scoutline_base::Address;
use scoutline_path::{
    Attributes, CreateError, DropReason, Module, Name, Next, Service, ServiceKind, Stage, Step, Value,
    Verdict, View,
};
use scoutline_wire::ipv6::{self, ExtensionError};
use scoutline_wire::{ethernet, ipv4};

use super::{DualStage, Ip6Stage, ReassemblyStage};
use crate::Interface;
use crate::eth::{ANY_IP, ETHERTYPE};
use crate::icmp6::UNREACHABLE_PATH;
use crate::ip4::{Ip4Stage, Limits};

/// The attribute (`Name::Other`) that makes the path to which fragments go.
pub const REASSEMBLY: &str = "reassembly6";
/// The attribute (`Name::Other`) of a datagram path that serves IPv4 beside IPv6.
pub const DUAL: &str = "dual";

/// Makes network stages, and classifies by protocol behind the extension headers.
pub struct Ip6Module {
    interface: Rc<Interface>,
}

impl Ip6Module {
    /// The module for this interface.
    pub fn new(interface: Rc<Interface>) -> Ip6Module {
        Ip6Module { interface }
    }
}

/// RFC 8200 §4.5: so long is waited for the rest of a packet.
const REASSEMBLY_TIME: Duration = Duration::from_secs(60);

const SERVICES: &[Service] =
    &[Service::upper("up", ServiceKind::Net), Service::lower("down", ServiceKind::Net)];

impl Module for Ip6Module {
    fn name(&self) -> &'static str {
        "IP6"
    }

    fn services(&self) -> &'static [Service] {
        SERVICES
    }

    fn protocol(&self) -> Option<u32> {
        Some(u32::from(ethernet::TYPE_IPV6))
    }

    fn create_stage(&self, attributes: &mut Attributes) -> Result<Step, CreateError> {
        let next = Next::Through("down");
        let interface = Rc::clone(&self.interface);
        attributes.set(Name::Other(ETHERTYPE), Value::Number(u64::from(ethernet::TYPE_IPV6)));
        if attributes.value(Name::Other(REASSEMBLY)).is_some() {
            let limits = Limits { time: REASSEMBLY_TIME, ..Limits::default() };
            let stage = ReassemblyStage::new(interface, limits);
            return Ok(Step { stage: Some(Box::new(stage)), next });
        }
        let protocol = attributes
            .number(Name::Protocol)
            .ok_or(CreateError::MissingAttribute { module: "IP6", attribute: "Protocol" })?;
        let local = attributes.address(Name::Local).map(|local| local.address);
        let local = local.filter(|local| !local.is_unspecified());
        if local.is_some_and(|local| !interface.may_be_ours(local)) {
            return Err(CreateError::Unreachable);
        }
        let remote = attributes.address(Name::Remote).map(|remote| remote.address);
        if remote.is_some_and(|remote| interface.route(remote).is_none()) {
            return Err(CreateError::Unreachable);
        }
        let v6 = |address: Option<Address>| -> Result<Option<Ipv6Addr>, CreateError> {
            address.map(|address| address.as_v6().ok_or(CreateError::Unreachable)).transpose()
        };
        let (local, remote) = (v6(local)?, v6(remote)?);
        let reports = attributes.value(Name::Other(UNREACHABLE_PATH)).is_some();
        let ip6 = Ip6Stage::new(Rc::clone(&interface), protocol as u8, local, remote).reporting(reports);
        let stage: Box<dyn Stage> = if attributes.value(Name::Other(DUAL)).is_some() {
            attributes.set(Name::Other(ETHERTYPE), Value::Number(ANY_IP));
            Box::new(DualStage::new(ip6, Ip4Stage::new(interface, protocol as u8, None, None)))
        } else {
            Box::new(ip6)
        };
        Ok(Step { stage: Some(stage), next })
    }

    fn demux(&self, view: &mut View<'_>) -> Verdict {
        let bytes = &view.bytes[view.offset..view.end];
        let header = match ipv6::Header::parse(bytes) {
            Ok(header) => header,
            Err(error) => return Verdict::Drop(super::reason(error)),
        };
        let (source, destination) = (Address::from(header.source), Address::from(header.destination));
        if source.is_v4() || destination.is_v4() {
            return Verdict::Drop(DropReason::Malformed);
        }
        view.key.remote = source;
        view.key.local = destination;
        view.tos = header.traffic_class;
        if !self.interface.accepts(destination) {
            // Whoever passes it on wants to know what it is.
            let upper = ipv6::skip(&bytes[..header.total_len()]);
            view.key.protocol = upper.map_or(ipv6::NO_NEXT_HEADER, |upper| upper.protocol);
            return Verdict::Drop(DropReason::NotForUs);
        }
        let paths = &self.interface.service_paths;
        let upper = match ipv6::walk(&bytes[..header.total_len()]) {
            Ok(upper) => upper,
            // The sender is to be told: by the path that reports what nobody takes.
            Err(ExtensionError::Problem { .. }) => {
                return paths.unreachable6.get().map_or(Verdict::NoPath, Verdict::Path);
            }
            Err(error) => return Verdict::Drop(super::extension_reason(error)),
        };
        view.key.protocol = upper.protocol;
        if upper.fragment.is_some() {
            return paths.reassembly6.get().map_or(Verdict::NoPath, Verdict::Path);
        }
        match upper.protocol {
            ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_UDP | ipv6::PROTOCOL_ICMPV6 => {}
            ipv6::NO_NEXT_HEADER => return Verdict::Drop(DropReason::UnknownProtocol),
            // RFC 8200 §4: the sender is told (see `Interface::stray_path`).
            _ => return view.stray(DropReason::UnknownProtocol),
        }
        view.end = view.offset + header.total_len();
        view.offset += upper.offset;
        Verdict::Up(u32::from(upper.protocol))
    }
}
