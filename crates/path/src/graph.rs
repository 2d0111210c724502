//! The module graph: which modules there are, how their services are linked, and in what order they start
//! (Scout §3.1), plus demultiplexing by asking one module after the other (Scout §3.4).
//!
//! ```text
//!        TCP     UDP           a link joins a `Lower` service (it uses what is below)
//!     down │       │ down      with an `Upper` one of the same kind (it offers to those above):
//!          └──┬────┘           "TCP.down -> IP4.up"
//!          up │
//!            IP4 ── res ──► ARP
//!       down │               │ down
//!            └──────┬────────┘
//!                up │
//!                  ETH
//! ```
//!
//! Everything that can be wrong with a graph is found when it is built, and every error names the link. Cycles of
//! links are fine as long as the modules can be initialised in some order.

mod build;

use std::fmt;

use scoutline_base::DeviceId;

use crate::rules::RuleSet;
use crate::{DropReason, FlowKey, Module, ServiceKind, Verdict, View};

pub use build::{GraphBuilder, GraphError};

/// Steps that one classification may take: deeper stacks than this are a fault of the graph or a hostile packet
/// (tunnel in tunnel).
const MAX_DEMUX_STEPS: usize = 16;

/// Names one module of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub(crate) u16);

/// A checked and initialised module graph. Made by [`GraphBuilder::build`].
///
/// It classifies packets ([`Graph::demux`]) and makes paths ([`Graph::path_create`]).
pub struct Graph {
    pub(crate) nodes: Vec<Node>,
    links: Vec<Link>,
    initialised: Vec<ModuleId>,
    pub(crate) rules: RuleSet,
}

/// A module with what the builder worked out about its surroundings.
pub(crate) struct Node {
    pub(crate) module: Box<dyn Module>,
    /// Modules above by protocol number; few, so searched in order.
    above: Vec<(u32, ModuleId)>,
    /// Its `Lower` services and where each leads.
    pub(crate) below: Vec<(&'static str, Hop)>,
}

/// Where a `Lower` service leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// No link.
    Nowhere,
    /// One link: the routing decision is unique.
    To(ModuleId),
    /// Several: the service alone does not say which.
    Several,
}

/// One link of a graph. Displayed as `TCP.down -> IP4.up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The module that uses (its service is a `Lower` one).
    pub from: ModuleId,
    /// Its name.
    pub from_module: &'static str,
    /// Its service.
    pub from_service: &'static str,
    /// The module that is used (its service is an `Upper` one).
    pub to: ModuleId,
    /// Its name.
    pub to_module: &'static str,
    /// Its service.
    pub to_service: &'static str,
    /// The type of both services.
    pub kind: ServiceKind,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} -> {}.{}", self.from_module, self.from_service, self.to_module, self.to_service)
    }
}

impl Graph {
    /// The module of this name.
    pub fn find(&self, name: &str) -> Option<ModuleId> {
        self.nodes.iter().position(|node| node.module.name() == name).map(|index| ModuleId(index as u16))
    }

    /// A module of this graph.
    ///
    /// # Panics
    /// When `id` is of another, larger graph.
    pub fn module(&self, id: ModuleId) -> &dyn Module {
        &*self.nodes[id.0 as usize].module
    }

    /// All modules, in the order in which they were given.
    pub fn modules(&self) -> impl Iterator<Item = (ModuleId, &dyn Module)> {
        self.nodes.iter().enumerate().map(|(index, node)| (ModuleId(index as u16), &*node.module))
    }

    /// All links, in the order in which they were given.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.iter()
    }

    /// The modules in the order in which they were initialised.
    pub fn initialisation_order(&self) -> &[ModuleId] {
        &self.initialised
    }

    /// The transformation rules that every new path goes through.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Classifies a frame, or any packet whose first header belongs to `entry`: asks `entry`, then whoever it
    /// names above, until one of them knows. Nothing is changed by asking.
    ///
    /// The key holds what was learnt, also when the verdict is `NoPath` or `Drop`. The verdict is never `Up`.
    pub fn demux(&self, frame: &[u8], device: DeviceId, entry: ModuleId) -> (Verdict, FlowKey) {
        let key = FlowKey { device, ..FlowKey::default() };
        let mut view =
            View { bytes: frame, offset: 0, end: frame.len(), key, tos: 0, broadcast: false, group: false };
        let mut at = entry;
        for _ in 0..MAX_DEMUX_STEPS {
            let node = &self.nodes[at.0 as usize];
            let protocol = match node.module.demux(&mut view) {
                Verdict::Up(protocol) => protocol,
                verdict => return (verdict, view.key),
            };
            // A module that moved past the end would make the next one slice out of bounds.
            if view.offset > view.end || view.end > frame.len() {
                return (Verdict::Drop(DropReason::Truncated), view.key);
            }
            match node.above.iter().find(|&&(number, _)| number == protocol) {
                Some(&(_, above)) => at = above,
                None => return (Verdict::Drop(DropReason::UnknownProtocol), view.key),
            }
        }
        (Verdict::Drop(DropReason::Malformed), view.key)
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.links.iter().map(ToString::to_string)).finish()
    }
}

#[cfg(test)]
mod tests;
