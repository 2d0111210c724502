//! Ids, time and seeded randomness: the words that every other crate speaks.
//!
//! Nothing here knows a clock or an environment: time and randomness are handed in.

mod id;
mod random;
mod time;

pub use id::{DeviceId, PathId};
pub use random::Random;
pub use time::Time;
