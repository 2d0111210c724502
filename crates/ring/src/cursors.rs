//! The two cursors of a byte ring: how far it was written, how far it was read. Positions only grow.
//!
//! ```text
//!  writer                                     reader
//!  freed()        head, Acquire               written()      tail, Acquire
//!  puts bytes into what is free               takes bytes that are there
//!  publish(to)    tail, Release               free(to)       head, Release
//! ```
//! Who may write: the tail its writer, the head its reader; each reads its own without order. The Release of one side and
//! the Acquire of the other put the bytes themselves in order: what the reader sees was written before, and what the writer
//! puts there comes after it was read. `tests/loom.rs` runs this file.
//!
//! The words lie in shared memory. What the other side says is compared with the ring's size before it is used; what it
//! does with bytes that it does not own concerns bytes only.

use crate::sync::{AtomicU64, Ordering};

/// Both cursors of one ring.
#[derive(Clone, Copy)]
pub struct Cursors<'a> {
    /// Bytes ever taken out. The reader's.
    pub head: &'a AtomicU64,
    /// Bytes ever put in. The writer's.
    pub tail: &'a AtomicU64,
}

impl Cursors<'_> {
    /// The writer's own place: where it goes on.
    #[inline]
    pub fn own_tail(self) -> u64 {
        self.tail.load(Ordering::Relaxed)
    }

    /// The reader's own place.
    #[inline]
    pub fn own_head(self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }

    /// Up to where the ring has been read: what lies before may be written over.
    #[inline]
    pub fn freed(self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Up to where the ring has been written.
    #[inline]
    pub fn written(self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// Bytes between the two, by whichever side. More than the ring is long come of the other side's nonsense; or, where
    /// a thread looks that does not hold the ring, of both sides having gone on between the two looks.
    #[inline]
    pub fn held(self) -> u64 {
        let tail = self.written();
        tail.wrapping_sub(self.freed())
    }

    /// The writer has put bytes there up to `position`.
    #[inline]
    pub fn publish(self, position: u64) {
        self.tail.store(position, Ordering::Release);
    }

    /// The reader is through with all up to `position`.
    #[inline]
    pub fn free(self, position: u64) {
        self.head.store(position, Ordering::Release);
    }

    /// The same, before the reader looks whether the writer waits for room: in one order with the writer's word for that.
    #[inline]
    pub fn free_then_look(self, position: u64) {
        self.head.store(position, Ordering::SeqCst);
    }
}
