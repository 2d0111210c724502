//! The ETH module.

use std::rc::Rc;

use scoutline_path::{
    Arity, Attributes, CreateError, DropReason, Module, Name, Next, Service, ServiceKind, Step, Verdict, View,
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
    Service::upper("up", ServiceKind::Net),
    Service { arity: Arity::Optional, ..Service::lower("down", ServiceKind::Frame) },
    Service {
        arity: Arity::Optional,
        initialise_first: false,
        ..Service::lower("resolver", ServiceKind::Resolve)
    },
    Service {
        arity: Arity::Optional,
        initialise_first: false,
        ..Service::lower("resolver6", ServiceKind::Resolve)
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
        view.broadcast = header.destination == ethernet::BROADCAST;
        view.group = ethernet::is_group(header.destination);
        view.offset += ethernet::HEADER_LEN;
        Verdict::Up(u32::from(header.ethertype))
    }
}
