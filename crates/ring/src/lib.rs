//! Shared buffers: blocks and pools for packets, byte rings and bitmaps for shared memory.
//!
//! The only crate with hand-written atomics. What lives in shared memory is hostile: every value is read once
//! into a local, checked, and then used (DESIGN.md §3).
#![allow(unsafe_code)] // raw memory and atomics are this crate's subject; every block says why it holds

mod bell;
mod bitmap;
mod block;
mod copy;
mod cursors;
mod memory;
mod pool;
mod stream;
mod sync;

pub use bell::{EngineBell, Moment, SleeperBell};
pub use bitmap::{Bitmap, bitmap_words, summary_words};
pub use block::{Block, BlockOwner};
pub use copy::{copy, copy_slice};
pub use cursors::Cursors;
pub use memory::{prefer_huge_pages, prefetch};
pub use pool::Pool;
pub use stream::{MAX_SPANS, Span, Spans, StreamMemory, copy_spans, gather};
