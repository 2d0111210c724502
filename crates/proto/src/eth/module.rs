//! The ETH module.

use std::rc::Rc;

use scoutline_path::{
    Arity, Attributes, CreateError, DropReason, Module, Name, Next, Service, ServiceKind, Side, Step,
    Verdict, View,
};
use scoutline_wire::ethernet;

use super::{ETHERTYPE, EthStage};
use crate::Interface;

/// Makes link stages, and classifies by EtherType.
pub struct EthModule {
    interface: Rc<Interface>,
}

impl EthModule {
    /// The module for this interface.
    pub fn new(interface: Rc<Interface>) -> EthModule {
        EthModule { interface }
    }
}

const SERVICES: &[Service] = &[
    Service {
        name: "up",
        kind: ServiceKind::Net,
        side: Side::Upper,
        arity: Arity::Many,
        initialise_first: false,
    },
    Service {
        name: "down",
        kind: ServiceKind::Frame,
        side: Side::Lower,
        arity: Arity::Optional,
        initialise_first: true,
    },
    Service {
        name: "resolver",
        kind: ServiceKind::Resolve,
        side: Side::Lower,
        arity: Arity::Optional,
        initialise_first: false,
    },
    Service {
        name: "resolver6",
        kind: ServiceKind::Resolve,
        side: Side::Lower,
        arity: Arity::Optional,
        initialise_first: false,
    },
];

impl Module for EthModule {
    fn name(&self) -> &'static str {
        "ETH"
    }

    fn services(&self) -> &'static [Service] {
        SERVICES
    }

    fn create_stage(&self, attributes: &mut Attributes) -> Result<Step, CreateError> {
        let ethertype = attributes.number(Name::Other(ETHERTYPE));
        let ethertype = ethertype.map_or(ethernet::TYPE_IPV4, |number| number as u16);
        let stage = EthStage::new(Rc::clone(&self.interface), ethertype);
        // The device takes what leaves the path: it has no stage of its own.
        Ok(Step { stage: Some(Box::new(stage)), next: Next::End })
    }

    fn demux(&self, view: &mut View<'_>) -> Verdict {
        let Ok(header) = ethernet::Header::parse(&view.bytes[view.offset..view.end]) else {
            return Verdict::Drop(DropReason::Truncated);
        };
        if !ethernet::is_group(header.destination) && header.destination != self.interface.link_address.get()
        {
            return Verdict::Drop(DropReason::NotForUs);
        }
        view.key.device = self.interface.device;
        view.offset += ethernet::HEADER_LEN;
        Verdict::Up(u32::from(header.ethertype))
    }
}
