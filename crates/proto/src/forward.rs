//! Passing packets on from one interface to another (RFC 1812): the stages of a cut-through path.
//!
//! ```text
//!   device a ─► ETH (a) ─► FORWARD ─► ETH (b) ─► device b
//!      ▲          ◄── ICMP errors ──┘
//! ```
//! The path begins at one device and ends at another, so both of its ends are devices' and it has no program. Packets
//! that fit stay where they are in memory: time to live and checksum are changed in place (RFC 1624), and
//! super-segments stay whole, unless the outgoing link is to be given less at a time.
//!
//! Left out on purpose: IP options are passed on and not looked at (no source routes, no record route; RFC 7126 advises
//! so), redirects are not sent, and which way a packet goes is configuration: there is no routing protocol.

mod cut;
mod stage;

pub use stage::{ForwardStage, OutStage};

#[cfg(test)]
mod tests;
