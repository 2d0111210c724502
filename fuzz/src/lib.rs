//! The bodies of the fuzz targets: functions from bytes to nothing that panic when an invariant breaks.
//!
//! Each module has a `TARGETS` table of (name, function). `fuzz_targets/NAME.rs` gives a function to libFuzzer; the
//! tests `corpus.rs` of the crates include these files by path and replay `corpus-kept/NAME/` on stable.

pub mod bytes;
pub mod capture;
pub mod config;
pub mod control;
pub mod demux;
pub mod groups;
pub mod messages;
pub mod neighbours;
pub mod reassembly;
pub mod reassembly6;
pub mod region;
pub mod request;
pub mod tcp_operations;
pub mod tcp_pair;
pub mod vlan;
pub mod wire;
