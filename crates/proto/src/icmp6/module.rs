//! The ICMP6 module.

use std::rc::Rc;

use scoutline_path::{
    Attributes, CreateError, DropReason, Module, Name, Next, Service, ServiceKind, Stage, Step, Value,
    Verdict, View,
};
use scoutline_wire::{icmpv6, ipv6, nd};

use super::{Icmp6Stage, UnreachableStage};
use crate::Interface;

/// The attribute (`Name::Other`) that makes the path that answers packets which nobody takes.
pub const UNREACHABLE_PATH: &str = "unreachable6";

/// Makes the two ICMPv6 paths of an interface, and gives messages to the first, or to the path of neighbour discovery.
pub struct Icmp6Module {
    interface: Rc<Interface>,
}

impl Icmp6Module {
    /// The module for this interface.
    pub fn new(interface: Rc<Interface>) -> Icmp6Module {
        Icmp6Module { interface }
    }
}

const SERVICES: &[Service] = &[Service::lower("down", ServiceKind::Net)];

impl Module for Icmp6Module {
    fn name(&self) -> &'static str {
        "ICMP6"
    }

    fn services(&self) -> &'static [Service] {
        SERVICES
    }

    fn protocol(&self) -> Option<u32> {
        Some(u32::from(ipv6::PROTOCOL_ICMPV6))
    }

    fn create_stage(&self, attributes: &mut Attributes) -> Result<Step, CreateError> {
        attributes.set(Name::Protocol, Value::Number(u64::from(ipv6::PROTOCOL_ICMPV6)));
        let interface = Rc::clone(&self.interface);
        let stage: Box<dyn Stage> = if attributes.value(Name::Other(UNREACHABLE_PATH)).is_some() {
            Box::new(UnreachableStage::new(interface))
        } else {
            Box::new(Icmp6Stage::new(interface))
        };
        Ok(Step { stage: Some(stage), next: Next::Through("down") })
    }

    fn demux(&self, view: &mut View<'_>) -> Verdict {
        let message = &view.bytes[view.offset..view.end];
        if message.len() < icmpv6::HEADER_LEN {
            return Verdict::Drop(DropReason::Truncated);
        }
        let paths = &self.interface.service_paths;
        let path = match message[0] {
            nd::ROUTER_SOLICITATION..=nd::REDIRECT => &paths.nd,
            _ => &paths.icmp6,
        };
        path.get().map_or(Verdict::NoPath, Verdict::Path)
    }
}
