//! The ARP module.

use std::rc::Rc;

use scoutline_path::{
    Attributes, CreateError, DropReason, Module, Name, Next, Service, ServiceKind, Step, Value, Verdict, View,
};
use scoutline_wire::{arp, ethernet};

use super::ArpStage;
use crate::Interface;
use crate::eth::ETHERTYPE;

/// Makes the one ARP path of an interface, and gives ARP packets to it.
pub struct ArpModule {
    interface: Rc<Interface>,
}

impl ArpModule {
    /// The module for this interface.
    pub fn new(interface: Rc<Interface>) -> ArpModule {
        ArpModule { interface }
    }
}

const SERVICES: &[Service] =
    &[Service::upper("resolver", ServiceKind::Resolve), Service::lower("down", ServiceKind::Net)];

impl Module for ArpModule {
    fn name(&self) -> &'static str {
        "ARP"
    }

    fn services(&self) -> &'static [Service] {
        SERVICES
    }

    fn protocol(&self) -> Option<u32> {
        Some(u32::from(ethernet::TYPE_ARP))
    }

    fn create_stage(&self, attributes: &mut Attributes) -> Result<Step, CreateError> {
        attributes.set(Name::Other(ETHERTYPE), Value::Number(u64::from(ethernet::TYPE_ARP)));
        let stage = ArpStage::new(Rc::clone(&self.interface));
        Ok(Step { stage: Some(Box::new(stage)), next: Next::Through("down") })
    }

    fn demux(&self, view: &mut View<'_>) -> Verdict {
        if view.end - view.offset < arp::PACKET_LEN {
            return Verdict::Drop(DropReason::Truncated);
        }
        self.interface.service_paths.arp.get().map_or(Verdict::NoPath, Verdict::Path)
    }
}
