//! Packet scripts (DESIGN.md, STYLE.md): one behaviour a file, each with the clause that asks for it.
//!
//! A script says which packets come, which must leave, when, and what calls return. It runs against two stacks:
//!
//! - **ours**, in virtual time: a whole engine (`scoutline_engine::Driven`) over a wire in memory, with a model
//!   program at its region. Exact, and thousands of times faster than the times in the scripts.
//! - **the kernel's**, in a network namespace behind a TAP interface, in real time: what it does otherwise is listed
//!   with the reason (`scripts/kernel-differences.txt`). Not over IPv6: the kernel sends what it has to say of itself
//!   (groups, duplicate addresses) at moments that it draws.
//!
//! ```text
//! script.rs   the language          run.rs     time, expectations, sequence numbers
//! packet.rs   frames as bytes       stack.rs   what a stack can do; stack/ours, stack/kernel
//! suite.rs    which scripts there are, and what is known of them
//! ```
//! What the model program leaves out of a real one behind the shim: several processes, signals, nested epolls. Those are the
//! matter of the tests with real programs.
#![allow(unsafe_code)] // copies to and from shared rings, and the kernel's system calls; each block says why it holds

pub mod packet;
pub mod run;
pub mod script;
pub mod stack;
pub mod suite;
