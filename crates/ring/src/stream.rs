//! Where the bytes of a stream lie: spans of a send ring, read by the device without a copy between, or what a device
//! still holds of a packet that came, to be copied once to where it is stored.

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
        unsafe { crate::copy(self.memory.as_ptr(), to.as_mut_ptr(), self.len) };
    }
}

/// Spans that one segment can consist of: pieces of a ring that may wrap, and of files that are sent from where they
/// lie. A segment of 192 KiB crosses at most 13 files of 16 KiB and what stands between them, once the place where a ring
/// was exchanged for a larger one, and once the end of each of the two.
pub const MAX_SPANS: usize = 30;

/// A sequence of spans.
#[derive(Clone, Copy, Debug)]
pub struct Spans {
    list: [Span; MAX_SPANS],
    len: usize,
}

impl Default for Spans {
    fn default() -> Spans {
        Spans { list: [Span::EMPTY; MAX_SPANS], len: 0 }
    }
}

impl Spans {
    /// Appends a span unless it is empty; false when there is no place for it.
    pub fn push(&mut self, span: Span) -> bool {
        if span.len == 0 {
            return true;
        }
        if self.len == MAX_SPANS {
            return false;
        }
        self.list[self.len] = span;
        self.len += 1;
        true
    }
}

impl From<[Span; 2]> for Spans {
    fn from(spans: [Span; 2]) -> Spans {
        let mut all = Spans::default();
        for span in spans {
            all.push(span);
        }
        all
    }
}

impl std::ops::Deref for Spans {
    type Target = [Span];
    fn deref(&self) -> &[Span] {
        &self.list[..self.len]
    }
}

/// Memory that holds a stream by position: what a program has written, or the rest of a received packet.
pub trait StreamMemory {
    /// The bytes at these positions, in order. The spans stay mapped while `self` lives.
    fn spans(&self, range: Range<u64>) -> Spans;

    /// Copies these positions to `to`, which has as many bytes. False when they are not all there (any more: what a device
    /// holds may be there once).
    ///
    /// # Safety
    /// `to` is mapped, and nobody refers to it. Another process may write there.
    unsafe fn copy_to(&self, range: Range<u64>, to: &[Span]) -> bool {
        // SAFETY: `self` keeps its spans mapped, and the caller vouches for `to`.
        unsafe { copy_spans(&self.spans(range), to) }
    }
}

/// Copies spans to spans; false when those to copy to are not filled.
///
/// # Safety
/// Both are mapped, they do not overlap, and nobody refers to `to`.
pub unsafe fn copy_spans(from: &[Span], to: &[Span]) -> bool {
    let mut from = from.iter().copied();
    let mut part = Span::EMPTY;
    for span in to {
        let mut done = 0;
        while done < span.len {
            if part.len == 0 {
                let Some(next) = from.next() else { return false };
                part = next;
            }
            let len = part.len.min(span.len - done);
            // SAFETY: within both spans.
            unsafe {
                crate::copy(part.memory.as_ptr(), span.memory.as_ptr().add(done), len);
                part = Span { memory: part.memory.add(len), len: part.len - len };
            }
            done += len;
        }
    }
    true
}

/// Copies these positions to `to`, which is as long. False when they are not all there.
pub fn gather(memory: &dyn StreamMemory, range: Range<u64>, to: &mut [u8]) -> bool {
    let to = Span { memory: NonNull::from(&mut *to).cast(), len: to.len() };
    // SAFETY: memory of ours, and ours alone meanwhile.
    unsafe { memory.copy_to(range, &[to]) }
}
