//! The path model: modules, services, graph, attributes, paths, stages, demultiplexing, accounts.
//!
//! After Scout (Mosberger and Peterson, "Making Paths Explicit in the Scout Operating System", TR 96-05, §3) and
//! DESIGN.md §2. Pure: no clock, socket, thread or file; the engine drives it.

mod account;
mod attributes;
mod error;
mod flow;
mod message;
mod module;
mod stage;

pub use account::{Account, DropReason};
pub use attributes::{Attributes, Name, Value};
pub use error::CreateError;
pub use flow::FlowKey;
pub use message::{
    Body, Burst, Checksum, Control, Facts, HEAD_ROOM, Head, Message, Segmentation, SegmentationKind,
};
pub use module::{Arity, Module, Next, Service, ServiceKind, Side, Step, Verdict, View};
pub use stage::{Context, Effect, Stage};
