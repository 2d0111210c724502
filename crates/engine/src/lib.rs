//! The engine: a run-to-completion loop that joins devices, paths, scheduler and the sockets of programs.
//!
//! [`Core`] does the work and knows no clock of its own to sleep by; the `thread` module owns the loop. One engine
//! owns all of its state: nothing mutable is shared with other threads but the regions of programs, and commands
//! that come over a channel.
#![allow(unsafe_code)] // system calls of the loop, and copies to and from shared rings; each block says why it holds

mod admission;
mod alarm;
mod arena;
mod background;
mod bells;
mod by_path;
mod clock;
mod command;
mod core;
mod driven;
mod extend;
mod file;
mod flood;
mod link_use;
mod linux;
mod moderation;
mod policy;
mod program;
mod rest;
mod routing;
mod scheduling;
mod seldom;
mod settings;
mod several;
mod socket;
mod spin;
mod start;
mod sys;
mod thread;
mod turn;
mod wheel;
mod wishes;

pub use crate::background::lower_process;
pub use crate::command::{Command, RegionId};
pub use crate::core::{Core, PathCost, path_cost};
pub use crate::driven::Driven;
pub use crate::extend::{
    ExtensionSettings, ThreadBefore, ThreadGroup, UndoLog, deadlines_of_threads, weights_of_threads,
};
pub use crate::file::FileMap;
pub use crate::link_use::LinkUse;
pub use crate::policy::ClassPolicy;
pub use crate::scheduling::{Asks, JobAsks, Stands};
pub use crate::settings::{
    ClassSettings, DeviceSettings, EngineSettings, Forward, HostSettings, LiveSettings, OwnLink,
    PermissionSettings, ProgramFacts, Requests, RouteSettings, TcpSettings,
};
pub use crate::sys::realtime_of_threads;
pub use scoutline_proto::ip6::Host6Config;
pub use scoutline_proto::route::{Metrics, Refusal, Route, Way};
pub use scoutline_proto::tcp::Pacing;
pub use scoutline_proto::tcp::ecn::Policy as Ecn;
pub use scoutline_proto::tcp::fast_open::{Keys as FastOpenKeys, Policy as FastOpen};

pub use crate::start::{Engine, EngineHandle, StartError, random_key};
