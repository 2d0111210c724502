//! UDP (RFC 768, RFC 1122 §4.1).

mod module;
mod stage;

pub use module::UdpModule;
pub use stage::{MAX_PAYLOAD, UdpStage};

#[cfg(test)]
mod tests;
