//! The SOCKET module: where paths of sockets begin.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use scoutline_base::{Address, DeviceId, PathId};
use scoutline_path::{
    Attributes, CreateError, Module, Name, Next, Service, ServiceKind, Stage, Step, Verdict, View,
};
use scoutline_ring::Pool;
use scoutline_sched::Level;
use scoutline_wire::ipv4;

use super::datagram::DatagramStage;
use super::{SocketEnd, StreamStage};
use crate::extend::{Duty, Share};
use crate::policy::{Class, ClassPolicy};
use crate::routing::Routing;
use crate::scheduling::Stands;

/// IP protocol numbers, as attributes have them.
const TCP: u64 = ipv4::PROTOCOL_TCP as u64;
const UDP: u64 = ipv4::PROTOCOL_UDP as u64;

/// Which listening socket a listen path belongs to.
pub(crate) type Listeners = Rc<RefCell<HashMap<PathId, Rc<SocketEnd>>>>;

/// Where a path stands, for its program to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Its level.
    pub(crate) level: Level,
    /// Above Linux's: the program calls the engine back from Linux's quantum.
    pub(crate) urgent: bool,
    /// Threads that serve it are scheduled with it.
    pub(crate) extended: bool,
    /// As what, beside the level.
    share: Share,
}

impl Standing {
    /// Of a path of this class that stands so.
    pub(crate) fn of(class: &Class, stands: Stands, extended: bool, linux_level: Level) -> Standing {
        let level = stands.level;
        let share = Share::of(class.number, stands, class.settings.thread_budget_us);
        Standing { level, urgent: level > linux_level, extended, share }
    }

    /// What it asks of the threads that serve it.
    pub(crate) fn duty(self) -> Duty {
        if self.extended { Duty { level: self.level, share: self.share } } else { Duty::OWN }
    }

    /// As [`scoutline_abi::layout::Slot::importance`] has it.
    pub(crate) fn importance(self) -> u32 {
        match self.level {
            Level::Idle => 0,
            Level::Priority(priority) => u32::from(priority) + 1,
        }
    }
}

/// The module.
pub(crate) struct SocketModule {
    listeners: Listeners,
    pool: Rc<Pool>,
    linux_level: Level,
    policy: Rc<ClassPolicy>,
    outlet: Rc<Outlet>,
}

/// Where what is sent on these paths leaves.
pub(crate) struct Outlet {
    /// Which device leads where.
    pub(crate) routing: Rc<Routing>,
    /// This one.
    pub(crate) device: DeviceId,
    /// Linux's number of its interface.
    pub(crate) number: u32,
    /// The kernel reads what is sent, and not this process.
    pub(crate) kernel_sends: bool,
}

impl Outlet {
    /// Linux's number of the interface by which a datagram to there came: on the machine's link with itself, of that which has
    /// the address.
    pub(crate) fn interface_of(&self, destination: Option<Address>) -> u32 {
        let of_address = || destination.and_then(|address| self.routing.interface_of(address)).unwrap_or(0);
        if self.number == 0 { of_address() } else { self.number }
    }
}

/// The attribute (`Name::Other`) of a path that serves a datagram socket beside its first one.
pub(crate) const SIDE: &str = "side";

impl SocketModule {
    /// The module. Paths above `linux_level` are urgent: their
    /// programs may call the engine back from Linux's quantum.
    pub(crate) fn new(
        listeners: Listeners,
        pool: Rc<Pool>,
        linux_level: Level,
        policy: Rc<ClassPolicy>,
        outlet: Outlet,
    ) -> SocketModule {
        SocketModule { listeners, pool, linux_level, policy, outlet: Rc::new(outlet) }
    }

    fn datagram_stage(&self, end: Rc<SocketEnd>, attributes: &Attributes) -> DatagramStage {
        let stage = DatagramStage::new(end, Rc::clone(&self.pool), Rc::clone(&self.outlet));
        if attributes.value(Name::Other(SIDE)).is_some() { stage.beside() } else { stage }
    }

    fn class_of(&self, attributes: &Attributes) -> Rc<Class> {
        self.policy.class(attributes.number(Name::Class).unwrap_or(0) as u32)
    }

    fn standing(&self, attributes: &Attributes, class: &Rc<Class>, end: &SocketEnd) -> Standing {
        let level = attributes.number(Name::Priority).map_or(Level::Idle, |p| Level::Priority(p as u8));
        let wishes = end.wishes.borrow();
        let granted = self.policy.grant(Rc::clone(class), wishes.as_deref(), &end.program.facts);
        let stands = Stands { level, ..granted.stands };
        Standing::of(&granted.class, stands, granted.extended, self.linux_level)
    }
}

impl Module for SocketModule {
    fn name(&self) -> &'static str {
        "SOCKET"
    }

    fn services(&self) -> &'static [Service] {
        const DOWN: Service = Service::lower("tcp", ServiceKind::Socket);
        const SERVICES: &[Service] = &[DOWN, Service { name: "udp", ..DOWN }];
        SERVICES
    }

    fn create_stage(&self, attributes: &mut Attributes) -> Result<Step, CreateError> {
        let protocol = attributes.number(Name::Protocol);
        let next = match protocol {
            Some(TCP) => Next::Through("tcp"),
            Some(UDP) => Next::Through("udp"),
            _ => return Err(CreateError::MissingAttribute { module: "SOCKET", attribute: "Protocol" }),
        };
        // The path keeps its attributes for as long as it lives, and the socket only until it is closed.
        let end = attributes.any::<SocketEnd>(Name::Socket);
        attributes.remove(Name::Socket);
        let stage: Option<Box<dyn Stage>> = match (protocol, end) {
            // A listen path ends in TCP: what it makes are other paths.
            _ if attributes.number(Name::Listen).is_some() => None,
            (Some(UDP), Some(end)) => Some(Box::new(self.datagram_stage(end, attributes))),
            (_, Some(end)) => {
                let class = self.class_of(attributes);
                let standing = self.standing(attributes, &class, &end);
                let stage = StreamStage::active(end, &class, standing);
                Some(Box::new(stage.by_copies(!self.outlet.kernel_sends)))
            }
            (_, None) => {
                let parent = attributes
                    .path(Name::Parent)
                    .and_then(|parent| self.listeners.borrow().get(&parent).cloned())
                    .ok_or(CreateError::MissingAttribute {
                        module: "SOCKET",
                        attribute: "Socket or Parent",
                    })?;
                let class = self.class_of(attributes);
                let standing = self.standing(attributes, &class, &parent);
                let stage = StreamStage::passive(parent, &class, standing);
                Some(Box::new(stage.by_copies(!self.outlet.kernel_sends)))
            }
        };
        Ok(Step { stage, next })
    }

    fn demux(&self, _view: &mut View<'_>) -> Verdict {
        // TCP and UDP name the path themselves.
        Verdict::NoPath
    }
}
