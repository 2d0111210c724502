//! What daemon, shim and tools share: the layout of shared memory, the attach messages, the JSON API.
//!
//! One *region* (a sealed memfd) belongs to one program: its first process and all that it forks. It holds the
//! program's sockets and nothing of anybody else (DESIGN.md §3: isolation is the default). Whatever one side
//! writes, the other validates.
#![allow(unsafe_code)] // maps memory; every block says why it holds

pub mod api;
pub mod attach;
pub mod datagram;
pub mod interest;
pub mod layout;
pub mod privilege;
mod region;
pub mod served;
pub mod stand_in;

pub use region::{MapError, Region, Span2};

/// Version of layout and messages; daemon and shim must agree exactly.
pub const VERSION: u32 = 22;
