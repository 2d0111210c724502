//! Partners at the edge of the machine: packet, xdp, tap, pcap, vlan, memory; and the machine's link with itself, local.
//!
//! All system calls about packets are here; the crates inside know none. Each driver folder has the same files:
//! `open` (options and opening), `receive`, `send`. What a device cannot do itself, [`software`] does.
#![allow(unsafe_code)] // mapped rings, iovecs and ioctls: the edge to the kernel; each block says why it holds

mod aside;
mod choose;
mod config;
mod error;
mod ethernet;
mod link;
pub mod local;
pub mod memory;
pub mod packet;
mod partner;
pub mod pcap;
mod retry;
pub mod software;
mod steering;
mod sys;
pub mod tap;
pub mod vlan;
mod vnet;
pub mod xdp;

pub use choose::{Suited, choose, free_interface};
pub use config::{DeviceConfig, Driver, open};
pub use error::OpenError;
pub use ethernet::Station;
pub use link::SegmentLimit;
pub use partner::{
    DeviceCounters, DeviceError, DeviceFacts, MAX_LONG_FRAME, MAX_SUPER_FRAME, Notice, Offload, Partner,
    Policing,
};
pub use scoutline_bpf::{KnownAs, Peer};
pub use steering::Steering;
