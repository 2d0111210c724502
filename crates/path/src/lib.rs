//! The path model: modules, services, graph, attributes, paths, stages, demultiplexing, accounts.
//!
//! After Scout (Mosberger and Peterson, "Making Paths Explicit in the Scout Operating System", TR 96-05, §3) and
//! DESIGN.md §2. Pure: no clock, socket, thread or file; the engine drives it.

mod account;
mod attributes;
mod create;
mod error;
mod flow;
mod graph;
mod limits;
mod measure;
mod message;
mod module;
mod path;
mod queue;
mod rules;
mod stage;
mod table;

#[cfg(test)]
mod testing;

pub use account::{Account, DropReason};
pub use attributes::{Attributes, Name, Value};
pub use create::NewPath;
pub use error::CreateError;
pub use flow::{FlowKey, FlowTable, Probe, flow_of_frame, flow_of_message};
pub use graph::{Graph, GraphBuilder, GraphError, Link, ModuleId};
pub use limits::{Budget, Limits};
pub use measure::{Clock, Cost, MeasureRule, Measured, Measurements, StageTotals};
pub use message::{
    Body, Burst, Checksum, Control, Facts, HEAD_ROOM, Head, HeaderWishes, Message, Reach, Segmentation,
    SegmentationKind, Sent, Tail, Told, Tuning, take_packets,
};
pub use module::{Arity, Module, Next, Service, ServiceKind, Side, Step, Verdict, View};
pub use path::{Grant, Path, Ran, Runner, StageFacts};
pub use queue::{Queue, QueueMemory};
pub use rules::{ANY, Rule, RuleSet};
pub use stage::{Context, Effect, Stage, Stages};
pub use table::{ClassAccount, ClassAccounts, PathTable};
