//! Header views: parse, emit, checksum. Pure.
//!
//! One file per protocol, each with the same shape: lengths and numbers, a `Header` (or `Packet`) with `parse`
//! and `emit`, its `ParseError`. Parsing borrows the bytes, copies the few fields out, and fails with a typed
//! error on any input that is not a header; no input makes it panic. Emitting writes into memory of the caller
//! and panics when that is too short, which is the caller's fault and no packet's.

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod icmpv6;
pub mod igmp;
pub mod ipv4;
pub mod ipv6;
pub mod nd;
pub mod tcp;
pub mod udp;
pub mod vnet;

/// Two bytes of `bytes` at `at`, in network order.
#[inline]
const fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
