//! UDP (RFC 768, RFC 1122 §4.1).

mod module;
mod stage;

pub use module::UdpModule;
pub use stage::{MAX_PAYLOAD, MAX_PAYLOAD6, UdpStage};

pub(crate) use module::{SERVICES, below};
pub(crate) use stage::{checksum_vouched, is_intact};

#[cfg(test)]
mod tests;
