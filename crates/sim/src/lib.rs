//! Whole hosts and links in virtual time from one printed seed (DESIGN.md §8, STYLE "Tests").
//!
//! ```text
//!  seed ─► plan ─► world ─┬─ host: program ◄─ region ─► engine (Driven) ─► tap ─┐
//!                         ├─ [router]                                          wire: loss, delay, reordering,
//!                         └─ host: program ◄─ region ─► engine (Driven) ─► tap ─┘   duplicates, flipped bits, rate, MTU
//! ```
//! Everything in a host is the real thing: the engine with its modules, schedule, accounts, timers and class policy.
//! What stands around it is modelled: the clock, the wires (`scoutline_device::memory`), and the programs, which speak
//! through shared memory by the shim's rules ([`model`]).
//!
//! What is checked, throughout:
//! - `oracle`: each byte of each stream and datagram, order, ends; connections that nothing has disturbed complete
//! - `tap`: sequence space and windows, on every segment that leaves
//! - `books`: accounts and memory, against regions and devices; at the end nothing is left
//! - `world`: progress: once the wires are fair everything ends, so no wake-up and no timer was lost
//!
//! What a program does when it is not told: nothing. What is not modelled: several processes of a program, threads,
//! files sent as extents, policies other than levels (they go by the CPU's real time).
#![allow(unsafe_code)] // copies to and from shared rings; each block says why it holds

mod books;
mod canary;
mod frame;
mod host;
pub mod model;
mod oracle;
pub mod plan;
mod program;
pub mod seeds;
mod shared;
mod tap;
mod world;

pub use canary::Canary;
pub use plan::Plan;
pub use world::{Report, run};
