//! The ND module.

use std::rc::Rc;

use scoutline_path::{
    Attributes, CreateError, Module, Name, Next, Service, ServiceKind, Step, Value, Verdict, View,
};
use scoutline_wire::ipv6;

use super::NdStage;
use crate::Interface;

/// Makes the one path of neighbour discovery of an interface. The ICMP6 module gives packets to it.
pub struct NdModule {
    interface: Rc<Interface>,
}

impl NdModule {
    /// The module for this interface.
    pub fn new(interface: Rc<Interface>) -> NdModule {
        NdModule { interface }
    }
}

const SERVICES: &[Service] =
    &[Service::upper("resolver", ServiceKind::Resolve), Service::lower("down", ServiceKind::Net)];

impl Module for NdModule {
    fn name(&self) -> &'static str {
        "ND"
    }

    fn services(&self) -> &'static [Service] {
        SERVICES
    }

    fn create_stage(&self, attributes: &mut Attributes) -> Result<Step, CreateError> {
        attributes.set(Name::Protocol, Value::Number(u64::from(ipv6::PROTOCOL_ICMPV6)));
        let stage = NdStage::new(Rc::clone(&self.interface));
        Ok(Step { stage: Some(Box::new(stage)), next: Next::Through("down") })
    }

    fn demux(&self, _view: &mut View<'_>) -> Verdict {
        Verdict::NoPath
    }
}
