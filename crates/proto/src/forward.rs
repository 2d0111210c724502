//! Passing packets of both versions of IP on from one interface to another (RFC 1812, RFC 8200): the stages of a
//! cut-through path.
//!
//! ```text
//!   device a ─► ETH (a) ─► FORWARD ─► ETH (b) ─► device b
//!      ▲          ◄── ICMP errors ──┘
//! ```
//! The path begins at one device and ends at another, so both of its ends are devices' and it has no program. Packets
//! that fit stay where they are in memory: hop limit and checksum are changed in place (RFC 1624), and super-segments stay
//! whole, unless the outgoing link is to be given less at a time.
//!
//! ```text
//!   refusal  what cannot go on, in the words of ICMP and ICMPv6      packet  what is looked at, of either version
//!   cut      what goes on in pieces                                  stage   joins them
//! ```
//! Left out on purpose: IP options and extension headers are passed on and not looked at (no source routes, no record
//! route; RFC 7126 advises so, RFC 8200 §4 allows it), which way a packet goes is configuration (there is no routing
//! protocol, and no router advertisements are sent: RFC 4861 §6.2.1 AdvSendAdvertisements is FALSE), and redirects are not
//! sent, since no packet leaves by the link that it came from.

mod cut;
mod merge;
mod packet;
mod refusal;
mod stage;

pub use stage::{ForwardStage, OutStage};

#[cfg(test)]
mod tests;
