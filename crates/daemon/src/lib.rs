//! The control plane of `scoutline up`: configuration, the attach server, the JSON API, start and stop.
//!
//! ```text
//! programs ──attach socket──┐
//!                           ├─ this crate: one thread, one poll loop ── Command ──▶ engine (its own thread)
//! tools ────control socket──┘                                        ◀── Answer ──
//! ```
//!
//! The thread never waits for a program or a tool: sends do not block, buffers are bounded, and who sends garbage
//! or does not read is disconnected. It does wait for nothing but `poll`.

pub mod config;

mod attach;
mod claim;
mod classes;
mod control;
mod daemon;
#[doc(hidden)]
pub mod dry;
mod engine;
mod engines;
pub mod guard;
mod live;
mod merge;
mod plane;
mod sockets;

pub use claim::Claimed;
pub use config::{Config, ConfigError};
pub use daemon::{DaemonError, check, run};
pub use scoutline_engine::{deadlines_of_threads, lower_process, realtime_of_threads, weights_of_threads};
pub use sockets::{SocketError, attach_path};

/// Of tests in which something ends when its descriptor is closed, or that start a process, one at a time: until it has
/// called `exec`, a process has all descriptors of this one, and what is closed here has not ended.
#[cfg(test)]
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
