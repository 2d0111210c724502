//! The ICMP module.

use std::rc::Rc;

use scoutline_path::{
    Attributes, CreateError, DropReason, Module, Name, Next, Service, ServiceKind, Stage, Step, Value,
    Verdict, View,
};
use scoutline_wire::{icmp, ipv4};

use super::{IcmpStage, UnreachableStage};
use crate::Interface;

/// The attribute (`Name::Other`) that makes the path that answers datagrams which nobody takes.
pub const UNREACHABLE_PATH: &str = "unreachable";

/// Makes the two ICMP paths of an interface, and gives messages to the first.
pub struct IcmpModule {
    interface: Rc<Interface>,
}

impl IcmpModule {
    /// The module for this interface.
    pub fn new(interface: Rc<Interface>) -> IcmpModule {
        IcmpModule { interface }
    }
}

const SERVICES: &[Service] = &[Service::lower("down", ServiceKind::Net)];

impl Module for IcmpModule {
    fn name(&self) -> &'static str {
        "ICMP"
    }

    fn services(&self) -> &'static [Service] {
        SERVICES
    }

    fn protocol(&self) -> Option<u32> {
        Some(u32::from(ipv4::PROTOCOL_ICMP))
    }

    fn create_stage(&self, attributes: &mut Attributes) -> Result<Step, CreateError> {
        attributes.set(Name::Protocol, Value::Number(u64::from(ipv4::PROTOCOL_ICMP)));
        let interface = Rc::clone(&self.interface);
        let stage: Box<dyn Stage> = if attributes.value(Name::Other(UNREACHABLE_PATH)).is_some() {
            Box::new(UnreachableStage::new(interface))
        } else {
            Box::new(IcmpStage::new(interface))
        };
        Ok(Step { stage: Some(stage), next: Next::Through("down") })
    }

    fn demux(&self, view: &mut View<'_>) -> Verdict {
        if view.end - view.offset < icmp::HEADER_LEN {
            return Verdict::Drop(DropReason::Truncated);
        }
        self.interface.service_paths.icmp.get().map_or(Verdict::NoPath, Verdict::Path)
    }
}
