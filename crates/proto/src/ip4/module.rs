//! The IP4 module.

use std::rc::Rc;

use scoutline_path::{
    Attributes, CreateError, DropReason, Module, Name, Next, Service, ServiceKind, Step, Verdict, View,
};
use scoutline_wire::{ethernet, igmp, ipv4};

use super::{Ip4Stage, Limits, ReassemblyStage};
use crate::Interface;

/// The attribute (`Name::Other`) that makes the path to which fragments go.
pub const REASSEMBLY: &str = "reassembly";

/// Makes network stages, and classifies by protocol.
pub struct Ip4Module {
    interface: Rc<Interface>,
}

impl Ip4Module {
    /// The module for this interface.
    pub fn new(interface: Rc<Interface>) -> Ip4Module {
        Ip4Module { interface }
    }
}

const SERVICES: &[Service] =
    &[Service::upper("up", ServiceKind::Net), Service::lower("down", ServiceKind::Net)];

/// What has a module above.
const PROTOCOLS: [u8; 4] = [ipv4::PROTOCOL_TCP, ipv4::PROTOCOL_UDP, ipv4::PROTOCOL_ICMP, igmp::PROTOCOL];

impl Module for Ip4Module {
    fn name(&self) -> &'static str {
        "IP4"
    }

    fn services(&self) -> &'static [Service] {
        SERVICES
    }

    fn protocol(&self) -> Option<u32> {
        Some(u32::from(ethernet::TYPE_IPV4))
    }

    fn create_stage(&self, attributes: &mut Attributes) -> Result<Step, CreateError> {
        let interface = Rc::clone(&self.interface);
        if attributes.value(Name::Other(REASSEMBLY)).is_some() {
            let stage = ReassemblyStage::new(interface, Limits::default());
            return Ok(Step { stage: Some(Box::new(stage)), next: Next::Through("down") });
        }
        let protocol = attributes
            .number(Name::Protocol)
            .ok_or(CreateError::MissingAttribute { module: "IP4", attribute: "Protocol" })?;
        let local = attributes.address(Name::Local).map(|local| local.address);
        let local = local.filter(|local| !local.is_unspecified());
        if local.is_some_and(|local| !interface.is_ours(local)) {
            return Err(CreateError::Unreachable);
        }
        let local = local.map(|local| local.as_v4().ok_or(CreateError::Unreachable)).transpose()?;
        let remote = attributes.address(Name::Remote).map(|remote| remote.address);
        if remote.is_some_and(|remote| interface.route(remote).is_none()) {
            return Err(CreateError::Unreachable);
        }
        let remote = remote.map(|remote| remote.as_v4().ok_or(CreateError::Unreachable)).transpose()?;
        let stage = Ip4Stage::new(interface, protocol as u8, local, remote);
        Ok(Step { stage: Some(Box::new(stage)), next: Next::Through("down") })
    }

    fn demux(&self, view: &mut View<'_>) -> Verdict {
        let bytes = &view.bytes[view.offset..view.end];
        // The checksum is the stage's to verify: a wrong one costs a queue place, never a wrong delivery.
        let header = match ipv4::Header::parse(bytes) {
            Ok(header) => header,
            Err(error) => return Verdict::Drop(super::reason(error)),
        };
        view.key.remote = header.source.into();
        view.key.local = header.destination.into();
        view.key.protocol = header.protocol;
        view.tos = header.tos;
        if !self.interface.accepts(header.destination.into()) {
            return Verdict::Drop(DropReason::NotForUs);
        }
        if view.broadcast && self.interface.is_ours(header.destination.into()) {
            // RFC 1122 §3.3.6: who sends to everybody says so in both addresses.
            return Verdict::Drop(DropReason::NotForUs);
        }
        if header.is_fragment() {
            return self.interface.service_paths.reassembly.get().map_or(Verdict::NoPath, Verdict::Path);
        }
        if !PROTOCOLS.contains(&header.protocol) {
            // RFC 1122 §3.2.2.1: the sender is told (see `Interface::stray_path`).
            return view.stray(DropReason::UnknownProtocol);
        }
        view.end = view.offset + usize::from(header.total_len);
        view.offset += usize::from(header.header_len);
        Verdict::Up(u32::from(header.protocol))
    }
}
