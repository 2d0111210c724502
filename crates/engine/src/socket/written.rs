//! What a program has written to a stream: bytes in its socket's send ring, and pieces of files (extents) between them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use scoutline_abi::layout::{EXTENT_COUNT, MAX_AHEAD, MIN_EXTENT, slot_kind};
use scoutline_ring::{Spans, StreamMemory};

use super::SocketEnd;
use crate::arena::Ring;
use crate::file::FileMap;

/// Extents that one socket may have outstanding.
const MAX_EXTENTS: usize = (2 * MAX_AHEAD / MIN_EXTENT) as usize;

/// How far a program has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// To this position.
    To(u64),
    /// We cannot know yet: look again.
    Later,
    /// What stands in the slot makes no sense; the socket is lost.
    Nonsense,
}

/// A piece of the outgoing stream that lies in a file.
pub(super) struct FileRange {
    range: Range<u64>,
    offset: u64,
    file: Arc<FileMap>,
}

impl SocketEnd {
    /// How many bytes of the outgoing stream from `position` on lie in one file; 0: it stands in the ring.
    pub(crate) fn in_file(&self, position: u64) -> u64 {
        let extents = self.extents.borrow();
        let found = extents.iter().find(|extent| extent.range.contains(&position));
        found.map_or(0, |extent| extent.range.end - position)
    }

    /// How many bytes of the outgoing stream there are before the next that lies in a file.
    pub(crate) fn until_file(&self, position: u64) -> u64 {
        let extents = self.extents.borrow();
        let found = extents.iter().find(|extent| extent.range.start >= position);
        found.map_or(u64::MAX, |extent| extent.range.start - position)
    }

    /// Reads how far the program has written, and which pieces of that lie in files. A value that neither the ring
    /// nor the extents can hold counts as nothing new.
    pub(crate) fn read_written(&self) -> Written {
        // The position before the extents: the shim writes them the other way round, so all that belong to this
        // position are seen.
        let claimed = self.shared().outgoing().written();
        if let Err(not_to_be_known) = self.take_extents() {
            return not_to_be_known;
        }
        let limit = self.freed.get() + u64::from(self.send_size()).max(self.extents_end());
        if claimed > self.written.get() && claimed <= limit {
            self.written.set(claimed);
        }
        Written::To(self.written.get())
    }

    /// Pieces of the stream that the peer does not have yet lie in files.
    pub(super) fn has_extents(&self) -> bool {
        !self.extents.is_empty()
    }

    /// How far extents may carry the stream.
    fn extents_end(&self) -> u64 {
        if self.extents.is_empty() { 0 } else { MAX_AHEAD }
    }

    /// Takes the extents that the program has pushed; the error is what to say of the program's position instead.
    fn take_extents(&self) -> Result<(), Written> {
        let slot = self.shared();
        let tail = slot.extents_tail.load(Ordering::Acquire);
        let mut head = self.extents_taken.get();
        if tail == head {
            return Ok(());
        }
        if tail.wrapping_sub(head) > EXTENT_COUNT as u32 {
            return Err(Written::Nonsense);
        }
        let mut extents = self.extents.borrow_mut();
        while head != tail {
            // No honest program gets there: each is at least MIN_EXTENT long and within MAX_AHEAD.
            if extents.len() == MAX_EXTENTS || self.kind != slot_kind::STREAM || self.copies.get() {
                return Err(Written::Nonsense);
            }
            let shared = &slot.extents[head as usize % EXTENT_COUNT];
            let (start, offset) =
                (shared.position.load(Ordering::Relaxed), shared.offset.load(Ordering::Relaxed));
            let len = u64::from(shared.len.load(Ordering::Relaxed));
            // The control thread tells us of a file before the program may use it, but over another way.
            let Some(file) = self.program.file(shared.file.load(Ordering::Relaxed)) else {
                return Err(Written::Later);
            };
            let follows = extents.back().map_or(0, |last| last.range.end).max(self.written.get());
            let sound = start >= follows
                && start - self.freed.get().min(start) <= MAX_AHEAD
                && (MIN_EXTENT..=MAX_AHEAD).contains(&len)
                && file.span(offset, len as usize).is_some();
            if !sound {
                return Err(Written::Nonsense);
            }
            extents.push_back(FileRange { range: start..start + len, offset, file });
            head = head.wrapping_add(1);
            self.extents_taken.set(head);
            slot.extents_head.store(head, Ordering::Release);
        }
        Ok(())
    }

    /// The peer has the stream up to `position`: files before it are needed no longer.
    pub(super) fn free_extents(&self, position: u64) {
        if self.extents.is_empty() {
            return;
        }
        let mut extents = self.extents.borrow_mut();
        while extents.front().is_some_and(|extent| extent.range.end <= position) {
            extents.pop_front();
        }
    }

    /// Copies `to.len()` bytes at `position` of the send ring.
    pub(crate) fn load(&self, position: u64, to: &mut [u8]) {
        let mut spans = Spans::default();
        self.push_ring_part(position..position + to.len() as u64, &mut spans);
        let mut rest = to;
        for span in spans.iter() {
            let (part, behind) = rest.split_at_mut(span.len);
            // SAFETY: as in `store`.
            unsafe { span.copy_to(part) };
            rest = behind;
        }
    }

    /// Appends the bytes at these positions as far as they stand in the send ring.
    #[inline]
    fn push_ring_part(&self, range: Range<u64>, spans: &mut Spans) {
        let mut start = range.start;
        if let Some((before, until)) = self.send_before.get()
            && start < until
        {
            self.push_part(before, start..range.end.min(until), spans);
            start = range.end.min(until);
        }
        self.push_part(self.send.get(), start..range.end, spans);
    }

    #[inline]
    fn push_part(&self, ring: Ring, range: Range<u64>, spans: &mut Spans) {
        let len = (range.end - range.start) as usize;
        for span in
            self.program.region.ring_spans(ring.offset, ring.size, range.start, len).into_iter().flatten()
        {
            spans.push(span);
        }
    }
}

impl StreamMemory for SocketEnd {
    fn spans(&self, range: Range<u64>) -> Spans {
        let mut spans = Spans::default();
        let extents = self.extents.borrow();
        if extents.is_empty() {
            self.push_ring_part(range, &mut spans);
            return spans;
        }
        let mut at = range.start;
        for extent in extents.iter().skip_while(|extent| extent.range.end <= range.start) {
            if extent.range.start >= range.end {
                break;
            }
            self.push_ring_part(at..extent.range.start.max(at), &mut spans);
            at = at.max(extent.range.start);
            let end = range.end.min(extent.range.end);
            if let Some(span) =
                extent.file.span(extent.offset + (at - extent.range.start), (end - at) as usize)
            {
                spans.push(span);
            }
            at = end;
        }
        self.push_ring_part(at..range.end, &mut spans);
        spans
    }
}
