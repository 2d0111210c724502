//! ICMP (RFC 792, RFC 1122 §3.2.2): echo, errors to those whom they concern, errors about what nobody takes.

mod module;
mod stage;

pub use module::{IcmpModule, UNREACHABLE_PATH};
pub use stage::{IcmpStage, UnreachableStage};

#[cfg(test)]
mod tests;
