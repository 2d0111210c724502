//! The IGMP module.

use std::rc::Rc;

use scoutline_path::{
    Arity, Attributes, CreateError, DropReason, Module, Name, Next, Service, ServiceKind, Side, Step, Value,
    Verdict, View,
};
use scoutline_wire::igmp;

use super::IgmpStage;
use crate::Interface;

/// Makes the IGMP path of an interface, and gives messages to it.
pub struct IgmpModule {
    interface: Rc<Interface>,
}

impl IgmpModule {
    /// The module for this interface.
    pub fn new(interface: Rc<Interface>) -> IgmpModule {
        IgmpModule { interface }
    }
}

const SERVICES: &[Service] = &[Service {
    name: "down",
    kind: ServiceKind::Net,
    side: Side::Lower,
    arity: Arity::One,
    initialise_first: true,
}];

impl Module for IgmpModule {
    fn name(&self) -> &'static str {
        "IGMP"
    }

    fn services(&self) -> &'static [Service] {
        SERVICES
    }

    fn protocol(&self) -> Option<u32> {
        Some(u32::from(igmp::PROTOCOL))
    }

    fn create_stage(&self, attributes: &mut Attributes) -> Result<Step, CreateError> {
        attributes.set(Name::Protocol, Value::Number(u64::from(igmp::PROTOCOL)));
        let stage = IgmpStage::new(Rc::clone(&self.interface));
        Ok(Step { stage: Some(Box::new(stage)), next: Next::Through("down") })
    }

    fn demux(&self, view: &mut View<'_>) -> Verdict {
        if view.end - view.offset < igmp::HEADER_LEN {
            return Verdict::Drop(DropReason::Truncated);
        }
        self.interface.service_paths.igmp.get().map_or(Verdict::NoPath, Verdict::Path)
    }
}
