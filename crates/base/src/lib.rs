//! Ids, addresses, time and seeded randomness: the words that every other crate speaks.
//!
//! Nothing here knows a clock or an environment: time and randomness are handed in.

mod address;
mod id;
mod random;
pub mod spread;
mod time;

pub use address::{Address, Endpoint, V4_PREFIX_LEN};
pub use id::{DeviceId, PathId};
pub use random::Random;
pub use time::Time;
