//! TCP without I/O: RFC 9293 as a machine that is fed segments and time and asked for segments.
//!
//! ```text
//!            on_segment ──► ┌────────────┐ ──► Input { deliver, events, drop }
//!  on_written, on_consumed  │ Connection │
//!  shutdown, close, abort ► │            │ ──► poll_transmit: Transmit { header, payload range, segment_size }
//!            on_timeout ──► └────────────┘ ──► next_timeout
//! ```
//!
//! No payload passes through here. A stream byte has a *position*, a `u64` counted from 0 per direction; the
//! caller holds a ring per direction and moves the bytes that [`Deliver`] and [`Transmit`] name. Both may name up
//! to 64 KiB at once: devices cut and merge (GSO, GRO).
//!
//! One file per mechanism: [`sequence`], [`isn`], [`cookie`], [`fast_open`], [`options`], [`rtt`], [`congestion`], [`recovery`] (over
//! [`flight`], [`rack`], [`prr`] and [`frto`]), [`reassembly`], [`ecn`], [`pacing`], [`timers`],
//! [`chronograph`], [`delivery`]; `connection` joins them.
//!
//! Left out on purpose: authentication.

pub mod chronograph;
pub mod config;
pub mod congestion;
pub mod connection;
pub mod cookie;
pub mod delivery;
pub mod ecn;
pub mod fast_open;
pub mod flight;
pub mod frto;
pub mod fused;
pub mod isn;
mod late;
pub mod listen;
mod message;
pub mod module;
pub mod options;
pub mod pacing;
pub mod prr;
pub mod rack;
pub mod reassembly;
pub mod recovery;
pub mod rtt;
pub mod segment;
pub mod sequence;
mod sizing;
pub mod stage;
pub mod timers;

pub use chronograph::Chronograph;
pub use config::{Config, Keepalive, Pacing};
pub use congestion::Algorithm;
pub use connection::{Connection, Info, State};
pub use fused::{FuseEthIp6Tcp, FuseEthIpTcp};
pub use listen::{ListenStage, ResetStage};
pub use module::{Backlog, Tcp, TcpModule};
pub use segment::{Deliver, Drop, Events, Input, Transmit, reset_for};
pub use sequence::SeqNumber;
pub use stage::TcpStage;

#[cfg(test)]
mod tests;
