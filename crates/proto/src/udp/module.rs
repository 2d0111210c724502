//! The UDP module.

use std::rc::Rc;

use scoutline_base::Address;
use scoutline_path::{
    Attributes, CreateError, DropReason, Module, Name, Next, Service, ServiceKind, Step, Value, Verdict, View,
};
use scoutline_wire::{ipv4, udp};

use super::UdpStage;
use crate::{Bindings, Interface};

/// Makes UDP stages; finds the path of a datagram that no exact flow takes by its local port.
pub struct UdpModule {
    interface: Rc<Interface>,
    bindings: Rc<Bindings>,
}

impl UdpModule {
    /// The module for this interface.
    pub fn new(interface: Rc<Interface>, bindings: Rc<Bindings>) -> UdpModule {
        UdpModule { interface, bindings }
    }
}

/// The services of a transport module.
pub(crate) const SERVICES: &[Service] = &[
    Service::upper("up", ServiceKind::Socket),
    Service::lower("down", ServiceKind::Net),
    Service::lower("down6", ServiceKind::Net),
];

/// Which of them leads on for addresses of this family.
pub(crate) fn below(local: Address) -> Next {
    Next::Through(if local.is_v4() { "down" } else { "down6" })
}

impl Module for UdpModule {
    fn name(&self) -> &'static str {
        "UDP"
    }

    fn services(&self) -> &'static [Service] {
        SERVICES
    }

    fn protocol(&self) -> Option<u32> {
        Some(u32::from(ipv4::PROTOCOL_UDP))
    }

    fn create_stage(&self, attributes: &mut Attributes) -> Result<Step, CreateError> {
        let local = attributes.require_address(Name::Local, "UDP", "Local")?;
        let remote = attributes.address(Name::Remote);
        // A wildcard has no peer: IP4 must not take 0.0.0.0 for one.
        if remote.is_some_and(|remote| remote.address.is_unspecified()) {
            attributes.remove(Name::Remote);
        }
        attributes.set(Name::Protocol, Value::Number(u64::from(ipv4::PROTOCOL_UDP)));
        let remote = remote.filter(|remote| !remote.address.is_unspecified());
        let stage = UdpStage::new(Rc::clone(&self.interface), local, remote);
        Ok(Step { stage: Some(Box::new(stage)), next: below(local.address) })
    }

    fn demux(&self, view: &mut View<'_>) -> Verdict {
        let header = match udp::Header::parse(&view.bytes[view.offset..view.end]) {
            Ok(header) => header,
            Err(error) => return Verdict::Drop(super::stage::reason(error)),
        };
        view.key.remote_port = header.source_port;
        view.key.local_port = header.destination_port;
        // What we take and is not ours is a group's or everybody's.
        if !self.interface.is_ours(view.key.local) {
            return Verdict::Group;
        }
        // RFC 1122 §4.1.3.1, RFC 4443 §3.1: nobody is at port 0, and the sender is told as of any such port.
        if header.destination_port == 0 {
            return view.stray(DropReason::NoPath);
        }
        self.bindings
            .listener(&view.key, view.tos)
            .map_or_else(|| view.stray(DropReason::NoPath), Verdict::Path)
    }
}
