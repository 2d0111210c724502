//! The one place where atomics come from, so that `tests/loom.rs` can put loom's there (it includes the files that use
//! this, and has a module of this name itself).

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
