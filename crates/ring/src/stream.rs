//! Where the bytes of an outgoing stream lie: spans of a send ring, read by the device without a copy between.

use std::ops::Range;
use std::ptr::NonNull;

/// A piece of memory that another process may be writing: never made into a slice, only copied or given to the
/// kernel.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// First byte.
    pub memory: NonNull<u8>,
    /// Length in bytes.
    pub len: usize,
}

impl Span {
    /// A span without bytes.
    pub const EMPTY: Span = Span { memory: NonNull::dangling(), len: 0 };

    /// Copies the span to the front of `to`.
    ///
    /// # Safety
    /// The span's memory is still mapped.
    ///
    /// # Panics
    /// When `to` is shorter than the span.
    pub unsafe fn copy_to(self, to: &mut [u8]) {
        assert!(to.len() >= self.len, "no room for the span");
        // SAFETY: the caller vouches for the mapping; `to` has room and is ours alone. A concurrent writer in the
        // other process can only change which bytes we get, and they are data, never trusted.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.as_ptr(), to.as_mut_ptr(), self.len) };
    }
}

/// Memory that holds an outgoing stream by position.
pub trait StreamMemory {
    /// The bytes at these positions, in order: two spans because a ring may wrap. The spans stay mapped while
    /// `self` lives.
    fn spans(&self, range: Range<u64>) -> [Span; 2];
}
