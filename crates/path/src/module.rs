//! The module (Scout's router): the unit of program development, and its typed services (Scout §3.1).

use crate::{Attributes, CreateError, DropReason, FlowKey, Stage};
use scoutline_base::PathId;

/// A service of a module. A link joins two services of one kind, one `Lower` and one `Upper`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name within the module, such as `up`.
    pub name: &'static str,
    /// Its type: only equal kinds can be joined.
    pub kind: ServiceKind,
    /// Which end of a link it is.
    pub side: Side,
    /// How many links it takes.
    pub arity: Arity,
    /// The module at the other end must be initialised before this one.
    pub initialise_first: bool,
}

impl Service {
    /// Offers messages to whoever is above, any number of them.
    pub const fn upper(name: &'static str, kind: ServiceKind) -> Service {
        Service { name, kind, side: Side::Upper, arity: Arity::Many, initialise_first: false }
    }

    /// Needs one module below, which is initialised before.
    pub const fn lower(name: &'static str, kind: ServiceKind) -> Service {
        Service { name, kind, side: Side::Lower, arity: Arity::One, initialise_first: true }
    }
}

/// The types of services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// Delivers messages both ways, device side below (Scout's `net`).
    Net,
    /// Frames of a device.
    Frame,
    /// A socket's stream or datagrams.
    Socket,
    /// Resolves network addresses to link addresses (Scout's `nsProvider`/`nsClient`).
    Resolve,
}

/// The ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Looks towards the program: offers messages to those above.
    Upper,
    /// Looks towards the device: uses those below.
    Lower,
}

/// How many links a service takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// None or one.
    Optional,
    /// Exactly one.
    One,
    /// Any number.
    Many,
}

/// A module: makes stages for paths that cross it, and maps the part of the header that it owns.
pub trait Module {
    /// Its name, unique in the graph, such as `TCP`.
    fn name(&self) -> &'static str;

    /// Its services.
    fn services(&self) -> &'static [Service];

    /// The protocol number by which the module below finds this one (EtherType for those above ETH, IP protocol
    /// for those above IP4); `None` when the module below needs none.
    fn protocol(&self) -> Option<u32> {
        None
    }

    /// Called once, in the order that the graph found.
    fn initialise(&mut self) -> Result<(), CreateError> {
        Ok(())
    }

    /// Makes this module's stage for a path with these attributes and decides where the path goes next, towards
    /// the device. It may add, change or remove attributes.
    fn create_stage(&self, attributes: &mut Attributes) -> Result<Step, CreateError>;

    /// Maps the header at `view.offset` without side effects.
    fn demux(&self, view: &mut View<'_>) -> Verdict;
}

/// One step of path creation.
pub struct Step {
    /// This module's stage; `None` when the module only passes creation on.
    pub stage: Option<Box<dyn Stage>>,
    /// Where the path goes next.
    pub next: Next,
}

/// The routing decision of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Along the single link of this service (a `Lower` one).
    Through(&'static str),
    /// The path is complete: this is a leaf, or its invariants determine no unique next hop.
    End,
}

/// A packet while it is classified.
#[derive(Debug)]
pub struct View<'a> {
    /// The whole frame.
    pub bytes: &'a [u8],
    /// Where the header of the asked module starts.
    pub offset: usize,
    /// One past the last byte that counts (link padding is cut by the network layer).
    pub end: usize,
    /// What has been learnt so far; complete once a transport module has looked.
    pub key: FlowKey,
    /// The type-of-service octet, once the network module has looked: DSCP and ECN.
    pub tos: u8,
    /// The frame was sent to every station of its link, once the link module has looked.
    pub broadcast: bool,
    /// Its link destination is a group, everybody or some: nobody is told that it found no path (RFC 1122 §3.2.2,
    /// RFC 4443 §2.4 (e.4)), see [`View::stray`].
    pub group: bool,
}

impl View<'_> {
    /// The verdict on a packet that nobody takes: its sender may be told, unless it came to a group of the link, each
    /// of whose stations would tell.
    pub fn stray(&self, reason: DropReason) -> Verdict {
        if self.group { Verdict::Drop(reason) } else { Verdict::NoPath }
    }
}

/// What a module says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ask the module above whose [`Module::protocol`] this is; `view.offset` was moved to its header.
    Up(u32),
    /// It belongs to this path.
    Path(PathId),
    /// It goes to a group or to everybody: to every path that takes that, a copy each.
    Group,
    /// No path of ours: in shared mode it goes on to Linux, in dedicated mode it is dropped as `NoPath`.
    NoPath,
    /// It is malformed or unwanted.
    Drop(DropReason),
}
